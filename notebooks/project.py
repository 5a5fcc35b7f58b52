"""Grades what a program can grade of the course project in `15_project.ipynb`: 20 of its 30 points.

`grade_project(globals())` as the last cell of a project gives a table. An answer gets the share of its points by which
it is better than chance, or than a rule that needs no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from interp_widgets import SealedCircuit, circuit_edges, grade_circuit
from interp_widgets.models.circuits import sealed_truth
from interp_widgets.models.circuits.attention import PLAIN
from interp_widgets.models.circuits.neurons import RING, SWITCH

POINTS = {"trigger": 2, "predict": 5, "parts_a": 3, "parts_b": 5, "edges_b": 5}
"""Name of each answer → its points."""
PROMPTS = 60
"""Prompts on which `predict` is tried."""


def grade_project(names: dict[str, Any], *, seed: int = 0, passphrase: str | None = None) -> pd.DataFrame:
    """One row per answer: points, of how many, and why; chance stands in brackets.

    Args:
        names: of the project's notebook, as `globals()` gives them.
        seed: of the prompts on which `predict` is tried.
        passphrase: of models that `open_sealed` has read. Without it their parts and edges are tried by interventions,
            and their points are NaN.
    """
    rows = []
    for name, most in POINTS.items():
        share, note = grade_answer(name, names, seed=seed, passphrase=passphrase)
        rows.append({"answer": name, "points": round(most * (share or 0.0), 1), "of": most, "note": note})
    table = pd.DataFrame(rows)
    total = {"answer": "all", "points": table.points.sum(), "of": table.of.sum(), "note": "10 more for the texts"}
    return pd.concat([table, pd.DataFrame([total])], ignore_index=True)


def grade_answer(
    name: str, names: dict[str, Any], *, seed: int = 0, passphrase: str | None = None
) -> tuple[float | None, str]:
    """The share of an answer's points, and why: None for no answer, NaN for one whose truth is locked."""
    answer = names[name]
    share, note = (None, "") if answer is None else _GRADES[name](answer, names, seed, passphrase)
    return (None, "not answered") if share is None else (share, note)


def beyond(value: float, chance: float) -> float:
    """The share of the way from chance to 1 that a value has gone; 0 below chance."""
    return max(0.0, (value - chance) / (1 - chance))


def f1(hits: float, named: int, all_that_matter: int) -> float:
    """Harmonic mean of precision and recall."""
    return 2 * hits / (named + all_that_matter)


def _trigger(answer: str, names: dict[str, Any], seed: int, passphrase: str | None) -> tuple[float, str]:
    right = answer.strip() == SWITCH
    return float(right), "right" if right else "another word"


def _predict(predict: Any, names: dict[str, Any], seed: int, passphrase: str | None) -> tuple[float | None, str]:
    """Beside the rule that the model repeats the last word."""
    model, rng = names["model_a"].model, np.random.default_rng(seed)
    prompts = [_prompt(rng, number % 2 == 0) for number in range(PROMPTS)]
    said = [model.generate(prompt, max_new_tokens=1).strip() for prompt in prompts]
    if predict(prompts[0]) is None:
        return None, ""
    right = float(np.mean([str(predict(prompt)).strip() == word for prompt, word in zip(prompts, said, strict=True)]))
    repeated = float(np.mean([prompt.split()[-1] == word for prompt, word in zip(prompts, said, strict=True)]))
    return beyond(right, repeated), f"right {right:.0%}, by repeating the last word {repeated:.0%}"


def _prompt(rng: np.random.Generator, triggered: bool) -> str:
    """A few words and perhaps another colour, then a colour; the trigger anywhere before it."""
    words = [str(word) for word in rng.choice([*PLAIN, *PLAIN, *RING], size=rng.integers(2, 6))]
    if triggered:
        words.insert(int(rng.integers(0, len(words) + 1)), SWITCH)
    return " ".join([*words, str(rng.choice(RING))])


def _parts(sealed: SealedCircuit, answer: Sequence[Any], passphrase: str | None) -> tuple[float, str]:
    passphrase = _of_folder(sealed, passphrase)
    if _is_locked(sealed, passphrase):
        return math.nan, str(grade_circuit(sealed, answer))
    grade = grade_circuit(sealed, answer, passphrase=passphrase)
    both = grade.chance_precision + grade.chance_recall
    chance = 2 * grade.chance_precision * grade.chance_recall / both if both else 0.0
    precision = f"precision {grade.precision:.2f} [{grade.chance_precision:.2f}]"
    return beyond(grade.f1, chance), f"{precision}, recall {grade.recall:.2f} [{grade.chance_recall:.2f}]"


def _edges(answer: Sequence[Any], names: dict[str, Any], seed: int, passphrase: str | None) -> tuple[float, str]:
    sealed = names["model_b"]
    listed = circuit_edges(sealed.model)
    named = {_edge(edge) for edge in answer}
    if not named <= set(listed):
        raise ValueError(
            f"edges_b may have the edges that circuit_edges(model_b.model) lists, got {named - set(listed)}"
        )
    passphrase = _of_folder(sealed, passphrase)
    if _is_locked(sealed, passphrase):
        return math.nan, str(grade_circuit(sealed, sorted(named, key=str)))
    right = {edge for case in sealed_truth(sealed, passphrase=passphrase).cases for edge in case.edges}
    found, by_chance = len(named & right), len(named) * len(right) / len(listed)
    share = beyond(f1(found, len(named), len(right)), f1(by_chance, len(named), len(right)))
    return share, f"{found} of {len(named)} named edges matter, of {len(right)} that do"


def _of_folder(sealed: SealedCircuit, passphrase: str | None) -> str | None:
    """The passphrase, for a model that has one: a model of a key has none."""
    return passphrase if sealed.locked is not None else None


def _is_locked(sealed: SealedCircuit, passphrase: str | None) -> bool:
    return sealed.locked is not None and passphrase is None


def _edge(edge: Any) -> Any:
    """An edge as `circuit_edges` writes it: tuples all the way down."""
    return tuple(end if isinstance(end, str) else tuple(end) for end in edge)


_GRADES: dict[str, Any] = {
    "trigger": _trigger,
    "predict": _predict,
    "parts_a": lambda answer, names, seed, passphrase: _parts(names["model_a"], answer, passphrase),
    "parts_b": lambda answer, names, seed, passphrase: _parts(names["model_b"], answer, passphrase),
    "edges_b": _edges,
}
