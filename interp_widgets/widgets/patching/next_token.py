"""The next-token table of a cell: the likeliest tokens of the clean, the corrupted and the patched run."""

from __future__ import annotations

from dataclasses import dataclass

from interp_widgets.analysis.patching import PatchedPrediction, patched_prediction
from interp_widgets.models import Model

from ..base.next_tokens import NextTokens
from ..base.request import PerModel, Request

TOP = 8
"""Number of top tokens listed of each run."""


@dataclass(frozen=True)
class Cell:
    """A cell of a map."""

    site: str
    layer: int
    head: int | None = None
    position: int = -1
    """In the prompt that is run."""

    def call(self, request: Request) -> Request:
        """The call that lists its next tokens, for the prompts of a request."""
        options = dict(request.arguments)
        keywords = {"head": self.head, "position": self.position}
        keywords |= {name: options[name] for name in ("direction", "alignment")}
        return Request.of(patched_prediction, keywords, *request.inputs[:2], self.site, self.layer)


@dataclass(frozen=True)
class TopTokens(PerModel):
    """How many tokens are listed: no more than a vocabulary has."""

    def read_by(self, model: Model) -> int:
        return min(TOP, model.d_vocab)

    def code(self, name: str) -> tuple[list[str], str]:
        return [], str(TOP)


class PatchedTokens(NextTokens):
    """The table of the selected cell."""

    runs = ("clean", "corrupted", "patched")
    empty = "Click a cell of a map to list the next tokens of the patched run."

    def request(self) -> Request | None:
        panel, cell = self.panel, self.panel.cell
        if cell is None or panel.shown_request is None:
            return None
        request = cell.call(panel.shown_request)
        return Request.of(request.analysis, dict(request.arguments) | {"top": TopTokens()}, *request.inputs)

    def caption(self, request: Request, predictions: tuple[PatchedPrediction, ...]) -> str:
        return f"Probability of the next token: {self.panel.cell_name}"
