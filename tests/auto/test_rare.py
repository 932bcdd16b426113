"""Features of few rows get no weight where λ is chosen, in sparse rows as in dense ones."""

import dask.array as da
import numpy as np
import pytest
from scipy.sparse import csr_array

from daskmm import EntropyPowerKMeans
from daskmm.auto.rare import LEAST_SHARE, _uncommon, without_rare
from daskmm.engine.first_pass import first_pass
from daskmm.engine.passes import weighted_passes
from daskmm.metrics import adjusted_rand_score
from daskmm.numerics.sparse_rows import canonical


def cells(n_cells, n_genes, seed=0):
    """Counts of six types, each with ten genes of its own, as logarithms; types and genes."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(6, size=n_cells)
    rates = np.tile(rng.gamma(0.5, 0.1, n_genes), (6, 1))
    telling = rng.choice(n_genes, 60, replace=False)
    rates[:, telling] = 0.05
    rates[np.arange(60) % 6, telling] = 1.5
    depth = rng.lognormal(0, 0.3, n_cells)
    return np.log1p(rng.poisson(rates[kinds] * depth[:, None])), kinds, telling


def naive_shares(rows, weights):
    """Share of the weight whose value is not the one that most rows have."""
    shares = []
    for column in rows.T:
        values, counts = np.unique(column, return_counts=True)
        shares.append(weights[column != values[counts.argmax()]].sum() / weights.sum())
    return np.array(shares)


def test_shares_of_rows_beside_the_commonest_value_equal_the_naive_ones():
    rng = np.random.default_rng(0)
    rows = rng.integers(1, 4, (60, 30)) * (rng.uniform(size=(60, 30)) < rng.uniform(0, 0.45, 30))
    weights = rng.uniform(0.5, 2, 60)
    expected = naive_shares(rows, weights)
    np.testing.assert_allclose(_uncommon(rows.astype(float), weights), expected)
    np.testing.assert_allclose(_uncommon(canonical(csr_array(rows * 1.0)), weights), expected)
    # The commonest value need not be 0.
    np.testing.assert_allclose(_uncommon(rows + 7.0, weights), expected)
    shifted = canonical(csr_array(rows + 7.0 * (np.arange(30) % 2)))
    np.testing.assert_allclose(_uncommon(shifted, weights), expected)


@pytest.mark.parametrize("sparse", [False, True])
def test_rare_features_are_taken_for_constant(sparse):
    X, _, telling = cells(500, 100)
    blocks = csr_array(X) if sparse else X
    survey = first_pass(weighted_passes(canonical(blocks) if sparse else X, None), 6, True, 0)
    left = without_rare(survey, 6)
    rare = (X > 0).mean(axis=0) < LEAST_SHARE / 6
    assert 10 < rare.sum() < 40
    assert not rare[telling].any()
    np.testing.assert_array_equal(left.varying, survey.varying & ~rare)
    np.testing.assert_array_equal(left.variance[~rare], survey.variance[~rare])
    rows = left.sample.rows.toarray() if sparse else left.sample.rows
    assert not rows[:, rare].any()
    assert survey.sample.rows is not left.sample.rows
    # All alike: nothing could be told apart otherwise.
    assert without_rare(left, 6) is left
    flags = first_pass(weighted_passes(np.eye(500, 3), None), 2, True, 0)
    assert without_rare(flags, 2) is flags


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.long
def test_cell_types_are_found_beside_rare_genes(lazy):
    X, kinds, telling = cells(2000, 600)
    X = csr_array(X)
    rows = da.from_array(X, chunks=(700, -1), asarray=False) if lazy else X
    model = EntropyPowerKMeans(6, random_state=0).fit(rows)
    assert adjusted_rand_score(kinds, model.labels_) > 0.97
    heaviest = np.argsort(-model.feature_weights_)[:60]
    assert np.isin(heaviest, telling).mean() > 0.95
    rare = np.diff(X.tocsc().indptr) / 2000 < LEAST_SHARE / 6
    assert rare.sum() > 50
    assert not model.feature_weights_[rare].any()


def test_a_given_penalty_weighs_all_features():
    X, _, _ = cells(500, 100)
    model = EntropyPowerKMeans(6, lam="0.5*variance", n_init=1, random_state=0).fit(X)
    assert (model.feature_weights_[X.any(axis=0)] > 0).all()
