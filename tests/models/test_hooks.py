"""`Model.run`: names are checked, hooks are always removed, other people's hooks and the weights stay as they were."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

from interp_widgets.models import Model, load_model
from interp_widgets.models.engine import can_pack, read_values
from interp_widgets.models.hooks import has_hooks, modules_of
from tests.architectures.matrix import loaded
from tests.models.tiny import tiny_folder, tiny_model

IDS = [5, 17, 300, 44, 8]
BACKENDS = [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"]


@pytest.fixture(params=BACKENDS)
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    """A shared model; the test must leave no hook behind."""
    model = tiny_model("llama", request.param)
    yield model
    assert count_hooks(model) == 0


def count_hooks(model: Model) -> int:
    """Hooks on every hook point: TransformerLens's own list and PyTorch's, which must agree."""
    points = {id(point): point for point in model.tl_model.hook_dict.values()}.values()
    listed = sum(len(point.fwd_hooks) + len(point.bwd_hooks) for point in points)
    assert sum(len(point._forward_hooks) + len(point._backward_hooks) for point in points) == listed
    return listed


def target(logits: Tensor) -> Tensor:
    return logits[:, -1].log_softmax(-1)[:, 7].sum()


def test_the_leak_count_can_fail(model: Model) -> None:
    point = model.tl_model.hook_dict["blocks.0.hook_attn_out"]
    point.add_hook(lambda value, hook: value)
    assert count_hooks(model) == 1
    point.remove_hooks()


def test_exception_in_an_edit_leaves_no_hook(model: Model) -> None:
    before = model.run(IDS).logits

    def broken(value: Tensor) -> Tensor:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        model.run(IDS, edit={"blocks.1.hook_mlp_out": broken}, capture=["blocks.0.hook_resid_pre"], grad=target)
    assert count_hooks(model) == 0
    assert torch.equal(model.run(IDS).logits, before)
    assert all(parameter.requires_grad for parameter in model.tl_model.parameters())


def test_exception_in_the_objective_leaves_no_hook(model: Model) -> None:
    with pytest.raises(IndexError):
        model.run(IDS, capture="hook_embed", grad=lambda logits: logits[:, 99].sum())
    assert count_hooks(model) == 0


def test_unknown_name_suggests_the_near_ones(model: Model) -> None:
    with pytest.raises(ValueError, match=r"no hook 'blocks.0.hook_resid_pree'; did you mean blocks\.0\.hook_resid_pre"):
        model.run(IDS, capture="blocks.0.hook_resid_pree")
    with pytest.raises(ValueError, match=r"layer must be in 0\.\.2 for this 3-layer model, got 9"):
        model.run(IDS, edit={"blocks.9.hook_resid_pre": lambda value: value})
    with pytest.raises(ValueError, match="hook_names"):
        model.run(IDS, capture="zzzzzz")
    with pytest.raises(TypeError, match="hook name must be a str"):
        model.run(IDS, capture=[3])  # type: ignore[list-item]


def test_edit_must_keep_the_shape(model: Model) -> None:
    with pytest.raises(ValueError, match=r"must return a tensor of shape \(1, 5, 32\), got \(1, 4, 32\)"):
        model.run(IDS, edit={"blocks.1.hook_resid_pre": lambda value: value[:, 1:]})
    with pytest.raises(ValueError, match="got NoneType"):
        model.run(IDS, edit={"blocks.1.hook_resid_pre": lambda value: None})  # type: ignore[dict-item,return-value]


def test_edit_is_applied_once(model: Model) -> None:
    """The bridge's own hook context calls a function once per alias of a name, which would double an edit."""
    calls = []

    def add_one(value: Tensor) -> Tensor:
        calls.append(1)
        return value + 1

    name = "blocks.1.hook_resid_pre"
    plain = model.run(IDS, capture=name).activations[name]
    edited = model.run(IDS, capture=name, edit={name: add_one}).activations[name]
    assert len(calls) == 1
    torch.testing.assert_close(edited, plain + 1)


def test_objective_must_be_one_number(model: Model) -> None:
    with pytest.raises(ValueError, match="grad must return one number"):
        model.run(IDS, capture="hook_embed", grad=lambda logits: logits)


def test_gradients_touch_no_parameter(model: Model) -> None:
    run = model.run(IDS, capture=["hook_embed", "blocks.1.hook_resid_mid"], grad=target)
    assert run.gradients.keys() == {"hook_embed", "blocks.1.hook_resid_mid"}
    assert not run.logits.requires_grad
    assert not run.activations["hook_embed"].requires_grad
    for parameter in model.tl_model.parameters():
        assert parameter.grad is None
        assert parameter.requires_grad


@pytest.mark.parametrize("site", ["attn", "mlp"])
def test_gradients_reach_scaled_outputs(site: str) -> None:
    """Granite: the bridge shows a copy of what attention and the MLP write, times the multiplier of the stream."""
    model, name = loaded("granite", "bridge"), f"blocks.0.hook_{site}_out"
    run = model.run([5, 17, 30], capture=[name], grad=target)
    step = 1e-4 * torch.randn(run.gradients[name].shape, generator=torch.Generator().manual_seed(0)).double()
    up, down = (
        target(model.run([5, 17, 30], edit={name: lambda value, sign=sign: value + sign * step}).logits)
        for sign in (1, -1)
    )
    slope = float((run.gradients[name] * step).sum())
    assert slope == pytest.approx(float(up - down) / 2, rel=0.02)
    assert abs(slope) > 1e-6
    assert count_hooks(model) == 0


def test_gradient_is_zero_where_nothing_flows(model: Model) -> None:
    """Positive control of the above: the last position's edit cannot reach earlier logits."""
    name = "blocks.1.hook_resid_pre"
    run = model.run(IDS, capture=name, grad=lambda logits: logits[:, 2].log_softmax(-1)[:, 7].sum())
    assert float(run.gradients[name][:, 3:].abs().max()) == 0
    assert float(run.gradients[name][:, :3].abs().max()) > 0


def test_batches_and_tensors(model: Model) -> None:
    one, two = model.run(IDS).logits, model.run([IDS, [*IDS[:-1], 9]]).logits
    assert two.shape == (2, len(IDS), model.d_vocab)
    torch.testing.assert_close(two[:1], one, atol=1e-4, rtol=1e-4)
    assert torch.equal(model.run(torch.tensor(IDS)).logits, one)
    embeddings = model.token_embeddings(IDS)[None].repeat(3, 1, 1)
    assert model.run(IDS, embeddings=embeddings).logits.shape == (3, len(IDS), model.d_vocab)


def test_bad_ids(model: Model) -> None:
    with pytest.raises(ValueError, match="non-empty list of token ids"):
        model.run([])
    with pytest.raises(ValueError, match=r"token ids must be in 0\.\.459 for this vocabulary, got 460"):
        model.run([3, 460])
    with pytest.raises(ValueError, match="129 tokens do not fit the model's context of 128 tokens"):
        model.run([1] * 129)
    with pytest.raises(ValueError, match=r"embeddings must have shape \(batch, 5, 32\), got \(1, 4, 32\)"):
        model.run(IDS, embeddings=torch.zeros(4, 32))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("attn.hook_result", (1, 5, 4, 32)),
        ("hook_q_input", (1, 5, 4, 32)),
        ("hook_mlp_in", (1, 5, 32)),
    ],
)
def test_costly_hooks_are_switched_on_for_one_run(model: Model, name: str, shape: tuple[int, ...]) -> None:
    flags = ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in", "use_attn_in")
    run = model.run(IDS, capture=f"blocks.1.{name}")
    assert run.activations[f"blocks.1.{name}"].shape == shape
    assert not any(getattr(model.tl_model.cfg, flag) for flag in flags)


def test_head_results_sum_to_the_attention_output(model: Model) -> None:
    run = model.run(IDS, capture=["blocks.1.attn.hook_result", "blocks.1.hook_attn_out"])
    total = run.activations["blocks.1.attn.hook_result"].sum(2)  # this family has no output bias
    torch.testing.assert_close(total, run.activations["blocks.1.hook_attn_out"], atol=1e-4, rtol=1e-4)


def test_a_hook_that_does_not_fire_is_an_error() -> None:
    model = tiny_model("gpt_neox", "bridge")
    with pytest.raises(ValueError, match="exists but does not run"):
        model.run(IDS, capture="blocks.1.attn.hook_rot_q")
    with pytest.raises(ValueError, match="exists but does not run"):
        model.run(IDS, edit={"blocks.1.attn.hook_rot_q": lambda value: value})
    assert count_hooks(model) == 0


def test_hook_of_whole_numbers_has_no_gradient() -> None:
    with pytest.raises(ValueError, match="holds integers"):
        tiny_model("llama", "bridge").run(IDS, capture="embed.hook_in", grad=target)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_of_the_user_stay_in_force(backend: str) -> None:
    model = load_model(tiny_folder("llama"), backend=backend)
    plain = model.run(IDS).logits
    point = model.tl_model.hook_dict["blocks.1.hook_resid_pre"]

    def halve(value: Tensor, hook: Any) -> Tensor:
        return value / 2

    point.add_hook(halve, is_permanent=True)
    changed = model.run(IDS, capture="blocks.1.hook_resid_pre", edit={"blocks.1.hook_resid_pre": lambda v: v}).logits
    assert not torch.allclose(changed, plain, atol=1e-3)
    torch.testing.assert_close(changed, model.run(IDS, edit={"blocks.0.hook_resid_pre": lambda v: v}).logits)
    assert [handle.user_hook for handle in point.fwd_hooks] == [halve]


def test_frozen_puts_flags_back(model: Model) -> None:
    first = next(model.tl_model.parameters())
    first.requires_grad_(False)
    try:
        with model.frozen():
            assert not any(parameter.requires_grad for parameter in model.tl_model.parameters())
        with pytest.raises(ZeroDivisionError), model.frozen():
            1 / 0
        assert not first.requires_grad
        assert sum(parameter.requires_grad for parameter in model.tl_model.parameters()) > 5
    finally:
        first.requires_grad_(True)


def test_names_are_canonical_on_both_backends(model: Model) -> None:
    assert "blocks.0.hook_resid_pre" in model.hook_names
    assert "blocks.2.attn.hook_pattern" in model.hook_names
    assert not any(name.endswith((".hook_in", ".hook_out")) for name in model.hook_names)


def test_values_are_read_without_the_layers_behind_them(model: Model) -> None:
    attention = list(model.tl_model.blocks[2].attn.modules())
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(3)]
    ran: list[Any] = []
    handle = register_module_forward_pre_hook(lambda module, _: ran.append(module))  # not a hook of the user's
    read: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
    try:
        read_values(model, IDS, [(name, partial(read[0].__setitem__, name)) for name in names[:2]])
        assert not any(module is part for module in ran for part in attention)
        read_values(model, IDS, [(name, partial(read[1].__setitem__, name)) for name in names])
        assert any(module is part for module in ran for part in attention)
    finally:
        handle.remove()
    for name in names[:2]:
        torch.testing.assert_close(read[0][name], read[1][name], rtol=0, atol=0)


def test_what_transformers_leaves_on_a_model_is_no_hook_of_the_user() -> None:
    """It collects hidden states only while it is asked for them; the fast routes are not given up for it."""
    model = tiny_model("llama", "bridge", seed=5)
    before = model.run(IDS).logits
    model.tl_model.original_model(torch.tensor([IDS]), output_hidden_states=True, output_attentions=True)
    model.tl_model.run_with_cache(torch.tensor([IDS]))
    left = [hook for module in modules_of(model.tl_model) for hook in module._forward_hooks.values()]
    assert any(hook.__name__ == "output_capturing_hook" for hook in left)
    assert not has_hooks(model.tl_model)
    assert can_pack(model, len(IDS))
    assert torch.equal(model.run(IDS).logits, before)
