"""What a report says of a column: means or shares by cluster, and their distributions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskmm.data.mixed import DAYS_OF_YEAR, Column
from daskmm.report.means import Means, Sampled
from daskmm.storage.readable import (
    ALL_YEAR,
    readable_day,
    readable_day_of_year,
    readable_number,
    readable_share,
)

FloatArray = NDArray[np.float64]
Say = Callable[[float], str]

# A histogram has _BARS bars. The share _OF_ALL of all rows, and _OF_CLUSTER of each cluster's rows,
# may lie beyond its ends. A cluster needs at least _LEAST_ROWS rows in the sample.
_BARS, _OF_ALL, _OF_CLUSTER, _LEAST_ROWS = 24, 0.01, 0.05, 10
# A median is far from the mean if they differ by more than this share of the middle half's width.
_FAR = 0.25
# If more than this share of a column's values is 0, the report gives the share of other values.
_MOSTLY_ZERO = 0.6
# Largest number of levels in a text, and of bars for levels.
_LEVELS_SAID, _LEVELS_DRAWN = 3, 12
_ABSENT = "–"


@dataclass(frozen=True)
class Histograms:
    """How the values of a column are distributed."""

    overall: FloatArray  # share of all rows in each bar, (n_bars,)
    # Share of each cluster's rows in each bar; NaN for clusters with few rows in the sample,
    # (n_clusters, n_bars).
    clusters: FloatArray
    axis: list[str]  # the values at both ends, or the level of each bar
    separate: bool = False  # whether each bar is a level


@dataclass(frozen=True)
class Profile:
    """What a report says of one column, for each cluster."""

    name: str
    # Kind of the texts: one of `Means.what`, "share", "commonest levels" or "time of the year".
    what: str
    texts: list[str]  # mean, share or commonest levels of each cluster
    overall: str  # mean, share or commonest levels of all rows
    briefs: list[str]  # what a sentence says of each cluster
    # What else is known of each cluster: the ends of the middle half of its values, or the share of
    # those that are not 0.
    notes: list[str]
    shares: FloatArray | None = None  # shares that are drawn as bars, (n_clusters,)
    histograms: Histograms | None = None  # histograms of the sample

    @property
    def of_all(self) -> str:
        """What `overall` is the mean of: all clusters if only centres are known."""
        if self.what in ("centre", "direction"):
            return "all clusters"
        return "all sampled rows" if self.what == "mean of sampled rows" else "all rows"


def profile_of(
    name: str, place: int, column: Column | None, means: Means, sampled: Sampled | None
) -> Profile:
    """Describe a column, given its name and number.

    `column` is the mixed column; None for a column of a table of numbers. Distributions are those
    of the sampled rows, if there are any.
    """
    features = means.features(place)
    clusters, overall = means.clusters[:, features], means.overall[features]
    spread = float(means.spread[place])
    own = _Column(name, means.what, clusters, overall, spread, *_values(place, sampled))
    kind = "number" if column is None else column.kind
    if kind == "category":
        assert column is not None
        return own.of_levels([str(level) for level in column.levels])
    if kind == "season":
        return own.of_season()
    if kind == "flag" or (column is None and own.is_flag):
        return own.of_shares()
    if kind == "trend":
        return own.of_numbers(readable_day)
    return own.of_rare() if own.is_rare else own.of_numbers(own.readable)


def _values(place: int, sampled: Sampled | None) -> tuple[FloatArray, NDArray]:
    """Return the values of a column in the sample, sorted by cluster, and their clusters."""
    if sampled is None:
        return np.empty(0), np.empty(0, dtype=np.int32)
    values = np.asarray(sampled.rows[:, place], dtype=np.float64)
    order = np.argsort(sampled.labels, kind="stable")
    order = order[~np.isnan(values[order])]
    return values[order], sampled.labels[order]


@dataclass(frozen=True)
class _Column:
    """A column that is described."""

    name: str
    what: str  # what the means are
    means: FloatArray  # means of the clusters, (n_clusters, n_features of the column)
    overall: FloatArray  # mean of all rows, (n_features of the column,)
    spread: float  # standard deviation
    # Values of the sample, sorted by cluster, and their clusters; without missing ones.
    values: FloatArray
    labels: NDArray

    @property
    def is_flag(self) -> bool:
        """Whether numbers are 0 or 1, as far as the sample shows."""
        return bool(np.isin(self.values, (0.0, 1.0)).all() and self.values.any())

    @property
    def is_rare(self) -> bool:
        """Whether most numbers are 0."""
        return bool(self.values.any() and np.mean(self.values == 0) > _MOSTLY_ZERO)

    def readable(self, value: float) -> str:
        """Format a number with the decimals that matter in this column."""
        return readable_number(value, self.spread).replace("-", "−")

    @cached_property
    def _are_whole(self) -> bool:
        return bool(np.all(self.values == np.rint(self.values)))

    def _as_value(self, say: Say, value: float) -> str:
        """Format what may be a value of the table; integers have no decimals."""
        text = say(value)
        whole = self._are_whole and value == round(value) and "." in text
        return text.partition(".")[0] if whole else text

    def of_numbers(self, say: Say) -> Profile:
        """Describe numbers, with the middle half of each cluster's values.

        Their median is added where it is far from the mean, as in long tails.
        """
        quarters = self._by_cluster(lambda own: np.quantile(own, (0.25, 0.5, 0.75)))
        notes = []
        for own, (mean,) in zip(quarters, self.means, strict=True):
            if own is None:
                notes.append("")
                continue
            low, median, high = (self._as_value(say, float(end)) for end in own)
            skewed = abs(mean - own[1]) > _FAR * (own[2] - own[0])
            notes.append(f"{f'median {median}, ' if skewed else ''}{low} to {high}")
        return self._single(self.what, say, notes, histograms=self._histograms(say))

    def of_rare(self) -> Profile:
        """Describe numbers that are mostly 0, with the share of those that are not."""
        found = self._by_cluster(lambda own: np.mean(own != 0))
        notes = ["" if own is None else readable_share(own) for own in found]
        shares = np.array([np.nan if own is None else own for own in found])
        return self._single(self.what, self.readable, notes, shares=shares)

    def of_shares(self) -> Profile:
        """Describe a flag by the share of the rows that have it."""
        return self._single("share", readable_share, None, shares=self.means[:, 0])

    def of_levels(self, levels: list[str]) -> Profile:
        """Describe a category by the shares of its levels."""
        drawn = np.argsort(-self.overall, kind="stable")[:_LEVELS_DRAWN]

        def said(own: FloatArray) -> str:
            if np.isnan(own).any():
                return _ABSENT
            commonest = np.argsort(-own, kind="stable")[:_LEVELS_SAID]
            return ", ".join(
                f"{levels[level]} {readable_share(own[level])}"
                for level in commonest
                if round(own[level], 9) > 0  # rounding may raise a share of 0
            )

        bars = Histograms(
            self.overall[drawn],
            self.means[:, drawn],
            [levels[level] for level in drawn],
            separate=True,
        )
        profile = self._made("commonest levels", said, histograms=bars)
        return replace(profile, briefs=[self._commoner(own, levels) for own in self.means])

    def _commoner(self, own: FloatArray, levels: list[str]) -> str:
        """Name the level whose share in a cluster exceeds its share of all rows by the most."""
        if np.isnan(own).any():
            return f"{self.name} {_ABSENT}"
        level = int(np.argmax(own - self.overall))
        shares = readable_share(own[level]), readable_share(self.overall[level])
        return f"{self.name} {levels[level]} in {shares[0]} (all rows: {shares[1]})"

    def of_season(self) -> Profile:
        """Describe times of the year by the mean direction on its circle."""

        def said(cos_and_sin: FloatArray) -> str:
            if np.isnan(cos_and_sin).any():
                return _ABSENT
            day = readable_day_of_year(*cos_and_sin)
            return day if day == ALL_YEAR else f"around {day}"

        histograms = None
        if len(self.values):
            edges = np.linspace(0.0, 366 / DAYS_OF_YEAR, 13)
            histograms = self._counted(edges, ["January", "December"])
        return self._made("time of the year", said, histograms=histograms)

    def _single(self, what: str, say: Say, notes: list[str] | None, **drawn: Any) -> Profile:
        """Return the profile of a column with one feature."""

        def said(own: FloatArray) -> str:
            return _ABSENT if np.isnan(own[0]) else say(float(own[0]))

        return self._made(what, said, notes, **drawn)

    def _made(
        self,
        what: str,
        said: Callable[[FloatArray], str],
        notes: list[str] | None = None,
        **drawn: Any,
    ) -> Profile:
        texts, overall = [said(own) for own in self.means], said(self.overall)
        starts = {"mean": f"a mean {self.name} of", "share": f"{self.name} in"}
        starts |= {each: f"a {each} with {self.name} of" for each in ("centre", "direction")}
        starts["mean without weights"] = starts["mean"]
        starts["weighted mean"] = f"a weighted mean {self.name} of"
        starts["estimated mean"] = f"an estimated mean {self.name} of"
        starts["mean of sampled rows"] = f"sampled rows with a mean {self.name} of"
        found = Profile(self.name, what, texts, overall, [], notes or [""] * len(texts), **drawn)
        start = starts.get(what, self.name)
        briefs = [f"{start} {text} ({found.of_all}: {overall})" for text in texts]
        return replace(found, briefs=briefs)

    def _by_cluster(self, function: Callable[[FloatArray], Any]) -> list[Any]:
        """Apply a function to each cluster's values; the result is None if the sample has few."""
        ends = np.searchsorted(self.labels, np.arange(len(self.means) + 1))
        parts = [self.values[a:b] for a, b in itertools.pairwise(ends)]
        return [function(part) if len(part) >= _LEAST_ROWS else None for part in parts]

    def _histograms(self, say: Say) -> Histograms | None:
        """Return histograms over the values that all rows and the clusters usually have."""
        if not len(self.values):
            return None
        inner = self._by_cluster(lambda own: np.quantile(own, (_OF_CLUSTER, 1 - _OF_CLUSTER)))
        ranges = [np.quantile(self.values, (_OF_ALL, 1 - _OF_ALL))]
        ranges += [own for own in inner if own is not None]
        low, high = float(np.min(ranges)), float(np.max(ranges))
        if not low < high:
            return None
        axis = [self._as_value(say, low), self._as_value(say, high)]
        if self._are_whole:  # every bar gets the same number of integers
            step = max(1.0, np.ceil((high - low) / (_BARS + _BARS // 3)))
            edges = np.arange(np.floor(low) - 0.5, np.ceil(high) + step, step)
        else:
            edges = np.linspace(low, high, _BARS + 1)
        return self._counted(edges, axis)

    def _counted(self, edges: FloatArray, axis: list[str]) -> Histograms:
        """Count values between edges; those beyond them count in the first and the last bar."""
        bars = len(edges) - 1

        def shares(own: FloatArray) -> FloatArray:
            place = np.clip(np.searchsorted(edges, own, side="right") - 1, 0, bars - 1)
            return np.asarray(np.bincount(place, minlength=bars) / len(own))

        nothing = np.full(bars, np.nan)
        clusters = [nothing if own is None else own for own in self._by_cluster(shares)]
        return Histograms(shares(self.values), np.array(clusters), axis)
