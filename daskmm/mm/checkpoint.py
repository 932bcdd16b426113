"""A journal on disk: a killed fit resumes from its last state and ends with the same bits.

A state is one file, ``state-00000001`` and so on, with all stages of the journal; files that a
stage works on (such as a Gram store) lie in the folder ``work`` beside the states.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daskmm.mm.fingerprints import differences
from daskmm.mm.journal import Journal, Pace, PassCounter
from daskmm.storage.locks import locked, remedy
from daskmm.storage.records import DamagedStateError, read_state, write_state
from daskmm.storage.remote import Mirror, check_writable, is_remote, local_path

logger = logging.getLogger("daskmm")

# States kept: if the newest is damaged, the one before is used.
_KEPT = 2
_NAME = re.compile(r"state-(\d{8})")
_WORK, _LOCK = "work", ".lock"


class CheckpointError(ValueError):
    """Raised if a checkpoint cannot be resumed; the message says why, and what to do."""


class Checkpoint(Journal):
    """A journal in a folder that keeps the last two states.

    Parameters
    ----------
    folder : Path
        A local folder that is locked for this fit; see `locked_checkpoint`.
    pace : Pace
        How often to write iterations; other results are written at once.
    parameters : mapping
        Description of the estimator by `described_parameters`.
    mirror : Mirror, optional
        Of which the folder is; messages name its URL.

    Raises
    ------
    CheckpointError
        If the folder holds other files, the state of another fit, or only damaged states.
    """

    def __init__(
        self,
        folder: Path,
        pace: Pace,
        parameters: Mapping[str, Any],
        mirror: Mirror | None = None,
    ) -> None:
        super().__init__()
        self._mirror = mirror
        # Where the states are, and how messages name it.
        self._files = folder
        self.path = str(folder if mirror is None else mirror.url)
        self._folder = folder / _WORK
        self.pace = pace
        self.parameters = dict(parameters)
        self.data: dict[str, Any] = {}
        self._passes: PassCounter | None = None
        self._former: dict[str, Any] = {}
        # Numbers of the readable states on disk.
        self._states: list[int] = []
        self._wants_folder = False
        # Whether there are results not yet written, how many iterations, since when.
        self._unwritten, self._n_unwritten, self._written_at = False, 0, time.monotonic()
        self._created = time.perf_counter()
        if numbers := self._numbers():
            self._open(numbers)

    def _numbers(self) -> list[int]:
        """Return the numbers of the states on disk, the newest first."""
        names = [entry.name for entry in self._files.iterdir()]
        states = [int(found[1]) for name in names if (found := _NAME.fullmatch(name))]
        foreign = [name for name in names if not (_NAME.search(name) or name in (_WORK, _LOCK))]
        if foreign and not states:
            raise CheckpointError(
                f"checkpoint={str(self.path)!r} is a folder of other things ({foreign[0]}); give "
                "one that is empty, or does not exist."
            )
        return sorted(states, reverse=True)

    def _open(self, numbers: list[int]) -> None:
        """Load the newest state that can be read."""
        for number in numbers:
            try:
                former = read_state(self._state_path(number))
            except DamagedStateError as error:
                logger.warning("%s; looking for an older state.", error)
                continue
            break
        else:
            names = ", ".join(self._state_path(number).name for number in sorted(numbers))
            raise CheckpointError(
                f"The checkpoint {self.path} cannot be read: {names} are damaged. Nothing was "
                "changed. Give another path, or remove the folder to start again."
            )
        self._refuse(differences(former["parameters"], self.parameters))
        self.stages = former.pop("stages")
        self.seconds, self.n_iter = former["seconds"], former["n_iter"]
        self._states = [number]
        self._former = former
        logger.info("checkpoint %s: resuming after %d iterations", self.path, self.n_iter)

    def _refuse(self, found: list[str]) -> None:
        """Raise if any difference to the earlier fit was found."""
        if found:
            raise CheckpointError(
                f"{self.path} is the checkpoint of another fit: {'; '.join(found)}. Give another "
                "path, or remove it to start again."
            )

    def _state_path(self, number: int) -> Path:
        return self._files / f"state-{number:08d}"

    def resume(self, data: Mapping[str, Any], passes: PassCounter) -> None:
        """Add the passes that earlier runs of this fit made (see `Journal.resume`).

        Raises
        ------
        CheckpointError
            If the data differ from those of the earlier runs; the message says in what.
        """
        if self._former:
            self._refuse(differences(self._former["data"], data))
        self.data, self._passes = dict(data), passes
        if self._wants_folder:
            self._folder.mkdir(parents=True, exist_ok=True)
        passes.add(int(self._former.get("n_passes", 0)))

    def keep(self, stage: str, value: Any, iterations: int = 1) -> None:
        """Record the result so far of a stage (see `Journal.keep`), on disk when due.

        Raises
        ------
        OSError
            If it cannot be written; the earlier states stay.
        """
        super().keep(stage, value, iterations)
        self._unwritten = True
        self._n_unwritten += iterations
        # Results other than iterations are costly or final: write at once. Before the first pass
        # nothing is worth writing.
        due = iterations == 0 or self.pace.due(self._n_unwritten, self._written_at)
        if self.data and due:
            self._write()

    def _write(self) -> None:
        """Write a state, and remove all but the last ones."""
        kept = "Its former state is intact" if self._states else "It has no state yet"
        try:
            self._files.mkdir(parents=True, exist_ok=True)
            number = max(self._numbers(), default=0) + 1
            write_state(self._state_path(number), self._contents())
            self._states = [*self._states, number][-_KEPT:]
            self._remove_others()
        except OSError as error:
            raise OSError(
                error.errno,
                f"the checkpoint {self.path} could not be written ({error.strerror or error}). "
                f"{kept}: {remedy(error)}, and repeat the fit.",
            ) from error
        self._unwritten, self._n_unwritten, self._written_at = False, 0, time.monotonic()

    def _remove_others(self) -> None:
        """Remove all states but the last ones, and unfinished files."""
        for entry in self._files.iterdir():
            found = _NAME.search(entry.name)
            if found and not (entry.name == found[0] and int(found[1]) in self._states):
                entry.unlink(missing_ok=True)
        if self._mirror is not None:
            self._mirror.update()

    def _withdraw(self) -> None:
        """Remove what a fit that could not start has written."""
        for number in self._states:
            self._state_path(number).unlink(missing_ok=True)
        self._states = []
        if self._mirror is not None:
            with contextlib.suppress(OSError):  # must not replace the error at hand
                self._mirror.update()
        with contextlib.suppress(OSError):  # not there, or not empty
            self._folder.rmdir()

    def _contents(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "data": self.data,
            "stages": self.stages,
            "n_iter": self.n_iter,
            "n_passes": 0 if self._passes is None else self._passes.n_passes,
            "seconds": self.seconds + time.perf_counter() - self._created,
        }

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Provide a folder beside the states; it is kept until the fit is complete.

        It is created by `resume`, once the data are known to be usable.
        """
        self._wants_folder = True
        yield self._folder

    def close(self, error: BaseException | None, stopped: BaseException | None) -> None:
        """Write what has not been written, or remove the traces of a fit that could not start."""
        if error is None:
            if self._unwritten:
                self._write()
            if stopped is None and self._wants_folder:
                shutil.rmtree(self._folder, ignore_errors=True)
        elif self.n_iter == 0 and not self._former and isinstance(error, ValueError | TypeError):
            # The input cannot be used: nobody will resume this fit.
            self._withdraw()
        elif self._unwritten and self.data:
            with contextlib.suppress(OSError):  # must not replace the error at hand
                self._write()
        reason = error or stopped
        if reason is not None and self._states:
            reason.add_note(f"Repeat the fit with checkpoint={str(self.path)!r} to resume it.")


@contextmanager
def locked_checkpoint(
    path: str | Path, pace: Pace, parameters: Mapping[str, Any]
) -> Iterator[Checkpoint]:
    """Provide the checkpoint at a path, while no other process on a local disk can have it.

    Of one on an object store there is a local mirror while the fit lasts; files that a stage works
    on are kept in the mirror only.

    Raises
    ------
    CheckpointError
        If the checkpoint cannot be resumed.
    LockedError
        If another fit has it.
    OSError
        If it cannot be written; the message has the reason.
    """
    if not is_remote(path):
        folder = local_path(path).expanduser().absolute()
        if folder.is_file():
            raise CheckpointError(f"checkpoint={str(folder)!r} is a file; give a folder.")
        with locked(folder, folder / _LOCK):
            yield Checkpoint(folder, pace, parameters)
        return
    try:
        check_writable(str(path))
        mirror = Mirror(str(path))
    except ValueError as error:
        raise CheckpointError(f"checkpoint={str(path)!r}: {error}") from error
    yield Checkpoint(mirror.folder, pace, parameters, mirror)
