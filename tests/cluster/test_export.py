"""Fitted estimators of scikit-learn made of ours."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.cluster import KMeans as ScikitLearnKMeans
from sklearn.mixture import GaussianMixture as ScikitLearnMixture

from daskmm import EntropyPowerKMeans, GaussianMixture, KMeans, PowerKMeans

X = np.random.default_rng(0).normal(size=(400, 6)) * [1, 10, 0.1, 1, 1, 3] + 50.0
X[:200, :2] += [5.0, 40.0]
MODELS = {
    "plain": KMeans(4, random_state=0),
    "standardized": PowerKMeans(4, standardize=True, random_state=0),
    "weighted": EntropyPowerKMeans(2, lam="0.2*variance", random_state=0),
    "directions": KMeans(4, distortion="cosine", random_state=0),
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_go_to_the_same_clusters(name):
    model = MODELS[name].fit(X)
    exported = pickle.loads(pickle.dumps(model.to_sklearn()))
    new = np.random.default_rng(1).permutation(X) + 0.1
    np.testing.assert_array_equal(exported.predict(X), model.labels_)
    np.testing.assert_array_equal(exported.predict(new), model.predict(new))


def test_centers_have_the_units_of_the_input():
    model = KMeans(4, random_state=0).fit(X)
    exported = model.to_sklearn()
    assert type(exported) is ScikitLearnKMeans
    np.testing.assert_array_equal(exported.cluster_centers_, model.cluster_centers_)


def test_a_feature_without_weight_does_not_count():
    constant = np.column_stack([X, np.full(len(X), 7.0)])
    model = EntropyPowerKMeans(2, lam="0.2*variance", random_state=0).fit(constant)
    assert model.feature_weights_[-1] == 0
    moved = constant.copy()
    moved[:, -1] = 1e6
    np.testing.assert_array_equal(model.to_sklearn().predict(moved), model.labels_)


@pytest.mark.parametrize("other", [{"distortion": "manhattan"}, {"missing": "partial"}])
def test_models_without_counterpart_in_scikit_learn_are_refused(other):
    model = KMeans(3, random_state=0, **other).fit(X)
    with pytest.raises(ValueError, match="scikit-learn's KMeans"):
        model.to_sklearn()


def written_and_read_by_skops(exported, tmp_path):
    skops = pytest.importorskip("skops.io", reason="needs the extra export")
    skops.dump(exported, tmp_path / "model.skops")
    # Nothing in the file needs to be trusted beyond what skops trusts itself.
    assert skops.get_untrusted_types(file=tmp_path / "model.skops") == []
    return skops.load(tmp_path / "model.skops").predict


def run_by_onnx(exported, tmp_path):
    skl2onnx = pytest.importorskip("skl2onnx", reason="needs the extra export")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra export")
    kind = skl2onnx.common.data_types.DoubleTensorType([None, X.shape[1]])
    graph = skl2onnx.to_onnx(exported, initial_types=[("rows", kind)])
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    return lambda rows: session.run(["label"], {"rows": rows})[0]


@pytest.mark.long
@pytest.mark.filterwarnings("default")  # those libraries' own
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("carried", [written_and_read_by_skops, run_by_onnx])
def test_exports_go_through_other_formats(carried, name, tmp_path):
    model = MODELS[name].fit(X)
    labels = carried(model.to_sklearn(), tmp_path)(X)
    np.testing.assert_array_equal(labels, model.labels_)


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_mlflow_logs_estimators(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="needs the extra export")
    pytest.importorskip("alembic", reason="needs the extra export")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    mlflow.create_experiment("exports", artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment("exports")
    model = MODELS["weighted"].fit(X)
    # Ours as a pickle; scikit-learn's own in the default format, which runs no code.
    for logged, options in (
        (model, {"serialization_format": "cloudpickle"}),
        (model.to_sklearn(), {}),
    ):
        with mlflow.start_run():
            told = mlflow.sklearn.log_model(
                logged, name="model", pip_requirements=["daskmm"], **options
            )
        loaded = mlflow.sklearn.load_model(told.model_uri)
        assert type(loaded) is type(logged)
        np.testing.assert_array_equal(loaded.predict(X), model.labels_)


@pytest.mark.in_turn("name")
@pytest.mark.parametrize("name", MODELS)
def test_names_of_features_are_kept(name):
    frame = pd.DataFrame(X, columns=list("abcdef"))
    model = clone(MODELS[name]).fit(frame)
    exported = model.to_sklearn()
    assert list(exported.feature_names_in_) == list("abcdef")
    np.testing.assert_array_equal(exported.predict(frame), model.labels_)
    with pytest.raises(ValueError, match="feature names"):
        exported.predict(frame[list("fedcba")])
    assert not hasattr(clone(MODELS[name]).fit(X).to_sklearn(), "feature_names_in_")


@pytest.mark.in_turn("covariance_type")
@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_mixtures_become_mixtures_of_scikit_learn(covariance_type):
    frame = pd.DataFrame(X, columns=list("abcdef"))
    model = GaussianMixture(3, covariance_type=covariance_type, random_state=0).fit(frame)
    exported = pickle.loads(pickle.dumps(model.to_sklearn()))
    assert type(exported) is ScikitLearnMixture
    np.testing.assert_array_equal(exported.predict(frame), model.labels_)
    np.testing.assert_allclose(exported.predict_proba(frame), model.predict_proba(frame), atol=1e-9)
    assert exported.score(frame) == pytest.approx(model.score(frame))
    assert exported.bic(frame) == pytest.approx(model.bic(frame))
    assert exported.sample(5)[0].shape == (5, 6)
    with pytest.raises(ValueError, match="student"):
        GaussianMixture(2, tails="student", random_state=0).fit(X).to_sklearn()
