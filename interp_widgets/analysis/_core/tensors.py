"""From the model's tensors to a result's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats

T = TypeVar("T")


def wide(x: Tensor) -> Tensor:
    """The tensor in float32, or float64 if it was."""
    return x if x.dtype == torch.float64 else x.float()


def to_numpy(x: Tensor) -> Floats:
    """The numbers on the CPU, in float32 or wider."""
    return np.asarray(wide(x.detach()).cpu())


def log_sum(total: Tensor | None, block: Tensor) -> Tensor:
    """(...) log of the sum of exp over blocks: ``total`` (...) of those before, or None, and ``block`` (..., n).

    Subtracted from a logit it gives the log-probability of the softmax over all blocks. The sum is in the type of
    ``total``, or the block's.

    >>> first = log_sum(None, torch.zeros(1, 3))
    >>> log_sum(first, torch.zeros(1, 5)).exp()
    tensor([8.])
    """
    part = torch.logsumexp(block, -1)
    return part if total is None else torch.logaddexp(total, part.to(total.dtype))


def for_device(numbers: Mapping[str, T], device: torch.device) -> T:
    """That of the numbers by kind of device, ``cpu`` and ``cuda``, which holds for this one: of others, the CPU's."""
    return numbers["cuda" if device.type == "cuda" else "cpu"]
