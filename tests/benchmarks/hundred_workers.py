"""A hundred workers on a few cores: what a pass costs scheduler, client and network.

Run: python tests/benchmarks/hundred_workers.py [--workers N ...] [--blocks B] [--stretch S] ...

Worker processes are forked from one that has everything imported, and the blocks *sleep*: `--load`
and `--compute` seconds as measured on real ones, times `--stretch`. So what a large cluster would
feel is real: the scheduler (in a process of its own), the client, tasks, messages, and the order of
things. Processor seconds of scheduler and client do not depend on how busy the machine is, nor on
the stretch; seconds of a pass are compared with the ideal of the stretched blocks. Heartbeats are
slowed down, as a stretched pass would have too many of them; what an idle second takes is
subtracted.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import socket
import statistics
import threading
import time
from dataclasses import dataclass, field

import dask
import dask.array as da
import distributed.scheduler
import numpy as np
import psutil
from distributed import Client, Scheduler, Worker
from distributed.comm import tcp

from daskmm.data.blocks import row_blocks
from daskmm.engine.passes import Passes

QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "60s",
    "distributed.worker.daemon": False,
    "distributed.admin.tick.interval": "2s",
    "distributed.admin.tick.limit": "60s",
    "distributed.admin.system-monitor.interval": "600s",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.client.scheduler-info-interval": "600s",
    "distributed.comm.timeouts.connect": "120s",
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.worker-ttl": None,
}
HEARTBEAT = 600.0


# Processes


def nursery(orders):
    """Fork a process for each order that comes, and kill them all when no more can come."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    children = []
    with contextlib.suppress(EOFError):
        while True:
            serve, arguments = orders.recv()
            pid = os.fork()
            if pid == 0:
                logging.disable(logging.WARNING)
                with contextlib.suppress(BaseException):
                    asyncio.run(serve(*arguments))
                os._exit(0)
            children.append(pid)
            orders.send(pid)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def serve_scheduler(port):
    count_traffic()
    distributed.scheduler.heartbeat_interval = lambda n: HEARTBEAT
    async with Scheduler(host="127.0.0.1", port=port, dashboard=False) as scheduler:
        await scheduler.finished()


async def serve_worker(address, name, threads, slowness):
    count_traffic()
    os.environ["SLOWNESS"] = str(slowness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    options = {"memory_limit": 0, "heartbeat_interval": HEARTBEAT, "dashboard": False}
    async with Worker(address, nthreads=threads, name=name, **options) as worker:
        await worker.finished()


def count_traffic():
    """Count the messages and bytes that this process reads and writes from now on."""
    if hasattr(tcp, "traffic"):
        return
    tcp.traffic = {"messages": 0, "sent": 0, "received": 0}
    write, read_bytes = tcp.TCP.write, tcp.read_bytes_rw

    async def counted(self, *arguments, **options):
        n_bytes = await write(self, *arguments, **options)
        tcp.traffic["messages"] += 1
        tcp.traffic["sent"] += n_bytes or 0
        return n_bytes

    async def counted_read(stream, n_bytes):
        tcp.traffic["received"] += n_bytes
        return await read_bytes(stream, n_bytes)

    tcp.TCP.write, tcp.read_bytes_rw = counted, counted_read


def bytes_received():
    """Bytes that this process has read."""
    return tcp.traffic["received"]


def scheduler_counts(dask_scheduler=None):
    """Traffic, and how many tasks have ended so far."""
    ended = sum(each.state_counts["memory"] for each in dask_scheduler.task_prefixes.values())
    return dict(tcp.traffic), ended


@dataclass
class Cluster:
    """A scheduler and workers in processes of their own, and a client here."""

    threads: int
    orders: object
    address: str = ""
    scheduler: int = 0
    workers: list = field(default_factory=list)
    started: int = 0

    def start(self, serve, *arguments):
        self.orders.send((serve, arguments))
        return self.orders.recv()

    def add_workers(self, n, slowness=1.0):
        for _ in range(n):
            arguments = (self.address, self.started, self.threads, slowness)
            self.workers.append(self.start(serve_worker, *arguments))
            self.started += 1

    def kill_one(self):
        """Kill the oldest worker and start another one."""
        os.kill(self.workers.pop(0), signal.SIGKILL)
        self.add_workers(1)


@contextlib.contextmanager
def cluster_of(n_workers, threads, stragglers=0):
    """So many workers, of which some are ten times slower."""
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_nursery_only, args=(there, here))
    process.start()
    there.close()
    cluster = Cluster(threads, here)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cluster.address = f"tcp://127.0.0.1:{port}"
    cluster.scheduler = cluster.start(serve_scheduler, port)
    try:
        with Client(cluster.address, timeout=120) as client:
            cluster.add_workers(stragglers, 10.0)
            cluster.add_workers(n_workers - stragglers)
            client.wait_for_workers(n_workers, timeout=300)
            yield cluster, client
    finally:
        here.close()
        process.join(20)


def _nursery_only(there, here):
    here.close()
    nursery(there)


# Work


def load(seconds, block_id=None):
    time.sleep(seconds)
    return np.full((1, 1), 1.0 + block_id[0])


def compute(block, seconds, state):
    """Sleep, and return a record of as many numbers as the state has."""
    time.sleep(seconds * float(os.environ.get("SLOWNESS", "1")))
    return np.full(len(state), 1.0 / block.rows[0, 0])


def table_of(n_blocks, seconds):
    """A table that exists nowhere; its row counts are unknown, so that no blocks are joined."""
    chunks = ((np.nan,) * n_blocks, (1,))
    return da.map_blocks(load, seconds, chunks=chunks, dtype=float, meta=np.empty((0, 0)))


def ideal(arguments, n_workers, persisted):
    """Seconds of a pass whose threads do nothing but load and compute, the former ahead."""
    rounds = -(-arguments.blocks // (n_workers * arguments.threads))
    once, each = (0.0, arguments.compute) if persisted else (arguments.load, arguments.compute)
    return arguments.stretch * (once + (rounds - 1) * max(once, each) + each)


def measured(arguments, cluster, client, persisted):
    """Median seconds of a pass, and processor seconds, tasks and traffic per pass."""
    here, there = psutil.Process(), psutil.Process(cluster.scheduler)
    seconds = arguments.stretch
    at_first = _counts(client, here, there)
    passes = Passes(row_blocks(table_of(arguments.blocks, seconds * arguments.load)))
    job = (compute, seconds * arguments.compute, np.zeros(arguments.numbers))
    with passes.persisted(persisted):
        total = passes.reduce(*job)
        first = _counts(client, here, there)
        walls = []
        idle = _counts(client, here, there)
        time.sleep(2.0)
        before = _counts(client, here, there)
        idle = {name: (before[name] - idle[name]) / 2.0 for name in ("client", "scheduler")}
        for _ in range(arguments.repeats):
            began = time.perf_counter()
            again = passes.reduce(*job)
            walls.append(time.perf_counter() - began)
            assert np.array_equal(again, total), "other bits"
        after = _counts(client, here, there)
        spent = {name: (after[name] - before[name]) / arguments.repeats for name in after}
    for name, per_second in idle.items():
        spent[name] = max(0.0, spent[name] - per_second * statistics.mean(walls))
    spent |= {f"first {name}": first[name] - at_first[name] for name in ("client", "scheduler")}
    return walls, spent, total


def _counts(client, here, there):
    (traffic, ended) = client.run_on_scheduler(scheduler_counts)
    into = client.run(bytes_received, on_error="ignore").values()
    found = {"tasks": ended, **traffic, "workers": sum(into) / max(1, len(into))}
    found["into client"] = bytes_received()
    for name, process in (("client", here), ("scheduler", there)):
        times = process.cpu_times()
        found[name] = times.user + times.system
    return found


def killing(cluster, every, done):
    while not done.wait(every):
        cluster.kill_one()


def describe(arguments, n_workers, stragglers=0, deaths=0.0):
    """Print rows of the table for one cluster, kept and streamed."""
    began = time.perf_counter()
    with cluster_of(n_workers, arguments.threads, stragglers) as (cluster, client):
        started = time.perf_counter() - began
        totals = []
        for persisted in arguments.kept:
            done = threading.Event()
            killer = threading.Thread(target=killing, args=(cluster, deaths, done))
            if deaths:
                killer.start()
            try:
                walls, spent, total = measured(arguments, cluster, client, persisted)
            finally:
                done.set()
            totals.append(total)
            best = ideal(arguments, n_workers, persisted)
            wall = statistics.median(walls)
            cpu = 1e3 * (spent["client"] + spent["scheduler"])
            print(
                f"| {n_workers} | {'kept' if persisted else 'streamed'} "
                f"| {best:.2f} | {wall:.2f} | {best / wall:.2f} "
                f"| {statistics.mean(walls):.2f} | {max(walls):.2f} "
                f"| {spent['first scheduler']:.1f} | {spent['first client']:.1f} "
                f"| {1e3 * spent['scheduler']:.0f} | {1e3 * spent['client']:.0f} "
                f"| {best / (best + arguments.stretch * cpu / 1e3):.2f} "
                f"| {spent['tasks']:.0f} | {spent['messages']:.0f} "
                f"| {spent['sent'] / 1e6:.2f} | {spent['received'] / 1e6:.2f} "
                f"| {spent['workers'] / 1e6:.2f} | {spent['into client'] / 1e6:.2f} |",
                flush=True,
            )
        assert all(np.array_equal(total, totals[0]) for total in totals), "other bits"
        workers = [psutil.Process(pid) for pid in cluster.workers[:10]]
        pss = statistics.median(each.memory_full_info().pss for each in workers) / 1e6
        rss = psutil.Process().memory_info().rss / 1e6
    print(f"\nstarted in {started:.0f} s; {pss:.0f} MB per worker; client {rss:.0f} MB\n")


COLUMNS = (
    "workers",
    "blocks are",
    "ideal (s)",
    "pass (s)",
    "ideal / pass",
    "mean (s)",
    "longest (s)",
    "first pass: scheduler (s)",
    "client (s)",
    "others: scheduler (ms)",
    "client (ms)",
    "unstretched, ideal / (ideal + both)",
    "tasks",
    "messages",
    "MB from scheduler",
    "MB to it",
    "MB into a worker",
    "MB into the client",
)
HEADER = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def main():
    count_traffic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[32, 64, 100])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=6400)
    parser.add_argument("--load", type=float, default=0.005)
    parser.add_argument("--compute", type=float, default=0.008)
    parser.add_argument("--stretch", type=float, default=10.0)
    parser.add_argument("--numbers", type=int, default=1020, help="of a state, and of a record")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--stragglers", type=int, default=0, help="workers ten times slower")
    parser.add_argument("--deaths", type=float, default=0.0, help="seconds between two")
    parser.add_argument("--kept", choices=("kept", "streamed", "both"), default="both")
    arguments = parser.parse_args()
    kept = {"kept": [True], "streamed": [False], "both": [True, False]}
    arguments.kept = kept[arguments.kept]
    logging.disable(logging.WARNING)
    print(HEADER)
    with dask.config.set(QUIET):
        for n_workers in arguments.workers:
            describe(arguments, n_workers, arguments.stragglers, arguments.deaths)


if __name__ == "__main__":
    # Under its own name: its functions are then pickled by reference.
    import hundred_workers

    hundred_workers.main()
