"""The text that commands print at their end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daskmm.data.names import ALIKE, counted, listed, printable, shell_word
from daskmm.planning import Plan
from daskmm.report.words import of_trimmed, rows_in_no_cluster, title_of
from daskmm.storage.readable import readable_bytes, readable_seconds, readable_share
from daskmm.storage.remote import inside

# Largest number of list items that are written out.
_MOST_ITEMS = 12


def describe_fit(path: str | Path, summary: dict[str, Any]) -> str:
    """Describe a new run folder: results, files, and the next command."""
    written = [inside(path, name) for name in summary["files"]]
    written += [summary["labels"]] if "labels" in summary else []
    files = "\n".join(f"  {printable(file)}" for file in written)
    return f"{_found(summary)}\nwritten:\n{files}\nnext: daskmm inspect {shell_word(path)}"


def describe_run(path: str | Path, summary: dict[str, Any]) -> str:
    """Describe a run folder: origin, parameters and results."""
    parameters = ", ".join(f"{name}={value}" for name, value in summary["parameters"].items())
    lines = [
        f"{printable(path)}: {summary['model']} of {printable(summary['input'])}",
        f"made {summary['created']} by daskmm {summary['daskmm']}",
        f"parameters: {parameters}",
        _found(summary),
        *_course(summary),
        f"peak memory of the process: {readable_bytes(summary['peak_memory_bytes'])}",
        *(f"warning: {note}" for note in summary["warnings"]),
        *(f"updated {each['updated']}: {_updated(each)}" for each in summary.get("updates", [])),
    ]
    return "\n".join(lines)


def describe_update(path: str | Path, change: dict[str, Any]) -> str:
    """Describe an entry of the history of a run."""
    lines = [
        f"{printable(path)}: {_updated(change)}",
        _cluster_sizes(change["cluster_sizes"], change["forget"] is not None),
        f"cost per row: {change['cost_per_row']:.6g}, before {change['cost_per_row_before']:.6g}",
    ]
    if change["is_reference"]:
        lines.append("'daskmm monitor' compares the next batches with these rows")
    return "\n".join(lines)


def _updated(change: dict[str, Any]) -> str:
    moves = change["moves"]
    farthest = max(range(len(moves)), key=moves.__getitem__)
    return (
        f"{counted(change['n_rows'], 'row')} of {printable(change['input'])}; the centre of "
        f"cluster {farthest} moved farthest, by a distance of {moves[farthest]:.3g} in the model's "
        "scale"
    )


def describe_prediction(found: dict[str, Any]) -> str:
    """Describe a prediction, given labels (a path), n_rows, n_outliers and cluster_sizes."""
    lines = [
        f"{counted(found['n_rows'], 'label')} in {printable(found['labels'])}",
        _cluster_sizes(found["cluster_sizes"]),
    ]
    return "\n".join([*lines, *_in_no_cluster(found["n_outliers"])])


def describe_reference(watch: Any, column: str | None) -> str:
    """Say how many batches a new monitor has learned from a column; nothing without a column."""
    if column is None:
        return ""
    numbers = watch.series.numbers
    line = f"reference: {counted(len(numbers), 'batch')}, told apart by the column {column!r}"
    if len(numbers) > 1 and numbers.min() >= 1 and numbers.max() <= 31:
        line += "; its numbers may be days of a month: use dates, which have the month too"
    return f"{line}\n"


def describe_look(look: Any) -> str:
    """Describe what a monitor saw in a batch."""
    cost = f"cost {look.cost_ratio:.3g} times that of the reference"
    lines = [f"look {look.number}, {counted(look.n_rows, 'row')}: {cost}"]
    if look.drifted:
        lines.append(f"drift: {listed(look.reasons, separator='; ')}")
    else:
        lines.append("no drift: batches usually differ as much")
    if look.still_unseen:
        known = listed([str(each) for each in look.still_unseen], separator="; ")
        lines.append(f"known from an earlier look, so no drift: {known}")
    return "\n".join(lines)


def describe_plan(found: Mapping[str, Any], model: Any, plan: Plan, note: str) -> str:
    """Describe a plan; `found` has the input, and `note` says what it does not know."""
    known = getattr(model, "n_clusters", getattr(model, "n_components", None))
    clusters = (
        counted(known, "cluster") if isinstance(known, int) else "an unknown number of clusters"
    )
    title = f"{type(model).__name__} with {clusters} of {printable(found['input'])}"
    return "\n".join([title, str(plan), *([note] if note else [])])


def _found(summary: dict[str, Any]) -> str:
    faded = any(update["forget"] is not None for update in summary.get("updates", []))
    lines = [
        f"{counted(summary['n_clusters'], 'cluster')} of {counted(summary['n_rows'], 'row')} × "
        f"{counted(summary['n_features'], 'feature')}",
        f"{counted(summary['n_iter'], 'iteration')} over all rows, "
        f"{counted(summary['n_passes'], 'pass')}, {readable_seconds(summary['seconds'])}",
        _cluster_sizes(summary["cluster_sizes"], faded),
        *_in_no_cluster(rows_in_no_cluster(summary)),
        *filter(None, [of_trimmed(summary)]),
        *_named_clusters(summary),
        *_missing(summary),
    ]
    if "scale" in summary:
        lines.append(f"features: {summary['scale']}")
    if "features_found" in summary:
        found = [printable(name) for name in summary["features_found"]]
        count = f"{len(found)} of {summary['n_features']:,}: {listed(found, _MOST_ITEMS)}"
        lines.append(
            f"features with more than an equal share of the weight: {count}"
            if found
            else f"features: {ALIKE} (λ = ∞)"
        )
    if summary.get("features_explained"):
        explained = ", ".join(printable(feature) for feature in summary["features_explained"])
        lines.append(f"largest gains of features beyond noise: {explained}")
    return "\n".join(lines)


def _named_clusters(summary: dict[str, Any]) -> list[str]:
    """List the names of the largest clusters, where they have names."""
    sizes, names = summary["cluster_sizes"], summary.get("cluster_names") or []
    largest = sorted(range(len(names)), key=lambda cluster: -sizes[cluster])[:_MOST_ITEMS]
    return [
        f"  cluster {cluster} ({sizes[cluster]:,}): {printable(names[cluster])}"
        for cluster in largest
    ]


def _missing(summary: dict[str, Any]) -> list[str]:
    """List the columns with most missing values."""
    shares = summary.get("missing_shares", {})
    most = sorted(shares, key=lambda name: -shares[name])
    said = [f"{printable(title_of(name, summary))} {readable_share(shares[name])}" for name in most]
    return [f"missing values: {listed(said, _MOST_ITEMS)}"] if said else []


def _cluster_sizes(sizes: list[int], faded: bool = False) -> str:
    """List the sizes; they may be `faded`, those of the rows that are not forgotten."""
    ordered = [f"{size:,}" for size in sorted(sizes, reverse=True)]
    note = " (earlier rows count less)" if faded else ""
    return f"cluster sizes{note}, largest first: {listed(ordered, _MOST_ITEMS, ' · ')}"


def _in_no_cluster(n_rows: int) -> list[str]:
    return [f"rows in no cluster, labelled -1: {n_rows:,}"] if n_rows else []


def _course(summary: dict[str, Any]) -> list[str]:
    """Describe the iterations."""
    history, over_all = summary["history"], summary["n_iter"]
    beside = f"; {counted(over_all, 'step')} used all rows, the others a sample"
    beside = beside if over_all < len(history) else ""
    if "bandwidth" in summary:
        learned = sum(record["stage"] == "learn" for record in history)
        points = [f"{record['n_representatives']:,}" for record in history[learned:]]
        return [
            f"bandwidth: {_number(summary['bandwidth'])}; lam: {_number(summary['lam'])}",
            f"{counted(learned, 'iteration')} learned the weights; distinct points in those "
            f"that followed: {listed(points, _MOST_ITEMS, ' · ') or 'none'}",
        ]
    if "log_likelihood" in summary:
        return [
            f"mean log-likelihood of a row: {summary['log_likelihood']:.6g}",
            f"{counted(len(history), 'EM step')}{beside}",
        ]
    updated = bool(summary.get("updates"))
    objective = "" if updated else f"; objective: {_number(summary['objective'])}"
    rows = " of all rows, those of the updates too" if updated else ""
    return [
        f"inertia{rows}: {_number(summary['inertia'])}{objective}",
        _annealing(history) + beside,
    ]


def _number(value: float | None) -> str:
    """Format a number; JSON has null in place of infinity."""
    return "∞" if value is None else f"{value:.6g}"


def _annealing(history: list[dict[str, Any]]) -> str:
    powers = [record["s"] for record in history if record["s"] is not None]
    hard = counted(len(history) - len(powers), "Lloyd step")
    if not powers:
        return hard
    return f"annealed from s = {powers[0]:.4g} to {powers[-1]:.4g}, then {hard}"
