"""`prompt_saliency`: which prompt tokens made the model write which response tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.result import Scalar, provenance
from interp_widgets.analysis._core.runner import Runner
from interp_widgets.analysis._core.targets import Target
from interp_widgets.analysis._core.tensors import to_numpy
from interp_widgets.analysis.saliency.case import Case, make_case
from interp_widgets.analysis.saliency.integrated import Baseline, default_baseline, integrated_gradients
from interp_widgets.analysis.saliency.methods import first_order
from interp_widgets.analysis.saliency.occlusion import occlusion
from interp_widgets.analysis.saliency.saliency_result import Method, SaliencyResult
from interp_widgets.arguments import checked
from interp_widgets.models import Model


@checked
def prompt_saliency(
    model: Model,
    prompt: str | Sequence[int],
    response: str | Sequence[int] | None = None,
    *,
    method: Method = "exact",
    target: Target = "probability",
    foil: str | int | Sequence[int] | None = None,
    steps: int = 32,
    baseline: Baseline | None = None,
    seed: int = 0,
    max_new_tokens: int = 40,
    prepend_bos: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[], None] | None = None,
    on_partial: Callable[[SaliencyResult], None] | None = None,
) -> SaliencyResult:
    """Importance (prompt, response) of every prompt token for every response token, teacher-forced.

    ``"exact"`` and ``"first_order"`` are different quantities (correlations of 0.25 to 0.75 are usual): a token can
    matter much although the gradient at it is small. Show both.

    Args:
        model: what `load_model` returns.
        prompt, response: texts, or token ids (then nothing is added). Without a response the model writes one.
        method: ``"exact"`` (the target's fall when the token's embedding is zeroed), ``"first_order"`` (gradient times
            embedding), ``"integrated_gradients"``, or ``"random"`` to compare with.
        target: ``"probability"`` of the response token, ``"log_prob"`` (nats), its ``"logit"``, or
            ``"logit_difference"`` to the ``foil``.
        foil: a token id, the text of one token, or one id per response token.
        steps: of integrated gradients (midpoint rule).
        baseline: of integrated gradients: ``"zero"`` or ``"mean"`` (of all token embeddings). Default ``"mean"`` for
            models with RMSNorm, which has a jump at zero, else ``"zero"``.
        seed: of ``"random"``.
        max_new_tokens: most tokens that the model writes.
        prepend_bos: overrides the model's BOS policy for texts. A BOS is fed, and is on no axis.
        batch_size: rows per chunk; by default what 60 % of the free memory holds and a cancel can wait for.
        progress: called with (done, total) after every chunk.
        check: called before every chunk; raises to cancel.
        on_partial: receives a partial result a few times, NaN where nothing is computed yet.

    Raises:
        ValueError: an unknown method or target, an empty or too long prompt or response, only special tokens, a foil of
            several tokens, or numbers that are not finite.
        MemoryError: a single sequence does not fit.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 4.1 and appendix A; Axiomatic
    Attribution for Deep Networks (Sundararajan et al. 2017), section 3.

    Example:
        >>> result = prompt_saliency(model, "The Eiffel Tower is located in the city of")
        >>> result.importance.shape, result.response_tokens
        ((9, 2), (' Paris', '.'))
        >>> result.prompt_tokens[result.importance[:, 0].argmax()]
        ' of'
    """
    _check_options(method, target, steps, baseline)
    kind = baseline if baseline is not None else default_baseline(model)
    case = make_case(
        model, prompt, response,
        target=target, foil=foil, max_new_tokens=max_new_tokens, prepend_bos=prepend_bos, check=check,
    )  # fmt: skip
    told: dict[str, Any] = {"method": method, "target": target, "bos": case.offset == 1}
    told |= {"foil": case.foil} if case.foil is not None else {}
    told |= {"steps": steps, "baseline": kind} if method == "integrated_gradients" else {}
    told |= {"seed": seed} if method == "random" else {}
    shape = (case.n_prompt, case.n_response)
    double = torch.float64 if model.dtype == torch.float64 else torch.float32
    importance = torch.full(shape, math.nan, dtype=double, device=model.device)
    probability = case.probability(case.clean())
    runner = Runner(model, case.n_fed, batch_size, check, progress)
    if on_partial is not None and method != "integrated_gradients":  # a part of the steps is not a part of the matrix
        runner.deliver = lambda: on_partial(
            _result(case, to_numpy(importance), probability, method, kind, None, told, partial=True)
        )
    gap: Tensor | None = None
    match method:
        case "exact":
            occlusion(case, runner, importance)
        case "first_order":
            first_order(case, runner, importance)
        case "integrated_gradients":
            gap = integrated_gradients(case, runner, importance, steps=steps, baseline=kind)
        case "random":
            importance = torch.from_numpy(np.random.default_rng(seed).random(shape))
    told |= {"largest_chunk": runner.log.largest, "chunk_halvings": runner.log.halvings}
    found = to_numpy(importance)
    _check_finite(case, found, probability)
    return _result(case, found, probability, method, kind, None if gap is None else to_numpy(gap), told)


def _check_options(method: str, target: str, steps: int, baseline: str | None) -> None:
    for name, value, allowed in (
        ("method", method, get_args(Method)),
        ("target", target, get_args(Target)),
        ("baseline", baseline, (*get_args(Baseline), None)),
    ):
        if value not in allowed:
            listed = ", ".join(repr(option) for option in allowed if option is not None)
            raise ValueError(f"{name} must be one of {listed}, got {value!r}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")


def _check_finite(case: Case, importance: NDArray[np.floating[Any]], probability: NDArray[np.floating[Any]]) -> None:
    """NaN and infinity are an error that says where they begin."""
    tokens = case.model.token_strings(case.response_ids)
    advice = "look for broken weights, an edit by a hook, or half precision that overflows"
    bad = np.flatnonzero(~np.isfinite(probability))
    if bad.size:
        m = int(bad[0])
        raise ValueError(f"the model's probability of response token {m} ({tokens[m]!r}) is not a number: {advice}")
    places = np.argwhere(~np.isfinite(importance))
    if places.size:
        n, m = (int(i) for i in places[0])
        word = case.model.token_strings(case.prompt_ids[case.offset :])[n]
        raise ValueError(
            f"the importance of prompt token {n} ({word!r}) for response token {m} ({tokens[m]!r}) is not finite, "
            f"like {len(places)} of {importance.size} in all: {advice}"
        )


def _result(
    case: Case,
    importance: NDArray[np.floating[Any]],
    probability: NDArray[np.floating[Any]],
    method: str,
    baseline: str,
    gap: NDArray[np.floating[Any]] | None,
    told: Mapping[str, Scalar],
    *,
    partial: bool = False,
) -> SaliencyResult:
    model, shown = case.model, case.prompt_ids[case.offset :]
    return SaliencyResult(
        importance=importance.copy(),
        # tokens of the prompt are shown whole, also where the response completes a character
        prompt_tokens=model.token_strings(shown),
        response_tokens=model.token_strings(case.response_ids),
        prompt_ids=shown,
        response_ids=case.response_ids,
        prompt_special=tuple(model.is_special(shown)),
        probability=probability,
        method=method,
        target=case.aim.target,
        foil=case.foil,
        baseline=baseline if method == "integrated_gradients" else "zero",
        completeness_gap=gap,
        bos_id=case.prompt_ids[0] if case.offset else None,
        prompt_spans=case.spans,
        partial=partial,
        provenance=provenance(model.provenance(), **told),
    )
