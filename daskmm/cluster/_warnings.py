"""Warnings of fits, which point at a line of the user's code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from daskmm._dask import is_dask_collection
from daskmm.data.errors import warn_user
from daskmm.data.names import counted, feature_names, listed
from daskmm.mm.context import FitContext
from daskmm.mm.driver import Outcome

_STOPPED = "A callback asked the fit to stop: it has not converged."


def warn_convergence(message: str) -> None:
    """Issue a ConvergenceWarning to the caller of the library."""
    warn_user(message, ConvergenceWarning)


def warn_of_identifiers(model: Any, features: Sequence[int]) -> None:
    """Warn of features that number the rows, as far as the sample can tell."""
    if features:
        names = [f"{feature_names(model)[feature]!r}" for feature in features]
        told = (
            f"Column {names[0]} has a different integer in every row. If it only identifies rows, "
            "leave it out (--columns of the command): it was clustered like a measurement."
        )
        if len(names) > 1:
            told = (
                f"Columns {listed(names)} have different integers in every row. If they only "
                "identify rows, leave them out (--columns of the command): they were clustered "
                "like measurements."
            )
        warn_user(told, UserWarning)


def warn_of_empty_rows(labels: Any, mixed: bool) -> None:
    """Warn if labels in memory show that rows have no value, and so no cluster.

    Levels of mixed columns that the fit did not see may count as missing values.
    """
    if is_dask_collection(labels):
        return
    n_empty = int(np.count_nonzero(np.asarray(labels) == -1))
    if n_empty:
        has, gets = ("has", "it gets") if n_empty == 1 else ("have", "they get")
        kept = "that the fit knows" if mixed else "at all"
        warn_user(
            f"{counted(n_empty, 'row')} of X {has} no value {kept}; {gets} the label -1 "
            "(no cluster).",
            UserWarning,
        )


def was_stopped(context: FitContext) -> bool:
    """Return whether a fit was stopped, and warn if a callback asked for it.

    An interrupt is raised at the end of the fit instead.
    """
    if isinstance(context.stopped, StopIteration):
        warn_convergence(_STOPPED)
    return context.stopped is not None


def warn_of_outcome(
    parameters: Mapping[str, Any],
    outcome: Outcome[Any],
    n_clusters: int,
    s: float,
    context: FitContext,
) -> None:
    """Warn of a fit that did not converge, or that found fewer clusters than asked for.

    `parameters` are those of the estimator, and `s` is the power with which the fit ended.
    """
    if was_stopped(context):
        return
    occupied = int(np.count_nonzero(outcome.scored.cluster_weights))
    if occupied < n_clusters:
        warn_convergence(
            f"Number of distinct clusters ({occupied}) found smaller than n_clusters "
            f"({n_clusters}): the data may have too few distinct rows."
        )
    coincident, annealing = outcome.scored.coincident_centers, np.isfinite(s)
    # After hard steps, a centre that coincides with another one has no rows.
    if coincident > (0 if annealing else n_clusters - occupied):
        advice = _on_annealing(parameters) if annealing else "Ask for fewer clusters."
        warn_convergence(
            f"{coincident} of {n_clusters} centres coincide with another one. {advice}"
        )
    if not outcome.run.converged and parameters["tol"] > 0:
        last = f": the last was at power {s:.3g}" if annealing else ""
        warn_convergence(
            f"Not converged in max_iter={parameters['max_iter']} iterations{last}. Raise max_iter"
            f"{' or eta' if 'eta' in parameters else ''}."
        )


def _on_annealing(parameters: Mapping[str, Any]) -> str:
    """Return what to do about centres that have not separated."""
    hot = "a lower s0" if parameters["s0"] == "auto" else "s0='auto' or a lower s0"
    polish = "" if parameters["polish"] else ", or polish=True"
    more = "more max_iter" if polish else "or more max_iter"
    return f"An annealing that begins too hot ends like this: try {hot}, {more}{polish}."
