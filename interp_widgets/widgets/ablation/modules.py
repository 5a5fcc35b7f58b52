"""The tab of the module maps: what happens to the target without attention, MLP, both, or attention → MLP."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.ablation import AblationResult
from interp_widgets.figures.static import Scene

from ..base.controls import shown_if
from .ablation_spec import KIND_LABELS, AblationSpec
from .maps import UNITS, Maps, amount, clean_value, letters, title_start

if TYPE_CHECKING:
    from .panel import AblationPanel


class ModulesTab:
    """Four maps, layer × position."""

    def __init__(self, panel: AblationPanel) -> None:
        self.panel = panel
        self.maps = Maps(panel, KIND_LABELS, column="token", in_row=2)
        self.maps.on_pin = lambda kind, layer, at: panel.pick(kind if layer >= 0 else "", layer, position=at)
        self.words = W.HTML("")
        self.box = W.VBox([self.words, self.maps.grid])
        self.box.add_class("iw-column")
        self.results: tuple[AblationResult, ...] = ()
        shown_if(self.words, False)

    def paint(self, results: tuple[AblationResult, ...]) -> None:
        """Draw other results, or the same in another view."""
        self.results = results
        arrays = {kind: [np.asarray(one.of(kind), dtype=np.float64) for one in results] for kind in KIND_LABELS}
        self.maps.paint(arrays, results[0].tokens, unit=UNITS[results[0].metric], titles=self._titles())
        self.words.value = f"{clean_value(self.panel, results)}<br>{self._strongest()}"
        shown_if(self.words, True)
        self.paint_selection()

    def paint_selection(self) -> None:
        """Show the selected cell."""
        panel = self.panel
        if self.results:
            row = panel.layer if panel.layer_told or panel.kind in KIND_LABELS else -1
            self.maps.select(row, panel.position, panel.kind)

    def effect(self, kind: str, layer: int, position: int) -> tuple[float, ...]:
        """What the maps say of one cell, one number per model; NaN where there is none."""
        found = []
        for one in self.results:
            inside = layer < len(one.layers) and 0 <= position < len(one.positions)
            found.append(float(one.of(kind)[layer, position]) if inside else float("nan"))
        return tuple(found)

    def scene(self) -> Scene:
        """The four maps, two by two."""
        return self.maps.scene()

    def _titles(self) -> dict[str, str]:
        rest = ", partial" if any(one.partial for one in self.results) else ""
        titles = {kind: f"{title_start(self.panel)}{label}{rest}" for kind, label in KIND_LABELS.items()}
        if all(np.all(one.of("attn_to_mlp") == 0) for one in self.results):
            titles["attn_to_mlp"] += ": 0 everywhere, for the MLPs of this model never read its attention"
        return titles

    def _strongest(self) -> str:
        """The strongest cell of each model in words."""
        said = []
        for letter, one in zip(letters(self.results), self.results, strict=True):
            if np.isfinite(one.effect).any():
                sizes = np.where(np.isfinite(one.effect), np.abs(one.effect), -1.0)
                kind, layer, place = (int(i) for i in np.unravel_index(int(sizes.argmax()), sizes.shape))
                where = escape(AblationSpec(one.kinds[kind], layer, place).where(one.tokens))
                said.append(f"{letter}<b>{amount(float(one.effect[kind, layer, place]))}</b>, {where}")
        return f"Strongest: {'; '.join(said)}." if said else "Nothing computed yet."
