"""Accuracy of many tunings of a mixture of depths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.result import Result, record

if TYPE_CHECKING:
    import pandas as pd


def half_width(values: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Half of the 95 % confidence interval of a mean over the last axis (seeds), by Student's t; NaN for one seed.

    >>> half_width(np.array([[0.5, 0.6, 0.7]])).round(3).tolist()
    [0.248]
    """
    from scipy import stats

    n = values.shape[-1]
    if n < 2:
        return np.full(values.shape[:-1], np.nan)
    found: NDArray[np.floating[Any]] = stats.t.ppf(0.975, n - 1) * values.std(-1, ddof=1) / np.sqrt(n)
    return found


@record
class ModGrid(Result):
    """Held-out accuracy for every number of layers k and of routes per token (Fig. 5.3)."""

    ks: Sequence[int]
    """(n,) numbers of late layers."""

    top_ks: Sequence[int]
    """(m,) numbers of routes per token, in tuning and in use."""

    accuracy: NDArray[np.floating[Any]]
    """(n, m, seeds) share of problems solved, 0..1; NaN where top-K is above k, not yet computed, or the tuning
    diverged."""

    base_accuracy: float
    """The same of the base model."""

    trained_share: NDArray[np.floating[Any]]
    """(n,) trained parameters over those of the base model; NaN where nothing is computed yet."""

    seeds: Sequence[int]
    """(seeds,) what each run was seeded with."""

    n_problems: int
    """Problems that were tried."""

    def __post_init__(self) -> None:
        for name in ("ks", "top_ks", "seeds"):
            self.sequence(name)
        self.array("accuracy", (len(self.ks), len(self.top_ks), len(self.seeds)))
        self.array("trained_share", (len(self.ks),))

    @property
    def mean(self) -> NDArray[np.floating[Any]]:
        """(n, m) mean accuracy over the seeds."""
        found: NDArray[np.floating[Any]] = self.accuracy.mean(-1)
        return found

    @property
    def half_width(self) -> NDArray[np.floating[Any]]:
        """(n, m) half of the 95 % interval of the mean; NaN with one seed."""
        return half_width(self.accuracy)

    def to_frame(self) -> pd.DataFrame:
        """One row per cell: mean accuracy and half of its interval."""
        import pandas as pd

        mean, half = self.mean, self.half_width
        return pd.DataFrame(
            [
                {"k": k, "top_k": top, "accuracy": mean[i, j], "half_width": half[i, j]}
                for i, k in enumerate(self.ks)
                for j, top in enumerate(self.top_ks)
                if top <= k
            ]
        )


@record
class ModAblations(Result):
    """Held-out accuracy of variants of one tuning (Fig. 5.4)."""

    variants: Sequence[str]
    """(n,) their names."""

    accuracy: NDArray[np.floating[Any]]
    """(n, seeds) share of problems solved, 0..1; NaN where not yet computed, or the tuning diverged."""

    trained: NDArray[np.integer[Any]]
    """(n,) trained parameters; 0 where not yet computed."""

    base_accuracy: float
    """Accuracy of the base model."""

    base_parameters: int
    """Parameters of the base model; 0 while nothing is computed."""

    seeds: Sequence[int]
    """(seeds,) what each run was seeded with."""

    n_problems: int
    """Problems that were tried."""

    def __post_init__(self) -> None:
        for name in ("variants", "seeds"):
            self.sequence(name)
        self.array("accuracy", (len(self.variants), len(self.seeds)))
        self.array("trained", (len(self.variants),), "int")

    @property
    def mean(self) -> NDArray[np.floating[Any]]:
        """(n,) mean accuracy over the seeds."""
        found: NDArray[np.floating[Any]] = self.accuracy.mean(-1)
        return found

    @property
    def half_width(self) -> NDArray[np.floating[Any]]:
        """(n,) half of the 95 % interval of the mean; NaN with one seed."""
        return half_width(self.accuracy)

    def to_frame(self) -> pd.DataFrame:
        """One row per variant."""
        import pandas as pd

        return pd.DataFrame(
            {
                "variant": self.variants,
                "accuracy": self.mean,
                "half_width": self.half_width,
                "trained_parameters": self.trained,
                "trained_share": self.trained / max(self.base_parameters, 1),
            }
        )
