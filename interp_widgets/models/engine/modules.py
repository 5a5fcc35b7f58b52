"""Passes through a model's own modules: HookedTransformer's blocks, or the transformers model inside a bridge.

They work for every model. If the user has hooks on it, passes run in full (``whole=True``), so that every hook sees the
same positions as in a normal pass.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import transformerlens
from ..bridge_cache import cache_keyword
from ..devices import is_spread
from ..hooks import attached, check_hook_names
from ..network import Network
from ..patching import Patch, Site, entries_for, site_changes, site_hook
from ..read_out import read_out_of
from ..soft_cap import soft_cap, soft_capped
from .equations import KeysValues, SelectedRows
from .traces import Trace, empty_streams

__all__ = [
    "Start",
    "block_outputs",
    "cache_layers",
    "cached_steps",
    "decode",
    "drop_pattern",
    "encode",
    "from_layer",
    "keys_values",
    "mlp_values",
    "patched",
    "query_key_hooks",
    "read_values",
    "run_blocks",
    "runs_whole",
    "score_form",
    "score_soft_cap",
    "streams_at",
    "trace",
    "unembedding_input",
]


# ---- whole passes and prefixes


def keys_values(network: Network, embeddings: Tensor) -> list[KeysValues]:
    """Keys and values of every layer as the model's own cache holds them, sequences (batch, tokens, d_model) first.

    Of a HookedTransformer not rotated, (batch, positions, n_kv_heads, d_head); of a bridge (batch, n_kv_heads,
    positions, d_head). Empty where a model's cache is of another kind: its sequences run whole.
    """
    if network.backend == "bridge":
        return _bridge_keys_values(network.tl_model, embeddings)
    cfg = network.tl_model.cfg
    stream, short = _enter_blocks(network.tl_model, embeddings, 0)
    made = []
    for block in network.tl_model.blocks:
        stream = stream.to(next(block.parameters()).device)
        empty = stream.new_empty(len(stream), 0, cfg.n_key_value_heads or cfg.n_heads, cfg.d_head)
        entry = _cache_entry(empty, empty, frozen=False)
        stream = block(stream, past_kv_cache_entry=entry, shortformer_pos_embed=short)
        made.append((entry.past_keys, entry.past_values))
    return made


def encode(
    network: Network,
    embeddings: Tensor,
    *,
    positions: slice | Tensor | None = None,
    past: Sequence[KeysValues] | None = None,
    whole: bool = False,
    split: bool = True,
) -> Tensor:
    """Hidden states (batch, positions, d_model) that `decode` turns into logits; logits with ``split=False``.

    Args:
        positions: indices into the tokens given here; all by default.
        past: keys and values of earlier positions, from `keys_values`.
        whole: run the model's own pass in full, because the user has hooks on it.
        split: whether the model's logits are just the soft-capped unembedding of one state.
    """
    if network.backend == "bridge":
        return _bridge_encode(network.tl_model, embeddings, positions, past, whole, split)
    stream, short = _enter_blocks(network.tl_model, embeddings, past[0][0].shape[1] if past else 0)
    stream = _through_blocks(network.tl_model, stream, short, 0, past)
    return _leave_blocks(network.tl_model, stream, positions, whole)


def decode(network: Network, hidden: Tensor) -> Tensor:
    """Logits (..., d_vocab) of hidden states from `encode`, by the model's own unembedding."""
    flat = hidden if hidden.ndim == 3 else hidden.reshape(1, -1, hidden.shape[-1])
    logits = soft_capped(network.tl_model.unembed(flat), soft_cap(network.tl_model))
    return logits.to(hidden.device).reshape(*hidden.shape[:-1], logits.shape[-1])


def cache_layers(past: Sequence[KeysValues], backend: str, length: int) -> list[KeysValues]:
    """The first ``length`` positions of keys and values from `keys_values`."""
    axis = 2 if backend == "bridge" else 1
    return [(key.narrow(axis, 0, length), value.narrow(axis, 0, length)) for key, value in past]


# ---- HookedTransformer's blocks


def _cache_entry(key: Tensor, value: Tensor, *, frozen: bool) -> Any:
    """TransformerLens's cache of one layer; a block does not append to a frozen one."""
    return transformerlens.part("TransformerLensKeyValueCacheEntry")(past_keys=key, past_values=value, frozen=frozen)


def _enter_blocks(tl_model: Any, embeddings: Tensor, first: int) -> tuple[Tensor, Tensor | None]:
    """The first residual stream, and what a shortformer adds to queries and keys."""
    stream, short = tl_model.get_residual(
        tl_model.hook_embed(embeddings), first, return_shortformer_pos_embed=True, device=embeddings.device
    )
    return stream, short


def _through_blocks(
    tl_model: Any, stream: Tensor, short: Tensor | None, first: int, past: Sequence[KeysValues] | None = None
) -> Tensor:
    """The stream after the blocks from index ``first`` on."""
    for index, block in enumerate(tl_model.blocks[first:], start=first):
        stream = stream.to(next(block.parameters()).device)
        entry = None
        if past:
            key, value = (part.expand(len(stream), -1, -1, -1) for part in past[index])
            entry = _cache_entry(key, value, frozen=True)
        stream = block(stream, past_kv_cache_entry=entry, shortformer_pos_embed=short)
    return stream


def _leave_blocks(tl_model: Any, stream: Tensor, positions: slice | Tensor | None, whole: bool) -> Tensor:
    normalise = tl_model.ln_final if tl_model.cfg.normalization_type is not None else (lambda x: x)
    chosen = slice(None) if positions is None else positions
    # a mixture reads several whole streams
    if whole or read_out_of(tl_model) is not None:
        return normalise(stream)[:, chosen]
    return normalise(stream[:, chosen])


# ---- the transformers model inside a bridge


def _bridge_keys_values(tl_model: Any, embeddings: Tensor) -> list[KeysValues]:
    from transformers import DynamicCache

    cache = DynamicCache()
    try:
        options = {cache_keyword(tl_model.original_model): cache, "use_cache": True}
        with unembedding_input(tl_model, keep=False):
            tl_model.original_model(inputs_embeds=embeddings, **options)
    except (AttributeError, TypeError, ValueError, LookupError, NotImplementedError):
        return []  # an architecture with a cache of its own kind
    layers = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cache.layers]
    complete = [(k, v) for k, v in layers if k is not None and v is not None and k.shape[2] == embeddings.shape[1]]
    return complete if complete and len(complete) == tl_model.cfg.n_layers else []


def _bridge_options(tl_model: Any, batch: int, past: Sequence[KeysValues] | None) -> dict[str, Any]:
    """Keyword arguments of a pass of ``batch`` sequences from embeddings."""
    options = _without_cache(tl_model)
    if past:
        options = {"use_cache": True, cache_keyword(tl_model.original_model): _frozen_cache(past, batch)}
    if hasattr(tl_model, "pos_embed"):  # the bridge repeats position ids by this number
        tl_model.pos_embed._current_batch_size = batch
    return options


def _frozen_cache(past: Sequence[KeysValues], batch: int) -> Any:
    """transformers' cache of earlier positions, which does not keep those of the pass."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    length = past[0][0].shape[2]

    class Frozen(DynamicLayer):
        """A layer's keys and values, to which a pass adds its own for itself only."""

        def __init__(self, layer: int) -> None:
            super().__init__()
            self.layer, self.is_initialized = layer, True

        def get_seq_length(self) -> int:
            return length

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            key, value = (part.expand(batch, -1, -1, -1) for part in past[self.layer])
            return torch.cat([key, key_states], dim=-2), torch.cat([value, value_states], dim=-2)

    cache = DynamicCache()
    cache.layers = [Frozen(layer) for layer in range(len(past))]
    return cache


def _without_cache(tl_model: Any) -> dict[str, Any]:
    """What keeps a bridge's pass from filling a cache. Layers of linear attention fill theirs: without one the bridge
    runs a copy of them, which is not made for every version of transformers."""
    kinds = getattr(tl_model.original_model.config.get_text_config(), "layer_types", None) or ()
    return {} if "linear_attention" in kinds else {"use_cache": False}


def _bridge_encode(
    tl_model: Any,
    embeddings: Tensor,
    positions: slice | Tensor | None,
    past: Sequence[KeysValues] | None,
    whole: bool,
    split: bool,
) -> Tensor:
    options = _bridge_options(tl_model, embeddings.shape[0], past)
    keep = None if whole or positions is None else _rows_to_keep(tl_model, positions, embeddings)
    chosen = slice(None) if positions is None or keep is not None else positions
    if whole:
        embeddings = tl_model.embed.hook_out(embeddings)
    if keep is not None:
        options["logits_to_keep"] = keep
    if not split:
        return tl_model.original_model(inputs_embeds=embeddings, **options).logits.to(embeddings.device)[:, chosen]
    with unembedding_input(tl_model, keep=whole) as caught:
        tl_model.original_model(inputs_embeds=embeddings, **options)
    return caught[0].to(embeddings.device)[:, chosen]


def _rows_to_keep(tl_model: Any, positions: slice | Tensor, embeddings: Tensor) -> int | Tensor | None:
    """The positions as transformers takes them: the number of last ones, or (n,) indices; None where these would be
    brought to another device than the states that they index."""
    tokens = embeddings.shape[1]
    if isinstance(positions, slice):
        rows = range(tokens)[positions]
        if rows and rows == range(rows.start, tokens):
            return len(rows)
        positions = torch.tensor(list(rows), device=embeddings.device)
    return None if is_spread(tl_model) else positions


@contextmanager
def unembedding_input(tl_model: Any, *, keep: bool) -> Iterator[list[Tensor]]:
    """Collects the unembedding's input; unless ``keep``, the pass ends there, and what follows it in the block is
    skipped: the weights of a large vocabulary are most of a small model, and reading them takes as long as the rest."""
    caught: list[Tensor] = []
    thread, stop = threading.get_ident(), _StopPass()

    def catch(module: Any, inputs: tuple[Tensor, ...]) -> None:
        if threading.get_ident() == thread:
            caught.append(inputs[0])
            if not keep:
                raise stop

    handle = tl_model.unembed.register_forward_pre_hook(catch)
    try:
        yield caught
    except _StopPass as stopped:
        if stopped is not stop:  # what is around it has stopped the pass before
            raise
    finally:
        handle.remove()


# ---- token by token


def cached_steps(network: Network) -> Callable[[Tensor], Tensor]:
    """A function from more token ids (1, n) of one sequence to the logits after them, by the model's own cache."""
    tl_model = network.tl_model
    if network.backend == "bridge":
        past: list[Any] = [None]
        keyword = cache_keyword(tl_model.original_model)

        def bridge_step(ids: Tensor) -> Tensor:
            output = tl_model.original_model(ids, use_cache=True, **{keyword: past[0]})
            past[0] = output[keyword]
            return output.logits

        return bridge_step
    cache = transformerlens.part("TransformerLensKeyValueCache").init_cache(tl_model.cfg, network.device, 1)
    # the mask is given because TransformerLens would otherwise ask a tokenizer for it
    return lambda ids: tl_model(ids, past_kv_cache=cache, attention_mask=torch.ones_like(ids))


# ---- values read at hooks


@torch.no_grad()
def run_blocks(
    network: Network, batch: Tensor, hooks: Sequence[tuple[str, Callable[..., Tensor]]], *, whole: bool
) -> None:
    """A pass over token ids (batch, positions) through all blocks with these hooks; no unembedding unless ``whole``.

    ``hooks``: names, and functions of (value, hook) that return the value.
    """
    tl_model = network.tl_model
    with network.lock, attached(tl_model, hooks):
        if whole:
            tl_model(batch)
        elif network.backend != "bridge":
            tl_model(batch, stop_at_layer=network.n_layers)
        else:
            with unembedding_input(tl_model, keep=False):
                tl_model(batch, **_without_cache(tl_model))


def read_values(
    network: Network, batch: Tensor, readers: Sequence[tuple[str, Callable[[Tensor], None]]], *, whole: bool
) -> None:
    """Call functions with the values at hooks, in the order of a pass over ids (batch, tokens).

    The patterns that a bridge keeps are freed layer by layer. The pass ends after the layer of the last value unless
    ``whole``.
    """
    tl_model, silent = network.tl_model, {name for name, _ in readers}
    known = frozenset(tl_model.hook_dict)

    def reading(name: str, function: Callable[[Tensor], None]) -> Callable[..., Tensor]:
        def read(value: Tensor, hook: Any) -> Tensor:
            silent.discard(name)
            function(value.detach())
            return value

        return read

    def dropping(layer: int) -> Callable[..., Tensor]:
        def drop(value: Tensor, hook: Any) -> Tensor:
            drop_pattern(tl_model.blocks[layer])
            if not silent and not whole:
                raise _StopPass
            return value

        return drop

    hooks = [(name, reading(name, function)) for name, function in readers]
    ends = [(site_hook("resid", layer + 1, network.n_layers), layer) for layer in range(network.n_layers)]
    check_hook_names(tl_model, [name for name, _ in hooks])
    after = [(name, dropping(layer)) for name, layer in ends if name in known]
    with contextlib.suppress(_StopPass):
        run_blocks(network, batch, hooks + after, whole=whole)
    if silent:
        raise ValueError(f"hook {min(silent)!r} exists but does not run in this model's forward pass")


def query_key_hooks(network: Network, layer: int, part: str) -> tuple[str, str] | None:
    """The hooks of queries (``q``) or keys (``k``) as projected, and behind their norm (the same where there is none).

    None for a norm whose output no hook shows, or that is no RMSNorm.
    """
    tl_model, prefix = network.tl_model, f"blocks.{layer}.attn"
    norm, projected = getattr(tl_model.blocks[layer].attn, f"{part}_norm", None), f"{prefix}.hook_{part}"
    if norm is None:
        return projected, projected
    normed = f"{prefix}.{part}_norm.hook_out"
    if network.backend != "bridge" or normed not in tl_model.hook_dict:
        return None
    return (projected, normed) if "RMS" in type(getattr(norm, "original_component", norm)).__name__ else None


def score_soft_cap(network: Network, layer: int) -> float:
    """The soft cap of a layer's attention scores; 0 for none."""
    attention = network.tl_model.blocks[layer].attn
    if network.backend == "bridge":
        cap = getattr(attention.original_component, "attn_logit_softcapping", None)
    else:
        cap = getattr(network.tl_model.cfg, "attn_scores_soft_cap", None)
    return max(0.0, float(cap or 0))


def score_form(
    network: Network,
    batch: Tensor,
    query: tuple[str, tuple[int, ...]],
    key: tuple[str, tuple[int, ...]],
    score: tuple[str, tuple[int, ...]],
    *,
    whole: bool,
) -> tuple[Tensor, float]:
    """`engine.score_form` for ids (1, positions)."""
    kept: dict[str, Tensor] = {}

    def put(name: str, place: tuple[int, ...], scale: float) -> Callable[..., Tensor]:
        def write(value: Tensor, hook: Any) -> Tensor:
            kept[name] = (scale * value.detach()[place]).requires_grad_(True)
            new = value.detach().clone()
            new[place] = kept[name]
            return new

        return write

    def read(value: Tensor, hook: Any) -> Tensor:
        kept["score"] = value[score[1]]
        if not whole:
            raise _StopPass
        return value

    hooks = [("query", query, 1.0), ("key", key, 0.0)]
    functions = [(name, put(label, place, scale)) for label, (name, place), scale in hooks] + [(score[0], read)]
    check_hook_names(network.tl_model, [name for name, _ in functions])
    with network.lock, torch.enable_grad(), network.frozen(), attached(network.tl_model, functions):
        with contextlib.suppress(_StopPass):
            network.tl_model(batch)
        (slope,) = torch.autograd.grad(kept["score"], kept["query"], create_graph=True)
        rows = [torch.autograd.grad(number, kept["key"], retain_graph=True)[0] for number in slope]
    return torch.stack(rows).detach(), float(kept["score"].detach())


@torch.no_grad()
def residual_streams(network: Network, batch: Tensor, *, whole: bool) -> Tensor:
    """`engine.residual_streams` of ids (1, positions) by the model's own modules."""
    streams = empty_streams(network, batch.shape[1])

    def keep(layer: int) -> Callable[..., Tensor]:
        def write(value: Tensor, hook: object) -> Tensor:
            streams[:, layer] = value[0]
            if layer > 0:
                drop_pattern(network.tl_model.blocks[layer - 1])
            return value

        return write

    layers = range(network.n_layers + 1)
    hooks = [(site_hook("resid", layer, network.n_layers), keep(layer)) for layer in layers]
    run_blocks(network, batch, hooks, whole=whole)
    return streams.transpose(0, 1)


def drop_pattern(block: Any) -> None:
    """Free the attention pattern (heads, positions, positions) that a bridge leaves on the module."""
    attention = getattr(block, "attn", None)
    if attention is not None and getattr(attention, "_pattern", None) is not None:
        attention._pattern = None


class _StopPass(Exception):
    """Ends a pass once the last required value has been read."""


def streams_at(
    network: Network, embeddings: Tensor, layers: Sequence[int], last: Tensor, past: Sequence[KeysValues] | None
) -> Tensor:
    """(batch, layers, d_model) the streams entering rising ``layers`` at row ``last`` (batch,) of each sequence.

    An exception ends the pass after the last required stream.
    """
    tl_model, rows = network.tl_model, torch.arange(len(embeddings), device=embeddings.device)
    seen: dict[int, Tensor] = {}

    def keep(layer: int) -> Callable[..., Tensor]:
        def read(value: Tensor, hook: Any) -> Tensor:
            seen[layer] = value[rows, last].to(embeddings.device)
            if layer > 0:
                drop_pattern(tl_model.blocks[layer - 1])
            if layer == layers[-1]:
                raise _StopPass
            return value

        return read

    hooks = [(site_hook("resid", layer, network.n_layers), keep(layer)) for layer in layers]
    with contextlib.suppress(_StopPass), attached(tl_model, hooks):
        encode(network, embeddings, past=past)
    if len(seen) < len(layers):
        raise ValueError(f"{network.name} does not show the residual stream between its layers, so it cannot be read")
    return torch.stack([seen[layer] for layer in layers], dim=1)


def mlp_values(
    network: Network, ids: Tensor, site: Site, select: Mapping[int, Callable[[Tensor], Tensor]], *, whole: bool
) -> dict[int, Tensor]:
    """By layer, what its function takes of the values (batch, tokens, width) at one site, for ids (batch, tokens).

    The pass ends after the last of the layers unless ``whole``.
    """
    tl_model, kept = network.tl_model, dict[int, Tensor]()

    def keep(layer: int) -> Callable[..., Tensor]:
        def read(value: Tensor, hook: Any) -> Tensor:
            kept[layer] = select[layer](value)
            drop_pattern(tl_model.blocks[layer])
            if layer == max(select) and not whole:
                raise _StopPass
            return value

        return read

    names = {layer: site_hook(site, layer, network.n_layers) for layer in select}
    hooks = [(name, keep(layer)) for layer, name in names.items()]
    if whole:
        run_blocks(network, ids, hooks, whole=True)
    else:
        with contextlib.suppress(_StopPass), attached(tl_model, hooks):
            encode(network, network.embed(ids))
    silent = next((name for layer, name in names.items() if layer not in kept), None)
    if silent is not None:
        raise ValueError(f"hook {silent!r} exists but does not run in this model's forward pass")
    return kept


def trace(
    network: Network,
    embeddings: Tensor,
    neurons: Sequence[int],
    kept_sites: Sequence[Site] = (),
    *,
    whole: bool,
    split: bool,
) -> Trace:
    """Run sequences (batch, tokens, d_model) of one length and keep what their layers compute."""
    layers, has = range(network.n_layers), network.capabilities
    sites = {"attn": has.attention, "mlp": has.mlp, "head": has.heads}
    wanted: list[tuple[Any, int]] = [("resid", layer) for layer in range(network.n_layers + 1)]
    wanted += [(site, layer) for layer in layers for site, there in sites.items() if there]
    wanted += [("neuron", layer) for layer in neurons]
    wanted += [(site, layer) for site in kept_sites for layer in layers]
    names = {key: site_hook(*key, network.n_layers) for key in wanted}
    check_hook_names(network.tl_model, names.values())
    kept: dict[str, Tensor] = {}

    def inside(site: Site, layer: int) -> Tensor:
        value = kept[names[site, layer]]
        return value.transpose(1, 2) if site == "pattern" else value

    def keeping(name: str) -> Callable[..., Tensor]:
        def keep(value: Tensor, hook: Any) -> Tensor:
            kept[name] = value.detach()
            return value

        return keep

    with attached(network.tl_model, [(name, keeping(name)) for name in names.values()]):
        hidden = encode(network, embeddings, positions=slice(-1, None), whole=whole, split=split)[:, 0]
    silent = next((name for name in names.values() if name not in kept), None)
    if silent is not None:
        raise ValueError(f"hook {silent!r} exists but does not run in this model's forward pass")
    return Trace(
        native=False,
        hooked=whole,
        embeddings=embeddings,
        hidden=hidden,
        resid=tuple(kept[names["resid", layer]] for layer in range(network.n_layers + 1)),
        attn=tuple(kept[names["attn", layer]] for layer in layers if sites["attn"]),
        mlp=tuple(kept[names["mlp", layer]] for layer in layers if sites["mlp"]),
        head=tuple(kept[names["head", layer]] for layer in layers if sites["head"]),
        neuron={layer: kept[names["neuron", layer]] for layer in neurons},
        inputs={(site, layer): inside(site, layer) for site in kept_sites for layer in layers},
    )


def patched(
    network: Network,
    trace: Trace,
    patches: Sequence[Patch],
    sequence: Tensor,
    *,
    split: bool,
    start: Start | None = None,
) -> Tensor:
    """(cells, width) what `decode` takes at the last position.

    From the first patched layer on, and of a bridge from the first layer; with a ``start`` of both from the first
    patched layer and position on, unless the passes are whole (`runs_whole`).
    """
    start = None if runs_whole(network, trace) else start
    begin = 0 if start is None else min(int(patch.positions.min()) for patch in patches)
    past = None
    if begin:
        held = cache_layers(trace.past(partial(keys_values, network)), network.backend, begin)
        past = SelectedRows(held, sequence) if len(trace.embeddings) > 1 else held
        patches = [replace(patch, positions=patch.positions - begin) for patch in patches]

    hooks: list[tuple[str, Callable[..., Tensor]]] = []
    for patch in sorted(patches, key=lambda patch: patch.site == "attn_to_mlp"):  # these read what others put
        hooks += site_changes(network, patch.site, patch.layer, _patch_hook(patch))
    first = min(patch.layer for patch in patches)
    return from_layer(network, trace, hooks, first, sequence, split=split, start=start, begin=begin, past=past)


def runs_whole(network: Network, trace: Trace) -> bool:
    """Whether changed runs start at the embeddings: a mixture of depths reads the streams of all layers, and hooks of
    the user see whole passes."""
    return trace.hooked or read_out_of(network.tl_model) is not None


def from_layer(
    network: Network,
    trace: Trace,
    hooks: Sequence[tuple[str, Callable[..., Tensor]]],
    first: int,
    sequence: Tensor,
    *,
    split: bool,
    start: Start | None,
    begin: int = 0,
    past: Sequence[KeysValues] | None = None,
) -> Tensor:
    """(rows, width) what `decode` takes at the last position of traced sequences that run again with these hooks, from
    layer ``first`` and position ``begin`` on.

    Earlier layers are left out, except of a bridge without a ``start`` and where passes are whole (`runs_whole`). In a
    HookedTransformer whose passes are not whole a hook may change the number of rows.
    """
    tl_model, n_layers = network.tl_model, trace.n_layers
    embeddings, last = trace.embeddings[sequence, begin:], slice(-1, None)
    if network.backend == "bridge" and start is not None and start.output is not None:
        entering = trace.resid[first][sequence, begin:]
        hooks = [(site_hook("resid", first, n_layers), lambda value, hook: entering), *hooks]
    check_hook_names(tl_model, [name for name, _ in hooks])
    with attached(tl_model, hooks, mlp_entries=entries_for(network, hooks)):
        if network.backend == "bridge":
            with _blocks_passed_by(tl_model, first, start):
                return encode(network, embeddings, positions=last, past=past, whole=trace.hooked, split=split)[:, 0]
        if runs_whole(network, trace):
            return encode(network, embeddings, positions=last, whole=trace.hooked, split=split)[:, 0]
        stream = trace.resid[first][sequence, begin:]
        if first == n_layers:
            stream = tl_model.blocks[-1].hook_resid_post(stream)
        _, short = _enter_blocks(tl_model, embeddings[:1], begin)  # the same for every row
        return _leave_blocks(tl_model, _through_blocks(tl_model, stream, short, first, past), last, False)[:, 0]


@dataclass(frozen=True)
class Start:
    """That patched runs may start at their first patched position, behind the keys and values of the traced run."""

    output: type | None
    """What the blocks of a bridge return, a tensor or a tuple of one, where runs may start at a layer too."""


@contextmanager
def block_outputs(network: Network) -> Iterator[set[type | None]]:
    """Collects what the blocks of a model return: `Tensor`, or ``tuple`` of one; None for anything else."""
    kinds: set[type | None] = set()

    def note(block: Any, inputs: Any, output: Any) -> None:
        single = isinstance(output, tuple) and len(output) == 1
        kinds.add(Tensor if isinstance(output, Tensor) else tuple if single else None)

    with contextlib.ExitStack() as stack:
        for block in network.tl_model.blocks:
            stack.callback(block.register_forward_hook(note).remove)
        yield kinds


@contextmanager
def _blocks_passed_by(tl_model: Any, first: int, start: Start | None) -> Iterator[None]:
    """The blocks in front of the first patched one hand on what they get, instead of computing."""
    if start is None or start.output is None:
        yield
        return
    as_tuple = start.output is tuple

    def hand_on(hidden_states: Tensor, *inputs: Any, **keywords: Any) -> Any:
        return (hidden_states,) if as_tuple else hidden_states

    # a bridge's block would pass on what is set at it to the block of transformers inside
    tables = [vars(block) for block in list(tl_model.blocks)[: min(first, len(tl_model.blocks) - 1)]]
    own = [{name: table[name] for name in table.keys() & {"forward"}} for table in tables]
    try:
        for table in tables:
            table["forward"] = hand_on
        yield
    finally:
        for table, before in zip(tables, own, strict=True):
            del table["forward"]
            table.update(before)


def _patch_hook(patch: Patch) -> Callable[..., Tensor]:
    def write(value: Tensor, hook: Any) -> Tensor:
        new = value.clone()
        patch.write(new.transpose(1, 2) if patch.site == "pattern" else new, patch.cells, patch.positions)
        return new

    return write
