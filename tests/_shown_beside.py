"""What stands beside a model: trees, lists of rows, drift; each number computed naively."""

from __future__ import annotations

import numpy as np
import pandas as pd
from _shown import (
    CHECKS,
    case_of,
    close,
    distances,
    own_distances,
    plain,
)

import daskmm
from daskmm import ClusterTree, KMeans, vectors


def check_lists(seed, folder):
    """Lists, representatives, near duplicates and recall, in the model's distance."""
    case = case_of(seed)
    complete = getattr(case.model, "missing", "error") == "error"
    if case.kind not in ("sqeuclidean", "cosine") or not complete:
        return
    if "raster" in case.form or "sparse" in case.form:
        return
    model, rng, n = case.fit().model, np.random.default_rng(seed), len(case.raw)
    labels, _ = own_distances(case)
    d, k = distances(case, case.raw), len(model.cluster_centers_)
    ids = rng.permutation(n) + 100
    vectors.write_lists(model, case.X, folder / f"lists{seed}", ids=ids)
    central = vectors.representatives(model, case.X, 3, ids=ids)
    place = {number: row for row, number in enumerate(ids.tolist())}
    for j in range(k):
        own = np.flatnonzero(labels == j)
        found, rows = vectors.read_list(folder / f"lists{seed}", j)
        np.testing.assert_array_equal(found, ids[own])
        close(rows.astype(float), case.raw[own], "rows of a list")
        some = [place[number] for number in central[j].tolist()]
        assert set(some) <= set(own.tolist())
        close(d[some, j], np.sort(d[own, j])[:3], "representatives", 1e-5, 10 * case.slack)
    if case.kind == "cosine":
        unit = case.raw / np.linalg.norm(case.raw, axis=1, keepdims=True)
        apart = -unit @ unit.T
    else:
        z = (case.raw - model.mean_) / model.scale_
        z = z * np.sqrt(getattr(model, "feature_weights_", 1.0))
        apart = np.sqrt(np.square(z[:, None] - z[None]).sum(axis=2))
    limit = -0.95 if case.kind == "cosine" else np.quantile(apart, 0.03) * 1.0001 + 1e-9
    pairs = vectors.near_duplicates(model, case.X, threshold=abs(limit), ids=ids).pairs
    found = {frozenset((place[a], place[b])) for a, b, _ in pairs.tolist()}
    first, second = np.triu_indices(n, 1)
    near = (labels[first] == labels[second]) & (apart[first, second] <= limit)
    expected = set(map(frozenset, zip(first[near].tolist(), second[near].tolist(), strict=True)))
    for a, b in map(tuple, found ^ expected):  # only where rounding decides
        assert abs(apart[a, b] - limit) <= 1e-5 * abs(limit) + 3 * np.sqrt(case.slack)


def check_tree(seed, _):
    """The leaves of a tree are a model; labels of levels follow from theirs."""
    case = case_of(seed)
    scaled, complete = case.model.standardize, getattr(case.model, "missing", "error") == "error"
    if case.kind != "sqeuclidean" or not isinstance(case.model, KMeans) or not complete:
        return
    first = KMeans(n_init=1, standardize=scaled)
    tree = ClusterTree((2, 2), estimator=first, random_state=0)
    tree.fit(case.X, sample_weight=case.sample_weight, **case.dims)
    case.model = tree.leaves_
    for check in CHECKS:
        check(case)
    labels, own = own_distances(case)
    slack = case.slack * case.masses.sum()
    close(tree.inertia_, np.nansum(case.masses * own), "inertia_", case.exact, slack)
    found = case.rows(tree.predict(case.X, level=0, **case.dims))
    np.testing.assert_array_equal(found, tree.ancestors(0)[labels])


def check_drift(seed, _):
    """Means and shares in findings, and the mean distance of the reference."""
    case = case_of(seed)
    if "sparse" in case.form or "raster" in case.form:
        return
    model, raw = case.fit().model, case.raw
    labels, own = own_distances(case)
    watch, seen = daskmm.monitor(model, case.X), np.sqrt if case.squared else np.asarray
    close(watch.reference_cost, np.nanmean(seen(own)), "cost", 1e-4, 3 * seen(case.slack))
    bounded = case.kind not in ("sqeuclidean", "mahalanobis", "euclidean", "manhattan")
    later = np.vstack([raw] * 4) + (0.0 if bounded else 3.0 * np.nanstd(raw, axis=0))
    names = getattr(model, "feature_names_in_", None)
    batch = later if names is None else pd.DataFrame(later, columns=names)
    found, size = plain(model.predict(batch)), 10 * case.exact * np.nanmax(np.abs(later))
    for each in watch.look(batch).findings:
        now, before = found >= 0, labels >= 0
        if each.kind == "share":
            close(each.found, (found == each.cluster).sum() / now.sum(), "share", 1e-6, 1e-9)
            close(each.expected, (labels == each.cluster).sum() / before.sum(), "share", 1e-6, 1e-9)
        if each.kind in ("column", "column in cluster"):
            column = int(str(each.column).replace("feature ", "").lstrip("c"))
            if each.cluster is not None:
                now, before = found == each.cluster, labels == each.cluster
            close(each.found, np.nanmean(later[now, column]), "mean now", 1e-5, size)
            close(each.expected, np.nanmean(raw[before, column]), "mean before", 1e-5, size)
