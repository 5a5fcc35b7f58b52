"""Probes of bias: what was planted is found, controls find nothing, directions and AUC by hand, bad input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import (
    CrowsPair,
    LabeledTexts,
    Result,
    SentencePair,
    StereoSetExample,
    demo_bias_texts,
    labeled_texts,
    train_bias_probes,
)
from interp_widgets.analysis.bias import probes as module
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair

PAIRS = [SentencePair(f"{one} {two}.", f"{one} {two} Paris.", f"{one} {two}")
         for one in ("A pilot", "A nurse", "John", "Mary", "The dog") for two in ("flies", "helps")]  # fmt: skip


@pytest.fixture(scope="module")
def planted() -> Any:
    return train_bias_probes(demo_pair().base, demo_bias_texts(), pool="last", splits=3)


@pytest.mark.seconds
def test_the_planted_groups_are_found_in_late_layers_and_shuffled_ones_are_not(planted: Any) -> None:
    assert planted.auc[-3:].min() > 0.95
    assert planted.accuracy[-3:].min() > 0.9
    assert abs(planted.control_auc.mean() - 0.5) < 0.08
    assert planted.selectivity[-1] > 0.3
    assert (np.abs(planted.bag_of_words - 0.5) < 0.2).all(), "no word of a prompt tells which occupation it is"


@pytest.mark.seconds
def test_no_group_is_on_both_sides_of_a_split() -> None:
    """Of groups with labels of their own choosing, what is learnt of some says nothing of the others."""
    found = demo_bias_texts()
    names = sorted(set(found.groups))
    rng = np.random.default_rng(2)
    label = dict(zip(names, rng.permutation([i % 2 == 0 for i in range(len(names))]).tolist(), strict=True))
    random = LabeledTexts(found.texts, tuple(label[group] for group in found.groups), found.groups)
    probes = train_bias_probes(demo_pair().base, random, pool="last", splits=4)
    assert probes.auc.mean() < 0.75


def test_directions_are_of_unit_length_and_at_right_angles(planted: Any) -> None:
    np.testing.assert_allclose(np.linalg.norm(planted.direction, axis=1), 1)
    np.testing.assert_allclose(np.linalg.norm(planted.second, axis=1), 1)
    np.testing.assert_allclose(np.einsum("ld,ld->l", planted.direction, planted.second), 0, atol=1e-12)
    assert (planted.second_auc[-1] > 0.9).all(), "the second direction separates too"


def test_texts_are_projected_on_both_directions(planted: Any) -> None:
    biased = planted.projection[-1, planted.biased, 0]
    others = planted.projection[-1, ~planted.biased, 0]
    assert biased.mean() > 0 > others.mean()
    np.testing.assert_allclose(planted.projection.mean(axis=1), 0, atol=1e-9)


def test_generalisation_names_the_layers_whose_probes_hold(planted: Any) -> None:
    own = np.diag(planted.generalization)
    np.testing.assert_allclose(own, planted.auc.mean(axis=1), atol=1e-12)
    for layer in range(planted.n_layers):
        holds = planted.generalizing(layer, 0.9)
        assert list(holds) == [k for k in range(planted.n_layers) if planted.generalization[k, layer] > 0.9]
        assert layer in holds
    assert planted.generalizing(-1, 0.0) == tuple(range(planted.n_layers))


@pytest.mark.parametrize(("family", "backend"), [("gpt2", "hooked"), ("llama", "bridge")])
@pytest.mark.parametrize("pool", ["mean", "last"])
def test_states_are_the_pooled_streams_that_leave_each_block(
    family: str, backend: str, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(family, backend, dtype=torch.float64)
    kept: list[Any] = []
    real = module.pooled_states
    monkeypatch.setattr(module, "pooled_states", lambda *options: kept.append(real(*options)) or kept[-1])
    found = train_bias_probes(model, PAIRS, pool=pool, splits=2)
    names = ["blocks.0.hook_resid_pre", *(f"blocks.{layer}.hook_resid_post" for layer in range(model.n_layers))]
    for number in (0, 1, 7):
        ids = model.tokens(found.texts[number])
        start = int(ids[0] == model.bos_token_id)
        streams = [model.run(ids, capture=names).activations[name][0, start:].double() for name in names]
        wanted = torch.stack([one.mean(0) if pool == "mean" else one[-1] for one in streams]).numpy()
        np.testing.assert_allclose(kept[0][number], wanted, atol=1e-4)


def test_auc_and_accuracy_by_hand() -> None:
    values, target = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([0, 1, 0, 1])
    accuracy, auc = module._accuracy_and_auc(values, (np.array([1.0]), -0.5), target)
    assert (accuracy, auc) == (0.75, 0.75)


@pytest.mark.seconds
def test_probes_are_saved_and_tabulated(planted: Any, tmp_path: Path) -> None:
    assert Result.load(planted.save(tmp_path / "probes")).equals(planted)
    table = planted.to_frame()
    assert list(table["layer"]) == list(range(planted.n_layers))
    np.testing.assert_allclose(table["auc"], planted.auc.mean(axis=1))
    again = train_bias_probes(demo_pair().base, demo_bias_texts(), pool="last", splits=3)
    np.testing.assert_array_equal(again.direction, planted.direction)


def test_which_texts_of_a_data_set_are_biased() -> None:
    after = StereoSetExample("b", "intersentence", "gender", "boy", "He left.", "He cried.", "He laughed.", "A stone.")
    crows = [CrowsPair("She is weak.", "He is weak.", "stereo", "gender"),
             CrowsPair("She is strong.", "He is strong.", "antistereo", "gender")]  # fmt: skip
    found = labeled_texts([after, after], by="target")
    assert found.texts[:2] == ("He left. He cried.", "He left. He laughed.")
    assert found.groups == ("boy",) * 4
    assert labeled_texts([after, after]).n_groups == 2
    assert labeled_texts(crows).texts == ("She is weak.", "He is weak.", "He is strong.", "She is strong.")
    assert labeled_texts(PAIRS[:1]) == LabeledTexts(("A pilot flies.", "A pilot flies Paris."), (True, False),
                                                      ("A pilot flies",) * 2)  # fmt: skip


@pytest.mark.seconds
def test_splits_with_one_label_on_a_side_are_drawn_again() -> None:
    """Two groups of twelve are biased: most splits have none of them among the texts that are tested on."""
    texts = tuple(
        f"{word} dog." for word in ["A", "The", "One", "Two", "My", "Your", "Her", "His", "Its", "Our", "This", "That"]
    )
    few = LabeledTexts(texts, (True, True, *(False,) * 10), texts)
    found = train_bias_probes(tiny_model("gpt2", "auto"), few, splits=6)
    assert np.isfinite(found.auc).all()
    assert found.auc.shape[1] == 6


def test_bad_data_are_refused_in_a_sentence() -> None:
    model = tiny_model("gpt2", "auto")
    with pytest.raises(ValueError, match="an accuracy of 9 groups says nothing: give at least 10"):
        train_bias_probes(model, PAIRS[:9])
    with pytest.raises(ValueError, match="at least one example"):
        labeled_texts([])
    one_class = LabeledTexts(tuple(pair.biased for pair in PAIRS), (True,) * 10, tuple(pair.group for pair in PAIRS))
    with pytest.raises(ValueError, match="data must hold biased and benign texts, got one kind only"):
        train_bias_probes(model, one_class)
    one_benign = replace(one_class, biased=(True,) * 9 + (False,))
    with pytest.raises(
        ValueError, match="of 100 splits of the groups 0 have texts of both labels on both sides, 5 are"
    ):
        train_bias_probes(model, one_benign)
    with pytest.raises(ValueError, match="held_out must be above 0 and below 1, got 1"):
        train_bias_probes(model, PAIRS, held_out=1.0)
    with pytest.raises(ValueError, match=r"one entry per text, got \(1, 0, 1\)"):
        LabeledTexts(("a",), (), ("b",))

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_bias_probes(model, PAIRS, check=stop)
