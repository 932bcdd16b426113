"""Thousands of clusters of real embeddings beside faiss and SuperKMeans, as ratios.

Run: python tests/benchmarks/vectors.py [--rows N] [--clusters K] [--threads T] [--file X.npy]

The rows are static embeddings (256 features, length one) of the sentences in the documentation
strings of all installed packages, made with the weights that the package wordllama contains; a file
of other embeddings can be given. Fits run one after the other in one process. Seconds and costs are
divided by those of faiss.Kmeans with 25 iterations over all rows. faiss-cpu, superkmeans, wordllama
and tokenizers have to be installed.
"""

import argparse
import json
import os
import random
import re
import sysconfig
import time
import warnings
from pathlib import Path

MOST_BYTES = 400_000


def sentences():
    """Sentences of 30 to 220 characters in the documentation of all installed packages."""
    found = set()
    for name in ("purelib", "stdlib"):
        for path in sorted(Path(sysconfig.get_path(name)).rglob("*.py")):
            text = path.read_text(encoding="utf-8", errors="ignore")[:MOST_BYTES]
            for doc in re.findall(r'"""(.*?)"""', text, re.DOTALL):
                for part in re.split(r"\n\s*\n|(?<=[.!?])\s+(?=[A-Z])", doc):
                    sentence = " ".join(part.split())
                    letters = sum(c.isalpha() or c == " " for c in sentence)
                    if 30 <= len(sentence) <= 220 and letters > 0.8 * len(sentence):
                        found.add(sentence)
    ordered = sorted(found)
    random.Random(0).shuffle(ordered)
    return ordered


def embeddings(n_rows):
    """Mean of the static embeddings of the tokens of each sentence, scaled to length one."""
    import numpy as np
    import wordllama
    from tokenizers import Tokenizer

    folder = Path(wordllama.__file__).parent
    raw = (folder / "weights/l2_supercat_256.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    (entry,) = (v for k, v in json.loads(raw[8 : 8 + size]).items() if k != "__metadata__")
    first, last = entry["data_offsets"]
    weights = np.frombuffer(raw[8 + size + first : 8 + size + last], np.float16)
    weights = weights.reshape(entry["shape"]).astype(np.float32)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizers/l2_supercat_tokenizer_config.json"))
    tokenizer.no_padding()
    texts = sentences()[:n_rows]
    tokens = tokenizer.encode_batch(texts, add_special_tokens=False)
    X = np.array([weights[each.ids].mean(axis=0) for each in tokens])
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X[np.isfinite(X).all(axis=1)]


def fits(X, k, n_threads):
    """Name -> function that returns the centres of a fit."""
    import faiss
    import numpy as np
    from superkmeans import SuperKMeans

    from daskmm import ClusterTree, KMeans, PowerKMeans

    n, p = X.shape

    def of_faiss():
        model = faiss.Kmeans(p, k, niter=25, max_points_per_centroid=n, seed=1)
        model.train(X)
        return model.centroids

    def super_kmeans(n_iter, **settings):
        shape = {"n_clusters": k, "dimensionality": p, "iters": n_iter, "n_threads": n_threads}
        model = SuperKMeans(**shape, sampling_fraction=1.0, **settings)
        return np.asarray(model.train(X)).reshape(k, p)

    def ours(cls, **settings):
        return cls(k, random_state=0, **settings).fit(X).cluster_centers_

    root = int(np.sqrt(k))
    return {
        "faiss, 25 iterations": of_faiss,
        "SuperKMeans, 25 iterations": lambda: super_kmeans(25),
        "SuperKMeans, 10 iterations": lambda: super_kmeans(10),
        "SuperKMeans, hierarchical": lambda: super_kmeans(10, hierarchical=True),
        "KMeans": lambda: ours(KMeans),
        **{
            f"KMeans(max_iter={most})": lambda most=most: ours(KMeans, max_iter=most)
            for most in (12, 9, 6, 3)
        },
        "KMeans(sample_size=None)": lambda: ours(KMeans, n_init=1, sample_size=None),
        'KMeans(init="random")': lambda: ours(KMeans, init="random"),
        "PowerKMeans": lambda: ours(PowerKMeans),
        f"ClusterTree(({root}, {-(-k // root)}))": lambda: (
            ClusterTree((root, -(-k // root)), random_state=0).fit(X).cluster_centers_
        ),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--clusters", type=int, help="4 √rows by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--file", help="embeddings as npy")
    given = parser.parse_args()
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(given.threads))
    import faiss
    import numpy as np

    warnings.simplefilter("ignore")
    faiss.omp_set_num_threads(given.threads)
    X = np.load(given.file)[: given.rows].copy() if given.file else embeddings(given.rows)
    k = given.clusters or int(4 * np.sqrt(len(X)))
    print(f"{X.shape[0]:,} × {X.shape[1]}, {k:,} clusters, {given.threads} thread(s)")
    reference = None
    for name, fit in fits(X, k, given.threads).items():
        began = time.perf_counter()
        centers = fit()
        seconds = time.perf_counter() - began
        index = faiss.IndexFlatL2(X.shape[1])
        index.add(np.ascontiguousarray(centers, np.float32))
        cost = float(index.search(X, 1)[0].sum())
        reference = reference or (seconds, cost)
        time_ratio, cost_ratio = seconds / reference[0], cost / reference[1]
        print(f"{name:28} {seconds:7.2f} s  {time_ratio:6.3f}  {cost_ratio:.5f}", flush=True)


if __name__ == "__main__":
    main()
