"""A journal on disk: a killed fit resumes from its last state and ends with the same bits.

A state is one file (``state-00000001`` and so on) with the results of all stages of the journal.
Files that a stage works on, such as a Gram store, lie in a folder beside the states. The name of
this folder contains a unique number, which the states record. Only states that can be read, and
folders whose number they record, are ever removed.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daskmm.mm.fingerprints import differences
from daskmm.mm.journal import Journal, Pace, PassCounter
from daskmm.storage.locks import locked, remedy
from daskmm.storage.records import DamagedStateError, read_state, write_state
from daskmm.storage.remote import Mirror, check_writable, is_remote, local_path, names_in

logger = logging.getLogger("daskmm")

# Number of states kept: if the newest is damaged, the one before it is used.
_KEPT = 2
_STATE = re.compile(r"state-(\d{8})")
# Names of a state that is being written, and of the folder that a stage works in.
_UNFINISHED = re.compile(r"\.state-\d{8}\.[0-9a-f]{32}")
_WORK = re.compile(r"work-[0-9a-f]{32}")
_LOCK = ".lock"


class CheckpointError(ValueError):
    """Raised if a checkpoint cannot be resumed; the message says why, and what to do."""


class _States:
    """The states in a folder; other files in it are never touched.

    If the folder is the local copy of a remote one, it has a mirror, whose URL messages name.
    """

    def __init__(self, folder: Path, mirror: Mirror | None = None) -> None:
        self.folder, self._mirror = folder, mirror
        self.path = str(folder if mirror is None else mirror.url)  # messages name it
        # Numbers of the states that have been read or written, the oldest first.
        self.own: list[int] = []

    @classmethod
    def at(cls, path: str | Path) -> _States:
        """Return the states at a path, or a local copy of those at a URL."""
        if not is_remote(path):
            return cls(local_path(path).expanduser().absolute())
        mirror = Mirror(str(path), _STATE.fullmatch)
        return cls(mirror.folder, mirror)

    def names(self) -> set[str]:
        """Return the names of all files and folders in the folder, or at the URL."""
        return names_in(self.folder) if self._mirror is None else self._mirror.names

    def numbers(self) -> list[int]:
        """Return the numbers of the files that may be states, the newest first."""
        files = (name for name in names_in(self.folder) if (self.folder / name).is_file())
        return sorted(
            (int(found[1]) for name in files if (found := _STATE.fullmatch(name))), reverse=True
        )

    def read(self, number: int) -> dict[str, Any]:
        """Read a state; from then on it may be removed.

        DamagedStateError is raised if the file is not a state, or damaged, and ValueError if it was
        written by a newer version of the library.
        """
        found = read_state(self.folder / _name(number))
        if not (isinstance(found, dict) and {"parameters", "stages"} <= found.keys()):
            raise DamagedStateError(f"{self.folder / _name(number)} is not the state of a fit")
        self.own = sorted({*self.own, number})
        return found

    def write(self, value: Any) -> None:
        """Write a new state, and remove all but the last ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number, names = max(self.own, default=0) + 1, self.names()
        while _name(number) in names:  # this is a damaged state, or something else
            number += 1
        write_state(self.folder / _name(number), value)
        if self._mirror is not None:
            self._mirror.upload(_name(number))
        self.own.append(number)
        self.remove(_KEPT)

    def remove(self, kept: int = 0) -> None:
        """Remove states but the last ones, and states whose writing was cut short."""
        while len(self.own) > kept:
            name = _name(self.own[0])
            (self.folder / name).unlink(missing_ok=True)
            if self._mirror is not None:
                self._mirror.remove(name)
            del self.own[0]
        for name in names_in(self.folder):
            if _UNFINISHED.fullmatch(name) and (self.folder / name).is_file():
                (self.folder / name).unlink(missing_ok=True)


def _name(number: int) -> str:
    return f"state-{number:08d}"


def _foreign(names: set[str]) -> list[str]:
    """Return the names of files and folders that do not belong to a checkpoint."""
    known = (_STATE, _UNFINISHED, _WORK)
    return sorted(
        name for name in names if name != _LOCK and not any(each.fullmatch(name) for each in known)
    )


class Checkpoint(Journal):
    """A journal in a folder that keeps the last two states.

    The states are in a local folder that is locked for this fit; see `locked_checkpoint`.
    Iterations are written at the given pace, other results at once. `parameters` are the
    description of the estimator by `described_parameters`. CheckpointError is raised if the folder
    holds other files, the state of another fit, or only damaged states.
    """

    def __init__(self, states: _States, pace: Pace, parameters: Mapping[str, Any]) -> None:
        super().__init__()
        self._states = states
        self.path = states.path
        self.pace = pace
        self.parameters = dict(parameters)
        self.data: dict[str, Any] = {}
        self._passes: PassCounter | None = None
        self._former: dict[str, Any] = {}
        # Whether results wait to be written, the number of their iterations, and the time of the
        # last write.
        self._unwritten, self._n_unwritten, self._written_at = False, 0, time.monotonic()
        self._created = time.perf_counter()
        if numbers := states.numbers():
            self._open(numbers)
        elif foreign := _foreign(states.names()):
            raise CheckpointError(
                f"checkpoint={self.path!r} is a folder of other things ({foreign[0]}); give "
                "one that is empty, or does not exist."
            )
        self._folder = states.folder / _work_of(self._former)

    def _open(self, numbers: list[int]) -> None:
        """Load the newest state that can be read."""
        for number in numbers:
            try:
                former = self._states.read(number)
            except DamagedStateError as error:
                logger.warning("%s; looking for an older state.", error)
                continue
            break
        else:
            names = ", ".join(_name(number) for number in sorted(numbers))
            raise CheckpointError(
                f"The checkpoint {self.path} cannot be read: {names} are damaged. Nothing was "
                "changed. Give another path, or remove the folder to start again."
            )
        self._refuse(differences(former["parameters"], self.parameters))
        for older in (each for each in numbers if each < number):
            with contextlib.suppress(ValueError):  # the state stays, as it may be of another fit
                self._states.read(older)
        self.stages = former.pop("stages")
        self.seconds, self.n_iter = former["seconds"], former["n_iter"]
        self._former = former
        stage = next(reversed(self.stages), "first pass")
        done = f"{self.n_iter} iterations of the fit are done"
        logger.info("resuming from %s at the stage %r; %s", self.path, stage, done)

    def _refuse(self, found: list[str]) -> None:
        """Raise if any difference to the earlier fit was found."""
        if found:
            raise CheckpointError(
                f"{self.path} is the checkpoint of another fit: {'; '.join(found)}. Give another "
                "path, or remove it to start again."
            )

    def resume(self, data: Mapping[str, Any], passes: PassCounter) -> None:
        """Add the passes that earlier runs of this fit made (see `Journal.resume`).

        CheckpointError, whose message says how, is raised if the data differ from those of the
        earlier runs.
        """
        if self._former:
            self._refuse(differences(self._former["data"], data))
        self.data, self._passes = dict(data), passes
        passes.add(int(self._former.get("n_passes", 0)))

    def keep(self, value: Any, iterations: int = 1) -> None:
        """Record the present result of the stage (see `Journal.keep`), and write it if it is due.

        OSError is raised if it cannot be written; the earlier states stay.
        """
        super().keep(value, iterations)
        self._unwritten = True
        self._n_unwritten += iterations
        # Results other than iterations are costly or final, so they are written at once. Before
        # the first pass nothing is worth writing.
        due = iterations == 0 or self.pace.due(self._n_unwritten, self._written_at)
        if self.data and due:
            self._write()

    def _write(self) -> None:
        """Write a state, and remove all but the last ones."""
        kept = "Its former state is intact" if self._states.own else "It has no state yet"
        try:
            self._states.write(self._contents())
        except OSError as error:
            raise OSError(
                error.errno,
                f"the checkpoint {self.path} could not be written ({error.strerror or error}). "
                f"{kept}: {remedy(error)}, and repeat the fit.",
            ) from error
        self._unwritten, self._n_unwritten, self._written_at = False, 0, time.monotonic()

    def _withdraw(self) -> None:
        """Remove the files of a fit that could not start."""
        with contextlib.suppress(OSError):  # an error here must not replace that of the fit
            self._states.remove()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _contents(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "data": self.data,
            "stages": self.stages,
            "work": self._folder.name,
            "n_iter": self.n_iter,
            "n_passes": 0 if self._passes is None else self._passes.n_passes,
            "seconds": self.seconds + time.perf_counter() - self._created,
        }

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Provide a path for a folder beside the states, which is kept until the fit is complete.

        Nothing is written there before a state records its name.
        """
        yield self._folder

    def close(self, error: BaseException | None, stopped: BaseException | None) -> None:
        """Write the remaining results, or remove the files of a fit that could not start."""
        if error is None:
            if self._unwritten:
                self._write()
            if stopped is None:
                shutil.rmtree(self._folder, ignore_errors=True)
        elif self.n_iter == 0 and not self._former and isinstance(error, ValueError | TypeError):
            # The input cannot be used: nobody will resume this fit.
            self._withdraw()
        elif self._unwritten and self.data:
            with contextlib.suppress(OSError):  # an error here must not replace that of the fit
                self._write()
        reason = error or stopped
        refused = isinstance(reason, CheckpointError)
        if reason is not None and not refused and self._states.own:
            reason.add_note(f"Repeat the fit with checkpoint={str(self.path)!r} to resume it.")


@contextmanager
def locked_checkpoint(
    path: str | Path, pace: Pace, parameters: Mapping[str, Any]
) -> Iterator[Checkpoint]:
    """Provide the checkpoint at a path; on a local disk it is locked against other processes.

    A checkpoint on an object store has a local mirror while the fit lasts. Files that a stage works
    on are kept only in the mirror.

    CheckpointError is raised if it cannot be resumed, LockedError if another fit holds the lock,
    and OSError, whose message has the reason, if it cannot be written.
    """
    if not is_remote(path):
        states = _States.at(path)
        if states.folder.is_file():
            raise CheckpointError(f"checkpoint={states.path!r} is a file; give a folder.")
        with locked(states.folder, states.folder / _LOCK):
            yield Checkpoint(states, pace, parameters)
        return
    try:
        check_writable(str(path))
        states = _States.at(path)
    except ValueError as error:
        raise CheckpointError(f"checkpoint={str(path)!r}: {error}") from error
    yield Checkpoint(states, pace, parameters)


def is_checkpoint(path: str | Path) -> bool:
    """Return whether a folder or URL holds states, or only files of a fit."""
    names = names_in(path)
    if not names:
        return not is_remote(path) and local_path(path).is_dir()
    return any(_STATE.fullmatch(name) for name in names) or not _foreign(names)


def remove_checkpoint(path: str | Path) -> None:
    """Remove the checkpoint of a complete fit; other files stay."""
    states = _States.at(path)
    for number in states.numbers():
        with contextlib.suppress(ValueError):
            shutil.rmtree(states.folder / _work_of(states.read(number)), ignore_errors=True)
    states.remove()
    if not is_remote(path):
        with contextlib.suppress(OSError):  # the folder is not empty
            states.folder.rmdir()
    if left := names_in(path):
        logger.warning("%s stays: %s is not a state that can be read.", path, sorted(left)[0])


def _work_of(state: Mapping[str, Any]) -> str:
    """Return the name of the folder that the stages of a fit work in."""
    name = state.get("work")
    if isinstance(name, str) and _WORK.fullmatch(name):
        return name
    return f"work-{uuid.uuid4().hex}"
