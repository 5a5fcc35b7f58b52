"""The chance level of head words against the pairs of vectors shuffled by hand, and the words that a model has read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis._core.word_embeddings import word_table
from interp_widgets.analysis.head_words import head_word_chance, head_word_pairs, words_read
from interp_widgets.analysis.head_words.chance import prediction_interval
from interp_widgets.data.token_counts import demo_token_counts
from interp_widgets.data.word_vectors import demo_word_vectors
from interp_widgets.demo.batches import batches_from
from interp_widgets.demo.pair import ASSETS, CONFIGS
from interp_widgets.demo.token_counts import make_token_counts
from interp_widgets.models import load_model
from tests.analysis.test_head_words import TOP, VECTORS, WORDS
from tests.models.tiny import tiny_hf, tiny_model
from tests.shipped import demo_pair


def test_chance_is_what_the_search_gives_with_shuffled_vectors() -> None:
    model, holes = tiny_model("llama"), VECTORS.copy()
    holes[[1, 20]] = 0
    chance = head_word_chance(model, words=WORDS, vectors=holes, top=TOP, shuffles=3, seed=4, layers=[0, 2])
    has, rng = np.flatnonzero(holes.any(axis=1)), np.random.default_rng(4)
    per_dimension = []
    for shuffle in range(-1, 3):
        order = np.arange(len(WORDS))
        if shuffle >= 0:
            order[has] = rng.permutation(has)
        # all words are among the frequent ones, so that a word's threshold goes with its vector
        found = head_word_pairs(model, words=WORDS, vectors=holes[order], top=TOP, keep=500, layers=[0, 2])
        n_pairs, cosine = (chance.n_pairs, chance.cosine) if shuffle < 0 else (
            chance.chance_pairs[shuffle], chance.chance_cosine[shuffle])  # fmt: skip
        np.testing.assert_array_equal(n_pairs, found.n_pairs)
        np.testing.assert_allclose(cosine, np.nanmean(found.head_scores, axis=-1), rtol=1e-5)
        per_dimension.append(found.dimension_counts)
    np.testing.assert_array_equal(chance.dimension_counts, per_dimension[0])
    np.testing.assert_allclose(chance.chance_dimension_counts, np.mean(per_dimension[1:], axis=0))


@pytest.mark.seconds
def test_a_head_that_relates_near_words_is_above_chance_and_one_of_random_vectors_is_not() -> None:
    hf_model = tiny_hf("llama", dtype=torch.float64)
    with torch.no_grad():  # head 0 of layer 1 asks and is asked alike
        attention = hf_model.model.layers[1].self_attn
        attention.k_proj.weight[:8] = attention.q_proj.weight[:8]
    model = load_model(hf_model, tokenizer=tiny_model("llama").tokenizer, dtype=torch.float64)
    scale = model.weight("ln1_w", 1)[:, None]
    known = (word_table(model, WORDS).embeddings @ (scale * model.weight("W_Q", 1)[0])).numpy()
    chance = head_word_chance(model, words=WORDS, vectors=known, top=TOP, shuffles=15)
    assert chance.above(1, 0)
    assert chance.n_pairs[1, 0] > 1.5 * chance.chance_pairs[:, 1, 0].mean()
    assert chance.totals()["pairs"][0] == chance.n_pairs.sum()
    inside = []
    for seed in range(8):  # vectors that have nothing to do with the model
        lot = np.random.default_rng(seed).normal(size=(12, 8))[np.random.default_rng(seed + 99).integers(0, 12, 90)]
        lot = lot + 0.4 * np.random.default_rng(seed + 50).normal(size=lot.shape)
        found = head_word_chance(model, words=WORDS, vectors=lot, top=TOP, shuffles=15, seed=seed)
        low, high = found.pair_interval
        inside.append((found.n_pairs >= low) & (found.n_pairs <= high))
        assert found.totals()["pairs"][0] < 1.4 * found.totals()["pairs"][1]
    assert 0.88 < np.mean(inside) <= 1.0


def test_an_interval_holds_one_more_value_19_times_of_20() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(3, 2, size=(11, 4000))
    low, high = prediction_interval(values[:10])
    assert abs(np.mean((low <= values[10]) & (values[10] <= high)) - 0.95) < 0.015
    # one of the mean, as positive control, does not
    half = 2.262 * values[:10].std(axis=0, ddof=1) / np.sqrt(10)
    assert np.mean(np.abs(values[10] - values[:10].mean(axis=0)) < half) < 0.6


@pytest.mark.seconds
def test_the_demo_is_above_chance_and_says_so(tmp_path: Any) -> None:
    chance = head_word_chance(demo_pair().base, top=30, shuffles=4)
    value, mean, low, high = chance.totals()["pairs"]
    assert low < mean < high < value
    assert f"{(value - mean) / value:.0%} of them beyond chance" in chance.in_words()
    assert str(chance.heads_above) + " of 36 heads" in chance.in_words()
    frame = chance.to_frame()
    assert len(frame) == 36
    assert (frame.chance.sum(), frame.pairs.sum()) == (pytest.approx(mean), value)
    again = Result.load(chance.save(tmp_path / "chance.npz"))
    assert again.in_words() == chance.in_words()
    assert np.array_equal(head_word_chance(demo_pair().base, top=30, shuffles=4).chance_pairs, chance.chance_pairs)
    other = head_word_chance(demo_pair().base, top=30, shuffles=4, seed=1)
    assert not np.array_equal(other.chance_pairs, chance.chance_pairs)
    with pytest.raises(ValueError, match=r"shuffles must be in 2\.\.1000, got 1"):
        head_word_chance(demo_pair().base, shuffles=1)


# ---- words that were read


def test_a_word_stays_if_each_of_its_tokens_was_read() -> None:
    model = tiny_model("llama")
    texts = ["the cat sat on a mat", " dog dog"]
    ids = [token for text in texts for token in model.tokens(text, prepend_bos=True)]
    for least in (1, 2):
        wanted = [
            word for word in WORDS
            if all(ids.count(token) >= least for token in model.tokens(f" {word}", prepend_bos=False))
        ]  # fmt: skip
        assert list(words_read(model, WORDS, texts=texts, min_count=least)) == wanted
        assert 0 < len(wanted) < len(WORDS)
    table = word_table(model, WORDS)  # a token of the space alone does not count
    single = [word for word, n_tokens in zip(table.words, table.n_tokens, strict=True) if n_tokens == 1]
    assert list(words_read(model, WORDS, one_token=True)) == single
    assert 0 < len(single) < len(WORDS)
    with pytest.raises(ValueError, match="are not known: give texts= with a sample"):
        words_read(model, WORDS)
    with pytest.raises(ValueError, match="none of the 1 words is left"):
        words_read(model, ["zebra"], texts=["dog"])


def test_the_demo_models_know_what_they_have_read() -> None:
    pair, listed = demo_pair(), demo_word_vectors().words
    base, tuned = (set(listed) - set(words_read(model)) for model in pair)
    assert base == {"Friends", "Here", "I", "List", "Many", "My", "One", "Today", "While"}
    assert tuned == {"Many", "Today"}


@pytest.mark.seconds
def test_the_shipped_counts_are_those_of_the_training(tmp_path: Any) -> None:
    tokenizer = Tokenizer.from_file(str(ASSETS / "base" / "tokenizer.json"))
    told = make_token_counts(tmp_path / "few.npz", steps=4)
    few = np.load(tmp_path / "few.npz")
    before = np.zeros(tokenizer.get_vocab_size(), dtype=int)
    for stage in ("base", "tuned"):
        shipped = demo_token_counts(f"demo-{stage}")
        assert shipped is not None
        config = CONFIGS[stage]
        batches = batches_from(stage, tokenizer, seed=config.seed, tokens_per_batch=config.tokens_per_batch)
        for _ in range(4):
            batch = next(batches)
            for token, document in zip(batch.tokens.ravel(), batch.document.ravel(), strict=True):
                before[token] += document >= 0
        assert np.array_equal(few[f"demo-{stage}"], before)
        assert told[f"unread by demo-{stage}"] == (before == 0).sum()
        assert (shipped >= before).all()
        assert (shipped > before).any()
        # what is read in 4 steps is 4 parts of what is read in all: the shipped counts are of the whole training
        steps = config.steps + (CONFIGS["base"].steps if stage == "tuned" else 0)
        assert 0.8 < shipped.sum() / steps / (before.sum() / (4 if stage == "base" else 8)) < 1.2
    assert demo_token_counts("another") is None
