"""Values that a distortion, or missing values, do not admit, named by where they stand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daskmm.numerics.distortions import Distortion
from daskmm.passes import Position


def check_domain(
    rows: NDArray,
    position: Position,
    offset: int,
    distortion: Distortion | type[Distortion],
    partial: bool,
) -> None:
    """Refuse values outside of a distortion's domain; and infinities and rows without any value.

    The latter two where values may be missing; `daskmm.survey.check_finite` is for the others.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, n_features)
        In the model's coordinates.
    position : Position
        Of the block.
    offset : int
        Row of the block at which `rows` begin.
    distortion : Distortion, or its class
    partial : bool
        Whether NaN are missing values.

    Raises
    ------
    ValueError
        Naming block, row and feature (all counted from 0).
    """
    if partial and np.isinf(rows).any():
        row, feature = (int(index) for index in np.argwhere(np.isinf(rows))[0])
        raise ValueError(
            f"Input X contains infinity: {position.of_row(offset + row)}, feature {feature}. "
            "Missing values are to be NaN."
        )
    if partial and (empty := np.isnan(rows).all(axis=1)).any():
        row = int(np.flatnonzero(empty)[0])
        raise ValueError(
            f"Input X has a row without any value: {position.of_row(offset + row)}. Remove such "
            "rows first."
        )
    outside = distortion.outside(rows)
    if outside is not None:
        row, feature = (int(index) for index in np.argwhere(outside)[0])
        negative = "Negative values in data: " if rows[row, feature] < 0 else ""
        raise ValueError(
            f"{negative}Input X contains {rows[row, feature]:.6g}, which is outside of the domain "
            f"of {distortion.title} ({distortion.domain}): {position.of_row(offset + row)}, "
            f"feature {feature}."
        )
