"""Estimates of how long tuning and solving will take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from interp_widgets.analysis._core.cost import flops_per_token
from interp_widgets.compute.memory import speedometer
from interp_widgets.data.problems import demo_problems

if TYPE_CHECKING:
    from .mixtures import MixturePanel
    from .studies import StudyPanel

TUNING = ("MoDRoutingViewer", "tuning")
"""The speedometer's key for tunings."""
_SAMPLE = 16
_ANSWER = 12
"""Tokens of a typical answer; most are short."""
_SECONDS_PER_LAYER = 1e-3
"""Per generated token and layer: small models are bound by Python overhead, not arithmetic."""
_BUILD_SECONDS = 2.0


def tuning_flops(panel: MixturePanel, steps: int, k: int) -> float:
    """FLOPs of a tuning: forward and backward of every batch, and every route's unembedding."""
    model = panel.models[panel.slot]
    reading = 2.0 * model.d_model * model.d_vocab * (k + 1)
    return 3.0 * steps * panel.batch_size * example_tokens(panel) * (flops_per_token(model) + reading)


def example_tokens(panel: MixturePanel) -> float:
    """Tokens of a typical example."""
    examples: Any = panel.dataset
    if examples is None:
        examples = demo_problems("train", _SAMPLE, panel.seed)
    lengths = [_tokens(example) for example in list(examples)[:_SAMPLE]]
    return sum(lengths) / max(1, len(lengths))


def _tokens(example: Any) -> int:
    """Estimated tokens of an example, at four characters each."""
    if isinstance(example, tuple):
        text = "".join(map(str, example))
    elif isinstance(example, dict):
        text = str(example.get("prompt", "")) + str(example.get("response", ""))
    else:
        text = str(getattr(example, "prompt", "")) + str(getattr(example, "response", ""))
    return max(1, len(text) // 4)


def study_seconds(panel: StudyPanel, tunings: int, solvers: int, k: int) -> float:
    """Seconds for this many tunings, and for this many models to solve the held-out problems."""
    model = panel.models[panel.slot]
    tuning = speedometer.seconds(TUNING, str(model.device), tuning_flops(panel, panel.grid_steps, k), own_speed=True)
    solving = panel.n_problems * _ANSWER * model.n_layers * _SECONDS_PER_LAYER
    return tunings * (tuning + _BUILD_SECONDS) + solvers * solving
