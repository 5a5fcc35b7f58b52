"""Tolerances for comparing two ways of computing the same numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from .devices import accumulation_dtype

# A wrong formula differs by 1e-2 and more. In half precision two orders of summation differ by 3e-2 in three layers,
# gradients by 9e-2, so that only gross errors are detected there.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest relative difference (of norms) from the model's own numbers, by dtype."""
HALF_TOLERANCE = 0.2
"""Largest relative difference (of norms) from the model's own numbers in half precision."""

PROBE_TOKENS = 12
"""Number of random tokens in a comparison."""


def difference(value: Tensor, reference: Tensor) -> float:
    """Relative difference of two tensors by their norms; NaN, which exceeds every limit, if either holds one."""
    kind = accumulation_dtype(reference.device)
    apart, size = (torch.linalg.vector_norm(x, dtype=kind) for x in (value - reference, reference))
    return float(apart / size)


def agree(value: Tensor, reference: Tensor, dtype: torch.dtype) -> bool:
    """Whether two tensors have the same shape and the same numbers within the tolerance of a model of this dtype."""
    return value.shape == reference.shape and difference(value, reference) <= TOLERANCE.get(dtype, HALF_TOLERANCE)


def probe_ids(d_vocab: int, n_ctx: int, *, at_least: int = 0) -> Tensor:
    """(1, tokens) the ids for comparisons; ``at_least`` as many, for effects that need longer sequences."""
    generator = torch.Generator().manual_seed(11)
    return torch.randint(0, d_vocab, (1, min(max(PROBE_TOKENS, at_least), n_ctx)), generator=generator)
