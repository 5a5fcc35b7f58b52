"""What a reader of a saved page reads, without the texts of models and users, and which of it needs a kernel."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = {"rows", "row_keys", "tokens", "texts", "notes", "labels", "row_labels", "column_labels", "columns", "names"}
"""Traits of views that hold what models and users wrote."""
NEEDS_A_KERNEL = re.compile(
    r"\b(click|tap|press|drag|type|pick|choose|annotate|run the|tune the|written into|name a|look at [AB])\b",
    re.IGNORECASE,
)


def read(page: str) -> Iterator[str]:
    """Every text on a page: its own, and those of its views and charts."""
    body = page[page.index("<body>") :]
    without = re.sub(r"<(script|details|dl)\b.*?</\1>", "", body, flags=re.DOTALL)
    yield from (html.unescape(text) for text in re.findall(r">([^<>]+)<", without) if text.strip())
    found = re.search(r"^const views = (\[.*\]);$", page, re.MULTILINE)
    assert found is not None
    for view in json.loads(found[1]):
        for name, value in view["values"].items():
            if name == "_document":
                yield from _texts(json.loads(value))
            elif name not in DATA and not name.startswith("_") and isinstance(value, str) and name != "empty":
                yield value


def _texts(part: Any) -> Iterator[str]:
    """Texts of a Bokeh document that are shown: titles, axes, sentences in place of data."""
    if isinstance(part, dict):
        if part.get("visible") is not False:
            yield from (part[name] for name in ("text", "axis_label", "title") if isinstance(part.get(name), str))
            for value in part.values():
                yield from _texts(value)
    elif isinstance(part, list):
        for value in part:
            yield from _texts(value)


def instructions(path: Path) -> list[str]:
    """Sentences of a saved page that tell a reader to do what only a kernel can answer."""
    return [text for text in read(path.read_text(encoding="utf-8")) if NEEDS_A_KERNEL.search(text)]
