"""Terms that describe the clusters of texts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from sklearn.base import clone
from sklearn.feature_extraction.text import CountVectorizer

from daskmm._dask import dask, is_dask_collection
from daskmm.data.blocks import is_series
from daskmm.data.lazy import delayed_blocks, in_memory
from daskmm.engine.clients import computed
from daskmm.engine.passes import tree_reduce

# Texts in memory that are counted together.
_TEXTS = 10_000


def terms(
    labels: Any, texts: Any, n_terms: int = 10, *, vectorizer: CountVectorizer | None = None
) -> dict[int, list[tuple[str, float]]]:
    """Return the terms that describe each cluster of texts, by the TF-IDF of classes (c-TF-IDF).

    The weight of a term in a cluster is tf · log(1 + A / f): tf is its share of all words of the
    cluster, f its number in all clusters, and A the mean number of words per cluster. Texts are
    read in one pass; memory holds the numbers of each term in each cluster.

    Parameters
    ----------
    labels : array-like, dask Array or Series of shape (n_samples,)
        Cluster of each text; texts with negative labels are left out.
    texts : sequence of str, dask Series or dask Bag
        The texts, in the order of the labels. If they are lazy and the labels are not, texts are
        counted in a pass of their own.
    n_terms : int, default=10
        Number of terms of each cluster.
    vectorizer : CountVectorizer, optional
        How texts are cut into terms, such as ``CountVectorizer(stop_words="english")``. Its limits
        on frequencies (`min_df`, `max_df`, `max_features`) are not used, nor are the weights of a
        TfidfVectorizer.

    Returns
    -------
    dict
        For each cluster with texts, at most `n_terms` terms and their weights, the largest first.

    Raises
    ------
    ValueError
        If `labels` and `texts` do not match.
    TypeError
        If labels are not numbers, or texts are not text.

    References
    ----------
    Grootendorst, "BERTopic: Neural topic modeling with a class-based TF-IDF procedure",
    arXiv 2203.05794, 2022.
    """
    for name, value in (("labels", labels), ("texts", texts)):
        if value is None or isinstance(value, str):
            raise TypeError(f"{name} must have an entry for each row, got {value!r:.40}.")
    given = CountVectorizer() if vectorizer is None else clone(vectorizer)
    given.set_params(min_df=1, max_df=1.0, max_features=None)
    lazy = is_dask_collection(texts)
    arguments = _lazy_blocks(labels, texts) if lazy else _blocks(labels, texts)
    found: _Counts = tree_reduce(_counted, arguments, (given,), lazy, "terms")
    words = found.counts.sum(axis=1)
    inverse = np.log1p(words.mean() / found.counts.sum(axis=0)) if len(words) else np.empty(0)
    described = {}
    for row, (label, n_words) in enumerate(zip(found.labels, words, strict=True)):
        part = slice(found.counts.indptr[row], found.counts.indptr[row + 1])
        columns = found.counts.indices[part]
        weights = found.counts.data[part] / n_words * inverse[columns]
        # Terms are sorted, so the first in the alphabet is taken in a tie.
        best = columns[order := np.lexsort((columns, -weights))[:n_terms]]
        described[int(label)] = [
            (str(found.terms[column]), float(weight))
            for column, weight in zip(best, weights[order], strict=True)
        ]
    return described


def _blocks(labels: Any, texts: Sequence[str]) -> list[tuple[Any, Any]]:
    """Return texts in memory and their labels, some at a time."""
    own, words = in_memory(labels), np.asarray(texts, dtype=object)
    if own.shape != words.shape:
        raise ValueError(f"labels and texts do not match: {own.shape} and {words.shape}.")
    starts = range(0, max(len(words), 1), _TEXTS)
    return [(own[at : at + _TEXTS], words[at : at + _TEXTS]) for at in starts]


def _lazy_blocks(labels: Any, texts: Any) -> list[tuple[Any, Any]]:
    """Return the partitions of lazy texts and their labels."""
    parts = list(texts.to_delayed())
    if is_series(labels) and is_dask_collection(labels):
        own = list(labels.to_delayed())
    elif is_dask_collection(labels):
        own = list(delayed_blocks(labels).ravel())
    else:
        values = np.asarray(labels)
        ends = np.cumsum([0, *computed(*(dask.delayed(_length)(part) for part in parts))])
        if ends[-1] != len(values):
            raise ValueError(f"There are {len(values)} labels and {ends[-1]} texts.")
        own = [values[start:stop] for start, stop in itertools.pairwise(ends)]
    if len(own) != len(parts):
        raise ValueError(
            f"labels have {len(own)} blocks and texts {len(parts)}. Give labels in memory, or in "
            "the partitions of the texts."
        )
    return list(zip(own, parts, strict=True))


def _length(texts: Any) -> int:
    return sum(1 for _ in texts)


@dataclass(frozen=True)
class _Counts:
    """Number of each term in each cluster; clusters and terms ascend."""

    labels: NDArray[np.int64]
    terms: NDArray
    counts: csr_array

    def __add__(self, other: Self) -> Self:
        labels = np.union1d(self.labels, other.labels)
        terms = np.union1d(self.terms, other.terms)
        entries = []
        for part in (self, other):
            found = part.counts.tocoo()
            rows = np.searchsorted(labels, part.labels)[found.coords[0]]
            entries.append((found.data, rows, np.searchsorted(terms, part.terms)[found.coords[1]]))
        data, rows, columns = (np.concatenate(both) for both in zip(*entries, strict=True))
        counts = coo_array((data, (rows, columns)), shape=(len(labels), len(terms)))
        return type(self)(labels, terms, counts.tocsr())


def _counted(labels: Any, texts: Any, vectorizer: CountVectorizer) -> _Counts:
    """Count the terms of the texts of one block in each cluster."""
    labels, texts = np.asarray(labels), list(texts)
    if len(labels) != len(texts):
        raise ValueError(f"A block has {len(labels)} labels and {len(texts)} texts.")
    if labels.dtype.kind in "OUST":
        for label in labels:
            if not isinstance(label, Integral):
                raise TypeError(
                    f"labels must be integers, and one is {label!r:.40}. They come first: "
                    "terms(labels, texts)."
                )
        labels = labels.astype(np.int64)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"texts must be text, and one is {text!r:.40}: give '' for none.")
    held = [text for text, label in zip(texts, labels, strict=True) if label >= 0]
    names, own = np.unique(labels[labels >= 0].astype(np.int64), return_inverse=True)
    if not any(map(vectorizer.build_analyzer(), held)):  # scikit-learn refuses texts without terms
        return _Counts(names, np.empty(0, object), csr_array((len(names), 0), dtype=np.int64))
    counter = clone(vectorizer)
    # A TfidfVectorizer, which is a CountVectorizer, would weigh the counts.
    counts = csr_array(CountVectorizer.fit_transform(counter, held), dtype=np.int64)
    member = csr_array(
        (np.ones(len(own), np.int64), (own, np.arange(len(own)))), (len(names), len(own))
    )
    vocabulary = counter.get_feature_names_out().astype(object)
    return _Counts(names, vocabulary, csr_array(member @ counts))
