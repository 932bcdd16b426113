"""Types, tiles and forms of memory that are chosen for the loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiled._blocks import DTYPES, forms, identity, off_lines
from daskmm.compiled import layout
from daskmm.numerics.rows import Coordinates, SphereCoordinates, WhitenedCoordinates

SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
PANEL_ROWS = 48  # three vectors of the widest registers in single precision


@given(
    n=st.integers(0, 10**7),
    k=st.integers(1, 10**5),
    p=st.integers(1, 10**5),
    dtype=st.sampled_from([SINGLE, DOUBLE]),
)
def test_tiles_are_whole_panels_of_at_most_576_rows(n, k, p, dtype):
    rows = layout.tile_rows(n, k, p, dtype)
    width = PANEL_ROWS
    assert rows > 0
    assert rows % width == 0
    assert rows <= max(576, width)
    # Small blocks are one tile, which they fill but for a panel.
    assert rows < n + width or rows == width
    # Its rows take a megabyte at most, unless a single panel takes more.
    assert rows == width or rows * p * dtype.itemsize <= 1 << 20


@given(
    n=st.integers(0, 3000),
    p=st.sampled_from([1, 7, 1000]),
    tile=st.sampled_from([24, 48, 576]),
    dtype=st.sampled_from([SINGLE, DOUBLE]),
    order=st.sampled_from("CF"),
)
def test_parts_are_whole_tiles_that_cover_the_rows(n, p, tile, dtype, order):
    rows = np.empty((n, p), SINGLE, order)
    slices = layout.parts(rows, dtype, tile)
    covered = [i for some in slices for i in range(n)[some]]
    assert covered == list(range(n))
    assert all((some.stop - some.start) % tile == 0 for some in slices[:-1])
    if layout.is_plain(rows, dtype):
        assert slices == [slice(0, n)]
    else:
        # What is copied at a time has 4 MiB, unless a single tile has more.
        assert all(
            (some.stop - some.start) * p * dtype.itemsize <= max(4 << 20, tile * p * 8)
            for some in slices
        )


@pytest.mark.parametrize("given_dtype", DTYPES)
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_plain_arrays_hold_the_same_numbers_in_c_order_native_and_aligned(given_dtype, dtype):
    rows = np.arange(30).reshape(10, 3).astype(given_dtype)
    for form in forms(rows):
        found = layout.plain(form, dtype)
        assert layout.is_plain(found, dtype)
        assert found.flags.c_contiguous
        assert found.flags.aligned
        assert found.dtype == dtype
        assert found.dtype.isnative
        np.testing.assert_array_equal(found, rows.astype(dtype))
        assert (found is form) == layout.is_plain(form, dtype)


def test_arrays_that_are_plain_are_not_copied():
    rows = np.ones((4, 3))
    assert layout.plain(rows) is rows
    assert layout.is_plain(rows, DOUBLE)
    for other in (rows.T, rows[::2], off_lines(rows), rows.astype(">f8"), rows.astype("f4")):
        assert not layout.is_plain(other, DOUBLE)
    single = off_lines(np.ones((4, 3), np.float32))  # an odd multiple of its own size
    assert layout.is_plain(single, SINGLE)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_held_in_the_narrowest_type_that_has_their_numbers(dtype):
    narrow = dtype.kind == "b" or dtype.itemsize <= (4 if dtype.kind == "f" else 2)
    assert layout.row_dtype(np.empty(0, dtype)) == (SINGLE if narrow else DOUBLE)


@pytest.mark.parametrize(
    ("n", "k", "p", "single"),
    [
        (4095, 20, 50, False),
        (4096, 20, 50, True),
        (1000, 64, 60, False),
        (1100, 64, 60, True),
        (63, 1000, 68, False),
        (64, 1000, 68, True),
    ],
)
def test_soft_steps_take_single_precision_if_rows_or_products_are_many(n, k, p, single):
    rows, scale = np.zeros((n, p), np.float32), np.ones(p)
    assert layout.working_dtype(rows, scale, (k, p), 3.0, -7.0) == (SINGLE if single else DOUBLE)
    assert layout.working_dtype(rows.astype(DOUBLE), scale, (k, p), 3.0, -7.0) == DOUBLE


@pytest.mark.parametrize(
    ("n", "k", "p", "dtype", "single"),
    [
        (64, 2, 8, SINGLE, True),
        (64, 16, 2, SINGLE, True),
        (63, 16, 8, SINGLE, False),
        (5000, 15, 7, SINGLE, False),
        (1 << 20, 1, 8, DOUBLE, False),
        (1 << 13, 64, 8, DOUBLE, True),
        (1 << 13, 63, 8, DOUBLE, False),
    ],
)
def test_hard_steps_take_single_precision_where_it_saves_time(n, k, p, dtype, single):
    rows, scale = np.zeros((n, p), dtype), np.ones(p)
    assert layout.working_dtype(rows, scale, (k, p), 3.0, -np.inf) == (SINGLE if single else DOUBLE)


def test_double_precision_is_taken_where_single_precision_might_overflow():
    rows, scale = np.zeros((5000, 2), np.float32), np.ones(2)
    assert layout.working_dtype(rows, scale, (8, 2), 1.0, -0.2) == SINGLE
    for extent in (1e-10, 1e10):
        assert layout.working_dtype(rows, scale, (8, 2), extent, -1.0) == DOUBLE
        assert layout.working_dtype(rows, extent * scale, (8, 2), 1.0, -1.0) == DOUBLE
    # The weights of a row add up to k^(−1/s).
    assert layout.working_dtype(rows, scale, (8, 2), 1.0, -0.1) == DOUBLE


def test_frames_say_how_rows_get_the_coordinates_of_the_model():
    rng = np.random.default_rng(0)
    plain = layout.frame_of(identity(3))
    assert (plain["code"], plain["scaled"], plain["whitening"]) == (layout.PLAIN, False, None)
    scaled = layout.frame_of(Coordinates(rng.normal(size=3), np.array([1.0, 2.0, 1.0])))
    assert (scaled["code"], scaled["scaled"]) == (layout.PLAIN, True)
    whitening = np.tril(rng.normal(size=(3, 3)))
    whitened = layout.frame_of(WhitenedCoordinates(np.zeros(3), whitening))
    assert whitened["code"] == layout.WHITENED
    np.testing.assert_array_equal(whitened["whitening"], whitening)
    assert layout.frame_of(SphereCoordinates(3))["code"] == layout.ON_SPHERE


def test_what_is_negligible_is_a_share_of_the_weight_of_a_cluster():
    shares = np.array([0.6, 0.3999, 1e-5])
    found = layout.relevant_from(shares, DOUBLE)
    unit = layout.NEGLIGIBLE * np.finfo(DOUBLE).eps / layout.WANING
    np.testing.assert_allclose(found[:2], unit * shares[:2])
    assert found[2] == 2.0 ** layout.LIMITS[DOUBLE]["lowest"]  # nothing of a small cluster
    fallen = shares / [1.0, 2.0 * layout.WANING, 1.0]
    assert layout.have_waned(shares, fallen)
    assert not layout.have_waned(shares, shares / [1.0, 2.0, 1e6])
