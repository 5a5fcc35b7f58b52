"""Concept directions from states that come in blocks: the same as from all at once, in bounded memory."""

from __future__ import annotations

import inspect
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from interp_widgets.analysis import hidden_states
from interp_widgets.analysis.concepts import ConceptSet, concept_directions
from interp_widgets.analysis.concepts import directions as module
from interp_widgets.analysis.concepts.auc import auc
from interp_widgets.analysis.concepts.direction_methods import PARTNERS, SHRINKAGE, Moments
from interp_widgets.analysis.concepts.directions import NEUTRAL_TEMPLATE, TEMPLATE, concept_directions_cost
from interp_widgets.analysis.concepts.state_cache import HiddenStateCache
from interp_widgets.analysis.hidden_states import last_states
from interp_widgets.data.concepts import Concept, demo_concepts
from interp_widgets.models import Model
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
CONCEPTS = tuple(
    Concept(name, tuple(f"The {name} saw {word}." for word in WORDS[: 3 + i]),
            tuple(f"{word} {name} {WORDS[i]}" for word in WORDS[5 : 7 + i % 2]), "ab"[i % 2])
    for i, name in enumerate(("dog", "cat", "Paris", "store", "plane"))
)  # fmt: skip
METHODS: tuple[Any, ...] = ("mean_difference", "pca", "discriminant")


def whole(model: Any, method: str, layer: int) -> tuple[Any, Any, Any]:
    """Directions, gaps and AUCs with all states in memory, as the formulas read."""
    filled = [[TEMPLATE.replace("<concept>", c.name).replace("<stimulus>", s) for s in c.stimuli] for c in CONCEPTS]
    states = [last_states(model, texts, layer)[:, 0] for texts in filled]
    every = np.concatenate(states)
    owner = np.repeat(np.arange(len(CONCEPTS)), [len(some) for some in states])
    means = np.stack([some.mean(axis=0) for some in states])
    difference = means - np.stack([every[owner != i].mean(axis=0) for i in range(len(CONCEPTS))])
    found = difference
    if method == "discriminant":
        rest = every - means[owner]
        within = rest.T @ rest / (len(every) - len(CONCEPTS))
        spread = np.trace(within) / len(within)
        found = difference @ np.linalg.inv((1 - SHRINKAGE) * within + SHRINKAGE * spread * np.eye(len(within)))
    if method == "pca":
        rng, found = np.random.default_rng(0), difference.copy()
        for i, own in enumerate(states):
            pairs = rng.choice(np.flatnonzero(owner != i), (len(own), PARTNERS))
            first = np.linalg.svd((own[:, None] - every[pairs]).reshape(-1, every.shape[1]))[2][0]
            found[i] = first * np.sign(first @ difference[i])
    found = found / np.linalg.norm(found, axis=1, keepdims=True)
    tested = [last_states(model, [NEUTRAL_TEMPLATE.replace("<stimulus>", s) for s in c.held_out], layer)[:, 0]
              for c in CONCEPTS]  # fmt: skip
    aucs = [auc(own @ found[i], np.concatenate(tested[:i] + tested[i + 1 :]) @ found[i])
            for i, own in enumerate(tested)]  # fmt: skip
    return found, (difference * found).sum(axis=1), np.array(aucs)


def farthest(found: ConceptSet, other: ConceptSet) -> float:
    names = ("directions", "gap", "center", "auc", "group_auc", "shuffled_auc")
    return float(max(np.abs(getattr(found, name) - getattr(other, name)).max() for name in names))


@pytest.mark.parametrize("method", METHODS)
def test_blocks_change_nothing(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2", dtype=torch.float64)
    once = concept_directions(model, CONCEPTS, layer=2, method=method, shuffles=2)
    steps: list[tuple[int, int]] = []
    for size in (1, 8, 11):
        monkeypatch.setattr(module, "_BLOCK", size)
        blocks = concept_directions(model, CONCEPTS, layer=2, method=method, shuffles=2,
                                    progress=lambda *step: steps.append(step))  # fmt: skip
        assert farthest(once, blocks) <= 1e-12
    directions, gap, aucs = whole(model, method, 2)
    np.testing.assert_allclose(blocks.directions, directions, atol=1e-12 if method == "mean_difference" else 1e-9)
    np.testing.assert_allclose(blocks.gap, gap, rtol=1e-9)
    np.testing.assert_allclose(blocks.auc, aucs)
    total = sum(len(c.stimuli) + len(c.held_out) for c in CONCEPTS)
    assert steps[-1] == (total, total)


@pytest.mark.parametrize("method", METHODS)
def test_a_state_that_is_lost_shows(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2", dtype=torch.float64)
    once = concept_directions(model, CONCEPTS, layer=2, method=method, shuffles=2)
    real = Moments.add
    monkeypatch.setattr(module, "_BLOCK", 8)
    monkeypatch.setattr(Moments, "add", lambda self, states, owner: real(self, states[1:], owner[1:]))
    assert farthest(once, concept_directions(model, CONCEPTS, layer=2, method=method, shuffles=2)) > 1e-4


def test_the_control_of_a_large_set_is_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2", dtype=torch.float64)
    once = concept_directions(model, CONCEPTS, layer=2, shuffles=2)
    monkeypatch.setattr(module, "MOST_SHUFFLED", 22)
    some = concept_directions(model, CONCEPTS, layer=2, shuffles=2)
    dealt = np.isfinite(some.shuffled_auc)
    assert dealt.sum() in (2, 3)
    np.testing.assert_array_equal(once.auc, some.auc)
    chosen = [concept for concept, there in zip(CONCEPTS, dealt, strict=True) if there]
    alone = concept_directions(model, chosen, layer=2, shuffles=2)
    np.testing.assert_allclose(alone.shuffled_auc, some.shuffled_auc[dealt])


@pytest.mark.seconds
def test_memory_does_not_grow_with_the_stimuli(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, width = np.random.default_rng(0), 768
    shape = {"n_layers": 2, "n_ctx": 4096, "d_model": width, "n_heads": 4, "n_kv_heads": 4, "d_head": 64, "d_mlp": 512,
             "d_vocab": 100, "parameter_count": 10**6, "dtype": torch.float32}  # fmt: skip
    methods = {"__init__": lambda self: None, "token_lists": lambda self, texts: [[0] * 8 for _ in texts],
               "provenance": lambda self: {}}  # fmt: skip
    model: Any = type("SizesAlone", (Model,), {**shape, **methods})()
    for one in (module, hidden_states):  # there are no weights to look at
        monkeypatch.setattr(one, "can_pad", lambda model: False)
    monkeypatch.setattr(module, "_BLOCK", 256)
    monkeypatch.setattr(module, "MOST_SHUFFLED", 300)
    monkeypatch.setattr(module, "MOST_OTHERS", 200)
    monkeypatch.setattr("interp_widgets.analysis.concepts.auc.MOST_OTHERS", 200)

    def states(model: Any, texts: list[str], *args: Any, **options: Any) -> Any:
        return rng.normal(size=(len(texts), 1, width))

    def peak(stimuli: int) -> tuple[int, float]:
        made, tested = tuple(str(i) for i in range(stimuli)), tuple(str(-1 - i) for i in range(stimuli // 2))
        concepts = [Concept(str(i), made, tested) for i in range(60)]
        tracemalloc.start()
        try:
            # the function itself: its arguments' check would want a model that really reads
            inspect.unwrap(concept_directions)(model, concepts, layer=1, shuffles=1, states=states)
            return tracemalloc.get_traced_memory()[1], concept_directions_cost(model, concepts, layer=1).bytes
        finally:
            tracemalloc.stop()

    few, many = peak(20), peak(80)
    assert many[0] <= 1.1 * few[0]
    assert many[0] <= many[1]
    kept = 60 * 80 * width * 4
    assert many[0] < kept
    monkeypatch.setattr(module, "MOST_SHUFFLED", 10**6)
    assert peak(80)[0] > kept  # the measure sees states that are kept


def test_beginnings_are_computed_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2", dtype=torch.float64)
    wanted = concept_directions(model, CONCEPTS, layer=2, shuffles=1)
    sizes, real = [], hidden_states.shared_prefixes

    def spy(model: Any, ids: Any, top: int) -> Any:
        sizes.append(len(ids))
        return real(model, ids, top)

    monkeypatch.setattr(hidden_states, "shared_prefixes", spy)
    concept_directions(model, CONCEPTS, layer=2, shuffles=1)
    assert max(sizes) > 1
    sizes.clear()
    monkeypatch.setattr(hidden_states, "_KEPT_SHARE", 1e-12)
    assert farthest(wanted, concept_directions(model, CONCEPTS, layer=2, shuffles=1)) <= 1e-12
    assert set(sizes) == {1}


@pytest.mark.seconds
@pytest.mark.parametrize("count", [6, 30])
def test_the_forecast_counts_what_prompts_begin_with_once(count: int) -> None:
    model, concepts = demo_pair().base, demo_concepts()[:count]
    concept_directions(model, concepts[:2], layer=3)  # the routes are compared
    with FlopCounterMode(display=False) as counter:
        concept_directions(model, concepts, layer=3, shuffles=1, states=HiddenStateCache(model))
    assert 0.7 < concept_directions_cost(model, concepts, layer=3).flops / counter.get_total_flops() < 1.2
