"""Arguments of the command line, and the help that teaches them."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

import daskmm
from daskmm.blurring import CONVENTIONS
from daskmm.metric import DISTORTIONS
from daskmm.numerics.kernels import KERNELS
from daskmm.relocation import METHODS

MODELS = ("power", "entropy", "kmeans", "kernel", "multi-kernel", "mean-shift")

_INPUT = "zarr, .npy, .npz, .csv or .parquet; store.zarr::name for one array of a group"

_DASKMM = """\
Cluster data larger than memory, and find the features that make the clusters.

Rows are samples, columns are features, all numbers. Data are read from disk in
blocks, once per iteration; memory holds a few blocks at a time."""

_DASKMM_EXAMPLE = """\
a first session:
  daskmm demo                                     see it work on made-up data
  daskmm plan points.zarr -k 20                   what would a fit cost?
  daskmm fit points.zarr -k 20 --out run          cluster
  daskmm inspect run                              what was found?
  daskmm predict run more.zarr --out more-labels.zarr

exit codes: 0 fine, 1 unexpected failure (or gram verify found a fault), 2 something
you can mend (one line says what)."""

_COMMANDS = {
    "demo": (
        "make data on disk, cluster them two ways, compare with the truth",
        """\
Make a data set of 1.6 GB on disk, cluster it out of core by Lloyd's k-means and
by entropy weighted power k-means, and compare both with the truth. Takes one to
three minutes and leaves data, models, labels and pictures in a folder.""",
        """\
example:
  daskmm demo --out first-look
  daskmm inspect first-look/entropy""",
    ),
    "fit": (
        "cluster the rows of a table",
        """\
Cluster the rows of INPUT and write a run folder:

  model/               read by 'daskmm predict' and daskmm.load
  labels.zarr          the cluster of each row, int32
  summary.json         sizes, history, feature weights and more, for machines
  objective.png        objective and power by iteration
  projection.png       a sample of rows, coloured by cluster
  feature_weights.png  which features matter (--model entropy)
  report.html          all of this as a page to show around (--report)

A fit that was killed, interrupted or out of space is gone on with by the same
command: until it is finished, the folder holds a checkpoint. There is a summary
when all is written. A fit reads INPUT once per iteration, twice around the fit,
and once more for the labels.""",
        """\
example:
  daskmm fit points.zarr -k 20 --out run
  daskmm fit 'part-*.csv' -k 5 --model entropy --columns age,height --out run2

which model?
  power     k-means that does not depend on a lucky start: it anneals from a
            smooth objective to that of k-means
  entropy   the same, and weighs the features: use it when many do not matter
  kmeans    Lloyd's algorithm: the fewest passes, the most luck
  kernel    clusters that no straight line separates; exact up to some 100,000
            rows, with --n-landmarks for any number
  multi-kernel
            the same, and weighs twelve kernels
  mean-shift
            finds the number of clusters, and weighs the features; the time grows
            with the square of the number of rows""",
    ),
    "predict": (
        "assign rows to the clusters of a run",
        """\
Write the cluster of each row of INPUT, by the model of a run folder, as a zarr
array of int32. INPUT has the features that the model was fitted to, in the same
order; of csv and parquet files the columns are found by name.""",
        """\
example:
  daskmm predict run more.zarr --out more-labels.zarr
  python -c "import zarr; print(zarr.open_array('more-labels.zarr')[:10])\"""",
    ),
    "inspect": (
        "say what a run found",
        "Say what a run folder holds: the fit, sizes of the clusters, features found.",
        """\
example:
  daskmm inspect run
  daskmm inspect run --json | python -m json.tool | less""",
    ),
    "plan": (
        "say what a fit would cost, before the data are read",
        """\
Say what a fit to INPUT would cost: passes over the data, bytes read, memory of
each worker, tasks; with --workers, seconds. Reads no data but for that. Takes the
options of 'daskmm fit'.""",
        """\
example:
  daskmm plan points.zarr -k 200 --model entropy
  daskmm plan points.zarr -k 200 --workers 1 8 100""",
    ),
}

_GRAM = (
    "keep the matrix of a kernel on disk",
    """\
Make and check Gram stores: the kernel value of every pair of rows, in checksummed
tiles of which only the upper triangle is written. Kernel fits that are repeated
(other numbers of clusters, other seeds) can then share one.""",
    """\
example:
  daskmm gram build points.zarr --kernel rbf --out gram
  daskmm gram verify gram --data points.zarr
  daskmm gram repair gram points.zarr""",
)

_GRAM_COMMANDS = {
    "build": (
        "make a store, or go on with one that was begun",
        """\
Write the kernel value of every pair of rows of INPUT. The rows are brought into
memory, the matrix is not: n rows take n²/2 values on disk. Killed or out of space,
the same command goes on where it stopped: only missing tiles are written.""",
        """\
example:
  daskmm gram build points.zarr --kernel rbf --standardize --out gram""",
    ),
    "verify": (
        "read every tile, and say what is wrong with which",
        """\
Read every tile and test its checksum; with --data, compare the data with those
that the store was made from. Exit code 1 when something is wrong.""",
        """\
example:
  daskmm gram verify gram --data points.zarr || daskmm gram repair gram points.zarr""",
    ),
    "repair": (
        "make missing and damaged tiles anew",
        """\
Make missing and damaged tiles anew from INPUT, which must be the data that the
store was made from; kernel and scaling are those of the store.""",
        """\
example:
  daskmm gram repair gram points.zarr""",
    ),
    "info": (
        "say what a store holds",
        "Say what a store holds: kernel, rows, tiles, and how many are missing.",
        """\
example:
  daskmm gram info gram --json""",
    ),
}


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
    parser = _Parser(prog="daskmm", description=_DASKMM, epilog=_DASKMM_EXAMPLE)
    parser.add_argument("--version", action="version", version=f"daskmm {daskmm.__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )
    demo, fit, predict, inspect, plan = (_add_command(commands, name) for name in _COMMANDS)
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
    commands: Any, name: str, texts: dict[str, tuple[str, str, str]] = _COMMANDS
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
    summary, description, example = _GRAM
    gram = commands.add_parser("gram", help=summary, description=description, epilog=example)
    actions = gram.add_subparsers(title="commands", dest="action", metavar="COMMAND", required=True)
    build, verify, repair, info = (
        _add_command(actions, name, _GRAM_COMMANDS) for name in _GRAM_COMMANDS
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
