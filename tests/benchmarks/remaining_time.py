"""Planned seconds of ten kinds of fits beside measured ones, and how right the time left was.

Prints a Markdown table. Each fit runs twice, so that imports are not timed; errors
of the time left are those at a share of the time of the second fit, in percent of the time that
was really left. On a machine with other work, `taskset -c 0` and the option `--processor` measure
processor seconds of one thread.
"""

import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import zarr

from daskmm import (
    EntropyPowerKMeans,
    KernelPowerKMeans,
    KMeans,
    MultiKernelPowerKMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
)
from daskmm.cluster._time_left import TimeLeft

CLOCK = time.process_time if "--processor" in sys.argv else time.perf_counter
SHARES = (0.2, 0.4, 0.6, 0.8)


class Recorder:
    """Callback that keeps what a progress bar is told, and when."""

    def __init__(self):
        self.told = []

    def __call__(self, record):
        pass

    def expect(self, stages, tol):
        self.told.append((CLOCK(), "expect", stages, tol))

    def follow(self, name, found):
        self.told.append((CLOCK(), "follow", name, found))

    def left_at(self, now, max_iter):
        """Seconds that were left by the estimate at a time."""
        left = TimeLeft(max_iter)
        for told_at, kind, first, second in self.told:
            if told_at > now:
                break
            if kind == "expect":
                left.expect(first, second)
            else:
                left.follow(first, second, told_at)
        return left.seconds(now), left


def mixture(n_rows, n_features, n_clusters, dtype=np.float32):
    """Overlapping clusters around centres of their own, with thirty common directions."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(n_clusters, n_features))
    common = rng.normal(size=(30, n_features)) / 5
    X = np.empty((n_rows, n_features), dtype)
    for start in range(0, n_rows, 10_000):
        part = X[start : start + 10_000]
        part[:] = 0.5 * centers[rng.integers(n_clusters, size=len(part))]
        part += rng.normal(size=(len(part), 30)) @ common
        part += rng.normal(size=part.shape)
    return X


def streamed(X, n_rows, folder):
    """The rows repeated to a zarr array."""
    array = zarr.create_array(
        Path(folder) / "rows.zarr", shape=(n_rows, X.shape[1]), chunks=X.shape, dtype=X.dtype
    )
    for start in range(0, n_rows, len(X)):
        array[start : start + len(X)] = X[: n_rows - start]
    return array


def kinds(folder):
    """Ten fits: what they are, and functions that return estimator and data."""
    return {
        "KMeans, in memory, 1,000,000 × 20, k = 50": lambda: (
            KMeans(50, random_state=0),
            mixture(1_000_000, 20, 50),
        ),
        "KMeans, k = 500, 100,000 × 20": lambda: (
            KMeans(500, random_state=0),
            mixture(100_000, 20, 500),
        ),
        "PowerKMeans, in memory, 300,000 × 50, k = 100": lambda: (
            PowerKMeans(100, random_state=0),
            mixture(300_000, 50, 100),
        ),
        "PowerKMeans, whole table annealed, 20,000 × 50, k = 20": lambda: (
            PowerKMeans(20, sample_size=None, random_state=0),
            mixture(20_000, 50, 20, float),
        ),
        "PowerKMeans, zarr, 3,000,000 × 50, k = 20": lambda: (
            PowerKMeans(20, random_state=0),
            streamed(mixture(100_000, 50, 20), 3_000_000, folder),
        ),
        "PowerKMeans, wide, 30,000 × 768, k = 50": lambda: (
            PowerKMeans(50, random_state=0),
            mixture(30_000, 768, 50),
        ),
        "EntropyPowerKMeans, lam='auto', 100,000 × 30, k = 30": lambda: (
            EntropyPowerKMeans(30, lam="auto", random_state=0),
            mixture(100_000, 30, 30),
        ),
        "KernelPowerKMeans, 10,000 × 10, k = 10": lambda: (
            KernelPowerKMeans(10, random_state=0),
            mixture(10_000, 10, 10),
        ),
        "MultiKernelPowerKMeans, 4,000 × 10, k = 5": lambda: (
            MultiKernelPowerKMeans(5, random_state=0),
            mixture(4000, 10, 5),
        ),
        "WeightedBlurringMeanShift, 20,000 × 10": lambda: (
            WeightedBlurringMeanShift(random_state=0),
            mixture(20_000, 10, 8, float),
        ),
    }


def measured(make):
    """Return planned and measured seconds, and the errors of the time left, in percent."""
    model, X = make()
    seconds = model.plan(X).seconds
    model.set_params(callbacks=[]).fit(X)
    recorder = Recorder()
    began = CLOCK()
    model.set_params(callbacks=[recorder]).fit(X)
    taken = CLOCK() - began
    errors = []
    for share in SHARES:
        found, at = recorder.left_at(began + share * taken, model.max_iter)
        really = (1 - share) * taken
        errors.append(f"{100 * ((found or 0) - really) / really:+.0f} % ({at.stage})")
    return seconds, taken, errors


def main():
    """Print the table."""
    warnings.simplefilter("ignore")
    print("| fit | planned (s) | measured (s) |", *(f"{share:.0%} |" for share in SHARES))
    print("|---|---|---|" + "---|" * len(SHARES))
    chosen = [word for word in sys.argv[1:] if not word.startswith("-")]
    with tempfile.TemporaryDirectory() as folder:
        for name, make in kinds(folder).items():
            if chosen and not any(word in name for word in chosen):
                continue
            planned, taken, errors = measured(make)
            print(
                f"| {name} | {planned:.2g} | {taken:.2g} |", *(f"{e} |" for e in errors), flush=True
            )


if __name__ == "__main__":
    main()
