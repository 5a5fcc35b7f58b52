"""Generation: sampling repeats, stops where it should, reports tokens, can be cancelled, refuses what cannot fit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from interp_widgets.models import Model, load_model
from tests.models.test_edits import edit_of
from tests.models.tiny import metaspace_tokenizer, tiny_hf, tiny_model

IDS = [5, 17, 300, 44, 8]
BACKENDS = [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"]


@pytest.fixture(params=BACKENDS)
def model(request: pytest.FixtureRequest) -> Model:
    return tiny_model("llama", request.param)


def test_sampling_depends_on_the_seed_alone(model: Model) -> None:
    first = model.generate_ids(IDS, max_new_tokens=12, temperature=1.0, seed=3)
    state = torch.random.get_rng_state()
    torch.manual_seed(99)
    assert model.generate_ids(IDS, max_new_tokens=12, temperature=1.0, seed=3) == first
    assert model.generate_ids(IDS, max_new_tokens=12, temperature=1.0, seed=4) != first
    torch.random.set_rng_state(state)
    model.generate_ids(IDS, max_new_tokens=2, temperature=1.0)
    assert torch.equal(torch.random.get_rng_state(), state)  # no global seed is used up


@pytest.mark.seconds
@pytest.mark.hooked
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_samples_are_the_same_on_both_backends(family: str) -> None:
    one, other = (
        tiny_model(family, backend).generate_ids(IDS, max_new_tokens=10, temperature=0.8, seed=7)
        for backend in ("hooked", "bridge")
    )
    assert one == other


def test_samples_follow_the_models_distribution(model: Model) -> None:
    logits = model.run(IDS).logits[0, -1].double()
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        expected = torch.multinomial((logits / 1.5).softmax(-1), 1, generator=generator).tolist()
        if expected[0] != model.eos_token_id:
            assert model.generate_ids(IDS, max_new_tokens=1, temperature=1.5, seed=seed) == expected
    cold = {tuple(model.generate_ids(IDS, max_new_tokens=3, temperature=0.01, seed=seed)) for seed in range(3)}
    assert cold == {tuple(model.generate_ids(IDS, max_new_tokens=3))}


@pytest.mark.parametrize("backend", BACKENDS)
def test_stops_at_the_end_token_without_returning_it(backend: str) -> None:
    free = tiny_model("llama", backend).generate_ids(IDS, max_new_tokens=8)
    assert len(free) == 8
    hf = tiny_hf("llama")
    hf.generation_config.eos_token_id = [free[4], 2]
    stopped = load_model(hf, tokenizer=metaspace_tokenizer(), backend=backend)
    assert stopped.generate_ids(IDS, max_new_tokens=8) == free[: free.index(free[4])]


def test_other_threads_use_the_model_between_two_tokens(model: Model) -> None:
    """A callback that waits for another thread, which needs the model, would else wait for good."""
    whole, seen = model.generate_ids(IDS, max_new_tokens=4), list[Any]()

    def beside(_: int) -> None:
        thread = threading.Thread(target=lambda: seen.append(model.generate_ids(IDS[::-1], max_new_tokens=2)))
        thread.start()
        thread.join(60)

    assert model.generate_ids(IDS, max_new_tokens=4, on_token=beside) == whole
    assert seen == [model.generate_ids(IDS[::-1], max_new_tokens=2)] * 4


def test_an_edit_between_two_tokens_is_an_error_and_one_that_is_undone_is_none(model: Model) -> None:
    edit, whole = edit_of(model), model.generate_ids(IDS, max_new_tokens=4)
    undo: list[Callable[[], None]] = []
    try:
        with pytest.raises(ValueError, match=r"was edited while it generated a text: generate it again"):
            model.generate_ids(IDS, max_new_tokens=4, on_token=lambda _: undo.append(edit.apply(model)))
        assert len(undo) == 1
    finally:
        for back in undo:
            back()
    assert model.generate_ids(IDS, max_new_tokens=4, on_token=lambda _: edit.apply(model)()) == whole


def test_tokens_are_reported_and_a_check_cancels(model: Model) -> None:
    seen: list[int] = []
    whole = model.generate_ids(IDS, max_new_tokens=5, on_token=seen.append)
    assert seen == whole

    class Cancelled(Exception):
        pass

    def check() -> None:
        if len(seen) >= 7:
            raise Cancelled

    with pytest.raises(Cancelled):
        model.generate_ids(IDS, max_new_tokens=5, check=check, on_token=seen.append)
    assert seen[5:] == whole[:2]
    assert model.generate_ids(IDS, max_new_tokens=5) == whole


def test_text_continues_the_prompt(model: Model) -> None:
    text = model.generate("The capital of", max_new_tokens=6)
    ids = model.generate_ids(model.tokens("The capital of"), max_new_tokens=6)
    assert model.decode(model.tokens("The capital of", prepend_bos=False) + ids) == "The capital of" + text


def test_leading_space_of_the_continuation_is_kept(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """SentencePiece decoders drop a leading space, so decoding the new ids alone would glue words together."""
    prompt, new = model.split("The capital of France is", " Paris")
    assert new
    assert model.decode(new) == "Paris"

    def written(*arguments: Any, **options: Any) -> list[int]:
        return new

    monkeypatch.setattr(model, "generate_ids", written)
    assert model.generate("The capital of France is") == " Paris"
    assert model.generate(prompt) == " Paris"


def test_what_does_not_fit_is_refused_up_front(model: Model) -> None:
    with pytest.raises(
        ValueError, match=r"100 prompt tokens and 40 new ones do not fit .* 128 tokens: ask for at most 28"
    ):
        model.generate_ids([5] * 100)
    with pytest.raises(ValueError, match=r"context of 128 tokens: shorten the prompt"):
        model.generate_ids([5] * 128, max_new_tokens=1)
    assert len(model.generate_ids([5] * 124, max_new_tokens=4)) <= 4


def test_bad_options(model: Model) -> None:
    with pytest.raises(ValueError, match="holds no token"):
        model.generate("", prepend_bos=False)
    with pytest.raises(ValueError, match="max_new_tokens must be at least 1, got 0"):
        model.generate_ids(IDS, max_new_tokens=0)
    with pytest.raises(ValueError, match="temperature must be 0"):
        model.generate_ids(IDS, temperature=-1.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_logits_are_named(backend: str) -> None:
    inner = load_model(tiny_hf("llama"), backend=backend)
    next(inner.tl_model.parameters()).data.fill_(float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        inner.generate_ids(IDS, max_new_tokens=1)
