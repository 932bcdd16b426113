"""Outputs that cannot be written, or that another process writes, are refused before reading."""

import contextlib
import errno
import json
import os
import re
import resource
import subprocess
import sys
import threading
from socket import gethostname

import numpy as np
import pytest

from daskmm import KMeans
from daskmm.cli.main import main
from daskmm.storage.locks import LockedError, remedy, reserved

X = np.random.default_rng(0).normal(size=(60, 2))
COMMANDS = {
    "fit": ["fit", __file__, "-k", "2"],
    "predict": ["predict", __file__, __file__],
}


def begin(kind, path, capsys):
    """Begin to write to a path, and return the message of the error.

    The command reads this file as its run or its table, and would fail once it opened it.
    """
    if kind == "checkpoint":
        with pytest.raises(OSError) as caught:
            KMeans(2, checkpoint=path, callbacks=[lambda record: 1 / 0]).fit(X)
        return str(caught.value)
    assert main([*COMMANDS[kind], "--out", str(path)]) == 2
    message, *others = capsys.readouterr().err.splitlines()
    assert not others  # no advice that does not apply
    return message


@pytest.fixture(params=[*COMMANDS, "checkpoint"])
def write(request, capsys):
    return lambda path: begin(request.param, path, capsys)


@contextlib.contextmanager
def holder(path):
    """Another process that holds the locks of an output and of a checkpoint."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom daskmm.storage.locks import locked, reserved\n"
        "path = Path(sys.argv[1])\n"
        "with reserved(path), locked(path, path / '.lock'):\n    print(); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        yield process
        process.kill()


def test_a_path_under_a_file_is_refused(tmp_path, write):
    (tmp_path / "file").write_text("x")
    message = write(tmp_path / "file" / "deep" / "out")
    assert f"{tmp_path}/file/deep/out cannot be written: Not a directory" in message
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not os.path.isdir("/sys"), reason="needs a folder where root cannot write")
def test_a_folder_in_which_nobody_may_write_is_named(write):
    message = write("/sys/daskmm")
    assert "/sys/daskmm cannot be written: " in message
    assert message.split("written: ")[1].split(" (")[0] in map(os.strerror, (1, 13, errno.EROFS))


def test_a_read_only_disk_is_named(tmp_path, write, monkeypatch):
    opened = os.open

    def read_only(path, flags, *mode, **options):
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opened(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", read_only)
    assert "out cannot be written: Read-only file system (" in write(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_reported_and_nothing_is_left(tmp_path, write):
    """The system refuses the bytes, as it does on a full disk, after taking some of them."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        message = write(tmp_path / "new" / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "new/out cannot be written: File too large" in message
    assert not list(tmp_path.iterdir())


def test_a_lock_holds_while_its_process_lives(tmp_path, capsys):
    out = tmp_path / "out"
    with holder(out) as process:
        for kind in [*COMMANDS, "checkpoint"]:
            message = begin(kind, out, capsys)
            assert f"{out} is being written by process {process.pid} on {gethostname()}" in message
            assert re.search(r"for [\d.]+ s now\. .* If it is dead, delete .*lock\.$", message)
    assert len(list(tmp_path.rglob("*.lock"))) == 2  # it was killed, so they are taken over
    with reserved(out):
        KMeans(2, random_state=0, checkpoint=out).fit(X)
    assert not list(tmp_path.rglob("*.lock"))


def test_the_lock_of_another_host_is_never_taken(tmp_path, write):
    owner = {"host": "elsewhere", "process": 7, "since": 0.0}
    (tmp_path / "out").mkdir()
    locks = tmp_path / ".out.lock", tmp_path / "out" / ".lock"
    for lock in locks:
        lock.write_text(json.dumps(owner))
    message = write(tmp_path / "out")
    assert "by process 7 on elsewhere, for " in message
    assert any(f"If it is dead, delete {lock}." in message for lock in locks)
    assert all(lock.exists() for lock in locks)


def test_threads_exclude_each_other_and_a_lock_comes_free(tmp_path):
    out = tmp_path / "a" / "out"
    found = []

    def race():
        try:
            with reserved(out):
                found.append("held")
        except LockedError as error:
            found.append(str(error))

    with reserved(out):
        thread = threading.Thread(target=race)
        thread.start()
        thread.join()
    race()
    assert f"process {os.getpid()} on" in found[0]
    assert found[1] == "held"
    assert not list(tmp_path.iterdir())


def test_a_lock_that_was_never_written_is_taken_over(tmp_path):
    (tmp_path / ".out.lock").touch()
    with reserved(tmp_path / "out"):
        pass
    assert not list(tmp_path.iterdir())


def lock_of(kind, path):
    """The file by which an output is locked."""
    return path / ".lock" if kind == "checkpoint" else path.parent / f".{path.name}.lock"


@pytest.mark.parametrize("kind", [*COMMANDS, "checkpoint"])
@pytest.mark.parametrize("target", ["precious", "absent"])
def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path, capsys, kind, target):
    (tmp_path / "precious").write_text("years of work")
    lock = lock_of(kind, tmp_path / "out")
    lock.parent.mkdir(exist_ok=True)
    lock.symlink_to(tmp_path / target)
    message = begin(kind, tmp_path / "out", capsys)
    assert f"out cannot be written: {lock} is in the way and is not a lock file" in message
    assert (tmp_path / "precious").read_text() == "years of work"
    assert not (tmp_path / "absent").exists()
    assert lock.is_symlink()


@pytest.mark.parametrize(
    "content",
    [
        *("5", "null", "[]", "{}", '"text"', "years of work", "[" * 50_000, "\0" * 100),
        json.dumps({"host": "elsewhere", "process": 7}),
        json.dumps({"host": 5, "process": 7, "since": 0.0}),
        json.dumps({"host": "elsewhere", "process": None, "since": 0.0}),
        '{"host": "elsewhere", "process": 7, "since": NaN}',
    ],
    ids=range(12),
)
def test_a_file_that_is_no_lock_is_not_touched(tmp_path, content):
    lock = tmp_path / ".out.lock"
    lock.write_text(content)
    with pytest.raises(LockedError, match=r"\.out\.lock is in the way"), reserved(tmp_path / "out"):
        pass
    assert lock.read_text() == content


def test_a_folder_or_a_pipe_in_the_place_of_a_lock_is_refused(tmp_path):
    (tmp_path / ".a.lock").mkdir()
    os.mkfifo(tmp_path / ".b.lock")
    for name in "ab":
        with pytest.raises(LockedError, match="is in the way"), reserved(tmp_path / name):
            pass
    assert len(list(tmp_path.iterdir())) == 2


def test_a_lock_that_was_replaced_meanwhile_stays(tmp_path):
    lock = tmp_path / ".out.lock"
    with reserved(tmp_path / "out"):
        lock.unlink()
        lock.write_text("years of work")
    assert lock.read_text() == "years of work"


def test_advice_follows_the_number_of_the_error():
    assert remedy(OSError(errno.ENOSPC, "")) == "free space"
    assert remedy(OSError(errno.EROFS, "")) == "correct that"
