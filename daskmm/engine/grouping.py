"""Divide the calls of a pass into groups, each for one dask task."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from daskmm._dask import Key
from daskmm.engine.merge_tree import subtree_starts

# Least number of tasks per thread of this process, if there are enough calls. Fewer tasks would
# cost less time, and more would balance the load better.
GROUPS_PER_THREAD = 8
# Number of tasks per thread in long passes over a cluster: a large one, then about two small ones
# for the last fourth of the calls. Small tasks balance the load, and an adaptive cluster grows when
# tasks wait. A scheduler gives each worker one task more than it has threads, so some workers run
# one more small task than others. Each task costs a scheduler of a hundred workers 0.6 ms.
_GROUPS_PER_CLUSTER_THREAD = 3
# Least number of subtrees (see `daskmm.engine.merge_tree`) in a group.
_SUBTREES_PER_GROUP = 32
# Expected number of threads of a cluster without workers. The next pass is grouped for its actual
# threads.
_EXPECTED_THREADS = 8

# Numbers of the calls in each group, ascending.
Groups = tuple[Sequence[int], ...]


class Grouping(NamedTuple):
    """Groups of calls, each to be run by one task."""

    groups: Groups  # numbers of the calls in each group, ascending
    # Persisted data of each group. Every worker that holds the first key holds all of them, so only
    # the first is an input of the task: a scheduler spends 0.1 ms on each.
    persisted: tuple[tuple[Key, ...], ...]
    settled: bool = False  # whether these are all the persisted data that the calls need
    # Number of threads among which each task divides its calls; 1 each if empty.
    threads: tuple[int, ...] = ()

    @property
    def queues(self) -> list[Groups]:
        """Calls of each group, divided into one share per thread."""
        threads = self.threads or (1,) * len(self.groups)
        return [shares(group, n) for group, n in zip(self.groups, threads, strict=True)]

    def of_calls(self, calls: Collection[int]) -> Grouping:
        """Restrict the groups to some calls; their tasks expect no data on the workers."""
        wanted = set(calls)
        groups = (tuple(call for call in group if call in wanted) for group in self.groups)
        return without_data(tuple(group for group in groups if group))


def without_data(groups: Groups, threads: tuple[int, ...] = ()) -> Grouping:
    """Return a grouping in which no worker is expected to hold any data of the calls."""
    return Grouping(groups, ((),) * len(groups), threads=threads)


def expected_threads(threads: Mapping[str, int]) -> int:
    """Return the threads of all workers, or the expected ones of a cluster without workers."""
    return sum(threads.values()) or _EXPECTED_THREADS


def streamed_groups(n_calls: int, n_threads: int) -> Groups:
    """Return groups of consecutive calls: large ones for each thread, then small ones.

    The small ones balance the load at the end of a pass.
    """
    starts = _starts(n_calls, n_threads)
    large = max(1, 3 * len(starts) // (4 * n_threads))
    middle = min(len(starts), large * n_threads)
    n_small = (_GROUPS_PER_CLUSTER_THREAD - 1) * n_threads
    small = max(1, math.ceil((len(starts) - middle) / n_small))
    cuts = [*starts[:middle:large], *starts[middle::small], n_calls]
    return tuple(range(*pair) for pair in itertools.pairwise(cuts))


def _starts(n_calls: int, n_groups: int) -> list[int]:
    """Return the first call of each of about `n_groups` groups, which leave few records each."""
    return subtree_starts(n_calls, _SUBTREES_PER_GROUP * n_groups)


def grouped_by_holder(
    needed: Sequence[Sequence[Key]],
    holders: Mapping[Key, Sequence[str]],
    threads: Mapping[str, int],
) -> Grouping:
    """Group calls for the workers that hold their data.

    Groups of consecutive calls would copy half of the persisted data between two workers; a pass
    over 256 small blocks would then take 40 ms instead of 15. `needed` are the keys of each call,
    `holders` the workers that hold each key, and `threads` the threads of each worker.
    """
    workers = [next((holders[key] for key in keys if holders.get(key)), ()) for keys in needed]
    groups = groups_by_holder(workers, threads)
    persisted, settled = [], True
    for group in groups:
        keys = list(dict.fromkeys(key for call in group for key in needed[call]))
        persisted.append(_held_together(keys, holders))
        settled &= 0 < len(persisted[-1]) == len(keys)
    return Grouping(tuple(groups), tuple(persisted), settled, tuple(groups.values()))


def _held_together(keys: Sequence[Key], holders: Mapping[Key, Sequence[str]]) -> tuple[Key, ...]:
    """Return as many keys as possible that are all on each worker that holds the first one."""
    held = {key: frozenset(holders[key]) for key in keys if holders.get(key)}
    if not held:
        return ()
    counts = Counter(worker for workers in held.values() for worker in workers)
    most = max(sorted(counts), key=counts.__getitem__)
    theirs = [key for key, workers in held.items() if most in workers]
    first = min(theirs, key=lambda key: len(held[key]))
    return (first, *(key for key in theirs if key != first and held[key] >= held[first]))


def consecutive_groups(n_calls: int, least: int) -> Groups:
    """Return groups of consecutive calls with one record each: from `least` to twice `least`.

    If there are fewer calls than that, each is a group.
    """
    cuts = [*subtree_starts(n_calls, least), n_calls]
    return tuple(range(*pair) for pair in itertools.pairwise(cuts))


def on_all_threads(
    threads: Mapping[str, int], n_calls: int, cut: Callable[[int, int], Groups]
) -> Grouping:
    """Group calls whose data no worker holds; a worker makes its calls on all of its threads.

    ``cut(n_calls, n_groups)`` returns about `n_groups` groups: one for each worker or, if the
    numbers of their threads differ, one for each thread. Workers with several groups divide their
    threads among them.
    """
    alike = set(threads.values())
    if len(alike) > 1:
        return without_data(cut(n_calls, sum(threads.values())))
    groups = cut(n_calls, len(threads))
    each = max(1, max(alike) // max(1, -(-len(groups) // len(threads))))
    return without_data(groups, (each,) * len(groups))


def packs(n_calls: int, n_groups: int) -> Groups:
    """Return at most `n_groups` groups of consecutive calls, of nearly equal sizes."""
    starts, n = _starts(n_calls, n_groups), min(n_calls, n_groups)
    cuts = [*(starts[len(starts) * i // n] for i in range(n)), n_calls]
    return tuple(tuple(range(*pair)) for pair in itertools.pairwise(cuts))


def shares(calls: Sequence[int], n: int) -> Groups:
    """Divide calls into at most `n` shares, which have few records if the calls are a subtree."""
    return tuple(calls[cut[0] : cut[-1] + 1] for cut in packs(len(calls), n))


def groups_by_holder(
    holders: Sequence[Sequence[str]], threads: Mapping[str, int]
) -> dict[tuple[int, ...], int]:
    """Return, for each worker, the calls whose data it holds and the number of its threads.

    One task for all threads of a worker costs the scheduler less than one for each. Calls whose
    data no worker holds are grouped as if their blocks were streamed.
    """
    held: dict[str, list[int]] = {}
    lost: list[int] = []
    for call, workers in enumerate(holders):
        known = [worker for worker in workers if worker in threads]
        if known:
            worker = min(known, key=lambda name: (len(held.get(name, ())), name))
            held.setdefault(worker, []).append(call)
        else:
            lost.append(call)
    groups = {
        tuple(lost[i] for i in group): 1
        for group in streamed_groups(len(lost), expected_threads(threads))
    }
    groups |= {tuple(calls): threads[worker] for worker, calls in held.items()}
    return dict(sorted(groups.items()))
