"""Groups of calls: the nodes of dask's graphs that they run, and the order of their tasks."""

import dask
import dask.array as da
import distributed
import numpy as np
import pytest
from dask.delayed import Delayed
from dask.order import order

from daskmm.data.blocks import row_blocks
from daskmm.engine.graph import SPLIT_EVERY, GroupTasks, TaskGraph
from daskmm.engine.grouping import Grouping, consecutive_groups, streamed_groups, without_data
from daskmm.engine.passes import Passes
from daskmm.engine.worker_task import pickled, run_group, unpacked

CHUNKS = ((3, 1, 4, 2), (2,))
VALUES = np.arange(20.0).reshape(10, 2)


def numbered(block_id=None):
    return np.full((CHUNKS[0][block_id[0]], 2), float(block_id[0]))


def placed(rows, offset, block_info=None):
    return rows + offset + block_info[0]["array-location"][0][0]


def made(**options):
    return da.map_blocks(numbered, chunks=CHUNKS, meta=np.empty((0, 0)), **options)


def columns(n_columns):
    return da.from_array(np.arange(float(n_columns)), chunks=n_columns)


ARRAYS = {
    "of an open store": lambda: da.from_array(Store(), chunks=CHUNKS),
    "by number": made,
    "with arithmetic": lambda: (da.from_array(Store(), chunks=CHUNKS).astype("f4") - 1) / 2,
    "by place": lambda: made().map_blocks(placed, 5, dtype=float),
    "of two sources": lambda: made() + da.from_array(Store(), chunks=CHUNKS),
    "with a value made later": lambda: made().map_blocks(placed, dask.delayed(5), dtype=float),
    "generated": lambda: da.random.default_rng(0).random((10, 2), chunks=CHUNKS),
    "of an array": lambda: da.from_array(VALUES, chunks=CHUNKS),
    "with a row of all blocks": lambda: made() - columns(2),
    "sliced": lambda: da.from_array(VALUES, chunks=CHUNKS)[1:],
    "twice": lambda: (rows := made()) @ np.eye(2) + da.concatenate([rows[:3], rows[3:]]),
}


class Store:
    """Stands for a store of which blocks are read."""

    shape, dtype, ndim = VALUES.shape, VALUES.dtype, 2

    def __getitem__(self, place):
        return VALUES[place]


@pytest.mark.parametrize("kind", ARRAYS)
def test_values_of_calls_are_those_of_dask(kind):
    table = ARRAYS[kind]()
    expected = table.compute()
    parts = row_blocks(table).parts
    assert all(isinstance(part, Delayed) for part in parts)
    np.testing.assert_array_equal(np.concatenate(dask.compute(*parts)), expected)
    passes = Passes(row_blocks(table))
    for scheduler in ("synchronous", "threads", "processes"):
        with dask.config.set(scheduler=scheduler):
            np.testing.assert_array_equal(np.concatenate(passes.reduce(listed)), expected)


def listed(block):
    return [block.rows]


def weighed(position, rows, weights):
    return [(position, rows, weights)]


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("weights", [None, "lazy"])
@pytest.mark.parametrize("queues", [False, True])
def test_pickled_groups_make_the_same_calls(kind, weights, queues):
    table = ARRAYS[kind]()
    blocks = row_blocks(table)
    passes = Passes(blocks)
    if weights:
        # Without the number of rows, blocks are visited one by one.
        passes.weigh(da.arange(len(table), chunks=table.chunks[0], dtype=float))
    pairs = passes.blocks.pairs
    arguments = [(("position", number), *pair) for number, pair in enumerate(pairs)]
    graph = TaskGraph(arguments, table)
    groups = consecutive_groups(len(pairs), 2)
    grouping = without_data(groups)
    if queues:
        grouping = Grouping(groups, ((),) * len(groups), True, (2,) * len(groups))
    tasks = GroupTasks(graph.nodes, graph.arguments, grouping, False)
    sent_groups = GroupTasks(graph.nodes, graph.arguments, grouping, True)
    for (plain, inputs), (sent, same) in zip(tasks.groups, sent_groups.groups, strict=True):
        assert set(inputs) == set(same)
        values = [dask.get(graph.nodes, key) for key in inputs]
        loaded = unpacked(sent)
        values_of = dict(zip(inputs, values, strict=True))
        found = run_group(loaded, weighed, (), *[values_of[key] for key in loaded.inputs]).total
        expected = run_group(plain, weighed, (), *values).total
        for (place, rows, own), (where, block, other) in zip(found, expected, strict=True):
            assert place == where
            np.testing.assert_array_equal(rows, block)
            np.testing.assert_array_equal(own, other)


def test_functions_of_main_are_pickled_by_value():
    def local(x):
        return x + 1

    assert distributed.protocol.pickle.loads(pickled(local))(1) == 2


@pytest.mark.parametrize("n_threads", [1, 2, 8, 9, 16, 40, 200])
@pytest.mark.parametrize("n_calls", [1, 7, 100, 6400])
def test_the_largest_tasks_of_a_pass_start_first(n_calls, n_threads):
    """A scheduler starts what is merged together in any order, and merges in that of dask."""
    arguments = [(number,) for number in range(n_calls)]
    groups = streamed_groups(n_calls, n_threads)
    tasks = GroupTasks({}, arguments, without_data(groups), False)
    graph, records = tasks.graph("daskmm-pass-0123", run_group, (len, ()))
    assert len(records) <= SPLIT_EVERY
    # No task depends on itself, and all records arrive.
    found, left = set(), list(records)
    while left:
        key = left.pop()
        assert key not in found
        found.add(key)
        left.extend(graph[key].dependencies)
    assert found == set(graph)
    ranks = order(graph)
    runs = [key for key in graph if not graph[key].dependencies]
    sizes = [len(tasks.calls_of([key])) for key in sorted(runs, key=ranks.__getitem__)]
    are_large = [2 * size > max(sizes) for size in sizes]
    assert are_large == sorted(are_large, reverse=True)
    for key in set(graph) - set(runs):
        of_runs = [len(tasks.calls_of([run])) for run in graph[key].dependencies if run in runs]
        assert len({2 * size > max(sizes) for size in of_runs}) <= 1
