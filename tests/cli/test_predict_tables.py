"""``daskmm predict`` writes tables: labels beside the columns that name the rows."""

import json
import re
from functools import partial

import dask
import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import zarr

import daskmm
from daskmm.cli.main import main
from daskmm.data import csv_files
from daskmm.data.files import open_data

FEATURES = ["a", "b", "c"]
QUICK = ["--n-init", "1", "--no-standardize"]


def people(n_rows=90):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(n_rows, 3)), columns=FEATURES)
    frame.iloc[: n_rows // 3] += 9
    frame.insert(0, "id", [f"{row:05d}" for row in range(n_rows)])
    return frame.assign(name='ä, "b"', since=pd.Timestamp("2026-01-02"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows as csv and as parquet, a few of them per file and none in one, and runs."""
    folder = tmp_path_factory.mktemp("people")
    people().to_csv(folder / "rows.csv", index=False)
    people().set_index("id").to_parquet(folder / "rows.parquet")
    (folder / "parts").mkdir()
    for part in range(4):
        rows = people().iloc[[] if part == 0 else slice(30 * part - 30, 30 * part)]
        rows.to_parquet(folder / "parts" / f"part-{part}.parquet")
    np.save(folder / "rows.npy", people()[FEATURES].to_numpy())
    fit = ["-k", "2", "--model", "kmeans", *QUICK, "--no-pictures", "--quiet"]
    with dask.config.set(scheduler="sync"):
        rows = ["fit", str(folder / "rows.csv"), "--columns", "a,b,c", "--out", str(folder / "run")]
        assert main([*rows, *fit]) == 0
        rows = ["fit", str(folder / "rows.npy"), "--out", str(folder / "of-array")]
        assert main([*rows, *fit]) == 0
    return folder


def predicted(folder, name, source, out, *options, run="run"):
    place = folder / name
    place.mkdir()
    with dask.config.set(scheduler="sync"):
        command = ["predict", str(folder / run), str(folder / source), "--quiet"]
        code = main([*command, "--out", str(place / out), *options])
    assert code == 0
    read = pd.read_csv if out.endswith(".csv") else pd.read_parquet
    return read(place / out, **({"dtype": {"id": str}} if out.endswith(".csv") else {}))


def index_of(source, out):
    """Names of the columns that hold the index of the table."""
    return ["index"] if source == "parts" and out.endswith(".csv") else []


def check(found):
    assert found["cluster"].nunique() == 2
    assert found["cluster"].iloc[:30].nunique() == found["cluster"].iloc[30:].nunique() == 1


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # dask's, of a named index
@pytest.mark.parametrize("source", ["rows.csv", "rows.parquet", "parts"])
@pytest.mark.parametrize("out", ["labels.csv", "labels.parquet"])
def test_kept_columns_stand_beside_the_labels(folder, source, out):
    found = predicted(folder, f"{source} {out}", source, out, "--keep", "id,name,a")
    assert found.columns.tolist() == [*index_of(source, out), "id", "name", "a", "cluster"]
    assert found["id"].tolist() == people()["id"].tolist()
    assert set(found["name"]) == {'ä, "b"'}
    np.testing.assert_allclose(found["a"], people()["a"], rtol=1e-12)
    check(found)


@pytest.mark.filterwarnings("ignore:The inplace keyword")
@pytest.mark.parametrize("source", ["rows.csv", "rows.parquet"])
def test_all_columns_stand_beside_labels_and_names(folder, source):
    options = ["--keep", "all", "--names"]
    found = predicted(folder, f"all {source}", source, "labels.parquet", *options)
    columns = people().columns.tolist()
    assert found.columns.tolist() == [*columns, "cluster", "cluster_name"]
    assert found["id"].tolist() == people()["id"].tolist()
    np.testing.assert_allclose(found[FEATURES], people()[FEATURES], rtol=1e-12)
    check(found)
    names = daskmm.load(folder / "run").summary_["cluster_name"]
    assert found["cluster_name"].tolist() == names[found["cluster"]].tolist()


def test_all_columns_of_a_table_without_names_are_kept(folder, tmp_path):
    rows = people()[FEATURES]
    rows.to_csv(tmp_path / "rows.csv", index=False, header=False)
    found = predicted(
        folder, "nameless", tmp_path / "rows.csv", "l.csv", "--keep", "all", run="of-array"
    )
    np.testing.assert_allclose(found.iloc[:, :3], rows, rtol=1e-12)
    check(found)


def test_outliers_have_no_name(folder, tmp_path):
    rows = people()
    rows.loc[4, FEATURES] = 1e3
    rows.to_csv(tmp_path / "rows.csv", index=False)
    command = ["predict", str(folder / "run"), str(tmp_path / "rows.csv"), "--outliers", ".1"]
    assert main([*command, "--names", "--quiet", "--out", str(tmp_path / "labels.csv")]) == 0
    found = pd.read_csv(tmp_path / "labels.csv")
    assert (found["cluster_name"].isna() == (found["cluster"] < 0)).all()


@pytest.mark.in_turn("keep")
@pytest.mark.filterwarnings("ignore:The inplace keyword")
@pytest.mark.parametrize("source", ["rows.csv", "parts"])
@pytest.mark.parametrize("out", ["labels.csv", "labels.parquet"])
@pytest.mark.parametrize("keep", ["", "id,name", "all"])
def test_a_fit_writes_its_labels_as_a_table(folder, tmp_path, source, out, keep):
    command = ["fit", str(folder / source), "--columns", "a,b,c", "-k", "2", "--model", "kmeans"]
    command += [*QUICK, "--no-pictures", "--quiet", "--names"]
    command += ["--out", str(tmp_path / "run"), "--labels", str(tmp_path / out)]
    with dask.config.set(scheduler="sync"):
        assert main([*command, *(["--keep", keep] if keep else [])]) == 0
    read = pd.read_csv if out.endswith(".csv") else pd.read_parquet
    found = read(tmp_path / out)
    kept = people().columns.tolist() if keep == "all" else keep.split(",") if keep else []
    expected = [*index_of(source, out), *kept, "cluster", "cluster_name"]
    assert found.columns.tolist() == expected
    labels = zarr.open_array(tmp_path / "run" / "labels.zarr", mode="r")[:]
    np.testing.assert_array_equal(found["cluster"], labels)
    if kept:
        assert found["id"].astype(int).tolist() == list(range(90))
    names = daskmm.load(tmp_path / "run").summary_["cluster_name"]
    assert found["cluster_name"].tolist() == names[labels].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "id"], "--keep and --names need --labels"),
        (["--names"], "--keep and --names need --labels"),
        (["--labels", "labels.zarr"], "--labels needs a table"),
        (["--labels", "rows.csv"], "rows.csv exists"),
        (["--labels", "l.csv", "--keep", "nobody"], "has no column 'nobody'"),
        (["--labels", "l.csv", "--names", "--model", "kernel"], "--names has no meaning for"),
    ],
)
def test_nothing_is_fitted_if_the_table_of_labels_cannot_be_written(
    folder, tmp_path, capsys, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    people().to_csv("rows.csv", index=False)
    fit = ["fit", "rows.csv", "--columns", "a,b,c", "-k", "2", "--out", "run", "--no-pictures"]
    assert main([*fit, *options]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


# With NumPy 2.5, pandas 2 warns where it joins frames with dates.
@pytest.mark.filterwarnings("ignore:The 'generic' unit for NumPy timedelta")
def test_integers_of_csv_that_the_model_uses_remain_integers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"a": range(60), "b": np.arange(60) / 8}).to_csv("rows.csv", index=False)
    fit = ["-k", "2", "--missing", "partial", "--no-pictures", "--quiet", "--out", "run"]
    assert main(["fit", "rows.csv", *fit]) == 0
    assert "nats" in json.loads((tmp_path / "run/summary.json").read_text())["scale"]
    assert main(["predict", "run", "rows.csv", "--out", "l.csv", "--keep", "all", "--quiet"]) == 0
    written, rows = ((tmp_path / name).read_text() for name in ("l.csv", "rows.csv"))
    assert [line.rpartition(",")[0] for line in written.split()] == rows.split()


@pytest.mark.parametrize("blocks", [500, 10**6])
def test_columns_of_csv_are_kept_in_parquet_as_the_numbers_that_they_are(
    folder, tmp_path, monkeypatch, blocks
):
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", blocks)
    rows = people().assign(
        flight=np.arange(90), gate=np.where(np.arange(90) < 80, "7", "7b"), score=np.arange(90) / 8
    )
    rows["late"] = np.where(rows["flight"] < 60, np.nan, rows["flight"]).astype(object)
    rows = rows.assign(long="12345678901234567890", none=np.nan, signed="+1")
    rows = rows.assign(key=[f"5e{number}" for number in range(1000, 1090)], zero="-0")
    rows["price"] = [f"{number / 4:.2f}" for number in range(90)]
    twice = (("1e+05", "100000"), ("0.1e+01", "1"), ("-0", "0"), ("0.1", "0.10000000000000001"))
    for place, pair in enumerate(twice):
        rows[f"twice{place}"] = ["1.5", *pair] * 30
    rows["small"] = [repr(10.0 ** (number - 60)) for number in range(90)]
    rows["version"] = [f"1.{number}" for number in range(90)]
    rows.to_csv(tmp_path / "rows.csv", index=False)
    kept = "id,flight,gate,score,late,long,none,signed,key,zero,price,version,small,"
    kept += "twice0,twice1,twice2,twice3"
    found = predicted(
        folder, f"numbers {blocks}", tmp_path / "rows.csv", "l.parquet", "--keep", kept
    )
    schema = pq.read_schema(folder / f"numbers {blocks}" / "l.parquet")
    types = ["string", "int64", "string", "double", "double", *["string"] * 5]
    types += ["double", "string"]  # "1.1" and "1.10" would be one number
    types += ["double", *["string"] * 4]
    assert [
        str(schema.field(name).type).removeprefix("large_") for name in kept.split(",")
    ] == types
    assert (found["flight"] == rows["flight"]).all()
    assert (found["score"] == rows["score"]).all()
    for name in ("id", "version"):
        assert found[name].tolist() == rows[name].tolist()
    assert found["late"].isna().sum() == 60
    assert found["key"].tolist() == rows["key"].tolist()
    assert list((folder / f"numbers {blocks}").iterdir()) == [
        folder / f"numbers {blocks}/l.parquet"
    ]


def test_kept_columns_of_parquet_keep_their_types(folder):
    found = predicted(folder, "types", "parts", "labels.parquet", "--keep", "since")
    assert found["since"].tolist() == people()["since"].tolist()
    assert found["cluster"].dtype == np.int32


@pytest.mark.parametrize("source", ["hive/year=*/*.parquet", "hive/year=2020/p.parquet", "hive"])
def test_columns_that_folders_name_are_kept(folder, tmp_path, source):
    (tmp_path / "hive/year=2020").mkdir(parents=True)
    people().to_parquet(tmp_path / "hive/year=2020/p.parquet")
    own = ["--columns", "a,b,c", "--keep", "year", "--labels", str(tmp_path / "l.parquet")]
    quick = ["-k", "2", *QUICK, "--no-pictures", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["fit", str(tmp_path / source), *own, *quick]) == 0
    assert pd.read_parquet(tmp_path / "l.parquet")["year"].astype(int).tolist() == [2020] * 90


@pytest.mark.in_turn("chosen")
@pytest.mark.parametrize("keep", [[], ["--keep", "all"]], ids=["labels", "all columns"])
@pytest.mark.parametrize("chosen", [[5, 1, 88], slice(40, 70), slice(0, 30)], ids=str)
@pytest.mark.parametrize("divided", [False, True])
def test_labels_of_parquet_have_the_index_that_pandas_stored(
    tmp_path, folder, monkeypatch, chosen, keep, divided
):
    """A table of chosen rows keeps their numbers, by which pandas joins the labels."""
    monkeypatch.setattr(dd, "read_parquet", partial(dd.read_parquet, split_row_groups=divided))
    rows, place = people().iloc[chosen], tmp_path / "chosen.parquet"
    rows.to_parquet(place, row_group_size=8)
    own = ["--columns", "a,b,c", "--labels", str(tmp_path / "fit.parquet"), *keep]
    quick = ["-k", "2", *QUICK, "--no-pictures", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["fit", str(place), *own, *quick]) == 0
    of_fit = pd.read_parquet(tmp_path / "fit.parquet")
    found = predicted(folder, tmp_path / "new", place, "labels.parquet", *keep)
    for labels in (of_fit, found):
        pd.testing.assert_index_equal(labels.index, rows.index, exact="equiv")
        assert [*labels] == [*(rows if keep else []), "cluster"]
    model = daskmm.load(folder / "run" / "model")
    expected = pd.Series(model.predict(rows), rows.index)
    assert (rows.assign(cluster=found["cluster"])["cluster"] == expected).all()


@pytest.mark.parametrize("start", [0, 40])
def test_parquet_with_a_named_count_of_rows_as_index_is_read(tmp_path, start):
    rows = people().set_index(pd.RangeIndex(start, start + 90, name="person"))
    rows.to_parquet(tmp_path / "rows.parquet")
    command = ["fit", str(tmp_path / "rows.parquet"), "--columns", "a,b,c", "-k", "2", *QUICK]
    command += ["--no-pictures", "--quiet", "--out", str(tmp_path / "run")]
    assert main([*command, "--labels", str(tmp_path / "labels.parquet")]) == 0
    labels = pd.read_parquet(tmp_path / "labels.parquet")
    pd.testing.assert_index_equal(labels.index, rows.index, exact="equiv")
    model = daskmm.load(tmp_path / "run")
    np.testing.assert_array_equal(labels["cluster"], model.predict(rows))


def test_parquet_is_read_if_only_a_later_file_has_a_named_count_of_rows_as_index(tmp_path):
    rows, named = people(), pd.RangeIndex(90, name="person")
    rows.to_parquet(tmp_path / "1.parquet")
    rows.set_index(named).to_parquet(tmp_path / "2.parquet")
    found = open_data(str(tmp_path), columns=["a", "b", "c"]).compute()
    expected = pd.concat([rows, rows])[["a", "b", "c"]]
    pd.testing.assert_frame_equal(found.reset_index(drop=True), expected.reset_index(drop=True))


@pytest.mark.parametrize("out", ["labels.txt", "labels.csv.gz"])
def test_labels_are_not_written_to_other_files(folder, tmp_path, capsys, out):
    command = ["predict", str(folder / "run"), str(folder / "rows.csv"), "--out"]
    assert main([*command, str(tmp_path / out)]) == 2
    assert "labels are written to .parquet, .csv or .zarr" in capsys.readouterr().err
    assert not (tmp_path / out).exists()


@pytest.mark.parametrize("source", ["rows.csv", "rows.npy"])
def test_labels_without_kept_columns_are_a_table_of_one_column(folder, source):
    run = "run" if source == "rows.csv" else "of-array"
    found = predicted(folder, f"alone {source}", source, "labels.csv", run=run)
    assert found.columns.tolist() == ["cluster"]
    check(found)


@pytest.mark.parametrize(
    ("source", "out", "keep", "message"),
    [
        ("rows.csv", "labels.zarr", "id", "--keep needs a table"),
        ("rows.npy", "labels.csv", "all", "has no named columns"),
        ("rows.csv", "labels.csv", "id,nobody", "has no column 'nobody'"),
        ("rows.npy", "labels.csv", "id", "has no named columns"),
    ],
)
def test_columns_that_cannot_be_kept_are_refused(
    folder, tmp_path, capsys, source, out, keep, message
):
    command = ["predict", str(folder / "run"), str(folder / source), "--keep", keep]
    assert main([*command, "--out", str(tmp_path / out)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["labels.csv", "labels.parquet"])
def test_labels_are_written_as_tables_to_an_object_store(folder, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    url = f"memory://bucket/tables/{out}"
    command = ["predict", str(folder / "run"), str(folder / "rows.csv"), "--keep", "id", "--quiet"]
    assert main([*command, "--out", url]) == 0
    with fsspec.open(url) as file:
        check(pd.read_csv(file) if out.endswith("csv") else pd.read_parquet(file))
    assert main([*command, "--out", url]) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["labels.csv", "labels.parquet", "labels.zarr"])
def test_outliers_are_marked_in_every_output(folder, tmp_path, capsys, out):
    rows = people()
    rows.loc[4, FEATURES] = 1e3
    rows.to_csv(tmp_path / "rows.csv", index=False)
    expected = daskmm.load(folder / "run" / "model").predict(rows[FEATURES], outliers=0.1)
    command = ["predict", str(folder / "run"), str(tmp_path / "rows.csv"), "--outliers", ".1"]
    assert main([*command, "--json", "--out", str(tmp_path / out)]) == 0
    if out.endswith(".zarr"):
        found = zarr.open_array(tmp_path / out, mode="r")[:]
    else:
        read = pd.read_csv if out.endswith(".csv") else pd.read_parquet
        found = read(tmp_path / out)["cluster"]
    assert found[4] == -1
    np.testing.assert_array_equal(found, expected)
    told = json.loads(capsys.readouterr().out)
    assert (told["n_rows"], told["n_outliers"]) == (90, (expected < 0).sum())
    assert main([*command, "--overwrite", "--out", str(tmp_path / out)]) == 0
    assert f"labelled -1: {told['n_outliers']}" in capsys.readouterr().out


def test_outliers_are_refused_for_bad_shares_and_kernels(folder, tmp_path, capsys):
    rows, out = str(folder / "rows.csv"), str(tmp_path / "labels.csv")
    command = ["predict", str(folder / "run"), rows, "--out", out, "--outliers"]
    assert main([*command, "1"]) == 2
    assert "between 0 and 1" in capsys.readouterr().err
    kernel = ["fit", rows, "--columns", "a,b,c", "-k", "2", "--model", "kernel", "--no-pictures"]
    assert main([*kernel, "--quiet", "--out", str(tmp_path / "kernel")]) == 0
    command[1] = str(tmp_path / "kernel")
    assert main([*command, ".1"]) == 2
    assert "KernelPowerKMeans" in capsys.readouterr().err


def content(place):
    files = [place] if place.is_file() else sorted(place.rglob("*"))
    return {file.name: file.read_bytes() for file in files if file.is_file()}


@pytest.mark.parametrize("out", ["labels.csv", "labels.parquet", "labels.zarr"])
def test_labels_are_replaced_whole_or_not_at_all(folder, tmp_path, capsys, out):
    few = people().iloc[:40]
    few.to_csv(tmp_path / "few.csv", index=False)
    few.assign(b=np.inf).to_csv(tmp_path / "bad.csv", index=False)
    place = tmp_path / "out" / out

    def predict(source, *options):
        command = ["predict", str(folder / "run"), str(source), "--quiet", "--out", str(place)]
        return main([*command, *options])

    assert predict(folder / "rows.csv", "--overwrite") == 0  # there is nothing yet
    former = content(place)
    assert predict(tmp_path / "few.csv") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert predict(tmp_path / "bad.csv", "--overwrite") == 2
    assert content(place) == former
    assert [each.name for each in place.parent.iterdir()] == [out]
    assert predict(tmp_path / "few.csv", "--overwrite") == 0
    again = content(place)
    assert again != former
    assert predict(folder / "rows.csv", "--overwrite") == 0
    assert content(place) == former


def test_overwrite_replaces_nothing_but_labels(folder, tmp_path, capsys):
    people().to_csv(tmp_path / "rows.csv", index=False)
    np.save(tmp_path / "rows.npy", people()[FEATURES].to_numpy())
    (tmp_path / "parts").mkdir()
    for name in ("a.csv", "b.csv"):
        people().to_csv(tmp_path / "parts" / name, index=False)
    (tmp_path / "folder.csv").mkdir()
    table = zarr.create_array(tmp_path / "table.zarr", shape=(3, 3), dtype="f8")
    table[:] = 1.0
    before = content(tmp_path)
    for source, out, message in [
        ("rows.csv", "rows.csv", "part of INPUT"),
        ("parts", "parts/a.csv", "part of INPUT"),
        ("parts/*.csv", "parts/b.csv", "part of INPUT"),
        ("rows.csv", "folder.csv", "is a folder"),
        ("rows.csv", "table.zarr", "no array of labels"),
        ("rows.csv", "rows.npy", "no array of labels"),
        ("rows.csv", "parts", "no array of labels"),
    ]:
        command = ["predict", str(folder / "run"), str(tmp_path / source), "--overwrite"]
        assert main([*command, "--out", str(tmp_path / out)]) == 2
        assert message in capsys.readouterr().err
    assert content(tmp_path) == before


@pytest.mark.parametrize("out", ["labels.csv", "labels.zarr"])
def test_labels_on_an_object_store_are_replaced(folder, tmp_path, out):
    url = f"memory://bucket/replaced/{out}"
    people().iloc[:40].to_csv(tmp_path / "few.csv", index=False)
    for source, n_rows in ((folder / "rows.csv", 90), (tmp_path / "few.csv", 40)):
        command = ["predict", str(folder / "run"), str(source), "--overwrite", "--quiet"]
        assert main([*command, "--out", url]) == 0
        if out.endswith(".csv"):
            with fsspec.open(url) as file:
                assert len(pd.read_csv(file)) == n_rows
        else:
            assert zarr.open_array(url, mode="r").shape == (n_rows,)
    assert main([*command[:2], url, *command[3:], "--out", url]) == 2  # that is INPUT
    store = fsspec.filesystem("memory")
    store.pipe("/bucket/other/thing.txt", b"x")
    assert main([*command, "--out", "memory://bucket/other"]) == 2
    assert store.cat("/bucket/other/thing.txt") == b"x"


HOSTILE = "=cmd|\x1b[2J"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def test_formulas_and_control_characters_do_not_reach_csv_and_html(tmp_path):
    rng = np.random.default_rng(0)
    names = ["=HYPERLINK(1)", "-5.3", "+49 1", "@me", "a\x1b[2J\u202e"]
    frame = pd.DataFrame(rng.normal(size=(100, 2)), columns=[HOSTILE, "@b"])
    frame.iloc[:50] += 9
    frame["-kind"] = np.where(frame["@b"] > 5, "=1+1", "\tx\x9b")
    frame["=name"] = [*names * 20]
    frame.to_parquet(tmp_path / "rows.parquet")
    columns = [HOSTILE, "@b", "-kind"]
    options = ["-k", "2", "--quiet", "--columns"]
    for run, own in (("run", columns[:2]), ("mixed", columns)):
        mixed = ["--distortion", "mixed"] if run == "mixed" else []
        place = ["--out", f"{tmp_path}/{run}", "--model", "kmeans"]
        place += [*QUICK, "--report"] if run == "run" else ["--n-init", "1", "--no-pictures"]
        source = f"{tmp_path}/rows.parquet"
        assert main(["fit", source, *options, ",".join(own), *mixed, *place]) == 0
    place = ["--keep", "=name", "--out", f"{tmp_path}/labels.csv"]
    assert main(["predict", f"{tmp_path}/run", f"{tmp_path}/rows.parquet", *place]) == 0
    found = pd.read_csv(tmp_path / "labels.csv")
    assert list(found.columns) == ["'=name", "cluster"]
    shown = ["'=HYPERLINK(1)", "-5.3", "'+49 1", "'@me", "a\\x1b[2J\\u202e"]
    assert found["'=name"][:5].tolist() == shown
    centers = pd.read_csv(tmp_path / "mixed" / "centers.csv")
    # A name is no formula behind another word.
    assert list(centers.columns[-3:]) == ["center_=cmd|\\x1b[2J", "center_@b", "center_-kind"]
    assert sorted(centers["center_-kind"]) == ["'=1+1", "'\\tx\\x9b"]
    for file in ("labels.csv", "run/centers.csv", "mixed/centers.csv", "run/report.html"):
        text = (tmp_path / file).read_text(encoding="utf-8")
        assert not CONTROL.search(text), file
    as_parquet = [*place[:3], f"{tmp_path}/labels.parquet"]
    assert main(["predict", f"{tmp_path}/run", f"{tmp_path}/rows.parquet", *as_parquet]) == 0
    assert pd.read_parquet(tmp_path / "labels.parquet")["=name"][:5].tolist() == names


@pytest.mark.parametrize("names", [["key"], ["shop", "key"]])
def test_labels_have_the_stored_index(tmp_path, names):
    keys = pd.DataFrame({"shop": np.arange(90) % 7, "key": np.arange(90)[::-1] + 7})
    rows = people().set_index(pd.MultiIndex.from_frame(keys[names]) if names[1:] else keys["key"])
    rows.to_parquet(tmp_path / "rows.parquet")
    command = ["fit", str(tmp_path / "rows.parquet"), "--columns", "a,b,c", "-k", "2", *QUICK]
    command += ["--model", "kmeans", "--no-pictures", "--quiet", "--out", str(tmp_path / "run")]
    assert main([*command, "--labels", str(tmp_path / "labels.csv")]) == 0
    place = [str(tmp_path / name) for name in ("run", "rows.parquet", "labels.parquet")]
    assert main(["predict", *place[:2], "--out", place[2], "--quiet"]) == 0
    for found in (
        pd.read_csv(tmp_path / "labels.csv", index_col=names),
        pd.read_parquet(tmp_path / "labels.parquet"),
    ):
        joined = rows.sort_index().assign(cluster=found["cluster"]).loc[rows.index, "cluster"]
        np.testing.assert_array_equal(joined, zarr.open_array(tmp_path / "run" / "labels.zarr")[:])


def test_a_column_with_the_name_of_the_labels_is_refused_before_the_fit(tmp_path, capsys):
    people().assign(cluster=1).to_csv(tmp_path / "rows.csv", index=False)
    command = ["fit", str(tmp_path / "rows.csv"), "--columns", "a,b,c", "-k", "2", *QUICK]
    command += ["--keep", "cluster", "--labels", str(tmp_path / "labels.csv"), "--no-pictures"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 2
    assert "The column 'cluster' has the name of the labels" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "options"), [("cluster", []), ("cluster_name", ["--names"])])
def test_an_index_with_the_name_of_the_labels_is_no_column_of_csv(
    folder, tmp_path, capsys, name, options
):
    rows = people().set_index(pd.Index(np.arange(90) + 7, name=name))
    rows.to_parquet(tmp_path / "rows.parquet")
    command = ["predict", str(folder / "run"), str(tmp_path / "rows.parquet"), *options, "--out"]
    assert main([*command, str(tmp_path / "labels.csv")]) == 2
    assert f"The column '{name}' has the name of the labels" in capsys.readouterr().err
    assert not (tmp_path / "labels.csv").exists()
    assert main([*command, str(tmp_path / "labels.parquet")]) == 0
    found = pd.read_parquet(tmp_path / "labels.parquet")
    pd.testing.assert_index_equal(found.index, rows.index)
    assert "cluster" in found


def test_a_csv_row_without_a_value_is_named_by_file_and_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("daskmm.data.csv_files._BLOCK_BYTES", 1000)
    folder = tmp_path / "rows"
    folder.mkdir()
    for name, missing in (("a.csv", None), ("b.csv", 41)):
        rows = people()[["a", "b", "c"]].astype(float)
        if missing is not None:
            rows.iloc[missing, 1] = np.nan
        rows.to_csv(folder / name, index=False)
    command = ["fit", str(folder), "-k", "2", *QUICK, "--no-pictures", "--quiet"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "row 131 of the data" in said
    assert f"This row is in {folder / 'b.csv'}, line 43." in said  # after the header
