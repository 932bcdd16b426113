"""Updates of fitted models: one pass over new rows per call of ``partial_fit``."""

from __future__ import annotations

import re
from dataclasses import replace
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from daskmm.cluster._fitted_centers import (
    FittedCenters,
    attributes_of_clusters,
    attributes_of_sample,
)
from daskmm.cluster._fitting import drop_labels, replace_fitted, set_fitted, unfitted
from daskmm.cluster._naming import value_shares
from daskmm.data.blocks import Block
from daskmm.data.names import features_named
from daskmm.engine.passes import Passes
from daskmm.engine.threads import one_blas_thread
from daskmm.kmeans.belonging import ValueSums, value_sums
from daskmm.kmeans.incremental import Fading, Updates, record_of_fit, updated
from daskmm.kmeans.renewal import Reservoir, capacity
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import Update
from daskmm.numerics.rows import Coordinates, FeatureCoordinates, centers_in_model

FloatArray = NDArray[np.float64]
M = TypeVar("M", bound=BaseEstimator)

_HALF_LIFE = re.compile(r"\s*([0-9.e+]+)\s*(rows?|calls?)\s*")


def updated_model(
    estimator: M,
    X: Any,
    sample_weight: Any,
    key: str | None,
    feature_dim: str | None,
    unknown: str | None,
) -> M:
    """Return a copy of an estimator, updated with rows or, if it is not fitted, fitted to them.

    Arguments are those of `CenterClusterer.partial_fit`.
    """
    model: Any = unfitted(estimator)
    fading = half_life(model.forget)
    is_new = "cluster_centers_" not in vars(estimator)
    if is_new:
        if unknown is not None:
            raise ValueError("unknown cannot be given in the first call, which is a fit.")
        model.fit(X, None, sample_weight, feature_dim)
    else:
        replace_fitted(model, estimator)
    model.__dict__.pop("offsets_", None)  # updates do not bound sizes
    fitted = FittedCenters.of(model, unknown)
    coordinates, state = fitted.coordinates, fitted.state
    update = model._later_update(state)
    # After a first fit, the update visits the rows of the fit, so the records begin empty.
    updates = _no_updates(model, state) if is_new else _updates(model, coordinates, state, update)
    if updates.has_gaps:
        state = replace(state, partial=True)
        update = model._later_update(state)
    passes = fitted.passes(X, sample_weight, feature_dim)
    with one_blas_thread(), features_named(model):
        update = replace(update, trim=float(model.trim))
        updates, after = updated(updates, passes, coordinates, state, update, key, fading)
    total = updates.total
    sizes = total.weights
    if updates.s > -np.inf:  # soft weights of a row do not add up to its sample weight
        sizes = sizes * (total.weight / sizes.sum())
    found = attributes_of_clusters(coordinates, after, after, total.weights, total.masses)
    if state.counts_values_apart:
        found["value_shares_"] = _counted_shares(model, updates, passes, coordinates, state, after)
    found |= {
        "updates_": updates,
        "cluster_sizes_": sizes,
        "inertia_": max(total.cost(after), 0.0),
        "n_samples_seen_": total.n_rows,
        "n_iter_": model.n_iter_ + 1,
        "n_passes_": model.n_passes_ + passes.n_passes,
    }
    if updates.samples_all:
        found.update(attributes_of_sample(updates.reservoir.sample, coordinates, after))
    set_fitted(model, found)
    drop_labels(model)
    return model


def _counted_shares(
    model: Any,
    updates: Updates,
    passes: Passes,
    coordinates: FeatureCoordinates,
    before: CenterState,
    after: CenterState,
) -> FloatArray:
    """Return the shares of each cluster's rows that have a value, if sums of steps do not say them.

    They are those of the sample or, if it lacks the rows of a fit, those of the model with the rows
    of this call.
    """
    if updates.samples_fit:
        sample = updates.reservoir.sample
        same = Coordinates.identity(sample.rows.shape[1])
        return value_sums(Block(sample.rows, sample.weights), same, after).shares
    new: ValueSums = passes.reduce(value_sums, coordinates, before)
    sizes = model.cluster_sizes_
    earlier = ValueSums(sizes, sizes[:, None] * np.nan_to_num(model.value_shares_))
    left = max(updates.total.weight - new.sizes.sum(), 0.0) / sizes.sum()
    return (earlier.times(left) + new).shares


def _no_updates(model: Any, state: CenterState) -> Updates:
    """Return empty records with the power and the distortion of the fitted model."""
    sample = Reservoir.empty(capacity(*state.centers.shape), state.centers.shape[1])
    return Updates(
        -np.inf if model.polish else model.s_,
        state.distortion,
        sample,
        # Given centres say where the clusters are, so no others are looked for.
        searches=model.polish and isinstance(model.init, str),
    )


def _updates(
    model: Any, coordinates: FeatureCoordinates, state: CenterState, update: Update
) -> Updates:
    """Return the records of the rows seen so far; after a fit, compute one from its model."""
    if "updates_" in vars(model):
        known: Updates = model.updates_
        return known
    sizes, n_rows, means = model.cluster_sizes_, model.n_samples_seen_, state.centers
    weight, cost = float(sizes.sum()), model.inertia_
    if "_soft_means" in vars(model):  # the last step was soft, and the centres are its means
        sizes, cost = (weight * mean for mean in model._soft_means)
    elif "cluster_means_" in vars(model):
        own = centers_in_model(coordinates, model.cluster_means_)
        means = np.where(np.isnan(own), means, own)
    shares = value_shares(model)
    record = record_of_fit(state, means, sizes, shares, cost, update, n_rows, weight)
    # The model keeps no rows of its fit.
    return replace(_no_updates(model, state).after(record, None), unsampled=weight)


def name_of_call(key: str | int | None) -> str | None:
    """Return the key of a call in the form that records use."""
    if key is not None and not isinstance(key, str | Integral):
        raise TypeError(f"key must be a string or an integer, got {key!r}.")
    return None if key is None else str(key)


def half_life(forget: float | str | None) -> Fading | None:
    """Return how earlier rows fade, given their half-life; raise ValueError if it is none."""
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
