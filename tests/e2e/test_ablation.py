"""The ablation panel in JupyterLab: maps, a picked cell, a list of ablations, text under them, heads, tracing."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

OPEN = """
from interp_widgets import AblationPanel, load_demo_pair
pair = load_demo_pair()
panel = AblationPanel(pair.base)
panel
"""
MAPS = ".iw-heat canvas.iw-top:visible"


@pytest.fixture
def opened(nb: Any) -> Any:
    """A notebook with the panel on the demo model, its first result drawn."""
    nb.make("ablation.ipynb", OPEN)
    nb.run_all()
    nb.done()
    nb.resize(1400, 1500)
    return nb


def cell_at(nb: Any, canvas: Any, row: int, column: int, shape: tuple[int, int]) -> tuple[float, float]:
    """The middle of a cell of a map in page pixels."""
    nb.still(canvas)
    x, y, w, h = (float(part) for part in canvas.get_attribute("data-frame").split())
    box = canvas.bounding_box()
    return box["x"] + x + (column + 0.5) / shape[1] * w, box["y"] + y + (row + 0.5) / shape[0] * h


def test_journey(opened: Any) -> None:
    nb = opened
    panel = nb.page.locator(".iw-panel").first
    maps = panel.locator(MAPS)
    expect(maps).to_have_count(4)

    # two by two when there is room, one below the other when there is not
    left, right = (maps.nth(k).bounding_box() for k in (0, 1))
    assert left["y"] == right["y"]
    assert left["x"] < right["x"]
    nb.resize(700, 1500)
    left, right = (maps.nth(k).bounding_box() for k in (0, 1))
    assert left["x"] == right["x"]
    assert left["y"] < right["y"]
    nb.resize(1400, 1500)

    # another metric
    panel.get_by_label("Measured", exact=True).select_option("logit of the target")
    nb.wait_py("panel.metric", "logit")
    nb.done()
    assert nb.py("panel.result.metric") == "logit"
    expect(panel.get_by_text("logit of “·Paris”")).to_be_visible()

    # a cell and its table; two of them in the list
    nb.page.mouse.click(*cell_at(nb, maps.nth(0), 0, 8, (6, 9)))
    nb.wait_py("(panel.kind, panel.layer, panel.position, panel.prompt_token)", ("attn", 0, 8, 8))
    table = panel.locator(".iw-table:visible")
    expect(table.locator("th")).to_have_text(["next token", "before", "after", "change"])
    expect(table.locator("tbody tr").first).to_contain_text("·Paris")
    expect(table.locator("tbody tr", has_text="·London")).to_have_count(1)
    panel.get_by_role("button", name="Add to the list").click()
    nb.wait_py("len(panel.ablations)", 1)
    nb.rests()
    nb.page.mouse.click(*cell_at(nb, maps.nth(1), 5, 8, (6, 9)))
    nb.wait_py("(panel.kind, panel.layer)", ("mlp", 5))
    panel.get_by_role("button", name="Add to the list").click()
    nb.wait_py("len(panel.ablations)", 2)
    nb.looks("ablation", panel, height=3000, first=420)

    # the text with both taken out
    panel.get_by_role("tab", name="Text").click()
    nb.wait_py("panel.tab", "text")
    nb.done()
    strips = panel.locator(".iw-strip:visible")
    expect(strips).to_have_count(2)
    expect(strips.nth(0)).to_contain_text("Paris")
    expect(strips.nth(1)).to_contain_text("London")
    expect(strips.nth(1).locator(".iw-mk")).to_have_count(1)
    nb.looks("ablation_text", panel, height=3000)

    # heads
    panel.get_by_role("tab", name="Heads").click()
    nb.wait_py("panel.tab", "heads")
    nb.done()
    nb.page.mouse.click(*cell_at(nb, maps.first, 0, 4, (6, 6)))
    nb.wait_py("(panel.kind, panel.layer, panel.head)", ("head", 0, 4))
    expect(panel.get_by_text("Head 4 of layer 0 at every token, removed").first).to_be_visible()
    nb.screenshot("ablation_heads", panel)

    # tracing: the example's subject, then one marked by a drag
    panel.get_by_role("tab", name="Tracing").click()
    nb.wait_py("panel.tab", "tracing")
    nb.done()
    expect(maps).to_have_count(3)
    tokens = panel.locator(".iw-strip:visible .iw-tok")
    nb.page.mouse.move(*nb.center(tokens.nth(4)))
    nb.page.mouse.down()
    nb.page.mouse.move(*nb.center(tokens.nth(7)), steps=8)
    nb.page.mouse.up()
    nb.wait_py("(panel.span, panel.subject)", ([4, 8], "located in the city"))
    panel.get_by_label("Subject", exact=True).fill("Eiffel Tower")
    panel.get_by_label("Subject", exact=True).press("Enter")
    nb.wait_py("(panel.span, panel['tracing'].strip.marks)", ([], [[1, 3]]))
    nb.done()
    nb.page.mouse.click(*cell_at(nb, maps.nth(1), 4, 8, (6, 9)))
    expect(panel.get_by_text("The clean MLP output of layer 4 at “·of” (8) restores")).to_be_visible()
    nb.page.mouse.move(*cell_at(nb, maps.nth(0), 1, 8, (6, 9)))
    expect(nb.page.locator(".iw-tip:popover-open")).to_contain_text("95% interval")
    nb.looks("ablation_tracing", panel, height=3000, first=420)


def test_two_models_and_errors(nb: Any) -> None:
    nb.make("pair.ipynb", OPEN.replace("pair.base", "pair, view='difference', replacement='resample'"))
    nb.run_all()
    nb.done()
    nb.resize(1400, 1500)
    panel = nb.page.locator(".iw-panel").first
    nb.page.mouse.click(*cell_at(nb, panel.locator(MAPS).nth(2), 0, 8, (6, 9)))
    nb.wait_py("len(panel.current.next_token.predictions)", 2)
    nb.looks("ablation_difference", panel, height=3000)
    panel.get_by_role("button", name="Generate without it").click()
    nb.wait_py("(panel.tab, len(panel.results))", ("text", 2))
    panel.get_by_role("tab", name="Modules").click()
    nb.wait_py("panel.tab", "modules")
    box = panel.get_by_label("Corrupted prompt", exact=True)
    box.fill("The Burj Khalifa is in")
    box.press("Enter")
    expect(panel.locator(".iw-wanted:visible")).to_contain_text("must have as many tokens as the prompt, 9, got")
    nb.screenshot("ablation_error", panel)


def test_cancel_can_be_pressed_on_a_narrow_page(nb: Any) -> None:
    nb.show("AblationPanel(pair.tuned, tab='tracing')")
    nb.resize(700, 1900)
    nb.py(code="panel.status.set_trait('state', 'running')")
    nb.py(code="panel.status.set_trait('total_steps', 18130)")
    nb.py(code="panel.status.set_trait('seconds_left', 557.0)")
    cancel = nb.panel.locator(".iw-status-cancel")
    expect(nb.panel.locator(".iw-status-left")).to_contain_text("0 of 18130, 9 min")
    box = cancel.bounding_box()
    assert box["x"] + box["width"] <= nb.panel.locator(".iw-end").first.bounding_box()["x"], "something lies over it"
