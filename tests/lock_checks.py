"""Checks that the whole suite makes of locks: their order, and that nothing is reported while a model is held."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator

from interp_widgets import locks
from interp_widgets.locks import Rank, RankedLock, held_locks

EXCLUSIVE = ("compare_debiasing", "Debiasing.compute")
"""They hold the model while they measure it with an edit of its weights, so that no other thread computes with it."""
refusals: list[str] = []
"""What was refused in any thread, with the way there: a handler's exception only shows in its panel."""


def check_locks() -> None:
    """Refuse a lock before its turn even if it is free, and reports of analyses that hold a model's lock."""
    from interp_widgets.analysis._core.run import RunOptions

    locks.strict = True
    wait, report = RankedLock._wait, RunOptions.report

    def noted_wait(self: RankedLock, last: RankedLock | None) -> bool:
        try:
            return wait(self, last)
        except RuntimeError as error:
            _note(str(error))
            raise

    def checked_report(self: RunOptions, done: int, total: int) -> None:
        held = [lock.name for lock in held_locks() if lock.rank == Rank.MODEL]
        if self.progress is not None and held and not set(EXCLUSIVE).intersection(_callers()):
            _note(f"progress is reported while the lock of {held[0]} is held")
        report(self, done, total)

    RankedLock._wait = noted_wait  # type: ignore[method-assign]
    RunOptions.report = checked_report  # type: ignore[method-assign]


def _note(what: str) -> None:
    refusals.append("".join([what, "\n", *traceback.format_stack()[-14:-2]]))


def _callers() -> Iterator[str]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_qualname
        frame = frame.f_back  # type: ignore[assignment]
