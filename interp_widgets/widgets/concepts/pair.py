"""The tab of two models: how far apart concepts lie in each, and which of them moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.concepts import ConceptSet, Dispersion, dispersion

from .listing import MOST_LISTED, ConceptTable, number

if TYPE_CHECKING:
    from .browser import ConceptBrowser

RESAMPLES, FEWER_RESAMPLES, MANY = 2000, 200, 2000
"""Bootstrap samples, and how many for more concepts than `MANY`."""


class PairTab:
    """A sentence and a table."""

    def __init__(self, panel: ConceptBrowser) -> None:
        self.panel = panel
        self.found: Dispersion | None = None
        self._asked: Any = None
        self._job: Any = None
        self.words = W.HTML("")
        self.table = ConceptTable(panel, empty="Waiting for the second model.", height=440)
        self.box = W.VBox([*panel.controls.rows("compare"), self.words, self.table.view])
        self.box.add_class("iw-column")
        panel.watch(panel, "pairs", lambda _: self.paint())

    def paint(self) -> None:
        """Compare the directions of the two models."""
        panel = self.panel
        if panel.tab != "compare" or not panel.sets:
            return
        if len(panel.sets) < 2 or panel.results[-1].partial:
            self.words.value = "The second model's directions are not there yet."
            self.table.show([], [{"label": "concept"}], [])
            return
        self._list_moved()
        one, two, pairs = *panel.sets, panel.pairs
        if panel.opened:
            self.words.value = "Both models are read with the one set that was opened: there is nothing to compare."
            return
        key = (id(one), id(two), pairs)
        if key == self._asked and not self._job.cancelled:
            return
        self._asked = key
        samples = RESAMPLES if len(one.names) <= MANY else FEWER_RESAMPLES
        chosen: Any = pairs if any(one.groups) else "all"

        def done(found: Dispersion) -> None:
            if key == self._asked:
                self.found = found
                self.words.value = _sentence(found)

        self._job = panel.jobs.start(
            lambda job: dispersion(one, two, pairs=chosen, resamples=samples, seed=panel.seed), done,
            title="Comparing", channel="compare", quiet=True,
        )  # fmt: skip

    def paint_concept(self) -> None:
        """Show which row is the chosen concept."""
        self.table.mark()

    def stored(self) -> dict[str, Any]:
        """How far the models' directions are from each other."""
        return {"": self.found}

    def _list_moved(self) -> None:
        panel = self.panel
        one, two = panel.sets
        places = panel.results[-1].map
        moved = None if places is None else places.moved
        heads: list[dict[str, Any]] = [{"label": "concept"}, {"label": "group"}]
        heads += [{"label": label, "align": "right"} for label in ("moved", "AUC A", "AUC B")]
        if moved is None:
            self.table.show([], heads, [])
            return
        order = np.argsort(-moved, kind="stable")[:MOST_LISTED]
        rows = [[one.names[i], one.groups[i], float(moved[i]), *_aucs(one, two, i)] for i in order]
        caption = "Moved: 1 − cosine of a concept's two directions; 0 is the same one, 1 an unrelated one"
        self.table.show([one.names[i] for i in order], heads, rows, caption)


def _aucs(one: ConceptSet, two: ConceptSet, place: int) -> list[float | None]:
    return [number(one.auc[place]), number(two.auc[place])]


def _sentence(found: Dispersion) -> str:
    """Dispersion in words."""
    low, high = found.interval
    said = f"Mean cosine distance {'within groups' if found.pairs == 'group' else 'of all pairs'}: "
    said += f"A <b>{found.value:.3f}</b> [{low:.3f}, {high:.3f}]"
    if found.other is None or found.difference is None or found.difference_interval is None:
        return said + "."
    low, high = found.difference_interval
    clear = "" if low <= 0 <= high else ", which is clear of 0"
    change = f"{found.difference:+.3f} [{low:+.3f}, {high:+.3f}]".replace("-", "−")
    said += f", B <b>{found.other:.3f}</b>; difference {change}{clear} ({found.level:.0%} bootstrap intervals)."
    if found.pairs == "all":
        said += " Directions that set each concept against all others nearly sum to nothing: over all pairs this is "
        said += "close to 1 whatever the model is."
    return said
