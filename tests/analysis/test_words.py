"""Words as a model holds them: the mean of the tokens that stand for a word after a space."""

from __future__ import annotations

import copy
import inspect

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from interp_widgets.analysis._core.top_k import TopK
from interp_widgets.analysis._core.word_embeddings import WordTable, word_ids, word_list, word_table
from interp_widgets.data.word_vectors import WordVectors, demo_word_vectors
from interp_widgets.models import load_model
from tests.models.tiny import HALF_SEED, tiny_hf, tiny_model
from tests.shipped import demo_pair

WORDS = ("the", "shells", "Quixotic", "don't", "naïve", "x")


def naive(model: object, word: str, table: torch.Tensor) -> torch.Tensor:
    """The tokens that a word has inside a text, without one for the space alone, averaged one by one in float64."""
    before, whole = (model.tokens(text, prepend_bos=False) for text in ("sea", f"sea {word}"))  # type: ignore[attr-defined]
    assert whole[: len(before)] == before
    inside = [token for token in whole[len(before) :] if model.token_strings([token]) != (" ",)]  # type: ignore[attr-defined]
    rows = [table[token].double() for token in inside]
    return sum(rows[1:], rows[0]) / len(rows)


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_a_word_is_the_mean_of_its_tokens_inside_a_text(family: str, backend: str) -> None:
    model = tiny_model(family, backend)
    for side, table in (("input", model.weight("W_E")), ("output", model.weight("W_U").T)):
        found = word_table(model, WORDS, side=side)
        assert found.words == WORDS
        assert found.unknown == ()
        assert found.embeddings.dtype == torch.float32
        for row, word in zip(found.embeddings, WORDS, strict=True):
            assert torch.allclose(row.double(), naive(model, word, table), atol=1e-6), word
    assert found.n_tokens.max() > 1  # longer words were among them


@pytest.mark.hooked
def test_both_backends_and_half_precision_agree() -> None:
    hooked, bridge = (
        word_table(tiny_model("llama", backend, seed=HALF_SEED), WORDS).embeddings for backend in ("hooked", "bridge")
    )
    assert torch.equal(hooked, bridge)
    half = word_table(tiny_model("llama", "hooked", dtype=torch.bfloat16, seed=HALF_SEED), WORDS).embeddings
    assert half.dtype == torch.float32
    assert torch.allclose(half, hooked, atol=0.02)
    assert word_table(tiny_model("llama", dtype=torch.float64), WORDS).embeddings.dtype == torch.float64


def test_batches_do_not_change_the_means(monkeypatch: pytest.MonkeyPatch) -> None:
    model = demo_pair().base
    whole = word_table(model).embeddings
    calls: list[int] = []
    monkeypatch.setattr("interp_widgets.analysis._core.word_embeddings._GATHERED", 7 * model.d_model)
    assert torch.equal(word_table(model, check=lambda: calls.append(1)).embeddings, whole)
    assert len(calls) > 100


def without_unknown_words() -> PreTrainedTokenizerFast:
    """Whole words only; the space stands alone before some of them."""
    words = {"<unk>": 0, "▁cat": 1, "▁dog": 2, "▁": 3, "7": 4}
    rest = {f"filler{i}": i for i in range(len(words), 460)}
    core = Tokenizer(models.WordLevel({**words, **rest}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Digits(individual_digits=True)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")


def test_unknown_words_are_listed_and_lone_spaces_left_out() -> None:
    model = load_model(tiny_hf("llama"), tokenizer=without_unknown_words())
    assert word_ids(model, ["cat", "zebra", "7"]) == [[1], [], [4]]
    found = word_table(model, ["cat", "zebra", "7"])
    assert isinstance(found, WordTable)
    assert found.words == ("cat", "7")
    assert found.unknown == ("zebra",)
    assert torch.equal(found.embeddings, model.weight("W_E")[[1, 4]])
    with pytest.raises(ValueError, match="can write none of the 1 words"):
        word_table(model, ["zebra"])


def test_word_lists_come_in_many_forms() -> None:
    assert word_list(None) == demo_word_vectors().words
    assert word_list(WordVectors(("b", "a"), np.eye(2))) == ("b", "a")
    assert word_list({"a": 1, "b": 5, "c": 3}) == ("b", "c", "a")
    assert word_list(["b", "a"]) == ("b", "a")
    with pytest.raises(TypeError, match="got one text: split it first"):
        word_list("the cat")
    with pytest.raises(ValueError, match="is in the list twice"):
        word_list(["a", "a"])


def test_bad_options_are_refused() -> None:
    model = tiny_model("gpt2")
    with pytest.raises(ValueError, match="side must be 'input' or 'output'"):
        inspect.unwrap(word_table)(model, WORDS, side="inside")  # the type checker of the tests would refuse it first
    nameless = load_model(tiny_hf("gpt2"))
    with pytest.raises(ValueError, match="without a tokenizer"):
        word_table(nameless, WORDS)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_many_texts_have_the_tokens_of_each(family: str) -> None:
    model = tiny_model(family)
    texts = ["", " the", "sea shells", "naïve ☃", "<s>", "x" * 300]
    wanted = [model.tokens(text, prepend_bos=False) for text in texts]
    assert model.token_lists(texts) == wanted
    assert model.token_lists([]) == []
    # a tokenizer that someone has set to pad and cut gives the same
    padding = copy.deepcopy(model.tokenizer)
    padding.pad_token = padding.eos_token
    padding.backend_tokenizer.enable_padding(length=50)
    padding.backend_tokenizer.enable_truncation(4)
    own = load_model(tiny_hf(family), tokenizer=padding)
    assert own.token_lists(texts) == wanted


@pytest.mark.parametrize(("length", "tile"), [(40, 7), (203, 203), (203, 120)])
def test_the_largest_numbers_of_tiles_are_those_of_the_whole(length: int, tile: int) -> None:
    rows = torch.randn(5, length, generator=torch.Generator().manual_seed(0))
    rows[:, 7] = rows[:, 31] = 9.0  # a tie: the earlier place comes first
    rows[2, -1] = 8.0
    for by_size in (False, True):
        best = TopK(6, by_size=by_size)
        for start in range(0, length, tile):
            best.add(rows[:, start : start + tile], start)
        order = (rows.abs() if by_size else rows).argsort(dim=-1, descending=True, stable=True)[:, :6]
        assert torch.equal(best.indices, order)
        assert torch.equal(best.values, rows.gather(1, order))
