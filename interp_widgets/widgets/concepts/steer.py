"""The steer tab: what a model writes with a concept's direction added or erased, beside a random direction."""

from __future__ import annotations

import time
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from interp_widgets.analysis.concepts.steered import RUNS, SteeringComparison, compare_steering
from interp_widgets.compute.memory import describe_seconds
from interp_widgets.figures.labels import visible

from ..base.controls import row, shown_if
from ..views import Table, TokenStrip

if TYPE_CHECKING:
    from .browser import ConceptBrowser

LIVE_SECONDS = 3.0
"""Writing that took no longer is done anew whenever something moves; else there is a button to press."""
INPUTS = (
    "prompt", "mode", "strength", "steer_from", "steer_on", "max_new_tokens", "temperature", "sample_seed",
    "control_seed", "view",
)  # fmt: skip


class SteerTab:
    """Sliders, three texts per model, and the next token's probabilities."""

    def __init__(self, panel: ConceptBrowser) -> None:
        self.panel = panel
        self.found: tuple[SteeringComparison, ...] = ()
        self._of: tuple[int, ...] = ()
        self.seconds = 0.0
        self._asked: Any = None
        self._job: Any = None
        self.write = panel.on_click(
            W.Button(description="Write", tooltip="As it is, steered, and along a random direction"),
            self.run,
        )  # fmt: skip
        self.words = W.HTML("")
        self.strips = [
            TokenStrip(empty="The model ends its text at once", max_lines=8) for _ in range(3 * len(panel.models))
        ]
        self.grids = []
        for index in range(len(panel.models)):
            boxes = [W.VBox([strip]) for strip in self.strips[3 * index : 3 * index + 3]]
            for box in boxes:
                box.layout.flex = "1 1 224px"  # three beside each other where there is room
            grid = row(*boxes)
            grid.layout.align_items = "flex-start"
            shown_if(grid, False)
            self.grids.append(grid)
        self.tables = [Table(empty="No next token yet: press Write.", height=300) for _ in panel.models]
        self.table_boxes = [W.VBox([table]) for table in self.tables]
        tables = W.VBox(self.table_boxes)
        tables.add_class("iw-maps")
        self.box = W.VBox(
            [panel.controls.row(panel.controls.again("prompt")), *self._controls(), self.words, *self.grids, tables]
        )
        self.box.add_class("iw-column")
        panel.watch(panel, list(INPUTS), lambda _: self.paint())

    def _controls(self) -> list[Any]:
        panel = self.panel
        self.start = W.IntSlider(
            description="Into layer", min=0, max=panel.deepest, continuous_update=False,
            tooltip="The first residual stream that is changed",
        )  # fmt: skip
        self._filling = False

        def fit(_: Any = None) -> None:
            self._filling = True
            try:
                self.start.value = min(panel.steer_from if panel.steer_from >= 0 else panel.stream, panel.deepest)
            finally:
                self._filling = False

        def slid(change: Any) -> None:
            if not self._filling:
                panel.steer_from = change.new

        panel.watch(self.start, "value", slid)
        panel.watch(panel, ["steer_from", "stream"], fit)
        fit()
        return panel.controls.rows("steer", after={"strength": [self.start], "control_seed": [self.write]})

    # asking -----------------------------------------------------------------------------------------------------------

    def paint_concept(self) -> None:
        """Steer along another concept."""
        self.paint()

    def paint(self) -> None:
        """Write anew where that is quick, else light the button."""
        panel = self.panel
        if not panel.sets or panel.tab != "steer":
            return
        if self._key() == self._asked and self._job is not None and not self._job.cancelled:
            return
        if self.seconds <= LIVE_SECONDS:
            self.run()
            return
        self.write.button_style = "primary"
        self.write.description = f"Write (about {describe_seconds(self.seconds)})"

    def _key(self) -> tuple[Any, ...]:
        panel = self.panel
        inputs = tuple(getattr(panel, name) for name in INPUTS)
        return (panel.concept, *inputs, self.layers, tuple(map(id, panel.sets)))

    @property
    def layers(self) -> tuple[int, ...]:
        """The streams that are changed."""
        panel = self.panel
        first = panel.steer_from if panel.steer_from >= 0 else panel.sets[0].layer
        if first > panel.deepest:
            raise ValueError(f"the layer must be in 0..{panel.deepest} for these models, got {first}")
        return tuple(range(first, panel.deepest + 1)) if panel.steer_on else (first,)

    def run(self) -> None:
        """Write, in the background."""
        panel = self.panel
        if not panel.sets:
            raise ValueError("there are no directions yet: press Run first")
        if not panel.prompt:
            raise ValueError("the prompt is empty: type what the model should continue")
        key, options, other = self._key(), self.options(), panel.opened
        concept, prompt, sets, indices = panel.concept, panel.prompt, panel.sets, panel.at
        self._asked = key
        began = time.monotonic()

        def work(job: Any) -> tuple[SteeringComparison, ...]:
            found: list[SteeringComparison] = []
            for i in indices:
                before, count = len(found), len(indices)

                def told(done: int, total: int, before: int = before, count: int = count) -> None:
                    job.progress(done + before * total, count * total)

                found.append(
                    compare_steering(
                        panel.models[i], sets[i], concept, prompt, **options, other_weights=other, progress=told,
                        check=job.check,
                    )
                )  # fmt: skip
            return tuple(found)

        def done(found: tuple[SteeringComparison, ...]) -> None:
            self.seconds = time.monotonic() - began
            self.write.button_style, self.write.description = "", "Write"
            if key == self._asked:
                self.found, self._of = found, indices
                self._draw(indices)

        self._job = panel.jobs.start(work, done, title="Writing", channel="steer")

    def options(self) -> dict[str, Any]:
        """Keywords of `compare_steering`."""
        panel = self.panel
        layers = self.layers
        return {
            "strength": panel.strength, "layer": layers[0] if len(layers) == 1 else list(layers), "mode": panel.mode,
            "max_new_tokens": panel.max_new_tokens, "temperature": panel.temperature, "seed": panel.sample_seed,
            "control_seed": panel.control_seed,
        }  # fmt: skip

    def stored(self) -> dict[str, Any]:
        """What was written, by model."""
        return {self.panel.name_of(index): one for index, one in zip(self._of, self.found, strict=True)}

    # drawing ----------------------------------------------------------------------------------------------------------

    def _draw(self, indices: tuple[int, ...]) -> None:
        panel = self.panel
        for number, (grid, box) in enumerate(zip(self.grids, self.table_boxes, strict=True)):
            shown_if(grid, number < len(self.found))
            shown_if(box, number < len(self.found))
        said = []
        for number, (index, one) in enumerate(zip(indices, self.found, strict=True)):
            letter = panel.name_of(index)
            start = f"{letter}: " if letter else ""
            done = f"“{one.concept}” erased" if one.mode == "erase" else f"“{one.concept}” {panel.strength:+.2f} gaps"
            titles = ("as it is", done, "random direction" if one.mode == "add" else "random one erased")
            for strip, title, text in zip(self.strips[3 * number :], titles, one.written, strict=False):
                strip.set_tokens(list(text))
                strip.label = f"{start}{title}"
                strip.set_marks(_word_places(text, one.word))
            said.append(start + _sentence(one))
            self._fill(self.tables[number], one, start)
        self.words.value = "<br>".join(said)

    def _fill(self, table: Table, one: SteeringComparison, start: str) -> None:
        heads: list[dict[str, Any]] = [{"label": "next token"}]
        names = (RUNS[0], "erased" if one.mode == "erase" else RUNS[1], RUNS[2])
        heads += [{"label": name, "align": "right"} for name in names]
        rows = [
            [visible(token), *map(float, column)]
            for token, column in zip(one.top_tokens, one.top_probability.T, strict=True)
        ]
        with table.hold_sync():
            table.selected, table.rows = -1, []
            table.columns, table.rows = heads, rows
            table.caption = f"{start}Probability of the next token, those that gain most first"


def _sentence(one: SteeringComparison) -> str:
    """What happens to the concept's own word."""
    before, after, random = (f"{value:.2g}" if value >= 1e-4 else "<0.0001" for value in one.word_probability)
    word = escape(visible(one.word))
    return (
        f"Probability that the next token is “{word}”: {escape(before)} as it is, <b>{escape(after)}</b> "
        f"{'without the direction' if one.mode == 'erase' else 'steered'}, {escape(random)} with a random direction."
    )


def _word_places(tokens: Any, word: str) -> list[list[int]]:
    """Where the concept's word stands in a text."""
    return [[i, i + 1] for i, token in enumerate(tokens) if token.strip() == word.strip() and word.strip()]
