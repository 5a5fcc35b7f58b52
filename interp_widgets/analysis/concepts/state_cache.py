"""`HiddenStateCache`: a cache of hidden states, so that another layer or one more concept costs little."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from interp_widgets.analysis._core.arrays import Floats
from interp_widgets.analysis._core.checks import stream_indices
from interp_widgets.analysis._core.run import RunOptions
from interp_widgets.analysis.hidden_states import last_states
from interp_widgets.arguments import checked
from interp_widgets.models import Model
from interp_widgets.models.state import State, state_key

SLICE = 512
"""Number of texts read and cached at a time; a cancelled run keeps those that are finished."""


@checked
class HiddenStateCache:
    """`last_states` of one model at one layer, with a cache.

    A text is read up to the requested layer, and its states at all layers up to there are cached at no extra cost. A
    deeper layer reads all texts again through the whole model, after which every layer is cached. States that exceed
    ``max_bytes`` are not cached. The cache is cleared when the model has been edited (weights, modules, hooks) or has
    hooks.

    Example:
        >>> kept = HiddenStateCache(model)
        >>> few = demo_concepts()[::60]
        >>> third = concept_directions(model, few, layer=3, states=kept)
        >>> second = concept_directions(model, few, layer=2, states=kept)  # at once: no text is read again
        >>> third.layer, second.layer
        (3, 2)
    """

    def __init__(self, model: Model, *, max_bytes: int = 512 * 2**20) -> None:
        self.model = model
        self.max_bytes = max_bytes
        self.depth = -1
        """The deepest cached layer; -1 before the first text."""
        self._held: dict[str, tuple[Floats, int]] = {}
        self._bytes = 0
        self._state: State | None = None

    def __len__(self) -> int:
        """Number of cached texts."""
        return len(self._held)

    def missing(self, texts: Sequence[str], layer: int) -> list[str]:
        """The texts that are not cached for this layer, as far as a quick check of the model can tell."""
        state = self._state
        with contextlib.suppress(TimeoutError):  # it computes
            state = state_key(self.model, wait=0.05)
        all_of_them = layer > self.depth or state != self._state or state is None or not state.known_code
        return [text for text in texts if all_of_them or text not in self._held]

    def __call__(
        self,
        model: Model,
        prompts: Sequence[str],
        layers: int,
        *,
        groups: Sequence[int],
        batch_size: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        check: Callable[[], None] | None = None,
    ) -> Floats:
        """(prompts, 1, d_model) the states, computed or cached; arguments are those of `last_states`.

        Raises ValueError for another model than the one it was made for, or what `last_states` refuses.
        """
        if model is not self.model:
            raise ValueError(
                f"these states are kept for {self.model.name}: make another HiddenStateCache for {model.name}"
            )
        (layer,) = stream_indices(model, layers)
        state = state_key(model, exact=True)
        if state != self._state or not state.certain:
            self._clear()
        self._state = state
        deepest = self._layer_to_read(layer)
        absent = [i for i, text in enumerate(prompts) if text not in self._held]
        options: dict[str, Any] = {"batch_size": batch_size, "check": check}
        if not self._fits(len(absent), deepest):
            return last_states(model, prompts, layer, groups=groups, progress=progress, **options)
        for start in range(0, len(absent), SLICE):
            some = absent[start : start + SLICE]
            done = len(prompts) - len(absent) + start
            part = RunOptions(progress).after(done, len(prompts))
            self._keep(
                [prompts[i] for i in some], deepest, [groups[i] for i in some], progress=part.progress, **options
            )
        RunOptions(progress).report(len(prompts), len(prompts))
        states = np.stack([block[row, [layer]] for block, row in (self._held[text] for text in prompts)])
        if absent and state_key(model, exact=True) != state:  # edited while it read
            self._clear()
        return states

    def _layer_to_read(self, layer: int) -> int:
        """The layer to read up to; clears cached states that do not reach it."""
        if layer > self.depth:
            deeper = self.depth >= 0
            self._clear()
            self.depth = self.model.n_layers if deeper else layer
        return self.depth

    def _clear(self) -> None:
        self._held, self._bytes, self.depth = {}, 0, -1

    def _fits(self, count: int, deepest: int) -> bool:
        item = max(4, int(self.model.dtype.itemsize))
        return self._bytes + count * (deepest + 1) * int(self.model.d_model) * item <= self.max_bytes

    def _keep(self, texts: list[str], deepest: int, groups: list[int], **options: Any) -> None:
        # as ids: the characters of each token, which take half of the time, are not needed
        ids = [self.model.with_bos(some) for some in self.model.token_lists(texts)]
        block = last_states(self.model, ids, list(range(deepest + 1)), groups=groups, **options)
        self._held |= {text: (block, row) for row, text in enumerate(texts)}
        self._bytes += block.nbytes
