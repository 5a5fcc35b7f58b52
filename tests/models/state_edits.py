"""Every kind of edit of a model, for tests that must notice all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from interp_widgets.models import Model

Undo = Callable[[], object]


def _inside(module: nn.Module) -> Any:
    """transformers' module in a bridge's; TransformerLens' own as it is."""
    return getattr(module, "original_component", module)


def _mlp(model: Model) -> Any:
    return _inside(model.tl_model.blocks[1].mlp)


def _attention(model: Model) -> Any:
    return _inside(model.tl_model.blocks[1].attn)


def _norm(model: Model) -> Any:
    return _inside(model.tl_model.blocks[1].ln2)


def _owner(model: Model) -> tuple[nn.Module, str]:
    """A module of the second block's MLP and the name of its matrix."""
    for module in _mlp(model).modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == 2:
                return module, name
    raise ValueError("this MLP has no matrix")


def _matrix(model: Model) -> nn.Parameter:
    owner, name = _owner(model)
    return owner._parameters[name]  # type: ignore[return-value]


def _put_back(model: Model) -> Undo:
    parameter, before = _matrix(model), _matrix(model).detach().clone()

    def undo() -> None:
        with torch.no_grad():
            parameter.copy_(before)

    return undo


def in_place(model: Model) -> Undo:
    undo = _put_back(model)
    with torch.no_grad():
        _matrix(model).add_(0.01)
    return undo


def data_assigned(model: Model) -> Undo:
    parameter, before = _matrix(model), _matrix(model).data
    parameter.data = before + 0.02

    def undo() -> None:
        parameter.data = before

    return undo


def data_copied(model: Model) -> Undo:
    undo = _put_back(model)
    _matrix(model).data.copy_(_matrix(model).data * 1.5)
    return undo


def numpy_element(model: Model) -> Undo:
    undo = _put_back(model)
    _matrix(model).detach().numpy()[3, 5] += 1
    return undo


def rows_swapped(model: Model) -> Undo:
    undo = _put_back(model)
    matrix = _matrix(model).detach().numpy()
    matrix[[0, 1]] = matrix[[1, 0]]
    return undo


def copied(model: Model) -> Undo:
    undo = _put_back(model)
    with torch.no_grad():
        _matrix(model).copy_(torch.zeros_like(_matrix(model)))
    return undo


def parameter_replaced(model: Model) -> Undo:
    (owner, name), before = _owner(model), _matrix(model)
    setattr(owner, name, nn.Parameter(before.detach() * 2))
    return lambda: setattr(owner, name, before)


def state_loaded(model: Model) -> Undo:
    undo, (owner, name) = _put_back(model), _owner(model)
    owner.load_state_dict({**owner.state_dict(), name: _matrix(model).detach() + 1})
    return undo


def dtype_changed(model: Model) -> Undo:
    nn.Module.to(model.tl_model, torch.float64)
    return lambda: nn.Module.to(model.tl_model, torch.float32)


def tied(model: Model) -> Undo:
    """One tensor in two places: the values of one of them are others than before."""
    first, second = (_inside(block.ln2) for block in model.tl_model.blocks[:2])
    name = next(iter(first._parameters))
    before = second._parameters[name]
    setattr(second, name, first._parameters[name])
    return lambda: setattr(second, name, before)


def module_replaced(model: Model) -> Undo:
    held = _mlp(model)._modules if "act_fn" in _mlp(model)._modules else model.tl_model.blocks[1]._modules
    name = "act_fn" if "act_fn" in held else "ln2"
    before = held[name]
    held[name] = nn.Identity()
    return lambda: held.__setitem__(name, before)


def act_fn_replaced(model: Model) -> Undo:
    mlp, before = _mlp(model), _mlp(model).act_fn
    mlp.act_fn = nn.ReLU() if isinstance(before, nn.Module) else torch.nn.functional.relu
    return lambda: setattr(mlp, "act_fn", before)


def forward_replaced(model: Model) -> Undo:
    mlp, before = _mlp(model), _mlp(model).forward
    mlp.forward = lambda x: 0.5 * before(x)
    return lambda: delattr(mlp, "forward")


def forward_of_the_class_replaced(model: Model) -> Undo:
    kind, before = type(_mlp(model)), type(_mlp(model)).forward
    kind.forward = lambda self, x: 0.5 * before(self, x)
    return lambda: setattr(kind, "forward", before)


def buffer_edited(model: Model) -> Undo:
    name = "rotary_sin" if model.backend == "hooked" else "inv_freq"
    table = next(value for key, value in model.tl_model.named_buffers() if key.endswith(name))
    before = table.clone()
    table.numpy()[1:] *= 2
    return lambda: table.copy_(before)


def hook_added(model: Model) -> Undo:
    model.tl_model.add_hook("blocks.1.hook_resid_pre", lambda value, hook: value * 1.5)
    return model.tl_model.reset_hooks


def torch_hook_added(model: Model) -> Undo:
    return model.tl_model.blocks[1].register_forward_hook(lambda module, inputs, output: None).remove


def torch_pre_hook_added(model: Model) -> Undo:
    return model.tl_model.blocks[1].register_forward_pre_hook(lambda module, inputs: None).remove


def backward_hook_added(model: Model) -> Undo:
    return model.tl_model.blocks[1].register_full_backward_hook(lambda module, inner, outer: None).remove


def hook_added_everywhere(model: Model) -> Undo:
    return nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None).remove


def scale_changed(model: Model) -> Undo:
    attention = _attention(model)
    name = "attn_scale" if hasattr(attention, "attn_scale") else "scaling"
    before = getattr(attention, name)
    setattr(attention, name, before * 2)
    return lambda: setattr(attention, name, before)


def eps_changed(model: Model) -> Undo:
    norm = _norm(model)
    name = "eps" if hasattr(norm, "eps") else "variance_epsilon"
    before = getattr(norm, name)
    setattr(norm, name, 0.1)
    return lambda: setattr(norm, name, before)


def config_changed(model: Model) -> Undo:
    config = model.tl_model.cfg
    before = config.attn_scale
    config.attn_scale = 3.0
    return lambda: setattr(config, "attn_scale", before)


def inner_config_changed(model: Model) -> Undo:
    """A list or a table within a configuration."""
    config = model.tl_model.cfg if model.backend == "hooked" else model.tl_model.original_model.config
    name = "rotary_adjacent_pairs" if model.backend == "hooked" else "rope_parameters"
    before = getattr(config, name)
    if isinstance(before, dict):
        kept = dict(before)
        before["rope_theta"] = 77.0
        return lambda: before.update(kept)
    setattr(config, name, not before)
    return lambda: setattr(config, name, before)


WEIGHTS: tuple[Callable[[Model], Undo], ...] = (
    in_place, data_assigned, data_copied, numpy_element, rows_swapped, copied, parameter_replaced, state_loaded,
    dtype_changed, tied,
)  # fmt: skip
"""Edits of parameters: `weight_hash` moves."""

OTHERS: tuple[Callable[[Model], Undo], ...] = (
    module_replaced, act_fn_replaced, forward_replaced, forward_of_the_class_replaced, buffer_edited, hook_added,
    torch_hook_added, torch_pre_hook_added, backward_hook_added, hook_added_everywhere, scale_changed, eps_changed,
    config_changed, inner_config_changed,
)  # fmt: skip
"""Edits of everything else: the provenance says "edited"."""

EDITS = WEIGHTS + OTHERS


@contextmanager
def edited(model: Model, edit: Callable[[Model], Undo]) -> Iterator[None]:
    """Inside, the model is edited."""
    undo = edit(model)
    try:
        yield
    finally:
        undo()


def untouched(model: Model) -> list[Callable[[], object]]:
    """What leaves a model as it is."""
    matrix = _matrix(model)

    def same_values() -> Tensor:
        with torch.no_grad():
            return matrix.copy_(matrix.clone())

    return [lambda: matrix.requires_grad_(not matrix.requires_grad), same_values, lambda: matrix.data.mul_(1.0)]
