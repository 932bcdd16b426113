"""Checks of values and sample weights; messages name the block and row at fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm._dask import da, is_dask_array
from daskmm.data.blocks import Block, Position, RowBlocks, cut_rows, is_series, refuse_masked
from daskmm.data.lazy import array_of_frame, delayed_blocks, in_memory
from daskmm.data.names import counted
from daskmm.data.sparse import sparse_rows
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.sparse_rows import SparseRows, first_entry


def check_domain(
    rows: NDArray,
    position: Position,
    offset: int,
    distortion: Distortion | type[Distortion],
    partial: bool,
) -> None:
    """Raise ValueError if values are outside of a distortion's domain, naming block and row.

    Rows are in the model's coordinates, (n_rows, n_features); the first is row `offset` of the
    block. NaN are missing values if `partial`. `check_finite` is not called then; so this function
    also raises for infinities.
    """
    if partial:
        check_infinite(rows, position, offset)
    outside = distortion.outside(rows)
    if outside is not None:
        row, feature = first_entry(outside)
        negative = "Negative values in data: " if rows[row, feature] < 0 else ""
        raise ValueError(
            f"{negative}Input X contains {rows[row, feature]:.6g}, which is outside of the domain "
            f"of {distortion.title} ({distortion.domain}): {position.of_row(offset + row)}, "
            f"feature {feature}."
        )


def check_empty(block: Block, distortion: Distortion | type[Distortion]) -> None:
    """Raise ValueError for the first row of a block that has a weight but no distances.

    Such rows are those without any value or, for the cosine distance, those of zeros.
    """
    found = np.flatnonzero(distortion.empty(block.rows))
    if block.weights is not None:
        found = found[block.weights[found] > 0]
    if len(found):
        others = counted(len(found) - 1, "more row")
        more = f", and {others} in this block" if len(found) > 1 else ""
        raise ValueError(
            f"Input X has a row {distortion.emptiness}: {block.position.of_row(int(found[0]))}"
            f"{more}. Remove such rows first, or label them -1 by empty_rows='label' "
            "(--empty-rows label), which KMeans, PowerKMeans and EntropyPowerKMeans take."
        )


# Bounds of positive sample weights. Beyond them, sums may overflow or products may underflow.
_LIGHTEST, _HEAVIEST = 1e-100, 1e100


def checked_rows(rows: Any, position: Position) -> NDArray:
    """Return the rows of a lazy block as a plain array, or as sparse rows.

    TypeError is raised for any other type, and ValueError if the shape is unexpected, if values are
    not numeric or are masked, or if the arrays of a sparse matrix are not valid.
    """
    where = f"block {position.block}"
    if position.sparse:
        rows = sparse_rows(rows, where)
    elif not isinstance(rows, np.ndarray):
        raise TypeError(
            f"X must have numpy blocks; {where} is a {type(rows).__name__}. If blocks are sparse, "
            "the array must say so: X.map_blocks(lambda b: b, meta=scipy.sparse.csr_array((0, 0)))."
        )
    else:
        refuse_masked(rows, "X", where)
        rows = np.asarray(rows)
    if rows.dtype.kind not in "fiub":
        raise ValueError(f"X must have numeric blocks; {where} has dtype {rows.dtype}.")
    expected = position.shape
    fits = rows.ndim == 2 and all(
        wanted in (None, found) for wanted, found in zip(expected, rows.shape, strict=False)
    )
    if not fits:
        n, p = ("n" if size is None else size for size in expected)
        raise ValueError(
            f"X has changed since it was opened, or its chunks are wrong: "
            f"{position.described} has shape {rows.shape} in place of ({n}, {p})."
        )
    return rows


def one_dimensional(sample_weight: Any, lazy: bool) -> NDArray | da.Array:
    """Return sample weights (an array, series, list or number) as an array of at most 1 dimension.

    With `lazy`, dask arrays and series stay lazy; otherwise they are computed. ValueError is raised
    if there are more dimensions, or values in memory are masked.
    """
    if lazy and is_series(sample_weight):
        return array_of_frame(sample_weight)
    if not (lazy and is_dask_array(sample_weight)):
        refuse_masked(sample_weight, "sample_weight")
        sample_weight = _numeric(in_memory(sample_weight))
    if sample_weight.ndim > 1 or (sample_weight.ndim == 0 and is_dask_array(sample_weight)):
        raise ValueError(
            f"sample_weight must be 1D, got {sample_weight.ndim}D: Sample weights must be 1D"
        )
    return sample_weight


def _numeric(weights: NDArray) -> NDArray:
    """Return an array of objects, such as decimals, as numbers; other arrays unchanged."""
    if weights.dtype != object:
        return weights
    try:
        return weights.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"sample_weight must be numbers: {error}") from error


def needs_row_counts(weights: NDArray | da.Array) -> bool:
    """Return whether rows must be counted before these weights can be cut into blocks.

    This is not needed for weights of unknown length, which are matched block by block.
    """
    return not (weights.ndim == 1 and np.isnan(weights.shape[0]))


def with_weights(blocks: RowBlocks, weights: Any) -> RowBlocks:
    """Return the same blocks with sample weights, as `one_dimensional` returns them.

    Weights may be chunked in any way. If their length is unknown, they must be chunked like the
    rows; `checked_weights` tests the lengths in every pass. ValueError is raised if the numbers of
    rows (or of blocks) differ.
    """
    layout, table = blocks.layout, blocks.table
    if weights.ndim == 0:
        weights = np.full(layout.n_rows or 0, weights)
    if np.isnan(weights.shape[0]):
        if weights.numblocks[0] != layout.n_blocks:
            raise ValueError(
                "sample_weight cannot be matched to X: row counts are unknown, and X has "
                f"{layout.n_blocks} blocks, sample_weight {weights.numblocks[0]}."
            )
    elif weights.shape[0] != layout.n_rows:
        raise ValueError(
            f"sample_weight has {weights.shape[0]} entries, X has {layout.n_rows} rows."
        )
    if weights.shape[0] == 0:
        return blocks  # dask cannot cut an empty array into several blocks
    if not is_dask_array(table):
        return replace(blocks, weights=cut_rows(weights, layout.rows))
    if not is_dask_array(weights):
        weights = da.from_array(weights, chunks=-1)
    if not np.isnan(weights.shape[0]):
        weights = weights.rechunk((layout.rows,))
    # Rows and weights are optimized together; otherwise a source of both would be loaded twice.
    return replace(
        blocks,
        parts=tuple(delayed_blocks(table, together=True).ravel()),
        weights=tuple(delayed_blocks(weights, together=True).ravel()),
    )


def checked_weights(weights: Any, n_rows: int, position: Position) -> NDArray[np.float64]:
    """Return the sample weights of one block as float64.

    ValueError is raised if they are not one finite, non-negative number per row.
    """
    where = f"block {position.block}"
    refuse_masked(weights, "sample_weight", where)
    values = np.asarray(weights)
    if values.dtype.kind not in "fiubO":
        raise ValueError(f"sample_weight has dtype {values.dtype}, which is not numeric ({where}).")
    if values.shape != (n_rows,):
        raise ValueError(
            f"sample_weight has shape {values.shape} where X has {n_rows} rows ({where})."
        )
    try:
        values = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"sample_weight must be numbers ({where}): {error}") from error
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        row = int(bad[0])
        raise ValueError(
            f"sample_weight must be finite and not negative; it is {values[row]} in "
            f"{position.of_row(row)}. Negative values in data passed to `sample_weight`."
        )
    extreme = np.flatnonzero((values != 0) & ~((values >= _LIGHTEST) & (values <= _HEAVIEST)))
    if len(extreme):
        row = int(extreme[0])
        raise ValueError(
            f"sample_weight must be 0 or between {_LIGHTEST:g} and {_HEAVIEST:g}; it is "
            f"{values[row]} in {position.of_row(row)}. Only ratios of weights count: multiply all "
            "by a number."
        )
    return values


def check_row_count(n_rows: int, n_clusters: int) -> None:
    """Raise ValueError if a table is empty, or has fewer rows than clusters."""
    if n_rows == 0:
        raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required: X.")
    if n_rows < n_clusters:
        raise ValueError(f"n_samples={n_rows} should be >= n_clusters={n_clusters}.")


def check_positive_weights(n_positive: int, n_clusters: int) -> None:
    """Raise ValueError if there are fewer rows of positive weight than clusters."""
    if n_positive < n_clusters:
        raise ValueError(
            f"Only {n_positive} row(s) have a value and a sample_weight above zero, fewer than "
            f"n_clusters={n_clusters}."
        )


def check_squares(block: Block) -> None:
    """Raise ValueError if the square of a value overflows; the message names the first one's row.

    Rows without weight are not tested.
    """
    rows, light = block.rows, block.masses == 0
    values = rows.data if isinstance(rows, SparseRows) else rows
    owner = rows.row_of_entry if isinstance(rows, SparseRows) else np.arange(len(rows))[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        bad = np.isinf(np.square(values, dtype=np.float64)) & ~light[owner]
    if bad.any():
        row, feature = first_entry(rows.with_data(bad) if isinstance(rows, SparseRows) else bad)
        raise ValueError(
            f"Input X contains {rows[row, feature]:.6g}, whose square overflows float64: "
            f"{block.position.of_row(row)}, feature {feature}. Scale the data first."
        )


_PARTIAL = (
    ", or give missing='partial' (--missing partial), which KMeans, PowerKMeans, "
    "EntropyPowerKMeans and GaussianMixture take"
)


def check_infinite(rows: NDArray, position: Position, offset: int = 0) -> None:
    """Raise ValueError for infinities, as `check_finite` does, but not for missing values."""
    if np.isinf(rows).any():
        row, feature = first_entry(np.isinf(rows))
        raise ValueError(
            f"Input X contains infinity: {position.of_row(offset + row)}, feature {feature}. "
            "Missing values must be NaN."
        )


def check_finite(rows: NDArray, position: Position, offset: int = 0) -> None:
    """Raise ValueError for NaN and infinities; the message names block and row of the first one.

    `rows` start at row `offset` of the block.
    """
    values = rows.data if isinstance(rows, SparseRows) else rows
    # Entries are tested only if their sum is not finite. Then an entry is not finite, or the sum
    # overflows.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):
            return
    bad = ~np.isfinite(values)
    if bad.any():
        row, feature = first_entry(rows.with_data(bad) if isinstance(rows, SparseRows) else bad)
        value = "NaN" if np.isnan(rows[row, feature]) else "infinity"
        local = offset + row
        partial = "" if value == "infinity" else _PARTIAL
        raise ValueError(
            f"Input X contains {value}: {position.of_row(local)}, feature {feature}. Remove or "
            f"impute such rows first{partial}."
        )
