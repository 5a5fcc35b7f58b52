"""Layer similarity in a real notebook: opened on what ships, a layer, a cluster, every tab, light and dark."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect


@pytest.fixture
def opened(nb: Any) -> Any:
    """The explorer on the demo pair."""
    return nb.show("LayerSimilarityExplorer(pair)")


def test_journey(opened: Any) -> None:
    nb = opened
    panel = nb.panel
    table = panel.locator(".iw-table:visible").first
    expect(table.locator("tbody tr")).to_have_count(22)
    expect(panel.get_by_text("No clear sections", exact=False)).to_be_visible()
    nb.bokeh_idle()

    # the tasks that the tuned model was never asked, and another layer
    panel.get_by_label("Tasks", exact=True).select_option("never tuned on")
    expect(table.locator("tbody tr")).to_have_count(5)
    nb.wait_py("panel.cluster", "never tuned on")
    panel.get_by_label("Tasks", exact=True).select_option("all")
    expect(table.locator("tbody tr")).to_have_count(22)

    # the biased estimate is another picture of the same answer
    panel.get_by_label("CKA", exact=True).select_option("biased")
    expect(panel.get_by_text("the debiased CKA does not have this bias", exact=False)).to_be_visible()
    panel.get_by_label("CKA", exact=True).select_option("debiased if texts are few")

    # every tab, as it is opened
    for name in ("Tasks", "Layers", "Projections", "Dimensions", "Texts"):
        panel.get_by_role("tab", name=name, exact=True).click()
        nb.wait_py("panel.tab", name.lower())
        nb.done()
        assert nb.py("panel.status.error") == ""
        nb.looks(f"layer_similarity_{name.lower()}", panel, height=1600)

    # another number of texts needs control models compared anew: that waits for Run, which says how long
    panel.get_by_role("tab", name="Tasks", exact=True).click()
    nb.wait_py("panel.tab", "tasks")
    box = panel.get_by_role("spinbutton", name="Texts per task").first
    box.fill("8")
    box.press("Enter")
    nb.wait_py("panel.texts_per_task", 8)
    expect(panel.get_by_text("Inputs changed: press Run", exact=False)).to_be_visible()
    box.fill("100")
    box.press("Enter")
    nb.done()
