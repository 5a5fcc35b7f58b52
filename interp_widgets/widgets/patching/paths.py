"""The paths: which heads and MLPs send the answer directly to chosen receivers."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.patching import PathPatchingResult, path_patching, path_patching_cost
from interp_widgets.analysis.patching.activation import holm_p
from interp_widgets.analysis.patching.paths import check_paths, receivers_named, senders_named
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..ablation.maps import MapPanel, Maps, amount
from ..base import pair_view
from ..base.controls import shown_if
from ..base.description import Description
from ..base.fields import Seed, field, hint_at, variant
from ..base.request import Request
from ..views import Table
from ..views.table import RIGHT
from .options import counted, measured, part, sites_of_all
from .pair_source import PromptsOrPairs, fed_ids, names_in

LEVEL = 0.05
LEAST = 0.05
"""The least effect that has the full colour."""
NO_RECEIVER = "there is no receiver yet: type logits or a name such as head_q 4.2"
MEANING = "1: corrupting that path alone gives the answer of the corrupted run; 0: that of the clean one."
ONE_PAIR = " One pair of prompts has no interval: the list of pairs tests paths on many."
LISTED, LARGEST = 20, 3
"""Senders in the table, and in the words."""
UNIT = "share lost"


class PatchedPaths(PromptsOrPairs):
    """Which heads and MLPs send the answer directly to chosen receivers: one map, layer × head, with the MLPs."""

    title, tab_name = "Paths", "Paths"
    analysis: ClassVar[Any] = staticmethod(path_patching)
    receivers = field(
        str, "logits", label="Receivers", group="run", required=NO_RECEIVER,
        help="What reads the senders' corrupted outputs: logits, mlp 5, head_q 4.2, head_k 4.0 or head_v 4.0 (of the "
        "key/value head); several with commas between them",
    )  # fmt: skip
    senders = field(
        str, label="Senders", placeholder="all before them", more=True,
        help="Only these, such as head 3.1, mlp 4, attn 2; empty: all heads and MLPs before the receivers",
    )  # fmt: skip
    pair_seed = field(
        Seed, label="Seed", width="short", argument="seed", more=True, help="Of the bootstrap",
        shown_if=lambda panel: not panel.on_prompts,
    )  # fmt: skip
    layers = variant(MapPanel.layers, label="", argument=None)
    color_range, threshold = MapPanel.color_range, MapPanel.threshold

    @classmethod
    def missing_requirement(cls, models: tuple[Any, ...]) -> str:
        has = all(model.capabilities.additive_stream and model.capabilities.attention for model in models)
        return "" if has and "attn" in sites_of_all(models) else "attention that writes to a residual stream"

    def build(self) -> None:
        super().build()
        self.maps = Maps(self, {"paths": "Direct paths"}, column="sender", in_row=1)
        self.maps.on_pin = self._pinned
        self.verdict = W.HTML("")
        self.table = Table(
            columns=[{"label": "sender"}], height=320, empty="No paths yet.", instruction="click one to select it"
        )
        self.on_user(self.table, "selected", lambda change: self._row_picked(change.new))
        if self.screen is None:
            above = [self.tokens, self.aligned, self.words, self.verdict]
            self.arrange([*above, self.maps.grid], beside=[self.table], width=400)
        else:
            picture = W.VBox([self.verdict, self.maps.grid])
            picture.add_class("iw-column")
            self.lay_out(picture, [self.table])
        self.add_next_to_run(self.controls.row("pairs_from", "receivers"))

    # what the panel asks for ------------------------------------------------------------------------------------------

    def request(self) -> Request:
        self.require("receivers")
        clean, corrupted, answer, foil = self.question_about()
        options = self.arguments() | foil
        senders = names_in(options.pop("senders")) or None
        receivers = names_in(options.pop("receivers"))
        for model in self.models:
            with hint_at("receivers"):
                if not receivers:
                    raise ValueError(NO_RECEIVER)
                read = receivers_named(model, receivers)
                every = senders_named(model, None, read)
                check_paths(model, every, read)
            with hint_at("senders"):
                if senders is not None and "embeddings" in senders:
                    raise ValueError("the map has heads, attention and MLPs, no embeddings: leave embeddings out")
                if senders is not None:
                    check_paths(model, senders_named(model, senders, read), read)
        if len(receivers) > 1:
            options["separate"] = True
        return Request.of(path_patching, options, clean, corrupted, senders, receivers, answer)

    def cost(self, request: Request, model: Model) -> Any:
        pairs, (senders, receivers) = fed_ids(request, model), request.inputs[2:4]
        separate = dict(request.arguments).get("separate", False)
        return path_patching_cost(model, len(pairs[0][0]), senders, receivers, pairs=len(pairs), separate=separate)

    # selecting --------------------------------------------------------------------------------------------------------

    def _pinned(self, _: str, layer: int, column: int) -> None:
        name = "" if layer < 0 else name_of(layer, self.columns[column])
        if name and any(name in result.senders for result in self.results):
            self.pick(name)
        else:
            self.picked_part = ""

    def _row_picked(self, row: int) -> None:
        if 0 <= row < len(self.listed):
            self.pick(self.listed[row])

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[PathPatchingResult, ...], request: Any) -> None:
        heads = max((place_of(name)[1] for result in results for name in result.senders), default=-1) + 1
        others = [kind for kind in ("attn", "mlp") if any(kind in name for one in results for name in one.senders)]
        self.columns = [*map(str, range(heads)), *others]
        """The columns of the map: the heads, then whole attention and MLPs."""
        n_layers = 1 + max(place_of(name)[0] for result in results for name in result.senders)
        arrays = [self._map(result, known_or_estimated(result), n_layers) for result in results]
        largest = max((float(np.nanmax(np.abs(one))) for one in arrays if np.isfinite(one).any()), default=0.0)
        so_far = ", partial" if any(result.partial for result in results) else ""
        self.maps.paint(
            {"paths": arrays}, [*self.columns[:heads], *(kind.upper() if kind == "mlp" else kind for kind in others)],
            unit=UNIT, titles={"paths": f"Direct paths to {' and '.join(results[0].receivers)}{so_far}"},
            end=max(largest, LEAST), notes=lambda view: {"paths": self._notes(view, n_layers)},
        )  # fmt: skip
        self.p = [p_of(result) for result in results]
        for view, heat in self.maps.pairs["paths"].drawn():
            heat.x_label = "head"
            p = None if view == "difference" else self.p["AB".index(view)]
            low = None if p is None else self._map(results["AB".index(view)], p, n_layers)
            heat.muted = [] if low is None else [[int(row), int(at)] for row, at in np.argwhere(low >= LEVEL)]
        self.maps.cross(partial(self._patched, n_layers=n_layers))
        self.words.value = "<br>".join(
            letter + measured(result) for letter, result in zip(pair_view.letters(results), results, strict=True)
        )
        shown_if(self.words, True)
        each = [
            start + in_words(results[index], self.p[index])
            for start, index in zip(pair_view.starts(self), pair_view.shown_indices(self), strict=True)
            if index < len(results)
        ]
        self.verdict.value = "<br>".join([*each, MEANING + ONE_PAIR * any(p is None for p in self.p)])
        self._list(results)

    def _map(self, result: PathPatchingResult, values: Any, n_layers: int) -> Any:
        """(layers, columns) one number per sender, NaN for no sender."""
        made = np.full((n_layers, len(self.columns)), np.nan)
        for name, value in zip(result.senders, values, strict=True):
            layer, head = place_of(name)
            made[layer, head if head >= 0 else self.columns.index(name.split()[0])] = value
        return made

    def _patched(self, view: str, n_layers: int) -> dict[str, Any] | None:
        """Where a view has senders that are patched among others that are estimated; None where none is estimated."""
        shown = [self.results[index] for index in pair_view.models_of(view)]
        if any(result.estimated is None for result in shown):
            return None
        each = [np.isfinite(self._map(result, result.effect, n_layers)) for result in shown]
        return {"paths": np.logical_and.reduce(each)}

    def _notes(self, view: str, n_layers: int) -> list[str]:
        """What the tooltips say of each cell."""
        if view == "difference":
            return []
        result = self.results["AB".index(view)]
        notes = {}
        for at, name in enumerate(result.senders):
            interval = (
                ""
                if result.low is None or result.high is None
                else f", 95% interval {part(result.low[at])} to {part(result.high[at])}"
            )
            estimated = ", estimated" * (result.estimated is not None and not np.isfinite(result.effect[at]))
            notes[name] = name + interval + estimated
        cells = [name_of(layer, column) for layer in range(n_layers) for column in self.columns]
        return [notes.get(name, "no path to a receiver, or not a sender") for name in cells]

    def _list(self, results: tuple[PathPatchingResult, ...]) -> None:
        """Fill the table: the senders with the largest effects."""
        shown = [index for index in pair_view.shown_indices(self) if index < len(results)]
        best = {name: max(abs(float(results[index].effect[results[index].senders.index(name)])) for index in shown
                          if name in results[index].senders)
                for index in shown for name in results[index].senders}  # fmt: skip
        self.listed = sorted(best, key=lambda name: -np.nan_to_num(best[name]))[:LISTED]
        """The senders in the table."""
        columns: list[dict[str, Any]] = [{"label": "sender"}]
        rows: list[list[Any]] = [[name] for name in self.listed]
        for index in shown:
            result, letter = results[index], pair_view.LETTERS[index] + " " if len(shown) > 1 else ""
            together = "together" if len(result.receivers) > 1 else f"to {result.receivers[0]}"
            columns.append({"label": letter + together, **RIGHT})
            columns += [{"label": f"{letter}95%", **RIGHT}] if result.low is not None else []
            columns += [
                {"label": f"{letter}to {name}", **RIGHT} for name in result.receivers if result.paths is not None
            ]
            for row, name in zip(rows, self.listed, strict=True):
                at = result.senders.index(name) if name in result.senders else -1
                row.append(number(result.effect[at]) if at >= 0 else None)
                if result.low is not None and result.high is not None:
                    row.append(f"{part(result.low[at])} to {part(result.high[at])}" if at >= 0 else None)
                if result.paths is not None:
                    row += [number(value) if at >= 0 else None for value in result.paths[at]]
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns, self.table.rows = columns, rows
            self.table.caption = f"The senders with the largest effect, {UNIT} of the difference between the prompts"

    def draw_selection(self) -> None:
        super().draw_selection()
        if not self.results:
            return
        self.table.selected = self.listed.index(self.picked_part) if self.picked_part in self.listed else -1
        if not any(self.picked_part in result.senders for result in self.results):
            self.maps.select(-1, -1)
            return
        layer, head = place_of(self.picked_part)
        self.maps.select(layer, head if head >= 0 else self.columns.index(self.picked_part.split()[0]), "paths")

    def describe_selection(self) -> Description | None:
        return Description(steps=self.next_steps) if self.results else None  # the sentences stand in the panel

    # what is saved ----------------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        """The map with the table."""
        return stack_scenes([self.maps.scene(), self.table.scene()])


def place_of(name: str) -> tuple[int, int]:
    """Layer and head of a sender; -1 for whole attention and MLPs.

    >>> place_of("head 3.1"), place_of("mlp 5")
    ((3, 1), (5, -1))
    """
    layer, _, head = name.split()[1].partition(".")
    return int(layer), int(head or -1)


def name_of(layer: int, column: str) -> str:
    """The sender in a column of the map."""
    return f"head {layer}.{column}" if column.isdigit() else f"{column} {layer}"


def number(value: Any) -> float | None:
    """A number for a table; None where it is not defined."""
    return float(value) if np.isfinite(value) else None


def p_of(result: PathPatchingResult) -> Any:
    """(senders,) the corrected p-value of each sender; None where there are not two pairs to test."""
    known = [at for at in range(len(result.clean)) if at not in result.undefined]
    return holm_p(np.asarray(result.each, float)[known]) if len(known) > 1 else None


def known_or_estimated(result: PathPatchingResult) -> Any:
    """(senders,) the effect of each sender, in a partial result the estimate of those that are not patched yet."""
    return (
        result.effect
        if result.estimated is None
        else np.where(np.isfinite(result.effect), result.effect, result.estimated)
    )


def so_far_in_words(result: PathPatchingResult) -> str:
    """How many senders of a partial result are patched, as HTML."""
    if result.estimated is None and len(result.clean) > 1:
        return f"The mean of the first {counted(len(result.clean), 'pair')}."
    patched = f"<b>{int(np.isfinite(result.effect).sum())} of {len(result.senders)}</b> senders patched"
    if result.estimated is None:
        return f"{patched} so far."
    return f"{patched} (crosses), those first that are estimated to be largest; the others are estimated by a gradient."


def in_words(result: PathPatchingResult, p: Any) -> str:
    """The largest effects and what chance would do, as HTML."""
    effect = np.asarray(result.effect, float)
    words = [so_far_in_words(result)] if result.partial else []
    if np.isnan(effect).all():
        same = "Clean and corrupted measure the same up to rounding: no path can carry a difference."
        return " ".join(words) or same
    order = [at for at in np.argsort(-np.nan_to_num(np.abs(effect))) if np.isfinite(effect[at])][:LARGEST]
    largest = float(np.abs(effect[order[0]]))
    shown = amount if largest < LEAST else part
    if largest < LEAST and not result.partial:
        words.append(f"No path carries as much as {LEAST} of the difference.")
    named = [f"<b>{shown(float(effect[at]))}</b>, {result.senders[at]}" for at in order]
    words.append(f"Largest{' so far' * result.partial}: {'; '.join(named)}.")
    if p is not None:
        words.append(
            f"<b>{int((p < LEVEL).sum())} of {p.size}</b> senders differ from 0 beyond chance over "
            f"{counted(len(result.clean), 'pair')} (sign-flip test, p below {LEVEL} after Holm's correction); the "
            "others have no colour."
        )
    return " ".join(words)
