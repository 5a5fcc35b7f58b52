"""Every public method of a model refuses what it cannot take in one sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from interp_widgets.models import Model
from interp_widgets.models.network import Network
from tests.models.tiny import tiny_model
from tests.refusals import complaint, complaints

IDS = [5, 17, 300, 44, 8, 9]
HOOK = "blocks.0.hook_resid_pre"
RIGHT: dict[str, Callable[[Model], dict[str, Any]]] = {
    "tokens": lambda model: {"text": "a b"},
    "chat": lambda model: {"messages": [{"role": "user", "content": "a b"}]},
    "with_bos": lambda model: {"ids": IDS},
    "without_bos": lambda model: {"ids": IDS},
    "begins_with_bos": lambda model: {"ids": IDS},
    "token_lists": lambda model: {"texts": ["a", "b"]},
    "split": lambda model: {"prompt": "a b", "response": "c"},
    "token_strings": lambda model: {"ids": IDS},
    "token_spans": lambda model: {"text": "a b"},
    "single_token_strings": lambda model: {"ids": IDS},
    "is_special": lambda model: {"ids": IDS},
    "is_end": lambda model: {"text": "a b"},
    "decode": lambda model: {"ids": IDS},
    "generate": lambda model: {"prompt": "a b", "max_new_tokens": 1},
    "generate_ids": lambda model: {"ids": IDS, "max_new_tokens": 1, "temperature": 0.5},
    "prefix": lambda model: {"embeddings": model.token_embeddings(IDS)[None]},
    "forward": lambda model: {"embeddings": model.token_embeddings(IDS)[None]},
    "run": lambda model: {"ids": IDS, "capture": HOOK},
    "token_embeddings": lambda model: {"ids": IDS},
    "embed": lambda model: {"batch": torch.tensor([IDS])},
    "weight": lambda model: {"name": "W_Q", "layer": 0},
    "last_weight": lambda model: {"name": "ln1_w", "layer": 0},
}
WITHOUT_ARGUMENTS = {"provenance", "free_memory", "frozen", "single_token_words"}


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("method", RIGHT)
def test_odd_arguments_of_methods(method: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(family, "bridge" if family == "llama" else "auto")
    monkeypatch.setattr(model.tokenizer, "chat_template", "{{ messages[0]['content'] }}")
    right = RIGHT[method](model)
    function = getattr(model, method)
    function(**right)
    assert complaints(function, right) == []


def test_every_method_is_tried() -> None:
    public = {
        name for owner in (Model, Network) for name, value in vars(owner).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }  # fmt: skip
    assert public - WITHOUT_ARGUMENTS == set(RIGHT)


@pytest.mark.parametrize("change", [None, 3, lambda: 1, lambda value: None, lambda value: value[0], lambda value: 3])
def test_odd_changes_and_objectives(change: Any) -> None:
    model = tiny_model("llama", "bridge")
    for options in ({"edit": {HOOK: change}}, {"grad": change, "capture": HOOK}):
        fault = complaint(lambda options=options: model.run(IDS, **options))  # type: ignore[misc]
        assert fault is None or "<lambda>() takes 0 positional arguments" in fault


def test_positions_do_not_wrap_around() -> None:
    model = tiny_model("llama", "bridge")
    rows = model.token_embeddings(IDS)[None]
    whole = model.forward(rows)[0]
    torch.testing.assert_close(model.forward(rows, positions=torch.tensor([-1, 2]))[0], whole[[-1, 2]])
    with pytest.raises(ValueError, match=r"positions must be in -6\.\.5 for these 6 tokens, got 6"):
        model.forward(rows, positions=torch.tensor([0, 6]))


def test_the_fuzzer_notices_errors_from_inside() -> None:
    def broken(text: object) -> int:
        return len(text)  # type: ignore[arg-type]

    assert any("has no len()" in fault for fault in complaints(broken, {"text": "a"}))
    assert complaint(lambda: tiny_model("llama", "bridge").tokens(3)) is None  # type: ignore[arg-type]
