"""What late layers predict while the last one is tuned, or each of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.result import Result, record

if TYPE_CHECKING:
    import pandas as pd


@record
class LateLayerLosses(Result):
    """Loss of each of the last k layers, read through the pretrained final norm and unembedding, at every step."""

    layers: Sequence[int]
    """(k,) the layers."""

    implicit: NDArray[np.floating[Any]]
    """(steps, k) nats: loss of each layer while the last layer's loss is tuned; NaN where not yet computed."""

    explicit: NDArray[np.floating[Any]]
    """(steps, k) nats: loss of each layer in a tuning of its own; NaN where not yet computed. The last column is that
    of `implicit`."""

    solved: NDArray[np.bool_]
    """(k, problems) which problems the model tuned at each layer, and read there, solves; no problems: (k, 0)."""

    def __post_init__(self) -> None:
        self.sequence("layers")
        self.array("implicit", (None, len(self.layers)))
        self.array("explicit", (len(self.implicit), len(self.layers)))
        self.array("solved", (len(self.layers), None), "bool")

    @property
    def accuracy(self) -> NDArray[np.floating[Any]]:
        """(k,) share of problems solved per layer; NaN without problems."""
        count = self.solved.shape[1]
        return self.solved.sum(1) / count if count else np.full(len(self.layers), np.nan)

    def overlap(self) -> dict[tuple[int, ...], int]:
        """How many problems exactly these layers solve, for every set of layers, the empty one included (Fig. 4.8).

        The numbers sum to the number of problems.
        """
        found = {}
        for size in range(len(self.layers) + 1):
            for chosen in combinations(range(len(self.layers)), size):
                wanted = np.isin(np.arange(len(self.layers)), chosen)[:, None]
                found[tuple(self.layers[i] for i in chosen)] = int((self.solved == wanted).all(0).sum())
        return found

    def to_frame(self) -> pd.DataFrame:
        """One row per step and layer."""
        import pandas as pd

        steps, k = self.implicit.shape
        return pd.DataFrame(
            {
                "step": np.repeat(np.arange(steps), k),
                "layer": np.tile(np.asarray(self.layers), steps),
                "implicit": self.implicit.ravel(),
                "explicit": self.explicit.ravel(),
            }
        )
