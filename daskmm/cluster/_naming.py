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
from daskmm.data.names import feature_names, variance_of
from daskmm.storage.readable import (
    ALL_YEAR,
    readable_day,
    readable_day_of_year,
    readable_number,
    readable_share,
)

# Largest number of features that give a name words. The second has words if it contributes at least
# this share of what the first contributes to the distance from the mean.
_MOST, _LEAST_SHARE = 2, 0.25
# A feature has words for a cluster, such as "high", if the cluster's mean differs by at least
# _DIFFERS standard deviations from that of all rows, and in the same direction from those of half
# of the other clusters. A cluster whose means all differ less than _MATTERS from those of all rows
# is average. Where the standard deviations are unknown, those of the clusters' means are used;
# their squares count as at least the share _LEAST_SPREAD of the sum of all squares.
_DIFFERS, _MATTERS, _LEAST_SPREAD = 0.4, 0.2, 0.01
# A feature can name a cluster in which at least this share of the rows has a value.
_MOSTLY_THERE = 0.5
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
    data, in standard deviations times the model's weights, and differs from the means of half of
    the other clusters; without standard deviations, it is farthest in the model's own scale. If
    a cluster differs from all rows, but has no such feature, its name is the mean of a feature.
    Names that would have the same words get the mean of the feature in which their clusters differ
    most. A cluster that hardly differs from all rows is "average", and one without rows "empty".
    Features that most rows of a cluster lack are not named, and sparse rows are named by high means
    only.
    """
    centers, scale = values_of_rows(model), np.asarray(model.scale_)
    if len(centers) == 1:
        return [_AVERAGE]
    if hasattr(model, "precision_"):  # of a Mahalanobis distance
        scale = 1.0 / np.sqrt(np.diag(model.precision_))
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
    variance = variances_of(model, mean)
    if columns is not None:
        signs, parts = _by_columns(model, centers, mean)
        words = [each for column in columns for each in _words_of(column)]
        kinds = [column.kind for column in columns for _ in column.features]
    else:
        unit = scale if variance is None else np.sqrt(np.where(variance > 0, variance, np.inf))
        away = np.nan_to_num((centers - mean) / unit)
        if sparse := getattr(model, "_sparse_rows", False):
            away = np.maximum(away, 0.0)  # most values are 0, so a low mean tells little
        weights = getattr(model, "feature_weights_", np.ones(centers.shape[1]))
        signs, parts = np.sign(away), np.square(away) * weights
        named = hasattr(model, "feature_names_in_")
        features = [name if named else f"feature {name}" for name in feature_names(model)]
        words, kinds = [_words_of_number(name) for name in features], ["number"] * len(features)
        if getattr(model, "distortion", None) == "cosine" and not sparse:
            # Means are those of directions, whose values say what a row has much of for its length.
            words = [(f"relatively {a}", f"relatively {b}", f"relative {c}") for a, b, c in words]
    if variance is None:
        between = shares @ np.square(np.nan_to_num((centers - mean) / scale))
        variance = np.maximum(between, _LEAST_SPREAD * between.sum()) * np.square(scale)
    spread = np.sqrt(variance)
    away = np.divide(centers - mean, spread, out=np.zeros_like(centers), where=spread > 0)
    seasons = np.flatnonzero(np.array(kinds) == "season")[::2]
    masks = _differ(away, there, seasons)
    return _Naming(centers, signs, parts * there, words, kinds, *masks, empty).names()


def variances_of(model: Any, mean: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the variance of each feature over the rows, given their mean; None if not known."""
    if not hasattr(model, "columns_"):
        return variance_of(model)
    expansion = model.coordinates_.expansion
    kinds = np.array([column.kind for column in model.columns_])[expansion.groups]
    is_share = (kinds == "flag") | (kinds == "category")
    # The scale of a season is that of its two features together.
    spread = np.square(model.coordinates_.scale) / expansion.sizes[expansion.groups]
    return np.where(is_share, mean * (1 - mean), spread)


def _differ(
    away: NDArray[np.float64], there: NDArray[np.bool_], seasons: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return masks of the means that differ from that of all rows, and that give names words.

    `away` are the differences from all rows in standard deviations; `seasons` are the first of the
    two features of each season.
    """
    distances = np.abs(away)
    half = np.maximum(there.sum(axis=0) // 2, 1)  # half of the others, rounded up
    lowest, highest = (
        side
        * np.take_along_axis(
            np.sort(np.where(there, side * away, np.inf), axis=0), half[None] - 1, axis=0
        )
        for side in (1, -1)
    )
    gaps = np.where(away > 0, away - lowest, highest - away)
    for cosine in seasons:
        points = away[:, cosine : cosine + 2] / np.sqrt(2)  # in deviations of both together
        apart = np.linalg.norm(points[:, None] - points, axis=2)
        apart[:, ~there[:, cosine]] = -np.inf
        distances[:, cosine] = np.linalg.norm(points, axis=1)
        gaps[:, cosine] = np.sort(apart, axis=1)[:, -half[cosine]]
    matters = there & (distances >= _MATTERS)
    return matters, there & (np.minimum(distances, gaps) >= _DIFFERS)


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


def _words_of(column: Column) -> list[tuple[str, str, str]]:
    """Return the words for values above and below the mean, and the name, of each mixed feature."""
    name, source = column.name, column.source
    if column.kind == "category":
        both = [f"{name} {level}" for level in column.levels]
        return [(each, f"not {each}", each) for each in both]
    if column.kind == "season":  # cosine and sine of the time of the year
        return [(source, source, source)] * 2
    if column.kind == "trend":
        return [(f"late {source}", f"early {source}", source)]
    return [(name, f"not {name}", name) if column.kind == "flag" else _words_of_number(name)]


def _words_of_number(name: str) -> tuple[str, str, str]:
    return f"high {name}", f"low {name}", name


@dataclass(frozen=True)
class _Naming:
    """Features and words from which names are made."""

    # Means of the clusters, in the input's units, (n_clusters, n_features).
    centers: NDArray[np.float64]
    # Whether each mean is above or below that of the data, and what the feature contributes to the
    # distance between the two, (n_clusters, n_features).
    signs: NDArray[np.float64]
    parts: NDArray[np.float64]
    # Words for a feature above and below the mean, and its name.
    words: list[tuple[str, str, str]]
    kinds: list[str]  # kind of the column of each feature
    # Masks of the means that differ from that of all rows, and that give names words,
    # (n_clusters, n_features).
    matters: NDArray[np.bool_]
    telling: NDArray[np.bool_]
    empty: NDArray[np.bool_]  # mask of the clusters without rows, (n_clusters,)

    def names(self) -> list[str]:
        """Name clusters by the features with the largest contributions.

        Clusters with the same words are told apart by the means of one feature or two, or else by a
        number.
        """
        names = [self._named(cluster) for cluster in range(len(self.parts))]
        for further in (False, True):
            self._tell_apart(names, further)
        for group in _alike(names):
            for number, cluster in enumerate(group[1:], start=2):
                names[cluster] = {**names[cluster], len(self.words): f"(no. {number})"}
        return [", ".join(name.values()).replace(", (", " (") for name in names]

    @cached_property
    def _away(self) -> NDArray[np.float64]:
        return self.signs * np.sqrt(self.parts)

    def _named(self, cluster: int) -> dict[int, str]:
        """Return the words of a cluster by feature."""
        parts = self.parts[cluster]
        differs = self.matters[cluster] & (parts > 1e-12 * self.parts.max(initial=0.0))
        if not differs.any():
            return {-1: _EMPTY if self.empty[cluster] else _AVERAGE}
        own = np.where(differs & self.telling[cluster], parts, 0.0)
        first, *others = np.argsort(-own, kind="stable")[:_MOST].tolist()
        if not own[first]:
            feature = int(np.where(differs, parts, 0.0).argmax())
            return {feature: f"{self.words[feature][2]} {self._value(cluster, feature)}"}
        told = [first, *(each for each in others if own[each] > _LEAST_SHARE * own[first])]
        return {feature: self._words(cluster, feature) for feature in told}

    def _tell_apart(self, names: list[dict[int, str]], further: bool) -> None:
        """Add the mean of the feature in which clusters of the same words differ most.

        `further` features are those that no name of the group has yet.
        """
        for group in _alike(names):
            ranges = np.ptp(self._away[group], axis=0)
            if further:
                ranges[[*set(chain(*(names[cluster] for cluster in group))) - {-1}]] = 0.0
            feature = int(ranges.argmax())
            if not ranges[feature]:
                continue
            for cluster in group:
                names[cluster].pop(-1, None)
                word, value = names[cluster].get(feature), self._value(cluster, feature)
                said = f"{self.words[feature][2]} {value}" if word is None else f"{word} ({value})"
                names[cluster][feature] = said

    def _words(self, cluster: int, feature: int) -> str:
        """Return the words of a feature, such as "more often true" if only some rows are true."""
        above, share = bool(self.signs[cluster, feature] > 0), self.centers[cluster, feature]
        true, false, _ = self.words[feature]
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
