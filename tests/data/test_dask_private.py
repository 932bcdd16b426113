"""What is assumed of dask's private modules, and that nobody else imports them."""

import re
import time
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest

import daskmm
from daskmm.data import dask_private
from daskmm.data.dask_private import (
    DataNode,
    Task,
    TaskRef,
    convert_legacy_graph,
    futures_in,
    with_lengths,
)


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


def _written(folder):
    """Parquet files of some rows each, in no order of their index."""
    rng = np.random.default_rng(0)
    for part, n in enumerate([3, 10, 1, 7, 20, 5, 8, 0, 11, 4, 6, 9]):
        index = pd.Index(np.arange(1000 - 50 * part, 1000 - 50 * part + n), name="when")
        rows = pd.DataFrame(rng.normal(size=(n, 6)), columns=list("abcdef"), index=index)
        rows.to_parquet(folder / f"{part:02d}.parquet", row_group_size=4)


READERS = {
    "files": {},
    "few columns": {"columns": ["a", "b"]},
    "groups": {"split_row_groups": True},
    "groups by size": {"split_row_groups": "adaptive", "blocksize": 700},
    "joined files": {"aggregate_files": True, "blocksize": 2000},
    "sorted": {"index": "when", "calculate_divisions": True},
    "filters": {"filters": [("a", ">", 0)]},
}
READ_BY = [(name, "fsspec") for name in READERS] + [
    (name, "arrow") for name in ("files", "few columns", "sorted", "filters")
]
QUICK = [("groups", "fsspec"), ("files", "arrow")]


@pytest.mark.parametrize(
    ("name", "filesystem"),
    [pytest.param(*by, marks=() if by in QUICK else pytest.mark.long) for by in READ_BY],
)
def test_lengths_of_partitions_are_what_they_say(name, filesystem, tmp_path):
    _written(tmp_path)
    if name == "sorted":
        (tmp_path / "07.parquet").unlink()  # without rows it has no place
    frame = dd.read_parquet(tmp_path, filesystem=filesystem, **READERS[name])
    keep, lose = (lambda part: part.head(1)), (lambda part: part)
    lose.keeps_rows = True
    chosen = {
        "whole": frame,
        "few": frame[["a", "b"]],
        "more": frame.assign(z=2 * frame["a"]),
        "mapped": frame.map_partitions(lose),
        "parts": frame.partitions[1:4],
        "some rows": frame[frame["a"] > 0],
        "first rows": frame.map_partitions(keep),
    }
    known = []
    for what, lazy in chosen.items():
        numbers = lazy.astype(np.float32)
        sized, lengths = with_lengths(numbers)
        blocks = dask.compute(*sized.to_dask_array(lengths=lengths).to_delayed().ravel())
        np.testing.assert_array_equal(np.concatenate(blocks), numbers.compute())
        if lengths is not None:
            known.append(what)
            assert lengths == tuple(map(len, blocks)), what
    unsure = name == "filters" or (name, filesystem) == ("sorted", "arrow")
    assert known == ([] if unsure else list(chosen)[:4])


def test_lengths_are_unknown_for_frames_of_other_sources():
    rows = pd.DataFrame(np.ones((100, 3)))
    chosen = dd.from_pandas(rows, npartitions=3)[[0, 1]]
    assert with_lengths(chosen)[1] == tuple(chosen.map_partitions(len).compute())
    lazy = dd.from_map(lambda n: rows[:n], [5, 6], meta=rows[:0])
    assert with_lengths(lazy) == (lazy, None)
    array = da.ones((10, 2), chunks=(4, 2))
    assert with_lengths(dd.from_dask_array(array))[1] is None
