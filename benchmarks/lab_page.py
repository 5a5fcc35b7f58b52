"""A page of a real JupyterLab in Chromium, as the browser tests open it."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PLACE = Path(__file__).parents[1] / "tests/e2e/conftest.py"


@contextmanager
def lab_page() -> Iterator[Any]:
    """The page, on an empty folder; server and browser end with it."""
    spec = importlib.util.spec_from_file_location("e2e", _PLACE)
    assert spec is not None
    assert spec.loader is not None
    e2e = importlib.util.module_from_spec(spec)
    sys.modules["e2e"] = e2e
    spec.loader.exec_module(e2e)
    with (
        tempfile.TemporaryDirectory() as folder,
        e2e.lab_server(Path(folder)) as lab,
        e2e.launched_chromium() as chromium,
        e2e.notebook_page(lab, e2e.Pages(chromium), Path(folder)) as nb,
    ):
        yield nb
