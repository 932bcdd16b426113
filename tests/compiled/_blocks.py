"""What the tests of the loops share: rows in all forms, and numpy in place of the loops."""

import numpy as np
import pytest
from hypothesis import strategies as st

from daskmm.compiled import library
from daskmm.data.blocks import Block, Position
from daskmm.numerics.rows import Coordinates

INTEGERS = [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]
FLOATS = [np.dtype(name) for name in ("f4", "f8", "f2", ">f4", ">f8")]
DTYPES = [*FLOATS, *INTEGERS, np.dtype(bool)]


def placed(rows, weights=None):
    """The rows as block 3 of a table, whose first row is row 1000."""
    return Block(rows, weights, Position(3, 1000))


def identity(p):
    """The coordinates of the input."""
    return Coordinates(np.zeros(p), np.ones(p))


def off_lines(array):
    """The same numbers in C order, from an odd multiple of 4 bytes on."""
    held = np.empty(array.nbytes + 64, np.uint8)
    first = (4 - held.ctypes.data) % 8
    moved = held[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[:] = array
    assert not array.size or moved.ctypes.data % 8 == 4
    return moved


def forms(rows):
    """The same rows in other memory orders, strided, reversed, read-only and off all lines."""
    wide = np.zeros((2 * rows.shape[0], 3 * rows.shape[1]), rows.dtype)
    wide[::2, ::3] = rows
    frozen = rows.copy()
    frozen.flags.writeable = False
    backwards = np.ascontiguousarray(rows[::-1, ::-1])[::-1, ::-1]
    return [np.asfortranarray(rows), wide[::2, ::3], frozen, backwards, off_lines(rows)]


def without_loops(function, *arguments):
    """What numpy makes of the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "available", lambda: False)
        return function(*arguments)


def message(function, *arguments):
    """What a call is refused with."""
    with pytest.raises(ValueError) as caught:
        function(*arguments)
    return str(caught.value)


def sampled(draw, n, p):
    """Rows of any numeric dtype: near or far from 0, with few or many distinct values."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    offset = draw(st.sampled_from([0.0, 50.0, 1e6]))
    dtype = draw(st.sampled_from(DTYPES))
    rows = draw(st.sampled_from([0.0, 1.0, 9.0])) * rng.normal(size=(n, p)) + offset
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        rows = np.clip(np.round(rows), max(info.min, -(2**52)), min(info.max, 2**52))
    if dtype == np.float16:
        rows = np.clip(rows, -6e4, 6e4)
    rows = rows.astype(dtype)
    return draw(st.sampled_from([rows, *forms(rows)])), rng
