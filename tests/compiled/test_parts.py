"""Tests of the parts of the loops, for each instruction set of the processor.

`parts.cpp` makes functions of C of it. The code for AVX-512 is compiled a second time without its
instructions (`emulated_avx512.hpp`), so that its logic is tested on all processors.
"""

import ctypes
import itertools
import math

import numpy as np
import pytest

from daskmm.compiled import library

KINDS = (np.float32, np.float64)
LOWEST = {np.float32: -126.0, np.float64: -1000.0}
GROUP = 3  # vectors per panel
each_kind = pytest.mark.parametrize("kind", KINDS)
each_size = pytest.mark.parametrize(
    ("n_rows", "p"), [(1, 1), (5, 3), (8, 8), (16, 7), (17, 9), (39, 16), (64, 21), (3, 50)]
)


class Parts:
    """The functions of `parts.cpp`, by name and type; they are given arrays and numbers."""

    def __init__(self, file):
        self.library = ctypes.CDLL(str(file))

    def __call__(self, name, kind, *values):
        function = getattr(self.library, f"{name}_{'float' if kind == np.float32 else 'double'}")
        function.restype = ctypes.c_ssize_t
        return function(*map(_passed, values))

    @property
    def register_bytes(self):
        return self.library.register_bytes()


def _passed(value):
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        return value.ctypes.data_as(ctypes.c_void_p)
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_ssize_t(value)


@pytest.fixture(scope="session")
def parts(request, build_loops, compiler, tmp_path_factory):
    """The functions of `parts.cpp` for one instruction set."""
    command, defined = compiler
    if request.param == "emulated avx512":
        request.getfixturevalue("needs_emulation")
        own = [*build_loops.emulation(defined), "-O2"]  # compiles in half of the time
    else:
        own = build_loops.INSTRUCTIONS[request.param] if "__x86_64__" in defined else []
    file = tmp_path_factory.mktemp("parts") / "parts.so"
    source = build_loops.TOP / "tests/compiled/parts.cpp"
    flags = [*build_loops.FLAGS, *own, f"-I{build_loops.SOURCES}", "-shared"]
    build_loops.run([*command, *flags, str(source), "-o", str(file)])
    found = Parts(file)
    assert (found.register_bytes == 64) == ("avx512" in request.param)
    return found


def eps(kind):
    return float(np.finfo(kind).eps)


# Logarithm and exponential


def applied(parts, name, values):
    """A function of each number, which are filled up to whole vectors."""
    padded = np.ones(len(values) + 16, values.dtype)
    padded[: len(values)] = values
    out = np.empty_like(padded)
    parts(name, values.dtype.type, padded, len(values), out)
    return out[: len(values)]


def ulps(found, expected, dtype):
    """Errors in units of the last place of what is expected, a long double."""
    spacing = np.spacing(np.abs(expected).astype(dtype)).astype(np.longdouble)
    return float(np.max(np.abs(found.astype(np.longdouble) - expected) / spacing))


@pytest.mark.parametrize(("kind", "top"), [(np.float64, 300.0), (np.float32, 37.0)])
def test_logarithms_are_right_to_few_units_in_the_last_place(parts, kind, top):
    rng = np.random.default_rng(0)
    wide = 10.0 ** rng.uniform(-top, top, 50_000)
    near = [rng.uniform(0.0, 3.0, 50_000), math.sqrt(2.0) - 1 + 1e-4 * rng.normal(size=1000)]
    powers = 2.0 ** np.arange(-30, 30)
    e = np.concatenate([wide, *near, powers - 1, powers])
    e = e[e >= 0].astype(kind)
    expected = np.log1p(e.astype(np.longdouble)) / np.log(np.longdouble(2))
    assert ulps(applied(parts, "log2_1p", e), expected, kind) <= 5.0


@pytest.mark.parametrize(("kind", "lowest"), [(np.float64, -1022.0), (np.float32, -126.0)])
def test_exponentials_are_right_to_few_units_in_the_last_place(parts, kind, lowest):
    rng = np.random.default_rng(1)
    spread = [rng.uniform(lowest, -lowest, 50_000), rng.uniform(-2.0, 2.0, 50_000)]
    y = np.concatenate([*spread, np.arange(lowest, -lowest), np.arange(-50, 50) + 0.5])
    near = [np.nextafter(kind(end), kind(0)) for end in (lowest, -lowest, 0.5, -0.5, 1.0)]
    y = np.concatenate([y, near]).astype(kind)
    expected = np.exp2(y.astype(np.longdouble))
    assert ulps(applied(parts, "exp2", y), expected, kind) <= 4.0


def test_exponentials_of_negative_numbers_are_right_to_few_units_in_the_last_place(parts):
    rng = np.random.default_rng(2)
    near = np.log(2.0) * (np.arange(-1000, 0) + 0.5) * (1 + 1e-15 * rng.normal(size=1000))
    x = np.concatenate(
        [rng.uniform(-708.0, 0.0, 50_000), -(10.0 ** rng.uniform(-20, 1, 5000)), near]
    )
    x = x[x > -708.0]
    assert (
        ulps(applied(parts, "exp_negative", x), np.exp(x.astype(np.longdouble)), np.float64) <= 4.0
    )
    ends = np.array([0.0, -708.0, -1e6, -np.inf, np.nan])
    np.testing.assert_array_equal(applied(parts, "exp_negative", ends), [1.0, 0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(("kind", "last"), [(np.float64, 1024.0), (np.float32, 128.0)])
def test_logarithm_and_exponential_are_exact_at_their_ends(parts, kind, last):
    e = np.array([0.0, 1.0, np.inf], kind)
    np.testing.assert_array_equal(applied(parts, "log2_1p", e), [0.0, 1.0, last])
    y = np.array([0.0, -1.0, 2.0 - last, last - 1.0], kind)
    # numpy's exp2 of single numbers is one unit off on some processors; ldexp is exact.
    powers = np.ldexp(np.ones_like(y), y.astype(int))
    np.testing.assert_array_equal(applied(parts, "exp2", y), powers)


@each_kind
def test_logarithms_of_numbers_near_1_keep_the_digits_of_their_excess(parts, kind):
    tiny = float(np.finfo(kind).tiny)
    e = np.concatenate([[tiny, 2 * tiny], 10.0 ** np.arange(-30.0, 0.0)]).astype(kind)
    expected = np.log1p(e.astype(np.longdouble)) / np.log(np.longdouble(2))
    np.testing.assert_allclose(
        applied(parts, "log2_1p", e), expected.astype(kind), rtol=4 * eps(kind)
    )


# Panels


def up_to(multiple, n):
    return -(-n // multiple) * multiple


def panels_of(parts, rows, height=None):
    """The rows, transposed by the loops: (panel, feature, row of the panel)."""
    kind, (n, p) = rows.dtype.type, rows.shape
    side, width = parts("side", kind), parts("width", kind)
    height = height or up_to(side, p)
    z = np.full((n + side + 64 // p + 1, p), -1.0, kind)
    z[:n] = rows
    panels = np.full((up_to(width, n) // width, height, width), np.nan, kind)
    parts("transpose", kind, z, n, p, panels, height)
    return panels


def some_rows(n, p, kind):
    return np.random.default_rng(n + p).normal(size=(n, p)).astype(kind)


@each_kind
@each_size
def test_transposed_tiles_hold_each_number_of_the_rows(parts, n_rows, p, kind):
    rows = some_rows(n_rows, p, kind)
    panels = panels_of(parts, rows)
    width = panels.shape[2]
    assert width == GROUP * parts.register_bytes // rows.itemsize
    for i in range(n_rows):
        for f in range(p):
            assert panels[i // width, f, i % width] == rows[i, f]


@each_kind
@each_size
def test_squared_norms_are_sums_over_the_features(parts, n_rows, p, kind):
    rows = some_rows(n_rows, p, kind)
    panels = panels_of(parts, rows)
    w = np.random.default_rng(p).uniform(0.0, 2.0, p).astype(kind)
    found = np.full(len(panels) * panels.shape[2], np.nan, kind)
    parts("squared_norms", kind, panels, n_rows, p, panels.shape[1], w, found)
    for i in range(n_rows):
        expected = sum(float(w[f]) * float(rows[i, f]) ** 2 for f in range(p))
        assert found[i] == pytest.approx(expected, rel=p * eps(kind))


@each_kind
@pytest.mark.parametrize("add", [False, True], ids=["written", "added"])
@pytest.mark.parametrize("n_centers", [1, 4, 5, 8])
@pytest.mark.parametrize(("n_rows", "p"), [(1, 1), (33, 17), (101, 40)])
def test_products_of_a_group_of_centers_are_sums_of_products(
    parts, n_rows, p, n_centers, add, kind
):
    rows = some_rows(n_rows, p, kind)
    panels = panels_of(parts, rows)
    tile = len(panels) * panels.shape[2]
    factors = np.zeros((8, p), kind)
    factors[:n_centers] = some_rows(n_centers, p, kind)
    d = np.full((8, tile), 2.0, kind)
    parts(
        "panel_products", kind, factors, p, panels, panels.shape[1], n_rows, d, tile, n_centers, add
    )
    expected = factors.astype(float) @ rows.astype(float).T + (2.0 if add else 0.0)
    found = d[:n_centers, :n_rows]
    np.testing.assert_allclose(found, expected[:n_centers], rtol=0, atol=10 * (p + 2) * eps(kind))


def bfloat16(x):
    """Numbers of float32 rounded to 8 digits to base 2, to nearest even."""
    unit = np.exp2(np.floor(np.log2(np.maximum(np.abs(x), 1e-300))) - 7)
    return np.round(x / unit) * unit


@pytest.mark.parametrize("how", [1, 2])
@pytest.mark.parametrize(
    ("n_rows", "k", "p"), [(1, 1, 1), (7, 5, 31), (50, 33, 32), (101, 40, 65), (160, 17, 384)]
)
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_rounded_products_bound_distances_from_below(parts, n_rows, k, p, how, offset):
    if how > max(1, library.rounded_products()):
        pytest.skip("this processor has no tiles")
    rng = np.random.default_rng(p)
    centers = (rng.normal(size=(k, p)) * 2.0 ** rng.integers(-9, 9, size=p)).astype(np.float32)
    centers += np.float32(offset)
    rows = np.zeros((n_rows + 64, p), np.float32)
    rows[:n_rows] = centers[rng.integers(k, size=n_rows)] * rng.normal(size=(n_rows, 1))
    norms, bounds = np.empty(n_rows + 64, np.float32), np.empty((k, n_rows), np.float32)
    factors = -2.0 * centers
    parts("rounded_bounds", np.float32, rows, n_rows, factors, k, p, how, norms, bounds)
    z, centers = rows[:n_rows].astype(float), centers.astype(float)
    scores = (-2.0 * z @ centers.T + (centers**2).sum(axis=1)).T
    np.testing.assert_allclose(norms[:n_rows], (z**2).sum(axis=1), rtol=1e-5)
    about, around = z - centers.mean(axis=0), centers - centers.mean(axis=0)
    lengths = [np.linalg.norm(x, axis=1) for x in (about, around)]
    lost = [np.linalg.norm(x - bfloat16(x), axis=1) for x in (about, around)]
    errors = 2.0 * (np.outer(lost[1], lengths[0]) + np.outer(lengths[1], lost[0]))
    # Squared norms in float32 are rounded.
    rounding = 1e-5 * ((z**2).sum(axis=1) + (centers**2).sum(axis=1)[:, None] + lengths[0] ** 2)
    assert (bounds <= scores + rounding).all()
    assert (bounds >= scores - 2.5 * errors - rounding).all()


@each_kind
@pytest.mark.parametrize(
    ("n_rows", "p"), [(1, 1), (7, 5), (33, 17), (101, 40), (384, 70), (50, 110)]
)
def test_sums_of_packed_rows_are_sums_of_products(parts, n_rows, p, kind):
    length = parts.register_bytes // np.dtype(kind).itemsize
    width = up_to(length, p)
    rows = some_rows(n_rows, p, kind)
    z = np.full(n_rows * p + 64, -1.0, kind)
    z[: n_rows * p] = rows.ravel()
    packed = np.full(n_rows * width, np.nan, kind)
    parts("pack_features", kind, z, p, n_rows, packed, width)
    # Each number is there once for its feature, beside what fills up the vectors.
    assert not np.isnan(packed).any()
    assert not set(rows.ravel().tolist()) - set(packed.tolist())
    phi = np.random.default_rng(p).uniform(size=(8, n_rows)).astype(kind)
    part = np.full((8, width), np.nan, kind)
    parts("panel_sums", kind, phi, n_rows, packed, n_rows, part, width)
    expected = phi.astype(float) @ rows.astype(float)
    np.testing.assert_allclose(part[:, :p], expected, rtol=0, atol=10 * n_rows * eps(kind))


# Weights


def weighed(parts, distances, s, tie=0.0):
    """Weights r^(s−1), and Σ r^s over all centres and over ties, from exact numbers."""
    kind, (k, n) = distances.dtype.type, distances.shape
    tile = up_to(parts("width", kind), n)
    d = np.full((k + k % 2, tile), np.inf, kind)
    d[:k, :n] = distances
    lines = np.zeros((5, tile), kind)
    lines[0, :n] = distances.min(axis=0)
    with np.errstate(divide="ignore"):
        lines[1, :n] = 1 / lines[0, :n]
    lines[2] = tie
    limits = float(kind(s - 1.0)), LOWEST[kind]
    parts("weigh_all", kind, d, tile, k, n, lines, *limits, np.ascontiguousarray(distances), k * n)
    return d[:, :n], lines[3, :n], lines[4, :n]


def excesses(distances):
    """What the loops are given of r = d/m = 1 + e, in their type: its rounding is not theirs."""
    m = distances.min(axis=0)
    return ((distances - m) * (1 / m).astype(distances.dtype)).astype(np.longdouble)


@each_kind
@pytest.mark.parametrize("s", [-0.5, -3.0, -50.0, -1e4])
def test_weights_are_powers_of_the_ratios(parts, kind, s):
    rng = np.random.default_rng(0)
    near = 1.0 + 10.0 ** rng.uniform(-7.0, 1.0, size=(7, 61))
    far = 10.0 ** rng.uniform(0.0, 30.0, size=(4, 61))
    distances = np.concatenate([np.ones((1, 61)), near, far]).astype(kind)
    distances *= rng.uniform(0.5, 9.0, 61).astype(kind)
    phi, total, _ = weighed(parts, distances, s)
    e = excesses(distances)
    exponents = (s - 1.0) * np.log1p(e) / np.log(np.longdouble(2))
    expected = np.exp2(exponents)
    inside = exponents > LOWEST[kind] + 1
    error = np.abs(phi[: len(e)][inside] / expected[inside] - 1)
    # Relative errors of exponents are of a few units in the last place, more where 1 + e, which
    # is rounded, is little above 1 + 1/16.
    assert (error <= eps(kind) * (4 + 6 * np.abs(exponents[inside]))).all()
    assert (phi[: len(e)][exponents < LOWEST[kind] - 1] == 0).all()
    assert (phi[len(e) :] == 0).all()
    u = np.where(phi[: len(e)] > 0, phi[: len(e)] * (1 + e), 0)
    np.testing.assert_allclose(total, u.sum(axis=0).astype(kind), rtol=30 * eps(kind))


@each_kind
def test_weights_of_ratios_at_the_seams_of_the_tables_are_as_exact(parts, kind):
    # Sixteenths of a binade, from which on another entry of the table counts, and their neighbours.
    seams = np.outer(2.0 ** np.arange(0, 9), 1 + np.arange(16) / 16).ravel().astype(kind)
    ratios = np.concatenate([seams, np.nextafter(seams, kind(0)), np.nextafter(seams, kind(1e9))])
    ratios = np.maximum(ratios, 1)
    phi, *_ = weighed(parts, np.stack([np.ones_like(ratios), ratios]), -3.0)
    exponents = -4.0 * np.log2(1 + excesses(np.stack([np.ones_like(ratios), ratios]))[1])
    error = np.abs(phi[1] / np.exp2(exponents) - 1)
    assert (error <= eps(kind) * (4 + 6 * np.abs(exponents))).all()


@each_kind
@pytest.mark.parametrize("n", [1, 8, 47, 48, 49, 100])
@pytest.mark.parametrize("k", [2, 3, 8])
def test_tiles_of_all_sizes_are_weighed_whole(parts, kind, n, k):
    distances = np.random.default_rng(n + k).uniform(1.0, 9.0, size=(k, n)).astype(kind)
    phi, total, tied = weighed(parts, distances, -2.0)
    r = distances / distances.min(axis=0)
    np.testing.assert_allclose(phi[:k], r**-3.0, rtol=50 * eps(kind))
    np.testing.assert_allclose(total, (r**-2.0).sum(axis=0), rtol=50 * eps(kind))
    np.testing.assert_allclose(tied, 1.0)


@each_kind
def test_rows_on_a_center_and_centers_at_infinity_have_whole_weights_or_none(parts, kind):
    distances = np.array(
        [[0.0, 0.0, 2.0, 1.0], [0.0, 3.0, np.inf, 1.0], [5.0, np.inf, 4.0, 1.0]], kind
    )
    phi, total, tied = weighed(parts, distances, -1.0)
    np.testing.assert_allclose(
        phi[:3], [[1, 1, 1, 1], [1, 0, 0, 1], [0, 0, 0.25, 1]], rtol=4 * eps(kind)
    )
    np.testing.assert_allclose(total, [2, 1, 1.5, 3], rtol=4 * eps(kind))
    np.testing.assert_allclose(tied, [2, 1, 1, 3], rtol=4 * eps(kind))


@each_kind
def test_what_is_within_the_tie_counts_as_tied(parts, kind):
    distances = np.array([[1.0], [1.0 + 2.0**-10], [1.0 + 2.0**-8], [3.0]], kind)
    _, _, tied = weighed(parts, distances, -1.0, tie=2.0**-9)
    np.testing.assert_allclose(tied, [1.0 + 1.0 / (1.0 + 2.0**-10)], rtol=8 * eps(kind))


@each_kind
@pytest.mark.parametrize(
    ("n", "k"), [*itertools.product((1, 8, 15, 16, 17), [1, 4]), (48, 5), (100, 8)]
)
def test_weights_that_count_are_listed_by_center_up_to_some_length(parts, kind, n, k):
    rng = np.random.default_rng(n + k)
    tile = up_to(48, n)
    d = np.full((k, tile), np.nan, kind)
    d[:, :n] = rng.uniform(1.0, 20.0, (k, n))
    d[0, : n // 3] = np.inf
    d[-1, n // 2 :: 7] = 0.0
    limits = rng.uniform(1.0, 9.0, k).astype(kind)
    lines = np.ones((5, tile), kind)
    lines[0, :n] = d[:, :n].min(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        lines[1, :n] = 1 / lines[0, :n]
        near = ~(d[:, :n] > limits[:, None] * lines[0, :n])
        e = (d[:, :n] - lines[0, :n]) * lines[1, :n]
    e = np.where(e > 0, e, 0)
    firsts = np.zeros(k + 1, np.int64)
    rows, excess = np.full((2, near.sum() + tile), -1.0, kind)

    def listed(most):
        return parts("list_weights", kind, d, tile, k, n, limits, lines, firsts, rows, excess, most)

    assert listed(int(near.sum())) == near.sum()
    np.testing.assert_array_equal(firsts, np.concatenate([[0], near.sum(axis=1).cumsum()]))
    np.testing.assert_array_equal(rows[: near.sum()], np.nonzero(near)[1])
    np.testing.assert_allclose(excess[: near.sum()], e[near], rtol=2 * eps(kind))
    assert listed(int(near.sum()) - 1) == -1
