"""Blurring passes over representatives that do not fit in memory: blocks on disk, by pairs.

Positions are kept in zarr arrays, one chunk per block; those of an iteration are written beside
those of the one before, which stay until the fit can do without them. A pass is a tournament:
in each round every block meets one other, so that no block has two writers, and each block of
distances serves both of its sides.
"""

from __future__ import annotations

import functools
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import zarr
from numpy.typing import NDArray

from daskmm.engine.passes import tree_reduce
from daskmm.engine.worker_task import merge
from daskmm.mean_shift.neighborhood import (
    Labels,
    MemoryNeighborhood,
    Neighborhood,
    Shift,
    add_to_means,
    move,
)
from daskmm.mean_shift.representatives import Representatives, Spread
from daskmm.numerics.components import close_edges, components_of
from daskmm.numerics.mean_shift import (
    Points,
    ShiftedSums,
    add_block_own,
    add_block_pair,
)
from daskmm.storage.arrays import create_array
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# Positions of one block. A worker holds two blocks, some ten times over: what is read, prepared
# for tiles, and summed.
BLOCK_BYTES = 8 << 20

_START, _SUMS = "start", "sums"


@registered
@dataclass(frozen=True)
class Blocks:
    """Where blocks of representatives lie.

    Attributes
    ----------
    folder : Path
    name : str
        Of the array.
    counts : tuple of int
        Representatives in each block.
    block_rows : int
        Places for them.
    """

    folder: Path
    name: str
    counts: tuple[int, ...]
    block_rows: int

    def read(self, block: int) -> Representatives:
        """Representatives of one block."""
        values = self.rows_of(self.name, block, self.counts[block])
        p = values.shape[1] // 2 - 1
        return Representatives(
            values[:, :p].copy(), values[:, p : 2 * p].copy(), values[:, -2], values[:, -1]
        )

    def write(self, block: int, some: Representatives) -> None:
        """Put the representatives of one block."""
        values = np.column_stack([some.positions, some.row_sums, some.multiplicity, some.own])
        self.put(self.name, block, values)

    def create(self, name: str, columns: int) -> None:
        """Make an empty array of blocks, in the place of what a former run left of it."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        shape = (len(self.counts) * self.block_rows, columns)
        create_array(self.folder / name, shape, (self.block_rows, columns), np.float64)

    def rows_of(self, name: str, block: int, count: int) -> FloatArray:
        """The first rows of a block of an array."""
        start = block * self.block_rows
        return np.asarray(_opened(self.folder / name)[start : start + count])

    def put(self, name: str, block: int, values: FloatArray) -> None:
        """Write a block of an array, a whole chunk."""
        start = block * self.block_rows
        whole = np.zeros((self.block_rows, values.shape[1]))
        whole[: len(values)] = values
        _opened(self.folder / name)[start : start + self.block_rows] = whole


def _opened(path: Path) -> zarr.Array:
    """The array at a path, opened once as long as it is the same one."""
    made = (path / "zarr.json").stat()
    return _opened_as(path, made.st_ino, made.st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _opened_as(path: Path, inode: int, made: int) -> zarr.Array:
    return zarr.open_array(path, mode="r+")


@registered
@dataclass(frozen=True)
class DiskNeighborhood:
    """Representatives in blocks on disk.

    Each block merges by itself, until what is left fits in memory.

    Attributes
    ----------
    blocks : Blocks
    members : tuple of ndarray
        Per block, the representative (within it) of each of its rows.
    memory_bytes : int
        Positions that take no more go to memory.
    """

    blocks: Blocks
    members: tuple[NDArray[np.intp], ...]
    memory_bytes: int

    @property
    def n(self) -> int:
        """Representatives."""
        return sum(self.blocks.counts)

    @property
    def files(self) -> tuple[str, ...]:
        """The array; the rows where they were at first stay for the whole fit."""
        return () if self.blocks.name == _START else (self.blocks.name,)

    def within(self, start: Neighborhood) -> Self:
        """The same, in the folder of the rows with which a resumed fit begins."""
        assert isinstance(start, DiskNeighborhood)
        return replace(self, blocks=replace(self.blocks, folder=start.blocks.folder))

    def step(self, weights: FloatArray, shift: Shift) -> tuple[Neighborhood, Spread]:
        """Move all by one iteration, and merge."""
        old = self.blocks
        for number, pairs in enumerate(tournament(len(old.counts))):
            meet = _first_meeting if number == 0 else _meeting
            tree_reduce(meet, pairs, (old, weights, shift), shift.lazy, "blurring-pairs")
        name = f"turn-{shift.seed}"
        old.create(name, 2 * len(weights) + 2)
        jobs = [(block,) for block in range(len(old.counts))]
        found: list[tuple[NDArray[np.intp], Spread]] = tree_reduce(
            _move, jobs, (old, name, weights, shift), shift.lazy, "blurring-move"
        )
        spread: Spread = merge(part for _, part in found)
        new = DiskNeighborhood(
            replace(old, name=name, counts=tuple(part.n for _, part in found)),
            tuple(groups[m] for (groups, _), m in zip(found, self.members, strict=True)),
            self.memory_bytes,
        )
        if new.n * len(weights) * 8 > self.memory_bytes:
            return new, spread
        in_memory = new._in_memory()
        shutil.rmtree(old.folder / name)
        return in_memory, spread

    def _in_memory(self) -> MemoryNeighborhood:
        blocks = [self.blocks.read(block) for block in range(len(self.blocks.counts))]
        return MemoryNeighborhood(
            Representatives(
                np.concatenate([b.positions for b in blocks]),
                np.concatenate([b.row_sums for b in blocks]),
                np.concatenate([b.multiplicity for b in blocks]),
                np.concatenate([b.own for b in blocks]),
            ),
            self._all_members(),
        )

    def _all_members(self) -> NDArray[np.intp]:
        return np.concatenate(
            [m + offset for m, offset in zip(self.members, self._offsets(), strict=True)]
        )

    def _offsets(self) -> NDArray[np.intp]:
        return np.cumsum([0, *self.blocks.counts[:-1]])

    def components(self, tol: float, lazy: bool) -> tuple[int, Labels]:
        """Components of the graph of representatives within `tol`: their number, and of each."""
        pairs = [pair for turn in tournament(len(self.blocks.counts)) for pair in turn]
        edges: list[NDArray[np.intp]] = tree_reduce(
            _edges, pairs, (self.blocks, self._offsets(), tol), lazy, "blurring-components"
        )
        return components_of(self.n, np.concatenate(edges))

    def row_labels(self, labels: Labels) -> Labels:
        """Labels of the rows, from those of the representatives."""
        return labels[self._all_members()]

    def modes(self, labels: Labels, n_labels: int) -> tuple[FloatArray, FloatArray]:
        """Weighted mean position, and sum of sample weights, of the representatives of a label."""
        first = self.blocks.read(0)
        sums, weight = np.zeros((n_labels, first.positions.shape[1])), np.zeros(n_labels)
        for block, offset in enumerate(self._offsets()):
            some = self.blocks.read(block)
            add_to_means(some, labels[offset : offset + len(some)], sums, weight)
        return sums / weight[:, None], weight


def tournament(n: int) -> list[list[tuple[int, int]]]:
    """Rounds in which `n` blocks meet: first each itself, then each pair once.

    Within a round no block occurs twice (the circle method).
    """
    rounds = [[(block, block) for block in range(n)]]
    circle = list(range(n + n % 2))
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append([(min(pair), max(pair)) for pair in pairs if max(pair) < n])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return [pairs for pairs in rounds if pairs]


def _points(some: Representatives, weights: FloatArray, shift: Shift) -> Points:
    return Points.of(some.positions, some.multiplicity, weights, shift.bandwidth)


def _first_meeting(a: int, _: int, blocks: Blocks, weights: FloatArray, shift: Shift) -> int:
    """Kernel sums of a block with itself."""
    some = blocks.read(a)
    points = _points(some, weights, shift)
    sums = np.zeros(points.masses.shape)
    add_block_own(points, some.own_share(shift.self_term), sums)
    blocks.put(_SUMS, a, sums)
    return 0


def _meeting(a: int, b: int, blocks: Blocks, weights: FloatArray, shift: Shift) -> int:
    """Add the kernel sums that two blocks give each other."""
    pair = [_points(blocks.read(block), weights, shift) for block in (a, b)]
    sums = [blocks.rows_of(_SUMS, block, blocks.counts[block]) for block in (a, b)]
    add_block_pair(pair[0], pair[1], sums[0], sums[1])
    for block, found in zip((a, b), sums, strict=True):
        blocks.put(_SUMS, block, found)
    return 0


def _move(
    block: int, old: Blocks, name: str, weights: FloatArray, shift: Shift
) -> list[tuple[NDArray[np.intp], Spread]]:
    """Take a block to its means, and merge it: the new one of each, and what they tell."""
    some = old.read(block)
    sums = old.rows_of(_SUMS, block, len(some))
    moved = move(
        some, sums, shift, lambda lost: _shifted_sums(block, some, lost, old, weights, shift)
    )
    replace(old, name=name).write(block, moved.new)
    return [(moved.groups, moved.spread)]


def _shifted_sums(
    block: int,
    some: Representatives,
    lost: NDArray[np.intp],
    old: Blocks,
    weights: FloatArray,
    shift: Shift,
) -> FloatArray:
    """Kernel sums of rows that underflowed, over all blocks, without the self term."""
    rows = _points(some, weights, shift)[lost]
    total = ShiftedSums.empty(len(lost), some.positions.shape[1])
    for other in range(len(old.counts)):
        others = _points(old.read(other), weights, shift)
        own = lost if other == block else np.full(len(lost), -1)
        total = total + ShiftedSums.of(rows, others, own)
    return total.sums


def _edges(
    a: int, b: int, blocks: Blocks, offsets: NDArray[np.intp], tol: float
) -> list[NDArray[np.intp]]:
    found = close_edges(blocks.read(a).positions, blocks.read(b).positions, tol)
    return [found + offsets[[a, b]]]


def create_blocks(folder: Path, n_rows: int, n_features: int) -> Blocks:
    """Room on disk for some rows; the counts of the blocks are those of all rows.

    Parameters
    ----------
    folder : Path
        Exists; a distributed cluster's workers must see it.
    n_rows, n_features : int

    Returns
    -------
    Blocks
        To be written.
    """
    block_rows = max(1, min(n_rows, BLOCK_BYTES // (8 * n_features)))
    counts = tuple(min(block_rows, n_rows - start) for start in range(0, n_rows, block_rows))
    blocks = Blocks(folder, _START, counts, block_rows)
    blocks.create(_START, 2 * n_features + 2)
    blocks.create(_SUMS, n_features + 1)
    return blocks
