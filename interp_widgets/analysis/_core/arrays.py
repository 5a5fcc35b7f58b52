"""Arrays in results: their types, and shares of them."""

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


def ratio(part: ArrayLike, whole: ArrayLike) -> NDArray[np.float64]:
    """``part`` over ``whole`` (of one shape), NaN where the whole is not above 0.

    >>> ratio([1, 0], [4, 0]).tolist()
    [0.25, nan]
    """
    whole = np.asarray(whole)
    return np.asarray(np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0))
