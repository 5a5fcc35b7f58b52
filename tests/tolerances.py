"""How far two right computations of the same number may be apart."""

from __future__ import annotations

import torch

from interp_widgets.models import Model

ROUNDING = 1e-10
"""Between two float64 computations of tiny models."""

SINGLE = 1e-4
"""Between two float32 computations of tiny models, against the largest number: gradients, and differences between
passes, keep four to five of float32's seven digits. A wrong term is off by a hundredth and more."""


def limit(model: Model, *, single: float = 3e-6) -> float:
    """Largest difference that rounding may make in a float64 model: 1e-10, or `single` where a part is in float32.

    transformers' RMSNorm computes in float32 inside a float64 model, so on the bridge two right routes are apart by
    float32's rounding, and how far depends on the processor: the same bits on one machine, 2e-7 on another.
    """
    return ROUNDING if model.precision == torch.float64 else single
