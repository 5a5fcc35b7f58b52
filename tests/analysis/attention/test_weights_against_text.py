"""`weights_against_text` against loops over single texts, on a head with planted pairs, and on others."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from interp_widgets import (
    AttentionPatterns,
    HeadWordResult,
    Result,
    WeightsAgainstText,
    attention_patterns,
    head_word_pairs,
    weights_against_text,
)
from interp_widgets.analysis.attention import word_attention
from interp_widgets.models import Model, load_model
from tests.models.tiny import tiny_model

WORDS = [
    "the",
    "cat",
    "dog",
    "of",
    "city",
    "river",
    "house",
    "day",
    "word",
    "France",
    "capital",
    "story",
    "plane",
    "sea",
]
PLANTED = 8
COUNT = 48


def sentences(words: list[str], count: int, length: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(words[i] for i in rng.integers(len(words), size=length)) for _ in range(count)]


# ---- a naive loop


def naive(
    model: Model, texts: list[str], read: list[AttentionPatterns], pairs: HeadWordResult, row: int, head: int
) -> list[tuple[Any, ...]]:
    """(text, query, key, query word, key word, attention, matched, share) of the pairs of a head in texts of words that
    are separated by spaces."""
    vocabulary, events = list(pairs.vocabulary), []
    for number, (text, result) in enumerate(zip(texts, read, strict=True)):
        words, bos = text.split(" "), int(result.bos)
        ends = [len(model.tokens(" ".join(words[: at + 1]))) - 1 for at in range(len(words))]
        for k, q in itertools.combinations(range(len(words)), 2):
            first_token_of_key = ends[k - 1] + 1 if k else bos
            if words[q] != words[k] and first_token_of_key > 0 and {words[q], words[k]} <= set(vocabulary):
                at = result.pattern(pairs.layers[row], head)[ends[q], ends[k]]
                events.append((number, ends[q] - bos, ends[k] - bos, words[q], words[k], float(at)))
    named = {(pair.query, pair.key) for pair in pairs.pairs(pairs.layers[row], head)}

    def kind(event: tuple[Any, ...]) -> tuple[int, ...]:
        distance = event[1] - event[2]
        near = distance if distance <= 4 else 4 + math.floor(2 * math.log2(distance / 4) + 1e-9)
        return near, *(math.floor(math.log2(vocabulary.index(word) + 1)) for word in event[3:5])

    found, kinds = [], [kind(event) for event in events]
    for event, own in zip(events, kinds, strict=True):
        if event[3:5] in named:
            others = [o[5] for o, of in zip(events, kinds, strict=True) if of == own and o[3:5] not in named]
            share = np.mean([(o < event[5]) + (o == event[5]) / 2 for o in others]) if others else np.nan
            found.append((*event, np.mean(others) if others else np.nan, share))
    return found


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_equals_a_loop_over_texts(family: str) -> None:
    model = tiny_model(family, "bridge")  # llama has grouped queries and a BOS
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(7, 8))[np.arange(len(WORDS)) % 7] + 0.1 * rng.normal(size=(len(WORDS), 8))
    pairs = head_word_pairs(model, words=WORDS, vectors=vectors, top=9, layers=[0, 2])
    start = "xq" if family == "gpt2" else "house"  # no word of the list, since no space is in front
    texts = [f"{start} {text}" for text in sentences(WORDS, 10, 14)]
    result = weights_against_text(model, texts, pairs, shuffles=3)
    read, compared = [attention_patterns(model, text, layers=pairs.layers) for text in texts], 0
    for row, head in np.ndindex(2, model.n_heads):
        expected = naive(model, texts, read, pairs, row, head)
        found = result.found(pairs.layers[row], head)
        order = [(place.text, place.query, place.key, place.query_word, place.key_word) for place in found]
        assert sorted(order) == sorted(event[:5] for event in expected)
        by_place = {event[:5]: event[5:] for event in expected}
        numbers = np.array([by_place[at] for at in order]).reshape(-1, 3)
        own = np.array([(place.attention, place.matched, place.auc) for place in found]).reshape(-1, 3)
        np.testing.assert_allclose(own, numbers, atol=1e-5)
        known = np.isfinite(numbers[:, 2])
        compared += known.sum()
        assert result.occurrences[row, head] == known.sum()
        assert result.unmatched[row, head] == (~known).sum()
        assert result.auc[row, head] == pytest.approx(numbers[known, 2].mean() if known.any() else np.nan, nan_ok=True)
        listed = result.pairs(pairs.layers[row], head)
        assert sum(pair.occurrences for pair in listed) == known.sum()
        assert len(listed) == result.n_pairs[row, head]
    assert compared > 50


# ---- a head with planted pairs


@functools.cache
def planted() -> tuple[Model, HeadWordResult, list[str]]:
    """A GPT-2 whose head 0.0 attends from word 2i to word 2i + 1 of the first words, its pairs, and random texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [f"word{number}" for number in range(COUNT)]
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="word0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    config = tf.GPT2Config(vocab_size=COUNT, n_positions=64, n_embd=64, n_head=4, n_layer=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hf = tf.GPT2LMHeadModel(config).eval()
        rows = torch.randn(64, COUNT)
    with torch.no_grad():
        table = torch.linalg.qr(rows - rows.mean(0))[0].T  # centred and orthonormal: a LayerNorm only scales them
        hf.transformer.wte.weight.copy_(table)
        hf.transformer.wpe.weight.zero_()
        weight = hf.transformer.h[0].attn.c_attn.weight
        pair = torch.randperm(COUNT, generator=torch.Generator().manual_seed(3))[: 2 * PLANTED].reshape(-1, 2)
        weight[:, :16] = weight[:, 64:80] = 0
        weight[:, :PLANTED] = 0.5 * table[pair[:, 0]].T
        weight[:, 64 : 64 + PLANTED] = 0.5 * table[pair[:, 1]].T
    model = load_model(hf, tokenizer=tf.PreTrainedTokenizerFast(tokenizer_object=core))
    vectors = np.random.default_rng(2).normal(size=(COUNT, 6))
    vectors[pair[:, 1]] = vectors[pair[:, 0]]
    pairs = head_word_pairs(model, words=words, vectors=vectors, top=1, frequent=COUNT)
    return model, pairs, sentences(words, 40, 30)


def test_a_head_that_attends_along_its_pairs_is_beyond_chance() -> None:
    model, pairs, texts = planted()
    assert len(pairs.pairs(0, 0)) == PLANTED
    result = weights_against_text(model, texts, pairs)
    assert result.auc[0, 0] > 0.99
    assert result.interval[0, 0, 0] > 0.95
    assert result.beyond_chance(0, 0)
    assert np.nanmean(result.control[:, 0, 0]) == pytest.approx(0.5, abs=0.1)
    assert result.in_words(0, 0).endswith("beyond chance")
    assert "not beyond" not in result.in_words(0, 0)
    assert result.measures()["head"] == "0.0"


def test_pairs_of_another_head_are_not_beyond_chance() -> None:
    model, pairs, texts = planted()
    everywhere = {name: np.broadcast_to(getattr(pairs, name)[0, 0], getattr(pairs, name).shape)
                  for name in ("head_pairs", "head_counts", "head_scores")}  # fmt: skip
    result = weights_against_text(model, texts, replace(pairs, **everywhere))
    low, high = result.interval.reshape(2, -1)
    assert result.beyond_chance(0, 0)
    inside = (low[1:] <= 0.5) & (high[1:] >= 0.5)
    assert inside.sum() >= 6  # of seven heads
    assert result.measures()["heads_beyond_chance"] <= 2
    assert np.abs(result.auc.reshape(-1)[1:] - 0.5).max() < 0.2


# ---- what cannot be measured


def test_no_pair_in_the_texts_is_said() -> None:
    model, pairs, _ = planted()
    first = pairs.pairs(0, 0)[0]
    absent = next(word for word in pairs.vocabulary if word not in {p.query for p in pairs.pairs(0, 0)})
    alone = weights_against_text(model, [f"{absent} {first.key} {first.query}"], pairs, shuffles=2)
    assert alone.unmatched[0, 0] == 1  # nothing to compare it with
    assert "no other words" in alone.in_words(0, 0)
    result = weights_against_text(model, [f"{absent} {absent}"], pairs, shuffles=2)
    assert np.isnan(result.auc).all()
    assert np.isnan(result.interval).all()
    assert not result.beyond_chance(0, 0)
    assert result.in_words(0, 0) == "None of the pairs of head 0.0 occurs in the 1 text, so there is no AUC"
    assert result.pairs(0, 0) == []
    assert result.found(0, 0) == []
    assert result.to_frame()["auc"].isna().all()
    assert result.measures()["head"] is None


def test_the_key_stands_before_the_query_and_is_not_the_first_token() -> None:
    model, pairs, texts = planted()
    result = weights_against_text(model, texts, pairs, shuffles=1)
    assert (result.places[:, 2] < result.places[:, 1]).all()
    assert (result.places[:, 2] > 0).all()
    first = pairs.pairs(0, 0)[0]
    turned = weights_against_text(model, [f"word0 {first.query} {first.key}"] * 2, pairs, shuffles=1)
    assert turned.texts_with[0, 0] == 0


def test_a_word_ends_where_no_letter_follows() -> None:
    model = tiny_model("llama", "bridge")
    pairs = head_word_pairs(model, words=WORDS, vectors=np.eye(len(WORDS)), top=2)
    words = word_attention._Words(model, pairs.vocabulary)
    ids = model.tokens("the dogged dog, the day")
    assert [pairs.vocabulary[word] for *_, word in words.find(ids)] == ["the", "dog", "the", "day"]


def test_saving_and_the_same_numbers_again(tmp_path: Any) -> None:
    model, pairs, texts = planted()
    result = weights_against_text(model, texts, pairs, shuffles=2)
    again = Result.load(result.save(tmp_path / "found.npz"))
    assert isinstance(again, WeightsAgainstText)
    assert again.equals(result)
    repeated = weights_against_text(model, texts, pairs, shuffles=2)
    np.testing.assert_array_equal(repeated.control, result.control)
    np.testing.assert_array_equal(repeated.interval, result.interval)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"texts": []}, "texts must be a list of at least one text"),
        ({"texts": [""]}, "the text is empty: write at least one word"),
        ({"texts": ["word1 " * 65]}, "the text has 65 tokens and the model reads 64: shorten it by at least 1"),
        ({"shuffles": 1001}, "shuffles must be in 1..1000"),
    ],
)
def test_bad_input(change: dict[str, Any], sentence: str) -> None:
    model, pairs, texts = planted()
    given: dict[str, Any] = {"texts": texts, **change}
    with pytest.raises(ValueError, match=sentence):
        weights_against_text(model, given.pop("texts"), pairs, **given)


def test_pairs_of_another_model_are_refused() -> None:
    _, pairs, texts = planted()
    with pytest.raises(ValueError, match="pairs must be those of this model with 3 layers of 4 heads, got pairs"):
        weights_against_text(tiny_model("llama", "bridge"), texts, replace(pairs, layers=(0, 3)))
