"""Values, labels and tooltips of the map for one view: the first model, the second, or their difference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis.logit_lens.lens_result import ABSENT, LogitLensResult
from interp_widgets.figures.labels import visible

from ..views.heatmap import Colours

Array = NDArray[np.float64]

COLOR_LABELS = {
    "final_probability": "probability of the final word",
    "final_rank": "rank of the final word",
    "probability": "probability of the likeliest token",
    "entropy": "entropy",
    "kl": "KL divergence from the output",
    "target_probability": "probability of the target",
    "target_rank": "rank of the target",
}
"""Names of the lens quantities in the controls,"""
UNITS = {
    "final_probability": "probability of final word",
    "final_rank": "rank of final word, 0 is best",
    "probability": "probability",
    "entropy": "entropy, nats",
    "kl": "KL, nats",
    "target_probability": "probability of target",
    "target_rank": "rank, 0 is best",
}
"""and at the colour bar, where space is short."""

RANKS = ("final_rank", "target_rank")
LAST_RANK = 1000.0
"""Ranks from here on have one colour."""
HEADS = "final word\nfrom layer"
"""Names of the lines above the map: the output's likeliest token, and the commit layer."""
BOTH_HEADS = "A final word\nfrom layer\nB final word\nfrom layer"
NOTED = 3
"""Number of top tokens in a tooltip; with two models, one of each."""
NOT_YET = "not computed yet"
MOST_NOTES = 20_000
"""Largest map, in cells, that has tooltips."""


def colours(results: Sequence[LogitLensResult], color: str, shown: str) -> Colours:
    """The colours of one view, "A", "B" or "difference"; A and B share a scale."""
    matrices = [np.where(result.computed, getattr(result, color), np.nan) for result in results]
    if shown == "difference":
        return _difference(matrices[0], matrices[1], color)
    matrix, unit = matrices["AB".index(shown)], UNITS[color]
    if color in RANKS:
        most = max(1.0, *(float(np.nanmax(ranks)) for ranks in matrices))
        return Colours(matrix, 0.0, min(most, LAST_RANK), unit, scale="log", reverse=True)
    if color in ("entropy", "kl"):
        return Colours(matrix, 0.0, max(float(np.nanmax(numbers)) for numbers in matrices) or 1.0, unit)
    return Colours(matrix, 0.0, 1.0, unit)


def colour_name(color: str, shown: str) -> str:
    """The name of a colouring, for a title."""
    name = COLOR_LABELS[color]
    if shown == "difference":
        return name.replace("the final word", "each model's own final word")
    return f"{name} ({LAST_RANK:,.0f} or more are alike)" if color in RANKS else name


def _difference(a: Array, b: Array, color: str) -> Colours:
    """B − A; for ranks, the powers of ten by which B ranks the token higher."""
    unit = f"{UNITS[color]}, B − A"
    if color in RANKS:
        a, b = -np.log10(1 + a), -np.log10(1 + b)
        unit = "−log₁₀(1 + rank), B − A"
    largest = float(np.nanmax(np.abs(b - a))) or 1.0
    return Colours(b - a, -largest, largest, unit, signed=True)


def labels(results: Sequence[LogitLensResult], threshold: float) -> list[str]:
    """Texts of the cells, row by row: the top token if it has at least this probability, and in the output's row.

    For two results ``a → b`` where their top tokens differ and either reaches it, and nothing where they agree.
    """
    reached = np.any([result.probability >= threshold for result in results], axis=0)
    reached[-1] = np.all([result.computed for result in results], axis=0)
    if len(results) == 2:
        reached &= results[0].top_token != results[1].top_token
    reached = reached.ravel()
    tokens = [result.top_token.ravel().tolist() for result in results]
    names = [{token: visible(result.token_text(token)) for token in set(ids)}
             for result, ids in zip(results, tokens, strict=True)]  # fmt: skip
    texts = [""] * len(reached)
    for cell in np.flatnonzero(reached).tolist():
        texts[cell] = " → ".join(name[ids[cell]] for name, ids in zip(names, tokens, strict=True))
    return texts


def heads(results: Sequence[LogitLensResult]) -> list[str]:
    """What stands above each column: of each result the final word, and the layer from which it is the likeliest."""
    lines: list[list[str]] = []
    for result in results:
        lines.append([visible(result.token_text(token)) for token in result.top_token[-1].tolist()])
        names = {result.n_layers: "output", ABSENT: ""}
        lines.append([names.get(row, str(row)) for row in result.commit_layer.tolist()])
    return ["\n".join(of_column) for of_column in zip(*lines, strict=True)]


def repeats(result: LogitLensResult) -> list[list[int]]:
    """Cells [row, column] that say the token just read, which is not the final word."""
    return np.argwhere(result.repeats & (result.final_rank > 0)).tolist()


def notes(results: Sequence[LogitLensResult]) -> list[str]:
    """Tooltips of the cells: top tokens, final word, target, interference, and where the likeliest token settles."""
    if results[0].entropy.size > MOST_NOTES:
        return []
    names, most = (("A: ", "B: "), 1) if len(results) == 2 else (("next: ",), NOTED)
    lines = [_lines(result, name, most) for name, result in zip(names, results, strict=True)]
    return ["\n".join(of_cell) for of_cell in zip(*lines, strict=True)]


def _lines(result: LogitLensResult, name: str, most: int) -> list[str]:
    """A line for each cell, row by row; computed on plain lists, because there may be thousands."""
    text = {ABSENT: ""} | {token: visible(shown) for token, shown in result.names.items()}
    ids = result.top_ids[..., :most].reshape(-1, most).tolist()
    chances = result.top_probability[..., :most].reshape(-1, most).tolist()
    lines = [name + ", ".join(f"{text[i]} {_short(p)}" for i, p in zip(*cell, strict=True))
             for cell in zip(ids, chances, strict=True)]  # fmt: skip
    final = [text[token] for token in result.top_token[-1].tolist()] * (result.n_layers + 1)
    lines = [
        f"{line}; final word {word} rank {rank:,}" if rank else line
        for line, word, rank in zip(lines, final, result.final_rank.ravel().tolist(), strict=True)
    ]
    if result.target is not None and result.target_rank is not None:
        ranks = result.target_rank.ravel().tolist()
        lines = [f"{line}; target {text[result.target]} rank {rank:,}" for line, rank in zip(lines, ranks, strict=True)]
    marks = (
        (losses(result), ", lost here"), (repeats(result), "; repeats the token just read"),
        (commits(result), "; from here on the likeliest stays"),
    )  # fmt: skip
    for marked, remark in marks:
        for row, column in marked:
            lines[row * result.n_positions + column] += remark
    computed = np.tile(result.computed, result.n_layers + 1).tolist()
    return [line if there else NOT_YET for line, there in zip(lines, computed, strict=True)]


def _short(chance: float) -> str:
    return f"{chance:.3f}" if chance >= 0.001 else "< 0.001"


def commits(result: LogitLensResult) -> list[list[int]]:
    """Cells [row, column] from which on the top token stays the same."""
    return [[row, column] for column, row in enumerate(result.commit_layer.tolist()) if row != ABSENT]


def losses(result: LogitLensResult) -> list[list[int]]:
    """Cells [row, column] where the target, on top one layer before, is lost."""
    return [] if result.interference is None else np.argwhere(result.interference).tolist()
