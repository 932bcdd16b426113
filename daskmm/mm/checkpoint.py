"""A journal on disk: a fit that is killed goes on from its last state, to the same bits."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daskmm.mm.fingerprints import differences
from daskmm.mm.journal import Journal, Pace
from daskmm.storage.atomic import flush_tree
from daskmm.storage.records import DamagedStateError, read_state, write_state

logger = logging.getLogger("daskmm")

# States that are kept.
KEPT = 2
_NAME = re.compile(r"state-(\d{8})")
_WORK = "work"


class CheckpointError(ValueError):
    """A checkpoint that cannot be gone on from; the message says why, and what to do."""


class Checkpoint(Journal):
    """A journal in a folder, of which the last two states are kept.

    Parameters
    ----------
    path : str or Path
        A folder, made when there is something to write.
    pace : Pace
        How often to write.
    parameters : mapping
        `described_parameters` of the estimator.

    Raises
    ------
    CheckpointError
        If the path holds something else, the state of another fit, or none that can be read.
    """

    def __init__(self, path: str | Path, pace: Pace, parameters: Mapping[str, Any]) -> None:
        super().__init__()
        self.path = _local(path)
        self._folder = self.path / _WORK
        self.pace = pace
        self.parameters = dict(parameters)
        self.data: dict[str, Any] = {}
        self._n_passes: Callable[[], int] = int
        self._former: dict[str, Any] = {}
        # Numbers of the states that are there, and what they need besides.
        self._sound: dict[int, tuple[str, ...]] = {}
        self._made: list[Path] = []
        self._with_room = False
        self._unwritten = False
        self._waiting = 0
        self._created = time.perf_counter()
        self._written_at = time.monotonic()
        if numbers := self._numbers():
            self._open(numbers)

    def _numbers(self) -> list[int]:
        """Numbers of the states that are there, the newest first.

        Raises
        ------
        CheckpointError
            If the path holds something else.
        """
        if not self.path.exists():
            return []
        if not self.path.is_dir():
            raise CheckpointError(f"checkpoint={str(self.path)!r} is a file; give a folder.")
        names = [entry.name for entry in self.path.iterdir()]
        states = [int(found[1]) for name in names if (found := _NAME.fullmatch(name))]
        foreign = [name for name in names if not (_NAME.search(name) or name == _WORK)]
        if foreign and not states:
            raise CheckpointError(
                f"checkpoint={str(self.path)!r} is a folder of other things ({foreign[0]}); give "
                "one that is empty, or does not exist."
            )
        return sorted(states, reverse=True)

    def _open(self, numbers: list[int]) -> None:
        """Take up the newest state that can be read."""
        for number in numbers:
            try:
                former = read_state(self._state(number))
            except DamagedStateError as error:
                logger.warning("%s; looking for an older state.", error)
                continue
            break
        else:
            names = ", ".join(self._state(number).name for number in sorted(numbers))
            raise CheckpointError(
                f"The checkpoint {self.path} cannot be read: {names} are damaged. Nothing was "
                "changed. Give another path, or remove the folder to begin anew."
            )
        self._refuse(differences(former["parameters"], self.parameters))
        self.stages = former.pop("stages")
        self._files = former["files"]
        self._sound = {number: self._files}
        self._former = former
        self.seconds = former["seconds"]
        self.n_iter = former["n_iter"]
        logger.info("checkpoint %s: going on after %d iterations", self.path, self.n_iter)

    def _refuse(self, found: list[str]) -> None:
        if found:
            raise CheckpointError(
                f"{self.path} is the checkpoint of another fit: {'; '.join(found)}. Give another "
                "path, or remove it to begin anew."
            )

    def _state(self, number: int) -> Path:
        return self.path / f"state-{number:08d}"

    def resume(self, data: Mapping[str, Any], n_passes: Callable[[], int]) -> int:
        """Sweeps that earlier runs of this fit made, once the data have been looked at.

        Raises
        ------
        CheckpointError
            If they are not the data of the earlier runs, saying what differs.
        """
        if self._former:
            self._refuse(differences(self._former["data"], data))
        self.data, self._n_passes = dict(data), n_passes
        ways = [self._folder, *self._folder.parents]
        self._made = [folder for folder in ways if not folder.exists()]
        if self._with_room:
            self._folder.mkdir(parents=True, exist_ok=True)
        return int(self._former.get("n_passes", 0))

    def keep(self, stage: str, value: Any, iterations: int = 1, files: Sequence[str] = ()) -> None:
        """Put down what a stage has come to, on disk when it is time.

        Raises
        ------
        OSError
            If it cannot be written; what was written before stays.
        """
        super().keep(stage, value, iterations, files)
        self._unwritten = True
        self._waiting += iterations
        # Before the first pass there is nothing that is worth it; what is not an iteration is
        # dear, or the last.
        due = iterations == 0 or self.pace.due(self._waiting, self._written_at)
        if self.data and due:
            self._write()

    def _write(self) -> None:
        """Write a state, then remove all but the last ones."""
        number = max(self._numbers(), default=0) + 1
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for name in self._files:
                flush_tree(self._folder / name)
            write_state(self._state(number), self._contents())
        except OSError as error:
            raise OSError(
                error.errno,
                f"the checkpoint {self.path} could not be written ({error.strerror or error}). "
                "Its former state is sound: free space, and the same fit goes on from there.",
            ) from error
        before = {name for files in self._sound.values() for name in files}
        self._sound = dict([*self._sound.items(), (number, self._files)][-KEPT:])
        self._unwritten, self._waiting, self._written_at = False, 0, time.monotonic()
        for entry in self.path.iterdir():
            found = _NAME.search(entry.name)
            if found and not (entry.name == found[0] and int(found[1]) in self._sound):
                entry.unlink(missing_ok=True)
        self._remove(before)

    def _withdraw(self) -> None:
        """Leave nothing behind of a fit that could not begin."""
        for number in self._sound:
            self._state(number).unlink(missing_ok=True)
        self._sound = {}
        for folder in self._made:
            # Where something else is there, it stays.
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _needed(self) -> set[str]:
        return {*self._files, *(name for files in self._sound.values() for name in files)}

    def _contents(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "data": self.data,
            "stages": self.stages,
            "files": self._files,
            "n_iter": self.n_iter,
            "n_passes": self._n_passes(),
            "seconds": self.seconds + time.perf_counter() - self._created,
        }

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Provide a folder beside the states; it is kept until the fit is complete."""
        self._with_room = True  # created once it is known that the fit can start
        yield self._folder

    def close(self, error: BaseException | None, stopped: BaseException | None) -> None:
        """Write what has not been written, or remove what a fit that could not start left.

        Parameters
        ----------
        error : BaseException or None
            What ended the fit with an error.
        stopped : BaseException or None
            What asked it to stop early.
        """
        if error is None:
            if self._unwritten:
                self._write()
            if stopped is None and self._with_room:
                shutil.rmtree(self._folder, ignore_errors=True)
        elif self.n_iter == 0 and not self._former and isinstance(error, ValueError | TypeError):
            # Input that cannot be used will not be resumed.
            self._withdraw()
        elif self._unwritten and self.data:
            # The error at hand matters more than one that writing may meet.
            with contextlib.suppress(OSError):
                self._write()
        reason = error or stopped
        if reason is not None and self._sound:
            reason.add_note(f"The same fit with checkpoint={str(self.path)!r} goes on from here.")


def _local(path: str | Path) -> Path:
    if "://" in str(path):
        raise CheckpointError(f"checkpoint={str(path)!r} must be a folder of this machine.")
    return Path(path).expanduser().absolute()
