"""What README and documentation say is so: figures are the measured ones, links lead somewhere, code compiles."""

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
from interp_widgets.widgets.base.workbench import LIVE_SECONDS
from interp_widgets.widgets.workbench.tools import TOOLS

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "notebooks" / "docs" / "pages").rglob("*.md")))
}
README = PAGES["README.md"]
DEMO, COMPARES = (PAGES[f"notebooks/docs/pages/{name}.md"] for name in ("demo", "compares"))
BLOCKS = [block for text in PAGES.values() for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
MANIFEST = ROOT / "interp_widgets" / "assets" / "demo" / "manifest.json"


def written(name: str, value: float) -> str:
    """A bar's value as the page writes it."""
    if name == "bytes":
        return f"{value / 2**20:.1f} MB"
    if name.endswith("seconds"):
        return f"{value:.2f} s"
    if name.endswith("points"):
        return f"{value:.1f} points"
    return f"{100 * value:.1f}%"


def rows() -> dict[str, str]:
    """Bar name → measured cell of the table of the demo pair."""
    found = re.findall(r"^\| [^|]+<!-- (\w+) --> \| ([^|]+) \|", DEMO, re.MULTILINE)
    return {name: cell.strip() for name, cell in found}


def test_every_bar_of_the_demo_pair_is_told_as_measured() -> None:
    bars: dict[str, Any] = json.loads(MANIFEST.read_text(encoding="utf-8"))["bars"]
    assert rows() == {name: written(name, bar["value"]) for name, bar in bars.items()}


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_exist(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGES[page]):
        assert target.startswith("http") or ((ROOT / page).parent / target).exists(), f"{page} points at {target}"


def test_the_readme_is_short_and_points_at_every_page() -> None:
    assert len(README.splitlines()) <= 150
    assert not [page for page in PAGES if page != "README.md" and f"]({page})" not in README]


def test_every_picture_of_the_demo_is_in_the_readme() -> None:
    pictures = (ROOT / "notebooks" / "images" / "demo").iterdir()  # those that the journeys look at again
    assert {path.stem for path in pictures} == set(re.findall(r"images/demo/(\w+)\.webp\)", README))


def test_the_gallery_shows_every_tool_in_four_pictures_and_its_other_tabs_in_two() -> None:
    page = (ROOT / "notebooks" / "GALLERY.md").read_text(encoding="utf-8")
    pictures = re.findall(r"\]\(([^)]+)\)", page)
    assert len(set(pictures)) == len(pictures)
    tabs = 0
    for part, (name, tool) in zip(page.split("\n## ")[1:], TOOLS.items(), strict=True):
        assert part.startswith(f"{tool.title}: {tool.question}\n")
        others = re.findall(rf"^- ([^:]+): (.*/{name}_.*)$", part, re.MULTILINE)
        assert [links.count("](") for _, links in others] == [2] * len(others)
        assert part.count(f"/{name}_") == 4 + 2 * len(others)
        tabs += len(others)
    assert len(pictures) == 2 + 4 * len(TOOLS) + 2 * tabs
    assert tabs > 2 * len(TOOLS)
    for picture in pictures:
        assert (ROOT / "notebooks" / picture).exists(), f"the gallery points at {picture}"


@pytest.mark.parametrize("block", BLOCKS)
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
        assert f"| [`{name}`](" in README


@pytest.mark.parametrize("name", TOOLS)
def test_the_row_of_a_tool_asks_its_question(name: str) -> None:
    (row,) = [line for line in README.splitlines() if f"/panels/{name}.md)" in line]
    assert row.split(" | ")[1] == TOOLS[name].question


def test_the_panel_in_contributing_is_the_example_that_runs() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    run = [one.source for one in doctest.DocTestParser().get_examples(views.__doc__ or "")]
    for part in re.split(r"\n\n(?=\S)", block):
        assert part.strip() in [source.strip() for source in run]


RESULTS = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")


def measured(heading: str, row: str) -> list[float]:
    """The numbers of the first row of RESULTS.md below a heading (or a text) that begins so, in their order."""
    below = RESULTS[RESULTS.index(heading) :]
    line = next(line for line in below.splitlines() if line.startswith(row))
    return [float(number) for number in re.findall(r"\d+\.?\d*", line.replace(",", "")[len(row.replace(",", "")) :])]


def shown(start: str) -> str:
    """The last cell of the row that begins so in the page that compares."""
    (line,) = [line for line in COMPARES.splitlines() if line.startswith(start)]
    return line.split("|")[-2].strip()


@pytest.mark.parametrize("sizes", ["64, 64", "32, 200", "200, 32"])
def test_the_table_of_rivals_is_the_measured_one(sizes: str) -> None:
    numbers = [
        *measured("6 layers, d_model 256", f"| first order | {sizes} |")[:3],
        *measured("6 layers, d_model 256", f"| exact | {sizes} |")[:3],
    ]
    (line,) = [line for line in COMPARES.splitlines() if line.startswith(f"| {sizes.replace(',', ' ×')} |")]
    said = [cell.removesuffix(" ×") for cell in line.split(" | ")[1:]]
    assert [cell.rstrip(" |×") for cell in said] == [f"{n:.1f}" if n < 5 else f"{n:.0f}" for n in numbers]


def test_the_other_speeds_are_the_measured_ones() -> None:
    chunks = re.search(r"again \(.*?~([\d.]+) × loop.*?~([\d.]+) and", RESULTS, re.DOTALL)
    assert chunks
    mini = sorted(float(number) for number in chunks.groups())
    small = sorted(measured("## Ablation maps", f"| small | {n} |")[1] for n in (32, 64))
    assert shown("| ablation map") == f"{mini[0]:.0f} to {mini[1]:.0f}"
    assert shown("| | the same | GPT-2-small shape, before") == f"{small[0]:.0f} to {small[1]:.0f}"
    naive, few, ours = (
        measured("## Logit lens", f"| 50,257 | {way} |") for way in ("naive", "64 cells", "this package")
    )
    assert shown("| logit lens") == f"{naive[1]}, with {naive[2] / ours[2]:.0f} times the memory"
    assert shown("| | 64 cells") == f"{few[1]}, with {few[2] / ours[2]:.0f} times the memory"
    parts = "the parts of the last position at every layer"
    assert shown("| shares of one logit") == f"{measured(parts, '| 6 layers | 128 | `decompose_logit` |')[1]:.0f}"
    assert shown("| | the same | GPT-2-small shape |") == (
        f"{measured(parts, '| GPT-2 small | 128 | `decompose_logit` |')[1]:.0f}"
    )
    whole = measured(parts, "| GPT-2 small | 128 | `decompose_tokens` |")[1]
    assert whole < 3
    assert shown("| parts of all tokens") == f"{whole} (aim 3, missed)"
    words = RESULTS[RESULTS.index("## Head word pairs") :]
    plain, tight = (
        sorted(float(found) for found in re.findall(rf"\| {way} \| [\d.]+ \| ([\d.]+) \|", words)[:2])
        for way in ("plain", "tight")
    )
    assert shown("| word pairs of all heads") == f"{plain[0]:.0f} to {plain[1]:.0f}"
    assert shown("| | head by head, selecting") == f"{tight[0]} to {tight[1]}"
    cached = [float(found) for found in re.findall(r"`run_with_cache` \| ~[\d.]+ \| ~([\d.]+)", RESULTS)]
    assert shown("| last states") == f"{min(cached):.0f} to {max(cached):.0f}"


def test_missed_aims_are_told() -> None:
    missed = re.findall(r"^\| (.+?) \| (\d+) ms \| (\d+) ms \(missed\) \|", RESULTS, re.MULTILINE)
    assert missed
    for what, milliseconds, aim in missed:
        assert f"{milliseconds} ms ({what.split(', ')[-1]})" in COMPARES
        assert f"instead of {aim}" in COMPARES
    longest = max(float(found) for found in re.findall(r"\| \d+ \| \d+ ms \| (\d+) ms \|", RESULTS))
    assert f"{longest:.0f} ms" in COMPARES


def test_what_starts_by_itself_is_told() -> None:
    assert f"forecast to take at most {LIVE_SECONDS:g} s" in README


def test_the_attention_of_layer_0_moves_the_country_to_the_last_token() -> None:
    block = next(block for block in BLOCKS if "activation_patching" in block)
    names: dict[str, Any] = {}
    exec(block, names)
    stream, attn = (names["found"].recovered[site] for site in ("resid_pre", "attn"))
    country, last = 3, 4
    assert stream[0, country] > 0.99
    assert abs(stream[1:, country]).max() < 0.05
    assert stream[1:, last].min() > 0.99
    assert attn[0, last] > 0.99
    others = attn.copy()
    others[0, last] = 0
    assert abs(others).max() < 0.05
