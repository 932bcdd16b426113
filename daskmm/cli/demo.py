"""The demo: data larger than the memory used, clustered two ways."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from daskmm import metrics
from daskmm._dask import cpu_count, da, dask
from daskmm.cli.run_folder import write_run
from daskmm.cluster import EntropyPowerKMeans, KMeans
from daskmm.cluster._centers import CenterClusterer
from daskmm.cluster._progress import ProgressLine
from daskmm.data.files import open_data
from daskmm.data.lazy import delayed_rows
from daskmm.data.names import features_found, shell_word
from daskmm.datasets import make_ewp_simulation2
from daskmm.engine.labels import write_labels
from daskmm.engine.resources import peak_memory_bytes
from daskmm.plot import require_matplotlib
from daskmm.storage.arrays import create_array
from daskmm.storage.readable import readable_bytes, readable_seconds

N_SAMPLES = 4_000_000
N_CLUSTERS = 20
N_INFORMATIVE = 5
N_NOISE = 45
_N_FEATURES = N_INFORMATIVE + N_NOISE
# Rows of a chunk of 16 MB.
_CHUNK_ROWS = 40_000
# Every thread holds a few chunks, so more threads would need more memory.
_MOST_THREADS = 4

Say = Callable[[str], None]


def run_demo(
    out: str | Path,
    *,
    n_samples: int = N_SAMPLES,
    say: Say = print,
    show_progress: bool = True,
) -> dict[str, Any]:
    """Generate data on disk, cluster them by Lloyd's algorithm and by EWP, and compare.

    The folder, which must be absent or empty, gets the data (`n_samples` rows of 400 bytes), the
    true labels and two run folders. `say` is called with the lines to print; progress is reported
    on standard error.

    Return measurements, in the types of JSON. For each of the run folders "lloyd" and "entropy",
    ``results`` has model, passes, iterations, seconds, NMI and warnings; for "entropy" also the
    features found. The peak memory is None if the system does not report it.

    It raises FileExistsError if the folder is not empty, OSError if the disk has too little room,
    and ImportError without matplotlib.
    """
    require_matplotlib()
    began = time.perf_counter()
    out = _empty_folder(Path(out), n_samples)
    threads = min(cpu_count(), _MOST_THREADS)
    say(
        f"1. Making data: {n_samples:,} rows × {_N_FEATURES} features, {N_CLUSTERS} clusters.\n"
        f"   Clusters differ in {N_INFORMATIVE} features (0 to {N_INFORMATIVE - 1}); the other "
        f"{N_NOISE} are pure noise."
    )
    with dask.config.set(num_workers=threads):
        data_bytes = _generate(out, n_samples)
        say(f"   {readable_bytes(data_bytes)} in {out / 'data.zarr'}\n")
        shared: dict[str, Any] = {"standardize": True, "random_state": 0}
        tasks: list[tuple[str, str, CenterClusterer]] = [
            ("lloyd", "k-means (Lloyd's algorithm)", KMeans(N_CLUSTERS, **shared)),
            ("entropy", "Entropy weighted power k-means", EntropyPowerKMeans(N_CLUSTERS, **shared)),
        ]
        results = {}
        for number, (name, title, model) in enumerate(tasks, start=2):
            say(f"{number}. {title}, reading the data from disk in every pass.")
            results[name] = _cluster(out, name, model, show_progress)
            taken = readable_seconds(results[name]["seconds"])
            say(f"   {results[name]['n_passes']} passes over the data in {taken}")
            say("".join(f"   note: {note}\n" for note in results[name]["warnings"]))
    report = {
        "out": str(out),
        "data_bytes": data_bytes,
        "seconds": time.perf_counter() - began,
        "peak_memory_bytes": peak_memory_bytes(),
        "n_threads": threads,
        "results": results,
    }
    say(_summary(out, report))
    return report


def _empty_folder(out: Path, n_samples: int) -> Path:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} exists and is not empty. Remove it, or choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    needed, free = n_samples * (_N_FEATURES * 8 + 12), shutil.disk_usage(out).free
    if needed > free:
        raise OSError(
            f"{out} has room for {readable_bytes(free)}; the demo writes {readable_bytes(needed)}."
        )
    return out


def _generate(out: Path, n_samples: int) -> int:
    """Write data and true labels; return the size of the data in bytes."""
    chunk = min(_CHUNK_ROWS, n_samples)
    X, y = make_ewp_simulation2(
        n_samples, N_CLUSTERS, N_INFORMATIVE, N_NOISE, random_state=0, chunks=chunk
    )
    store = create_array(out / "data.zarr", X.shape, (chunk, _N_FEATURES), X.dtype)
    # Each task writes one stored chunk, so no lock is needed.
    blocks = zip(range(0, n_samples, chunk), delayed_rows(X), strict=True)
    dask.compute(*(dask.delayed(_write)(store, start, block) for start, block in blocks))
    write_labels(y, out / "truth.zarr")
    return _bytes_of(X)


def _write(store: Any, start: int, block: NDArray) -> None:
    store[start : start + len(block)] = block


def _bytes_of(X: da.Array) -> int:
    return int(np.prod(X.shape)) * X.dtype.itemsize


def _cluster(out: Path, name: str, model: CenterClusterer, show_progress: bool) -> dict[str, Any]:
    """Fit, write the run folder, and compare its labels with the true ones."""
    source = out / "data.zarr"
    X = open_data(source)
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        if show_progress:
            with ProgressLine("  fit", model.max_iter, _bytes_of(X)) as progress:
                model.set_params(callbacks=[progress]).fit(X)
            model.set_params(callbacks=None)
        else:
            model.fit(X)
    seconds = time.perf_counter() - began
    notes = [str(warning.message) for warning in caught]
    write_run(out / name, model, X, source=str(source.absolute()), notes=notes, pictures=True)
    truth, labels = (
        zarr.open_array(path, mode="r") for path in (out / "truth.zarr", out / name / "labels.zarr")
    )
    result: dict[str, Any] = {
        "model": type(model).__name__,
        "n_passes": model.n_passes_,
        "n_iter": model.n_iter_,
        "seconds": seconds,
        "nmi": metrics.normalized_mutual_info_score(truth, labels),
        "warnings": notes,
    }
    if isinstance(model, EntropyPowerKMeans):
        result["features_found"] = sorted(features_found(model.feature_weights_).tolist())
    return result


def _summary(out: Path, report: dict[str, Any]) -> str:
    lloyd, entropy = report["results"]["lloyd"], report["results"]["entropy"]
    peak = report["peak_memory_bytes"]
    found = ", ".join(map(str, entropy["features_found"]))
    return "\n".join(
        [
            "What happened",
            f"   data on disk         {readable_bytes(report['data_bytes'])}",
            f"   peak memory          {readable_bytes(peak)} (this whole process, "
            f"{report['n_threads']} threads)",
            f"   passes               Lloyd {lloyd['n_passes']}, EWP {entropy['n_passes']}",
            f"   NMI with the truth   Lloyd {lloyd['nmi']:.3f}, EWP {entropy['nmi']:.3f}",
            f"   features found       {found} (true: 0 to {N_INFORMATIVE - 1})",
            f"   time                 {readable_seconds(report['seconds'])}",
            "",
            "Pictures",
            f"   {out / 'lloyd' / 'projection.png'}",
            f"   {out / 'entropy' / 'projection.png'}",
            f"   {out / 'entropy' / 'feature_weights.png'}",
            f"   {out / 'entropy' / 'objective.png'}",
            "",
            "What to try next",
            f"   daskmm inspect {shell_word(out / 'entropy')}",
            f"   daskmm plan {shell_word(out / 'data.zarr')} -k 20 --model entropy",
            f"   daskmm fit {shell_word(out / 'data.zarr')} -k 20 --model power --out my-run",
            f"   rm -r {shell_word(out)}    (when you are done)",
        ]
    )
