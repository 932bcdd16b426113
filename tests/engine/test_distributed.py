"""Fits on a distributed cluster: what errors mean, and fits inside of tasks."""

import errno
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import CancelledError, Client, LocalCluster, Status, get_worker
from hypothesis import given
from hypothesis import strategies as st

from daskmm import KMeans
from daskmm.data.blocks import row_blocks
from daskmm.engine import passes
from daskmm.engine.clients import computed
from daskmm.engine.distributed import ClusterLostError, _explained, _submitted
from daskmm.engine.grouping import (
    expected_threads,
    groups_by_holder,
    on_all_threads,
    packs,
    streamed_groups,
)
from daskmm.engine.passes import Passes
from daskmm.engine.worker_task import Call, Group, merge, run_group


def client_with(status):
    return SimpleNamespace(status=status, scheduler=SimpleNamespace(address="tcp://somewhere:1"))


def test_errors_of_a_lost_cluster_are_told_from_others():
    error = ValueError("of a block")
    assert _explained(client_with("running"), error) is error
    meaning = _explained(client_with("closed"), CancelledError("key"))
    assert isinstance(meaning, ClusterLostError)
    assert "tcp://somewhere:1 is gone" in str(meaning)
    meaning = _explained(client_with("running"), CancelledError("key"))
    assert "was restarted" in str(meaning)


def _absent(block, folder, block_id):
    (folder / f"{block_id[0]}-{uuid.uuid4().hex}").touch()
    if block_id[0] == 2:
        raise FileNotFoundError(errno.ENOENT, "No such file", "part-2")
    return block


@pytest.mark.parametrize("persist", [False, True])
def test_a_block_that_no_worker_can_read_is_named_after_one_attempt(
    local_client, persist, tmp_path
):
    rows = da.ones((16, 2), chunks=(4, -1))
    meta = np.empty((0, 0))
    passes = Passes(row_blocks(rows.map_blocks(_absent, tmp_path, meta=meta, dtype=float)))
    words = "part-2.*\nThis error was raised while block 2 was read"
    with pytest.raises(FileNotFoundError, match=words), passes.persisted(persist):
        passes.reduce(_n_rows)
    assert len(list(tmp_path.glob("2-*"))) == 1


def _n_rows(block):
    return len(block.rows)


def _fit(seed):
    rows = np.random.default_rng(0).normal(size=(400, 3))
    return KMeans(3, random_state=seed).fit(da.from_array(rows, chunks=(100, -1))).inertia_


@pytest.mark.long
def test_fits_inside_of_tasks_leave_the_threads_to_their_blocks(client):
    # As many fits as there are threads: if they kept them, none would be left for their blocks.
    found = client.gather(client.map(_fit, range(4)), direct=False)
    np.testing.assert_allclose(found, [_fit(seed) for seed in range(4)])


@pytest.mark.long
def test_frames_that_workers_shuffle_have_the_clusters_of_their_rows(client, monkeypatch):
    rows = np.random.default_rng(0).normal(size=(600, 3)) + 9.0 * (np.arange(600) % 3)[:, None]
    frame = pd.DataFrame(rows, columns=list("abc")).assign(key=np.arange(600)[::-1])
    lazy = dd.from_pandas(frame, npartitions=6)
    expected = KMeans(3, random_state=0).fit(frame[["a", "b", "c"]].iloc[::-1]).labels_
    shuffled = lazy.set_index("key", shuffle_method="p2p", divisions=[0, 150, 300, 450, 599])
    with pytest.warns(UserWarning, match="X again in every pass.* by persist='auto'"):
        labels = KMeans(3, random_state=0).fit(shuffled).labels_.compute()
    assert labels.index.tolist() == list(range(600))
    assert np.array_equal(labels, expected)
    monkeypatch.setattr(passes, "_fits", lambda blocks: False)
    with pytest.warns(UserWarning, match=r"parquet files and fit to these\.$"):
        KMeans(3, persist="auto", random_state=0).fit(shuffled)
    joined = lazy.merge(lazy[["key"]], on="key", shuffle_method="p2p")[["a", "b", "c"]]
    kept = KMeans(3, persist=True, random_state=0).fit(joined)  # without a warning
    assert sorted(kept.cluster_sizes_) == [200, 200, 200]


def test_calls_are_grouped_for_workers_that_are_yet_to_come():
    # For some threads; as soon as there are workers, for theirs.
    assert expected_threads({}) == 8
    assert expected_threads({"a": 1, "b": 2}) == 3
    assert len(groups_by_holder([()] * 64, {})) == 24


@given(st.integers(0, 3000), st.integers(1, 300))
def test_groups_of_a_cluster_cover_all_calls_evenly(n_calls, n_threads):
    for groups in (streamed_groups(n_calls, n_threads), packs(n_calls, n_threads)):
        assert [call for group in groups for call in group] == list(range(n_calls))
        assert all(groups) or not n_calls
        # No thread has much more than its share to do, as far as that depends on groups.
        most = max(map(len, groups), default=0)
        assert most <= max(1, 1.5 * n_calls / n_threads + 1)
    assert len(streamed_groups(n_calls, n_threads)) <= max(4 * n_threads, 4)


def test_a_group_is_for_all_threads_of_a_worker_if_all_have_as_many():
    alike = on_all_threads({"a": 2, "b": 2}, 8, packs)
    assert alike.queues == [((0, 1), (2, 3)), ((4, 5), (6, 7))]
    assert on_all_threads({"a": 2, "b": 1}, 6, packs).queues == [((0, 1),), ((2, 3),), ((4, 5),)]


def test_tasks_of_several_threads_share_those_of_one():
    """So a worker that takes over the task of a lost one has no more blocks in memory."""
    lock, now, most = threading.Lock(), [0], [0]

    def visit(number):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1
        return number

    def group(first):
        queues = [range(first + 4 * i, first + 4 * i + 4) for i in range(4)]
        calls = tuple(tuple(Call(n, (n,), (), ()) for n in queue) for queue in queues)
        return Group(calls, (), (), 48)

    assert run_group(group(0), visit, ()).total == sum(range(16))
    assert most[0] == 4
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda first: run_group(group(first), visit, ()), (0, 16, 32)))
    assert merge(found).total == sum(range(48))
    # One for each task at least.
    assert most[0] <= 6


def test_errors_of_any_thread_of_a_task_are_raised():
    queues = tuple((Call(n, (n,), (), ()),) for n in range(4))
    with pytest.raises(IndexError):
        run_group(Group(queues, (), (), 4), [0, 0, 0].__getitem__, ())


def _row():
    return np.ones((1, 1))


def _one(block):
    return 1


def test_brief_passes_over_streamed_blocks_are_a_task_per_worker(local_client, monkeypatch):
    seen = []

    def submitted(client, graph, keys, **where):
        runs = [key for key in graph if key[0].startswith("daskmm-one") and len(key) == 2]
        seen.append(len(runs))
        return _submitted(client, graph, keys, **where)

    monkeypatch.setattr("daskmm.engine.distributed._submitted", submitted)
    chunks = ((np.nan,) * 64, (1,))
    table = da.map_blocks(_row, chunks=chunks, dtype=float, meta=np.empty((0, 0)))
    passes = Passes(row_blocks(table))
    assert [passes.reduce(_one) for _ in range(3)] == [64] * 3
    # How long the first one takes is not known before; workers import modules in it.
    assert (seen[0], seen[-1]) == (6, 2)


@pytest.mark.long
def test_a_cluster_adapts_to_fits_from_no_worker_and_back():
    rows = np.random.default_rng(0).normal(size=(800, 3)) + 5 * (np.arange(800) % 2)[:, None]
    data = da.from_array(rows, chunks=(50, -1))
    seen = []
    with (
        dask.config.set({"scheduler": None, "daskmm.lost-cluster-timeout": "20s"}),
        LocalCluster(
            n_workers=0, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as local,
        Client(local) as client,
    ):
        local.adapt(minimum=0, maximum=2, interval="50ms", wait_count=2)

        def until_idle(record=None, seconds=1.5):
            """Wait for workers to be retired; those that hold data stay."""
            end = time.monotonic() + seconds
            while client.nthreads() and time.monotonic() < end:
                time.sleep(0.05)
            seen.append(len(client.nthreads()))

        def fitted(persist):
            model = KMeans(
                2,
                random_state=0,
                sample_size=None,
                max_iter=3,
                persist=persist,
                callbacks=[until_idle],
            )
            return model.fit(data).inertia_

        found = [fitted(False)]
        assert 0 in seen  # in the middle of a fit
        until_idle(seconds=10)
        assert not client.nthreads()
        found.append(fitted(True))
    with dask.config.set(scheduler="threads"):
        assert (
            found
            == [KMeans(2, random_state=0, sample_size=None, max_iter=3).fit(data).inertia_] * 2
        )


@pytest.fixture
def paused_client():
    """Connect to two workers that were paused, as dask pauses those whose memory is nearly full."""
    options = {"processes": False, "dashboard_address": ":0", "memory_limit": 0}
    with (
        dask.config.set({"scheduler": None, "daskmm.lost-cluster-timeout": "2s"}),
        LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster,
        Client(cluster) as client,
    ):
        client.run(_set_status, "paused")
        yield client


def _set_status(status, dask_worker):
    dask_worker.status = Status[status]


def test_a_fit_ends_if_all_workers_stay_paused(paused_client):
    rows = da.random.default_rng(0).normal(size=(400, 2), chunks=(50, 2))
    with pytest.raises(ClusterLostError, match=r"paused workers because .* for 2 seconds"):
        KMeans(2, random_state=0).fit(rows)


def test_a_fit_goes_on_when_paused_workers_run_again_and_says_what_it_waited_for(
    paused_client, caplog
):
    rows = da.random.default_rng(0).normal(size=(400, 2), chunks=(50, 2))
    timer = threading.Timer(1.6, paused_client.run, (_set_status, "running"))
    timer.start()
    model = KMeans(2, random_state=0).fit(rows)
    timer.join()
    assert len(model.labels_.compute()) == 400
    assert "dask has paused workers" in caplog.text


@pytest.mark.long
def test_a_task_that_a_paused_worker_runs_to_its_end_is_waited_for(local_client):
    def pause_and_work():
        worker = get_worker()
        worker.status = Status.paused
        time.sleep(2.5)
        worker.status = Status.running
        return 1

    with dask.config.set({"daskmm.lost-cluster-timeout": "1s"}):
        assert computed(dask.delayed(pause_and_work)()) == (1,)
