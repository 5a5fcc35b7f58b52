"""Each entry of a config.json that can be nothing right is one sentence: which, what was given, what is allowed."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from interp_widgets.models import LoadError, hub_files, load_model
from interp_widgets.models.config_values import ALLOWED, check_values
from tests.architectures.models import ARCHITECTURES
from tests.models.test_files import folder_of, read
from tests.models.tiny import tiny_config

NAN, INFINITY = float("nan"), float("inf")
COUNT, FROM_ZERO, POSITIVE = "a whole number of at least 1", "a whole number of at least 0", "a finite number above 0"
TOKEN = "a token id, or -1 or null for none"
TOKENS = "a token id, a list of them, or -1 or null for none"
NULL = object()
"""Null in the file: None takes an entry out."""

LLAMA: dict[str, tuple[str, list[Any]]] = {
    **dict.fromkeys(
        ("num_attention_heads", "hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"),
        (COUNT, [0, -1, -5, "4", "", NULL, 4.0, 2.5, NAN, True, [4, 4], {"a": 4}]),
    ),
    **dict.fromkeys(("num_key_value_heads", "head_dim"), (COUNT, [0, -1, "2", 1.5, True, [2]])),
    "intermediate_size": (FROM_ZERO, [-5, "x", NULL, 96.0]),
    "num_labels": (FROM_ZERO, [-1, "x", NULL, 2.5]),
    "pad_token_id": (TOKEN, [-7, -2, "1", 1.5, True, [1]]),
    "bos_token_id": (TOKEN, [-7, "1", 1.5, [1]]),
    "eos_token_id": (TOKENS, [-7, "1", 1.5, True, [1, -7], [1, "a"], {"a": 1}]),
    "rope_theta": (POSITIVE, [0, 0.0, -1, NAN, INFINITY, -INFINITY, "x", NULL, True, 10**400, [1.0]]),
    "rms_norm_eps": (POSITIVE, [0, -1e-6, NAN, INFINITY, "1e-6", NULL, True, [1e-6]]),
}
GPT2: dict[str, tuple[str, list[Any]]] = {
    **dict.fromkeys(("n_head", "n_embd", "n_layer", "n_positions"), (COUNT, [0, -1, "4", NULL, 4.0])),
    "n_inner": (FROM_ZERO, [-1, "x"]),
    "layer_norm_epsilon": (POSITIVE, [0, -1, NAN, "x", NULL]),
}
CASES = [
    (family, name, allowed, value)
    for family, entries in (("llama", LLAMA), ("gpt2", GPT2))
    for name, (allowed, values) in entries.items()
    for value in values
]


def with_entry(target: Path, family: str, name: str, value: Any) -> Path:
    """A tiny folder with this entry in its config, which rotary settings hold where the class has moved it there."""
    path = folder_of(target, family) / "config.json"
    config = json.loads(path.read_text())
    place = config["rope_parameters"] if name == "rope_theta" else config
    place[name] = None if value is NULL else value
    path.write_text(json.dumps(config))
    return target


@pytest.mark.parametrize(("family", "name", "allowed", "value"), CASES)
def test_a_value_that_cannot_be_is_one_sentence(
    family: str, name: str, allowed: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_files, "read_model", lambda *args, **options: pytest.fail("a model was built"))
    with pytest.raises(LoadError) as error:
        load_model(with_entry(tmp_path / "m", family, name, value))
    given = "null" if value is NULL else ascii(value)
    given = given if len(given) <= 200 else given[:197] + "..."
    where = f"the config.json of {tmp_path / 'm'}"
    assert str(error.value) == f"{name} in {where} must be {allowed}, got {given}: correct it"


@pytest.mark.parametrize("value", [460, 10**9])
def test_a_padding_token_past_the_vocabulary(value: int, tmp_path: Path) -> None:
    """LLaMA cannot be built with it, GPT-2 never uses it."""
    message = (
        rf"pad_token_id in the config.json of .* must be a token id up to 459, or -1 or null for none, got {value}:"
    )
    with pytest.raises(LoadError, match=message):
        load_model(with_entry(tmp_path / "llama", "llama", "pad_token_id", value))
    (message,) = read(with_entry(tmp_path / "gpt2", "gpt2", "pad_token_id", value)).messages
    assert (
        f"pad_token_id must be `None` or an integer within the vocabulary (between 0 and 419), got {value}" in message
    )


@pytest.mark.parametrize(("name", "value"), [("bos_token_id", 10**9), ("eos_token_id", 460), ("pad_token_id", -1)])
def test_other_tokens_outside_the_vocabulary_are_said_and_loaded(name: str, value: int, tmp_path: Path) -> None:
    (message,) = read(with_entry(tmp_path / "m", "llama", name, value)).messages
    assert f"{name} must be `None` or an integer within the vocabulary (between 0 and 459), got {value}" in message


@pytest.mark.parametrize(
    ("family", "name", "value"),
    [
        ("llama", "head_dim", NULL),
        ("llama", "pad_token_id", 459),
        ("llama", "bos_token_id", NULL),
        ("llama", "eos_token_id", [2, 459]),
        ("llama", "eos_token_id", NULL),
        ("llama", "rope_theta", 10000),
        ("llama", "rms_norm_eps", 1e-30),
        ("gpt2", "n_inner", NULL),
    ],
)  # fmt: skip
def test_a_value_that_can_be_is_taken(family: str, name: str, value: Any, tmp_path: Path) -> None:
    assert not read(with_entry(tmp_path / "m", family, name, value)).messages


@pytest.mark.seconds
def test_no_config_of_an_architecture_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for name, make in ARCHITECTURES.items():
            config = make()
            check_values(config.to_dict(), name)
            check_values(json.loads(config.to_json_string()), name)


def test_the_default_of_a_class_and_a_class_that_nobody_knows() -> None:
    if "glm5_next_text" in CONFIG_MAPPING:  # newer releases of transformers
        check_values({"model_type": "glm5_next_text", "head_dim": 0}, "default")
    check_values({"model_type": "openelm", "num_kv_heads": [3, None, 4], "num_layers": None}, "a list for layers")
    check_values(dict.fromkeys(ALLOWED, 1), "no class")
    for entries in ({"num_kv_heads": [3, 0]}, {"text_config": {"num_hidden_layers": 0}}, {"rms_norm_eps": "x"}):
        with pytest.raises(LoadError, match="must be"):
            check_values(entries, "no class")
    with pytest.raises(LoadError, match="rope_theta in kinds must be a finite number above 0, got 0"):
        check_values({"rope_parameters": {"full_attention": {"rope_theta": 0}}}, "kinds")


def test_a_config_in_memory_is_checked_too() -> None:
    config = tiny_config("llama")
    check_values(config.to_dict(), "memory")
    config.rms_norm_eps = 0.0
    with pytest.raises(LoadError, match=r"rms_norm_eps in memory must be a finite number above 0, got 0\.0"):
        check_values(config.to_dict(), "memory")
