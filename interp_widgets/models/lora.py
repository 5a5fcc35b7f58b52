"""Low-rank adapters (LoRA, by peft) on the linear maps of a transformers model."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from .threads import threads_kept

WEIGHTS = "adapter_model.safetensors"
"""The file of the adapters in a folder."""
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
    """A transformers model with the adapters of a folder merged into its weights, in place.

    ImportError without peft; ValueError if not every number of the adapters has its place, or a place has none.
    """
    try:
        import peft
    except ImportError as error:
        raise ImportError(NEEDS_PEFT) from error
    from safetensors import safe_open

    with safe_open(Path(folder) / WEIGHTS, framework="pt") as file:
        names = set(file.keys())
    _check_ties(hf_model, names)
    with warnings.catch_warnings(), threads_kept():
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)  # the number of threads may change last bits
        adapted = peft.PeftModel.from_pretrained(hf_model, str(folder), torch_device="cpu")
        needed = set(peft.get_peft_model_state_dict(adapted, save_embedding_layers=False))
        if lacking := sorted(needed - names):
            raise ValueError(f"it has no {lacking[0]}{_more(lacking)}")
        if unused := sorted(names - needed - set(adapted.state_dict())):
            raise ValueError(f"the model has no place for its {unused[0]}{_more(unused)}")
        merged = adapted.merge_and_unload()
    return merged.requires_grad_(True)


def _check_ties(hf_model: Any, names: Iterable[str]) -> None:
    """Raise a ValueError for adapters on one of two tied matrices: merged, they would change the other as well."""
    embedding, unembedding = hf_model.get_input_embeddings(), hf_model.get_output_embeddings()
    if embedding.weight is not unembedding.weight:
        return
    tied = [name for name, module in hf_model.named_modules() if module in (embedding, unembedding)]
    found = next((one for one in names for name in tied if f"{name}.lora_" in one), None)
    if found is not None:
        raise ValueError(f"its {found} is on one of two tied matrices, so that a merge would change the other as well")


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
