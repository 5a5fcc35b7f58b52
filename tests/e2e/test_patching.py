"""The patching panel in a real notebook: maps, heads and pairs; clicks, typing, both themes and widths."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect


@pytest.fixture
def opened(nb: Any) -> Any:
    """The panel of the tuned demo model on its default prompts."""
    return nb.show("PatchingPanel(pair.tuned)")


def test_journey(opened: Any) -> None:
    nb = opened
    panel = nb.panel
    expect(panel.locator(".iw-heat canvas").first).to_be_visible()
    expect(panel.get_by_text("Logit of “·Paris” minus that of “·Rome”", exact=False)).to_be_visible()

    # a click on a token selects it in both prompts, and a cell is listed with its next tokens
    panel.locator(".iw-aligned:visible").get_by_text("France").click()
    nb.wait_py("(panel.position, panel['map'].tokens.selected)", (3, 3))
    expect(panel.locator(".iw-aligned:visible .iw-sel")).to_have_text(["·France", "·Italy"])
    nb.py(code="panel['map'].select(0, picked_site='resid_pre', position=3)")
    nb.done()
    expect(panel.get_by_text("recovers 1.00", exact=False).first).to_be_visible()
    expect(panel.locator(".iw-table tbody tr").first).to_contain_text("Paris")
    nb.looks("patching", panel, height=2400)

    # a longer corrupted prompt is aligned from both ends, and says what is left out
    box = panel.get_by_label("Corrupted prompt", exact=True)
    box.fill("The capital of the Italy is")
    box.blur()
    expect(panel.get_by_text("Aligned with none, and not patched: “·the” (3) of the corrupted prompt.")).to_be_visible()
    nb.done()

    # a token that is dragged onto another column is paired there, and keys part and pair
    clean, corrupted = (panel.locator(f".iw-aligned:visible [data-side='{side}']") for side in (0, 1))
    corrupted.nth(3).drag_to(clean.nth(3))
    nb.wait_py("panel.alignment", "0:0 1:1 2:2 3:3 4:5")
    nb.done()
    expect(panel.get_by_text("not patched: “·Italy” (4) of the corrupted prompt.", exact=False)).to_be_visible()
    nb.looks("patching_mended", panel, height=2400)
    panel.get_by_role("button", name="Pair by clicks").click()
    clean.nth(3).click()
    corrupted.nth(4).click()
    nb.wait_py("panel.alignment", "")
    clean.nth(4).press("Enter")
    clean.nth(4).press("ArrowDown")
    nb.page.keyboard.press("Enter")
    nb.wait_py("panel.alignment", "0:0 1:1 2:2 3:4")
    nb.done()
    panel.get_by_role("button", name="Align from both ends").click()
    panel.get_by_role("button", name="Pair by clicks").click()
    nb.wait_py("panel.alignment", "")
    nb.done()
    box.fill("The capital of Paris and France is")
    box.fill("The capital of Italy is")
    box.blur()
    nb.done()

    # the heads, then the pairs
    panel.get_by_role("tab", name="Heads").click()
    nb.done()
    expect(panel.get_by_text("Largest (layer.head)", exact=False)).to_be_visible()
    nb.py(code="panel['heads'].select(0, head_picked=True, head=1)")
    nb.done()
    nb.looks("patching_heads", panel, height=2400)
    panel.get_by_role("tab", name="Pairs").click()
    nb.done()
    expect(panel.get_by_text("cells differ from 0 beyond chance", exact=False)).to_be_visible()
    nb.py(code="panel['pairs'].select(0, 3)")
    nb.looks("patching_pairs", panel, height=2400)
    lines = panel.get_by_label("Pairs, one per line")
    lines.fill("The capital of France is")
    lines.blur()
    expect(panel.get_by_text("line 1 must be clean | corrupted", exact=False)).to_be_visible()
    lines.fill("The capital of France is | The capital of Italy is")
    lines.blur()
    nb.done()
    expect(panel.get_by_text("Fewer than two pairs to average: no interval and no test.", exact=False)).to_be_visible()

    # a circuit: a part that is clicked is left out, and what is kept is measured
    panel.get_by_role("tab", name="Circuit").click()
    nb.done()
    expect(panel.get_by_text("Smallest circuit beyond chance", exact=False)).to_be_visible()
    panel.locator(".iw-table:visible tbody tr").filter(has_text="mlp 0").click()
    panel.get_by_role("button", name="Leave out mlp 0").click()
    expect(panel.get_by_text("random circuits like it", exact=False).last).to_contain_text("Kept: ")
    nb.looks("patching_circuit", panel, height=2400)

    # the paths: to the logits, then to the queries of a head
    panel.get_by_role("tab", name="Paths").click()
    nb.done()
    expect(panel.get_by_text("Direct paths to logits", exact=False).first).to_be_visible()
    receivers = panel.get_by_label("Receivers")
    receivers.fill("head_q 9.1")
    receivers.blur()
    expect(panel.get_by_text("layer must be in -6..5", exact=False)).to_be_visible()
    receivers.fill("head_q 3.1")
    receivers.blur()
    nb.done()
    expect(panel.get_by_text("Direct paths to head_q 3.1", exact=False).first).to_be_visible()
    panel.locator(".iw-table:visible tbody tr").first.click()
    nb.wait_py("panel.picked_part == panel['paths'].listed[0]", True)
    nb.looks("patching_paths", panel, height=2400)
    nb.no_error_outputs()
