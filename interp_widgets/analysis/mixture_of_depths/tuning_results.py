"""Results of tuning a mixture of depths: curves of one run, accuracy over many, and losses of late layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any, ClassVar, Literal

import numpy as np

from interp_widgets.analysis._core.arrays import Bools, Floats, Ints
from interp_widgets.analysis._core.result import Result, record, with_axes
from interp_widgets.analysis._core.tables import DataFrame, table


@record
class ModReport(Result):
    """The curves of a tuning run and its numbers of trained parameters; n steps, k routes.

    Example:
        >>> mixture, report = tune_mod(base, demo_problems("train", 8), 2, steps=2, batch_size=4)
        >>> report.stopped, report.done, report.routes.shape
        ('done', 2, (2, 2))
        >>> report.to_frame().columns.tolist()[:3]
        ['step', 'task', 'distillation']
    """

    VERSION: ClassVar[int] = 1

    task: Floats = with_axes("n")
    """Nats: mean cross-entropy of the ensemble on the batch's responses."""
    distillation: Floats = with_axes("n")
    """Nats: sum over the earlier routes of KL(route ‖ last route); NaN where the term was left out."""
    routes: Floats = with_axes("n", "k")
    """Nats: cross-entropy of each route alone; NaN where it was not computed."""
    sparsity: Floats = with_axes("n", "k")
    """Share of tokens whose weight for the route is below 1e-5 (Fig. 5.2)."""
    mean: Floats = with_axes("n", "k")
    """Mean weight of the route over the batch's tokens (Fig. C.1)."""
    variance: Floats = with_axes("n", "k")
    """Variance of that weight (Fig. C.1)."""
    layers: Sequence[int] = with_axes("k")
    """The layer whose output each route reads."""
    steps: int
    """Number of steps requested."""
    stopped: Literal["done", "cancelled", "nan"]
    """Why it ended: all steps done, cancelled, or a loss that is not finite."""
    message: str
    """A readable sentence that names the step."""
    parameters_router: int
    """Trained parameters of the router."""
    parameters_norms: int
    """Trained parameters of the norms, including the last route's."""
    parameters_lora: int
    """Trained parameters of the adapters."""
    parameters_base: int
    """Parameters of the base model; shared ones count once."""

    @property
    def done(self) -> int:
        """Number of completed steps."""
        return len(self.task)

    @property
    def trained_parameters(self) -> int:
        """All parameters that were trained."""
        return self.parameters_router + self.parameters_norms + self.parameters_lora

    @property
    def trained_share(self) -> float:
        """Trained parameters over those of the base model."""
        return self.trained_parameters / self.parameters_base

    def to_frame(self) -> DataFrame:
        """One row per step: both losses and the three statistics of every route."""
        columns: dict[str, Any] = {"task": self.task, "distillation": self.distillation}
        for index, layer in enumerate(self.layers):
            columns[f"task_{layer}"] = self.routes[:, index]
            for name in ("sparsity", "mean", "variance"):
                columns[f"{name}_{layer}"] = getattr(self, name)[:, index]
        return table({"step": range(self.done)}, columns)


def half_width(values: Floats) -> Floats:
    """Half of the 95% confidence interval of a mean over the last axis (seeds), by Student's t; NaN for one seed.

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
        """Half of the 95% interval of the mean, of the other axes of `accuracy`; NaN with one seed."""
        return half_width(self.accuracy)


@record
class ModGrid(_Accuracy):
    """Held-out accuracy for every number of layers k and of routes per token (Fig. 5.3)."""

    ks: Sequence[int] = with_axes("n")
    """Numbers of late layers."""

    top_ks: Sequence[int] = with_axes("m")
    """Numbers of routes per token, in tuning and inference."""

    accuracy: Floats = with_axes("n", "m", "seeds")
    """Share of problems solved, 0..1; NaN where top-K is above k, not yet computed, or the tuning
    diverged."""

    base_accuracy: float
    """Share of problems that the base model solves, 0..1."""

    trained_share: Floats = with_axes("n")
    """Trained parameters over those of the base model; NaN where nothing is computed yet."""

    seeds: Sequence[int] = with_axes("seeds")
    """Seed of each run."""

    n_problems: int
    """Problems that were tried."""

    def to_frame(self) -> DataFrame:
        """One row per cell: mean accuracy and half of its interval."""
        cells = table({"k": self.ks, "top_k": self.top_ks}, {"accuracy": self.mean, "half_width": self.half_width})
        return cells[cells["top_k"] <= cells["k"]].reset_index(drop=True)


@record
class ModAblations(_Accuracy):
    """Held-out accuracy of variants of one tuning (Fig. 5.4)."""

    variants: Sequence[str] = with_axes("n")
    """Their names."""

    accuracy: Floats = with_axes("n", "seeds")
    """Share of problems solved, 0..1; NaN where not yet computed, or the tuning diverged."""

    trained: Ints = with_axes("n")
    """Trained parameters; 0 where not yet computed."""

    base_accuracy: float
    """Accuracy of the base model."""

    base_parameters: int
    """Parameters of the base model; 0 while nothing is computed."""

    seeds: Sequence[int] = with_axes("seeds")
    """Seed of each run."""

    n_problems: int
    """Problems that were tried."""

    def to_frame(self) -> DataFrame:
        """One row per variant."""
        columns = {
            "accuracy": self.mean,
            "half_width": self.half_width,
            "trained_parameters": self.trained,
            "trained_share": self.trained / max(self.base_parameters, 1),
        }
        return table({"variant": self.variants}, columns)


@record
class LateLayerLosses(Result):
    """Loss of each of the last k layers, decoded by the pretrained final norm and unembedding, at every step."""

    layers: Sequence[int] = with_axes("k")
    """The layers."""

    implicit: Floats = with_axes("steps", "k")
    """Nats: loss of each layer while the last layer's loss is tuned; NaN where not yet computed."""

    explicit: Floats = with_axes("steps", "k")
    """Nats: loss of each layer in a separate tuning run on it; NaN where not yet computed. The last column equals that
    of `implicit`."""

    solved: Bools = with_axes("k", "problems")
    """Whether the model tuned at and decoded from each layer solves a problem; (k, 0) without problems."""

    @property
    def accuracy(self) -> Floats:
        """(k,) share of problems solved per layer; NaN without problems."""
        count = self.solved.shape[1]
        return self.solved.sum(1) / count if count else np.full(len(self.layers), np.nan)

    def overlap(self) -> dict[tuple[int, ...], int]:
        """Number of problems solved by exactly these layers, for every set of layers, also the empty one (Fig. 4.8).

        The numbers sum to the number of problems.
        """
        counts = {}
        for size in range(len(self.layers) + 1):
            for chosen in combinations(range(len(self.layers)), size):
                pattern = np.isin(np.arange(len(self.layers)), chosen)[:, None]
                counts[tuple(self.layers[i] for i in chosen)] = int((self.solved == pattern).all(0).sum())
        return counts

    def to_frame(self) -> DataFrame:
        """One row per step and layer."""
        axes = {"step": range(len(self.implicit)), "layer": self.layers}
        return table(axes, {"implicit": self.implicit, "explicit": self.explicit})
