"""Calls that a slow worker has not begun are taken from it, and given to idle workers.

A pass ends with its last task, and a task makes many calls: all workers wait for one that is ten
times slower. So when half of them have been idle for a while, the client asks the others which
calls they have not begun. They skip these, and whoever is idle makes them: at most two blocks of a
task are read twice.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import dask
from dask.typing import Key

from daskmm.engine.graph import GroupTasks
from daskmm.engine.worker_task import PartialSums, give_up, merge

# Seconds until the workers are looked at for the first time, and least seconds between two looks;
# later looks come when the time since the pass began has grown by a share, or after a second.
_FIRST_LOOK, _SHARE, _LAST_LOOK = 0.25, 1 / 10, 1.0
# A key of dask's configuration. Blocks are handed over once half of the workers have been idle for
# this share of the time that they worked; with infinity, never.
PATIENCE_KEY = "daskmm.straggler-patience"
DEFAULT_PATIENCE = 0.1
# What the user may have annotated that says where tasks run.
_PLACES = {"workers", "resources"}

Calls = Sequence[int]


def patience() -> float:
    """Return the configured patience; infinity where the user has said where tasks run."""
    if _PLACES & dask.get_annotations().keys():
        return math.inf
    return float(dask.config.get(PATIENCE_KEY, DEFAULT_PATIENCE))


class HandedOver(NamedTuple):
    """Calls that slow workers gave up, and the sum of their records."""

    calls: frozenset[int]
    sums: PartialSums


@dataclass
class Handover:
    """Watches one pass, and hands calls of slow workers over to idle ones.

    Attributes
    ----------
    client : distributed.Client
    name : str
        Of the pass, and its tasks.
    tasks : GroupTasks
    submit : callable
        Submits calls under a name to some workers, given as address -> threads, and returns their
        tasks, and the futures of their records.
    patience : float
    asked : bool
        Whether slow workers have been asked for their calls.
    """

    client: Any
    name: str
    tasks: GroupTasks
    submit: Callable[[str, list[int], dict[str, int]], tuple[GroupTasks, list[Any]]]
    patience: float
    asked: bool = field(default=False, init=False)

    async def sums(self, gather: Callable[[], Awaitable[list[PartialSums]]]) -> PartialSums:
        """Return the sum of the records that `gather` waits for, and of calls handed over."""
        watching = asyncio.ensure_future(self._made_elsewhere())
        try:
            sums = merge(await gather())
            # A task that was run again, say because its worker had died, made all of its calls and
            # misses none. What was handed over cannot be used then: the caller makes what is left.
            if self.asked and sums.missed and (found := await watching):
                missed = set(sums.missed)
                if found.calls <= missed:
                    sums = replace(sums, missed=tuple(sorted(missed - found.calls))) + found.sums
            return sums
        finally:
            watching.cancel()

    async def _made_elsewhere(self) -> HandedOver | None:
        """Wait for slow workers, and return what others made of their calls."""
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
            return None  # the calls are missing, and will be made by the next attempt

    async def _made_by(self, workers: dict[str, int], calls: list[int]) -> PartialSums:
        """Return the sum of calls made by some workers; raise OSError if these are lost.

        Those that are slow among them hand calls over in turn.
        """
        name = f"{self.name}-again"
        tasks, futures = self.submit(name, calls, workers)
        gather = functools.partial(self.client.gather, futures, asynchronous=True)
        again = Handover(self.client, name, tasks, self.submit, self.patience)
        made = asyncio.ensure_future(again.sums(gather))
        try:
            while not (await asyncio.wait({made}, timeout=_LAST_LOOK))[0]:
                # Tasks bound to workers that are lost would wait for ever.
                if workers.keys().isdisjoint(await self.client.nthreads()):
                    raise OSError("all workers are lost that took over calls")
            return made.result()
        finally:
            made.cancel()
            for future in futures:
                future.release()

    async def _slow_workers(self) -> dict[str, list[Calls]]:
        """Return the tasks of each busy worker, once half of the workers have waited for them."""
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
        """Return the keys of those tasks that are of this pass."""
        return [key for key in keys if isinstance(key, tuple) and key[0] == self.name]
