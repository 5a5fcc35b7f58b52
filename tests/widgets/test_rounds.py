"""Whoever does the same again has as many widgets, charts and tensors as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interp_widgets import LogitLensExplorer, Workbench
from interp_widgets.widgets.views import Table
from tests.models.tiny import tiny_model
from tests.soak.rounds import a_round, alive, reopened

TOOLS = "logit_lens", "ablation"
QUESTIONS = (("a b", " c"), ("b a c", " d"))


@pytest.mark.seconds
def test_the_same_round_again_leaves_nothing(wire: Any, tmp_path: Path) -> None:
    models, before = (tiny_model("gpt2"), tiny_model("gpt2", seed=1)), alive()  # other tests may have left something
    bench = Workbench(*models, prompt="a b", response=" c", live_seconds=60.0)
    seen = []
    for _ in range(3):
        bench = reopened(bench, tmp_path, *models)
        a_round(bench, TOOLS, QUESTIONS)
        seen.append(alive())
    assert seen[2].grown_since(seen[1]) == {}
    bench.close()
    del bench
    closed = alive()
    assert closed.widgets - before.widgets <= 2, "only the code of charts stays, with its layout"
    assert closed.bokeh <= before.bokeh


def test_what_is_left_is_counted(wire: Any) -> None:
    class Leaves(LogitLensExplorer):
        def draw(self, results: Any, request: Any) -> None:
            super().draw(results, request)
            Table()

    panel = Leaves(tiny_model("gpt2"), prompt="a b", live_seconds=60.0)
    before = alive()
    for prompt in ("b a", "a b"):
        panel.prompt = prompt
        assert panel.wait()
    assert alive().grown_since(before)["widgets"] == 4, "two tables and their layouts"
    panel.close()
