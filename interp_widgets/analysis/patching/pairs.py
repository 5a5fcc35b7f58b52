"""Pairs of a clean and a corrupted prompt: their traces, the metric in both, and which positions belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_choice, check_finite, index
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.prompts import Prompt, PromptError, read_prompt, single_token
from interp_widgets.analysis._core.result import Result, provenance, record, with_axes
from interp_widgets.analysis._core.run import Check
from interp_widgets.analysis._core.targets import check_foil
from interp_widgets.analysis._core.tensors import wide
from interp_widgets.analysis.ablation.metric import Metric, NextTokenMetric, next_token_metric
from interp_widgets.arguments import short
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput, is_chat
from interp_widgets.models.engine import Trace, decode, trace
from interp_widgets.models.patching import Site
from interp_widgets.models.top_k import likeliest

Direction = Literal["denoising", "noising"]
"""``denoising``: clean values go into the corrupted run. ``noising``: corrupted values go into the clean run."""

Tokens = str | int | Sequence[str | int]
"""Text or id of one token, or one for each pair of a set."""

Pairs = Sequence[Sequence[int]]
"""Positions that belong together: (in the clean prompt, in the corrupted one)."""

_ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Rounding of a logit relative to the largest one, by dtype."""
_ROUNDING_IN_HALF = 1e-2


@dataclass(frozen=True)
class PromptPair:
    """A clean and a corrupted prompt, and what is measured in both."""

    clean: Prompt
    corrupted: Prompt
    answer: str | int | None
    foil: str | int | None
    where: str = ""
    """Which of several pairs it is, for an error: `` of pair 3``."""

    def measured(
        self, model: Model, metric: Metric, sites: Sequence[Site] = (), *, check: Check = None
    ) -> MeasuredPair:
        """Run both prompts and read the metric; by default answer and foil are each prompt's likeliest token.

        Raises a PromptError of the foil where answer and foil are one token.
        """
        traces = []
        for prompt in (self.clean, self.corrupted):
            if check is not None:
                check()
            traces.append(trace(model, prompt.embeddings(), sites=sites))
        clean, corrupted = traces
        ends = [wide(decode(model, one.hidden)[0]) for one in traces]
        for logits, name in zip(ends, ("clean", "corrupted"), strict=True):
            check_finite(logits.max(), f"the largest logit of the {name} prompt")
        answer = likeliest(ends[0]) if self.answer is None else single_token(model, self.answer, what="answer")
        foil = None if self.foil is None else single_token(model, self.foil, what="foil")
        shown = model.token_strings([answer])[0]
        if foil == answer:
            raise _no_foil(f"answer and foil{self.where} are the same token, {shown!r}: give another foil")
        if metric == "logit_difference" and foil is None:
            foil = likeliest(ends[1])
            if foil == answer:
                which = f"{self.where} ({short(''.join(self.corrupted.tokens()))})" if self.where else ""
                raise _no_foil(
                    f"the corrupted prompt{which} is answered by {shown!r} too, so that it gives no foil: give a foil, "
                    "or a corrupted prompt with another answer"
                )
        read = next_token_metric(model, clean.hidden, answer, metric=metric, foil=foil)
        value = float(read.read(corrupted.hidden)[0])
        check_finite(np.array([value]), "the metric of the corrupted prompt")
        return MeasuredPair(self, clean, corrupted, read, value)


def _no_foil(sentence: str) -> PromptError:
    error = PromptError(sentence)
    error.what = "foil"
    return error


@dataclass(frozen=True)
class MeasuredPair:
    """A pair with its traces and the metric in both."""

    pair: PromptPair
    clean: Trace
    corrupted: Trace
    metric: NextTokenMetric
    corrupted_value: float

    @property
    def clean_value(self) -> float:
        return self.metric.clean

    @property
    def gap(self) -> float:
        """Clean minus corrupted; NaN where both agree to rounding."""
        apart = self.clean_value - self.corrupted_value
        return apart if abs(apart) > self.rounding() else float("nan")

    @torch.no_grad()
    def rounding(self) -> float:
        """The largest difference of two values of the metric that rounding alone may cause."""
        model, kind = self.metric.model, self.metric.metric
        logits = decode(model, torch.cat([self.clean.hidden, self.corrupted.hidden]))
        limit = float(wide(logits).abs().max()) * _ROUNDING.get(model.dtype, _ROUNDING_IN_HALF)
        if kind == "probability":
            return limit * max(self.clean_value, self.corrupted_value)
        return limit**2 if kind == "kl" else limit  # a divergence grows with the square of the logits' difference

    def share(self, value: Tensor) -> Tensor:
        """(value - corrupted) / (clean - corrupted) of values (n,) of the metric."""
        return (value - self.corrupted_value) / self.gap

    def read(self, hidden: Tensor, base: Trace) -> Tensor:
        """(n,) the metric of hidden states (n, width); exactly that of the base run where they are the base run's."""
        kept = self.clean_value if base is self.clean else self.corrupted_value
        return self.metric.read(hidden).masked_fill((hidden == base.hidden).all(-1), kept)


@record
class PairsResult(Result):
    """Base of the results of pairs of prompts: the metric in both runs of each, its answer and foil."""

    clean: Floats = with_axes("pairs", kw_only=True)
    """The metric in the clean run of each pair."""

    corrupted: Floats = with_axes("pairs", kw_only=True)
    """The metric in the corrupted run."""

    undefined: Sequence[int] = field(default=(), kw_only=True)
    """Pairs whose clean and corrupted metric agree to rounding: no part of their difference is defined, and means over
    such parts leave them out."""

    answers: Sequence[int] = with_axes("pairs", kw_only=True)
    """Id of the answer of each pair."""

    answer_tokens: Sequence[str] = with_axes("pairs", kw_only=True)
    """Its readable text."""

    foils: Sequence[int] | None = with_axes("pairs", default=None, kw_only=True)
    """Id of the token whose logit ``logit_difference`` subtracts."""

    foil_tokens: Sequence[str] | None = with_axes("pairs", default=None, kw_only=True)
    """Its readable text."""

    metric: str = field(kw_only=True)
    """A :data:`Metric`."""


def fields_of_pairs(runner: Runner, measured: Sequence[MeasuredPair], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `PairsResult`, whose provenance has these ``facts``, those of the run, and answers and foils."""
    answers = [both.metric.target for both in measured]
    foils = [both.metric.foil for both in measured if both.metric.foil is not None]
    metric = measured[0].metric.metric
    known = {"metric": metric, **facts, **runner.log.facts(), "answer": str(answers), "foil": str(foils)}
    return {
        "clean": np.array([both.clean_value for both in measured]),
        "corrupted": np.array([both.corrupted_value for both in measured]),
        "undefined": tuple(number for number, both in enumerate(measured) if np.isnan(both.gap)),
        "answers": answers,
        "answer_tokens": tuple(runner.model.token_strings(answers)),
        "foils": foils or None,
        "foil_tokens": tuple(runner.model.token_strings(foils)) if foils else None,
        "metric": metric,
        "provenance": provenance(runner.origin, **known),
    }


def read_pairs(
    model: Model,
    clean: PromptInput | Sequence[PromptInput],
    corrupted: PromptInput | Sequence[PromptInput],
    answer: Tokens | None,
    foil: Tokens | None,
    metric: str,
    prepend_bos: bool | None,
) -> list[PromptPair]:
    """Check and tokenise one pair or several.

    Raises ValueError in one sentence for lists of different lengths, a pair of equal prompts, pairs whose prompts are
    not as long as those of the first, or a foil that the metric does not use.
    """
    check_choice("metric", metric, Metric)
    if foil is not None:
        check_foil("metric", metric, foil)
    several = is_set(clean)
    if several != is_set(corrupted):
        raise ValueError("clean and corrupted must both be one prompt, or both a list of prompts of one length")
    cleans: list[Any] = list(clean) if several else [clean]
    corrupteds: list[Any] = list(corrupted) if several else [corrupted]
    if len(cleans) != len(corrupteds):
        raise ValueError(f"clean and corrupted must be lists of one length, got {len(cleans)} and {len(corrupteds)}")
    answers, foils = (
        one_each(tokens, len(cleans), several, name) for tokens, name in ((answer, "answer"), (foil, "foil"))
    )
    pairs = []
    for number, (one, other) in enumerate(zip(cleans, corrupteds, strict=True)):
        where = f" of pair {number}" if several else ""
        first = read_prompt(model, one, prepend_bos=prepend_bos, what=f"clean prompt{where}")
        second = read_prompt(model, other, prepend_bos=prepend_bos, what=f"corrupted prompt{where}")
        if first.ids == second.ids:
            raise ValueError(
                f"the clean and the corrupted prompt{where} have the same tokens, so that nothing can be patched: "
                "change the words that the answer depends on"
            )
        pairs.append(PromptPair(first, second, answers[number], foils[number], where))
        for mine, name in ((first, "clean"), (second, "corrupted")):
            reference: Prompt = getattr(pairs[0], name)
            if (mine.n_shown, mine.offset) != (reference.n_shown, reference.offset):
                raise ValueError(
                    f"the {name} prompts of a set must have as many tokens each, for a map by position: the first has "
                    f"{reference.n_shown}, that of pair {number} {mine.n_shown}"
                )
    return pairs


def check_lengths(pairs: Sequence[PromptPair]) -> None:
    """ValueError unless both prompts of each pair have equally many tokens."""
    for number, pair in enumerate(pairs):
        if len(pair.clean.ids) != len(pair.corrupted.ids):
            raise ValueError(
                "the prompts of a pair must have equally many tokens, since values of the corrupted one are put in "
                f"position by position: the clean prompt{f' of pair {number}' * (len(pairs) > 1)} has "
                f"{pair.clean.n_shown} and the corrupted one {pair.corrupted.n_shown}"
            )


def is_set(prompts: Any) -> bool:
    """Whether these are several prompts: a list whose entries are no numbers (token ids) and no messages of a chat."""
    if not isinstance(prompts, list | tuple) or is_chat(prompts):
        return False
    if not prompts:
        raise ValueError("the list of prompts is empty: give at least one pair")
    return isinstance(prompts[0], str) or not hasattr(prompts[0], "__index__")


def one_each(tokens: Any, count: int, several: bool, name: str) -> list[str | int | None]:
    """One token for each pair."""
    if tokens is None or isinstance(tokens, str) or hasattr(tokens, "__index__"):
        return [tokens] * count
    listed = list(tokens)
    if not several:
        raise ValueError(f"{name} must be the text or id of one token for one pair of prompts, got a list")
    if len(listed) != count:
        raise ValueError(f"{name} must be one token, or one for each of the {count} pairs, got {len(listed)}")
    return listed


# ---- positions


@dataclass(frozen=True)
class Alignment:
    """Positions of both prompts that belong together, without a BOS."""

    clean: tuple[int, ...]
    corrupted: tuple[int, ...]

    @staticmethod
    def of(pair: PromptPair, alignment: Pairs | Literal["ends"] | None) -> Alignment:
        """The alignment that the user gives; without one, position by position in prompts of one length."""
        clean, corrupted = pair.clean, pair.corrupted
        if alignment == "ends":
            return Alignment(*from_both_ends(clean.shown_ids, corrupted.shown_ids))
        if alignment is None:
            if (clean.n_shown, clean.offset) != (corrupted.n_shown, corrupted.offset):
                shown = [" ".join(repr(token) for token in prompt.tokens()) for prompt in (clean, corrupted)]
                raise ValueError(
                    f"clean has {clean.n_shown} tokens and corrupted {corrupted.n_shown}: give alignment=, pairs of "
                    '(position in clean, position in corrupted) that belong together, or "ends"; clean is '
                    f"{shown[0]}, corrupted {shown[1]}"
                )
            return Alignment(tuple(range(clean.n_shown)), tuple(range(clean.n_shown)))
        pairs = [tuple(each) for each in alignment]
        if not pairs or any(len(each) != 2 for each in pairs):
            raise ValueError("alignment must be pairs of (position in clean, position in corrupted), at least one")
        sides = []
        for side, prompt, name in ((0, clean, "clean"), (1, corrupted, "corrupted")):
            owner = f"{name} prompt of {prompt.n_shown} tokens"
            numbers = tuple(
                index(each[side], prompt.n_shown, f"alignment's position in {name}", owner) for each in pairs
            )
            if len(set(numbers)) < len(numbers):
                twice = next(number for number in numbers if numbers.count(number) > 1)
                raise ValueError(f"alignment has position {twice} of the {name} prompt twice: name each once")
            sides.append(numbers)
        return Alignment(*sides)

    @staticmethod
    def of_all(pairs: Sequence[PromptPair], alignment: Pairs | Literal["ends"] | None) -> Alignment:
        """The one alignment of a set of pairs; ValueError where aligning from both ends gives several."""
        first = Alignment.of(pairs[0], alignment)
        for number, pair in enumerate(pairs):
            if alignment == "ends" and Alignment.of(pair, "ends") != first:
                raise ValueError(
                    f"the tokens of pair {number} belong together at other positions than those of the first: give "
                    "prompts that change at the same place, or alignment= as pairs of positions"
                )
        return first

    def into(self, direction: Direction) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The positions of the run that is patched, rising, and those of the run that the values come from."""
        both = (self.corrupted, self.clean) if direction == "denoising" else (self.clean, self.corrupted)
        order = np.argsort(both[0])
        run, source = (tuple(side[i] for i in order) for side in both)
        return run, source


def from_both_ends(clean: Sequence[int], corrupted: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions of two lists of token ids that belong together: equal tokens at the start, then token by token from the
    end, where the answer is read; what is left over in the middle of the longer one belongs to none.

    >>> from_both_ends([5, 1, 8, 9], [5, 2, 3, 8, 9])
    ((0, 1, 2, 3), (0, 2, 3, 4))
    """
    shorter = min(len(clean), len(corrupted))
    start = next((at for at in range(shorter - 1) if clean[at] != corrupted[at]), shorter - 1)
    first, second = ((*range(start), *range(len(side) - shorter + start, len(side))) for side in (clean, corrupted))
    return first, second


def unaligned(prompt: Prompt, positions: Sequence[int]) -> tuple[int, ...]:
    """The positions of a prompt that are not among these."""
    return tuple(position for position in range(prompt.n_shown) if position not in positions)


def mean_of(values: Floats) -> Floats:
    """The mean over the first axis, NaN left out; NaN where nothing is left."""
    known = ~np.isnan(values)
    count = known.sum(0)
    total = np.where(known, values, 0.0).sum(0)
    return np.asarray(np.divide(total, count, out=np.full(total.shape, np.nan, total.dtype), where=count > 0))
