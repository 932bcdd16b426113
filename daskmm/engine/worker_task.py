"""Run the calls of one task of a pass one after the other, reading the next block ahead."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import pickle
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from dask.typing import Key

from daskmm.data.dask_private import GraphNode, TaskRef
from daskmm.engine.malloc import memory_recycled
from daskmm.engine.merge_tree import Arguments, merge, sibling

# If a block takes longer than this to load, another thread loads the next ones ahead.
_SLOW_SECONDS = 1e-3

# Number of a call, and its arguments.
Numbered = tuple[int, Arguments]


class Call(NamedTuple):
    """One call of a block function."""

    number: int  # number of the call in the pass
    arguments: Arguments  # a `TaskRef` is replaced by the value of the node with that key
    # Nodes to run before the call, in order, each with the keys of values to delete afterwards.
    steps: tuple[tuple[GraphNode, tuple[Key, ...]], ...]
    spent: tuple[Key, ...]  # values to delete once the arguments are complete


class Group(NamedTuple):
    """Calls that one task makes."""

    queues: tuple[tuple[Call, ...], ...]  # calls that each thread makes, in ascending order
    inputs: tuple[Key, ...]  # values that other tasks make for these calls
    persisted: tuple[Key, ...]  # persisted values that should be in the worker's memory
    n_calls: int  # number of calls of the whole pass

    @property
    def calls(self) -> Iterator[Call]:
        """All calls."""
        return itertools.chain.from_iterable(self.queues)


class GroupQueue:
    """Groups without inputs, which the tasks of one process share.

    Tasks pull groups from this queue, so fast tasks take more, and tasks read ahead across groups.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._n_groups = len(groups)
        self.n_calls = groups[0].n_calls if groups else 0
        self._groups = iter(groups)
        self._lock = threading.Lock()
        self._open = True

    def __len__(self) -> int:
        return self._n_groups

    def __iter__(self) -> Iterator[Group]:
        while True:
            with self._lock:
                taken = next(self._groups, None) if self._open else None
            if taken is None:
                return
            yield taken

    def close(self) -> None:
        """End the queue."""
        self._open = False


@dataclass(frozen=True)
class PartialSums:
    """Sums of the records of some calls, merged along the tree of `daskmm.engine.merge_tree`."""

    n_calls: int  # number of calls of the whole pass
    # First call of a subtree -> (sum of its records, call after its last one).
    parts: dict[int, tuple[Any, int]] = field(default_factory=dict)
    # Calls that were not made, because their persisted data were elsewhere or the worker gave them
    # up.
    skipped: tuple[int, ...] = ()
    # Sum over further calls, whose records were added in any order.
    unordered: Unordered | None = None

    @classmethod
    def of(cls, call: int, record: Any, n_calls: int) -> Self:
        """Return the sums of one call."""
        return cls(n_calls, {call: (record, call + 1)})

    def __add__(self, other: Self) -> Self:
        parts = dict(self.parts)
        for start, (record, stop) in other.parts.items():
            _put(parts, start, stop, record, self.n_calls)
        skipped = tuple(sorted(self.skipped + other.skipped))
        found = type(self)(self.n_calls, parts, skipped, _in_turn(self.unordered, other.unordered))
        if found.unordered is None or found._n_made < self.n_calls:
            return found
        return type(self)(self.n_calls, {0: (found.total, self.n_calls)})

    @property
    def _n_made(self) -> int:
        """Number of calls whose records this sum contains."""
        made = sum(stop - start for start, (_, stop) in self.parts.items())
        return made + (0 if self.unordered is None else self.unordered.n_calls)

    @property
    def total(self) -> Any:
        """Sum of all records."""
        records = [self.parts[start][0] for start in sorted(self.parts, reverse=True)]
        if self.unordered is not None:
            records.append(self.unordered.record)
        return functools.reduce(lambda right, left: left + right, records)


class Unordered(NamedTuple):
    """Sum of the records of any calls, the first of these calls, and their number."""

    first: int
    n_calls: int
    record: Any


def _in_turn(one: Unordered | None, other: Unordered | None) -> Unordered | None:
    """Add unordered sums, that of the earliest call first."""
    if one is None or other is None:
        return one or other
    a, b = (one, other) if one.first < other.first else (other, one)
    return Unordered(a.first, a.n_calls + b.n_calls, a.record + b.record)


def _put(
    parts: dict[int, tuple[Any, int]], start: int, stop: int, record: Any, n_calls: int
) -> None:
    """Add the sum of a subtree to `parts`, and merge it with its siblings there."""
    if start in parts:
        raise RuntimeError(f"the record of call {start} was added twice")
    while (other := sibling(start, stop, n_calls)) is not None:
        first, last = other
        if first not in parts or parts[first][1] != last:
            break
        beside, _ = parts.pop(first)
        record = record + beside if start < first else beside + record
        start, stop = min(start, first), max(stop, last)
    parts[start] = record, stop


def n_records(calls: Iterable[int], n_calls: int) -> int:
    """Return how many records of some calls are left once neighbours are merged."""
    parts: dict[int, tuple[Any, int]] = {}
    for call in calls:
        _put(parts, call, call + 1, 0, n_calls)
    return len(parts)


def without_records(sums: PartialSums) -> PartialSums:
    """Return the skipped calls without the records."""
    return PartialSums(sums.n_calls, skipped=sums.skipped)


def completed(sums: PartialSums, others: PartialSums, calls: Collection[int]) -> PartialSums:
    """Add the sum of some of the skipped calls."""
    skipped = tuple(call for call in sums.skipped if call not in calls)
    return replace(sums, skipped=skipped) + others


def run_queue(queue: GroupQueue, function: Callable[..., Any], shared: Arguments) -> PartialSums:
    """Make the calls of the groups that this task takes from a queue."""
    calls = itertools.chain.from_iterable(group.calls for group in queue)
    try:
        return _run(calls, queue.n_calls, function, shared, {})
    except BaseException:
        queue.close()  # otherwise other tasks would go on in the background
        raise


# Numbers of the calls that have not begun, for each task of this worker; the keys are the pass and
# the task's first call.
_UNBEGUN: dict[tuple[str, int], set[int]] = {}
# The latest tasks that have ended; they have no calls to give up.
_ENDED: deque[tuple[str, int]] = deque(maxlen=256)


@contextlib.contextmanager
def _unbegun(name: str, calls: Sequence[int]) -> Iterator[set[int]]:
    """Yield the calls of a task that have not begun; `give_up` may remove some at any time."""
    task = (name, calls[0])
    try:
        yield _UNBEGUN.setdefault(task, set(calls))
    finally:
        _ENDED.append(task)
        _UNBEGUN.pop(task, None)


def _taken(calls: set[int], call: int) -> bool:
    """Remove a call from a set; return whether this thread, and no other, removed it."""
    try:
        calls.remove(call)
    except KeyError:
        return False
    return True


def give_up(name: str, tasks: Mapping[str, Sequence[Sequence[int]]], dask_worker: Any) -> list[int]:
    """Return the calls of this worker's tasks that have not begun, which it will skip.

    `tasks` has the calls of each task of each worker, by the worker's address.
    """
    found: list[int] = []
    for calls in tasks[dask_worker.address]:
        task = (name, calls[0])
        if task not in _ENDED:
            left = _UNBEGUN.setdefault(task, set(calls))
            found += [call for call in calls if _taken(left, call)]
    return found


def run_group(
    group: Group, function: Callable[..., Any], shared: Arguments, *inputs: Any
) -> PartialSums:
    """Sum ``function(*own, *shared)`` over the calls of a group."""
    return _run_group(group, function, shared, dict(zip(group.inputs, inputs, strict=True)))


def pickled(value: Any) -> bytes:
    """Pickle as distributed does, which pickles functions of an interactive session by value."""
    from distributed.protocol.pickle import dumps

    return bytes(dumps(value))


def packed(group: Group) -> bytes:
    """Pickle and compress a group; the keys of blocks are alike, so few bytes are left."""
    return zlib.compress(pickled(group), 1)


def unpacked(group: bytes) -> Group:
    """Return the group of which `packed` made these bytes."""
    found: Group = pickle.loads(zlib.decompress(group))
    return found


@dataclass(frozen=True)
class Parcel:
    """A large pickled value that reports a size of 0 to the scheduler.

    A scheduler runs a task where its largest input is. Tasks should run where their blocks are, not
    where the state of a pass happened to arrive first.
    """

    content: Any  # the pickled value
    # Whether records whose attribute `any_order` is true are added as they come.
    any_order: bool = False

    def __sizeof__(self) -> int:
        return 0

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        content = pickle.PickleBuffer(self.content) if protocol >= 5 else self.content
        return Parcel, (content, self.any_order)


def run_pickled(group: bytes, name: str, call: bytes | Parcel, *inputs: Any) -> PartialSums:
    """Run a pickled group with a pickled (function, shared) on a worker of a cluster.

    Persisted blocks are read from the worker's memory. Calls are skipped if their blocks are not
    there, or if the worker gives them up; `name` is the name of the pass.
    """
    loaded = unpacked(group)
    values = dict(zip(loaded.inputs, inputs, strict=True))
    numbers = [call.number for call in loaded.calls]
    if loaded.persisted:
        from distributed import get_worker

        held = get_worker().data
        try:
            values.update((key, held[key]) for key in loaded.persisted)
        except KeyError:
            return PartialSums(loaded.n_calls, skipped=tuple(numbers))
    parcel = call if isinstance(call, Parcel) else Parcel(call)
    function, shared = pickle.loads(parcel.content)
    with _unbegun(name, numbers) as left:
        return _run_group(loaded, function, shared, values, left, parcel.any_order)


def load_pickled(group: bytes, *inputs: Any) -> list[Any]:
    """Return the arguments of all calls of a pickled group, one after the other, to be kept."""
    loaded = unpacked(group)
    values = dict(zip(loaded.inputs, inputs, strict=True))
    with memory_recycled(), contextlib.closing(_loaded(loaded.calls, _Loader(values))) as calls:
        return [value for _, own in calls for value in own]


def _run_group(
    group: Group,
    function: Callable[..., Any],
    shared: Arguments,
    inputs: dict[Key, Any],
    left: set[int] | None = None,
    any_order: bool = False,
) -> PartialSums:
    """Sum over the calls of a group, on at most as many threads as it has queues."""

    def summed(calls: Iterable[Call], values: dict[Key, Any]) -> PartialSums:
        return _run(calls, group.n_calls, function, shared, values, left, any_order)

    if len(group.queues) == 1:
        return summed(group.queues[0], inputs)
    failed = threading.Event()
    queues = deque(group.queues)

    def run() -> PartialSums:
        sums = PartialSums(group.n_calls)
        try:
            for queue in _taken_from(queues):
                calls = itertools.takewhile(lambda _: not failed.is_set(), queue)
                sums = sums + summed(calls, dict(inputs))
        except BaseException:
            failed.set()
            raise
        return sums

    with _more_threads(len(queues) - 1) as more:
        if not more:
            return run()
        with ThreadPoolExecutor(more, "daskmm-pass") as pool:
            found = [pool.submit(contextvars.copy_context().run, run) for _ in range(more)]
            return merge([run(), *(each.result() for each in found)])


def _taken_from(queues: deque[tuple[Call, ...]]) -> Iterator[tuple[Call, ...]]:
    """Yield queues; each goes to one thread."""
    while True:
        try:
            queue = queues.popleft()
        except IndexError:
            return
        yield queue


# Threads of all tasks that run groups of several queues in this process.
_BUSY = 0
_BUSY_LOCK = threading.Lock()


@contextlib.contextmanager
def _more_threads(wanted: int) -> Iterator[int]:
    """Reserve up to `wanted` threads for a task besides its own, and yield their number.

    Tasks that run at the same time in one process share the threads of a single one. Otherwise a
    worker that takes over the task of a lost one would have twice as many blocks in memory.
    """
    global _BUSY
    with _BUSY_LOCK:
        more = max(0, wanted - _BUSY)
        _BUSY += 1 + more
    try:
        yield more
    finally:
        with _BUSY_LOCK:
            _BUSY -= 1 + more


def _run(
    calls: Iterable[Call],
    n_calls: int,
    function: Callable[..., Any],
    shared: Arguments,
    inputs: dict[Key, Any],
    left: set[int] | None = None,
    any_order: bool = False,
) -> PartialSums:
    """Sum over some calls, with the data of at most two calls alive at once.

    If `left` is given, a call is made only if it can be removed from that set. With `any_order`,
    records whose attribute of that name is true are added as they come.
    """
    parts: dict[int, tuple[Any, int]] = {}
    skipped: list[int] = []
    added: Unordered | None = None
    here = calls if left is None else _still_in(left, calls, skipped)
    # It is closed even after an error, which would otherwise keep the reading thread alive.
    with memory_recycled(), contextlib.closing(_loaded(iter(here), _Loader(inputs))) as loaded:
        for number, own in loaded:
            if left is None or _taken(left, number):
                record = function(*own, *shared)
                del own  # this block is freed before the next one is loaded
                if any_order and getattr(record, "any_order", False):
                    added = _in_turn(added, Unordered(number, 1, record))
                else:
                    _put(parts, number, number + 1, record, n_calls)
                del record
            else:
                del own
                skipped.append(number)
    return PartialSums(n_calls, parts, tuple(skipped), added)


def _still_in(left: set[int], calls: Iterable[Call], skipped: list[int]) -> Iterator[Call]:
    """Yield each call that is still in the set once it is to be loaded; note others as skipped."""
    for call in calls:
        if call.number in left:
            yield call
        else:
            skipped.append(call.number)


class _Loader:
    """Runs the nodes that a call needs; values live until their last use in the group."""

    def __init__(self, inputs: dict[Key, Any]) -> None:
        self.values = inputs

    def __call__(self, call: Call) -> Numbered:
        values = self.values
        for number, (node, spent) in enumerate(call.steps):
            try:
                values[node.key] = node({key: values[key] for key in node.dependencies})
            except Exception as error:
                error.add_note(f"This error was raised while {_read_in(call, number)} was read.")
                raise
            for key in spent:
                del values[key]
        arguments = tuple(
            values[item.key] if isinstance(item, TaskRef) else item for item in call.arguments
        )
        for key in call.spent:
            del values[key]
        return call.number, arguments


def _read_in(call: Call, step: int) -> str:
    """Return the name of the block that a step of a call loads."""
    position, *own = call.arguments
    if not hasattr(position, "described"):
        return f"block {call.number}"
    if pieces := getattr(position, "pieces", ()):
        # The steps that an argument needs come right before the step that makes the argument.
        places = {item.key: place for place, item in enumerate(own) if isinstance(item, TaskRef)}
        made = next(node.key for node, _ in call.steps[step:] if node.key in places)
        position = pieces[places[made] // 2]
    return str(position.described)


def _loaded(
    calls: Iterator[Call], load: Callable[[Call], Numbered]
) -> Generator[Numbered, None, None]:
    """Yield the arguments of each call; after the first slow one, load the next ahead."""
    for call in calls:
        began = time.perf_counter()
        own = [load(call)]
        if time.perf_counter() - began > _SLOW_SECONDS:
            yield from _read_ahead(own, calls, load)
            return
        # It is popped, so that a block that has been used is freed before the next one is loaded.
        yield own.pop()


def _read_ahead(
    own: list[Numbered],
    calls: Iterator[Call],
    load: Callable[[Call], Numbered],
) -> Generator[Numbered, None, None]:
    # Loading functions may ask for their worker, or for other variables of the context.
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, "daskmm-read-ahead") as reader:
        for call in calls:
            ahead = reader.submit(context.run, load, call)
            yield own.pop()
            own.append(ahead.result())
            del ahead
        yield own.pop()
