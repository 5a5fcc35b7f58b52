"""The viewer of mixtures of depths: where each token's prediction is read from, and how a mixture is tuned."""

from __future__ import annotations

from typing import Any, ClassVar

from ..base.stack import Stack
from .mixtures import MixtureOptions
from .route import MixtureRouting
from .speed import MixtureSpeed
from .studies import LateLayers, MixtureGrid, MixtureVariants
from .tune import MixtureTuning


class MoDRoutingViewer(MixtureOptions, Stack):
    """Mixtures of depths: routes of every token, tuning with live curves, and what k, top-K and the parts are worth.

    *Route*: a map, token × route, of the router's weights, with each route's likeliest token; where routes disagree;
    up to which layer a token has to be computed. *Tune*: a router and norms for the last k layers of a frozen model,
    with or without LoRA, stopped and resumed at will. *Grid*: accuracy for every k and top-K. *Variants*: what the
    norms and the distillation are worth. *Late layers*: what each of them loses, itself tuned or not. *Speed*: tokens
    per second with few routes per token.

    ``MoDRoutingViewer(model)`` starts with an untrained mixture on the model, on a demo model with the tuned one that
    ships (unless an option such as `k` says how to tune another), ``(mod_model)`` with the one given;
    ``(a, b)``, ``(pair)`` compare two; ``(workbench)`` shares prompt and token. Every trait of its panels is a keyword
    too. `run()` computes the routing, whichever tab is open, and returns a :class:`RoutingResult` (a pair of them with
    two models), which `result` keeps; `mixture` is the `ModModel` that is looked at and `report` how it was tuned.

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
        """The last good routing, of two models a pair of them."""
        return self["route"].result

    @property
    def results(self) -> tuple[Any, ...]:
        """The routings on the screen, one per model."""
        return self["route"].results

    def run(self, *, fresh: bool = False) -> Any:
        """Compute the routing, whichever tab is open; see :meth:`Panel.run`."""
        return self["route"].run(fresh=fresh)

    def go(self) -> None:
        """Press Run of the routing."""
        self["route"].go()

    @property
    def mixture(self) -> Any:
        """The `ModModel` that is looked at (of the model chosen by `slot`); None before an untrained one was made."""
        mixture, panel = self.looked_at(self.slot), self.current
        if mixture.model is not None:
            return mixture.model
        key = panel.key(self.slot)
        if mixture.learned is None and not mixture.has_made(key):
            return None
        return panel.model_of(self.slot, key)  # one that ships is made now

    @property
    def report(self) -> Any:
        """The `ModReport` of the mixture that is looked at; None if it was not tuned here."""
        return self.looked_at(self.slot).report
