"""Random rows that do not depend on the chunks of the array that holds them.

Rows are drawn in strips of up to 1,000 rows, each from its own random stream; a block assembles the
strips that it overlaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real

import numpy as np
from numpy.typing import NDArray
from scipy.stats import vonmises_fisher
from sklearn.utils import check_scalar

from daskmm._dask import da

FloatArray = NDArray[np.float64]

# Most rows of a strip, and most numbers in it. Changing either changes the data of every seed.
_STRIP_ROWS = 1000
_STRIP_ELEMENTS = 1 << 20
# Bytes of a block of X for chunks="auto".
_BLOCK_BYTES = 16_000_000

RandomState = int | np.integer | np.random.RandomState | np.random.Generator | None
Chunks = str | int | Sequence[int]


@dataclass(frozen=True)
class Simulation:
    """Clusters of equal size; each strip of their rows can be drawn without the others."""

    n_samples: int
    n_features: int
    entropy: int  # seed of all streams
    centers: FloatArray  # centres in the first features, (n_clusters, n_informative)
    # Draws rows from a stream, given the centre of each row and the number of features.
    draw: Callable[[np.random.Generator, FloatArray, int], FloatArray]

    @property
    def strip_rows(self) -> int:
        """Rows of a strip."""
        return max(1, min(_STRIP_ROWS, _STRIP_ELEMENTS // self.n_features))

    def rows(self, start: int, stop: int) -> FloatArray:
        """Return rows start to stop - 1 of X."""
        X = np.empty((stop - start, self.n_features))
        for drawn, labels, inside, place in self._strips(start, stop):
            # A random stream is drawn from its beginning, so the whole strip is drawn.
            X[place] = self.draw(drawn, self.centers[labels], self.n_features)[inside]
        return X

    def labels(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the labels of rows start to stop - 1."""
        y = np.empty(stop - start, dtype=np.int64)
        for _, labels, inside, place in self._strips(start, stop):
            y[place] = labels[inside]
        return y

    def _strips(
        self, start: int, stop: int
    ) -> Iterator[tuple[np.random.Generator, NDArray[np.int64], slice, slice]]:
        """Yield the strips that overlap rows start to stop - 1.

        Each is a tuple of its stream, all of its labels, and its overlap with the rows: as a slice
        of the strip, and as a slice of the rows.
        """
        size = self.strip_rows
        for number in range(start // size, -(-stop // size)):
            first, end = number * size, min((number + 1) * size, self.n_samples)
            low, high = max(first, start), min(end, stop)
            # Labels are drawn first, so that y needs no X. Row numbers modulo n_clusters,
            # shuffled, keep cluster sizes equal over any number of strips.
            drawn = stream(self.entropy, 1, number)
            labels = drawn.permutation(np.arange(first, end, dtype=np.int64) % len(self.centers))
            inside, place = slice(low - first, high - first), slice(low - start, high - start)
            yield drawn, labels, inside, place


def stream(entropy: int, *key: int) -> np.random.Generator:
    """Return the random stream of a key; key 0 is the stream of the centres."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy, spawn_key=key)))


def among_normal(
    drawn: np.random.Generator, means: FloatArray, n_features: int, std: float
) -> FloatArray:
    """Draw spherical Gaussian rows, with noise N(0, 1) in the features without centres."""
    strip, own = drawn.standard_normal((len(means), n_features)), means.shape[1]
    strip[:, :own] *= std
    strip[:, :own] += means
    return strip


def among_uniform(
    drawn: np.random.Generator, means: FloatArray, n_features: int, std: float
) -> FloatArray:
    """Draw spherical Gaussian rows, with noise that is uniform on [0, 2] in other features."""
    strip, own = drawn.uniform(0.0, 2.0, (len(means), n_features)), means.shape[1]
    strip[:, :own] = means + std * drawn.standard_normal(means.shape)
    return strip


def on_sphere(
    drawn: np.random.Generator, means: FloatArray, n_features: int, concentration: float
) -> FloatArray:
    """Draw von Mises–Fisher rows of one concentration on the unit sphere."""
    pole = np.zeros(n_features)
    pole[0] = 1.0
    strip = vonmises_fisher(pole, concentration).rvs(len(means), random_state=drawn)
    # All rows are drawn around the pole and reflected to their mean directions. As the distribution
    # is symmetric about its mean, a reflection is as good as a rotation.
    normals = means - pole
    squares = np.einsum("il,il->i", normals, normals)
    share = 2.0 * np.einsum("il,il->i", strip, normals) / np.where(squares > 0, squares, 1.0)
    return np.asarray(strip - share[:, None] * normals)


def uniform_centers(
    entropy: int, n_clusters: int, n_informative: int, scale: tuple[float, float] = (1.0, 1.0)
) -> FloatArray:
    """Draw centres in a hypercube, the length of whose sides is drawn from a range."""
    drawn = stream(entropy, 0)
    centers = drawn.random((n_clusters, n_informative))
    return centers * drawn.uniform(*scale)


def grid_centers(n_clusters: int, n_informative: int) -> FloatArray:
    """Return centres on a grid of step 0.1."""
    side = 1
    while side**n_informative < n_clusters:
        side += 1
    places = np.arange(n_clusters)[:, None] // side ** np.arange(n_informative)
    return (places % side).astype(np.float64) / 10.0


def as_dask_arrays(simulation: Simulation, chunks: Chunks) -> tuple[da.Array, da.Array]:
    """Return rows and labels of a simulation as dask arrays."""
    rows = _row_chunks(chunks, simulation)
    X = da.map_blocks(
        _block,
        simulation=simulation,
        part="rows",
        chunks=(rows, (simulation.n_features,)),
        dtype=np.float64,
        meta=np.empty((0, 0)),
    )
    y = da.map_blocks(
        _block,
        simulation=simulation,
        part="labels",
        chunks=(rows,),
        dtype=np.int64,
        meta=np.empty(0, dtype=np.int64),
    )
    return X, y


def _block(simulation: Simulation, part: str, block_info: dict) -> NDArray:
    block: NDArray = getattr(simulation, part)(*block_info[None]["array-location"][0])
    return block


def make_mixture(
    n_samples: int,
    n_clusters: int,
    n_informative: int,
    n_noise: int,
    cluster_std: float,
    random_state: RandomState,
    chunks: Chunks,
    scale: tuple[float, float] | None = (1.0, 1.0),
) -> tuple[da.Array, da.Array]:
    """Return rows and labels of a mixture as dask arrays; check the parameters.

    Centres are uniform on a hypercube (see `uniform_centers`), among N(0, 1) noise, or on a grid
    among uniform noise if `scale` is None.
    """
    check_sizes(n_samples, n_clusters)
    check_scalar(n_informative, "n_informative", Integral, min_val=1)
    check_scalar(n_noise, "n_noise", Integral, min_val=0)
    std = checked_real(cluster_std, "cluster_std", least=0.0)
    entropy, k, q = entropy_of(random_state), int(n_clusters), int(n_informative)
    draw = among_uniform if scale is None else among_normal
    centers = grid_centers(k, q) if scale is None else uniform_centers(entropy, k, q, scale)
    simulation = Simulation(
        int(n_samples), q + int(n_noise), entropy, centers, partial(draw, std=std)
    )
    return as_dask_arrays(simulation, chunks)


def check_sizes(n_samples: int, n_clusters: int, name: str = "n_clusters") -> None:
    """Raise unless both are positive integers and there are at least as many rows as clusters."""
    check_scalar(n_samples, "n_samples", Integral, min_val=1)
    check_scalar(n_clusters, name, Integral, min_val=1)
    if n_clusters > n_samples:
        raise ValueError(f"{name} must be at most n_samples={n_samples}; got {n_clusters}.")


def checked_real(value: float, name: str, least: float) -> float:
    """Return a number as a float; raise if it is below `least`, or not finite."""
    check_scalar(value, name, Real, min_val=least)
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite; got {value}.")
    return float(value)


def entropy_of(random_state: RandomState) -> int:
    """Return the seed of all streams; None draws a new one."""
    if random_state is None:
        return int.from_bytes(np.random.default_rng().bytes(16), "little")
    if isinstance(random_state, np.random.RandomState | np.random.Generator):
        return int.from_bytes(random_state.bytes(16), "little")
    check_scalar(random_state, "random_state", Integral, min_val=0)
    return int(random_state)


def _row_chunks(chunks: Chunks, simulation: Simulation) -> tuple[int, ...]:
    n_samples = simulation.n_samples
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
        # Blocks consist of whole strips, so that no strip is drawn for two blocks.
        strips = _BLOCK_BYTES // (8 * simulation.n_features * simulation.strip_rows)
        size = max(1, strips) * simulation.strip_rows
    else:
        raise ValueError(
            'chunks must be "auto", rows per block (at least 1) or a tuple of the rows of each '
            f"block; got {chunks!r}."
        )
    whole, rest = divmod(n_samples, size)
    return (size,) * whole + ((rest,) if rest else ())
