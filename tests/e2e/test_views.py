"""The views in JupyterLab: pointer, keys, themes, sizes, hostile text, Bokeh both ways, pages saved to a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect

STRIP = """
import numpy as np
from interp_widgets.widgets.views import BokehFigure, Heatmap, TokenStrip
import ipywidgets as W
words = ["<s>", "The", " cat", " sat", ".", "\\n", "On", " the", " mat", "<img src=x onerror='window.HURT = 1'>", " 😀"]
strip = TokenStrip(label="Prompt")
strip.set_tokens(words, special=[w == "<s>" for w in words])
strip.set_values(np.linspace(0, 1, len(words)))
strip
"""
HEAT = """
rng = np.random.default_rng(0)
M = rng.random((12, 9))
M[2, 3] = np.nan
heat = Heatmap(title="Map", row_name="prompt token", column_name="response", value_label="importance")
heat.set_matrix(M, rows=[f" p{i}" for i in range(12)], columns=[f"r{j}" for j in range(9)])
heat.set_row_bars(np.nansum(M, axis=1), label="density")
heat
"""
RESET = """
strip.set_tokens(words, special=[w == "<s>" for w in words])
strip.set_values(np.linspace(0, 1, len(words)))
strip.marking = strip.live_hover = False
heat.set_matrix(None)
heat.set_matrix(M, rows=[f" p{i}" for i in range(12)], columns=[f"r{j}" for j in range(9)])
"""
SHADE = "(node) => getComputedStyle(node).backgroundColor"


@pytest.fixture(scope="module")
def opened(shared_nb: Any) -> Any:
    shared_nb.make("views.ipynb", STRIP, HEAT)
    shared_nb.run_all()
    return shared_nb


@pytest.fixture
def views(opened: Any) -> Any:
    """A notebook that shows a strip and a map, both as new."""
    opened.page.mouse.move(2, 2)
    opened.py(code=RESET)
    opened.page.wait_for_function(
        "() => document.querySelectorAll('.iw-tok').length === 11 && !document.querySelector('.iw-mk, .iw-sel')"
    )
    opened.frames(3)
    return opened


def tokens(nb: Any) -> Any:
    return nb.page.locator(".iw-tok")


def canvas_point(nb: Any, r: float, c: float, shape: tuple[int, int]) -> tuple[float, float]:
    """Page pixels of a place in the map, found from the drawing itself: the frame of the cells is in its layout."""
    box = nb.page.locator(".iw-heat canvas.iw-top").first
    nb.still(box)
    frame = box.evaluate("node => node.dataset.frame.split(' ').map(Number)")
    at = box.bounding_box()
    x, y, w, h = frame
    return at["x"] + x + (c + 0.5) / shape[1] * w, at["y"] + y + (r + 0.5) / shape[0] * h


def drag(nb: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    nb.page.mouse.move(*start)
    nb.page.mouse.down()
    nb.page.mouse.move((start[0] + end[0]) / 2, (start[1] + end[1]) / 2, steps=3)
    nb.page.mouse.move(*end, steps=3)
    nb.page.mouse.up()


def test_strip_by_pointer(views: Any) -> None:
    nb = views
    expect(tokens(nb)).to_have_count(11)

    tokens(nb).nth(3).hover()
    tip = nb.page.locator(".iw-tip:popover-open")
    expect(tip).to_be_visible()
    expect(tip).to_contain_text("‘·sat’")
    expect(tip).to_contain_text("(3): 0.3")
    expect(nb.page.locator(".iw-readout").first).to_contain_text("‘·sat’")
    assert nb.py("strip.hovered") == -1, "hovering must stay in the browser while live_hover is off"
    nb.py(code="strip.live_hover = True")
    tokens(nb).nth(2).hover()
    nb.wait_py("strip.hovered", 2)

    tokens(nb).nth(3).click()
    nb.wait_py("strip.selected", 3)
    expect(tokens(nb).nth(3)).to_have_attribute("aria-selected", "true")
    tokens(nb).nth(3).click()
    nb.wait_py("strip.selected", -1)

    drag(nb, nb.center(tokens(nb).nth(1)), nb.center(tokens(nb).nth(3)))
    nb.wait_py("strip.brush", [1, 4])
    assert nb.py("(strip.selected, strip.marks)") == (-1, [])

    # Python's own changes arrive, and only the shading changes
    before = tokens(nb).nth(1).evaluate(SHADE)
    nb.py(code="strip.set_values(np.linspace(1, 0, len(words)))")
    nb.page.wait_for_function(
        "was => getComputedStyle(document.querySelectorAll('.iw-tok')[1]).backgroundColor !== was", arg=before
    )
    nb.py(code="strip.selected = 8")
    expect(tokens(nb).nth(8)).to_have_attribute("aria-selected", "true")


def test_strip_marks(views: Any) -> None:
    nb = views
    nb.py(code="strip.marking = True")
    expect(nb.page.locator(".iw-strip.iw-marking")).to_be_visible()
    drag(nb, nb.center(tokens(nb).nth(1)), nb.center(tokens(nb).nth(3)))
    nb.wait_py("strip.marks", [[1, 4]])
    drag(nb, nb.center(tokens(nb).nth(7)), nb.center(tokens(nb).nth(8)))
    nb.wait_py("strip.marks", [[1, 4], [7, 9]])
    expect(nb.page.locator(".iw-tok.iw-mk")).to_have_count(5)
    assert nb.py("strip.mask().nonzero()[0].tolist()") == [1, 2, 3, 7, 8]
    # a drag that begins outside joins what it meets, one that begins inside wipes
    drag(nb, nb.center(tokens(nb).nth(4)), nb.center(tokens(nb).nth(3)))
    nb.wait_py("strip.marks", [[1, 5], [7, 9]])
    drag(nb, nb.center(tokens(nb).nth(2)), nb.center(tokens(nb).nth(3)))
    nb.wait_py("strip.marks", [[1, 2], [4, 5], [7, 9]])
    drag(nb, nb.center(tokens(nb).nth(7)), nb.center(tokens(nb).nth(8)))
    nb.wait_py("strip.marks", [[1, 2], [4, 5]])
    assert nb.py("(strip.selected, strip.brush)") == (-1, [])


def test_strip_by_keys(views: Any) -> None:
    nb = views
    tokens(nb).nth(0).focus()
    active = nb.page.evaluate("() => jupyterapp.shell.currentWidget.content.activeCellIndex")
    press = nb.page.keyboard.press
    press("ArrowRight")
    press("ArrowRight")
    expect(tokens(nb).nth(2)).to_be_focused()
    press("Enter")
    nb.wait_py("strip.selected", 2)
    press("Shift+ArrowRight")
    press("Shift+ArrowRight")
    nb.wait_py("strip.brush", [2, 5])
    press("Escape")
    nb.wait_py("(strip.selected, strip.brush)", (-1, []))
    press("End")
    expect(tokens(nb).nth(10)).to_be_focused()
    press("Home")
    expect(tokens(nb).nth(0)).to_be_focused()
    press("ArrowDown")  # the line after the newline token
    assert nb.page.evaluate("() => +document.activeElement.dataset.i") >= 6
    nb.py(code="strip.marking = True; strip.marks = []")
    press("Enter")
    nb.page.wait_for_function("() => document.querySelectorAll('.iw-mk').length === 1")
    assert nb.py("strip.selected") == -1
    # one stop for the Tab key
    assert nb.page.evaluate("() => document.querySelectorAll('.iw-tok[tabindex=\"0\"]').length") == 1
    assert nb.page.evaluate("() => jupyterapp.shell.currentWidget.content.activeCellIndex") == active
    assert nb.page.evaluate("() => jupyterapp.shell.currentWidget.content.mode") == "command"


def test_strip_shows_text_as_it_is(views: Any) -> None:
    nb = views
    expect(tokens(nb).nth(9)).to_have_text("<img·src=x·onerror='window.HURT·=·1'>")
    assert nb.page.locator(".iw-strip img").count() == 0
    assert nb.page.evaluate("() => window.HURT") is None
    assert nb.page.locator(".iw-tok.iw-special").count() == 1
    rows = [tokens(nb).nth(i).bounding_box()["y"] for i in (5, 6)]
    assert rows[1] > rows[0] + 10, "a newline token must end its line"
    nb.py(code='strip.set_tokens(["مرحبا", " بالعالم", " abc"])')
    expect(tokens(nb)).to_have_count(3)
    assert nb.page.locator(".iw-strip").get_attribute("dir") == "rtl"
    assert tokens(nb).nth(0).bounding_box()["x"] > tokens(nb).nth(1).bounding_box()["x"]
    nb.py(code="strip.set_tokens([])")
    expect(nb.page.locator(".iw-strip .iw-empty")).to_have_text("No tokens yet")


def test_long_strip_scrolls_by_itself(views: Any) -> None:
    nb = views
    nb.py(code="strip.set_tokens([f' word{i}' for i in range(2000)]); strip.set_values(np.arange(2000) % 7)")
    expect(tokens(nb)).to_have_count(2000)
    strip = nb.page.locator(".iw-strip")
    assert strip.evaluate("node => node.scrollHeight > 3 * node.clientHeight && node.clientHeight < 260")
    here = nb.page.locator(".jp-WindowedPanel-outer").evaluate("node => node.scrollTop")
    nb.py(code="strip.selected = 1999")
    nb.page.wait_for_function("() => document.querySelector('.iw-strip').scrollTop > 0")
    nb.rests()
    box, last = strip.bounding_box(), tokens(nb).nth(1999).bounding_box()
    assert box["y"] <= last["y"] <= box["y"] + box["height"]
    assert nb.page.locator(".jp-WindowedPanel-outer").evaluate("node => node.scrollTop") == here
    nb.py(code="strip.set_values((np.arange(2000) + 3) % 7)")
    nb.frames(2)
    assert tokens(nb).nth(4).evaluate(SHADE) == "rgba(0, 0, 0, 0)" or tokens(nb).nth(4).evaluate(SHADE).endswith(", 0)")


def test_map_by_pointer(views: Any) -> None:
    nb = views
    at = lambda r, c: canvas_point(nb, r, c, (12, 9))
    nb.page.mouse.move(*at(4, 5))
    tip, twin = nb.page.locator(".iw-tip:popover-open"), nb.page.locator(".iw-below")
    expect(tip).to_contain_text("prompt token")
    value = nb.py("f'{M[4, 5]:.3g}'")
    for place in (tip, twin):
        expect(place).to_contain_text("‘·p4’")
        expect(place).to_contain_text("‘r5’")
        expect(place).to_contain_text(value)
    nb.py(code="before, heat.data = heat.data, (M + 1).astype('float32').tobytes()")
    expect(tip).to_contain_text(nb.py("f'{M[4, 5] + 1:.3g}'"))  # other numbers under a pointer that rests
    nb.py(code="heat.data = before")
    expect(tip).to_contain_text(value)
    assert nb.py("(heat.hovered, heat.cross)") == ([], [])
    nb.page.mouse.click(*at(7, 2))
    nb.wait_py("(heat.cross, heat.pinned)", ([7, 2], [7, 2]))
    nb.page.mouse.click(*at(7, 2))
    nb.wait_py("(heat.cross, heat.pinned)", ([], []))
    nb.page.mouse.move(*at(2, 3))
    expect(twin).to_contain_text("no value")

    # zoom about the pointer, move by drag, back
    nb.page.mouse.move(*at(6, 4))
    nb.page.keyboard.down("Control")
    nb.page.mouse.wheel(0, -120)
    nb.page.keyboard.up("Control")
    nb.wait_py("len(heat.window)", 4)
    window = nb.py("heat.window")
    assert window[2] - window[0] < 12
    assert window[0] < 6.5 < window[2], "the cell under the pointer must stay in view"
    start = canvas_point(nb, 6, 4, (12, 9))
    drag(nb, start, (start[0], start[1] + 60))
    nb.wait_py(f"heat.window[0] < {window[0]!r}", True)
    assert nb.py("(heat.cross, heat.pinned)") == ([], []), "a drag is no click"
    nb.page.get_by_role("button", name="Whole map (0)").click()
    nb.wait_py("heat.window", [])
    nb.page.get_by_role("button", name="Zoom in").click()
    nb.page.wait_for_function("() => !document.querySelector('.iw-tool').disabled")
    nb.wait_py("len(heat.window)", 4)


def test_a_map_in_words(views: Any) -> None:
    about = views.page.locator(".iw-heat + .iw-slide + .iw-readout + .iw-sr")
    code = """
told = np.array([[0.5, np.nan, 0.25], [-2.0, 1.0, 0.0]])
heat.set_matrix(told, rows=["a", "b"], columns=["x", "y", "z"], signed={signed})
heat.muted, heat.reverse = [[0, 0]], {reverse}
"""
    for signed, reverse, said in (
        (False, False, "Largest: ‘b’ (1) → ‘y’ (1): 1; ‘a’ (0) → ‘z’ (2): 0.25; ‘b’ (1) → ‘z’ (2): 0"),
        (False, True, "Smallest: ‘b’ (1) → ‘x’ (0): −2; ‘b’ (1) → ‘z’ (2): 0; ‘a’ (0) → ‘z’ (2): 0.25"),
        (True, False, "Largest in size: ‘b’ (1) → ‘x’ (0): −2; ‘b’ (1) → ‘y’ (1): 1; ‘a’ (0) → ‘z’ (2): 0.25"),
    ):
        views.py(code=code.format(signed=signed, reverse=reverse) + ("" if signed else "heat.vmin = 0.0"))
        words = said.replace("‘a’", "prompt token ‘a’").replace("‘b’", "prompt token ‘b’").replace("→ ", "→ response ")
        named = "; ".join(f"{cell} (importance)" for cell in words.split("; "))
        whole = f"Numbers from −2 to 1 (importance). {named}. 1 cell without colour. 1 cell without a number."
        views.page.wait_for_function(
            "([node, text]) => node.textContent.replace(/[\u2068\u2069]/g, '') === text",
            arg=[about.element_handle(), whole],
        )
    views.py(code="heat.reverse = False")
    map_ = views.page.locator("canvas.iw-top")
    assert map_.get_attribute("aria-describedby") == about.get_attribute("id")


def test_muted_cells_leave_no_colour_between_them(views: Any) -> None:
    nb = views
    shades = """top => {
        const canvas = top.previousElementSibling, ratio = canvas.width / canvas.clientWidth;
        const [x, y, w, h] = top.dataset.frame.split(' ').map(v => Math.round(v * ratio));
        const pixels = canvas.getContext('2d').getImageData(x + 2, y + 2, w - 4, h - 4).data;
        return new Set(new Uint32Array(pixels.buffer)).size;
    }"""
    for columns in (301, 3001):  # narrow cells, and cells smaller than a pixel
        nb.py(code=f"heat.set_matrix(np.ones((3, {columns})), vmin=0, vmax=1)")
        nb.py(code=f"heat.muted = [[r, c] for r in range(3) for c in range({columns})]")
        nb.frames(3)
        assert nb.page.locator(".iw-heat canvas.iw-top").first.evaluate(shades) == 1, columns
    nb.py(code="heat.set_matrix(M, rows=[f' p{i}' for i in range(12)], columns=[f'r{j}' for j in range(9)])")


def test_the_cursor_hides_no_cells_of_a_thin_row(views: Any) -> None:
    nb = views
    nb.py(code="heat.set_matrix(np.ones((100, 9)), vmin=0, vmax=1); heat.cross = [50, -1]")
    nb.frames(3)
    opaque = """(top, share) => {
        const ratio = top.width / top.clientWidth, [x, y, w, h] = top.dataset.frame.split(' ').map(Number);
        const at = [(x + w / 2) * ratio, (y + h * share / 100) * ratio].map(Math.round);
        return top.getContext('2d').getImageData(...at, 1, 1).data[3] > 0;
    }"""
    top = nb.page.locator(".iw-heat canvas.iw-top").first
    assert not top.evaluate(opaque, 50.5), "the middle of the row"
    assert any(top.evaluate(opaque, 50 + near / 10) for near in range(-4, 1)), "a line along its edge"
    nb.py(code="heat.set_matrix(M, rows=[f' p{i}' for i in range(12)], columns=[f'r{j}' for j in range(9)])")
    nb.py(code="heat.cross = []")


def test_map_by_keys(views: Any) -> None:
    nb = views
    nb.page.locator(".iw-heat canvas.iw-top").focus()
    press = nb.page.keyboard.press
    nb.py(code="heat.cross = [-1, 4]")  # a column only
    expect(nb.page.locator(".iw-below")).to_contain_text("‘r4’")
    nb.py(code="heat.cross = []")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        press(key)
    nb.wait_py("heat.cross", [1, 1])
    assert nb.py("heat.pinned") == []
    press("Enter")
    nb.wait_py("heat.pinned", [1, 1])
    press("End")
    nb.wait_py("heat.cross", [1, 8])
    press("PageDown")
    nb.wait_py("heat.cross", [11, 8])
    for _ in range(3):
        press("+")
    nb.wait_py("len(heat.window) == 4 and heat.window[2] - heat.window[0] < 4", True)
    window = nb.py("heat.window")
    assert window[2] > 11, "zooming by key keeps the cursor in view"
    press("Home")
    nb.wait_py("heat.cross", [11, 0])
    nb.wait_py("heat.window[1]", 0)  # the view follows the cursor
    press("0")
    nb.wait_py("heat.window", [])
    press("Escape")
    nb.wait_py("(heat.cross, heat.pinned)", ([], []))


def test_map_of_columns_that_do_not_fit(views: Any) -> None:
    nb = views
    top, slide = nb.page.locator(".iw-heat canvas.iw-top").first, nb.page.locator(".iw-slide").first

    def columns() -> list[float]:
        found: list[float] = top.evaluate("node => node.dataset.view.split(' ').map(Number)")[1::2]
        return found

    def settled(expected: list[float]) -> None:
        nb.page.wait_for_function(
            "([node, wanted]) => node.dataset.view.split(' ').filter((_, k) => k % 2).join() === wanted",
            arg=[top.element_handle(), ",".join(map(str, expected))],
        )

    expect(slide).to_be_hidden()
    assert columns() == [0, 9]
    try:
        nb.py(code="heat.heads, heat.heads_name = [f'w{k}\\n{k}' for k in range(9)], 'word\\nfrom'")
        nb.py(code="heat.column_width = 200")
        expect(slide).to_be_visible()
        nb.rests()
        fit = round(columns()[1])
        assert 3 <= fit < 7
        settled([0, fit])
        expect(slide).to_have_attribute("aria-label", f"Columns 1 to {fit} of 9")
        # the slider, the wheel and a drag move the columns
        slide.focus()
        nb.page.keyboard.press("End")
        settled([9 - fit, 9])
        assert nb.py("heat.window") == [], "no zoom"
        nb.page.mouse.move(*canvas_point(nb, 6, 1, (12, fit)))
        width = top.evaluate("node => Number(node.dataset.frame.split(' ')[2])") / fit
        nb.page.mouse.wheel(-1.2 * width, 0)
        settled([8 - fit, 8])
        drag(nb, canvas_point(nb, 6, 1, (12, fit)), canvas_point(nb, 6, 2, (12, fit)))
        settled([7 - fit, 7])
        # and so does the cursor, by the program and by keys
        nb.py(code="heat.cross = [1, 8]")
        settled([9 - fit, 9])
        top.focus()
        nb.page.keyboard.press("Home")
        settled([0, fit])
        nb.wait_py("heat.cross", [1, 0])
        # the whole map is a zoom away
        for _ in range(4):
            top.focus()
            nb.page.keyboard.press("-")
        nb.wait_py("heat.window", [0, 0, 12, 9])
        expect(slide).to_be_hidden()
        nb.page.get_by_role("button", name="As many columns as can be read (0)").click()
        settled([0, fit])
        nb.wait_py("heat.window", [])
    finally:
        nb.py(code="heat.column_width, heat.heads = 0, []")


def test_map_of_2000_by_300(views: Any) -> None:
    nb = views
    nb.py(code="big = np.zeros((2000, 300)); big[1234, 56] = 1.0; heat.set_matrix(big, vmin=0, vmax=1)")
    nb.page.wait_for_function("() => document.querySelector('.iw-below').textContent.startsWith('2000 × 300')")
    nb.frames(3)
    sheet = nb.page.locator(".iw-heat canvas").first
    # the one hot cell is smaller than a pixel: it must show all the same, at its place
    dark = """node => {
        const { width, height } = node, data = node.getContext('2d').getImageData(0, 0, width, height).data;
        const [x, y, w, h] = node.parentNode.querySelector('.iw-top').dataset.frame.split(' ').map(Number);
        for (let j = Math.ceil(y); j < y + h - 1; j++) for (let i = Math.ceil(x); i < x + w - 1; i++) {
            const k = 4 * (j * width + i);
            if (data[k] < 60 && data[k + 1] < 60 && data[k + 2] > 60) return [(j - y) / h, (i - x) / w];
        }
        return null;
    }"""
    down, across = sheet.evaluate(dark)
    assert abs(down - 1234 / 2000) < 0.01
    assert abs(across - 56 / 300) < 0.01
    nb.py(code="big[1234, 56] = 0; heat.set_matrix(big, vmin=0, vmax=1)")
    nb.frames(3)
    assert sheet.evaluate(dark) is None
    nb.page.mouse.click(*canvas_point(nb, 1000, 150, (2000, 300)))
    nb.wait_py("len(heat.cross)", 2)
    row, column = nb.py("heat.cross")
    assert abs(row - 1000) < 5
    assert abs(column - 150) < 2
    for _ in range(8):
        nb.page.keyboard.press("+")
    nb.wait_py("len(heat.window) == 4 and heat.window[2] - heat.window[0] < 60", True)
    window = nb.py("heat.window")
    assert window[0] <= row < window[2]


def test_map_without_cells_and_in_a_hidden_tab(nb: Any) -> None:
    nb.make(
        "map_tab.ipynb",
        STRIP,
        HEAT.rstrip().removesuffix("heat") + "W.Tab([Heatmap(title='none'), heat], titles=['a', 'b'])",
    )
    nb.run_all()
    expect(nb.page.locator(".iw-heat .iw-empty").first).to_have_text("Nothing to show yet")
    nb.page.get_by_role("tab", name="b", exact=True).click()
    sheet = nb.page.locator(".iw-heat canvas.iw-top").nth(1)
    expect(sheet).to_be_visible()
    nb.rests()
    assert sheet.bounding_box()["width"] > 600
    nb.py(code="heat.set_matrix(None)")
    expect(nb.page.locator(".iw-heat .iw-empty").nth(1)).to_be_visible()


def test_numbers_of_a_column_have_the_same_decimals(nb: Any) -> None:
    nb.make(
        "table_decimals.ipynb",
        "from interp_widgets.widgets.views import Table\n"
        "Table(columns=[{'label': 'score'}, {'label': 'n'}, {'label': 'p'}, {'label': 'chance'}, {'label': 'small'},"
        " {'label': 'share', 'decimals': 2}], rows=[[-0.65, 1, 0.5, 0.99999, 2e-5, 0],"
        " [1.0, 2000, 1e-6, 4e-5, 1e-6, 1e-7], [0.12345, 3, 0.0, 0.0, 0.0, 0.0]])",
    )
    nb.run_all()
    rows = nb.page.locator(".iw-table tbody tr")
    expect(rows).to_have_count(3)
    assert [row.split("\t") for row in rows.all_inner_texts()] == [
        ["−0.650", "1", "0.5", "1.0", "2×10⁻⁵", "0.00"], ["1.000", "2000", "< 0.001", "< 0.001", "1×10⁻⁶", "< 0.001"],
        ["0.123", "3", "0.0", "0.0", "0", "0.00"],
    ]  # fmt: skip
    assert rows.nth(1).locator("td").nth(2).get_attribute("title") == "1×10⁻⁶"


TABLE = """
from interp_widgets.widgets.views import Table
names = ["position", "prompt token", "density A", "density B", "density, B - A"]
columns = [{"label": name, "align": "right"} for name in names]
Table(columns=columns, rows=[[28, "·country", 2.82, 4.76, -0.459]] * 9, height=200)
"""


def test_a_narrow_table_cuts_no_number(nb: Any) -> None:
    nb.make("table.ipynb", TABLE)
    nb.run_all()
    scroll = nb.page.locator(".iw-table-scroll")
    heights = []
    for width in (1400, 480):
        nb.resize(width)
        assert scroll.evaluate("node => node.scrollWidth - node.clientWidth") <= 1
        heights.append(nb.page.locator(".iw-table th").first.bounding_box()["height"])
    assert heights[1] > heights[0], "in a narrow page the headings take two lines"


MANY = """
from interp_widgets.widgets.views import Table
names = ["about", "domain", "sentence", "stereotype", "score %", "opposite", "score, %", "other", "comprehensiveness"]
columns = [{"label": name, **({"wrap": True} if name == "sentence" else {})} for name in names]
said = "We met the plumber and thanked them because BLANK was at work."
table = Table(columns=columns, rows=[["plumbers", "gender", said, "he", 0.69, "she", n, "star", n] for n in range(9)])
table
"""


def test_columns_that_do_not_fit_go_on_in_the_next_line(nb: Any) -> None:
    nb.make("many.ipynb", MANY)
    nb.run_all()
    scroll, headings = nb.page.locator(".iw-table-scroll"), nb.page.locator(".iw-table th")
    for width, lines in ((1400, 1), (480, 2), (1400, 1)):
        nb.resize(width)
        assert scroll.evaluate("node => node.scrollWidth - node.clientWidth") <= 1
        places = [
            [cell.bounding_box() for cell in (headings.nth(i), nb.page.locator(".iw-table td").nth(i))]
            for i in range(9)
        ]
        assert len({round(head["y"] + head["height"]) for head, _ in places}) >= lines
        assert all(abs(head["x"] - cell["x"]) < 1 for head, cell in places), "a heading stands above its column"
        assert len({head["y"] for head, _ in places}) < 6
    nb.resize(480)
    headings.nth(8).click()
    headings.nth(8).click()
    nb.page.locator(".iw-table tbody tr").first.click()
    nb.wait_py("table.selected", 8)
    scroll.evaluate("node => { node.scrollTop = 200; }")
    assert headings.first.bounding_box()["y"] - scroll.bounding_box()["y"] < 4, "the headings stay in sight"


TEXTS = """
from interp_widgets.widgets.views import Table
right = {"align": "right"}
columns = [{"label": "A no.", **right}, {"label": "turned °", **right}, {"label": "words", "wrap": True}]
Table(columns=columns, rows=[[0, 11.4, "tea, forest, children, workers, shops, " * 12]], height=200)
"""


def test_long_texts_do_not_squeeze_the_headings(nb: Any) -> None:
    nb.make("texts.ipynb", TEXTS)
    nb.run_all()
    nb.rests()
    assert nb.page.locator(".iw-table th").nth(1).bounding_box()["height"] < 40


INK = "node => getComputedStyle(node).color.match(/[\\d.]+/g).slice(0, 3).map(Number)"


def test_themes_and_widths(nb: Any) -> None:
    nb.make("themes.ipynb", STRIP, HEAT, BOKEH)
    nb.run_all()
    nb.bokeh_idle()
    corner = "node => [...node.getContext('2d').getImageData(2, 2, 1, 1).data]"
    shades = {}
    for theme in ("Light", "Dark"):
        nb.set_theme(f"JupyterLab {theme}")
        for width in (1400, 700):
            nb.resize(width)
            box = nb.page.locator(".iw-heat").bounding_box()
            assert box["x"] + box["width"] <= width
            frame = nb.page.locator(".iw-top").evaluate("node => node.dataset.frame.split(' ').map(Number)")
            assert frame[2] > min(9 * 50, 0.4 * box["width"]), "the cells must keep the larger part of the width"
            for k, name in enumerate(("strip", "map", "bokeh")):
                cell = nb.page.locator(".jp-Cell").nth(k)
                cell.evaluate("node => node.scrollIntoView()")
                nb.screenshot(f"views_{name}_{theme.lower()}_{width}", cell)
        shades[theme] = tokens(nb).nth(1).evaluate(INK), tokens(nb).nth(10).evaluate(SHADE)
    assert sum(shades["Light"][0]) < 200, "dark letters on a light page"
    assert sum(shades["Dark"][0]) > 600, "light letters on a dark page"
    assert shades["Light"][1] != shades["Dark"][1], "each theme has its own scale"
    assert nb.page.locator(".iw-heat canvas").first.evaluate(corner)[3] == 0, "the map has no background of its own"
    # a dark page in Colab, where JupyterLab's colours stay light
    nb.set_theme("JupyterLab Light")
    nb.page.evaluate(
        """() => {
            const page = '--colab-primary-text-color: #e3e3e3; --colab-secondary-surface-color: #383838';
            document.body.style.cssText = page;
            document.documentElement.setAttribute('theme', 'dark');
        }"""
    )
    expect(nb.page.locator(".iw-dark .iw-heat")).to_have_count(1)
    assert sum(tokens(nb).nth(1).evaluate(INK)) > 600
    letters = "node => getComputedStyle(node).getPropertyValue('--bk-text-color')"
    assert nb.page.locator(".iw-bokeh").evaluate(letters) == "#e3e3e3"
    nb.page.evaluate("() => { document.body.style.cssText = ''; document.documentElement.removeAttribute('theme'); }")


BOKEH = """
from bokeh.plotting import figure
from bokeh.models import ColumnDataSource
taps = []
source = ColumnDataSource({"x": list(range(6)), "y": [1, 2, 3, 4, 5, 6]}, name="source")
plot = figure(height=220, sizing_mode="stretch_width", tools="tap,pan,wheel_zoom", toolbar_location=None, name="bars",
              title="Density", x_axis_label="token", y_axis_label="density", x_range=(-1, 6), y_range=(0, 14))
plot.vbar(x="x", top="y", width=0.8, source=source, legend_label="bars")
source.selected.on_change("indices", lambda attr, old, new: taps.append(list(new)))
host = BokehFigure(plot)
host
"""
SHOWN = "Bokeh.documents.filter(doc => doc.views_manager)"


def test_bokeh_both_ways(nb: Any) -> None:
    nb.make("bokeh.ipynb", STRIP, BOKEH, "host")
    nb.run_all()
    nb.bokeh_idle()
    assert nb.page.evaluate(f"() => {SHOWN}.length") == 2
    nb.page.mouse.click(*nb.bokeh_point("bars", 3, 1))
    nb.wait_py("taps", [[3]])
    # the other view of the same figure follows the tap
    nb.page.wait_for_function(f"() => {SHOWN}.every(doc => doc.get_model_by_name('source').selected.indices[0] === 3)")
    nb.linger(400)  # two taps within 300 ms are one double tap
    nb.page.mouse.click(*nb.bokeh_point("bars", 1, 1))
    nb.wait_py("taps", [[3], [1]])
    nb.py(code="source.data = {'x': np.arange(6), 'y': np.array([9.0, 8, 7, 6, 5, 4])}; plot.title.text = 'new'")
    nb.page.wait_for_function(f"() => {SHOWN}.every(doc => doc.get_model_by_name('source').data.y[0] === 9)")
    # writers in several threads: nothing lost, nothing torn
    nb.py(
        code="import threading\n"
        "def write(k):\n"
        "    for i in range(60): source.patch({'y': [(k, 1000.0 * k + i)]})\n"
        "threads = [threading.Thread(target=write, args=(k,)) for k in range(3)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()"
    )
    nb.page.wait_for_function(
        f"() => {SHOWN}.every(doc => [...doc.get_model_by_name('source').data.y].slice(0, 3).join() === '59,1059,2059')"
    )
    assert nb.py("[float(v) for v in source.data['y'][:3]]") == [59.0, 1059.0, 2059.0]
    assert nb.py("taps") == [[3], [1]], "what Python writes is no tap"
    assert nb.py("len(host._document)") < 20_000
    # a page loaded later shows the figure as it is now
    nb.wait_py("host.picture.startswith('data:image/png;base64,')", True)
    nb.page.evaluate("async () => { await jupyterapp.shell.currentWidget.context.save(); }")
    nb.open("bokeh.ipynb", load=True)
    nb.bokeh_idle()
    assert nb.page.evaluate(f"() => [...{SHOWN}[0].get_model_by_name('source').data.y][2]") == 2059
    # closing frees the page's documents, and the figure for another host
    nb.py(code="host.close(); again = BokehFigure(plot)")
    nb.page.wait_for_function("() => Bokeh.documents.length <= 1")


def test_what_changes_while_a_view_is_made_is_drawn(nb: Any) -> None:
    """A figure sent as a whole, and a change of it, come between the beginning and the end of the making of a view."""
    nb.make("bokeh_meanwhile.ipynb", STRIP, BOKEH, "host")
    nb.run_all()
    nb.bokeh_idle()
    nb.page.evaluate(
        """() => {
            const { PlotView } = Bokeh.require('models/plots/plot_canvas'), make = PlotView.prototype.lazy_initialize;
            window.making = new Promise(begun => {
                const end = new Promise(done => { window.goOn = done; });
                PlotView.prototype.lazy_initialize = async function () {
                    PlotView.prototype.lazy_initialize = make;
                    begun();
                    await end;
                    return make.call(this);
                };
            });
            jupyterapp.commands.execute('notebook:run-cell');
        }"""
    )
    nb.page.evaluate("async () => { await window.making; }")
    nb.py(code="host.deliver(); source.data = {'x': [1], 'y': [9]}")
    nb.page.wait_for_function("() => Bokeh.documents[0].get_model_by_name('source').data.y[0] === 9")
    nb.page.evaluate("() => window.goOn()")
    nb.bokeh_idle()
    nb.page.wait_for_function(f"() => {SHOWN}.every(doc => doc.get_model_by_name('source').data.y[0] === 9)")
    assert nb.page.evaluate("() => Bokeh.documents.length") == 3, "the figure, and a copy for each of its views"
    nb.page.mouse.click(*nb.bokeh_point("bars", 1, 1))
    nb.wait_py("taps", [[0]])


def test_a_tooltip_goes_with_what_it_was_about(nb: Any) -> None:
    hover = "from bokeh.models import HoverTool\nplot.add_tools(HoverTool(tooltips=[('y', '@y')]))"
    nb.make("bokeh_tip.ipynb", STRIP, BOKEH.replace("host = ", f"{hover}\nhost = "))
    nb.run_all()
    shown = nb.page.locator(".iw-bokeh-tip:visible")

    def rest_on_a_bar() -> None:
        nb.page.mouse.move(2, 2)
        nb.py(
            code="plot.renderers[0].visible, plot.y_range.end = True, 14\n"
            "source.data = {'x': list(range(6)), 'y': [1, 2, 3, 4, 5, 6]}"
        )
        nb.frames(5)
        nb.bokeh_idle()
        nb.page.mouse.move(*nb.bokeh_point("bars", 3, 3.4))
        expect(shown).to_have_text("y: 4")

    for name, change in {
        "the bar is lower": "source.data = {**source.data, 'y': [1, 2, 3, 1, 5, 6]}",
        "longer labels move the frame": "source.data = {**source.data, 'y': [1] * 6}; plot.y_range.end = 4e9",
        "nothing is left": "source.data = {'x': [], 'y': []}",
        "the bars are hidden": "plot.renderers[0].visible = False",
    }.items():
        rest_on_a_bar()
        nb.py(code=change)
        expect(shown, f"{name}: its tooltip stays").to_have_count(0)
    rest_on_a_bar()
    nb.py(code="source.data = {**source.data, 'y': [5e7] * 6}; plot.y_range.end = 6e7")
    expect(shown, "the number that is there now is told").to_have_text("y: 50000000")


@pytest.fixture
def late(nb: Any) -> Iterator[Any]:
    """A page in which modules are over anywidget's time as they begin, and which has no BokehJS yet."""
    nb.make("late.ipynb", STRIP, HEAT, BOKEH)
    nb.page.evaluate(
        """() => {
            delete window.Bokeh;
            delete window.__interpWidgetsBokeh;
            window.inTime = AbortSignal.timeout;
            AbortSignal.timeout = () => {
                const over = new AbortController();
                setTimeout(() => over.abort(), 0);
                return over.signal;
            };
        }"""
    )
    yield nb
    nb.page.evaluate("() => { AbortSignal.timeout = window.inTime; }")


def test_views_that_a_busy_page_starts_late_go_on(late: Any) -> None:
    """What happens where a module takes more than anywidget's two seconds: here they are over at once."""
    nb = late
    nb.run_all()
    expect(tokens(nb)).to_have_count(11)
    nb.bokeh_idle()
    nb.py(code="strip.set_tokens(['one', ' two'])\nsource.data = {'x': [1], 'y': [9]}")
    expect(tokens(nb)).to_have_count(2)
    nb.page.wait_for_function(f"() => {SHOWN}.every(doc => doc.get_model_by_name('source').data.y[0] === 9)")
    tokens(nb).nth(1).click()
    nb.wait_py("strip.selected", 1)
    assert nb.errors, "the page was not late: the test shows nothing"
    assert all("Failed to initialize model" in error for error in nb.errors)
    nb.errors.clear()


def test_bokeh_rerun_leaves_nothing(nb: Any) -> None:
    nb.make("bokeh_again.ipynb", STRIP, "host = None", "if host is not None: host.close()\n" + BOKEH)
    nb.run_all()
    nb.bokeh_idle()
    before = nb.page.evaluate("() => Bokeh.documents.length")
    for _ in range(4):
        nb.page.evaluate("async () => { await jupyterapp.commands.execute('notebook:run-cell'); }")
    nb.page.wait_for_function("count => Bokeh.documents.length <= count", arg=before)
    nb.no_error_outputs()


def test_saved_page(nb: Any) -> None:
    nb.make(
        "export.ipynb",
        STRIP,
        HEAT.replace("(12, 9)", "(11, 9)").replace("range(12)", "range(11)"),
        BOKEH,
        "import pandas as pd\n"
        "from interp_widgets.widgets.base.export import export_html\n"
        "answer = TokenStrip(label='Response'); answer.set_tokens([f'r{j}' for j in range(9)])\n"
        "heat.strips = (strip, answer)\n"
        "from interp_widgets.widgets.views.table import Table\n"
        "list_ = Table(columns=[{'label': 'token'}, {'label': 'n'}], rows=[['<i>', 1], ['b', 2]])\n"
        "box = W.VBox([strip, answer, W.Tab([W.VBox([heat, list_]), host], titles=['Map', 'Bars'])])\n"
        "export_html('A <b>title</b>', [box], 'saved.html', provenance={'model': '<tiny>'}, table=pd.DataFrame(M))",
    )
    nb.run_all()
    page = nb.page.context.new_page()
    problems: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((nb.lab.root / "saved.html").as_uri())
    expect(page.locator("h1")).to_have_text("A <b>title</b>")
    expect(page.locator("h2")).to_have_text(["Map", "Bars"])
    expect(page.locator(".iw-tok")).to_have_count(20)
    expect(page.locator(".iw-table td").first).to_have_text("<i>")
    assert Axe().run(page).response["violations"] == []
    page.locator(".iw-tok").nth(3).hover()
    expect(page.locator(".iw-tip:popover-open")).to_contain_text("‘·sat’")
    # linked as in the notebook: a response token shades the prompt by its column
    before = page.locator(".iw-tok").nth(4).evaluate(SHADE)
    page.locator(".iw-tok").nth(11 + 5).click()
    page.wait_for_function(
        "was => getComputedStyle(document.querySelectorAll('.iw-tok')[4]).backgroundColor !== was", arg=before
    )
    top = page.locator("canvas.iw-top")
    top.evaluate("node => node.scrollIntoView({ block: 'center' })")
    box, frame = top.bounding_box(), top.evaluate("node => node.dataset.frame.split(' ').map(Number)")
    page.mouse.move(box["x"] + frame[0] + 0.5 * frame[2], box["y"] + frame[1] + 0.5 * frame[3])
    expect(page.locator(".iw-tip:popover-open")).to_contain_text("prompt token ")
    page.wait_for_function("() => Bokeh.documents.some(doc => doc.is_idle)")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("() => getComputedStyle(document.body).backgroundColor === 'rgb(20, 22, 26)'")
    if nb.pictures is not None:
        page.screenshot(path=str(nb.pictures / "views_saved_page_dark.png"), full_page=True)
    assert not problems
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    page.close()
