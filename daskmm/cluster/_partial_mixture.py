"""``partial_fit`` of mixtures: one pass over new rows per call."""

from __future__ import annotations

from typing import Any, TypeVar

from sklearn.base import BaseEstimator

from daskmm.cluster._fitting import drop_labels, replace_fitted, set_fitted, unfitted
from daskmm.cluster._partial_fit import half_life
from daskmm.data.input import read_weighted
from daskmm.data.names import features_named
from daskmm.engine.passes import weighted_passes
from daskmm.engine.threads import one_blas_thread
from daskmm.mixture.em import MixtureState
from daskmm.mixture.incremental import EMRecord, after_records, record_of
from daskmm.mm.keyed_records import KeyedRecords

M = TypeVar("M", bound=BaseEstimator)


def attributes_of_components(state: MixtureState) -> dict[str, Any]:
    """Return the fitted attributes of the components themselves."""
    tails = {} if state.degrees is None else {"degrees_of_freedom_": state.degrees}
    return {
        "weights_": state.shares,
        "means_": state.means,
        "covariances_": state.covariances,
        "precisions_cholesky_": state.factors,
        **tails,
    }


def updated_mixture(estimator: M, X: Any, sample_weight: Any, key: str | None) -> M:
    """Return a copy of a mixture, updated with rows or, if it is not fitted, fitted to them.

    Arguments are those of `GaussianMixture.partial_fit`.
    """
    model: Any = unfitted(estimator)
    fading = half_life(model.forget)
    if "means_" not in vars(estimator):
        model.fit(X, None, sample_weight)
        set_fitted(model, {"updates_": _records_of_fit(model, key)})
        return model
    replace_fitted(model, estimator)
    state = model._components()
    records: KeyedRecords[EMRecord] | None = vars(model).get("updates_")
    if records is None:
        records = _records_of_fit(model, None)
    passes = weighted_passes(*read_weighted(model, X, sample_weight, reset=False))
    with one_blas_thread(), features_named(model):
        record = record_of(passes, state)
        again = key is not None and key in records.keyed
        factor = 1.0 if fading is None or again else fading(record.weight)
        records = records.after(record, key, factor)
        state = after_records(records, state, model.reg_covar)
    total = records.total
    found = {
        **attributes_of_components(state),
        "updates_": records,
        "cluster_sizes_": total.sums.weights,
        "lower_bound_": total.sums.log_likelihood / total.weight,
        "n_samples_seen_": total.n_rows,
        "n_iter_": model.n_iter_ + 1,
        "n_passes_": model.n_passes_ + passes.n_passes,
    }
    set_fitted(model, found)
    drop_labels(model)
    return model


def _records_of_fit(model: Any, key: str | None) -> KeyedRecords[EMRecord]:
    """Return records with a single entry, for the rows of a mixture's fit."""
    fit = model.n_samples_seen_, model.lower_bound_, model.reg_covar
    # The means, covariances and shares come from one step; `cluster_sizes_` come from the next one.
    sizes = model.weights_ * model.cluster_sizes_.sum()
    record = EMRecord.of_fit(model._components(), sizes, fit)
    none: KeyedRecords[EMRecord] = KeyedRecords()
    return none.after(record, key)
