"""A verdict beside the saliency map: its agreement with the exact one, and whether it beats random orders."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

import ipywidgets as W

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.saliency import (
    FaithfulnessResult,
    SaliencyResult,
    faithfulness,
    prompt_saliency,
    rank_agreement,
    saliency_cost,
)
from interp_widgets.analysis.saliency.faithfulness import faithfulness_passes, usual_orders
from interp_widgets.figures.labels import fixed
from interp_widgets.models import Model

from ...compute.memory import speedometer
from ...compute.worker import Job
from ..base import pair_view
from ..base.answers import device_of
from ..base.controls import row, shown_if
from ..base.jobs import Derived
from .attribution import METHOD_LABELS, own_baseline
from .rows import LONG

ORDERS = 19
"""Random orders that the map of a prompt that is not short is compared with: the fewest that can reach p = 0.05."""
SATURATED = (
    "This map cannot rank its tokens.",
    (
        "Most tokens of the prompt are each worth the whole probability of a response token, so that this map cannot "
        "rank them: the logit difference to another token, as target, can."
    ),
)
"""A remark on a map, in short and in full."""
SINK = (
    "Its first token carries the attention sink.",
    (
        "The first token of the prompt carries the model's attention sink, which the others rely on, so that its value "
        "says little about the word."
    ),
)
KIND = "check of a saliency map"
"""The speedometer's key for checks."""
ORDINARY = 5e10
"""FLOPs per second of a thread of an ordinary processor."""
QUICK_SECONDS = 10.0
"""Seconds: a map is checked automatically if that is forecast to take no longer."""
WELL, PARTLY = 0.7, 0.4
"""Rank correlations with exact above which a map agrees well, and partly."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on one map."""

    method: str
    agreement: float | None
    """Mean rank correlation with exact; None for the exact map, NaN where no response token has one."""
    faithful: FaithfulnessResult

    @property
    def brief(self) -> str:
        """The verdict without its numbers."""
        closeness = "" if self.agreement is None else f"agrees {self._agrees} with exact and "
        return f"This map {closeness}is {self.faithful.verdict.partition(' (')[0]}."

    @property
    def sentences(self) -> str:
        """The verdict in full."""
        name = METHOD_LABELS[self.method].capitalize()
        order = f"is {self.faithful.verdict}"
        if self.agreement is None:
            return f"{name} {order}."
        closeness = f"{self._agrees} with exact here (rank correlation {_signed(self.agreement)})"
        return f"{name} agrees {closeness}. It {order}."

    @property
    def _agrees(self) -> str:
        """How well it agrees with the exact map."""
        agreement = self.agreement or 0.0
        return "well" if agreement >= WELL else "partly" if agreement >= PARTLY else "poorly"


def judge(
    model: Model,
    result: SaliencyResult,
    *,
    baseline: str,
    draws: int,
    seed: int,
    progress: Callable[[int, int], None],
    check: Callable[[], None],
) -> Verdict:
    """Compare a map of single tokens with the exact one and with random orders, all with one baseline."""
    reports: dict[str, Any] = {"progress": progress, "check": check}
    by: dict[str, Any] = {"baseline": baseline, "draws": draws, "seed": seed}
    agreement = None
    if result.method != "exact":
        front = [] if result.bos_id is None else [result.bos_id]
        exact = prompt_saliency(
            model, [*front, *result.prompt_ids], list(result.response_ids),
            target=result.target, foil=result.foil, **by, **reports,  # type: ignore[arg-type]
        )  # fmt: skip
        agreement = rank_agreement(result, exact).mean
    orders = usual_orders(len(result.prompt_ids), ORDERS)
    faithful = faithfulness(model, result, steps=1, random_orders=orders, **by, **reports)
    return Verdict(result.method, agreement, faithful)


def judging_cost(model: Model, result: SaliencyResult, draws: int) -> Cost:
    """FLOPs and bytes of `judge`."""
    count = len(result.prompt_ids)
    exact = saliency_cost(model, count, len(result.response_ids), "exact", draws=draws)
    orders = faithfulness_passes(count, steps=1, orders=usual_orders(count, ORDERS))
    passes = orders / (count / 2)  # a pass of exact reads half of the prompt on average
    return Cost(exact.flops * (passes + (result.method != "exact")), exact.bytes)


class VerdictLine:
    """The verdict on the maps on the screen: a line that unfolds, with a button that opens the full check.

    It is computed in the background if the prompt is short and the check quick.
    """

    def __init__(self, panel: Any) -> None:
        self._panel = panel
        self.text = W.HTML("")
        for style in ("iw-hint", "iw-grow"):
            self.text.add_class(style)
        self.button = W.Button(description="Check", tooltip="Compare every method with exact and with random orders")
        panel.on_click(self.button, lambda: panel.stack.open_tab("check"))
        self.box = row(self.text, self.button)
        shown_if(self.box, False)
        self._judging = Derived(
            panel, self._judged, title="Checking the map", channel="verdict", quiet=True, preemptible=True
        )

    def ask(self, results: tuple[SaliencyResult, ...]) -> None:
        """Start judging the maps, unless they are partial or it would take long, and show the current state."""
        panel = self._panel
        shown_if(self.box, True)
        shown_if(self.button, panel.stack is not None)
        if self._wanted(results):
            self._judging.ask(self._key(), partial(self._work, results, *own_baseline(panel), panel.random_seed))
        self._say()

    def _wanted(self, results: tuple[SaliencyResult, ...]) -> bool:
        if any(result.partial or result.spans is not None for result in results):
            return False
        if len(results) < len(self._panel.models) or len(results[0].prompt_ids) > LONG:
            return False
        _, draws = own_baseline(self._panel)
        pairs = zip(self._panel.models, results, strict=True)
        return sum(_seconds(model, judging_cost(model, result, draws)) for model, result in pairs) <= QUICK_SECONDS

    def _key(self) -> Hashable:
        """The key of the verdicts: the maps on the screen."""
        return tuple(map(id, self._panel.results)), own_baseline(self._panel), self._panel.random_seed

    def _work(
        self, results: tuple[SaliencyResult, ...], baseline: str, draws: int, seed: int, job: Job
    ) -> tuple[Verdict, ...]:
        reports: dict[str, Any] = {"progress": lambda done, total: job.give_way(), "check": job.check}
        verdicts = []
        for model, result in zip(self._panel.models, results, strict=True):
            began = time.monotonic() - job.yielded_seconds
            verdicts.append(judge(model, result, baseline=baseline, draws=draws, seed=seed, **reports))
            flops = judging_cost(model, result, draws).flops
            speedometer.learn(KIND, device_of(model), flops, time.monotonic() - job.yielded_seconds - began)
        return tuple(verdicts)

    def _verdicts(self) -> tuple[Verdict, ...]:
        return self._judging.of(self._key()) or ()

    def _judged(self) -> None:
        if self._panel.results:
            self._say()

    def _say(self) -> None:
        verdicts, results = self._verdicts(), self._panel.results
        lines = [  # each in short and in full
            (start + brief, start + full)
            for start, result in zip(pair_view.all_starts(results), results, strict=True)
            for (brief, full), holds in ((SATURATED, result.saturated.any()), (SINK, result.sink))
            if holds
        ]
        if verdicts:
            starts, alike = pair_view.all_starts(verdicts), len({one.brief for one in verdicts}) == 1
            lines += [
                ("" if alike and at else ("" if alike else start) + one.brief, start + one.sentences)
                for at, (start, one) in enumerate(zip(starts, verdicts, strict=True))
            ]
        else:
            lines.append((self._unchecked(), self._unchecked()))
        brief, full = (escape(" ".join(filter(None, parts))) for parts in zip(*lines, strict=True))
        self.text.value = brief if brief == full else f"<details><summary>{brief}</summary>{full}</details>"

    def _unchecked(self) -> str:
        """Why there is no verdict."""
        if any(result.spans is not None for result in self._panel.results):
            return "The check needs a map of all single tokens of the prompt, which this is not."
        if self._panel.jobs.runs("verdict"):
            return "Checking whether this map can be trusted…"
        return "This map has not been checked."


def _seconds(model: Model, cost: Cost) -> float:
    """Expected seconds of a check, from earlier ones; for the first, those of an ordinary processor."""
    device = device_of(model)
    if not speedometer.knows(KIND, device):
        return float(cost.flops) / ORDINARY
    return speedometer.forecast(KIND, device, cost).seconds


def _signed(number: float) -> str:
    return "none" if number != number else fixed(number, 2)
