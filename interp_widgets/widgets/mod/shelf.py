"""The mixtures that a viewer holds for each of its models: untrained, given, tuned, opened, until one is forgotten."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from interp_widgets.models import ModModel, load_model
from interp_widgets.models.mixture_of_depths.checkpoint import is_mixture_folder
from interp_widgets.models.mixture_of_depths.model import check_k, check_top_k
from interp_widgets.models.state import State, state_key
from interp_widgets.tuning.mixture_of_depths import ModReport
from interp_widgets.tuning.mixture_of_depths.untrained import untrained_mod

from ..base.workbench import model_name
from .request import Entry, Untrained

if TYPE_CHECKING:
    import pandas as pd

    from .viewer import MoDRoutingViewer

UNTRAINED = "untrained"


class Shelf:
    """One row of mixtures per model; the panel's trait `chosen` says which of each row is looked at."""

    def __init__(self, panel: MoDRoutingViewer) -> None:
        self.panel = panel
        self.rows: list[list[Entry]] = [
            [Entry(_given_name(model), model) if isinstance(model, ModModel) else Entry(UNTRAINED)]
            for model in panel.models
        ]
        self._made: dict[tuple[int, Untrained], tuple[State, ModModel]] = {}
        """Untrained mixtures, each with the state of the model that it was made from."""
        self._bases: dict[int, Any] = {}

    def chosen(self, slot: int) -> Entry:
        """The mixture of a model that is looked at."""
        row = self.rows[slot]
        place = self.panel.chosen[slot] if slot < len(self.panel.chosen) else 0
        return row[place] if 0 <= place < len(row) else row[0]

    def add(self, slot: int, entry: Entry) -> None:
        """Put another mixture behind the others and look at it."""
        names = {one.name for one in self.rows[slot]}
        plain, number = entry.name, 1
        while entry.name in names:
            number += 1
            entry.name = f"{plain} ({number})"
        self.rows[slot].append(entry)
        chosen = [*self.panel.chosen]
        chosen[slot] = len(self.rows[slot]) - 1
        self.panel.chosen = chosen

    def forget(self, slot: int) -> None:
        """Let go of the mixture that is looked at, whose weights then leave the memory, and look at the one before it.

        ValueError for the first one, which the viewer was opened on.
        """
        row, entry = self.rows[slot], self.chosen(slot)
        place = row.index(entry)
        if not place:
            raise ValueError(f"“{entry.name}” is what the viewer was opened on and stays: look at another one first")
        del row[place]
        chosen = [*self.panel.chosen]
        chosen[slot] = place - 1
        self.panel.chosen = chosen

    def key(self, slot: int) -> Any:
        """What tells the chosen mixture from others, in a request; ValueError where it cannot be made."""
        entry = self.chosen(slot)
        if entry.model is not None:
            return entry.serial, entry.model.top_k
        self.check_numbers(slot)
        return Untrained(self.panel.k, self.panel.top_k or self.panel.k, self.panel.seed)

    def check_numbers(self, slot: int) -> None:
        """ValueError unless a model can have so many routes."""
        panel = self.panel
        check_k(panel.k, int(panel.models[slot].n_layers))
        if panel.top_k:
            check_top_k(panel.top_k, panel.k)

    def k(self, slot: int) -> int:
        """Routes of the chosen mixture."""
        entry = self.chosen(slot)
        return self.panel.k if entry.model is None else int(entry.model.k)

    def is_ready(self, slot: int, key: Any) -> bool:
        """Whether the mixture needs not be made first."""
        return not isinstance(key, Untrained) or (slot, key) in self._made

    def prepare(self, slot: int, key: Any) -> None:
        """Make an untrained mixture, unless it is there and its model is as it was then; in the worker."""
        if not isinstance(key, Untrained):
            return
        state = state_key(self.panel.models[slot], exact=True)
        if (slot, key) not in self._made or self._made[slot, key][0] != state:
            made = untrained_mod(self.panel.models[slot], key.k, top_k=key.top_k, seed=key.seed)
            for old in [held for held in self._made if held[0] == slot]:
                del self._made[old]  # quickly made again
            self._made[slot, key] = state, made

    def model(self, slot: int, key: Any) -> ModModel:
        """The mixture that a request names; in the worker."""
        if isinstance(key, Untrained):
            self.prepare(slot, key)
            return self._made[slot, key][1]
        found: ModModel | None = next((entry.model for entry in self.rows[slot] if entry.serial == key[0]), None)
        if found is None:
            raise ValueError("this mixture was forgotten meanwhile: look at another one")
        return found

    def held(self, slot: int, key: Any) -> tuple[ModModel, ...]:
        """The mixture of this key, if it was given, tuned or opened: users can edit it."""
        if isinstance(key, Untrained):
            return ()
        return tuple(entry.model for entry in self.rows[slot] if entry.serial == key[0] and entry.model is not None)

    def base(self, slot: int) -> Any:
        """The model without a mixture, to tune; in the worker. ValueError where it is not known."""
        given = self.panel.models[slot]
        if not isinstance(given, ModModel):
            return given
        if slot not in self._bases:
            if given.state.base is None:
                raise ValueError(
                    f"the base of {model_name(given)} came from memory: open the viewer on that model to tune it"
                )
            self._bases[slot] = load_model(given.state.base, device=given.device, dtype=given.dtype)
        return self._bases[slot]

    def open(self, slot: int, folder: str) -> ModModel:
        """A saved mixture, on this model; another base is refused. In the worker."""
        if not is_mixture_folder(folder):
            raise ValueError(f"{folder} holds no mixture of depths: give a folder that Save checkpoint wrote")
        given = self.panel.models[slot]
        source = given.state.base if isinstance(given, ModModel) else given.source
        found = load_model(folder, device=given.device, dtype=given.dtype, backend=given.backend, base=source)
        return cast(ModModel, found)


class SavedCurves:
    """The curves that a checkpoint keeps for going on."""

    def __init__(self, model: ModModel) -> None:
        held = model.state.training
        self.layers = model.route_layers
        self.task, self.distillation, self.routes, self.sparsity, self.mean, self.variance = (
            held[f"curves.{name}"].numpy()
            for name in ("task", "distillation", "routes", "sparsity", "mean", "variance")
        )

    @property
    def done(self) -> int:
        """Steps made."""
        return len(self.task)

    def to_frame(self) -> pd.DataFrame:
        """One row per step, as `ModReport.to_frame` has it."""
        return ModReport.to_frame(cast(ModReport, self))


def curves_of(entry: Entry) -> Any:
    """The curves of how a mixture was tuned; None where nobody knows."""
    if entry.report is not None:
        return entry.report
    if entry.model is not None and entry.model.state.training:
        with contextlib.suppress(KeyError):  # of an older checkpoint
            return SavedCurves(entry.model)
    return None


def options_of(entry: Entry) -> dict[str, Any]:
    """How a mixture was tuned, as the viewer's traits; nothing where it does not say."""
    held = {} if entry.model is None else entry.model.state.settings
    names = ("k", "distill", "batch_size", "learning_rate", "seed")
    if any(name not in held for name in (*names, "top_k")) or held.get("only") is not None:
        return {}
    found = {name: held[name] for name in names} | {"top_k": held["top_k"] if held["top_k"] < held["k"] else 0}
    lora = held.get("lora")
    found["lora"] = lora is not None
    return found if lora is None else found | {"rank": lora["rank"], "lora_layers": lora["layers"]}


def steps_of(entry: Entry) -> int:
    """Steps that a mixture was tuned for; 0 where nobody knows."""
    curves = curves_of(entry)
    return 0 if curves is None else len(np.asarray(curves.task))


def _given_name(model: ModModel) -> str:
    return f"{model_name(model)} (as given)"
