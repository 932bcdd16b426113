"""Memory and threads available to a computation."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from daskmm._dask import cpu_count, dask, is_configured
from daskmm.engine.clients import active_client

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Worker:
    """A process that visits blocks: a worker of the active cluster, or this process."""

    threads: int
    # Bytes that the process may take in all, before dask pauses it; None if unlimited or unknown.
    memory: int | None


def threads_here() -> int:
    """Return the number of threads that dask's local scheduler uses."""
    configured = dask.config.get("num_workers", None) if is_configured() else None
    return int(configured or cpu_count())


def this_process() -> Worker:
    """Return the threads and memory of this process."""
    free = available_bytes()
    return Worker(threads_here(), free + _resident_bytes() if free else None)


def smallest_worker(lazy: bool) -> Worker:
    """Return the process with the least memory per thread among those that will visit blocks.

    Workers of the active cluster visit lazy blocks; without one, and in memory, this process does.
    """
    client = active_client()
    if client is None or not lazy:
        return this_process()
    found = client.scheduler_info(n_workers=-1)["workers"].values()
    # dask gives no tasks to workers whose memory is filled to this share.
    share = dask.config.get("distributed.worker.memory.pause", 0.8) or 1.0
    workers = [Worker(w["nthreads"], int(share * (w["memory_limit"] or 0)) or None) for w in found]
    if not workers:
        return Worker(cpu_count(), None)
    return min(workers, key=lambda w: float("inf") if w.memory is None else w.memory / w.threads)


def memory_bytes() -> int:
    """Return the memory for persisted data: free memory here, or the sum of the workers' limits.

    A worker without a limit counts as 0, as its memory is unknown.
    """
    client = active_client()
    if client is None:
        return available_bytes()
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return sum(worker["memory_limit"] or 0 for worker in workers.values())


def available_bytes() -> int:
    """Return the memory that this process can still take; 0 if unknown."""
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


def _resident_bytes() -> int:
    """Return the memory that this process occupies; 0 if unknown."""
    pages = _read("/proc/self/statm").split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def peak_memory_bytes() -> int | None:
    """Return the peak memory of this process so far; None if the system does not report it."""
    try:
        # This is the peak of this program; getrusage may include that of its parent.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        pass
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
