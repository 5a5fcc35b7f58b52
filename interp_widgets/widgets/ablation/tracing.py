"""The tracing tab: which clean states bring an answer back when its subject is corrupted."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis.ablation import CausalTraceResult
from interp_widgets.figures.labels import axis_name
from interp_widgets.figures.static import Scene, stack_scenes

from ..base.controls import shown_if
from ..base.fields import Incomplete
from ..views import TokenStrip
from .ablation_spec import at_token
from .maps import LETTERS, Maps, amount, letters, quoted, title_start

if TYPE_CHECKING:
    from .panel import AblationPanel

TRACED = {"state": "State", "mlp": "MLPs", "attn": "Attention"}
"""What is put back."""
PUT_BACK = {
    "state": "The clean state behind",
    "mlp": "The clean MLP output of",
    "attn": "The clean attention output of",
}
UNIT = "probability brought back"
SUBJECT = "The subject, marked, gets the noise"
NO_SUBJECT = "Drag over the subject: it gets the noise"
SHADING = "Shading above: what a token's clean embedding alone brings back. Maps: what one clean value brings back."


class TracingTab:
    """Three maps, layer × position, and the strip in which the subject is marked."""

    def __init__(self, panel: AblationPanel) -> None:
        self.panel = panel
        self.strip = TokenStrip(
            marking=True, empty="No prompt yet", max_lines=4,
            value_label=f"{UNIT} by its embedding",
        )  # fmt: skip
        self.maps = Maps(panel, TRACED, column="token", in_row=3)
        self.maps.on_pin = self._pinned
        self.words, self.cell = W.HTML(""), W.HTML("")
        self.box = W.VBox([*panel.controls.rows("tracing"), self.strip, self.words, self.maps.grid, self.cell])
        self.box.add_class("iw-column")
        self.results: tuple[CausalTraceResult, ...] = ()
        self.kind = ""
        """The map whose cell is pinned."""
        self._typing, self._filling = True, False
        self._marks: list[list[int]] = []
        panel.watch(self.strip, "marks", self._marked)
        panel.watch(self.strip, "selected", self._selected)
        panel.watch(panel, "subject", self._typed)
        panel.watch(panel, "span", lambda _: self.fit())
        shown_if(self.words, False)

    # the subject ------------------------------------------------------------------------------------------------------

    def subject(self) -> tuple[tuple[int, int], str]:
        """The subject's tokens, and its text where it was typed; ValueError if there is none."""
        panel = self.panel
        if panel.span:
            start, end = panel.span
            if not 0 <= start < end <= len(panel.axis):
                raise ValueError(
                    f"span must be [start, end) with 0 <= start < end <= {len(panel.axis)} for this prompt, "
                    f"got {panel.span}"
                )
            return (start, end), ""
        if not panel.subject:
            raise Incomplete(
                "subject", "there is no subject yet: drag over its tokens below, or type the words of the prompt"
            )
        try:
            return read_prompt(panel.models[0], panel.prompt).find(panel.subject), panel.subject
        except ValueError as error:
            raise Incomplete("subject", str(error)) from error

    def fit(self) -> None:
        """Show the tokens that were read, and mark the subject where it is in them."""
        try:
            self._marks = [list(self.subject()[0])]
        except ValueError:
            self._marks = []  # the run that follows says what is wrong
        self._filling = True  # other tokens drop selection and marks, which is not the user's doing
        try:
            if list(self.panel.axis) != self.strip.tokens:
                self.strip.set_tokens(list(self.panel.axis), special=list(self.panel.axis_special))
            self.strip.label = f"{SUBJECT}; drag to mark another" if self._marks else NO_SUBJECT
            self.strip.marks = [span for span in self._marks if span[1] <= len(self.panel.axis)]
        finally:
            self._filling = False

    def _marked(self, change: Any) -> None:
        """A drag made or wiped out marks: the newest is the subject."""
        if self._filling or change.new == self._marks:
            return
        fresh = [span for span in change.new if span not in self._marks]
        span = fresh[-1] if fresh else []
        self._typing = False
        try:
            with self.panel.hold():
                self.panel.subject = self._text(span)
                self.panel.span = span
        finally:
            self._typing = True
        self.fit()

    def _selected(self, change: Any) -> None:
        if not self._filling:
            self.panel.position = change.new

    def _text(self, span: list[int]) -> str:
        """The words of marked tokens."""
        if not span:
            return ""
        spans = read_prompt(self.panel.models[0], self.panel.prompt).spans
        if spans is not None and span[1] <= len(spans):
            return self.panel.prompt[spans[span[0]][0] : spans[span[1] - 1][1]].strip()
        return "".join(self.panel.axis[span[0] : span[1]]).strip()

    def _typed(self, change: Any) -> None:
        """Typed words are looked up anew; marked tokens are where they are."""
        if self._typing:
            self.panel.span = []
            self.fit()

    # drawing ----------------------------------------------------------------------------------------------------------

    def paint(self, results: tuple[CausalTraceResult, ...]) -> None:
        """Draw other results, or the same in another view."""
        self.results, first = results, results[0]
        arrays = {
            kind: [np.asarray(one.effect[list(one.kinds).index(kind)], dtype=np.float64) for one in results]
            for kind in TRACED
        }
        which, rest = title_start(self.panel), ", partial" if any(one.partial for one in results) else ""
        around = "" if first.window == 1 else f" of {first.window} layers around"
        titles = {
            "state": f"{which}State behind the layer{rest}",
            "mlp": f"{which}MLP{around}{rest}",
            "attn": f"{which}Attention{around}{rest}",
        }
        self.maps.paint(
            arrays, first.tokens, unit=UNIT, titles=titles, marks=[first.subject],
            notes={kind: self._notes(kind) for kind in TRACED},
        )  # fmt: skip
        self._shade(arrays)
        self.words.value = "<br>".join([*map(_in_words, letters(results), results), SHADING])
        shown_if(self.words, True)
        self.paint_selection()

    def paint_selection(self) -> None:
        """Show the selected cell."""
        panel = self.panel
        inside = 0 <= panel.position < len(self.strip.tokens)
        self.strip.selected = panel.position if inside else -1
        if not self.results:
            return
        self.maps.select(panel.layer if panel.layer_told else -1, panel.position, self.kind)
        self.cell.value = self._cell()

    def scene(self) -> Scene:
        """Strip and maps."""
        return stack_scenes([self.strip.scene(width=1576, title=SUBJECT), self.maps.scene()])

    def _shade(self, arrays: Any) -> None:
        """Shade each token by what its clean embedding alone brings back."""
        effects = [np.asarray(one.embedding_effect, dtype=np.float64) for one in self.results]
        shown = self.maps.of_view(effects)
        if shown is None or len(shown) != len(self.strip.tokens):
            self.strip.set_values(None)
            return
        full = self.maps.largest(arrays) * self.panel.color_range
        self.strip.set_values(shown, vmin=-full, vmax=full, signed=True)

    def _looked_at(self) -> list[tuple[str, CausalTraceResult]]:
        """The results that the view shows, with a letter where both are."""
        if self.panel.shown == "difference":
            return list(zip(letters(self.results), self.results, strict=True))
        return [("", self.results[LETTERS.index(self.panel.shown)])]

    def _notes(self, kind: str) -> list[str]:
        """The interval of each cell, for the tooltip."""
        shown = self._looked_at()
        shapes = {one.effect.shape[1:] for _, one in shown}
        if len(shapes) > 1:
            return []
        each = [[letter + text for text in _intervals(one, kind)] for letter, one in shown]
        return ["; ".join(texts) for texts in zip(*each, strict=True)]

    def _cell(self) -> str:
        """The selected cell in words."""
        panel, kind = self.panel, self.kind
        said = []
        for letter, one in self._looked_at() if kind else []:
            if panel.layer >= one.n_layers or not 0 <= panel.position < len(one.tokens):
                continue
            first, last = one.layers_of(kind, panel.layer)
            layers = f"layer {first}" if last == first + 1 else f"layers {first} to {last - 1}"
            value = amount(float(one.effect[tuple(one.kinds).index(kind), panel.layer, panel.position]))
            interval = _intervals(one, kind)[panel.layer * len(one.tokens) + panel.position]
            said.append(
                f"{letter}{PUT_BACK[kind]} {layers} at {escape(at_token(panel.position, one.tokens))} brings back "
                f"<b>{value}</b> of {amount(one.total_effect)} ({interval})."
            )
        return "<br>".join(said)

    def _pinned(self, kind: str, layer: int, position: int) -> None:
        self.kind = kind if layer >= 0 else ""
        self.panel.pick(None, layer, position=position)


def _intervals(one: CausalTraceResult, kind: str) -> list[str]:
    """The 95 % interval of each cell of a map in words, row by row."""
    place = tuple(one.kinds).index(kind)
    effects, intervals = one.effect[place].ravel(), one.interval[place].reshape(-1, 2)
    texts = []
    for effect, (low, high) in zip(effects, intervals, strict=True):
        if not np.isfinite(effect):
            texts.append("not computed")
        elif not np.isfinite(low):
            texts.append("one draw of noise, no interval")
        else:
            texts.append(f"95 % interval {amount(float(low))} to {amount(float(high))}")
    return texts


def _in_words(letter: str, one: CausalTraceResult) -> str:
    """Clean and corrupted probability."""
    target = quoted(one.target_token)
    subject = escape(axis_name("".join(one.tokens[one.subject[0] : one.subject[1]]).strip()))
    low, high = (amount(float(f(one.corrupted))) for f in (np.min, np.max))
    spread = f" (mean of {len(one.corrupted)} draws, {low} to {high})" if len(one.corrupted) > 1 else " (one draw)"
    return (
        f"{letter}{target} has probability <b>{amount(one.clean)}</b> as it is and "
        f"<b>{amount(float(one.corrupted.mean()))}</b>{spread} with noise on “{subject}”: "
        f"<b>{amount(one.total_effect)}</b> to bring back."
    )
