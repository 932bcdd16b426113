"""The commands of Gram stores, end to end, on small data."""

import json

import numpy as np
import pytest

from daskmm.cli.main import main
from daskmm.gram.build import build
from daskmm.numerics.kernels import Kernel

N, TILE = 130, 32
N_TILES = 15


@pytest.fixture
def rows():
    return np.random.default_rng(0).normal(size=(N, 4))


@pytest.fixture
def store(tmp_path, rows):
    return build(tmp_path / "gram", rows, Kernel("rbf", bandwidth=2.0), tile_rows=TILE)


def gram(capsys, *arguments):
    """Exit code, standard output and standard error of a command."""
    code = main(["gram", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def as_json(capsys, *arguments):
    code, out, err = gram(capsys, *arguments, "--json")
    assert err == ""
    return code, json.loads(out)


def test_verify_names_the_faulty_tiles(capsys, store):
    assert gram(capsys, "verify", store.path) == (0, "all 15 tiles are sound\n", "")
    flipped = bytearray(store.tile_path((0, 3)).read_bytes())
    flipped[50] ^= 1
    store.tile_path((0, 3)).write_bytes(flipped)
    store.tile_path((2, 2)).write_bytes(b"short")
    store.tile_path((1, 4)).unlink()
    code, out, err = gram(capsys, "verify", store.path)
    assert (code, err) == (1, "")
    assert "damaged: 0/3, 2/2\nmissing: 1/4\n" in out
    assert "computes them again" in out
    faults = {"0/3": "damaged", "1/4": "missing", "2/2": "damaged"}
    assert as_json(capsys, "verify", store.path) == (
        1,
        {"store": str(store.path), "n_tiles": N_TILES, "faults": faults},
    )


def test_a_fit_mends_the_store_that_verify_faults(capsys, tmp_path, rows):
    np.save(tmp_path / "x.npy", rows)
    fit = ["fit", str(tmp_path / "x.npy"), "-k", "2", "--model", "kernel", "--no-pictures"]
    fit += ["--gram", str(tmp_path / "gram"), "--bandwidth", "2"]
    assert main([*fit, "--out", str(tmp_path / "first")]) == 0
    tile = tmp_path / "gram/tiles/c/0/0"
    tile.write_bytes(tile.read_bytes()[:-1] + b"\0")
    capsys.readouterr()
    assert gram(capsys, "verify", tmp_path / "gram")[0] == 1
    assert main([*fit, "--out", str(tmp_path / "second")]) == 0
    capsys.readouterr()
    assert gram(capsys, "verify", tmp_path / "gram")[0] == 0


def test_info_describes_the_store(capsys, store):
    code, found = as_json(capsys, "info", store.path)
    assert (code, found["n_rows"], found["n_features"]) == (0, N, 4)
    assert (found["n_tiles"], found["n_missing"]) == (N_TILES, 0)
    assert found["kernel"] == store.manifest.kernel
    code, out, err = gram(capsys, "info", store.path)
    assert (code, err) == (0, "")
    assert "Gram matrix of 130 rows × 4 features\nkernel: rbf, bandwidth 2\n" in out
    assert "complete" in out
    store.tile_path((1, 4)).unlink()
    assert "1 missing" in gram(capsys, "info", store.path)[1]


def test_info_describes_a_polynomial_kernel(capsys, tmp_path, rows):
    kernel = Kernel("polynomial", bandwidth=2.0, degree=3, coef0=0.5, unit_diagonal=True)
    store = build(tmp_path / "gram", rows, kernel, tile_rows=TILE)
    out = gram(capsys, "info", store.path)[1]
    assert "kernel: polynomial" in out
    assert "degree 3, coef0 0.5, unit diagonal" in out


@pytest.mark.parametrize("action", ["verify", "info"])
def test_paths_that_are_no_store_are_refused(capsys, tmp_path, action):
    (tmp_path / "folder").mkdir()
    code, _, err = gram(capsys, action, tmp_path / "folder")
    assert code == 2
    assert "is not a Gram store" in err
    assert "does not exist" in gram(capsys, action, tmp_path / "absent")[2]


@pytest.mark.parametrize("action", ["verify", "info"])
def test_help_shows_an_example(capsys, action):
    code, out, _ = gram(capsys, action, "--help")
    assert code == 0
    assert "example:" in out
    assert f"daskmm gram {action}" in out
