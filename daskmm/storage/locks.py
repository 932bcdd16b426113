"""Locks that keep two processes from writing the same path."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import socket
import stat
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

# Bytes of a lock file: it is so large that writing it to a full disk fails.
_SIZE = 1 << 16
# Opening a lock file must not follow a link and, on Windows, must not translate ends of lines.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
# Errors of writing that go away when space is freed.
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


class LockedError(OSError):
    """A path cannot be locked: the message names the process that holds it, or the obstacle."""


@contextmanager
def reserved(out: str | Path) -> Iterator[None]:
    """Make sure that an output can be written, and that no other process writes it meanwhile.

    A local path is locked by a file beside it. Object stores have no locks; an empty object is
    written there as a test. It raises LockedError if another process holds the lock, or the file in
    its place is no lock of this library, and OSError if the output cannot be written; the message
    says why.
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
    """Hold the lock of a local path that is going to be written; errors are those of `reserved`.

    The lock file names host, process and time. The system also locks it for this process, and
    releases it when the process dies. Folders that are made for the lock file are removed at the
    end, unless they have other contents.
    """
    made: list[Path] = []
    try:
        try:
            _make_folders(lock.parent, made)
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
        for folder in reversed(made):
            with contextlib.suppress(OSError):  # the folder is not empty
                folder.rmdir()


def _make_folders(folder: Path, made: list[Path]) -> None:
    """Make a folder and its parents, and add those that this process made to `made`."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        try:
            each.mkdir()
        except FileExistsError:  # another process made the folder, or there is a file
            if not each.is_dir():
                raise
        else:
            made.append(each)


def _taken(path: Path, lock: Path) -> int:
    """Create a lock file, or take over that of a dead process; return its descriptor."""
    while True:
        new, descriptor = _opened(path, lock)
        try:
            _check_free(descriptor, new, path, lock)
            named = _is_named(descriptor, lock)
        except BaseException:
            os.close(descriptor)
            raise
        if named:
            return _claimed(descriptor, lock)
        os.close(descriptor)  # the owner has just removed the file


def _check_free(descriptor: int, new: bool, path: Path, lock: Path) -> None:
    """Raise LockedError if another process may hold the lock, or the file is no lock."""
    free = _is_free(descriptor)
    owner = {} if new else _owner(descriptor)
    if owner is None and free is not False:
        raise _foreign(path, lock)
    owner = owner or {}
    # Locks of network file systems may hold on one host only.
    here = owner.get("host", socket.gethostname()) == socket.gethostname()
    if not (new if free is None else free and here):
        raise LockedError(_held(path, lock, owner))


def _opened(path: Path, lock: Path) -> tuple[bool, int]:
    """Open a lock file, without following links; return whether it is new, and its descriptor."""
    while True:
        with contextlib.suppress(FileExistsError):
            return True, os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666)
        with contextlib.suppress(FileNotFoundError):  # the owner has just removed the file
            if not stat.S_ISREG(lock.lstat().st_mode):
                raise _foreign(path, lock)
            return False, os.open(lock, os.O_RDWR | _NO_LINK)


def _owner(descriptor: int) -> dict[str, Any] | None:
    """Return the owner that a lock file names: {} if it is empty, None if it is no lock."""
    content = os.read(descriptor, _SIZE + 1)
    if not content:  # the owner died before it wrote anything
        return {}
    try:
        owner = json.loads(content)
        known = isinstance(owner["host"], str) and isinstance(owner["process"], int)
        return owner if known and math.isfinite(owner["since"]) else None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _is_free(descriptor: int) -> bool | None:
    """Lock a file for this process; return whether it was free, or None if that is unknown."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without such locks
        return None
    return True


def _is_named(descriptor: int, lock: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), lock.lstat())
    except FileNotFoundError:
        return False


def _claimed(descriptor: int, lock: Path) -> int:
    """Write the owner into a lock file; return its descriptor."""
    mine = {"host": socket.gethostname(), "process": os.getpid(), "since": time.time()}
    try:
        _write(descriptor, json.dumps(mine).ljust(_SIZE).encode())
    except OSError:
        _release(descriptor, lock)
        raise
    return descriptor


def _foreign(path: Path, lock: Path) -> LockedError:
    return LockedError(
        f"{path} cannot be written: {lock} is in the way and is not a lock file of daskmm. "
        "Choose another path, or move that file."
    )


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
    """Write the whole of a file and flush it to the disk."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    while content:
        content = content[os.write(descriptor, content) :]
    os.fsync(descriptor)


def _release(descriptor: int, lock: Path) -> None:
    mine = _is_named(descriptor, lock)
    if fcntl is None:  # Windows does not remove open files
        os.close(descriptor)
    with contextlib.suppress(OSError):
        if mine:
            lock.unlink()
    if fcntl is not None:
        os.close(descriptor)


def remedy(error: OSError) -> str:
    """Return what a user can do about an error of writing."""
    return "free space" if error.errno in _FULL else "correct that"
