"""An error of the user that the command line describes in one line."""

from __future__ import annotations


class SparseRowsError(TypeError):
    """Sparse rows where dense ones are needed."""
