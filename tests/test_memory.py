"""Peak memory of a fit out of core, measured in a process of its own, against the plan."""

import json
import subprocess
import sys

import numpy as np
import pytest
import zarr

SCRIPT = """
import json, sys
import zarr
import daskmm
from daskmm.runs import peak_memory_bytes
store = zarr.open_array(sys.argv[1], mode="r")
model = getattr(daskmm, sys.argv[2])(20, random_state=0, max_iter=12, tol=0)
projected = model.plan(store).peak_bytes_per_worker
model.fit(store)
print(json.dumps([projected, peak_memory_bytes()]))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """800 MB of float32: more than a fit may take."""
    path = tmp_path_factory.mktemp("data") / "rows.zarr"
    rng = np.random.default_rng(0)
    shape, chunk = (4_000_000, 50), 80_000
    array = zarr.create_array(path, shape=shape, chunks=(chunk, 50), dtype="f4", compressors=None)
    block = rng.normal(size=(chunk, 50)).astype("f4")
    for start in range(0, shape[0], chunk):
        array[start : start + chunk] = block + np.float32(start % 7)
    return path


@pytest.mark.parametrize("name", ["KMeans", "EntropyPowerKMeans"])
def test_peak_memory_stays_below_the_plan_and_the_data(store, name):
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(store), name]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    projected, peak = json.loads(output.stdout)
    assert peak <= projected
    assert projected <= 2 * peak
    assert peak < 800e6
