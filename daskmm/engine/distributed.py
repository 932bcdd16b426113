"""Passes on a distributed cluster that may lose workers or its scheduler.

A scheduler gives the tasks of a lost worker to others, and waits for ever if there are none, or if
all workers stay paused. This module ends the wait (`ClusterLostError`), submits again to a
restarted cluster, and finds blocks that kill their workers (`DeadlyBlockError`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any, TypeVar

import dask
from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key
from dask.utils import parse_timedelta

from daskmm.data.dask_private import GraphNode, TaskRef
from daskmm.engine.graph import GroupTasks, TaskGraph, inline_or_task
from daskmm.engine.grouping import (
    Grouping,
    consecutive_groups,
    expected_threads,
    grouped_by_holder,
    on_all_threads,
    packs,
    streamed_groups,
    without_data,
)
from daskmm.engine.merge_tree import Arguments, merge
from daskmm.engine.stragglers import Handover, patience
from daskmm.engine.worker_task import Parcel, PartialSums, load_pickled, pickled, run_pickled
from daskmm.storage.readable import readable_bytes

logger = logging.getLogger("daskmm")

T = TypeVar("T")

# Key of dask's configuration for the time that a cluster may have no worker, or not answer.
TIMEOUT_KEY = "daskmm.lost-cluster-timeout"
DEFAULT_TIMEOUT = "5 minutes"
# Most attempts at one computation on a cluster that is restarted repeatedly.
ATTEMPTS = 5
# If a function and its shared arguments (such as the states of many centres) take more bytes, they
# are sent to one worker before the tasks, and the other workers get them from it. The records are
# then as large, and are merged on the workers.
_LARGE_BYTES = 4 << 20
# Passes that take fewer seconds have one task per worker. The value is dask's default of
# ``distributed.adaptive.target-duration``: adaptive clusters do not grow for less work.
_BRIEF_SECONDS = 5.0
# Most seconds between two checks that a cluster has workers.
_LOOK_SECONDS = 1.0
# Most seconds between two checks that paused workers do not hold up a computation.
_LOOK_AT_PAUSES_SECONDS = 5.0
# A worker has nothing to do for tasks in these states.
_RESTING = {"memory", "error", "released", "long-running"}


class ClusterLostError(RuntimeError):
    """A distributed cluster has lost all workers or its scheduler, and none came back in time.

    It is also raised if dask has paused all workers that have tasks, because their memory is nearly
    full, for as long. The time is dask's configuration value ``daskmm.lost-cluster-timeout``, by
    default 5 minutes. It can be set, e.g. by
    ``dask.config.set({"daskmm.lost-cluster-timeout": "30s"})``, and also holds for clusters that
    have not got their first worker yet.
    """


class RestartedError(ClusterLostError):
    """A cluster was restarted and has lost its computation."""


class LostFuturesError(ClusterLostError):
    """Data that were persisted on a cluster were lost with it."""


class DeadlyBlockError(RuntimeError):
    """A block of the data killed every worker that loaded it."""


class _SuspectedError(Exception):
    """Workers died with these calls; `finished` holds futures of tasks that succeeded."""

    def __init__(self, calls: Sequence[int], finished: Sequence[Any] = ()) -> None:
        super().__init__(calls)
        self.calls = calls
        self.finished = finished


class _KilledError(Exception):
    """Tasks failed because all workers that ran them died; `errors` are dask's, one per task."""

    def __init__(self, errors: Sequence[Any]) -> None:
        super().__init__(errors)
        self.errors = errors


def computed_on(client: Any, collections: Sequence[Any]) -> tuple[Any, ...]:
    """Call `dask.compute` on a cluster, and repeat the call if it is restarted."""

    def schedule(graph: Any, keys: Any, **options: Any) -> Any:
        submit = functools.partial(client.get, graph, keys, sync=False, **options)
        try:
            return _gathered(client, submit)
        except _KilledError as error:
            raise error.errors[0] from None

    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(RestartedError):
            return tuple(dask.compute(*collections, scheduler=schedule))
    return tuple(dask.compute(*collections, scheduler=schedule))


# Passes


def reduce_on(
    client: Any, graph: TaskGraph, function: Callable[..., Any], shared: Arguments, name: str
) -> Any:
    """Sum ``function(*own, *shared)`` over all calls of a graph, on the workers of a cluster.

    `name` is the name of this pass, which must be unique. It raises ClusterLostError if the cluster
    has lost all workers or its scheduler, and they do not come back in time; the subclass
    LostFuturesError, if persisted data among the arguments were lost; and DeadlyBlockError if a
    call killed every worker that made it.
    """

    def attempt() -> Any:
        call = pickled((function, shared))
        tasks = _tasks_on(client, graph, call)
        try:
            began = time.monotonic()
            large = len(call) > _LARGE_BYTES
            any_order = large and graph.kept_by_user and tasks.are_scattered
            sums = _sums(client, tasks, call, name, graph.spare, any_order)
            graph.seconds = time.monotonic() - began
            # The last attempt hands no calls over to other workers, so it skips no call.
            for again, spare in (("skipped", graph.spare), ("skipped-twice", None)):
                if not sums.skipped:
                    break
                # Calls were skipped because their persisted blocks were moved, or lost and made
                # again (the new tasks have them as inputs), or because the worker that had taken
                # over calls of a slow one was lost.
                graph.home = None
                grouping = _grouping_on(client, graph, call).of_calls(sums.skipped)
                tasks = GroupTasks(graph.nodes, graph.arguments, grouping, True)
                made = _sums(client, tasks, call, f"{name}-{again}", spare, any_order)
                sums = replace(sums, skipped=()) + made
            return sums.total
        except _KilledError as error:
            graph.home = None
            for killed in error.errors:
                if killed.task in graph.futures:
                    raise LostFuturesError(
                        f"{killed.task} was persisted on the cluster, and cannot be made again: "
                        f"{killed}"
                    ) from error
            suspects = tasks.calls_of(killed.task for killed in error.errors)
            raise _SuspectedError(suspects) from error

    return _with_retries(client, graph, attempt, function, shared, name)


def persist_on(client: Any, graph: TaskGraph, name: str) -> dict[Key, tuple[Any, int]]:
    """Compute the nodes among the arguments of a graph, and keep them on the workers.

    Each task makes a pack, a list of the values of several calls, because the scheduler's time
    grows with the number of tasks. The result maps the key of a node to the future of its pack, and
    its position there. Errors of the cluster are raised here, as by `reduce_on`; other errors are
    raised where the futures are used.
    """
    lazy = [tuple(ref for ref in own if ref.key in graph.nodes) for own in graph.references]
    wanted = [call for call, own in enumerate(lazy) if own]
    threads: Mapping[str, int] = client.sync(_answered, client)
    if graph.futures:
        groups = _grouping_on(client, graph, b"").of_calls(wanted)
    else:
        groups = without_data(packs(len(lazy), expected_threads(threads))).of_calls(wanted)
    tasks = GroupTasks(graph.nodes, lazy, groups, True)
    nodes, keys = tasks.runs(name, load_pickled, ())

    def attempt() -> dict[Key, tuple[Any, int]]:
        # Tasks may run on any worker: a task that prefers one worker waits for ever if that
        # worker is lost at the wrong moment.
        made = _gathered(client, lambda: _submitted(client, nodes, keys), fetch=False)
        if killed := _killed(made):
            suspects = tasks.calls_of(error.task for error in killed.values())
            for future in killed:
                future.release()  # otherwise the scheduler remembers the failure
            raise _SuspectedError(suspects, [future for future in made if future not in killed])
        places: dict[Key, tuple[Any, int]] = {}
        for future, calls in zip(made, tasks.calls, strict=True):
            held = [ref.key for call in calls for ref in lazy[call]]
            places |= {key: (future, place) for place, key in enumerate(held)}
        return places

    return _with_retries(client, graph, attempt, _nothing, (), name)


def _nothing(*_: Any) -> list[Any]:
    return []


def _tasks_on(client: Any, graph: TaskGraph, call: bytes) -> GroupTasks:
    if graph.home is client and graph.latest is not None:
        return graph.latest
    grouping = _grouping_on(client, graph, call)
    tasks = graph.tasks(grouping, True)
    graph.home = client if grouping.settled else None
    return tasks


def _grouping_on(client: Any, graph: TaskGraph, call: bytes) -> Grouping:
    """Group the calls of a graph for the workers that the cluster has now.

    Short passes have one task per worker, because the scheduler's time counts there; long ones have
    several per thread. Large records are few: each worker makes one or two. Nothing waits for
    workers here, since a cluster that adapts starts them only for tasks that wait.
    """
    threads: Mapping[str, int] = client.sync(_answered, client)
    if not graph.futures:
        n_calls, n_threads = len(graph.arguments), expected_threads(threads)
        if graph.is_shuffled:  # the partitions of a group would be in memory together
            return without_data(packs(n_calls, n_calls))
        if threads and len(call) > _LARGE_BYTES:
            return on_all_threads(threads, n_calls, consecutive_groups)
        if threads and graph.seconds < _BRIEF_SECONDS:
            return on_all_threads(threads, n_calls, packs)
        return without_data(streamed_groups(n_calls, n_threads))
    try:
        holders = client.who_has(list(graph.futures.values()))
    except (CancelledError, OSError) as error:
        raise _explained(client, error) from error
    return grouped_by_holder(graph.futures_of_calls, holders, threads)


def _with_retries(
    client: Any,
    graph: TaskGraph,
    attempt: Callable[[], T],
    function: Callable[..., Any],
    shared: Arguments,
    name: str,
) -> T:
    """Return the result of an attempt, repeated if the cluster was restarted or lost workers.

    When a worker dies, any call of its tasks may be the cause, so these suspects are tried one by
    one before a block is blamed. If all of them were tried before, all other calls are tried.
    """
    finished: Sequence[Any] = ()
    innocent: set[int] = set()
    for _ in range(ATTEMPTS):
        try:
            return attempt()
        except RestartedError:
            graph.home = None
            logger.warning("the cluster was restarted; %s starts again", name)
            _check_futures(graph)
        except _SuspectedError as error:
            finished = error.finished  # these are kept alive, so that no task is computed again
            suspects = sorted(set(error.calls) - innocent)
            suspects = suspects or sorted(set(range(len(graph.arguments))) - innocent)
            _try_alone(client, graph, suspects, function, shared, name)
            innocent.update(suspects)
    del finished
    raise RestartedError(
        f"Workers, or blocks that were persisted on them, were lost in each of {ATTEMPTS} attempts "
        f"at one pass ({name}), and not by any single block. Persist frames by their own method, "
        "frame.persist(). The workers' logs say more."
    )


def _try_alone(
    client: Any,
    graph: TaskGraph,
    calls: Sequence[int],
    function: Callable[..., Any],
    shared: Arguments,
    name: str,
) -> None:
    """Make calls one by one; raise DeadlyBlockError for the first that kills every worker."""
    logger.warning("workers with tasks of %s died; trying %d block(s) one by one", name, len(calls))
    for call in calls:
        alone = GroupTasks(graph.nodes, graph.arguments, without_data(((call,),)), True)
        try:
            _sums(client, alone, pickled((function, shared)), f"{name}-alone-{call}")
        except _KilledError as error:
            raise DeadlyBlockError(
                f"{graph.described(call)} killed {error.errors[0].allowed_failures + 1} "
                f"workers, one after the other (pass {name}). It may be too large for a "
                "worker's memory: use smaller chunks, or larger workers; plan(X) of the estimator "
                "says how much memory a fit takes. Or the code that loads the block crashes: the "
                "workers' logs say more."
            ) from error


def _check_futures(graph: TaskGraph) -> None:
    lost = [key for key, future in graph.futures.items() if future.cancelled()]
    if lost:
        raise LostFuturesError(
            f"{len(lost)} of {len(graph.futures)} values that were kept on the cluster were "
            f"lost with it ({lost[0]} among them). Persist or scatter them again; or leave "
            "them lazy, so that they can be read again."
        )


def _sums(
    client: Any,
    tasks: GroupTasks,
    call: bytes,
    name: str,
    spare: TaskGraph | None = None,
    any_order: bool = False,
) -> PartialSums:
    """Run tasks on a cluster and return the sum of their records.

    `call` is the pickled function with its shared arguments. `spare` is a graph of the same calls;
    if it is given, other workers use it to make the calls that slow workers have not begun. With
    `any_order`, large records are added as they arrive if they allow it.
    """
    sent = _sent(client, call, any_order)  # kept alive, or the cluster would forget it
    large = len(call) > _LARGE_BYTES

    def submit(some: GroupTasks, key: str, **where: Any) -> list[Any]:
        graph: dict[Key, GraphNode] = {}
        value = inline_or_task(call, f"{key}-shared", graph) if sent is None else TaskRef(sent.key)
        merged = some.graph_of_total if large else some.graph
        groups, records = merged(key, run_pickled, (key, value))
        return list(_submitted(client, graph | groups, records, **where))

    first, idle_share = functools.partial(submit, tasks, name), patience()
    if spare is None or math.isinf(idle_share):
        return merge(_gathered(client, first))

    def submit_again(
        key: str, calls: list[int], workers: dict[str, int]
    ) -> tuple[GroupTasks, list[Any]]:
        groups = consecutive_groups(len(calls), 2 * sum(workers.values()))
        chosen = without_data(tuple(tuple(calls[i] for i in group) for group in groups))
        again = GroupTasks(spare.nodes, spare.arguments, chosen, True)
        return again, submit(again, key, workers=list(workers), allow_other_workers=True)

    handover = Handover(client, name, tasks, submit_again, idle_share, large)
    return _gathered(client, first, meanwhile=handover.total)


def _sent(client: Any, call: bytes, any_order: bool) -> Any:
    """Return the future of a large value on a worker; None for small ones, or without workers.

    If it is lost with its worker, the tasks that use it are cancelled, and the pass starts again.
    """
    if len(call) <= _LARGE_BYTES or not client.nthreads():
        return None
    try:
        return client.scatter(Parcel(call, any_order), hash=False)
    except (CancelledError, OSError) as error:
        raise _explained(client, error) from error


def _killed(futures: Sequence[Any]) -> dict[Any, Any]:
    """Return the KilledWorker error of each future that failed with one."""
    from distributed import KilledWorker

    return {
        future: error
        for future in futures
        if future.status == "error" and isinstance(error := future.exception(), KilledWorker)
    }


def _submitted(client: Any, graph: dict[Key, GraphNode], keys: list[Key], **where: Any) -> Any:
    """Submit a graph and return the futures of some keys; `where` are options of `Client.get`."""
    # dask would tokenize all of a plain dict before it is sent.
    layers = HighLevelGraph.from_collections(str(keys[0]), graph, dependencies=())
    return client.get(layers, keys, sync=False, **where)


# Waiting for a cluster


def _gathered(
    client: Any,
    submit: Callable[[], Any],
    fetch: bool = True,
    meanwhile: Callable[[Any], Awaitable[Any]] | None = None,
) -> Any:
    """Return the values of the futures that `submit` returns, in nested lists and tuples.

    With ``fetch=False``, the futures themselves are returned once all have ended. If `meanwhile` is
    given, it is called with the futures, and its result is returned. RestartedError is raised if
    the cluster was restarted, ClusterLostError if it is lost, and _KilledError if tasks killed
    workers.
    """
    import distributed

    try:
        futures = submit()
    except Exception as error:
        if (meaning := _explained(client, error)) is error:
            raise
        raise meaning from error
    try:
        with _seceded():
            if fetch:
                gather = functools.partial(client.gather, futures, asynchronous=True)
                work = gather if meanwhile is None else functools.partial(meanwhile, futures)
                return client.sync(_watched, client, work)
            ended = functools.partial(_ended, client, distributed.futures_of(futures))
            client.sync(_watched, client, ended)
            return futures
    except distributed.KilledWorker as error:
        # The first of the tasks that died with a worker need not be the cause.
        killed = _killed(distributed.futures_of(futures))
        raise _KilledError([*killed.values()] or [error]) from error
    except (CancelledError, OSError) as error:
        if _is_of_a_task(error, distributed.futures_of(futures)):
            raise
        raise _explained(client, error) from error
    finally:
        if fetch:
            for future in distributed.futures_of(futures):
                future.release()


def _is_of_a_task(error: BaseException, futures: Sequence[Any]) -> bool:
    """Return whether a task raised an error, for example because it could not read a file.

    Errors of the cluster's own connections belong to no task.
    """
    from distributed.comm import CommClosedError

    if isinstance(error, CancelledError | CommClosedError):
        return False
    return any(future.status == "error" for future in futures)


def _explained(client: Any, error: BaseException) -> BaseException:
    """Return the error to raise for an error of a submission, or of the wait for its results."""
    if client.status in ("closing", "closed"):
        return ClusterLostError(
            f"The scheduler at {_address(client)} is gone. Start a cluster, connect a new "
            "distributed.Client to it, and fit again."
        )
    if isinstance(error, CancelledError | OSError):
        return RestartedError(
            f"The cluster at {_address(client)} was restarted repeatedly while it computed: {error}"
        )
    return error


def _address(client: Any) -> str:
    scheduler = client.scheduler
    return "an unknown address" if scheduler is None else str(scheduler.address)


@contextlib.contextmanager
def _seceded() -> Iterator[None]:
    """Inside a task, free the worker's thread for other tasks during a wait."""
    from distributed import get_worker, rejoin, secede

    left = False
    with contextlib.suppress(Exception):
        get_worker()  # this raises an error outside of tasks
        secede()
        left = True
    try:
        yield
    finally:
        if left:
            rejoin()


async def _ended(client: Any, futures: list[Any]) -> None:
    import distributed

    async for future in distributed.as_completed(futures, loop=client.loop):
        if future.cancelled():
            raise CancelledError(str(future.key))


async def _watched(client: Any, work: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result of a coroutine, unless no worker of the cluster works for too long."""
    patience = _patience()
    task = asyncio.ensure_future(work())
    pauses = asyncio.ensure_future(_end_of_patience_with_pauses(client, patience))
    alive = time.monotonic()
    try:
        while True:
            timeout = min(_LOOK_SECONDS, patience / 4)
            await asyncio.wait({task, pauses}, timeout=timeout, return_when="FIRST_COMPLETED")
            if task.done():
                return task.result()
            if pauses.done():
                raise pauses.result()
            if await _workers(client, patience):
                alive = time.monotonic()
            elif time.monotonic() - alive > patience:
                raise _lost(client, patience)
    finally:
        task.cancel()
        pauses.cancel()


async def _end_of_patience_with_pauses(client: Any, patience: float) -> ClusterLostError:
    """Return an error if only paused workers have had tasks for too long; warn before.

    dask gives paused workers no task, and takes none back from them. A worker stays paused if its
    memory is in use outside of tasks, by modules and the allocator, and then a fit would wait for
    ever.
    """
    step = min(_LOOK_AT_PAUSES_SECONDS, patience / 4)
    since: float | None = None
    warned = False
    while True:
        await asyncio.sleep(step)
        paused = await _only_paused(client)
        since = (since or time.monotonic()) if paused else None
        waited = 0.0 if since is None else time.monotonic() - since
        if waited > patience:
            return ClusterLostError(
                f"{paused} for {patience:g} seconds. Take workers with more memory or fewer "
                "threads, or smaller chunks: plan(X) of the estimator says how much memory a fit "
                "takes."
            )
        if waited >= 2 * step and not warned:
            warned = True
            logger.warning("%s; the fit waits for them", paused)


async def _only_paused(client: Any) -> str:
    """Say which paused workers have tasks if no other worker has any; else return ""."""
    try:
        found = (await client.scheduler.identity(n_workers=-1))["workers"]
    except OSError:  # `_watched` asks whether the scheduler is gone
        return ""
    paused = {}
    for address, worker in found.items():
        counts = worker["metrics"].get("task_counts", {})
        active = {state for state, count in counts.items() if count} - _RESTING
        if worker["status"] == "paused" and "executing" not in active:
            paused[address] = worker
        elif active:
            return ""
    said = ", ".join(
        f"{address} with {readable_bytes(worker['metrics']['memory'])} of "
        f"{readable_bytes(worker['memory_limit'])}"
        for address, worker in list(paused.items())[:3]
    )
    return said and f"dask has paused workers because their memory is nearly full ({said})"


async def _answered(client: Any) -> Mapping[str, int]:
    """Return the threads of each worker, once the scheduler answers."""
    patience = _patience()
    began = time.monotonic()
    while (found := await _workers(client, patience)) is None:
        if time.monotonic() - began > patience:
            raise _lost(client, patience)
        await asyncio.sleep(min(_LOOK_SECONDS, patience / 4))
    return found


async def _workers(client: Any, patience: float) -> Mapping[str, int] | None:
    """Return the threads of each worker, or None if the scheduler does not answer."""
    if client.status in ("closing", "closed"):
        raise _explained(client, RuntimeError())
    try:
        found: Mapping[str, int] = await asyncio.wait_for(client.nthreads(), patience)
    except (OSError, TimeoutError):
        return None
    return found


def _patience() -> float:
    """Return the seconds that a cluster may be without workers."""
    return float(parse_timedelta(dask.config.get(TIMEOUT_KEY, DEFAULT_TIMEOUT)))


def _lost(client: Any, patience: float) -> ClusterLostError:
    return ClusterLostError(
        f"The cluster at {_address(client)} has had no worker for {patience:g} seconds, or its "
        "scheduler did not answer. Start workers and fit again; where they may take longer to "
        f"come back, raise dask's configuration value {TIMEOUT_KEY!r}."
    )
