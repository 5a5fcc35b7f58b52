"""Which routes reproduce a model's own pass; each is compared with it before it is used.

Routes are compared again if the model's architecture changes, and if sequences are longer than a boundary that the
model's config declares. A route that differs or fails is not used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..compare import HALF_TOLERANCE, TOLERANCE, agree, difference, probe_ids
from ..devices import is_spread
from ..hooks import has_hooks
from ..memory import is_out_of_memory
from ..network import Network
from ..patching import Patch, Site
from ..read_out import dense_routes, read_out_of
from ..small_copy import boundaries
from ..state import SELF_SCALING, last_remembered, remembered
from ..stopping import unstoppable
from . import modules, native
from .equations import Equations
from .jacobian import NativeJacobian
from .traces import Trace
from .trees import TokenTree, TreeMasks

__all__ = [
    "CheckedRoutes",
    "ExpectedRuns",
    "checked_routes",
    "comparing_flops",
    "comparing_seconds",
    "expected_equations",
    "expected_runs",
    "head_inputs_agree",
    "last_checked_routes",
    "patched_start",
    "routes_are_known",
]

COMPARED_POSITIONS = 1500
"""Comparing the routes of a model takes about as long as the products of a pass over so many positions: SmolLM2 1,600,
Gemma 3 270M 1,300. It is many passes over a few tokens."""


@dataclass
class CheckedRoutes:
    """The routes that agreed with a model's own pass."""

    equations: Equations | None = None
    """The equations of the native engine; None if they do not agree."""
    cache: bool = False
    """Whether keys and values of a prefix can be reused."""
    split: bool = False
    """Whether logits are just the soft-capped unembedding of one hidden state."""
    blocks: bool | None = None
    """Whether the unembedding can be split into blocks; None until compared."""
    head_inputs: dict[Site, bool] = field(default_factory=dict)
    """For "q", "k", "v" and "pattern", whether patches there agree with the model's own modules, once compared."""
    start: modules.Start | Literal[False] | None = None
    """How patched runs of the model's own modules may start; False if not at all, None until compared."""
    tokens: int = 0
    """Length of the longest sequence compared; 0 before the first comparison."""
    boundaries: tuple[int, ...] = ()
    """Lengths beyond which the model may compute differently, ascending."""
    seconds: float = 0.0
    """Seconds that all comparisons have taken."""

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds of a comparison."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - began

    def cover(self, tokens: int) -> bool:
        """Whether a comparison holds for sequences of this length."""
        return self.tokens > 0 and not any(self.tokens <= boundary < tokens for boundary in self.boundaries)


def checked_routes(network: Network, tokens: int) -> CheckedRoutes:
    """The routes that agree for sequences of ``tokens`` tokens; compared on first use, without hooks.

    If the model has hooks or its logits are NaN, none is used and the next call compares again.
    """
    with dense_routes(network.tl_model):
        held = remembered(network, "routes", lambda: CheckedRoutes(boundaries=_boundaries(network)))
        if not held.cover(tokens):
            with unstoppable(), held.timed():
                hooked = has_hooks(network.tl_model)
                compared = CheckedRoutes() if hooked else _compare(network, tokens, held.boundaries)
            held.equations, held.cache, held.split = compared.equations, compared.cache, compared.split
            held.start, held.tokens = None, compared.tokens
    return held


def last_checked_routes(network: Network, tokens: int) -> CheckedRoutes:
    """The result of the last `checked_routes`, for steps after a pass; does not check the model for changes."""
    held: CheckedRoutes | None = last_remembered(network, "routes")
    return checked_routes(network, tokens) if held is None or not held.cover(tokens) else held


def expected_equations(network: Network, tokens: int) -> Equations | None:
    """The equations that `checked_routes` will probably find, without waiting for the model and without a pass: those
    of the last comparison; before the first, any that describe the model."""
    held: CheckedRoutes | None = last_remembered(network, "routes")
    return held.equations if held is not None and held.cover(tokens) else Equations.of(network)


class ExpectedRuns(NamedTuple):
    """What a patched run will probably compute."""

    native: bool
    """By the equations: only changed positions, from the first patched layer on."""
    from_position: bool
    """From the first patched position on, or else all positions."""
    from_layer: bool
    """From the first patched layer on, or else all layers."""


def expected_runs(network: Network, *, hooked: bool) -> ExpectedRuns:
    """How patched runs will probably be computed, without waiting for the model and without a pass."""
    if hooked:
        return ExpectedRuns(False, False, network.backend != "bridge")
    if expected_equations(network, 1) is not None:
        return ExpectedRuns(True, True, True)
    held: CheckedRoutes | None = last_remembered(network, "routes")
    start = None if held is None else held.start
    if start is None:  # not compared yet
        return ExpectedRuns(False, network.caches, network.caches or network.backend != "bridge")
    skips = isinstance(start, modules.Start) and start.output is not None
    return ExpectedRuns(False, bool(start), skips or network.backend != "bridge")


def routes_are_known(network: Network, tokens: int) -> bool:
    """Whether the last comparison holds for sequences of ``tokens`` tokens, as far as can be seen without waiting."""
    held: CheckedRoutes | None = last_remembered(network, "routes")
    return held is not None and held.cover(tokens)


def comparing_seconds(network: Network) -> float:
    """Seconds that comparing the routes of a model has taken so far."""
    held: CheckedRoutes | None = last_remembered(network, "routes")
    return 0.0 if held is None else held.seconds


def comparing_flops(network: Network) -> float:
    """Floating-point operations that take about as long as comparing the routes of a model."""
    return 2.0 * network.parameter_count * COMPARED_POSITIONS


def _boundaries(network: Network) -> tuple[int, ...]:
    """Lengths beyond which a model computes differently: attention windows, original contexts of rotary embeddings."""
    config, cfg = getattr(getattr(network.tl_model, "original_model", None), "config", None), network.tl_model.cfg
    if config is None:
        lengths = [getattr(cfg, "window_size", None), getattr(cfg, "rotary_original_max_position_embeddings", None)]
    else:
        lengths = list(boundaries(config.get_text_config()))
    return tuple(sorted({length for length in lengths if isinstance(length, int) and 0 < length < network.n_ctx}))


def scaled_by_length(network: Network) -> bool:
    """Whether rotary positions are scaled by the length of a pass (longrope and dynamic scaling)."""
    config = getattr(getattr(network.tl_model, "original_model", None), "config", None)
    rope = getattr(config and config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope, *(part for part in rope.values() if isinstance(part, dict))]  # one for each kind of layer, or one
    return any(kind.get("rope_type") in SELF_SCALING for kind in kinds)


@torch.no_grad()
def _compare(network: Network, tokens: int, boundaries: tuple[int, ...]) -> CheckedRoutes:
    """Compare every route on a random sequence with the model's own logits; if these are NaN, no route is used.

    The sequence is short, or slightly longer than the last boundary that ``tokens`` tokens exceed.
    """
    tl_model = network.tl_model
    beyond = max((boundary + 4 for boundary in boundaries if boundary < tokens), default=0)
    ids = probe_ids(network.d_vocab, network.n_ctx, at_least=beyond).to(network.device)
    count = ids.shape[1]
    embeddings = network.token_embeddings(ids[0])[None]
    wanted = tl_model(ids).to(ids.device)
    if not bool(torch.isfinite(wanted).all()):
        return CheckedRoutes()
    cut = count // 2

    def same(logits: Tensor, reference: Tensor) -> bool:
        return agree(logits, reference, network.precision)

    bridge = network.backend == "bridge"
    own = modules.encode(network, embeddings, whole=bridge, split=not bridge)
    if bridge and not same(own, wanted):
        raise ValueError(f"{network.name} gives other logits for its own token embeddings than for their ids")
    split = not bridge or _passes(lambda: same(modules.decode(network, modules.encode(network, embeddings)), wanted))

    def cached() -> bool:
        past = modules.keys_values(network, embeddings[:, :cut])
        hidden = modules.encode(network, embeddings[:, cut:], past=past, split=split)
        logits = modules.decode(network, hidden) if split else hidden
        return network.caches and bool(past) and same(logits, wanted[:, cut:])

    def by_equations(equations: Equations) -> bool:
        hidden = native.encode(equations, embeddings, fused=False)
        past = native.keys_values(equations, embeddings[:, :cut])
        return (
            same(native.decode(equations, hidden), wanted)
            and same(native.decode(equations, native.encode(equations, embeddings)), wanted)
            and same(
                native.decode(equations, native.encode(equations, embeddings[:, cut:], past=past)), wanted[:, cut:]
            )
            and all(same(native.decode(equations, own), wanted) for own in _in_one_row(equations, embeddings))
            and _same_patched(network, equations, embeddings, split)
            and _same_derivative(network, equations, embeddings)
        )

    equations = None if is_spread(tl_model) else Equations.of(network)
    agrees = equations is not None and _passes(partial(by_equations, equations))
    return CheckedRoutes(equations if agrees else None, agrees or _passes(cached), split, tokens=count)


def _passes(route: Callable[[], bool]) -> bool:
    """Whether a route agrees with the model; a route that raises does not."""
    try:
        return route()
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return False


def _in_one_row(equations: Equations, embeddings: Tensor) -> list[Tensor]:
    """The hidden states of a sequence packed twice into one row with a shared prefix; they differ if masks leak."""
    tree, numbers = TokenTree(), range(embeddings.shape[1])
    first = tree.add(0, numbers, [])
    again = tree.add(1, numbers, first[: len(first) // 2])
    hidden = native.encode(equations, embeddings[:, tree.ids], tree=TreeMasks.of([tree], embeddings.device))
    return [hidden[:, first], hidden[:, again]]


@torch.no_grad()
def head_inputs_agree(network: Network, checked: CheckedRoutes, sites: Sequence[Site]) -> bool:
    """Whether patches at these sites inside of attention by the equations agree with the model's own modules."""
    for site in sites:
        if site not in checked.head_inputs:
            with unstoppable(), checked.timed(), dense_routes(network.tl_model):
                checked.head_inputs[site] = _passes(partial(_same_head_input, network, checked, site))
    return all(checked.head_inputs[site] for site in sites)


def _same_head_input(network: Network, checked: CheckedRoutes, site: Site) -> bool:
    """Whether values of one head replaced by those of an earlier layer or position change as much on both routes."""
    if checked.equations is None:
        return False
    ids = probe_ids(network.d_vocab, network.n_ctx)
    embeddings = network.token_embeddings(ids[0])[None]
    traces = (
        native.trace(checked.equations, embeddings, (), (site,)),
        modules.trace(network, embeddings, (), (site,), whole=False, split=checked.split),
    )
    layers, last = sorted({0, network.n_layers - 1}), embeddings.shape[1] - 1
    hidden = []
    for kept in traces:
        patches = []
        for cell, layer in enumerate(layers):
            value = kept.value(site, layer)
            index, new = torch.tensor([value.shape[2] - 1]), value[:, last, 0].roll(1, -1)
            patches.append(Patch(site, layer, new, torch.tensor([last]), torch.tensor([cell]), index))
        sequence = torch.zeros(len(layers), dtype=torch.long)
        if kept.native:
            hidden.append(native.patched(checked.equations, kept, patches, sequence))
        else:
            hidden.append(modules.patched(network, kept, patches, sequence, split=checked.split))
    same_values = all(
        agree(traces[0].value(site, layer), traces[1].value(site, layer), network.precision) for layer in layers
    )
    first, second = (states - kept.hidden for states, kept in zip(hidden, traces, strict=True))
    return same_values and agree(first, second, network.precision)


@torch.no_grad()
def patched_start(network: Network, checked: CheckedRoutes) -> modules.Start | None:
    """How patched runs of the model's own modules may start, at a position and a layer: compared once with runs from
    the beginning. None if they may not, or if routes have not been compared."""
    if checked.start is None and checked.tokens:
        with unstoppable(), checked.timed(), dense_routes(network.tl_model):
            usable = checked.cache and read_out_of(network.tl_model) is None and not is_spread(network.tl_model)
            checked.start = (usable and _compared_start(network, checked)) or False
    return checked.start if isinstance(checked.start, modules.Start) else None


def _compared_start(network: Network, checked: CheckedRoutes) -> modules.Start | None:
    """The start of patched runs that leaves out most and agrees."""
    ids = probe_ids(network.d_vocab, network.n_ctx, at_least=checked.tokens).to(network.device)
    embeddings = network.token_embeddings(ids[0])[None]
    with modules.block_outputs(network) as outputs:
        kept = modules.trace(network, embeddings, (), whole=False, split=checked.split)
    layer, n_layers, tokens = (network.n_layers - 1) // 2, network.n_layers, embeddings.shape[1]
    middle, last = tokens // 2 if layer < n_layers - 1 else tokens - 1, tokens - 1
    values = {"resid": kept.resid, "attn": kept.attn, "mlp": kept.mlp, "head": kept.head}
    sites: list[Any] = [site for site, layers in values.items() if layers]
    runs = [
        [_first_token_again(kept, site, layer, middle, cell) for cell, site in enumerate(sites)],
        [_first_token_again(kept, "resid", at, last, cell) for cell, at in enumerate((layer, n_layers))],
        [_first_token_again(kept, "resid", n_layers, last, 0)],
    ]

    def moved(start: modules.Start | None) -> Tensor:
        numbers = [torch.zeros(len(run), dtype=torch.long, device=network.device) for run in runs]
        hidden = [
            modules.patched(network, kept, run, number, split=checked.split, start=start)
            for run, number in zip(runs, numbers, strict=True)
        ]
        return torch.cat(hidden) - kept.hidden

    wanted = moved(None)
    forms = [outputs.pop() if len(outputs) == 1 else None, None] if network.backend == "bridge" else [None]
    for form in dict.fromkeys(forms):
        start = modules.Start(form)
        if _passes(lambda start=start: agree(moved(start), wanted, network.precision)):  # type: ignore[misc]
            return start
    return None


def _first_token_again(kept: Trace, site: Site, layer: int, position: int, cell: int) -> Patch:
    """A patch of one row, or of its first head, by that of the first token."""
    value = kept.value(site, layer)[:, 0]
    index = torch.tensor([0]) if site == "head" else None
    values = value if index is None else value[:, 0]
    return Patch(site, layer, values, torch.tensor([position]), torch.tensor([cell]), index)


def _same_patched(network: Network, equations: Equations, embeddings: Tensor, split: bool) -> bool:
    """Whether runs with one residual row, one attention and one MLP output replaced agree between the engines."""
    tokens, layer = embeddings.shape[1], (network.n_layers - 1) // 2
    clean = native.trace(equations, embeddings, ())
    if not split:
        return False
    # after the last layer's attention, a change cannot reach the last position
    position = torch.tensor([tokens // 2 if layer < network.n_layers - 1 else tokens - 1])
    sites: list[Site] = ["resid", "attn", *(["mlp"] if clean.mlp else [])]  # type: ignore[list-item]
    patches = [
        Patch(site, layer, clean.value(site, layer)[:, 0], position, torch.tensor([cell]))
        for cell, site in enumerate(sites)
    ]
    sequence = torch.zeros(len(sites), dtype=torch.long)
    kept = modules.trace(network, embeddings, (), whole=False, split=True)
    wanted = modules.patched(network, kept, patches, sequence, split=True)
    return agree(native.patched(equations, clean, patches, sequence), wanted, network.precision)


def _same_derivative(network: Network, equations: Equations, embeddings: Tensor) -> bool:
    """Whether a gradient by the equations equals autograd's through the model's own modules.

    The Jacobian-vector product must be the transpose.
    """
    last = embeddings.shape[1] - 1
    with torch.enable_grad(), network.frozen():
        leaf = embeddings.detach().requires_grad_(True)
        hidden = modules.encode(network, leaf, positions=slice(last, None))
        seed = torch.ones_like(hidden) * torch.linspace(-1, 1, hidden.shape[-1], device=hidden.device).to(hidden.dtype)
        (wanted,) = torch.autograd.grad(hidden, leaf, seed)
    derivative = NativeJacobian(equations, embeddings, last)
    gradient, moved = derivative.vjp(seed, range(last, last + 1))[0], derivative.jvp(embeddings[:, :1], range(1))
    by_row, start, by_column, end = (x.cpu().double() for x in (gradient[0, 0], embeddings[0, 0], moved[0], seed))
    transposed = [float((a * b).sum()) for a, b in ((by_row, start), (by_column, end))]
    size = float((by_row * start).abs().sum())
    limit = TOLERANCE.get(network.precision, 2 * HALF_TOLERANCE)
    return difference(gradient, wanted[0]) <= limit and abs(transposed[0] - transposed[1]) <= limit * size
