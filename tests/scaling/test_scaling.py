import json
import math

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daskmm import scaling
from daskmm.cli.main import main
from daskmm.scaling import PassModel, measure_pass

FREE = scaling.LATENCY_SECONDS


def played(n_blocks, load, compute, threads):
    """Seconds of the busiest thread: as many blocks for each, reading one block ahead."""
    groups = min(n_blocks, threads)
    sizes = [len(part) for part in np.array_split(np.arange(n_blocks), groups)]
    busy = [0.0] * threads
    for number, size in enumerate(sizes):
        ready = done = 0.0
        for _ in range(size):
            # A block is read once the one before the last is let go.
            ready += load
            done = max(ready, done) + compute
            ready = max(ready, done - compute)
        busy[number] = done
    return max(busy), groups


@given(
    st.integers(1, 200),
    st.floats(0.001, 10),
    st.floats(0.001, 10),
    st.integers(1, 30),
)
def test_seconds_are_those_of_the_schedule_played_through(n_blocks, load, compute, threads):
    model = PassModel(n_blocks, 1e6, load, 0.0, compute)
    found = model.seconds(threads)
    busiest, groups = played(n_blocks, load, compute, threads)
    expected = FREE + groups * scaling.TASK_SECONDS + busiest
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_cores_and_storage_are_shared():
    model = PassModel(64, 1e6, 1.0, 0.5, 2.0)
    tasks = scaling.TASK_SECONDS
    assert model.seconds(4, cores=2) == FREE + 4 * tasks + 64 * 2.5 / 2
    assert model.seconds(64, bandwidth=1e5) == FREE + 64 * tasks + 64 * 1e6 / 1e5
    # Data that workers hold are not read.
    assert model.persisted().seconds(64, bandwidth=1e5) == FREE + 64 * tasks + 2.0
    # A worker visits its blocks in one task.
    assert model.seconds(2, 4) == pytest.approx(model.seconds(8) - 6 * tasks)


def test_a_table_is_measured_on_a_few_blocks():
    loaded = []

    def load(block, block_info=None):
        loaded.append(block_info[0]["chunk-location"][0])
        return block

    rows = np.random.default_rng(0).normal(size=(2000, 3))
    X = da.from_array(rows, chunks=(100, 3)).map_blocks(load, dtype=float, meta=rows[:0])
    model = measure_pass(X, 5, n_blocks=4)
    assert sorted(set(loaded)) == [0, 6, 12, 19]
    assert len(loaded) == 8
    assert (model.n_blocks, model.block_bytes) == (20, 2400)
    assert 0 <= model.load_processor_seconds <= model.load_seconds
    assert model.compute_seconds > 0


def test_the_command_says_seconds(tmp_path, capsys):
    path = str(tmp_path / "rows.npy")
    np.save(path, np.random.default_rng(0).normal(size=(500, 4)))
    assert main(["plan", path, "-k", "3", "--workers", "1", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["pass_seconds"]
    assert list(found) == ["1", "8"]
    assert all(math.isfinite(seconds) for seconds in found.values())
    assert main(["plan", path, "-k", "3", "--workers", "8"]) == 0
    assert "a pass on 8 worker(s) of one thread: about" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-k", "3", "--model", "kernel"], "no meaning"),
        (["-k", "auto"], "number of clusters"),
        (["-k", "3", "--workers", "0"], "positive"),
    ],
)
def test_the_command_refuses(tmp_path, capsys, options, message):
    path = str(tmp_path / "rows.npy")
    np.save(path, np.zeros((9, 2)))
    assert main(["plan", path, "--workers", "2", *options]) == 2
    assert message in capsys.readouterr().err


def test_blocks_without_rows_are_not_measured():
    rows = np.random.default_rng(0).normal(size=(60, 3))
    model = measure_pass(da.from_array(rows, chunks=((0, 20, 0, 40), 3)), 5)
    assert model.n_blocks == 4
    assert 480 <= model.block_bytes <= 960
    with pytest.raises(ValueError, match="no rows"):
        measure_pass(da.from_array(rows[:0], chunks=((0,), 3)), 5)
