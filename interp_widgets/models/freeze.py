"""Reading one pass of a model so that everything that is not linear in it can be held fixed.

Patterns, scales and slopes are read at hooks during the model's own pass, so that this works on both backends, and for
a model that the user's hooks change at these places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from .frozen import FrozenLayer, FrozenNorm, rounded_gain, rounds_norms
from .frozen_pass import FrozenPass
from .hooks import check_hook_names
from .readout import drop_pattern, run_blocks
from .ways import has_hooks

__all__ = ["Slope", "freeze"]

Slope = Literal["secant", "step"]
"""How an activation is made linear: ``secant`` act(z)/z, which adds up; ``step`` 1 where z > 0, which does not."""


@torch.no_grad()
def freeze(model: Any, ids: Sequence[int], last: int, *, slope: Slope = "secant") -> FrozenPass:
    """Run the model once and freeze it up to position ``last`` (n = last + 1 positions).

    No logits are made. While the user has hooks on the model the whole sequence runs, so that they see what they would
    always see.

    Args:
        model: a `Model`.
        ids: token ids of the sequence.
        last: the position looked at.
        slope: a `Slope`.

    Raises:
        ValueError: an unknown slope, or a model without the hooks that this needs.
    """
    if slope not in get_args(Slope):
        raise ValueError(f"slope must be one of {', '.join(map(repr, get_args(Slope)))}, got {slope!r}")
    hooked = has_hooks(model.tl_model)
    batch = model._batch(ids if hooked else ids[: last + 1])
    n, layers = last + 1, model.n_layers
    kind = torch.float64 if model.dtype == torch.float64 else torch.float32
    readers = [_Reader(model, index, n, slope, kind) for index in range(layers)]
    residual = torch.empty(layers + 1, model.d_model, dtype=kind, device=model.device)
    start: list[Tensor] = []

    def keep(layer: int) -> Callable[..., Tensor]:
        def write(value: Tensor, hook: Any) -> Tensor:
            residual[layer] = value[0, last]
            if layer == 0:
                start[:] = [value[0, :n].to(kind, copy=True)]
            else:
                drop_pattern(model.tl_model.blocks[layer - 1])
            return value

        return write

    hooks = [hook for reader in readers for hook in reader.hooks()]
    hooks += [(f"blocks.{layer}.hook_resid_pre", keep(layer)) for layer in range(layers)]
    hooks.append((f"blocks.{layers - 1}.hook_resid_post", keep(layers)))
    check_hook_names(model.tl_model, [name for name, _ in hooks])
    run_blocks(model, batch, hooks)
    return FrozenPass(tuple(reader.layer() for reader in readers), start[0], residual)


class _Reader:
    """Hooks that collect what one layer's map needs."""

    def __init__(self, model: Any, index: int, n: int, slope: Slope, kind: torch.dtype) -> None:
        self.model, self.index, self.n, self.kind = model, index, n, kind
        self.rule: Slope = slope
        self.found: dict[str, Tensor] = {}
        known = model.tl_model.hook_dict
        place = f"blocks.{index}."
        self.has_mlp = f"{place}mlp.hook_post" in known
        self.gated = f"{place}mlp.hook_pre_linear" in known
        self.norms = [name for name in ("ln1", "ln2", "ln1_post", "ln2_post") if f"{place}{name}.hook_scale" in known]
        self.rounded = rounds_norms(model)

    def hooks(self) -> list[tuple[str, Callable[..., Tensor]]]:
        names = [f"{norm}.hook_scale" for norm in self.norms] + ["attn.hook_pattern"]
        if self.has_mlp:
            names += ["mlp.hook_pre", "mlp.hook_post", *(["mlp.hook_pre_linear"] if self.gated else [])]
        if self.rounded:
            names += [f"{norm}.{end}" for norm in self.norms for end in ("hook_in", "hook_out")]
        return [(f"blocks.{self.index}.{name}", self._listen(name)) for name in names]

    def _listen(self, name: str) -> Callable[..., Tensor]:
        def keep(value: Tensor, hook: Any) -> Tensor:
            shown = value[0, :, : self.n, : self.n] if name == "attn.hook_pattern" else value[0, : self.n]
            if name.endswith("hook_scale") and shown.ndim == 3:  # one copy per head, where the user split the inputs
                shown = shown[:, 0]
            if name == "mlp.hook_post":
                self.found["slope"] = self._slope(shown)
            elif name.endswith("hook_out"):
                label = name.removesuffix(".hook_out")
                self.found[f"{label}.factor"] = self._factor(label, self.found.pop(f"{label}.hook_in"), shown)
            else:
                self.found[name] = shown.detach().clone()
            return value

        return keep

    def _slope(self, post: Tensor) -> Tensor:
        """(n, d_mlp) what each neuron's input is multiplied by."""
        pre = self.found.pop("mlp.hook_pre").to(self.kind)
        value = post.detach().to(self.kind, copy=True)  # becomes the slope
        if not self.gated:
            if self.rule == "step":
                return (pre > 0).to(self.kind)
            return _ratio(value, pre, lambda z: _slope_at_zero(self.model, self.index, z))
        linear = self.found.pop("mlp.hook_pre_linear").to(self.kind)
        if self.rule == "step":
            return pre * (pre > 0)
        if self.bias_outside:
            value -= self.model.weight("b_in", self.index).to(self.kind)
        act = _activation(self.model, self.index)
        return _ratio(value, linear, lambda z: act(pre[z]))

    @property
    def bias_outside(self) -> bool:
        # HookedTransformer adds b_in to the product of gate and linear branch, transformers to the linear branch
        return self.gated and self.model.backend == "hooked"

    def _factor(self, label: str, before: Tensor, after: Tensor) -> Tensor:
        """(n, d_model) output over input of an RMSNorm."""
        weight = self.model.weight(f"{label}_w", self.index).to(self.kind)
        exact = weight / self.found[f"{label}.hook_scale"].to(self.kind)
        return rounded_gain(exact, before, after.to(self.kind))

    def _norm(self, label: str) -> FrozenNorm | None:
        if label not in self.norms:
            return None
        weight, shift = (self.model.weight(f"{label}_{kind}", self.index).to(self.kind) for kind in "wb")
        scale = self.found.pop(f"{label}.hook_scale").to(self.kind)
        factor = self.found.pop(f"{label}.factor", None)
        return FrozenNorm(scale, weight, shift, self.model.normalization == "LayerNorm", factor)

    def layer(self) -> FrozenLayer:
        norm1 = self._norm("ln1")
        if norm1 is None or "attn.hook_pattern" not in self.found:
            missing = "attention pattern" if norm1 is not None else "norm before attention"
            raise ValueError(
                f"layer {self.index} of {self.model.name} shows no {missing} at its hooks, so that its attention "
                "cannot be frozen: use a model with ordinary attention blocks"
            )
        return FrozenLayer(
            self.model, self.index, self.kind, self.found.pop("attn.hook_pattern"), norm1, self._norm("ln2"),
            self._norm("ln1_post"), self._norm("ln2_post"), self.found.pop("slope", None), self.bias_outside,
        )  # fmt: skip


def _ratio(value: Tensor, by: Tensor, at_zero: Callable[[Tensor], Tensor]) -> Tensor:
    """value / by, in place of ``value``; where ``by`` is zero what ``at_zero`` gives for these places."""
    smallest = torch.finfo(by.dtype).tiny
    zero = (by < smallest) & (by > -smallest)
    value.div_(by)
    if bool(zero.any()):
        value[zero] = at_zero(zero).to(value.dtype)
    return value


def _activation(model: Any, index: int) -> Callable[[Tensor], Tensor]:
    own = getattr(model.tl_model.blocks[index].mlp, "act_fn", None)
    if callable(own):
        return own
    from transformer_lens.model_bridge.generalized_components.gated_mlp import resolve_activation_fn

    return resolve_activation_fn(model.tl_model.cfg)


def _slope_at_zero(model: Any, index: int, places: Tensor) -> Tensor:
    """The activation's derivative at 0, once per place."""
    act = _activation(model, index)
    with torch.enable_grad():
        zero = torch.zeros(1, 1, model.d_mlp, requires_grad=True)
        (slope,) = torch.autograd.grad(act(zero).sum(), zero)
    return slope.flatten()[0].to(places.device).expand(int(places.sum()))
