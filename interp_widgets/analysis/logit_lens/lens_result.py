"""`LogitLensResult`: the predictions of the logit lens at every layer and position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.arrays import Bools, Floats, Ints
from interp_widgets.analysis._core.checks import index
from interp_widgets.analysis._core.prompts import PromptResult
from interp_widgets.analysis._core.result import record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table

Lens = Literal["logit", "tuned"]
"""``logit``: the residual stream itself; ``tuned``: the stream after one affine map per layer."""

ABSENT = -1
"""In place of a whole number that a partial result does not have yet."""
_NUMBERS = (
    "probability", "entropy", "kl", "final_rank", "final_probability", "target_rank", "target_probability",
    "interference",
)  # fmt: skip


@record
class LogitLensResult(PromptResult):
    """The next token predicted from every layer, at every position of a prompt.

    Row l of an axis (layers + 1) decodes the residual stream entering block l; the last row is the model's output (for
    a mixture of depths, its last route's). The prediction at a position is for the token after it. Positions leave out
    the beginning-of-sequence token, which the model still reads (see `bos_id`). In a partial result, positions that are
    not `computed` yet have NaN, and -1 as ids, ranks and commit layer.

    Example:
        >>> result = logit_lens(model, "The Eiffel Tower is in the city of")
        >>> [result.token_text(token) for token in result.top_token[:3, -1]]
        [' of', ' Paris', ' Paris']
        >>> int(result.commit_layer[-1])
        1
    """

    VERSION: ClassVar[int] = 2

    top_ids: Ints = with_axes("layers + 1", "positions", "top")
    """Ids of the likeliest next tokens, best first; ties in the order of ids."""

    top_probability: Floats = with_axes("layers + 1", "positions", "top")
    """Their probabilities, 0..1."""

    entropy: Floats = with_axes("layers + 1", "positions")
    """Entropy of the next-token distribution in nats."""

    kl: Floats = with_axes("layers + 1", "positions")
    """KL(prediction ‖ model's output) in nats; 0 in the last row."""

    final_rank: Ints = with_axes("layers + 1", "positions")
    """Rank of the output's likeliest token at that position: the number of tokens likelier than it (ties do not count);
    0 in the last row."""

    final_probability: Floats = with_axes("layers + 1", "positions")
    """Probability of that token, 0..1."""

    names: Mapping[int, str]
    """Readable text by id of every token in `top_ids` and of the target; see :meth:`token_text`."""

    target: int | None = None
    """Id of the token that is tracked through the layers; None without one."""

    target_rank: Ints | None = with_axes("layers + 1", "positions", default=None)
    """Number of tokens likelier than the target, 0 = best (ties do not count)."""

    target_probability: Floats | None = with_axes("layers + 1", "positions", default=None)
    """Probability of the target, 0..1."""

    lens: str = "logit"
    """Logit lens or tuned lens: a :data:`Lens`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.target is None) != (self.target_rank is None) or (self.target is None) != (
            self.target_probability is None
        ):
            raise ValueError("target, target_rank and target_probability must be given together")

    # ---- sizes and texts

    @property
    def n_layers(self) -> int:
        """Number of blocks of the model; the rows are one more."""
        return len(self.entropy) - 1

    def token_text(self, token: SupportsIndex) -> str:
        """Readable text of a token id that this result holds; ValueError for another. The -1 of a partial result has
        an empty text."""
        if self.partial and token == ABSENT:
            return ""
        if token not in self.names:
            raise ValueError(f"token id {token} is neither among the likeliest tokens of this result nor its target")
        return self.names[int(token)]

    @property
    def target_token(self) -> str | None:
        """Readable text of the target; None without one."""
        return None if self.target is None else self.token_text(self.target)

    # ---- the map

    @property
    def top_token(self) -> Ints:
        """(layers + 1, positions) id of the likeliest next token."""
        return self.top_ids[..., 0]

    @property
    def probability(self) -> Floats:
        """(layers + 1, positions) probability of the likeliest next token, 0..1."""
        return self.top_probability[..., 0]

    @property
    def computed(self) -> Bools:
        """(positions,) whether a position has its numbers: all but some of a partial result."""
        there: Bools = ~np.isnan(self.entropy[-1])
        return there

    @property
    def commit_layer(self) -> Ints:
        """(positions,) first row from which the likeliest token stays the same; n_layers if only the last."""
        same = self.top_token == self.top_token[-1]
        unbroken: Ints = np.logical_and.accumulate(same[::-1]).sum(axis=0)
        return np.where(self.computed, len(same) - unbroken, ABSENT)

    @property
    def repeats(self) -> Bools:
        """(layers + 1, positions) True where the likeliest next token is the token at that position itself.

        With tied embeddings (one matrix reads tokens in and writes them out) row 0 is mostly that.
        """
        same: Bools = self.top_token == np.asarray(self.ids)
        return same

    @property
    def interference(self) -> Bools | None:
        """(layers + 1, positions) True where the target was likeliest one row before and no longer is; None without a
        target. At row l, block l - 1 displaced it.
        """
        if self.target_rank is None:
            return None
        lost = np.zeros(self.target_rank.shape, dtype=bool)
        lost[1:] = (self.target_rank[:-1] == 0) & (self.target_rank[1:] > 0)
        return lost

    def top(self, layer: int, position: int) -> list[tuple[str, float]]:
        """The likeliest next tokens of one cell with their probabilities, best first.

        Args:
            layer: row in 0..layers, or negative from the end; -1 is the model's own output.
            position: index of a token of the prompt, or negative from the end.

        Raises ValueError for a cell out of range.
        """
        row, column = self.row(layer), self.position(position)
        cells = zip(self.top_ids[row, column].tolist(), self.top_probability[row, column].tolist(), strict=True)
        return [(self.token_text(token), probability) for token, probability in cells]

    def row(self, layer: int) -> int:
        """A row counted from 0; negative ones count from the end. ValueError outside of the result."""
        rows = self.n_layers + 1
        return index(layer, rows, "layer", f"result of {rows} rows, the last the model's own output")

    def position(self, position: int) -> int:
        """A position counted from 0; negative ones count from the end. ValueError outside of the prompt."""
        return index(position, self.n_positions, "position", f"prompt of {self.n_positions} tokens")

    def trajectory(self, position: int = -1) -> dict[str, NDArray[Any]]:
        """One position over the layers: arrays (layers + 1,) by name, ``target_rank`` and so on only with a target.

        The names are ``top_token``, ``probability``, ``entropy``, ``kl``, ``final_rank``, ``final_probability``,
        ``target_rank``, ``target_probability`` and ``interference``.
        """
        column = self.position(position)
        names = ("top_token", *_NUMBERS)
        arrays = {name: getattr(self, name) for name in names}
        return {name: values[:, column] for name, values in arrays.items() if values is not None}

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """For the token after the prompt: with a target, its rank and probability in the output and the first row where
        it is likeliest (NaN for none), else the probability of the prediction; then the prediction, the row from which
        it does not change, and the entropy."""
        row: dict[str, float | int | str | bool | None] = {}
        if self.target_rank is not None and self.target_probability is not None:
            best = np.flatnonzero(self.target_rank[:, -1] == 0)
            row |= {
                "target_token": self.target_token,
                "target_probability": float(self.target_probability[-1, -1]),
                "target_rank": int(self.target_rank[-1, -1]),
                "first_best_layer": int(best[0]) if len(best) else np.nan,
            }
        else:
            row["top_probability"] = float(self.probability[-1, -1])
        return row | {
            "top_token": self.token_text(int(self.top_token[-1, -1])),
            "commit_layer": int(self.commit_layer[-1]),
            "entropy": float(self.entropy[-1, -1]),
        }

    def to_frame(self) -> DataFrame:
        """One row per layer and position: the token there, the likeliest next token, all numbers, and of the position
        the output's likeliest token with the layer from which it is the likeliest."""
        rows = np.arange(self.n_layers + 1)
        columns: dict[str, Any] = {
            "token": self.tokens,
            "top_token": [[self.token_text(token) for token in row] for row in self.top_token.tolist()],
            "top_id": self.top_token,
        }
        for name in _NUMBERS:
            columns[name] = getattr(self, name)
        final = [self.token_text(token) for token in self.top_token[-1].tolist()]
        columns |= {"final_token": final, "commit_layer": self.commit_layer}
        columns["committed"] = (rows[:, None] >= self.commit_layer) & self.computed
        return table({"layer": rows, "position": range(self.n_positions)}, columns)
