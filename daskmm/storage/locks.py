"""Locks of paths that are about to be written: two processes do not write the same one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daskmm.storage.readable import readable_seconds
from daskmm.storage.remote import check_writable, is_remote, local_path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Bytes of a lock file, so that a disk without any room left is noticed.
_SIZE = 1 << 16
# Errors of writing that free space mends.
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


class LockedError(OSError):
    """Another process is writing the same path; the message says which one, and since when."""


@contextmanager
def reserved(out: str | Path) -> Iterator[None]:
    """Make sure that an output can be written, and that no other process writes it meanwhile.

    Parameters
    ----------
    out : str or Path
        A local path is locked by a file beside it. To an object store, which has no locks, an
        empty object is written.

    Raises
    ------
    LockedError
        If another process holds the lock.
    OSError
        If the output cannot be written; the message has the reason.
    """
    if is_remote(out):
        check_writable(str(out))
        yield
        return
    path = local_path(out).absolute()
    with locked(path, path.parent / f".{path.name}.lock"):
        yield


@contextmanager
def locked(path: Path, lock: Path) -> Iterator[None]:
    """Hold the lock of a local path that is going to be written.

    The lock file has host, process and time. The system also locks it for this process, and so
    releases it when the process dies. Folders that are made for it are removed at the end, unless
    something else is in them.

    Parameters
    ----------
    path : Path
        For messages.
    lock : Path
        The lock file.

    Raises
    ------
    LockedError, OSError
        As in `reserved`.
    """
    made: list[Path] = []
    try:
        try:
            made += (folder for folder in lock.parents if not folder.exists())
            for folder in reversed(made):
                folder.mkdir(exist_ok=True)
            descriptor = _taken(path, lock)
        except LockedError:
            raise
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            reason = f"{path} cannot be written: {error.strerror or error}{where}."
            raise OSError(error.errno, reason) from error
        try:
            yield
        finally:
            _release(descriptor, lock)
    finally:
        for folder in made:
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()


def _taken(path: Path, lock: Path) -> int:
    """Create a lock file, or take over that of a dead process; return its descriptor."""
    try:
        new, descriptor = True, os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        new, descriptor = False, os.open(lock, os.O_RDWR)
    try:
        owner = {} if new else _owner(descriptor)
        if not _is_free(descriptor, new, owner):
            raise LockedError(_held(path, lock, owner))
        if os.fstat(descriptor).st_ino == lock.stat().st_ino:
            mine = {"host": socket.gethostname(), "process": os.getpid(), "since": time.time()}
            _write(descriptor, json.dumps(mine).ljust(_SIZE).encode())
            return descriptor
    except LockedError:
        os.close(descriptor)
        raise
    except FileNotFoundError:
        pass
    except OSError:
        _release(descriptor, lock)
        raise
    # Its owner has just removed it.
    os.close(descriptor)
    return _taken(path, lock)


def _owner(descriptor: int) -> dict[str, Any]:
    """Return what a lock file says of its owner; nothing if it is not written completely."""
    try:
        return dict(json.loads(os.read(descriptor, _SIZE)))
    except ValueError:
        return {}


def _is_free(descriptor: int, new: bool, owner: dict[str, Any]) -> bool:
    """Lock a file for this process, and return whether no other one may hold it."""
    if fcntl is None:
        return new
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without such locks
        return new
    # Locks of network file systems may be those of one host only.
    return owner.get("host", socket.gethostname()) == socket.gethostname()


def _held(path: Path, lock: Path, owner: dict[str, Any]) -> str:
    who, since = "another process", ""
    if owner:
        who = f"process {owner['process']} on {owner['host']}"
        since = f", for {readable_seconds(time.time() - owner['since'])} now"
    return (
        f"{path} is being written by {who}{since}. Choose another path, or wait until it ends. "
        f"If it is dead, delete {lock}."
    )


def _write(descriptor: int, content: bytes) -> None:
    """Write the whole of a file, down to the disk."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    while content:
        content = content[os.write(descriptor, content) :]
    os.fsync(descriptor)


def _release(descriptor: int, lock: Path) -> None:
    if fcntl is None:  # Windows removes no file that is open
        os.close(descriptor)
    with contextlib.suppress(OSError):
        lock.unlink()
    if fcntl is not None:
        os.close(descriptor)


def remedy(error: OSError) -> str:
    """Say what to do about an error of writing."""
    return "free space" if error.errno in _FULL else "mend that"
