"""What notebooks show: estimators, and progress in place."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import sklearn
from _support import blobs, quick, raise_if_computes
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from daskmm import (
    EntropyPowerKMeans,
    KernelPowerKMeans,
    KMeans,
    MultiKernelPowerKMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
    load,
)

X, _ = blobs()
ALL = [
    quick(KMeans),
    quick(PowerKMeans),
    quick(EntropyPowerKMeans),
    KernelPowerKMeans(4, n_init=1, random_state=0),
    MultiKernelPowerKMeans(4, n_init=1, random_state=0),
    WeightedBlurringMeanShift(0.1),
]


@pytest.mark.parametrize("model", ALL, ids=lambda model: type(model).__name__)
def test_html_of_every_estimator(model):
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
