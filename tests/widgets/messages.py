"""What a browser may send: a page that is behind the kernel, or none that we wrote."""

from __future__ import annotations

import logging
import random
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ipywidgets as W
import pytest
from traitlets import TraitError

from interp_widgets.widgets.base import lifetime

NAN = float("nan")
ODD: tuple[Any, ...] = (
    50, 10**9, 2**70, -1, -2, -(10**12), 0, 1, 2, 3, 1e308, -1e308, 0.5, -0.0, True, False, NAN, float("inf"), None, "",
    "x", "ł\ud800", "a\0b", "\n", "9" * 5000, "50", [], [0], [0, 1], [50, 50], [1e308, 0], [NAN, NAN], [True, 0],
    [2**70, 1], [[0, 1]], [[5, 2]], [[0, 10**9]], [["a", "b"]], [None], {}, {"a": 1}, [0, 0, 1, 1], [0, 0, 10**9, 1],
    ["Paris"], "A", "difference",
)  # fmt: skip
"""Values for a trait or in a message."""

SET_BY_PAGES = (
    "value", "selected", "cross", "pinned", "hovered", "brush", "marks", "window", "index", "selected_index", "visible",
)  # fmt: skip
RAW = re.compile(
    r"^[A-Za-z_]*(Error|Exception|Exit|Interrupt|Iteration)\b|recursion|not subscriptable|out of bounds for axis"
    r"|object has no|unsupported operand|not iterable|unhashable|cannot convert|not supported between|broadcast"
    r"|must be real number|list index|invalid literal|ambiguous|unpack|codec can't"
)
"""Sentences that are Python's or numpy's, not ours."""
PRESSED = ("Run", "Annotate", "Train", "Start", "Save file")
"""Buttons whose work takes long, or writes files."""


def odd_messages(panel: Any, seed: str, count: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Widgets of a panel, as they are then, and a message for each."""
    rng = random.Random(seed)
    for _ in range(count):
        widgets = list(dict.fromkeys(lifetime.descendants(panel)))
        views = [one for one in widgets if not type(one).__module__.startswith("ipywidgets")]
        widget = rng.choice(views if views and rng.random() < 0.6 else widgets)
        if getattr(widget, "description", "") in PRESSED:
            continue
        value = rng.choice(ODD)
        if rng.random() < 0.15:
            contents: tuple[Any, ...] = (
                value, {"kind": value}, {"event": value}, {"kind": "events", "contents": value},
                {"kind": "events", "contents": [value]},
                {"kind": "edit", "key": value, "column": value, "value": value},
            )  # fmt: skip
            yield widget, {"method": "custom", "content": rng.choice(contents)}
        else:
            own = [name for name in SET_BY_PAGES if name in widget.keys]
            name = rng.choice(own) if own and rng.random() < 0.9 else rng.choice(sorted(set(widget.keys) - {"layout"}))
            if name not in ("children", "style", "_dom_classes"):
                yield widget, {"method": "update", "state": {name: value}, "buffer_paths": []}


def send(widget: W.Widget, message: dict[str, Any]) -> None:
    widget._handle_msg({"content": {"data": message}, "buffers": []})


@contextmanager
def nothing_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """ipywidgets logs what a message raises: its own controls may refuse one, but no handler of ours fails."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        yield
    for record in caplog.records:
        frames = traceback.extract_tb(record.exc_info[2]) if record.exc_info else ()
        ours = any("interp_widgets" in frame.filename for frame in frames)
        assert not ours or isinstance(record.exc_info[1], TraitError), record.getMessage()
