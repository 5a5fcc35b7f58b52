"""The rows of the saliency map: single tokens, or spans of the prompt such as its sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.cost import pass_flops
from interp_widgets.analysis._core.prompts import Prompt
from interp_widgets.analysis.saliency import SaliencyResult
from interp_widgets.analysis.saliency.spans import read_spans
from interp_widgets.figures.labels import axis_name, visible
from interp_widgets.models import Model
from interp_widgets.models.devices import device_kind

LONG = 128
"""Prompts with more tokens than this open by sentence or passage."""
MOST_FLOPS = {"cpu": 1e12, "accelerator": 2e14}
"""Operations of a map by sentence that opens; one that takes more, about ten seconds, opens by passage."""
ROWS_LABELS = {
    "automatic": "automatic",
    "tokens": "token",
    "words": "word",
    "sentences": "sentence",
    "passages": "passage",
    "roles": "role of a chat",
    "turns": "turn of a chat",
    "marks": "marked span",
}
"""What a row of the map may be."""
NAMES = {
    "tokens": "token", "words": "word", "sentences": "sentence", "passages": "passage", "roles": "role",
    "turns": "turn", "marks": "span",
}  # fmt: skip
"""The name of a row."""
RULE_LABELS = {
    "together": "all replaced together",
    "sum": "sum over its tokens",
    "mean": "mean over its tokens",
    "maximum": "maximum over its tokens",
}
"""How the importance of a row of several tokens is computed."""


@dataclass(frozen=True)
class Rows:
    """The rows of a map: spans of the prompt's tokens, in order."""

    kind: str
    """A key of :data:`NAMES`."""
    tokens: tuple[str, ...]
    """All tokens of the prompt."""
    special: tuple[bool, ...]
    spans: tuple[tuple[int, int], ...]
    """[start, end) tokens of each row."""
    roles: tuple[str, ...] | None = None
    """The role of every token, in a chat."""

    @classmethod
    def of(cls, result: SaliencyResult, kind: str, model: Model) -> Rows:
        """The rows of a result."""
        ones = tuple((i, i + 1) for i in range(len(result.prompt_ids)))
        spans = ones if result.spans is None else tuple((a, b) for a, b in result.spans)
        if result.spans is None:
            return cls("tokens", tuple(result.prompt_tokens), tuple(result.prompt_special), spans)
        tokens, special = model.token_strings(result.prompt_ids), tuple(model.is_special(result.prompt_ids))
        single = all(end == start + 1 for start, end in spans)
        roles = None if result.roles is None else tuple(result.roles)
        return cls("tokens" if single else kind, tokens, special, spans, roles)

    @property
    def single(self) -> bool:
        """Whether every token of the prompt is a row."""
        return len(self.spans) == len(self.tokens)

    @property
    def name(self) -> str:
        """The name of a row."""
        return NAMES[self.kind]

    @cached_property
    def _row_of(self) -> NDArray[np.int64]:
        """(tokens,) the row of each token, -1 for none; the first if there are two."""
        rows = np.full(len(self.tokens), -1)
        for row in range(len(self.spans) - 1, -1, -1):
            start, end = self.spans[row]
            rows[start:end] = row
        return rows

    def row(self, token: int) -> int:
        """The row of a token; -1 for none."""
        return int(self._row_of[token]) if 0 <= token < len(self.tokens) else -1

    def token(self, row: int, chosen: int) -> int:
        """The token that a click on a row selects: the chosen one if the row contains it, else its first."""
        start, end = self.spans[row]
        return chosen if start <= chosen < end else start

    def rows(self, start: int, end: int) -> tuple[int, int]:
        """Rows [first, past-last) that share a token with [start, end); two equal numbers for none."""
        inside = [row for row, (a, b) in enumerate(self.spans) if a < end and b > start]
        return (inside[0], inside[-1] + 1) if inside else (0, 0)

    def per_token(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """(tokens,) the value of each token's row, NaN if it is in none."""
        return np.where(self._row_of >= 0, np.asarray(values, dtype=np.float64)[self._row_of], np.nan)

    def labels(self) -> list[str]:
        """(rows,) the label of each row, starting with the role in a chat."""
        texts = ["".join(self.tokens[start:end]).replace("⋯", "") or "⋯" for start, end in self.spans]
        if self.roles is None or self.kind not in ("roles", "turns"):
            return texts
        if self.kind == "roles":
            return [f"{self.roles[start]}: {text}" for (start, _), text in zip(self.spans, texts, strict=True)]
        inside = [[role for role in self.roles[a:b] if role != "template"] for a, b in self.spans]
        return [f"{names[0] if names else 'template'}: {text}" for names, text in zip(inside, texts, strict=True)]

    def row_names(self) -> list[str]:
        """(rows,) the labels for a table: spaces of a token are marked, a longer text is on one line."""
        marked = visible if self.kind == "tokens" else axis_name
        return [marked(label) for label in self.labels()]

    def described(self, row: int) -> str:
        """A description of a row: its name and its tokens."""
        start, end = self.spans[row]
        if self.kind == "tokens":
            return f"prompt token {start}"
        return f"{self.name} {row + 1} of {len(self.spans)}, tokens {start} to {end - 1}"


def automatic_kind(model: Model, prompt: Prompt, within: Sequence[int]) -> str:
    """The kind of rows that a prompt opens with, or the part ``within`` its tokens [start, end): single tokens if these
    are few, else sentences, or passages where replacing each sentence takes long."""
    size = within[1] - within[0] if within else prompt.n_shown
    if size <= LONG or within:
        return "tokens" if size <= LONG else "sentences"
    facts = prompt.tokens(), prompt.special(), prompt.roles, prompt.turns, prompt.spans
    flops = pass_flops(model, size, size) * (1 + len(read_spans("sentences", None, *facts)) / 2)
    return "sentences" if flops <= MOST_FLOPS[device_kind(model.device)] else "passages"


def with_gaps(marks: Sequence[Sequence[int]], size: int) -> tuple[tuple[int, int], ...]:
    """The marked spans and the gaps between them, so that every token is in a span.

    >>> with_gaps([[4, 6], [1, 2]], 8)
    ((0, 1), (1, 2), (2, 4), (4, 6), (6, 8))
    """
    cuts = sorted({0, size, *(min(end, size) for span in marks for end in span)})
    return tuple(pairwise(cuts))
