"""Types of arrays in results, and ratios."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]


def float64(values: ArrayLike) -> NDArray[np.float64]:
    """The numbers of a list, an array, or a tensor of any type on any device.

    >>> import torch
    >>> float64(torch.tensor([0.5, 2], dtype=torch.bfloat16, requires_grad=True)).tolist()
    [0.5, 2.0]
    """
    tensor: Any = values
    return np.asarray(tensor.detach().cpu().double() if hasattr(tensor, "detach") else values, dtype=np.float64)


def ratio(part: ArrayLike, total: ArrayLike) -> NDArray[np.float64]:
    """``part`` over ``total`` (of the same shape), NaN where the total is not above 0.

    >>> ratio([1, 0], [4, 0]).tolist()
    [0.25, nan]
    """
    total = np.asarray(total)
    return np.asarray(np.divide(part, total, out=np.full(total.shape, np.nan), where=total > 0))
