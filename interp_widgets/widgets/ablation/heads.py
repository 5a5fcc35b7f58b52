"""The heads tab: what happens to the target without each single attention head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.ablation import HeadAblationResult
from interp_widgets.figures.static import Scene, number

from ..controls import row, shown_if
from .maps import UNITS, Maps, before, letters, view_name
from .planned import at_token

if TYPE_CHECKING:
    from .panel import AblationPanel

LISTED = 3
"""Heads named in words."""


class HeadsTab:
    """One map, layer × head."""

    def __init__(self, panel: AblationPanel) -> None:
        self.panel = panel
        self.maps = Maps(panel, {"head": "Heads"}, column="head", wide=False)
        self.maps.maps["head"].x_label = "head"
        self.maps.on_pin = lambda kind, layer, head: panel.pick(kind if layer >= 0 else "", layer, head=head)
        self.place = W.Dropdown(
            description="Removed at", options=[("every token", False), ("the selected token", True)],
            value=panel.heads_at is not None,
            tooltip="The token selected in the maps of the modules or in another panel; without one, the last",
        )  # fmt: skip
        panel.watch(self.place, "value", lambda _: self.follow())
        panel.watch(panel, "heads_at", self._placed)
        self.where = W.HTML("")
        self.words = W.HTML("")
        self.box = W.VBox([row(self.place, self.where), self.words, self.maps.grid])
        self.box.add_class("iw-column")
        self.results: tuple[HeadAblationResult, ...] = ()
        shown_if(self.words, False)

    def follow(self) -> None:
        """Remove the heads at the selected token, if that is asked for."""
        self.panel.heads_at = self.panel.position if self.place.value else None

    def _placed(self, change: object) -> None:
        self.place.value = self.panel.heads_at is not None

    def paint(self, results: tuple[HeadAblationResult, ...]) -> None:
        """Draw other results, or the same in another view."""
        self.results, first = results, results[0]
        arrays = {"head": [np.asarray(one.effect, dtype=np.float64) for one in results]}
        heads = [str(head) for head in range(max(one.effect.shape[1] for one in results))]
        where = "at every token" if first.position is None else f"at {at_token(first.position, first.prompt_tokens)}"
        rest = ", partial" if any(one.partial for one in results) else ""
        self.maps.paint(
            arrays, heads, unit=UNITS[first.metric],
            titles={"head": f"{view_name(self.panel)}Attention heads removed {where}{rest}"},
        )  # fmt: skip
        self.words.value = "<br>".join([*before(self.panel, results), self._strongest(results)])
        shown_if(self.words, True)
        self.paint_selection()

    def paint_selection(self) -> None:
        """Show the selected head, and where heads are removed."""
        at = self.panel.heads_at
        self.where.value = ""
        if at is not None and self.panel.axis:
            self.where.value = at_token(at if at >= 0 else len(self.panel.axis) - 1, self.panel.axis)
        if self.results:
            layer = self.panel.layer if self.panel.layer_told else -1
            picked = self.panel.kind == "head"
            self.maps.select(layer, self.panel.head if picked else -1, self.panel.kind)

    def effect(self, layer: int, head: int) -> tuple[float, ...]:
        """What the map says of one head, one number per model; NaN where there is none."""
        shapes = [one.effect.shape for one in self.results]
        inside = [layer < rows and head < columns for rows, columns in shapes]
        return tuple(
            float(one.effect[layer, head]) if there else float("nan")
            for one, there in zip(self.results, inside, strict=True)
        )

    def scene(self) -> Scene:
        """The map."""
        return self.maps.scene(1)

    def _strongest(self, results: tuple[HeadAblationResult, ...]) -> str:
        said = []
        for letter, one in zip(letters(results), results, strict=True):
            sizes = np.where(np.isfinite(one.effect), np.abs(one.effect), -1.0)
            order = np.argsort(-sizes, axis=None, kind="stable")[:LISTED]
            places = [np.unravel_index(int(flat), sizes.shape) for flat in order]
            named = [
                f"head {h} of layer {layer} <b>{number(float(one.effect[layer, h]))}</b>"
                for layer, h in places
                if sizes[layer, h] >= 0
            ]
            if named:
                said.append(letter + ", ".join(named))
        return f"Strongest: {'; '.join(said)}." if said else "Nothing computed yet."
