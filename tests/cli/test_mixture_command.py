"""The command line with Gaussian mixtures."""

import json

import numpy as np
import pytest
import scipy.sparse
import zarr

from daskmm import GaussianMixture, load
from daskmm.cli.main import main


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    truth = np.arange(600) % 3
    np.save(tmp_path / "table.npy", 6 * np.eye(3)[truth] + rng.normal(size=(600, 3)))
    return tmp_path / "table.npy"


def run(capsys, *arguments):
    """Exit code, and what was printed on either stream."""
    code = main([str(argument) for argument in arguments])
    return (code, *capsys.readouterr())


def test_a_mixture_is_fitted_planned_inspected_and_predicts(table, tmp_path, capsys):
    out, own = tmp_path / "run", ["--model", "mixture", "-k", 3, "--covariance-type", "diag"]
    code, text, progress = run(capsys, "fit", table, *own, "--out", out, "--report")
    assert code == 0, progress
    assert "3 clusters of 600 rows × 3 features" in text
    expected = GaussianMixture(3, covariance_type="diag", random_state=0).fit(np.load(table))
    labels = zarr.open_array(out / "labels.zarr", mode="r")[...]
    np.testing.assert_array_equal(labels, expected.labels_)
    np.testing.assert_array_equal(load(out / "model").covariances_, expected.covariances_)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["log_likelihood"] == expected.lower_bound_
    page = (out / "report.html").read_text()
    assert "log-likelihood per row" in page
    assert "weigh each row by its probability" in page

    code, text, _ = run(capsys, "inspect", out)
    assert code == 0
    assert f"mean log-likelihood of a row: {expected.lower_bound_:.6g}" in text
    n_all, n_steps = sum(each.exact for each in expected.history_), len(expected.history_)
    assert 0 < n_all < n_steps
    assert f"{n_steps} EM steps; {n_all} steps used all rows, the others a sample" in text

    code, text, _ = run(capsys, "plan", table, *own)
    assert code == 0
    assert "GaussianMixture with 3 clusters" in text

    code, text, _ = run(capsys, "predict", out, table, "--out", tmp_path / "more.zarr", "--json")
    assert code == 0
    assert json.loads(text)["n_rows"] == 600


def test_what_a_mixture_does_not_have_is_refused(table, tmp_path, capsys):
    out = tmp_path / "run"
    assert run(capsys, "fit", table, "--model", "mixture", "--out", out)[0] == 2
    assert run(capsys, "fit", table, "--model", "mixture", "-k", 3, "--out", out)[0] == 0
    more = ["predict", out, table, "--out", tmp_path / "l.csv", "--outliers", 0.1]
    code, _, error = run(capsys, *more)
    assert code == 2
    assert "--outliers needs a k-means model" in error
    again = ["update", out, table, "--key", "again"]
    for command in (again, more[:-2]):
        code, _, error = run(capsys, *command, "--unknown", "missing")
        assert code == 2
        assert "--unknown is about mixed columns" in error


def test_sparse_rows_are_refused_in_a_line(tmp_path, capsys):
    scipy.sparse.save_npz(tmp_path / "x.npz", scipy.sparse.eye_array(9).tocsr())
    run = ["fit", str(tmp_path / "x.npz"), "-k", "3", "--model", "mixture", "--out"]
    assert main([*run, str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("daskmm: error: Sparse rows are not supported by GaussianMixture")


def test_a_run_of_a_mixture_takes_new_rows(table, tmp_path, capsys):
    out, more = tmp_path / "run", tmp_path / "more.npy"
    X = np.load(table)
    np.save(more, X[::2] + 0.1)
    assert run(capsys, "fit", table, "--model", "mixture", "-k", 3, "--out", out)[0] == 0
    code, text, error = run(capsys, "update", out, more, "--key", "monday")
    assert code == 0, error
    assert "cost per row" in text
    expected = GaussianMixture(3, random_state=0).fit(X).partial_fit(np.load(more), key="monday")
    np.testing.assert_array_equal(load(out / "model").means_, expected.means_)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["log_likelihood"] == expected.lower_bound_
    assert summary["n_rows"] == 900
    assert run(capsys, "inspect", out, "--report")[0] == 0
    code, _, error = run(capsys, "monitor", out, more)
    assert (code, error.count("\n")) == (2, 1)
    assert "power, entropy or kmeans; this one is of a GaussianMixture" in error
