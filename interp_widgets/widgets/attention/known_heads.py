"""Heads of a known kind: their scores on repeated random tokens, each with an interval and a control."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Annotated, Any

import ipywidgets as W
import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.attention import HeadScores, head_scores, head_scores_cost
from interp_widgets.analysis.attention.head_scores import SCORES as NAMES
from interp_widgets.analysis.attention.head_scores import check_length, longest
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.description import Description, Step, decimals
from ..base.fields import Bounds, Seed, field, hint_at
from ..base.panel import Panel
from ..base.request import Request
from ..base.workbench import in_model
from ..views import Heatmap, Table

SCORES = {
    "induction": "induction",
    "previous_token": "previous token",
    "duplicate_token": "duplicate token",
    "first_token": "first token",
}
ABOUT = {
    "induction": (
        "Attention, in the second half, to the token after the earlier occurrence of the same token. "
        "Control: the same distance where nothing repeats."
    ),
    "previous_token": "Attention to the token before. Control: attention to the token two before.",
    "duplicate_token": (
        "Attention, in the second half, to the earlier occurrence of the same token. "
        "Control: the same distance where nothing repeats."
    ),
    "first_token": (
        "Attention to the first token that the model reads, the attention sink. Control: attention to the second token."
    ),
}
"""What a score is, and what its control is."""
LISTED = 10
"""Heads in the table."""
HEAD_STEPS = (
    Step("ablation", "Does it need this head?", {"tab": "heads", "kind": "head"}),
    Step("attention", "More than other heads?", {"tab": "needed"}),
    Step("patching", "Does it carry the answer?", {"tab": "heads"}),
)
"""What to look at next for a selected head."""


def usual_length(models: Sequence[Model], keywords: set[str]) -> dict[str, int]:
    """Fewer random tokens, as a start value, for models whose context or vocabulary does not hold the usual ones."""
    shortest = min(longest(model, 40) for model in models)
    return {} if "length" in keywords or shortest < 2 else {"length": shortest}


class KnownHeads(Panel):
    """Which heads are induction, previous-token, duplicate-token or first-token heads: one map, layer × head."""

    title, tab_name = "Known heads", "Find"
    analysis = staticmethod(head_scores)
    pair_views = ("difference", "beside")
    score = field(SCORES, "induction", label="Score", redraws=True, argument=None, help="What the heads are scored for")
    length = field(
        Annotated[int, Bounds(2, 1000)], 40, label="Random tokens", width="short",
        help="Random tokens that each sequence repeats once",
    )  # fmt: skip
    sequences = field(
        Annotated[int, Bounds(1, 200)], 8, label="Sequences", width="short",
        help="Sequences to average over; the interval is of their mean",
    )  # fmt: skip
    seed = field(Seed, 0, label="Seed", width="short", more=True, help="Of the random tokens")
    layer = field(in_model(), selects=True)
    """The selected layer."""
    head = field(in_model(), selects=True)
    """The selected head of that layer."""

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        return usual_length(self.models, keywords)

    # what the panel asks for ------------------------------------------------------------------------------------------

    def build(self) -> None:
        super().build()
        self.maps = pair_view.SideBySide(
            self, lambda: Heatmap(
                row_name="layer", column_name="head", y_label="layer", x_label="head", max_height=400,
                empty="No scores yet",
            )
        )  # fmt: skip
        self.table = Table(empty="No scores yet.", height=320, instruction="click one to select it")
        self.about = W.HTML("")
        self.arrange([self.maps.box], below=[self.about], beside=[self.table], width=520)
        self._rows: list[tuple[int, int]] = []
        self._opens = "score" not in self.keywords
        self.watch(self, "score", self._score_chosen)
        for heat in self.maps.views:
            self.on_user(heat, "pinned", self._pinned)
            self.on_user(heat, "cross", self.maps.follow)
        self.on_user(self.table, "selected", self._picked)

    def request(self) -> Request:
        for model in self.models:
            with hint_at("length"):
                check_length(model, self.length)
        request: Request = super().request()
        return request

    def cost(self, request: Request, model: Model) -> Cost:
        options = dict(request.arguments)
        return head_scores_cost(model, length=options["length"], sequences=options["sequences"])

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[HeadScores, ...], request: Request) -> None:
        self._open(results)
        arrays = [self._scores(result) for result in results]
        for view, heat in self.maps.drawn():
            shown = pair_view.of_view(view, arrays)
            if shown is None:
                heat.empty = "A difference needs models with as many layers and heads: choose A beside B"
                heat.set_matrix(None)
                continue
            signed = view == "difference"
            high = pair_view.symmetric_limit(view, [arrays]) if signed else 1.0
            with heat.hold_sync():
                heat.title = f"{pair_view.title_start(self, view)}Heads by {SCORES[self.score]} score"
                heat.value_label = "mean attention" + (", B − A" if signed else "")
                heat.numbers_from = 0.1 * high
                heat.set_matrix(
                    shown, rows=[str(at) for at in range(shown.shape[0])],
                    columns=[str(at) for at in range(shown.shape[1])], vmin=-high if signed else 0.0, vmax=high,
                    signed=signed, notes=self._notes(view),
                )  # fmt: skip
        self._draw_table()
        uniform = float(results[0].uniform[NAMES.index(self.score)])
        self.about.value = (
            f"{escape(ABOUT[self.score])} Equal attention to all tokens would score {decimals(uniform)}. "
            f"Measured on {results[0].scores.shape[1]} sequences of {results[0].length} random tokens, each read "
            "twice in a row; the prompt above plays no part."
        )

    def _open(self, results: tuple[HeadScores, ...]) -> None:
        """With the first result, show the score of which a model has the head furthest beyond chance, unless somebody
        has chosen one."""
        if self._opens:
            self._opens = False
            best = max(results, key=lambda result: float(result.beyond_chance(result.strongest()).max()))
            self.score = best.strongest()

    def _score_chosen(self, _: Any) -> None:
        self._opens = False

    def _draw_table(self) -> None:
        results = [self.results[index] for index in pair_view.shown_indices(self) if index < len(self.results)]
        letters = [letter.strip() for letter in pair_view.letters(results)]
        arrays = [self._scores(result) for result in results]
        differs = self.shown == "difference" and len(arrays) > 1 and arrays[0].shape == arrays[1].shape
        ranked = np.abs(arrays[1] - arrays[0]) if differs else arrays[0]
        order = np.argsort(-ranked, axis=None, kind="stable")[:LISTED]
        self._rows = [(int(flat) // ranked.shape[1], int(flat) % ranked.shape[1]) for flat in order]
        columns: list[dict[str, Any]] = [{"label": "head", "title": "layer.head"}]
        for letter in letters:
            end = f" {letter}" if letter else ""
            columns += [
                {"label": f"score{end}", "align": "right"},
                {"label": f"95% interval{end}", "align": "right", "title": "of the mean over sequences"},
                {"label": f"control{end}", "align": "right", "title": ABOUT[self.score].split("Control: ")[1]},
            ]
        rows = [[f"{layer}.{head}", *(cell for r in results for cell in self._cells(r, layer, head))]
                for layer, head in self._rows]  # fmt: skip
        of_a = " of A" if len(letters) > 1 else ""
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns, self.table.rows = columns, rows
            self.table.caption = (
                "Largest differences, B − A" if differs else f"Highest {SCORES[self.score]} scores{of_a}"
            )

    def draw_selection(self) -> None:
        at = [self.layer, self.head]
        for heat in self.maps.shown:
            inside = all(place < size for place, size in zip(at, heat.shape, strict=True))
            with heat.hold_sync():
                heat.cross = heat.pinned = at if inside else []
        self.table.selected = next((i for i, row in enumerate(self._rows) if list(row) == at), -1)

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        results = [self.results[index] for index in pair_view.shown_indices(self) if index < len(self.results)]
        names = [letter.strip() or "score" for letter in pair_view.letters(results)]
        inside = [r for r in results if self.layer < r.scores.shape[2] and self.head < r.scores.shape[3]]
        return Description(
            f"Head {self.layer}.{self.head}",
            ("Mean attention on repeated random tokens.",),
            ("score", *names),
            tuple(
                (label, *(decimals(float(getattr(result, name)[self.layer, self.head])) for result in inside))
                for name, label in SCORES.items()
            ),
            HEAD_STEPS,
        )

    def _scores(self, result: HeadScores) -> NDArray[np.float64]:
        """(layers, heads) the chosen score."""
        values: NDArray[np.float64] = getattr(result, self.score)
        return values

    def _notes(self, view: str) -> list[str]:
        """The interval and control of every head, for the tooltips of a view."""
        shown = [self.results[index] for index in pair_view.models_of(view) if index < len(self.results)]
        each = []
        for letter, result in zip(pair_view.letters(shown), shown, strict=True):
            layers, heads = result.scores.shape[2:]
            cells = [self._cells(result, layer, head) for layer in range(layers) for head in range(heads)]
            each.append(
                [f"{letter}95% interval {interval}, control {decimals(control)}" for _, interval, control in cells]
            )
        return ["; ".join(cell) for cell in zip(*each, strict=True)]

    def _cells(self, result: HeadScores, layer: int, head: int) -> tuple[float, str, float]:
        """Score, interval and control of a head; NaN for one that the model does not have."""
        if layer >= result.scores.shape[2] or head >= result.scores.shape[3]:
            return float("nan"), "–", float("nan")
        low, high = result.interval(self.score)[:, layer, head]
        interval = f"{low:.3f} to {high:.3f}" if np.isfinite(low) else "needs two sequences"
        control = result.control(self.score)[layer, head]
        return float(self._scores(result)[layer, head]), interval, float(control)

    # what a user does -------------------------------------------------------------------------------------------------

    def _pinned(self, change: Any) -> None:
        if change.new:
            with self.batch_changes():
                self.layer, self.head = change.new

    def _picked(self, change: Any) -> None:
        if change.new >= 0:
            with self.batch_changes():
                self.layer, self.head = self._rows[change.new]

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Request) -> str:
        return request.code(self.models, "result.to_frame()")

    def scene(self) -> Scene:
        return stack_scenes([self.maps.scene(), self.table.scene()])
