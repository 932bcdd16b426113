"""The rows of a sample that trimmed k-means keeps, on which fits with `trim` make their choices.

Far rows do not affect the scale, the number of clusters, feature weights, powers or starting
centres. Several starts of trimmed k-means on the sample compete. No starting centre is one of the
rows that are farthest from the earlier centres (Bhaskara, Vadgama & Xu, "Greedy sampling for
approximate clustering in the presence of outliers", NeurIPS 2019), since a far row that became a
centre would count as near.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Block
from daskmm.engine.first_pass import MANY_CLUSTERS, Survey
from daskmm.engine.moments import Moments, Sample
from daskmm.kmeans.assignment import nearest_of
from daskmm.kmeans.seeding import farthest_share, greedy_rows
from daskmm.kmeans.updates import PowerUpdate, sample_problem
from daskmm.mm.driver import Schedule, iterate
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.distortions.cosine import Cosine
from daskmm.numerics.rows import Coordinates, SphereCoordinates
from daskmm.numerics.sparse_rows import SparseRows, has_holes

FloatArray = NDArray[np.float64]

# Number of starts, and largest number of hard steps. A few steps suffice: last changes of the
# centres hardly change which rows are far.
_STARTS, _STEPS = 4, 10


def near_rows(
    sample: Sample, n_clusters: int, trim: float, seed: int, distortion: Distortion
) -> NDArray[np.bool_]:
    """Return a mask of the rows that are not among the farthest from their centres.

    The far rows have the share `trim` of the weight; at least `n_clusters` rows are near. The
    sample is in the coordinates of the distortion. Rows are compared with at most `MANY_CLUSTERS`
    centres.
    """
    rows, weights, k = sample.rows, sample.weights, min(n_clusters, MANY_CLUSTERS)
    update = PowerUpdate(distortion, has_holes(rows), trim=trim)
    problem = sample_problem(rows, weights, update, distortion.spread(rows, weights))
    seeds = np.random.SeedSequence(seed).spawn(_STARTS)
    starts = [greedy_rows(rows, weights, k, each, distortion, trim) for each in seeds]
    runs = iterate(problem, starts, Schedule(-np.inf, max_iter=_STEPS))
    best = min(runs, key=lambda run: run.last)
    _, distances = nearest_of(Block(rows), problem.coordinates, best.state)
    near = ~farthest_share(distances, weights, trim)
    near[np.argsort(distances, kind="stable")[:n_clusters]] = True
    return near


def without_far_rows(
    survey: Survey, n_clusters: int, trim: float, seed: int, standardize: bool, weigh_shares: bool
) -> Survey:
    """Return the result of the first pass with the near rows of its sample marked.

    Scales and variances become those of the near rows. `trim` is the share of the rows that are
    far; `standardize` and `weigh_shares` are those of `daskmm.engine.first_pass.first_pass`.
    """
    sample, coordinates, distortion = survey.sample, survey.coordinates, survey.distortion
    if isinstance(distortion, Cosine):
        directions = SphereCoordinates(len(survey.variance)).to_model(sample.rows)
        sample = Sample(directions, sample.weights)
    near = near_rows(sample, n_clusters, trim, seed, distortion)
    survey = replace(survey, near=near)
    if not isinstance(coordinates, Coordinates) or isinstance(sample.rows, SparseRows):
        return survey
    moments = Moments.of_partial(survey.core.rows, survey.core.weights)
    shares = moments.masses / moments.weight
    observed = np.where(moments.constant, 0.0, moments.variance)
    factor = np.ones_like(observed)
    if standardize:
        factor = np.sqrt(np.where(observed > 0, observed, 1.0))
        factor *= shares ** (distortion.degree / 2) if weigh_shares else 1.0
    scaled = Sample(survey.sample.rows / factor, survey.sample.weights)
    variance = shares * observed / factor**2
    survey = replace(
        survey,
        coordinates=Coordinates(coordinates.mean, coordinates.scale * factor),
        variance=variance,
        sample=scaled,
        distortion=type(distortion).around(moments.mean / factor, variance),
    )
    if distortion.squared:
        return replace(survey, spread=float(variance.sum()))
    core = survey.core
    return replace(survey, spread=survey.distortion.spread(core.rows, core.weights))
