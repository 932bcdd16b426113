"""Let blocks reuse freed memory, also in the workers of a cluster (glibc only)."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Parameters of glibc's mallopt, and the largest mapping threshold that it accepts.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 1 << 25
_DEFAULT_MMAP_THRESHOLD = 1 << 17
# Free bytes that an arena may keep, enough for the blocks in use and those read ahead.
_KEPT_BYTES = 1 << 28
_LARGEST_INT = (1 << 31) - 1

_lock = threading.Lock()
_users = 0


@contextmanager
def memory_recycled() -> Iterator[None]:
    """Let blocks of up to 32 MB reuse memory that others have freed, within the context.

    dask starts its workers with ``MALLOC_TRIM_THRESHOLD_=65536``, so that they return unused
    memory. That also disables glibc's adaptation to large arrays: each is mapped, cleared by the
    system page by page and unmapped again, and loading a block takes three times as long as in a
    plain program. So the thresholds are raised while a task visits blocks, then restored.

    Nothing changes if that variable is unset, if the user has set ``MALLOC_MMAP_THRESHOLD_``, or if
    the allocator is not glibc's.
    """
    global _users
    given = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
    mallopt = _mallopt()
    if mallopt is None or not given.isdecimal() or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        yield
        return
    trim = min(int(given), _LARGEST_INT)
    with _lock:
        _users += 1
        if _users == 1:
            mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
            mallopt(_M_TRIM_THRESHOLD, max(trim, _KEPT_BYTES))
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                mallopt(_M_MMAP_THRESHOLD, _DEFAULT_MMAP_THRESHOLD)
                mallopt(_M_TRIM_THRESHOLD, trim)


@functools.cache
def _mallopt() -> Callable[[int, int], int] | None:
    """Return glibc's mallopt, or None with another allocator."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - mallopt has no effect without glibc
        return library.mallopt
    except (OSError, AttributeError, TypeError):
        return None
