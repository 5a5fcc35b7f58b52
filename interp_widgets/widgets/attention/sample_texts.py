"""The texts that the tabs on many texts read: the user's, or some of the demo's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import traitlets as T

from interp_widgets.analysis.attention.text_patterns import read_texts
from interp_widgets.data.demo_texts import demo_texts
from interp_widgets.models import Model

from ..base.fields import Bounds, Incomplete, field, hint_at, variant
from ..base.opening import are_demo
from ..base.request import PerModel
from ..ffn_concepts.top_texts import TextOptions

OF_DEMO, OF_OTHERS = 160, 60
"""Texts of the demo's world that its models read, and that others do, which take longer."""
AROUND = 5
"""Tokens shown around a query and a key."""


@dataclass(frozen=True)
class SampleTexts(PerModel):
    """A list of texts, as an argument of an analysis."""

    texts: tuple[str, ...]
    count: int = 0
    """How many of the demo's texts they are; 0 for the user's own."""

    def read_by(self, model: Model) -> list[str]:
        return list(self.texts)

    def code(self, name: str) -> tuple[list[str], str]:
        if self.count:
            return [f"texts = demo_texts({self.count})"], "texts"
        return [f"texts = {list(self.texts)!r}"], "texts"

    @property
    def functions(self) -> list[str]:
        """What `code` calls."""
        return ["demo_texts"] if self.count else []

    @property
    def lengths(self) -> list[int]:
        """About how many tokens each has."""
        return [len(text) // 4 + 2 for text in self.texts]


class TextListOptions(T.HasTraits):
    """Which texts to read; base of panels."""

    models: Any
    sample_texts = variant(
        TextOptions.sample_texts, group="", selects=False, argument="texts",
        help="What to read; empty: short texts about places, people and things",
    )  # fmt: skip
    text_count = field(
        Annotated[int, Bounds(1, 1000)], OF_DEMO, label="Texts", width="short", argument=None, more=True,
        help="How many texts of the demo's world to read", shown_if=lambda panel: not panel.sample_texts,
    )  # fmt: skip

    @property
    def usual_count(self) -> dict[str, int]:
        """Fewer texts for models that do not ship, as a start value."""
        return {"text_count": OF_DEMO if are_demo(self.models) else OF_OTHERS}

    def texts_asked_for(self) -> SampleTexts:
        """The user's texts, or those of the demo's that the models can read; `Incomplete` for one of the user's that a
        model cannot read, or if it reads none of the demo's."""
        if self.sample_texts:
            with hint_at("sample_texts"):
                for model in self.models:
                    read_texts(model, self.sample_texts, None)
            return SampleTexts(tuple(self.sample_texts))
        texts = demo_texts(self.text_count)
        own = are_demo(self.models)  # which read all of them
        fitting = tuple(text for text in texts if own or all(_is_readable(model, text) for model in self.models))
        if not fitting:
            raise Incomplete("sample_texts", "the vocabulary has no words for the demo's texts: add texts of your own")
        return SampleTexts(fitting, self.text_count if fitting == texts else 0)


def _is_readable(model: Model, text: str) -> bool:
    """Whether a text is not too long for a model, and has words that its vocabulary knows."""
    ids = model.tokens(text)
    return len(ids) <= model.n_ctx and not all(model.is_special(ids))


def excerpt(tokens: Sequence[str], query: int, key: int, around: int = AROUND) -> str:
    """The part of a text around a query, in «», and its key, in ‹›.

    >>> excerpt(["The", " capital", " of", " France", " is", " a", " city"], 3, 0, 1)
    '‹The› capital of «France» is …'
    """
    kept = [at for at in range(len(tokens)) if min(abs(at - query), abs(at - key)) <= around]
    parts, before = [], -1
    for at in kept:
        text = tokens[at].replace("\r", "").replace("\n", "⏎").replace("\t", " ")
        space, text = (" ", text[1:]) if text.startswith(" ") else ("", text)
        text = f"«{text}»" if at == query else text
        parts.append((" … " if at > before + 1 else space) + (f"‹{text}›" if at == key else text))
        before = at
    return "".join(parts).strip() + (" …" if before < len(tokens) - 1 else "")
