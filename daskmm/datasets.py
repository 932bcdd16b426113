"""Simulated data of the papers as chunked dask arrays, generated block by block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_scalar

__all__ = ["make_ewp_simulation1", "make_ewp_simulation2", "make_power_kmeans_blobs"]

# Rows that share a random stream, and how many numbers these may be at most. A block assembles
# the strips that it overlaps, so the rows do not depend on the chunks. Changing either number
# changes the data of every seed.
_STRIP_ROWS = 1000
_STRIP_ELEMENTS = 1 << 20
# Bytes of a block of X for chunks="auto".
_BLOCK_BYTES = 16_000_000

RandomState = int | np.integer | np.random.RandomState | np.random.Generator | None
Chunks = str | int | Sequence[int]


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
    return _make_mixture(
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
    return _make_mixture(
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
    return _make_mixture(n_samples, n_clusters, n_features, 0, cluster_std, random_state, chunks)


@dataclass(frozen=True)
class _Mixture:
    """Equal spherical Gaussian clusters, and features of noise; any row without the others."""

    n_samples: int
    n_clusters: int
    n_informative: int
    n_noise: int
    cluster_std: float
    entropy: int

    @property
    def n_features(self) -> int:
        return self.n_informative + self.n_noise

    @property
    def strip_rows(self) -> int:
        """Rows per random stream."""
        return max(1, min(_STRIP_ROWS, _STRIP_ELEMENTS // self.n_features))

    def centers(self) -> NDArray[np.float64]:
        return self._stream(0).random((self.n_clusters, self.n_informative))

    def rows(self, start: int, stop: int) -> NDArray[np.float64]:
        """Rows of X from `start` to before `stop`."""
        centers = self.centers()
        X = np.empty((stop - start, self.n_features))
        for stream, labels, inside, place in self._strips(start, stop):
            # The whole strip, though only a part may be wanted: streams cannot be entered midway.
            strip = stream.standard_normal((len(labels), self.n_features))[inside]
            strip[:, : self.n_informative] *= self.cluster_std
            strip[:, : self.n_informative] += centers[labels[inside]]
            X[place] = strip
        return X

    def labels(self, start: int, stop: int) -> NDArray[np.int64]:
        """Labels of the rows from `start` to before `stop`."""
        y = np.empty(stop - start, dtype=np.int64)
        for _, labels, inside, place in self._strips(start, stop):
            y[place] = labels[inside]
        return y

    def _strips(
        self, start: int, stop: int
    ) -> Iterator[tuple[np.random.Generator, NDArray[np.int64], slice, slice]]:
        """Strips that overlap some rows: stream, all labels, overlap in the strip and the rows."""
        size = self.strip_rows
        for number in range(start // size, -(-stop // size)):
            first, end = number * size, min((number + 1) * size, self.n_samples)
            low, high = max(first, start), min(end, stop)
            # Labels come first from the stream, so that y costs no drawing of X. Shuffling row
            # numbers modulo n_clusters keeps the clusters balanced over any number of strips.
            stream = self._stream(1, number)
            labels = stream.permutation(np.arange(first, end, dtype=np.int64) % self.n_clusters)
            yield (
                stream,
                labels,
                slice(low - first, high - first),
                slice(low - start, high - start),
            )

    def _stream(self, *key: int) -> np.random.Generator:
        seeds = np.random.SeedSequence(self.entropy, spawn_key=key)
        return np.random.Generator(np.random.Philox(seeds))


def _make_mixture(
    n_samples: int,
    n_clusters: int,
    n_informative: int,
    n_noise: int,
    cluster_std: float,
    random_state: RandomState,
    chunks: Chunks,
) -> tuple[da.Array, da.Array]:
    """Rows and labels of a mixture as dask arrays."""
    check_scalar(n_samples, "n_samples", Integral, min_val=1)
    check_scalar(n_clusters, "n_clusters", Integral, min_val=1)
    if n_clusters > n_samples:
        raise ValueError(f"n_clusters must be at most n_samples={n_samples}; got {n_clusters}.")
    check_scalar(n_informative, "n_informative", Integral, min_val=1)
    check_scalar(n_noise, "n_noise", Integral, min_val=0)
    check_scalar(cluster_std, "cluster_std", Real, min_val=0)
    if not math.isfinite(cluster_std):
        raise ValueError(f"cluster_std must be finite; got {cluster_std}.")
    sizes = int(n_samples), int(n_clusters), int(n_informative), int(n_noise)
    mixture = _Mixture(*sizes, float(cluster_std), _entropy(random_state))
    rows = _row_chunks(chunks, mixture)
    X = da.map_blocks(
        _block_of_rows,
        mixture=mixture,
        chunks=(rows, (mixture.n_features,)),
        dtype=np.float64,
        meta=np.empty((0, 0)),
    )
    y = da.map_blocks(
        _block_of_labels,
        mixture=mixture,
        chunks=(rows,),
        dtype=np.int64,
        meta=np.empty(0, dtype=np.int64),
    )
    return X, y


def _block_of_rows(mixture: _Mixture, block_info: dict) -> NDArray[np.float64]:
    return mixture.rows(*block_info[None]["array-location"][0])


def _block_of_labels(mixture: _Mixture, block_info: dict) -> NDArray[np.int64]:
    return mixture.labels(*block_info[None]["array-location"][0])


def _entropy(random_state: RandomState) -> int:
    """Seed of all streams, drawn afresh unless it is given."""
    if random_state is None:
        return int.from_bytes(np.random.default_rng().bytes(16), "little")
    if isinstance(random_state, np.random.RandomState | np.random.Generator):
        return int.from_bytes(random_state.bytes(16), "little")
    check_scalar(random_state, "random_state", Integral, min_val=0)
    return int(random_state)


def _row_chunks(chunks: Chunks, mixture: _Mixture) -> tuple[int, ...]:
    """Rows of each block."""
    n_samples = mixture.n_samples
    if isinstance(chunks, tuple | list):
        if not all(isinstance(rows, int | np.integer) and rows >= 1 for rows in chunks):
            raise ValueError(f"chunks must be numbers of rows, at least 1 each; got {chunks}.")
        if sum(chunks) != n_samples:
            raise ValueError(
                f"chunks must sum to n_samples={n_samples}; they sum to {sum(chunks)}."
            )
        return tuple(int(rows) for rows in chunks)
    if isinstance(chunks, int | np.integer) and chunks >= 1:
        size = int(chunks)
    elif isinstance(chunks, str) and chunks == "auto":
        # Whole strips, so that none is generated for two blocks.
        strips = _BLOCK_BYTES // (8 * mixture.n_features * mixture.strip_rows)
        size = max(1, strips) * mixture.strip_rows
    else:
        raise ValueError(
            'chunks must be "auto", rows per block (at least 1) or a tuple of the rows of each '
            f"block; got {chunks!r}."
        )
    whole, rest = divmod(n_samples, size)
    return (size,) * whole + ((rest,) if rest else ())
