"""Errors at the n-th step of a fit: of writing files below a folder, or of allocating arrays."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import numpy as np

# Calls that change a disk. The library and zarr write files by these and by `io.open`.
_CHANGES = ("write", "fsync", "replace", "rename", "link", "mkdir", "unlink", "rmdir")
_CODES = {"full": errno.ENOSPC, "broken": errno.EIO, "half": errno.EIO, "reading": errno.EIO}


class Disk:
    """A disk on which one step fails that concerns a folder or what is below it.

    Parameters
    ----------
    folder : Path
    kind : {"full", "broken", "half", "reading"}
        What happens: from that step on there is no room for anything new; that step fails; it
        fails after half of the bytes were written; reading from an open file fails.
    nth : int
        Which step fails, counted from 1; none does for 0.

    Attributes
    ----------
    met : int
        Steps so far that could have failed.
    failed : list of str
        The steps that failed.
    """

    def __init__(self, folder, kind, nth):
        self._folder, self._kind, self._nth = str(folder), kind, nth
        self.met, self.failed = 0, []
        self._lock = threading.Lock()

    def step(self, name, path):
        """Raise if this step is the one that fails."""
        named = not isinstance(path, int)
        path = str(path) if named else os.readlink(f"/proc/self/fd/{path}")
        if not path.startswith(self._folder) or not self._concerns(name):
            return
        with self._lock:
            self.met += 1
            fails = self.met == self._nth or (self._kind == "full" and len(self.failed) > 0)
            if fails:
                self.failed.append(f"{name} {path}")
        if fails:
            code = _CODES[self._kind]
            # The system does not say which of the open files it could not write.
            raise OSError(code, os.strerror(code), *([path] if named else []))

    def _concerns(self, name):
        if self._kind == "full":
            return name in ("open", "write", "fsync", "mkdir")
        if self._kind == "broken":
            return name != "read"
        return name == {"half": "write", "reading": "read"}[self._kind]

    @contextlib.contextmanager
    def installed(self, patch):
        """Within, files are written and read by way of this disk."""
        with patch.context() as inner:
            for name in _CHANGES:
                inner.setattr(os, name, self._watched(name, getattr(os, name)))
            inner.setattr(os, "open", self._opening(os.open))
            inner.setattr(io, "open", self._opened(io.open))
            yield self

    def _watched(self, name, function):
        def call(first, *others, **options):
            self.step(name, first)
            return function(first, *others, **options)

        return call

    def _opening(self, function):
        def call(path, flags, *others, **options):
            if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                self.step("open", path)
            return function(path, flags, *others, **options)

        return call

    def _opened(self, function):
        def call(path, mode="r", *others, **options):
            if "b" not in mode or not str(path).startswith(self._folder):
                return function(path, mode, *others, **options)
            if set(mode) & set("wax+"):
                self.step("open", path)
            raw = _File(path, mode.replace("b", ""), self)
            if "+" in mode:
                return io.BufferedRandom(raw)
            return io.BufferedReader(raw) if mode == "rb" else io.BufferedWriter(raw)

        return call

    def write(self, file, data):
        """Write to an open file, maybe a half."""
        try:
            self.step("write", file.fileno())
        except OSError:
            if self._kind == "half":
                io.FileIO.write(file, memoryview(data).cast("B")[: len(data) // 2])
            raise
        return io.FileIO.write(file, data)


class _File(io.FileIO):
    """An open file of a disk."""

    def __init__(self, path, mode, disk):
        super().__init__(path, mode)
        self._disk = disk

    def write(self, data):
        return self._disk.write(self, data)

    def readinto(self, buffer):
        self._disk.step("read", self.fileno())
        return super().readinto(buffer)

    def readall(self):
        self._disk.step("read", self.fileno())
        return super().readall()


# Memory of arrays

_VOID, _SIZE = ctypes.c_void_p, ctypes.c_size_t
# Both are called, and call, with Python's lock held.
_MALLOC = ctypes.PYFUNCTYPE(_VOID, _VOID, _SIZE)
_CALLOC = ctypes.PYFUNCTYPE(_VOID, _VOID, _SIZE, _SIZE)
_REALLOC = ctypes.PYFUNCTYPE(_VOID, _VOID, _VOID, _SIZE)
# Number of PyDataMem_SetHandler in numpy's table of functions, which does not change.
_SET_HANDLER = 304


class _Allocator(ctypes.Structure):
    _fields_ = (
        ("context", _VOID),
        ("malloc", _MALLOC),
        ("calloc", _CALLOC),
        ("realloc", _REALLOC),
        ("free", _VOID),
    )


class _Handler(ctypes.Structure):
    """numpy's PyDataMem_Handler."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("allocator", _Allocator),
    )


def _function(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_pointer_of = _function("PyCapsule_GetPointer", _VOID, ctypes.py_object, ctypes.c_char_p)
_capsule_of = _function("PyCapsule_New", ctypes.py_object, _VOID, ctypes.c_char_p, _VOID)
# Arrays may live as long as the process, and so do the functions that made them.
_KEPT = []


class Memory:
    """Memory that one array is not given.

    Parameters
    ----------
    nth : int
        Which allocation fails, counted from 1; none does for 0.

    Attributes
    ----------
    met : int
        Allocations so far.
    failed : list of str
        The allocation that failed.
    """

    def __init__(self, nth):
        self._nth, self.met, self.failed = nth, 0, []

    def _is_given(self, size):
        self.met += 1
        if self.met == self._nth:
            self.failed.append(f"{size} bytes")
        return self.met != self._nth

    @contextlib.contextmanager
    def installed(self, patch):
        """Within, arrays of this thread, and of thread pools, are given memory by this one."""
        table = np._core._multiarray_umath._ARRAY_API
        functions = ctypes.cast(_pointer_of(table, None), ctypes.POINTER(_VOID))
        set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, _VOID)(functions[_SET_HANDLER])
        set_again = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(functions[_SET_HANDLER])
        former = set_handler(None)
        usual = _Handler.from_address(_pointer_of(former, b"mem_handler"))
        mine = _Handler.from_buffer_copy(usual)
        real = usual.allocator
        mine.name = b"failing"
        mine.allocator.malloc = _MALLOC(
            lambda context, size: real.malloc(context, size) if self._is_given(size) else None
        )
        mine.allocator.calloc = _CALLOC(
            lambda context, n, size: (
                real.calloc(context, n, size) if self._is_given(n * size) else None
            )
        )
        mine.allocator.realloc = _REALLOC(
            lambda context, place, size: (
                real.realloc(context, place, size) if self._is_given(size) else None
            )
        )
        capsule = _capsule_of(ctypes.addressof(mine), b"mem_handler", None)
        _KEPT.append((mine, capsule))
        submit = ThreadPoolExecutor.submit

        def with_context(pool, function, *arguments, **options):
            return submit(pool, copy_context().run, function, *arguments, **options)

        with patch.context() as inner:
            inner.setattr(ThreadPoolExecutor, "submit", with_context)
            set_again(capsule)
            try:
                yield self
            finally:
                set_again(former)
