"""A prompt is cut into words and sentences where a reader would, every token in one span."""

from __future__ import annotations

import numpy as np
import pytest

from interp_widgets.analysis.saliency.spans import read_spans, word_spans
from tests.models.tiny import TEXT, tiny_model


def joined(tokens: list[str], spans: tuple[tuple[int, int], ...]) -> list[str]:
    return ["".join(tokens[a:b]) for a, b in spans]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([], []),
        (["Hello"], ["Hello"]),
        (["He", "llo", " wor", "ld", "!"], ["Hello", " world", "!"]),
        (["pi", " ", "is", " 3"], ["pi ", "is", " 3"]),
        (["\n", "a"], ["\n", "a"]),
        (["co", "-", "op", " isn", "’", "t", " -", " it"], ["co-op", " isn’t", " -", " it"]),
        (["a", ").", " b", "..."], ["a", ").", " b", "..."]),
        (["x,y", "z", " w"], ["x,yz", " w"]),
        (["two words", " and"], ["two words", " and"]),
        (["caf", "é", "⋯", " noir"], ["café⋯", " noir"]),
        (["▁a", "b", "▁c"], ["▁ab", "▁c"]),
    ],
)
def test_words(tokens: list[str], words: list[str]) -> None:
    assert joined(tokens, word_spans(tokens)) == words


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("kind", ["words", "sentences", "passages"])
def test_every_token_is_in_one_span(family: str, kind: str) -> None:
    model = tiny_model(family)
    for text in (*TEXT.splitlines(), "emoji 👩‍👩‍👧 and 🎉, שלום"):
        tokens = model.token_strings(model.tokens(text, prepend_bos=False))
        spans = read_spans(kind, None, tokens, [False] * len(tokens))
        assert [i for a, b in spans for i in range(a, b)] == list(range(len(tokens)))
    if kind == "words":
        tokens = list(model.token_strings(model.tokens("The Eiffel Tower is in Paris.", prepend_bos=False)))
        assert [word.strip() for word in joined(tokens, word_spans(tokens))] == [
            "The", "Eiffel", "Tower", "is", "in", "Paris", ".",
        ]  # fmt: skip


def test_special_tokens_are_spans_of_their_own() -> None:
    tokens = ["<s>", "One", ".", "</s>", " Two", " words", "</s>"]
    special = np.array([True, False, False, True, False, False, True]).tolist()
    assert read_spans("sentences", None, tokens, special) == ((0, 1), (1, 3), (3, 4), (4, 6), (6, 7))
    assert read_spans("words", (1, 5), tokens, special) == ((1, 2), (2, 3), (3, 4), (4, 5))
    assert read_spans([(4, 6), (0, 2)], None, tokens, special) == ((0, 2), (4, 6))
    assert read_spans(None, (2, 4), tokens, special) == ((2, 3), (3, 4))


def test_passages_are_about_eight_stretches_of_whole_sentences() -> None:
    tokens = [token for _ in range(20) for token in (" Some", " words", ".")]
    none = [False] * len(tokens)
    spans = read_spans("passages", None, tokens, none)
    assert 3 <= len(spans) <= 4
    ends = {end for _, end in read_spans("sentences", None, tokens, none)}
    assert [i for a, b in spans for i in range(a, b)] == list(range(60))
    assert {end for _, end in spans} <= ends
    roles = ["template"] * 5 + ["user"] * 50 + ["template"] * 5
    in_chat = read_spans("passages", None, tokens, none, roles)
    assert {(roles[a], roles[b - 1]) for a, b in in_chat} == {("template", "template"), ("user", "user")}
    assert len(in_chat) <= 12
    assert read_spans("passages", None, tokens[:3], none[:3]) == ((0, 3),)
    assert read_spans("passages", None, ["<s>", *tokens[:3]], [True, *none[:3]]) == ((0, 1), (1, 4))
    endless = read_spans("passages", None, [" word"] * 160, [False] * 160)
    assert [end - start for start, end in endless] == [20] * 8, "a sentence longer than a passage is cut between words"
