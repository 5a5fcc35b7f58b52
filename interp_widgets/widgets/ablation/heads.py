"""The heads tab: what happens to the target without each single attention head."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.ablation import HeadAblationResult
from interp_widgets.figures.static import Scene

from ..base.controls import row, shown_if
from .ablation_spec import at_token
from .maps import UNITS, Maps, amount, clean_value, letters, title_start

if TYPE_CHECKING:
    from .panel import AblationPanel

LISTED = 3
"""Heads named in words."""


class HeadsTab:
    """One map, layer × head."""

    def __init__(self, panel: AblationPanel) -> None:
        self.panel = panel
        self.maps = Maps(panel, {"head": "Attention heads"}, column="head", in_row=1)
        self.maps.maps["head"].x_label = "head"
        self.maps.on_pin = lambda kind, layer, head: panel.pick(kind if layer >= 0 else "", layer, head=head)
        self.place = W.Dropdown(
            description="Removed at", options=[("every token", False), ("the selected token", True)],
            value=panel.heads_at is not None,
            tooltip="The token selected in the maps of the modules or in another panel; without one, the last",
        )  # fmt: skip
        self._filling = False
        panel.watch(self.place, "value", self._placed)
        self.where, self.words = W.HTML(""), W.HTML("")
        self.where.add_class("iw-hint")
        self.box = W.VBox([row(self.place, self.where), self.words, self.maps.grid])
        self.box.add_class("iw-column")
        self.results: tuple[HeadAblationResult, ...] = ()
        shown_if(self.words, False)

    def show_place(self) -> None:
        """Show whether heads are removed at one token."""
        self._filling = True
        try:
            self.place.value = self.panel.heads_at is not None
        finally:
            self._filling = False

    def _placed(self, change: Any) -> None:
        if not self._filling:
            self.panel.heads_at = self.panel.position if change.new else None

    def paint(self, results: tuple[HeadAblationResult, ...]) -> None:
        """Draw other results, or the same in another view."""
        self.results, first = results, results[0]
        arrays = {"head": [np.asarray(one.effect, dtype=np.float64) for one in results]}
        heads = [str(head) for head in range(max(one.effect.shape[1] for one in results))]
        where = "every token" if first.position is None else at_token(first.position, first.prompt_tokens)
        rest = ", partial" if any(one.partial for one in results) else ""
        title = f"{title_start(self.panel)}Attention heads at {where}{rest}"
        self.maps.paint(arrays, heads, unit=UNITS[first.metric], titles={"head": title})
        self.words.value = f"{clean_value(self.panel, results)}<br>{self._strongest()}"
        shown_if(self.words, True)
        self.paint_selection()

    def paint_selection(self) -> None:
        """Show the selected head, and where heads are removed."""
        panel, at = self.panel, self.panel.heads_at
        self.where.value = ""
        if at is not None and panel.axis:
            self.where.value = escape(at_token(at if at >= 0 else len(panel.axis) - 1, panel.axis))
        if self.results:
            picked = panel.kind == "head"
            layer = panel.layer if panel.layer_told or picked else -1
            self.maps.select(layer, panel.head if picked else -1, panel.kind)

    def effect(self, layer: int, head: int) -> tuple[float, ...]:
        """What the map says of one head, one number per model; NaN where there is none."""
        found = []
        for one in self.results:
            inside = layer < one.effect.shape[0] and head < one.effect.shape[1]
            found.append(float(one.effect[layer, head]) if inside else float("nan"))
        return tuple(found)

    def scene(self) -> Scene:
        """The map."""
        return self.maps.scene()

    def _strongest(self) -> str:
        """The strongest heads of each model in words."""
        said = []
        for letter, one in zip(letters(self.results), self.results, strict=True):
            sizes = np.where(np.isfinite(one.effect), np.abs(one.effect), -1.0)
            order = np.argsort(-sizes, axis=None, kind="stable")[:LISTED]
            places = [np.unravel_index(int(flat), sizes.shape) for flat in order]
            named = [
                f"<b>{amount(float(one.effect[at]))}</b>, head {at[1]} of layer {at[0]}"
                for at in places
                if sizes[at] >= 0
            ]
            said += [letter + "; ".join(named)] if named else []
        return f"Strongest: {'. '.join(said)}." if said else "Nothing computed yet."
