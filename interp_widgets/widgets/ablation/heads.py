"""Head ablation: the effect on the target of removing each attention head."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.statistics import BEYOND
from interp_widgets.analysis.ablation import HeadAblationResult, ablate_heads, ablation_cost
from interp_widgets.models import Model

from ..base import pair_view
from ..base.controls import Whole
from ..base.description import Description, Step, decimals, plain
from ..base.fields import field
from ..base.prediction import checked, position_in
from ..base.request import Request
from .ablation_spec import AblationSpec, at_token
from .maps import UNITS, Maps, amount, cell_notes, cell_parts, place, shared_part, strongest
from .removal import Removal

LISTED = 3
"""Number of heads listed in the text."""


class HeadAblation(Removal):
    """Which attention heads a prediction needs: one map, layer × head."""

    title = "Head ablation"
    analysis = staticmethod(ablate_heads)
    heads_at = field(
        Whole(None, allow_none=True, min=-1), label="Removed at", validated_by_result=True, argument="position",
        control=lambda panel: panel.removed_at,
    )  # fmt: skip
    """The position at which heads are removed: None for every token, -1 for the last."""

    def build(self) -> None:
        self.removed_at = W.Dropdown(
            description="Removed at", options=[("every token", False), ("the selected token", True)],
            tooltip="The token selected in the maps of the modules or in another panel; without one, the last",
        )  # fmt: skip

        def place(chosen: bool) -> int | None:
            return None if not chosen else self.position if self.heads_at is None else self.heads_at

        self.bind(self.removed_at, "heads_at", read=place, write=lambda at: at is not None)
        super().build()
        self.watch(self, "heads_at", self._heads_placed)
        self.watch(self, "position", self._position_moved)

    def make_maps(self) -> Maps:
        maps = Maps(self, {"head": "Attention heads"}, column="head", in_row=1)
        for heat in maps.pairs["head"].views:
            heat.x_label = "head"
        maps.on_pin = self._pinned
        return maps

    def texts_read(self) -> None:
        self._heads_placed(None)

    def _pinned(self, _: str, layer: int, head: int) -> None:
        if layer < 0:
            self.kind = ""
        else:
            self.select(layer, kind="head", head=min(head, self.models[0].n_heads - 1))

    def _heads_placed(self, _: Any) -> None:
        """Select the token at which heads are removed."""
        if self.heads_at is not None and self.heads_at < len(self.texts.axis):
            self.position = self.heads_at

    def _position_moved(self, _: Any) -> None:
        if self.heads_at is not None:
            self.heads_at = self.position

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        choices = super().choices()
        return {**choices, "heads_at": choices["position"]}

    def request(self) -> Request:
        request = super().request()
        if self.heads_at is not None:
            position_in(checked(self.prediction(), self.models[0]), self.heads_at, "heads_at")
        return request

    def cost(self, request: Request, model: Model) -> Any:
        at = dict(request.arguments)["position"]
        length = len(request.inputs[0].read_by(model))
        places = None if at is None else [at]
        return ablation_cost(
            model, length, what="heads", layers=dict(request.arguments).get("layers"), positions=places,
            metric=dict(request.arguments)["metric"], draws=dict(request.arguments).get("draws", 0),
            compared=dict(request.arguments).get("compared"),
        )  # fmt: skip

    def draw(self, results: tuple[HeadAblationResult, ...], request: Request) -> None:
        first = results[0]
        arrays = {"head": [np.asarray(result.effect, dtype=np.float64) for result in results]}
        heads = [str(head) for head in range(max(result.effect.shape[1] for result in results))]
        where = "every token" if first.position is None else at_token(first.position, first.prompt_tokens)
        rest = ", partial" if any(result.partial for result in results) else ""
        title = f"Attention heads at {where}{rest}"
        self.maps.paint(
            arrays, heads, unit=UNITS[first.metric], titles={"head": title},
            notes=lambda view: {"head": cell_notes(view, results, cell_parts)}, layers=first.layers,
        )  # fmt: skip
        self.maps.mute(self._grey)
        self.draw_words(strongest(results, _largest))

    def _grey(self, view: str) -> dict[str, Any] | None:
        """Where the map of a view is not known to be beyond chance; None without a test."""
        p = self.p_of(view)
        return None if p is None else {"head": ~(p <= BEYOND)}

    def draw_selection(self) -> None:
        picked = self.kind == "head"
        self.maps.select(self.layer if self.layer_chosen or picked else -1, self.head if picked else -1, self.kind)
        super().draw_selection()

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        where = self.results[0].position
        at = "every token" if where is None else at_token(where, self.results[0].prompt_tokens)
        sentences = (plain(strongest(self.results, _largest)), *map(plain, self.compared_lines()))
        if not (self.layer_chosen or self.kind == "head"):
            return Description("Heads", ("Click a head to see what the prediction loses without it.", *sentences))
        values = [decimals(value) for value in self.effect_of(AblationSpec("head", self.layer, None, self.head))]
        letters = [letter.strip() or "effect" for letter in pair_view.letters(self.results)]
        return Description(
            f"Without head {self.head} of layer {self.layer}",
            (f"Removed at {at}.", *sentences),
            ("", *letters),
            ((UNITS[self.results[0].metric], *values),),
            (Step("head_words", "Which words does it relate?", {"tab": "heads"}),),
        )

    @property
    def picked(self) -> AblationSpec | None:
        if self.kind != "head" or not self.results:
            return None
        at = len(self.texts.axis) - 1 if self.heads_at == -1 else self.heads_at
        return AblationSpec("head", self.layer, at, self.head, self.replacement_value)

    def effect_of(self, spec: AblationSpec) -> tuple[float, ...]:
        effects = []
        for result in self.results:
            row = place(spec.layer, result.layers)
            inside = row >= 0 and (spec.head or 0) < result.effect.shape[1]
            effects.append(float(result.effect[row, spec.head]) if inside else float("nan"))
        return tuple(effects)


def _largest(result: HeadAblationResult) -> str:
    """The heads with the largest effects, as HTML; empty if none is computed."""
    sizes = np.where(np.isfinite(result.effect), np.abs(result.effect), -1.0)
    order = np.argsort(-sizes, axis=None, kind="stable")[:LISTED]
    cells = [np.unravel_index(int(flat), sizes.shape) for flat in order]
    named = [f"head {at[1]} of layer {result.layers[int(at[0])]}" for at in cells]
    return "; ".join(
        f"<b>{amount(float(result.effect[at]))}</b>{shared_part(result, at)}, {name}"
        for at, name in zip(cells, named, strict=True)
        if sizes[at] >= 0
    )
