"""Circuits of known truth: small models whose weights are written by hand, and what is known about them."""

from __future__ import annotations

from typing import Literal

from interp_widgets.arguments import checked
from interp_widgets.models.build import BackendChoice
from interp_widgets.models.loading import load_model
from interp_widgets.models.model import Model

from .attention import backup, busy_idle, indirect_object, induction
from .neurons import fact_lookup, greater_than, trigger
from .truth import PART_KINDS, CircuitCase, CircuitProof, CircuitTruth, PartKind

__all__ = [
    "CIRCUITS",
    "PART_KINDS",
    "CircuitCase",
    "CircuitName",
    "CircuitProof",
    "CircuitTruth",
    "PartKind",
    "load_circuit",
]

CircuitName = Literal["induction", "indirect_object", "fact_lookup", "greater_than", "trigger", "backup", "busy_idle"]
"""The circuits that `load_circuit` builds."""

_WRITERS = {
    "induction": induction,
    "indirect_object": indirect_object,
    "fact_lookup": fact_lookup,
    "greater_than": greater_than,
    "trigger": trigger,
    "backup": backup,
    "busy_idle": busy_idle,
}
CIRCUITS: tuple[CircuitName, ...] = tuple(_WRITERS)  # type: ignore[arg-type]


@checked
def load_circuit(
    name: CircuitName, *, backend: BackendChoice = "auto", seed: int = 0
) -> tuple[Model, CircuitTruth]:
    """A small model whose circuit is known by construction, and the truth about it.
    """
    if name not in _WRITERS:
        raise ValueError(f"name must be {', '.join(map(repr, CIRCUITS))}, got {name!r}")
    writer, truth = _WRITERS[name]()
    model = load_model(writer.build(seed), tokenizer=writer.tokenizer(), backend=backend)
    model.name = f"circuit-{name}"
    return model, truth
