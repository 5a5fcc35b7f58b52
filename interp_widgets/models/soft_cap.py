"""The soft cap on the logits of some models, such as Gemma 2: cap · tanh(logits / cap)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["soft_cap", "soft_capped"]


def soft_cap(tl_model: Any) -> float:
    """The cap on a TransformerLens model's logits; 0 for none."""
    return float(getattr(tl_model.cfg, "output_logits_soft_cap", None) or 0)


def soft_capped(logits: Tensor, cap: float, *, in_place: bool = False) -> Tensor:
    """The capped logits, with transformers' order of operations; a cap of 0 means none.

    >>> import torch
    >>> soft_capped(torch.tensor([0.0, 1.0, 1000.0]), 30.0)
    tensor([ 0.0000,  0.9996, 30.0000])
    """
    if cap <= 0:
        return logits
    return logits.div_(cap).tanh_().mul_(cap) if in_place else (logits / cap).tanh() * cap
