"""Changes to a model that hold for the length of a ``with``, in the thread that entered it, on both backends."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .hooks import EMBED, add_hook, check_hook_names, placed, remove_hook, run_hooked
from .scope import Scope, mark
from .ways import has_hooks

Change = Callable[[Tensor, Tensor], Tensor]
"""From a value (batch, rows, ...) and the positions of its rows (batch, rows) to a new value of the same shape."""

_MLP_IN = re.compile(r"blocks\.(\d+)\.hook_mlp_in$")
# values that have positions on their second axis and are computed in every pass
_ALLOWED = re.compile(
    r"blocks\.\d+\.(hook_(resid_pre|resid_mid|resid_post|attn_out|mlp_out|mlp_in)"
    r"|attn\.hook_[vz]|mlp\.hook_(pre|pre_linear|post))$"
)


@contextmanager
def interventions(model: Any, changes: Sequence[tuple[str, Change]]) -> Iterator[None]:
    """Inside, every pass of this thread through the model has its values changed; afterwards nothing of it is left.

    It holds for `Model.run`, `Model.forward` and everything built on them, and for generation with its key/value cache.
    Inside, the model counts as hooked: whole sequences run through its own modules. Other threads compute as if it were
    not there. Several of these nest; a value is changed by the outer one first. TransformerLens' ``reset_hooks()``
    leaves it in force.

    Args:
        model: a `Model`.
        changes: pairs of a hook name and a function. The function gets the value, (batch, rows, ...), and the positions
            of its rows, (batch, rows) whole numbers counted as users count: from 0 without a BOS, which is at -1.
            A sequence begins with a BOS where its first token's embedding is that of the BOS (in passes that do not
            show their embeddings, like TransformerLens' own generation: if the model's policy puts one there). With a
            cache the rows are the new tokens, and their positions go on from those in the cache. Allowed in every block
            are hook_resid_pre, hook_resid_mid, hook_resid_post, hook_attn_out, hook_mlp_out, hook_mlp_in (the residual
            stream as the MLP's branch reads it, before its norm), attn.hook_v, attn.hook_z, mlp.hook_pre,
            mlp.hook_pre_linear and mlp.hook_post.

    Raises:
        ValueError: an unknown hook, or one whose change would not reach the output; then nothing is attached.

    Example:
        >>> early = ("blocks.0.hook_mlp_out", lambda value, positions: value * (positions < 4)[..., None])
        >>> with interventions(model, [early]):
        ...     model.generate("The capital of France is", max_new_tokens=1)
        ' is'
        >>> model.generate("The capital of France is", max_new_tokens=1)
        ' Paris'
    """
    planned = list(changes)
    _check_names(model, [name for name, _ in planned])
    if not planned:
        yield
        return
    taken_off: list[Callable[[], None]] = []
    current = _Pass(model)
    try:
        with model.lock:
            _follow(model, current, taken_off)
            for name, change in planned:
                _attach(model, name, current.bound(name, change), current.scope, taken_off)
        yield
    finally:
        current.scope.open = False  # from here on the hooks do nothing, also in a pass that is going on
        # A generator that is thrown away may be closed anywhere, by a thread that holds other locks: it must not wait.
        wait = not isinstance(sys.exc_info()[1], GeneratorExit)
        held = model.lock.acquire(blocking=wait)
        try:
            for take_off in reversed(taken_off):
                take_off()
        finally:
            if held:
                model.lock.release()


# ---- where in the sequence a pass is


class _Pass:
    """What is known of the pass that runs: where it begins, and which sequences begin with a BOS."""

    def __init__(self, model: Any) -> None:
        self.scope = Scope()
        self._bos = None if model.bos_token_id is None else model.token_embeddings([model.bos_token_id])[0]
        self._usual = int(model.prepend_bos)
        self._fed: Tensor | int | None = None
        self._front: Tensor | int = self._usual
        self._first = 0

    def embedded(self, value: Tensor, hook: Any) -> Tensor | None:
        """At the embeddings of a pass, (batch, rows, d_model)."""
        if not self.scope.acts():
            return None
        self._fed = 0 if self._bos is None else (value[:, 0] == self._bos).all(-1).long()[:, None]
        return value

    def begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        """Before the first block: the pass begins behind the positions that the block's cache holds."""
        if not self.scope.acts():
            return
        self._first = 0
        for given in (*args, *(kwargs or {}).values()):
            if hasattr(given, "get_seq_length"):  # transformers' cache
                self._first = int(given.get_seq_length())
            elif hasattr(given, "past_keys"):  # TransformerLens' cache of one layer
                self._first = int(given.past_keys.shape[1])
        if self._first == 0:  # later passes go on with the same sequences
            self._front = self._usual if self._fed is None else self._fed
        self._fed = None

    def positions(self, value: Tensor) -> Tensor:
        """(batch, rows) positions of a value's rows, without the BOS."""
        rows = torch.arange(self._first, self._first + value.shape[1], device=value.device)
        return rows.expand(value.shape[0], -1) - self._front

    def bound(self, name: str, change: Change) -> Callable[[Tensor], Tensor | None]:
        """The change with its positions; None in other threads and after the end."""

        def act(value: Tensor) -> Tensor | None:
            if not self.scope.acts():
                return None
            changed = change(value, self.positions(value))
            if not isinstance(changed, Tensor) or changed.shape != value.shape:
                got = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
                raise ValueError(f"the change of {name} must return a tensor of shape {tuple(value.shape)}, got {got}")
            return changed

        return act


def _follow(model: Any, current: _Pass, taken_off: list[Callable[[], None]]) -> None:
    """Hear of every pass: where its embeddings come by, and before the first block."""
    _put(model, EMBED, current.embedded, current.scope, taken_off)

    def begin(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        current.begin(module, args, kwargs)

    mark(begin, current.scope)
    taken_off.append(model.tl_model.blocks[0].register_forward_pre_hook(begin, with_kwargs=True).remove)


# ---- attaching


def _attach(
    model: Any, name: str, act: Callable[[Tensor], Tensor | None], scope: Scope, taken_off: list[Callable[[], None]]
) -> None:
    block = _MLP_IN.match(name)
    if block is None:
        for hook_name, function in _in_place(name, act, scope, model.backend):
            _put(model, hook_name, function, scope, taken_off)
        return
    part = getattr(model.tl_model.blocks[int(block.group(1))], mlp_branch(model).entry)

    def enter(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        changed = act(inputs[0])
        return None if changed is None else (changed, *inputs[1:])

    mark(enter, scope)
    taken_off.append(part.register_forward_pre_hook(enter).remove)


def _in_place(
    name: str, act: Callable[[Tensor], Tensor | None], scope: Scope, backend: str
) -> list[tuple[str, Callable[..., Tensor | None]]]:
    """The hooks that change the value called ``name``; in other threads they leave everything as it is."""

    def change(value: Tensor, hook: Any) -> Tensor:
        changed = act(value)
        return value if changed is None else changed

    def guarded(function: Callable[..., Tensor]) -> Callable[..., Tensor | None]:
        return lambda value, hook: function(value, hook) if scope.acts() else None

    return [(hook_name, guarded(function)) for hook_name, function in placed(name, change, backend)]


def _put(
    model: Any,
    name: str,
    function: Callable[..., Tensor | None],
    scope: Scope,
    taken_off: list[Callable[[], None]],
) -> None:
    point = model.tl_model.hook_dict[name]
    handle = add_hook(point, function, permanent=True)
    taken_off.append(lambda: remove_hook(point, handle))
    mark(point._forward_hooks[handle.hook.id], scope)


# ---- which hooks there are


@dataclass(frozen=True)
class MlpBranch:
    """How the residual stream comes to the MLP of a block."""

    entry: Literal["ln2", "mlp"]
    """The part of a block that the stream enters: the MLP's norm, or the MLP itself where no norm is before it."""
    reads_attention: bool
    """Whether it has the output of the same block's attention in it; parallel blocks read the stream before that."""


_BRANCHES: weakref.WeakKeyDictionary[Any, MlpBranch] = weakref.WeakKeyDictionary()
_EFFECTIVE: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


def has_mlps(model: Any) -> bool:
    """Whether every block has an MLP; attention-only models have hooks for its output that never run."""
    return all(getattr(block, "mlp", None) is not None for block in model.tl_model.blocks)


def mlp_branch(model: Any) -> MlpBranch:
    """How the MLPs of a model read the residual stream, found by comparing values in the first block.

    Raises ValueError for an architecture whose MLPs read something else.
    """
    found = _BRANCHES.get(model.tl_model)
    if found is None:
        with model.lock:
            if has_hooks(model.tl_model):  # values may be changed: what the library says must do
                return MlpBranch("ln2", not getattr(model.tl_model.cfg, "parallel_attn_mlp", False))
            found = _BRANCHES[model.tl_model] = _find_branch(model)
    return found


@torch.no_grad()
def _find_branch(model: Any) -> MlpBranch:
    block, seen = model.tl_model.blocks[0], dict[str, Tensor]()
    entries: tuple[Literal["ln2", "mlp"], ...] = ("ln2", "mlp")
    handles = [
        getattr(block, entry).register_forward_pre_hook(
            lambda module, inputs, entry=entry: seen.__setitem__(entry, inputs[0])
        )
        for entry in entries
        if isinstance(getattr(block, entry, None), torch.nn.Module)
    ]
    try:
        ids = torch.arange(min(4, model.n_ctx, model.d_vocab), device=model.device)[None]
        names = ["blocks.0.hook_resid_pre", "blocks.0.hook_attn_out"]
        run = run_hooked(model.tl_model, ids, backend=model.backend, capture=names)
    finally:
        for handle in handles:
            handle.remove()
    before, attention = (run.activations[name].double() for name in names)
    for entry in entries:
        if entry not in seen or seen[entry].shape != before.shape:
            continue
        value = seen[entry].double()
        after, apart = float((value - before - attention).norm()), float((value - before).norm())
        if min(after, apart) <= 0.03 * float(value.norm()):  # rounding in half precision
            return MlpBranch(entry, after <= apart)
    raise ValueError(f"the MLPs of {model.name} do not read the residual stream directly: take hook_mlp_out instead")


def _check_names(model: Any, names: Sequence[str]) -> None:
    """The hooks exist, have positions on their second axis, and what is changed there reaches the logits."""
    check_hook_names(model.tl_model, names)
    for name in names:
        if not _ALLOWED.match(name):
            raise ValueError(
                f"hook {name!r} cannot be changed for longer than one pass: take a residual stream, hook_attn_out, "
                "hook_mlp_out, hook_mlp_in, attn.hook_v, attn.hook_z or one of the MLP's hook_pre and hook_post"
            )
    with model.lock:
        if has_hooks(model.tl_model):
            return  # a hook further on may replace the value for good reason
        known = _EFFECTIVE.setdefault(model.tl_model, set())
        for name in names:
            kind = re.sub(r"\d+", "", name)
            if kind not in known and not _MLP_IN.match(name):
                _check_effect(model, name)
                known.add(kind)


@torch.no_grad()
def _check_effect(model: Any, name: str) -> None:
    """A value that is no number must make logits that are none: some hooks only watch in some architectures."""
    ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    run = run_hooked(
        model.tl_model, ids, backend=model.backend, edit={name: lambda value: torch.full_like(value, torch.nan)}
    )
    if not bool(run.logits.isnan().all()):
        raise ValueError(f"hook {name!r} of {model.name} only watches: a change there does not reach the output")
