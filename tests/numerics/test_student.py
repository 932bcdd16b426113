"""Multivariate t distributions beside scipy and a maximum that is looked for numerically."""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_t

from daskmm.numerics.gaussians import Components, em_sums, log_joint_densities, maximized
from daskmm.numerics.student import MOST, updated_degrees

P = 3


def components(rng, k=2):
    roots = rng.normal(size=(k, P, P)) + 2 * np.eye(P)
    means, degrees = 3 * rng.normal(size=(k, P)), rng.uniform(1.0, 9.0, k)
    return Components.of("full", np.full(k, 1 / k), means, roots @ roots.swapaxes(1, 2), degrees)


def test_densities_are_those_of_scipy():
    rng = np.random.default_rng(0)
    own, rows = components(rng), 5 * rng.normal(size=(40, P))
    expected = [
        np.log(share) + multivariate_t(mean, shape, degrees).logpdf(rows)
        for share, mean, shape, degrees in zip(
            own.shares, own.means, own.covariances, own.degrees, strict=True
        )
    ]
    np.testing.assert_allclose(log_joint_densities(rows, own), np.transpose(expected), rtol=1e-11)


def test_steps_raise_the_likelihood_and_end_where_it_is_stationary():
    rng = np.random.default_rng(1)
    rows = multivariate_t(np.ones(P), np.diag([1.0, 4, 9]), 3, seed=1).rvs(1_500)
    v = rng.uniform(0.5, 2.0, len(rows))
    own = Components.of("full", np.ones(1), np.zeros((1, P)), 9 * np.eye(P)[None], np.array([20.0]))
    bounds = []
    for _ in range(300):
        sums = em_sums(rows, v, own)
        bounds.append(sums.log_likelihood)
        own = maximized(sums, own, 0.0)
    assert (np.diff(bounds) > -1e-9).all()

    def cost(degrees):
        return -v @ multivariate_t(own.means[0], own.covariances[0], degrees).logpdf(rows)

    found = minimize_scalar(cost, bounds=(1, 10), method="bounded", options={"xatol": 1e-7}).x
    np.testing.assert_allclose(own.degrees, found, rtol=1e-4)
    # At a maximum the mean weight of a row is 1.
    np.testing.assert_allclose(sums.pulls, sums.weights, rtol=1e-6)


def test_normal_rows_have_as_many_degrees_as_are_allowed():
    rows = np.random.default_rng(2).uniform(-1, 1, size=(500, P))
    own = Components.of("full", np.ones(1), np.zeros((1, P)), np.eye(P)[None] / 3, np.array([30.0]))
    for _ in range(400):
        own = maximized(em_sums(rows, None, own), own, 0.0)
    np.testing.assert_allclose(own.degrees, MOST)


def test_components_without_weight_keep_their_degrees():
    before = np.array([3.0, 7.0])
    after = updated_degrees(np.array([0.0, -50.0]), np.array([0.0, 40.0]), before, P)
    assert after[0] == 3.0
    assert after[1] != 7.0
