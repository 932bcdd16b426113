"""What a report says in its first paragraph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.cluster._naming import missing_shares
from daskmm.data.names import counted
from daskmm.report.columns import Profile
from daskmm.report.means import WEIGHTED, Means
from daskmm.report.separation import Separation
from daskmm.storage.readable import readable_share

FloatArray = NDArray[np.float64]

# Number of columns and clusters that sentences name. The share of a column's variation that
# clusters explain is told if it is at least _MATTERS.
_COLUMNS, _CLUSTERS = 3, 4
_MATTERS = 0.1
# A cluster's share of missing values is mentioned if it differs by this much from that of all rows.
_DIFFERS = 0.25


def cluster_titles(summary: Mapping[str, Any]) -> list[str]:
    """Return what sentences call each cluster: its name in quotes, or its number."""
    names = summary.get("cluster_names")
    if names is None:
        return [f"cluster {cluster}" for cluster in range(summary["n_clusters"])]
    return [f"“{name}”" for name in names]


def title_of(name: str, summary: Mapping[str, Any]) -> str:
    """Return what sentences call a feature: its name, or "feature 3" of a table without names."""
    return name if summary["feature_names"] else f"feature {name}"


def rows_in_no_cluster(summary: Mapping[str, Any]) -> int:
    """Return the number of rows of a fit without any value; updates do not count them."""
    if "updates" in summary:
        return 0
    return int(summary["n_rows"] - sum(summary["cluster_sizes"]))


def of_sizes(summary: Mapping[str, Any], titles: Sequence[str]) -> str:
    """Say how many clusters there are, and how large they are."""
    sizes, n_rows = np.asarray(summary["cluster_sizes"]), summary["n_rows"]
    k, total = len(sizes), sizes.sum()
    rows = "The only row forms" if n_rows == 1 else f"The {n_rows:,} rows form"
    said = f"{rows} {counted(k, 'cluster')}."
    if nowhere := rows_in_no_cluster(summary):
        said += f" Rows without any value belong to no cluster ({nowhere:,})."
    if k < 2 or not total:
        return said
    largest, smallest = int(sizes.argmax()), int(sizes.argmin())
    if sizes[largest] == sizes[smallest]:
        return f"{said} Each has {counted(int(sizes[0]), 'row')}."
    if sizes[largest] < 1.25 * sizes[smallest]:
        return f"{said} They are of about equal size, {sizes[smallest]:,} to {sizes[largest]:,}."
    shares = [
        f"{readable_share(sizes[each] / total)} of the rows ({sizes[each]:,})"
        for each in (largest, smallest)
    ]
    return (
        f"{said} The largest, {titles[largest]}, has {shares[0]}; the smallest, "
        f"{titles[smallest]}, has {shares[1]}."
    )


def of_trimmed(summary: Mapping[str, Any]) -> str:
    """Say that centres leave out the rows that a fit trimmed, if it did."""
    if not summary["parameters"].get("trim"):
        return ""
    share = readable_share(summary["parameters"]["trim"])
    return (
        f"The fit trimmed {share} of the rows: sizes count them in their nearest clusters, and "
        "centres leave them out."
    )


def of_columns(names: Sequence[str], means: Means) -> str:
    """Say in which columns the clusters differ."""
    if not means.known:
        return ""
    explained = means.explained
    order = np.argsort(-explained, kind="stable")
    matter = [int(column) for column in order[:_COLUMNS] if explained[column] >= _MATTERS]
    if not matter:
        return (
            "Which cluster a row is in accounts for less than "
            f"{readable_share(_MATTERS)} of the variation of each column."
        )
    variation = "the weighted variation" if means.what == WEIGHTED else "the variation"
    first = [
        f"{readable_share(explained[column])} of {'that' if place else variation} of "
        f"{names[column]}"
        for place, column in enumerate(matter)
    ]
    return f"Which cluster a row is in accounts for {_and(first)}."


def of_clusters(
    titles: Sequence[str], means: Means, telling: Mapping[int, Sequence[Profile]]
) -> str:
    """Say where the described clusters differ from the mean: all if they are few, else some."""
    away = {cluster: float(means.away[cluster].max()) for cluster in telling}
    order = sorted(away, key=lambda cluster: -away[cluster])
    few = len(means.shares) <= _CLUSTERS
    chosen = [each for each in (telling if few else order[:_CLUSTERS]) if telling[each]]
    if not chosen or len(means.shares) < 2:
        return ""
    said = [
        f"{titles[each]} has {_and([profile.briefs[each] for profile in telling[each][:2]])}"
        for each in chosen
    ]
    start = "By cluster" if few else "These are farthest from the mean in a single column"
    if len(telling) < len(means.shares):
        start = (
            f"Of the {len(telling)} largest, these are farthest from the mean in a single column"
        )
    return f"{start}: {'; '.join(said)}."


def of_separation(separation: Separation | None) -> str:
    """Say how clearly rows belong to their cluster."""
    if separation is None:
        return ""
    share = readable_share(separation.clear)
    if separation.by_probability:
        return (
            f"Of the sampled rows, {share} belong to their cluster with a probability of at least "
            f"90%; the mean probability is {readable_share(separation.score)}."
        )
    near = f"{share} are at least twice as near to the centre of their own cluster as to any other"
    if not separation.tells:
        near = (
            "hardly any are twice as near to the centre of their own cluster as to any other, "
            "which is usual with many columns"
        )
    return (
        f"Of the sampled rows, {near}; the simplified silhouette is {separation.score:.2f}, and at "
        "most 1."
    )


def of_stability(stability: FloatArray | None, titles: Sequence[str]) -> str:
    """Say whether the clusters come back in fits to resampled rows, if that is known."""
    if stability is None or np.isnan(stability).all():
        return "Whether a fit to other rows would find the same clusters was not tested."
    least = int(np.nanargmin(stability))
    return (
        "In fits to resampled rows, a cluster comes back with a similarity of "
        f"{np.nanmean(stability):.2f} on average, where 1 means the same rows. The least "
        f"stable is {titles[least]} ({stability[least]:.2f})."
    )


def of_missing(model: Any, summary: Mapping[str, Any], titles: Sequence[str]) -> str:
    """Say which columns lack values, and in which clusters many more or fewer than elsewhere."""
    overall = summary.get("missing_shares", {})
    if not overall:
        return ""
    most = sorted(overall, key=lambda name: -overall[name])
    of = {name: f"of {title_of(name, summary)}" for name in most}
    said = [f"{readable_share(overall[name])} {of[name]}" for name in most[:_COLUMNS]]
    more = len(most) - len(said)
    others = f", and some in {counted(more, 'further column')}" if more else ""
    by_cluster = missing_shares(model)
    differing = [
        f"{readable_share(by_cluster[name][each])} {of[name]} in {titles[each]}"
        for name in most
        for each in np.flatnonzero(np.abs(by_cluster[name] - overall[name]) >= _DIFFERS).tolist()
    ]
    apart = f" By cluster, it is {_and(differing[:_CLUSTERS])}." if differing else ""
    return f"Values are missing: {_and(said)}{others}.{apart}"


def _and(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
