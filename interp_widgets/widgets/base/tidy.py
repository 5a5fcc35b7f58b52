"""Closing what a panel opened, and keeping one live panel per notebook cell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ipywidgets as W

_in_cell: dict[str, tuple[str, list[Any]]] = {}
"""Cell id → (id of the execution that opened the panels, the panels)."""


def descendants(widget: Any) -> Iterator[Any]:
    """The widgets inside a box, however deep, innermost first."""
    for child in getattr(widget, "children", ()) or ():
        if isinstance(child, W.Widget):
            yield from descendants(child)
            yield child


def close_tree(widget: Any) -> None:
    """Close the widgets inside a box with their layouts and styles, which ipywidgets leaves open."""
    for child in list(descendants(widget)):
        close_one(child)


def close_one(widget: Any) -> None:
    """Close one widget with its layout and style; closing twice does nothing."""
    if getattr(widget, "closed", False):
        return  # a panel that has closed itself: accessing its layout would make a new one
    parts = [getattr(widget, name, None) for name in ("layout", "style")]
    widget.close()
    for part in parts:
        if isinstance(part, W.Widget):
            part.close()


def running_cell() -> tuple[str, str] | None:
    """Id of the notebook cell that is being executed and of this execution, or None outside a notebook."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None or not hasattr(shell, "get_parent"):
        return None
    parent = shell.get_parent() or {}
    cell = parent.get("metadata", {}).get("cellId")
    execution = parent.get("header", {}).get("msg_id")
    return (str(cell), str(execution)) if cell and execution else None


def register(panel: Any) -> None:
    """Note the panel's cell, and close the panels that an earlier execution of the same cell opened."""
    here = running_cell()
    if here is None:
        return
    cell, execution = here
    before, panels = _in_cell.get(cell, (execution, []))
    if before != execution:
        for old in list(panels):
            old.close()
        panels = []
    panels.append(panel)
    _in_cell[cell] = (execution, panels)


def unregister(panel: Any) -> None:
    """Forget a closed panel."""
    for cell, (_, panels) in list(_in_cell.items()):
        if any(other is panel for other in panels):
            panels[:] = [other for other in panels if other is not panel]
            if not panels:
                del _in_cell[cell]
