"""What the README says is so: its figures are the manifest's, its links and pictures exist, its code compiles."""

from __future__ import annotations

import ast
import doctest
import json
import re
from pathlib import Path
from typing import Any

import pytest

import interp_widgets
from interp_widgets.widgets import views

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MANIFEST = ROOT / "interp_widgets" / "assets" / "demo" / "manifest.json"


def written(name: str, value: float) -> str:
    """A bar's value as the README writes it."""
    if name == "bytes":
        return f"{value / 2**20:.1f} MB"
    if name.endswith("seconds"):
        return f"{value:.2f} s"
    if name.endswith("points"):
        return f"{value:.1f} points"
    return f"{100 * value:.1f} %"


def rows() -> dict[str, str]:
    """Bar name → measured cell of the README's table of the demo pair."""
    found = re.findall(r"^\| [^|]+<!-- (\w+) --> \| ([^|]+) \|", README, re.MULTILINE)
    return {name: cell.strip() for name, cell in found}


def test_every_bar_of_the_demo_pair_is_in_the_readme_as_measured() -> None:
    bars: dict[str, Any] = json.loads(MANIFEST.read_text(encoding="utf-8"))["bars"]
    assert rows() == {name: written(name, bar["value"]) for name, bar in bars.items()}


def test_links_and_pictures_exist() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if not target.startswith("http")]
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), f"the README points at {target}"


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_code_compiles_and_names_what_there_is(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module == "interp_widgets":
            for alias in node.names:
                assert alias.name in interp_widgets.__all__


def test_every_widget_has_a_row() -> None:
    widgets = [name for name in interp_widgets.__all__ if name.endswith(("Explorer", "Browser", "Panel", "Viewer"))]
    widgets.remove("Panel")  # their base
    assert widgets
    for name in widgets:
        assert f"| `{name}` |" in README


def test_the_panel_in_contributing_is_the_example_that_runs() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    run = [one.source for one in doctest.DocTestParser().get_examples(views.__doc__ or "")]
    for part in re.split(r"\n\n(?=\S)", block):
        assert part.strip() in [source.strip() for source in run]
