"""Nearest centres by partial or rounded distances beside all distances, and by the definition."""

import numpy as np
import pytest
from _naive import exact_squared_distances
from _support import n_examples
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled._blocks import identity, placed
from daskmm.compiled import dispatch, layout, library, partial
from daskmm.compiled.dispatch import PreparedCenters, block_sums
from daskmm.compiled.labels import nearest_centers
from daskmm.kmeans.assignment import labels_of
from daskmm.kmeans.sums import CenterState
from daskmm.numerics.rows import Coordinates

SETTINGS = settings(max_examples=n_examples(200), derandomize=True, database=None, deadline=None)


# Values of `rounded` in `src/loops.h`.
ROUNDED = {"directions": 0, "rounded": 1, "tiles": 2}


@pytest.fixture(autouse=True, params=ROUNDED)
def rounded(request, monkeypatch):
    """Partial distances also of few centres, features and rows, whether they save time or not."""
    if request.param == "tiles" and library.rounded_products() != ROUNDED["tiles"]:
        pytest.skip("this processor has no tiles, or the environment does not want them")
    monkeypatch.setattr(library, "rounded_products", lambda: ROUNDED[request.param])
    monkeypatch.setattr(partial, "LEAST_CENTERS", 2)
    monkeypatch.setattr(dispatch, "LEAST_CENTERS", 2)
    monkeypatch.setattr(partial, "LEAST_FEATURES", 16)
    monkeypatch.setattr(dispatch, "_LEAST_ROWS", 1)
    monkeypatch.setattr(layout, "_FEW_ROWS", 1)
    monkeypatch.setattr(partial, "_WORTH", np.inf)
    return ROUNDED[request.param]


def without_directions(rows, coordinates, centers):
    """The nearest centres with all distances."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial, "LEAST_CENTERS", 10**9)
        patch.setattr(partial, "_LEAST_ROUNDED", 10**9)
        return found(rows, coordinates, centers)


def found(rows, coordinates, centers, guesses=None):
    labels, distances = np.empty(len(rows), np.int32), np.empty(len(rows))
    prepared = PreparedCenters(centers)
    known = {"distances": distances, "guesses": guesses}
    assert nearest_centers(rows, coordinates, prepared, labels, **known)
    return labels, distances


@st.composite
def tables(draw):
    """Rows with ties, twins, rows on centres, offsets, and noise in few or all features."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, p, k = (int(rng.integers(*ends)) for ends in ((1, 400), (16, 80), (2, 60)))
    centers = 3.0 * rng.normal(size=(k, p)) * rng.uniform(0.01, 1.0, p) ** 2
    rows = centers[rng.integers(k, size=n)] + rng.choice([0.0, 0.1, 1.0]) * rng.normal(size=(n, p))
    if draw(st.booleans()):
        rows, centers = np.rint(rows), np.rint(centers)  # exact ties
    if draw(st.booleans()):
        centers[rng.integers(k, size=k // 2)] = centers[0]  # twins
    if draw(st.booleans()):
        centers[0], rows[-1] = 1e3, -1e3  # far from the others
    unit = draw(st.sampled_from([1e-6, 1.0, 1.0, 1e5]))
    rows, centers = unit * rows, unit * centers
    offset = draw(st.sampled_from([0.0, 3.0, 1e4]))
    dtype = draw(st.sampled_from(["f4", "f8", "i2"]))
    coordinates = Coordinates(np.full(p, np.floor(offset)), np.ones(p))
    rows = rows + offset
    return (np.clip(rows, -3e4, 3e4) if dtype == "i2" else rows).astype(dtype), coordinates, centers


@SETTINGS
@given(tables())
def test_labels_and_distances_are_bit_for_bit_those_of_all_distances(table):
    for mine, theirs in zip(found(*table), without_directions(*table), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@SETTINGS
@given(tables(), st.integers(0, 2**32 - 1))
def test_guesses_change_neither_labels_nor_distances(table, seed):
    rng = np.random.default_rng(seed)
    guesses, (labels, distances) = rng.integers(len(table[2]), size=len(table[0])), found(*table)
    guesses = np.where(rng.random(len(labels)) < 0.5, labels, guesses).astype(np.int32)
    for mine, theirs in zip(found(*table, guesses), (labels, distances), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@SETTINGS
@given(tables())
def test_labels_are_the_first_of_the_nearest_centres(table):
    rows, coordinates, centers = table
    rows = rows[:20]
    z = coordinates.to_model(rows)
    exact = exact_squared_distances(z, centers)
    expected = [list(row).index(min(row)) for row in exact]
    labels, _ = found(rows, coordinates, centers)
    for i in np.flatnonzero(labels != expected):
        # Ties up to the rounding of a distance.
        assert exact[i][labels[i]] <= exact[i][expected[i]] * (1 + 1e-14)


def embedded(n=3000, p=96, k=300, dtype="f4"):
    rng = np.random.default_rng(0)
    spectrum = 1.0 / np.sqrt(1.0 + np.arange(p))
    centers = rng.normal(size=(k, p)) * spectrum
    rows = centers[rng.integers(k, size=n)] + 0.6 * rng.normal(size=(n, p)) * spectrum
    return rows.astype(dtype), centers


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_sums_are_bit_for_bit_those_of_all_distances(dtype, rounded):
    rows, centers = embedded(dtype=dtype)
    results = []
    for least in (2, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(partial, "LEAST_CENTERS", least)
            patch.setattr(partial, "_LEAST_ROUNDED", least)
            prepared = PreparedCenters(centers)
            results.append(block_sums(rows, None, identity(96), prepared, -np.inf, 16))
            fields = prepared.leading(np.dtype(dtype), rows, None)
        used = (fields["n_leading"] > 0, fields["rounded"])
        by_rounded = rounded if dtype == "f4" else 0
        assert used == ((not by_rounded, by_rounded) if least == 2 else (False, 0))
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_guesses_among_many_centres_keep_labels_and_bounds(right):
    rows, centers = embedded(k=1203)
    exact = np.square(rows[:, None].astype(float) - centers).sum(axis=2)
    nearest, rng = exact.argmin(axis=1).astype(np.int32), np.random.default_rng(0)
    guesses = np.where(rng.random(len(rows)) < right, nearest, rng.integers(1203, size=len(rows)))
    labels, others = np.empty(len(rows), np.int32), np.empty(len(rows))
    known = {"others": others, "guesses": guesses.astype(np.int32)}
    assert nearest_centers(rows, identity(96), PreparedCenters(centers), labels, **known)
    np.testing.assert_array_equal(labels, nearest)
    exact[np.arange(len(rows)), nearest] = np.inf
    assert (others <= exact.min(axis=1)).all()
    assert (others >= 0.9 * np.square(rows - centers[nearest]).sum(axis=1)).all()


@pytest.mark.parametrize(("k", "n_directions"), [(300, 48), (90, 48), (30, 24)])
def test_directions_are_orthonormal_and_the_leading_ones_hold_most_of_the_centres(k, n_directions):
    centers = embedded()[1][:k]
    directions = partial.principal_directions(centers)
    assert directions.shape == (n_directions, 96)
    np.testing.assert_allclose(directions @ directions.T, np.eye(n_directions), atol=1e-5)
    _, _, naive = np.linalg.svd(centers, full_matrices=False)
    within = np.abs(np.einsum("ij,ij->i", directions, naive[:n_directions]))
    np.testing.assert_allclose(within[:10], 1.0, atol=1e-3)
    shares = np.square(centers @ directions.T).sum(axis=0)
    assert (np.diff(shares) <= 1e-4 * shares[0]).all()


def test_isotropic_rows_use_no_partial_distances(monkeypatch):
    monkeypatch.setattr(partial, "_WORTH", 0.9)
    rng = np.random.default_rng(0)
    rows, centers = rng.normal(size=(2000, 64)), 0.1 * rng.normal(size=(300, 64))
    assert PreparedCenters(centers).leading(np.dtype("f8"), rows, None)["n_leading"] == 0


def test_weights_and_missing_values_get_all_distances():
    rows, centers = embedded()
    weighted = PreparedCenters(centers, np.full(96, 0.5))
    holes = PreparedCenters(centers, partial=True)
    for prepared in (weighted, holes):
        fields = prepared.leading(np.dtype("f4"), rows, None)
        assert (fields["n_leading"], fields["rounded"]) == (0, 0)


def test_a_row_that_is_not_finite_is_refused():
    rows, centers = embedded()
    rows[1234, 5] = np.inf
    with pytest.raises(ValueError, match="1234"):
        labels_of(placed(rows), identity(96), CenterState(centers, -np.inf))


@pytest.mark.parametrize(("k", "p", "used"), [(63, 96, 0), (64, 63, 0), (64, 64, 1), (300, 96, 1)])
def test_products_are_rounded_from_64_centres_and_features_on(k, p, used, rounded, monkeypatch):
    for name, least in (("LEAST_CENTERS", 256), ("LEAST_FEATURES", 64), ("_WORTH", 0.9)):
        monkeypatch.setattr(partial, name, least)
    monkeypatch.setattr(dispatch, "LEAST_CENTERS", 256)
    rows, centers = embedded(p=p, k=k)
    fields = PreparedCenters(centers).leading(np.dtype("f4"), rows, None)
    assert fields["rounded"] == used * rounded
    assert bool(fields["n_leading"]) == (not rounded and k > 256)


def test_centres_that_rounding_cannot_tell_apart_are_compared_otherwise(rounded, monkeypatch):
    monkeypatch.setattr(partial, "_WORTH", 0.9)
    rows, centers = embedded()
    rows, centers = np.float32(1e-3) * rows, 1e-3 * centers
    for table in (rows, centers):
        table[::2, 0] += 100.0  # two crowds
    prepared, labels = PreparedCenters(centers), np.empty(len(rows), np.int32)
    assert nearest_centers(rows, identity(96), prepared, labels)
    assert prepared.leading(np.dtype("f4"), rows, None)["rounded"] == 0
    exact = np.square(rows[:, None].astype(float) - centers).sum(axis=2)
    np.testing.assert_array_equal(labels, exact.argmin(axis=1))


@pytest.mark.parametrize("size", [1e17, 1e30, 1e150])
def test_rows_beyond_single_precision_get_the_nearest_centre(size):
    rows, centers = embedded(n=300, dtype="f8")
    rows[5], rows[7] = size * centers[3], -size * centers[4]
    labels = np.empty(len(rows), np.int32)
    assert nearest_centers(rows, identity(96), PreparedCenters(centers), labels)
    expected = labels_of(placed(rows), identity(96), CenterState(centers, -np.inf))
    plain, _ = without_directions(rows, identity(96), centers)
    np.testing.assert_array_equal(labels, plain)
    np.testing.assert_array_equal(labels, expected)
