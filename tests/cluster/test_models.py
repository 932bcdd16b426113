"""Models on disk, and plans made without reading data."""

import copy
import functools
import json
import pathlib
import re
import shutil
import subprocess
import sys
import warnings

import _processes
import _victims
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from _support import (
    ANNEALED,
    ESTIMATORS,
    CountingSource,
    assert_same_model,
    blobs,
    computed,
    counting_zarr,
    fit_recording,
    quick,
    raise_if_computes,
)
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import daskmm
from daskmm import (
    ClusterTree,
    EntropyPowerKMeans,
    GaussianMixture,
    KernelPowerKMeans,
    KMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
    cluster,
    load,
    planning,
)
from daskmm.cluster import _models
from daskmm.engine.resources import Worker
from daskmm.gram import costs as gram_costs
from daskmm.kmeans import costs as center_costs
from daskmm.mean_shift import costs as shift_costs
from daskmm.planning import Plan
from daskmm.storage.records import read_state, write_state

pytestmark = pytest.mark.in_turn("cls")

X, _ = blobs()
FRAME = pd.DataFrame(X, columns=["alpha", "beta", "gamma", "delta", "épsilon"])

each_estimator = pytest.mark.parametrize("cls", ESTIMATORS)


@pytest.fixture(autouse=True)
def _computing_in_this_thread():
    with dask.config.set(scheduler="sync"):
        yield


def lazy(data=X, rows=60):
    return da.from_array(data, chunks=(rows, -1))


def saved(path, model=None, **save):
    """A model, and the path at which it was saved."""
    model = quick(PowerKMeans).fit(X) if model is None else model
    model.save(path, **save)
    return model


def files(path):
    return sorted(item for item in pathlib.Path(path).rglob("*") if item.is_file())


def contents(path):
    return {str(item.relative_to(path)): item.read_bytes() for item in files(path)}


def assert_same_bits(a, b):
    """Every fitted attribute, array or not, is the same."""
    names = {name for name in vars(a) if name not in ("callbacks", "labels_")}
    assert names == {name for name in vars(b) if name not in ("callbacks", "labels_")}
    for name in names:
        first, second = getattr(a, name), getattr(b, name)
        np.testing.assert_equal(second, first, err_msg=name)
        if isinstance(first, np.ndarray):
            assert second.dtype == first.dtype
            assert second.tobytes() == first.tobytes() or first.dtype == object


# Round trips


@pytest.mark.in_turn("data")
@pytest.mark.filterwarnings("ignore:X does not have valid feature names:UserWarning")
@each_estimator
@pytest.mark.parametrize("data", [X, lazy(), FRAME], ids=["numpy", "dask", "frame"])
def test_a_loaded_model_is_the_same_model(cls, data, tmp_path):
    model = saved(tmp_path / "model", quick(cls).fit(data))
    again = load(tmp_path / "model")
    assert type(again) is cls
    assert_same_bits(model, again)
    assert again.get_params() == model.get_params()
    assert again.history_ == model.history_
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    np.testing.assert_array_equal(again.predict(lazy()).compute(), computed(model.predict(lazy())))
    assert again.score(X) == model.score(X)
    assert again.get_feature_names_out().tolist() == model.get_feature_names_out().tolist()


@pytest.mark.filterwarnings("ignore:X does not have valid feature names:UserWarning")
def test_names_of_features_are_kept(tmp_path):
    saved(tmp_path / "model", quick(KMeans).fit(FRAME))
    again = load(tmp_path / "model")
    assert again.feature_names_in_.tolist() == FRAME.columns.tolist()
    assert again.feature_names_in_.dtype == object
    with pytest.raises(ValueError, match="feature names should match"):
        again.predict(FRAME.rename(columns={"alpha": "omega"}))


@each_estimator
def test_labels_are_kept_where_they_are_numbers_and_dropped_where_they_are_lazy(cls, tmp_path):
    model = saved(tmp_path / "numpy", quick(cls).fit(X))
    np.testing.assert_array_equal(load(tmp_path / "numpy").labels_, model.labels_)
    assert load(tmp_path / "numpy").labels_.dtype == np.int32
    with raise_if_computes():
        model = quick(cls)
        with dask.config.set(scheduler="sync"):
            model.fit(lazy())
        model.save(tmp_path / "dask")
    assert not hasattr(load(tmp_path / "dask"), "labels_")
    assert hasattr(model, "labels_")


def test_a_saved_model_does_not_contain_the_data(tmp_path):
    rows, _ = blobs(50_000)
    saved(tmp_path / "model", quick(KMeans).fit(lazy(rows, 10_000)))
    assert sum(item.stat().st_size for item in files(tmp_path / "model")) < 50_000 < rows.nbytes


PARAMETERS = [
    (KMeans, {"init": X[:4], "tol": 0, "max_iter": 3}),
    (KMeans, {"init": X[:4].astype(np.float32)}),
    (KMeans, {"init": X[:4].round().astype(int)}),
    (KMeans, {"init": np.asfortranarray(X[:4])}),
    (KMeans, {"init": "k-means||", "n_init": "auto", "verbose": 0, "random_state": None}),
    (KMeans, {"random_state": np.int64(5), "n_clusters": np.int64(4), "tol": np.float32(1e-3)}),
    (PowerKMeans, {"s0": -3.3, "eta": 1.0 + 1e-15, "anneal_every": 2, "polish": False}),
    (PowerKMeans, {"s0": "auto", "standardize": np.True_}),
    (PowerKMeans, {"s0": np.float64(-2), "eta": 2}),
    (EntropyPowerKMeans, {"lam": 0.1, "s0": -1e12}),
    (EntropyPowerKMeans, {"lam": np.nextafter(0.1, 1), "standardize": False}),
]


@pytest.mark.parametrize(("cls", "settings"), PARAMETERS, ids=range(len(PARAMETERS)))
def test_parameters_are_kept_exactly(cls, settings, tmp_path):
    model = quick(cls, **settings)
    fit_recording(model, X)
    saved(tmp_path / "model", model)
    again = load(tmp_path / "model")
    assert_same_bits(model, again)
    for name, value in model.get_params().items():
        np.testing.assert_array_equal(again.get_params()[name], value)
    refitted = clone(again)
    fit_recording(refitted, X)
    if model.random_state is not None or not isinstance(model.init, str):
        assert_same_model(refitted, model)


@pytest.mark.parametrize("as_init", [np.ndarray.tolist, pd.DataFrame, da.from_array])
def test_given_centers_of_any_kind_are_kept(as_init, tmp_path):
    model = saved(tmp_path / "model", quick(KMeans, init=as_init(X[:4])).fit(X))
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(computed(again.init), X[:4])
    assert_same_model(clone(again).fit(X), model)


@pytest.mark.parametrize("cls", ANNEALED)
def test_the_power_of_minus_infinity_is_kept(cls, tmp_path):
    model = saved(tmp_path / "model", quick(cls).fit(X))
    assert model.s_ == -np.inf
    assert load(tmp_path / "model").s_ == -np.inf
    assert load(tmp_path / "model").history_[-1].s == -np.inf


def test_callbacks_and_random_state_objects_are_not_saved(tmp_path):
    model = quick(KMeans, callbacks=[lambda record: None], random_state=np.random.RandomState(1))
    saved(tmp_path / "model", model.fit(X))
    again = load(tmp_path / "model")
    assert again.callbacks is None
    assert again.random_state is None
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    # Saving changes nothing in the model at hand.
    assert len(model.callbacks) == 1
    assert isinstance(model.random_state, np.random.RandomState)


@each_estimator
def test_a_model_with_pandas_output_is_kept(cls, tmp_path):
    model = saved(tmp_path / "model", quick(cls).set_output(transform="pandas").fit(X))
    again = load(tmp_path / "model")
    pd.testing.assert_frame_equal(again.transform(X), model.transform(X))


@each_estimator
def test_a_model_of_zeros_is_kept(cls, tmp_path):
    # zarr does not write chunks that equal the fill value.
    model = quick(cls, n_clusters=1).fit(np.zeros((5, 2)))
    saved(tmp_path / "model", model)
    assert_same_bits(model, load(tmp_path / "model"))


@each_estimator
def test_a_loaded_model_can_be_fitted_saved_and_loaded_again(cls, tmp_path):
    model = saved(tmp_path / "one", quick(cls).fit(X))
    again = saved(tmp_path / "two", load(tmp_path / "one"))
    assert_same_bits(again, load(tmp_path / "two"))
    assert_same_model(again.fit(X), model)


@pytest.mark.parametrize("as_path", [str, pathlib.Path])
def test_folders_on_the_way_are_made(as_path, tmp_path):
    path = as_path(tmp_path / "some" / "where" / "a model.zarr")
    saved(path)
    assert isinstance(load(path), PowerKMeans)
    assert [item.name for item in (tmp_path / "some" / "where").iterdir()] == ["a model.zarr"]


def test_models_are_saved_and_loaded_at_relative_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved("model")
    assert isinstance(load("model"), PowerKMeans)


def test_every_bit_of_a_file_is_under_a_digest(damaged):
    data = damaged.read_bytes()
    for place in np.random.default_rng(0).integers(8 * len(data), size=60):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        damaged.write_bytes(bytes(flipped))
        with pytest.raises(ValueError, match=r"damaged|has version"):
            load(damaged)


# What is on the disk


@each_estimator
def test_files_hold_numbers_and_json_but_no_pickle(cls, tmp_path):
    model = saved(tmp_path / "model", quick(cls, init=X[:4]).fit(FRAME))
    data = (tmp_path / "model").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start], parse_constant=_no_constants)
    about = header.pop("__metadata__")
    text = json.dumps(json.loads(about["value"], parse_constant=_no_constants))
    assert "pickle" not in text
    # Arrays lie side by side, as the safetensors format wants them, and nothing follows.
    places = sorted(described["data_offsets"] for described in header.values())
    assert [start for start, _ in places] == [0, *(end for _, end in places[:-1])]
    assert places[-1][1] == len(data) - start
    assert len(places) >= 5
    described = header["fitted-cluster_sizes_"]
    first, last = described["data_offsets"]
    assert described["dtype"] == "F64"
    assert data[start + first : start + last] == model.cluster_sizes_.tobytes()


def _no_constants(name):
    raise AssertionError(f"{name} is not valid JSON")


# Paths that exist


def test_a_path_that_exists_is_refused(tmp_path):
    saved(tmp_path / "model", quick(KMeans).fit(X))
    before = (tmp_path / "model").read_bytes()
    with pytest.raises(FileExistsError, match="model exists"):
        saved(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == before


def test_a_model_is_replaced_when_asked(tmp_path):
    saved(tmp_path / "model", quick(KMeans).fit(X))
    other = saved(tmp_path / "model", overwrite=True)
    assert_same_bits(other, load(tmp_path / "model"))
    assert [item.name for item in tmp_path.iterdir()] == ["model"]


def test_overwrite_saves_where_there_is_nothing(tmp_path):
    saved(tmp_path / "model", overwrite=True)
    assert isinstance(load(tmp_path / "model"), PowerKMeans)


@pytest.mark.parametrize("kind", ["file", "empty file", "state", "empty folder", "folder"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_not_a_model_is_never_deleted(kind, overwrite, tmp_path):
    path = tmp_path / "precious"
    put(kind, path)
    before = path.read_bytes() if path.is_file() else contents(path)
    with pytest.raises(FileExistsError, match="precious exists"):
        saved(path, overwrite=overwrite)
    assert (path.read_bytes() if path.is_file() else contents(path)) == before
    assert [item.name for item in tmp_path.iterdir()] == ["precious"]


def put(kind, path):
    """Put something that is no model at a path."""
    if kind == "state":
        write_state(path, {"class": "KMeans"})
    elif kind.endswith("file"):
        path.write_text("years of work" * (kind == "file"))
    else:
        path.mkdir()
        if kind == "folder":
            (path / "thesis.txt").write_text("years of work")


def test_a_link_to_a_model_stays_when_the_model_is_replaced(tmp_path):
    saved(tmp_path / "first", quick(KMeans).fit(X))
    (tmp_path / "latest").symlink_to(tmp_path / "first")
    other = saved(tmp_path / "latest", overwrite=True)
    assert (tmp_path / "latest").is_symlink()
    assert_same_bits(other, load(tmp_path / "first"))
    assert {item.name for item in tmp_path.iterdir()} == {"first", "latest"}


# Places to write to


def forged(path, edit):
    """Change the state in a file, with the digest."""
    state = read_state(path)
    edit(state)
    write_state(path, state, _models.KIND)


def test_places_to_write_to_are_not_saved(tmp_path):
    model = KernelPowerKMeans(4, n_init=1, random_state=0)
    model.set_params(gram=tmp_path / "gram", checkpoint=str(tmp_path / "c")).fit(X)
    saved(tmp_path / "model", model)
    assert str(tmp_path) not in str(read_state(tmp_path / "model")["parameters"])
    again = load(tmp_path / "model")
    assert (again.gram, again.checkpoint) == ("auto", None)
    assert model.gram == tmp_path / "gram"
    saved(tmp_path / "other", model.set_params(gram="recompute"))
    assert load(tmp_path / "other").gram == "recompute"


@pytest.mark.parametrize("value", ["/tmp/x", {"path": "/tmp/x"}])
def test_places_to_write_to_are_not_taken_from_a_file(value, tmp_path):
    saved(tmp_path / "model", KernelPowerKMeans(4, n_init=1, random_state=0).fit(X))
    forged(tmp_path / "model", lambda a: a["parameters"].update(checkpoint=value, gram=value))
    again = load(tmp_path / "model")
    assert (again.gram, again.checkpoint) == ("auto", None)
    forged(tmp_path / "model", lambda a: a["fitted"].update(checkpoint=value))
    with pytest.raises(ValueError, match="damaged: checkpoint is not the name of a fitted"):
        load(tmp_path / "model")


def test_every_parameter_that_may_be_a_path_is_known_as_a_place():
    for cls in {getattr(cluster, name) for name in cluster.__all__} - {ClusterTree}:
        paths = {
            name for name, kinds in cls._parameter_constraints.items() if pathlib.Path in kinds
        }
        assert "checkpoint" in paths <= set(_models._PLACES)


# Damage


def altered(model, name, change):
    """A model with another value of an attribute, as a file with right digests may hold it."""
    model = copy.copy(model)
    value = np.array(getattr(model, name))
    setattr(model, name, change(value))
    return model


def with_first(value):
    def change(values):
        values.flat[0] = value
        return values

    return change


KERNEL = KernelPowerKMeans(4, n_init=1, random_state=0)
FITS = {
    "entropy": lambda: quick(EntropyPowerKMeans, standardize=True).fit(X),
    "mahalanobis": lambda: quick(PowerKMeans, distortion="mahalanobis").fit(X),
    "kernel": lambda: clone(KERNEL).fit(X),
    "landmarks": lambda: clone(KERNEL).set_params(n_landmarks=40).fit(X),
    "mixture": lambda: GaussianMixture(4, random_state=0).fit(X),
    "mean shift": lambda: WeightedBlurringMeanShift(0.3).fit(X),
}


@functools.cache
def fit_once(name):
    return FITS[name]()


CENTERS = ("cluster_centers_", "scale_", "mean_", "cluster_sizes_")


def test_a_path_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent does not exist"):
        load(tmp_path / "absent")


@pytest.mark.parametrize("kind", ["file", "empty file", "state", "empty folder", "folder"])
def test_what_is_not_a_model_is_not_loaded(kind, tmp_path):
    put(kind, tmp_path / "thing")
    with pytest.raises(ValueError, match="thing is not a model written by daskmm"):
        load(tmp_path / "thing")


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "model"
    saved(path, quick(EntropyPowerKMeans).fit(X + 3.0))
    return path


@pytest.fixture
def damaged(intact, tmp_path):
    """A copy of a model, to be damaged."""
    return pathlib.Path(shutil.copy(intact, tmp_path / "model"))


@pytest.mark.parametrize("left", [0, 5, 200, -1000, -1])
def test_files_that_were_cut_are_noticed(damaged, left):
    damaged.write_bytes(damaged.read_bytes()[:left])
    with pytest.raises(ValueError, match=r"model is (not a model .*, or )?is damaged|model is dam"):
        load(damaged)


def test_files_that_have_grown_are_noticed(damaged):
    damaged.write_bytes(damaged.read_bytes() + b"x")
    with pytest.raises(ValueError, match="model is damaged"):
        load(damaged)


def test_a_newer_version_of_the_format_is_refused(damaged):
    damaged.write_bytes(damaged.read_bytes().replace(b'"version": "1"', b'"version": "2"', 1))
    with pytest.raises(ValueError, match=r"has version 2 of the format; .* reads 1"):
        load(damaged)


@pytest.mark.parametrize("name", ["SomethingElse", "load", "__version__", None, "os.system"])
def test_only_classes_of_this_library_are_made(damaged, name):
    forged(damaged, lambda state: state.update({"class": name}))
    with pytest.raises(ValueError, match="unknown class"):
        load(damaged)


@pytest.mark.parametrize("missing", ["class", "output", "parameters", "fitted"])
def test_missing_parts_are_noticed(damaged, missing):
    forged(damaged, lambda state: state.pop(missing))
    with pytest.raises(ValueError, match="damaged"):
        load(damaged)


class CrashError(OSError):
    """The disk is full, the plug is pulled."""


@pytest.mark.parametrize("step", ["flush_tree", "os.replace"])
def test_a_crash_while_writing_leaves_the_former_model(step, tmp_path, monkeypatch):
    former = saved(tmp_path / "model", quick(KMeans).fit(X))
    other = quick(PowerKMeans).fit(X)

    def crash(*_):
        raise CrashError

    monkeypatch.setattr(f"daskmm.storage.atomic.{step}", crash)
    with pytest.raises(CrashError):
        other.save(tmp_path / "model", overwrite=True)
    with pytest.raises(CrashError):
        other.save(tmp_path / "fresh")
    monkeypatch.undo()
    assert_same_bits(former, load(tmp_path / "model"))
    # Nothing half-written is left, in its place or beside it.
    assert [item.name for item in tmp_path.iterdir()] == ["model"]


def replaced_and_loaded(folder, saves, n_savers, n_loaders):
    """Processes that replace and load the same model at once; how they ended."""
    saved(folder / "one", quick(KMeans).fit(X))
    saved(folder / "two", quick(PowerKMeans).fit(X))
    shutil.copy(folder / "one", folder / "model")
    start = _processes.ready().Process
    savers = [
        start(target=_victims.replace_often, args=(folder, f"{i}", saves)) for i in range(n_savers)
    ]
    loaders = [start(target=_victims.load_often, args=(folder, n_savers)) for _ in range(n_loaders)]
    for process in (*savers, *loaders):
        process.start()
    for process in (*savers, *loaders):
        process.join(280)
    assert [item.name for item in folder.iterdir() if item.name.startswith(".")] == []
    codes = [process.exitcode for process in (*savers, *loaders)]
    loads = sum(int(file.read_text()) for file in folder.glob("loads-*"))
    return codes, loads


@pytest.mark.long
def test_a_model_is_replaced_and_loaded_by_several_processes_at_once(tmp_path):
    codes, loads = replaced_and_loaded(tmp_path, 6, 2, 1)
    assert codes == [0, 0, 0]
    assert loads > 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_model_is_replaced_hundreds_of_times_while_it_is_loaded(tmp_path):
    codes, loads = replaced_and_loaded(tmp_path, 100, 3, 3)
    assert codes == [0] * 6
    assert loads > 100


def test_load_is_a_public_name():
    assert daskmm.load is load


# Plans


def planned(estimator, data):
    with raise_if_computes():
        return estimator.plan(data)


def test_a_plan_says_what_small_blocks_cost():
    small = KMeans(3).plan(da.ones((50_000, 10), chunks=(10, -1)))
    assert small.read_once
    assert "this process keeps it" in str(small)
    assert small.tasks_per_pass < 1000
    large = KMeans(3).plan(da.ones((200_000, 50), chunks=(50, -1)))
    assert not large.read_once
    assert large.visits_per_pass < large.n_blocks == 4000
    assert "opening them takes about 0.4 s of each pass. Rechunk" in str(large)
    other = KMeans(3).plan(da.ones((10**6, 50), chunks=(10**5, -1)))
    assert other.visits_per_pass == other.n_blocks
    assert "opening" not in str(other)


@each_estimator
@pytest.mark.parametrize("data", [X, lazy(), FRAME], ids=["numpy", "dask", "frame"])
def test_a_plan_knows_the_size_of_the_data(cls, data):
    plan = planned(quick(cls), data)
    assert isinstance(plan, Plan)
    assert plan.n_rows == 240
    assert plan.n_features == 5
    assert plan.n_starts == 2
    assert plan.bytes_per_pass == 240 * 5 * 8
    assert plan.n_blocks == (4 if data is not X and data is not FRAME else 1)
    assert plan.largest_block_bytes == 240 * 5 * 8 // plan.n_blocks
    assert plan.bytes_per_pass < plan.peak_bytes_per_worker < 2**31
    assert plan.tasks_per_pass >= 1
    assert 0 < plan.passes <= plan.max_passes


def test_a_plan_reads_no_block_and_no_chunk():
    source = CountingSource(X)
    data = source.as_dask((60, -1))
    array, store = counting_zarr(X, (60, 5))
    for estimator in (quick(KMeans), quick(EntropyPowerKMeans, init="k-means||")):
        planned(estimator, data)
        assert planned(estimator, array).n_rows == 240
    assert not source.reads
    assert not store.reads


@each_estimator
@pytest.mark.parametrize("kind", ["frame", "array"])
def test_a_plan_says_what_it_cannot_know(cls, kind):
    source = dd.from_pandas(FRAME, npartitions=4)
    assert planned(quick(cls), source).n_rows == 240
    data = source[source[FRAME.columns[0]] > -np.inf]
    plan = planned(quick(cls), data if kind == "frame" else data.to_dask_array())
    unknown = (plan.n_rows, plan.bytes_per_pass, plan.largest_block_bytes)
    assert unknown == (None, None, None)
    assert plan.peak_bytes_per_worker is None
    assert plan.n_blocks == 4
    assert plan.n_features == 5
    assert "unknown" in str(plan)
    # As for a large table, and one more pass counts the rows.
    known = planned(quick(cls), da.zeros((10**7, 5), chunks=(10**6, 5)))
    assert plan.passes == known.passes + 1


@pytest.fixture
def unit_speed(monkeypatch):
    """A machine with one thread on which each step of a row and each pair takes a microsecond."""
    for module in (center_costs, gram_costs, shift_costs):
        for name in ("step", "product", "pair"):
            monkeypatch.setattr(module, f"{name}_seconds", lambda *shape: 1e-6, raising=False)
    worker = Worker(1, None)
    monkeypatch.setattr(planning, "smallest_worker", lambda lazy: worker)
    monkeypatch.setattr(planning, "this_process", lambda: worker)


@pytest.mark.usefixtures("unit_speed")
def test_a_plan_counts_the_seconds_of_every_stage():
    plan = planned(PowerKMeans(20, n_init=2), np.zeros((200_000, 50)))
    assert list(plan.stages) == [
        *("first pass", "starting centres", "annealing", "recombination", "exchange"),
        *("hard steps on the sample", "larger sample", "passes", "labels"),
    ]
    assert plan.seconds == sum(plan.stages.values())
    # Two starts, of hard steps and of an annealing from −14 to −250, on 10,000 rows.
    assert plan.stages["annealing"] == pytest.approx(0.01 * 2 * (59 + 3 + 30))
    assert plan.stages["passes"] == pytest.approx(0.2 * 5 * 2, rel=0.05)
    assert plan.stages["labels"] == pytest.approx(0.2, rel=0.05)
    assert "time on this machine: about" in str(plan)
    assert repr(plan) == str(plan)
    assert "annealing 1.8 s" in str(plan)
    more = planned(PowerKMeans(20, n_init=4), np.zeros((200_000, 50)))
    assert more.stages["annealing"] == pytest.approx(2 * plan.stages["annealing"])
    assert "feature weights" in planned(EntropyPowerKMeans(4, lam="auto"), X).stages
    assert "restarts" in planned(EntropyPowerKMeans(4), np.zeros((200_000, 5))).stages
    assert planned(PowerKMeans("auto"), X).seconds is None


@pytest.mark.usefixtures("unit_speed")
def test_sweeps_over_pairs_grow_with_the_square_of_the_rows():
    for model, stage in (
        (KernelPowerKMeans(4, gram="memory"), "Gram matrices"),
        (WeightedBlurringMeanShift(), "blurring"),
    ):
        few, many = (planned(model, np.zeros((rows, 5))).stages for rows in (1000, 3000))
        assert many[stage] == pytest.approx(9 * few[stage])
    assert "bandwidth" not in planned(WeightedBlurringMeanShift(0.1), X).stages


@each_estimator
def test_the_speed_of_this_machine_is_measured(cls):
    plan = planned(quick(cls), lazy())
    assert min(plan.stages.values()) >= 0
    assert 1e-5 < plan.seconds < 60


def test_centres_that_do_not_fit_are_refused_with_what_would(monkeypatch):
    table = da.zeros((10_000_000, 768), chunks=(10_000, 768), dtype=np.float32)
    model = PowerKMeans(10_000, n_init=8)
    monkeypatch.setattr(planning, "smallest_worker", lambda lazy: Worker(8, 23 * 10**9))
    with raise_if_computes():
        for function in (model.plan, model.fit):
            with pytest.raises(ValueError, match=r"10,000 centres .*n_init=1 or at most") as no:
                function(table)
        fewer = int(re.search(r"at most ([\d,]+) clusters", str(no.value))[1].replace(",", ""))
        assert 1000 < fewer < 10_000
        assert PowerKMeans(fewer, n_init=8).plan(table).n_starts == 8
        with pytest.raises(ValueError, match="does not fit"):
            PowerKMeans(fewer + 1, n_init=8).plan(table)
        monkeypatch.setattr(planning, "smallest_worker", lambda lazy: Worker(2, 23 * 10**9))
        assert model.plan(table).peak_bytes_per_worker < 23 * 10**9


def test_a_plan_says_that_memory_may_not_suffice(monkeypatch):
    for memory, scarce in ((3 * 10**8, True), (10**10, False), (None, False)):
        monkeypatch.setattr(planning, "smallest_worker", lambda lazy, m=memory: Worker(2, m))
        assert ("which may not suffice" in str(planned(KMeans(3), X))) == scarce


SETTINGS = [{}, {"init": "k-means||"}, {"init": X[:4]}, {"max_iter": 1}, {"max_iter": 5, "tol": 0}]
ANNEALED_SETTINGS = [
    *SETTINGS,
    *[{"eta": 1.0}, {"eta": 1.0 + 1e-6}, {"s0": -1.0}, {"s0": -1e6}, {"polish": False}],
]


@pytest.mark.in_turn("form")
@pytest.mark.parametrize(
    ("cls", "settings"),
    [(KMeans, settings) for settings in SETTINGS]
    + [(cls, settings) for cls in ANNEALED for settings in ANNEALED_SETTINGS],
    ids=lambda value: getattr(value, "__name__", None) or " ".join(value) or "defaults",
)
@pytest.mark.parametrize("form", ["numpy", "dask", "unknown"])
def test_a_fit_takes_no_more_passes_than_its_plan_allows(cls, settings, form):
    data = {
        "numpy": X,
        "dask": lazy(rows=120),
        "unknown": dd.from_pandas(FRAME, npartitions=2),
    }[form]
    estimator = quick(cls, **settings)
    plan = planned(estimator, data)
    assert 0 < plan.passes <= plan.max_passes
    if 1.0 < estimator.get_params().get("eta", 2.0) < 1.05:
        return  # hundreds of iterations
    fit_recording(estimator, data)
    assert estimator.n_passes_ <= plan.max_passes
    if estimator.n_iter_ == estimator.max_iter and cls is not EntropyPowerKMeans:
        # The last pass scores what has not come to rest. Restarts at learned feature weights are
        # planned besides, and few fits need them.
        assert estimator.n_passes_ >= plan.max_passes - 1


TAILS = np.random.default_rng(0).standard_t(1.5, size=(600, 4))


@pytest.mark.parametrize(
    ("estimator", "rows"),
    [
        (KMeans(4, trim=0.1, tol=0, max_iter=6, random_state=0), X),
        (KMeans(4, distortion="manhattan", max_iter=3, random_state=0), X),
        (KMeans(4, distortion="mahalanobis", tol=1e-9, max_iter=9, random_state=0), X),
        (KMeans(4, sample_size=60, max_iter=2, random_state=0), TAILS),
        (EntropyPowerKMeans(4, max_iter=12, random_state=0), X),
        (KMeans(4, empty_cluster="restart", max_iter=5, random_state=0), np.repeat(X[:3], 50, 0)),
    ],
    ids=["trimmed", "medians", "learned matrix", "heavy tails", "restarts", "refits"],
)
def test_the_largest_number_of_passes_includes_what_follows_the_iterations(estimator, rows):
    plan = planned(estimator, rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(rows)
    assert estimator.n_passes_ <= plan.max_passes


def test_a_plan_of_a_large_table_knows_that_starts_are_annealed_on_a_sample():
    estimator = PowerKMeans(4, sample_size=60, random_state=0)
    plan = planned(estimator, lazy())
    assert plan.n_starts == 8
    assert plan.passes < planned(PowerKMeans(4, sample_size=None), lazy()).passes / 3
    estimator.fit(lazy())
    assert estimator.n_passes_ <= plan.max_passes


def test_starts_in_a_plan_follow_where_the_data_are():
    large = da.zeros((100_000, 5), chunks=(10_000, 5))
    for n_init, wanted, every_iteration_reads in [("auto", 8, 1), (3, 3, 3)]:
        # Small tables that are streamed get the starts of those in memory.
        for data in (X, lazy(), large):
            assert planned(KMeans(n_init=n_init), data).n_starts == wanted
        whole = KMeans(n_init=n_init, sample_size=None)
        assert planned(whole, large).n_starts == every_iteration_reads
        assert planned(whole, lazy()).n_starts == wanted
        assert planned(KMeans(init=X[:8], n_init=n_init), X).n_starts == 1


def test_bytes_follow_the_dtype_as_it_is_read():
    assert planned(KMeans(), lazy(X.astype(np.float32))).bytes_per_pass == 240 * 5 * 4
    assert planned(KMeans(), lazy((X > 0).view(np.uint8))).bytes_per_pass == 240 * 5


def test_memory_grows_with_blocks_and_not_with_the_data():
    with dask.config.set(num_workers=2):
        small, large = (
            planned(KMeans(), da.zeros((rows, 50), chunks=(10_000, 50))) for rows in (10**6, 10**8)
        )
    assert large.bytes_per_pass == 100 * small.bytes_per_pass
    assert large.peak_bytes_per_worker < 1.5 * small.peak_bytes_per_worker < 2**31
    coarse = planned(KMeans(), da.zeros((10**7, 50), chunks=(10**6, 50)))
    assert coarse.peak_bytes_per_worker > 10**6 * 50 * 8
    assert large.largest_block_bytes == 10_000 * 50 * 8


@each_estimator
@pytest.mark.parametrize("data", [X, lazy(), dd.from_pandas(FRAME, npartitions=2)])
def test_a_plan_is_plain_numbers(cls, data):
    plan = planned(quick(cls), data)
    assert json.loads(json.dumps(plan.as_dict())) == plan.as_dict()
    assert Plan(**plan.as_dict()) == plan


def test_the_text_of_a_plan_has_rows_blocks_bytes_and_passes():
    text = str(planned(KMeans(20), da.zeros((10**9, 50), chunks=(10**6, 50))))
    for part in ("1,000,000,000 rows × 50 features", "1,000 blocks", "400 GB", "passes"):
        assert part in text
    assert "block 400 MB" in text


@each_estimator
def test_planning_changes_nothing_in_the_estimator(cls):
    estimator = quick(cls)
    before = dict(vars(estimator))
    planned(estimator, lazy())
    assert vars(estimator) == before
    estimator.fit(FRAME)
    before = dict(vars(estimator))
    planned(estimator, lazy(X[:, :3]))
    assert vars(estimator) == before


@pytest.mark.parametrize(
    ("estimator", "data", "words"),
    [
        (KMeans(0), X, "n_clusters"),
        (PowerKMeans(s0=1.0), X, "s0"),
        (KMeans(), X[0], "2D"),
        (KMeans(), lazy()[:, 0], "2D"),
        (KMeans(), lazy().astype(object), "X has dtype object"),
        (KMeans(4), X[:0], "0 sample"),
    ],
    ids=range(6),
)
def test_a_plan_of_what_cannot_be_fitted_is_refused(estimator, data, words):
    with raise_if_computes(), pytest.raises(ValueError, match=words):
        estimator.plan(data)


@pytest.mark.long
def test_a_process_that_has_used_no_kernels_reads_their_checkpoints(tmp_path):
    path = tmp_path / "kept"
    model = KernelPowerKMeans(3, n_init=1, random_state=0, checkpoint=str(path), n_landmarks=None)

    def interrupt(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.set_params(callbacks=[interrupt]).fit(X)
    code = f"""
import numpy as np
from daskmm import PowerKMeans
try:
    PowerKMeans(3, checkpoint={str(path)!r}).fit(np.ones((30, 2)) * np.arange(30)[:, None])
except ValueError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "is the checkpoint of another fit" in found.stdout, found


def test_estimators_are_listed_before_they_are_used():
    code = "import daskmm.cluster; print(dir(daskmm.cluster))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "PowerKMeans" in found.stdout
