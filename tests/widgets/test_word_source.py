"""Words handed to the browsers that read weights: a list or a file that is given is the one that is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interp_widgets.widgets.base.word_source import meant_list
from interp_widgets.widgets.ffn_concepts import FFNConceptBrowser
from interp_widgets.widgets.head_words import HeadWordBrowser
from tests.models.tiny import tiny_model

WORDS = ["dog", "Paris", "store", "river", "city", "France"]


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


def test_what_is_said_wins() -> None:
    assert meant_list(()) == {}
    assert meant_list({"words", "word_file"}) == {"word_list": "own"}
    assert meant_list({"words", "word_list"}) == {}
