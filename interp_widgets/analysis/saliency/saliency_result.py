"""The result of attributing a response to its prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp_widgets.analysis._core.arrays import Bools, Floats
from interp_widgets.analysis._core.checks import check_choice, check_span
from interp_widgets.analysis._core.result import Result, record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table
from interp_widgets.analysis.saliency.density import (
    FLOOR,
    importance_density,
    instruction_score,
    normalise_importance,
    under_floor,
)
from interp_widgets.analysis.saliency.spans import SpanKind, read_spans, span_fields

Method = Literal["exact", "first_order", "integrated_gradients", "random"]
"""How the importance of a prompt token is computed."""


@record
class SaliencyResult(Result):
    """Importance of every prompt token for every response token, with what is needed to read and repeat it.

    Every axis leaves out the beginning-of-sequence token, which the model still reads (see `bos_id`). Where the map was
    asked for by spans of the prompt, such as its sentences, these are the prompt's axis.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 4.1.

    Example:
        >>> result = prompt_saliency(model, "The Eiffel Tower is in the city of", " Paris")
        >>> result.normalised()[:, 0].tolist()
        [1.0, 10.0, 1.0, 1.0, 1.0, 1.0, 0.0, 10.0]
        >>> round(result.instruction_score(result.mask((4, 16))), 1)  # of the words in these characters
        0.5
    """

    importance: Floats = with_axes("prompt", "response")
    """Importance in units of the target; NaN where a partial result has not got to."""

    prompt_tokens: Sequence[str] = with_axes("prompt")
    """Readable prompt tokens, or the text of each span (see `spans`)."""

    response_tokens: Sequence[str] = with_axes("response")
    """Readable response tokens."""

    prompt_ids: Sequence[int] = with_axes("tokens")
    """Ids of all prompt tokens."""

    response_ids: Sequence[int] = with_axes("response")
    """Token ids."""

    prompt_special: Sequence[bool] = with_axes("prompt")
    """Whether a prompt token is special (written by a template, say), or all tokens of a span are."""

    probability: Floats = with_axes("response")
    """Probability the model gives each response token, 0..1."""

    method: str
    """How the importance was computed: a :data:`Method`, or the name of an outside one."""

    target: str = "probability"
    """Which number of the response token was attributed: a :data:`Target`."""

    foil: int | Sequence[int] | None = None
    """Token id(s) the response token is set against, for the target ``logit_difference``."""

    baseline: str = "zero"
    """What a token's embedding is replaced by: ``zero``, ``mean`` (of all token embeddings), ``resample`` (those of
    drawn tokens) or another name."""

    completeness_gap: Floats | None = with_axes("response", default=None)
    """What integrated gradients leave unexplained, in units of the target; None for other methods."""

    bos_id: int | None = None
    """Id of the beginning-of-sequence token fed before the prompt and left off the axis; None when there was none."""

    prompt_spans: Sequence[Sequence[int]] | None = with_axes("prompt", 2, default=None)
    """First and past-last character of each prompt token or span in the prompt's text; None for given ids."""

    spread: Floats | None = with_axes("prompt", "response", default=None)
    """Standard deviation of the importance over the tokens drawn for ``resample``; None for one baseline."""

    rounding: Floats | None = with_axes("response", default=None)
    """How far rounding usually moves the importance of each response token, in units of the target: 16 roundings in the
    model's type at the size of the target (of the logits, where it is no probability), which in float32 is 2e-6 of a
    probability. None where it is not known."""

    spans: Sequence[Sequence[int]] | None = with_axes("prompt", 2, default=None)
    """[start, end) prompt tokens of each span, where the prompt's axis is spans; None where it is single tokens."""

    span_rule: str | None = None
    """How a span's importance is made: ``together`` (all its tokens replaced in one run), or the ``sum``, ``mean`` or
    ``maximum`` over its tokens; None for single tokens."""

    roles: Sequence[str] | None = with_axes("tokens", default=None)
    """Role of each prompt token of a chat, ``template`` for what the template writes (`chat_prompt`); None for text."""

    turns: Sequence[int] | None = with_axes("tokens", default=None)
    """Turn of each prompt token of a chat; None for text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spans is None and len(self.prompt_ids) != len(self.prompt_tokens):
            got, wanted = len(self.prompt_ids), len(self.prompt_tokens)
            raise ValueError(f"SaliencyResult.prompt_ids must have {wanted} entries, got {got}")
        for span in self.spans or ():
            check_span(span, len(self.prompt_ids), "a span", f"prompt of {len(self.prompt_ids)} tokens")
        if isinstance(self.foil, Sequence):
            object.__setattr__(self, "foil", tuple(self.foil))

    def normalised(self, *, levels: int = 10, threshold: float = 0, min_importance: float = 0.0) -> NDArray[np.float64]:
        """(prompt, response) scores 0..levels (see :func:`normalise_importance`); uncomputed cells score 0."""
        return normalise_importance(self._computed, levels=levels, threshold=threshold, min_importance=min_importance)

    def density(
        self, *, levels: int = 10, threshold: float = 7, p: float = 4, min_importance: float = 0.0
    ) -> NDArray[np.float64]:
        """(prompt,) how many response tokens each prompt token matters to (see :func:`importance_density`)."""
        scores = self.normalised(levels=levels, threshold=threshold, min_importance=min_importance)
        return importance_density(scores, p=p)

    def instruction_score(
        self, mask: ArrayLike, *, levels: int = 10, threshold: float = 7, p: float = 4, min_importance: float = 0.0
    ) -> float:
        """Score of the prompt tokens where `mask` (prompt,) is true (see :func:`instruction_score`).

        NaN where no response token reaches `min_importance`: there is nothing to score.
        """
        density = self.density(levels=levels, threshold=threshold, p=p, min_importance=min_importance)
        score = instruction_score(density, mask)
        return score if not self.under_floor(min_importance).all() else math.nan

    def context_score(
        self, mask: ArrayLike, *, levels: int = 10, threshold: float = 7, p: float = 4, min_importance: float = 0.0
    ) -> float:
        """The same score for the rest of the prompt: neither in `mask` (prompt,) nor special."""
        rest = ~np.asarray(mask, dtype=bool) & ~np.asarray(self.prompt_special, dtype=bool)
        return self.instruction_score(rest, levels=levels, threshold=threshold, p=p, min_importance=min_importance)

    def under_floor(self, min_importance: float = FLOOR) -> Bools:
        """(response,) which response tokens no prompt token matters to by `min_importance`, in units of the target."""
        return under_floor(self._computed, min_importance)

    @property
    def below_rounding(self) -> Bools:
        """(prompt, response) which importance is no larger than rounding makes it: it may as well be 0."""
        if self.rounding is None:
            return np.zeros(self.importance.shape, dtype=bool)
        return np.asarray(np.abs(self.importance) <= self.rounding)

    @property
    def _computed(self) -> Floats:
        """The importance, 0 where a partial result has not got to."""
        return np.nan_to_num(self.importance, nan=0.0) if self.partial else self.importance

    def by_spans(
        self,
        spans: SpanKind | Sequence[Sequence[int]] = "words",
        *,
        how: Literal["sum", "mean", "maximum"] = "sum",
    ) -> SaliencyResult:
        """The same map with the importance of the tokens of each span put together.

        `spans` is as in `prompt_saliency`, which replaces a span's tokens at once: that costs runs of the model, and is
        another quantity. Raises ValueError for a map that is by spans already.

        Example:
            >>> result = prompt_saliency(model, "Add 1 and 2. Now say it.", " 3")
            >>> result.by_spans("sentences").prompt_tokens
            ('Add 1 and 2.', ' Now say it.')
        """
        if self.spans is not None:
            raise ValueError("this map is by spans already: put together the one of single tokens")
        check_choice("how", how, Literal["sum", "mean", "maximum"])
        pieces = read_spans(spans, None, self.prompt_tokens, self.prompt_special, self.roles, self.turns)
        reduce: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "maximum": np.max}
        return replace(
            self,
            importance=np.stack([reduce[how](self.importance[a:b], axis=0) for a, b in pieces]),
            spread=None,
            span_rule=how,
            **span_fields(pieces, self.prompt_tokens, self.prompt_special, self.prompt_spans),
        )

    def mask(self, *spans: Sequence[int]) -> Bools:
        """(prompt,) which prompt tokens share a character with one of the (start, stop) spans of the prompt's text.

        Raises ValueError when the result does not know where its tokens lie (the prompt was given as ids).
        """
        return spans_to_mask(self.prompt_spans, spans)

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The largest importance with its two tokens, the mean probability of the response, and the share of response
        tokens that no prompt token matters to by the usual floor."""
        prompt, response = map(int, np.unravel_index(int(np.nanargmax(self.importance)), self.importance.shape))
        return {
            "importance": float(self.importance[prompt, response]),
            "prompt_token": self.prompt_tokens[prompt],
            "response_token": self.response_tokens[response],
            "probability": float(self.probability.mean()),
            "under_floor": float(self.under_floor().mean()),
        }

    def to_frame(self) -> DataFrame:
        """One row per prompt and response token: positions, tokens, importance and the response token's probability."""
        prompt, response = map(range, self.importance.shape)
        columns = {
            "prompt_token": np.array(self.prompt_tokens, dtype=object)[:, None],
            "response_token": self.response_tokens,
            "importance": self.importance,
            "probability": self.probability,
        }
        order = ["prompt_position", "prompt_token", "response_position", "response_token", "importance", "probability"]
        return table({"prompt_position": prompt, "response_position": response}, columns)[order]


def spans_to_mask(token_spans: Sequence[Sequence[int]] | None, spans: Sequence[Sequence[int]]) -> Bools:
    """(tokens,) which tokens overlap one of the marked (start, stop) spans; a piece without width counts when inside.

    >>> spans_to_mask([(0, 3), (3, 8), (8, 9)], [(4, 9)]).tolist()
    [False, True, True]
    """
    if token_spans is None:
        raise ValueError("character spans need the prompt as text, this one was given as token ids: give a token mask")
    for span in spans:
        if len(span) != 2 or span[0] > span[1]:
            raise ValueError(f"a span must be (start, stop) with start <= stop, got {tuple(span)}")
    first, last = np.asarray(token_spans, dtype=int).reshape(-1, 2).T
    mask = np.zeros(len(first), dtype=bool)
    for start, stop in spans:
        mask |= (first < stop) & (last > start)
    return mask
