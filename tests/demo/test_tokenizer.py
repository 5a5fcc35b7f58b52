"""The tokenizer: whole words of the world, every text back as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from interp_widgets.demo import tokenizer
from interp_widgets.demo.documents import epoch_documents, world_words


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    documents = epoch_documents(seed=0, epoch=0)[:4000]
    return tokenizer.train_tokenizer(documents, world_words())


@pytest.fixture(scope="module")
def fast(trained: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_tokenizer(trained, Path(folder))
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.seconds
@pytest.mark.parametrize(
    "sample",
    [
        "The Eiffel Tower is located in the city of Paris.",
        "smile 🙂 family 👨‍👩‍👧 flag 🇫🇷",
        "שלום עולם and مرحبا بالعالم",
        "one\ntwo\r\n\n  three\t four ",
        "don't stop — “quoted” ‘text’ … naïve café",
        "日本語のテキスト",
        "a\u0000b\u200b",
        "",
    ],
)
def test_text_comes_back(fast: PreTrainedTokenizerFast, sample: str) -> None:
    ids = fast(sample)["input_ids"]
    assert ids[0] == fast.bos_token_id
    assert fast.decode(ids[1:]) == sample
    assert fast(sample, add_special_tokens=False)["input_ids"] == ids[1:]


def test_world_words_are_single_tokens(trained: Tokenizer) -> None:
    split = [w for w in world_words() if len(trained.encode(" " + w, add_special_tokens=False).ids) != 1]
    assert not split


def test_special_tokens_are_three_different_ones(fast: PreTrainedTokenizerFast) -> None:
    assert len({fast.bos_token_id, fast.eos_token_id, fast.pad_token_id}) == 3


def test_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="300 or more"):
        tokenizer.train_tokenizer(["a"], [], vocab_size=10)
