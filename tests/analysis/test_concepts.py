"""Concept directions: against naive sums, with controls, on the demo; reading, sparse sums, dispersion, steering."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets.analysis.concepts import (
    ConceptMap,
    ConceptSet,
    add_to_map,
    concept_directions,
    concept_map,
    concept_map_cost,
    decompose_prompt,
    decompose_state,
    dispersion,
    erase,
    maps,
    neighbor_agreement,
    neighbors,
    read_prompt_concepts,
    steer,
    word_aucs,
)
from interp_widgets.analysis.concepts.auc import auc, concept_aucs
from interp_widgets.analysis.concepts.directions import NEUTRAL_TEMPLATE, TEMPLATE, directions_of
from interp_widgets.analysis.concepts.maps import nearest_rows, neighbor_recall
from interp_widgets.data.concepts import Concept, demo_concepts
from interp_widgets.models import load_model
from tests.models.tiny import tiny_hf, tiny_model
from tests.shipped import demo_pair
from tests.tolerances import limit

SMALL = (
    Concept("Paris", ("The Eiffel Tower is in Paris.", "Paris is a city.", "In Paris."), ("Go to Paris.",), "places"),
    Concept("store", ("John went to the store.", "A store.", "The store is near."), ("To the store.",), "places"),
    Concept("dog", ("A small dog.", "The dog was happy.", "Once there was a dog."), ("The dog lived.",)),
)
FAMILIES = ("gpt2", "llama", "gpt_neox")


@cache
def demo() -> Any:
    return demo_pair()


@cache
def demo_set() -> ConceptSet:
    return concept_directions(demo().base, layer=2, method="discriminant")


@cache
def demo_things() -> ConceptSet:
    """Some concepts of the tuned model, by mean difference: what one steers with."""
    chosen = [concept for concept in demo_concepts() if concept.group in ("animals", "instruments", "tools", "people")]
    return concept_directions(demo().tuned, chosen, layer=3, shuffles=5)


def naive_state(model: Any, text: str, layer: int) -> Any:
    end = layer == model.n_layers
    name = f"blocks.{layer - end}.hook_resid_{'post' if end else 'pre'}"
    return model.run(model.tokens(text), capture=name).activations[name][0, -1].double().numpy()


# ---- directions


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
@pytest.mark.parametrize("family", FAMILIES)
def test_mean_difference_is_the_naive_one(family: str, backend: str) -> None:
    model = tiny_model(family, backend, dtype=torch.float64)
    for layer in (1, 3):
        found = concept_directions(model, SMALL, layer=layer, shuffles=2)
        filled = "Consider the {} in the following scenario:\nScenario: {}\nAnswer:"
        states = {c.name: [naive_state(model, filled.format(c.name, s), layer) for s in c.stimuli] for c in SMALL}
        for i, concept in enumerate(SMALL):
            others = [state for name, some in states.items() if name != concept.name for state in some]
            wanted = np.mean(states[concept.name], axis=0) - np.mean(others, axis=0)
            assert found.gap[i] == pytest.approx(np.linalg.norm(wanted), rel=1e-4)
            np.testing.assert_allclose(
                found.directions[i], wanted / np.linalg.norm(wanted), atol=limit(model, single=1e-5)
            )
        tested = [naive_state(model, NEUTRAL_TEMPLATE.replace("<stimulus>", c.held_out[0]), layer) for c in SMALL]
        for i in range(3):
            scores = [state @ found.directions[i] for state in tested]
            wins = [scores[i] > score for j, score in enumerate(scores) if j != i]
            assert found.auc[i] == pytest.approx(np.mean(wins))
        assert np.isnan(found.group_auc[2])


def test_methods_find_a_planted_direction() -> None:
    rng = np.random.default_rng(0)
    planted = np.linalg.qr(rng.normal(size=(32, 4)))[0].T
    owner = np.repeat(np.arange(4), 40)
    noise = rng.normal(size=(160, 32)) * np.where(np.arange(32) < 8, 3.0, 0.3)
    states = 2 * planted[owner] + 0.2 * noise
    for method in ("mean_difference", "pca", "discriminant"):
        found = directions_of(states, owner, 4, method=method)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1)
        projected = found @ planted.T
        assert (projected.argmax(axis=1) == np.arange(4)).all()
        assert (np.diag(projected) > 0.35).all(), method
    turned = directions_of(-states, owner, 4, method="pca")
    assert (np.diag(turned @ planted.T) < 0).all()  # the sign follows the data, not chance


def test_discriminant_is_fishers() -> None:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    rng = np.random.default_rng(1)
    owner = np.repeat([0, 1], 50)
    states = rng.normal(size=(100, 6)) @ (np.eye(6) + 0.4 * rng.normal(size=(6, 6))) + owner[:, None] * rng.normal(
        size=6
    )
    found = directions_of(states, owner, 2, method="discriminant")
    wanted = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=None).fit(states, owner).coef_[0]
    assert found[1] @ wanted / np.linalg.norm(wanted) > 0.98
    np.testing.assert_allclose(found[0], -found[1], atol=1e-12)


def test_auc_counts_pairs() -> None:
    rng = np.random.default_rng(0)
    positive, negative = rng.integers(0, 5, 7).astype(float), rng.integers(0, 5, 11).astype(float)
    wanted = np.mean([(p > n) + 0.5 * (p == n) for p in positive for n in negative])
    assert auc(positive, negative) == pytest.approx(wanted)
    assert np.isnan(auc(positive, negative[:0]))
    states, owner = np.eye(4)[[0, 0, 1, 2, 3]], np.array([0, 0, 1, 2, 3])
    whole, within = concept_aucs(np.eye(4), states, owner, np.array([0, 0, 1, -1]))
    np.testing.assert_array_equal(whole, 1)
    assert within[0] == within[1] == 1
    assert np.isnan(within[2:]).all()


@pytest.mark.slow
def test_demo_concepts_are_found_and_the_control_is_not() -> None:
    found = demo_set()
    assert len(found.names) >= 120
    assert (found.auc >= 0.9).mean() >= 0.8
    assert (np.abs(found.shuffled_auc - 0.5) <= 0.1).all()
    assert np.nanmean(found.group_auc) >= 0.8
    same, chance = neighbor_agreement(found, 5)
    assert same >= 0.7
    assert chance <= 0.12


@pytest.mark.slow
def test_mean_difference_on_the_tuned_demo() -> None:
    found = demo_things()
    assert (found.auc >= 0.9).mean() >= 0.8
    assert neighbor_agreement(found, 3)[0] >= 0.7
    near = [name for name, _ in neighbors(found, "flute", 5)]
    assert sum(found.groups[found.index(name)] == "instruments" for name in near) >= 3


@pytest.mark.seconds
def test_saved_and_opened_again(tmp_path: Path) -> None:
    found = demo_things()
    opened = ConceptSet.load(found.save(tmp_path / "set"))
    assert opened.equals(found)
    assert opened.to_frame().shape == (len(found.names), 6)
    with pytest.raises(ValueError, match="width 192 at layer 3"):
        opened.check(tiny_model("gpt2"))
    with pytest.raises(ValueError, match="other weights"):
        opened.check(demo().base)
    opened.check(demo().base, other_weights=True)
    with pytest.raises(ValueError, match=r"no concept 'flut' .* 'flute'"):
        opened.index("flut")
    with pytest.raises(ValueError, match="k must be in"):
        neighbors(opened, "flute", 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layer": 4}, r"layer must be in -4\.\.3 for this 3-layer model"),
        ({"template": "no place"}, "must hold <stimulus> once"),
        ({"test_template": TEMPLATE}, "must not contain <concept>"),
        ({"shuffles": 0}, "shuffles"),
        ({"concepts": SMALL[:1]}, "at least 2 concepts"),
        ({"concepts": (*SMALL, SMALL[0])}, "two concepts are called 'Paris'"),
        ({"concepts": (*SMALL, Concept("a", ("b", "c")))}, "'a' has 2 stimuli"),
        ({"concepts": (*SMALL, Concept("a", ("b", "c", "one two " * 100)))}, "stimulus of 'a' is .* tokens long"),
    ],
)
def test_bad_input_is_said(options: dict[str, Any], words: str) -> None:
    given = {"layer": 1, "concepts": SMALL, **options}
    with pytest.raises(ValueError, match=words):
        concept_directions(tiny_model("gpt2"), given.pop("concepts"), **given)


@pytest.mark.parametrize("method", ["mean_difference", "pca", "discriminant"])
def test_states_that_do_not_differ_have_no_direction(method: Any) -> None:
    # without positions in the stream, the state at the template's last token is everywhere its embedding
    with pytest.raises(ValueError, match="mean state of concept 'Paris' equals that of the others"):
        concept_directions(tiny_model("gpt_neox"), SMALL, layer=0, method=method)


def test_progress_counts_all_prompts_and_cancel_is_heard() -> None:
    steps: list[tuple[int, int]] = []
    concept_directions(tiny_model("gpt2"), SMALL, layer=2, shuffles=1, progress=lambda *step: steps.append(step))
    assert steps[-1] == (12, 12)
    assert steps == sorted(steps)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        concept_directions(tiny_model("gpt2"), SMALL, layer=2, check=stop)


# ---- reading


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_tokens_are_projected(backend: str) -> None:
    model = tiny_model("gpt2", backend, dtype=torch.float64)
    found = concept_directions(model, SMALL, layer=2, shuffles=1)
    reading = read_prompt_concepts(model, found, "The dog was happy", names=["dog", "Paris"])
    ids = model.tokens("The dog was happy")
    states = model.run(ids, capture="blocks.2.hook_resid_pre").activations["blocks.2.hook_resid_pre"][0].numpy()
    wanted = (states - found.center) @ found.directions[[2, 0]].T
    np.testing.assert_allclose(reading.projection, wanted, atol=1e-10)
    assert len(reading.tokens) == len(ids)
    assert reading.strongest(0, 1)[0][1] == pytest.approx(wanted[0].max())
    assert reading.to_frame().shape == wanted.shape


@pytest.mark.hooked
def test_the_same_weights_in_another_form_are_told_apart() -> None:
    found = concept_directions(tiny_model("gpt2", "hooked"), SMALL, layer=2, shuffles=1)
    for other in (tiny_model("gpt2", "bridge"), tiny_model("gpt2", "hooked", dtype=torch.float64)):
        with pytest.raises(ValueError, match="another dtype or backend counts too"):
            read_prompt_concepts(other, found, "The dog was happy")
        read_prompt_concepts(other, found, "The dog was happy", other_weights=True)


def test_the_beginning_of_sequence_is_left_off() -> None:
    model, found = demo().tuned, demo_things()
    reading = read_prompt_concepts(model, found, "Tom saw a flute.")
    assert len(reading.tokens) == len(model.tokens("Tom saw a flute.")) - 1
    # where the directions were made, at the end of the template, they tell which word stood in the prompt
    words = [name for name, group in zip(found.names, found.groups, strict=True) if group == "instruments"]
    table = np.stack([
        read_prompt_concepts(
            model, found, NEUTRAL_TEMPLATE.replace("<stimulus>", f"Tom saw a {word} in the hall."), names=words
        ).projection[-1]
        for word in words
    ])  # fmt: skip
    assert np.mean([auc(table[i, [i]], np.delete(table[:, i], i)) for i in range(len(words))]) >= 0.8
    with pytest.raises(ValueError, match="other weights"):
        read_prompt_concepts(demo().base, found, "Tom saw a flute.")


def a_set(directions: Any, names: Any = None, groups: Any = None) -> ConceptSet:
    count = len(directions)
    directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    zeros = np.zeros(count)
    return ConceptSet(names=names or [f"c{i}" for i in range(count)], directions=directions, layer=1,
                      groups=groups or [""] * count, center=np.zeros(directions.shape[1]), gap=zeros, auc=zeros,
                      group_auc=zeros, shuffled_auc=zeros, method="mean_difference")  # fmt: skip


def test_states_that_are_no_numbers_are_said() -> None:
    hf_model = tiny_hf("gpt2")
    model = load_model(hf_model, tokenizer=tiny_model("gpt2").tokenizer)
    found = concept_directions(model, SMALL, layer=2, shuffles=1)
    hf_model.transformer.h[0].mlp.c_proj.bias.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="hidden state at position 0 is not finite"):
        read_prompt_concepts(model, found, "The dog", other_weights=True)


@pytest.mark.parametrize("solver", ["omp", "elastic_net"])
def test_a_sum_of_directions_is_taken_apart(solver: Any) -> None:
    concepts = a_set(np.random.default_rng(0).normal(size=(40, 64)))
    state = 3 * concepts.directions[5] - 2 * concepts.directions[17]
    found = decompose_state(state, concepts, solver=solver, n_concepts=2)
    assert list(found.names[:2]) == ["c5", "c17"]
    limit = 1e-9 if solver == "omp" else 0.1
    np.testing.assert_allclose(found.weights[:2], [3, -2], atol=limit)
    assert found.error <= limit


def test_sparse_sums_of_a_prompt_and_their_errors() -> None:
    model = tiny_model("llama", dtype=torch.float64)
    found = concept_directions(model, SMALL, layer=2, shuffles=1)
    sum_of = decompose_prompt(model, found, "The dog was happy", n_concepts=2)
    assert len(sum_of.names) == 2
    state = naive_state(model, "The dog was happy", 2) - found.center
    atoms = found.directions[[found.index(name) for name in sum_of.names]].T
    rest = state - atoms @ np.linalg.lstsq(atoms, state, rcond=None)[0]
    assert sum_of.error == pytest.approx(np.linalg.norm(rest) / np.linalg.norm(state), abs=limit(model))
    with pytest.raises(ValueError, match="finite numbers"):
        decompose_state(np.zeros(3), found)
    with pytest.raises(ValueError, match=r"n_concepts must be in 1\.\.3"):
        decompose_state(state, found, n_concepts=4)


# ---- dispersion


def test_dispersion_is_the_mean_over_pairs_with_an_interval() -> None:
    rng = np.random.default_rng(0)
    near, far = a_set(rng.normal(size=(30, 16)) + 2), a_set(rng.normal(size=(30, 16)))
    cosine = near.cosine()
    wanted = 1 - cosine[np.triu_indices(30, 1)].mean()
    found = dispersion(near, far)
    assert found.value == pytest.approx(wanted)
    assert found.interval[0] < wanted < found.interval[1]
    assert found.other is not None
    assert found.difference == pytest.approx(found.other - wanted)
    assert found.difference_interval is not None
    assert found.difference_interval[0] > 0
    same = dispersion(near, near)
    np.testing.assert_allclose(np.asarray(same.difference_interval), 0, atol=1e-12)
    assert dispersion(near).interval.tolist() == found.interval.tolist()
    with pytest.raises(ValueError, match="no group of this set"):
        dispersion(near, pairs="group")
    with pytest.raises(ValueError, match="same concepts"):
        dispersion(near, a_set(rng.normal(size=(30, 16)), [f"d{i}" for i in range(30)]))


def test_dispersion_within_groups() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 16))
    kinds = np.repeat([0, 1, 2, -1], 8)
    rows = np.concatenate([centres[kinds[:24]] + 0.3 * rng.normal(size=(24, 16)), rng.normal(size=(8, 16))])
    concepts = a_set(rows, groups=["" if kind < 0 else f"g{kind}" for kind in kinds])
    cosine = concepts.cosine()
    wanted = np.mean([1 - cosine[i, j] for i in range(24) for j in range(24) if i != j and kinds[i] == kinds[j]])
    found = dispersion(concepts, pairs="group")
    assert found.value == pytest.approx(wanted)
    assert found.value < 0.5 < dispersion(concepts).value
    assert found.interval[0] < wanted < found.interval[1] + 0.02


def test_a_sample_without_a_pair_does_not_count() -> None:
    # three alike directions are at distance 0 in every sample; one drawn three times makes no pair
    found = dispersion(a_set(np.ones((3, 4))), resamples=200)
    assert found.interval.tolist() == pytest.approx([0, 0])


# ---- steering


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
@pytest.mark.parametrize("family", FAMILIES)
def test_steering_and_erasing_change_the_stream_as_said(family: str, backend: str) -> None:
    model = tiny_model(family, backend, dtype=torch.float64)
    ids, rng = model.tokens("The dog was happy"), np.random.default_rng(0)
    direction = rng.normal(size=model.d_model)
    unit = torch.tensor(direction / np.linalg.norm(direction))
    names = [f"blocks.{i}.hook_resid_pre" for i in (1, 2)]
    before = model.run(ids, capture=names)
    with steer(model, direction, layer=1, strength=2.5, positions=[1]):
        run = model.run(ids, capture=names)
        added = run.activations[names[0]] - before.activations[names[0]]
        at = 1 + (ids[0] == model.bos_token_id and model.prepend_bos)
        torch.testing.assert_close(added[0, at], 2.5 * unit)
        assert float(added.abs().sum()) == pytest.approx(float((2.5 * unit).abs().sum()))
        assert not torch.allclose(run.logits, before.logits)
    several = rng.normal(size=(2, model.d_model))
    with erase(model, several, layer=range(4)):
        run = model.run(ids, capture=names)
        for name in names:
            left = run.activations[name] @ torch.tensor(several).T
            assert float(left.abs().max()) < 1e-9
    after = model.run(ids, capture=names)
    torch.testing.assert_close(after.logits, before.logits, rtol=0, atol=0)


def test_steering_holds_while_generating_and_not_afterwards() -> None:
    model, found = demo().tuned, demo_things()
    prompt = "One day, Anna saw a"
    before = model.generate(prompt, max_new_tokens=12)
    i = found.index("lion")
    with steer(model, found.direction("lion"), layer=3, strength=6 * float(found.gap[i])):
        steered = model.generate(prompt, max_new_tokens=12)
    with pytest.raises(KeyboardInterrupt), steer(model, found.direction("lion"), layer=3, strength=9.0):
        raise KeyboardInterrupt
    assert steered != before
    assert model.generate(prompt, max_new_tokens=12) == before


@pytest.mark.seconds
def test_steering_raises_the_concepts_word_and_a_random_direction_does_not() -> None:
    model, found, rng = demo().tuned, demo_things(), np.random.default_rng(0)
    ids = model.tokens("One day, Anna saw a")

    def log_probability(word: str) -> float:
        token = model.tokens(f" {word}", prepend_bos=False)[0]
        return float(model.run(ids).logits[0, -1].double().log_softmax(-1)[token])

    words = [name for name, group in zip(found.names, found.groups, strict=True) if group in ("animals", "instruments")]
    toward, chance, removed = [], [], []
    for word in words[::2]:
        before, strength = log_probability(word), float(found.gap[found.index(word)])
        with steer(model, found.direction(word), layer=3, strength=strength):
            toward.append(log_probability(word) - before)
        with steer(model, rng.normal(size=model.d_model), layer=3, strength=strength):
            chance.append(log_probability(word) - before)
        with erase(model, found.direction(word), layer=3):
            removed.append(log_probability(word) - before)
    assert np.mean(np.array(toward) > 0) >= 0.9
    assert np.mean(toward) >= 0.3
    assert abs(np.mean(chance)) <= 0.25 * np.mean(toward)
    assert np.mean(np.array(chance) > 0) <= 0.8


def test_wrong_directions_are_said() -> None:
    model = tiny_model("gpt2")
    for direction, layer, strength, words in (
        (np.ones(3), 1, 1.0, r"must have shape \(32,\)"),
        (np.ones((2, 32)), 1, 1.0, r"must have shape \(32,\)"),
        (np.zeros(32), 1, 1.0, "finite and not zero"),
        (np.full(32, np.nan), 1, 1.0, "finite"),
        (np.ones(32), 4, 1.0, r"layer must be in -4\.\.3 for this 3-layer model"),
        (np.ones(32), [], 1.0, "layers must not be empty"),
        (np.ones(32), [1, 1], 1.0, "every stream once"),
        (np.ones(32), 1, float("inf"), "strength must be a finite"),
        (np.ones(32), 1, float("nan"), "strength must be a number, got nan"),
    ):
        with pytest.raises(ValueError, match=words), steer(model, direction, layer=layer, strength=strength):
            pass
    for positions in ([-1], [2, -3]):  # -1 is where a BOS stands, not the last token
        with (
            pytest.raises(ValueError, match="positions must be a list of int from 0 on"),
            steer(model, np.ones(32), layer=1, strength=1.0, positions=positions),
        ):
            pass


def test_directions_that_depend_on_each_other_take_out_no_more_than_their_span() -> None:
    model, rng = tiny_model("gpt2", dtype=torch.float64), np.random.default_rng(0)
    ids, name = model.tokens("The dog was happy"), "blocks.1.hook_resid_pre"
    one, other = rng.normal(size=(2, 32))
    several = np.stack([one, -2 * one, other, one + other])
    before = model.run(ids, capture=name).activations[name][0].numpy()
    basis = np.linalg.qr(np.stack([one, other]).T)[0]
    with erase(model, several, layer=np.int64(1)):
        after = model.run(ids, capture=name).activations[name][0].numpy()
    np.testing.assert_allclose(after, before - before @ basis @ basis.T, atol=1e-10)


# ---- maps


def grouped(count: int, seed: int = 0, *, shift: int = 0) -> ConceptSet:
    """Concepts in three groups that lie apart."""
    rng = np.random.default_rng(seed)
    groups = np.arange(count) % 3
    rows = 4 * np.eye(16)[groups] + rng.normal(size=(count, 16)) * 0.5
    return a_set(rows, [f"c{i + shift}" for i in range(count)], [f"g{group}" for group in groups])


@cache
def mapped(method: Any) -> ConceptMap:
    return concept_map(grouped(60), method)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["umap", "pca", "tsne"])
def test_groups_lie_together_and_a_seed_repeats_the_map(method: Any, tmp_path: Path) -> None:
    concepts, found = grouped(60), mapped(method)
    steps: list[tuple[int, int]] = []
    threads = torch.get_num_threads()
    again = concept_map(concepts, method, progress=lambda *step: steps.append(step))
    assert torch.get_num_threads() == threads, "the libraries of a map must not change how models run"
    assert steps == [(1, 3), (2, 3), (3, 3)]
    np.testing.assert_array_equal(again.xy, found.xy)
    groups = np.array(concepts.groups)
    nearest = np.linalg.norm(found.xy[:, None] - found.xy[None], axis=-1).argsort(axis=1)[:, 1]
    assert (groups[nearest] == groups).mean() >= 0.95
    assert found.recall >= 0.3
    opened = ConceptMap.load(found.save(tmp_path / "map"))
    assert opened.equals(found)
    assert (found.explained is None) == (method != "pca")


def test_a_map_is_cancelled_while_it_is_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(parts: Any, near: int, seed: int) -> Any:
        begun.set()
        assert go.wait(60)
        return parts[:, :2]

    def stop() -> None:
        if begun.is_set():
            raise KeyboardInterrupt

    monkeypatch.setattr(maps, "umap_places", slow)
    with pytest.raises(KeyboardInterrupt):
        concept_map(grouped(60), "umap", check=stop)
    assert not go.is_set(), "the layout is still under way"
    go.set()
    assert concept_map(grouped(60), "umap").xy.shape == (60, 2)


def test_a_stored_map_is_known_by_its_directions_and_options(tmp_path: Path) -> None:
    concepts, found = grouped(60), mapped("pca")
    opened = ConceptMap.load(replace(found, xy=found.xy + 1).save(tmp_path / "map"))  # told by its places
    np.testing.assert_array_equal(concept_map(concepts, "pca", stored=opened).xy, found.xy + 1)
    renamed = concept_map(replace(concepts, names=[f"d{i}" for i in range(60)]), "pca", stored=opened)
    np.testing.assert_array_equal(renamed.xy, found.xy + 1)
    assert renamed.names[0] == "d0"
    rows = concepts.directions.copy()
    rows[7] = -rows[7]
    for other, options in ((replace(concepts, directions=rows), {}), (concepts, {"seed": 1}),
                           (concepts, {"n_neighbors": 9}), (concepts, {"other": concepts})):  # fmt: skip
        assert concept_map(other, "pca", stored=opened, **options).fingerprint != opened.fingerprint
    assert concept_map(concepts, "tsne", stored=opened).method == "tsne"


def test_two_sets_share_a_map() -> None:
    concepts = grouped(60)
    turned = np.array(concepts.directions)
    turned[5] = turned[4]
    other = replace(concepts, directions=turned)
    found = concept_map(concepts, "pca", other=other)
    assert found.other_xy is not None
    assert found.moved is not None
    np.testing.assert_allclose(np.delete(found.other_xy, 5, axis=0), np.delete(found.xy, 5, axis=0), atol=1e-12)
    np.testing.assert_allclose(found.other_xy[5], found.xy[4], atol=1e-12)
    wanted = 1 - (concepts.directions * turned).sum(axis=1)
    np.testing.assert_allclose(found.moved, wanted, atol=1e-12)
    assert found.moved.argmax() == 5
    assert list(found.to_frame().columns) == ["concept", "group", "x", "y", "other_x", "other_y", "moved"]
    with pytest.raises(ValueError, match="same concepts"):
        concept_map(concepts, "pca", other=grouped(60, shift=1))
    narrow = replace(concepts, directions=turned[:, :8], center=np.zeros(8))
    with pytest.raises(ValueError, match="must have the same width, got 16 and 8"):
        concept_map(concepts, "pca", other=narrow)


@pytest.mark.seconds
@pytest.mark.parametrize("method", ["umap", "pca", "tsne"])
def test_copies_land_on_the_old_points_and_new_ones_in_their_group(method: Any) -> None:
    concepts, places = grouped(60), mapped(method)
    copies = replace(concepts, names=[f"copy of {name}" for name in concepts.names])
    reach = np.ptp(places.xy, axis=0).max()
    landed = add_to_map(places, copies)
    assert landed.added == 60
    np.testing.assert_allclose(landed.xy[60:], places.xy, atol=1e-4 * reach)
    np.testing.assert_array_equal(landed.xy[:60], places.xy)
    # the control: a direction a little off does not land there
    shaken = np.random.default_rng(1).normal(size=(60, 16)) * 0.05 + concepts.directions
    off = add_to_map(places, a_set(shaken, list(copies.names)))
    assert np.median(np.abs(off.xy[60:] - places.xy).max(axis=1)) > 1e-3 * reach
    # other directions of the groups lie among their own
    more = grouped(30, seed=9, shift=100)
    found = add_to_map(landed, more)
    apart = np.linalg.norm(found.xy[120:, None] - found.xy[None, :60], axis=-1)
    assert (np.array(concepts.groups)[apart.argmin(axis=1)] == np.array(more.groups)).mean() >= 0.95
    assert len(found.names) == len(found.groups) == 150
    assert found.fingerprint == ""


def test_pairs_are_added_to_a_map_of_two_sets_and_wrong_ones_are_said() -> None:
    concepts, more = grouped(60), grouped(6, seed=2, shift=100)
    turned = replace(more, directions=np.roll(more.directions, 1, axis=0))
    found = add_to_map(concept_map(concepts, "pca", other=concepts), more, other=turned)
    assert found.other_xy is not None
    assert found.moved is not None
    np.testing.assert_allclose(found.other_xy[61:], found.xy[60:65], atol=1e-12)
    np.testing.assert_allclose(found.moved[60:], 1 - (more.directions * turned.directions).sum(axis=1), atol=1e-12)
    for places, given, other, words in (
        (found, grouped(6, shift=200), None, "of two sets: give the second"),
        (mapped("pca"), more, turned, "the map is of one set"),
        (mapped("pca"), a_set(np.eye(8)), None, "of directions of width 16, the new ones have 8"),
        (mapped("pca"), grouped(3), None, "'c0' is on the map already"),
        (replace(mapped("pca"), parts=None), more, None, "has no components to find neighbours"),
    ):
        with pytest.raises(ValueError, match=words):
            add_to_map(places, given, other=other)


def test_nearest_rows_are_exact_and_start_with_the_row_itself() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    rows[7] = rows[30] = rows[41]
    near, apart = nearest_rows(rows, 5)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    distance = 1 - unit @ unit.T
    np.testing.assert_array_equal(near[:, 0], np.arange(50))
    np.testing.assert_allclose(apart, np.sort(distance, axis=1)[:, :5], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(distance, near, axis=1), apart, atol=1e-5)


def test_forecast_of_a_map_grows_with_it() -> None:
    small, large = concept_map_cost(1000, 4096), concept_map_cost(40_000, 4096)
    assert 40_000 * 4096 * 4 < large.bytes < 3 * 40_000 * 4096 * 4
    assert large.bytes == pytest.approx(40 * small.bytes)
    assert large.flops == pytest.approx(40 * small.flops)
    assert concept_map_cost(1000, 4096, sets=2).bytes > 2 * small.bytes


def test_recall_is_one_in_the_plane_itself_and_chance_elsewhere() -> None:
    angle = np.linspace(0, 1.5, 40)
    directions = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    assert neighbor_recall(directions, directions, k=4) == pytest.approx(1, abs=0.1)
    other = np.random.default_rng(0).permutation(40)
    assert neighbor_recall(directions, directions[other], k=4) < 0.4
    assert neighbor_recall(directions, directions, k=4, most=10) == pytest.approx(1, abs=0.2)


def test_small_sets_and_bad_input_of_maps() -> None:
    rng = np.random.default_rng(0)
    for method in ("umap", "pca", "tsne"):
        assert concept_map(a_set(rng.normal(size=(5, 8))), method).xy.shape == (5, 2)
    with pytest.raises(ValueError, match="at least 4 concepts"):
        concept_map(a_set(rng.normal(size=(3, 8))))
    with pytest.raises(ValueError, match="n_neighbors"):
        concept_map(a_set(rng.normal(size=(5, 8))), n_neighbors=1)


# ---- words alone


def test_words_alone_against_loops() -> None:
    concepts = [
        Concept("cat", ("A cat, here.", "The CAT sleeps.", "a cat"), ("my cat is here", "cats sleep")),
        Concept("dog", ("A dog, here.", "The dog barks.", "a dog"), ("dog", "it barks here")),
        Concept("sun", ("The sun.", "sun and rain", "a sun"), ()),
    ]

    def words(text: str) -> set[str]:
        return set(re.findall(r"\w+", text.lower()))

    def share(word: str, texts: Sequence[str]) -> float:
        return sum(word in words(text) for text in texts) / len(texts)

    found = word_aucs(concepts)
    for i, concept in enumerate(concepts[:2]):
        others = [text for other in concepts if other is not concept for text in other.stimuli]
        vocabulary = set().union(*(words(text) for each in concepts for text in each.stimuli))
        direction = {word: share(word, concept.stimuli) - share(word, others) for word in vocabulary}

        def score(text: str, direction: dict[str, float] = direction) -> float:
            return sum(direction.get(word, 0.0) for word in words(text))

        foreign = [text for other in concepts if other is not concept for text in other.held_out]
        pairs = [(score(own), score(other)) for own in concept.held_out for other in foreign]
        wins = [1.0 if a > b + 1e-12 else 0.5 if abs(a - b) < 1e-12 else 0.0 for a, b in pairs]
        assert found[i] == pytest.approx(np.mean(wins))
    assert np.isnan(found[2])
    assert np.isnan(word_aucs([replace(one, held_out=()) for one in concepts])).all()


def test_words_alone_are_at_chance_where_only_the_order_differs() -> None:
    texts = [" ".join(order) for order in itertools.permutations(["red", "cat", "sat", "on"])]
    concepts = [
        Concept("even", tuple(texts[0:8]), tuple(texts[8:12])),
        Concept("odd", tuple(texts[12:20]), tuple(texts[20:])),
    ]
    np.testing.assert_array_equal(word_aucs(concepts), [0.5, 0.5])
