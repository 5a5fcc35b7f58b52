"""Prompts, positions and single tokens: what is fed, what is shown, and a sentence for everything else."""

from __future__ import annotations

import inspect

import pytest
import torch

from interp_widgets.analysis._core.prompts import Prompt, read_prompt, single_token
from tests.models.tiny import tiny_model

TEXT = "The cat sat on the mat"


def test_a_bos_is_fed_and_not_shown() -> None:
    model = tiny_model("llama")
    prompt = read_prompt(model, TEXT)
    assert prompt.offset == 1
    assert prompt.bos_id == model.bos_token_id
    assert prompt.n_shown == len(prompt.ids) - 1 == len(prompt.tokens()) == len(prompt.special())
    assert "".join(prompt.tokens()).strip() == TEXT
    assert torch.equal(prompt.embeddings()[0], model.token_embeddings(prompt.ids))
    assert prompt.fed_ids().tolist() == [list(prompt.ids)]
    without = read_prompt(model, TEXT, prepend_bos=False)
    assert without.offset == 0
    assert without.bos_id is None
    assert without.ids == prompt.shown_ids


def test_ids_are_taken_as_they_are() -> None:
    model = tiny_model("gpt2")
    prompt = read_prompt(model, [5, 6, 7])
    assert prompt.ids == (5, 6, 7)
    assert prompt.spans is None
    with pytest.raises(ValueError, match="needs the prompt as text"):
        prompt.find("cat")


def test_positions_count_on_the_axis_and_from_the_end() -> None:
    prompt = read_prompt(tiny_model("llama"), TEXT)
    assert prompt.position(0) == 0
    assert prompt.position(-1) == prompt.n_shown - 1
    for wrong in (prompt.n_shown, -prompt.n_shown - 1):
        with pytest.raises(
            ValueError, match=rf"position must be in -{prompt.n_shown}\.\.{prompt.n_shown - 1} .* got {wrong}"
        ):
            prompt.position(wrong)
    for half in (1.5, True, "2"):  # 1.5 would be cut off to 1 further on
        with pytest.raises(TypeError, match=f"position must be an int, got {half!r}"):
            inspect.unwrap(Prompt.position)(prompt, half)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_subject_is_found_at_its_last_place(family: str) -> None:
    prompt = read_prompt(tiny_model(family), "the cat saw the cat run")
    start, end = prompt.find("cat")
    assert "cat" in "".join(prompt.tokens()[start:end])
    assert "run" not in "".join(prompt.tokens()[start:end])
    assert "".join(prompt.tokens()[:start]).strip() == "the cat saw the"
    with pytest.raises(ValueError, match="the subject 'dog' is not in the prompt"):
        prompt.find("dog")


def test_bad_prompts_are_sentences() -> None:
    model = tiny_model("llama")
    for given, words in (("", "empty|only special tokens"), ([], "prompt is empty"), ([1], "only special tokens")):
        with pytest.raises(ValueError, match=words):
            read_prompt(model, given)
    with pytest.raises(ValueError, match=f"has {model.n_ctx + 3} tokens and the model reads {model.n_ctx}.*at least 3"):
        read_prompt(model, [7] * (model.n_ctx + 3))


def test_a_target_is_one_token_or_names_its_pieces() -> None:
    model = tiny_model("gpt2")
    assert single_token(model, 7) == 7
    text = model.token_strings([300])[0]
    assert single_token(model, text) == 300
    with pytest.raises(ValueError, match=r"the foil must be one token, 'zqzq' is \d+ \('z', .*give a shorter text"):
        single_token(model, "zqzq", what="foil")
    with pytest.raises(ValueError, match="the target is empty"):
        single_token(model, "")
    with pytest.raises(ValueError, match=rf"the target must be in 0\.\.{model.d_vocab - 1}"):
        single_token(model, model.d_vocab)
    with pytest.raises(TypeError, match=r"the target, where it is no text, must be an int, got 7\.5"):
        inspect.unwrap(single_token)(model, 7.5)


def test_a_missing_space_is_noticed() -> None:
    model = tiny_model("gpt2")
    known = next(
        text for i in range(model.d_vocab)
        if (text := model.token_strings([i])[0]).startswith(" ")
        and len(text) > 2 and len(model.tokens(text[1:])) > 1 and len(model.tokens(text)) == 1
    )  # fmt: skip
    with pytest.raises(ValueError, match=f"with a space in front, {known!r}, it is one"):
        single_token(model, known[1:])
