"""The options of the annotated components, and the notes that a user writes about one."""

from __future__ import annotations

from typing import Any

from ..base.controls import Typed
from ..base.fields import field
from .components import ComponentPanel
from .notes import Cell, edited
from .top_texts import TextOptions

SIDES = {
    "sides": "each side separately",
    "both": "both sides together",
    "+": "the positive side",
    "-": "the negative side",
}
ANNOTATORS = {"rules": "rules, offline", "endpoint": "a language model at an endpoint"}
SCOPES = {"layer": "this layer", "all": "all layers"}


class AnnotatedComponents(TextOptions, ComponentPanel):
    """Base of the panel of components: which words are listed, who annotates them, and the user's own notes."""

    sides = field(SIDES, "sides", label="Words of", redraws=True, help="Which words of a component to list")
    scope = field(SCOPES, "layer", label="Annotate", group="annotating", argument=None, help="Which layers to annotate")
    annotator = field(
        ANNOTATORS,
        "rules",
        label="Annotator",
        group="annotating",
        argument=None,
        help="Who writes the notes",
        personal=True,
    )
    endpoint_model = field(
        str, label="Model", placeholder="its name at the endpoint", group="endpoint", argument=None, personal=True,
        shown_if=lambda panel: panel.annotator == "endpoint", help="Name of the model at the endpoint",
    )  # fmt: skip
    base_url = field(
        str, label="Address", placeholder="http://localhost:8000/v1", group="endpoint", width="grow", argument=None,
        personal=True, shown_if=lambda panel: panel.annotator == "endpoint",
        help="Address of the endpoint; empty: OpenAI's environment variable, or OpenAI itself",
    )  # fmt: skip
    key_variable = field(Typed("OPENAI_API_KEY"), argument=None, personal=True)
    """Name of the environment variable that holds the endpoint's key."""

    def note(self, letter: str, cell: Cell, **changes: Any) -> None:
        """Save description, scenarios or level of a component as the user's note."""
        owner, what = self.owner(letter), f"{' and '.join(changes)} of {self.name_of(letter, cell)}"
        self.change_notes(
            lambda noted: noted.changed(owner, {cell: edited(noted.of(owner).get(cell), **changes)}, what)
        )

    def name_of(self, letter: str, cell: Cell) -> str:
        """The name of a component."""
        of = f" of {letter}" if len(self.models) > 1 else ""
        return f"component {cell[1]}, layer {cell[0]}{of}"
