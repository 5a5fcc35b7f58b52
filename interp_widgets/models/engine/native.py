"""One loop over the blocks by their equations: whole passes, prefixes, patches, single positions, any last layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from ..patching import HEAD_INPUTS, Patch, Site
from ..stopping import stop_point
from .equations import Block, Equations, KeysValues, Rotation, SelectedRows, SiteCallback, unchanged
from .kernels import no_plan_per_shape
from .traces import Trace, empty_streams
from .trees import TreeMasks
from .unembed import vocabulary_block

__all__ = [
    "Rows",
    "IncrementalDecoder",
    "changed",
    "decode",
    "encode",
    "keys_values",
    "mlp_values",
    "patched",
    "residual_streams",
    "streams_at",
    "trace",
    "walk",
]

Project = Callable[[Block, Rotation | None], tuple[Tensor, Tensor, Tensor]]
"""Computes the (rotated) queries, keys and values of a block."""

_FEW_QUERIES = 16
"""Most query positions for which shared keys and values are not copied, as the scores are then smaller."""

Rows = slice | Tensor
"""Indices into the tokens of a pass: a slice, or integers (n,)."""


def walk(
    equations: Equations,
    blocks: Sequence[Block],
    stream: Tensor,
    first: int,
    *,
    past: Sequence[KeysValues] | Mapping[int, KeysValues] | None = None,
    at: SiteCallback = unchanged,
    last: slice | Tensor | None = None,
    fused: bool = True,
    project: Project | None = None,
    rotation: Rotation | None = None,
    tree: TreeMasks | None = None,
) -> Tensor:
    """The residual stream (batch, tokens, d_model) after some consecutive blocks.

    Args:
        equations: of the model.
        blocks: in order.
        stream: (batch, tokens, d_model) entering the first of them, at the positions from ``first`` on.
        first: position of the first token.
        past: by layer, keys and values (1 or batch, n_kv_heads, first, d_head) of the earlier positions.
        at: reads, and may replace, each value; keys and values include those of the past.
        last: the rows that the last block computes and returns: a slice, or one row (batch,) per sequence.
        fused: use the fused attention kernel, which has no forward-mode derivative.
        project: computes the queries, keys and values of the first block instead of `Block.project`.
        rotation: of at least all positions up to the last; computed if None.
        tree: masks of rows that hold several sequences; for whole passes.
    """
    total = first + stream.shape[1] if tree is None else tree.longest
    rotation = equations.rotation(total) if rotation is None else rotation
    if rotation is not None:
        rotation = rotation.at(slice(first, total) if tree is None else tree.positions[:, None])
    with no_plan_per_shape():
        for block in blocks:
            stop_point()
            layer, ends = block.index, block is blocks[-1]
            stream = at("resid", layer, stream)
            batch = len(stream)
            if project is not None and block is blocks[0]:
                query, key, value = project(block, rotation)
            else:
                query, key, value = block.project(block.norm1(stream), rotation, at)
            query = at("query", layer, query)
            if ends and isinstance(last, Tensor):
                rows = torch.arange(batch, device=stream.device)
                query, stream = query[rows, :, last][:, :, None], stream[rows, last][:, None]
            elif ends and last is not None:
                query, stream = query[:, :, last], stream[:, last]
            before = None if past is None else past[layer]
            if before is not None and len(before[0]) == 1 < batch and query.shape[2] <= _FEW_QUERIES:
                z = block.attend_shared(query, at("key", layer, key), at("value", layer, value), before)
            else:
                if before is not None:
                    old = (part.expand(batch, -1, -1, -1) for part in before)
                    key, value = (torch.cat(parts, dim=2) for parts in zip(old, (key, value), strict=True))
                key, value = at("key", layer, key), at("value", layer, value)
                if ends and isinstance(last, Tensor):
                    z = block.attend_one(query, key, value, first + last)
                else:
                    z = block.attend(query, key, value, fused=fused, tree=tree)
            stream = block.finish(stream, z, at)
    return stream


def encode(
    equations: Equations,
    embeddings: Tensor,
    *,
    positions: Rows | None = None,
    past: Sequence[KeysValues] | None = None,
    fused: bool = True,
    tree: TreeMasks | None = None,
) -> Tensor:
    """The unembedding's input (batch, positions, d_model) for token embeddings (batch, tokens, d_model).

    Args:
        positions: indices into the tokens; the last layer skips positions before the first of them.
        past: keys and values of earlier positions, of batch 1 or of the same batch.
        fused, tree: as in `walk`.
    """
    first = past[0][0].shape[2] if past else 0
    tokens = slice(0, embeddings.shape[1]) if positions is None else positions
    if isinstance(tokens, Tensor):
        tokens = tokens % embeddings.shape[1]  # negative ones count from the end
    reads, streams = equations.first_read, list[Tensor]()

    def at(site: str, layer: int, value: Tensor) -> Tensor:
        if site == "resid" and layer >= reads:
            streams.append(value[:, tokens])
        return value

    begin = _first_of(tokens, embeddings.shape[1])
    stream = walk(
        equations, equations.blocks(), equations.start(embeddings, first if tree is None else tree.positions), first,
        past=past, at=at if reads < equations.network.n_layers else unchanged,
        last=slice(begin, None) if begin else None, fused=fused, tree=tree,
    )  # fmt: skip
    if isinstance(tokens, Tensor):
        stream = stream[:, tokens - begin]
    else:
        rows = range(*tokens.indices(embeddings.shape[1]))
        if len(rows) != stream.shape[1] or rows.step != 1:
            stream = stream[:, [row - begin for row in rows]]
    return equations.read([*streams, stream])


def _first_of(tokens: Rows, length: int) -> int:
    if isinstance(tokens, Tensor):
        return int(tokens.min()) if len(tokens) else 0
    rows = range(*tokens.indices(length))
    return min(rows, default=0)


def keys_values(equations: Equations, embeddings: Tensor, layers: int | None = None) -> list[KeysValues]:
    """Keys and values of sequences (batch, tokens, d_model) in every layer, or in the first ``layers``."""
    cached: dict[tuple[int, str], Tensor] = {}

    def at(site: str, layer: int, value: Tensor) -> Tensor:
        if site in ("key", "value"):
            cached[layer, site] = value
        return value

    count = equations.network.n_layers if layers is None else layers
    walk(equations, equations.blocks(range(count)), equations.start(embeddings, 0), 0, at=at, last=slice(-1, None))
    return [(cached[layer, "key"], cached[layer, "value"]) for layer in range(count)]


def streams_at(
    equations: Equations, embeddings: Tensor, layers: Sequence[int], last: Tensor, past: Sequence[KeysValues] | None
) -> Tensor:
    """(batch, layers, d_model) the streams entering increasing ``layers`` at row ``last`` (batch,) of each sequence."""
    first = past[0][0].shape[2] if past else 0
    rows, seen = torch.arange(len(embeddings), device=embeddings.device), list[Tensor]()

    def at(site: str, layer: int, value: Tensor) -> Tensor:
        if site == "resid" and layer in layers:
            seen.append(value[rows, last])
        return value

    start, top = equations.start(embeddings, first), layers[-1]
    if top == 0:
        return start[rows, last][:, None]
    stream = walk(equations, equations.blocks(range(top)), start, first, past=past, at=at, last=last)
    return torch.stack([*seen, stream[:, 0]], dim=1)


@torch.no_grad()
def residual_streams(equations: Equations, embeddings: Tensor) -> Tensor:
    """`engine.residual_streams` of one sequence (1, positions, d_model)."""
    network, streams = equations.network, empty_streams(equations.network, embeddings.shape[1])

    def at(site: str, layer: int, value: Tensor) -> Tensor:
        if site == "resid":
            streams[:, layer] = value[0]
        return value

    end = walk(equations, equations.blocks(), equations.start(embeddings, 0), 0, at=at)
    streams[:, network.n_layers] = end[0]
    return streams.transpose(0, 1)


def mlp_values(
    equations: Equations, embeddings: Tensor, site: str, select: Mapping[int, Callable[[Tensor], Tensor]]
) -> dict[int, Tensor]:
    """By layer, what its function selects of the values (batch, tokens, width) at one site."""
    kept: dict[int, Tensor] = {}

    def at(name: str, layer: int, value: Tensor) -> Tensor:
        if name == site and layer in select:
            kept[layer] = select[layer](value)
        return value

    walk(equations, equations.blocks(range(max(select) + 1)), equations.start(embeddings, 0), 0, at=at)
    return kept


def decode(equations: Equations, hidden: Tensor, ids: slice | Tensor | None = None) -> Tensor:
    """Logits (..., d_vocab) of hidden states from `encode`, or those of some token ids, in the dtype of ``hidden``."""
    return vocabulary_block(equations.network, hidden, slice(None) if ids is None else ids)


# ---- token by token


class IncrementalDecoder:
    """Generates one sequence token by token with a key/value cache; reads the weights once."""

    def __init__(self, equations: Equations) -> None:
        self.equations = equations
        self.blocks = equations.blocks()
        self.length = 0
        """Tokens fed."""
        self.past: dict[int, KeysValues] = {}
        self._rotation: Rotation | None = None

    def advance(self, block: Block, stream: Tensor, *, last: slice | None = None) -> Tensor:
        """The stream after one block for the next positions (1, n, d_model), whose keys and values are cached."""
        layer, kept = block.index, dict[str, Tensor]()

        def at(site: str, _: int, value: Tensor) -> Tensor:
            if site in ("key", "value"):
                kept[site] = value
            return value

        first = self.past[layer][0].shape[2] if layer in self.past else 0
        past = self.past if layer in self.past else None
        rotation = self._rotation_until(first + stream.shape[1])
        stream = walk(self.equations, [block], stream, first, past=past, at=at, last=last, rotation=rotation)
        self.past[layer] = kept["key"], kept["value"]
        return stream

    def _rotation_until(self, stop: int) -> Rotation | None:
        """The rotation of positions 0..stop; its tables grow in large steps."""
        if self._rotation is None or len(self._rotation.cos) < stop:
            self._rotation = self.equations.rotation(stop, spare=stop)
        return self._rotation

    @torch.no_grad()
    def feed(self, embeddings: Tensor) -> Tensor:
        """Logits (1, 1, d_vocab) after the next tokens, given by their embeddings (1, n, d_model)."""
        stream = self.equations.start(embeddings, self.length)
        self.length += embeddings.shape[1]
        reads, streams = self.equations.first_read, list[Tensor]()
        for block in self.blocks:
            if block.index >= reads:
                streams.append(stream[:, -1:])
            stream = self.advance(block, stream, last=slice(-1, None) if block is self.blocks[-1] else None)
        return decode(self.equations, self.equations.read([*streams, stream]))


# ---- patched runs


def trace(equations: Equations, embeddings: Tensor, neurons: Sequence[int], sites: Sequence[Site] = ()) -> Trace:
    """`engine.trace` of sequences (batch, tokens, d_model) of one length."""
    network = equations.network
    kept: dict[tuple[str, int], Tensor] = {}

    def at(site: str, layer: int, value: Tensor) -> Tensor:
        wanted = layer in neurons if site == "neuron" else site not in HEAD_INPUTS or site in sites
        if wanted:
            kept[site, layer] = value
        return value

    end = walk(equations, equations.blocks(), equations.start(embeddings, 0), 0, at=at)
    layers = range(network.n_layers)
    resid = (*(kept["resid", layer] for layer in layers), end)
    heads = {"heads": network.n_heads}
    inputs: dict[tuple[Site, int], Tensor] = {}
    for site in sites:
        for layer in layers:
            if site == "pattern":
                query, key = kept["query", layer], kept["key", layer]
                value = equations.block(layer).pattern(query, key, slice(0, embeddings.shape[1]))
            else:
                value = kept[site, layer]
            inputs[site, layer] = value.transpose(1, 2)
    return Trace(
        native=True,
        hooked=False,
        embeddings=embeddings,
        hidden=equations.read([stream[:, -1] for stream in resid[equations.first_read :]]),
        resid=resid,
        attn=tuple(kept["attn", layer] for layer in layers),
        mlp=tuple(kept["mlp", layer] for layer in layers if ("mlp", layer) in kept),
        head=tuple(
            rearrange(kept["head", layer], "batch tokens (heads size) -> batch tokens heads size", **heads)
            for layer in layers
        ),
        neuron={layer: kept["neuron", layer] for layer in neurons if ("neuron", layer) in kept},
        inputs=inputs,
        projected=tuple((kept["query", layer], kept["key", layer], kept["value", layer]) for layer in layers),
    )


def patched(
    equations: Equations,
    trace: Trace,
    patches: Sequence[Patch],
    sequence: Tensor,
) -> Tensor:
    """(cells, d_model) the unembedding's input at the last position; every cell has a patch that can reach it.

    ``sequence`` (cells,) is on the CPU, like the indices of a patch.

    Layers and positions before the first patch keep the trace's values and reuse its keys and values. In the first
    block after a patch, only the patched rows get new queries, keys and values.
    """
    start = min(patch.layer for patch in patches)
    begin = min(int(patch.positions.min()) for patch in patches)
    n_layers, tokens, reads = trace.n_layers, trace.tokens, equations.first_read
    device = trace.embeddings.device
    cells = _Cells(trace, sequence.to(device), begin)
    # the final reading uses the traced streams below the first patch
    streams = [cells.clean(trace.resid[layer][:, -1]) for layer in range(reads, min(start, n_layers))]
    inside = [patch for patch in patches if patch.layer == start and patch.site != "resid"]
    entering = [patch for patch in patches if patch.layer == start and patch.site == "resid"]
    rows: _ChangedRows | None = None
    if inside and not entering and all(patch.site not in HEAD_INPUTS for patch in inside):
        if start >= reads:
            streams.append(cells.clean(trace.resid[start][:, -1]))
        rows = _after_first_block(equations.block(start), trace, inside, sequence)
        start += 1
        entering = [patch for patch in patches if patch.layer == start and patch.site == "resid"]
    elif start < n_layers and len(entering) == 1 and not inside:
        numbers, positions = _to_device(device, entering[0].cells, entering[0].positions)
        rows, entering = _ChangedRows(numbers, positions, entering[0].values), []
    stream = cells.whole(start, rows)
    for patch in entering:
        _write(patch, stream, begin)
    if start == n_layers:
        return equations.read([*streams, stream[:, -1]])
    later: dict[tuple[str, int], list[Patch]] = {}
    for patch in patches:
        if patch.layer > start or (patch.layer == start and patch.site != "resid"):
            later.setdefault((patch.site, patch.layer), []).append(patch)

    attended: dict[int, Tensor] = {}

    def at(site: str, layer: int, value: Tensor) -> Tensor:
        if ("pattern", layer) in later:
            if site == "value":
                attended[layer] = value
            elif site == "head":
                value = value.clone()
                for patch in later["pattern", layer]:
                    _write_pattern(patch, value, cells.all_values(attended[layer], layer), tokens - value.shape[1])
        if (site, layer) in later:
            value = value.clone()
            by_position = value.transpose(1, 2) if site in HEAD_INPUTS else value
            for patch in later[site, layer]:
                _write(patch, by_position, tokens - by_position.shape[1])
        if site == "resid" and layer >= reads:
            streams.append(value[:, -1])
        return value

    def project(block: Block, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """The clean queries, keys and values, except for the changed rows."""
        inside = any((site, block.index) in later for site in ("q", "k", "v"))
        if rows is None or entering or inside or len(rows.cells) == stream.shape[0] * stream.shape[1]:
            return block.project(block.norm1(stream), rotation, at)
        rotated = None if rotation is None else rotation.at(rows.positions - begin)
        changed = block.project(block.norm1(rows.values)[None], rotated)
        parts = []
        for part, new in zip(trace.projected[block.index], changed, strict=True):
            whole = cells.clean(part[:, :, begin:]).clone()
            whole[rows.cells, :, rows.positions - begin] = new[0].transpose(0, 1)
            parts.append(whole)
        query, key, value = parts
        return query, key, value

    end = walk(
        equations, equations.blocks(range(start, n_layers)), stream, begin, past=cells.past(), at=at,
        last=slice(-1, None), project=project,
    )  # fmt: skip
    for patch in later.get(("resid", n_layers), ()):
        end = end.clone()
        _write(patch, end, tokens - 1)
    return equations.read([*streams, end[:, -1]])


def changed(
    equations: Equations,
    trace: Trace,
    changes: Sequence[tuple[Site, int, Callable[[Tensor], Tensor]]],
    first: int,
    begin: int,
    count: int,
) -> Tensor:
    """(rows, d_model) the unembedding's input at the last position of runs of the traced sequence with changed values,
    from layer ``first`` and position ``begin`` on.

    ``count`` rows begin; a change of (rows, tokens, ...) at a site may return other rows. It sees the tokens that are
    computed: all from ``begin`` on, or the last one in the last layer.
    """
    n_layers = trace.n_layers
    by_site: dict[tuple[str, int], list[Callable[[Tensor], Tensor]]] = {}
    for site, layer, change in changes:
        by_site.setdefault((site, layer), []).append(change)

    def at(site: str, layer: int, value: Tensor) -> Tensor:
        for change in by_site.get((site, layer), ()):
            value = change(value.transpose(1, 2)).transpose(1, 2) if site in HEAD_INPUTS else change(value)
        return value

    stream = trace.resid[first][:, begin:].expand(count, -1, -1)
    if first < n_layers:
        past = trace.keys_values(begin) if begin else None
        blocks = equations.blocks(range(first, n_layers))
        stream = walk(equations, blocks, stream, begin, past=past, at=at, last=slice(-1, None))
    return equations.read([at("resid", n_layers, stream)[:, -1]])


def _write(patch: Patch, value: Tensor, first: int) -> None:
    """Apply a patch to the values (cells, rows, ...) of the positions from ``first`` on."""
    patch.write(value, *_to_device(value.device, patch.cells, patch.positions - first))


_PATTERN_ROWS = 1024
"""Rows of attention patterns that are multiplied with their values at once."""


def _write_pattern(patch: Patch, z: Tensor, values: Tensor, first: int) -> None:
    """Recompute, for the rows of a patch of attention patterns, the heads' outputs z (cells, rows, n_heads * d_head) of
    the positions from ``first`` on; ``values`` (cells, n_kv_heads, tokens, d_head)."""
    if patch.index is None:
        raise ValueError("a patch of attention patterns needs the head of every row")
    by_head = z.unflatten(-1, (-1, values.shape[-1]))
    cells, positions, index = _to_device(z.device, patch.cells, patch.positions - first, patch.index)
    shared = index // (by_head.shape[2] // values.shape[1])
    for part in torch.arange(len(cells), device=z.device).split(_PATTERN_ROWS):
        mixed = patch.values[part].to(values.dtype)[:, None] @ values[cells[part], shared[part]]
        by_head[cells[part], positions[part], index[part]] = mixed[:, 0]


def _to_device(device: torch.device, *numbers: Tensor) -> tuple[Tensor, ...]:
    """Integers (n,) each, moved to a device together, since each upload synchronises."""
    return torch.stack(numbers).to(device).unbind()


@dataclass(frozen=True)
class _ChangedRows:
    """The rows of a stream that differ from the trace."""

    cells: Tensor
    positions: Tensor
    values: Tensor
    """(n, d_model)"""


@dataclass(frozen=True)
class _Cells:
    """The traced values of each cell's sequence, from position ``begin`` on."""

    trace: Trace
    sequence: Tensor
    """(cells,)"""
    begin: int

    def clean(self, value: Tensor) -> Tensor:
        """(cells, ...) traced values (batch, ...); a view if all cells share one sequence."""
        if len(value) == 1:
            return value.expand(len(self.sequence), *value.shape[1:])
        return value[self.sequence]

    def whole(self, layer: int, rows: _ChangedRows | None) -> Tensor:
        """(cells, tokens - begin, d_model) the stream entering a layer, with the changed rows."""
        stream = self.clean(self.trace.resid[layer][:, self.begin :]).clone()
        if rows is not None:
            stream[rows.cells, rows.positions - self.begin] = rows.values.to(stream.dtype)
        return stream

    def all_values(self, value: Tensor, layer: int) -> Tensor:
        """(cells, n_kv_heads, tokens, d_head) the values of all positions, where ``value`` may lack the first ones."""
        missing = self.trace.tokens - value.shape[2]
        if missing == 0:
            return value
        return torch.cat([self.clean(self.trace.projected[layer][2][:, :, :missing]), value], dim=2)

    def past(self) -> Sequence[KeysValues] | None:
        """Keys and values of the positions before ``begin``."""
        if self.begin == 0:
            return None
        before = self.trace.keys_values(self.begin)
        return before if len(self.trace.embeddings) == 1 else SelectedRows(before, self.sequence)


def _after_first_block(block: Block, trace: Trace, patches: Sequence[Patch], sequence: Tensor) -> _ChangedRows:
    """The changed rows after the first patched block; its input is unchanged, so each row is independent."""
    numbers = [patch.cells * trace.tokens + patch.positions for patch in patches]
    keys = torch.cat(numbers).unique()
    cells, positions = keys // trace.tokens, keys % trace.tokens
    sequences = sequence[cells] if len(trace.embeddings) > 1 else torch.zeros_like(cells)
    cells, positions, sequences = _to_device(trace.embeddings.device, cells, positions, sequences)
    rows = sequences, positions

    def at(site: str, layer: int, value: Tensor) -> Tensor:
        for patch, number in zip(patches, numbers, strict=True):
            if patch.site == site:
                value = value.clone()
                patch.write(value, torch.searchsorted(keys, number))
        return value

    z = trace.head[block.index][rows].flatten(-2)
    return _ChangedRows(cells, positions, block.finish(trace.resid[block.index][rows], z, at))
