"""The ablation panel in JupyterLab: maps, a picked cell, a list of ablations, text under them, heads, tracing."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

OPEN = """
from interp_widgets import load_demo_pair
from interp_widgets.widgets.ablation import AblationPanel
pair = load_demo_pair()
panel = AblationPanel(pair.base)
panel
"""


@pytest.fixture
def opened(nb: Any) -> Any:
    """A notebook with the panel on the demo model, its first result drawn."""
    nb.make("ablation.ipynb", OPEN)
    nb.run_all()
    nb.wait_py("panel.status.state", "done", seconds=60)
    nb.resize(1400, 1500)
    return nb


def pictures(nb: Any, panel: Any, name: str) -> None:
    """The panel light and dark, wide and narrow."""
    for theme in ("Light", "Dark"):
        nb.set_theme(f"JupyterLab {theme}")
        for width in (1400, 700):
            nb.resize(width, 2600)
            nb.page.wait_for_timeout(300)
            nb.screenshot(f"ablation_{name}_{theme.lower()}_{width}", panel)
    nb.set_theme("JupyterLab Light")
    nb.resize(1400, 1500)


def click_cell(nb: Any, canvas: Any, row: int, column: int, shape: tuple[int, int]) -> None:
    """Click the middle of a cell of a map."""
    canvas.evaluate("node => node.scrollIntoView({ block: 'center' })")
    x, y, w, h = (float(part) for part in canvas.get_attribute("data-frame").split())
    box = canvas.bounding_box()
    nb.page.mouse.click(box["x"] + x + (column + 0.5) / shape[1] * w, box["y"] + y + (row + 0.5) / shape[0] * h)


def test_journey(opened: Any) -> None:
    nb = opened
    panel = nb.page.locator(".iw-panel").first
    maps = panel.locator(".iw-heat canvas.iw-top:visible")
    expect(maps).to_have_count(4)
    click_cell(nb, maps.nth(1), 0, 8, (6, 9))
    nb.wait_py("(panel.kind, panel.layer, panel.position, panel.prompt_token)", ("mlp", 0, 8, 8))
    nb.wait_py("len(panel.cell.table.rows) > 0", True)
    panel.get_by_role("button", name="Add to the list").click()
    click_cell(nb, maps.nth(0), 3, 8, (6, 9))
    nb.wait_py("(panel.kind, panel.layer)", ("attn", 3))
    panel.get_by_role("button", name="Add to the list").click()
    nb.wait_py("len(panel.stack.lines)", 2)
    panel.get_by_role("button", name="Generate with these").click()
    nb.wait_py("len(panel.stack.texts.found)", 1, seconds=60)
    pictures(nb, panel, "modules")
    panel.get_by_role("tab", name="Heads").click()
    nb.wait_py("panel.tab", "heads")
    if nb.py("panel.status.state") == "waiting":
        panel.get_by_role("button", name="Run", exact=True).click()
    nb.wait_py("panel.status.state", "done", seconds=60)
    pictures(nb, panel, "heads")
    panel.get_by_role("tab", name="Tracing").click()
    nb.wait_py("panel.tab", "tracing")
    if nb.py("panel.status.state") == "waiting":
        panel.get_by_role("button", name="Run", exact=True).click()
    nb.wait_py("panel.status.state", "done", seconds=60)
    pictures(nb, panel, "tracing")
