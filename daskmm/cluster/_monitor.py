"""Watch batches that arrive one after the other for drift; public as `daskmm.monitor`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from numbers import Integral
from operator import add
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from daskmm.cluster._batches import batch_number, numbered_batches
from daskmm.cluster._centers import CenterClusterer
from daskmm.cluster._findings import (
    Finding,
    Look,
    Statistic,
    Tested,
    features_of,
    numbers_of_tests,
    statistics_of,
)
from daskmm.cluster._fitted_centers import FittedCenters
from daskmm.cluster._mixed import unseen_levels
from daskmm.data.names import counted, features_named
from daskmm.engine.threads import one_blas_thread
from daskmm.kmeans.drift import batch_sums
from daskmm.numerics.drift import BatchSums, in_units, units_of
from daskmm.numerics.forecast import ENOUGH, SEASONS, Between, Series, deviation
from daskmm.storage.digests import digest
from daskmm.storage.records import read_state, registered, write_state

FloatArray = NDArray[np.float64]

# Shares of the probability of a false alarm (`level`) for tests of the latest batch, of the latest
# half season, and of the latest season of batches.
_SHARES = (0.1, 0.3, 0.6)
# Share of `level` for the first looks, and the number of days over which the rest is spread.
_FIRST, _YEAR = 0.25, 365

# Largest number of values that are kept of known batches.
_MOST_VALUES = 1 << 18

# It is registered here because `numerics` does not import storage.
registered(Series)


@dataclass(repr=False)
class Monitor:
    """Compare batches with earlier ones; `daskmm.monitor` makes it.

    Attributes
    ----------
    model : fitted estimator
        Model whose columns and clusters are compared.
    level, tolerance, season
        Parameters of `daskmm.monitor`.
    origin, units : ndarray of shape (n_statistics,)
        Statistics of the reference, and the standard deviations of its rows, which are the units of
        shifts.
    reference_cost : float
        Mean distance of the rows of the reference to their centres.
    whole : Series or None
        The reference as one batch, if its batches are not known.
    series : Series
        Statistics of the latest batches. A statistic that a look found to differ is moved to the
        limit of what chance allows, so that a bad batch does not spoil the later forecasts.
    looks : list of Look
        Results of all looks so far, the latest last.
    latest : ndarray of shape (n_statistics,) or None
        Statistics of the latest look.
    jumps : ndarray of shape (2, n_statistics) or None
        Shifts that the latest look found, and in how many of the latest batches each was found.
    unseen : list of list
        Pairs of a column and a level that a look has seen and the fit has not.
    measured_at : str
        Digest of the clusters with which the batches were measured; by default the model's present
        clusters.
    assumed : list of int
        Numbers of batches that `renew` assumed for rows that no look had seen. The date of a later
        look may give it one of these numbers.
    """

    model: Any
    level: float
    tolerance: float
    season: int
    origin: FloatArray
    units: FloatArray
    reference_cost: float
    whole: Series | None
    series: Series
    looks: list[Look] = field(default_factory=list)
    latest: FloatArray | None = None
    jumps: FloatArray | None = None
    unseen: list[list[Any]] = field(default_factory=list)
    measured_at: str = ""
    assumed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.measured_at = self.measured_at or _digest_of(self.model)

    @property
    def stale(self) -> bool:
        """Whether the model has changed since the batches were measured."""
        return self.measured_at != _digest_of(self.model)

    def look(self, X: Any, batch: Any = None, feature_dim: str | None = None) -> Look:
        """Compare a new batch with earlier ones, in one pass over it.

        One more pass over categorical columns finds levels that the fit did not see.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            The rows of one batch, such as a day.
        batch : int or date, optional
            Number or date of the batch, which gives its place in the season even if batches are
            missing. By default it follows the latest batch.
        feature_dim : str, optional
            Dimension of the features of an xarray DataArray or Dataset; by default that of the fit.

        Returns
        -------
        Look
            The findings, which are also appended to `looks`.

        Raises
        ------
        ValueError
            If the model has changed since the batches were measured: see `renew`.
        """
        if self.stale:
            raise ValueError(
                "The model has changed since the batches were measured. Call renew(X) first: X are "
                "usual rows, such as those of the partial_fit that changed the model."
            )
        sums, unseen = _sums_and_unseen(self.model, X, feature_dim)
        new = self._measured(sums, batch)
        statistics = statistics_of(self.model, sums)
        place = self._place(new, batch is not None)
        tested = self._tested(new, statistics, place)
        values = np.stack([(self.series + new)[-n:].values.mean(axis=0) for n in tested.lengths])
        raw = values * self.units + self.origin + _subtracted(self.model, statistics)
        first, still = self._told_unseen(unseen, sums.n_rows)
        found = Look(
            len(self.looks) + 1,
            int(new.numbers[0] if place is None else self.series.numbers[place]),
            sums.n_rows,
            self.level,
            sums.cost,
            self.reference_cost,
            [*first, *tested.findings(self.level, statistics, raw, self.units)],
            tested.by_subject(statistics),
            still,
        )
        if place is None:
            self._remember(new, tested)
        self.looks.append(found)
        return found

    def renew(self, X: Any, feature_dim: str | None = None) -> Self:
        """Continue with a model that has changed, as by `partial_fit`, in one pass over rows.

        Shares, costs and means of clusters depend on the centres with which they were measured, so
        these rows become their reference. The series of columns over all rows remain. If the latest
        look found these rows to differ, they count as normal from now on: each shift is taken as a
        lasting step of the column, from which its series continues.

        The count of looks and the share of the level that they have used continue.

        Parameters
        ----------
        X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
            Rows of one batch, such as those that changed the model.
        feature_dim : str, optional
            Dimension of the features of an xarray DataArray or Dataset; by default that of the fit.

        Returns
        -------
        self
        """
        sums, _ = _sums_and_unseen(self.model, X, feature_dim)
        statistics = statistics_of(self.model, sums)
        origin, units = units_of(sums)
        if len(origin) != len(self.origin):
            raise ValueError("The model has another number of clusters or columns: call monitor.")
        moved = np.array([each.cluster is not None for each in statistics])
        self.origin = np.where(moved, origin, self.origin)
        self.units = np.where(moved, units, self.units)
        new, known = self._measured(sums, None), ~moved
        if self.latest is None or not np.allclose(self.latest[known], new.values[0, known]):
            alike = np.isclose(self.series.values[:, known], new.values[0, known]).all(axis=1)
            if alike.any():
                self._move_last(int(np.flatnonzero(alike)[-1]))
            else:  # no look has seen these rows
                self._remember(new, self._tested(new, statistics, None))
                self.assumed.append(int(new.numbers[0]))
        assert self.jumps is not None
        (jumps, lengths), series, n = self.jumps, self.series, len(self.series)
        earlier = np.arange(n)[:, None] < n - lengths
        values, variances = series.values + jumps * earlier, series.variances.copy()
        values[-1], variances[-1] = new.values[0], new.variances[0]
        variances[:-1, moved] = np.inf
        self.series = Series(series.numbers, values, variances)
        if self.whole is not None:
            hidden = np.where(moved, np.inf, self.whole.variances)
            self.whole = Series(self.whole.numbers, self.whole.values + jumps, hidden)
        self.jumps = np.zeros_like(self.jumps)
        self.reference_cost, self.measured_at = sums.cost, _digest_of(self.model)
        return self

    def _measured(self, sums: BatchSums, batch: Any) -> Series:
        """Return the statistics of a batch."""
        following = int(self.series.numbers.max()) + 1 if len(self.series) else 0
        number = following if batch is None else batch_number(batch)
        return _series([number], [sums], self.origin, self.units)

    def _place(self, new: Series, numbered: bool) -> int | None:
        """Return the place of a known batch, found by its number or by equal statistics."""
        if numbered:
            drifted = [look.batch for look in self.looks if look.drifted]
            own = ~np.isin(new.numbers[0], drifted + self.assumed)
            same = (self.series.numbers == new.numbers[0]) & own
        else:
            same = np.isclose(self.series.values, new.values, rtol=1e-9, atol=1e-9).all(axis=1)
        places = np.flatnonzero(same)
        return int(places[-1]) if len(places) else None

    def _tested(self, new: Series, statistics: list[Statistic], place: int | None) -> Tested:
        """Test a batch alone, and the batches of the latest half season and season together.

        A batch that is known already is tested in its former place.
        """
        number, season, n = len(self.looks) + 1, self.season, len(self.series)
        between, seasonal = None, place is None and n >= ENOUGH * season
        if place is not None:
            between = Between.nothing(len(self.units))
        elif self.whole is not None:
            of_steps = Between.of_steps(self.series)
            seasonal = seasonal and of_steps.differs
            between = None if seasonal else of_steps
        kinds = np.array([each.kind for each in statistics])
        means = [kinds == "column", kinds == "column in cluster"]
        lengths = [1]
        if place is None and n >= 2 * season:
            lengths = sorted({1, (season + 1) // 2, season})
        shares = np.divide(_SHARES[-len(lengths) :], sum(_SHARES[-len(lengths) :]))
        spent = _FIRST / (number * (number + 1)) + (1.0 - _FIRST) / _YEAR
        times = numbers_of_tests(statistics) / spent
        latest = self.series + new
        # The season of a date moves with the calendar, which is no drift.
        seasons = {each.name for each in getattr(self.model, "columns_", ()) if each.is_season}
        calendar = [about.column in seasons and about.kind != "missing" for about in statistics]
        deviations, p_values = [], []
        for length, share in zip(lengths, shares, strict=True):
            earlier = latest[:-length][-SEASONS * season :]
            if place is not None:
                earlier = self.series[place : place + 1]
            elif self.whole is not None and not seasonal:
                earlier = self.whole + earlier
            found = deviation(earlier, latest[-length:], season, seasonal, between, means)
            adjusted = np.minimum(found.p_values * times / share, 1.0)
            large = (np.abs(found.shifts) > self.tolerance) & ~np.array(calendar)
            p_values.append(np.where(large, adjusted, 1.0))
            deviations.append(found)
        limits = deviations[0].limits(self.level * shares[0] / times)
        return Tested(lengths, deviations, np.stack(p_values), limits)

    def _remember(self, new: Series, tested: Tested) -> None:
        """Add a batch to the series, and keep the values that `renew` needs."""
        alone = tested.deviations[0].shifts
        beyond = alone - np.clip(alone, -tested.limits, tested.limits)
        added = replace(new, values=new.values - beyond)
        self.series = (self.series + added)[-_kept(self.season, len(self.units)) :]
        self.latest = new.values[0]
        self.jumps = tested.jumps(self.level)
        self.assumed = [number for number in self.assumed if number != new.numbers[0]]

    def _move_last(self, place: int) -> None:
        """Put a known batch at the end of the series, as if the latest look had seen it."""
        before, after = self.series[:place], self.series[place + 1 :]
        self.series = before + after + self.series[place : place + 1]
        self.jumps = np.zeros((2, len(self.units)))

    def _told_unseen(
        self, counts: dict[tuple[str, Any], int], n_rows: int
    ) -> tuple[list[Finding], list[Finding]]:
        """Return levels that the fit did not see: new ones, and those reported before."""
        first: list[Finding] = []
        still: list[Finding] = []
        for key, count in sorted(counts.items(), key=lambda item: -item[1]):
            told = list(key) in self.unseen
            (still if told else first).append(Finding("unseen", *key, None, count / n_rows))
        self.unseen += [[each.column, each.level] for each in first]
        return first, still

    def __repr__(self) -> str:
        """Return the model, how many batches are known, and the latest look."""
        looks, n = counted(len(self.looks), "look"), counted(len(self.series), "batch")
        last = f", the last {self.looks[-1]!r}" if self.looks else ""
        stale = ", to be renewed: the model has changed" if self.stale else ""
        return f"<Monitor of {type(self.model).__name__}: {n}, {looks}{last}{stale}>"

    def save(self, path: str | PathLike[str]) -> None:
        """Write the monitor without its model to a file; an existing file is replaced."""
        write_state(Path(path), [getattr(self, each.name) for each in fields(self)[1:]])

    @classmethod
    def load(cls, path: str | PathLike[str], model: Any) -> Monitor:
        """Read a monitor that `save` wrote; it is `stale` if the model is another one."""
        return cls(model, *read_state(Path(path)))


def monitor(
    model: Any,
    X: Any,
    *,
    batches: Any = None,
    season: int = 7,
    tolerance: float = 0.1,
    level: float = 0.05,
    feature_dim: str | None = None,
) -> Monitor:
    """Watch batches that arrive one after the other, such as days, for drift.

    A look compares a batch with a forecast from earlier batches, and does the same for the means of
    the latest half season and season of batches (four and seven days of a week). It tests the mean
    of each column, its share of missing values, and the shares, mean distances and column means of
    the clusters. The unit of the tests is the batch, not the row: batches of the reference and of
    earlier looks show how much batches usually differ. Forecasts follow level, trend and season of
    the last eight seasons, so that differences between weekdays or between seasons of the year are
    no findings. Until three seasons of batches are known, the forecast is the mean of all known
    batches.

    Parameters
    ----------
    model : fitted KMeans, PowerKMeans or EntropyPowerKMeans
        Model whose columns and clusters are compared.
    X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
        Reference rows, such as those of the fit, which are read in one pass; or the path of a
        monitor of this model that `Monitor.save` has written. With a path, no other parameter may
        be given.
    batches : str, or array-like of shape (n_samples,), optional
        Batch of each reference row, or the name of a column of `X` that holds it: dates, or numbers
        in the order of time. Without it, rows count as independent draws until looks show how much
        batches differ: the first batches are compared with the reference as a whole, later ones
        with the earlier looks.
    season : int, default=7
        Number of batches after which a season repeats, such as 7 days of a week; 1 for no season.
    tolerance : float, default=0.1
        Least shift that counts as a finding, in standard deviations of the rows of the reference.
    level : float, default=0.05
        Probability of any false alarm in the first year of daily looks (365); in each later year it
        is three quarters of that.
    feature_dim : str, optional
        Dimension of the features of an xarray DataArray or Dataset; by default that of the fit.

    Returns
    -------
    Monitor
        Its method `look` compares the next batch, `renew` continues after the model has changed,
        and `save` writes the monitor to a file.

    Notes
    -----
    Means of at least 30 rows are treated as normally distributed; means of fewer rows are not
    tested. Columns are tested within clusters for at most 16,384 pairs of a column (or level) and a
    cluster.

    Examples
    --------
    >>> import numpy as np
    >>> import daskmm
    >>> X = np.random.default_rng(0).normal(size=(2000, 2))
    >>> watch = daskmm.monitor(daskmm.KMeans(2, random_state=0).fit(X[:1000]), X[:1000])
    >>> watch.look(X[1000:]).drifted
    False
    >>> watch.look(X[1000:] + 1).drifted
    True
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be a probability between 0 and 1, got {level!r}.")
    if not (isinstance(season, Integral) and season >= 1):
        raise ValueError(f"season must be a number of batches, got {season!r}.")
    if not tolerance >= 0.0:
        raise ValueError(f"tolerance must not be negative, got {tolerance!r}.")
    if not isinstance(model, CenterClusterer):
        raise TypeError(
            "monitor needs a KMeans, PowerKMeans or EntropyPowerKMeans, with centres, "
            f"and model is a {type(model).__name__}. Follow score(X) of other models."
        )
    check_is_fitted(model, "cluster_centers_")
    if isinstance(X, str | PathLike):
        return Monitor.load(X, model)
    numbers, codes = (None, None) if batches is None else numbered_batches(X, batches)
    sums = _sums_of(model, X, codes, feature_dim)
    total = reduce(add, sums.values())
    origin, units = units_of(total)
    if numbers is None:
        whole, series = _series([-1], [total], origin, units), _series([], [], origin, units)
    else:
        known = sorted(sums)[-_kept(season, len(units)) :]
        own_numbers = [int(numbers[code - 1]) for code in known]
        whole, series = None, _series(own_numbers, [sums[code] for code in known], origin, units)
    own = float(level), float(tolerance), int(season)
    return Monitor(model, *own, origin, units, total.cost, whole, series)


def _kept(season: int, n_statistics: int) -> int:
    """Return how many batches are kept: as forecasts need, or more if the file stays small."""
    return max((SEASONS + 1) * season, _MOST_VALUES // n_statistics)


def _series(
    numbers: list[int], sums: list[BatchSums], origin: FloatArray, units: FloatArray
) -> Series:
    """Return the statistics of batches."""
    if not sums:
        nothing = np.empty((0, len(units)))
        return Series(np.empty(0, dtype=np.int64), nothing, nothing)
    parts = (
        np.stack(each) for each in zip(*(in_units(s, origin, units) for s in sums), strict=True)
    )
    return Series(np.array(numbers, dtype=np.int64), *parts)


def _sums_of(model: Any, X: Any, codes: Any, feature_dim: str | None) -> dict[int, BatchSums]:
    fitted = FittedCenters.of(model, "missing" if "columns_" in vars(model) else None)
    passes = fitted.passes(X, codes, feature_dim)
    with one_blas_thread(), features_named(model):
        return batch_sums(passes, fitted.coordinates, fitted.state)


def _sums_and_unseen(
    model: Any, X: Any, feature_dim: str | None
) -> tuple[BatchSums, dict[tuple[str, Any], int]]:
    """Return the sums of a batch, and how often levels occur that the fit did not see."""
    found = _sums_of(model, X, None, feature_dim)
    if not found:
        raise ValueError("The batch has no row with a value, so nothing can be compared.")
    unseen = unseen_levels(X, getattr(model, "columns_", ()))
    counts = Counter[str]()
    for (column, _), count in unseen.items():
        counts[column] += count
    of_features = [float(counts[name]) for name, _ in features_of(model)]
    return replace(found[1], unseen=np.array(of_features)), unseen


def _subtracted(model: Any, statistics: list[Statistic]) -> FloatArray:
    """Return the means that the model's coordinates subtract; 0 if a statistic is no mean."""
    columns = np.array([each.kind in ("column", "column in cluster") for each in statistics])
    found = np.zeros(len(statistics))
    found[columns] = np.resize(FittedCenters.of(model).coordinates.mean, columns.sum())
    return found


def _digest_of(model: Any) -> str:
    state = FittedCenters.of(model).state
    weights = state.feature_weights
    return digest(state.centers, *([] if weights is None else [weights]))
