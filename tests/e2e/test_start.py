"""The first journey: the start notebook in JupyterLab, as a new user takes it, offline."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "00_start.ipynb"
CASE = "from interp_widgets.data.cases import default_prompt\ncase = default_prompt()\n"
PROMPT = "Instruction: Please give the plural of the word.\nInput: cat\nResponse:"


@pytest.fixture
def start(nb: Any) -> Any:
    """The start notebook as it is stored, with the kernel that a new user has, run to its end."""
    shutil.copy(NOTEBOOK, nb.lab.root / NOTEBOOK.name)
    nb.open(NOTEBOOK.name)
    nb.run_all()
    nb.shown = "explorer"
    nb.done()
    return nb


def explorer_of(nb: Any) -> Any:
    return nb.page.locator(".iw-panel").first


@pytest.mark.installation
def test_first_journey(start: Any) -> None:
    nb = start
    panel = explorer_of(nb)
    panel.scroll_into_view_if_needed()
    strips = panel.locator(".iw-strip:visible")
    tokens = strips.nth(1).locator(".iw-tok")
    expect(tokens.first).to_be_visible()
    nb.looks("saliency", panel, height=1900, first=420)

    # another prompt, typed; the response follows by itself or with Run
    box = panel.get_by_role("textbox", name="Prompt", exact=True)
    box.fill(PROMPT)
    box.blur()
    nb.wait_py("explorer.prompt", PROMPT)
    nb.done()
    nb.wait_py("explorer.response != ''", True)
    assert nb.py("explorer.response") == nb.py(f"pair.tuned.generate({PROMPT!r})")

    # Generate, by the other model
    nb.py(code="explorer.generated_by = 'A'")
    panel.get_by_role("button", name="Generate").click()
    nb.wait_py("explorer.response", nb.py(f"pair.base.generate({PROMPT!r})"))
    nb.done()

    # a click on a response token shades the prompt by its column
    before = nb.py("explorer['map'].prompt_strip.values.hex()")
    x, y = nb.center(tokens.first)
    nb.page.mouse.click(x, y)
    nb.wait_py("explorer.response_token", 0)
    expect(tokens.first).to_have_attribute("aria-selected", "true")
    assert nb.py("explorer['map'].prompt_strip.values.hex()") != before

    # marking the instruction by a drag gives its score
    panel.get_by_role("button", name="Mark instruction").click()
    prompt_tokens = strips.nth(0).locator(".iw-tok")
    x0, y0 = nb.center(prompt_tokens.nth(2))
    nb.page.mouse.move(x0, y0)
    nb.page.mouse.down()
    x1, y1 = nb.center(prompt_tokens.nth(6))
    nb.page.mouse.move(x1, y1, steps=8)
    nb.page.mouse.up()
    nb.wait_py("explorer.marks", [[2, 7]])
    expect(panel.get_by_text("Instruction score", exact=False).first).to_be_visible()

    # the difference of the two models
    panel.get_by_role("button", name="difference").click()
    nb.wait_py("explorer.view", "difference")
    nb.screenshot("saliency_difference", panel)


def test_an_error_the_check_and_a_data_set(nb: Any) -> None:
    nb.show("SaliencyExplorer(pair, prompt=case.prompt, instruction=case.instruction)", name="explorer", before=CASE)
    panel = explorer_of(nb)
    nb.looks("saliency_lesson", panel, height=1900, first=420)  # the map of the first lesson is above the fold

    # an error is a sentence, and the map stays
    cells = nb.py("explorer['map'].heat.shape")
    box = panel.get_by_role("textbox", name="Prompt", exact=True)
    box.fill("")
    box.blur()
    expect(panel.locator(".iw-wanted:visible")).to_contain_text("the prompt is empty")
    assert nb.py("explorer['map'].heat.shape") == cells
    nb.screenshot("saliency_error", panel)
    nb.py(code="explorer.prompt, explorer.response = 'The cat sat', ' on the mat'")
    nb.done()

    # the check of the methods, and many cases
    panel.get_by_role("tab", name="Check").click()
    nb.wait_py("explorer.tab", "check")
    nb.py(code="explorer.steps = 4")
    panel.get_by_role("button", name="Run", exact=True).click()
    nb.wait_py("(explorer.status.state, len(explorer['check'].table.rows) >= 4)", ("done", True))
    nb.resize(1400, 1900)
    nb.rests()
    nb.screenshot("saliency_check", panel)
    panel.get_by_role("tab", name="Data set").click()
    nb.wait_py("explorer.tab", "data_set")
    nb.py(code="explorer.case_count = 2")
    panel.get_by_role("button", name="Run", exact=True).click()
    nb.wait_py("(explorer.status.state, len(explorer['data_set'].table.rows))", ("done", 4))
    nb.rests()
    nb.screenshot("saliency_data_set", panel)
    panel.locator(".iw-table:visible tbody tr").nth(1).click()
    nb.wait_py("(explorer.tab, explorer.tabs.selected_index)", ("map", 0))
    nb.wait_py("explorer.prompt", nb.py("explorer['data_set'].shown_request.inputs[0].cases[1].prompt"))
