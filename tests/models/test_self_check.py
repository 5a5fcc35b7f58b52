"""The self-check fails when something is broken, and says which part: one broken model per part."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from interp_widgets.models import SelfCheckError, convert, load_model, transformerlens
from interp_widgets.models.self_check import SelfCheck, check_ids
from tests.models.tiny import tiny_folder, tiny_model

BACKENDS = [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"]


def load_broken(backend: str, place: str, hook: Callable[..., Tensor]) -> None:
    """Load a model again after a permanent hook of the user's has changed what it computes."""
    inner = load_model(tiny_folder("llama"), backend=backend).tl_model
    inner.hook_dict[place].add_hook(hook, is_permanent=True)
    load_model(inner)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_lost_gradient_is_found(backend: str) -> None:
    with pytest.raises(SelfCheckError, match=r"gradient differs from finite differences by [\d.]+ relative"):
        load_broken(backend, "blocks.1.hook_mlp_out", lambda value, hook: value.detach())


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_edit_without_effect_is_found(backend: str) -> None:
    with pytest.raises(SelfCheckError, match="must change the output changed it by 0"):
        load_broken(backend, "blocks.2.hook_resid_post", lambda value, hook: torch.ones_like(value))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_leak_to_earlier_positions_is_found(backend: str) -> None:
    with pytest.raises(SelfCheckError, match="changed the output where it must not"):
        load_broken(backend, "blocks.2.hook_resid_pre", lambda value, hook: value + value.mean(1, keepdim=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_weights_are_found(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = convert.to_hooked if backend == "hooked" else convert.to_bridge

    def wrong(hf_model: Any, **options: Any) -> Any:
        model = right(hf_model, **options)
        with torch.no_grad():
            list(model.parameters())[3].mul_(1.05)
        return model

    monkeypatch.setattr(convert, f"to_{backend}", wrong)
    with pytest.raises(SelfCheckError, match=r"log-probabilities differ from Hugging Face by [\d.]+ nats"):
        load_model(tiny_folder("llama"), backend=backend)


@pytest.mark.hooked
def test_auto_takes_the_bridge_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    right = convert.to_hooked

    def wrong(hf_model: Any, **options: Any) -> Any:
        model = right(hf_model, **options)
        weight = model.blocks[0].attn.W_Q
        weight.data = 1.5 * weight.data  # a new tensor: the old one is the transformers model's too
        return model

    monkeypatch.setattr(convert, "to_hooked", wrong)
    model = load_model(tiny_folder("llama"))
    assert model.backend == "bridge"
    assert "because as HookedTransformer log-probabilities differ from Hugging Face by" in model.self_check.summary()


@pytest.mark.hooked
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: not enough memory")]
)
def test_running_out_of_memory_is_not_taken_for_a_refusal(error: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(convert, "to_hooked", full)
    with pytest.raises(MemoryError, match=r"llama_0 does not fit .* of cpu: its weights take 0\.0 GB in float32, and"):
        load_model(tiny_folder("llama"), device="cpu")
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", full)
    with pytest.raises(MemoryError, match=r"llama_0 does not fit .*, and [\d.]+ GB were free: load it with dtype="):
        load_model(tiny_folder("llama"))


def test_without_hooked_transformer_the_bridge_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformerlens, "has_hooked_transformer", lambda: False)
    assert load_model(tiny_folder("gpt2")).backend == "bridge"
    with pytest.raises(ValueError, match="has no HookedTransformer: use backend='bridge'"):
        load_model(tiny_folder("gpt2"), backend="hooked")


def test_summary_is_one_line() -> None:
    check = tiny_model("llama", "bridge").self_check
    assert check.summary().startswith("self-check passed: Hugging Face ±")
    assert "\n" not in check.summary()
    with pytest.raises(dataclasses.FrozenInstanceError):
        check.logits = 0.0  # type: ignore[misc]


def test_nan_counts_as_a_fault_in_every_part() -> None:
    good = SelfCheck(1e-6, 1e-3, 1e-5, 1e-2, 1.0, 0.0, 1e-3)
    assert good.passed
    for part in ("logits", "gradient", "edit_effect", "edit_leak"):
        bad = dataclasses.replace(good, **{part: float("nan")})
        assert len(bad.faults) == 1
        assert bad.summary().startswith("self-check failed")


def test_prompts_are_fixed() -> None:
    assert torch.equal(check_ids(460, 128), check_ids(460, 128))
    assert check_ids(460, 128).shape == (3, 48)
    assert check_ids(460, 7).shape == (3, 7)


@pytest.mark.seconds
def test_a_model_that_is_sure_of_its_token_has_a_gradient_to_compare() -> None:
    """A wide random Gemma with tied embeddings gives its own last token a probability of 1, which rounding hides."""
    config = transformers.Gemma3TextConfig(
        vocab_size=61, hidden_size=288, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=48, max_position_embeddings=96, sliding_window=24, bos_token_id=None,
        eos_token_id=None, pad_token_id=None, layer_types=["sliding_attention", "full_attention"] * 2,
    )  # fmt: skip
    torch.manual_seed(0)
    hf_model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in hf_model.parameters():
            parameter.normal_(0, 0.25)
    ids = check_ids(61, 96)[:1]
    assert float(hf_model(ids).logits.detach()[0, -1].log_softmax(-1)[ids[0, -1]]) == 0
    check = load_model(hf_model, backend="bridge").self_check
    assert check.gradient is not None
    assert 0 < check.gradient < 5e-3
