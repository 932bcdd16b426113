"""The command that tells drift from sampling error."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from daskmm import KMeans, write_run
from daskmm.cli.actions import DRIFT
from daskmm.cli.main import main


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A run, its rows, and two batches."""
    folder = tmp_path_factory.mktemp("fitted")
    rng = np.random.default_rng(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, n, shift in (("fitted", 3000, 0.0), ("quiet", 900, 0.0), ("moved", 900, 0.4)):
            rows = rng.normal(size=(n, 4)) + 6.0 * rng.integers(3, size=(n, 1)) + shift
            np.save(f"{name}.npy", rows)
        fit = ["fit", "fitted.npy", "-k", "3", "--out", "run", "--no-pictures", "--quiet"]
        assert main(fit) == 0
    return folder


@pytest.fixture
def run(fitted, tmp_path, monkeypatch):
    """A copy of the run, in the working folder."""
    shutil.copytree(fitted, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def test_the_exit_code_tells_drift(run, capsys):
    assert main(["monitor", "run", "quiet.npy"]) == 0
    assert "no drift: batches usually differ as much" in capsys.readouterr().out
    assert main(["monitor", "run", "moved.npy", "--picture", "drift.png"]) == DRIFT
    assert "drift: the mean of column 'feature " in capsys.readouterr().out
    assert (run.parent / "drift.png").stat().st_size > 1000
    assert main(["monitor", "run", "moved.npy", "--quiet"]) == DRIFT
    out, err = capsys.readouterr()
    assert not out
    assert "drift: the mean of column 'feature " in err
    assert main(["monitor", "run", "quiet.npy", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["number"], found["drifted"], found["reasons"]) == (4, False, [])
    assert len(found["p_values"]) == 4 + 3


def test_a_run_whose_rows_are_not_on_disk_asks_for_a_reference(run, capsys):
    rows = np.load("fitted.npy")
    write_run("python", KMeans(3, random_state=0).fit(rows), rows, report=False)
    assert main(["monitor", "python", "quiet.npy"]) == 2
    assert "rows in Python does not exist. Name the rows" in (told := capsys.readouterr().err)
    assert "--reference DATA" in told
    assert main(["monitor", "python", "quiet.npy", "--reference", "fitted.npy"]) == 0


def test_the_report_gets_a_section(run, capsys):
    for batch in ("quiet", "moved", "quiet"):
        main(["monitor", "run", f"{batch}.npy", "--report", "--quiet"])
    page = (run / "report.html").read_text()
    assert page.count("Batches beside those before</h2>") == 1
    assert page.count("nothing unusual") == 2
    assert "column &#x27;feature " in page
    assert "What was fitted" in page


def test_a_batch_that_cannot_be_read_does_not_count(run, capsys):
    assert main(["monitor", "run", "quiet.npy", "--reference", "fitted.npy", "--level", ".01"]) == 0
    before = (run / "monitor").read_bytes()
    np.save(run.parent / "wide.npy", np.ones((5, 9)))
    assert main(["monitor", "run", "wide.npy"]) == 2
    assert "9 features" in capsys.readouterr().err
    assert (run / "monitor").read_bytes() == before


def rows(seed, shift):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(900, 4)) + 6.0 * rng.integers(3, size=(900, 1)) + shift


def test_an_update_accepts_what_its_rows_are(run, capsys):
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


@pytest.fixture(scope="module")
def fitted_to_days(tmp_path_factory):
    """A run of a month of days as one table, and days that follow as one file each."""
    folder = tmp_path_factory.mktemp("days")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for first, last in ((0, 30), (30, 31), (32, 33), (33, 34)):
            parts = []
            for day in range(first, last):
                rng = np.random.default_rng(day)
                kinds = rng.integers(3, size=300)
                part = pd.DataFrame({"age": 20.0 * kinds + rng.normal(0.3 * (day % 7), 3, 300)})
                part["plan"] = np.array(["free", "basic", "pro"])[kinds]
                parts.append(part.assign(day=pd.Timestamp("2026-03-01") + pd.Timedelta(days=day)))
            pd.concat(parts).to_parquet(f"from-{first}.parquet")
        fit = ["fit", "from-0.parquet", "-k", "3", "--distortion", "mixed", "--columns", "age,plan"]
        assert main([*fit, "--out", "run", "--no-pictures", "--quiet"]) == 0
    return folder


@pytest.fixture
def days(fitted_to_days, tmp_path, monkeypatch):
    """A copy of that run and those days, in the working folder."""
    shutil.copytree(fitted_to_days, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_batch_is_found_by_a_column_or_given_as_a_date(days, capsys):
    command = ["monitor", "run", "from-30.parquet", "--batches", "day", "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["batch"] == 20513 + 30
    assert main(["monitor", "run", "from-32.parquet", "--batch", "2026-04-02", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["batch"] == 20513 + 32
    assert main(["monitor", "run", "from-32.parquet", "--batch", "soon"]) == 2
    assert "batches must be dates or whole numbers" in capsys.readouterr().err


def test_the_first_look_says_which_batches_the_reference_has(days, capsys):
    main(["monitor", "run", "from-30.parquet", "--batches", "day"])
    assert "reference: 30 batches, told apart by the column 'day'\n" in capsys.readouterr().out
    main(["monitor", "run", "from-32.parquet"])
    assert "reference:" not in capsys.readouterr().out


def test_batch_numbers_that_may_be_days_of_a_month_are_warned_of(days, capsys):
    rows = pd.read_parquet("from-0.parquet")
    rows.assign(day=rows["day"].dt.day).to_parquet("numbered.parquet")
    main(
        ["monitor", "run", "from-30.parquet", "--reference", "numbered.parquet", "--batches", "day"]
    )
    assert "its numbers may be days of a month" in capsys.readouterr().out


def test_levels_that_the_fit_did_not_see_stop_no_command(days, capsys):
    rows = pd.read_parquet("from-30.parquet")
    rows.loc[:29, "plan"] = "gold"
    rows.to_parquet("gold.parquet")
    assert main(["monitor", "run", "gold.parquet", "--batches", "day"]) == DRIFT
    told = "column 'plan' has the level 'gold', which the fit did not see, in 10.0% of the rows"
    assert f"drift: {told}" in capsys.readouterr().out
    assert main(["monitor", "run", "gold.parquet"]) == 0
    assert f"known from an earlier look, so no drift: {told}\n" in capsys.readouterr().out
    predict = ["predict", "run", "gold.parquet", "--out", "labels.csv", "--quiet"]
    assert main(predict) == 2
    assert "--unknown missing" in capsys.readouterr().err
    assert main([*predict, "--unknown", "missing"]) == 0
    assert pd.read_csv("labels.csv")["cluster"].nunique() == 3
    update = ["update", "run", "gold.parquet", "--quiet"]
    assert main(update) == 2
    assert main([*update, "--unknown", "missing"]) == 0
    assert main(["monitor", "run", "from-32.parquet", "--batch", "2026-04-02", "--quiet"]) == 0
