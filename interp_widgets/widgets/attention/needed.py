"""Whether a prediction needs a head: the effect of removing it beside those of other heads."""

from __future__ import annotations

from html import escape
from typing import Annotated

import ipywidgets as W
import numpy as np

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.patching import AblationNullResult, ablation_null
from interp_widgets.analysis.patching.null import ablation_null_cost
from interp_widgets.figures.labels import visible
from interp_widgets.figures.static import Scene
from interp_widgets.models import Model

from ..base import pair_view
from ..base.description import Description, Step, decimals
from ..base.fields import Bounds, field, variant
from ..base.prediction import PredictionPanel, checked
from ..base.request import Request
from ..views import Heatmap
from .patterns import HeadPatterns

BEYOND = 0.05
"""Largest p of an effect that is called beyond chance."""


class HeadNeeded(PredictionPanel):
    """The effect of removing the selected head on the target, beside the effects of removing other heads."""

    title, tab_name = "Needed head", "Needed?"
    analysis = staticmethod(ablation_null)
    pair_views = ("beside",)
    layer = variant(HeadPatterns.layer, selects=False)
    head = variant(HeadPatterns.head, selects=False)
    matched = field(
        {"layer": "the same layer", "model": "all layers"}, "layer", label="Other heads of",
        help="Where the heads come from whose removal is compared",
    )  # fmt: skip
    draws = field(
        Annotated[int, Bounds(1, 1000)], 50, label="At most", width="short",
        help="Most other heads to remove, drawn at random where there are more",
    )  # fmt: skip

    # what the panel asks for ------------------------------------------------------------------------------------------

    def build(self) -> None:
        self.inputs.children = [*self.text_inputs(), *self.controls.rows()]
        self.about = W.HTML("")
        self.maps = pair_view.SideBySide(
            self, lambda: Heatmap(
                row_name="", column_name="head", x_label="head, from the largest effect on", numbers_from=0.0,
                height=64, empty="No effects yet",
            )
        )  # fmt: skip
        self.arrange([self.about, self.maps.box])

    def request(self) -> Request:
        prediction = self.prediction()
        checked(prediction, self.models[0])
        options = {"draws": self.draws, "matched": self.matched}
        return Request.of(ablation_null, options, prediction.ids, ((self.layer, self.head),), prediction.answer)

    def cost(self, request: Request, model: Model) -> Cost:
        options = dict(request.arguments)
        others = model.n_heads * (1 if options["matched"] == "layer" else model.n_layers) - 1
        return ablation_null_cost(model, len(request.inputs[0].read_by(model)), draws=min(options["draws"], others))

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[AblationNullResult, ...], request: Request) -> None:
        effects = [np.array([result.effect, *result.null]) for result in results]
        largest = pair_view.symmetric_limit("A", [effects]) if len(results) == 1 else max(
            pair_view.symmetric_limit("A", [[each]]) for each in effects
        )  # fmt: skip
        for view, heat in self.maps.drawn():
            result, values = results[view == "B"], effects[view == "B"]
            names = [parts[0].removeprefix("head ") for parts in (result.parts, *result.drawn)]
            order = np.argsort(-values, kind="stable")
            own = int(np.flatnonzero(order == 0)[0])
            with heat.hold_sync():
                heat.title = f"{pair_view.title_start(self, view)}Drop in log-probability without each head"
                heat.value_label = "nats"
                heat.set_matrix(
                    values[order][None], rows=["effect"], columns=[names[at] for at in order], vmin=-largest,
                    vmax=largest, signed=True,
                )  # fmt: skip
                heat.column_marks, heat.mark_name = [[own, own + 1]], "the selected head"
                heat.cross = heat.pinned = [0, own]
        self.about.value = "<br>".join(map(self._sentence, pair_view.all_starts(results), results))

    def _sentence(self, start: str, result: AblationNullResult) -> str:
        """The effect and what chance does, as HTML."""
        count, draws = int((result.null >= result.effect).sum()), len(result.null)
        where = f"layer {self.layer}" if result.matched == "layer" else "all layers"
        verdict = "beyond chance" if result.p <= BEYOND else "not beyond chance"
        moves = "lowers" if result.effect >= 0 else "raises"
        least = 1 / (1 + draws)
        few = (
            f" With {draws} other heads p cannot be below {least:.2g}: compare with heads of all layers."
            if least > BEYOND
            else ""
        )
        target = escape(visible(result.target_tokens[0]))
        return (
            f"{start}Removing {result.parts[0]} at every token {moves} the log-probability of “{target}” by "
            f"<b>{decimals(abs(result.effect))}</b> nats. Of {draws} other heads of {where}, {count} "
            f"{'does' if count == 1 else 'do'} as much or more: p = {result.p:.2g}, <b>{verdict}</b>.{few}"
        )

    def describe_selection(self) -> Description | None:
        if not self.results:
            return None
        names = [letter.strip() or "value" for letter in pair_view.letters(self.results)]
        rows = (
            ("effect, nats", *(decimals(result.effect) for result in self.results)),
            ("mean of others", *(decimals(float(result.null.mean())) for result in self.results)),
            ("p", *(f"{result.p:.2g}" for result in self.results)),
        )
        step = Step("ablation", "Does it need this head?", {"tab": "heads", "kind": "head"})
        return Description(f"Without head {self.layer}.{self.head}", (), ("", *names), rows, (step,))

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Request) -> str:
        return request.code(self.models, "result.measures()")

    def scene(self) -> Scene:
        return self.maps.scene()
