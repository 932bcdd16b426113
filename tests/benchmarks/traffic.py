"""Bytes that passes with many large centres send through a cluster of two processes.

Run: python tests/benchmarks/traffic.py [--clusters K] [--features P] [--passes N] [--persist]

Bytes written by the client and the scheduler, which share a process, and by both workers, per pass
and as multiples of state × workers; the peak memory of the client's process above that before the
first pass, as a multiple of the state. dask warns about graphs of 10 MB; warnings are errors here.
"""

import argparse
import resource
import sys
import time
import warnings
from pathlib import Path

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait

from daskmm.engine.passes import weighted_passes
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import CentersProblem, PowerUpdate
from daskmm.numerics.rows import Coordinates

sys.path.insert(0, str(Path(__file__).parents[1]))

from _traffic import count_writes, sent

ROWS, BLOCKS = 32, 40


def block(p, block_info=None):
    rng = np.random.default_rng(block_info[None]["chunk-location"][0])
    return rng.normal(size=(ROWS, p)).astype(np.float32)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", type=int, default=10_000)
    parser.add_argument("--features", type=int, default=768)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--persist", action="store_true", help="the rows on the cluster")
    arguments = parser.parse_args()
    k, p = arguments.clusters, arguments.features
    warnings.filterwarnings("error", message=".*large graph.*")
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        chunks = ((ROWS,) * BLOCKS, (p,))
        X = da.map_blocks(block, p, chunks=chunks, dtype=np.float32)
        if arguments.persist:
            X = X.persist()
            wait(X)
        state = CenterState(np.random.default_rng(0).normal(size=(k, p)), -np.inf)
        passes, coordinates = weighted_passes(X, None), Coordinates(np.zeros(p), np.ones(p))
        problem = CentersProblem(passes, coordinates, float(ROWS * BLOCKS), PowerUpdate(), 1.0)
        count_writes()
        client.run(count_writes)
        n_bytes, before = state.centers.nbytes, peak()
        print(f"\nk = {k:,}, p = {p:,}, a state of {n_bytes / 1e6:.0f} MB, {BLOCKS} blocks\n")
        print("| pass | seconds | client and scheduler | workers | of state × workers | peak |")
        print("| --- | --- | --- | --- | --- | --- |")
        for number in range(arguments.passes):
            own, others = sent(), sum(client.run(sent).values())
            began = time.perf_counter()
            (step,) = problem.steps([state])
            seconds = time.perf_counter() - began
            own, others = sent() - own, sum(client.run(sent).values()) - others
            share, more = (own + others) / n_bytes / 2, (peak() - before) / n_bytes
            print(
                f"| {number + 1} | {seconds:.1f} | {own / 1e6:.0f} MB | {others / 1e6:.0f} MB "
                f"| {share:.2f} | {more:.1f} states |",
                flush=True,
            )
            state = step.state


if __name__ == "__main__":
    main()
