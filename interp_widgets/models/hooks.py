"""The one hook mechanism: values read, changed and differentiated at named hooks, alike on both backends.

Hooks are always taken off again. Those that stay for longer than one pass act in one thread only (`Scope`).
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
# On the bridge these hooks see a value that also takes another path, or only watch it, unless a new tensor comes back
_BRANCHES = ("hook_scale", "hook_normalized", "hook_mlp_in")
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
    "interp_widgets.models.engine.modules", "interp_widgets.models.stopping",
)  # fmt: skip
"""Modules whose hooks are part of how a pass works, or stop it: they change no numbers."""
HOOK_TABLES = {
    "_forward_pre_hooks": "pre-hook",
    "_forward_hooks": "hook",
    "_backward_pre_hooks": "backward pre-hook",
    "_backward_hooks": "backward hook",
}
"""Where PyTorch keeps a module's hooks, and what they are."""
_hook_tables = operator.itemgetter(*HOOK_TABLES)
MLP_IN = re.compile(r"blocks\.(\d+)\.hook_mlp_in$")


# ---- whose a hook is


_MARK = "_interp_widgets_scope"
_local = threading.local()


def _this_thread() -> object:
    """A mark of the calling thread. Thread numbers are given again when a thread ends, this object never is."""
    if not hasattr(_local, "mark"):
        _local.mark = object()
    return _local.mark


class Scope:
    """The time from entering a ``with`` to leaving it, in the thread that entered, or in all."""

    def __init__(self, *, all_threads: bool = False) -> None:
        self._thread = None if all_threads else _this_thread()
        self.open = True

    def acts(self) -> bool:
        """Whether its hooks act here and now."""
        mine = self._thread is None or self._thread is _this_thread()
        return self.open and mine and self not in getattr(_local, "left", ())


def mark(hook: Any, scope: Scope) -> None:
    """Say that a function registered at a PyTorch module acts in this scope only."""
    setattr(hook, _MARK, scope)


def acts(hook: Any) -> bool:
    """Whether a registered function acts in the calling thread; one without a mark does so in all."""
    scope: Scope | None = getattr(hook, _MARK, None)
    return scope is None or scope.acts()


def is_scoped(hook: Any) -> bool:
    """Whether a registered function acts in one scope only."""
    return hasattr(hook, _MARK)


def modules_of(root: Any) -> list[Any]:
    """A module and all within it, each once; ``modules()``, which makes their names too, takes five times as long."""
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
    """Inside, hooks that act in a scope do nothing in this thread."""
    hooks = [hook for module in modules_of(tl_model) for _, _, hook in acting_hooks(vars(module))]
    before: frozenset[Scope] = getattr(_local, "left", frozenset())
    _local.left = before | {getattr(hook, _MARK) for hook in hooks if is_scoped(hook)}
    try:
        yield
    finally:
        _local.left = before


def acting_hooks(tables: Mapping[str, Any]) -> list[tuple[str, int, Any]]:
    """(what it is, its number, the function) of the hooks in the tables of a PyTorch module that act in this thread.

    HookPoints keep theirs there too. Those that are part of how a pass works are left out.
    """
    if not any(_hook_tables(tables)):  # nearly always, and asked of every module before every pass
        return []
    return [
        (what, number, hook)
        for name, what in HOOK_TABLES.items()
        if tables[name]
        # copied first: another thread may put a hook of its own on at this moment
        for number, hook in list(tables[name].items())
        if acts(hook) and not is_part_of_model(hook)
    ]


def has_hooks(tl_model: Any) -> bool:
    """Whether anyone has a hook on the model that acts in this thread, permanent or not."""
    return any(acting_hooks(vars(module)) for module in modules_of(tl_model))


def is_part_of_model(hook: Any) -> bool:
    """Whether a hook is one of those that a bridge wires up itself, or that the engine reads or stops a pass by."""
    return str(getattr(hook, "__module__", "")).startswith(_OWN_HOOKS)


# ---- names


@dataclass(frozen=True)
class Run:
    """What one forward pass gave; the batch axis is always there, of length 1 for a single sequence."""

    logits: Tensor
    """(batch, positions, d_vocab) before the softmax, in the model's dtype, detached."""
    activations: Mapping[str, Tensor] = field(default_factory=dict)
    """Captured values by hook name, after any edit; for example (batch, positions, d_model) for a residual stream."""
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    """Gradient of the objective for every captured name, in the shape of its activation; empty without ``grad``."""


def embedding_hook(tl_model: Any, backend: str) -> str:
    """The hook that token embeddings pass before anything is added to them or done with them.

    It is hook_embed, but on a bridge with a norm behind the embedding, where that name is the norm's output.
    """
    return "embed.hook_out" if backend == "bridge" and hasattr(tl_model, "embed_ln") else EMBED


def canonical_hook_names(tl_model: Any) -> tuple[str, ...]:
    """The hooks of a model under HookedTransformer's names; the bridge has most of them twice, under its own too."""
    absent = {"hook_pos_embed"} if tl_model.cfg.positional_embedding_type == "rotary" else set()
    return tuple(name for name in tl_model.hook_dict if _CANONICAL.match(name) and name not in absent)


def check_hook_names(tl_model: Any, names: Iterable[Any]) -> None:
    """Raise a ValueError that names the nearest hooks if the model lacks one of these."""
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
    near = difflib.get_close_matches(name, [other for other in known if _CANONICAL.match(other)], n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "see model.hook_names for the names that it has"


@contextlib.contextmanager
def attached(
    tl_model: Any,
    hooks: Iterable[tuple[str, Callable[..., Tensor | None]]],
    *,
    mlp_entries: Sequence[str | None] = (),
    scope: Scope | None = None,
) -> Iterator[None]:
    """Add hooks and take exactly these away again, whatever happens inside; other people's hooks stay.

    The hook points are used directly: the bridge's own context manager calls a function once per alias of a name,
    so that an edit would be applied twice. ``hook_mlp_in``, the residual stream as the MLP's branch reads it, has no
    hook that every model runs: with ``mlp_entries``, one per block, it is the input of that module.

    Every function sees its value on the device where the model's weights begin, also of a layer that lies on another.

    Args:
        hooks: names and functions of (value, hook); what they return, unless it is None, replaces the value.
        scope: the hooks act in it only, and outlive TransformerLens' own resets.
    """
    device = next(devices_of(tl_model))
    hooks, points = list(hooks), tl_model.hook_dict  # a bridge makes this table at every look
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
    """The function as TransformerLens calls it, with a keyword, on one device; in a scope it acts there only."""

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
    """Put a function on a hook point and return its handle; a permanent one outlives TransformerLens' own resets."""
    point.add_hook(function, is_permanent=permanent)
    return point.fwd_hooks[-1]


def remove_hook(point: Any, handle: Any) -> None:
    """Take exactly one function off a hook point; nothing happens where somebody else has done so."""
    handle.hook.remove()
    # in place: the list is shared with whoever adds a hook at this moment
    index = next((i for i, other in enumerate(point.fwd_hooks) if other is handle), None)
    if index is not None:
        del point.fwd_hooks[index]


@contextlib.contextmanager
def switched_on(tl_model: Any, names: Iterable[str]) -> Iterator[None]:
    """Turn on what the named hooks need to fire at all, and off again after."""
    flags = {flag for name in names for ending, flag in _SWITCHES.items() if name.endswith(ending)}
    off = [flag for flag in sorted(flags) if not getattr(tl_model.cfg, flag, False)]
    done: list[str] = []
    try:
        for flag in off:
            try:
                getattr(tl_model, f"set_{flag}")(True)
            except (AssertionError, NotImplementedError, ValueError) as error:
                asked = next(name for name in names for end, f in _SWITCHES.items() if f == flag and name.endswith(end))
                raise ValueError(f"hook {asked!r} is not available in this model: {error}") from error
            done.append(flag)
        yield
    finally:
        for flag in done:
            getattr(tl_model, f"set_{flag}")(False)


class _Recorder:
    """Keeps what passes a hook. A hook may fire several times in one pass (ln1 of HookedTransformer: q, k and v)."""

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
        return changed

    return hook_function


def placed(name: str, change: Callable[[Tensor, Any], Tensor], backend: str) -> list[tuple[str, Callable[..., Tensor]]]:
    """The hooks that make ``change`` act on the value called ``name``, which is not one hook everywhere."""
    block = _RESID_MID.match(name)
    if block is None or backend != "bridge":
        return [(name, change)]
    # On the bridge this name is the input of the MLP's norm: a changed value would miss the residual sum.
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
    if grad is not None:  # the graph starts at the embeddings, so that every later value is on one connected graph
        hooks.append((first, _Recorder(first, with_gradient=True)))
    for name, change in edits.items():
        hooks += placed(name, _editing(name, change, fired), backend)
    hooks += list(recorders.items())
    switched = switched_on(tl_model, [*names, *edits])
    with torch.set_grad_enabled(grad is not None), switched, attached(tl_model, hooks):
        logits = tl_model(ids).to(ids.device)
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
    whole = next((name for name, recorder in recorders.items() if not recorder.values[-1].is_floating_point()), None)
    if whole is not None:
        raise ValueError(f"hook {whole!r} holds whole numbers, which have no gradient; leave it out of capture")
    # autograd.grad, not backward(): the parameters' own .grad stays as the user left it
    parts = iter(torch.autograd.grad(objective.sum(), values, allow_unused=True))
    gradients = {}
    for name, recorder in recorders.items():
        total = torch.zeros_like(recorder.values[-1], requires_grad=False)
        for part in [next(parts) for _ in recorder.values]:
            total = total if part is None else total + part
        gradients[name] = total.detach()
    return gradients
