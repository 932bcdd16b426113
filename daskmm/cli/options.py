"""Arguments of the command line, and the help that teaches them."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from daskmm._version import __version__
from daskmm.cli.help_texts import COMMANDS, DASKMM, DASKMM_EXAMPLE, GRAM, GRAM_COMMANDS
from daskmm.kmeans.empty_clusters import METHODS
from daskmm.mean_shift.blurring import CONVENTIONS
from daskmm.numerics.distortions import DISTORTIONS
from daskmm.numerics.kernels import KERNELS

MODELS = ("power", "entropy", "kmeans", "kernel", "multi-kernel", "mean-shift")

_INPUT = "zarr, .npy, .npz, .csv or .parquet; store.zarr::name for one array of a group"


class UserError(Exception):
    """Something that the user can mend: one line, no traceback, exit code 2."""


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; the command's name is in ``command``.

    Parameters of an estimator that are not given are absent from the result.
    """
    parser = _Parser(prog="daskmm", description=DASKMM, epilog=DASKMM_EXAMPLE)
    parser.add_argument("--version", action="version", version=f"daskmm {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )
    demo, fit, predict, inspect, plan = (_add_command(commands, name) for name in COMMANDS)
    demo.add_argument(
        "--out", default="daskmm-demo", metavar="DIR", help="new or empty folder (%(default)s)"
    )
    _add_model(fit)
    fit.add_argument("--out", required=True, metavar="RUN", help="run folder to make")
    fit.add_argument(
        "--no-pictures",
        dest="pictures",
        action="store_false",
        help="draw nothing; needs no matplotlib",
    )
    fit.add_argument(
        "--report",
        action="store_true",
        help="write RUN/report.html as well: one page, complete in itself, with all figures",
    )
    for command in (predict, inspect):
        command.add_argument("folder", metavar="RUN", help="run folder that 'daskmm fit' made")
    inspect.add_argument(
        "--report",
        action="store_true",
        help="write RUN/report.html, without figures of rows, which a run folder does not hold",
    )
    predict.add_argument("input", metavar="INPUT", help=_INPUT)
    predict.add_argument("--out", required=True, metavar="LABELS", help="zarr array to make")
    _add_model(plan)
    plan.add_argument(
        "--workers",
        type=int,
        nargs="+",
        metavar="N",
        help="kmeans, power, entropy: seconds that a pass would take on N workers of one thread "
        "each, from a few blocks of INPUT that are read and computed on here",
    )
    _add_gram(commands)
    for command in (fit, predict):
        _add_scheduler(command)
    for command in (demo, fit, predict):
        command.add_argument(
            "--quiet", action="store_true", help="no progress and no report, only warnings"
        )
    return parser


def _add_command(
    commands: Any, name: str, texts: dict[str, tuple[str, str, str]] = COMMANDS
) -> argparse.ArgumentParser:
    summary, description, example = texts[name]
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=description, epilog=example
    )
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return command


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("input", metavar="INPUT", help=_INPUT)
    command.add_argument(
        "-k",
        "--n-clusters",
        type=_auto_or(int),
        default=argparse.SUPPRESS,
        metavar="K",
        help="number of clusters; auto: kmeans, power and entropy choose it on a sample; "
        "mean-shift finds it",
    )
    command.add_argument("--model", choices=MODELS, default="power", help="(default: %(default)s)")
    _add_columns(command)
    parameters = command.add_argument_group(
        "parameters of the model", argument_default=argparse.SUPPRESS
    )
    add = parameters.add_argument
    add(
        "--lam",
        type=_penalty,
        metavar="X",
        help="entropy, multi-kernel, mean-shift: penalty per sample; small ones select few "
        "features or kernels (auto: chosen on a sample, or a multiple like 0.5*variance; .04; "
        "auto: .1)",
    )
    add("--kernel", choices=KERNELS, help="kernel: (rbf)")
    add(
        "--bandwidth",
        type=_auto_or(float),
        metavar="H",
        help="kernel: of rbf, laplacian and angular (auto: root mean squared distance); "
        "mean-shift: h in exp(-d²/h) (auto: chosen on a sample)",
    )
    add(
        "--gram",
        metavar="WHERE",
        help="kernel, multi-kernel: auto, recompute, or a path for the n x n matrix (auto)",
    )
    add(
        "--n-landmarks",
        type=_auto_or(int),
        metavar="N",
        help="kernel: work on N Nystroem features instead of the exact matrix; for many rows",
    )
    add(
        "--s0",
        type=_auto_or(float),
        metavar="X",
        help="power, entropy: first power, negative (auto: just past the power at which all "
        "centres fall together)",
    )
    add("--eta", type=float, metavar="X", help="power, entropy: growth of the power (1.05)")
    add("--init", choices=("k-means++", "k-means||", "random"), help="seeding (k-means++)")
    add(
        "--n-init",
        type=_auto_or(int),
        metavar="N",
        help="starts; the best one is kept (auto: 8; 4 for kernel models)",
    )
    add(
        "--sample-size",
        type=_auto_or(int),
        metavar="N",
        help="kmeans, power, entropy, or kernel with landmarks: rows to anneal on before the data "
        "are read to polish (auto: 10,000 or more)",
    )
    add(
        "--distortion",
        choices=tuple(DISTORTIONS),
        metavar="D",
        help="kmeans, power: what the distance is: sqeuclidean; kl or poisson (counts, shares); "
        "gamma or itakura-saito (positive values); logistic (values in [0, 1]); mahalanobis; "
        "euclidean, or manhattan (also for entropy), for outliers (sqeuclidean)",
    )
    add(
        "--missing",
        choices=("error", "partial"),
        help="kmeans, power, entropy: whether NaN are an error, or values to leave out (error)",
    )
    add(
        "--empty-cluster",
        choices=METHODS,
        help="kmeans, power, entropy: what becomes of a cluster without rows (farthest)",
    )
    add(
        "--persist",
        action="store_true",
        help="kmeans, power, entropy, or kernel with landmarks: keep the data in memory for the "
        "time of the fit",
    )
    add(
        "--convention",
        choices=CONVENTIONS,
        help="mean-shift: when a row counts for itself (auto)",
    )
    add("--max-iter", type=int, metavar="N", help="iterations at most (300)")
    add("--tol", type=float, metavar="X", help="relative change that counts as none (1e-4)")
    add(
        "--checkpoint-every",
        type=_iterations_or_duration,
        metavar="N",
        help='put the state down every N iterations, or every "30s" (1)',
    )
    add("--seed", type=int, dest="random_state", metavar="N", help="of the random draws (0)")
    add(
        "--standardize",
        action=argparse.BooleanOptionalAction,
        help="divide each feature by its standard deviation (yes for entropy and mean-shift, no "
        "otherwise)",
    )


def _add_columns(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--columns",
        type=lambda names: names.split(","),
        metavar="A,B,...",
        help="columns of a csv or parquet file to use (default: all)",
    )


def _add_gram(commands: Any) -> None:
    """The command ``gram``; its own command's name is in ``action``."""
    summary, description, example = GRAM
    gram = commands.add_parser("gram", help=summary, description=description, epilog=example)
    actions = gram.add_subparsers(title="commands", dest="action", metavar="COMMAND", required=True)
    build, verify, repair, info = (
        _add_command(actions, name, GRAM_COMMANDS) for name in GRAM_COMMANDS
    )
    build.add_argument("input", metavar="INPUT", help=_INPUT)
    build.add_argument("--out", required=True, metavar="STORE", help="Gram store to make")
    _add_kernel(build)
    for command in (verify, repair, info):
        command.add_argument("store", metavar="STORE", help="store that 'daskmm gram build' made")
    verify.add_argument("--data", metavar="INPUT", help="data to compare with the store's")
    repair.add_argument("input", metavar="INPUT", help="the data that the store was made from")


def _add_kernel(build: argparse.ArgumentParser) -> None:
    add = build.add_argument
    add("--kernel", choices=KERNELS, default="rbf", help="(default: %(default)s)")
    add(
        "--bandwidth",
        type=float,
        metavar="H",
        help="rbf: exp(-d²/(2H²)), laplacian: exp(-d₁/H), angular: exp(-angle/(2H²)) "
        "(default: root mean squared distance of two rows)",
    )
    add("--degree", type=float, default=3.0, metavar="D", help="polynomial: (xᵀy + C)^D (3)")
    add("--coef0", type=float, default=1.0, metavar="C", help="polynomial (1)")
    add("--dtype", choices=("float32", "float64"), default="float32", help="of the tiles (float32)")
    add(
        "--standardize",
        action="store_true",
        help="divide each feature by its standard deviation first",
    )
    _add_columns(build)


def _penalty(text: str) -> Any:
    """A number, or words that the model understands or refuses."""
    try:
        return float(text)
    except ValueError:
        return text


def _auto_or(number: type) -> Any:
    """A number or the word "auto"."""

    def convert(text: str) -> Any:
        return text if text == "auto" else number(text)

    convert.__name__ = f'number or "auto", {number.__name__}'
    return convert


def _iterations_or_duration(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _add_scheduler(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="compute on a dask.distributed cluster, e.g. tcp://10.0.0.1:8786, whose workers see "
        "the same files (default: threads of this process)",
    )
