"""The distortion whose clusters tell most of the features' ranks, chosen without labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskmm.kmeans.trials import OverStarts
from daskmm.numerics.distortions import DISTORTIONS

FloatArray = NDArray[np.float64]

# Tried by default, as far as the values are in their domains.
CANDIDATES = ("sqeuclidean", "kl", "itakura-saito", "logistic", "euclidean", "manhattan")
STARTS = 4
# The first of them wins whose gain is the best but for this share.
_AS_GOOD = 0.01


@dataclass(frozen=True)
class DistortionChoice(OverStarts):
    """What the clusters that each distortion finds tell of the features' ranks.

    Attributes
    ----------
    distortions : tuple of str
    gains : ndarray of shape (n_distortions, n_starts), float64
        Information gain of the normal scores over a Gaussian null, in nats, of each start.
    chosen : int
        Index of the distortion that the rule prefers.
    n_clusters, n_rows : int
        Clusters, and rows of the sample.
    """

    distortions: tuple[str, ...]
    gains: FloatArray
    chosen: int
    n_clusters: int
    n_rows: int

    @property
    def distortion(self) -> str:
        """The chosen one."""
        return self.distortions[self.chosen]


def candidates(asked: Sequence[str] | None, rows: FloatArray) -> tuple[str, ...]:
    """Names to try.

    Raises
    ------
    ValueError
        If one that was asked for is unknown, or the values are not in its domain.
    """
    if asked is None:
        return tuple(name for name in CANDIDATES if DISTORTIONS[name].outside(rows) is None)
    names = (asked,) if isinstance(asked, str) else tuple(asked)
    if not names:
        raise ValueError("distortions must not be empty.")
    for name in names:
        if name not in DISTORTIONS:
            raise ValueError(f"distortions must be among {sorted(DISTORTIONS)}; got {name!r}.")
        if DISTORTIONS[name].outside(rows) is not None:
            raise ValueError(
                f"distortions: {name!r} is for values {DISTORTIONS[name].domain}, and X has others."
            )
    return names


def preferred(gains: FloatArray) -> int:
    """Index of the first distortion whose mean gain is within 1 % of the largest.

    Parameters
    ----------
    gains : ndarray of shape (n_distortions, n_starts)
    """
    mean = gains.mean(axis=1)
    return int(np.flatnonzero(mean >= mean.max() - _AS_GOOD * abs(mean.max()))[0])
