"""Split one component in two, merge two into one: moves out of poor optima, and between numbers.

EM leaves one component on two groups, and two on one, wherever its start had them so. Merging a
pair and splitting a third one at the same time keeps the number of components (SMEM: Ueda, Nakano,
Ghahramani & Hinton, "SMEM algorithm for mixture models", Neural Computation 12, 2000). A split
alone leads from k components to k + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Position
from daskmm.mixture.em import MixtureState, block_sums, responsibilities_of, state_of
from daskmm.mixture.starts import labelled_components
from daskmm.numerics.gaussians import EMSums, SingularComponentError, maximized

FloatArray = NDArray[np.float64]

# Position of the sample, which is one block.
_HERE = Position(0, 0)
# Number of EM steps that a split takes, and responsibility below which it leaves out a row.
_STEPS, _NEGLIGIBLE = 8, 1e-2
# Share of the longest variance below which an axis has no length.
_NO_LENGTH = 1e-12
# Pairs whose merging loses least, and components whose splitting gains most, that are combined.
_PAIRS, _SPLITS = 4, 4


@dataclass(frozen=True)
class Split:
    """Two components in place of one.

    Attributes
    ----------
    component : int
        The component that is split.
    halves : MixtureState
        The two components, whose shares sum to 1.
    gain : float
        How much the log-likelihood of all rows would rise, about.
    """

    component: int
    halves: MixtureState
    gain: float


def splits(
    rows: FloatArray, weights: FloatArray, state: MixtureState, reg_covar: float
) -> list[Split]:
    """Return the split of each component that can be split, the most gainful first.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        Rows of the sample, in the input's units.
    weights : ndarray of shape (n_rows,)
        Sample weights.
    state : MixtureState
        The components.
    reg_covar : float
        Number that is added to all variances.
    """
    shares = responsibilities_of(rows, _HERE, state) * weights[:, None]
    found = []
    for component in range(len(state.means)):
        kept = shares[:, component] > _NEGLIGIBLE * weights
        if np.count_nonzero(kept) > 2 * (rows.shape[1] + 1):
            own = rows[kept], shares[kept, component]
            found.append(_split(component, *own, state, reg_covar))
    return sorted((one for one in found if one is not None), key=lambda split: -split.gain)


def _split(
    component: int, rows: FloatArray, weights: FloatArray, state: MixtureState, reg_covar: float
) -> Split | None:
    """Split rows along each of two axes, take EM steps, and return the split that gains more.

    One axis is the longest, the other the one along which the rows are least like a normal
    distribution with its single peak: that of the least kurtosis.
    """
    kind, mean = state.covariance_type, state.means[component]
    shape = kind, reg_covar
    centered = rows - mean
    lengths, axes = np.linalg.eigh((centered * weights[:, None]).T @ centered / weights.sum())
    along = centered @ axes
    held = np.maximum(lengths, _NO_LENGTH * lengths.max() or 1.0)
    # Along an axis without length, the value is 0 and tells nothing.
    kurtosis = np.where(lengths < held, np.inf, weights @ along**4 / held**2)
    found: Split | None = None
    for axis in {len(lengths) - 1, int(kurtosis.argmin())}:
        labels = (along[:, axis] > 0).astype(np.int64)
        try:
            one = labelled_components(rows, weights, np.zeros_like(labels), 1, *shape)
            halves = labelled_components(rows, weights, labels, 2, *shape)
            for _ in range(_STEPS):
                after = maximized(_sums(rows, weights, halves), halves, reg_covar)
                halves = state_of(kind, after.shares, after.means, after.covariances)
            before = _sums(rows, weights, one).log_likelihood
            gain = _sums(rows, weights, halves).log_likelihood - before
        except SingularComponentError:
            continue
        if found is None or gain > found.gain:
            found = Split(component, halves, gain)
    return found


def _sums(rows: FloatArray, weights: FloatArray, state: MixtureState) -> EMSums:
    return block_sums(rows, weights, _HERE, (state,)).records[0]


def with_split(state: MixtureState, split: Split) -> MixtureState:
    """Return the components after a split, which replaces one component by two."""
    return _replaced(state, [split.component], split.halves, state.shares[split.component])


def _replaced(
    state: MixtureState, dropped: list[int], added: MixtureState, share: float
) -> MixtureState:
    """Replace components by others that have a share together."""
    kept = np.setdiff1d(np.arange(len(state.means)), dropped)
    shares = np.concatenate([state.shares[kept], share * added.shares])
    means = np.concatenate([state.means[kept], added.means])
    if state.covariance_type == "tied":
        covariances = state.covariances
    else:
        covariances = np.concatenate([state.covariances[kept], added.covariances])
    return state_of(state.covariance_type, shares / shares.sum(), means, covariances)


def _merged(state: MixtureState, pair: tuple[int, int]) -> tuple[MixtureState, float]:
    """Return one component with the moments of a pair, and about what it loses per row."""
    own = list(pair)
    shares, means, kind = state.shares[own], state.means[own], state.covariance_type
    share = shares.sum()
    mean = shares @ means / share
    apart = means - mean
    if kind == "tied":
        # The covariance is that of all components: what is lost is the variance between the means.
        whitened = apart @ state.factors
        return _one(kind, mean, state.covariances), 0.5 * float(
            shares @ np.square(whitened).sum(axis=1)
        )
    covariances = state.covariances[own]
    if kind == "full":
        between = np.einsum("k,ki,kj->ij", shares, apart, apart) / share
        within = np.einsum("k,kij->ij", shares, covariances) / share
    elif kind == "diag":
        between = shares @ np.square(apart) / share
        within = shares @ covariances / share
    else:
        between = shares @ np.square(apart).mean(axis=1) / share
        within = shares @ covariances / share
    one = _one(kind, mean, np.asarray(within + between)[None])
    # log det U is −½ log det Σ.
    loss = float(shares @ state.log_determinants[own]) - share * float(one.log_determinants[0])
    # The pair also knows which of them a row belongs to, if they are apart.
    return one, loss - float(share * _entropy(shares / share))


def _one(kind: str, mean: FloatArray, covariances: FloatArray) -> MixtureState:
    return state_of(kind, np.ones(1), mean[None], covariances)


def _entropy(shares: FloatArray) -> float:
    held = shares[shares > 0]
    return float(-(held * np.log(held)).sum())


def moves(
    rows: FloatArray, weights: FloatArray, state: MixtureState, reg_covar: float, n_moves: int
) -> list[MixtureState]:
    """Return states with a pair merged and a third component split, the most promising first.

    Parameters
    ----------
    rows, weights, state, reg_covar
        As in `splits`.
    n_moves : int
        The largest number of states.
    """
    if len(state.means) < 3:
        return []
    total = weights.sum()
    possible = splits(rows, weights, state, reg_covar)[:_SPLITS]
    pairs = {pair: _merged(state, pair) for pair in combinations(range(len(state.means)), 2)}
    cheapest = sorted(pairs, key=lambda pair: pairs[pair][1])[:_PAIRS]
    ranked = sorted(
        (pairs[pair][1] * total - split.gain, pair, place)
        for pair in cheapest
        for place, split in enumerate(possible)
        if split.component not in pair
    )
    found = []
    for _, pair, place in ranked[:n_moves]:
        split, one = possible[place], pairs[pair][0]
        merged = _replaced(state, list(pair), one, float(state.shares[list(pair)].sum()))
        # The merged component is the last one, and the others have moved up.
        moved = split.component - sum(other < split.component for other in pair)
        found.append(_replaced(merged, [moved], split.halves, float(merged.shares[moved])))
    return found
