"""The circuit: heads and MLPs added one at a time, and how much of the answer they keep, beside random circuits."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Annotated, Any, ClassVar

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.patching import (
    CircuitFaithfulness,
    CircuitResult,
    circuit_faithfulness,
    greedy_circuit,
    greedy_circuit_cost,
)
from interp_widgets.analysis.patching.circuit import check_circuit, check_held_out, check_most
from interp_widgets.arguments import message_of
from interp_widgets.figures.patching import CircuitCurve
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.figures.theme import PALETTE8
from interp_widgets.models import Model

from ..base import pair_view
from ..base.controls import row, shown_if
from ..base.description import Description
from ..base.fields import Bounds, Seed, field, hint_at, variant
from ..base.jobs import Derived
from ..base.request import Request
from ..views import BokehFigure, Table
from ..views.table import RIGHT
from .options import PatchPanel, counted, measured, part, sites_of_all
from .pair_source import PromptsOrPairs, fed_ids, names_in

LEVEL = 0.05
LEAST = 0.05
"""The faithfulness below which a circuit keeps nothing worth a name, whatever chance does."""
FEWEST = 5
"""Parts that a panel opens on at least: a circuit of one or two keeps nothing and says nothing."""
KINDS = {"all": "heads and MLPs", "head": "heads", "mlp": "MLPs"}
PART = {**RIGHT, "decimals": 3}
COLUMNS = [
    {"label": "parts", **RIGHT}, {"label": "added"},
    {"label": "faithfulness", **PART, "title": "Of the circuit up to this part: 1 is the whole model"},
    {"label": "random", **PART, "title": "Mean of random circuits with as many heads and MLPs"},
    {"label": "without", **PART, "title": "What the model keeps without the circuit"},
    {"label": "p", **RIGHT, "title": "Share of circuits at least as faithful, this one counted: one-sided"},
    {"label": "kept"},
]  # fmt: skip


class PatchedCircuit(PromptsOrPairs):
    """Which heads and MLPs are enough for the answer: a circuit grown part by part, beside random circuits."""

    title, tab_name = "Circuit", "Circuit"
    analysis: ClassVar[Any] = staticmethod(greedy_circuit)
    pair_views: ClassVar[tuple[str, ...]] = ("beside",)
    most_parts = field(
        Annotated[int, Bounds(1, 60)], 10, label="Most parts", argument="most", width="short", group="run",
        help="How many heads and MLPs are added, one at a time",
    )  # fmt: skip
    circuit_parts = field(
        KINDS, "all", label="Made of", argument="parts", more=True, help="What the parts of the circuit are",
        offers=lambda panel: kinds_of(panel.models),
    )  # fmt: skip
    circuit_draws = field(
        Annotated[int, Bounds(20, 2000)], 20, label="Random circuits", argument="draws", more=True, width="short",
        help="How many random circuits with as many heads and MLPs stand beside each size",
    )  # fmt: skip
    held_out = field(
        Annotated[int, Bounds(0, 1000)], 0, label="Held out", more=True, width="short",
        shown_if=lambda panel: not panel.on_prompts,
        help="So many pairs at the end of the list are not used for choosing the parts; all is measured on them alone",
    )  # fmt: skip
    kept = field(
        str, label="Keep", placeholder="all parts found", selects=True, more=True,
        help="Measures these parts alone, such as head 3.1, mlp 5, beside random circuits with as many heads and MLPs",
    )  # fmt: skip
    circuit_seed = field(Seed, label="Seed", argument="seed", more=True, width="short", help="Of the random circuits")
    color_range, threshold = (variant(one, label="") for one in (PatchPanel.color_range, PatchPanel.threshold))

    @classmethod
    def missing_requirement(cls, models: tuple[Any, ...]) -> str:
        return "" if kinds_of(models) else "attention heads or MLPs"

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        kinds = kinds_of(self.models)
        chosen = {} if "all" in kinds or "circuit_parts" in keywords else {"circuit_parts": kinds[0]}
        return super().defaults(keywords) | chosen

    def build(self) -> None:
        super().build()
        self.charts = [CircuitCurve(color=color) for color in PALETTE8[: len(self.models)]]
        self.tables = [
            Table(columns=COLUMNS, height=320, empty="No circuit yet.", caption="Parts in the order of their addition",
                  instruction="click one to select it")
            for _ in self.models
        ]  # fmt: skip
        self.verdicts = [W.HTML("") for _ in self.models]
        self.boxes = [self._box(*views) for views in zip(self.verdicts, self.charts, self.tables, strict=True)]
        for index, table in enumerate(self.tables):
            self.on_user(table, "selected", partial(self._row_picked, index))
        for box in self.boxes[1:]:
            shown_if(box, False)
        self.keep_button = W.Button(tooltip="Measures the circuit with or without the selected part")
        self.on_click(self.keep_button, self.keep_or_leave_out)
        self.kept_words = W.HTML("")
        for widget in (self.keep_button, self.kept_words):
            shown_if(widget, False)
        self.keeping = Derived(self, self._show_kept, title="Kept parts", channel="cell", quiet=True)
        self.picture = W.VBox([*self.boxes, row(self.keep_button, self.kept_words)])
        self.picture.add_class("iw-column")
        self.lay_out(self.picture, [])
        self.add_next_to_run(self.controls.row("pairs_from", "most_parts"))

    def _box(self, verdict: W.HTML, chart: CircuitCurve, table: Table) -> W.VBox:
        host = BokehFigure(chart.figure, on_error=self.show_error)
        host.add_class("iw-chart")
        table.add_class("iw-grow")
        box = W.VBox([verdict, row(host, table)])
        box.add_class("iw-column")
        return box

    def appear(self) -> None:
        if not self._opened and "most_parts" not in self.keywords and self.most_parts == self.default_of("most_parts"):
            self._open_on_fewer()
        super().appear()

    def _open_on_fewer(self) -> None:
        """Start with as many parts as fit into the time of a first picture; if few do not, they wait for Run."""
        for most in range(self.most_parts, FEWEST - 1, -1):
            with self.without_rerun():
                self.most_parts = most
            try:
                seconds = self.forecast(self.request()).seconds
            except Exception:
                return  # the first run meets it again and shows it
            if seconds <= self.opening_limit:
                return

    @property
    def shorter(self) -> str:
        return "" if self.most_parts == 1 else "fewer parts take less: Most parts"

    # what the panel asks for ------------------------------------------------------------------------------------------

    def request(self) -> Request:
        clean, corrupted, answer, foil = self.question_about()
        options = self.arguments() | foil
        kinds = options.pop("parts", "all")
        if kinds != "all":
            options["parts"] = kinds
        for model in self.models:
            with hint_at("most_parts"):
                check_most(model, self.most_parts, options.get("parts"), options.get("layers"))
        with hint_at("held_out"):
            check_held_out(options.get("held_out", 0), 1 if self.on_prompts else len(clean))
        return Request.of(greedy_circuit, options, clean, corrupted, answer)

    def cost(self, request: Request, model: Model) -> Any:
        options = dict(request.arguments)
        pairs = fed_ids(request, model)
        differ = [next(at for at, (a, b) in enumerate(zip(*both, strict=True)) if a != b) for both in pairs]
        return greedy_circuit_cost(
            model, len(pairs[0][0]), first=min(differ), pairs=len(pairs), most=options["most"],
            draws=options["draws"], parts=options.get("parts"), layers=options.get("layers"),
            held_out=options.get("held_out", 0),
        )  # fmt: skip

    # selecting --------------------------------------------------------------------------------------------------------

    def _row_picked(self, index: int, change: Any) -> None:
        result = self.results[index]
        at = change.new - 1  # the first row is the empty circuit
        if at < 0:
            self.picked_part = ""
            return
        self.pick(result.parts[at])

    # the parts that are kept ------------------------------------------------------------------------------------------

    @property
    def kept_parts(self) -> tuple[str, ...]:
        """The parts that are kept: those that were found, in the first model in view, unless others are chosen."""
        chosen = tuple(f"head {name}" if name[:1].isdigit() else name for name in names_in(self.kept))
        shown = pair_view.shown_indices(self)[0]
        return chosen or (tuple(self.results[shown].parts) if shown < len(self.results) else ())

    def keep_or_leave_out(self) -> None:
        """Leave the picked part out of those that are kept, or keep it again."""
        parts, picked = self.kept_parts, self.picked_part
        kept = [part for part in parts if part != picked] if picked in parts else [*parts, picked]
        self.kept = ", ".join(kept)

    def _kept_request(self, index: int) -> Request:
        """What measures the kept parts in one model: on the pairs, answers and foils of the circuit on the screen."""
        result, shown = self.results[index], self.shown_request
        options = {
            name: value for name, value in shown.arguments if name in ("metric", "parts", "layers", "draws", "seed")
        }
        clean, corrupted = shown.inputs[:2]
        answers: Any = tuple(map(int, result.answers))
        foils: Any = None if result.foils is None else tuple(map(int, result.foils))
        if isinstance(clean, tuple):
            clean, corrupted = clean[-len(answers) :], corrupted[-len(answers) :]
        else:
            answers, foils = answers[0], None if foils is None else foils[0]
        foil = {} if foils is None else {"foil": foils}
        return Request.of(circuit_faithfulness, options | foil, clean, corrupted, self.kept_parts, answers)

    def _measure_kept(self) -> None:
        """Measure the kept parts in the background, where any are chosen; a hint where they do not fit."""
        key = self._kept_key()
        if key is None:
            self.keeping.forget()
            self._show_kept()
            return
        models = [self.models[index] for index in pair_view.shown_indices(self)]
        options = dict(self.shown_request.arguments)
        try:
            for model in models:
                check_circuit(model, self.kept_parts, options.get("parts"), options.get("layers"))
        except ValueError as error:
            self.keeping.forget()
            self._show_kept()
            self.controls.hint("kept", message_of(error))
            return

        def work(job: Any) -> tuple[CircuitFaithfulness, ...]:
            return tuple(
                self.answers.cached_or_compute(request, model, partial(request.answer, model, check=job.check))
                for request, model in zip(key[0], models, strict=True)
            )

        self.keeping.ask(key, work)
        self._show_kept()

    def _kept_key(self) -> Any:
        """The calls that measure the kept parts, with the results on the screen; None where nothing is chosen."""
        shown = pair_view.shown_indices(self)
        if not self.results or not names_in(self.kept) or max(shown) >= len(self.results):
            return None
        return tuple(map(self._kept_request, shown)), tuple(map(id, self.results))

    def _show_kept(self) -> None:
        key = self._kept_key()
        found = None if key is None else self.keeping.of(key)
        starts = pair_view.starts(self)
        lines = [start + kept_in_words(one) for start, one in zip(starts, found or (), strict=False)]
        self.kept_words.value = "<br>".join(lines)
        shown_if(self.kept_words, bool(lines))

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[CircuitResult, ...], request: Any) -> None:
        self.words.value = "<br>".join(
            letter + measured(result) for letter, result in zip(pair_view.letters(results), results, strict=True)
        )
        shown_if(self.words, True)
        shown = pair_view.shown_indices(self)
        each = zip(self.boxes, self.charts, self.tables, self.verdicts, strict=True)
        for index, (box, chart, table, verdict) in enumerate(each):
            shown_if(box, index in shown and index < len(results))
            if index < len(results):
                letter = pair_view.letters(results)[index]
                chart.update(results[index], title=f"{letter.strip()} · " if letter else "")
                with table.hold_sync():
                    table.selected, table.rows = -1, rows(results[index], self.kept_parts)
                verdict.value = pair_view.all_starts(results)[index] + in_words(results[index])

    def draw_selection(self) -> None:
        super().draw_selection()
        for result, table in zip(self.results, self.tables, strict=False):
            table.rows = rows(result, self.kept_parts)
            table.selected = 1 + list(result.parts).index(self.picked_part) if self.picked_part in result.parts else -1
        shown_if(self.keep_button, bool(self.picked_part and self.results))
        action = "Leave out" if self.picked_part in self.kept_parts else "Keep"
        self.keep_button.description = f"{action} {self.picked_part}"
        self._measure_kept()

    def describe_selection(self) -> Description | None:
        return Description(steps=self.next_steps) if self.results else None  # the sentences stand in the panel

    # what is saved ----------------------------------------------------------------------------------------------------

    def scene(self) -> Scene:
        """The curves with their tables."""
        shown = [index for index in pair_view.shown_indices(self) if index < len(self.results)]
        views = [view for index in shown for view in (self.charts[index].scene(), self.tables[index].scene())]
        return stack_scenes(views, columns=2)


def rows(result: CircuitResult, kept: Collection[str]) -> list[list[Any]]:
    """The rows of the table: the empty circuit, then one part more in each, with a tick if it is kept."""
    return [
        [
            size, name or "none", float(result.faithfulness[size]), float(result.random[:, size].mean()),
            float(result.without[size]), float(result.p[size]) if size else None, "✓" * (name in kept),
        ]
        for size, name in enumerate(["", *result.parts])
    ]  # fmt: skip


def beyond_chance(result: CircuitResult) -> int:
    """The size of the smallest circuit that is beyond chance, as are all larger ones; 0 for none."""
    beyond = (result.p < LEVEL) & (result.faithfulness >= LEAST)
    beyond[0] = False
    return int(np.flatnonzero(~beyond)[-1] + 1) if beyond[-1] else 0


def in_words(result: CircuitResult) -> str:
    """What the circuit keeps and what random ones keep, as HTML."""
    size, last = beyond_chance(result), len(result.parts)
    highest = float(result.faithfulness[1:].max())
    words = ["<b>No circuit beyond chance.</b>" if highest >= LEAST else "<b>No circuit that keeps anything yet.</b>"]
    if size:
        words = [f"<b>Smallest circuit beyond chance: {counted(size, 'part')}</b>, {', '.join(result.parts[:size])}."]
    each = list(dict.fromkeys(at for at in (size, last) if at))
    for at in each:
        kept, chance = float(result.faithfulness[at]), float(result.random[:, at].mean())
        low, high = map(float, result.band[:, at])
        of, others = " of the difference between the prompts", f"{len(result.random)} random circuits like it keep"
        words.append(
            f"{counted(at, 'part')} keep{'s' * (at == 1)} <b>{part(kept)}</b>{of * (at == each[0])}, "
            f"{others if at == each[0] else 'random ones'} {part(chance)} (middle 95%: {part(low)} to {part(high)}), "
            f"p {result.p[at]:.2g}{'.' if at != last else ''}"
        )
    words[-1] += f"; the model without {'them' if last > 1 else 'it'} keeps {part(float(result.without[-1]))}."
    if result.held_out:
        words.append(f"Measured on {counted(result.held_out, 'pair')} held out from choosing the parts.")
    elif len(result.clean) > 1:
        words.append("Chosen and measured on the same pairs, which flatters it: Held out under More.")
    else:
        words.append("Chosen and measured on one pair, which flatters it: many pairs can hold some out.")
    if result.partial:
        words.append("More parts are being looked for.")
    return " ".join(words)


def kept_in_words(kept: CircuitFaithfulness) -> str:
    """What chosen parts keep and what random ones keep, as HTML."""
    low, high = map(float, kept.band)
    chance = part(float(kept.random.mean()))
    return (
        f"Kept: {', '.join(kept.parts)}. {counted(len(kept.parts), 'part')} keep{'s' * (len(kept.parts) == 1)} "
        f"<b>{part(kept.faithfulness)}</b>, {len(kept.random)} random circuits like it {chance} (middle 95%: "
        f"{part(low)} to {part(high)}), p {kept.p:.2g}; the model without keeps {part(kept.without)}."
    )


def kinds_of(models: Any) -> tuple[str, ...]:
    """The kinds of parts that all models have."""
    sites = sites_of_all(models)
    kinds = tuple(kind for kind in ("head", "mlp") if kind in sites)
    return ("all", *kinds) if len(kinds) > 1 else kinds
