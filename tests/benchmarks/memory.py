"""Peak memory of fits, measured in processes of their own, beside what `plan` projects.

Run: python tests/benchmarks/memory.py

Tables of many shapes, types and chunks: zarr stores, dask arrays over them in other chunks, and
numpy arrays. Prints a Markdown table.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import zarr

# Measured as the tests do.
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "system"))

from test_memory import measured

# Rows, features, dtype and rows per chunk of the store.
WIDE = (60_000, 500, "f4", 6000)
SINGLE = (4_000_000, 50, "f4", 80_000)
DOUBLE = (1_500_000, 40, "f8", 50_000)
NARROW = (20_000_000, 4, "f4", 500_000)
BYTES = (4_000_000, 64, "u1", 250_000)
INTEGERS = (2_000_000, 50, "i2", 200_000)
SMALL = (1_000_000, 20, "f4", 4000)

# Estimator, store, how it is given (zarr, numpy, or rows per dask chunk), clusters, and the rest.
CASES = [
    ("KMeans", SINGLE, "zarr", 20, {}),
    ("PowerKMeans", SINGLE, "zarr", 20, {}),
    ("EntropyPowerKMeans", SINGLE, "zarr", 20, {}),
    ("PowerKMeans", SINGLE, "zarr", 200, {}),
    ("PowerKMeans", SINGLE, 400_000, 20, {}),
    ("KMeans", SINGLE, 20_000, 100, {}),
    ("PowerKMeans", DOUBLE, "zarr", 20, {}),
    ("EntropyPowerKMeans", DOUBLE, "zarr", 50, {}),
    ("KMeans", DOUBLE, "numpy", 20, {}),
    ("PowerKMeans", DOUBLE, "zarr", 20, {"sample_size": None, "max_iter": 6}),
    ("PowerKMeans", WIDE, "zarr", 20, {}),
    ("EntropyPowerKMeans", WIDE, "zarr", 20, {}),
    ("KMeans", NARROW, "zarr", 8, {}),
    ("EntropyPowerKMeans", NARROW, "zarr", 8, {}),
    ("KMeans", BYTES, "zarr", 20, {}),
    ("PowerKMeans", INTEGERS, "zarr", 20, {}),
    ("EntropyPowerKMeans", SMALL, "zarr", 20, {}),
    ("PowerKMeans", SMALL, "numpy", 20, {}),
]


def write(path, n_rows, n_features, dtype, chunk):
    """A store of overlapping clusters."""
    array = zarr.create_array(
        path, shape=(n_rows, n_features), chunks=(chunk, n_features), dtype=dtype, compressors=None
    )
    rng = np.random.default_rng(0)
    centers = 100 + 20 * rng.normal(size=(20, n_features))
    block = centers[rng.integers(20, size=chunk)] + 10 * rng.normal(size=(chunk, n_features))
    block = block.clip(0, 255)
    for start in range(0, n_rows, chunk):
        array[start : start + chunk] = (block[: n_rows - start] + start % 7).clip(0, 255)


def described(shape, kind):
    """A table and how it is given, in words."""
    n_rows, n_features, dtype, chunk = shape
    size = megabytes(n_rows * n_features * np.dtype(dtype).itemsize)
    table = f"{n_rows:,} × {n_features} {np.dtype(dtype)}, {size} MB"
    match kind:
        case "zarr":
            return table, f"zarr, chunks of {chunk:,} rows"
        case int(rows):
            return table, f"dask, chunks of {rows:,} rows"
    return table, kind


def megabytes(n_bytes):
    return f"{n_bytes / 1e6:,.0f}"


def main():
    print("| estimator | table | given as | clusters | projected, MB | measured, MB | ratio |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, shape, kind, n_clusters, settings in CASES:
            path = Path(folder) / "-".join(map(str, shape))
            if not path.exists():
                write(path, *shape)
            given = {"n_clusters": n_clusters, "random_state": 0} | settings
            projected, peak = measured(path, kind, name, **given)
            model = ", ".join((name, *(f"{key}={value}" for key, value in settings.items())))
            cells = (model, *described(shape, kind), n_clusters, megabytes(projected))
            line = f"{' | '.join(map(str, cells))} | {megabytes(peak)} | {projected / peak:.2f}"
            print(f"| {line} |", flush=True)


if __name__ == "__main__":
    main()
