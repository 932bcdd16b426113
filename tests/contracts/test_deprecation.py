"""How public names change: the old ones work, warn where they are used, and are gone in time."""

import importlib
import inspect
import pkgutil
import sys
import types

import pytest
from packaging.version import Version
from sklearn.base import BaseEstimator, clone

import daskmm
from daskmm import _deprecation
from daskmm._deprecation import Renaming, renamed, renamed_parameter

WHEN = {"since": "0.2", "removed": "99.0"}


@pytest.fixture(autouse=True)
def none_is_kept(monkeypatch):
    monkeypatch.setattr(_deprecation, "RENAMINGS", [])


@pytest.fixture
def module(monkeypatch):
    made = types.ModuleType("made_up")
    made.new_name = 7
    made.__getattr__ = renamed("made_up", {"old_name": "new_name"}, **WHEN)
    monkeypatch.setitem(sys.modules, "made_up", made)
    return made


def test_a_renamed_name_of_a_module(module):
    with pytest.warns(FutureWarning, match=r"old_name was renamed to made_up\.new_name") as told:
        assert module.old_name == 7
    assert told[0].filename == __file__
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        module.other  # noqa: B018
    assert "old_name" not in dir(module)


def test_a_renamed_name_can_be_imported(module):
    with pytest.warns(FutureWarning, match="the old name goes in 99.0"):
        from made_up import old_name
    assert old_name == 7


@renamed_parameter("clusters", "n_clusters", **WHEN)
def labels(X, n_clusters=2):
    """Nothing in particular."""
    return X, n_clusters


class Estimator(BaseEstimator):
    @renamed_parameter("clusters", "n_clusters", **WHEN)
    def __init__(self, n_clusters=2):
        self.n_clusters = n_clusters


def test_a_renamed_parameter_of_a_function():
    with pytest.warns(FutureWarning, match=r"parameter clusters of labels .* n_clusters") as told:
        assert labels(1, clusters=3) == (1, 3)
    assert told[0].filename == __file__
    assert labels(1, 3) == labels(1, n_clusters=3) == (1, 3)
    assert list(inspect.signature(labels).parameters) == ["X", "n_clusters"]
    with pytest.raises(TypeError, match="takes n_clusters or its old name clusters, not both"):
        labels(1, clusters=3, n_clusters=3)


def test_a_renamed_parameter_of_an_estimator():
    with pytest.warns(FutureWarning, match="parameter clusters of Estimator"):
        model = Estimator(clusters=3)
    assert model.get_params() == {"n_clusters": 3}
    assert clone(model).n_clusters == 3


def test_old_names_are_gone_in_time(monkeypatch):
    monkeypatch.undo()
    for found in pkgutil.walk_packages(daskmm.__path__, "daskmm."):
        # The library of the compiled loops lies among the modules, but is none.
        if not found.name.endswith(("__main__", "libdaskmm_loops")):
            importlib.import_module(found.name)
    now = Version(daskmm.__version__)
    assert [str(r) for r in due(_deprecation.RENAMINGS, now)] == []


def due(renamings, now):
    return [renaming for renaming in renamings if Version(renaming.removed) <= now]


def test_what_is_due():
    soon = Renaming("a", "b", "0.2", "0.4")
    assert due([soon], Version("0.3.9")) == []
    assert due([soon], Version("0.4.0")) == [soon]
