"""Saliency is what it says: equal to loops, the authors' numbers and Captum; faults end in a clear sentence."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core import chunks
from interp_widgets.analysis.saliency import (
    SaliencyResult,
    faithfulness,
    prompt_saliency,
    rank_agreement,
    saliency_cost,
)
from interp_widgets.analysis.saliency.methods import prefers_forward
from interp_widgets.arguments import checked
from interp_widgets.models import Model, load_model
from tests.models.tiny import HALF_SEED, tiny_config, tiny_hf, tiny_model
from tests.tolerances import SINGLE, limit

PROMPT = [5, 17, 300, 44, 8, 261, 99]
RESPONSE = [30, 31, 7, 120, 77]
TARGETS = ("probability", "log_prob", "logit", "logit_difference")
FOIL = 40
HOOKED = pytest.mark.hooked
MODELS = [
    pytest.param(("gpt2", "hooked"), marks=HOOKED),
    pytest.param(("llama", "hooked"), marks=HOOKED),
    pytest.param(("gpt_neox", "hooked"), marks=HOOKED),
    ("gpt2", "bridge"),
    ("llama", "bridge"),
    ("gpt_neox", "bridge"),
    ("gemma2", "bridge"),
]


def relative(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Largest difference against the largest number."""
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def saliency(model: Model, method: str = "exact", target: str = "probability", **options: Any) -> SaliencyResult:
    foil = FOIL if target == "logit_difference" else None
    return prompt_saliency(model, PROMPT, RESPONSE, method=method, target=target, foil=foil, **options)


# ---- the straightforward way, through the TransformerLens model alone


def plain_logits(model: Model, embeddings: Tensor) -> Tensor:
    ids = torch.tensor([PROMPT + RESPONSE[:-1]])
    with model.tl_model.hooks(fwd_hooks=[("hook_embed", lambda value, hook: embeddings)]):
        logits: Tensor = model.tl_model(ids)
    return logits


def aimed(logits: Tensor, target: str) -> Tensor:
    """(response,) targets from logits (1, fed, d_vocab)."""
    here = logits[0, len(PROMPT) - 1 :]
    index = torch.arange(len(RESPONSE)), torch.tensor(RESPONSE)
    if target == "probability":
        return here.softmax(-1)[index]
    if target == "log_prob":
        return here.log_softmax(-1)[index]
    return here[index] - (here[:, FOIL] if target == "logit_difference" else 0)


def loop_exact(model: Model, target: str) -> NDArray[Any]:
    embeddings = model.token_embeddings(PROMPT + RESPONSE[:-1])[None]
    full, rows = aimed(plain_logits(model, embeddings), target), []
    for n in range(len(PROMPT)):
        zeroed = embeddings.clone()
        zeroed[0, n] = 0
        rows.append(full - aimed(plain_logits(model, zeroed), target))
    return torch.stack(rows).detach().numpy()


def loop_gradient(model: Model, target: str) -> NDArray[Any]:
    embeddings = model.token_embeddings(PROMPT + RESPONSE[:-1])[None].requires_grad_(True)
    values, columns = aimed(plain_logits(model, embeddings), target), []
    for value in values:
        (gradient,) = torch.autograd.grad(value, embeddings, retain_graph=True)
        columns.append((gradient * embeddings)[0, : len(PROMPT)].sum(-1).detach())
    return torch.stack(columns, dim=1).numpy()


@pytest.mark.seconds
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("place", MODELS, ids="-".join)
def test_exact_equals_a_loop_of_plain_forward_passes(place: tuple[str, str], target: str) -> None:
    single, double = (tiny_model(*place, dtype=dtype) for dtype in (torch.float32, torch.float64))
    floor = limit(double, single=SINGLE)
    assert relative(saliency(double, "exact", target).importance, loop_exact(double, target)) < floor
    assert relative(saliency(single, "exact", target).importance, loop_exact(single, target)) < SINGLE


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("place", MODELS, ids="-".join)
def test_first_order_equals_one_backward_pass_per_token(place: tuple[str, str], target: str) -> None:
    single, double = (tiny_model(*place, dtype=dtype) for dtype in (torch.float32, torch.float64))
    floor = limit(double, single=SINGLE)
    assert relative(saliency(double, "first_order", target).importance, loop_gradient(double, target)) < floor
    # rounding of gradients: autograd itself is as far from float64 in these random models
    assert relative(saliency(single, "first_order", target).importance, loop_gradient(single, target)) < SINGLE


def test_the_two_methods_differ() -> None:
    model = tiny_model("llama")
    assert relative(saliency(model, "exact").importance, saliency(model, "first_order").importance) > 0.1


# ---- against others


@pytest.mark.seconds
@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=HOOKED), "bridge"])
def test_the_authors_numbers_on_the_tiny_llama(reference_data: Path, backend: str) -> None:
    data = np.load(reference_data / "tiny_llama_reference.npz", allow_pickle=False)
    from transformers import LlamaConfig, LlamaForCausalLM

    hf = LlamaForCausalLM(LlamaConfig.from_dict(json.loads(str(data["config_json"]))))
    hf.load_state_dict({name[2:]: torch.from_numpy(data[name]) for name in data.files if name.startswith("w:")})
    model = load_model(hf, backend=backend)
    for i in range(3):
        prompt = [1, *data[f"input_ids_{i}"].tolist()]  # the authors' code feeds the BOS, id 1
        result = prompt_saliency(model, prompt, data[f"output_ids_{i}"].tolist(), method="first_order")
        importance = result.importance[-len(prompt) + 1 :]  # without a tokenizer nobody knows that id 1 is the BOS
        np.testing.assert_allclose(importance, data[f"importance_{i}"], atol=1e-6)
        np.testing.assert_allclose(result.probability, data[f"conf_{i}"], atol=1e-6)
        np.testing.assert_allclose(result.density()[1:], data[f"density_{i}"], atol=1e-6)
        exact = prompt_saliency(model, prompt, data[f"output_ids_{i}"].tolist()).importance[1:]
        assert np.abs(exact - data[f"importance_{i}"]).max() > 1e-3  # it is the first-order form that they compute


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_first_order_is_captums_input_x_gradient(family: str) -> None:
    from captum.attr import InputXGradient

    hf, model = tiny_hf(family), tiny_model(family)

    def probabilities(embeddings: Tensor) -> Tensor:
        logits = hf(inputs_embeds=embeddings).logits
        return logits[:, len(PROMPT) - 1 :].softmax(-1)[:, torch.arange(len(RESPONSE)), RESPONSE]

    embeddings = hf.get_input_embeddings()(torch.tensor([PROMPT + RESPONSE[:-1]])).detach().requires_grad_(True)
    columns = [InputXGradient(probabilities).attribute(embeddings, target=m)[0] for m in range(len(RESPONSE))]
    captum = torch.stack(columns, dim=1)[: len(PROMPT)].sum(-1).detach().numpy()
    assert relative(saliency(model, "first_order").importance, captum) < SINGLE


@HOOKED
def test_both_are_the_same_on_a_linear_model() -> None:
    """Attention only, no norm, one pattern whatever the input: the logits are linear in the token embeddings."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    cfg = HookedTransformerConfig(
        n_layers=2, d_model=16, n_ctx=32, d_head=4, n_heads=4, d_vocab=400, attn_only=True,
        normalization_type=None, seed=1, init_weights=True, dtype=torch.float64, initializer_range=0.3,
    )  # fmt: skip
    inner = HookedTransformer(cfg, move_to_device=False).eval()
    torch.nn.init.zeros_(inner.b_U)
    with torch.no_grad():
        for block in inner.blocks:
            block.attn.W_Q.zero_()  # every query sees all keys alike
            block.attn.b_Q.zero_()
    model = load_model(inner)
    for target in ("logit", "logit_difference"):
        exact, first = (saliency(model, method, target).importance for method in ("exact", "first_order"))
        assert relative(exact, first) < 1e-12
    exact, first = (saliency(model, method, "probability").importance for method in ("exact", "first_order"))
    assert relative(exact, first) > 1e-3  # the softmax is not linear


# ---- modes, chunks, types


@pytest.mark.seconds
def test_forward_mode_and_reverse_mode_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "interp_widgets.analysis.saliency.methods.prefers_forward"
    for family, backend in (("gpt2", "auto"), ("llama", "auto"), ("llama", "bridge")):
        model, found = tiny_model(family, backend, dtype=torch.float64), []
        for mode in (True, False):
            monkeypatch.setattr(place, lambda n, m, mode=mode: mode)
            found.append(saliency(model, "first_order").importance)
        assert relative(*found) < limit(model, single=SINGLE)


def test_the_shorter_side_decides_the_mode() -> None:
    assert prefers_forward(32, 200)
    assert not prefers_forward(200, 32)


def test_without_forward_mode_reverse_mode_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from interp_widgets.models.engine.jacobian import NativeJacobian, NoForwardMode

    model = tiny_model("llama", dtype=torch.float64)
    wanted = prompt_saliency(model, PROMPT[:2], RESPONSE, method="first_order").importance

    def refuse(self: Any, tangents: Tensor, at: Tensor) -> Tensor:
        raise NoForwardMode("no forward-mode derivative")

    monkeypatch.setattr(NativeJacobian, "jvp", refuse)
    found = prompt_saliency(model, PROMPT[:2], RESPONSE, method="first_order").importance
    assert relative(found, wanted) < limit(model, single=SINGLE)


@pytest.mark.parametrize("method", ["exact", "first_order", "integrated_gradients"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_batch_size_changes_nothing(family: str, method: str) -> None:
    model = tiny_model(family)
    options = {"steps": 4} if method == "integrated_gradients" else {}
    results = [saliency(model, method, batch_size=size, **options) for size in (1, 3, None)]
    for result in results[1:]:
        assert relative(result.importance, results[0].importance) < SINGLE
    assert [result.provenance["largest_chunk"] for result in results][:2] == [1, 3]


@pytest.mark.seconds
def test_half_precision_runs_and_says_so() -> None:
    model, full = (tiny_model("llama", dtype=kind, seed=HALF_SEED) for kind in (torch.bfloat16, torch.float32))
    wanted = {method: saliency(full, method).importance for method in ("exact", "first_order")}
    for method, matrix in wanted.items():
        result = saliency(model, method)
        assert result.provenance["dtype"] == "bfloat16"
        assert result.importance.dtype == np.float32  # summed in float32
        assert np.corrcoef(result.importance.ravel(), matrix.ravel())[0, 1] > 0.9


@pytest.mark.seconds
@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=HOOKED), "bridge"])
def test_baselines_and_spans_run_in_half_precision(backend: str) -> None:
    model, full = (tiny_model("llama", backend, dtype=kind, seed=HALF_SEED) for kind in (torch.bfloat16, torch.float32))
    every: list[dict[str, Any]] = [
        {"baseline": "mean"}, {"baseline": "resample", "draws": 3}, {"spans": [(0, 3), (3, 7), (2, 5)]},
    ]  # fmt: skip
    for options in every:
        result, wanted = saliency(model, **options), saliency(full, **options)
        assert result.importance.dtype == np.float32
        assert np.corrcoef(result.importance.ravel(), wanted.importance.ravel())[0, 1] > 0.9


@pytest.mark.parametrize("target", TARGETS)
def test_blocks_of_the_vocabulary_change_nothing(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from interp_widgets.analysis._core import targets

    model = tiny_model("llama", dtype=torch.float64)
    allowed = limit(model, single=SINGLE)
    whole = saliency(model, "exact", target)
    monkeypatch.setattr(targets, "_COLUMNS", 50)  # response ids and the foil lie in different blocks
    monkeypatch.setattr(targets, "_BLOCK", {"cpu": 16 * model.d_vocab})
    blocks = saliency(model, "exact", target)
    assert relative(blocks.importance, whole.importance) < allowed
    assert relative(blocks.probability, whole.probability) < allowed


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_rounding_is_of_the_size_of_the_errors(family: str, target: str) -> None:
    single, double = (
        saliency(tiny_model(family, dtype=dtype), target=target) for dtype in (torch.float32, torch.float64)
    )
    errors = np.abs(single.importance - double.importance) / single.rounding
    assert 1e-3 < np.median(errors) < 2  # neither far below nor far above what rounding does
    assert errors.max() < 50
    if target == "probability":
        np.testing.assert_allclose(single.rounding, 16 * 2**-23 * single.probability, rtol=1e-6)


def test_what_rounding_makes_is_told_from_what_the_model_does() -> None:
    kinds = (torch.float32, torch.bfloat16)
    single, half = (saliency(tiny_model("llama", dtype=kind, seed=HALF_SEED)) for kind in kinds)
    assert half.rounding / single.rounding == pytest.approx(2**16 * half.probability / single.probability)
    assert half.below_rounding.sum() > single.below_rounding.sum()
    assert not single.below_rounding.all()
    faint = np.where(np.eye(len(PROMPT), len(RESPONSE)) > 0, 0.5 * single.rounding, 2 * single.rounding)
    marked = replace(single, importance=-faint).below_rounding
    assert np.array_equal(marked, np.eye(len(PROMPT), len(RESPONSE)) > 0)
    unknown = replace(single, rounding=None)
    assert not unknown.below_rounding.any()
    assert saliency(tiny_model("llama"), "random").rounding is None


# ---- integrated gradients and random


@pytest.mark.slow
@pytest.mark.parametrize(("family", "baseline"), [("gpt2", "zero"), ("llama", "mean")])
def test_integrated_gradients_become_complete(family: str, baseline: str) -> None:
    model = tiny_model(family, dtype=torch.float64)
    found = {steps: saliency(model, "integrated_gradients", "log_prob", steps=steps) for steps in (8, 64, 256)}
    gaps = [float(np.abs(found[steps].completeness_gap).max()) for steps in (8, 64, 256)]
    assert gaps[2] < gaps[0] / 50
    assert gaps[2] < 1e-2 * np.abs(found[256].importance).max()
    assert found[8].baseline == baseline == found[8].provenance["baseline"]
    assert saliency(model, "exact").completeness_gap is None


def test_integrated_gradients_by_hand() -> None:
    model = tiny_model("gpt2", dtype=torch.float64)
    embeddings = model.token_embeddings(PROMPT + RESPONSE[:-1])[None]
    total = 0.0
    for step in range(3):
        point = embeddings.clone()
        point[:, : len(PROMPT)] *= (step + 0.5) / 3
        point.requires_grad_(True)
        (gradient,) = torch.autograd.grad(aimed(plain_logits(model, point), "probability")[2], point)
        total = total + gradient / 3
    wanted = (total * embeddings)[0, : len(PROMPT)].sum(-1).numpy()
    assert relative(saliency(model, "integrated_gradients", steps=3).importance[:, 2], wanted) < 1e-10


def test_the_baseline_can_be_chosen() -> None:
    model = tiny_model("llama")
    mean, zero = (saliency(model, "integrated_gradients", steps=4, baseline=name) for name in (None, "zero"))
    assert (mean.baseline, zero.baseline) == ("mean", "zero")
    assert relative(mean.importance, zero.importance) > 1e-2


def loop_replaced(model: Model, target: str, replaced: Tensor) -> NDArray[Any]:
    """(prompt, draws, response) one plain pass per prompt token and what it is replaced by (draws, prompt, d_model)."""
    embeddings = model.token_embeddings(PROMPT + RESPONSE[:-1])[None]
    full = aimed(plain_logits(model, embeddings), target)
    found = np.empty((len(PROMPT), len(replaced), len(RESPONSE)))
    for n in range(len(PROMPT)):
        for draw, row in enumerate(replaced):
            other = embeddings.clone()
            other[0, n] = row[n]
            found[n, draw] = (full - aimed(plain_logits(model, other), target)).detach().numpy()
    return found


def drawn(model: Model, draws: int, seed: int) -> Tensor:
    """(draws, prompt, d_model) embeddings of tokens drawn from the vocabulary, special ones left out."""
    plain = [i for i, special in enumerate(model.is_special(range(model.d_vocab))) if not special]
    ids = np.random.default_rng(seed).choice(plain, (draws, len(PROMPT)))
    return torch.stack([model.token_embeddings(row.tolist()) for row in ids])


@pytest.mark.seconds
@pytest.mark.parametrize("target", ["probability", "log_prob"])
@pytest.mark.parametrize("place", MODELS, ids="-".join)
def test_exact_with_another_baseline_equals_the_loop(place: tuple[str, str], target: str) -> None:
    single, double = (tiny_model(*place, dtype=dtype) for dtype in (torch.float32, torch.float64))
    for model, floor in ((double, limit(double, single=SINGLE)), (single, SINGLE)):
        every = model.token_embeddings(range(128))
        vocabulary = torch.cat([every, *(model.token_embeddings(range(i, min(i + 128, model.d_vocab)))
                                         for i in range(128, model.d_vocab, 128))])  # fmt: skip
        mean = vocabulary.mean(0).expand(1, len(PROMPT), -1)
        found = saliency(model, "exact", target, baseline="mean")
        assert (found.baseline, found.provenance["baseline"], found.spread) == ("mean", "mean", None)
        assert relative(found.importance, loop_replaced(model, target, mean)[:, 0]) < floor
        wanted = loop_replaced(model, target, drawn(model, 3, 5))
        found = saliency(model, "exact", target, baseline="resample", draws=3, seed=5)
        assert (found.baseline, found.provenance["draws"], found.provenance["seed"]) == ("resample", 3, 5)
        assert relative(found.importance, wanted.mean(1)) < floor
        assert relative(found.spread, wanted.std(1, ddof=1)) < 3 * floor
        # the control: the baselines and the seeds are told apart
        zero, other = (saliency(model, "exact", target, **options).importance
                       for options in ({}, {"baseline": "resample", "draws": 3, "seed": 6}))  # fmt: skip
        assert min(relative(found.importance, zero), relative(found.importance, other)) > 1e-2


def test_a_baseline_is_one_notion_for_both_methods() -> None:
    """From a baseline to the embedding along a straight line: for a linear target integrated gradients are exact."""
    model = tiny_model("gpt2", dtype=torch.float64)
    one = saliency(model, "integrated_gradients", steps=4, baseline="resample", draws=1, seed=2)
    both = saliency(model, "integrated_gradients", steps=4, baseline="resample", draws=2, seed=2)
    embeddings = model.token_embeddings(PROMPT + RESPONSE[:-1])[None]
    starts, found = drawn(model, 2, 2), []
    for start in starts:
        total = 0.0
        for step in range(4):
            point = embeddings.clone()
            point[0, : len(PROMPT)] = start + (step + 0.5) / 4 * (embeddings[0, : len(PROMPT)] - start)
            point.requires_grad_(True)
            (gradient,) = torch.autograd.grad(aimed(plain_logits(model, point), "probability")[2], point)
            total = total + gradient[0, : len(PROMPT)] / 4
        found.append((total * (embeddings[0, : len(PROMPT)] - start)).sum(-1).numpy())
    assert relative(both.importance[:, 2], np.mean(found, axis=0)) < 1e-10
    assert relative(both.spread[:, 2], np.std(found, axis=0, ddof=1)) < 1e-9
    assert one.spread is None
    assert one.baseline == both.baseline == "resample"


def test_replacing_a_token_by_itself_does_nothing() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    from interp_widgets.analysis.saliency import methods

    own = model.token_embeddings(PROMPT)[None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "mean_embedding", lambda model: own)
        assert np.abs(saliency(model, baseline="mean").importance).max() < limit(model)


def test_partial_results_of_draws_hold_whole_tokens_only() -> None:
    parts: list[SaliencyResult] = []
    options: dict[str, Any] = {"baseline": "resample", "draws": 3, "seed": 1}
    whole = saliency(tiny_model("llama"), batch_size=2, on_partial=parts.append, **options)
    for part in parts:
        known = np.isfinite(part.importance)
        assert not known.all()
        np.testing.assert_allclose(part.importance[known], whole.importance[known], atol=1e-6)
        assert np.array_equal(np.isfinite(part.spread), known)
    assert parts


def test_random_is_repeatable_by_its_seed() -> None:
    model = tiny_model("gpt2")
    one, same, other = (saliency(model, "random", seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.importance, same.importance)
    assert not np.allclose(one.importance, other.importance)
    assert one.provenance["seed"] == 1
    assert np.array_equal(one.probability, saliency(model).probability)


# ---- spans


def loop_spans(model: Model, spans: list[tuple[int, int]], target: str, replaced: Tensor) -> NDArray[Any]:
    """(spans, response) one plain pass per span, its rows replaced by those of ``replaced`` (prompt, d_model)."""
    embeddings = model.token_embeddings(PROMPT + RESPONSE[:-1])[None]
    full, rows = aimed(plain_logits(model, embeddings), target), []
    for start, stop in spans:
        other = embeddings.clone()
        for n in range(start, stop):
            other[0, n] = replaced[n]
        rows.append(full - aimed(plain_logits(model, other), target))
    return torch.stack(rows).detach().numpy()


SPANS = [(0, 3), (2, 4), (3, 7), (0, 7), (5, 6)]
"""Some overlap, one is a token, one the whole prompt."""


@pytest.mark.seconds
@pytest.mark.parametrize("target", ["probability", "logit_difference"])
@pytest.mark.parametrize("place", MODELS, ids="-".join)
def test_spans_equal_the_loop(place: tuple[str, str], target: str) -> None:
    single, double = (tiny_model(*place, dtype=dtype) for dtype in (torch.float32, torch.float64))
    for model, floor in ((double, limit(double, single=SINGLE)), (single, SINGLE)):
        nothing = torch.zeros(len(PROMPT), model.d_model, dtype=model.dtype)
        found = saliency(model, "exact", target, spans=SPANS)
        assert found.spans == tuple(sorted(SPANS))
        assert found.span_rule == "together"
        assert relative(found.importance, loop_spans(model, sorted(SPANS), target, nothing)) < floor
        other = drawn(model, 2, 4)
        wanted = np.stack([loop_spans(model, sorted(SPANS), target, rows) for rows in other])
        resampled = saliency(model, "exact", target, spans=SPANS, baseline="resample", draws=2, seed=4)
        assert relative(resampled.importance, wanted.mean(0)) < floor
        assert relative(resampled.spread, wanted.std(0, ddof=1)) < 3 * floor


@pytest.mark.seconds
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_spans_of_one_token_are_the_token_map(family: str) -> None:
    model = tiny_model(family, dtype=torch.float64)
    ones = [(n, n + 1) for n in range(len(PROMPT))]
    for method in ("exact", "first_order", "integrated_gradients"):
        tokens, spans = (saliency(model, method, spans=cut, steps=3) for cut in (None, ones))
        assert relative(spans.importance, tokens.importance) < limit(model)
        assert spans.prompt_tokens == tokens.prompt_tokens
        assert (tokens.spans, tokens.span_rule) == (None, None)
    for size in (1, 2):  # chunks that begin inside the prompt, with several draws each
        options: dict[str, Any] = {"baseline": "resample", "draws": 3, "batch_size": size}
        tokens, spans = (saliency(model, spans=cut, **options) for cut in (None, ones))
        assert relative(spans.importance, tokens.importance) < limit(model)


def test_the_whole_prompt_is_one_span() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    nothing = torch.zeros(len(PROMPT), model.d_model, dtype=model.dtype)
    found = saliency(model, spans=[(0, len(PROMPT))])
    assert relative(found.importance, loop_spans(model, [(0, len(PROMPT))], "probability", nothing)) < limit(model)
    # together is another quantity than the sum, which is what `by_spans` gives
    summed = saliency(model).by_spans([(0, len(PROMPT))])
    np.testing.assert_allclose(summed.importance[0], saliency(model).importance.sum(0))
    assert relative(found.importance, summed.importance) > 0.1
    # of gradients a span is the sum of its tokens
    first = saliency(model, "first_order", spans=[(0, len(PROMPT))])
    np.testing.assert_allclose(first.importance[0], saliency(model, "first_order").importance.sum(0), atol=1e-12)
    assert first.span_rule == "sum"


def test_within_a_span_are_its_tokens() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    tokens, inside = saliency(model), saliency(model, within=(2, 5))
    assert inside.spans == ((2, 3), (3, 4), (4, 5))
    assert relative(inside.importance, tokens.importance[2:5]) < limit(model)
    assert inside.prompt_tokens == tokens.prompt_tokens[2:5]
    assert inside.prompt_ids == tokens.prompt_ids
    cut = saliency(model, spans=[(0, 3), (3, 7)], within=(2, 5))
    assert cut.spans == ((2, 3), (3, 5))
    told: list[tuple[int, int]] = []
    saliency(model, within=(2, 5), batch_size=1, progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_spans_of_text_keep_its_characters_and_marks(tmp_path: Path) -> None:
    model, text = tiny_model("llama"), "Answer the question. What is the capital of France?"
    for method in ("exact", "first_order", "random"):
        found = prompt_saliency(model, text, " Paris", method=method, spans="sentences")
        assert [part.strip() for part in found.prompt_tokens] == [
            "Answer the question.",
            "What is the capital of France?",
        ]
        assert found.importance.shape[0] == 2
        assert found.mask((0, 6)).tolist() == [True, False]
        assert found.density().shape == (2,)
        assert np.isfinite(found.instruction_score(found.mask((0, 6))))
        assert found.to_frame()["prompt_token"].nunique() == 2
        assert SaliencyResult.load(found.save(tmp_path / method)).equals(found)
    words = prompt_saliency(model, text, " Paris", spans="words")
    assert [part.strip() for part in words.prompt_tokens] == [
        "Answer", "the", "question", ".", "What", "is", "the", "capital", "of", "France", "?",
    ]  # fmt: skip
    tokens = prompt_saliency(model, text, " Paris")
    assert tokens.by_spans("words").spans == words.spans
    for how, function in (("sum", np.sum), ("mean", np.mean), ("maximum", np.max)):
        made = tokens.by_spans("words", how=how)
        start, stop = made.spans[2]
        np.testing.assert_array_equal(made.importance[2], function(tokens.importance[start:stop], axis=0))
        assert made.span_rule == how
    with pytest.raises(ValueError, match="by spans already"):
        words.by_spans("sentences")
    with pytest.raises(ValueError, match="faithfulness removes single tokens, this map is by spans"):
        faithfulness(model, words)
    with pytest.raises(ValueError, match="must be of the same prompt and response"):
        rank_agreement(words, tokens)


# ---- axes, text and ids


def test_the_bos_is_fed_but_on_no_axis() -> None:
    model = tiny_model("llama")
    result = prompt_saliency(model, "the city of Paris", " is")
    assert result.bos_id == model.bos_token_id
    assert result.bos_id not in result.prompt_ids
    assert "".join(result.prompt_tokens).strip() == "the city of Paris"
    assert [("the city of Paris")[a:b].strip() for a, b in result.prompt_spans] == [
        t.strip() for t in result.prompt_tokens
    ]
    same = prompt_saliency(model, [model.bos_token_id, *result.prompt_ids], list(result.response_ids))
    assert np.array_equal(same.importance, result.importance)
    assert same.prompt_spans is None
    without = prompt_saliency(model, "the city of Paris", " is", prepend_bos=False)
    assert without.bos_id is None
    assert without.prompt_ids == result.prompt_ids
    assert relative(without.importance, result.importance) > 1e-3


def test_without_a_response_the_model_writes_one() -> None:
    model = tiny_model("gpt2")
    result = prompt_saliency(model, "the city of", max_new_tokens=4)
    assert list(result.response_ids) == model.generate_ids(model.tokens("the city of"), max_new_tokens=4)
    assert np.array_equal(
        result.importance, prompt_saliency(model, "the city of", list(result.response_ids)).importance
    )


def test_generation_stops_at_the_end_of_the_context() -> None:
    model = tiny_model("gpt2")
    assert len(prompt_saliency(model, [5] * 126, max_new_tokens=40, method="random").response_ids) <= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_runner_up_is_the_likeliest_other_token(dtype: torch.dtype) -> None:
    model = tiny_model("llama", dtype=dtype)
    found = prompt_saliency(model, PROMPT, RESPONSE, target="logit_difference", foil="runner_up")
    logits = model.run([*PROMPT, *RESPONSE[:-1]]).logits[0, len(PROMPT) - 1 :].double()
    logits[torch.arange(len(RESPONSE)), torch.tensor(RESPONSE)] = -torch.inf
    assert isinstance(found.foil, tuple)
    assert list(found.foil) == logits.argmax(-1).tolist()
    named = prompt_saliency(model, PROMPT, RESPONSE, target="logit_difference", foil=found.foil)
    np.testing.assert_array_equal(found.importance, named.importance)
    with pytest.raises(ValueError, match="a foil is only used by target='logit_difference'"):
        prompt_saliency(model, PROMPT, RESPONSE, foil="runner_up")


def test_a_saturated_column_is_named() -> None:
    """Three of five tokens that are worth nine tenths of the probability are enough, except under the floor."""
    column = np.array([0.74, 0.0, 0.73, 0.72, 0.1])
    importance = np.stack([column, column * [1, 1, 0, 1, 1], column / 1000], axis=1)
    made = SaliencyResult(
        importance=importance, prompt_tokens=list("abcde"), response_tokens=list("xyz"), prompt_ids=range(5),
        response_ids=range(3), prompt_special=[False] * 5, probability=np.array([0.76, 0.76, 0.00076]), method="exact",
    )  # fmt: skip
    assert made.saturated.tolist() == [True, False, False]
    assert not replace(made, target="logit").saturated.any()
    assert not replace(made, method="random").saturated.any()


def test_a_foil_may_be_text_or_differ_by_token() -> None:
    model = tiny_model("gpt2")
    text = model.token_strings([FOIL])[0]
    by_id = saliency(model, target="logit_difference")
    by_text = prompt_saliency(model, PROMPT, RESPONSE, target="logit_difference", foil=text)
    assert by_text.foil == by_id.foil == FOIL
    assert np.array_equal(by_text.importance, by_id.importance)
    own = prompt_saliency(model, PROMPT, RESPONSE, target="logit_difference", foil=RESPONSE)
    assert np.abs(own.importance).max() == 0  # every token set against itself


def test_results_survive_a_file(tmp_path: Path) -> None:
    result = saliency(tiny_model("llama"), "integrated_gradients", steps=2)
    assert SaliencyResult.load(result.save(tmp_path / "map")).equals(result)
    assert {"model", "weight_hash", "dtype", "backend", "torch"} <= set(result.provenance)


# ---- progress, cancel, memory, flags


class Stop(Exception):
    """What a cancelled run raises."""


@pytest.mark.parametrize("method", ["exact", "first_order", "integrated_gradients"])
def test_progress_runs_to_its_end_and_a_cancel_passes_through(method: str) -> None:
    model, told = tiny_model("llama"), []
    saliency(model, method, batch_size=2, steps=3, progress=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert len({total for _, total in told}) == 1
    assert told[-1][0] == told[-1][1]
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise Stop

    with pytest.raises(Stop):
        saliency(model, method, batch_size=1, steps=3, check=check)
    assert len(calls) == 3


def test_long_rows_come_in_parts_though_one_chunk_would_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, parts = tiny_model("llama", "bridge"), list[SaliencyResult]()
    whole = saliency(model, on_partial=parts.append)
    assert not parts, "a short prompt is one chunk"
    monkeypatch.setattr(chunks, "_PART_TOKENS", 1)
    found = saliency(model, on_partial=parts.append)
    np.testing.assert_allclose(found.importance, whole.importance, atol=limit(model))
    assert [int(np.isfinite(part.importance[:, 0]).sum()) for part in parts] == [2, 4, 6]


@pytest.mark.parametrize("method", ["exact", "first_order"])
def test_partial_results_say_what_they_lack(method: str) -> None:
    parts: list[SaliencyResult] = []
    whole = saliency(tiny_model("llama"), method, batch_size=1, on_partial=parts.append)
    assert 1 <= len(parts) <= 5
    known = [np.isfinite(part.importance) for part in parts]
    assert [int(k.sum()) for k in known] == sorted({int(k.sum()) for k in known})
    assert all(part.partial and not k.all() for part, k in zip(parts, known, strict=True))
    np.testing.assert_allclose(parts[-1].importance[known[-1]], whole.importance[known[-1]], atol=1e-7)
    assert not whole.partial


@pytest.mark.seconds
@pytest.mark.parametrize("method", ["exact", "first_order"])
def test_out_of_memory_halves_the_chunk(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    wanted = saliency(model, method).importance
    from interp_widgets.analysis.saliency import methods
    from interp_widgets.models.engine.jacobian import NativeJacobian

    def greedy(function: Callable[..., Tensor], rows: Callable[..., int]) -> Callable[..., Tensor]:
        def limited(*args: Any, **options: Any) -> Tensor:
            if rows(*args) > 2:
                raise RuntimeError(
                    "[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"
                )
            return function(*args, **options)

        return limited

    monkeypatch.setattr(methods, "encode", greedy(methods.encode, lambda model, rest: len(rest)))
    monkeypatch.setattr(NativeJacobian, "vjp", greedy(NativeJacobian.vjp, lambda self, seeds, at: seeds.shape[1]))
    result = saliency(model, method, batch_size=5)
    assert result.provenance["chunk_halvings"] == 1
    assert result.provenance["largest_chunk"] == 2
    assert relative(result.importance, wanted) < SINGLE
    monkeypatch.setattr(methods, "encode", greedy(methods.encode, lambda model, rest: 99))
    monkeypatch.setattr(NativeJacobian, "vjp", greedy(NativeJacobian.vjp, lambda self, seeds, at: 99))
    with pytest.raises(MemoryError, match="one sequence of 11 tokens does not fit"):
        saliency(model, method)


@pytest.mark.seconds
def test_out_of_memory_halves_the_points_of_integrated_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    from interp_widgets.models.engine.jacobian import NativeJacobian

    model, points = tiny_model("llama", dtype=torch.float64), []
    wanted = saliency(model, "integrated_gradients", steps=7, batch_size=1)
    plain = NativeJacobian.vjp

    def limited(self: Any, seeds: Tensor, at: Any) -> Tensor:
        if len(seeds) > 2:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes")
        points.append(len(seeds))
        return plain(self, seeds, at)

    monkeypatch.setattr(NativeJacobian, "vjp", limited)
    found = saliency(model, "integrated_gradients", steps=7)
    assert points == [1] * 7, "7, then 3, then one at a time"
    assert relative(found.importance, wanted.importance) < limit(model, single=1e-5)
    assert relative(found.completeness_gap, wanted.completeness_gap) < 1e-6


@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=HOOKED), "bridge"])
def test_the_users_model_stays_as_it_was(backend: str) -> None:
    model = load_model(tiny_hf("llama"), backend=backend)
    parameters = list(model.tl_model.parameters())
    parameters[1].requires_grad_(False)
    parameters[2].grad = torch.ones_like(parameters[2])
    flags = [p.requires_grad for p in parameters]
    kept = model.tl_model.hook_dict["blocks.0.hook_mlp_out"]
    seen: list[int] = []
    kept.add_hook(lambda value, hook: (seen.append(1), value)[1], is_permanent=True)
    for method in ("exact", "first_order", "integrated_gradients"):
        saliency(model, method, steps=2)
    assert seen
    assert [p.requires_grad for p in parameters] == flags
    assert [i for i, p in enumerate(parameters) if p.grad is not None] == [2]
    assert torch.equal(parameters[2].grad, torch.ones_like(parameters[2]))
    assert [name for name, point in model.tl_model.hook_dict.items() if point.fwd_hooks] == [
        name for name, point in model.tl_model.hook_dict.items() if point is kept
    ]


@pytest.mark.seconds
@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=HOOKED), "bridge"])
def test_a_permanent_hook_changes_the_saliency(backend: str) -> None:
    model = load_model(tiny_hf("gpt2", dtype=torch.float64), backend=backend, dtype=torch.float64)
    before = {method: saliency(model, method).importance for method in ("exact", "first_order")}
    model.tl_model.hook_dict["blocks.1.hook_attn_out"].add_hook(lambda value, hook: value * 0.2, is_permanent=True)
    for method, loop in (("exact", loop_exact), ("first_order", loop_gradient)):
        found = saliency(model, method).importance
        assert relative(found, loop(model, "probability")) < 1e-10
        assert relative(found, before[method]) > 1e-2


# ---- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": ""}, "prompt is empty|only special tokens"),
        ({"prompt": []}, "the prompt is empty: write at least one word"),
        ({"prompt": [1, 1]}, "only special tokens"),
        ({"prompt": "<s></s>"}, "only special tokens"),
        ({"response": ""}, "the response is empty"),
        ({"response": []}, "the response is empty"),
        ({"prompt": [5] * 130, "response": [5]}, "the prompt has 130 tokens .* shorten it by at least 3"),
        ({"prompt": [5] * 130, "response": None}, "the prompt has 130 tokens"),
        (
            {"prompt": [5] * 100, "response": [5] * 40},
            r"prompt \(100 tokens\) and response \(40\) are 12 tokens longer",
        ),
        ({"response": [5, 100_000]}, "token ids must be in 0.."),
        ({"prompt": [-1, 5]}, "token ids must be in 0.."),
        (
            {"method": "magic"},
            "method must be 'exact', 'first_order', 'integrated_gradients' or 'random', got 'magic'",
        ),
        (
            {"target": "loss"},
            "target must be 'probability', 'log_prob', 'logit' or 'logit_difference', got 'loss'",
        ),
        ({"baseline": "black"}, "baseline must be 'zero', 'mean', 'resample' or None, got 'black'"),
        (
            {"baseline": "mean", "method": "first_order"},
            "baseline 'mean' is for method='exact' and 'integrated_gradients', got method='first_order': leave it out",
        ),
        ({"draws": 0}, "draws must be 1 or more, got 0"),
        ({"spans": "lines"}, "spans must be 'words', 'sentences', 'passages', 'roles' or 'turns', got 'lines'"),
        ({"spans": "roles"}, "spans='roles' needs the prompt as a list of messages, each with a role and a content"),
        ({"spans": []}, r"spans must not be empty: give \[start, end\) tokens of each, 'words' or 'sentences'"),
        ({"spans": [(2, 9)]}, r"a span must be \(start, end\) .* <= 7 for this prompt of 7 tokens, got \(2, 9\)"),
        ({"within": (5, 5)}, r"within must be \(start, end\) with 0 <= start < end <= 7"),
        ({"spans": [(0, 2)], "within": (5, 7)}, "none of the spans overlaps within="),
        ({"steps": 0}, "steps must be 1 or more, got 0"),
        ({"batch_size": 0}, "batch_size must be an int >= 1 or None, got 0"),
        ({"target": "logit_difference"}, "needs a foil"),
        ({"target": "logit_difference", "foil": "Eiffel Tower xyz"}, "the foil must be one token, .* is [0-9]+ "),
        ({"target": "logit_difference", "foil": 100_000}, "the foil must be in 0.."),
        ({"target": "logit_difference", "foil": [3, 4]}, r"one per response token \(5\), got 2"),
        ({"foil": 7}, "a foil is only used by target='logit_difference'"),
        ({"response": None, "max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
    ],
)
def test_bad_input_is_one_clear_sentence(arguments: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"prompt": PROMPT, "response": RESPONSE, **arguments}
    with pytest.raises(ValueError, match=message):
        # unwrapped: the type checker of the tests would refuse some of these before the function does
        checked(inspect.unwrap(prompt_saliency))(
            tiny_model("llama"), options.pop("prompt"), options.pop("response"), **options
        )


@pytest.mark.parametrize("method", ["exact", "first_order"])
@pytest.mark.parametrize("backend", [pytest.param("hooked", marks=HOOKED), "bridge"])
def test_numbers_that_are_not_finite_are_named(backend: str, method: str) -> None:
    model = load_model(tiny_hf("gpt2"), backend=backend)
    weights = next(p for name, p in model.tl_model.named_parameters() if p.shape == (128, 32))
    weights.data[3, 5] = torch.nan
    with pytest.raises(
        ValueError, match=r"probability of response token 0 \('.*'\) is not finite, as are 5 of 5 in all"
    ):
        saliency(model, method)


def test_one_bad_cell_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from interp_widgets.analysis.saliency import attribution

    def broken(case: Any, runner: Any, effects: Tensor, replaced: Tensor, spans: Any) -> None:
        effects.fill_(1.0)
        effects[2, 0, 3] = torch.inf

    monkeypatch.setattr(attribution, "occlusion", broken)
    with pytest.raises(ValueError, match=r"importance of prompt token 2 \(.*\) for response token 3 .* as are 1 of 35"):
        saliency(tiny_model("gpt2"))


def test_an_immediate_end_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2")
    monkeypatch.setattr(model, "generate_ids", lambda *args, **options: [])
    with pytest.raises(ValueError, match="the model ended its response at once: give a response"):
        prompt_saliency(model, PROMPT)


@pytest.mark.parametrize("text", ["emoji 👩‍👩‍👧 and 🎉", "שלום עולם", "<img onerror=alert(1)>", "a\n\tb"])
def test_any_text_goes_through(text: str) -> None:
    for family in ("gpt2", "llama"):
        result = prompt_saliency(tiny_model(family), text, text, method="first_order")
        assert len(result.prompt_tokens) == result.importance.shape[0]


# ---- forecasts


def test_the_cost_follows_the_work() -> None:
    model = tiny_model("llama")
    costs = {method: saliency_cost(model, 60, 40, method) for method in ("random", "exact", "first_order")}
    assert costs["random"].flops < costs["exact"].flops
    assert saliency_cost(model, 120, 40, "exact").flops > 1.9 * costs["exact"].flops
    assert saliency_cost(model, 60, 40, "integrated_gradients", steps=10).flops == 10 * costs["first_order"].flops
    assert all(cost.bytes > 0 for cost in costs.values())
    once, eight = (saliency_cost(model, 60, 40, "exact", draws=draws).flops for draws in (1, 8))
    clean = saliency_cost(model, 60, 40, "random").flops
    assert eight - clean == pytest.approx(8 * (once - clean))
    third = saliency_cost(model, 60, 40, "exact", spans=20).flops
    assert third - clean == pytest.approx((once - clean) / 3)
    gradients = [saliency_cost(model, 60, 40, "integrated_gradients", steps=3, draws=k).flops for k in (1, 4)]
    assert gradients[1] == 4 * gradients[0]


def test_the_counted_operations_are_those_of_the_weights() -> None:
    from interp_widgets.analysis._core.cost import block_parameters

    for family in ("gpt2", "llama"):
        config = tiny_config(family)
        model = tiny_model(family)
        matrices = [p.numel() for name, p in tiny_hf(family).named_parameters() if p.ndim == 2 and "wte" not in name
                    and "wpe" not in name and "embed" not in name and "lm_head" not in name]  # fmt: skip
        assert block_parameters(model) == pytest.approx(sum(matrices), rel=0.35), config
