"""Words handed to the browsers that read weights: a list or a file that is given is the one that is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from interp_widgets import load_model
from interp_widgets.widgets.ffn_concepts import FFNConceptBrowser
from interp_widgets.widgets.head_words import HeadWordBrowser
from tests.models.tiny import tiny_hf, tiny_model

WORDS = ["dog", "Paris", "store", "river", "city", "France"]


@pytest.mark.seconds
@pytest.mark.parametrize("browser", [HeadWordBrowser, FFNConceptBrowser])
def test_given_words_are_the_words(browser: Any, wire: Any, tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("\n".join(WORDS[:4]))
    for options, wanted in (({"words": WORDS}, WORDS), ({"word_file": file}, WORDS[:4])):
        panel = browser(tiny_model("gpt2"), **options)
        try:
            assert panel.wait(60)
            assert list(panel.result.vocabulary) == wanted
        finally:
            panel.close()


def test_what_is_said_wins(wire: Any) -> None:
    panel = HeadWordBrowser(tiny_model("gpt2"), words=WORDS, word_list="demo")
    try:
        assert (panel.word_list, panel.words) == ("demo", WORDS)
    finally:
        panel.close()


@pytest.mark.parametrize("browser", [HeadWordBrowser, FFNConceptBrowser])
def test_words_that_are_missing_are_a_hint_where_they_belong(browser: Any, wire: Any) -> None:
    panel = browser(tiny_model("gpt2"), words=WORDS)
    try:
        assert panel.wait(60)
        panel.words = []
        assert "there are no words yet" in panel.controls.hints["words"]
        assert panel.status.state == "idle"
        assert panel.result is not None
        panel.word_list = "file"
        assert list(panel.controls.hints) == ["word_file"]
        panel.word_list = "demo"
        assert panel.controls.hints == {}
    finally:
        panel.close()


@pytest.mark.parametrize("browser", [HeadWordBrowser, FFNConceptBrowser])
def test_words_that_the_tokenizer_cannot_write_are_a_hint(browser: Any, wire: Any) -> None:
    core = Tokenizer(models.WordLevel({"<unk>": 0, "17": 1, "5": 2}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model = load_model(tiny_hf("llama"), tokenizer=PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>"))
    panel = browser(model, word_list="demo")
    try:
        assert "can write none of these 1,674 words: choose other words" in panel.controls.hints["word_list"]
        assert panel.status.state == "idle"
        panel.word_list, panel.words = "own", ["17", "5"]
        assert panel.controls.hints == {}
    finally:
        panel.close()
