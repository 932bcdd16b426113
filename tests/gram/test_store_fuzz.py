"""Gram stores with random damage: the same numbers as before, or an error; never others."""

import shutil

import numpy as np
import pytest
from _gram_faults import verify

from daskmm import KernelPowerKMeans
from daskmm.gram.build import GramStoreError, build
from daskmm.gram.matrices import StoredGram
from daskmm.gram.store import GramStore
from daskmm.numerics.kernels import Kernel

N, TILE = 50, 16
KERNEL = Kernel("rbf", bandwidth=1.5)


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(N, 3))


@pytest.fixture(scope="module")
def whole(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "gram"
    build(path, rows, KERNEL, tile_rows=TILE, dtype="float64")
    return path


def damage(path, rng):
    """Flip a bit of a file of the store, cut it, or delete it; what was done, in words."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    file = files[rng.integers(len(files))]
    content = bytearray(file.read_bytes())
    how = rng.choice(["flip", "cut", "delete", "extend"], p=[0.5, 0.2, 0.2, 0.1])
    if how == "flip":
        content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    elif how == "cut":
        content = content[: rng.integers(len(content))]
    elif how == "extend":
        content += bytes(rng.integers(256, size=5).astype(np.uint8))
    if how == "delete":
        file.unlink()
    else:
        file.write_bytes(bytes(content))
    return f"{how} {file.relative_to(path)}"


@pytest.mark.in_turn("part")
@pytest.mark.parametrize("part", range(6))
def test_damage_is_refused_or_does_no_harm(whole, rows, tmp_path, part):
    right = np.random.default_rng(1).normal(size=(N, 2))
    expected = KERNEL.block(rows, rows) @ right
    for seed in range(30 * part, 30 * part + 30):
        path = tmp_path / str(seed)
        shutil.copytree(whole, path)
        done = damage(path, np.random.default_rng(seed))
        try:
            gram = StoredGram(GramStore(path), rows, KERNEL, lazy=False)
            found, diagonal = gram.product(right), gram.diagonal
        except (GramStoreError, FileNotFoundError):
            continue
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12, err_msg=done)
        np.testing.assert_array_equal(diagonal, np.ones(N), err_msg=done)


@pytest.mark.long
def test_fits_on_damaged_stores_are_right_or_refused(rows, tmp_path):
    settings = {"random_state": 0, "standardize": False, "bandwidth": 1.5}
    whole = tmp_path / "whole"
    expected = KernelPowerKMeans(2, gram=whole, **settings).fit(rows)
    refused = 0
    for seed in range(40):
        path = tmp_path / str(seed)
        shutil.copytree(whole, path)
        done = damage(path, np.random.default_rng(1000 + seed))
        try:
            found = KernelPowerKMeans(2, gram=path, **settings).fit(rows)
        except ValueError:
            refused += 1
            continue
        np.testing.assert_array_equal(found.labels_, expected.labels_, err_msg=done)
        assert found.inertia_ == pytest.approx(expected.inertia_, rel=1e-6), done
        assert not verify(path)
    assert refused
