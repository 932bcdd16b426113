"""Processor seconds of hard steps in memory, with bounds of distances and without.

Run: python tests/benchmarks/hard_steps.py [--rows N] [--features P] [--clusters K]

From k-means++ centres until no centre moves, or for 30 steps: clusters well apart, overlapping
ones, and heavy tails in groups. Both ways take turns, step by step; the sums are the same bits.
"""

import argparse
import time

import numpy as np
from many_clusters import KINDS
from sklearn.cluster import kmeans_plusplus

from daskmm.engine.passes import weighted_passes
from daskmm.kmeans import bounds
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import CentersProblem, PowerUpdate
from daskmm.numerics.rows import Coordinates

STEPS = 30


def problem_of(X):
    coordinates = Coordinates(X.mean(axis=0, dtype=float), np.ones(X.shape[1]))
    return CentersProblem(weighted_passes(X, None), coordinates, float(len(X)), PowerUpdate(), 1.0)


def timed_steps(X, k):
    """Return the processor seconds of each step with bounds and without."""
    least, problems = bounds.LEAST_CLUSTERS, (problem_of(X), problem_of(X))
    start, _ = kmeans_plusplus(X[: 20 * k].astype(float), k, random_state=0)
    states = [CenterState(problems[0].coordinates.to_model(start), -np.inf)] * 2
    # Threads of the seeding spin for a while, which the first step would be charged with.
    problem_of(X).steps(states[:1])
    time.sleep(1.0)
    seconds = [], []
    for _ in range(STEPS):
        for which, problem in enumerate(problems):
            bounds.LEAST_CLUSTERS = (least, np.inf)[which]
            began = time.process_time()
            (step,) = problem.steps([states[which]])
            seconds[which].append(time.process_time() - began)
            states[which] = step.state
        assert np.array_equal(states[0].centers, states[1].centers)
        if not step.moved:
            break
    bounds.LEAST_CLUSTERS = least
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--clusters", type=int, default=1000)
    arguments = parser.parse_args()
    n, p, k = arguments.rows, arguments.features, arguments.clusters
    # Imports, and gets memory from the system.
    timed_steps(KINDS["apart"](20 * k, p, k, np.random.default_rng(0)).astype(np.float32), k)
    print(f"\n{n:,} × {p}, k = {k:,}\n")
    print("| rows | steps | without | with | ratio | of the last ten |")
    print("| --- | --- | --- | --- | --- | --- |")
    for kind in ("apart", "alike", "grouped"):
        X = KINDS[kind](n, p, k, np.random.default_rng(0)).astype(np.float32)
        within, without = timed_steps(X, k)
        total, late = sum(without) / sum(within), sum(without[-10:]) / sum(within[-10:])
        print(
            f"| {kind} | {len(within)} | {sum(without):.2f} s | {sum(within):.2f} s "
            f"| {total:.1f} | {late:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
