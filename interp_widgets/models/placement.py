"""Weights that are not plain tensors in their modules: offloaded by accelerate, or quantised."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


def is_offloaded(module: Any) -> bool:
    """Whether accelerate keeps some weights on disk or on another device, and loads them when they are used."""
    return any(parameter.is_meta for parameter in module.parameters())


def is_kept_elsewhere(part: Any) -> bool:
    """Whether accelerate loads the weights of one module only while it runs."""
    return bool(part.weight.is_meta or getattr(getattr(part, "_hf_hook", None), "offload", False))


def has_plain_weights(module: Any) -> bool:
    """Whether every weight is a readable tensor: none is offloaded or quantised."""
    return not any(parameter.is_meta or _is_quantised(parameter) for parameter in module.parameters())


def _is_quantised(value: Tensor) -> bool:
    return type(value).dequantize is not Tensor.dequantize


def is_placed(hf_model: Any) -> bool:
    """Whether a transformers model must keep the devices and dtypes that it was loaded in."""
    mapped = getattr(hf_model, "hf_device_map", None) is not None or is_offloaded(hf_model)
    return mapped or quantisation(hf_model) is not None


def quantisation(hf_model: Any) -> str | None:
    """How transformers has quantised a model, such as ``"torchao"``; None for plain weights."""
    method = getattr(hf_model, "quantization_method", None) if getattr(hf_model, "is_quantized", False) else None
    return None if method is None else str(getattr(method, "value", method))


@contextlib.contextmanager
def weights_materialised(*modules: nn.Module) -> Iterator[None]:
    """Context manager in which these modules hold plain weights: loaded if offloaded, and dequantised.

    Tensors read inside stay valid afterwards. Submodules are not included: pass ``*module.modules()`` for them. No pass
    may run meanwhile.
    """
    quantised: list[tuple[dict[str, Any], str, Any]] = []
    with contextlib.ExitStack() as stack:
        for module in modules:
            if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
                from accelerate.utils import align_module_device

                stack.enter_context(align_module_device(module))
            parameters = module._parameters
            quantised += [
                (parameters, leaf, value)
                for leaf, value in parameters.items()
                if value is not None and _is_quantised(value)
            ]
        try:
            for parameters, leaf, value in quantised:
                parameters[leaf] = nn.Parameter(value.detach().dequantize(), requires_grad=False)
            yield
        finally:
            for parameters, leaf, value in quantised:
                parameters[leaf] = value


def kept_elsewhere(hf_model: Any) -> list[Tensor]:
    """The offloaded tensors that accelerate's hooks on a model hold."""
    values: list[Tensor] = []
    for module in hf_model.modules():
        weights = getattr(getattr(module, "_hf_hook", None), "weights_map", None)
        loader = getattr(weights, "dataset", weights)  # a view of one loader under each module's own names
        values += [
            tensor for tensor in (getattr(loader, "state_dict", None) or {}).values() if isinstance(tensor, Tensor)
        ]
    return values


def parameter_places(module: Any) -> list[tuple[str, nn.Module, str]]:
    """Name, owning module and name in that module of each parameter, by the model's own names."""
    root = getattr(module, "original_model", module)  # a bridge names its parameters as transformers does
    names = [(name, *name.rpartition(".")[::2]) for name, _ in module.named_parameters()]
    return [(name, root.get_submodule(owner), leaf) for name, owner, leaf in names]


def plain_weight(owner: nn.Module, leaf: str) -> Tensor:
    """One parameter as a plain tensor: loaded if offloaded, dequantised if quantised; a plain one is not copied."""
    with weights_materialised(owner):
        value: Tensor = getattr(owner, leaf).detach()
    return value
