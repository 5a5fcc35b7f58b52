"""The table view without a browser."""

from __future__ import annotations

from typing import Any

import pytest

from interp_widgets.widgets.views import Table
from interp_widgets.widgets.views.table import Edit

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


# ---- writing into cells

LEVELS = ["syntax", "semantics"]
SCENES = ["writing", "coding", "math"]
OPEN = [
    {"label": "n"},
    {"label": "description", "edit": "text"},
    {"label": "level", "edit": "choice", "options": LEVELS},
    {"label": "scenes", "edit": "choices", "options": SCENES},
]
ROWS = [[0, "", "", ""], [1, "colours", "semantics", "math"]]


def written(wire: Any, table: Table, key: str, column: str, value: Any) -> None:
    wire.event(table, kind="edit", key=key, column=column, value=value)


def refused(wire: Any) -> int:
    """How many edits the browser was told to take back."""
    return sum(data.get("content") == {"kind": "refused"} for _, kind, data in wire.sent if kind == "comm_msg")


def test_what_is_written_reaches_python_and_the_row(wire: Any) -> None:
    table = Table(columns=OPEN, rows=ROWS)
    seen: list[Edit] = []
    table.on_edit(seen.append)
    written(wire, table, "0", "description", "  fruit \n and  food ")
    written(wire, table, "0", "level", "syntax")
    written(wire, table, "1", "scenes", ["math", "writing"])
    written(wire, table, "1", "level", "")
    assert seen == [
        Edit("0", "description", "fruit and food"),
        Edit("0", "level", "syntax"),
        Edit("1", "scenes", ("writing", "math")),
        Edit("1", "level", ""),
    ]
    assert table.rows == [[0, "fruit and food", "syntax", ""], [1, "colours", "", "writing, math"]]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("n", "7"),
        ("nothing", "7"),
        ("description", 7),
        ("description", None),
        ("description", "x" * 2001),
        ("description", ["a"]),
        ("level", "phonics"),
        ("scenes", "math"),
        ("scenes", ["math", "cooking"]),
        ("scenes", [["math"]]),
    ],
)
def test_what_does_not_fit_its_column_is_refused(wire: Any, column: str, value: Any) -> None:
    errors: list[Exception] = []
    table = Table(columns=OPEN, rows=ROWS, on_error=errors.append)
    seen: list[Edit] = []
    table.on_edit(seen.append)
    written(wire, table, "0", column, value)
    assert seen == []
    assert table.rows == ROWS
    assert refused(wire) == 1
    (error,) = errors
    assert str(error).startswith((f"the column {column!r} does not take", f"the table has no column {column!r}"))
    assert len(str(error)) < 500
    written(wire, table, "0", "level", "syntax")
    assert (len(seen), len(errors), refused(wire)) == (1, 1, 1)


def test_an_edit_of_a_column_that_went_meanwhile_is_said_to_be_lost(wire: Any) -> None:
    errors: list[Exception] = []
    table = Table(columns=OPEN, rows=ROWS, on_error=errors.append)
    table.on_edit(lambda _: pytest.fail("there is nothing to write into"))
    with table.hold_sync():
        table.rows = []
        table.columns, table.rows = OPEN[:1], [[0], [1]]
    written(wire, table, "0", "description", "fruit")
    assert [str(error) for error in errors] == ["the table has no column 'description' any more: 'fruit' is not kept"]
    assert refused(wire) == 1, "the browser shows again what there is"
    assert table.rows == [[0], [1]]


def test_an_edit_goes_to_the_row_of_its_name(wire: Any) -> None:
    table = Table(columns=OPEN, rows=ROWS, row_keys=["a", "b"])
    seen: list[Edit] = []
    table.on_edit(seen.append)
    with table.hold_sync():
        table.rows, table.row_keys = ROWS[::-1], ["b", "a"]
    written(wire, table, "a", "description", "mine")
    assert table.rows[1][1] == "mine"
    with table.hold_sync():
        table.rows, table.row_keys = ROWS, ["c", "d"]
    written(wire, table, "a", "description", "late")
    assert seen[-1] == Edit("a", "description", "late"), "its owner knows where it belongs"
    assert table.rows == ROWS


def test_a_refused_edit_leaves_the_cell_as_it_was(wire: Any) -> None:
    table = Table(columns=OPEN, rows=ROWS)

    def refuse(_: Edit) -> None:
        raise ValueError("no")

    table.on_edit(refuse)
    with pytest.raises(ValueError, match="no"):
        table._received(table, {"kind": "edit", "key": "0", "column": "description", "value": "x"}, [])
    assert table.rows == ROWS
    assert refused(wire) == 1, "the browser takes back what it has shown"
    errors: list[Exception] = []
    table.on_error = errors.append
    written(wire, table, "0", "description", "x")
    assert [str(error) for error in errors] == ["no"]


def test_an_owner_that_draws_anew_has_the_last_word(wire: Any) -> None:
    table = Table(columns=OPEN, rows=ROWS)
    table.on_edit(lambda edit: setattr(table, "rows", [[0, edit.value.upper(), "", ""]]))
    written(wire, table, "0", "description", "loud")
    assert table.rows == [[0, "LOUD", "", ""]]


@pytest.mark.parametrize("column", [{"label": "x", "edit": "html"}, {"label": "x", "edit": "choice"}])
def test_columns_that_cannot_be_written_into_are_an_error(wire: Any, column: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"edit must be one of|needs options"):
        Table(columns=[column])


def test_a_saved_page_is_read_only(wire: Any, tmp_path: Any) -> None:
    from interp_widgets.widgets.base.export import html_page

    page = html_page("t", [Table(columns=OPEN, rows=[[0, "</script><b>", "", ""]])])
    assert '"writable": false' in page
    assert "</script><b>" not in page
