"""The clusters of a fitted model with centres, in the form that block functions need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from daskmm.auto.lam import feature_gains
from daskmm.cluster._mixed import coded
from daskmm.cluster._output import distances_of_table, labels_of_table, values_of_table
from daskmm.data.blocks import Block
from daskmm.data.input import by_name, read_table, read_weighted
from daskmm.data.mixed import Coding
from daskmm.data.rasters import grid_of, pixels_of
from daskmm.engine.frames import NAME
from daskmm.engine.moments import Sample
from daskmm.engine.passes import Passes, weighted_passes
from daskmm.kmeans.assignment import labels_of, unsquared_distances_of
from daskmm.kmeans.belonging import DistanceProfile
from daskmm.kmeans.between_rows import distances_between
from daskmm.kmeans.sums import CenterState
from daskmm.numerics.columns import MixedCoordinates
from daskmm.numerics.distortions import DISTORTIONS
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN, Metric
from daskmm.numerics.rows import (
    Coordinates,
    FeatureCoordinates,
    SphereCoordinates,
    WhitenedCoordinates,
    centers_in_model,
)

FloatArray = NDArray[np.float64]
BlockFunction = Callable[..., NDArray]

# Relative error of sums of weights, and of sums whose terms cancel.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class FittedCenters:
    """The clusters of a fitted model, computed from its public attributes only.

    It assigns rows to the centres and measures their distances, for the methods of models.
    """

    model: BaseEstimator
    coordinates: FeatureCoordinates
    state: CenterState  # centres and feature weights in these coordinates, and the distortion
    coding: Coding | None = None  # how mixed columns are coded; None for a table of numbers
    feature_dim: str | None = None  # dimension of the features of a raster; None for other tables

    @classmethod
    def of(cls, model: BaseEstimator, unknown: str | None = None) -> Self:
        """Return the clusters of a fitted model, as they are at the time of the call.

        `unknown` says whether levels of mixed columns that the fit did not see raise an error
        ("error") or are taken as missing values ("missing"); None follows the model's parameters.
        """
        values = vars(model)  # a fit replaces this dictionary and does not change it
        check_is_fitted(model, "cluster_centers_")
        coordinates = _coordinates(values)
        centers = centers_in_model(coordinates, values["cluster_centers_"])
        weights = values.get("feature_weights_")
        if isinstance(coordinates, MixedCoordinates) and weights is not None:
            weights = weights[coordinates.expansion.groups]
        distortion = _distortion(values, centers)
        partial = values.get("missing") == "partial" or unknown == "missing"
        gaps = values.get("empty_rows") == "label"
        offsets = values.get("offsets_")
        state = CenterState(
            centers, -np.inf, weights, distortion, partial, gaps=gaps, offsets=offsets
        )
        return cls(model, coordinates, state, _coding(values, unknown), values.get("feature_dim_"))

    @property
    def lenient(self) -> Self:
        """The same clusters; if values may be missing, rows without any value belong to none."""
        gaps = self.state.gaps or self.state.partial
        return replace(self, state=replace(self.state, gaps=gaps))

    @property
    def _skipped(self) -> type[Distortion] | None:
        """The distortion by which empty rows get no weight; None if empty rows are an error."""
        return type(self.state.distortion) if self.state.gaps else None

    def at(self, centers: FloatArray) -> CenterState:
        """Return the state of other centres, in the model's coordinates."""
        return replace(self.state, centers=centers)

    def table(self, X: Any, feature_dim: str | None = None) -> Any:
        """Return `X` as a table of numbers, or as a Raster, with the features of the fit."""
        if self.coding is not None:
            return coded(X, self.coding)
        return pixels_of(X, feature_dim, self.feature_dim)

    def passes(self, X: Any, sample_weight: Any, feature_dim: str | None) -> Passes:
        """Return passes over a table with the features of the fit."""
        X = self.table(X, feature_dim)
        table, weights = read_weighted(self.model, X, sample_weight, reset=False)
        return weighted_passes(table, weights, grid_of(X), self._skipped)

    def labels(
        self, X: Any, feature_dim: str | None, function: BlockFunction = labels_of, *others: Any
    ) -> Any:
        """Return labels of rows by a block function with further arguments, in the form of `X`."""
        shared = (self.coordinates, self.state, *others)
        return labels_of_table(self.model, self.table(X, feature_dim), function, *shared)

    def values(
        self,
        X: Any,
        feature_dim: str | None,
        function: BlockFunction,
        *others: Any,
        name: str,
        columns: int | None = None,
    ) -> Any:
        """Return float64 values of rows by a block function with further arguments."""
        shared = (self.coordinates, self.state, *others)
        X = self.table(X, feature_dim)
        return values_of_table(self.model, X, function, *shared, name=name, columns=columns)

    def distances(self, X: Any, feature_dim: str | None) -> Any:
        """Return the distances of rows to the centres in the form that `set_output` asks for."""
        X = self.table(X, feature_dim)
        return distances_of_table(self.model, X, self.coordinates, self.state)

    def unsquared_distances(self, X: Any) -> Any:
        """Return the unsquared distances of rows to the centres, for silhouettes."""
        k = len(self.state.centers)
        return self.values(X, None, unsquared_distances_of, name=NAME, columns=k)

    def between(self, rows: Any) -> tuple[NDArray[np.int32], Callable[[slice], FloatArray]]:
        """Return labels of rows in memory, and a function for the distances between the rows.

        Rows that have no label are left out.
        """
        table: Any = read_table(self.model, by_name(self.model, self.table(rows)), reset=False)
        labels = labels_of(Block(table), self.coordinates, self.state)
        kept = labels >= 0
        return labels[kept], distances_between(table[kept], self.coordinates, self.state)


def _coordinates(values: Mapping[str, Any]) -> FeatureCoordinates:
    """Return the coordinates of a model, given its attributes."""
    if values.get("distortion") == "cosine":
        return SphereCoordinates(values["cluster_centers_"].shape[1])
    if "coordinates_" in values:
        mixed: MixedCoordinates = values["coordinates_"]
        return mixed
    if "precision_" in values:
        return WhitenedCoordinates.of(values["mean_"], values["precision_"])
    return Coordinates(values["mean_"], values["scale_"])


def _distortion(values: Mapping[str, Any], centers: FloatArray) -> Distortion:
    """Return the distortion of a model with these centres, in the model's coordinates."""
    if "distortion_" in values:
        mixed: Distortion = values["distortion_"]
        return mixed
    if "distortion" not in values:
        return SQUARED_EUCLIDEAN
    return DISTORTIONS[values["distortion"]].around(centers.mean(axis=0), centers.var(axis=0))


def _coding(values: Mapping[str, Any], unknown: str | None) -> Coding | None:
    """Return how mixed columns are coded; None if the model has none."""
    if unknown not in (None, "error", "missing"):
        raise ValueError(f"unknown must be 'error' or 'missing', got {unknown!r}.")
    if "columns_" not in values:
        if unknown is not None:
            raise ValueError("unknown needs a model that was fitted with distortion='mixed'.")
        return None
    given = values.get("metric_params") or {}
    return Coding(values["columns_"], unknown or given.get("unknown", "error"))


def attributes_of_sample(
    sample: Sample, coordinates: FeatureCoordinates, state: CenterState
) -> dict[str, Any]:
    """Return the fitted attributes that a sample of the rows determines."""
    profile, groups = DistanceProfile.of(sample, state), None
    found: dict[str, Any] = {
        "typical_distances_": profile.typical,
        "relative_distances_": profile.relative,
        "membership_power_": profile.power,
    }
    if isinstance(coordinates, MixedCoordinates):
        groups = coordinates.expansion.groups
    if state.feature_weights is not None:
        metric = Metric(state.distortion, groups)
        found["feature_gains_"] = feature_gains(sample, state, metric)
    return found


def attributes_of_clusters(
    coordinates: FeatureCoordinates,
    state: CenterState,
    means: CenterState,
    weights: FloatArray,
    value_weights: FloatArray | None,
) -> dict[str, Any]:
    """Return the fitted centres, feature weights (one per mixed column) and means of clusters.

    `means` has the means of each cluster's rows as centres. The sample weights of these rows sum to
    `weights`, and those of the rows that have a value to `value_weights`. There are no means for
    distances whose centres are medians.
    """
    found: dict[str, Any] = {"cluster_centers_": coordinates.to_input(state.centers)}
    own = state.feature_weights
    if own is not None and isinstance(coordinates, MixedCoordinates):
        own = own[coordinates.expansion.starts]
    if own is not None:
        found["feature_weights_"] = own
    if means.distortion.degree != 1:
        # The centre of a cluster without rows may have been moved.
        of_rows = coordinates.to_input(means.centers)
        # Rounding may give zeros another mean than 0, and names and tables would show it. The error
        # grows with the origin of the coordinates and with the usual size of means. The latter is
        # their median, since one cluster may be far away.
        origin = np.abs(coordinates.to_input(np.zeros((1, means.centers.shape[1]))))
        usual = np.sort(np.abs(of_rows), axis=0)[(len(of_rows) - 1) // 2]
        least = _ROUNDING * (origin + usual)
        of_rows = np.where(np.abs(of_rows) <= least, 0.0, of_rows)
        found["cluster_means_"] = np.where(weights[:, None] > 0, of_rows, np.nan)
        mixed = coordinates if isinstance(coordinates, MixedCoordinates) else None
        if value_weights is not None and (mixed is not None or means.partial):
            held = np.broadcast_to(value_weights, of_rows.shape)
            if mixed is not None:
                held = np.take(held, mixed.expansion.starts, axis=1)
            unknown = np.full(held.shape, np.nan)
            shares = np.divide(held, weights[:, None], out=unknown, where=weights[:, None] > 0)
            found["value_shares_"] = np.where(shares > 1.0 - _ROUNDING, 1.0, shares)
    return found
