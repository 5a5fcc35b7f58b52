"""Every kind of vocabulary: readable tokens, words by characters, parts read as one text; texts of every kind."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
from tokenizers import AddedToken

from interp_widgets import prompt_saliency, sentence_score
from interp_widgets.analysis._core.prompts import read_prompt, single_token
from interp_widgets.analysis._core.word_embeddings import word_ids
from interp_widgets.analysis.saliency.spans import word_spans
from interp_widgets.models.tokens import CONTINUATION
from tests.models.vocabularies import LOSSLESS, VOCABULARIES, model_of

PIECES = [
    "Paris", "capital", "don't", "co-op", "3.14", "naïveté", "Zürich", "é", "e\u0301", "ﬁ", "日本", "🙂",
    "👩\u200d👩\u200d👧", "🏳️\u200d🌈", "שלום", "مرحبا", "\u202eabc\u202c", "\x00", "\u2028", "\u2029", "\x85", "\x0c",
    "\ufeff", "\ufffd", "\U0010ffff", "a" * 300, "z\u0335\u0321" * 10, "<0x41>", "##al", "</w>", "Ġ", "▁", "\t", "\n",
    "\r\n", "  ", " ", ".", "!?", "”", "…",
]  # fmt: skip


def _texts() -> list[str]:
    drawn = random.Random(0)
    mixed = ["".join(drawn.choices(PIECES, k=drawn.randint(2, 6))) for _ in range(90)]
    apart = [" ".join(drawn.choices(PIECES, k=drawn.randint(2, 6))) for _ in range(90)]
    return ["", *PIECES, *(f" {piece}" for piece in PIECES[:10]), *mixed, *apart]


TEXTS = _texts()
MARKS = ("##", "</w>", "Ġ", "▁", "<0x")


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_texts_of_every_kind(kind: str) -> None:
    assert len(TEXTS) > 200
    model, drawn = model_of(kind), random.Random(1)
    for text in TEXTS:
        ids, spans = model.tokens(text, prepend_bos=False), model.token_spans(text)
        assert len(ids) == len(spans), text
        assert all(0 <= start <= end <= len(text) for start, end in spans), text
        assert spans == sorted(spans), text
        strings = model.token_strings(ids)
        if kind in LOSSLESS:
            assert {place for start, end in spans for place in range(start, end)} | {
                place for place, character in enumerate(text) if character.isspace()
            } == set(range(len(text))), text
            joined = "".join(string for string in strings if string != CONTINUATION)
            if kind.startswith("byte_level"):
                assert joined == model.decode(ids) == text
            else:  # it reads ▁ as a space, and begins a text with one
                readable = text.replace("▁", " ")
                assert joined in (readable, f" {readable}"), text
                assert model.decode(ids) == readable or (kind == "metaspace" and readable.startswith(" ")), text
        for mark in MARKS:
            assert mark in text or not any(mark in string for string in strings), (text, strings)
        words = word_spans(strings, spans)
        assert [i for start, end in words for i in range(start, end)] == list(range(len(ids))), text
        cut = drawn.randint(0, len(text))
        prompt, response = model.split(text[:cut], text[cut:], prepend_bos=False)
        assert prompt + response == ids, (text, cut)
        assert all(end <= cut for _, end in spans[: len(prompt)])
        assert not response or spans[len(prompt)][1] > cut


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_half_a_surrogate_pair_is_refused_in_a_sentence(kind: str) -> None:
    model = model_of(kind)
    calls: list[Callable[[str], object]] = [
        model.tokens,
        model.token_spans,
        lambda text: model.split(text, "a"),
        lambda text: model.split("a", text),
        lambda text: model.split([1], text),
        lambda text: model.token_lists([text]),
        lambda text: read_prompt(model, text),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"must be valid Unicode, but its character \d is '\\ud83d', one half"):
            call("a\ud83d")


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_a_row_of_the_map_is_a_word_of_the_text(kind: str) -> None:
    model = model_of(kind)
    text = "The dog is happy, the pilot flies."
    result = prompt_saliency(model, text, " She", method="random", spans="words")
    assert [text[a:b].strip() for a, b in result.prompt_spans or ()] == [
        "The", "dog", "is", "happy", ",", "the", "pilot", "flies", ".",
    ]  # fmt: skip
    assert [token.strip().lower() for token in result.prompt_tokens][:3] == ["the", "dog", "is"]
    assert "".join(result.prompt_tokens).strip().lower() == text.lower()
    tokens = prompt_saliency(model, text, " She", method="random")
    assert tokens.by_spans("words").spans == result.spans


def test_an_apostrophe_is_inside_a_word_though_its_token_shows_a_space() -> None:
    for kind in ("wordpiece", "word_ends", "word_ends_without_decoder"):
        model = model_of(kind)
        prompt = read_prompt(model, "Dogs don't live")
        words = word_spans(prompt.tokens(), prompt.spans)
        spans = prompt.spans or ()
        assert ["Dogs don't live"[spans[a][0] : spans[b - 1][1]].strip() for a, b in words] == ["Dogs", "don't", "live"]


def test_tokens_are_shown_without_the_marks_of_their_vocabulary() -> None:
    def shown(kind: str, text: str) -> tuple[str, ...]:
        model = model_of(kind)
        ids = model.tokens(text, prepend_bos=False)
        assert model.single_token_strings(ids) == tuple(model.token_strings([one])[0] for one in ids)
        return model.token_strings(ids)

    assert shown("wordpiece", "the capital, oned") == (" the", " capital", ",", " one", "d")
    assert shown("word_ends", "the capital, oned") == ("the ", "capital ", ", ", "on", "ed ")
    assert shown("clip", "the capital") == ("the ", "capital ")
    assert shown("byte_level", "in Zürich") == ("in", " ", "Zürich")
    assert shown("byte_level", "naïveté 日本") == ("naïveté", " ", "日本")
    assert model_of("byte_level").decode(model_of("byte_level").tokens("in Zürich é")) == "in Zürich é"
    assert model_of("word_ends_without_decoder").decode(model_of("word_ends").tokens("the capital")) == "the capital"
    assert model_of("clip").decode(model_of("clip").tokens("the capital")) == "the capital"


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_a_word_is_looked_up_as_after_a_space(kind: str) -> None:
    model = model_of(kind)
    (ids,) = word_ids(model, ["capital"])
    assert model.decode(ids).strip() == "capital"
    assert not model.token_strings(ids)[0].isspace()
    if kind not in ("characters", "unigram"):
        assert len(ids) == 1
        assert single_token(model, " capital") == ids[0]


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_parts_are_read_as_one_text(kind: str) -> None:
    model = model_of(kind)
    for prompt, response in [("Paris is the cap", "ital"), ("Paris is ", "the"), ("Paris is", " the"), ("the", ".")]:
        before, after = model.split(prompt, response)
        assert before + after == model.tokens(prompt + response)
        assert model.decode([*before, *after], skip_special=True) == model.decode(
            model.tokens(prompt + response), skip_special=True
        )
        assert response.strip() in model.decode(after)


@pytest.mark.parametrize("kind", LOSSLESS)
def test_a_text_after_ids_continues_them(kind: str) -> None:
    model = model_of(kind)
    for prompt, response in [("Paris is the cap", "ital"), ("Paris is", " the"), ("Paris is ", "the"), ("the", ".")]:
        ids = model.tokens(prompt)
        before, after = model.split(ids, response)
        assert before == ids
        assert model.decode(after and [*ids, *after], skip_special=True) == prompt + response


def test_a_prompt_that_is_only_part_of_a_token_is_refused() -> None:
    model = model_of("metaspace")
    with pytest.raises(ValueError, match="the prompt 'cap' is only the beginning of the token ' capital'"):
        prompt_saliency(model, "cap", "ital", method="random")
    result = prompt_saliency(model, "the cap", "ital", method="random")
    assert (result.prompt_tokens, result.response_tokens) == ((" the",), (" capital",))
    assert result.prompt_spans == ((0, 3),)


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_tokens_added_later_are_read_as_they_are_now(kind: str) -> None:
    model = copy.copy(model_of(kind))
    model.tokenizer = copy.deepcopy(model.tokenizer)
    known = word_ids(model, ["capital"])[0][0]
    assert model.is_special([known]) == [False]
    model.tokenizer.add_tokens(["Zwölf"])
    new = model.tokenizer.convert_tokens_to_ids("Zwölf")
    assert model.token_strings([new])[0].strip() in ("Zwölf", "zwolf"), "as the tokenizer normalises it"
    model.tokenizer.add_tokens([AddedToken(model.tokenizer.convert_ids_to_tokens(known), special=True)])
    assert model.is_special([known, new]) == [True, False]


def test_a_token_that_only_the_tokenizer_knows_is_refused_where_a_text_is_read() -> None:
    model = copy.copy(model_of(LOSSLESS[0]))
    model.tokenizer = copy.deepcopy(model.tokenizer)
    model.tokenizer.add_tokens([f"<<{i}>>" for i in range(model.d_vocab - len(model.tokenizer) + 1)])
    unknown = model.tokenizer.convert_ids_to_tokens(model.d_vocab)
    text = f"the capital {unknown}"
    wanted = (
        rf"tokens that the model does not: '{unknown}' is token {model.d_vocab}, .* knows only 0\.\.{model.d_vocab - 1}"
    )
    ids = model.tokens("the capital")
    reads: list[Callable[[], object]] = [
        lambda: model.tokens(text),
        lambda: model.token_lists(["the", text]),
        lambda: model.split(text, None),
        lambda: model.split("the capital", unknown),
        lambda: model.split(ids, unknown),
        lambda: model.generate_ids([*ids, model.d_vocab], max_new_tokens=1),
        lambda: model.token_embeddings([model.d_vocab]),
        lambda: sentence_score(model, text),
    ]
    for read in reads:
        with pytest.raises(ValueError, match=wanted):
            read()
    with pytest.raises(ValueError, match="token ids must be in"):
        model.token_strings([model.d_vocab + 1])
