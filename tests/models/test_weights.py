"""Weights have one orientation on both backends; hash and provenance identify what ran."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf

from interp_widgets.models import convert, load_model, weights
from interp_widgets.models.weights import ATTENTION, GLOBAL, MLP, NORMS
from tests.architectures.models import random_model
from tests.models.tiny import BRIDGE_ONLY, FAMILIES, tiny_folder, tiny_hf, tiny_model

IDS = [5, 17, 300, 44, 8]
SHAPES = {
    "W_E": "v d", "W_U": "d v", "b_U": "v", "W_Q": "h d e", "W_K": "h d e", "W_V": "h d e", "W_O": "h e d",
    "b_Q": "h e", "b_K": "h e", "b_V": "h e", "b_O": "d", "W_in": "d m", "W_gate": "d m", "W_out": "m d", "b_in": "m",
    "b_out": "d", "ln1_w": "d", "ln1_b": "d", "ln2_w": "d", "ln2_b": "d", "ln_final_w": "d", "ln_final_b": "d",
}  # fmt: skip


@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"])
@pytest.mark.parametrize("family", FAMILIES)
def test_shapes(family: str, backend: str) -> None:
    model = tiny_model(family, "bridge" if family in BRIDGE_ONLY else backend)
    size = {"v": model.d_vocab, "d": model.d_model, "h": model.n_heads, "e": model.d_head, "m": model.d_mlp}
    for name, axes in SHAPES.items():
        if name == "W_gate" and family in ("gpt2", "gpt_neox"):
            with pytest.raises(ValueError, match="MLP has no gate"):
                model.weight(name, 1)
            continue
        value = model.weight(name, None if name in GLOBAL else 1)
        assert tuple(value.shape) == tuple(size[axis] for axis in axes.split()), name
        assert not value.requires_grad


@pytest.mark.hooked
@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in BRIDGE_ONLY])
def test_both_backends_hold_the_same_weights(family: str, processed: bool) -> None:
    hooked, bridge = (tiny_model(family, backend, processed=processed) for backend in ("hooked", "bridge"))
    for name in GLOBAL + ATTENTION + MLP + NORMS:
        if (
            "_post_" in name
            or (name == "W_gate" and family in ("gpt2", "gpt_neox"))
            or (name == "W_pos" and family != "gpt2")
        ):
            continue
        layer = None if name in GLOBAL else 2
        torch.testing.assert_close(
            bridge.weight(name, layer), hooked.weight(name, layer), atol=1e-5, rtol=1e-5, msg=name
        )


CONVERTED = (
    "gpt2", "gpt_neo", "gptj", "gpt_neox", "opt", "bloom", "llama_attention_bias", "mixtral", "qwen2", "qwen3", "phi3",
)  # fmt: skip


@pytest.mark.hooked
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", CONVERTED)
def test_processing_block_by_block_gives_the_bits_of_transformer_lens(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformer_lens.weight_processing import ProcessWeights

    process = ProcessWeights.process_weights
    sizes: list[int] = []

    def counted(part: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        sizes.append(sum(value.numel() for value in part.values()))
        return process(part, *args, **kwargs)

    def at_once(model: Any, state: dict[str, torch.Tensor]) -> None:
        model.load_and_process_state_dict({name: value.clone() for name, value in state.items()})

    hf_model = random_model(name, dtype=dtype)
    before = {name: value.clone() for name, value in hf_model.state_dict().items()}

    def converted() -> dict[str, torch.Tensor]:
        state = convert.to_hooked(hf_model, processed=True, device=torch.device("cpu"), dtype=dtype).state_dict()
        if name == "bloom":
            del state["pos_embed.W_pos"]  # never filled, never read
        return dict(state)

    with monkeypatch.context() as patch:
        patch.setattr(ProcessWeights, "process_weights", counted)
        found = converted()
        assert len(sizes) == 1 + hf_model.config.num_hidden_layers
        assert max(sizes) < 0.8 * sum(sizes)  # never all weights at once
    monkeypatch.setattr(convert, "_load_processed", at_once)
    wanted = converted()
    raw = convert.to_hooked(hf_model, processed=False, device=torch.device("cpu"), dtype=dtype).state_dict()
    assert found.keys() == wanted.keys()
    assert not [key for key in wanted if not torch.equal(found[key], wanted[key])]
    assert [key for key in wanted if key in raw and not torch.equal(raw[key], wanted[key])]
    assert all(torch.equal(value, before[key]) for key, value in hf_model.state_dict().items())


@pytest.mark.parametrize("family", ["llama", "llama_bias", "gpt2"])
def test_weights_reproduce_the_values_at_the_hooks(family: str) -> None:
    """Queries, values and head outputs computed by hand from the weights equal what passes the hooks."""
    model = tiny_model(family, "bridge")
    names = [
        f"blocks.1.{n}" for n in ("ln1.hook_normalized", "attn.hook_q", "attn.hook_v", "attn.hook_z", "hook_attn_out")
    ]
    captured = model.run(IDS, capture=names).activations
    normed, query, value, z, out = (captured[name][0] for name in names)
    if family == "gpt2":
        norm = model.tl_model.blocks[1].ln1
        normed = normed * norm.weight + norm.bias
    else:
        normed = normed * model.tl_model.blocks[1].ln1.weight
    by_hand = torch.einsum("td,hde->the", normed, model.weight("W_Q", 1)) + model.weight("b_Q", 1)
    torch.testing.assert_close(query, by_hand, atol=1e-4, rtol=1e-4)
    by_hand = torch.einsum("td,hde->the", normed, model.weight("W_V", 1)) + model.weight("b_V", 1)
    repeat = model.n_heads // value.shape[1]
    torch.testing.assert_close(value.repeat_interleave(repeat, 1), by_hand, atol=1e-4, rtol=1e-4)
    by_hand = torch.einsum("the,hed->td", z, model.weight("W_O", 1)) + model.weight("b_O", 1)
    torch.testing.assert_close(out, by_hand, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"])
@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_norms_are_what_the_model_multiplies_by(family: str, processed: bool, backend: str) -> None:
    """Rows of ±1 are normed already, so that a norm gives its own scale and bias back."""
    model = tiny_model(family, "bridge" if family in BRIDGE_ONLY else backend, processed=processed)
    row = torch.ones(1, 1, model.d_model)
    row[..., 1::2] = -1
    layers = [("ln1", 1), ("ln2", 2), *([("ln1_post", 0), ("ln2_post", 1)] if family == "gemma2" else [])]
    for label, layer in [*layers, ("ln_final", None)]:
        norm = getattr(model.tl_model if layer is None else model.tl_model.blocks[layer], label)
        one, other = norm(row)[0, 0].detach(), norm(-row)[0, 0].detach()
        scale = model.weight(f"{label}_w", layer)
        torch.testing.assert_close(scale, (one - other) / 2 * row[0, 0], atol=2e-5, rtol=2e-5)
        assert not scale.requires_grad
        torch.testing.assert_close(model.weight(f"{label}_b", layer), (one + other) / 2, atol=2e-5, rtol=2e-5)
    if not processed:
        assert float((model.weight("ln1_w", 0) - 1).abs().max()) > 0.1
        assert bool(model.weight("ln1_b", 0).any()) == (family in ("gpt2", "gpt_neox"))


def test_errors() -> None:
    model = tiny_model("llama", "bridge")
    with pytest.raises(ValueError, match=r"layer must be in -3\.\.2 for this 3-layer model, got 9"):
        model.weight("W_Q", 9)
    with pytest.raises(ValueError, match=r"layer must be in -3\.\.2 for this 3-layer model, got None"):
        model.weight("W_Q")
    with pytest.raises(ValueError, match="W_E belongs to the whole model"):
        model.weight("W_E", 1)
    with pytest.raises(ValueError, match="name must be one of W_E, W_pos"):
        model.weight("W_X", 1)
    with pytest.raises(ValueError, match="no W_pos: its positions are rotary"):
        model.weight("W_pos")
    with pytest.raises(ValueError, match="no ln1_post_w: its blocks have no ln1_post"):
        model.weight("ln1_post_w", 0)
    with pytest.raises(ValueError, match="ln_final_w belongs to the whole model"):
        model.weight("ln_final_w", 0)


@pytest.mark.hooked
def test_a_model_without_mlps_says_so() -> None:
    from tests.models.test_engine import from_config

    with pytest.raises(ValueError, match="no W_out: its blocks are attention only"):
        from_config(attn_only=True).weight("W_out", 0)
    with pytest.raises(ValueError, match="no W_gate: its MLP has no gate"):
        from_config().weight("W_gate", 0)


@pytest.mark.seconds
def test_hash_follows_the_weights() -> None:
    one, same, other = load_model(tiny_hf("gpt2")), load_model(tiny_hf("gpt2")), load_model(tiny_hf("gpt2", seed=1))
    assert len(one.weight_hash) == 64
    assert one.weight_hash == same.weight_hash
    assert one.weight_hash != other.weight_hash
    bit = next(same.tl_model.parameters()).data
    bit[0, 0] += 1e-3
    assert load_model(same.tl_model).weight_hash != one.weight_hash
    assert tiny_model("gpt2", "bridge", dtype=torch.bfloat16).weight_hash != one.weight_hash


def test_provenance_is_plain_and_complete() -> None:
    found = tiny_model("llama", "bridge").provenance()
    assert found["model"] == tiny_folder("llama").name
    assert found["backend"] == "bridge"
    assert found["dtype"] == "float32"
    assert found["processed"] is False
    assert {"weight_hash", "device", "torch", "transformer_lens", "transformers", "interp_widgets"} <= found.keys()
    assert all(isinstance(value, str | int | float | bool) for value in found.values())


def test_free_memory_is_bytes() -> None:
    assert tiny_model("llama", "bridge").free_memory() > 2**20


def test_a_norm_that_adds_one_is_known_by_what_it_computes() -> None:
    """Qwen3-Next's RMSNorm multiplies by 1 + weight, which neither its name nor TransformerLens' configuration says."""
    config = tf.Qwen3NextConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, layer_types=["full_attention"] * 2, mlp_only_layers=[0, 1],
    )  # fmt: skip
    hf_model = tf.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in hf_model.named_parameters():
            if "norm" in name:
                parameter.normal_(0, 0.3)
    model = load_model(hf_model, backend="bridge")
    for label, layer in (("ln1", 0), ("ln2", 1), ("ln_final", None)):
        part = model.tl_model if layer is None else model.tl_model.blocks[layer]
        own = getattr(part, label).original_component
        torch.testing.assert_close(model.weight(f"{label}_w", layer), own.weight + 1, atol=0, rtol=0)
        torch.testing.assert_close(weights._measured_factor(own, own.weight), own.weight + 1, atol=1e-5, rtol=1e-5)
    with torch.no_grad():  # an edit is seen, also of a norm that was read before
        model.tl_model.blocks[0].ln1.original_component.weight.fill_(torch.nan)
    assert bool(model.weight("ln1_w", 0).isnan().all())


class _Squared(torch.nn.Module):
    """A norm that multiplies by the square of its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 2, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (8,)) * self.weight**2


def test_a_norm_of_another_kind_gives_what_it_multiplies_by() -> None:
    norm = _Squared()
    with torch.no_grad():
        torch.testing.assert_close(weights._norm_factor(norm, norm.weight), norm.weight**2, atol=1e-6, rtol=1e-6)
        norm.weight.fill_(torch.nan)
        assert bool(weights._norm_factor(norm, norm.weight).isnan().all())


@pytest.mark.parametrize("epsilon", [1e-5, 1.0, 1e8])
def test_the_epsilon_of_a_norm_is_not_in_its_factor(epsilon: float) -> None:
    norm = torch.nn.LayerNorm(8, eps=epsilon)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2, 8) * max(1.0, epsilon**0.5))
    stored = norm.weight.detach()
    torch.testing.assert_close(weights._norm_factor(norm, stored), stored, atol=0, rtol=0)
    torch.testing.assert_close(weights._measured_factor(norm, stored), stored, atol=0, rtol=1e-5)
