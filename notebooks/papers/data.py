"""Real data sets of the papers: those of scikit-learn, others from a folder of the user's."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets

Rows = tuple[NDArray[np.float64], NDArray[np.int64]]

_OWN = {"iris": "load_iris", "wine": "load_wine", "wdbc": "load_breast_cancer"}


class RealData:
    """Data sets by name.

    Parameters
    ----------
    folder : str, Path or None
        Holds NAME.npz files with X (n × p, raw) and y (labels). None is the folder ``data`` of the
        one that the environment variable DASKMM_SHARED names, if it is set.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        if folder is None and (shared := os.environ.get("DASKMM_SHARED")):
            folder = Path(shared) / "data"
        self.folder = None if folder is None else Path(folder)

    def has(self, name: str) -> bool:
        """Return whether a data set is available."""
        return name in _OWN or (self.folder is not None and (self.folder / f"{name}.npz").exists())

    def load(self, name: str) -> Rows:
        """Return rows, raw, and labels.

        Raises
        ------
        FileNotFoundError
            If it is neither scikit-learn's nor in the folder.
        """
        if name in _OWN:
            rows, labels = getattr(datasets, _OWN[name])(return_X_y=True)
            return rows, labels
        if self.folder is None or not self.has(name):
            where = self.folder or "no folder: --data names one, or DASKMM_SHARED its parent"
            raise FileNotFoundError(f"{name}.npz with X and y is not available ({where})")
        with np.load(self.folder / f"{name}.npz") as file:
            return np.asarray(file["X"], dtype=np.float64), file["y"].astype(np.int64)


def zscore(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows with every feature at mean 0 and variance 1; constant features become 0."""
    spread = rows.std(axis=0)
    scaled: NDArray[np.float64] = (rows - rows.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return scaled


def absent(name: str) -> str:
    """Return why a cell cannot be run without a data set."""
    return f"data not available: {name}"
