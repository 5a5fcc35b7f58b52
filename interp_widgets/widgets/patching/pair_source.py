"""The base of the tabs that study the two prompts of the panel or the list of pairs."""

from __future__ import annotations

import re
from typing import Any

from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis.patching.pairs import PromptPair, check_lengths
from interp_widgets.models import Model

from ..base.controls import shown_if
from ..base.description import Step
from ..base.fields import field, hint_at, variant
from ..base.request import PerModel, Request
from ..base.shell import column
from ..base.workbench import in_model
from .options import PatchPanel
from .pair_list import PAIRS, contrast_pairs, pairs_of_one_length, tokens_of_pairs

SOURCES = {"prompts": "these two prompts", "pairs": "the list of pairs"}


class PromptsOrPairs(PatchPanel):
    """Base of the panels whose prompts are the two of the panel, of one length, or those of the list of pairs."""

    pairs_from = field(
        SOURCES, "prompts", label="On", help="One pair of prompts, or the pairs of the tab Pairs", group="run"
    )
    pairs = variant(PAIRS, shown_if=lambda panel: panel.pairs_from == "pairs", new_row=True)
    corrupted = variant(
        PatchPanel.corrupted, help="The clean prompt with the words changed that the answer depends on, as many tokens",
        shown_if=lambda panel: panel.on_prompts and (bool(panel.corrupted) or not panel.swap),
    )  # fmt: skip
    swap = variant(PatchPanel.swap, shown_if=lambda panel: panel.on_prompts and not panel.corrupted)
    foil = variant(PatchPanel.foil, shown_if=lambda panel: panel.on_prompts and panel.metric == "logit_difference")
    metric = variant(PatchPanel.metric, more=True)
    direction = variant(PatchPanel.direction, label="", argument=None)
    alignment = variant(PatchPanel.alignment, label="", argument=None)
    mendable = False

    head = field(in_model(), selects=True)
    """The selected head."""
    picked_part = field(str, selects=True)
    """The picked part of the model, such as head 3.1 or mlp 5; empty for none."""

    @property
    def on_prompts(self) -> bool:
        """Whether its prompts are the two of the panel."""
        return bool(self.pairs_from == "prompts")

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        pairs = {} if "pairs" in keywords else {"pairs": [pair.line for pair in pairs_of_one_length(self.models)]}
        return super().defaults(keywords) | pairs

    def field_of(self, what: str) -> str:
        return "pairs" if what in ("answer", "foil") and not self.on_prompts else super().field_of(what)

    def build(self) -> None:
        super().build()
        self.own_prompts = column("iw-inputs")
        if self.screen is None:
            others = self.inputs.children[len(self.prompt_rows) :]
            self.own_prompts.children = self.prompt_rows
            self.inputs.children = (self.own_prompts, *others)
        self._fit_prompts()
        self.watch(self, "pairs_from", lambda _: self._fit_prompts())

    def _fit_prompts(self) -> None:
        for part in (self.own_prompts, self.tokens):
            shown_if(part, self.on_prompts)

    def pick(self, name: str) -> None:
        """Select a part of the model by its name, such as head 3.1 or mlp 5."""
        layer, _, head = name.split()[1].partition(".")
        self.select(int(layer), picked_part=name, **({"head": int(head)} if head else {}))

    @property
    def next_steps(self) -> tuple[Step, ...]:
        """What to look at next: the words of a picked head."""
        step = Step("head_words", "Which words does it relate?", {"tab": "heads"})
        return (step,) if self.picked_part.startswith("head") else ()

    # what the panel asks for ------------------------------------------------------------------------------------------

    def sites(self) -> tuple[str, ...]:
        return ()

    def pairs_of_positions(self) -> str:
        return "ends"

    def arguments(self) -> dict[str, Any]:
        left_out = ("pairs_from", "pairs", "sites", "alignment")
        return {name: value for name, value in super().arguments().items() if name not in left_out}

    def question_about(self) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Clean and corrupted prompts, the answers, and the foils as a keyword; hints where they do not fit."""
        if not self.on_prompts:
            pairs = contrast_pairs(self, aligned=False)
            self.require()
            tokens: dict[str, Any] = tokens_of_pairs(self, pairs)
            answers = tokens.pop("answer", None)
            return tuple(pair.clean for pair in pairs), tuple(pair.corrupted for pair in pairs), answers, tokens
        clean, corrupted, _ = self.both_prompts()
        with hint_at("corrupted" if self.corrupted else "swap"):
            check_lengths([PromptPair(clean, corrupted, None, None)])
        self.require()
        texts = self.corrupted_context()
        answer, foil = self._tokens(texts)
        return self.prediction().ids, texts, answer, foil


def fed_ids(request: Request, model: Model) -> list[tuple[list[int], list[int]]]:
    """The ids that a model is fed for the clean and the corrupted prompt of each pair of a request."""
    clean, corrupted = (
        [read_prompt(model, value.read_by(model))] if isinstance(value, PerModel)
        else [read_prompt(model, text) for text in value]
        for value in request.inputs[:2]
    )  # fmt: skip
    return [(list(one.ids), list(other.ids)) for one, other in zip(clean, corrupted, strict=True)]


def names_in(text: str) -> tuple[str, ...]:
    """The names in a text.

    >>> names_in("head_q 4.2, logits;mlp 3")
    ('head_q 4.2', 'logits', 'mlp 3')
    """
    return tuple(" ".join(name.split()) for name in re.split(r"[,;\n]", text) if name.strip())
