"""The span of directions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def span_basis(directions: NDArray[np.float64]) -> NDArray[np.float64]:
    """(rank, width) orthonormal rows that span the directions (n, width).

    Uses singular values, treating those below 1e-6 of the largest as zero. For dependent directions QR would give as
    many rows as there are directions, some of them outside of their span.
    """
    _, sizes, rows = np.linalg.svd(np.atleast_2d(directions), full_matrices=False)
    return np.asarray(rows[sizes > sizes[0] * 1e-6])
