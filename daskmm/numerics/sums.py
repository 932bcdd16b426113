"""Records of sums over rows, which are added field by field."""

from __future__ import annotations

from typing import Self


class Sums:
    """Base of frozen dataclasses whose fields are sums over rows; None is no sum."""

    def __add__(self, other: Self) -> Self:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return type(self)(*(None if a is None or b is None else a + b for a, b in pairs))

    def times(self, factor: float) -> Self:
        """Return the sums of the same rows with their sample weights multiplied by a factor."""
        return type(self)(*(None if a is None else factor * a for a in vars(self).values()))
