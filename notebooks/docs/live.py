"""Writes the live pages of the documentation: panels on SmolLM2 as they open, each one page that needs no kernel.

``make docs`` runs it where the package has changed since: ``python notebooks/docs/live.py build/live``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from interp_widgets import load_model
from interp_widgets.widgets.workbench.tools import TOOLS

LIVE = ("saliency", "logit_lens", "attention", "decomposition", "concepts")
"""Tools whose pages are made."""
SECONDS = 600


def write(folder: Path) -> None:
    """Open the panels on SmolLM2 and save each as a page; RuntimeError for one that is not ready in ten minutes."""
    model = load_model("smollm2")
    folder.mkdir(parents=True, exist_ok=True)
    for name in LIVE:
        panel = TOOLS[name].load()(model)
        if not panel.wait(SECONDS):
            raise RuntimeError(f"{panel!r} still runs after {SECONDS} s")
        page = panel.save(folder / f"{name}.html")
        print(f"{page.name}: {page.stat().st_size / 1e6:.1f} MB", flush=True)
        panel.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
