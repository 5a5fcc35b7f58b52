"""Small parts that the controls of several panels are made of."""

from __future__ import annotations

from typing import Any

import ipywidgets as W
import traitlets as T


class Number(T.Float):
    """A trait for a number; a NaN, which no bound keeps out, is refused."""

    def validate(self, obj: Any, value: Any) -> float:
        found: float = super().validate(obj, value)
        if found != found:
            raise T.TraitError(f"{self.name} of {type(obj).__name__} must be a number, got nan")
        return found


def row(*children: Any) -> W.HBox:
    """Controls in a row that wraps."""
    box = W.HBox(list(children))
    box.add_class("iw-row")
    return box


def shown_if(widget: Any, condition: bool) -> None:
    """Show or hide a control."""
    (widget.remove_class if condition else widget.add_class)("iw-hidden")
