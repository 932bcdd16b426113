"""The papers' tables: what is printed, how a cell is judged, and the command that shows it."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from _shared import SHARED

from papers import data, results
from papers.__main__ import main
from papers.experiment import (
    ABSENT,
    EXCEEDED,
    MATCHED,
    MISSED,
    REPRODUCED,
    UNTRIED,
    Experiment,
    Left,
    Measured,
    equal,
    higher_is_better,
    lower_is_better,
    mean_of,
    verdict_of,
)
from papers.power import drawn_by_distance
from papers.printed import PrintedCell, printed_tables, sources
from papers.tables import EXPERIMENTS, PAPERS, kept_table, keys_of, table_of


def test_every_printed_cell_is_that_of_the_papers():
    path = SHARED / "papers" / "tables.json"
    if not path.exists():
        pytest.skip(f"the papers' tables are not here: {path}")
    ours = {key: table for key, table in printed_tables().items() if not table.claim}
    n_cells = 0
    theirs = json.loads(path.read_text(encoding="utf-8"))
    assert len(theirs) == len(ours)
    for table in theirs:
        paper = {"wbms": "mean-shift"}.get(table["paper"], table["paper"])
        own = ours[paper, table["id"]]
        assert [*own.rows] == table["rows"]
        assert [*own.columns] == table["columns"]
        for row, cells in table["cells"].items():
            for column, cell in cells.items():
                expected = {name: cell.get(name) for name in ("value", "sd", "mark", "rank")}
                expected["note"] = cell.get("note") or ""
                assert asdict(own.cells[row, column]) == expected, (paper, table["id"], row, column)
                n_cells += 1
    assert n_cells == sum(len(table.cells) for table in ours.values()) == 746


@pytest.mark.parametrize(
    ("judge", "sd", "ours", "verdict"),
    [
        (higher_is_better, None, 0.85, REPRODUCED),
        (higher_is_better, None, 0.95, REPRODUCED),
        (higher_is_better, None, 0.84, MISSED),
        (higher_is_better, 0.04, 0.83, REPRODUCED),
        (higher_is_better, 0.01, 0.96, EXCEEDED),
        (higher_is_better, None, float("nan"), MISSED),
        (lower_is_better, None, 0.96, MISSED),
        (lower_is_better, None, 0.84, EXCEEDED),
        (lower_is_better, 0.2, 1.2, REPRODUCED),
        (equal, None, 0.9, REPRODUCED),
        (equal, None, 0.91, MISSED),
    ],
)
def test_judges_give_the_expected_verdict(judge, sd, ours, verdict):
    assert judge(0.9, sd, ours) == verdict


def experiment(*protocol, **conventions):
    of = (lambda n, d: iter(()), (1, 1), conventions, protocol, "")
    return Experiment("p", "Table 1", *of, ("own",))


def test_only_the_protocol_reproduces_a_cell_and_others_match_by_choice():
    cell, of = PrintedCell(0.9), experiment("a", a="", b="", c="")

    def judged(**values):
        found = [Measured("r", "c", name, value) for name, value in values.items()]
        return verdict_of(of, "r", "c", cell, found)

    assert judged(c=0.9, a=0.88).verdict == REPRODUCED
    chosen = judged(c=0.9, b=0.89, a=0.99)
    assert (chosen.verdict, chosen.chosen.convention) == (MATCHED, "b")
    assert chosen.protocol.value == 0.99
    assert judged(a=0.99, b=0.2).verdict == EXCEEDED
    worse = judged(b=0.2, a=0.1)
    assert (worse.verdict, worse.chosen.value) == (MISSED, 0.1)
    assert [one.convention for one in worse.tried] == ["a", "b"]
    assert judged(b=0.99).verdict == MISSED  # not what the table is judged by


def test_the_chance_of_a_wrong_print_grows_with_the_conventions_tried():
    cell, of = PrintedCell(0.5), experiment("a", a="", b="", c="")
    found = [Measured("r", "c", "a", 0.5)]
    right = verdict_of(of, "r", "c", cell, found)
    assert (right.chance, right.chance_by_choice) == (0.0, 0.0)
    found += [Measured("r", "c", name, value) for name, value in (("b", 0.65), ("c", 0.35))]
    tried = verdict_of(of, "r", "c", cell, found)
    assert (tried.chance, tried.chance_by_choice) == (0.0, 1.0)
    lucky = verdict_of(of, "r", "c", PrintedCell(0.35), found)
    assert lucky.chance == 0.5


def test_wrong_prints_are_never_judged_reproduced_by_the_true_value():
    for key, of in EXPERIMENTS.items():
        for c in kept_table(*key).cells:
            wrong = of.judge.wrong(c.column, c.printed.value)
            assert wrong or not c.verdict.tried
            for each in wrong:
                assert of.judge(each, None, c.printed.value) != REPRODUCED, (key, c, each)


def test_cells_that_were_not_measured_say_why():
    cell, of = PrintedCell(0.9), experiment(a="")
    assert verdict_of(of, "r", "c", cell, []).verdict == UNTRIED
    left = verdict_of(of, "r", "c", cell, [Left("r", None, "no data")])
    assert (left.verdict, left.why) == (ABSENT, "no data")
    assert verdict_of(of, "r", "c", cell, [Left("other", None, "no data")]).verdict == UNTRIED


def test_results_are_kept_and_read_as_they_were(tmp_path):
    planned = mean_of("Lloyd", "d = 2", "as printed", [1.0, 2.0])
    assert planned.measured() == Measured("Lloyd", "d = 2", "as printed", 1.5, 0.5**0.5, 2)
    found = [
        Measured("Lloyd", "d = 2", "as printed", 1.5, 0.70711, 2, 0.25),
        Left(None, "d = 5", "why"),
    ]
    path = tmp_path / "kept.json"
    one, two = ("power", "Table 1"), ("power", "Table 2")
    results.keep(path, one, found)
    results.keep(path, two, found[1:])
    again = results._parsed(path.read_text(encoding="utf-8"))
    assert set(again) == {one, two}
    assert again[one] == found
    better = replace(found[0], value=1.25)
    results.keep(path, one, [better], whole=False)
    assert results._parsed(path.read_text(encoding="utf-8"))[one] == [better]


def test_kept_results_belong_to_printed_tables_and_stated_conventions():
    for key, found in results.kept().items():
        of = EXPERIMENTS[key]
        assert {*of.protocol, *of.labelled} <= {*of.conventions}
        for one in found:
            if isinstance(one, Measured):
                assert one.convention in of.conventions, (key, one)


def test_a_table_prints_every_number_and_its_verdict(capsys):
    main(["power", "--table", "1", "--kept"])
    text = capsys.readouterr().out
    assert text.count("reproduced") >= 42
    assert "1.036 (0.018)" in text
    main([])
    text = capsys.readouterr().out
    assert all(paper in text for paper in PAPERS)
    with pytest.raises(SystemExit, match="2"):
        main(["power", "--table", "9"])
    assert "Table 1" in capsys.readouterr().err


def test_a_table_lists_the_conventions_under_which_it_was_measured():
    key = ("mean-shift", "Table 4")
    [first, *_] = EXPERIMENTS[key].conventions
    table = table_of(key, [Measured("Zoo", "h = 0.1", first, 0.5)])
    assert [*table.conventions] == [first]
    assert all(f"  {name}: " in table.text() for name in table.conventions)


def test_notebooks_show_a_table_with_escaped_text():
    html = kept_table("power", "1")._repr_html_()
    assert html.count("<tr>") >= 43
    assert "1.036 (0.018)" in html


def test_one_cell_is_measured_alone(capsys):
    cell = ["ewp", "--table", "5", "--row", "Iris", "--column", "k-means", "--repeats", "2"]
    main([*cell, "--convention", "raw"])
    text = capsys.readouterr().out
    assert "1 cells:" in text
    assert "Iris, k-means" in text
    with pytest.raises(SystemExit, match="2"):
        main([*cell, "--convention", "no such"])
    assert "no such" in capsys.readouterr().err


def test_papers_have_sources_and_keys():
    assert set(sources()) == set(PAPERS)
    assert keys_of("power", "table 2") == keys_of("power", "2") == [("power", "Table 2")]


def test_data_that_are_not_there_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="zoo"):
        data.RealData(tmp_path).load("zoo")
    rows, _ = data.RealData(tmp_path).load("iris")
    assert rows.shape == (150, 4)
    np.savez(tmp_path / "zoo.npz", X=np.eye(2, dtype=np.float32), y=np.arange(2))
    assert data.RealData(tmp_path).load("zoo")[0].dtype == np.float64


def test_features_are_standardised_and_constant_ones_vanish():
    X = np.array([[1.0, 5.0], [3.0, 5.0]])
    np.testing.assert_array_equal(data.zscore(X), [[-1.0, 0.0], [1.0, 0.0]])


def test_starts_are_drawn_in_proportion_to_unsquared_distance():
    rows = np.array([[0.0], [1.0], [3.0]])
    drawn = [drawn_by_distance(rows, 2, np.random.default_rng(s)).ravel() for s in range(4000)]
    second = np.array([b for a, b in drawn if a == 0.0])
    assert abs((second == 3.0).mean() - 0.75) < 0.04
