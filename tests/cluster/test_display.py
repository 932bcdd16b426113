"""What notebooks show: estimators, and progress in place."""

import logging
import re
import sys
from types import SimpleNamespace

import dask.array as da
import nbclient
import nbformat
import numpy as np
import pandas as pd
import pytest
import sklearn
from _support import blobs, quick, raise_if_computes
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from daskmm import (
    EntropyPowerKMeans,
    GaussianMixture,
    KernelPowerKMeans,
    KMeans,
    MultiKernelPowerKMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
    load,
)
from daskmm.cluster import _progress as notebook_progress
from daskmm.cluster._summary import scale_in_words

X, _ = blobs()
ALL = [
    quick(KMeans),
    quick(PowerKMeans),
    quick(EntropyPowerKMeans),
    KernelPowerKMeans(4, n_init=1, random_state=0),
    MultiKernelPowerKMeans(4, n_init=1, random_state=0),
    GaussianMixture(4, random_state=0),
    WeightedBlurringMeanShift(0.1),
]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (quick(KMeans), "not standardised"),
        (quick(KMeans, standardize="auto", distortion="euclidean"), "not standardised: 'auto' dec"),
        (KernelPowerKMeans(4, n_init=1, random_state=0), "standardised"),
        (KernelPowerKMeans(4, bandwidth=1.0, n_init=1, random_state=0), "not standardised"),
        (KernelPowerKMeans(4, kernel="precomputed", n_init=1, random_state=0), "None"),
    ],
)
def test_summaries_say_whether_features_are_standardised(model, words):
    rows = X @ X.T if getattr(model, "kernel", None) == "precomputed" else X
    assert str(scale_in_words(model.fit(rows))).startswith(words)


@pytest.mark.parametrize("model", ALL, ids=lambda model: type(model).__name__)
def test_every_estimator_shows_its_results_as_html(model):
    diagram = model._repr_html_()
    assert "sk-top-container" in diagram
    assert "daskmm-fitted" not in diagram
    shown = model.fit(X)._repr_html_()
    assert "sk-top-container" in shown
    summary = shown[shown.index("daskmm-fitted") :]
    k = getattr(model, "n_clusters_", 4)
    sizes = sorted(np.bincount(model.labels_, minlength=k))[::-1]
    for part in (f">{k}<", f"{model.n_passes_} passes", ", ".join(map(str, sizes))):
        assert part in summary
    assert ("heaviest features" in summary) == hasattr(model, "feature_weights_")
    assert ("largest gains beyond noise" in summary) == hasattr(model, "feature_gains_")
    assert ("cost" in summary) == hasattr(model, "inertia_")
    assert model._repr_mimebundle_()["text/html"].count("daskmm-fitted") == 1


def test_scikit_learn_decides_whether_there_is_html():
    model = quick(KMeans).fit(X)
    with sklearn.config_context(display="text"):
        assert not hasattr(model, "_repr_html_")
        assert set(model._repr_mimebundle_()) == {"text/plain"}
    assert "KMeans" in make_pipeline(StandardScaler(), model)._repr_html_()


def test_names_are_escaped():
    frame = pd.DataFrame(X, columns=["<b>", "a&b", "c", "d", "e"])
    shown = quick(EntropyPowerKMeans).fit(frame)._repr_html_()
    summary = shown[shown.index("daskmm-fitted") :]
    assert "&lt;b&gt;" in summary
    assert "<b>" not in summary


def test_lazy_labels_are_not_computed(tmp_path):
    model = quick(PowerKMeans).fit(da.from_array(X, chunks=(60, 5)))
    with raise_if_computes():
        shown = model._repr_html_()
    assert "sizes" not in shown[shown.index("daskmm-fitted") :]
    model.save(tmp_path / "model")
    assert "daskmm-fitted" in load(tmp_path / "model")._repr_html_()


class Display:
    """What a notebook would have received."""

    def __init__(self):
        self.shown = []

    def display(self, content, raw, display_id):
        assert raw
        assert display_id
        self.shown.append(content)
        return SimpleNamespace(update=self.update)

    def update(self, content, raw):
        assert raw
        self.shown.append(content)


@pytest.fixture
def notebook(monkeypatch):
    """Pretends that this process is a notebook's kernel."""
    display = Display()
    shell = SimpleNamespace(kernel=object())
    module = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook_progress, "_INTERVAL", 0.0)
    return display


@pytest.mark.parametrize("model", ALL, ids=lambda model: type(model).__name__)
def test_every_estimator_reports_progress_in_a_notebook(notebook, model, caplog):
    seen = []
    model = type(model)(**model.get_params() | {"verbose": 1, "callbacks": [seen.append]}).fit(X)
    texts = [content["text/plain"] for content in notebook.shown]
    iterations = [text for text in texts if ": iteration " in text]
    assert len(iterations) == len(seen)
    name = type(model).__name__
    assert texts[0] == f"{name}: first look at the data"
    assert iterations[0].startswith(f"{name}: iteration {seen[0].iteration}/{model.max_iter}")
    assert f"{name}: first pass 0%" in texts[1]
    assert f"{seen[-1].iteration} iterations" in texts[-1]
    assert "left" not in texts[-1]
    assert caplog.records == []
    assert texts[-1] in notebook.shown[-1]["text/html"]


def test_progress_says_when_a_fit_fails(notebook):
    with pytest.raises(ValueError, match="NaN"):
        quick(KMeans, verbose=1).fit(np.full((20, 2), np.nan))
    assert notebook.shown[-1]["text/plain"] == "KMeans: stopped by ValueError"


def test_outside_of_notebooks_iterations_are_logged(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert not notebook_progress.in_notebook()
    terminal = SimpleNamespace(get_ipython=lambda: SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython", terminal)
    assert not notebook_progress.in_notebook()
    with caplog.at_level(logging.INFO, "daskmm"):
        model = quick(PowerKMeans, verbose=1).fit(X)
    lines = [record.message for record in caplog.records if "iteration" in record.message]
    assert len(lines) == model.n_iter_
    assert re.fullmatch(
        r"PowerKMeans: iteration 1 · s -[\d.]+ · objective [\d.]+ · \d+ passes · [\d.]+ s", lines[0]
    )
    assert max(map(len, lines)) < 90


@pytest.mark.long
def test_a_real_notebook_updates_one_display():
    """One display, updated in place, and the estimator below it."""
    cell = (
        "import numpy as np\nfrom daskmm import PowerKMeans\n"
        "X = np.random.default_rng(0).normal(size=(300, 3))\nX[:150] += 9\n"
        "PowerKMeans(2, n_init=1, random_state=0, verbose=1).fit(X)"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    progress, result = notebook.cells[0].outputs
    assert progress.output_type == "display_data"
    assert "iterations" in progress.data["text/plain"]
    assert "first look" not in progress.data["text/plain"]
    assert "daskmm-fitted" in result.data["text/html"]
