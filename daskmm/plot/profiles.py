"""A heat map of the clusters' means, feature by feature; public in `daskmm.plot`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from daskmm._dask import is_dask_array, is_dask_collection
from daskmm.data.names import (
    counted,
    feature_names,
    is_standardised,
    listed,
    n_clusters_of,
    variance_of,
)
from daskmm.plot.figures import (
    GREY,
    cluster_means,
    drawn_rows,
    name_ticks,
    new_figure,
    refuse_mixed,
    short_name,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FloatArray = NDArray[np.float64]

# Largest numbers of clusters and features in the heat map, deviation with the strongest colour, and
# largest number of clusters whose sizes are written beside their bars.
MOST_CLUSTERS, MOST_COLUMNS = 100, 40
_MOST_DEVIATIONS = 3.0
_MOST_COUNTS = 40


@dataclass(frozen=True)
class Profiles:
    """Deviations of the clusters from the mean of the data, by feature."""

    # (mean of the cluster − mean of the data) / spread; 0 if a feature does not vary, NaN for
    # clusters without rows, (n_clusters, n_features).
    deviations: FloatArray
    # Means of the clusters' rows in the input's units, or the centres if the model has no means,
    # (n_clusters, n_features).
    centers: FloatArray
    sizes: NDArray[np.int64] | None  # rows of each cluster; None if unknown
    # Share of each feature's variance that lies between the clusters. If the spread of the data is
    # unknown, it is the feature's share of the model's distances between centres.
    separation: FloatArray
    weights: FloatArray  # feature weights; equal if the model has none
    names: list[str]  # names of the features
    unit: str  # unit of the deviations

    @classmethod
    def of(
        cls,
        model: Any,
        sample: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        sizes: ArrayLike | None = None,
    ) -> Self:
        """Compute the profiles of a fitted model; parameters as in `cluster_profiles`.

        Raises
        ------
        ValueError
            If the model has no centres, and no sample is given.
        """
        refuse_mixed(model)
        check_is_fitted(model)
        if not hasattr(model, "n_features_in_") or not hasattr(model, "mean_"):
            raise ValueError(
                f"{type(model).__name__} has no features here: its kernel is precomputed, or its "
                "clusters are those of another model, such as the leaves_ of a ClusterTree."
            )
        if sample is not None:
            sample, labels = drawn_rows(model, sample, labels)
        rows = None if sample is None else np.asarray(sample, dtype=np.float64)
        known = _sizes(model, sizes)
        if hasattr(model, "cluster_centers_"):
            centers = np.asarray(getattr(model, "cluster_means_", model.cluster_centers_))
        elif rows is None:
            raise ValueError(
                f"The means of {type(model).__name__} lie in a feature space; give a sample, whose "
                "means can be drawn."
            )
        else:
            clusters = np.asarray(model.predict(sample) if labels is None else labels)
            centers = cluster_means(rows, clusters, int(model.n_clusters))
        shares = np.ones(len(centers)) if known is None else known.astype(np.float64)
        shares = np.where(np.isnan(centers).all(axis=1), 0.0, shares)
        shares = shares / max(shares.sum(), 1.0)
        weights = getattr(model, "feature_weights_", None)
        if weights is None:
            weights = np.full(model.n_features_in_, 1 / model.n_features_in_)
        mean, spread, unit = _mean_and_spread(model, rows, centers)
        deviations = np.divide(centers - mean, spread, out=np.zeros_like(centers), where=spread > 0)
        relative = deviations if unit == _OF_DATA else (centers - mean) / model.scale_
        separation = shares @ np.nan_to_num(np.square(relative))
        separation = np.minimum(separation, 1.0) if unit == _OF_DATA else separation * weights
        return cls(deviations, centers, known, separation, weights, feature_names(model), unit)


_OF_DATA = "standard deviations of the data"
_OF_CENTERS = "standard deviations of the means"


def _mean_and_spread(
    model: Any, rows: FloatArray | None, centers: FloatArray
) -> tuple[FloatArray, FloatArray, str]:
    """Return mean, spread and unit of the data, or of the centres if the data are unknown."""
    if rows is not None and len(rows):
        held = ~np.isnan(rows)
        count = np.maximum(held.sum(axis=0), 1)
        mean = np.where(held, rows, 0.0).sum(axis=0) / count
        variance = np.where(held, np.square(rows - mean), 0.0).sum(axis=0) / count
        return mean, np.sqrt(variance), _OF_DATA
    variance = variance_of(model)
    if is_standardised(model) and variance is not None:
        return _mean_of_rows(model), np.sqrt(variance), _OF_DATA
    return np.nanmean(centers, axis=0), np.nanstd(centers, axis=0), _OF_CENTERS


def _mean_of_rows(model: Any) -> FloatArray:
    """Return the mean of all rows, which `mean_` is not for sparse rows: it is 0."""
    of_fit = hasattr(model, "covariances_") and not hasattr(model, "updates_")
    if of_fit or not hasattr(model, "cluster_means_"):
        return np.asarray(model.mean_)
    masses = model.cluster_sizes_[:, None] * np.nan_to_num(getattr(model, "value_shares_", 1.0))
    masses = np.broadcast_to(masses, model.cluster_means_.shape)
    total = masses.sum(axis=0)
    sums = (masses * np.nan_to_num(model.cluster_means_)).sum(axis=0)
    return np.divide(sums, total, out=np.array(model.mean_, dtype=np.float64), where=total > 0)


def _sizes(model: Any, sizes: ArrayLike | None) -> NDArray[np.int64] | None:
    """Return the number of rows of each cluster; None if it is unknown without computing labels."""
    if sizes is not None:
        return np.asarray(sizes, dtype=np.int64)
    labels = getattr(model, "labels_", None)
    if labels is not None and not is_dask_collection(labels):
        labels = np.asarray(labels)  # rows without any value have the label −1
        return np.bincount(labels[labels >= 0], minlength=n_clusters_of(model))
    weights = getattr(model, "cluster_sizes_", None)
    n_rows = labels.shape[0] if is_dask_array(labels) else np.inf
    n_rows = getattr(model, "n_samples_seen_", n_rows)
    if weights is None or np.any(weights % 1) or weights.sum() > n_rows:
        return None  # the rows have sample weights
    return weights.astype(np.int64)


def cluster_profiles(
    model: Any,
    sample: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    sizes: ArrayLike | None = None,
) -> Figure:
    """Draw the clusters as a heat map, in deviations from the mean of the data, and their sizes.

    Deviations are those of the mean of a cluster's rows (`cluster_means_`), or of its centre if
    that is a median or a mode. Clusters are in order of size; at most 40 features are drawn, those
    that separate the clusters most. Without a sample, the spread of the data is known for
    standardised models only; for others, deviations are relative to the means themselves.

    Parameters
    ----------
    model : fitted estimator
        The model.
    sample : array-like of shape (n_rows, n_features), optional
        A few thousand rows in the input's units, from which mean and spread are computed; at most
        10,000 are taken from a lazy table. Kernel models need a sample, whose means are drawn,
        since their own means lie in a feature space.
    labels : array-like of shape (n_rows,), optional
        Cluster of each row of the sample; predicted by the model by default.
    sizes : array-like of shape (n_clusters,), optional
        Number of rows of each cluster; by default those of the fit. They are unknown if labels are
        lazy and rows have weights that are not whole.

    Returns
    -------
    matplotlib Figure

    Raises
    ------
    ValueError
        If there are no centres to draw.
    """
    return _draw(Profiles.of(model, sample, labels, sizes))


def _draw(profiles: Profiles) -> Figure:
    """Draw the figure of `cluster_profiles`."""
    n_clusters, n_features = profiles.deviations.shape
    sizes = profiles.sizes
    order = np.arange(n_clusters) if sizes is None else np.argsort(-sizes, kind="stable")
    clusters = order[:MOST_CLUSTERS]
    features = np.argsort(-profiles.separation, kind="stable")[:MOST_COLUMNS]
    names = [short_name(profiles.names[feature]) for feature in features]
    body = max(1.3, (0.25 if len(clusters) <= _MOST_COUNTS else 0.14) * len(clusters))
    # A font draws a character that it lacks as a wide box or an escape, so escapes are counted.
    height = 1.5 + 0.075 * min(max(len(ascii(name)) for name in names), 24) + body
    width = max(5.6, 3.6 + 0.2 * len(features))
    figure = new_figure(figsize=(width, height))
    ratios = [max(len(features), 8), 7]
    axis, bars = figure.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": ratios})
    values = profiles.deviations[np.ix_(clusters, features)]
    furthest = float(np.nanmax(np.abs(values), initial=0.0))
    limit = min(furthest, _MOST_DEVIATIONS) or 1.0
    image = axis.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    clipped = "both" if furthest > limit else "neither"
    bar = figure.colorbar(image, ax=[axis, bars], shrink=min(1.0, 2.2 / body), extend=clipped)
    unit = profiles.unit.replace(" of", "\nof")
    bar.set_label(f"from the mean,\nin {unit}", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    name_ticks(axis.xaxis, names)
    axis.tick_params(axis="x", labelsize=8, rotation=90, length=0)
    axis.set_yticks(range(len(clusters)), [str(cluster) for cluster in clusters])
    axis.tick_params(axis="y", labelsize=8 if len(clusters) <= _MOST_COUNTS else 6, length=0)
    axis.set_ylabel("cluster" if sizes is None else "cluster, largest first")
    axis.set_xlabel("feature, the most separating first")
    axis.spines[:].set_visible(False)
    _draw_sizes(bars, None if sizes is None else sizes[clusters])
    figure.suptitle(_title(len(clusters), n_clusters, len(features), n_features), fontsize=11)
    figure.set_label(_described(profiles, clusters, features))
    return figure


def _draw_sizes(axis: Axes, sizes: NDArray[np.int64] | None) -> None:
    """Draw a bar for the size of each cluster."""
    if sizes is None:
        axis.set_visible(False)
        return
    axis.barh(range(len(sizes)), sizes, color=GREY, height=0.75)
    axis.set_xlabel("rows")
    axis.tick_params(axis="y", labelleft=False, length=0)
    axis.set_xticks([])
    axis.spines[:].set_visible(False)
    counted_here = len(sizes) <= _MOST_COUNTS
    axis.set_xlim(0, (1.6 if counted_here else 1.05) * max(int(sizes.max()), 1))
    if counted_here:
        for place, size in enumerate(sizes):
            axis.annotate(
                f"{size:,}",
                (size, place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )


def _title(n_rows: int, n_clusters: int, n_columns: int, n_features: int) -> str:
    left = [
        counted(number, noun)
        for number, noun in (
            (n_clusters - n_rows, "smaller cluster"),
            (n_features - n_columns, "feature"),
        )
        if number
    ]
    drawn = f"{counted(n_rows, 'cluster')}, {counted(n_columns, 'feature')}"
    return f"{drawn}; {' and '.join(left)} not drawn" if left else drawn


def _described(profiles: Profiles, clusters: NDArray[np.intp], features: NDArray[np.intp]) -> str:
    """Describe the heat map in words."""
    n_clusters, n_features = profiles.deviations.shape
    first = [profiles.names[feature] for feature in features[:3]]
    values = profiles.deviations[np.ix_(clusters, features)]
    text = (
        f"Means of {counted(len(clusters), 'cluster')} of {n_clusters:,} in "
        f"{counted(len(features), 'feature')} of {n_features:,}, those that separate the clusters "
        f"most first: feature{'s' * (len(first) > 1)} {listed(first)}."
    )
    if values.size and np.nanmax(np.abs(values), initial=0.0) > 0:
        row, column = np.unravel_index(np.nanargmax(np.abs(values)), values.shape)
        text += (
            f" Cluster {clusters[row]} is farthest from the mean, in feature "
            f"{profiles.names[features[column]]}, by {values[row, column]:+.1f} {profiles.unit}."
        )
    if profiles.sizes is not None and len(profiles.sizes):
        text += f" Clusters have {profiles.sizes.min():,} to {profiles.sizes.max():,} rows."
    return text
