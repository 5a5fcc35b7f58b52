"""The quality tab: how well each direction separates held-out stimuli, against shuffled labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis.concepts import ConceptSet, neighbor_agreement, word_aucs
from interp_widgets.figures.static import Scene
from interp_widgets.models import Model

from ..base import pair_view
from ..base.fields import variant
from ..base.workbench import model_name
from .directions import METHOD_LABELS, ConceptOptions, ConceptPanel, Directions, Listed, list_lines
from .table import MOST_LISTED, NO_MATCH, ConceptTable, matching, number

GOOD = 0.9
"""The AUC above which a direction counts as good."""
NEAR = 5
MOST_COMPARED = 3000
"""Most concepts for which neighbours in the same group and words alone are evaluated, over all pairs."""
COLUMNS = {
    "AUC": ("auc", "Probability that a held-out stimulus of the concept has a larger projection than one of another"),
    "in its group": ("group_auc", "The same, only against stimuli of the concept's own group, which is harder"),
    "shuffled": ("shuffled_auc", "Control: directions made and tested with shuffled labels; 0.5 is chance"),
    "words alone": ("words", "The same from a list of the words in its stimuli, without any model"),
    "gap": ("gap", "Mean projection of its states minus that of all others, in units of the residual stream"),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class ConceptQuality(Directions):
    """Directions, whose quality was measured when they were made, and the share of neighbours in the same group."""

    agreement: tuple[float, float] | None
    """Share of the nearest concepts in the same group, and that by chance; None if it was not measured."""
    words: Floats | None
    """(concepts,) AUC of a list of words alone; None if the stimuli are not available, or too many."""


def quality(model: Model, concepts: ConceptSet, listed: Listed | None) -> ConceptQuality:
    """The quality of directions, against the words of their stimuli, if these are available."""
    few = len(concepts.names) <= MOST_COMPARED
    measured = any(concepts.groups) and len(concepts.names) > NEAR and few
    return ConceptQuality(
        concepts=concepts,
        agreement=neighbor_agreement(concepts, NEAR) if measured else None,
        words=None if listed is None or not few else word_aucs(listed.concepts),
    )


class DirectionQuality(ConceptPanel):
    """How well each concept's direction separates held-out stimuli, in a sentence and a table."""

    tab_name = "Quality"
    analysis = staticmethod(quality)
    search = variant(ConceptOptions.search, label="Search", group="list", redraws=True)

    def build(self) -> None:
        self.words = W.HTML("")
        self.table = ConceptTable(self, empty="No concepts yet.", height=460)
        self.plot.children = [self.words, self.table.view]

    def analysis_inputs(self) -> tuple[Any, ...]:
        return (None if self.path else self.store.listed(self.concepts),)

    def draft(self, request: Any, concepts: ConceptSet, check: Any) -> ConceptQuality:
        return quality(self.models[0], concepts, None)

    def draw(self, results: tuple[ConceptQuality, ...], request: Any) -> None:
        super().draw(results, request)
        at, first = pair_view.shown_indices(self), self.sets[0]
        self.words.value = "<br>".join(self._sentence(i, result) for i, result in enumerate(results))
        heads: list[dict[str, Any]] = [{"label": "concept"}, {"label": "group"}]
        columns: list[Floats] = []
        for label, (name, title) in COLUMNS.items():
            for letter, k in zip(pair_view.names(self), at, strict=True):
                values = results[k].words if name == "words" else getattr(self.sets[k], name)
                if values is None or (name == "words" and k != at[0]):  # words are the same for both models
                    continue
                head = f"{label} {letter}".strip() if name != "words" else label
                heads.append({"label": head, "align": "right", "title": title})
                columns.append(values)
        if len(at) > 1:
            heads.append({"label": "AUC B − A", "align": "right"})
        listed = matching(first, self.search)[:MOST_LISTED]
        rows = []
        for i in listed:
            cells = [number(values[i]) for values in columns]
            change = [number(self.sets[1].auc[i] - self.sets[0].auc[i])] if len(at) > 1 else []
            rows.append([first.names[i], first.groups[i], *cells, *change])
        caption = "Held-out stimuli in a template without the concept's name"
        self.table.view.empty = NO_MATCH
        self.table.show([first.names[i] for i in listed], heads, rows, caption)

    def draw_selection(self) -> None:
        super().draw_selection()
        self.table.mark()

    def _sentence(self, index: int, result: ConceptQuality) -> str:
        """Quality as a sentence."""
        concepts = result.concepts
        start = f"{pair_view.LETTERS[index]}: " if len(self.models) > 1 else ""
        where = METHOD_LABELS.get(concepts.method, concepts.method)
        text = f"{start}<b>{escape(model_name(self.models[index]))}</b>, {escape(where)}, layer {concepts.layer}: "
        tested = concepts.auc[np.isfinite(concepts.auc)]
        if not len(tested):
            return text + "no concept has held-out stimuli, so nothing was tested."
        text += f"<b>{(tested >= GOOD).mean():.0%}</b> of {len(tested)} tested concepts have an AUC of {GOOD} or more "
        text += f"(median {np.median(tested):.2f}). "
        control = concepts.shuffled_auc[np.isfinite(concepts.shuffled_auc)]
        if len(control):
            text += f"Shuffled labels: {control.mean():.2f} on average, {control.min():.2f} to {control.max():.2f}. "
        else:
            text += "There is no shuffled control yet. "
        if result.words is not None:
            words = result.words[np.isfinite(result.words)]
            text += f"A list of words alone: <b>{(words >= GOOD).mean():.0%}</b> (median {np.median(words):.2f}). "
        if result.agreement is not None:
            share, chance = result.agreement
            text += f"Of the {NEAR} nearest concepts {share:.0%} are in the same group, {chance:.0%} by chance."
        return text

    def own_lines(self, model: str, concepts: str) -> tuple[list[str], list[str]]:
        if self.path:
            return super().own_lines(model, concepts)
        _, _, listed = list_lines(self.concepts, self.store.folders)
        return ([] if listed else ["demo_concepts"]), [
            "",
            "from interp_widgets.analysis.concepts import word_aucs",
            "",
            f"{concepts}.to_frame().assign(word_auc=word_aucs({listed[0] if listed else 'demo_concepts()'}))",
        ]

    def table_of(self, result: Any) -> Any:
        table = result.concepts.to_frame()
        return table if result.words is None else table.assign(word_auc=result.words)

    def scene(self) -> Scene:
        return self.table.scene()

    def parts_of(self, result: Any) -> Mapping[str, Any]:
        return {"": result.concepts}
