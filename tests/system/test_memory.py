"""Peak memory of fits, measured in processes of their own, against the plan."""

import json
import os
import subprocess
import sys
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.exceptions import ConvergenceWarning

from daskmm import KMeans
from daskmm.engine.resources import peak_memory_bytes

# Where the package sparse is installed, dask imports it, and it takes 60 MB.
SCRIPT = """
import json, sys
sys.modules["sparse"] = None
import dask.array as da, numpy as np, zarr
import daskmm
from daskmm.engine.resources import peak_memory_bytes
path, kind, name, settings = sys.argv[1:]
X = zarr.open_array(path, mode="r")
if kind == "numpy":
    rows = np.empty(X.shape, X.dtype)
    for start in range(0, X.shape[0], 20_000):
        rows[start : start + 20_000] = X[start : start + 20_000]
    X = rows
elif kind == "duckdb":
    import duckdb
    columns = ", ".join(f"random() as x{feature}" for feature in range(X.shape[1]))
    duckdb.execute(f"create table t as select {columns} from range({X.shape[0]})")
    X = duckdb.table("t")
elif kind != "zarr":
    X = da.from_array(X, chunks=(int(kind), -1))
model = getattr(daskmm, name)(**json.loads(settings))
projected = model.plan(X).peak_bytes_per_worker
model.fit(X)
print(json.dumps([projected, peak_memory_bytes()]))
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Makes zarr arrays of random rows, each once."""
    folder = tmp_path_factory.mktemp("data")

    def make(n_rows, n_features, dtype, chunk):
        path = folder / f"{n_rows}-{n_features}-{dtype}-{chunk}"
        if not path.exists():
            array = zarr.create_array(
                path,
                shape=(n_rows, n_features),
                chunks=(chunk, n_features),
                dtype=dtype,
                compressors=None,
            )
            rng = np.random.default_rng(0)
            block = 20 * rng.normal(size=(chunk, n_features))
            for start in range(0, n_rows, chunk):
                rows = (block[: n_rows - start] + start % 7).astype(dtype)
                array[start : start + chunk] = rows
        return path

    return make


def measured(path, kind, name, **settings):
    """Projected and measured peak, bytes."""
    arguments = [str(path), str(kind), name, json.dumps(settings)]
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return json.loads(output.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["KMeans", "EntropyPowerKMeans"])
def test_peak_memory_stays_below_the_plan_and_the_data(stored, name):
    path = stored(4_000_000, 50, "f4", 80_000)
    settings = {"n_clusters": 20, "max_iter": 12, "tol": 0, "random_state": 0}
    projected, peak = measured(path, "zarr", name, **settings)
    assert peak <= projected <= 2 * peak, (peak, projected)
    assert peak < 800e6


CASES = {
    "wide": ((50_000, 600, "f4", 5000), "zarr", "EntropyPowerKMeans", {}),
    "float64, annealed whole": (
        (500_000, 50, "f8", 40_000),
        "zarr",
        "PowerKMeans",
        {"sample_size": None},
    ),
    "in memory": ((1_000_000, 50, "f8", 40_000), "numpy", "KMeans", {}),
    "of DuckDB": ((1_000_000, 50, "f8", 40_000), "duckdb", "KMeans", {}),
    "small blocks": ((1_000_000, 20, "f4", 5000), 5000, "EntropyPowerKMeans", {}),
    "large blocks": ((2_000_000, 50, "f4", 400_000), 400_000, "KMeans", {}),
    "integers": ((2_000_000, 50, "i2", 200_000), "zarr", "PowerKMeans", {}),
    "many clusters": ((1_000_000, 50, "f4", 80_000), "zarr", "KMeans", {"n_clusters": 200}),
    "half precision": ((1_000_000, 64, "f2", 100_000), "zarr", "KMeans", {"n_clusters": 1000}),
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_plans_are_right_for_all_kinds_of_tables(stored, case):
    shape, kind, name, settings = CASES[case]
    given = {"n_clusters": 20, "max_iter": 6, "tol": 0, "random_state": 0} | settings
    projected, peak = measured(stored(*shape), kind, name, **given)
    assert peak <= projected <= 2 * peak, (peak, projected)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "shape", "settings"),
    [
        ("EntropyPowerKMeans", (500_000, 50, "f4", 40_000), {"n_clusters": 20, "random_state": 0}),
        ("WeightedBlurringMeanShift", (5000, 4, "f8", 5000), {}),
    ],
)
def test_plans_hold_for_tables_that_take_little(stored, name, shape, settings):
    projected, peak = measured(stored(*shape), "zarr", name, max_iter=6, **settings)
    assert peak <= projected <= 2 * peak, (peak, projected)


OF_CSV = """
import contextlib, io, json, sys
sys.modules["sparse"] = None
from daskmm.cli.main import main
from daskmm.engine.resources import peak_memory_bytes
path, out = sys.argv[1:]
options = ["-k", "4", "--model", "kmeans", "--columns", "a,b", "--max-iter", "4"]
with contextlib.redirect_stdout(io.StringIO()) as said:
    assert main(["plan", path, *options, "--json"]) == 0
assert main(["fit", path, *options, "--out", out, "--report", "--quiet"]) == 0
print(json.dumps([json.loads(said.getvalue())["peak_bytes_per_worker"], peak_memory_bytes()]))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_plan_holds_for_two_columns_of_a_large_csv_with_a_report(tmp_path):
    row = np.random.default_rng(0).normal(size=(1000, 20))
    lines = "\n".join(",".join(f"{value:.6f}" for value in values) for values in row)
    with (tmp_path / "rows.csv").open("w") as file:
        file.write(",".join("abcdefghijklmnopqrst") + "\n")
        file.writelines(f"{lines}\n" for _ in range(300))
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        OF_CSV,
        tmp_path / "rows.csv",
        tmp_path / "run",
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    projected, peak = json.loads(output.stdout.splitlines()[-1])
    assert peak <= projected <= 2 * peak, (peak, projected)


def block_of(base, block_id):
    """A block that costs little to make."""
    return base + np.float32(block_id[0] % 7)


@pytest.mark.long
def test_workers_with_twice_the_projected_memory_take_data_three_times_as_large():
    import distributed

    base = np.random.default_rng(0).normal(size=(40_000, 50)).astype("f4")
    model = KMeans(10, max_iter=1, tol=0, random_state=0)

    def table(n_bytes):
        n_blocks = -(-n_bytes // base.nbytes)
        chunks = ((len(base),) * n_blocks, (50,))
        lazy = dask.delayed(base, name="base", traverse=False)
        return da.map_blocks(block_of, base=lazy, chunks=chunks, dtype="f4", meta=base[:0])

    with dask.config.set(num_workers=1):
        projected = model.plan(table(1 << 32)).peak_bytes_per_worker
    data = table(3 * 2 * 2 * projected)
    with (
        dask.config.set(scheduler=None),
        distributed.LocalCluster(
            2, threads_per_worker=1, memory_limit=2 * projected, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        pids = client.run(os.getpid)
        plan = model.plan(data)
        # dask pauses workers that have filled .8 of their memory.
        assert plan.worker_memory_bytes == pytest.approx(0.8 * 2 * projected, rel=0.01)
        assert plan.bytes_per_pass >= 3 * 2 * plan.worker_memory_bytes
        assert plan.peak_bytes_per_worker <= projected
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(data)
        peaks = client.run(peak_memory_bytes)
        logs = client.get_worker_logs()
        assert client.run(os.getpid) == pids
    assert max(peaks.values()) <= projected <= 2 * max(peaks.values())
    said = [line for lines in logs.values() for level, line in lines if level != "INFO"]
    assert not [line for line in said if "memory" in line.lower()]
