"""Clusters described for people: sizes, means, and names by the features that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from daskmm.data.mixed import DAYS_OF_YEAR
from daskmm.data.names import feature_names

# Usual number of features in a name, and the largest, if clusters would have the same name
# otherwise. A second feature is named if it contributes at least this share of what the first
# contributes to the distance from the mean.
_USUAL, _MOST = 2, 5
_LEAST_SHARE = 0.25
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
    values, which then determine the clusters.
    """
    centers, scale = values_of_rows(model), np.asarray(model.scale_)
    centers = np.where(np.isnan(centers), model.cluster_centers_, centers)
    columns = getattr(model, "columns_", None)
    sizes = np.asarray(getattr(model, "cluster_sizes_", np.ones(len(centers))), dtype=np.float64)
    mean = sizes @ centers / sizes.sum() if sizes.sum() > 0 else centers.mean(axis=0)
    away = (centers - mean) / scale
    if columns is not None:
        features = [name for column in columns for name in column.features]
        return _distinct(centers, *_by_columns(model, centers, mean), features, _words_of(columns))
    weights = getattr(model, "feature_weights_", np.ones(centers.shape[1]))
    parts = np.nan_to_num(np.square(away)) * weights
    named = hasattr(model, "feature_names_in_")
    features = [name if named else f"feature {name}" for name in feature_names(model)]
    words = [(f"high {name}", f"low {name}") for name in features]
    return _distinct(centers, np.sign(np.nan_to_num(away)), parts, features, words)


def _by_columns(
    model: Any, centers: NDArray[np.float64], mean: NDArray[np.float64]
) -> tuple[NDArray, NDArray]:
    """Return signs and contributions of mixed columns by centre, in the model's divergence."""
    coordinates, distortion = model.coordinates_, model.distortion_
    centers, mean = map(coordinates.from_input, (centers, mean))
    parts = distortion.elements(centers, mean)
    if hasattr(model, "feature_weights_"):
        parts = parts * model.feature_weights_[coordinates.expansion.groups]
    parts = np.where(_without_value(model)[:, coordinates.expansion.groups], 0.0, parts)
    return np.sign(centers - mean), parts


def _without_value(model: Any) -> NDArray[np.bool_]:
    """Return a mask of the mixed columns in which no row of a cluster has a value."""
    return np.asarray(model.value_shares_ == 0)


def _words_of(columns: Any) -> list[tuple[str, str]]:
    """Return the words for values above and below the mean, for each feature of mixed columns."""
    words = []
    for column in columns:
        if column.kind == "category":
            words += [
                (f"{column.name} {level}", f"not {column.name} {level}") for level in column.levels
            ]
        elif column.kind == "flag":
            words += [(column.name, f"not {column.name}")]
        else:
            words += [(f"high {name}", f"low {name}") for name in column.features]
    return words


def _distinct(
    centers: NDArray[np.float64],
    signs: NDArray[np.float64],
    parts: NDArray[np.float64],
    features: list[str],
    words: list[tuple[str, str]],
) -> list[str]:
    """Name clusters by the features with the largest contributions.

    Equal names are made different by more features, by the value of the first one, or by a number.
    """
    order = np.argsort(-parts, axis=1, kind="stable")
    negligible = 1e-12 * parts.max(initial=0.0)

    def named(cluster: int, most: int) -> str:
        chosen = order[cluster, :most]
        least = _LEAST_SHARE * parts[cluster, chosen[0]] if most == _USUAL else 0.0
        said = [
            words[feature][0 if signs[cluster, feature] > 0 else 1]
            for feature in chosen
            if parts[cluster, feature] > max(least, negligible)
        ]
        return ", ".join(said) or "average"

    names = [named(cluster, _USUAL) for cluster in range(len(parts))]
    for most in range(_USUAL + 1, _MOST + 1):
        names = [
            named(cluster, most) if names.count(name) > 1 else name
            for cluster, name in enumerate(names)
        ]
    for cluster in [j for j, name in enumerate(names) if names.count(name) > 1]:
        first = order[cluster, 0]
        if parts[cluster, first] > negligible:
            usual, value = named(cluster, _USUAL), centers[cluster, first]
            names[cluster] = f"{usual} ({features[first]} {value:.3g})"
    seen = [names[:cluster].count(name) for cluster, name in enumerate(names)]
    return [f"{name} ({n + 1})" if n else name for name, n in zip(names, seen, strict=True)]


def cluster_table(model: Any, with_centers: bool = False) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and rows of the table of clusters: number, name, size, share, features.

    The names of the feature columns say what they hold: means of the rows of the cluster (for mixed
    columns also shares of true and the commonest levels), or centres, if these are not means or are
    asked for. A value is NaN or None if no row of the cluster has one.
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
            read.append([str(np.datetime64(round(day), "D")) for (day,) in own.tolist()])
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
    values = np.array(found).reshape(len(pairs), -1).T
    return pd.DataFrame(values, columns=columns).rename_axis(index="cluster")


def summary_frame(model: Any) -> Any:
    """Return the table of clusters as a pandas DataFrame, by cluster.

    Raises
    ------
    NotFittedError
        If the model is not fitted, which is an AttributeError too.
    AttributeError
        If the model has no centres in the input's units.
    ImportError
        If pandas is not installed.
    """
    check_is_fitted(model)
    if not hasattr(model, "cluster_centers_"):
        raise AttributeError(
            f"summary_ is of models with centres in the input's units; this {type(model).__name__} "
            "has none."
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
