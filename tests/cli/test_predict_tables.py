"""``daskmm predict`` writes tables: labels beside the columns that name the rows."""

import dask
import fsspec
import numpy as np
import pandas as pd
import pytest

from daskmm.cli.main import main

FEATURES = ["a", "b", "c"]


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
    fit = ["-k", "2", "--model", "kmeans", "--n-init", "1", "--no-pictures", "--quiet"]
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


def check(found):
    assert found["cluster"].nunique() == 2
    assert found["cluster"].iloc[:30].nunique() == found["cluster"].iloc[30:].nunique() == 1


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # dask's, of a named index
@pytest.mark.parametrize("source", ["rows.csv", "rows.parquet", "parts"])
@pytest.mark.parametrize("out", ["labels.csv", "labels.parquet"])
def test_kept_columns_stand_beside_the_labels(folder, source, out):
    found = predicted(folder, f"{source} {out}", source, out, "--keep", "id,name,a")
    assert found.columns.tolist() == ["id", "name", "a", "cluster"]
    assert found["id"].tolist() == people()["id"].tolist()
    assert set(found["name"]) == {'ä, "b"'}
    np.testing.assert_allclose(found["a"], people()["a"], rtol=1e-12)
    check(found)


def test_types_of_kept_columns_of_parquet(folder):
    found = predicted(folder, "types", "parts", "labels.parquet", "--keep", "since")
    assert found["since"].tolist() == people()["since"].tolist()
    assert found["cluster"].dtype == np.int32


@pytest.mark.parametrize("source", ["rows.csv", "rows.npy"])
def test_labels_alone(folder, source):
    run = "run" if source == "rows.csv" else "of-array"
    found = predicted(folder, f"alone {source}", source, "labels.csv", run=run)
    assert found.columns.tolist() == ["cluster"]
    check(found)


@pytest.mark.parametrize(
    ("source", "out", "keep", "message"),
    [
        ("rows.csv", "labels.zarr", "id", "--keep needs a table"),
        ("rows.csv", "labels.csv", "id,nobody", "has no column 'nobody'"),
        ("rows.npy", "labels.csv", "id", "has no named columns"),
    ],
)
def test_columns_that_cannot_be_kept(folder, tmp_path, capsys, source, out, keep, message):
    command = ["predict", str(folder / "run"), str(folder / source), "--keep", keep]
    assert main([*command, "--out", str(tmp_path / out)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["labels.csv", "labels.parquet"])
def test_tables_on_an_object_store(folder, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    url = f"memory://bucket/tables/{out}"
    command = ["predict", str(folder / "run"), str(folder / "rows.csv"), "--keep", "id", "--quiet"]
    assert main([*command, "--out", url]) == 0
    with fsspec.open(url) as file:
        check(pd.read_csv(file) if out.endswith("csv") else pd.read_parquet(file))
    assert main([*command, "--out", url]) == 2
    assert not list(tmp_path.iterdir())
