"""Bytes that passes with thousands of centres send between client, scheduler and workers."""

import math
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
from _traffic import count_writes, sent
from distributed import wait

from daskmm.engine.passes import weighted_passes
from daskmm.engine.stragglers import PATIENCE_KEY
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import CentersProblem, PowerUpdate
from daskmm.numerics.rows import Coordinates


def rows_of(block_info=None):
    number = block_info[None]["chunk-location"][0]
    return np.random.default_rng(number).normal(size=(25, 768)).astype(np.float32)


@pytest.mark.long
@pytest.mark.parametrize("persisted", [False, True])
def test_a_large_state_and_its_sums_travel_few_times_per_pass(client, persisted):
    k, p, n_blocks = 2000, 768, 37
    X = da.map_blocks(rows_of, chunks=((25,) * n_blocks, (p,)), dtype=np.float32)
    kept = X
    if persisted:  # dask gives each worker about every second block
        kept = X.persist()
        wait(kept)
    state = CenterState(np.random.default_rng(0).normal(size=(k, p)), -np.inf)

    def sums(X):
        coordinates = Coordinates(np.zeros(p), np.ones(p))
        passes = weighted_passes(X, None)
        problem = CentersProblem(passes, coordinates, 25.0 * n_blocks, PowerUpdate(), 1.0)
        return problem.sums([state])[0]

    # The scheduler of the cluster runs in this process.
    count_writes()
    client.run(count_writes)
    before = sent() + sum(client.run(sent).values())
    # On a busy machine a worker may be slow, and blocks that it hands over travel, too.
    with warnings.catch_warnings(), dask.config.set({PATIENCE_KEY: math.inf}):
        warnings.simplefilter("error")  # dask warns about graphs of 10 MB
        found = sums(kept)
    travelled = sent() + sum(client.run(sent).values()) - before
    assert travelled <= 4 * len(client.nthreads()) * state.centers.nbytes
    with dask.config.set(scheduler="threads"):
        expected = sums(X)
    rtol = 1e-13 if persisted else 0.0
    np.testing.assert_allclose(found.sums, expected.sums, rtol=rtol, atol=100 * rtol)
    assert found.inertia == pytest.approx(expected.inertia, rel=rtol)
