"""Mixed tables, mixtures and scores: each shown number, computed naively; see `_shown`."""

from __future__ import annotations

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars
import pyarrow
import sklearn.metrics
import xarray
from _fuzz import CENTERED, cut
from _shown import IN_MEMORY, LAZY, close, formed, kept_masses, pick, plain, values_of
from scipy.stats import multivariate_normal

from daskmm import EntropyPowerKMeans, GaussianMixture, KMeans, metrics
from daskmm.report.means import means_of

KINDS = ("number", "whole", "flag", "text", "category", "date", "constant")
SMOOTHING = 0.05
YEAR = 365.25


def column_of(rng, kind, truth):
    n = len(truth)
    if kind == "number":
        return pd.Series(truth * 3 + rng.normal(size=n))
    if kind == "whole":
        return pd.Series(np.rint(truth * 3 + 3 * rng.normal(size=n))).astype("Int64")
    if kind == "flag":
        return pd.Series(rng.random(n) < np.where(truth % 2, 0.8, 0.2)).astype("boolean")
    if kind == "date":
        days = pd.to_timedelta(rng.uniform(0, 900, n).round(3), "D")
        return pd.Series(pd.Timestamp("2021-01-01") + days.round("s"))
    if kind == "constant":
        return pd.Series(np.full(n, 2.5))
    other = np.where(rng.random(n) < 0.3, rng.integers(5, size=n), 0)
    levels = pd.Series(np.array(["a", "b", "c", "d e", "É"])[(truth + other) % 5])
    return levels.astype("category") if kind == "category" else levels


def mixed_case(seed):
    """A frame of columns of many kinds in some form, sample weights, and a model."""
    rng = np.random.default_rng([seed, 81])
    n, k, cls = int(rng.integers(20, 120)), int(rng.integers(1, 5)), CENTERED[seed % 3]
    kinds = rng.choice(KINDS, size=int(rng.integers(2, 6)))
    truth = rng.integers(k, size=n)
    frame = pd.DataFrame({f"x{i}": column_of(rng, kind, truth) for i, kind in enumerate(kinds)})
    dates = [
        f"x{i}:{part}"
        for i, kind in enumerate(kinds)
        for part in (
            pick(rng, ["trend"], ["season"], ["trend", "season"]) if kind == "date" else []
        )
    ]
    found = {"n_clusters": k, "distortion": "mixed", "random_state": 0, "n_init": 2}
    found["metric_params"] = {"dates": dates}
    if cls is not KMeans:
        found["eta"] = 1.5
    if cls is EntropyPowerKMeans:
        found["lam"] = pick(rng, 0.1, 1.0, np.inf)
    if rng.random() < 0.5:
        found |= {"missing": "partial", "empty_rows": "label"}
        gone = rng.random((n, 1)) < pick(rng, 0.0, 0.1)
        for i, name in enumerate(frame):
            holes = (rng.random(n) < pick(rng, 0.0, 0.1, 0.4)) | gone[:, 0]
            holes[i] = False  # each column has a value
            frame.loc[holes, name] = None
    if rng.random() < 0.2:
        found["trim"] = pick(rng, 0.05, 0.2)
    if rng.random() < 0.1:
        found["max_iter"] = 1
    weights = rng.random(n) * 3 + 0.1 if rng.random() < 0.5 else None
    form = pick(rng, "pandas", "repeated index", "dask", "polars", "arrow")
    X = frame
    if form == "repeated index":
        X = frame.set_index(pd.Index(rng.integers(0, 3, n)))
    elif form == "dask":
        X = dd.from_pandas(frame, npartitions=int(rng.integers(1, 6)), sort=False)
    elif form == "polars":
        X = polars.from_pandas(frame)
    elif form == "arrow":
        X = pyarrow.Table.from_pandas(frame, preserve_index=False)
    return frame, X, weights, cls(**found), form


def features_of(frame, column):
    """Features of a column, (n, 1) or one per level, NaN where values are missing; whether held."""
    values = frame[column.source]
    held = values.notna().to_numpy()
    if column.kind == "category":
        own = np.array([values == level for level in column.levels]).T.astype(float)
    elif column.kind == "trend":
        own = ((values - pd.Timestamp(0)) / pd.Timedelta("1D")).to_numpy()[:, None]
    elif column.kind == "season":
        of_day = (values - values.dt.normalize()) / pd.Timedelta("1D")
        turn = 2 * np.pi * ((values.dt.dayofyear - 1 + of_day) / YEAR).to_numpy()
        own = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    else:
        own = values.astype("Float64").to_numpy(dtype=float, na_value=np.nan)[:, None]
    return np.where(held[:, None], own, np.nan), held


def mixed_distances(model, columns, masses):
    """Distances to the centres by their definition."""
    found, start = np.zeros((len(masses), len(model.cluster_centers_))), 0
    weights = getattr(model, "feature_weights_", np.ones(len(columns)))
    for (column, x, held), weight in zip(columns, weights, strict=True):
        c = model.cluster_centers_[:, start : start + x.shape[1]]
        start += x.shape[1]
        own = masses * held
        mean = own @ np.nan_to_num(x) / own.sum()
        spread = own @ np.nan_to_num((x - mean) ** 2).sum(axis=1) / own.sum()
        if spread < 1e-12:
            continue
        if column.kind in ("flag", "category"):
            x, c = ((1 - SMOOTHING) * each + SMOOTHING * mean for each in (x, c))
            both = column.kind == "flag"  # a flag has a second level

            def parts(x, c, both=both):
                terms = x * np.log(x / c)
                other = (1 - x) * np.log((1 - x) / (1 - c)) if both else 0.0
                return (terms + other).sum(axis=-1)

            spread = own @ np.nan_to_num(parts(x, mean)) / own.sum()
        else:

            def parts(x, c):
                return np.square(x - c).sum(axis=-1)

        share = own.sum() / masses.sum() if hasattr(model, "feature_weights_") else 1.0
        apart = parts(x[:, None], c[None]) * weight / spread / share
        found += np.where(held[:, None], apart, 0.0)
    return found


def check_mixed(seed):
    """All that a model of mixed columns shows."""
    frame, X, weights, model, _ = mixed_case(seed)
    model.fit(X, sample_weight=weights)
    labels, k = plain(model.labels_), len(model.cluster_centers_)
    empty = frame.isna().all(axis=1).to_numpy()
    np.testing.assert_array_equal(labels == -1, empty)
    np.testing.assert_array_equal(plain(model.predict(X)), labels)
    rows = np.where(empty, 0.0, 1.0 if weights is None else weights)
    columns = [(column, *features_of(frame, column)) for column in model.columns_]
    d = plain(model.transform(X))
    if not model.trim:
        expected = mixed_distances(model, columns, rows)
        close(d[~empty], expected[~empty], "transform", 1e-5, 1e-6)
    own = np.where(empty, np.nan, d[np.arange(len(d)), np.maximum(labels, 0)])
    assert (own[~empty] <= d[~empty].min(axis=1) * (1 + 1e-6) + 1e-9).all()
    close(-model.score(X, sample_weight=weights), np.nansum(rows * own), "score", 1e-6, 1e-9)
    masses = kept_masses(model, rows, own)
    close(model.inertia_, np.nansum(masses * own), "inertia_", 1e-6, 1e-9)
    for share in (0.1, 0.3):
        gone = (plain(model.predict(X, outliers=share)) == -1) & ~empty
        assert rows[gone].sum() <= share * rows.sum() * (1 + 1e-9)
    held = own[~empty]
    if model.trim and len(np.unique(np.round(held, 9))) < len(held):
        return
    sizes = np.bincount(np.maximum(labels, 0), masses, k)
    close(model.cluster_sizes_, sizes, "cluster_sizes_", 1e-9, 1e-9)
    close(model.summary_["cluster_size"], sizes, "sizes in summary_", 1e-9, 1e-9)
    overall = None if model.trim else means_of(model, sizes, None).overall
    start = 0
    for column, x, held in columns:
        _check_column(model, column, x, held, labels, masses)
        if overall is not None:
            mean = (masses * held) @ np.nan_to_num(x) / (masses * held).sum()
            close(overall[start : start + x.shape[1]], mean, column.name, 1e-5, 1e-6)
        start += x.shape[1]


def _check_column(model, column, x, held, labels, masses):
    """Means, commonest levels, days and shares of missing values of a column in `summary_`."""
    table, name = model.summary_, column.name
    for j in range(len(table)):
        rows, own = masses * (labels == j), masses * held * (labels == j)
        if own.sum() <= 0:
            continue
        missing = 1 - own.sum() / rows.sum()
        gaps = f"missing_{column.source}"
        shown = table[gaps][j] if gaps in table else 0.0
        close(shown, missing, f"missing {name}", 1e-7, 1e-9)
        mean = own @ np.nan_to_num(x) / own.sum()
        if column.kind == "category":
            close(model.level_shares_[name].loc[j].to_numpy(float), mean, name, 1e-6, 1e-9)
            assert mean[column.levels.index(table[f"commonest_{name}"][j])] >= mean.max() - 1e-9
        elif column.kind == "season":
            if np.hypot(*mean) > 0.05:
                day = 1 + np.arctan2(mean[1], mean[0]) / (2 * np.pi) % 1 * YEAR
                apart = (table[f"mean_{name}"][j] - day + YEAR / 2) % YEAR - YEAR / 2
                assert abs(apart) < 1.5, name
        elif column.kind == "trend":
            day = (pd.Timestamp(table[f"mean_{name}"][j]) - pd.Timestamp(0)) / pd.Timedelta("1D")
            assert abs(day - mean[0]) <= 1, name
        else:
            what = "share" if column.kind == "flag" else "mean"
            size = 1e-7 * np.nanmax(np.abs(x))
            close(float(table[f"{what}_{name}"][j]), mean[0], name, 1e-6, size)


def check_mixture(seed):
    """All that a mixture shows, by scipy's densities."""
    rng = np.random.default_rng([seed, 82])
    n, p, k = int(rng.integers(20, 150)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    raw = values_of(rng, n, p, k)
    options = {"reg_covar": pick(rng, 1e-6, 1e-2), "max_iter": pick(rng, 1, 3, 100)}
    options["covariance_type"] = pick(rng, "full", "tied", "diag", "spherical", "auto")
    if rng.random() < 0.3:
        options["missing"] = "partial"
        holes = rng.random(raw.shape) < 0.15
        holes[:, 0] &= ~holes.all(axis=1)
        raw[holes] = np.nan
    weights = rng.random(n) * 3 + 0.1 if rng.random() < 0.5 else None
    X = formed(rng, pick(rng, *IN_MEMORY, *LAZY), raw)
    model = GaussianMixture(k, random_state=0, n_init=2, **options).fit(X, sample_weight=weights)
    logs = np.log(model.weights_) + np.array([_log_densities(model, j, raw) for j in range(k)]).T
    total = np.logaddexp.reduce(logs, axis=1)
    shares, size = np.exp(logs - total[:, None]), 1e-5 * (1 + np.abs(total).max())
    close(plain(model.score_samples(X)), total, "score_samples", 1e-5, size)
    close(model.score(X), total.mean(), "score", 1e-5, size)
    close(plain(model.predict_proba(X)), shares, "predict_proba", 1e-3, 1e-5)
    labels = plain(model.labels_)
    assert (logs[np.arange(n), labels] >= logs.max(axis=1) - size).all()
    np.testing.assert_array_equal(plain(model.predict(X)), labels)
    masses = np.ones(n) if weights is None else weights
    sizes, table = masses @ shares, model.summary_
    close(model.cluster_sizes_, sizes, "cluster_sizes_", 1e-4, 1e-4 * masses.sum())
    close(table["cluster_share"], sizes / sizes.sum(), "shares in summary_", 1e-3, 1e-4)
    close(table.filter(regex="^mean_"), model.means_, "means in summary_")
    assert model.lower_bound_ == model.lower_bounds_[-1]
    assert len(model.lower_bounds_) == model.n_iter_


def _log_densities(model, j, raw):
    p, own = raw.shape[1], model.covariances_
    own = own if model.covariance_type_ == "tied" else own[j]
    covariance = own if np.ndim(own) == 2 else np.diag(np.broadcast_to(own, p))
    found = []
    for x in raw:
        held = ~np.isnan(x)
        own = model.means_[j][held], covariance[np.ix_(held, held)]
        found.append(multivariate_normal.logpdf(x[held], *own, allow_singular=True))
    return found


def check_scores(seed):
    """Scores of labels with or without outliers, in memory, lazy or on a grid, by scikit-learn."""
    rng = np.random.default_rng([seed, 84])
    n, p, k = int(rng.integers(12, 150)), int(rng.integers(1, 4)), int(rng.integers(2, 5))
    raw, labels = values_of(rng, n, p, k), rng.integers(k, size=n) * pick(rng, 1, 3)
    labels[rng.random(n) < pick(rng, 0.0, 0.2)] = -1
    form = pick(rng, *IN_MEMORY, "dask", "columns", "frame", "zarr", "raster", "lazy raster")
    X = formed(rng, form, raw)
    given = pick(rng, labels, labels.tolist(), da.from_array(labels, chunks=(cut(rng, n),)))
    if form in IN_MEMORY:
        series = pd.Series(labels)
        given = pick(
            rng, given, series, dd.from_pandas(series, npartitions=3), polars.Series(labels)
        )
    elif "raster" in form:
        given = xarray.DataArray(labels.reshape(X.shape[:2]), dims=("y", "x"))
        given = pick(rng, given, given.chunk({"x": 5}), given.transpose("x", "y"))
    rows, kept = raw[labels >= 0], labels[labels >= 0]
    if not 2 <= len(np.unique(kept)) < len(kept) or len(np.unique(rows, axis=0)) < 3:
        return
    for name in ("calinski_harabasz_score", "silhouette_score"):
        expected = getattr(sklearn.metrics, name)(rows, kept)
        close(float(getattr(metrics, name)(X, given)), expected, name, 1e-5, 1e-6)
    if "raster" in form:
        return
    true = rng.integers(3, size=n)
    for name in ("normalized_mutual_info_score", "adjusted_rand_score"):
        expected = getattr(sklearn.metrics, name)(true, labels)
        close(getattr(metrics, name)(true, given), expected, name, 1e-9, 1e-9)
