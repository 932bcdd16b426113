r"""The bandwidth of weighted blurring mean shift, chosen without labels.

**The rule.** Consider a partition of the n rows into k clusters that hold shares π_j of the
rows, and whose means explain the share R_l of the variance of feature l. Its gain is

.. math::

    \frac{p_e}{p} \sum_{l=1}^p \Big[ \tfrac12 \log\frac{1}{1 - R_l}
        - \frac{(k-1) \log n}{2n} \Big] + \sum_j \pi_j \log \pi_j

nats per row: the information of the means about the features, minus Schwarz's penalty for
fitting them, minus the entropy of the labels. It is the integrated classification likelihood
with variances that the clusters share. The features count as :math:`p_e = (\sum λ)^2 / \sum
λ^2` independent features, where λ are the eigenvalues of their correlation matrix, so that
correlated features do not count twice. The gain uses no feature weights, since otherwise a fit
with all its weight on one easy feature would have a high gain. 1 − R_l is at least .001, and at
least a tenth of the share of the variance that values lose if they are rounded numbers, as in
:class:`daskmm.WeightedBlurringMeanShift` (.036 for an even flag), so that clusters that equal a
flag do not win for it alone. One cluster has a gain of 0, and dividing noise into several
clusters has a negative gain. The bandwidth with the largest gain wins among those with :math:`k
\le \max(\sqrt n, n/10)`; the choice is the middle of the run of bandwidths around it with the
same number of clusters and gains that are at most .05 nats lower.

**More rows.** A bandwidth found on the sample suits all rows, since kernel sums are means over
the same density. Equal starting weights of the features do not. If rows are not their own
neighbours, kernel sums at a small h first move each row to its nearest neighbour. The more rows
there are, the nearer this neighbour is, in features of noise too, and then no feature loses
weight. So fits to more rows start from the feature weights that the path has learned. The path
itself makes a fit at each bandwidth from equal weights and, if they differ, another one from
the weights kept at the next larger bandwidth, and keeps the fit with the larger gain. This
holds for ``convention="auto"`` and finite λ; the other conventions start from equal weights, as
in their papers.

Biernacki, Celeux and Govaert, "Assessing a Mixture Model for Clustering with the Integrated
Completed Likelihood", IEEE PAMI 22, 2000.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from daskmm.auto.lam import LEAST_TOLERANCE
from daskmm.engine.threads import one_blas_thread, run_on_threads
from daskmm.kmeans.trials import thinned
from daskmm.mean_shift.blurring import Blurred, Blurring, Rows, blur
from daskmm.mean_shift.representatives import stragglers
from daskmm.metrics import adjusted_rand_score
from daskmm.numerics.information import LEAST_WITHIN, mean_of_varying, partition, weighted_variance
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# The grid of bandwidths, in units of the mean variance of the features.
GRID = np.geomspace(0.002, 0.6, 26)
# Penalty λ per sample, in the same units.
DEFAULT_LAM = 0.1
# Number of rows on which a path is followed: each iteration at each bandwidth costs n² kernel
# values.
SAMPLE_ROWS = 1000
# Largest number of iterations of a first fit, and of a second one if the first has not converged.
# The second is left out if the first finds many times too many clusters: bandwidths that are far
# too small take longest, never converge, and may be inexact.
_FIRST_ITERATIONS, _ITERATIONS = 100, 300
_MANY = 2
# Share of the rows that a cluster must have at least to be visible in a sample of 1,000 rows.
LEAST_SHARE = 0.001
# Values such as flags are taken for rounded numbers, which have lost a part of their variance. At
# least this share of the lost part counts as variance within clusters. Otherwise a flag that equals
# two clusters would gain 3.5 nats.
_LEAST_HIDDEN = 0.1
# Two sets of feature weights lead to the same fit if their differences sum to less than this.
_SAME_WEIGHTS = 0.05


@registered
@dataclass(frozen=True)
class BandwidthPath:
    """Clusters and feature weights over a grid of bandwidths.

    Attributes
    ----------
    bandwidths : ndarray of shape (n_bandwidths,), float64
        Bandwidths h, increasing.
    n_clusters : ndarray of shape (n_bandwidths,), int64
        Number of clusters after 300 iterations on the sample, or after 100 if there are then more
        than twice as many as the rule allows. Stragglers have joined other clusters.
    gain : ndarray of shape (n_bandwidths,), float64
        Information gain per row in nats minus its penalties; 0 for one cluster.
    agreement : ndarray of shape (n_bandwidths - 1,), float64
        Adjusted Rand index between the clusters of neighbouring bandwidths.
    feature_weights : ndarray of shape (n_bandwidths, n_features), float64
        Weights learned on the sample; fits to more rows start from those at the chosen bandwidth.
    chosen : int
        Index of the bandwidth that the rule prefers.
    n_rows : int
        Number of rows of the sample.
    """

    bandwidths: FloatArray
    n_clusters: NDArray[np.int64]
    gain: FloatArray
    agreement: FloatArray
    feature_weights: FloatArray
    chosen: int
    n_rows: int

    @property
    def bandwidth(self) -> float:
        """The chosen bandwidth."""
        return float(self.bandwidths[self.chosen])

    def __repr__(self) -> str:
        """Return the choice in words; the arrays are attributes."""
        return (
            f"<BandwidthPath: h = {self.bandwidth:.3g} of {len(self.bandwidths)} bandwidths, where "
            f"{self.n_rows:,} rows are in {self.n_clusters[self.chosen]} clusters>"
        )

    @property
    def plateau(self) -> tuple[int, int]:
        """First and last index of the run of bandwidths with the chosen number of clusters."""
        return _run_around(self.n_clusters, self.chosen)

    def agrees_with(self, cluster_weights: FloatArray) -> bool:
        """Return whether a fit found half to twice as many clusters as the path.

        Parameters
        ----------
        cluster_weights : ndarray of shape (n_clusters,)
            Sum of the sample weights of each cluster of the fit. Clusters with less than .1 % of
            the weight do not count, unless together they have more than a tenth of it.
        """
        least = LEAST_SHARE * float(cluster_weights.sum())
        found, expected = (~stragglers(cluster_weights, least)).sum(), self.n_clusters[self.chosen]
        return bool(expected <= 2 * found <= 4 * expected)


@registered
@dataclass(frozen=True)
class Followed:
    """A path of bandwidths, and the feature weights with which a fit begins."""

    path: BandwidthPath
    # Feature weights from which the fit starts, (n_features,); None for equal ones. They are the
    # weights that the path learned at the chosen bandwidth. If the fit has no more rows than the
    # path, they are the weights from which the path started there, so that the fit repeats the
    # path.
    first_weights: FloatArray | None


def follow_bandwidths(
    rows: FloatArray, weights: FloatArray, lam: float, convention: str, seed: int
) -> Followed:
    """Follow the default grid of bandwidths on a given sample.

    Rows are in the model's coordinates, and their weights are positive; at most 1,000 rows are
    used, which the seed draws. `lam` is per sample.

    It warns if one cluster is preferred to several, if all bandwidths give too many clusters, or if
    only the chosen bandwidth gives its number of clusters.
    """
    some, some_weights = thinned(rows, weights, SAMPLE_ROWS, seed)
    grid = GRID * mean_of_varying(weighted_variance(some, some_weights))
    path, first = _follow(some, some_weights, grid, lam, convention)
    _warn(path)
    if len(rows) > len(some) and starts_from_weights(lam, convention):
        first = path.feature_weights[path.chosen]
    return Followed(path, first)


def classification_gain(
    rows: FloatArray,
    weights: FloatArray,
    labels: NDArray[np.int32],
    n_independent: float,
    resolved: FloatArray,
) -> float:
    """Return the information gain of a partition per row, in nats, minus its penalties.

    Labels begin at 0, `n_independent` is the effective number of independent features, and
    `resolved` is their `information.resolution`. The gain of one cluster is 0.
    """
    varying = weighted_variance(rows, weights) > 0
    if not varying.any():
        return 0.0
    found = partition(rows, weights, labels)
    least = np.maximum(_LEAST_HIDDEN * (1.0 - resolved), LEAST_WITHIN)
    within, shares = np.maximum(found.within, least), found.shares
    told = -0.5 * np.log(within[varying]).mean()
    fitted = (len(shares) - 1) * np.log(len(rows)) / (2 * len(rows))
    return float(n_independent * (told - fitted) + (shares * np.log(shares)).sum())


def independent_features(rows: FloatArray, weights: FloatArray) -> float:
    """Return (Σλ)² / Σλ² of correlation eigenvalues λ, the number of independent features.

    The number lies between 1 and the number of features that vary; it is 0 if none does.
    """
    deviations = np.sqrt(weighted_variance(rows, weights))
    varying = deviations > 0
    if not varying.any():
        return 0.0
    centered = rows[:, varying] - np.average(rows[:, varying], axis=0, weights=weights)
    z = np.sqrt(weights / weights.sum())[:, None] * centered / deviations[varying]
    # The Gram matrices of rows and of features have the same eigenvalues.
    gram = z.T @ z if len(z) > z.shape[1] else z @ z.T
    return float(np.trace(gram) ** 2 / np.square(gram).sum())


def _follow(
    rows: FloatArray, weights: FloatArray, grid: FloatArray, lam: float, convention: str
) -> tuple[BandwidthPath, FloatArray | None]:
    """Follow a grid of bandwidths; return the path, and the weights where the chosen fit began."""
    with one_blas_thread():
        settings = [Blurring(float(h), lam, convention, _ITERATIONS) for h in grid]
        start = Rows.of(rows, weights, settings[0].merge_tol)
        many = _MANY * _most_clusters(len(rows))
        jobs = [functools.partial(_blurred, start, one, many) for one in settings]
        found = list(run_on_threads(jobs))
        n_independent = independent_features(rows, weights)

        def gain_of(one: Blurred) -> float:
            return classification_gain(rows, weights, one.labels, n_independent, start.resolution)

        kept = found
        if starts_from_weights(lam, convention):
            kept = _descended(start, settings, found, many, gain_of)
    n_clusters = np.array([len(one.modes) for one in kept])
    gain = np.array([gain_of(one) for one in kept])
    chosen = preferred(n_clusters, gain, len(rows))
    path = BandwidthPath(
        grid,
        n_clusters,
        gain,
        _agreement([one.labels for one in kept]),
        np.array([one.feature_weights for one in kept]),
        chosen,
        len(rows),
    )
    equal = kept[chosen] is found[chosen]
    return path, None if equal else path.feature_weights[chosen + 1]


def starts_from_weights(lam: float, convention: str) -> bool:
    """Return whether fits start from weights learned on a smaller sample or at a larger bandwidth.

    Rows that are not their own neighbours first move to their nearest neighbour. Its distance
    depends on n, and if it is short in all features, equal weights do not change.
    """
    return convention == "auto" and bool(np.isfinite(lam))


def _descended(
    start: Rows,
    settings: Sequence[Blurring],
    found: Sequence[Blurred],
    many: float,
    gain_of: Callable[[Blurred], float],
) -> list[Blurred]:
    """Fit again from the weights kept at the next larger bandwidth; keep the better fit.

    Starting only from the weights of the larger bandwidth might select too few features.
    """
    kept = [found[-1]]
    for one, equal in zip(settings[-2::-1], found[-2::-1], strict=True):
        wider = kept[-1].feature_weights
        if np.abs(wider - equal.feature_weights).sum() > _SAME_WEIGHTS:
            warm = _blurred(replace(start, feature_weights=wider), one, many)
            kept.append(max(equal, warm, key=gain_of))
        else:
            kept.append(equal)
    return kept[::-1]


def _blurred(start: Rows, settings: Blurring, many: float) -> Blurred:
    """Fit, but end before convergence if there are more than `many` clusters."""
    found = blur(start, replace(settings, max_iter=_FIRST_ITERATIONS))
    if found.converged or len(found.modes) > many:
        return found
    return blur(start, settings)


def _most_clusters(n_rows: int) -> float:
    """Return the largest number of clusters that the rule allows."""
    return max(np.sqrt(n_rows), n_rows / 10)


def _agreement(labels: Sequence[NDArray[np.int32]]) -> FloatArray:
    return np.array([adjusted_rand_score(*pair) for pair in itertools.pairwise(labels)])


def preferred(n_clusters: NDArray[np.int64], gain: FloatArray, n_rows: int) -> int:
    """Return the index of the bandwidth that the rule prefers.

    `n_clusters` and `gain` are in the order of increasing bandwidths. The index is the last one if
    all bandwidths give too many clusters.
    """
    few = n_clusters <= _most_clusters(n_rows)
    if not few.any():
        return len(gain) - 1
    best = int(np.argmax(np.where(few, gain, -np.inf)))
    # Equal numbers of other clusters gain less, for example those without one of the features.
    alike = (n_clusters == n_clusters[best]) & (gain >= gain[best] - LEAST_TOLERANCE)
    first, last = _run_around(alike, best)
    return (first + last + 1) // 2


def _run_around(values: NDArray, index: int) -> tuple[int, int]:
    """Return the first and last index of the run of equal values around an index."""
    first = last = index
    while first > 0 and values[first - 1] == values[index]:
        first -= 1
    while last + 1 < len(values) and values[last + 1] == values[index]:
        last += 1
    return first, last


def _warn(path: BandwidthPath) -> None:
    """Warn if the choice is not reliable."""
    first, last = path.plateau
    found = int(path.n_clusters[path.chosen])
    if found == 1:
        problem = "no bandwidth gives clusters that are worth more than one cluster of all rows"
    elif path.gain[path.chosen] < 0:
        problem = f"all bandwidths give too many clusters for {path.n_rows} rows"
    elif len(path.bandwidths) > 1 and first == last:
        problem = f"{found} clusters are found at one bandwidth only: there is no plateau"
    else:
        return
    warnings.warn(
        f"The automatic bandwidth is {path.bandwidth:.3g}, but {problem}. Look at "
        "bandwidth_path_, which daskmm.plot.bandwidth_path draws, and give a bandwidth.",
        UserWarning,
        stacklevel=3,
    )
