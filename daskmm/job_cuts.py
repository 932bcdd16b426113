"""Which jobs of a pass are grouped into one task, and what of their data is at hand there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from dask.typing import Key

from daskmm.resources import threads_here

# Tasks per thread that jobs are grouped into, at least, where there are so many: few cost little,
# many share the work evenly. A task costs .1 ms on threads and 2 on a cluster.
GROUPS_PER_THREAD = 8
GROUPS_PER_CLUSTER_THREAD = 4

# Jobs of each group.
Cuts = tuple[tuple[int, ...], ...]


class Grouping(NamedTuple):
    """Groups of jobs.

    Attributes
    ----------
    cuts : tuple of tuple of int
        Jobs of each group, rising.
    at_hand : tuple of tuples of keys
        Kept data of each group; every worker that holds the first of them holds them all, so that
        a task that is given the first one needs not be sent the others.
    settled : bool
        Whether that is all of the kept data that the jobs need.
    """

    cuts: Cuts
    at_hand: tuple[tuple[Key, ...], ...]
    settled: bool = False

    def of_jobs(self, jobs: Collection[int]) -> Grouping:
        """Groups of some of the jobs, which are sent all that they need."""
        wanted = set(jobs)
        cuts = (tuple(job for job in cut if job in wanted) for cut in self.cuts)
        return without_data(tuple(cut for cut in cuts if cut))


def grouped_here(n_jobs: int) -> Grouping:
    """Groups for the threads of this process."""
    return without_data(aligned_cuts(n_jobs, threads_here() * GROUPS_PER_THREAD))


def grouped_anywhere(n_jobs: int, threads: Mapping[str, int]) -> Grouping:
    """Groups for workers with so many threads, wherever they like."""
    return without_data(aligned_cuts(n_jobs, sum(threads.values()) * GROUPS_PER_CLUSTER_THREAD))


def grouped_by_holder(
    needed: Sequence[Sequence[Key]],
    found: Mapping[Key, Sequence[str]],
    threads: Mapping[str, int],
) -> Grouping:
    """Groups for the workers that hold the jobs' data.

    Parameters
    ----------
    needed : sequence of sequence of keys
        Kept data that each job needs.
    found : mapping
        Workers that hold each of them.
    threads : mapping
        Threads of each worker.
    """
    holders = [next((found[key] for key in keys if found.get(key)), ()) for keys in needed]
    cuts = cuts_by_holder(holders, threads)
    at_hand, settled = [], True
    for cut in cuts:
        keys = list(dict.fromkeys(key for job in cut for key in needed[job]))
        at_hand.append(_together(keys, found))
        settled &= 0 < len(at_hand[-1]) == len(keys)
    return Grouping(cuts, tuple(at_hand), settled)


def _together(keys: Sequence[Key], found: Mapping[Key, Sequence[str]]) -> tuple[Key, ...]:
    """Keys that every worker holds that has the first of them, as many as there may be."""
    holders = {key: frozenset(found[key]) for key in keys if found.get(key)}
    if not holders:
        return ()
    counts = Counter(worker for workers in holders.values() for worker in workers)
    most = max(sorted(counts), key=counts.__getitem__)
    theirs = [key for key, workers in holders.items() if most in workers]
    first = min(theirs, key=lambda key: len(holders[key]))
    return (first, *(key for key in theirs if key != first and holders[key] >= holders[first]))


def without_data(cuts: Cuts) -> Grouping:
    """Groups that are sent all that they need."""
    return Grouping(cuts, ((),) * len(cuts))


def aligned_cuts(n_jobs: int, least: int) -> Cuts:
    """Groups of 2^j consecutive jobs: at least so many, less than twice as many, if there are."""
    size = 1
    while n_jobs >= 2 * size * max(least, 1):
        size *= 2
    return tuple(tuple(range(start, min(start + size, n_jobs))) for start in range(0, n_jobs, size))


def cuts_by_holder(holders: Sequence[Sequence[str]], threads: Mapping[str, int]) -> Cuts:
    """A group for each thread of each worker, of the jobs whose data it holds.

    Jobs whose data nobody holds (any more) are grouped as if they were streamed.
    """
    held: dict[str, list[int]] = {}
    lost: list[int] = []
    for job, workers in enumerate(holders):
        known = [worker for worker in workers if worker in threads]
        if known:
            worker = min(known, key=lambda name: (len(held.get(name, ())), name))
            held.setdefault(worker, []).append(job)
        else:
            lost.append(job)
    cuts = [
        tuple(lost[place] for place in cut)
        for cut in aligned_cuts(len(lost), sum(threads.values()) * GROUPS_PER_CLUSTER_THREAD)
    ]
    for worker, jobs in held.items():
        size = -(-len(jobs) // threads[worker])
        cuts += [tuple(jobs[start : start + size]) for start in range(0, len(jobs), size)]
    return tuple(sorted(cuts))
