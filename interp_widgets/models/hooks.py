"""The hook mechanism: reads, changes and differentiates values at named hooks, in the same way on both backends.

Hooks are always removed again. Those that stay for longer than one pass act in one thread only (`Scope`).
"""

from __future__ import annotations

import contextlib
import difflib
import operator
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .devices import devices_of

Edit = Callable[[Tensor], Tensor]
Objective = Callable[[Tensor], Tensor]

EMBED = "hook_embed"
_RESID_MID = re.compile(r"blocks\.(\d+)\.hook_resid_mid$")
# On the bridge these hooks change the value only if they return a new tensor
_BRANCHES = ("hook_scale", "hook_normalized", "hook_mlp_in")
_SCALED = ("hook_attn_out", "hook_mlp_out")
_CANONICAL = re.compile(
    r"(hook_embed|hook_pos_embed|ln_final\.hook_(scale|normalized)|blocks\.\d+\.("
    r"hook_(resid_pre|resid_mid|resid_post|attn_in|q_input|k_input|v_input|mlp_in|attn_out|mlp_out)"
    r"|ln[12](_post)?\.hook_(scale|normalized)"
    r"|attn\.hook_(q|k|v|z|rot_q|rot_k|attn_scores|pattern|result)"
    r"|mlp\.hook_(pre|pre_linear|post)))$"
)
# Hooks that TransformerLens computes only while a switch is on, because they cost memory
_SWITCHES = {
    "attn.hook_result": "use_attn_result",
    "hook_q_input": "use_split_qkv_input",
    "hook_k_input": "use_split_qkv_input",
    "hook_v_input": "use_split_qkv_input",
    "hook_attn_in": "use_attn_in",
    "hook_mlp_in": "use_hook_mlp_in",
}


_OWN_HOOKS = (
    "transformer_lens.model_bridge", "interp_widgets.models.bridge_cache", "interp_widgets.models.convert",
    "interp_widgets.models.engine.modules", "interp_widgets.models.stopping", "transformers.utils.output_capturing",
)  # fmt: skip
"""Modules whose hooks are part of the pass or can stop it, and change no numbers; transformers leaves its own on a
model that was once asked for hidden states or attentions, as `run_with_cache` of a bridge asks for them."""
HOOK_TABLES = {
    "_forward_pre_hooks": "pre-hook",
    "_forward_hooks": "hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}
"""Attributes in which PyTorch stores a module's hooks, and the kind of hook in each."""
_hook_tables = operator.itemgetter(*HOOK_TABLES)
MLP_IN = re.compile(r"blocks\.(\d+)\.hook_mlp_in$")


def differentiable(value: Tensor) -> Tensor:
    """A tensor of equal numbers that gradients can flow through: a copy of one that was made in inference mode."""
    return value.clone() if value.is_inference() else value


# ---- threads of hooks


_MARK = "_interp_widgets_scope"
_local = threading.local()


def _this_thread() -> object:
    """An object that identifies the calling thread; unlike a thread's number, it is never reused."""
    if not hasattr(_local, "mark"):
        _local.mark = object()
    return _local.mark


class Scope:
    """The duration of a ``with``, in the thread that entered it or in all threads."""

    def __init__(self, *, all_threads: bool = False) -> None:
        self._thread = None if all_threads else _this_thread()
        self.open = True

    def acts(self) -> bool:
        """Whether its hooks act in the calling thread now."""
        mine = self._thread is None or self._thread is _this_thread()
        return self.open and mine and self not in getattr(_local, "left", ())


def mark(hook: Any, scope: Scope) -> None:
    """Mark a function registered at a PyTorch module as acting in this scope only."""
    setattr(hook, _MARK, scope)


def acts(hook: Any) -> bool:
    """Whether a registered function acts in the calling thread; one without a mark acts in all threads."""
    scope: Scope | None = getattr(hook, _MARK, None)
    return scope is None or scope.acts()


def is_scoped(hook: Any) -> bool:
    """Whether a registered function acts in one scope only."""
    return hasattr(hook, _MARK)


def modules_of(root: Any) -> list[Any]:
    """A module and all its submodules, each once; five times as fast as ``modules()``, which builds their names too."""
    modules = {id(root): root}
    waiting = [root]
    while waiting:
        for child in waiting.pop()._modules.values():
            if child is not None and id(child) not in modules:
                modules[id(child)] = child
                waiting.append(child)
    return list(modules.values())


@contextlib.contextmanager
def scopes_left(tl_model: Any) -> Iterator[None]:
    """Context manager in which scoped hooks do nothing in this thread."""
    hooks = [hook for module in modules_of(tl_model) for _, _, hook in acting_hooks(vars(module))]
    before: frozenset[Scope] = getattr(_local, "left", frozenset())
    _local.left = before | {getattr(hook, _MARK) for hook in hooks if is_scoped(hook)}
    try:
        yield
    finally:
        _local.left = before


def acting_hooks(tables: Mapping[str, Any]) -> list[tuple[str, int, Any]]:
    """(kind, number, function) of the hooks of a PyTorch module that act in this thread.

    This includes the hooks of HookPoints, but not hooks that are part of the pass itself.
    """
    if not any(_hook_tables(tables)):  # nearly always true, and checked for every module before every pass
        return []
    return [
        (kind, number, hook)
        for name, kind in HOOK_TABLES.items()
        if tables[name]
        # copied first, since another thread may add a hook at this moment
        for number, hook in list(tables[name].items())
        if acts(hook) and not is_part_of_model(hook)
    ]


def has_hooks(tl_model: Any) -> bool:
    """Whether the model has any hook, permanent or not, that acts in this thread."""
    return any(acting_hooks(vars(module)) for module in modules_of(tl_model))


def is_part_of_model(hook: Any) -> bool:
    """Whether a hook belongs to a bridge or to transformers, or is one by which the engine reads or stops a pass."""
    return str(getattr(hook, "__module__", "")).startswith(_OWN_HOOKS)


# ---- names


@dataclass(frozen=True)
class Run:
    """The result of one forward pass; it always has a batch axis, of length 1 for a single sequence."""

    logits: Tensor
    """(batch, positions, d_vocab) before the softmax, in the model's dtype, detached."""
    activations: Mapping[str, Tensor] = field(default_factory=dict)
    """Captured values by hook name, after any edit; for example (batch, positions, d_model) for a residual stream."""
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    """Gradient of the objective for every captured name, in the shape of its activation; empty without ``grad``."""


def embedding_hook(tl_model: Any, backend: str) -> str:
    """The hook at the token embeddings before anything is added or applied to them.

    It is hook_embed, except on a bridge with a norm after the embedding, where that name is the norm's output.
    """
    return "embed.hook_out" if backend == "bridge" and hasattr(tl_model, "embed_ln") else EMBED


def canonical_hook_names(tl_model: Any) -> tuple[str, ...]:
    """The hooks of a model under HookedTransformer's names; the bridge has most of them under its own names too."""
    absent = {"hook_pos_embed"} if tl_model.cfg.positional_embedding_type == "rotary" else set()
    return tuple(name for name in tl_model.hook_dict if _CANONICAL.match(name) and name not in absent)


def check_hook_names(tl_model: Any, names: Iterable[Any]) -> None:
    """Raise a ValueError that suggests similar hooks if the model lacks one of these."""
    known = tl_model.hook_dict
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                "a hook name must be a str such as 'blocks.0.hook_resid_pre', "
                f"got an object of type {type(name).__name__}"
            )
        if name not in known:
            raise ValueError(f"this model has no hook {name[:60]!r}; {_suggest(name, known)}")


def _suggest(name: str, known: Mapping[str, Any]) -> str:
    block = re.match(r"blocks\.(\d+)\.", name)
    if block and not any(other.startswith(block.group(0)) for other in known):
        layers = 1 + max((int(m.group(1)) for other in known if (m := re.match(r"blocks\.(\d+)\.", other))), default=-1)
        return f"layer must be in 0..{layers - 1} for this {layers}-layer model, got {block.group(1)}"
    similar = difflib.get_close_matches(name, [other for other in known if _CANONICAL.match(other)], n=3, cutoff=0.5)
    return f"did you mean {' or '.join(similar)}?" if similar else "see model.hook_names for the names that it has"


@contextlib.contextmanager
def attached(
    tl_model: Any,
    hooks: Iterable[tuple[str, Callable[..., Tensor | None]]],
    *,
    mlp_entries: Sequence[str | None] = (),
    scope: Scope | None = None,
) -> Iterator[None]:
    """Add hooks and remove exactly these again, also after an exception; other hooks stay.

    The hook points are used directly, because the bridge's own context manager calls a function once per alias of a
    name and would apply an edit twice. ``hook_mlp_in``, the residual stream as the MLP's branch reads it, has no hook
    that runs in every model: with ``mlp_entries``, one per block, it is the input of that module.

    Every function sees its value on the device of the model's first weights, also for a layer on another device.

    Args:
        hooks: names and functions of (value, hook); what they return, unless it is None, replaces the value.
        scope: the hooks act in it only, and survive TransformerLens's resets.
    """
    device = next(devices_of(tl_model))
    hooks, points = list(hooks), tl_model.hook_dict  # a bridge builds this table at every access
    with contextlib.ExitStack() as stack:
        for name, function in hooks:
            act = _within(function, scope, device)
            block = MLP_IN.match(name) if mlp_entries else None
            if block is None:
                point = points[name]
                handle = add_hook(point, act, permanent=scope is not None)
                stack.callback(remove_hook, point, handle)
                registered = point._forward_hooks.get(handle.hook.id)
            else:
                registered = _entering(act)
                entry = mlp_entries[int(block.group(1))]
                if entry is None:
                    raise ValueError(
                        f"the MLP of layer {block.group(1)} does not read the residual stream directly, so that what "
                        "it reads cannot be replaced"
                    )
                part = getattr(tl_model.blocks[int(block.group(1))], entry)
                stack.callback(part.register_forward_pre_hook(registered).remove)
            if scope is not None:
                mark(registered, scope)
        yield


def _within(
    function: Callable[..., Tensor | None], scope: Scope | None, device: torch.device
) -> Callable[..., Tensor | None]:
    """The function as TransformerLens calls it (with a keyword), on one device, acting in the scope only."""

    def act(value: Tensor, hook: Any) -> Tensor | None:
        if scope is not None and not scope.acts():
            return None
        seen = value.to(device)
        changed = function(seen, hook)
        if changed is seen and not torch.is_grad_enabled():  # a gradient may be asked for at what was seen
            return value
        return None if changed is None else changed.to(value.device)

    return act


def _entering(function: Callable[..., Tensor | None]) -> Callable[..., tuple[Any, ...] | None]:
    def enter(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        changed = function(inputs[0], None)
        return None if changed is None else (changed, *inputs[1:])

    return enter


def add_hook(point: Any, function: Callable[..., Tensor | None], *, permanent: bool = False) -> Any:
    """Add a function to a hook point and return its handle; a permanent one survives TransformerLens's resets."""
    point.add_hook(function, is_permanent=permanent)
    return point.fwd_hooks[-1]


def remove_hook(point: Any, handle: Any) -> None:
    """Remove one function from a hook point; does nothing if it was removed already."""
    handle.hook.remove()
    # in place, since another thread may be adding a hook to the same list
    index = next((i for i, other in enumerate(point.fwd_hooks) if other is handle), None)
    if index is not None:
        del point.fwd_hooks[index]


@contextlib.contextmanager
def switched_on(tl_model: Any, names: Iterable[str]) -> Iterator[None]:
    """Turn on the switches that the named hooks need to fire, and off again afterwards."""
    flags = {flag for name in names for ending, flag in _SWITCHES.items() if name.endswith(ending)}
    off = [flag for flag in sorted(flags) if not getattr(tl_model.cfg, flag, False)]
    done: list[str] = []
    try:
        for flag in off:
            try:
                getattr(tl_model, f"set_{flag}")(True)
            except (AssertionError, NotImplementedError, ValueError) as error:
                hook = next(name for name in names for end, f in _SWITCHES.items() if f == flag and name.endswith(end))
                raise ValueError(f"hook {hook!r} is not available in this model: {error}") from error
            done.append(flag)
        yield
    finally:
        for flag in done:
            getattr(tl_model, f"set_{flag}")(False)


class _Recorder:
    """Records the values at a hook, which may fire several times per pass (ln1 of HookedTransformer: q, k and v)."""

    def __init__(self, name: str, *, with_gradient: bool) -> None:
        self.name = name
        self.with_gradient = with_gradient
        self.values: list[Tensor] = []

    def __call__(self, value: Tensor, hook: Any) -> Tensor:
        if self.with_gradient and not value.requires_grad and value.is_floating_point():
            value = value.detach().requires_grad_(True)
        if self.with_gradient and self.name.endswith(_BRANCHES):
            value = value.view_as(value)
        self.values.append(value)
        return value  # without a return value the bridge's reshaped copies would lose the gradient's path


def _editing(name: str, edit: Edit, fired: set[str]) -> Callable[..., Tensor]:
    def hook_function(value: Tensor, hook: Any) -> Tensor:
        fired.add(name)
        changed = edit(value)
        if not isinstance(changed, Tensor) or changed.shape != value.shape:
            got = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
            raise ValueError(f"the edit of {name} must return a tensor of shape {tuple(value.shape)}, got {got}")
        return differentiable(changed)

    return hook_function


def placed(name: str, change: Callable[[Tensor, Any], Tensor], backend: str) -> list[tuple[str, Callable[..., Tensor]]]:
    """The hooks that apply ``change`` to the value called ``name``, which may take more than one."""
    block = _RESID_MID.match(name)
    if block is None or backend != "bridge":
        return [(name, change)]
    # On the bridge this name is the input of the MLP's norm, so that a change would not reach the residual sum.
    # The attention output is changed instead, by as much as the edit changes the stream.
    stream: list[Tensor] = []

    def keep(value: Tensor, hook: Any) -> Tensor:
        stream[:] = [value]
        return value

    def shift(value: Tensor, hook: Any) -> Tensor:
        before = stream.pop()  # not held for longer than the pass
        return change(before + value, hook) - before

    layer = block.group(1)
    return [(f"blocks.{layer}.hook_resid_pre", keep), (f"blocks.{layer}.hook_attn_out", shift)]


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
    edits, names = dict(edit or {}), [capture] if isinstance(capture, str) else list(capture)
    check_hook_names(tl_model, [*names, *edits])
    names = list(dict.fromkeys(names))
    fired: set[str] = set()
    recorders = {name: _Recorder(name, with_gradient=grad is not None) for name in names}
    hooks: list[tuple[str, Any]] = []
    first = embedding_hook(tl_model, backend)
    if embeddings is not None:
        hooks.append((first, lambda value, hook: embeddings))
    if grad is not None:  # the graph starts at the embeddings, so that it includes every later value
        hooks.append((first, _Recorder(first, with_gradient=True)))
    for name, change in edits.items():
        hooks += placed(name, _editing(name, change, fired), backend)
    hooks += list(recorders.items())
    switched = switched_on(tl_model, [*names, *edits])
    routed = _routed(tl_model, [name for name, _ in hooks]) if grad is not None else contextlib.nullcontext()
    with torch.set_grad_enabled(grad is not None), switched, routed, attached(tl_model, hooks):
        logits = tl_model(ids).to(ids.device)
        silent = [name for name in names if not recorders[name].values] + [n for n in edits if n not in fired]
        if silent:
            raise ValueError(
                f"hook {silent[0]!r} exists but does not run in this model's forward pass; capture another name"
            )
        gradients = {} if grad is None else _gradients(grad(logits), recorders)
    return Run(logits.detach(), {name: recorders[name].values[-1].detach() for name in names}, gradients)


@contextlib.contextmanager
def _routed(tl_model: Any, names: Iterable[str]) -> Iterator[None]:
    """Let gradients pass through the named hooks where a bridge shows a scaled copy of an output (Granite), which it
    puts in the output's place only if a hook changes it or asks for gradients; without this they would be 0."""
    blocks = dict(enumerate(getattr(tl_model, "blocks", ())))
    scaled = {f"blocks.{number}.{end}": block for number, block in blocks.items() for end in _SCALED
              if hasattr(block, "residual_contribution_scale")}  # fmt: skip
    points = [getattr(scaled[name], name.rpartition(".")[2]) for name in dict.fromkeys(names) if name in scaled]
    for point in points:
        point.add_hook(lambda gradient, hook: None, dir="bwd")
    handles = [point.bwd_hooks[-1] for point in points]
    try:
        yield
    finally:
        for point, handle in zip(points, handles, strict=True):
            handle.hook.remove()
            point.bwd_hooks.remove(handle)


def _gradients(objective: Tensor, recorders: Mapping[str, _Recorder]) -> dict[str, Tensor]:
    if not isinstance(objective, Tensor) or objective.numel() != 1:
        got = tuple(objective.shape) if isinstance(objective, Tensor) else type(objective).__name__
        raise ValueError(f"grad must return one number (a tensor of one element) from the logits, got {got}")
    values = [value for recorder in recorders.values() for value in recorder.values]
    if not values:
        return {}
    integer = next((name for name, recorder in recorders.items() if not recorder.values[-1].is_floating_point()), None)
    if integer is not None:
        raise ValueError(f"hook {integer!r} holds integers, which have no gradient; leave it out of capture")
    # autograd.grad, not backward(): the parameters' own .grad stays as the user left it
    gradients_of_values = iter(torch.autograd.grad(objective.sum(), values, allow_unused=True))
    gradients = {}
    for name, recorder in recorders.items():
        total = torch.zeros_like(recorder.values[-1], requires_grad=False)
        for gradient in [next(gradients_of_values) for _ in recorder.values]:
            total = total if gradient is None else total + gradient
        gradients[name] = total.detach()
    return gradients
