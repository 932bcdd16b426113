"""Random tables and models, and each number that a fitted model shows, computed naively.

A case is made from one seed: raw rows, sample weights, a model, and the rows in one of many forms.
Each check takes a fitted case, computes what one surface shows from the raw rows and the labels by
definition, and raises AssertionError where the two differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars
import pyarrow
import scipy.sparse
import xarray
import zarr
from _fuzz import CENTERED, DOMAINS, cut
from _naive import power_means

import daskmm
from daskmm import EntropyPowerKMeans, KMeans
from daskmm.data.names import variance_of
from daskmm.plot.profiles import Profiles
from daskmm.report.means import Sampled, means_of

IN_MEMORY = ("numpy", "fortran", "list", "pandas", "repeated index", "dates", "polars", "arrow")
LAZY = ("dask", "one row", "empty chunks", "unknown", "columns", "frame", "zarr", "lazy polars")
FORMS = (*IN_MEMORY, *LAZY, "raster", "lazy raster", "sparse", "dask sparse")
DTYPES = ("f8", "f8", "f8", "f4", "f2", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
# Tables that cannot hold float16.
_WIDER = ("arrow", "polars", "lazy polars", "frame", "sparse", "dask sparse")


def pick(rng, *choices):
    return choices[int(rng.integers(len(choices)))]


@dataclass
class Case:
    """One fit: what goes in, in which form, and the model."""

    raw: np.ndarray  # the rows in float64, NaN where values are missing
    masses: np.ndarray  # the sample weights, or ones
    model: Any
    X: Any
    sample_weight: Any
    form: str
    exact: float = 1e-7  # relative error of numbers of the dtype

    @property
    def dims(self):
        return {"feature_dim": "band"} if "raster" in self.form else {}

    def fit(self):
        self.model.fit(self.X, sample_weight=self.sample_weight, **self.dims)
        return self

    def rows(self, values):
        """Results of rows as numpy, with one line per row."""
        values = plain(values)
        return values.reshape(len(self.raw), *values.shape[1 + len(self.dims) :])

    @property
    def kind(self):
        return getattr(self.model, "distortion", "sqeuclidean")

    @property
    def squared(self):
        return self.kind in ("sqeuclidean", "mahalanobis")

    @property
    def on_a_line(self):
        """Whether centres may coincide but for rounding, so that labels and sums part rows."""
        return self.kind == "cosine" and self.raw.shape[1] == 1

    @property
    def slack(self):
        """Rounding errors of distances: those of the terms of which they are differences."""
        if self.kind == "cosine":
            return self.exact
        scale = self.model.scale_
        if not self.squared:
            return self.exact * np.nanmax(np.abs(self.raw) / scale) * self.raw.shape[1] + 1e-300
        both = np.vstack([self.raw, self.model.cluster_centers_])
        size = np.nanmax(np.abs(both - self.model.mean_) / scale) ** 2
        return self.exact * (size + 1e-6 * np.nanmax(np.abs(both) / scale) ** 2) + 1e-300

    def __str__(self):
        weighted = "" if self.sample_weight is None else ", weighted"
        return f"{self.model} of {self.raw.shape} rows, {self.form}{weighted}"


def plain(values):
    return np.asarray(values.compute() if dask.is_dask_collection(values) else values)


def close(found, expected, what, rtol=1e-9, atol=0.0):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=what)


def values_of(rng, n, p, k):
    """Clouds, of which some have a constant column, copies, scales, an offset or zeros."""
    apart = pick(rng, 0, 3, 10)
    X = rng.normal(size=(n, p)) + apart * rng.normal(size=(k, p))[rng.integers(k, size=n)]
    kind = rng.integers(8)
    if kind == 0:
        X[:, 0] = pick(rng, 0.0, 1.0, -3.7)
    elif kind == 1:
        X = X[rng.integers(max(2, n // 3), size=n)]
    elif kind == 2:
        X *= 10.0 ** rng.integers(-3, 4, size=p)
    elif kind == 3:
        X += 10.0 ** rng.integers(1, 4)
    elif kind == 4:
        X *= rng.random(X.shape) < 0.4
    return X


def formed(rng, form, X):
    """The rows in a form."""
    n, p = X.shape
    names = [f"c{i}" for i in range(p)]
    lazy = da.from_array(X, chunks=((0, *cut(rng, n)), p))
    if form == "list":
        return X.tolist()
    if form in ("dask", "one row", "columns"):
        size = {"dask": int(rng.integers(1, n + 1)), "one row": 1, "columns": -(-n // 3)}[form]
        return da.from_array(X, chunks=(size, 1 if form == "columns" else -1))
    if form == "unknown":
        chunks = ((np.nan,) * lazy.numblocks[0], lazy.chunks[1])
        return lazy.map_blocks(lambda block: block, chunks=chunks, meta=lazy._meta)
    if form in ("pandas", "repeated index", "dates", "frame"):
        frame = pd.DataFrame(X, columns=names)
        if form == "repeated index":
            frame.index = rng.integers(0, 3, size=n)
        elif form == "dates":
            frame.index = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.permutation(n), "D")
        elif form == "frame":
            return dd.from_pandas(frame, npartitions=int(rng.integers(1, 5)), sort=False)
        return frame
    if form in ("polars", "lazy polars"):
        frame = polars.DataFrame({name: X[:, i] for i, name in enumerate(names)})
        return frame.lazy() if form == "lazy polars" else frame
    if form == "arrow":
        return pyarrow.table({name: X[:, i] for i, name in enumerate(names)})
    if form == "zarr":
        store, chunks = zarr.storage.MemoryStore(), (int(rng.integers(1, n + 1)), p)
        array = zarr.create_array(store, shape=X.shape, chunks=chunks, dtype=X.dtype)
        array[...] = X
        return array
    if "raster" in form:
        height = next(h for h in (7, 5, 4, 3, 2, 1) if n % h == 0)
        cube = xarray.DataArray(X.reshape(height, n // height, p), dims=("y", "x", "band"))
        return cube.chunk({"y": 1, "x": 3}) if form == "lazy raster" else cube
    if form == "sparse":
        return pick(rng, scipy.sparse.csr_array, scipy.sparse.csc_matrix)(X)
    if form == "dask sparse":
        return lazy.map_blocks(scipy.sparse.csr_matrix)
    return {"fortran": np.asfortranarray(X), "empty chunks": lazy}.get(form, X)


def case_of(seed):
    """A case of numbers and a model with centres, before its fit."""
    rng = np.random.default_rng([seed, 80])
    cls, form = CENTERED[seed % 3], pick(rng, *FORMS)
    n, p, k = int(rng.integers(8, 90)), int(rng.integers(1, 5)), int(rng.integers(1, 5))
    found = {"n_clusters": k, "n_init": 2, "random_state": int(rng.integers(100))}
    kind = "sqeuclidean"
    if "sparse" in form and cls is not EntropyPowerKMeans:
        kind = pick(rng, "sqeuclidean", "cosine", "kl")
    elif "sparse" not in form and rng.random() < 0.5:
        kind = pick(rng, *DOMAINS, "mahalanobis", "euclidean", "manhattan", "cosine")
        kind = "manhattan" if cls is EntropyPowerKMeans else kind
    scaled = kind in ("sqeuclidean", "euclidean", "manhattan")
    found["standardize"] = scaled and pick(rng, True, False, "auto")
    if cls is EntropyPowerKMeans:
        found |= {"standardize": found["standardize"] is True, "lam": pick(rng, 0.1, 1.0, np.inf)}
    if kind != "sqeuclidean":
        found["distortion"] = kind
    if cls is not KMeans:
        found["eta"] = 1.5
        found["polish"] = rng.random() < 0.9
    if rng.random() < 0.2:
        found["max_iter"] = int(rng.integers(1, 5))
    X = DOMAINS.get(kind, np.asarray)(values_of(rng, n, p, k))
    dtype = np.dtype(pick(rng, *DTYPES))
    dtype = np.dtype("f4") if dtype == "f2" and form in _WIDER else dtype
    if dtype.kind in "iu":
        X = np.clip(np.rint(X), -100, 100)
        X = np.abs(X) if dtype.kind == "u" else X
        X = np.maximum(X, 1) if kind in ("itakura-saito", "gamma") else X
    if kind == "cosine":
        X[(X == 0).all(axis=1)] = 1.0
    X = X.astype(dtype)
    dense = dtype.kind == "f" and "sparse" not in form
    if dense and kind not in ("mahalanobis", "cosine") and rng.random() < 0.4:
        found |= {"missing": "partial", "empty_rows": "label"}
        holes = rng.random(X.shape) < pick(rng, 0.05, 0.3)
        holes |= rng.random((n, 1)) < pick(rng, 0.0, 0.1)
        holes[0] = False
        X[holes] = np.nan
    if kind != "mahalanobis" and rng.random() < 0.2:
        found["trim"] = pick(rng, 0.05, 0.25)
    if kind == "sqeuclidean" and rng.random() < 0.1:
        found |= {"n_clusters": "auto", "max_clusters": 6}
    elif "missing" not in found and kind != "mahalanobis" and rng.random() < 0.15:
        found["init"] = X[rng.choice(n, k, replace=False)].astype(float)
    weights, masses = None, np.ones(n)
    if rng.random() < 0.5:
        masses = rng.random(n) * 3 + 0.01
        how = pick(rng, "float", "integers", "zeros", "u1", "lazy")
        if how == "integers":
            masses = rng.integers(1, 5, size=n)
        elif how == "zeros":
            masses[k + 1 :] *= rng.random(n - k - 1) < 0.6
        elif how == "u1":
            masses = rng.integers(1, 250, size=n).astype("u1")
        weights = da.from_array(masses, chunks=(cut(rng, n),)) if how == "lazy" else masses
        masses = masses.astype(float)
    exact = {"f2": 2e-3, "f4": 2e-5}.get(dtype.str[1:], 2e-5 if dtype.itemsize < 4 else 1e-7)
    X_in_form = formed(rng, form, X)
    return Case(X.astype(float), masses, cls(**found), X_in_form, weights, form, exact)


def distances(case, raw):
    """Distances of rows to the centres by their definition; missing values are left out."""
    model, x = case.model, raw[:, None, :]
    c, kind = model.cluster_centers_[None], case.kind
    with np.errstate(all="ignore"):
        if kind == "mahalanobis":
            return np.einsum("nkp,pq,nkq->nk", x - c, model.precision_, x - c)
        if kind == "cosine":
            return 1 - (x * c).sum(axis=2) / np.linalg.norm(x, axis=2)
        if kind in ("sqeuclidean", "euclidean"):
            parts = ((x - c) / model.scale_) ** 2
        elif kind == "manhattan":
            parts = np.abs((x - c) / model.scale_)
        elif kind in ("kl", "poisson"):
            parts = np.where(x == 0, 0.0, x * np.log(x / c)) - x + c
        elif kind in ("itakura-saito", "gamma"):
            parts = x / c - np.log(x / c) - 1
        else:
            parts = np.where(x == 0, 0.0, x * np.log(x / c))
            parts += np.where(x == 1, 0.0, (1 - x) * np.log((1 - x) / (1 - c)))
        found = np.nansum(getattr(model, "feature_weights_", 1.0) * parts, axis=2)
    found[np.isnan(raw).all(axis=1)] = np.nan
    return np.sqrt(found) if kind == "euclidean" else found


def kept_masses(model, masses, own):
    """Weights of rows after `trim`, which takes that share from the farthest ones."""
    kept = np.where(np.isnan(own), 0.0, masses)
    left = model.trim * kept.sum()
    for row in np.argsort(-np.nan_to_num(own), kind="stable"):
        gone = min(left, kept[row])
        kept[row], left = kept[row] - gone, left - gone
    return kept


def own_distances(case):
    """Labels, and the distance of each row to its centre; NaN for rows without any value."""
    labels, d = case.rows(case.model.labels_), distances(case, case.raw)
    return labels, np.where(labels < 0, np.nan, d[np.arange(len(d)), np.maximum(labels, 0)])


def has_ties(case, own):
    """Whether rows may be tied at the limit of `trim`, so that it may leave out any of them."""
    held = own[~np.isnan(own)]
    return bool(case.model.trim) and len(np.unique(np.round(held, 9))) < len(held)


def naive_means(case, labels, masses):
    """Means of the clusters, and the share of their weight that has a value."""
    held, raw = ~np.isnan(case.raw), np.nan_to_num(case.raw)
    if case.kind == "cosine":
        raw = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    means, shares = np.full((2, *case.model.cluster_centers_.shape), np.nan)
    for j in np.unique(labels[masses > 0]):
        own = masses[:, None] * held * (labels == j)[:, None]
        at = own.sum(axis=0)
        shares[j] = at / masses[labels == j].sum()
        sums = (own * raw).sum(axis=0)
        means[j] = np.where(at > 0, sums / np.maximum(at, 1e-300), case.model.cluster_centers_[j])
    if case.kind == "cosine":
        means /= np.linalg.norm(means, axis=1, keepdims=True)
    return means, shares


# What each surface shows


def check_labels(case):
    labels, own = own_distances(case)
    assert ((labels == -1) == np.isnan(case.raw).all(axis=1)).all(), "rows without any value"
    least = np.min(distances(case, case.raw), axis=1)
    far = own > least + np.maximum(10 * case.slack, 1e-6 * np.abs(least))
    assert not far.any(), "labels are not nearest"
    found = case.rows(case.model.predict(case.X, **case.dims))
    np.testing.assert_array_equal(found, labels, "predict")


def check_sums(case):
    """The cost and the score, sizes, means, shares, and the table of clusters."""
    model, (labels, own) = case.model, own_distances(case)
    slack = case.slack * case.masses.sum()
    whole = np.nansum(case.masses * own)
    score = model.score(case.X, sample_weight=case.sample_weight, **case.dims)
    close(-score, whole, "score", case.exact, slack)
    if not np.nanmax(own):  # equal rows at centres that coincide
        return
    masses = kept_masses(model, case.masses, own)
    close(model.inertia_, np.nansum(masses * own), "inertia_", case.exact, slack)
    close(model.cluster_sizes_.sum(), masses.sum(), "sum of cluster_sizes_")
    assert model.n_samples_seen_ == len(case.raw)
    if has_ties(case, own) or case.on_a_line:
        return
    sizes = np.bincount(np.maximum(labels, 0), masses, len(model.cluster_centers_))
    table = model.summary_
    close(model.cluster_sizes_, sizes, "cluster_sizes_", 1e-9, 1e-9 * masses.sum())
    close(table["cluster_size"], sizes, "sizes in summary_", 1e-9, 1e-9 * masses.sum())
    close(table["cluster_share"], sizes / sizes.sum(), "shares in summary_", 1e-9, 1e-9)
    means, shares = naive_means(case, labels, masses)
    if case.kind not in ("euclidean", "manhattan"):
        size = case.exact * np.nanmax(np.abs(case.raw))
        close(model.cluster_means_, means, "cluster_means_", case.exact, size)
        shown = table.filter(regex="^(mean|direction)_")
        close(shown, means, "means in summary_", case.exact, size)
    # Those of distances with medians as centres are estimated from all rows of a sample.
    if hasattr(model, "value_shares_") and (hasattr(model, "cluster_means_") or not model.trim):
        close(model.value_shares_, shares, "value_shares_")
    for name in [] if model.trim else table.filter(regex="^missing_"):
        column = int(name.rsplit("_", 1)[1].lstrip("cx"))
        close(table[name], 1 - shares[:, column], name, 1e-7, 1e-9)


def check_distances(case):
    """Distances, scores of samples, outliers, and probabilities at the model's power."""
    model, (labels, own) = case.model, own_distances(case)
    d, within = distances(case, case.raw), ~np.isnan(own)
    seen = np.sqrt if case.squared else np.asarray
    slack = 3 * seen(case.slack)
    found = case.rows(model.transform(case.X, **case.dims))
    assert np.isnan(found[~within]).all()
    close(found[within], seen(d[within]), "transform", 2e-5, slack)
    typical, expected = seen(model.typical_distances_), np.full(len(own), np.nan)
    expected[within] = -seen(own[within]) / typical[labels[within]]
    scores = case.rows(model.score_samples(case.X, **case.dims))
    close(scores, expected, "score_samples", 2e-5, slack / typical.min())
    for share in (0.1, 0.3):
        marked = case.rows(model.predict(case.X, outliers=share, **case.dims))
        gone = (marked == -1) & within
        np.testing.assert_array_equal(marked[~gone], labels[~gone], "labels beside outliers")
        assert case.masses[gone].sum() <= share * case.masses[within].sum() + case.masses.max()
    sure = within & (np.min(d, axis=1) > 1e3 * case.slack) & np.isfinite(d).all(axis=1)
    if case.exact <= 1e-7 and model.membership_power_ > -1e4 and sure.any():
        phi, _ = power_means(d[sure], model.membership_power_)
        found = case.rows(model.predict_proba(case.X, **case.dims))[sure]
        close(found, phi / phi.sum(axis=1, keepdims=True), "predict_proba", 1e-3, 1e-4)


def check_typical_distances(case):
    """Weighted medians, from histograms whose bins are narrower than .4 %."""
    model, (labels, own) = case.model, own_distances(case)
    if model.trim:
        return
    for j in np.unique(labels[(labels >= 0) & (case.masses > 0)]):
        rows = np.flatnonzero((labels == j) & (case.masses > 0))
        rows = rows[np.argsort(own[rows])]
        sums, at = np.cumsum(case.masses[rows]), own[rows]
        low = at[np.searchsorted(sums, 0.5 * sums[-1] * (1 - 1e-9))]
        high = at[np.searchsorted(sums, 0.5 * sums[-1] * (1 + 1e-9)).clip(max=len(at) - 1)]
        found, slack = model.typical_distances_[j], 3 * case.slack
        if high > slack:
            assert low * (1 - 4e-3) - slack <= found <= high * (1 + 4e-3) + slack, (j, low, high)


def check_history(case):
    model = case.model
    exact = [record for record in model.history_ if record.exact]
    assert model.objective_history_.tolist() == [record.objective for record in exact]
    assert model.n_passes_ >= model.n_iter_ >= len(exact)
    assert model.n_clusters_ == len(model.cluster_centers_)


def check_pictures_and_reports(case):
    """Variances and means of all rows, and what profiles draw, from the model and from rows."""
    model, (labels, _) = case.model, own_distances(case)
    if model.trim or case.on_a_line:
        return
    held = ~np.isnan(case.raw) & (labels >= 0)[:, None]
    masses, raw = case.masses[:, None] * held, np.nan_to_num(case.raw)
    mean = (masses * raw).sum(axis=0) / masses.sum(axis=0)
    variance = (masses * np.square(raw - mean)).sum(axis=0) / masses.sum(axis=0)
    size = np.abs(raw).max() + 1e-300
    if variance_of(model) is not None:
        close(variance_of(model), variance, "variance", 1e-3, 100 * case.exact * size**2)
    counts = np.bincount(labels[labels >= 0], minlength=len(model.cluster_centers_))
    profiles = Profiles.of(model)
    if profiles.sizes is not None:
        np.testing.assert_array_equal(profiles.sizes, counts)
    if profiles.unit == "standard deviations of the data" and hasattr(model, "cluster_means_"):
        spread = np.sqrt(variance)
        some = spread > 1e-4 * size
        expected = (profiles.centers - mean)[:, some] / spread[some]
        slack = 1e-3 + 100 * case.exact * size / spread[some].min(initial=np.inf)
        close(profiles.deviations[:, some], expected, "profiles", 1e-3, slack)
    if case.kind in ("cosine", "euclidean", "manhattan"):
        return
    for sampled in (None, Sampled(case.raw, labels)):
        found = means_of(model, counts, sampled)
        close(found.overall, mean, "means of all rows", 1e-5, 10 * case.exact * size)


def check_saved(case, folder):
    path = folder / "model"
    case.model.save(path, overwrite=True)
    other = daskmm.load(path)
    names = ("cluster_centers_", "inertia_", "n_iter_", "typical_distances_", "membership_power_")
    for name in names:
        np.testing.assert_array_equal(getattr(other, name), getattr(case.model, name), name)
    pd.testing.assert_frame_equal(other.summary_, case.model.summary_)
    labels = case.rows(case.model.labels_)
    np.testing.assert_array_equal(case.rows(other.predict(case.X, **case.dims)), labels)


def check_export(case):
    """scikit-learn's estimator assigns rows to centres that are as near."""
    complete = getattr(case.model, "missing", "error") == "error"
    if case.kind not in ("sqeuclidean", "cosine") or not complete:
        return
    rows, names = case.raw, getattr(case.model, "feature_names_in_", None)
    found = case.model.to_sklearn().predict(
        rows if names is None else pd.DataFrame(rows, columns=names)
    )
    _, own = own_distances(case)
    d = distances(case, case.raw)[np.arange(len(own)), found]
    assert (np.abs(d - own) <= 100 * case.slack + 1e-6 * own).all(), "to_sklearn"


CHECKS = (
    *(check_labels, check_sums, check_distances, check_typical_distances, check_history),
    *(check_pictures_and_reports, check_export),
)


def check_updates(case, seed):
    """Sizes, means and shares after calls of partial_fit: sums over the rows of fit and calls."""
    model, rng = case.model, np.random.default_rng([seed, 83])
    names = getattr(model, "feature_names_in_", None)
    sums_known = hasattr(model, "cluster_means_")
    sizes, n_rows = model.cluster_sizes_.copy(), model.n_samples_seen_
    held = np.nan_to_num(getattr(model, "value_shares_", np.ones_like(model.cluster_centers_)))
    masses = sizes[:, None] * held
    sums = np.nan_to_num(model.cluster_means_) * masses if sums_known else 0.0
    for _ in range(2):
        raw = case.raw[rng.integers(len(case.raw), size=int(rng.integers(3, 2 * len(case.raw))))]
        weights = rng.random(len(raw)) + 0.1
        rows = raw if names is None else pd.DataFrame(raw, columns=names)
        labels, d = plain(model.predict(rows)), distances(case, raw)
        own = np.where(labels < 0, np.nan, d[np.arange(len(d)), np.maximum(labels, 0)])
        if has_ties(case, own):
            return
        own = kept_masses(model, weights, own)
        model.partial_fit(rows, sample_weight=weights)
        one_hot = own[:, None] * (labels[:, None] == np.arange(len(sizes)))
        sizes, n_rows = sizes + one_hot.sum(axis=0), n_rows + len(raw)
        masses = masses + one_hot.T @ ~np.isnan(raw)
        assert model.n_samples_seen_ == n_rows
        close(model.cluster_sizes_, sizes, "cluster_sizes_", 1e-9, 1e-9 * sizes.sum())
        if not sums_known:
            continue
        sums = sums + one_hot.T @ np.nan_to_num(raw)
        some, size = masses > 1e-9, 1e-6 * np.nanmax(np.abs(case.raw))
        close(
            model.cluster_means_[some],
            (sums / np.maximum(masses, 1e-300))[some],
            "means",
            1e-5,
            size,
        )
        if hasattr(model, "value_shares_"):
            full = sizes > 0
            close(model.value_shares_[full], (masses / sizes[:, None])[full], "shares", 1e-6, 1e-6)
