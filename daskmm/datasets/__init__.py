"""Simulated data of the papers as chunked dask arrays, generated block by block."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import dask.array as da
from sklearn.utils import check_scalar

from daskmm.datasets._strips import (
    Chunks,
    RandomState,
    Rings,
    VonMisesFisher,
    as_dask_arrays,
    check_sizes,
    checked_real,
    entropy_of,
    make_mixture,
)
from daskmm.datasets._wbms_simulations import (
    make_wbms_simulation1,
    make_wbms_simulation2,
    make_wbms_toy,
)

__all__ = [
    "make_ewp_simulation1",
    "make_ewp_simulation2",
    "make_power_kmeans_blobs",
    "make_rings",
    "make_vmf",
    "make_wbms_simulation1",
    "make_wbms_simulation2",
    "make_wbms_toy",
]


def make_ewp_simulation1(
    n_samples: int = 1000,
    n_clusters: int = 100,
    n_informative: int = 20,
    n_noise: int = 20,
    *,
    cluster_std: float = 0.015,
    random_state: RandomState = None,
    chunks: Chunks = "auto",
) -> tuple[da.Array, da.Array]:
    """Make many clusters in half of the features, the other half noise.

    Centres are uniform on the unit hypercube of the informative features, which come first;
    rows are spherical Gaussian around them. The noise features are N(0, 1). First simulation of
    the paper on entropy weighted power k-means.

    Parameters
    ----------
    n_samples : int, default=1000
    n_clusters : int, default=100
        At most `n_samples`.
    n_informative : int, default=20
        Features that tell clusters apart, at least 1.
    n_noise : int, default=20
        Features that do not.
    cluster_std : float, default=0.015
        Standard deviation of a cluster in each informative feature. The paper prints 0.15, but
        the results in its table come out with 0.015.
    random_state : int, RandomState, Generator or None, default=None
        An int gives the same rows every time; a RandomState or Generator is drawn from once;
        None gives other rows with each call.
    chunks : "auto", int or sequence of int, default="auto"
        Rows per block, or the rows of each block; "auto" makes blocks of about 16 MB. The rows
        do not depend on it.

    Returns
    -------
    X : dask array of shape (n_samples, n_informative + n_noise), float64
        In blocks of whole rows.
    y : dask array of shape (n_samples,), int64
        Cluster of each row, from 0 to n_clusters - 1, in blocks of the same rows. Sizes of
        clusters differ by at most 1. Rows are shuffled within runs of up to 1,000.

    Raises
    ------
    ValueError
        If a parameter is out of its range, or the chunks do not sum to `n_samples`.
    TypeError
        If a number of rows, clusters or features is not an integer, or `cluster_std` or
        `random_state` is of another type.

    See Also
    --------
    make_ewp_simulation2 : Few informative features among many.

    Notes
    -----
    A block takes the memory of its own rows and of 1,000 rows (fewer where rows are wide).
    The informative features have a variance of about 1/12, the noise has 1, so that raw and
    standardised features are two different problems.

    References
    ----------
    Chakraborty, Paul, Das and Xu, "Entropy Weighted Power k-Means Clustering", AISTATS 2020.
    """
    return make_mixture(
        n_samples, n_clusters, n_informative, n_noise, cluster_std, random_state, chunks
    )


def make_ewp_simulation2(
    n_samples: int = 2000,
    n_clusters: int = 20,
    n_informative: int = 5,
    n_noise: int = 95,
    *,
    cluster_std: float = 0.015,
    random_state: RandomState = None,
    chunks: Chunks = "auto",
) -> tuple[da.Array, da.Array]:
    """Make clusters in few features hidden among many of noise.

    The same mixture as :func:`make_ewp_simulation1` with one informative feature in twenty, to
    be made with a growing number of clusters: 100 rows for each, as in the default, keep them
    equally hard to see. Second simulation of the paper on entropy weighted
    power k-means.

    Parameters
    ----------
    n_samples : int, default=2000
    n_clusters : int, default=20
        At most `n_samples`.
    n_informative : int, default=5
        Features that tell clusters apart, at least 1; they come first.
    n_noise : int, default=95
        Features that do not.
    cluster_std : float, default=0.015
        Standard deviation of a cluster in each informative feature; the default is that of the
        first simulation.
    random_state : int, RandomState, Generator or None, default=None
        As in :func:`make_ewp_simulation1`.
    chunks : "auto", int or sequence of int, default="auto"
        As in :func:`make_ewp_simulation1`.

    Returns
    -------
    X : dask array of shape (n_samples, n_informative + n_noise), float64
        In blocks of whole rows.
    y : dask array of shape (n_samples,), int64
        Cluster of each row; sizes of clusters differ by at most 1.

    Raises
    ------
    ValueError, TypeError
        As in :func:`make_ewp_simulation1`.

    See Also
    --------
    make_ewp_simulation1 : More clusters, as many informative features as noise.

    References
    ----------
    Chakraborty, Paul, Das and Xu, "Entropy Weighted Power k-Means Clustering", AISTATS 2020.
    """
    return make_mixture(
        n_samples, n_clusters, n_informative, n_noise, cluster_std, random_state, chunks
    )


def make_power_kmeans_blobs(
    n_samples: int = 2500,
    n_clusters: int = 50,
    n_features: int = 2,
    *,
    cluster_std: float = 0.05,
    random_state: RandomState = None,
    chunks: Chunks = "auto",
) -> tuple[da.Array, da.Array]:
    """Make spherical Gaussian clusters around centres uniform on the unit hypercube.

    The simulation of the paper on power k-means, where the number of features grows.

    Parameters
    ----------
    n_samples : int, default=2500
    n_clusters : int, default=50
        At most `n_samples`.
    n_features : int, default=2
        At least 1.
    cluster_std : float, default=0.05
        Standard deviation of a cluster in each feature. This default is ours, not known to be
        the paper's: with it clusters overlap in 2 features and are well separated from 5 on,
        where Lloyd's algorithm from random rows ends at 2 to 7 times the cost of the true
        centres.
    random_state : int, RandomState, Generator or None, default=None
        As in :func:`make_ewp_simulation1`.
    chunks : "auto", int or sequence of int, default="auto"
        As in :func:`make_ewp_simulation1`.

    Returns
    -------
    X : dask array of shape (n_samples, n_features), float64
        In blocks of whole rows.
    y : dask array of shape (n_samples,), int64
        Cluster of each row; sizes of clusters differ by at most 1.

    Raises
    ------
    ValueError, TypeError
        As in :func:`make_ewp_simulation1`.

    References
    ----------
    Xu and Lange, "Power k-Means Clustering", ICML 2019.
    """
    check_scalar(n_features, "n_features", Integral, min_val=1)
    return make_mixture(n_samples, n_clusters, n_features, 0, cluster_std, random_state, chunks)


def make_rings(
    n_samples: int = 1000,
    *,
    radii: Sequence[float] = (2.0, 5.0),
    blobs_per_ring: int = 5,
    cluster_std: float = 0.35,
    random_state: RandomState = None,
    chunks: Chunks = "auto",
) -> tuple[da.Array, da.Array]:
    """Make Gaussian blobs at equal angles on circles around the origin.

    The first blob of each circle lies on the positive first axis, the others follow
    counter-clockwise.

    Parameters
    ----------
    n_samples : int, default=1000
        At least the number of blobs.
    radii : sequence of float, default=(2.0, 5.0)
        Of the circles, not negative.
    blobs_per_ring : int, default=5
    cluster_std : float, default=0.35
        Standard deviation of a blob in each feature.
    random_state : int, RandomState, Generator or None, default=None
        As in :func:`make_ewp_simulation1`.
    chunks : "auto", int or sequence of int, default="auto"
        As in :func:`make_ewp_simulation1`.

    Returns
    -------
    X : dask array of shape (n_samples, 2), float64
        In blocks of whole rows.
    y : dask array of shape (n_samples,), int64
        Blob of each row, those of the first circle first: ``y // blobs_per_ring`` is the circle.
        Sizes of blobs differ by at most 1.

    Raises
    ------
    ValueError, TypeError
        As in :func:`make_ewp_simulation1`.
    """
    check_scalar(blobs_per_ring, "blobs_per_ring", Integral, min_val=1)
    circles = tuple(checked_real(radius, "radii", least=0.0) for radius in radii)
    if not circles:
        raise ValueError("radii must name at least one circle.")
    check_sizes(n_samples, len(circles) * int(blobs_per_ring), "the number of blobs")
    return as_dask_arrays(
        Rings(
            int(n_samples),
            len(circles) * int(blobs_per_ring),
            2,
            entropy_of(random_state),
            circles,
            checked_real(cluster_std, "cluster_std", least=0.0),
        ),
        chunks,
    )


def make_vmf(
    n_samples: int = 1000,
    n_clusters: int = 10,
    n_features: int = 3,
    *,
    concentration: float = 50.0,
    random_state: RandomState = None,
    chunks: Chunks = "auto",
) -> tuple[da.Array, da.Array]:
    """Make von Mises–Fisher clusters on the unit sphere.

    Mean directions are uniform on the sphere; all clusters are equally concentrated.

    Parameters
    ----------
    n_samples : int, default=1000
    n_clusters : int, default=10
        At most `n_samples`.
    n_features : int, default=3
        At least 2. The time of a strip of rows grows with its square.
    concentration : float, default=50.0
        κ > 0. The angle between a row and its mean direction is about
        √((n_features − 1) / κ) where that is small.
    random_state : int, RandomState, Generator or None, default=None
        As in :func:`make_ewp_simulation1`.
    chunks : "auto", int or sequence of int, default="auto"
        As in :func:`make_ewp_simulation1`.

    Returns
    -------
    X : dask array of shape (n_samples, n_features), float64
        Unit vectors, in blocks of whole rows.
    y : dask array of shape (n_samples,), int64
        Cluster of each row; sizes of clusters differ by at most 1.

    Raises
    ------
    ValueError, TypeError
        As in :func:`make_ewp_simulation1`.
    """
    check_sizes(n_samples, n_clusters)
    check_scalar(n_features, "n_features", Integral, min_val=2)
    kappa = checked_real(concentration, "concentration", least=0.0)
    if kappa == 0:
        raise ValueError("concentration must be positive; got 0.")
    sizes = int(n_samples), int(n_clusters), int(n_features)
    return as_dask_arrays(VonMisesFisher(*sizes, entropy_of(random_state), kappa), chunks)
