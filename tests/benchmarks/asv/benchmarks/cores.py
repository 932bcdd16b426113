"""Cores of the benchmarks above this folder, small enough to compare commits in minutes."""

import warnings

import dask.array as da
import numpy as np

from daskmm import (
    EntropyPowerKMeans,
    KernelPowerKMeans,
    KMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
)

ROWS, FEATURES, CLUSTERS = 100_000, 20, 20


def mixture(n_rows, dtype="float64"):
    """Overlapping clusters, as in fits.py."""
    rng = np.random.default_rng(0)
    centers = 1.5 * rng.normal(size=(CLUSTERS, FEATURES))
    rows = rng.standard_normal((n_rows, FEATURES)) + centers[rng.integers(0, CLUSTERS, n_rows)]
    return rows.astype(dtype)


class Fits:
    """Whole fits: fits.py, summary.py."""

    params = (
        ["KMeans", "PowerKMeans", "EntropyPowerKMeans", "kernel", "mean shift"],
        ["numpy", "dask"],
    )
    param_names = ("estimator", "input")
    timeout = 600
    warmup_time = 0

    def setup(self, name, kind):
        """Fit once: what a fit needs is imported, and the loops are loaded."""
        warnings.simplefilter("ignore")
        self.make = {
            "KMeans": lambda: KMeans(CLUSTERS, random_state=0),
            "PowerKMeans": lambda: PowerKMeans(CLUSTERS, random_state=0),
            "EntropyPowerKMeans": lambda: EntropyPowerKMeans(CLUSTERS, random_state=0),
            "kernel": lambda: KernelPowerKMeans(CLUSTERS, random_state=0),
            "mean shift": lambda: WeightedBlurringMeanShift(bandwidth=1.0),
        }[name]
        rows = mixture({"kernel": 1500, "mean shift": 1500}.get(name, ROWS))
        self.X = da.from_array(rows, chunks=(-(-len(rows) // 8), -1)) if kind == "dask" else rows
        self.make().fit(self.X)

    def time_fit(self, name, kind):
        """Seconds of a fit."""
        self.make().fit(self.X)


class Steps:
    """Five steps of all rows, soft and hard: block_kernel.py, hard_steps.py."""

    params = (["float32", "float64"], ["soft", "hard"], [20, 100])
    param_names = ("dtype", "steps", "clusters")
    timeout = 600
    warmup_time = 0

    def setup(self, dtype, steps, clusters):
        """Start from rows of the table, so that no time goes into starts."""
        warnings.simplefilter("ignore")
        self.X = mixture(ROWS, dtype)
        common = {"init": self.X[:clusters], "max_iter": 5, "tol": 0, "sample_size": None}
        if steps == "hard":
            self.model = KMeans(clusters, **common)
        else:
            self.model = PowerKMeans(clusters, s0=-3, eta=1, polish=False, **common)
        self.model.fit(self.X)

    def time_steps(self, dtype, steps, clusters):
        """Seconds of the steps."""
        self.model.fit(self.X)


class Blocks:
    """Many small blocks, and what they take at most: passes.py, memory.py."""

    timeout = 600

    def setup(self):
        """1,000 blocks that are made when they are asked for."""
        warnings.simplefilter("ignore")
        self.X = da.random.default_rng(0).normal(size=(400_000, FEATURES), chunks=(400, -1))
        self.model = KMeans(5, max_iter=3, sample_size=5_000, random_state=0)
        self.model.fit(self.X[:4_000])

    def time_fit(self):
        """Seconds, most of them the scheduler's and the blocks' own."""
        self.model.fit(self.X)

    def peakmem_fit(self):
        """Peak memory of a streamed fit."""
        self.model.fit(self.X)
