"""A machine that thinks of cases: a model beside a twin that nothing ever happens to.

Both get the same data and parameters in the same order. The model is interrupted, fails, is
resumed, saved, pickled and moved between schedulers on the way; whatever happened, its fitted
attributes have the bits of the twin's.
"""

import copy
import os
import pickle
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import daskmm
from daskmm import EntropyPowerKMeans, KMeans, PowerKMeans
from daskmm.storage.records import encode

N_ROWS, BLOCK = 48, 16
# Runs of the long test; a night may ask for more.
RUNS = int(os.environ.get("DASKMM_MACHINE_RUNS", "60"))
# A resumed fit has read the data more often; lazy labels are compared by `predict`.
UNCOMPARED = {"n_passes_", "labels_", "_block_labels"}
SCHEDULERS = ["synchronous", "threads"]


def tables():
    """Small tables, alike and not: their clusters, scales, columns and multiplicities differ."""
    rng = np.random.default_rng(0)
    centers = rng.normal(0.0, 6.0, (3, 3))
    made = [centers[rng.integers(3, size=N_ROWS)] + rng.normal(size=(N_ROWS, 3)) for _ in range(3)]
    made.append(np.repeat(made[0][:4], N_ROWS // 4, axis=0))
    made.append(made[1] * [1.0, 100.0, 0.01] + 1e3)
    return made


TABLES = tables()


class StruckError(Exception):
    """The fault that was injected."""


def described(model):
    """Fitted attributes of a model, as values that are equal only if all bits are."""

    def put(name, array):
        return array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes()

    found = {}
    for name, value in model.__getstate__().items():
        if name == "history_":
            value = [replace(r, seconds=0.0, n_passes=0) for r in value]
        if name.endswith("_") and name not in UNCOMPARED:
            found[name] = encode(value, put, name)
    return found


def lazy_failing(X, error, at):
    """The rows in blocks, of which the `at`-th that is read raises an error."""
    reads = []

    def read(block):
        reads.append(len(block))
        if len(reads) == at:
            raise error
        return block

    return da.from_array(X, chunks=(BLOCK, -1)).map_blocks(read, meta=X[:0], name=False)


def lazy(X, rows=BLOCK):
    return da.from_array(X, chunks=(rows, -1))


class Life(RuleBasedStateMachine):
    """What may happen to an estimator."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.n_paths = 0

    def teardown(self):
        self.folder.cleanup()

    def path(self, name):
        self.n_paths += 1
        return Path(self.folder.name) / f"{name}-{self.n_paths}"

    @initialize(
        cls=st.sampled_from([KMeans, PowerKMeans, EntropyPowerKMeans]),
        polish=st.booleans(),
        standardize=st.booleans(),
        n_clusters=st.integers(2, 4),
        forget=st.sampled_from([None, "2 calls", 60.0]),
    )
    def born(self, cls, polish, standardize, n_clusters, forget):
        parameters = {"n_init": 2, "random_state": 0, "max_iter": 9, "forget": forget}
        if cls is not KMeans:
            parameters |= {"polish": polish, "eta": 1.5}
        if cls is EntropyPowerKMeans:
            parameters["lam"] = 0.4
        model = cls(n_clusters, standardize=standardize, **parameters)
        self.model, self.twin = model, clone(model)

    def both(self, act):
        """Let both do the same, undisturbed."""
        act(self.model)
        act(self.twin)

    @property
    def fitted(self):
        return hasattr(self, "model") and hasattr(self.model, "cluster_centers_")

    def fails(self, act, error):
        """Let the model fail; it must be what it was."""
        before, parameters = described(self.model), self.model.get_params(deep=False)
        with pytest.raises(type(error)):
            act(self.model)
        assert described(self.model) == before
        assert self.model.get_params(deep=False) == parameters

    @rule(table=st.sampled_from(range(len(TABLES))), streamed=st.booleans(), weighted=st.booleans())
    def fit(self, table, streamed, weighted):
        X = TABLES[table]
        weights = np.arange(len(X)) % 3 + 0.5 if weighted else None
        self.both(lambda model: model.fit(lazy(X) if streamed else X, sample_weight=weights))

    @rule(
        table=st.sampled_from(range(len(TABLES))),
        at=st.integers(1, 12),
        error=st.sampled_from([OSError("read"), MemoryError("read"), KeyboardInterrupt("read")]),
    )
    def a_read_fails_and_the_fit_is_repeated(self, table, at, error):
        X, model = TABLES[table], self.model.set_params(checkpoint=self.path("state"))
        before = described(model)
        try:
            model.fit(lazy_failing(X, error, at))
        except (OSError, MemoryError):
            assert described(model) == before
        except KeyboardInterrupt:
            pass
        model.fit(lazy(X))
        model.set_params(checkpoint=None)
        self.twin.fit(lazy(X))

    @rule(
        table=st.sampled_from(range(len(TABLES))),
        at=st.integers(0, 8),
        error=st.sampled_from([StruckError("callback"), KeyboardInterrupt("callback")]),
        streamed=st.booleans(),
    )
    def a_record_fails_and_the_fit_is_resumed(self, table, at, error, streamed):
        X = lazy(TABLES[table]) if streamed else TABLES[table]

        def strike(record):
            if record.iteration == at:
                raise error

        model = self.model.set_params(checkpoint=self.path("state"), callbacks=[strike])
        before = described(model)
        try:
            model.fit(X)
        except (StruckError, KeyboardInterrupt) as raised:
            if isinstance(raised, StruckError):
                assert described(model) == before
            else:
                np.testing.assert_array_equal(model.predict(X), model.labels_)
        model.set_params(callbacks=None).fit(X)
        model.set_params(checkpoint=None)
        self.twin.fit(X)

    @rule(
        table=st.sampled_from(range(3)),
        part=st.integers(0, 2),
        key=st.sampled_from([None, "a", "b"]),
        streamed=st.booleans(),
        fails=st.booleans(),
    )
    def partial_fit(self, table, part, key, streamed, fails):
        X = TABLES[table][part * BLOCK : (part + 1) * BLOCK]
        if fails:
            error = OSError("read")
            self.fails(lambda m: m.partial_fit(lazy_failing(X, error, 1), key=key), error)
        self.both(lambda model: model.partial_fit(lazy(X, 7) if streamed else X, key=key))

    @rule(bad=st.sampled_from(["nan", "columns", "rows"]), update=st.booleans())
    def data_are_refused(self, bad, update):
        X = TABLES[0].copy()
        X[5, 1] = np.nan
        X = {"nan": X, "columns": np.empty((N_ROWS, 0)), "rows": TABLES[0][:0]}[bad]
        act = (lambda m: m.partial_fit(X)) if update else (lambda m: m.fit(X))
        self.fails(act, ValueError())

    @rule(warm=st.booleans())
    def warm_start(self, warm):
        self.both(lambda model: model.set_params(warm_start=warm))

    @rule(forget=st.sampled_from([None, "1 call", 30.0]))
    def forget(self, forget):
        self.both(lambda model: model.set_params(forget=forget))

    @precondition(lambda self: self.fitted)
    @rule()
    def save_and_load(self):
        path = self.path("model")
        self.model.save(path)
        self.model.save(path, overwrite=True)
        self.model = daskmm.load(path)

    @rule(how=st.sampled_from(["pickle", "deepcopy", "copy"]))
    def copied(self, how):
        copies = {
            "pickle": lambda m: pickle.loads(pickle.dumps(m)),
            "deepcopy": copy.deepcopy,
            "copy": copy.copy,
        }
        self.model = copies[how](self.model)

    @precondition(lambda self: self.fitted and not self.model.warm_start)
    @rule(table=st.sampled_from(range(len(TABLES))), rows=st.integers(5, N_ROWS))
    def other_chunks_change_rounding_only(self, table, rows):
        X = TABLES[table]
        other = clone(self.model).fit(lazy(X, rows))
        usual = clone(self.model).fit(lazy(X))
        for name in ("cluster_centers_", "inertia_", "cluster_sizes_"):
            expected = getattr(usual, name)
            np.testing.assert_allclose(getattr(other, name), expected, rtol=1e-7, atol=1e-7)

    @rule(scheduler=st.sampled_from(SCHEDULERS), table=st.sampled_from(range(len(TABLES))))
    def fit_on_another_scheduler(self, scheduler, table):
        X = lazy(TABLES[table])
        with dask.config.set(scheduler=scheduler):
            self.model.fit(X)
        self.twin.fit(X)

    @invariant()
    def all_bits_are_those_of_the_twin(self):
        if not hasattr(self, "model"):
            return
        ours, theirs = described(self.model), described(self.twin)
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert ours[name] == value, name
        assert self.fitted == hasattr(self.twin, "cluster_centers_")
        if self.fitted:
            X = TABLES[0]
            np.testing.assert_array_equal(self.model.predict(X), self.twin.predict(X))
            assert self.model.score(X) == self.twin.score(X)


def lives(runs, steps):
    """Run the machine, without warnings of fits that end early by design."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        machine = settings(
            max_examples=runs,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        )
        Life.TestCase.settings = machine
        Life.TestCase().runTest()


def test_whatever_happens_to_a_model_it_has_the_bits_of_its_twin():
    lives(6, 6)


@pytest.mark.long
def test_whatever_happens_to_a_model_it_has_the_bits_of_its_twin_in_many_runs():
    lives(RUNS, 12)
