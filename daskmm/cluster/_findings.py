"""What a monitor finds in a batch: columns and clusters that differ from their forecast."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daskmm.data.names import counted, feature_names
from daskmm.numerics.drift import BatchSums
from daskmm.numerics.forecast import Deviation
from daskmm.storage.records import registered

FloatArray = NDArray[np.float64]

# Kinds of statistics, in their order, and the share of the probability of a false alarm that each
# kind gets.
KINDS = {"column": 0.6, "missing": 0.05, "share": 0.1, "cost": 0.05, "column in cluster": 0.2}

# Larger shifts, in standard deviations, are given in the units of the column: it hardly varied
# before, or its units have changed.
_HUGE = 1000.0


@registered
@dataclass(frozen=True)
class Finding:
    """Something in which a batch differs from earlier batches.

    Attributes
    ----------
    kind : {"unseen", "column", "missing", "share", "cost", "column in cluster"}
        What differs. "unseen": a level occurs that the fit did not see; "column": the mean of a
        column (the share of a level) in all rows; "missing": a column's share of missing values;
        "share", "cost": the share or the mean distance of a cluster; "column in cluster": the mean
        of a column in the rows of a cluster.
    column : str or None
        Name of the column; None for a finding about a cluster's share or mean distance.
    level : object
        Level of a categorical column; None for other columns.
    cluster : int or None
        Number of the cluster; None if all rows are meant.
    found, expected : float
        The mean or the share, and its forecast.
    shift : float
        The difference in standard deviations of the rows of the reference; NaN for unseen levels.
    p_value : float
        Probability of such a difference by chance, adjusted for all tests of this look and for the
        number of looks; 0 for unseen levels.
    n_batches : int
        Number of latest batches whose mean differs from the forecast.
    """

    kind: str
    column: str | None
    level: Any
    cluster: int | None
    found: float
    expected: float = 0.0
    shift: float = np.nan
    p_value: float = 0.0
    n_batches: int = 1

    def __str__(self) -> str:
        """Say what differs, by how much, and how certain that is."""
        if self.kind == "unseen":
            return f"{self._difference()}"
        latest = f" over the last {self.n_batches} batches" if self.n_batches > 1 else ""
        chance = f"p = {self.p_value:.2g}, adjusted for all tests"
        return f"{self._difference()}{latest} ({chance})"

    def _difference(self) -> str:
        column, cluster = f"column {self.column!r}", f"cluster {self.cluster}"
        share = f"{self.found:.1%} of the rows"
        before = f"instead of {max(0.0, self.expected):.1%}"  # a forecast may be negative
        inside = "" if self.cluster is None else f" in {cluster}"
        if self.kind == "unseen":
            return f"{column} has the level {self.level!r}, which the fit did not see, in {share}"
        if self.kind == "missing":
            return f"{column} lacks {self.found:.1%} of its values {before}"
        if self.kind == "share":
            return f"{cluster} has {share} {before}"
        if self.kind == "cost":
            ratio = self.found / self.expected if self.expected > 0 else np.inf
            return f"distances in {cluster} are {ratio:.3g} times as long"
        if self.level is not None:
            return f"{column} has the level {self.level!r} in {share} {before}{inside}"
        if abs(self.shift) >= _HUGE:
            return (
                f"the mean of {column}{inside} is {self.found:.6g} instead of {self.expected:.6g}"
            )
        way = "above" if self.shift > 0 else "below"
        size = f"{abs(self.shift):.2g}"
        units = "standard deviation" if size == "1" else "standard deviations"
        return f"the mean of {column}{inside} is {size} {units} of single rows {way} its forecast"


@registered
@dataclass(frozen=True, eq=False, repr=False)
class Look:
    """Result of the comparison of one batch with earlier ones.

    Attributes
    ----------
    number : int
        Number of the look, from 1.
    batch : int
        Number of the batch; for a date, the days since 1970.
    n_rows : int
        Number of rows of the batch.
    level : float
        Probability of a false alarm in a year of daily looks.
    cost, reference_cost : float
        Mean distance (unsquared) of the rows of the batch to their centres, and that of the rows of
        the reference.
    findings : list of Finding
        What differs: unseen levels first, then the others by increasing p-value. A column that
        differs in several ways is listed once.
    p_values : dict of str to float
        For each column and each cluster, the least adjusted p-value of its tests.
    still_unseen : list of Finding
        Levels that the fit did not see, and that an earlier look has reported already. They are no
        drift, but `predict` and `partial_fit` need unknown="missing" for these rows.
    """

    number: int
    batch: int
    n_rows: int
    level: float
    cost: float
    reference_cost: float
    findings: list[Finding]
    p_values: dict[str, float]
    still_unseen: list[Finding] = field(default_factory=list)

    def __repr__(self) -> str:
        """Return what differs in words; the numbers are attributes."""
        found = "; ".join(self.reasons) or "no drift"
        if self.still_unseen:
            found += f"; still: {'; '.join(map(str, self.still_unseen))}"
        return f"<Look {self.number}: {counted(self.n_rows, 'row')}, {found}>"

    @property
    def cost_ratio(self) -> float:
        """The cost as a multiple of that of the reference; infinite if only the latter is 0."""
        if self.reference_cost > 0:
            return self.cost / self.reference_cost
        return np.inf if self.cost > 0 else 1.0

    @property
    def drifted(self) -> bool:
        """Whether anything differs more than batches usually do."""
        return bool(self.findings)

    @property
    def reasons(self) -> list[str]:
        """The findings as text, such as "column 'age' lacks 9.0% of its values (…)"."""
        return [str(finding) for finding in self.findings]

    @property
    def table(self) -> Any:
        """The findings as a pandas DataFrame."""
        import pandas as pd

        names = [each.name for each in fields(Finding)]
        return pd.DataFrame([astuple(finding) for finding in self.findings], columns=names)


class Statistic(NamedTuple):
    """Kind, column, level and cluster that a statistic of a batch describes."""

    kind: str
    column: str | None
    level: Any
    cluster: int | None

    @property
    def subject(self) -> str:
        """The column that the statistic describes, or the cluster if there is no column."""
        return f"cluster {self.cluster}" if self.column is None else self.column


def statistics_of(model: Any, sums: BatchSums) -> list[Statistic]:
    """Return what the statistics of a batch describe, in their order."""
    features, clusters = features_of(model), range(len(sums.sizes))
    found = [Statistic(kind, *each, None) for kind in ("column", "missing") for each in features]
    found += [Statistic(kind, None, None, j) for kind in ("share", "cost") for j in clusters]
    if len(sums.sums) > 1:
        found += [Statistic("column in cluster", *each, j) for j in clusters for each in features]
    return found


def features_of(model: Any) -> list[tuple[str, Any]]:
    """Return column and level of each feature; numbers have no level."""
    columns = getattr(model, "columns_", None)
    if columns is None:
        named = hasattr(model, "feature_names_in_")
        return [(name if named else f"feature {name}", None) for name in feature_names(model)]
    found: list[tuple[str, Any]] = []
    for column in columns:
        levels = {"category": column.levels, "flag": (True,)}.get(column.kind)
        found += [(column.name, level) for level in levels or [None] * len(column.features)]
    return found


def numbers_of_tests(statistics: list[Statistic]) -> FloatArray:
    """Return the factor by which each statistic's p-value is multiplied for multiple testing."""
    kinds = [each.kind for each in statistics]
    return np.array([kinds.count(kind) / KINDS[kind] for kind in kinds])


@dataclass(frozen=True)
class Tested:
    """Tests of the latest batch alone, and of means of several latest batches."""

    lengths: list[int]  # how many of the latest batches each test averages
    deviations: list[Deviation]  # deviation of these batches from their forecast, for each length
    # Adjusted p-values; 1 where the shift is within the tolerance, (n_lengths, n_statistics).
    p_values: FloatArray
    limits: FloatArray  # how far the latest batch may deviate by chance, (n_statistics,)

    def jumps(self, level: float) -> FloatArray:
        """Return each statistic's shift (0 for none), and how many latest batches show it."""
        least = self.p_values.argmin(axis=0)[None]
        shifts = np.array([each.shifts for each in self.deviations])
        found = np.take_along_axis(shifts, least, axis=0)[0]
        differs = self.p_values.min(axis=0) <= level
        return np.stack([np.where(differs, found, 0.0), np.array(self.lengths)[least[0]]])

    def findings(
        self, level: float, statistics: list[Statistic], values: FloatArray, units: FloatArray
    ) -> list[Finding]:
        """Return what differs, given the statistics of the batches in the units of the input."""
        least = self.p_values.min(axis=0)
        told: dict[tuple[str, str], Finding] = {}
        for m in np.argsort(least, kind="stable")[: int((least <= level).sum())]:
            w, about = int(self.p_values[:, m].argmin()), statistics[m]
            shift = float(self.deviations[w].shifts[m])
            found = float(values[w, m])
            finding = Finding(
                about.kind,
                about.column,
                about.level,
                about.cluster,
                found,
                found - shift * float(units[m]),
                shift,
                float(least[m]),
                self.lengths[w],
            )
            of_column = about.kind in ("column", "column in cluster")
            told.setdefault(("column" if of_column else about.kind, about.subject), finding)
        return list(told.values())

    def by_subject(self, statistics: list[Statistic]) -> dict[str, float]:
        """Return the least p-value of each column and each cluster."""
        found: dict[str, float] = {}
        for about, p in zip(statistics, self.p_values.min(axis=0).tolist(), strict=True):
            found[about.subject] = min(p, found.get(about.subject, 1.0))
        return found
