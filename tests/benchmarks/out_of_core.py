"""A fit to a zarr store larger than the memory it may use, beside merely reading the store.

Run: python tests/benchmarks/out_of_core.py [--gigabytes G] [--rate MB/s | --disk] [--model NAME]

The store is float32 with 50 features and 20 overlapping clusters. Reported: reads of every chunk
(counted at the store), peak memory, seconds, and their ratio to the sum over the passes of the
larger of a plain read and the two matrix products of a pass, measured in the same run. With
--rate the store delivers no faster than that, and the ratio is to as many plain reads. With --disk
the system keeps no chunk that was read, as it cannot where the data are larger than the memory:
each read is one of the disk.
"""

import argparse
import os
import pathlib
import re
import tempfile
import threading
import time
from collections import Counter

import dask
import dask.array as da
import numpy as np
import zarr
from fits import first_fit
from zarr.storage import LocalStore, WrapperStore

from daskmm import EntropyPowerKMeans, PowerKMeans
from daskmm.engine.threads import one_blas_thread

N_FEATURES, N_CLUSTERS = 50, 20
CHUNK_ROWS = 80_000
MODELS = {"power": PowerKMeans, "entropy": EntropyPowerKMeans}


class Metered(WrapperStore):
    """A store that counts the reads of each chunk, may be slow, and may have the system forget."""

    def __init__(self, store, rate=None, forgotten=False):
        super().__init__(store)
        self.reads = Counter()
        self.rate = rate
        self.forgotten = forgotten
        self._lock = threading.Lock()
        self._free_at = 0.0

    async def get(self, key, prototype, byte_range=None):
        value = await super().get(key, prototype, byte_range)
        if "c/" in key and value is not None:
            with self._lock:
                self.reads[key] += 1
            if self.forgotten:
                forget(self._store.root / key)
            if self.rate:
                await self._wait(len(value) / self.rate)
        return value

    async def _wait(self, seconds):
        import asyncio

        with self._lock:
            now = time.perf_counter()
            self._free_at = max(now, self._free_at) + seconds
            pause = self._free_at - now
        await asyncio.sleep(pause)


def forget(path):
    """Have the system drop what it keeps of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def write(path, n_rows):
    """A store of Gaussian clusters, written chunk by chunk."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(N_CLUSTERS, N_FEATURES)).astype(np.float32)
    array = zarr.create_array(
        path,
        shape=(n_rows, N_FEATURES),
        chunks=(CHUNK_ROWS, N_FEATURES),
        dtype="float32",
        compressors=None,
    )
    for start in range(0, n_rows, CHUNK_ROWS):
        rows = min(CHUNK_ROWS, n_rows - start)
        labels = rng.integers(N_CLUSTERS, size=rows)
        noise = rng.standard_normal((rows, N_FEATURES), dtype=np.float32)
        array[start : start + rows] = centers[labels] + noise


def read_all(store):
    """Seconds of a plain read of every chunk, on dask's threads."""
    array = da.from_array(zarr.open_array(store, mode="r+"), chunks=(CHUNK_ROWS, N_FEATURES))
    began = time.perf_counter()
    array.map_blocks(lambda block: np.zeros((1, 1)), dtype=float).compute()
    return time.perf_counter() - began


def multiply_all(n_rows):
    """Seconds of a pass's two matrix products, on as many threads."""
    rows = np.random.default_rng(0).standard_normal((CHUNK_ROWS, N_FEATURES), dtype=np.float32)
    centers = rows[:N_CLUSTERS].copy()

    def products():
        phi = rows @ centers.T
        return phi.T @ rows

    jobs = [dask.delayed(products)() for _ in range(-(-n_rows // CHUNK_ROWS))]
    with one_blas_thread():
        began = time.perf_counter()
        dask.compute(*jobs)
        return time.perf_counter() - began


def peak_bytes():
    """The kernel's own high-water mark of this process."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024


def processor_seconds():
    """Of all cores so far, and those that a virtual machine's host spent on others (steal)."""
    spent = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(spent), spent[7]


def measured(model_name, gigabytes, rate=None, disk=False):
    """A fit to a store of so many gigabytes, and what it is made of; rate in MB/s."""
    n_rows = int(gigabytes * 1e9 / (4 * N_FEATURES))
    cls = MODELS[model_name]
    first_fit(cls)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/rows.zarr"
        write(path, n_rows)
        # Only what has been written to the disk can be dropped.
        os.sync()
        store = Metered(LocalStore(path), rate and rate * 1e6, disk)
        if disk:
            read_all(store)
        plain = min(read_all(store) for _ in range(2))
        products = multiply_all(n_rows)
        store.reads.clear()
        X = zarr.open_array(store, mode="r+")
        model = cls(N_CLUSTERS, random_state=0)
        projected = model.plan(X).peak_bytes_per_worker
        spent, stolen = processor_seconds()
        began = time.perf_counter()
        model.fit(X)
        seconds = time.perf_counter() - began
        spent_since, stolen_since = processor_seconds()
        return {
            "model": model,
            "n_rows": n_rows,
            "seconds": seconds,
            "stolen": (stolen_since - stolen) / (spent_since - spent),
            "reads": max(store.reads.values()),
            "plain": plain,
            "products": products,
            "peak": peak_bytes(),
            "projected": projected,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--rate", type=float, help="MB per second that the store delivers")
    parser.add_argument("--disk", action="store_true", help="keep nothing in the page cache")
    parser.add_argument("--model", choices=MODELS, default="power")
    arguments = parser.parse_args()
    found = measured(arguments.model, arguments.gigabytes, arguments.rate, arguments.disk)
    model, n_rows, reads, seconds = (found[x] for x in ("model", "n_rows", "reads", "seconds"))
    plain, products = found["plain"], found["products"]
    print(f"{n_rows:,} rows, {arguments.gigabytes} GB: {arguments.model}")
    print(f"reads of each chunk {reads}, passes {model.n_passes_}")
    print(f"peak memory {found['peak'] / 1e6:.0f} MB, projected {found['projected'] / 1e6:.0f} MB")
    print(f"plain read {plain:.2f} s, products of a pass {products:.2f} s, fit {seconds:.1f} s")
    print(f"taken by the host meanwhile: {found['stolen']:.0%} of the cores' time")
    print(f"fit / Σ max(read, products): {seconds / (reads * max(plain, products)):.2f}")
    print(f"fit / 7 plain reads: {seconds / (7 * plain):.2f}")
    print(f"inertia per row {model.inertia_ / n_rows:.6f}")
    for record in model.history_:
        if record.exact:
            print(f"  {record.seconds:.1f} s: {record.inertia / n_rows:.6f}")


if __name__ == "__main__":
    main()
