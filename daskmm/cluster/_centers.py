"""Rows served by the nearest of a model's centres."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from daskmm.assignment import distances_of, labels_of, map_rows
from daskmm.blocks import float_dtype
from daskmm.cluster._clusterer import MMClusterer
from daskmm.cluster._input import read_table
from daskmm.numerics.distortions import Distortion
from daskmm.numerics.divergences import SQUARED_EUCLIDEAN
from daskmm.numerics.rows import Coordinates, WhitenedCoordinates
from daskmm.stats import CenterState


class NearestCenter(ClassNamePrefixFeaturesOutMixin, TransformerMixin, MMClusterer):
    """Base of the estimators whose clusters have centres in the space of the rows."""

    cluster_centers_: NDArray[np.float64]
    mean_: NDArray[np.float64]
    scale_: NDArray[np.float64]

    def _fitted_state(self) -> tuple[Coordinates | WhitenedCoordinates, CenterState]:
        """What assignment needs, from public attributes alone."""
        check_is_fitted(self, "cluster_centers_")
        coordinates = self._fitted_coordinates()
        weights = getattr(self, "feature_weights_", None)
        centers = coordinates.to_model(self.cluster_centers_)
        metric = self._fitted_distortion(centers)
        return coordinates, CenterState(centers, -np.inf, weights, *metric)

    def _fitted_coordinates(self) -> Coordinates | WhitenedCoordinates:
        precision = getattr(self, "precision_", None)
        if precision is None:
            return Coordinates(self.mean_, self.scale_)
        return WhitenedCoordinates.of(self.mean_, precision)

    def _fitted_distortion(self, centers: NDArray[np.float64]) -> tuple[Distortion, bool]:
        """The distortion, and whether values may be missing; k-means' unless overridden."""
        return SQUARED_EUCLIDEAN, False

    def predict(self, X: Any) -> Any:
        """Index of the nearest centre, in the model's distance.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)

        Returns
        -------
        ndarray or dask Array of int32, of shape (n_samples,)
            Lazy for dask and zarr input.
        """
        state = self._fitted_state()
        return map_rows(labels_of, read_table(self, X, reset=False), *state)

    def transform(self, X: Any) -> Any:
        """Distances to the centres in the model's scale: unsquared ones, or divergences.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)

        Returns
        -------
        ndarray or dask Array of shape (n_samples, number of centres)
            float32 for float32, float16 and integers of 8 or 16 bits, float64 otherwise; lazy
            for dask and zarr input.
        """
        state = self._fitted_state()
        table = read_table(self, X, reset=False)
        columns, dtype = len(self.cluster_centers_), float_dtype(table.dtype)
        return map_rows(distances_of, table, *state, columns=columns, dtype=dtype)
