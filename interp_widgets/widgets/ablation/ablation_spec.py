"""An ablation as a user picks it, for any model: a part of the model, a position, and its replacement value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from interp_widgets.analysis.ablation import Ablation, Kind, mean_ablation, resample_ablation
from interp_widgets.figures.labels import visible
from interp_widgets.models import Model

from ..base.code import call
from ..base.prediction import Continued, Prediction

KINDS: tuple[str, ...] = get_args(Kind)
KIND_LABELS = {
    "attn": "Attention",
    "mlp": "MLP",
    "both": "Attention and MLP",
    "attn_to_mlp": "Attention → MLP",
}
"""Names of the maps, by the part removed at one layer and position."""


@dataclass(frozen=True)
class ReplacementValue:
    """The value that replaces a removed activation."""

    replacement: str = "zero"
    reference: tuple[str, ...] = ()
    """Texts to average over; only for ``mean``."""
    corrupted: str = ""
    """The corrupted prompt that values come from; only for ``resample``."""


ZERO = ReplacementValue()


@dataclass(frozen=True)
class AblationSpec:
    """One part of the model to ablate."""

    kind: str
    layer: int
    position: int | None
    """Position on the axis of the maps; None for every token, including those still to be generated."""
    head: int | None = None
    replacement_value: ReplacementValue = ZERO

    def make(self, model: Model, prediction: Prediction, *, check: Any = None) -> Ablation:
        """The ablation for one model."""
        plain = Ablation(self.kind, self.layer, self.position, self.head)  # type: ignore[arg-type]
        value = self.replacement_value
        if value.replacement == "mean":
            return mean_ablation(model, plain, value.reference, check=check)
        if value.replacement == "resample":
            return resample_ablation(model, plain, Continued(value.corrupted, prediction).read_by(model))
        return plain

    def code(self, name: str, prediction: Prediction) -> str:
        """The source text that makes it for the model called ``name``."""
        value = self.replacement_value
        options = {"position": self.position, "index": self.head}
        plain = call(
            "Ablation", repr(self.kind), str(self.layer),
            **{key: option for key, option in options.items() if option is not None},
        )  # fmt: skip
        if value.replacement == "mean":
            return call("mean_ablation", name, plain, repr(list(value.reference)))
        if value.replacement == "resample":
            return call("resample_ablation", name, plain, Continued(value.corrupted, prediction).code(name)[1])
        return plain

    def part(self) -> str:
        """The part in words: ``MLP of layer 3``."""
        if self.kind == "head":
            return f"Head {self.head} of layer {self.layer}"
        name = {"both": "Attention and MLP", "attn_to_mlp": "Attention as read by the MLP"}
        return f"{name.get(self.kind, KIND_LABELS.get(self.kind, self.kind))} of layer {self.layer}"

    def at(self, tokens: Sequence[str]) -> str:
        """The position in words: ``at “·Tower” (2)``."""
        return "at every token" if self.position is None else f"at {at_token(self.position, tokens)}"

    def where(self, tokens: Sequence[str]) -> str:
        """Part and position in words: ``MLP of layer 3 at “·Tower” (2)``."""
        return f"{self.part()} {self.at(tokens)}"

    def replaced_by(self) -> str:
        """The replacement in words."""
        return {"mean": "replaced by its mean", "resample": "taken from the corrupted prompt"}.get(
            self.replacement_value.replacement, "removed"
        )

    def describe(self, tokens: Sequence[str]) -> str:
        """The ablation in words: ``MLP of layer 3 at “·Tower” (2), removed``."""
        return f"{self.where(tokens)}, {self.replaced_by()}"


@dataclass(frozen=True)
class Listed:
    """An ablation in the list of those applied together."""

    picked: AblationSpec
    """The ablation as it was picked."""
    on: bool = True
    everywhere: bool = False
    """Whether it applies at every token instead of the picked one."""

    @property
    def spec(self) -> AblationSpec:
        """The ablation with the settings of the list."""
        return replace(self.picked, position=None) if self.everywhere else self.picked


def makers(specs: Sequence[AblationSpec]) -> list[str]:
    """The line that imports the functions that the code of these ablations calls besides `Ablation`."""
    replacements = {spec.replacement_value.replacement for spec in specs} - {"zero"}
    names = sorted(f"{replacement}_ablation" for replacement in replacements)
    return [f"from interp_widgets.analysis.ablation import {', '.join(names)}"] if names else []


def at_token(position: int, tokens: Sequence[str]) -> str:
    """A token of the prompt with its position: ``“·Tower” (2)``.

    >>> at_token(1, ("The", " Tower")), at_token(7, ("The",))
    ('“·Tower” (1)', 'position 7')
    """
    return f"“{visible(tokens[position])}” ({position})" if position < len(tokens) else f"position {position}"
