"""Runs in which one part's changed output reaches named readers only, and their first-order estimates.

Beside each run of a batch are rows for its shadows, whose stream is that of the run plus the changes of one or several
senders. Named readers take from a shadow what they compute (a query, a key, a value, the MLP's output, the logits);
everything else in the run reads the stream without the changes. Only sites of `Patch` are used, so that norms, rotary
embeddings and shared keys are the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..hooks import Objective, attached, check_hook_names
from ..network import Network
from ..patching import Patch, Site, site_hook
from . import modules, native
from .equations import Equations
from .jacobian import pulled_back
from .traces import Trace

__all__ = [
    "PathCells",
    "Reader",
    "Sender",
    "head_writes",
    "is_behind",
    "path_slopes",
    "sender_changes",
    "through_paths",
]

Sender = tuple[Literal["embeddings", "head", "attn", "mlp"], int, int]
"""What writes to the stream: kind, layer (-1 for the embeddings), and head (0 for the others)."""

Reader = tuple[Literal["q", "k", "v", "mlp", "logits"], int, int]
"""What reads the stream: site, layer (n_layers for the logits), and head or key/value head (0 for the others)."""


def is_behind(network: Network, reader: Reader, sender: Sender) -> bool:
    """Whether a reader can read what a sender writes."""
    (site, layer, _), (kind, written, _) = reader, sender
    if layer != written:
        return layer > written
    return site == "mlp" and kind != "mlp" and not network.last_capabilities.parallel_layers[layer]


@dataclass(frozen=True)
class PathCells:
    """Runs with readers that read changed senders: of each run one shadow with one sender, unless said otherwise."""

    layers: Tensor
    """(senders,) layer of each changed sender."""
    attention: Tensor
    """(senders,) whether it is attention or one of its heads; otherwise it is the MLP."""
    changes: Tensor
    """(senders, tokens, d_model) by how much its output changes."""
    readers: Sequence[Collection[Reader]]
    """(shadows,) who reads each shadow; in one run no reader reads two."""
    shadows: Tensor | None = None
    """(senders,) the shadow that each change is part of; None if each has its own."""
    runs: Tensor | None = None
    """(shadows,) the run of each shadow, from 0 without a gap; None if each has its own."""

    @property
    def run_of(self) -> Tensor:
        """(shadows,) the run of each shadow, on the device of the changes."""
        runs = torch.arange(len(self.readers)) if self.runs is None else self.runs
        return runs.to(self.changes.device)

    def of(self, chosen: Tensor) -> Tensor:
        """(shadows, tokens, d_model) the changes of the senders where ``chosen`` (senders,) is true."""
        mask = chosen.to(self.changes.device)[:, None, None]
        changes = torch.where(mask, self.changes, torch.zeros_like(self.changes))
        if self.shadows is None:
            return changes
        total = changes.new_zeros((len(self.readers), *changes.shape[1:]))
        return total.index_add_(0, self.shadows.to(changes.device), changes)

    def read_at(self, site: str) -> bool:
        """Whether any layer reads there."""
        return any(name == site for readers in self.readers for name, _, _ in readers)

    def reading(self, site: str, layer: int) -> tuple[Tensor, Tensor]:
        """Shadows and heads (m,) each that are read at this site of a layer."""
        pairs = [
            (shadow, index)
            for shadow, readers in enumerate(self.readers)
            for name, at, index in readers
            if name == site and at == layer
        ]
        numbers = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)
        shadows, heads = numbers.to(self.changes.device).unbind(1)
        return shadows, heads


@torch.no_grad()
def through_paths(
    network: Network,
    trace: Trace,
    cells: PathCells,
    *,
    equations: Equations | None,
    split: bool,
    start: modules.Start | None,
) -> Tensor:
    """(runs, width) what `decode` takes at the last position of each run.

    By the `equations`, from the first layer that reads and the first position that changes on; else by the modules,
    from that layer on where passes may `start` there. Only layers that read have rows for the shadows, except in passes
    whose number of rows is fixed.
    """
    run_of, n_layers = cells.run_of, trace.n_layers
    count = int(run_of.max()) + 1
    fixed = equations is None and (network.backend == "bridge" or modules.runs_whole(network, trace))
    changes: list[tuple[Site, int, Callable[[Tensor], Tensor]]] = []

    def shadow(site: Site, layer: int, added: Tensor) -> None:
        def change(value: Tensor) -> Tensor:
            return torch.cat([value[:count], value[run_of] + added[:, -value.shape[1] :].to(value.dtype)])

        changes.append((site, layer, change))

    def take(site: Site, layer: int) -> None:
        shadows, heads = cells.reading(site, layer)
        if not len(shadows):
            return
        rows = run_of[shadows]

        def change(value: Tensor) -> Tensor:
            new = value.clone()
            if site == "mlp":
                new[rows] = value[count + shadows]
            else:
                new[rows, :, heads] = value[count + shadows, :, heads]
            return new

        changes.append((site, layer, change))

    reading_layers = sorted({layer for readers in cells.readers for _, layer, _ in readers})
    for layer in reading_layers:
        shadow("resid", layer, cells.of(cells.layers < layer))
        if layer == n_layers:
            break
        for site in ("q", "k", "v"):
            take(site, layer)
        if len(cells.reading("mlp", layer)[0]):
            shadow("attn", layer, cells.of((cells.layers == layer) & cells.attention))
            take("mlp", layer)
        if not fixed and layer + 1 not in reading_layers:
            changes.append(("resid", layer + 1, lambda value: value[:count]))
    first = reading_layers[0]
    if equations is not None:
        moved = cells.changes.ne(0).any(-1).any(0).nonzero()
        begin = int(moved[0]) if len(moved) else trace.tokens - 1
        hidden = native.changed(equations, trace, changes, first, begin, count)
    else:
        rows = torch.zeros(count + len(run_of) * fixed, dtype=torch.long, device=trace.embeddings.device)
        hooks = [(site_hook(site, layer, n_layers), _as_hook(change)) for site, layer, change in changes]
        hidden = modules.from_layer(network, trace, hooks, first, rows, split=split, start=start)
    found = hidden[:count].clone()
    reading, _ = cells.reading("logits", n_layers)
    found[run_of[reading]] = hidden[count + reading]
    return found


def _as_hook(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda value, hook: change(value)


@torch.no_grad()
def head_writes(network: Network, trace: Trace, patches: Sequence[Patch], cells: int, *, split: bool) -> Tensor:
    """(cells, tokens, d_model) what attention adds to the stream, each cell with one head's outputs replaced."""
    kept: dict[int, Tensor] = {}

    def replacing(patch: Patch) -> Callable[..., Tensor]:
        def act(value: Tensor, hook: Any) -> Tensor:
            new = value.clone()
            patch.write(new, patch.cells, patch.positions)
            return new

        return act

    def keeping(layer: int) -> Callable[..., Tensor]:
        def act(value: Tensor, hook: Any) -> Tensor:
            kept[layer] = value
            return value

        return act

    hooks = [(site_hook("head", patch.layer, trace.n_layers), replacing(patch)) for patch in patches]
    hooks += [
        (site_hook("attn", layer, trace.n_layers), keeping(layer)) for layer in {patch.layer for patch in patches}
    ]
    check_hook_names(network.tl_model, [name for name, _ in hooks])
    with attached(network.tl_model, hooks):
        embeddings = trace.embeddings.expand(cells, -1, -1)
        modules.encode(network, embeddings, positions=slice(-1, None), whole=trace.hooked, split=split)
    written = torch.empty_like(trace.attn[0]).repeat(cells, 1, 1)
    for patch in patches:
        rows = patch.cells.unique().to(written.device)
        written[rows] = kept[patch.layer][rows].to(written.dtype)
    return written


def sender_changes(
    network: Network,
    clean: Trace,
    corrupted: Trace,
    senders: Sequence[Sender],
    fed: Tensor,
    *,
    split: bool,
    equations: Equations | None,
) -> Tensor:
    """(senders, tokens, d_model) by how much each sender's output differs at the positions ``fed`` (n,).

    With the model's `equations`, a head's output goes through its output matrix only; else through the whole model.
    """
    changes = torch.zeros_like(clean.resid[0]).repeat(len(senders), 1, 1)
    heads = [(row, layer, head) for row, (kind, layer, head) in enumerate(senders) if kind == "head"]
    if equations is not None:
        for layer in {layer for _, layer, _ in heads}:
            moved = (corrupted.head[layer] - clean.head[layer])[0, fed]
            block = equations.block(layer)
            written = torch.einsum("nhs,hsd->hnd", moved, block.w_out.unflatten(0, (block.heads, block.size)))
            for row, at, head in heads:
                if at == layer:
                    changes[row, fed] = written[head].to(changes.dtype)
        heads = []
    patches = [
        Patch("head", layer, corrupted.head[layer][0, fed, head], fed, torch.full_like(fed, cell),
              torch.full_like(fed, head))
        for cell, (_, layer, head) in enumerate(heads)
    ]  # fmt: skip
    written = head_writes(network, clean, patches, len(heads), split=split) if heads else changes[:0]
    for cell, (row, layer, _) in enumerate(heads):
        changes[row, fed] = (written[cell] - clean.attn[layer][0])[fed]
    for row, (kind, layer, _) in enumerate(senders):
        if kind != "head":
            site, at = ("resid", 0) if kind == "embeddings" else (kind, layer)
            before, after = (each.value(site, at)[0] for each in (clean, corrupted))  # type: ignore[arg-type]
            changes[row, fed] = (after - before)[fed]
    return changes


def path_slopes(
    network: Network,
    ids: Sequence[int],
    objective: Objective,
    readers: Sequence[Reader],
    changes: Tensor,
    embeddings: Tensor | None = None,
) -> Tensor:
    """(senders, readers) the derivative of an objective along each change of the stream as each reader alone reads it.

    One forward pass, one backward pass to what the readers compute, and from there for each reader through its norm and
    its matrices only. Whether the reader is behind the sender is not asked.

    Args:
        network: a `Model`.
        ids: of one sequence, with the BOS.
        objective: a function from the logits (1, tokens, d_vocab) to one number.
        readers: heads' queries, keys and values, MLPs and the logits.
        changes: (senders, tokens, d_model), from `sender_changes`.
        embeddings: (tokens, d_model) token embeddings in place of the ids' own.
    """
    values: dict[str, Tensor] = {}
    slopes = changes.new_zeros((len(changes), len(readers)), dtype=torch.promote_types(changes.dtype, torch.float32))

    def keeping(name: str) -> Callable[[Tensor], Tensor]:
        def keep(value: Tensor) -> Tensor:
            values[name] = value
            return value

        return keep

    def differentiate(logits: Tensor) -> Tensor:
        measured = objective(logits)
        places = {reader[:2]: _ends(network, *reader[:2]) for reader in readers}
        outputs = [values.get(written, measured) for _, written in places.values()]
        # zero where nothing of it reaches the last position
        pulls = torch.autograd.grad(measured, outputs, retain_graph=True, allow_unused=True, materialize_grads=True)
        for (place, (read, _)), output, pull in zip(places.items(), outputs, pulls, strict=True):
            columns = [column for column, reader in enumerate(readers) if reader[:2] == place]
            rows = pull[None] if place[0] in ("mlp", "logits") else _of_each(pull, [readers[c][2] for c in columns])
            gradients = pulled_back(output, values[read], rows)[:, 0].to(slopes.device, slopes.dtype)
            slopes[:, columns] = torch.einsum("std,rtd->sr", changes.to(slopes.dtype), gradients)
        return measured.detach()

    names = {name for reader in readers for name in _ends(network, *reader[:2]) if name}
    network.run(ids, embeddings=embeddings, edit={name: keeping(name) for name in sorted(names)}, grad=differentiate)
    return slopes.detach()


def _ends(network: Network, site: str, layer: int) -> tuple[str, str]:
    """The hook at the stream that a reader reads, and that at what it computes; "" for the objective itself.

    An MLP behind attention reads the stream plus what attention adds to it, and of the MLP's output only that depends
    on what is added there.
    """
    if site == "logits":
        return site_hook("resid", layer, network.n_layers), ""
    behind = site == "mlp" and not network.capabilities.parallel_layers[layer]
    return site_hook("attn" if behind else "resid", layer, network.n_layers), site_hook(site, layer, network.n_layers)  # type: ignore[arg-type]


def _of_each(gradient: Tensor, heads: Sequence[int]) -> Tensor:
    """(heads, 1, tokens, all heads, size) the gradient of each head alone."""
    rows = torch.zeros_like(gradient).repeat(len(heads), *[1] * (gradient.ndim - 1))[:, None]
    for row, head in enumerate(heads):
        rows[row, :, :, head] = gradient[:, :, head]
    return rows
