"""Gram stores and sweeps: products, faults of every kind, and what survives them."""

import errno
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from _gram_faults import verify
from _sweep import Disk

import daskmm.gram.precomputed
from daskmm.gram import build as gram
from daskmm.gram import matrices as sweeps
from daskmm.gram.build import build
from daskmm.gram.matrices import RecomputedGram, StoredGram
from daskmm.gram.precomputed import BlockedGram, precomputed
from daskmm.gram.store import GramStore, GramStoreError, opened, tile_name
from daskmm.numerics.kernels import Kernel
from daskmm.numerics.options import KERNELS

N, P, TILE = 130, 4, 32
SIDE = 5  # tiles along a side: four of 32 rows and one of 2
N_TILES = SIDE * (SIDE + 1) // 2
RBF = Kernel("rbf", bandwidth=2.0)


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).normal(size=(N, P))


@pytest.fixture
def store(tmp_path, rows):
    return build(tmp_path / "gram", rows, RBF, tile_rows=TILE)


def memberships(n=N, k=3):
    return np.random.default_rng(1).dirichlet(np.ones(n), size=k).T


def states(store):
    """Inode and time of change of each tile that is there."""
    found = {}
    for tile in store.tiles:
        if store.tile_path(tile).exists():
            state = store.tile_path(tile).stat()
            found[tile] = state.st_ino, state.st_mtime_ns
    return found


def naive(kernel, x, y):
    """Kernel values one by one."""
    return np.array([[scalar(kernel, a, b) for b in y] for a in x])


def scalar(kernel, a, b):
    if kernel.unit_diagonal:
        plain = Kernel(**{**vars(kernel), "unit_diagonal": False})
        lengths = scalar(plain, a, a) * scalar(plain, b, b)
        return scalar(plain, a, b) / np.sqrt(lengths) if lengths > 0 else 0.0
    h = kernel.bandwidth
    if kernel.name == "rbf":
        return np.exp(-sum((a - b) ** 2) / (2 * h * h))
    if kernel.name == "laplacian":
        return np.exp(-sum(abs(a - b)) / h)
    if kernel.name == "polynomial":
        return (sum(a * b) + kernel.coef0) ** kernel.degree
    if kernel.name == "linear":
        return sum(a * b)
    lengths = np.sqrt(sum(a * a) * sum(b * b))
    cosine = sum(a * b) / lengths if lengths > 0 else 0.0
    return cosine if kernel.name == "cosine" else np.exp(-np.arccos(min(1, cosine)) / (2 * h * h))


# Kernel functions.


@pytest.mark.parametrize("unit_diagonal", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_equal_naive_loops(name, unit_diagonal):
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(9, 3)), rng.normal(size=(7, 3))
    kernel = Kernel(name, bandwidth=1.7, degree=2, coef0=0.5, unit_diagonal=unit_diagonal)
    np.testing.assert_allclose(kernel.block(x, y), naive(kernel, x, y), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("unit_diagonal", [False, True])
@pytest.mark.parametrize("name", [*KERNELS, "callable"])
def test_diagonal_is_that_of_the_block(name, unit_diagonal):
    x = np.random.default_rng(3).normal(size=(8, 3))
    x[4] = 0.0  # has no direction, and no length in some feature spaces
    kernel = Kernel(
        name,
        bandwidth=1.7,
        coef0=0.0,
        unit_diagonal=unit_diagonal,
        function=(lambda a, b: 3 * a @ b.T) if name == "callable" else None,
    )
    # acos is steep at 1: a cosine of 1 − 1e−16 is an angle of 1.5e−8.
    tolerance = 1e-7 if name == "angular" else 1e-12
    np.testing.assert_allclose(
        kernel.diagonal(x), np.diag(kernel.block(x, x.copy())), rtol=tolerance, atol=1e-14
    )
    if unit_diagonal:
        np.testing.assert_array_equal(np.delete(kernel.diagonal(x), 4), 1)


def test_callable_of_a_wrong_shape_is_refused(rows):
    kernel = Kernel("callable", function=lambda a, b: (a @ b.T)[:, :1])
    with pytest.raises(ValueError, match=r"shape \(130, 1\) for blocks of 130 and 7 rows"):
        kernel.block(rows, rows[:7])


def linear_by_hand(a, b):
    return a @ b.T


def test_describe_names_the_function():
    described = Kernel("callable", function=linear_by_hand).describe()
    assert described["function"] == "linear_by_hand"
    assert Kernel("rbf").describe()["bandwidth"] == 1.0
    assert "function" not in Kernel("rbf").describe()
    kernel = pickle.loads(pickle.dumps(Kernel("callable", function=linear_by_hand)))
    assert kernel.function is linear_by_hand


# Products.


@pytest.mark.in_turn("dtype")
@pytest.mark.parametrize("tile_rows", [1, 17, 64, 65, N - 1, N, N + 1, 1000])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_stored_product_equals_the_dense_one(tmp_path, rows, tile_rows, dtype):
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    if tile_rows == 1:
        rows = rows[:20]
    kernel = Kernel("polynomial", degree=2)
    store = build(tmp_path / "gram", rows, kernel, dtype=dtype, tile_rows=tile_rows)
    dense = kernel.block(rows, rows)
    right = memberships(len(rows))
    source = StoredGram(store, rows, kernel, lazy=False)
    product = source.product(right)
    assert product.dtype == np.float64
    np.testing.assert_allclose(product, dense @ right, rtol=0, atol=tolerance * abs(dense).max())
    np.testing.assert_allclose(source.diagonal, np.diag(dense), rtol=1e-12)
    assert source.n_sweeps == 1


@pytest.mark.parametrize("tile_rows", [17, 65, N, 1000])
def test_recomputed_product_equals_the_dense_one(rows, monkeypatch, tile_rows):
    monkeypatch.setattr(sweeps, "TILE_ROWS", tile_rows)
    dense = RBF.block(rows, rows)
    source = RecomputedGram(rows, RBF, lazy=False)
    np.testing.assert_allclose(source.product(memberships()), dense @ memberships(), atol=1e-12)
    assert source.n_sweeps == 1


def test_threads_that_begin_together_open_a_store_once(store, monkeypatch):
    made, begin = [], threading.Barrier(4)

    def slow(path):
        made.append(path)
        time.sleep(0.05)
        return GramStore(path)

    def open_it(_):
        begin.wait()
        return opened(store.path)

    monkeypatch.setattr("daskmm.gram.store.GramStore", slow)
    store.path.joinpath("zarr.json").touch()  # as if another store had replaced it
    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(open_it, range(4)))
    assert len(found) == len(made) == 1


def test_products_by_dask_tasks_are_those_of_threads(tmp_path, rows):
    with dask.config.set(scheduler="synchronous"):
        store = build(tmp_path / "gram", rows, RBF, dtype="float64", tile_rows=TILE, lazy=True)
        product = StoredGram(store, rows, RBF, lazy=True).product(memberships())
        recomputed = RecomputedGram(rows, RBF, lazy=True).product(memberships())
    here = build(tmp_path / "here", rows, RBF, dtype="float64", tile_rows=TILE)
    same = StoredGram(here, rows, RBF, lazy=False).product(memberships())
    np.testing.assert_allclose(product, same, rtol=1e-13)
    np.testing.assert_allclose(recomputed, same, rtol=1e-12)


def sources(tmp_path, rows):
    store = build(tmp_path / "gram", rows, RBF, tile_rows=TILE)
    yield StoredGram(store, rows, RBF, lazy=False)
    yield RecomputedGram(rows, RBF, lazy=False)
    yield precomputed(RBF.block(rows, rows))


def test_submatrices_and_columns_equal_those_of_the_dense_matrix(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(sweeps, "TILE_ROWS", TILE)
    dense = RBF.block(rows, rows)
    chosen = np.array([129, 3, 64])
    for source in sources(tmp_path, rows):
        np.testing.assert_allclose(source.submatrix(chosen), dense[np.ix_(chosen, chosen)])
        np.testing.assert_allclose(source.columns(chosen), dense[:, chosen])


def test_only_upper_tiles_are_on_disk_and_each_is_read_once(store, rows, monkeypatch):
    files = {
        (int(path.parent.name), int(path.name)) for path in (store.path / "tiles/c").glob("*/*")
    }
    assert files == set(store.tiles) == {(a, b) for a in range(SIDE) for b in range(a, SIDE)}
    reads = Counter()
    read = GramStore.read

    def counted(self, tile):
        reads[tile] += 1
        return read(self, tile)

    monkeypatch.setattr(GramStore, "read", counted)
    source = StoredGram(store, rows, RBF, lazy=False)
    source.product(memberships())
    assert reads == dict.fromkeys(store.tiles, 1)
    source.submatrix(np.arange(5))
    source.columns(np.arange(5))
    assert sum(reads.values()) == N_TILES


def test_an_empty_tile_is_never_taken_for_zeros(store):
    store.tile_path((1, 3)).unlink()
    with pytest.raises(GramStoreError, match=r"tile 1/3 of .* is missing.*computes it again"):
        store.read((1, 3))


# Interrupted builds.


def test_building_again_writes_nothing(store, rows):
    before = states(store)
    assert len(before) == N_TILES
    build(store.path, rows, RBF, tile_rows=TILE)
    assert states(store) == before


def test_resume_after_an_exception_writes_only_missing_tiles(tmp_path, rows, monkeypatch):
    tile_of = gram.kernel_tile
    left = iter(range(7))

    def failing(*arguments):
        if next(left, None) is None:
            raise RuntimeError("no more")
        return tile_of(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(gram, "kernel_tile", failing)
        with pytest.raises(RuntimeError, match="no more"):
            build(tmp_path / "gram", rows, RBF, tile_rows=TILE)
    store = GramStore(tmp_path / "gram")
    before = states(store)
    assert len(before) == 7
    assert len(store.missing()) == N_TILES - 7
    made = []
    monkeypatch.setattr(gram, "kernel_tile", lambda *a: made.append(a[3]) or tile_of(*a))
    build(store.path, rows, RBF, tile_rows=TILE)
    assert sorted(made) == sorted(set(store.tiles) - set(before))
    after = states(store)
    assert len(after) == N_TILES
    assert {tile: after[tile] for tile in before} == before
    assert verify(store.path) == {}


KILLED = """
import sys, time
import numpy as np
from daskmm.gram import build as gram
from daskmm.numerics.kernels import Kernel

tile_of = gram.kernel_tile

def slowly(*arguments):
    time.sleep(0.1)
    return tile_of(*arguments)

gram.kernel_tile = slowly
gram.build(sys.argv[1], np.load(sys.argv[2]), Kernel("rbf", bandwidth=2.0), tile_rows=32)
"""


def test_resume_after_a_kill_writes_only_missing_tiles(tmp_path, rows):
    np.save(tmp_path / "rows.npy", rows)
    path = tmp_path / "gram"
    process = subprocess.Popen([sys.executable, "-c", KILLED, path, tmp_path / "rows.npy"])
    deadline = time.monotonic() + 60
    while len(list(path.glob("tiles/c/*/?"))) < 4:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    store = GramStore(path)
    before = states(store)
    assert 4 <= len(before) < N_TILES
    assert set(verify(path).values()) == {"missing"}
    store = build(path, rows, RBF, tile_rows=TILE)
    after = states(store)
    assert {tile: after[tile] for tile in before} == before
    assert len(after) == N_TILES
    assert verify(path) == {}
    whole = build(tmp_path / "whole", rows, RBF, tile_rows=TILE)
    for tile in store.tiles:
        np.testing.assert_array_equal(store.read(tile), whole.read(tile))


@pytest.mark.parametrize("harm", [lambda path: truncate(path), lambda path: empty(path)])
def test_resume_finishes_tiles_that_were_begun(store, rows, harm):
    """As a kill leaves them where files are written in place."""
    before = states(store)
    for tile in [(0, 1), (4, 4)]:
        harm(store.tile_path(tile))
    assert store.missing() == [(0, 1), (4, 4)]
    build(store.path, rows, RBF, tile_rows=TILE)
    assert verify(store.path) == {}
    after = states(store)
    assert {tile for tile in after if after[tile] != before[tile]} == {(0, 1), (4, 4)}


def test_full_disk_keeps_what_is_written(tmp_path, rows, monkeypatch):
    left = iter(range(6))
    setitem = zarr.Array.__setitem__

    def filling(self, key, value):
        if self.ndim == 2 and next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        setitem(self, key, value)

    with monkeypatch.context() as patch:
        patch.setattr(zarr.Array, "__setitem__", filling)
        with pytest.raises(OSError, match=r"tile \d/\d .*No space left.*are kept") as caught:
            build(tmp_path / "gram", rows, RBF, tile_rows=TILE)
    assert caught.value.errno == errno.ENOSPC
    before = states(GramStore(tmp_path / "gram"))
    assert len(before) == 6
    store = build(tmp_path / "gram", rows, RBF, tile_rows=TILE)
    after = states(store)
    assert {tile: after[tile] for tile in before} == before
    assert verify(store.path) == {}


def test_disk_full_at_the_very_start_leaves_nothing(tmp_path, rows, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(zarr, "create_array", full)
    with pytest.raises(OSError, match="No space left"):
        build(tmp_path / "gram", rows, RBF, tile_rows=TILE)
    assert list(tmp_path.iterdir()) == []


# Faults.


def test_a_disk_that_cannot_be_read_is_not_called_a_damaged_store(store, monkeypatch):
    def read():
        again = GramStore(store.path)
        return again.diagonal, again.read((0, 0))

    with Disk(store.path, "reading", 0).installed(monkeypatch) as disk:
        read()
    assert disk.met >= 4
    for step in range(1, disk.met + 1):
        with (
            Disk(store.path, "reading", step).installed(monkeypatch),
            pytest.raises(OSError, match=r"gram could not be read \(Input/output error\)"),
        ):
            read()


def test_a_lack_of_memory_is_not_called_a_damaged_store(store, monkeypatch):
    def missing(*arguments, **options):
        raise MemoryError

    for name in ("open_group", "open_array"):
        with monkeypatch.context() as patch:
            patch.setattr(zarr, name, missing)
            with pytest.raises(MemoryError):
                GramStore(store.path)


@pytest.mark.parametrize("step", [1, 10, 20])
def test_a_store_that_cannot_be_created_is_named(tmp_path, rows, monkeypatch, step):
    path = tmp_path / "gram"
    with (
        Disk(tmp_path, "full", step).installed(monkeypatch),
        pytest.raises(OSError, match=r"gram could not be written \(No space left on device\)"),
    ):
        build(path, rows, RBF, tile_rows=TILE)
    assert not list(tmp_path.iterdir())


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def empty(path):
    path.write_bytes(b"")


def delete(path):
    path.unlink()


def shorten_by_whole_values(path):
    path.write_bytes(path.read_bytes()[: 4 * TILE])


@pytest.mark.in_turn("tile")
@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (flip, "damaged"),
        (truncate, "damaged"),
        (shorten_by_whole_values, "damaged"),
        (empty, "damaged"),
        (delete, "missing"),
    ],
)
@pytest.mark.parametrize("tile", [(0, 0), (1, 3), (2, 4), (4, 4)])
def test_faults_are_named_and_mended_by_a_sweep(store, rows, harm, fault, tile, caplog):
    good = {other: store.read(other) for other in store.tiles}
    before = states(store)
    harm(store.tile_path(tile))
    assert verify(store.path) == {tile_name(tile): fault}
    with pytest.raises(GramStoreError, match=rf"tile {tile_name(tile)} of .* is {fault}"):
        store.read(tile)
    product = StoredGram(store, rows, RBF, lazy=False).product(memberships())
    np.testing.assert_allclose(product, RBF.block(rows, rows) @ memberships(), rtol=1e-6)
    assert f"tiles {tile_name(tile)} of {store.path} were faulty" in caplog.text
    assert verify(store.path) == {}
    after = states(store)
    assert {t: s for t, s in after.items() if t != tile} == {
        t: s for t, s in before.items() if t != tile
    }
    for other in store.tiles:
        np.testing.assert_array_equal(store.read(other), good[other])


@pytest.mark.parametrize("lazy", [False, True])
def test_several_faults_are_found_and_mended(store, rows, lazy):
    flip(store.tile_path((0, 2)))
    truncate(store.tile_path((3, 3)))
    delete(store.tile_path((1, 4)))
    assert verify(store.path) == {"0/2": "damaged", "1/4": "missing", "3/3": "damaged"}
    StoredGram(store, rows, RBF, lazy=lazy).product(memberships())
    assert verify(store.path) == {}


def test_a_fault_that_comes_again_is_raised(store, rows, monkeypatch):
    flip(store.tile_path((0, 2)))
    monkeypatch.setattr(gram, "fill", lambda *_: None)
    with pytest.raises(GramStoreError, match=r"tile 0/2 of .* is damaged"):
        StoredGram(store, rows, RBF, lazy=False).product(memberships())


@pytest.mark.parametrize(("harm", "fault"), [(flip, "damaged"), (delete, "missing")])
def test_faults_of_the_diagonal_are_found_and_mended(store, rows, harm, fault):
    harm(store.path / "diagonal/c/0")
    assert verify(store.path) == {"diagonal": fault}
    with pytest.raises(GramStoreError, match=f"the diagonal of .* is {fault}"):
        StoredGram(GramStore(store.path), rows, RBF, lazy=False)
    again = build(store.path, rows, RBF, tile_rows=TILE)
    assert verify(store.path) == {}
    np.testing.assert_array_equal(again.diagonal, RBF.diagonal(rows))


def test_leftovers_of_a_killed_write_are_removed(store, rows):
    stray = store.path / "tiles/c/0/0.1234.partial"
    stray.write_bytes(b"half")
    users = store.path / "tiles/c/0/thesis.partial"
    users.write_bytes(b"years of work")
    flip(store.tile_path((0, 2)))
    StoredGram(store, rows, RBF, lazy=False).product(memberships())
    assert not stray.exists()
    assert users.exists()


def test_changed_data_are_refused(store, rows):
    changed = rows.copy()
    changed[70, 1] += 1e-9  # in tile row 2
    before = states(store)
    with pytest.raises(GramStoreError, match=r"the data have changed \(rows of tiles 2/\*\)"):
        build(store.path, changed, RBF, tile_rows=TILE)
    assert states(store) == before


def test_data_of_another_shape_are_refused(store, rows):
    with pytest.raises(GramStoreError, match="n_rows is 130 there and 129 here"):
        build(store.path, rows[:-1], RBF, tile_rows=TILE)
    with pytest.raises(GramStoreError, match="n_features is 4 there and 2 here"):
        build(store.path, rows[:, :2], RBF, tile_rows=TILE)


@pytest.mark.parametrize(
    ("kernel", "options", "message"),
    [
        (Kernel("laplacian", bandwidth=2.0), {}, "the kernel's name is rbf there and laplacian"),
        (Kernel("rbf", bandwidth=2.5), {}, "the kernel's bandwidth is 2.0 there and 2.5 here"),
        (Kernel("rbf", 2.0, unit_diagonal=True), {}, "unit_diagonal is False there and True"),
        (
            Kernel("callable", 2.0, function=linear_by_hand),
            {},
            "the kernel's function is None there and linear_by_hand here",
        ),
        (RBF, {"dtype": "float64"}, "dtype is float32 there and float64 here"),
        (RBF, {"tile_rows": 64}, "tile_rows is 32 there and 64 here"),
    ],
)
def test_another_matrix_at_the_path_is_refused_and_named(store, rows, kernel, options, message):
    before = states(store)
    with pytest.raises(GramStoreError, match=f"holds another Gram matrix: .*{message}"):
        build(store.path, rows, kernel, **{"tile_rows": TILE, **options})
    assert states(store) == before
    assert verify(store.path) == {}


def test_a_store_that_replaces_another_at_its_path_is_read_afresh(store, rows):
    """What is remembered of a store does not outlive it."""
    StoredGram(store, rows, RBF, lazy=False).product(memberships())
    shutil.rmtree(store.path)
    fewer = rows[:100]
    again = build(store.path, fewer, RBF, dtype="float64", tile_rows=64)
    product = StoredGram(again, fewer, RBF, lazy=False).product(memberships(100))
    np.testing.assert_allclose(product, RBF.block(fewer, fewer) @ memberships(100), atol=1e-12)


def test_a_store_at_a_relative_path_is_found_from_another_folder(tmp_path, rows, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = build("gram", rows, RBF, tile_rows=TILE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    product = StoredGram(store, rows, RBF, lazy=False).product(memberships())
    np.testing.assert_allclose(product, RBF.block(rows, rows) @ memberships(), atol=1e-12)


def test_paths_that_are_no_store_are_refused(tmp_path, rows):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        GramStore(tmp_path / "absent")
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/mine").write_text("text")
    zarr.create_array(tmp_path / "array", shape=(3, 3), dtype="f8")
    zarr.create_group(tmp_path / "group")
    for name in ("file", "folder", "array", "group"):
        for attempt in (lambda path: build(path, rows, RBF), verify):
            with pytest.raises(GramStoreError, match="is not a Gram store"):
                attempt(tmp_path / name)
    assert (tmp_path / "file").read_text() == (tmp_path / "folder/mine").read_text() == "text"


def test_newer_version_is_refused(store):
    store.group.attrs["version"] = 2
    with pytest.raises(GramStoreError, match=r"has version 2 of the Gram format; .* reads 1"):
        GramStore(store.path)


@pytest.mark.parametrize("manifest", [{}, {"n_rows": 3, "fingerprints": []}, 7])
def test_damaged_manifest_is_refused(store, manifest):
    store.group.attrs["manifest"] = manifest
    with pytest.raises(GramStoreError, match="damaged description"):
        GramStore(store.path)


def test_truncated_metadata_are_refused(store):
    truncate(store.path / "zarr.json")
    with pytest.raises(GramStoreError, match="is not a Gram store"):
        GramStore(store.path)


def test_a_store_keeps_the_origin_of_its_rows(tmp_path, rows, store):
    assert store.origin is None
    build(tmp_path / "with", rows, RBF, tile_rows=TILE, origin={"mean": [0.1, 1 / 3]})
    assert GramStore(tmp_path / "with").origin == {"mean": [0.1, 1 / 3]}


# Kernels that fail.


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_kernel_that_is_not_finite_names_tile_and_entry(tmp_path, rows, monkeypatch, value):
    rows = rows.copy()
    rows[40, 0], rows[100, 0] = 77, 88

    def function(a, b):
        values = a @ b.T
        values[np.ix_(a[:, 0] == 77, b[:, 0] == 88)] = value
        return values

    kernel = Kernel("callable", function=function)
    message = rf"returned {value} in tile 1/3, entry \(8, 4\)"
    with pytest.raises(ValueError, match=message):
        build(tmp_path / "gram", rows, kernel, tile_rows=TILE)
    assert (1, 3) in GramStore(tmp_path / "gram").missing()
    monkeypatch.setattr(sweeps, "TILE_ROWS", TILE)
    source = RecomputedGram(rows, kernel, lazy=False)
    with pytest.raises(ValueError, match=message):
        source.product(memberships())


@pytest.mark.parametrize("unit_diagonal", [False, True])
def test_negative_diagonal_is_refused(tmp_path, rows, unit_diagonal):
    kernel = Kernel("callable", unit_diagonal=unit_diagonal, function=lambda a, b: -(a @ b.T))
    with pytest.raises(ValueError, match=r"returned -.* for row 0 with itself.*not negative"):
        build(tmp_path / "gram", rows, kernel, tile_rows=TILE)
    assert list(tmp_path.iterdir()) == []


def test_values_beyond_the_dtype_are_refused(tmp_path, rows):
    kernel = Kernel("polynomial", degree=12, coef0=1e4)
    with pytest.raises(ValueError, match=r"tile .*beyond the range of float32.*float64"):
        build(tmp_path / "gram", rows, kernel, tile_rows=TILE)
    shutil.rmtree(tmp_path / "gram")
    build(tmp_path / "gram", rows, kernel, dtype="float64", tile_rows=TILE)


# Precomputed matrices.


def test_precomputed_matrices_of_numpy_dask_and_zarr_are_multiplied(tmp_path, rows):
    K = RBF.block(rows, rows)
    stored = zarr.create_array(tmp_path / "k.zarr", data=K)
    for matrix in (K, da.from_array(K, chunks=50), stored, K.tolist(), K.astype("f4")):
        source = precomputed(matrix)
        assert source.diagonal.dtype == np.float64
        np.testing.assert_allclose(source.product(memberships()), K @ memberships(), atol=1e-7)


@pytest.mark.parametrize(
    "chunks", [(40, 40), (1000, 30), (30, -1), ((50, 0, 77), 127), ((1, 126), (126, 1))]
)
def test_a_large_precomputed_matrix_stays_in_its_blocks(monkeypatch, rows, chunks):
    monkeypatch.setattr(daskmm.gram.precomputed, "MEMORY_BYTES", 0)
    rows = rows[:127]
    K = RBF.block(rows, rows)
    right = memberships()[:127]
    source = precomputed(da.from_array(K, chunks=chunks))
    assert isinstance(source, BlockedGram)
    np.testing.assert_array_equal(source.diagonal, np.diag(K))
    np.testing.assert_allclose(source.product(right), K @ right, rtol=1e-13, atol=1e-15)
    chosen = np.array([5, 3, 99])
    np.testing.assert_array_equal(source.columns(chosen), K[:, chosen])
    np.testing.assert_array_equal(source.submatrix(chosen), K[np.ix_(chosen, chosen)])


def test_a_large_precomputed_zarr_array_stays_in_its_blocks(monkeypatch, tmp_path, rows):
    monkeypatch.setattr(daskmm.gram.precomputed, "MEMORY_BYTES", 0)
    K = RBF.block(rows, rows).astype("f4")
    stored = zarr.create_array(tmp_path / "k.zarr", data=K, chunks=(32, 32))
    source = precomputed(stored)
    expected = K.astype("f8") @ memberships()
    np.testing.assert_allclose(source.product(memberships()), expected, rtol=1e-13)


def spoiled(kind):
    K = np.eye(6)
    if kind == "asymmetric":
        K[2, 4] = 0.5
    elif kind == "diagonal":
        K[3, 3] = -0.1
    elif kind == "shape":
        K = K[:, :4]
    elif kind == "vector":
        K = K[0]
    else:
        K[1, 5] = K[5, 1] = float(kind)
    return K


@pytest.mark.parametrize("kept", ["memory", "gathered", "blocks"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("asymmetric", r"not symmetric: entries \(2, 4\) and \(4, 2\) differ by 0.5"),
        ("diagonal", "negative diagonal entry, -0.1, at 3"),
        ("nan", r"contains NaN or infinity at \(1, 5\)"),
        ("inf", r"contains NaN or infinity at \(1, 5\)"),
        ("shape", r"must be square, got shape \(6, 4\)"),
        ("vector", r"must be square, got shape \(6,\)"),
    ],
)
def test_a_precomputed_matrix_that_is_no_gram_matrix_is_refused(monkeypatch, kind, message, kept):
    if kept == "blocks":
        monkeypatch.setattr(daskmm.gram.precomputed, "MEMORY_BYTES", 0)
    K = spoiled(kind)
    with pytest.raises(ValueError, match=message):
        precomputed(K if kept == "memory" else da.from_array(K, chunks=4))
