"""Causal tracing: which clean states restore an answer whose subject is corrupted."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as data
from functools import partial
from html import escape
from typing import Annotated, Any

import ipywidgets as W
import numpy as np
import traitlets as T

from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.statistics import largest_sign_flip_p
from interp_widgets.analysis.ablation import CausalTraceResult, causal_trace, causal_trace_cost, default_window
from interp_widgets.figures.labels import axis_name
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.controls import Span, shown_if
from ..base.fields import Bounds, Incomplete, Seed, field, hint_at
from ..base.opening import opening_of
from ..base.prediction import checked
from ..base.request import PerModel, Request
from ..views import TokenStrip
from .ablation_spec import at_token
from .maps import (
    PART,
    POSITIONS,
    MapPanel,
    Maps,
    amount,
    cell_notes,
    fed_positions,
    place,
    quoted,
    strongest,
    subset,
)

TRACED = {"state": "State", "mlp": "MLPs", "attn": "Attention"}
"""The restored activation."""
PUT_BACK = {
    "state": "The clean residual stream after",
    "mlp": "The clean MLP output of",
    "attn": "The clean attention output of",
}
UNIT = "probability restored"
LEVEL = 0.05
"""The corrected p below which an effect is beyond chance."""
FEWEST = 6
"""Noise samples with which a p can be below the level."""
SUBJECT = "The marked subject gets the noise"
SINK = (
    " The subject begins the text, where its first token carries the model's attention sink: noise there takes the "
    "sink away too, which no state of the fact brings back. Put words before the subject."
)
SHADING = "Shading above: what a token's clean embedding alone restores. Maps: what one clean activation restores."


@dataclass(frozen=True)
class Subject(PerModel):
    """The tokens that get the noise."""

    span: tuple[int, int]
    """First and past-last token."""
    words: str = data(default="", compare=False)
    """The subject as typed, if there is no response; empty if tokens were marked."""

    def read_by(self, model: Model) -> tuple[int, int]:
        return self.span

    def code(self, name: str) -> tuple[list[str], str]:
        return [], repr(self.words or self.span)


class CausalTracing(MapPanel):
    """Which clean states restore an answer: three maps, layer × position, and the strip with the subject."""

    title = "Causal tracing"
    analysis = staticmethod(causal_trace)
    first_parts = "what is expected to be strongest"
    part = f"the subject and the {PART} tokens"
    subject = field(str, label="Subject", placeholder="words of the prompt",
                    help="Words of the prompt to corrupt with noise; their last occurrence counts")  # fmt: skip
    noise = field(
        Annotated[float, Bounds(0.0, 100.0, 0.5)], 3.0, label="Noise", width="short",
        help="Standard deviation of the noise, in standard deviations of the token embeddings",
    )  # fmt: skip
    samples = field(Annotated[int, Bounds(1, 1000)], 10, label="Samples", width="short", help="Number of noise samples")
    noise_seed = field(Seed, label="Seed", width="short", argument="seed", help="Seed of the noise")
    window = field(
        Annotated[int, Bounds(1, lambda panel: min(model.n_layers for model in panel.models))], 1, label="Window",
        width="short", help="Layers whose MLP or attention outputs are restored together; by default a fifth of them",
    )  # fmt: skip
    positions = POSITIONS
    span = field(Span())
    """Tokens [start, end) that get the noise instead, if they were marked; or empty."""
    traced = field(T.Enum(("", *TRACED), default_value=""), selects=True)
    """The map whose cell is picked; empty for none."""

    preset_fields = ("subject",)

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        usual = {"window": min(default_window(model.n_layers) for model in self.models)}
        return super().defaults(keywords) | {name: value for name, value in usual.items() if name not in keywords}

    def build(self) -> None:
        self.inputs.children = [*self.text_inputs(), *self.controls.rows()]
        self.strips = pair_view.SideBySide(
            self, lambda: TokenStrip(
                marking=True, empty="No prompt yet", max_lines=4, value_label=f"{UNIT} by its embedding", legend=True,
            )
        )  # fmt: skip
        self.strip = self.strips.views[0]
        self.maps = Maps(self, TRACED, column="token", in_row=3)
        self.maps.on_pin = lambda kind, layer, at: self.select(layer, traced=kind if layer >= 0 else "", position=at)
        self.words, self.cell = W.HTML(""), W.HTML("")
        shown_if(self.words, False)
        for part in (self.strips.box, self.words, self.cell):
            part.add_class("iw-after")
        self.plot.children = [self.strips.box, self.maps.grid, self.words, self.cell]
        self._typing = True
        self._marks: list[list[int]] = []
        for strip in self.strips.views:
            self.on_user(strip, "marks", self._marked)
            self.on_user(strip, "selected", self._selected)
        self.watch(self, "prompt", lambda _: self._take_subject())
        self.watch(self, "subject", self._typed)
        self.watch(self, "span", lambda _: self.texts_read())
        if not {"subject", "span"} & set(self.keywords):
            self._take_subject()

    # what the panel asks for ------------------------------------------------------------------------------------------

    def request(self) -> Request:
        prediction = self.prediction()
        checked(prediction, self.models[0])
        span, words = self.subject_tokens()
        options = {name: value for name, value in self.arguments().items() if name not in ("subject", "span")}
        subject = Subject(span, "" if prediction.response else words)
        return Request.of(causal_trace, options, prediction.ids, subject, prediction.answer)

    def arguments(self) -> dict[str, Any]:
        """Those of the fields; the part on which a long map opens has the subject, about which the question is."""
        arguments = super().arguments()
        if self.positions == PART:
            arguments["positions"] = tuple(sorted({*arguments["positions"], *range(*self.subject_tokens()[0])}))
        return arguments

    def cost(self, request: Request, model: Model) -> Any:
        options = dict(request.arguments)
        prompt = read_prompt(model, request.inputs[0].read_by(model))
        return causal_trace_cost(
            model, len(prompt.ids), window=options["window"], samples=options["samples"],
            first=prompt.offset + request.inputs[1].span[0], layers=options.get("layers"),
            positions=fed_positions(model, prompt.ids, options.get("positions")),
        )  # fmt: skip

    # the subject ------------------------------------------------------------------------------------------------------

    def subject_tokens(self) -> tuple[tuple[int, int], str]:
        """The subject's tokens, and its text if it was typed; ValueError if there is none."""
        count = len(self.texts.axis)
        if self.span:
            start, end = self.span
            if not 0 <= start < end <= count:
                raise ValueError(
                    f"span must be [start, end) with 0 <= start < end <= {count} for this prompt, got {self.span}"
                )
            return (start, end), ""
        if not self.subject:
            raise Incomplete("subject", "there is no subject yet: drag over its tokens below, or type its words")
        with hint_at("subject"):
            return read_prompt(self.models[0], self.prompt).find(self.subject), self.subject

    def _take_subject(self) -> None:
        """Without a subject, take that of the opening's prompt; it leaves with its words."""
        opening = opening_of(self.models)
        if self.subject and self.subject == opening.subject and self.subject not in self.prompt:
            self.subject = ""
        if not self.subject and not self.span and self.prompt == opening.prompt:
            self.subject = opening.subject

    def texts_read(self) -> None:
        """Show the tokens of the context, and mark the subject in them."""
        before, axis = self.strip.tokens, list(self.texts.axis)
        if self.span and before[: len(axis)] != axis[: len(before)]:
            self.span = []  # the marked tokens have changed
        try:
            self._marks = [list(self.subject_tokens()[0])]
        except ValueError:
            self._marks = []  # the run that follows reports the error
        for strip in self.strips.views:
            if axis != before:
                strip.set_tokens(axis, special=list(self.texts.special))
            strip.instruction = "drag to mark another" if self._marks else "drag over the subject to corrupt"
            strip.marks = [span for span in self._marks if span[1] <= len(self.texts.axis)]
        self._label()

    def _label(self) -> None:
        for view, strip in self.strips.drawn():
            letter = f"{view}: " if self.shown == "beside" else ""
            strip.label = letter + SUBJECT if self._marks else ""

    def _marked(self, change: Any) -> None:
        """After a drag, the newest mark becomes the subject."""
        if change.new == self._marks:
            return
        fresh = [span for span in change.new if span not in self._marks]
        span = fresh[-1] if fresh else []
        self._typing = False
        try:
            with self.batch_changes():
                self.subject = self._text(span)
                self.span = span
        finally:
            self._typing = True
        self.texts_read()

    def _selected(self, change: Any) -> None:
        self.position = change.new

    def _text(self, span: list[int]) -> str:
        """The words of marked tokens."""
        if not span:
            return ""
        spans = read_prompt(self.models[0], self.prompt).spans
        if spans is not None and span[1] <= len(spans):
            return self.prompt[spans[span[0]][0] : spans[span[1] - 1][1]].strip()
        return "".join(self.texts.axis[span[0] : span[1]]).strip()

    def _typed(self, change: Any) -> None:
        """Find typed words again; marked tokens stay."""
        if self._typing:
            self.span = []
            self.texts_read()

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[CausalTraceResult, ...], request: Request) -> None:
        first = results[0]
        arrays = {
            kind: [np.asarray(result.effect[list(result.kinds).index(kind)], dtype=np.float64) for result in results]
            for kind in TRACED
        }
        rest = ", partial" if any(result.partial for result in results) else ""
        around = "" if first.window == 1 else f" of {first.window} layers around"
        titles = {
            "state": f"Residual stream after the layer{rest}",
            "mlp": f"MLP{around}{rest}",
            "attn": f"Attention{around}{rest}",
        }
        self.maps.paint(
            arrays, first.traced_tokens, unit=UNIT, titles=titles, marks=_subject_columns(first),
            layers=first.layers, positions=first.positions,
            notes=lambda view: {kind: cell_notes(view, results, partial(_intervals, kind=kind)) for kind in TRACED},
        )  # fmt: skip
        self.maps.mute(self._grey)
        self._shade(arrays)
        cells = strongest(results, _largest, _after_noise)
        runs = map(_in_words, pair_view.letters(results), results)
        chance = map(_beyond_chance, pair_view.letters(results), results)
        self.words.value = "<br>".join(filter(None, [*runs, cells, *chance, SHADING]))
        shown_if(self.words, True)

    def draw_selection(self) -> None:
        inside = 0 <= self.position < len(self.strip.tokens)
        for strip in self.strips.views:
            strip.selected = self.position if inside else -1
        if self.results:
            self.maps.select(self.layer if self.layer_chosen else -1, self.position, self.traced)
            self.cell.value = self._cell()

    def scene(self) -> Scene:
        """Strip and maps."""
        width = 1576 if len(self.strips.shown) == 1 else 640
        return stack_scenes([self.strips.scene(width=width, title=SUBJECT), self.maps.scene()])

    def _grey(self, view: str) -> dict[str, Any] | None:
        """Where the maps of a view are not beyond chance; None without a test."""
        shown = [self.results[index] for index in pair_view.models_of(view)]
        p = shown[0].p if len(shown) == 1 else _p_of_difference(*shown)
        if p is None or min(len(result.corrupted) for result in shown) < FEWEST:
            return None
        return {kind: p[tuple(shown[0].kinds).index(kind)] >= LEVEL for kind in TRACED}

    def _shade(self, arrays: Any) -> None:
        """Shade each token by what its clean embedding alone restores."""
        effects = [np.asarray(result.embedding_effect, dtype=np.float64) for result in self.results]
        self._label()
        for view, strip in self.strips.drawn():
            shown = pair_view.of_view(view, effects)
            if shown is None or len(shown) != len(strip.tokens):
                strip.set_values(None)
                continue
            full = pair_view.symmetric_limit(view, arrays.values()) * self.color_range
            strip.set_values(shown, vmin=-full, vmax=full, signed=True)

    def _seen(self, view: str) -> list[tuple[str, CausalTraceResult]]:
        """The results that a view shows, with letters if there are two."""
        results = [self.results[index] for index in pair_view.models_of(view)]
        return list(zip(pair_view.letters(results), results, strict=True))

    def _cell(self) -> str:
        """The selected cell in words."""
        kind = self.traced
        lines = []
        for letter, result in self._seen(self.shown) if kind else []:
            row, column = place(self.layer, result.layers), place(self.position, result.positions)
            if min(row, column) < 0:
                continue
            effect = float(result.effect[tuple(result.kinds).index(kind), row, column])
            if not np.isfinite(effect):
                lines.append(f"{letter}This cell of a partial map is not computed yet.")
                continue
            value = amount(effect)
            interval = _intervals(result, kind)[row * len(result.positions) + column]
            lines.append(
                f"{letter}{_restored(result, kind, self.layer, self.position)} restores "
                f"<b>{value}</b> of {amount(result.total_effect)} ({interval})."
            )
        return "<br>".join(lines)


def _intervals(result: CausalTraceResult, kind: str) -> list[str]:
    """The 95% interval of each cell of a map in words, row by row."""
    index = tuple(result.kinds).index(kind)
    effects, intervals = result.effect[index].ravel(), result.interval[index].reshape(-1, 2)
    texts = []
    for effect, (low, high), p in zip(effects, intervals, result.p[index].ravel(), strict=True):
        if not np.isfinite(effect):
            texts.append("not computed")
        elif not np.isfinite(low):
            texts.append("one noise sample, no interval")
        else:
            few = np.isnan(p) or len(result.corrupted) < FEWEST
            tested = "" if few else f", p {p:.2g}" if p < LEVEL else ", not beyond chance"
            texts.append(f"95% interval {amount(float(low))} to {amount(float(high))}{tested}")
    return texts


def _p_of_difference(a: CausalTraceResult, b: CausalTraceResult) -> Any:
    """The p of B − A in each cell, sample by sample; None where the maps or samples differ."""
    if a.restored.shape != b.restored.shape:
        return None
    gain = (b.restored - b.corrupted) - (a.restored - a.corrupted)
    tested = np.isfinite(a.p) & np.isfinite(b.p)
    values = np.full(tested.shape, np.nan)
    values[tested] = largest_sign_flip_p(gain[tested].T)
    return values


def _beyond_chance(letter: str, result: CausalTraceResult) -> str:
    """How many effects are beyond chance, as HTML."""
    samples, p = len(result.corrupted), result.p[np.isfinite(result.p)]
    if samples < 2:
        return f"{letter}One noise sample: no interval and no test."
    if not p.size:
        return ""
    if samples < FEWEST:
        return f"{letter}With {samples} noise samples no cell can be told from chance: draw at least {FEWEST}."
    return (
        f"{letter}<b>{int((p < LEVEL).sum()):,} of {p.size:,}</b> cells differ from 0 beyond chance (sign flips of the "
        f"{samples} noise samples, p below {LEVEL} corrected over all cells); the others have no colour."
    )


def _restored(result: CausalTraceResult, kind: str, layer: int, position: int) -> str:
    """What a cell restores, for HTML."""
    first, last = result.layers_of(kind, layer)
    layers = f"layer {first}" if last == first + 1 else f"layers {first} to {last - 1}"
    return f"{PUT_BACK[kind]} {layers} at {escape(at_token(position, result.tokens))}"


def _subject_columns(result: CausalTraceResult) -> list[list[int]]:
    """The spans of columns that are the subject's."""
    inside = [column for column, at in enumerate(result.positions) if at in range(*result.subject)]
    return [[column, column + 1] for column in inside] if subset(result.positions) else [list(result.subject)]


def _after_noise(result: CausalTraceResult) -> Any:
    """The effects at the positions that see the noise; before them all are 0."""
    return result.effect[..., np.asarray(result.positions) >= result.subject[0]]


def _largest(result: CausalTraceResult) -> str:
    """The largest effect but for the state of the last token, the prediction itself; empty if none is computed."""
    sizes = np.where(np.isfinite(result.effect), np.abs(result.effect), -1.0)
    sizes[..., np.asarray(result.positions) < result.subject[0]] = -1.0
    if (last := place(len(result.tokens) - 1, result.positions)) >= 0:
        sizes[tuple(result.kinds).index("state"), :, last] = -1.0
    if sizes.max() < 0:
        return ""
    at = tuple(int(i) for i in np.unravel_index(int(sizes.argmax()), sizes.shape))
    cell = _restored(result, result.kinds[at[0]], result.layers[at[1]], result.positions[at[2]])
    return f"<b>{amount(float(result.effect[at]))}</b>, {cell[:1].lower()}{cell[1:]}"


def _in_words(letter: str, result: CausalTraceResult) -> str:
    """Clean and corrupted probability."""
    target = quoted(result.target_token)
    subject = escape(axis_name("".join(result.tokens[result.subject[0] : result.subject[1]]).strip()))
    low, high = (amount(float(f(result.corrupted))) for f in (np.min, np.max))
    spread = (
        f" (mean of {len(result.corrupted)} samples, {low} to {high})" if len(result.corrupted) > 1 else " (one sample)"
    )
    return (
        f"{letter}{target} has probability <b>{amount(result.clean)}</b> in the clean run and "
        f"<b>{amount(float(result.corrupted.mean()))}</b>{spread} with noise on “{subject}”: "
        f"<b>{amount(result.total_effect)}</b> to restore.{SINK if result.sink else ''}"
    )
