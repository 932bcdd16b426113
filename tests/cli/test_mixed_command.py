"""Mixed columns on the command line: parquet files with numbers, flags, categories and dates."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr

from daskmm import PowerKMeans
from daskmm.cli.main import main
from daskmm.metrics import adjusted_rand_score


@pytest.fixture
def customers(tmp_path, monkeypatch):
    """A frame of three kinds of rows, written as two parquet files; paths are relative."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(3, size=400)
    frame = pd.DataFrame(
        {
            "customer": [f"C{i}" for i in range(400)],
            "age": np.array([20.0, 40, 60])[kinds] + rng.normal(0, 3, 400),
            "plan": pd.Categorical(np.array(["free", "basic", "pro"])[kinds]),
            "mobile": rng.uniform(size=400) < np.array([0.9, 0.5, 0.1])[kinds],
            "since": pd.Timestamp("2024-01-01") + pd.to_timedelta(300 * kinds, unit="D"),
        }
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people").mkdir()
    frame[:250].to_parquet("people/part-0.parquet")
    frame[250:].to_parquet("people/part-1.parquet")
    return frame.assign(kind=kinds)


COLUMNS = ["-k", "3", "--distortion", "mixed", "--columns", "age,plan,mobile,since"]
DATES = ["--dates", "since:trend"]


def test_mixed_columns_are_planned_fitted_and_updated(customers, capsys):
    assert main(["plan", "people", *COLUMNS, *DATES, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_rows"] == 400
    assert main(["fit", "people", *COLUMNS, *DATES, "--out", "run", "--report", "--quiet"]) == 0
    labels = zarr.open_array("run/labels.zarr", mode="r")[:]
    assert adjusted_rand_score(customers["kind"], labels) == 1.0
    centers = pd.read_csv("run/centers.csv")
    assert sorted(centers["commonest_plan"]) == ["basic", "free", "pro"]
    assert sorted(centers["mean_since:trend"]) == ["2024-01-01", "2024-10-27", "2025-08-23"]
    names = json.loads(Path("run/summary.json").read_text())["cluster_names"]
    assert all(name in Path("run/report.html").read_text() for name in names)
    given = {"distortion": "mixed", "metric_params": {"dates": ["since:trend"]}}
    columns = ["age", "plan", "mobile", "since"]
    model = PowerKMeans(3, random_state=0, **given).fit(customers[columns])
    np.testing.assert_array_equal(labels, model.labels_)

    capsys.readouterr()
    assert main(["inspect", "run"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in names)
    assert main(["predict", "run", "people", "--keep", "customer", "--out", "labels.csv"]) == 0
    written = pd.read_csv("labels.csv")
    np.testing.assert_array_equal(written["cluster"], labels)
    assert written["customer"].tolist() == customers["customer"].tolist()
    assert main(["monitor", "run", "people", "--quiet"]) == 0
    customers.to_parquet("more.parquet")
    assert main(["update", "run", "more.parquet", "--quiet"]) == 0
    assert pd.read_csv("run/centers.csv")["cluster_size"].sum() == 2 * 400


@pytest.mark.long
def test_unseen_categories_are_refused_unless_they_count_as_missing(customers, capsys):
    unknown = ["--unknown", "missing", "--missing", "partial"]
    assert main(["fit", "people", *COLUMNS, *DATES, *unknown, "--out", "lax", "--no-pictures"]) == 0
    assert main(["fit", "people", *COLUMNS, *DATES, "--out", "strict", "--no-pictures"]) == 0
    customers.assign(plan="gold").to_parquet("new.parquet")
    assert main(["predict", "lax", "new.parquet", "--out", "new.csv", "--quiet"]) == 0
    found = pd.read_csv("new.csv")["cluster"]
    assert adjusted_rand_score(customers["kind"], found) > 0.9
    capsys.readouterr()
    assert main(["predict", "strict", "new.parquet", "--out", "other.csv"]) == 2
    assert "'gold' in column 'plan'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["people", *COLUMNS], "dates in column 'since'.*--dates"),
        (["people", "-k", "3", *DATES], "--dates has no meaning without --distortion mixed"),
        (["people", *COLUMNS, "--dates", "since:hour"], "'since:hour' is not a column"),
        (["rows.csv", "-k", "3", "--distortion", "mixed"], "read from parquet files"),
        (["people", "-k", "3"], "not numeric: 'customer'.*--distortion mixed"),
    ],
)
def test_inputs_without_mixed_columns_are_refused(customers, capsys, arguments, message):
    customers.to_csv("rows.csv", index=False)
    assert main(["fit", *arguments, "--out", "run", "--quiet"]) == 2
    assert re.search(message, capsys.readouterr().err)
