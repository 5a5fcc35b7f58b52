"""Models that accelerate spreads over devices and disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets.analysis.ablation import ablate_modules
from interp_widgets.analysis.logit_lens import logit_lens
from interp_widgets.analysis.saliency import prompt_saliency
from interp_widgets.models import LoadError, Model, load_model
from interp_widgets.models.placement import has_plain_weights
from tests.models.mixtures import random_state
from tests.models.tiny import tiny_folder

IDS = [5, 17, 300, 44, 8]
WEIGHTS = [("W_E", None), ("W_U", None), ("ln_final_w", None), ("W_Q", 1), ("W_K", 2), ("W_O", 1), ("W_out", 2),
           ("ln1_w", 2), ("b_Q", 1)]  # fmt: skip


NAMES = {
    "gpt2": ("transformer", "h", ("wte", "wpe", "drop", "ln_f")),
    "gpt_neox": ("gpt_neox", "layers", ("embed_in", "emb_dropout", "final_layer_norm", "rotary_emb")),
    "llama": ("model", "layers", ("embed_tokens", "norm", "rotary_emb")),
    "gemma2": ("model", "layers", ("embed_tokens", "norm", "rotary_emb")),
}


def spread(family: str, *on_disk: str) -> dict[str, Any]:
    """A device_map of a tiny model: all on the CPU but the named parts of its trunk, which are on disk."""
    trunk, layers, others = NAMES[family]
    parts = [*(f"{layers}.{index}" for index in range(3)), *others]
    names = {f"{trunk}.{part}": part for part in parts} | {"lm_head": "lm_head"}
    return {name: "disk" if part in on_disk else "cpu" for name, part in names.items()}


def on_disk(family: str = "llama") -> Model:
    return load_model(tiny_folder(family), device_map=spread(family, "layers.1", "layers.2"))


def whole(family: str = "llama") -> Model:
    return load_model(tiny_folder(family), backend="bridge", device="cpu", dtype="float32")


def near(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(torch.tensor(np.asarray(found)), torch.tensor(np.asarray(wanted)), atol=1e-4, rtol=1e-3)


@pytest.mark.seconds
@pytest.mark.parametrize("device_map", [{"": "cpu"}, "cpu", "auto"])
def test_a_map_of_one_device_is_a_bridge_there(device_map: Any) -> None:
    if device_map == "auto" and torch.cuda.is_available():
        pytest.skip("this machine has an accelerator, where the model would go")
    model = load_model(tiny_folder("llama"), device_map=device_map)
    assert (model.backend, model.device.type, model.offloaded, model.quantized) == ("bridge", "cpu", False, None)
    assert torch.equal(model.run(IDS).logits, whole().run(IDS).logits)


@pytest.mark.seconds
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_model_with_layers_on_disk_is_the_same_model(family: str) -> None:
    model, wanted = on_disk(family), whole(family)
    assert model.offloaded
    assert not wanted.offloaded
    assert not has_plain_weights(model.tl_model)
    assert model.device == torch.device("cpu")
    assert model.dtype == torch.float32
    assert model.self_check.passed
    assert model.weight_hash == wanted.weight_hash
    assert model.parameter_count == wanted.parameter_count
    run, own = (
        each.run(IDS, capture=["hook_embed", "blocks.2.attn.hook_z"], grad=lambda logits: logits[0, -1, 3])
        for each in (model, wanted)
    )
    near(run.logits, own.logits)
    for name, value in own.activations.items():
        near(run.activations[name], value)
        near(run.gradients[name], own.gradients[name])
    assert model.generate_ids(IDS, max_new_tokens=6) == wanted.generate_ids(IDS, max_new_tokens=6)


@pytest.mark.seconds
@pytest.mark.parametrize(("name", "layer"), WEIGHTS)
def test_weights_on_disk_are_read(name: str, layer: int | None) -> None:
    found = on_disk().weight(name, layer)
    assert not found.is_meta
    assert torch.equal(found, whole().weight(name, layer))


@pytest.mark.seconds
def test_analyses_of_a_model_with_layers_on_disk() -> None:
    model, wanted = on_disk(), whole()
    for method in ("first_order", "exact"):
        near(*(prompt_saliency(each, IDS, [7, 9], method=method).importance for each in (model, wanted)))
    near(*(ablate_modules(each, IDS, target=7).effect for each in (model, wanted)))
    lenses = [logit_lens(each, IDS).to_frame() for each in (model, wanted)]
    near(*(lens.select_dtypes("number").to_numpy() for lens in lenses))


@pytest.mark.seconds
def test_a_spread_transformers_model_from_memory() -> None:
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(tiny_folder("llama"), device_map=spread("llama", "layers.1"))
    model = load_model(hf)
    assert model.offloaded
    assert model.shares_weights
    near(model.run(IDS).logits, whole().run(IDS).logits)
    again = hf(torch.tensor([IDS])).logits.detach()
    near(again.log_softmax(-1), whole().run(IDS).logits.log_softmax(-1))
    with pytest.raises(ValueError, match="is spread over devices and stays where and as it is: leave device and dtype"):
        load_model(hf, dtype="float64")
    with pytest.raises(ValueError, match="device_map and max_memory spread a model that is read from its folder"):
        load_model(hf, device_map="auto")


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_joint_query_key_and_value_weights_on_disk_are_refused_or_right(family: str) -> None:
    """TransformerLens 3 reads them while it wraps the model, TransformerLens 4 while it runs."""
    try:
        model = load_model(tiny_folder(family), device_map=spread(family, f"{NAMES[family][1]}.1"))
    except LoadError as error:
        message = str(error)
        assert "cannot have weights on disk or on a processor beside a GPU" in message
        assert message.endswith("splits its query, key and value weights when it loads: give a device_map without them")
        return
    assert model.offloaded
    near(model.run(IDS).logits, whole(family).run(IDS).logits)
    assert model.generate_ids(IDS, max_new_tokens=6) == whole(family).generate_ids(IDS, max_new_tokens=6)
    near(model.weight("W_K", 1), whole(family).weight("W_K", 1))


def test_what_cannot_be_spread_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = tiny_folder("llama")
    with pytest.raises(LoadError, match=r"keeps its embedding or unembedding on disk .* give both a device"):
        load_model(folder, device_map=spread("llama", "embed_tokens"))
    with pytest.raises(LoadError, match=r"keeps its embedding or unembedding on disk .* give both a device"):
        load_model(folder, device_map=spread("llama", "lm_head"))
    with pytest.raises(LoadError, match=r"keeps its embedding or unembedding on disk .* or more memory"):
        load_model(folder, max_memory={"cpu": "50KB"})
    with pytest.raises(LoadError, match=r"cannot load .*nonsense"):
        load_model(folder, device_map="nonsense")
    with pytest.raises(ValueError, match="device_map already says where every part goes: leave device='cpu' out"):
        load_model(folder, device_map="auto", device="cpu")
    with pytest.raises(ValueError, match="is spread over devices, which only the bridge can run"):
        load_model(folder, device_map="cpu", backend="hooked")
    with pytest.raises(ValueError, match="its norms cannot be folded: leave processed out"):
        load_model(folder, device_map="cpu", processed=True)
    from interp_widgets.models.mixture_of_depths.checkpoint import save_state

    save_state(random_state("llama", 2), tmp_path / "mixture")
    with pytest.raises(ValueError, match="spread a model that is read from its folder or hub name: leave them out"):
        load_model(tmp_path / "mixture", device_map="auto")
