"""Weights that are not plain tensors in their modules: kept elsewhere by accelerate until used, or quantised."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


def is_offloaded(module: Any) -> bool:
    """Whether accelerate keeps some weights on disk or on another device, and brings them in to be used."""
    return any(parameter.is_meta for parameter in module.parameters())


def is_kept_elsewhere(part: Any) -> bool:
    """Whether accelerate brings the weights of one module in while it runs."""
    return bool(part.weight.is_meta or getattr(getattr(part, "_hf_hook", None), "offload", False))


def has_plain_weights(module: Any) -> bool:
    """Whether every weight is there as a tensor that can be read: none is kept elsewhere or quantised."""
    return not any(parameter.is_meta or _is_quantised(parameter) for parameter in module.parameters())


def _is_quantised(value: Tensor) -> bool:
    return type(value).dequantize is not Tensor.dequantize


def is_placed(hf_model: Any) -> bool:
    """Whether a transformers model must stay in the places and types that it was loaded in."""
    return getattr(hf_model, "hf_device_map", None) is not None or quantisation(hf_model) is not None


def quantisation(hf_model: Any) -> str | None:
    """How transformers has quantised a model, such as ``"torchao"``; None for plain weights."""
    method = getattr(hf_model, "quantization_method", None) if getattr(hf_model, "is_quantized", False) else None
    return None if method is None else str(getattr(method, "value", method))


@contextlib.contextmanager
def readable(*parts: nn.Module) -> Iterator[None]:
    """Inside, these modules hold plain weights: brought in from elsewhere, and not quantised.

    A tensor that is read stays valid after. What modules within them hold stays as it is: give ``*module.modules()``
    for that. No pass may run meanwhile.
    """
    quantised: list[tuple[dict[str, Any], str, Any]] = []
    with contextlib.ExitStack() as stack:
        for part in parts:
            if any(parameter.is_meta for parameter in part.parameters(recurse=False)):
                from accelerate.utils import align_module_device

                stack.enter_context(align_module_device(part))
            own = part._parameters
            quantised += [
                (own, leaf, value) for leaf, value in own.items() if value is not None and _is_quantised(value)
            ]
        try:
            for own, leaf, value in quantised:
                own[leaf] = nn.Parameter(value.detach().dequantize(), requires_grad=False)
            yield
        finally:
            for own, leaf, value in quantised:
                own[leaf] = value


def kept_elsewhere(hf_model: Any) -> list[Tensor]:
    """The tensors that accelerate's hooks on a model hold until they are used."""
    held: list[Tensor] = []
    for part in hf_model.modules():
        weights = getattr(getattr(part, "_hf_hook", None), "weights_map", None)
        loader = getattr(weights, "dataset", weights)  # a view of one loader under each module's own names
        held += [value for value in (getattr(loader, "state_dict", None) or {}).values() if isinstance(value, Tensor)]
    return held


def parameter_places(module: Any) -> list[tuple[str, nn.Module, str]]:
    """Name, owner and name within the owner of each parameter, by the names that the model itself gives them."""
    root = getattr(module, "original_model", module)  # a bridge names its parameters as transformers does
    names = [(name, *name.rpartition(".")[::2]) for name, _ in module.named_parameters()]
    return [(name, root.get_submodule(owner), leaf) for name, owner, leaf in names]


def plain_weight(owner: nn.Module, leaf: str) -> Tensor:
    """One parameter as a plain tensor: brought in from where it is kept, not quantised; a plain one is not copied."""
    with readable(owner):
        value: Tensor = getattr(owner, leaf).detach()
    return value
