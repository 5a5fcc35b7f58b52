"""Closing what a panel opened, also where making it fails, and keeping one live panel per notebook cell.

A panel, stack or screen belongs to the cell in which it was made, wherever it is displayed: when that cell is run
again and makes another, it is closed. Outside notebooks, and where the front end does not send the id of the cell, it
stays open until `close`. A closed one no longer holds its models, so the history of a notebook does not either.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import ipywidgets as W

_log = logging.getLogger(__name__)
_in_cell: dict[str, tuple[str, list[weakref.ref[Any]]]] = {}
"""Cell id → (id of the execution that opened them, the panels and workbenches)."""
_local = threading.local()


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
    parts = _parts(widget)
    widget.close()
    for part in parts:
        part.close()


def close_all(widgets: Iterable[Any]) -> None:
    """Close widgets and what is inside them."""
    for widget in tuple(widgets):
        close_tree(widget)
        close_one(widget)


def _parts(widget: Any) -> list[W.Widget]:
    """The layout and the style of a widget."""
    made = getattr(widget, "_trait_values", {})  # accessing a layout that is not there would make one
    return [made[name] for name in ("layout", "style") if isinstance(made.get(name), W.Widget)]


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


def register(owner: Any) -> None:
    """Note the cell of a panel or a workbench, and end those that an earlier execution of the same cell opened."""
    here = running_cell()
    if here is None:
        return
    cell, execution = here
    before, owners = _in_cell.get(cell, (execution, []))
    earlier: list[weakref.ref[Any]] = []
    if before != execution:
        earlier, owners = owners, []
    owners.append(weakref.ref(owner))
    _in_cell[cell] = (execution, owners)  # first: closing takes the earlier ones out of the list that stands here
    for old in earlier:
        if (one := old()) is not None:
            one.replaced()


def unregister(owner: Any) -> None:
    """Forget a closed panel."""
    for cell, (_, owners) in list(_in_cell.items()):
        owners[:] = [one for one in owners if one() not in (None, owner)]
        if not owners:
            del _in_cell[cell]


@contextmanager
def making(owner: Any = None) -> Iterator[None]:
    """Make something of widgets, all or nothing: if it fails, whatever this thread has made in between is closed.

    If it succeeds, the owner closes them with itself, also those that are on no screen.
    """
    made: list[W.Widget] = []
    lists = _local.__dict__.setdefault("lists", [])
    lists.append(made)
    try:
        yield
    except BaseException:
        for widget in [owner] * (owner is not None) + _not_outlasting(made):
            try:
                close_one(widget)
            except Exception:  # the first error says what went wrong
                _log.exception("%s cannot be closed", type(widget).__name__)
        raise
    else:
        if owner is not None:
            owner.own_widgets.update(_not_outlasting(made))
    finally:
        lists[:] = [one for one in lists if one is not made]


def _not_outlasting(made: list[W.Widget]) -> list[W.Widget]:
    """The widgets that end with whatever they were made for."""
    shared = [one for one in made if getattr(one, "outlasts", False)]
    shared += [part for one in shared for part in _parts(one)]
    return [one for one in made if not any(one is other for other in shared)]


_earlier = W.Widget._widget_construction_callback


def _constructed(widget: W.Widget) -> None:
    for made in _local.__dict__.get("lists", ()):
        made.append(widget)
    if callable(_earlier):
        _earlier(widget)


W.Widget.on_widget_constructed(_constructed)
