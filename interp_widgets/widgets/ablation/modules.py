"""Module ablation: the effect on the target of removing attention, MLP, both, or attention → MLP."""

from __future__ import annotations

from functools import partial
from html import escape
from typing import Any

import numpy as np

from interp_widgets.analysis._core.statistics import BEYOND
from interp_widgets.analysis.ablation import AblationResult, ablate_modules, ablation_cost
from interp_widgets.figures.labels import visible
from interp_widgets.models import Model

from ..base import pair_view
from ..base.description import Description, decimals, plain
from ..base.fields import field
from ..base.request import Request
from .ablation_spec import KIND_LABELS, AblationSpec
from .maps import (
    POSITIONS,
    UNITS,
    Maps,
    amount,
    cell_notes,
    cell_parts,
    fed_positions,
    place,
    shared_part,
    strongest,
)
from .removal import Removal

SINK = (
    "The first token carries the model's attention sink, on which every later token relies: a module removed there "
    "takes it away, so that this token sets no colours and is not among the strongest."
)


class ModuleAblation(Removal):
    """Which modules a prediction needs: four maps, layer × position."""

    title = "Module ablation"
    analysis = staticmethod(ablate_modules)
    positions = POSITIONS
    first_parts = "what is expected to be strongest"
    first_token_scales = field(
        bool, False, label="First token sets the scale", more=True, redraws=True,
        help="Colours reach to the largest effect at any token, also where the first one carries the attention sink",
    )  # fmt: skip

    def make_maps(self) -> Maps:
        maps = Maps(self, KIND_LABELS, column="token", in_row=2)
        maps.on_pin = lambda kind, layer, at: self.select(layer, kind=kind if layer >= 0 else "", position=max(at, -1))
        return maps

    def cost(self, request: Request, model: Model) -> Any:
        ids, options = request.inputs[0].read_by(model), dict(request.arguments)
        return ablation_cost(
            model, len(ids), layers=options.get("layers"),
            positions=fed_positions(model, ids, options.get("positions")), metric=options["metric"],
            draws=options.get("draws", 0), compared=options.get("compared"),
        )  # fmt: skip

    def draw(self, results: tuple[AblationResult, ...], request: Request) -> None:
        arrays = {kind: [np.asarray(result.of(kind), dtype=np.float64) for result in results] for kind in KIND_LABELS}
        self.maps.paint(
            arrays, results[0].tokens, unit=UNITS[results[0].metric], titles=self._titles(results),
            notes=lambda view: {
                kind: cell_notes(view, results, partial(cell_parts, at=results[0].kinds.index(kind)))
                for kind in KIND_LABELS
            },
            off_scale=max(map(_sink_column, results)) if not self.first_token_scales else -1,
            layers=results[0].layers, positions=results[0].positions,
        )  # fmt: skip
        self.maps.mute(self._grey)
        sink = f"<br>{SINK}" if any(result.sink for result in results) else ""
        self.draw_words(strongest(results, _largest) + sink)

    def _grey(self, view: str) -> dict[str, Any] | None:
        """Where the maps of a view are not known to be beyond chance; None without a test."""
        p = self.p_of(view)
        return None if p is None else {kind: ~(p[self.results[0].kinds.index(kind)] <= BEYOND) for kind in KIND_LABELS}

    def draw_selection(self) -> None:
        row = self.layer if self.layer_chosen or self.kind in KIND_LABELS else -1
        self.maps.select(row, self.position, self.kind)
        super().draw_selection()

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        at, rows = self.position, []
        tokens, layer = self.results[0].prompt_tokens, self.layer if self.layer < self.models[0].n_layers else 0
        at = len(tokens) - 1 if at < 0 else at
        letters = pair_view.letters(self.results)
        for kind, label in KIND_LABELS.items():
            values = self.effect_of(AblationSpec(kind, layer, at))
            if not np.isnan(values).all():
                rows.append((label, *map(decimals, values)))
        where = f"“{visible(tokens[at])}”" if at < len(tokens) else ""
        return Description(
            f"Without each module of layer {layer} at {where}",
            (plain(strongest(self.results, _largest)), *map(plain, self.compared_lines())),
            ("module", *(letter.strip() or "effect" for letter in letters)),
            tuple(rows),
        )

    @property
    def picked(self) -> AblationSpec | None:
        if self.kind not in KIND_LABELS or self.position < 0 or not self.results:
            return None
        return AblationSpec(self.kind, self.layer, self.position, replacement_value=self.replacement_value)

    def effect_of(self, spec: AblationSpec) -> tuple[float, ...]:
        effects = []
        for result in self.results:
            cell = place(spec.layer, result.layers), place(spec.position or 0, result.positions)
            effects.append(float(result.of(spec.kind)[cell]) if min(cell) >= 0 else float("nan"))
        return tuple(effects)

    def _titles(self, results: tuple[AblationResult, ...]) -> dict[str, str]:
        rest = ", partial" if any(result.partial for result in results) else ""
        titles = {kind: f"{label}{rest}" for kind, label in KIND_LABELS.items()}
        if all(np.all(result.of("attn_to_mlp") == 0) for result in results):
            titles["attn_to_mlp"] += ": 0 everywhere, since this model's MLPs do not read its attention"
        return titles


def _sink_column(result: AblationResult) -> int:
    """The column of a first token that carries the sink; -1 for none."""
    return place(0, result.positions) if result.sink else -1


def _largest(result: AblationResult) -> str:
    """The largest effect of a map, as HTML; empty if none is computed."""
    sizes = np.where(np.isfinite(result.effect), np.abs(result.effect), -1.0)
    if _sink_column(result) >= 0 and len(result.positions) > 1:
        sizes[..., _sink_column(result)] = -1.0
    if sizes.max() < 0:
        return ""
    at = tuple(int(i) for i in np.unravel_index(int(sizes.argmax()), sizes.shape))
    spec = AblationSpec(result.kinds[at[0]], result.layers[at[1]], result.positions[at[2]])
    where = escape(spec.where(result.prompt_tokens))
    return f"<b>{amount(float(result.effect[at]))}</b>{shared_part(result, at)}, {where}"
