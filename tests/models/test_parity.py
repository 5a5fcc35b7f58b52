"""Both backends compute what Hugging Face computes: logits, activations, edits, gradients and generated text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from interp_widgets.models import Model
from tests.models.tiny import BRIDGE_ONLY, FAMILIES, HALF_SEED, tiny_hf, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:A forward hook edited")

IDS = [5, 17, 300, 44, 8, 90, 210, 12]
HOOKED = [family for family in FAMILIES if family not in BRIDGE_ONLY]
CASES = [pytest.param(family, "hooked", marks=pytest.mark.hooked) for family in HOOKED] + [
    (family, "bridge") for family in FAMILIES
]


def hf_layers(hf: Any) -> Any:
    body = hf.base_model
    return body.h if hasattr(body, "h") else body.layers


def target(logits: Tensor) -> Tensor:
    return logits[:, -1].log_softmax(-1)[:, 7].sum()


def close(one: Tensor, other: Tensor, atol: float = 2e-4) -> None:
    torch.testing.assert_close(one, other, atol=atol, rtol=1e-4)


@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize(("family", "backend"), CASES)
def test_log_probabilities_equal_hugging_face(family: str, backend: str, processed: bool) -> None:
    model = tiny_model(family, backend, processed=processed)
    assert model.backend == backend
    assert model.processed is processed
    with torch.no_grad():
        expected = tiny_hf(family)(torch.tensor([IDS])).logits.log_softmax(-1)
    close(model.run(IDS).logits.log_softmax(-1), expected)
    assert model.self_check.passed
    assert model.self_check.logits is not None
    assert 0 < model.self_check.logits + 1e-12 < 1e-3


@pytest.mark.parametrize(("family", "backend"), CASES)
def test_residual_stream_equals_hugging_face(family: str, backend: str) -> None:
    model = tiny_model(family, backend)
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(model.n_layers)]
    run = model.run(IDS, capture=names)
    with torch.no_grad():
        states = tiny_hf(family)(torch.tensor([IDS]), output_hidden_states=True).hidden_states
    for layer, name in enumerate(names):
        assert run.activations[name].shape == (1, len(IDS), model.d_model)
        close(run.activations[name], states[layer])


@pytest.mark.parametrize(("family", "backend"), CASES)
def test_gradient_equals_hugging_face(family: str, backend: str) -> None:
    model, hf = tiny_model(family, backend), tiny_hf(family)
    embeddings = hf.get_input_embeddings()(torch.tensor([IDS])).detach().requires_grad_(True)
    target(hf(inputs_embeds=embeddings).logits).backward()
    run = model.run(IDS, capture="hook_embed", grad=target)
    close(run.activations["hook_embed"], embeddings.detach())
    assert embeddings.grad is not None
    scale = float(embeddings.grad.abs().max())
    torch.testing.assert_close(run.gradients["hook_embed"], embeddings.grad, atol=2e-4 * scale, rtol=1e-3)


@pytest.mark.parametrize(("family", "backend"), CASES)
def test_edit_equals_hugging_face(family: str, backend: str) -> None:
    model, hf = tiny_model(family, backend), tiny_hf(family)

    def zero_third(value: Tensor) -> Tensor:
        value = value.clone()
        value[:, 2] = 0
        return value

    def before(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (zero_third(inputs[0]), *inputs[1:])

    with torch.no_grad():
        plain = hf(torch.tensor([IDS])).logits.log_softmax(-1)
        hf_layers(hf)[1].register_forward_pre_hook(before)
        expected = hf(torch.tensor([IDS])).logits.log_softmax(-1)
    edited = model.run(IDS, edit={"blocks.1.hook_resid_pre": zero_third}).logits.log_softmax(-1)
    close(edited, expected)
    assert float((expected - plain).abs().max()) > 0.1  # the edit matters, so agreeing means something


@pytest.mark.parametrize(("family", "backend"), CASES)
def test_embeddings_replace_the_tokens(family: str, backend: str) -> None:
    model = tiny_model(family, backend)
    own = model.token_embeddings(IDS)
    assert own.shape == (len(IDS), model.d_model)
    close(model.run(IDS, embeddings=own).logits, model.run(IDS).logits, atol=1e-5)
    zeroed = own.clone()
    zeroed[3] = 0
    with torch.no_grad():
        expected = tiny_hf(family)(inputs_embeds=zeroed[None]).logits.log_softmax(-1)
    close(model.run(IDS, embeddings=zeroed).logits.log_softmax(-1), expected)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "gpt_neox"])  # its attention and MLP run in parallel
def test_edit_of_resid_mid_reaches_the_residual_sum(family: str) -> None:
    """On the bridge the hook itself lies on the MLP branch only; the stream after the block must hold the edit too."""
    model = tiny_model(family, "bridge")
    constant = torch.linspace(-1, 1, model.d_model).expand(1, len(IDS), model.d_model)
    run = model.run(
        IDS,
        edit={"blocks.1.hook_resid_mid": lambda value: constant},
        capture=["blocks.1.hook_resid_post", "blocks.1.hook_mlp_out", "blocks.1.hook_resid_mid"],
    )
    stream = run.activations["blocks.1.hook_resid_post"] - run.activations["blocks.1.hook_mlp_out"]
    close(stream, constant)
    close(run.activations["blocks.1.hook_resid_mid"], constant)


def without(model: Model, family: str) -> set[str]:
    """Hooks that one of the backends does not have for a family; both say so with an error (tested elsewhere)."""
    missing = {name for name in model.hook_names if name.endswith("hook_attn_in") and model.n_kv_heads != model.n_heads}
    if family == "gpt_neox":
        missing |= {name for name in model.hook_names if ".hook_rot_" in name}
    return missing


@pytest.mark.seconds
@pytest.mark.hooked
@pytest.mark.parametrize("family", HOOKED)
def test_every_hook_is_the_same_on_both_backends(family: str) -> None:
    hooked, bridge = tiny_model(family, "hooked"), tiny_model(family, "bridge")
    names = [name for name in hooked.hook_names if "blocks" not in name or ".1." in name]
    assert set(names) <= set(bridge.hook_names)
    noise = torch.Generator().manual_seed(1)
    for name in sorted(set(names) - without(hooked, family)):
        one, other = (model.run(IDS, capture=name, grad=target) for model in (hooked, bridge))
        value, gradient = one.activations[name], one.gradients[name]
        torch.testing.assert_close(other.activations[name], value, atol=2e-4, rtol=1e-3, msg=f"value of {name}")
        slack = 1e-3 * float(gradient.abs().max())
        torch.testing.assert_close(other.gradients[name], gradient, atol=slack, rtol=1e-3, msg=f"gradient of {name}")
        shift = 0.1 * torch.randn(value.shape, generator=noise)
        edit = {name: lambda x, shift=shift: 0.5 * x + shift}
        edited = [model.run(IDS, edit=edit).logits.log_softmax(-1) for model in (hooked, bridge)]
        torch.testing.assert_close(*edited, atol=1e-3, rtol=1e-3, msg=f"edit of {name}")
        assert not torch.allclose(edited[0], one.logits.log_softmax(-1), atol=1e-4), f"edit of {name} does nothing"


@pytest.mark.seconds
@pytest.mark.parametrize(("family", "backend"), [("gemma", "bridge"), ("llama", "bridge"), ("llama_bias", "bridge")])
def test_gradients_equal_finite_differences_of_edits(family: str, backend: str) -> None:
    """The two sides use different code: one differentiates a captured value, the other changes it by an edit."""
    model = tiny_model(family, backend)
    generator = torch.Generator().manual_seed(2)
    skip = {"blocks.1.attn.hook_attn_scores", "blocks.1.attn.hook_pattern"}
    for name in [n for n in model.hook_names if n.startswith("blocks.1.") and n not in skip]:
        run = model.run(IDS, capture=name, grad=target)
        gradient = run.gradients[name]
        direction = gradient / (gradient.norm() + 1e-12) + 0.1 * torch.randn(gradient.shape, generator=generator)
        step = 1e-3
        shift = step * direction
        up = target(model.run(IDS, edit={name: lambda x, shift=shift: x + shift}).logits.double())
        down = target(model.run(IDS, edit={name: lambda x, shift=shift: x - shift}).logits.double())
        slope = float((up - down) / (2 * step))
        assert slope == pytest.approx(float((gradient * direction).sum()), rel=0.05, abs=0.02), name


@pytest.mark.parametrize(("family", "backend"), CASES)
def test_greedy_text_equals_a_loop_of_hugging_face(family: str, backend: str) -> None:
    model, hf = tiny_model(family, backend), tiny_hf(family)
    ids = list(IDS)
    with torch.no_grad():
        for _ in range(6):
            ids.append(int(hf(torch.tensor([ids])).logits[0, -1].argmax()))
    expected = ids[len(IDS) :]
    stops = [i for i, token in enumerate(expected) if token == model.eos_token_id]
    assert model.generate_ids(IDS, max_new_tokens=6) == expected[: stops[0] if stops else None]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"])
def test_float64_and_bfloat16(family: str, backend: str) -> None:
    wide = tiny_model(family, backend, dtype=torch.float64, seed=HALF_SEED)
    assert wide.dtype == torch.float64
    assert wide.run(IDS).logits.dtype == torch.float64
    assert wide.self_check.logits is not None
    # Hugging Face computes rotary tables and RMS norms in float32 whatever the model's type
    assert wide.self_check.logits < (1e-10 if family == "gpt2" else 1e-4)
    half = tiny_model(family, backend, dtype=torch.bfloat16, seed=HALF_SEED)
    assert half.dtype == torch.bfloat16
    assert half.self_check.passed
    assert half.self_check.gradient is None
    narrow = half.run(IDS).logits.float().log_softmax(-1)
    assert float((narrow - wide.run(IDS).logits.log_softmax(-1)).abs().max()) < 1.0
