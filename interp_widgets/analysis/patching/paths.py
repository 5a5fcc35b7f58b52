"""Path patching: a sender's corrupted output reaches named receivers only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_finite, index
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.cost import Cost, chunk_bytes, pass_flops
from interp_widgets.analysis._core.result import record, with_axes
from interp_widgets.analysis._core.statistics import bootstrap_mean
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import to_numpy, wide, wide_type
from interp_widgets.analysis.ablation.cells import fewest_tokens
from interp_widgets.analysis.ablation.estimates import can_estimate
from interp_widgets.analysis.ablation.metric import Metric
from interp_widgets.analysis.patching.estimates import objective
from interp_widgets.analysis.patching.names import read_name
from interp_widgets.analysis.patching.pairs import (
    MeasuredPair,
    PairsResult,
    Tokens,
    check_lengths,
    fields_of_pairs,
    mean_of,
    read_pairs,
)
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import (
    PathCells,
    Reader,
    Sender,
    expects_native,
    expects_runs,
    is_behind,
    path_slopes,
    sender_changes,
    through_paths,
)
from interp_widgets.models.patching import Site

_RESAMPLES = 2000
_LONG = 20.0
"""Passes from which on a run is estimated first, which takes five."""
_APART = 0.03
"""Largest part of what a layer adds to the stream that neither attention nor the MLP may have written."""
_SENDERS = {"head": "(layer, head)", "attn": "('attn', layer)", "mlp": "('mlp', layer)", "embeddings": "'embeddings'"}
_RECEIVERS = ("head_q", "head_k", "head_v")


@record
class PathPatchingResult(PairsResult):
    """How much of the answer is lost when a sender's corrupted output reaches the named receivers only.

    Example:
        >>> clean, corrupted = "The capital of France is", "The capital of Italy is"
        >>> result = path_patching(model, clean, corrupted, [(0, 1), ("mlp", 0)], ["logits"], " Paris", foil=" Rome")
        >>> result.senders, result.receivers
        (('head 0.1', 'mlp 0'), ('logits',))
    """

    effect: Floats = with_axes("senders")
    """(clean - patched) / (clean - corrupted) of the metric, averaged over the pairs, with all receivers together: 0
    where the path carries nothing, 1 where it carries all that the prompts differ in. NaN where clean and corrupted
    agree to rounding."""

    each: Floats = with_axes("pairs", "senders")
    """The effect in every pair."""

    senders: Sequence[str] = with_axes("senders")
    """The senders, such as ``head 3.1`` (layer 3, head 1) or ``mlp 0``."""

    receivers: Sequence[str] = with_axes("receivers")
    """The receivers, such as ``head_q 4.2``, ``head_k 4.0`` (of the key/value head), ``mlp 5`` or ``logits``."""

    paths: Floats | None = with_axes("senders", "receivers", default=None)
    """The effect of each path alone, averaged over the pairs; 0 where a receiver is not behind its sender."""

    low: Floats | None = with_axes("senders", default=None)
    """Lower ends of the 95% bootstrap intervals over the pairs of ``effect``; None for one pair."""

    high: Floats | None = with_axes("senders", default=None)
    """Upper ends."""

    estimated: Floats | None = with_axes("senders", default=None)
    """Of a partial result, in which ``effect`` is NaN for senders that are not patched yet: the effect to first order,
    by whose size they are patched. None where nothing was estimated, and in a complete result."""

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The sender with the largest effect (NaN and "" where none is defined), and the metric in both runs."""
        row: dict[str, float | int | str | bool | None] = {"answer_token": self.answer_tokens[0]}
        known = not np.isnan(self.effect).all()
        best = int(np.nanargmax(self.effect)) if known else 0
        row |= {"effect": float(self.effect[best]), "sender": self.senders[best] if known else ""}
        return row | {"clean": float(self.clean.mean()), "corrupted": float(self.corrupted.mean())}

    def to_frame(self) -> DataFrame:
        """One row per sender: sender, effect, its interval over several pairs; with ``paths`` one per path: sender,
        receiver and effect."""
        if self.paths is not None:
            return table({"sender": self.senders, "receiver": self.receivers}, {"effect": self.paths})
        return table({"sender": self.senders}, {"effect": self.effect, "low": self.low, "high": self.high})


@checked
def path_patching(
    model: Model,
    clean: PromptInput | Sequence[PromptInput],
    corrupted: PromptInput | Sequence[PromptInput],
    senders: Sequence[str | Sequence[str | int]] | None,
    receivers: Sequence[str | Sequence[str | int]],
    answer: Tokens | None = None,
    *,
    foil: Tokens | None = None,
    metric: Metric = "logit_difference",
    positions: Sequence[int] | None = None,
    separate: bool = False,
    prepend_bos: bool | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[PathPatchingResult], None] | None = None,
) -> PathPatchingResult:
    """How much of the answer is lost when a sender's corrupted output reaches the named receivers only.

    Also called path patching, or edge patching: in the clean run, each receiver reads the residual stream with the
    sender's output of the corrupted run in place of its clean one; everything else reads the clean output. What the
    receivers then compute goes on through the rest of the model.

    With every part behind a sender as receivers, the effect is that of patching the sender's output itself; gates of
    attention (AFMoE) are no receivers and read the clean output.

    Args:
        model: what `load_model` returns.
        clean, corrupted: text, token ids or the messages of a chat, of one length; or lists of them, for means over
            pairs.
        senders: (layer, head), ``("attn", layer)``, ``("mlp", layer)`` or ``"embeddings"`` (the stream that enters
            layer 0), or their names in a result, such as ``"head 3.1"``; each is patched by itself. None: all heads and
            MLPs before a receiver.
        receivers: ``("head_q", layer, head)``, ``("head_k", layer, key/value head)``, ``("head_v", layer, key/value
            head)``, ``("mlp", layer)`` or ``"logits"``, or their names such as ``"head_q 4.2"``, all together.
        answer, foil, metric: as in `activation_patching`.
        positions: where the senders' outputs are corrupted, all by default.
        separate: whether each path from one sender to one receiver is measured by itself too (``paths``).
        prepend_bos: overrides the model's BOS policy for texts.
        seed: of the bootstrap over pairs.
        batch_size: runs per chunk; by default what 60% of the free memory holds.
        progress: called with (done, total) runs after every chunk.
        check: called before every chunk; raises to cancel.
        on_partial: receives a partial result a few times: the senders of the first pair that are patched so far, then
            the means over the complete pairs. In a long run the senders with the largest effects by `edge_attribution`
            are patched first, and the others have its estimates (``estimated``).

    Raises:
        ValueError: prompts of different lengths, a sender or receiver that the model does not have, a sender without a
            receiver behind it or the other way round, what `activation_patching` refuses.

    Source: Interpretability in the Wild (Wang et al. 2023), section 3.1; Localizing Model Behavior with Path Patching
    (Goldowsky-Dill et al. 2023).

    Example:
        >>> clean, corrupted = "The capital of France is", "The capital of Italy is"
        >>> mlps = [("mlp", layer) for layer in range(1, 6)]
        >>> result = path_patching(model, clean, corrupted, [(0, 1)], [*mlps, "logits"], " Paris", foil=" Rome")
        >>> result.effect.shape
        (1,)
    """
    read = receivers_named(model, receivers)
    sent = senders_named(model, senders, read)
    check_paths(model, sent, read)
    pairs = read_pairs(model, clean, corrupted, answer, foil, metric, prepend_bos)
    check_lengths(pairs)
    at = pairs[0].clean.positions(positions)
    together = [(number, tuple(read)) for number in range(len(sent))]
    alone = [(number, (one,)) for number in range(len(sent)) for one in read] if separate else []
    cells = [
        (number, tuple(reader for reader in readers if is_behind(model, reader, sent[number])))
        for number, readers in (*together, *alone)
    ]
    runner = Runner(
        model, len(pairs[0].clean.ids), batch_size, check, progress, fewest_tokens=fewest_tokens(model),
        total=len(pairs) * len(cells),
    )  # fmt: skip
    named = tuple(map(sender_name, sent)), tuple(map(reader_name, read))
    facts: dict[str, Any] = {"seed": seed, "positions": str(at), "clean": repr(clean), "corrupted": repr(corrupted)}
    facts |= {"senders": str(list(named[0])), "receivers": str(list(named[1])), "bos": pairs[0].clean.offset == 1}
    measured, found = list[MeasuredPair](), list[Floats]()

    def result(
        measured: Sequence[MeasuredPair], found: Sequence[Floats], *, partial: bool, guess: Floats | None = None
    ) -> PathPatchingResult:
        each = np.stack(found)
        effects, paths = each[:, : len(sent)], each[:, len(sent) :]
        known = effects[~np.isnan(effects).any(1)]
        tested = len(known) > 1 and not partial
        interval = bootstrap_mean(known, resamples=_RESAMPLES, seed=seed) if tested else None
        return PathPatchingResult(
            effect=mean_of(effects),
            each=effects,
            senders=named[0],
            receivers=named[1],
            paths=mean_of(paths).reshape(len(sent), len(read)) if separate else None,
            low=None if interval is None else interval[0],
            high=None if interval is None else interval[1],
            estimated=None if guess is None else guess[: len(sent)],
            partial=partial,
            **fields_of_pairs(runner, measured, facts),
        )

    def hand_on(both: MeasuredPair, guess: Floats | None, effects: Floats) -> None:
        """The means over the pairs that are complete; of the first pair what is known."""
        if on_partial is not None:
            so_far = (measured, found) if found else ([both], [effects])
            on_partial(result(*so_far, partial=True, guess=guess))

    cost = _cost(model, runner.length, sent, read, 1, separate=separate)
    long = cost.flops > _LONG * pass_flops(model, runner.length, runner.length)
    for pair in pairs:
        both = pair.measured(model, metric, check=check)
        check_added(model, both)
        fed, guess = torch.tensor(at) + pair.clean.offset, None
        if on_partial is not None and long and not found and can_estimate(model, both.metric, runner.length):
            edges = edge_estimates(model, both, sent, read, fed, 0, check)
            guess = np.array([edges[row, [read.index(one) for one in readers]].sum() for row, readers in cells])
            hand_on(both, guess, np.full(len(cells), np.nan))
        found.append(path_effects(model, both, sent, cells, fed, runner, guess, partial(hand_on, both, guess)))
        measured.append(both)
    return result(measured, found, partial=False)


def path_patching_cost(
    model: Model,
    n_tokens: int,
    senders: Sequence[str | Sequence[str | int]] | None,
    receivers: Sequence[str | Sequence[str | int]],
    *,
    pairs: int = 1,
    separate: bool = False,
) -> Cost:
    """Operations and peak bytes of `path_patching` for prompts of n_tokens, with the BOS.

    Example:
        >>> slow = path_patching_cost(model, 6, None, ["head_q 5.0"])
        >>> slow.flops > 5 * path_patching_cost(model, 6, None, ["logits"]).flops
        True
    """
    read = receivers_named(model, receivers)
    return _cost(model, n_tokens, senders_named(model, senders, read), read, pairs, separate=separate)


def _cost(
    model: Model, n_tokens: int, senders: Sequence[Sender], receivers: Sequence[Reader], pairs: int, *, separate: bool
) -> Cost:
    native, whole = expects_native(model), pass_flops(model, n_tokens, n_tokens)
    runs = (1 + len(receivers) * separate) * len(senders)

    def of_runs(count: int, readers: Sequence[Reader]) -> float:
        """Operations of runs with these readers together: two rows from the first layer that reads."""
        first = min(layer for _, layer, _ in readers) if expects_runs(model).from_layer else 0
        return 0.0 if native and first == model.n_layers else 2 * count * whole * (1 - min(first / model.n_layers, 1))

    flops = 2 * whole + runs * 8.0 * model.d_model + of_runs(len(senders), receivers)
    flops += sum(of_runs(len(senders), [reader]) for reader in receivers) * separate
    if not native:  # heads are changed through the model
        flops += sum(kind == "head" for kind, _, _ in senders) * whole
    return Cost(flops=pairs * flops, bytes=chunk_bytes(model, max(1, runs), 2 * n_tokens))


# ---- senders and receivers


def receivers_named(
    model: Model, receivers: Sequence[str | Sequence[str | int]], caller: str = "path_patching"
) -> list[Reader]:
    """The receivers; ValueError for one that the model does not have."""
    for needed in ("residual_stream", "additive_stream", "attention"):
        model.capabilities.require(needed, caller)
    return [_receiver(model, receiver, caller) for receiver in receivers]


def senders_named(
    model: Model,
    senders: Sequence[str | Sequence[str | int]] | None,
    receivers: Sequence[Reader],
    caller: str = "path_patching",
) -> list[Sender]:
    """The senders, all heads and MLPs before a receiver for None; ValueError for one that the model does not have."""
    if senders is not None:
        return [_sender(model, sender, caller) for sender in senders]
    found = senders_before(model, receivers)
    if receivers and not found:
        first = reader_name(receivers[0])
        raise ValueError(f"there is no path to {first} from any head or MLP, which all come behind it")
    return found


def senders_before(model: Model, receivers: Sequence[Reader]) -> list[Sender]:
    """All heads and MLPs before a receiver."""
    every, has = list[Sender](), model.capabilities
    for layer in range(model.n_layers):
        if has.heads:
            every += [("head", layer, head) for head in range(model.n_heads)]
        else:
            every.append(("attn", layer, 0))
        if has.mlp and not has.attention_only:
            every.append(("mlp", layer, 0))
    return [sender for sender in every if any(is_behind(model, reader, sender) for reader in receivers)]


def sender_name(sender: Sender) -> str:
    """What a result calls a sender."""
    kind, layer, head = sender
    if kind == "embeddings":
        return kind
    return f"head {layer}.{head}" if kind == "head" else f"{kind} {layer}"


def _layer(model: Model, value: Any) -> int:
    return index(value, model.n_layers, "layer", f"{model.n_layers}-layer model")


def _sender(model: Model, sender: str | Sequence[str | int], caller: str) -> Sender:
    given = read_name(sender) if isinstance(sender, str) else tuple(sender)
    kind, *numbers = given if given and isinstance(given[0], str) else ("head", *given)
    wanted = {"head": 2, "embeddings": 0}.get(str(kind), 1)
    if kind not in _SENDERS or len(numbers) != wanted:
        raise ValueError(
            f"a sender must be one of {', '.join(_SENDERS.values())}, or a name such as 'head 3.1', got {sender!r}"
        )
    if kind == "embeddings":
        return "embeddings", -1, 0
    if kind == "mlp":
        _require_mlp(model, caller)
        return "mlp", _layer(model, numbers[0]), 0
    if kind == "attn":
        return "attn", _layer(model, numbers[0]), 0
    model.capabilities.require("heads", f"{caller}(senders=[(layer, head)])", "name ('attn', layer) instead")
    layer = _layer(model, numbers[0])
    return "head", layer, index(numbers[1], model.n_heads, "head", f"model of {model.n_heads} heads per layer")


def _receiver(model: Model, receiver: str | Sequence[str | int], caller: str) -> Reader:
    kind, *numbers = read_name(receiver) if isinstance(receiver, str) else receiver
    if kind == "logits" and not numbers:
        return "logits", model.n_layers, 0
    if kind == "mlp" and len(numbers) == 1:
        _require_mlp(model, caller)
        return "mlp", _layer(model, numbers[0]), 0
    if kind not in _RECEIVERS or len(numbers) != 2:
        raise ValueError(
            "a receiver must be 'logits', ('mlp', layer), ('head_q', layer, head), ('head_k', layer, key/value head), "
            f"('head_v', layer, key/value head), or a name such as 'head_q 4.2', got {receiver!r}"
        )
    model.capabilities.require("head_inputs", f"{caller}(receivers=[({kind!r}, layer, head)])", "name MLPs instead")
    size, what = (model.n_heads, "head") if kind == "head_q" else (model.n_kv_heads, "key/value head")
    head = index(numbers[1], size, what, f"model of {size} {what}s per layer")
    return str(kind)[-1], _layer(model, numbers[0]), head  # type: ignore[return-value]


def _require_mlp(model: Model, caller: str) -> None:
    if model.capabilities.attention_only:
        raise ValueError(f"{model.name} has no MLPs: name attention heads only")
    model.capabilities.require("mlp", f"{caller} with MLPs", "name attention heads only")


def reader_name(reader: Reader) -> str:
    """What a result calls a receiver."""
    site, layer, head = reader
    if site == "logits":
        return "logits"
    return f"mlp {layer}" if site == "mlp" else f"head_{site} {layer}.{head}"


def check_paths(model: Model, senders: Sequence[Sender], receivers: Sequence[Reader]) -> None:
    """ValueError unless every sender has a receiver behind it and every receiver a sender before it."""
    named = {
        "senders": [sender_name(sender) for sender in senders],
        "receivers": [reader_name(reader) for reader in receivers],
    }
    for what, names in named.items():
        if not names:
            raise ValueError(f"{what} is empty: name at least one")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{what} must be different, got {twice} twice")
    for sender in senders:
        if not any(is_behind(model, reader, sender) for reader in receivers):
            raise ValueError(
                f"there is no path from {sender_name(sender)} to any of the receivers, which all come before it"
            )
    for reader in receivers:
        if not any(is_behind(model, reader, sender) for sender in senders):
            name = reader_name(reader)
            raise ValueError(f"there is no path to {name} from any of the senders, which all come behind it")


# ---- the runs


def _sites(layer: int) -> tuple[tuple[Site, int], ...]:
    """The stream before and behind a layer, and what attention and the MLP write."""
    return ("resid", layer), ("resid", layer + 1), ("attn", layer), ("mlp", layer)


def check_added(model: Model, pair: MeasuredPair, caller: str = "path_patching") -> None:
    """ValueError unless what attention and the MLP of a layer write is added to the stream as it is: by how much it
    differs between the runs is what the stream differs in."""
    excess = []
    for layer in range(model.n_layers):
        before, after, attention, mlp = (
            wide(pair.corrupted.value(site, at) - pair.clean.value(site, at)) for site, at in _sites(layer)
        )
        moved = after - before
        rounding = 8 * torch.finfo(model.dtype).eps * wide(pair.clean.resid[layer + 1]).norm()
        excess.append((moved - attention - mlp).norm() - _APART * moved.norm() - rounding)
    worst = int(torch.stack(excess).argmax())
    if bool(excess[worst] > 0):
        raise ValueError(
            f"{caller} needs layers that add what attention and the MLP write to the stream, and nothing else; layer "
            f"{worst} of {model.name} adds something else, or multiplies them: activation_patching works on it"
        )


def path_effects(
    model: Model,
    pair: MeasuredPair,
    senders: Sequence[Sender],
    cells: Sequence[tuple[int, tuple[Reader, ...]]],
    fed: Tensor,
    runner: Runner,
    guess: Floats | None = None,
    on_part: Callable[[Floats], None] | None = None,
) -> Floats:
    """(cells,) the lost part; a cell without a receiver behind its sender loses exactly nothing.

    The cells with the largest ``guess`` (cells,) run first, and ``on_part`` receives what is known a few times, with
    NaN for the others.
    """
    changes = sender_changes(model, pair.clean, pair.corrupted, senders, fed)
    layers = torch.tensor([layer for _, layer, _ in senders])
    attention = torch.tensor([kind != "mlp" for kind, _, _ in senders])
    values = torch.full((len(cells),), pair.clean_value, dtype=wide_type(model.dtype), device=model.device)
    order = np.arange(len(cells)) if guess is None else np.argsort(-np.abs(guess), kind="stable")
    known = np.zeros(len(cells), bool)

    def lost() -> Floats:
        return np.where(known, to_numpy((pair.clean_value - values) / pair.gap), np.nan)

    def work(start: int, stop: int) -> None:
        known[order[start:stop]] = True
        live = [int(cell) for cell in order[start:stop] if cells[cell][1]]
        if not live:
            return
        rows = torch.tensor([cells[cell][0] for cell in live])
        paths = PathCells(layers[rows], attention[rows], changes[rows.to(changes.device)], [cells[c][1] for c in live])
        values[live] = pair.metric.read(through_paths(model, pair.clean, paths)).to(values.dtype)

    runner.deliver = None if on_part is None else lambda: on_part(lost())
    runner.run(len(cells), lambda start: 2 * pair.clean.tokens, work)
    check_finite(values, lambda cell: f"the metric with {sender_name(senders[cells[cell][0]])} patched")
    return lost()


def edge_estimates(
    model: Model,
    pair: MeasuredPair,
    senders: Sequence[Sender],
    readers: Sequence[Reader],
    fed: Tensor,
    points: int,
    check: Callable[[], None] | None,
    caller: str = "path_patching",
) -> Floats:
    """(senders, readers) the lost part to first order, also where there is no edge; for 0 points by the gradient of the
    clean run."""
    changes = sender_changes(model, pair.clean, pair.corrupted, senders, fed)
    clean, corrupted = pair.clean.embeddings[0], pair.corrupted.embeddings[0]
    inputs = [None] if not points else [torch.lerp(clean, corrupted, (at + 0.5) / points) for at in range(points)]
    total = torch.zeros((), device=changes.device)
    for embeddings in inputs:
        if check is not None:
            check()
        total = total + path_slopes(
            model, pair.pair.clean.ids, objective(pair.metric, caller), readers, changes, embeddings
        )
    lost = -total / len(inputs)
    check_finite(lost, lambda row, at: f"the estimate of {sender_name(senders[row])} to {reader_name(readers[at])}")
    return to_numpy(lost / pair.gap)
