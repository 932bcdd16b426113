"""The commands of the command line: their options, and their help texts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from daskmm._version import __version__

# Estimators by the names that --model takes.
MODELS = {
    "power": "PowerKMeans",
    "entropy": "EntropyPowerKMeans",
    "kmeans": "KMeans",
    "mixture": "GaussianMixture",
    "kernel": "KernelPowerKMeans",
    "multi-kernel": "MultiKernelPowerKMeans",
    "mean-shift": "WeightedBlurringMeanShift",
}

# Value of --keep for every column.
ALL = "all"

_DASKMM = """\
Cluster data larger than memory, and find the features that make the clusters.

Rows are samples and columns are features: numbers, or columns of any kind. Data are
read from disk in blocks, a few times; only a few blocks are in memory at a time."""

_DASKMM_EXAMPLE = """\
a first session:
  daskmm demo                                     see it work on generated data
  daskmm plan points.zarr -k 20                   what would a fit cost?
  daskmm fit points.zarr -k 20 --out run          cluster
  daskmm inspect run                              what was found?
  daskmm predict run more.zarr --out more-labels.zarr

exit codes: 0 success; 1 unexpected failure; 2 an error that you can fix, described in
one line; 3 drift (monitor)."""

# Summary, description and example of each command.
_COMMANDS = {
    "demo": (
        "generate data on disk, cluster them two ways, compare with the truth",
        """\
Generate a data set of 1.6 GB on disk, cluster it out of core by Lloyd's k-means
and by entropy weighted power k-means, and compare both with the truth. This takes one
to three minutes, and leaves data, models, labels and pictures in a folder.""",
        """\
example:
  daskmm demo --out first-look
  daskmm inspect first-look/entropy""",
    ),
    "fit": (
        "cluster the rows of a table",
        """\
Cluster the rows of INPUT and write a run folder:

  model                the model, for 'daskmm predict' and daskmm.load
  labels.zarr          the cluster of each row, int32
  centers.csv          name, size, mean and centre of each cluster (not for kernels)
  summary.json         cluster sizes, history, feature weights and more, as JSON
  objective.png        objective and power by iteration
  projection.png       a sample of rows, coloured by cluster (not for mixed columns)
  feature_weights.png  which features matter (--model entropy)
  report.html          all of this as one page to share (with --report)

If a fit is killed, interrupted or runs out of disk space, run the same command
again to resume it: an unfinished run folder holds a checkpoint. summary.json is
written last. RUN may be on an object store (s3://bucket/run). A fit reads INPUT
once per iteration over all rows, twice for set-up and scoring, and once more for
the labels. Csv files with up to 64 MB of numbers are kept in memory by a fit,
unless --no-persist is given.""",
        """\
example:
  daskmm fit points.zarr -k 20 --out run
  daskmm fit 'part-*.csv' -k 5 --model entropy --columns age,height --out run2
  daskmm fit flights.csv -k 8 --categories carrier,origin --out run3
  daskmm fit people.csv -k 4 --columns age,height --out run4 --labels out.csv --keep all

which model?
  power     k-means that does not depend on a lucky start: the objective is
            annealed from a smooth one to that of k-means
  entropy   power k-means that also learns feature weights: for data in which many
            features do not matter
  kmeans    Lloyd's algorithm: fewest passes, most dependent on its starts
  mixture   Gaussian components of any size, width and orientation
  kernel    for clusters that are not convex; exact up to 50,000 rows, by Nystroem
            features (--n-landmarks) beyond
  multi-kernel
            kernel with twelve kernels and learned weights for them
  mean-shift
            finds the number of clusters and learns feature weights; the time grows
            with the square of the number of rows""",
    ),
    "predict": (
        "assign rows to the clusters of a run",
        """\
Write the cluster of each row of INPUT, by the model of a run folder: as a table
(.parquet, .csv), with further columns of INPUT if asked for, or as a zarr array of
int32. INPUT must have the features that the model was fitted to; columns of csv and
parquet files are found by name, others in the same order. In a csv, text that a
spreadsheet would compute, such as =A1, gets an apostrophe before it.""",
        """\
example:
  daskmm predict run people.csv --out labels.csv --keep id,name --names
  daskmm predict run people.csv --out labels.csv --outliers .01 --overwrite
  daskmm predict run more.zarr --out more-labels.zarr
  python -c "import zarr; print(zarr.open_array('more-labels.zarr')[:10])\"""",
    ),
    "update": (
        "let new rows change the clusters of a run",
        """\
Update the model of a run folder with the rows of INPUT, in one pass over them, and add to
the history in summary.json: rows, cost, sizes and how far each centre moved. A second update
with the same INPUT (or --key) replaces the first, so that rows are never counted twice. model,
centers.csv and summary.json are replaced, the model first and as a whole; labels.zarr and
pictures remain those of the fit. If 'daskmm monitor' watches the run, INPUT is read once more
and becomes the reference of the clusters. Models of kernels and mean-shift cannot be updated.""",
        """\
example:
  daskmm update run monday.parquet
  daskmm update run tuesday.parquet --forget '10 calls'
  daskmm predict run tuesday.parquet --out labels.parquet""",
    ),
    "inspect": (
        "show what a run found",
        "Show what a run folder holds: the fit, the cluster sizes, the features found.",
        """\
example:
  daskmm inspect run
  daskmm inspect run --json | python -m json.tool | less""",
    ),
    "plan": (
        "estimate what a fit would cost, before reading the data",
        """\
Estimate what a fit to INPUT would cost: passes over the data, bytes read, memory
per worker, tasks, and seconds on this machine. Data are read only with --measure. The
options are those of 'daskmm fit'.""",
        """\
example:
  daskmm plan points.zarr -k 200 --model entropy
  daskmm plan points.zarr -k 200 --measure""",
    ),
}


_MONITOR = (
    "report drift of new data beyond their usual changes",
    """\
Compare INPUT, a batch such as the rows of a day, with a forecast from the batches before it. It
compares columns, and the shares, costs and columns of the clusters. It tests this batch, the mean
of the latest half season and that of the latest season (for a week, four and seven days). Trends,
weekdays and the usual differences between batches are no drift. The exit code is 3 if something
differs by more, or if a column has a level that the fit did not see. The probability of any false
alarm in a year of daily batches is at most --level. RUN/monitor keeps the results; the first call
reads the reference rows once. After 'daskmm update' the series of columns continue, and the rows of
the update become the reference of the clusters.""",
    """\
example:
  daskmm monitor run monday.parquet --batches date || echo "look at run"
  daskmm monitor run tuesday.parquet --batch 2026-03-03 --picture drift.png --json
  daskmm monitor run tuesday.parquet --report""",
)


_INPUT = (
    "zarr, .npy, .npz, .csv, .tsv, .csv.gz or .parquet, or a folder of these; store.zarr::name for "
    "one array of a group, or a sparse (CSR) group such as X of an AnnData store; a NetCDF file, "
    "whose variables are features of pixels, or scene.nc::name or scene.zarr::name with "
    "--feature-dim"
)


class UserError(Exception):
    """An error that the user can fix: reported in one line without traceback, exit code 2."""


class Interrupted(BaseException):
    """An interrupt that ends a fit at once, where an estimator would first complete its model."""


class _Parser(argparse.ArgumentParser):
    # Adds the options of a command only once this command is parsed.
    add_options: Callable[[argparse.ArgumentParser], None] | None = None

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**options)

    def parse_known_args(self, *arguments: Any, **options: Any) -> Any:
        if self.add_options is not None:
            self.add_options(self)
        return super().parse_known_args(*arguments, **options)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands; the name of the command is stored in ``command``.

    Parameters of an estimator that are not given are absent from the parsed arguments.
    """
    parser = _Parser(prog="daskmm", description=_DASKMM, epilog=_DASKMM_EXAMPLE)
    parser.add_argument("--version", action="version", version=f"daskmm {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )
    demo, fit, predict, update, inspect, plan = (_add_command(commands, name) for name in _COMMANDS)
    demo.add_argument(
        "--out", default="daskmm-demo", metavar="DIR", help="new or empty folder (%(default)s)"
    )
    _add_fit(fit)
    for command in (predict, update, inspect):
        command.add_argument("folder", metavar="RUN", help="run folder written by 'daskmm fit'")
    inspect.add_argument(
        "--report",
        action="store_true",
        help="write RUN/report.html, without distributions and figures of rows: a run folder does "
        "not hold them",
    )
    _add_predict(predict)
    _add_update(update)
    for command in (predict, update):
        _add_format(command)
        command.add_argument(
            "--unknown",
            choices=("error", "missing"),
            help="mixed columns: whether categories unknown to the fit are an error or missing "
            "values (default: as in the fit)",
        )
    _add_monitor(commands)
    _add_model(plan)
    plan.add_argument(
        "--measure",
        action="store_true",
        help="load one block of INPUT, and predict seconds by the time that this takes",
    )
    for command in (fit, predict, update):
        _add_scheduler(command)
    for command in (demo, fit, predict, update):
        command.add_argument(
            "--quiet", action="store_true", help="print warnings only, no progress and no report"
        )
    return parser


def _add_fit(command: _Parser) -> None:
    """Add the options of 'daskmm fit'."""
    _add_model(command, "--out RUN ")
    command.add_argument("--out", required=True, metavar="RUN", help="run folder to write")
    command.add_argument(
        "--no-pictures",
        dest="pictures",
        action="store_false",
        help="draw no pictures; matplotlib is not needed then",
    )
    command.add_argument(
        "--report",
        action="store_true",
        help="also write RUN/report.html: one page in words, means, distributions and figures",
    )
    command.add_argument(
        "--labels",
        metavar="LABELS",
        help="also write the labels as a table, .parquet or .csv, with a column 'cluster'",
    )
    _add_beside(command, "the labels of --labels")


def _add_predict(command: _Parser) -> None:
    """Add the options of 'daskmm predict'."""
    command.add_argument("input", metavar="INPUT", help=_INPUT)
    command.add_argument(
        "--out",
        required=True,
        metavar="LABELS",
        help="file to write: .parquet or .csv, with a column 'cluster'; otherwise a zarr array",
    )
    _add_beside(command, "the labels")
    command.add_argument(
        "--outliers",
        type=float,
        metavar="SHARE",
        help="label outliers -1: the rows that are farther from their centre, in units of their "
        "cluster's median distance, than all but this share (such as .01) of the training rows; "
        "not for kernels and mean-shift",
    )
    command.add_argument(
        "--overwrite",
        action="store_true",
        help="replace LABELS if it exists, as a whole and only once all labels are computed",
    )


def _add_update(command: _Parser) -> None:
    """Add the options of 'daskmm update'."""
    command.add_argument("input", metavar="INPUT", help=_INPUT)
    command.add_argument(
        "--key", metavar="NAME", help="name of these rows (default: the path of INPUT)"
    )
    command.add_argument(
        "--forget",
        type=_penalty,
        metavar="HALF-LIFE",
        help='number of rows, or "10 calls", after which earlier rows count half (default: they '
        "never fade)",
    )


def _add_command(
    commands: Any, name: str, texts: dict[str, tuple[str, str, str]] = _COMMANDS
) -> _Parser:
    summary, description, example = texts[name]
    command: _Parser = commands.add_parser(
        name, help=summary, description=description, epilog=example
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    return command


def _add_model(command: _Parser, required: str = "") -> None:
    command.usage = f"%(prog)s INPUT -k K {required}[options]"
    command.add_argument("input", metavar="INPUT", help=_INPUT)
    command.add_argument("--model", choices=MODELS, default="power", help="(default: %(default)s)")
    command.add_argument(
        "--columns",
        type=_names,
        metavar="A,B,...",
        help="columns of a csv or parquet file, or features of a raster, to use (default: all)",
    )
    _add_format(command)
    command.add_options = _add_parameters


def _add_parameters(command: argparse.ArgumentParser) -> None:
    # This import is slow, and the help of other commands need not wait for it.
    from daskmm.cli.model_options import add_model_options

    add_model_options(command, MODELS)
    mixed = command.add_argument_group(
        "columns of any kind (--distortion mixed)", argument_default=argparse.SUPPRESS
    )
    mixed.add_argument(
        "--dates",
        type=_names,
        metavar="A:trend,A:season,...",
        help="columns of dates, and what counts: time (trend), or the day of the year (season)",
    )
    mixed.add_argument(
        "--categories",
        type=_names,
        metavar="A,B,...",
        help="columns of a csv file that are categories; implies --distortion mixed",
    )
    mixed.add_argument(
        "--unknown",
        choices=("error", "missing"),
        help="whether categories that the fit did not see are an error or missing values; missing "
        "values need --missing partial (default error)",
    )


def _add_format(command: argparse.ArgumentParser) -> None:
    """Add the options for the format of csv files, and for the feature dimension of rasters."""
    csv = command.add_argument_group("format of csv files", "found from the first lines by default")
    csv.add_argument("--separator", metavar="S", help="between fields, such as ';'")
    csv.add_argument("--decimal", metavar="D", help="decimal mark, such as ','")
    csv.add_argument("--encoding", metavar="E", help="such as utf-8 or cp1252")
    command.add_argument(
        "--feature-dim",
        metavar="DIM",
        help="NetCDF, or zarr of xarray: dimension that holds the features, such as band; pixels "
        "are the rows",
    )


def _names(text: str) -> list[str]:
    """Return the names in a list with commas, with or without spaces."""
    return [name.strip() for name in text.split(",")]


def _add_beside(command: argparse.ArgumentParser, labels: str) -> None:
    """Add the options for the columns that a table holds beside the labels."""
    command.add_argument(
        "--keep",
        type=_names,
        default=[],
        metavar="A,B,...",
        help=f"columns of a csv or parquet INPUT to write beside {labels}, such as those that name "
        "the rows, or 'all'; they are features only if the model has features of these names",
    )
    command.add_argument(
        "--names", action="store_true", help=f"write the name of each cluster beside {labels}"
    )


def _penalty(text: str) -> Any:
    """Convert to a number; leave other text to the model, which checks it."""
    try:
        return float(text)
    except ValueError:
        return text


def _add_monitor(commands: Any) -> None:
    monitor = _add_command(commands, "monitor", {"monitor": _MONITOR})
    monitor.add_argument("folder", metavar="RUN", help="run folder written by 'daskmm fit'")
    monitor.add_argument("input", metavar="INPUT", help=_INPUT)
    monitor.add_argument(
        "--batch",
        type=_batch,
        metavar="DATE",
        help="date or number of the batch; needed if batches before it are missing (default: the "
        "one after the latest)",
    )
    first = monitor.add_argument_group("first call")
    first.add_argument(
        "--reference",
        metavar="DATA",
        help="rows that batches are compared with (default: those of the fit)",
    )
    first.add_argument(
        "--batches",
        metavar="COLUMN",
        help="column of the reference with the date or number of each row's batch; from these the "
        "monitor learns how much batches differ (default: it learns this from the first looks)",
    )
    first.add_argument(
        "--season",
        type=int,
        default=7,
        metavar="N",
        help="number of batches after which a season repeats (%(default)s: a week of days)",
    )
    first.add_argument(
        "--tolerance",
        type=float,
        default=0.1,
        metavar="T",
        help="least shift that counts as drift, in standard deviations (%(default)s)",
    )
    first.add_argument(
        "--level",
        type=float,
        default=0.05,
        metavar="P",
        help="probability of any false alarm in a year of daily batches (%(default)s)",
    )
    monitor.add_argument(
        "--picture", metavar="PNG", help="draw cost and certainty of the drift in all looks so far"
    )
    monitor.add_argument(
        "--report", action="store_true", help="write all looks so far into RUN/report.html"
    )
    _add_format(monitor)
    _add_scheduler(monitor)
    monitor.add_argument("--quiet", action="store_true", help="print warnings and drift only")


def _batch(text: str) -> int | str:
    """Convert to a number; leave dates to the monitor, which checks them."""
    return int(text) if text.isdecimal() else text


def _add_scheduler(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="compute on a dask.distributed cluster, e.g. tcp://10.0.0.1:8786; its workers must "
        "see the same files (default: threads of this process)",
    )
