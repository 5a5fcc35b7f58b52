"""Run a TransformerLens model with values read, changed and differentiated at named hooks, the same on both backends."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Edit = Callable[[Tensor], Tensor]
Objective = Callable[[Tensor], Tensor]

EMBED = "hook_embed"
_RESID_MID = re.compile(r"blocks\.(\d+)\.hook_resid_mid$")


@dataclass(frozen=True)
class Run:
    """What one forward pass gave; the batch axis is always there, of length 1 for a single sequence."""

    logits: Tensor
    """(batch, positions, d_vocab) before the softmax, in the model's dtype, detached."""
    activations: Mapping[str, Tensor] = field(default_factory=dict)
    """Captured values by hook name, after any edit; for example (batch, positions, d_model) for a residual stream."""
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    """Gradient of the objective for every captured name, in the shape of its activation; empty without ``grad``."""


def check_hook_names(tl_model: Any, names: Iterable[str]) -> None:
    """Raise a ValueError that names the nearest hooks if the model lacks one of these."""
    known = tl_model.hook_dict
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a hook name must be a string such as 'blocks.0.hook_resid_pre', got {name!r}")
        if name not in known:
            raise ValueError(f"this model has no hook {name!r}; {_suggest(name, known)}")


def _suggest(name: str, known: Mapping[str, Any]) -> str:
    block = re.match(r"blocks\.(\d+)\.", name)
    if block and not any(other.startswith(block.group(0)) for other in known):
        layers = 1 + max((int(m.group(1)) for other in known if (m := re.match(r"blocks\.(\d+)\.", other))), default=-1)
        return f"layer must be in 0..{layers - 1} for this {layers}-layer model, got {block.group(1)}"
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "see model.hook_names for the names that it has"


@contextlib.contextmanager
def attached(tl_model: Any, hooks: Iterable[tuple[str, Callable[..., Tensor]]]) -> Iterator[None]:
    """Add hooks and take exactly these away again, whatever happens inside; other people's hooks stay.

    The hook points are used directly: the bridge's own context manager calls a function once per alias of a name,
    so that an edit would be applied twice.
    """
    points = tl_model.hook_dict
    added: list[tuple[Any, Any]] = []
    try:
        for name, function in hooks:
            point = points[name]
            point.add_hook(function)
            added.append((point, point.fwd_hooks[-1]))
        yield
    finally:
        for point, handle in reversed(added):
            handle.hook.remove()
            point.fwd_hooks = [other for other in point.fwd_hooks if other is not handle]


class _Recorder:
    """Keeps what passes a hook. A hook may fire several times in one pass (ln1 of HookedTransformer: q, k and v)."""

    def __init__(self, name: str, *, with_gradient: bool) -> None:
        self.name = name
        self.with_gradient = with_gradient
        self.values: list[Tensor] = []

    def __call__(self, value: Tensor, hook: Any) -> Tensor:
        if self.with_gradient and not value.requires_grad:
            value = value.detach().requires_grad_(True)
        self.values.append(value)
        return value  # without a return value the bridge's reshaped copies would lose the gradient's path


def _editing(name: str, edit: Edit, fired: set[str]) -> Callable[..., Tensor]:
    def hook_function(value: Tensor, hook: Any) -> Tensor:
        fired.add(name)
        changed = edit(value)
        if not isinstance(changed, Tensor) or changed.shape != value.shape:
            got = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
            raise ValueError(f"the edit of {name} must return a tensor of shape {tuple(value.shape)}, got {got}")
        return changed

    return hook_function


def _edit_hooks(
    edits: Mapping[str, Edit], backend: str, fired: set[str], known: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    hooks: list[tuple[str, Any]] = []
    for name, edit in edits.items():
        block = _RESID_MID.match(name)
        if block is None or backend != "bridge":
            hooks.append((name, _editing(name, edit, fired)))
            continue
        # On the bridge this name is the input of the MLP's norm: a changed value would miss the residual sum.
        # The attention output is changed instead, by as much as the edit changes the stream.
        stream: list[Tensor] = []
        change = _editing(name, edit, fired)

        def keep(value: Tensor, hook: Any, stream: list[Tensor] = stream) -> Tensor:
            stream[:] = [value]
            return value

        def shift(value: Tensor, hook: Any, stream: list[Tensor] = stream, change: Any = change) -> Tensor:
            return change(stream[0] + value, hook) - stream[0]

        layer = block.group(1)
        hooks += [(f"blocks.{layer}.hook_resid_pre", keep), (f"blocks.{layer}.hook_attn_out", shift)]
    return hooks


def run_hooked(
    tl_model: Any,
    ids: Tensor,
    *,
    backend: str,
    capture: Iterable[str] = (),
    edit: Mapping[str, Edit] | None = None,
    grad: Objective | None = None,
    embeddings: Tensor | None = None,
) -> Run:
    """One forward pass over ``ids`` (batch, positions); see `Model.run`."""
    names = [capture] if isinstance(capture, str) else list(dict.fromkeys(capture))
    edits = dict(edit or {})
    check_hook_names(tl_model, [*names, *edits])
    fired: set[str] = set()
    recorders = {name: _Recorder(name, with_gradient=grad is not None) for name in names}
    hooks: list[tuple[str, Any]] = []
    if embeddings is not None:
        hooks.append((EMBED, lambda value, hook: embeddings))
    if grad is not None:  # the graph starts at the embeddings, so that every later value is on one connected graph
        hooks.append((EMBED, _Recorder(EMBED, with_gradient=True)))
    hooks += _edit_hooks(edits, backend, fired, tl_model.hook_dict)
    hooks += list(recorders.items())
    with torch.set_grad_enabled(grad is not None), attached(tl_model, hooks):
        logits = tl_model(ids)
        silent = [name for name in names if not recorders[name].values] + [n for n in edits if n not in fired]
        if silent:
            raise ValueError(
                f"hook {silent[0]!r} exists but does not run in this model's forward pass; capture another name"
            )
        gradients = {} if grad is None else _gradients(grad(logits), recorders)
    return Run(logits.detach(), {name: recorders[name].values[-1].detach() for name in names}, gradients)


def _gradients(objective: Tensor, recorders: Mapping[str, _Recorder]) -> dict[str, Tensor]:
    if not isinstance(objective, Tensor) or objective.numel() != 1:
        got = tuple(objective.shape) if isinstance(objective, Tensor) else type(objective).__name__
        raise ValueError(f"grad must return one number (a tensor of one element) from the logits, got {got}")
    values = [value for recorder in recorders.values() for value in recorder.values]
    if not values:
        return {}
    # autograd.grad, not backward(): the parameters' own .grad stays as the user left it
    parts = iter(torch.autograd.grad(objective.sum(), values, allow_unused=True))
    gradients = {}
    for name, recorder in recorders.items():
        total = torch.zeros_like(recorder.values[-1], requires_grad=False)
        for part in [next(parts) for _ in recorder.values]:
            total = total if part is None else total + part
        gradients[name] = total.detach()
    return gradients
