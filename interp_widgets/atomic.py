"""Files that are written whole or not at all (`whole_file`, `whole_folder`), and where they are to be (`named_path`).

A file is written in a hidden folder beside it, its draft, which its process keeps locked. The drafts of processes that
were killed are removed at the next write into the same folder, and `other_files` does not list any draft.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock

_DRAFT = re.compile(r"\.interp_widgets-[0-9a-f]{16}")
"""Name of a draft's folder, and of the lock file in it."""
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Errors of a disk, whatever is written."""
_NUMBERED = re.compile(r"\((?:os error|errno) (\d+)\)|\[[Ee]rrno (\d+)\]")
"""The number of a system's error in the messages of libraries: Rust's, Arrow's, Python's."""


def named_path(path: str | os.PathLike[str], argument: str) -> Path:
    """The path that a user has typed or passed, with ``~`` expanded; ValueError if no file can have that name, or if it
    starts in the home folder of somebody who has none here.

    >>> named_path("notes\\0.txt", "path")
    Traceback (most recent call last):
    ValueError: path must be a name that a file can have, got 'notes\\x00.txt'
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(text := os.fspath(path), str):
        raise TypeError(f"{argument} must be a path, as a str or pathlib.Path, got an object of type {type(path)}")
    try:
        possible = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:  # half a surrogate pair
        possible = False
    if not possible:
        raise ValueError(f"{argument} must be a name that a file can have, got {text[:200]!a}")
    return Path(at_home(text, argument))


def at_home(path: str, argument: str) -> str:
    """A path with ``~`` expanded; ValueError where it stands for no home folder."""
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        raise ValueError(f"{argument} {path[:200]!a} has no home folder to start in: write it without ~")
    return expanded


def made_folder(path: str | os.PathLike[str], argument: str) -> Path:
    """The folder at a path, made where there is none; ValueError, which names the argument, where a file is."""
    folder = named_path(path, argument)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(f"{argument} must be a folder, got {folder}, where a file is: give another one") from error
    except OSError as error:
        raise OSError(error.errno, f"{folder} cannot be made: {error.strerror}") from error
    return folder


def other_files(folder: Path) -> list[Path]:
    """What a folder holds besides drafts, sorted by name."""
    return sorted(path for path in folder.iterdir() if not _DRAFT.fullmatch(path.name))


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path on the same disk to write to; at the end of the block its file takes the place of ``path``.

    Until then, and after any error in the block, what was at ``path`` stays as it was, and the temporary file is
    removed; if the process is killed, at the next write into the folder. The new file has the permissions of the one
    that it replaces. A symbolic link stays, and the file that it points to is replaced.

    Raises:
        OSError: ``path`` cannot be written: its folder is missing or protected, it is a folder, it is read-only, the
            disk is full.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with whole_file(Path(folder) / "notes.txt") as draft:
    ...         _ = draft.write_text("done")
    ...     (Path(folder) / "notes.txt").read_text()
    'done'
    """
    target = Path(os.path.realpath(named_path(path, "the name of a file")))
    with _draft_folder(target.parent, path, lambda: _mode(target)) as (folder, mode):
        draft = folder / target.name
        allowed = 0o666 if mode is None else mode | stat.S_IRUSR | stat.S_IWUSR
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, allowed))  # less what the umask takes away
        mode = stat.S_IMODE(draft.stat().st_mode) if mode is None else mode
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.chmod(mode)  # some libraries put a file of their own in the place of the draft
        draft.replace(target)


@contextlib.contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a folder whole or not at all; it must not be there yet. The block makes the folder and writes the files."""
    target = Path(os.path.realpath(named_path(path, "the name of a folder")))
    with _draft_folder(target.parent, path, lambda: None) as (folder, _):
        yield folder / target.name
        (folder / target.name).replace(target)


@contextlib.contextmanager
def _draft_folder(
    parent: Path, path: str | os.PathLike[str], mode_of_old: Callable[[], int | None]
) -> Iterator[tuple[Path, int | None]]:
    """A locked folder for a draft, removed at the end, and the permissions of the file that it replaces."""
    try:
        mode = mode_of_old()
        _remove_dead_drafts(parent)
        lock = _locked_draft(parent)
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror}") from error
    folder = Path(lock.lock_file).parent
    try:
        with disk_errors(path):
            yield folder, mode
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


@contextlib.contextmanager
def disk_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Any library's error about a full or broken disk becomes an OSError in one sentence that names ``path``."""
    try:
        yield
    except Exception as error:
        if (number := _disk_error(error)) is None:
            raise
        advice = "" if number == errno.EIO else ": make room there or give another path"
        raise OSError(number, f"{path} cannot be written: {os.strerror(number)}{advice}") from error


def _disk_error(error: BaseException) -> int | None:
    """The number of the disk's error that an error is about, or was raised after; None if there is none."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        if isinstance(one, OSError) and one.errno in _UNWRITABLE:
            return one.errno
        for numbers in _NUMBERED.findall(str(one)):
            if (number := int("".join(numbers))) in _UNWRITABLE:
                return number
        one = one.__cause__ or one.__context__
    return None


def _locked_draft(parent: Path) -> BaseFileLock:
    """The lock in the folder of a new draft, which is locked until this process ends or releases it."""
    while True:
        folder = parent / f".interp_widgets-{secrets.token_hex(8)}"
        folder.mkdir(mode=0o700)
        lock = FileLock(folder / folder.name, timeout=0, thread_local=False)
        with contextlib.suppress(FileNotFoundError, FileExistsError, TimeoutError):  # another took it for a dead one
            lock.acquire()
            if os.path.exists(lock.lock_file):
                return lock
            lock.release()


def _remove_dead_drafts(parent: Path) -> None:
    """Remove the drafts of processes that were killed: nothing holds their locks any more."""
    with os.scandir(parent) as entries:
        names = [entry.name for entry in entries if _DRAFT.fullmatch(entry.name)]
    for name in names:
        folder = parent / name
        with contextlib.suppress(OSError):  # its process lives, or it belongs to another user
            if not folder.is_symlink():
                with FileLock(folder / name, timeout=0, thread_local=False):
                    shutil.rmtree(folder)


def _mode(target: Path) -> int | None:
    """Permissions of a file that may be replaced; None where there is none; an OSError where it may not."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is no regular file")
    with target.open("rb+"):  # refuses a folder and a read-only file
        pass
    return stat.S_IMODE(mode)
