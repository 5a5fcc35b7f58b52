"""Pictures of every tab of the workbench on SmolLM2, for notebooks/GALLERY.md: wide and narrow, light and dark.

``make gallery`` writes them into notebooks/images/smollm2, and the page that shows them; a panel with an error, or one
wider than its cell, fails it.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import expect

from interp_widgets.widgets.workbench.tools import TOOLS

from .conftest import DARK, LIGHT

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


@pytest.mark.timeout(3600)
def test_gallery(nb: Any) -> None:
    nb.make("gallery.ipynb", SETUP, "bench")
    nb.run_all()
    nb.resize(1400, 2600)
    for tab in TOOLS:
        nb.py(code=f"screen.shown = ({tab!r},); panel = screen[{tab!r}].current_panel")
        nb.py(code=f"screen.wait({PATIENCE})")
        forecast = "panel.asked_to_run and panel.forecast(panel.request()).seconds"
        if nb.py("bool(panel.asked_to_run)") and nb.py(forecast) < LONGEST:
            nb.py(code=f"panel.go(); screen.wait({PATIENCE})")
        assert nb.py("screen.status_line.error") == "", tab
    for theme, name in ((LIGHT, "light"), (DARK, "dark")):
        nb.set_theme(theme)
        for width in (1400, 700):
            nb.resize(width, 2600)
            for tab in TOOLS:
                nb.py(code=f"screen.shown = ({tab!r},)")
                card = nb.page.locator(".iw-card:visible").first
                expect(card).to_contain_text(TOOLS[tab].question)
                nb.bokeh_idle()
                nb.rests()
                assert card.evaluate("card => card.scrollWidth <= card.clientWidth + 1"), (tab, width)
                keep(card.screenshot(), FOLDER / f"{tab}_{name}_{width}.webp")
            if width == 1400:
                nb.py(code="screen.shown = ('saliency', 'logit_lens')")
                nb.bokeh_idle()
                nb.rests()
                keep(nb.page.locator(".iw-screen").screenshot(), FOLDER / f"workbench_{name}.webp")

    (NOTEBOOKS / "GALLERY.md").write_text(page(), encoding="utf-8")


def page() -> str:
    """The page of the pictures: wide and light in place, the others a click away."""
    folder = FOLDER.relative_to(NOTEBOOKS)
    parts = [
        "# Gallery: every tab of the workbench on a pretrained model",
        'SmolLM2 135M (instruct) as it opens, nothing set by hand: `Workbench(load_model("smollm2"))`.',
        "`make gallery` takes these pictures again.",
        f"![The workbench]({folder}/workbench_light.webp)",
        f"[The workbench in the dark theme]({folder}/workbench_dark.webp)",
    ]
    others = {"dark": "dark_1400", "narrow": "light_700", "narrow and dark": "dark_700"}
    for name, tool in TOOLS.items():
        links = ", ".join(f"[{label}]({folder}/{name}_{suffix}.webp)" for label, suffix in others.items())
        parts += [f"## {tool.title}: {tool.question}", f"![{tool.title}]({folder}/{name}_light_1400.webp)", links]
    return "\n\n".join(parts) + "\n"


def keep(png: bytes, path: Path) -> None:
    """Write a picture without loss, at half the size of a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(io.BytesIO(png)).convert("RGB").save(path, lossless=True, method=6)
