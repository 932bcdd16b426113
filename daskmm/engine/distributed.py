"""Computations on a distributed cluster that may lose its workers, or its scheduler.

A scheduler gives the tasks of a lost worker to others, and waits for ever when there are none. Here
the wait has an end, and what a restarted cluster has forgotten is said to be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from typing import Any

import dask
from dask.base import get_scheduler
from dask.delayed import Delayed
from dask.utils import parse_timedelta

# How long a cluster may have no worker, or give no answer: a value of dask's configuration.
TIMEOUT_KEY = "daskmm.lost-cluster-timeout"
DEFAULT_TIMEOUT = "5 minutes"
# A computation is begun so many times on a cluster that is restarted again and again.
ATTEMPTS = 5
# Seconds between two looks at a cluster, at most.
_LOOK_SECONDS = 1.0


class ClusterLostError(RuntimeError):
    """A distributed cluster has lost all workers or its scheduler, and none came back in time.

    The time is dask's configuration value ``daskmm.lost-cluster-timeout`` (5 minutes unless it is
    set, e.g. by ``dask.config.set({"daskmm.lost-cluster-timeout": "30s"})``, which also holds for
    clusters that have not got their first worker yet).
    """


class RestartedError(ClusterLostError):
    """A cluster was restarted, and has forgotten what it was computing."""


class LostFuturesError(ClusterLostError):
    """Data that were kept on a cluster were lost with it."""


class DeadlyBlockError(RuntimeError):
    """A block of the data that killed every worker that was given it."""


def client_of(schedule: Callable[..., Any]) -> Any:
    """The distributed client that a scheduler function belongs to, or None."""
    distributed = sys.modules.get("distributed")
    owner = getattr(schedule, "__self__", None)
    return owner if distributed is not None and isinstance(owner, distributed.Client) else None


def timeout() -> float:
    """Seconds that a cluster may be without workers."""
    return float(parse_timedelta(dask.config.get(TIMEOUT_KEY, DEFAULT_TIMEOUT)))


def computed(*collections: Any) -> tuple[Any, ...]:
    """What `dask.compute` returns, from a cluster that is watched where one is active.

    Raises
    ------
    ClusterLostError
        If the cluster is lost.
    """
    client = client_of(get_scheduler(cls=Delayed))
    if client is None:
        return tuple(dask.compute(*collections))

    def schedule(graph: Any, keys: Any, **options: Any) -> Any:
        return gathered(client, functools.partial(client.get, graph, keys, sync=False, **options))

    return again(lambda: tuple(dask.compute(*collections, scheduler=schedule)))


def again(compute: Callable[[], Any]) -> Any:
    """Result of a computation that is begun again when the cluster was restarted meanwhile."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(RestartedError):
            return compute()
    return compute()


def gathered(client: Any, submit: Callable[[], Any], fetch: bool = True) -> Any:
    """Results of what a function submits to a cluster.

    Parameters
    ----------
    client : distributed.Client
    submit : callable
        Returns futures, in any nest of lists and tuples.
    fetch : bool
        Whether to return values; else the futures are, once all have come to an end.

    Raises
    ------
    RestartedError
        If the cluster was restarted.
    ClusterLostError
        If the cluster is lost.
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
                return client.sync(_watched, client, lambda: client._gather(futures))
            every = distributed.futures_of(futures)
            client.sync(_watched, client, lambda: _ended(every))
            return futures
    except (CancelledError, OSError) as error:
        raise _explained(client, error) from error
    finally:
        if fetch:
            for future in distributed.futures_of(futures):
                future.release()


def threads_of(client: Any) -> Mapping[str, int]:
    """Threads of each worker of a cluster, once there is one.

    Raises
    ------
    ClusterLostError
        If there is none in time.
    """
    found: Mapping[str, int] = client.sync(_first_workers, client)
    return found


def holders_of(client: Any, futures: list[Any]) -> Mapping[Any, Any]:
    """Workers that hold each of some futures, by key.

    Raises
    ------
    RestartedError
        If the scheduler does not answer.
    """
    try:
        found: Mapping[Any, Any] = client.who_has(futures)
    except (CancelledError, OSError) as error:
        raise _explained(client, error) from error
    return found


def _explained(client: Any, error: BaseException) -> BaseException:
    """What an error of a submission, or of the wait for its results, means."""
    if client.status in ("closing", "closed"):
        return ClusterLostError(
            f"The scheduler at {_address(client)} is gone. Start a cluster, connect a new "
            "distributed.Client to it, and fit again."
        )
    if isinstance(error, CancelledError | OSError):
        return RestartedError(
            f"The cluster at {_address(client)} was restarted while it computed, time and again: "
            f"{error}"
        )
    return error


def _address(client: Any) -> str:
    scheduler = client.scheduler
    return "an unknown address" if scheduler is None else str(scheduler.address)


@contextlib.contextmanager
def _seceded() -> Iterator[None]:
    """Leave a worker's threads to other tasks while a task of it waits for them."""
    from distributed import rejoin, secede
    from distributed.worker import thread_state

    left = False
    if getattr(thread_state, "key", None):
        with contextlib.suppress(Exception):
            secede()
            left = True
    try:
        yield
    finally:
        if left:
            rejoin()


async def _ended(futures: list[Any]) -> None:
    for future in futures:
        await future._state.wait()
        if future.cancelled():
            raise CancelledError(str(future.key))


async def _watched(client: Any, work: Callable[[], Awaitable[Any]]) -> Any:
    """Result of a coroutine, unless the cluster is without workers for too long."""
    patience = timeout()
    task = asyncio.ensure_future(work())
    alive = time.monotonic()
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=min(_LOOK_SECONDS, patience / 4))
            if done:
                return task.result()
            if await _workers(client, patience):
                alive = time.monotonic()
            elif time.monotonic() - alive > patience:
                raise _lost(client, patience)
    finally:
        task.cancel()


async def _first_workers(client: Any) -> Mapping[str, int]:
    patience = timeout()
    began = time.monotonic()
    while not (found := await _workers(client, patience)):
        if time.monotonic() - began > patience:
            raise _lost(client, patience)
        await asyncio.sleep(min(_LOOK_SECONDS, patience / 4))
    return found


async def _workers(client: Any, patience: float) -> Mapping[str, int]:
    """Threads of the workers that there are; none where the scheduler does not answer."""
    if client.status in ("closing", "closed"):
        raise _explained(client, RuntimeError())
    try:
        found: Mapping[str, int] = await asyncio.wait_for(client.scheduler.ncores(), patience)
    except (OSError, TimeoutError):
        return {}
    return found


def _lost(client: Any, patience: float) -> ClusterLostError:
    return ClusterLostError(
        f"The cluster at {_address(client)} has had no worker for {patience:g} seconds, or its "
        "scheduler did not answer. Start workers and fit again; where they may take longer to "
        f"come back, raise dask's configuration value {TIMEOUT_KEY!r}."
    )


def connected(address: str, timeout: float) -> Any:
    """Return a client of the scheduler at an address.

    It does not become the default client: one that fails to connect would stay so, and later
    computes would wait for it.

    Parameters
    ----------
    address : str
    timeout : float
        Seconds to wait for an answer.

    Returns
    -------
    distributed.Client

    Raises
    ------
    ImportError
        If distributed is not installed.
    OSError, ValueError
        If no scheduler answers.
    """
    from distributed import Client

    return Client(address, timeout=timeout, set_as_default=False)
