"""The heads: which head's output, query, key, value or pattern brings the answer back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.patching import ActivationPatchingResult
from interp_widgets.figures.static import Scene, stack_scenes

from ..ablation.maps import Array, Maps, place
from ..base import pair_view
from ..base.controls import Whole, shown_if
from ..base.description import Description, Step, plain
from ..base.fields import Incomplete, field
from ..base.workbench import in_model
from .next_token import Cell, PatchedTokens
from .options import (
    METHOD,
    ONE_PAIR,
    SITES,
    UNIT,
    PatchPanel,
    at,
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

HEAD_SITES = {
    "head": "output",
    "head_q": "query",
    "head_k": "key",
    "head_v": "value",
    "pattern": "attention pattern, at all tokens",
}
LISTED = 3
"""Number of heads listed in the text."""


class PatchedHeads(PatchPanel):
    """Which heads carry the answer: one map, layer × head."""

    title, tab_name = "Patched heads", "Heads"
    head_site = field(
        HEAD_SITES, "head", label="Of each head", argument="sites", help="What of a head is patched",
        offers=lambda panel: sites_of_all(panel.models),
    )  # fmt: skip
    method = METHOD
    patched_at = field(
        Whole(None, allow_none=True, min=0), label="At", validated_by_result=True, argument="positions",
        control=lambda panel: panel.place, shown_if=lambda panel: panel.head_site != "pattern",
    )  # fmt: skip
    """The position in the clean prompt at which heads are patched: None for the last."""
    head = field(in_model(), selects=True)
    """The selected head."""
    head_picked = field(bool, False, selects=True)
    """Whether a head is picked."""

    @classmethod
    def missing_requirement(cls, models: tuple[Any, ...]) -> str:
        return "" if "head" in sites_of_all(models) else "attention heads"

    def build(self) -> None:
        self.place = W.Dropdown(
            description="At", options=[("the last token", False), ("the selected token", True)],
            tooltip="The token selected in the prompts above or in another panel",
        )  # fmt: skip

        def place(chosen: bool) -> int | None:
            if not chosen:
                return None
            return self.patched_at if self.patched_at is not None else max(self.position, 0)

        self.bind(self.place, "patched_at", read=place, write=lambda at: at is not None)
        super().build()
        self.maps = Maps(self, {"head": SITES["head"]}, column="head", in_row=1)
        self.maps.on_pin = self._pinned
        self.cell_words = W.HTML("")
        self.next_token = PatchedTokens(self)
        shown_if(self.cell_words, False)
        self.lay_out(self.maps.grid, [self.cell_words, self.next_token.box])
        self.watch(self, "position", self._position_moved)
        self.watch(self, "patched_at", self._placed)

    def _position_moved(self, _: Any) -> None:
        if self.patched_at is not None and self.position >= 0:
            self.patched_at = self.position

    def _placed(self, _: Any) -> None:
        if self.patched_at is not None:
            self.position = self.patched_at

    def texts_read(self) -> None:
        super().texts_read()
        if self.patched_at is not None and self.patched_at >= len(self.matched.clean):
            self.patched_at = None

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        choices = super().choices()
        return {**choices, "patched_at": choices["position"]}

    def sites(self) -> tuple[str, ...]:
        return (self.head_site,)

    def arguments(self) -> dict[str, Any]:
        arguments = super().arguments()
        if "positions" not in arguments:
            return arguments
        if self.patched_at is None:
            return {**arguments, "positions": (-1,)}
        clean, _, alignment = self.both_prompts()
        if self.patched_at not in alignment.clean:
            raise Incomplete(
                "patched_at" if self.patched_at < clean.n_shown else "prompt",
                "the selected token is aligned with none in the other prompt: select another one",
            )
        if self.direction == "noising":
            return {**arguments, "positions": (self.patched_at,)}
        return {**arguments, "positions": (alignment.corrupted[alignment.clean.index(self.patched_at)],)}

    def _pinned(self, _: str, layer: int, head: int) -> None:
        if layer < 0:
            self.head_picked = False
        else:
            self.select(layer, head_picked=True, head=min(max(head, 0), self.models[0].n_heads - 1))

    # drawing ----------------------------------------------------------------------------------------------------------

    @property
    def site(self) -> str:
        """The site on the screen."""
        return self.results[0].sites[0]

    def draw(self, results: tuple[ActivationPatchingResult, ...], request: Any) -> None:
        first, site = results[0], results[0].sites[0]
        axis = first.axes(site)[1].removesuffix("s")
        heads = [str(head) for head in range(max(result.recovered[site].shape[1] for result in results))]
        title = f"{SITES[site]} of each {axis}{self.place_in_words(first)}{rest(results)}"
        for heat in self.maps.pairs["head"].views:
            heat.x_label = heat.column_name = axis
        self.maps.paint(
            {"head": [by_head(drawn(result, site)) for result in results]}, heads, unit=UNIT, titles={"head": title},
            notes=lambda view: {"head": notes_of(view, results, site)}, end=self.color_range, layers=first.layers,
        )  # fmt: skip
        self.maps.cross(lambda view: patched_cells(view, results, {"head": site}))
        shared = f"{self.models[0].n_heads} heads share {first.recovered[site].shape[1]} keys and values." * (
            axis != "head" and first.recovered[site].shape[1] != self.models[0].n_heads
        )
        self.draw_words(strongest(results), shared, ONE_PAIR)

    def place_in_words(self, result: ActivationPatchingResult) -> str:
        """Where heads are patched, for a title."""
        return ", at all tokens" if result.sites[0] == "pattern" else plain(at(result, 0))

    def draw_selection(self) -> None:
        super().draw_selection()
        if self.results:
            row = self.layer if self.layer_chosen or self.head_picked else -1
            self.maps.select(row, self.head if self.head_picked else -1, "head" if self.head_picked else "")
        lines = self.cells_in_words()
        self.cell_words.value = "<br>".join(lines)
        shown_if(self.cell_words, bool(lines))
        self.next_token.paint()

    @property
    def cell(self) -> Cell | None:
        """The picked head."""
        if not self.head_picked or not self.results:
            return None
        smallest = [min(sizes) for sizes in zip(*(drawn(one, self.site).shape for one in self.results), strict=True)]
        if self.layer not in self.results[0].layers or self.head >= smallest[1]:
            return None
        return Cell(self.site, self.layer, self.head, self.results[0].positions[0])

    @property
    def cell_name(self) -> str:
        """The picked head in words."""
        what = "attention pattern" if self.site == "pattern" else HEAD_SITES[self.site]
        axis = self.results[0].axes(self.site)[1].removesuffix("s")
        return f"{what} of {axis} {self.head} of layer {self.layer}"

    def cells_in_words(self) -> list[str]:
        """The picked head in each model in view, as HTML."""
        if self.cell is None:
            return []
        lines = []
        for index in pair_view.shown_indices(self):
            if index < len(self.results):
                result, letter = self.results[index], pair_view.letters(self.results)[index]
                cell = place(self.layer, result.layers), self.head
                maps = result.recovered[self.site], drawn(result, self.site)
                value, shown = (float(by_head(values)[cell]) for values in maps)
                where = "" if self.site == "pattern" else at(result, 0)
                lines.append(letter + put_in(result, self.cell_name, where, value, shown))
        return lines

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        sentences = (plain(strongest(self.results)), *map(plain, self.cells_in_words()))
        step = Step("head_words", "Which words does it relate?", {"tab": "heads"})
        return Description("Patched heads", sentences, steps=(step,) if self.head_picked else ())

    def scene(self) -> Scene:
        """Both prompts and the map."""
        return stack_scenes([self.tokens.scene(width=900), self.maps.scene()])


def by_head(values: Any) -> Array:
    """(layers, heads) of a map of heads, which are patched at one position or, patterns, at all."""
    return np.asarray(values if values.ndim == 2 else values[:, :, 0], dtype=np.float64)


def strongest(results: tuple[ActivationPatchingResult, ...]) -> str:
    """The heads that recover most, as HTML."""
    lines = []
    for letter, result in zip(pair_view.letters(results), results, strict=True):
        values = by_head(drawn(result, result.sites[0]))
        best = [cell[:2] for cell in result.strongest(result.sites[0], LISTED, estimated=only_estimated(result))]
        named = [
            f"<b>{part(float(values[place(layer, result.layers), head]))}</b>, {layer}.{head}" for layer, head in best
        ]
        lines += [letter + "; ".join(named)] if named else []
    return f"{largest(results)} (layer.head): {'. '.join(lines)}." if lines else ""
