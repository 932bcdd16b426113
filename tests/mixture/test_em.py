"""EM steps: equal to scikit-learn's, and independent of chunks, weights' form and the scheduler."""

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture as Peer

from daskmm import GaussianMixture
from daskmm.cluster._progress import progress_of
from daskmm.data.blocks import Block
from daskmm.mixture.em import (
    block_sums,
    labels_of,
    log_densities_of,
    responsibilities_of,
    sample_problem,
)
from daskmm.mixture.starts import labelled_components
from daskmm.numerics.gaussians import COVARIANCE_TYPES

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
K, P = 3, 4
PARTS = ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_")


def mixture_rows(n=300, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    turns = np.linalg.qr(rng.normal(size=(K, P, P)))[0]
    roots = turns * rng.uniform(0.5, 2.0, size=(K, 1, P))
    labels = rng.integers(K, size=n)
    means = 2.0 * rng.normal(size=(K, P))
    noise = np.einsum("npq,nq->np", roots[labels], rng.normal(size=(n, P)))
    return means[labels] + noise + offset


def given_start(X, kind):
    precision = np.linalg.inv(np.cov(X.T))
    precisions = {
        "full": np.stack([precision] * K),
        "tied": precision,
        "diag": np.stack([np.diag(precision)] * K),
        "spherical": np.full(K, precision[0, 0]),
    }[kind]
    return {
        "weights_init": np.full(K, 1 / K),
        "means_init": np.array([p.mean(axis=0) for p in np.array_split(X[X[:, 0].argsort()], K)]),
        "precisions_init": precisions,
    }


@pytest.mark.in_turn("steps")
@pytest.mark.parametrize("steps", [1, 10, 50])
@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_from_the_same_start_parameters_and_bounds_are_those_of_scikit_learn(kind, steps):
    X = mixture_rows()
    same = {"covariance_type": kind, "tol": 0.0, "max_iter": steps, **given_start(X, kind)}
    expected = Peer(K, **same).fit(X)
    for table in (X, da.from_array(X, chunks=((77, 1, 0, 222), 3))):
        found = GaussianMixture(K, **same).fit(table)
        for name in PARTS:
            np.testing.assert_allclose(
                getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-11, err_msg=name
            )
        # Steps end where the parameters stand still to the last bit.
        bounds = expected.lower_bounds_[: found.n_iter_]
        np.testing.assert_allclose(found.lower_bounds_, bounds, rtol=1e-9)
        assert found.lower_bound_ == pytest.approx(expected.lower_bound_, rel=1e-9)
        np.testing.assert_array_equal(np.asarray(found.labels_), expected.predict(X))
        assert found.n_iter_ <= steps


@given(
    st.integers(0, 10_000),
    st.sampled_from(COVARIANCE_TYPES),
    st.integers(1, 60),
    st.sampled_from([0.0, 1e5]),
)
@settings(max_examples=8, derandomize=True, database=None, deadline=None)
def test_the_likelihood_never_falls_and_chunks_change_nothing(seed, kind, chunk, offset):
    X = mixture_rows(120, seed, offset)
    weights = np.random.default_rng(seed).integers(0, 4, len(X)).astype(float)
    same = {"covariance_type": kind, "tol": 0.0, "max_iter": 8, "reg_covar": 1e-3}
    model = GaussianMixture(K, **same, **given_start(X, kind))
    model.fit(X, sample_weight=weights)
    assert (np.diff(model.lower_bounds_) >= -1e-9 * abs(model.lower_bounds_[-1])).all()
    lazy = GaussianMixture(K, **same, **given_start(X, kind))
    lazy.fit(da.from_array(X, chunks=(chunk, P)), sample_weight=da.from_array(weights, chunks=50))
    repeated = GaussianMixture(K, **same, **given_start(X, kind))
    repeated.fit(np.repeat(X, weights.astype(int), axis=0))
    for other in (lazy, repeated):
        np.testing.assert_allclose(other.means_, model.means_, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(other.covariances_, model.covariances_, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_schedulers_give_the_same_bits(scheduler):
    X = da.from_array(mixture_rows(), chunks=(70, P))
    model = GaussianMixture(K, random_state=0, max_iter=5, tol=0.0)
    expected = model.fit(X).means_
    with dask.config.set(scheduler=scheduler):
        np.testing.assert_array_equal(model.fit(X).means_, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_compiled_and_defining_results_agree(kind, dtype, monkeypatch):
    X = (10 * mixture_rows()).astype(dtype)
    rows = X.astype(float)
    labels = np.arange(len(X)) % K
    state = labelled_components(rows, np.ones(len(X)), labels, K, kind, 1e-3)
    block = Block(X, np.random.default_rng(0).uniform(0, 2, len(X)))

    def results():
        (sums,) = block_sums(block, (state,)).records
        return (
            sums.weights,
            sums.sums,
            sums.scatters,
            sums.log_likelihood,
            labels_of(block, state),
            log_densities_of(block, state),
            responsibilities_of(block, state),
        )

    compiled = results()
    monkeypatch.setattr("daskmm.mixture.em.library.available", lambda: False)
    for found, expected in zip(compiled, results(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("available", [True, False])
@pytest.mark.parametrize("function", [labels_of, log_densities_of, responsibilities_of])
def test_rows_without_a_density_are_named(function, available, monkeypatch):
    X = mixture_rows()
    state = labelled_components(X, np.ones(len(X)), np.arange(len(X)) % K, K, "full", 1e-3)
    if not available:
        monkeypatch.setattr("daskmm.mixture.em.library.available", lambda: False)
    X[7, 1] = np.nan
    with pytest.raises(ValueError, match="row 7"):
        function(Block(X), state)
    X[7, 1] = 1e200
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="so far from all components"):
        function(Block(X), state)


def test_a_step_to_a_singular_covariance_ends_the_run_at_the_state_before():
    X = np.repeat(mixture_rows(3), 50, axis=0)
    state = labelled_components(X, np.ones(150), np.arange(150) // 50, K, "full", 1e-3)
    problem = sample_problem(X, np.ones(150), reg_covar=0.0, tol=0.0)
    [step] = problem.steps([state])
    assert "not positive definite" in step.state.singular
    assert not step.moved
    np.testing.assert_array_equal(step.state.means, state.means)


def test_records_and_progress_name_steps_of_em():
    model = GaussianMixture(2, random_state=0).fit(mixture_rows())
    assert {record.stage for record in model.history_} == {"EM"}
    assert "log-likelihood" in progress_of(model.history_[-1])[0]
