"""E- and M-steps of mixtures beside their definitions."""

import math

import numpy as np
import pytest
from scipy import linalg, special, stats

from compiled._blocks import forms
from daskmm.compiled import layout, library
from daskmm.compiled.mixture import Components, fill_memberships, mixture_sums
from daskmm.numerics.gaussians import EMSums
from daskmm.numerics.rows import TILE_BYTES, tiles

pytestmark = pytest.mark.skipif(not library.available(), reason="the loops are not compiled")
KINDS = ("full", "tied", "diagonal")
each_kind = pytest.mark.parametrize("kind", KINDS)
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def mixture(kind, p, k, seed=0, spread=2.0, offset=0.0):
    """Shares, means and covariances of random components."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(k, p, 2 * p))
    covariances = roots @ roots.swapaxes(1, 2) / p
    if kind == "tied":
        covariances[:] = covariances[0]
    if kind == "diagonal":
        covariances *= np.eye(p)
    return rng.dirichlet(np.full(k, 5.0)), offset + spread * rng.normal(size=(k, p)), covariances


def degrees_of(k):
    """Degrees of freedom of t distributions, from heavy tails to nearly normal ones."""
    return np.geomspace(1.5, 80.0, k)


def components(kind, shares, means, covariances, degrees=None):
    """The same in the form that the loops take."""
    p = means.shape[1]
    lower = np.linalg.cholesky(covariances)
    factors = np.array([linalg.solve_triangular(x, np.eye(p), lower=True).T for x in lower])
    inverses = np.diagonal(factors, axis1=1, axis2=2)
    constants = np.log(shares) + np.log(inverses).sum(axis=1) - p / 2 * math.log(2 * math.pi)
    if degrees is not None:
        both = (degrees + p) / 2
        constants += special.gammaln(both) - special.gammaln(degrees / 2)
        constants -= p / 2 * np.log(degrees / 2)
    if kind == "diagonal":
        return Components(means, constants, None, inverses, degrees)
    return Components(means, constants, factors[:1] if kind == "tied" else factors, None, degrees)


def sampled(n, shares, means, covariances, dtype=np.float64):
    """Rows of the components, and weights."""
    rng = np.random.default_rng(n)
    lower = np.linalg.cholesky(covariances)
    labels = rng.choice(len(shares), size=n, p=shares)
    noise = np.einsum("nab,nb->na", lower[labels], rng.normal(size=(n, means.shape[1])))
    return (means[labels] + noise).astype(dtype), 2.0 * rng.uniform(size=n)


def memberships(rows, shares, means, covariances, degrees=None):
    """Log densities and responsibilities by scipy."""
    x = rows.astype(np.float64)
    logs = np.empty((len(rows), len(shares)))
    for j, share in enumerate(shares):
        own = stats.multivariate_normal(means[j], covariances[j])
        if degrees is not None:
            own = stats.multivariate_t(means[j], covariances[j], degrees[j])
        logs[:, j] = np.log(share) + own.logpdf(x)
    densities = special.logsumexp(logs, axis=1) if len(rows) else np.empty(0)
    return densities, np.exp(logs - densities[:, None])


def naive_sums(kind, rows, v, densities, responsibilities, means, covariances, degrees=None):
    """The sums, one component at a time."""
    k, p = means.shape
    n_j, sums, scatters = np.zeros(k), np.zeros((k, p)), np.zeros((k, p, p))
    pulls, logs = (None, None) if degrees is None else np.zeros((2, k))
    for j in range(k):
        weights, differences = v * responsibilities[:, j], rows.astype(float) - means[j]
        n_j[j] = weights.sum()
        if degrees is not None:
            squares = np.einsum(
                "ij,ij->i", differences @ np.linalg.inv(covariances[j]), differences
            )
            u = (degrees[j] + p) / (degrees[j] + squares)
            logs[j] = weights @ (np.log(u) - u)
            weights = weights * u
            pulls[j] = weights.sum()
        sums[j] = weights @ differences
        scatters[j] = (weights[:, None] * differences).T @ differences
    if kind == "diagonal":
        scatters = np.diagonal(scatters, axis1=1, axis2=2)
    if kind == "tied":
        scatters = scatters.sum(axis=0, keepdims=True)
    return EMSums(n_j, sums, scatters, float(v @ densities), pulls, logs)


def assert_close(found, expected, rtol=1e-10):
    for name, x in vars(found).items():
        y = getattr(expected, name)
        assert np.shape(x) == np.shape(y)
        if y is None:
            continue
        extent = np.abs(y).max(initial=0.0)
        np.testing.assert_allclose(x, y, rtol=rtol, atol=rtol * extent, err_msg=name)


def assert_same_bits(found, expected):
    for name, x in vars(found).items():
        np.testing.assert_array_equal(x, getattr(expected, name), err_msg=name)


def assert_definitions(kind, n, p, k, dtype, degrees=None):
    model = mixture(kind, p, k)
    rows, v = sampled(n, *model, dtype)
    model = *model, degrees
    ours, (densities, responsibilities) = components(kind, *model), memberships(rows, *model)
    for weights in (None, v):
        used = np.ones(n) if weights is None else v
        expected = naive_sums(kind, rows, used, densities, responsibilities, *model[1:])
        found = mixture_sums(rows, weights, ours)
        assert_close(found, expected)
        if kind != "diagonal":
            np.testing.assert_array_equal(found.scatters, found.scatters.swapaxes(1, 2))
    labels = np.empty(n, np.int32)
    written = np.full(n, np.nan), np.full((n, k), np.nan)
    assert fill_memberships(rows, ours, labels, *written)
    np.testing.assert_array_equal(labels, responsibilities.argmax(axis=1))
    np.testing.assert_allclose(written[0], densities, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(written[1], responsibilities, rtol=1e-9, atol=1e-300)


@each_kind
@each_dtype
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("p", [1, 2, 3, 7, 8, 9, 17, 33])
def test_sums_and_memberships_are_the_definitions(kind, p, k, dtype):
    for n in (1, 5, 63, 64, 65):
        assert_definitions(kind, n, p, k, dtype)


@each_kind
@each_dtype
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 2), (65, 9, 5), (1303, 17, 9)])
def test_sums_and_memberships_of_t_distributions_are_the_definitions(kind, shape, dtype):
    n, p, k = shape
    assert_definitions(kind, n, p, k, dtype, degrees_of(k))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_has_no_density_of_t_distributions(value):
    ours = components("full", *mixture("full", 3, 2), degrees_of(2))
    rows = np.zeros((70, 3))
    rows[66, 1] = value
    assert mixture_sums(rows, None, ours) is None
    assert not fill_memberships(rows, ours, np.empty(70, np.int32))


@each_kind
@pytest.mark.parametrize("shape", [(1000, 3, 5), (1303, 17, 9), (700, 45, 3), (300, 2, 40)])
def test_sums_and_memberships_over_many_tiles_are_the_definitions(kind, shape, monkeypatch):
    monkeypatch.setattr(layout, "_MOST_ROWS", 192)
    assert_definitions(kind, *shape, np.float64)


@each_kind
@each_dtype
def test_no_rows_have_sums_of_zero(kind, dtype):
    model = mixture(kind, 3, 2)
    found = mixture_sums(np.empty((0, 3), dtype), None, components(kind, *model))
    assert not any(np.any(x) for x in vars(found).values())
    assert fill_memberships(
        np.empty((0, 3), dtype), components(kind, *model), np.empty(0, np.int32)
    )


@each_kind
def test_memory_order_and_dtype_of_the_rows_decide_about_no_bit(kind):
    model = mixture(kind, 9, 4)
    rows, v = sampled(1501, *model, np.float32)
    expected = mixture_sums(rows, v, components(kind, *model), 1e-9)
    for form in (*forms(rows), rows.astype(np.float64)):
        assert_same_bits(mixture_sums(form, v, components(kind, *model), 1e-9), expected)


@each_kind
def test_blocks_that_are_copied_in_parts_have_the_bits_of_those_that_are_not(kind):
    model = mixture(kind, 50, 3)
    rows, v = sampled(12_011, *model)
    assert rows.nbytes > TILE_BYTES
    expected = mixture_sums(rows, v, components(kind, *model))
    assert_same_bits(mixture_sums(np.asfortranarray(rows), v, components(kind, *model)), expected)


@each_kind
@pytest.mark.parametrize("n_tiles", [1, 2, 5])
def test_blocks_may_be_cut_wherever_a_tile_ends(kind, n_tiles, monkeypatch):
    model = mixture(kind, 9, 11)
    rows, v = sampled(7001, *model)
    expected = mixture_sums(rows, v, components(kind, *model))

    def cut(rows, _, tile):
        return list(tiles(len(rows), n_tiles * tile))

    monkeypatch.setattr(layout, "parts", cut)
    assert_same_bits(mixture_sums(rows, v, components(kind, *model)), expected)


@each_kind
@pytest.mark.parametrize("spread", [0.5, 30.0])
def test_negligible_responsibilities_change_no_sum_by_more_than_their_share(kind, spread):
    model = mixture(kind, 6, 8, spread=spread)
    rows, v = sampled(3000, *model)
    expected = mixture_sums(rows, v, components(kind, *model))
    assert_close(mixture_sums(rows, v, components(kind, *model), 1e-14), expected, 1e-11)


@each_kind
def test_responsibilities_up_to_the_negligible_one_are_left_out(kind):
    model = mixture(kind, 2, 3)
    rows, v = sampled(500, *model)
    densities, responsibilities = memberships(rows, *model)
    large = np.where(responsibilities > 0.2, responsibilities, 0.0)
    assert 0 < (large != responsibilities).sum() < large.size
    expected = naive_sums(kind, rows, v, densities, large, *model[1:])
    assert_close(mixture_sums(rows, v, components(kind, *model), 0.2), expected)


@each_kind
def test_integer_weights_count_like_repeated_rows(kind):
    model = mixture(kind, 5, 4)
    rows, _ = sampled(800, *model)
    v = np.random.default_rng(1).integers(0, 4, 800)
    found = mixture_sums(rows, v.astype(float), components(kind, *model), 1e-12)
    expected = mixture_sums(np.repeat(rows, v, axis=0), None, components(kind, *model), 1e-12)
    assert_close(found, expected, 1e-11)


@each_kind
@pytest.mark.parametrize("offset", [1e5, -1e7])
def test_small_components_far_from_the_origin_do_not_cancel(kind, offset):
    shares, means, covariances = mixture(kind, 3, 4)
    covariances *= 1e-4
    rows, v = sampled(300, shares, np.round(means), covariances)
    rows = np.round(rows * 2**16) / 2**16  # so that adding the offset is exact
    near = mixture_sums(rows, v, components(kind, shares, np.round(means), covariances))
    far = mixture_sums(
        rows + offset, v, components(kind, shares, np.round(means) + offset, covariances)
    )
    assert_close(far, near, 1e-7)


@each_kind
@each_dtype
def test_rows_far_from_all_components_have_finite_densities(kind, dtype):
    shares, means, covariances = mixture(kind, 4, 3)
    rows = np.array([[1e3] * 4, [-1e3, 1e3, 0, 0], [3e4, 0, 0, 0], [0, 0, 0, 1e9]], dtype)
    model = components(kind, shares, means, covariances)
    labels, densities, responsibilities = np.empty(4, np.int32), np.empty(4), np.empty((4, 3))
    assert fill_memberships(rows, model, labels, densities, responsibilities)
    assert (densities < -1e5).all()
    expected, weighed = memberships(rows, shares, means, covariances)
    np.testing.assert_allclose(densities, expected, rtol=1e-10)
    np.testing.assert_array_equal(labels, weighed.argmax(axis=1))
    np.testing.assert_allclose(responsibilities.sum(axis=1), 1.0, rtol=1e-15)
    found = vars(mixture_sums(rows, None, model)).values()
    assert all(np.isfinite(x).all() for x in found if x is not None)


@each_kind
def test_of_equal_components_the_first_gets_the_row(kind):
    shares, means, covariances = mixture(kind, 3, 4)
    shares[:], means[2:], covariances[2:] = 0.25, means[:2], covariances[:2]
    rows, _ = sampled(200, shares, means, covariances)
    labels, responsibilities = np.empty(200, np.int32), np.empty((200, 4))
    model = components(kind, shares, means, covariances)
    assert fill_memberships(rows, model, labels, responsibilities=responsibilities)
    assert set(labels) == {0, 1}
    np.testing.assert_array_equal(responsibilities[:, 2:], responsibilities[:, :2])


@each_kind
@each_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 640, 999])
def test_rows_that_are_not_finite_are_refused_whatever_their_weight(kind, dtype, bad, row):
    model = mixture(kind, 3, 2)
    rows, v = sampled(1000, *model, dtype)
    rows[row, 1], v[row] = bad, 0.0
    assert mixture_sums(rows, None, components(kind, *model)) is None
    assert mixture_sums(rows, v, components(kind, *model)) is None
    assert not fill_memberships(rows, components(kind, *model), np.empty(1000, np.int32))


@each_kind
def test_densities_that_overflow_are_refused(kind):
    model = mixture(kind, 3, 2)
    rows, v = sampled(100, *model)
    rows[70] = 1e200
    assert mixture_sums(rows, v, components(kind, *model)) is None
