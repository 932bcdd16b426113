"""Fits that are killed, interrupted and gone on with; what their checkpoints hold and refuse."""

import dataclasses
import functools
import json
import os
import pickle
import shutil
import signal

import _processes
import _victims
import dask.array as da
import numpy as np
import pytest
import zarr
from _support import assert_same_bits, blobs, computed
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import daskmm
from daskmm import (
    EntropyPowerKMeans,
    GaussianMixture,
    KernelPowerKMeans,
    KMeans,
    MultiKernelPowerKMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
)
from daskmm.cli.main import main
from daskmm.mm import checkpoint
from daskmm.mm.checkpoint import CheckpointError
from daskmm.mm.journal import Journal, Pace
from daskmm.storage import atomic
from daskmm.storage.records import read_state, write_state

N, K = 240, 4
X, _ = blobs(N, 5, K, seed=2)
WEIGHTS = np.random.default_rng(0).integers(0, 3, N).astype(float)

annealed = {"n_clusters": K, "n_init": 2, "eta": 1.4, "random_state": 0}
sampled = {**annealed, "sample_size": 60}
MODELS = {
    "k-means": KMeans(K, n_init=2, random_state=0),
    "k-means, sampled": KMeans(
        K, n_init=2, standardize=False, random_state=0, sample_size=60, tol=0, max_iter=8
    ),
    "power": PowerKMeans(**annealed, standardize=False),
    "power, scalable seeding": PowerKMeans(**annealed, init="k-means||"),
    "power, sampled": PowerKMeans(**sampled, standardize=False),
    "power, no polish": PowerKMeans(
        **annealed | {"polish": False, "standardize": False, "tol": 0, "max_iter": 6}
    ),
    "entropy": EntropyPowerKMeans(**annealed, lam="0.5*variance"),
    "entropy, sampled": EntropyPowerKMeans(**sampled, lam="0.5*variance"),
    "entropy, chosen": EntropyPowerKMeans(**sampled),
    "mahalanobis": PowerKMeans(**annealed, distortion="mahalanobis"),
    "manhattan, restarts": PowerKMeans(**annealed, distortion="manhattan", empty_cluster="restart"),
    "kernel": KernelPowerKMeans(**annealed),
    "kernel, one start": KernelPowerKMeans(**annealed | {"n_init": 1}),
    "kernel, landmarks": KernelPowerKMeans(**sampled, n_landmarks=10 * K),
    "multi-kernel": MultiKernelPowerKMeans(**annealed, kernels=["rbf", "cosine"]),
    "mixture": GaussianMixture(K, n_init=2, max_iter=4, tol=0, random_state=0),
    "mixture of t": GaussianMixture(
        K, tails="student", covariance_type="auto", n_init=2, max_iter=4, tol=0, random_state=0
    ),
    "mean shift": WeightedBlurringMeanShift(0.1, max_iter=12, random_state=0),
    "mean shift, two stages": WeightedBlurringMeanShift(
        0.1, max_iter=60, random_state=0, convention="auto"
    ),
}
SIX = ("k-means", "power", "entropy", "kernel", "multi-kernel", "mean shift")
FORMS = {
    "numpy": (X, None),
    "dask": (da.from_array(X, chunks=(70, 5)), da.from_array(WEIGHTS, chunks=110)),
}

RUN_FOLDER = {"model", "labels.zarr", "centers.csv", "summary.json"}


@pytest.fixture
def npy(tmp_path):
    np.save(tmp_path / "x.npy", X)
    return str(tmp_path / "x.npy")


class KilledError(BaseException):
    """The process is no more."""


class Mortal:
    """Lets a process write so many states, then kills it there, or in the midst of the next one.

    Parameters
    ----------
    where : {"after", "open", "fsync", "replace", "folder"}
        What the last thing is that does not happen any more.
    """

    def __init__(self, monkeypatch, writes, where="after"):
        self.left, self.where, self.dead = writes, where, False
        monkeypatch.setattr(checkpoint, "write_state", self.write)
        for module, name, kind in (
            (os, "fsync", "fsync"),
            (os, "replace", "replace"),
            (atomic, "flush_folder", "folder"),
        ):
            monkeypatch.setattr(module, name, self.dying(getattr(module, name), kind))
        self.writing = False

    def write(self, path, value):
        self.die_if(self.dead)
        self.left -= 1
        self.writing = self.left == 0
        self.die_if(self.writing and self.where == "open")
        write_state(path, value)
        self.die_if(self.writing)

    def dying(self, function, kind):
        def call(*arguments):
            self.die_if(self.dead or (self.writing and self.where == kind))
            return function(*arguments)

        return call

    def die_if(self, condition):
        if condition:
            self.dead = True
            raise KilledError


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch):
    """Do not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def fitted(name, form="numpy", **parameters):
    """A fit, without its warnings."""
    rows, weights = FORMS[form]
    with np.errstate(all="raise", under="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *a, **k: None)
        return clone(MODELS[name]).set_params(**parameters).fit(rows, sample_weight=weights)


@functools.cache
def unstopped(name, form="numpy"):
    """The model of a fit that nothing stops, for comparison; not where a test patches a fit."""
    return fitted(name, form)


def lives(monkeypatch, path, fit, writes=1, where="after"):
    """Fit, killed again and again, until it comes to its end; the model, and how often."""
    for n in range(400):
        with monkeypatch.context() as patch:
            Mortal(patch, writes, where)
            try:
                return fit(path), n
            except KilledError:
                assert [item for item in path.iterdir() if item.name.startswith("state-")]
    raise AssertionError("it never ends")


# Fits whose stages, and what these keep, are those of others.
ALIKE = {
    *("k-means, sampled", "power, scalable seeding", "power, no polish", "entropy, sampled"),
    *("entropy, chosen", "kernel, one start", "mixture of t", "mean shift, two stages"),
}


@pytest.mark.in_turn("form")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long if name in ALIKE else ()) for name in MODELS],
)
def test_a_fit_that_is_killed_after_every_state_resumes_to_the_same_bits(
    tmp_path, monkeypatch, name, form
):
    reference = unstopped(name, form)
    model, n = lives(monkeypatch, tmp_path / "c", lambda p: fitted(name, form, checkpoint=p))
    assert n >= len(reference.history_) / (4 if "sampled" in name or "kernel" in name else 1) >= 1
    assert_same_bits(model, reference)
    assert model.n_passes_ >= reference.n_passes_
    # What is left gives the model again, without an iteration.
    again = fitted(name, form, checkpoint=tmp_path / "c", callbacks=[lambda record: 1 / 0])
    assert_same_bits(again, reference)


@pytest.mark.long
@pytest.mark.parametrize("name", ["power, sampled", "kernel, landmarks"])
def test_a_fit_killed_on_the_larger_sample_resumes_to_the_same_bits(tmp_path, monkeypatch, name):
    monkeypatch.setattr("daskmm.engine.first_pass.LARGER_SAMPLE_BYTES", 80 * 8 * X.shape[1])
    hard = {"sample_size": 45, "n_clusters": 9, "n_init": 4, "init": "random"}
    reference = fitted(name, **hard)
    states = []

    def fit(path):
        for state in path.glob("state-*"):
            states.extend(read_state(state)["stages"])
        return fitted(name, **hard, checkpoint=path)

    model, _ = lives(monkeypatch, tmp_path / "c", fit)
    assert {"annealing", "recombination", "larger sample", "passes"} <= set(states)
    assert_same_bits(model, reference)


@pytest.mark.in_turn("where")
@pytest.mark.parametrize("where", ["open", "fsync", "replace", "folder"])
@pytest.mark.parametrize("writes", [1, 2, 5])
@pytest.mark.parametrize("name", ["power", "power, sampled", "kernel", "mean shift"])
def test_a_fit_that_is_killed_while_it_writes_resumes_to_the_same_bits(
    tmp_path, monkeypatch, name, writes, where
):
    reference = unstopped(name)
    path = tmp_path / "c"
    with monkeypatch.context() as patch:
        mortal = Mortal(patch, writes, where)
        with pytest.raises(KilledError):
            fitted(name, checkpoint=path)
    assert mortal.dead
    assert len(list(path.glob("state-*"))) <= 3
    assert_same_bits(fitted(name, checkpoint=path), reference)
    assert not list(path.glob(".*"))


@pytest.mark.in_turn("name")
@pytest.mark.parametrize("name", SIX)
def test_a_full_disk_leaves_the_former_state(tmp_path, monkeypatch, name):
    reference, path = unstopped(name), tmp_path / "c"
    calls = []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) > 4:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        if name == "kernel":  # it has one iteration that is exact
            calls += [0, 0]
        with pytest.raises(OSError, match=r"could not be written .No space left on device"):
            fitted(name, checkpoint=path)
    assert not list(path.glob(".*"))
    assert_same_bits(fitted(name, checkpoint=path), reference)


# States that are damaged, and paths that are something else


def killed_at(path, name="power", iteration=4, **parameters):
    def die(record):
        if record.iteration == iteration:
            raise KilledError

    with pytest.raises(KilledError):
        fitted(name, checkpoint=path, callbacks=[die], **parameters)
    return sorted(path.glob("state-*"))


def harm(path, how):
    data = bytearray(path.read_bytes())
    if how == "deleted":
        path.unlink()
        return
    if how == "flipped":
        data[len(data) // 2] ^= 1
    elif how == "flipped at the end":
        data[-1] ^= 128
    elif how == "flipped at the beginning":
        data[3] ^= 4
    elif how == "truncated":
        data = data[: len(data) // 2]
    elif how == "emptied":
        data = bytearray()
    elif how == "longer":
        data += b"\0"
    path.write_bytes(bytes(data))


HARMS = ["flipped", "flipped at the end", "flipped at the beginning", "truncated", "emptied"]
HARMS += ["longer", "deleted"]


@pytest.mark.parametrize("how", HARMS)
def test_a_fit_resumes_from_the_former_state_if_the_latest_is_damaged(tmp_path, how):
    states = killed_at(tmp_path / "c")
    assert len(states) == 2
    harm(states[1], how)
    records = []
    model = fitted("power", checkpoint=tmp_path / "c", callbacks=[records.append])
    assert records[0].iteration == 4  # one more than the state that is left
    assert_same_bits(model, unstopped("power"))


@pytest.mark.parametrize("how", HARMS[:-1])
def test_two_damaged_states_are_refused_and_stay(tmp_path, how):
    states = killed_at(tmp_path / "c")
    for state in states:
        harm(state, how)
    before = [state.read_bytes() for state in states]
    with pytest.raises(CheckpointError, match=f"{states[0].name}, {states[1].name} are damaged"):
        fitted("power", checkpoint=tmp_path / "c")
    assert [state.read_bytes() for state in states] == before


def test_a_newer_version_is_refused(tmp_path):
    states = killed_at(tmp_path / "c")
    for state in states:
        newer = state.read_bytes().replace(b'"version": "1"', b'"version": "2"', 1)
        state.write_bytes(newer)
    with pytest.raises(ValueError, match="has version 2 of the format; this library reads 1"):
        fitted("power", checkpoint=tmp_path / "c")


def test_checkpoints_at_files_and_in_folders_of_other_things_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="is a file; give a folder"):
        fitted("power", checkpoint=tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"a folder of other things \(file\)"):
        fitted("power", checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=r"nosuch://x.* cannot be opened"):
        fitted("power", checkpoint="nosuch://x")
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_no_state_holds_code(tmp_path):
    for state in killed_at(tmp_path / "c", "kernel, one start"):
        assert state.read_bytes()[8:].startswith(b'{"__metadata__": {"digest": "')
        with pytest.raises(pickle.UnpicklingError):
            pickle.loads(state.read_bytes())


# Files of the user


def things(folder, *names):
    """Make files in a folder, those with a slash in folders of their own; return their contents."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("years of work")
    return dict.fromkeys(names, "years of work")


def texts(folder, names):
    return {name: (folder / name).read_text() for name in names}


USERS = (
    *("work/thesis.txt", "my-state-00000001.bak", "state-00000001-notes/thesis.txt"),
    *(".state-00000001.keep", "state-00000099", "state-00000004/thesis.txt", "notes.txt"),
)


def test_a_resumed_fit_removes_nothing_but_its_own_states(tmp_path, monkeypatch):
    monkeypatch.setattr("daskmm.gram.sources.MEMORY_BYTES", 1000)
    for name in ("power", "kernel, one start"):
        path = tmp_path / name
        killed_at(path, name, iteration=2)
        mine = things(path, *USERS)
        assert_same_bits(fitted(name, checkpoint=path), fitted(name))
        assert texts(path, USERS) == mine
        assert not list(path.glob("work-*"))


def test_a_folder_called_like_that_of_a_fit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("daskmm.gram.sources.MEMORY_BYTES", 1000)
    mine = things(tmp_path, "work/thesis.txt")
    with pytest.raises(CheckpointError, match=r"a folder of other things \(work\)"):
        fitted("kernel, one start", checkpoint=tmp_path)
    assert texts(tmp_path, mine) == mine


def test_a_fit_that_cannot_begin_leaves_what_it_did_not_write(tmp_path):
    mine = things(tmp_path / "c", "state-00000001/thesis.txt")
    with pytest.raises(ValueError, match="NaN"):
        clone(MODELS["kernel"]).set_params(checkpoint=tmp_path / "c").fit(
            with_change((3, 1), np.nan)
        )
    assert texts(tmp_path / "c", mine) == mine


def test_a_folder_of_others_that_a_state_names_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("daskmm.gram.sources.MEMORY_BYTES", 1000)
    mine = things(tmp_path, "precious/thesis.txt")
    for state in killed_at(tmp_path / "c", "kernel, one start", iteration=2):
        write_state(state, {**read_state(state), "work": "../precious"})
    fitted("kernel, one start", checkpoint=tmp_path / "c")
    assert texts(tmp_path, mine) == mine


# Another fit


def with_change(index, value):
    changed = X.copy()
    changed[index] = value
    return changed


@pytest.mark.in_turn("name")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (with_change((17, 2), 1e3), "the mean of feature 2 is"),
        (with_change((17, 2), X[17, 2] * (1 + 1e-15)), "rows of the data, or their weights, have"),
        (X[::-1].copy(), "rows of the data"),
        (X[:-1], r"shape is \[240, 5\] there and \[239, 5\] here"),
        (X[:, :-1], r"shape is \[240, 5\] there"),
        (X.astype(np.float32), "dtype is 'float64' there and 'float32' here"),
        (da.from_array(X, chunks=(50, 5)), "5 block.s. of 50 or 40 rows here"),
        (da.from_array(X, chunks=(240, 5)), "kind is 'in memory' there and 'streamed' here"),
    ],
)
@pytest.mark.parametrize("name", ["power", "kernel, one start", "mean shift"])
def test_other_data_are_refused(tmp_path, name, data, message):
    states = killed_at(tmp_path / "c", name)
    before = [state.read_bytes() for state in states]
    model = clone(MODELS[name]).set_params(checkpoint=tmp_path / "c")
    with pytest.raises(CheckpointError, match=f"checkpoint of another fit: .*{message}") as error:
        model.fit(data)
    assert not getattr(error.value, "__notes__", [])  # these data cannot resume it
    assert [state.read_bytes() for state in states] == before
    assert_same_bits(fitted(name, checkpoint=tmp_path / "c"), unstopped(name))


def test_other_weights_are_refused(tmp_path):
    killed_at(tmp_path / "c")
    model = clone(MODELS["power"]).set_params(checkpoint=tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"total weight is 240.0 there and 480.0 here"):
        model.fit(X, sample_weight=np.full(N, 2.0))


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("power", {"n_clusters": 5}, "n_clusters is 4 there and 5 here"),
        ("power", {"eta": 1.2}, "eta is 1.4 there and 1.2 here"),
        ("power", {"tol": 0.0}, "tol is 0.0001 there and 0.0 here"),
        ("power", {"random_state": 1}, "random_state is 0 there and 1 here"),
        ("power", {"random_state": None}, "random_state is 0 there and None here"),
        ("power", {"standardize": True}, "standardize is False there and True here"),
        ("power", {"init": "random"}, "init is 'k-means.*' there and 'random' here"),
        ("power", {"init": X[:4]}, "init is 'k-means.*' there and 'an array"),
        ("power", {"max_iter": 200}, "max_iter is 300 there and 200 here"),
        ("entropy", {"lam": 0.7}, r"lam is '0.5\*variance' there and 0.7 here"),
        ("kernel, one start", {"bandwidth": 2.0}, "bandwidth is 'auto' there and 2.0 here"),
        ("kernel, one start", {"gram": "recompute"}, "gram is 'auto' there and 'recompute'"),
        ("multi-kernel", {"kernels": ["rbf"]}, "kernels is .'rbf', 'cosine'. there"),
        ("mean shift", {"bandwidth": 0.3}, "bandwidth is 0.1 there and 0.3 here"),
        ("mean shift", {"max_iter": 60}, r"learning iterations is \[6\] there and \[20\] here"),
    ],
)
def test_other_parameters_are_refused(tmp_path, name, parameters, message):
    killed_at(tmp_path / "c", name, iteration=1)
    with pytest.raises(CheckpointError, match=message):
        fitted(name, checkpoint=tmp_path / "c", **parameters)


def test_another_model_is_refused(tmp_path):
    killed_at(tmp_path / "c")
    with pytest.raises(CheckpointError, match="model is 'PowerKMeans' there and 'KMeans' here"):
        fitted("k-means", checkpoint=tmp_path / "c")


def test_parameters_that_change_no_result_may_differ(tmp_path):
    killed_at(tmp_path / "c")
    model = fitted("power", checkpoint=str(tmp_path / "c"), persist="auto", checkpoint_every="2s")
    assert_same_bits(model, unstopped("power"))


def test_a_checkpoint_of_another_precomputed_matrix_is_refused(tmp_path):
    gram = X @ X.T

    def die(record):
        raise KilledError

    model = KernelPowerKMeans(K, kernel="precomputed", n_init=1, random_state=0)
    reference = clone(model).fit(gram)
    model.set_params(checkpoint=tmp_path / "c", callbacks=[die])
    with pytest.raises(KilledError):
        model.fit(gram)
    model.set_params(callbacks=None)
    with pytest.raises(CheckpointError, match="rows of the data"):
        model.fit(gram * (1 + 1e-12))
    assert_same_bits(model.fit(gram), reference)


@pytest.mark.parametrize(
    "name", ["k-means, sampled", "power", "power, sampled", "kernel, one start"]
)
def test_max_iter_may_be_raised(tmp_path, name):
    for bound in (2, 3, 9):
        model = fitted(name, checkpoint=tmp_path / "c", max_iter=bound)
        assert_same_bits(model, fitted(name, max_iter=bound))


@pytest.mark.parametrize("kind", ["none", "generator"])
def test_draws_are_those_of_the_first_run(tmp_path, kind):
    def random_state():
        return None if kind == "none" else np.random.RandomState(7)

    centers = []

    def die(record):
        raise KilledError

    model = PowerKMeans(K, init="random", max_iter=1, tol=0, polish=False)
    for _ in range(2):
        model.set_params(checkpoint=tmp_path / "c", random_state=random_state())
        centers.append(model.fit(X).cluster_centers_)
    np.testing.assert_array_equal(*centers)


def test_a_stage_that_is_entered_again_has_a_result_of_its_own():
    def once(journal, value):
        journal.enter("seeds")
        return journal.once(lambda: value)

    journal = Journal()
    assert once(journal, 1) == 1
    assert once(journal, 2) == 2
    journal.enter("table")
    assert journal.recall() is None
    journal.keep("a")
    journal.enter("table")
    assert journal.recall() is None
    journal.keep("b")
    journal.keep("c")
    assert list(journal.stages.items()) == [
        ("seeds", 1),
        ("seeds, 2", 2),
        ("table", "a"),
        ("table, 2", "c"),
    ]
    again = Journal()
    again.stages = journal.stages
    assert once(again, 9) == 1
    again.enter("table")
    assert again.recall() == "a"
    again.keep("d")
    assert list(again.stages) == ["seeds", "seeds, 2", "table"]  # what followed is void
    assert once(again, 9) == 2


def test_outside_of_stages_iterations_are_counted_and_nothing_is_kept():
    journal = Journal()
    assert journal.recall() is None
    journal.keep("a", iterations=3)
    assert journal.n_iter == 3
    assert not journal.stages


# How often


def count_writes(monkeypatch, **parameters):
    written = []

    def write(path, value):
        written.append(path.name)
        write_state(path, value)

    monkeypatch.setattr(checkpoint, "write_state", write)
    model = fitted("power", **parameters)
    assert [int(name[-8:]) for name in written] == list(range(1, len(written) + 1))
    return len(written), model.n_iter_


def test_states_are_written_at_the_given_pace(tmp_path, monkeypatch):
    each, n_iter = count_writes(monkeypatch, checkpoint=tmp_path / "1")
    assert n_iter <= each <= n_iter + 2
    assert len(list((tmp_path / "1").iterdir())) == 2
    third, _ = count_writes(monkeypatch, checkpoint=tmp_path / "3", checkpoint_every=3)
    assert third <= -(-n_iter // 3) + 2
    for never in (1e6, "9000 minutes", "1000 h"):
        path = tmp_path / str(never)
        assert count_writes(monkeypatch, checkpoint=path, checkpoint_every=never)[0] <= 3
    often, _ = count_writes(monkeypatch, checkpoint=tmp_path / "o", checkpoint_every=1e-9)
    assert often >= n_iter


@pytest.mark.parametrize("pace", [1, "1ns"])
def test_annealing_on_samples_is_recorded_too(tmp_path, monkeypatch, pace):
    monkeypatch.setattr("daskmm.engine.first_pass.LARGER_SAMPLE_BYTES", 80 * 8 * X.shape[1])
    stages = []

    def write(path, value):
        stages.append(list(value["stages"])[-1])
        write_state(path, value)

    monkeypatch.setattr(checkpoint, "write_state", write)
    fitted("power, sampled", checkpoint=tmp_path / "c", checkpoint_every=pace)
    assert {"starting centres", "annealing", "passes"} <= set(stages)
    assert stages.count("annealing") > 3
    assert stages == sorted(stages, key=list(dict.fromkeys(stages)).index)


@pytest.mark.parametrize(
    "every", [0, -1, 0.0, -0.5, "soon", "-3s", "0s", "", "5 parsecs", None, np.nan, np.inf]
)
def test_texts_that_are_no_pace_are_refused(tmp_path, every):
    with pytest.raises(ValueError, match="checkpoint_every"):
        fitted("power", checkpoint=tmp_path / "c", checkpoint_every=every)
    assert not (tmp_path / "c").exists()


def test_paces_are_read_from_numbers_and_durations():
    assert Pace.of(3) == Pace(iterations=3)
    assert Pace.of(np.int64(3)) == Pace(iterations=3)
    assert Pace.of(2.5) == Pace(seconds=2.5)
    assert Pace.of("1.5 minutes") == Pace(seconds=90.0)
    assert Pace.of("30s") == Pace(seconds=30.0)


def test_nothing_is_left_of_a_fit_that_cannot_begin(tmp_path):
    bad = with_change((3, 1), np.nan)
    for name in SIX:
        with pytest.raises(ValueError, match="NaN"):
            clone(MODELS[name]).set_params(checkpoint=tmp_path / "a" / "c").fit(bad)
    with pytest.raises(ValueError, match="n_landmarks=999 is more"):
        fitted("kernel, landmarks", checkpoint=tmp_path / "a" / "c", n_landmarks=999)
    assert not list(tmp_path.iterdir())


# Stopping


def trained(model, max_iter):
    """The same algorithm, for exactly so many iterations."""
    return clone(model).set_params(max_iter=max_iter)


STOPPED = {
    "k-means": KMeans(K, init="random", n_init=1, tol=0, standardize=False, random_state=3),
    "power": PowerKMeans(K, n_init=2, tol=0, standardize=False, random_state=0),
    "entropy": EntropyPowerKMeans(K, lam="0.5*variance", n_init=2, tol=0, random_state=0),
    "kernel": KernelPowerKMeans(K, n_init=1, tol=0, random_state=0),
    "multi-kernel": MultiKernelPowerKMeans(
        K, kernels=["rbf", "cosine"], n_init=1, tol=0, random_state=0
    ),
}


@functools.cache
def unstopped_training(name):
    return trained(STOPPED[name], 60).fit(X)


@pytest.mark.in_turn("stop")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("stop", [StopIteration, KeyboardInterrupt])
@pytest.mark.parametrize("after", [pytest.param(1, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("name", STOPPED)
def test_a_stop_leaves_the_model_of_the_last_whole_iteration(tmp_path, name, after, stop):
    def callback(record):
        if record.iteration == after:
            raise stop

    path = tmp_path / "c"
    model = trained(STOPPED[name], 60).set_params(checkpoint=path, callbacks=[callback])
    if stop is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt) as caught:
            model.fit(X)
        notes = " ".join(caught.value.__notes__)
        assert "holds the model of the last whole iteration" in notes
        assert str(path) in notes
    else:
        with pytest.warns(ConvergenceWarning, match="A callback asked the fit to stop"):
            model.fit(X)
    assert model.n_iter_ == len(model.objective_history_) == after
    assert_same_bits(model, trained(STOPPED[name], after).fit(X))
    assert model.inertia_ == pytest.approx(-model.score(X), rel=1e-9)
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    # The checkpoint goes on to where the fit would have come.
    resumed = trained(STOPPED[name], 60).set_params(checkpoint=path).fit(X)
    assert_same_bits(resumed, unstopped_training(name))


@pytest.mark.parametrize("stop", [StopIteration, KeyboardInterrupt])
def test_a_mean_shift_that_was_stopped_can_be_resumed(tmp_path, stop):
    def callback(record):
        if record.iteration == 8:
            raise stop

    model = clone(MODELS["mean shift"]).set_params(checkpoint=tmp_path / "c")
    model.set_params(callbacks=[callback])
    expected = KeyboardInterrupt if stop is KeyboardInterrupt else ConvergenceWarning
    with pytest.raises(expected) if stop is KeyboardInterrupt else pytest.warns(expected):
        model.fit(X)
    assert model.n_iter_ == len(model.history_) == 8
    assert set(np.unique(model.labels_)) == set(range(model.n_clusters_))
    assert model.predict(X).shape == (N,)
    assert_same_bits(fitted("mean shift", checkpoint=tmp_path / "c"), unstopped("mean shift"))


def interrupt_pass(monkeypatch, numbers):
    """Interrupt certain sweeps over the data, counted from 1, in their midst."""
    reduce, count = daskmm.engine.passes.Passes.reduce, iter(range(1, 10**6))

    def interrupted(self, kernel, *shared):
        if kernel.__name__ != "block_sums" or next(count) not in numbers:
            return reduce(self, kernel, *shared)
        reduce(self, kernel, *shared)
        raise KeyboardInterrupt

    monkeypatch.setattr("daskmm.engine.passes.Passes.reduce", interrupted)


def test_an_interrupt_within_an_iteration_leaves_the_last_whole_one(tmp_path, monkeypatch):
    model = clone(STOPPED["power"])
    with monkeypatch.context() as patch:
        interrupt_pass(patch, {5})
        with pytest.raises(KeyboardInterrupt):
            model.fit(X)
    assert_same_bits(model, trained(STOPPED["power"], 4).fit(X))


def test_an_interrupt_before_the_first_iteration_leaves_nothing(tmp_path, monkeypatch):
    model = clone(STOPPED["power"])
    interrupt_pass(monkeypatch, {1})
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert not hasattr(model, "cluster_centers_")


def test_a_second_interrupt_ends_the_fit_without_a_model(tmp_path, monkeypatch):
    path = tmp_path / "c"
    model = clone(MODELS["power"]).set_params(checkpoint=path)
    with monkeypatch.context() as patch:
        interrupt_pass(patch, {5, 6})
        with pytest.raises(KeyboardInterrupt):
            model.fit(X)
    assert not hasattr(model, "cluster_centers_")
    assert_same_bits(fitted("power", checkpoint=path), unstopped("power"))


@pytest.mark.parametrize("name", ["power, sampled", "entropy, sampled", "kernel, landmarks"])
def test_a_fit_interrupted_on_the_sample_is_resumed_from_its_checkpoint(
    tmp_path, monkeypatch, name
):
    """With a checkpoint, the states of starts that are annealed are known."""
    path, reduce = tmp_path / "c", daskmm.kmeans.sample_annealing.tree_reduce
    calls = []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return reduce(*arguments)

    model = clone(MODELS[name]).set_params(checkpoint=path)
    with monkeypatch.context() as patch:
        patch.setattr("daskmm.kmeans.sample_annealing.tree_reduce", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.fit(X)
    assert model.n_iter_ == 0
    assert len(model.history_) >= 1
    assert model.inertia_ == pytest.approx(-model.score(X), rel=1e-9)
    assert_same_bits(fitted(name, checkpoint=path), unstopped(name))


def test_a_fit_interrupted_on_the_sample_without_a_checkpoint_has_a_model(monkeypatch):
    monkeypatch.setattr("daskmm.mm.journal._REPORT_SECONDS", 1e-9)
    reduce, calls = daskmm.kmeans.sample_annealing.tree_reduce, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return reduce(*arguments)

    monkeypatch.setattr("daskmm.kmeans.sample_annealing.tree_reduce", interrupted)
    model = clone(MODELS["power, sampled"])
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert model.inertia_ == pytest.approx(-model.score(X), rel=1e-9)


@pytest.mark.in_turn("name")
@pytest.mark.parametrize("every", [1, 100])
@pytest.mark.parametrize("name", SIX)
def test_an_error_in_a_callback_ends_the_fit_and_keeps_it(tmp_path, name, every):
    class OwnError(Exception):
        pass

    def fail(record):
        raise OwnError("mine")

    path = tmp_path / "c"
    with pytest.raises(OwnError, match="mine") as caught:
        fitted(name, checkpoint=path, checkpoint_every=every, callbacks=[fail])
    assert str(path) in caught.value.__notes__[0]
    records = []
    model = fitted(name, checkpoint=path, callbacks=[records.append])
    assert not records or records[0].iteration == 2
    assert_same_bits(model, unstopped(name))


def test_a_callback_hears_of_every_iteration_once(tmp_path, monkeypatch):
    heard = []
    lives(
        monkeypatch,
        tmp_path / "c",
        lambda p: fitted("power", checkpoint=p, callbacks=[heard.append]),
        writes=3,
    )
    numbers = [record.iteration for record in heard]
    assert numbers == sorted(set(numbers))


def test_callbacks_hear_of_the_best_start_after_its_end():
    rows = np.abs(np.random.default_rng(3).standard_normal((400, 6)))
    heard = []
    options = {"sample_size": None, "random_state": 0, "callbacks": [heard.append]}
    model = KMeans(8, n_init=8, distortion="cosine", **options).fit(rows)
    costs = [record.objective for record in heard]
    assert [record.iteration for record in heard] == list(range(1, model.n_iter_ + 1))
    assert len(model.history_) < model.n_iter_
    assert costs == sorted(costs, reverse=True)


def test_records_cannot_be_changed():
    def change(record):
        record.s = -2.0

    with pytest.raises(dataclasses.FrozenInstanceError):
        fitted("power", callbacks=[change])


# On a cluster


@pytest.mark.long
def test_a_fit_on_a_cluster_is_resumed(tmp_path):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        for name in ("entropy, sampled", "kernel, one start", "mean shift"):
            killed_at(tmp_path / name, name, 1, form="dask", checkpoint_every="1ns")
            model = fitted(name, "dask", checkpoint=tmp_path / name, checkpoint_every="50ms")
            reference = fitted(name, "dask")
            np.testing.assert_array_equal(computed(model.labels_), computed(reference.labels_))
            objectives = [
                [getattr(record, "objective", record.n_passes) for record in fit.history_]
                if name != "mean shift"
                else [record.entropy for record in fit.history_]
                for fit in (model, reference)
            ]
            np.testing.assert_allclose(*objectives, rtol=1e-9)


# Gram stores


def test_a_gram_store_for_one_fit_is_built_once(tmp_path, monkeypatch):
    monkeypatch.setattr("daskmm.gram.sources.MEMORY_BYTES", 1000)
    monkeypatch.setattr("daskmm.gram.build.TILE_ROWS", 60)
    monkeypatch.setitem(daskmm.gram.build.build.__kwdefaults__, "tile_rows", 60)
    made = []
    make = daskmm.gram.build.kernel_tile

    def counted(kernel, x, y, tile):
        if len(made) == 4 and not (tmp_path / "dead").exists():
            (tmp_path / "dead").touch()
            raise KilledError
        made.append(tile)
        return make(kernel, x, y, tile)

    monkeypatch.setattr(daskmm.gram.build, "kernel_tile", counted)
    monkeypatch.setattr("daskmm.engine.threads.cpu_count", lambda: 1)
    path = tmp_path / "c"
    with pytest.raises(KilledError):
        fitted("kernel, one start", checkpoint=path)
    assert len(list(path.glob("work-*/gram"))) == 1
    killed_at(path, "kernel, one start", iteration=3)
    model = fitted("kernel, one start", checkpoint=path)
    assert len(made) == len(set(made)) == 10
    assert model.gram_.startswith("stored for this fit")
    assert not list(path.glob("work*"))
    assert_same_bits(model, fitted("kernel, one start"))


# What an estimator does with the parameters


def test_parameters_of_checkpoints_are_cloned_saved_and_checked(tmp_path):
    model = clone(MODELS["power"]).set_params(checkpoint=tmp_path / "c", checkpoint_every="5s")
    assert clone(model).get_params()["checkpoint"] == tmp_path / "c"
    model.fit(X).save(tmp_path / "model")
    loaded = daskmm.load(tmp_path / "model")
    assert loaded.checkpoint is None  # a file does not choose where a fit writes
    assert loaded.checkpoint_every == "5s"
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).labels_, model.labels_)
    with pytest.raises(ValueError, match="'checkpoint' parameter"):
        clone(model).set_params(checkpoint=3).fit(X)


def test_without_a_checkpoint_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fitted("power")
    assert not list(tmp_path.iterdir())


# The command line


def command(npy, out, *options):
    command = ["fit", npy, "-k", str(K), "--out", str(out), "--quiet", "--no-pictures"]
    return [*command, "--no-standardize", *options]


def outcome(out):
    run = daskmm.cli.run_folder.open_run(out)
    apart = ("created", "seconds", "peak_memory_bytes", "n_passes", "history")
    labels = zarr.open_array(f"{out}/{daskmm.cli.run_folder.LABELS}", mode="r")[:]
    return {k: v for k, v in run.summary.items() if k not in apart}, labels.tolist()


@pytest.mark.in_turn("options")
@pytest.mark.parametrize("options", [[], ["--sample-size", "60", "--model", "entropy"]])
def test_a_killed_command_is_resumed_to_the_same_run_folder(
    tmp_path, monkeypatch, capsys, npy, options
):
    assert main(command(npy, tmp_path / "a", *options)) == 0
    run = tmp_path / "b"
    code, n = lives(
        monkeypatch, run / "checkpoint", lambda _: main(command(npy, run, *options)), writes=4
    )
    assert code == 0
    assert n >= 2
    assert outcome(run) == outcome(tmp_path / "a")
    assert {item.name for item in run.iterdir()} == RUN_FOLDER
    assert "checkpoint" not in json.loads((run / "summary.json").read_text())["parameters"]
    assert daskmm.load(run / "model").checkpoint is None
    assert "run the same command to resume" in capsys.readouterr().err


def test_a_command_with_other_options_is_not_resumed(tmp_path, monkeypatch, capsys, npy):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        Mortal(patch, 3)
        with pytest.raises(KilledError):
            main(command(npy, run))
    capsys.readouterr()
    assert main(command(npy, run, "--eta", "1.2")) == 2
    error = capsys.readouterr().err
    assert "eta is 1.05 there and 1.2 here" in error
    assert "goes on" not in error
    assert main(command(npy, run)) == 0
    assert main(command(npy, run)) == 2
    assert "run exists" in capsys.readouterr().err


def test_the_command_is_interrupted(tmp_path, monkeypatch, capsys, npy):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt_pass(patch, {4})
        assert main(command(npy, run)) == 130
    error = capsys.readouterr().err
    assert "holds a checkpoint; run the same command to resume" in error
    assert main(command(npy, run)) == 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a command leaves that nothing stops."""
    folder = tmp_path_factory.mktemp("whole")
    source = str(folder / "x.npy")
    np.save(source, X)
    assert main(command(source, folder / "run")) == 0
    return source, outcome(folder / "run")


@pytest.mark.parametrize("stage", ["model", "labels", "summary", "move 1", "move 3", "removal"])
def test_a_command_that_dies_while_it_writes_can_be_repeated(
    tmp_path, monkeypatch, capsys, whole, stage
):
    (source, expected), run, moves = whole, tmp_path / "b", []

    def die(*arguments, **options):
        raise KilledError

    def move(self, target):
        moves.append(target)
        if f"move {len(moves)}" == stage:
            raise KilledError
        os.rename(self, target)

    with monkeypatch.context() as patch:
        if stage.startswith("move"):
            patch.setattr("pathlib.Path.replace", move)
        else:
            where = {
                "model": "daskmm.cluster._models.save",
                "labels": "daskmm.engine.labels.LabelWriter.finish",
                "summary": "daskmm.cli.run_folder.summarize",
                "removal": "daskmm.cli.run_folder.remove_checkpoint",
            }
            patch.setattr(where[stage], die)
        with pytest.raises(KilledError):
            main(command(source, run))
    if stage == "removal":  # all is there
        assert outcome(run) == expected
        return
    assert not (run / "summary.json").exists()
    assert main(command(source, run)) == 0
    assert outcome(run) == expected
    assert {item.name for item in run.iterdir()} == RUN_FOLDER
    capsys.readouterr()


def test_a_run_replaces_nothing_of_the_user(tmp_path, monkeypatch, capsys, caplog, npy):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        Mortal(patch, 3)
        with pytest.raises(KilledError):
            main(command(npy, run))
    mine = things(run, "model", "checkpoint/notes.txt", ".fresh-mine/a", "notes.txt")
    assert main(command(npy, run)) == 2
    assert "run/model exists" in capsys.readouterr().err
    assert texts(run, mine) == mine
    (run / "model").unlink()
    (run / "centers.csv").write_text("years of work")
    assert main(command(npy, run)) == 2
    assert "run/centers.csv exists" in capsys.readouterr().err
    assert not list(run.glob(".fresh-?????*"))
    (run / "centers.csv").unlink()
    assert main(command(npy, run)) == 0
    assert f"{run / 'checkpoint'} stays: notes.txt is not a state" in caplog.text
    del mine["model"]
    assert texts(run, mine) == mine
    assert {item.name for item in run.iterdir()} == RUN_FOLDER | {
        *("checkpoint", ".fresh-mine", "notes.txt")
    }
    assert [item.name for item in (run / "checkpoint").iterdir()] == ["notes.txt"]


def test_a_folder_of_the_user_that_has_a_checkpoint_is_no_unfinished_run(tmp_path):
    mine = things(tmp_path, "checkpoint/weights.bin", "model/weights.bin")
    with pytest.raises(FileExistsError, match="exists"):
        daskmm.write_run(tmp_path, fitted("power"), X, report=False)
    assert texts(tmp_path, mine) == mine


# Processes that are killed indeed


def killed_processes(path, npy, name, after):
    """Fit in processes that are killed after so many iterations; the model, and how many."""
    model = clone(MODELS[name])
    given = {k: v for k, v in model.get_params().items() if k not in checkpoint_parameters}
    for n in range(20):
        code = _processes.exit_code(
            _victims.fit_and_die, type(model).__name__, given, npy, path, after
        )
        if code == 0:
            return daskmm.load(f"{path}-model"), n
        assert code == -signal.SIGKILL
    raise AssertionError("it never ends")


checkpoint_parameters = ("checkpoint", "checkpoint_every", "callbacks")


def undisturbed(folder, name):
    """The model of a fit in this process, as it is loaded."""
    fitted(name).save(folder / "undisturbed")
    return daskmm.load(folder / "undisturbed")


@pytest.mark.long
@pytest.mark.parametrize("name", SIX)
def test_processes_that_are_killed_resume_to_the_same_bits(tmp_path, npy, name):
    every = {"power": 3, "entropy": 3, "mean shift": 6}
    model, n = killed_processes(tmp_path / "c", npy, name, every.get(name, 1))
    assert n >= 1
    assert_same_bits(model, undisturbed(tmp_path, name))


def test_a_moved_checkpoint_resumes_to_the_same_bits(tmp_path):
    """A checkpoint knows of no path."""
    for name in ("power", "mean shift"):
        killed_at(tmp_path / "a", name)
        shutil.move(tmp_path / "a", tmp_path / f"b-{name}")
        assert_same_bits(fitted(name, checkpoint=tmp_path / f"b-{name}"), unstopped(name))
