"""The steer tab: what a model writes with a concept's direction added or erased, beside a random direction."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Annotated, Any

import ipywidgets as W
import traitlets as T

from interp_widgets.analysis._core.cost import flops_per_token
from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.concepts import ConceptSet
from interp_widgets.analysis.concepts.steered import RUNS, SteeringComparison, compare_steering
from interp_widgets.compute.memory import Forecast, speedometer
from interp_widgets.figures.labels import visible
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.answers import device_of
from ..base.code import call
from ..base.controls import row, shown_if
from ..base.fields import Bounds, Seed, field, variant
from ..base.sampling import Sampling
from ..base.saving import as_one
from ..views import Table, TokenStrip
from .directions import ConceptOptions, ConceptPanel, Directions, first_look

STEERING = ("ConceptBrowser", "steering")
"""What the speedometer calls writing under steering."""
MODE_LABELS = {"add": "added", "erase": "erased"}


@dataclass(frozen=True, eq=False, kw_only=True)
class SteeredConcepts(Directions):
    """What one model writes: as it is, along a concept's direction, along a random one."""

    comparison: SteeringComparison


def changed_streams(layer: int, steer_from: int, steer_on: bool, deepest: int) -> list[int]:
    """The streams that are changed: from `steer_from`, or the directions' own layer, one or all later ones."""
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
    """`compare_steering` along a concept, or without it the first to look at, in the streams that are asked for."""
    name = concept if concept in concepts.names else first_look(concepts.names)
    layer: Any = changed_streams(concepts.layer, steer_from, steer_on, deepest)
    comparison = compare_steering(
        model, concepts, name, prompt, layer=layer, seed=sample_seed, progress=progress, check=check, **options
    )
    return SteeredConcepts(concepts=concepts, comparison=comparison)


class Steering(Sampling, ConceptPanel):
    """Three texts per model, and the next token's probabilities, with a direction added or erased."""

    tab_name, of_both = "Steer", ("beside",)
    analysis = staticmethod(steered)
    concept = variant(ConceptOptions.concept, argument="", selects=False)
    prompt = variant(
        ConceptOptions.prompt, label="Prompt", width="grow", argument="",
        required="the prompt is empty: type what the model should continue",
        help="What is read, and continued under steering",
    )  # fmt: skip
    seed = variant(ConceptOptions.seed)
    sample_seed = variant(Sampling.seed)
    mode = field(MODE_LABELS, "add", label="Direction", help="What is done with it")
    strength = field(
        Annotated[float, Bounds(-10.0, 10.0, 0.25, slider=True, shown_as=".2f")], 1.0, label="α", live=False,
        shown_if=lambda panel: panel.mode == "add",
        help="How much is added, in units of the concept's gap; below 0 it steers away",
    )  # fmt: skip
    steer_from = field(T.Int(-1, min=-1))
    """The first stream that is changed; -1 for that of the directions."""
    steer_on = field(bool, label="and all later ones", help="Whether all later streams are changed too")
    control_seed = field(Seed, label="Random direction", width="short", help="Seed: another number, another direction")

    def build(self) -> None:
        self.start = W.IntSlider(
            description="Into layer", min=0, max=self.deepest, continuous_update=False,
            tooltip="The first residual stream that is changed",
        )  # fmt: skip
        self.watch(self, ["steer_from", "stream"], lambda _: self._fit_start())
        self._fit_start()
        self.watch(self.start, "value", self._start_moved)
        self.inputs.children = [
            self.controls.row("prompt"), self.controls.row("mode", "strength", self.start, "steer_on"),
            self.controls.row("max_new_tokens", "temperature", "sample_seed", "control_seed"),
        ]  # fmt: skip
        self.words = W.HTML("")
        self.strips = [
            TokenStrip(empty="The model ends its text at once", max_lines=8) for _ in range(3 * len(self.models))
        ]
        self.grids = []
        for index in range(len(self.models)):
            boxes = [W.VBox([strip]) for strip in self.strips[3 * index : 3 * index + 3]]
            for box in boxes:
                box.layout.flex = "1 1 224px"  # three beside each other where there is room
            grid = row(*boxes)
            grid.layout.align_items = "flex-start"
            shown_if(grid, False)
            self.grids.append(grid)
        self.tables = [Table(empty="No next token yet: press Run.", height=300) for _ in self.models]
        self.table_boxes = [W.VBox([table]) for table in self.tables]
        tables = W.VBox(self.table_boxes)
        tables.add_class("iw-maps")
        self.plot.children = [self.words, *self.grids, tables]

    @property
    def _own_layer(self) -> int:
        """The stream that the directions were made in, or will be."""
        return self.sets[0].layer if self.opened else max(self.stream, 0)

    def _fit_start(self) -> None:
        """Show the first stream that is changed."""
        self.start.value = min(self.steer_from if self.steer_from >= 0 else self._own_layer, self.deepest)

    def _start_moved(self, change: Any) -> None:
        if self.steer_from >= 0 or change.new != min(self._own_layer, self.deepest):
            self.steer_from = change.new

    # what the panel asks for ------------------------------------------------------------------------------------------

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"deepest": self.deepest, "other_weights": bool(self.path)}

    def asked_about(self) -> tuple[Any, ...]:
        if self.concept and not self.path and self.concept not in self.known:
            there = f"the {len(self.known)} concepts here"
            raise ValueError(f"concept must be of {there}, got {self.concept!r}: check how it is written")
        return self.concept, self.prompt

    def answer(self, request: Any, model: Model, concepts: ConceptSet, progress: Any, check: Any) -> Any:
        began = time.monotonic()
        answer = super().answer(request, model, concepts, progress, check)
        speedometer.learn(STEERING, device_of(model), _flops(request, model), time.monotonic() - began)
        return answer

    def own_forecast(self, request: Any, model: Model) -> Forecast:
        return Forecast(speedometer.seconds(STEERING, device_of(model), _flops(request, model)), 0)

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[SteeredConcepts, ...], request: Any) -> None:
        super().draw(results, request)
        self._fit_start()
        shown = self.looked_at
        for number, boxes in enumerate(zip(self.grids, self.table_boxes, strict=True)):
            for box in boxes:
                shown_if(box, number < len(shown))
        lines = []
        gaps = dict(request.arguments).get("strength", 0.0)
        for number, (answer, start) in enumerate(zip(shown, pair_view.starts(self), strict=True)):
            comparison = answer.comparison
            erased = comparison.mode == "erase"
            change = f"“{comparison.concept}” erased" if erased else f"“{comparison.concept}” {gaps:+.2f} gaps"
            titles = ("as it is", change, "random one erased" if erased else "random direction")
            for strip, title, text in zip(self.strips[3 * number :], titles, comparison.written, strict=False):
                strip.set_tokens(list(text))
                strip.label = f"{start}{title}"
                strip.set_marks(_word_spans(text, comparison.word))
            lines.append(start + _sentence(comparison))
            self._list_tokens(self.tables[number], comparison, start)
        self.words.value = "<br>".join(lines)

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
            table.caption = f"{start}Probability of the next token, those that gain most first"

    # what is saved ----------------------------------------------------------------------------------------------------

    def question(self) -> dict[str, str]:
        layers = self.results[0].comparison.layers.tolist() if self.results else []
        return super().question() | ({"Into layers": ", ".join(map(str, layers))} if layers else {})

    def own_lines(self, model: str, concepts: str) -> tuple[list[str], list[str]]:
        options = self.arguments()
        seed, other = options.pop("sample_seed", 0), options.pop("other_weights") and len(self.models) > 1
        streams = [options.pop(name) for name in ("steer_from", "steer_on", "deepest")]
        options |= {"seed": seed} if seed else {}
        options |= {"layer": changed_streams(self._own_layer, *streams)} | ({"other_weights": True} if other else {})
        concept = self.shown_concept or first_look(self.known)
        return [], [
            "",
            "from interp_widgets.analysis.concepts.steered import compare_steering",
            "",
            f"texts = {call('compare_steering', model, concepts, repr(concept), repr(self.prompt), **options)}",
            "texts.to_frame()",
        ]

    def frame(self) -> Any:
        return pair_view.joined(result.comparison.to_frame() for result in self.results)

    def scene(self) -> Scene:
        shown = 3 * len(self.looked_at)
        return stack_scenes([strip.scene(width=560) for strip in self.strips[:shown]], columns=3)

    def stored(self) -> Result:
        return as_one({letter: result.comparison for letter, result in self.by_letter().items()}, self.tab_name)


def _flops(request: Any, model: Model) -> float:
    """Operations of writing three texts."""
    return 3.0 * dict(request.arguments)["max_new_tokens"] * flops_per_token(model)


def _sentence(comparison: SteeringComparison) -> str:
    """What happens to the concept's own word."""
    shares = [f"{value:.2g}" if value >= 1e-4 else "&lt;0.0001" for value in comparison.word_probability]
    how = "without the direction" if comparison.mode == "erase" else "steered"
    return (
        f"Probability that the next token is “{escape(visible(comparison.word))}”: {shares[0]} as it is, "
        f"<b>{shares[1]}</b> {how}, {shares[2]} with a random direction."
    )


def _word_spans(tokens: Any, word: str) -> list[list[int]]:
    """Where the concept's word stands in a text."""
    return [[i, i + 1] for i, token in enumerate(tokens) if token.strip() == word.strip() and word.strip()]
