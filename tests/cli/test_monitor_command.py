"""The command that tells drift from sampling error."""

import json

import numpy as np
import pytest

from daskmm.cli.main import DRIFT, main


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
    assert main(["monitor", "run", "quiet.npy", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["number"], found["drifted"], found["reasons"]) == (3, False, [])
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
