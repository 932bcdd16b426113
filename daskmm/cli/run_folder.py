"""Run folders: a fitted model, its labels, a summary, pictures and a report."""

from __future__ import annotations

import contextlib
import csv
import importlib.metadata
import json
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm import plot
from daskmm._dask import dask, is_dask_array
from daskmm.cluster._centers import CenterClusterer
from daskmm.cluster._fitted_centers import FittedCenters
from daskmm.cluster._models import load
from daskmm.cluster._monitor import Monitor
from daskmm.cluster._naming import cluster_names, cluster_table, missing_overall
from daskmm.cluster._summary import scale_in_words
from daskmm.data.blocks import Block, as_dask_array, is_lazy
from daskmm.data.files import has_columns, open_data
from daskmm.data.input import by_name, raster_of, read_table
from daskmm.data.lazy import delayed_blocks, in_memory, sized
from daskmm.data.names import (
    cell,
    feature_names,
    features_explained,
    features_found,
    n_clusters_of,
)
from daskmm.data.sparse import is_sparse, sparse_rows
from daskmm.engine.labels import BLOCKS_TOGETHER, LabelWriter, label_writer
from daskmm.engine.resources import peak_memory_bytes
from daskmm.engine.threads import one_blas_thread
from daskmm.kmeans.assignment import labels_of
from daskmm.metrics.agreement import as_labels
from daskmm.mm.checkpoint import is_checkpoint, remove_checkpoint
from daskmm.numerics.rows import Coordinates
from daskmm.numerics.sparse_rows import dense
from daskmm.report.means import Sampled
from daskmm.report.page import report_page, with_drift
from daskmm.storage.atomic import written_whole
from daskmm.storage.remote import (
    check_new,
    downloaded,
    exists,
    inside,
    is_remote,
    local_path,
    names_in,
    uploaded,
)
from daskmm.storage.strict_json import plain, strict_json

FORMAT = "daskmm-run"
VERSION = 1
MODEL, LABELS, SUMMARY = "model", "labels.zarr", "summary.json"
REPORT, CENTERS, MONITOR = "report.html", "centers.csv", "monitor"
# An unfinished run has a checkpoint; a finished one has a summary.
CHECKPOINT = "checkpoint"
# Name of a folder in which contents are written before they are moved into place; its number is
# unique.
_FRESH = re.compile(r"\.fresh-[0-9a-f]{32}")
# Parameters that do not change the result of a fit.
_OF_THE_FIT = ("callbacks", "checkpoint", "checkpoint_every")
# Largest number of rows, and of values, in the sample that figures show.
_SAMPLE_ROWS, _SAMPLE_VALUES = 4000, 8_000_000
# Largest share of the sample that rounding may put into other clusters than the fit did.
_ROUNDED = 0.01


@dataclass(frozen=True)
class Run:
    """A run folder, read back: its fitted model, and the contents of ``summary.json``."""

    path: str | Path
    model: Any
    summary: dict[str, Any]


def write_run(
    path: str | Path,
    model: Any,
    X: Any,
    *,
    source: str = "rows in Python",
    notes: Iterable[str] = (),
    pictures: bool = False,
    report: bool = True,
) -> dict[str, Any]:
    """Write a run folder, as ``daskmm fit`` does: model, labels, centres, summary and report.

    The commands ``daskmm inspect``, ``predict``, ``update`` and ``monitor`` take the folder. Lazy
    rows are read once more, for the labels.

    Parameters
    ----------
    path : str or Path
        Path that does not exist, or holds an unfinished run. If writing fails, it stays as it is.
        For a URL that fsspec knows, all files are written to a temporary folder first. The
        summary is written last, and then the checkpoint is removed.
    model : fitted estimator
        The model to write. The clusters of a `ClusterTree` are its leaves; `ClusterTree.save`
        writes the tree itself.
    X : as in `fit`
        The data that the model was fitted to. After `partial_fit`, their labels are predicted.
    source : str
        Where `X` came from, for summary and report.
    notes : iterable of str
        Warnings of the fit, for summary and report.
    pictures : bool
        Whether to draw pictures, which needs matplotlib.
    report : bool
        Whether to write ``report.html``, one page in plain words with all figures, which needs
        matplotlib and jinja2.

    Returns
    -------
    dict
        The summary.

    Raises
    ------
    FileExistsError
        If the path exists and is not an unfinished run, or if another file is in the place of a
        file of the run.
    """
    check_unfinished(path)
    nearest = isinstance(model, CenterClusterer)  # a row need not be in the nearest leaf of a tree
    model = getattr(model, "leaves_", model)
    if is_remote(path):
        whole = uploaded(str(path), SUMMARY, lambda name: False)  # a checkpoint stays
    else:
        whole = _new_contents(local_path(path))
    with whole as folder:
        folder.mkdir(exist_ok=True)
        model.save(folder / MODEL)
        with label_writer(folder / LABELS) as writer:
            sampled = _with_clusters(_label(model, X, writer))
        if nearest and sampled is not None:
            _refuse_other_order(model, sampled)
        summary = summarize(model, writer.counts, writer.n_rows, source, list(notes))
        drawn = _draw(folder, model, sampled) if pictures else []
        if report:
            page = report_page(model, summary, sampled)
            (folder / REPORT).write_text(page, encoding="utf-8")
        tables = _write_centers(folder / CENTERS, model)
        summary["files"] = [MODEL, LABELS, SUMMARY, *tables, *drawn, *[REPORT] * report]
        (folder / SUMMARY).write_text(strict_json(summary, indent=2) + "\n", encoding="utf-8")
    remove_checkpoint(inside(path, CHECKPOINT))
    return summary


def _write_centers(path: Path, model: Any) -> list[str]:
    """Write names, sizes, means and centres of the clusters as csv, and return the file's name.

    There is no file for kernels, whose means lie in a feature space.
    """
    if not hasattr(model, "cluster_centers_"):
        return []
    columns, rows = cluster_table(model, with_centers=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        cells = ([cell(value) for value in row] for row in [columns, *rows])
        csv.writer(file, lineterminator="\n").writerows(cells)
    return [path.name]


def check_unfinished(path: str | Path) -> None:
    """Raise FileExistsError for an output path that exists, unless it is an unfinished run."""
    if exists(inside(path, SUMMARY)) or not is_checkpoint(inside(path, CHECKPOINT)):
        check_new(path)
    elif not is_remote(path):
        _check_free(local_path(path), {MODEL, LABELS})


@contextmanager
def _new_contents(path: Path) -> Iterator[Path]:
    """Provide a folder whose contents become those of the run if no error occurs."""
    if not path.exists():
        with written_whole(path) as folder:
            folder.mkdir()
            yield folder
        return
    folder = path / f".fresh-{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        yield folder
        _check_free(path, names_in(folder))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # From here on, this folder holds the contents that have not been moved into place yet. The
    # summary comes last, because it makes the folder a finished run.
    for new in sorted(folder.iterdir(), key=lambda new: new.name == SUMMARY):
        place = path / new.name
        if place.is_dir():  # a process that was killed in this loop has moved it
            shutil.rmtree(place)
        new.replace(place)
    for left in _fresh_folders(path):
        shutil.rmtree(left)


def _fresh_folders(path: Path) -> list[Path]:
    """Return the folders in which this and earlier processes wrote the contents of a run."""
    found = (entry for entry in path.iterdir() if _FRESH.fullmatch(entry.name))
    return [entry for entry in found if entry.is_dir() and not entry.is_symlink()]


def _check_free(path: Path, names: set[str]) -> None:
    """Refuse to replace files, except those of a run that was being moved into place."""
    moved: set[str] = set()
    for left in _fresh_folders(path):
        # The folder is incomplete if its process was killed before it moved anything.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            summary = json.loads((left / SUMMARY).read_text(encoding="utf-8"))
            moved |= set(summary["files"]) - names_in(left)
    for name in sorted(names - moved):
        check_new(path / name)


def _label(model: Any, X: Any, writer: LabelWriter) -> Sampled | None:
    """Write all labels, and return a uniform sample of labelled rows from the same pass.

    Mixed columns are coded.
    """
    raster = raster_of(model, X)
    if raster is not None:
        X = raster.named
    in_blocks = _labels_in_blocks(model, X)
    if raster is not None:
        in_blocks = raster.rows_of(in_blocks)
    X = FittedCenters.of(model).table(X) if hasattr(model, "columns_") else by_name(model, X)
    if not is_lazy(X):
        in_blocks = in_memory(in_blocks)
    if isinstance(in_blocks, np.ndarray):
        return _label_in_memory(model, X, in_blocks, writer)
    table = as_dask_array(X)
    counts = np.asarray(in_blocks.chunks[0], dtype=np.int64)
    starts = np.cumsum(counts) - counts
    n_rows = int(counts.sum())
    _refuse_other_rows(table, n_rows)
    chosen = _chosen(n_rows, model.n_features_in_)
    # Labels and rows, as unoptimised Delayed, form one graph, which loads each block once.
    label_blocks = delayed_blocks(in_blocks, together=True).ravel()
    row_blocks = delayed_blocks(table, together=True).ravel()
    sampled: list[tuple[NDArray, NDArray[np.int32]]] = []
    for first in range(0, len(counts), BLOCKS_TOGETHER):
        pieces = []
        for block in range(first, min(first + BLOCKS_TOGETHER, len(counts))):
            low, high = np.searchsorted(chosen, (starts[block], starts[block] + counts[block]))
            local = chosen[low:high] - starts[block]
            pieces.append(_pick(label_blocks[block], row_blocks[block], local))
        with one_blas_thread():
            results = dask.compute(*pieces)
        for labels, rows, labels_of_rows in results:
            writer.append(labels)
            sampled.append((rows, labels_of_rows))
    return Sampled(*(np.concatenate(pieces) for pieces in zip(*sampled, strict=True)))


def _with_clusters(sampled: Sampled | None) -> Sampled | None:
    """Leave out rows without any value, which have no cluster and no place in a figure."""
    if sampled is None:
        return None
    kept = sampled.labels >= 0
    return sampled if kept.all() else Sampled(sampled.rows[kept], sampled.labels[kept])


def _labels_in_blocks(model: Any, X: Any) -> Any:
    """Return the training labels in the blocks that were read, also if `labels_` is a series.

    Labels are predicted if the model has none, as after `partial_fit`.
    """
    if "_block_labels" in vars(model):
        return model._block_labels
    if "labels_" in vars(model):
        return model.labels_
    labels = as_labels(model.predict(X), "labels")
    return sized(labels) if is_lazy(labels) else labels


def _label_in_memory(model: Any, X: Any, labels: NDArray, writer: LabelWriter) -> Sampled:
    """Do the same as `_label` for rows in memory, or kept by the model (exact kernel k-means)."""
    n_rows, X = len(labels), X if hasattr(X, "shape") else np.asarray(X)
    _refuse_other_rows(X, n_rows)
    writer.append(labels)
    chosen = _chosen(n_rows, model.n_features_in_)
    if hasattr(model, "X_fit_"):
        rows = Coordinates(model.mean_, model.scale_).to_input(np.asarray(model.X_fit_[chosen]))
    else:
        table = read_table(model, X, reset=False)
        if is_dask_array(table):  # only the labels are in memory
            table = sized(table)
            _refuse_other_rows(table, n_rows)
        rows = dense(table[chosen])
    return Sampled(rows, labels[chosen])


def _refuse_other_rows(X: Any, n_labels: int) -> None:
    """Refuse a table with another number of rows than there are labels, if the number is known."""
    n_rows = X.shape[0]  # an unknown number is NaN for dask arrays, and lazy for frames
    if isinstance(n_rows, Integral) and n_rows != n_labels:
        raise ValueError(
            f"X has {n_rows:,} rows, but the model was fitted to {n_labels:,} rows. Give the rows "
            "of the fit; predict labels other rows."
        )


def _refuse_other_order(model: Any, sampled: Sampled) -> None:
    """Refuse rows that do not have the labels of the fit, as in another order."""
    fitted = FittedCenters.of(model)
    labels = labels_of(Block(sampled.rows), fitted.coordinates, fitted.state)
    if np.mean(labels != sampled.labels) > _ROUNDED:
        raise ValueError(
            "X has other rows than those of the fit, or has them in another order. A query without "
            "ORDER BY may give its rows in another order each time it is read: read it once, as by "
            "X.df() of a DuckDB relation, and give this table to fit and write_run."
        )


def _chosen(n_rows: int, n_features: int) -> NDArray[np.int64]:
    """Draw the rows of the sample, in order."""
    most = min(n_rows, _SAMPLE_ROWS, max(_SAMPLE_VALUES // n_features, 1))
    rng = np.random.default_rng(0)
    return np.sort(rng.choice(n_rows, most, replace=False, shuffle=False))


@dask.delayed(pure=False)
def _pick(labels: Any, rows: Any, local: NDArray[np.int64]) -> tuple[NDArray, NDArray, NDArray]:
    some = dense(sparse_rows(rows)[local]) if is_sparse(rows) else np.asarray(rows)[local]
    return labels, some, labels[local]


def _draw(folder: Path, model: Any, sampled: Sampled | None) -> list[str]:
    """Write pictures of the model, and return their file names."""
    figures = {}
    if hasattr(model, "objective_history_"):
        figures["objective.png"] = plot.annealing_trace(model)
    if hasattr(model, "feature_weights_"):
        figures["feature_weights.png"] = plot.feature_weights(model)
    if sampled is not None and not hasattr(model, "columns_"):
        figures["projection.png"] = plot.projection(model, *sampled)
    for name, figure in figures.items():
        figure.savefig(folder / name, metadata={"Description": figure.get_label()})
    return list(figures)


def summarize(
    model: Any, cluster_sizes: NDArray[np.int64], n_rows: int, source: str, notes: list[str]
) -> dict[str, Any]:
    """Return what a fit found, in the types of JSON; a power of −∞ (a Lloyd step) is None.

    Rows without any value are in no cluster, so the sizes may add up to less than `n_rows`.
    """
    n_clusters = n_clusters_of(model)
    sizes = np.zeros(n_clusters, dtype=np.int64)
    sizes[: len(cluster_sizes)] = cluster_sizes
    names = feature_names(model)
    last = model.history_[-1]
    summary: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "daskmm": importlib.metadata.version("daskmm"),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "input": source,
        "model": type(model).__name__,
        "parameters": {k: v for k, v in model.get_params().items() if k not in _OF_THE_FIT},
        "n_rows": n_rows,
        "n_features": model.n_features_in_,
        "feature_names": names if hasattr(model, "feature_names_in_") else None,
        "n_clusters": n_clusters,
        "cluster_sizes": sizes,
        "n_iter": model.n_iter_,
        "n_passes": model.n_passes_,
        "seconds": last.seconds,
        "peak_memory_bytes": peak_memory_bytes(),
        "warnings": notes,
    }
    if (scale := scale_in_words(model)) is not None:
        summary["scale"] = scale
    if hasattr(model, "inertia_"):
        summary["objective"] = last.objective
        summary["s"] = model.s_
        summary["coincident_centers"] = last.coincident_centers
    summary |= _learned(model)
    for name in ("bandwidth", "gram", "kernel_weights"):
        if hasattr(model, f"{name}_"):
            summary[name] = getattr(model, f"{name}_")
    summary["history"] = [asdict(record) for record in model.history_]
    return plain(summary)


def _learned(model: Any) -> dict[str, Any]:
    """Return those entries of a summary that `partial_fit` changes."""
    names = feature_names(model)
    found: dict[str, Any] = {}
    if hasattr(model, "cluster_centers_"):
        found["cluster_names"] = cluster_names(model)
        if missing := missing_overall(model):
            found["missing_shares"] = missing
    if hasattr(model, "inertia_"):
        found["inertia"] = model.inertia_
    if hasattr(model, "lower_bound_"):
        found["log_likelihood"] = model.lower_bound_
    if hasattr(model, "feature_weights_"):
        found["lam"] = model.lam_
        found["feature_weights"] = model.feature_weights_
        found["features_found"] = [names[each] for each in features_found(model.feature_weights_)]
    if hasattr(model, "feature_gains_"):
        found["feature_gains"] = model.feature_gains_
        found["features_explained"] = features_explained(model)
    return found


def open_run(path: str | Path) -> Run:
    """Read a run folder.

    It raises FileNotFoundError if there is nothing at the path, and ValueError if it is not a run
    folder, has another version of the format, or is damaged.
    """
    if is_remote(path):
        with downloaded(str(path), MODEL, SUMMARY) as folder:
            return _opened_run(folder, path)
    path = local_path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    return _opened_run(path, path)


def _opened_run(path: Path, name: str | Path) -> Run:
    """Read a run folder, which messages call `name`."""
    if not (path / SUMMARY).is_file():
        raise ValueError(f"{name} is not a run folder: it has no {SUMMARY}.")
    try:
        summary = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
        known = summary["format"] == FORMAT
        version = summary["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{name}/{SUMMARY} is damaged: {error}") from error
    if not known:
        raise ValueError(f"{name} is not a run folder of daskmm.")
    if version != VERSION:
        raise ValueError(f"{name} has version {version} of the format; this reads {VERSION}.")
    return Run(name, load(path / MODEL), summary)


def add_report(run: Run) -> Path:
    """Write the report of a run, and return its path.

    No data are read, so no figure shows rows. It raises FileExistsError if there is a report
    already, which may show more, and ImportError without matplotlib or jinja2.
    """
    path = local_path(run.path, "A report that is added to a run") / REPORT
    if path.exists():
        raise FileExistsError(
            f"{path} exists: 'daskmm fit' or 'daskmm monitor' wrote it. A new one would show "
            "the model as it is now, but no rows, since no data are read; remove the file first."
        )
    with written_whole(path) as fresh:
        fresh.write_text(report_page(run.model, run.summary, None), encoding="utf-8")
    return path


def add_drift(run: Run, watch: Monitor) -> Path:
    """Write what a monitor saw into the report of a run, and return its path.

    A run without a report gets one. No rows of the data are read for its figures. It raises
    ImportError without matplotlib or jinja2.
    """
    path = local_path(run.path, "A run that is monitored") / REPORT
    if not path.exists():
        add_report(run)
    page = path.read_text(encoding="utf-8")
    with written_whole(path, replace=True) as fresh:
        fresh.write_text(with_drift(page, watch), encoding="utf-8")
    return path


def add_update(
    run: Run, before: Any, source: str, key: str, watch: Monitor | None = None
) -> dict[str, Any]:
    """Write the updated model of a run, then its centres and summary; return what changed.

    `before` is the model before the update, and `source` and `key` are the origin of the new rows
    and their name. `watch` is the monitor of the run, with the new rows as reference. Without it,
    the next look finds that the monitor in the folder belongs to the former model.
    """
    path, model = local_path(run.path), run.model
    moves = (model.cluster_centers_ - before.cluster_centers_) / model.scale_
    change = plain(
        {
            "updated": datetime.now(UTC).isoformat(timespec="seconds"),
            "input": source,
            "key": key,
            "n_rows": model.updates_.keyed[key].n_rows,
            "n_rows_seen": model.n_samples_seen_,
            "forget": model.forget,
            "cost_per_row": _cost_per_row(model),
            "cost_per_row_before": _cost_per_row(before),
            "cluster_sizes": np.rint(model.cluster_sizes_).astype(np.int64),
            "moves": np.sqrt(np.square(moves).sum(axis=1)),
            "is_reference": watch is not None,
        }
    )
    model.save(path / MODEL, overwrite=True)
    if watch is not None:
        watch.save(path / MONITOR)
    with written_whole(path / CENTERS, replace=True) as fresh:
        _write_centers(fresh, model)
    summary = {
        **run.summary,
        "n_rows": change["n_rows_seen"],
        "cluster_sizes": change["cluster_sizes"],
        **plain(_learned(model)),
        "updates": [*run.summary.get("updates", []), change],
    }
    with written_whole(path / SUMMARY, replace=True) as fresh:
        fresh.write_text(strict_json(summary, indent=2) + "\n", encoding="utf-8")
    return change


def _cost_per_row(model: Any) -> float:
    """Return the cost per unit of sample weight: for a mixture, minus the log-likelihood."""
    if hasattr(model, "lower_bound_"):
        return -float(model.lower_bound_)
    return float(model.inertia_ / model.cluster_sizes_.sum())


def open_for(model: Any, path: str, **options: Any) -> Any:
    """Open data for the `predict` of a model, with the columns that it was fitted to.

    Further columns to `keep` come last.
    """
    mixed = getattr(model, "columns_", None)
    if mixed is not None:
        sources = list(dict.fromkeys(column.source for column in mixed))
        categories = [column.source for column in mixed if column.kind == "category"]
        dates = {column.source for column in mixed if column.kind in ("trend", "season")}
        kinds: dict[str, Any] = {"mixed": True, "categories": categories, "dates": sorted(dates)}
        return open_data(path, columns=sources, fitted=True, **kinds, **options)
    names = getattr(model, "feature_names_in_", None)
    columns = None if names is None or not has_columns(path) else [str(name) for name in names]
    return open_data(path, columns=columns, fitted=True, **options)
