"""The base of every panel: one question to one model or two, asked in the background, and its answer on the screen.

A subclass declares its options, each by one `field`, and fills in the hooks below; it never touches threads, locks, the
cache or the status line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import ipywidgets as W
import traitlets as T

from interp_widgets.models import Model

from ...analysis._core.prompts import UnfitText
from ...compute.memory import Cost, Forecast, budget
from ...compute.worker import Cancelled, Progress, State
from ..views import TokenStrip
from . import tidy
from .answers import Answers, Outcome, device_of
from .code import CodeBox
from .controls import row, shown_if
from .fields import Controls, Field, Incomplete, Refused
from .guard import guard, handling, inside_handler, ui_lock
from .heading import edits_of, heading, view_options
from .jobs import Jobs
from .request import FromModel, Request
from .saving import SaveMenu, save
from .shell import Shell, column
from .status import StatusLine
from .words import Words
from .workbench import WorkbenchState, model_name

FIRST_SECONDS = 1.0
"""The first run is done before the panel appears if it takes less,"""
FIRST_BACKGROUND_SECONDS = 300.0
"""and starts in the background if it takes less than this."""
MOST_BESIDE = 32
"""Most columns of a map that leaves room for what is at its side."""
WAITING = "Waiting for a setting: see the hint beside it"
"""What the status line says of a setting that is not filled in."""


class Panel(Shell):
    """Base class of the widgets. `Panel(model)`, `Panel(base, tuned)`, `Panel(pair)` or `Panel(workbench)`.

    Hooks to fill in, in the order in which they are called:

    - `defaults(given)`: what to start with where the user and the workbench say nothing;
    - `build()`: make views and put them into `self.plot` and `self.details`, and other controls than those of the
      fields into `self.inputs`;
    - `request()`: what to compute, as a frozen, hashable object, read from the fields; ValueError if it cannot be done.
      Of a panel with an `analysis` it is the call of that, with the fields as its arguments;
    - `cost(request, model)`: an object with `.flops` and `.bytes`, for the forecast; usually `request.cost(model)`;
    - `depends_on(request, model)`: other models that a result depends on, so that it is kept for those only;
    - `compute(request, model, progress=, check=, on_partial=)`: the result; runs in the worker, must not touch widgets;
      usually `request.answer(model, progress=, check=, on_partial=)`;
    - `choices()`: how many or which there are of what a field that `chooses` chooses from, in the results;
    - `draw(results, request)`: show one result per model (fewer while a run of two is under way), and
      `draw_selection()`: mark and list what is selected in them;
    - `code(request)`, `frame()`, `scene()`, `stored()`: for *Copy as code* and *Save*; without them the button or the
      format is not offered.

    For a button that runs something else in the background, use `self.jobs.start`. A panel that only computes on such
    buttons has no question of its own (`asks = False`): it has no Run, and its `refresh` brings up to the inputs what
    it says about them, such as forecasts. A whole panel:

    Example:
        >>> from ipywidgets import Label
        >>> def count(model, *, prompt, times):
        ...     return times * len(model.tokens(prompt))
        >>> class Counter(Panel):
        ...     title, analysis = "Tokens", staticmethod(count)
        ...     prompt = field(str, label="Prompt", required="type a prompt")
        ...     times = field(int, 1, label="Times")
        ...     def build(self):
        ...         super().build()
        ...         self.label = Label()
        ...         self.plot.children = [self.label]
        ...     def draw(self, results, request):
        ...         self.label.value = f"{results[0]} tokens"
        >>> panel = Counter(model, prompt="Paris is in", times=2)
        >>> panel, panel.result, panel.label.value
        (Counter(demo-base), 10, '10 tokens')
        >>> panel.close()
    """

    analysis: ClassVar[Callable[..., Any] | None] = None
    """The function ``f(model, ...)`` that the panel asks, where its fields are the arguments of one."""
    asks: ClassVar[bool] = True
    """Whether it has a question of its own, which Run asks."""
    of_both: ClassVar[tuple[str, ...]] = ("difference",)
    """Views of two models besides A and B: ``difference``, ``beside`` or both; empty: the panel is about both models,
    and there are no views."""
    waits: ClassVar[bool] = False
    """Whether it computes only when Run is pressed, however quick that is forecast to be."""
    cached_as: ClassVar[str] = ""
    """Panels of one name take each other's answers from the cache; empty: those of one class."""
    reuses: ClassVar[bool] = True
    """Whether Run takes an answer that was computed before; without, it computes anew, as a measurement should."""
    gives_way: ClassVar[bool] = False
    """Whether runs of other panels go first whenever its analysis reports progress: for minutes of work in steps that
    share nothing with them."""

    result = T.Any(None, read_only=True)
    """The last good result (a tuple of two with two models); None before the first."""

    def __init__(
        self,
        model: Model,
        tuned: Any = None,
        *,
        workbench: WorkbenchState | None = None,
        stack: Any = None,
        screen: Any = None,
        **traits: Any,
    ) -> None:
        self.stack = stack
        """The stack that the panel is a tab of; None for a panel by itself."""
        self.results: tuple[Any, ...] = ()
        """The results on the screen, one per model."""
        self.jobs, self.answers = Jobs(self), Answers(self)
        self.usual: dict[str, Any] = {}
        """What it starts with where the user and the workbench say nothing."""
        self.active = stack is None and screen is None
        """Whether the panel can be seen; one that cannot answers when it is."""
        self._shown: Outcome | None = None
        self._good: Outcome | None = None
        self._drawn: Outcome | None = None
        self._pending: Hashable = None
        self._run_failed = False
        self._error = ""
        self._opened = False
        self._holds = self._settled = 0
        self._due: set[str] = set()
        self._changed: set[str] = set()
        self._with_side: W.HBox | None = None
        self._behind = False  # the results on the screen answer other settings
        self._accepted: dict[str, Any] = {}
        self._refused: Refused | None = None
        self._asked: dict[str, str] = {}
        super().__init__(model, tuned, workbench, traits, screen)
        try:
            self._asked_for = {
                name: traits[name] for name, one in self.fields().items() if one.chooses and name in traits
            }
            self.usual = self.defaults({*traits, *self.workbench.given})
            for name, value in {**self.usual, **traits}.items():
                setattr(self, name, value)
            if stack is None:  # the stack is on the workbench for all its panels
                self.workbench.join(self, given=traits)
                self.workbench.start(self)
            self._assemble()
            self._observe()
        except BaseException:
            self.close()
            raise
        if self.active:
            tidy.register(self)
            self.appear()

    # hooks ------------------------------------------------------------------------------------------------------------

    @classmethod
    def lacks(cls, models: tuple[Any, ...]) -> str:
        """What the models lack for the panel to be a tab, such as "two models"; empty where they fit."""
        return ""

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        """Values of traits that the panel starts with; `keywords` names those set by the user or on the workbench."""
        return {}

    def build(self) -> None:
        """Make controls and views and put them into `self.inputs`, `self.plot` and `self.details`."""
        self.inputs.children = self.controls.rows()

    def arguments(self) -> dict[str, Any]:
        """The arguments of the analysis: the fields whose controls are shown."""
        return {
            one.argument or name: getattr(self, name)
            for name, one in self.fields().items()
            if one.recomputes and (one.shown_if is None or one.shown_if(self))
        }

    def request(self) -> Any:
        """What to compute, read from the traits, as a frozen and hashable object; None for a panel without question."""
        if not self.asks:
            return None
        if self.analysis is None:
            raise NotImplementedError(f"{type(self).__name__} does not say what to compute")
        self.require()
        return Request.of(self.analysis, self.arguments())

    def prepare(self, request: Any) -> None:
        """Make ready what a run needs, outside the time that forecasts learn from; in the worker's thread."""

    def compute(
        self,
        request: Any,
        model: Model,
        *,
        progress: Callable[[int, int], None],
        check: Callable[[], None],
        on_partial: Callable[[Any], None],
    ) -> Any:
        """The result of a request on one model: what the request answers, unless a panel does it itself.

        Called in the worker's thread; must not touch widgets or traits.
        """
        if not hasattr(request, "answer"):
            raise NotImplementedError(f"{type(self).__name__} does not say how to compute")
        return request.answer(model, progress=progress, check=check, on_partial=on_partial)

    def cost(self, request: Any, model: Model) -> Cost | None:
        """What a request takes on one model: what it says itself; None if it is always quick."""
        cost: Cost | None = request.cost(model) if hasattr(request, "cost") else None
        return cost

    def forecast_on(self, request: Any, model: Model) -> Forecast:
        """Time and memory that a request will take on one model, where its result is not in the cache."""
        return self.answers.measured(request, model)

    def asked_of(self, request: Any, model: Model) -> Hashable:
        """What of a request one model is asked, where each is asked something else: its result is kept for that."""
        question: Hashable = request
        return question

    def depends_on(self, request: Any, model: Model) -> tuple[Any, ...]:
        """Other models that a model's result depends on too: those that find arguments, such as the one that writes."""
        values = request.values if isinstance(request, Request) else ()
        return tuple(self.models[value.index] for value in values if isinstance(value, FromModel))

    def draw(self, results: tuple[Any, ...], request: Any) -> None:
        """Show the results, one per model; `self.shown` says which of them is looked at."""

    def draw_selection(self) -> None:
        """Show what is selected, after `draw` and whenever a field that `selects` changes."""

    def in_words(self) -> Words | None:
        """What is selected, in words, for the side of a workbench's screen; None where there is nothing to say."""
        return None

    def shade_texts(self, prompt: TokenStrip, response: TokenStrip) -> bool:
        """Shade the tokens above all panels of a screen by what is selected; False where they stay as they are."""
        return False

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        """For traits that choose: how many or which ones the results on the screen have, and what to call them."""
        return {}

    def check_chosen(self) -> None:
        """Raise `Refused` for a choice, such as a component, that the results on the screen do not have."""
        for name, (there, what) in self.choices().items():
            if name not in self._asked_for and name not in self._changed:
                continue  # chosen in results before
            value = self._asked_for.get(name, getattr(self, name))
            if isinstance(there, int):
                if value is not None and value >= there:
                    raise Refused(name, f"{name} must be in 0..{there - 1} for {what}, got {value}")
                continue
            for one in [value] if isinstance(value, str) else value:
                if one and one not in there:
                    raise Refused(name, f"{name} must be of {what}, got {one!r}: check how it is written")

    def code(self, request: Any) -> str:
        """A cell that reproduces the result without the widget."""
        if isinstance(request, Request):
            return request.code(self.models)
        raise NotImplementedError(f"{type(self).__name__} has no code to copy")

    def frame(self) -> Any:
        """The numbers on the screen as a table."""
        raise NotImplementedError(f"{type(self).__name__} has no table to save")

    def scene(self) -> Any:
        """The picture on the screen, as `figures.static` draws it."""
        raise NotImplementedError(f"{type(self).__name__} has no picture to save")

    def stored(self) -> Any:
        """The result on the screen, as a :class:`Result` that can be saved and opened again.

        Of two models that is the result of the one looked at, and of a view of both a `Results`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no result to save")

    def mark(self, *, stale: bool, forecast: str | None = None) -> None:
        """Dim a picture that is behind the inputs; with a forecast, light the Run button that waits to be pressed."""
        (self.plot.add_class if stale else self.plot.remove_class)("iw-stale")
        self.run_button.button_style = "" if forecast is None else "primary"
        self.forecast_label.value = forecast or ""
        (self.forecast_label.remove_class if forecast else self.forecast_label.add_class)("iw-hidden")

    # for subclasses ---------------------------------------------------------------------------------------------------

    @property
    def current_panel(self) -> Panel:
        """The panel that is looked at: itself, as no stack is."""
        return self

    @property
    def asked_models(self) -> tuple[Any, ...]:
        """The models that are asked one after the other, a result for each: all, unless one question is about both."""
        return self.models

    @property
    def shown(self) -> str:
        """What is looked at: `view`, but "A" as long as there is only one result."""
        return self.offered_view if len(self.results) > 1 else "A"

    @property
    def offered_view(self) -> str:
        """`view`; for a view of both models that the panel does not have, the first one that it has."""
        return self.view if self.view in ("A", "B", *self.of_both) else next(iter(self.of_both), "difference")

    @property
    def shown_request(self) -> Any:
        """The request that the picture on the screen answers; None before the first."""
        return None if self._shown is None else self._shown.request

    def arrange(
        self, plot: Sequence[Any], details: Sequence[Any] = (), *, spare: Sequence[Any] = (),
        beside: Sequence[Any] = (), width: int = 460,
    ) -> None:  # fmt: skip
        """Fill plot and details.

        What is `spare` stands below the plot, what is `beside` at the side of its last view, `width` pixels wide, where
        that leaves room for it; on a screen, where room is short, both are among the details.
        """
        if self.screen is not None:
            self.plot.children, self.details.children = plot, [*spare, *beside, *details]
            return
        if beside:
            side = column("iw-compact")
            side.children, side.layout.flex = beside, f"1 1 {width}px"
            self._with_side = row(plot[-1], side)
            self._with_side.add_class("iw-with-side")
            plot = [*plot[:-1], self._with_side]
        self.plot.children, self.details.children = [*plot, *spare], details

    def fit_side(self, columns: int) -> None:
        """Leave the whole width to a map of many columns: what is at its side goes below it."""
        if self._with_side is not None:
            (self._with_side.add_class if columns > MOST_BESIDE else self._with_side.remove_class)("iw-wide")

    def beside_run(self, controls: W.HBox) -> None:
        """Put a row of controls into the row of Run, in front of the status line."""
        *before, end = self.actions.children
        shown = [one for one in before if one is self.status]
        controls.add_class("iw-beside-run")
        self.actions.children = (*(one for one in before if one is not self.status), controls, *shown, end)

    def by_letter(self) -> dict[str, Any]:
        """The results looked at: of one model under no letter, else A, B, or both."""
        if len(self.models) == 1 or not self.results:
            return dict(zip([""], self.results, strict=False))
        letters = self.shown if self.shown in ("A", "B") else "AB"
        return {letter: self.results["AB".index(letter)] for letter in letters}

    def require(self, *names: str) -> None:
        """Raise `Incomplete` where a required field, of these or of all, is empty though its control is shown."""
        for name, one in self.fields().items():
            asked = one.shown_if is None or one.shown_if(self)
            if one.required and asked and (not names or name in names) and not getattr(self, name):
                raise Incomplete(name, one.required)

    def question(self) -> dict[str, str]:
        """What the picture on the screen answers, by the labels of the settings; the empty ones are left out."""
        drawn = self._settings(lambda one: one.redraws or one.selects or not (self.asks or one.recomputes))
        if len(self.asked_models) > 1 and self.of_both:
            options = view_options(self.models, self.of_both)
            drawn["View"] = next(label for label, value in options if value == self.shown)
        drawn["Edited"] = ", ".join(
            f"{model_name(model)}: {edits}" for model in self.models if (edits := edits_of(model))
        )
        return {label: text for label, text in {**self._asked, **drawn}.items() if text}

    def _settings(self, which: Callable[[Field], bool]) -> dict[str, str]:
        return {
            one.label.removesuffix(", one per line"): one.text(getattr(self, name))
            for name, one in self.fields().items()
            if one.label and which(one) and (one.shown_if is None or one.shown_if(self))
        }

    @contextmanager
    def hold(self) -> Iterator[None]:
        with handling():
            self._holds += 1
        try:
            yield
        finally:
            with handling():
                self._holds -= 1
                self._settle()

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Set inputs that the result on the screen answers already, such as a text the run wrote: no run follows."""
        with handling():
            self._settled += 1
            try:
                yield
            finally:
                self._settled -= 1

    @guard
    def refresh(self, limit: float | None = None) -> None:
        """Bring the picture up to the inputs: from the cache, by a run within the budget of `limit` seconds (None:
        `live_seconds`) and of memory, else light Run."""
        limit = self.live_seconds if limit is None else limit
        self._clear_hints()
        self._behind = True
        try:
            self._answer(limit)
        except Refused:
            raise  # the option has gone back to what is shown
        except Exception:
            self.mark(stale=True)
            raise

    def _answer(self, limit: float) -> None:
        request = self._question()
        if self._pending is not None and request == self._pending:
            return
        held = self.answers.held(request) if self.reuses or limit < float("inf") else None
        if held is not None:
            self.jobs.drop()
            self._show(held)
            return
        forecast = self.forecast(request)
        quick = forecast.seconds <= limit and forecast.bytes <= budget(device_of(self.models[0]))
        if limit == float("inf") or (quick and not self.waits):
            self.mark(stale=True)
            self._submit(request)
        else:
            self.jobs.drop()
            self._pending = None
            self.mark(stale=True, forecast=forecast.describe())
            self.status.waiting(forecast.describe(), first=self._shown is None)

    @guard
    def go(self) -> None:
        """Bring the picture up to the inputs, however long it takes: what the Run button does."""
        self.refresh(limit=float("inf"))

    def redraw(self) -> None:
        """Draw the results on the screen again, after a change that needs no run."""
        if self._shown is not None:
            self.draw(self._shown.results, self._shown.request)
            self._draw_selection()

    def _draw_selection(self) -> None:
        self.draw_selection()
        if self.screen is not None:
            self.screen.follow(self)

    def forget_results(self) -> None:
        """Let go of the results on the screen; a panel that does so clears its picture."""
        self._shown = self._good = self._drawn = None
        self.results = ()
        self.set_trait("result", None)

    @property
    def hints(self) -> dict[str, str]:
        """What is said beside controls that are not filled in, by their fields."""
        return {name: text for controls in self._all_controls() for name, text in controls.hints.items()}

    def show_error(self, error: BaseException) -> None:
        """Show an exception in the status line; a setting that is not filled in is a hint at its control."""
        with ui_lock:
            if self.closed:
                return
            if isinstance(error, UnfitText) and error.what in self.fields():
                error = Incomplete(error.what, str(error))
            if isinstance(error, Incomplete) and self._hint(error):
                self.status.idle(WAITING)
            else:
                self.status.failed(error)
                self._error = self.status.error

    def forget_error(self) -> None:
        """A setting has changed: what was said of it before is not so any more."""
        self._clear_hints()
        if self.status.text == WAITING:
            self.status.idle()
        self._refused = None
        self.forget_refusal()

    def forget_refusal(self) -> None:
        """What was said of a control or a button that has been used before is over. What a run said stays."""
        if self.status.error and self.status.error == self._error and not self._run_failed:
            self.status.idle()

    # for everyone -----------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a run of this panel is going on or waiting."""
        return self.jobs.busy

    def forecast(self, request: Hashable) -> Forecast:
        """Time and memory that a request will take on all models, without the results that are in the cache."""
        return self.answers.forecast(request)

    def run(self, *, fresh: bool = False) -> Any:
        """Compute what the inputs say, in the calling thread, draw it and return the result; errors are raised.

        `fresh` computes even if the result is in the cache. `Cancelled` is raised if something newer came in between.
        """
        if self.closed:
            raise RuntimeError(f"this {type(self).__name__} is closed: open a new one")
        if not self.asks:
            raise RuntimeError(f"{type(self).__name__} has no question that Run asks: press its buttons")
        try:
            request = self.request()
            outcome = self.jobs.owner().run(
                lambda job: self.answers.work(request, job, fresh=fresh or not self.reuses),
                wait=not inside_handler(),
                on_progress=self._progress,
                on_state=self._report,
                on_partial=self._put,
            )
            with handling():
                self._show(outcome)
        except Cancelled:
            raise
        except Exception as error:
            with handling():
                self._failed(error)
            raise
        return self.result

    def cancel(self) -> None:
        """Ask everything that this panel runs to stop; what is finished stays on the screen."""
        self.jobs.cancel()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing that this panel runs is left; False if `timeout` seconds passed first.

        For scripts and tests; raises RuntimeError in a handler, which the worker would wait for in turn.
        """
        return self.jobs.wait(timeout)

    def save(self, path: str | Path) -> Path:
        """Write the numbers (.csv, .parquet), the picture (.svg, .png), the panel (.html) or the result (.npz).

        The result is that of the tab and of the model looked at, with the difference of two models those of both; what
        has several parts is a `Results`. ``Result.load(path)`` opens it again, with every number as it was.
        """
        return save(self, path)

    def end(self) -> None:
        self.jobs.close()

    @guard
    def models_edited(self) -> None:
        super().models_edited()
        if self.asks:
            self.jobs.drop()  # what runs was asked of the models before
            self._pending = None
        self._due.add("refresh")
        self._settle()

    def hide(self) -> None:
        self.active = False

    def appear(self) -> None:
        self.active = True
        if self._opened:
            self._settle()
            return
        self._opened, self._due = True, set()
        if not self.asks:
            self.refresh()
            return
        try:
            seconds = self.forecast(self._question()).seconds
            quick = seconds <= FIRST_SECONDS and not self.waits and not self.above
            if quick and not self.jobs.owner().worker.busy and not inside_handler():
                self.run()
                return
        except KeyboardInterrupt:
            return  # the status line says that it was cancelled; the panel is there to try again
        except Exception as error:
            self.show_error(error)
            return
        self.refresh(limit=max(FIRST_BACKGROUND_SECONDS, float(self.live_seconds)))

    # inside: the layout -----------------------------------------------------------------------------------------------

    def _assemble(self) -> None:
        """Lay the panel out: title line, inputs, actions with the status line, plot, details."""
        above = self.screen if self.stack is None else self.stack
        shared = None if above is None else above.status_line
        self.shares_status = shared is not None
        """Whether other panels speak on the same status line."""
        self.status = StatusLine(on_cancel=self._cancelled_by_user) if shared is None else shared
        self.controls = Controls(self)
        self.inputs, self.plot, self.details = map(column, ("iw-inputs", "iw-plot", "iw-details"))
        self.run_button = self.on_click(W.Button(description="Run", tooltip="Compute what the inputs say"), self.go)
        shown_if(self.run_button, self.asks)
        self.forecast_label = W.HTML("")
        for name in ("iw-hint", "iw-hidden"):
            self.forecast_label.add_class(name)
        actions: list[Any] = [self.run_button, self.forecast_label]
        if len(self.asked_models) > 1 and self.asks and self.of_both and self.screen is None:
            views = W.ToggleButtons(options=view_options(self.models, self.of_both), value=self.offered_view)
            actions.append(self.bind(views, "view", write=lambda _: self.offered_view))
        self.code_box = CodeBox()
        self.save_menu = SaveMenu(self)
        take_away = [self.save_menu.button]
        if type(self).code is not Panel.code or self.analysis is not None:
            copy = W.Button(description="Copy as code", tooltip="A cell that reproduces the result without the widget")
            take_away.insert(0, self.on_click(copy, self._show_code))
        end = W.HBox(take_away)
        end.add_class("iw-end")
        self.heading = None if above is not None else W.HTML(heading(self.title, self.models))
        title = () if self.heading is None else (self.heading,)
        if self.screen is None:
            actions.append(self.status)
        else:
            actions.remove(self.run_button)
            end.children = (self.run_button, self._details_button(), *end.children)
        self.actions = W.HBox([*actions, end])
        self.actions.add_class("iw-row")
        self.children = (
            *title, self.inputs, self.actions, self.save_menu.row, self.code_box, self.plot, self.details,
        )  # fmt: skip
        self.build()

    def _details_button(self) -> W.ToggleButton:
        """On a screen, where room is short, what is below the picture is shown on demand."""
        button = W.ToggleButton(description="Details", tooltip="Tables and charts of what is selected in the picture")
        button.add_class("iw-more")
        shown_if(self.details, False)
        return self.watch(button, "value", lambda change: shown_if(self.details, change.new))

    def _observe(self) -> None:
        declared = self.fields()
        due = {
            self._selection_due: [name for name, one in declared.items() if one.selects],
            self._redraw_due: ["view", *(name for name, one in declared.items() if one.redraws)],
            self._refresh_due: [name for name, one in declared.items() if one.recomputes or not self.asks],
            self._chosen_due: [name for name, one in declared.items() if one.chooses],
        }
        for handler, names in due.items():
            if names:
                self.observe(handler, names)

    def _all_controls(self) -> tuple[Controls, ...]:
        """The panel's controls, and those of the stack and of the screen it is on."""
        return tuple(one.controls for one in (self, self.stack, self.screen) if one is not None)

    def _hint(self, missing: Incomplete) -> bool:
        return any(controls.hint(missing.name, str(missing)) for controls in self._all_controls())

    def _clear_hints(self) -> None:
        for controls in self._all_controls():
            controls.clear_hints()

    @guard
    def _cancelled_by_user(self) -> None:
        self.cancel()

    @guard
    def _show_code(self) -> None:
        self.code_box.show(self.code(self.request()))

    # inside: what a change makes due ----------------------------------------------------------------------------------

    @guard
    def _refresh_due(self, change: Any) -> None:
        if not self._settled:
            self._due.add("refresh")
            self._settle()

    @guard
    def _redraw_due(self, change: Any) -> None:
        self._due.add("redraw")
        self._settle()

    @guard
    def _selection_due(self, change: Any) -> None:
        self._due.add("selection")
        self._settle()

    @guard
    def _chosen_due(self, change: Any) -> None:
        self._changed.add(change.name)
        self._due.add("chosen")
        self._settle()

    @guard
    def _settle(self) -> None:
        """Do once what several changes have made due."""
        if self._holds or not self.active:
            return
        due, self._due = self._due, set()
        if not due:
            return
        self.forget_error()  # if it is still so, it comes back
        drawn = self._drawn
        if "redraw" in due and self._shown is None:
            due.add("refresh")  # there may be a result that could not be drawn as it was asked for
        if "refresh" in due:
            self.refresh()
        if "redraw" in due and self._drawn is drawn:
            self.redraw()
        elif "selection" in due and self._drawn is drawn:
            self._draw_selection()
        if "chosen" in due:
            self._check_chosen()

    @guard
    def _check_chosen(self) -> None:
        """Tell of a choice that the results do not have, once they are complete and up to the settings."""
        if self._good is None or self._shown is not self._good or self._behind:
            return
        names = {*self._asked_for, *self._changed}
        try:
            self.check_chosen()
        except Refused as refused:
            value = getattr(self, refused.name)
            self._changed.discard(refused.name)
            if self._asked_for.pop(refused.name, value) == value:  # else it has gone already
                self._put_back(refused.name)
            self._check_chosen()  # another one may be wrong too
            raise
        finally:
            self._asked_for, self._changed = {}, set()  # said once: what it was replaced by is on the screen
        self._accepted |= {name: getattr(self, name) for name in names}

    def _put_back(self, name: str) -> None:
        """Give an option whose value is refused the last one that was not, else the one that it starts with."""
        usual, value = self.traits()[name].default(self), getattr(self, name)
        kept = self._accepted.pop(name, usual)  # once: if that is refused by now, it is no answer
        setattr(self, name, usual if kept == value else kept)
        self.workbench.refused(name, getattr(self, name))

    # inside: the panel's question -------------------------------------------------------------------------------------

    def _question(self) -> Any:
        """The request; an option that it refuses goes back to what it had."""
        try:
            request = self.request()
        except Exception as error:
            self.jobs.drop()  # what runs is about inputs that have changed: its end must not cover the error
            self._pending = None
            self._restore()
            if isinstance(error, Refused):
                self._put_back(error.name)
                self._refused = error if self._pending is not None else None  # said again when that run has ended
            raise
        self._accepted |= {name: getattr(self, name) for name, one in self.fields().items() if one.recomputes}
        return request

    def _submit(self, request: Hashable) -> None:
        self.jobs.owner().submit(
            lambda job: self.answers.work(request, job, fresh=not self.reuses),
            on_result=self._show,
            on_error=self._failed,
            on_progress=self._progress,
            on_state=self._report,
            on_partial=self._show_partial,
            title=self.jobs.named("Computing"),
            gives_way=self.gives_way,
        )
        self._pending = request

    def _show(self, outcome: Outcome) -> None:
        """Draw a complete outcome and hold it as the last good one."""
        if self.closed:
            return
        self._pending = None
        began = time.monotonic()
        try:
            self._put(outcome)
        except Exception:
            self._restore()
            raise
        self._good = outcome
        self._run_failed = self._behind = False
        self.mark(stale=False)
        seconds = time.monotonic() - began if outcome.cached else outcome.seconds
        self.status.done(seconds, source=outcome.source, channel=self.jobs.on_line())
        if self._asked_for or self._changed:  # what was chosen in the results before is no error in these
            self._check_chosen()
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    def _show_partial(self, outcome: Outcome) -> None:
        self._put(outcome)

    def _put(self, outcome: Outcome) -> None:
        """Draw an outcome and hold it; if drawing fails, what was held before is held still."""
        before = self._shown, self.results
        self._shown, self.results, self._drawn = outcome, outcome.results, None
        try:
            self.draw(outcome.results, outcome.request)
            self._draw_selection()
        except BaseException:
            self._shown, self.results = before
            raise
        self._drawn = outcome
        self._asked = self._settings(lambda one: one.recomputes)
        self.set_trait("result", outcome.results[0] if len(self.asked_models) == 1 else outcome.results)

    def _restore(self) -> None:
        """After an error, show the last good outcome again if something else has touched the picture."""
        if self._good is not None and self._drawn is not self._good:
            self._put(self._good)

    def _failed(self, error: BaseException) -> None:
        self._pending = None
        self._run_failed = True
        self.status.forget(self.jobs.on_line())  # also where the run itself went well, and drawing did not
        self.show_error(error)
        self._restore()

    def _progress(self, progress: Progress) -> None:
        self.status.progress(progress, channel=self.jobs.on_line())

    def _report(self, state: State) -> None:
        if state in ("queued", "cancelled"):
            self._pending = None
        self.jobs.report(state, partial=self._shown is not None and self._shown.partial)
        if state == "cancelled" and not self.closed:
            self.mark(stale=True, forecast="")
