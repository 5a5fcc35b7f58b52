"""The heads and MLPs that a behaviour needs: a circuit grown part by part, beside random circuits of its size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_choices, check_finite, check_range, index, layer_indices
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.cost import Cost, chunk_bytes, pass_flops
from interp_widgets.analysis._core.result import record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis._core.tensors import to_numpy, wide_type
from interp_widgets.analysis.ablation.cells import run_cells
from interp_widgets.analysis.ablation.metric import Metric
from interp_widgets.analysis.patching.names import read_name
from interp_widgets.analysis.patching.pairs import (
    MeasuredPair,
    PairsResult,
    Tokens,
    check_lengths,
    fields_of_pairs,
    read_pairs,
)
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput
from interp_widgets.models.engine import expects_runs
from interp_widgets.models.patching import Patch

CircuitPart = Literal["head", "mlp"]
"""What a circuit is made of: the output of one head, or of the MLP of one layer, at all positions."""
_KINDS: tuple[CircuitPart, ...] = ("head", "mlp")


@record
class CircuitResult(PairsResult):
    """A circuit in the order in which its parts were added, and how much of the behaviour it keeps at each size.

    Example:
        >>> result = greedy_circuit(model, "The capital of France is", "The capital of Italy is", " Paris", most=3)
        >>> len(result.parts), result.faithfulness.shape, result.random.shape
        (3, (4,), (20, 4))
    """

    parts: Sequence[str] = with_axes("steps")
    """The parts, the first one added first: ``head 3.1`` (layer 3, head 1) or ``mlp 5``."""

    layers: Sequence[int] = with_axes("steps")
    """The layer of each."""

    heads: Sequence[int] = with_axes("steps")
    """Its head; -1 for an MLP."""

    faithfulness: Floats = with_axes("sizes")
    """Of the first 0, 1, 2, ... parts: (metric of the circuit - corrupted) / (clean - corrupted) of the metric's means
    over the pairs, with all other parts at their corrupted values. 1 is the whole model."""

    without: Floats = with_axes("sizes")
    """The faithfulness of all other parts: the model without the circuit. 1 where the circuit is not needed, 0 where
    nothing is left without it."""

    random: Floats = with_axes("draws", "sizes")
    """The faithfulness of random circuits that have as many heads and as many MLPs at each size."""

    each: Floats = with_axes("pairs", "sizes")
    """The metric of every circuit in each pair."""

    candidates: int
    """How many parts there were to choose from."""

    held_out: int = field(kw_only=True)
    """How many pairs were kept for measuring, on which the parts were not chosen; 0 if chosen and measured on the same.
    The axis of pairs has only those that were measured on."""

    @property
    def band(self) -> NDArray[np.float64]:
        """(2, sizes) the middle 95% of the random circuits at each size."""
        return np.asarray(np.quantile(self.random, [0.025, 0.975], axis=0))

    @property
    def p(self) -> NDArray[np.float64]:
        """(sizes,) (1 + random circuits that are at least as faithful) / (1 + draws)."""
        return np.asarray((1 + (self.random >= self.faithfulness).sum(0)) / (1 + len(self.random)))

    def smallest(self, faithfulness: float = 0.9) -> tuple[str, ...]:
        """The parts of the smallest circuit that keeps at least this share of the behaviour.

        Raises ValueError if none of the sizes does.
        """
        enough = np.flatnonzero(self.faithfulness >= faithfulness)
        if not enough.size:
            raise ValueError(
                f"no circuit of up to {len(self.parts)} parts has a faithfulness of {faithfulness:g}: the highest is "
                f"{float(self.faithfulness.max()):.2f}, so ask for less or compute with a larger most="
            )
        return tuple(self.parts[: int(enough[0])])

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """At the last size: parts, faithfulness, that of the model without them, the random circuits' mean, and p."""
        return {
            "size": len(self.parts),
            "parts": ", ".join(self.parts),
            "faithfulness": float(self.faithfulness[-1]),
            "without": float(self.without[-1]),
            "random": float(self.random[:, -1].mean()),
            "p": float(self.p[-1]),
        }

    def to_frame(self) -> DataFrame:
        """One row per size: size, the part added, faithfulness, without, the random mean with its middle 95%, p."""
        low, high = self.band
        columns = {
            "part": ["", *self.parts], "faithfulness": self.faithfulness, "without": self.without,
            "random": self.random.mean(0), "random_low": low, "random_high": high, "p": self.p,
        }  # fmt: skip
        return table({"size": range(len(self.faithfulness))}, columns)


@record
class CircuitFaithfulness(PairsResult):
    """How much of a behaviour a circuit keeps, and what random circuits keep.

    Example:
        >>> clean, corrupted = "The capital of France is", "The capital of Italy is"
        >>> kept = circuit_faithfulness(model, clean, corrupted, ["head 0.1", "mlp 0"], " Paris", foil=" Rome")
        >>> kept.parts, kept.random.shape
        (('head 0.1', 'mlp 0'), (100,))
    """

    parts: Sequence[str] = with_axes("parts")
    """The parts of the circuit: ``head 3.1`` (layer 3, head 1) or ``mlp 5``."""

    faithfulness: float
    """(metric of the circuit - corrupted) / (clean - corrupted) of the metric's means over the pairs, with all other
    parts at their corrupted values. 1 is the whole model."""

    without: float
    """The faithfulness of all other parts: the model without the circuit."""

    random: Floats = with_axes("draws")
    """The faithfulness of random circuits with as many heads and as many MLPs."""

    each: Floats = with_axes("pairs")
    """The metric of the circuit in each pair."""

    @property
    def band(self) -> NDArray[np.float64]:
        """(2,) the middle 95% of the random circuits."""
        return np.asarray(np.quantile(self.random, [0.025, 0.975]))

    @property
    def p(self) -> float:
        """(1 + random circuits that are at least as faithful) / (1 + draws)."""
        return float((1 + (self.random >= self.faithfulness).sum()) / (1 + len(self.random)))

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """Parts, faithfulness, that of the model without them, the random circuits' mean, and p."""
        return {
            "size": len(self.parts),
            "parts": ", ".join(self.parts),
            "faithfulness": self.faithfulness,
            "without": self.without,
            "random": float(self.random.mean()),
            "p": self.p,
        }

    def to_frame(self) -> DataFrame:
        """One row: what `measures` gives, and the middle 95% of the random circuits."""
        low, high = self.band
        rows = {**self.measures(), "random_low": low, "random_high": high}
        return table({"circuit": [0]}, {name: [value] for name, value in rows.items()})


@checked
def greedy_circuit(
    model: Model,
    clean: PromptInput | Sequence[PromptInput],
    corrupted: PromptInput | Sequence[PromptInput],
    answer: Tokens | None = None,
    *,
    foil: Tokens | None = None,
    parts: Sequence[CircuitPart] | CircuitPart | None = None,
    layers: Sequence[int] | None = None,
    most: int = 10,
    held_out: int = 0,
    metric: Metric = "logit_difference",
    draws: int = 20,
    prepend_bos: bool | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[CircuitResult], None] | None = None,
) -> CircuitResult:
    """Find a circuit: heads and MLPs added one at a time, each time the one that brings back most of the behaviour.

    Also called circuit discovery, here by a greedy search.

    The model reads the clean prompt; every part outside of the circuit has the value that it has in the corrupted
    prompt (a resample ablation). The curve of the circuit's faithfulness stands beside that of random circuits with as
    many heads and MLPs. A circuit fits the pairs that it was chosen on better than others: with several pairs,
    ``held_out`` keeps some of them for measuring it.

    With n parts to choose from, this takes about n * ``most`` passes for each pair.

    Args:
        model: what `load_model` returns.
        clean, corrupted: text, token ids or the messages of a chat; or lists of them. The prompts of a pair must have
            equally many tokens.
        answer: text or id of the token that follows the clean prompt; one for all pairs, or one for each; by default
            the token that each clean prompt is most likely followed by.
        foil: text or id of the token whose logit ``"logit_difference"`` subtracts; by default the token that the
            corrupted prompt is most likely followed by.
        parts: ``"head"``, ``"mlp"`` or both; by default all that the model has.
        layers: which ones the parts come from, all by default; the parts of other layers stay as in the clean run.
        most: how many parts to add.
        held_out: so many pairs at the end of the lists are not used for choosing the parts; everything in the result
            is measured on them alone. 0: chosen and measured on the same pairs.
        metric: as in `activation_patching`.
        draws: random circuits.
        prepend_bos: overrides the model's BOS policy for texts.
        seed: of the random circuits.
        batch_size: runs per chunk; by default what 60% of the free memory holds.
        progress: called with (done, total) runs after every chunk.
        check: called before every layer of every chunk; raises to cancel.
        on_partial: receives the circuit so far after every part.

    Raises:
        ValueError: more parts than there are, what `activation_patching` refuses, a metric that is the same for clean
            and corrupted prompts.
        MemoryError: a single sequence does not fit.

    Source: Towards Automated Circuit Discovery (Conmy et al. 2023), section 3, for keeping a part if the behaviour
    needs it; Interpretability in the Wild (Wang et al. 2023), section 4, for faithfulness and the model without the
    circuit; Transformer Circuit Faithfulness Metrics are not Robust (Miller et al. 2024), for saying what replaces the
    rest.

    Example:
        >>> pairs = ["The capital of France is", "The capital of Italy is"]
        >>> result = greedy_circuit(model, pairs, pairs[::-1], [" Paris", " Rome"], foil=[" Rome", " Paris"], most=4)
        >>> bool(result.faithfulness[4] > result.band[1, 4])
        True
    """
    check_range("draws", draws)
    check_most(model, most, parts, layers)
    nodes = _candidates(model, parts, layers)
    pairs = read_pairs(model, clean, corrupted, answer, foil, metric, prepend_bos)
    check_held_out(held_out, len(pairs))
    check_lengths(pairs)
    runner = Runner(model, max(len(pair.clean.ids) for pair in pairs), batch_size, check, progress)
    tried = sum(len(nodes) - size for size in range(most))
    kept = len(pairs) - held_out
    runner.total = kept * tried + (held_out or kept) * (2 * (most + 1) + draws * most)
    search, judge = (
        _CircuitRun(model, tuple(pair.measured(model, metric, check=check) for pair in some), nodes, runner)
        for some in ((pairs[:kept], pairs[kept:]) if held_out else (pairs, pairs))
    )
    facts: dict[str, Any] = {"most": most, "draws": draws, "seed": seed, "layers": str(layers)}
    facts |= {"clean": repr(clean), "corrupted": repr(corrupted), "bos": pairs[0].clean.offset == 1}
    facts |= {"parts": ", ".join(dict.fromkeys(node.kind for node in nodes)), "held_out": held_out}
    pools = _pools(nodes, draws, np.random.default_rng(seed))
    order, own, rest, random = list[int](), list[Floats](), list[Floats](), list[Floats]()

    def result(*, partial: bool) -> CircuitResult:
        chosen, each = [nodes[number] for number in order], np.stack(own, 1)
        return CircuitResult(
            parts=tuple(map(str, chosen)),
            layers=tuple(node.layer for node in chosen),
            heads=tuple(node.head for node in chosen),
            faithfulness=judge.share(each),
            without=judge.share(np.stack(rest, 1)),
            random=np.stack(random, 1),
            each=each,
            candidates=len(nodes),
            held_out=held_out,
            partial=partial,
            **fields_of_pairs(runner, judge.pairs, facts),
        )

    for size in range(most + 1):
        if size:
            order.append(search.next_part(order))
        circuit = judge.masks([order])
        drawn = judge.masks(_drawn(nodes, order, pools) if size else [])
        values = judge.metrics(np.concatenate([circuit, ~circuit, drawn]))
        own.append(values[:, 0])
        rest.append(values[:, 1])
        random.append(judge.share(values[:, 2:]) if size else np.repeat(judge.share(values[:, :1]), draws))
        if on_partial is not None and 0 < size < most:
            on_partial(result(partial=True))
    return result(partial=False)


def check_most(model: Model, most: int, parts: Any, layers: Sequence[int] | None) -> None:
    """ValueError for more parts than there are."""
    check_range("most", most)
    if most > (count := len(_candidates(model, parts, layers))):
        raise ValueError(f"most must be at most {count}, the parts that there are to choose from, got {most}")


def check_held_out(held_out: int, pairs: int) -> None:
    """ValueError if no pair is left for choosing the parts."""
    check_range("held_out", held_out, 0)
    if held_out >= pairs:
        raise ValueError(f"held_out must leave a pair to choose the parts on: there are {pairs}, got {held_out}")


def greedy_circuit_cost(
    model: Model,
    n_tokens: int,
    *,
    first: int = 0,
    pairs: int = 1,
    parts: Sequence[CircuitPart] | CircuitPart | None = None,
    layers: Sequence[int] | None = None,
    most: int = 10,
    held_out: int = 0,
    draws: int = 20,
) -> Cost:
    """Operations and peak bytes of `greedy_circuit` for prompts of n_tokens.

    Args:
        model: a `Model`.
        n_tokens: tokens that the model is fed, with the BOS.
        first: the first of them in which the prompts of a pair differ.
        pairs: how many pairs of prompts.
        parts, layers, most, held_out, draws: as in `greedy_circuit`.

    Example:
        >>> round(greedy_circuit_cost(model, 6, most=4).flops / 1e9, 1)
        7.4
    """
    nodes, kept = len(_candidates(model, parts, layers)), pairs - held_out
    runs = kept * sum(nodes - size for size in range(most)) + (held_out or kept) * (2 * (most + 1) + draws * most)
    tokens = n_tokens - first if expects_runs(model).from_position else n_tokens
    flops = runs * (pass_flops(model, tokens, n_tokens) + 4.0 * model.d_model)
    flops += 2 * pairs * pass_flops(model, n_tokens, n_tokens)
    return Cost(flops=flops, bytes=chunk_bytes(model, nodes, n_tokens))


@checked
def circuit_faithfulness(
    model: Model,
    clean: PromptInput | Sequence[PromptInput],
    corrupted: PromptInput | Sequence[PromptInput],
    circuit: Sequence[str | Sequence[str | int]],
    answer: Tokens | None = None,
    *,
    foil: Tokens | None = None,
    parts: Sequence[CircuitPart] | CircuitPart | None = None,
    layers: Sequence[int] | None = None,
    metric: Metric = "logit_difference",
    draws: int = 100,
    prepend_bos: bool | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
) -> CircuitFaithfulness:
    """How much of a behaviour named heads and MLPs keep, beside random circuits with as many heads and MLPs.

    Also called the faithfulness of a circuit: the model reads the clean prompt; every part outside of the circuit has
    the value that it has in the corrupted prompt (a resample ablation).

    Args:
        model: what `load_model` returns.
        clean, corrupted, answer, foil, metric: as in `greedy_circuit`.
        circuit: (layer, head) and ``("mlp", layer)``, or their names in a result, such as ``"head 3.1"``.
        parts, layers: the parts that there are, as in `greedy_circuit`; all others stay as in the clean run.
        draws: random circuits.
        prepend_bos: overrides the model's BOS policy for texts.
        seed: of the random circuits.
        batch_size: runs per chunk; by default what 60% of the free memory holds.
        progress: called with (done, total) runs after every chunk.
        check: called before every layer of every chunk; raises to cancel.

    Raises:
        ValueError: an empty circuit, a part twice or one that there is not, what `greedy_circuit` refuses.
        MemoryError: a single sequence does not fit.

    Source: Interpretability in the Wild (Wang et al. 2023), section 4; Transformer Circuit Faithfulness Metrics are not
    Robust (Miller et al. 2024).

    Example:
        >>> clean, corrupted = "The capital of France is", "The capital of Italy is"
        >>> kept = circuit_faithfulness(model, clean, corrupted, ["head 0.1", "head 0.0", "mlp 0"], " Paris")
        >>> bool(kept.faithfulness > kept.band[1]), kept.random.shape
        (True, (100,))
    """
    check_range("draws", draws)
    nodes = _candidates(model, parts, layers)
    order = _numbers_of(model, circuit, nodes)
    pairs = read_pairs(model, clean, corrupted, answer, foil, metric, prepend_bos)
    check_lengths(pairs)
    runner = Runner(model, max(len(pair.clean.ids) for pair in pairs), batch_size, check, progress)
    runner.total = len(pairs) * (2 + draws)
    run = _CircuitRun(model, tuple(pair.measured(model, metric, check=check) for pair in pairs), nodes, runner)
    own = run.masks([order])
    drawn = run.masks(_drawn(nodes, order, _pools(nodes, draws, np.random.default_rng(seed))))
    each = run.metrics(np.concatenate([own, ~own, drawn]))
    share = run.share(each)
    facts: dict[str, Any] = {"draws": draws, "seed": seed, "layers": str(layers)}
    facts |= {"clean": repr(clean), "corrupted": repr(corrupted), "bos": pairs[0].clean.offset == 1}
    facts |= {"parts": ", ".join(dict.fromkeys(node.kind for node in nodes))}
    return CircuitFaithfulness(
        parts=tuple(str(nodes[number]) for number in order),
        faithfulness=float(share[0]),
        without=float(share[1]),
        random=share[2:],
        each=each[:, 0],
        **fields_of_pairs(runner, run.pairs, facts),
    )


# ---- parts


@dataclass(frozen=True)
class _Node:
    """One part that a circuit may have."""

    kind: CircuitPart
    layer: int
    head: int = -1

    def __str__(self) -> str:
        return f"head {self.layer}.{self.head}" if self.kind == "head" else f"mlp {self.layer}"


def _candidates(model: Model, parts: Any, layers: Sequence[int] | None) -> tuple[_Node, ...]:
    """The parts to choose from, layer by layer."""
    model.capabilities.require("residual_stream", "greedy_circuit")
    has_mlp = not model.capabilities.attention_only
    kinds = _KINDS[: 1 + has_mlp] if parts is None else check_choices("parts", parts, CircuitPart)
    if "mlp" in kinds and not has_mlp:
        raise ValueError(f"{model.name} has no MLPs: leave 'mlp' out of parts")
    for kind, needed in (("head", "heads"), ("mlp", "mlp")):
        if kind in kinds:
            model.capabilities.require(needed, f"greedy_circuit(parts=({kind!r},))")  # type: ignore[arg-type]
    nodes = list[_Node]()
    for layer in layer_indices(model, layers):
        nodes += [_Node("head", layer, head) for head in range(model.n_heads if "head" in kinds else 0)]
        nodes += [_Node("mlp", layer)] if "mlp" in kinds else []
    return tuple(nodes)


def check_circuit(model: Model, circuit: Sequence[str | Sequence[str | int]], parts: Any, layers: Any) -> None:
    """ValueError for a circuit of parts that there are not."""
    _numbers_of(model, circuit, _candidates(model, parts, layers))


def _numbers_of(model: Model, circuit: Sequence[str | Sequence[str | int]], nodes: Sequence[_Node]) -> list[int]:
    """The numbers of the named parts among those that there are."""
    if not len(circuit):
        raise ValueError("circuit is empty: name at least one part, such as 'head 3.1' or 'mlp 5'")
    found = list[int]()
    for part in circuit:
        given = read_name(part) if isinstance(part, str) else tuple(part)
        kind, *numbers = given if given and isinstance(given[0], str) else ("head", *given)
        if kind not in _KINDS or len(numbers) != 2 - (kind == "mlp"):
            raise ValueError(
                "a part of a circuit must be (layer, head), ('mlp', layer), or a name such as 'head 3.1' or 'mlp 5', "
                f"got {part!r}"
            )
        layer = index(numbers[0], model.n_layers, "layer", f"{model.n_layers}-layer model")
        head = -1
        if kind == "head":
            head = index(numbers[1], model.n_heads, "head", f"model of {model.n_heads} heads per layer")
        node = _Node(kind, layer, head)
        if node not in nodes:
            raise ValueError(f"{node} is none of the parts that there are: change parts or layers, or name another")
        if nodes.index(node) in found:
            raise ValueError(f"circuit has {node} twice: name each part once")
        found.append(nodes.index(node))
    return found


def _pools(nodes: Sequence[_Node], draws: int, rng: np.random.Generator) -> list[dict[CircuitPart, list[int]]]:
    """For each random circuit the parts of each kind in the order in which it grows."""
    kinds = {kind: [number for number, node in enumerate(nodes) if node.kind == kind] for kind in _KINDS}
    return [{kind: rng.permutation(numbers).tolist() for kind, numbers in kinds.items()} for _ in range(draws)]


def _drawn(
    nodes: Sequence[_Node], circuit: Sequence[int], pools: Sequence[dict[CircuitPart, list[int]]]
) -> list[list[int]]:
    """Random circuits with as many parts of each kind as a circuit."""
    counts = {kind: sum(nodes[number].kind == kind for number in circuit) for kind in _KINDS}
    return [[number for kind in _KINDS for number in pool[kind][: counts[kind]]] for pool in pools]


# ---- the runs


@dataclass(frozen=True)
class _CircuitRun:
    """Pairs of prompts, and the parts that their circuits may have."""

    model: Model
    pairs: tuple[MeasuredPair, ...]
    nodes: tuple[_Node, ...]
    runner: Runner

    def masks(self, circuits: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
        """(circuits, nodes) which parts each circuit has."""
        masks = np.zeros((len(circuits), len(self.nodes)), bool)
        for mask, circuit in zip(masks, circuits, strict=True):
            mask[list(circuit)] = True
        return masks

    def next_part(self, order: Sequence[int]) -> int:
        """The part that brings back most when it is added; of those that differ by rounding alone the first."""
        rest = [number for number in range(len(self.nodes)) if number not in order]
        share = self.share(self.metrics(self.masks([[*order, number] for number in rest])))
        return rest[int(np.argmax(share >= share.max() - self._rounding()))]

    def _rounding(self) -> float:
        """How far the sums of a pass can move a faithfulness, such as with another size of chunks; 0 in half precision,
        in which rounding is no smaller than effects."""
        if self.model.dtype not in (torch.float32, torch.float64):
            return 0.0
        gap = abs(float(np.mean([pair.clean_value - pair.corrupted_value for pair in self.pairs])))
        return float(np.mean([pair.rounding() for pair in self.pairs])) / gap if gap else 0.0

    def share(self, each: Floats) -> Floats:
        """(circuits,) the faithfulness of values (pairs, circuits) of the metric.

        Raises ValueError where the metric is the same in the clean and the corrupted prompts.
        """
        clean, corrupted = (
            float(np.mean([getattr(pair, name) for pair in self.pairs])) for name in ("clean_value", "corrupted_value")
        )
        if all(np.isnan(pair.gap) for pair in self.pairs) or clean == corrupted:
            raise ValueError(
                f"the metric is {clean:.4g} for the clean and the corrupted prompts alike, so that no circuit can "
                "bring it back: give prompts with different answers"
            )
        return np.asarray((each.mean(0) - corrupted) / (clean - corrupted))

    def metrics(self, kept: NDArray[np.bool_]) -> Floats:
        """(pairs, circuits) the metric with only the kept parts (circuits, nodes) as in the clean run."""
        return np.stack([self._metric(pair, torch.from_numpy(kept)) for pair in self.pairs])

    def _metric(self, pair: MeasuredPair, kept: Tensor) -> Floats:
        same = [a == b for a, b in zip(pair.pair.clean.ids, pair.pair.corrupted.ids, strict=True)]
        begins = same.index(False)  # before the first different token both runs are the same
        positions = torch.arange(begins, pair.clean.tokens)
        values = torch.full((len(kept),), torch.nan, dtype=wide_type(self.model.dtype), device=self.model.device)
        places: dict[tuple[CircuitPart, int], list[int]] = {}
        for number, node in enumerate(self.nodes):
            places.setdefault((node.kind, node.layer), []).append(number)

        def patches(cells: Tensor) -> list[Patch]:
            made = []
            for (kind, layer), numbers in places.items():
                row, column = (~kept[cells][:, numbers]).nonzero(as_tuple=True)
                row, at = row.repeat_interleave(len(positions)), positions.repeat(len(row))
                corrupted = pair.corrupted.value(kind, layer)[0]
                if kind == "mlp":
                    made.append(Patch(kind, layer, corrupted[at], at, row))
                    continue
                head = torch.tensor([self.nodes[number].head for number in numbers])[column]
                head = head.repeat_interleave(len(positions))
                made.append(Patch(kind, layer, corrupted[at, head], at, row, head))
            return [patch for patch in made if len(patch.values)]

        def write(hidden: Tensor, cells: Tensor) -> None:
            values[cells] = pair.read(hidden, pair.clean).to(values.dtype)

        run_cells(len(kept), pair.clean, self.runner, patches, lambda _: begins, write)
        check_finite(values, lambda cell: f"the metric of circuit {cell}")
        return to_numpy(values)
