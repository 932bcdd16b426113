"""The actions of the commands of the command line."""

from __future__ import annotations

import argparse
import copy
import glob
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import zarr

from daskmm import cluster, plot
from daskmm._dask import dask
from daskmm.cli.commands import ALL, MODELS, Interrupted, UserError
from daskmm.cli.model_options import parameters_of
from daskmm.cli.printing import (
    describe_fit,
    describe_look,
    describe_plan,
    describe_prediction,
    describe_reference,
    describe_run,
    describe_update,
)
from daskmm.cli.run_folder import (
    CHECKPOINT,
    LABELS,
    MONITOR,
    Run,
    add_drift,
    add_report,
    add_update,
    check_unfinished,
    open_for,
    open_run,
    plain,
    strict_json,
    write_run,
)
from daskmm.cluster._centers import CenterClusterer
from daskmm.cluster._estimator import MMClusterer
from daskmm.cluster._monitor import Monitor, monitor
from daskmm.cluster._naming import cluster_names
from daskmm.cluster._progress import ProgressLine
from daskmm.data.csv_files import place_of_row
from daskmm.data.files import (
    column_names,
    estimated_bytes,
    is_parquet,
    is_text,
    open_data,
    planned_table,
    stored_index,
)
from daskmm.data.mixed import columns_of
from daskmm.data.names import n_clusters_of, printable, printable_lines
from daskmm.engine.clients import connected
from daskmm.engine.labelled import is_labelled, refuse_taken, write_labelled
from daskmm.engine.labels import holds_labels, write_labels
from daskmm.engine.passes import LOADED_ONCE_BYTES
from daskmm.mm.checkpoint import CheckpointError
from daskmm.plot import require_matplotlib
from daskmm.report.page import require_report
from daskmm.storage.locks import LockedError, reserved
from daskmm.storage.remote import check_new, exists, inside, is_remote, local_path

# How messages call a row.
_ROW = re.compile(r"block (\d+), row (\d+) of the block")
# Exit code if a batch has drifted.
DRIFT = 3
# Models whose clusters have no names.
_WITHOUT_NAMES = ("kernel", "multi-kernel")
# Options that become `metric_params` of distortion="mixed".
_OF_MIXED = ("dates", "unknown")
# Seconds to wait for a scheduler.
_SCHEDULER_TIMEOUT = 10
# Suffixes of files that labels are not written to; zarr arrays may have any other name.
_OTHER_FILES = (".tsv", ".txt", ".gz", ".npy", ".npz", ".json", ".xlsx")


def _demo(arguments: argparse.Namespace) -> None:
    from daskmm.cli.demo import run_demo

    def say(text: str) -> None:
        if not (arguments.quiet or arguments.json):
            print(printable_lines(text), flush=True)

    report = run_demo(arguments.out, say=say, show_progress=not arguments.quiet)
    if arguments.json:
        print(strict_json(report))


def _fit(arguments: argparse.Namespace) -> None:
    out = arguments.out if is_remote(arguments.out) else local_path(arguments.out)
    if arguments.labels is None:
        if arguments.keep or arguments.names:
            raise UserError("--keep and --names need --labels.")
    elif not is_labelled(arguments.labels):
        raise UserError("--labels needs a table: LABELS.parquet or LABELS.csv.")
    with reserved(out), nullcontext() if arguments.labels is None else reserved(arguments.labels):
        check_unfinished(out)
        if arguments.labels is not None:
            check_new(arguments.labels)
        summary = _fit_into(out, arguments)
    _report(arguments, {"run": str(out), **summary}, lambda: describe_fit(out, summary))


def _fit_into(out: str | Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Fit, write the run folder, and return its summary."""
    if arguments.report:
        require_report()
    if arguments.pictures:
        require_matplotlib()
    model = _model(arguments).set_params(checkpoint=inside(out, CHECKPOINT))
    if arguments.names and arguments.model in _WITHOUT_NAMES:
        raise UserError(f"--names has no meaning for --model {arguments.model}.")
    with _noted_warnings() as notes_of_input:
        data = _opened(arguments)
        beside = _opened_beside(arguments)
    asked = {name: value for name, value in model.get_params().items() if name == "persist"}
    if asked == {"persist": False} and _is_parsed_once(data, arguments):
        model.set_params(persist=True)
    with _scheduler(arguments.scheduler), _kept(out), _interrupted_at_once():
        with _noted_warnings() as notes, _line_named(arguments):
            _fit_with_progress(model, data, arguments.quiet)
        model.set_params(callbacks=None, checkpoint=None, **asked)
        with _noted_warnings():
            summary = write_run(
                out,
                model,
                data,
                source=_source(arguments.input),
                notes=[*notes_of_input, *notes],
                pictures=arguments.pictures,
                report=arguments.report,
            )
    if arguments.labels is not None:
        with _scheduler(arguments.scheduler), _noted_warnings():
            labels: Any = zarr.open_array(str(inside(out, LABELS)), mode="r")
            names = _names_of(model, arguments)
            write_labelled(labels, path=arguments.labels, names=names, **beside)
        summary["labels"] = arguments.labels
    return summary


def _is_parsed_once(data: Any, arguments: argparse.Namespace) -> bool:
    """Return whether INPUT is a small csv table, whose text each pass would parse again."""
    source = arguments.input
    if not is_text(source) or hasattr(arguments, "persist"):
        return False
    return estimated_bytes(data, source, arguments.encoding) <= LOADED_ONCE_BYTES


def _kept_columns(arguments: argparse.Namespace) -> list[Any]:
    """Return the columns of INPUT to write beside the labels."""
    if arguments.keep != [ALL]:
        return list(arguments.keep)
    form = {name: getattr(arguments, name) for name in ("separator", "decimal", "encoding")}
    return column_names(arguments.input, **form)


def _names_of(model: Any, arguments: argparse.Namespace) -> list[str] | None:
    """Return the names of the clusters, if they are asked for."""
    return cluster_names(model) if arguments.names else None


def _model(arguments: argparse.Namespace) -> MMClusterer:
    """Return the estimator that the arguments describe."""
    model = getattr(cluster, MODELS[arguments.model])()
    known = model.get_params()
    _imply_mixed(arguments, known)
    everything = {name for estimator in MODELS.values() for name in parameters_of(estimator)}
    given = {name: value for name, value in vars(arguments).items() if name in everything}
    if "n_components" in known and "n_clusters" in given:
        given["n_components"] = given.pop("n_clusters")
    foreign = sorted(set(given) - set(known))
    if foreign:
        option = foreign[0].replace("_", "-")
        raise UserError(f"--{option} has no meaning for --model {arguments.model}.")
    if not {"n_clusters", "n_components"}.isdisjoint(known) and not (
        {"n_clusters", "n_components"} & set(given)
    ):
        raise UserError(
            "the following arguments are required: -k/--n-clusters, for every --model but "
            f"mean-shift (see daskmm {arguments.command} --help)"
        )
    kinds = {name: value for name, value in vars(arguments).items() if name in _OF_MIXED}
    if kinds and not _is_mixed(arguments):
        raise UserError(f"--{next(iter(kinds))} has no meaning without --distortion mixed.")
    if kinds:
        given["metric_params"] = kinds
    # Seed 0 by default, so that a fit can be repeated.
    return model.set_params(**{"random_state": 0, **given})


def _imply_mixed(arguments: argparse.Namespace, known: Collection[str]) -> None:
    """Set the distortion that categories need, if the model has it and no other is given."""
    if not hasattr(arguments, "categories"):
        return
    if "distortion" not in known:
        raise UserError(f"--categories has no meaning for --model {arguments.model}.")
    given = vars(arguments).setdefault("distortion", "mixed")
    if given != "mixed":
        raise UserError(f"--categories has no meaning with --distortion {given}.")


def _is_mixed(arguments: argparse.Namespace) -> bool:
    """Return whether columns may be of any kind."""
    return getattr(arguments, "distortion", None) == "mixed"


def _opened(arguments: argparse.Namespace) -> Any:
    """Open the table that a fit reads."""
    mixed = _is_mixed(arguments)
    categories = getattr(arguments, "categories", [])
    dated = sorted({each.rpartition(":")[0] or each for each in getattr(arguments, "dates", ())})
    options = {"columns": arguments.columns, "mixed": mixed, "categories": categories}
    options["dates"] = dated
    data = open_data(arguments.input, **options, **_format(arguments))
    if mixed:
        try:
            columns = columns_of(data, getattr(arguments, "dates", ()))
        except TypeError as error:
            raise UserError(f"{error} On the command line: --dates, --columns.") from error
        known = {column.source for column in columns if column.kind == "category"}
        if others := sorted(set(categories) - known):
            raise UserError(f"{arguments.input} has no category {others[0]!r} among its columns.")
    return data


def _opened_beside(arguments: argparse.Namespace) -> dict[str, Any]:
    """Open what is written beside the labels of a fit."""
    keep, source = _kept_columns(arguments), arguments.input
    if arguments.labels is None or not (keep or is_parquet(source)):
        return {"kept": None}
    data = open_data(source, columns=[], keep=keep, **_format(arguments))
    beside = _beside(data, keep, source)
    refuse_taken(beside["kept"], arguments.labels, arguments.names, beside["index"])
    return beside


def _beside(data: Any, keep: list[Any], source: str) -> dict[str, Any]:
    """Return the columns and the index of a table that are written beside its labels."""
    index = stored_index(source, data)
    kept = data[keep] if keep or index is not False else None
    return {"kept": kept, "index": index, "as_text": is_text(source)}


def _format(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that describe the format of INPUT."""
    names = ("separator", "decimal", "encoding", "feature_dim")
    return {name: getattr(arguments, name) for name in names}


def _fit_with_progress(model: MMClusterer, data: Any, quiet: bool) -> None:
    if quiet:
        model.fit(data)
        return
    size = model.plan(data).bytes_per_pass
    with ProgressLine("daskmm", model.max_iter, size) as progress:
        model.set_params(callbacks=[progress]).fit(data)


def _predict(arguments: argparse.Namespace) -> None:
    if (arguments.keep or arguments.names) and not is_labelled(arguments.out):
        option = "--keep" if arguments.keep else "--names"
        raise UserError(f"{option} needs a table: --out LABELS.parquet or LABELS.csv.")
    with reserved(arguments.out):
        if arguments.overwrite:
            _check_replaceable(arguments.out, arguments.input)
        else:
            _check_unused(arguments.out)
        if Path(arguments.out).suffix.lower() in _OTHER_FILES:
            raise UserError(f"{arguments.out}: labels are written to .parquet, .csv or .zarr.")
        found = _predict_into(arguments.out, arguments)
    _report(arguments, found, lambda: describe_prediction(found))


def _check_unused(out: str) -> None:
    try:
        check_new(out)
    except FileExistsError as error:
        raise UserError(
            f"{out} exists. Choose another path, or give --overwrite to replace it."
        ) from error


def _check_replaceable(out: str, source: str) -> None:
    """Refuse to replace anything but labels, or any part of the input."""
    table = is_labelled(out)
    if not is_remote(out):
        place = local_path(out)
        if table and place.is_dir():
            raise UserError(f"{out} is a folder, which --overwrite does not replace by a file.")
    if exists(out) and _is_read(out, source):
        raise UserError(f"{out} is part of INPUT, which --overwrite does not replace.")
    if not table and exists(out) and not holds_labels(out):
        raise UserError(f"{out} is no array of labels; --overwrite replaces nothing else.")


def _is_read(out: str, source: str) -> bool:
    """Return whether a path is that of the input, or lies in it."""
    if is_remote(source) or is_remote(out):
        store = source.partition("::")[0].rstrip("/")
        return out == store or out.startswith(f"{store}/")
    path = str(local_path(source))
    if not Path(path).exists():
        path = path.partition("::")[0]
    read = [path] if Path(path).exists() else glob.glob(path)
    place = local_path(out).resolve()
    return any(Path(each).resolve() in (place, *place.parents) for each in read)


def _predict_into(out: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the labels, and return how many there are of each cluster."""
    run = open_run(arguments.folder)
    _check_unknown(run, arguments)
    if arguments.outliers is not None and not hasattr(run.model, "typical_distances_"):
        raise UserError(
            f"--outliers needs a k-means model; {arguments.folder} holds a "
            f"{type(run.model).__name__}."
        )
    if arguments.names and not hasattr(run.model, "cluster_centers_"):
        raise UserError(f"--names needs centres; {arguments.folder} has none.")
    options = {
        name: value
        for name in ("outliers", "unknown")
        if (value := getattr(arguments, name)) is not None
    }
    with _scheduler(arguments.scheduler), _noted_warnings():
        keep = _kept_columns(arguments)
        named = hasattr(run.model, "feature_names_in_")
        # A model without names was fitted to all columns.
        further = [] if arguments.keep == [ALL] and not named else keep
        data = open_for(run.model, arguments.input, keep=further, **_format(arguments))
        rows = data if named or not further else data.drop(columns=further)
        labels = run.model.predict(rows, **options)
        replace = arguments.overwrite
        if is_labelled(out):
            form = {"names": _names_of(run.model, arguments), "replace": replace}
            beside = _beside(data, keep, arguments.input)
            counts, nowhere = write_labelled(labels, path=out, **form, **beside)
        else:
            counts, nowhere = write_labels(labels, out, replace)
    sizes = counts.tolist()
    return {
        "labels": out,
        "n_rows": sum(sizes) + nowhere,
        "n_outliers": nowhere,
        "cluster_sizes": [*sizes, *[0] * (n_clusters_of(run.model) - len(sizes))],
    }


def _monitor(arguments: argparse.Namespace) -> int:
    if arguments.report:
        require_report()
    if arguments.picture:
        require_matplotlib()
    run = open_run(arguments.folder)
    if not isinstance(run.model, CenterClusterer):
        raise UserError(
            "monitor needs a run of --model power, entropy or kmeans; this one is of a "
            f"{type(run.model).__name__}."
        )
    place = local_path(run.path, "A run that is monitored") / MONITOR
    with reserved(place), _scheduler(arguments.scheduler), _noted_warnings():
        watch = _watch(run, place, arguments)
        learned = "" if place.exists() else describe_reference(watch, arguments.batches)
        data = open_for(run.model, arguments.input, **_format(arguments))
        look = watch.look(data, arguments.batch)
        if arguments.picture:
            plot.drift(watch).savefig(arguments.picture)
        if arguments.report:
            add_drift(run, watch)
        # The monitor is written last, so that a failed look does not count.
        watch.save(place)
    found = {"run": str(run.path), "input": arguments.input, "drifted": look.drifted}
    found |= {"reasons": look.reasons, **plain(asdict(look))}
    _report(arguments, found, lambda: learned + describe_look(look))
    if look.drifted and arguments.quiet and not arguments.json:
        print(f"daskmm: {printable_lines(describe_look(look))}", file=sys.stderr)
    return DRIFT if look.drifted else 0


def _watch(run: Run, place: Path, arguments: argparse.Namespace) -> Monitor:
    """Return the monitor of a run, or a new one, which reads the reference rows.

    The reference rows are also read again if the model has changed without the monitor.
    """
    former = Monitor.load(place, run.model) if place.exists() else None
    if former is not None and not former.stale:
        return former
    keep = [] if arguments.batches is None or former is not None else [arguments.batches]
    reference = arguments.reference or run.summary["input"]
    try:
        data = open_for(run.model, reference, keep=keep, **_format(arguments))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"The reference is not there: {error} Give the rows with which batches are compared by "
            "--reference DATA."
        ) from error
    if former is not None:
        return former.renew(data)
    names = "batches", "season", "tolerance", "level"
    return monitor(run.model, data, **{name: getattr(arguments, name) for name in names})


def _source(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


def _update(arguments: argparse.Namespace) -> None:
    path = local_path(arguments.folder, "A run that is updated")
    with reserved(path):
        found = _updated(path, arguments)
    _report(arguments, {"run": str(path), **found}, lambda: describe_update(path, found))


def _check_unknown(run: Run, arguments: argparse.Namespace) -> None:
    if arguments.unknown is not None and not hasattr(run.model, "columns_"):
        raise UserError(f"--unknown is about mixed columns, and {run.path} was fitted to numbers.")


def _updated(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Update a run, and return the entry of its history."""
    run, source = open_run(path), _source(arguments.input)
    if not hasattr(run.model, "partial_fit"):
        raise UserError(f"{path} holds a {type(run.model).__name__}, which takes no new rows.")
    if arguments.key is None and source == run.summary["input"]:
        raise UserError(f"{source} is what {path} was fitted to; its rows are counted already.")
    _check_unknown(run, arguments)
    before = copy.copy(run.model)
    if arguments.forget is not None:
        run.model.set_params(forget=arguments.forget)
    key, place = arguments.key or source, path / MONITOR
    with reserved(place), _scheduler(arguments.scheduler), _noted_warnings():
        data = open_for(run.model, arguments.input, **_format(arguments))
        mixed = {} if arguments.unknown is None else {"unknown": arguments.unknown}
        run.model.partial_fit(data, key=key, **mixed)
        watch = Monitor.load(place, run.model).renew(data) if place.exists() else None
        return add_update(run, before, source, key, watch)


def _inspect(arguments: argparse.Namespace) -> None:
    run = open_run(arguments.folder)
    found = {"run": str(run.path), **run.summary}
    try:
        text = describe_run(run.path, run.summary)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{run.path}/summary.json is damaged: {error!r}") from error
    if arguments.report:
        require_report()
        found["report"] = str(add_report(run))
        text += f"\nwritten:\n  {found['report']}"
    _report(arguments, found, lambda: text)


def _plan(arguments: argparse.Namespace) -> None:
    model = _model(arguments)
    with _noted_warnings():
        data = _opened(arguments)
    given = model.get_params().get("metric_params") or {}
    dates = given.get("dates", ()) if _is_mixed(arguments) else None
    table, note = planned_table(data, arguments.input, arguments.encoding, dates)
    notes = [note] if note else []
    if is_text(arguments.input) and not arguments.measure:
        notes.append("the time does not count the parsing of text, which --measure counts")
    plan = model.plan(table, measure=arguments.measure)
    found = {
        "input": arguments.input,
        "model": type(model).__name__,
        "n_rows_estimated": bool(note),
        **plan.as_dict(),
        "seconds": plan.seconds,
    }
    _report(arguments, found, lambda: describe_plan(found, model, plan, "; ".join(notes)))


COMMANDS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "demo": _demo,
    "fit": _fit,
    "predict": _predict,
    "monitor": _monitor,
    "update": _update,
    "inspect": _inspect,
    "plan": _plan,
}


def _report(
    arguments: argparse.Namespace, found: dict[str, Any], describe: Callable[[], str]
) -> None:
    if arguments.json:
        print(strict_json(found))
    elif not getattr(arguments, "quiet", False):
        print(printable_lines(describe()))


@contextmanager
def _line_named(arguments: argparse.Namespace) -> Iterator[None]:
    """Add the file and the line of a csv file to an error about a row."""
    try:
        yield
    except ValueError as error:
        row = _ROW.search(str(error))
        if row is not None and is_text(arguments.input):
            form = arguments.separator, arguments.decimal, arguments.encoding
            # Files may lack columns that were not read.
            with suppress(ValueError, TypeError):
                place = place_of_row(arguments.input, int(row[1]), int(row[2]), *form)
                error.add_note(f"This row is in {place}.")
        raise


@contextmanager
def _kept(out: str | Path) -> Iterator[None]:
    """Tell the user, when a fit fails or is interrupted, that it can be resumed."""
    try:
        yield
    except (CheckpointError, LockedError):  # the checkpoint is that of another fit
        raise
    except BaseException:
        # An object store is not asked whether a checkpoint exists, because the store may have
        # failed.
        if is_remote(out) or (Path(out) / CHECKPOINT).is_dir():
            holds = "may hold" if is_remote(out) else "holds"
            print(
                f"daskmm: {printable(out)} {holds} a checkpoint; run the same command to resume",
                file=sys.stderr,
            )
        raise


@contextmanager
def _interrupted_at_once() -> Iterator[None]:
    """Let an interrupt end a fit without further passes, since its checkpoint can be resumed."""

    def interrupt(*_: Any) -> None:
        raise Interrupted

    # Only the main thread gets signals.
    here = threading.current_thread() is threading.main_thread()
    # nohup, "&" in scripts and programs that call `main` may ignore or handle interrupts.
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    former = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


@contextmanager
def _noted_warnings() -> Iterator[list[str]]:
    """Collect the warnings of the context; at its end, print each as a line on standard error."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield notes
    notes.extend(dict.fromkeys(str(warning.message) for warning in caught))
    for note in notes:
        print(f"daskmm: warning: {printable_lines(note)}", file=sys.stderr)


@contextmanager
def _scheduler(address: str | None) -> Iterator[None]:
    """Compute on the cluster at an address, if one is given.

    It raises UserError if the scheduler does not answer, or dask.distributed is not installed.
    """
    if address is None:
        yield
        return
    try:
        client = connected(address, _SCHEDULER_TIMEOUT)
    except ImportError as error:
        raise UserError(
            "--scheduler needs the extra 'distributed': pip install 'daskmm[distributed]'."
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(
            f"no scheduler answers at {address} within {_SCHEDULER_TIMEOUT} s: {error}"
        ) from error
    with client, dask.config.set(scheduler=client):
        yield
