"""The tables of power k-means, as their notebook regenerates them."""

import pytest
from _notebooks import cell, execute

pytestmark = [pytest.mark.paper, pytest.mark.timeout(2400)]

WIDE = (20, 50, 100, 200)


@pytest.fixture(scope="module")
def cells():
    return execute("power-kmeans-paper", seconds=2000.0)


@pytest.mark.parametrize("table", ["Table 1", "Table 2"])
@pytest.mark.parametrize("start", ["random rows", "by distance"])
@pytest.mark.parametrize("d", [5, 10, *WIDE])
def test_harmonic_is_worst_then_lloyd_then_power(cells, table, start, d):
    harmonic = cell(cells, table, f"d = {d}", f"harmonic, {start}")
    lloyd = harmonic["peers"]["Lloyd"]
    power = [
        cell(cells, table, f"d = {d}", f"power, s0 = {s0}, {start}")["ours"] for s0 in (-1, -3, -9)
    ]
    assert harmonic["ours"] > lloyd
    assert max(power) < lloyd


@pytest.mark.parametrize("start", ["random rows", "by distance"])
@pytest.mark.parametrize("d", WIDE)
def test_the_first_power_of_minus_3_is_best_where_there_are_many_features(cells, start, d):
    cost = {
        s0: cell(cells, "Table 1", f"d = {d}", f"power, s0 = {s0}, {start}")["ours"]
        for s0 in (-1, -3, -9, -18)
    }
    assert min(cost, key=cost.get) == -3


@pytest.mark.parametrize("d", [5, 10, *WIDE])
def test_ranges_from_random_rows(cells, d):
    lloyd = cell(cells, "Table 1", f"d = {d}", "harmonic, random rows")["peers"]["Lloyd"]
    power = min(
        cell(cells, "Table 1", f"d = {d}", f"power, s0 = {s0}, random rows")["ours"]
        for s0 in (-1, -3)
    )
    assert 1.5 <= lloyd <= 9.0
    assert power <= 1.9


@pytest.mark.parametrize("d", [2, 5, 10, *WIDE])
def test_defaults_are_close_to_the_best_of_ten_starts_of_scikit_learn(cells, d):
    ours = cell(cells, "Table 1", f"d = {d}", "defaults")
    # Eight starts against ten: a cluster that all eight miss in one draw of five is 0.03.
    assert ours["ours"] <= ours["peers"]["k-means, 10 starts"] + 0.05
    assert d not in WIDE or ours["ours"] <= 1.001


def test_the_picture_shows_annealing_ahead_of_lloyd(cells):
    power = cell(cells, "Picture, d = 2", "one draw", "power, s0 = -1")
    assert power["ours"] < power["peers"]["Lloyd"]
    assert cell(cells, "Picture, d = 2", "one draw", "defaults")["ours"] < power["peers"]["Lloyd"]
