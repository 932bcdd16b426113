"""Faults on a distributed cluster of real processes, struck at a chosen moment of a chosen pass.

Nothing here waits for a clock: the test arms a pass, a worker spends one ticket per block (or job)
that it begins, and whoever spends the last one does what is written on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import signal
import socket
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import _processes
import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, Scheduler, Worker, WorkerPlugin

from daskmm.engine import scheduled, worker_task

SELF = "self"
TELL = "tell"
# Errors that may be written on a ticket, and are raised by who spends it.
ERRORS = {
    "OSError": functools.partial(OSError, errno.EIO, os.strerror(errno.EIO)),
    "MemoryError": MemoryError,
    "KeyboardInterrupt": KeyboardInterrupt,
}


def spend(tickets):
    """Spend a ticket, if there are any; the last one says which process is to be killed."""
    for path in sorted(tickets.iterdir(), reverse=True):
        with contextlib.suppress(FileNotFoundError):
            words = path.read_text()
            path.unlink()
            if path.name == "0000":
                _strike(words, tickets.parent)
            return


def _strike(words, folder):
    (folder / "reached").touch()
    if words in ERRORS:
        raise ERRORS[words]()
    if words != TELL:
        os.kill(os.getpid() if words == SELF else int(words), signal.SIGKILL)


class Folder:
    """What the processes of a test tell each other.

    Attributes
    ----------
    rows, jobs, kernel : Path
        Tickets that are spent when blocks are read, jobs of a pass begin, or kernel functions are
        called.
    """

    def __init__(self, path):
        self.path = Path(path)
        self.rows, self.jobs, self.kernel = (self.path / n for n in ("rows", "jobs", "kernel"))
        self.log = self.path / "log"
        for each in (self.rows, self.jobs, self.kernel, self.log):
            each.mkdir(parents=True)

    def arm(self, kind, count, words=SELF):
        """Issue tickets; the process that spends the last strikes."""
        tickets = getattr(self, kind)
        for number in range(count):
            # Written elsewhere first: a ticket is never read before it says something.
            fresh = self.path / uuid.uuid4().hex
            fresh.write_text(words)
            fresh.rename(tickets / f"{number:04}")

    def armed(self):
        """Tickets that nobody has spent."""
        return [*self.rows.iterdir(), *self.jobs.iterdir(), *self.kernel.iterdir()]

    def reads(self):
        """How often each block has been read."""
        return Counter(path.name.split("-")[0] for path in self.log.iterdir())

    def reached(self, seconds=60):
        """Wait for the process that spends the last ticket."""
        deadline = time.monotonic() + seconds
        while not (self.path / "reached").exists():
            assert time.monotonic() < deadline
            time.sleep(0.005)


def read(block, folder, seconds, block_id):
    """A block as it is read: noted down, and maybe the last thing a worker does."""
    (folder.log / f"{block_id[0]}-{uuid.uuid4().hex}").touch()
    if (folder.path / f"deadly-{block_id[0]}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    spend(folder.rows)
    time.sleep(seconds)
    return block


def table(rows, chunk, folder, seconds=0.0):
    """Rows in blocks on a pretended disk."""
    return da.from_array(rows, chunks=(chunk, -1)).map_blocks(
        read, folder, seconds, meta=np.empty((0, 0)), token=uuid.uuid4().hex
    )


class GaussianKernel:
    """A kernel function that spends tickets."""

    __name__ = "gaussian"

    def __init__(self, folder):
        self.folder = folder

    def __eq__(self, other):
        return type(other) is GaussianKernel

    def __hash__(self):
        return hash(GaussianKernel)

    def __call__(self, x, y):
        spend(self.folder.kernel)
        return np.exp(-((x[:, None] - y[None]) ** 2).sum(axis=2) / 50)


class SpendByJob(WorkerPlugin):
    """A plugin of workers: every job of a pass spends a ticket when it begins.

    It reads from a file which folder is at play, so that workers need not be told.
    """

    name = "spend-by-job"

    def __init__(self, current):
        self.current = current

    def setup(self, worker):
        load = worker_task._Loader.__call__
        if hasattr(load, "__wrapped__"):
            return

        @functools.wraps(load)
        def spending(loader, job):
            spend(Path(self.current.read_text()) / "jobs")
            return load(loader, job)

        worker_task._Loader.__call__ = spending


@contextlib.contextmanager
def before_pass(name, occurrence, act):
    """Within, `act` is called right before the given pass of that name (counted from 1)."""
    met = Counter()
    reduce = scheduled.reduce_graph

    def acting(graph, function, shared, called, *scheduler):
        called = called.strip("_").replace("_", "-")
        met[called] += 1
        if (called, met[called]) == (name, occurrence):
            act()
        return reduce(graph, function, shared, called, *scheduler)

    scheduled.reduce_graph = acting
    try:
        yield
    finally:
        scheduled.reduce_graph = reduce
    assert met[name] >= occurrence, met


@contextlib.contextmanager
def when_reached(folder, act):
    """Within, a thread waits for the last ticket, and then acts."""
    failed = []

    def follow():
        try:
            folder.reached()
            act()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)
    assert not failed, failed
    assert not thread.is_alive()


@contextlib.contextmanager
def local_cluster(n_workers, threads=1):
    """Workers in processes of their own, with nannies that start them again."""

    settings = {
        "scheduler": None,
        "distributed.worker.multiprocessing-method": "forkserver",
        # A cluster gives up nannies whose worker is dead when it looks, this long after a death.
        "distributed.deploy.lost-worker-timeout": "1 hour",
    }
    _processes.ready()
    options = {"threads_per_worker": threads, "processes": True, "dashboard_address": ":0"}
    with (
        dask.config.set(settings),
        LocalCluster(n_workers=n_workers, memory_limit=0, **options) as cluster,
        Client(cluster) as client,
    ):
        yield client
        # Not while nannies start their workers again: some fail to close then.
        client.wait_for_workers(n_workers, timeout=60)


async def _serve(kind, *args, **options):
    async with kind(*args, **options) as server:
        await server.finished()


def serve_scheduler(port):

    logging.disable()
    asyncio.run(_serve(Scheduler, host="127.0.0.1", port=port, dashboard=False))


def serve_worker(port):

    logging.disable()
    address = f"tcp://127.0.0.1:{port}"
    asyncio.run(_serve(Worker, address, nthreads=1, dashboard=False))


class Processes:
    """A scheduler and workers without nannies, each a process that can be killed."""

    def __init__(self):
        self.context = _processes.ready()
        self.scheduler = None
        self.workers = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start_scheduler(self):
        self.scheduler = self.context.Process(target=serve_scheduler, args=(self.port,))
        self.scheduler.start()

    def start_workers(self, count=2):
        for _ in range(count):
            self.workers.append(self.context.Process(target=serve_worker, args=(self.port,)))
            self.workers[-1].start()

    def kill_workers(self):
        while self.workers:
            self.workers.pop().kill()

    def __enter__(self):
        self.start_scheduler()
        self.start_workers()
        return self

    def __exit__(self, *_):
        self.kill_workers()
        self.scheduler.kill()
