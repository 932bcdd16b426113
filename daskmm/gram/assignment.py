"""Rows of a table served by means in feature space."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from daskmm.data.blocks import Position
from daskmm.data.validation import check_finite
from daskmm.numerics.kernels import Kernel
from daskmm.numerics.rows import TILE_BYTES, Coordinates, tiles

FloatArray = NDArray[np.float64]


def distances_to_means(
    rows: NDArray,
    position: Position,
    coordinates: Coordinates | None,
    kernels: list[Kernel],
    X_fit: FloatArray | None,
    weights: FloatArray,
    memberships: FloatArray,
    norms: FloatArray,
) -> FloatArray:
    """Σ_l α_l (k_l(x, x) − 2 k_l(x, X) W + ‖θ_j‖²_l) of each row of a block.

    Without coordinates, `rows` are kernel values already, and k(x, x) is left out.
    """
    n_fit, n_clusters = memberships.shape
    out = np.empty((len(rows), n_clusters))
    for tile in tiles(len(rows), max(1, TILE_BYTES // (8 * n_fit))):
        z = np.asarray(rows[tile], dtype=np.float64)
        check_finite(z, position, tile.start)
        if coordinates is None or X_fit is None:
            out[tile] = norms[0] - 2.0 * z @ memberships
            continue
        z = coordinates.to_model(z)
        out[tile] = 0.0
        for kernel, weight, norm in zip(kernels, weights, norms, strict=True):
            product = kernel.block(z, X_fit) @ memberships
            out[tile] += weight * (kernel.diagonal(z)[:, None] - 2.0 * product + norm)
    return out
