"""The result of causal tracing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy  # scipy.stats takes a second to import: scipy itself loads it on first use
from numpy.typing import NDArray

from interp_widgets.analysis._core.result import Result, record

if TYPE_CHECKING:
    import pandas as pd

TracedKind = Literal["state", "mlp", "attn"]
"""What is restored: the residual stream behind one block, or what the MLPs or the attentions of a window of layers add
to it."""


@record
class CausalTraceResult(Result):
    """How far putting one clean value back into a corrupted run brings the answer back, per layer and position.

    Every axis leaves out the beginning-of-sequence token, which the model still reads.
    Source: Locating and Editing Factual Associations in GPT (Meng et al. 2022), section 2.

    Example:
        >>> prompt = "The Eiffel Tower is in the city of"
        >>> found = causal_trace(model, prompt, "Eiffel Tower", kinds="mlp", samples=2)
        >>> [found.tokens[i] for i in range(*found.subject)], found.layers_of("mlp", 3)
        ([' Eiffel', ' Tower'], (3, 4))
        >>> round(found.total_effect, 1), round(float(found.effect[0, 0, -1]), 1)  # at layer 0, last position
        (1.0, 1.0)
    """

    restored: NDArray[np.floating[Any]]
    """(kinds, layers, positions, samples) probability of the target in the corrupted run with one clean value put back;
    NaN where a partial result has not got to."""

    embedding: NDArray[np.floating[Any]]
    """(positions, samples) the same with the clean token embedding put back: the state that enters the first block. It
    tells subject tokens that the first attention reads at once, which no later state at them shows."""

    corrupted: NDArray[np.floating[Any]]
    """(samples,) probability of the target in the corrupted runs."""

    clean: float
    """Probability of the target in the clean run."""

    kinds: Sequence[str]
    """(kinds,) what was restored, each a :data:`TracedKind`: ``state`` at layer l is the residual stream behind block
    l, ``mlp`` and ``attn`` are outputs in the window of layers around l, see `layers_of`."""

    window: int
    """How many layers' MLP or attention outputs are restored together."""

    tokens: Sequence[str]
    """(positions,) readable tokens of the prompt."""

    ids: Sequence[int]
    """(positions,) token ids."""

    special: Sequence[bool]
    """(positions,) whether a token is special."""

    subject: Sequence[int]
    """First and past-last position of the subject, whose embeddings got the noise."""

    target: int
    """Id of the token whose probability is traced."""

    target_token: str
    """The target, readable."""

    noise: float
    """Standard deviation of the noise in units of that of the token embeddings."""

    noise_std: float
    """Standard deviation of the noise itself, as it was added to the embeddings."""

    seed: int = 0
    """Of the noise."""

    bos_id: int | None = None
    """Id of the beginning-of-sequence token fed before the prompt and left off the axis; None when there was none."""

    def __post_init__(self) -> None:
        positions = len(self.tokens)
        for name in ("tokens", "ids", "special"):
            self.sequence(name, positions)
        self.sequence("kinds")
        self.sequence("subject", 2)
        self.array("corrupted", (None,))
        self.array("restored", (len(self.kinds), None, positions, len(self.corrupted)))
        self.array("embedding", (positions, len(self.corrupted)))

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return int(self.restored.shape[1])

    @property
    def effect(self) -> NDArray[np.floating[Any]]:
        """(kinds, layers, positions) indirect effect: mean over the noise samples of restored minus corrupted."""
        found: NDArray[np.floating[Any]] = (self.restored - self.corrupted).mean(-1)
        return found

    @property
    def interval(self) -> NDArray[np.floating[Any]]:
        """(kinds, layers, positions, 2) 95 % interval of the effect over the noise samples, by Student's t; NaN for a
        single sample."""
        return _interval(self.restored - self.corrupted)

    @property
    def embedding_effect(self) -> NDArray[np.floating[Any]]:
        """(positions,) the effect of putting a token's clean embedding back; 0 outside of the subject."""
        found: NDArray[np.floating[Any]] = (self.embedding - self.corrupted).mean(-1)
        return found

    @property
    def total_effect(self) -> float:
        """What the corruption takes away: clean minus mean corrupted probability."""
        return float(self.clean - self.corrupted.mean())

    def layers_of(self, kind: str, layer: int) -> tuple[int, int]:
        """First and past-last layer whose values are put back for the cell of ``kind`` at ``layer``."""
        return (layer, layer + 1) if kind == "state" else window_layers(layer, self.window, self.n_layers)

    def to_frame(self) -> pd.DataFrame:
        """One row per kind, layer and position: token, whether it is of the subject, effect, its interval, restored.

        Layer -1 of the kind ``state`` is the token embedding.
        """
        import pandas as pd

        kind, layer, position = (axis.ravel() for axis in np.indices(self.restored.shape[:-1]))
        places = np.arange(len(self.tokens))
        position = np.concatenate([places, position])
        restored = np.concatenate([self.embedding, self.restored.reshape(-1, len(self.corrupted))])
        interval = _interval(restored - self.corrupted)
        return pd.DataFrame(
            {
                "kind": np.concatenate([np.full(len(places), "state"), np.asarray(self.kinds)[kind]]).astype(object),
                "layer": np.concatenate([np.full(len(places), -1), layer]),
                "position": position,
                "token": np.asarray(self.tokens, dtype=object)[position],
                "subject": (position >= self.subject[0]) & (position < self.subject[1]),
                "effect": (restored - self.corrupted).mean(-1),
                "low": interval[:, 0],
                "high": interval[:, 1],
                "restored": restored.mean(-1),
            }
        )


def _interval(gain: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """(..., 2) 95 % interval of the mean over the last axis."""
    samples = gain.shape[-1]
    if samples < 2:
        return np.full((*gain.shape[:-1], 2), np.nan)
    half = scipy.stats.t.ppf(0.975, samples - 1) * gain.std(-1, ddof=1) / np.sqrt(samples)
    return np.stack([gain.mean(-1) - half, gain.mean(-1) + half], axis=-1)


def window_layers(layer: int, window: int, n_layers: int) -> tuple[int, int]:
    """First and past-last layer of a window around a layer, cut off at both ends of the model.

    >>> window_layers(5, 3, 12), window_layers(5, 4, 12), window_layers(0, 4, 12)
    ((4, 7), (3, 7), (0, 2))
    """
    return max(0, layer - window // 2), min(n_layers, layer + (window + 1) // 2)
