"""When two runs of a model are the same run: equal weights, untouched since, and the same hooks of the user on it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from interp_widgets.models import Model

from ..models.hooks import acts


class Identity:
    """Tells models apart for the cache; the weight hash is taken once per model, which is long for a large one."""

    def __init__(self) -> None:
        self._hashes: dict[int, Hashable] = {}

    def knows(self, model: Model) -> bool:
        """Whether the model's hash has been taken."""
        return id(model) in self._hashes

    def of(self, model: Model) -> Hashable:
        """The weights' hash, how often weights were changed in place, and the hooks that act in the calling thread.

        So it is to be asked in the thread that computes: an ablation holds in the thread that entered it only.
        """
        if id(model) not in self._hashes:
            # A model without a hash is equal to nothing but itself in this panel.
            self._hashes[id(model)] = getattr(model, "weight_hash", None) or object()
        return (self._hashes[id(model)], getattr(model, "processed", None), _state(getattr(model, "tl_model", None)))


def _state(network: Any) -> Hashable:
    if network is None or not hasattr(network, "modules"):
        return None
    changes = 0
    for parameter in network.parameters():
        # Inference tensors do not count their changes.
        changes += 0 if parameter.is_inference() else int(parameter._version)
    hooks = tuple(
        key
        for module in network.modules()
        for held in (module._forward_pre_hooks, module._forward_hooks, module._backward_hooks)
        for key, hook in list(held.items())
        if acts(hook)
    )
    return (changes, hooks)
