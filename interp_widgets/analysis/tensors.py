"""From the model's tensors to a result's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """The tensor in float32, or float64 if it was."""
    return x if x.dtype == torch.float64 else x.float()


def to_numpy(x: Tensor) -> NDArray[np.floating[Any]]:
    """The numbers on the CPU, in float32 or wider."""
    found: NDArray[np.floating[Any]] = wide(x.detach()).cpu().numpy()
    return found
