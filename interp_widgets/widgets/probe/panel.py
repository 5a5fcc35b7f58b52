"""The panel of a probe: its options come from the function's parameters, its view from the return type."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import ipywidgets as W

from interp_widgets.analysis._core.comparing import pair_provenance
from interp_widgets.analysis._core.cost import Cost, pass_flops
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.result import Result
from interp_widgets.data.presets import PRESETS
from interp_widgets.figures.static import Scene
from interp_widgets.models import Model
from interp_widgets.models.circuits import CircuitCase

from ...compute.memory import Forecast
from ..base.fields import Incomplete
from ..base.request import File, Request
from ..base.saving import as_one
from ..views import TokenStrip
from .code import code_of
from .parameters import Parameter, read
from .prompt_panel import PromptPanel
from .ranking import ranking
from .views import ValueView, result_in_view

TAKEN = {
    "actions", "active", "answers", "closed", "code_box", "controls", "details", "forecast_label", "heading", "inputs",
    "jobs", "keywords", "menu", "models", "own_widgets", "picture", "picture_buttons", "plot", "results",
    "run_button", "save_row", "screen", "shares_status", "stack", "status", "terms_box", "usual", "workbench",
}  # fmt: skip
"""Reserved names, besides those of the panel's class."""


@dataclass(frozen=True)
class FirstRun(Forecast):
    """The forecast of a first run, whose time is unknown: long enough to go to the background."""

    seconds: float = 2.0
    bytes: int = 0

    def describe(self) -> str:
        """As text."""
        return "time unknown until the first run"


class ProbePanel(PromptPanel):
    """Base of the panels that `probe` makes from functions; ``panel.analysis(model, ...)`` calls the function."""

    analysis: ClassVar[Callable[..., Any]]
    """The function."""
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    """The parameters of the function that are options of the panel."""
    view_of: ClassVar[type[ValueView]] = ValueView
    """The view of the function's results."""
    cost_of: ClassVar[Any] = None
    """The function's own estimate of its FLOPs."""
    has_base: ClassVar[bool] = False
    """Whether a base class has fields for some of the function's arguments."""
    _timed: ClassVar[bool] = False

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        names = {parameter.name: parameter.trait for parameter in self.parameters}
        super().__init__(model, tuned, **{names.get(name, name): value for name, value in options.items()})

    @classmethod
    def ranks(cls, model: Model, case: CircuitCase) -> Any:
        """The parts of a circuit as the probe ranks them: with this it is a method of `circuit_scoreboard`."""
        return ranking(cls.__name__, cls.analysis, cls.parameters, model, case)

    # what the panel asks for ------------------------------------------------------------------------------------------

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for parameter in self.parameters:
            role, name, default = parameter.role, parameter.name, parameter.default
            size = role.size and min(getattr(model, role.size) for model in self.models)
            if size and parameter.has_default:  # clipped to the range of a smaller model
                values[parameter.trait] = max(0, min(default + size * (default < 0), size - 1))
            elif role.name == "Position":
                values[parameter.trait] = parameter.start
            elif role.name == "Prompt" and not parameter.has_default:
                values[parameter.trait] = PRESETS[0].prompt
            elif role.name == "Token" and not parameter.has_default and name in ("target", "foil"):
                values[parameter.trait] = getattr(PRESETS[0], name)
        if "prompt" in keywords:
            values = {name: value for name, value in values.items() if name not in ("target", "foil")}
        return {name: value for name, value in values.items() if name not in keywords}

    def build(self) -> None:
        about = (type(self).__doc__ or "").strip().splitlines()[:1]
        hints = [W.HTML(escape(line)) for line in about]
        for hint in hints:
            hint.add_class("iw-hint")
        rows = [row for group in ("texts", "position", "") for row in self.controls.rows(group)]
        self.inputs.children = [*hints, *rows]
        self.picture = self.view_of(self)
        self.plot.children = self.picture.parts
        if self.has_trait("prompt") and self.has_trait("prompt_token"):
            self.watch(self, "prompt", self._prompt_changed)

    def request(self) -> Request:
        self.require()
        arguments: dict[str, Any] = {}
        for parameter in self.parameters:
            value = getattr(self, parameter.trait)
            try:
                if parameter.role.name == "Prompt":
                    read_prompt(self.models[0], value)
                argument = read(parameter, value, self.models[0], self.read_text)
                arguments[parameter.name] = _file(value) if isinstance(argument, Path) else argument
            except ValueError as error:
                raise Incomplete(parameter.trait, str(error)) from error
        return Request.of(self.analysis, {**self._of_base(), **arguments})

    def _of_base(self) -> dict[str, Any]:
        """The arguments from the options of a base class."""
        if not self.has_base:
            return {}
        parameters = inspect.signature(self.analysis).parameters
        any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        return {name: value for name, value in self.arguments().items() if any_name or name in parameters}

    def compute(self, request: Request, model: Model, **reports: Any) -> Any:
        value = request.answer(model, **reports)
        type(self)._timed = True
        return value

    def cost(self, request: Request, model: Model) -> Cost | None:
        if (
            self.cost_of is None
        ):  # proportional to one forward pass over the texts, so that a longer prompt takes longer
            arguments, roles = dict(request.arguments), ("Prompt", "Response")
            texts = [arguments[parameter.name] for parameter in self.parameters if parameter.role.name in roles]
            length = max(1, sum(len(model.tokens(text)) for text in texts))
            return Cost(pass_flops(model, length, length), 0.0)
        cost = self.cost_of(model, **request.read_by(model)[1])
        return Cost(float(cost), 0.0) if isinstance(cost, (int, float)) else cost

    def forecast(self, request: Any) -> Forecast:
        forecast = super().forecast(request)
        return forecast if self._timed or self.cost_of is not None else FirstRun()

    # what it shows ----------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[Any, ...], request: Any) -> None:
        self.picture.paint(results, self.shown)

    def code(self, request: Request) -> str:
        return code_of(type(self), request, self.models)

    def _prompt_changed(self, _: Any) -> None:
        """Clear a selection that belongs to the old text."""
        self.prompt_token = next((one.start for one in self.parameters if one.trait == "prompt_token"), -1)


class ValuePanel(ProbePanel):
    """A probe whose results can be saved: all except those that return a Bokeh figure."""

    def scene(self) -> Scene:
        return self.picture.scene()

    def stored(self) -> Result:
        if self.shown != "difference":
            return as_one(self.by_letter())
        difference: Result = result_in_view(self.results, self.shown)
        return replace(difference, provenance=pair_provenance(*self.results))


def position_strip(trait: str) -> Callable[[Any], TokenStrip]:
    """Make the control of a position: the prompt's tokens, to click one."""

    def make(panel: ProbePanel) -> TokenStrip:
        strip = TokenStrip(label="Position", instruction="click a token; without one, the last is used", max_lines=3)

        def fill(_: Any = None) -> None:
            chosen, tokens = getattr(panel, trait), panel.prompt_tokens()
            strip.set_tokens(tokens)
            if 0 <= chosen < len(tokens):
                strip.selected = chosen

        fill()
        panel.watch(panel, "prompt", fill)
        return panel.bind(strip, trait, key="selected")

    return make


def _file(path: str) -> File:
    try:
        return File.at(path)
    except OSError as error:
        raise ValueError(f"there is no file {path}: check the path") from error
