"""Sealed circuits, for exercises: the model of a circuit whose parts lie elsewhere, without its truth."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from interp_widgets.models.build import BackendChoice
from interp_widgets.models.loading import load_model
from interp_widgets.models.model import Model

from .hand_written import Moves
from .truth import CircuitCase, CircuitTruth, Edge

__all__ = ["LockedTruth", "SealedCase", "SealedCircuit", "moved_truth"]


@dataclass(frozen=True)
class SealedCase:
    """One prompt of a sealed circuit: what is known about it without looking inside.

    Example:
        >>> sealed = sealed_circuit("induction", key=3)
        >>> sealed.cases[0].prompt, sealed.cases[0].answer
        ('beta eta psi rho mu xi eta', 'psi')
    """

    prompt: str
    answer: str
    """The word that the model predicts."""
    foil: str
    """A word of the same kind, which leads after the corrupted prompt or is level."""
    corrupted: str
    """A prompt of as many tokens after which the answer has no lead over the foil."""


@dataclass(frozen=True)
class LockedTruth:
    """The encrypted truth of a sealed folder."""

    salt: bytes
    nonce: bytes
    text: bytes
    beside: bytes
    """Hashes of the weights and the prompts that it is the truth of."""


@dataclass(frozen=True)
class SealedCircuit:
    """A circuit whose truth is not in it; `grade_circuit` works it out again from the key and compares.

    Nothing that it holds or prints names a part. A key is no lock: who reads the source can work the truth out too.
    What `open_sealed` reads has no key, and only the passphrase opens its truth.

    Example:
        >>> sealed = sealed_circuit("induction", key=3)
        >>> sealed
        SealedCircuit('induction', 3 prompts)
        >>> ablate_heads(sealed.model, sealed.cases[0].prompt, sealed.cases[0].answer).effect.shape
        (2, 4)
    """

    model: Model
    cases: tuple[SealedCase, ...]
    name: str
    """What it does, as `load_circuit` calls it; where its parts lie is the question."""
    key: int | None
    seed: int | None = field(default=0)
    locked: LockedTruth | None = field(default=None)
    """Of a folder, which has neither key nor seed."""

    def __repr__(self) -> str:
        return f"SealedCircuit({self.name!r}, {len(self.cases)} prompts)"


def moved_truth(truth: CircuitTruth, moves: Moves) -> CircuitTruth:
    """The truth of a circuit whose heads and neurons have moved."""
    return replace(
        truth,
        description="Sealed: its parts are the question.",
        cases=tuple(_moved(case, moves) for case in truth.cases),
    )


def _moved(case: CircuitCase, moves: Moves) -> CircuitCase:
    return replace(
        case,
        heads=tuple(moves.heads[head] for head in case.heads),
        neurons=tuple(moves.neurons[neuron] for neuron in case.neurons),
        edges=tuple(_moved_edge(edge, moves) for edge in case.edges),
    )


def _moved_edge(edge: Edge, moves: Moves) -> Edge:
    """MLPs, the embeddings and the logits stay where they are."""

    def end(named: Any) -> Any:
        if isinstance(named, str) or named[0] == "mlp":
            return named
        *kind, layer, head = named
        return (*kind, *moves.heads[layer, head])

    return end(edge[0]), end(edge[1])


def build_sealed(writer: Any, truth: CircuitTruth, key: int, seed: int, backend: BackendChoice) -> SealedCircuit:
    """The sealed circuit of a writer whose parts have moved by ``key``."""
    model = load_model(writer.build(seed), tokenizer=writer.tokenizer(), backend=backend)
    model.name = f"sealed-{truth.name}"
    cases = tuple(SealedCase(case.prompt, case.answer, case.foil, case.corrupted) for case in truth.cases)
    return SealedCircuit(model, cases, truth.name, key, seed)
