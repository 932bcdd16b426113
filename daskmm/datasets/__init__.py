"""Simulated data of the papers, as dask arrays that are generated block by block."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from numbers import Integral

import numpy as np
from sklearn.utils import check_scalar

from daskmm._dask import da
from daskmm.datasets._simulations import (
    Chunks,
    RandomState,
    Simulation,
    among_normal,
    as_dask_arrays,
    check_sizes,
    checked_real,
    entropy_of,
    make_mixture,
    on_sphere,
    stream,
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
    n_informative: int = 2,
    n_noise: int = 20,
    *,
    cluster_std: float = 0.015,
    random_state: RandomState = None,
    chunks: Chunks = "auto",
) -> tuple[da.Array, da.Array]:
    """Make clusters on a grid in two features, with features of wider uniform noise.

    Centres are the points of a grid of step 0.1, ten by ten for 100 clusters, in the informative
    features, which come first; rows are spherical Gaussian around them. The noise features are
    uniform on [0, 2]. This is simulation 1 (section 4.1, table 1) of the paper on entropy weighted
    power k-means, which increases `n_noise` from 5 to 100.

    Parameters
    ----------
    n_samples : int, default=1000
        Number of rows.
    n_clusters : int, default=100
        Number of clusters, at most `n_samples`.
    n_informative : int, default=2
        Number of features that distinguish clusters, at least 1.
    n_noise : int, default=20
        Number of features of noise.
    cluster_std : float, default=0.015
        Standard deviation of a cluster in each informative feature. The paper prints 0.15, more
        than the step of the grid; its table is reproduced with 0.015.
    random_state : int, RandomState, Generator or None, default=None
        An int gives the same rows in every call; a RandomState or Generator is drawn from once;
        None gives different rows in every call.
    chunks : "auto", int or sequence of int, default="auto"
        Rows per block, or the rows of each block; "auto" makes blocks of about 16 MB. The rows
        do not depend on it.

    Returns
    -------
    X : dask array of shape (n_samples, n_informative + n_noise), float64
        Rows, in blocks of whole rows.
    y : dask array of shape (n_samples,), int64
        Cluster of each row, from 0 to n_clusters - 1, in blocks of the same rows. Cluster sizes
        differ by at most 1. Rows are shuffled within runs of up to 1,000.

    Raises
    ------
    ValueError
        If a parameter is out of range, or the chunks do not sum to `n_samples`.
    TypeError
        If a parameter is of the wrong type.

    Notes
    -----
    A block takes the memory of its own rows and of 1,000 more (fewer if rows are wide). The
    informative features have a variance of about 1/12 and the noise has 1/3, so raw and
    standardised features are two different problems; the table is about raw ones.

    References
    ----------
    Chakraborty, Paul, Das and Xu, "Entropy Weighted Power k-Means Clustering", AISTATS 2020.
    """
    sizes = n_samples, n_clusters, n_informative, n_noise
    return make_mixture(*sizes, cluster_std, random_state, chunks, scale=None)


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
    """Make clusters in few features among many features of noise.

    Centres are uniform on the unit hypercube of the informative features, which come first; rows
    are spherical Gaussian around them. The noise features are N(0, 1). This is simulation 2
    (section 4.1, table 2) of the paper on entropy weighted power k-means, which increases the
    number of clusters from 20 to 500 with 100 rows each, and has the informative features at
    random places.

    Parameters
    ----------
    n_samples, n_clusters, n_informative, n_noise, cluster_std, random_state, chunks
        As in :func:`make_ewp_simulation1`.

    Returns
    -------
    X, y : dask arrays of shape (n_samples, n_features), float64, and (n_samples,), int64
        Rows and the cluster of each, as in :func:`make_ewp_simulation1`.

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
    scale: float | tuple[float, float] = (30.0, 60.0),
    cluster_std: float = 1.0,
    random_state: RandomState = None,
    chunks: Chunks = "auto",
) -> tuple[da.Array, da.Array]:
    """Make spherical Gaussian clusters around centres uniform on a hypercube.

    This is the simulation of the paper on power k-means (section 4), which increases the number
    of features.

    Parameters
    ----------
    n_samples : int, default=2500
        Number of rows.
    n_clusters : int, default=50
        Number of clusters, at most `n_samples`.
    n_features : int, default=2
        Number of features, at least 1.
    scale : float or tuple of two floats, default=(30.0, 60.0)
        Length of the sides of the hypercube, or two numbers between which it is drawn uniformly,
        as in the paper.
    cluster_std : float, default=1.0
        Standard deviation of a cluster in each feature. With the defaults, clusters overlap in 2
        features and are well separated in 5 or more, where Lloyd's algorithm from random rows
        ends at 2 to 7 times the cost of the true centres.
    random_state, chunks
        As in :func:`make_ewp_simulation1`.

    Returns
    -------
    X, y : dask arrays of shape (n_samples, n_features), float64, and (n_samples,), int64
        Rows and the cluster of each, as in :func:`make_ewp_simulation1`. The paper does not state
        the sizes of its clusters.

    References
    ----------
    Xu and Lange, "Power k-Means Clustering", ICML 2019.
    """
    check_scalar(n_features, "n_features", Integral, min_val=1)
    ends = scale if isinstance(scale, tuple) else (scale, scale)
    if len(ends) != 2 or checked_real(ends[0], "scale", least=0.0) > checked_real(
        ends[1], "scale", least=0.0
    ):
        raise ValueError(f"scale must be a number or a smaller and a larger one; got {scale!r}.")
    sizes = n_samples, n_clusters, n_features, 0
    return make_mixture(*sizes, cluster_std, random_state, chunks, scale=ends)


def make_wbms_simulation1(
    n_samples: int = 200,
    n_clusters: int = 10,
    n_informative: int = 5,
    n_noise: int = 15,
    *,
    cluster_std: float = 0.02,
    random_state: RandomState = None,
    chunks: Chunks = "auto",
) -> tuple[da.Array, da.Array]:
    """Make few rows for each of many clusters, for methods that find the number of clusters.

    The mixture is that of :func:`make_ewp_simulation2`. This is simulation 1 (section 4.1.1) of the
    paper on weighted blurring mean shift, which increases the number of clusters from 2 to 50 with
    20 rows each.

    Parameters
    ----------
    n_samples, n_clusters, n_informative, n_noise, cluster_std, random_state, chunks
        As in :func:`make_ewp_simulation2`, with other defaults.

    Returns
    -------
    X, y : dask arrays of shape (n_samples, n_features), float64, and (n_samples,), int64
        Rows and the cluster of each, as in :func:`make_ewp_simulation1`.

    Notes
    -----
    The paper draws the cluster of each row; here sizes differ by at most 1.

    References
    ----------
    Chakraborty, Paul and Das, "Automated Clustering of High-dimensional Data with a Feature
    Weighted Mean Shift Algorithm", AAAI 2021.
    """
    return make_mixture(
        n_samples, n_clusters, n_informative, n_noise, cluster_std, random_state, chunks
    )


def make_wbms_simulation2(
    n_samples: int = 100,
    n_clusters: int = 4,
    n_informative: int = 2,
    n_noise: int = 18,
    *,
    cluster_std: float = 0.02,
    random_state: RandomState = None,
    chunks: Chunks = "auto",
) -> tuple[da.Array, da.Array]:
    """Make clusters among many features of noise, for methods that find the number of clusters.

    The mixture is that of :func:`make_wbms_simulation1`. This is simulation 2 (section 4.1.2) of
    the paper on weighted blurring mean shift, which increases the number of features from 20 to
    200. One in twenty features is informative there, except that two of 20 are.

    Parameters
    ----------
    n_samples, n_clusters, n_informative, n_noise, cluster_std, random_state, chunks
        As in :func:`make_ewp_simulation2`, with other defaults.

    Returns
    -------
    X, y : dask arrays of shape (n_samples, n_features), float64, and (n_samples,), int64
        Rows and the cluster of each, as in :func:`make_ewp_simulation1`.

    Notes
    -----
    The paper prints a variance of 0.3, with which clusters overlap, and says that they do not.
    """
    return make_mixture(
        n_samples, n_clusters, n_informative, n_noise, cluster_std, random_state, chunks
    )


def make_wbms_toy(
    n_samples: int = 200,
    n_noise: int = 30,
    *,
    separation: float = 5.0,
    random_state: RandomState = None,
    chunks: Chunks = "auto",
) -> tuple[da.Array, da.Array]:
    """Make two clusters in two features, followed by features of noise.

    Rows are N(0, 1) in every feature; the second cluster is shifted by `separation` in the first
    two. This is the toy example in the first figure of the paper on weighted blurring mean shift,
    as published by the authors: 100 rows per cluster and 30 features of noise.

    Parameters
    ----------
    n_samples : int, default=200
        Number of rows, at least 2.
    n_noise : int, default=30
        Number of features of noise.
    separation : float, default=5.0
        Distance of the centres in each of the two informative features, not negative.
    random_state, chunks
        As in :func:`make_ewp_simulation1`.

    Returns
    -------
    X : dask array of shape (n_samples, 2 + n_noise), float64
        Rows, in blocks of whole rows, not standardised.
    y : dask array of shape (n_samples,), int64
        Cluster of each row, 0 or 1; cluster sizes differ by at most 1.
    """
    check_sizes(n_samples, 2, "the number of clusters")
    check_scalar(n_noise, "n_noise", Integral, min_val=0)
    apart = checked_real(separation, "separation", least=0.0)
    centers = np.array([[0.0, 0.0], [apart, apart]])
    entropy, draw = entropy_of(random_state), partial(among_normal, std=1.0)
    toy = Simulation(int(n_samples), 2 + int(n_noise), entropy, centers, draw)
    return as_dask_arrays(toy, chunks)


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
        Number of rows, at least one per blob.
    radii : sequence of float, default=(2.0, 5.0)
        Radii of the circles, not negative.
    blobs_per_ring : int, default=5
        Number of blobs on each circle.
    cluster_std : float, default=0.35
        Standard deviation of a blob in each feature.
    random_state, chunks
        As in :func:`make_ewp_simulation1`.

    Returns
    -------
    X : dask array of shape (n_samples, 2), float64
        Rows, in blocks of whole rows.
    y : dask array of shape (n_samples,), int64
        Blob of each row, circle by circle: ``y // blobs_per_ring`` is the circle. Sizes of blobs
        differ by at most 1.
    """
    check_scalar(blobs_per_ring, "blobs_per_ring", Integral, min_val=1)
    circles = tuple(checked_real(radius, "radii", least=0.0) for radius in radii)
    if not circles:
        raise ValueError("radii must name at least one circle.")
    n_blobs = len(circles) * int(blobs_per_ring)
    check_sizes(n_samples, n_blobs, "the number of blobs")
    std = checked_real(cluster_std, "cluster_std", least=0.0)
    angles = np.tile(2.0 * np.pi * np.arange(blobs_per_ring) / blobs_per_ring, len(circles))
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    centers = np.repeat(circles, blobs_per_ring)[:, None] * directions
    entropy, draw = entropy_of(random_state), partial(among_normal, std=std)
    return as_dask_arrays(Simulation(int(n_samples), 2, entropy, centers, draw), chunks)


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

    Mean directions are uniform on the sphere; all clusters have the same concentration.

    Parameters
    ----------
    n_samples : int, default=1000
        Number of rows.
    n_clusters : int, default=10
        Number of clusters, at most `n_samples`.
    n_features : int, default=3
        Number of features, at least 2. Generating the rows takes time quadratic in it.
    concentration : float, default=50.0
        κ > 0. The angle between a row and its mean direction is about √((n_features − 1) / κ) if
        that is small.
    random_state, chunks
        As in :func:`make_ewp_simulation1`.

    Returns
    -------
    X : dask array of shape (n_samples, n_features), float64
        Unit vectors, in blocks of whole rows.
    y : dask array of shape (n_samples,), int64
        Cluster of each row; cluster sizes differ by at most 1.
    """
    check_sizes(n_samples, n_clusters)
    check_scalar(n_features, "n_features", Integral, min_val=2)
    kappa = checked_real(concentration, "concentration", least=0.0)
    if kappa == 0:
        raise ValueError("concentration must be positive; got 0.")
    entropy = entropy_of(random_state)
    normal = stream(entropy, 0).standard_normal((int(n_clusters), int(n_features)))
    centers = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    draw = partial(on_sphere, concentration=kappa)
    return as_dask_arrays(
        Simulation(int(n_samples), int(n_features), entropy, centers, draw), chunks
    )
