"""Continue a forward pass from a layer on, with some of its values replaced, for many replacements at once.

`trace` runs a sequence once and keeps what its layers computed. `resume` then answers, for each of many *cells*, what
the last position's hidden state would be if certain values had been others. A `Patch` says which: rows of a residual
stream, of an attention or MLP output, of single heads or neurons, at any layers and positions. Ablated modules,
restored states and windows of causal tracing, whole corrupted streams are all the same thing here.

Nothing is computed that cannot change: layers before the first patch and positions before it keep the trace's values,
whose keys and values are reused; in the first layer after a patch only the patched rows have new queries, keys and
values; of the last layer only the last position is computed. A HookedTransformer without hooks takes the plain
equations (`plain_resume`). Other models run with hooks in their own modules (`hook_resume`): a HookedTransformer from
the first patched layer on, a bridge whole, and both whole while the user has hooks on the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from .interventions import mlp_branch

__all__ = ["Part", "Patch", "Trace", "resume", "trace"]

Part = Literal["resid", "attn", "mlp", "attn_to_mlp", "head", "neuron"]
"""What can be replaced at a layer: the residual stream that enters the block; what attention or the MLP adds to the
stream; attention's output as the MLP alone reads it; what one head reads (before the output matrix); one neuron."""


@dataclass(frozen=True)
class Patch:
    """Rows that take the place of one part's values at one layer. No place may occur twice."""

    part: Part
    layer: int
    """0..n_layers - 1; for "resid" also n_layers, the stream that the final norm reads."""
    cell: Tensor
    """(n,) which cell each row belongs to."""
    at: Tensor
    """(n,) position of each row in the sequence as it is fed."""
    rows: Tensor
    """(n, width) the values: width d_model, for "head" d_head, for "neuron" 1."""
    index: Tensor | None = None
    """(n,) which head or neuron."""

    def put(self, value: Tensor, *place: Tensor) -> None:
        """Write the rows into ``value`` (..., width) at the places (n,) of its leading axes."""
        where = place if self.index is None else (*place, self.index)
        value[where] = self.rows.to(value.dtype)

    def pick(self, chosen: Tensor, renamed: Tensor) -> Patch:
        """The rows where ``chosen`` (n,) is true, with other cell numbers (old -> new)."""
        index = None if self.index is None else self.index[chosen]
        return replace(self, cell=renamed[self.cell[chosen]], at=self.at[chosen], rows=self.rows[chosen], index=index)


@dataclass(frozen=True)
class Trace:
    """What the layers computed for one sequence, or for several of one length (``batch``)."""

    way: Literal["plain", "hooks"]
    hooked: bool
    """The user had hooks on the model: every pass runs whole."""
    backend: str
    embeddings: Tensor
    """(batch, tokens, d_model) that were fed."""
    hidden: Tensor
    """(batch, width) the last position's hidden state, for `forward.decode`."""
    resid: tuple[Tensor, ...]
    """Per layer and once more, (batch, tokens, d_model): the stream entering the block, then the final norm."""
    attn: tuple[Tensor, ...]
    """Per layer (batch, tokens, d_model): what attention adds to the stream."""
    mlp: tuple[Tensor, ...]
    """Per layer (batch, tokens, d_model): what the MLP adds to the stream; empty for a model without MLPs."""
    head: tuple[Tensor, ...]
    """Per layer (batch, tokens, n_heads, d_head): what each head reads, before the output matrix."""
    neuron: Mapping[int, Tensor] = field(default_factory=dict)
    """(batch, tokens, d_mlp) for the layers asked for."""
    projected: tuple[tuple[Tensor, Tensor, Tensor], ...] = ()
    """Per layer queries, keys and values, (batch, heads, tokens, d_head), where the plain equations run."""

    @property
    def n_layers(self) -> int:
        return len(self.resid) - 1

    @property
    def tokens(self) -> int:
        """Length of the sequence."""
        return self.embeddings.shape[1]

    def length(self, first: int) -> int:
        """How many positions of a cell are computed when its first patch is at position ``first``."""
        return self.tokens - first if self.way == "plain" else self.tokens

    def value(self, part: Part, layer: int) -> Tensor:
        """(batch, tokens, [heads or neurons,] width) the traced values that a patch would replace."""
        match part:
            case "resid":
                return self.resid[layer]
            case "attn" | "attn_to_mlp":
                return self.attn[layer]
            case "mlp":
                return self.mlp[layer] if self.mlp else torch.zeros_like(self.attn[layer])
            case "head":
                return self.head[layer]
            case "neuron":
                if layer not in self.neuron:
                    raise ValueError(f"the neurons of layer {layer} were not kept: trace(..., neurons=({layer},))")
                return self.neuron[layer][..., None]


@torch.no_grad()
def trace(model: Any, embeddings: Tensor, *, neurons: Sequence[int] = ()) -> Trace:
    """Run sequences of one length once and keep what their layers compute.

    Args:
        model: a `Model`.
        embeddings: (batch, tokens, d_model) token embeddings; corrupted ones too.
        neurons: layers whose neurons are kept as well.

    Raises:
        ValueError: a wrong shape, or more tokens than the model's context.

    Example:
        >>> ids = model.tokens("The capital of France is")
        >>> clean = trace(model, model.token_embeddings(ids)[None])
        >>> len(clean.resid), clean.resid[0].shape
        (7, torch.Size([1, 6, 192]))
    """
    from . import hook_resume, plain_resume
    from .forward import checked_way, has_hooks

    with model.lock:
        way, hooked = checked_way(model, embeddings), has_hooks(model.tl_model)
        run = plain_resume.trace if way == "plain" else hook_resume.trace
        return run(model, embeddings, tuple(neurons), hooked)


@torch.no_grad()
def resume(
    model: Any,
    trace: Trace,
    patches: Sequence[Patch],
    cells: int,
    *,
    sequence: Tensor | None = None,
    check: Callable[[], None] | None = None,
) -> Tensor:
    """(cells, width) hidden states of the last position with the patches in force, for `forward.decode`.

    A patch holds whatever happens before it in the same cell: at a layer behind another patch it replaces the changed
    value. A cell whose patches all put in what is there anyway, or what the last position cannot see, keeps the trace's
    hidden state exactly.

    Args:
        model: the `Model` of the trace.
        trace: from `trace`.
        patches: what is replaced; a cell may have several.
        cells: how many. All run as one batch from the first patched position on, so put near positions together.
        sequence: (cells,) which of the trace's sequences each cell starts from; the first by default.
        check: called before every layer; raises to cancel.

    Raises:
        ValueError: hooks were put on or taken off the model since the trace.

    Example:
        >>> from interp_widgets.models.forward import decode
        >>> ids = model.tokens("The capital of France is")
        >>> clean = trace(model, model.token_embeddings(ids)[None])
        >>> cell, at = torch.arange(2, device=model.device), torch.tensor([3, 4], device=model.device)
        >>> gone = Patch("mlp", 5, cell, at, torch.zeros(2, model.d_model, device=model.device))
        >>> decode(model, resume(model, clean, [gone], 2)).shape
        torch.Size([2, 4096])
    """
    from . import hook_resume, plain_resume
    from .forward import checked_way, has_hooks

    device = trace.embeddings.device
    start = torch.zeros(cells, dtype=torch.long, device=device) if sequence is None else sequence.to(device)
    with model.lock:
        plain = checked_way(model, trace.embeddings) == "plain"
        if plain != (trace.way == "plain") or has_hooks(model.tl_model) != trace.hooked:
            raise ValueError("the trace was made before hooks were put on or taken off the model: make it again")
        hidden = trace.hidden[start]
        live, useful = _useful(model, trace, patches, start)
        chosen = live.nonzero()[:, 0]
        if len(chosen) == 0:
            return hidden
        renamed = torch.full((cells,), -1, device=device)
        renamed[chosen] = torch.arange(len(chosen), device=device)
        kept = [patch.pick(rows & live[patch.cell], renamed) for patch, rows in zip(patches, useful, strict=True)]
        run = plain_resume.run if plain else hook_resume.run
        found = run(model, trace, [patch for patch in kept if len(patch.at)], start[chosen], check or (lambda: None))
        return hidden.index_copy(0, chosen, found.to(hidden.dtype))


def _useful(model: Any, trace: Trace, patches: Sequence[Patch], start: Tensor) -> tuple[Tensor, list[Tensor]]:
    """(cells,) which cells can change at all, and for each patch which of its rows the last position can see."""
    live = torch.zeros_like(start, dtype=torch.bool)
    useful = []
    for patch in patches:
        seen = torch.full_like(patch.at, _exists(model, trace, patch.part), dtype=torch.bool)
        behind = patch.layer == trace.n_layers or (patch.layer == trace.n_layers - 1 and patch.part != "resid")
        if behind and not trace.hooked:  # no attention follows that could carry it to the last position
            seen &= patch.at == trace.tokens - 1
        useful.append(seen)
        if bool(seen.any()):
            place = (start[patch.cell], patch.at) + (() if patch.index is None else (patch.index,))
            other = (trace.value(patch.part, patch.layer)[place] != patch.rows).any(-1)
            live[patch.cell[seen & other]] = True
    return live, useful


def _exists(model: Any, trace: Trace, part: Part) -> bool:
    """Whether there is anything to replace: some models have no MLPs, or MLPs that never read the attention."""
    if part in ("mlp", "neuron", "attn_to_mlp") and not trace.mlp:
        return False
    return part != "attn_to_mlp" or mlp_branch(model).reads_attention
