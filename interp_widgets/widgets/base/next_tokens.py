"""The next tokens of several runs of a model, such as before and after a change, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import ipywidgets as W

from interp_widgets.figures.labels import visible

from ..views import Table
from . import pair_view
from .controls import row
from .jobs import Derived

CHANGE = ("before", "after", "change")
"""The columns of a prediction with and without a change of the model."""


def columns(names: Sequence[str], runs: Sequence[str] = CHANGE) -> list[dict[str, Any]]:
    """Columns of the table: the token, then the runs of each model, which start with the model's name."""
    heads: list[dict[str, Any]] = [{"label": "next token"}]
    for name in names:
        heads += [{"label": f"{name} {run}".strip(), "align": "right"} for run in runs]
    return heads


def rows(predictions: Sequence[Any], runs: Sequence[str] = CHANGE) -> list[list[Any]]:
    """One row per token in the top of a model, the first model's first: its probability in each of the runs, which are
    arrays of the predictions.

    The numbers of a model in whose top the token is not are None.
    """
    texts = {i: visible(text) for each in reversed(predictions) for i, text in zip(each.ids, each.tokens, strict=True)}
    cells = [
        dict(zip(each.ids, zip(*(getattr(each, run) for run in runs), strict=True), strict=True))
        for each in predictions
    ]
    missing = (None,) * len(runs)
    return [
        [
            texts[i],
            *(None if value is None else float(value) for of_model in cells for value in of_model.get(i, missing)),
        ]
        for i in dict.fromkeys(i for each in predictions for i in each.ids)
    ]


class NextTokens:
    """The table for what is selected in a panel; the worker computes one prediction per model in view."""

    runs: ClassVar[tuple[str, ...]] = CHANGE
    """The columns of each model: arrays of a prediction."""
    empty: ClassVar[str]
    """What stands in the place of an empty table."""

    def __init__(self, panel: Any, *buttons: W.Button) -> None:
        self.panel = panel
        self.table = Table(empty=self.empty, height=320)
        self.predictions: tuple[Any, ...] = ()
        """The predictions in the table, one per model in view."""
        self._predicting = Derived(panel, self._draw, title="Next token", channel="cell", quiet=True)
        self.box = W.VBox([self.table, *([row(*buttons)] if buttons else [])])
        self.box.add_class("iw-column")
        self.box.add_class("iw-grow")

    # to fill in -------------------------------------------------------------------------------------------------------

    def request(self) -> Any:
        """What to compute, hashable and with an `answer(model, check=)`; None if nothing is selected."""
        raise NotImplementedError

    def caption(self, request: Any, predictions: tuple[Any, ...]) -> str:
        """The line below the table."""
        raise NotImplementedError

    # for the panel ----------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """List the next tokens for the selection; the worker computes them if necessary."""
        panel, key = self.panel, self._key()
        if key is None:
            self._clear()
            return
        request, models = key[0], [panel.models[index] for index in pair_view.shown_indices(panel)]

        def work(job: Any) -> tuple[Any, ...]:
            predictions = []
            for model in models:
                job.check()
                answer = partial(request.answer, model, check=job.check)
                predictions.append(panel.answers.cached_or_compute(request, model, answer))
            return tuple(predictions)

        self._predicting.ask(key, work)

    # inside -----------------------------------------------------------------------------------------------------------

    def _key(self) -> tuple[Any, str, tuple[int, ...]] | None:
        """The request with the results and the view on the screen."""
        request = self.request()
        return None if request is None else (request, self.panel.shown, tuple(map(id, self.panel.results)))

    def _draw(self) -> None:
        """Show the predictions; after an error nothing, and they are computed again next time."""
        key = self._key()
        if self._predicting.failure or key is None:
            self._clear()
        elif (predictions := self._predicting.of(key)) is not None:
            self._show(key[0], predictions)

    def _clear(self) -> None:
        self._predicting.forget()
        self.predictions = ()
        with self.table.hold_sync():
            self.table.rows, self.table.caption = [], ""

    def _show(self, request: Any, predictions: tuple[Any, ...]) -> None:
        self.predictions = predictions
        both = len(predictions) > 1
        (self.box.add_class if both else self.box.remove_class)("iw-whole")  # six numbers a row
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns = columns(pair_view.names(self.panel) if both else [""], self.runs)
            self.table.rows = rows(predictions, self.runs)
            self.table.caption = self.caption(request, predictions)
