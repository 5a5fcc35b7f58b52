"""The lessons stored with what they show, to be read without a kernel: ``make stored`` runs those that have changed.

Every panel leaves a picture of its first view, since a widget without its kernel is an empty box.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ipywidgets as W
import nbformat
from bokeh.embed import file_html
from bokeh.resources import INLINE
from nbclient import NotebookClient
from PIL import Image

from interp_widgets.figures.static import render_png, stack_scenes
from interp_widgets.widgets.base.panel import Panel
from interp_widgets.widgets.base.stack import Stack
from interp_widgets.widgets.views import BokehFigure
from interp_widgets.widgets.workbench.screen import Screen
from interp_widgets.widgets.workbench.shown_tabs import ShownTabs
from interp_widgets.widgets.workbench.workbench import Workbench

HERE = Path(__file__).parent
OF_CODE = "stored_from"
"""The entry of a notebook's metadata that says of which code its outputs are."""
SETUP = "import stored\n\nstored.show_pictures()"
SECONDS = 600
"""Within which a cell has to run, and a panel to show its result."""
COLORS = 128
WIDTH = 900
"""Pixels of the page in which a chart is drawn."""
SCALE = 1.5
"""Pixels of the picture per pixel of the screen."""


def code_of(book: Any) -> str:
    """What the code of a notebook is, as some letters and digits: its outputs are of other code if they differ."""
    code = "\n\n".join(cell.source for cell in book.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def panels_in(widget: Any) -> Sequence[Panel]:
    """The panels in sight where a cell shows this."""
    if isinstance(widget, Workbench):
        return panels_in(widget.screen)
    if isinstance(widget, ShownTabs):
        return [panel for name in widget.names for panel in panels_in(widget[name])]
    if isinstance(widget, Screen):
        return [panel for name in widget.in_sight for panel in panels_in(widget[name])]
    if isinstance(widget, Stack):
        return panels_in(widget.current)
    return [widget] if isinstance(widget, Panel) else []


def chart(figure: Any) -> bytes:
    """A Bokeh figure as a browser draws it, as a PNG file."""
    sys.path.insert(0, str(HERE.parent))
    from tests.e2e.conftest import launched_chromium

    with launched_chromium() as browser:
        page = browser.new_page(viewport={"width": WIDTH, "height": 100}, device_scale_factor=SCALE)
        page.set_content(file_html(figure, INLINE))
        page.wait_for_function("() => Bokeh.documents.length === 1 && Bokeh.documents[0].is_idle")
        return bytes(page.screenshot(full_page=True))


def picture(widget: Any) -> bytes | None:
    """What is seen of a figure, or in a widget's panels when they are ready, as a PNG file; None of anything else."""
    if isinstance(widget, BokehFigure):
        with ThreadPoolExecutor(1) as apart:  # Playwright refuses the thread of a kernel's event loop
            return small(apart.submit(chart, widget.figure).result())
    panels = panels_in(widget)
    for panel in panels:
        panel.appear()
        if not panel.wait(SECONDS):
            raise TimeoutError(f"{panel!r} still runs after {SECONDS} s")
    scenes = [panel.scene() for panel in panels if panel.can_save("scene") and panel.result is not None]
    return small(render_png(stack_scenes(scenes), SCALE)) if scenes else None


def small(picture: bytes) -> bytes:
    """The picture in few colours."""
    written = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLORS).save(written, format="png", optimize=True)
    return written.getvalue()


def show_pictures() -> None:
    """In a kernel: show widgets as pictures from now on."""
    from IPython import get_ipython

    def bundle(widget: Any, **_: Any) -> dict[str, str]:
        drawn = picture(widget)
        shown = {} if drawn is None else {"image/png": base64.b64encode(drawn).decode()}
        return {**shown, "text/plain": repr(widget)}

    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # a missing font is no part of a lesson
    for kind in (W.Widget, Workbench):
        get_ipython().display_formatter.mimebundle_formatter.for_type(kind, bundle)


def store(path: Path) -> None:
    """Run a notebook, and write it with its outputs."""
    book = nbformat.read(path, as_version=4)
    first = nbformat.v4.new_code_cell(SETUP)
    run = nbformat.v4.new_notebook(cells=[first, *book.cells], metadata=book.metadata)
    NotebookClient(
        run, timeout=SECONDS, kernel_name="python3", record_timing=False, resources={"metadata": {"path": str(HERE)}}
    ).execute()
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.execution_count = None
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = None
    book.metadata.pop("widgets", None)
    book.metadata[OF_CODE] = code_of(book)
    nbformat.write(book, path)


def main(names: Sequence[str]) -> None:
    """Store the notebooks that are named, or those whose outputs are of other code."""
    for path in sorted(HERE.glob("*.ipynb")):
        book = nbformat.read(path, as_version=4)
        if path.stem in names if names else book.metadata.get(OF_CODE) != code_of(book):
            print(path.name, flush=True)
            store(path)


if __name__ == "__main__":
    main(sys.argv[1:])
