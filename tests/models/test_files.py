"""What `load_model` does where the files of a model contradict each other, are damaged, or lie in the hub's cache."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import random
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from interp_widgets import Workbench
from interp_widgets.models import LoadError, hub_files, load_model, loading, memory
from interp_widgets.models.hub_files import Source
from interp_widgets.models.library_messages import collected, quiet
from interp_widgets.models.mixture_of_depths.checkpoint import base_hash
from interp_widgets.models.mixture_of_depths.opening import read_base
from interp_widgets.models.state import facts
from interp_widgets.models.weight_files import read_headers
from interp_widgets.sweeps.sending import pack
from tests.models.tiny import metaspace_tokenizer, tiny_folder, tiny_hf, tiny_model

Weights = dict[str, Tensor]
IDS = [5, 17, 300, 44, 8]


def folder_of(
    target: Path, family: str = "llama", change: Callable[[Weights], Weights] | None = None, **config: Any
) -> Path:
    """A copy of a tiny folder with other weights and other entries of its config, of which None takes one out."""
    shutil.copytree(tiny_folder(family), target)
    path = target / "config.json"
    entries = json.loads(path.read_text(encoding="utf8")) | config
    path.write_text(json.dumps({name: value for name, value in entries.items() if value is not None}))
    if change is not None:
        save_file(
            change(load_file(target / "model.safetensors")), target / "model.safetensors", metadata={"format": "pt"}
        )
    return target


@dataclass(frozen=True)
class Read:
    """What loading reads, before the conversion, which takes a second and is the same for all of them."""

    source: Source
    dtype: torch.dtype
    messages: list[str]

    def has_weights_of(self, hf_model: Any) -> bool:
        own, other = self.source.hf_model.state_dict(), hf_model.state_dict()
        return own.keys() == other.keys() and all(torch.equal(own[name], other[name]) for name in own)


def read(target: Any, **options: Any) -> Read:
    with warnings.catch_warnings(record=True) as seen, pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("always")
        patch.setattr(loading, "build", lambda source, **built: (source, built["dtype"]))
        source, dtype = load_model(target, device="cpu", **options)  # type: ignore[misc]
    return Read(source, dtype, [str(warning.message) for warning in seen if warning.category is UserWarning])


# ---- weights and config


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        (None, {"num_hidden_layers": 2, "layer_types": None}, "holds 9 weights that .* first model.layers.2"),
        (lambda w: w | {"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}, {}, "holds 1 weight that .*q_proj.b"),
        (lambda w: {k: v for k, v in w.items() if "lm_head" not in k}, {}, "lacks 1 weight that .* first lm_head"),
    ],
)  # fmt: skip
def test_weights_and_config_that_differ_are_refused_unless_allowed(
    change: Any, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    target = folder_of(tmp_path / "m", change=change, **config)
    with pytest.raises(LoadError, match=f"{message}.*copy both from the same model, or give allow_mismatch=True"):
        load_model(target)
    allowed = read(target, allow_mismatch=True)
    assert len(allowed.messages) == 1
    assert message.partition(" that")[0] in allowed.messages[0]
    assert read(target, allow_mismatch=True).has_weights_of(allowed.source.hf_model)  # also where they are random


@pytest.mark.seconds
def test_what_loads_a_model_again_allows_what_was_allowed(tmp_path: Path) -> None:
    target = folder_of(tmp_path / "m", change=lambda w: {k: v for k, v in w.items() if "layers.1.mlp" not in k})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metaspace_tokenizer().save_pretrained(target)
        model = load_model(target, allow_mismatch=True)
        again = pickle.loads(pack(model))  # as a sweep sends it to its processes
        assert facts(again) == facts(model)
        hf_model, _ = read_base(model)
        assert base_hash(hf_model) == base_hash(read_base(again)[0])
        bench = Workbench(model, prompt="the cat")
        path = bench.save(tmp_path / "session.npz")
        bench.close()
        opened = Workbench.load(path)
        assert opened.models[0].weight_hash == model.weight_hash
        opened.close()


@pytest.mark.parametrize(
    ("family", "added"),
    [
        ("llama", {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}),
        ("llama", {"score.weight": torch.ones(2, 32)}),
        ("gpt2", {"h.0.attn.bias": torch.ones(1, 1, 8, 8), "h.0.attn.masked_bias": torch.ones(1)}),
        ("gpt_neox", {"gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool)}),
    ],
)  # fmt: skip
def test_tables_and_heads_of_other_tasks_are_no_mismatch(family: str, added: Weights, tmp_path: Path) -> None:
    whole = read(folder_of(tmp_path / "m", family, lambda weights: weights | added))
    assert not whole.messages
    assert whole.has_weights_of(tiny_hf(family))


def test_a_bias_with_the_name_of_a_mask_is_a_weight(tmp_path: Path) -> None:
    added = {"model.layers.0.self_attn.bias": torch.ones(1, 1, 8, 8), "model.layers.0.attention.bias": torch.ones(32)}
    target = folder_of(tmp_path / "m", change=lambda weights: weights | added)
    assert [name for name in added if read_headers(target).is_table(name)] == []
    with pytest.raises(LoadError, match="holds 2 weights"):
        load_model(target)


def test_allow_mismatch_is_for_folders() -> None:
    for source in (tiny_hf("llama"), "demo-base-mixture"):
        with pytest.raises(ValueError, match="allow_mismatch is for a model that is read from its folder"):
            load_model(source, allow_mismatch=True)
    with pytest.raises(TypeError, match="allow_mismatch must be True or False, got 'yes'"):
        load_model(tiny_folder("llama"), allow_mismatch="yes")  # type: ignore[arg-type]


def test_a_head_that_should_be_tied_and_is_not_is_named(tmp_path: Path) -> None:
    target = folder_of(tmp_path / "m", tie_word_embeddings=True)
    found = read(target)
    assert len(found.messages) == 1
    assert "different values" in found.messages[0]
    assert found.has_weights_of(tiny_hf("llama"))


def test_shapes_that_differ_are_named(tmp_path: Path) -> None:
    tiny_model("llama")  # TransformerLens, once imported, hides the warnings of transformers
    target = folder_of(tmp_path / "m", vocab_size=470)
    with pytest.raises(
        LoadError, match=r"has the shape \(460, 32\) in the file and \(470, 32\) by the config"
    ) as caught:
        load_model(target)
    assert "report" not in str(caught.value)


# ---- dtypes


@pytest.mark.parametrize("entry", ["dtype", "torch_dtype"])
def test_the_file_decides_over_the_dtype_of_the_config(entry: str, tmp_path: Path) -> None:
    target = folder_of(tmp_path / "m", **{"dtype": None, entry: "bfloat16"})
    found = read(target)
    assert len(found.messages) == 1
    assert found.messages[0].endswith("says 'bfloat16', but its weights are float32: the weights decide")
    assert found.dtype == torch.float32
    assert found.has_weights_of(tiny_hf("llama"))
    assert not read(target, dtype="bfloat16").messages  # the user has decided


def test_weights_of_several_dtypes_are_not_rounded_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = folder_of(
        tmp_path / "m",
        change=lambda weights: {
            name: value.bfloat16() if value.ndim > 1 else value + 1e-4 for name, value in weights.items()
        },
        dtype="bfloat16",
    )  # fmt: skip
    found = read(target)
    assert not found.messages
    assert found.dtype == torch.float32
    assert torch.equal(
        found.source.hf_model.model.norm.weight, load_file(target / "model.safetensors")["model.norm.weight"]
    )
    monkeypatch.setattr(memory, "free_bytes", lambda device: 0)
    found = read(target)
    assert found.dtype == torch.bfloat16
    assert len(found.messages) == 1
    assert "are float32 and are rounded to bfloat16: give dtype='float32' to keep them" in found.messages[0]


# ---- messages of libraries


def test_only_messages_about_numbers_are_shown_and_once(caplog: pytest.LogCaptureFixture) -> None:
    logger, own = logging.getLogger("transformers.tokenization"), logging.getLogger("mine")
    wrong = "an incorrect regex pattern. This will lead to incorrect tokenization."

    def load() -> None:
        with collected():
            for _ in range(2):
                with quiet("model"):
                    logger.warning(wrong)
                    logger.warning("`torch_dtype` is deprecated! Use `dtype` instead!")
                    logging.getLogger("torchao").warning("Failed to load a library")
                    own.warning("a message of the user's")
                    warnings.warn("a warning of the user's", RuntimeWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="incorrect tokenization") as seen:
        load()
    assert [str(each.message) for each in seen if each.category is UserWarning] == [f"model: {wrong}"]
    assert sum(each.category is RuntimeWarning for each in seen) == 2
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["a message of the user's"] * 2


def test_messages_do_not_come_after_an_error() -> None:
    def load() -> None:
        with collected(), quiet("model"):
            logging.getLogger("transformers").warning("incorrect")
            raise KeyError("inside")

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(KeyError):
            load()


# ---- sizes, before anything is built


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_hidden_layers": 10**6, "layer_types": None}, "declares num_hidden_layers = 1000000, but .* 30 tensors"),
        ({"num_labels": 10**9}, "declares num_labels = 1000000000"),
        ({"num_key_value_heads": 10**6}, "declares num_key_value_heads = 1000000"),
        ({"vocab_size": 10**9}, "declares vocab_size = 1000000000"),
        ({"num_labels": float("nan")}, "num_labels in .* must be a whole number of at least 0, got nan"),
        ({"max_position_embeddings": 0}, "max_position_embeddings in .* must be a whole number of at least 1, got 0"),
        ({"max_position_embeddings": -1}, "max_position_embeddings in .* must be a whole number of at least 1, got -1"),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused_by_what_the_file_holds(
    config: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_files, "read_model", lambda *args, **options: pytest.fail("a model was built"))
    with pytest.raises(LoadError, match=message):
        load_model(folder_of(tmp_path / "m", **config))


def test_positions_of_a_model_in_memory() -> None:
    hf_model = copy.deepcopy(tiny_hf("llama"))
    hf_model.config.max_position_embeddings = 0
    with pytest.raises(
        LoadError, match=r"max_position_embeddings in the config of .* must be a whole number of at least 1, got 0"
    ):
        load_model(hf_model)


@pytest.mark.parametrize("odd", ["0.5", "true"])
def test_an_end_of_text_that_is_no_id(odd: str, tmp_path: Path) -> None:
    target = folder_of(tmp_path / "m")
    (target / "generation_config.json").write_text(f'{{"eos_token_id": [2, {odd}]}}')
    with pytest.raises(LoadError, match=r"of LlamaForCausalLM must be an int or a list of int, got (0\.5|True)$"):
        load_model(target, backend="bridge")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"null", b"[]"], ids=ascii)
def test_a_damaged_generation_config_is_refused(content: bytes, tmp_path: Path) -> None:
    """Without it, a text would not end at its tokens."""
    target = folder_of(tmp_path / "m")
    (target / "generation_config.json").write_bytes(content)
    with pytest.raises(
        LoadError, match=r"generation_config\.json is not (valid JSON|a JSON object).*save the model ag"
    ):
        load_model(target)


# ---- folders


def test_a_snapshot_is_called_by_its_repository(tmp_path: Path) -> None:
    repository = tmp_path / "models--owner--name"
    first, second = (repository / "snapshots" / (letter * 40) for letter in "ab")
    shutil.copytree(tiny_folder("llama"), first)
    for source in (first, repository, repository / "snapshots"):
        found = read(source).source
        assert (found.name, found.address) == ("owner/name", str(first))
    shutil.copytree(tiny_folder("llama"), second)
    with pytest.raises(LoadError, match=r"repository in the hub's cache, whose models are in .*snapshots \(aaa.*bbb"):
        load_model(repository)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("b" * 40)
    assert read(repository).source.address == str(second)


def test_a_whole_model_beside_an_adapter(tmp_path: Path) -> None:
    target = folder_of(tmp_path / "m")
    (target / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "some/base"}')
    found = read(target)
    assert found.has_weights_of(tiny_hf("llama"))
    assert not found.messages
    save_file({"a": torch.ones(1)}, target / "adapter_model.safetensors")
    assert "holds a LoRA adapter beside a whole model, which is loaded without it" in read(target).messages[0]
    (target / "model.safetensors").unlink()
    with pytest.raises(LoadError, match=r"the base model some/base of the adapter in .* cannot be had"):
        load_model(target)


def test_a_hub_name_is_read_like_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import hub

    repository = tmp_path / "models--owner--name"
    folder_of(repository / "snapshots" / ("a" * 40), dtype="bfloat16")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    find = hub.cached_files
    monkeypatch.setattr(hub, "cached_files", lambda *args, **options: find(*args, **options | {"cache_dir": tmp_path}))
    monkeypatch.setattr(hub_files, "read_tokenizer", lambda *args, **options: None)
    found = read("owner/name")
    assert (found.source.name, found.source.address, found.dtype) == ("owner/name", "owner/name", torch.float32)
    assert "the weights decide" in found.messages[0]


ODD_SOURCES = ["x" * 5000, "a/" + "y" * 5000, "a\0b", "a\nb", "\ud800", "~nobody/x", Path("x" * 5000), Path("a\0b")]


@pytest.mark.parametrize(
    "source", [*ODD_SOURCES, None, 5, b"abc", ["a"], {}, object], ids=lambda source: ascii(source)[:12]
)
def test_odd_sources_are_one_sentence(source: Any) -> None:
    kind = LoadError if isinstance(source, str | Path) else TypeError
    with pytest.raises(kind) as caught:
        load_model(source)
    message = str(caught.value)
    assert "\n" not in message
    assert message.isprintable()
    assert len(message) < 400


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("", r"but it is an empty str: give '\.' for the current folder$"),
        ("https://huggingface.co/gpt2", r"but 'https://huggingface\.co/gpt2' is an address: .* such as 'gpt2'"),
        ("hf://owner/name", "but 'hf://owner/name' is an address"),
    ],
)
def test_no_source_and_an_address_are_not_read_as_folders(
    source: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder_of(tmp_path / "m"))
    assert load_model(".").d_model == tiny_hf("llama").config.hidden_size
    with pytest.raises(LoadError, match=sentence):
        load_model(source)


# ---- tokenizers


@pytest.mark.parametrize("tokenizer", [5, "gpt2", [], dict, object()], ids=lambda value: type(value).__name__)
def test_what_is_no_tokenizer(tokenizer: Any) -> None:
    for source in (tiny_folder("llama"), tiny_hf("llama"), tiny_model("llama").tl_model):
        with pytest.raises(TypeError, match="tokenizer must be a transformers tokenizer, such as AutoTokenizer"):
            load_model(source, tokenizer=tokenizer)


def test_any_padding_of_the_vocabulary() -> None:
    hf_model = tiny_hf("llama")
    hf_model.resize_token_embeddings(460 + 3000)
    model = load_model(hf_model, tokenizer=metaspace_tokenizer(), backend="bridge")
    assert model.d_vocab == 3460
    assert model.token_strings([459, 460, 3459])[1:] == ("[460]", "[3459]")
    assert model.decode([3459]) == ""


def test_a_post_processor_of_unknown_tokens(tmp_path: Path) -> None:
    for number, change in enumerate(
        (
            lambda tree: tree["post_processor"]["special_tokens"].clear(),
            lambda tree: tree["post_processor"]["special_tokens"]["<s>"].update(ids=[10**6]),
        )
    ):
        target = folder_of(tmp_path / str(number))
        tree = json.loads((target / "tokenizer.json").read_text(encoding="utf8"))
        change(tree)
        (target / "tokenizer.json").write_text(json.dumps(tree), encoding="utf8")
        with pytest.raises(LoadError, match="tokenizer") as caught:
            load_model(target)
        assert "\n" not in str(caught.value)


# ---- inference mode and the meta device


@pytest.mark.seconds
@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_models_under_inference_mode(backend: Any) -> None:
    from interp_widgets.analysis.saliency import prompt_saliency

    outside = load_model(tiny_folder("llama"), backend=backend)
    wanted = prompt_saliency(outside, IDS, [7, 9], method="first_order").importance
    with torch.inference_mode():
        loaded = load_model(tiny_folder("llama"), backend=backend)
        made = copy.deepcopy(tiny_hf("llama"))
        for model in (outside, loaded, load_model(made, backend=backend)):
            found = prompt_saliency(model, IDS, [7, 9], method="first_order").importance
            torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted))
        rows = outside.token_embeddings(IDS) * 1.0
        assert rows.is_inference()
        names = ["blocks.0.hook_resid_pre"]
        run = outside.run(
            IDS, capture=names, embeddings=rows, edit={names[0]: lambda x: rows[None]}, grad=lambda x: x.sum()
        )
        assert bool(run.gradients[names[0]].any())


def test_weights_without_values_are_refused() -> None:
    part = copy.deepcopy(tiny_hf("llama"))
    part.model.layers[1].to("meta")
    for model in (
        copy.deepcopy(tiny_hf("llama")).to("meta"),
        part,
        load_model(tiny_folder("llama")).tl_model.to("meta"),
    ):
        with pytest.raises(
            LoadError, match=r"have no values \(.* is on the meta device\): load them with from_pretrained"
        ):
            load_model(model)
    accelerate = pytest.importorskip("accelerate")
    offloaded = copy.deepcopy(tiny_hf("llama"))
    accelerate.cpu_offload(offloaded, execution_device="cpu")
    with pytest.raises(LoadError, match="keeps its embedding or unembedding on disk or beside its device"):
        load_model(offloaded)


# ---- crafted folders

ODD = [
    0,
    -1,
    1,
    3,
    10**9,
    2**70,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\0",
    "\ud800",
    None,
    True,
    [],
    [1],
    {},
    0.5,
]


def _leaves(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [leaf for key, value in items for leaf in ((*path, key), *_leaves(value, (*path, key)))]


def _craft(target: Path, draw: random.Random) -> None:
    """Change one value of a JSON file, or some bytes of a file, or cut a file off."""
    path = target / draw.choice(
        ["config.json", "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
    )
    kind = draw.choice(["value", "value", "bytes", "cut"])
    content = bytearray(path.read_bytes())
    if kind == "value" and path.suffix == ".json":
        tree = json.loads(content)
        *where, last = draw.choice([leaf for leaf in _leaves(tree) if not {"vocab", "merges"} & set(leaf[:-1])])
        part = tree
        for key in where:
            part = part[key]
        part[last] = draw.choice(ODD)
        path.write_text(json.dumps(tree))
    elif kind == "cut":
        path.write_bytes(bytes(content[: draw.randrange(len(content))]))
    else:
        for _ in range(3):
            content[draw.randrange(min(len(content), 4000))] = draw.randrange(256)
        path.write_bytes(bytes(content))


@pytest.mark.seconds
def test_crafted_folders_are_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    draw, refused = random.Random(0), list[str]()
    for number in range(60):
        target = tmp_path / str(number)
        shutil.copytree(tiny_folder(draw.choice(["llama", "gpt2"])), target)
        _craft(target, draw)
        try:
            read(target)
        except LoadError as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert all("\n" not in message for message in refused)
