"""Kept hidden states and steering beside two controls: the same numbers as without, and nothing read twice."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from interp_widgets.analysis.concepts import ConceptSet, concept_directions, erase, state_cache, steer
from interp_widgets.analysis.concepts.state_cache import HiddenStateCache
from interp_widgets.analysis.concepts.steered import (
    SteeringComparison,
    SteeringSweep,
    compare_steering,
    steering_flops,
    steering_sweep,
)
from interp_widgets.data.concepts import Concept, demo_concepts
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair
from tests.tolerances import limit

SMALL = (
    Concept("Paris", ("The Eiffel Tower is in Paris.", "Paris is a city.", "In Paris."), ("Go to Paris.",), "places"),
    Concept("store", ("John went to the store.", "A store.", "The store is near."), ("To the store.",), "places"),
    Concept("dog", ("A small dog.", "The dog was happy.", "Once there was a dog."), ("The dog lived.",)),
)
PROMPT = "One day, Anna saw a"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts each pass through the model read."""
    counts: list[int] = []
    real = state_cache.last_states

    def counting(model: Any, prompts: Any, *args: Any, **options: Any) -> Any:
        counts.append(len(prompts))
        return real(model, prompts, *args, **options)

    monkeypatch.setattr(state_cache, "last_states", counting)
    return counts


# ---- kept states


@pytest.mark.parametrize(("family", "backend"), [("gpt2", "hooked"), ("llama", "bridge"), ("gpt_neox", "hooked")])
def test_kept_states_give_the_same_directions(family: str, backend: str) -> None:
    model = tiny_model(family, backend, dtype=torch.float64)
    kept = HiddenStateCache(model)
    for layer in (2, 1, 3, model.n_layers):
        own = concept_directions(model, SMALL, layer=layer, shuffles=2)
        found = concept_directions(model, SMALL, layer=layer, shuffles=2, states=kept)
        np.testing.assert_allclose(found.directions, own.directions, atol=max(1e-9, limit(model, single=1e-5)))
        np.testing.assert_allclose(found.auc, own.auc)
    other = concept_directions(model, SMALL, layer=1, shuffles=2)
    assert not np.allclose(other.directions, found.directions, atol=1e-2), "layers differ, or this shows nothing"


def test_no_text_is_read_twice(reads: list[int]) -> None:
    model = tiny_model("llama")
    kept, texts = HiddenStateCache(model), 12
    for layer, options in ((2, {}), (1, {}), (0, {"method": "pca"}), (2, {"method": "discriminant"})):
        if layer:  # all states entering layer 0 at the last token are one
            concept_directions(model, SMALL, layer=layer, shuffles=1, states=kept, **options)
    assert (sum(reads), len(kept)) == (texts, texts)
    more = (*SMALL, Concept("cat", ("A cat.", "The cat sat.", "Cats."), ("The cat.",)))
    concept_directions(model, more, layer=2, shuffles=1, states=kept)
    assert sum(reads) == texts + 4, "one more concept: its own texts only"
    concept_directions(model, more, layer=3, shuffles=1, states=kept)
    assert sum(reads) == 2 * (texts + 4), "deeper: all once more"
    assert kept.depth == model.n_layers
    for layer in (1, 2, 3, model.n_layers):
        concept_directions(model, more, layer=layer, shuffles=1, states=kept)
    assert sum(reads) == 2 * (texts + 4), "now every layer is there"


def test_what_a_cancelled_run_has_read_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2")
    monkeypatch.setattr(state_cache, "SLICE", 3)
    kept, told = HiddenStateCache(model), []

    def check() -> None:
        if len(kept) >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        concept_directions(model, SMALL, layer=2, shuffles=1, states=kept, check=check)
    assert len(kept) == 6
    concept_directions(
        model, SMALL, layer=2, shuffles=1, states=kept, progress=lambda done, total: told.append((done, total))
    )
    assert told[-1] == (12, 12)
    assert told == sorted(told)


def test_states_that_do_not_fit_are_not_kept(reads: list[int]) -> None:
    model = tiny_model("llama")
    kept = HiddenStateCache(model, max_bytes=100)
    found = concept_directions(model, SMALL, layer=2, shuffles=1, states=kept)
    np.testing.assert_allclose(found.directions, concept_directions(model, SMALL, layer=2, shuffles=1).directions)
    assert (sum(reads), len(kept)) == (12, 0)


def test_another_model_is_refused() -> None:
    model, other = tiny_model("llama"), tiny_model("gpt2")
    with pytest.raises(ValueError, match="kept for"):
        concept_directions(other, SMALL, layer=1, states=HiddenStateCache(model))


# ---- steering beside controls


@cache
def demo() -> tuple[Any, ConceptSet]:
    """The tuned demo model and some of its concepts."""
    model = demo_pair().tuned
    chosen = [concept for concept in demo_concepts() if concept.group in ("animals", "tools")]
    return model, concept_directions(model, chosen, layer=3, shuffles=1)


@pytest.mark.slow
def test_steering_raises_the_word_and_the_random_direction_does_not() -> None:
    model, found = demo()
    result = compare_steering(model, found, "lion", PROMPT, strength=2.0, max_new_tokens=6)
    before, after, random = result.word_probability
    assert after > 3 * before
    assert random < 1.5 * before
    away = compare_steering(model, found, "lion", PROMPT, strength=-2.0, max_new_tokens=1)
    assert away.word_probability[1] < before
    assert result.text(0) == model.generate(PROMPT, max_new_tokens=6)
    with steer(model, found.direction("lion"), layer=3, strength=float(2 * found.gap[found.index("lion")])):
        assert result.text(1) == model.generate(PROMPT, max_new_tokens=6)
    gain = result.top_probability[1] - result.top_probability[0]
    assert (np.diff(gain) <= 1e-12).all()
    assert result.top_tokens[0] == " lion"
    assert result.p == 0.05
    assert result.in_words().endswith("0 raise it as much: p = 0.05, beyond chance")
    assert away.p == 0.05
    assert "lower it as much" in away.in_words()


def test_each_random_direction_is_a_run_of_its_own() -> None:
    model = tiny_model("llama")
    found = concept_directions(model, SMALL, layer=2, shuffles=1)
    result = compare_steering(model, found, "dog", "The dog", strength=-3.0, layer=1, max_new_tokens=0, draws=3)
    word = int(model.tokens(result.word, prepend_bos=False)[0])
    rows = np.random.default_rng(0).standard_normal((3, model.d_model))
    for row, own in zip(rows, result.random_probability, strict=True):
        with steer(model, row, layer=1, strength=result.strength):
            wanted = model.run(model.tokens("The dog")).logits[0, -1].softmax(-1)[word]
        assert own == pytest.approx(float(wanted), rel=1e-4)
    assert result.random_probability[0] == result.word_probability[2]
    assert result.as_much == (result.random_probability <= result.word_probability[1]).sum()
    assert "with 3 p cannot be below 0.25" in result.in_words()
    with pytest.raises(ValueError, match="draws must be 1 or more"):
        compare_steering(model, found, "dog", "The dog", draws=0)


def test_random_directions_in_place_of_a_concepts_are_beyond_chance_in_one_of_twenty() -> None:
    """Steered along directions that mean nothing, p is even: at most 0.05 in 5%, below 0.5 in half."""
    model = tiny_model("llama")
    found = concept_directions(model, SMALL, layer=2, shuffles=1)
    ps = []
    for seed in range(20):
        rows = np.random.default_rng([seed, 1]).standard_normal(found.directions.shape)
        drawn = replace(found, directions=rows / np.linalg.norm(rows, axis=1, keepdims=True))
        ps.append(compare_steering(model, drawn, "dog", "The dog", strength=3.0, max_new_tokens=0, control_seed=seed).p)
    assert sum(p <= 0.05 for p in ps) <= 4  # more in 1 of 390 such tests
    assert 0.3 < np.mean(ps) < 0.75


def test_strength_zero_changes_nothing() -> None:
    model, found = demo()
    result = compare_steering(model, found, "lion", PROMPT, strength=0.0, max_new_tokens=4)
    np.testing.assert_allclose(result.word_probability, result.word_probability[0], rtol=1e-5)
    assert result.written[0] == result.written[1] == result.written[2]


def test_erasing_takes_the_word_away() -> None:
    model, found = demo()
    prompt = "One day, Anna saw a lion. The"
    result = compare_steering(model, found, "lion", prompt, mode="erase", layer=range(3, 7), max_new_tokens=2)
    before, after, random = result.word_probability
    assert after < 0.5 * before
    assert random > 0.5 * before
    assert (result.strength, result.mode, result.layers.tolist()) == (0.0, "erase", [3, 4, 5, 6])


@pytest.mark.seconds
def test_several_concepts_mixed() -> None:
    model, found = demo()
    lion, saw = (2.0 * float(found.gap[found.index(name)]) for name in ("lion", "saw"))
    result = compare_steering(model, found, "lion", PROMPT, strength=2.0, mixed=[("saw", -2.0)], max_new_tokens=5)
    assert result.mixed == pytest.approx({"saw": -saw})
    with (
        steer(model, found.direction("lion"), layer=3, strength=lion),
        steer(model, found.direction("saw"), layer=3, strength=-saw),
    ):
        assert result.text(1) == model.generate(PROMPT, max_new_tokens=5)
    added = lion * found.direction("lion") - saw * found.direction("saw")
    random = np.random.default_rng(0).standard_normal((2, found.d_model))[0]
    with steer(model, random, layer=3, strength=float(np.linalg.norm(added))):
        assert result.text(2) == model.generate(PROMPT, max_new_tokens=5), "as long as the sum"
    alone = compare_steering(model, found, "lion", PROMPT, strength=2.0, max_new_tokens=0)
    assert alone.word_probability[1] != pytest.approx(result.word_probability[1], rel=1e-3), "the other one counts"
    erased = compare_steering(model, found, "lion", PROMPT, mode="erase", mixed=[("saw", 1.0)], max_new_tokens=5)
    rows = np.stack([found.direction("lion"), found.direction("saw")])
    with erase(model, rows, layer=3):
        assert erased.text(1) == model.generate(PROMPT, max_new_tokens=5)
    with pytest.raises(ValueError, match="there is no concept 'zebra'"):
        compare_steering(model, found, "lion", PROMPT, mixed=[("zebra", 1.0)])
    with pytest.raises(TypeError, match="mixed must be a list of tuples of str, numbers"):
        compare_steering(model, found, "lion", PROMPT, mixed=[("saw", float("nan"))])


@pytest.mark.seconds
def test_a_sweep_is_one_comparison_per_strength(tmp_path: Path) -> None:
    model, found = demo()
    options: dict[str, Any] = {"mixed": [("saw", 1.0)], "layer": [3, 4], "max_new_tokens": 4}
    told: list[tuple[int, int]] = []
    sweep = steering_sweep(
        model, found, "lion", PROMPT, strengths=(-2, 0, 3), progress=lambda *step: told.append(step), **options
    )
    for i, strength in enumerate((-2, 0, 3)):
        one = compare_steering(model, found, "lion", PROMPT, strength=strength, **options)
        assert sweep.text(i) == one.text(1)
        assert sweep.word_probability[i] == pytest.approx(one.word_probability[1])
        np.testing.assert_allclose(sweep.random_probability[i], one.random_probability, rtol=1e-5)
        assert sweep.p[i] == one.p
    assert sweep.word_probability[2] > sweep.word_probability[1] > sweep.word_probability[0]
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert SteeringSweep.load(sweep.save(tmp_path / "sweep")).equals(sweep)
    frame = sweep.to_frame()
    assert frame["text"].tolist() == [sweep.text(i) for i in range(3)]
    np.testing.assert_allclose(frame[["random", "random_low", "random_high"]], np.stack(sweep.band, axis=1))
    assert (frame.random_low <= frame.random).all()
    assert (frame.random <= frame.random_high).all()
    plain = steering_sweep(model, found, "lion", PROMPT, strengths=[0.0, 3.0], max_new_tokens=4, draws=2)
    assert plain.random_probability.shape == (2, 2)
    assert plain.p[0] == 1.0
    assert plain.in_words() == "With 2 random directions no strength can be told from chance: draw at least 19"
    with pytest.raises(ValueError, match="draws must be 1 or more, got 0"):
        steering_sweep(model, found, "lion", PROMPT, draws=0)
    assert plain.text(0) == model.generate(PROMPT, max_new_tokens=4)
    with pytest.raises(ValueError, match="at least one number"):
        steering_sweep(model, found, "lion", PROMPT, strengths=())


def test_the_word_of_a_sweep_is_beyond_chance_and_the_forecast_counts_the_passes() -> None:
    model, found = demo()
    sweep = steering_sweep(model, found, "lion", PROMPT, strengths=(0, 4), layer=range(3, 6), max_new_tokens=0)
    assert sweep.p.tolist() == [1.0, 0.05]
    assert sweep.in_words().startswith("Beyond chance at +4 of 1 strengths: further than 19 random directions")
    with FlopCounterMode(display=False) as counter:
        steering_sweep(model, found, "lion", PROMPT, strengths=(1, 4), max_new_tokens=0, other_weights=True)
    tokens = len(model.tokens(PROMPT))
    assert 0.5 < steering_flops(model, tokens, max_new_tokens=0, strengths=2) / counter.get_total_flops() < 2


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_on_both_backends_and_saved(backend: str, tmp_path: Path) -> None:
    model = tiny_model("llama", backend)
    found = concept_directions(model, SMALL, layer=2, shuffles=1)
    told: list[tuple[int, int]] = []
    result = compare_steering(
        model, found, "dog", "The dog", strength=3.0, layer=[1, 2], max_new_tokens=5, control_seed=4,
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert told[-1][1] == 15
    assert [len(ids) for ids in result.written_ids] == [len(tokens) for tokens in result.written]
    opened = SteeringComparison.load(result.save(tmp_path / "steered"))
    assert opened.equals(result)
    assert result.to_frame().shape == (3, 3)
    other = compare_steering(model, found, "dog", "The dog", strength=3.0, layer=[1, 2], max_new_tokens=1)
    assert other.word_probability[2] != result.word_probability[2], "another seed, another direction"
    assert other.word_probability[1] == result.word_probability[1]


def test_a_full_context_writes_nothing() -> None:
    model, found = demo()
    ids = model.tokens("a " * model.n_ctx)[: model.n_ctx]
    result = compare_steering(model, found, "lion", ids, max_new_tokens=5)
    assert [len(some) for some in result.written] == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "lyon"}, "did you mean 'lion'"),
        ({"prompt": ""}, "the prompt"),
        ({"layer": 9}, r"layer must be in -7\.\.6 for this 6-layer model"),
        ({"strength": float("inf")}, "finite"),
    ],
)
def test_bad_input_is_said(options: dict[str, Any], words: str) -> None:
    model, found = demo()
    given = {"name": "lion", "prompt": PROMPT, **options}
    with pytest.raises(ValueError, match=words):
        compare_steering(model, found, given.pop("name"), given.pop("prompt"), max_new_tokens=1, **given)


def test_another_models_set_is_refused() -> None:
    _, found = demo()
    base = demo_pair().base
    with pytest.raises(ValueError, match="other weights"):
        compare_steering(base, found, "lion", PROMPT)
    compare_steering(base, found, "lion", PROMPT, max_new_tokens=1, other_weights=True)


def test_a_strength_may_be_a_share_of_the_streams_norm() -> None:
    model, found = demo()
    norm, gap = model.profile.stream_norm(4), found.gap[found.index("lion")]
    options: dict[str, Any] = {"layer": [4, 5], "max_new_tokens": 3}
    share = compare_steering(model, found, "lion", PROMPT, strength=0.3, unit="norm", **options)
    assert share.strength == pytest.approx(0.3 * norm)
    assert share.provenance["norms"] == 0.3
    in_gaps = compare_steering(model, found, "lion", PROMPT, strength=0.3 * norm / gap, **options)
    np.testing.assert_allclose(share.word_probability, in_gaps.word_probability, rtol=1e-5)
    assert "gaps" in in_gaps.provenance
    sweep = steering_sweep(model, found, "lion", PROMPT, strengths=[0.0, 0.3], unit="norm", **options)
    assert sweep.word_probability[1] == pytest.approx(share.word_probability[1])
