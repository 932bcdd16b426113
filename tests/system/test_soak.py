"""Fits on a cluster whose workers are killed, frozen and crash at random moments.

DASKMM_SOAK_SECONDS says how long (60 unless it is set), DASKMM_SOAK_SEED begins other moments.
"""

import contextlib
import functools
import itertools
import os
import signal
import threading
import time
from collections import Counter

import dask
import numpy as np
import pytest
from _faults import Folder, GaussianKernel, local_cluster, table
from _support import assert_same_bits, blobs
from test_faults import annealed, polished, quietly

from daskmm import KernelPowerKMeans
from daskmm.gram import build, sources

SECONDS = float(os.environ.get("DASKMM_SOAK_SECONDS", 60))
SEED = int(os.environ.get("DASKMM_SOAK_SEED", 0))
# Mean number of strikes while a fit would be made, bounds of the mean seconds between two of them,
# and seconds that a worker is frozen at most.
PER_FIT, PAUSES, FROZEN = 2, (2.0, 5.0), 4.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(int(SECONDS) + 600)]

KERNEL_ROWS, _ = blobs(600, 3, 3)


def gram_stored(folder):
    """A kernel fit whose tiles are made, and read again and again, by the workers."""
    kernel, path = GaussianKernel(folder), folder.path / "gram"
    model = KernelPowerKMeans(3, kernel=kernel, gram=path, eta=3.0, n_init=1, random_state=0)
    return model.fit(table(KERNEL_ROWS, 100, folder))


FITS = {
    "streamed": functools.partial(polished, seconds=0.01),
    "kept by workers": functools.partial(annealed, persist=True),
    "Gram store": gram_stored,
}


class Striker(threading.Thread):
    """Strikes random workers of a cluster until it is told to end.

    Parameters
    ----------
    cluster : LocalCluster
    pause : float
        Mean seconds from one strike to the next; the scheduler knows two workers at least then.
    rng : Generator

    Attributes
    ----------
    strikes : Counter
        How often workers were struck in which way.
    """

    def __init__(self, cluster, pause, rng):
        super().__init__()
        self._cluster, self._pause, self._rng = cluster, pause, rng
        self._ended = threading.Event()
        self._frozen = {}
        self.strikes = Counter()

    def run(self):
        due = time.monotonic()
        while not self._ended.wait(0.02):
            for pid in [pid for pid, (end, _) in self._frozen.items() if end < time.monotonic()]:
                self._send(pid, self._frozen.pop(pid)[1])
            if time.monotonic() > due and len(self._cluster.scheduler.workers) > 1:
                self._strike()
                due = time.monotonic() + self._rng.exponential(self._pause)
        for pid in self._frozen:
            self._send(pid, signal.SIGCONT)

    def _strike(self):
        pids = [nanny.pid for nanny in self._cluster.workers.values()]
        pids = [pid for pid in pids if pid is not None and pid not in self._frozen]
        if not pids:
            return
        pid, kind = self._rng.choice(pids), self._rng.choice(["KILL", "ABRT", "CONT", "frozen"])
        self.strikes[str(kind)] += 1
        if kind in ("KILL", "ABRT"):
            self._send(pid, getattr(signal, f"SIG{kind}"))
            return
        # Frozen for a while, and then as before, or dead.
        after = signal.SIGCONT if kind == "CONT" else signal.SIGKILL
        self._frozen[pid] = time.monotonic() + self._rng.uniform(0.5, FROZEN), after
        self._send(pid, signal.SIGSTOP)

    @staticmethod
    def _send(pid, what):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self.join()


def timed(fit, folder):
    """The model of an undisturbed fit, and the seconds it took."""
    began = time.monotonic()
    return quietly(fit, folder), time.monotonic() - began


def test_fits_of_a_cluster_in_trouble_have_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "build", functools.partial(build.build, tile_rows=200))
    fits, numbers = Counter(), itertools.count()
    # Blocks of frozen workers are given to others.
    with local_cluster(3) as client, dask.config.set({"daskmm.straggler-patience": 0.1}):
        client.wait_for_workers(3, timeout=60)
        for name, fit in FITS.items():  # workers import what they need
            quietly(fit, Folder(tmp_path / f"first {name}"))
        expected = {name: timed(fit, Folder(tmp_path / name)) for name, fit in FITS.items()}
        mean = np.mean([seconds for _, seconds in expected.values()])
        pause = np.clip(mean / PER_FIT, *PAUSES)
        with Striker(client.cluster, pause, np.random.default_rng(SEED)) as striker:
            end = time.monotonic() + SECONDS
            for name in itertools.cycle(FITS):
                if time.monotonic() > end and len(fits) == len(FITS):
                    break
                folder = Folder(tmp_path / str(next(numbers)))
                model = quietly(FITS[name], folder)
                with dask.config.set(scheduler="sync"):  # for labels, which are dask's to compute
                    assert_same_bits(model, expected[name][0])
                fits[name] += 1
    told = f"{dict(fits)} fits, {dict(striker.strikes)} strikes, one in {pause:.2g} s"
    print(told)
    assert striker.strikes, told
