"""How a model reads text is part of its state: its tokenizer, chat template and BOS, in memory and in every process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, normalizers, pre_tokenizers

from interp_widgets.models import Model, load_model
from interp_widgets.models.reading import Reading
from interp_widgets.models.state import State, facts, facts_of, is_as_loaded, state_key
from interp_widgets.sweeps.identity import describe
from interp_widgets.sweeps.sending import _fingerprint
from interp_widgets.widgets.base.identity import Identity
from tests.models.tiny import tiny_folder

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def copied(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None] = lambda *_: None) -> Model:
    """The tiny model from a folder whose tokenizer is changed; all folders have one name."""
    shutil.copytree(tiny_folder("llama"), folder / "tiny")
    paths = folder / "tiny" / "tokenizer.json", folder / "tiny" / "tokenizer_config.json"
    core, config = (json.loads(path.read_text(encoding="utf8")) for path in paths)
    change(core, config)
    for path, content in zip(paths, (core, config), strict=True):
        path.write_text(json.dumps(content), encoding="utf8")
    return load_model(folder / "tiny")


def keys_of(model: Model) -> list[Any]:
    """The model in every key: of panels, of sessions and results, of sweeps and of other processes."""
    return [state_key(model), Identity().of(model), facts(model), describe(model), _fingerprint(model)]


def added(core: dict[str, Any], _: dict[str, Any]) -> None:
    content = next(token for token, index in core["model"]["vocab"].items() if index == 455)
    core["added_tokens"].append({**core["added_tokens"][0], "id": 455, "content": content, "special": False})


def merged(core: dict[str, Any], _: dict[str, Any]) -> None:
    core["model"]["merges"] = core["model"]["merges"][:-20]


def normalised(core: dict[str, Any], _: dict[str, Any]) -> None:
    core["normalizer"] = {"type": "Lowercase"}


def split_otherwise(core: dict[str, Any], _: dict[str, Any]) -> None:
    core["pre_tokenizer"]["prepend_scheme"] = "always"


def without_bos(core: dict[str, Any], _: dict[str, Any]) -> None:
    core["post_processor"] = None


def decoded_otherwise(core: dict[str, Any], _: dict[str, Any]) -> None:
    core["decoder"]["decoders"] = core["decoder"]["decoders"][:-1]


def another_end(_: dict[str, Any], config: dict[str, Any]) -> None:
    config["eos_token"] = "<unk>"


def with_a_template(_: dict[str, Any], config: dict[str, Any]) -> None:
    config["chat_template"] = TEMPLATE


FILES = [added, merged, normalised, split_otherwise, without_bos, decoded_otherwise, another_end, with_a_template]


@pytest.mark.parametrize("change", FILES, ids=lambda change: change.__name__)
def test_the_same_weights_with_another_tokenizer_share_no_key(change: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    plain, other = copied(tmp_path / "a"), copied(tmp_path / "b", change)
    assert (plain.name, plain.weight_hash) == (other.name, other.weight_hash)
    for key, another in zip(keys_of(plain), keys_of(other), strict=True):
        assert key != another


@pytest.mark.seconds
def test_the_same_model_loaded_twice_shares_every_key(tmp_path: Path) -> None:
    def cut(core: dict[str, Any], _: dict[str, Any]) -> None:
        """What transformers resets at the first text."""
        core["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}

    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    first, second, third = copied(tmp_path / "a"), copied(tmp_path / "b"), copied(tmp_path / "c", cut)
    ids = first.tokens("The cat sat on the mat and the dog")
    assert keys_of(first) == keys_of(second) == keys_of(third)
    assert third.tokens("The cat sat on the mat and the dog") == ids
    assert keys_of(third) == keys_of(first), "also once it has read a text"


def token_added(model: Model) -> None:
    model.tokenizer.add_tokens(["cat"])


def special_token_added(model: Model) -> None:
    model.tokenizer.add_tokens([AddedToken("dog", special=True)])


def template_set(model: Model) -> None:
    model.tokenizer.chat_template = TEMPLATE


def normaliser_set(model: Model) -> None:
    model.tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()


def pre_tokenizer_set(model: Model) -> None:
    model.tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()


def dropout_set(model: Model) -> None:
    model.tokenizer.backend_tokenizer.model.dropout = 0.5


def end_set(model: Model) -> None:
    model.tokenizer.eos_token = "<unk>"


def bos_left_out(model: Model) -> None:
    model.prepend_bos = not model.prepend_bos


def bos_exchanged(model: Model) -> None:
    model.bos_token_id = 0


def tokenizer_removed(model: Model) -> None:
    model.tokenizer = None


IN_MEMORY = [
    token_added, special_token_added, template_set, normaliser_set, pre_tokenizer_set, dropout_set, end_set,
    bos_left_out, bos_exchanged, tokenizer_removed,
]  # fmt: skip


@pytest.mark.parametrize("change", IN_MEMORY, ids=lambda change: change.__name__)
def test_a_change_in_memory_is_noticed_at_a_glance(change: Any) -> None:
    model = load_model(tiny_folder("llama"))
    before, known = state_key(model), facts(model)
    assert is_as_loaded(model)
    change(model)
    after = state_key(model)
    assert after != before
    assert state_key(model, exact=True) == after
    assert facts(model) != known


def test_padding_and_truncation_change_no_text_and_no_key() -> None:
    model = load_model(tiny_folder("llama"))
    ids, key = model.tokens("The cat sat on the mat"), state_key(model)
    model.tokenizer.backend_tokenizer.enable_truncation(2)
    model.tokenizer.backend_tokenizer.enable_padding(length=50)
    assert state_key(model, exact=True) == key
    assert model.tokens("The cat sat on the mat") == ids


def test_the_facts_of_an_earlier_state_are_those_of_that_state() -> None:
    model = load_model(tiny_folder("llama"))
    before = state_key(model)
    known = facts_of(model, before)
    assert known == facts(model)
    model.prepend_bos = False
    assert facts_of(model, before) == known
    assert facts_of(model, State(b"never", b"seen", (), True, True)) is None
    after = facts_of(model, state_key(model))
    assert after is not None
    assert {name for name in after if after[name] != dict(known or {}).get(name)} == {"adds_bos"}


class SlowTokenizer:
    """A tokenizer written in Python, with what such ones have: dicts, sets and a cache."""

    def __init__(self, words: list[str], path: str = "") -> None:
        self.vocabulary = {word: index for index, word in enumerate(words)}
        self.never_split = set(words)
        self.cache: dict[str, int] = {}
        self.name_or_path = path


def test_a_tokenizer_written_in_python() -> None:
    def digest(tokenizer: Any, reading: Reading | None = None, *, exact: bool = True) -> str:
        return (reading or Reading()).digest(type("Holder", (), {"tokenizer": tokenizer})(), exact=exact)

    one, same = SlowTokenizer(["a", "b"], "here"), SlowTokenizer(["a", "b"], "there")
    same.cache["a"] = 0
    assert digest(one) == digest(same)
    assert digest(one) != digest(SlowTokenizer(["b", "a"]))
    reading = Reading()
    before = digest(one, reading)
    one.vocabulary["c"] = 2
    assert digest(one, reading, exact=False) != before
