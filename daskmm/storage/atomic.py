"""Files and folders written whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary sibling that takes the place of `path` when all went well, and else goes.

    Raises
    ------
    FileExistsError
        If there is something at the path.
    """
    check_absent(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield fresh
        check_absent(path)
        fresh.rename(path)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def check_absent(path: Path) -> None:
    """Refuse an output path that is taken.

    Raises
    ------
    FileExistsError
    """
    if path.exists():
        raise FileExistsError(f"{path} exists. Choose another path, or remove it first.")


def flush_folder(folder: Path) -> None:
    """See that the names in a folder are on the disk, where the system can tell."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """See that all files below a folder are on the disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            flush_folder(path)
    flush_folder(folder)
