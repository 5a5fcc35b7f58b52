"""`AdapterTraining`: the optimizer of low-rank adapters, kept in a file from which a run that was ended goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from interp_widgets.atomic import whole_file
from interp_widgets.data.files import read_tensors

KEPT_EVERY = 50
"""Steps after which an unfinished training is written down."""
LARGEST_GRADIENT = 1.0
"""Norm to which longer gradients are clipped."""


class AdapterTraining:
    """Trains the adapters of a peft model step by step, on losses that the caller computes.

    AdamW without weight decay, gradients clipped at length 1; the learning rate rises over the first steps and then
    falls to zero. The training is written down every 50 steps and after the last, and a training whose file is there
    goes on from it: its settings and its data must be the same.
    """

    def __init__(
        self, adapted: Any, kept: Path, *, name: str, steps: int, learning_rate: float, warm_up: float
    ) -> None:
        self.trained: list[Tensor] = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, weight_decay=0.0)
        self.kept = kept
        self.name = name
        """What is trained, in the message of an error."""
        self.steps, self.learning_rate = steps, learning_rate
        self.warm_up = warm_up
        """Share of the steps in which the learning rate rises."""
        self.losses = self._resumed()
        """The losses of the steps made."""

    def step(self, loss: Tensor) -> None:
        """Make the next step; ValueError for a loss that is not finite."""
        done = len(self.losses)
        if not bool(torch.isfinite(loss)):
            raise ValueError(
                f"the loss of {self.name} is not finite after {done} steps: try a smaller learning_rate than "
                f"{self.learning_rate}"
            )
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.trained, LARGEST_GRADIENT)
        share = min((done + 1) / max(1.0, self.warm_up * self.steps), 1 - done / self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * share
        self.optimizer.step()
        self.losses.append(float(loss.detach()))
        if (done + 1) % KEPT_EVERY == 0 or done + 1 == self.steps:
            self._keep()

    def _keep(self) -> None:
        """Write down what the training goes on from: adapters, the optimizer's state, and the losses so far."""
        tensors = {"losses": torch.tensor(self.losses, dtype=torch.float64)}
        for number, value in enumerate(self.trained):
            tensors[f"{number}.value"] = value.detach()
            tensors |= {f"{number}.{name}": part for name, part in self.optimizer.state[value].items()}
        with whole_file(self.kept) as draft:
            save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, draft)

    def _resumed(self) -> list[float]:
        """Put what was written down, if anything was, into adapters and optimizer; the losses of its steps."""
        if not self.kept.is_file():
            return []
        tensors, _ = read_tensors(self.kept, "an unfinished tuning")
        with torch.no_grad():
            for number, value in enumerate(self.trained):
                value.copy_(tensors[f"{number}.value"])
                self.optimizer.state[value] = {
                    name: tensors[f"{number}.{name}"].to(value.device if name != "step" else "cpu")
                    for name in ("step", "exp_avg", "exp_avg_sq")
                }
        return [float(loss) for loss in tensors["losses"]]
