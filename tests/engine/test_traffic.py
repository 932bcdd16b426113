"""Bytes that passes with thousands of centres send between client, scheduler and workers."""

import math
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
from _traffic import count_writes, sent

from daskmm.engine.passes import weighted_passes
from daskmm.engine.stragglers import PATIENCE_KEY
from daskmm.kmeans.sums import CenterState
from daskmm.kmeans.updates import CentersProblem, PowerUpdate
from daskmm.numerics.rows import Coordinates


def rows_of(number):
    return np.random.default_rng(number).normal(size=(25, 768)).astype(np.float32)


@pytest.mark.long
@pytest.mark.parametrize("holder", [None, lambda block: block % 2, lambda block: block in (6, 8)])
def test_a_large_state_and_its_sums_travel_few_times_per_pass(client, holder):
    k, p, n_blocks = 2000, 768, 37
    blocks = [dask.delayed(rows_of)(block) for block in range(n_blocks)]
    client.wait_for_workers(2, timeout=60)
    workers = list(client.nthreads())
    # Lazy, or kept by the workers as the user's persisted blocks are.
    kept = (
        blocks
        if holder is None
        else [
            client.scatter(rows_of(block), workers=workers[holder(block)], hash=False)
            for block in range(n_blocks)
        ]
    )
    X, kept = (
        da.concatenate([da.from_delayed(part, (25, p), np.float32) for part in parts])
        for parts in (blocks, kept)
    )
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
    rtol = 0.0 if holder is None else 1e-13
    np.testing.assert_allclose(found.sums, expected.sums, rtol=rtol, atol=100 * rtol)
    assert found.inertia == pytest.approx(expected.inertia, rel=rtol)
