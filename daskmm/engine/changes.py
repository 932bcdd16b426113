"""Detect data that change between passes.

Each call of a pass checks that all values of its block are finite: its record shows this, or the
call tests the values. If a value is not finite, the call repeats the tests of the first pass on the
block, and names the row at fault. Changes between finite values show in totals that must stay the
same: every pass compares the totals of a few rows of each block, and hard steps those of all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled import library
from daskmm.data.blocks import Block
from daskmm.data.validation import check_domain, check_empty, check_finite, check_squares
from daskmm.engine.moments import Moments
from daskmm.numerics.distortions.base import Distortion
from daskmm.numerics.rows import Coordinates
from daskmm.numerics.sparse_rows import SparseRows

FloatArray = NDArray[np.float64]

# Least number of evenly spaced rows of each block whose values are summed in every pass.
_SOME_ROWS = 8
# Totals differ if a feature's mean has moved by more than a share of its standard deviation plus a
# share of the mean. The second share, a multiple of the input's eps plus a constant, allows for
# rounding.
_OF_DEVIATION, _EPS, _OF_MEAN = 1e-6, 8.0, 1e-12
# Sums of weights differ by more than this share.
_OF_WEIGHT = 1e-8


class Seen(NamedTuple):
    """The record of one or more calls, and totals of some rows of their blocks."""

    record: Any  # sum of the records
    # Sums over some rows of each block, (n_features + 2,): values, number of rows and weights.
    some: FloatArray

    @property
    def any_order(self) -> bool:
        """Whether records may be added in any order."""
        return getattr(self.record, "any_order", False)

    def __add__(self, other: Self) -> Self:  # type: ignore[override]
        return type(self)(self.record + other.record, self.some + other.some)


@dataclass(frozen=True)
class Watch:
    """How each call of a pass tests its block."""

    family: type[Distortion]  # the values must be in its domain
    partial: bool  # whether NaN are missing values
    later: bool = False  # whether the first pass, which tests all values itself, has ended

    def call(self, function: Callable[..., Any], block: Block, *shared: Any) -> Seen:
        """Call a block function, and return its record with totals of some rows.

        It raises ValueError if a value fails the tests of the first pass (the message names block
        and row), or if all values pass them but the record is not finite. Records have an attribute
        `finite` if they show whether all values were finite.
        """
        rows = block.rows
        try:
            record = function(block, *shared)
            finite: bool | None = getattr(record, "finite", None)
        except Exception:
            if self.later:
                self.refuse_bad(block)
            raise
        if self.later:
            fine = have_finite_squares(rows) if finite is None else finite
            # Sums by compiled loops are not finite if a value is outside of the domain.
            shown = finite is not None and not self.partial and library.available()
            shown = shown and isinstance(rows, np.ndarray)
            hidden = self._bounded and not shown
            if not fine or (hidden and self.family.outside(rows) is not None):
                self.refuse_bad(block)
                if finite is False and not self.family.infinite:
                    raise ValueError(
                        f"The sums of {block.position.described} are not finite, though its values "
                        "are, as they were in the first pass: distances from the centres overflow "
                        "float64. Scale the data first."
                    )
        if getattr(record, "fault", None) is not None:  # the pass will raise this error
            return Seen(record, np.zeros(rows.shape[1] + 2))
        return Seen(record, self._totals_of_some(block))

    @property
    def _bounded(self) -> bool:
        """Whether a test of the domain compares least and largest values with bounds."""
        return getattr(self.family, "lowest", -np.inf) > -np.inf

    def refuse_bad(self, block: Block) -> None:
        """Raise ValueError, naming block and row, if a block fails the tests of the first pass."""
        rows, position = block.rows, block.position
        try:
            if self.partial:
                check_domain(rows, position, 0, self.family, True)
            else:
                check_finite(rows, position)
                check_domain(rows, position, 0, self.family, False)
            check_empty(block, self.family)
            check_squares(block)
        except ValueError as error:
            raise ValueError(
                f"X has changed since the first pass, which accepted {position.described}. {error}"
            ) from error

    def _totals_of_some(self, block: Block) -> FloatArray:
        rows, weights = block.rows, block.weights
        n, p = rows.shape
        step = max(1, n // _SOME_ROWS)
        totals = np.zeros(p + 2)
        if isinstance(rows, SparseRows):
            n, step = min(n, _SOME_ROWS), 1
            first = rows[:n]
            totals[:p] = np.bincount(first.indices, first.data, minlength=p)
        else:
            some = rows[::step]
            if self.partial:
                some = np.where(np.isnan(some), 0.0, some)
            np.add.reduce(some, axis=0, dtype=np.float64, out=totals[:p])
        totals[p] = -(-n // step)
        totals[p + 1] = totals[p] if weights is None else weights[:n:step].sum()
        return totals


def have_finite_squares(rows: NDArray) -> bool:
    """Return True only if all values and their squares are finite; large finite ones give False."""
    values = rows.data if isinstance(rows, SparseRows) else rows.ravel(order="K")
    with np.errstate(over="ignore", invalid="ignore"):
        return values.dtype.kind != "f" or bool(np.isfinite(np.dot(values, values)))


@dataclass(frozen=True)
class Totals:
    """Totals of the first pass, which later passes must reproduce."""

    moments: Moments  # moments in the input's units
    eps: float  # relative rounding of the input's values
    # Totals as in `Seen`, (n_features + 2,); None if the rows are read only once.
    some: FloatArray | None

    @property
    def _allowed(self) -> FloatArray:
        """Tolerance of the mean of each feature, in the input's units."""
        of_mean = (_EPS * self.eps + _OF_MEAN) * np.abs(self.moments.mean)
        allowed = _OF_DEVIATION * np.sqrt(self.moments.variance) + of_mean
        return np.asarray(allowed + np.finfo(np.float64).tiny)  # subnormals lose digits

    def compare_some(self, found: FloatArray, n_passes: int) -> None:
        """Raise ValueError if the totals of some rows are not those of the first pass."""
        if self.some is None:
            return
        count, weight = self.some[-2:]
        compare(
            self.some, found, np.append(self._allowed * count, [0.0, _OF_WEIGHT * weight]), n_passes
        )

    def of_rows(self, coordinates: Coordinates) -> tuple[FloatArray, FloatArray]:
        """Return the sums of all rows in the model's coordinates and their weight, and tolerances.

        Both arrays have the shape (n_features + 1,).
        """
        moments, masses = self.moments, self.moments.masses
        sums = masses * (moments.mean - coordinates.mean) / coordinates.scale
        allowed = masses * self._allowed / coordinates.scale
        weight = moments.weight
        return np.append(sums, weight), np.append(allowed, _OF_WEIGHT * weight)

    def of_first_step(self, found: FloatArray, reach: float) -> tuple[FloatArray, FloatArray]:
        """Return sums and tolerances as `of_rows` does, given the sums of the first hard step.

        The step may use other coordinates. `reach` is the weight times the root of the rows' mean
        squared distance from their mean.
        """
        weight, sums = self.moments.weight, found[:-1]
        allowed = _OF_DEVIATION * reach + _OF_WEIGHT * np.abs(sums)
        return np.append(sums, weight), np.append(allowed, _OF_WEIGHT * weight)


def compare(known: FloatArray, found: FloatArray, allowed: FloatArray, n_passes: int) -> None:
    """Raise ValueError if totals differ by more than the tolerances.

    `known` are totals of the first pass, `found` are those of the present pass, and `allowed` are
    the tolerances, each (n,). The first entries belong to the features, and the last one is the
    weight.
    """
    with np.errstate(invalid="ignore"):
        differ = (found != known) & ~(np.abs(found - known) <= allowed)
    if differ.any():
        place = int(np.flatnonzero(differ)[0])
        name = "sample_weight" if place == len(known) - 1 else f"feature {place}"
        raise ValueError(
            f"X or sample_weight has changed between the first pass and pass {n_passes}: the sum "
            f"of {name} over the same rows was {known[place]:.10g}, and is {found[place]:.10g} "
            "now. Fit again once nothing writes to the data."
        )
