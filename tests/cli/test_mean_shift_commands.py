"""The command line with mean shift."""

import json

import numpy as np
import pytest
import zarr

from daskmm import WeightedBlurringMeanShift, load
from daskmm.cli.main import main


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    truth = np.arange(150) % 3
    X = np.column_stack(
        [5 * np.eye(3)[truth] + 0.3 * rng.normal(size=(150, 3)), rng.normal(size=(150, 2))]
    )
    path = tmp_path / "table.npy"
    np.save(path, X)
    return path


def run(capsys, *arguments):
    """Exit code, and what was printed on either stream."""
    code = main([str(argument) for argument in arguments])
    return (code, *capsys.readouterr())


def test_a_mean_shift_is_fitted_inspected_and_predicts(table, tmp_path, capsys):
    out = tmp_path / "run"
    fit = ["fit", table, "--model", "mean-shift", "--bandwidth", 0.06, "--out", out]
    code, text, progress = run(capsys, *fit)
    assert code == 0, progress
    assert "3 clusters of 150 rows × 5 features" in text
    assert "cluster sizes, largest first: 50 · 50 · 50" in text
    assert "distinct points" in progress
    expected = WeightedBlurringMeanShift(0.06, random_state=0).fit(np.load(table))
    labels = zarr.open_array(out / "labels.zarr", mode="r")[...]
    np.testing.assert_array_equal(labels, expected.labels_)
    np.testing.assert_allclose(load(out / "model").cluster_centers_, expected.cluster_centers_)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["n_clusters"] == 3
    assert summary["bandwidth"] == 0.06
    assert summary["history"][-1]["n_representatives"] == 3
    assert sorted(summary["files"])[:3] == ["centers.csv", "feature_weights.png", "labels.zarr"]
    assert (out / "projection.png").is_file()

    code, text, _ = run(capsys, "inspect", out)
    assert code == 0
    assert "bandwidth: 0.06; lam: 0.1" in text
    assert "distinct points in those that followed" in text

    code, text, _ = run(capsys, "predict", out, table, "--out", tmp_path / "more.zarr", "--json")
    assert code == 0
    assert json.loads(text)["cluster_sizes"] == [50, 50, 50]


def test_a_mean_shift_with_equal_weights_is_inspected(table, tmp_path, capsys):
    out = tmp_path / "run"
    fit = ["fit", table, "--model", "mean-shift", "--bandwidth", 1.0, "--lam", "inf", "--out", out]
    assert run(capsys, *fit, "--no-pictures")[0] == 0
    code, text, _ = run(capsys, "inspect", out)
    assert code == 0
    assert "bandwidth: 1; lam: ∞" in text


def test_plan_of_a_mean_shift_knows_no_number_of_clusters(table, capsys):
    code, text, _ = run(capsys, "plan", table, "--model", "mean-shift")
    assert code == 0
    assert "WeightedBlurringMeanShift with an unknown number of clusters" in text
    assert "passes over the data: about" in text


def test_warnings_of_a_mean_shift_are_kept_in_the_summary(table, tmp_path, capsys):
    out = tmp_path / "run"
    code, _, errors = run(
        capsys, "fit", table, "--model", "mean-shift", "--bandwidth", 90, "--out", out, "--quiet"
    )
    assert code == 0
    assert "may be too large" in errors
    assert "may be too large" in json.loads((out / "summary.json").read_text())["warnings"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model", "mean-shift", "-k", "3"],
            "--n-clusters has no meaning for --model mean-shift",
        ),
        (["--model", "mean-shift", "--bandwidth", "0"], "'bandwidth' parameter"),
        (["--model", "mean-shift", "--lam", "-1"], "'lam' parameter"),
        (["-k", "3", "--convention", "paper"], "--convention has no meaning for --model power"),
        (["--model", "kernel"], "arguments are required: -k"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_a_line(
    table, tmp_path, capsys, arguments, message
):
    code, _, errors = run(capsys, "fit", table, *arguments, "--out", tmp_path / "run")
    assert code == 2
    assert message in errors
    assert len(errors.strip().splitlines()) <= 2
    assert not (tmp_path / "run").exists()
