"""Tokens: the BOS policy, prompt and response, readable strings, spans; text of every kind survives."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest

from interp_widgets import last_states
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis.concepts.state_cache import HiddenStateCache
from interp_widgets.models import tokens as token_tools
from interp_widgets.models.tokens import CONTINUATION
from interp_widgets.tuning.examples import read_examples
from tests.models.tiny import BYTE_LEVEL, FAMILIES, byte_level_tokenizer, metaspace_tokenizer, tiny_model

TEXTS = [
    "The Eiffel Tower is in Paris.",
    "Hi 🙂 café",
    "👩‍👩‍👧‍👦 family",
    "שלום עולם",
    "مرحبا بالعالم",
    "你好,世界",
    "two\nlines\tand  spaces ",
    '<img src=x onerror="alert(1)">',
    "a",
    "",
]


@pytest.mark.parametrize("family", FAMILIES)
def test_bos_policy_is_the_tokenizers_own(family: str) -> None:
    model = tiny_model(family, "bridge")
    own = model.tokenizer("The dog")["input_ids"]
    assert model.prepend_bos is (family not in BYTE_LEVEL)
    assert model.tokens("The dog") == own
    assert model.tokens("The dog", prepend_bos=True) == [
        model.bos_token_id,
        *model.tokens("The dog", prepend_bos=False),
    ]
    assert model.tokens("The dog", prepend_bos=False)[0] != model.bos_token_id
    assert model.tokens("") == ([model.bos_token_id] if model.prepend_bos else [])


def test_bos_without_a_bos_token_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2", "bridge")
    monkeypatch.setattr(model, "bos_token_id", None)
    with pytest.raises(ValueError, match="has no BOS token"):
        model.tokens("text", prepend_bos=True)
    with pytest.raises(TypeError, match="text must be a str or a list of messages, got 3"):
        model.tokens(3)


@pytest.mark.seconds
def test_a_text_that_begins_with_its_bos_gets_no_second_one() -> None:
    model = copy.copy(tiny_model("gemma", "bridge"))
    model._said_bos = False
    wanted = model.tokens("The dog ran")
    decoded = model.decode(wanted)
    with pytest.warns(UserWarning, match="the text already begins with '<s>', the beginning-of-sequence token of "):
        assert model.tokens(decoded) == wanted
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert model.tokens(decoded, prepend_bos=True) == model.split(decoded, None)[0] == wanted
        assert model.split(model.decode(model.tokens("The dog")), " ran") == (wanted[:-2], wanted[-2:])
        assert read_prompt(model, decoded).ids == tuple(wanted)
        assert read_prompt(model, decoded).spans == tuple(model.token_spans(decoded)[1:])
        for states in (last_states(model, [text], 2) for text in (decoded, wanted)):
            np.testing.assert_array_equal(states, last_states(model, ["The dog ran"], 2))
        kept = HiddenStateCache(model)
        found = [kept(model, [text], 2, groups=[0]) for text in (decoded, "The dog ran")]
        np.testing.assert_allclose(*found, rtol=1e-5)
        assert model.generate(decoded, max_new_tokens=3) == model.generate("The dog ran", max_new_tokens=3)
        (example,) = read_examples(model, [(model.decode(model.tokens("The dog")), " ran")])
        assert list(example.ids[:-1]) == wanted


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_strings_join_to_the_text(family: str, text: str) -> None:
    model = tiny_model(family, "bridge")
    ids = model.tokens(text, prepend_bos=False)
    strings = model.token_strings(ids)
    assert len(strings) == len(ids)
    joined = "".join(string for string in strings if string != CONTINUATION)
    # SentencePiece puts a space in front of every text
    assert joined == (" " + text if family == "llama" and text else text)
    assert "�" not in joined


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_character_of_several_tokens_shows_at_the_first(family: str) -> None:
    model = tiny_model(family, "bridge")
    strings = model.token_strings(model.tokens("🙂", prepend_bos=False))
    assert strings[-4:] == ("🙂", CONTINUATION, CONTINUATION, CONTINUATION)


def test_incomplete_characters_show_a_mark() -> None:
    model = tiny_model("gpt2", "bridge")
    smile = model.tokens("🙂", prepend_bos=False)
    assert model.token_strings(smile[:2]) == ("�", CONTINUATION)
    letter = model.tokens("a", prepend_bos=False)
    assert model.token_strings([*smile[:2], *letter]) == ("�", CONTINUATION, "a")
    assert model.token_strings([*smile[:1], *smile])[:2] == ("�", "🙂")
    assert model.token_strings([*smile[:2], model.eos_token_id, *letter]) == ("�", CONTINUATION, "<|endoftext|>", "a")
    assert model.token_strings([]) == ()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_single_tokens_are_read_as_if_each_stood_alone(family: str) -> None:
    model = tiny_model(family, "bridge")
    every = list(range(model.d_vocab))
    assert model.single_token_strings(every) == tuple(model.token_strings([one])[0] for one in every)
    assert "�" in "".join(model.single_token_strings(every))  # parts of characters


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_special_tokens_are_shown_as_written_and_marked(family: str) -> None:
    model = tiny_model(family, "bridge")
    end = model.eos_token_id
    assert end is not None
    written = model.tokenizer.eos_token
    ids = model.tokens(f"Hi{written}", prepend_bos=True)
    assert ids[-1] == end
    assert model.token_strings(ids)[-1] == written
    special = model.is_special(ids)
    assert special[0]
    assert special[-1]
    assert not any(special[1:-1])
    assert written in model.decode(ids)
    assert model.decode(ids, skip_special=True).strip() == "Hi"


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_spans_cover_the_text(family: str, text: str) -> None:
    model = tiny_model(family, "bridge")
    spans = model.token_spans(text)
    assert len(spans) == len(model.tokens(text, prepend_bos=False))
    covered = {place for start, end in spans for place in range(start, end)}
    assert covered == set(range(len(text)))
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert spans == sorted(spans)


def test_spans_of_a_slow_tokenizer_agree_with_a_fast_one() -> None:
    for tokenizer in (byte_level_tokenizer(), metaspace_tokenizer()):
        text = "The dog 🙂 in Paris"
        ids, fast = token_tools.encoded(tokenizer, text)
        strings = token_tools.token_strings(tokenizer, ids, token_tools.Vocabulary.of(tokenizer))
        slow = token_tools.spans_of_strings(text, strings)
        trimmed = [text[a:b].strip() for a, b in fast if text[a:b].strip()]
        assert [text[a:b].strip() for a, b in slow if text[a:b].strip()] == trimmed


def test_split_tokenises_together() -> None:
    model = tiny_model("llama", "bridge")
    prompt, response = model.split("The capital of France is", " Paris.")
    assert prompt[0] == model.bos_token_id
    assert prompt + response == model.tokens("The capital of France is Paris.")
    assert model.split("The dog", None) == (model.tokens("The dog"), [])
    assert model.split("The dog", " ran", prepend_bos=False)[0] == model.tokens("The dog", prepend_bos=False)


def test_a_token_across_the_border_belongs_to_the_response() -> None:
    model = tiny_model("gpt2", "bridge")
    cuts = [("The capital of Fr", "ance"), ("The cap", "ital"), ("the E", "iffel"), ("qu", "estion"), ("loc", "ated")]
    merged = [(a, b) for a, b in cuts if model.tokens(a + b)[: len(model.tokens(a))] != model.tokens(a)]
    assert merged  # else the case is not met
    for start, end in merged:
        prompt, response = model.split(start, end)
        assert prompt + response == model.tokens(start + end)
        assert model.decode(response).endswith(end)
        assert model.decode(response) != end


def test_split_takes_ids_as_they_are() -> None:
    model = tiny_model("llama", "bridge")
    assert model.split([5, 6], [7]) == ([5, 6], [7])
    assert model.split([5, 6], " dog") == ([5, 6], model.tokens(" dog", prepend_bos=False))
    with pytest.raises(ValueError, match=r"token ids must be in 0\.\.459"):
        model.split([5, -1], None)
    for wrong in (None, 5, [5.7], ["a"]):  # 5.7 would be cut off to another prompt
        with pytest.raises(TypeError, match=r"a list of token ids, a list of messages or a Tensor, got"):
            model.split(wrong, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_decode_gives_the_text_back(family: str, text: str) -> None:
    model = tiny_model(family, "bridge")
    assert model.decode(model.tokens(text, prepend_bos=False)) == text
