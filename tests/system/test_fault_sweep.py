"""The n-th read, write or allocation of a fit fails, for every n.

A fit that fails ends with the error itself and leaves nothing behind but whole files; the repeated
fit ends with the bits of one that was never disturbed.
"""

import contextlib
import copy
import errno
import functools
import os
import shutil
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from _faults import ERRORS, Folder, table
from _support import assert_same_bits, blobs
from _sweep import Disk, Memory
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from daskmm import EntropyPowerKMeans, KernelPowerKMeans, PowerKMeans
from daskmm.gram import build, sources
from daskmm.gram.store import GramStore
from daskmm.storage.records import read_state

# Steps of each kind that the quick tests disturb.
FEW = 2
ROWS, _ = blobs(180, 3, 3, seed=2)
OTHER_ROWS, _ = blobs(60, 2, 3, seed=3)
CHUNK = 40
settings = {"n_clusters": 3, "n_init": 2, "eta": 3.0, "max_iter": 4, "random_state": 0}
MODELS = {
    "power": PowerKMeans(**settings, sample_size=None),
    "power, sampled": PowerKMeans(**settings, sample_size=60),
    "entropy": EntropyPowerKMeans(**settings, sample_size=None, lam="0.5*variance"),
    "kernel": KernelPowerKMeans(**settings | {"n_init": 1}),
}
# Arrays are allocated thousands of times: the thorough tests refuse memory to one of so many.
ONE_IN = int(os.environ.get("DASKMM_SWEEP_ONE_IN", 12))
FOR_LONG = (pytest.mark.long, pytest.mark.timeout(900))
THOROUGH = [pytest.param(False, id="some"), pytest.param(True, id="every", marks=FOR_LONG)]


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Do not wait for the disk; keep temporary files where they are found; make small tiles."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(sources, "build", functools.partial(build.build, tile_rows=70))


def placed(model, place):
    """The model, with its files in a folder."""
    if isinstance(model, KernelPowerKMeans):
        model.set_params(gram=place / "gram")
    return model.set_params(checkpoint=place / "checkpoint")


def fitted(model, X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(X)


@functools.cache
def earlier(name):
    """A model that was fitted to other rows."""
    return fitted(clone(MODELS[name]), OTHER_ROWS)


class Blocks:
    """Blocks of which one cannot be read; as `_sweep.Disk`.

    Attributes
    ----------
    rows : dask Array
    """

    def __init__(self, place, kind, nth):
        self._folder = Folder(place / "reads")
        self._folder.arm("rows", nth, kind)
        self.rows = table(ROWS, CHUNK, self._folder)
        self.installed = contextlib.nullcontext

    @property
    def met(self):
        return sum(self._folder.reads().values())

    @property
    def failed(self):
        return ["read"] * (self._folder.path / "reached").exists()


# What is left after a fit


def assert_clean(place, spared, complete):
    """All files are whole, none has a name for a while, and none is open."""
    files = {str(file.relative_to(place)): file for file in place.rglob("*") if file.is_file()}
    passing = [name for name in files if ".partial" in name or name[0] == "." or "/." in name]
    assert not set(passing) - {spared}
    for name in files:
        if "state-" in name:
            read_state(files[name])
    if (place / "gram").exists():
        store = GramStore(place / "gram")
        missing = store.missing()
        assert not (complete and missing)
        for tile in set(store.tiles) - set(missing):
            store.read(tile)
    assert not list(Path(tempfile.gettempdir()).iterdir())
    # Other threads may still read blocks when the first error ends a fit.
    until = time.monotonic() + 10.0
    while (left := open_under(place)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not left


def open_under(place):
    """Names of the files in a folder that this process has open."""
    return [name for name in open_files() if name.startswith(str(place))]


def open_files():
    """Names of the files that this process has open."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    return names


def assert_no_thread_goes_on(before):
    """No thread is new; zarr keeps its own for later."""
    deadline = time.monotonic() + 10
    while new := [t for t in set(threading.enumerate()) - before if "asyncio_" not in t.name]:
        assert time.monotonic() < deadline, new
        time.sleep(0.005)


def disturbed(name, place, fault, monkeypatch):
    """Fit a model that was fitted to other rows before, with a fault.

    Returns
    -------
    model, error
        None if there is no error.
    changed : set of str
        Attributes that are not what they were before.
    """
    model = placed(copy.copy(earlier(name)), place)
    before, error = dict(vars(model)), None
    with fault.installed(monkeypatch):
        try:
            fitted(model, getattr(fault, "rows", ROWS))
        except BaseException as caught:
            error = caught.with_traceback(None)
    after = vars(model)
    return model, error, {key for key in before | after if before.get(key) is not after.get(key)}


def attempt(name, place, fault, reference, monkeypatch):
    """Fit with a fault, and repeat the fit if it failed; return the error, or None."""
    threads = set(threading.enumerate())
    model, error, _ = disturbed(name, place, fault, monkeypatch)
    assert fault.failed
    # The lock file stays if it is its removal that fails.
    lock = "checkpoint/.lock"
    spared = lock if f"unlink {place / lock}" in fault.failed else None
    assert_no_thread_goes_on(threads)  # such as a reader, which has its file open still
    assert_clean(place, spared, complete=error is None)
    if error is not None:
        model = fitted(placed(clone(MODELS[name]), place), getattr(fault, "rows", ROWS))
        assert_clean(place, None, complete=True)
    assert_same_bits(model, reference)
    return error


def described(error):
    return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


def drawn(count, few):
    """Some of so many steps, counted from 1."""
    return np.random.default_rng(count).permutation(np.arange(1, count + 1))[:few].tolist()


def counted(name, make, tmp_path, monkeypatch):
    """How many steps of a fit could fail, the fault that did not come, and the fitted model."""
    place = tmp_path / "counted"
    place.mkdir()
    fault = make(place, 0)
    X = getattr(fault, "rows", ROWS)
    # The first fit of a process does more: it imports, and loads its compiled loops.
    (tmp_path / "undisturbed").mkdir()
    reference = fitted(placed(clone(MODELS[name]), tmp_path / "undisturbed"), X)
    before = fault.met
    with fault.installed(monkeypatch):
        fitted(placed(clone(MODELS[name]), place), X)
    return fault.met - before, fault, reference


def sweep(name, make, check, everything, tmp_path, monkeypatch):
    """Fit with a fault at some or all of the steps at which there may be one.

    Parameters
    ----------
    make : callable
        Takes the folder of a fit and the number of a step, and returns the fault.
    check : callable
        Takes the error with which a fit ended, or None, the fault, and the folder.
    """
    count, undisturbed, reference = counted(name, make, tmp_path, monkeypatch)
    wrong = {}
    apart = ONE_IN if isinstance(undisturbed, Memory) else 1
    for step in range(1, count + 1, apart) if everything else drawn(count, FEW):
        place = tmp_path / str(step)
        place.mkdir()
        fault = make(place, step)
        try:
            check(attempt(name, place, fault, reference, monkeypatch), fault, place)
        except Exception as failed:
            wrong[step] = f"{fault.failed}: {described(failed)}"
        shutil.rmtree(place, ignore_errors=True)
    assert not wrong


def owner(place, step):
    """The checkpoint or the Gram store to which a step of the disk belongs."""
    parts = Path(step.split(" ", 1)[1]).relative_to(place).parts
    return str(place / parts[0].lstrip(".").split(".")[0]) if parts else str(place)


@pytest.mark.in_turn("kind")
@pytest.mark.parametrize("everything", THOROUGH)
@pytest.mark.parametrize("kind", ["full", "broken", "half", "reading"])
@pytest.mark.parametrize("name", MODELS)
def test_a_disk_that_fails_costs_no_more_than_the_fit(
    name, kind, everything, tmp_path, monkeypatch
):
    def check(error, fault, place):
        if error is None:  # say because the step made a folder that was there
            return
        assert isinstance(error, OSError)
        assert error.errno == (errno.ENOSPC if kind == "full" else errno.EIO)
        assert any(owner(place, step) in str(error) for step in fault.failed), str(error)

    def make(place, step):
        return Disk(place, kind, step)

    sweep(name, make, check, everything, tmp_path, monkeypatch)


@pytest.mark.parametrize("everything", THOROUGH)
@pytest.mark.parametrize("name", MODELS)
def test_memory_that_is_refused_costs_no_more_than_the_fit(name, everything, tmp_path, monkeypatch):
    def check(error, fault, place):
        assert error is None or isinstance(error, MemoryError), described(error)

    def make(place, step):
        return Memory(step)

    sweep(name, make, check, everything, tmp_path, monkeypatch)


@pytest.mark.in_turn("kind")
@pytest.mark.parametrize("everything", THOROUGH)
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("name", MODELS)
def test_a_block_that_cannot_be_read_is_named(name, kind, everything, tmp_path, monkeypatch):
    def check(error, fault, place):
        assert type(error).__name__ == kind
        # The user knows which key was pressed.
        assert kind == "KeyboardInterrupt" or "block" in described(error), described(error)

    def make(place, step):
        return Blocks(place, kind, step)

    sweep(name, make, check, everything, tmp_path, monkeypatch)


# Blocks that two processes read


def streamed(fault, place):
    """The fault of a fit whose rows are read by workers."""
    fault.rows = table(ROWS, CHUNK, Folder(place / "reads"))
    return fault


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["OSError", "MemoryError", "disk", "memory"])
def test_a_fault_of_a_fit_on_a_cluster_costs_no_more_than_the_fit(
    kind, client, tmp_path, monkeypatch
):
    def check(error, fault, place):
        if error is None:
            assert kind in ("disk", "memory")
            return
        assert type(error).__name__ == kind or kind in ("disk", "memory")
        text, expected = {
            "disk": (str(error), f"{place}/checkpoint"),
            "memory": (type(error).__name__, "MemoryError"),
        }.get(kind, (described(error), "block"))
        assert expected in text, text

    def make(place, step):
        if kind in ERRORS:
            return Blocks(place, kind, step)
        return streamed(FAULTS[kind](place, step), place)

    sweep("power", make, check, True, tmp_path, monkeypatch)


FAULTS = {
    "disk": lambda place, step: Disk(place, "full", step),
    "memory": lambda place, step: Memory(step),
    "block": lambda place, step: Blocks(place, "OSError", step),
}


@pytest.mark.in_turn("kind")
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("name", MODELS)
def test_an_estimator_whose_fit_fails_stays_as_it_was(name, kind, tmp_path, monkeypatch):
    count, _, _ = counted(name, FAULTS[kind], tmp_path, monkeypatch)
    wrong = {}
    for step in [*drawn(count, FEW - 1), count - 1]:
        place = tmp_path / str(step)
        place.mkdir()
        _, error, changed = disturbed(name, place, FAULTS[kind](place, step), monkeypatch)
        if error is not None and changed:
            wrong[step] = sorted(changed)
    assert not wrong
