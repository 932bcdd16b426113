"""Fits that go on: ``partial_fit``, one pass over new rows per call."""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.cluster._belonging import OF_THE_PROFILE
from daskmm.cluster._estimator import lock_of
from daskmm.cluster._naming import means_of_rows
from daskmm.cluster._parameters import Constraints
from daskmm.cluster._sklearn import Interval
from daskmm.data.names import features_named
from daskmm.data.sparse import is_sparse
from daskmm.engine.moments import Sample
from daskmm.engine.passes import Passes, one_blas_thread
from daskmm.kmeans.belonging import profile_of_sample, shares_with_value
from daskmm.kmeans.incremental import Fading, Updates, record_of_fit, updated
from daskmm.kmeans.renewal import Reservoir, capacity
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import PowerUpdate, Update
from daskmm.numerics.columns import MixedCoordinates
from daskmm.numerics.rows import FeatureCoordinates

_HALF_LIFE = re.compile(r"\s*([0-9.e+]+)\s*(rows?|calls?)\s*")


class PartialFit:
    """Mixin of the estimators whose clusters are centres: records of rows that were seen."""

    _forgetting: ClassVar[Constraints] = {
        "forget": [None, str, Interval(Real, 0, None, closed="neither")],
    }

    forget: float | str | None
    distortion: str
    init: Any
    polish: bool
    trim: float
    s_: float
    inertia_: float
    n_iter_: int
    n_passes_: int
    n_samples_seen_: int
    cluster_sizes_: NDArray[np.float64]
    cluster_centers_: NDArray[np.float64]
    updates_: Updates

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        key: str | int | None = None,
        feature_dim: str | None = None,
        unknown: str | None = None,
    ) -> Self:
        """Update the clusters with new rows, in one pass over them.

        Incremental MM: the sums of each call are kept as the record of its rows, and centres and
        feature weights minimise the sum of the majorizing functions of all rows so far, each at
        the weight that it still has. There is no learning rate.

        The first call of an estimator that is not fitted is a fit to `X`, which decides what
        "auto" stands for, the scale of the features, λ and the number of clusters; later calls
        keep them. After `fit`, or of a loaded model, calls go on from there, with the rows of the
        fit as the first record. If the fit ended with Lloyd steps (`polish`), calls take hard
        steps too; otherwise steps at the power with which it ended.

        A sample of all rows (200 per cluster, from 2,000 to 10,000) is kept, and saved with the
        model. Memberships and outliers are measured by it, after a fit once it is half full. Unless
        `init` is an array of centres, fresh starts on the sample compete with the present clusters
        whenever new rows make up three tenths of all, or a tenth if they cost a quarter more than
        all do; if they win, the records are divided among the new ones as the sample is.

        With a half-life (`forget`), a second set of records fades four times as fast. If new rows
        cost less at its centres, before either has seen them, it takes the place of the first: a
        mixture that jumps is followed, and one that stands still keeps the longer memory.

        With `trim`, hard steps leave out that share of the rows of each call, in three more passes
        over them.

        Of ``distortion="mixed"`` columns, levels and their scale are those of the first call or the
        fit; a level that comes later is as in `predict`.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows that arrived.
        y : ignored
            Present for scikit-learn's interface.
        sample_weight : array-like or dask Array of shape (n_samples,), optional
            Sample weights, not negative; all 1 by default.
        key : str or int, optional
            Name of these rows, such as a date or a path. A call with a key that was used before
            replaces the record of that call, so its rows are not counted twice; visiting all keys
            again and again converges to a fit to all of the rows, whatever their order. Before
            that the order counts, since each record is made at the centres of its call. With a
            half-life, a known key makes nothing fade: its rows have the weight that the replaced
            ones had faded to. So a call can be repeated, and rows of another day want another key.
        feature_dim : str, optional
            Of an xarray DataArray or Dataset, as in `fit`; by default that of the fit.
        unknown : {"error", "missing"}, optional
            Whether levels of mixed columns that the fit did not see raise an error, or are missing
            values; by default as the fit says. Not for a first call, which is a fit.

        Returns
        -------
        self
            If the call fails or is killed, as it was before.

        Raises
        ------
        ValueError
            As `fit`.

        References
        ----------
        Mairal, "Incremental Majorization-Minimization Optimization with Application to
        Large-Scale Machine Learning", SIAM J. Optim. 25, 2015.
        """
        self._validate_params()  # type: ignore[attr-defined]
        if key is not None and not isinstance(key, str | Integral):
            raise TypeError(f"key must be a string or an integer, got {key!r}.")
        fading = half_life(self.forget)
        if is_sparse(X):
            raise TypeError("partial_fit takes dense rows, and X is sparse: fit to all rows.")
        with lock_of(self):
            model = self._with_unknown(unknown)
            self._become(model._updated(X, sample_weight, key, feature_dim, fading))
        return self

    def _updated(
        self,
        X: Any,
        sample_weight: Any,
        key: str | int | None,
        feature_dim: str | None,
        fading: Fading | None,
    ) -> Self:
        """Return a copy of this estimator that has seen the rows of `X` too."""
        model = self._unfitted()
        if not hasattr(self, "cluster_centers_"):
            model.fit(X, None, sample_weight, feature_dim)  # type: ignore[attr-defined]
            # What follows visits the same rows.
            updates = model._no_updates()
        else:
            model._become(self)
            updates = model._updates()
        coordinates, state = model._fitted_state()
        if updates.has_gaps:
            state = replace(state, partial=True)
        passes = model._fitted_passes(X, sample_weight, feature_dim)
        with one_blas_thread(), features_named(model):
            name = None if key is None else str(key)
            update = model._later_update(state)
            update = replace(update, trim=float(model.trim))  # type: ignore[type-var]
            updates, after = updated(updates, passes, coordinates, state, update, name, fading)
        fitted = vars(model)
        fitted.update(model._attributes_of(updates, after, coordinates))
        fitted["n_passes_"] += passes.n_passes
        if updates.samples_all:
            assert updates.reservoir is not None
            profile = profile_of_sample(updates.reservoir.sample, after)
            fitted.update(zip(OF_THE_PROFILE, profile, strict=True))
            fitted.update(found_in_columns(updates.reservoir.sample, coordinates, after))
        for of_the_fit in ("labels_", "_block_labels"):
            fitted.pop(of_the_fit, None)
        return model

    def _no_updates(self) -> Updates:
        """Records of no rows, at the power and in the distortion of the fitted model."""
        _, state = self._fitted_state()
        sample = Reservoir.empty(capacity(*state.centers.shape), state.centers.shape[1])
        return Updates(
            -np.inf if self.polish else self.s_,
            state.distortion,
            reservoir=sample,
            # Given centres say where clusters are to be.
            searches=self.polish and isinstance(self.init, str),
        )

    def _updates(self) -> Updates:
        """Records of the rows that were seen; for those of a fit, what the model tells of them."""
        if hasattr(self, "updates_"):
            return self.updates_
        _, state = self._fitted_state()
        record = record_of_fit(
            state,
            self.cluster_sizes_,
            self.inertia_,
            self._later_update(state),
            self.n_samples_seen_,
        )
        return self._no_updates().after(record, None)

    def _attributes_of(
        self, updates: Updates, state: CenterState, coordinates: FeatureCoordinates
    ) -> dict[str, Any]:
        """Fitted attributes that an update changes."""
        total = updates.total
        found: dict[str, Any] = {
            "updates_": updates,
            "cluster_centers_": coordinates.to_input(state.centers),
            "cluster_sizes_": total.weights,
            "inertia_": max(total.cost(state), 0.0),
            "n_samples_seen_": total.n_rows,
            "n_iter_": self.n_iter_ + 1,
            **means_of_rows(state, total.weights, coordinates),
        }
        if state.feature_weights is not None:
            found["feature_weights_"] = reported_weights(coordinates, state.feature_weights)
        return found

    @abstractmethod
    def _with_unknown(self, unknown: str | None) -> Self:
        """Copy for rows with levels that the fit did not see."""

    @abstractmethod
    def _unfitted(self) -> Self:
        """Copy with the same parameters and settings, and nothing of an earlier fit."""

    @abstractmethod
    def _become(self, model: Self) -> None:
        """Take the fitted attributes of another estimator in one step."""

    @abstractmethod
    def _fitted_passes(self, X: Any, sample_weight: Any, feature_dim: str | None) -> Passes:
        """Passes over a table of what the model was fitted to."""

    @abstractmethod
    def _fitted_state(self) -> tuple[FeatureCoordinates, CenterState]:
        """Coordinates and state of the fitted model."""

    def _later_update(self, state: CenterState) -> Update:
        """Update of the MM steps of a fitted model."""
        return PowerUpdate(state.distortion, state.partial)


def reported_weights(
    coordinates: FeatureCoordinates, feature_weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the weights of features as a fitted attribute: of mixed columns, one per column."""
    if isinstance(coordinates, MixedCoordinates):
        return feature_weights[coordinates.expansion.starts]
    return feature_weights


def found_in_columns(
    sample: Sample, coordinates: FeatureCoordinates, state: CenterState
) -> dict[str, Any]:
    """Return the fitted attribute of mixed columns that a sample of the rows determines."""
    if not isinstance(coordinates, MixedCoordinates):
        return {}
    starts = coordinates.expansion.starts
    return {"value_shares_": shares_with_value(sample, state, starts)}


def half_life(forget: float | str | None) -> Fading | None:
    """Return what the parameter `forget` stands for: how earlier rows fade in a call.

    Raises
    ------
    ValueError
        If a text is no half-life.
    """
    if forget is None:
        return None
    unit, amount = "rows", forget
    if isinstance(forget, str):
        found = _HALF_LIFE.fullmatch(forget)
        try:
            amount, unit = float(found[1]), found[2]  # type: ignore[index]
        except (TypeError, ValueError):
            amount = 0.0
    amount = float(amount)
    if not 0 < amount < np.inf:
        raise ValueError(
            f"forget={forget!r} is no half-life: give a number of rows, or a text such as "
            '"10 calls" or "100000 rows".'
        )
    if unit.startswith("call"):
        return lambda weight: 0.5 ** (1.0 / amount)
    return lambda weight: float(0.5 ** (weight / amount))
