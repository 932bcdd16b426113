"""Files and folders appear complete and durable, or not at all."""

import os

import pytest

from daskmm.storage import atomic
from daskmm.storage.atomic import written_whole


def written(path, text, replace=False):
    """Write a file, or a folder with one file in it."""
    with written_whole(path, replace=replace) as fresh:
        assert fresh.parent == path.parent
        if path.name == "folder":
            fresh.mkdir()
            fresh = fresh / "inside"
        fresh.write_text(text)


def text_of(path):
    return (path / "inside" if path.is_dir() else path).read_text()


@pytest.fixture(params=["file", "folder"])
def path(request, tmp_path):
    return tmp_path / "made" / "on the way" / request.param


def test_a_new_file_replaces_the_former_and_leaves_nothing_else(path):
    written(path, "a")
    written(path, "b", replace=True)
    assert text_of(path) == "b"
    assert list(path.parent.iterdir()) == [path]


def test_what_is_there_is_not_replaced_unasked(path):
    written(path, "a")
    with pytest.raises(FileExistsError, match="exists"):
        written(path, "b")
    assert text_of(path) == "a"


def test_a_name_that_another_process_takes_meanwhile_is_not_overwritten(path):
    written(path, "a")
    other = path.with_name("other")

    def written_late():
        with written_whole(other) as fresh:
            fresh.write_text("b")
            path.rename(other)

    with pytest.raises(FileExistsError, match="exists"):
        written_late()
    assert text_of(other) == "a"
    assert list(path.parent.iterdir()) == [other]


@pytest.mark.parametrize("replace", [False, True])
def test_an_error_leaves_what_was_there(path, replace, monkeypatch):
    if replace:
        written(path, "a")
    monkeypatch.setattr(atomic, "flush_tree", lambda fresh: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        written(path, "b", replace=replace)
    assert list(path.parent.iterdir()) == [path] * replace
    assert not replace or text_of(path) == "a"


def test_the_error_of_a_full_disk_names_the_path(path, monkeypatch):
    def full(fresh):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(atomic, "flush_tree", full)
    with pytest.raises(OSError, match="No space left") as found:
        written(path, "a")
    assert found.value.__notes__ == [f"{path} cannot be written."]
    with pytest.raises(FileExistsError) as found, written_whole(path.parent):
        pass
    assert not hasattr(found.value, "__notes__")


@pytest.mark.parametrize("replace", [False, True])
def test_all_is_on_the_disk_before_it_has_its_name(path, replace, monkeypatch):
    if replace:
        written(path, "a")
    events, fsync = [], os.fsync

    def recorded(descriptor):
        # Which file or folder it is, and whether the new text already has the name.
        number = os.fstat(descriptor).st_ino
        events.append((number, path.exists() and text_of(path) == "b"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    written(path, "b", replace=replace)
    inside = [path, path / "inside"] if path.is_dir() else [path]
    before = {number for number, named in events if not named}
    assert {item.stat().st_ino for item in inside} <= before
    assert events[-1] == (path.parent.stat().st_ino, True)


def test_a_file_replaces_no_folder_and_a_folder_no_file(tmp_path):
    written(tmp_path / "one" / "folder", "a")
    written(tmp_path / "file", "b")
    (tmp_path / "one" / "folder").rename(tmp_path / "taken")
    with pytest.raises(IsADirectoryError), written_whole(tmp_path / "taken", replace=True) as fresh:
        fresh.write_text("c")
    with pytest.raises(NotADirectoryError), written_whole(tmp_path / "file", replace=True) as fresh:
        fresh.mkdir()
    assert text_of(tmp_path / "taken") == "a"
    assert text_of(tmp_path / "file") == "b"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "one", "taken"]


def test_a_link_to_nothing_is_not_replaced_unasked(tmp_path):
    (tmp_path / "file").symlink_to(tmp_path / "unplugged")
    with pytest.raises(FileExistsError, match="exists"):
        written(tmp_path / "file", "a")
    assert (tmp_path / "file").is_symlink()
