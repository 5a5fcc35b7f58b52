"""One model's decomposition as the rows and columns of the map: sources, then the rest (biases, BOS)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.result import Scalar
from interp_widgets.analysis._core.statistics import BEYOND
from interp_widgets.analysis.token_decomposition import LogitShareResult, TokenDecompositionResult
from interp_widgets.figures.chart import layer_names
from interp_widgets.figures.labels import number, visible
from interp_widgets.figures.token_decomposition import rest_name

from ..base import pair_view

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

COLOR_LABELS = {
    "target_logit": "share of the target's logit",
    "probability": "probability of the part's top token",
    "norm_share": "share of the parts' norms",
    "target_probability": "probability of the target",
}
"""Names of the quantities that can colour the map."""
PROBABILITIES = ("probability", "target_probability")
"""The colours between 0 and 1."""
MOST_NOTES = 6_000
"""Largest map, in cells, that has tooltips."""


@dataclass(frozen=True)
class Decomposed:
    """One model's result: the parts of the residual stream, and the shares of one logit."""

    tokens: TokenDecompositionResult
    logit: LogitShareResult

    @property
    def partial(self) -> bool:
        """Whether the run was stopped early."""
        return self.tokens.partial

    @property
    def provenance(self) -> Mapping[str, Scalar]:
        """What is needed to repeat it."""
        return self.tokens.provenance

    @property
    def sources(self) -> int:
        """Number of tokens that can have contributed: those up to the position."""
        return self.tokens.position + 1


def decomposed(shares: LogitShareResult, parts: TokenDecompositionResult) -> Decomposed:
    """Combine the results of the two calls."""
    return Decomposed(parts, shares)


@dataclass(frozen=True)
class Rows:
    """The values of a map with a row for each source up to the position and one for the rest (biases, BOS)."""

    result: Decomposed
    matrices: dict[str, Array] = field(default_factory=dict, compare=False, repr=False)
    """Cached matrices, so that a redraw does not compute the norms of all parts again."""

    @property
    def sources(self) -> int:
        """Number of rows that are tokens; the last row is the rest."""
        return self.result.sources

    @property
    def n_layers(self) -> int:
        """Number of layers; the map has one more column."""
        return self.result.tokens.n_layers

    @property
    def rest(self) -> str:
        """The name of the last row: biases, the BOS, or both; in the logit they are separate even if spread."""
        return rest_name(self.result.logit)

    @property
    def labels(self) -> list[str]:
        """(rows,) names on the axis."""
        return [*self.result.tokens.tokens[: self.sources], self.rest]

    @property
    def columns(self) -> list[str]:
        """(columns,) names of the layers."""
        return layer_names(self.n_layers)

    def matrix(self, color: str) -> Array:
        """(rows, columns) the values of one colouring; NaN where the rest has none, or the part is zero."""
        if color not in self.matrices:
            self.matrices[color] = self._make(color)
        return self.matrices[color]

    def setting_the_scale(self, color: str, *, sink: bool) -> Array:
        """The values of a signed colouring that its scale reaches to: without the parts that would outshine the others,
        which are the embeddings by themselves, the rest, and a first token that carries the attention sink."""
        numbers = self.matrix(color)
        usual = numbers[int(sink and self.sources > 1) : -1, 1:]
        return usual if np.isfinite(usual).any() else numbers

    def _make(self, color: str) -> Array:
        tokens = self.result.tokens
        match color:
            case "probability":
                return self._where_top_token(self._with(tokens.probability, tokens.bias_probability))
            case "norm_share":
                return self._with(tokens.norm_share, None)
            case "target_probability":
                return self._where_top_token(self._with(tokens.target_probability, None))
            case "target_logit":
                return self._with(tokens.target_logit, tokens.target_bias)
        raise ValueError(f"unknown colouring {color!r}")

    def _with(self, of_sources: NDArray[np.floating] | None, of_rest: NDArray[np.floating] | None) -> Array:
        columns = self.n_layers + 1
        numbers = np.full((self.sources + 1, columns), np.nan)
        if of_sources is not None:
            numbers[:-1] = of_sources[:, : self.sources].T
        if of_rest is not None:
            numbers[-1] = of_rest
        return numbers

    def _where_top_token(self, numbers: Array) -> Array:
        return np.where(self.top() >= 0, numbers, np.nan)

    def top(self) -> NDArray[np.int64]:
        """(rows, columns) ids of the parts' top tokens, -1 for none."""
        tokens = self.result.tokens
        ids = np.full((self.sources + 1, self.n_layers + 1), -1)
        if tokens.top_token is not None and tokens.bias_top_token is not None:
            ids[:-1] = tokens.top_token[:, : self.sources].T
            ids[-1] = tokens.bias_top_token
        return ids

    def text(self, token: int) -> str:
        """The text of a top token."""
        return self.result.tokens.token_text(token) if token >= 0 else ""

    def logit_share(self) -> Array:
        """(rows,) shares of the final logit, or of the difference to the foil; they sum to it."""
        logit = self.result.logit
        return np.append(np.asarray(logit.share[: self.sources], dtype=np.float64), logit.bias)

    def beyond(self) -> NDArray[np.bool_] | None:
        """(sources,) whether each token's share of the logit is beyond chance; None if it was not compared."""
        p = self.result.logit.p
        return None if p is None else np.asarray(p[: self.sources] <= BEYOND)

    def share_beyond(self) -> Array:
        """(sources,) the tokens' shares of the logit; NaN for those that were compared and are not beyond chance."""
        beyond, share = self.beyond(), self.logit_share()[:-1]
        return share if beyond is None else np.where(beyond, share, np.nan)

    def norm_share(self, column: int) -> Array:
        """(rows,) shares of the parts' norms at a layer; NaN for the rest."""
        return self.matrix("norm_share")[:, column]

    def frame(self) -> pd.DataFrame:
        """One row per layer and source, the rest with position -1: norm share, lens, target, share of the logit."""
        import pandas as pd

        count, columns = self.sources + 1, self.n_layers + 1
        position = np.tile(np.append(np.arange(self.sources), -1), columns)
        table: dict[str, Any] = {
            "layer": np.repeat(np.arange(columns), count),
            "position": position,
            "token": np.tile(np.asarray(self.labels, dtype=object), columns),
        }
        for color in COLOR_LABELS:
            table[color] = self.matrix(color).T.ravel()
        table["top_token"] = [self.text(int(token)) for token in self.top().T.ravel()]
        table["logit_share"] = np.tile(self.logit_share(), columns)
        return pd.DataFrame(table)


def cell_texts(rows: tuple[Rows, ...], color: str, threshold: float) -> list[str]:
    """Labels of the map, for colours that are probabilities, row by row: the top token of every part that gives it
    `threshold` or more; for two models ``a → b`` where their top tokens differ and either reaches it."""
    if color not in PROBABILITIES:
        return []
    tops, chances = [each.top() for each in rows], [each.matrix("probability") for each in rows]
    shown = np.any([np.nan_to_num(chance, nan=-1) >= threshold for chance in chances], axis=0)
    texts = [""] * shown.size
    for cell in np.flatnonzero(shown):
        words = [each.text(int(top.flat[cell])) for each, top in zip(rows, tops, strict=True)]
        texts[cell] = words[0] if len(set(words)) == 1 else " → ".join(words)
    return texts


def cell_notes(rows: tuple[Rows, ...]) -> list[str]:
    """Tooltips besides the values, row by row; none for a very large map."""
    shape = rows[0].top().shape
    if shape[0] * shape[1] > MOST_NOTES:
        return []
    notes = []
    for start, each in zip(pair_view.all_starts(rows), rows, strict=True):
        top, numbers = each.top(), {color: each.matrix(color) for color in COLOR_LABELS}
        notes.append([start + _note(each, top, numbers, cell) for cell in np.ndindex(shape)])
    return ["; ".join(words) for words in zip(*notes, strict=True)]


def _note(rows: Rows, top: NDArray[np.int64], numbers: dict[str, Array], cell: tuple[int, ...]) -> str:
    """One cell's values as text."""
    if top[cell] < 0:
        return "nothing yet"
    parts = [f"alone “{visible(rows.text(int(top[cell])))}” {number(numbers['probability'][cell])}"]
    if np.isfinite(numbers["norm_share"][cell]):
        parts.append(f"norm {numbers['norm_share'][cell]:.1%}")
    parts.append(f"logit {number(numbers['target_logit'][cell])}")
    return ", ".join(parts)
