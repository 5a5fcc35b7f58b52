"""What a token decomposition explorer asks for: one frozen object per run, and what it brings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis._core.prompts import read_prompt, single_token
from interp_widgets.analysis._core.result import Scalar
from interp_widgets.analysis.token_decomposition import (
    LogitShareResult,
    TokenDecompositionResult,
    decompose_logit,
    decompose_tokens,
    decomposition_cost,
)
from interp_widgets.models import Model

from ..base.code import call
from ..base.prediction import Prediction


@dataclass(frozen=True)
class Decomposed:
    """One model's answer: the parts of the residual stream, and the shares of one logit."""

    tokens: TokenDecompositionResult
    logit: LogitShareResult

    @property
    def partial(self) -> bool:
        """Whether the run was stopped midway."""
        return self.tokens.partial

    @property
    def provenance(self) -> Mapping[str, Scalar]:
        """What it takes to repeat it."""
        return self.tokens.provenance

    @property
    def sources(self) -> int:
        """Tokens that can have brought something: those up to the position."""
        return self.tokens.position + 1


@dataclass(frozen=True)
class DecompositionRequest:
    """One decomposition: the prediction, the position in what was read, and how."""

    prediction: Prediction
    position: int = -1
    """In what the model has read, from 0 without a BOS or from the end."""
    foil: str = ""
    """The token whose logit is taken off the target's; empty: none."""
    biases: str = "separate"
    lens: str = "own"

    def read(self, model: Model) -> tuple[list[int], str | int | None]:
        """Ids that the model has read, and the target; the response's own token is predicted at their end only."""
        ids, target = self.prediction.read(model)
        given = read_prompt(model, ids)
        at_end = given.position(self.position) == given.n_shown - 1
        return ids, target if at_end else self.prediction.target or None

    def checked(self, model: Model) -> DecompositionRequest:
        """The request itself, if the model can be asked that: a wrong token or place is told before a long run."""
        self.read(model)
        for what, text in (("target", self.prediction.target), ("foil", self.foil)):
            if text:
                single_token(model, text, what=what)
        return self

    def answer(
        self,
        model: Model,
        *,
        progress: Callable[[int, int], None],
        check: Callable[[], None],
        on_partial: Callable[[Decomposed], None],
    ) -> Decomposed:
        """Run both decompositions on one model."""
        ids, target = self.read(model)
        check()
        logit = decompose_logit(model, ids, target, position=self.position, foil=self.foil or None, check=check)
        tokens = decompose_tokens(
            model, ids, position=self.position, target=logit.target, progress=progress, check=check,
            on_partial=lambda part: on_partial(Decomposed(part, logit)), **self.options(),
        )  # fmt: skip
        return Decomposed(tokens, logit)

    def options(self) -> dict[str, Any]:
        """Keywords of :func:`decompose_tokens` beside prompt, position and target."""
        return {"biases": self.biases, "lens": self.lens}

    def cost(self, model: Model) -> Cost:
        """Operations and bytes; what comes after the position costs nothing."""
        given = read_prompt(model, self.prediction.read(model)[0])
        return decomposition_cost(model, given.offset + given.position(self.position) + 1)

    def code(self, name: str, suffix: str) -> list[str]:
        """Lines of a cell that repeat it for the model called ``name``."""
        lines, ids, target = self.prediction.code(name)
        at_end = self.position == -1
        where: dict[str, Any] = {} if at_end else {"position": self.position}
        if not at_end:
            target = repr(self.prediction.target) if self.prediction.target else "None"
        against = {"foil": self.foil} if self.foil else {}
        shares, parts = f"shares{suffix}", f"parts{suffix}"
        options = {key: value for key, value in self.options().items() if (key, value) not in _USUAL}
        return [
            *lines,
            f"{shares} = {call('decompose_logit', name, ids, target, **where, **against)}",
            f"{parts} = {call('decompose_tokens', name, ids, f'target={shares}.target', **where, **options)}",
        ]


_USUAL = {("biases", "separate"), ("lens", "own")}
