"""Four widgets on one workbench, in a real JupyterLab: a click in one moves the others to the same prediction."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SETUP = """
from interp_widgets import (AblationPanel, LogitLensExplorer, SaliencyExplorer, TokenDecompositionExplorer, Workbench,
                            load_demo_pair)
model = load_demo_pair().base
bench = Workbench(model, prompt="The Eiffel Tower is located in the city of")
"""
OPEN = {
    "saliency": "SaliencyExplorer(bench, max_new_tokens=8)",
    "lens": "LogitLensExplorer(bench)",
    "ablating": "AblationPanel(bench)",
    "parts": "TokenDecompositionExplorer(bench)",
}
SETTLED = "[panel.status.state for panel in bench.panels]"


@pytest.fixture
def bench(nb: Any) -> Any:
    """A notebook with the four widgets, each in a cell of its own."""
    nb.make("bench.ipynb", SETUP, *(f"{name} = {call}\n{name}" for name, call in OPEN.items()))
    nb.run_all()
    nb.wait_py(SETTLED, ["done"] * 4)
    nb.no_error_outputs()
    return nb


def run_where_asked(nb: Any) -> None:
    """Press Run where a panel forecasts a longer run, as on a busy machine, instead of answering by itself."""
    for cell, name in enumerate(OPEN, start=1):
        if nb.py(f"{name}.status.state") == "waiting":
            panel = nb.page.locator(".jp-Cell").nth(cell).locator(".iw-panel").first
            panel.get_by_role("button", name="Run", exact=True).click()


def test_what_is_clicked_in_one_moves_the_others(bench: Any) -> None:
    nb = bench

    # a response token: lens, ablation and decomposition
    nb.resize(1400, 1500)
    nb.py(code="prompt, answer = model.split(bench.prompt, bench.response); shown = len(prompt) - 1")
    assert nb.py("len(answer)") == 2  # the city and a full stop
    assert nb.py("(lens.cell[1], len(ablating.result.tokens), parts.result.tokens.position)") == (8, 9, 8)
    strips = nb.page.locator(".jp-Cell").nth(1).locator(".iw-panel .iw-strip")
    tokens = strips.nth(1).locator(".iw-tok")
    expect(tokens.nth(1)).to_be_visible()
    for chosen in (1, 0):
        x, y = nb.center(tokens.nth(chosen))
        nb.page.mouse.click(x, y)
        nb.wait_py("[panel.response_token for panel in bench.panels]", [chosen] * 4)
        nb.wait_py("lens.cell[1]", 8 + chosen)
        run_where_asked(nb)
        nb.wait_py(f"(len(ablating.result.tokens), ablating.result.target == answer[{chosen}])", (9 + chosen, True))
        nb.wait_py(
            f"(parts.result.tokens.position, parts.result.tokens.target == answer[{chosen}])",
            (8 + chosen, True),
        )
        nb.wait_py(SETTLED, ["done"] * 4)
    # what was asked is what is seen: the token before the prediction is the last one on the ablation's axis
    nb.page.mouse.click(*nb.center(tokens.nth(1)))
    nb.wait_py("ablating.response_token", 1)
    run_where_asked(nb)
    ablation = nb.page.locator(".jp-Cell").nth(3).locator(".iw-panel").first
    expect(ablation.get_by_text("·Paris", exact=False).first).to_be_visible()
    nb.wait_py(SETTLED, ["done"] * 4)
    nb.screenshot("workbench_ablation", ablation)

    # a cell of the lens: the layer
    nb.py(code="lens.select_cell(3, 2)")
    nb.wait_py("[panel.layer for panel in bench.panels if panel.has_trait('layer')]", [3, 3, 3])
    nb.wait_py("[panel.prompt_token for panel in bench.panels]", [2] * 4)


def test_the_notebook_leaves_no_error_in_the_page(nb: Any) -> None:
    """Its last cell closes a screen while the page is still making it. Cells that only compute are left out."""
    shutil.copytree(NOTEBOOKS, nb.lab.root, dirs_exist_ok=True)
    cells = json.loads((NOTEBOOKS / "14_workbench.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    shown = [source for source in code if "bench" in source]
    assert "again.close()" in shown[-1]
    nb.make("shown.ipynb", *shown)
    nb.run_all()
    nb.linger()
    assert nb.errors == []
