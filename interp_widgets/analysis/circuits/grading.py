"""`grade_circuit`: how good an answer to a sealed circuit is, beside random answers of its size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_range
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.patching.circuit import circuit_faithfulness
from interp_widgets.arguments import checked, short
from interp_widgets.models.circuits import (
    CircuitCase,
    Edge,
    SealedCircuit,
    circuit_edges,
    leads_with_edges,
    sealed_truth,
)

_LEVEL = 0.05
"""Share of random answers that may be as faithful."""


@record
class CircuitGrade(Result):
    """How many of the named parts matter, how many of those that matter are named, and what the named ones keep.

    Example:
        >>> sealed = sealed_circuit("trigger", key=1)
        >>> everything = [(layer, head) for layer in range(2) for head in range(4)] + [("mlp", 0), ("mlp", 1)]
        >>> grade = grade_circuit(sealed, everything)
        >>> grade.recall, round(grade.faithfulness, 2), grade.precision < 0.5
        (1.0, 1.0, True)
    """

    precision: float
    """Share of the named parts that matter in one of the prompts."""

    recall: float
    """Share of the parts that matter in one of the prompts that are named."""

    faithfulness: float
    """(lead of the answer with only the named parts as in the clean run, or with all edges but the named ones cut -
    corrupted) / (clean - corrupted), averaged over the prompts; 1 is the whole model."""

    chance_precision: float
    """Mean precision of random answers with as many heads and as many MLPs, or as many edges."""

    chance_recall: float
    """Their mean recall."""

    random: Floats = with_axes("draws")
    """Their faithfulness."""

    named: int
    """Parts or edges in the answer."""

    circuit: str
    """What the circuit does, as `load_circuit` calls it."""

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 if nothing named matters."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0

    @property
    def p(self) -> float:
        """(1 + random answers at least as faithful) / (1 + their number)."""
        return float((1 + (self.random >= self.faithfulness - 1e-6).sum()) / (1 + len(self.random)))

    def __str__(self) -> str:
        differs = "differs from" if self.p < _LEVEL else "does not differ from"
        named, keep = ("1 part", "It keeps") if self.named == 1 else (f"{self.named} parts", "They keep")
        return (
            f"{named} named: precision {self.precision:.2f} (by chance {self.chance_precision:.2f}), recall "
            f"{self.recall:.2f} ({self.chance_recall:.2f}). {keep} {self.faithfulness:.2f} of the behaviour (random "
            f"parts {self.random.mean():.2f}), which {differs} chance (p {self.p:.2g})."
        )

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """Precision, recall, F1, faithfulness, the same by chance, and p."""
        return {
            "precision": self.precision,
            "recall": self.recall,
            "f1": self.f1,
            "faithfulness": self.faithfulness,
            "chance_precision": self.chance_precision,
            "chance_recall": self.chance_recall,
            "chance_faithfulness": float(self.random.mean()),
            "p": self.p,
        }

    def to_frame(self) -> DataFrame:
        """One row per measure: measure, value, chance."""
        values = [self.precision, self.recall, self.faithfulness]
        chance = [self.chance_precision, self.chance_recall, float(self.random.mean())]
        return table({"measure": ["precision", "recall", "faithfulness"]}, {"value": values, "chance": chance})


@checked
def grade_circuit(
    sealed: SealedCircuit,
    answer: Sequence[Sequence[Any]],
    *,
    draws: int = 200,
    seed: int = 0,
    check: Callable[[], None] | None = None,
) -> CircuitGrade:
    """Grade an answer to a sealed circuit: precision, recall and faithfulness, each beside random answers of its size.

    Precision and recall compare the names with the truth; faithfulness needs none: only the named heads and MLPs have
    their values of the clean run, all others those of the corrupted one. With an answer of edges all others are cut:
    their receivers read the corrupted output. Naming everything has recall and faithfulness 1, by chance too. The
    result does not name the parts.

    Args:
        sealed: what `sealed_circuit` returns.
        answer: (layer, head) for each head and ``("mlp", layer)`` for each MLP that matters; or (sender, receiver) for
            each edge, as `circuit_edges` lists them.
        draws: random answers.
        seed: of the random answers.
        check: called before every chunk of runs; raises to cancel.

    Raises:
        ValueError: an empty answer, one with both parts and edges, a part or edge twice or one that the model does not
            have.

    Source: Towards automated circuit discovery (Conmy et al. 2023), for comparing a circuit with a known one;
    Transformer Circuit Faithfulness Metrics are not Robust (Miller et al. 2024), for faithfulness.

    Example:
        >>> sealed = sealed_circuit("induction", key=3)
        >>> case = sealed.cases[0]
        >>> strongest = ablate_heads(sealed.model, case.prompt, case.answer).strongest(2)
        >>> grade = grade_circuit(sealed, strongest)
        >>> grade.precision, grade.recall, grade.chance_precision, grade.p < 0.1
        (1.0, 1.0, 0.25, True)
    """
    check_range("draws", draws)
    edges = [_edge(name) for name in answer if _is_edge(name)]
    if edges:
        return _grade_of_edges(sealed, _known_edges(sealed, answer, edges), draws, seed, check)
    parts = _parts(sealed, answer)
    heads, mlps = _that_matter(sealed_truth(sealed).cases)
    model = sealed.model
    hits = len({*heads, *mlps} & {*parts})
    n_heads = sum(part[0] != "mlp" for part in parts)
    by_chance = n_heads * len(heads) / (model.n_layers * model.n_heads)
    by_chance += (len(parts) - n_heads) * len(mlps) / model.n_layers
    kept = [
        circuit_faithfulness(
            model, case.prompt, case.corrupted, parts, case.answer, foil=case.foil, draws=draws, seed=seed, check=check
        )
        for case in sealed.cases
    ]
    return CircuitGrade(
        precision=hits / len(parts),
        recall=hits / (len(heads) + len(mlps)),
        faithfulness=float(np.mean([one.faithfulness for one in kept])),
        chance_precision=by_chance / len(parts),
        chance_recall=by_chance / (len(heads) + len(mlps)),
        random=np.mean([one.random for one in kept], axis=0),
        named=len(parts),
        circuit=sealed.name,
        provenance=provenance(model.provenance(), draws=draws, seed=seed, answer=str(parts)),
    )


def _grade_of_edges(
    sealed: SealedCircuit, named: Sequence[Edge], draws: int, seed: int, check: Callable[[], None] | None
) -> CircuitGrade:
    model, every = sealed.model, circuit_edges(sealed.model)
    matter = {edge for case in sealed_truth(sealed).cases for edge in case.edges}
    hits = len(matter & {*named})
    rng = np.random.default_rng(seed)
    kept = np.zeros((3 + draws, len(every)), dtype=bool)  # all, none, the answer, random ones
    kept[0] = True
    kept[2, [every.index(edge) for edge in named]] = True
    for row in kept[3:]:
        row[rng.permutation(len(every))[: len(named)]] = True
    shares = []
    for case in sealed.cases:
        if check is not None:
            check()
        clean, corrupted, *leads = leads_with_edges(model, case, kept)
        shares.append((np.array(leads) - corrupted) / (clean - corrupted))
    faithfulness, *by_chance = np.mean(shares, axis=0)
    return CircuitGrade(
        precision=hits / len(named),
        recall=hits / len(matter),
        faithfulness=float(faithfulness),
        chance_precision=len(matter) / len(every),
        chance_recall=len(named) / len(every),
        random=np.array(by_chance),
        named=len(named),
        circuit=sealed.name,
        provenance=provenance(model.provenance(), draws=draws, seed=seed, answer=str(list(named))),
    )


def _is_edge(name: Sequence[Any]) -> bool:
    """Whether a name is meant as (sender, receiver): one of both is a list, or the embeddings or logits."""
    return any(isinstance(end, list | tuple) or end in ("embeddings", "logits") for end in name)


def _edge(name: Sequence[Any]) -> Edge:
    return tuple(tuple(end) if isinstance(end, list) else end for end in name)  # type: ignore[return-value]


def _known_edges(sealed: SealedCircuit, answer: Sequence[Sequence[Any]], edges: list[Edge]) -> list[Edge]:
    """The edges of an answer; raises a ValueError for what is none."""
    known = set(circuit_edges(sealed.model))
    if len(edges) < len(answer):
        part = next(name for name in answer if not _is_edge(name))
        raise ValueError(f"answer must have heads and MLPs, or edges, not both: got {short(part)} and {edges[0]}")
    for edge in edges:
        if edge not in known:
            raise ValueError(f"answer may have the edges that circuit_edges lists, got {short(edge)}")
        if edges.count(edge) > 1:
            raise ValueError(f"answer must name every edge once, got {edge} twice")
    return edges


def _that_matter(cases: Sequence[CircuitCase]) -> tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """The heads and the MLPs, by the neurons in them, that matter in one of the cases."""
    heads: set[tuple[Any, ...]] = {head for case in cases for head in case.heads}
    return heads, {("mlp", layer) for case in cases for layer, _ in case.neurons}


def _parts(sealed: SealedCircuit, answer: Sequence[Sequence[str | int]]) -> list[tuple[Any, ...]]:
    """The parts of an answer; raises a ValueError for what is none."""
    if not len(answer):
        raise ValueError("answer is empty: name at least one head, as (layer, head), or MLP, as ('mlp', layer)")
    model = sealed.model
    known: set[tuple[Any, ...]] = {(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)}
    known |= {("mlp", layer) for layer in range(model.n_layers)}
    parts: list[tuple[Any, ...]] = []
    for name in answer:
        part = tuple(name)
        if part not in known:
            raise ValueError(
                f"answer may have (layer, head) with layers 0..{model.n_layers - 1} and heads 0..{model.n_heads - 1}, "
                f"and ('mlp', layer), got {short(name)}"
            )
        if part in parts:
            raise ValueError(f"answer must name every part once, got {part} twice")
        parts.append(part)
    return parts
