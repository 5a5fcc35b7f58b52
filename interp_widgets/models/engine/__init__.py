"""The one way through a model: hidden states, logits, derivatives and patched runs from token embeddings.

Two engines give the same numbers. *native* computes the equations of the blocks, for models that they describe and that
have no hooks of the user. *modules* runs the model's own modules (HookedTransformer's blocks, or the transformers model
inside a bridge), for all others. Each route (whole pass, prefix, patched run, derivative) is compared with the model's
own pass before it is first used on a model (`routes`).

While the user has hooks on the model, whole sequences run through the model's own modules, so that every hook sees the
same positions as in a normal pass. This module applies that rule; the passes outside it (`linearised`, a mixture's
early exit) ask `has_hooks` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..hooks import has_hooks, scopes_left
from ..network import Network
from ..patching import Patch, Site, site_hook
from . import modules, native, paths, unembed
from .equations import Equations, KeysValues, SelectedRows
from .jacobian import AutogradJacobian, Jacobian, NativeJacobian, NoForwardMode
from .modules import query_key_hooks, score_soft_cap
from .paths import PathCells, Reader, Sender, is_behind, path_slopes
from .routes import (
    CheckedRoutes,
    ExpectedRuns,
    checked_routes,
    comparing_flops,
    comparing_seconds,
    expected_equations,
    expected_runs,
    head_inputs_agree,
    last_checked_routes,
    patched_start,
    routes_are_known,
    scaled_by_length,
)
from .traces import Trace
from .trees import TokenTree, TreeMasks, pack
from .unembed import ReadOut

__all__ = [
    "SharedPrefixes",
    "ExpectedRuns",
    "Jacobian",
    "NoForwardMode",
    "PathCells",
    "Prefix",
    "ReadOut",
    "Reader",
    "Sender",
    "TokenTree",
    "Trace",
    "TreeMasks",
    "comparing_flops",
    "comparing_seconds",
    "shared_prefixes",
    "decode",
    "decode_blocks",
    "encode",
    "expects_native",
    "expects_runs",
    "forward",
    "has_hooks",
    "is_behind",
    "decodes_in_blocks",
    "jacobian_at",
    "mean_embedding",
    "mlp_values",
    "pack",
    "can_pack",
    "can_pad",
    "patched",
    "path_slopes",
    "prefix",
    "query_key_hooks",
    "read_out",
    "read_values",
    "score_form",
    "score_soft_cap",
    "residual_streams",
    "sender_changes",
    "streams_at",
    "through_paths",
    "token_logits",
    "trace",
    "incremental_decoder",
    "knows_routes",
]


# ---- which engine


@dataclass(frozen=True)
class _Route:
    """How one call goes through a model."""

    hooked: bool
    """Whether the user has hooks on the model; if so, passes run in full."""
    checked: CheckedRoutes

    @property
    def equations(self) -> Equations | None:
        """The equations of the native engine; None if the model's own modules run."""
        return None if self.hooked else self.checked.equations

    @property
    def native(self) -> bool:
        return self.equations is not None

    def split(self, network: Network) -> bool:
        """Whether logits can be computed from one hidden state after the pass."""
        return self.checked.split or network.backend == "hooked"


def _route(network: Network, tokens: int, *, compare: bool = True) -> _Route:
    """The route through a model for sequences of ``tokens`` tokens.

    Routes are compared with scoped hooks (such as an active ablation) disabled. With ``compare=False``, for the steps
    after a pass such as its logits, the last comparison is used without checking the model for changes.
    """
    find = checked_routes if compare else last_checked_routes
    if not has_hooks(network.tl_model):
        return _Route(False, find(network, tokens))
    with scopes_left(network.tl_model):
        return _Route(True, find(network, 0))


def can_pad(network: Network) -> bool:
    """Whether sequences of different lengths may share a batch, padded on the right.

    False while the user has hooks on the model, which would see the padding, and for rotary embeddings scaled by the
    length of a pass, which padding would change.
    """
    return not has_hooks(network.tl_model) and not scaled_by_length(network)


def can_pack(network: Network, tokens: int) -> bool:
    """Whether sequences of up to ``tokens`` tokens may be packed into one row, sharing common prefixes."""
    with network.lock:
        return _route(network, tokens).native


def expects_native(network: Network, tokens: int = 1) -> bool:
    """Whether sequences of up to ``tokens`` tokens will probably be packed, and logits computed in blocks.

    For forecasts, which never wait for a model that computes; `can_pack` and `decodes_in_blocks` say it exactly.
    """
    return not has_hooks(network.tl_model) and expected_equations(network, tokens) is not None


def expects_runs(network: Network) -> ExpectedRuns:
    """How patched runs will probably be computed, for forecasts."""
    return expected_runs(network, hooked=has_hooks(network.tl_model))


def knows_routes(network: Network) -> bool:
    """Whether the routes for short sequences are known, so that `expects_native` is exact for them."""
    return has_hooks(network.tl_model) or routes_are_known(network, 1)


# ---- whole passes


@dataclass(frozen=True)
class Prefix:
    """Keys and values of the first positions of one sequence, or their embeddings if they must be recomputed."""

    native: bool
    backend: str
    length: int
    """Number of positions."""
    layers: tuple[KeysValues, ...] = ()
    embeddings: Tensor | None = None
    """(1, length, d_model) if every pass recomputes the prefix: the model has hooks or no usable cache."""

    def first(self, length: int) -> Prefix | None:
        """The prefix cut to its first ``length`` positions; None if ``length`` is 0."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length must be in 0..{self.length} for this prefix, got {length}")
        if length == 0:
            return None
        if self.embeddings is not None:
            return Prefix(self.native, self.backend, length, embeddings=self.embeddings[:, :length])
        layout = "bridge" if self.native else self.backend  # both have positions on the third axis
        return Prefix(self.native, self.backend, length, tuple(modules.cache_layers(self.layers, layout, length)))


def prefix(network: Network, embeddings: Tensor) -> Prefix:
    """Keys and values of the first positions of a sequence, computed once for many continuations.

    Args:
        network: a `Model`.
        embeddings: (1, positions, d_model) token embeddings.

    Example:
        >>> embeddings = model.token_embeddings(model.tokens("The Eiffel Tower is in the city of"))[None]
        >>> start = prefix(model, embeddings[:, :5])
        >>> forward(model, embeddings[:, 5:], prefix=start).shape
        torch.Size([1, 4, 4096])
    """
    _check_embeddings(network, embeddings, 0)
    if embeddings.shape[0] != 1:
        raise ValueError(f"a prefix belongs to one sequence: embeddings must have batch 1, got {embeddings.shape[0]}")
    length = embeddings.shape[1]
    with network.lock, torch.no_grad():
        route = _route(network, length)
        if route.hooked or not route.checked.cache:
            return Prefix(route.native, network.backend, length, embeddings=embeddings)
        layers = _keys_values(network, route, embeddings)
    return Prefix(route.native, network.backend, length, tuple(layers))


def _keys_values(
    network: Network, route: _Route, embeddings: Tensor, layers: int | None = None
) -> Sequence[KeysValues]:
    if route.equations is not None:
        return native.keys_values(route.equations, embeddings, layers)
    return modules.keys_values(network, embeddings)


def forward(
    network: Network, embeddings: Tensor, *, positions: slice | Tensor | None = None, prefix: Prefix | None = None
) -> Tensor:
    """Logits (batch, positions, d_vocab) from token embeddings; the model adds position information itself.

    Supports gradients, forward-mode derivatives and vmap. Only the requested positions get logits.

    Args:
        network: a `Model`.
        embeddings: (batch, tokens, d_model) token embeddings, without those of the prefix.
        positions: indices into these tokens, a slice or a (n,) tensor; all by default.
        prefix: from `prefix`, shared by the whole batch.

    Raises:
        ValueError: a wrong shape, or more positions than fit the model's context.
    """
    return decode(network, encode(network, embeddings, positions=positions, prefix=prefix))


def encode(
    network: Network,
    embeddings: Tensor,
    *,
    positions: slice | Tensor | None = None,
    prefix: Prefix | None = None,
    tree: TreeMasks | None = None,
) -> Tensor:
    """The hidden states (batch, positions, width) that `decode` turns into logits; arguments as in `forward`.

    Their width is d_model, or d_vocab if the model's logits are more than the soft-capped unembedding of one state.
    With a ``tree`` (if `can_pack`, and without a prefix) each row holds several sequences.
    """
    before = 0 if prefix is None else prefix.length
    _check_embeddings(network, embeddings, before, tree)
    chosen = positions.to(embeddings.device) if isinstance(positions, Tensor) else positions
    with network.lock:
        tokens = before + embeddings.shape[1] if tree is None else tree.longest
        route = _route(network, tokens, compare=prefix is None)
        if tree is not None and not route.native:
            raise ValueError("hooks were added to the model while its sequences were being packed: run it again")
        past = None
        if prefix is not None and prefix.embeddings is None:
            if route.hooked or prefix.native != route.native:
                raise ValueError(
                    "the prefix was computed before hooks were added to or removed from the model: compute it again"
                )
            past = prefix.layers
        elif prefix is not None and prefix.embeddings is not None:
            rows = torch.arange(embeddings.shape[1], device=embeddings.device)
            chosen = before + (rows if chosen is None else rows[chosen])
            embeddings = torch.cat([prefix.embeddings.expand(embeddings.shape[0], -1, -1), embeddings], dim=1)
        if route.equations is not None:
            fused = not (embeddings.requires_grad and torch.is_grad_enabled()) and not _is_dual(embeddings)
            return native.encode(route.equations, embeddings, positions=chosen, past=past, fused=fused, tree=tree)
        return modules.encode(
            network, embeddings, positions=chosen, past=past, whole=route.hooked, split=route.split(network)
        )


def _is_dual(x: Tensor) -> bool:
    return torch._C._functorch.is_functorch_wrapped_tensor(x) or forward_ad.unpack_dual(x).tangent is not None


def _check_embeddings(network: Network, embeddings: Tensor, before: int, tree: TreeMasks | None = None) -> None:
    if not isinstance(embeddings, Tensor) or not embeddings.is_floating_point():
        got = embeddings.dtype if isinstance(embeddings, Tensor) else type(embeddings).__name__
        raise TypeError(f"embeddings must be a tensor of floating-point numbers, got {got}")
    if embeddings.ndim != 3 or embeddings.shape[2] != network.d_model or embeddings.shape[1] == 0:
        raise ValueError(
            f"embeddings must have shape (batch, tokens, {network.d_model}) with at least one token, "
            f"got {tuple(embeddings.shape)}"
        )
    tokens = before + embeddings.shape[1] if tree is None else tree.longest
    if tokens > network.n_ctx:
        raise ValueError(f"{tokens} tokens do not fit the model's context of {network.n_ctx} tokens: shorten the text")


# ---- logits


def decode(network: Network, hidden: Tensor) -> Tensor:
    """Logits (..., d_vocab) of hidden states from `encode`."""
    with network.lock:
        route = _route(network, 1, compare=False)
        if route.equations is not None:
            return native.decode(route.equations, hidden)
        return modules.decode(network, hidden) if route.split(network) else hidden


def decodes_in_blocks(network: Network) -> bool:
    """Whether `decode_blocks` can split the vocabulary: blocks that fit the processor's cache are faster."""
    with network.lock:
        return _route(network, 1).native


def decode_blocks(network: Network, hidden: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
    """The logits in blocks of the vocabulary: (first token id, logits (..., block)), up to ``size`` ids each.

    Yields a single block if the model's logits cannot be split.
    """
    if size >= network.d_vocab or not _route(network, 1, compare=False).native:
        yield 0, decode(network, hidden)
        return
    for first in range(0, network.d_vocab, size):
        with network.lock:
            block = unembed.vocabulary_block(network, hidden, slice(first, min(first + size, network.d_vocab)))
        yield first, block


@torch.no_grad()
def token_logits(network: Network, hidden: Tensor, ids: Tensor) -> Tensor:
    """(rows, n) logits of the token ids (n,) only, from hidden states (rows, width); float32 or wider."""
    if _route(network, 1, compare=False).native:
        with network.lock:
            return unembed.vocabulary_block(network, hidden if hidden.dtype == torch.float64 else hidden.float(), ids)
    size = max(1, 2**22 // network.d_vocab)
    logits = torch.cat([decode(network, part)[:, ids] for part in hidden.split(size)])
    return logits if logits.dtype == torch.float64 else logits.float()


def read_out(network: Network) -> ReadOut:
    """The read-out of residual streams, compared with the model's own logits on first use.

    Raises ValueError if not even the model's own modules reproduce its logits.

    Example:
        >>> ids = model.tokens("The capital of France is")
        >>> read = read_out(model)
        >>> read.block(read.normed(residual_streams(model, ids)), 0, 100).shape
        torch.Size([7, 6, 100])
    """
    with network.lock:
        route = _route(network, 1)
        if route.hooked or route.checked.tokens == 0:
            return ReadOut(network, in_blocks=False)
        if route.checked.blocks is None:
            route.checked.blocks = unembed.blocks_agree(network)
        return ReadOut(network, in_blocks=bool(route.checked.blocks))


def residual_streams(network: Network, ids: Any) -> Tensor:
    """(layers + 1, positions, d_model) the residual stream entering every block and, last, the final norm.

    In float32 or wider; the layers of one position are contiguous in memory. The unembedding is skipped unless the user
    has hooks on the model.

    Args:
        network: a `Model`.
        ids: (positions,) token ids to feed.
    """
    with network.lock:
        batch = network._batch(ids)
        route = _route(network, batch.shape[1])
        if route.equations is not None:
            return native.residual_streams(route.equations, network.embed(batch))
        return modules.residual_streams(network, batch, whole=route.hooked)


@torch.no_grad()
def read_values(network: Network, ids: Any, readers: Sequence[tuple[str, Callable[[Tensor], None]]]) -> None:
    """Call functions with the values at hooks, layer by layer, in one pass of the model's own modules.

    The pass ends after the layer of the last value, unless the user has hooks on the model. What a function does not
    keep is freed again, so that the patterns of one layer at a time are in memory.

    Args:
        network: a `Model`.
        ids: (positions,) or (batch, positions) token ids to feed.
        readers: hook names, and functions of the value there (batch first).

    Raises:
        ValueError: a hook that the model lacks, or that does not run.

    Example:
        >>> shares = []
        >>> read_values(model, model.tokens("The capital of France is"), [
        ...     ("blocks.0.attn.hook_pattern", lambda pattern: shares.append(pattern[0, :, -1, 0]))])
        >>> shares[0].shape
        torch.Size([6])
    """
    with network.lock:
        modules.read_values(network, network._batch(ids), readers, whole=has_hooks(network.tl_model))


def score_form(
    network: Network,
    ids: Any,
    query: tuple[str, tuple[int, ...]],
    key: tuple[str, tuple[int, ...]],
    score: tuple[str, tuple[int, ...]],
) -> tuple[Tensor, float]:
    """The form (d_head, d_head) of a query and a key that an attention score is, and the score of a key of zeros.

    The form is the second derivative of the score, by the model's own modules: it has the scale and the rotation by
    position. At a key of zeros it is the same in front of a soft cap as behind it.

    Args:
        network: a `Model`.
        ids: (positions,) token ids to feed.
        query, key, score: the hooks of the query, the key and the score, and the index of each in the value there.
    """
    with network.lock:
        whole = has_hooks(network.tl_model)
        return modules.score_form(network, network._batch(ids), query, key, score, whole=whole)


@torch.no_grad()
def mean_embedding(network: Network) -> Tensor:
    """(d_model,) mean of all token embeddings, in the model's dtype, summed in float32 or wider."""
    wide = torch.float64 if network.dtype == torch.float64 else torch.float32
    total = torch.zeros(network.d_model, device=network.device, dtype=wide)
    for start in range(0, network.d_vocab, network.n_ctx):
        rows = network.token_embeddings(range(start, min(start + network.n_ctx, network.d_vocab)))
        total += rows.sum(0, dtype=wide)
    return (total / network.d_vocab).to(network.dtype)


# ---- derivatives


def jacobian_at(network: Network, embeddings: Tensor, first: int) -> Jacobian:
    """The Jacobian of the hidden states from position ``first`` on, at token embeddings (points, tokens, d_model).

    Leaves every parameter's ``.grad`` and ``requires_grad`` as they are.
    """
    _check_embeddings(network, embeddings, 0)
    with network.lock:
        route = _route(network, embeddings.shape[1])
        if route.equations is not None:
            return NativeJacobian(route.equations, embeddings, first)

    @contextmanager
    def exclusive() -> Iterator[None]:
        with network.lock, network.frozen(), _tensors_restored(network.tl_model):
            yield

    return AutogradJacobian(lambda rows, chosen: encode(network, rows, positions=chosen), exclusive, embeddings, first)


@contextmanager
def _tensors_restored(tl_model: Any) -> Iterator[None]:
    """Restore tensors stored on modules: some modules keep values of a pass, which would hold on to its graph."""
    tables = [table for module in tl_model.modules() for table in (vars(module), module._buffers)]
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, old in zip(tables, before, strict=True):
            for name in [name for name, value in table.items() if isinstance(value, Tensor)]:
                if name not in old:
                    del table[name]
                elif old[name] is not table[name]:
                    table[name] = old[name]


# ---- streams of many sequences


@dataclass(frozen=True)
class SharedPrefixes:
    """Keys and values of several prefixes of one length, for sequences that continue them."""

    native: bool
    length: int
    """Tokens of each prefix."""
    layers: tuple[KeysValues, ...]
    """Per required layer; the first axis of each tensor is the prefix."""


@torch.no_grad()
def shared_prefixes(network: Network, ids: Tensor, top: int) -> SharedPrefixes | None:
    """Keys and values of prefixes (prefixes, tokens), computed once for streams up to the one entering layer ``top``.

    None if they cannot be reused, because the model has hooks or no usable cache, or if there is nothing to compute.
    """
    if top == 0 or ids.shape[1] == 0:
        return None
    with network.lock:
        route = _route(network, ids.shape[1])
        if route.hooked or not route.checked.cache:
            return None
        layers = _keys_values(network, route, network.embed(ids), top)
        return SharedPrefixes(route.native, ids.shape[1], tuple(layers)) if layers else None


@torch.no_grad()
def streams_at(
    network: Network,
    ids: Tensor,
    last: Tensor,
    layers: Sequence[int],
    *,
    shared: SharedPrefixes | None = None,
    prefix_of: Tensor | None = None,
) -> Tensor:
    """(batch, layers, d_model) residual streams entering ``layers`` (n_layers: the final norm) at position ``last``.

    Sequences of different lengths may share a batch, padded on the right, where a causal model cannot see it.

    Args:
        network: a `Model`.
        ids: (batch, tokens) token ids after the prefix; tokens after ``last`` are ignored.
        last: (batch,) the position to read, as an index into ``ids``.
        layers: increasing, 0..n_layers.
        shared: from `shared_prefixes`.
        prefix_of: (batch,) index of the prefix that each sequence continues.

    While the user has hooks on the model, all sequences must have the same length and be read at their last token.
    Raises ValueError if hooks were added to the model after ``shared`` was computed.
    """
    with network.lock:
        before = 0 if shared is None else shared.length
        route = _route(network, before + ids.shape[1])
        if shared is not None and (route.hooked or shared.native != route.native):
            raise ValueError("hooks were added to the model while its hidden states were being computed: run it again")
        if route.hooked:
            names = [site_hook("resid", layer, network.n_layers) for layer in layers]
            streams = network.run(ids, capture=names).activations
            return torch.stack([streams[name][:, -1] for name in names], dim=1)
        past = None if shared is None or prefix_of is None else SelectedRows(shared.layers, prefix_of)
        embeddings = network.embed(ids)
        if route.equations is not None:
            return native.streams_at(route.equations, embeddings, layers, last, past)
        return modules.streams_at(network, embeddings, layers, last, past)


@torch.no_grad()
def mlp_values(
    network: Network,
    ids: Tensor,
    site: Literal["mlp", "neuron"],
    select: Mapping[int, Callable[[Tensor], Tensor]],
) -> dict[int, Tensor]:
    """By layer, selected activations of neurons (or of what the MLP adds to the stream), in one pass.

    The pass stops after the last of the layers, unless the user has hooks on the model.

    Args:
        network: a `Model`.
        ids: (batch, tokens) token ids; sequences of different lengths may be padded on the right if `can_pad`.
        site: as in `Patch`.
        select: for each layer a function from its values (batch, tokens, width) to those to return.

    Example:
        >>> ids = torch.tensor([model.tokens("The capital of France is")])
        >>> mlp_values(model, ids, "neuron", {2: lambda value: value[..., [7, 8]]})[2].shape
        torch.Size([1, 6, 2])
    """
    with network.lock:
        route = _route(network, ids.shape[1])
        if route.equations is not None:
            return native.mlp_values(route.equations, network.embed(ids), site, select)
        return modules.mlp_values(network, ids, site, select, whole=route.hooked)


# ---- token by token


def incremental_decoder(network: Network) -> Callable[[Tensor], Tensor]:
    """A function from the next token ids (1, n) of one sequence to the logits after them; it caches keys and values.

    A sequence that grows past a length at which the model changes is fed again by a route that was compared there. If a
    model's cached step does not reproduce its full pass, every call reruns the whole sequence.
    """
    fed: list[Tensor] = []
    decoder: Callable[[Tensor], Tensor] | None = None
    route: _Route | None = None
    length = 0

    def step(ids: Tensor) -> Tensor:
        nonlocal decoder, route, length
        fed.append(ids)
        length += ids.shape[1]
        if decoder is None or route is None or not (route.hooked or route.checked.cover(length)):
            with network.lock:
                route = _route(network, length)
                decoder = _decoder(network, route)
            ids = torch.cat(fed, dim=1)
        return decoder(ids)

    return step


def _decoder(network: Network, route: _Route) -> Callable[[Tensor], Tensor]:
    """The function of `incremental_decoder` by one route."""
    if route.equations is not None:
        steps = native.IncrementalDecoder(route.equations)
        return lambda ids: steps.feed(network.embed(ids))
    if network.caches and (route.hooked or route.checked.cache or route.checked.tokens == 0):
        return modules.cached_steps(network)
    fed: list[Tensor] = []

    def step(ids: Tensor) -> Tensor:
        fed.append(ids)
        logits: Tensor = network.tl_model(torch.cat(fed, dim=1))[:, -1:]
        return logits

    return step


# ---- patched runs


@torch.no_grad()
def trace(network: Network, embeddings: Tensor, *, neurons: Sequence[int] = (), sites: Sequence[Site] = ()) -> Trace:
    """Run sequences of one length once and return the activations of all layers.

    Args:
        network: a `Model`.
        embeddings: (batch, tokens, d_model) token embeddings; corrupted ones too.
        neurons: layers whose neuron activations are included.
        sites: which of "q", "k", "v" and "pattern" are included, of all layers.

    Raises:
        ValueError: a wrong shape, or more tokens than fit the model's context.

    Example:
        >>> ids = model.tokens("The capital of France is")
        >>> clean = trace(model, model.token_embeddings(ids)[None])
        >>> len(clean.resid), clean.resid[0].shape
        (7, torch.Size([1, 6, 192]))
    """
    _check_embeddings(network, embeddings, 0)
    with network.lock:
        route = _route(network, embeddings.shape[1])
        split = route.split(network)
        if route.equations is not None and (not sites or head_inputs_agree(network, route.checked, sites)):
            return native.trace(route.equations, embeddings, tuple(neurons), tuple(sites))
        starts = not route.hooked and patched_start(network, route.checked) is not None
        kept = modules.trace(network, embeddings, tuple(neurons), tuple(sites), whole=route.hooked, split=split)
        return replace(kept, starts=starts)


@torch.no_grad()
def patched(
    network: Network,
    trace: Trace,
    patches: Sequence[Patch],
    cells: int,
    *,
    sequence: Tensor | None = None,
) -> Tensor:
    """(cells, width) hidden states of the last position with the patches applied, for `decode`.

    Only values that the patches can change are recomputed. A patch at a layer after another patch of the same cell
    replaces the already changed value. A cell whose patches change nothing, or nothing that the last position sees,
    keeps the trace's hidden state exactly.

    Args:
        network: the `Model` of the trace.
        trace: from `trace`.
        patches: the replacements; a cell may have several.
        cells: number of cells. They run as one batch from the first patched position, so group nearby positions.
        sequence: (cells,) index of the traced sequence that each cell starts from; the first by default.

    Raises:
        ValueError: hooks were added to or removed from the model since the trace.

    Example:
        >>> ids = model.tokens("The capital of France is")
        >>> clean = trace(model, model.token_embeddings(ids)[None])
        >>> zeros = torch.zeros(2, model.d_model, device=model.device)
        >>> patch = Patch("mlp", 5, zeros, positions=torch.tensor([3, 4]), cells=torch.arange(2))
        >>> decode(model, patched(model, clean, [patch], 2)).shape
        torch.Size([2, 4096])
    """
    device = trace.embeddings.device
    start = torch.zeros(cells, dtype=torch.long) if sequence is None else sequence.cpu()
    with network.lock:
        route = _traced_route(network, trace)
        hidden = trace.hidden[start.to(device)] if len(trace.hidden) > 1 else trace.hidden.repeat(cells, 1)
        live, seen = _effective(network, trace, patches, start)
        chosen = live.nonzero()[:, 0]
        if len(chosen) == 0:
            return hidden
        new_index = torch.full((cells,), -1)
        new_index[chosen] = torch.arange(len(chosen))
        kept = [patch.pick(rows & live[patch.cells], new_index) for patch, rows in zip(patches, seen, strict=True)]
        kept = [patch for patch in kept if len(patch.cells)]
        sequences = start[chosen]
        if trace.native and route.equations is not None:
            moved = native.patched(route.equations, trace, kept, sequences)
        else:
            split = route.split(network)
            begin = patched_start(network, route.checked) if trace.starts else None
            moved = modules.patched(network, trace, kept, sequences.to(device), split=split, start=begin)
        return hidden.index_copy(0, chosen.to(device), moved.to(hidden.dtype))


def through_paths(network: Network, trace: Trace, cells: PathCells) -> Tensor:
    """(runs, width) hidden states of the last position where parts' changed outputs reach named readers only.

    Args:
        network: the `Model` of the trace.
        trace: from `trace`, of one sequence.
        cells: the changes and their readers in each run.
    """
    with network.lock:
        route = _traced_route(network, trace)
        inside: list[Site] = [site for site in ("q", "k", "v") if cells.read_at(site)]
        equations = route.equations if trace.native and head_inputs_agree(network, route.checked, inside) else None
        if equations is not None and equations.first_read < trace.n_layers:
            equations = None  # a mixture reads the streams of all layers
        starts = equations is None and network.backend == "bridge" and not route.hooked
        start = patched_start(network, route.checked) if starts else None
        return paths.through_paths(network, trace, cells, equations=equations, split=route.split(network), start=start)


def sender_changes(network: Network, clean: Trace, corrupted: Trace, senders: Sequence[Sender], fed: Tensor) -> Tensor:
    """(senders, tokens, d_model) by how much each sender's output differs between two traces.

    Args:
        network: the `Model` of the traces.
        clean, corrupted: from `trace`, of one sequence each, of one length.
        senders: the embeddings, heads, attentions and MLPs.
        fed: (n,) the positions, in what is fed, at which they differ; elsewhere the change is 0.
    """
    with network.lock:
        route = _traced_route(network, clean)
        equations = route.equations if clean.native and corrupted.native else None
        return paths.sender_changes(
            network, clean, corrupted, senders, fed, split=route.split(network), equations=equations
        )


def _traced_route(network: Network, trace: Trace) -> _Route:
    """The route of a trace; ValueError if hooks were added to or removed from the model since."""
    route = _route(network, 1, compare=False)
    if (trace.native and not route.native) or route.hooked != trace.hooked:
        raise ValueError("the trace was made before hooks were added to or removed from the model: make it again")
    return route


def _effective(network: Network, trace: Trace, patches: Sequence[Patch], start: Tensor) -> tuple[Tensor, list[Tensor]]:
    """(cells,) whether each cell can change, and for each patch which of its rows can reach the last position; on the
    CPU, like the patches' indices."""
    seen, differs = [], []
    for patch in patches:
        cells, positions = patch.cells, patch.positions
        rows = torch.full_like(positions, _exists(network, trace, patch), dtype=torch.bool)
        last = patch.layer == trace.n_layers - 1 and patch.site not in ("resid", "k", "v")
        after_attention = patch.layer == trace.n_layers or last
        if after_attention and not trace.hooked:  # no later attention can move it to the last position
            rows &= positions == trace.tokens - 1
        seen.append(rows)
        first = start[cells] if len(trace.embeddings) > 1 else torch.zeros_like(cells)
        numbers = (first, positions) if patch.index is None else (first, positions, patch.index)
        indices = torch.stack(numbers).to(trace.embeddings.device).unbind()  # together: each upload synchronises
        differs.append((trace.value(patch.site, patch.layer)[indices] != patch.values).any(-1))
    live = torch.zeros(len(start), dtype=torch.bool)
    if not patches:
        return live, seen
    all_differ = torch.cat(differs).cpu().split([len(rows) for rows in seen])
    for patch, rows, changed in zip(patches, seen, all_differ, strict=True):
        live[patch.cells[rows & changed]] = True
    return live, seen


def _exists(network: Network, trace: Trace, patch: Patch) -> bool:
    """Whether the patched value exists: some models have no MLPs, or MLPs that do not read the attention output."""
    if patch.site in ("mlp", "neuron", "attn_to_mlp") and not trace.mlp:
        return False
    return patch.site != "attn_to_mlp" or not network.last_capabilities.parallel_layers[patch.layer]
