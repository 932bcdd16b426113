"""Choices of a fit of centres that are known before any data are read."""

from __future__ import annotations

import math
from dataclasses import dataclass

from daskmm.engine.first_pass import MANY_CLUSTERS
from daskmm.mm.driver import Schedule
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.distortions.bregman import SquaredEuclidean

# Name of the method that starts from centres that the user gave.
GIVEN = "given"
# Largest number of starts that continue on the full data. With many clusters only the best start
# continues: four starts would lower the cost by .04 % at most, and the fit would take up to 1.5
# times as long (tests/benchmarks/README.md).
POLISHED = 4
# How far the first hard steps of many clusters move the centres, relative to the way to the means
# (over-relaxed bound optimisation: Salakhutdinov & Roweis, "Adaptive overrelaxed bound optimization
# methods", ICML 2003). The cost of a hard step with fixed labels is quadratic in the centres, so it
# cannot rise for factors up to 2. At 2 it stays equal until labels change, so centres keep moving
# and leave poor optima. The same number of steps ends up to .5 % lower than Lloyd's algorithm.
RELAXATIONS = (*[1.5] * 3, *[2.0] * 6, 1.5)

# Number of hard steps of a race between starts, and how many of them there are for each start that
# continues. With the exchanges that follow, a race of 8 starts finds as low a cost as 10 whole runs
# of k-means do (tests/benchmarks/README.md).
RACE_STEPS, _STARTS_PER_WINNER = 8, 3


@dataclass(frozen=True)
class Method:
    """Choices of a fit of centres that determine its stages and their costs."""

    n_clusters: int  # number of clusters, or the largest one that may be chosen
    n_starts: int  # number of starts, which share each pass
    schedule: Schedule  # schedule of the powers; the expected one before data are read
    # Whether to anneal on the sample, with passes over the full data for hard steps only.
    on_sample: bool
    # How starting centres are found: "k-means++", "k-means||", "random" or "given".
    init: str = "k-means++"
    family: type[Distortion] = SquaredEuclidean
    weighted: bool = False  # whether feature weights are learned
    hedged: bool = True  # whether every start of an annealing is also run with hard steps alone
    partial: bool = False  # whether values may be missing
    tries_lam: bool = False  # whether penalties of the feature weights are tried on the sample
    # Whether to restart at the learned feature weights (see `daskmm.kmeans.restarts`).
    restarts: bool = False
    # Number of Nyström features of each row; 0 if the rows themselves are clustered.
    n_landmarks: int = 0
    # How the centre of an empty cluster is treated: "farthest", "random", "restart" or "error".
    empty_cluster: str = "farthest"
    trim: float = 0.0  # share of the rows that hard steps leave out
    max_cluster_size: float | None = None  # bound of `daskmm.kmeans.bounded_sizes.largest_weight`
    learns_metric: bool = False  # whether the matrix of the Mahalanobis distance is learned
    # Whether clusters are exchanged on the sample (see `daskmm.kmeans.exchange`).
    exchanges: bool = False
    # Whether rows are sampled by their distance, in another pass, if the data have heavy tails.
    by_distance: bool = False

    @property
    def anneals(self) -> bool:
        """Whether the power falls before hard steps."""
        return self.schedule.s0 > -math.inf

    @property
    def n_hedged(self) -> int:
        """Number of starts that take hard steps only, beside the annealed ones, on samples."""
        return self.n_starts * (self.anneals and self.hedged and self.on_sample)

    @property
    def n_winners(self) -> int:
        """Number of starts that continue after a race; 0 if all starts run to their ends.

        Several starts race if clusters are exchanged after hard steps. Random rows do not: their
        costs after a few steps say little, and races between them end up to 3 % higher.
        """
        races = self.exchanges and self.n_starts > 1 and not self.anneals and self.init != "random"
        return math.ceil(self.n_starts / _STARTS_PER_WINNER) if races else 0

    @property
    def steps_between_reads(self) -> bool:
        """Whether steps on kept rows may follow each read (see `daskmm.kmeans.between_reads`).

        They go to means of complete rows, for many clusters: fits of few read the table a handful
        of times without them.
        """
        means = self.family.squared and not (self.weighted or self.partial or self.trim)
        return self.many and self.on_sample and means

    @property
    def many(self) -> bool:
        """Whether there are at least `MANY_CLUSTERS` clusters, for which stages differ."""
        return self.n_clusters >= MANY_CLUSTERS


def most_polished(n_clusters: int) -> int:
    """Return how many starts are polished on the full data, at most."""
    return 1 if n_clusters >= MANY_CLUSTERS else POLISHED
