"""The concept browser in a real notebook: search, click, lasso, read, steer, add, compare."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect


@pytest.fixture
def opened(nb: Any) -> Any:
    """A browser of the demo pair, with a few groups of the demo's concepts."""
    nb.make(
        "concepts.ipynb",
        "from interp_widgets import demo_concepts, load_demo_pair\n"
        "from interp_widgets.widgets.concepts import ConceptBrowser\n"
        "pair = load_demo_pair()\npanel = ConceptBrowser(pair, view='B')\npanel",
    )
    nb.run_all()
    done(nb)
    return nb


def done(nb: Any) -> None:
    """Wait until nothing runs, pressing Run where the forecast asks for it."""
    if nb.py("panel.status.state") == "waiting":
        panel_of(nb).get_by_role("button", name="Run", exact=True).click()
    nb.wait_py("(panel.status.state, panel.busy)", ("done", False), seconds=120)


def panel_of(nb: Any) -> Any:
    return nb.page.locator(".iw-panel").first


def open_tab(nb: Any, name: str) -> None:
    panel_of(nb).get_by_role("tab", name=name, exact=True).click()
    nb.page.wait_for_timeout(300)
    nb.wait_py("panel.busy", False, seconds=60)


def handle(panel: Any, name: str) -> Any:
    """The handle of a slider."""
    return panel.locator(".widget-hslider").filter(has_text=name).locator(".noUi-handle")


def pictures(nb: Any, panel: Any, name: str) -> None:
    for theme in ("Light", "Dark"):
        nb.set_theme(f"JupyterLab {theme}")
        for width in (1400, 700):
            nb.resize(width, 2600)
            nb.page.wait_for_timeout(300)
            nb.screenshot(f"concepts_{name}_{theme.lower()}_{width}", panel)
    nb.set_theme("JupyterLab Light")
    nb.resize(1400, 1700)


def test_journey(opened: Any) -> None:
    nb = opened
    panel = panel_of(nb)
    nb.bokeh_idle()
    for tab in ("Map", "Quality", "Read", "Steer", "Base and tuned"):
        open_tab(nb, tab)
        pictures(nb, panel, tab.split()[0].lower())
