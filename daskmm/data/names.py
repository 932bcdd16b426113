"""Names of features, lists and counts for messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Items of a list that are spelled out.
_MOST_ITEMS = 6


def feature_names(model: Any) -> list[str]:
    """Return the feature names of a fitted model, or their numbers, counted from 0."""
    names = getattr(model, "feature_names_in_", None)
    return [str(name) for name in (range(model.n_features_in_) if names is None else names)]


def n_clusters_of(model: Any) -> int:
    """Return the number of clusters of a fitted model, given or found."""
    return int(model.n_clusters_ if hasattr(model, "n_clusters_") else model.n_clusters)


def listed(items: Sequence[str]) -> str:
    """Join the first items of a list, and say how many follow."""
    shown = list(items[:_MOST_ITEMS])
    more = len(items) - len(shown)
    return ", ".join([*shown, f"and {more:,} more"] if more else shown)


def counted(number: int, noun: str) -> str:
    """Format a count: "1 row", "2,000 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
