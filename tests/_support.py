"""Helpers shared by the tests: small data, schedulers that watch, sources that count."""

from __future__ import annotations

import dataclasses
import os
import threading
import uuid
import warnings
from collections import Counter
from contextlib import contextmanager

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import zarr
from sklearn.exceptions import ConvergenceWarning
from zarr.storage import MemoryStore, WrapperStore

from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans

ESTIMATORS = (KMeans, PowerKMeans, EntropyPowerKMeans)
ANNEALED = (PowerKMeans, EntropyPowerKMeans)


def n_examples(count):
    """So many examples of hypothesis in CI, a third of them elsewhere."""
    return count if os.environ.get("CI") else -(-count // 3)


def blobs(n=240, p=5, k=4, seed=0, offset=0.0):
    """Rows around k centres far apart, and the cluster of each."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(0.0, 10.0, (k, p))
    truth = rng.integers(k, size=n)
    return centers[truth] + rng.normal(size=(n, p)) + offset, truth


def quick(cls, **parameters):
    """An estimator that anneals in few steps, with everything given that depends on the input."""
    settings = {"n_clusters": 4, "n_init": 2, "random_state": 0}
    if cls in ANNEALED:
        settings["eta"] = 1.3
    if cls is EntropyPowerKMeans:
        settings["lam"] = "0.5*variance"
    if cls in (KMeans, PowerKMeans):
        settings["standardize"] = False
    return cls(**settings | parameters)


def fit_recording(estimator, X, **fit):
    """Fit, and return the messages of the convergence warnings; others are errors."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        estimator.fit(X, **fit)
    assert all(item.category is ConvergenceWarning for item in caught), caught
    return [str(item.message) for item in caught]


def computed(result):
    """Numpy values of a result that may be lazy."""
    return np.asarray(result.compute() if dask.is_dask_collection(result) else result)


def assert_same_model(a, b, rtol=1e-9):
    """Two fits that found the same, whatever kind of input they had."""
    fitted = ["mean_", "scale_", "cluster_centers_", "inertia_", "objective_history_", "s_"]
    fitted += ["feature_weights_", "lam_"] if isinstance(a, EntropyPowerKMeans) else []
    for name in fitted:
        np.testing.assert_allclose(
            getattr(a, name), getattr(b, name), rtol=rtol, atol=1e-12, err_msg=name
        )
    assert a.n_iter_ == b.n_iter_
    np.testing.assert_array_equal(computed(a.labels_).ravel(), computed(b.labels_).ravel())


def found(model):
    """All that a fit found, as numpy arrays and plain values; not how long and how often."""
    values = {k: v for k, v in vars(model).items() if k.endswith("_") and not k.startswith("_")}
    del values["n_passes_"]
    values["history_"] = [
        dataclasses.replace(record, seconds=0.0, n_passes=0) for record in values["history_"]
    ]
    values["labels_"] = computed(values["labels_"])
    if "lam_path_" in values:
        values |= vars(values.pop("lam_path_"))
    if "standardize_path_" in values:
        scale = vars(values.pop("standardize_path_"))
        values |= {f"scale: {name}": value for name, value in scale.items()}
    return values


def assert_same_bits(model, other):
    """Two fits that found the same, to the last bit."""
    a, b = found(model), found(other)
    assert a.keys() == b.keys()
    for name, value in a.items():
        if isinstance(value, np.ndarray):
            assert value.dtype == b[name].dtype, name
            np.testing.assert_array_equal(value, b[name], err_msg=name)
        elif name != "gram_":
            assert value == b[name], name


class ComputeForbiddenError(RuntimeError):
    """Something was computed that should have stayed lazy."""


@contextmanager
def raise_if_computes():
    """Refuse every dask computation."""

    def scheduler(dsk, keys, **kwargs):
        raise ComputeForbiddenError

    with dask.config.set(scheduler=scheduler):
        yield


@contextmanager
def counting_computes():
    """Count dask computations; yields a list that grows by one entry per computation."""
    computes = []

    def scheduler(dsk, keys, **kwargs):
        computes.append(keys)
        return dask.get(dsk, keys, **kwargs)

    with dask.config.set(scheduler=scheduler):
        yield computes


class CountingSource:
    """An array on a pretended disk, which counts how often each block is read."""

    ndim = 2

    def __init__(self, data):
        self._data = data
        self._lock = threading.Lock()
        self.shape, self.dtype = data.shape, data.dtype
        self.reads = Counter()

    def __getitem__(self, key):
        with self._lock:
            self.reads[key[0].start or 0] += 1
        return self._data[key]

    def __dask_tokenize__(self):
        # Equal sources must not be taken for one another: each counts its own reads.
        return uuid.uuid4().hex

    def as_dask(self, chunks):
        array = da.from_array(self, chunks=chunks, meta=np.empty((0, 0), self.dtype))
        self.reads.clear()
        return array


class CountingFrame:
    """A frame in partitions of 60 rows on a pretended disk, which counts how often each is read."""

    def __init__(self, frame):
        self._frame = frame
        self.reads = Counter()

    def __call__(self, part):
        self.reads[part] += 1
        return self._frame.iloc[60 * part : 60 * part + 60]

    def __dask_tokenize__(self):
        # Equal frames must not be taken for one another: each counts its own reads.
        return uuid.uuid4().hex

    def as_dask(self):
        return dd.from_map(self, range(len(self._frame) // 60), meta=self._frame.iloc[:0])


class CountingStore(WrapperStore):
    """A zarr store that counts how often each chunk is read."""

    def __init__(self, store):
        super().__init__(store)
        self.reads = Counter()

    async def get(self, key, prototype, byte_range=None):
        if "c/" in key:
            self.reads[key] += 1
        return await super().get(key, prototype, byte_range)


def counting_zarr(data, chunks):
    """A zarr array of `data`, and its store, which has counted nothing yet."""
    store = CountingStore(MemoryStore())
    array = zarr.create_array(store, shape=data.shape, dtype=data.dtype, chunks=chunks)
    array[...] = data
    store.reads.clear()
    return array, store
