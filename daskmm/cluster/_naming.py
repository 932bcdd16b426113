"""Clusters described for people: sizes, means, and names by the features that differ."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from daskmm.data.mixed import DAYS_OF_YEAR, Column
from daskmm.data.names import feature_names, is_standardised
from daskmm.storage.readable import (
    ALL_YEAR,
    readable_day,
    readable_day_of_year,
    readable_number,
    readable_share,
)

# Usual number of features in a name, and the largest number, for clusters that would otherwise have
# the same name. A second feature is named if it contributes at least this share of what the first
# contributes to the distance from the mean.
_USUAL, _MOST = 2, 5
_LEAST_SHARE = 0.25
# A difference from the mean matters from this many standard deviations on. The standard deviations
# of features that are not standardised are unknown, so those of the clusters' means are used; their
# squares count as at least this share of the sum of all squares.
_MATTERS, _LEAST_SPREAD = 0.2, 0.01
# A feature can name a cluster in which at least this share of the rows has a value.
_MOSTLY_THERE = 0.5
# One of two high clusters is "very high" if it is this many times as far from the mean.
_FARTHER = 1.5
# Kinds of columns that can be very high, or very late.
_GRADED = ("number", "trend")
# Names of a cluster that hardly differs from all rows, and of one without rows.
_AVERAGE, _EMPTY = "average", "empty"
COLUMNS = ("cluster_name", "cluster_size", "cluster_share")
# Names of the means of coded values, by the kind of a mixed column.
_MEANS = {"flag": "share", "category": "commonest"}


def values_of_rows(model: Any) -> NDArray[np.float64]:
    """Return the means of the rows of each cluster, or the centres if means are not known.

    The array has shape (n_clusters, n_features), in the input's units; NaN for a cluster without
    rows.
    """
    return np.asarray(getattr(model, "cluster_means_", model.cluster_centers_))


def cluster_names(model: Any) -> list[str]:
    """Return a name for each cluster of a model with centres, such as "high age, low income".

    The features are those in which the mean of the cluster's rows is farthest from the mean of the
    data, in the model's own distance. Without standardising, these are the features of the largest
    values, which then determine the clusters. Small differences, and features that most rows of
    the cluster lack, are named only if other clusters have the same name. A cluster without rows is
    "empty". Sparse rows are named by features with high means only. No two names have the same
    words in another order.
    """
    centers, scale = values_of_rows(model), np.asarray(model.scale_)
    if len(centers) == 1:
        return [_AVERAGE]
    centers = np.where(np.isnan(centers), model.cluster_centers_, centers)
    columns = getattr(model, "columns_", None)
    sizes = np.asarray(getattr(model, "cluster_sizes_", np.ones(len(centers))), dtype=np.float64)
    held = value_shares(model)
    masses = np.broadcast_to(sizes[:, None], centers.shape)
    masses = masses if held is None else masses * np.nan_to_num(held)
    total = masses.sum(axis=0)
    mean = (masses * centers).sum(axis=0) / np.where(total > 0, total, 1.0)
    mean = np.where(total > 0, mean, centers.mean(axis=0))
    shares = sizes / sizes.sum() if sizes.sum() > 0 else np.full(len(sizes), 1 / len(sizes))
    empty = (sizes == 0) & (sizes.sum() > 0)
    there = np.ones(centers.shape, dtype=np.bool_) if held is None else ~(held < _MOSTLY_THERE)
    there = there & ~empty[:, None]
    if columns is not None:
        signs, parts = _by_columns(model, centers, mean)
        words = [each for column in columns for each in _words_of(column)]
        kinds = [column.kind for column in columns for _ in column.features]
        spread = _spread(parts, shares)
        return _Naming(centers, signs, parts * there, words, kinds, spread, empty).names()
    away = np.nan_to_num((centers - mean) / scale)
    if getattr(model, "_sparse_rows", False):
        away = np.maximum(away, 0.0)  # most values are 0, so a low mean tells little
    weights = getattr(model, "feature_weights_", np.ones(centers.shape[1]))
    parts = np.square(away) * weights * there
    spread = weights if is_standardised(model) else _spread(parts, shares)
    named = hasattr(model, "feature_names_in_")
    features = [name if named else f"feature {name}" for name in feature_names(model)]
    words = [(f"high {name}", f"low {name}") for name in features]
    kinds = ["number"] * len(words)
    return _Naming(centers, np.sign(away), parts, words, kinds, spread, empty).names()


def _spread(parts: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the variance of the clusters' means, in the model's distance."""
    between = shares @ parts
    return np.maximum(between, _LEAST_SPREAD * between.sum())


def value_shares(model: Any) -> NDArray[np.float64] | None:
    """Return the share of each cluster's rows that have a value, per feature of the centres.

    It is None if the fit did not allow missing values, and NaN for clusters without rows.
    """
    shares = getattr(model, "value_shares_", None)
    if shares is None or not hasattr(model, "columns_"):
        return shares
    return np.asarray(shares[:, model.coordinates_.expansion.groups])


def missing_shares(model: Any) -> dict[str, NDArray[np.float64]]:
    """Return the share of each cluster's rows that lack a value, for columns with missing values.

    Shares are NaN for clusters without rows.
    """
    shares = getattr(model, "value_shares_", None)
    if shares is None:
        return {}
    mixed = getattr(model, "columns_", None)
    # A date that is two columns, a trend and a season, has its missing values once.
    names = feature_names(model) if mixed is None else [column.source for column in mixed]
    return {name: 1.0 - own for name, own in zip(names, shares.T, strict=True) if (own < 1).any()}


def missing_overall(model: Any) -> dict[str, float]:
    """Return the share of all rows that lack a value, for columns with missing values."""
    sizes = np.asarray(model.cluster_sizes_, dtype=np.float64)
    found = {}
    for name, shares in missing_shares(model).items():
        known = np.where(np.isnan(shares), 0.0, sizes)
        found[name] = float(known @ np.nan_to_num(shares) / max(known.sum(), 1e-300))
    return found


def _by_columns(
    model: Any, centers: NDArray[np.float64], mean: NDArray[np.float64]
) -> tuple[NDArray, NDArray]:
    """Return signs and contributions of mixed columns by centre, in the model's divergence.

    A category contributes by one level: that of most rows, if it is commoner than in all rows and
    has at least half of the cluster's, or else the level that contributes most. A season
    contributes by its cosine.
    """
    coordinates, distortion = model.coordinates_, model.distortion_
    expansion = coordinates.expansion
    parts = distortion.elements(*map(coordinates.from_input, (centers, mean)))
    if hasattr(model, "feature_weights_"):
        parts = parts * model.feature_weights_[expansion.groups]
    parts = np.where(_without_value(model)[:, expansion.groups], 0.0, parts)
    clusters = np.arange(len(centers))
    for column, start, size in zip(model.columns_, expansion.starts, expansion.sizes, strict=True):
        if column.kind == "category":
            levels = slice(start, start + size)
            commonest = centers[:, levels].argmax(axis=1)
            share, usual = centers[clusters, start + commonest], mean[start + commonest]
            most = (share >= 0.5) & (share > usual)
            level = np.where(most, commonest, parts[:, levels].argmax(axis=1))
            whole = parts[:, levels].sum(axis=1)
            parts[:, levels] = 0.0
            parts[clusters, start + level] = whole
        elif column.is_season:
            parts[:, start] += parts[:, start + 1]
            parts[:, start + 1] = 0.0
    return np.sign(centers - mean), parts


def _without_value(model: Any) -> NDArray[np.bool_]:
    """Return a mask of the mixed columns in which no row of a cluster has a value."""
    return np.asarray(model.value_shares_ == 0)


def _words_of(column: Column) -> list[tuple[str, str]]:
    """Return the words for values above and below the mean, for each feature of a mixed column."""
    name, source = column.name, column.source
    if column.kind == "category":
        return [(f"{name} {level}", f"not {name} {level}") for level in column.levels]
    if column.kind == "season":  # cosine and sine of the time of the year
        return [(source, source)] * 2
    if column.kind == "trend":
        return [(f"late {source}", f"early {source}")]
    return [(name, f"not {name}") if column.kind == "flag" else (f"high {name}", f"low {name}")]


@dataclass(frozen=True)
class _Naming:
    """Features and words from which names are made."""

    # Means of the clusters, in the input's units, (n_clusters, n_features).
    centers: NDArray[np.float64]
    # Whether each mean is above or below that of the data, and what the feature contributes to the
    # distance between the two, (n_clusters, n_features).
    signs: NDArray[np.float64]
    parts: NDArray[np.float64]
    words: list[tuple[str, str]]  # words for a feature above and below the mean
    kinds: list[str]  # kind of the column of each feature
    # Variance of each feature, in the distance of `parts`, (n_features,).
    spread: NDArray[np.float64]
    empty: NDArray[np.bool_]  # mask of the clusters without rows, (n_clusters,)

    def names(self) -> list[str]:
        """Name clusters by the features with the largest contributions.

        Clusters with the same words are told apart by "very", by the mean of the first feature if
        they differ most in it, by more features, by that mean, or by a number, whichever comes
        first.
        """
        names = [self._named(cluster, _USUAL) for cluster in range(len(self.parts))]
        names = [self._told_from_farther(names, cluster) for cluster in range(len(names))]
        for group in _alike(names):
            if (feature := self._far_apart(group)) is not None:
                self._tell_apart(names, group, feature)
        for group in _alike(names):
            if (feature := self._first(group)) == np.ptp(self._away[group], axis=0).argmax():
                for cluster in group:
                    names[cluster] = self._named(cluster, _USUAL, feature)
        for most in range(_USUAL + 1, _MOST + 1):
            for cluster in chain(*_alike(names)):
                names[cluster] = self._named(cluster, most)
        # Clusters with the same long name may have had different usual names: the first round goes
        # back to these. The second round adds the mean of a feature to names that are still alike.
        for _ in range(2):
            for group in _alike(names):
                for cluster in group:
                    names[cluster] = self._named(cluster, _USUAL, self._first(group))
        for group in _alike(names):
            for number, cluster in enumerate(group[1:], start=2):
                names[cluster] = {**names[cluster], len(self.words): f"(no. {number})"}
        return [", ".join(name.values()).replace(", (", " (") for name in names]

    @cached_property
    def _away(self) -> NDArray[np.float64]:
        return self.signs * np.sqrt(self.parts)

    def _told_from_farther(self, names: list[dict[int, str]], cluster: int) -> dict[int, str]:
        """Return a name that fits no other cluster better.

        Suppose that another cluster is farther out in all features of a name, but is not named by
        all of them. Then a feature that tells the two clusters apart replaces the last of two
        features.
        """
        name, away = names[cluster], self._away
        own = away[cluster, [*name]]
        beyond = (away[:, [*name]] * np.sign(own) > np.abs(own)).all(axis=1)
        farther = [j for j in np.flatnonzero(beyond) if not name.keys() <= names[j].keys()]
        matters = self.parts[cluster] >= _MATTERS**2 * self.spread
        if -1 in name or not farther or not matters.any():
            return name
        gaps = np.abs(away[cluster] - away[farther]).min(axis=0)
        first, telling = next(iter(name)), int(np.where(matters, gaps, -1.0).argmax())
        return {each: self._words(cluster, each) for each in (first, telling)}

    def _named(self, cluster: int, most: int, valued: int | None = None) -> dict[int, str]:
        """Return the words of a cluster by feature; those of the feature `valued` give its mean."""
        chosen = np.argsort(-self.parts[cluster], kind="stable")[:most]
        negligible = 1e-12 * self.parts.max(initial=0.0)
        parts = self.parts[cluster, chosen]
        told = parts > negligible
        if most == _USUAL:
            told &= parts > _LEAST_SHARE * parts[0]
            told &= parts >= _MATTERS**2 * self.spread[chosen]
        said = {}
        for feature in chosen[told].tolist():
            said[feature] = self._words(cluster, feature)
            if feature == valued:
                said[feature] += f" ({self._value(cluster, feature)})"
        return said or {-1: _EMPTY if self.empty[cluster] else _AVERAGE}

    def _words(self, cluster: int, feature: int) -> str:
        """Return the words of a feature, such as "more often true" if only some rows are true."""
        above, share = bool(self.signs[cluster, feature] > 0), self.centers[cluster, feature]
        true, false = self.words[feature]
        if self.kinds[feature] == "season":
            day = self._day_of_year(cluster, feature)
            return f"{true} {day}" if day == ALL_YEAR else f"{true} around {day.split()[1]}"
        if self.kinds[feature] in _MEANS and above != (share >= 0.5):
            return f"more often {true}" if above else f"less often {true}"
        return true if above else false

    def _value(self, cluster: int, feature: int) -> str:
        value, kind = float(self.centers[cluster, feature]), self.kinds[feature]
        if kind == "trend":
            return readable_day(value)
        if kind == "season":
            return self._day_of_year(cluster, feature)
        return readable_number(value) if kind == "number" else readable_share(value)

    def _day_of_year(self, cluster: int, feature: int) -> str:
        return readable_day_of_year(*self.centers[cluster, feature : feature + 2])

    def _first(self, group: list[int]) -> int:
        """Return the feature that contributes most to the distances of clusters from the mean."""
        shared = set.intersection(*(set(self._named(cluster, _USUAL)) for cluster in group))
        return max(shared, key=lambda feature: self.parts[group, feature].sum(), default=-1)

    def _far_apart(self, group: list[int]) -> int | None:
        """Return the first shared feature if the clusters of a group are far apart in it."""
        feature = self._first(group)
        if feature < 0:
            return None
        parts = np.sort(self.parts[group, feature])
        return feature if np.all(parts[1:] >= _FARTHER**2 * parts[:-1]) else None

    def _tell_apart(self, names: list[dict[int, str]], group: list[int], feature: int) -> None:
        """Call the farther of two clusters "very high"; give the means of more than two."""
        near, *_, far = sorted(group, key=lambda cluster: self.parts[cluster, feature])
        if len(group) > 2 or self.kinds[feature] not in _GRADED:
            for cluster in group:
                names[cluster] = self._named(cluster, _USUAL, feature)
            return
        farther = self.parts[far] >= _FARTHER**2 * self.parts[near]
        for each, word in names[far].items():
            if farther[each] and self.kinds[each] in _GRADED:
                names[far][each] = f"very {word}"


def _alike(names: list[dict[int, str]]) -> list[list[int]]:
    """Return the groups of clusters whose names have the same words, in any order."""
    groups: dict[frozenset[str], list[int]] = {}
    for cluster, name in enumerate(names):
        groups.setdefault(frozenset(name.values()), []).append(cluster)
    return [group for group in groups.values() if len(group) > 1]


def cluster_table(model: Any, with_centers: bool = False) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and rows of the table of clusters: number, name, size, share, features.

    The names of the feature columns say what they hold: means of the rows of the cluster (for mixed
    columns also shares of true and the commonest levels), or centres, if these are not means or are
    asked for. A value is NaN or None if no row of the cluster has one. Shares of missing values
    follow for the columns that have them.
    """
    sizes = np.asarray(
        getattr(model, "cluster_sizes_", np.full(len(model.cluster_centers_), np.nan))
    )
    total = sizes.sum()
    if np.all(sizes == np.rint(sizes)):
        sizes = sizes.astype(np.int64)
    shares = sizes / total if total > 0 else np.full(len(sizes), np.nan)
    features, values = _columns_of_rows(model), _readable(model, values_of_rows(model))
    if with_centers and hasattr(model, "cluster_means_"):
        features += _columns_of_centers(model)
        centers = _readable(model, np.asarray(model.cluster_centers_))
        values = [[*row, *center] for row, center in zip(values, centers, strict=True)]
    if missing := missing_shares(model):
        features += [f"missing_{name}" for name in missing]
        gaps = np.array(list(missing.values())).T.tolist()
        values = [[*row, *own] for row, own in zip(values, gaps, strict=True)]
    rows = [
        [cluster, name, size, share, *row]
        for cluster, (name, size, share, row) in enumerate(
            zip(cluster_names(model), sizes.tolist(), shares.tolist(), values, strict=True)
        )
    ]
    return ["cluster", *COLUMNS, *features], rows


def _columns_of_rows(model: Any) -> list[str]:
    """Return the names of the columns for `values_of_rows`."""
    if not hasattr(model, "cluster_means_"):
        return _columns_of_centers(model)
    names = feature_names(model)
    columns = getattr(model, "columns_", None)
    if columns is None:
        what = "direction" if getattr(model, "distortion", None) == "cosine" else "mean"
        return [f"{what}_{name}" for name in names]
    return [f"{_MEANS.get(column.kind, 'mean')}_{column.name}" for column in columns]


def _columns_of_centers(model: Any) -> list[str]:
    return [f"center_{name}" for name in feature_names(model)]


def _readable(model: Any, centers: NDArray[np.float64]) -> list[list[Any]]:
    """Return centres or means for people to read; mixed columns as levels, dates, days of the year.

    A value is NaN, or None in mixed columns, if no row of the cluster has one.
    """
    columns = getattr(model, "columns_", None)
    if columns is None:
        rows: list[list[Any]] = centers.tolist()
        return rows
    without = _without_value(model) | np.isnan(centers).any(axis=1, keepdims=True)
    centers = np.nan_to_num(centers)
    expansion = model.coordinates_.expansion
    read = []
    for column, start, size in zip(columns, expansion.starts, expansion.sizes, strict=True):
        own = centers[:, start : start + size]
        if column.kind == "category":
            read.append([column.levels[level] for level in own.argmax(axis=1)])
        elif column.is_season:  # the day of the year
            turn = np.arctan2(own[:, 1], own[:, 0]) / (2 * np.pi) % 1.0
            read.append((1 + turn * DAYS_OF_YEAR).tolist())
        elif column.kind == "trend":
            read.append([readable_day(day) for (day,) in own.tolist()])
        else:
            read.append(own[:, 0].tolist())
    return [
        [None if hidden else value for value, hidden in zip(row, gaps, strict=True)]
        for row, gaps in zip(zip(*read, strict=True), without, strict=True)
    ]


def level_shares(model: Any) -> Any:
    """Return the shares of every level in every cluster as a pandas DataFrame.

    Columns are pairs of a category and a level; rows are the clusters. A share is NaN if no row of
    the cluster has a value of the category.
    """
    import pandas as pd

    expansion = model.coordinates_.expansion
    gaps = _without_value(model)[:, expansion.groups]
    centers = np.where(gaps, np.nan, values_of_rows(model))
    pairs, found = [], []
    for column, start in zip(model.columns_, expansion.starts, strict=True):
        for place, level in enumerate(column.levels):
            pairs.append((column.name, level))
            found.append(centers[:, start + place])
    columns = pd.MultiIndex.from_tuples(pairs, names=["column", "level"])
    values = np.array(found).reshape(len(pairs), len(centers)).T
    return pd.DataFrame(values, columns=columns).rename_axis(index="cluster")


def summary_frame(model: Any) -> Any:
    """Return the table of clusters as a pandas DataFrame, by cluster.

    It raises NotFittedError (an AttributeError, too) if the model is not fitted, AttributeError if
    it has no centres in the input's units, and ImportError without pandas.
    """
    check_is_fitted(model)
    if not hasattr(model, "cluster_centers_"):
        raise AttributeError(
            f"Only models with centres in the input's units have a summary_, and this "
            f"{type(model).__name__} has none."
        )
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("summary_ needs pandas: pip install 'daskmm[dataframe]'.") from error
    columns, rows = cluster_table(model)
    frame = pd.DataFrame(rows, columns=columns).set_index("cluster")
    if hasattr(model, "stability_"):
        frame.insert(len(COLUMNS), "cluster_stability", model.stability_)
    return frame
