"""The rows of a table as blurring begins: in the model's coordinates, in memory or on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Position
from daskmm.data.validation import checked_rows
from daskmm.engine.first_pass import Survey
from daskmm.engine.passes import Passes, tree_reduce
from daskmm.engine.worker_task import merge
from daskmm.mean_shift.blurring import Rows, rows_in_memory
from daskmm.mean_shift.disk_neighborhood import Blocks, DiskNeighborhood, create_blocks
from daskmm.mean_shift.representatives import Representatives
from daskmm.numerics.rows import Coordinates

FloatArray = NDArray[np.float64]

# Positions that take more bytes are kept on disk. In memory there are some ten times as many:
# rows, sums, what tiles need, and sums of the pass for each thread.
MEMORY_BYTES = 256 << 20


@dataclass(frozen=True)
class Gathered:
    """Rows to be blurred, and which of the table's rows they are.

    Attributes
    ----------
    rows : Rows
    kept : ndarray of bool of shape (n_rows,)
        Rows of positive weight; the others take no part.
    """

    rows: Rows
    kept: NDArray[np.bool_]


def gather(passes: Passes, survey: Survey, merge_tol: float, folder: Path) -> Gathered:
    """Read the rows once.

    Parameters
    ----------
    passes : Passes
        Row counts known.
    survey : Survey
    merge_tol : float
    folder : Path
        Where rows may be kept that do not fit in memory.

    Returns
    -------
    Gathered
    """
    n_features = passes.blocks.layout.n_features
    if survey.n_rows * n_features * 8 > MEMORY_BYTES:
        return _gather_on_disk(passes, survey, folder)
    pieces: list[_Piece] = passes.reduce(_piece, survey.coordinates)
    rows = np.concatenate([piece.rows for piece in pieces])
    weights = np.concatenate([piece.weights for piece in pieces])
    kept = np.concatenate([piece.kept for piece in pieces])
    return Gathered(rows_in_memory(rows, weights, merge_tol, survey.varying), kept)


@dataclass(frozen=True)
class _Piece:
    """Rows of positive weight of one block."""

    rows: FloatArray
    weights: FloatArray
    kept: NDArray[np.bool_]


def _piece(
    rows: NDArray, weights: FloatArray | None, position: Position, coordinates: Coordinates
) -> list[_Piece]:
    weights = np.ones(len(rows)) if weights is None else np.asarray(weights, dtype=np.float64)
    kept = weights > 0
    return [_Piece(coordinates.to_model(rows[kept]), weights[kept], kept)]


def _gather_on_disk(passes: Passes, survey: Survey, folder: Path) -> Gathered:
    layout = passes.blocks.layout
    blocks = create_blocks(folder, survey.n_rows, layout.n_features)
    jobs = _aligned(passes, blocks.counts)
    passes.add(1)
    written: list[_Written] = tree_reduce(
        _write, jobs, (blocks, survey.coordinates), layout.lazy, "blurring-rows"
    )
    blocks = replace(blocks, counts=tuple(piece.n for piece in written))
    members = tuple(np.arange(piece.n) for piece in written)
    start = DiskNeighborhood(blocks, members, MEMORY_BYTES)
    squares = merge(piece.squares for piece in written)
    kept = np.concatenate([piece.kept for piece in written])
    return Gathered(Rows(start, squares, survey.weight, survey.varying), kept)


def _aligned(passes: Passes, counts: tuple[int, ...]) -> Sequence[tuple[Any, Any, int]]:
    """Rows and weights of each block on disk, whatever the chunks of the table are."""
    parts, weights = passes.blocks.parts, passes.blocks.weights
    rows = passes.blocks.layout.rows
    assert rows is not None
    if not passes.blocks.layout.lazy:
        ends = np.cumsum(counts)
        together = None if weights is None else np.concatenate(weights)
        return [
            (
                passes.blocks.table[stop - count : stop],
                None if together is None else together[stop - count : stop],
                block,
            )
            for block, (count, stop) in enumerate(zip(counts, ends, strict=True))
        ]
    table = _rechunked(parts, rows, (passes.blocks.layout.n_features,), counts)
    wanted = table.to_delayed(optimize_graph=False).ravel()
    if weights is None:
        return [(part, None, block) for block, part in enumerate(wanted)]
    column = _rechunked(weights, rows, (), counts)
    weighted = column.to_delayed(optimize_graph=False).ravel()
    return [(part, v, i) for i, (part, v) in enumerate(zip(wanted, weighted, strict=True))]


def _rechunked(
    parts: Sequence[Any], rows: Sequence[int], others: tuple[int, ...], counts: tuple[int, ...]
) -> da.Array:
    """Delayed blocks as one array in chunks of other lengths."""
    arrays = [
        da.from_delayed(part, (count, *others), dtype=np.float64)
        for part, count in zip(parts, rows, strict=True)
    ]
    whole: da.Array = da.concatenate(arrays)
    return whole.rechunk((counts, *others))


@dataclass(frozen=True)
class _Written:
    """A block on disk."""

    n: int
    squares: FloatArray
    kept: NDArray[np.bool_]


def _write(
    rows: NDArray, weights: FloatArray | None, block: int, blocks: Blocks, coordinates: Coordinates
) -> list[_Written]:
    place = Position(block, 0, shape=(blocks.counts[block], len(coordinates.mean)))
    [piece] = _piece(checked_rows(rows, place), weights, place, coordinates)
    blocks.write(block, Representatives.of(piece.rows, piece.weights))
    return [_Written(len(piece.rows), piece.weights @ piece.rows**2, piece.kept)]
