"""`grade_circuit`: how good an answer to a sealed circuit is, beside random answers of its size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_range
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.patching.circuit import circuit_faithfulness
from interp_widgets.arguments import checked, short
from interp_widgets.models.circuits import (
    MATTERS,
    CircuitCase,
    CircuitTruth,
    Edge,
    SealedCircuit,
    changes_of,
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

    VERSION: ClassVar[int] = 2

    precision: float | None
    """Share of the named parts that matter in one of the prompts; None where the truth is locked."""

    recall: float | None
    """Share of the parts that matter in one of the prompts that are named."""

    faithfulness: float
    """(lead of the answer with only the named parts as in the clean run, or with all edges but the named ones cut -
    corrupted) / (clean - corrupted), averaged over the prompts; 1 is the whole model."""

    without: float
    """Faithfulness of all other parts or edges: what is left of the behaviour without the named ones."""

    needed: int
    """Named parts or edges that take at least half of the answer's lead in one of the prompts, alone or beside one
    other named one (of more than 30 edges alone), as those that matter do."""

    chance_precision: float | None
    """Mean precision of random answers with as many heads and as many MLPs, or as many edges."""

    chance_recall: float | None
    """Their mean recall."""

    random: Floats = with_axes("draws")
    """Their faithfulness."""

    named: int
    """Parts or edges in the answer."""

    circuit: str
    """What the circuit does, as `load_circuit` calls it."""

    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall; 0 if nothing named matters."""
        if self.precision is None or self.recall is None:
            return None
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0

    @property
    def p(self) -> float:
        """(1 + random answers at least as faithful) / (1 + their number)."""
        return float((1 + (self.random >= self.faithfulness - 1e-6).sum()) / (1 + len(self.random)))

    def __str__(self) -> str:
        differs = "differs from" if self.p < _LEVEL else "does not differ from"
        named, keep = ("1 part", "It keeps") if self.named == 1 else (f"{self.named} parts", "They keep")
        kept = (
            f"{keep} {self.faithfulness:.2f} of the behaviour (random parts {self.random.mean():.2f}), which {differs} "
            f"chance (p {self.p:.2g})."
        )
        if self.precision is None:
            are = "is" if self.needed == 1 else "are"
            return (
                f"{named} named, of which {self.needed} {are} needed. {kept} All others keep "
                f"{self.without:.2f}. Precision and recall need the truth, which only its passphrase opens."
            )
        return (
            f"{named} named: precision {self.precision:.2f} (by chance {self.chance_precision:.2f}), recall "
            f"{self.recall:.2f} ({self.chance_recall:.2f}). {kept}"
        )

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """Precision, recall, F1 (None where the truth is locked), faithfulness, the same by chance, p, the share of the
        named ones that are needed, and what all others keep."""
        return {
            "precision": self.precision,
            "recall": self.recall,
            "f1": self.f1,
            "faithfulness": self.faithfulness,
            "chance_precision": self.chance_precision,
            "chance_recall": self.chance_recall,
            "chance_faithfulness": float(self.random.mean()),
            "p": self.p,
            "needed": self.needed / self.named,
            "without": self.without,
        }

    def to_frame(self) -> DataFrame:
        """One row per measure: measure, value, chance; NaN where the truth is locked."""
        values = _numbers([self.precision, self.recall, self.faithfulness])
        chance = _numbers([self.chance_precision, self.chance_recall, float(self.random.mean())])
        return table(
            {"measure": ["precision", "recall", "faithfulness"]},
            {"value": values, "chance": chance},
        )


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]


@checked
def grade_circuit(
    sealed: SealedCircuit,
    answer: Sequence[Sequence[Any]],
    *,
    passphrase: str | None = None,
    draws: int = 200,
    seed: int = 0,
    check: Callable[[], None] | None = None,
) -> CircuitGrade:
    """Grade an answer to a sealed circuit: precision, recall and faithfulness, each beside random answers of its size.

    Precision and recall compare the names with the truth; faithfulness needs none: only the named heads and MLPs have
    their values of the clean run, all others those of the corrupted one. With an answer of edges all others are cut:
    their receivers read the corrupted output. Naming everything has recall and faithfulness 1, by chance too. The
    result does not name the parts. What `open_sealed` has read is graded by interventions alone unless the passphrase
    opens its truth: what the named parts keep, what all others keep, and how many of the named ones are needed.

    Args:
        sealed: what `sealed_circuit` or `open_sealed` returns.
        answer: (layer, head) for each head and ``("mlp", layer)`` for each MLP that matters; or (sender, receiver) for
            each edge, as `circuit_edges` lists them.
        passphrase: of a circuit that `open_sealed` has read, for precision and recall.
        draws: random answers.
        seed: of the random answers.
        check: called before every chunk of runs; raises to cancel.

    Raises:
        ValueError: an empty answer, one with both parts and edges, a part or edge twice or one that the model does not
            have; a passphrase that is wrong or not needed.

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
    named: Sequence[Any] = _known_edges(sealed, answer, edges) if edges else _parts(sealed, answer)
    scores: dict[str, float | None] = dict.fromkeys(("precision", "recall", "chance_precision", "chance_recall"))
    if sealed.locked is None or passphrase is not None:
        truth = sealed_truth(sealed, passphrase=passphrase)
        scores |= _edge_scores(sealed, truth, named) if edges else _part_scores(sealed, truth, named)
    keep = _kept_by_edges if edges else _kept_by_parts
    faithfulness, without, random = keep(sealed, named, draws, seed, check)
    changes = np.max([changes_of(sealed.model, case, named) for case in sealed.cases], axis=0)
    return CircuitGrade(
        precision=scores["precision"],
        recall=scores["recall"],
        faithfulness=faithfulness,
        without=without,
        needed=int((changes >= MATTERS).sum()),
        chance_precision=scores["chance_precision"],
        chance_recall=scores["chance_recall"],
        random=random,
        named=len(named),
        circuit=sealed.name,
        provenance=provenance(sealed.model.provenance(), draws=draws, seed=seed, answer=str(list(named))),
    )


def _part_scores(sealed: SealedCircuit, truth: CircuitTruth, parts: Sequence[Any]) -> dict[str, float | None]:
    heads, mlps = _that_matter(truth.cases)
    model, hits = sealed.model, len({*heads, *mlps} & {*parts})
    n_heads = sum(part[0] != "mlp" for part in parts)
    by_chance = n_heads * len(heads) / (model.n_layers * model.n_heads)
    by_chance += (len(parts) - n_heads) * len(mlps) / model.n_layers
    count, matter = len(parts), len(heads) + len(mlps)
    return {
        "precision": hits / count,
        "recall": hits / matter,
        "chance_precision": by_chance / count,
        "chance_recall": by_chance / matter,
    }


def _edge_scores(sealed: SealedCircuit, truth: CircuitTruth, named: Sequence[Any]) -> dict[str, float | None]:
    matter, every = {edge for case in truth.cases for edge in case.edges}, len(circuit_edges(sealed.model))
    hits = len(matter & {*named})
    return {
        "precision": hits / len(named),
        "recall": hits / len(matter),
        "chance_precision": len(matter) / every,
        "chance_recall": len(named) / every,
    }


def _kept_by_parts(
    sealed: SealedCircuit, parts: Sequence[Any], draws: int, seed: int, check: Callable[[], None] | None
) -> tuple[float, float, Floats]:
    """What the parts keep, what all others keep, what random parts keep; averaged over the prompts."""
    kept = [
        circuit_faithfulness(
            sealed.model, case.prompt, case.corrupted, parts, case.answer, foil=case.foil, draws=draws, seed=seed,
            check=check,
        )
        for case in sealed.cases
    ]  # fmt: skip
    own, rest = np.mean([(one.faithfulness, one.without) for one in kept], axis=0)
    return float(own), float(rest), np.mean([one.random for one in kept], axis=0)


def _kept_by_edges(
    sealed: SealedCircuit, named: Sequence[Any], draws: int, seed: int, check: Callable[[], None] | None
) -> tuple[float, float, Floats]:
    """What the edges keep, what all others keep, what random edges keep; averaged over the prompts."""
    model, every = sealed.model, circuit_edges(sealed.model)
    rng = np.random.default_rng(seed)
    kept = np.zeros((4 + draws, len(every)), dtype=bool)  # all, none, the answer, all others, random ones
    kept[0] = True
    kept[2, [every.index(edge) for edge in named]] = True
    kept[3] = ~kept[2]
    for row in kept[4:]:
        row[rng.permutation(len(every))[: len(named)]] = True
    shares = []
    for case in sealed.cases:
        if check is not None:
            check()
        clean, corrupted, *leads = leads_with_edges(model, case, kept)
        shares.append((np.array(leads) - corrupted) / (clean - corrupted))
    own, rest, *random = np.mean(shares, axis=0)
    return float(own), float(rest), np.array(random)


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
