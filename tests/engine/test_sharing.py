"""Fits that share a cluster: what they may be told about their tasks, and several at once."""

import contextlib
import uuid
from concurrent.futures import ThreadPoolExecutor

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, Scheduler, SchedulerPlugin, SpecCluster, Worker, get_worker

from daskmm import KMeans
from daskmm.data.blocks import row_blocks
from daskmm.engine.passes import Passes

ROWS = np.random.default_rng(0).normal(size=(320, 3))


class Names(frozenset):
    """A record: names of the workers that visited blocks."""

    def __add__(self, other):
        return Names(self | other)


def names(block):
    return Names({str(get_worker().name)})


def loaded(block, folder):
    """A block, and a note of which worker loads it; at most the first two attempts fail."""
    (folder / f"{get_worker().name}-{uuid.uuid4().hex}").touch()
    if (folder / "flaky").exists() and len([*folder.iterdir()]) < 4:
        raise OSError("a storage that does not answer at once")
    return block


@pytest.fixture
def cluster():
    """Two workers of two threads, of which one has a resource."""
    options = {"nthreads": 2, "memory_limit": 0, "dashboard": False}
    workers = {
        name: {"cls": Worker, "options": {**options, "name": name, "resources": own}}
        for name, own in {"plain": {}, "large": {"big": 2}}.items()
    }
    scheduler = {"cls": Scheduler, "options": {"port": 0, "dashboard_address": ":0"}}
    with (
        dask.config.set(scheduler=None),
        SpecCluster(workers=workers, scheduler=scheduler) as cluster,
    ):
        yield cluster


@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("annotation", [{"workers": ["large"]}, {"resources": {"big": 1}}])
def test_tasks_run_where_annotations_allow(cluster, annotation, persist, tmp_path):
    data = da.from_array(ROWS, chunks=(10, -1)).map_blocks(loaded, tmp_path, meta=np.empty((0, 0)))
    passes = Passes(row_blocks(data))
    with Client(cluster) as client:
        client.wait_for_workers(2)
        with dask.annotate(**annotation), passes.persisted(persist):
            assert passes.reduce(names) == {"large"}
            assert passes.reduce(names) == {"large"}
        assert {path.name.split("-")[0] for path in tmp_path.iterdir()} == {"large"}
        assert len(passes.reduce(names)) == 2


@pytest.mark.parametrize("persist", [False, True])
def test_loads_are_tried_again_as_annotated(cluster, persist, tmp_path):
    (tmp_path / "flaky").touch()
    data = da.from_array(ROWS, chunks=(320, -1)).map_blocks(loaded, tmp_path, meta=np.empty((0, 0)))
    passes = Passes(row_blocks(data))
    with Client(cluster), dask.annotate(retries=3), passes.persisted(persist):
        assert len(passes.reduce(names)) == 1


class Annotations(SchedulerPlugin):
    """Priorities of the tasks of all graphs."""

    def __init__(self):
        self.seen = {}

    def update_graph(self, scheduler, *, keys, tasks, annotations, **options):
        for key in tasks:
            self.seen[key] = scheduler.tasks[key].annotations.get("priority")


@pytest.mark.in_turn("persist")
@pytest.mark.parametrize("persist", [False, True])
def test_all_tasks_have_the_priority_that_is_annotated(cluster, persist):
    plugin = Annotations()
    with Client(cluster):
        cluster.scheduler.add_plugin(plugin)
        with dask.annotate(priority=7):
            KMeans(3, random_state=0, persist=persist).fit(da.from_array(ROWS, chunks=(10, -1)))
    assert plugin.seen
    assert set(plugin.seen.values()) == {7}
    # What the dashboard shows: our name, and that of the stage.
    assert all(str(key).strip("('").startswith(("daskmm-", "array-")) for key in plugin.seen)


def fitted(seed, client=None):
    data = da.from_array(ROWS, chunks=(10, -1))
    with contextlib.nullcontext() if client is None else client.as_current():
        return KMeans(3, random_state=seed, sample_size=None, persist=True).fit(data).inertia_


@pytest.mark.long
def test_four_fits_at_once_from_threads_and_from_clients(cluster):
    with dask.config.set(scheduler="threads"):
        expected = [fitted(seed) for seed in range(4)]
    plugin = Annotations()
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        cluster.scheduler.add_plugin(plugin)
        clients = [stack.enter_context(Client(cluster, set_as_default=False)) for _ in range(4)]
        assert list(pool.map(fitted, range(4), clients)) == expected
        assert list(pool.map(fitted, range(4), clients[:1] * 4)) == expected
    assert plugin.seen
