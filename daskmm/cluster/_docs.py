"""Texts of parameters, attributes and errors that several estimators share.

A line such as ``[init, n_init]`` in the docstring of a class decorated with `documented`, or of one
of its methods, is replaced by these texts.
"""

from __future__ import annotations

import re
import textwrap
from types import FunctionType
from typing import TypeVar

T = TypeVar("T", bound=type)

_LINE = re.compile(r"^( *)\[([a-z_, ]+)\]$", re.MULTILINE)


def documented(cls: T) -> T:
    """Class decorator: insert the shared texts into the docstrings of a class and its methods."""
    own = [each for each in vars(cls).values() if isinstance(each, FunctionType)]
    for each in (cls, *own):
        if each.__doc__:  # python -OO removes docstrings
            each.__doc__ = with_shared_texts(each.__doc__)
    return cls


def with_shared_texts(doc: str) -> str:
    """Return a docstring in which the shared texts are inserted."""

    def texts(line: re.Match[str]) -> str:
        shared = "\n".join(TEXTS[name].strip("\n") for name in line[2].split(", "))
        return textwrap.indent(shared, line[1])

    return _LINE.sub(texts, doc)


TEXTS = {
    "n_clusters": """
n_clusters : int or "auto", default=8
    Number of clusters; "auto" chooses one on the sample of the first pass. It counts groups with
    gaps in density between them, and is 1, with a warning, if there are none: see
    `daskmm.selection.choose_n_clusters`.
""",
    "max_clusters": """
max_clusters : int, optional
    Largest number of clusters that "auto" chooses. By default only the sample bounds it: a cluster
    needs a dozen of its rows.
""",
    "init": """
init : {"k-means++", "k-means||", "random"}, array of shape (n_clusters, n_features) or fitted \
model, default="k-means++"
    How the starting centres are found. "k-means++" is greedy k-means++ on a sample drawn in the
    first pass (for 256 clusters or more, it first chooses within coarse cells of the rows, which is
    fast); "k-means||" is scalable k-means++, which makes six passes of its own; "random" takes
    random rows of that sample; an array gives centres in the input's units. A fitted model gives
    its centres and feature weights, and the fit continues at the power with which the model ended:
    by Lloyd steps if it was polished. Where the estimator is cloned, put the model into a
    ``sklearn.frozen.FrozenEstimator``.
""",
    "warm_start": """
warm_start : bool, default=False
    Whether `fit` continues from the last fit of this estimator, as it does from an `init` model.
    The number of clusters that "auto" chose is kept; the rows of earlier fits do not count.
""",
    "n_init": """
n_init : int or "auto", default="auto"
    Number of starts. "auto" is 8, or fewer for more than 32 clusters: all starts together have at
    most 256 centres, so there is 1 start for 129 clusters or more. They may have 2,048 centres if
    distances are not squared Euclidean, cosine or Mahalanobis ones, rows are sparse or mixed,
    values may be missing, or feature weights are learned. "auto" is 1 if every iteration reads a
    large table that is streamed (see `sample_size`). `plan` reports the number. An `init` array is
    one start. Several starts of `KMeans` that exchange clusters race, unless they are random rows:
    after 8 hard steps each, only the cheapest third continue.
""",
    "sample_size": """
sample_size : int, "auto" or None, default="auto"
    Number of rows on which the starts are annealed. This is done in memory, for all starts in
    parallel. The best starts then take hard steps on a larger sample, and after that over all rows,
    in the same passes, until the cost is stationary, which takes a handful of passes. "auto" is
    10,000 to 20,000 rows (200 per cluster), or 50 per cluster if that is more; a table of at most
    twice as many rows is small, and its sample has all rows. A small table is annealed directly,
    without a sample, if there are fewer than 16 clusters (in `KMeans`, only if the table has fewer
    than 262,144 values as well), or if it is in memory and there is one start that exchanges no
    clusters (from given centres, for instance); a streamed table is then read in every iteration.
    Streamed tables of sparse rows or mixed columns take a sample all the
    same, unless `init` gives centres. With None the starting centres are rows of a sample, the
    annealing runs over all rows of any table, and no clusters are exchanged. Samples are drawn
    uniformly. But where few rows carry most of the cost (heavy tails, far outliers), one more pass
    draws rows with probabilities that also grow with their distance from the mean, and gives them
    weights that make up for it.
""",
    "persist": """
persist : bool or "auto", default=False
    Keep streamed data in memory during the fit. On a cluster they are kept on the workers that
    loaded them. "auto" does so if they take less than a third of the memory.
""",
    "eta": """
eta : float, default=1.05
    Factor by which the power grows in size; 1 keeps it constant.
""",
    "anneal_every": """
anneal_every : int, default=1
    Number of iterations per value of the power.
""",
    "polish": """
polish : bool, default=True
    End with Lloyd steps (s = −∞).
""",
    "max_iter": """
max_iter : int, default=300
    Maximum number of iterations. Those on samples do not count unless the sample is the whole
    table; those of polishing do.
""",
    "tol": """
tol : float, default=1e-4
    Relative change that counts as convergence. A fit has converged when the k-means objective
    changes by less than this three times in a row, with nearly hard memberships. With 256 clusters
    or more, k-means and power k-means read a streamed table until a reading changes it by less than
    four times as much, because steps on a sample follow each reading. With ``tol=0`` and
    ``polish=False`` exactly `max_iter` iterations are run.
""",
    "random_state": """
random_state : int, RandomState instance or None, default=None
    Seed of the random numbers. They determine the samples, the starts and the choices.
""",
    "standardize": """
standardize : bool or "auto", default="auto"
    Divide each feature by its population standard deviation. This is done inside the block
    function, and centres are given and reported in the input's units. "auto" does so if clusters of
    standardised features have a clearly larger information gain, by 5 % and by .05 nats, than those
    of the features as they are, on the sample of the first pass without its farthest rows (see
    `daskmm.selection.information_gain`). It leaves features as they are for sparse rows and other
    distortions than "sqeuclidean"; for this choice, missing values count as the mean of the
    feature. Standardising gives noisy features less weight.
""",
    "distortion": """
distortion : {"sqeuclidean", "kl", "poisson", "itakura-saito", "gamma", "logistic", "mahalanobis", \
"cosine", "euclidean", "manhattan", "mixed"}, default="sqeuclidean"
    Distance between rows and centres. The Bregman divergences, whose centres are means, are
    "sqeuclidean"; "kl" or "poisson" (the I-divergence Σ x log(x/θ) − x + θ, for counts and
    probabilities); "itakura-saito" or "gamma" (Σ x/θ − log(x/θ) − 1, for positive values whose
    noise grows with them); "logistic" (for values in [0, 1]); and "mahalanobis", with one matrix
    for all clusters. "cosine" is 1 − cos of the angle, for embeddings and texts; its centres have
    length 1. "mixed" is for DataFrames with numbers, flags, categories and dates. "euclidean" and
    "manhattan" are not squared and less sensitive to outliers; their centres are geometric medians,
    and medians. See the notes, and `daskmm.selection.choose_distortion` for a choice without
    labels.
""",
    "metric_params": """
metric_params : dict, optional
    ``{"VI": matrix}``, the inverse covariance of "mahalanobis". By default it is learned, with
    determinant 1. For "mixed" ``{"dates": ["day:trend", "day:season"], "unknown": "missing"}``:
    "dates" says what counts in a column of dates, time itself ("trend") or the day of the year
    ("season"); "unknown" says whether levels that the fit did not see are taken as missing values,
    or are an error (the default).
""",
    "missing": """
missing : {"error", "partial"}, default="error"
    Whether NaN are an error, or missing values, which are left out of distances and means.
empty_rows : {"error", "label"}, default="error"
    Whether rows in which all values are missing, such as pixels under clouds, are an error, or are
    left out of the fit and labelled −1. It needs ``missing="partial"``. In `predict`, such rows are
    always labelled −1, and their distances and scores are NaN. With ``distortion="cosine"`` the
    parameter is about rows of zeros, such as texts without a known term; by default they are an
    error, also in `predict`.
""",
    "empty_cluster": """
empty_cluster : {"farthest", "restart", "error"}, default="farthest"
    What happens to a cluster that a Lloyd step leaves empty. Its centre moves to the row farthest
    from its own centre; centres that coincide at the end are moved likewise, polished once more,
    and warned about. "restart" fits again from other starts (at most ten times; given centres are
    the only start); "error" raises a ValueError if the best start ends with an empty cluster.
""",
    "trim": """
trim : float, default=0
    Share of the rows that are left out, those farthest from their centres, for data with outliers.
    Then `inertia_` and `cluster_sizes_` count only the rows that are kept, while all rows have
    `labels_`. Over the table, Lloyd steps leave out exactly this share, which costs two more passes
    per step. The farthest rows of the sample are ignored when the scale, the number of clusters,
    feature weights and starting centres are chosen. Annealing uses all rows if it runs over the
    whole table, that is, with given centres or ``sample_size=None``. A cluster of fewer rows than
    the share may be left out too. `partial_fit` leaves out this share of the rows of each call. A
    fit warns if few rows, far from all others, have centres of their own.
""",
    "max_cluster_size": """
max_cluster_size : int, float or None, default=None
    Largest size of a cluster. An integer is a number of rows (their weight, if they have weights);
    a floating-point number is a multiple of the mean size, such as 2.0. Clusters above this bound
    and above twice the mean are divided, and as many pairs of small ones are merged; each row still
    has its nearest centre. Sizes below twice the mean are bounded by ``offsets_``, which are added
    to the squared distances where rows choose their cluster. Both take up to 12 rounds of few
    passes on top of `max_iter`. The cost rises where the data have large groups, and the fit warns
    if the bound is not met. `partial_fit` does not bound sizes. Rows must be complete, and
    distances squared Euclidean or cosine.
""",
    "forget": """
forget : float or str, optional
    Half-life of earlier rows in `partial_fit`: a number of rows, counted by their sample weights,
    or a text such as "100000 rows" or "10 calls". By default nothing is forgotten.
""",
    "verbose": """
verbose : int, default=0
    Report each iteration: in a notebook on one line that is kept up to date, elsewhere through the
    logger "daskmm" at level INFO.
""",
    "callbacks": """
callbacks : list of callable, optional
    Called once per iteration over all rows with a read-only `daskmm.mm.problem.IterationRecord`. A
    callback that raises StopIteration ends the fit after this iteration.
""",
    "checkpoint": """
checkpoint : str or Path, optional
    A folder for the state of the fit, or a URL that fsspec knows, such as ``s3://bucket/state``. If
    a fit is killed or interrupted, the same call resumes it and ends with the same bits. A fit of
    other data or parameters is refused, except that `max_iter` may be raised; a completed fit
    returns the same model again. `n_passes_` includes the first pass of every run.
checkpoint_every : int, float or str, default=1
    How often the state is written: after a number of iterations (an integer), after a number of
    seconds (a float), or after a duration such as "30s". Iterations on samples count too. The last
    two states are kept.
""",
    "cluster_centers_": """
cluster_centers_ : ndarray of shape (n_clusters, n_features), float64
    Centres of the clusters, in the input's units.
""",
    "n_clusters_": """
n_clusters_ : int
    The number of clusters.
n_clusters_path_ : ClusterNumberPath
    For ``n_clusters="auto"``: how much the clusters overlap at each number; see
    `daskmm.plot.n_clusters_path`.
""",
    "standardize_path_": """
standardize_path_ : ScaleChoice
    For ``standardize="auto"``: the gains of both scales. It says in words what was chosen.
""",
    "labels_": """
labels_ : ndarray, or lazy dask Array or Series, of shape (n_samples,), int32
    Cluster of each row, and −1 for empty rows, if ``empty_rows="label"``. A dask
    DataFrame gives a series aligned with it, for ``frame.assign(cluster=model.labels_)``, and a
    raster a DataArray on its grid. Labels of lazy data or of a raster are dropped when the model is
    pickled or saved.
cluster_sizes_ : ndarray of shape (n_clusters,), float64
    Sum of the sample weights of each cluster's rows: their number if there are no weights.
offsets_ : ndarray of shape (n_clusters,), float64
    Only if `max_cluster_size` needed them: a row belongs to the cluster with the smallest sum of
    its squared (or cosine) distance, in the model's scale, and the cluster's offset. `labels_`,
    `predict`, `predict_proba` and `memberships` follow these sums; `transform`, `score_samples` and
    `inertia_` have the distances without offsets.
cluster_means_ : ndarray of shape (n_clusters, n_features), float64
    Weighted mean of each cluster's rows, in the input's units; for "cosine" its direction. The
    means differ from `cluster_centers_`, which decide the labels, if the fit ended before the
    centres stopped moving, or with soft steps (``polish=False``). The mean of a
    cluster without rows is NaN; a feature in which no row of the cluster has a value has the
    centre's value. The attribute is absent for "manhattan" and "euclidean".
summary_ : pandas DataFrame
    Name, size, share and means of each cluster, named by the features that tell it apart.
""",
    "inertia_": """
inertia_ : float
    Sum over the rows of the distance to the centre of their cluster, which is the nearest one
    unless there are ``offsets_``: the distortion of the fit (by default squared), with feature
    weights if there are any, in the model's scale.
""",
    "objective_history_": """
objective_history_ : ndarray
    Objective per unit of sample weight at the state and power with which each iteration of the best
    start over the data began.
""",
    "history_": """
history_ : list of IterationRecord
    One record per iteration, including those on samples (``exact=False``).
n_iter_ : int
    Number of iterations over the data. The best start, whose records `history_` has, may have ended
    before others.
n_passes_ : int
    Number of passes over the data, the first pass and scoring included. Each pass loads every block
    once.
s_ : float
    The last power; −∞ after polishing.
n_samples_seen_ : int
    Number of rows that the model has seen, in `fit` or in calls of `partial_fit`. After
    `partial_fit`, `inertia_` and `cluster_sizes_` sum over all rows, as each was assigned in its
    call and with the weight that it still has, and there are no `labels_`. With ``polish=False``
    the rows belong to all clusters: sizes are shares of the sums of φ, and `inertia_` is the sum of
    the power means of the distances.
""",
    "mean_": """
mean_, scale_ : ndarray of shape (n_features,)
    Distances are measured between rows ``(x − mean_) / scale_``; the scale is 1 unless features are
    standardised.
typical_distances_ : ndarray of shape (n_clusters,)
    Median distance of each cluster's rows to its centre, as `inertia_` measures it; unsquared, it
    is the unit of `score_samples`. It is that of a sample of at most 20,000 rows, or of 8 per
    cluster if that is more.
relative_distances_ : ndarray of shape (2, n)
    First row: distances in units of `typical_distances_`, in bins of .3 %. Second row: for each
    distance, the share of the rows that are not farther.
membership_power_ : float
    The power at which memberships are probabilities; see `predict_proba`.
""",
    "precision_": """
precision_ : ndarray of shape (n_features, n_features)
    For ``distortion="mahalanobis"``: the matrix P of its distance (x − θ)ᵀ P (x − θ).
""",
    "n_features_in_": """
n_features_in_ : int
    Number of columns of the table of the fit.
feature_names_in_ : ndarray of str
    Names of these columns; only after a fit to a DataFrame.
""",
    "notes_on_distortions": """
"kl", "itakura-saito" and "logistic" are half the deviances of Poisson, exponential (gamma) and
binomial distributions. They are measured between the values as they are. So the data must be in
their domain, `standardize` must not be True, and `mean_` is 0. A centre that is 0 in some feature
is infinitely far from rows in which this feature is not 0. Therefore starting centres are 0.95 x +
0.05 (mean of the rows), and given centres are moved likewise where they have zeros (for "logistic",
also ones).

"mahalanobis" starts with the inverse covariance of all rows, and then alternates between finding
clusters and computing their pooled scatter.

"cosine" makes the steps of spherical k-means: a centre is the weighted mean of the normalised
rows, normalised (Dhillon & Modha, Machine Learning 42, 2001). Rows of zeros are an error, and
`standardize` must not be True.

Steps of "euclidean" and "manhattan" are weighted means as well, with weights 1/(2 max(d, ε)) of
the previous distances (per feature for "manhattan"), where ε is 1e-6 of the standard deviation; the
objective may rise by about as much. Starting centres, given ones too, are moved towards the mean as
above, because a centre that coincides with a row moves away from it slowly. For data in memory,
centres after hard steps are finally replaced by the exact medians; streamed data end with the
weighted means.

"mixed" takes the columns of a DataFrame (pandas, dask, polars) as they are: numbers with squared
distances, flags (booleans) with the logistic divergence, categories and texts with the
Kullback-Leibler divergence between shares of levels. Each column's divergence is divided by its
average between a row and the mean of all rows, so that all columns count alike, whatever their
units and numbers of levels; `standardize` has no effect. Values of flags and categories are
smoothed, .95 of the row's value and .05 of the shares of all rows, so that no centre is infinitely
far. Frames are coded block by block; finding the levels of lazy frames takes one more pass over the
columns of categories. `cluster_centers_` holds means and shares, with one column per level (see
`columns_`), and an `init` array has the same columns. `summary_` and `level_shares_` are tables for
people to read, and `value_shares_` is the share of each cluster's rows that have a value in each
column. ``n_clusters="auto"`` counts clusters with gaps between them among the rows without missing
values, and all columns count alike: if few of many columns tell clusters apart, it may find only 1.

With missing values, a distance is the sum over the features in which the row has a value, and a
centre is, per feature, the mean of the values present (k-POD). `value_shares_` is the share of each
cluster's rows that have a value in each feature; counting them takes one more pass for "manhattan"
and "euclidean", and after `partial_fit` they may be shares of a sample. `summary_` has the shares
that lack a value, and no cluster is named after a feature that most of its rows lack. A feature
without any value is an error, and so is a row without any value, unless ``empty_rows="label"``.
""",
    # Parameters and errors of methods.
    "rows": """
X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
    Rows of what the model was fitted to.
""",
    "rows_by_name": """
X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
    Columns of a DataFrame are found by name, in any order and among others.
""",
    "arrived": """
X : array-like, dask Array, dask DataFrame or zarr Array of shape (n_samples, n_features)
    Rows that arrived.
""",
    "y": """
y : ignored
    Present for scikit-learn's interface.
""",
    "sample_weight": """
sample_weight : array-like or dask Array of shape (n_samples,), optional
    Sample weights, not negative; all 1 by default.
""",
    "distances": """
ndarray or dask Array of shape (n_samples, number of centres)
    The type is float32 for float32, float16 and integers of 8 or 16 bits, and float64 otherwise.
    The result is lazy for dask and zarr input. With ``set_output(transform="pandas")`` it is a
    DataFrame, for lazy input a lazy dask DataFrame. A raster gives a DataArray with the dimension
    "cluster".
""",
    "fit_params": """
**fit_params
    Further arguments of `fit`, such as `sample_weight`.
""",
    "copies": """
sample_weight : array-like or dask Array of shape (n_samples,), optional
    Weights, not negative; chunked in any way. A row of integer weight v counts like v copies of it.
""",
    "feature_dim": """
feature_dim : str, optional
    Dimension of the features of an xarray DataArray or Dataset; by default that of the fit.
""",
    "measure": """
measure : bool
    Whether to load one block of lazy data, and to predict seconds by the time that this takes.
    Otherwise no value is read, and a nanosecond per byte is assumed.
""",
    "interrupt": """
KeyboardInterrupt
    If the user interrupts the fit. If at least one iteration has been completed, the estimator is
    fitted, with the model of the last complete iteration.
""",
}
