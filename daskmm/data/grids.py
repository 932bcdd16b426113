"""Grids of pixels, whose blocks are not consecutive rows, and places of rows on a grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Window:
    """The part of a grid that is one block; its pixels are rows, in C order."""

    grid: Grid  # the whole grid
    starts: tuple[int, ...]  # first pixel and number of pixels along each dimension
    sizes: tuple[int, ...]

    def numbers(self) -> NDArray[np.int64]:
        """Return the index of each pixel in the whole grid, in C order."""
        numbers = np.zeros((), dtype=np.int64)
        sides = zip(self.grid.shape, self.starts, self.sizes, strict=True)
        for length, start, size in sides:
            numbers = numbers[..., None] * length + np.arange(start, start + size)
        return numbers.ravel()

    def described(self, row: int) -> str:
        """Return the place of a pixel on the grid, for messages."""
        inside = np.unravel_index(row, self.sizes)
        places = zip(self.grid.dims, self.starts, inside, strict=True)
        return ", ".join(f"{name} {start + int(i)}" for name, start, i in places)


@dataclass(frozen=True)
class Grid:
    """A grid of pixels, cut into blocks along every dimension."""

    dims: tuple[str, ...]  # names of the dimensions
    chunks: tuple[tuple[int, ...], ...]  # sizes of the blocks along each dimension, as in dask

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of pixels along each dimension."""
        return tuple(map(sum, self.chunks))

    @property
    def rows(self) -> tuple[int, ...]:
        """Number of pixels of each block; the blocks are in C order."""
        return tuple(map(math.prod, itertools.product(*self.chunks)))

    def windows(self) -> Iterator[Window]:
        """Yield the window of each block, in C order."""
        starts = [tuple(itertools.accumulate(sizes, initial=0))[:-1] for sizes in self.chunks]
        for corner, sizes in zip(
            itertools.product(*starts), itertools.product(*self.chunks), strict=True
        ):
            yield Window(self, corner, sizes)
