"""Results of a token decomposition: parts of the residual stream, and shares of one logit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, SupportsIndex

import numpy as np

from interp_widgets.analysis._core.arrays import Floats, Ints
from interp_widgets.analysis._core.checks import check_range
from interp_widgets.analysis._core.prompts import PromptResult
from interp_widgets.analysis._core.result import record, with_axes
from interp_widgets.analysis._core.statistics import BEYOND
from interp_widgets.analysis._core.tables import DataFrame, table

NAMED = 5
"""Tokens that a sentence names."""


@record
class TokenDecompositionResult(PromptResult):
    """The residual stream of one position as a sum of contributions of the prompt's tokens, at every layer.

    ``parts.sum(axis=1) + bias`` is the residual stream, up to `error`. Layer l is the stream entering block l; the
    last row is what the final norm reads. Source: Explainability in Large Language Models: Pathways to Refinement and
    Alignment (Luo 2024), section 4.1.1, Eqs 4.1 to 4.3, and appendix B.3.

    Example:
        >>> result = decompose_tokens(model, "The Eiffel Tower is in the city of")
        >>> bool(np.abs(result.parts.sum(axis=1) + result.bias - result.residual).max() < 1e-3)
        True
        >>> # what the parts of the first three tokens alone would predict
        >>> [result.token_text(token) for token in result.top_token[-1, :3]]
        [' Delhi', ' Paris', ' Paris']
    """

    parts: Floats = with_axes("layers + 1", "positions", "d_model")
    """Contribution of each shown token; zero for tokens after `position`."""

    bias: Floats = with_axes("layers + 1", "d_model")
    """Contribution of the model's biases (zero if spread) and of a BOS (see `bos`)."""

    error: Floats = with_axes("layers + 1")
    """Relative error of the sum: norm of (sum - residual) over norm of the residual."""

    position: int
    """The position that is decomposed, counted from 0."""

    residual: Floats = with_axes("layers + 1", "d_model")
    """The model's residual stream there."""

    bos: Floats | None = with_axes("layers + 1", "d_model", default=None)
    """The BOS's contribution, included in `bias`; None without a BOS."""

    top_token: Ints | None = with_axes("layers + 1", "positions", default=None)
    """Id of the likeliest token in the lens of each part; -1 where the part is zero. None without a lens."""

    probability: Floats | None = with_axes("layers + 1", "positions", default=None)
    """Its probability, 0..1; 0 where the part is zero."""

    bias_top_token: Ints | None = with_axes("layers + 1", default=None)
    """Id of the likeliest token in the lens of `bias`; -1 where it is zero. None without a lens."""

    bias_probability: Floats | None = with_axes("layers + 1", default=None)
    """Its probability, 0..1; 0 where `bias` is zero."""

    target: int | None = None
    """Id of the target token; None without one."""

    target_token: str = ""
    """Its text."""

    target_logit: Floats | None = with_axes("layers + 1", "positions", default=None)
    """Each part's share of the target's logit in the lens of the whole stream; with
    `target_bias` they sum to that logit, before a soft cap where the model has one (Gemma 2)."""

    target_bias: Floats | None = with_axes("layers + 1", default=None)
    """Share of `bias`, the final norm's bias and the unembedding's."""

    target_probability: Floats | None = with_axes("layers + 1", "positions", default=None)
    """The target's probability in the lens of each part, 0..1; None without a lens."""

    biases: str = "separate"
    """``separate``, or ``spread`` over the parts in proportion to their norms."""

    lens: str | None = None
    """Scale of the final norm in the lens of a part: ``own``, ``frozen``, or None for no lens."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Token id (as text) to readable token, for every id that the result holds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("position", self.position, 0, self.n_positions - 1, f"{self.n_positions} tokens")

    def token_text(self, token: SupportsIndex) -> str:
        """The readable text of a token id that this result holds; empty for -1."""
        return self.names.get(str(int(token)), "")

    @property
    def n_layers(self) -> int:
        """Number of blocks; the stream is decomposed before each and after the last."""
        return int(self.parts.shape[0]) - 1

    @property
    def norm(self) -> Floats:
        """(layers + 1, sources) Euclidean norm of every part; NaN where a partial result has no number yet."""
        return np.asarray(np.linalg.norm(self.parts, axis=-1))

    @property
    def norm_share(self) -> Floats:
        """(layers + 1, sources) each part's norm over the sum of all parts' norms at that layer, without `bias`."""
        norm = self.norm
        total = np.nansum(norm, axis=1, keepdims=True)
        return np.asarray(norm / np.where(total > 0, total, 1))

    @property
    def bias_norm(self) -> Floats:
        """(layers + 1,) Euclidean norm of `bias`."""
        return np.asarray(np.linalg.norm(self.bias, axis=-1))

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """At the last layer: the token with the largest part, its share of the norms, and the error of the sum."""
        source = int(np.nanargmax(self.norm_share[-1]))
        return {
            "source": self.tokens[source],
            "source_position": source,
            "norm_share": float(self.norm_share[-1, source]),
            "sum_error": float(self.error[-1]),
        }

    def to_frame(self) -> DataFrame:
        """One row per layer and token: layer, position, token, norm, share of the norms, and the lens if any."""
        columns: dict[str, Any] = {"token": self.tokens, "norm": self.norm, "norm_share": self.norm_share}
        if self.top_token is not None:
            columns["top_token"] = [[self.token_text(token) for token in row] for row in self.top_token.tolist()]
        columns |= {name: getattr(self, name) for name in ("probability", "target_logit", "target_probability")}
        return table({"layer": range(self.n_layers + 1), "position": range(self.n_positions)}, columns)


@record
class LogitShareResult(PromptResult):
    """One logit (or the difference of two) as a sum of contributions of the prompt's tokens.

    ``share.sum() + bias`` is `logit`, up to `error`. Source: Explainability in Large Language Models: Pathways to
    Refinement and Alignment (Luo 2024), section 4.1.1, Eqs 4.1 to 4.3, followed backwards from one logit.

    Example:
        >>> result = decompose_logit(model, "The Eiffel Tower is in the city of", " Paris", foil=" London")
        >>> bool(abs(result.share.sum() + result.bias - result.logit) < 1e-3)
        True
        >>> result.to_frame().nlargest(2, "share").round(1)
           position    token  share
        1         1   Eiffel   10.1
        2         2    Tower    1.6
    """

    share: Floats = with_axes("positions")
    """Contribution of each shown token in logits; zero for tokens after `position`."""

    bias: float
    """Contribution of a BOS and of the biases of all layers, the final norm and the unembedding."""

    logit: float
    """The model's logit of the target, minus that of the foil if there is one; before a soft cap (Gemma 2)."""

    error: float
    """|share.sum() + bias - logit| over the sum of absolute shares."""

    position: int
    """The position before the target, counted from 0."""

    target: int
    """Id of the target token."""

    target_token: str
    """Its text."""

    foil: int | None = None
    """Id of the token whose logit is subtracted; None without one."""

    foil_token: str = ""
    """Its text."""

    bos: float | None = None
    """The BOS's contribution, included in `bias`; None without a BOS."""

    sink: bool = False
    """Whether the first token carries the model's attention sink: its share holds what every token gets from it,
    whatever it means."""

    p: Floats | None = with_axes("positions", default=None)
    """Two-sided p of every token's share among its shares of the logits of random other tokens (with a foil of the
    differences of two), corrected over all tokens; 1 after `position`, None without ``draws``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("position", self.position, 0, self.n_positions - 1, f"{self.n_positions} tokens")

    def in_words(self) -> str:
        """Which tokens add to this logit beyond chance, in a sentence; ValueError without ``draws``."""
        if self.p is None:
            raise ValueError("these shares were not compared with chance: give draws=199")
        beyond = [int(at) for at in np.argsort(-np.abs(self.share), kind="stable") if self.p[at] <= BEYOND]
        named = ", ".join(repr(self.tokens[at]) for at in beyond[:NAMED])
        which = f" ({named}{', …' if len(beyond) > NAMED else ''})" if beyond else ""
        other = "random other tokens" if self.foil is None else "the difference of random other tokens"
        return (
            f"{len(beyond)} of {self.position + 1} tokens{which} speak for or against it beyond chance: more than they "
            f"do for {other} (p at most {BEYOND}, corrected over all tokens)"
        )

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The token with the largest share, its share, the logit, and the share of no token."""
        source = int(np.argmax(self.share))
        return {
            "target_token": self.target_token,
            "source": self.tokens[source],
            "share": float(self.share[source]),
            "source_position": source,
            "logit": self.logit,
            "bias": self.bias,
        }

    def to_frame(self) -> DataFrame:
        """One row per token: position, token, share in logits, and p with ``draws``."""
        columns = {"token": self.tokens, "share": self.share, "p": self.p}
        return table({"position": range(self.n_positions)}, columns)
