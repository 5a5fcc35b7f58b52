"""Clusters in a real notebook: the training that ships, played and looked at, and the instructions of two models."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect


def test_journey(nb: Any) -> None:
    panel = nb.show("ClusterExplorer(pair)").panel
    expect(panel.get_by_text("Step 3,350: the model solves 85%", exact=False)).to_be_visible()
    nb.looks("clusters", panel, height=2400)

    # other curves, and the checkpoints one after the other
    panel.get_by_label("Curves", exact=True).select_option(label="nearest training instances with the same task")
    nb.wait_py("panel.curves", "same_task")
    nb.py(code="panel.checkpoint = 0")
    expect(panel.get_by_text("Step 0: the model solves", exact=False)).to_be_visible()
    panel.locator(".widget-play button").first.click()
    nb.wait_py("panel.checkpoint > 1", True)

    # instructions, both models beside each other
    panel.get_by_role("tab", name="Instructions").click()
    nb.wait_py("panel.tab", "instructions")
    nb.done()
    panel.get_by_role("button", name="A beside B").click()
    nb.wait_py("panel.view", "beside")
    nb.done()
    nb.looks("clusters_instructions", panel, height=2400)
