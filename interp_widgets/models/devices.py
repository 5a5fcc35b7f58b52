"""What a model's device can do, asked of the device itself, so that any accelerator PyTorch knows will do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import nn

DeviceKind = Literal["cpu", "accelerator"]


def device_kind(device: torch.device) -> DeviceKind:
    """Whether work on a device should come in blocks that stay in a processor's cache, or in few large ones."""
    return "cpu" if device.type == "cpu" else "accelerator"


def device_of(device: str | torch.device | None) -> torch.device:
    """The device asked for: the CPU, or one of the accelerators that PyTorch sees."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be 'cpu', 'cuda', 'cuda:N' or 'mps', got {device!r}") from error
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    there = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
    if wanted.type not in there:
        raise ValueError(
            f"device {str(device)!r} was asked for, but torch sees no {wanted.type.upper()} device: "
            f"use device={' or '.join(map(repr, there))}"
        )
    count = 1 if wanted.type == "cpu" else torch.accelerator.device_count()
    if wanted.index is not None and wanted.index >= count:
        raise ValueError(f"device {str(device)!r} was asked for, but torch sees {count}, counted from 0")
    return wanted


def devices_of(module: nn.Module) -> Iterator[torch.device]:
    """The devices that a model's weights lie on, that of its first ones first; weights kept elsewhere are on none."""
    seen: set[torch.device] = set()
    for parameter in module.parameters():
        if not parameter.is_meta and parameter.device not in seen:
            seen.add(parameter.device)
            yield parameter.device


def is_spread(module: nn.Module) -> bool:
    """Whether a model's weights lie on more than one device."""
    return len(list(devices_of(module))) > 1


def has_float64(device: torch.device) -> bool:
    """Whether a device has float64; Apple's MPS has not."""
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except TypeError:
        return False
    return True


def widest(device: torch.device) -> torch.dtype:
    """The widest floating-point type of a device: sums over many numbers are kept in it."""
    return torch.float64 if has_float64(device) else torch.float32
