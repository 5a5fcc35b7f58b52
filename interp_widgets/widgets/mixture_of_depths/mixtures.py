"""The list of mixtures of each model, and the tuning options."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

import ipywidgets as W
import numpy as np
import traitlets as T

from interp_widgets.arguments import short
from interp_widgets.data.files import existing_file, read_table
from interp_widgets.data.problems import demo_problems, read_problems
from interp_widgets.models import Model, ModModel, load_model
from interp_widgets.models.hub_files import DEMO_MIXTURES
from interp_widgets.models.mixture_of_depths.checkpoint import MixtureState, is_mixture_folder, load_state
from interp_widgets.models.mixture_of_depths.model import check_k, check_top_k
from interp_widgets.models.pair import distinct_names
from interp_widgets.models.state import State, check_as_loaded, state_key
from interp_widgets.tuning.mixture_of_depths import ModReport
from interp_widgets.tuning.mixture_of_depths.untrained import untrained_mod

from ..base.code import call, cell
from ..base.controls import Whole, checked_path
from ..base.fields import Bounds, Seed, field, hint_at
from ..base.identity import PATIENCE, state_now
from ..base.panel import Panel
from ..base.request import PerModel, model_variables
from ..base.workbench import model_name

if TYPE_CHECKING:
    import pandas as pd

USUAL_K = 3
LORA_LABELS = {"last": "the last k layers", "below": "the layers below", "all": "all layers"}
_SERIALS = count()
_PUBLIC = ("routing", "routing_speed", "tune_mod", "mod_grid", "mod_ablations", "late_layer_losses")
"""What copied code imports from the package itself, and from modules of it:"""
_MODULES = {
    "interp_widgets.data.problems": ("demo_problems", "read_problems"),
    "interp_widgets.tuning.mixture_of_depths.untrained": ("untrained_mod",),
}


@dataclass(frozen=True)
class Untrained:
    """The key of an untrained mixture, from which tuning starts."""

    k: int
    top_k: int
    seed: int


@dataclass(eq=False)
class Mixture:
    """A mixture in the list: untrained, passed to the viewer, tuned here, or opened from a file."""

    name: str
    model: ModModel | None = None
    """None for the untrained mixture, which is made on demand."""
    report: ModReport | None = None
    """The report of its tuning, if known."""
    folder: str = ""
    """The folder it is saved in; empty if it was not saved."""
    data: str = ""
    """The line of a cell that makes its training data; empty if unknown."""
    failure: str = ""
    """The error that ended its tuning early; empty if there was none."""
    about: str = ""
    """Its measured performance, in a sentence; empty if it was not measured."""
    state: MixtureState | None = None
    """The learned state of a shipped mixture, whose model is made on demand."""
    layers: tuple[int, ...] = ()
    """The layers of its routes."""
    serial: int = dataclasses.field(default_factory=lambda: next(_SERIALS))
    """Unique within this kernel."""
    _untrained: tuple[Untrained, State, ModModel] | None = None
    _base: Model | None = None
    _as_made: State | None = None
    _unchanged: bool = True

    @property
    def trained(self) -> ModModel:
        """The mixture's model; ValueError for the untrained mixture, and for one not made yet."""
        if self.model is None:
            raise ValueError(f"the mixture “{self.name}” is untrained: tune it first")
        return self.model

    @property
    def identity(self) -> str | int:
        """Its unique key in a request; for a shipped mixture its name, the same in every kernel."""
        return self.serial if self.state is None else self.folder

    @property
    def as_shipped(self) -> bool:
        """Whether it ships with the package and its model is unchanged."""
        if self.state is not None and self.model is not None:
            now = state_now(self.model, wait=PATIENCE)  # None while it computes: as it was before
            self._unchanged = self._unchanged if now is None else now == self._as_made
        return self.state is not None and self._unchanged

    def put(self, model: ModModel) -> None:
        """Set the model of a shipped mixture, just loaded."""
        self._as_made, self._unchanged, self.model = state_key(model, exact=True), True, model

    @property
    def learned(self) -> MixtureState | None:
        """The learned state; None for the untrained mixture."""
        return self.state if self.model is None else self.model.state

    def untrained(self, model: Model, key: Untrained) -> ModModel:
        """The untrained mixture for a key, made again if the model has changed; in the worker."""
        state = state_key(model, exact=True)
        if self._untrained is None or self._untrained[:2] != (key, state):
            self._untrained = None  # free the old one first; it is quick to make
            self._untrained = key, state, untrained_mod(model, key.k, top_k=key.top_k, seed=key.seed)
        return self._untrained[2]

    def has_made(self, key: Any) -> bool:
        """Whether the mixture of a request exists already."""
        if not isinstance(key, Untrained):
            return self.model is not None
        return self._untrained is not None and self._untrained[0] == key

    def base(self) -> Model:
        """The model it was made on; in the worker. ValueError if unknown."""
        if self._base is None:
            model = self.trained
            if model.state.base is None:
                raise ValueError(
                    f"the base of {model_name(model)} came from memory: open the viewer on that model to tune it"
                )
            self._base = load_model(model.state.base, device=model.device, dtype=model.dtype)
        return self._base

    @property
    def curves(self) -> Any:
        """The curves of its tuning; None if unknown."""
        if self.report is not None:
            return self.report
        if self.learned is not None and self.learned.training:
            with contextlib.suppress(KeyError):  # an older checkpoint
                return SavedCurves(self.learned, self.layers if self.model is None else self.model.route_layers)
        return None

    @property
    def steps(self) -> int:
        """Number of tuning steps; 0 if unknown."""
        return 0 if self.curves is None else len(np.asarray(self.curves.task))

    @property
    def options(self) -> dict[str, Any]:
        """The viewer's options with which it was tuned; empty if unknown."""
        settings = {} if self.learned is None else self.learned.settings
        names = ("k", "distill", "batch_size", "learning_rate", "seed")
        if any(name not in settings for name in (*names, "top_k")) or settings.get("only") is not None:
            return {}
        options = {name: settings[name] for name in names}
        options["top_k"] = settings["top_k"] if settings["top_k"] < settings["k"] else 0
        lora = settings.get("lora")
        options["lora"] = lora is not None
        return options if lora is None else options | {"rank": lora["rank"], "lora_layers": lora["layers"]}


class SavedCurves:
    """The curves that a checkpoint stores for resuming."""

    def __init__(self, state: MixtureState, layers: tuple[int, ...]) -> None:
        training = state.training
        self.layers = layers
        self.task, self.distillation, self.routes, self.sparsity, self.mean, self.variance = (
            training[f"curves.{name}"].numpy()
            for name in ("task", "distillation", "routes", "sparsity", "mean", "variance")
        )

    @property
    def done(self) -> int:
        """Number of steps done."""
        return len(self.task)

    def to_frame(self) -> pd.DataFrame:
        """One row per step, as `ModReport.to_frame` has it."""
        return ModReport.to_frame(cast(ModReport, self))


@dataclass(frozen=True)
class Examples(PerModel):
    """Training examples: the user's own, those of a file, or the demo's."""

    empty: ClassVar[str] = "the data set is empty: pass at least one example with a prompt and a response"
    variable: str
    """Their variable in copied code."""
    own: Any = dataclasses.field(compare=False)
    """The user's list, or None."""
    identity: int
    """Identity of that list: the same list is the same examples."""
    file: str
    part: Literal["train", "held_out"]
    """Split of the demo's tasks."""
    count: int
    """How many of the demo's tasks."""
    seed: int

    def read(self) -> list[Any]:
        """The examples; ValueError if there are none."""
        if self.own is not None:
            examples = list(self.own)
        else:
            examples = list(read_problems(self.file) if self.file else demo_problems(self.part, self.count, self.seed))
        if not examples:
            raise ValueError(self.empty)
        return examples

    def read_by(self, model: Model) -> list[Any]:
        return self.read()

    @property
    def line(self) -> str:
        """The line of a cell that makes them."""
        if self.own is not None:
            name = "examples" if self.part == "train" else "ones"
            return f"{self.variable} = {self.variable}  # the {name} passed to the viewer"
        if self.file:
            return f"{self.variable} = read_problems({self.file!r})"
        return f"{self.variable} = {call('demo_problems', repr(self.part), repr(self.count), repr(self.seed))}"

    def code(self, name: str) -> tuple[list[str], str]:
        return [self.line], self.variable


def opened_on(model: Model) -> tuple[Mixture, ...]:
    """The initial mixtures of a model: an untrained one and, for a demo model, the shipped one; or the model itself."""
    if isinstance(model, ModModel):
        return (Mixture(f"{model_name(model)} (as opened)", model),)
    name = f"{model.source}-mixture"
    if name not in DEMO_MIXTURES:
        return (Mixture("untrained"),)
    state, report = load_state(name), read_table(DEMO_MIXTURES[name] / "report.json")
    before, after, problems = report["base"], report["mixture"], report["held_out_problems"]
    about = (
        f"Tuned for {report['steps']:,} steps on the demo's tasks. On {problems} held-out tasks, the loss per response "
        f"token is {after['loss']:.2f} (base model: {before['loss']:.2f}), and it solves {after['solved']:.0%} "
        f"of them (base model: {before['solved']:.0%})."
    )
    layers = tuple(range(model.n_layers - state.k, model.n_layers))
    title = f"shipped: k {state.k}, {report['steps']:,} steps"
    return Mixture("untrained"), Mixture(title, folder=name, about=about, state=state, layers=layers)


def base_box(panel: Any) -> Any:
    """The model to tune: a choice if there are two."""
    names = distinct_names(panel.models)
    if len(names) == 1:
        return W.Label(f"Base model: {names[0]}")
    options = [(f"{letter}: {name}", slot) for slot, (letter, name) in enumerate(zip("AB", names, strict=True))]
    return panel.bind(W.Dropdown(description="Base model", options=options), "slot")


class HeldMixtures(T.Tuple):
    """A trait for the mixtures of each model: empty at first, then at least one per model."""

    def validate(self, obj: Any, value: Any) -> Any:
        lists = value if isinstance(value, list | tuple) else [value]
        if (
            len(lists) == (len(obj.models) if obj._trait_values.get(self.name) or lists else 0)
            and all(isinstance(mixtures, list | tuple) and mixtures for mixtures in lists)
            and all(isinstance(mixture, Mixture) for mixtures in lists for mixture in mixtures)
        ):
            return tuple(map(tuple, lists))
        raise T.TraitError(
            f"mixtures are made by the viewer and cannot be set, got {short(value)}: open it on a model or a "
            "mixture, tune one or open a file"
        )


class MixtureOptions(T.HasTraits):
    """The selected mixture of each model, and the tuning options."""

    models: tuple[Any, ...]
    mixtures = field(HeldMixtures(), argument=None, personal=True)
    """Per model, its list of mixtures, starting with the one that the viewer was opened on."""
    chosen = field(T.List(Whole(min=0)))
    """Per model, the index of the selected mixture: 0 is the untrained one or the one passed to the viewer."""
    slot = field(Whole(0, min=0, max=1), label="Base model", group="tune", argument=None, control=base_box)
    """Index of the model to tune and to run the studies on."""
    examples = field(
        Annotated[int, Bounds(1, lambda panel: 100_000)], 800, label="Demo tasks", group="tune", width="short",
        argument=None, help="How many of the demo's tasks to train on",
        shown_if=lambda panel: panel.dataset is None and not panel.data_file.strip(),
    )  # fmt: skip
    data_file = field(
        str, label="Data file", placeholder="the demo's tasks", group="tune", personal=True,
        width="grow", argument=None, help="A .json or .jsonl file of problems to train on",
        shown_if=lambda panel: panel.dataset is None,
    )  # fmt: skip
    k = field(
        Annotated[int, Bounds(1, lambda panel: 10_000)], USUAL_K, label="k", group="tune", width="short",
        new_row=True, help="Number of routes: one for each of the last k layers",
    )  # fmt: skip
    top_k = field(
        Annotated[int, Bounds(0, lambda panel: 10_000)], label="Top-K (0: all)", group="tune", width="short",
        help="Routes that each token uses while tuning; 0: all k",
    )  # fmt: skip
    distill = field(
        Annotated[float, Bounds(0.0, step=1e-4)], 1e-4, label="λ", group="tune", width="short", argument=None,
        help="Weight of the distillation term: each earlier route's divergence from the last layer; 0: no such term",
    )  # fmt: skip
    lora = field(bool, label="LoRA", group="tune", argument=None, help="Tune LoRA adapters too")
    rank = field(
        Annotated[int, Bounds(1, lambda panel: 4096)], 8, label="Rank", group="tune", width="short", argument=None,
        shown_if=lambda panel: panel.lora, help="Rank of the LoRA adapters",
    )  # fmt: skip
    lora_layers = field(
        LORA_LABELS, "last", label="LoRA on", group="tune", argument=None, shown_if=lambda panel: panel.lora,
        help="Which layers get adapters",
    )  # fmt: skip
    steps = field(
        Annotated[int, Bounds(1, lambda panel: 10_000_000)], 100, label="Steps", group="tune", width="short",
        new_row=True, argument=None, help="Total steps, including those before a resume",
    )  # fmt: skip
    batch_size = field(
        Annotated[int, Bounds(1, lambda panel: 4096)], 16, label="Batch", group="tune", width="short", argument=None,
        help="Examples per step",
    )  # fmt: skip
    learning_rate = field(
        Annotated[float, Bounds(step=1e-4)], 3e-4, label="Learning rate", group="tune", width="short", argument=None,
        help="Learning rate of AdamW",
    )  # fmt: skip
    seed = field(
        Seed, label="Seed", group="tune", width="short",
        help="Seed of the router's and adapters' initial weights and of the data order",
    )  # fmt: skip
    dataset = field(T.Any(None), argument=None)
    """Training examples with prompt and response; None for `data_file` or, without one, the demo's tasks."""

    def chosen_mixture(self, slot: int) -> Mixture:
        """The selected mixture of a model."""
        mixture: Mixture = self.mixtures[slot][self.chosen[slot]]
        return mixture

    @T.validate("slot")
    def _slot_is_there(self, proposal: Any) -> int:
        if proposal.value >= len(self.models):
            raise T.TraitError("slot 1 is the second model, but there is only one model: leave slot at 0")
        return int(proposal.value)

    @T.validate("chosen")
    def _mixtures_are_there(self, proposal: Any) -> list[int]:
        if len(proposal.value) != len(self.models):
            raise T.TraitError(
                f"chosen must name one mixture per model, {len(self.models)} in all, got {proposal.value}"
            )
        for letter, index, mixtures in zip("AB", proposal.value, self.mixtures, strict=False):
            if index >= len(mixtures):
                raise T.TraitError(
                    f"chosen must be in 0..{len(mixtures) - 1} for the mixtures of {letter}, got {index}"
                )
        return list(proposal.value)

    @T.validate("dataset", "problems")
    def _examples_are_a_list(self, proposal: Any) -> Any:
        value = proposal.value
        if value is not None and (isinstance(value, str | Mapping) or not isinstance(value, Iterable)):
            raise T.TraitError(
                f"{proposal.trait.name} must be a list of examples or None, got {value!r:.60}: "
                "demo_problems() and read_problems(...) return one"
            )
        return value


class MixturePanel(MixtureOptions, Panel):
    """Base of the panels on the mixtures of a model."""

    title: ClassVar[str] = "Mixture of depths"

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        if len(self.models) == 2 and self.models[0] is self.models[1]:
            raise ValueError("both models are the same object, which has one list of mixtures: load the model twice")
        mixtures = tuple(opened_on(model) for model in self.models)
        k = min(USUAL_K, *(int(getattr(model, "n_layers", USUAL_K)) for model in self.models))
        # with a tuning option as keyword, start on the untrained mixture
        tuning = {
            "k",
            "top_k",
            "distill",
            "lora",
            "rank",
            "lora_layers",
            "batch_size",
            "learning_rate",
            "seed",
        } & keywords
        chosen = [0 if tuning else len(mixtures_of_model) - 1 for mixtures_of_model in mixtures]
        options = {"mixtures": mixtures, "chosen": chosen, "k": k, **mixtures[0][chosen[0]].options}
        return super().defaults(keywords) | {name: value for name, value in options.items() if name not in keywords}

    # the mixtures -----------------------------------------------------------------------------------------------------

    def add(self, slot: int, mixture: Mixture, *, adopt: bool = False) -> None:
        """Append a mixture to the list and select it."""
        others = self.mixtures[slot]
        names, stem, number = {other.name for other in others}, mixture.name, 1
        while mixture.name in names:
            number += 1
            mixture.name = f"{stem} ({number})"
        with self.batch_changes():
            self.mixtures = _changed(self.mixtures, slot, (*others, mixture))
            self.select_mixture(slot, len(others), adopt=adopt)

    def forget(self, slot: int) -> None:
        """Remove the selected mixture, which frees its weights, and select the one before it.

        ValueError for the first one, which the viewer was opened on.
        """
        mixtures, mixture = self.mixtures[slot], self.chosen_mixture(slot)
        if mixture is mixtures[0]:
            raise ValueError(
                f"“{mixture.name}”, on which the viewer was opened, cannot be removed: select another mixture"
            )
        with self.batch_changes():
            self.select_mixture(slot, mixtures.index(mixture) - 1)
            self.mixtures = _changed(self.mixtures, slot, tuple(other for other in mixtures if other is not mixture))

    def select_mixture(self, slot: int, index: int, *, adopt: bool = False) -> None:
        """Select a mixture; `adopt` sets the options to those it was tuned with, for Resume."""
        with self.batch_changes():
            self.chosen = list(_changed(self.chosen, slot, index))
            for name, value in (self.chosen_mixture(slot).options if adopt and slot == self.slot else {}).items():
                setattr(self, name, value)

    def key(self, slot: int) -> Any:
        """The key of the selected mixture in a request; ValueError if it cannot be made."""
        mixture = self.chosen_mixture(slot)
        if mixture.model is not None:
            return mixture.identity, mixture.model.top_k
        if mixture.state is not None:
            return mixture.identity, mixture.state.top_k
        self.check_numbers(slot)
        return Untrained(self.k, self.top_k or self.k, self.seed)

    def by_key(self, slot: int, key: Any) -> ModModel | None:
        """The model of this key, if users can edit it: one that was passed, tuned or opened, or a shipped one that was
        changed; else None."""
        mixture = self.named_by(slot, key)
        return None if mixture is None or mixture.as_shipped else mixture.model

    def named_by(self, slot: int, key: Any) -> Mixture | None:
        """The mixture of this key; None for an untrained one, and for one that was removed."""
        if isinstance(key, Untrained):
            return None
        return next((mixture for mixture in self.mixtures[slot] if mixture.identity == key[0]), None)

    def model_of(self, slot: int, key: Any) -> ModModel:
        """The mixture that a request names; in the worker."""
        if isinstance(key, Untrained):
            made: ModModel = self.mixtures[slot][0].untrained(self.models[slot], key)
            return made
        mixture = self.named_by(slot, key)
        if mixture is None:
            raise ValueError("this mixture has been removed: select another one")
        return self.made(slot, mixture)

    def made(self, slot: int, mixture: Mixture) -> ModModel:
        """The model of a mixture; a shipped one is loaded now. In the worker."""
        if mixture.model is None and mixture.state is not None:
            check_as_loaded(self.models[slot], "the mixture that ships with it")
            mixture.put(self.read_folder(slot, mixture.folder))
        return mixture.trained

    def check_numbers(self, slot: int) -> None:
        """ValueError unless a model can have this many routes."""
        check_k(self.k, int(self.models[slot].n_layers))
        if self.top_k:
            check_top_k(self.top_k, self.k)

    def check_file(self, name: str) -> None:
        """`Incomplete` unless an option is empty or the path of a file."""
        path = getattr(self, name).strip()
        if path:
            with hint_at(name):
                existing_file(checked_path(path, "the path"), "problems")

    def base(self, slot: int) -> Model:
        """The base model to tune; in the worker. ValueError if unknown."""
        model = self.models[slot]
        return self.mixtures[slot][0].base() if isinstance(model, ModModel) else model

    def read_folder(self, slot: int, folder: str) -> ModModel:
        """A saved mixture, on this model; a different base is refused. In the worker."""
        if not is_mixture_folder(folder):
            raise ValueError(f"{folder} holds no mixture of depths: choose a folder that Save checkpoint wrote")
        model = self.models[slot]
        source = model.state.base if isinstance(model, ModModel) else model.source
        loaded = load_model(folder, device=model.device, dtype=model.dtype, backend=model.backend, base=source)
        return cast(ModModel, loaded)

    # what is learned --------------------------------------------------------------------------------------------------

    @property
    def learned(self) -> Examples:
        """The training data."""
        file = self.data_file.strip()
        return Examples("dataset", self.dataset, id(self.dataset), file, "train", self.examples, self.seed)

    # copied code ------------------------------------------------------------------------------------------------------

    def cell(self, lines: Sequence[str]) -> str:
        """A complete cell, with the imports that its lines need."""
        text = "\n".join(lines)
        used = {module: [name for name in names if f"{name}(" in text] for module, names in _MODULES.items()}
        imports = [f"from {module} import {', '.join(names)}" for module, names in used.items() if names]
        body = ["", *imports, "", *lines] if imports else ["", *lines]
        return cell([name for name in _PUBLIC if f"{name}(" in text], self.models, body)

    def variable(self, slot: int) -> str:
        """A model's variable in copied code."""
        return model_variables(self.models)[slot]

    def tuning_lines(self, slot: int, mixture: Mixture) -> list[str]:
        """The data and the call that tuned a mixture, from its stored settings."""
        settings, name = dict(mixture.trained.state.settings), self.variable(slot)
        lora = settings.get("lora")
        options = {key: settings[key] for key in ("k", "top_k", "distill", "batch_size", "learning_rate", "seed")}
        # includes the step at which a loss was NaN, before which the weights were taken
        options["steps"] = mixture.steps + (mixture.report is not None and mixture.report.stopped == "nan")
        if lora is not None:
            options |= {"lora": lora["rank"], "lora_layers": lora["layers"]}
        tuned = call("tune_mod", name, "dataset", **options)
        return [mixture.data or self.learned.line, f"{name}_mixture, report = {tuned}"]


def _changed(values: Sequence[Any], index: int, value: Any) -> tuple[Any, ...]:
    """The values with the one at an index replaced."""
    return (*values[:index], value, *values[index + 1 :])
