"""Passes: calls grouped into few tasks, blocks loaded once and let go, data kept in memory."""

import contextvars
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from contextlib import contextmanager

import dask
import dask.array as da
import numpy as np
import pytest
from _support import CountingSource, counting_computes
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from daskmm import KMeans
from daskmm.data.blocks import row_blocks, visited_together
from daskmm.engine import distributed as on_cluster
from daskmm.engine import passes as passes_module
from daskmm.engine import resources
from daskmm.engine.grouping import (
    consecutive_groups,
    grouped_by_holder,
    groups_by_holder,
    on_all_threads,
)
from daskmm.engine.merge_tree import sibling, subtree_starts
from daskmm.engine.passes import Passes, tree_reduce, weighted_passes
from daskmm.engine.threads import one_blas_thread
from daskmm.engine.worker_task import PartialSums, merge, n_records
from daskmm.numerics.distortions.bregman import SquaredEuclidean


def total(block, *shared):
    """A record whose bits tell the order of summation."""
    values = block.rows if block.weights is None else block.rows * block.weights[:, None]
    return values.sum(axis=0)


def visited(block, *shared):
    return [piece.block for piece in block.position.pieces or (block.position,)]


def shapes(block, *shared):
    return [block.rows.shape]


def process(block, *shared):
    return Together({os.getpid()})


def rows_of(n, p=3):
    return np.random.default_rng(0).normal(size=(n, p))


@pytest.fixture(autouse=True)
def _four_threads():
    with dask.config.set(scheduler="threads", num_workers=4):
        yield


@contextmanager
def recording_graphs():
    """Graphs given to the scheduler, which runs them in this thread."""
    graphs = []

    def scheduler(dsk, keys, **kwargs):
        graphs.append(dict(dsk))
        return dask.get(dsk, keys, **kwargs)

    with dask.config.set(scheduler=scheduler):
        yield graphs


# Grouping and merging


def run_of(numbers, values):
    n_calls = len(values)
    return merge(PartialSums.of(number, values[number], n_calls) for number in numbers)


@given(st.integers(1, 300), st.data())
def test_the_bits_of_a_sum_do_not_depend_on_the_groups_of_calls(n, data):
    values = np.random.default_rng(n).normal(size=n) * 10.0 ** np.arange(n)[::-1].clip(0, 12)
    whole = run_of(range(n), values).total
    owners = data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    groups = [[job for job in range(n) if owners[job] == owner] for owner in range(5)]
    groups = data.draw(st.permutations([group for group in groups if group]))
    assert merge(run_of(group, values) for group in groups).total == whole
    assert whole == pytest.approx(float(sum(map(float, values))), rel=1e-9, abs=1e-6)


@given(st.integers(1, 60), st.randoms())
def test_records_are_merged_in_order(n, random):
    jobs = [*range(n)]
    random.shuffle(jobs)
    assert run_of(jobs, [[job] for job in range(n)]).total == [*range(n)]


def test_records_are_merged_along_the_tree():
    values = [f"{call:x}" for call in range(11)]
    most = run_of(range(9), values)
    assert most.parts == {0: ("01234", 5), 5: ("567", 8), 8: ("8", 9)}
    assert (most + run_of([9, 10], values)).parts == {0: ("0123456789a", 11)}


@pytest.mark.parametrize("calls", [(1, 3), (0, 41), (3, 3), (-1, 4)])
def test_ranges_that_are_no_subtrees_are_errors(calls):
    with pytest.raises(ValueError, match="no subtree of 40 calls"):
        sibling(*calls, 40)


@given(st.integers(1, 500), st.integers(1, 600))
def test_every_subtree_has_a_sibling_and_one_record(n_calls, least):
    starts = [*subtree_starts(n_calls, least), n_calls]
    assert min(n_calls, least) <= len(starts) - 1 < 2 * least
    sizes = set(map(int, np.diff(starts)))
    assert max(sizes) - min(sizes) <= 1
    for start, stop in itertools.pairwise(starts):
        other = sibling(start, stop, n_calls)
        if other is None:
            assert (start, stop) == (0, n_calls)
            continue
        assert sibling(*other, n_calls) == (start, stop)
        assert abs((other[1] - other[0]) - (stop - start)) <= 1
        sums = merge(PartialSums.of(call, 1, n_calls) for call in range(start, stop))
        assert sums.parts == {start: (stop - start, stop)}


def test_few_records_are_alive_at_once():
    alive, most = 0, 0

    class Record:
        def __init__(self):
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __add__(self, other):
            return Record()

        def __del__(self):
            nonlocal alive
            alive -= 1

    merge(PartialSums.of(number, Record(), 1000) for number in range(1000))
    assert most <= 14


@given(st.integers(0, 5000), st.integers(0, 600))
def test_groups_cover_all_calls_by_subtrees(n, least):
    cuts = consecutive_groups(n, least)
    assert [job for cut in cuts for job in cut] == list(range(n))
    if n:
        assert max(map(len, cuts)) - min(map(len, cuts)) <= 1
        assert min(n, least) <= len(cuts) <= max(2 * least, 1)


@pytest.mark.parametrize("n_threads", [2, 3, 6, 16])
def test_threads_of_a_worker_leave_few_records(n_threads):
    n_calls = 10_000
    workers = dict.fromkeys(("a", "b"), n_threads)
    for queues in on_all_threads(workers, n_calls, consecutive_groups).queues:
        assert len(queues) == n_threads
        assert max(n_records(calls, n_calls) for calls in queues) <= 8
        sizes = [len(calls) for calls in queues]
        assert max(sizes) <= 1.05 * min(sizes)


HOLDERS = st.lists(st.lists(st.sampled_from("abc"), max_size=3), max_size=60)


@given(HOLDERS, st.dictionaries(st.sampled_from("ab"), st.integers(1, 4), min_size=1))
def test_every_job_goes_to_one_that_holds_its_data_if_there_is_one(holders, threads):
    cuts = groups_by_holder(holders, threads)
    assert sorted(job for cut in cuts for job in cut) == list(range(len(holders)))
    assert all(list(cut) == sorted(cut) for cut in cuts)
    for cut in cuts:
        known = [set(holders[job]) & threads.keys() for job in cut]
        assert not any(known) or set.intersection(*known)


def test_copies_on_several_workers_share_the_work():
    cuts = groups_by_holder([["a", "b"]] * 10, {"a": 1, "b": 1})
    assert [len(cut) for cut in cuts] == [5, 5]


@given(HOLDERS, st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), min_size=1))
def test_a_worker_with_the_first_persisted_key_has_all(holders, threads):
    found = dict(enumerate(holders))
    grouping = grouped_by_holder([[key] for key in found], found, threads)
    for cut, keys in zip(grouping.groups, grouping.persisted, strict=True):
        assert set(keys) <= set(cut)
        assert all(set(holders[key]) >= set(holders[keys[0]]) > set() for key in keys)
        # Unless there are copies, it is all that the group's worker holds.
        if all(len(set(holders[job])) == 1 and holders[job][0] in threads for job in cut):
            assert set(keys) == set(cut)
    held = [set(cut) == set(keys) for cut, keys in zip(*grouping[:2], strict=True)]
    assert grouping.settled == all(held)


@pytest.mark.parametrize("n_blocks", [1, 7, 256, 1000])
def test_a_pass_is_few_tasks(n_blocks):
    data = da.from_array(rows_of(n_blocks * 2), chunks=(2, -1)).map_blocks(np.abs)
    with recording_graphs() as graphs:
        record = Passes(row_blocks(data)).reduce(visited)
    assert record == list(range(n_blocks))
    assert len(graphs) == 1
    # At most 16 groups per thread, and what merges them.
    assert len(graphs[0]) <= min(n_blocks, 64) + 5


@pytest.mark.parametrize("weighted", [False, True])
def test_same_bits_whatever_the_scheduler_and_its_threads(weighted):
    data = da.from_array(rows_of(1300), chunks=(13, -1)) * 3.0
    results = []
    for config in [
        {"scheduler": "sync", "num_workers": 1},
        {"scheduler": "threads", "num_workers": 1},
        {"scheduler": "threads", "num_workers": 3},
        {"scheduler": "threads", "num_workers": 64},
    ]:
        with dask.config.set(config):
            passes = Passes(row_blocks(data))
            passes.weigh(np.arange(1300.0) if weighted else None)
            results += [passes.reduce(total), passes.reduce(total)]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    expected = (rows_of(1300) * 3 * (np.arange(1300.0)[:, None] if weighted else 1)).sum(axis=0)
    np.testing.assert_allclose(results[0], expected, rtol=1e-9)


def weights_of(block):
    return [block.weights.tolist()]


def test_rows_without_values_have_no_weight():
    rows = rows_of(4)
    rows[1] = rows[2, 0] = np.nan
    for v, expected in ((None, [1.0, 0.0, 1.0, 1.0]), ([3.0, 3.0, 5.0, 1.0], [3, 0, 5, 1])):
        passes = weighted_passes(rows, v, family=SquaredEuclidean)
        assert passes.reduce(weights_of) == [expected]


def test_passes_made_elsewhere_can_be_added_to_the_count():
    passes = weighted_passes(rows_of(4), None)
    passes.reduce(shapes)
    passes.add(3)
    assert passes.n_passes == 4


def test_jobs_without_data_are_added_in_order():
    assert tree_reduce(lambda i, s: [i * s], [(i,) for i in range(100)], (3,), True, "x") == [
        3 * i for i in range(100)
    ]


# What blocks need is made once

ROWS = rows_of(600, 4)
SOURCES = {
    "plain": lambda x: x,
    "mapped": lambda x: (x + 1).map_blocks(np.negative),
    "some columns": lambda x: x[:, 1:3],
    "other chunks": lambda x: x.rechunk((17, -1)),
    "larger chunks": lambda x: x.rechunk((95, -1)),
    "minus its mean": lambda x: x - x.mean(axis=0),
    "neighbours": lambda x: x.map_overlap(lambda b: b, depth={0: 1}, boundary="none"),
    "the same twice": lambda x: da.concatenate([x, x]),
    "in another order": lambda x: x[np.random.default_rng(1).permutation(600)],
    "sum of two halves": lambda x: x[:300] + x[300:],
    "one array": lambda x: x.rechunk(-1).rechunk((20, -1)),
}


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("form", SOURCES)
def test_every_chunk_is_read_once_per_pass(form, scheduler):
    source = CountingSource(ROWS)
    data = SOURCES[form](source.as_dask((20, 4)))
    expected = data.compute(scheduler="sync")
    passes = Passes(row_blocks(data))
    source.reads.clear()
    with dask.config.set(scheduler=scheduler):
        for sweep in (1, 2):
            np.testing.assert_allclose(passes.reduce(total), expected.sum(axis=0), atol=1e-9)
            assert set(source.reads.values()) == {sweep}
            assert len(source.reads) == 30


def test_weights_and_rows_of_one_source_read_it_once():
    source = CountingSource(np.abs(ROWS))
    data = source.as_dask((20, 4))
    passes = Passes(row_blocks(data[:, :3]))
    passes.weigh(data[:, 3].rechunk(33))
    expected = np.abs(ROWS[:, 3]) @ np.abs(ROWS[:, :3])
    np.testing.assert_allclose(passes.reduce(total), expected, rtol=1e-9)
    assert set(source.reads.values()) == {1}


def test_a_block_may_be_an_argument_of_several_calls():
    block = dask.delayed(np.ones)((2, 3))
    jobs = [(block, i) for i in range(100)]
    assert tree_reduce(lambda rows, i: rows.sum() * i, jobs, (), True, "x") == 6 * 99 * 50


# Few blocks are alive at once


class Watched:
    """Makes blocks and counts how many of them are alive."""

    def __init__(self, seconds=0.0):
        self.seconds = seconds
        self.lock = threading.Lock()
        self.alive = self.most = self.made = 0
        gc.freeze()  # later collections leave out what is older: all that a process has imported

    def __call__(self, block):
        time.sleep(self.seconds)
        array = np.full((3, 2), float(block))
        with self.lock:
            self.made += 1
            self.alive += 1
            self.most = max(self.most, self.alive)
        weakref.finalize(array, self.gone)
        return array

    def gone(self):
        with self.lock:
            self.alive -= 1

    def __dask_tokenize__(self):
        return id(self)

    def as_dask(self, n_blocks):
        make = dask.delayed(self, pure=False)
        blocks = [da.from_delayed(make(i), (3, 2), float) for i in range(n_blocks)]
        return da.concatenate(blocks)


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("seconds", [0.0, 0.003])
def test_a_thread_has_one_block_and_the_next(scheduler, seconds):
    source = Watched(seconds)
    passes = Passes(row_blocks(source.as_dask(64)))
    with dask.config.set(scheduler=scheduler, num_workers=2):
        passes.reduce(total)
    gc.collect()
    assert source.alive == 0
    threads = {"sync": 1, "threads": 2}[scheduler]
    # One more where the interpreter has not yet dropped what a thread is done with.
    assert source.most <= threads * (2 if seconds == 0 else 3)


def test_intermediate_values_are_freed_with_their_block():
    source = Watched()
    data = source.as_dask(64).map_blocks(lambda b: b + 1).map_blocks(lambda b: b * 2)
    with dask.config.set(scheduler="sync"):
        Passes(row_blocks(data)).reduce(total)
    assert source.most <= 2


# Reading ahead


class Meeting:
    """A slow source and a kernel that each wait for what the other should do meanwhile."""

    def __init__(self):
        self.begun = Counter()
        self.changed = threading.Condition()

    def load(self, block):
        with self.changed:
            self.begun[block] += 1
            self.changed.notify_all()
        time.sleep(0.003)
        return np.full((2, 2), float(block))

    def kernel(self, rows, group):
        block = int(rows[0, 0])
        with self.changed:
            follows = (block + 1) % group == 0 or self.changed.wait_for(
                lambda: self.begun[block + 1] == 1, timeout=10
            )
            far = 0 if (block + 2) % group < 2 else self.begun[block + 2]
        return [(block, follows, far)]


def test_the_next_block_is_read_meanwhile_and_no_other():
    meeting = Meeting()
    jobs = [(dask.delayed(meeting.load, pure=False)(i),) for i in range(64)]
    with dask.config.set(scheduler="sync", num_workers=1):
        group = len(consecutive_groups(64, 8)[0])
        seen = tree_reduce(meeting.kernel, jobs, (group,), True, "x")
    assert group == 8
    assert seen == [(block, True, 0) for block in range(64)]
    assert set(meeting.begun.values()) == {1}


PLACE = contextvars.ContextVar("PLACE", default="nowhere")


def test_reading_ahead_sees_the_context_of_the_task():
    seen = []

    def load(block):
        seen.append((PLACE.get(), threading.current_thread().name))
        time.sleep(0.003)
        return np.ones((1, 1))

    jobs = [(dask.delayed(load, pure=False)(i),) for i in range(32)]
    token = PLACE.set("here")
    try:
        with dask.config.set(scheduler="sync", num_workers=1):
            tree_reduce(lambda rows: rows.sum(), jobs, (), True, "x")
    finally:
        PLACE.reset(token)
    assert {place for place, _ in seen} == {"here"}
    assert any("read-ahead" in name for _, name in seen)


class OddError(Exception):
    pass


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_a_block_that_cannot_be_kept_is_named(scheduler):
    def load(i):
        if i == 2:
            raise OddError("odd")
        return np.full((2, 2), float(i))

    blocks = [da.from_delayed(dask.delayed(load)(i), (2, 2), float) for i in range(4)]
    passes = Passes(row_blocks(da.concatenate(blocks)))
    with (
        dask.config.set(scheduler=scheduler),
        pytest.raises(OddError, match=r"^odd\nThis error was raised while block 2 was read"),
        passes.persisted(True),
    ):
        pass


@pytest.mark.parametrize("seconds", [0.0, 0.003])
@pytest.mark.parametrize("block", [0, 1, 17, 63])
@pytest.mark.parametrize("at", ["load", "kernel"])
def test_errors_of_loads_and_calls_are_raised_as_they_are(at, block, seconds):
    def load(i):
        time.sleep(seconds)
        if at == "load" and i == block:
            raise OddError(f"block {i}")
        return np.full((2, 2), float(i))

    def kernel(visited):
        if at == "kernel" and visited.position.block == block:
            raise OddError(f"block {block}")
        return visited.rows.sum()

    blocks = [da.from_delayed(dask.delayed(load)(i), (2, 2), float) for i in range(64)]
    passes = Passes(row_blocks(da.concatenate(blocks)))
    note = f"\nThis error was raised while block {block} was read." if at == "load" else ""
    with pytest.raises(OddError, match=f"^block {block}{note}$") as _remembered:
        passes.reduce(kernel)
    # No reader is left behind, though the error and its frames are still remembered.
    deadline = time.monotonic() + 20
    while (left := _readers()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


@pytest.mark.long
def test_after_an_error_reading_ends(monkeypatch):
    # Or all is read before any is visited.
    monkeypatch.setattr(passes_module, "LOADED_ONCE_BYTES", 0)
    source = Watched(0.002)
    passes = Passes(row_blocks(source.as_dask(2000)))
    with pytest.raises(OddError):
        passes.reduce(failing)
    deadline = time.monotonic() + 20
    while _readers() and time.monotonic() < deadline:
        time.sleep(0.01)
    # Each thread ends the group that it was at.
    assert source.made < 2000


def failing(block):
    raise OddError


def _readers():
    return [thread for thread in threading.enumerate() if "read-ahead" in thread.name]


# Data kept in memory


def test_blocks_that_are_kept_are_loaded_once():
    source = CountingSource(ROWS)
    passes = Passes(row_blocks(source.as_dask((20, 4))))
    streamed = passes.reduce(total)
    source.reads.clear()
    with counting_computes() as computes, passes.persisted(True):
        assert set(source.reads.values()) == {1}
        for _ in range(3):
            np.testing.assert_array_equal(passes.reduce(total), streamed)
        assert set(source.reads.values()) == {1}
        assert len(computes) == 4
    np.testing.assert_array_equal(passes.reduce(total), streamed)
    assert set(source.reads.values()) == {2}


@pytest.mark.parametrize("fails", [False, True])
def test_blocks_that_were_kept_are_released(fails):
    source = Watched()
    passes = Passes(row_blocks(source.as_dask(20)))
    try:
        with passes.persisted(True):
            passes.reduce(total)
            gc.collect()
            assert source.alive == 20
            if fails:
                raise OddError
    except OddError:
        assert fails
    gc.collect()
    assert source.alive == 0


def test_weights_are_kept_with_their_rows():
    source = CountingSource(np.abs(ROWS))
    data = source.as_dask((20, 4))
    passes = Passes(row_blocks(data[:, :3]))
    passes.weigh(data[:, 3])
    expected = passes.reduce(total)
    source.reads.clear()
    with passes.persisted(True):
        np.testing.assert_array_equal(passes.reduce(total), expected)
        np.testing.assert_array_equal(passes.reduce(total), expected)
    assert set(source.reads.values()) == {1}


def test_rows_counted_while_blocks_are_kept_stay_counted_after_their_release():
    source = CountingSource(ROWS)
    data = source.as_dask((20, 4))
    data = data[data[:, 0] < np.inf]
    passes = Passes(row_blocks(data))
    source.reads.clear()
    with passes.persisted(True):
        passes.count_rows()
    assert passes.blocks.layout.rows == (20,) * 30
    assert set(source.reads.values()) == {1}


@pytest.mark.parametrize(("factor", "reads"), [(2.9, 4), (3.1, 2)])
def test_auto_keeps_what_takes_less_than_a_third_of_the_memory(monkeypatch, factor, reads):
    monkeypatch.setattr(passes_module, "memory_bytes", lambda: factor * ROWS.nbytes)
    source = CountingSource(ROWS)
    passes = Passes(row_blocks(source.as_dask((20, 4))))
    with passes.persisted("auto"):
        for _ in range(3):
            passes.reduce(total)
    passes.reduce(total)
    assert set(source.reads.values()) == {reads}


def test_nothing_is_kept_unless_asked_and_nothing_twice():
    source = CountingSource(ROWS)
    passes = Passes(row_blocks(source.as_dask((20, 4))))
    with passes.persisted(False):
        passes.reduce(total)
        passes.reduce(total)
    assert set(source.reads.values()) == {2}
    in_memory = Passes(row_blocks(ROWS))
    before = in_memory.blocks
    with in_memory.persisted("auto"):
        assert in_memory.blocks is before


def test_memory_for_data_is_at_most_the_limit_and_the_memory_of_the_machine():
    script = (
        "import resource; from daskmm.engine.resources import memory_bytes;"
        "resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30)); print(memory_bytes())"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    limited = subprocess.run(command, check=True, capture_output=True, text=True)
    assert 0 < int(limited.stdout) <= 1 << 30
    assert 0 < resources.memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# Small blocks


def test_small_blocks_are_visited_together(monkeypatch):
    rows, weights = rows_of(400), np.arange(400.0)
    data = da.from_array(rows, chunks=(2, -1))
    uneven = da.from_array(rows, chunks=((0, 0, 2) * 60 + (280,), -1))
    unknown = data[data[:, 0] > -9]
    for table in (data, uneven, unknown):
        results = []
        # At hand, read once; streamed; by one thread: the same bits.
        for limit, scheduler in ((1 << 20, "threads"), (0, "threads"), (0, "sync")):
            monkeypatch.setattr(passes_module, "LOADED_ONCE_BYTES", limit)
            with dask.config.set(scheduler=scheduler):
                passes = Passes(row_blocks(table))
                passes.weigh(da.from_array(weights, chunks=77))
                passes.count_rows()
                results.append(passes.reduce(total))
                calls = passes.reduce(shapes)
                assert passes.reduce(visited) == list(range(table.numblocks[0]))
        assert 64 <= len(calls) < 110
        assert sum(n for n, _ in calls) == 400
        np.testing.assert_allclose(results[0], weights @ rows, rtol=1e-9)
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_small_blocks_are_read_once_and_their_rows_are_named(limit, monkeypatch):
    monkeypatch.setattr(passes_module, "LOADED_ONCE_BYTES", limit)
    rows = rows_of(600)
    source = CountingSource(rows)
    passes = Passes(row_blocks(source.as_dask((3, -1))))
    for _ in range(3):
        passes.reduce(total)
    assert set(source.reads.values()) == {1 if limit else 3}
    rows[400, 1] = np.inf
    with pytest.raises(ValueError, match=r"block 133, row 1 of the block \(row 400 of the data\)"):
        KMeans(2).fit(da.from_array(rows, chunks=(3, -1)))
    weights = np.ones(600)
    weights[401] = -1
    with pytest.raises(ValueError, match=r"block 133, row 2 of the block"):
        Passes(weighted(rows_of(600), weights)).reduce(total)


def weighted(rows, weights):
    passes = Passes(row_blocks(da.from_array(rows, chunks=(3, -1))))
    passes.weigh(weights)
    return passes.blocks


def test_large_blocks_and_few_small_ones_are_visited_one_by_one():
    # Few small ones too: there are threads to keep busy.
    for chunk, n_blocks in ((1, 127), (20_000, 200)):
        table = da.zeros((chunk * n_blocks, 4), chunks=(chunk, -1))
        assert len(visited_together(row_blocks(table).layout)) == n_blocks
    assert len(visited_together(row_blocks(rows_of(100_000)).layout)) < 64


# Processes of dask's local scheduler


def test_small_tables_are_visited_here_where_other_processes_would_have_to_start():
    with dask.config.set(scheduler="processes"):
        passes = Passes(row_blocks(da.from_array(rows_of(50), chunks=(10, -1))))
        assert passes.reduce(process) == {os.getpid()}


@pytest.mark.long
def test_processes_are_kept_from_pass_to_pass(monkeypatch):
    monkeypatch.setattr(passes_module, "LOADED_ONCE_BYTES", 0)
    with dask.config.set(scheduler="processes", num_workers=2):
        passes = Passes(row_blocks(da.ones((60, 3), chunks=(10, -1))))
        found = [passes.reduce(process) for _ in range(4)]
    assert os.getpid() not in set().union(*found)
    assert len(set().union(*found)) <= 2
    with dask.config.set(scheduler="processes"), passes.persisted("auto"):
        assert passes.reduce(process) == {os.getpid()}


# On a cluster


@contextmanager
def cluster(n_workers=2, **settings):
    import distributed

    options = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with (
        dask.config.set(scheduler=None, num_workers=None),
        distributed.LocalCluster(n_workers=n_workers, **options | settings) as local,
        distributed.Client(local) as client,
    ):
        yield client


def worker_of(block):
    time.sleep(0.01)
    from distributed import get_worker

    return Together({(get_worker().address, block.position.block)})


def refuse(block):
    raise OddError("no")


class Together(set):
    def __add__(self, other):
        return Together(self | other)


def holder(block):
    return Together({(os.getpid(), block.position.block)})


def large(block, big):
    return block.rows.sum(axis=0) * big[-1]


def mark(block, folder):
    """Leaves a file for every time a block is loaded."""
    (folder / f"{block[0, 0]:.0f}-{time.monotonic_ns()}").touch()
    return block


def slowly(block, folder):
    (folder / f"{os.getpid()}").touch()
    time.sleep(0.1)
    return block.rows.sum(axis=0)


def numbered_blocks(n_blocks, folder):
    rows = np.repeat(np.arange(n_blocks, dtype=float), 3)[:, None] * np.ones(4)
    return da.from_array(rows, chunks=(3, -1)).map_blocks(mark, folder, meta=np.empty((0, 0)))


def loads(folder):
    return Counter(path.name.split("-")[0] for path in folder.iterdir())


def kill_one_of(client, pids):
    pid = min(pids)
    os.kill(pid, signal.SIGKILL)


def summed_here(passes, folder):
    """The sum of all rows, of which no trace is left."""
    with dask.config.set(scheduler="sync"):
        expected = passes.reduce(total)
    for path in folder.iterdir():
        path.unlink()
    return expected


def test_blocks_on_a_cluster_are_read_once_per_pass_or_kept_and_visited(tmp_path, request):
    passes = Passes(row_blocks(numbered_blocks(64, tmp_path)))
    expected = summed_here(passes, tmp_path)
    client = request.getfixturevalue("client")
    # Streamed: the same bits, whoever computes.
    np.testing.assert_array_equal(passes.reduce(total), expected)
    assert set(loads(tmp_path).values()) == {1}
    np.testing.assert_array_equal(passes.reduce(total), expected)
    assert set(loads(tmp_path).values()) == {2}
    big = np.ones(1 << 17)
    np.testing.assert_array_equal(passes.reduce(large, big), expected)

    # Kept: read once, and visited where they are.
    for path in tmp_path.iterdir():
        path.unlink()
    with passes.persisted(True):
        for _ in range(3):
            np.testing.assert_array_equal(passes.reduce(total), expected)
        assert passes.reduce(visited) == list(range(64))
        places = passes.reduce(holder)
        assert len(places) == 64
        assert set(loads(tmp_path).values()) == {1}
        address_of = {pid: address for address, pid in client.run(os.getpid).items()}
        found = client.who_has(list(passes.blocks.parts))
        # In the order of their numbers, which count down: `who_has` answers in that of a set.
        packs = {key: workers for key, workers in sorted(found.items(), reverse=True) if workers}
        # One for each thread, of consecutive blocks.
        assert len(packs) == sum(client.nthreads().values())
        held = [workers for workers in packs.values() for _ in range(64 // len(packs))]
        assert all(address_of[pid] in held[block] for pid, block in places)


@pytest.mark.long
def test_only_the_blocks_of_killed_workers_are_read_again(tmp_path):
    passes = Passes(row_blocks(numbered_blocks(64, tmp_path)))
    expected = summed_here(passes, tmp_path)
    with cluster() as client:
        with passes.persisted(True):
            by_pid = Counter(pid for pid, _ in passes.reduce(holder))
            assert set(loads(tmp_path).values()) == {1}
            kill_one_of(client, by_pid)
            for _ in range(2):
                np.testing.assert_array_equal(passes.reduce(total), expected)
            assert passes.reduce(visited) == list(range(64))
            counts = loads(tmp_path)
            lost = by_pid[min(by_pid)]
            assert sum(counts.values()) <= 64 + lost
            assert set(counts.values()) <= {1, 2}
        deadline = time.monotonic() + 20
        while client.who_has() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not client.who_has()

        # So does one that is killed while blocks are streamed.
        (folder := tmp_path / "busy").mkdir()
        killer = threading.Thread(target=_kill_when_busy, args=(client, folder))
        killer.start()
        np.testing.assert_array_equal(passes.reduce(slowly, folder), expected)
        killer.join()


def _kill_when_busy(client, folder):
    deadline = time.monotonic() + 20
    while not (found := [int(path.name) for path in folder.iterdir()]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    kill_one_of(client, found)


def test_collections_that_the_user_persisted_are_visited_where_they_are():
    data = da.from_array(ROWS, chunks=(20, -1))
    with cluster(processes=False, threads_per_worker=2) as client:
        kept = client.persist(data * 2)
        for given in (kept, kept[:, :3], kept.rechunk((33, -1)), kept.map_blocks(np.abs)):
            passes = Passes(row_blocks(given))
            for _ in range(2):
                np.testing.assert_allclose(
                    passes.reduce(total), given.compute().sum(axis=0), rtol=1e-9, atol=1e-12
                )
        # A future that all blocks need does not draw all of them to the worker that holds it.
        centered = data - kept.mean(axis=0).persist()
        places = Passes(row_blocks(centered)).reduce(worker_of)
        assert len({address for address, _ in places}) == 2
        # Kept by us beside: letting go of ours leaves the user's.
        passes = Passes(row_blocks(kept))
        assert passes.reduce(visited) == list(range(30))
        with passes.persisted(True):
            passes.reduce(total)
        assert all(workers for workers in client.who_has(kept).values())
        # What cannot be loaded says so in the first pass.
        broken = Passes(row_blocks((data * 3).map_blocks(refuse, meta=np.empty((0, 0)))))
        with broken.persisted(True), pytest.raises(OddError, match="no"):
            broken.reduce(total)
        assert resources.memory_bytes() > 0


@contextmanager
def recording_submissions(monkeypatch):
    """How many inputs the tasks of each submitted graph have, by the graph's name."""
    seen = []

    def submitted(client, graph, keys):
        seen.append((keys[0][0], sum(len(task.dependencies) for task in graph.values())))
        return submit(client, graph, keys)

    submit = on_cluster._submitted
    with monkeypatch.context() as patch:
        patch.setattr(on_cluster, "_submitted", submitted)
        yield seen


def move_some(client, futures):
    """Move every second one of what the first worker holds to the second."""
    held = client.who_has(futures)
    source, target = sorted({workers[0] for workers in held.values()})[:2]
    moved = [future for future in futures if set(held[future.key]) == {source}][1::2]
    client.replicate(moved, workers=[target])

    async def forget(scheduler):
        keys = [future.key for future in moved]
        scheduler.request_remove_replicas(source, keys, stimulus_id="test")

    client.sync(forget, client.cluster.scheduler)
    deadline = time.monotonic() + 20
    while any(source in workers for workers in client.who_has(moved).values()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return len(moved)


def test_kept_blocks_are_no_inputs_until_they_are_moved(monkeypatch):
    import distributed

    data = da.from_array(ROWS, chunks=(5, -1))
    with cluster(processes=False) as client:
        kept = client.persist(data * 2)
        distributed.wait(kept)
        passes = Passes(row_blocks(kept))
        expected = passes.reduce(total)
        with recording_submissions(monkeypatch) as seen:
            for _ in range(2):
                np.testing.assert_array_equal(passes.reduce(total), expected)
        # One for each worker.
        assert [inputs for _, inputs in seen] == [2, 2]

        assert move_some(client, distributed.futures_of(kept))
        with recording_submissions(monkeypatch) as seen:
            for _ in range(3):
                np.testing.assert_array_equal(passes.reduce(total), expected)
        assert [name.endswith("-skipped") for name, _ in seen] == [False, True, False, False]
        assert seen[-1][1] == 2
        assert passes.reduce(visited) == list(range(kept.numblocks[0]))


def test_blas_has_one_thread_until_the_last_context_is_left():
    def threads():
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        with one_blas_thread():
            with one_blas_thread():
                assert threads() == {1}
            # Who leaves first does not lift it for the others.
            assert threads() == {1}
        assert threads() == {2}


@pytest.mark.parametrize(
    ("n_rows", "p", "blocks"),
    [
        (3000, 5, 1),
        (20_000, 20, 3),
        (100_000, 20, 11),
        (300_000, 20, 16),
        (1_000_000, 20, 48),
        (70_000, 784, 16),
        (100, 10_000, 1),
        (1000, 10_000, 8),
    ],
)
def test_tables_in_memory_are_cut_into_the_documented_number_of_blocks(n_rows, p, blocks):
    table = np.broadcast_to(np.float32(0), (n_rows, p))
    layout = row_blocks(table).layout
    assert layout.n_blocks == blocks
    assert sum(layout.rows) == n_rows
    assert row_blocks(table, least_rows=n_rows // 2).layout.n_blocks <= 3
    assert row_blocks(table, least_rows=n_rows).parts == (table,)
