"""What all estimators share: stopping parameters, warnings, logging, saving."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar

import dask
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from daskmm.cluster import _models
from daskmm.cluster._parameters import CHECKPOINT
from daskmm.cluster._progress import reported
from daskmm.cluster._sklearn import Interval, StrOptions
from daskmm.cluster._summary import FittedSummary
from daskmm.data.blocks import Layout, layout_of
from daskmm.data.input import read_table
from daskmm.data.validation import check_row_count
from daskmm.mm.checkpoint import Checkpoint
from daskmm.mm.context import FitContext
from daskmm.mm.driver import IterationRecord, Outcome
from daskmm.mm.fingerprints import described_parameters
from daskmm.mm.journal import Journal, Pace

# Folder of the library, as frames of its functions name it.
_LIBRARY = str(Path(__file__).parents[1])
STOPPED = "A callback asked the fit to stop: it has not converged."


class MMClusterer(FittedSummary, ClusterMixin, BaseEstimator):
    """Base of all estimators that the MM driver fits."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "n_init": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
        "standardize": ["boolean"],
        "verbose": ["verbose"],
        "callbacks": [list, tuple, None],
        **CHECKPOINT,
    }

    n_clusters: Any
    n_init: int | str
    max_iter: int
    tol: float
    random_state: Any
    standardize: Any
    verbose: int
    callbacks: Any
    checkpoint: str | Path | None
    checkpoint_every: int | float | str

    labels_: Any
    inertia_: float
    objective_history_: NDArray[np.float64]
    history_: list[IterationRecord]
    n_iter_: int
    n_passes_: int
    s_: float
    n_features_in_: int

    def _planned_layout(self, X: Any, n_clusters: int) -> Layout:
        """Row blocks of a table that might be fitted; no data are read, `self` is unchanged."""
        self._validate_params()
        layout = layout_of(read_table(type(self)(**self.get_params()), X, reset=True))
        if layout.n_rows is not None:
            check_row_count(layout.n_rows, n_clusters)
        return layout

    @contextmanager
    def _context(self) -> Iterator[FitContext]:
        """Context of a fit: its journal, its callbacks, and one for `verbose`."""
        pace, journal = Pace.of(self.checkpoint_every), Journal()
        if self.checkpoint is not None:
            journal = Checkpoint(self.checkpoint, pace, described_parameters(self))
        callbacks = list(self.callbacks or ())
        for callback in callbacks:
            if not callable(callback):
                raise TypeError(f"callbacks must be callable, got {callback!r}.")
        with ExitStack() as stack:
            if self.verbose:
                report = stack.enter_context(reported(type(self).__name__, self.max_iter))
                callbacks = [report, *callbacks]
            yield stack.enter_context(FitContext(journal, callbacks))

    def _store_history(
        self, outcome: Outcome[Any], before: Sequence[Sequence[IterationRecord]] = ()
    ) -> None:
        """Set the attributes that every outcome has.

        Parameters
        ----------
        outcome : Outcome
        before : sequence of list of IterationRecord
            History of each start on a sample or on low-rank features.
        """
        self.inertia_ = outcome.inertia
        history = outcome.run.history
        self.history_ = [*before[outcome.best], *history] if before else history
        self.objective_history_ = np.array([record.objective for record in history])
        self.n_iter_ = outcome.n_iter
        # A fit that was stopped has the power of a step that was not taken.
        annealing = outcome.run.stage == "anneal" and len(history) > 0
        self.s_ = history[-1].s if annealing else outcome.run.state.s

    def _warn(self, outcome: Outcome[Any], n_clusters: int, context: FitContext) -> None:
        """Warn of fits that did not converge, or found fewer clusters."""
        if context.stopped is not None:
            # An interrupt is raised at the end of the fit.
            if isinstance(context.stopped, StopIteration):
                warn_convergence(STOPPED)
            return
        occupied = int(np.count_nonzero(outcome.scored.cluster_weights))
        if occupied < n_clusters:
            warn_convergence(
                f"Number of distinct clusters ({occupied}) found smaller than n_clusters "
                f"({n_clusters}): the data may have too few distinct rows."
            )
        coincident = outcome.scored.coincident_centers
        if coincident:
            warn_convergence(
                f"{coincident} of {n_clusters} centres coincide with another one. Annealing "
                "that begins too hot ends so: try s0='auto' or a lower s0, more max_iter, or "
                "polish=True."
            )
        if not outcome.run.converged and self.tol > 0:
            warn_convergence(
                f"Not converged in max_iter={self.max_iter} iterations: the last was at power "
                f"{self.s_:.3g}. Raise max_iter or eta."
            )

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the fitted model as a zarr group, to be read by `daskmm.load`.

        Parameters
        ----------
        path : str or Path
        overwrite : bool
            Whether a model that is there already may be replaced.

        Raises
        ------
        FileExistsError
            If the path exists, unless `overwrite` is set and it holds a model.
        """
        check_is_fitted(self)
        _models.save(self, path, overwrite)

    def __getstate__(self) -> dict[str, Any]:
        """Without lazy labels, whose graph would carry the data."""
        state = dict(super().__getstate__())
        if dask.is_dask_collection(state.get("labels_")):
            del state["labels_"]
        return state


def warn_convergence(message: str) -> None:
    """Issue a ConvergenceWarning to the caller of the library."""
    warn_user(message, ConvergenceWarning)


def warn_user(message: str, category: type[Warning]) -> None:
    """Issue a warning that points at the first caller outside of this library."""
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(message, category, stacklevel=level)
