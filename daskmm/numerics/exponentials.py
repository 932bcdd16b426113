"""Exponentials of arrays without subnormal numbers.

Some processors (Intel's) take a hundred cycles for each subnormal number: if exponents reached
−708, kernel sums took up to ten times as long.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Exponentials of this number (2e-300) and of smaller ones become 0.
LOWEST_EXPONENT = -690.0


def exponentiate(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace numbers by their exponentials in place; return the array.

    Exponentials up to 2e-300 become 0, and 2e-300 is subtracted from the others, which does not
    change any that exceeds 1e-283.
    """
    np.maximum(values, LOWEST_EXPONENT, out=values)
    np.exp(values, out=values)
    values -= np.exp(LOWEST_EXPONENT)
    return values
