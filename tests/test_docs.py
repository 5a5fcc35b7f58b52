"""The pages of the documentation as the site has them, without building it: complete, and linked with each other."""

from __future__ import annotations

import inspect
import posixpath
import re
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

import interp_widgets
from interp_widgets.glossary import TERMS
from interp_widgets.widgets.workbench.tools import TOOLS

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "notebooks" / "docs"))  # as MkDocs finds it
import contents
import live
import search

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
        assert page.count("_1400.webp#only-light") == page.count("_1400.webp#only-dark") == 2  # shown, and opened
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


def test_a_search_for_a_public_name_finds_its_docstring_first(site: Any) -> None:
    find = search_in(entries_of(site))
    pages = {name: contents.topic_of(module) for name, module in contents.public_modules().items()}
    for name, page in pages.items():
        found = find(name)[0]
        assert found.lower() == f"reference/{page}.html#interp_widgets.{name}".lower()


def entries_of(site: Any) -> list[dict[str, Any]]:
    """The sections of the site as its search has them: of pages, of public names, and of the attributes of classes."""
    entries = []
    for place, page in site.pages.items():
        for section in re.split(r"^(?=##? )", contents.FENCE.sub("", page), flags=re.MULTILINE):
            heading, _, text = section.strip().partition("\n")
            entries.append({"location": f"{place[:-3]}.html", "title": heading.lstrip("# "), "text": text})
    for name, module in contents.public_modules().items():
        value = getattr(interp_widgets, name)
        place = f"reference/{contents.topic_of(module)}.html#interp_widgets.{name}"
        about = value.__doc__ if contents.is_defined_here(value) else ""
        entries.append({"location": place, "title": name, "text": about or ""})
        if inspect.isclass(value):
            entries += [
                {"location": f"{place}.{member}", "title": member, "text": ""}
                for member in (*vars(value), *vars(value).get("__annotations__", {}))
            ]
    return entries


def search_in(entries: list[dict[str, Any]]) -> Any:
    """A search for one word, which gives places, best first: the formula of lunr with Material's settings."""
    config = yaml.safe_load((ROOT / "notebooks/docs/mkdocs.yml").read_text(encoding="utf-8"))
    separator = next(plugin["search"]["separator"] for plugin in config["plugins"] if "search" in plugin)
    search.weigh(entries, separator)
    entries = [entry | {"tags": " ".join(entry.get("tags", []))} for entry in entries]
    rarity = search.rarities(entries, separator)
    matches: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for number, entry in enumerate(entries):
        for field, weight in (("title", 1e3), ("text", 1.0), ("tags", 1e6)):
            words = Counter(search.words_of(entry.get(field, ""), separator))
            for word, times in words.items():
                matches[word].append((number, weight * rarity(word) * 2.2 * times / (1.2 + times)))

    known = sorted(matches)

    def find(word: str) -> list[str]:
        scores: Counter[int] = Counter()
        beginning = word.lower()
        for number, score in (
            match
            for each in known[bisect_left(known, beginning) : bisect_left(known, beginning + "\U0010ffff")]
            for match in matches[each]
        ):
            whole_page = "#" not in entries[number]["location"]
            scores[number] += score * entries[number]["boost"] * (2.5 if whole_page else 1)
        return [entries[number]["location"] for number, _ in scores.most_common()]

    return find
