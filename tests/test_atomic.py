"""A file is written whole or not at all, where it was meant to go and with the permissions that it had."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from interp_widgets.atomic import whole_file


def write(path: Path, text: str) -> None:
    with whole_file(path) as draft:
        draft.write_text(text)


def write_half(path: Path, error: BaseException) -> None:
    with whole_file(path) as draft:
        draft.write_text("half")
        raise error


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_is_there_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new.txt"
    with whole_file(path) as draft:
        assert draft.parent == tmp_path
        assert draft.suffix == ".txt"  # by which libraries know what to write
        draft.write_text("half")
        assert not path.exists()
        draft.write_text("whole")
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), SystemExit()])
def test_after_an_error_the_old_file_is_as_it_was(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "old.txt"
    path.write_text("old")
    with pytest.raises(type(error)):
        write_half(path, error)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_an_error_after_the_writing_is_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A full disk may show only when the file is flushed."""
    path = tmp_path / "old.txt"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if step == "fsync" else Path, step, full)
    with pytest.raises(OSError, match="No space left"):
        write(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_is_on_disk_before_it_takes_the_old_ones_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (steps.append("fsync"), fsync(file))[1])
    monkeypatch.setattr(Path, "replace", lambda one, other: (steps.append("replace"), replace(one, other))[1])
    write(tmp_path / "file", "text")
    assert steps == ["fsync", "replace"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o755])
def test_permissions_are_kept(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    path.chmod(mode)
    with whole_file(path) as draft:
        assert permissions(draft) & ~mode & 0o077 == 0  # nobody else reads the draft of a private file
        draft.write_text("new")
    assert (path.read_text(), permissions(path)) == ("new", mode)


def test_a_new_file_has_the_usual_permissions_whoever_wrote_it(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    write(tmp_path / "plain", "text")
    with whole_file(tmp_path / "own") as draft:  # as safetensors writes: a private file in the draft's place
        other = tmp_path / "other"
        other.touch(0o600)
        other.replace(draft)
    for name in ("plain", "own"):
        assert permissions(tmp_path / name) == permissions(tmp_path / "usual")


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    folder, here = tmp_path / "store", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    target, link, further = folder / "file.txt", here / "link.txt", here / "further.txt"
    target.write_text("old")
    link.symlink_to(target)
    further.symlink_to(link.name)
    with whole_file(further) as draft:
        assert draft.parent == folder  # a rename works within one file system
        draft.write_text("new")
    assert link.is_symlink()
    assert further.is_symlink()
    assert target.read_text() == "new"
    target.unlink()
    write(link, "again")  # as open() does with a link to a file that is not there yet
    assert link.is_symlink()
    assert target.read_text() == "again"


def test_what_cannot_be_written_is_said_with_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    for name, kind, message in (
        ("absent/file", FileNotFoundError, r"absent/file cannot be written: No such file"),
        ("folder", IsADirectoryError, "folder cannot be written: Is a directory"),
        ("loop", OSError, "loop cannot be written: Too many levels of symbolic links"),
        ("pipe", OSError, "pipe cannot be written: it is no regular file"),
    ):
        with pytest.raises(kind, match=message):
            write(tmp_path / name, "text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "loop", "pipe"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_protected_file_or_folder_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(PermissionError, match="file cannot be written: Permission denied"):
        write(path, "new")
    tmp_path.chmod(0o555)
    with pytest.raises(PermissionError, match="new cannot be written: Permission denied"):
        write(tmp_path / "new", "new")
    tmp_path.chmod(0o755)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "old"


def test_libraries_that_add_endings_find_one(tmp_path: Path) -> None:
    with whole_file(tmp_path / "arrays.npz") as draft:
        np.savez(draft, x=np.arange(3))
    assert [path.name for path in tmp_path.iterdir()] == ["arrays.npz"]
