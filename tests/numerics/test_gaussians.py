"""Gaussian components against formulas written out row by row."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from daskmm.numerics.gaussians import (
    COVARIANCE_TYPES,
    Components,
    SingularComponentError,
    are_positive,
    em_sums,
    factors_of,
    factors_of_precisions,
    log_joint_densities,
    maximized,
)

K, P = 3, 4


def rows_and_components(kind, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(K, P, P))
    matrices = roots @ np.swapaxes(roots, 1, 2) + 0.1 * np.eye(P)
    covariances = {
        "full": matrices,
        "tied": matrices[0],
        "diag": np.array([np.diag(matrix) for matrix in matrices]),
        "spherical": matrices[:, 0, 0],
    }[kind]
    means = rng.normal(size=(K, P)) + offset
    rows = rng.normal(0.0, 2.0, size=(40, P)) + offset
    return rows, Components.of(kind, np.array([0.5, 0.2, 0.3]), means, covariances)


def matrix_of(components, component):
    covariances = components.covariances
    return {
        "full": lambda: covariances[component],
        "tied": lambda: covariances,
        "diag": lambda: np.diag(covariances[component]),
        "spherical": lambda: covariances[component] * np.eye(P),
    }[components.covariance_type]()


def naive_joint(rows, components):
    return np.column_stack(
        [
            np.log(components.shares[j])
            + multivariate_normal(components.means[j], matrix_of(components, j)).logpdf(rows)
            for j in range(K)
        ]
    )


def naive_step(rows, weights, components, reg_covar):
    """One EM step by sums over rows, with moments around the new means."""
    joint = naive_joint(rows, components)
    shares = np.exp(joint - logsumexp(joint, axis=1, keepdims=True)) * weights[:, None]
    sizes = shares.sum(axis=0)
    means = np.array(
        [sum(s * row for s, row in zip(shares[:, j], rows, strict=True)) for j in range(K)]
    )
    means /= sizes[:, None]
    scatters = np.array(
        [
            sum(
                s * np.outer(row - means[j], row - means[j])
                for s, row in zip(shares[:, j], rows, strict=True)
            )
            for j in range(K)
        ]
    )
    kind = components.covariance_type
    if kind == "tied":
        covariances = scatters.sum(axis=0) / sizes.sum() + reg_covar * np.eye(P)
    else:
        covariances = scatters / sizes[:, None, None] + reg_covar * np.eye(P)
    if kind in ("diag", "spherical"):
        covariances = np.array([np.diag(matrix) for matrix in covariances])
    if kind == "spherical":
        covariances = covariances.mean(axis=1)
    return sizes / sizes.sum(), means, covariances


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_log_joint_densities_are_those_of_scipy(kind):
    rows, components = rows_and_components(kind)
    np.testing.assert_allclose(
        log_joint_densities(rows, components), naive_joint(rows, components), rtol=1e-12
    )


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_a_step_is_that_of_sums_over_rows(kind, offset):
    rows, components = rows_and_components(kind, offset=offset)
    weights = np.random.default_rng(1).uniform(0.0, 2.0, len(rows))
    after = maximized(em_sums(rows, weights, components), components, 1e-3)
    shares, means, covariances = naive_step(rows, weights, components, 1e-3)
    np.testing.assert_allclose(after.shares, shares, rtol=1e-10)
    np.testing.assert_allclose(after.means - offset, means - offset, atol=1e-9)
    np.testing.assert_allclose(after.covariances, covariances, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_factors_are_roots_of_the_inverse_covariances(kind):
    _, components = rows_and_components(kind)
    again = factors_of_precisions(components.precisions, kind)
    np.testing.assert_allclose(again, components.factors, rtol=1e-9, atol=1e-12)
    matrices = kind in ("full", "tied")
    inverse = np.linalg.inv(components.covariances) if matrices else 1 / components.covariances
    np.testing.assert_allclose(components.precisions, inverse, rtol=1e-9, atol=1e-12)
    least = [np.linalg.eigvalsh(matrix_of(components, j))[0] for j in range(K)]
    np.testing.assert_allclose(components.least_variances, least, rtol=1e-9)


def test_the_number_of_parameters_is_that_of_free_numbers():
    counted = {kind: rows_and_components(kind)[1].n_parameters for kind in COVARIANCE_TYPES}
    of_means_and_shares = K * P + K - 1
    assert counted == {
        "full": of_means_and_shares + K * P * (P + 1) // 2,
        "tied": of_means_and_shares + P * (P + 1) // 2,
        "diag": of_means_and_shares + K * P,
        "spherical": of_means_and_shares + K,
    }


def test_a_component_without_rows_keeps_its_mean_and_covariance():
    rows, components = rows_and_components("full")
    far = components.means.copy()
    far[1] += 1e6
    components = Components.of("full", components.shares, far, components.covariances)
    after = maximized(em_sums(rows, None, components), components, 0.0)
    np.testing.assert_array_equal(after.means[1], far[1])
    np.testing.assert_array_equal(after.covariances[1], components.covariances[1])


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_a_singular_covariance_is_refused_by_its_number(kind):
    _, components = rows_and_components(kind)
    covariances = components.covariances.copy()
    covariances[..., -1 if kind in ("diag", "spherical") else slice(None)] = 0.0
    with pytest.raises(SingularComponentError, match=r"covariance of component [02] is not pos"):
        factors_of(covariances, kind)


def test_precisions_that_are_not_positive_are_recognised():
    assert are_positive(np.eye(2), "tied")
    assert not are_positive(np.array([[1.0, 0.5], [0.0, 1.0]]), "tied")
    assert not are_positive(np.array([np.eye(2), -np.eye(2)]), "full")
    assert not are_positive(np.array([[1.0, 0.0]]), "diag")


@pytest.mark.parametrize("kind", COVARIANCE_TYPES)
def test_colored_noise_has_the_covariance_of_its_component(kind):
    _, components = rows_and_components(kind)
    noise = np.random.default_rng(0).standard_normal((200_000, P))
    found = np.cov(components.colored(noise, 2).T)
    expected = matrix_of(components, 2)
    np.testing.assert_allclose(found, expected, atol=0.03 * np.abs(expected).max())
