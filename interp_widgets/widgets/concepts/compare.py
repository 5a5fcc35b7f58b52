"""The tab for two models: how far apart concepts are in each, and which of them moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.concepts import ConceptSet, Dispersion, dispersion
from interp_widgets.figures.labels import fixed
from interp_widgets.figures.static import Scene
from interp_widgets.models import Model

from ..base import pair_view
from ..base.code import call
from ..base.fields import field, variant
from ..base.saving import as_one
from .directions import ConceptOptions, ConceptPanel, Directions, OpenedSet
from .table import MOST_LISTED, NO_MATCH, ConceptTable, matching, number

RESAMPLES, FEWER_RESAMPLES, MANY = 2000, 200, 2000
"""Bootstrap samples, and how many for more concepts than `MANY`."""
PAIR_LABELS = {"group": "concepts of one group", "all": "all concepts"}
COLUMNS = ("concept", "group", "moved", "AUC A", "AUC B")


@dataclass(frozen=True, eq=False, kw_only=True)
class ComparedConcepts(Directions):
    """One model's directions; the second's result holds their comparison with the first's."""

    dispersion: Dispersion | None = None
    """None if both models use one opened set."""
    moved: Floats | None = None
    """(concepts,) 1 − cosine of each concept's two directions; None for models of different widths."""


class DirectionComparison(ConceptPanel):
    """Dispersion of both models' directions, and the concepts that moved most."""

    tab_name, pair_views = "Base and tuned", ()
    analysis = staticmethod(dispersion)
    search = variant(ConceptOptions.search, label="Search", group="list", redraws=True)
    pairs = field(
        PAIR_LABELS, "group", label="Distance between", help="The pairs of concepts over which dispersion is computed"
    )

    @classmethod
    def missing_requirement(cls, models: tuple[Any, ...]) -> str:
        return "" if len(models) > 1 else "two models"

    def build(self) -> None:
        self.inputs.children = [self.controls.row("pairs")]
        self.words = W.HTML("")
        self.table = ConceptTable(self, empty="Waiting for the second model.", height=440)
        self.plot.children = [self.words, self.table.view]

    # what the panel asks for ------------------------------------------------------------------------------------------

    def arguments(self) -> dict[str, Any]:
        return {"pairs": self.pairs, "seed": self.seed}

    def answer(self, request: Any, model: Model, concepts: ConceptSet, progress: Any, check: Any) -> ComparedConcepts:
        if model is not self.models[-1]:
            return ComparedConcepts(concepts=concepts)
        first = self.directions(request.source, self.models[0], progress, check)
        moved = None
        if first.d_model == concepts.d_model:
            moved = np.asarray(1 - np.einsum("cd,cd->c", first.directions, concepts.directions))
        if isinstance(request.source, OpenedSet):
            return ComparedConcepts(concepts=concepts, moved=moved)
        samples = RESAMPLES if len(concepts.names) <= MANY else FEWER_RESAMPLES
        options = dict(request.arguments) | ({} if any(concepts.groups) else {"pairs": "all"})
        check()
        return ComparedConcepts(
            concepts=concepts, moved=moved, dispersion=dispersion(first, concepts, resamples=samples, **options)
        )

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[ComparedConcepts, ...], request: Any) -> None:
        super().draw(results, request)
        last = results[-1]
        self.words.value = (
            "Both models use the same opened set of directions: there is nothing to compare."
            if last.dispersion is None
            else _sentence(last.dispersion)
        )
        heads = [{"label": name} | ({"align": "right"} if i > 1 else {}) for i, name in enumerate(COLUMNS)]
        self.table.view.empty = NO_MATCH if self.search else "Waiting for the second model."
        rows = self._rows(self.search)[:MOST_LISTED]
        caption = "Most moved first: 1 − cosine of a concept's two directions; 0: the same one, 1: an unrelated one"
        self.table.show([line[0] for line in rows], heads, rows, caption if rows else "")

    def draw_selection(self) -> None:
        super().draw_selection()
        self.table.mark()

    def _rows(self, search: str = "") -> list[list[Any]]:
        """A row per matching concept, those that moved most first; none for models of different widths."""
        first, second = self.sets
        moved = self.results[-1].moved
        if moved is None:
            return []
        matches = set(matching(first, search))
        return [
            [first.names[i], first.groups[i], float(moved[i]), number(first.auc[i]), number(second.auc[i])]
            for i in np.argsort(-moved, kind="stable").tolist()
            if i in matches
        ]

    # what is saved ----------------------------------------------------------------------------------------------------

    def own_lines(self, model: str, concepts: str) -> tuple[list[str], list[str]]:
        return ["dispersion"], [call("dispersion", "directions_a", "directions_b", pairs=self.pairs)]

    def frame(self) -> Any:
        import pandas as pd

        return pd.DataFrame(self._rows(), columns=list(COLUMNS))

    def scene(self) -> Scene:
        return self.table.scene()

    def stored(self) -> Result:
        sets = dict(zip(pair_view.LETTERS, self.sets, strict=False))
        return as_one({**sets, "dispersion": self.results[-1].dispersion if sets else None}, self.tab_name)


def _sentence(result: Dispersion) -> str:
    """Dispersion as a sentence."""
    low, high = result.interval
    text = f"Mean cosine distance {'within groups' if result.pairs == 'group' else 'of all pairs'}: "
    text += f"A <b>{result.value:.3f}</b> [{low:.3f}, {high:.3f}]"
    if result.other is None or result.difference is None or result.difference_interval is None:
        return text + "."
    low, high = result.difference_interval
    clear = "" if low <= 0 <= high else ", whose interval excludes 0"
    change, start, end = (fixed(value, 3, "+") for value in (result.difference, low, high))
    text += f", B <b>{result.other:.3f}</b>; difference {change} [{start}, {end}]{clear}"
    text += f" ({result.level:.0%} bootstrap intervals)."
    if result.pairs == "all":
        text += " Directions that contrast each concept with all others nearly sum to zero: over all pairs this is "
        text += "close to 1 for any model."
    return text
