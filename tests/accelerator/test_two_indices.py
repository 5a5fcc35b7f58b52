"""A bridge whose layers lie on two devices computes what it computes on one; a HookedTransformer like that is refused.

That operands on both indices raise, so that these tests can fail, is shown in `test_strict`.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import accelerate
import pytest
import torch
from transformer_lens.model_bridge.sources import build_bridge_from_module

import interp_widgets as iw
from interp_widgets.models.library_messages import quiet
from tests.accelerator import table
from tests.accelerator.same import assert_same
from tests.accelerator.table import ROWS, Setup, group, on_the_cpu
from tests.models.tiny import tiny_folder, tiny_hf, tiny_model

MAPS = {
    "gpt2": {
        "transformer.wte": 0, "transformer.wpe": 0, "transformer.drop": 0, "transformer.h.0": 0, "transformer.h.1": 1,
        "transformer.h.2": 1, "transformer.ln_f": 1, "lm_head": 0,
    },
    "llama": {
        "model.embed_tokens": 0, "model.rotary_emb": 0, "model.layers.0": 0, "model.layers.1": 1, "model.layers.2": 1,
        "model.norm": 1, "lm_head": 1,
    },
}  # fmt: skip
"""Which index each part lies on; GPT-2's output is its embedding table, so it comes back to the first."""
OWN_LOADING = {"load", "load_processed"}
"""Rows that load a model by themselves, on one device."""


@functools.cache
def spread(setup: Setup, *, seed: int) -> iw.Model:
    """The tiny model with its layers on both indices, under the name of the whole one."""
    whole = tiny_model(setup.family, "bridge", seed=seed)
    hf_model: Any = tiny_hf(setup.family, seed=seed)
    hf_model.config.architectures = [type(hf_model).__name__]
    hf_model.set_attn_implementation("eager")
    places = {name: f"strict:{index}" for name, index in MAPS[setup.family].items()}
    with quiet(setup.family):
        bridge = build_bridge_from_module(
            accelerate.dispatch_model(hf_model, places), type(hf_model).__name__,
            hf_config=copy.deepcopy(hf_model.config), tokenizer=None, dtype=torch.float32,
        )  # fmt: skip
        bridge.enable_compatibility_mode(disable_warnings=True, no_processing=True)
    model = iw.load_model(bridge.eval(), tokenizer=whole.tokenizer)
    model.name, model.source, model.prepend_bos = whole.name, str(tiny_folder(setup.family, seed)), whole.prepend_bos
    return model


@pytest.mark.parametrize("name", [name for name in ROWS if name not in OWN_LOADING])
@pytest.mark.parametrize("family", [pytest.param(family, marks=group(family, "bridge")) for family in MAPS])
def test_layers_on_two_devices(family: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = on_the_cpu(name, family, "bridge")
    monkeypatch.setattr(table, "_model", spread)
    setup = Setup(family, "bridge", "strict:0")
    devices = {parameter.device.index for parameter in setup.model.tl_model.parameters()}
    assert devices == {0, 1}
    assert_same(ROWS[name][1](setup), wanted, tolerance=1e-4)


def test_a_hooked_transformer_on_two_devices_is_refused() -> None:
    model = iw.load_model(tiny_folder("gpt2"), device="strict:0", backend="hooked")
    model.tl_model.blocks[2].to("strict:1")
    with pytest.raises(ValueError, match=r"spread over strict:0 and strict:1.*move it to one.*backend='bridge'"):
        iw.load_model(model.tl_model, tokenizer=model.tokenizer)
