"""The workbench of bias in a real notebook: an example becomes the prompt, a layer, a neuron, an edit switched on."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect


@pytest.fixture
def opened(nb: Any) -> Any:
    """A workbench of bias on the demo pair."""
    return nb.show("BiasWorkbench(pair)")


def tab(nb: Any, name: str) -> None:
    nb.panel.get_by_role("tab", name=name).click()
    nb.wait_py("panel.tab", name.lower())
    nb.done()


def test_journey(opened: Any) -> None:
    nb = opened
    panel = nb.panel
    table = panel.locator(".iw-table:visible")
    expect(table.first.locator("tbody tr")).to_have_count(86)
    nb.bokeh_idle()

    # an example becomes the prompt, from the keyboard
    row = table.first.locator("tbody tr").nth(1)
    row.click()
    nb.wait_py("panel.workbench.prompt", nb.py("panel.result[0].sentences[1][0]"))
    expect(panel.get_by_text("The prompt of all panels on this workbench is now", exact=False)).to_be_visible()

    # a file that is not there is a hint at its box
    box = panel.get_by_label("File", exact=True)
    box.fill("/nowhere.json")
    box.press("Enter")
    expect(panel.get_by_text("there is no file of sentences about bias at /nowhere.json", exact=False)).to_be_visible()
    box.fill("")
    box.press("Enter")
    nb.done()

    # every tab, as it is opened
    for name in ("Probes", "Neurons", "Judge"):
        tab(nb, name)
        nb.bokeh_idle()
        assert nb.py("panel.status.error") == ""
        nb.looks(f"bias_{name.lower()}", panel, height=2400, first=420)

    # a saved edit that is not there is a hint at its box, under More
    panel.get_by_role("button", name="More").locator("visible=true").first.click()
    saved = panel.get_by_label("Saved edits, a file per line", exact=True)
    saved.fill("/nowhere.safetensors")
    saved.press("Control+Enter")
    expect(panel.get_by_text("there is no file of an edit at /nowhere.safetensors", exact=False)).to_be_visible()
    nb.looks("bias_judge_more", panel, height=2400)
    saved.fill("")
    saved.press("Control+Enter")
    nb.wait_py("panel.edit_files", [])

    # a neuron is selected for all panels
    tab(nb, "Neurons")
    table.first.locator("tbody tr").nth(2).click()
    nb.wait_py("(panel.workbench.layer, panel.workbench.neuron) == panel.picked", True)

    # an edit, switched on: the title line says so, and the data are scored anew
    tab(nb, "Debias")
    nb.looks("bias_debias", panel, height=2400, first=420)
    panel.get_by_label("Method", exact=True).select_option("LEACE")
    nb.wait_py("panel.method", "leace")
    nb.done()
    plain = nb.py("panel.result[0].before.overall.ss")
    panel.get_by_role("button", name="Switch the edit on").click()
    expect(panel.locator(".iw-heading .iw-edited")).to_have_count(2)
    expect(panel.get_by_role("button", name="Switch the edit off")).to_be_visible()
    tab(nb, "Data")
    assert nb.py("panel.result[0].overall.ss") == nb.py("panel['debias'].result[0].after.overall.ss") < plain
    tab(nb, "Debias")
    panel.get_by_role("button", name="Switch the edit off").click()
    expect(panel.locator(".iw-heading .iw-edited")).to_have_count(0)
    nb.wait_py("[model.edits for model in panel.models]", [(), ()])
