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
    normalize_importance,
    under_floor,
)
from interp_widgets.analysis.saliency.spans import SpanKind, read_spans, span_fields
from interp_widgets.renamed import renamed

Method = Literal["exact", "first_order", "integrated_gradients", "random"]
"""How the importance of a prompt token is computed."""


@renamed(normalised="normalized")
@record
class SaliencyResult(Result):
    """Importance of every prompt token for every response token.

    Every axis leaves out the beginning-of-sequence token, which the model still reads (see `bos_id`). In a map by spans
    of the prompt, such as its sentences, the prompt axis has one entry per span.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 4.1.

    Example:
        >>> result = prompt_saliency(model, "The Eiffel Tower is in the city of", " Paris")
        >>> result.normalized()[:, 0].tolist()
        [1.0, 10.0, 1.0, 1.0, 1.0, 1.0, 0.0, 10.0]
        >>> round(result.instruction_score(result.mask((4, 16))), 1)  # of the words in these characters
        0.5
    """

    importance: Floats = with_axes("prompt", "response")
    """Importance in units of the target; NaN where a partial result has no number yet."""

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
    """How the importance was computed: a :data:`Method`, or the name of an external one."""

    target: str = "probability"
    """Which number of the response token was attributed: a :data:`Target`."""

    foil: int | Sequence[int] | None = None
    """Token id(s) whose logit is subtracted, for the target ``logit_difference``."""

    baseline: str = "zero"
    """Replacement of a token's embedding: ``zero``, ``mean`` (of all token embeddings), ``resample`` (embeddings of
    random tokens) or another name."""

    completeness_gap: Floats | None = with_axes("response", default=None)
    """Completeness gap of integrated gradients, in units of the target; None for other methods."""

    bos_id: int | None = None
    """Id of the beginning-of-sequence token fed before the prompt and left off the axis; None when there was none."""

    sink: bool = False
    """Whether the first row is or holds the first token that the model reads, and this carries its attention sink, so
    that the importance is not the word's alone (see ``first_token`` of `prompt_saliency`)."""

    prompt_spans: Sequence[Sequence[int]] | None = with_axes("prompt", 2, default=None)
    """First and past-last character of each prompt token or span in the prompt's text; None for given ids."""

    spread: Floats | None = with_axes("prompt", "response", default=None)
    """Standard deviation of the importance over the tokens drawn for ``resample``; None for one baseline."""

    rounding: Floats | None = with_axes("response", default=None)
    """Typical rounding error of the importance for each response token, in units of the target: 16 roundings in the
    model's dtype at the size of the target (of the logits, unless it is a probability), which in float32 is 2e-6 of a
    probability. None if not known."""

    spans: Sequence[Sequence[int]] | None = with_axes("prompt", 2, default=None)
    """[start, end) prompt tokens of each span, where the prompt's axis is spans; None where it is single tokens."""

    span_rule: str | None = None
    """How a span's importance is computed: ``together`` (all its tokens replaced in one run), or the ``sum``, ``mean``
    or ``maximum`` over its tokens; None for single tokens."""

    roles: Sequence[str] | None = with_axes("tokens", default=None)
    """Role of each prompt token of a chat, ``template`` for template text (`chat_prompt`); None for text."""

    turns: Sequence[int] | None = with_axes("tokens", default=None)
    """Turn of each prompt token of a chat; None for text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spans is None and len(self.prompt_ids) != len(self.prompt_tokens):
            got, expected = len(self.prompt_ids), len(self.prompt_tokens)
            raise ValueError(f"SaliencyResult.prompt_ids must have {expected} entries, got {got}")
        for span in self.spans or ():
            check_span(span, len(self.prompt_ids), "a span", f"prompt of {len(self.prompt_ids)} tokens")
        if isinstance(self.foil, Sequence):
            object.__setattr__(self, "foil", tuple(self.foil))

    @property
    def saturated(self) -> NDArray[np.bool_]:
        """(response,) where at least 60% of the prompt tokens each cost at least 90% of the response token's
        probability, so that the map cannot tell them apart; only of exact maps of the probability."""
        if self.target != "probability" or self.method != "exact":
            return np.zeros(len(self.response_ids), dtype=bool)
        each = (self.importance >= 0.9 * self.probability).mean(axis=0) >= 0.6
        return np.asarray(each & (self.probability >= FLOOR))

    def normalized(self, *, levels: int = 10, threshold: float = 0, min_importance: float = 0.0) -> NDArray[np.float64]:
        """(prompt, response) scores 0..levels (see :func:`normalize_importance`); uncomputed cells score 0."""
        return normalize_importance(self._computed, levels=levels, threshold=threshold, min_importance=min_importance)

    def density(
        self, *, levels: int = 10, threshold: float = 7, p: float = 4, min_importance: float = 0.0
    ) -> NDArray[np.float64]:
        """(prompt,) density of each prompt token over the response (see :func:`importance_density`)."""
        scores = self.normalized(levels=levels, threshold=threshold, min_importance=min_importance)
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
        """Instruction score of the rest of the prompt: neither in `mask` (prompt,) nor special."""
        context = ~np.asarray(mask, dtype=bool) & ~np.asarray(self.prompt_special, dtype=bool)
        return self.instruction_score(context, levels=levels, threshold=threshold, p=p, min_importance=min_importance)

    def under_floor(self, min_importance: float = FLOOR) -> Bools:
        """(response,) whether all importance for a response token is under `min_importance`, in units of the target."""
        return under_floor(self._computed, min_importance)

    @property
    def below_rounding(self) -> Bools:
        """(prompt, response) whether the importance is within the rounding error, so that it may be 0."""
        if self.rounding is None:
            return np.zeros(self.importance.shape, dtype=bool)
        return np.asarray(np.abs(self.importance) <= self.rounding)

    @property
    def _computed(self) -> Floats:
        """The importance, 0 where a partial result has no number yet."""
        return np.nan_to_num(self.importance, nan=0.0) if self.partial else self.importance

    def by_spans(
        self,
        spans: SpanKind | Sequence[Sequence[int]] = "words",
        *,
        how: Literal["sum", "mean", "maximum"] = "sum",
    ) -> SaliencyResult:
        """The map with the importance of the tokens of each span aggregated.

        `spans` is as in `prompt_saliency`, which instead replaces a span's tokens at once: a different quantity that
        needs runs of the model. Raises ValueError for a map that is by spans already.

        Example:
            >>> result = prompt_saliency(model, "Add 1 and 2. Now say it.", " 3")
            >>> result.by_spans("sentences").prompt_tokens
            ('Add 1 and 2.', ' Now say it.')
        """
        if self.spans is not None:
            raise ValueError("this map is by spans already: aggregate the map of single tokens")
        check_choice("how", how, Literal["sum", "mean", "maximum"])
        token_spans = read_spans(
            spans, None, self.prompt_tokens, self.prompt_special, self.roles, self.turns, self.prompt_spans
        )
        reduce: dict[str, Any] = {"sum": np.sum, "mean": np.mean, "maximum": np.max}
        return replace(
            self,
            importance=np.stack([reduce[how](self.importance[a:b], axis=0) for a, b in token_spans]),
            spread=None,
            span_rule=how,
            sink=self.sink and token_spans[0][0] == 0,
            **span_fields(token_spans, self.prompt_tokens, self.prompt_special, self.prompt_spans),
        )

    def mask(self, *spans: Sequence[int]) -> Bools:
        """(prompt,) whether a prompt token overlaps one of the (start, stop) character spans of the prompt's text.

        Raises ValueError if the prompt was given as ids, whose characters are not known.
        """
        return spans_to_mask(self.prompt_spans, spans)

    def measures(self) -> dict[str, float | int | str | bool | None]:
        """The largest importance with its two tokens, the mean probability of the response, and the share of response
        tokens under the default floor."""
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
    """(tokens,) whether a token overlaps one of the (start, stop) spans; a token of width 0 counts if it is inside.

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
