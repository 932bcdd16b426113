"""Workers killed, retired and restarted, schedulers killed: fits on clusters of real processes."""

import contextlib
import functools
import time
import warnings
from typing import NamedTuple

import dask
import dask.array as da
import numpy as np
import pytest
from _faults import (
    TELL,
    Folder,
    GaussianKernel,
    Processes,
    SpendByJob,
    before_pass,
    local_cluster,
    table,
    when_reached,
)
from distributed import Client
from sklearn.exceptions import ConvergenceWarning

from daskmm import (
    ClusterLostError,
    DeadlyBlockError,
    EntropyPowerKMeans,
    GaussianMixture,
    KernelPowerKMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
)
from daskmm.engine.grouping import streamed_groups

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TRIES = 5
BLOCKS, CHUNK = 24, 50
# Of a death: the first block of a pass, one in its midst, the last.
PLACES = (1, 6, BLOCKS)


def rows_of(n, p=4, k=4):
    rng = np.random.default_rng(0)
    return rng.normal(0, 8, (k, p))[rng.integers(k, size=n)] + rng.normal(size=(n, p))


ROWS = rows_of(BLOCKS * CHUNK)
# Enough rows for several Gram tiles.
KERNEL_ROWS = rows_of(4500)


def annealed(folder, persist=False):
    """An annealing over all rows."""
    model = PowerKMeans(4, sample_size=None, eta=1.5, random_state=0, persist=persist)
    return model.fit(table(ROWS, CHUNK, folder))


def scored(folder):
    """An annealing that is cut short, so that its end is scored by a pass of its own."""
    model = PowerKMeans(4, sample_size=None, max_iter=3, tol=0, polish=False, random_state=0)
    return model.fit(table(ROWS, CHUNK, folder))


def polished(folder, persist=False, seconds=0.0):
    """Annealed on a sample, polished on all rows."""
    model = EntropyPowerKMeans(4, sample_size=200, eta=1.5, random_state=0, persist=persist)
    return model.fit(table(ROWS, CHUNK, folder, seconds))


def other(folder, holes=0.0, **settings):
    """An annealing over rows that are positive, and of which some values may be missing."""
    rows = np.abs(ROWS) + 0.1
    # The first feature is always there: no row is without any value.
    rows[:, 1:][np.random.default_rng(1).random((len(rows), 3)) < holes] = np.nan
    missing = "partial" if holes else "error"
    settings = {"sample_size": None, "eta": 1.5, "random_state": 0, "missing": missing} | settings
    return PowerKMeans(4, **settings).fit(table(rows, CHUNK, folder))


def gram_stored(folder):
    kernel, path = GaussianKernel(folder), folder.path / "gram"
    model = KernelPowerKMeans(4, kernel=kernel, gram=path, eta=1.5, random_state=0)
    return model.fit(table(KERNEL_ROWS, 500, folder))


def gram_recomputed(folder):
    kernel = GaussianKernel(folder)
    model = KernelPowerKMeans(4, kernel=kernel, gram="recompute", eta=1.5, random_state=0)
    return model.fit(table(KERNEL_ROWS, 500, folder))


def shifted(folder):
    return WeightedBlurringMeanShift(0.3, random_state=0).fit(table(ROWS, CHUNK, folder))


def compressed(folder):
    model = WeightedBlurringMeanShift(0.3, n_representatives=100, random_state=0)
    return model.fit(table(ROWS, CHUNK, folder))


def mixture(folder):
    model = GaussianMixture(4, sample_size=200, tol=0, max_iter=4, random_state=0)
    return model.fit(table(ROWS, CHUNK, folder))


class Case(NamedTuple):
    """A fit, the pass in which a worker is killed, and what it spends tickets on there."""

    fit: object
    name: str
    occurrence: int
    kind: str
    # Tickets of the tries: the place in the pass.
    counts: tuple = PLACES


CASES = {
    "first pass": Case(annealed, "first-look", 1, "rows"),
    "annealing iteration": Case(annealed, "block-sums", 3, "rows"),
    "annealing iteration, data kept by workers": Case(
        functools.partial(annealed, persist=True), "block-sums", 3, "jobs"
    ),
    "scoring": Case(scored, "block-sums", 4, "rows"),
    "annealing on the sample": Case(polished, "anneal", 1, "jobs", (1, 4, 8)),
    "polishing": Case(polished, "block-sums", 1, "rows"),
    "drawing micro-clusters": Case(compressed, "farther", 2, "rows"),
    "moments of micro-clusters": Case(compressed, "cell-sums", 1, "rows"),
    "polishing, data kept by workers": Case(
        functools.partial(polished, persist=True), "block-sums", 1, "jobs"
    ),
    "EM over the table": Case(mixture, "block-sums", 2, "rows"),
    "counts": Case(functools.partial(other, distortion="kl"), "block-sums", 2, "rows"),
    "counts with holes, data kept by workers": Case(
        functools.partial(other, holes=0.2, distortion="kl", persist=True), "block-sums", 2, "jobs"
    ),
    "holes, polishing": Case(
        functools.partial(other, holes=0.2, sample_size=200), "block-sums", 1, "rows"
    ),
    "outliers": Case(functools.partial(other, distortion="manhattan"), "block-sums", 2, "rows"),
    "a distance that is learned": Case(
        functools.partial(other, distortion="mahalanobis"), "block-sums", 2, "rows"
    ),
    "Gram write": Case(gram_stored, "gram-tiles", 1, "kernel", (1, 3, 6)),
    "Gram sweep, stored": Case(gram_stored, "gram-sweep", 1, "jobs", (1, 3, 6)),
    "Gram sweep, recomputed": Case(gram_recomputed, "gram-sweep", 1, "kernel", (1, 3, 6)),
    "mean shift, gathering": Case(shifted, "piece", 1, "rows"),
    "mean shift, pass over pairs": Case(shifted, "blurring", 2, "jobs", (1, 2, 4)),
}


@pytest.fixture(scope="module")
def current(tmp_path_factory):
    """File that says which folder is at play."""
    return tmp_path_factory.mktemp("faults") / "current"


@pytest.fixture(scope="module")
def client(current):
    # One more than needed, which comes back while the next try goes on.
    with local_cluster(3) as client:
        client.register_plugin(SpendByJob(current))
        yield client


@pytest.fixture
def new_folder(tmp_path, current):
    """Makes folders for what the processes tell each other."""
    numbers = iter(range(1000))
    return lambda: folder_at_play(tmp_path / str(next(numbers)), current)


def folder_at_play(path, current):
    """A new folder, of which workers learn from the file `current`."""
    folder = Folder(path)
    fresh = current.with_suffix(".new")
    fresh.write_text(str(folder.path))
    fresh.rename(current)
    return folder


def quietly(fit, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return fit(*args)


def assert_same(found, expected):
    names = ["cluster_centers_", "inertia_", "objective_history_", "feature_weights_", "labels_"]
    for name in (*names, "memberships_", "n_iter_", "n_passes_"):
        if hasattr(expected, name):
            values = [np.asarray(getattr(model, name)) for model in (found, expected)]
            np.testing.assert_allclose(*values, rtol=1e-9, atol=1e-12, err_msg=name)


def undisturbed(fit, new_folder):
    """The model of a fit without faults, and its reads."""
    folder = new_folder()
    model = quietly(fit, folder)
    reads = folder.reads()
    return model, reads


def strike(client, case, count, folder):
    """A fit in which one worker is killed; its reads."""
    client.wait_for_workers(2, timeout=60)
    with before_pass(case.name, case.occurrence, lambda: folder.arm(case.kind, count)):
        model = quietly(case.fit, folder)
    reads = folder.reads()
    assert not folder.armed()
    assert (folder.path / "reached").exists(), "no worker was killed"
    return model, reads


def extra_reads(reads, expected):
    """Blocks that were read more often than without a fault; never less often."""
    assert not expected - reads
    return sum((reads - expected).values())


def run_case(client, case, new_folder):
    """Extra reads of each try, whose models all are that of the undisturbed fit."""
    expected, reads = undisturbed(case.fit, new_folder)
    extras = []
    for count in case.counts:
        folder = new_folder()
        model, struck = strike(client, case, count, folder)
        assert_same(model, expected)
        extras.append(extra_reads(struck, reads))
    return extras


@pytest.mark.parametrize("name", CASES)
def test_a_killed_worker_costs_its_blocks_being_read_again(client, name, new_folder):
    extras = run_case(client, CASES[name], new_folder)
    # At most those of the pass at hand (kept data: of what it kept).
    assert max(extras) <= BLOCKS


def predicted(client, count, folder):
    """Labels of a prediction in which a worker is killed, and those without."""
    model = quietly(polished, folder)
    expected = model.predict(ROWS)
    client.wait_for_workers(2, timeout=60)
    before = folder.reads()
    data = table(ROWS, CHUNK, folder)
    folder.arm("rows", count)
    found = model.predict(data).compute()
    assert not folder.armed()
    return found, expected, sum((folder.reads() - before).values()) - BLOCKS


@pytest.mark.parametrize("count", PLACES)
def test_a_worker_that_is_killed_while_predicting_changes_no_label(client, count, new_folder):
    found, expected, extra = predicted(client, count, new_folder())
    np.testing.assert_array_equal(found, expected)
    assert extra <= BLOCKS


def restarted(client, act, persist, count, new_folder):
    """A fit, slowed down, in the midst of which a cluster is changed; and its extra reads."""
    fit = functools.partial(polished, persist=persist, seconds=0.01)
    expected, reads = undisturbed(fit, new_folder)
    folder = new_folder()
    kind = "jobs" if persist else "rows"
    with (
        when_reached(folder, act),
        before_pass("block-sums", 1, lambda: folder.arm(kind, count, TELL)),
    ):
        model = quietly(fit, folder)
    struck = folder.reads()
    assert_same(model, expected)
    return extra_reads(struck, reads)


def restart(client, persist, count, new_folder):
    """cluster restarted while polishing"""
    extra = restarted(client, client.restart, persist, count, new_folder)
    client.wait_for_workers(2, timeout=60)
    return extra


def retire_one(client, persist, count, new_folder):
    """worker retired while polishing"""
    client.cluster.scale(4)
    client.wait_for_workers(4, timeout=60)
    extra = restarted(client, lambda: client.cluster.scale(3), persist, count, new_folder)
    deadline = time.monotonic() + 60
    while len(client.nthreads()) != 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return extra


@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("count", PLACES)
def test_a_cluster_that_is_restarted_makes_the_pass_again(client, count, persist, new_folder):
    extra = restart(client, persist, count, new_folder)
    # The pass at hand begins again, perhaps while workers are still ending; kept data are loaded
    # again.
    assert extra <= 2 * BLOCKS


@pytest.mark.parametrize("persist", [False, True])
@pytest.mark.parametrize("count", PLACES)
def test_a_worker_that_is_retired_costs_few_readings(client, count, persist, new_folder):
    assert retire_one(client, persist, count, new_folder) <= BLOCKS


@contextlib.contextmanager
def allowed_failures(client, count):
    scheduler = client.cluster.scheduler
    before, scheduler.allowed_failures = scheduler.allowed_failures, count
    try:
        yield
    finally:
        scheduler.allowed_failures = before


@pytest.mark.parametrize(
    ("block", "persist"), [(0, False), (7, True), (11, False), (16, True), (23, False)]
)
def test_a_block_that_kills_every_worker_is_named(client, block, persist, new_folder):
    folder = new_folder()
    client.wait_for_workers(2, timeout=60)
    (folder.path / f"deadly-{block}").touch()
    words = f"^block {block} killed 2 workers"
    with allowed_failures(client, 1), pytest.raises(DeadlyBlockError, match=words):
        quietly(functools.partial(polished, persist=persist), folder)
    (folder.path / f"deadly-{block}").unlink()


def test_a_deadly_block_is_named_where_others_die_with_it(current, tmp_path, caplog):
    # Two threads work on the first two groups of blocks; the second group kills the worker. Which
    # of the two is reported first is decided by the name of a pass, another one in each fit.
    folder = folder_at_play(tmp_path, current)
    with local_cluster(1, threads=2) as client:
        block = streamed_groups(BLOCKS, 2)[1][0]
        (folder.path / f"deadly-{block}").touch()
        words = f"^block {block} killed 2 workers"
        for _ in range(TRIES):
            with allowed_failures(client, 1), pytest.raises(DeadlyBlockError, match=words):
                quietly(functools.partial(polished, seconds=0.05), folder)
    # Both groups were under suspicion at once, whichever was reported first.
    assert sum("one by one" in told for told in caplog.messages) == TRIES


@pytest.mark.parametrize("count", PLACES)
@pytest.mark.parametrize("persist", [False, True])
def test_blocks_are_not_blamed_for_workers_that_die_otherwise(client, persist, count, new_folder):
    fit = functools.partial(polished, persist=persist)
    expected, _ = undisturbed(fit, new_folder)
    folder = new_folder()
    client.wait_for_workers(2, timeout=60)
    with allowed_failures(client, 0), before_pass("first-look", 1, lambda: None):
        folder.arm("rows", count)
        model = quietly(fit, folder)
    assert not folder.armed()
    assert_same(model, expected)


def test_data_that_were_scattered_and_lost_are_reported(client, new_folder):
    folder = new_folder()
    client.wait_for_workers(2, timeout=60)
    parts = client.scatter([ROWS[start : start + CHUNK] for start in range(0, len(ROWS), CHUNK)])
    data = da.concatenate([da.from_delayed(part, (CHUNK, 4), float) for part in parts])
    model = PowerKMeans(4, sample_size=None, eta=1.5, random_state=0)
    with (
        before_pass("block-sums", 2, lambda: folder.arm("jobs", 1)),
        pytest.raises(ClusterLostError, match=r"were lost with it .* leave them lazy"),
    ):
        quietly(model.fit, data)


# Clusters without anybody who starts their processes again


@contextlib.contextmanager
def processes(timeout="3s"):
    with (
        Processes() as group,
        dask.config.set({"scheduler": None, "daskmm.lost-cluster-timeout": timeout}),
        Client(f"tcp://127.0.0.1:{group.port}", timeout=60) as client,
    ):
        client.wait_for_workers(2, timeout=60)
        yield group, client


def lose_all_workers(group, client, count, new_folder):
    """Seconds from the death of all workers to the error."""
    client.wait_for_workers(2, timeout=60)
    folder = new_folder()

    def kill():
        group.kill_workers()
        began.append(time.monotonic())

    began = []
    with (
        when_reached(folder, kill),
        before_pass("block-sums", 2, lambda: folder.arm("rows", count, TELL)),
        pytest.raises(ClusterLostError, match="has had no worker for 3 seconds"),
    ):
        quietly(functools.partial(polished, seconds=0.02), folder)
    return time.monotonic() - began[0]


def test_when_all_workers_are_gone_the_fit_ends(new_folder):
    with processes() as (group, client):
        for count in (1, 3, 6, 12, BLOCKS):
            seconds = lose_all_workers(group, client, count, new_folder)
            assert 2 < seconds < 15
            group.start_workers()


def test_a_fit_goes_on_when_all_workers_are_replaced_in_time(new_folder):
    fit = functools.partial(polished, seconds=0.02)
    with processes("60s") as (group, client):
        expected, _ = undisturbed(fit, new_folder)
        for count in (1, 3, 6, 12, BLOCKS):
            client.wait_for_workers(2, timeout=60)
            folder = new_folder()

            def replace_all():
                group.kill_workers()
                group.start_workers()

            with (
                when_reached(folder, replace_all),
                before_pass("block-sums", 1, lambda f=folder, c=count: f.arm("rows", c, TELL)),
            ):
                model = quietly(fit, folder)
            assert_same(model, expected)


@pytest.mark.parametrize("count", PLACES)
def test_when_the_scheduler_is_gone_the_fit_ends(count, new_folder):
    with processes() as (group, _):
        folder = new_folder()
        words = str(group.scheduler.pid)
        began = []

        def arm():
            folder.arm("rows", count, words)
            began.append(time.monotonic())

        with before_pass("block-sums", 1, arm), pytest.raises(ClusterLostError):
            quietly(polished, folder)
        assert time.monotonic() - began[0] < 15


@pytest.mark.parametrize("count", [1, 6, BLOCKS])
def test_a_scheduler_that_comes_back_in_time_goes_on(count, new_folder):
    with processes("60s") as (group, _):
        expected, _ = undisturbed(polished, new_folder)
        folder = new_folder()

        def bring_back():
            group.scheduler.kill()
            group.kill_workers()
            group.scheduler.join()
            group.start_scheduler()
            group.start_workers()

        with (
            when_reached(folder, bring_back),
            before_pass("block-sums", 1, lambda: folder.arm("rows", count, TELL)),
        ):
            model = quietly(functools.partial(polished, seconds=0.02), folder)
        assert_same(model, expected)
