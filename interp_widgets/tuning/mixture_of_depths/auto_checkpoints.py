"""Automatic checkpoints of a tuning run, so that a killed kernel loses less than a minute."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from interp_widgets.models import LoadError
from interp_widgets.models.mixture_of_depths.checkpoint import HEADER, MixtureState, load_state, save_state

SECONDS = 45.0
"""Seconds between two checkpoints."""
MOST = 8
"""Number of tuning runs whose checkpoints are kept; the oldest are removed."""


class AutoCheckpoints:
    """The checkpoints of one tuning run: one folder, which is replaced as a whole."""

    def __init__(self, root: Path | None, base_hash: str, settings: Mapping[str, Any]) -> None:
        text = json.dumps([base_hash, dict(settings)], sort_keys=True)
        self._root, self._key = root, hashlib.sha256(text.encode()).hexdigest()[:16]
        self._from: Path | None = None
        self._written = time.monotonic()
        self.folder = None if root is None else root / f"{self._key}-{secrets.token_hex(4)}"
        """Folder of the checkpoints; None if none are kept."""

    def last(self, steps: int) -> MixtureState | None:
        """The checkpoint with most steps, at most ``steps``, from an ended run with the same settings."""
        best: MixtureState | None = None
        for folder in self._folders(self._key):
            try:
                state = load_state(folder)
            except LoadError:
                continue  # damaged since
            if _steps(best) < _steps(state) <= steps:
                best, self._from = state, folder
        return best

    def step_made(self, state: Callable[[], MixtureState]) -> None:
        """Write a checkpoint if the last one is old enough."""
        if self.folder is not None and time.monotonic() - self._written >= SECONDS:
            self.write(state())

    def write(self, state: MixtureState) -> bool:
        """Write a checkpoint; if that fails, the tuning goes on without checkpoints and warns."""
        if self._root is None or self.folder is None:
            return False
        try:
            save_state(state, self.folder)
        except OSError as error:
            warnings.warn(
                f"the tuning goes on without checkpoints, which cannot be written to {self._root} ({error}): "
                "give another folder as checkpoints=, or None for none",
                stacklevel=2,
            )
            self.folder = None
            return False
        for outdated in [folder for folder in self._folders() if folder != self.folder][: -(MOST - 1)]:
            shutil.rmtree(outdated, ignore_errors=True)
        self._written = time.monotonic()
        return True

    def remove(self) -> None:
        """Remove the checkpoints of the finished run, and the one that it continued from."""
        for folder in (self.folder, self._from):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _folders(self, key: str = "") -> list[Path]:
        """The folders of checkpoints, the oldest first."""
        if self._root is None or not self._root.is_dir():
            return []
        headers = [path for path in self._root.glob(f"{key}*-*/{HEADER}") if path.is_file()]
        return [path.parent for path in sorted(headers, key=lambda path: path.stat().st_mtime_ns)]


def _steps(state: MixtureState | None) -> int:
    """Number of steps from which a run can be resumed; 0 if it cannot."""
    return len(state.training["curves.task"]) if state is not None and state.training else 0
