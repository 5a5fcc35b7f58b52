"""The ablation panel: what a prediction loses without a part of the model, live, of one model or two."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, cast

import ipywidgets as W

from interp_widgets.analysis._core.result import Result
from interp_widgets.data.presets import PRESETS
from interp_widgets.figures.static import Scene

from ..base.controls import shown_if
from ..base.fields import Bounds, Lines, Seed, field
from ..base.prediction import Prediction
from ..base.saving import as_one
from .ablation_spec import AblationSpec
from .cell import Cell
from .heads import HeadsTab
from .labels import METRIC_LABELS, REPLACEMENT_LABELS
from .maps import LETTERS
from .modules import ModulesTab
from .request import (
    HeadsRequest,
    ModulesRequest,
    Question,
    ReplacementValue,
    Request,
    TraceRequest,
    usual_window,
)
from .selection import Selecting
from .source import source
from .stack import Stack
from .tracing import TracingTab

TABS = ("modules", "heads", "tracing")


class AblationPanel(Selecting):
    """Which parts of the model a prediction needs: maps of attention, MLPs and heads taken out, and causal tracing.

    *Modules*: four maps, layer × position, of attention, MLP, both, and attention as the MLP reads it. *Heads*:
    layer × head. *Tracing*: which clean states bring the answer back under a corrupted subject. A click on a cell of
    the first two lists the next token with and without that part; ablations can be listed and switched on together
    while the model writes.

    ``AblationPanel(model)``, ``(base, tuned)``, ``(pair)`` or, to share prompt and selection with other widgets,
    ``(workbench)``. Every trait below is a keyword too. `run()` computes the tab that is looked at and returns its
    :class:`AblationResult`, :class:`HeadAblationResult` or :class:`CausalTraceResult` (a pair of them with two models),
    which `result` keeps.

    Source: Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 4.1.1,
    Fig. 4.3; Locating and Editing Factual Associations in GPT (Meng et al. 2022), section 2.

    Example:
        >>> panel = AblationPanel(model, prompt="The Eiffel Tower is in the city of", tab="modules")
        >>> panel.run().of("mlp").shape
        (6, 8)
        >>> panel.close()
    """

    title: ClassVar[str] = "Ablation"
    tab = field({name: name.title() for name in TABS}, "modules")
    """The tab that is looked at: Run, Copy as code and Save are about it."""
    foil = field(
        str, label="Foil", placeholder="one token", group="prediction",
        help="The token whose logit is taken off the target's",
        shown_if=lambda panel: panel.shows_maps and panel.metric == "logit_difference",
        required="the logit difference needs a foil: type the token that the target is set against",
    )  # fmt: skip
    replacement = field(
        REPLACEMENT_LABELS, "zero", label="Replaced by", new_row=True, help="What removed values are replaced by",
        shown_if=lambda panel: panel.shows_maps,
    )  # fmt: skip
    metric = field(
        METRIC_LABELS, "logit", label="Measured", help="What of the next-token distribution is compared",
        shown_if=lambda panel: panel.shows_maps,
    )  # fmt: skip
    corrupted = field(
        str, label="Corrupted prompt", placeholder="as many tokens as the prompt", width="grow",
        help="A prompt of as many tokens to take values from",
        shown_if=lambda panel: panel.shows_maps and panel.replacement == "resample",
        required="there is no corrupted prompt yet: type one of as many tokens as the prompt",
    )  # fmt: skip
    reference = field(
        Annotated[list, Lines(3)], [one.prompt for one in PRESETS], label="Reference texts, one per line",
        new_row=True, width="grow", help="Texts to take the mean over",
        shown_if=lambda panel: panel.shows_maps and panel.replacement == "mean",
        required="the mean needs reference texts: write at least one, each on a line of its own",
    )  # fmt: skip
    color_range = field(
        Annotated[float, Bounds(0.05, 1.0, 0.05, slider=True, shown_as=".0%")], 1.0, label="Full colour at",
        new_row=True, redraws=True, help="Share of the largest effect from which on the colour is the strongest",
    )  # fmt: skip
    threshold = field(
        Annotated[float, Bounds(0.0, 1.0, 0.05, slider=True, shown_as=".0%")], 0.2, label="Numbers from", redraws=True,
        help="Share of the largest effect from which on a cell shows its number",
    )  # fmt: skip
    subject = field(str, label="Subject", placeholder="words of the prompt", group="tracing",
                    help="Words of the prompt that get the noise; their last occurrence counts")  # fmt: skip
    noise = field(
        Annotated[float, Bounds(0.0, 100.0, 0.5)], 3.0, label="Noise", group="tracing", width="short",
        help="Its standard deviation, in standard deviations of the token embeddings",
    )  # fmt: skip
    samples = field(
        Annotated[int, Bounds(1, 1000)], 10, label="Samples", group="tracing", width="short",
        help="How many times noise is drawn",
    )  # fmt: skip
    noise_seed = field(Seed, label="Seed", group="tracing", width="short", help="Seed of the noise")
    window = field(
        Annotated[int, Bounds(1, lambda panel: min(model.n_layers for model in panel.models))], 1, label="Window",
        group="tracing", width="short",
        help="Layers whose MLPs or attentions are put back together; a fifth of them unless given",
    )  # fmt: skip
    max_new_tokens = field(
        Annotated[int, Bounds(1, 4096)], 20, label="Most tokens", group="writing", width="short", argument=None,
        help="Most tokens that are written with ablations and without",
    )  # fmt: skip
    temperature = field(
        Annotated[float, Bounds(0.0, 10.0, 0.1)], 0.0, label="Temperature", group="writing", width="short",
        argument=None, help="0 writes the likeliest tokens, above 0 samples",
    )  # fmt: skip
    seed = field(
        Seed, label="Seed", group="writing", width="short", argument=None, help="Seed of the sampling",
        shown_if=lambda panel: panel.temperature > 0,
    )  # fmt: skip

    @property
    def shows_maps(self) -> bool:
        """Whether maps are looked at: tracing knows one metric, and noise in the place of a replacement."""
        return bool(self.tab != "tracing")

    def defaults(self, given: set[str]) -> dict[str, Any]:
        found = super().defaults(given)
        return found if "window" in given else found | {"window": usual_window(self.models)}

    # layout -----------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        self.inputs.children = [*self.text_inputs(), *self.controls.rows()]
        self._from_preset(None)
        self.modules, self.heads, self.tracing = ModulesTab(self), HeadsTab(self), TracingTab(self)
        self.tabs = W.Tab(
            [one.box for one in (self.modules, self.heads, self.tracing)], titles=[name.title() for name in TABS],
            selected_index=TABS.index(self.tab),
        )  # fmt: skip
        self.plot.children = [self.tabs]
        self.stack = Stack(self)
        self.cell = Cell(self)
        below = W.VBox([self.cell.box, self.stack.box])
        below.add_class("iw-maps")
        self.details.children = [below, self.stack.texts.box]
        self.watch(self.tabs, "selected_index", lambda change: setattr(self, "tab", TABS[change.new or 0]))
        self.watch(self, "tab", lambda _: self._open_tab())
        self.follow_selection()
        self._open_tab()

    def _open_tab(self) -> None:
        self.tabs.selected_index = TABS.index(self.tab)
        shown_if(self.details, self.tab != "tracing")  # a state put back is nothing to take out

    # what the panel asks for ------------------------------------------------------------------------------------------

    def request(self) -> Request:
        request = self._request()
        request.check(self.models[0])
        return request

    def _request(self) -> Request:
        prediction = self.prediction()
        if self.tab == "tracing":
            span, words = self.tracing.subject()
            return TraceRequest(
                prediction, span, self.noise, self.samples, self.noise_seed, self.window, words=words
            )  # fmt: skip
        self.require()
        foil = self.foil if self.metric == "logit_difference" else ""
        if self.tab == "heads":
            return HeadsRequest(prediction, self.metric, foil, self._replacement_value(), position=self.heads_at)
        return ModulesRequest(prediction, self.metric, foil, self._replacement_value())

    def _replacement_value(self) -> ReplacementValue:
        if self.replacement == "mean":
            return ReplacementValue("mean", reference=tuple(self.reference))
        if self.replacement == "resample":
            return ReplacementValue("resample", corrupted=self.corrupted)
        return ReplacementValue()

    def draw(self, results: tuple[Any, ...], request: Request) -> None:
        if isinstance(request, TraceRequest):
            self.tracing.paint(results)
        elif isinstance(request, HeadsRequest):
            self.heads.paint(results)
        else:
            self.modules.paint(results)
        self.cell.paint()

    # what is on the screen --------------------------------------------------------------------------------------------

    @property
    def drawn(self) -> Request | None:
        """What the maps on the screen answer; None before the first."""
        return None if self._shown is None else cast(Request, self._shown.request)

    @property
    def asked(self) -> Prediction | None:
        """The prediction that the maps on the screen are about."""
        return None if self.drawn is None else self.drawn.prediction

    @property
    def looked_at(self) -> tuple[Any, ...]:
        """The models that the view shows: one, or both in a difference."""
        return tuple(self.models[LETTERS.index(letter)] for letter in self._letters())

    @property
    def names(self) -> tuple[str, ...]:
        """What to call each model that is looked at: its letter, or nothing where there is only one."""
        return ("",) if len(self.models) == 1 else tuple(self._letters())

    def _letters(self) -> str:
        view = self.shown if self.results else self.view
        if len(self.models) == 1:
            return "A"
        return LETTERS if view == "difference" else view

    @property
    def spec(self) -> AblationSpec | None:
        """The picked part as an ablation; None if no cell is picked."""
        request = self.drawn
        if not isinstance(request, Question) or not self.kind:
            return None
        replacement_value = request.replacement_value
        if self.kind == "head":
            place = len(self.axis) - 1 if self.heads_at == -1 else self.heads_at
            return AblationSpec("head", self.layer, place, self.head, replacement_value)
        if self.position < 0:
            return None
        return AblationSpec(self.kind, self.layer, self.position, replacement_value=replacement_value)

    def effect_of(self, spec: AblationSpec) -> tuple[float, ...]:
        """What the maps on the screen say of a part, one number per model that is looked at; NaN if they do not."""
        request, found = self.drawn, (float("nan"),) * len(self.results)
        if len(self.results) < len(self.looked_at):
            return ()
        if isinstance(request, ModulesRequest) and spec.kind != "head" and spec.position is not None:
            found = self.modules.effect(spec.kind, spec.layer, spec.position)
        elif isinstance(request, HeadsRequest) and spec.kind == "head" and spec.head is not None:
            found = self.heads.effect(spec.layer, spec.head)
        return found if self.shown == "difference" else (found[LETTERS.index(self.shown)],)

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: Request) -> str:
        return source(self, request)

    def frame(self) -> Any:
        import pandas as pd

        self._shown_on_tab()
        frames = []
        for letter, result in zip(LETTERS, self.results, strict=False):
            table = result.to_frame()
            table.insert(0, "model", letter)
            frames.append(table)
        return pd.concat(frames, ignore_index=True)

    def stored(self) -> Result:
        self._shown_on_tab()
        return as_one(self.by_letter(), self.tab.title())

    def scene(self) -> Scene:
        self._shown_on_tab()
        tab: ModulesTab | HeadsTab | TracingTab = getattr(self, self.tab)
        return tab.scene()

    def _shown_on_tab(self) -> None:
        if self.drawn is None or self.drawn.method != self.tab:
            raise ValueError(f"there is nothing to save on the tab {self.tab.title()} yet: press Run first")
