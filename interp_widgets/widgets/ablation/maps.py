"""Maps over layers that share one colour scale and one cursor, and the tab of the module maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.ablation import AblationResult
from interp_widgets.figures.static import Scene, number, stack_scenes, visible

from ..controls import shown_if
from ..views import Heatmap
from .planned import KIND_LABELS, Planned, at_token

if TYPE_CHECKING:
    from .panel import AblationPanel

Array = NDArray[np.float64]

UNITS = {
    "logit": "fall of the logit",
    "probability": "fall of the probability",
    "log_prob": "fall of the log-probability, nats",
    "logit_difference": "fall of the logit difference",
    "kl": "KL divergence, nats",
}
"""What the numbers of an ablation map are."""
METRIC_NAMES = {
    "logit": "logit",
    "probability": "probability",
    "log_prob": "log-probability",
    "logit_difference": "logit difference",
}
LETTERS = "AB"


class Maps:
    """Heat maps with layers as rows on one scale about zero, each in a box of its own, in a grid that reflows."""

    def __init__(self, panel: AblationPanel, labels: Mapping[str, str], *, column: str, wide: bool = True) -> None:
        self.panel, self.labels = panel, dict(labels)
        self.maps = {
            name: Heatmap(
                title=label, row_name="layer", column_name=column, y_label="layer", empty="No map yet: press Run"
            )
            for name, label in labels.items()
        }
        self.boxes = {name: W.VBox([heat]) for name, heat in self.maps.items()}
        self.grid = W.VBox(list(self.boxes.values()))
        self.grid.add_class("iw-maps" if wide else "iw-maps-3")
        self.on_pin: Callable[[str, int, int], object] = lambda name, row, column: None
        self._filling = False
        for name, heat in self.maps.items():
            panel.watch(heat, "pinned", partial(self._pinned, name))
            panel.watch(heat, "cross", self._moved)

    def paint(
        self, arrays: Mapping[str, Sequence[Array]], columns: Sequence[str], *, unit: str, titles: Mapping[str, str],
        notes: Mapping[str, Sequence[str]] | None = None, marks: Sequence[Sequence[int]] = (),
    ) -> None:  # fmt: skip
        """Show other numbers: for every map one (layers, columns) array per model."""
        self._filling = True  # other shapes drop cursor and pin, which is not the user's doing
        largest = self.largest(arrays)
        after = ", B − A" if self.panel.shown == "difference" else ""
        full = largest * self.panel.color_range
        try:
            for name, heat in self.maps.items():
                shown = self.of_view(arrays[name])
                if shown is None:
                    a, b = (" × ".join(map(str, one.shape)) for one in arrays[name])
                    heat.empty = f"A difference needs maps of one shape, these are {a} and {b}: look at A or B"
                    heat.set_matrix(None)
                    continue
                with heat.hold_sync():
                    heat.title, heat.value_label = titles.get(name, self.labels[name]), unit + after
                    heat.numbers_from = max(self.panel.threshold * largest, 1e-12)
                    heat.set_matrix(
                        shown, columns=list(columns[: shown.shape[1]]), vmin=-full, vmax=full, signed=True,
                        notes=[] if notes is None else list(notes[name]),
                    )  # fmt: skip
                    heat.column_marks = [list(span) for span in marks]
        finally:
            self._filling = False

    def select(self, row: int, column: int, pinned: str = "") -> None:
        """Put the cursor of all maps on a cell (-1: a whole row or column), and pin it in one of them."""
        self._filling = True
        try:
            for name, heat in self.maps.items():
                rows, columns = heat.shape
                at = [row if row < rows else -1, column if column < columns else -1]
                with heat.hold_sync():
                    heat.cross = at if max(at) >= 0 else []
                    heat.pinned = at if name == pinned and min(at) >= 0 else []
        finally:
            self._filling = False

    def of_view(self, arrays: Sequence[Array]) -> Array | None:
        """The numbers of what is looked at; None for a difference of models with other numbers of layers or heads."""
        if self.panel.shown != "difference":
            return arrays[LETTERS.index(self.panel.shown)]
        return arrays[1] - arrays[0] if arrays[0].shape == arrays[1].shape else None

    def largest(self, arrays: Mapping[str, Sequence[Array]]) -> float:
        """The end of the scale: of all maps and both models, or of the differences."""
        if self.panel.shown == "difference":
            parts = [self.of_view(pair) for pair in arrays.values()]
        else:
            parts = [one for several in arrays.values() for one in several]
        sizes = [float(np.nanmax(np.abs(a))) for a in parts if a is not None and np.isfinite(a).any()]
        return max(sizes, default=0.0) or 1.0

    def scene(self, columns: int) -> Scene:
        """The maps side by side."""
        width = {1: 900, 2: 640, 3: 520}[columns]
        return stack_scenes([heat.scene(width=width) for heat in self.maps.values()], columns=columns)

    def _pinned(self, name: str, change: Any) -> None:
        if not self._filling:
            self.on_pin(name, *(change.new or (-1, -1)))

    def _moved(self, change: Any) -> None:
        """The cursor of one map is the cursor of all, so that their readouts compare."""
        if self._filling:
            return
        self._filling = True
        try:
            for heat in self.maps.values():
                if change.new or not heat.pinned:
                    heat.cross = change.new
        finally:
            self._filling = False


class ModulesTab:
    """Four maps, layer × position: what happens to the target without attention, MLP, both, or attention → MLP."""

    def __init__(self, panel: AblationPanel) -> None:
        self.panel = panel
        self.maps = Maps(panel, KIND_LABELS, column="token")
        self.maps.on_pin = lambda kind, layer, position: panel.pick(
            kind if layer >= 0 else "", layer, position=position
        )
        self.words = W.HTML("")
        self.box = W.VBox([self.words, self.maps.grid])
        self.box.add_class("iw-column")
        self.results: tuple[AblationResult, ...] = ()
        shown_if(self.words, False)

    def paint(self, results: tuple[AblationResult, ...]) -> None:
        """Draw other results, or the same in another view."""
        self.results = results
        arrays = {kind: [np.asarray(one.of(kind), dtype=np.float64) for one in results] for kind in self.maps.labels}
        tokens = max((one.tokens for one in results), key=len)
        self.maps.paint(arrays, tokens, unit=UNITS[results[0].metric], titles=self._titles(results))
        self.words.value = "<br>".join([*before(self.panel, results), self._strongest(results)])
        shown_if(self.words, True)
        self.paint_selection()

    def paint_selection(self) -> None:
        """Show the selected cell."""
        if self.results:
            row = self.panel.layer if self.panel.layer_told else -1
            self.maps.select(row, self.panel.position, self.panel.kind)

    def effect(self, kind: str, layer: int, position: int) -> tuple[float, ...]:
        """What the maps say of one cell, one number per model; empty where there is none."""
        found = []
        for one in self.results:
            inside = kind in one.kinds and layer < len(one.layers) and 0 <= position < len(one.positions)
            found.append(float(one.of(kind)[layer, position]) if inside else float("nan"))
        return tuple(found)

    def scene(self) -> Scene:
        """The four maps, two by two."""
        return self.maps.scene(2)

    def _titles(self, results: tuple[AblationResult, ...]) -> dict[str, str]:
        which = view_name(self.panel)
        rest = ", partial" if any(one.partial for one in results) else ""
        titles = {kind: f"{which}{label}{rest}" for kind, label in KIND_LABELS.items()}
        if all(np.all(one.of("attn_to_mlp") == 0) for one in results):
            titles["attn_to_mlp"] += " (0 everywhere: the MLPs of this model never read its attention)"
        return titles

    def _strongest(self, results: tuple[AblationResult, ...]) -> str:
        """The strongest cell of each model in words."""
        said = []
        for letter, one in zip(letters(results), results, strict=True):
            if np.isfinite(one.effect).any():
                sizes = np.where(np.isfinite(one.effect), np.abs(one.effect), -1.0)
                kind, layer, place = (int(i) for i in np.unravel_index(int(sizes.argmax()), sizes.shape))
                value = number(float(one.effect[kind, layer, place]))
                part = Planned(one.kinds[kind], layer, place).part()
                said.append(f"{letter}<b>{value}</b>, {part} at {escape(at_token(place, one.tokens))}")
        return f"Strongest: {'; '.join(said)}." if said else "Nothing computed yet."


def letters(results: Sequence[Any]) -> list[str]:
    """What to put before each of several results."""
    return [""] if len(results) == 1 else ["A ", "B "][: len(results)]


def view_name(panel: AblationPanel) -> str:
    """What to put before a title, of two models."""
    if len(panel.results) < 2:
        return ""
    return {"A": "A · ", "B": "B · ", "difference": "B − A · "}[panel.shown]


def before(panel: AblationPanel, results: Sequence[Any]) -> list[str]:
    """What is asked, and its value before anything is removed: one line."""
    said = []
    for letter, one in zip(letters(results), results, strict=True):
        target = f"“{escape(visible(one.target_token))}”"
        if one.metric == "kl":
            said.append(f"{letter}likeliest {target}" if not panel.target else f"{letter}{target}")
            continue
        against = ""
        if one.foil is not None:
            against = f" against “{escape(visible(panel.models[0].token_strings([one.foil])[0]))}”"
        said.append(f"{letter}{METRIC_NAMES[one.metric]} of {target}{against} <b>{number(one.clean)}</b>")
    if results[0].metric == "kl":
        return ["How far the whole next-token distribution moves, KL(before ‖ after) in nats."]
    text = "; ".join(said)
    return [f"Before: {text}. Red: it falls without the part, blue: it rises."]
