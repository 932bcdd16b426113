"""Tables of the papers: what a cell says of itself."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

PAPERS = Path(__file__).parents[2] / "notebooks" / "papers.py"


@pytest.fixture(scope="module")
def papers():
    spec = importlib.util.spec_from_file_location("papers_of_the_notebooks", PAPERS)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while they are made.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(importlib.import_module("sys").modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


@pytest.mark.parametrize(
    ("paper", "ours", "lower_is_better", "verdict"),
    [
        (0.90, 0.85, False, "reproduced"),
        (0.90, 0.95, False, "reproduced"),
        (0.90, 0.84, False, "not reproduced"),
        (0.90, 0.96, False, "exceeded"),
        (1.10, 1.16, True, "not reproduced"),
        (1.10, 1.04, True, "exceeded"),
        (None, 1.0, False, "no printed figure at hand"),
        (0.90, float("nan"), False, "not reproduced"),
    ],
)
def test_verdicts(papers, paper, ours, lower_is_better, verdict):
    table = papers.Table("T", "NMI", "raw", lower_is_better)
    table.add("row", "column", paper, ours)
    assert table.cells[0].verdict == verdict


def test_cells_reach_the_tests_with_their_peers_and_conventions(papers):
    first, second = papers.Table("A", "NMI", "raw"), papers.Table("B", "cost", "z")
    first.add("r", "c", 0.5, np.float32(0.25), **{"k-means": np.float64(0.125)})
    second.add("r", "c", None, 2, "another scaling")
    one, other = json.loads(papers.as_json(first, second))
    assert one["table"] == "A"
    assert one["ours"] == 0.25
    assert one["peers"] == {"k-means": 0.125}
    assert one["convention"] == "raw"
    assert other["paper"] is None
    assert other["convention"] == "another scaling"


def test_tables_are_drawn_with_every_peer_and_escaped_text(papers):
    table = papers.Table("A < B", "NMI", "raw")
    table.add("k < 3", "c", None, 1.0, own=0.5)
    table.add("k > 3", "c", 0.75, 1.0, same=0.25)
    html = table._repr_html_()
    assert "A &lt; B: NMI" in html
    assert "k &lt; 3" in html
    assert html.count("<tr>") == 3
    for text in ("own", "same", "0.750", "0.500", "0.250", "–", "exceeded"):
        assert f">{text}<" in html


def test_features_are_standardised_and_constant_ones_vanish(papers):
    X = np.array([[1.0, 5.0], [3.0, 5.0]])
    np.testing.assert_array_equal(papers.zscore(X), [[-1.0, 0.0], [1.0, 0.0]])


def test_data_that_are_not_there_are_named(papers, monkeypatch, tmp_path):
    monkeypatch.setattr(papers, "SHARED", tmp_path)
    with pytest.raises(FileNotFoundError, match="DASKMM_SHARED"):
        papers.load("zoo")
