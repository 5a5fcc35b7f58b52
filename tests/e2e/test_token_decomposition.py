"""The token decomposition explorer in a real notebook: run, type, click, slide, compare."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

PROMPT = "The Colosseum is located in the city of"


@pytest.fixture
def opened(nb: Any) -> Any:
    """An explorer of the demo pair on its default prompt, words in its cells."""
    return nb.show("TokenDecompositionExplorer(pair, color='probability')")


def cell(nb: Any, row: int, column: int) -> tuple[float, float]:
    """Page pixels of the middle of a cell."""
    found: tuple[float, float] = nb.map_cell(row, column)
    return found


def test_journey(opened: Any) -> None:
    nb = opened
    panel = nb.panel
    expect(panel.locator(".iw-heat canvas").first).to_be_visible()
    nb.looks("token_decomposition", panel, height=3200)

    # another prompt, typed: the answer of the example goes, the likeliest token takes its place
    box = panel.get_by_label("Prompt", exact=True)
    box.fill(PROMPT)
    box.blur()
    nb.wait_py("(panel.prompt, panel.target)", (PROMPT, ""))
    nb.done()
    assert nb.py("panel.result[0].logit.target_token") == " Rome"
    expect(panel.get_by_text("Logit of “·Rome”", exact=False).first).to_be_visible()
    expect(panel.locator(".iw-strip .iw-tok:visible")).to_have_count(nb.py("len(panel.result[0].tokens.tokens)"))

    # a click on a cell tells what that part would predict alone
    nb.page.mouse.move(*cell(nb, 1, 5))
    expect(nb.page.locator(".iw-tip:popover-open")).to_contain_text("alone “")
    nb.page.mouse.click(*cell(nb, 1, 5))
    nb.wait_py("(panel.source, panel.column, panel.layer, panel.prompt_token)", (1, 5, 5, 1))
    expect(panel.get_by_text("Alone, “·Colosseum” (1) entering layer 5 predicts:", exact=False)).to_be_visible()
    expect(panel.locator(".iw-table").nth(1).locator("tbody tr")).to_have_count(10)
    expect(panel.locator(".iw-strip .iw-tok:visible").nth(1)).to_have_attribute("aria-selected", "true")
    nb.screenshot("token_decomposition_cell", panel)

    # the threshold relabels and runs nothing
    before = nb.py("(sum(map(bool, panel.map.heat.texts)), panel.status.text)")
    panel.get_by_role("button", name="More").click()
    slider = nb.handle("Labels from")
    for _ in range(3):
        slider.press("ArrowLeft")
    nb.wait_py("round(panel.threshold, 2)", 0.05)
    nb.wait_py(f"sum(map(bool, panel.map.heat.texts)) > {before[0]}", True)
    assert nb.py("panel.status.text") == before[1]

    # colour, bars and lens
    for control, option, trait, value in (
        ("Colour", "share of the target's logit", "color", "target_logit"),
        ("Bars", "share of the norms at the last layer", "bars", "norm"),
        ("Lens", "all by the stream's scale", "lens", "frozen"),
    ):
        panel.get_by_label(control, exact=True).select_option(option)
        nb.wait_py(f"panel.{trait}", value)
        nb.done()
    nb.screenshot("token_decomposition_logit", panel)

    # another position
    place = nb.handle("Position")
    place.press("ArrowLeft")
    nb.wait_py("panel.position", nb.py("len(panel.texts.axis)") - 2)
    nb.done()
    assert nb.py("panel.result[0].tokens.position == panel.position")
    place.press("End")
    nb.wait_py("panel.position", -1)
    nb.done()

    # the difference of the two models
    panel.get_by_role("button", name="difference").click()
    nb.wait_py("(panel.view, panel.busy)", ("difference", False))
    expect(panel.get_by_text("B − A ·", exact=False).first).to_be_visible()
    nb.screenshot("token_decomposition_difference", panel)
    panel.get_by_role("button", name="B: demo-tuned").click()
    nb.wait_py("panel.view", "B")

    # what goes wrong is a sentence, and the map stays
    target = panel.get_by_label("Target", exact=True)
    target.fill("Eiffel Tower")
    target.blur()
    expect(panel.locator(".iw-wanted:visible")).to_contain_text("must be one token")
    assert nb.py("panel.map.heat.shape[0]") > 2
