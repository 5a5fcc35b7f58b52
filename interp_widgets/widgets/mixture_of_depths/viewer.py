"""The Mixture of Depths viewer: which layers each token's prediction comes from, and how a mixture is tuned."""

from __future__ import annotations

from typing import Any, ClassVar

from ..base.stack import Stack
from .mixtures import MixtureOptions
from .route import MixtureRouting
from .speed import MixtureSpeed
from .studies import LateLayers, MixtureGrid, MixtureVariants
from .tune import MixtureTuning


class MoDRoutingViewer(MixtureOptions, Stack):
    """Mixtures of depths: routes of every token, tuning with live curves, and the effect of k, top-K and each part.

    *Route*: a map, token × route, of the router's weights, with each route's likeliest token; where routes disagree;
    the exit layer of each token. *Tune*: a router and norms for the last k layers of a frozen model,
    with or without LoRA, stopped and resumed at will. *Grid*: accuracy for every k and top-K. *Variants*: the
    effect of the norms and the distillation. *Late layers*: the loss of each, itself tuned or not. *Speed*: tokens
    per second by the number of routes per token.

    ``MoDRoutingViewer(model)`` starts with an untrained mixture, or on a demo model with the tuned one that
    ships (unless a tuning option such as `k` is passed), ``(mod_model)`` with that mixture;
    ``(a, b)``, ``(pair)`` compare two; ``(workbench)`` shares prompt and token. Every trait of its panels is a keyword
    too. `run()` computes the routing, whichever tab is open, and returns a :class:`RoutingResult` (a pair of them with
    two models), which `result` keeps; `mixture` is the selected `ModModel` and `report` its tuning.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 5.1.

    Example:
        >>> panel = MoDRoutingViewer(model, k=2, prompt="The Eiffel Tower is in the city of")
        >>> panel.run().weights.shape
        (8, 2)
        >>> panel.close()
    """

    title = "Mixture of depths"
    panels: ClassVar = {
        "route": MixtureRouting, "tune": MixtureTuning, "grid": MixtureGrid, "variants": MixtureVariants,
        "late_layers": LateLayers, "speed": MixtureSpeed,
    }  # fmt: skip
    one_status: ClassVar[bool] = True

    @property
    def result(self) -> Any:
        """The last good routing; a pair for two models."""
        return self["route"].result

    @property
    def results(self) -> tuple[Any, ...]:
        """The routings on the screen, one per model."""
        return self["route"].results

    def run(self, *, fresh: bool = False) -> Any:
        """Compute the routing, whichever tab is open; see :meth:`Panel.run`."""
        return self["route"].run(fresh=fresh)

    def go(self) -> None:
        """Press Run on the routing."""
        self["route"].go()

    @property
    def mixture(self) -> Any:
        """The selected `ModModel` (of the model chosen by `slot`); None before an untrained one is made."""
        mixture, panel = self.chosen_mixture(self.slot), self.current
        if mixture.model is not None:
            return mixture.model
        key = panel.key(self.slot)
        if mixture.learned is None and not mixture.has_made(key):
            return None
        return panel.model_of(self.slot, key)  # a shipped one is loaded now

    @property
    def report(self) -> Any:
        """The `ModReport` of the selected mixture; None if it was not tuned here."""
        return self.chosen_mixture(self.slot).report
