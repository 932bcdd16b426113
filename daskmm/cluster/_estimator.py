"""What all estimators share: stopping parameters, warnings, logging, saving."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

import dask
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from daskmm.cluster import _models
from daskmm.cluster._fitted_values import is_fitted_name
from daskmm.cluster._output import as_asked
from daskmm.cluster._parameters import CHECKPOINT
from daskmm.cluster._progress import reported
from daskmm.cluster._sklearn import Interval, StrOptions
from daskmm.cluster._summary import FittedSummary
from daskmm.data.blocks import Layout, is_frame, layout_of
from daskmm.data.input import read_table
from daskmm.data.names import features_named
from daskmm.data.rasters import Raster
from daskmm.data.validation import check_row_count
from daskmm.engine.frames import NAME, labels_in_frame, map_frame
from daskmm.mm.checkpoint import locked_checkpoint
from daskmm.mm.context import FitContext
from daskmm.mm.driver import IterationRecord, Outcome
from daskmm.mm.fingerprints import described_parameters
from daskmm.mm.journal import Journal, Pace

# Folder of the library, as frames of its functions name it.
_LIBRARY = str(Path(__file__).parents[1])
STOPPED = "A callback asked the fit to stop: it has not converged."
# Locks of the estimators that are being fitted; they are no attributes, since a lock has no copy.
_LOCKS: WeakKeyDictionary[BaseEstimator, threading.RLock] = WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()


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
    _block_labels: Any
    inertia_: float
    cluster_sizes_: NDArray[np.float64]
    objective_history_: NDArray[np.float64]
    history_: list[IterationRecord]
    n_iter_: int
    n_passes_: int
    s_: float
    n_features_in_: int

    def _planned_layout(self, X: Any, n_clusters: int) -> Layout:
        """Row blocks of a table that might be fitted; no data are read, `self` is unchanged."""
        self._validate_params()
        layout = layout_of(read_table(self._unfitted(), X, reset=True))
        if layout.n_rows is not None:
            check_row_count(layout.n_rows, n_clusters)
        return layout

    def _unfitted(self) -> Self:
        """Copy with the same parameters and settings, and nothing of an earlier fit."""
        copied = type(self).__new__(type(self))
        copied.__dict__ = {k: v for k, v in vars(self).items() if not is_fitted_name(k)}
        return copied

    def _snapshot(self) -> Self:
        """Copy that shares all attributes, which a fit in another thread does not change."""
        copied = type(self).__new__(type(self))
        copied.__dict__ = self.__dict__
        return copied

    def _become(self, model: Self) -> None:
        """Take the fitted attributes of another estimator in one step, and drop all former ones."""
        own = {k: v for k, v in vars(self).items() if not is_fitted_name(k)}
        fitted = {k: v for k, v in vars(model).items() if is_fitted_name(k)}
        self.__dict__ = {**own, **fitted}

    @contextmanager
    def _fitting(self) -> Iterator[tuple[Self, FitContext]]:
        """Provide an unfitted copy to be fitted, and the context of its fit.

        This estimator becomes the copy once the fit is complete, or when an interrupt ends it with
        a model. It stays as it is if the fit fails.
        """
        with lock_of(self):
            model, fitted = self._unfitted(), False
            try:
                with model._context() as context:
                    yield model, context
                    fitted = True
            except KeyboardInterrupt as interrupt:
                if fitted and interrupt is context.stopped:
                    self._become(model)
                raise
            self._become(model)

    @contextmanager
    def _context(self) -> Iterator[FitContext]:
        """Context of a fit: its journal, its callbacks, and one for `verbose`."""
        pace, journal = Pace.of(self.checkpoint_every), Journal()
        callbacks = list(self.callbacks or ())
        for callback in callbacks:
            if not callable(callback):
                raise TypeError(f"callbacks must be callable, got {callback!r}.")
        with ExitStack() as stack, features_named(self):
            if self.checkpoint is not None:
                about = described_parameters(self)
                journal = stack.enter_context(locked_checkpoint(self.checkpoint, pace, about))
            if self.verbose:
                report = stack.enter_context(reported(type(self).__name__, self.max_iter))
                callbacks = [report, *callbacks]
            yield stack.enter_context(FitContext(journal, callbacks))

    def _set_labels(
        self,
        labels: Any,
        X: Any,
        function: Callable[..., NDArray] | None = None,
        *shared: Any,
    ) -> None:
        """Set the labels of the training rows, aligned with a dask DataFrame.

        Parameters
        ----------
        labels : ndarray or dask Array of shape (n_samples,)
            In the blocks in which the rows were read.
        X : as in `fit`, or a Raster
            Table that was fitted.
        function, *shared
            The block function, and its arguments, by which they can be computed; else they are
            taken as they are.
        """
        self.labels_ = labels
        if isinstance(X, Raster):
            self.labels_ = X.on_grid(labels, NAME)
        if is_frame(X):
            self._block_labels = labels
            self.labels_ = (
                labels_in_frame(np.asarray(labels), X)
                if function is None
                else map_frame(function, X, *shared)
            )

    def fit_predict(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and return the labels of the rows in the form that `predict` has.

        Parameters
        ----------
        X : as in `fit`
            Rows to be clustered.
        y : ignored
            Present for scikit-learn's interface.
        **fit_params
            Such as `sample_weight`.

        Returns
        -------
        ndarray, dask Array or Series of int32, of shape (n_samples,)
            Of a raster a DataArray on its grid.
        """
        return as_asked(self, super().fit_predict(X, y, **fit_params), X)

    def _store_history(
        self, outcome: Outcome[Any], before: Sequence[Sequence[IterationRecord]] = ()
    ) -> None:
        """Set the attributes that every outcome has.

        Parameters
        ----------
        outcome : Outcome
            Result of the passes.
        before : sequence of list of IterationRecord
            History of each start on a sample or on low-rank features.
        """
        self.inertia_ = outcome.inertia
        self.cluster_sizes_ = np.asarray(outcome.scored.cluster_weights, dtype=np.float64)
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
        coincident, annealing = outcome.scored.coincident_centers, np.isfinite(self.s_)
        # After hard steps, centres at the same place as another one have no rows.
        if coincident > (0 if annealing else n_clusters - occupied):
            advice = self._advice_on_annealing() if annealing else "Ask for fewer clusters."
            warn_convergence(
                f"{coincident} of {n_clusters} centres coincide with another one. {advice}"
            )
        if not outcome.run.converged and self.tol > 0:
            last = f": the last was at power {self.s_:.3g}" if annealing else ""
            warn_convergence(
                f"Not converged in max_iter={self.max_iter} iterations{last}. Raise max_iter"
                f"{' or eta' if hasattr(self, 'eta') else ''}."
            )

    def _advice_on_annealing(self) -> str:
        """What to do about centres that have not separated."""
        given = self.get_params(deep=False)
        hot = "a lower s0" if given["s0"] == "auto" else "s0='auto' or a lower s0"
        polish = "" if given["polish"] else ", or polish=True"
        more = "more max_iter" if polish else "or more max_iter"
        return f"Annealing that begins too hot ends so: try {hot}, {more}{polish}."

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the fitted model as a zarr group, to be read by `daskmm.load`.

        Parameters
        ----------
        path : str or Path
            Also an URL that fsspec knows, such as ``s3://bucket/model``.
        overwrite : bool
            Whether a model that is there already may be replaced. On disk a crash leaves the
            former model or the new one; on an object store possibly neither.

        Raises
        ------
        FileExistsError
            If the path exists, unless `overwrite` is set and it holds a model.

        Notes
        -----
        Places to write to (`checkpoint`, a path as `gram`) and callbacks are not saved.
        """
        check_is_fitted(self)
        _models.save(self, path, overwrite)

    def __getstate__(self) -> dict[str, Any]:
        """Without labels that are lazy, whose graph would carry the data, or on a grid."""
        state = dict(super().__getstate__())
        state.pop("_block_labels", None)
        labels = state.get("labels_")
        if dask.is_dask_collection(labels) or hasattr(labels, "dims"):
            del state["labels_"]
        return state


def lock_of(estimator: BaseEstimator) -> threading.RLock:
    """Return the lock that a thread holds while it fits or updates an estimator."""
    with _LOCKS_LOCK:
        return _LOCKS.setdefault(estimator, threading.RLock())


def warn_convergence(message: str) -> None:
    """Issue a ConvergenceWarning to the caller of the library."""
    warn_user(message, ConvergenceWarning)


def warn_user(message: str, category: type[Warning]) -> None:
    """Issue a warning that points at the first caller outside of this library."""
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(message, category, stacklevel=level)
