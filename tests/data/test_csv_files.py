"""csv files as other programs write them, and lines that do not fit."""

import gzip
import io
import re
import warnings
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest
from fsspec.implementations.local import LocalFileSystem

from daskmm import KMeans, load
from daskmm.cli.main import main
from daskmm.data import csv_files, files
from daskmm.data.files import open_data

TABLE = np.round(np.random.default_rng(0).normal(size=(300, 3)), 4)
FRAME = pd.DataFrame(TABLE, columns=["height", "weight", "größe"])


def read(path, **options):
    with dask.config.set(scheduler="sync"):
        return open_data(path, **options).compute()


def as_european(path, encoding="utf-8", first=""):
    text = FRAME.to_csv(index=False, sep=";", decimal=",")
    path.write_bytes((first + text).encode(encoding))


WRITERS = {
    "pandas.csv": lambda path: FRAME.to_csv(path, index=False),
    "pandas.tsv": lambda path: FRAME.to_csv(path, index=False, sep="\t"),
    "pandas.csv.gz": lambda path: FRAME.to_csv(path, index=False),
    "pandas.csv.bz2": lambda path: FRAME.to_csv(path, index=False),
    "windows.csv": lambda path: FRAME.to_csv(path, index=False, lineterminator="\r\n"),
    "excel-utf8.csv": lambda path: as_european(path, "utf-8-sig"),
    "excel.csv": lambda path: as_european(path, "cp1252"),
    "excel-sep.csv": lambda path: as_european(path, "cp1252", "sep=;\r\n"),
    "excel-unicode.csv": lambda path: as_european(path, "utf-16"),
    "R.csv": lambda path: FRAME.to_csv(path, index=False, quoting=2),  # write.csv(row.names=FALSE)
    "pipes.csv": lambda path: FRAME.to_csv(path, index=False, sep="|"),
    "spaces.csv": lambda path: path.write_text(FRAME.to_string(index=False)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_files_of_other_programs_are_read(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path)
    found = read(path)
    assert list(found.columns) == list(FRAME.columns)
    assert set(found.dtypes) == {np.dtype(float)}
    np.testing.assert_array_equal(found, TABLE)
    np.testing.assert_array_equal(read(path, columns=["größe", "height"]), TABLE[:, [2, 0]])


def test_a_file_is_read_in_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", 700)
    monkeypatch.setattr(csv_files, "_HEAD_BYTES", 1000)
    for name in ("pandas.csv", "windows.csv", "excel-utf8.csv"):
        WRITERS[name](tmp_path / name)
        assert open_data(tmp_path / name).npartitions > 5
        np.testing.assert_array_equal(read(tmp_path / name), TABLE)


def test_a_folder_of_spark_is_read_unless_it_is_partitioned(tmp_path):
    folder = tmp_path / "table.csv"
    folder.mkdir()
    for part in range(3):
        FRAME[100 * part : 100 * part + 100].to_csv(folder / f"part-0000{part}.csv", index=False)
    (folder / "_SUCCESS").write_text("")
    (folder / ".part-00000.csv.crc").write_bytes(b"\x00\x01")
    np.testing.assert_array_equal(read(folder), TABLE)
    folder = folder.rename(tmp_path / "table")
    np.testing.assert_array_equal(read(folder), TABLE)
    (folder / "year=2024").mkdir()
    (folder / "part-00000.csv").rename(folder / "year=2024" / "part-0.csv")
    with pytest.raises(ValueError, match=r"partitioned by folders \(year=2024/part-0\.csv\)"):
        open_data(folder)


def test_a_utf8_file_among_western_ones_is_read_as_utf8(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", 700)
    for part, encoding in enumerate(["cp1252", "utf-8-sig", "utf-8"]):
        rows = FRAME[100 * part :][:100].assign(city="Köln")
        rows.to_csv(tmp_path / f"part-{part}.csv", index=False, encoding=encoding)
    found = open_data(f"{tmp_path}/part-*.csv", columns=list(FRAME), keep=["city"]).compute()
    np.testing.assert_array_equal(found[list(FRAME)], TABLE)
    assert set(found["city"]) == {"Köln"}


def test_an_encoding_that_is_given_is_that_of_all_text(tmp_path):
    path = tmp_path / "cities.csv"
    FRAME[:9].assign(city="Köln").to_csv(path, index=False)
    given = {"columns": ["height"], "keep": ["city"], "encoding": "windows-1252"}
    assert set(read(path, **given)["city"]) == {"KÃ¶ln"}
    assert csv_files.estimated_rows(str(path), "windows-1252") == (9, False)


def test_rows_of_files_of_unknown_size_are_not_estimated(tmp_path, monkeypatch):
    """Servers that send chunks do not say the size."""
    FRAME.to_csv(tmp_path / "x.csv.gz", index=False)
    monkeypatch.setattr(LocalFileSystem, "size", lambda *_: None)
    assert csv_files.estimated_rows(str(tmp_path / "x.csv.gz")) == (None, True)
    assert files.estimated_bytes(FRAME, str(tmp_path / "x.csv.gz")) == np.inf


@pytest.mark.parametrize(("separator", "mark"), [(";", "."), (";", ","), ("\t", ".")])
def test_integers_with_marks_of_thousands_are_refused_unless_the_mark_is_given(
    tmp_path, separator, mark
):
    values = np.random.default_rng(0).integers(1, 20_000, 60)
    text = [f"{value:,}".replace(",", mark) for value in values]
    frame = pd.DataFrame({"paid": text, "age": np.arange(60)})
    frame.to_csv(path := tmp_path / "thousands.csv", index=False, sep=separator)
    with pytest.raises(ValueError, match=r"'paid' .*without marks of thousands.*--decimal"):
        open_data(path)
    expected = [float(one.replace(mark, ".")) for one in text]
    fitted = csv_files.open_csv(str(path), ["paid", "age"], fitted=True)  # the fit knew the mark
    for given in (open_data(path, decimal=mark), fitted):
        np.testing.assert_array_equal(given.compute()["paid"], expected)


@pytest.mark.parametrize("separator", [",", ";"])
@pytest.mark.parametrize(
    "values",
    [
        ["1.234", "5.678", "12.345", "999.125"],  # all have three decimals
        ["1.234", "5.678", "12.345", "7", "2.5"],
        ["1.234", "5.678", "12.345", "7", "1234"],
        ["1.234", "0.678", "12.345", "2.125", "7"],
        ["1.234", "7"],
        ["1.125", "2.375", "3", "4.625"],
    ],
)
def test_decimals_are_not_taken_for_thousands(tmp_path, values, separator):
    frame = pd.DataFrame({"x": values, "y": 1})
    frame.to_csv(path := tmp_path / "decimals.csv", index=False, sep=separator)
    np.testing.assert_array_equal(read(path)["x"], np.array(values, dtype=float))


@pytest.mark.parametrize(("separator", "other"), [(",", "2"), (";", "2.5"), ("\t", "-0.125")])
def test_a_mark_is_decimal_if_commas_separate_or_another_column_has_decimals(
    tmp_path, separator, other
):
    values = ["1.234", "5.678", "12.345", "7"]
    frame = pd.DataFrame({"x": values, "y": other})
    frame.to_csv(path := tmp_path / "decimals.csv", index=False, sep=separator)
    np.testing.assert_array_equal(read(path)["x"], np.array(values, dtype=float))


def test_columns_are_matched_by_name_across_files(tmp_path):
    FRAME[:200].to_csv(tmp_path / "part-0.csv", index=False)
    FRAME[200:][["größe", "height", "weight"]].to_csv(tmp_path / "part-1.csv", index=False)
    np.testing.assert_array_equal(read(f"{tmp_path}/part-*.csv"), TABLE)
    FRAME[["height", "weight"]].to_csv(tmp_path / "part-2.csv", index=False)
    with pytest.raises(ValueError, match=r"part-2\.csv lacks 'größe', which the first"):
        read(f"{tmp_path}/part-*.csv")


def test_blocks_beyond_the_first_of_a_file_follow_its_own_header(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", 500)
    FRAME[:200].to_csv(tmp_path / "part-0.csv", index=False)
    FRAME[200:][["größe", "height", "weight"]].to_csv(tmp_path / "part-1.csv", index=False)
    assert open_data(f"{tmp_path}/part-*.csv").npartitions > 6
    np.testing.assert_array_equal(read(f"{tmp_path}/part-*.csv"), TABLE)


def test_headers_may_be_longer_than_what_formats_are_usually_detected_from(tmp_path):
    names = [f"{'gene' * 100}{number}" for number in range(800)]
    table = np.random.default_rng(0).normal(size=(6, 800)).round(2)
    for part, order in (("0", 1), ("1", -1)):  # a file has its own order
        frame = pd.DataFrame(table, columns=names).iloc[:, ::order]
        frame.to_csv(tmp_path / f"part-{part}.csv", index=False)
    found = open_data(f"{tmp_path}/part-*.csv")
    np.testing.assert_array_equal(found.compute(), np.vstack([table, table]))
    assert csv_files.estimated_rows(f"{tmp_path}/part-*.csv") == (12, False)


@pytest.mark.in_turn("separator")
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_a_comment_may_precede_a_very_long_header(tmp_path, separator):
    names = [f"{'gene' * 100}{number}" for number in range(400)]
    table = pd.DataFrame(np.arange(800).reshape(2, -1), columns=names)
    path = tmp_path / "genes.csv"
    path.write_text("# genes\n" + table.to_csv(index=False, sep=separator))
    np.testing.assert_array_equal(open_data(path).compute(), table)


def test_zipped_files_of_few_rows_have_an_estimate_of_at_least_a_row_each(tmp_path):
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 300))).add_prefix("column")
    for part in range(40):
        rows[: 1 if part else 200].to_csv(tmp_path / f"part-{part:02}.csv.gz", index=False)
    n_rows, zipped = csv_files.estimated_rows(f"{tmp_path}/part-*.csv.gz")
    assert zipped
    assert 40 <= n_rows <= 2 * 239


def test_names_are_those_that_pandas_reads():
    rng = np.random.default_rng(0)
    known = ["a", "b", "a.1", "", "Unnamed: 0", " c", '"x y"', '"q""z"']
    for size in rng.integers(2, 8, 200):
        header = ",".join(rng.choice(known, size)) + "\n"
        frame = pd.read_csv(io.StringIO(header), skipinitialspace=True)
        assert csv_files._names(csv_files._header(header, ",")) == tuple(frame.columns)


def test_columns_of_one_name_are_told_if_some_of_them_are_left_out(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,b,a\n" + "1,2,3\n4,5,7\n" * 5, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [*csv_files.open_csv(str(path), None).columns] == ["a", "b", "a.1"]
        csv_files.open_csv(str(path), ["a", "a.1"])
        csv_files.open_csv(str(path), ["b"])
    for columns in (["a", "b"], ["a.1"]):
        with pytest.warns(UserWarning, match="2 columns named 'a', which count as 'a', 'a.1'"):
            csv_files.open_csv(str(path), columns)


@pytest.mark.parametrize("further", [0, 1])
def test_files_may_differ_in_columns_that_are_not_chosen(tmp_path, monkeypatch, further):
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", 500)
    for part, rows in enumerate((FRAME[:200], FRAME[200:])):
        if part == further:
            rows = rows.assign(note="late", size=1.0)[["note", *FRAME.columns, "size"]]
        rows.to_csv(tmp_path / f"part-{part}.csv", index=False)
        rows.to_parquet(tmp_path / f"part-{part}.parquet")
    chosen = list(FRAME.columns)
    for kind in ("csv", "parquet"):
        found = open_data(f"{tmp_path}/part-*.{kind}", columns=chosen).compute()
        np.testing.assert_array_equal(found, TABLE)
        kept = open_data(f"{tmp_path}/part-*.{kind}", columns=[], keep=chosen[:1]).compute()
        assert kept.columns.tolist() == chosen[:1]
        message = rf"part-1\.{kind} (has 'note',|lacks) 'size'.*--columns"
        with pytest.raises(ValueError, match=message):
            open_data(
                f"{tmp_path}/part-*.{kind}", columns=None if further else [*chosen, "size"]
            ).compute()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,c\n1,2,3,4\n5,6,7,8\n", r"line 2: 4 fields where the header has 3"),
        ("a,b,c\n1,2,3\n5,6\n", r"line 3: 2 fields where the header has 3"),
        ("1,2,3\n1,2,3,4\n", r"line 2: 4 fields where the first line has 3"),
        ("a\n1,5\n2,5\n", r"line 2: 2 fields where the header has 1"),
        ("sep=;\na;b\n1;2\n1;2;3\n", r"line 4: 3 fields where the header has 2"),
        (",a,b\n1,2,3\n", r"column without a name"),
        ("a,b,\n1,2,\n3,4,\n", r"separator at the end of each line"),
        ("a,b\n1,2\n10%,3\n", r"not numeric: 'a' \(such as '10%'\)"),
        ("a;b\n1.234,5;2\n2,5;3\n", r"not numeric: 'a' \(such as '1\.234,5'\)"),
        ('"a","b"\n"r1",1,2\n"r2",3,4\n', r"line 2: 3 fields .* row names"),
    ],
)
def test_files_that_are_no_table_of_numbers_are_refused_before_they_are_read(
    tmp_path, text, message
):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"x\.csv.* {message}"):
        open_data(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("1,2,3,4", r"line 252: 4 fields where 3 are expected \('1,2,3,4'\)"),
        ("1,2", r"line 252: 2 fields where 3 are expected"),
        ('"1,2",3', r"line 252: 2 fields where 3 are expected"),
        ("1,many,3", r"line 252: column 'weight' has 'many', which is not a number"),
        ("1,2,1_000", r"line 252: column 'größe' has '1_000'"),
        ("1,1e999,3", r"line 252: column 'weight' has '1e999', which is not a number"),
        ("1,2\u00a0,3", r"line 252: column 'weight' has '2\\xa0', which is not a number"),
        ("1,\u0661,3", r"line 252: column 'weight' has '\u0661', which is not a number"),
        ("1,1.5.2,3", r"line 252: column 'weight' has '1\.5\.2', which is not a number"),
        ("1,1\x002,3", r"line 252: .* zero bytes"),
    ],
)
@pytest.mark.parametrize("block", [1 << 20, 900])
def test_lines_that_do_not_fit_are_named(tmp_path, monkeypatch, bad, message, block):
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", block)
    lines = FRAME.to_csv(index=False).splitlines()
    lines.insert(251, bad)
    (tmp_path / "x.csv").write_text("\n".join(lines), encoding="utf-8")
    X = open_data(tmp_path / "x.csv")
    with pytest.raises(ValueError, match=rf"x\.csv, {message}"):
        KMeans(2).fit(X)


def test_values_are_read_exactly_whoever_reads_them(tmp_path):
    values = np.random.default_rng(1).normal(size=(500, 2)) * 10.0 ** np.arange(-250, 250)[:, None]
    lines = [f"{a!r},{b!r}" for a, b in values.tolist()]
    for last in ("0.5", "inf"):  # Python reads infinities
        (tmp_path / "x.csv").write_text("\n".join(["a,b", *lines, f"{last},1"]))
        found = csv_files.open_csv(str(tmp_path / "x.csv"), None).compute()
        np.testing.assert_array_equal(found, [*values, [float(last), 1.0]])


def test_rows_with_blanks_and_quotes_are_read_as_without(tmp_path):
    text = 'name,x,ok\n"a, b" , 1 ,True\n\n"c", -  , False\nNA, +3,\n'
    (tmp_path / "x.csv").write_text(text)
    found = read(tmp_path / "x.csv", columns=["x", "ok"], keep=["name"])
    np.testing.assert_array_equal(found[["x", "ok"]], [[1, 1], [np.nan, 0], [3, np.nan]])
    assert found["name"].fillna("").str.strip().tolist() == ["a, b", "c", ""]


@pytest.mark.parametrize("block", [1 << 20, 900])
def test_a_value_that_is_no_date_is_named_with_its_line(tmp_path, monkeypatch, block):
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", block)
    lines = ["day,x", *(f"2026-02-0{1 + i % 9},{i}" for i in range(300))]
    lines[199:201] = ["", "2026-02-30,5"]
    (tmp_path / "x.csv").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"x\.csv, line 201: column 'day' has '2026-02-30'"):
        read(tmp_path / "x.csv", mixed=True, dates=["day"])


@pytest.mark.parametrize("bad", ["1e999", "1.5\u00a0", "\u0661\u0662", "1.5.2"])
def test_a_value_among_the_first_lines_is_named_with_its_line(tmp_path, bad):
    (tmp_path / "x.csv").write_text(f"a,b\n1,2\n\n3,{bad}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"'b' \(such as {re.escape(repr(bad))}\) in line 4"):
        open_data(tmp_path / "x.csv")


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zip"])
def test_compressed_files_that_are_cut_or_damaged_are_named(tmp_path, suffix):
    path = tmp_path / f"x.csv.{suffix}"
    pd.concat([FRAME] * 50).sample(frac=1.0, random_state=0).to_csv(path, index=False)
    whole = path.read_bytes()
    damaged = whole[: len(whole) // 2] + bytes(50) + whole[len(whole) // 2 + 50 :]
    for content in (whole[: len(whole) // 2], whole[:30], damaged, b"no such format" * 9):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"x\.csv\.{suffix} cannot be read: it is damaged"):
            read(path)


def test_a_quote_without_its_end_is_named_by_its_line(tmp_path):
    lines = [*FRAME.to_csv(index=False).splitlines()[:201], '"1,2,3', *["1,2,3"] * 40_000]
    (tmp_path / "x.csv").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ValueError, match=r"x\.csv, line 202: .*quote that is not closed"):
        read(tmp_path / "x.csv")


@pytest.mark.parametrize("value", ["2", "+inf"])
def test_a_quote_without_its_end_in_kept_text_takes_no_further_rows(tmp_path, value):
    # Infinities are read by Python, other rows by Arrow.
    lines = ["x,label\n", *["1,a\n"] * 300, f'{value},"b\n', *["3,c\n"] * 20]
    (tmp_path / "x.csv").write_text("".join(lines))
    with pytest.raises(ValueError, match=r"x\.csv, line 302: .*quote that is not closed"):
        csv_files.open_csv(str(tmp_path / "x.csv"), ["x"], keep=["label"]).compute()


def test_a_line_break_within_quotes_between_blocks_is_refused_but_not_in_a_compressed_file(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", 12)
    text = 'x,label\n1,"one\n2,of two lines"\n3,c\n'
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ValueError, match=r"line 2: .*line break within quotes where two blocks"):
        csv_files.open_csv(str(tmp_path / "x.csv"), ["x"], keep=["label"]).compute()
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(text.encode()))
    found = csv_files.open_csv(str(tmp_path / "x.csv.gz"), ["x"], keep=["label"]).compute()
    assert found["label"].tolist() == ["one\n2,of two lines", "c"]


def test_a_very_long_field_among_the_first_lines_is_refused_with_the_file(tmp_path):
    (tmp_path / "x.csv").write_text(f"x,label\n1,{'a' * 200_000}\n2,b\n")
    with pytest.raises(ValueError, match=r"x\.csv cannot be read as csv: field larger than"):
        csv_files.open_csv(str(tmp_path / "x.csv"), ["x"], keep=["label"])


def test_a_very_long_field_with_other_separators_is_refused_with_the_reason(tmp_path):
    long = "a" * 100_000
    (tmp_path / "x.csv").write_text(f"x;label\n1;{long},{long}\n2;b\n")
    with pytest.raises(ValueError, match="separated by ','; by others: field larger than"):
        csv_files.open_csv(str(tmp_path / "x.csv"), ["x"], keep=["label"])


@pytest.mark.parametrize("last", ["3", "inf"])
def test_a_line_of_two_quotes_is_a_row_without_a_value(tmp_path, last):
    # Infinities are read by Python, other rows by Arrow.
    (tmp_path / "x.csv").write_text(f'x\n1\n""\n\n  \n{last}\n')
    found = csv_files.open_csv(str(tmp_path / "x.csv"), None).compute()["x"]
    np.testing.assert_array_equal(found, [1.0, np.nan, float(last)])


def test_marks_of_missing_values_are_those_of_pandas(tmp_path):
    marks = sorted(pd._libs.parsers.STR_NA_VALUES)
    text = "x,label\n1,a\n" + "".join(f"{mark},{mark}\n" for mark in marks)
    (tmp_path / "x.csv").write_text(text)
    found = csv_files.open_csv(str(tmp_path / "x.csv"), ["x"], keep=["label"]).compute()
    assert len(found) == 1 + len(marks)
    assert found[1:].isna().all(axis=None)


def test_rare_marks_in_kept_text_do_not_end_lines(tmp_path):
    texts = ["a\x0bb", "c\u2028d", "e\x85f"]
    lines = ["name,x", *(f"{text},{i}" for i, text in enumerate(texts))]
    (tmp_path / "x.csv").write_text("\n".join(lines), encoding="utf-8")
    found = read(tmp_path / "x.csv", columns=["x"], keep=["name"])
    assert found["name"].tolist() == texts
    assert found["x"].tolist() == [0, 1, 2]


def test_integers_may_turn_into_fractions_and_blanks(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_files, "_HEAD_BYTES", 100)
    rows = ["a,b,c,d"] + ["1,2,True,x"] * 300 + ["1.5,,,"] + [",3,False,y"]
    (tmp_path / "x.csv").write_text("\n".join(rows))
    found = read(tmp_path / "x.csv", columns=["b", "a", "c"])
    np.testing.assert_array_equal(found[-3:], [[2, 1, 1], [np.nan, 1.5, np.nan], [3, np.nan, 0]])
    with pytest.raises(ValueError, match=r"not numeric: 'd' \(such as 'x'\).*--columns"):
        open_data(tmp_path / "x.csv")
    # A column that is left out may hold anything.
    assert KMeans(2, missing="partial").fit(found[["a"]].dropna()).n_features_in_ == 1


def test_a_file_without_rows_is_refused(tmp_path):
    (tmp_path / "night.csv").write_text("a,b\n")
    with pytest.raises(ValueError, match=r"night\.csv has no rows below its header"):
        open_data(tmp_path / "night.csv")
    # One of several files may be empty, as Spark writes them.
    (tmp_path / "part-2.csv").write_text("a,b\n1,2\n3,4\n")
    assert len(read(tmp_path / "*.csv")) == 2


def test_the_format_may_be_given(tmp_path):
    (tmp_path / "x.csv").write_text("a\n1,5\n2,5\n")
    np.testing.assert_array_equal(
        read(tmp_path / "x.csv", separator=";", decimal=","), [[1.5], [2.5]]
    )
    np.save(tmp_path / "x.npy", TABLE)
    with pytest.raises(ValueError, match=r"of csv files"):
        open_data(tmp_path / "x.npy", separator=";")
    (tmp_path / "y.csv").write_bytes("größe\n1\n".encode())
    with pytest.raises(ValueError, match=r"y\.csv cannot be decoded as ascii"):
        open_data(tmp_path / "y.csv", encoding="ascii")


@pytest.mark.parametrize(
    ("options", "most_bytes", "once"),
    [
        ([], 10_000, True),
        pytest.param([], 100, False, marks=pytest.mark.long),
        pytest.param(["--no-persist"], 10_000, False, marks=pytest.mark.long),
    ],
)
def test_a_fit_parses_small_tables_once(tmp_path, monkeypatch, options, most_bytes, once):
    monkeypatch.setattr("daskmm.cli.actions.LOADED_ONCE_BYTES", most_bytes)
    read, parsed = csv_files._read, []

    def counted(block, *arguments, **further):
        parsed.append(block.path)
        return read(block, *arguments, **further)

    monkeypatch.setattr(csv_files, "_read", counted)
    FRAME.to_csv(path := tmp_path / "x.csv", index=False)
    given = ["-k", "3", "--out", f"{tmp_path}/run", "--no-pictures", "--quiet", *options]
    assert main(["fit", str(path), *given]) == 0
    model = load(tmp_path / "run" / "model")
    assert not model.persist
    # The labels and a sample for the summary are read after the fit.
    assert len(parsed) <= 3 if once else len(parsed) >= model.n_passes_ > 3


@pytest.mark.long
def test_commands_take_the_format_of_csv_files(tmp_path, capsys):
    path = tmp_path / "x.csv"
    with gzip.open(f"{path}.gz", "wt") as file:
        file.write(FRAME.to_csv(index=False, sep=";", decimal=","))
    path.write_text("a\n" + "\n".join(f"{value},5" for value in range(50)))
    options = ["--separator", ";", "--decimal", ","]
    assert main(["plan", str(path), "-k", "2", *options]) == 0
    assert main(["fit", f"{path}.gz", "-k", "2", "--out", f"{tmp_path}/run", "--no-pictures"]) == 0
    capsys.readouterr()
    assert main(["plan", str(path), "-k", "2"]) == 2
    assert "--separator" in capsys.readouterr().err


def test_names_with_line_breaks_and_blank_lines_are_read(tmp_path):
    (tmp_path / "x.csv").write_text('sep=,\n"height\n(cm)",b\n\n1,2\n\n3,4\n')
    found = read(tmp_path / "x.csv")
    assert list(found.columns) == ["height\n(cm)", "b"]
    np.testing.assert_array_equal(found, [[1, 2], [3, 4]])
    (tmp_path / "x.csv").write_text('"height\n(cm)",b\n\n1,2\n3\n')
    with pytest.raises(ValueError, match=r"line 5: 1 fields"):
        open_data(tmp_path / "x.csv")


COMMENTED = {
    "comments.csv": "# exported by the lab, 2024\n# second run\n" + FRAME.to_csv(index=False),
    "commas.csv": "# a, b, c\n" + FRAME.to_csv(index=False),
    "sep.csv": "sep=;\n# exported\n" + FRAME.to_csv(index=False, sep=";"),
    "decimals.csv": "# by; hand; 2024\n" + FRAME.to_csv(index=False, sep=";", decimal=","),
    "spaces.csv": FRAME.to_csv(index=False).replace(",", ", "),
    "text.txt": FRAME.to_csv(index=False, sep="\t"),
    "text.dat": FRAME.to_csv(index=False, sep=" "),
}


@pytest.mark.parametrize("name", COMMENTED)
def test_comments_above_the_header_and_text_files_are_read(tmp_path, name):
    (tmp_path / name).write_text(COMMENTED[name], encoding="utf-8")
    found = read(tmp_path / name)
    assert list(found.columns) == list(FRAME.columns)
    np.testing.assert_array_equal(found.to_numpy(), TABLE)


def test_a_header_may_begin_with_a_comment_sign(tmp_path):
    path = tmp_path / "sites.tsv"
    path.write_text("## version 4\n#site\tstart\tend\n" + "chr1\t1\t2\n" * 9 + "chr2\t3\t4\n")
    assert open_data(path, columns=["start", "end"]).columns.tolist() == ["start", "end"]
    assert read(path, columns=["start"], keep=["#site"])["#site"].tolist() == ["chr1"] * 9 + [
        "chr2"
    ]
    only = tmp_path / "only.csv"
    only.write_text("# nothing\n# here\n")
    with pytest.raises(ValueError, match="it has no lines but comments"):
        open_data(only)


def test_each_file_of_a_folder_has_comments_of_its_own_or_nothing(tmp_path):
    for number, comments in enumerate(("# one\n", "", "# one\n# two\n")):
        part = comments + FRAME[100 * number : 100 * (number + 1)].to_csv(index=False)
        (tmp_path / f"part-{number}.csv").write_text(part, encoding="utf-8")
    (tmp_path / "part-3.csv").write_text("")
    (tmp_path / "README.txt").write_text("How these files were made.")
    np.testing.assert_array_equal(read(tmp_path).to_numpy(), TABLE)
    (tmp_path / "part-4.csv").write_text("1,2,3\n")
    with pytest.raises(ValueError, match=r"part-4\.csv has '1', '2', '3', which the first"):
        read(tmp_path)


@pytest.mark.parametrize("sign", ["-", ".", "?"])
def test_marks_of_missing_values_in_columns_of_numbers_are_read(tmp_path, sign):
    table = pd.DataFrame({"n": [1, 2, sign, 4] * 20, "x": [0.5, sign, 1.5, 2.5] * 20, "id": sign})
    table.to_csv(tmp_path / "survey.csv", index=False)
    found = read(tmp_path / "survey.csv", columns=["n", "x"], keep=["id"])
    np.testing.assert_array_equal(np.isnan(found[["n", "x"]].to_numpy()).sum(axis=0), [20, 20])
    assert set(found["id"]) == {sign}
    frame = open_data(tmp_path / "survey.csv", columns=["n", "x"])
    with pytest.raises(ValueError, match="row 1"):
        KMeans(2).fit(frame)
    assert KMeans(2, missing="partial", random_state=0).fit(frame).n_samples_seen_ == 80


@pytest.mark.parametrize("suffix", ["csv", "parquet", "csv.gz", "csv.bz2"])
def test_a_plan_knows_the_rows_of_files(tmp_path, suffix, capsys):
    path = str(tmp_path / f"table.{suffix}")
    many = pd.concat([FRAME] * 100)
    many.to_parquet(path) if suffix == "parquet" else many.to_csv(path, index=False)
    assert main(["plan", path, "-k", "3"]) == 0
    told = capsys.readouterr().out
    rows = re.search(r"([\d,]+) rows ×", told)
    if suffix == "csv.bz2":
        assert "an unknown number of rows" in told
        return
    assert ("rows are estimated" in told) == (suffix != "parquet")
    assert ("is read whole" in told) == (suffix == "csv.gz")
    n_rows = int(rows[1].replace(",", ""))
    assert n_rows == pytest.approx(len(many), rel=0 if suffix == "parquet" else 0.01)
    if suffix == "csv.gz":  # bgzip and logs write many members
        text = many.to_csv(index=False).encode()
        members = [gzip.compress(text[i : i + 10_000]) for i in range(0, len(text), 10_000)]
        Path(path).write_bytes(b"".join(members))
        assert main(["plan", path, "-k", "3"]) == 0
        found = re.search(r"([\d,]+) rows ×", capsys.readouterr().out)
        assert int(found[1].replace(",", "")) == pytest.approx(len(many), rel=0.02)


def test_names_of_columns_may_be_given_with_spaces(tmp_path, capsys):
    path = tmp_path / "table.csv"
    FRAME.to_csv(path, index=False)
    out = str(tmp_path / "run")
    fit = ["fit", str(path), "-k", "2", "--model", "kmeans", "--no-standardize", "--no-pictures"]
    assert main([*fit, "--columns", "height, weight", "--out", out]) == 0
