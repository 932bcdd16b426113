"""Compute the sums of a block in compiled loops.

The definitions of the results are `daskmm.numerics.distances` and `daskmm.numerics.power_means`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.layout import (
    GROUPED,
    LIMITS,
    SCORED,
    call_in_parts,
    frame_of,
    plain,
    relevant_from,
    row_dtype,
    tile_rows,
    working_dtype,
)
from daskmm.compiled.partial import (
    LEAST_CENTERS,
    exclude_centers,
    fields_of_directions,
    fields_of_rounded,
    principal_directions,
    some_rows,
)
from daskmm.numerics.distances import product_rounding
from daskmm.numerics.distortions.bregman import SQUARED_EUCLIDEAN, Bregman, Logistic
from daskmm.numerics.power_means import TIE
from daskmm.numerics.rows import Coordinates, FeatureCoordinates

FloatArray = NDArray[np.float64]

_DOUBLE = np.dtype(np.float64)
# Rows of a block from which partial distances are tried.
_LEAST_ROWS = 256
# Largest share of rows whose nearest centre may be in doubt in single precision.
_FEW_DOUBTS = 0.1
# Scale of rows that are in the model's coordinates already.
_ONE = np.ones(1)
_ALL_FEATURES: dict[str, Any] = {"n_leading": 0, "rounded": 0}
# Fields that neither `known_sums` nor labels use.
_UNUSED = ("n_far", "scored", "n_leading", "rounded", "n_listed", "s", "rounding", "tie")
NO_SUMS = dict.fromkeys(_UNUSED, 0.0) | LIMITS[_DOUBLE]


class BlockSums(NamedTuple):
    """Sums of one set of centres over a block, as in `daskmm.kmeans.sums.CenterSums`.

    `observed` are the weights of the values that are not missing, None where no value can be.
    `farthest_rows` are positions in the block of the rows farthest from their centres, which hard
    steps list; distances descend, ties are in row order.
    """

    weights: FloatArray
    sums: FloatArray
    observed: FloatArray | None
    squares: FloatArray | None
    objective: float
    inertia: float
    hardness: float
    farthest_distances: FloatArray
    farthest_rows: NDArray[np.int64]


@dataclass(eq=False)
class PreparedCenters:
    """Centres in the forms that the loops need, computed once for all blocks of a step.

    There is one form for each dtype; forms are not pickled. The parameters are those of
    `daskmm.kmeans.sums.CenterState`; the centres must not be changed later.
    """

    centers: FloatArray
    feature_weights: FloatArray | None = None
    distortion: Bregman = SQUARED_EUCLIDEAN
    partial: bool = False
    directions: NDArray[np.float32] | None = None
    _fields: dict[np.dtype, dict[str, Any]] = field(default_factory=dict, init=False)
    _leading: dict[np.dtype, dict[str, Any]] = field(default_factory=dict, init=False)
    # Share of rows whose nearest centre single precision leaves in doubt; None if unknown.
    _doubtful: float | None = field(default=None, init=False)

    def __reduce__(self) -> tuple[Any, ...]:
        kept = (self.centers, self.feature_weights, self.distortion, self.partial, self.directions)
        return type(self), kept

    @functools.cached_property
    def _extent(self) -> float:
        return float(np.abs(self.centers).max())

    def narrowest(
        self, rows: NDArray, coordinates: FeatureCoordinates | None, s: float
    ) -> np.dtype:
        """Return the `working_dtype` of a step at power `s` on a block of rows."""
        scale = _ONE if coordinates is None else coordinates.scale
        return working_dtype(rows, scale, self.centers.shape, self._extent, s)

    def dtype_for(
        self, rows: NDArray, coordinates: FeatureCoordinates | None, s: float
    ) -> np.dtype:
        """Return the dtype of the distances of a step at power `s` on a block of rows.

        Rows in double precision keep it if single precision leaves in doubt which centre is nearest
        to many of them, since doubts cost more than single precision saves.
        """
        dtype = self.narrowest(rows, coordinates, s)
        if dtype == _DOUBLE or row_dtype(rows) == dtype:
            return dtype
        if self._doubtful is None:
            some = some_rows(rows)
            z = some.astype(float) if coordinates is None else coordinates.to_model(some)
            self._doubtful = share_in_doubt(z, self.centers, self.feature_weights)
        return dtype if self._doubtful <= _FEW_DOUBTS else _DOUBLE

    def fields(self, dtype: np.dtype) -> dict[str, Any]:
        """Return the fields of `src/loops.h` that describe the centres, as rounded to `dtype`."""
        found = self._fields.get(dtype)
        if found is None:
            # Threads that get here at the same time compute equal fields.
            found = self._fields[dtype] = _center_fields(self, dtype)
        return found

    def leading(
        self, dtype: np.dtype, rows: NDArray, coordinates: FeatureCoordinates | None
    ) -> dict[str, Any]:
        """Return the fields of `src/loops.h` that describe partial distances, for hard steps.

        They are chosen on a few rows of the first block of a step.
        """
        if len(rows) < _LEAST_ROWS or self.partial or self.feature_weights is not None:
            return _ALL_FEATURES
        found = self._leading.get(dtype)
        if found is None:
            found = _ALL_FEATURES
            if exclude_centers(self.centers, self.distortion):
                some = some_rows(rows)
                z = some if coordinates is None else coordinates.to_model(some)
                with np.errstate(over="ignore", invalid="ignore"):
                    found = found | self._excluding(dtype, z)
            self._leading[dtype] = found
        return found

    def _excluding(self, dtype: np.dtype, rows: NDArray) -> dict[str, Any]:
        """Return the fields that save most time on some rows in the model's coordinates."""
        fields = self.fields(dtype)
        factors, norms = fields["factors"], fields["norms"][: len(self.centers)]
        found = fields_of_rounded(factors, norms, rows)
        if found or len(self.centers) < LEAST_CENTERS:
            return found
        if self.directions is None:
            self.directions = principal_directions(self.centers)
        return fields_of_directions(factors, norms, self.directions, rows)


def share_in_doubt(
    rows: FloatArray, centers: FloatArray, feature_weights: FloatArray | None
) -> float:
    """Return the share of rows whose nearest centre is in doubt in single precision.

    Rows and centres are in the model's coordinates; there are several centres.
    """
    w = np.ones(rows.shape[1]) if feature_weights is None else feature_weights
    with np.errstate(over="ignore", invalid="ignore"):
        norms, sizes = (rows * rows) @ w, (centers * centers) @ w
        scores = np.partition((rows * w) @ (-2.0 * centers.T) + sizes, 1, axis=1)
        span = 3.0 * norms + 2.0 * (scores[:, 0] + norms)
        margin = product_rounding(np.dtype(np.float32), rows.shape[1]) * span
        return float((scores[:, 1] - scores[:, 0] <= margin).mean())


def row_terms(rows: NDArray, distortion: Bregman) -> FloatArray | None:
    """Return the term of each row that its distances to all centres share.

    The rows are in the model's coordinates, in any numeric dtype and memory order; NaN are missing.
    The result is None for squared Euclidean distances, whose terms cost next to nothing.
    """
    if distortion.squared:
        return None
    n, p = rows.shape
    terms = np.empty(n)
    reference = plain(np.broadcast_to(distortion.reference, (p,)))
    fields = {"code": distortion.code, "reference": reference}
    call_in_parts("row_terms", rows, row_dtype(rows), 1, {"terms": terms}, fields)
    return terms


def block_sums(
    rows: NDArray,
    weights: FloatArray | None,
    coordinates: FeatureCoordinates | None,
    prepared: PreparedCenters,
    s: float,
    n_farthest: int,
    terms: FloatArray | None = None,
    shares: FloatArray | None = None,
) -> BlockSums:
    """Compute the sums of one set of centres over a block of rows.

    Rows have any numeric dtype and memory order; they are in the model's coordinates already if
    `coordinates` is None. Distances and weights are computed in single precision if the rows have
    no more precision and `daskmm.compiled.layout.working_dtype` allows it. Near ties between
    nearest centres, and sums over rows, are always computed in double precision.

    A hard step lists the `n_farthest` rows farthest from their centres. `terms` are `row_terms` of
    the rows. At a finite power, weights of rows that are negligible relative to the `shares` of the
    clusters in the weight, (n_clusters,), may be left out; they may have mattered if
    `daskmm.compiled.layout.have_waned` says so after the step.
    """
    (k, p), hard = prepared.centers.shape, s == -np.inf
    frame = frame_of(Coordinates(np.zeros(p), np.ones(p)) if coordinates is None else coordinates)
    partial, is_plain = prepared.partial, not prepared.partial and terms is None
    # The cost of a hard step must equal that of scoring, which uses double precision here.
    exact = hard and not is_plain
    narrowest = _DOUBLE if exact else prepared.narrowest(rows, coordinates, s)
    dtype = _DOUBLE if exact else prepared.dtype_for(rows, coordinates, s)
    if not is_plain:
        frame["code"] = prepared.distortion.code
    # A single centre gets the full weight of each row at any power.
    assigned = hard or k == 1
    held = row_dtype(rows) if assigned else dtype
    tile = tile_rows(len(rows), k, p, held)
    n_listed = n_farthest if hard else 0
    found = _zeros(k, p, n_listed, prepared)
    unit = 1.0 if hard else _unit(weights, dtype)
    ratio_limits = _ratio_limits(None if hard or partial else shares, s, dtype)
    of_rows = {
        "weights": None if weights is None else plain(weights / unit),
        "terms": None if terms is None else plain(terms),
    }
    fields = {
        "n_far": n_listed,
        # The cost must equal that of scoring in double precision, and must not depend on the block
        # from which threads learn how many rows are in doubt.
        "scored": narrowest != _DOUBLE or (is_plain and k >= SCORED),
        "n_listed": 0,
        "s": s,
        # In double precision, inexact distances of soft steps have been recomputed.
        "rounding": 0.0 if dtype == _DOUBLE and not assigned else product_rounding(dtype, p),
        "tie": TIE,
        "ratio_limits": ratio_limits,
        **LIMITS[dtype],
        **frame,
        **prepared.fields(dtype),
        **(prepared.leading(dtype, rows, coordinates) if hard and is_plain else _ALL_FEATURES),
        **found,
    }
    entry = "hard_sums" if assigned else "soft_sums"
    grouped = 1 if ratio_limits is None else GROUPED
    call_in_parts(entry, rows, held, tile, of_rows, fields, grouped)
    return _block_sums(found, unit)


def _zeros(k: int, p: int, n_listed: int, prepared: PreparedCenters) -> dict[str, Any]:
    """Return the arrays that the loops add to, named as in `src/loops.h`."""
    return {
        "n_j": np.zeros(k),
        "sums": np.zeros((k, p)),
        "observed": np.zeros((k, p)) if prepared.partial else None,
        "squares": None if prepared.feature_weights is None else np.zeros(p),
        "totals": np.zeros(3),
        "far": np.zeros(n_listed),
        "far_rows": np.zeros(n_listed, np.int64),
    }


def _block_sums(found: dict[str, Any], unit: float = 1.0) -> BlockSums:
    """Return the sums in these arrays, multiplied by the unit of the weights."""
    added = [found[name] for name in ("n_j", "sums", "observed", "squares", "totals")]
    if unit != 1.0:
        for array in added:
            if array is not None:
                array *= unit
    *arrays, totals = added
    listed = found["far"] > 0
    return BlockSums._make(
        [*arrays, *totals.tolist(), found["far"][listed], found["far_rows"][listed]]
    )


def known_sums(
    rows: NDArray,
    weights: FloatArray | None,
    coordinates: FeatureCoordinates,
    prepared: PreparedCenters,
    n_farthest: int,
    labels: NDArray[np.int32],
    distances: FloatArray,
    moved: NDArray[np.bool_],
    changed: NDArray[np.bool_],
    before: tuple[FloatArray, FloatArray] | None,
) -> BlockSums:
    """Compute the sums of a hard step whose nearest centres are known, as `block_sums` does.

    Little changes in late steps. So distances to centres that have not moved, and sums of clusters
    that no row enters or leaves, are taken from the step before; they have the same bits.

    Distances are squared Euclidean, without feature weights or whitening. Those to the nearest
    centres in the step before are negative if unknown, and are updated. `moved` says whether each
    centre has moved since then, so that distances to it are computed again, and `changed` whether a
    row has entered or left each cluster, so that its sums are computed again. `before` has the
    clusters' weights and sums of the step before; None if all are to be computed.
    """
    k, p = prepared.centers.shape
    found = _zeros(k, p, n_farthest, prepared)
    if before is None:
        changed = np.ones(k, np.bool_)
    else:
        found["n_j"][:], found["sums"][:] = before
        found["n_j"][changed], found["sums"][changed] = 0.0, 0.0
    frame = frame_of(coordinates)
    dtype = prepared.dtype_for(rows, coordinates, -np.inf)
    of_rows = {
        "weights": None if weights is None else plain(weights),
        "labels": plain(labels, np.dtype(np.int32)),
        "distances": distances,
    }
    fields = NO_SUMS | frame | prepared.fields(dtype) | found
    fields |= {"n_far": n_farthest, "moved": moved, "changed": changed}
    # Tiles are as in `block_sums`, so that sums have the same bits.
    tile = tile_rows(len(rows), k, p, row_dtype(rows))
    call_in_parts("known_sums", rows, row_dtype(rows), tile, of_rows, fields)
    return _block_sums(found)


def _unit(weights: FloatArray | None, dtype: np.dtype) -> float:
    """Return the number by which weights are divided in soft steps in single precision.

    Weights may exceed the range of single precision, but their relevant ratios do not.
    """
    if dtype == np.float64 or weights is None:
        return 1.0
    return float(weights.max()) or 1.0


def _ratio_limits(shares: FloatArray | None, s: float, dtype: np.dtype) -> NDArray | None:
    """Return, for each cluster, the ratio of distances from which on weights are negligible.

    The ratio is that of a distance to the row's smallest one. None means that all weights count:
    without `shares`, or if the weights of a row may be large.
    """
    # Weights of all rows together are at most k^(−1/s) times the largest.
    if shares is None or np.log2(len(shares)) > -s:
        return None
    return plain(relevant_from(shares, dtype) ** (1.0 / (s - 1.0)), dtype)


def _center_fields(prepared: PreparedCenters, dtype: np.dtype) -> dict[str, Any]:
    """Return the centres as rounded to `dtype`, with norms of the rounded centres."""
    centers, distortion, partial = prepared.centers, prepared.distortion, prepared.partial
    k, p = centers.shape
    held = centers.astype(dtype).astype(np.float64)
    constants, factors, sizes, edges = distortion.planes(held, prepared.feature_weights)
    # Centres are processed in pairs; an odd number is made even by a centre at ∞.
    norms, reaches = np.full(k + k % 2, np.inf), np.full(k + k % 2, np.inf)
    norms[:k] = 0.0 if partial else constants.sum(axis=1)
    if distortion.code == Logistic.code:
        # The error of a row's term grows with the number of features, not with the term.
        sizes = sizes + p
    reaches[:k] = sizes
    bounded = distortion.squared and not partial
    weights = prepared.feature_weights
    return {
        "k": k,
        "p": p,
        "single": dtype == np.float32,
        "centers": plain(centers),
        "w": np.ones(p) if weights is None else plain(weights),
        "factors": plain(factors, dtype),
        "constants": plain(constants, dtype) if partial else None,
        "norms": plain(norms, dtype),
        "reaches": plain(reaches, dtype),
        # Smaller squares underflow.
        "slack": LIMITS[dtype]["low"] if bounded else sizes.max(),
        "edges": edges,
        "lower_end": distortion.lowest,
        "upper_end": distortion.highest,
    }
