"""Capabilities of a model's device, queried from the device, so that any accelerator of PyTorch works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import nn

DeviceKind = Literal["cpu", "accelerator"]


def device_kind(device: torch.device) -> DeviceKind:
    """Whether work should run in blocks that fit a processor's cache ("cpu") or in few large ones ("accelerator")."""
    return "cpu" if device.type == "cpu" else "accelerator"


def device_of(device: str | torch.device | None) -> torch.device:
    """The requested device: the CPU, or one of the accelerators that PyTorch sees."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        requested = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be 'cpu', 'cuda', 'cuda:N' or 'mps', got {device!r}") from error
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    available = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
    if requested.type not in available:
        raise ValueError(
            f"device {str(device)!r} was requested, but torch sees no {requested.type.upper()} device: "
            f"use device={' or '.join(map(repr, available))}"
        )
    count = 1 if requested.type == "cpu" else torch.accelerator.device_count()
    if requested.index is not None and requested.index >= count:
        raise ValueError(f"device {str(device)!r} was requested, but torch sees {count}, counted from 0")
    return requested


def devices_of(module: nn.Module) -> Iterator[torch.device]:
    """The devices of a model's weights, the first weights' device first; offloaded weights are on none."""
    seen: set[torch.device] = set()
    for parameter in module.parameters():
        if not parameter.is_meta and parameter.device not in seen:
            seen.add(parameter.device)
            yield parameter.device


def is_spread(module: nn.Module) -> bool:
    """Whether a model's weights are on more than one device."""
    return len(list(devices_of(module))) > 1


def has_float64(device: torch.device) -> bool:
    """Whether a device has float64; Apple's MPS does not."""
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except TypeError:
        return False
    return True


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """The widest floating-point dtype of a device, used for sums over many numbers."""
    return torch.float64 if has_float64(device) else torch.float32


def finish(device: torch.device) -> None:
    """Wait until a device has computed everything that was asked of it; not every device can wait for all streams."""
    torch.zeros((), device=device).item()
