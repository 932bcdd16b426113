"""Lazy blocks kept in memory while they are visited many times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from dask.delayed import Delayed

from daskmm.data.blocks import RowBlocks
from daskmm.engine.graph import JobGraph
from daskmm.engine.resources import memory_bytes

Persist = bool | Literal["auto"]

# Share of the memory that data may take to be kept by themselves.
_SHARE = 3


def held(blocks: RowBlocks, persist: Persist) -> RowBlocks:
    """The same blocks in memory: by one compute that loads each once.

    Parameters
    ----------
    blocks : RowBlocks
        In memory, they stay as they are.
    persist : bool or "auto"
        "auto" keeps them when they take less than a third of the memory there is; row counts must
        be known for that.

    Returns
    -------
    RowBlocks
        On a cluster, of futures: blocks stay with the workers that loaded them, and are released
        with the last reference. Else, of what they stand for.
    """
    if not blocks.layout.lazy or not persist or (persist == "auto" and not _fits(blocks)):
        return blocks
    values = JobGraph(blocks.pairs, blocks.table, "block").values()
    pairs = [tuple(_kept(item, values) for item in pair) for pair in blocks.pairs]
    weights = None if blocks.weights is None else tuple(pair[1] for pair in pairs)
    return replace(blocks, parts=tuple(pair[0] for pair in pairs), weights=weights)


def _kept(item: Any, values: dict[Any, Any]) -> Any:
    """A block as it is kept: a value, or a Delayed of a future."""
    if not isinstance(item, Delayed):
        return item
    value = values[item.key]
    return Delayed(item.key, {item.key: value}) if _is_future(value) else value


def _is_future(value: Any) -> bool:
    return hasattr(value, "client") and hasattr(value, "release")


def _fits(blocks: RowBlocks) -> bool:
    layout = blocks.layout
    if layout.n_rows is None:
        return False
    row_bytes = layout.bytes_per_row + (0 if blocks.weights is None else 8)
    return layout.n_rows * row_bytes * _SHARE < memory_bytes()
