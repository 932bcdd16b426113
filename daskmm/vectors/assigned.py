"""The clusters of any fitted estimator with centres, and passes over the rows that it assigns."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from daskmm._dask import dask
from daskmm.cluster._centers import CenterClusterer
from daskmm.cluster._fitted_centers import FittedCenters
from daskmm.cluster.mean_shift import WeightedBlurringMeanShift
from daskmm.cluster.tree import ClusterTree
from daskmm.data.blocks import Block, Position, positions
from daskmm.data.errors import SparseRowsError
from daskmm.data.input import by_name, read_table
from daskmm.data.lazy import in_memory
from daskmm.data.validation import checked_rows
from daskmm.engine.clients import computed
from daskmm.engine.labels import BLOCKS_TOGETHER
from daskmm.engine.passes import Passes, weighted_passes
from daskmm.engine.resources import threads_here
from daskmm.engine.threads import one_blas_thread, run_on_threads
from daskmm.kmeans.assignment import nearest_of, squared_distances_of
from daskmm.kmeans.sums import CenterState
from daskmm.numerics.distortions.bregman import SquaredEuclidean
from daskmm.numerics.distortions.norms import Euclidean
from daskmm.numerics.rows import Coordinates, FeatureCoordinates, SphereCoordinates

FloatArray = NDArray[np.float64]

# Bytes of the blocks that are in memory at once while rows are copied, if that is more than one
# block per thread.
_TOGETHER_BYTES = 64 << 20


@dataclass(frozen=True)
class Clusters:
    """The clusters of a fitted estimator, in the form that block functions need."""

    coordinates: FeatureCoordinates  # coordinates in which distances are measured
    state: CenterState  # centres and feature weights in these coordinates, and the distortion
    # Estimator whose `predict` assigns rows; None if each row has the nearest centre.
    model: Any = None

    @classmethod
    def of(cls, model: Any) -> Self:
        """Return the clusters of an estimator of this package, or of another one with centres."""
        model = _leaves(model)
        if getattr(type(model), "predict", None) in (
            CenterClusterer.predict,
            WeightedBlurringMeanShift.predict,
        ):
            fitted = FittedCenters.of(model)
            if fitted.coding is not None:
                raise ValueError("Rows of mixed columns are no vectors. Give a model of numbers.")
            return cls(fitted.coordinates, fitted.state)
        check_is_fitted(model, "cluster_centers_")
        centers = np.asarray(model.cluster_centers_, dtype=np.float64)
        cosine = getattr(model, "distortion", None) == "cosine"
        width = centers.shape[1]
        coordinates = SphereCoordinates(width) if cosine else Coordinates.identity(width)
        # Blocks are arrays, without the names that scikit-learn would ask for.
        own = copy.copy(model)
        for name in ("feature_names_in_", "labels_"):
            vars(own).pop(name, None)
        return cls(coordinates, CenterState(coordinates.to_model(centers), -np.inf), own)

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return len(self.state.centers)

    @property
    def cosine(self) -> bool:
        """Whether distances are angles."""
        return isinstance(self.coordinates, SphereCoordinates)

    @property
    def euclidean(self) -> bool:
        """Whether distances are Euclidean, perhaps of features with scales and weights."""
        return isinstance(self.state.distortion, SquaredEuclidean | Euclidean) and not self.cosine

    @property
    def centers(self) -> FloatArray:
        """The centres, as `embedded` returns rows."""
        return self._weighted(self.state.centers)

    def embedded(self, rows: NDArray) -> FloatArray:
        """Return rows in float64 whose Euclidean distances are those of the model."""
        return self._weighted(self.coordinates.to_model(rows))

    def _weighted(self, z: FloatArray) -> FloatArray:
        weights = self.state.feature_weights
        return z if weights is None else z * np.sqrt(weights)

    def nearest(self, block: Block) -> tuple[NDArray[np.int32], FloatArray]:
        """Return the cluster of each row of a block, −1 for none, and its distance (squared)."""
        if self.model is None:
            return nearest_of(block, self.coordinates, self.state)
        labels = np.asarray(self.model.predict(block.rows), dtype=np.int32)
        apart = self.embedded(block.rows) - self.centers[labels]
        return labels, np.einsum("ij,ij->i", apart, apart)

    def to_centers(self, rows: NDArray) -> FloatArray:
        """Return the squared distances of some rows to all centres."""
        return squared_distances_of(Block(rows), self.coordinates, self.state)


def _leaves(model: Any) -> Any:
    """Return the estimator whose clusters are the leaves of a `ClusterTree`, or any other model."""
    return model.leaves_ if isinstance(model, ClusterTree) else model


def complete(clusters: Clusters) -> Clusters:
    """Raise ValueError if the model allows missing values, for which pairs have no distance."""
    if clusters.state.partial or clusters.state.gaps:
        raise ValueError(
            "Distances between rows need complete rows: fit with missing='error' and "
            "empty_rows='error'."
        )
    return clusters


def table_of(model: Any, X: Any) -> Any:
    """Return a table with the features of a model, as `read_table` does."""
    model = _leaves(model)
    return read_table(model, by_name(model, X), reset=False)


def passes_over(model: Any, X: Any, sparse: bool = False) -> Passes:
    """Return passes over a table whose blocks have known numbers of rows.

    SparseRowsError is raised for sparse rows, unless they are allowed.
    """
    passes = weighted_passes(table_of(model, X), None)
    if passes.blocks.layout.sparse and not sparse:
        raise SparseRowsError(
            "X is sparse, which only representatives takes. Give dense rows: cluster those of "
            "sklearn.decomposition.TruncatedSVD."
        )
    passes.count_rows()
    return passes


def checked_ids(ids: Any, n_rows: int) -> NDArray | None:
    """Return one id per row as an array in memory (or mapped into it); None for row numbers."""
    if ids is None:
        return None
    ids = in_memory(ids)
    if ids.shape != (n_rows,):
        raise ValueError(f"ids must have shape ({n_rows},), got {ids.shape}.")
    return ids


def named(ids: NDArray | None, numbers: NDArray[np.int64]) -> NDArray:
    """Return the ids of rows, given their numbers."""
    return numbers if ids is None else ids[numbers]


def labelled_blocks(
    passes: Passes, clusters: Clusters
) -> Iterator[tuple[int, NDArray, NDArray[np.int32]]]:
    """Yield, for each block in order, the number of its first row, its rows and their labels.

    The active scheduler loads and labels them, a few at a time.
    """
    layout = passes.blocks.layout
    calls = list(zip(passes.blocks.parts, positions(layout), strict=True))
    block_bytes = max(layout.rows or (1,)) * layout.bytes_per_row
    step = max(min(_TOGETHER_BYTES // max(block_bytes, 1), BLOCKS_TOGETHER), threads_here())
    passes.add(1)
    shared = dask.delayed(clusters, pure=False, traverse=False)
    task = dask.delayed(_labelled, pure=False, traverse=False)
    for first in range(0, len(calls), step):
        some = calls[first : first + step]
        with one_blas_thread():
            if layout.lazy:
                found = computed(*(task(part, place, shared) for part, place in some))
            else:
                here = [functools.partial(_labelled, *call, clusters) for call in some]
                found = tuple(run_on_threads(here))
        for (_, place), (rows, labels) in zip(some, found, strict=True):
            yield place.start, rows, labels


def _labelled(
    rows: Any, position: Position, clusters: Clusters
) -> tuple[NDArray, NDArray[np.int32]]:
    rows = checked_rows(rows, position)
    return rows, clusters.nearest(Block(rows, position=position))[0]
