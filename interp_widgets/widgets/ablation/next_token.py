"""The picked part in numbers: what the model would write next with and without it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import ipywidgets as W
import numpy as np

from interp_widgets.analysis.ablation import AblatedPrediction, ablated_prediction
from interp_widgets.compute.worker import Cancelled
from interp_widgets.figures.labels import visible
from interp_widgets.models import Model

from ..base import pair_view
from ..base.controls import row, shown_if
from ..base.prediction import Prediction
from ..views import Table
from .ablation_spec import AblationSpec
from .maps import METRIC_NAMES, amount

if TYPE_CHECKING:
    from .removal import Removal

TOP = 10
"""Tokens that are listed of before and of after."""
EMPTY = "Click a cell of a map: the next token with and without that part is listed here."


@dataclass(frozen=True)
class NextTokenRequest:
    """One picked part, for the cache."""

    prediction: Prediction
    spec: AblationSpec

    def answer(self, model: Model, check: Any) -> AblatedPrediction:
        """Run it on one model."""
        one = self.spec.make(model, self.prediction, check=check)
        check()
        return ablated_prediction(model, self.prediction.read(model)[0], [one], top=min(TOP, model.d_vocab))


class NextToken:
    """The next-token table of the picked part, and what can be done with it."""

    def __init__(self, panel: Removal) -> None:
        self.panel = panel
        self.table = Table(empty=EMPTY, height=320)
        self.add = panel.on_click(
            W.Button(description="Add to the list", tooltip="So that it can be combined with others"),
            lambda: panel.add_to_list(self._picked()),
        )
        self.generate = panel.on_click(
            W.Button(description="Generate without it", tooltip="Text as it is, beside text without this part"),
            lambda: panel.write_without(self._picked()),
        )
        shown_if(self.generate, panel.stack is not None)
        self.found: tuple[AblatedPrediction, ...] = ()
        """What the table shows, one per model that is looked at."""
        self._asked: Any = None
        self._job: Any = None
        self.box = W.VBox([self.table, row(self.add, self.generate)])
        self.box.add_class("iw-column")
        self.box.add_class("iw-grow")

    def _picked(self) -> AblationSpec:
        spec = self.panel.picked
        if spec is None:
            raise ValueError("no part is picked yet: click a cell of a map")
        return spec

    def paint(self) -> None:
        """List the next tokens for what is picked; the worker computes them unless they are known."""
        panel, spec = self.panel, self.panel.picked
        self.add.disabled = self.generate.disabled = spec is None
        if spec is None or panel.asked is None:
            self._asked = None
            self._clear()
            return
        request = NextTokenRequest(panel.asked, spec)
        key = (request, panel.shown, tuple(map(id, panel.results)))
        if key == self._asked and not self._job.cancelled:
            return
        self._asked = key
        models = [panel.models[index] for index in pair_view.looked_at(panel)]

        def work(job: Any) -> tuple[tuple[AblatedPrediction, ...], Exception | None]:
            found = []
            try:
                for model in models:
                    found.append(panel.answers.once(request, model, partial(request.answer, model, job.check)))
            except Cancelled:
                raise
            except Exception as error:  # handed over, so that the table goes before the sentence comes
                return (), error
            return tuple(found), None

        def done(value: tuple[tuple[AblatedPrediction, ...], Exception | None]) -> None:
            found, error = value
            if key != self._asked:
                return
            if error is not None:
                self._asked = None
                self._clear()
                raise error
            self._show(spec, found)

        self._job = panel.jobs.start(work, done, title="Next token", channel="cell", quiet=True)

    def _clear(self) -> None:
        self.found = ()
        with self.table.hold_sync():
            self.table.rows, self.table.caption = [], ""

    def _show(self, spec: AblationSpec, found: tuple[AblatedPrediction, ...]) -> None:
        self.found = found
        heads: list[dict[str, Any]] = [{"label": "next token"}]
        for name in pair_view.names(self.panel) if len(found) > 1 else [""]:
            labels = [f"{name} {what}".strip() for what in ("before", "after", "change")]
            heads += [{"label": label, "align": "right"} for label in labels]
        (self.box.add_class if len(found) > 1 else self.box.remove_class)("iw-whole")  # six numbers a row
        with self.table.hold_sync():
            self.table.selected, self.table.rows = -1, []
            self.table.columns, self.table.rows = heads, _rows(found)
            self.table.caption = self._caption(spec, found)

    def _caption(self, spec: AblationSpec, found: tuple[AblatedPrediction, ...]) -> str:
        """Which part, what the maps say of it, and how far the distribution moves."""
        panel, said = self.panel, []
        metric = getattr(panel.results[0], "metric", "kl") if panel.results else "kl"
        effects = panel.effect_of(spec) or (float("nan"),) * len(found)
        for name, one, effect in zip(pair_view.names(panel), found, effects, strict=True):
            moved = ""
            if np.isfinite(effect) and metric != "kl":
                moved = f"{METRIC_NAMES[metric]} {'falls' if effect >= 0 else 'rises'} by {amount(abs(effect))}, "
            said.append(f"{name}{': ' if name else ''}{moved}KL {amount(one.kl)} nats")
        return f"{spec.describe(panel.texts.axis)} – {'; '.join(said)}"


def _rows(found: tuple[AblatedPrediction, ...]) -> list[list[Any]]:
    """The union of what the models list, those of the first model first."""
    ids = dict.fromkeys(token for one in found for token in one.ids)
    rows = []
    for token in ids:
        cells: list[Any] = []
        text = ""
        for one in found:
            if token not in one.ids:
                cells += [None, None, None]  # below the top of this model
                continue
            place = tuple(one.ids).index(token)
            text = visible(one.tokens[place])
            cells += [float(one.before[place]), float(one.after[place]), float(one.change[place])]
        rows.append([text, *cells])
    return rows
