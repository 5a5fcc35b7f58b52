"""Faithfulness measures what it says: by hand, with a positive control, and never better than what is possible."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from scipy.stats import t as student

from interp_widgets.analysis.saliency import (
    FaithfulnessResult,
    SaliencyResult,
    faithfulness,
    prompt_saliency,
    rank_agreement,
)
from interp_widgets.models import Model
from tests.models.tiny import tiny_model
from tests.tolerances import limit

PROMPT = [5, 17, 300, 44, 8, 261, 99, 12, 200, 150]
RESPONSE = [30, 31, 7]


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny_model("llama", dtype=torch.float64)


@pytest.fixture(scope="module")
def exact(model: Model) -> SaliencyResult:
    return prompt_saliency(model, PROMPT, RESPONSE)


def probability(model: Model, zeroed: list[int]) -> np.ndarray[Any, Any]:
    """(response,) probabilities with some prompt tokens zeroed, through the TransformerLens model alone."""
    embeddings = model.token_embeddings(PROMPT + RESPONSE[:-1])[None].clone()
    embeddings[0, zeroed] = 0
    with torch.no_grad(), model.tl_model.hooks(fwd_hooks=[("hook_embed", lambda value, hook: embeddings)]):
        logits = model.tl_model(torch.tensor([PROMPT + RESPONSE[:-1]]))
    return logits[0, len(PROMPT) - 1 :].softmax(-1)[torch.arange(3), torch.tensor(RESPONSE)].numpy()


@pytest.mark.parametrize("token", [None, 1])
def test_every_number_by_hand(model: Model, exact: SaliencyResult, token: int | None) -> None:
    error = limit(model)
    found = faithfulness(model, exact, token=token, random_orders=2, seed=3)
    columns = exact.importance / np.abs(exact.importance).max(axis=0)
    order = np.argsort(-(columns.sum(axis=1) if token is None else exact.importance[:, token]))
    assert found.order.tolist() == order.tolist()
    pick = (lambda p: p.mean()) if token is None else (lambda p: p[token])
    full = pick(probability(model, []))
    for i, count in enumerate((1, 1, 1, 2, 5)):
        assert found.comprehensiveness[i] == pytest.approx(
            full - pick(probability(model, order[:count].tolist())), abs=error
        )
        assert found.sufficiency[i] == pytest.approx(full - pick(probability(model, order[count:].tolist())), abs=error)
    assert found.fraction.tolist() == pytest.approx([i / 10 for i in range(11)])
    for count in range(11):
        assert found.deletion[count] == pytest.approx(pick(probability(model, order[:count].tolist())), abs=error)
        assert found.insertion[count] == pytest.approx(pick(probability(model, order[count:].tolist())), abs=error)
    rng = np.random.default_rng(3)
    chance = [rng.permutation(10) for _ in range(2)]
    assert found.random_deletion[1, 4] == pytest.approx(pick(probability(model, chance[1][:4].tolist())), abs=error)
    assert found.random_comprehensiveness[0, 3] == pytest.approx(
        full - pick(probability(model, chance[0][:2].tolist())), abs=error
    )


def test_tokens_are_replaced_by_the_baseline_asked_for(model: Model, exact: SaliencyResult) -> None:
    """Of a map by one baseline the first token's comprehensiveness is its own importance, but by that baseline only."""
    for baseline in ("zero", "mean", "resample"):
        options: Any = {"baseline": baseline, "draws": 3, "seed": 5}
        result = prompt_saliency(model, PROMPT, RESPONSE, **options)
        found = faithfulness(model, result, token=0, percent=(10,), random_orders=1, **options)
        assert found.baseline == baseline
        assert found.comprehensiveness[0] == pytest.approx(result.importance[:, 0].max(), abs=limit(model))
    other = faithfulness(model, result, token=0, percent=(10,), random_orders=1)
    assert other.comprehensiveness[0] != pytest.approx(result.importance[:, 0].max(), abs=1e-6)


def test_curves_share_their_ends(model: Model, exact: SaliencyResult) -> None:
    error = limit(model)
    found = faithfulness(model, exact, percent=(100,))
    assert found.deletion[0] == pytest.approx(found.insertion[-1], abs=error)
    assert found.deletion[-1] == pytest.approx(found.insertion[0], abs=error)
    np.testing.assert_allclose(found.random_deletion[:, 0], found.deletion[0], rtol=0, atol=error)
    assert found.comprehensiveness[0] == pytest.approx(found.deletion[0] - found.deletion[-1], abs=error)
    assert found.sufficiency[0] == pytest.approx(0.0, abs=error)


def test_the_true_order_beats_its_reverse_and_chance(model: Model, exact: SaliencyResult) -> None:
    """Exact saliency of one response token: its first token is by definition the one whose loss costs most."""
    error = limit(model)
    good = faithfulness(model, exact, token=0, percent=(10,), random_orders=20)
    bad = faithfulness(model, replace(exact, importance=-exact.importance), token=0, percent=(10,), random_orders=20)
    assert good.comprehensiveness[0] == pytest.approx(exact.importance[:, 0].max(), abs=error)
    assert bad.comprehensiveness[0] == pytest.approx(exact.importance[:, 0].min(), abs=error)
    assert good.aopc_comprehensiveness > good.random_summary()["aopc_comprehensiveness"][0] > bad.aopc_comprehensiveness


def test_areas_by_hand() -> None:
    zeros, two = np.zeros(1), np.zeros((2, 1))
    found = FaithfulnessResult(
        percent=np.array([10.0]), comprehensiveness=zeros + 0.3, sufficiency=zeros + 0.1,
        random_comprehensiveness=two + 0.2, random_sufficiency=two,
        fraction=np.array([0.0, 0.5, 1.0]), deletion=np.array([1.0, 0.5, 0.0]), insertion=np.array([0.0, 1.0, 1.0]),
        random_deletion=np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]), random_insertion=np.zeros((2, 3)),
        order=np.arange(3), method="exact", target="probability",
    )  # fmt: skip
    assert (found.aopc_comprehensiveness, found.aopc_sufficiency) == pytest.approx((0.3, 0.1))
    assert (found.deletion_area, found.insertion_area) == pytest.approx((0.5, 0.75))
    assert found.random_summary()["deletion_area"] == pytest.approx((0.5, 0.25))


def test_the_advantage_is_students_interval_for_one_more_order() -> None:
    random = np.array([0.2, 0.3, 0.1, 0.25])
    found = made(comprehensiveness=0.6, sufficiency=0.1, random=random)
    mean, low, high = found.advantage()
    half = student.ppf(0.975, 3) * random.std(ddof=1) * np.sqrt(1 + 1 / 4)
    assert (mean, low, high) == pytest.approx((0.6 - 0.2125, 0.3875 - half, 0.3875 + half))
    # of sufficiency less is better
    assert found.advantage("aopc_sufficiency")[0] == pytest.approx(0.2125 - 0.1)
    assert found.advantage("deletion_area")[0] == pytest.approx(0.2125 - 0.1)
    assert found.advantage("insertion_area")[0] == pytest.approx(0.6 - 0.2125)
    assert found.beats_random is True
    assert found.verdict == (
        "better than a random order: without its top tokens the log-probability falls by 0.387 more "
        f"(95% interval {low:+.3g} to {high:+.3g} over 4 random orders)"
    )
    assert made(comprehensiveness=-0.3, sufficiency=0.1, random=random).beats_random is False
    worse = made(comprehensiveness=-0.3, sufficiency=0.1, random=random).verdict
    assert worse.startswith("worse than a random order: without its top tokens the log-probability falls by 0.51")
    alike = made(comprehensiveness=0.25, sufficiency=0.1, random=random)
    assert alike.beats_random is None
    assert alike.verdict.startswith("not told apart from a random order")
    alone = made(comprehensiveness=0.9, sufficiency=0.1, random=random[:1])
    assert alone.beats_random is None
    assert alone.verdict.endswith("falls by 0.7 more (one random order)")
    with pytest.raises(ValueError, match="measure must be 'aopc_comprehensiveness', "):
        inspect.unwrap(FaithfulnessResult.advantage)(found, "speed")


def made(*, comprehensiveness: float, sufficiency: float, random: np.ndarray[Any, Any]) -> FaithfulnessResult:
    """A result whose four numbers are these, those of its random orders all ``random``."""
    line = np.ones((1, 3))
    return FaithfulnessResult(
        percent=np.array([10.0]), comprehensiveness=np.array([comprehensiveness]), sufficiency=np.array([sufficiency]),
        random_comprehensiveness=random[:, None], random_sufficiency=random[:, None],
        fraction=np.array([0.0, 0.5, 1.0]), deletion=np.full(3, sufficiency), insertion=np.full(3, comprehensiveness),
        random_deletion=random[:, None] * line, random_insertion=random[:, None] * line,
        order=np.arange(3), method="exact", target="log_prob",
    )  # fmt: skip


@pytest.mark.seconds
def test_the_verdict_finds_the_true_order_and_its_reverse_and_spares_chance(model: Model) -> None:
    longer = [*PROMPT, 33, 71, 265, 301, 120, 66, 350, 90, 14, 210, 77, 311, 180, 52, 9]
    exact = prompt_saliency(model, longer, RESPONSE, target="logit")
    good = faithfulness(model, exact, random_orders=60)
    bad = faithfulness(model, replace(exact, importance=-exact.importance), random_orders=60)
    assert good.beats_random is True
    assert bad.beats_random is False
    # random orders judged by five others, as a map is by default: one in twenty stands out
    values, rng, judged = good.random_comprehensiveness, np.random.default_rng(0), []
    for _ in range(400):
        own, *others = rng.choice(len(values), 6, replace=False)
        rest = {name: getattr(good, name)[:5] for name in ("random_sufficiency", "random_deletion", "random_insertion")}
        one = replace(good, comprehensiveness=values[own], random_comprehensiveness=values[others], **rest)
        judged.append(one.beats_random is not None)
    assert 0.005 < np.mean(judged) < 0.12


@pytest.mark.parametrize("target", ["log_prob", "logit_difference"])
def test_other_targets_are_measured_in_their_own_units(model: Model, target: str) -> None:
    options = {"foil": 40} if target == "logit_difference" else {}
    result = prompt_saliency(model, PROMPT, RESPONSE, target=target, **options)
    found = faithfulness(model, result, token=2, percent=(10,))
    assert found.comprehensiveness[0] == pytest.approx(result.importance[:, 2].max(), abs=limit(model, single=3e-5))


def test_a_bos_is_never_taken_away() -> None:
    llama = tiny_model("llama")
    result = prompt_saliency(llama, "the city of Paris", " is here")
    found = faithfulness(llama, result, percent=(100,))
    ids = [llama.bos_token_id, *result.prompt_ids]
    embeddings = llama.token_embeddings([*ids, *result.response_ids[:-1]])[None].clone()
    embeddings[0, 1 : len(ids)] = 0
    logits = llama.forward(embeddings, positions=slice(len(ids) - 1, None))[0]
    nothing = logits.softmax(-1)[torch.arange(len(result.response_ids)), torch.tensor(result.response_ids)].mean()
    assert found.deletion[-1] == pytest.approx(float(nothing.detach()), rel=1e-5)


@pytest.mark.seconds
def test_chunks_seeds_and_files(model: Model, exact: SaliencyResult, tmp_path: Path) -> None:
    one, same = faithfulness(model, exact, seed=1), faithfulness(model, exact, seed=1, batch_size=1)
    np.testing.assert_allclose(one.random_deletion, same.random_deletion, rtol=0, atol=limit(model))
    assert not np.allclose(one.random_deletion, faithfulness(model, exact, seed=2).random_deletion)
    assert FaithfulnessResult.load(one.save(tmp_path / "check")).equals(one)
    frame = one.to_frame()
    assert set(frame["curve"]) == {"comprehensiveness", "sufficiency", "deletion", "insertion"}
    assert len(frame) == 5 + 5 + 11 + 11


def test_a_cancel_passes_through(model: Model, exact: SaliencyResult) -> None:
    class Stop(Exception):
        pass

    told: list[tuple[int, int]] = []

    def check() -> None:
        if len(told) == 2:
            raise Stop

    with pytest.raises(Stop):
        faithfulness(model, exact, batch_size=3, check=check, progress=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == [3, 6]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token": 3}, r"token must be in -3\.\.2 for this response of 3 tokens, got 3"),
        ({"percent": (0,)}, "percent must be one or more shares above 0 and up to 100"),
        ({"percent": ()}, "percent must be one or more shares"),
        ({"steps": 0}, "steps must be 1 or more, got 0"),
        ({"random_orders": 0}, "random_orders must be 1 or more, got 0"),
    ],
)
def test_bad_options_are_refused(model: Model, exact: SaliencyResult, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(faithfulness)(model, exact, **options)


def test_a_partial_result_is_refused(model: Model, exact: SaliencyResult) -> None:
    with pytest.raises(ValueError, match="this one is partial"):
        faithfulness(model, replace(exact, partial=True))


def test_rank_agreement_is_spearmans(model: Model, exact: SaliencyResult) -> None:
    other = prompt_saliency(model, PROMPT, RESPONSE, method="random", seed=4)
    found = rank_agreement(other, exact)
    wanted = [spearmanr(other.importance[:, m], exact.importance[:, m])[0] for m in range(3)]
    np.testing.assert_allclose(found.per_token, wanted)
    assert found.mean == pytest.approx(np.mean(wanted))
    assert rank_agreement(exact, exact).mean == pytest.approx(1.0)
    flat = exact.importance.copy()
    flat[:, 0] = 1.0
    constant = rank_agreement(replace(exact, importance=flat), exact)
    assert np.isnan(constant.per_token[0])
    assert constant.mean == pytest.approx(1.0)
    with pytest.raises(ValueError, match="same prompt and response"):
        rank_agreement(exact, prompt_saliency(model, PROMPT[1:], RESPONSE))
