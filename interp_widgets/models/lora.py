"""Low-rank adapters (LoRA, by peft) on the linear maps of a transformers model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

NEEDS_PEFT = "LoRA needs the peft package: install it with `pip install interp_widgets[tuning]`"


def add_adapters(
    hf_model: Any, targets: Sequence[str] | str, *, rank: int, alpha: int, seed: int, advice: str = ""
) -> Any:
    """The peft model around ``hf_model``, with adapters on these modules; ``"all-linear"`` for those of all blocks.

    The seed determines the initial weights; global random generators are not advanced. ImportError without peft.
    """
    try:
        import peft
    except ImportError as error:
        raise ImportError(NEEDS_PEFT + advice) from error
    transposed = any(type(module).__name__ == "Conv1D" for module in hf_model.modules())
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=targets, lora_dropout=0.0, fan_in_fan_out=transposed
    )
    device = hf_model.device
    cards = [device.index or 0] if device.type == "cuda" else []
    # peft uses the global generators and warns about its own actions
    with torch.random.fork_rng(devices=cards), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # not torch.manual_seed, which would permanently seed other devices too
        for generator in (torch.default_generator, *(torch.cuda.default_generators[card] for card in cards)):
            generator.manual_seed(seed)
        return peft.get_peft_model(hf_model, config)


def save_adapters(peft_model: Any, folder: Any) -> None:
    """Write only the adapters, in peft's format."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft_model.save_pretrained(str(folder), safe_serialization=True, save_embedding_layers=False)


def merged_with(hf_model: Any, folder: Any) -> Any:
    """A transformers model with the adapters of a folder merged into its weights, in place."""
    try:
        import peft
    except ImportError as error:
        raise ImportError(NEEDS_PEFT) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.PeftModel.from_pretrained(hf_model, str(folder)).merge_and_unload()
