"""Simulated data of the paper on weighted blurring mean shift."""

from __future__ import annotations

from numbers import Integral

import dask.array as da
from sklearn.utils import check_scalar

from daskmm.datasets._strips import (
    Chunks,
    DiagonalMixture,
    RandomState,
    as_dask_arrays,
    check_sizes,
    checked_real,
    entropy_of,
    make_mixture,
)

_TOY_CLUSTERS = 2
_TOY_INFORMATIVE = 2


def make_wbms_simulation1(
    n_samples: int = 500,
    n_clusters: int = 10,
    n_informative: int = 10,
    n_noise: int = 10,
    *,
    cluster_std: float = 0.015,
    random_state: RandomState = None,
    chunks: Chunks = "auto",
) -> tuple[da.Array, da.Array]:
    """Make clusters whose number nobody tells, half of the features informative.

    The mixture of :func:`make_ewp_simulation1`, to be made with a growing number of clusters.
    First simulation of the paper on weighted blurring mean shift.

    Parameters
    ----------
    n_samples : int, default=500
    n_clusters : int, default=10
        At most `n_samples`.
    n_informative : int, default=10
        Features that tell clusters apart, at least 1; they come first.
    n_noise : int, default=10
        Features that do not, N(0, 1).
    cluster_std : float, default=0.015
        Standard deviation of a cluster in each informative feature, around centres uniform on
        the unit hypercube.
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
    make_wbms_simulation2 : More features of noise.

    Notes
    -----
    The paper varies the number of clusters, among relevant features and noise. The numbers of
    rows and features, the uniform centres and the standard deviation are our choice, after the
    simulations of the same authors' paper on entropy weighted power k-means.

    References
    ----------
    Chakraborty, Paul and Das, "Automated Clustering of High-dimensional Data with a Feature
    Weighted Mean Shift Algorithm", AAAI 2021.
    """
    return make_mixture(
        n_samples, n_clusters, n_informative, n_noise, cluster_std, random_state, chunks
    )


def make_wbms_simulation2(
    n_samples: int = 500,
    n_clusters: int = 10,
    n_informative: int = 10,
    n_noise: int = 90,
    *,
    cluster_std: float = 0.015,
    random_state: RandomState = None,
    chunks: Chunks = "auto",
) -> tuple[da.Array, da.Array]:
    """Make clusters whose number nobody tells, hidden among a growing number of features.

    The mixture of :func:`make_wbms_simulation1`, to be made with more and more noise. Second
    simulation of the paper on weighted blurring mean shift.

    Parameters
    ----------
    n_samples : int, default=500
    n_clusters : int, default=10
        At most `n_samples`.
    n_informative : int, default=10
        Features that tell clusters apart, at least 1; they come first.
    n_noise : int, default=90
        Features that do not, N(0, 1).
    cluster_std : float, default=0.015
        As in :func:`make_wbms_simulation1`.
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
    make_wbms_simulation1 : Fewer features of noise.

    Notes
    -----
    The paper varies the number of features; all else is our choice, as in
    :func:`make_wbms_simulation1`.

    References
    ----------
    As in :func:`make_wbms_simulation1`.
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
    """Make two clusters in a plane, and noise behind it.

    Rows are N(0, 1) in every feature, moved by `separation` in the first two features for the
    second cluster. The toy of the first figure of the paper on weighted blurring mean shift, as
    in the authors' published example: 100 rows a cluster, 2 relevant features, 30 of noise.

    Parameters
    ----------
    n_samples : int, default=200
        At least 2.
    n_noise : int, default=30
        Features that do not tell the clusters apart.
    separation : float, default=5.0
        Distance of the centres in each of the two relevant features, not negative.
    random_state : int, RandomState, Generator or None, default=None
        As in :func:`make_ewp_simulation1`.
    chunks : "auto", int or sequence of int, default="auto"
        As in :func:`make_ewp_simulation1`.

    Returns
    -------
    X : dask array of shape (n_samples, 2 + n_noise), float64
        In blocks of whole rows, not standardised.
    y : dask array of shape (n_samples,), int64
        Cluster of each row, 0 or 1; sizes differ by at most 1.

    Raises
    ------
    ValueError, TypeError
        As in :func:`make_ewp_simulation1`.

    References
    ----------
    As in :func:`make_wbms_simulation1`.
    """
    check_sizes(n_samples, _TOY_CLUSTERS, "the number of clusters")
    check_scalar(n_noise, "n_noise", Integral, min_val=0)
    toy = DiagonalMixture(
        int(n_samples),
        _TOY_CLUSTERS,
        _TOY_INFORMATIVE + int(n_noise),
        entropy_of(random_state),
        _TOY_INFORMATIVE,
        1.0,
        checked_real(separation, "separation", least=0.0),
    )
    return as_dask_arrays(toy, chunks)
