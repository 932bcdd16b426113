"""Terms of clusters of texts, against BERTopic's formula in loops, and BERTopic itself."""

import re
from collections import Counter

import dask.array as da
import dask.bag
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.cluster
import sklearn.linear_model
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

from daskmm import KMeans, PowerKMeans
from daskmm.vectors import terms, topics

MODULES = [sklearn.cluster, sklearn.linear_model]
TEXTS = [
    paragraph
    for module in MODULES
    for name in module.__all__
    for paragraph in (getattr(module, name).__doc__ or "").split("\n\n")[:4]
]
LABELS = np.random.default_rng(0).integers(-1, 3, len(TEXTS))


def naive_terms(labels, texts, n_terms, analyze):
    """The best terms of each cluster by tf · log(1 + A / f)."""
    counts = {label: Counter() for label in sorted(set(labels) - {-1})}
    for label, text in zip(labels, texts, strict=True):
        if label >= 0:
            counts[label].update(analyze(text))
    every = sum(counts.values(), Counter())
    mean = every.total() / len(counts)
    found = {}
    for label, own in counts.items():
        weights = {
            term: count / own.total() * np.log(1 + mean / every[term])
            for term, count in own.items()
        }
        found[label] = sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:n_terms]
    return found


def assert_same_terms(found, expected):
    assert list(found) == list(expected)
    for label, words in expected.items():
        assert [term for term, _ in found[label]] == [term for term, _ in words]
        np.testing.assert_allclose([w for _, w in found[label]], [w for _, w in words], rtol=1e-9)


@pytest.mark.parametrize(
    "vectorizer",
    [
        None,
        CountVectorizer(stop_words="english", ngram_range=(1, 2), min_df=5),
        TfidfVectorizer(sublinear_tf=True),
    ],
)
def test_terms_are_those_of_loops_for_every_kind_of_texts(vectorizer, monkeypatch):
    monkeypatch.setattr(topics, "_TEXTS", 40)
    analyze = (vectorizer or CountVectorizer()).build_analyzer()
    expected = naive_terms(LABELS, TEXTS, 6, analyze)
    series = dd.from_pandas(pd.Series(TEXTS), npartitions=5)
    aligned = dd.from_pandas(pd.Series(LABELS), npartitions=5)
    chunks = (tuple(len(part) for part in series.partitions),)
    forms = [
        (LABELS, TEXTS),
        (pd.Series(LABELS), pd.Series(TEXTS)),
        (da.from_array(LABELS, chunks=50), np.array(TEXTS)),
        (LABELS, series),
        (aligned, series),
        (da.from_array(LABELS, chunks=chunks), series),
        (LABELS, dask.bag.from_sequence(TEXTS, npartitions=4)),
    ]
    for labels, texts in forms:
        found = terms(labels, texts, 6, vectorizer=vectorizer)
        assert_same_terms(found, expected)


@pytest.mark.parametrize("n_blocks", [1, 2, 5])
def test_clusters_without_terms_count_in_any_blocks(n_blocks):
    texts = ["", "a b", "one two", "two three", "!"]
    found = terms([0, 0, 4, 4, 1], dask.bag.from_sequence(texts, npartitions=n_blocks))
    assert found[0] == found[1] == []
    mean = 4 / 3  # words per cluster
    expected = [
        ("two", np.log1p(mean / 2) / 2),
        *((w, np.log1p(mean) / 4) for w in ("one", "three")),
    ]
    assert_same_terms(found, {0: [], 1: [], 4: expected})
    assert terms([-1, -1], ["one", "two"]) == {}


def test_labels_that_do_not_match_the_texts_are_refused():
    lazy = dask.bag.from_sequence(["one", "two", "three"], npartitions=3)
    with pytest.raises(ValueError, match="do not match"):
        terms([0, 1], ["one"])
    with pytest.raises(ValueError, match="There are 2 labels and 3 texts"):
        terms([0, 1], lazy)
    with pytest.raises(ValueError, match="labels have 2 blocks and texts 3"):
        terms(da.from_array([0, 0, 0], chunks=2), lazy)
    with pytest.raises(ValueError, match="A block has 2 labels and 1 texts"):
        terms(da.from_array([0, 0, 0, 0], chunks=((2, 1, 1),)), lazy)


def embeddings():
    """Embeddings of the texts."""
    return TruncatedSVD(10, random_state=0).fit_transform(TfidfVectorizer().fit_transform(TEXTS))


@pytest.mark.parametrize("cls", [KMeans, PowerKMeans])
def test_estimators_have_the_methods_that_bertopic_calls(cls):
    rows = embeddings()
    model = cls(4, random_state=0, distortion="cosine")
    assert model.fit(rows, y=None) is model
    assert isinstance(model.labels_, np.ndarray)
    assert model.labels_.shape == (len(rows),)
    np.testing.assert_array_equal(model.predict(rows), model.labels_)


# numba, which BERTopic's reductions may import, and plotly warn of what is not ours.
@pytest.mark.filterwarnings("default")
def test_bertopic_takes_a_fitted_clusterer_and_finds_the_same_terms():
    bertopic = pytest.importorskip("bertopic", reason="BERTopic is not installed")
    from bertopic.dimensionality import BaseDimensionalityReduction

    rows, vectorizer = embeddings(), CountVectorizer(stop_words="english")
    model = bertopic.BERTopic(
        embedding_model=None,
        umap_model=BaseDimensionalityReduction(),
        hdbscan_model=KMeans(4, random_state=0, distortion="cosine"),
        vectorizer_model=vectorizer,
    )
    topic_of, _ = model.fit_transform(TEXTS, embeddings=rows)
    assert sorted(set(topic_of)) == [0, 1, 2, 3]
    # BERTopic keeps letters and digits only, and rounds the mean number of words.
    texts = [re.sub(r"[^A-Za-z0-9 ]+", "", text.replace("\n", " ")) for text in TEXTS]
    for topic, words in terms(topic_of, texts, 10, vectorizer=vectorizer).items():
        theirs = model.get_topic(topic)
        np.testing.assert_allclose([w for _, w in words], [w for _, w in theirs], rtol=1e-3)
        assert len(dict(words).keys() & dict(theirs).keys()) >= 9  # the last may be a tie


def test_workers_of_a_cluster_find_the_same_terms(local_client):
    texts = dask.bag.from_sequence(TEXTS, npartitions=4)
    assert_same_terms(terms(LABELS, texts, 3), terms(LABELS, TEXTS, 3))


def test_swapped_and_missing_arguments_are_named():
    labels, texts = [0, 1], ["one two", "three"]
    with pytest.raises(TypeError, match=r"labels must be integers.*terms\(labels, texts\)"):
        terms(texts, labels)
    with pytest.raises(TypeError, match="texts must have an entry for each row, got None"):
        terms(labels, None)
    with pytest.raises(TypeError, match="texts must be text, and one is None"):
        terms(labels, ["one", None])
    assert terms(np.array(labels, dtype=object), texts) == terms(labels, texts)
    assert terms(np.array([], dtype=object), []) == {}
