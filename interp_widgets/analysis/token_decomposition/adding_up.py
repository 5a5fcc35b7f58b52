"""Whether what should add up does, and what to say if not."""

from __future__ import annotations

import torch

from interp_widgets.models import Model
from interp_widgets.models.compare import TOLERANCE
from interp_widgets.models.engine.linearised import LinearisedPass

_HALF = 0.05
"""Rounding of the stream at every layer stays below 0.01; a missing part does not."""


def check_finite(model: Model, frozen: LinearisedPass) -> None:
    """Raise ValueError where the model's own residual stream holds NaN or infinity."""
    bad = (~torch.isfinite(frozen.residual)).any(-1).nonzero()[:, 0].tolist()
    if bad:
        raise ValueError(
            f"the residual stream of {model.name} is not finite from layer {bad[0]} on: look for broken weights, "
            "an edit by a hook, or half precision that overflows"
        )


def check_error(model: Model, what: str, error: float, slope: str, tolerance: float | None) -> None:
    """Raise ValueError where a relative error is above the tolerance, by default that of the model's type."""
    limit = TOLERANCE.get(model.dtype, _HALF) if tolerance is None else tolerance
    if error <= limit:
        return
    why = "" if slope == "secant" else f" (slope {slope!r} is a control that does not add up)"
    raise ValueError(
        f"{what}: relative error {error:.1e}, allowed {limit:.0e}{why}: use a model of ordinary blocks "
        "without hooks that change what they write, a wider dtype, or a larger tolerance"
    )
