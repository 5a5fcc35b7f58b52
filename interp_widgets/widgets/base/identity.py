"""Cache keys for models: equal while the state is the same, unique where the state cannot be determined."""

from __future__ import annotations

from collections.abc import Hashable

from interp_widgets.models import Model
from interp_widgets.models.state import State, state_key

PATIENCE = 0.05
"""Seconds that the interface waits for a forward pass to end before it reads the model's state."""


class Identity:
    """Keys of models for the cache; a model whose state cannot be determined gets a key equal to no other."""

    def __init__(self) -> None:
        self._last: dict[int, Hashable] = {}
        self._states: dict[int, State] = {}
        self.missed = False
        """Whether a look at a model failed because it computed; the caller sets it back."""

    def of(self, model: Model) -> Hashable:
        """The model as the calling thread sees it now, every byte read; call it in the thread that computes.

        An ablation is active only in the thread that entered it.
        """
        if not _has_state(model):  # equal to whatever has its hash, else only to itself
            return self._last.setdefault(id(model), getattr(model, "weight_hash", None) or object())
        state = state_key(model, exact=True)
        self.note(model, state)
        return self._last[id(model)] if state.certain else object()

    def note(self, model: Model, state: State) -> None:
        """Note the state of a model, of which every byte was read."""
        self._states[id(model)], self._last[id(model)] = state, (state, model.name)

    def at_a_glance(self, model: Model) -> Hashable:
        """The key for the interface, which must not wait: unique where a large model would have to be read."""
        state = self._glance(model)
        if state is None:
            return object() if _has_state(model) else self.at_last(model)
        self._states[id(model)] = state
        return (state, model.name) if state.certain else object()

    def probably(self, model: Model) -> Hashable:
        """What `of` will probably return, without reading a large model."""
        state = self._glance(model)
        if state is None:
            return self.at_last(model)
        return (state, model.name) if state.known_code else object()

    def at_last(self, model: Model) -> Hashable:
        """What `of` returned last for this model."""
        return self._last.get(id(model), object())

    def state(self, model: Model) -> State | None:
        """The state of which `of` or `at_a_glance` returned the last key; None if there is none."""
        return self._states.get(id(model))

    def _glance(self, model: Model) -> State | None:
        """The state if it is available at once; None for a model that is computing or was never read."""
        if id(model) not in self._last or not _has_state(model):
            return None
        state = state_now(model, wait=PATIENCE)
        self.missed = self.missed or state is None
        return state


def state_now(model: Model, *, wait: float = 0.0) -> State | None:
    """The state of a model, if it can be read within `wait` seconds; None for anything without a state."""
    if not _has_state(model):
        return None
    try:
        return state_key(model, wait=wait)
    except TimeoutError:
        return None


def _has_state(model: object) -> bool:
    """Whether it is a `Model`, or has everything that a state is read from."""
    return hasattr(model, "_watch")
