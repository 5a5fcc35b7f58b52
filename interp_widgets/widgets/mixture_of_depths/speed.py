"""Generation speed of a mixture by the number of routes per token, measured on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from interp_widgets.analysis.mixture_of_depths import RoutingSpeed, routing_speed
from interp_widgets.models import Model

from ..probe import Prompt, TableView, probe
from .reading import PROMPT, MixtureQuestion, MixtureReading

TOKENS = 24
"""Tokens generated per timed text."""
REPEATS = 8
"""Texts generated per number of routes."""


class SpeedView(TableView):
    """A row per number of routes, the last one dense."""

    tips: ClassVar[Mapping[str, str]] = {
        "routes": "Routes per token; the last row is dense",
        "tokens/s": "Generated tokens divided by the (geometric) mean time, which includes reading the prompt",
        "× dense": "Speed-up: tokens/s relative to the dense row",
        "95% interval": "Of the speed-up, over the texts; wide if other programs use the processor",
        "compared with dense": "Cannot tell: the interval contains 1, no difference",
        "layers run": "Share of layers that ran, over all forward passes",
        "text": "Compared with the dense text",
    }
    written = ("tokens/s", "× dense", "95% interval", "layers run")

    def frame_of(self, result: RoutingSpeed) -> Any:
        import pandas as pd

        texts, dense = result.texts, len(result.texts) - 1
        verdicts = [
            "" if row == dense else "cannot tell" if not apart else "faster" if ratio > 1 else "slower"
            for row, (apart, ratio) in enumerate(zip(result.significant, result.speed_up, strict=True))
        ]
        cells = (
            result.top_k, [f"{speed:.1f}" for speed in result.tokens_per_second],
            [f"{ratio:.2f}" for ratio in result.speed_up],
            ["" if row == dense else f"{low:.2f} to {high:.2f}"
             for row, (low, high) in enumerate(result.speed_up_interval.T)],
            verdicts,
            [f"{share:.0%}" for share in result.runs],
            [*("same" if text == texts[-1] else "differs" for text in texts[:-1]), "dense"],
        )  # fmt: skip
        return pd.DataFrame(dict(zip(self.tips, cells, strict=True)))

    def caption(self, result: RoutingSpeed, letter: str) -> str:
        start = f"{letter}: " if len(self.tables) > 1 else ""
        how = (
            f"{result.n_tokens} tokens, mean of {result.seconds.shape[1]} texts each, in alternation"
            if result.skips_layers
            else "no layers are skipped, because the model's own modules run (its backend or a hook on it requires it)"
        )
        return f"{start}{self.panel.mixture_names['AB'.index(letter)]}, measured on this machine: {how}"


def speed(
    model: Model, prompt: Prompt = PROMPT, *, progress: Callable[[int, int], None], check: Callable[[], None]
) -> RoutingSpeed:
    """Generates the same number of tokens with 1, 2, … k routes per token and times each."""
    room = model.n_ctx - len(model.tokens(prompt))
    if room < 1:
        raise ValueError(f"the prompt fills the model's context of {model.n_ctx} tokens: shorten it")
    return routing_speed(
        model, prompt, max_new_tokens=min(TOKENS, room), repeats=REPEATS, progress=progress, check=check
    )


class MixtureSpeed(MixtureReading, probe(speed, view=SpeedView)):  # type: ignore[misc]
    """How fast the mixture generates the same number of tokens with 1, 2, … k routes per token: press Run."""

    manual_run, reuses = True, False

    def code(self, request: MixtureQuestion) -> str:
        return self.reading_cell(request, "routing_speed", max_new_tokens=TOKENS, repeats=REPEATS)
