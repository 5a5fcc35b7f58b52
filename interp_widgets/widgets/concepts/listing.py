"""The list of concepts, with search: a click chooses the one that is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.concepts import ConceptSet

from ..views import Table

if TYPE_CHECKING:
    from .browser import ConceptBrowser

MOST_LISTED = 500
"""Rows of a table; of more concepts, search."""


def matching(found: ConceptSet, words: str) -> list[int]:
    """Places of the concepts whose name or group holds all of some words, whatever their case."""
    asked = words.casefold().split()
    texts = [f"{name} {group}".casefold() for name, group in zip(found.names, found.groups, strict=True)]
    return [i for i, text in enumerate(texts) if all(word in text for word in asked)]


def number(value: float) -> float | None:
    """A number for a table; None where there is none."""
    return float(value) if np.isfinite(value) else None


class ConceptTable:
    """A table with a row for each listed concept; a click on a row chooses the concept."""

    def __init__(self, panel: ConceptBrowser, **options: Any) -> None:
        self.panel = panel
        self.view = Table(**options)
        self.names: list[str] = []
        self._filling = False
        panel.watch(self.view, "selected", self._picked)

    def show(self, names: Sequence[str], heads: list[dict[str, Any]], rows: list[list[Any]], caption: str = "") -> None:
        """Show rows, one for each of these concepts."""
        self._filling = True
        try:
            self.names = list(names)
            with self.view.hold_sync():
                self.view.selected = -1
                self.view.rows = []
                self.view.columns, self.view.rows, self.view.caption = heads, rows, caption
        finally:
            self._filling = False
        self.mark()

    def mark(self) -> None:
        """Show which row is the chosen concept."""
        self._filling = True
        try:
            concept = self.panel.concept
            self.view.selected = self.names.index(concept) if concept in self.names else -1
        finally:
            self._filling = False

    def _picked(self, change: Any) -> None:
        if not self._filling and 0 <= change.new < len(self.names):
            self.panel.concept = self.names[change.new]


class Listing:
    """The column beside the tabs."""

    def __init__(self, panel: ConceptBrowser) -> None:
        self.panel = panel
        self.table = ConceptTable(panel, empty="No concept matches.", height=520)
        self.looked_at = W.HTML("")
        self.box = W.VBox([self.looked_at, panel.controls["search"], self.table.view])
        for name in ("iw-column", "iw-side"):
            self.box.add_class(name)
        panel.watch(panel, "search", lambda _: self.paint())
        panel.watch(panel, "view", lambda _: self.paint())

    def paint(self) -> None:
        """List the concepts that match."""
        panel = self.panel
        if not panel.sets:
            return
        first, at = panel.sets[0], panel.at
        found = matching(first, panel.search)
        listed = found[:MOST_LISTED]
        kinds = first.groups if len(at) == 1 else None  # two numbers take the place of the group
        heads: list[dict[str, Any]] = [{"label": "concept"}, *([{"label": "group"}] if kinds else [])]
        title = "held-out AUC: how well the direction tells stimuli that it was not made from"
        heads += [{"label": f"AUC {panel.name_of(i)}".strip(), "align": "right", "title": title} for i in at]
        rows = [
            [first.names[i], *([kinds[i]] if kinds else []), *(number(panel.sets[k].auc[i]) for k in at)]
            for i in listed
        ]
        count = f"{len(first.names):,} concepts"
        if panel.search:
            count = f"{len(found):,} of {count}"
        if len(listed) < len(found):
            count += f", the first {len(listed)} listed: search"
        if panel.results[-1].partial:
            count = f"{len(first.names):,} of {panel.results[-1].wanted:,} concepts so far"
        self.table.show([first.names[i] for i in listed], heads, rows, count)
        self._say()

    def mark(self) -> None:
        """Show which concept is chosen."""
        self.table.mark()
        self._say()

    def _say(self) -> None:
        """Name the chosen concept, wherever the list is scrolled to."""
        first = self.panel.sets[0]
        if self.panel.concept in self.panel.place:
            group = first.groups[self.panel.place[self.panel.concept]]
            kind = f" <span class='iw-hint'>{escape(group)}</span>" if group else ""
            self.looked_at.value = f"Concept: <b>{escape(self.panel.concept)}</b>{kind}"
