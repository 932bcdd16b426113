"""Seconds of loading are measured on one block."""

import time
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy.sparse import random_array

from daskmm import GaussianMixture, KernelPowerKMeans, KMeans, WeightedBlurringMeanShift
from daskmm.data.blocks import layout_of
from daskmm.engine.speed import loading_seconds, with_measured_loading

N_BLOCKS, ROWS, P = 40, 50_000, 4
SLOW_SECONDS = 0.05


def slow(block_id=None):
    time.sleep(SLOW_SECONDS)
    return np.random.default_rng(block_id[0]).normal(size=(ROWS, P))


def table():
    chunks = ((ROWS,) * N_BLOCKS, (P,))
    return da.map_blocks(slow, chunks=chunks, dtype=float, meta=np.empty((0, 0)))


def test_slow_blocks_are_noticed():
    X = table()
    assumed = layout_of(X)
    found = with_measured_loading(X, assumed)
    assert found == replace(assumed, byte_seconds=found.byte_seconds)
    assert SLOW_SECONDS <= found.byte_seconds * ROWS * P * 8 < 3 * SLOW_SECONDS
    expected = N_BLOCKS * SLOW_SECONDS / 2
    assert expected <= loading_seconds(found, 2) < 3 * expected
    assert loading_seconds(assumed, 2) < 0.2 * expected


def test_the_time_of_loading_is_measured_on_a_worker_of_the_active_cluster():
    with Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None):
        X = table()
        assert with_measured_loading(X, layout_of(X)).byte_seconds > 1e-9


def test_rows_in_memory_are_not_loaded():
    rows = np.ones((100, 3))
    assert with_measured_loading(rows, layout_of(rows)) == layout_of(rows)


def test_sparse_and_empty_blocks_are_measured():
    rows = random_array((300, 200), density=0.1, format="csr", rng=np.random.default_rng(0))
    for X in (da.from_array(rows, chunks=(100, -1), asarray=False), da.zeros((0, 3))):
        assert 0 < with_measured_loading(X, layout_of(X)).byte_seconds < np.inf


@pytest.mark.parametrize(
    "model",
    [KMeans(3), KernelPowerKMeans(3), WeightedBlurringMeanShift(), GaussianMixture(3)],
    ids=lambda model: type(model).__name__,
)
def test_plans_measure_only_if_asked(model):
    loaded = []

    def load(block_id=None):
        loaded.append(block_id)
        return np.ones((2000, 8))

    X = da.map_blocks(load, chunks=((2000,) * 20, (8,)), dtype=float, meta=np.empty((0, 0)))
    assumed = model.plan(X)
    assert not loaded
    found = model.plan(X, measure=True)
    assert loaded == [(10, 0)] * 2
    exact = "passes", "max_passes", "bytes_per_pass", "peak_bytes_per_worker"
    assert all(getattr(found, name) == getattr(assumed, name) for name in exact)
