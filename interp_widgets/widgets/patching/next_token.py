"""The next-token table of a cell: the likeliest tokens of the clean, the corrupted and the patched run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import ipywidgets as W

from interp_widgets.analysis.patching import PatchedPrediction, patched_prediction
from interp_widgets.figures.labels import visible
from interp_widgets.models import Model

from ..base import pair_view
from ..base.jobs import Derived
from ..base.request import PerModel, Request
from ..views import Table

TOP = 8
"""Number of top tokens listed of each run."""
RUNS = ("clean", "corrupted", "patched")


@dataclass(frozen=True)
class Cell:
    """A cell of a map."""

    site: str
    layer: int
    head: int | None = None
    position: int = -1
    """In the prompt that is run."""

    def call(self, request: Request) -> Request:
        """The call that lists its next tokens, for the prompts of a request."""
        options = dict(request.arguments)
        keywords = {"head": self.head, "position": self.position}
        keywords |= {name: options[name] for name in ("direction", "alignment")}
        return Request.of(patched_prediction, keywords, *request.inputs[:2], self.site, self.layer)


@dataclass(frozen=True)
class TopTokens(PerModel):
    """How many tokens are listed: no more than a vocabulary has."""

    def read_by(self, model: Model) -> int:
        return min(TOP, model.d_vocab)

    def code(self, name: str) -> tuple[list[str], str]:
        return [], str(TOP)


class PatchedTokens:
    """The table of the selected cell; the worker computes it."""

    def __init__(self, panel: Any) -> None:
        self.panel = panel
        self.table = Table(empty="Click a cell of a map to list the next tokens of the patched run.", height=320)
        self.predictions: tuple[PatchedPrediction, ...] = ()
        """What the table shows, one per model in view."""
        self._predicting = Derived(panel, self._draw, title="Next token", channel="cell", quiet=True)
        self.box = W.VBox([self.table])
        self.box.add_class("iw-column")
        self.box.add_class("iw-grow")

    def _key(self) -> tuple[Request, str, tuple[int, ...]] | None:
        panel, cell = self.panel, self.panel.cell
        if cell is None or panel.shown_request is None:
            return None
        request = cell.call(panel.shown_request)
        request = Request.of(request.analysis, dict(request.arguments) | {"top": TopTokens()}, *request.inputs)
        return request, panel.shown, tuple(map(id, panel.results))

    def paint(self) -> None:
        """List the next tokens of the selected cell."""
        key = self._key()
        if key is None:
            self._predicting.forget()
            self._clear()
            return
        panel, request = self.panel, key[0]
        models = [panel.models[index] for index in pair_view.shown_indices(panel)]

        def work(job: Any) -> tuple[PatchedPrediction, ...]:
            found = []
            for model in models:
                job.check()
                found.append(panel.answers.cached_or_compute(request, model, partial(request.answer, model)))
            return tuple(found)

        self._predicting.ask(key, work)

    def _draw(self) -> None:
        key = self._key()
        if self._predicting.failure or key is None:
            self._predicting.forget()
            self._clear()
        elif (predictions := self._predicting.of(key)) is not None:
            self._show(predictions)

    def _clear(self) -> None:
        self.predictions = ()
        with self.table.hold_sync():
            self.table.rows, self.table.caption = [], ""

    def _show(self, predictions: tuple[PatchedPrediction, ...]) -> None:
        self.predictions = predictions
        heads: list[dict[str, Any]] = [{"label": "next token"}]
        for name in pair_view.names(self.panel) if len(predictions) > 1 else [""]:
            heads += [{"label": f"{name} {run}".strip(), "align": "right"} for run in RUNS]
        (self.box.add_class if len(predictions) > 1 else self.box.remove_class)("iw-whole")  # six numbers a row
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns, self.table.rows = heads, _rows(predictions)
            self.table.caption = f"Probability of the next token: {self.panel.cell_name}"


def _rows(predictions: tuple[PatchedPrediction, ...]) -> list[list[Any]]:
    """The union of the models' tokens, starting with the first model's."""
    rows = []
    for token in dict.fromkeys(token for prediction in predictions for token in prediction.ids):
        cells: list[Any] = []
        text = ""
        for prediction in predictions:
            if token not in prediction.ids:
                cells += [None] * len(RUNS)  # below the top of this model
                continue
            index = tuple(prediction.ids).index(token)
            text = visible(prediction.tokens[index])
            cells += [float(getattr(prediction, run)[index]) for run in RUNS]
        rows.append([text, *cells])
    return rows
