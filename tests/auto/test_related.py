"""Of wide sparse rows, EWP weighs features that other features predict."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from daskmm import EntropyPowerKMeans
from daskmm.auto.related import without_unrelated
from daskmm.engine.first_pass import first_pass
from daskmm.engine.moments import Sample
from daskmm.engine.passes import weighted_passes
from daskmm.metrics import adjusted_rand_score
from daskmm.numerics.sparse_rows import canonical, dense, fit_dense, zeroed


def cells(n_cells=4000, n_genes=3000):
    """Logarithms of counts of four types with 12 genes of their own, and what they are."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(4, size=n_cells)
    rates = rng.gamma(0.5, 0.1, (1, n_genes)).repeat(4, axis=0)
    telling = rng.choice(n_genes, 48, replace=False)
    rates[:, telling] = 0.05
    rates[np.arange(48) % 4, telling] = 0.5
    return csr_array(np.log1p(rng.poisson(rates[kinds]))), kinds, telling


def surveyed(X, n_clusters, wanted=4000):
    return first_pass(weighted_passes(canonical(X), None), n_clusters, True, 0, wanted=wanted)


@pytest.fixture(scope="module")
def few():
    return cells()


@pytest.mark.parametrize("larger", [False, True])
@pytest.mark.long
def test_features_that_others_predict_are_kept(few, larger):
    X, kinds, telling = few
    survey = surveyed(X, 4, wanted=1500 if larger else 4000)
    if larger:
        survey = replace(survey, larger_sample=Sample(canonical(X), np.ones(len(kinds))))
    stored = survey.sample.rows.copy()
    left = without_unrelated(survey, 4, 0)
    assert left.varying[telling].mean() > 0.9
    assert np.count_nonzero(left.varying) < 60
    assert left.spread == left.variance.sum()
    for sample in filter(None, (left.sample, left.larger_sample)):
        assert set(sample.rows.indices) <= set(np.flatnonzero(left.varying))
    kept = np.flatnonzero(left.varying)
    np.testing.assert_array_equal(left.sample.rows[:, kept].toarray(), stored[:, kept].toarray())
    np.testing.assert_array_equal(survey.sample.rows.toarray(), stored.toarray())


@pytest.mark.long
def test_noise_and_rows_that_fit_dense_are_left_as_they_are(few):
    X, *_ = few
    noise = csr_array(random_array((4000, 3000), density=0.03, rng=np.random.default_rng(0)))
    survey = surveyed(noise, 4)
    assert not fit_dense(survey.sample.rows)
    assert without_unrelated(survey, 4, 0) is survey
    # Rows that would be few numbers if they were dense, and dense ones.
    small = surveyed(X[:500], 4)
    assert fit_dense(small.sample.rows)
    assert without_unrelated(small, 4, 0) is small
    sample = replace(survey.sample, rows=dense(survey.sample.rows))
    of_dense = replace(survey, sample=sample)
    assert without_unrelated(of_dense, 4, 0) is of_dense
    # More clusters than features could tell apart.
    assert without_unrelated(survey, 1000, 0) is survey


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.long
def test_genes_that_tell_cell_types_apart_are_found(few, lazy):
    X, kinds, telling = few
    rows = da.from_array(X, chunks=(1500, -1), asarray=False) if lazy else X
    model = EntropyPowerKMeans(4, n_init=2, random_state=0).fit(rows)
    assert adjusted_rand_score(kinds, model.labels_) > 0.8
    assert np.isin(np.argsort(-model.feature_weights_)[:40], telling).mean() > 0.95


def test_values_of_left_out_features_are_no_longer_stored():
    X = random_array((30, 20), density=0.3, format="csr", rng=np.random.default_rng(0))
    rows, left_out = canonical(csr_array(X)), np.arange(20) % 3 == 0
    left = zeroed(rows, left_out)
    np.testing.assert_array_equal(left.toarray(), np.where(left_out, 0.0, rows.toarray()))
    assert left.nnz < rows.nnz
    assert not zeroed(rows, np.ones(20, bool)).nnz
