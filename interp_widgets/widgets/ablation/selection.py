"""What is selected in an ablation panel, and how it follows the texts and the other panels of a workbench."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

import traitlets as T

from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.data.presets import PRESETS, Preset
from interp_widgets.models import Model

from ..base.fields import Bounds, field
from ..base.prediction import PredictionPanel
from ..base.workbench import in_model
from .request import KINDS

FROM_PRESET = ("foil", "subject", "corrupted")
"""Traits that an example brings along."""


class Selecting(PredictionPanel):
    """The half of the panel that knows the tokens that were read, and what is selected: part, place, subject."""

    kind = T.Enum(("", *KINDS, "head"), default_value="")
    """The picked part: a module or ``head`` of the selected layer; empty for none."""
    position = field(Annotated[int, Bounds(low=-1)], -1, chooses=True, argument=None)
    """The selected token of what the model has read, -1 for none; inside the prompt it is `prompt_token`."""
    head = in_model()
    """The selected head."""
    heads_at = field(T.Int(None, allow_none=True, min=-1), chooses=True)
    """Where the heads of the map are removed: None for every token, -1 for the last."""
    span = field(T.List(T.Int()))
    """Tokens [start, end) that get it instead, where they were marked; or empty."""

    modules: Any
    heads: Any
    tracing: Any
    cell: Any
    stack: Any
    """The tabs, the picked cell and the list, which `build` makes."""

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        self.axis: tuple[str, ...] = ()
        """Readable tokens of what the model has read, without a BOS."""
        self.axis_special: tuple[bool, ...] = ()
        self.layer_told = False
        """Whether somebody has chosen a layer."""
        self._in_prompt = 0
        self._picking = False
        super().__init__(model, tuned, **options)

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        read = len(self.axis), "the tokens that the model has read"
        return {"position": read, "heads_at": read, "prompt_token": (self._in_prompt, "the tokens of this prompt")}

    def preset_values(self, chosen: Preset) -> dict[str, Any]:
        return {name: getattr(chosen, name) for name in FROM_PRESET}

    def follow_selection(self) -> None:
        """Take over what is selected already, and follow it from now on; at the end of `build`."""
        self.layer_told = self.layer > 0
        self._read_anew()
        self.position = self.prompt_token if self.position < 0 else self.position
        self._heads_placed()
        if 0 <= self.position < self._in_prompt:
            self.prompt_token = self.position
        self.watch(self, "prompt", self._from_preset)
        self.watch(self, ["prompt", "response", "response_token"], self._read_anew)
        self.watch(self, "prompt_token", self._token_linked)
        self.watch(self, "heads_at", self._heads_placed)
        self.watch(self, ["kind", "layer", "position", "head", "heads_at"], self._selection_changed)

    # selection --------------------------------------------------------------------------------------------------------

    def pick(self, kind: str | None, layer: int, *, position: int | None = None, head: int | None = None) -> None:
        """Pick a part (None: leave it as it is) and select where it is; negative numbers let go."""
        self._picking = True
        try:
            with self.hold():
                self.kind = self.kind if kind is None else kind
                if layer >= 0:
                    self.layer, self.layer_told = min(layer, self.models[0].n_layers - 1), True
                if position is not None:
                    self.position = max(position, -1)
                if head is not None and head >= 0:
                    self.head = min(head, self.models[0].n_heads - 1)
        finally:
            self._picking = False
        self._selection_changed(None)

    def _selection_changed(self, change: Any) -> None:
        """Tell the workbench, and redraw what depends on the selection."""
        if change is not None and change.name == "layer":
            self.layer_told = True
        if self._picking:
            return
        with self.hold():
            self.prompt_token = self.position if 0 <= self.position < self._in_prompt else -1
            if self.heads_at is not None:
                self.heads_at = self.position
        self.modules.paint_selection()
        self.heads.paint_selection()
        self.tracing.paint_selection()
        self.cell.paint()

    def _heads_placed(self, _: Any = None) -> None:
        """Heads removed at one token: it is the selected one."""
        if self.heads_at is not None:
            self.position = self.heads_at
        self.heads.show_place()

    def _token_linked(self, _: Any) -> None:
        """A prompt token chosen elsewhere is the selected position; letting go of it lets go of that."""
        if 0 <= self.prompt_token < self._in_prompt:
            self.position = self.prompt_token
        elif 0 <= self.position < self._in_prompt:
            self.position = -1

    # texts ------------------------------------------------------------------------------------------------------------

    def _read_anew(self, _: Any = None) -> None:
        """Other texts, or another of their tokens predicted: other tokens were read."""
        before = self.axis
        self.axis, self.axis_special, self._in_prompt = (), (), 0
        try:
            prediction, model = self.prediction(), self.models[0]
            read = read_prompt(model, prediction.read(model)[0])
            self.axis, self.axis_special = read.tokens(), read.special()
            self._in_prompt = min(read.n_shown, len(prediction.whole(model)[0]) - read.offset)
        except ValueError:
            pass  # the run that follows says what is wrong with the texts
        if self.axis != before:
            kept = self.position < len(self.axis) and self.axis[: self.position + 1] == before[: self.position + 1]
            if before and not kept:
                self.position = -1
            if before[: len(self.axis)] != self.axis[: len(before)]:
                self.span = []
        self.tracing.fit()
        self.stack.renamed()

    def _from_preset(self, change: Any) -> None:
        """Take what belongs to an example's prompt, and drop what belonged to the one before."""
        old, new = (_preset_of(text) for text in ("" if change is None else change.old, self.prompt))
        with self.hold():
            for name in FROM_PRESET:
                own = getattr(self, name)
                if not own or (old is not None and own == getattr(old, name)):
                    setattr(self, name, "" if new is None else getattr(new, name))


def _preset_of(prompt: str) -> Preset | None:
    return next((one for one in PRESETS if one.prompt == prompt), None)
