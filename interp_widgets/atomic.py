"""`whole_file`: a file is written whole or not at all; `made_folder`: where files are to be."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path


def made_folder(path: str | os.PathLike[str], argument: str) -> Path:
    """The folder at a path, made where there is none; ValueError, which names the argument, where a file is."""
    folder = Path(path).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(f"{argument} must be a folder, got {folder}, where a file is: give another one") from error
    return folder


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path in the same folder to write to; at the end of the block its file takes the place of ``path``.

    Until then, and after any error in the block, what was at ``path`` stays as it was, and the temporary file is
    removed. The new file has the permissions of the one that it replaces. A symbolic link stays, and the file that it
    points to is replaced.

    Raises:
        OSError: ``path`` cannot be written: its folder is missing or protected, it is a folder, it is read-only.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with whole_file(Path(folder) / "notes.txt") as draft:
    ...         _ = draft.write_text("done")
    ...     (Path(folder) / "notes.txt").read_text()
    'done'
    """
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{secrets.token_hex(8)}{target.suffix}")
    try:
        mode = _mode(target)
        allowed = 0o666 if mode is None else mode | stat.S_IRUSR | stat.S_IWUSR
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, allowed))  # less what the umask takes away
    except OSError as error:
        raise OSError(error.errno, f"{path} cannot be written: {error.strerror}") from error
    try:
        mode = stat.S_IMODE(draft.stat().st_mode) if mode is None else mode
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        draft.chmod(mode)  # some libraries put a file of their own in the place of the draft
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


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
