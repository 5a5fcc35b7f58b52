"""A tiny LLaMA with what the paper's authors' own code computes on it, from the published reference data."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch


@functools.cache
def reference(folder: Path) -> dict[str, Any]:
    """All arrays of the archive."""
    with np.load(folder / "tiny_llama_reference.npz", allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


@functools.cache
def reference_model(folder: Path, backend: str = "auto") -> Any:
    """The reference's weights as a `Model`, with a tokenizer of its whole-word vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from interp_widgets.models import load_model

    data = reference(folder)
    hf_model = LlamaForCausalLM(LlamaConfig(**json.loads(str(data["config_json"])))).eval()
    weights = {name[2:]: torch.from_numpy(value) for name, value in data.items() if name.startswith("w:")}
    hf_model.load_state_dict(weights)
    core = Tokenizer(models.WordLevel({str(token): i for i, token in enumerate(data["vocab"])}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    return load_model(hf_model, tokenizer=tokenizer, backend=backend)
