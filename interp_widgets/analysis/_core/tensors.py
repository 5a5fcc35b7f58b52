"""From the model's tensors to a result's numbers."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets.analysis._core.arrays import Floats


def wide(x: Tensor) -> Tensor:
    """The tensor in float32; float64 stays float64."""
    return x.to(wide_type(x.dtype))


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """The type of a result's numbers: float32, or float64 for a float64 model."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def as_array(x: Tensor) -> NDArray[Any]:
    """The values on the CPU, in their own type."""
    values: NDArray[Any] = x.detach().cpu().numpy()
    return values


def to_numpy(x: Tensor) -> Floats:
    """The numbers on the CPU, in float32 or wider."""
    return as_array(wide(x))


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
