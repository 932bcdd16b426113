"""Calls of slow workers are made by others, with the same result."""

import asyncio
import contextlib
import copy
import math
import os
import pickle
import signal
import time
from collections import Counter
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
from dask.sizeof import sizeof
from distributed import Client, LocalCluster, get_worker
from distributed.protocol import deserialize, serialize

from daskmm.data.blocks import row_blocks
from daskmm.engine import stragglers, worker_task
from daskmm.engine.graph import GroupTasks
from daskmm.engine.grouping import consecutive_groups, without_data
from daskmm.engine.passes import Passes
from daskmm.engine.worker_task import (
    Call,
    Group,
    Parcel,
    PartialSums,
    give_up,
    merge,
    n_records,
    run_pickled,
)

N_BLOCKS = 120
SLOW_SECONDS, SECONDS = 0.4, 0.01


class Here:
    address = "here"


def group_of(numbers, n_calls=16):
    calls = tuple(Call(number, (number,), (), ()) for number in numbers)
    return Group((calls,), (), (), n_calls)


def run(function, group, monkeypatch):
    monkeypatch.setattr(pickle, "loads", lambda value: value)
    monkeypatch.setattr(worker_task, "unpacked", lambda group: group)
    return run_pickled(group, "pass", (function, ()))


def test_calls_that_are_given_up_are_skipped_and_noted(monkeypatch):
    given = []

    def function(own):
        if own == 2:
            given.extend(give_up("pass", {"here": [range(8)]}, Here))
        return [own]

    sums = run(function, group_of(range(8)), monkeypatch)
    assert sums.total == [0, 1, 2]
    assert list(sums.skipped) == given == [3, 4, 5, 6, 7]
    assert not worker_task._UNBEGUN


def test_a_task_that_has_not_begun_gives_up_all(monkeypatch):
    assert give_up("pass", {"here": [[8, 9], [10, 11]], "there": [[1]]}, Here) == [8, 9, 10, 11]
    assert run(square, group_of([8, 9]), monkeypatch) == PartialSums(16, skipped=(8, 9))
    # If it is run again, say because its record was lost, it makes all calls.
    assert run(square, group_of([8, 9]), monkeypatch).total == [64, 81]
    assert give_up("pass", {"here": [[8, 9]]}, Here) == []
    worker_task._UNBEGUN.clear()
    worker_task._ENDED.clear()


def square(number):
    return [number**2]


class Sum(list):
    any_order = True

    def __add__(self, other):
        return Sum(super().__add__(other))


@pytest.mark.parametrize("some", [range(0, 16, 2), [0, 1, 2, 5, 15]])
@pytest.mark.parametrize(("record", "any_order"), [(Sum, True), (Sum, False), (list, True)])
def test_records_are_added_as_they_come_if_they_may_be(monkeypatch, record, any_order, some):
    def function(number):
        return record([number])

    monkeypatch.setattr(pickle, "loads", lambda value: value)
    monkeypatch.setattr(worker_task, "unpacked", lambda group: group)
    others = [number for number in range(16) if number not in some]
    parcel, few = Parcel((function, ()), any_order), record is Sum and any_order
    found = [run_pickled(group_of(calls), "pass", parcel) for calls in (others, some)]
    for calls, each in zip((others, some), found, strict=True):
        assert (each.unordered is not None, len(each.parts)) == (
            (True, 0) if few else (False, n_records(calls, 16))
        )
    whole = merge(found)
    assert list(whole.parts) == [0]
    assert whole.unordered is None
    assert sorted(whole.total) == [*range(16)]
    assert few or whole.total == [*range(16)]


@pytest.mark.parametrize(
    ("groups", "scattered"),
    [
        ((range(0, 40, 2), range(1, 40, 2)), True),
        (([6, 8], [*range(6), 7, *range(9, 40)]), True),
        ((range(20), range(20, 40)), False),
        ((range(25), range(25, 40)), False),
        (consecutive_groups(1000, 7), False),
    ],
)
def test_groups_of_every_second_call_are_scattered(groups, scattered):
    arguments = [(number,) for number in range(max(map(max, groups)) + 1)]
    tasks = GroupTasks({}, arguments, without_data(groups), False)
    assert tasks.are_scattered == scattered


def test_a_scheduler_takes_a_parcel_for_a_small_value():
    parcel = Parcel(bytes(1 << 20), True)
    assert sizeof(parcel) < 100
    header, frames = serialize(parcel)
    assert deserialize(header, frames) == copy.deepcopy(parcel) == parcel


def test_looks_become_rarer_up_to_one_per_second(monkeypatch):
    pauses = []

    async def sleep(pause):
        pauses.append(pause)

    class Workers:
        async def processing(self):
            others = [] if sum(pauses) >= 20.0 else [("pass", 1)]
            return {"slow": [("pass", 0), "another"], "a": others, "b": others}

    class Tasks:
        def calls_of(self, keys):
            return keys

    monkeypatch.setattr(stragglers, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(stragglers, "time", SimpleNamespace(monotonic=lambda: sum(pauses)))
    handover = stragglers.Handover(Workers(), "pass", Tasks(), None, patience=0.1, large=False)
    assert asyncio.run(handover._slow_workers()) == {"slow": [[("pass", 0)]]}
    assert pauses[:11] == [0.25] * 11
    assert pauses == sorted(pauses)
    assert pauses[-3:] == [1.0] * 3
    assert 22.0 <= sum(pauses) <= 24.5


@pytest.fixture(scope="module")
def cluster():
    """Three workers, the first of which is slow."""
    with LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0") as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with (
        dask.config.set({stragglers.PATIENCE_KEY: stragglers.DEFAULT_PATIENCE}),
        Client(cluster) as client,
    ):
        yield client


def block(block_id=None):
    return np.full((1, 1), 1.0 + block_id[0])


def visit(block, slow):
    """Return what depends on the order of sums, and who made it."""
    slowly = os.getpid() == slow
    time.sleep(SLOW_SECONDS if slowly else SECONDS)
    return Visit(1 / block.rows[0, 0], Counter([slowly]))


class Visit:
    def __init__(self, total, by):
        self.total, self.by = total, by

    def __add__(self, other):
        return Visit(self.total + other.total, self.by + other.by)


def slow_pid(client):
    return client.run(os.getpid).popitem()[1]


def table(n_blocks=N_BLOCKS):
    chunks = ((np.nan,) * n_blocks, (1,))
    return da.map_blocks(block, chunks=chunks, dtype=float, meta=np.empty((0, 0)))


@pytest.mark.in_turn("kept")
@pytest.mark.parametrize("kept", ["here", "by the user", False])
def test_idle_workers_make_the_calls_of_a_slow_one(client, kept):
    slow = slow_pid(client)
    data = table().persist() if kept == "by the user" else table()
    passes = Passes(row_blocks(data))
    with passes.persisted(kept == "here"):
        with dask.config.set({stragglers.PATIENCE_KEY: math.inf}):
            expected = passes.reduce(visit, None)
        assert expected.by == {False: N_BLOCKS}
        for _ in range(2):
            found = passes.reduce(visit, slow)
            assert found.total == expected.total
            assert sum(found.by.values()) == N_BLOCKS
            # Its own share is a third.
            assert found.by[True] <= N_BLOCKS // 6


def visit_with(block, slow, large):
    return visit(block, slow)


@pytest.mark.long
def test_large_records_are_summed_in_order_too(client):
    """With large states each pass ends in one record, which must not hide what it lacks."""
    passes, large = Passes(row_blocks(table())), np.zeros(1 << 20)
    expected = passes.reduce(visit, None)
    found = passes.reduce(visit_with, slow_pid(client), large)
    assert found.by[True] <= N_BLOCKS // 6
    assert sum(found.by.values()) == N_BLOCKS
    assert found.total == expected.total


@pytest.mark.long
def test_calls_stay_with_the_workers_that_are_annotated(client):
    slow = slow_pid(client)
    (address,) = [worker for worker, pid in client.run(os.getpid).items() if pid == slow]
    passes = Passes(row_blocks(table(N_BLOCKS // 5)))
    for resources in ({"workers": [address]}, {"workers": address, "allow_other_workers": False}):
        with dask.annotate(**resources):
            assert passes.reduce(visit, slow).by == {True: N_BLOCKS // 5}


def taken_over():
    """Tell whether this call was first given to another worker."""
    name, _ = get_worker().get_current_task()
    return name.endswith("-again")


def refuse(block, slow):
    if taken_over():
        raise ValueError("not by this worker")
    return visit(block, slow)


@pytest.mark.long
def test_an_error_of_a_call_that_was_handed_over_is_raised(client):
    passes = Passes(row_blocks(table()))
    with pytest.raises(ValueError, match="not by this worker"):
        passes.reduce(refuse, slow_pid(client))
    assert passes.reduce(visit, None).by == {False: N_BLOCKS}


def die_once(block, slow, path):
    if taken_over():
        with contextlib.suppress(FileExistsError):
            path.touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
    return visit(block, slow)


@pytest.mark.long
def test_a_worker_that_dies_of_a_call_that_it_took_over_costs_no_record(client, tmp_path):
    passes = Passes(row_blocks(table()))
    expected = passes.reduce(visit, None).total
    found = passes.reduce(die_once, slow_pid(client), tmp_path / "dead")
    assert (tmp_path / "dead").exists()
    assert found.total == expected
    assert sum(found.by.values()) == N_BLOCKS
