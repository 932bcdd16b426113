"""Jobs on dask: few tasks per pass, each with many jobs, and no value made twice."""

from __future__ import annotations

import functools
import logging
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from dask._task_spec import GraphNode, Task, TaskRef, convert_legacy_graph
from dask.base import get_scheduler, is_dask_collection, named_schedulers
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.typing import Key
from dask.utils import ensure_dict

from daskmm.engine.distributed import (
    ATTEMPTS,
    DeadlyBlockError,
    LostFuturesError,
    RestartedError,
    client_of,
    gathered,
    holders_of,
    threads_of,
)
from daskmm.engine.grouping import (
    Arguments,
    Grouping,
    GroupQueue,
    closure,
    grouped_anywhere,
    grouped_by_holder,
    grouped_here,
    merge,
    references,
    run_group,
    run_pickled,
    run_queue,
    without_data,
)
from daskmm.engine.resources import threads_here
from daskmm.engine.worker_task import NAME, GroupTasks, inline_or_task, pickled_as_sent

logger = logging.getLogger("daskmm")

T = TypeVar("T")


class JobGraph:
    """Jobs, and the graph of what they need.

    Built once and run many times: what does not change from pass to pass is kept.

    Parameters
    ----------
    arguments : sequence of tuple
        Of each job; may hold Delayed.
    source : dask collection, optional
        What the Delayed were taken from. If it was persisted on a cluster, it knows the futures,
        which optimised graphs only refer to.
    noun : str
        What a job is called in messages, unless it says so itself.
    """

    def __init__(
        self, arguments: Sequence[Arguments], source: Any = None, noun: str = "job"
    ) -> None:
        self._noun = noun
        delayed = [item for own in arguments for item in own if isinstance(item, Delayed)]
        raw: dict[Key, Any] = {}
        for graph in {id(item.dask): item.dask for item in delayed}.values():
            raw.update(ensure_dict(graph))
        # A future is to a graph what a key is that is made elsewhere.
        self._futures = {
            future.key: future for future in (*_futures_in(raw.values()), *futures_of(source))
        }
        elsewhere: dict[Key, Any] = {key: TaskRef(key) for key in self._futures}
        self._nodes: dict[Key, GraphNode] = {
            key: node.substitute(elsewhere) if isinstance(node, Task) else node
            for key, node in convert_legacy_graph(raw).items()
        }
        self._arguments = [
            tuple(TaskRef(item.key) if isinstance(item, Delayed) else item for item in own)
            for own in arguments
        ]
        self._kept: tuple[tuple[Grouping, bool], GroupTasks] | None = None
        # The cluster whose workers hold all that the groups need, as far as is known.
        self._home: Any = None

    def reduce(self, kernel: Callable[..., Any], shared: Arguments, name: str) -> Any:
        """Sum of ``kernel(*own, *shared)`` over all jobs, in one compute on the active scheduler.

        Merged in pairs in the order of the jobs, so that the bits do not depend on how jobs are
        grouped.

        Parameters
        ----------
        kernel : callable
        shared : tuple
        name : str
            Of the tasks, as dask's dashboard shows them.

        Raises
        ------
        ClusterLostError
            If a cluster has lost all workers or its scheduler, and they do not come back in time;
            its kind LostFuturesError, if futures among the arguments were lost.
        DeadlyBlockError
            If a job killed every worker that was given it.
        """
        schedule = get_scheduler(cls=Delayed)
        client = client_of(schedule)
        name = f"{NAME}{name}-{uuid.uuid4().hex}"
        if client is not None:
            return self._recovering(
                client, lambda: self._reduce_on(client, kernel, shared, name), kernel, shared, name
            )
        tasks = self._tasks(None)
        if schedule in (named_schedulers["threads"], named_schedulers["sync"]) and tasks.alone:
            queue = GroupQueue([group for group, _ in tasks.groups])
            return _reduce_queue(schedule, queue, kernel, shared, name)
        graph, records = tasks.graph(name, run_group, (kernel, shared))
        return merge(schedule(graph, records)).total

    def values(self) -> dict[Key, Any]:
        """What the Delayed among the arguments stand for, by key and by one compute.

        On a cluster, futures, which keep the values where they were made.
        """
        schedule = get_scheduler(cls=Delayed)
        client = client_of(schedule)
        keys = [key for own in self._arguments for key in references(own) if key in self._nodes]
        nodes = closure(keys, self._nodes)
        if not keys:
            made: Any = ()
        elif client is None:
            made = schedule(nodes, keys)
        else:
            name = f"{NAME}keep-{uuid.uuid4().hex}"
            made = self._recovering(
                client, lambda: self._keep_on(client, nodes, keys), _nothing, (), name
            )
        return self._futures | dict(zip(keys, made, strict=True))

    # On a cluster

    def _reduce_on(
        self, client: Any, kernel: Callable[..., Any], shared: Arguments, name: str
    ) -> Any:
        from distributed import KilledWorker

        tasks = self._tasks(client)
        try:
            runs = merge(_records(client, tasks, kernel, shared, name))
            if runs.missed:
                # Data were moved, or lost and made again; now they are sent.
                self._home = None
                grouping = self._grouping(client).of_jobs(runs.missed)
                tasks = GroupTasks(self._nodes, self._arguments, grouping, True)
                runs += merge(_records(client, tasks, kernel, shared, f"{name}-missed"))
            return runs.total
        except KilledWorker as error:
            self._home = None
            if error.task in self._futures:
                raise LostFuturesError(
                    f"{error.task} was kept on the cluster, and cannot be made again: {error}"
                ) from error
            raise _SuspectedError(tasks.jobs_of(error.task)) from error

    def _keep_on(self, client: Any, nodes: dict[Key, GraphNode], keys: list[Key]) -> Any:
        from distributed import KilledWorker

        # Wherever the scheduler likes: tasks bound to a worker, however loosely, wait for ever when
        # it is gone at the wrong moment.
        made = gathered(client, lambda: _submitted(client, nodes, keys), fetch=False)
        # Other errors are raised where blocks are used.
        killers = [
            future
            for future in made
            if future.status == "error" and isinstance(future.exception(), KilledWorker)
        ]
        if killers:
            keys_lost = {future.key for future in killers}
            for future in killers:
                future.release()  # or the scheduler would go on saying that it cannot be made
            jobs = [
                job
                for job, own in enumerate(self._arguments)
                if not keys_lost.isdisjoint(references(own))
            ]
            raise _SuspectedError(jobs, [future for future in made if future not in killers])
        return made

    def _recovering(
        self,
        client: Any,
        attempt: Callable[[], T],
        kernel: Callable[..., Any],
        shared: Arguments,
        name: str,
    ) -> T:
        """Result of an attempt that is made again when the cluster was restarted, or lost workers.

        Workers die with all tasks that they have, each of many jobs. So those under suspicion are
        tried one by one, before one is found guilty.
        """
        kept: Sequence[Any] = ()
        for _ in range(ATTEMPTS):
            try:
                return attempt()
            except RestartedError:
                self._home = None
                logger.warning("the cluster was restarted; %s begins again", name)
                self._check_futures()
            except _SuspectedError as error:
                # Not to be let go, and loaded again, meanwhile.
                kept = error.kept
                self._try_alone(client, error.jobs, kernel, shared, name)
        del kept
        raise RestartedError(
            f"Workers were lost in each of {ATTEMPTS} attempts at one pass ({name}), and not by "
            "any single block. The workers' logs say why."
        )

    def _try_alone(
        self,
        client: Any,
        jobs: Sequence[int],
        kernel: Callable[..., Any],
        shared: Arguments,
        name: str,
    ) -> None:
        """Give jobs to workers one by one.

        Raises
        ------
        DeadlyBlockError
            For the first that kills every worker it meets.
        """
        from distributed import KilledWorker

        logger.warning("workers died that had %s; trying %d block(s) one by one", name, len(jobs))
        for job in jobs:
            alone = GroupTasks(self._nodes, self._arguments, without_data(((job,),)), True)
            try:
                _records(client, alone, kernel, shared, f"{name}-alone-{job}")
            except KilledWorker as error:
                raise DeadlyBlockError(
                    f"{self._described(job)} killed {error.allowed_failures + 1} "
                    f"workers, one after the other (pass {name}). It may be too large for a "
                    "worker's memory: take smaller chunks, or larger workers. Or the code that "
                    "loads it crashes: the workers' logs say more."
                ) from error

    def _described(self, job: int) -> str:
        """A job in words: the block, or whatever else it says that it is about."""
        found = [own.described for own in self._arguments[job] if hasattr(own, "described")]
        return str(found[0]) if found else f"{self._noun} {job}"

    def _check_futures(self) -> None:
        """Refuse to go on without data that were kept on a cluster."""
        lost = [key for key, future in self._futures.items() if future.cancelled()]
        if lost:
            raise LostFuturesError(
                f"{len(lost)} of {len(self._futures)} values that were kept on the cluster were "
                f"lost with it ({lost[0]} among them). Persist or scatter them again; or leave "
                "them lazy, so that they can be read again."
            )

    def _tasks(self, client: Any) -> GroupTasks:
        if client is not None and self._home is client and self._kept is not None:
            return self._kept[1]
        grouping = self._grouping(client)
        sign = (grouping, client is None)
        if self._kept is None or self._kept[0] != sign:
            tasks = GroupTasks(self._nodes, self._arguments, grouping, client is not None)
            self._kept = (sign, tasks)
        self._home = client if grouping.settled else None
        return self._kept[1]

    def _grouping(self, client: Any) -> Grouping:
        n_jobs = len(self._arguments)
        if client is None:
            return grouped_here(n_jobs)
        threads = threads_of(client)
        if not self._futures:
            return grouped_anywhere(n_jobs, threads)
        found = holders_of(client, list(self._futures.values()))
        return grouped_by_holder(self._futures_of_jobs, found, threads)

    @functools.cached_property
    def _futures_of_jobs(self) -> list[list[Key]]:
        """Futures that each job needs, but for those that most jobs need.

        The latter (a mean, a model) do not say where the work should be done.
        """
        needed: list[list[Key]] = []
        for own in self._arguments:
            nodes = closure(references(own), self._nodes).values()
            keys = dict.fromkeys(references(own))
            keys.update(dict.fromkeys(key for node in nodes for key in node.dependencies))
            needed.append([key for key in keys if key in self._futures])
        users = Counter(key for keys in needed for key in keys)
        most = max(2, len(needed) // 2)
        return [[key for key in keys if users[key] <= most] for keys in needed]


def _reduce_queue(
    schedule: Callable[..., Any],
    queue: GroupQueue,
    kernel: Callable[..., Any],
    shared: Arguments,
    name: str,
) -> Any:
    """Sum over groups, by one task for each thread of this process."""
    keys: list[Key] = [(name, number) for number in range(min(threads_here(), len(queue)))]
    graph = {key: Task(key, run_queue, queue, kernel, shared) for key in keys}
    try:
        return merge(schedule(graph, keys)).total
    finally:
        queue.close()  # where the pass was interrupted


def futures_of(source: Any) -> list[Any]:
    """Futures of a collection that was persisted on a cluster."""
    distributed = sys.modules.get("distributed")
    if distributed is None or not is_dask_collection(source):
        return []
    return list(distributed.futures_of(source))


def _futures_in(nodes: Iterable[Any]) -> Iterator[Any]:
    """Futures that stand in a graph, for a node or among the arguments of one."""
    for node in nodes:
        candidates = (*node.args, *node.kwargs.values()) if isinstance(node, Task) else (node,)
        yield from (item for item in candidates if _is_future(item))


def _is_future(item: Any) -> bool:
    return isinstance(item, TaskRef) and type(item) is not TaskRef


class _SuspectedError(Exception):
    """Workers died that had tasks with these jobs; other futures have come out well."""

    def __init__(self, jobs: Sequence[int], kept: Sequence[Any] = ()) -> None:
        super().__init__(jobs)
        self.jobs = jobs
        self.kept = kept


def _records(
    client: Any, tasks: GroupTasks, kernel: Callable[..., Any], shared: Arguments, name: str
) -> list[Any]:
    """Records of some tasks on a cluster, several of them merged, in order."""
    graph: dict[Key, GraphNode] = {}
    call = inline_or_task(pickled_as_sent((kernel, shared)), f"{name}-shared", graph)
    groups, records = tasks.graph(name, run_pickled, (call,))
    graph |= groups
    return list(gathered(client, lambda: _submitted(client, graph, records)))


def _submitted(client: Any, graph: dict[Key, GraphNode], keys: list[Key]) -> Any:
    """Futures of some keys of a graph."""
    # A plain dict would be tokenized, all of it, before it is sent.
    layers = HighLevelGraph.from_collections(str(keys[0]), graph, dependencies=())
    return client.get(layers, keys, sync=False)


def _nothing(*_: Any) -> list[Any]:
    return []
