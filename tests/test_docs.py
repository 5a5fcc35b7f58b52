"""The pages of the documentation as the site has them, without building it: complete, and linked with each other."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import interp_widgets
from interp_widgets.glossary import TERMS
from interp_widgets.widgets.workbench.tools import TOOLS

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "notebooks" / "docs"))  # as MkDocs finds it
import contents
import live

sys.path.remove(str(ROOT / "notebooks" / "docs"))


SECTIONS = {"Open it", "How to read it", "What chance would do", "As code", "What goes wrong", "Options"}
"""Of a panel's page; some have the functions under a longer heading of their own."""


@pytest.fixture(scope="module")
def site() -> contents.Site:
    return contents.Site()


def test_every_public_name_is_in_the_reference_once(site: Any) -> None:
    pages = [text for place, text in site.pages.items() if place.startswith("reference/")]
    found = re.findall(r"^::: interp_widgets\.(\w+)$", "\n".join(pages), re.MULTILINE)
    assert sorted(found) == [name for name in interp_widgets.__all__ if name != "__version__"]


def test_the_navigation_has_every_page_once(site: Any) -> None:
    assert sorted(contents.places_in(site.nav)) == sorted(site.pages)


def test_every_link_leads_to_a_page_or_a_file(site: Any) -> None:
    linked = 0
    for place, text in site.pages.items():
        for target in contents.links_of(text):
            there = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
            assert there in site.pages or there in site.files, f"{place} points at {target}"
            linked += 1
    assert linked > 300
    assert all(file.is_file() for file in site.files.values())


def test_every_link_into_a_page_leads_to_a_heading(site: Any) -> None:
    headings = {
        place: set(map(slug, re.findall(r"^#+ (.+)$", text, re.MULTILINE))) for place, text in site.pages.items()
    }
    linked = 0
    for place, text in site.pages.items():
        for match in contents.LINK.finditer(contents.FENCE.sub("", text)):
            target, anchor = match[2], (match[3] or "")[1:]
            there = posixpath.normpath(posixpath.join(posixpath.dirname(place), target)) if target else place
            if anchor and there in headings:
                assert anchor in headings[there], f"{place} points at #{anchor} of {there}"
                linked += 1
    assert linked > 5


def slug(heading: str) -> str:
    """The anchor that the site gives a heading."""
    plain = re.sub(r"\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1", heading)
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def test_live_pages_are_shown_if_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "LIVE", tmp_path)
    assert "There is none here" in contents.Site()._live()
    (tmp_path / "saliency.html").write_text("page")
    site = contents.Site()
    assert set(re.findall(r"live/\w+\.html", site._live())) == {"live/saliency.html"} <= set(site.files)
    assert set(live.LIVE) <= set(TOOLS)


def test_names_in_code_lead_to_the_reference_but_not_in_headings_and_blocks() -> None:
    text = "# `probe`\n\n`logit_lens(model)` and `nothing`.\n\n```python\n`probe`\n```\n"
    assert contents.outside_code(text, contents.named) == text.replace(
        "`logit_lens(model)`", "[`logit_lens(model)`][interp_widgets.logit_lens]"
    )


def test_every_panel_has_its_question_its_pictures_and_its_options(site: Any) -> None:
    for name, tool in TOOLS.items():
        page = site.pages[f"panels/{name}.md"]
        assert page.startswith(f"# {tool.title}: {tool.question}\n")
        assert page.count("_1400.webp#only-") == 2
        assert "| control | keyword |" in page
        assert SECTIONS - set(re.findall(r"^## (.+)$", page, re.MULTILINE)) <= {"As code"}


def test_llms_txt_lists_every_page_and_every_public_name(site: Any) -> None:
    text = site.llms()
    links = re.findall(r"\]\(([^)#]+)", text)
    assert set(links) == {place[:-3] + ".html" for place in site.pages}
    assert {f"[{name}]" for name in contents.public_modules()} <= set(re.findall(r"^- (\[\w+\])", text, re.MULTILINE))
    assert "](index.html): Live Jupyter widgets" in text


def test_the_glossary_has_every_term(site: Any) -> None:
    assert all(f"| {term} | {meaning} |" in site.pages["glossary.md"] for term, meaning in TERMS.items())
