"""Division of rows into groups with gaps in density between them.

k-means cuts the rows into many cells, and cells that no gap divides are merged (see
:mod:`daskmm.numerics.gaps`). Long or unequal clusters need many cells. But many cells have few rows
each, too few to show the gaps between clusters that nearly touch; so if only one group is left,
fewer cells are tried, down to two. Each number of cells is tried on the rows as they are and on
rows of unit covariance. If several groups are left, the rows are cut and merged once more in the
Mahalanobis distance of the covariance within the groups, in case this finds more groups. Each group
is then divided in the same way.

A cluster may have been cut before a gap was found, so the final groups are merged once more. The
whole procedure is repeated with other cells. If the two numbers of groups differ, it is repeated
again, and the median of the three numbers counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.kmeans.seeding import plus_plus
from daskmm.kmeans.trials import nearest
from daskmm.kmeans.updates import PowerUpdate, sample_problem
from daskmm.mm.driver import Schedule, iterate
from daskmm.numerics.gaps import WIDEST, Halves, Merging, merged, scatter_of
from daskmm.numerics.whitening import whitened

FloatArray = NDArray[np.float64]

# Largest number of cells, least average number of rows per cell (if there are more than two cells),
# and the factor by which the number of cells falls.
MOST_CELLS, LEAST_ROWS, _FEWER = 60, 20, 0.5
# Cells of fewer rows, or less weight, are left out: their rows are far from all others.
_SMALL = 12
# Largest number of Lloyd steps, and the relative change at which they end.
_STEPS, _TOL = 20, 1e-3


class Separation(NamedTuple):
    """Groups of rows with gaps between them."""

    n_groups: int  # number of groups with gaps between them
    # Overlap of the two least separated groups, for 2, 3, … groups. It is less than 1 up to
    # `n_groups`, and 1 or more for the further groups that came closest to being divided.
    overlaps: dict[int, float]


def separation(rows: FloatArray, weights: FloatArray, seed: int) -> Separation:
    """Divide rows into groups, and repeat this once or twice to be sure of their number.

    Rows have neither missing values nor constant features, and each row counts by its weight.
    """
    rng = np.random.default_rng(seed)
    found = [_separation(rows, weights, rng) for _ in range(2)]
    if found[0].n_groups != found[1].n_groups:
        found.append(_separation(rows, weights, rng))
    found.sort(key=lambda each: each.n_groups)
    return found[1]


def _separation(rows: FloatArray, weights: FloatArray, rng: np.random.Generator) -> Separation:
    """Divide rows into groups once."""
    parts, further, todo = [], [], [np.arange(len(rows))]
    while todo:
        own = todo.pop()
        found = _divided(rows[own], weights[own], rng)
        if len(found.groups) > 1:
            todo += [own[np.sort(np.concatenate(group))] for group in found.groups]
        else:
            parts.append(_halves(own, rng))
            further += [found.overlaps[2]] if found.overlaps else []
    last = _merged(rows, weights, parts)
    n_groups = len(last.groups)
    further += [
        overlap for number, overlap in last.overlaps.items() if number > n_groups and overlap >= 1
    ]
    overlaps = {number: last.overlaps[number] for number in range(2, n_groups + 1)}
    return Separation(n_groups, overlaps | dict(enumerate(sorted(further), n_groups + 1)))


def _divided(rows: FloatArray, weights: FloatArray, rng: np.random.Generator) -> Merging:
    """Divide rows into fewer and fewer cells until gaps show, or find the least overlap."""
    if len(rows) < 2 * _SMALL:
        return Merging({}, [])
    closest, white = WIDEST, whitened(rows, weights)
    if not white.shape[1]:  # all rows are equal
        return Merging({}, [])
    n_cells = min(MOST_CELLS, max(2, len(rows) // LEAST_ROWS))
    while n_cells >= 2:
        for seen in (rows, white):
            found = _merged(seen, weights, _cells(seen, weights, n_cells, rng))
            if len(found.groups) > 1:
                within = scatter_of(seen, weights, found.groups).within
                seen = np.linalg.solve(np.linalg.cholesky(within), seen.T).T
                again = _merged(seen, weights, _cells(seen, weights, n_cells, rng))
                return max(again, found, key=lambda each: len(each.groups))
            closest = min(closest, found.overlaps.get(2, closest))
        n_cells = int(_FEWER * n_cells)
    return Merging({2: closest}, [])


def _merged(rows: FloatArray, weights: FloatArray, groups: list[Halves]) -> Merging:
    if len(groups) < 2:
        return Merging({}, groups)
    return merged(scatter_of(rows, weights, groups), groups)


def _cells(
    rows: FloatArray, weights: FloatArray, n_cells: int, rng: np.random.Generator
) -> list[Halves]:
    """Cut rows into cells by k-means, and leave small ones out."""
    starts = plus_plus(rows, weights, n_cells, [int(rng.integers(2**31))])
    schedule = Schedule(-np.inf, max_iter=_STEPS, tol=_TOL, calm=1)
    [run] = iterate(sample_problem(rows, weights, PowerUpdate()), starts, schedule)
    labels = nearest(rows, run.state)
    members = (np.flatnonzero(labels == cell) for cell in range(n_cells))
    kept = (own for own in members if min(len(own), weights[own].sum()) >= _SMALL * (1 - 1e-9))
    return [_halves(own, rng) for own in kept]


def _halves(members: NDArray[np.int64], rng: np.random.Generator) -> Halves:
    order = rng.permutation(members)
    return np.sort(order[::2]), np.sort(order[1::2])
