"""A circuit's prompt in a workbench of its own, with the truth folded away: look for the parts before you unfold it."""

from __future__ import annotations

from functools import partial
from html import escape
from typing import TYPE_CHECKING, cast

import ipywidgets as W

from interp_widgets.analysis.circuits import CircuitRanking
from interp_widgets.analysis.circuits.ranking import end_name
from interp_widgets.compute.worker import Job
from interp_widgets.figures.labels import capitalised
from interp_widgets.models import Model
from interp_widgets.models.circuits import PART_KINDS, CircuitCase, CircuitName, CircuitTruth, load_circuit

from ..base.controls import row
from ..base.jobs import Derived
from ..base.panel import Panel

if TYPE_CHECKING:
    from ..workbench import Workbench

OPEN, CLOSE = "Open it in a workbench", "Close the workbench"
TABS = {"decomposition": "decomposition", "attention": "attention", "direct logit attribution": "attention",
        "head scores": "attention"}  # fmt: skip
"""The tab that shows what a method computes, by its name."""
TAB_OF_KIND = (
    (("ablation", "tracing"), "ablation"), (("patching", "edge"), "patching"), (("",), "saliency"),
)  # fmt: skip
"""The tab of every other method, by a word in its name; own methods rank what saliency does."""


def tab_of(method: str) -> str:
    """The tab of a workbench that shows what a method computes."""
    by_word = next(tab for words, tab in TAB_OF_KIND if any(word in method for word in words))
    return TABS.get(method, by_word)


def in_words(truth: CircuitTruth, case: CircuitCase) -> str:
    """What a circuit does and which of its parts matter for one prompt, as HTML."""
    words = case.prompt.split()
    names = {
        "tokens": [words[place] for place in case.tokens],
        "heads": [f"{layer}.{head}" for layer, head in case.heads],
        "neurons": [f"{layer}.{neuron}" for layer, neuron in case.neurons],
        "edges": [f"{end_name(sender)} to {end_name(receiver)}" for sender, receiver in case.edges],
    }
    listed = [f"<p>{capitalised(kind)}: {escape(', '.join(names[kind]) or 'none')}</p>" for kind in PART_KINDS]
    return f"<details><summary>What matters</summary><p>{escape(truth.description)}</p>{''.join(listed)}</details>"


class OpenedCase:
    """A button below the board's map, and the workbench that it opens."""

    def __init__(self, panel: Panel) -> None:
        self.button = panel.on_click(W.Button(description=OPEN), self._pressed)
        self.truth = W.HTML("")
        self.bench: Workbench | None = None
        """The open one."""
        self.offered = row(self.button)
        self.box = W.VBox([self.offered])
        self._loaded = Derived(panel, self._open, title="Circuit", channel="case", quiet=True)
        self.offer(None)

    def offer(self, ranking: CircuitRanking | None, seed: int = 0) -> None:
        """Offer the prompt of a ranking on the circuit of a seed; a workbench that is open stays."""
        self.ranking, self.seed = ranking, seed
        self.button.layout.display = "none" if ranking is None and self.bench is None else ""

    def close(self) -> None:
        """Close the workbench."""
        self._loaded.forget()
        self.box.children = (self.offered,)
        self.button.description = OPEN
        if self.bench is not None:
            self.bench.close()
            self.bench = None

    def _pressed(self) -> None:
        ranking = self.ranking
        if self.bench is not None or ranking is None:
            self.close()
            self.offer(ranking, self.seed)
            return
        self._asked = ranking.circuit, self.seed, ranking.case, ranking.method
        self._loaded.ask(self._asked, partial(_load, cast(CircuitName, ranking.circuit), self.seed))

    def _open(self) -> None:
        from ..workbench import Workbench  # which has the board as a tab

        loaded = self._loaded.of(self._asked)
        if loaded is None:
            return
        model, truth = loaded
        _, _, number, method = self._asked
        case = truth.cases[number]
        self.bench = Workbench(model, prompt=case.prompt, response=f" {case.answer}")
        self.bench.screen.shown = (tab_of(method),)
        self.truth.value = in_words(truth, case)
        self.button.description = CLOSE
        self.box.children = (self.offered, self.truth, self.bench.screen)


def _load(name: CircuitName, seed: int, job: Job) -> tuple[Model, CircuitTruth]:
    job.check()
    return load_circuit(name, seed=seed)
