"""`circuit_ranking`: the numbers by which one method ranks the parts of one circuit, beside which of them matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from interp_widgets.analysis._core.arrays import Bools, Floats
from interp_widgets.analysis._core.checks import index
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.circuits.methods import METHODS, Method, Ranking
from interp_widgets.arguments import checked, short
from interp_widgets.models import Model
from interp_widgets.models.build import BackendChoice
from interp_widgets.models.circuits import (
    CIRCUITS,
    PART_KINDS,
    CircuitCase,
    CircuitName,
    PartKind,
    circuit_edges,
    load_circuit,
)

DRAWS = 2000
"""Random rankings that chance is measured with."""
ROUNDING = 1e-6
"""Share of a ranking's largest number under which numbers are ties: float32 rounds there."""
_LISTED = f"{', '.join(PART_KINDS[:-1])} or {PART_KINDS[-1]}"


@record
class CircuitRanking(Result):
    """The numbers by which one method ranks the parts of a circuit for one prompt.

    Tokens are one row; heads and neurons have a row per layer; edges a row per sender and a column per receiver.

    Example:
        >>> found = circuit_ranking("zero ablation", "busy_idle", kind="heads")
        >>> found.values.shape, found.part(found.values.argmax()), found.part(found.matters.argmax())
        ((2, 4), 'head 0.3', 'head 1.0')
    """

    values: Floats = with_axes("rows", "columns")
    """The larger, the more the part matters by the method; NaN where there is no such part."""

    matters: Bools = with_axes("rows", "columns")
    """Whether the part matters by the truth."""

    rows: Sequence[str] = with_axes("rows")
    """Names of the rows: layers or senders; of tokens the one name ``importance``."""

    columns: Sequence[str] = with_axes("columns")
    """Names of the columns: tokens, heads, neurons or receivers (``k 1.1``: the key of head 1 of layer 1)."""

    kind: str
    """``tokens``, ``heads``, ``neurons`` or ``edges``."""

    method: str
    circuit: str

    case: int
    """Which of the circuit's cases, from 0."""

    prompt: str
    answer: str
    foil: str
    """The word whose logit is subtracted."""

    average_precision: float
    """1 if all parts that matter come first; NaN if no part matters for this prompt."""

    chance: float
    """Mean of random rankings of the same parts."""

    chance_low: float
    """Lower end of the middle 95% of them."""

    chance_high: float
    """Upper end."""

    def part(self, number: SupportsIndex) -> str:
        """The name of the part with this number, counted row by row."""
        row, column = divmod(int(number), len(self.columns))
        return _part_name(self.kind, self.rows[row], self.columns[column])

    def order(self) -> list[int]:
        """The numbers of all parts, counted row by row, the one that matters most by the method first."""
        flat = self.values.ravel()
        return [int(number) for number in np.argsort(-flat, kind="stable") if np.isfinite(flat[number])]

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """Average precision and chance."""
        return {"average_precision": self.average_precision, "chance": self.chance}

    def to_frame(self) -> DataFrame:
        """One row per part in the order of the ranking: part, value, matters."""
        order = self.order()
        columns = {"value": self.values.ravel()[order], "matters": self.matters.ravel()[order]}
        return table({"part": [self.part(number) for number in order]}, columns)


@checked
def circuit_ranking(
    method: str | Callable[[Model, CircuitCase], Ranking],
    circuit: CircuitName,
    *,
    kind: PartKind = "heads",
    case: int = 0,
    backend: BackendChoice = "auto",
    seed: int = 0,
) -> CircuitRanking:
    """One cell of `circuit_scoreboard` on one prompt: what the method gives every part, and which parts matter.

    Args:
        method: as in `circuit_scoreboard`.
        circuit: as `load_circuit` takes it.
        kind: the parts that are ranked.
        case: which of the circuit's prompts, from 0.
        backend: as in `load_model`.
        seed: of the circuit's weights and of the random rankings.

    Raises:
        ValueError: an unknown method, circuit or case, or a method that does not rank this kind.

    Source: as `circuit_scoreboard`.

    Example:
        >>> found = circuit_ranking("path patching, noising", "induction", kind="edges").to_frame()
        >>> sorted(found["part"][:4])
        ['embeddings to v 0.0', 'embeddings to v 1.1', 'head 0.0 to k 1.1', 'head 1.1 to logits']
        >>> int(found["matters"].sum())
        4
    """
    ((label, function),) = named_methods([method]).items()
    model, truth = load_circuit(circuit, backend=backend, seed=seed)
    number = index(case, len(truth.cases), "case", f"circuit of {len(truth.cases)} prompts")
    one = truth.cases[number]
    ranking = checked_ranking(function(model, one), label, circuit, one, model)
    if kind not in ranking:
        raise ValueError(f"{label!r} ranks {' and '.join(ranking)}, not {kind}: choose another method or kind")
    marked = one.matters(kind, model)
    null = random_precision([one], kind, model, np.random.default_rng([seed, CIRCUITS.index(circuit)]))
    low, high = np.quantile(null, [0.025, 0.975]) if len(null) else (np.nan, np.nan)
    rows, columns, place = _grid(kind, one, model)
    values, matters = np.full((len(rows), len(columns)), np.nan), np.zeros((len(rows), len(columns)), dtype=bool)
    values[place], matters[place] = ranking[kind].ravel(), marked.ravel()
    return CircuitRanking(
        values=values,
        matters=matters,
        rows=rows,
        columns=columns,
        kind=kind,
        method=label,
        circuit=circuit,
        case=number,
        prompt=one.prompt,
        answer=one.answer,
        foil=one.foil,
        average_precision=average_precision(ranking[kind], marked) if marked.any() else float("nan"),
        chance=float(null.mean()) if len(null) else float("nan"),
        chance_low=float(low),
        chance_high=float(high),
        provenance=provenance(model.provenance(), method=label, circuit=circuit, kind=kind, case=number, seed=seed),
    )


def _grid(kind: PartKind, case: CircuitCase, model: Model) -> tuple[list[str], list[str], tuple[Any, Any]]:
    """Names of rows and columns, and the row and column of each part in the order of `CircuitCase.matters`."""
    if kind == "edges":
        ends = [(end_name(sender), end_name(receiver)) for sender, receiver in circuit_edges(model)]
        rows, columns = (list(dict.fromkeys(names)) for names in zip(*ends, strict=True))
        places = np.array([(rows.index(sender), columns.index(receiver)) for sender, receiver in ends]).T
        return rows, columns, (places[0], places[1])
    if kind == "tokens":
        rows, columns = ["importance"], case.prompt.split()
    else:
        count = model.n_heads if kind == "heads" else case.n_neurons
        rows, columns = [str(layer) for layer in range(model.n_layers)], [str(number) for number in range(count)]
    return rows, columns, np.unravel_index(np.arange(len(rows) * len(columns)), (len(rows), len(columns)))  # type: ignore[return-value]


def end_name(named: str | tuple[str | int, ...]) -> str:
    """A sender or receiver in words: ``head 0.1``, ``mlp 1``, ``k 1.1``, ``logits``."""
    if isinstance(named, str):
        return named
    if isinstance(named[0], int):
        return f"head {named[0]}.{named[1]}"
    return f"{named[0].removeprefix('head_')} {'.'.join(map(str, named[1:]))}"


def _part_name(kind: str, row: str, column: str) -> str:
    if kind == "edges":
        return f"{row} to {column}"
    return column if kind == "tokens" else f"{kind.removesuffix('s')} {row}.{column}"


# ---- what the board and a single ranking share


def named_methods(methods: Sequence[Any] | None) -> dict[str, Method]:
    """Methods by name: those of the board, functions and probes; raises a ValueError for an unknown one or two of one
    name."""
    if methods is None:
        return dict(METHODS)
    if not len(methods):
        raise ValueError("methods is empty: name at least one, or leave it out for all")
    chosen: dict[str, Method] = {}
    for method in methods:
        if isinstance(method, str) and method not in METHODS:
            raise ValueError(f"methods must be functions or of {', '.join(map(repr, METHODS))}, got {method!r}")
        name = method if isinstance(method, str) else getattr(method, "__name__", short(method))
        if name in chosen:
            raise ValueError(f"methods must have different names, got {name!r} twice")
        chosen[name] = METHODS[name] if isinstance(method, str) else getattr(method, "ranks", method)
    return chosen


def average_precision(values: NDArray[Any], marked: NDArray[np.bool_]) -> float:
    """Average precision of a ranking of parts, some of which matter; equal values, and those under `ROUNDING` of the
    largest, are ranked together.

    >>> average_precision(np.array([0.9, 0.1, 0.5]), np.array([True, False, False]))
    1.0
    >>> average_precision(np.array([0.0, 0.0, 1e-9, 1.0]), np.array([True, False, False, False]))
    0.25
    """
    flat = np.asarray(values, dtype=np.float64).ravel()
    top = np.abs(flat).max()
    flat = np.where(np.abs(flat) < ROUNDING * top, 0.0, flat)
    return float(average_precision_score(marked.ravel(), flat))


def random_precision(
    cases: Sequence[CircuitCase], kind: PartKind, model: Model, rng: np.random.Generator
) -> NDArray[np.float64]:
    """(draws,) average precision of random rankings, each averaged over the cases in which a part matters."""
    each = []
    for case in cases:
        marked = case.matters(kind, model).ravel()
        if marked.any():
            hits = marked[rng.random((DRAWS, marked.size)).argsort(1)]
            precision = hits.cumsum(1) / np.arange(1, marked.size + 1)
            each.append((precision * hits).sum(1) / marked.sum())
    return np.mean(each, axis=0) if each else np.empty(0)


def checked_ranking(
    ranking: Any, method: str, circuit: str, case: CircuitCase, model: Model
) -> dict[PartKind, NDArray[np.float64]]:
    """What a method returned, as arrays; raises a ValueError that names the method if it is no ranking."""
    start = f"{method!r} on circuit {circuit!r} must return a mapping with an array for {_LISTED}"
    if not isinstance(ranking, Mapping) or not ranking:
        raise ValueError(f"{start}, got {short(ranking)}")
    found: dict[PartKind, NDArray[np.float64]] = {}
    for kind, values in ranking.items():
        if kind not in PART_KINDS:
            raise ValueError(f"{start}, got {short(kind)}")
        try:
            array = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"{method!r} on circuit {circuit!r}: {kind} must be an array of numbers") from None
        expected = case.matters(kind, model).shape
        if array.shape != expected:
            raise ValueError(f"{method!r} on circuit {circuit!r}: {kind} must have shape {expected}, got {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{method!r} on circuit {circuit!r}: {kind} must be finite numbers")
        found[kind] = array
    return found
