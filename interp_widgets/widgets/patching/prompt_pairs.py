"""The pairs: the mean over many pairs of prompts, with intervals and tests."""

from __future__ import annotations

from typing import Annotated, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis.patching import ActivationPatchingResult, activation_patching
from interp_widgets.analysis.patching.activation import activation_patching_cost, holm_p
from interp_widgets.data.prompt_pairs import parse_pairs
from interp_widgets.figures.static import Scene
from interp_widgets.models import Model

from ..ablation.maps import LAYERS, Maps, amount, cell_notes, of_part, place
from ..base import pair_view
from ..base.controls import shown_if
from ..base.fields import Bounds, Seed, field, variant
from ..base.panel import Panel
from ..base.request import Request
from ..base.workbench import in_model
from ..views import Table
from .options import SITES, UNIT, PatchPanel, column_labels, counted, metric_fields, part, sites_of_all
from .pair_list import PAIRS, contrast_pairs, pairs_of_one_length, tokens_of_pairs

PAIR_SITES = {site: SITES[site] for site in ("resid_pre", "attn", "mlp")} | {"head": "Head output at the last token"}
LEVEL = 0.05
PROMPT_SHOWN = 60
"""Most characters of a prompt in the table."""


class PatchedPairs(Panel):
    """Which values carry the answer in many pairs of prompts: one map, muted where the mean is not beyond chance."""

    title, tab_name = "Patched pairs", "Pairs"
    analysis = staticmethod(activation_patching)
    pair_views = ("difference", "beside")
    pairs = PAIRS
    pair_site = field(
        PAIR_SITES, "resid_pre", label="Patched", argument="sites", new_row=True, help="What is patched",
        offers=lambda panel: sites_of_all(panel.models),
    )  # fmt: skip
    direction, metric = (variant(one, new_row=False) for one in metric_fields())
    layers = LAYERS
    pair_seed = field(Seed, label="Seed", width="short", argument="seed", more=True, help="Of the bootstrap")
    color_range, threshold = PatchPanel.color_range, PatchPanel.threshold
    layer = field(in_model(), selects=True)
    pair_column = field(Annotated[int, Bounds(low=-1)], -1, selects=True)
    """The selected column of the map, a token or a head; -1 for none."""

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        return {} if "pairs" in keywords else {"pairs": [pair.line for pair in pairs_of_one_length(self.models)]}

    def field_of(self, what: str) -> str:
        return "pairs" if what in ("answer", "foil") else what

    def build(self) -> None:
        self.upload = W.FileUpload(accept=".csv,.json,.jsonl", description="Open pairs")
        self.inputs.children = self.controls.rows(after={"metric": [self.upload]})
        self.words = W.HTML("")
        shown_if(self.words, False)
        self.maps = Maps(self, {"pairs": ""}, column="token", in_row=1)
        self.maps.on_pin = lambda _, layer, column: self.select(layer, column)
        self.table = Table(
            columns=[{"label": "clean"}], height=320, empty="No pair is computed yet.", caption="Pairs of prompts"
        )
        self.holm: list[Any] = []
        """For each model the corrected p-value of every cell, or None where there is no test."""
        self.plot.children = [self.words, self.maps.grid]
        self.details.children = [self.table]
        self.watch(self.upload, "value", self._uploaded)

    # what the panel asks for ------------------------------------------------------------------------------------------

    def request(self) -> Request:
        pairs = contrast_pairs(self, aligned=True)
        self.require()
        arguments = of_part(self, self.arguments())
        options = {name: value for name, value in arguments.items() if name not in ("pairs", "pair_column")}
        options |= {"sites": (self.pair_site,), "alignment": "ends"}
        options |= tokens_of_pairs(self, pairs)
        if self.pair_site == "head":
            options["positions"] = (-1,)
        return Request.of(
            activation_patching, options, tuple(pair.clean for pair in pairs), tuple(pair.corrupted for pair in pairs)
        )

    def cost(self, request: Request, model: Model) -> Any:
        options = dict(request.arguments)
        run = request.inputs[1 if options["direction"] == "denoising" else 0]
        return activation_patching_cost(
            model, len(read_prompt(model, run[0]).ids), options["sites"], layers=options.get("layers"),
            positions=options.get("positions"), pairs=len(run), metric=options["metric"],
        )  # fmt: skip

    def _uploaded(self, change: Any) -> None:
        if change.new:
            file = change.new[0]
            self.pairs = [pair.line for pair in parse_pairs(bytes(file["content"]), file["name"])]

    def select(self, layer: int, column: int) -> None:
        """Select a cell; -1 for none."""
        with self.batch_changes():
            if layer >= 0:
                self.layer = min(layer, self.models[0].n_layers - 1)
            self.pair_column = max(column, -1) if layer >= 0 else -1

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[ActivationPatchingResult, ...], request: Any) -> None:
        first = results[0]
        site = first.sites[0]
        self.holm = [None if not _tested(result) else _flat(result.holm_p(site)) for result in results]
        arrays = [_flat(result.recovered[site]) for result in results]
        if site == "head":
            columns = [str(head) for head in range(max(array.shape[1] for array in arrays))]
        else:
            columns = _columns(first)
        rest = ", partial" if any(result.partial for result in results) else ""
        for heat in self.maps.pairs["pairs"].views:
            heat.x_label = heat.column_name = "head" if site == "head" else "token"
        self.maps.paint(
            {"pairs": arrays}, columns, unit=f"{UNIT}, mean",
            titles={"pairs": f"{PAIR_SITES[site]}: mean of {counted(len(first.clean), 'pair')}{rest}"},
            notes=lambda view: {"pairs": self._notes(view)}, end=self.color_range, layers=first.layers,
        )  # fmt: skip
        for view, heat in self.maps.pairs["pairs"].drawn():
            p = self._p(view)
            heat.muted = [] if p is None else [[int(row), int(at)] for row, at in np.argwhere(~(p < LEVEL))]
        self.words.value = "<br>".join(
            letter + self._in_words(index) for index, letter in enumerate(pair_view.all_starts(results))
        )
        shown_if(self.words, True)

    def _p(self, view: str) -> Any:
        """The corrected p-values of a view; None where there is no test."""
        if view != "difference":
            return self.holm["AB".index(view)]
        a, b = self.results
        site = a.sites[0]
        if a.each[site].shape != b.each[site].shape:
            return None
        known = [at for at in range(a.n_pairs) if at not in (*a.undefined, *b.undefined)]
        if len(known) < 2 or a.missing or b.missing:
            return None
        return _flat(holm_p(np.asarray(b.each[site] - a.each[site])[known]))

    def _notes(self, view: str) -> list[str]:
        if view == "difference":
            p = self._p(view)
            return [] if p is None else [f"p {_p_text(value)} (Holm)" for value in p.ravel()]
        numbers = dict(zip(map(id, self.results), self.holm, strict=True))

        def texts(result: ActivationPatchingResult) -> list[str]:
            site = result.sites[0]
            if numbers[id(result)] is None:
                return ["one pair, no interval" if result.n_pairs == 1 else "no test yet"] * result.recovered[site].size
            ends = (_flat(result.low[site]).ravel(), _flat(result.high[site]).ravel())
            return [
                f"95% interval {part(low)} to {part(high)}, p {_p_text(p)} (Holm)"
                for low, high, p in zip(*ends, numbers[id(result)].ravel(), strict=True)
            ]

        return cell_notes(view, self.results, texts)

    def _in_words(self, index: int) -> str:
        """What is shown of one model, as HTML."""
        result, p = self.results[index], self.holm[index]
        words = [f"{counted(result.n_pairs, 'pair')} of prompts."]
        if result.undefined:
            lines = ", ".join(str(at + 1) for at in result.undefined)
            words.append(f"Left out, since clean and corrupted measure the same: line {lines}.")
        if result.missing:
            words.append(f"{result.missing:,} cells are not computed yet.")
        if p is None:
            if not result.missing:
                words.append("Fewer than two pairs to average: no interval and no test.")
            return " ".join(words)
        beyond, least = int((p < LEVEL).sum()), _least_p(result.n_pairs - len(result.undefined)) * p.size
        words.append(
            f"<b>{beyond} of {p.size}</b> cells differ from 0 beyond chance (sign-flip test over the pairs, p below "
            f"{LEVEL} after Holm's correction); the others have no colour."
        )
        if least >= LEVEL:
            words.append(
                f"With so few pairs no cell can: the smallest possible corrected p is {amount(min(1.0, least))}."
            )
        return " ".join(words)

    def draw_selection(self) -> None:
        if not self.results:
            return
        columns = [_flat(result.recovered[result.sites[0]]).shape[1] for result in self.results]
        inside = self.layer in self.results[0].layers and self.pair_column < min(columns)
        column = self.pair_column if inside else -1
        self.maps.select(self.layer if column >= 0 else -1, column, "pairs" if column >= 0 else "")
        shown = [index for index in pair_view.shown_indices(self) if index < len(self.results)]
        heads: list[dict[str, Any]] = [{"label": name} for name in ("clean", "corrupted")]
        for letter in pair_view.names(self) if len(shown) > 1 else [""]:
            heads += [{"label": f"{letter} answer".strip()}, {"label": f"{letter} foil".strip()}]
            heads += [
                {"label": f"{letter} {name}".strip(), "align": "right"}
                for name in ("clean", "corrupted", *(["recovered"] if column >= 0 else []))
            ]
        heads = _distinct(heads)
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns = heads
            self.table.rows = [
                self._row(at, shown, column) for at in range(min(self.results[i].n_pairs for i in shown))
            ]
            where = f", recovered at layer {self.layer}, {self._column_name(column)}" if column >= 0 else ""
            self.table.caption = f"Pairs of prompts{where}"

    def _column_name(self, column: int) -> str:
        first = self.results[0]
        return f"head {column}" if first.sites[0] == "head" else f"token {first.positions[column]}"

    def _row(self, at: int, shown: list[int], column: int) -> list[Any]:
        prompts = [text[at][:PROMPT_SHOWN] for text in self.shown_request.inputs[:2]]
        cells: list[Any] = list(prompts)
        for index in shown:
            result = self.results[index]
            cells += [result.answer_tokens[at], "" if result.foil_tokens is None else result.foil_tokens[at]]
            cells += [float(result.clean[at]), float(result.corrupted[at])]
            if column >= 0:
                value = float(_flat(result.each[result.sites[0]][at])[place(self.layer, result.layers), column])
                cells.append(value if np.isfinite(value) else None)
        return cells

    # what is saved ----------------------------------------------------------------------------------------------------

    def table_of(self, result: ActivationPatchingResult) -> Any:
        return result.test() if _tested(result) else result.to_frame()

    def scene(self) -> Scene:
        return self.maps.scene()


def _tested(result: ActivationPatchingResult) -> bool:
    """Whether there are enough pairs for a test, all computed."""
    return not result.missing and result.n_pairs - len(result.undefined) > 1


def _flat(values: Any) -> Any:
    """(layers, columns) of a map: heads are patched at one position."""
    array = np.asarray(values, float)
    return array[:, :, 0] if array.ndim == 3 else array


def _columns(result: ActivationPatchingResult) -> list[str]:
    """The tokens at the positions of the map: numbers where they differ between the pairs."""
    labels = column_labels(result)
    same = [len({tokens[at] for tokens in (*result.prompt_tokens,)}) == 1 for at in result.positions]
    return [label if alike else f"{label} …" for label, alike in zip(labels, same, strict=True)]


def _least_p(pairs: int) -> float:
    """The smallest p-value of a sign-flip test."""
    return max(2.0 ** (1 - pairs), 1e-4)


def _p_text(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _distinct(heads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Headings of which no two are the same: the metric in the runs is told from their prompts."""
    seen: set[str] = set()
    for head in heads:
        if head["label"] in seen:
            head["label"] += " metric"
        seen.add(head["label"])
    return heads
