"""csv files with categories on the command line, and holes in them."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from daskmm import PowerKMeans
from daskmm.cli.main import main
from daskmm.data import csv_files
from daskmm.data.files import open_data

RNG = np.random.default_rng(0)
KINDS = RNG.integers(3, size=300)
FLIGHTS = pd.DataFrame(
    {
        "delay": np.array([-5.0, 20.0, 90.0])[KINDS] + RNG.normal(0, 3, 300),
        "carrier": np.array(["AA", "UA", "WN"])[KINDS],
        "gate": np.array([1, 2, 3])[KINDS],
        "note": [f"flight {i}" for i in range(300)],
    }
)
NAMES = ["delay", "carrier", "gate"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", 2000)
    FLIGHTS.to_csv("flights.csv", index=False)
    FLIGHTS.astype({"gate": "category"}).to_parquet("flights.parquet")
    return tmp_path


CATEGORIES = ["-k", "3", "--columns", "delay,carrier,gate", "--categories", "carrier,gate"]
QUIET = ["--no-pictures", "--quiet", "--out", "run"]


def test_a_csv_with_categories_is_fitted_as_a_frame_is(here, capsys):
    assert main(["plan", "flights.csv", *CATEGORIES, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_features"] == 3
    assert main(["fit", "flights.csv", *CATEGORIES, *QUIET]) == 0
    assert main(["predict", "run", "flights.csv", "--quiet", "--out", "labels.csv"]) == 0
    found = pd.read_csv("labels.csv")["cluster"]
    model = PowerKMeans(3, distortion="mixed", random_state=0)
    expected = model.fit(FLIGHTS[NAMES].astype({"gate": str})).labels_
    np.testing.assert_array_equal(found, expected)
    assert main(["update", "run", "flights.csv", "--key", "again", "--quiet"]) == 0


def test_unknown_categories_are_refused_unless_they_count_as_missing(here, capsys):
    holes = FLIGHTS.copy()
    holes.loc[7, "carrier"] = None
    holes.to_csv("flights.csv", index=False)
    assert main(["fit", "flights.csv", *CATEGORIES, "--missing", "partial", *QUIET]) == 0
    FLIGHTS.assign(carrier="XX").to_csv("others.csv", index=False)
    assert main(["predict", "run", "others.csv", "--quiet", "--out", "labels.csv"]) == 2
    assert "has the level 'XX' in column 'carrier'" in capsys.readouterr().err
    more = ["--unknown", "missing", "--quiet", "--out", "labels.csv"]
    assert main(["predict", "run", "others.csv", *more]) == 0


@pytest.mark.parametrize(
    ("source", "options", "told"),
    [
        ("flights.csv", ["--categories", "plane"], "has no column 'plane'"),
        ("flights.csv", [], "categories (on the command line --categories)"),
        ("flights.csv", ["--distortion", "mixed"], "csv files whose categories are named"),
        (
            "flights.csv",
            ["--categories", "gate", "--distortion", "cosine"],
            "with --distortion cosine",
        ),
        ("flights.csv", ["--categories", "gate", "--model", "mixture"], "for --model mixture"),
        ("flights.csv", ["--categories", "gate", "--dates", "day:trend"], "has no column 'day'"),
        ("flights.csv", ["--columns", "delay", "--categories", "gate"], "'gate' is among the cat"),
        (
            "flights.csv",
            ["--columns", "delay,gate", "--distortion", "mixed", "--dates", "gate"],
            "'gate' is not a column of X with ':trend' (time since 1970) or ':season'",
        ),
        ("flights.parquet", ["--categories", "delay"], "has no category 'delay'"),
    ],
)
def test_categories_and_dates_that_do_not_fit_are_refused(source, options, told, here, capsys):
    assert main(["fit", source, "-k", "3", *options, *QUIET]) == 2
    assert told in capsys.readouterr().err


def test_a_csv_is_read_as_a_model_of_a_parquet_file_with_dates_needs_it(here, capsys):
    days = FLIGHTS[NAMES].astype({"gate": str})
    days["day"] = pd.Timestamp("2026-01-01") + pd.to_timedelta(30 * KINDS, unit="D")
    days.loc[5, "day"] = pd.NaT
    days.to_parquet("days.parquet")
    days.to_csv("days.csv", index=False)
    mixed = ["--distortion", "mixed", "--dates", "day:trend", "--missing", "partial"]
    assert main(["fit", "days.parquet", "-k", "3", *mixed, *QUIET]) == 0
    found = []
    for source in ("days.parquet", "days.csv"):
        assert main(["predict", "run", source, "--quiet", "--out", f"{source}.csv"]) == 0
        found.append(pd.read_csv(f"{source}.csv")["cluster"])
        assert main(["monitor", "run", source, "--quiet"]) == 0
    np.testing.assert_array_equal(*found)
    out = QUIET[:-1]
    assert main(["fit", "days.csv", "-k", "3", *mixed, *out, "other", *CATEGORIES[4:]]) == 0

    capsys.readouterr()
    wrong = days["day"].dt.strftime("%d/%m/%Y")
    days.assign(day=wrong).to_csv("wrong.csv", index=False)
    assert main(["predict", "run", "wrong.csv", "--quiet", "--out", "wrong"]) == 2
    told = capsys.readouterr().err
    # Blocks are read at the same time.
    assert any(f"column 'day' has '{day}', which is no date fr" in told for day in wrong.unique())
    days.assign(delay="late").to_csv("wrong.csv", index=False)
    assert main(["monitor", "run", "wrong.csv"]) == 2
    told = capsys.readouterr().err
    assert "'delay' (such as 'late') in line 2. The model was fitted to numbers" in told
    assert "--columns" not in told


def test_dates_are_read_as_written_without_their_offsets_from_utc(here):
    written = "2026-01-01T09:30+01:00,2026-07-01 09:30 +02,2026-07-01T09:30Z,2026-02-03,"
    (here / "days.csv").write_text("\n".join(["day,x", *(f"{d},1" for d in written.split(","))]))
    found = open_data("days.csv", mixed=True, dates=["day"]).compute()["day"]
    local = ["2026-01-01T09:30", "2026-07-01T09:30", "2026-07-01T09:30", "2026-02-03"]
    assert list(found[:4]) == list(map(pd.Timestamp, local))
    assert found.isna().iloc[4]
    (here / "days.csv").write_text("day;x\n03.02.2026;1,5\n04.02.2026 12:30;2,5\n")
    found = open_data("days.csv", mixed=True, dates=["day"]).compute()["day"]
    assert list(found) == [pd.Timestamp("2026-02-03"), pd.Timestamp("2026-02-04T12:30")]
    (here / "days.csv").write_text("day,x\n9999-12-31,1\n")
    with pytest.raises(ValueError, match="'9999-12-31', which is no date from 1678 to 2261"):
        open_data("days.csv", mixed=True, dates=["day"]).compute()


def test_the_first_hole_in_the_order_of_the_rows_is_named(here, capsys):
    for rows in ([31, 140, 299], [140, 299]):
        holes = FLIGHTS[["delay", "gate"]].copy()
        holes.loc[rows, "delay"] = np.nan
        holes.to_csv("holes.csv", index=False)
        for _ in range(3):
            assert main(["fit", "holes.csv", "-k", "3", *QUIET]) == 2
            told = capsys.readouterr().err
            assert re.search(rf"\(row {rows[0]} of the data\), feature 0 \('delay'\)", told), told
            assert "--missing partial" in told
    assert main(["fit", "holes.csv", "-k", "3", "--missing", "partial", *QUIET]) == 0
