"""The numbers of the README in one run: a Markdown table and a picture.

Run: python tests/benchmarks/summary.py [--out FOLDER] [--seeds S] [--rows N] [--gigabytes G]

Everything runs side by side in this process, peers and ours in turns; medians of five. scikit-learn
always plays; dask-ml and faiss-cpu do if they are installed. On two cores a million rows take some
hours, nearly all of them the peers' with a hundred clusters; ``--rows 50000 --gigabytes 1`` takes
half of one.
"""

import argparse
import os
import platform
import tempfile
import warnings
from pathlib import Path

import block_kernel
import fits
import numpy as np
import out_of_core
import passes
from threadpoolctl import threadpool_limits

from daskmm.engine.threads import one_blas_thread
from daskmm.plot import require_matplotlib

REPEATS = 5


def machine():
    """Processor and cores, as the system tells them."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        name = models[0].split(":")[1].strip() if models else name
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"


def kernel_table(say):
    """Steps of the block kernel on one thread."""
    say(
        "\n## One step over a block, one thread, relative to an iteration of scikit-learn's Lloyd\n"
    )
    say("| rows, features, clusters | dtype | soft | hard |")
    say("|---|---|---|---|")
    found = {}
    with threadpool_limits(1):
        for dtype in ("float32", "float64"):
            for shape in block_kernel.SHAPES:
                t = block_kernel.compared(shape, np.dtype(dtype).type, REPEATS)
                soft, hard = t["soft"] / t["lloyd"], t["hard"] / t["lloyd"]
                label = f"{shape[0]:,} × {shape[1]}, {shape[2]}"
                found[f"{label}, {dtype}"] = (soft, hard)
                say(f"| {label} | {dtype} | {soft:.2f} | {hard:.2f} |")
    return found


def fit_table(say, n_rows, seeds):
    """Whole fits in memory."""
    names = list(fits.fits(2, 0))
    say(f"\n## Fits of {n_rows:,} × {fits.N_FEATURES}: cost / scikit-learn's best of 8, seconds\n")
    say(f"| mixture | k | dtype | {' | '.join(names)} |")
    say("|---|---|---|" + "---|" * len(names))
    found = {}
    for case in fits.CASES:
        per_peer = fits.measured(*case, n_rows, seeds)
        found[case] = per_peer
        cells = " | ".join(f"{ratio:.4f}, {took:.1f} s" for ratio, took in per_peer.values())
        say(f"| {' | '.join(map(str, case))} | {cells} |")
    return found


def store_table(say, gigabytes):
    """Fits to a store, at the speed of the machine and of a slow disk."""
    say(f"\n## Fits to a float32 store of {gigabytes:g} GB, 50 features, 20 clusters\n")
    say("| model | store | reads | seconds | / reads × larger of read and products | / 7 reads |")
    say("|---|---|---|---|---|---|")
    stores = {"page cache": {}, "disk": {"disk": True}, "300 MB/s": {"rate": 300.0}}
    cases = [("power", name) for name in stores] + [("entropy", "disk")]
    for model, store in cases:
        one = out_of_core.measured(model, gigabytes, **stores[store])
        larger = one["reads"] * max(one["plain"], one["products"])
        say(
            f"| {model} | {store} | {one['reads']} | {one['seconds']:.1f} "
            f"| {one['seconds'] / larger:.2f} | {one['seconds'] / (7 * one['plain']):.2f} |"
        )


def picture(path, fit_rows):
    """Cost against time of every fit, relative to scikit-learn's best of eight starts."""
    require_matplotlib()
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.0, 4.2), layout="constrained")
    names = list(next(iter(fit_rows.values())))
    reference = names[0]
    # Scales first: margins are made in them.
    axes.set(
        xscale="log",
        yscale="symlog",
        xlabel=f"time, relative to {reference}",
        ylabel="cost above that (%)",
    )
    for number, name in enumerate(names[1:]):
        times = [found[name][1] / found[reference][1] for found in fit_rows.values()]
        excess = [100 * (found[name][0] - 1) for found in fit_rows.values()]
        axes.scatter(times, excess, label=name, s=28, marker="osD^vP"[number], alpha=0.8)
    axes.axhline(0, color="gray", linewidth=0.8)
    axes.axvline(1, color="gray", linewidth=0.8)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("daskmm-benchmarks"))
    parser.add_argument("--seeds", type=int, default=REPEATS)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    table = arguments.out / "benchmarks.md"
    with table.open("w", encoding="utf-8") as file:

        def say(line):
            print(line, flush=True)
            print(line, file=file, flush=True)

        say(f"Measured on {machine()}.")
        kernel_table(say)
        with tempfile.TemporaryDirectory() as scratch, one_blas_thread():
            passes.overhead(Path(scratch), say)
        store_table(say, arguments.gigabytes)
        fit_rows = fit_table(say, arguments.rows, arguments.seeds)
    picture(arguments.out / "fits.png", fit_rows)
    print(f"\n{table}\n{arguments.out / 'fits.png'}")


if __name__ == "__main__":
    main()
