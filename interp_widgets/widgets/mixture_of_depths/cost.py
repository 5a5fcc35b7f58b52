"""How much a tuning computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from interp_widgets.analysis._core.cost import flops_per_token
from interp_widgets.data.problems import demo_problems

if TYPE_CHECKING:
    from .mixtures import MixturePanel

TUNING = ("MoDRoutingViewer", "tuning")
"""The speedometer's key for tunings."""
_SAMPLE = 16


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
