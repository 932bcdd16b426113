"""Random inputs for all estimators, each from one seed, and what must hold of what comes out."""

from __future__ import annotations

import re
import signal
import warnings
from contextlib import contextmanager

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import scipy.sparse
import zarr
from sklearn.exceptions import ConvergenceWarning

from daskmm import (
    EntropyPowerKMeans,
    KernelPowerKMeans,
    KMeans,
    MultiKernelPowerKMeans,
    PowerKMeans,
    WeightedBlurringMeanShift,
)

ALL = (
    KMeans,
    PowerKMeans,
    EntropyPowerKMeans,
    KernelPowerKMeans,
    MultiKernelPowerKMeans,
    WeightedBlurringMeanShift,
)
CENTERED = (KMeans, PowerKMeans, EntropyPowerKMeans)
# Seconds that no input may take; a fit takes a tenth of one.
HANG_SECONDS = 120


# How often values are of a kind, and tables of a form.
KINDS = {
    **{"blobs": 0.2, "normal": 0.12, "lattice": 0.12, "constant": 0.04, "copies": 0.08},
    **{"far": 0.08, "scaled": 0.06, "huge": 0.05, "tiny": 0.05, "mixed": 0.05},
    **{"spoiled": 0.05, "outlier": 0.05, "zeros": 0.05},
}
FORMS = {
    **{"numpy": 0.2, "fortran": 0.04, "strided": 0.04, "reversed": 0.03, "readonly": 0.04},
    **{"list": 0.03, "pandas": 0.06, "masked": 0.03, "sparse": 0.02, "dask": 0.2},
    **{"columns": 0.06, "unknown": 0.08, "frame": 0.06, "zarr": 0.06, "dask masked": 0.03},
    **{"dask sparse": 0.02},
}


def pick(rng, shares):
    return rng.choice([*shares], p=[*shares.values()])


def values_of(rng):
    """A table of float64, ordinary or not."""
    n = int(rng.choice([0, 1, 2, 3, 5, 8, 13, 20, 40, 80, 200], p=[0.02] + [0.098] * 10))
    p = int(rng.choice([0, 1, 2, 3, 5, 9, 30], p=[0.02, 0.18, 0.25, 0.25, 0.15, 0.1, 0.05]))
    kind = pick(rng, KINDS)
    X = rng.normal(size=(n, p))
    if kind == "blobs":
        X += 10 * rng.normal(size=(4, p))[rng.integers(4, size=n)]
    elif kind == "lattice":
        X = rng.integers(-2, 3, size=(n, p)).astype(float)
    elif kind == "constant":
        X[:] = rng.choice([0.0, 1.0, -3.7, 1e150, 5e-324])
    elif kind == "copies" and n:
        X = X[rng.integers(min(n, 3), size=n)]
    elif kind == "far":
        X += 10.0 ** rng.integers(2, 9)
    elif kind == "scaled":
        X *= 10.0 ** rng.integers(-9, 9, size=p)
    elif kind == "huge":
        X *= 10.0 ** rng.integers(100, 308)
    elif kind == "tiny":
        X *= 10.0 ** -float(rng.integers(100, 320))
    elif kind == "mixed" and p:
        X[:, 0] *= 10.0 ** rng.integers(-300, 300)
    elif kind == "spoiled" and X.size:
        X[rng.integers(n), rng.integers(p)] = rng.choice([np.nan, np.inf, -np.inf])
    elif kind == "outlier" and X.size:
        X[rng.integers(n)] *= 10.0 ** rng.integers(3, 200)
    elif kind == "zeros":
        X *= rng.random((n, p)) < 0.3
    return X


DTYPES = ["f8", "f4", "f2", "i1", "u1", "i2", "i4", "i8", "u8", "?", ">f8", ">f4", ">i4"]
ODD_DTYPES = ["g", "O", "c16", "U", "M8[s]"]


def typed(rng, X):
    """The values in some dtype, which may be none of numbers."""
    if rng.random() < 0.35:
        return X
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of values that the dtype does not hold
        if rng.random() < 0.07:
            return X.astype(rng.choice(ODD_DTYPES))
        dtype = np.dtype(str(rng.choice(DTYPES)))
        if dtype.kind in "iu" and rng.random() < 0.5:
            return (X * 10).astype(dtype)
        return X.astype(dtype)


def cut(rng, n):
    """Random chunk sizes of n, some of them 0."""
    ends = np.sort(rng.integers(0, n + 1, size=rng.integers(0, 6)))
    return tuple(int(size) for size in np.diff([0, *ends, n]))


def formed(rng, X):
    """A table as the user may have it."""
    numeric = X.dtype.kind in "fiub"
    form = pick(rng, FORMS)
    if form == "fortran":
        return np.asfortranarray(X)
    if form == "strided":
        return np.repeat(np.repeat(X, 2, axis=0), 2, axis=1)[::2, ::2]
    if form == "reversed":
        return X[::-1, ::-1]
    if form == "readonly":
        X = X.copy()
        X.flags.writeable = False
        return X
    if form == "list":
        return X.tolist()
    native = X.astype(X.dtype.newbyteorder("="))
    if form == "pandas":
        return pd.DataFrame(native, columns=[f"c{i}" for i in range(X.shape[1])])
    if form == "masked":
        return np.ma.masked_array(X, mask=rng.random(X.shape) < rng.choice([0, 0.01, 0.1]))
    if form == "sparse" and numeric and X.dtype.char not in "eg":
        return scipy.sparse.csr_array(native)
    if form == "frame" and len(X) and X.shape[1]:
        frame = pd.DataFrame(native, columns=[f"c{i}" for i in range(X.shape[1])])
        return dd.from_pandas(frame, npartitions=int(rng.integers(1, 5)), sort=False)
    if form == "zarr" and numeric and X.size and X.dtype.char != "g":
        array = zarr.create_array(
            zarr.storage.MemoryStore(),
            shape=X.shape,
            chunks=(int(rng.integers(1, len(X) + 1)), X.shape[1]),
            dtype=native.dtype,
        )
        array[...] = native
        return array
    if form in ("numpy", "sparse", "frame", "zarr"):
        return X
    columns = X.shape[1] if form != "columns" else cut(rng, X.shape[1])
    lazy = da.from_array(X, chunks=(cut(rng, len(X)), columns))
    if form == "unknown" and X.shape[1]:
        chunks = ((np.nan,) * lazy.numblocks[0], lazy.chunks[1])
        return lazy.map_blocks(lambda block: block, chunks=chunks, meta=lazy._meta)
    # numpy's fill value is beyond float16, of which it warns.
    if form == "dask masked" and numeric and X.dtype.char != "e":
        return da.ma.masked_array(
            lazy, mask=da.from_array(rng.random(X.shape) < 0.02, chunks=lazy.chunks)
        )
    if form == "dask sparse" and numeric and X.dtype.char not in "eg" and X.dtype.isnative:
        return lazy.map_blocks(scipy.sparse.csr_matrix)
    return lazy


def weights_of(rng, n):
    """Sample weights, or none; usable or not."""
    if rng.random() < 0.6:
        return None
    kind = rng.integers(12)
    weights = rng.random(n) + 0.1
    if kind == 0:
        weights = rng.integers(0, 3, size=n)
    elif kind == 1:
        weights *= 10.0 ** rng.integers(-300, 300)
    elif kind == 2:
        weights[rng.random(n) < 0.9] = 0
    elif kind == 3:
        weights[:] = 0
    elif kind == 4 and n:
        weights[rng.integers(n)] = rng.choice([-1.0, np.nan, np.inf])
    elif kind == 5:
        weights = rng.random(n + int(rng.integers(0, 3)))
    elif kind == 6:
        weights = float(rng.random())
    elif kind == 7:
        weights = weights.tolist()
    elif kind == 8:
        weights = weights[:, None]
    elif kind == 9:
        weights *= 10.0 ** rng.integers(-300, 300, size=n)
    elif kind in (10, 11):
        weights = da.from_array(weights, chunks=(cut(rng, n),))
    return weights


def parameters_of(cls, rng, n, p):
    """Parameters, now and then one that makes no sense."""
    k = int(rng.choice([1, 2, 3, 5, 8, 30], p=[0.1, 0.25, 0.3, 0.2, 0.1, 0.05]))
    found = {"random_state": int(rng.integers(1000)), "max_iter": int(rng.integers(1, 40))}

    def maybe(name, share, *choices):
        if rng.random() < share:
            found[name] = choices[int(rng.integers(len(choices)))]

    maybe("standardize", 0.3, True, False)
    if cls is WeightedBlurringMeanShift:
        maybe("bandwidth", 0.6, 0.01, 0.3, 2.0, 1e-12, 1e12)
        maybe("lam", 0.4, 1e-9, 0.1, 100.0, np.inf)
        maybe("convention", 0.5, "auto", "paper", "reference")
        maybe("merge_tol", 0.2, 0.0, 1e-3, 1.0)
        maybe("component_tol", 0.2, 0.0, 1e-2)
        maybe("bandwidth", 0.02, 0.0, -1.0, np.nan, "wide", None)
        maybe("lam", 0.02, 0.0, "much")
        return found
    found["n_clusters"] = k
    maybe("tol", 0.3, 0.0, 1e-8, 0.1)
    maybe("n_init", 0.4, 1, 2, 3)
    maybe("n_clusters", 0.02, 0, -1, 2.5, "many", None)
    maybe("tol", 0.02, -1.0, "low", np.nan)
    maybe("max_iter", 0.02, 0, None)
    if cls is not KMeans:
        maybe("s0", 0.4, -0.2, -1, -3.0, -50.0, -1e6, -1e-3)
        maybe("eta", 0.5, 1.0, 1.05, 1.5, 10.0, 1e9)
        maybe("anneal_every", 0.2, 2, 5)
        maybe("polish", 0.3, True, False)
        maybe("s0", 0.02, 0.0, 1.0, np.nan, "cold")
        maybe("eta", 0.02, 0.5, np.inf, np.nan)
    if cls in CENTERED:
        maybe("init", 0.4, "k-means++", "k-means||", "random")
        maybe("init", 0.1, rng.normal(size=(k, p)), 1e200 * rng.normal(size=(k, p)))
        maybe("init", 0.03, "guess", np.full((k, p), np.nan), np.zeros((k + 1, p)))
        maybe("sample_size", 0.3, None, k, 20, 10**6)
        maybe("sample_size", 0.02, 0, -5, 1.5)
        maybe("persist", 0.3, True, False, "auto")
    if cls in (EntropyPowerKMeans, MultiKernelPowerKMeans):
        maybe("lam", 0.5, 1e-12, 0.05, 1.0, 1e9, np.inf)
        maybe("lam", 0.02, 0.0, -1.0, "much")
    if cls in (KernelPowerKMeans, MultiKernelPowerKMeans):
        maybe("init", 0.3, "random", np.arange(n) % max(k, 1))
        maybe("gram", 0.5, "recompute", "auto")
    if cls is KernelPowerKMeans:
        maybe("kernel", 0.8, "rbf", "laplacian", "polynomial", "linear", "cosine", "angular")
        maybe("kernel", 0.03, "guess", "precomputed", lambda x, y: x @ y.T, lambda x, y: np.inf)
        maybe("bandwidth", 0.3, 1e-6, 1.0, 1e6)
        maybe("n_landmarks", 0.3, "auto", k, 10, 50)
    if cls is MultiKernelPowerKMeans:
        maybe("kernels", 0.7, ["rbf", "linear"], ["cosine", "laplacian", "polynomial"], ["rbf"])
        maybe("kernels", 0.02, [], ["guess"], "rbf")
    return found


# What values of a distortion are to be, when they are to be right.
DOMAINS = {
    **dict.fromkeys(("kl", "poisson"), np.abs),
    **dict.fromkeys(("itakura-saito", "gamma"), lambda X: np.abs(X) + 1e-3),
    "logistic": lambda X: np.abs(X) / (np.abs(X) + 1),
}
DISTORTIONS = ("sqeuclidean", *DOMAINS, "mahalanobis", "euclidean", "manhattan")


def measured_otherwise(cls, rng, X):
    """Parameters of how distances are measured, and values for them, with holes or without."""
    found = {}
    if cls in CENTERED and rng.random() < 0.3:
        found["empty_cluster"] = str(rng.choice(["farthest", "restart", "error"]))
    if cls not in (KMeans, PowerKMeans):
        return found, X
    if rng.random() < 0.4:
        found["distortion"] = str(rng.choice(DISTORTIONS))
        if found["distortion"] in DOMAINS and rng.random() < 0.8:
            with np.errstate(all="ignore"):
                X = DOMAINS[found["distortion"]](X)
        if rng.random() < 0.9:
            found["standardize"] = False
    elif rng.random() < 0.1:
        found["standardize"] = "auto"
    if rng.random() < 0.25:
        found["missing"] = "partial"
        if rng.random() < 0.8:
            X = np.where(rng.random(X.shape) < rng.choice([0.01, 0.2, 0.5]), np.nan, X)
    return found, X


def further_options(cls, rng):
    """Options that leave rows out, or bound clusters, beside all others."""
    found = {}
    if cls not in CENTERED:
        return found
    if rng.random() < 0.12:
        found["trim"] = rng.choice([0.02, 0.1, 0.3])
    if rng.random() < 0.15:
        found["max_cluster_size"] = (np.float32(1.25), 1.5, 2.5, np.int64(30))[rng.integers(4)]
    if rng.random() < 0.1:
        found["empty_rows"] = "label"
    return found


class Hung(Exception):  # noqa: N818
    """An input took far longer than any should."""


@contextmanager
def no_hang(seconds=HANG_SECONDS):
    def stop(*_):
        raise Hung

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# Beginnings of scikit-learn's own words about X.
_OF_THE_TABLE = (
    r"\bX\b|[Ff]ound array with|Expected 2D array|Reshape your data|n_samples|Input |Sparse|"
    "Gram matrix"
)


def names_an_argument(message, parameters):
    """Whether an error says which argument is at fault."""
    names = "|".join(rf"\b{name.removesuffix('s')}s?\b" for name in (*parameters, "sample_weight"))
    return re.search(f"{_OF_THE_TABLE}|{names}", message) is not None


def computed(value):
    return np.asarray(value.compute() if dask.is_dask_collection(value) else value)


def check_model(model, X, weights, n):
    """What holds of every fitted model."""
    labels = computed(model.labels_)
    clusters = model.n_clusters_ if hasattr(model, "n_clusters_") else model.n_clusters
    assert labels.shape == (n,)
    assert labels.dtype == np.int32
    within = labels >= 0
    nowhere = -1 if getattr(model, "empty_rows", "error") == "label" else 0
    assert labels.min() >= nowhere
    assert labels.max() < clusters
    if hasattr(model, "cluster_sizes_"):
        given = 1.0 if weights is None else computed(weights).astype(float)
        held = np.broadcast_to(given, n)[within]
        sizes = np.bincount(labels[within], held, minlength=clusters)
        total = sizes.sum() * (1.0 - getattr(model, "trim", 0.0))
        assert abs(model.cluster_sizes_.sum() - total) <= 1e-9 * total
        assert (model.cluster_sizes_ <= sizes + 1e-9 * total).all()
    for name in ("feature_weights_", "kernel_weights_"):
        if hasattr(model, name):
            simplex = getattr(model, name)
            assert (simplex >= 0).all()
            assert abs(simplex.sum() - 1) < 1e-9
    for name in (
        "cluster_centers_",
        "objective_history_",
        "inertia_",
        "bandwidth_",
        "memberships_",
    ):
        if hasattr(model, name):
            assert np.isfinite(np.asarray(getattr(model, name), dtype=float)).all(), name
    assert 1 <= model.n_iter_ <= max(model.max_iter, 50)
    if hasattr(model, "inertia_"):
        assert model.inertia_ >= 0
        score = model.score(X, sample_weight=weights)
        assert score <= 0
        scale = max(abs(model.inertia_), -score, _rounding(model, computed_rows(X), n, weights))
        # Numbers too small to have all digits are as good as 0.
        too_large = model.inertia_ + score
        if not getattr(model, "trim", 0.0):
            too_large = abs(too_large)
        assert too_large <= 1e-6 * scale + 1e-300, (model.inertia_, score)
    found = computed(model.predict(X))
    assert found.shape == (n,)
    assert found.min() >= nowhere
    assert found.max() < clusters
    if hasattr(model, "transform"):
        distances = computed(model.transform(X))
        assert distances.shape == (n, clusters)
        assert not np.isnan(distances[within]).any()
        # Centres at an edge of the domain are infinitely far from rows that are not there.
        if getattr(model, "distortion", None) not in ("kl", "poisson", "logistic"):
            assert np.isfinite(distances[within]).all()
        assert (distances[within] >= 0).all()
        if model.__class__ in CENTERED and weights is None:
            np.testing.assert_array_equal(found, labels)


def computed_rows(X):
    """Any table that was fitted, as numbers in memory."""
    if isinstance(X, zarr.Array):
        return np.asarray(X[...], dtype=float)
    rows = X.compute() if dask.is_dask_collection(X) else X
    return np.asarray(rows.toarray() if scipy.sparse.issparse(rows) else rows, dtype=float)


def _rounding(model, rows, n, weights):
    """Size of the terms of which the inertia is a difference."""
    total = n if weights is None else float(np.sum(computed(weights)))
    distortion = getattr(model, "distortion", "sqeuclidean")
    rows = np.where(np.isnan(rows), 0.0, rows)
    if distortion in ("kl", "poisson", "euclidean", "manhattan"):
        return total * float(np.abs(rows).max(initial=0.0)) * rows.shape[1]
    if distortion in ("itakura-saito", "gamma", "logistic"):
        return total * rows.shape[1]
    if hasattr(model, "mean_") and hasattr(model, "cluster_centers_"):
        z = (rows - model.mean_) / model.scale_
        offset = 1e-9 * np.abs(rows / model.scale_).max(initial=0.0) ** 2
        return total * (float((z**2).sum(axis=1).max(initial=0.0)) + offset)
    return total * max(1.0, float(np.abs(getattr(model, "kernel_norms_", 1.0)).max()))


def run(seed):
    """One input; what came of it: "fitted", or the kind and words of a refusal.

    Raises
    ------
    AssertionError, Warning, Exception
        For anything but a model that keeps its promises, or a refusal that names the argument.
    """
    rng = np.random.default_rng(seed)
    cls = ALL[seed % len(ALL)]
    values = values_of(rng)
    n, p = values.shape
    weights = weights_of(rng, n)
    parameters = parameters_of(cls, rng, n, p)
    others, values = measured_otherwise(cls, np.random.default_rng([seed, 1]), values)
    others |= further_options(cls, np.random.default_rng([seed, 2]))
    estimator = cls(**parameters | others)
    X = formed(rng, typed(rng, values))
    with warnings.catch_warnings(), dask.config.set(scheduler="sync"), no_hang():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        # Ours, of chunks that are 0 throughout and were left out by zarr.
        warnings.filterwarnings("ignore", ".*are not in the store", UserWarning)
        # Ours, of a bandwidth that was chosen where there are no clusters.
        warnings.filterwarnings("ignore", "The automatic bandwidth", UserWarning)
        refusal = None
        try:
            estimator.fit(X, sample_weight=weights)
        except (ValueError, TypeError) as error:
            refusal = error
        if refusal is not None:
            said = f"{type(refusal).__name__}: {refusal}"
            if not names_an_argument(said, estimator.get_params()):
                raise AssertionError(said) from refusal
            assert not hasattr(estimator, "labels_")
            return said
        if getattr(estimator, "kernel", None) == "precomputed":
            return "fitted"
        check_model(estimator, X, weights, n)
    return "fitted"


def run_updates(seed):
    """Calls of `partial_fit`; what came of each, as `run` says.

    A refused call leaves the estimator as it was, with or without a model.

    Raises
    ------
    AssertionError, Warning, Exception
        As `run`.
    """
    rng = np.random.default_rng(seed)
    cls = CENTERED[seed % len(CENTERED)]
    values = values_of(rng)
    n, p = values.shape
    others, values = measured_otherwise(cls, np.random.default_rng([seed, 1]), values)
    estimator = cls(**parameters_of(cls, rng, n, p) | others)
    if rng.random() < 0.4:
        estimator.set_params(forget=str(rng.choice(["1 call", "3 calls", "20 rows"])))
    outcomes = []
    for call in range(4):
        rows = values
        if call and n:
            rows = values[rng.integers(n, size=rng.integers(1, 2 * n + 1))]
            with np.errstate(over="ignore"):
                rows = rows * rng.choice([1.0, 1.5, 1e3, 1e200], p=[0.7, 0.2, 0.05, 0.05])
        if rng.random() < 0.1 and rows.size:
            rows = rows.copy()
            rows[rng.integers(len(rows)), rng.integers(p)] = rng.choice([np.nan, np.inf, -1.0])
        if call and rng.random() < 0.05:
            rows = rows[:, 1:]
        weights = weights_of(rng, len(rows))
        key = None if rng.random() < 0.5 else int(rng.integers(2))
        X = formed(rng, typed(rng, rows))
        before = dict(vars(estimator))
        with warnings.catch_warnings(), dask.config.set(scheduler="sync"), no_hang():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.filterwarnings("ignore", ".*are not in the store", UserWarning)
            # scikit-learn's, of tables with names of features beside others without.
            warnings.filterwarnings("ignore", "X .*feature names", UserWarning)
            try:
                estimator.partial_fit(X, sample_weight=weights, key=key)
            except (ValueError, TypeError) as error:
                said = f"{type(error).__name__}: {error}"
                if not names_an_argument(said, estimator.get_params()):
                    raise AssertionError(said) from error
                assert vars(estimator).keys() == before.keys()
                assert all(vars(estimator)[name] is value for name, value in before.items())
                outcomes.append(said)
                continue
            check_updated(estimator)
        outcomes.append("fitted")
    return outcomes


def check_updated(model):
    """What holds of every model after `partial_fit`."""
    total = model.updates_.total
    assert model.n_samples_seen_ == total.n_rows
    assert abs(total.weights.sum() - total.weight) <= 1e-9 * total.weight or np.isfinite(model.s_)
    assert np.isfinite(model.cluster_centers_).all()
    assert np.isfinite(model.inertia_)
    assert model.inertia_ >= 0
    assert (model.typical_distances_ > 0).all()
    if hasattr(model, "feature_weights_"):
        assert abs(model.feature_weights_.sum() - 1) < 1e-9
    # Centres at an edge of the domain may be refused as rows.
    if getattr(model, "distortion", "sqeuclidean") == "sqeuclidean":
        labels = model.predict(model.cluster_centers_)
        assert labels.max() < len(model.cluster_centers_)
