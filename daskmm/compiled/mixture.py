"""Sums of EM steps of mixtures of normal and t distributions over a block, read once.

Densities and responsibilities are float64 for rows of any type. Sums refer to the given means, so
that no digits cancel if clusters are small and far from 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.compiled.layout import call_in_parts, plain, row_dtype, tile_rows
from daskmm.numerics.gaussians import EMSums

FloatArray = NDArray[np.float64]


class Components(NamedTuple):
    """Components of a mixture, as `Mixture` in `src/loops.h` has them."""

    means: FloatArray
    constants: FloatArray
    factors: FloatArray | None = None
    inverse_deviations: FloatArray | None = None
    degrees: FloatArray | None = None


def mixture_sums(
    rows: NDArray, weights: FloatArray | None, components: Components, negligible: float = 0.0
) -> EMSums | None:
    """Return the sums of one E- and M-step over rows of any numeric dtype and memory order.

    Responsibilities up to `negligible` are left out of all sums except the log likelihood. The
    result is None if the density of a row, even of one without weight, is not finite.
    """
    k, p = components.means.shape
    total, n_j, sums = np.zeros(1), np.zeros(k), np.zeros((k, p))
    fields: dict[str, Any] = {"total": total, "n_j": n_j, "sums": sums, "negligible": negligible}
    if components.factors is None:
        scatters = fields["squares"] = np.zeros((k, p))
    else:
        scatters = fields["scatters"] = np.zeros(components.factors.shape)
    pulls = logs = None
    if components.degrees is not None:
        pulls, logs = fields["pulls"], fields["logs"] = np.zeros(k), np.zeros(k)
    of_rows = {"weights": None if weights is None else plain(weights)}
    if not _call(rows, components, of_rows, fields):
        return None
    if components.factors is not None:
        scatters += np.triu(scatters, 1).swapaxes(1, 2)
    return EMSums(n_j, sums, scatters, float(total[0]), pulls, logs)


def fill_memberships(
    rows: NDArray,
    components: Components,
    labels: NDArray[np.int32] | None = None,
    densities: FloatArray | None = None,
    responsibilities: FloatArray | None = None,
) -> bool:
    """Write the most probable component of each row, its log density or its responsibilities.

    They are written to the arrays that are given. The result is False if the density of a row is
    not finite; what was written is undefined then.
    """
    of_rows = {"labels": labels, "densities": densities, "responsibilities": responsibilities}
    return _call(rows, components, of_rows, {"negligible": 0.0})


def _call(
    rows: NDArray,
    components: Components,
    of_rows: dict[str, NDArray | None],
    fields: dict[str, Any],
) -> bool:
    """Run the loop; return False if the density of a row is not finite."""
    k, p = components.means.shape
    given = {name: plain(x) for name, x in components._asdict().items() if x is not None}
    fields = fields | given | {"k": k, "n_factors": len(given.get("factors", ()))}
    # Tiles are the same for all dtypes of the rows, and so are the results.
    tile = tile_rows(len(rows), k, p, np.dtype(np.float64))
    return call_in_parts("mixture_sums", rows, row_dtype(rows), tile, of_rows, fields)
