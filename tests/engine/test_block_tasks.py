"""Blocks that are made where they run are those that dask makes."""

import pickle

import dask
import dask.array as da
import distributed
import numpy as np
import pytest
from dask.delayed import Delayed
from dask.order import order

from daskmm.data.blocks import row_blocks
from daskmm.data.dask_private import Task
from daskmm.engine.block_tasks import BlockTask, nodes_of
from daskmm.engine.graph import SPLIT_EVERY, GroupTasks, TaskGraph
from daskmm.engine.group_making import PackedGroup
from daskmm.engine.grouping import Grouping, consecutive_groups, streamed_groups, without_data
from daskmm.engine.passes import Passes
from daskmm.engine.worker_task import pickled, run_group

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
    # Left to dask.
    "generated": lambda: da.random.default_rng(0).random((10, 2), chunks=CHUNKS),
    "of an array": lambda: da.from_array(VALUES, chunks=CHUNKS),
    "with a row of all blocks": lambda: made() - columns(2),
    "sliced": lambda: da.from_array(VALUES, chunks=CHUNKS)[1:],
    "twice": lambda: (rows := made()) @ np.eye(2) + da.concatenate([rows[:3], rows[3:]]),
}
LEFT_TO_DASK = {"of an array", "generated", "with a row of all blocks", "sliced", "twice"}


class Store:
    """Stands for a store of which blocks are read."""

    shape, dtype, ndim = VALUES.shape, VALUES.dtype, 2

    def __getitem__(self, place):
        return VALUES[place]


@pytest.mark.parametrize("kind", ARRAYS)
def test_blocks_are_those_of_dask(kind):
    table = ARRAYS[kind]()
    expected = table.compute()
    parts = row_blocks(table).parts
    assert all(isinstance(part, Delayed) for part in parts)
    blocks, _ = nodes_of(parts[0].dask)
    assert {part.key for part in parts} == blocks.keys() or kind in LEFT_TO_DASK
    np.testing.assert_array_equal(np.concatenate(dask.compute(*parts)), expected)
    passes = Passes(row_blocks(table))
    for scheduler in ("synchronous", "threads", "processes"):
        with dask.config.set(scheduler=scheduler):
            np.testing.assert_array_equal(np.concatenate(passes.reduce(listed)), expected)


def listed(rows, weights, position):
    return [rows]


def weighed(position, rows, weights):
    return [(position, rows, weights)]


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("weights", [None, "lazy"])
@pytest.mark.parametrize("queues", [False, True])
def test_packed_groups_make_the_same_calls(kind, weights, queues):
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
    packed = GroupTasks(graph.nodes, graph.arguments, grouping, True)
    for (plain, inputs), (sent, same) in zip(tasks.groups, packed.groups, strict=True):
        assert set(inputs) == set(same)
        values = [dask.get(graph.nodes, key) for key in inputs]
        loaded = pickle.loads(sent)
        values_of = dict(zip(inputs, values, strict=True))
        found = run_group(loaded, weighed, (), *[values_of[key] for key in loaded.inputs]).total
        expected = run_group(plain, weighed, (), *values).total
        for (place, rows, own), (where, block, other) in zip(found, expected, strict=True):
            assert place == where
            np.testing.assert_array_equal(rows, block)
            np.testing.assert_array_equal(own, other)


def test_what_is_sent_does_not_grow_with_the_table():
    sizes = []
    for n_blocks in (100, 100_000):
        table = da.map_blocks(one, chunks=((1 << 20,) * n_blocks, (2,)), meta=np.empty((0, 0)))
        graph = TaskGraph([(part,) for part in row_blocks(table).parts[:100]], table)
        grouping = without_data(consecutive_groups(100, 4))
        groups = GroupTasks(graph.nodes, graph.arguments, grouping, True).groups
        sizes.append(sum(len(group) for group, _ in groups))
        assert len(pickled(graph.nodes[table.name, 7, 0])) < 2000
    assert sizes[1] < 1.2 * sizes[0]


def one(block_id=None):
    return np.ones((1 << 20, 2))


def test_columns_are_packed_if_all_blocks_are_of_one_array():
    table = made()
    parts = row_blocks(table).parts
    graph = TaskGraph([(part,) for part in parts], table)
    assert isinstance(graph.nodes[parts[0].key], BlockTask)

    def packed(arguments):
        from daskmm.engine.group_making import make_group

        calls = tuple(range(len(arguments)))
        has = [graph.nodes.__contains__]
        return isinstance(make_group((calls,), arguments, graph.nodes, has, (), True), PackedGroup)

    assert packed(graph.arguments)
    assert not packed([*graph.arguments, (1,)])
    assert not packed([*graph.arguments, (1, 2)])
    assert not packed([(1,), (2,)])


def test_a_task_that_dask_handles():
    table = made().map_blocks(placed, dask.delayed(5), dtype=float)
    parts = row_blocks(table).parts
    blocks, _ = nodes_of(parts[1].dask)
    task = blocks[parts[1].key]
    (needed,) = task.dependencies
    other = task.substitute({needed: "other"})
    assert isinstance(other, Task)
    assert other.dependencies == {"other"}
    np.testing.assert_array_equal(other({"other": 5}), parts[1].compute())


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
