"""Memory that one block has given back is there for the next, also in the workers of a cluster."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Parameters of glibc's mallopt, and the largest mapping threshold that it takes.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 1 << 25
_DEFAULT_MMAP_THRESHOLD = 1 << 17
# Free bytes that an arena may keep: the blocks in use and those read ahead.
_KEPT_BYTES = 1 << 28
_LARGEST_INT = (1 << 31) - 1

_lock = threading.Lock()
_users = 0


@contextmanager
def memory_recycled() -> Iterator[None]:
    """Within, blocks of up to 32 MB take the memory that others have let go of.

    dask starts its workers with ``MALLOC_TRIM_THRESHOLD_=65536``, so that they give back what they
    do not need. That also ends glibc's own adaptation to large arrays: each of them is mapped,
    cleared by the system page by page, and unmapped again, and to load a block takes three times
    as long as in a program of its own. So the thresholds are raised while a task visits blocks,
    and put back behind it.

    Does nothing where that variable is unset, where ``MALLOC_MMAP_THRESHOLD_`` says what the user
    wants, or under another allocator than glibc's.
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
    """glibc's, if that is what allocates here."""
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - others have a mallopt without effect
        return library.mallopt
    except (OSError, AttributeError, TypeError):
        return None
