"""The circuit board in a real notebook: a cell, its map and its truth; both themes and widths."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect


def test_journey(nb: Any) -> None:
    nb.show("CircuitBoard(pair.tuned)")
    panel = nb.panel
    expect(panel.locator(".iw-heat canvas").first).to_be_visible()
    expect(panel.get_by_text("this is about the methods, not about demo-tuned", exact=False)).to_be_visible()
    nb.done()
    expect(panel.get_by_text("First (✓ matters): head 1.1 ✓", exact=False)).to_be_visible()
    nb.looks("circuits", panel, height=2000)

    # a cell by the keyboard: the row above, the column beside
    panel.locator(".iw-heat canvas.iw-top").first.focus()
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        nb.page.keyboard.press(key)
    nb.wait_py("(panel.method, panel.circuit)", ("mean ablation", "busy_idle"))
    nb.done()
    expect(panel.get_by_text("First (✓ matters): head 1.0 ✓", exact=False)).to_be_visible()

    # edges are ranked by path patching alone
    panel.get_by_label("Find the").select_option("edges")
    nb.done()
    expect(panel.get_by_text("mean ablation ranks no edges of busy_idle.", exact=False)).to_be_visible()
    nb.py(code="panel.method, panel.circuit = 'path patching, noising', 'backup'")
    nb.done()
    expect(panel.get_by_text("head 1.1 to logits ✓", exact=False)).to_be_visible()
    nb.looks("circuits_edges", panel, height=2000)
    panel.get_by_role("button", name="Open it in a workbench").click()
    expect(panel.get_by_text("circuit-backup", exact=True)).to_be_visible()
    expect(panel.get_by_text("head 1.1 to logits, ", exact=False)).to_be_hidden()
    panel.get_by_text("What matters", exact=True).click()
    expect(panel.get_by_text("head 1.1 to logits, ", exact=False)).to_be_visible()
    nb.no_error_outputs()
