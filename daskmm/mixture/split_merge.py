"""Split one component in two, or merge two into one, to leave poor optima or change their number.

If a start has one component on two groups and two components on one group, EM does not change that.
Merging a pair and splitting a third component at the same time keeps the number of components
(SMEM: Ueda, Nakano, Ghahramani & Hinton, "SMEM algorithm for mixture models", Neural Computation
12, 2000). A split alone leads from k components to k + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block
from daskmm.mixture.em import MixtureState, block_sums, responsibilities_of
from daskmm.mixture.starts import labelled_components
from daskmm.numerics.gaussians import EMSums, SingularComponentError, maximized

FloatArray = NDArray[np.float64]

# Splits of all components are compared after _FIRST_STEPS EM steps, and those that are combined
# with mergers get _STEPS in all. They leave out rows with smaller responsibilities than
# _NEGLIGIBLE.
_FIRST_STEPS, _STEPS, _NEGLIGIBLE = 2, 8, 1e-2
# Share of the largest variance below which an axis counts as having no length.
_NO_LENGTH = 1e-12
# The _PAIRS pairs whose mergers lose least are combined with the _SPLITS splits that gain most.
_PAIRS, _SPLITS = 4, 4
# A merger and a split are tried together if the loss by the merger, as estimated, is less than this
# many times the gain by the split. The ratio was up to 1.1 in moves that raised the likelihood.
_MOST_LOSS = 3.0


@dataclass(frozen=True)
class Split:
    """Two components in place of one."""

    component: int  # the component that is split
    halves: MixtureState  # two components, whose shares sum to 1
    gain: float  # approximate gain of the log-likelihood of all rows


def splits(
    rows: FloatArray, weights: FloatArray, state: MixtureState, reg_covar: float, n_splits: int
) -> list[Split]:
    """Return the splits that gain most, the most gainful first; rows are in the input's units."""
    shares = responsibilities_of(Block(rows), state) * weights[:, None]
    found = []
    for component in range(len(state.means)):
        kept = shares[:, component] > _NEGLIGIBLE * weights
        if np.count_nonzero(kept) > 2 * (rows.shape[1] + 1):
            own = rows[kept], shares[kept, component]
            first = _split(component, *own, state, reg_covar)
            found += [] if first is None else [(first, own)]
    found.sort(key=lambda each: -each[0].gain)
    longer = [_continued(split, *own, reg_covar) for split, own in found[:n_splits]]
    return sorted(longer, key=lambda split: -split.gain)


def _split(
    component: int, rows: FloatArray, weights: FloatArray, state: MixtureState, reg_covar: float
) -> Split | None:
    """Split rows along each of two axes, take EM steps, and return the split with the larger gain.

    One is the longest axis; the other is the axis of least kurtosis, along which the rows are least
    like a normal distribution with its single peak.
    """
    shape = state.covariance_type, reg_covar
    centered = rows - state.means[component]
    lengths, axes = np.linalg.eigh((centered * weights[:, None]).T @ centered / weights.sum())
    along = centered @ axes
    held = np.maximum(lengths, _NO_LENGTH * lengths.max() or 1.0)
    # Along an axis without length, the kurtosis would be 0 and mean nothing.
    kurtosis = np.where(lengths < held, np.inf, weights @ along**4 / held**2)
    found: Split | None = None
    for axis in {len(lengths) - 1, int(kurtosis.argmin())}:
        labels = (along[:, axis] > 0).astype(np.int64)
        try:
            one = labelled_components(rows, weights, np.zeros_like(labels), 1, *shape)
            halves = labelled_components(rows, weights, labels, 2, *shape)
            before = _sums(rows, weights, one).log_likelihood
            split = _after(
                Split(component, halves, -before), rows, weights, reg_covar, _FIRST_STEPS
            )
        except SingularComponentError:
            continue
        if found is None or split.gain > found.gain:
            found = split
    return found


def _continued(split: Split, rows: FloatArray, weights: FloatArray, reg_covar: float) -> Split:
    """Return a split after more EM steps, or as it is if these end in a singular covariance."""
    try:
        likelihood = _sums(rows, weights, split.halves).log_likelihood
        before = replace(split, gain=split.gain - likelihood)
        return _after(before, rows, weights, reg_covar, _STEPS - _FIRST_STEPS)
    except SingularComponentError:
        return split


def _after(
    split: Split, rows: FloatArray, weights: FloatArray, reg_covar: float, n_steps: int
) -> Split:
    """Return a split after EM steps, with its log-likelihood added to the gain."""
    halves = split.halves
    for _ in range(n_steps):
        after = maximized(_sums(rows, weights, halves), halves, reg_covar)
        halves = MixtureState.of(
            halves.covariance_type, after.shares, after.means, after.covariances
        )
    likelihood = _sums(rows, weights, halves).log_likelihood
    return replace(split, halves=halves, gain=split.gain + likelihood)


def _sums(rows: FloatArray, weights: FloatArray, state: MixtureState) -> EMSums:
    return block_sums(Block(rows, weights), (state,)).records[0]


def replaced(
    state: MixtureState, dropped: list[int], added: MixtureState, share: float
) -> MixtureState:
    """Replace components by others, which get the sum of their shares."""
    kept = np.setdiff1d(np.arange(len(state.means)), dropped)
    shares = np.concatenate([state.shares[kept], share * added.shares])
    means = np.concatenate([state.means[kept], added.means])
    if state.covariance_type == "tied":
        covariances = state.covariances
    else:
        covariances = np.concatenate([state.covariances[kept], added.covariances])
    return MixtureState.of(state.covariance_type, shares / shares.sum(), means, covariances)


def _merged(state: MixtureState, pair: tuple[int, int]) -> tuple[MixtureState, float]:
    """Return one component with the moments of a pair, and the approximate loss per row."""
    own = list(pair)
    shares, means, kind = state.shares[own], state.means[own], state.covariance_type
    share = shares.sum()
    mean = shares @ means / share
    apart = means - mean
    if kind == "tied":
        # All components share the covariance, so merging loses the variance between the means.
        whitened = apart @ state.factors
        return _one(kind, mean, state.covariances), 0.5 * float(
            shares @ np.square(whitened).sum(axis=1)
        )
    covariances = state.covariances[own]
    if kind == "full":
        between = np.einsum("k,ki,kj->ij", shares, apart, apart) / share
        within = np.einsum("k,kij->ij", shares, covariances) / share
    else:
        squares = np.square(apart) if kind == "diag" else np.square(apart).mean(axis=1)
        between, within = shares @ squares / share, shares @ covariances / share
    one = _one(kind, mean, np.asarray(within + between)[None])
    # log det U is −½ log det Σ.
    loss = float(shares @ state.log_determinants[own]) - share * float(one.log_determinants[0])
    # A merged component does not tell to which of two distant components a row belonged.
    return one, loss - float(share * _entropy(shares / share))


def _one(kind: str, mean: FloatArray, covariances: FloatArray) -> MixtureState:
    return MixtureState.of(kind, np.ones(1), mean[None], covariances)


def _entropy(shares: FloatArray) -> float:
    held = shares[shares > 0]
    return float(-(held * np.log(held)).sum())


def moves(
    rows: FloatArray, weights: FloatArray, state: MixtureState, reg_covar: float, n_moves: int
) -> list[MixtureState]:
    """Return states with one pair merged and a third component split, the most promising first."""
    if len(state.means) < 3:
        return []
    total = weights.sum()
    possible = splits(rows, weights, state, reg_covar, _SPLITS)
    pairs = {pair: _merged(state, pair) for pair in combinations(range(len(state.means)), 2)}
    cheapest = sorted(pairs, key=lambda pair: pairs[pair][1])[:_PAIRS]
    ranked = sorted(
        (pairs[pair][1] * total - split.gain, pair, place)
        for pair in cheapest
        for place, split in enumerate(possible)
        if split.component not in pair and pairs[pair][1] * total < _MOST_LOSS * split.gain
    )
    found = []
    for _, pair, place in ranked[:n_moves]:
        split, one = possible[place], pairs[pair][0]
        merged = replaced(state, list(pair), one, float(state.shares[list(pair)].sum()))
        # The merged component is the last one, and the others have moved up.
        moved = split.component - sum(other < split.component for other in pair)
        found.append(replaced(merged, [moved], split.halves, float(merged.shares[moved])))
    return found
