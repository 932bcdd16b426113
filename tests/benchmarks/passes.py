"""What a pass costs beside its kernels, side by side in one process.

Run: python tests/benchmarks/passes.py [rows of the stores]

Prints Markdown tables: medians of interleaved runs. BLAS is kept to one thread throughout.
"""

import asyncio
import contextlib
import functools
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import zarr
from zarr.storage import LocalStore, WrapperStore

from daskmm.data.blocks import Block, as_dask_array, row_blocks
from daskmm.engine import worker_task
from daskmm.engine.passes import Passes
from daskmm.engine.threads import one_blas_thread

REPEATS = 7
K, P = 20, 50
BLOCK_ROWS = 12_000
BYTES_PER_SECOND = 300e6


def interleaved(jobs, repeats=REPEATS):
    """Median seconds of each job, run in turns, the first of each not counted."""
    seconds = {name: [] for name in jobs}
    for _ in range(repeats + 1):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def near_empty(block, centers):
    return np.float64(len(block.rows))


def products(block, centers):
    """The two matrix products of an iteration, and little else."""
    scores = block.rows @ centers.T
    return (scores.T @ block.rows).astype(np.float64)


def forms(n_blocks, folder):
    """Tables of small blocks, as users have them."""
    rows = np.ones((n_blocks * 100, P), dtype="f4")
    store = zarr.create_array(
        folder / str(n_blocks), shape=rows.shape, chunks=(100, P), dtype="f4", compressors=None
    )
    store[...] = rows
    return {
        "numpy chunks": da.from_array(rows, chunks=(100, -1)),
        "two mapped steps": (da.ones(rows.shape, chunks=(100, -1)) + 1).map_blocks(np.abs),
        "zarr chunks": da.from_zarr(store),
    }


@contextlib.contextmanager
def two_processes():
    from distributed import Client, LocalCluster

    options = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(n_workers=2, **options) as cluster, Client(cluster):
        yield


def overheads(n_blocks, folder):
    """Per table: median seconds of a pass on threads, on two processes, and persisted there.

    Those of dask follow, which maps a function that does as little over the blocks, where they are
    not persisted.
    """
    centers = np.zeros((K, P))
    tables = forms(n_blocks, folder)
    sweeps = {name: sweep_of(table, near_empty, centers) for name, table in tables.items()}
    mapped = {(name, "dask"): functools.partial(_mapped, table) for name, table in tables.items()}
    here = interleaved(sweeps | mapped)
    with two_processes():
        kept = {name: table.persist() for name, table in tables.items()}
        held = {
            (name, "held"): sweep_of(table, near_empty, centers) for name, table in kept.items()
        }
        there = interleaved(sweeps | held) | interleaved(mapped, repeats=3)
    return {
        name: (
            here[name],
            there[name],
            there[name, "held"],
            here[name, "dask"],
            there[name, "dask"],
        )
        for name in tables
    }


def _mapped(table):
    return table.map_blocks(lambda rows: np.zeros((1, 1)), dtype=float, chunks=(1, 1)).compute()


def overhead(folder, say=print):
    """The table of `overheads`."""
    say("\n## A pass of near-empty kernels, milliseconds\n")
    say(
        "| blocks | table | threads | two processes | two processes, persisted "
        "| dask, threads | dask, two processes |"
    )
    say("|---|---|---|---|---|---|---|")
    for n_blocks in (256, 1024):
        for name, seconds in overheads(n_blocks, folder).items():
            say(f"| {n_blocks} | {name} | {' | '.join(f'{1e3 * x:.1f}' for x in seconds)} |")


def sweep_of(table, kernel, centers):
    return functools.partial(Passes(row_blocks(table)).reduce, kernel, centers)


def large_blocks(n_blocks=256):
    print(f"\n## {n_blocks} blocks of {BLOCK_ROWS:,} × {P} float32 in memory, k = {K}\n")
    print("| kernels alone, one thread (s) | the pass, one thread | pass / alone |")
    print("|---|---|---|")
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n_blocks * BLOCK_ROWS, P)).astype("f4")
    centers = rng.normal(size=(K, P)).astype("f4")
    sweep = sweep_of(da.from_array(rows, chunks=(BLOCK_ROWS, -1)), products, centers)

    def alone():
        return sum(
            products(Block(rows[start : start + BLOCK_ROWS]), centers)
            for start in range(0, len(rows), BLOCK_ROWS)
        )

    with dask.config.set(scheduler="threads", num_workers=1):
        found = interleaved({"alone": alone, "pass": sweep})
    ratio = found["pass"] / found["alone"]
    print(f"| {found['alone']:.3f} | {found['pass']:.3f} | {ratio:.2f} |", flush=True)


class ThrottledStore(WrapperStore):
    """A store that gives so many bytes per second, whoever asks."""

    def __init__(self, store, bytes_per_second):
        super().__init__(store)
        self.seconds_per_byte = 1 / bytes_per_second
        self.free_at = 0.0

    async def get(self, key, prototype, byte_range=None):
        found = await super().get(key, prototype, byte_range)
        if found is not None:
            now = time.perf_counter()
            self.free_at = max(self.free_at, now) + len(found) * self.seconds_per_byte
            await asyncio.sleep(self.free_at - now)
        return found


def repeated(block, centers, times):
    """Products, several times over, so that computing takes about as long as reading."""
    return sum(products(block, centers) for _ in range(times))


def read_only(block):
    return block.rows.shape[0]


def read_ahead(folder, n_rows):
    print(f"\n## Streaming {n_rows:,} × {P} float32 from zarr, two threads (seconds)\n")
    print(
        "| store | products per block | reading | computing | larger | pass, no read-ahead |",
        end="",
    )
    print(" pass | pass / larger |")
    print("|---|---|---|---|---|---|---|---|")
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(K, P)).astype("f4")
    block = rng.normal(size=(80_000, P)).astype("f4")
    path = folder / "stream"
    made = zarr.create_array(
        path, shape=(n_rows, P), chunks=(len(block), P), dtype="f4", compressors=None
    )
    for start in range(0, n_rows, len(block)):
        made[start : start + len(block)] = block[: n_rows - start]
    kept = da.concatenate(
        [da.from_array(block, chunks=-1, name=f"k{i}") for i in range(-(-n_rows // len(block)))]
    )
    plain = zarr.open_array(path, mode="r")
    throttled = zarr.open_array(
        ThrottledStore(LocalStore(path, read_only=True), BYTES_PER_SECOND), mode="r"
    )
    for name, store in (("unthrottled", plain), ("300 MB/s", throttled)):
        passes = Passes(row_blocks(as_dask_array(store)))
        for times in (1, 4, 16):
            job = (functools.partial(repeated, times=times), centers)
            found = interleaved(
                {
                    "read": functools.partial(passes.reduce, read_only),
                    "compute": functools.partial(_reduce, Passes(row_blocks(kept)), *job),
                    "behind": functools.partial(_without_read_ahead, passes, *job),
                    "ahead": functools.partial(_reduce, passes, *job),
                },
                repeats=3,
            )
            larger = max(found["read"], found["compute"])
            cells = [found["read"], found["compute"], larger, found["behind"], found["ahead"]]
            print(
                f"| {name} | {times} |" + "".join(f" {x:.2f} |" for x in cells),
                f"{found['ahead'] / larger:.2f} |",
                flush=True,
            )


def _reduce(passes, kernel, centers):
    kernel.__name__ = "repeated"
    return passes.reduce(kernel, centers)


def _without_read_ahead(passes, kernel, centers):
    limit = worker_task._SLOW_SECONDS
    worker_task._SLOW_SECONDS = float("inf")
    try:
        return _reduce(passes, kernel, centers)
    finally:
        worker_task._SLOW_SECONDS = limit


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000_000
    with tempfile.TemporaryDirectory() as scratch, one_blas_thread():
        overhead(Path(scratch))
        large_blocks()
        with dask.config.set(scheduler="threads", num_workers=2):
            read_ahead(Path(scratch), n)
