"""`ModReport`: what happened while a mixture of depths was tuned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

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
    """How many steps were asked for."""
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
        for name in ("task", "distillation"):
            self.array(name, (n,))
        for name in ("routes", "sparsity", "mean", "variance"):
            self.array(name, (n, k))

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
