"""Projection of a sample to the plane in which clusters differ most; public in `daskmm.plot`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.extmath import randomized_svd

from daskmm.data.names import counted
from daskmm.numerics.rows import Coordinates, Rows, SphereCoordinates
from daskmm.plot.figures import (
    cluster_colors,
    cluster_means,
    drawn_rows,
    new_figure,
    refuse_mixed,
    scatter_rows,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FloatArray = NDArray[np.float64]

# Largest number of clusters whose numbers are written.
_MOST_NUMBERS = 100
# Axes have equal units unless rows spread this many times wider along one of them.
_MOST_OBLONG = 8
# Share of the rows on each side of an axis that may lie far from the others.
_FAR = 0.005
# Weight of the spread of rows within clusters, which matters if centres span less than two axes.
_OWN_SPREAD = 1e-3


@dataclass(frozen=True)
class Plane:
    """The two principal axes of the rows' centres, in the scale and weights of a model."""

    shares: FloatArray  # share of the spread between clusters along each axis, (2,)
    points: FloatArray  # projections of the rows, (n_rows, 2)
    centers: FloatArray  # projections of the centres, (n_clusters, 2)
    # Covariances of the components of a mixture; None for other models, (n_clusters, 2, 2).
    covariances: FloatArray | None = None

    @classmethod
    def of(cls, model: Any, rows: NDArray, clusters: NDArray) -> Self:
        """Find the plane of a fitted model's clusters.

        Rows are in the input's units; values may be missing.
        """
        refuse_mixed(model)
        coordinates: Rows = Coordinates(model.mean_, model.scale_)
        if getattr(model, "distortion", None) == "cosine":
            coordinates = SphereCoordinates(model.n_features_in_)
        weights = np.sqrt(getattr(model, "feature_weights_", np.ones(model.n_features_in_)))
        points = coordinates.to_model(rows) * weights
        if hasattr(model, "cluster_centers_"):
            centers = coordinates.to_model(model.cluster_centers_) * weights
        else:  # centres in a feature space have no coordinates, so use means of the sample
            centers = cluster_means(points, clusters, model.n_clusters)
        # Missing values are replaced by the values of the cluster's centre.
        points = np.where(np.isnan(points), centers[clusters], points)
        levels = np.zeros(len(centers))
        own = centers[clusters]
        middle = own.mean(axis=0)
        if points.shape[1] == 1:  # offsets on the second axis separate the clusters
            levels = np.linspace(-1, 1, len(centers)) * max(float(np.ptp(points)), 1e-12) / 4
            axes, shares = np.array([[1.0, 0.0]]), np.array([1.0, 0.0])
        else:
            spread = np.vstack([own - middle, _OWN_SPREAD * (points - points.mean(axis=0))])
            axes = randomized_svd(spread, 2, random_state=0)[2].T
            between = max(float(np.square(own - middle).sum()), 1e-300)
            shares = np.square((own - middle) @ axes).sum(axis=0) / between
        raised = np.column_stack([np.zeros(len(levels)), levels])
        return cls(
            shares,
            (points - middle) @ axes + raised[clusters],
            (centers - middle) @ axes + raised,
            _covariances(model, axes / model.scale_[:, None]),
        )


def _covariances(model: Any, axes: FloatArray) -> FloatArray | None:
    """Return the covariances of a mixture's components along two axes, in the input's units."""
    if not hasattr(model, "covariances_"):
        return None
    own, (k, p) = model.covariances_, model.means_.shape
    if model.covariance_type_ == "spherical":
        own = own[:, None]
    if model.covariance_type_ in ("diag", "spherical"):
        own = np.broadcast_to(own, (k, p))[:, :, None] * np.eye(p)
    return np.broadcast_to(axes.T @ own @ axes, (k, 2, 2))


def projection(model: Any, sample: ArrayLike, labels: ArrayLike | None = None) -> Figure:
    """Draw rows in the plane in which the cluster centres differ most.

    Features are scaled and weighted as in the model's distance; the axes are the principal axes of
    the rows' centres. Ellipses at two standard deviations show the components of a mixture.

    Parameters
    ----------
    model : fitted estimator
        The model.
    sample : array-like of shape (n_rows, n_features)
        A few thousand rows, in the input's units. At most 10,000 rows are drawn from a lazy table,
        which is read once (twice, if the number of its rows is unknown).
    labels : array-like of shape (n_rows,), optional
        Cluster of each row; by default that of the nearest centre. Rows without any value, which
        are labelled −1, are left out.

    Returns
    -------
    matplotlib Figure
    """
    sample, labels = drawn_rows(model, sample, labels)
    clusters = np.asarray(model.predict(sample) if labels is None else labels)
    rows, clusters = np.asarray(sample)[clusters >= 0], clusters[clusters >= 0]
    plane = Plane.of(model, rows, clusters)
    points, centers, shares = plane.points, plane.centers, plane.shares
    figure = new_figure(figsize=(6.6, 6.0))
    axis = figure.subplots()
    colors = cluster_colors(len(centers))
    size = float(np.clip(28_000 / max(len(points), 1), 5, 25))
    scatter_rows(axis, points, colors[clusters], size)
    if plane.covariances is not None:
        draw_ellipses(axis, centers, plane.covariances, colors)
    if len(centers) <= _MOST_NUMBERS:
        number_clusters(axis, centers[np.unique(clusters)], np.unique(clusters))
    else:
        axis.scatter(centers[:, 0], centers[:, 1], s=14, c="black", marker="+", linewidths=0.8)
    axis.set_xlabel(f"axis 1 ({shares[0]:.0%} of the spread between clusters)")
    axis.set_ylabel(f"axis 2 ({shares[1]:.0%})")
    low, high = _limits(points, centers[np.unique(clusters)])
    # matplotlib ignores fixed limits of axes with equal units, and says so.
    axis.set_xlim(low[0], high[0], auto=True)
    axis.set_ylim(low[1], high[1], auto=True)
    n_outside = int(np.count_nonzero(((points < low) | (points > high)).any(axis=1)))
    outside = f", {n_outside:,} far outside" * (n_outside > 0)
    spans = high - low
    if spans.max() <= _MOST_OBLONG * spans.min():
        axis.set_aspect("equal", adjustable="datalim")
    axis.tick_params(labelsize=8)
    found = counted(len(centers), "cluster")
    rows_drawn = counted(len(points), "row")
    axis.set_title(f"{type(model).__name__}: {rows_drawn}{outside}, {found}", fontsize=11)
    figure.set_label(
        f"A sample of {counted(len(points), 'row')} in the plane in which {found} differ most: its "
        f"two axes show {shares[0]:.0%} and {shares[1]:.0%} of the spread between clusters. The "
        f"largest cluster of the sample has {_largest_share(clusters):.0%} of its rows."
    )
    return figure


def _limits(points: FloatArray, centers: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the lowest and highest values of both axes, without rows that lie far from the others.

    Such rows would squeeze the clusters into a corner.
    """
    if not len(points):
        return -np.ones(2), np.ones(2)
    lowest, highest = centers.min(axis=0), centers.max(axis=0)
    low, high = np.quantile(points, (_FAR, 1 - _FAR), axis=0)
    low, high = np.minimum(low, lowest), np.maximum(high, highest)
    room = (high - low) / 2
    low = np.minimum(lowest, np.maximum(points.min(axis=0), low - room))
    high = np.maximum(highest, np.minimum(points.max(axis=0), high + room))
    margin = np.maximum(0.05 * (high - low), 0.01 * max((high - low).max(), 1e-9))
    return low - margin, high + margin


def _largest_share(clusters: NDArray) -> float:
    return float(np.bincount(clusters).max() / len(clusters)) if len(clusters) else 0.0


def draw_ellipses(axis: Any, centers: FloatArray, covariances: FloatArray, colors: NDArray) -> None:
    """Draw the ellipse of each component at two standard deviations."""
    from matplotlib.patches import Ellipse

    for center, covariance, color in zip(centers, covariances, colors, strict=True):
        variances, directions = np.linalg.eigh(covariance)
        width, height = 4.0 * np.sqrt(np.maximum(variances, 0.0))
        angle = np.degrees(np.arctan2(directions[1, 0], directions[0, 0]))
        line = {"fill": False, "edgecolor": color, "linewidth": 1.4}
        axis.add_patch(Ellipse(tuple(center), width, height, angle=float(angle), **line))


def number_clusters(axis: Any, centers: FloatArray, numbers: NDArray) -> None:
    """Write the numbers of clusters at their centres."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2, foreground="white")]
    size = 10 if len(numbers) <= 20 else 8 if len(numbers) <= 50 else 6
    for (x, y), number in zip(centers, numbers, strict=True):
        axis.text(
            *(x, y, str(number)),
            ha="center",
            va="center",
            fontsize=size,
            fontweight="bold",
            path_effects=halo,
        )
