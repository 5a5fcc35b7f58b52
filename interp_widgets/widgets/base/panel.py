"""The base of every panel: one analysis of one or two models, run in the background, and its result on the screen.

A subclass declares each option with `field` and implements the hooks below; it never touches threads, locks, the
cache or the status line.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import ipywidgets as W
import traitlets as T

from interp_widgets.models import Model
from interp_widgets.models.pair import distinct_names
from interp_widgets.models.state import State as ModelState
from interp_widgets.renamed import renamed

from ...analysis._core.prompts import PromptError
from ...analysis._core.result import Result
from ...arguments import message_of, short
from ...compute.memory import Cost, Forecast, budget
from ...compute.worker import Cancelled, Progress, State
from ..views import TokenStrip
from . import freshness, lifetime, pair_view
from .answers import Answers, Outcome, device_of
from .code import CodeBox
from .controls import in_words, row, shown_if
from .description import Description
from .fields import Bounds, Controls, Field, Incomplete, Refused
from .guard import guard, guarded, handling, inside_handler, ui_lock
from .heading import edits_of, heading, view_options
from .identity import state_now
from .jobs import Jobs
from .menu import Menu
from .request import FromModel, Request
from .saving import SaveRow, as_one, save
from .shell import Shell, column
from .status import WAITING, StatusLine
from .terms import TermsBox
from .workbench import WorkbenchState

FIRST_SECONDS = 1.0
"""The first run finishes before the panel appears if it takes less than this,"""
FIRST_BACKGROUND_SECONDS = 60.0
"""and starts in the background if it takes less than this."""
FIRST_PARTS_SECONDS = 15.0
"""A longer first run of a panel whose first parts are worth having ends by itself so many seconds after the first."""
MOST_BESIDE = 32
"""Most columns of a map that leaves room for widgets beside it."""
OLD_HOOKS = {
    "asks": "has_request", "waits": "manual_run", "gives_way": "preemptible", "lacks": "missing_requirement"
}  # fmt: skip
"""Names of hooks until the next release: a panel written with them would else be another panel without a word."""
DETAILS, TERMS = "Details", "Terms"
"""Entries of the menu that show what is below the picture, and what the words on the panel mean."""
MOVED = "The model has changed since: Run computes again"
"""Beside the Run button while the picture is about an earlier state of a model."""


@renamed(settled="without_rerun", fit_side="widen_map", beside_run="add_next_to_run")
class Panel(Shell):
    """Base class of the widgets. `Panel(model)`, `Panel(base, tuned)`, `Panel(pair)` or `Panel(workbench)`.

    Hooks to implement, in the order in which they are called:

    - `defaults(keywords)`: values to start with where the user and the workbench set none;
    - `build()`: make views and put them into `self.plot` and `self.details`, and controls other than those of the
      fields into `self.inputs`;
    - `request()`: what to compute, as a frozen, hashable object, read from the fields; ValueError if it cannot be done.
      For a panel with an `analysis` it is a call of that function, with the fields as its arguments;
    - `cost(request, model)`: an object with `.flops` and `.bytes`, for the forecast; usually `request.cost(model)`;
    - `depends_on(request, model)`: other models that a result depends on, which become part of its cache key;
    - `compute(request, model, progress=, check=, on_partial=)`: the result; runs in the worker, must not touch widgets;
      usually `request.answer(model, progress=, check=, on_partial=)`;
    - `choices()`: the valid values, in the results, of each field that is `validated_by_result`;
    - `draw(results, request)`: show one result per model (fewer while a run of two is under way), and
      `draw_selection()`: mark and list what is selected in them;
    - `code(request)` and `scene()`, for *Copy as code* and *Save*; the button or the format of a missing one is not
      offered;
    - `table_of(result)` and `parts_of(result)`: numbers and :class:`Result` objects to save, where a model's result is
      none; `frame()` and `stored()`, where they do not belong to one model each.

    For a button that runs something else in the background, use `self.jobs.start`. A panel that only computes on such
    buttons has no request of its own (`has_request = False`): it has no Run button, and its `refresh` updates whatever
    depends on the inputs, such as forecasts. A complete panel:

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
    """The function ``f(model, ...)`` that the panel calls, with its fields as arguments."""
    has_request: ClassVar[bool] = True
    """Whether it has a request of its own, which Run computes."""
    tab_name: ClassVar[str] = ""
    """Label of its tab in a stack; empty: the name under which the stack has it."""
    pair_views: ClassVar[tuple[str, ...]] = ("difference",)
    """Views of two models besides A and B: ``difference``, ``beside`` or both; empty: the panel always shows both
    models, and there is no choice of view."""
    manual_run: ClassVar[bool] = False
    """Whether it computes only when Run is pressed, however quick that is forecast to be."""
    cached_as: ClassVar[str] = ""
    """Panels with the same name share cached answers; empty: panels of the same class do."""
    reuses: ClassVar[bool] = True
    """Whether Run may use a cached answer; if not, it computes again, as a measurement should."""
    preemptible: ClassVar[bool] = False
    """Whether queued runs of other panels go first whenever its analysis reports progress: for work of minutes."""
    first_parts: ClassVar[str] = ""
    """What the first parts of its result are, in words, where they are a first picture worth having: it opens on them
    if the whole takes too long to start by itself."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for old in set(vars(cls)) & set(OLD_HOOKS):
            new = OLD_HOOKS[old]
            warnings.warn(f"{cls.__name__}.{old} is called {new} now: rename it", DeprecationWarning, stacklevel=2)
            setattr(cls, new, vars(cls)[old])

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
        self.picture_buttons: tuple[W.Button, ...] = ()
        """Buttons that go on from the picture, to compare it with chance; a screen has them beside the selection."""
        self.usual: dict[str, Any] = {}
        """Start values where the user and the workbench set none."""
        self.active = stack is None and screen is None
        """Whether the panel is visible; a hidden one responds to changes once it is shown."""
        self._shown: Outcome | None = None
        self._good: Outcome | None = None
        self._drawn: Outcome | None = None
        self._pending: Hashable = None
        self._waiting: Hashable = None
        self._corrected: Hashable = None
        self._run_failed = False
        self._first_parts = False  # the run under way is to end after its first parts,
        self._parts_until = float("inf")  # at this time
        self._error = ""
        self._opened = self._has_options = False
        self._batches = self._reruns_off = 0
        self._pending_changes: set[str] = set()
        self._changed: set[str] = set()
        self._with_side: W.HBox | None = None
        self._outdated = False  # the results on the screen answer other settings
        self._stale = self._model_moved = False  # or are dimmed, for that reason or because a model has changed since
        self._forecast: str | None = None
        self._accepted: dict[str, Any] = {}
        self._refused: Refused | None = None
        self._run_settings: dict[str, str] = {}
        with lifetime.making(self):
            super().__init__(model, tuned, workbench, traits, screen)
            self._chosen_at_start = {
                name: traits[name]
                for name, option in self.fields().items()
                if option.validated_by_result and name in traits
            }
            self.usual = self.defaults({*traits, *self.workbench.given})
            for name, value in {**self.usual, **traits}.items():
                setattr(self, name, value)
            if stack is None:  # the stack is on the workbench for all its panels
                self.workbench.join(self, given=traits)
                self.workbench.start(self)
            self._bound_options(traits)
            self._assemble()
            self._observe()
            freshness.follow(self)
        if self.active:
            lifetime.register(self)
            self.appear()

    # hooks ------------------------------------------------------------------------------------------------------------

    @classmethod
    def missing_requirement(cls, models: tuple[Any, ...]) -> str:
        """What is missing for the panel to be a tab, such as "two models"; empty if nothing is."""
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
            option.argument or name: getattr(self, name)
            for name, option in self.fields().items()
            if option.recomputes and (option.shown_if is None or option.shown_if(self))
        }

    def request(self) -> Any:
        """What to compute, read from the traits, as a frozen, hashable object; None without `has_request`."""
        if not self.has_request:
            return None
        if self.analysis is None:
            raise NotImplementedError(f"{type(self).__name__} does not say what to compute")
        self.require()
        return Request.of(self.analysis, self.arguments())

    def prepare(self, request: Any) -> None:
        """Prepare what a run needs, in the worker's thread; not counted in the time that forecasts learn from."""

    def compute(
        self,
        request: Any,
        model: Model,
        *,
        progress: Callable[[int, int], None],
        check: Callable[[], None],
        on_partial: Callable[[Any], None],
    ) -> Any:
        """The result of a request on one model, by default `request.answer`.

        Called in the worker's thread; must not touch widgets or traits.
        """
        if not hasattr(request, "answer"):
            raise NotImplementedError(f"{type(self).__name__} does not say how to compute")
        return request.answer(model, progress=progress, check=check, on_partial=on_partial)

    def cost(self, request: Any, model: Model) -> Cost | None:
        """The cost of a request on one model, by default `request.cost`; None if it is always quick."""
        cost: Cost | None = request.cost(model) if hasattr(request, "cost") else None
        return cost

    def forecast_on(self, request: Any, model: Model) -> Forecast:
        """Time and memory that a request will take on one model if its result is not in the cache."""
        return self.answers.measured(request, model)

    def request_for(self, request: Any, model: Model) -> Hashable:
        """The part of a request that concerns one model, under which its result is cached."""
        question: Hashable = request
        return question

    def depends_on(self, request: Any, model: Model) -> tuple[Any, ...]:
        """Other models that a model's result depends on, such as the one that writes the response."""
        values = request.values if isinstance(request, Request) else ()
        return tuple(self.models[value.index] for value in values if isinstance(value, FromModel))

    def draw(self, results: tuple[Any, ...], request: Any) -> None:
        """Show the results, one per model; `self.shown` is the current view."""

    def draw_selection(self) -> None:
        """Show what is selected, after `draw` and whenever a field that `selects` changes."""

    def describe_selection(self) -> Description | None:
        """A description of the selection for the side of a workbench's screen; None if there is nothing to say."""
        return None

    def shade_texts(self, prompt: TokenStrip, response: TokenStrip) -> bool:
        """Shade the token strips at the top of a screen by the selection; False to leave them unchanged."""
        return False

    def described(self) -> Description | None:
        """`describe_selection` of the results on the screen, if there are any that are not waiting to be replaced."""
        return self._drawn_by(self.describe_selection) if self.results and not self._waits_for_run else None

    @property
    def _waits_for_run(self) -> bool:
        """Whether the picture is out of date until Run is pressed."""
        return self._stale and self._forecast is not None

    def shades(self, prompt: TokenStrip, response: TokenStrip) -> bool:
        """`shade_texts`, unless there are no results: drawing may have failed halfway."""
        no_result = self.has_request and not self.results
        return not no_result and bool(self._drawn_by(lambda: self.shade_texts(prompt, response)))

    def _drawn_by(self, hook: Callable[[], Any]) -> Any:
        """What a hook returns that shows the results elsewhere on the screen; None if those of a file do not fit it."""
        try:
            return hook()
        except Exception as error:
            if not self._is_of_a_file(error):
                raise
            self._compute_anew()
            return None

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        """For fields that choose: the number of values, or the values, in the results on the screen, and their name."""
        return {}

    def remarks(self) -> Mapping[str, str]:
        """Remarks beside options, by their names, that stop nothing."""
        return {}

    def check_chosen(self) -> None:
        """Raise `Refused` for a choice, such as a component, that the results on the screen do not have."""
        for name, (allowed, what) in self.choices().items():
            if name not in self._chosen_at_start and name not in self._changed:
                continue  # chosen in an earlier result
            value = self._chosen_at_start.get(name, getattr(self, name))
            if isinstance(allowed, int):
                if value is not None and value >= allowed:
                    raise Refused(name, f"{name} must be in 0..{allowed - 1} for {what}, got {value}")
                continue
            for choice in [value] if isinstance(value, str) else value:
                if choice and choice not in allowed:
                    raise Refused(name, f"{name} must be one of {what}, got {choice!r}: check the spelling")

    def default_of(self, name: str) -> Any:
        """The value of an option that nobody has set; in a stack that of the stack, whose tabs share it."""
        usual = getattr(self.stack, "usual", {})
        return usual[name] if name in usual else super().default_of(name)

    def check_bounds(self, name: str, value: float) -> None:
        if not self._has_options or name not in self._bounded():
            return
        low, high = self._bounded()[name].of(self)
        if (low is not None and value < low) or (high is not None and value > high):
            raise T.TraitError(f"{name} must be {in_words(low, high)} here, got {short(value)}")

    def _bounded(self) -> dict[str, Bounds]:
        """The ends of the options that `check_bounds` is about."""
        found = {name: option.extra(Bounds) for name, option in self.fields().items() if not option.recomputes}
        return {name: bounds for name, bounds in found.items() if bounds is not None and bounds.follow_panel}

    def _bound_options(self, given: Collection[str]) -> None:
        """From now on options keep the ends that follow from the panel: a default adapts, a value given is refused."""
        for name, bounds in self._bounded().items():
            value, (low, high) = getattr(self, name), bounds.of(self)
            if name not in given:
                nearest = value if high is None else min(value, high)
                setattr(self, name, nearest if low is None else max(nearest, low))
        self._has_options = True
        for name in self._bounded():
            self.check_bounds(name, getattr(self, name))

    def code(self, request: Any) -> str:
        """A cell that reproduces the result without the widget."""
        if isinstance(request, Request):
            return request.code(self.models)
        raise NotImplementedError(f"{type(self).__name__} has no code to copy")

    def table_of(self, result: Any) -> Any:
        """The numbers of one model's result as a table, as `frame` has them."""
        return result.to_frame()

    def parts_of(self, result: Any) -> Mapping[str, Any]:
        """What `stored` saves of one model's result, by name: each a :class:`Result`, or None."""
        return {"": result}

    def can_save(self, what: str) -> bool:
        """Whether there is a ``frame``, a ``scene`` or something ``stored`` to save.

        There is if the panel has a hook for it, or results of the kind that the base class saves.
        """
        hooks = (what, {"frame": "table_of", "stored": "parts_of"}.get(what, what))
        if any(getattr(type(self), hook) is not getattr(Panel, hook) for hook in hooks):
            return True
        return what != "scene" and self.has_request and all(isinstance(result, Result) for result in self.results)

    def frame(self) -> Any:
        """The numbers of all models as a table, which says whose they are if there are two."""
        return pair_view.joined(
            {letter: self.table_of(result) for letter, result in pair_view.by_letter(self.results).items()}
        )

    def scene(self) -> Any:
        """The picture on the screen, as `figures.static` draws it."""
        raise NotImplementedError(f"{type(self).__name__} has no picture to save")

    def stored(self) -> Any:
        """The results in view, as a :class:`Result` that can be saved and opened again.

        With two models it is the result of the one in view, or a `Results` for a view of both.
        """
        parts = {
            f"{letter} {name}".strip(): part
            for letter, result in self.by_letter().items()
            for name, part in self.parts_of(result).items()
        }
        return as_one(parts, self.tab_name)

    @property
    def shorter(self) -> str:
        """What makes a run shorter, beside a forecast so long that it waits for Run; empty for nothing."""
        return ""

    @property
    def remark_on_picture(self) -> str:
        """What a reader has to know of the whole picture, such as that it is a part; empty for nothing."""
        return ""

    def mark(self, *, stale: bool, forecast: str | None = None) -> None:
        """Dim a picture that is out of date; with a `forecast`, highlight the Run button."""
        waited = self._waits_for_run
        self._stale, self._forecast = stale, forecast
        self._show_marks()
        if self.screen is not None and self._waits_for_run != waited:
            self.screen.follow(self)

    def _show_marks(self) -> None:
        dimmed = self._drawn is not None and (self._stale or self._model_moved)  # else there is nothing to dim
        run_needed = self._forecast is not None or self._model_moved
        (self.plot.add_class if dimmed else self.plot.remove_class)("iw-stale")
        self.run_button.button_style = "primary" if run_needed else ""
        shorter = self._forecast and self.shorter
        said = (self._forecast, shorter, MOVED * self._model_moved, self.remark_on_picture)
        self.forecast_label.value = " · ".join(filter(None, said))
        shown_if(self.forecast_label, bool(self.forecast_label.value))

    @guard
    def compare_models(self, now: Callable[[Model], ModelState | None]) -> None:
        """Dim the picture while a model is in another state than when the result was computed; `now` returns the
        present state, or None for a model that is computing."""
        moved = False
        if self._shown is not None:
            for model, then in zip(self.request_models, self._shown.states, strict=False):
                models = (model, *self.depends_on(self._shown.request, model))
                pairs = [(state, now(one)) for one, state in zip(models, then, strict=False) if state is not None]
                if any(state is None for _, state in pairs):
                    return
                moved = moved or any(before != after for before, after in pairs)
        if moved != self._model_moved:
            self._model_moved = moved
            self._show_marks()

    # for subclasses ---------------------------------------------------------------------------------------------------

    @property
    def current_panel(self) -> Panel:
        """The active panel: itself, since it is not a stack."""
        return self

    @property
    def asked_to_run(self) -> str:
        """The forecast beside a Run button that has to be pressed; empty while none has."""
        return self._forecast or ""

    def ask_for_run(self) -> None:
        """Say on the status line that Run has to be pressed, where it has."""
        if self._forecast:
            because = "Inputs changed" if self._stale else f"Only {self.first_parts}"
            self.status.waiting(self._forecast, because=because if self.results else "Not computed yet")

    @property
    def request_models(self) -> tuple[Any, ...]:
        """The models that the request runs on, with one result each: all, unless one request covers both."""
        return self.models

    @property
    def shown(self) -> str:
        """The current view: `view`, but "A" as long as there is only one result."""
        return self.offered_view if len(self.results) > 1 else "A"

    @property
    def offered_view(self) -> str:
        """`view`; for a view of both models that the panel does not have, the first one that it has."""
        return self.view if self.view in ("A", "B", *self.pair_views) else next(iter(self.pair_views), "difference")

    @property
    def shown_request(self) -> Any:
        """The request that the picture on the screen answers; None before the first."""
        return None if self._shown is None else self._shown.request

    @property
    def shown_states(self) -> tuple[tuple[ModelState | None, ...], ...]:
        """For each result on the screen, the states of the models that it depends on when it was computed, its own
        first; None where that is unknown."""
        return () if self._shown is None else self._shown.states

    @renamed(spare="below")
    def arrange(
        self, plot: Sequence[Any], details: Sequence[Any] = (), *, below: Sequence[Any] = (),
        beside: Sequence[Any] = (), width: int = 460,
    ) -> None:  # fmt: skip
        """Fill plot and details.

        `below` widgets go below the plot, `beside` ones, `width` pixels wide, next to its last view if
        there is room; on a screen, where space is short, both go into the details.
        """
        if self.screen is not None:
            self.plot.children, self.details.children = plot, [*below, *beside, *details]
            return
        if beside:
            side = column("iw-compact")
            side.children, side.layout.flex = beside, f"1 1 {width}px"
            self._with_side = row(plot[-1], side)
            self._with_side.add_class("iw-with-side")
            plot = [*plot[:-1], self._with_side]
        self.plot.children, self.details.children = [*plot, *below], details

    def widen_map(self, columns: int) -> None:
        """Give a map of many columns the full width: widgets beside it move below it."""
        if self._with_side is not None:
            (self._with_side.add_class if columns > MOST_BESIDE else self._with_side.remove_class)("iw-wide")

    def add_next_to_run(self, controls: W.HBox) -> None:
        """Put a row of controls into the row of Run, in front of the status line."""
        *before, end = self.actions.children
        status = [widget for widget in before if widget is self.status]
        controls.add_class("iw-beside-run")
        self.actions.children = (*(widget for widget in before if widget is not self.status), controls, *status, end)

    def by_letter(self, results: Sequence[Any] | None = None) -> dict[str, Any]:
        """The results in view by letter: A, B or both; a single model has no letter.

        `results` are what to choose from: one thing per model, by default the panel's results.
        """
        found = pair_view.by_letter(self.results if results is None else results)
        return {self.shown: found[self.shown]} if self.shown in found else found

    def require(self, *names: str) -> None:
        """Raise `Incomplete` if a required field (one of `names`, if given) is empty and its control is shown."""
        for name, option in self.fields().items():
            visible = option.shown_if is None or option.shown_if(self)
            if option.required and visible and (not names or name in names) and not getattr(self, name):
                raise Incomplete(name, option.required)

    def question(self) -> dict[str, str]:
        """The settings behind the picture on the screen, by their labels, without the empty ones."""
        drawn = self._settings(
            lambda option: option.redraws or option.selects or not (self.has_request or option.recomputes)
        )
        if len(self.request_models) > 1 and self.pair_views:
            options = view_options(self.models, self.pair_views)
            drawn["View"] = next(label for label, value in options if value == self.shown)
        edits = map(edits_of, self.models) if self._shown is None else self._shown.edits
        drawn["Edited"] = ", ".join(
            f"{name}: {names}" for name, names in zip(distinct_names(self.models), edits, strict=False) if names
        )
        return {label: text for label, text in {**self._run_settings, **drawn}.items() if text}

    def _settings(self, which: Callable[[Field], bool]) -> dict[str, str]:
        return {
            option.label.removesuffix(", one per line"): option.text(getattr(self, name))
            for name, option in self.fields().items()
            if option.label and which(option) and (option.shown_if is None or option.shown_if(self))
        }

    @contextmanager
    def batch_changes(self) -> Iterator[None]:
        with handling():
            self._batches += 1
        try:
            yield
        finally:
            with handling():
                self._batches -= 1
                self._respond()

    @contextmanager
    def without_rerun(self) -> Iterator[None]:
        """Set inputs without starting a run: the result on the screen is already theirs (a written response)."""
        with handling():
            self._reruns_off += 1
            try:
                yield
            finally:
                self._reruns_off -= 1

    @guard
    def refresh(self, limit: float | None = None) -> None:
        """Update the picture: from the cache, else by a run if it fits the budget of `limit` seconds (None:
        `live_seconds`) and of memory, else highlight Run."""
        limit = self.live_seconds if limit is None else limit
        self._clear_hints()
        self._outdated = True
        try:
            self._answer(limit)
        except Refused:
            raise  # the option has gone back to what is shown
        except Exception:
            self.mark(stale=True)
            raise

    def _answer(self, limit: float) -> None:
        request, self._waiting = self._question(), None
        if self._pending is not None and request == self._pending:
            self._first_parts = self._first_parts and limit < float("inf")
            return
        cached = self.answers.cached(request) if self.reuses or limit < float("inf") else None
        if cached is not None:
            self.jobs.drop()
            self._show(cached)
            return
        forecast = self.forecast(request)
        fits = forecast.bytes <= budget(device_of(self.models[0])) and not self.manual_run
        quick = fits and forecast.seconds <= limit
        first_parts = fits and bool(self.first_parts) and self._shown is None and limit >= self.opening_limit
        if limit == float("inf") or quick or first_parts:
            self.mark(stale=True)
            self._submit(request)
            self._first_parts, self._parts_until = limit < float("inf") and not quick, float("inf")
        else:
            self._wait_for_run(request, forecast)
            if self.answers.assumed and request != self._corrected:  # once
                self._corrected = request
                self._answer_again(request, limit)

    def _wait_for_run(self, request: Hashable, forecast: Forecast, *, stale: bool = True) -> None:
        """Drop the run under way, and wait until Run is pressed for this request."""
        self.jobs.drop()
        self._pending = None
        self.mark(stale=stale, forecast=forecast.describe())
        self.ask_for_run()
        self._waiting = request

    def _answer_again(self, request: Hashable, limit: float) -> None:
        """Look again for a request that waits for Run, once nothing about it has to be assumed any more."""

        def again(_: None) -> None:
            if self.active and self._waiting == request == self.request():
                self._answer(limit)

        self.jobs.start(
            lambda job: self.answers.find_out(), again, title="Forecasting", channel="forecast", quiet=True
        )  # fmt: skip

    @guard
    def go(self) -> None:
        """Update the picture, however long it takes: what the Run button does."""
        if self._pending is None:
            self._refused = None  # it was read before Run was pressed
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
        """Drop the results; the panel that calls this clears its picture."""
        self._shown = self._good = self._drawn = None
        self.results = ()
        self.set_trait("result", None)

    @property
    def hints(self) -> dict[str, str]:
        """The hints beside controls that are not filled in, by field."""
        return {name: text for controls in self._all_controls() for name, text in controls.hints.items()}

    def field_of(self, what: str) -> str:
        """The field that holds what an analysis calls `what`, such as ``prompt``."""
        return what

    def show_error(self, error: BaseException) -> None:
        """Show an exception in the status line; an `Incomplete` setting gets a hint at its control instead."""
        with ui_lock:
            if self.closed:
                return
            if self._is_of_a_file(error) and not isinstance(error, ValueError | OSError):  # no sentence of ours
                self._compute_anew()
                return
            if isinstance(error, PromptError) and (name := self.field_of(error.what)) in self.fields():
                error = Incomplete(name, message_of(error))
            if isinstance(error, Incomplete) and self._hint(error):
                self.status.idle(WAITING)
            else:
                self.status.failed(error)
                self._error = self.status.error

    def forget_error(self) -> None:
        """Clear hints and errors about a setting that has changed."""
        self._clear_hints()
        if self.status.text == WAITING:
            self.status.idle()
        self._refused = None
        self.forget_refusal()

    def forget_refusal(self) -> None:
        """Clear an error about an earlier use of a control or button; the error of a failed run stays."""
        if self.status.error and self.status.error == self._error and not self._run_failed:
            self.status.idle()

    # for everyone -----------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a run of this panel is under way or queued."""
        return self.jobs.busy

    def forecast(self, request: Hashable) -> Forecast:
        """Time and memory that a request will take on all models; cached results count as nothing."""
        return self.answers.forecast(request)

    def run(self, *, fresh: bool = False) -> Any:
        """Run with the current inputs in the calling thread, draw the result and return it; errors are raised.

        `fresh` ignores the cache. Raises `Cancelled` if a newer run took over.
        """
        self.check_open()
        if not self.has_request:
            raise RuntimeError(f"{type(self).__name__} has nothing for Run to compute: use its buttons")
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
        """Cancel every run of this panel; finished parts stay on the screen."""
        self.jobs.cancel()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no run of this panel is left; False if `timeout` seconds passed first.

        For scripts and tests; raises RuntimeError in a handler, where it would deadlock with the worker.
        """
        return self.jobs.wait(timeout)

    def save(self, path: str | Path, *, width: str | int | None = None) -> Path:
        """Write the numbers (.csv, .parquet), the picture (.svg, .pdf, .png), the panel (.html) or the result (.npz).

        A picture is laid out for a `width` of pixels (320 to 900), or to be put into a "column" (3.25 inches) or "page"
        (6.75) of a paper or onto a "slide" and be read there; it is wider where words in its cells need more.

        The result is that of the current tab and model; a difference of two models saves both, and several
        parts are saved as a `Results`. ``Result.load(path)`` restores it exactly.
        """
        return save(self, path, width)

    def end(self) -> None:
        freshness.unfollow(self)
        self.jobs.close()

    @guard
    def models_edited(self) -> None:
        super().models_edited()
        if self.has_request:
            self.jobs.drop()  # a run under way is about the unedited models
            self._pending = None
        self._pending_changes.add("refresh")
        self._respond()

    def hide(self) -> None:
        self.active, self.jobs.in_background = False, True

    def appear(self) -> None:
        self.active, self.jobs.in_background = True, False
        if self._opened:
            self._respond()
            return
        self._opened, self._pending_changes = True, set()
        if not self.has_request:
            self.refresh()
            return
        self.show_remarks()
        try:
            seconds = self.forecast(self._question()).seconds
            quick = seconds <= FIRST_SECONDS and not self.manual_run and not self.above
            if quick and not self.jobs.owner().worker.busy and not inside_handler():
                self.run()
                return
        except KeyboardInterrupt:
            return  # the status line says so, and the panel can run again
        except Exception as error:
            self.show_error(error)
            return
        self.refresh(limit=self.opening_limit)

    @property
    def opening_limit(self) -> float:
        """Forecast seconds up to which a panel without a picture starts by itself."""
        return max(FIRST_BACKGROUND_SECONDS, float(self.live_seconds))

    # inside: the layout -----------------------------------------------------------------------------------------------

    def _assemble(self) -> None:
        """Lay the panel out: title line, inputs, actions with the status line, plot, details."""
        above = self.screen if self.stack is None else self.stack
        shared = None if above is None else above.status_line
        self.shares_status = shared is not None
        """Whether other panels use the same status line."""
        self.status = StatusLine(on_cancel=self._cancelled_by_user) if shared is None else shared
        self.controls = Controls(self)
        self.inputs, self.plot, self.details = map(column, ("iw-inputs", "iw-plot", "iw-details"))
        self.run_button = self.on_click(W.Button(description="Run", tooltip="Run with the current settings"), self.go)
        self.run_button.add_class("iw-run")
        shown_if(self.run_button, self.has_request)
        self.forecast_label = W.HTML("")
        for name in ("iw-hint", "iw-hidden"):
            self.forecast_label.add_class(name)
        actions: list[Any] = [self.run_button, self.forecast_label]
        if len(self.request_models) > 1 and self.has_request and self.pair_views and self.screen is None:
            views = W.ToggleButtons(options=view_options(self.models, self.pair_views), value=self.offered_view)
            actions.append(self.bind(views, "view", write=lambda _: self.offered_view))
        self.code_box, self.terms_box = CodeBox(), TermsBox()
        self.save_row = SaveRow(self)
        self.menu = self._menu()
        end = W.HBox([self.menu])
        end.add_class("iw-end")
        self.heading = None if above is not None else W.HTML(heading(self.title, self.models))
        title = () if self.heading is None else (self.heading,)
        if self.screen is None:
            actions.append(self.status)
        else:
            actions.remove(self.run_button)
            end.children = (self.run_button, *end.children)
        self.actions = W.HBox([*actions, end])
        self.actions.add_class("iw-row")
        self.children = (
            *title, self.inputs, self.actions, self.save_row.row, self.code_box, self.terms_box, self.plot,
            self.details,
        )  # fmt: skip
        self.build()

    def _menu(self) -> Menu:
        """What one does with the whole panel. On a screen, where space is short, what is below the picture starts
        hidden, and Run is a button only while it has to be pressed."""
        menu = Menu()
        if self.screen is not None:
            shown_if(self.details, False)
            about = "Tables and charts of what is selected in the picture"
            menu.add(DETAILS, about, guarded(self, self._show_details), checked=False)
            if self.has_request:
                menu.add("Run again", "Run with the current settings", guarded(self, self.go))
        if type(self).code is not Panel.code or self.analysis is not None:
            menu.add("Copy as code", "A cell that reproduces the result without the widget", self._show_code)
        menu.add(TERMS, "What the words on this panel mean", guarded(self, self._show_terms), checked=False)
        menu.add("Save", "The numbers, the picture or the whole panel", guarded(self, self.save_row.toggle))
        return menu

    def _show_terms(self) -> None:
        self.menu.check(TERMS, self.terms_box.toggle(self))

    def _show_details(self) -> None:
        shown_if(self.details, hidden := "iw-hidden" in self.details._dom_classes)
        self.menu.check(DETAILS, hidden)

    def _observe(self) -> None:
        declared = self.fields()
        handlers = {
            self._needs_selection: [name for name, option in declared.items() if option.selects],
            self._needs_redraw: ["view", *(name for name, option in declared.items() if option.redraws)],
            self._needs_refresh: [
                name for name, option in declared.items() if option.recomputes or not self.has_request
            ],
            self._needs_check: [name for name, option in declared.items() if option.validated_by_result],
        }
        for handler, names in handlers.items():
            if names:
                self.observe(handler, names)

    def _all_controls(self) -> tuple[Controls, ...]:
        """The controls of the panel and of the stack and screen it is on."""
        return tuple(owner.controls for owner in (self, self.stack, self.screen) if owner is not None)

    def _hint(self, missing: Incomplete) -> bool:
        return any(controls.hint(missing.name, str(missing)) for controls in self._all_controls())

    def show_remarks(self) -> None:
        """Show the remarks about the options as they are."""
        for name, remark in self.remarks().items():
            self._hint(Incomplete(name, remark))

    def _clear_hints(self) -> None:
        """Clear the hints, but not the remarks about the options as they are."""
        for controls in self._all_controls():
            controls.clear_hints()
        self.show_remarks()

    @guard
    def _cancelled_by_user(self) -> None:
        self.cancel()

    @guard
    def _show_code(self) -> None:
        self.code_box.show(self.code(self.request()))

    # inside: what a change makes due ----------------------------------------------------------------------------------

    @guard
    def _needs_refresh(self, change: Any) -> None:
        if not self._reruns_off:
            self._pending_changes.add("refresh")
            self._respond()

    @guard
    def _needs_redraw(self, change: Any) -> None:
        self._pending_changes.add("redraw")
        self._respond()

    @guard
    def _needs_selection(self, change: Any) -> None:
        self._pending_changes.add("selection")
        self._respond()

    @guard
    def _needs_check(self, change: Any) -> None:
        self._changed.add(change.name)
        self._pending_changes.add("chosen")
        self._respond()

    @guard
    def _respond(self) -> None:
        """Handle all pending changes together."""
        if self._batches or not self.active:
            return
        due, self._pending_changes = self._pending_changes, set()
        if not due:
            return
        self.forget_error()  # an error that persists is raised again below
        drawn = self._drawn
        if "redraw" in due and self._shown is None:
            due.add("refresh")  # drawing may have failed before
        if "refresh" in due:
            self.refresh(self.opening_limit if self._shown is None else None)
        try:
            if "redraw" in due and self._drawn is drawn:
                self.redraw()
            elif "selection" in due and self._drawn is drawn:
                self._draw_selection()
        except Exception as error:
            if not self._is_of_a_file(error):
                raise
            self._compute_anew()
        if "chosen" in due:
            self._check_chosen()

    @guard
    def _check_chosen(self) -> None:
        """Refuse a choice that the results do not have, once they are complete and up to date."""
        if self._good is None or self._shown is not self._good or self._outdated:
            return
        names = {*self._chosen_at_start, *self._changed}
        try:
            self.check_chosen()
        except Refused as refused:
            value = getattr(self, refused.name)
            self._changed.discard(refused.name)
            if self._chosen_at_start.pop(refused.name, value) == value:  # else it was replaced already
                self._put_back(refused.name)
            self._check_chosen()  # another choice may be invalid too
            raise
        finally:
            self._chosen_at_start, self._changed = {}, set()  # reported once: the screen shows what replaced it
        self._accepted |= {name: getattr(self, name) for name in names}

    def _put_back(self, name: str) -> None:
        """Reset an option whose value is refused to its last accepted value, else to its default."""
        usual, value = self.traits()[name].default(self), getattr(self, name)
        accepted = self._accepted.pop(name, usual)  # popped, in case it is refused by now too
        setattr(self, name, usual if accepted == value else accepted)
        self.workbench.refused(name, getattr(self, name))

    # inside: the panel's question -------------------------------------------------------------------------------------

    def _question(self) -> Any:
        """The request; an option that it refuses goes back to its previous value."""
        try:
            request = self.request()
        except Exception as error:
            self.jobs.drop()  # a run under way is out of date: its result must not hide the error
            self._pending = None
            self._restore()
            if isinstance(error, Refused):
                self._put_back(error.name)
                unanswered = self._pending is not None or self._waiting is not None
                self._refused = error if unanswered else None  # raised again after that run, unless Run is pressed
            raise
        self._accepted |= {name: getattr(self, name) for name, option in self.fields().items() if option.recomputes}
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
            preemptible=self.preemptible,
        )
        self._pending = request

    def _show(self, outcome: Outcome) -> None:
        """Draw a complete outcome and keep it as the last good one."""
        if self.closed:
            return
        self._pending = None
        began = time.monotonic()
        try:
            self._put(outcome)
        except Exception:
            self._restore()
            if not outcome.opened:
                raise
            self._compute_anew()
        if outcome.opened and self._shown is not outcome:
            return
        self._good = outcome
        self._run_failed = self._outdated = False
        self.mark(stale=False)
        self.compare_models(state_now)
        seconds = time.monotonic() - began if outcome.cached else outcome.seconds
        title = self.title if self.shares_status and not self.active else ""
        self.status.done(seconds, source=outcome.source, title=title, channel=self.jobs.on_line())
        if self._chosen_at_start or self._changed:  # an earlier choice may still be valid in these results
            self._check_chosen()
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    def _show_partial(self, outcome: Outcome) -> None:
        self._put(outcome)
        if not self._first_parts:
            return
        now = time.monotonic()
        self._parts_until = min(self._parts_until, now + FIRST_PARTS_SECONDS)
        if now < self._parts_until:
            return
        self._first_parts, forecast = False, self.forecast(outcome.request)
        if forecast.seconds > self.opening_limit:  # else the first forecast had to assume what is known by now
            self._wait_for_run(outcome.request, forecast, stale=False)

    def _is_of_a_file(self, error: BaseException) -> bool:
        """Whether an error in drawing is due to the results on the screen, which come from a session file: whatever
        such a file may hold can be drawn at first and fail later."""
        ours = isinstance(error, Incomplete | Refused | T.TraitError)  # of an option
        return self._shown is not None and self._shown.opened and isinstance(error, Exception) and not ours

    @guard
    def _compute_anew(self) -> None:
        """Drop the results of a session file, which cannot be drawn, and compute them."""
        self.answers.forget_opened()
        if self._shown is not None and self._shown.opened:
            self.forget_results()
        self.screen.computed_anew(self.title, "the result in the session does not fit the panel")
        self.refresh()

    def _put(self, outcome: Outcome) -> None:
        """Draw an outcome and keep it; if drawing fails, keep the previous one."""
        before = self._shown, self.results
        self._shown, self.results, self._drawn = outcome, outcome.results, None
        try:
            self.draw(outcome.results, outcome.request)
            self._draw_selection()
        except BaseException:
            self._shown, self.results = before
            raise
        if outcome.opened and self._shown is not outcome:
            return  # the screen could not show it
        self._drawn = outcome
        self._run_settings = self._settings(lambda option: option.recomputes)
        self.set_trait("result", outcome.results[0] if len(self.request_models) == 1 else outcome.results)

    def _restore(self) -> None:
        """After an error, draw the last good outcome again if the picture shows anything else."""
        if self._good is not None and self._drawn is not self._good:
            self._put(self._good)

    def _failed(self, error: BaseException) -> None:
        self._pending = None
        self._run_failed = True
        self.status.forget(self.jobs.on_line())  # also if the run succeeded and drawing failed
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
