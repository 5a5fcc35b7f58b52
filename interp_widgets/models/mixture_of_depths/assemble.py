"""Builds the parts of a mixture from a transformers model and learned weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import LoadError
from ..lora import add_adapters
from .checkpoint import LoraSetup, MixtureState, base_hash
from .install import LateParts, late_parts
from .mixture import Mixture

__all__ = ["add_lora", "apply_state", "lora_parameters", "new_mixture", "norm_parameters", "read_weights"]


def new_mixture(parts: LateParts, router: Tensor, top_k: int, only: int | None = None) -> Mixture:
    """A mixture whose norms are copies of the model's final norm."""
    norms = [copy.deepcopy(parts.norm) for _ in range(router.shape[1] - 1)]
    return Mixture(router, norms, top_k, only)


def norm_parameters(mixture: Mixture, parts: LateParts) -> dict[str, nn.Parameter]:
    """The norm parameters of every route: "norms.I.weight" and, if it has one, "norms.I.bias"."""
    final = {name: p for name, p in parts.norm.named_parameters() if not name.startswith("mixture.")}
    routes = [*(dict(norm.named_parameters()) for norm in mixture.norms), final]
    return {f"norms.{index}.{name}": p for index, route in enumerate(routes) for name, p in route.items()}


# ---- LoRA


def add_lora(hf_model: Any, parts: LateParts, setup: LoraSetup, k: int, seed: int) -> Any:
    """The peft model around ``hf_model``, with adapters on all linear maps of the chosen layers."""
    depth = len(parts.layers)
    adapted = {"all": range(depth), "last": range(depth - k, depth), "below": range(depth - k)}[setup.layers]
    names = [
        f"{parts.layers_name}.{index}.{name}"
        for index in adapted
        for name, module in parts.layers[index].named_modules()
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    ]
    return add_adapters(hf_model, names, rank=setup.rank, alpha=setup.alpha, seed=seed, advice=", or leave lora out")


def lora_parameters(peft_model: Any) -> dict[str, nn.Parameter]:
    """The adapters' parameters by name."""
    return {f"lora.{name}": p for name, p in peft_model.named_parameters() if "lora_" in name}


def read_weights(named: Mapping[str, nn.Parameter], saved: Mapping[str, Tensor]) -> None:
    """Copy saved values into parameters; LoadError where names or shapes differ."""
    odd = sorted(set(named) ^ set(saved))
    if odd:
        raise LoadError(f"the checkpoint does not fit the model: {odd[0]} is in only one of them")
    with torch.no_grad():
        for name, parameter in named.items():
            if parameter.shape != saved[name].shape:
                raise LoadError(
                    f"{name} has shape {tuple(saved[name].shape)} in the checkpoint and {tuple(parameter.shape)} "
                    "in the model: the checkpoint belongs to another model"
                )
            parameter.copy_(saved[name])


def apply_state(hf_model: Any, state: MixtureState) -> tuple[Any, Mixture]:
    """The tuned transformers model with merged adapters, and its mixture; ``hf_model`` is changed in place.

    Raises LoadError if ``hf_model`` is not the base model of the state.
    """
    weight_hash = base_hash(hf_model)
    if weight_hash != state.base_hash:
        raise LoadError(
            f"this mixture was tuned on {state.base_name} with weights {state.base_hash[:12]}…, but the base given "
            f"has weights {weight_hash[:12]}…: open it on the model it was made from"
        )
    parts = late_parts(hf_model)
    mixture = new_mixture(parts, torch.zeros_like(state.weights["router"]), state.top_k, state.only)
    peft_model = None if state.lora is None else add_lora(hf_model, parts, state.lora, state.k, 0)
    named = {"router": mixture.router, **norm_parameters(mixture, parts)}
    named |= {} if peft_model is None else lora_parameters(peft_model)
    read_weights(named, state.weights)
    if peft_model is not None:
        hf_model = peft_model.merge_and_unload()
    for parameter in (*hf_model.parameters(), *mixture.parameters()):
        parameter.requires_grad_(True)  # as when transformers loads them
    return hf_model, mixture
