"""A file is written whole or not at all, where it was meant to go and with the permissions that it had."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import interp_widgets as iw
from interp_widgets.atomic import made_folder, named_path, other_files, whole_file, whole_folder
from interp_widgets.figures.static import Scene, save_scene
from interp_widgets.widgets.base.controls import checked_path


def write(path: Path, text: str) -> None:
    with whole_file(path) as draft:
        draft.write_text(text)


def write_with(drafts: AbstractContextManager[Path], writer: Callable[[Path], Any]) -> None:
    with drafts as draft:
        writer(draft)


def write_half(path: Path, error: BaseException) -> None:
    with whole_file(path) as draft:
        draft.write_text("half")
        raise error


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_is_there_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new.txt"
    with whole_file(path) as draft:
        assert draft.parent.parent == tmp_path  # a rename works within one file system
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
        assert draft.parent.parent == folder
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


# ---- full disks


@pytest.fixture
def little_room() -> Iterator[None]:
    """No file may grow beyond 100,000 bytes: the system's own error, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


NUMBERS = np.random.default_rng(0).random(50_000)
WRITERS: dict[str, Callable[[Path], Any]] = {
    "a.txt": lambda draft: draft.write_text("x" * 200_000),
    "a.npz": lambda draft: np.savez_compressed(draft, x=NUMBERS),
    "a.safetensors": lambda draft: save_file({"x": torch.tensor(NUMBERS)}, draft),
    "a.parquet": lambda draft: pd.DataFrame({"x": NUMBERS}).to_parquet(draft),
}


@pytest.mark.usefixtures("little_room")
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_sentence_whichever_library_writes(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("old")
    with pytest.raises(OSError, match=rf"{name} cannot be written: File too large: make room there"):
        write_with(whole_file(path), WRITERS[name])
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    folder = whole_folder(tmp_path / "whole")
    with pytest.raises(OSError, match="whole cannot be written: File too large"):
        write_with(folder, lambda draft: (draft.mkdir(), WRITERS[name](draft / name)))
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_that_is_not_of_the_disk_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^no numbers$"):
        write_half(tmp_path / "new", ValueError("no numbers"))
    with pytest.raises(ConnectionRefusedError, match=r"^refused$"):
        write_half(tmp_path / "new", ConnectionRefusedError("refused"))
    assert list(tmp_path.iterdir()) == []


# ---- killed processes

WRITER = """
import sys
from interp_widgets.atomic import whole_file
with whole_file(sys.argv[1]) as draft:
    draft.write_text("half")
    (draft.parent / ".tmp-of-a-library").write_text("half")
    print("writing", flush=True)
    sys.stdin.read()
"""


def start_writing(path: Path) -> subprocess.Popen[str]:
    """A process in the middle of writing a file."""
    pipe = subprocess.PIPE
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdin=pipe, stdout=pipe, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    return writer


def test_the_draft_of_a_killed_process_goes_with_the_next_write_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    with start_writing(tmp_path / "slow.txt") as alive, start_writing(tmp_path / "lost.txt") as killed:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert len(list(tmp_path.iterdir())) == 2
        assert other_files(tmp_path) == []
        write(tmp_path / "next.txt", "whole")
        assert len(list(tmp_path.iterdir())) == 2
        assert other_files(tmp_path) == [tmp_path / "next.txt"]
        alive.communicate()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["next.txt", "slow.txt"]
    assert (tmp_path / "slow.txt").read_text() == "half"


def test_two_writes_at_a_time_leave_each_others_drafts(tmp_path: Path) -> None:
    with whole_file(tmp_path / "outer") as outer:
        write(tmp_path / "inner", "inner")
        with whole_file(tmp_path / "outer") as same:
            same.write_text("first")
        outer.write_text("second")
    assert (tmp_path / "outer").read_text() == "second"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inner", "outer"]


def test_only_drafts_are_removed(tmp_path: Path) -> None:
    names = [".interp_widgets", ".interp_widgets-notes", ".interp_widgets-0123456789abcdef0", ".0123456789abcdef"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / ".interp_widgets-0123456789abcdef").symlink_to(tmp_path / names[0])
    draft = tmp_path / ".interp_widgets-fedcba9876543210"  # killed before it had its lock
    draft.mkdir()
    write(tmp_path / "new", "text")
    assert not draft.exists()
    assert len(list(tmp_path.iterdir())) == 6


# ---- folders and names


def test_a_folder_is_there_only_when_it_is_whole(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "models") as folder:
        folder.mkdir()
        (folder / "weights").write_text("whole")
        assert other_files(tmp_path) == []
    assert (tmp_path / "models" / "weights").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


IMPOSSIBLE = ["a\0b", "a\ud800b", 5, None, b"bytes"]


@pytest.mark.parametrize("name", IMPOSSIBLE, ids=ascii)
@pytest.mark.parametrize("use", [lambda name: named_path(name, "out"), lambda name: made_folder(name, "out")])
def test_names_that_no_file_can_have(name: Any, use: Callable[[Any], Path]) -> None:
    with pytest.raises((ValueError, TypeError), match=r"^out must be a (name that a file can have|path), ") as caught:
        use(name)
    str(caught.value).encode()  # can be shown


@pytest.mark.parametrize(
    "use",
    [
        lambda name: named_path(name, "path"),
        lambda name: made_folder(name, "out"),
        lambda name: write(Path(name), "text"),
        lambda name: iw.sweep(len, ["a"], out=name),
        lambda name: iw.read_sweep(name),
        lambda name: iw.HeadMap([[0.5]]).save(name),
        lambda name: iw.HeadMap.load(name),
        lambda name: iw.ModelEdit.load(name),
        lambda name: iw.load_model(name),
        lambda name: iw.Workbench.load(name),
        lambda name: save_scene(Scene(1, 1, lambda sheet: None), Path(f"{name}.svg")),
        lambda name: checked_path(name, "the path"),
    ],
)
def test_the_home_of_a_user_who_is_not_there(
    use: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=r"^[\w' ]+ '~nobody-here/x(\.\w+)?' has no home folder .*: write it without ~$"
    ):
        use("~nobody-here/x")
    assert not any(tmp_path.iterdir())


def test_the_home_of_this_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert named_path("~/x", "path") == tmp_path / "x"
    assert named_path("x~", "path") == Path("x~")
