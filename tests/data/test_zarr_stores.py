"""Tables in stores of icechunk and obstore, opened by the user and by address."""

import pickle
import sys
import threading
from collections import Counter

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from zarr.storage import ObjectStore, WrapperStore

from daskmm import KMeans
from daskmm.cli.main import main
from daskmm.data.blocks import as_dask_array
from daskmm.data.files import open_data

ROWS = np.random.default_rng(0).normal(size=(400, 3)) + np.repeat([[0.0], [9.0]], 200, axis=0)
CHUNKS = {f"x/c/{chunk}/0" for chunk in range(8)}


def icechunk_store(folder):
    icechunk = pytest.importorskip("icechunk", reason="needs icechunk (pip install icechunk)")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)))
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="x", data=ROWS, chunks=(50, 3))
    session.commit("rows")
    return repository.readonly_session("main").store


def obstore_store(folder):
    stores = pytest.importorskip("obstore.store", reason="needs obstore (pip install obstore)")
    local = stores.LocalStore(folder, mkdir=True)
    zarr.create_array(ObjectStore(local), name="x", data=ROWS, chunks=(50, 3))
    return ObjectStore(local, read_only=True)


STORES = {"icechunk": icechunk_store, "obstore": obstore_store}


class Counting(WrapperStore):
    """A store that counts how often each chunk is read."""

    def __init__(self, store):
        super().__init__(store)
        self.reads, self.lock = Counter(), threading.Lock()

    async def get(self, key, prototype, byte_range=None):
        with self.lock:
            self.reads[key] += 1
        return await super().get(key, prototype, byte_range)


@pytest.mark.parametrize("package", STORES)
@pytest.mark.parametrize("opened", ["zarr", "dask"])
def test_each_chunk_of_a_given_store_is_read_once_per_pass(package, opened, tmp_path):
    store = Counting(STORES[package](tmp_path / "store"))
    array = zarr.open_array(store, path="x", mode="r")
    table = array if opened == "zarr" else da.from_zarr(array)
    model = KMeans(2, n_init=1, random_state=0)
    store.reads.clear()
    model.fit(table)
    reads = {key: count for key, count in store.reads.items() if key in CHUNKS}
    assert reads == dict.fromkeys(CHUNKS, model.n_passes_)
    plain = KMeans(2, n_init=1, random_state=0).fit(da.from_array(ROWS, chunks=(50, 3)))
    np.testing.assert_array_equal(model.labels_.compute(), plain.labels_.compute())
    np.testing.assert_allclose(model.cluster_centers_, plain.cluster_centers_, rtol=1e-12)


@pytest.mark.parametrize("package", STORES)
def test_tables_of_a_store_are_opened_by_address(package, tmp_path, capsys):
    STORES[package](tmp_path / "store")
    address = f"{package}+file://{tmp_path / 'store'}::x"
    with dask.config.set(scheduler="sync"):
        table = pickle.loads(pickle.dumps(open_data(address, chunks=100)))
        np.testing.assert_array_equal(table.compute(), ROWS)
    run = tmp_path / "run"
    quick = ["--model", "kmeans", "--no-pictures", "--json"]
    assert main(["fit", address, "-k", "2", "--out", str(run), *quick]) == 0
    assert '"cluster_sizes": [200, 200]' in capsys.readouterr().out
    assert main(["fit", f"{address}y", "-k", "2", "--out", f"{run}2"]) == 2
    assert "has no array named 'xy'; it has x." in capsys.readouterr().err


@pytest.mark.parametrize("package", STORES)
def test_an_address_without_its_package_names_the_package(package, tmp_path, capsys, monkeypatch):
    for name in (package, f"{package}.store"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["fit", f"{package}+file:///x::x", "-k", "2", "--out", str(tmp_path / "run")]) == 2
    assert f"pip install {package}." in capsys.readouterr().err


def test_an_unknown_address_of_icechunk_is_refused():
    pytest.importorskip("icechunk", reason="needs icechunk (pip install icechunk)")
    with pytest.raises(ValueError, match=r"icechunk\+ftp://x cannot be opened: addresses are"):
        open_data("icechunk+ftp://x")


def test_few_chunks_remain_as_many_blocks_for_the_threads_of_a_cluster():
    for n_chunks, n_blocks in ((8, 8), (64, 16)):
        store = zarr.zeros((64_000, 2), chunks=(64_000 // n_chunks, 2))
        assert as_dask_array(store).numblocks == (n_blocks, 1)
