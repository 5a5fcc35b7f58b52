"""The change of activations behind ablation, causal tracing, steering, erasing and edits of the stream.

A patch names a site of a layer, positions, and the value that goes there. In a map the engine runs many cells, each
with its own patches, as one batch (`interp_widgets.models.engine.patched`): a `Patch`. A `PassPatch` acts inside
`patched_passes` on every pass of the thread, also during generation.

`positions` count every token that is read, the BOS too, as the engine does. What acts on passes of any text, with and
without a BOS, names `text_positions`: 0 is the first token after a BOS, -1 the BOS, and new tokens go on counting.
`as_text_positions` converts.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from .capabilities import Entry, mlp_entries
from .hooks import MLP_IN, Scope, attached, check_hook_names, embedding_hook, has_hooks, mark, placed, run_hooked
from .network import Network
from .state import remembered

Site = Literal["resid", "attn", "mlp", "attn_to_mlp", "head", "neuron", "q", "k", "v", "pattern"]
"""What can be replaced at a layer: the residual stream entering the block; the output of attention or of the MLP; the
attention output in the MLP's input only; one head's output (before the output matrix); one neuron; in maps also one
head's query, or the key or value of one key/value head, as projected (before norms and rotary embeddings), and one row
of a head's attention pattern."""

HEAD_INPUTS: tuple[Site, ...] = ("q", "k", "v", "pattern")
"""The sites inside of attention."""

Change = Callable[[Tensor, Tensor], Tensor]
"""Maps a value (batch, rows, ...) and the text positions of its rows (batch, rows) to a new value of the same shape."""

_SITE_HOOKS = {
    "resid": "hook_resid_pre",
    "attn": "hook_attn_out",
    "mlp": "hook_mlp_out",
    "head": "attn.hook_z",
    "neuron": "mlp.hook_post",
    "q": "attn.hook_q",
    "k": "attn.hook_k",
    "v": "attn.hook_v",
    "pattern": "attn.hook_pattern",
}
# values that have positions on their second axis and are computed in every pass
_ALLOWED = re.compile(
    r"blocks\.\d+\.(hook_(resid_pre|resid_mid|resid_post|attn_out|mlp_out|mlp_in)"
    r"|attn\.hook_[vz]|mlp\.hook_(pre|pre_linear|post))$"
)


@dataclass(frozen=True)
class Patch:
    """Values that replace those of one site at one layer in cells of a map. No (cell, position, index) may occur twice.

    Indices of cells, positions and heads or neurons are on the CPU, which avoids synchronising with a GPU.
    """

    site: Site
    layer: int
    """0..n_layers - 1; for "resid" also n_layers, the stream that the final norm reads."""
    values: Tensor
    """(n, width) on the model's device: width d_model, for "head", "q", "k" and "v" d_head, for "neuron" 1, for
    "pattern" the tokens that are attended to."""
    positions: Tensor
    """(n,) position of each row, a BOS counted; for "pattern" the position that attends."""
    cells: Tensor
    """(n,) the cell that each row belongs to."""
    index: Tensor | None = None
    """(n,) head or neuron of each row."""

    def __post_init__(self) -> None:
        for name in ("cells", "positions", "index"):
            numbers = getattr(self, name)
            if numbers is not None and numbers.device.type != "cpu":
                object.__setattr__(self, name, numbers.cpu())

    def write(self, value: Tensor, *indices: Tensor) -> None:
        """Write the rows into ``value`` (..., width) at ``indices`` (n,) of its leading axes; a flat axis of heads or
        neurons is split first."""
        rows = self.values.to(value.dtype)
        if self.index is None:
            value[indices] = rows
            return
        if value.ndim == len(indices) + 1:
            value = value.unflatten(-1, (-1, rows.shape[-1]))
        value[(*indices, self.index)] = rows

    def pick(self, chosen: Tensor, new_cells: Tensor) -> Patch:
        """The rows where ``chosen`` (n,) is true, with other cell numbers (old -> new)."""
        numbers = chosen.nonzero()[:, 0]
        index = None if self.index is None else self.index[numbers]
        return replace(
            self,
            cells=new_cells[self.cells[numbers]],
            positions=self.positions[numbers],
            values=self.values[numbers],
            index=index,
        )


@dataclass(frozen=True)
class PassPatch:
    """A change of one site at one layer in every pass inside `patched_passes`, also during generation."""

    site: Site
    """Of those outside of attention."""
    layer: int
    """As in `Patch`."""
    values: Tensor | Callable[[Tensor], Tensor]
    """(n, width) as in `Patch`, on the model's device, or (1, width) for all positions; or a function of the old values
    (..., width)."""
    text_positions: Tensor | None = None
    """(n,) text position of each row, on the CPU; None for all."""
    index: int | None = None
    """Head or neuron."""
    keeps_bos: bool = False
    """Whether a patch of all positions leaves out the BOS."""

    @functools.cached_property
    def _row_numbers(self) -> Tensor:
        """The row of ``values`` for each text position, -1 where nothing is replaced.

        Entry 0 is the BOS, at -1; the last entry stands for all later positions.
        """
        chosen = torch.empty(0, dtype=torch.long) if self.text_positions is None else self.text_positions
        table = torch.full((max(chosen.tolist(), default=-1) + 3,), -1, dtype=torch.long)
        several = isinstance(self.values, Tensor) and len(self.values) > 1
        table[chosen + 1] = torch.arange(len(chosen)) if several else 0
        return table

    def change(self, value: Tensor, text_positions: Tensor) -> Tensor:
        """A `Change`: ``value`` with the patch applied."""
        single = self.index is not None
        if single and value.ndim == 3:  # neurons
            value = value[..., None]
        if self.text_positions is None:
            hit = text_positions >= 0 if self.keeps_bos else torch.ones_like(text_positions, dtype=torch.bool)
            number = torch.zeros_like(text_positions)
        else:
            table = self._row_numbers.to(text_positions.device)
            number = table[(text_positions + 1).clamp(0, len(table) - 1)]
            hit, number = number >= 0, number.clamp(min=0)
        if isinstance(self.values, Tensor):
            new = self.values.to(value.dtype)[number]
            new = new.unsqueeze(2) if single else new
        else:
            new = self.values(value)
        mask = hit[..., None]
        if single:
            chosen = torch.arange(value.shape[2], device=value.device) == self.index
            mask = (mask & chosen)[..., None]
        changed = torch.where(mask, new, value)
        return changed[..., 0] if self.site == "neuron" else changed


def as_text_positions(positions: Tensor, n_bos: Tensor | int) -> Tensor:
    """Positions in a sequence that begins with ``n_bos`` BOS tokens, 0 or 1, as text positions."""
    return positions - n_bos


# ---- sites and hooks


def site_hook(site: Site, layer: int, n_layers: int) -> str:
    """HookedTransformer's name of the hook at a site."""
    if site == "resid" and layer == n_layers:
        return f"blocks.{n_layers - 1}.hook_resid_post"
    return f"blocks.{layer}.{_SITE_HOOKS[site]}"


def site_changes(
    network: Network, site: Site, layer: int, change: Callable[..., Tensor]
) -> list[tuple[str, Callable[..., Tensor]]]:
    """The hooks at which ``change`` of (value, anything) acts on the value at a site.

    For "attn_to_mlp" there is none if the MLP never reads the attention output. If it does, changed rows of its input
    become the stream entering the block plus the replacement of the attention output by ``change``, which does not see
    the old value.
    """
    if site != "attn_to_mlp":
        return [(site_hook(site, layer, network.n_layers), change)]
    if network.last_capabilities.parallel_layers[layer]:
        return []
    entering: list[Tensor] = []

    def keep(value: Tensor, grid_or_hook: Any) -> Tensor:
        entering[:] = [value]
        return value

    def enter(value: Tensor, grid_or_hook: Any) -> Tensor:
        attention = change(torch.full_like(value, torch.nan), grid_or_hook)  # rows that stay NaN are not changed
        return torch.where(attention.isnan(), value, entering.pop() + attention)

    return [(f"blocks.{layer}.hook_resid_pre", keep), (f"blocks.{layer}.hook_mlp_in", enter)]


def patched_passes(
    model: Network, patches: Sequence[PassPatch], *, all_threads: bool = False
) -> AbstractContextManager[None]:
    """Context manager that applies patches in every pass of this thread through the model; see `interventions`.

    Where two patches change the same value, the later one acts last.
    """
    changes = [change for patch in patches for change in site_changes(model, patch.site, patch.layer, patch.change)]
    return interventions(model, changes, all_threads=all_threads)


def entries_for(network: Network, hooks: Iterable[tuple[str, Any]]) -> tuple[Entry | None, ...]:
    """The ``mlp_entries`` for `attached`, if one of the hooks is at the MLP's input."""
    if not any(MLP_IN.match(name) for name, _ in hooks):
        return ()
    return remembered(network, "MLP entries", lambda: mlp_entries(network.tl_model))


# ---- changes inside a with


@contextmanager
def interventions(
    model: Network, changes: Sequence[tuple[str, Change]], *, all_threads: bool = False
) -> Iterator[None]:
    """Context manager that changes values in every pass of this thread through the model; the model is restored
    afterwards.

    It applies to `Model.run`, `Model.forward` and everything built on them, and to generation with its key/value cache.
    Inside, the model counts as hooked: whole sequences run through its own modules. Other threads are not affected,
    unless ``all_threads``. Contexts can be nested; the outer one changes a value first. TransformerLens's
    ``reset_hooks()`` does not remove them.

    Args:
        model: a `Model`.
        changes: pairs of a hook name and a function. The function gets the value, (batch, rows, ...), and the integer
            text positions of its rows, (batch, rows), in which a BOS is at -1. A sequence has a BOS if its first
            token's embedding is that of the BOS (in passes without visible embeddings, such as
            TransformerLens's own generation: if the model's policy adds one). With a cache the rows are the new tokens,
            and their positions continue those in the cache. Allowed in every block are hook_resid_pre, hook_resid_mid,
            hook_resid_post, hook_attn_out, hook_mlp_out, hook_mlp_in (the residual stream as the MLP's branch reads it,
            before its norm), attn.hook_v, attn.hook_z, mlp.hook_pre, mlp.hook_pre_linear and mlp.hook_post.
        all_threads: whether passes of other threads are changed too.

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
    scope = Scope(all_threads=all_threads)
    current, stack = _Pass(model, scope), ExitStack()
    try:
        with model.lock:
            first = embedding_hook(model.tl_model, model.backend)
            hooks: list[tuple[str, Callable[..., Tensor | None]]] = [(first, current.embedded)]
            for name, change in planned:
                hooks += placed(name, current.bound(name, change), model.backend)
            stack.enter_context(attached(model.tl_model, hooks, mlp_entries=entries_for(model, hooks), scope=scope))

            def begin(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
                current.begin(module, args, kwargs)

            mark(begin, scope)
            stack.callback(model.tl_model.blocks[0].register_forward_pre_hook(begin, with_kwargs=True).remove)
        yield
    finally:
        scope.open = False  # from here on the hooks do nothing, even in a running pass
        # A discarded generator may be closed by a thread that holds other locks, so this must not wait.
        wait = not isinstance(sys.exc_info()[1], GeneratorExit)
        held = False
        try:
            held = model.lock.acquire(blocking=wait)
        finally:  # also where Ctrl+C ends the wait
            try:
                stack.close()
            finally:
                if held:
                    model.lock.release()


# ---- positions of a pass


class _Pass(threading.local):
    """The pass that runs in a thread: its first position, and which sequences begin with a BOS."""

    def __init__(self, model: Network, scope: Scope) -> None:
        self.scope = scope
        self._bos = None if model.bos_token_id is None else model.token_embeddings([model.bos_token_id])[0]
        self._usual = int(model.prepend_bos)
        self._fed: Tensor | int | None = None
        self._front: Tensor | int = self._usual
        self._first = 0

    def embedded(self, value: Tensor, hook: Any) -> Tensor | None:
        """Called with the embeddings of a pass, (batch, rows, d_model)."""
        self._fed = 0 if self._bos is None else (value[:, 0] == self._bos).all(-1).long()[:, None]
        return value

    def begin(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        """Called before the first block: the pass begins after the positions in the block's cache."""
        if not self.scope.acts():
            return
        self._first = 0
        for argument in (*args, *(kwargs or {}).values()):
            if hasattr(argument, "get_seq_length") and not _without_positions(argument):  # transformers' cache
                self._first = int(argument.get_seq_length())
            elif hasattr(argument, "past_keys"):  # TransformerLens' cache of one layer
                self._first = int(argument.past_keys.shape[1])
        if self._first == 0:  # later passes continue the same sequences
            self._front = self._usual if self._fed is None else self._fed
        self._fed = None

    def text_positions(self, value: Tensor) -> Tensor:
        """(batch, rows) text positions of a value's rows."""
        positions = torch.arange(self._first, self._first + value.shape[1], device=value.device)
        return as_text_positions(positions.expand(value.shape[0], -1), self._front)

    def bound(self, name: str, change: Change) -> Callable[[Tensor, Any], Tensor]:
        """The change as a hook function, with the text positions."""

        def act(value: Tensor, hook: Any) -> Tensor:
            changed = change(value, self.text_positions(value))
            if not isinstance(changed, Tensor) or changed.shape != value.shape:
                got = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
                raise ValueError(f"the change of {name} must return a tensor of shape {tuple(value.shape)}, got {got}")
            return changed

        return act


def _without_positions(cache: Any) -> bool:
    """Whether a transformers cache holds states other than keys and values, as Mamba's does."""
    return all(not hasattr(layer, "keys") for layer in getattr(cache, "layers", ()) or ()) and bool(
        getattr(cache, "layers", ())
    )


# ---- checks of hooks


def _check_names(model: Network, names: Sequence[str]) -> None:
    """Check that the hooks exist, have positions on their second axis, and that changes there reach the logits."""
    check_hook_names(model.tl_model, names)
    for name in names:
        if not _ALLOWED.match(name):
            raise ValueError(
                f"hook {name!r} cannot be changed for longer than one pass: take a residual stream, hook_attn_out, "
                "hook_mlp_out, hook_mlp_in, attn.hook_v, attn.hook_z or one of the MLP's hook_pre and hook_post"
            )
    with model.lock:
        if has_hooks(model.tl_model):
            return  # a later hook may legitimately replace the value
        known = remembered(model, "hooks that reach the output", set[str])
        for name in names:
            kind = re.sub(r"\d+", "", name)
            if kind not in known and not MLP_IN.match(name):
                _check_effect(model, name)
                known.add(kind)


@torch.no_grad()
def _check_effect(model: Network, name: str) -> None:
    """Check that NaN at the hook gives NaN logits: in some architectures some hooks only observe the value."""
    ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    run = run_hooked(
        model.tl_model, ids, backend=model.backend, edit={name: lambda value: torch.full_like(value, torch.nan)}
    )
    if not bool(run.logits.isnan().all()):
        raise ValueError(f"hook {name!r} of {model.name} only observes: a change there does not reach the output")
