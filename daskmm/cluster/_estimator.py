"""Base of all estimators: stopping parameters, labels, a table of the clusters, saving."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted

from daskmm._dask import is_dask_collection
from daskmm.cluster import _models
from daskmm.cluster._docs import documented
from daskmm.cluster._fitting import replace_fitted, unfitted
from daskmm.cluster._naming import level_shares, summary_frame
from daskmm.cluster._output import as_asked
from daskmm.cluster._parameters import CHECKPOINT, cluster_range
from daskmm.cluster._sklearn import Interval, StrOptions
from daskmm.cluster._summary import fitted_html
from daskmm.data.blocks import Layout, layout_of
from daskmm.data.input import read_table
from daskmm.data.validation import check_row_count
from daskmm.engine.speed import with_measured_loading
from daskmm.mm.driver import IterationRecord
from daskmm.planning import Plan

T = TypeVar("T", bound=type)


class _NoFields:
    """An absent attribute."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        raise AttributeError("__dataclass_fields__")


def estimator(cls: T) -> T:
    """Class decorator of estimators: insert the shared texts, and hide the dataclass.

    A dataclass makes the constructor of an estimator from its own parameters and those of its base.
    dask makes tokens and copies of dataclasses from their parameters only, so it would take fitted
    models with equal parameters for the same.
    """
    cls.__dataclass_fields__ = _NoFields()  # type: ignore[attr-defined]
    return documented(cls)


@documented
@dataclass(eq=False, repr=False, kw_only=True)
class MMClusterer(ClusterMixin, BaseEstimator):
    """Base of all estimators that the MM driver fits."""

    max_iter: int = 300
    random_state: Any = None
    verbose: int = 0
    callbacks: list[Callable[[Any], object]] | None = None
    checkpoint: str | Path | None = None
    checkpoint_every: int | float | str = 1

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

    labels_: Any = field(init=False)
    _block_labels: Any = field(init=False)
    inertia_: float = field(init=False)
    cluster_sizes_: NDArray[np.float64] = field(init=False)
    objective_history_: NDArray[np.float64] = field(init=False)
    history_: list[IterationRecord] = field(init=False)
    n_iter_: int = field(init=False)
    n_passes_: int = field(init=False)
    s_: float = field(init=False)
    n_features_in_: int = field(init=False)
    mean_: NDArray[np.float64] = field(init=False)
    scale_: NDArray[np.float64] = field(init=False)

    def fit_predict(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit, and return the labels of the rows in the form that `predict` has.

        Parameters
        ----------
        X : as in `fit`
            Rows to be clustered.
        [y, fit_params]

        Returns
        -------
        ndarray, dask Array or Series of int32, of shape (n_samples,)
            A raster gives a DataArray on its grid.
        """
        return as_asked(self, super().fit_predict(X, y, **fit_params), X)

    def plan(self, X: Any, *, measure: bool = False) -> Plan:
        """Return what a fit to `X` will cost.

        Parameters
        ----------
        X : as in `fit`
            Table that might be fitted.
        [measure]

        Returns
        -------
        Plan
            Passes or sweeps, memory and, for a Gram store, disk.

        Raises
        ------
        ValueError
            If there is too little memory. The message has the numbers and says what to change.
        """
        self._validate_params()
        return self._planned(X, measure)

    def _planned(self, X: Any, measure: bool, n_levels: int = 0) -> Plan:
        """Return the plan; `n_levels` is the number of levels of categories."""
        table = read_table(unfitted(self), X, reset=True)
        layout = replace(layout_of(table), n_levels=n_levels)
        if layout.n_rows is not None:
            check_row_count(layout.n_rows, self._least_rows())
        model = unfitted(self)  # with the parameters as Python's numbers
        replace_fitted(model, self)
        plan = model._plan_of(with_measured_loading(table, layout) if measure else layout, True)
        if layout.n_rows is None or layout.lazy or layout.sparse or isinstance(X, np.ndarray):
            return plan
        # The given table (or what DuckDB keeps of it) is in memory beside the array made of it.
        given = layout.n_rows * layout.bytes_per_row
        return replace(plan, peak_bytes_per_worker=(plan.peak_bytes_per_worker or 0) + given)

    @abstractmethod
    def _plan_of(self, layout: Layout, timed: bool = False) -> Plan:
        """Return the cost of a fit to such a table; raise if memory cannot hold it."""

    def _least_rows(self) -> int:
        """Return the smallest number of rows that can be fitted."""
        return cluster_range(self)[0]

    @property
    def summary_(self) -> Any:
        """The clusters as a pandas DataFrame: name, size, share, and means in the input's units.

        A cluster is named by the features in which it is far from the mean of the data and from
        half of the other clusters. Sizes are sums of sample weights, or numbers of rows if there
        are no weights. Columns ``mean_…`` are the means of the cluster's rows (`cluster_means_`);
        for "cosine", columns ``direction_…`` are their mean direction. If centres are not means, as
        for "manhattan", "euclidean" and mean shift, columns ``center_…`` are the centres. Kernel
        models have no centres, so they have no table. For ``distortion="mixed"`` columns are
        ``mean_…`` for numbers, dates and seasons (the day of the year, from 1), ``share_…`` (of
        true) for flags, and ``commonest_…`` for categories (see `level_shares_`); a value is
        missing where `value_shares_` is 0. Columns ``missing_…`` are the shares of the rows that
        lack a value.
        """
        return summary_frame(self)

    @property
    def level_shares_(self) -> Any:
        """For ``distortion="mixed"``: the share of every level in every cluster, as a DataFrame."""
        if not hasattr(self, "columns_"):
            raise AttributeError("Only fitted models with distortion='mixed' have level_shares_.")
        return level_shares(self)

    def _repr_html_inner(self) -> str:
        diagram: str = super()._repr_html_inner()
        return diagram + fitted_html(self)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        bundle: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] += fitted_html(self)
        return bundle

    def save(self: BaseEstimator, path: str | Path, overwrite: bool = False) -> None:
        """Write the fitted model to a file of the safetensors format, to be read by `daskmm.load`.

        Parameters
        ----------
        path : str or Path
            Path of the file, or a URL that fsspec knows, such as ``s3://bucket/model``.
        overwrite : bool
            Whether a model at this path may be replaced. If the process crashes meanwhile, a disk
            holds the former model or the new one.

        Raises
        ------
        FileExistsError
            If the path exists, unless `overwrite` is set and it holds a model.

        Notes
        -----
        Parameters that name a place to write to (`checkpoint`, a path as `gram`) and callbacks are
        not saved.
        """
        check_is_fitted(self)
        _models.save(self, path, overwrite)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without lazy labels, which would hold the data, and labels on a grid."""
        state = dict(super().__getstate__())
        state.pop("_block_labels", None)
        labels = state.get("labels_")
        if is_dask_collection(labels) or hasattr(labels, "dims"):
            del state["labels_"]
        return state
