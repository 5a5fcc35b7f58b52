"""The next-token table: the model's top predictions with and without the picked part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.ablation import AblatedPrediction, ablated_prediction
from interp_widgets.figures.labels import visible
from interp_widgets.models import Model

from ..base import pair_view
from ..base.controls import row, shown_if
from ..base.jobs import Derived
from ..base.prediction import Prediction
from ..views import Table
from .ablation_spec import AblationSpec
from .maps import METRIC_NAMES, amount

if TYPE_CHECKING:
    from .removal import Removal

TOP = 10
"""Number of top tokens listed, before and after."""
EMPTY = "Click a cell of a map to list the next tokens with and without that part."


@dataclass(frozen=True)
class NextTokenRequest:
    """The request for one picked part."""

    prediction: Prediction
    spec: AblationSpec

    def answer(self, model: Model, check: Any) -> AblatedPrediction:
        """Run it on one model."""
        ablation = self.spec.make(model, self.prediction, check=check)
        check()
        return ablated_prediction(model, self.prediction.read(model)[0], [ablation], top=min(TOP, model.d_vocab))


class NextToken:
    """The next-token table of the picked part, and its buttons."""

    def __init__(self, panel: Removal) -> None:
        self.panel = panel
        self.table = Table(empty=EMPTY, height=320)
        self.add = panel.on_click(
            W.Button(description="Add to the list", tooltip="Combine it with other ablations"),
            lambda: panel.add_to_list(self._picked()),
        )
        self.generate = panel.on_click(
            W.Button(
                description="Generate without it", tooltip="Generate text with and without this part, side by side"
            ),
            lambda: panel.write_without(self._picked()),
        )
        shown_if(self.generate, panel.stack is not None)
        self.predictions: tuple[AblatedPrediction, ...] = ()
        """The predictions in the table, one per model in view."""
        self._predicting = Derived(panel, self._draw, title="Next token", channel="cell", quiet=True)
        self.box = W.VBox([self.table, row(self.add, self.generate)])
        self.box.add_class("iw-column")
        self.box.add_class("iw-grow")

    def _picked(self) -> AblationSpec:
        spec = self.panel.picked
        if spec is None:
            raise ValueError("no part is picked yet: click a cell of a map")
        return spec

    def _key(self) -> tuple[NextTokenRequest, str, tuple[int, ...]] | None:
        """The key of the table: the picked part and the maps on the screen; None if nothing is picked."""
        panel, spec = self.panel, self.panel.picked
        if spec is None or panel.shown_prediction is None:
            return None
        return NextTokenRequest(panel.shown_prediction, spec), panel.shown, tuple(map(id, panel.results))

    def paint(self) -> None:
        """List the next tokens for the picked part; the worker computes them if necessary."""
        panel, key = self.panel, self._key()
        self.add.disabled = self.generate.disabled = panel.picked is None
        if key is None:
            self._predicting.forget()
            self._clear()
            return
        request, models = key[0], [panel.models[index] for index in pair_view.shown_indices(panel)]

        def work(job: Any) -> tuple[AblatedPrediction, ...]:
            return tuple(
                panel.answers.cached_or_compute(request, model, partial(request.answer, model, job.check))
                for model in models
            )

        self._predicting.ask(key, work)

    def _draw(self) -> None:
        """Show the predictions; after an error nothing, and they are computed again next time."""
        key = self._key()
        if self._predicting.failure or key is None:
            self._predicting.forget()
            self._clear()
        elif (predictions := self._predicting.of(key)) is not None:
            self._show(key[0].spec, predictions)

    def _clear(self) -> None:
        self.predictions = ()
        with self.table.hold_sync():
            self.table.rows, self.table.caption = [], ""

    def _show(self, spec: AblationSpec, predictions: tuple[AblatedPrediction, ...]) -> None:
        self.predictions = predictions
        heads: list[dict[str, Any]] = [{"label": "next token"}]
        for name in pair_view.names(self.panel) if len(predictions) > 1 else [""]:
            labels = [f"{name} {what}".strip() for what in ("before", "after", "change")]
            heads += [{"label": label, "align": "right"} for label in labels]
        (self.box.add_class if len(predictions) > 1 else self.box.remove_class)("iw-whole")  # six numbers a row
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns, self.table.rows = heads, _rows(predictions)
            self.table.caption = self._caption(spec, predictions)

    def _caption(self, spec: AblationSpec, predictions: tuple[AblatedPrediction, ...]) -> str:
        """The part, its effect in the maps, and the change of the distribution."""
        panel, lines = self.panel, []
        metric = getattr(panel.results[0], "metric", "kl") if panel.results else "kl"
        effects = panel.effects_shown(spec) or (float("nan"),) * len(predictions)
        for name, prediction, effect in zip(pair_view.names(panel), predictions, effects, strict=True):
            moved = ""
            if np.isfinite(effect) and metric != "kl":
                moved = f"{METRIC_NAMES[metric]} {'drops' if effect >= 0 else 'rises'} by {amount(abs(effect))}, "
            lines.append(f"{name}{': ' if name else ''}{moved}KL {amount(prediction.kl)} nats")
        return f"{spec.describe(panel.texts.axis)} – {'; '.join(lines)}"


def _rows(predictions: tuple[AblatedPrediction, ...]) -> list[list[Any]]:
    """The union of the models' top tokens, starting with the first model's."""
    ids = dict.fromkeys(token for prediction in predictions for token in prediction.ids)
    rows = []
    for token in ids:
        cells: list[Any] = []
        text = ""
        for prediction in predictions:
            if token not in prediction.ids:
                cells += [None, None, None]  # below the top of this model
                continue
            index = tuple(prediction.ids).index(token)
            text = visible(prediction.tokens[index])
            cells += [float(getattr(prediction, name)[index]) for name in ("before", "after", "change")]
        rows.append([text, *cells])
    return rows
