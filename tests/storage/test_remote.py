"""Models, labels and run folders on object stores."""

import dask.array as da
import fsspec
import numpy as np
import pytest
import zarr

from daskmm import KernelPowerKMeans, KMeans, PowerKMeans, load
from daskmm.cli.main import main
from daskmm.engine.labels import write_labels
from daskmm.storage.remote import Mirror, check_new, is_remote, local_path, patiently

X = np.random.default_rng(0).normal(size=(300, 3))
PLAIN = {"standardize": False, "random_state": 0}
QUICK = ["-k", "3", "--no-standardize", "--no-pictures", "--quiet"]


@pytest.fixture
def url():
    """A folder of a store in this process' memory."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield "memory://bucket"
    system.store.clear()


@pytest.mark.parametrize(
    ("path", "remote"),
    [
        ("s3://bucket/model", True),
        ("s3:/bucket/model", True),  # as pathlib writes it
        ("gs://a", True),
        ("/tmp/a", False),
        ("a/b", False),
        ("file:///tmp/a", False),
        ("C:\\models", False),
        ("a:b", False),
    ],
)
def test_urls_of_object_stores_are_remote(path, remote):
    assert is_remote(path) == remote
    if remote:
        with pytest.raises(ValueError, match=r"A table cannot be kept at .*local or a mounted"):
            local_path(path, "A table")
    else:
        assert str(local_path(path)) == path.removeprefix("file://")


def test_models_are_saved_to_and_loaded_from_an_object_store(url, tmp_path):
    model = KMeans(3, **PLAIN).fit(X)
    model.save(f"{url}/models/first")
    again = load(f"{url}/models/first")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    with pytest.raises(FileExistsError, match="models/first exists"):
        model.save(f"{url}/models/first")
    other = PowerKMeans(4, random_state=0).fit(X)
    other.save(f"{url}/models/first", overwrite=True)
    assert type(load(f"{url}/models/first")) is PowerKMeans
    model.save(f"file://{tmp_path}/model")
    assert type(load(tmp_path / "model")) is KMeans
    with pytest.raises(FileNotFoundError, match="models/second does not exist"):
        load(f"{url}/models/second")
    fsspec.filesystem("memory").pipe_file("/bucket/models/first", b"years of work")
    with pytest.raises(ValueError, match="memory://bucket/models/first is not a model"):
        load(f"{url}/models/first")


def test_a_damaged_model_on_an_object_store_is_refused(url):
    KMeans(3, **PLAIN).fit(X).save(f"{url}/model")
    system = fsspec.filesystem("memory")
    content = bytearray(system.cat_file("/bucket/model"))
    content[-1] ^= 1
    system.pipe_file("/bucket/model", bytes(content))
    with pytest.raises(ValueError, match="memory://bucket/model is damaged"):
        load(f"{url}/model")


def test_an_upload_that_fails_leaves_nothing_to_be_read(url, monkeypatch):
    system = type(fsspec.filesystem("memory"))
    model = KMeans(3, **PLAIN).fit(X)

    def failing(self, *arguments, **options):
        raise OSError("connection lost")

    monkeypatch.setattr(system, "put_file", failing)
    monkeypatch.setattr("daskmm.storage.remote.PATIENCE", 0.0)
    with pytest.raises(OSError, match="connection lost"):
        model.save(f"{url}/model")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load(f"{url}/model")
    monkeypatch.undo()
    model.save(f"{url}/model", overwrite=True)
    assert type(load(f"{url}/model")) is KMeans
    monkeypatch.setattr("daskmm.cluster._models._write", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.save(f"{url}/other")
    check_new(f"{url}/other")


def test_labels_are_written_to_an_object_store(url):
    labels = KMeans(3, **PLAIN).fit(da.from_array(X, chunks=(100, -1))).labels_
    counts, _ = write_labels(labels, f"{url}/labels.zarr")
    assert counts.sum() == 300
    store = zarr.open_array(f"{url}/labels.zarr", mode="r")
    np.testing.assert_array_equal(store[:], labels.compute())
    with pytest.raises(FileExistsError):
        write_labels(labels, f"{url}/labels.zarr")


def test_runs_are_written_to_and_read_from_an_object_store(url, tmp_path, capsys):
    np.save(tmp_path / "x.npy", X)
    fit = ["fit", f"{tmp_path}/x.npy", *QUICK, "--out", f"{url}/run"]
    assert main(fit) == 0
    assert main(fit) == 2
    assert "memory://bucket/run exists" in capsys.readouterr().err
    assert main(["inspect", f"{url}/run"]) == 0
    assert "clusters" in capsys.readouterr().out
    predict = ["predict", f"{url}/run", f"{tmp_path}/x.npy", "--out"]
    assert main([*predict, f"{url}/labels.zarr"]) == 0
    assert main([*predict, f"{url}/labels.zarr"]) == 2
    assert not list(tmp_path.glob("memory*"))
    first, second = (
        zarr.open_array(f"{url}/{name}", mode="r")[:] for name in ("labels.zarr", "run/labels.zarr")
    )
    np.testing.assert_array_equal(first, second)


def test_what_is_changed_in_place_stays_local(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="A Gram matrix cannot be kept at memory://bucket"):
        KernelPowerKMeans(3, gram=f"{url}/gram").fit(X)
    assert not list(tmp_path.iterdir())
    KMeans(3, checkpoint=f"file://{tmp_path}/state").fit(X)
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


class Killed(BaseException):
    pass


def killed_after(n_iterations):
    def kill(record):
        if record.iteration >= n_iterations:
            raise Killed

    return kill


def states(url):
    files = fsspec.filesystem("memory").find(url)
    return sorted(name.rsplit("/", 1)[1] for name in files)


@pytest.mark.parametrize("shape", ["{}/state", "{}/state/"])
def test_fits_resume_from_a_checkpoint_on_an_object_store(url, shape):
    options = {"sample_size": None, "random_state": 0, "tol": 0.0, "max_iter": 8}
    place = shape.format(url)
    kept = {"checkpoint": place, "checkpoint_every": 1}
    expected = PowerKMeans(3, **options).fit(X)
    with pytest.raises(Killed):
        PowerKMeans(3, callbacks=[killed_after(5)], **kept, **options).fit(X)
    assert len(states(place)) == 2
    seen = []
    model = PowerKMeans(3, callbacks=[seen.append], **kept, **options).fit(X)
    assert seen[0].iteration > 4
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
    np.testing.assert_array_equal(
        PowerKMeans(3, **kept, **options).fit(X).cluster_centers_, expected.cluster_centers_
    )
    with pytest.raises(ValueError, match=f"{place} is the checkpoint of another fit"):
        PowerKMeans(4, **kept, **options).fit(X)


def test_a_fit_resumes_without_the_files_that_a_stage_worked_on(url, monkeypatch):
    monkeypatch.setattr("daskmm.gram.sources.MEMORY_BYTES", 1000)
    options = {"random_state": 0, "checkpoint": f"{url}/state", "checkpoint_every": 1}
    with pytest.raises(Killed):
        KernelPowerKMeans(3, callbacks=[killed_after(0)], **options).fit(X)
    assert len(states(f"{url}/state")) == 2
    model = KernelPowerKMeans(3, **options).fit(X)
    assert model.gram_.startswith("stored for this fit")
    options["checkpoint"] = None
    np.testing.assert_array_equal(model.labels_, KernelPowerKMeans(3, **options).fit(X).labels_)


def test_a_store_that_cannot_be_written_is_named_with_the_reason(url, monkeypatch):
    system = fsspec.implementations.memory.MemoryFileSystem
    put = system.put_file

    def full(self, file, target):
        if "state-" in target:
            raise PermissionError("no quota is left")
        put(self, file, target)

    monkeypatch.setattr(system, "put_file", full)
    with pytest.raises(OSError, match=r"memory://bucket/state could not be written \(no quota"):
        KMeans(3, checkpoint=f"{url}/state", checkpoint_every=1).fit(X)


def test_an_unfinished_run_is_resumed(url, tmp_path, monkeypatch, capsys):
    np.save(tmp_path / "x.npy", X)
    fit = ["fit", f"{tmp_path}/x.npy", *QUICK, "--out", f"{url}/run"]
    with monkeypatch.context() as patched:
        patched.setattr("daskmm.cli.actions.write_run", lambda *args, **kwargs: 1 / 0)
        assert main(fit) == 1
    assert "run may hold a checkpoint; run the same command" in capsys.readouterr().err
    assert [name[:5] for name in states(f"{url}/run")] == ["state", "state"]
    assert main(fit) == 0
    assert "summary.json" in states(f"{url}/run")
    assert not states(f"{url}/run/checkpoint")
    assert main(fit) == 2


def test_reading_waits_for_a_store_that_is_out_of_reach(monkeypatch, caplog):
    tries = []

    def read():
        tries.append(0)
        if len(tries) < 3:
            raise ConnectionError("refused")
        return 7

    monkeypatch.setattr("daskmm.storage.remote._PAUSES", (0.01,))
    assert patiently(read, "s3://bucket/x") == 7
    assert (
        caplog.text.count("s3://bucket/x cannot be reached, trying again in 0.01 s: refused") == 2
    )
    monkeypatch.setattr("daskmm.storage.remote.PATIENCE", 0.0)
    for path in ("s3://bucket/x", "/tmp/x"):
        tries.clear()
        with pytest.raises(ConnectionError):
            patiently(read, path)
        assert len(tries) == 1


def test_pauses_double_up_to_a_quarter_of_a_minute(monkeypatch):
    pauses = []

    def read():
        if len(pauses) < 7:
            raise ConnectionError("refused")
        return 7

    monkeypatch.setattr("daskmm.storage.remote.time.sleep", pauses.append)
    assert patiently(read, "s3://bucket/x") == 7
    assert pauses == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("no table"), FileNotFoundError("nothing there")),
        (OSError("no table"), FileNotFoundError("nothing there")),
        (FileNotFoundError("no table"), None),
        (type("NoCredentialsError", (Exception,), {})("no table"), None),
    ],
)
def test_reading_is_not_repeated_after_errors_that_stay(error, cause, monkeypatch):
    def read():
        raise error from cause

    monkeypatch.setattr("daskmm.storage.remote.time.sleep", lambda pause: pytest.fail("waits"))
    with pytest.raises((ValueError, OSError), match="no table"):
        patiently(read, "s3://bucket/x")


class NoCredentialsError(Exception):
    """As botocore's, which is of no kind that Python knows."""


def test_missing_credentials_of_a_store_are_an_error_of_one_line(url, monkeypatch, capsys):
    def refuse(*_, **__):
        raise NoCredentialsError("Unable to locate credentials")

    system = type(fsspec.filesystem("memory"))
    for method in ("info", "open", "put_file", "find"):
        monkeypatch.setattr(system, method, refuse)
    for command in (["plan", f"{url}/x.csv", "-k", "2"], ["inspect", f"{url}/run"]):
        assert main(command) == 2
        line = capsys.readouterr().err
        assert line.endswith(" cannot be reached: Unable to locate credentials\n")
        assert line.startswith("daskmm: error: memory://bucket/")
    with pytest.raises(OSError, match="model cannot be reached: Unable to locate credentials"):
        load(f"{url}/model")


def test_a_store_that_cannot_be_written_is_refused_before_reading(url, monkeypatch, capsys):
    def refuse(*_, **__):
        raise PermissionError("Access Denied")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "put_file", refuse)
    for command in (["fit", __file__, "-k", "2"], ["predict", __file__, __file__]):
        assert main([*command, "--out", f"{url}/out"]) == 2
        assert "bucket/out cannot be written: Access Denied" in capsys.readouterr().err
    with pytest.raises(OSError, match="bucket/out cannot be written: Access Denied"):
        KMeans(3, checkpoint=f"{url}/out").fit(np.zeros((0, 3)))
    assert not fsspec.filesystem("memory").store


def mine(*names):
    """Objects of the user; their names, relative to the bucket."""
    system = fsspec.filesystem("memory")
    for name in names:
        system.pipe_file(f"/bucket/{name}", b"years of work")
    return names


def assert_intact(names):
    system = fsspec.filesystem("memory")
    assert [system.cat_file(f"/bucket/{name}") for name in names] == [b"years of work"] * len(names)


def test_a_checkpoint_removes_no_object_of_the_user(url):
    options = {"sample_size": None, "random_state": 0, "tol": 0.0, "max_iter": 8}
    options |= {"checkpoint": f"{url}/state", "checkpoint_every": 1}
    with pytest.raises(Killed):
        PowerKMeans(3, callbacks=[killed_after(5)], **options).fit(X)
    names = mine("state/state-00000001.bak", "state/notes", "state/work/a", "state/state-00000099")
    PowerKMeans(3, **options).fit(X)
    assert_intact(names)
    assert len(states(f"{url}/state")) == 2 + len(names)


def test_a_mirror_that_is_cleared_removes_nothing_at_its_url(url):
    (name,) = mine("state/notes")
    mirror = Mirror(f"{url}/state", lambda name: True)
    (mirror.folder / "notes").unlink()
    (mirror.folder / "new").write_text("a")
    mirror.upload("new")
    assert_intact([name])
    mirror.remove("new")
    assert states(f"{url}/state") == ["notes"]


def test_a_model_replaces_no_object_of_the_user(url):
    model = KMeans(3, **PLAIN).fit(X)
    names = mine("data/notes", "data/part/0")
    with pytest.raises(FileExistsError, match="data exists"):
        model.save(f"{url}/data", overwrite=True)
    assert_intact(names)
    assert states(f"{url}/data") == ["0", "notes"]
    names += mine("notes")
    with pytest.raises(FileExistsError, match="notes exists"):
        model.save(f"{url}/notes", overwrite=True)
    assert_intact(names)


def test_labels_and_runs_remove_no_object_of_the_user(url, tmp_path, monkeypatch):
    labels = KMeans(3, **PLAIN).fit(X).labels_
    write_labels(labels, f"{url}/labels.zarr")
    np.save(tmp_path / "x.npy", X)
    fit = ["fit", f"{tmp_path}/x.npy", *QUICK, "--out", f"{url}/run"]
    with monkeypatch.context() as patched:
        patched.setattr("daskmm.cli.actions.write_run", lambda *args, **kwargs: 1 / 0)
        assert main(fit) == 1
    names = mine("labels.zarr/notes", "run/notes", "run/checkpoint/notes", "run/data/0")
    write_labels(labels[:100], f"{url}/labels.zarr", replace=True)
    assert main(fit) == 0
    assert_intact(names)
    assert states(f"{url}/run/checkpoint") == ["notes"]


def test_names_that_lead_out_of_a_folder_are_refused(url, monkeypatch):
    KMeans(3, **PLAIN).fit(X).save(f"{url}/model")
    monkeypatch.setattr("daskmm.storage.remote._Store.names", lambda self: ["zarr.json", "../../x"])
    with pytest.raises(ValueError, match=r"has an object '\.\./\.\./x', which is no name of a"):
        load(f"{url}/model")
