"""A table to read, sort, pick a row from and, where its owner allows it, write into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import traitlets

from interp_widgets.data.files import short
from interp_widgets.figures.labels import number
from interp_widgets.figures.static import Scene, table_scene
from interp_widgets.widgets.views.base import View, is_index, view_source, view_style

EditKind = Literal["text", "choice", "choices"]
"""What a cell accepts: one line of text, one of the column's options or none, or any number of them."""
RIGHT = {"align": "right"}
"""What a column of numbers has."""
_LONGEST = 2_000
"""Most characters in a cell."""


@dataclass(frozen=True)
class Edit:
    """A user's edit of a cell."""

    key: str
    """Name of the row in `Table.row_keys`; its index as text where rows have no names."""
    column: str
    """Label of the column."""
    value: Any
    """Text; for ``choices`` a tuple of options in the column's order."""


class Table(View):
    """Rows of text and numbers; a click or Enter picks a row, a click on a heading sorts.

    Sorting happens in the browser and never renumbers: ``selected`` is always an index into ``rows``. A column with
    ``edit`` is editable: double click, or Tab to the cell and Enter; Enter keeps the edit, Esc discards it
    (it is put into `rows` once the functions passed to `on_edit` have accepted it). Text never becomes HTML.

    Example:
        >>> table = Table(columns=[{"label": "token"}, {"label": "score", "align": "right"}], rows=[["a", 0.5]])
        >>> table.selected
        -1
    """

    _esm = view_source("table_editor", "table")
    _css = view_style("table")
    exported = True

    titled_by = ("caption", "columns")
    columns = traitlets.List(traitlets.Dict()).tag(sync=True)
    """One dict a column: ``label``, optionally ``align`` ("left" or "right"), ``title`` (tooltip), ``width`` (CSS),
    ``wrap`` (long text goes on in the next line), ``decimals`` (of its numbers, if not as many as they need), ``edit``
    ("text", "choice" or "choices") with ``options`` to choose from."""
    rows = traitlets.List(traitlets.List()).tag(sync=True)
    """One list a row, as long as ``columns``: text, numbers, booleans or None (shown as a dash)."""
    row_keys = traitlets.List(traitlets.Unicode()).tag(sync=True)
    """A key for every row, so that an edit reaches the right row even if the rows have changed
    since; empty: rows are identified by their index."""
    selected = traitlets.Int(-1).tag(sync=True, from_page=lambda table, value: is_index(value, len(table.rows)))
    """Index of the picked row in ``rows``, -1 for none."""
    caption = traitlets.Unicode("").tag(sync=True)
    """One line above the table, also its name for screen readers."""
    instruction = traitlets.Unicode("").tag(sync=True)
    """What a click or an edit does, shown after the caption of a filled table; not in a saved page, where it does
    nothing."""
    empty = traitlets.Unicode("Nothing to show yet.").tag(sync=True)
    """The sentence shown when there are no rows."""
    height = traitlets.Int(280).tag(sync=True)
    """Largest height in CSS pixels; longer tables scroll under a fixed heading."""

    @property
    def is_empty(self) -> bool:
        return not self.rows

    @property
    def wording(self) -> str:
        return " · ".join([self.caption, *(str(column.get("label", "")) for column in self.columns)])

    def __init__(self, *, on_error: Callable[[Exception], object] | None = None, **traits: Any) -> None:
        self._on_edit: list[Callable[[Edit], object]] = []
        self.on_error = on_error
        """Shows why an edit was rejected; None: the error is raised."""
        super().__init__(**traits)
        self.on_msg(self._received)

    def on_edit(self, handler: Callable[[Edit], object]) -> None:
        """Call `handler(edit)` when a cell has been edited; if it raises, the cell is reset."""
        self._on_edit.append(handler)

    def _received(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if content.get("kind") != "edit" or not isinstance(content.get("key"), str):
            return
        if not self._on_edit:  # no table that can be edited
            self.send({"kind": "refused"})
            return
        try:
            self._edited(content)
        except Exception as error:
            self.send({"kind": "refused"})
            if self.on_error is None:
                raise
            self.on_error(error)

    def _edited(self, content: dict[str, Any]) -> None:
        """Validate an edit from the browser, pass it to the handlers and show it."""
        label, written = content.get("column"), content.get("value")
        column = next((column for column in self.columns if column.get("label") == label), None)
        if column is None:
            raise ValueError(
                f"the table has no column {short(repr(label))} any more: {short(repr(written))} is not kept"
            )
        value = _fitted(column, written)
        if value is None:
            raise ValueError(f"the column {label!r} does not take {short(repr(written))}: it is not kept")
        edit, before = Edit(content["key"], str(label), value), self.rows
        for handler in self._on_edit:
            handler(edit)
        row = self._row(edit.key)
        if self.rows is before and row is not None and column in self.columns:  # no handler has redrawn the table
            cells = [list(cells) for cells in self.rows]
            cells[row][self.columns.index(column)] = ", ".join(value) if isinstance(value, tuple) else value
            self.rows = cells

    def _row(self, key: str) -> int | None:
        """The current index of a row."""
        names = self.row_keys or [str(index) for index in range(len(self.rows))]
        return names.index(key) if key in names else None

    @traitlets.validate("columns")
    def _columns_are_known(self, proposal: Any) -> Any:
        for column in proposal["value"]:
            kind = column.get("edit")
            if kind is not None and kind not in get_args(EditKind):
                raise ValueError(f"edit must be one of {', '.join(get_args(EditKind))}, got {kind!r}")
            if kind in ("choice", "choices") and not column.get("options"):
                raise ValueError(f"the column {column.get('label')!r} needs options to choose from")
        return proposal["value"]

    @traitlets.validate("rows")
    def _rows_fit_the_columns(self, proposal: Any) -> Any:
        for index, row in enumerate(proposal["value"]):
            if len(row) != len(self.columns):
                raise ValueError(f"row {index} has {len(row)} cells, the table has {len(self.columns)} columns")
        if self.selected >= len(proposal["value"]):
            self.selected = -1
        return proposal["value"]

    def scene(self, *, most: int | None = None) -> Scene:
        """The table, or its first rows, as a static picture with columns as wide as their content."""
        names, rows, title = [str(column.get("label", "")) for column in self.columns], self.rows[:most], self.caption
        if len(rows) < len(self.rows):
            title += f" (the first {len(rows)} of {len(self.rows):,})"
        lines = [names, *([number(cell) if isinstance(cell, float) else str(cell) for cell in row] for row in rows)]
        widths = [16 + 6.8 * min(40, max(len(line[index]) for line in lines)) for index in range(len(names))]
        right = [index for index, column in enumerate(self.columns) if column.get("align") == "right"]
        return table_scene(list(zip(names, widths, strict=True)), rows, title=title, right=right)

    def __repr__(self) -> str:
        return f"Table({len(self.rows)} rows × {len(self.columns)} columns)"


def _fitted(column: dict[str, Any], value: Any) -> str | tuple[str, ...] | None:
    """An edit converted to the column's type; None if it is invalid."""
    kind, options = column.get("edit"), list(column.get("options", ()))
    if kind == "choices":
        wanted = value if isinstance(value, list) else None
        if wanted is None or any(option not in options for option in wanted):
            return None
        return tuple(option for option in options if option in wanted)
    if not isinstance(value, str) or len(value) > _LONGEST:
        return None
    if kind == "choice":
        return value if value in ("", *options) else None
    return " ".join(value.split()) if kind == "text" else None
