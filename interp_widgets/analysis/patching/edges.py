"""Edge attribution: every path of path patching, estimated by one gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any, Literal

import numpy as np
import torch

from interp_widgets.analysis._core.arrays import Bools, Floats
from interp_widgets.analysis._core.checks import check_choice, check_range
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.cost import Cost, chunk_bytes, pass_flops, row_bytes
from interp_widgets.analysis._core.result import record, with_axes
from interp_widgets.analysis._core.statistics import bootstrap_mean
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.ablation.metric import Metric
from interp_widgets.analysis.patching.pairs import (
    PairsResult,
    Tokens,
    check_lengths,
    fields_of_pairs,
    mean_of,
    read_pairs,
)
from interp_widgets.analysis.patching.paths import (
    check_added,
    check_paths,
    edge_estimates,
    path_effects,
    reader_name,
    receivers_named,
    sender_name,
    senders_before,
    senders_named,
)
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import Reader, Sender, expects_native, is_behind

EdgeMethod = Literal["gradient", "integrated_gradients"]
"""``gradient``: in the clean run. ``integrated_gradients``: averaged over runs between clean and corrupted."""

_RESAMPLES = 2000
_CALLER = "edge_attribution"


@record
class EdgeAttributionResult(PairsResult):
    """How much of the answer each edge carries alone, to first order.

    Example:
        >>> clean, corrupted = "The capital of France is", "The capital of Italy is"
        >>> result = edge_attribution(model, clean, corrupted, " Paris", foil=" Rome", receivers=["mlp 0", "logits"])
        >>> result.senders[:3], result.receivers
        (('embeddings', 'head 0.0', 'head 0.1'), ('mlp 0', 'logits'))
    """

    estimated: Floats = with_axes("senders", "receivers")
    """What `path_patching` measures as ``paths``, estimated: the lost part of (clean - corrupted) of the metric,
    averaged over the pairs; 0 where there is no edge. NaN where clean and corrupted agree to rounding."""

    each: Floats = with_axes("pairs", "senders", "receivers")
    """The estimate in every pair."""

    edges: Bools = with_axes("senders", "receivers")
    """Whether the receiver is behind the sender."""

    patched: Floats = with_axes("senders", "receivers")
    """What patching does, for a random sample of the edges; NaN for the others."""

    senders: Sequence[str] = with_axes("senders")
    """The senders: ``embeddings``, ``head 3.1`` (layer 3, head 1), ``mlp 0``."""

    receivers: Sequence[str] = with_axes("receivers")
    """The receivers: ``head_q 4.2``, ``head_k 4.0`` (of the key/value head), ``mlp 5``, ``logits``."""

    low: Floats | None = with_axes("senders", "receivers", default=None)
    """Lower ends of the 95% bootstrap intervals over the pairs of ``estimated``; None for one pair."""

    high: Floats | None = with_axes("senders", "receivers", default=None)
    """Upper ends."""

    method: str = field(kw_only=True)
    """``gradient`` or ``integrated_gradients``."""

    def strongest(self, count: int = 1) -> tuple[tuple[str, str], ...]:
        """(sender, receiver) of the edges with the largest estimates, whatever their sign, as `path_patching` takes
        them."""
        flat = np.where(self.edges, np.abs(self.estimated), np.nan).ravel()
        order = [int(at) for at in np.argsort(-flat, kind="stable") if np.isfinite(flat[at])][:count]
        places = (divmod(at, len(self.receivers)) for at in order)
        return tuple((self.senders[row], self.receivers[column]) for row, column in places)

    def correlation(self) -> float:
        """Pearson's correlation of the estimates with what patching the sampled edges does; NaN where one of them does
        not vary or fewer than three were patched."""
        known = np.isfinite(self.patched)
        pairs = np.stack([self.estimated[known], self.patched[known]])
        return float(np.corrcoef(pairs)[0, 1]) if known.sum() >= 3 and pairs.std(1).all() else float("nan")

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The edge with the largest estimate ("" and NaN where none is defined), the correlation with patching, and the
        metric in both runs."""
        best = self.strongest()
        sender, receiver = best[0] if best else ("", "")
        at = (self.senders.index(sender), self.receivers.index(receiver)) if best else None
        return {
            "answer_token": self.answer_tokens[0],
            "estimated": float("nan") if at is None else float(self.estimated[at]),
            "sender": sender,
            "receiver": receiver,
            "correlation": self.correlation(),
            "clean": float(self.clean.mean()),
            "corrupted": float(self.corrupted.mean()),
        }

    def to_frame(self) -> DataFrame:
        """One row per edge: sender, receiver, estimated, its interval over several pairs, and patched (NaN for edges
        outside the sample)."""
        columns = {"estimated": self.estimated, "low": self.low, "high": self.high, "patched": self.patched}
        frame = table({"sender": self.senders, "receiver": self.receivers}, columns)
        return frame[self.edges.ravel()].reset_index(drop=True)


@checked
def edge_attribution(
    model: Model,
    clean: PromptInput | Sequence[PromptInput],
    corrupted: PromptInput | Sequence[PromptInput],
    answer: Tokens | None = None,
    *,
    foil: Tokens | None = None,
    metric: Metric = "logit_difference",
    senders: Sequence[str | Sequence[str | int]] | None = None,
    receivers: Sequence[str | Sequence[str | int]] | None = None,
    method: EdgeMethod = "gradient",
    steps: int = 5,
    positions: Sequence[int] | None = None,
    sample: int = 20,
    prepend_bos: bool | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> EdgeAttributionResult:
    """How much of the answer each edge from a sender to a receiver carries, estimated by one gradient for all of them.

    Also called edge attribution patching (EAP), or with integrated gradients EAP-IG. The estimate is (corrupted output
    of the sender - clean output) · gradient of the metric at the stream as the receiver alone reads it, in the units of
    `path_patching`, which measures the same edge by a run of its own. The gradient goes through the receiver's norm.

    A gradient is wrong where an edge moves a softmax or a norm far: a query or key that decides where a saturated head
    attends has an estimate near 0 (`circuit_scoreboard` shows by how much that matters). A random sample of edges is
    patched, and ``correlation()`` compares.

    Args:
        model: what `load_model` returns.
        clean, corrupted: text, token ids or the messages of a chat, of one length; or lists of them, for means over
            pairs.
        answer, foil, metric: as in `activation_patching`; not ``"kl"``, whose gradient is 0 at the clean run.
        senders: as in `path_patching`; None: the embeddings and all heads and MLPs.
        receivers: as in `path_patching`; None: all queries, keys, values and MLPs, and the logits.
        method: ``"gradient"`` of the clean run, or ``"integrated_gradients"``: its mean over runs whose token
            embeddings lie between those of the clean and of the corrupted prompt. With many steps the estimates of all
            edges that leave the embeddings add up to 1.
        steps: such runs, at the middles of equal parts of the way.
        positions: where the senders' outputs are corrupted, all by default.
        sample: random edges that are patched, 0 for none.
        prepend_bos: overrides the model's BOS policy for texts.
        seed: of the sample and of the bootstrap over pairs.
        batch_size: patched runs per chunk; by default what 60% of the free memory holds.
        progress: called with (done, total) patched runs after every chunk.
        check: called before every gradient and every chunk; raises to cancel.

    Raises:
        ValueError: the metric ``"kl"``, and what `path_patching` refuses.

    Source: Attribution Patching Outperforms Automated Circuit Discovery (Syed et al. 2024), section 2; Have Faith in
    Faithfulness (Hanna et al. 2024), section 3, for integrated gradients.

    Example:
        >>> clean, corrupted = "The capital of France is", "The capital of Italy is"
        >>> result = edge_attribution(model, clean, corrupted, " Paris", foil=" Rome")
        >>> result.estimated.shape, int(result.edges.sum())
        ((43, 79), 1522)
        >>> (sender, receiver), *_ = result.strongest()
        >>> path_patching(model, clean, corrupted, [sender], [receiver], " Paris", foil=" Rome").effect.shape
        (1,)
    """
    check_choice("method", method, EdgeMethod)
    check_range("steps", steps)
    check_range("sample", sample, 0)
    sent, read = _ends(model, senders, receivers)
    pairs = read_pairs(model, clean, corrupted, answer, foil, metric, prepend_bos)
    check_lengths(pairs)
    at = pairs[0].clean.positions(positions)
    edges = np.array([[is_behind(model, reader, sender) for reader in read] for sender in sent])
    cells = [(int(row), (read[column],)) for row, column in _sampled(edges, sample, seed)]
    runner = Runner(model, len(pairs[0].clean.ids), batch_size, check, progress)
    runner.total = len(pairs) * len(cells)
    points = steps if method == "integrated_gradients" else 0
    measured, found, patched = [], [], []
    for pair in pairs:
        both = pair.measured(model, metric, check=check)
        check_added(model, both, _CALLER)
        fed = torch.tensor(at) + pair.clean.offset
        found.append(np.where(edges, edge_estimates(model, both, sent, read, fed, points, check, _CALLER), 0.0))
        patched.append(path_effects(model, both, sent, cells, fed, runner) if cells else np.empty(0))
        measured.append(both)
    each = np.stack(found)
    real = np.full(edges.shape, np.nan)
    for (row, (reader,)), value in zip(cells, mean_of(np.stack(patched)), strict=True):
        real[row, read.index(reader)] = value
    known = each[~np.isnan(each).any((1, 2))].reshape(-1, edges.size)
    interval = bootstrap_mean(known, resamples=_RESAMPLES, seed=seed) if len(known) > 1 else None
    low, high = (None, None) if interval is None else (end.reshape(edges.shape) for end in interval)
    facts: dict[str, Any] = {"method": method, "seed": seed, "positions": str(at), "sample": sample}
    facts |= {"steps": steps} if points else {}
    facts |= {"clean": repr(clean), "corrupted": repr(corrupted), "bos": pairs[0].clean.offset == 1}
    return EdgeAttributionResult(
        estimated=mean_of(each),
        each=each,
        edges=edges,
        patched=real,
        senders=tuple(map(sender_name, sent)),
        receivers=tuple(map(reader_name, read)),
        low=low,
        high=high,
        method=method,
        **fields_of_pairs(runner, measured, facts),
    )


def edge_attribution_cost(
    model: Model,
    n_tokens: int,
    senders: Sequence[str | Sequence[str | int]] | None = None,
    receivers: Sequence[str | Sequence[str | int]] | None = None,
    *,
    pairs: int = 1,
    method: EdgeMethod = "gradient",
    steps: int = 5,
    sample: int = 20,
) -> Cost:
    """Operations and peak bytes of `edge_attribution` for prompts of n_tokens, with the BOS.

    Example:
        >>> one = edge_attribution_cost(model, 6, sample=0)
        >>> edge_attribution_cost(model, 6, method="integrated_gradients", sample=0).flops > 2 * one.flops
        True
    """
    sent, read = _ends(model, senders, receivers)
    points = steps if method == "integrated_gradients" else 1
    sampled = min(sample, len(sent) * len(read))
    forward, native = pass_flops(model, n_tokens, n_tokens), expects_native(model)
    alone = 0 if native else sum(kind == "head" for kind, _, _ in sent)
    widths = {"q": model.n_heads * model.d_head, "mlp": 3 * model.d_mlp, "logits": 0}
    shared = model.n_kv_heads * model.d_head
    behind = sum(2.0 * n_tokens * model.d_model * widths.get(site, shared) for site, _, _ in read)
    products = 2.0 * n_tokens * model.d_model * len(sent) * len(read)
    flops = (2 + alone + 2 * sampled) * forward + points * (3 * forward + behind + products)
    changes = 4.0 * len(sent) * n_tokens * model.d_model
    kept = model.n_layers * row_bytes(model, n_tokens, n_tokens)
    return Cost(flops=pairs * flops, bytes=changes + max(kept, chunk_bytes(model, max(1, sampled), 2 * n_tokens)))


def _ends(model: Model, senders: Any, receivers: Any) -> tuple[list[Sender], list[Reader]]:
    """The senders and receivers that are named; ValueError for one that the model does not have, or without a path."""
    read = receivers_named(model, _every_receiver(model) if receivers is None else receivers, _CALLER)
    if senders is None:
        sent: list[Sender] = [("embeddings", -1, 0), *senders_before(model, read)]
    else:
        sent = senders_named(model, senders, read, _CALLER)
    check_paths(model, sent, read)
    return sent, read


def _every_receiver(model: Model) -> list[Sequence[str | int] | str]:
    """All that reads the stream behind a sender."""
    has, every = model.capabilities, list[Sequence[str | int] | str]()
    heads = (("head_q", model.n_heads), ("head_k", model.n_kv_heads), ("head_v", model.n_kv_heads))
    for layer in range(model.n_layers):
        if has.head_inputs:
            every += [(name, layer, head) for name, count in heads for head in range(count)]
        if has.mlp and not has.attention_only:
            every.append(("mlp", layer))
    return [*every, "logits"]


def _sampled(edges: Bools, sample: int, seed: int) -> Iterator[tuple[int, int]]:
    """Row and column of random edges, in order."""
    places = np.argwhere(edges)
    for number in np.sort(np.random.default_rng(seed).permutation(len(places))[:sample]):
        yield int(places[number, 0]), int(places[number, 1])
