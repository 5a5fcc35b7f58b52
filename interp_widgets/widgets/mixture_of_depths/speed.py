"""How fast a mixture writes with few routes per token, measured on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ipywidgets as W

from interp_widgets.analysis.mixture_of_depths import RoutingSpeed, routing_speed
from interp_widgets.compute.worker import Job

from ..base import pair_view
from ..base.controls import row
from ..views import Table

if TYPE_CHECKING:
    from .route import MixtureRouting

TOKENS = 24
"""Tokens written to take the time of."""
HEADS = (
    ("routes", "Routes per token; the last line is dense"),
    ("tokens/s", "Written tokens over the median time, the prompt included"),
    ("× dense", "Median of the dense time over this one's, text by text"),
    ("range", "Smallest and largest of these; far apart where other programs use the processor"),
    ("layers run", "Times that a layer ran, over layers times passes"),
    ("text", "Beside the dense text"),
)


class SpeedTable:
    """A button and the table it fills."""

    def __init__(self, panel: MixtureRouting) -> None:
        self.panel = panel
        self.button = panel.on_click(
            W.Button(description="Measure speed", tooltip="Take the time of writing with 1, 2, … k routes per token"),
            self.measure,
        )
        self.table = Table(empty="Not measured yet: press Measure speed", height=240)
        self.words = W.HTML("")
        self.words.add_class("iw-hint")
        self.box = W.VBox([row(self.button), self.table, self.words])

    def measure(self) -> None:
        """Take the times of the mixture that is looked at, in the background."""
        panel = self.panel
        panel.require("prompt")
        slot = pair_view.looked_at(panel)[-1]
        key, prompt, name = panel.key(slot), panel.prompt, panel.looked_at(slot).name

        def work(job: Job) -> RoutingSpeed:
            mixture = panel.model_of(slot, key)
            room = mixture.n_ctx - len(mixture.tokens(prompt))
            if room < 1:
                raise ValueError(f"the prompt fills the model's context of {mixture.n_ctx} tokens: shorten it")
            return routing_speed(
                mixture, prompt, max_new_tokens=min(TOKENS, room), progress=job.progress, check=job.check
            )  # fmt: skip

        title = name if len(panel.models) == 1 else f"{pair_view.LETTERS[slot]}: {name}"
        panel.jobs.start(work, lambda speed: self._fill(speed, title), title="Measuring", channel="speed")

    def _fill(self, speed: RoutingSpeed, title: str) -> None:
        rows = []
        ratios = speed.seconds[-1] / speed.seconds
        for index, count in enumerate(speed.top_k):
            text = speed.texts[index]
            dense = index == len(speed.top_k) - 1
            rows.append([
                count, f"{speed.tokens_per_second[index]:.1f}", f"{speed.speed_up[index]:.2f}",
                f"{ratios[index].min():.1f}–{ratios[index].max():.1f}", f"{speed.runs[index]:.0%}",
                "dense" if dense else "same" if text == speed.texts[-1] else "differs",
            ])  # fmt: skip
        with self.table.hold_sync():
            self.table.rows = []
            self.table.columns = [{"label": name, "title": tip, "align": "right"} for name, tip in HEADS]
            self.table.rows = rows
            self.table.caption = f"{title}: measured on this machine"
        self.words.value = (
            f"{speed.n_tokens} tokens, median of {speed.seconds.shape[1]} texts each."
            if speed.skips_layers
            else "No layers are skipped: the model's own modules write here, because of its backend or a hook on it."
        )
