"""The key/value cache of a bridge under the keyword of newer transformers."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from interp_widgets.models import bridge_cache, convert
from interp_widgets.models.engine.modules import cached_steps
from interp_widgets.models.network import Network
from tests.models.tiny import tiny_hf

NEWER = bridge_cache.NEW in inspect.signature(LlamaForCausalLM.forward).parameters
IDS = torch.tensor([[3, 1, 4, 1, 5]])


def renamed(module: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call as the layers of newer transformers make it."""
    return inputs, {"cache" if name == "past_key_values" else name: value for name, value in keywords.items()}


def error_of_steps(bridge: Any) -> float:
    """How far the logits of single steps are from those of one pass."""
    step = cached_steps(Network(bridge, name="", backend="bridge"))
    with torch.no_grad():
        steps = torch.cat([step(IDS[:, n : n + 1]) for n in range(IDS.shape[1])], dim=1)
        return float((steps - bridge(IDS)).abs().max())


@pytest.mark.seconds
@pytest.mark.skipif(NEWER, reason="this transformers passes it so itself, which the self-check of every bridge tests")
def test_attention_finds_the_cache_under_the_new_keyword(monkeypatch: pytest.MonkeyPatch) -> None:
    model = convert.prepare(tiny_hf("llama"), device=torch.device("cpu"), dtype=torch.float64)
    bridge = convert.to_bridge(model, processed=False, device=torch.device("cpu"), dtype=torch.float64)
    assert error_of_steps(bridge) < 1e-5
    for block in bridge.blocks:
        block.attn.register_forward_pre_hook(renamed, with_kwargs=True)
    assert error_of_steps(bridge) > 1e-2
    with monkeypatch.context() as newer:
        newer.setattr(bridge_cache, "cache_keyword", lambda hf_model: bridge_cache.NEW)
        bridge_cache.take_either_keyword(bridge)
    assert error_of_steps(bridge) < 1e-5
