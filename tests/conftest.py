"""What all tests share: hypothesis profiles, a cluster, marks."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import zlib
from collections import defaultdict

import dask
import hypothesis
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

# Threads of linear algebra wait for each other in loops: where other processes have the cores, the
# product of two small matrices takes a hundred times its time. Each process of the tests, and each
# that it starts, gets one such thread, unless the caller's environment says otherwise.
if "OMP_NUM_THREADS" not in os.environ:
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    threadpool_limits(1)  # of libraries that plugins of pytest have loaded already

# With the defaults, an idle worker profiles and monitors itself for 3 % of a core, the scheduler
# for 4 %.
IDLE = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "1s",
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
}


def pytest_addoption(parser):
    parser.addoption(
        "--durations-file",
        metavar="FILE",
        help="append 'CPU-seconds seconds test' to FILE as each test ends",
    )
    parser.addoption(
        "--drawn",
        metavar="GROUP/GROUPS",
        help="of the tests marked long or paper, run those of one group, drawn by their names",
    )


def pytest_configure(config):
    # Machines that run tests are busy: workers slow by chance would have blocks read twice,
    # which tests count.
    dask.config.set({"daskmm.straggler-patience": np.inf, **IDLE})
    # Tests that need a number of examples, or the same ones each time, say so themselves.
    hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)
    hypothesis.settings.register_profile("ci", deadline=None, max_examples=50)
    if not config.getoption("--hypothesis-profile", None):
        hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "quick")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect tests, but no garbage: looking for it took a quarter of the time and found none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


# Marks


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark and leave out tests; sort those that options leave."""
    _take_turns(items)
    if config.getoption("--drawn"):
        group, n_groups = map(int, config.getoption("--drawn").split("/"))
        others = [item for item in items if not _is_drawn(item, group, n_groups)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if _is_drawn(item, group, n_groups)]
    yield
    # What takes longest is begun first, or it would be waited for: notebooks, clusters that lose
    # workers, then tests that ask for more time than others get, or are of the system as a whole.
    items.sort(
        key=lambda item: (
            item.get_closest_marker("paper") is None,
            item.path.stem != "test_faults",
            item.get_closest_marker("timeout") is None,
            item.path.parent.name != "system",
        )
    )


def _is_drawn(item, group, n_groups):
    """Return whether a test is quick, or belongs to the group of long ones."""
    long = item.get_closest_marker("long") or item.get_closest_marker("paper")
    return long is None or zlib.crc32(item.nodeid.encode()) % n_groups == group


def _take_turns(items):
    """Of tests marked `in_turn`, leave one value per combination of the others in the quick run."""
    groups = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("in_turn")
        if mark is not None and hasattr(item, "callspec"):
            (name,), params = mark.args, item.callspec.params
            if "check" in params:  # one of scikit-learn's, given in pairs with an estimator
                groups[item.path, item.originalname, _check_name(params["check"])].append(item)
            elif name in params:
                # Values may be dictionaries, which have no hash.
                others = [repr(value) for other, value in params.items() if other != name]
                groups[item.path, item.originalname, *others].append(item)
    turns = defaultdict(itertools.count)
    for (path, function, *_), group in groups.items():
        chosen = next(turns[path, function]) % len(group)
        for index, item in enumerate(group):
            if index != chosen:
                item.add_marker(pytest.mark.long)


def _check_name(check):
    return check.func.__name__ if isinstance(check, functools.partial) else check.__name__


# A cluster


@pytest.fixture(scope="session")
def _workers():
    import distributed

    with (
        dask.config.set(scheduler=None),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
    ):
        yield cluster


@pytest.fixture
def client(_workers):
    """Connect to two worker processes that the tests of a session share.

    For tests that need any cluster. Those that end workers, or count what is on them, start one.
    """
    from distributed import Client

    with dask.config.set(scheduler=None), Client(_workers) as connected:
        yield connected


@pytest.fixture(scope="module")
def _local_workers():
    import distributed

    with (
        dask.config.set(scheduler=None),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            protocol="tcp://",
            dashboard_address=":0",
        ) as cluster,
    ):
        yield cluster


@pytest.fixture
def local_client(_local_workers):
    """Connect to two workers in this process, which are sent copies as those elsewhere are.

    They start at once. For tests that need a cluster, but no processes.
    """
    from distributed import Client

    with dask.config.set(scheduler=None), Client(_local_workers) as connected:
        yield connected


# Durations


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """Write down what a test took, with its fixtures."""
    path = item.config.getoption("--durations-file")
    if path is None:
        yield
        return
    before = os.times()
    yield
    after = os.times()
    cpu = sum(after[:4]) - sum(before[:4])
    with open(path, "a") as file:
        file.write(f"{cpu:.2f} {after.elapsed - before.elapsed:.2f} {item.nodeid}\n")
