"""The tables of the paper on kernel power k-means, as its notebook measures them."""

import pytest
from _notebooks import cell, execute

pytestmark = [pytest.mark.paper, pytest.mark.timeout(2700)]

SINGLE, SEVERAL = "KPK, real data", "MKPK, real data"


@pytest.fixture(scope="module")
def cells():
    return execute("kernel-paper")


@pytest.mark.parametrize("column", ["Algorithm 1", "defaults"])
@pytest.mark.parametrize(("row", "printed"), [("yale", 0.59), ("coil20", 0.81)])
def test_one_kernel_comes_out_as_printed(cells, row, printed, column):
    found = cell(cells, SINGLE, row, column)
    assert found["paper"] == printed
    assert found["verdict"] in ("reproduced", "exceeded")


@pytest.mark.parametrize("column", ["Algorithm 2", "defaults"])
@pytest.mark.parametrize(("row", "printed"), [("orl", 0.79), ("coil20", 0.78), ("yale", 0.55)])
def test_several_kernels_come_out_as_printed(cells, row, printed, column):
    found = cell(cells, SEVERAL, row, column)
    assert found["paper"] == printed
    assert found["verdict"] in ("reproduced", "exceeded")


@pytest.mark.parametrize(
    ("row", "printed", "least"),
    [
        ("lung_small", 0.83, 0.72),
        ("tox_171", 0.33, 0.2),
        ("glioma", 0.63, 0.47),
        ("isolet", 0.85, 0.73),
    ],
)
def test_what_falls_short_is_said_and_no_worse_than_known(cells, row, printed, least):
    found = cell(cells, SINGLE, row, "defaults")
    assert found["paper"] == printed
    assert found["ours"] >= least
    short = found["ours"] < printed - 0.05
    assert found["verdict"] == ("not reproduced" if short else "reproduced")


def test_annealing_from_random_rows_where_kernel_k_means_is_stuck(cells):
    found = cell(cells, "KPK, rings", "bandwidth 1", "Algorithm 1")
    assert found["ours"] >= 0.98
    assert found["peers"]["kernel k-means, same rows"] <= 0.9
    for row in ("bandwidth 1", "bandwidth 5.4, rms distance"):
        assert cell(cells, "KPK, rings", row, "defaults")["ours"] >= 0.98


def test_every_cell_says_what_the_paper_has(cells):
    assert {c["table"] for c in cells} == {"KPK, rings", "KPK, sphere", SINGLE, SEVERAL}
    assert all(c["convention"] for c in cells)
    for c in cells:
        assert (c["paper"] is None) == (c["verdict"] == "no printed figure at hand")
