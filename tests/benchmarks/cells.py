"""Cells of 12 types by 20,000 genes, of which 150 are markers: EWP on sparse rows on disk.

    python tests/benchmarks/cells.py [--rows 1000000] [--folder /tmp/cells]

Counts are negative binomial (dispersion 2) and 3 % of them are not zero; each type expresses its
own markers more. Cells differ in depth (log-normal, .3), so counts are scaled to 10,000 per cell
and their logarithms log(1 + x) taken, as scanpy's normalize_total and log1p do before clustering.
They are written as anndata writes X to zarr (CSR). Prints agreement with the types (adjusted Rand
index), how many of the 100 heaviest genes are markers, reads, seconds and memory beside the plan.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import zarr
from sklearn.metrics import adjusted_rand_score

from daskmm import EntropyPowerKMeans, KMeans
from daskmm.data.files import open_data

TYPES, MARKERS, DISPERSION = 12, 150, 2.0
_BLOCK = 10_000


def expression(n_genes: int, rng: np.random.Generator, fold: float) -> tuple[np.ndarray, set[int]]:
    """Mean counts of each type, of which about 3 % of a cell's are not zero; and the markers."""
    mean = rng.lognormal(-4.4, 1.4, n_genes)
    usual = np.flatnonzero((mean > 0.02) & (mean < 0.1))
    markers = rng.choice(usual, MARKERS, replace=False)
    means = np.tile(mean, (TYPES, 1))
    means[np.arange(MARKERS) % TYPES, markers] *= fold
    return means, set(markers.tolist())


def block(means: np.ndarray, n: int, rng: np.random.Generator) -> tuple[sp.csr_array, np.ndarray]:
    """Cells of random types, normalised, and their types.

    A negative binomial count is a Poisson number of logarithmic ones, so the counts of a gene over
    the cells of a type are that many of these, each in a random cell.
    """
    types = rng.integers(TYPES, size=n)
    depth = rng.lognormal(0.0, 0.3, n)
    rows, genes, sizes = [], [], []
    for kind in range(TYPES):
        own = np.flatnonzero(types == kind)
        chance = np.cumsum(depth[own])
        rate = DISPERSION * np.log1p(means[kind] / DISPERSION)
        found = rng.poisson(rate * chance[-1])
        gene = np.repeat(np.arange(means.shape[1], dtype=np.int32), found)
        at = np.searchsorted(chance, rng.random(len(gene)) * chance[-1])
        rows.append(own[at].astype(np.int32))
        genes.append(gene)
        share = means[kind] / (means[kind] + DISPERSION)
        sizes.append(rng.logseries(share[gene]).astype(np.float32))
    entries = np.concatenate(sizes), (np.concatenate(rows), np.concatenate(genes))
    counts = sp.csr_array(entries, shape=(n, means.shape[1]))
    counts.sum_duplicates()
    total = counts.sum(axis=1)
    counts.data *= np.repeat(1e4 / np.maximum(total, 1), np.diff(counts.indptr))
    np.log1p(counts.data, out=counts.data)
    return counts, types


def write(path: Path, n_rows: int, n_genes: int, seed: int, fold: float) -> None:
    """Write cells to a zarr store, `X` in CSR form, with their types and the markers."""
    rng = np.random.default_rng(seed)
    means, markers = expression(n_genes, rng, fold)
    store = zarr.open_group(path, mode="w")
    group = store.create_group("X")
    group.attrs.update(
        {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [n_rows, n_genes]}
    )
    made = {
        name: group.create_array(name, shape=(0,), chunks=(1 << 20,), dtype=dtype)
        for name, dtype in (("data", "f4"), ("indices", "i4"))
    }
    ends, kinds = [np.zeros(1, np.int64)], []
    for first in range(0, n_rows, _BLOCK):
        cells, types = block(means, min(_BLOCK, n_rows - first), rng)
        for name, array in made.items():
            array.append(getattr(cells, name))
        ends.append(ends[-1][-1] + cells.indptr[1:].astype(np.int64))
        kinds.append(types)
    group.create_array("indptr", data=np.concatenate(ends), chunks=(1 << 20,))
    store.create_array("types", data=np.concatenate(kinds), chunks=(1 << 20,))
    store.create_array("markers", data=np.array(sorted(markers)))


def peak() -> float:
    """Largest memory of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print one line per model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--genes", type=int, default=20_000)
    parser.add_argument("--fold", type=float, default=12.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/cells"))
    parser.add_argument("--only", nargs="*")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    path = asked.folder / f"{asked.rows}.zarr"
    if not path.exists():
        began = time.perf_counter()
        write(path, asked.rows, asked.genes, asked.seed, asked.fold)
        print(f"written in {time.perf_counter() - began:.0f} s", flush=True)
    store = zarr.open_group(path, mode="r")
    types, markers = store["types"][:], set(store["markers"][:].tolist())
    X = open_data(f"{path}::X")
    print(f"after opening: {peak():.0f} MB\n")
    print("| model | ARI | precision at 100 | reads | seconds | peak, MB | plan, MB |")
    print("|---|---|---|---|---|---|---|")
    k = TYPES
    models = {
        "EWP": EntropyPowerKMeans(k, random_state=0),
        "KMeans, all genes": KMeans(k, random_state=0),
        "KMeans, all genes standardised": KMeans(k, standardize=True, random_state=0),
    }
    for name, model in models.items():
        if asked.only and name not in asked.only:
            continue
        planned = model.plan(X).peak_bytes_per_worker / 2**20
        began = time.perf_counter()
        model.fit(X)
        seconds = time.perf_counter() - began
        ari = adjusted_rand_score(types, np.asarray(model.labels_))
        right = ""
        if name == "EWP":
            heaviest = np.argsort(-model.feature_weights_)[:100]
            right = f"{np.mean([g in markers for g in heaviest.tolist()]):.2f} (λ {model.lam_:.3g})"
        print(
            f"| {name} | {ari:.3f} | {right} | {model.n_passes_} | {seconds:.0f} | {peak():.0f} | "
            f"{planned:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
