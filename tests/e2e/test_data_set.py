"""A data set in a real notebook: its first view, another question, two models compared, a row opened."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect


def test_journey(nb: Any) -> None:
    panel = nb.show("DataSetExplorer(pair)").panel
    tables = panel.locator(".iw-table:visible")
    expect(tables.last.locator("tbody tr")).to_have_count(40)
    expect(tables.first.locator("tbody tr")).to_have_count(5)
    nb.looks("data_set", panel, height=2400)

    # what the models differ in, row by row
    panel.get_by_role("radio", name="B − A").or_(panel.get_by_role("button", name="B − A")).first.click()
    nb.wait_py("panel.view", "difference")
    nb.done()
    expect(tables.first.get_by_text("difference", exact=True)).to_be_visible()

    # another number, another question
    panel.get_by_label("Show", exact=True).select_option("entropy")
    nb.wait_py("panel.measure", "entropy")
    panel.get_by_label("Analysis", exact=True).select_option(label="Token decomposition: which token brings the answer")
    nb.wait_py("panel.study", "decomposition")
    nb.done()
    nb.wait_py("panel.measure", "share")
    nb.bokeh_idle()
    nb.screenshot("data_set_difference", panel)

    # a row becomes the prediction of all panels
    tables.last.locator("tbody tr").nth(3).click()
    nb.wait_py("panel.workbench.prompt", nb.py("panel.shown_request.inputs[0].rows[3]['prompt']"))
    expect(panel.get_by_text("Row 3 is now the prompt of all panels", exact=False)).to_be_visible()
