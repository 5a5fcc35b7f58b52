"""Pictures of every tab of the workbench on SmolLM2, for notebooks/GALLERY.md: wide and narrow, light and dark.

``make gallery`` writes them into notebooks/images/smollm2; it is a check of its own only in that a panel with an error,
or one wider than its cell, fails it.
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

FOLDER = Path(__file__).parents[2] / "notebooks" / "images" / "smollm2"
SETUP = """
from interp_widgets import Workbench, load_model
bench = Workbench(load_model("smollm2"))
screen = bench.screen
"""
PATIENCE = 240
"""Seconds for the result of a tab; the picture shows what there is by then."""
LONGEST = 120
"""Seconds up to which Run is pressed where a tab waits for it; a longer forecast is part of the picture."""
COLOURS = 256


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
                keep(card.screenshot(), FOLDER / f"{tab}_{name}_{width}.png")
            if width == 1400:
                nb.py(code="screen.shown = ('saliency', 'logit_lens')")
                nb.bokeh_idle()
                nb.rests()
                keep(nb.page.locator(".iw-screen").screenshot(), FOLDER / f"workbench_{name}.png")


def keep(png: bytes, path: Path) -> None:
    """Write a picture with few colours: a third of its size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
