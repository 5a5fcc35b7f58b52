"""Runs in which one part's changed output reaches named readers only, through the model's own modules.

Each cell has two rows of a batch: its run, and beside it a shadow, whose stream is that of the run plus the change of
the sender. Named readers take from the shadow what they compute (a query, a key, a value, the MLP's output, the
logits); everything else in the run reads the stream without the change. Only hooks of `Patch` sites are used, so that
norms, rotary embeddings and shared keys are the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..hooks import attached, check_hook_names
from ..network import Network
from ..patching import Patch, Site, site_hook
from . import modules
from .traces import Trace

__all__ = ["PathCells", "Reader", "head_writes", "through_paths"]

Reader = tuple[Literal["q", "k", "v", "mlp", "logits"], int, int]
"""What reads the stream: site, layer (n_layers for the logits), and head or key/value head (0 for the others)."""


@dataclass(frozen=True)
class PathCells:
    """Cells of one sender and some readers each."""

    layers: Tensor
    """(n,) layer of the sender."""
    attention: Tensor
    """(n,) whether it is attention or one of its heads; otherwise it is the MLP."""
    changes: Tensor
    """(n, tokens, d_model) by how much its output changes."""
    readers: Sequence[Collection[Reader]]
    """(n,) the readers of each cell."""

    def of(self, chosen: Tensor) -> Tensor:
        """(n, tokens, d_model) the changes of the cells where ``chosen`` (n,) is true, 0 elsewhere."""
        mask = chosen.to(self.changes.device)[:, None, None]
        return torch.where(mask, self.changes, torch.zeros_like(self.changes))

    def reading(self, site: str, layer: int) -> tuple[Tensor, Tensor]:
        """Cells and heads (m,) each that read at this site of a layer."""
        pairs = [
            (cell, index)
            for cell, readers in enumerate(self.readers)
            for name, at, index in readers
            if name == site and at == layer
        ]
        numbers = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)
        cells, heads = numbers.to(self.changes.device).unbind(1)
        return cells, heads


@torch.no_grad()
def through_paths(network: Network, trace: Trace, cells: PathCells, *, split: bool) -> Tensor:
    """(n, width) what `decode` takes at the last position of each cell's run."""
    count, n_layers = len(cells.readers), trace.n_layers
    hooks: list[tuple[str, Callable[..., Tensor]]] = []

    def shadow(site: Site, layer: int, added: Tensor) -> None:
        def act(value: Tensor, hook: Any) -> Tensor:
            return torch.cat([value[:count], value[:count] + added.to(value.dtype)])

        hooks.append((site_hook(site, layer, n_layers), act))

    def take(site: Site, layer: int) -> None:
        rows, heads = cells.reading(site, layer)
        if not len(rows):
            return

        def act(value: Tensor, hook: Any) -> Tensor:
            new = value.clone()
            if site == "mlp":
                new[rows] = value[count + rows]
            else:
                new[rows, :, heads] = value[count + rows, :, heads]
            return new

        hooks.append((site_hook(site, layer, n_layers), act))

    for layer in sorted({layer for readers in cells.readers for name, layer, _ in readers if name != "logits"}):
        shadow("resid", layer, cells.of(cells.layers < layer))
        for site in ("q", "k", "v"):
            take(site, layer)
        if len(cells.reading("mlp", layer)[0]):
            shadow("attn", layer, cells.of((cells.layers == layer) & cells.attention))
            take("mlp", layer)
    reading, _ = cells.reading("logits", n_layers)
    if len(reading):
        shadow("resid", n_layers, cells.changes)
    check_hook_names(network.tl_model, [name for name, _ in hooks])
    with attached(network.tl_model, hooks):
        embeddings = trace.embeddings.expand(2 * count, -1, -1)
        hidden = modules.encode(network, embeddings, positions=slice(-1, None), whole=trace.hooked, split=split)[:, 0]
    found = hidden[:count].clone()
    found[reading] = hidden[count + reading]
    return found


@torch.no_grad()
def head_writes(network: Network, trace: Trace, patches: Sequence[Patch], cells: int, *, split: bool) -> Tensor:
    """(cells, tokens, d_model) what attention adds to the stream, each cell with one head's outputs replaced."""
    kept: dict[int, Tensor] = {}

    def replacing(patch: Patch) -> Callable[..., Tensor]:
        def act(value: Tensor, hook: Any) -> Tensor:
            new = value.clone()
            patch.write(new, *patch.cells_and_positions)
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
        rows = patch.cells_and_positions[0].unique().to(written.device)
        written[rows] = kept[patch.layer][rows].to(written.dtype)
    return written
