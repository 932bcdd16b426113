"""Lazy blocks kept in memory while they are visited many times."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from dask.base import get_scheduler, named_schedulers
from dask.delayed import Delayed

from daskmm.blocks import RowBlocks
from daskmm.job_graph import JobGraph
from daskmm.watching import client_of

Persist = bool | Literal["auto"]

# Share of the memory that data may take to be kept by themselves.
_SHARE = 3
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


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
    values = JobGraph(blocks.pairs, blocks.table).values()
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


def memory_bytes() -> int:
    """Memory for data: what is left to this process, or the limits of a cluster's workers.

    A worker without a limit counts for nothing: how much it may take is not known. So do processes
    of dask's local scheduler, which keep nothing: blocks would be sent to them in every pass.
    """
    schedule = get_scheduler(cls=Delayed)
    client = client_of(schedule)
    if client is None:
        return 0 if schedule is named_schedulers["processes"] else _available_bytes()
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return sum(worker["memory_limit"] or 0 for worker in workers.values())


def _available_bytes() -> int:
    """Memory that this process can still take; 0 where the system does not say."""
    try:
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, OSError, ValueError):
        return 0
    limits += [int(text) for path in _CGROUP_LIMITS if (text := _read(path)).isdigit()]
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) << 10)
    import resource

    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            limits.append(limit)
    return min(limits)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""
