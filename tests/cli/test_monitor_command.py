"""The command that tells drift from sampling error."""

import json

import numpy as np
import pytest

from daskmm.cli.actions import DRIFT
from daskmm.cli.main import main


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, n, shift in (("fitted", 3000, 0.0), ("quiet", 900, 0.0), ("moved", 900, 0.4)):
        rows = rng.normal(size=(n, 4)) + 6.0 * rng.integers(3, size=(n, 1)) + shift
        np.save(f"{name}.npy", rows)
    assert main(["fit", "fitted.npy", "-k", "3", "--out", "run", "--no-pictures", "--quiet"]) == 0
    return tmp_path / "run"


def test_the_exit_code_tells_drift(run, capsys):
    assert main(["monitor", "run", "quiet.npy"]) == 0
    assert "no drift beyond sampling error" in capsys.readouterr().out
    assert main(["monitor", "run", "moved.npy", "--picture", "drift.png"]) == DRIFT
    assert "drift: centre of cluster" in capsys.readouterr().out
    assert (run.parent / "drift.png").stat().st_size > 1000
    assert main(["monitor", "run", "moved.npy", "--quiet"]) == DRIFT
    out, err = capsys.readouterr()
    assert not out
    assert "drift: centre of cluster" in err
    assert main(["monitor", "run", "quiet.npy", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["number"], found["drifted"], found["reasons"]) == (4, False, [])
    assert np.shape(found["p_values"]) == (3, 3)


def test_the_report_gets_a_section(run, capsys):
    for partition in ("quiet", "moved", "quiet"):
        main(["monitor", "run", f"{partition}.npy", "--report", "--quiet"])
    page = (run / "report.html").read_text()
    assert page.count("Partitions beside the reference</h2>") == 1
    assert page.count("nothing beyond sampling error") == 2
    assert "centre of cluster" in page
    assert "What was fitted" in page


def test_a_partition_that_cannot_be_read_does_not_count(run, capsys):
    assert main(["monitor", "run", "quiet.npy", "--reference", "fitted.npy", "--level", ".01"]) == 0
    before = (run / "monitor").read_bytes()
    np.save(run.parent / "wide.npy", np.ones((5, 9)))
    assert main(["monitor", "run", "wide.npy"]) == 2
    assert "9 features" in capsys.readouterr().err
    assert (run / "monitor").read_bytes() == before


def rows(seed, shift):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(900, 4)) + 6.0 * rng.integers(3, size=(900, 1)) + shift


def test_an_update_makes_its_rows_the_reference(run, capsys):
    for night in range(1, 5):
        np.save(f"night-{night}.npy", rows(night, 0.0 if night < 2 else 0.5))
    assert main(["monitor", "run", "night-1.npy", "--level", ".04", "--quiet"]) == 0
    assert main(["monitor", "run", "night-2.npy", "--quiet"]) == DRIFT
    for _ in range(2):  # a second run of the same night
        assert main(["update", "run", "night-2.npy", "--forget", "1 calls"]) == 0
        assert "'daskmm monitor' compares" in capsys.readouterr().out
    assert main(["monitor", "run", "night-3.npy", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # The bound on false alarms is that of all looks, at any reference.
    assert (found["number"], found["level"]) == (3, 0.04)
    np.save("back.npy", rows(5, 0.0))
    assert main(["monitor", "run", "back.npy", "--quiet"]) == DRIFT


def test_a_reference_of_another_model_is_read_again(run, capsys):
    assert main(["monitor", "run", "quiet.npy", "--quiet"]) == 0
    former = (run / "monitor").read_bytes()
    assert main(["update", "run", "moved.npy", "--quiet"]) == 0
    (run / "monitor").write_bytes(former)  # as if the update had been killed after the model
    assert main(["monitor", "run", "quiet.npy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["number"] == 2
    (run / "monitor").write_bytes(former)
    command = ["monitor", "run", "quiet.npy", "--reference", "moved.npy", "--quiet"]
    assert main(command) == DRIFT


def test_an_update_without_a_monitor_begins_none(run):
    assert main(["update", "run", "quiet.npy", "--quiet"]) == 0
    assert not (run / "monitor").exists()
    assert main(["monitor", "run", "quiet.npy", "--quiet"]) == 0
