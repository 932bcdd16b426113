"""Seconds of a pass on 1, 2 and 4 worker processes, three shapes.

Run: python tests/benchmarks/scaling.py [--megabytes M]

Each table is a zarr store of float32 or float64 rows in uncompressed chunks of 16 MB, streamed and
kept by the workers, which share the cores of the machine.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from pathlib import Path

import dask.array as da
import numpy as np
import zarr
from dask.system import CPU_COUNT
from distributed import Client, LocalCluster

from daskmm.data.blocks import row_blocks
from daskmm.engine.passes import Passes
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import block_sums
from daskmm.numerics.rows import Coordinates

SHAPES = {
    "50 features, k = 20": (50, 20, "f4"),
    "20, 100": (20, 100, "f8"),
    "500, 50": (500, 50, "f4"),
}
CHUNK_BYTES = 16 << 20
REPEATS = 7


def write(path, megabytes, p, dtype):
    """A store of normal rows."""
    rows = CHUNK_BYTES // (p * np.dtype(dtype).itemsize)
    n_chunks = max(1, int(megabytes * 1e6) // CHUNK_BYTES)
    store = zarr.create_array(
        path, shape=(rows * n_chunks, p), chunks=(rows, p), dtype=dtype, compressors=None
    )
    block = np.random.default_rng(0).normal(size=(rows, p)).astype(dtype)
    for start in range(0, rows * n_chunks, rows):
        store[start : start + rows] = block
    return zarr.open_array(path, mode="r")


def seconds_of(table, k):
    """Median time of a hard step over a table."""
    p = table.shape[1]
    shift = Coordinates(np.zeros(p), np.ones(p))
    state = CenterState(np.random.default_rng(1).normal(size=(k, p)), -np.inf)
    passes = Passes(row_blocks(table))
    taken = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        passes.reduce(block_sums, shift, (state,))
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


@contextlib.contextmanager
def cluster_of(n_workers):
    """So many worker processes of one thread, on this machine."""
    options = {"threads_per_worker": 1, "dashboard_address": ":0"}
    with LocalCluster(n_workers=n_workers, **options) as cluster, Client(cluster):
        yield


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=1000.0, help="size of each store")
    megabytes = parser.parse_args().megabytes
    print(f"{CPU_COUNT} cores; seconds of a pass over {megabytes:g} MB\n")
    print("| shape | workers | streamed | kept |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, (p, k, dtype) in SHAPES.items():
            store = write(Path(folder) / f"{p}", megabytes, p, dtype)
            for n_workers in (1, 2, 4):
                with cluster_of(n_workers):
                    lazy = da.from_zarr(store)
                    # One after the other: blocks that are kept would be in the way of the others.
                    seconds = [seconds_of(lazy, k), seconds_of(lazy.persist(), k)]
                cells = " | ".join(f"{each:.3f}" for each in seconds)
                print(f"| {name} | {n_workers} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
