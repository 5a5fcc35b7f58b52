"""What `load_model` takes, which backend it chooses, and the sentence it says where it cannot load."""

from __future__ import annotations

import copy
import json
import re
import shutil
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from interp_widgets import notebook
from interp_widgets.models import (
    LoadError,
    ModelPair,
    SelfCheckError,
    hub_files,
    load_demo_pair,
    load_model,
    load_pair,
    loading,
    loading_note,
    threads,
)
from interp_widgets.models.pair import distinct_names
from interp_widgets.models.threads import SMALL, few_threads, pay_off
from interp_widgets.widgets.base.heading import heading, view_options
from tests.architectures.models import random_model
from tests.models.tiny import (
    BRIDGE_ONLY,
    FAMILIES,
    byte_level_tokenizer,
    metaspace_tokenizer,
    tiny_folder,
    tiny_hf,
    tiny_model,
)
from tests.waiting import LIMIT

IDS = [5, 17, 300, 44, 8]


def copy_of(family: str, target: Path) -> Path:
    shutil.copytree(tiny_folder(family), target)
    return target


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf8")) | values
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}), encoding="utf8")


@pytest.mark.hooked
@pytest.mark.parametrize("family", FAMILIES)
def test_backend_is_chosen_by_conversion_and_self_check(family: str) -> None:
    model = tiny_model(family)
    assert model.backend == ("bridge" if family in BRIDGE_ONLY else "hooked")
    assert model.self_check.passed
    assert ("because as HookedTransformer" in model.self_check.note) == (family in BRIDGE_ONLY)


@pytest.mark.hooked
@pytest.mark.parametrize("family", ["llama_bias", "llama_linear_rope"])
def test_silently_wrong_conversions_are_refused_with_the_difference(family: str) -> None:
    with pytest.raises(SelfCheckError, match=r"log-probabilities differ from Hugging Face by \d"):
        load_model(tiny_folder(family), backend="hooked")


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_come_from_the_config(family: str) -> None:
    model = tiny_model(family)
    assert (model.n_layers, model.n_heads, model.d_model, model.d_head) == (3, 4, 32, 8)
    assert model.n_kv_heads == (4 if family in ("gpt2", "gpt_neox") else 2)
    assert model.n_ctx == 128
    assert model.d_mlp == (128 if family == "gpt2" else 96)
    assert model.d_vocab == len(model.tokenizer)
    assert model.normalization == ("LayerNorm" if family in ("gpt2", "gpt_neox") else "RMSNorm")
    assert model.device.type == "cpu" or torch.cuda.is_available()
    assert model.parameter_count == tiny_hf(family).num_parameters()
    assert "layers" in repr(model)


BOTH = [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"]


@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("backend", BOTH)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_transformers_model_is_left_alone(family: str, backend: str, processed: bool) -> None:
    hf = tiny_hf(family).train()
    hf.set_attn_implementation("sdpa")
    for index, parameter in enumerate(hf.parameters()):
        parameter.requires_grad_(index % 2 == 0)
    before = {name: value.clone() for name, value in hf.state_dict().items()}
    modules = [type(module) for module in hf.modules()]
    model = load_model(hf, backend=backend, processed=processed)
    model.run(IDS, edit={"blocks.1.hook_resid_pre": lambda value: 2 * value})
    model.run(IDS, capture="hook_embed", grad=lambda logits: logits[0, -1, 0])
    assert hf.training
    assert hf.config._attn_implementation == "sdpa"
    assert [type(module) for module in hf.modules()] == modules
    assert [parameter.requires_grad for parameter in hf.parameters()] == [
        index % 2 == 0 for index in range(len(list(hf.parameters())))
    ]
    assert all(parameter.grad is None for parameter in hf.parameters())
    for name, value in hf.state_dict().items():
        assert torch.equal(value, before[name])
    again = load_model(hf, backend=backend)
    assert again.name == type(hf).__name__
    torch.testing.assert_close(
        again.run(IDS).logits.log_softmax(-1), hf.eval()(torch.tensor([IDS])).logits.log_softmax(-1).detach(),
        atol=1e-4, rtol=1e-4,
    )  # fmt: skip


@pytest.mark.seconds
@pytest.mark.parametrize("backend", BOTH)
def test_weights_of_a_transformers_model_are_shared(backend: str) -> None:
    """An edit of one is an edit of both; a model of another type has weights of its own."""
    hf = tiny_hf("llama")
    model = load_model(hf, backend=backend)
    assert model.shares_weights
    assert model.provenance()["shares_weights"] is True
    assert repr(model).endswith(f"{backend}, float32 on cpu, weights shared)")
    before = model.run(IDS).logits
    with torch.no_grad():
        hf.model.layers[1].mlp.down_proj.weight.mul_(2)
        hf.model.layers[0].self_attn.q_proj.weight.mul_(2)
    wanted = hf(torch.tensor([IDS])).logits.detach()
    torch.testing.assert_close(model.run(IDS).logits.log_softmax(-1), wanted.log_softmax(-1), atol=1e-4, rtol=1e-4)
    assert (model.run(IDS).logits - before).abs().max() > 1e-2
    model.weight("W_out", 2).zero_()
    assert not hf.model.layers[2].mlp.down_proj.weight.any()
    other = load_model(hf, backend=backend, dtype=torch.float64)
    assert not other.shares_weights
    assert repr(other).endswith(f"{backend}, float64 on cpu)")
    other.weight("W_out", 1).zero_()
    assert hf.model.layers[1].mlp.down_proj.weight.any()
    assert not load_model(tiny_folder("llama"), backend=backend).shares_weights


@pytest.mark.seconds
@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_rotary_frequencies_of_a_half_precision_model_are_those_of_transformers(family: str) -> None:
    """Rounded to bfloat16 they would turn late positions into others, in the reference of the self-check as well."""
    from transformers import AutoModelForCausalLM

    own = AutoModelForCausalLM.from_pretrained(tiny_folder(family), dtype=torch.bfloat16)
    frequencies = [value for name, value in own.named_buffers() if name.endswith("inv_freq")]
    assert frequencies
    assert all(value.dtype == torch.float32 for value in frequencies)
    half = {"dtype": "bfloat16", "backend": "bridge"}
    for model in (
        load_model(tiny_folder(family), **half),
        load_model(own, **half),
        load_model(tiny_hf(family), **half),
    ):
        found = [value for name, value in model.tl_model.named_buffers() if name.endswith("inv_freq")]
        assert [value.dtype for value in found] == [torch.float32] * len(frequencies)
        assert all(torch.equal(*pair) for pair in zip(found, frequencies, strict=True))
        assert model.dtype == torch.bfloat16


MEASURE = """
import sys
sys.path.insert(0, {benchmarks!r})
import json, loading, multiprocessing, pathlib, torch
folder = pathlib.Path({folder!r})
with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:  # a process for each, imports done
    pool.apply(loading.write_model, (folder, 24, torch.float32))
    ask = lambda kind, backend: (f"{{kind}}:{{folder}}", {{"backend": backend, "dtype": "float32"}})
    measured = {{b: [pool.apply(loading.measure, ask(kind, b)) for kind in ("folder", "memory")] for b in {backends!r}}}
print(json.dumps(measured))
"""


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory, warm_kernel: str) -> dict[str, list[dict[str, float]]]:
    """What a load from a folder and one from memory take, by backend."""
    import nbformat
    from nbclient import NotebookClient

    root = Path(__file__).resolve().parents[2]
    backends = ["bridge"] if metadata.version("transformer-lens") >= "4" else ["hooked", "bridge"]
    folder, benchmarks = tmp_path_factory.mktemp("loads"), root / "benchmarks"
    code = MEASURE.format(benchmarks=str(benchmarks), folder=str(folder), backends=backends)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    resources = {"metadata": {"path": str(root)}}
    NotebookClient(book, timeout=LIMIT, startup_timeout=LIMIT, kernel_name=warm_kernel, resources=resources).execute()
    printed = "".join(output.text for output in book.cells[0].outputs if output.get("name") == "stdout")
    found: dict[str, list[dict[str, float]]] = json.loads(printed.splitlines()[-1])
    return found


@pytest.mark.seconds
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="anonymous memory is read from Linux's /proc")
@pytest.mark.parametrize("backend", BOTH)
def test_a_load_takes_little_memory_beside_the_weights(backend: str, loads: Any) -> None:
    """The aims are 1.3 and 0.3 times the weights; the check at load takes about 40 MB, whatever the size."""
    from_folder, from_memory = loads[backend]
    assert from_folder["size"] > 100e6
    assert from_folder["peak"] < 1.3 * from_folder["size"]
    assert from_memory["peak"] < 0.3 * from_memory["size"] + 60e6


def test_transformers_model_without_tokenizer_takes_ids_only() -> None:
    model = load_model(tiny_hf("gpt2"))
    assert model.run(IDS).logits.shape == (1, len(IDS), model.d_vocab)
    assert model.token_strings(IDS[:2]) == ("[5]", "[17]")
    with pytest.raises(ValueError, match="without a tokenizer: give token ids"):
        model.tokens("hello")


def test_transformers_model_from_a_folder_brings_its_tokenizer_and_type() -> None:
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(tiny_folder("llama"), dtype=torch.float64)
    model = load_model(hf)
    assert model.tokens("The dog") == tiny_model("llama").tokens("The dog")
    assert model.dtype == torch.float64
    assert model.name == tiny_folder("llama").name


@pytest.mark.parametrize("backend", BOTH)
def test_transformer_lens_model_is_used_as_it_is(backend: str) -> None:
    inner = load_model(tiny_folder("llama"), backend=backend).tl_model
    model = load_model(inner)
    assert model.tl_model is inner
    assert model.backend == backend
    assert not model.processed
    assert model.prepend_bos  # as its cfg says
    assert model.self_check.logits is None
    assert "not compared" in model.self_check.summary()
    assert model.tokens("The dog") == tiny_model("llama").tokens("The dog")
    with pytest.raises(ValueError, match="used as it is"):
        load_model(inner, dtype=torch.float64)
    with pytest.raises(ValueError, match="used as it is"):
        load_model(inner, backend="bridge" if backend == "hooked" else "hooked")
    with pytest.raises(ValueError, match="used as it is"):
        load_model(inner, processed=True)
    inner.train()
    if backend == "hooked":  # it has no dropout, and TransformerLens leaves a new one in training mode
        assert load_model(inner).tl_model is inner
    else:
        with pytest.raises(ValueError, match=r"call \.eval\(\)"):
            load_model(inner)


@pytest.mark.parametrize("backend", BOTH)
def test_processed_weights_are_recognised_on_a_given_model(backend: str) -> None:
    assert load_model(load_model(tiny_folder("gpt2"), backend=backend, processed=True).tl_model).processed


def test_half_precision_file_loads_as_float32(tmp_path: Path) -> None:
    tiny_hf("llama", dtype=torch.float16).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert model.dtype == torch.float32
    assert model.tokenizer is None


@pytest.mark.seconds
def test_float32_is_the_default_only_where_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    tiny_hf("llama", dtype=torch.bfloat16).save_pretrained(tmp_path)
    needed = 4 * tiny_hf("llama").num_parameters()
    for share, dtype in ((1.3, torch.float32), (1.2, torch.bfloat16)):
        room = type("Room", (), {"available": int(share * needed)})
        monkeypatch.setattr(psutil, "virtual_memory", lambda room=room: room)
        model = load_model(tmp_path, device="cpu")
        assert model.dtype == dtype
        assert f"{str(dtype).removeprefix('torch.')} on cpu" in repr(model)
    assert load_model(tmp_path, device="cpu", dtype="float32").dtype == torch.float32


def test_names_that_hold_architecture_words_do_not_mislead(tmp_path: Path) -> None:
    """TransformerLens guesses from words in the path; a Qwen folder called 'llama-gemma' is still a Qwen."""
    target = copy_of("qwen2", tmp_path / "llama-gemma-bert-t5")
    model = load_model(target)
    assert model.self_check.passed
    assert model.name == "llama-gemma-bert-t5"


def test_sharded_folder_loads_and_a_missing_shard_is_named(tmp_path: Path) -> None:
    tiny_hf("llama").save_pretrained(tmp_path, max_shard_size="60KB")
    assert load_model(tmp_path).self_check.passed
    sorted(tmp_path.glob("model-*.safetensors"))[1].unlink()
    with pytest.raises(LoadError, match=r"lacks model-00002.* weight files are missing"):
        load_model(tmp_path)


BROKEN_INDICES = {
    "no JSON": ("{", "is not valid JSON"),
    "no text": (b"\xff\xfe", "is not valid JSON"),
    "a list": ("[]", "has no weight_map from the names of weights"),
    "no map": ('{"metadata": {}}', "has no weight_map from the names of weights"),
    "an empty map": ('{"metadata": {}, "weight_map": {}}', "has no weight_map from the names of weights"),
    "a list as map": ('{"metadata": {}, "weight_map": ["a"]}', "has no weight_map from the names of weights"),
    "a list as file": ('{"metadata": {}, "weight_map": {"a": ["b"]}}', "has no weight_map from the names of weights"),
    "no metadata": ('{"weight_map": {"a": "b"}}', "has no metadata"),
    "nested deeply": ("[" * 100_000, "is not valid JSON"),
    "another shard": ('{"metadata": {}, "weight_map": {"a": "b.safetensors"}}', "lacks b.safetensors"),
}


@pytest.mark.parametrize("how", ["up", "absolute", "linked file", "linked folder", "folder", "long", "nul"])
def test_shards_outside_of_the_folder_are_refused(how: str, tmp_path: Path) -> None:
    folder, other = tmp_path / "model", tmp_path / "other"
    tiny_hf("llama").save_pretrained(folder)
    other.mkdir()
    target = (folder / "model.safetensors").rename(other / "x.safetensors")
    (folder / "link.safetensors").symlink_to(target)
    (folder / "sub").symlink_to(other)
    shard = {
        "up": "../other/x.safetensors",
        "absolute": str(target),
        "linked file": "link.safetensors",
        "linked folder": "sub/x.safetensors",
        "folder": "..",
        "long": "x" * 5000,
        "nul": "a\0b",
    }[how]
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    message = "lacks x" if how == "long" else "names a weight file outside of its folder"
    with pytest.raises(LoadError, match=message) as caught:
        load_model(folder)
    assert len(str(caught.value)) < 600


def test_shards_in_the_cache_of_the_hub_are_links_and_load(tmp_path: Path) -> None:
    folder, blobs = tmp_path / "models--x" / "snapshots" / "abc", tmp_path / "models--x" / "blobs"
    tiny_hf("llama").save_pretrained(folder, max_shard_size="60KB")
    blobs.mkdir()
    for shard in folder.glob("model-*.safetensors"):
        shard.symlink_to(shard.rename(blobs / shard.stem))
    assert load_model(folder).self_check.passed


@pytest.mark.parametrize("kind", BROKEN_INDICES)
def test_a_broken_index_of_shards_is_named(kind: str, tmp_path: Path) -> None:
    content, message = BROKEN_INDICES[kind]
    tiny_hf("llama").save_pretrained(tmp_path, max_shard_size="60KB")
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(LoadError, match=message) as caught:
        load_model(tmp_path)
    assert str(caught.value).endswith("copy the model again")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": [1]}, r"architectures in the config\.json of .* must be a list such as"),
        ({"hidden_size": "wide"}, "hidden_size in .* must be a whole number of at least 1, got .wide."),
        ({"num_attention_heads": 0}, "num_attention_heads in .* must be a whole number of at least 1, got 0"),
        ({"hidden_act": "nope"}, "cannot load .*KeyError 'nope'"),
    ],
)
def test_a_config_that_cannot_be_is_one_sentence(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    target = copy_of("llama", tmp_path / "m")
    change_config(target, **change)
    with pytest.raises(LoadError, match=message) as caught:
        load_model(target)
    assert "\n" not in str(caught.value)


def test_half_a_surrogate_pair_is_no_text() -> None:
    model = tiny_model("llama")
    for call in (model.tokens, model.generate, model.token_spans, lambda text: model.token_lists(["fine", text])):
        with pytest.raises(
            ValueError, match=r"valid Unicode, but its character 3 is '.ud800', one half of a surrogate"
        ):
            call("The\ud800 dog")
    assert model.tokens("The \U0001f415 dog")


# ---- errors: one sentence, what was found and what to do


def test_missing_folder() -> None:
    with pytest.raises(LoadError, match=r"there is no folder .*nowhere: check the path"):
        load_model("./nowhere")


def test_hub_name_without_network() -> None:
    with pytest.raises(LoadError, match="not a local folder and the Hugging Face hub could not give it") as caught:
        load_model("some-team/some-model")
    assert "local folder that holds the model" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_hub_is_asked_once_whether_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(hub_files, "getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        assert hub_files.hub_reachable()
    assert not hub_files.hub_reachable()
    with pytest.raises(LoadError, match="the Hugging Face hub could not give it"):
        load_model("some-team/some-model")


def test_no_part_of_transformers_asks_a_hub_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.auto import auto_factory

    asked: list[bool] = []

    def find(*_: Any, local_files_only: bool = False, **__: Any) -> None:
        asked.append(not local_files_only)

    monkeypatch.setattr(auto_factory, "is_peft_available", lambda: True)
    monkeypatch.setattr(auto_factory, "find_adapter_config_file", find)
    with pytest.raises(LoadError, match="the Hugging Face hub could not give it"):
        hub_files.read_model("some-team/some-model", dtype=torch.float32, local=False, offline=True)
    hub_files.read_model(tiny_folder("llama"), dtype=torch.float32, local=True)
    assert asked == [False, False]


def test_file_instead_of_folder() -> None:
    with pytest.raises(LoadError, match="is a file: give the folder"):
        load_model(tiny_folder("llama") / "model.safetensors")


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"no config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{not json", encoding="utf8")
    with pytest.raises(LoadError, match="not valid JSON"):
        load_model(tmp_path)


def test_config_without_architectures(tmp_path: Path) -> None:
    target = copy_of("llama", tmp_path / "m")
    change_config(target, architectures=None)
    with pytest.raises(LoadError, match="names no architecture"):
        load_model(target)


def test_unknown_architecture_and_remote_code(tmp_path: Path) -> None:
    target = copy_of("llama", tmp_path / "m")
    change_config(target, model_type="martian", architectures=["MartianForCausalLM"])
    with pytest.raises(LoadError, match="transformers cannot load"):
        load_model(target)
    change_config(target, model_type=None, auto_map={"AutoModelForCausalLM": "code.Model"})
    with pytest.raises(LoadError, match="never run here"):
        load_model(target)


def test_encoder_decoder(tmp_path: Path) -> None:
    import transformers

    shape = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    hf = transformers.T5ForConditionalGeneration(transformers.T5Config(**shape, decoder_start_token_id=0))
    hf.save_pretrained(tmp_path)
    with pytest.raises(LoadError, match="encoder-decoder"):
        load_model(tmp_path)
    with pytest.raises(LoadError, match="encoder-decoder"):
        load_model(hf)


def test_model_without_output_head() -> None:
    with pytest.raises(LoadError, match="AutoModelForCausalLM"):
        load_model(tiny_hf("llama").model)


def test_pickle_is_refused_with_the_conversion(tmp_path: Path) -> None:
    target = copy_of("llama", tmp_path / "m")
    torch.save(tiny_hf("llama").state_dict(), target / "pytorch_model.bin")
    (target / "model.safetensors").unlink()
    with pytest.raises(
        LoadError, match=r"pickle \(pytorch_model.bin\).*refused.*convert it once with python -c"
    ) as caught:
        load_model(target)
    command = str(caught.value).split('python -c "')[1].rsplit('"', 1)[0]
    exec(command, {})
    assert load_model(target).self_check.passed  # the advice works


def test_folder_without_weights(tmp_path: Path) -> None:
    target = copy_of("llama", tmp_path / "m")
    (target / "model.safetensors").unlink()
    with pytest.raises(LoadError, match=r"no model\.safetensors"):
        load_model(target)


def test_damaged_weights(tmp_path: Path) -> None:
    target = copy_of("llama", tmp_path / "m")
    whole = (target / "model.safetensors").read_bytes()
    (target / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LoadError, match=r"damaged|cannot load") as caught:
        load_model(target)
    assert "\n" not in str(caught.value)


def test_weights_of_another_config(tmp_path: Path) -> None:
    target = copy_of("llama", tmp_path / "m")
    change_config(target, num_hidden_layers=5, layer_types=None)
    with pytest.raises(LoadError, match=r"lacks \d+ weights that its config declares, first model\.layers\.3"):
        load_model(target)
    change_config(target, num_hidden_layers=3, hidden_size=64)
    with pytest.raises(LoadError, match=r"shape|cannot load"):
        load_model(target)


def test_nan_weights_name_the_tensor(tmp_path: Path) -> None:
    hf = tiny_hf("llama")
    hf.model.layers[1].mlp.up_proj.weight.data[3, 4] = float("nan")
    with pytest.raises(LoadError, match=r"NaN or infinity, first in model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(hf)
    hf.save_pretrained(tmp_path)
    with pytest.raises(LoadError, match="NaN or infinity"):
        load_model(tmp_path)
    inner = load_model(tiny_folder("llama"), backend="bridge").tl_model
    next(inner.parameters()).data[0, 0] = float("inf")
    with pytest.raises(LoadError, match="NaN or infinity"):
        load_model(inner)


def test_unmerged_lora() -> None:
    hf = tiny_hf("llama")
    hf.model.layers[0].self_attn.q_proj.lora_A = torch.nn.Linear(32, 2, bias=False)
    with pytest.raises(LoadError, match=r"unmerged LoRA weights .*lora_A.*merge_and_unload"):
        load_model(hf)


def test_lora_folders(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf8")
    with pytest.raises(LoadError, match="holds an adapter that names no base model"):
        load_model(tmp_path)
    hf = tiny_hf("llama")
    hf.model.layers[0].self_attn.q_proj.lora_A = torch.nn.Linear(32, 2, bias=False)
    hf.save_pretrained(tmp_path / "whole")
    with pytest.raises(LoadError, match="unmerged LoRA"):
        load_model(tmp_path / "whole")


def test_tokenizer_of_another_size() -> None:
    with pytest.raises(LoadError, match=r"tokenizer has 460 entries but .* vocabulary of 420"):
        load_model(tiny_hf("gpt2"), tokenizer=metaspace_tokenizer())


def test_tokenizer_of_another_mapping() -> None:
    with pytest.raises(LoadError, match=r"id 0 is .* in it and .* in the model's own"):
        load_model(tiny_folder("llama"), tokenizer=byte_level_tokenizer())


def test_damaged_tokenizer(tmp_path: Path) -> None:
    target = copy_of("llama", tmp_path / "m")
    (target / "tokenizer.json").write_text('{"version": "1.0"}', encoding="utf8")
    with pytest.raises(LoadError, match=r"tokenizer in .* cannot be read"):
        load_model(target)


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="backend must be"):
        load_model(tiny_folder("gpt2"), backend="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="device must be"):
        load_model(tiny_folder("gpt2"), device="toaster")
    with pytest.raises(TypeError, match="dtype must be"):
        load_model(tiny_folder("gpt2"), dtype=torch.int64)
    with pytest.raises(TypeError, match="source must be"):
        load_model(torch.nn.Linear(2, 2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device whose absence is tested")
def test_cuda_without_a_cuda_device() -> None:
    with pytest.raises(ValueError, match="no CUDA device"):
        load_model(tiny_folder("gpt2"), device="cuda")


# ---- pairs and the shipped models


def test_pair() -> None:
    from interp_widgets.models import Model

    pair = load_pair(tiny_folder("llama"), tiny_folder("llama", 1), backend="bridge")
    assert isinstance(pair.base, Model)
    assert pair.base.weight_hash != pair.tuned.weight_hash
    assert [model.backend for model in pair] == ["bridge", "bridge"]


def test_pair_of_two_vocabularies() -> None:
    with pytest.raises(ValueError, match=r"id 0 is '<.endoftext.>' in gpt2_0 and '<unk>' in llama_0"):
        ModelPair(tiny_model("gpt2"), tiny_model("llama"))
    other = json.loads(byte_level_tokenizer().backend_tokenizer.to_str())
    vocabulary = other["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.get)[400:402]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    swapped = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(other)), eos_token="<|endoftext|>")
    model = load_model(tiny_hf("gpt2"), tokenizer=swapped)
    with pytest.raises(ValueError, match="one vocabulary: id 400 is"):
        ModelPair(tiny_model("gpt2"), model)
    wider = tiny_hf("gpt2")
    wider.resize_token_embeddings(428)
    own = tiny_model("gpt2").tokenizer
    with pytest.raises(ValueError, match=r"gpt2_0 has 420 entries, .* has 428"):
        ModelPair(tiny_model("gpt2"), load_model(wider, tokenizer=own))
    longer = copy.deepcopy(own)
    longer.add_tokens(["<extra>"])
    with pytest.raises(ValueError, match="id 420 is nothing in gpt2_0 and '<extra>' in"):
        ModelPair(tiny_model("gpt2"), load_model(wider, tokenizer=longer))


@pytest.mark.seconds
def test_models_of_one_name_are_called_by_what_differs(tmp_path: Path) -> None:
    def named(**facts: Any) -> Any:
        return SimpleNamespace(**{"name": "smollm2", "source": "/runs/a/smollm2", "dtype": torch.float32} | facts)

    revision = {"name": "owner/name", "source": "/hub/models--owner--name/snapshots/aaaaaaaaaaaaaaaa"}
    cases: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
        ({}, {"name": "other"}, ["smollm2", "other"]),
        ({}, {"source": "/runs/b/smollm2"}, ["a/smollm2", "b/smollm2"]),
        ({}, {"source": "/more/a/smollm2"}, ["runs/a/smollm2", "more/a/smollm2"]),
        ({}, {"dtype": torch.bfloat16}, ["smollm2 (float32)", "smollm2 (bfloat16)"]),
        ({}, {"source": None}, ["smollm2 (from a folder)", "smollm2 (from memory)"]),
        ({}, {"edits": ("LEACE",)}, ["smollm2 (not edited)", "smollm2 (edited: LEACE)"]),
        ({"backend": "hooked"}, {"backend": "bridge"}, ["smollm2 (hooked)", "smollm2 (bridge)"]),
        ({"processed": True}, {}, ["smollm2 (processed)", "smollm2 (not processed)"]),
        (
            revision,
            revision | {"source": "/hub/models--owner--name/snapshots/bbbbbbbbbbbbbbbb"},
            ["owner/name (aaaaaaaaaaaa)", "owner/name (bbbbbbbbbbbb)"],
        ),
        ({}, {}, ["smollm2", "smollm2"]),
    ]
    for first, second, names in cases:
        assert distinct_names([named(**first), named(**second)]) == names
    pair = load_pair(copy_of("llama", tmp_path / "a" / "m"), copy_of("llama", tmp_path / "b" / "m"), backend="bridge")
    assert distinct_names(pair) == ["a/m", "b/m"]
    assert all(
        f"{letter}: <b>{name}</b>" in heading("Lens", list(pair))
        for letter, name in zip("AB", ["a/m", "b/m"], strict=True)
    )
    assert view_options(list(pair), [])[:2] == [("A: a/m", "A"), ("B: b/m", "B")]


def test_demo_names_resolve_to_the_assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_files, "DEMO", tmp_path)
    with pytest.raises(LoadError, match="shipped model demo-base is not there"):
        load_model("demo-base")
    copy_of("llama", tmp_path / "base")
    copy_of("llama", tmp_path / "tuned")
    pair = load_demo_pair()
    assert (pair.base.name, pair.tuned.name) == ("demo-base", "demo-tuned")


@pytest.mark.seconds
def test_package_import_leaves_transformer_lens_alone() -> None:
    code = "import sys, interp_widgets.models; print('transformer_lens' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.seconds
def test_loading_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    folders = [tiny_folder("gpt2"), tiny_folder("llama_bias")]
    capfd.readouterr()  # writing the folders may show a progress bar
    for target in folders:
        load_model(target)
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


@pytest.mark.seconds
def test_a_first_load_prints_nothing() -> None:
    """Importing transformers imports packages such as torchao, which print what they cannot load."""
    code = "from interp_widgets.models import load_model; load_model('demo-base', backend='bridge')"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout + done.stderr == ""


def test_a_small_model_takes_one_thread_and_gives_the_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before, paying = torch.get_num_threads(), [True]
    monkeypatch.setattr(threads, "pay_off", lambda: paying[0])
    torch.set_num_threads(2)
    try:
        with few_threads(SMALL - 1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with few_threads(SMALL):
            assert torch.get_num_threads() == 2
        paying[0] = False  # another busy program
        with few_threads(SMALL, trial=True):
            assert torch.get_num_threads() == 1
        with few_threads(SMALL):  # what computes results: the same bits at any time
            assert torch.get_num_threads() == 2
        with pytest.raises(RuntimeError, match="inside"), few_threads(1):
            raise RuntimeError("inside")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_trial_says_whether_threads_pay_off(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for costs, expected in (({1: 1.0, 2: 0.6}, True), ({1: 1.0, 2: 20.0}, False)):
            monkeypatch.setattr(threads, "_timed", lambda *_, costs=costs: costs[torch.get_num_threads()])
            assert pay_off() is expected
            assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        assert pay_off()  # nothing to choose
    finally:
        torch.set_num_threads(before)


class _Fails(torch.nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, *args: Any, **options: Any) -> torch.Tensor:
        raise self.error


@pytest.mark.parametrize("backend", ["auto", "bridge"])
@pytest.mark.parametrize(
    "error",
    [
        ImportError("it needs the mamba_ssm package"),
        RuntimeError("The size of tensor a (4) must match the size of tensor b (8)"),
        AttributeError("'bool' object has no attribute 'sum'"),
        KeyError("eager"),
    ],
)
def test_what_transformers_itself_cannot_run_is_said_so(error: Exception, backend: str) -> None:
    hf_model = copy.deepcopy(tiny_hf("llama"))
    hf_model.model.layers[1].mlp = _Fails(error)
    start = r"transformers itself cannot run LlamaForCausalLM \(LlamaForCausalLM\) in torch\.float32 on cpu: "
    with pytest.raises(LoadError, match=start + re.escape(str(error))):
        load_model(hf_model, backend=backend)


def test_memory_that_runs_out_is_no_refusal_of_transformers() -> None:
    hf_model = copy.deepcopy(tiny_hf("llama"))
    hf_model.model.layers[1].mlp = _Fails(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(MemoryError, match="does not fit into the memory"):
        load_model(hf_model)


def test_a_model_that_asks_for_more_than_embeddings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemma 4 looks its embedding rows up in its table, so that a row of zeros is no input."""
    hf_model = copy.deepcopy(tiny_hf("llama"))
    table = hf_model.get_input_embeddings().weight
    plain = type(hf_model.model).forward

    def forward(self: Any, input_ids: Any = None, inputs_embeds: Any = None, **options: Any) -> Any:
        if inputs_embeds is not None and not bool((inputs_embeds[0, :, None] == table).all(-1).any(-1).all()):
            raise RuntimeError("these are no rows of the table")
        return plain(self, input_ids=input_ids, inputs_embeds=inputs_embeds, **options)

    monkeypatch.setattr(type(hf_model.model), "forward", forward)
    with pytest.raises(SelfCheckError, match="does not run from token embeddings alone"):
        load_model(hf_model, backend="bridge")


# ---- types in which not every model runs


@pytest.mark.seconds
@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("backend", BOTH)
def test_a_float64_checkpoint_is_loaded_in_either_type(backend: str, processed: bool, tmp_path: Path) -> None:
    hf = tiny_hf("llama", dtype=torch.float64)
    hf.save_pretrained(tmp_path)
    with torch.no_grad():
        wanted = hf(torch.tensor([IDS])).logits.log_softmax(-1)
    for dtype, found in ((None, torch.float32), (torch.float64, torch.float64)):
        model = load_model(tmp_path, backend=backend, dtype=dtype, processed=processed, device="cpu")
        assert model.dtype == found
        logits = model.run(IDS).logits.log_softmax(-1).double()
        torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "deepseek_v3"])
def test_experts_run_in_float64(name: str) -> None:
    """The products that transformers groups have no float64."""
    hf, ids = random_model(name, dtype=torch.float64), [5, 17, 30, 44]
    with pytest.raises(RuntimeError, match="got Double"):
        hf(torch.tensor([ids]))
    model = load_model(hf)
    assert hf.config._experts_implementation == "grouped_mm"  # the user's model stays as it was
    assert model.dtype == torch.float64
    single = random_model(name, dtype=torch.float32)(torch.tensor([ids])).logits.detach().log_softmax(-1)
    torch.testing.assert_close(model.run(ids).logits.log_softmax(-1).float(), single, atol=1e-4, rtol=1e-4)


def test_a_model_that_transformers_cannot_run_is_refused_in_a_sentence() -> None:
    with pytest.raises(
        LoadError,
        match=r"^transformers itself cannot run XGLMForCausalLM \(XGLMForCausalLM\) in torch\.float64 on cpu: value "
        r"cannot be converted to type float without overflow; try dtype=torch\.float32, or look at its configuration",
    ):
        load_model(random_model("xglm", dtype=torch.float64))
    assert load_model(random_model("xglm", dtype=torch.float32)).dtype == torch.float32


def test_types_that_nothing_runs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (torch.float8_e4m3fn, "float8_e5m2", torch.int8, "complex64", "nonsense", 3):
        with pytest.raises(TypeError, match=r"^dtype must be torch\.float32, .*bfloat16 or torch\.float16, got "):
            load_model(tiny_folder("llama"), dtype=dtype)
    assert load_model(tiny_hf("gpt2").to(torch.float8_e4m3fn)).dtype == torch.float32
    monkeypatch.setattr(loading, "has_float64", lambda device: False)  # as on Apple's MPS
    assert load_model(tiny_hf("gpt2", dtype=torch.float64)).dtype == torch.float32


def test_a_notebook_says_that_it_loads_and_how_long_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    class Line:
        def update(self, data: dict[str, str], raw: bool) -> None:
            lines.append(data["text/plain"])

    monkeypatch.setattr(notebook, "new_line", Line)
    load_model("demo-base", backend="bridge")
    assert lines == [], "what ships is quick"
    folder = tiny_folder("gpt2")
    monkeypatch.setattr(loading_note, "AFTER", 0.0)
    load_model(folder, backend="bridge")
    assert [line.removeprefix(f"{folder.name}: ") for line in lines[:-1]] == [
        "reading its files …", "comparing it with transformers …"
    ]  # fmt: skip
    assert lines[-1].startswith(f"{folder.name}: loaded in "), lines
    lines.clear()
    with pytest.raises(LoadError):
        load_model(tmp_path / "nothing here")
    assert lines[-1] == "", "the error says what is wrong"
