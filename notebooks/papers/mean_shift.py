"""Experiments of the paper on weighted blurring mean shift."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans, MeanShift
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from daskmm.cluster import WeightedBlurringMeanShift
from daskmm.datasets import make_wbms_simulation1, make_wbms_simulation2, make_wbms_toy
from papers.data import RealData, absent, zscore
from papers.experiment import (
    EXCEEDED,
    MISSED,
    REPRODUCED,
    Experiment,
    Finding,
    Left,
    equal,
    mean_of,
)

FloatArray = NDArray[np.float64]

# Print's name and ours; the others are not at hand.
_SETS = {
    "GLIOMA": "glioma",
    "Appendicitis": "appendicitis",
    "Zoo": "zoo",
    "Mammographic": "mammographic",
    "Yale": "yale",
    "nci9": "nci9",
    "Lymphoma": "lymphoma",
    "Movement Libras": "movement_libras",
    "GCM": "gcm",
}
# Appendix B.
BANDWIDTHS, PENALTIES = (0.1, 0.5, 0.8, 1.0), (1.0, 5.0, 10.0, 20.0)
_WIDE = (0.01, 0.014, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.14, 0.2, 0.3, 0.5)
_WIDE_PENALTIES = (10.0, 300.0, 1000.0)

_ROW, _SUM, _PROGRAM = (
    "Algorithm 1, λ per row",
    "Algorithm 1, λ of the sum",
    "program, λ of the sum",
)
_SQUARED, _AS_PRINTED = "program, exp(−d²/h²)", "Algorithm 1, exp(−d²/h²)"
_WIDER, _DEFAULTS = "program, wider grid", "defaults"
_CONVENTIONS = {
    _ROW: "equations (3) and (4) as printed: a row counts for itself, λ belongs to the mean",
    _SUM: "the same with λ of the sum over rows, that is λ/n of ours",
    _PROGRAM: "the authors' program: a row does not count for itself, λ of the sum, 20 iterations "
    "that learn and 30 from the rows again",
    _SQUARED: "the program with the kernel of equations (1) to (3)",
    _AS_PRINTED: "Algorithm 1 with that kernel, λ of the sum",
    _WIDER: "the program on twelve bandwidths from .01 to .5 and λ of 10, 300, 1000; chosen by "
    "ARI against the labels, as the paper's tables 3 to 5 are",
    _DEFAULTS: "the defaults of the library: bandwidth chosen without labels, λ = .1 per row",
}


# Bandwidths of the program in the simulations, all with λ = 10 of the sum.
_SIMULATED = {
    "program, h = .1, λ = 10": 0.1,
    "program, h = .05, λ = 10": 0.05,
    "program, h = .02, λ = 10": 0.02,
}


@dataclass(frozen=True)
class Fit:
    """Scores and time of one fit."""

    nmi: float
    ari: float
    seconds: float


def fitted(rows: FloatArray, truth: NDArray, convention: str, h: float, lam: float) -> Fit:
    """Fit at a bandwidth and a λ as they stand in print."""
    summed = lam if convention == _ROW else lam / len(rows)
    h = h**2 if convention in (_SQUARED, _AS_PRINTED) else h
    own = "paper" if convention in (_ROW, _SUM, _AS_PRINTED) else "reference"
    return _timed(WeightedBlurringMeanShift(h, summed, convention=own), rows, truth)


def _fitted(model: Any, rows: FloatArray) -> Any:
    with warnings.catch_warnings():
        # One cluster, and rows that have not settled, are part of what is measured.
        warnings.simplefilter("ignore")
        return model.fit(rows)


def _timed(model: Any, rows: FloatArray, truth: NDArray) -> Fit:
    began = time.perf_counter()
    labels = _fitted(model, rows).labels_
    seconds = time.perf_counter() - began
    nmi = float(normalized_mutual_info_score(truth, labels))
    return Fit(nmi, float(adjusted_rand_score(truth, labels)), seconds)


_ON_THE_GRID = (_ROW, _SUM, _PROGRAM, _SQUARED, _AS_PRINTED)
Grid = Mapping[tuple[float, float], Fit]


@lru_cache(maxsize=64)
def _grid(name: str, convention: str, data: RealData) -> Grid:
    """Return the fits of a set at each bandwidth and λ."""
    raw, truth = data.load(name)
    rows, wide = zscore(raw), convention == _WIDER
    return {
        (h, lam): fitted(rows, truth, convention, h, lam)
        for h in (_WIDE if wide else BANDWIDTHS)
        for lam in (_WIDE_PENALTIES if wide else PENALTIES)
    }


def _best(grid: Grid, h: float | None = None, lam: float | None = None) -> tuple[float, float]:
    """Return the pair with the largest ARI, at one bandwidth or λ if it is given."""
    pairs = [pair for pair in grid if h in (None, pair[0]) and lam in (None, pair[1])]
    return max(pairs, key=lambda pair: grid[pair].ari)


def _sets(data: RealData) -> list[tuple[str, str]]:
    """Return print's name and ours of the sets at hand."""
    return [(printed, name) for printed, name in _SETS.items() if data.has(name)]


def _absent(data: RealData, *rows: str) -> Iterator[Left]:
    """Yield the rows of the other sets."""
    for printed, name in _SETS.items():
        if not data.has(name):
            yield from (Left(f"{printed}{row}", None, absent(printed)) for row in rows or ("",))


_NO_PROGRAM = {
    method: f"no program at hand: {method}"
    for method in ("G-Means", "WG-Means", "DP-Means", "EWDP", "RCC")
}


def _table_1(repeats: int, data: RealData) -> Iterator[Finding]:
    yield from _absent(data)
    for printed, name in _sets(data):
        rows, truth = data.load(name)
        sizes = {"# Features": rows.shape[1], "# Clusters": len(np.unique(truth))}
        for column, size in sizes.items():
            yield mean_of(printed, column, "at hand", [size])
        complete = int(np.isfinite(rows).all(axis=1).sum())
        readings = {
            "at hand": len(rows),
            "distinct": len(np.unique(rows, axis=0)),
            "complete": complete,
        }
        for convention, size in readings.items():
            yield mean_of(printed, "# Datapoints", convention, [size])


def _table_2(repeats: int, data: RealData) -> Iterator[Finding]:
    yield from (Left(None, column, why) for column, why in _NO_PROGRAM.items())
    yield from _absent(data, " NMI", " ARI")
    for printed, name in _sets(data):
        for column, convention, fit in _methods(name, data):
            yield mean_of(f"{printed} NMI", column, convention, [fit.nmi])
            yield mean_of(f"{printed} ARI", column, convention, [fit.ari])


@lru_cache(maxsize=16)
def _methods(name: str, data: RealData) -> tuple[tuple[str, str, Fit], ...]:
    """Return method, convention and fit of a set."""
    raw, truth = data.load(name)
    rows, k = zscore(raw), len(np.unique(truth))
    found = []
    for convention in (*_ON_THE_GRID, _WIDER):
        grid = _grid(name, convention, data)
        found.append(("WBMS", convention, grid[_best(grid)]))
    found.append(
        ("WBMS", _DEFAULTS, _timed(WeightedBlurringMeanShift(random_state=0), rows, truth))
    )
    for convention, own in ((_SUM, "paper"), (_PROGRAM, "reference")):
        unweighted = {
            (h, np.inf): _timed(WeightedBlurringMeanShift(h, np.inf, convention=own), rows, truth)
            for h in BANDWIDTHS
        }
        found.append(("BMS", convention, unweighted[_best(unweighted)]))
    auto = WeightedBlurringMeanShift("auto", np.inf, random_state=0)
    found.append(("BMS", _DEFAULTS, _timed(auto, rows, truth)))
    for convention, table in (("z-scored", rows), ("raw", raw)):
        told = KMeans(k, n_init=10, random_state=0)
        found.append(("k-Means", convention, _timed(told, table, truth)))
        seeds = table[:: max(len(table) // 50, 1)]
        found.append(("MS", convention, _timed(MeanShift(seeds=seeds), table, truth)))
    twice = KMeans(2 * k, n_init=10, random_state=0)
    found.append(("k-Means", "twice as many", _timed(twice, rows, truth)))
    # Half of √(2p), the root mean squared distance of two standardised rows.
    narrow = MeanShift(seeds=rows[:: max(len(rows) // 50, 1)], bandwidth=np.sqrt(rows.shape[1] / 2))
    found.append(("MS", "half the distance", _timed(narrow, rows, truth)))
    return tuple(found)


def _table_3(repeats: int, data: RealData) -> Iterator[Finding]:
    yield from _absent(data)
    for printed, name in _sets(data):
        for convention in _ON_THE_GRID:
            h, lam = _best(_grid(name, convention, data))
            yield mean_of(printed, "h", convention, [h])
            yield mean_of(printed, "lambda", convention, [lam])


def _by_parameter(which: str, repeats: int, data: RealData) -> Iterator[Finding]:
    """Yield the best ARI for each bandwidth (table 4) or λ (table 5)."""
    yield from _absent(data)
    for printed, name in _sets(data):
        for convention in _ON_THE_GRID:
            grid = _grid(name, convention, data)
            for value in BANDWIDTHS if which == "h" else PENALTIES:
                pair = _best(grid, **{"h" if which == "h" else "lam": value})
                yield mean_of(printed, f"{which} = {value:g}", convention, [grid[pair].ari])


def _table_6(repeats: int, data: RealData) -> Iterator[Finding]:
    yield from (Left(None, column, why) for column, why in _NO_PROGRAM.items())
    yield from _absent(data)
    for printed, name in _sets(data):
        for column, convention, fit in _methods(name, data):
            yield mean_of(printed, column, convention, [fit.seconds])


def _figures(repeats: int, data: RealData) -> Iterator[Finding]:
    """Yield what the text says of the figures, on draws of the simulations."""
    simulations: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
        "data1, ARI": (make_wbms_toy, (200,)),
        **{
            f"Simulation 1, k = {k}, NMI": (make_wbms_simulation1, (20 * k, k))
            for k in (2, 10, 20, 50)
        },
        **{
            f"Simulation 2, p = {p}, NMI": (
                make_wbms_simulation2,
                (100, 4, max(2, p // 20), p - max(2, p // 20)),
            )
            for p in (20, 100, 200)
        },
    }
    for row, (make, sizes) in simulations.items():
        draws = [[a.compute() for a in make(*sizes, random_state=s)] for s in range(repeats)]
        score = "ari" if row.endswith("ARI") else "nmi"
        for convention, h in _SIMULATED.items():
            fits = [_simulated(X, y, h) for X, y in draws]
            yield mean_of(row, "WBMS", convention, [getattr(fit, score) for fit in fits])
        fits = [_timed(WeightedBlurringMeanShift(random_state=0), X, y) for X, y in draws]
        yield mean_of(row, "WBMS", _DEFAULTS, [getattr(fit, score) for fit in fits])
        told = [_timed(KMeans(len(np.unique(y)), n_init=10), zscore(X), y) for X, y in draws]
        yield mean_of("k-means, told k", row, "z-scored", [getattr(fit, score) for fit in told])
    shares = []
    for seed in range(5 * repeats):
        X = make_wbms_simulation2(100, 4, 2, 8, random_state=seed)[0].compute()
        model = WeightedBlurringMeanShift(0.1, 10 / 100, convention="reference")
        shares.append(float(_fitted(model, X).feature_weights_[:2].sum()))
    row = "Simulation 3, weight on features 1 and 2"
    yield mean_of(row, "WBMS", "program, h = .1, λ = 10", shares)


def _simulated(rows: FloatArray, truth: NDArray, h: float) -> Fit:
    model = WeightedBlurringMeanShift(h, 10.0 / len(rows), convention="reference")
    return _timed(model, rows, truth)


def _as_fast(printed: float, sd: float | None, ours: float) -> str:
    """Judge a time: machines differ, so that a factor of two is nothing."""
    if printed / 2 <= ours <= 2 * printed:
        return REPRODUCED
    return EXCEEDED if ours < printed else MISSED


_PEERS = {
    "z-scored": "scikit-learn on standardised features; k-means is told the number of classes",
    "raw": "the same on raw features",
    "twice as many": "k-means told twice the number of classes, as a gap statistic may choose",
    "half the distance": "mean shift, bandwidth half the root mean squared distance of two rows",
}
_REMARK = (
    "Where cells do not come out: with h and λ from the printed grids, the published program "
    "returns one cluster, or a cluster per row, on most sets; kernels exp(−d²/h) and exp(−d²/h²) "
    "are both in print. The scripts and files behind the tables would settle it."
)

EXPERIMENTS = (
    Experiment(
        "mean-shift",
        "Figures 1 to 4",
        _figures,
        (3, 20),
        {
            **dict.fromkeys(_SIMULATED, "the authors' program on standardised features"),
            _DEFAULTS: _CONVENTIONS[_DEFAULTS],
            "z-scored": _PEERS["z-scored"],
        },
        ("WBMS",),
        remark="The bandwidths behind the figures are not in print; a bandwidth has to shrink as "
        "clusters get more. Simulation 2 has deviation .02 here: with the variance of .3 in the "
        "text, clusters in the unit cube overlap, which the text says they do not.",
    ),
    Experiment(
        "mean-shift",
        "Table 1",
        _table_1,
        (1, 1),
        {
            "at hand": "sizes of the data at hand",
            "distinct": "rows that differ",
            "complete": "rows without missing values",
        },
        (),
        equal,
        "Appendicitis has 106 rows in the authors' file too.",
    ),
    Experiment(
        "mean-shift",
        "Table 2",
        _table_2,
        (1, 20),
        {**_CONVENTIONS, **_PEERS},
        ("WBMS",),
        remark=_REMARK,
    ),
    Experiment("mean-shift", "Table 3", _table_3, (1, 1), _CONVENTIONS, ("h", "lambda"), equal),
    Experiment(
        "mean-shift",
        "Table 4",
        partial(_by_parameter, "h"),
        (1, 1),
        _CONVENTIONS,
        tuple(f"h = {h:g}" for h in BANDWIDTHS),
    ),
    Experiment(
        "mean-shift",
        "Table 5",
        partial(_by_parameter, "lambda"),
        (1, 1),
        _CONVENTIONS,
        tuple(f"lambda = {lam:g}" for lam in PENALTIES),
    ),
    Experiment(
        "mean-shift", "Table 6", _table_6, (1, 1), {**_CONVENTIONS, **_PEERS}, ("WBMS",), _as_fast
    ),
)
