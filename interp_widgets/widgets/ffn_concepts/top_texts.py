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
from interp_widgets.figures.labels import fixed

from ..base.answers import once_for
from ..base.controls import shown_if
from ..base.fields import Lines, field
from ..base.jobs import Derived
from ..views import TokenStrip

LISTED = 5
"""Number of texts listed per model."""
QUICK = 1e11
"""FLOPs that are computed without showing them in the status line."""
MOST = 2**24
"""Most activations held at once; up to it, those of all neurons of a layer."""
ENDS = {"highest": "highest", "lowest": "lowest"}


class TextOptions(T.HasTraits):
    """Which texts to read, and whether to list the highest or the lowest activations."""

    sample_texts = field(
        Annotated[list, Lines(3)], label="Texts, one per line", placeholder="empty: texts of the demo's world",
        group="texts", width="grow", argument=None, selects=True, more=True,
    )  # fmt: skip
    texts_end = field(
        ENDS, "highest", label="Activation", group="texts", argument=None, selects=True,
        help="List the texts with the highest or with the lowest activation",
    )  # fmt: skip


@dataclass(frozen=True)
class Source:
    """The source of one model's activations."""

    name: str
    """The model's letter; empty if there is only one."""
    index: int
    """Index of the model on the panel."""
    result: Any
    """The result that the activations belong to: they are cached as long as it is."""
    layer: int
    number: int
    """Which neuron or direction."""
    directions: NDArray[Any] | None = None
    """(n, d_model) directions of the layer; None for neurons."""


class TopTexts:
    """The texts with the highest or lowest activation, for every model in view."""

    def __init__(self, panel: Any, what: Callable[[int], str]) -> None:
        self.panel, self.what = panel, what
        self.strips = [TokenStrip(empty="No texts yet", max_lines=14, legend=True) for _ in panel.models]
        self.parts = [W.VBox([strip]) for strip in self.strips]
        controls = panel.controls.rows("texts")
        self.box = W.VBox([*controls, *self.parts])
        self.box.add_class("iw-column")
        self._reading = Derived(panel, self._draw, title="Reading the texts", channel="texts")
        self._sources: tuple[Source, ...] = ()
        self.found: list[list[TopText]] = []
        """The listed texts, one list per model in view."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts to read: the user's, or those of the demo's that are not too long for the models."""
        return tuple(self.panel.sample_texts) or self._of_demo

    @cached_property
    def _of_demo(self) -> tuple[str, ...]:
        models = self.panel.models
        return tuple(text for text in demo_texts() if all(len(model.tokens(text)) <= model.n_ctx for model in models))

    def paint(self, sources: Sequence[Source]) -> None:
        """List the texts for these sources; the worker reads them if necessary. Nothing without a source."""
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
        quick = sum(tokens * flops_per_token(self.panel.models[source.index]) for source in sources) < QUICK
        self._reading.ask(self._key(), work, quiet=quick)
        self._draw()

    def _key(self) -> Any:
        about = tuple((id(source.result), source.layer, self._numbers(source)) for source in self._sources)
        return about, self.texts if self._sources else ()  # a saved result has no model to run

    def _numbers(self, source: Source) -> tuple[int, ...] | None:
        """The neurons to read: all of the layer unless they are too many."""
        if source.directions is not None:
            return None
        characters = sum(map(len, self.texts))  # at least as many as tokens
        return None if self.panel.models[source.index].d_mlp * characters <= MOST else (source.number,)

    def _read(self, source: Source, texts: tuple[str, ...], job: Any) -> TextActivations:
        numbers = self._numbers(source)
        keywords: dict[str, Any] = (
            {"neurons": numbers} if source.directions is None else {"directions": source.directions}
        )
        model, what = self.panel.models[source.index], ("texts", source.layer, numbers, texts)
        activations: TextActivations = once_for(
            (source.result,),
            what,
            lambda: text_activations(
                model, texts, layer=source.layer, **keywords, progress=job.progress, check=job.check
            ),
            models=(model,),
        )
        return activations

    def _draw(self) -> None:
        """Show the texts that were read."""
        read = self._reading.of(self._key()) or []
        lowest = self.panel.texts_end == "lowest"
        self.found = [
            activations.top(source.number, LISTED, lowest=lowest)
            for source, activations in zip(self._sources, read, strict=False)
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


def fill(strip: TokenStrip, texts: Sequence[TopText]) -> None:
    """Show texts below each other, each after its activation."""
    tokens: list[str] = []
    values: list[float] = []
    special: list[bool] = []
    for number, text in enumerate(texts):
        last = number == len(texts) - 1
        # a line end inside a text would look like the end of it
        shown = [token.replace("\r", "").replace("\n", "↵") for token in text.tokens]
        tokens += [fixed(text.value, 2, "+"), *shown, *([] if last else ["\n"])]
        values += [np.nan, *text.values.tolist()] if last else [np.nan, *text.values.tolist(), np.nan]
        special += [True, *[False] * (len(shown) + (not last))]
    with strip.hold_sync():
        strip.set_tokens(tokens, special=special)
        strip.set_values(values, signed=True)
        strip.value_label = "activation"
