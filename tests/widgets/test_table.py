"""The table view without a browser."""

from __future__ import annotations

from typing import Any

import pytest

from interp_widgets.widgets.views import Table

COLUMNS = [{"label": "token"}, {"label": "score", "align": "right"}]


def test_a_picked_row_reaches_python(wire: Any) -> None:
    table = Table(columns=COLUMNS, rows=[["a", 1.0], ["b", None]])
    seen: list[int] = []
    table.observe(lambda change: seen.append(change.new), "selected")
    wire.type(table, selected=1)
    assert seen == [1]


def test_rows_must_fit_the_columns(wire: Any) -> None:
    table = Table(columns=COLUMNS, rows=[["a", 1.0]])
    with pytest.raises(ValueError, match="row 1 has 1 cells, the table has 2 columns"):
        table.rows = [["a", 1.0], ["b"]]
    assert table.rows == [["a", 1.0]]


def test_fewer_rows_let_go_of_the_selection(wire: Any) -> None:
    table = Table(columns=COLUMNS, rows=[["a", 1.0], ["b", 2.0]], selected=1)
    table.rows = [["a", 1.0]]
    assert table.selected == -1


def test_an_unknown_keyword_is_an_error(wire: Any) -> None:
    with pytest.raises(TypeError, match="colums"):
        Table(colums=COLUMNS)
