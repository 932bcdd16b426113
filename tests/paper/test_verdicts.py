"""What the kept results say of the papers' tables, and that they can be measured again."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from _shared import SHARED

from papers.__main__ import main
from papers.experiment import EXCEEDED, MATCHED, MISSED, REPRODUCED, UNTRIED
from papers.page import command, page, ticks
from papers.power import one_draw
from papers.printed import printed_tables
from papers.tables import EXPERIMENTS, kept_table

GOOD = (REPRODUCED, EXCEEDED)
FOLDER = Path(__file__).parents[2] / "notebooks"


def verdicts(paper, table, **where):
    found = {
        (c.row, c.column): c.verdict
        for c in kept_table(paper, table).cells
        if all(getattr(c, name) == value for name, value in where.items())
    }
    assert found
    return found


def test_the_page_of_the_notebooks_is_that_of_the_kept_results():
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == page()


def test_power_k_means_tables_come_out():
    found = [*verdicts("power", "1").values(), *verdicts("power", "2").values()]
    assert len(found) == 84
    assert sum(v.verdict == REPRODUCED for v in found) >= 80
    assert all(v.verdict in GOOD for v in found)


@pytest.mark.parametrize("table", ["1", "2"])
def test_power_k_means_is_ahead_in_every_column(table):
    cells = {(c.row, c.column): c.verdict.chosen.value for c in kept_table("power", table).cells}
    for column in {column for _, column in cells}:
        ours = min(cells[f"s0 = {s0}", column] for s0 in (-1.0, -3.0, -9.0, -18.0))
        assert ours < min(cells["Lloyd", column], cells["KHM", column])


@pytest.mark.parametrize("paper", sorted({paper for paper, _ in EXPERIMENTS}))
def test_own_cells_that_are_not_reproduced_were_tried_by_three_conventions(paper):
    text = page()
    for key in EXPERIMENTS:
        for cell in kept_table(*key).cells if key[0] == paper else ():
            if cell.verdict.verdict in (MISSED, MATCHED):
                tried = {one.convention for one in cell.verdict.tried}
                assert len(tried) >= 3 or not cell.own, (key, cell.row, cell.column)
                listed = f"- {cell.row}, {cell.column}: {cell.printed.value} in print"
                assert listed in text


def test_every_number_in_print_stands_on_the_page_with_its_verdict():
    text, n = page(), 0
    for key in EXPERIMENTS:
        for cell in kept_table(*key).cells:
            assert cell.verdict.verdict != UNTRIED, (key, cell.row, cell.column)
            assert cell.verdict.why or cell.verdict.chosen is not None
            n += 1
    signs = (" ✓ ", " (✓) ", " ○ ", " ▲ ", " ✗ ", " ∅ ")
    assert n == sum(line.count(s) for line in text.splitlines() if line[0:1] == "|" for s in signs)
    assert n == sum(len([*table.numbers()]) for table in printed_tables().values())


@pytest.mark.parametrize("own", [True, False])
def test_ticks_that_wrong_prints_would_earn_do_not_count_and_say_so(own):
    text = page()
    for paper, name in EXPERIMENTS:
        table = kept_table(paper, name)
        of = table.evidence(own)
        assert of.counts == (of.real > of.chance + 1)
        assert of.chance <= of.chance_by_choice
        counted = [c for c in table.cells if c.own == own and table.counted(c)]
        assert len(counted) == (of.real if of.counts else 0)
        if of.cells:
            real, wrong = (
                f"**{x}**" if not of.counts else x for x in (of.real, f"{of.chance:.1f}")
            )
            [line] = [x for x in text.splitlines() if x.startswith(f"| {paper}, {name} |")]
            assert f"| {of.cells} | {real} | {wrong} | {of.by_choice} |" in line


def test_ticks_that_are_drawn_stand_on_the_page_with_their_commands():
    drawn = ticks([kept_table(*key) for key in EXPERIMENTS])
    assert len({(table.title, c.row, c.column) for table, c in drawn}) == 15
    text = page()
    for table, cell in drawn:
        assert table.counted(cell)
        assert f"`{command(table, cell)}`" in text


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(15))
def test_a_tick_that_is_drawn_is_measured_again(number, capsys, monkeypatch):
    if not (SHARED / "data").exists():
        pytest.skip(f"the papers' data are not here: {SHARED / 'data'}")
    monkeypatch.setenv("DASKMM_SHARED", str(SHARED))
    table, cell = ticks([kept_table(*key) for key in EXPERIMENTS])[number]
    main(shlex.split(command(table, cell))[3:])
    [line] = [x for x in capsys.readouterr().out.splitlines() if x.startswith(f"{cell.row}, ")]
    ours = float(re.split(r"\s{2,}", line)[2].split(" ")[0])
    assert abs(ours - cell.verdict.chosen.value) <= 0.02 * abs(ours) + 1e-4


def findings():
    """Return the commands of the page of findings, and the lines that they are to print."""
    text = (FOLDER / "findings.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    return [(sh.splitlines(), said.splitlines()) for sh, said in blocks]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(len(findings())))
def test_a_finding_is_seen_by_its_command(number):
    commands, said = findings()[number]
    if any("papers" in line for line in commands) and not (SHARED / "data").exists():
        pytest.skip(f"the papers' data are not here: {SHARED / 'data'}")
    environment = os.environ | {"DASKMM_SHARED": str(SHARED)}
    printed = ""
    for line in commands:
        words = [sys.executable, *shlex.split(line)[1:]]
        done = subprocess.run(
            words, cwd=FOLDER, env=environment, capture_output=True, text=True, check=True
        )
        printed += done.stdout
    assert [line for line in said if line not in printed] == []


def test_notebooks_show_every_table():
    for paper, table in EXPERIMENTS:
        name = {"power": "power-kmeans"}.get(paper, paper)
        text = (FOLDER / f"{name}-paper.ipynb").read_text(encoding="utf-8")
        number = table.removeprefix("Table ")
        assert rf"kept_table(\"{paper}\", \"{number}\")" in text, (paper, table)


@pytest.mark.long
# The printed powers may collapse.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_draw_of_the_simulation_is_measured_again():
    kept = {(c.row, c.column): c.verdict.chosen for c in kept_table("power", "1").cells}
    for name, (ratio, _) in one_draw(20, seed=0).items():
        if (name, "d = 20") in kept:
            one = kept[name, "d = 20"]
            assert abs(ratio - one.value) <= 3.5 * one.sd


@pytest.mark.parametrize("table", ["1", "2"])
def test_ewp_solves_its_simulations(table):
    for name, verdict in verdicts("ewp", table, row="EWP-k-means").items():
        assert verdict.verdict in GOOD, name
        assert verdict.chosen.convention.startswith("λ/n")


def test_zoo_comes_out_with_the_help_of_labels_only():
    found = verdicts("mean-shift", "2", row="Zoo ARI")["Zoo ARI", "WBMS"]
    assert found.verdict == MATCHED
    assert found.chosen.convention in EXPERIMENTS["mean-shift", "Table 2"].labelled


def test_two_scores_of_wbms_are_those_of_single_rows():
    nmi = verdicts("mean-shift", "2", row="Yale NMI")["Yale NMI", "WBMS"].protocol
    ari = verdicts("mean-shift", "2", row="Yale ARI")["Yale ARI", "WBMS"].protocol
    assert (round(nmi.value, 4), ari.value) == (0.6931, 0.0)


def test_what_the_text_says_of_wbms_figures_is_seen():
    found = verdicts("mean-shift", "Figures 1 to 4")
    assert all(verdict.verdict in (*GOOD, MATCHED) for verdict in found.values()), found


@pytest.mark.parametrize(
    ("table", "row", "column", "expected"),
    [
        ("1", "Yale", "Kernel Power k-means", REPRODUCED),
        ("1", "COIL20", "Kernel Power k-means", REPRODUCED),
        ("2", "Yale", "MKPK", MATCHED),
        ("2", "ORL", "MKPK", REPRODUCED),
        ("2", "COIL20", "MKPK", REPRODUCED),
    ],
)
def test_kernels_come_out_on_pictures(table, row, column, expected):
    assert verdicts("kernel", table, row=row)[row, column].verdict == expected
