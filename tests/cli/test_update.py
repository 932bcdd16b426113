"""``daskmm update``: new rows change a run, and the history says how."""

import json

import _processes
import _victims
import numpy as np
import pandas as pd
import pytest

import daskmm
from daskmm.cli.main import main
from daskmm.cluster import _models


@pytest.fixture
def folder(tmp_path):
    """A run of 60 rows, and two more tables."""
    rng = np.random.default_rng(0)
    for part, name in enumerate(["rows", "monday", "tuesday"]):
        rows = rng.normal(size=(60, 2)) + np.repeat([[0, 0], [9, part]], 30, axis=0)
        pd.DataFrame(rows, columns=["a", "b"]).to_csv(tmp_path / f"{name}.csv", index=False)
    command = ["fit", str(tmp_path / "rows.csv"), "-k", "2", "--model", "kmeans", "--no-pictures"]
    assert main([*command, "--no-standardize", "--quiet", "--out", str(tmp_path / "run")]) == 0
    return tmp_path


def update(folder, name, *options):
    return main(["update", str(folder / "run"), str(folder / name), *options])


def summary(folder):
    return json.loads((folder / "run" / "summary.json").read_text())


def test_updates_of_a_trimmed_run_forget_nothing(folder, capsys):
    run, command = str(folder / "trimmed"), ["fit", str(folder / "rows.csv"), "-k", "2"]
    assert main([*command, "--trim", "0.2", "--no-pictures", "--quiet", "--out", run]) == 0
    capsys.readouterr()
    assert main(["update", run, str(folder / "monday.csv"), "--quiet"]) == 0
    assert main(["inspect", run]) == 0
    assert "cluster sizes, largest first" in capsys.readouterr().out


def test_updates_are_entered_in_the_history_of_a_run(folder, capsys):
    assert update(folder, "monday.csv", "--quiet") == 0
    assert update(folder, "tuesday.csv", "--forget", "3 calls", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n_rows"] == 60
    assert found["n_rows_seen"] == 180
    updates = summary(folder)["updates"]
    assert [each["key"].rpartition("/")[2] for each in updates] == ["monday.csv", "tuesday.csv"]
    model = daskmm.load(folder / "run" / "model")
    assert model.forget == "3 calls"
    assert model.n_samples_seen_ == summary(folder)["n_rows"] == 180
    assert summary(folder)["inertia"] == model.inertia_
    centers = pd.read_csv(folder / "run" / "centers.csv")[["center_a", "center_b"]].to_numpy()
    np.testing.assert_allclose(np.sort(centers, 0), np.sort(model.cluster_centers_, 0), rtol=1e-6)
    assert main(["inspect", str(folder / "run")]) == 0
    told = capsys.readouterr().out
    assert told.count("moved farthest") == 2
    assert "180 rows" in told
    assert "cluster sizes (earlier rows count less), largest first" in told
    assert "inertia of all rows, those of the updates too" in told
    assert "objective" not in told
    assert (
        main(
            [
                "predict",
                str(folder / "run"),
                str(folder / "monday.csv"),
                "--quiet",
                "--out",
                str(folder / "labels.csv"),
            ]
        )
        == 0
    )


def test_rows_are_not_counted_twice(folder, capsys):
    for _ in range(2):
        assert update(folder, "monday.csv") == 0
    assert "60 rows of" in capsys.readouterr().out
    assert daskmm.load(folder / "run" / "model").n_samples_seen_ == 120
    assert update(folder, "rows.csv") == 2
    assert "is what" in capsys.readouterr().err
    assert update(folder, "tuesday.csv", "--key", "monday", "--quiet") == 0
    assert daskmm.load(folder / "run" / "model").n_samples_seen_ == 180


def test_an_update_changes_the_weights_and_missing_values_that_inspect_shows(folder, capsys):
    for name, missing in (("rows", 6), ("monday", 30)):
        rows = pd.read_csv(folder / f"{name}.csv").assign(c=np.arange(60) % 7 + 0.5)
        rows.loc[: missing - 1, "c"] = np.nan
        rows.to_csv(folder / f"{name}.csv", index=False)
    command = ["fit", str(folder / "rows.csv"), "-k", "2", "--missing", "partial", "--model"]
    command += ["entropy", "--lam", "0.3", "--no-pictures", "--quiet", "--out"]
    assert main([*command, str(folder / "holes")]) == 0
    assert main(["update", str(folder / "holes"), str(folder / "monday.csv"), "--quiet"]) == 0
    told = json.loads((folder / "holes" / "summary.json").read_text())
    assert told["missing_shares"] == pytest.approx({"c": 36 / 120})
    updated = daskmm.load(folder / "holes" / "model")
    assert told["feature_weights"] == updated.feature_weights_.tolist()
    assert main(["inspect", str(folder / "holes")]) == 0
    assert "missing values: c 30%" in capsys.readouterr().out


def test_a_failed_update_leaves_the_run(folder, monkeypatch, capsys):
    before = summary(folder)
    centers = daskmm.load(folder / "run" / "model").cluster_centers_
    bad = pd.read_csv(folder / "monday.csv")
    bad.loc[3, "b"] = np.inf
    bad.to_csv(folder / "bad.csv", index=False)
    assert update(folder, "bad.csv") == 2
    assert update(folder, "monday.csv", "--forget", "soon") == 2
    assert "half-life" in capsys.readouterr().err

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(_models, "_write", full)
    assert update(folder, "monday.csv") == 2
    assert summary(folder) == before
    again = daskmm.load(folder / "run" / "model").cluster_centers_
    np.testing.assert_array_equal(again, centers)


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "name", "call", "rows"),
    [
        ("daskmm.kmeans.incremental", "center_sums", 1, 60),
        ("daskmm.storage.atomic", "flush_tree", 1, 60),
        ("daskmm.storage.atomic", "os.replace", 1, 60),  # the new model has no name yet
        ("daskmm.cli.run_folder", "_write_centers", 1, 120),
    ],
)
def test_a_killed_update_leaves_a_whole_model(folder, module, name, call, rows):
    before = daskmm.load(folder / "run" / "model").cluster_centers_
    arguments = folder, module, name, call
    assert _processes.exit_code(_victims.update_and_die, *arguments) == 137
    model = daskmm.load(folder / "run" / "model")
    if rows == 60:
        np.testing.assert_array_equal(model.cluster_centers_, before)
    else:
        assert model.n_samples_seen_ == rows
    assert update(folder, "monday.csv", "--quiet") == 0
    assert daskmm.load(folder / "run" / "model").n_samples_seen_ == 120
    assert summary(folder)["n_rows"] == 120


def test_models_that_take_no_new_rows_are_refused(folder, capsys):
    command = ["fit", str(folder / "rows.csv"), "-k", "2", "--model", "kernel", "--no-pictures"]
    assert main([*command, "--quiet", "--out", str(folder / "kernel")]) == 0
    assert main(["update", str(folder / "kernel"), str(folder / "monday.csv")]) == 2
    assert "takes no new rows" in capsys.readouterr().err
