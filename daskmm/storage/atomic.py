"""Write files and folders completely or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what is written there is renamed to `path` at the end.

    The file or folder is on the disk before it gets its name, so that a crash at any moment
    leaves what was there before, or nothing. If the block raises, `path` stays as it was.

    Parameters
    ----------
    path : Path
        Parent folders are made as needed.
    replace : bool
        Whether to replace what is at the path. A folder cannot be replaced in one step: should
        the process die in between, `restore_former` puts the former one back.

    Raises
    ------
    FileExistsError
        If the path exists and is not to be replaced.
    """
    if not replace:
        check_absent(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield fresh
        flush_tree(fresh)
        if not replace:
            check_absent(path)
        if path.is_dir():
            _replace_folder(fresh, path)
        else:
            os.replace(fresh, path)
            flush_folder(path.parent)
    finally:
        if fresh.is_dir():
            shutil.rmtree(fresh, ignore_errors=True)
        else:
            fresh.unlink(missing_ok=True)


def _replace_folder(fresh: Path, path: Path) -> None:
    former = _former(path)
    shutil.rmtree(former, ignore_errors=True)
    path.rename(former)
    try:
        fresh.rename(path)
    except BaseException:
        former.rename(path)
        raise
    flush_folder(path.parent)
    shutil.rmtree(former)


def _former(path: Path) -> Path:
    """Where a folder is while another one takes its place."""
    return path.with_name(f".{path.name}.former")


def restore_former(path: Path) -> None:
    """Put a folder back if the process that replaced it died between the two renames."""
    if not path.exists() and _former(path).exists():
        with contextlib.suppress(OSError):  # another process may just have done it
            _former(path).rename(path)


def check_absent(path: Path) -> None:
    """Raise FileExistsError if the path exists."""
    if path.exists():
        raise FileExistsError(f"{path} exists. Choose another path, or remove it first.")


def flush_tree(path: Path) -> None:
    """Flush a file, or a folder and everything below it, to the disk."""
    if path.is_dir():
        for child in path.iterdir():
            flush_tree(child)
        flush_folder(path)
    else:
        with path.open("r+b") as file:  # Windows flushes only what is open for writing
            os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk; does nothing on Windows, which cannot."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
