"""The texts in which the picked component or neuron is most active, their tokens shaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import ipywidgets as W
import numpy as np
import traitlets as T
from numpy.typing import NDArray

from interp_widgets.analysis._core.cost import flops_per_token
from interp_widgets.analysis.ffn_concepts import TextActivations, TopText, text_activations
from interp_widgets.data.demo_texts import demo_texts
from interp_widgets.models import Model

from ..base.answers import once_for
from ..base.controls import shown_if
from ..base.fields import Lines, field
from ..base.jobs import Derived
from ..views import TokenStrip

LISTED = 5
"""Texts listed of each model."""
QUICK = 1e11
"""Operations of a moment, without a word in the status line."""
MOST = 2**24
"""Numbers held at once: those of all neurons of a layer, where there are no more."""
ENDS = {"highest": "highest", "lowest": "lowest"}


class TextOptions(T.HasTraits):
    """Which texts are read, and which end of the activations is looked at."""

    sample_texts = field(
        Annotated[list, Lines(3)], label="Texts, one per line", placeholder="empty: texts of the demo's world",
        group="texts", width="grow", argument=None, selects=True, more=True,
    )  # fmt: skip
    texts_end = field(
        ENDS, "highest", label="Activation", group="texts", argument=None, selects=True,
        help="Whether the texts with the highest or with the lowest activation are listed",
    )  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Where the activations of one model come from."""

    name: str
    """What to call the model: its letter, or nothing where there is only one."""
    model: Model
    held: Any
    """The result that the activations belong to: they are kept as long as it is."""
    layer: int
    number: int
    """Which neuron or direction."""
    directions: NDArray[Any] | None = None
    """(n, d_model) directions of the layer; None for neurons."""


class TopTexts:
    """For every model that is looked at, the texts with the highest or lowest activation."""

    def __init__(self, panel: Any, what: Callable[[int], str]) -> None:
        self.panel, self.what = panel, what
        self.strips = [TokenStrip(empty="No texts yet", max_lines=14) for _ in panel.models]
        self.parts = [W.VBox([strip]) for strip in self.strips]
        controls = panel.controls.rows("texts")
        self.box = W.VBox([*controls, *self.parts])
        self.box.add_class("iw-column")
        self._reading = Derived(panel, self._draw, title="Reading the texts", channel="texts")
        self._sources: tuple[Source, ...] = ()
        self.found: list[list[TopText]] = []
        """What is listed, one list per model that is looked at."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that are read: the user's, or those of the demo's that are not too long for the models."""
        return tuple(self.panel.sample_texts) or self._of_demo

    @cached_property
    def _of_demo(self) -> tuple[str, ...]:
        models = self.panel.models
        return tuple(text for text in demo_texts() if all(len(one.tokens(text)) <= one.n_ctx for one in models))

    def paint(self, sources: Sequence[Source]) -> None:
        """List the texts of these models; the worker reads them unless that is done. Nothing where there is none."""
        self._sources = tuple(sources)
        if not sources or not self.texts:
            self._sources = ()
            self._reading.forget()
            self._draw()
            return
        texts = self.texts

        def work(job: Any) -> list[TextActivations]:
            return [self._read(source, texts, job) for source in self._sources]

        tokens = sum(map(len, texts)) / 4  # about
        quick = sum(tokens * flops_per_token(source.model) for source in sources) < QUICK
        self._reading.ask(self._key(), work, quiet=quick)
        self._draw()

    def _key(self) -> Any:
        about = tuple((id(one.held), one.layer, self._numbers(one)) for one in self._sources)
        return about, self.texts if self._sources else ()  # a saved result has no model that could read

    def _numbers(self, source: Source) -> tuple[int, ...] | None:
        """The neurons that are read: all of the layer where they are not too many."""
        if source.directions is not None:
            return None
        characters = sum(map(len, self.texts))  # at least as many as tokens
        return None if source.model.d_mlp * characters <= MOST else (source.number,)

    def _read(self, source: Source, texts: tuple[str, ...], job: Any) -> TextActivations:
        numbers = self._numbers(source)
        asked: dict[str, Any] = {"neurons": numbers} if source.directions is None else {"directions": source.directions}
        what = ("texts", source.layer, numbers, texts)
        found: TextActivations = once_for(
            (source.held,),
            what,
            lambda: text_activations(
                source.model, texts, layer=source.layer, **asked, progress=job.progress, check=job.check
            ),
        )
        return found

    def _draw(self) -> None:
        """Show what was read."""
        read = self._reading.of(self._key()) or []
        lowest = self.panel.texts_end == "lowest"
        self.found = [
            one.top(source.number, LISTED, lowest=lowest) for source, one in zip(self._sources, read, strict=False)
        ]
        for index, (part, strip) in enumerate(zip(self.parts, self.strips, strict=True)):
            shown_if(part, index < max(1, len(self._sources)))
            if index < len(self.found):
                fill(strip, self.found[index])
            else:
                strip.set_tokens([])
                strip.empty = self._reading.failure or ("Reading the texts…" if self._sources else "No texts yet")
            if index < len(self._sources):
                source = self._sources[index]
                start = f"{source.name}: " if source.name else ""
                strip.label = (
                    f"{start}The {LISTED} of {len(self.texts):,} texts with the {self.panel.texts_end} activation of "
                    f"{self.what(source.number)}, which stands before each"
                )


def fill(strip: TokenStrip, found: Sequence[TopText]) -> None:
    """One text below the other, each behind its activation."""
    tokens: list[str] = []
    values: list[float] = []
    special: list[bool] = []
    for number, one in enumerate(found):
        last = number == len(found) - 1
        # a line end inside a text would look like the end of it
        shown = [token.replace("\r", "").replace("\n", "↵") for token in one.tokens]
        tokens += [f"{one.value:+.2f}", *shown] if last else [f"{one.value:+.2f}", *shown, "\n"]
        values += [np.nan, *one.values.tolist()] if last else [np.nan, *one.values.tolist(), np.nan]
        special += [True, *[False] * (len(shown) + (not last))]
    with strip.hold_sync():
        strip.set_tokens(tokens, special=special)
        strip.set_values(values, signed=True)
        strip.value_label = "activation"
