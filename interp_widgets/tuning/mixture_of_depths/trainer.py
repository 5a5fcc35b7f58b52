"""The training loop of `tune_mod`: parameters, optimizer and curves, stopped and resumed with the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from interp_widgets.models.mixture_of_depths.assemble import (
    add_lora,
    lora_parameters,
    new_mixture,
    norm_parameters,
    read_weights,
)
from interp_widgets.models.mixture_of_depths.checkpoint import LoraSetup, MixtureState
from interp_widgets.models.mixture_of_depths.install import installed, late_parts

from ..examples import Batch, Example, batches
from .loss import routing_statistics, step_loss

ROUTER_SCALE = 0.02
"""Standard deviation of the router's first weights (section 5.1.2)."""
LARGEST_GRADIENT = 1.0
"""Norm to which longer gradients are clipped."""
CURVES = ("task", "distillation", "routes", "sparsity", "mean", "variance")
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")

Ending = Literal["done", "cancelled", "nan"]


@dataclass(frozen=True)
class Settings:
    """The settings that determine the numbers of a run."""

    k: int
    top_k: int
    lora: LoraSetup | None
    distill: float
    learning_rate: float
    batch_size: int
    seed: int
    train_norms: bool
    only: int | None
    """The route that is tuned alone; None for the mixture."""
    data: str
    """Fingerprint of the examples."""

    def plain(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return {**vars(self), "lora": None if self.lora is None else vars(self.lora)}


@dataclass(frozen=True)
class ModStep:
    """A tuning step, as passed to `on_step`."""

    step: int
    """Counted from 0."""
    task: float
    """Cross-entropy of the ensemble in nats."""
    distillation: float
    """Sum of divergences from the last route in nats; NaN where the term is left out."""
    routes: tuple[float, ...]
    """Per route: its own cross-entropy in nats; NaN if it was not computed."""
    sparsity: tuple[float, ...]
    """Per route: share of tokens whose weight is below 1e-5."""
    mean: tuple[float, ...]
    """Per route: mean weight."""
    variance: tuple[float, ...]
    """Per route: variance of the weight."""


def first_router(template: Tensor, k: int, seed: int) -> Tensor:
    """(d_model, k) random weights that a router starts from, with device and dtype of ``template`` (d_model,)."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(len(template), k, generator=generator, dtype=torch.float64) * ROUTER_SCALE).to(template)


@dataclass
class Trainer:
    """A base model with a mixture and adapters in training; `hf_model` cannot be used for anything else."""

    hf_model: Any
    settings: Settings
    device: torch.device
    each_route: bool = False
    curves: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in CURVES})

    def __post_init__(self) -> None:
        settings = self.settings
        self.hf_model.to(self.device).requires_grad_(False)
        self.parts = late_parts(self.hf_model)
        router = first_router(next(self.parts.norm.parameters()), settings.k, settings.seed)
        self.mixture = new_mixture(self.parts, router, settings.top_k, settings.only).to(self.device)
        peft_model = None
        if settings.lora is not None:
            peft_model = add_lora(self.hf_model, self.parts, settings.lora, settings.k, settings.seed)
        self.named: dict[str, nn.Parameter] = {"router": self.mixture.router}
        self.named |= norm_parameters(self.mixture, self.parts)
        self.named |= {} if peft_model is None else lora_parameters(peft_model)
        self.trained = {name: p for name, p in self.named.items() if self._is_trained(name)}
        for name, parameter in self.named.items():
            parameter.requires_grad_(name in self.trained)
        self.hf_model.eval()  # without dropout, so that a step always gives the same numbers
        self.optimizer = torch.optim.AdamW(self.trained.values(), lr=settings.learning_rate, weight_decay=0.0)

    def _is_trained(self, name: str) -> bool:
        """Whether a parameter is trained; tuning a single route needs neither the router nor norms of other routes."""
        only = self.settings.only
        if name == "router":
            return only is None
        if name.startswith("norms."):
            return self.settings.train_norms and (only is None or name.startswith(f"norms.{only}."))
        return True

    @property
    def done(self) -> int:
        """Number of completed steps."""
        return len(self.curves["task"])

    def count(self, kind: str) -> int:
        """Number of trained parameters whose names begin with ``kind``."""
        return sum(p.numel() for name, p in self.trained.items() if name.startswith(kind))

    # ---- the loop

    def run(
        self,
        examples: Sequence[Example],
        steps: int,
        before: Callable[[], None],
        after: Callable[[ModStep], None],
    ) -> Ending:
        """Train up to ``steps`` steps, or until a loss is NaN or infinite: then the last good weights are restored.

        ``before`` and ``after`` may raise to stop. The weights are always those of the last complete step.
        """
        settings = self.settings
        stream = batches(examples, settings.batch_size, settings.seed, self.done)
        good = self._snapshot()
        with torch.enable_grad(), installed(self.parts, self.mixture):
            while self.done < steps:
                before()
                step = self._step(next(stream), good)
                if step is None:
                    return "nan"
                after(step)
        return "done"

    def _step(self, batch: Batch, good: dict[str, Tensor]) -> ModStep | None:
        loss = step_loss(self.hf_model, self.parts, self.mixture, batch, self.settings.distill, self.each_route)
        if not bool(torch.isfinite(loss.total)):
            self._restore(good)  # the weights that gave the last finite loss
            return None
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss.total)
        length = torch.nn.utils.clip_grad_norm_(self.trained.values(), LARGEST_GRADIENT)
        if not bool(torch.isfinite(length)):
            return None
        good.update(self._snapshot())
        sparsity, mean, variance = (tuple(x.tolist()) for x in routing_statistics(loss.gates))
        step = ModStep(
            self.done, float(loss.task), float(loss.distillation), tuple(loss.routes.tolist()), sparsity, mean, variance
        )
        try:
            self.optimizer.step()
            for name in CURVES:
                self.curves[name].append(getattr(step, name))
        except BaseException:  # an interrupt may come anywhere: a step is made as a whole or not at all
            self._restore(good)
            for rows in self.curves.values():
                del rows[step.step :]
            raise
        return step

    # ---- saving and resuming

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        return {
            f"optimizer.{name}.{moment}": state[moment]
            for name, parameter in self.trained.items()
            if (state := self.optimizer.state.get(parameter))
            for moment in _MOMENTS
        }

    def _snapshot(self) -> dict[str, Tensor]:
        """Copies of the trained weights and optimizer moments."""
        weights = {name: parameter.detach().clone() for name, parameter in self.trained.items()}
        return weights | {name: value.clone() for name, value in self._optimizer_tensors().items()}

    def _restore(self, snapshot: Mapping[str, Tensor]) -> None:
        read_weights(self.trained, {name: snapshot[name] for name in self.trained})
        for name, parameter in self.trained.items():
            moments = {m: snapshot.get(f"optimizer.{name}.{m}") for m in _MOMENTS}
            self.optimizer.state.pop(parameter, None)
            if moments["step"] is not None:
                self.optimizer.state[parameter] = {
                    m: v.clone().to("cpu" if m == "step" else self.device) for m, v in moments.items() if v is not None
                }

    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The weights, and the optimizer state and curves that resuming needs, on the CPU."""
        weights = {name: parameter.detach().cpu().clone() for name, parameter in self.named.items()}
        curves = {f"curves.{name}": torch.tensor(rows, dtype=torch.float64) for name, rows in self.curves.items()}
        return weights, curves | {n: v.detach().cpu().clone() for n, v in self._optimizer_tensors().items()}

    def release(self) -> None:
        """Free model and optimizer; the curves are kept."""
        for name in ("hf_model", "parts", "mixture", "named", "trained", "optimizer"):
            delattr(self, name)

    def resume(self, state: MixtureState) -> None:
        """Continue from where ``state`` stopped."""
        read_weights(self.named, state.weights)
        self._restore({**state.weights, **state.training})
        for name in CURVES:
            self.curves[name] = state.training[f"curves.{name}"].tolist()
