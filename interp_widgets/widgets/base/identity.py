"""When two runs of a model are the same run: the model's state is the same, and it is certain what it computes."""

from __future__ import annotations

from collections.abc import Hashable

from interp_widgets.models import Model
from interp_widgets.models.state import State, state_key

PATIENCE = 0.05
"""Seconds that the interface waits for a pass of the model to look at its state."""


class Identity:
    """Keys of models for the cache; where it is not certain what a model computes, one that is equal to no other."""

    def __init__(self) -> None:
        self._last: dict[int, Hashable] = {}

    def of(self, model: Model) -> Hashable:
        """The model as the calling thread has it now, every byte read: to be asked where it computes.

        An ablation holds in the thread that entered it only.
        """
        if not _has_state(model):  # equal to what has its hash, else to nothing but itself
            return self._last.setdefault(id(model), getattr(model, "weight_hash", None) or object())
        state = state_key(model, exact=True)
        self._last[id(model)] = _key(model, state)
        return self._last[id(model)] if state.certain else object()

    def at_a_glance(self, model: Model) -> Hashable:
        """The same for the interface, which must not wait: not certain also where a large model has to be read."""
        state = self._glance(model)
        if state is None:
            return object() if _has_state(model) else self.at_last(model)
        return _key(model, state) if state.certain else object()

    def probably(self, model: Model) -> Hashable:
        """What `of` will probably say, without reading a large model."""
        state = self._glance(model)
        if state is None:
            return self.at_last(model)
        return _key(model, state) if state.known_code else object()

    def at_last(self, model: Model) -> Hashable:
        """What the model was when `of` was asked last."""
        return self._last.get(id(model), object())

    def _glance(self, model: Model) -> State | None:
        """The state as it can be had at once; None of a model that is computing or was never read."""
        if id(model) not in self._last or not _has_state(model):
            return None
        try:
            return state_key(model, wait=PATIENCE)
        except TimeoutError:
            return None


def _has_state(model: object) -> bool:
    """Whether it is a `Model`, or stands in for one in all that a state is read from."""
    return hasattr(model, "_watch")


def _key(model: Model, state: State) -> Hashable:
    options = (getattr(model, name, None) for name in ("name", "processed", "prepend_bos"))
    return (state.structure, state.content, *options)
