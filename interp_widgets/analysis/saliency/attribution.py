"""`prompt_saliency`: the importance of each prompt token for each response token."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import check_choice, check_finite, check_range
from interp_widgets.analysis._core.chunks import Runner
from interp_widgets.analysis._core.cost import Cost, chunk_bytes, pass_flops, unembedding_flops
from interp_widgets.analysis._core.result import Scalar, provenance
from interp_widgets.analysis._core.targets import Target
from interp_widgets.analysis._core.tensors import to_numpy, wide_type
from interp_widgets.analysis.saliency.case import Case, make_case
from interp_widgets.analysis.saliency.methods import (
    Baseline,
    FirstToken,
    default_baseline,
    first_order,
    integrated_gradients,
    kept_bytes,
    occlusion,
    points_at_once,
    replacements,
)
from interp_widgets.analysis.saliency.saliency_result import Method, SaliencyResult
from interp_widgets.analysis.saliency.spans import SpanKind, Spans, read_spans, span_fields
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.chat import PromptInput


@checked
def prompt_saliency(
    model: Model,
    prompt: PromptInput,
    response: str | Sequence[int] | None = None,
    *,
    method: Method = "exact",
    target: Target = "probability",
    foil: str | int | Sequence[int] | None = None,
    steps: int = 32,
    baseline: Baseline | None = None,
    draws: int = 8,
    first_token: FirstToken = "mean",
    spans: SpanKind | Sequence[Sequence[int]] | None = None,
    within: Sequence[int] | None = None,
    seed: int = 0,
    max_new_tokens: int = 40,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[SaliencyResult], None] | None = None,
) -> SaliencyResult:
    """Importance (prompt, response) of every prompt token for every response token, teacher-forced.

    Also called input or feature attribution: occlusion of the embedding (``"exact"``), or gradient × input
    (``"first_order"``).

    ``"exact"`` and ``"first_order"`` are different quantities (correlations of 0.25 to 0.75 are usual): a token can be
    important although its gradient is small. Report both.

    Where a model needs nearly every token of a short prompt, each costs all of the probability and the map tells them
    apart no more (`SaliencyResult.saturated`): contrast the response with its ``"runner_up"`` then.

    A zero embedding is not a neutral word. The last prompt token is also the query that predicts the first response
    token; zeroing its embedding removes the query, so that the token may rank first whatever it means. Compare with the
    ``"mean"`` or ``"resample"`` baseline before interpreting its score.

    In a model with an attention sink and no BOS, the first token of the prompt carries the sink
    (`SaliencyResult.sink`): replacing its embedding by zeros measures what the sink is worth, not the word. The mean
    embedding keeps the sink.

    Args:
        model: what `load_model` returns.
        prompt: text, token ids (then nothing is added), or the messages of a chat (`chat_prompt`).
        response: text or token ids; without one the model writes it.
        method: ``"exact"`` (decrease of the target when the token's embedding is replaced by the baseline),
            ``"first_order"`` (gradient times embedding), ``"integrated_gradients"`` (from the baseline), or
            ``"random"`` for comparison.
        target: ``"probability"`` of the response token, ``"log_prob"`` (nats), its ``"logit"``, or
            ``"logit_difference"`` to the ``foil``.
        foil: a token id, the text of one token, one id per response token, or ``"runner_up"``: the likeliest other
            token in the place of each.
        steps: of integrated gradients (midpoint rule).
        baseline: replacement of embeddings, for exact and integrated gradients: ``"zero"`` (as in the paper),
            ``"mean"`` (of all token embeddings) or ``"resample"`` (embeddings of random tokens; the importance is the
            mean over ``draws``, and the result has its ``spread``). Default ``"zero"``, but ``"mean"`` for integrated
            gradients of models with RMSNorm, which is discontinuous at zero.
        draws: number of random tokens per position for ``"resample"``, from the vocabulary without special tokens.
        first_token: what replaces a first token that carries the attention sink, for exact and integrated gradients:
            ``"mean"`` of all token embeddings, or ``"baseline"``, as all other tokens.
        spans: rows of the map are these spans of the prompt: ``"words"``, ``"sentences"``, ``"passages"`` (about eight
            stretches of whole sentences), a chat's ``"roles"`` or ``"turns"``, or a list of [start, end) tokens, in the
            order of the prompt. Exact importance replaces all tokens of a span in one run, which differs from the sum
            over its tokens (`SaliencyResult.by_spans`); gradient methods give that sum. None for single tokens.
        within: limits the rows to the tokens [start, end), such as the tokens or words of one span.
        seed: of ``"random"`` and ``"resample"``.
        max_new_tokens: most tokens that the model writes.
        prepend_bos: overrides the model's BOS policy for texts. No axis of the result has the BOS.
        batch_size: rows per chunk; by default limited by 60% of the free memory and by the delay of a cancel.
        progress: called with (done, total) after every chunk.
        check: called before every chunk; raises to cancel.
        on_partial: receives a partial result a few times, NaN where nothing is computed yet.

    Raises:
        ValueError: an unknown method or target, a baseline for a method without one, an empty or too long prompt or
            response, only special tokens, a foil of several tokens, or numbers that are not finite.
        MemoryError: a single sequence does not fit.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 4.1 and appendix A; Axiomatic
    Attribution for Deep Networks (Sundararajan et al. 2017), section 3.

    Example:
        >>> result = prompt_saliency(model, "The Eiffel Tower is located in the city of")
        >>> result.importance.shape, result.response_tokens
        ((9, 2), (' Paris', '.'))
        >>> result.prompt_tokens[result.importance[:, 0].argmax()]
        ' of'
        >>> prompt_saliency(model, "Add 1 and 2. Now say it.", " 3", spans="sentences").prompt_tokens
        ('Add 1 and 2.', ' Now say it.')
    """
    kind = _check_method(model, method, target, baseline, steps=steps, draws=draws, first_token=first_token)
    case = make_case(
        model, prompt, response,
        target=target, foil=foil, max_new_tokens=max_new_tokens, prepend_bos=prepend_bos, check=check,
    )  # fmt: skip
    options = {"steps": steps, "baseline": kind, "draws": draws, "seed": seed, "first_token": first_token}
    replaced = replacements(case, kind, draws, seed, first_token)
    saliency = _Map.empty(case, method, kind, spans, within, len(replaced))
    runner = Runner(model, case.n_fed, batch_size, check, progress)
    if on_partial is not None and method != "integrated_gradients":  # some of its steps give no part of the map
        runner.deliver = lambda: on_partial(saliency.result(saliency.facts(**options), runner, partial=True))
    match method:
        case "exact":
            occlusion(case, runner, saliency.effects, replaced, saliency.spans)
        case "first_order":
            first_order(case, runner, saliency.effects[:, 0])
        case "integrated_gradients":
            saliency.gap = integrated_gradients(case, runner, saliency.effects, replaced, steps=steps)
        case "random":
            saliency.effects = torch.from_numpy(np.random.default_rng(seed).random(saliency.effects.shape))
    result = saliency.result(saliency.facts(**options) | runner.log.facts(), runner)
    _check_finite(result)
    return result


def _check_method(
    model: Model, method: str, target: str, baseline: str | None, *, steps: int, draws: int, first_token: str
) -> Baseline:
    """The baseline to use; ValueError where the model, the method and its options are incompatible."""
    if method in ("first_order", "integrated_gradients"):
        model.capabilities.require("gradients", f"prompt_saliency(method={method!r})", "use method='exact'")
    check_choice("method", method, Method)
    check_choice("target", target, Target)
    check_choice("baseline", baseline, Baseline, none=True)
    check_range("steps", steps)
    check_range("draws", draws)
    check_choice("first_token", first_token, FirstToken)
    kind = baseline if baseline is not None else default_baseline(model, method)
    if kind != "zero" and method not in ("exact", "integrated_gradients"):
        raise ValueError(
            f"baseline {kind!r} is for method='exact' and 'integrated_gradients', got method={method!r}: leave it out"
        )
    return cast(Baseline, kind)


@dataclass
class _Map:
    """A map that is being computed: its rows, and the effects so far."""

    case: Case
    method: Method
    baseline: Baseline
    spans: Spans
    """[start, end) tokens of each row."""
    rows: dict[str, Any]
    """The fields of the result that describe its rows."""
    effects: Tensor
    """(rows, draws, response), or for gradient methods (prompt, draws, response), which cover all tokens; NaN where not
    computed yet."""
    probability: Floats
    rounding: Floats | None
    gap: Tensor | None = None

    @classmethod
    def empty(cls, case: Case, method: Method, baseline: Baseline, spans: Any, within: Any, draws: int) -> _Map:
        """The map of a case before anything is computed."""
        prompt, by_row = case.prompt, method in ("exact", "random")
        tokens, special = prompt.tokens(), prompt.special()
        row_spans = read_spans(spans, within, tokens, special, prompt.roles, prompt.turns, prompt.spans)
        rows: dict[str, Any] = {"prompt_tokens": tokens, "prompt_special": special, "prompt_spans": prompt.spans}
        if spans is not None or within is not None:
            rows = span_fields(row_spans, tokens, special, prompt.spans) | {
                "span_rule": "together" if by_row else "sum"
            }
        shape = (len(row_spans) if by_row else case.n_prompt, draws, case.n_response)
        return cls(
            case, method, baseline, row_spans, rows,
            effects=torch.full(shape, math.nan, dtype=wide_type(case.model.dtype), device=case.model.device),
            probability=case.probability,
            rounding=None if method == "random" else case.rounding,
        )  # fmt: skip

    @property
    def sink(self) -> bool:
        """Whether the map has the token that carries the attention sink."""
        return self.spans[0][0] == 0 and self.case.prompt.first_is_sink

    def facts(self, **options: Scalar) -> dict[str, Scalar]:
        """The options that the map depends on, for its provenance."""
        draws, replaces = self.baseline == "resample", self.method in ("exact", "integrated_gradients")
        used = {
            "steps": self.method == "integrated_gradients",
            "baseline": replaces,
            "first_token": replaces and self.sink,
            "draws": draws,
            "seed": self.method == "random" or draws,
        }
        facts: dict[str, Any] = {"method": self.method, "target": self.case.targets.kind}
        facts |= {"bos": self.case.prompt.offset == 1}
        facts |= {"foil": self.case.foil} if self.case.foil is not None else {}
        return facts | {name: options[name] for name, is_used in used.items() if is_used}

    def result(self, facts: Mapping[str, Scalar], runner: Runner, *, partial: bool = False) -> SaliencyResult:
        """The result so far: mean and spread of the effects over the draws; gradients are summed by row."""
        case, prompt, effects = self.case, self.case.prompt, self.effects
        if self.method in ("first_order", "integrated_gradients") and "spans" in self.rows:
            effects = torch.stack([effects[a:b].sum(0) for a, b in self.spans])
        return SaliencyResult(
            importance=to_numpy(effects.mean(1)),
            response_tokens=case.model.token_strings(case.response_ids),
            prompt_ids=prompt.shown_ids,
            response_ids=case.response_ids,
            probability=self.probability,
            method=self.method,
            target=case.targets.kind,
            foil=case.foil,
            baseline=self.baseline,
            completeness_gap=None if self.gap is None else to_numpy(self.gap),
            spread=to_numpy(effects.std(1)) if effects.shape[1] > 1 else None,
            rounding=self.rounding,
            bos_id=prompt.bos_id,
            sink=self.sink,
            roles=prompt.roles,
            turns=prompt.turns,
            partial=partial,
            provenance=provenance(runner.origin, **facts),
            **self.rows,
        )


def _check_finite(result: SaliencyResult) -> None:
    prompt, response, importance = result.prompt_tokens, result.response_tokens, result.importance
    check_finite(result.probability, lambda m: f"the model's probability of response token {m} ({response[m]!r})")
    check_finite(
        importance,
        lambda n, m: f"the importance of prompt token {n} ({prompt[n]!r}) for response token {m} ({response[m]!r})",
    )


def saliency_cost(
    model: Model,
    n_prompt: int,
    n_response: int,
    method: Method | str,
    *,
    steps: int = 32,
    draws: int = 1,
    spans: int | None = None,
) -> Cost:
    """Operations and peak bytes of `prompt_saliency` for so many prompt and response tokens.

    Args:
        model: a `Model`.
        n_prompt, n_response: numbers of tokens.
        method: a `Method`.
        steps: of integrated gradients.
        draws: of the ``"resample"`` baseline; 1 for the others.
        spans: number of spans that are rows instead of single tokens, spread over the prompt; None for single tokens.

    Example:
        >>> round(saliency_cost(model, 60, 40, "exact").flops / 1e9, 1)
        25.5
    """
    fed = n_prompt + max(n_response, 1) - 1
    runs = draws * (n_prompt if spans is None else spans)
    reading = n_response * unembedding_flops(model)
    single = pass_flops(model, fed, fed) + reading
    match method:
        case "random":
            flops = single
        case "exact":
            flops = single + runs * (pass_flops(model, fed - n_prompt / 2, fed) + reading)
        case _:
            # forward mode: every prompt token's change at the positions after it; reverse: every response token's
            # gradient at the positions before it; attention has twice the products of a plain pass
            rows = min(n_prompt * (fed - n_prompt / 2), n_response * (n_prompt + n_response / 2))
            gradient = 2 * single + reading + pass_flops(model, rows, 2 * fed)
            flops = gradient * (draws * steps if method == "integrated_gradients" else 1)
    item = max(model.dtype.itemsize, 4)
    logits = item * min(2**23, n_response * model.d_vocab) * 3
    rows, kept_by_pass = runs, kept_bytes(model, fed)
    if method == "integrated_gradients":
        points = min(steps, points_at_once(Runner(model, fed), n_prompt, max(n_response, 1)))
        rows, kept_by_pass = max(rows, points * min(n_prompt, max(n_response, 1))), points * kept_by_pass
    return Cost(flops=float(flops), bytes=float(logits + chunk_bytes(model, rows, fed) + kept_by_pass))
