"""Models that transformers has quantised with torchao.

torchao has a folder of its own (`make test-quantised`): in the environment, transformers would import it in every
session of a user, and print its warnings there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torchao.quantization import Int8WeightOnlyConfig
from transformers import AutoModelForCausalLM, TorchAoConfig

from interp_widgets.analysis.ablation import ablate_modules
from interp_widgets.analysis.saliency import prompt_saliency
from interp_widgets.models import Model, load_model
from tests.models.tiny import tiny_folder, tiny_model, tiny_tokenizer

IDS = [5, 17, 300, 44, 8]


def whole(family: str = "llama") -> Model:
    return load_model(tiny_folder(family), backend="bridge", device="cpu", dtype="float32")


def int8(family: str = "llama") -> Any:
    """A tiny transformers model whose linear maps are int8."""
    config = TorchAoConfig(quant_type=Int8WeightOnlyConfig())
    return AutoModelForCausalLM.from_pretrained(
        tiny_folder(family), dtype=torch.float32, quantization_config=config
    ).eval()


def test_a_quantised_model_runs_as_transformers_runs_it(tmp_path: Path) -> None:
    hf = int8()
    with torch.no_grad():
        wanted = hf(torch.tensor([IDS])).logits.log_softmax(-1)
    assert (wanted - whole().run(IDS).logits.log_softmax(-1)).abs().max() > 1e-2  # it could tell the difference
    hf.save_pretrained(tmp_path)
    tiny_tokenizer("llama").save_pretrained(tmp_path)
    for model in (load_model(hf), load_model(tmp_path)):
        assert (model.backend, model.quantized, model.dtype) == ("bridge", "torchao", torch.float32)
        assert model.self_check.passed
        torch.testing.assert_close(model.run(IDS).logits.log_softmax(-1), wanted, atol=1e-4, rtol=1e-3)
        assert len(model.weight_hash) == 64
        assert model.weight_hash != whole().weight_hash
        assert len(model.generate_ids(IDS, max_new_tokens=4)) == 4
        assert prompt_saliency(model, IDS, [7, 9], method="first_order").importance.any()
        assert ablate_modules(model, IDS, target=7).effect.any()
    assert tiny_model("llama", "bridge").quantized is None


def test_quantised_weights_are_read_in_full() -> None:
    hf = int8()
    model = load_model(hf)

    def own(layer: int) -> Tensor:
        weight: Tensor = hf.model.layers[layer].mlp.down_proj.weight.dequantize()
        return weight.T

    assert torch.equal(model.weight("W_out", 1), own(1))
    assert not torch.equal(own(1), whole().weight("W_out", 1))
    assert type(hf.model.layers[1].mlp.down_proj.weight).__name__ != "Parameter"
    with pytest.raises(ValueError, match=r"is quantised \(torchao\), which only the bridge can run"):
        load_model(hf, backend="hooked")
    with pytest.raises(ValueError, match=r"is quantised \(torchao\) and stays where and as it is"):
        load_model(hf, dtype="bfloat16")


def test_a_weight_that_no_quantisation_gives_back_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from interp_widgets.models import weights

    def unreadable(*_: Any, **__: Any) -> Tensor:
        raise NotImplementedError("packed")

    model = load_model(int8())
    monkeypatch.setattr(weights, "weight", unreadable)
    with pytest.raises(ValueError, match=r"W_Q of llama_0 cannot be read, .* are quantised \(torchao\)"):
        model.weight("W_Q", 0)
