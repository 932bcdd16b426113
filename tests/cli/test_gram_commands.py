"""The commands of Gram stores, end to end, on small data."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import zarr
from _support import raise_if_computes

from daskmm.cli import gram as gram_cli
from daskmm.cli.main import main
from daskmm.gram.build import build, repair
from daskmm.gram.store import GramStore
from daskmm.numerics.kernels import Kernel
from daskmm.numerics.options import KERNELS

N, P, TILE = 130, 4, 32
N_TILES = 15


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(gram_cli, "TILE_ROWS", TILE)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    return 1e3 + rng.normal(size=(N, P)) * [1.0, 2.0, 5.0, 0.1]


@pytest.fixture
def npy(tmp_path, table):
    np.save(tmp_path / "x.npy", table)
    return str(tmp_path / "x.npy")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "gram"


def gram(capsys, *arguments):
    """Exit code, standard output and standard error of a command."""
    code = main(["gram", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def as_json(capsys, *arguments):
    code, out, err = gram(capsys, *arguments, "--json")
    assert err == ""
    return code, json.loads(out)


def flip(file):
    content = bytearray(file.read_bytes())
    content[50] ^= 1
    file.write_bytes(content)


def whole(store):
    """The matrix of a store."""
    n = store.manifest.n_rows
    K = np.full((n, n), np.nan)
    for a, b in store.tiles:
        rows, columns = store.cuts((a, b))
        K[rows, columns] = store.read((a, b))
        K[columns, rows] = K[rows, columns].T
    return K


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_build_stores_the_kernel_of_rows_as_it_sees_them(
    capsys, npy, path, table, kernel, standardize
):
    options = ["--kernel", kernel, "--dtype", "float64"]
    options += ["--standardize"] if standardize else []
    code, out, err = gram(capsys, "build", npy, "--out", path, *options)
    assert (code, err) == (0, "")
    assert "15 of 15 tiles were missing; now written" in out
    z = table - table.mean(axis=0)
    z = z / z.std(axis=0) if standardize else z
    # Root mean squared distance of two rows drawn with replacement.
    bandwidth = np.sqrt(((z[:, None] - z) ** 2).sum(axis=2).mean())
    if not standardize and kernel in ("polynomial", "cosine", "angular"):
        z = table  # moving the rows would change their distances
    expected = Kernel(kernel, bandwidth=bandwidth).block(z, z)
    scale = abs(expected).max()
    np.testing.assert_allclose(whole(GramStore(path)), expected, rtol=1e-6, atol=1e-8 * scale)
    assert ("root mean squared distance" in out) == (kernel in ("rbf", "laplacian", "angular"))
    assert [child.name for child in path.parent.iterdir()] == ["gram"]


def test_build_options_reach_the_kernel(capsys, npy, path):
    options = "--kernel polynomial --degree 2 --coef0 0.5 --bandwidth 3"
    code, found = as_json(capsys, "build", npy, "--out", path, *options.split())
    assert code == 0
    expected = {"name": "polynomial", "degree": 2, "coef0": 0.5, "bandwidth": 3}
    assert expected.items() <= found["kernel"].items()
    assert found["bandwidth"] == "given"
    assert (found["dtype"], found["n_written"], found["n_missing"]) == ("float32", N_TILES, 0)
    assert GramStore(path).manifest.kernel == found["kernel"]


@pytest.mark.parametrize("kind", ["npy", "npz", "zarr", "csv", "parquet"])
def test_inputs(capsys, tmp_path, npy, path, table, kind):
    source = tmp_path / f"x.{kind}"
    frame = pd.DataFrame(table, columns=list("abcd")).assign(other=1.5)
    if kind == "npz":
        np.savez(source, X=table)
    elif kind == "zarr":
        zarr.create_array(source, data=table, chunks=(40, P))
    elif kind == "csv":
        frame.to_csv(source, index=False)
    elif kind == "parquet":
        frame.to_parquet(source)
    columns = ["--columns", "a,b,c,d"] if kind in ("csv", "parquet") else []
    assert gram(capsys, "build", source, "--out", path, *columns)[0] == 0
    assert gram(capsys, "build", npy, "--out", tmp_path / "same")[0] == 0
    np.testing.assert_allclose(whole(GramStore(path)), whole(GramStore(tmp_path / "same")), 1e-6)
    # The columns are those of the store.
    assert gram(capsys, "verify", path, "--data", source)[0] == 0
    GramStore(path).tile_path((1, 2)).unlink()
    assert gram(capsys, "repair", path, source)[1] == "mended: 1/2\n"


def test_build_twice_resumes(capsys, npy, path):
    assert gram(capsys, "build", npy, "--out", path, "--standardize")[0] == 0
    store = GramStore(path)
    code, out, _ = gram(capsys, "build", npy, "--out", path, "--standardize")
    assert code == 0
    assert "0 of 15 tiles were missing; nothing to do" in out
    kept = {tile: store.tile_path(tile).stat().st_ino for tile in store.tiles[3:]}
    for tile in store.tiles[:3]:
        store.tile_path(tile).unlink()
    code, found = as_json(capsys, "build", npy, "--out", path, "--standardize")
    assert (code, found["n_written"], found["n_missing"]) == (0, 3, 0)
    assert {tile: store.tile_path(tile).stat().st_ino for tile in kept} == kept
    assert gram(capsys, "verify", path, "--data", npy)[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--standardize", "standardize is False there and True here"),
        ("--kernel laplacian", "the kernel's name is rbf there and laplacian here"),
        ("--bandwidth 2", "the kernel's bandwidth is"),
        ("--dtype float64", "dtype is float32 there and float64 here"),
    ],
)
def test_build_refuses_another_store_at_the_path(capsys, npy, path, options, message):
    gram(capsys, "build", npy, "--out", path)
    code, out, err = gram(capsys, "build", npy, "--out", path, *options.split())
    assert (code, out) == (2, "")
    assert err.startswith("daskmm: error: ")
    assert "holds another Gram matrix" in err
    assert message in err
    assert gram(capsys, "verify", path, "--data", npy)[0] == 0


def test_build_refuses_changed_data_and_names_the_tiles(capsys, tmp_path, npy, path, table):
    gram(capsys, "build", npy, "--out", path)
    changed = table.copy()
    changed[70] += 1
    np.save(tmp_path / "changed.npy", changed)
    code, _, err = gram(capsys, "build", tmp_path / "changed.npy", "--out", path)
    assert code == 2
    assert "the data have changed (rows of tiles 2/*)" in err


def test_verify_names_the_tiles(capsys, npy, path):
    gram(capsys, "build", npy, "--out", path)
    code, out, err = gram(capsys, "verify", path)
    assert (code, out, err) == (0, "all 15 tiles are sound\n", "")
    code, out, _ = gram(capsys, "verify", path, "--data", npy)
    assert (code, out) == (
        0,
        "all 15 tiles are sound, and the data are those they were made from\n",
    )
    store = GramStore(path)
    flip(store.tile_path((0, 3)))
    store.tile_path((2, 2)).write_bytes(b"short")
    store.tile_path((1, 4)).unlink()
    code, out, err = gram(capsys, "verify", path)
    assert (code, err) == (1, "")
    assert "damaged: 0/3, 2/2\nmissing: 1/4\n" in out
    assert f"daskmm gram repair {path} INPUT" in out
    faults = {"0/3": "damaged", "1/4": "missing", "2/2": "damaged"}
    assert as_json(capsys, "verify", path) == (
        1,
        {"store": str(path), "n_tiles": N_TILES, "faults": faults},
    )
    code, found = as_json(capsys, "repair", path, npy)
    assert (code, found["mended"]) == (0, ["0/3", "1/4", "2/2"])
    assert as_json(capsys, "verify", path, "--data", npy)[1]["faults"] == {}
    assert gram(capsys, "repair", path, npy) == (0, "nothing to mend\n", "")


def test_verify_and_repair_refuse_changed_data(capsys, tmp_path, npy, path, table):
    gram(capsys, "build", npy, "--out", path, "--standardize")
    changed = table.copy()
    changed[5, 0] = np.nan
    np.save(tmp_path / "changed.npy", changed)
    code, out, _ = gram(capsys, "verify", path, "--data", tmp_path / "changed.npy")
    assert code == 1
    assert "the data have changed: 0/0, 0/1, 0/2, 0/3, 0/4\n" in out
    assert "build a new store" in out
    GramStore(path).tile_path((1, 1)).unlink()
    code, out, err = gram(capsys, "repair", path, tmp_path / "changed.npy")
    assert (code, out) == (2, "")
    assert "cannot be repaired: the data have changed (rows of tiles 0/*)" in err
    assert GramStore(path).missing() == [(1, 1)]


@pytest.mark.parametrize("cut", [np.s_[:100], np.s_[:, :3]])
def test_data_of_another_shape(capsys, tmp_path, npy, path, table, cut):
    gram(capsys, "build", npy, "--out", path)
    np.save(tmp_path / "other.npy", table[cut])
    assert as_json(capsys, "verify", path, "--data", tmp_path / "other.npy")[0] == 1
    code, _, err = gram(capsys, "repair", path, tmp_path / "other.npy")
    assert code == 2
    assert ("n_rows is 130 there and 100 here" in err) or ("n_features is 4 there and 3" in err)
    assert gram(capsys, "build", tmp_path / "other.npy", "--out", path)[0] == 2


def test_info(capsys, npy, path):
    gram(capsys, "build", npy, "--out", path, "--standardize", "--bandwidth", "1.5")
    GramStore(path).tile_path((0, 1)).unlink()
    code, out, err = gram(capsys, "info", path)
    assert (code, err) == (0, "")
    assert "Gram matrix of 130 rows × 4 features" in out
    assert "rbf, bandwidth 1.5, of standardised features" in out
    assert "15 tiles of 32 rows, float32" in out
    assert "1 missing" in out
    found = as_json(capsys, "info", path)[1]
    expected = {
        "n_rows": N,
        "n_features": P,
        "n_tiles": N_TILES,
        "n_missing": 1,
        "dtype": "float32",
    }
    assert expected.items() <= found.items()
    assert found["standardize"] is True
    assert found["bytes"] == 14 * (4 * TILE**2 + 4)


def test_stores_made_from_python(capsys, npy, path, table):
    build(path, table, Kernel("linear"), tile_rows=TILE)
    assert gram(capsys, "verify", path)[0] == 0
    found = as_json(capsys, "info", path)[1]
    assert (found["standardize"], found["bandwidth"]) == (None, None)
    for refused in (["verify", path, "--data", npy], ["repair", path, npy]):
        code, _, err = gram(capsys, *refused)
        assert code == 2
        assert "does not say how its rows came from the data" in err


def inner(a, b):
    return a @ b.T


def test_a_callable_kernel_is_repaired_from_python(capsys, npy, path, table):
    kernel = Kernel("callable", function=inner)
    store = build(path, table, kernel, tile_rows=TILE)
    assert "kernel: inner" in gram(capsys, "info", path)[1]
    store.tile_path((0, 0)).unlink()
    code, _, err = gram(capsys, "repair", path, npy)
    assert code == 2
    assert "is the function inner" in err
    assert repair(path, table, kernel) == ["0/0"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--bandwidth 0", "--bandwidth must be positive"),
        ("--bandwidth nan", "--bandwidth must be positive"),
        ("--kernel polynomial --degree -1", "--degree must be positive"),
        ("--kernel polynomial --coef0 inf", "--coef0 must be finite"),
        ("--kernel sigmoid", "invalid choice: 'sigmoid'"),
        ("--dtype float16", "invalid choice: 'float16'"),
        ("--columns a", "no named columns"),
        ("--kernel polynomial --degree 40", "beyond the range of float32"),
        (
            "--kernel polynomial --degree 3 --coef0 -1000000000",
            "diagonal must be finite and not negative",
        ),
    ],
)
def test_refused_options(capsys, npy, path, options, message):
    code, out, err = gram(capsys, "build", npy, "--out", path, *options.split())
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_refused_paths(capsys, tmp_path, npy, path):
    (tmp_path / "folder").mkdir()
    for arguments in (
        ["verify", tmp_path / "folder"],
        ["info", tmp_path / "folder"],
        ["repair", tmp_path / "folder", npy],
        ["build", npy, "--out", tmp_path / "folder"],
    ):
        code, _, err = gram(capsys, *arguments)
        assert code == 2
        assert "is not a Gram store" in err
    assert "does not exist" in gram(capsys, "verify", tmp_path / "absent")[2]
    assert "does not exist" in gram(capsys, "build", tmp_path / "absent.npy", "--out", path)[2]
    assert not path.exists()


def test_data_that_are_not_finite(capsys, tmp_path, path, table):
    spoiled = table.copy()
    spoiled[17, 2] = np.nan
    np.save(tmp_path / "nan.npy", spoiled)
    code, _, err = gram(capsys, "build", tmp_path / "nan.npy", "--out", path)
    assert code == 2
    assert "contains NaN" in err
    assert "row 17" in err
    assert not path.exists()


@pytest.mark.parametrize("action", ["build", "verify", "repair", "info"])
def test_help_teaches(capsys, action):
    code, out, _ = gram(capsys, action, "--help")
    assert code == 0
    assert "example:" in out
    assert f"daskmm gram {action}" in out


def test_moved_stores_still_work(capsys, tmp_path, npy, path):
    gram(capsys, "build", npy, "--out", path)
    shutil.move(path, tmp_path / "moved")
    assert gram(capsys, "verify", tmp_path / "moved", "--data", npy)[0] == 0


def test_a_matrix_that_the_disk_has_no_room_for_is_refused_before_reading(capsys, tmp_path):
    source = tmp_path / "long.npy"
    np.lib.format.open_memmap(source, "w+", np.int8, (30_000_000, 1))  # a file without contents
    with raise_if_computes():
        code, _, err = gram(capsys, "build", source, "--out", tmp_path / "a" / "gram")
    assert code == 2
    assert "; the matrix takes 1,800 TB. Free space, or choose another --out." in err
    assert not (tmp_path / "a").exists()
