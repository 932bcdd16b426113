"""The text that commands print at their end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daskmm.cluster._progress import readable_seconds
from daskmm.planning import Plan, readable_bytes

# Largest number of list items that are written out.
_MOST_ITEMS = 12


def describe_fit(path: Path, summary: dict[str, Any]) -> str:
    """Describe a new run folder: results, files, and the next command."""
    files = "\n".join(f"  {path / name}" for name in summary["files"])
    return f"{_found(summary)}\nwritten:\n{files}\nnext: daskmm inspect {path}"


def describe_run(path: Path, summary: dict[str, Any]) -> str:
    """Describe a run folder: origin, parameters and results."""
    parameters = ", ".join(f"{name}={value}" for name, value in summary["parameters"].items())
    lines = [
        f"{path}: {summary['model']} of {summary['input']}",
        f"made {summary['created']} by daskmm {summary['daskmm']}",
        f"parameters: {parameters}",
        _found(summary),
        *_course(summary),
        f"peak memory of the process: {readable_bytes(summary['peak_memory_bytes'])}",
        *(f"warning: {note}" for note in summary["warnings"]),
    ]
    return "\n".join(lines)


def describe_prediction(found: dict[str, Any]) -> str:
    """Describe a prediction, given labels (a path), n_rows and cluster_sizes."""
    return (
        f"{found['n_rows']:,} labels in {found['labels']}\n{_cluster_sizes(found['cluster_sizes'])}"
    )


def describe_plan(source: str, model: Any, plan: Plan, seconds: Mapping[int, float]) -> str:
    """Describe a plan, with the seconds of a pass by the number of workers, where known."""
    known = getattr(model, "n_clusters", None)
    clusters = known if isinstance(known, int) else "an unknown number of"
    title = f"{type(model).__name__} with {clusters} clusters of {source}"
    lines = [
        f"a pass on {count:,} worker(s) of one thread: about {taken:.2g} s"
        for count, taken in seconds.items()
    ]
    return "\n".join([title, str(plan), *lines])


def _found(summary: dict[str, Any]) -> str:
    lines = [
        f"{summary['n_clusters']} clusters of {summary['n_rows']:,} rows × "
        f"{summary['n_features']:,} features",
        f"{summary['n_iter']} iterations, {summary['n_passes']} passes over the data, "
        f"{readable_seconds(summary['seconds'])}",
        _cluster_sizes(summary["cluster_sizes"]),
    ]
    if "features_found" in summary:
        found = summary["features_found"]
        lines.append(
            f"features with more than an equal share of the weight: {len(found)} of "
            f"{summary['n_features']:,}: {_listed(found)}"
        )
    return "\n".join(lines)


def _cluster_sizes(sizes: list[int]) -> str:
    ordered = sorted(sizes, reverse=True)
    return f"cluster sizes, largest first: {_listed([f'{size:,}' for size in ordered], ' · ')}"


def _listed(items: list[str], separator: str = ", ") -> str:
    """Join the first items, and say how many follow."""
    shown = separator.join(items[:_MOST_ITEMS])
    more = len(items) - _MOST_ITEMS
    return f"{shown} … and {more:,} more" if more > 0 else shown or "none"


def _course(summary: dict[str, Any]) -> list[str]:
    """Describe the iterations."""
    history = summary["history"]
    if "bandwidth" in summary:
        learned = sum(record["stage"] == "learn" for record in history)
        points = [f"{record['n_representatives']:,}" for record in history[learned:]]
        return [
            f"bandwidth: {summary['bandwidth']:.6g}; lam: {summary['lam']:.6g}",
            f"{learned} iterations learned the weights; distinct points in those that followed: "
            f"{_listed(points, ' · ')}",
        ]
    return [
        f"inertia: {summary['inertia']:.6g}; objective: {summary['objective']:.6g}",
        _annealing(history),
    ]


def _annealing(history: list[dict[str, Any]]) -> str:
    powers = [record["s"] for record in history if record["s"] is not None]
    hard = len(history) - len(powers)
    if not powers:
        return f"{hard} Lloyd steps"
    return f"annealed from s = {powers[0]:.4g} to {powers[-1]:.4g}, then {hard} Lloyd steps"
