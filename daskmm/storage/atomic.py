"""Write files and folders completely or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which is renamed to `path` at the end.

    The file or folder is flushed to the disk before it gets its name, so that a crash at any moment
    leaves the former one, or nothing. If the block raises, `path` stays as it was. Parent folders
    are made as needed. If `replace`, a file may replace a file, and a folder a folder. A folder is
    replaced in two steps: if the process dies between them, both lie beside the path, under hidden
    names.

    It raises FileExistsError if the path exists and is not to be replaced, and OSError if a folder
    is in the place of a file, or the reverse, or the disk is full.
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
        if fresh.is_dir() and path.is_dir():
            _replace_folder(fresh, path)
        else:
            os.replace(fresh, path)
            flush_folder(path.parent)
    except OSError as error:
        if error.filename is None and error.strerror == os.strerror(error.errno or 0):
            error.add_note(f"{path} cannot be written.")  # the error of a full disk names no file
        raise
    finally:
        if fresh.is_dir():
            shutil.rmtree(fresh, ignore_errors=True)
        else:
            fresh.unlink(missing_ok=True)


def _replace_folder(fresh: Path, path: Path) -> None:
    former = path.with_name(f"{fresh.name}.former")
    path.rename(former)
    try:
        fresh.rename(path)
    except BaseException:
        former.rename(path)
        raise
    flush_folder(path.parent)
    shutil.rmtree(former)


def check_absent(path: Path) -> None:
    """Raise FileExistsError if there is something at the path, even a broken link."""
    if path.exists() or path.is_symlink():
        raise FileExistsError(f"{path} exists. Choose another path, or remove it first.")


def flush_tree(path: Path) -> None:
    """Flush a file, or a folder and everything below it, to the disk."""
    if path.is_dir():
        for child in path.iterdir():
            flush_tree(child)
        flush_folder(path)
    else:
        with path.open("r+b") as file:  # Windows flushes only files that are open for writing
            os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, except on Windows, which cannot."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
