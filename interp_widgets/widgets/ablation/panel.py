"""The ablation panel: what a prediction loses without a part of the model, live, of one model or two."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import ipywidgets as W
import traitlets as T

from interp_widgets.data.presets import PRESETS
from interp_widgets.figures.static import Scene

from ..base.controls import Number, shown_if
from ..base.prediction import Prediction, PredictionPanel
from .cell import Cell
from .controls import build_controls
from .heads import HeadsTab
from .maps import LETTERS
from .modules import ModulesTab
from .planned import Planned
from .request import (
    METRICS,
    REPLACEMENTS,
    Filler,
    HeadsRequest,
    ModulesRequest,
    Question,
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

    *Modules*: four maps, layer × position, of attention, MLP, both, and attention as the MLP reads it. *Heads*: layer ×
    head. *Tracing*: which clean states bring the answer back under a corrupted subject. A click on a cell of the first
    two lists the next token with and without that part; ablations can be listed and switched on together while the
    model writes.

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
    recompute_on: ClassVar[tuple[str, ...]] = (
        *PredictionPanel.prediction_traits, "tab", "metric", "foil", "replacement", "reference", "corrupted",
        "heads_at", "subject", "span", "noise", "samples", "noise_seed", "window",
    )  # fmt: skip
    redraw_on: ClassVar[tuple[str, ...]] = ("color_range", "threshold")

    tab = T.Enum(TABS, default_value="modules")
    """The tab that is looked at: Run, Copy as code and Save are about it."""
    metric = T.Enum(METRICS, default_value="logit")
    """What of the next-token distribution is compared."""
    foil = T.Unicode("")
    """The token the target is set against, for the metric ``logit_difference``."""
    replacement = T.Enum(REPLACEMENTS, default_value="zero")
    """What removed values are replaced by."""
    reference = T.List(T.Unicode(), default_value=[one.prompt for one in PRESETS])
    """Texts to take the mean over, for the replacement ``mean``."""
    corrupted = T.Unicode("")
    """A prompt of as many tokens to take values from, for the replacement ``resample``."""
    noise = Number(3.0, min=0.0, max=100.0)
    """Standard deviation of the noise, in standard deviations of the token embeddings."""
    samples = T.Int(10, min=1, max=1000)
    """How many times noise is drawn."""
    noise_seed = T.Int(0, min=0)
    """Seed of the noise."""
    window = T.Int(1, min=1)
    """Layers whose MLPs or attentions are put back together; a fifth of them unless given."""
    color_range = Number(1.0, min=0.05, max=1.0)
    """Share of the largest effect from which on the colour is the strongest."""
    threshold = Number(0.2, min=0.0, max=1.0)
    """Share of the largest effect from which on a cell shows its number."""
    max_new_tokens = T.Int(20, min=1, max=4096)
    """Most tokens that are written with ablations and without."""
    temperature = Number(0.0, min=0.0, max=10.0)
    """0 writes the likeliest tokens, above 0 samples."""
    seed = T.Int(0, min=0)
    """Seed of the sampling."""

    def defaults(self, given: set[str]) -> dict[str, Any]:
        found = super().defaults(given)
        return found if "window" in given else found | {"window": usual_window(self.models)}

    # layout -----------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        self.inputs.children = build_controls(self)
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
        if self.metric == "logit_difference" and not self.foil:
            raise ValueError("the logit difference needs a foil: type the token that the target is set against")
        foil = self.foil if self.metric == "logit_difference" else ""
        if self.tab == "heads":
            return HeadsRequest(prediction, self.metric, foil, self._filler(), position=self.heads_at)
        return ModulesRequest(prediction, self.metric, foil, self._filler())

    def _filler(self) -> Filler:
        if self.replacement == "mean":
            if not self.reference:
                raise ValueError("the mean needs reference texts: write at least one, each on a line of its own")
            return Filler("mean", reference=tuple(self.reference))
        if self.replacement == "resample":
            if not self.corrupted:
                raise ValueError("there is no corrupted prompt yet: type one of as many tokens as the prompt")
            return Filler("resample", corrupted=self.corrupted)
        return Filler()

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
    def planned(self) -> Planned | None:
        """The picked part as an ablation; None if no cell is picked."""
        request = self.drawn
        if not isinstance(request, Question) or not self.kind:
            return None
        filler = request.filler
        if self.kind == "head":
            place = len(self.axis) - 1 if self.heads_at == -1 else self.heads_at
            return Planned("head", self.layer, place, self.head, filler)
        return Planned(self.kind, self.layer, self.position, filler=filler) if self.position >= 0 else None

    def effect_of(self, planned: Planned) -> tuple[float, ...]:
        """What the maps on the screen say of a part, one number per model that is looked at; NaN if they do not."""
        request, found = self.drawn, (float("nan"),) * len(self.results)
        if len(self.results) < len(self.looked_at):
            return ()
        if isinstance(request, ModulesRequest) and planned.kind != "head" and planned.position is not None:
            found = self.modules.effect(planned.kind, planned.layer, planned.position)
        elif isinstance(request, HeadsRequest) and planned.kind == "head" and planned.head is not None:
            found = self.heads.effect(planned.layer, planned.head)
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

    def scene(self) -> Scene:
        self._shown_on_tab()
        tab: ModulesTab | HeadsTab | TracingTab = getattr(self, self.tab)
        return tab.scene()

    def _shown_on_tab(self) -> None:
        if self.drawn is None or self.drawn.method != self.tab:
            raise ValueError(f"there is nothing to save on the tab {self.tab.title()} yet: press Run first")
