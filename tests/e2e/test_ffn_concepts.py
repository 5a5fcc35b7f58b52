"""The FFN concept browser in a real notebook: layers, notes typed into the table, rules, neurons, two models."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect


@pytest.fixture
def opened(nb: Any) -> Any:
    """A browser of the demo pair."""
    return nb.show("FFNConceptBrowser(pair)")


def components(nb: Any) -> Any:
    """The table of components."""
    return nb.panel.locator(".iw-table").nth(2)


def cell(nb: Any, component: int, column: str) -> Any:
    """A cell of the table of components that can be written into."""
    row = components(nb).locator(f"tr[data-key='A/{nb.py('panel.layer')}/{component}']")
    return row.locator(f"td[data-edit='{column}']")


def test_journey(opened: Any) -> None:
    nb = opened
    panel = nb.panel
    expect(components(nb).locator("tbody tr")).to_have_count(20)
    nb.bokeh_idle()

    # a description typed into the table: two clicks, text with HTML in it, Enter
    target = cell(nb, 4, "description")
    target.dblclick()
    field = components(nb).locator("input.iw-edit-field")
    expect(field).to_be_focused()
    field.fill("<b>moods</b> & feelings")
    field.press("Enter")
    nb.wait_py("panel.annotations[0].description(5, 4)", "<b>moods</b> & feelings")
    expect(cell(nb, 4, "description")).to_have_text("<b>moods</b> & feelings")
    expect(components(nb).locator("b")).to_have_count(0)
    expect(cell(nb, 4, "description")).to_be_focused()

    # from the keyboard alone: scenarios (a group of boxes), then the level (a list); Tab keeps what was chosen
    nb.page.keyboard.press("ArrowRight")
    expect(cell(nb, 4, "scenarios")).to_be_focused()
    nb.page.keyboard.press("Enter")
    nb.page.keyboard.press("Space")
    nb.page.keyboard.press("Enter")
    nb.wait_py("panel.annotations[0].scenarios(5, 4)", ("writing",))
    expect(cell(nb, 4, "scenarios")).to_have_text("writing")
    nb.page.keyboard.press("ArrowRight")
    nb.page.keyboard.press("Enter")
    components(nb).locator("select.iw-edit-field").select_option("semantics")
    nb.page.keyboard.press("Tab")
    nb.wait_py("panel.annotations[0].level(5, 4)", "semantics")
    expect(cell(nb, 5, "description")).to_be_focused()

    # Esc drops what was typed; a line begun is not lost when other answers come in
    nb.page.keyboard.press("Enter")
    field.fill("not this")
    field.press("Escape")
    expect(cell(nb, 5, "description")).to_have_text("–")
    nb.page.keyboard.press("Enter")
    field.fill("half a sen")
    nb.py(code="panel['concepts'].note('A', (5, 0), description='from elsewhere')")
    expect(cell(nb, 0, "description")).to_have_text("from elsewhere")
    expect(field).to_have_value("half a sen")
    expect(field).to_be_focused()
    field.press("Enter")
    nb.wait_py("panel.annotations[0].description(5, 5)", "half a sen")

    # rules, in the worker; what was typed stays
    panel.get_by_label("Annotate", exact=True).select_option("all layers")
    panel.get_by_role("button", name="Annotate", exact=True).click()
    nb.wait_py("len(panel['concepts'].notes_of('A'))", 120)
    nb.done()
    assert nb.py("panel.annotations[0].description(5, 4)") == "<b>moods</b> & feelings"
    components(nb).locator("tr[data-key='A/5/4']").click()
    nb.wait_py("panel.component", 4)

    # a note is deleted, by a button that says which one, and comes back
    panel.get_by_role("button", name="Delete note of component 4, layer 5 of A").click()
    expect(cell(nb, 4, "description")).to_have_text("–")
    panel.get_by_role("button", name="Undo deleting the note of component 4, layer 5 of A").click()
    expect(cell(nb, 4, "description")).to_have_text("<b>moods</b> & feelings")
    nb.looks("ffn_concepts", nb.panel, height=3200, first=420)

    # another layer: by its row, by the slider
    panel.locator(".iw-table").first.locator("tbody tr").nth(3).click()
    nb.wait_py("panel.layer", 3)
    expect(panel.get_by_text("components of layer 3", exact=False).first).to_be_visible()
    nb.handle("Layer").press("End")
    nb.wait_py("panel.layer", 5)

    # a word and where it is
    find = panel.get_by_label("Find a word", exact=True)
    find.fill("sad")
    find.press("Enter")
    nb.wait_py("panel.search", "sad")
    hit = panel.locator(".iw-table").nth(1).locator("tbody tr").first
    expect(hit).to_be_visible()
    hit.click()
    nb.wait_py("(panel.layer, panel.component)", nb.py("panel['concepts'].results[0].components_with('sad')[0][:2]"))

    # the endpoint shows where its key comes from, and no field takes one
    panel.get_by_label("Annotator", exact=True).select_option("a language model at an endpoint")
    expect(panel.get_by_text("OPENAI_API_KEY", exact=False)).to_be_visible()
    assert panel.locator("input[type=password]").count() == 0
    panel.get_by_role("button", name="Annotate", exact=True).click()
    expect(panel.get_by_role("alert")).to_contain_text("the endpoint needs a model")

    # neurons
    panel.get_by_role("tab", name="Neurons").click()
    nb.wait_py("panel.tab", "neurons")
    nb.done()
    nb.bokeh_idle()
    rows = panel.locator(".iw-table:visible").last.locator("tbody tr")
    expect(rows).to_have_count(100)
    rows.nth(2).click()
    nb.wait_py("panel.neuron == panel['neurons'].table.rows[2][0]", True)
    nb.looks("ffn_neurons", nb.panel, height=3200)
    panel.locator(".iw-strip:visible .iw-tok").nth(1).click()
    nb.wait_py("panel.position", 1)
    nb.done()

    # two models
    panel.get_by_role("tab", name="Comparison").click()
    nb.wait_py("panel.tab", "comparison")
    nb.done()
    nb.py(code="panel.scope, panel.annotator, panel.view = 'all', 'rules', 'B'")
    nb.py(code="panel['concepts'].annotating.ask()")
    nb.wait_py("len(panel['concepts'].notes_of('B'))", 120)
    nb.wait_py("panel['comparison'].annotated is not None", True)
    nb.done()
    nb.bokeh_idle()
    expect(panel.get_by_text("Concepts by linguistic level")).to_be_visible()
    nb.looks("ffn_comparison", nb.panel, height=3200)
    panel.get_by_role("tab", name="Concepts").click()
    panel.get_by_role("button", name="difference").locator("visible=true").click()
    nb.wait_py("(panel.view, panel.busy)", ("difference", False))
    expect(components(nb).locator("tbody tr")).to_have_count(20)
    nb.screenshot("ffn_difference", panel)
