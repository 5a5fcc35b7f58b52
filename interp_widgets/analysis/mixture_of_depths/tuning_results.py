"""Results of tuning a mixture of depths: the curves of one run, accuracy over many, and what late layers predict."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.arrays import Bools, Floats, Ints
from interp_widgets.analysis._core.result import Result, record

if TYPE_CHECKING:
    import pandas as pd


@record
class ModReport(Result):
    """The curves of a tuning run and the count of what it trained; n steps, k routes.

    Example:
        >>> mixture, report = tune_mod(base, demo_problems("train", 8), 2, steps=2, batch_size=4)
        >>> report.stopped, report.done, report.routes.shape
        ('done', 2, (2, 2))
        >>> report.to_frame().columns.tolist()[:3]
        ['step', 'task', 'distillation']
    """

    VERSION: ClassVar[int] = 1

    task: NDArray[np.float64]
    """(n,) nats: mean cross-entropy of the ensemble on the batch's responses."""
    distillation: NDArray[np.float64]
    """(n,) nats: sum over the earlier routes of KL(route ‖ last route); NaN where the term was left out."""
    routes: NDArray[np.float64]
    """(n, k) nats: cross-entropy of each route alone; NaN where no route was read out alone."""
    sparsity: NDArray[np.float64]
    """(n, k) share of tokens whose weight for the route is below 1e-5 (Fig. 5.2)."""
    mean: NDArray[np.float64]
    """(n, k) mean weight of the route over the batch's tokens (Fig. C.1)."""
    variance: NDArray[np.float64]
    """(n, k) variance of that weight (Fig. C.1)."""
    layers: tuple[int, ...]
    """The layer whose output each route reads."""
    steps: int
    """Number of steps requested."""
    stopped: Literal["done", "cancelled", "nan"]
    """Why it ended: all steps done, cancelled, or a loss that was no number."""
    message: str
    """One sentence for people; names the step."""
    parameters_router: int
    """Trained parameters of the router."""
    parameters_norms: int
    """Trained parameters of the norms, the last route's included."""
    parameters_lora: int
    """Trained parameters of the adapters."""
    parameters_base: int
    """Parameters of the base model, shared ones once."""

    def __post_init__(self) -> None:
        self.sequence("layers")
        n, k = len(np.asarray(self.task)), len(self.layers)
        self.array(("task", "distillation"), (n,))
        self.array(("routes", "sparsity", "mean", "variance"), (n, k))

    @property
    def done(self) -> int:
        """Steps that were made."""
        return len(self.task)

    @property
    def trained_parameters(self) -> int:
        """All parameters that were trained."""
        return self.parameters_router + self.parameters_norms + self.parameters_lora

    @property
    def trained_share(self) -> float:
        """Trained parameters over those of the base model."""
        return self.trained_parameters / self.parameters_base

    def to_frame(self) -> pd.DataFrame:
        """One row per step: both losses and the three statistics of every route."""
        import pandas as pd

        columns: dict[str, Any] = {"step": np.arange(self.done), "task": self.task, "distillation": self.distillation}
        for index, layer in enumerate(self.layers):
            columns[f"task_{layer}"] = self.routes[:, index]
            for name in ("sparsity", "mean", "variance"):
                columns[f"{name}_{layer}"] = getattr(self, name)[:, index]
        return pd.DataFrame(columns)


def half_width(values: Floats) -> Floats:
    """Half of the 95 % confidence interval of a mean over the last axis (seeds), by Student's t; NaN for one seed.

    >>> half_width(np.array([[0.5, 0.6, 0.7]])).round(3).tolist()
    [0.248]
    """
    from scipy import stats

    n = values.shape[-1]
    if n < 2:
        return np.full(values.shape[:-1], np.nan)
    return np.asarray(stats.t.ppf(0.975, n - 1) * values.std(-1, ddof=1) / np.sqrt(n))


class _Accuracy(Result):
    """Accuracy with the seeds on the last axis."""

    accuracy: Floats

    @property
    def mean(self) -> Floats:
        """Mean accuracy over the seeds, of the other axes of `accuracy`."""
        return np.asarray(self.accuracy.mean(-1))

    @property
    def half_width(self) -> Floats:
        """Half of the 95 % interval of the mean, of the other axes of `accuracy`; NaN with one seed."""
        return half_width(self.accuracy)


@record
class ModGrid(_Accuracy):
    """Held-out accuracy for every number of layers k and of routes per token (Fig. 5.3)."""

    ks: Sequence[int]
    """(n,) numbers of late layers."""

    top_ks: Sequence[int]
    """(m,) numbers of routes per token, in tuning and in use."""

    accuracy: Floats
    """(n, m, seeds) share of problems solved, 0..1; NaN where top-K is above k, not yet computed, or the tuning
    diverged."""

    base_accuracy: float
    """The same of the base model."""

    trained_share: Floats
    """(n,) trained parameters over those of the base model; NaN where nothing is computed yet."""

    seeds: Sequence[int]
    """(seeds,) what each run was seeded with."""

    n_problems: int
    """Problems that were tried."""

    def __post_init__(self) -> None:
        self.sequence(("ks", "top_ks", "seeds"))
        self.array("accuracy", (len(self.ks), len(self.top_ks), len(self.seeds)))
        self.array("trained_share", (len(self.ks),))

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
class ModAblations(_Accuracy):
    """Held-out accuracy of variants of one tuning (Fig. 5.4)."""

    variants: Sequence[str]
    """(n,) their names."""

    accuracy: Floats
    """(n, seeds) share of problems solved, 0..1; NaN where not yet computed, or the tuning diverged."""

    trained: Ints
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
        self.sequence(("variants", "seeds"))
        self.array("accuracy", (len(self.variants), len(self.seeds)))
        self.array("trained", (len(self.variants),), "int")

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


@record
class LateLayerLosses(Result):
    """Loss of each of the last k layers, read through the pretrained final norm and unembedding, at every step."""

    layers: Sequence[int]
    """(k,) the layers."""

    implicit: Floats
    """(steps, k) nats: loss of each layer while the last layer's loss is tuned; NaN where not yet computed."""

    explicit: Floats
    """(steps, k) nats: loss of each layer in a tuning of its own; NaN where not yet computed. The last column is that
    of `implicit`."""

    solved: Bools
    """(k, problems) which problems the model tuned at each layer, and read there, solves; no problems: (k, 0)."""

    def __post_init__(self) -> None:
        self.sequence("layers")
        self.array("implicit", (None, len(self.layers)))
        self.array("explicit", (len(self.implicit), len(self.layers)))
        self.array("solved", (len(self.layers), None), "bool")

    @property
    def accuracy(self) -> Floats:
        """(k,) share of problems solved per layer; NaN without problems."""
        count = self.solved.shape[1]
        return self.solved.sum(1) / count if count else np.full(len(self.layers), np.nan)

    def overlap(self) -> dict[tuple[int, ...], int]:
        """How many problems exactly these layers solve, for every set of layers, the empty one included (Fig. 4.8).

        The numbers sum to the number of problems.
        """
        counts = {}
        for size in range(len(self.layers) + 1):
            for chosen in combinations(range(len(self.layers)), size):
                wanted = np.isin(np.arange(len(self.layers)), chosen)[:, None]
                counts[tuple(self.layers[i] for i in chosen)] = int((self.solved == wanted).all(0).sum())
        return counts

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
