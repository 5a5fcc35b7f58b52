"""The map: which values of which layer and position bring the answer back."""

from __future__ import annotations

from functools import partial
from typing import Any

import ipywidgets as W
import numpy as np
import traitlets as T

from interp_widgets.analysis.patching import ActivationPatchingResult
from interp_widgets.figures.static import Scene, stack_scenes

from ..ablation.maps import POSITIONS, Maps, place
from ..base import pair_view
from ..base.controls import shown_if
from ..base.description import Description, plain
from ..base.fields import Incomplete, field, variant
from .next_token import Cell, PatchedTokens
from .options import (
    METHOD,
    ONE_PAIR,
    SITES,
    UNIT,
    PatchPanel,
    at,
    clean_positions,
    column_labels,
    drawn,
    largest,
    notes_of,
    only_estimated,
    part,
    patched_cells,
    put_in,
    rest,
    sites_of_all,
)

MAPS = ("resid_pre", "attn", "mlp")
WORDS = {"resid_pre": "residual stream before", "attn": "attention output of", "mlp": "MLP output of"}


class PatchMap(PatchPanel):
    """Which values carry the answer: three maps, layer × position."""

    title, tab_name = "Patching map", "Map"
    positions = variant(
        POSITIONS,
        help="Only these tokens of the clean prompt: last, its words, or numbers such as 4 or 3-8; empty: all",
    )
    method = METHOD
    picked_site = field(T.Enum(("", *MAPS), default_value=""), selects=True)
    """The map whose cell is picked; empty for none."""

    def build(self) -> None:
        super().build()
        offered = sites_of_all(self.models)
        self.mapped = tuple(site for site in MAPS if site in offered)
        """The sites that all models have."""
        self.maps = Maps(
            self, {site: SITES[site] for site in self.mapped}, column="token", in_row=3 if self.screen is None else 2
        )
        self.maps.on_pin = self._pinned
        self.cell_words = W.HTML("")
        self.next_token = PatchedTokens(self)
        shown_if(self.cell_words, False)
        self.lay_out(self.maps.grid, [self.cell_words, self.next_token.box])

    def sites(self) -> tuple[str, ...]:
        return self.mapped

    def arguments(self) -> dict[str, Any]:
        arguments = super().arguments()
        if "positions" in arguments:
            _, _, alignment = self.both_prompts()
            corrupted = dict(zip(alignment.clean, alignment.corrupted, strict=True))
            chosen = [at for at in arguments["positions"] if at in corrupted]
            if not chosen:
                raise Incomplete("positions", "these tokens are aligned with none in the other prompt: name others")
            denoising = self.direction == "denoising"
            arguments["positions"] = tuple(corrupted[at] if denoising else at for at in chosen)
        return arguments

    def _pinned(self, site: str, layer: int, at: int) -> None:
        if layer < 0 or not self.results:
            self.picked_site = ""
        else:
            self.select(layer, picked_site=site, position=at)

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[ActivationPatchingResult, ...], request: Any) -> None:
        self.maps.paint(
            {site: [drawn(result, site) for result in results] for site in self.mapped},
            column_labels(results[0]), unit=UNIT, titles={site: SITES[site] + rest(results) for site in self.mapped},
            notes=lambda view: {site: notes_of(view, results, site) for site in self.mapped},
            end=self.color_range, layers=results[0].layers, positions=clean_positions(results[0]),
        )  # fmt: skip
        self.maps.cross(lambda view: patched_cells(view, results, {site: site for site in self.mapped}))
        self.draw_words(strongest(results, self.mapped), ONE_PAIR)

    def draw_selection(self) -> None:
        super().draw_selection()
        if self.results:
            picked = self.picked_site if self.column >= 0 else ""
            self.maps.select(self.layer if self.layer_chosen or picked else -1, self.position, picked)
        lines = self.cells_in_words()
        self.cell_words.value = "<br>".join(lines)
        shown_if(self.cell_words, bool(lines))
        self.next_token.paint()

    @property
    def column(self) -> int:
        """The column of the selected token; -1 for none, or one that is not patched."""
        positions = list(clean_positions(self.results[0])) if self.results else []
        return positions.index(self.position) if self.position in positions else -1

    @property
    def cell(self) -> Cell | None:
        """The picked cell."""
        if not self.picked_site or self.column < 0 or self.layer not in self.results[0].layers:
            return None
        return Cell(self.picked_site, self.layer, position=self.results[0].positions[self.column])

    @property
    def cell_name(self) -> str:
        """The picked cell in words."""
        token = plain(at(self.results[0], self.column))
        return f"{WORDS[self.picked_site]} layer {self.layer}{token}"

    def cells_in_words(self) -> list[str]:
        """The picked cell of each model in view, as HTML."""
        if self.cell is None:
            return []
        lines = []
        for index in pair_view.shown_indices(self):
            if index >= len(self.results):
                continue
            result, letter = self.results[index], pair_view.letters(self.results)[index]
            values, shown = result.recovered[self.picked_site], drawn(result, self.picked_site)
            row = place(self.layer, result.layers)
            if row < 0 or self.column >= values.shape[1]:
                continue
            where = f" layer {self.layer}{at(result, self.column)}"
            value, on_map = (float(each[row, self.column]) for each in (values, shown))
            lines.append(letter + put_in(result, WORDS[self.picked_site], where, value, on_map))
        return lines

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        sentences = [plain(strongest(self.results, self.mapped)), *map(plain, self.cells_in_words())]
        return Description("Patching", tuple(sentences))

    def scene(self) -> Scene:
        """Both prompts and the maps."""
        return stack_scenes([self.tokens.scene(width=1576), self.maps.scene()])


def strongest(results: tuple[ActivationPatchingResult, ...], sites: tuple[str, ...]) -> str:
    """The cells of each site that recover most, as HTML."""
    lines = []
    for letter, result in zip(pair_view.letters(results), results, strict=True):
        named = map(partial(_best, result), sites)
        if found := [text for text in named if text]:
            lines.append(f"{letter}{'; '.join(found)}")
    return f"{largest(results)}: {'. '.join(lines)}." if lines else ""


def _best(result: ActivationPatchingResult, site: str) -> str:
    best = result.strongest(site, estimated=only_estimated(result))
    if not best:
        return ""
    layer, position = best[0]
    column = tuple(result.positions).index(position)
    value = float(np.nanmax((result.estimated if only_estimated(result) else result.recovered)[site]))
    return f"<b>{part(value)}</b>, {WORDS[site]} layer {layer}{at(result, column)}"
