"""An error, and a function that warns the user."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

# Folder of the library, in the form in which stack frames name it.
_LIBRARY = str(Path(__file__).parents[1]) + os.sep


class SparseRowsError(TypeError):
    """Sparse rows where dense ones are needed."""


def warn_user(message: str, category: type[Warning]) -> None:
    """Issue a warning that points at the first caller outside of this library."""
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(message, category, stacklevel=level)
