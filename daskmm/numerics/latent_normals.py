"""Replace features with few distinct values, such as flags, by latent normal numbers.

A flag is modelled as whether a normal number lies below a threshold. A category has one normal
number for each level, the commonest first; the level is the first one whose number lies below its
threshold. Such numbers are drawn given the values. Flags and categories that do not depend on each
other become independent normal features, whatever the shares of their levels, and show no clusters;
dependence on clusters is kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from daskmm.numerics.columns import CATEGORY, FLAG, SEASON, MixedCoordinates
from daskmm.numerics.information import normal_scores

FloatArray = NDArray[np.float64]

# Levels with a smaller share of the rows get no number.
LEAST_SHARE = 0.02
# Radians by which the seasons of rows are blurred (29 days). An even circle without blur looks
# divided, since projected arcs are dense at their ends. With .316, some draws look divided; with .4
# or more, none do.
_BLUR = 0.5
# Shares this close to 0 and 1 have no finite quantile.
_EDGE = 1e-15
# Features are dithered if they have at most this many values, with at least this many rows per
# value on average.
_FEW_VALUES, _ROWS_PER_VALUE = 32, 10
# Steps are even if each is a multiple of the least one, up to this share of the latter.
_EVEN = 1e-3


def latent_normals(
    coordinates: MixedCoordinates, rows: FloatArray, weights: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Draw normal features for flags and categories; numbers stay as they are.

    Rows are in the model's coordinates and have no missing values; weights are positive. The normal
    features, (n_rows, n_normals), are made column by column; their variances within a column sum to
    1.
    """
    expansion = coordinates.expansion
    values, found = coordinates.to_input(rows), []
    for kind, start, size in zip(expansion.kinds, expansion.starts, expansion.sizes, strict=True):
        own = slice(start, start + size)
        if kind in (FLAG, CATEGORY):
            found.append(_of_levels(values[:, own], weights, rng))
        elif kind == SEASON:
            found.append(_of_season(values[:, own], rng))
        else:
            found.append(rows[:, own])
    return np.hstack([each / np.sqrt(each.shape[1]) for each in found])


def dithered(rows: FloatArray, weights: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Replace features that have few values by normal ones with the same order, mean and spread.

    Equal values are ordered at random: independent flags become independent normal features, and
    only the dependence between features is left as evidence of clusters.
    """
    n_values = [len(np.unique(column)) for column in rows.T]
    few = min(_FEW_VALUES, len(rows) // _ROWS_PER_VALUE)
    if max(n_values) <= few and len(np.unique(rows, axis=0)) <= max(n_values):
        return rows  # the rows are copies of a few points, which one feature tells apart
    spread = rows
    for feature, column in enumerate(rows.T):
        if 1 < n_values[feature] <= few:
            spread = rows.copy() if spread is rows else spread
            ranks = np.empty((len(rows), 1))
            ranks[np.lexsort((rng.random(len(rows)), column)), 0] = np.arange(len(rows))
            scores = normal_scores(ranks, weights)[:, 0]
            mean = np.average(column, weights=weights)
            deviation = np.sqrt(np.average(np.square(column - mean), weights=weights))
            spread[:, feature] = mean + deviation * scores
    return spread


def without_steps(rows: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Spread evenly spaced values, such as whole numbers, over a step around each value.

    Otherwise the steps of features that have many rows per value would look like gaps in density.
    Features with few values stay as they are.
    """
    spread = rows.copy()
    for feature, column in enumerate(rows.T):
        values = np.unique(column)
        if _FEW_VALUES < len(values) <= len(rows) // _ROWS_PER_VALUE:
            steps = np.diff(values) / (step := np.diff(values).min())
            if np.abs(steps - np.rint(steps)).max() < _EVEN:
                spread[:, feature] += step * (rng.random(len(rows)) - 0.5)
    return spread


def _of_season(pairs: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Blur cosine and sine, so that sectors of an even circle do not look like clusters."""
    blurred = pairs + _BLUR * rng.standard_normal(pairs.shape)
    return np.asarray(blurred / np.sqrt(0.5 + _BLUR**2))


def _of_levels(values: FloatArray, weights: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw a normal number per level except the rarest; it is low if the row has the level."""
    held, left = values > 0.5, np.ones(len(values), dtype=np.bool_)
    shares = weights @ held / weights.sum()
    order = np.argsort(-shares, kind="stable")[: max(1, len(shares) - 1)]
    normals = []
    for level in order[(shares[order] >= LEAST_SHARE) | (np.arange(len(order)) == 0)]:
        own = held[:, level]
        share = weights[own].sum() / max(weights[left].sum(), np.finfo(float).tiny)
        below = rng.random(len(values))
        below[left] *= np.where(own, share, 1.0 - share)[left]
        below[left & ~own] += share
        normals.append(ndtri(np.clip(below, _EDGE, 1.0 - _EDGE)))
        left = left & ~own
    return np.column_stack(normals)
