"""Drift: false alarms over many quiet partitions, and small shifts that are found.

Run: python tests/benchmarks/drift.py [streams] [partitions]

Quiet streams draw all partitions from the mixture of the reference; a stream has a false alarm if
any of its looks finds drift. Shifts move one cluster of 20 by some of its standard deviations along
its widest direction, in a partition that has 2,000 rows of it, after five quiet ones. Days have
weeks, a year and noise of their own in every column; after 70 to 100 of them, one column shifts by
.3 standard deviations. Prints Markdown.
"""

import copy
import sys
import warnings

import numpy as np

import daskmm
from daskmm import KMeans


def mixture(k, p, seed, separation, noise="normal"):
    """Return a function that draws rows of k clusters with correlated features."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(k, p)) * separation / np.sqrt(2)
    mix = np.linalg.qr(rng.normal(size=(p, p)))[0] * np.linspace(0.3, 1.0, p)
    rng = np.random.default_rng((seed, 1))

    def draw(n, shift=0.0, cluster=0):
        truth = rng.integers(k, size=n)
        if noise == "normal":
            values = rng.normal(size=(n, p))
        elif noise == "t5":
            values = rng.standard_t(5, size=(n, p)) / np.sqrt(5 / 3)
        else:
            values = rng.exponential(size=(n, p)) - 1.0
        rows = centers[truth] + values @ mix
        rows[truth == cluster] += shift * mix[-1]
        return rows

    return draw, centers


def false_alarms(streams, partitions, k, p, separation, noise, reference, rows):
    """Count the streams with a false alarm, and those up to a tenth of the looks."""
    alarms = early = 0
    for seed in range(streams):
        draw, centers = mixture(k, p, seed, separation, noise)
        first = draw(reference)
        watch = daskmm.monitor(KMeans(k, init=centers, max_iter=20).fit(first), first)
        found = [watch.look(draw(rows)).drifted for _ in range(partitions)]
        alarms += any(found)
        early += any(found[: partitions // 10])
    return alarms, early


QUIET = [
    # clusters, features, separation, noise, reference rows, rows of a partition
    (5, 4, 4.0, "normal", 5_000, 500),
    (5, 4, 4.0, "normal", 50_000, 500),
    (5, 4, 2.0, "normal", 5_000, 300),
    (10, 8, 4.0, "normal", 10_000, 1_000),
    (5, 4, 4.0, "t5", 5_000, 500),
    (5, 4, 4.0, "exponential", 5_000, 500),
]


def quiet(streams, partitions):
    print(f"\nStreams of {partitions} quiet partitions, {streams} of each: share with an alarm\n")
    print("| clusters, features, separation, noise | reference | partition | alarms | in the first "
          "tenth |\n|---|---|---|---|---|")  # fmt: skip
    for case in QUIET:
        alarms, early = false_alarms(streams, partitions, *case)
        *kind, reference, rows = case
        print(
            f"| {', '.join(map(str, kind))} | {reference:,} | {rows:,} | {alarms / streams:.3f} | "
            f"{early / streams:.3f} |",
            flush=True,
        )


def shifts(draws):
    print(f"\nOne of 20 clusters shifted, 2,000 rows in it: share of {draws} found\n")
    print("| shift, standard deviations | found |\n|---|---|")
    for shift in (0.1, 0.2, 0.3):
        found = 0
        for seed in range(draws):
            draw, centers = mixture(20, 8, seed, 8.0)
            first = draw(100_000)
            watch = daskmm.monitor(KMeans(20, init=centers, max_iter=20).fit(first), first)
            for _ in range(5):
                watch.look(draw(10_000))
            found += watch.look(draw(40_000, shift, seed % 20)).drifted
        print(f"| {shift} | {found / draws:.2f} |", flush=True)


def stream_of_days(seed, noise, k=4, p=6, week=0.2, year=0.3):
    """Return a function that draws the rows of a day; shifts are in standard deviations."""
    rng = np.random.default_rng(seed)
    centers, phase = rng.normal(size=(k, p)) * 1.5, rng.random(p)
    weekdays = rng.normal(size=(7, p)) * week

    def draw(day, shift=0.0, column=0):
        rng = np.random.default_rng((seed, day))
        offset = year * np.sin(2 * np.pi * (day / 365 + phase)) + weekdays[day % 7]
        offset += noise * rng.normal(size=p)
        offset[column] += shift
        rows = centers[rng.integers(k, size=800)] + rng.normal(size=(800, p))
        return rows + offset * np.sqrt(1 + centers.var(axis=0))

    return draw


def watched_days(draw, n_days):
    parts = [draw(day) for day in range(n_days)]
    rows, batches = np.concatenate(parts), np.repeat(range(n_days), [len(part) for part in parts])
    return daskmm.monitor(KMeans(4, n_init=1, random_state=0).fit(rows), rows, batches=batches)


def days(draws):
    print(f"\nDays with seasons: alarms from day 60 to 364, and a shift of one column of 6 by .3 "
          f"standard deviations: share of {2 * draws} found in 7 days, and named\n")  # fmt: skip
    print("| noise of the day, standard deviations | alarms | found | named |\n|---|---|---|---|")
    for noise in (0.05, 0.07, 0.1):
        quiet = stream_of_days(0, noise)
        watch = watched_days(quiet, 60)
        alarms = np.mean([watch.look(quiet(day)).drifted for day in range(60, 365)])
        found, named = 0, 0
        for seed in range(draws):
            draw, last = stream_of_days(seed + 1, noise), 70 + seed % 30
            watch = watched_days(draw, 60)
            for day in range(60, last):
                watch.look(draw(day))
            for column in (0, 1):
                own, name = copy.deepcopy(watch), f"feature {column}"
                looks = (own.look(draw(last + i, 0.3, column)) for i in range(7))
                first = next((look for look in looks if look.drifted), None)
                found += first is not None
                named += first is not None and any(name in reason for reason in first.reasons)
        shares = f"{found / (2 * draws):.2f} | {named / max(found, 1):.2f}"
        print(f"| {noise} | {alarms:.3f} | {shares} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    streams, partitions = (int(arg) for arg in [*sys.argv[1:], *(200, 200)[len(sys.argv) - 1 :]])
    quiet(streams, partitions)
    shifts(max(streams // 4, 1))
    days(max(streams // 4, 1))
