"""The steer tab: what a model writes with a concept's direction added or erased, against a random direction."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Annotated, Any

import ipywidgets as W

from interp_widgets.analysis.concepts import ConceptSet
from interp_widgets.analysis.concepts.steered import (
    BEYOND,
    RUNS,
    SteeringComparison,
    SteeringSweep,
    compare_steering,
    steering_flops,
    steering_sweep,
)
from interp_widgets.compute.memory import Forecast, speedometer
from interp_widgets.figures.labels import fixed, visible
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import lifetime, pair_view
from ..base.answers import device_of
from ..base.code import call
from ..base.controls import ListOf, Whole, row, shown_if
from ..base.fields import Bounds, Seed, field, variant
from ..base.sampling import Sampling
from ..views import Table, TokenStrip
from .directions import ConceptOptions, ConceptPanel, Directions, first_look

STEERING = ("ConceptBrowser", "steering")
"""The speedometer's key for writing under steering."""
MODE_LABELS = {"add": "added", "sweep": "added at several strengths", "erase": "erased"}
SWEEP = (-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0)
"""Strengths of a sweep, in gaps."""
MOST_STRENGTH = 10.0


@dataclass(frozen=True)
class Mixed:
    """A concept in the mix, added besides the selected one."""

    concept: str
    strength: float = 1.0
    """Strength in units of its gap."""
    on: bool = True


@dataclass(frozen=True, eq=False, kw_only=True)
class SteeredConcepts(Directions):
    """One model's texts: unsteered, along a concept's direction, along a random one; or at several strengths."""

    comparison: SteeringComparison | SteeringSweep


def changed_streams(layer: int, steer_from: int, steer_on: bool, deepest: int) -> list[int]:
    """The streams to change: `steer_from`, or the directions' own layer, alone or with all later ones."""
    first = steer_from if steer_from >= 0 else layer
    if first > deepest:
        raise ValueError(f"the layer must be in 0..{deepest} for these models, got {first}")
    return list(range(first, deepest + 1)) if steer_on else [first]


def steered(
    model: Model,
    concepts: ConceptSet,
    concept: str,
    prompt: str,
    *,
    steer_from: int,
    steer_on: bool,
    deepest: int,
    sample_seed: int = 0,
    progress: Callable[[int, int], None],
    check: Callable[[], None],
    **options: Any,
) -> SteeredConcepts:
    """`compare_steering` along a concept (by default the first one selected) in the chosen streams."""
    name = concept if concept in concepts.names else first_look(concepts.names)
    layer: Any = changed_streams(concepts.layer, steer_from, steer_on, deepest)
    ask: Callable[..., Any] = compare_steering
    if options["mode"] == "sweep":
        ask, options = steering_sweep, {key: value for key, value in options.items() if key != "mode"}
        options["strengths"] = SWEEP
    comparison = ask(
        model, concepts, name, prompt, layer=layer, seed=sample_seed, progress=progress, check=check, **options
    )
    return SteeredConcepts(concepts=concepts, comparison=comparison)


class Steering(Sampling, ConceptPanel):
    """Three texts per model, and the next token's probabilities, with a direction added or erased."""

    tab_name, pair_views = "Steer", ("beside",)
    analysis = staticmethod(steered)
    concept = variant(ConceptOptions.concept, argument="", selects=False)
    prompt = variant(
        ConceptOptions.prompt, label="Prompt", width="grow", argument="",
        required="the prompt is empty: type what the model should continue",
        help="What is read, and continued under steering",
    )  # fmt: skip
    seed = variant(ConceptOptions.seed)
    sample_seed = variant(Sampling.seed)
    mode = field(MODE_LABELS, "add", label="Direction", help="What to do with the direction")
    strength = field(
        Annotated[float, Bounds(-10.0, 10.0, 0.25, slider=True, shown_as=".2f")], 1.0, label="α", live=False,
        shown_if=lambda panel: panel.mode == "add",
        help="Strength, in units of the concept's gap; below 0 it steers away",
    )  # fmt: skip
    mixed = field(ListOf(Mixed))
    """Other concepts to add (or erase) as well, as :class:`Mixed`."""
    steer_from = field(Whole(-1, min=-1))
    """The first stream to change; -1 for that of the directions."""
    steer_on = field(bool, label="and all later ones", help="Change all later streams too")
    control_seed = field(Seed, label="Random seed", width="short", help="Seed of the random directions")

    def build(self) -> None:
        self.start = W.IntSlider(
            description="Into layer", min=0, max=self.deepest, continuous_update=False,
            tooltip="The first residual stream to change",
        )  # fmt: skip
        self.watch(self, ["steer_from", "stream"], lambda _: self._fit_start())
        self._fit_start()
        self.watch(self.start, "value", self._start_moved)
        self.add_button = self.on_click(W.Button(description="Add to the mix"), self._add_to_mix)
        self.list = W.VBox()
        self.inputs.children = [
            self.controls.row("prompt"),
            self.controls.row("mode", "strength", self.start, "steer_on", self.add_button),
            self.list,
            self.controls.row("max_new_tokens", "temperature", "sample_seed", "control_seed"),
        ]  # fmt: skip
        self.watch(self, ["mixed", "mode"], lambda _: self._list_mix())
        self.watch(self, "concept", lambda _: self._list_mix())
        self._list_mix()
        self.words = W.HTML("")
        self.strips = [
            TokenStrip(empty="The model ends its text immediately", max_lines=8) for _ in range(3 * len(self.models))
        ]
        self.grids = []
        for index in range(len(self.models)):
            boxes = [W.VBox([strip]) for strip in self.strips[3 * index : 3 * index + 3]]
            for box in boxes:
                box.layout.flex = "1 1 224px"  # three side by side if there is room
            grid = row(*boxes)
            grid.layout.align_items = "flex-start"
            shown_if(grid, False)
            self.grids.append(grid)
        self.tables = [Table(empty="No next token yet.", height=300) for _ in self.models]
        self.table_boxes = [W.VBox([table]) for table in self.tables]
        tables = W.VBox(self.table_boxes)
        tables.add_class("iw-maps")
        self.sweeps = [W.HBox() for _ in self.models]
        for box in self.sweeps:
            box.add_class("iw-row")
            box.layout.align_items = "flex-start"
        self.plot.children = [self.words, *self.grids, *self.sweeps, tables]

    # the mix ----------------------------------------------------------------------------------------------------------

    def _list_mix(self) -> None:
        """Show the concepts added besides the selected one, whose strength is α."""
        old, self.list.children = self.list.children, [self._line(mixed) for mixed in self.mixed]
        for line in old:
            lifetime.close_tree(line)
            lifetime.close_one(line)
        listed = any(mixed.concept == self.concept for mixed in self.mixed)
        self.add_button.disabled = listed or not self.concept
        self.add_button.tooltip = (
            f"“{self.concept}” is in the list" if listed else f"Keep “{self.concept}” when you select another concept"
        )

    def _line(self, item: Mixed) -> W.HBox:
        """One concept of the mix: a checkbox with its name, its strength, and a button that removes it."""
        leads = item.concept == self.concept
        on = W.Checkbox(value=item.on, indent=False, disabled=leads,
                        description=f"{item.concept} (selected: α)" if leads else item.concept)  # fmt: skip
        strength = W.BoundedFloatText(value=item.strength, min=-MOST_STRENGTH, max=MOST_STRENGTH, step=0.25,
                                      description="α", disabled=leads or self.mode == "erase")  # fmt: skip
        strength.layout.width = "140px"
        remove = W.Button(description="Remove", tooltip=f"Remove “{item.concept}” from the mix")
        self.watch(on, "value", lambda change: self._change_mix(item, on=change.new))
        self.watch(strength, "value", lambda change: self._change_mix(item, strength=change.new))
        self.on_click(remove, lambda: self._change_mix(item))
        line = row(on, strength, remove)
        line.add_class("iw-line")
        return line

    def _change_mix(self, item: Mixed, **values: Any) -> None:
        """Change one concept of the mix, or remove it if no values are passed."""
        index = self.mixed.index(item)
        changed = [replace(item, **values)] if values else []
        self.mixed = (*self.mixed[:index], *changed, *self.mixed[index + 1 :])

    def _add_to_mix(self) -> None:
        self.mixed = (*self.mixed, Mixed(self.concept, self.strength))

    @property
    def _own_layer(self) -> int:
        """The stream in which the directions are made."""
        return self.sets[0].layer if self.opened else max(self.stream, 0)

    def _fit_start(self) -> None:
        """Show the first stream to change."""
        self.start.value = min(self.steer_from if self.steer_from >= 0 else self._own_layer, self.deepest)

    def _start_moved(self, change: Any) -> None:
        if self.steer_from >= 0 or change.new != min(self._own_layer, self.deepest):
            self.steer_from = change.new

    # what the panel asks for ------------------------------------------------------------------------------------------

    def arguments(self) -> dict[str, Any]:
        mixed = tuple((item.concept, item.strength) for item in self.mixed if item.on and item.concept != self.concept)
        return super().arguments() | {"deepest": self.deepest, "other_weights": bool(self.path), "mixed": mixed}

    def analysis_inputs(self) -> tuple[Any, ...]:
        if self.concept and not self.path and self.concept not in self.known:
            known = f"the {len(self.known)} concepts here"
            raise ValueError(f"concept must be one of {known}, got {self.concept!r}: check the spelling")
        return self.concept, self.prompt

    def answer(self, request: Any, model: Model, concepts: ConceptSet, progress: Any, check: Any) -> Any:
        began = time.monotonic()
        answer = super().answer(request, model, concepts, progress, check)
        speedometer.learn(STEERING, device_of(model), _flops(request, model), time.monotonic() - began)
        return answer

    def own_forecast(self, request: Any, model: Model) -> Forecast:
        return Forecast(speedometer.seconds(STEERING, device_of(model), _flops(request, model), own_speed=True), 0)

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[SteeredConcepts, ...], request: Any) -> None:
        super().draw(results, request)
        self._fit_start()
        shown = self.shown_results
        swept = bool(shown) and isinstance(shown[0].comparison, SteeringSweep)
        for number, (grid, table, sweep) in enumerate(zip(self.grids, self.table_boxes, self.sweeps, strict=True)):
            shown_if(table, number < len(shown))
            shown_if(grid, number < len(shown) and not swept)
            shown_if(sweep, number < len(shown) and swept)
        lines = []
        arguments = dict(request.arguments)
        with_others = "".join(f", “{name}” {fixed(gaps, 2, '+')}" for name, gaps in arguments["mixed"])
        for number, (answer, start) in enumerate(zip(shown, pair_view.starts(self), strict=True)):
            comparison = answer.comparison
            if isinstance(comparison, SteeringSweep):
                self._draw_sweep(number, comparison, start)
                lines.append(
                    f"{start}“{escape(comparison.concept)}” at several strengths, in gaps{escape(with_others)}. "
                    f"{comparison.in_words()}; the other texts are faint."
                )
                continue
            erased = comparison.mode == "erase"
            names = "”, “".join([comparison.concept, *comparison.mixed])
            gaps = f"{fixed(arguments.get('strength', 0.0), 2, '+')} gaps{with_others}"
            change = f"“{names}” erased" if erased else f"“{comparison.concept}” {gaps}"
            titles = ("unsteered", change, "random ones erased" if erased and comparison.mixed else
                      "random one erased" if erased else "random direction")  # fmt: skip
            for strip, title, text in zip(self.strips[3 * number :], titles, comparison.written, strict=False):
                strip.set_tokens(list(text))
                strip.label = f"{start}{title}"
                strip.set_marks(_word_spans(text, comparison.word))
            self._mute(number, by_chance=comparison.p > BEYOND)
            lines.append(start + _sentence(comparison))
            self._list_tokens(self.tables[number], comparison, start)
        self.words.value = "<br>".join(lines)

    def _mute(self, number: int, *, by_chance: bool) -> None:
        """Draw the steered text faint, without its marks, if random directions move the concept's word as much."""
        box, strip = self.grids[number].children[1], self.strips[3 * number + 1]
        (box.add_class if by_chance else box.remove_class)("iw-by-chance")
        if by_chance:
            strip.label += " (not beyond chance)"
            strip.set_marks([])

    def _draw_sweep(self, number: int, sweep: SteeringSweep, start: str) -> None:
        """Show the texts for each strength, side by side."""
        old, boxes = self.sweeps[number].children, []
        for i, strength in enumerate(sweep.strengths.tolist()):
            strip = TokenStrip(empty="The model ends its text immediately", max_lines=8)
            strip.set_tokens(list(sweep.written[i]))
            strip.set_marks(_word_spans(sweep.written[i], sweep.word))
            strip.label = f"{start}α {_signed(strength)}"
            box = W.VBox([strip])
            box.layout.flex = "1 1 180px"
            if strength and sweep.p[i] > BEYOND:
                box.add_class("iw-by-chance")
                strip.label += " (not beyond chance)"
                strip.set_marks([])
            boxes.append(box)
        self.sweeps[number].children = boxes
        for box in old:
            lifetime.close_tree(box)
            lifetime.close_one(box)

        word = visible(sweep.word)
        numbers = zip(sweep.word_probability, *sweep.band, sweep.p, strict=True)
        names = {
            "steered": "", "random, median": "Of the random directions of the same length", "2.5%": "", "97.5%": "",
            "p": "(1 + random directions that move the word as far) / (1 + all of them)",
        }  # fmt: skip
        table = self.tables[number]
        with table.hold_sync():
            table.selected, table.rows = -1, []
            table.columns = [{"label": "α"}, *({"label": k, "align": "right", "title": v} for k, v in names.items())]
            table.rows = [
                [_signed(strength), *map(float, row)] for strength, row in zip(sweep.strengths, numbers, strict=True)
            ]
            table.caption = f"{start}Probability that the next token is “{word}”"

    def _list_tokens(self, table: Table, comparison: SteeringComparison, start: str) -> None:
        names = (RUNS[0], "erased" if comparison.mode == "erase" else RUNS[1], RUNS[2])
        rows = [
            [visible(token), *map(float, column)]
            for token, column in zip(comparison.top_tokens, comparison.top_probability.T, strict=True)
        ]
        with table.hold_sync():
            table.selected, table.rows = -1, []
            table.columns = [{"label": "next token"}, *({"label": name, "align": "right"} for name in names)]
            table.rows = rows
            table.caption = f"{start}Probability of the next token, largest gains first"

    # what is saved ----------------------------------------------------------------------------------------------------

    def question(self) -> dict[str, str]:
        layers = self.results[0].comparison.layers.tolist() if self.results else []
        mixed = dict(self.shown_request.arguments)["mixed"] if self.results else ()
        more = {"Into layers": ", ".join(map(str, layers)), "Mixed with": ", ".join(f"{n} {g:+g}" for n, g in mixed)}
        return super().question() | {label: text for label, text in more.items() if text}

    def own_lines(self, model: str, concepts: str) -> tuple[list[str], list[str]]:
        options = self.arguments()
        seed, other = options.pop("sample_seed", 0), options.pop("other_weights") and len(self.models) > 1
        streams = [options.pop(name) for name in ("steer_from", "steer_on", "deepest")]
        options |= {"seed": seed} if seed else {}
        options |= {"layer": changed_streams(self._own_layer, *streams)} | ({"other_weights": True} if other else {})
        concept = self.shown_concept or first_look(self.known)
        function = "compare_steering"
        if options["mode"] == "sweep":
            function = "steering_sweep"
            options = {name: value for name, value in options.items() if name != "mode"} | {"strengths": SWEEP}
        if not options["mixed"]:
            del options["mixed"]
        return [], [
            "",
            f"from interp_widgets.analysis.concepts import {function}",
            "",
            f"texts = {call(function, model, concepts, repr(concept), repr(self.prompt), **options)}",
            "texts.to_frame()",
        ]

    def table_of(self, result: Any) -> Any:
        return result.comparison.to_frame()

    def scene(self) -> Scene:
        if isinstance(self.results[0].comparison, SteeringSweep):
            boxes = [box for number, _ in enumerate(self.shown_results) for box in self.sweeps[number].children]
            return stack_scenes([box.children[0].scene(width=360) for box in boxes], columns=3)
        shown = 3 * len(self.shown_results)
        return stack_scenes([strip.scene(width=560) for strip in self.strips[:shown]], columns=3)

    def parts_of(self, result: Any) -> Mapping[str, Any]:
        return {"": result.comparison}


def _flops(request: Any, model: Model) -> float:
    """Operations of the texts and of the passes with random directions."""
    arguments, tokens = dict(request.arguments), len(model.tokens(request.inputs[2]))
    strengths = len(SWEEP) if arguments["mode"] == "sweep" else 1
    return steering_flops(model, tokens, max_new_tokens=arguments["max_new_tokens"], strengths=strengths)


def _signed(strength: float) -> str:
    """A strength as text: −2, 0, +1."""
    return f"{strength:+g}".replace("-", "−") if strength else "0"


def _sentence(comparison: SteeringComparison) -> str:
    """The effect on the concept's own word."""
    shares = [f"{value:.2g}" if value >= 1e-4 else "&lt; 0.0001" for value in comparison.word_probability]
    how = "without the direction" if comparison.mode == "erase" else "steered"
    return (
        f"Probability that the next token is “{escape(visible(comparison.word))}”: {shares[0]} unsteered, "
        f"<b>{shares[1]}</b> {how}, {shares[2]} with a random direction. {comparison.in_words()}."
    )


def _word_spans(tokens: Any, word: str) -> list[list[int]]:
    """The positions of the concept's word in a text."""
    return [[i, i + 1] for i, token in enumerate(tokens) if token.strip() == word.strip() and word.strip()]
