"""Distortions by their public names."""

from __future__ import annotations

from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.distortions.bregman import (
    ItakuraSaito,
    KullbackLeibler,
    Logistic,
    SquaredEuclidean,
)
from daskmm.numerics.distortions.cosine import Cosine
from daskmm.numerics.distortions.mixed import Mixed
from daskmm.numerics.distortions.norms import Euclidean, Manhattan

# Deviances of distributions are twice these divergences, so the name of a distribution means the
# same clusters as that of its divergence.
DISTORTIONS: dict[str, type[Distortion]] = {
    "sqeuclidean": SquaredEuclidean,
    "kl": KullbackLeibler,
    "poisson": KullbackLeibler,
    "itakura-saito": ItakuraSaito,
    "gamma": ItakuraSaito,
    "logistic": Logistic,
    # Squared Euclidean distance in whitened coordinates.
    "mahalanobis": SquaredEuclidean,
    # Squared Euclidean distance between directions.
    "cosine": Cosine,
    "manhattan": Manhattan,
    "euclidean": Euclidean,
    # A sum over the columns of a frame, by their kinds.
    "mixed": Mixed,
}
