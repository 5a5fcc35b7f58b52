"""What the site of the documentation consists of: pages written for it, files of the repository, generated pages.

Every link in a page is written as it works in the repository, relative to the page's file; `Site.rewritten` turns it
into one of the site.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

import interp_widgets
from interp_widgets.glossary import TERMS
from interp_widgets.widgets.base.fields import fields_of
from interp_widgets.widgets.base.stack import Stack
from interp_widgets.widgets.workbench.tools import TOOLS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WRITTEN = HERE / "pages"
INCLUDED = {
    "README.md": "index.md",
    "notebooks/STUDENT.md": "students.md",
    "notebooks/INSTRUCTOR.md": "instructors.md",
    "notebooks/GALLERY.md": "gallery.md",
    "benchmarks/RESULTS.md": "results.md",
    "tests/architectures/TABLE.md": "architectures.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Files of the repository that are pages as they are."""
FOLDERS = {
    "models": "Models",
    "data": "Data",
    "analysis": "Analyses",
    "tuning": "Tuning",
    "sweeps": "Over a data set",
    "widgets": "Widgets",
}
"""Parts of the reference, in the order of the package's arrows."""
LIVE = ROOT / "build" / "live"
"""Where `live.py` has written pages of panels; may be missing."""
FENCE = re.compile(r"^(```.*?^```|~~~.*?^~~~)\s*?$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\[\]]*\])*\])\(([^)\s#]*)(#[^)\s]*)?\)")
CODE = re.compile(r"(?<![\[`\w])`(\w+)(\([^`]*\))?`(?![\]`])")


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """A text of which all but the fenced blocks of code is changed."""
    return "".join(part if FENCE.fullmatch(part) else change(part) for part in FENCE.split(text))


def links_of(text: str) -> list[str]:
    """Targets of all links and pictures of a page, without addresses on the web."""
    found: list[str] = []
    outside_code(text, lambda part: str(found.extend(match[2] for match in LINK.finditer(part))))
    return [target for target in found if target and "://" not in target]


@cache
def public_modules() -> dict[str, str]:
    """Public name → module that it is taken from, as `__init__.pyi` lists them."""
    stub = ast.parse((ROOT / "interp_widgets" / "__init__.pyi").read_text(encoding="utf-8"))
    return {
        str(alias.asname): str(node.module)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname != "__version__"
    }


def is_defined_here(value: Any) -> bool:
    """Whether a public name is a class or function of the package; others, such as `Prompt`, are annotations."""
    return str(getattr(value, "__module__", "")).startswith("interp_widgets")


def picture_of(tool: str) -> str:
    """The picture of a panel, in a light page."""
    return f"notebooks/images/smollm2/{tool}_light_1400.webp"


def in_the_dark(picture: Path) -> Path | None:
    """The same picture in a dark page, if there is one."""
    dark = picture.with_name(picture.name.replace("_light", "_dark"))
    return dark if dark != picture and dark.is_file() else None


def summary_of(name: str) -> str:
    """The first paragraph of a public name's docstring; empty for an annotation, which has none of its own."""
    value = getattr(interp_widgets, name)
    text = (value.__doc__ or "") if is_defined_here(value) else ""
    return re.sub(r":\w+:`", "`", text.strip().split("\n\n")[0]).replace("``", "`").replace("\n", " ")


def first_sentence(page: str) -> str:
    """What a page is about: the first sentence of its first paragraph, as plain text."""
    for paragraph in FENCE.sub("", page).split("\n\n"):
        plain = " ".join(re.sub(r"\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])", r"\1", paragraph).split())
        if plain and not plain.startswith(("#", "!", "<", "|", ":::", "```", "- ")):
            return re.split(r"(?<=[.?])\s", plain.replace("**", "").replace("`", ""))[0]
    return ""


class Site:
    """All pages of the site by their place in it, and the files that they point at."""

    @cached_property
    def written(self) -> dict[str, Path]:
        """Pages that are files, by place: those written for the site and those of the repository."""
        pages = {path.relative_to(WRITTEN).as_posix(): path for path in sorted(WRITTEN.rglob("*.md"))}
        return pages | {place: ROOT / name for name, place in INCLUDED.items()}

    @cached_property
    def pages(self) -> dict[str, str]:
        """The text of every page by its place, links as on the site."""
        made = {place: self.rewritten(path, path.read_text(encoding="utf-8")) for place, path in self.written.items()}
        for name in TOOLS:
            place = f"panels/{name}.md"
            made[place] = self._panel(name, made[place])
        return made | self._reference() | {"glossary.md": self._glossary(), "live.md": self._live()}

    @cached_property
    def files(self) -> dict[str, Path]:
        """Pictures, notebooks and other files of the repository that pages point at, by place."""
        found: dict[str, Path] = {}
        for path in self.written.values():
            for target in links_of(path.read_text(encoding="utf-8")):
                file = (path.parent / target).resolve()
                if file not in self._places:
                    found[self._place_of_file(file)] = file
        for name in TOOLS:
            file = ROOT / picture_of(name)
            found[self._place_of_file(file)] = file
        dark = {self._place_of_file(other): other for file in found.values() if (other := in_the_dark(file))}
        return found | dark | {f"live/{path.name}": path for path in self.live.values()}

    @cached_property
    def live(self) -> dict[str, Path]:
        """The pages of panels that have been made, by the names of their tools."""
        return {name: path for name in TOOLS if (path := LIVE / f"{name}.html").is_file()}

    @cached_property
    def _places(self) -> dict[Path, str]:
        return {path.resolve(): place for place, path in self.written.items()}

    def _place_of_file(self, file: Path) -> str:
        return f"files/{file.relative_to(ROOT).as_posix()}"

    def rewritten(self, path: Path, text: str) -> str:
        """A page with its links turned into links of the site, and public names in it into links to the reference."""
        here = PurePosixPath(self._places[path.resolve()]).parent

        def link(match: re.Match[str]) -> str:
            label, target, anchor = match[1], match[2], match[3] or ""
            if not target or "://" in target:
                return match[0]
            file = (path.parent / target).resolve()
            if label.startswith("!"):
                return self._shown(label, file, here)
            place = self._places.get(file) or self._place_of_file(file)
            return f"{label}({os.path.relpath(place, here)}{anchor})"

        return outside_code(text, lambda part: named(LINK.sub(link, part)))

    def _shown(self, label: str, file: Path, here: PurePosixPath) -> str:
        """A picture, in the theme of the page if there is one for each; a click opens it in its own size."""
        dark = in_the_dark(file)
        pictures = {"": file} if dark is None else {"#only-light": file, "#only-dark": dark}
        targets = [f"{os.path.relpath(self._place_of_file(each), here)}{theme}" for theme, each in pictures.items()]
        return "\n".join(f"[{label}({target})]({target})" for target in targets)

    def _panel(self, name: str, text: str) -> str:
        """The page of a panel: what is known of it from the code, around what is written about it."""
        tool = TOOLS[name]
        kind = tool.load()
        own = kind is not interp_widgets.CircuitBoard  # that one has models of its own
        code = f"from interp_widgets import {kind.__name__}{', load_model' if own else ''}\n\n{kind.__name__}"
        code += '(load_model("smollm2"))' if own else "()"
        reference = f"[`{kind.__name__}`][interp_widgets.{kind.__name__}]"
        lead, _, rest = text.partition("\n## ")
        parts = [
            f"# {tool.title}: {tool.question}",
            lead.strip(),
            self._shown(f"![{tool.title}]", ROOT / picture_of(name), PurePosixPath("panels")),
            "## Open it",
            f"```python\n{code}\n```",
            f"Or as the tab *{tool.title}* of [`Workbench`][interp_widgets.Workbench]. All forms: {reference}.",
            f"## {rest.strip()}",
            options_of(kind),
        ]
        return "\n\n".join(parts) + "\n"

    def _reference(self) -> dict[str, str]:
        """A page per topic with the docstrings of its public names, and a page that lists them all."""
        topics: dict[str, list[str]] = {}
        for name, module in public_modules().items():
            topics.setdefault(topic_of(module), []).append(name)
        pages = {}
        rows = [
            "# Reference: the API",
            "All public names; each is had by `from interp_widgets import ...`.",
            start_of_examples(),
        ]
        for folder, title in FOLDERS.items():
            rows.append(f"## {title}")
            inside = sorted(topic for topic in topics if topic.split("/")[0] == folder)
            for topic in inside:
                heading = title_of(topic)
                modules = {public_modules()[name] for name in topics[topic]}
                owner = modules.pop() if len(modules) == 1 else topic.replace("/", ".")
                about = (import_module(f"interp_widgets.{owner}").__doc__ or "").split("\n\n")[0]
                blocks = (f"::: interp_widgets.{name}" for name in topics[topic])
                pages[f"reference/{topic}.md"] = "\n\n".join([f"# {heading}", about.strip(), *blocks])
                names = ", ".join(f"[`{name}`][interp_widgets.{name}]" for name in topics[topic])
                rows.append(f"[{heading}]({topic}.md): {names}")
        return {"reference/index.md": "\n\n".join(rows), **pages}

    def _glossary(self) -> str:
        rows = [f"| {term} | {TERMS[term]} |" for term in sorted(TERMS, key=str.lower)]
        words = "What the widgets say of these words under the pointer."
        return "\n".join(["# Glossary", "", words, "", "| term | meaning |", "|---|---|", *rows, ""])

    def _live(self) -> str:
        words = (
            'Each is one file that `panel.save("page.html")` wrote: SmolLM2 135M (instruct) as the panel opens. Point '
            "at a cell, click a token, zoom into a map. What would have to compute needs [the panel itself](start.md)."
        )
        parts = ["# Live pages: panels without a kernel", words]
        if not self.live:
            parts.append("There is none here: `make docs` makes them where SmolLM2 can be had.")
        for name in self.live:
            tool = TOOLS[name]
            parts += [
                f"## {tool.title}: {tool.question}",
                f"[Open by itself](live/{name}.html) · [about the panel](panels/{name}.md)",
                f'<iframe class="live" src="live/{name}.html" title="{tool.title}" loading="lazy"></iframe>',
            ]
        return "\n\n".join(parts) + "\n"

    @cached_property
    def nav(self) -> list[Any]:
        """The navigation of mkdocs.yml with the pages of panels and of the reference filled in."""
        config = yaml.safe_load((HERE / "mkdocs.yml").read_text(encoding="utf-8"))
        reference: list[Any] = ["reference/index.md"]
        for folder, title in FOLDERS.items():
            own = sorted(place for place in self.pages if place.startswith(f"reference/{folder}"))
            pages = [{title_of(place[10:-3]): place} for place in own]
            reference.append({title: pages if len(pages) > 1 else own[0]})
        panels = [
            "panels/index.md",
            {"Workbench": "panels/workbench.md"},
            *({tool.title: f"panels/{name}.md"} for name, tool in TOOLS.items()),
            {"A probe of your own": "panels/probe.md"},
        ]
        filled = {"panels": panels, "reference": reference}
        return [
            {title: filled.get(below, below) if isinstance(below, str) else below for title, below in entry.items()}
            if isinstance(entry, Mapping)
            else entry
            for entry in config["nav"]
        ]

    def llms(self) -> str:
        """`llms.txt`: every page with its first sentence, and every public name with its own."""
        lines = ["# interp_widgets", "", f"> {first_sentence(self.pages['index.md'])}", "", "## Pages", ""]
        for place in places_in(self.nav):
            title = next(line for line in self.pages[place].splitlines() if line.startswith("# "))[2:]
            lines.append(f"- [{title}]({place[:-3]}.html): {first_sentence(self.pages[place])}".rstrip(": "))
        lines += ["", "## Public names", ""]
        for name, module in public_modules().items():
            place = f"reference/{topic_of(module)}.html#interp_widgets.{name}"
            lines.append(f"- [{name}]({place}): {summary_of(name)}".rstrip(": "))
        return "\n".join(lines) + "\n"


def topic_of(module: str) -> str:
    """The page of the reference on which a module's names stand: of analyses and widgets one per topic."""
    parts = [part for part in module.split(".") if part]
    return "/".join(parts[:2]) if parts[0] in ("analysis", "widgets", "data") and len(parts) > 1 else parts[0]


def title_of(topic: str) -> str:
    """The heading of a page of the reference."""
    names = {"_core": "Results", "base": "Building blocks", "ffn_concepts": "FFN concepts"}
    folder, _, name = topic.partition("/")
    return names.get(name) or (name.replace("_", " ").capitalize() if name else FOLDERS[folder])


def places_in(nav: Any) -> list[str]:
    """All pages of a navigation in their order."""
    if isinstance(nav, str):
        return [nav]
    below = nav.values() if isinstance(nav, Mapping) else nav
    return [place for each in below for place in places_in(each)]


def start_of_examples() -> str:
    """What the package says about the examples of its docstrings."""
    paragraphs = (interp_widgets.__doc__ or "").strip().split("\n\n")
    words, code = next((a, b) for a, b in pairwise(paragraphs) if ">>>" in b)
    lines = "\n".join(line.strip() for line in code.splitlines())
    return f"{words}\n\n```pycon\n{lines}\n```"


def named(text: str) -> str:
    """A text in which public names in code become links to the reference, except in headings."""
    modules = public_modules()

    def link(match: re.Match[str]) -> str:
        return f"[{match[0]}][interp_widgets.{match[1]}]" if match[1] in modules else match[0]

    shown = ("#", ">>>", "...")  # headings, and examples of docstrings
    return "\n".join(line if line.lstrip().startswith(shown) else CODE.sub(link, line) for line in text.split("\n"))


def options_of(kind: Any) -> str:
    """A table of a panel's options as its controls name and explain them, and on which of its tabs they are."""
    tabs: Mapping[str, Any] = getattr(kind, "panels", None) or {"": kind}
    where: dict[str, list[str]] = {}
    known = {}
    for tab, panel in tabs.items():
        for name, made in fields_of(panel).items():
            if made.label and made.help:
                where.setdefault(name, []).append(Stack.tab_title(kind, tab) if tab else "")
                known.setdefault(name, made)
    heads = ["control", "keyword", "what it does", *(["tabs"] if len(tabs) > 1 else [])]
    rows = [
        [made.label, f"`{name}`", " ".join(made.help.split()), ", ".join(where[name])] for name, made in known.items()
    ]
    table = [f"| {' | '.join(row[: len(heads)])} |" for row in (heads, ["---"] * 4, *rows)]
    words = "Each is a control of the panel and a keyword of the call."
    return "\n\n".join(["## Options", words, "\n".join(table)])
