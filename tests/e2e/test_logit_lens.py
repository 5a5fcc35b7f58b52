"""The logit lens explorer in a real notebook: type, click, move along, slide, compare."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

PROMPT = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture
def opened(nb: Any) -> Any:
    """An explorer of the demo pair on its default prompt."""
    return nb.show("LogitLensExplorer(pair)", name="lens")


def cell(nb: Any, row: int, column: int) -> tuple[float, float]:
    """Page pixels of the middle of a cell of the map."""
    found: tuple[float, float] = nb.map_cell(row, column)
    return found


def test_journey(opened: Any) -> None:
    nb, panel = opened, opened.panel
    story = panel.locator(".iw-plot .widget-html").first
    expect(story).to_contain_text("“·Paris”")
    expect(panel.locator(".iw-table tbody tr")).to_have_count(10)
    nb.looks("logit_lens", nb.panel, height=2400, first=420)
    nb.resize(1900, 1700)  # all columns fit

    # another prompt, typed, with a response and a target
    box = panel.get_by_label("Prompt", exact=True)
    box.fill(PROMPT)
    box.blur()
    nb.wait_py("(lens.prompt, lens.target)", (PROMPT, ""))
    nb.done()
    expect(story).to_contain_text("“·Mary”")
    answer = panel.get_by_role("textbox", name="Response", exact=True)
    answer.fill(" Mary.")
    answer.blur()
    target = panel.get_by_label("Target", exact=True)
    target.fill(" John")
    target.blur()
    nb.wait_py("(lens.response, lens.target)", (" Mary.", " John"))
    nb.done()
    assert nb.py("[one.target_token for one in lens.result]") == [" John", " John"]

    # the pointer lists a cell, a click chooses it, the arrows move on
    row, column = nb.py("lens.map.heat.crossed[0]")
    caption = panel.locator(".iw-table-caption")
    nb.page.mouse.move(*cell(nb, 3, 2))
    expect(caption).to_contain_text("“·and” (2) at layer 3")
    tip = nb.page.locator(".iw-tip:popover-open")
    expect(tip).to_contain_text("next: ")
    nb.page.mouse.click(*cell(nb, row, column))
    nb.wait_py("(lens.lens_layer, lens.position)", (row, column))
    expect(story).to_contain_text("Interference: the target “·John”")
    nb.page.mouse.move(2, 2)
    nb.page.keyboard.press("ArrowDown")
    expect(caption).to_contain_text(f"at layer {row + 1}")
    nb.page.keyboard.press("Enter")
    nb.wait_py("(lens.lens_layer, lens.layer)", (row + 1, row + 1))

    # a listed token is followed
    panel.locator(".iw-table tbody tr").nth(1).click()
    nb.wait_py("lens.target != ' John'", True)
    nb.done()
    nb.wait_py("lens.result[0].target_token == lens.target", True)
    nb.py(code="lens.target = ' John'")
    nb.done()

    # fewer labels, without a run
    before = nb.py("sum(map(bool, lens.map.heat.texts))")
    handle = nb.handle()
    for _ in range(8):
        handle.press("ArrowRight")
    nb.wait_py("round(lens.threshold, 2)", 0.6)
    assert nb.py("sum(map(bool, lens.map.heat.texts))") < before
    nb.py(code="lens.threshold = 0.2")

    # another number, the other model, and both
    panel.get_by_label("Colour", exact=True).select_option(label="rank of the target")
    nb.wait_py("(lens.color, lens.map.heat.scale)", ("target_rank", "log"))
    panel.get_by_role("button", name="B: demo-tuned").click()
    nb.wait_py("lens.view", "B")
    expect(panel.locator(".iw-title", has_text="B · Logit lens")).to_be_visible()
    nb.looks("logit_lens_rank", nb.panel, height=2400)
    panel.get_by_label("Colour", exact=True).select_option(label="probability of the likeliest token")
    panel.get_by_role("button", name="difference B − A").click()
    nb.wait_py("(lens.view, lens.map.heat.vmin < 0)", ("difference", True))
    assert any(" → " in text for text in nb.py("lens.map.heat.texts"))
    nb.looks("logit_lens_difference", nb.panel, height=2400)

    # A beside B: next to each other where there is room, else below each other, with one cursor
    panel.get_by_role("button", name="A beside B").click()
    nb.wait_py("[heat.title[:1] for heat in lens.map.maps.shown]", ["A", "B"])
    expect(panel.locator("canvas.iw-top:visible")).to_have_count(2)
    nb.rests()
    a, b = panel.locator("canvas.iw-top:visible").all()
    first, second = a.bounding_box(), b.bounding_box()
    assert first["y"] == second["y"]
    assert second["x"] >= first["x"] + first["width"]
    chosen = nb.py("lens.map.heat.cross")
    b.click(position={"x": second["width"] / 2, "y": second["height"] / 2})
    nb.wait_py(f"lens.map.heat.cross != {chosen} and lens.map.heat.cross == lens.map.maps.views[1].cross", True)
    nb.looks("logit_lens_beside", nb.panel, height=2400)

    # what cannot be done is said, and the map stays
    target.fill("nothing like it")
    target.blur()
    expect(panel.locator(".iw-wanted:visible")).to_contain_text("the target must be one token, 'nothing like it' is")
    assert nb.py("lens.map.heat.shape[0]") == 7
    nb.screenshot("logit_lens_error", panel)


def test_every_word_of_a_long_text_can_be_read(opened: Any) -> None:
    nb = opened
    nb.py(code="lens.prompt = 'The Eiffel Tower is located in the city of Paris. ' * 3 + 'The Eiffel Tower is in'")
    nb.done()
    columns = nb.py("lens.result[0].n_positions")
    top, slide = nb.panel.locator("canvas.iw-top").first, nb.panel.locator(".iw-slide").first

    def view() -> list[float]:
        nb.rests()
        found: list[float] = top.evaluate("node => node.dataset.view.split(' ').map(Number)")
        return found

    for width in (1400, 700):
        nb.resize(width, 1700)
        _, first, rows, last = view()
        assert (rows, last) == (7, columns), "every layer, and the selected position"
        frame = top.evaluate("node => node.dataset.frame.split(' ').map(Number)")
        assert frame[2] / (last - first) >= 48
        expect(slide).to_be_visible()
    nb.resize(1400, 1700)
    slide.focus()
    nb.page.keyboard.press("Home")
    assert view()[1] == 0
    nb.page.mouse.click(*cell(nb, 3, 2))
    nb.wait_py("(lens.lens_layer, lens.position)", (3, 2))
    nb.py(code="lens.select_cell(-1, lens.result[0].n_positions - 1)")
    assert view()[3] == columns, "the view follows the selection"
