"""The folder of a mixture: a damaged one is told, an older one is kept until a new one is whole, its base may move."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from interp_widgets.models import LoadError, ModModel, load_model
from interp_widgets.models.mixture_of_depths.checkpoint import load_state, save_state
from interp_widgets.tuning.mixture_of_depths import mod_grid, tune_mod
from tests.models.mixtures import random_state, tiny_mixture
from tests.models.tiny import tiny_folder, tiny_model

IDS = [5, 17, 300, 44]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_state(random_state("llama", 2), tmp_path / "mixture")


def change_header(folder: Path, **changes: Any) -> None:
    path = folder / "mod.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def weights_file(folder: Path) -> Path:
    """The file of weights that the header names."""
    name: str = json.loads((folder / "mod.json").read_text())["files"]["weights"]
    return folder / name


def change_weights(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = weights_file(folder)
    weights = safetensors.torch.load_file(path)
    change(weights)
    safetensors.torch.save_file(weights, path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 3}, r"newer version \(format 3, this one reads up to 2\): install that version"),
        ({"files": {}}, "damaged"),
        ({"files": []}, "damaged"),
        ({"files": {"weights": 1}}, "damaged"),
        ({"files": {"weights": "absent.safetensors"}}, r"lacks absent\.safetensors: copy the folder again"),
        ({"format": "something"}, "is not that of a mixture"),
        ({"k": 3}, r"k 3, top_k 2 and only None do not fit 2 routes\): copy the folder again"),
        ({"top_k": 0}, "top_k 0 and only None do not fit 2 routes"),
        ({"top_k": 3}, "top_k 3 and only None do not fit 2 routes"),
        ({"only": 2}, "only 2 do not fit 2 routes"),
        ({"k": "two"}, "damaged"),
        ({"base": None}, "damaged"),
        ({"lora": {"rank": 2}}, "damaged"),
        ({"lora": {"rank": 10**9, "layers": "last", "alpha": 2}}, "the weights have no adapters of rank 1000000000"),
        ({"lora": {"rank": 2, "layers": "zzz", "alpha": 2}}, "the adapters have wrong fields"),
        ({"files": {"weights": "../x.safetensors"}}, r"'\.\./x\.safetensors' is not a file of a mixture"),
        ({"files": {"weights": "x" * 5000 + ".safetensors"}}, "lacks x"),
        ({"files": {"weights": "/etc/passwd"}}, "is not a file of a mixture"),
        ({"base": {"source": 5, "name": "x", "weight_hash": "y"}}, "the base or the settings have the wrong type"),
        ({"settings": [1]}, "the base or the settings have the wrong type"),
        ({"sha256": 5}, "damaged"),
    ],
    ids=str,
)
def test_a_header_that_does_not_fit_is_told(folder: Path, changes: dict[str, Any], message: str) -> None:
    load_state(folder)
    change_header(folder, **changes)
    with pytest.raises(LoadError, match=message):
        load_model(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe\x00", b'{"format"', b"[" * 100_000])
def test_a_header_that_is_no_header_is_told(folder: Path, content: bytes) -> None:
    (folder / "mod.json").write_bytes(content)
    with pytest.raises(LoadError, match="is damaged"):
        load_model(folder)


def test_weights_that_are_not_those_of_the_header_are_told(folder: Path) -> None:
    """One changed bit gives another model, without a word from safetensors."""
    path = weights_file(folder)
    content = bytearray(path.read_bytes())
    content[-3] ^= 0x40
    path.write_bytes(bytes(content))
    safetensors.torch.load_file(path)
    with pytest.raises(
        LoadError, match=r"weights-\w+\.safetensors is damaged \(it is not the file that mod\.json belongs to"
    ):
        load_model(folder)
    change_weights(folder, lambda weights: weights.pop("router"))
    head = json.loads((folder / "mod.json").read_text())
    del head["sha256"]  # as if it had been written without
    (folder / "mod.json").write_text(json.dumps(head))
    with pytest.raises(LoadError, match=r"damaged \('router'\)"):
        load_model(folder)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("step", range(6))
def test_an_older_mixture_stays_until_the_new_one_is_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """A save of three files (weights, training, header) that fails while one is written, or put in its place."""
    before = files(folder)
    new = dataclasses.replace(random_state("llama", 3), training={"step": torch.ones(1)})
    done: list[str] = []

    def failing(kind: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if len(done) == step:
                raise OSError(28, f"No space left on device for {kind}")
            done.append(kind)
            return act(*args, **kwargs)

        return run

    monkeypatch.setattr(safetensors.torch, "save_file", failing("tensors", safetensors.torch.save_file))
    monkeypatch.setattr(Path, "write_text", failing("header", Path.write_text))
    monkeypatch.setattr(Path, "replace", failing("place", Path.replace))
    with pytest.raises(OSError, match="No space left"):
        save_state(new, folder)
    assert done == ["tensors", "place", "tensors", "place", "header", "place"][:step]
    assert files(folder) == before
    monkeypatch.undo()
    save_state(new, folder)
    assert load_state(folder).training.keys() == {"step"}
    assert len(files(folder)) == 3
    save_state(random_state("llama", 2), folder)  # one without the optimizer leaves no old one behind
    assert len(files(folder)) == 2
    assert load_state(folder).k == 2


def test_a_folder_of_the_first_version_is_read_and_replaced(folder: Path) -> None:
    """There the files had fixed names, which the header did not say."""
    wanted = load_state(folder)
    head = json.loads((folder / "mod.json").read_text())
    old = weights_file(folder)
    digests = {"mod.safetensors": head["sha256"][old.name]}
    old.rename(folder / "mod.safetensors")
    del head["files"]
    (folder / "mod.json").write_text(json.dumps(head | {"version": 1, "sha256": digests}))
    found = load_state(folder)
    assert all(torch.equal(found.weights[name], value) for name, value in wanted.weights.items())
    save_state(found, folder)
    assert not (folder / "mod.safetensors").exists()
    assert torch.equal(load_state(folder).weights["router"], wanted.weights["router"])


def test_a_mixture_never_hides_a_model(tmp_path: Path) -> None:
    """Beside a model's own files, load_model would open the mixture in its place."""
    base = tmp_path / "base"
    shutil.copytree(tiny_folder("llama"), base)
    with pytest.raises(ValueError, match="give another folder"):
        tiny_mixture("llama").save(base)
    assert not isinstance(load_model(base, device="cpu"), ModModel)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file: give a folder"):
        tiny_mixture("llama").save(tmp_path / "file")


@pytest.mark.seconds
def test_a_base_that_moved_is_asked_for_and_remembered(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(tiny_folder("llama"), old)
    tuned, _ = tune_mod(old, [("One two", " three")], k=2, steps=1)
    tuned.save(tmp_path / "mixture")
    old.rename(new)
    with pytest.raises(LoadError, match=r"base model of the mixture in .* cannot be loaded .* give the base as base="):
        load_model(tmp_path / "mixture")
    for base in (new, load_model(new, device="cpu")):
        found = load_model(tmp_path / "mixture", base=base, device="cpu")
        assert torch.equal(found.run(IDS).logits, tuned.run(IDS).logits)
        found.save(tmp_path / "again")
        assert torch.equal(load_model(tmp_path / "again", device="cpu").run(IDS).logits, tuned.run(IDS).logits)


def test_a_mixture_is_no_base(folder: Path) -> None:
    for base, message in ((folder, "holds a mixture of depths"), (tiny_mixture("llama"), "is a mixture itself")):
        with pytest.raises(LoadError, match=message):
            load_model(folder, base=base)
    memory = load_model(tiny_model("llama").tl_model, tokenizer=tiny_model("llama").tokenizer)
    with pytest.raises(LoadError, match="came from memory"):
        load_model(folder, base=memory)
    for model in (folder, tiny_mixture("llama")):
        with pytest.raises(ValueError, match="already has a mixture: tune its base model"):
            tune_mod(model, [("One two", " three")])
        with pytest.raises(ValueError, match="already has a mixture"):
            mod_grid(model, [("One two", " three")], [])
