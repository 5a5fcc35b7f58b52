"""Checks that the whole suite makes of locks: their order, and that nothing is reported while a model is held."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from interp_widgets import locks

EXCLUSIVE = ("compare_debiasing", "Debiasing.compute")
"""They hold the model while they measure it with an edit of its weights, so that no other thread computes with it."""


def check_locks() -> None:
    """Refuse a lock before its turn even if it is free, and reports of analyses that hold a model's lock."""
    from interp_widgets.analysis._core.run import RunOptions

    locks.strict = True
    report = RunOptions.report

    def checked(self: RunOptions, done: int, total: int) -> None:
        held = [lock.name for lock in locks.held_locks() if lock.rank == locks.Rank.MODEL]
        if held and not set(EXCLUSIVE).intersection(_callers()):
            raise RuntimeError(f"progress is reported while the lock of {held[0]} is held")
        report(self, done, total)

    RunOptions.report = checked  # type: ignore[method-assign]


def _callers() -> Iterator[str]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_qualname
        frame = frame.f_back  # type: ignore[assignment]
