"""Pictures of every tab of the workbench on SmolLM2, for notebooks/GALLERY.md: wide and narrow, light and dark.

``make gallery`` writes them into notebooks/images/smollm2, and the page that shows them; a panel with an error, one
wider than its cell, or one with a name, role, contrast or target size that axe finds wrong, fails it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from interp_widgets.widgets.workbench.tools import TOOLS
from tests.pictures import keep

from .conftest import DARK, LIGHT, axe_faults

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FOLDER = NOTEBOOKS / "images" / "smollm2"
SETUP = """
from interp_widgets import Workbench, load_model
bench = Workbench(load_model("smollm2"))
screen = bench.screen
"""
PATIENCE = 240
"""Seconds for the result of a tab; the picture shows what there is by then."""
LONGEST = 120
"""Seconds up to which Run is pressed where a tab waits for it; a longer forecast is part of the picture."""
TOOL_PICTURES = (("light", 1400), ("dark", 1400), ("light", 700), ("dark", 700))
TAB_PICTURES = (("light", 1400), ("dark", 700))
"""Themes and widths in which the first tab of a tool is taken, and its other tabs."""
TARGETS = {"target-size": {"enabled": True}}
"""A rule of axe that is off by itself."""


@pytest.mark.timeout(3600)
def test_gallery(nb: Any) -> None:
    nb.make("gallery.ipynb", SETUP, "bench")
    nb.run_all()
    nb.resize(1400, 2600)
    nb.page.evaluate("() => { document.body.style.overflow = 'visible'; }")  # or axe takes everything for hidden
    tabs: dict[str, dict[str, str]] = {}
    for tool in TOOLS:
        nb.py(code=f"screen.shown = ({tool!r},); shell = screen[{tool!r}]")
        names = nb.py("{name: shell.tab_title(name) for name in getattr(shell, 'fitting', ())}")
        first = nb.py("shell.tab") if names else ""
        tabs[tool] = {first: names.pop(first, ""), **names}
        for tab in tabs[tool]:
            open_tab(nb, tool, tab)
            nb.py(code=f"panel = shell.current_panel; screen.wait({PATIENCE})")
            forecast = "panel.asked_to_run and panel.forecast(panel.request()).seconds"
            if nb.py("bool(panel.asked_to_run)") and nb.py(forecast) < LONGEST:
                nb.py(code=f"panel.go(); screen.wait({PATIENCE})")
            assert nb.py("screen.status_line.error") == "", (tool, tab)
    faults: list[str] = []
    for theme, name in ((LIGHT, "light"), (DARK, "dark")):
        nb.set_theme(theme)
        for width in (1400, 700):
            nb.resize(width, 2600)
            for tool in TOOLS:
                for number, tab in enumerate(tabs[tool]):
                    if (name, width) in (TAB_PICTURES if number else TOOL_PICTURES):
                        open_tab(nb, tool, tab)
                        card = nb.page.locator(".iw-card:visible").first
                        expect(card).to_contain_text(TOOLS[tool].question)
                        nb.bokeh_idle()
                        nb.rests()
                        assert card.evaluate("card => card.scrollWidth <= card.clientWidth + 1"), (tool, tab, width)
                        found = axe_faults(nb.page, ".iw-card:not(.iw-hidden)", rules=TARGETS)
                        faults += [f"{tool} {tab}, {name} {width}: {fault}" for fault in found]
                        keep(card.screenshot(), FOLDER / f"{picture(tool, tab, number)}_{name}_{width}.webp")
            if width == 1400:
                open_tab(nb, "saliency", next(iter(tabs["saliency"])))  # the tab that it opens on
                nb.py(code="screen.shown = ('saliency', 'logit_lens')")
                nb.bokeh_idle()
                nb.rests()
                keep(nb.page.locator(".iw-screen").screenshot(), FOLDER / f"workbench_{name}.webp")

    (NOTEBOOKS / "GALLERY.md").write_text(page(tabs), encoding="utf-8")
    assert not faults, "\n".join(faults)


def open_tab(nb: Any, tool: str, tab: str) -> None:
    """Show a tool, with one of its tabs if it has any."""
    nb.py(code=f"screen.shown = ({tool!r},); shell = screen[{tool!r}]" + (f"; shell.open_tab({tab!r})" if tab else ""))


def picture(tool: str, tab: str, number: int) -> str:
    """The beginning of the names of a tab's pictures."""
    return f"{tool}_{tab}" if number else tool


def page(tabs: Mapping[str, Mapping[str, str]]) -> str:
    """The page of the pictures: the first tab of a tool wide and light in place, the others a click away.

    `tabs` holds the titles of every tool's tabs, by name, the first one first.
    """
    folder = FOLDER.relative_to(NOTEBOOKS)

    def links(name: str, pictures: Sequence[tuple[str, int]]) -> str:
        labels = {("light", 1400): "wide", ("dark", 1400): "dark", ("light", 700): "narrow"}
        return ", ".join(
            f"[{labels.get((theme, width), 'narrow and dark')}]({folder}/{name}_{theme}_{width}.webp)"
            for theme, width in pictures
        )

    parts = [
        "# Gallery: every tab of the workbench on a pretrained model",
        'SmolLM2 135M (instruct) as it opens, nothing set by hand: `Workbench(load_model("smollm2"))`.',
        "`make gallery` takes these pictures again.",
        f"![The workbench]({folder}/workbench_light.webp)",
        f"[The workbench in the dark theme]({folder}/workbench_dark.webp)",
    ]
    for name, tool in TOOLS.items():
        parts += [
            f"## {tool.title}: {tool.question}",
            f"![{tool.title}]({folder}/{name}_light_1400.webp)",
            links(name, TOOL_PICTURES[1:]),
        ]
        others = list(tabs[name].items())[1:]
        if others:
            parts.append("\n".join(
                f"- {title}: {links(picture(name, tab, 1), TAB_PICTURES)}" for tab, title in others
            ))  # fmt: skip
    return "\n\n".join(parts) + "\n"
