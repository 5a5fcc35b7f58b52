"""Models with a LoRA adapter: against peft's own merge, read again from their address; bad adapters in a sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import interp_widgets as iw
from interp_widgets.models import load_model
from interp_widgets.models.errors import LoadError
from interp_widgets.models.loading import needs_the_hub
from interp_widgets.models.lora import add_adapters, save_adapters
from interp_widgets.models.mixture_of_depths.opening import read_base
from interp_widgets.sweeps.sending import pack
from tests.models.tiny import tiny_folder, tiny_hf

IDS = [5, 17, 300, 44, 8, 9]
SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def adapter_of(family: str, folder: Path, base: str | None = None, targets: Any = "all-linear", **shape: int) -> Path:
    """The folder of random adapters; peft begins with ones that change nothing."""
    adapted = add_adapters(tiny_hf(family, **shape), targets, rank=2, alpha=4, seed=3)
    for number, (name, parameter) in enumerate(adapted.named_parameters()):
        if "lora_B" in name:
            parameter.data.normal_(0, 0.3, generator=torch.Generator().manual_seed(number))
    save_adapters(adapted, folder)
    write(folder, base_model_name_or_path=base)
    return folder


def write(folder: Path, **settings: Any) -> None:
    path = folder / SETTINGS
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def theirs(family: str, folder: Path) -> torch.Tensor:
    """(positions, vocabulary) logits of peft's own merge."""
    import peft

    merged = peft.PeftModel.from_pretrained(tiny_hf(family), str(folder)).merge_and_unload().eval()
    with torch.no_grad():
        logits: torch.Tensor = merged(input_ids=torch.tensor([IDS])).logits[0]
    return logits


def ours(model: iw.Model) -> torch.Tensor:
    return model.run(IDS).logits[0].float()


@pytest.mark.parametrize(
    ("family", "backend"), [("gpt2", "bridge"), pytest.param("llama", "hooked", marks=pytest.mark.hooked)]
)
def test_as_peft_merges_it(family: str, backend: Any, tmp_path: Path) -> None:
    base, folder = tiny_folder(family), adapter_of(family, tmp_path / "odd")
    held = (base / "model.safetensors").read_bytes()
    model = load_model(base, adapter=folder, backend=backend)
    expected = theirs(family, folder)
    torch.testing.assert_close(ours(model), expected, rtol=1e-4, atol=1e-4)
    plain = load_model(base, backend=backend)
    assert float((ours(plain) - expected).abs().max()) > 0.1
    assert model.self_check.passed
    assert (model.name, model.source) == (f"{base.name} + odd", f"{base.resolve()} + {folder.resolve()}")
    assert (base / "model.safetensors").read_bytes() == held
    assert all(value.requires_grad for value in model.tl_model.parameters()) == all(
        value.requires_grad for value in plain.tl_model.parameters()
    )


def test_it_is_read_again_from_its_address(tmp_path: Path) -> None:
    base, folder = tiny_folder("llama"), adapter_of("llama", tmp_path / "odd", str(tiny_folder("llama")))
    model = load_model(base, adapter=folder, backend="bridge")
    again = load_model(folder, backend="bridge")
    assert (again.name, again.source, again.weight_hash) == (model.name, model.source, model.weight_hash)
    assert not needs_the_hub(str(model.source))
    assert not needs_the_hub(str(folder))
    assert b" + " in pack(model)
    read, _ = read_base(model)
    torch.testing.assert_close(read(torch.tensor([IDS])).logits[0], ours(model), rtol=1e-4, atol=1e-4)
    twice = load_model(
        model.source, adapter=adapter_of("llama", tmp_path / "second", targets=["q_proj"]), backend="bridge"
    )
    assert twice.name == f"{base.name} + odd + second"
    assert load_model(twice.source, backend="bridge").weight_hash == twice.weight_hash != model.weight_hash
    assert iw.ModelPair(model, twice).tuned is twice


def test_half_precision_is_rounded_once(tmp_path: Path) -> None:
    base, folder = tmp_path / "base", adapter_of("llama", tmp_path / "odd")
    tiny_hf("llama").to(torch.bfloat16).save_pretrained(base)
    name, wide = "model.layers.0.mlp.up_proj.weight", load_model(base, adapter=folder, backend="bridge")
    assert wide.dtype == torch.float32
    parts = load_file(folder / WEIGHTS)
    a, b = (parts[f"base_model.model.model.layers.0.mlp.up_proj.lora_{letter}.weight"] for letter in "AB")
    expected = load_file(base / "model.safetensors")[name].float() + 2 * b @ a
    torch.testing.assert_close(wide.weight("W_in", 0).T, expected)
    half = load_model(base, adapter=folder, backend="bridge", dtype="bfloat16")
    torch.testing.assert_close(half.weight("W_in", 0).T, expected.bfloat16(), rtol=0, atol=0)


def _kind(folder: Path) -> None:
    write(folder, peft_type="IA3")


def _task(folder: Path) -> None:
    write(folder, task_type="SEQ_CLS")


def _no_settings(folder: Path) -> None:
    (folder / SETTINGS).unlink()


def _no_json(folder: Path) -> None:
    (folder / SETTINGS).write_text("{")


def _no_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def _damaged(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"odd")


def _one_missing(folder: Path) -> None:
    parts = load_file(folder / WEIGHTS)
    parts.pop(next(name for name in parts if "layers.2" in name))
    save_file(parts, folder / WEIGHTS)


def _one_more(folder: Path) -> None:
    parts = load_file(folder / WEIGHTS)
    save_file(
        parts | {"base_model.model.model.layers.7.mlp.up_proj.lora_A.weight": torch.ones(2, 32)}, folder / WEIGHTS
    )


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (_kind, r"holds an adapter of the kind IA3: only LoRA \(LORA\) can be merged here"),
        (_task, "holds an adapter for the task SEQ_CLS: only CAUSAL_LM can be merged here"),
        (_no_settings, r"odd has no adapter_config.json: give a folder that .*peft model wrote, or .* \(planted\)"),
        (_no_json, r"adapter_config.json is not valid JSON .*save the adapter again"),
        (_no_weights, "odd has no adapter_model.safetensors: save the adapter again"),
        (_damaged, "the adapter in .*odd does not fit llama_0: .*header"),
        (_one_missing, r"does not fit llama_0: it has no base_model.model.model.layers.2\.\S+$"),
        (_one_more, r"does not fit llama_0: the model has no place for its base_model.model.model.layers.7\.\S+$"),
        (shutil.rmtree, "there is no adapter .*odd: give a folder"),
    ],
)
def test_bad_adapters(harm: Callable[[Path], object], sentence: str, tmp_path: Path) -> None:
    folder = adapter_of("llama", tmp_path / "odd")
    harm(folder)
    with pytest.raises(LoadError, match=sentence) as caught:
        load_model(tiny_folder("llama"), adapter=folder)
    assert "\n" not in str(caught.value)


def test_adapters_of_another_base(tmp_path: Path) -> None:
    wider = adapter_of("llama", tmp_path / "wider", d_model=64)
    with pytest.raises(LoadError, match=r"wider does not fit llama_0: .*size mismatch for .*\[2, 64\].*\[2, 32\]"):
        load_model(tiny_folder("llama"), adapter=wider)
    with pytest.raises(LoadError, match="wider does not fit gpt2_0: "):
        load_model(tiny_folder("gpt2"), adapter=wider)
    tied = adapter_of("gemma", tmp_path / "tied", targets=["q_proj", "embed_tokens"])
    with pytest.raises(LoadError, match=r"embed_tokens.lora_\S+ is on one of two tied matrices"):
        load_model(tiny_folder("gemma"), adapter=tied)


def test_bases_that_cannot_be_had(tmp_path: Path) -> None:
    folder = adapter_of("llama", tmp_path / "odd")
    with pytest.raises(LoadError, match=r"names no base model: give the base, load_model\(base, adapter=...\)"):
        load_model(folder)
    write(folder, base_model_name_or_path="some-team/some-model")
    assert needs_the_hub(str(folder))
    with pytest.raises(LoadError, match=r"the base model some-team/some-model of .* cannot be had \(.*: give the base"):
        load_model(folder)
    write(folder, base_model_name_or_path=str(folder))
    with pytest.raises(LoadError, match=r"holds an adapter of .*, which has one itself: give the base"):
        load_model(folder)
    with pytest.raises(LoadError, match="there is no adapter nothing: give a folder"):
        load_model("demo-base + nothing")


def test_what_takes_no_adapter(tmp_path: Path) -> None:
    folder = adapter_of("llama", tmp_path / "odd")
    for source in (tiny_hf("llama"), "demo-base-mixture"):
        with pytest.raises(ValueError, match="merged into a model that is read from its name, folder or GGUF file"):
            load_model(source, adapter=folder)
    with pytest.raises(ValueError, match="on one device: leave device_map and max_memory out"):
        load_model(tiny_folder("llama"), adapter=folder, device_map="auto")
    with pytest.raises(TypeError, match=r"adapter must be a folder with adapter_config.json or the name of a shipped"):
        load_model(tiny_folder("llama"), adapter=3)  # type: ignore[arg-type]
    odd = tmp_path / "a + b"
    shutil.copytree(folder, odd)
    with pytest.raises(LoadError, match=r"the path of an adapter must not hold ' \+ '"):
        load_model(tiny_folder("llama"), adapter=odd)
