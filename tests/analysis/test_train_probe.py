"""Linear probes: right where there is something to read, at chance where there is nothing, not fooled by a split."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from interp_widgets import ProbeResult, Result, last_states, train_probe
from interp_widgets.analysis.probe.training import MEASURES, _Groups
from tests.models.tiny import TEXT, tiny_model

WORDS = sorted({word for word in TEXT.replace(".", " ").replace(",", " ").split() if word.isascii() and word.isalpha()})
FEW: dict[str, Any] = {"seeds": [0, 1]}


def sentences(count: int, seed: int = 0) -> list[str]:
    """Different texts of six random words."""
    draw = random.Random(seed)
    return sorted({" ".join(draw.choices(WORDS, k=6)) for _ in range(2 * count)})[:count]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("gpt2")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return sentences(160)


def planted(model: Any, texts: list[str], layer: int) -> list[str]:
    """Labels that are linear in the hidden state: the side of a plane through its median."""
    states = last_states(model, texts, layer)[:, 0].astype(np.float64)
    centred = (states - states.mean(axis=0)) / states.std(axis=0)
    score = centred @ np.random.default_rng(5).normal(size=states.shape[1])
    return ["high" if one > np.median(score) else "low" for one in score]


def test_a_label_that_is_linearly_there_is_read(model: Any, texts: list[str]) -> None:
    result = train_probe(model, texts, planted(model, texts, 2), layer=2, **FEW)
    assert result.accuracy > 0.85
    assert result.interval()[0] > result.interval("control")[1]
    assert result.interval("selectivity")[0] > 0.1
    assert (result.classes, result.n_texts, result.n_groups, result.layer) == (("high", "low"), 160, 160, 2)
    assert result.probe.shape == (2, 4)


def test_a_random_label_is_at_chance(model: Any, texts: list[str]) -> None:
    labels = np.random.default_rng(1).permutation(["a", "b"] * 80).tolist()
    result = train_probe(model, texts, labels, layer=2, **FEW)
    for measure in MEASURES:
        low, high = result.interval(measure)
        assert low - 0.05 <= 0.5 <= high + 0.05, measure
    low, high = result.interval("selectivity")
    assert low < 0 < high


@pytest.mark.seconds
def test_three_labels_and_the_most_frequent_one(model: Any, texts: list[str]) -> None:
    labels = ["x"] * 100 + ["y"] * 40 + ["z"] * 20
    result = train_probe(model, texts, labels, layer=1, **FEW)
    assert result.majority.mean() == pytest.approx(100 / 160, abs=1e-9)
    assert result.weights.shape == (3, model.d_model)


def test_what_the_words_say_is_found_by_the_bag_of_words(model: Any) -> None:
    texts = [f"{text} {word} one" for text in sentences(60) for word in ("dog", "river")]
    result = train_probe(model, texts, [text.split()[-2] for text in texts], layer=3, **FEW)
    assert result.bag_of_words.mean() > 0.9
    assert result.embedding.mean() < 0.7, "the last token is the same everywhere"


def test_the_embedding_reads_the_token_itself(model: Any) -> None:
    texts = [f"{text} {word}" for text in sentences(60) for word in ("dog", "river")]
    assert train_probe(model, texts, [text.split()[-1] for text in texts], layer=3, **FEW).embedding.mean() > 0.95


@pytest.mark.seconds
def test_one_group_is_never_on_both_sides(model: Any) -> None:
    """The label is a name's own: with every name on both sides any reader of words has it, with new names none."""
    names = [word for word in WORDS if len(word) > 3][:24]
    texts = [f"{name} {text} one" for name in names for text in sentences(6)]
    groups = [text.split()[0] for text in texts]
    labels = [names.index(name) * 7 % 24 % 2 for name in groups]
    mixed = train_probe(model, texts, labels, layer=2, **FEW)
    apart = train_probe(model, texts, labels, layer=2, groups=groups, **FEW)
    assert mixed.bag_of_words.mean() > 0.9
    assert abs(apart.bag_of_words.mean() - 0.5) < 0.2
    assert (mixed.n_groups, apart.n_groups) == (144, 24)


@pytest.mark.parametrize("seed", range(5))
def test_splits_keep_groups_and_equal_texts_together(seed: int) -> None:
    draw = np.random.default_rng(seed)
    read = [(int(one), 7) for one in draw.integers(0, 600, 120)]
    groups = draw.integers(0, 60, 120).tolist()
    held = _Groups.of(read, groups)
    tested = []
    for train, test in held.splits(draw.integers(0, 2, 120), 3, seed):
        assert not {groups[i] for i in train} & {groups[i] for i in test}
        assert len(set(read)) < len(read), "else the next line says nothing"
        assert not {read[i] for i in train} & {read[i] for i in test}
        tested += test.tolist()
    assert sorted(tested) == list(range(120)), "every text is tested once"


def test_shuffled_labels_are_the_same_labels_of_other_texts() -> None:
    read = [(i // 2,) for i in range(200)]  # every text twice
    target = np.repeat(np.arange(100) % 2, 2)
    shuffled = _Groups.of(read, None).shuffled(target, 3)
    assert (shuffled[::2] == shuffled[1::2]).all()
    assert np.bincount(shuffled).tolist() == [100, 100]
    assert 40 < (shuffled == target).sum() < 160


def test_the_interval_is_that_of_the_formula(model: Any, texts: list[str]) -> None:
    result = train_probe(model, texts, planted(model, texts, 2), layer=2, folds=3, **FEW)
    values = [float(one) for row in result.probe for one in row]
    mean = sum(values) / 6
    variance = sum((one - mean) ** 2 for one in values) / 5 * (1 / 6 + 1 / 2)
    reach = scipy.stats.t.ppf(0.975, 5) * variance**0.5
    assert result.interval() == pytest.approx((mean - reach, min(1.0, mean + reach)))
    wider = result.interval(level=0.99)
    assert wider[0] < mean - reach


@pytest.mark.parametrize("penalty", [0.1, 1.0])
def test_the_last_fit_is_the_minimum_that_it_should_be(model: Any, texts: list[str], penalty: float) -> None:
    """At the minimum of log-loss plus penalty / 2 times the squared norm, on standardised states, the slope is 0."""
    labels = planted(model, texts, 1)
    result = train_probe(model, texts, labels, layer=1, penalty=penalty, **FEW)
    states = last_states(model, texts, 1)[:, 0].astype(np.float64)
    mean, deviation = states.mean(axis=0), states.std(axis=0)
    weights = result.weights[0] * deviation
    slope = penalty * weights
    for row, label in zip((states - mean) / deviation, labels, strict=True):
        chance = 1 / (1 + np.exp(-(row @ weights + result.bias[0] + result.weights[0] @ mean)))
        slope = slope + (chance - (label == "low")) * row
    assert np.abs(slope).max() < 1e-3 * len(texts)
    assert np.mean([a == b for a, b in zip(result.predict(states), labels, strict=True)]) > 0.9


@pytest.mark.seconds
def test_the_token_that_is_read(model: Any) -> None:
    texts = [f"{text} {word}" for text in sentences(30) for word in ("dog one", "two one")]
    labels = [text.split()[-2] for text in texts]
    place = -1 - len(model.tokens(" one"))
    assert train_probe(model, texts, labels, layer=1, token=place, **FEW).embedding.mean() > 0.95
    assert train_probe(model, texts, labels, layer=1, token=[place] * 60, **FEW).embedding.mean() > 0.95
    assert train_probe(model, texts, labels, layer=1, **FEW).embedding.mean() < 0.7


def test_saved_and_in_a_table(model: Any, texts: list[str], tmp_path: Path) -> None:
    result = train_probe(model, texts, planted(model, texts, 2), layer=-1, **FEW)
    assert isinstance(result, ProbeResult)
    assert Result.load(result.save(tmp_path / "probe")).equals(result)
    frame = result.to_frame().set_index("measure")
    assert list(frame.index) == [*MEASURES, "selectivity"]
    assert frame.loc["probe", "mean"] == pytest.approx(result.accuracy)
    assert (frame["low"] <= frame["mean"]).all()
    assert result.layer == model.n_layers
    assert result.provenance["layer"] == model.n_layers


def test_progress_and_cancel(model: Any, texts: list[str]) -> None:
    told: list[tuple[int, int]] = []
    train_probe(model, texts, ["a", "b"] * 80, layer=1, folds=2, progress=lambda *at: told.append(at), **FEW)
    assert told[-1] == (164, 164)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    calls = 0

    def stop() -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_probe(model, texts, ["a", "b"] * 80, layer=1, check=stop, **FEW)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"texts": sentences(39), "labels": ["a"] * 39}, "39 texts are too few for an accuracy: give at least 40"),
        ({"labels": ["a"] * 160}, "labels must have at least two different values, got 'a' only"),
        ({"labels": ["a"] * 151 + ["b"] * 9}, "the label 'b' has 9 texts: give at least 10 of each label"),
        ({"labels": ["a"]}, "labels must have one entry per text, 160, got 1"),
        ({"groups": list(range(9)) * 17 + list(range(7))}, "9 groups are too few for an accuracy: give at least 10"),
        ({"groups": [0] * 80 + list(range(1, 81)), "labels": ["a"] * 80 + ["b"] * 80},
         "the label 'a' is in 1 groups and there are 4 folds"),
        ({"groups": [1]}, "groups must have one entry per text, 160, got 1"),
        ({"texts": ["one two"] * 160}, "1 different texts .* are too few"),
        ({"layer": 9}, "layer must be in -4..3"),
        ({"token": 99}, "position must be in"),
        ({"token": [0]}, "token must be an int or have one entry per text, 160, got 1"),
        ({"seeds": [0]}, "seeds must be at least two int >= 0, all different"),
        ({"seeds": [1, 1]}, "seeds must be at least two int >= 0, all different"),
        ({"folds": 1}, "folds must be in 2..10, got 1"),
        ({"penalty": 0.0}, "penalty must be"),
        ({"texts": [""] * 160}, "the text is empty|text 0"),
    ],
)  # fmt: skip
def test_what_says_nothing_is_refused(model: Any, texts: list[str], options: dict[str, Any], sentence: str) -> None:
    given = {"texts": texts, "labels": ["a", "b"] * 80, "layer": 1, **FEW, **options}
    with pytest.raises(ValueError, match=sentence) as refused:
        train_probe(model, **given)
    assert "\n" not in str(refused.value)


def test_states_of_another_width_are_refused(model: Any, texts: list[str]) -> None:
    result = train_probe(model, texts, ["a", "b"] * 80, layer=1, **FEW)
    with pytest.raises(ValueError, match=r"states must have shape \(n, 32\), got \(2, 3\)"):
        result.predict(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="measure must be one of probe, control"):
        result.interval("nothing")
