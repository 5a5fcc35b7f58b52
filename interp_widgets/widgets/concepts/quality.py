"""The quality tab: how well each direction tells held-out stimuli, beside labels dealt at random."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.concepts import ConceptSet, neighbour_agreement

from ..base.workbench import model_name
from .labels import METHOD_LABELS
from .listing import MOST_LISTED, ConceptTable, matching, number

if TYPE_CHECKING:
    from .browser import ConceptBrowser

GOOD = 0.9
"""An AUC from which on a direction is called good."""
NEAR = 5
MOST_COMPARED = 3000
"""Concepts of which all pairs are compared for the share of neighbours in one group."""
COLUMNS = {
    "AUC": ("auc", "Chance that one of the concept's held-out stimuli has a larger projection than one of another's"),
    "in its group": ("group_auc", "The same against the stimuli of the concept's own group alone: the harder question"),
    "shuffled": ("shuffled_auc", "The control: directions made and tested with labels dealt at random; 0.5 is chance"),
    "gap": ("gap", "Mean projection of its states less that of all others, in the residual stream's units"),
}


class QualityTab:
    """A sentence and a table."""

    def __init__(self, panel: ConceptBrowser) -> None:
        self.panel = panel
        self.words = W.HTML("")
        self.table = ConceptTable(panel, empty="No concept matches.", height=460)
        self.box = W.VBox([self.words, self.table.view])
        self.box.add_class("iw-column")
        for name in ("view", "search"):
            panel.watch(panel, name, lambda _: self.paint())

    def paint(self) -> None:
        """Show the quality of the directions on the screen."""
        panel = self.panel
        if not panel.sets or panel.tab != "quality":
            return
        at, first = panel.at, panel.sets[0]
        said = [self._sentence(i, panel.sets[i]) for i in range(len(panel.sets))]
        self.words.value = "<br>".join(said)
        heads: list[dict[str, Any]] = [{"label": "concept"}, {"label": "group"}]
        heads += [
            {"label": f"{label} {panel.name_of(i)}".strip(), "align": "right", "title": title}
            for label, (_, title) in COLUMNS.items()
            for i in at
        ]
        if len(at) > 1:
            heads.append({"label": "AUC B − A", "align": "right"})
        listed = matching(first, panel.search)[:MOST_LISTED]
        rows = []
        for i in listed:
            cells = [number(getattr(panel.sets[k], field)[i]) for field, _ in COLUMNS.values() for k in at]
            change = [number(panel.sets[1].auc[i] - panel.sets[0].auc[i])] if len(at) > 1 else []
            rows.append([first.names[i], first.groups[i], *cells, *change])
        caption = "Held-out stimuli in a template without the concept's name; a heading sorts"
        self.table.show([first.names[i] for i in listed], heads, rows, caption)

    def paint_concept(self) -> None:
        """Show which row is the chosen concept."""
        self.table.mark()

    def _sentence(self, index: int, found: ConceptSet) -> str:
        """Quality in words."""
        panel = self.panel
        letter = panel.name_of(index)
        start = f"{letter}: " if letter else ""
        where = METHOD_LABELS.get(found.method, found.method)
        said = f"{start}<b>{escape(model_name(panel.models[index]))}</b>, {escape(where)}, layer {found.layer}: "
        tested = found.auc[np.isfinite(found.auc)]
        if not len(tested):
            return said + "no concept has held-out stimuli, so nothing was tested."
        said += f"<b>{(tested >= GOOD).mean():.0%}</b> of {len(tested)} tested concepts have an AUC of {GOOD} or more "
        said += f"(median {np.median(tested):.2f}). "
        control = found.shuffled_auc[np.isfinite(found.shuffled_auc)]
        if len(control):
            said += f"Shuffled labels: {control.mean():.2f} on average, {control.min():.2f} to {control.max():.2f}. "
        elif panel.busy:
            said += "The shuffled control is on its way. "
        if any(found.groups) and NEAR < len(found.names) <= MOST_COMPARED:
            own, chance = neighbour_agreement(found, NEAR)
            said += f"Of the {NEAR} nearest concepts {own:.0%} are of the same group, {chance:.0%} by chance."
        return said
