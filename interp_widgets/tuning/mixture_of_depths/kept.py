"""Checkpoints that a tuning keeps of its own, so that a killed kernel loses less than a minute."""

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
"""Between two checkpoints."""
MOST = 8
"""Tunings of which checkpoints are kept at the same time; the oldest give way."""


class Kept:
    """The checkpoints of one tuning: one folder, which is replaced as a whole."""

    def __init__(self, root: Path | None, base_hash: str, settings: Mapping[str, Any]) -> None:
        text = json.dumps([base_hash, dict(settings)], sort_keys=True)
        self._root, self._key = root, hashlib.sha256(text.encode()).hexdigest()[:16]
        self._from: Path | None = None
        self._written = time.monotonic()
        self.folder = None if root is None else root / f"{self._key}-{secrets.token_hex(4)}"
        """Where they are written to; None where none are kept."""

    def last(self, steps: int) -> MixtureState | None:
        """The checkpoint of most steps, up to so many, that ended runs of the same settings have left."""
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
        """Write a checkpoint; where that fails the tuning goes on without any, and a warning says so."""
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
        for old in [one for one in self._folders() if one != self.folder][: -(MOST - 1)]:
            shutil.rmtree(old, ignore_errors=True)
        self._written = time.monotonic()
        return True

    def remove(self) -> None:
        """Remove what the finished tuning has left, and what it went on from."""
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
    """Steps after which a run can go on; 0 where it cannot."""
    return len(state.training["curves.task"]) if state is not None and state.training else 0
