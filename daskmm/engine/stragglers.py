"""Hand calls that a slow worker has not begun over to idle workers.

A pass ends with its last task, and each task makes many calls, so all workers would wait for one
that is ten times slower. When half of the workers have been idle for a while, the client asks the
others which calls they have not begun. The slow workers skip these calls, and the idle ones make
them. At most two blocks of a task are read twice.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import dask
from dask.typing import Key

from daskmm.engine.graph import GroupTasks
from daskmm.engine.merge_tree import merge
from daskmm.engine.worker_task import PartialSums, completed, give_up, without_records

# Least seconds between two checks of the workers, and before the first one. The time between checks
# is a share of the time since the pass began, and at most a second.
_FIRST_LOOK, _SHARE, _LAST_LOOK = 0.25, 1 / 10, 1.0
# Key of dask's configuration. Calls are handed over once half of the workers have been idle for
# this share of the time that they worked. With infinity, no call is ever handed over.
PATIENCE_KEY = "daskmm.straggler-patience"
DEFAULT_PATIENCE = 0.1
# Annotations by which users choose where tasks run.
_PLACES = {"workers", "resources"}

Calls = Sequence[int]


def patience() -> float:
    """Return the configured patience; infinity if the user has chosen where tasks run."""
    if _PLACES & dask.get_annotations().keys():
        return math.inf
    return float(dask.config.get(PATIENCE_KEY, DEFAULT_PATIENCE))


class HandedOver(NamedTuple):
    """Calls that slow workers gave up, and the sum of their records or the future of that sum."""

    calls: frozenset[int]
    sums: Any


@dataclass
class Handover:
    """Watches one pass, and hands calls of slow workers over to idle ones."""

    client: Any  # client of the cluster
    name: str  # name of the pass, and of its tasks
    tasks: GroupTasks  # tasks of the pass
    # Submits calls under a name to some workers, which are given as address -> threads. Returns the
    # tasks of the calls and the futures of their records.
    submit: Callable[[str, list[int], dict[str, int]], tuple[GroupTasks, list[Any]]]
    patience: float  # share of their working time for which half of the workers must have been idle
    large: bool  # whether records are large: workers merge them to one, and only that is fetched
    # Whether slow workers have been asked for their calls.
    asked: bool = field(default=False, init=False)

    async def total(self, futures: list[Any]) -> PartialSums:
        """Return the sum of the records of futures, and of calls that other workers took over."""
        sums = await self.sums(futures)
        return await self._value(sums) if self.large else sums

    async def sums(self, futures: list[Any]) -> Any:
        """Return the sum as `total` does, or its future if records are large."""
        watching = asyncio.ensure_future(self._made_elsewhere())
        try:
            if self.large:
                (sums,) = futures
                seen = await self._value(self._task("skipped", without_records, sums))
            else:
                sums = seen = merge(await self._value(futures))
            # A task that ran again, for example because its worker died, has made all of its calls.
            # The sums of other workers would count some calls twice, so they are dropped, and the
            # caller makes the calls that were skipped.
            found = await watching if self.asked and seen.skipped else None
            if found is None or not found.calls <= set(seen.skipped):
                return sums
            arguments = sums, found.sums, found.calls
            return (
                self._task("completed", completed, *arguments)
                if self.large
                else completed(*arguments)
            )
        finally:
            watching.cancel()

    async def _value(self, futures: Any) -> Any:
        return await self.client.gather(futures, asynchronous=True)

    def _task(self, kind: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Submit a task that calls a function; return its future.

        The key is unique, as the scheduler may still know the failed task of an earlier attempt.
        """
        key = f"{self.name}-{kind}-{uuid.uuid4().hex}"
        return self.client.submit(function, *arguments, key=key)

    async def _made_elsewhere(self) -> HandedOver | None:
        """Wait for slow workers; return their calls with the sum that other workers made."""
        from distributed import KilledWorker

        try:
            slow = await self._slow_workers()
            self.asked = True
            given = await self.client.run(give_up, self.name, slow, workers=list(slow))
            calls = sorted(call for some in given.values() for call in some)
            if not calls:
                return None
            threads: Mapping[str, int] = await self.client.nthreads()
            others = {worker: n for worker, n in threads.items() if worker not in slow}
            return HandedOver(frozenset(calls), await self._made_by(others, calls))
        except (OSError, CancelledError, KilledWorker):
            return None  # the next attempt makes the skipped calls

    async def _made_by(self, workers: dict[str, int], calls: list[int]) -> Any:
        """Return the `sums` of calls made by some workers; raise OSError if these are lost.

        Slow ones among them hand calls over in turn.
        """
        name = f"{self.name}-again"
        tasks, futures = self.submit(name, calls, workers)
        again = Handover(self.client, name, tasks, self.submit, self.patience, self.large)
        made = asyncio.ensure_future(again.sums(futures))
        try:
            while not (await asyncio.wait({made}, timeout=_LAST_LOOK))[0]:
                # Tasks that are bound to lost workers would wait for ever.
                if workers.keys().isdisjoint(await self.client.nthreads()):
                    raise OSError("all workers that took over calls are lost")
            return made.result()
        finally:
            made.cancel()

    async def _slow_workers(self) -> dict[str, list[Calls]]:
        """Wait until half of the workers have been idle for a while; return the others' tasks."""
        began = time.monotonic()
        idle_since = None
        while True:
            elapsed = time.monotonic() - began
            await asyncio.sleep(min(max(_FIRST_LOOK, _SHARE * elapsed), _LAST_LOOK))
            processing: Mapping[str, list[Key]] = await self.client.processing()
            busy = {worker: self._own(keys) for worker, keys in processing.items() if keys}
            now = time.monotonic() - began
            if 2 * len(busy) > len(processing) or not any(busy.values()):
                idle_since = None
            elif idle_since is None:
                idle_since = now
            elif now - idle_since >= self.patience * idle_since:
                return {
                    worker: [self.tasks.calls_of([key]) for key in own]
                    for worker, own in busy.items()
                    if own
                }

    def _own(self, keys: Sequence[Key]) -> list[Key]:
        """Return the keys of tasks of this pass."""
        return [key for key in keys if isinstance(key, tuple) and key[0] == self.name]
