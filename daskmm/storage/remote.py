"""Write and read folders on object stores through local copies.

fsspec knows the stores. An object appears when all of its bytes have arrived, but a folder is only
a common prefix of names, so the object that readers look for first is written last. Every request
is repeated, for `PATIENCE` at most, while the store cannot be reached.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import re
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daskmm.storage.atomic import check_absent

# Seconds for which a request is repeated, and pauses between the tries.
PATIENCE, _PAUSES = 300.0, (1.0, 2.0, 4.0, 8.0, 15.0)
# Errors that another try will not correct.
_LASTING = (FileNotFoundError, PermissionError, KeyError, TypeError, ValueError, MemoryError)
_EXPECTED = (OSError, ImportError, *_LASTING)

logger = logging.getLogger("daskmm")

# Object that lists the objects of an upload until it is complete.
UNFINISHED = ".daskmm-upload"

# The single slash is what pathlib makes of a URL: "s3:/bucket".
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def is_remote(path: str | Path) -> bool:
    """Return whether a path is a URL of something other than local files."""
    return bool(_URL.match(str(path))) and not str(path).startswith("file:/")


def local_path(path: str | Path, what: str = "This") -> Path:
    """Return a path of this machine; the scheme ``file://`` is removed.

    It raises ValueError for a URL with another scheme; the message begins with `what`.
    """
    if is_remote(path):
        raise ValueError(
            f"{what} cannot be kept at {_whole(path)}: it is changed in place, which object stores "
            "do not support. Choose a local or a mounted folder."
        )
    return Path(re.sub(r"^file:/+", "/", str(path)))


@contextmanager
def refusals(path: str | Path) -> Iterator[None]:
    """Raise errors of a store's own library, such as missing credentials, as OSError."""
    try:
        yield
    except _EXPECTED:
        raise
    except Exception as error:
        if not is_remote(path):
            raise
        raise OSError(f"{_whole(path)} cannot be reached: {str(error) or repr(error)}") from error


def patiently(request: Callable[[], Any], path: str | Path) -> Any:
    """Return the result of a request; repeat it while a remote path cannot be reached."""
    if not is_remote(path):
        return request()
    end = time.monotonic() + PATIENCE
    pauses = itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1]))
    while True:
        pause = next(pauses)
        try:
            with refusals(path):
                return request()
        except Exception as error:
            cause = error.__cause__ or error
            lasting = isinstance(cause, _LASTING) or "Credentials" in type(cause).__name__
            if lasting or time.monotonic() + pause > end:
                raise
            logger.warning("%s cannot be reached, trying again in %g s: %s", path, pause, error)
        time.sleep(pause)


def check_new(path: str | Path) -> None:
    """Raise FileExistsError if there is something at a path or a URL."""
    if not is_remote(path):
        check_absent(local_path(path))
    elif exists(path):
        raise FileExistsError(f"{path} exists. Choose another path, or remove it first.")


def inside(path: str | Path, name: str) -> str | Path:
    """Return the path or URL of an entry of a folder."""
    return f"{str(path).rstrip('/')}/{name}" if is_remote(path) else local_path(path) / name


def exists(path: str | Path) -> bool:
    """Return whether there is something at a path or a URL."""
    if not is_remote(path):
        return local_path(path).exists()
    return bool(_Store(path).request("exists"))


def check_writable(url: str) -> None:
    """Write an empty object beside a URL, and remove it.

    It raises OSError if that is not possible; the message has the store's reason.
    """
    store = _Store(f"{url}.{uuid.uuid4().hex}")
    try:
        with tempfile.NamedTemporaryFile() as empty:
            store.put(Path(empty.name), "")
    except Exception as error:  # each kind of store has its own errors
        raise OSError(f"{url} cannot be written: {str(error) or repr(error)}") from error
    with contextlib.suppress(Exception):  # some users may write objects, but not remove them
        store.remove("")


def names_in(path: str | Path) -> set[str]:
    """Return the names of the files and folders in a folder; {} if there is no folder."""
    if is_remote(path):
        return {name.split("/", 1)[0] for name in _Store(path).names()}
    folder = local_path(path)
    return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()


@contextmanager
def uploaded(
    url: str, last: str, replaced: Callable[[str], object] | None = None
) -> Iterator[Path]:
    """Yield a local path that is uploaded to a URL at the end, unless an error is raised.

    The caller makes a folder or one file there. `last` is the file that readers of the folder look
    for first. It is uploaded last; if a folder is replaced, it is removed first, so that a crash
    leaves nothing that can be read. While a folder is uploaded, an object `UNFINISHED` lists the
    objects that belong to it, so that another upload may replace them after a crash.

    `replaced` takes the name of an object at the URL, relative to it, and returns whether it may be
    replaced; other objects stay. By default, there must be nothing at the URL. It raises
    FileExistsError if an object may not be replaced (nothing is written then), and OSError if the
    store cannot be written.
    """
    if replaced is None:
        check_new(url)
    store = _Store(url)
    with tempfile.TemporaryDirectory(prefix="daskmm-upload-") as scratch:
        folder = Path(scratch) / "folder"
        yield folder
        if folder.is_file():
            store.put(folder, "")
            return
        files = {
            file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()
        }
        found = set() if replaced is None else set(store.names())
        begun = _unfinished(store, Path(scratch)) if UNFINISHED in found else set()
        former = {name for name in found - {UNFINISHED} if name in begun or replaced(name)}  # type: ignore[misc]
        for name in sorted((files & found) - former):
            check_new(f"{url.rstrip('/')}/{name}")
        note = Path(scratch) / UNFINISHED
        note.write_text(json.dumps(sorted(files | former)), encoding="utf-8")
        store.put(note, UNFINISHED)
        if last in former:
            store.remove(last)
        for name in sorted(files, key=lambda name: (name == last, name)):
            store.put(folder / name, name)
        for name in sorted(former - {*files, last}):
            store.remove(name)
        with contextlib.suppress(Exception):  # some users may write objects, but not remove them
            store.remove(UNFINISHED)


def _unfinished(store: _Store, scratch: Path) -> set[str]:
    """Return the names of the objects that an unfinished upload may have written."""
    store.get(UNFINISHED, scratch / "former")
    try:
        return {str(name) for name in json.loads((scratch / "former").read_bytes())}
    except (ValueError, TypeError):  # the list is incomplete
        return set()


@contextmanager
def downloaded(url: str, *parts: str) -> Iterator[Path]:
    """Yield a local copy of a file or folder at a URL, or of some files and folders in it.

    The name of a file at the URL itself is "". It raises FileNotFoundError if there is nothing at
    the URL, and ValueError if the name of an object leads out of the folder.
    """
    store = _Store(url)
    with tempfile.TemporaryDirectory(prefix="daskmm-download-") as scratch:
        folder = Path(scratch) / "folder"
        found = store.names()
        if not found:
            raise FileNotFoundError(f"{url} does not exist.")
        for name in found:
            if ".." in name.split("/"):
                raise ValueError(f"{url} has an object {name!r}, which is no name of a file.")
            if not parts or name.split("/", 1)[0] in parts:
                store.get(name, folder / name)
        if not folder.is_file():
            folder.mkdir(exist_ok=True)
        yield folder


class Mirror:
    """A local copy of some files of a folder on an object store, removed with the object.

    The remote folder need not exist. `wanted` takes the name of a file in it, and returns whether
    the file is copied.
    """

    def __init__(self, url: str, wanted: Callable[[str], object]) -> None:
        self.url, self._store = url, _Store(url)
        self.folder = Path(tempfile.mkdtemp(prefix="daskmm-mirror-"))  # the local copy
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        objects = self._store.names()
        # These are the names of all files and folders at the URL.
        self.names = {name.split("/", 1)[0] for name in objects}
        for name in objects:
            if wanted(name):
                self._store.get(name, self.folder / name)

    def upload(self, name: str) -> None:
        """Upload a file of the folder; after an OSError, a former object stays."""
        with _as_os_errors():
            self._store.put(self.folder / name, name)
        self.names.add(name)

    def remove(self, name: str) -> None:
        """Remove an object at the URL; it raises OSError if the store cannot be written."""
        with _as_os_errors(), contextlib.suppress(FileNotFoundError):
            self._store.remove(name)
        self.names.discard(name)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Raise errors of any kind as OSError, because each kind of store has its own."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(None, str(error)) from error


class _Store:
    """Objects below a URL, by their names relative to it."""

    def __init__(self, url: str | Path) -> None:
        import fsspec

        self.url = _whole(url)
        try:
            self._system, place = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise ValueError(f"{self.url} cannot be opened: {error}") from error
        self._place = str(place).rstrip("/")

    def request(self, method: str, name: str = "") -> Any:
        """Return the result of a method of the file system for an object."""
        self._system.invalidate_cache()
        act = getattr(self._system, method)
        return patiently(lambda: act(self._at(name)), self.url)

    def names(self) -> list[str]:
        """Return the names of all objects."""
        return [name[len(self._place) :].lstrip("/") for name in self.request("find")]

    def remove(self, name: str) -> None:
        """Remove an object."""
        self.request("rm_file", name)

    def get(self, name: str, file: Path) -> None:
        """Copy an object to a local file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        patiently(lambda: self._system.get_file(self._at(name), str(file)), self.url)

    def put(self, file: Path, name: str) -> None:
        """Copy a local file to an object."""
        target = self._at(name)

        def put() -> None:
            self._system.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            self._system.put_file(str(file), target)

        patiently(put, self.url)
        self._system.invalidate_cache()

    def _at(self, name: str) -> str:
        return f"{self._place}/{name}" if name else self._place


def _whole(url: str | Path) -> str:
    """Return a URL with both of its slashes, which pathlib reduces to one."""
    return re.sub(r"^([A-Za-z][A-Za-z0-9+.-]+):/+", r"\1://", str(url))
