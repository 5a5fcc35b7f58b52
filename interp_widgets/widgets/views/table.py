"""A table to read, sort and pick a row from."""

from __future__ import annotations

from typing import Any

import traitlets

from interp_widgets.widgets.views.base import View, view_source, view_style


class Table(View):
    """Rows of text and numbers; a click or Enter picks a row, a click on a heading sorts.

    Sorting happens in the browser and never renumbers: ``selected`` is always an index into ``rows``.

    Example:
        >>> table = Table(columns=[{"label": "token"}, {"label": "score", "align": "right"}], rows=[["a", 0.5]])
        >>> table.selected
        -1
    """

    _esm = view_source("table")
    _css = view_style("table")
    exported = True

    columns = traitlets.List(traitlets.Dict()).tag(sync=True)
    """One dict a column: ``label``, optionally ``align`` ("left" or "right"), ``title`` (tooltip), ``width`` (CSS)."""
    rows = traitlets.List(traitlets.List()).tag(sync=True)
    """One list a row, as long as ``columns``: text, numbers, booleans or None (shown as a dash)."""
    selected = traitlets.Int(-1).tag(sync=True)
    """Index of the picked row in ``rows``, -1 for none."""
    caption = traitlets.Unicode("").tag(sync=True)
    """One line above the table, also its name for screen readers."""
    empty = traitlets.Unicode("Nothing to show yet.").tag(sync=True)
    """The sentence shown when there are no rows."""
    height = traitlets.Int(280).tag(sync=True)
    """Largest height in CSS pixels; longer tables scroll under a fixed heading."""

    @traitlets.validate("rows")
    def _rows_fit_the_columns(self, proposal: Any) -> Any:
        for index, row in enumerate(proposal["value"]):
            if len(row) != len(self.columns):
                raise ValueError(f"row {index} has {len(row)} cells, the table has {len(self.columns)} columns")
        if self.selected >= len(proposal["value"]):
            self.selected = -1
        return proposal["value"]

    def __repr__(self) -> str:
        return f"Table({len(self.rows)} rows × {len(self.columns)} columns)"
