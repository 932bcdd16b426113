"""Fits that replace all fitted attributes of an estimator at once, or leave it as it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from sklearn.base import BaseEstimator

from daskmm.cluster._progress import reported
from daskmm.data.names import features_named
from daskmm.mm.checkpoint import locked_checkpoint
from daskmm.mm.context import FitContext
from daskmm.mm.driver import IterationRecord, Outcome
from daskmm.mm.fingerprints import described_parameters
from daskmm.mm.journal import Journal, Pace

E = TypeVar("E", bound=BaseEstimator)

# Locks of the estimators that are being fitted. They are not attributes, since locks cannot be
# copied.
_LOCKS: WeakKeyDictionary[BaseEstimator, threading.RLock] = WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()


# Attributes of a fit whose names do not end in an underscore.
_PRIVATE = ("_n_features_out", "_block_labels", "_sparse_rows", "_variance", "_soft_means")


def is_fitted_name(name: str) -> bool:
    """Return whether fits set an attribute; parameters and scikit-learn's own are excluded."""
    return (name.endswith("_") and not name.startswith("_")) or name in _PRIVATE


def lock_of(estimator: BaseEstimator) -> threading.RLock:
    """Return the lock that a thread holds while it fits or updates an estimator."""
    with _LOCKS_LOCK:
        return _LOCKS.setdefault(estimator, threading.RLock())


def unfitted(estimator: E) -> E:
    """Return a copy with the same parameters and settings, and nothing of an earlier fit.

    Its parameters are Python's numbers where those of the estimator are numpy's, whose products may
    overflow.
    """
    copied: E = object.__new__(type(estimator))
    own = {k: v for k, v in vars(estimator).items() if not is_fitted_name(k)}
    copied.__dict__ = {k: v.item() if isinstance(v, np.generic) else v for k, v in own.items()}
    return copied


def replace_fitted(estimator: E, model: E) -> None:
    """Replace the fitted attributes of an estimator by those of another one, in one step."""
    own = {k: v for k, v in vars(estimator).items() if not is_fitted_name(k)}
    fitted = {k: v for k, v in vars(model).items() if is_fitted_name(k)}
    estimator.__dict__ = {**own, **fitted}


def set_fitted(model: BaseEstimator, *found: Mapping[str, Any]) -> None:
    """Set fitted attributes, given by their names, of an estimator that is being fitted."""
    for attributes in found:
        model.__dict__.update(attributes)


def drop_labels(model: BaseEstimator) -> None:
    """Delete the attributes of an updated model that describe only the rows of its fit."""
    for name in ("labels_", "_block_labels", "_variance", "_soft_means"):
        model.__dict__.pop(name, None)


@contextmanager
def fitting(estimator: E) -> Iterator[tuple[E, FitContext]]:
    """Provide an unfitted copy to be fitted, and the context of its fit.

    The estimator gets the fitted attributes of the copy once the fit is complete, or when an
    interrupt ends it with a model. It stays as it is if the fit fails.
    """
    with lock_of(estimator):
        model, fitted = unfitted(estimator), False
        try:
            with _context(model) as context:
                yield model, context
                fitted = True
        except KeyboardInterrupt as interrupt:
            if fitted and interrupt is context.stopped:
                replace_fitted(estimator, model)
            raise
        replace_fitted(estimator, model)


@contextmanager
def _context(estimator: Any) -> Iterator[FitContext]:
    """Provide the context of a fit: its journal, and its callbacks, one for `verbose` included."""
    pace, journal = Pace.of(estimator.checkpoint_every), Journal()
    callbacks = list(estimator.callbacks or ())
    for callback in callbacks:
        if not callable(callback):
            raise TypeError(f"callbacks must be callable, got {callback!r}.")
    with ExitStack() as stack, features_named(estimator):
        if estimator.checkpoint is not None:
            about = described_parameters(estimator)
            journal = stack.enter_context(locked_checkpoint(estimator.checkpoint, pace, about))
        if estimator.verbose:
            name = type(estimator).__name__
            report = stack.enter_context(reported(name, estimator.max_iter))
            callbacks = [report, *callbacks]
        yield stack.enter_context(FitContext(journal, callbacks))


def attributes_of_outcome(
    outcome: Outcome[Any], before: Sequence[Sequence[IterationRecord]] = ()
) -> dict[str, Any]:
    """Return the fitted attributes that every outcome of the MM driver has.

    `before` is the history of each start on a sample or on low-rank features.
    """
    history = outcome.run.history
    # The state of a fit that was stopped holds the power of the next step, which was not taken.
    annealing = outcome.run.stage == "anneal" and len(history) > 0
    return {
        "inertia_": outcome.inertia,
        "cluster_sizes_": np.asarray(outcome.scored.cluster_weights, dtype=np.float64),
        "history_": [*before[outcome.best], *history] if before else history,
        "objective_history_": np.array([record.objective for record in history]),
        "n_iter_": outcome.n_iter,
        "s_": history[-1].s if annealing else outcome.run.state.s,
    }
