"""What one task of a pass does: its jobs one after the other, the data of the next read ahead."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import operator
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from dask._task_spec import GraphNode, TaskRef
from dask.typing import Key

from daskmm.engine.malloc import memory_recycled
from daskmm.engine.resources import threads_here

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


# Data that took longer than this to load are loaded by a thread of their own, one job ahead.
SLOW_SECONDS = 1e-3

Arguments = tuple[Any, ...]
# Arguments of a job, and its number.
Numbered = tuple[int, Arguments]


class Job(NamedTuple):
    """A call of a kernel.

    Attributes
    ----------
    number : int
        Its place among all jobs of the pass.
    arguments : tuple
        A TaskRef stands for what the node of that key makes.
    steps : tuple of (GraphNode, keys)
        Nodes to be run for it, in order; each with the values that nobody needs afterwards.
    spent : tuple of keys
        Values that nobody needs once the arguments have been taken.
    """

    number: int
    arguments: Arguments
    steps: tuple[tuple[GraphNode, tuple[Key, ...]], ...]
    spent: tuple[Key, ...]


class JobGroup(NamedTuple):
    """Jobs of one task.

    Attributes
    ----------
    jobs : tuple of Job
        In order.
    inputs : tuple of keys
        Of what other tasks make for them.
    at_hand : tuple of keys
        Of what the worker that it is given to should hold.
    """

    jobs: tuple[Job, ...]
    inputs: tuple[Key, ...]
    at_hand: tuple[Key, ...] = ()


def references(own: Arguments) -> list[Key]:
    """Keys that stand among the arguments of a job."""
    return [item.key for item in own if isinstance(item, TaskRef)]


def closure(keys: Iterable[Key], nodes: Mapping[Key, GraphNode]) -> dict[Key, GraphNode]:
    """Nodes of these keys, and of all that they need."""
    found: dict[Key, GraphNode] = {}
    left = list(keys)
    while left:
        key = left.pop()
        if key in nodes and key not in found:
            found[key] = nodes[key]
            left.extend(nodes[key].dependencies)
    return found


def grouped(
    numbers: Sequence[int],
    arguments: Sequence[Arguments],
    nodes: Mapping[Key, GraphNode],
    inside: Callable[[Key], bool],
    at_hand: Sequence[Key] = (),
) -> JobGroup:
    """A group of jobs.

    Parameters
    ----------
    numbers : sequence of int
        Of the jobs, rising.
    arguments : sequence of tuple
        Of each of them; a TaskRef stands for what a node makes.
    nodes : mapping
    inside : callable
        Whether a node is to be run by the group; others are inputs.
    at_hand : sequence of keys
        Inputs that every worker holds that has the first of them, which stays an input.
    """
    inputs: dict[Key, None] = {}
    met: set[Key] = set()
    orders: list[list[Key]] = []
    for own in arguments:
        order: list[Key] = []
        left = [(key, False) for key in references(own)]
        while left:
            key, needs_are_met = left.pop()
            if needs_are_met:
                order.append(key)
            elif key not in met:
                met.add(key)
                if inside(key):
                    left.append((key, True))
                    left.extend((need, False) for need in nodes[key].dependencies)
                else:
                    inputs[key] = None
        orders.append(order)
    spent = _spent(arguments, orders, nodes)
    jobs = [
        Job(number, own, tuple((nodes[key], next(spent)) for key in order), next(spent))
        for number, own, order in zip(numbers, arguments, orders, strict=True)
    ]
    spared = set(at_hand[1:])
    sent = tuple(key for key in inputs if key not in spared)
    return JobGroup(tuple(jobs), sent, tuple(key for key in inputs if key in spared))


def _spent(
    arguments: Sequence[Arguments], orders: Sequence[list[Key]], nodes: Mapping[Key, GraphNode]
) -> Iterator[tuple[Key, ...]]:
    """Values used for the last time, for each node that is run and each job that is called."""
    uses: list[Iterable[Key]] = []
    for own, order in zip(arguments, orders, strict=True):
        uses += [nodes[key].dependencies for key in order]
        uses.append(references(own))
    last = {key: moment for moment, keys in enumerate(uses) for key in keys}
    return iter(
        [tuple({key for key in keys if last[key] == moment}) for moment, keys in enumerate(uses)]
    )


class GroupQueue:
    """Groups without inputs, for tasks of one process that take them in turns.

    A task then reads ahead from group to group, and one that is slow takes fewer.
    """

    def __init__(self, groups: Sequence[JobGroup]) -> None:
        self._n_groups = len(groups)
        self._groups = iter(groups)
        self._lock = threading.Lock()
        self._open = True

    def __len__(self) -> int:
        return self._n_groups

    def __iter__(self) -> Iterator[JobGroup]:
        while True:
            with self._lock:
                taken = next(self._groups, None) if self._open else None
            if taken is None:
                return
            yield taken

    def close(self) -> None:
        """Give out no more groups."""
        self._open = False


@dataclass(frozen=True)
class Runs:
    """Sums of records over some jobs, as far as the order of all jobs lets them be merged.

    Merged are aligned runs of 2^j jobs, by halves. So the bits of the sum over all jobs, and the
    order of what records concatenate, do not depend on who did which.

    Attributes
    ----------
    parts : dict
        Sum of a run, and j, by its first job.
    missed : tuple of int
        Jobs that were not done, as their data were not where they had been.
    """

    parts: dict[int, tuple[Any, int]]
    missed: tuple[int, ...] = ()

    def __add__(self, other: Self) -> Self:
        parts = dict(self.parts)
        for start, (record, level) in other.parts.items():
            _put(parts, start, record, level)
        return type(self)(parts, tuple(sorted(self.missed + other.missed)))

    @property
    def total(self) -> Any:
        """Sum over all jobs, once all are there."""
        return functools.reduce(
            lambda right, left: left + right,
            (self.parts[start][0] for start in sorted(self.parts, reverse=True)),
        )


def run_queue(queue: GroupQueue, kernel: Callable[..., Any], shared: Arguments) -> Runs:
    """Sums over the jobs of the groups that this task took."""
    try:
        return _run(queue, kernel, shared, {})
    except BaseException:
        queue.close()  # lest other tasks go on in the background
        raise


def run_group(group: JobGroup, kernel: Callable[..., Any], shared: Arguments, *inputs: Any) -> Runs:
    """Sums of ``kernel(*own, *shared)`` over the jobs of a group."""
    return _run([group], kernel, shared, dict(zip(group.inputs, inputs, strict=True)))


def run_pickled(group: bytes, call: bytes, *inputs: Any) -> Runs:
    """`run_group` of a pickled group and a pickled (kernel, shared), on a worker.

    A scheduler takes .1 ms for each input of each task. So data that the worker holds are none, but
    taken from where it keeps them.
    """
    loaded: JobGroup = pickle.loads(group)
    values = dict(zip(loaded.inputs, inputs, strict=True))
    if loaded.at_hand:
        from distributed import get_worker

        held = get_worker().data
        try:
            values.update((key, held[key]) for key in loaded.at_hand)
        except KeyError:
            return Runs({}, tuple(job.number for job in loaded.jobs))
    kernel, shared = pickle.loads(call)
    return _run([loaded], kernel, shared, values)


def _run(
    groups: Iterable[JobGroup],
    kernel: Callable[..., Any],
    shared: Arguments,
    inputs: dict[Key, Any],
) -> Runs:
    """Sums over the jobs of some groups.

    At most two jobs' data are alive at once: those in use, and those read ahead.
    """
    jobs = (job for group in groups for job in group.jobs)
    parts: dict[int, tuple[Any, int]] = {}
    # Closed at once when a kernel fails, lest the reader wait for the error to be forgotten.
    with memory_recycled(), contextlib.closing(_loaded(jobs, _Loader(inputs))) as loaded:
        for number, own in loaded:
            record = kernel(*own, *shared)
            del own  # not alive while the next are loaded
            _put(parts, number, record, 0)
            del record
    return Runs(parts)


def _put(parts: dict[int, tuple[Any, int]], start: int, record: Any, level: int) -> None:
    """Add the sum of a run of 2^level jobs to others, merged with its neighbours that are there."""
    while (buddy := start ^ 1 << level) in parts and parts[buddy][1] == level:
        beside, _ = parts.pop(buddy)
        record = record + beside if start < buddy else beside + record
        start, level = min(start, buddy), level + 1
    parts[start] = record, level


class _Loader:
    """Runs the nodes that a job needs; values live until the last job of the group used them."""

    def __init__(self, inputs: dict[Key, Any]) -> None:
        self.values = inputs

    def __call__(self, job: Job) -> Numbered:
        values = self.values
        for node, spent in job.steps:
            values[node.key] = node({key: values[key] for key in node.dependencies})
            for key in spent:
                del values[key]
        arguments = tuple(
            values[item.key] if isinstance(item, TaskRef) else item for item in job.arguments
        )
        for key in job.spent:
            del values[key]
        return job.number, arguments


def _loaded(
    jobs: Iterator[Job], load: Callable[[Job], Numbered]
) -> Generator[Numbered, None, None]:
    """Arguments of each job; from the first that takes its time on, those of the next ahead."""
    for job in jobs:
        began = time.perf_counter()
        own = [load(job)]
        if time.perf_counter() - began > SLOW_SECONDS:
            yield from _read_ahead(own, jobs, load)
            return
        # Popped: what a pass is done with must not stay alive while the next is loaded.
        yield own.pop()


def _read_ahead(
    own: list[Numbered],
    jobs: Iterator[Job],
    load: Callable[[Job], Numbered],
) -> Generator[Numbered, None, None]:
    # Loading functions may ask on which worker they run, or for other variables of the context.
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, "daskmm-read-ahead") as reader:
        for job in jobs:
            ahead = reader.submit(context.run, load, job)
            yield own.pop()
            own.append(ahead.result())
            del ahead
        yield own.pop()


def merge(records: Iterable[Any]) -> Any:
    """Sum of records, first to last."""
    return functools.reduce(operator.add, records)
