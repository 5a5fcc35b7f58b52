"""The attention explorer in a real notebook: a head by pointer and keys, a token, the sink left out, known heads."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect


@pytest.fixture
def opened(nb: Any) -> Any:
    """A panel of the demo pair."""
    return nb.show("AttentionExplorer(pair, layer=3, head=0)", name="attention")


def test_journey(opened: Any) -> None:
    nb, panel = opened, opened.panel
    nb.resize(1400, 1200)
    heads = panel.locator(".iw-thumb:visible")
    expect(heads).to_have_count(36)
    expect(heads.nth(18)).to_have_attribute("aria-selected", "true")
    drawn = "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(v => v > 0)"
    assert heads.nth(35).locator("canvas").evaluate(drawn)
    nb.looks("attention", panel, height=1600, first=820)

    # a head by pointer, another by keys
    heads.nth(13).click()
    nb.wait_py("(attention.layer, attention.head)", (2, 1))
    expect(panel.locator(".iw-title:visible", has_text="Head 2.1, query × key")).to_have_count(1)
    nb.page.keyboard.press("ArrowDown")
    nb.page.keyboard.press("ArrowRight")
    assert nb.py("(attention.layer, attention.head)") == (2, 1), "Enter chooses"
    nb.page.keyboard.press("Enter")
    nb.wait_py("(attention.layer, attention.head)", (3, 2))

    # a token shades the others by what it attends to
    panel.locator(".iw-strip:visible .iw-tok").nth(3).click()
    nb.wait_py("attention.position", 2)
    expect(panel.get_by_text("What ‘·Tower’ attends to in head 3.2")).to_be_visible()
    arcs = nb.py("[strip for _, strip in attention['patterns'].strips.drawn()][0].arcs")
    assert arcs
    expect(panel.locator(".iw-strip:visible .iw-arcs path")).to_have_count(len(arcs))

    # without the sink, by a score
    panel.get_by_label("Without the sink").check()
    expect(panel.locator(".iw-title:visible", has_text="rows renormalised over the other keys")).to_have_count(2)
    panel.get_by_label("Sorted by").select_option("first token score")
    expect(panel.locator(".iw-title:visible", has_text="by first token score, highest first")).to_have_count(1)
    best = nb.py("attention['patterns']._orders['A'][0]")
    heads.first.click()
    nb.wait_py("(attention.layer, attention.head)", divmod(best, 6))
    nb.screenshot("attention_sorted", panel)
    panel.get_by_role("button", name="A beside B").click()
    nb.wait_py("attention.view", "beside")
    expect(heads).to_have_count(72)
    nb.rests()
    nb.screenshot("attention_beside", panel)

    # heads of a known kind
    panel.get_by_role("tab", name="Find").click()
    nb.done()
    expect(panel.get_by_text("Highest previous token scores of A")).to_have_count(1)  # it opens on the strongest
    panel.get_by_label("Score", exact=True).select_option("first token")
    expect(panel.get_by_text("Highest first token scores of A")).to_have_count(1)
    row = panel.locator(".iw-table:visible tbody tr").first
    name = row.locator("td").first.inner_text()
    row.click()
    nb.wait_py("f'{attention.layer}.{attention.head}'", name)
    nb.rests()
    nb.looks("attention_find", panel, height=1400)

    # why it attends there, and whether the prediction needs it
    panel.get_by_role("tab", name="Why here?").click()
    nb.done()
    keys = panel.locator(".iw-strip:visible").nth(2).locator(".iw-tok")
    keys.nth(1).click()
    nb.wait_py("(attention.attended, attention.status.state, attention.result[0].key)", (1, "done", 1))
    nb.rests()
    nb.looks("attention_why", panel, height=1600)

    # what it writes there, as a direct effect
    panel.get_by_role("tab", name="Writes", exact=True).click()
    nb.done()
    expect(panel.get_by_text("Direct effect only", exact=False)).to_be_visible()
    panel.locator(".iw-strip:visible .iw-tok").nth(2).click()
    nb.wait_py("(attention.position, attention.status.state, attention.result[0].position)", (1, "done", 2))
    expect(panel.locator(".iw-table:visible tbody tr")).to_have_count(20)
    nb.rests()
    nb.looks("attention_writes", panel, height=1400)

    # the words of its weights in texts, and where in texts it attends most
    panel.get_by_role("tab", name="Words", exact=True).click()
    nb.done()
    expect(panel.get_by_text("Compared with other words at the same distance").first).to_be_visible()
    nb.rests()
    nb.looks("attention_words", panel, height=1400)
    panel.get_by_role("tab", name="Texts", exact=True).click()
    nb.done()
    nb.rests()
    nb.looks("attention_texts", panel, height=1500)
    before = nb.py("attention.prompt")
    panel.locator(".iw-table:visible tbody tr").first.click()
    expect(panel.get_by_text("is now the prompt of all panels on this workbench")).to_be_visible()
    assert nb.py("attention.prompt") != before
    panel.get_by_role("tab", name="Needed?").click()
    nb.done()
    panel.get_by_label("Other heads of").select_option("all layers")
    expect(panel.get_by_text("Of 35 other heads of all layers").first).to_be_visible()
    nb.rests()
    nb.looks("attention_needed", panel, height=1200)
    nb.no_error_outputs()
