"""What the engine assumes of dask's private modules, and that nobody else imports them."""

import re
import time
from pathlib import Path

import dask
import distributed
import numpy as np
import pytest
from dask.order import order

import daskmm
from daskmm.engine import dask_private
from daskmm.engine.dask_private import (
    DataNode,
    Task,
    TaskRef,
    convert_legacy_graph,
    futures_in,
    pickled,
)
from daskmm.engine.graph import SPLIT_EVERY, GroupTasks
from daskmm.engine.grouping import streamed_groups, without_data
from daskmm.engine.worker_task import run_group


def test_private_modules_are_imported_by_one_module():
    private = re.compile(r"^\s*(from|import) (dask|distributed)(\.\w+)*(\._| import _)", re.M)
    folder = Path(daskmm.__file__).parent
    found = [path.name for path in folder.rglob("*.py") if private.search(path.read_text())]
    assert found == ["dask_private.py"]


def test_the_versions_are_those_of_the_requirements():
    oldest = dask_private.SEEN_WITH[0].rsplit(".", 1)[0]
    pyproject = Path(daskmm.__file__).parents[1] / "pyproject.toml"
    if not pyproject.exists():
        pytest.skip("installed without its sources")
    required = re.findall(r'"(?:dask\[\w+\]|distributed)>=([\d.]+)"', pyproject.read_text())
    assert set(required) == {oldest}


def test_nodes_say_what_they_need_and_can_be_called():
    legacy = {"a": 1, "b": (np.add, "a", 2), "c": [1, 2]}
    graph = convert_legacy_graph(legacy)
    assert isinstance(graph["a"], DataNode)
    assert isinstance(graph["b"], Task)
    assert {key: set(node.dependencies) for key, node in graph.items()} == {
        "a": set(),
        "b": {"a"},
        "c": set(),
    }
    assert graph["b"].key == "b"
    assert graph["b"]({"a": 1}) == 3
    task = Task("t", divmod, TaskRef("a"), 2)
    assert task.substitute({"a": TaskRef("z")}).dependencies == {"z"}
    assert dask.get({"a": DataNode("a", 7), "t": task}, "t") == (3, 1)


def test_a_future_is_a_reference_of_a_subclass():
    assert issubclass(distributed.Future, TaskRef)
    assert not list(futures_in([Task("t", divmod, TaskRef("a"), 2), TaskRef("a")]))
    options = {"processes": False, "dashboard_address": ":0", "n_workers": 1}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        future = client.submit(divmod, 7, 2)
        assert list(futures_in([Task("t", max, future), future])) == [future, future]
        # What a worker holds is found under its key.
        assert client.submit(_held, future.key, future).result() == (3, 1)


def _held(key, _):
    return distributed.get_worker().data[key]


def _address(value):
    time.sleep(0.2)
    return distributed.get_worker().address


@pytest.mark.parametrize("spread", [True, False])
def test_tasks_that_make_data_are_given_to_all_workers(spread):
    """As many to each, even if one worker holds what they share."""
    options = {"processes": False, "dashboard_address": ":0", "n_workers": 3}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        shared = client.scatter(np.zeros(1 << 24), hash=False)
        key = TaskRef(shared.key)
        keys = ["a", "b", "c"]
        graph = {name: Task(name, _address, key, _data_producer=spread) for name in keys}
        found = client.get(graph, keys)
        assert (len(set(found)) == 3) == spread


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
    n_large = sizes.count(len(groups[0]))
    assert set(sizes[:n_large]) == {len(groups[0])}
    for key in set(graph) - set(runs):
        of_runs = [len(tasks.calls_of([run])) for run in graph[key].dependencies if run in runs]
        assert len({size == len(groups[0]) for size in of_runs}) <= 1
