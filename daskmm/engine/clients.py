"""Clients of clusters, and computations on the active one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from daskmm._dask import LazyModule, dask, scheduler

if TYPE_CHECKING:
    from daskmm.engine import distributed as on_clusters
else:
    on_clusters = LazyModule("daskmm.engine.distributed")


def connected(address: str, timeout: float) -> Any:
    """Return a client of the scheduler at an address, which must answer within `timeout` seconds.

    It does not become the default client, for which later computes would wait even if it failed to
    connect. OSError or ValueError is raised if no scheduler answers.
    """
    from distributed import Client

    return Client(address, timeout=timeout, set_as_default=False)


def client_of(schedule: Callable[..., Any] | None) -> Any:
    """Return the distributed client that a scheduler function belongs to, or None."""
    distributed = sys.modules.get("distributed")
    owner = getattr(schedule, "__self__", None)
    return owner if distributed is not None and isinstance(owner, distributed.Client) else None


def active_client() -> Any:
    """Return the distributed client on which dask computes, or None."""
    return client_of(scheduler())


def computed(*collections: Any) -> tuple[Any, ...]:
    """Call `dask.compute`, and repeat the call if the active cluster is restarted.

    ClusterLostError is raised if it is lost.
    """
    client = active_client()
    if client is None:
        return tuple(dask.compute(*collections))
    return on_clusters.computed_on(client, collections)
