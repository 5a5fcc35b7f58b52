"""The viewer of mixtures of depths: where each token's prediction is read from, and how a mixture is tuned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, cast

import ipywidgets as W
import traitlets as T

from interp_widgets.analysis.mixture_of_depths import RoutingResult, routing
from interp_widgets.compute.memory import Forecast
from interp_widgets.figures.static import Scene
from interp_widgets.models import ModModel

from ..base.controls import shown_if
from ..base.fields import Bounds, Seed, Text, field
from ..base.panel import FIRST_BACKGROUND_SECONDS, Panel
from ..base.saving import as_one
from .grid import GridTab, ks_box
from .inputs import fill_mixtures, mixture_boxes
from .request import TOP, Entry, Route
from .route import RouteTab
from .shelf import Shelf, curves_of, options_of
from .source import source
from .tune import TuneTab, base_box

PROMPT = "Instruction: Please name the capital of the country.\nInput: France\nResponse:"
TABS = ("route", "tune", "grid")
USUAL_K = 3
LORA_LABELS = {"last": "the last k layers", "below": "the layers below", "all": "all layers"}
_BUILD_SECONDS_PER_PARAMETER = 1e-8  # reading, hashing and converting the base once more


class MoDRoutingViewer(Panel):
    """Mixtures of depths: routes of every token, tuning with live curves, and what k, top-K and the parts are worth.

    *Route*: a map, token × route, of the router's weights, with each route's likeliest token; where routes disagree;
    up to which layer a token has to be computed; tokens per second. *Tune*: a router and norms for the last k layers
    of a frozen model, with or without LoRA, stopped and resumed at will. *Grid*: accuracy for every k and top-K, the
    two ablations, and the losses of late layers.

    ``MoDRoutingViewer(model)`` starts with an untrained mixture on the model, ``(mod_model)`` with the one given;
    ``(a, b)``, ``(pair)`` compare two; ``(workbench)`` shares prompt and token. Every trait below is a keyword too.
    `run()` computes the routing and returns a :class:`RoutingResult` (a pair of them with two models), which `result`
    keeps; `mixture` is the `ModModel` that is looked at and `report` how it was tuned.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 5.1.

    Example:
        >>> panel = MoDRoutingViewer(model, k=2, prompt="The Eiffel Tower is in the city of")
        >>> panel.run().weights.shape
        (8, 2)
        >>> panel.close()
    """

    title: ClassVar[str] = "Mixture of depths"
    tab = T.Enum(TABS, default_value="route")
    """The tab that is looked at: Copy as code and Save are about it."""
    prompt = field(Annotated[str, Text(3)], label="Prompt", width="grow", help="What the model reads")
    prompt_token = field(Annotated[int, Bounds(low=-1)], -1, chooses=True, argument=None)
    """The token that is looked at; -1 for the last."""
    chosen = field(T.List(T.Int(min=0)))
    """Per model, which of its mixtures is looked at: 0 is the untrained or given one."""
    routes = field(
        Annotated[int, Bounds(0, lambda panel: max(int(model.n_layers) for model in panel.models))],
        label="Routes per token", width="short", new_row=True,
        help="How many routes each token uses here, by the largest weights; 0: as many as it was tuned with",
    )  # fmt: skip
    slot = field(T.Int(0, min=0, max=1), label="Base model", group="tune", argument=None, control=base_box)
    """Which of two models is tuned and tried on the grid."""
    examples = field(
        Annotated[int, Bounds(1, lambda panel: 100_000)], 800, label="Demo tasks", group="tune", width="short",
        argument=None, help="How many of the demo's tasks are learned",
        shown_if=lambda panel: panel.dataset is None and not panel.data_file.strip(),
    )  # fmt: skip
    data_file = field(
        str, label="Data file", placeholder="empty: the demo's tasks; else .json or .jsonl", group="tune",
        width="grow", argument=None, help="A .json or .jsonl file of problems to learn",
        shown_if=lambda panel: panel.dataset is None,
    )  # fmt: skip
    k = field(
        Annotated[int, Bounds(1, lambda panel: 10_000)], USUAL_K, label="k", group="tune", width="short",
        new_row=True, help="Routes: the last k layers",
    )  # fmt: skip
    top_k = field(
        Annotated[int, Bounds(0, lambda panel: 10_000)], label="top-K (0: all)", group="tune", width="short",
        help="Routes that each token uses while tuning; 0: all k",
    )  # fmt: skip
    distill = field(
        Annotated[float, Bounds(0.0, step=1e-4)], 1e-4, label="λ", group="tune", width="short", argument=None,
        help="Weight of the distillation term: each earlier route's divergence from the last layer; 0 leaves it out",
    )  # fmt: skip
    lora = field(bool, label="LoRA", group="tune", argument=None, help="Whether adapters are tuned too")
    rank = field(
        Annotated[int, Bounds(1, lambda panel: 4096)], 8, label="rank", group="tune", width="short", argument=None,
        shown_if=lambda panel: panel.lora, help="Rank of the adapters",
    )  # fmt: skip
    lora_layers = field(
        LORA_LABELS, "last", label="on", group="tune", argument=None, shown_if=lambda panel: panel.lora,
        help="Which layers have adapters",
    )  # fmt: skip
    steps = field(
        Annotated[int, Bounds(1, lambda panel: 10_000_000)], 100, label="steps", group="tune", width="short",
        new_row=True, argument=None, help="In all, those before a resume included",
    )  # fmt: skip
    batch_size = field(
        Annotated[int, Bounds(1, lambda panel: 4096)], 16, label="batch", group="tune", width="short", argument=None,
        help="Examples per step",
    )  # fmt: skip
    learning_rate = field(
        Annotated[float, Bounds(step=1e-4)], 3e-4, label="learning rate", group="tune", width="short", argument=None,
        help="Of AdamW",
    )  # fmt: skip
    seed = field(
        Seed, label="seed", group="tune", width="short",
        help="Of the router's first weights, the adapters' and the order of the data",
    )  # fmt: skip
    dataset = T.Any(None)
    """Examples with prompt and response to learn; None for `data_file`, or without that the demo's tasks."""
    problems = T.Any(None)
    """Held-out problems of the grid; None for `problem_file`, or without that the demo's tasks."""
    grid_ks = field(
        T.List(T.Int(min=1), default_value=[1, 2, 3]), label="k", group="grid", width="short", argument=None,
        control=ks_box,
    )  # fmt: skip
    """Numbers of routes on the grid."""
    grid_steps = field(
        Annotated[int, Bounds(1, lambda panel: 10_000_000)], 40, label="steps per tuning", group="grid",
        width="short", argument=None, help="Steps of each tuning on the Grid tab",
    )  # fmt: skip
    grid_seeds = field(
        Annotated[int, Bounds(1, 20)], 1, label="seeds", group="grid", width="short", argument=None,
        help="Tunings per cell, each with a seed of its own; more than one give intervals",
    )  # fmt: skip
    n_problems = field(
        Annotated[int, Bounds(1, lambda panel: 100_000)], 20, label="held-out problems", group="grid", width="short",
        argument=None, help="How many of the held-out problems are tried",
    )  # fmt: skip
    problem_file = field(
        str, label="Problem file", placeholder="empty: the demo's tasks; else .json or .jsonl", group="grid",
        width="grow", argument=None, shown_if=lambda panel: panel.problems is None,
        help="A .json or .jsonl file of held-out problems",
    )  # fmt: skip

    mixture_boxes: list[Any]
    filling: bool

    def defaults(self, given: set[str]) -> dict[str, Any]:
        if len(self.models) == 2 and self.models[0] is self.models[1]:
            raise ValueError("both models are the same object, which has one list of mixtures: load the model twice")
        fewest = min(int(getattr(model, "n_layers", USUAL_K)) for model in self.models)
        found: dict[str, Any] = {"prompt": PROMPT, "chosen": [0] * len(self.models), "k": min(USUAL_K, fewest)}
        found["grid_ks"] = [k for k in (1, 2, 3) if k <= fewest]
        if isinstance(self.models[0], ModModel):
            found |= options_of(Entry("", self.models[0]))
        return {name: value for name, value in found.items() if name not in given}

    @T.validate("slot")
    def _slot_is_there(self, proposal: Any) -> int:
        if proposal.value >= len(self.models):
            raise T.TraitError("slot 1 is the second model, and there is one model only: leave slot at 0")
        return int(proposal.value)

    @T.validate("chosen")
    def _mixtures_are_there(self, proposal: Any) -> list[int]:
        held = [len(row) for row in self.shelf.rows] if hasattr(self, "shelf") else [1] * len(self.models)
        if len(proposal.value) != len(held):
            raise T.TraitError(f"chosen must name one mixture per model, {len(held)} in all, got {proposal.value}")
        for letter, place, count in zip("AB", proposal.value, held, strict=False):
            if place >= count:
                raise T.TraitError(f"chosen must be in 0..{count - 1} for the mixtures of {letter}, got {place}")
        return list(proposal.value)

    @T.validate("dataset", "problems")
    def _examples_are_a_list(self, proposal: Any) -> Any:
        given = proposal.value
        if given is not None and (isinstance(given, str | Mapping) or not isinstance(given, Iterable)):
            raise T.TraitError(
                f"{proposal.trait.name} must be a list of examples or None, got {given!r:.60}: "
                "demo_problems() or read_problems(...) gives some"
            )
        return given

    # layout -----------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        self.shelf = Shelf(self)
        self.filling = False
        self.mixture_boxes = mixture_boxes(self)
        hint = W.HTML("0: as tuned")
        hint.add_class("iw-hint")
        self.inputs.children = self.controls.rows(before={"routes": self.mixture_boxes}, after={"routes": [hint]})
        self.route, self.tune, self.grid = RouteTab(self), TuneTab(self), GridTab(self)
        self.tabs = W.Tab(
            [part.box for part in (self.route, self.tune, self.grid)], titles=[name.title() for name in TABS],
            selected_index=TABS.index(self.tab),
        )  # fmt: skip
        self.plot.children = [self.tabs]
        self.watch(self.tabs, "selected_index", lambda change: setattr(self, "tab", TABS[change.new or 0]))
        self.watch(self, "tab", lambda _: self._open_tab())
        self.watch(self, "prompt", lambda _: setattr(self, "prompt_token", -1))
        self.watch(self, "prompt_token", lambda _: self.route.paint_token())
        self.watch(self, ["chosen", "slot"], lambda _: self.mixtures_changed())
        self._open_tab()
        self.mixtures_changed()
        self.grid.fit()

    def _open_tab(self) -> None:
        self.tabs.selected_index = TABS.index(self.tab)
        for part in (self.inputs, self.run_button):
            shown_if(part, self.tab == "route")
        shown_if(self.forecast_label, self.tab == "route" and bool(self.forecast_label.value))

    def mark(self, *, stale: bool, forecast: str | None = None) -> None:
        """Dim the routes, which Run is about, and not the tabs of tunings."""
        super().mark(stale=stale, forecast=forecast)
        self.plot.remove_class("iw-stale")
        (self.route.box.add_class if stale else self.route.box.remove_class)("iw-stale")
        shown_if(self.forecast_label, self.tab == "route" and bool(forecast))

    def adopt(self, slot: int) -> None:
        """Set the options to those that the mixture looked at was tuned with, so that Resume goes on with them."""
        if slot == self.slot:
            for name, value in options_of(self.shelf.chosen(slot)).items():
                setattr(self, name, value)

    def follow(self) -> None:
        """Read the routes of a mixture that has just been tuned or opened, unless that takes long."""
        self.refresh(limit=FIRST_BACKGROUND_SECONDS)

    def mixtures_changed(self) -> None:
        """Another mixture is looked at, or there are more of them."""
        fill_mixtures(self)
        self.tune.paint()

    # what the panel asks for ------------------------------------------------------------------------------------------

    def request(self) -> Route:
        if not self.prompt:
            raise ValueError("the prompt is empty: type what the model should read")
        keys = tuple(self.shelf.key(slot) for slot in range(len(self.models)))
        for slot in range(len(self.models)):
            if self.routes > self.shelf.k(slot):
                k = self.shelf.k(slot)
                raise ValueError(
                    f"routes per token must be in 0..{k} for a mixture of {k} routes, got {self.routes}: 0 is as tuned"
                )
        return Route(self.prompt, self.routes, keys)

    def prepare(self, request: Route) -> None:
        for slot, key in enumerate(request.mixtures):
            self.shelf.prepare(slot, key)

    def compute(
        self,
        request: Route,
        model: Any,
        *,
        progress: Callable[[int, int], None],
        check: Callable[[], None],
        on_partial: Callable[[Any], None],
    ) -> RoutingResult:
        slot = self._slot_of(model)
        mixture = self.shelf.model(slot, request.mixtures[slot])
        return routing(
            mixture, request.prompt, top=min(TOP, mixture.d_vocab), top_k=request.routes or None,
            progress=progress, check=check,
        )  # fmt: skip

    def asked_of(self, request: Route, model: Any) -> Route:
        return replace(request, mixtures=(request.mixtures[self._slot_of(model)],))

    def depends_on(self, request: Route, model: Any) -> tuple[Any, ...]:
        slot = self._slot_of(model)
        return self.shelf.held(slot, request.mixtures[slot])

    def _slot_of(self, model: Any) -> int:
        return next(slot for slot, one in enumerate(self.models) if one is model)

    def cost(self, request: Route, model: Any) -> Any:
        return request.cost(model, self.shelf.k(self._slot_of(model)))

    def forecast_on(self, request: Route, model: Any) -> Forecast:
        slot = self._slot_of(model)
        found = super().forecast_on(request, model)
        if self.shelf.is_ready(slot, request.mixtures[slot]):
            return found
        seconds = _BUILD_SECONDS_PER_PARAMETER * float(getattr(model, "parameter_count", 0))
        return found + Forecast(seconds, 4 * int(getattr(model, "parameter_count", 0)))

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        return {"prompt_token": (max(one.n_positions for one in self.results), "the tokens of this prompt")}

    def draw(self, results: tuple[RoutingResult, ...], request: Route) -> None:
        self.route.paint()

    def cancel(self) -> None:
        """Stop what is running; a tuning keeps what it has learned so far."""
        self.tune.stop()
        self.jobs.cancel(but=["tune"])

    # what is on the screen --------------------------------------------------------------------------------------------

    @property
    def drawn(self) -> Route | None:
        """What the picture on the screen answers; None before the first."""
        return cast("Route | None", self.shown_request)

    @property
    def mixture(self) -> Any:
        """The `ModModel` that is looked at (of the model chosen by `slot`); None before an untrained one was made."""
        entry = self.shelf.chosen(self.slot)
        if entry.model is not None:
            return entry.model
        key = self.shelf.key(self.slot)
        return self.shelf.model(self.slot, key) if self.shelf.is_ready(self.slot, key) else None

    @property
    def report(self) -> Any:
        """The `ModReport` of the mixture that is looked at; None if it was not tuned here."""
        return self.shelf.chosen(self.slot).report

    @property
    def at(self) -> tuple[int, ...]:
        """Which models the view shows: one, or both in a difference."""
        return (0, 1) if self.shown == "difference" else ("AB".index(self.shown),)

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Route) -> str:
        return source(self, request)

    def frame(self) -> Any:
        import pandas as pd

        curves = curves_of(self.shelf.chosen(self.slot))
        if self.tab == "tune" and curves is not None:
            return curves.to_frame()
        if self.tab != "route":
            return self._tab_result().to_frame()
        frames = []
        for letter, result in zip("AB", self.results, strict=False):
            table = result.to_frame()
            table.insert(0, "model", letter)
            frames.append(table)
        return pd.concat(frames, ignore_index=True)

    def scene(self) -> Scene:
        part: RouteTab | TuneTab | GridTab = getattr(self, self.tab)
        return part.scene()

    def stored(self) -> Any:
        if self.tab != "route":
            return self._tab_result()
        return as_one(self.by_letter())

    def _tab_result(self) -> Any:
        found = self.report if self.tab == "tune" else self.grid.last
        if found is None and self.tab == "tune" and curves_of(self.shelf.chosen(self.slot)) is not None:
            raise ValueError("a checkpoint holds the curves of its tuning and no report: save them as CSV or Parquet")
        if found is None:
            what = "Tune" if self.tab == "tune" else "one of its buttons"
            raise ValueError(f"there is nothing to save on the tab {self.tab.title()} yet: press {what} first")
        return found
