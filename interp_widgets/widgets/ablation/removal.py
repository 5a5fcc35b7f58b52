"""The base of the module and head maps: the replacement value, the metric, the picked part, its next tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import ipywidgets as W
import numpy as np
import traitlets as T

from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis.ablation import AblatedPrediction, ablated_prediction
from interp_widgets.analysis.ablation.map_results import beyond_in_words, p_of_difference
from interp_widgets.analysis.ablation.replacement import same_length
from interp_widgets.data.presets import PRESETS
from interp_widgets.figures.static import Scene
from interp_widgets.models import Model

from ..base import pair_view
from ..base.code import call, cell
from ..base.controls import ListOf, shown_if
from ..base.fields import Bounds, Lines, field, hint_at
from ..base.next_tokens import NextTokens
from ..base.prediction import Continued, Prediction, check_foil, checked
from ..base.request import Request, model_variables, result_variables
from ..base.workbench import in_model
from .ablation_spec import KINDS, AblationSpec, Listed, ReplacementValue, makers
from .maps import METRIC_NAMES, MapPanel, Maps, amount, clean_value

REPLACEMENT_LABELS = {
    "zero": "zero",
    "mean": "its mean over reference texts",
    "resample": "its value in a corrupted prompt",
}
METRIC_LABELS = {
    "log_prob": "log-probability",
    "probability": "probability",
    "logit": "logit of the target",
    "logit_difference": "logit difference",
    "kl": "KL divergence of all tokens",
}
FEWEST = 19
"""Random directions with which a p can be 0.05."""
COMPARED = 40
"""Cells that are compared with chance unless all are asked for."""
TOP = 10
"""Number of top tokens listed, before and after."""


@dataclass(frozen=True)
class NextTokenRequest:
    """The request for one picked part."""

    prediction: Prediction
    spec: AblationSpec

    def answer(self, model: Model, check: Any) -> AblatedPrediction:
        """Run it on one model."""
        ablation = self.spec.make(model, self.prediction, check=check)
        check()
        return ablated_prediction(model, self.prediction.read(model)[0], [ablation], top=min(TOP, model.d_vocab))


class AblatedTokens(NextTokens):
    """The next-token table of the picked part, and its buttons."""

    empty = "Click a cell of a map to list the next tokens with and without that part."

    def __init__(self, panel: Removal) -> None:
        self.add = panel.on_click(
            W.Button(description="Add to the list", tooltip="Combine it with other ablations"),
            lambda: panel.add_to_list(self._picked()),
        )
        self.generate = panel.on_click(
            W.Button(
                description="Generate without it", tooltip="Generate text with and without this part, side by side"
            ),
            lambda: panel.generate_without(self._picked()),
        )
        shown_if(self.generate, panel.stack is not None)
        super().__init__(panel, self.add, self.generate)

    def _picked(self) -> AblationSpec:
        spec: AblationSpec | None = self.panel.picked
        if spec is None:
            raise ValueError("no part is picked yet: click a cell of a map")
        return spec

    def request(self) -> NextTokenRequest | None:
        panel, spec = self.panel, self.panel.picked
        if spec is None or panel.shown_prediction is None:
            return None
        return NextTokenRequest(panel.shown_prediction, spec)

    def paint(self) -> None:
        self.add.disabled = self.generate.disabled = self.panel.picked is None
        super().paint()

    def caption(self, request: NextTokenRequest, predictions: tuple[AblatedPrediction, ...]) -> str:
        """The part, its effect in the maps, and the change of the distribution."""
        panel, spec, lines = self.panel, request.spec, []
        metric = getattr(panel.results[0], "metric", "kl") if panel.results else "kl"
        effects = panel.effects_shown(spec) or (float("nan"),) * len(predictions)
        for name, prediction, effect in zip(pair_view.names(panel), predictions, effects, strict=True):
            moved = ""
            if np.isfinite(effect) and metric != "kl":
                moved = f"{METRIC_NAMES[metric]} {'drops' if effect >= 0 else 'rises'} by {amount(abs(effect))}, "
            lines.append(f"{name}{': ' if name else ''}{moved}KL {amount(prediction.kl)} nats")
        return f"{spec.describe(panel.texts.axis)} – {'; '.join(lines)}"


class Removal(MapPanel):
    """Base of the panels that map the effect of removing parts of the model on a prediction."""

    foil = field(
        str, label="Foil", placeholder="one token", group="prediction",
        help="The token whose logit is subtracted from the target's",
        shown_if=lambda panel: panel.metric == "logit_difference",
        required="the logit difference needs a foil: type the token to compare the target with",
    )  # fmt: skip
    replacement = field(
        REPLACEMENT_LABELS, "zero", label="Replaced by", new_row=True, help="What a removed activation is replaced by"
    )
    metric = field(
        METRIC_LABELS, "log_prob", label="Measured", help="The metric: what is compared before and after removal"
    )
    corrupted = field(
        str, label="Corrupted prompt", placeholder="as many tokens as the prompt", width="grow",
        help="A prompt with the same number of tokens, from which replacement values are taken",
        shown_if=lambda panel: panel.replacement == "resample",
        required="there is no corrupted prompt yet: type one with as many tokens as the prompt",
    )  # fmt: skip
    reference = field(
        Annotated[list, Lines(3)], [example.prompt for example in PRESETS], label="Reference texts, one per line",
        width="grow", help="Texts to average over",
        shown_if=lambda panel: panel.replacement == "mean",
        required="the mean needs reference texts: type at least one, each on its own line",
    )  # fmt: skip
    null_draws = field(
        Annotated[int, Bounds(0, 199)], 0, label="Random directions", argument="draws", more=True, width="short",
        help="Compare cells with so many changes as long in random directions: 19 are the fewest that can tell; 0: do "
        "not compare",
    )  # fmt: skip
    null_cells = field(
        Annotated[int, Bounds(0, 100_000)], COMPARED, label="Of the strongest", argument="compared", more=True,
        width="short", shown_if=lambda panel: panel.null_draws > 0,
        help="Only so many cells with the largest effects are compared, each as often as there are random directions; "
        "0: all, which takes as many times as long as the map",
    )  # fmt: skip
    kind = field(T.Enum(("", *KINDS, "head"), default_value=""), selects=True)
    """The picked part: a module or ``head`` of the selected layer; empty for none."""
    head = field(in_model(), selects=True)
    """The selected head."""
    ablations = field(ListOf(Listed), argument=None)
    """The list of ablations applied together during generation, as :class:`Listed`."""

    preset_fields = ("foil", "corrupted")

    def build(self) -> None:
        self.inputs.children = [*self.text_inputs(), *self.controls.rows()]
        self.maps = self.make_maps()
        self.words = W.HTML("")
        self.words.add_class("iw-after")
        shown_if(self.words, False)
        self.chance_button = self.on_click(
            W.Button(
                description="Compare cells with chance",
                tooltip=f"Compute the {COMPARED} strongest cells {FEWEST} times with changes in random directions",
                layout=W.Layout(align_self="flex-start"),
            ),
            partial(self._compare_with_chance, COMPARED),
        )
        self.all_button = self.on_click(
            W.Button(
                description="Compare all cells", tooltip="Compute the whole map again for every random direction",
                layout=W.Layout(align_self="flex-start"),
            ),
            partial(self._compare_with_chance, 0),
        )  # fmt: skip
        self.picture_buttons = (self.chance_button, self.all_button)
        for button in self.picture_buttons:
            shown_if(button, False)
        self.next_token = AblatedTokens(self)
        said = [self.words, *self.picture_buttons]
        above, below = (said, []) if self.screen is None else ([], said)
        self.plot.children = [*above, self.maps.grid]
        self.details.children = [*below, self.next_token.box]

    # to fill in -------------------------------------------------------------------------------------------------------

    def make_maps(self) -> Maps:
        """The maps, before there is a result."""
        raise NotImplementedError

    def effect_of(self, spec: AblationSpec) -> tuple[float, ...]:
        """The effect of removing a part, according to the maps, per model; NaN if unknown."""
        raise NotImplementedError

    @property
    def picked(self) -> AblationSpec | None:
        """The picked part as an ablation; None if no cell is picked."""
        raise NotImplementedError

    # what the panel asks for ------------------------------------------------------------------------------------------

    def request(self) -> Request:
        request: Request = super().request()
        prediction, model = self.prediction(), self.models[0]
        if self.metric == "logit_difference":
            with hint_at("foil"):
                check_foil(prediction, model, self.foil)
        if self.replacement == "resample":
            own, texts = checked(prediction, model), Continued(self.corrupted, prediction)
            with hint_at("corrupted"):
                other = read_prompt(model, texts.read_by(model), what="corrupted prompt")
                same_length(own, other, "the corrupted prompt")
        for text in self.reference if self.replacement == "mean" else ():
            with hint_at("reference"):
                read_prompt(model, text, what="reference text")
        return request

    def arguments(self) -> dict[str, Any]:
        arguments = super().arguments()
        if "corrupted" in arguments:
            arguments["corrupted"] = Continued(self.corrupted, self.prediction())
        if not self.null_draws:
            del arguments["draws"]
        if not self.null_cells:
            arguments.pop("compared", None)
        return arguments

    @property
    def shown_prediction(self) -> Prediction | None:
        """The prediction that the maps on the screen are about."""
        return None if self.shown_request is None else self.shown_request.inputs[0].prediction

    @property
    def replacement_value(self) -> ReplacementValue:
        """The replacement value in the maps on the screen."""
        options = dict(self.shown_request.arguments)
        corrupted = options["corrupted"].prompt if "corrupted" in options else ""
        return ReplacementValue(options["replacement"], options.get("reference", ()), corrupted)

    # what is on the screen --------------------------------------------------------------------------------------------

    def draw_words(self, strongest: str) -> None:
        """Show the metric, the largest effects, and which are beyond chance."""
        self.words.value = "<br>".join([clean_value(self, self.results), strongest, *self.chance_lines()])
        shown_if(self.words, True)
        shown_if(self.chance_button, not self.null_draws)
        shown_if(self.all_button, any(result.p is not None and np.isnan(result.p).any() for result in self.results))

    def _compare_with_chance(self, cells: int) -> None:
        with self.without_rerun():
            self.null_draws, self.null_cells = self.null_draws or FEWEST, cells
        self.go()

    def chance_lines(self) -> list[str]:
        """Which cells are beyond chance, or that they were not compared, as HTML lines."""
        chance = "Not compared with chance yet: changes as long in random directions may do as much."
        share = min(1.0, COMPARED / max(1, self.results[0].effect.size))
        longer = f"{chance} Comparing the strongest cells takes about {1 + FEWEST * share:.2g} times as long."
        return self.compared_lines() or [longer]

    def compared_lines(self) -> list[str]:
        """Which cells are beyond chance, as HTML lines; none where they were not compared."""
        if not self.null_draws:
            return []
        if any(result.null is None for result in self.results):
            return ["The changes as long in random directions are not computed yet."]
        lines = [letter + result.in_words() for letter, result in
                 zip(pair_view.letters(self.results), self.results, strict=True)]  # fmt: skip
        if self.shown == "difference" and (p := p_of_difference(*self.results)) is not None:
            lines.append(f"B − A: {beyond_in_words(p, len(self.results[0].null))}")
        return [f"{line}; the others have no colour." for line in lines]

    def p_of(self, view: str) -> Any:
        """The p of the cells of a view, shaped as the effect; None where it was not compared with chance."""
        shown = [self.results[index] for index in pair_view.models_of(view)]
        return shown[0].p if len(shown) == 1 else p_of_difference(*shown)

    def draw_selection(self) -> None:
        self.next_token.paint()

    def effects_shown(self, spec: AblationSpec) -> tuple[float, ...]:
        """The effect of removing a part, per model in view."""
        if len(self.results) < len(self.models):
            return ()
        effects = self.effect_of(spec)
        return tuple(effects[index] for index in pair_view.shown_indices(self))

    # the list ---------------------------------------------------------------------------------------------------------

    def add_to_list(self, spec: AblationSpec) -> None:
        """Append an ablation to the list; ValueError if it is in the list already."""
        if any(listed.picked == spec for listed in self.ablations):
            raise ValueError(f"{spec.describe(self.texts.axis)}, is in the list already")
        self.ablations = (*self.ablations, Listed(spec))

    def generate_without(self, spec: AblationSpec) -> None:
        """Open the Text tab with only this ablation switched on."""
        others = tuple(replace(listed, on=False) for listed in self.ablations if listed.picked != spec)
        self.stack.open_tab("text", ablations=(*others, Listed(spec)))

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Request) -> str:
        picked, imports, lines = self.picked, [request.method], request.lines(self.models)
        if picked is not None:
            name, prediction = model_variables(self.models)[0 if self.view == "A" else -1], request.inputs[0].prediction
            without = picked.code(name, prediction)
            table = call("ablated_prediction", name, prediction.code(name)[1], "without", top=TOP)
            lines += ["", *makers([picked]), f"without = {without}", f"next_tokens = {table}", ""]
            imports += ["Ablation", "ablated_prediction"]
        return cell(imports, self.models, [*lines, f"{result_variables(self.models)[-1]}.to_frame()"])

    def scene(self) -> Scene:
        return self.maps.scene()
