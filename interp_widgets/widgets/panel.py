"""The base of every widget: layout, running in the background, errors in the panel, saving, and tidy closing.

A subclass declares its traits, says which of them make a new request (`recompute_on`) and which only redraw
(`redraw_on`), and fills in the hooks below; it never touches threads, locks, the cache or the status line.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import ipywidgets as W
import traitlets as T

from ..compute.cache import results as cache
from ..compute.memory import Cost, Forecast, speedometer
from ..compute.worker import Cancelled, Job, Owner, State
from . import tidy
from .code import CodeBox
from .guard import guard, guarded, handling, inside_handler, ui_lock
from .heading import heading, view_options
from .identity import Identity
from .saving import SaveMenu, save
from .status import StatusLine
from .workbench import Workbench, model_name

QUICK_SECONDS = 0.3
"""A run that is forecast to take less starts by itself."""
FIRST_SECONDS = 1.0
"""The first run is done before the panel appears if it takes less,"""
FIRST_BACKGROUND_SECONDS = 30.0
"""and starts in the background if it takes less than this."""


@dataclass(frozen=True)
class Outcome:
    """What a run brought: one result per model, for the request it answers."""

    request: Hashable
    results: tuple[Any, ...]
    seconds: float
    cached: bool = False
    partial: bool = False


class Panel(W.VBox):
    """Base class of the widgets. `Panel(model)`, `Panel(base, tuned)`, `Panel(pair)` or `Panel(workbench)`.

    Hooks to fill in, in the order in which they are called:

    - `build()`: make controls and views and put them into `self.inputs`, `self.plot` and `self.details`;
    - `request()`: what to compute, as a frozen, hashable object, read from the traits; ValueError if it cannot be done;
    - `cost(request, model)`: an object with `.flops` and `.bytes`, for the forecast;
    - `compute(request, model, progress=, check=, on_partial=)`: the result; runs in the worker, must not touch widgets;
    - `draw(results, request)`: show one result per model (fewer while a run of two is under way);
    - `code(request)`, `frame()`, `scene()`: for *Copy as code* and *Save*; a panel without them lacks the button.

    For a button that runs something else in the background, such as *Generate*, use `start`.
    """

    title: ClassVar[str] = "Panel"
    """What the panel shows, in its title line."""
    recompute_on: ClassVar[tuple[str, ...]] = ()
    """Traits whose change makes a new request."""
    redraw_on: ClassVar[tuple[str, ...]] = ()
    """Traits whose change draws the held results again without running the model; `view` always does."""

    closed = True
    """Whether the panel is closed; True until there is something to close."""

    view = T.Enum(("A", "B", "difference"), default_value="A")
    """With two models: the first, the second, or the second minus the first."""
    result = T.Any(None, read_only=True)
    """The last good result (a tuple of two with two models); None before the first."""

    def __init__(self, model: Any, tuned: Any = None, *, workbench: Workbench | None = None, **traits: Any) -> None:
        self._check_keywords(traits)
        self.workbench = _workbench(model, tuned, workbench)
        self.models: tuple[Any, ...] = self.workbench.models
        """The model, or the base model and the tuned one."""
        self.results: tuple[Any, ...] = ()
        """The results on the screen, one per model."""
        self._shown: Outcome | None = None
        self._good: Outcome | None = None
        self._drawn: Outcome | None = None
        self._pending: Hashable = None
        self._run_failed = False
        self._holds = 0
        self._settled = 0
        self._due: set[str] = set()
        self._identity = Identity()
        self._owners: dict[str, Owner] = {}
        super().__init__(**({"layout": traits.pop("layout")} if "layout" in traits else {}))
        self.closed = False
        try:
            for name, value in traits.items():
                setattr(self, name, value)
            self.workbench.join(self, given=traits)
            self._assemble()
            self._observe()
        except BaseException:
            self.close()
            raise
        tidy.register(self)
        self._first_run()

    # hooks ------------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Make controls and views and put them into `self.inputs`, `self.plot` and `self.details`."""

    def request(self) -> Hashable:
        """What to compute, read from the traits, as a frozen and hashable object."""
        raise NotImplementedError(f"{type(self).__name__} does not say what to compute")

    def compute(
        self,
        request: Any,
        model: Any,
        *,
        progress: Callable[[int, int], None],
        check: Callable[[], None],
        on_partial: Callable[[Any], None],
    ) -> Any:
        """The result of a request on one model; called in the worker's thread, must not touch widgets or traits."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to compute")

    def draw(self, results: tuple[Any, ...], request: Any) -> None:
        """Show the results, one per model; `self.shown` says which of them is looked at."""

    def cost(self, request: Any, model: Any) -> Cost | None:
        """What a request takes on one model; None if it is always quick."""
        return None

    def code(self, request: Any) -> str:
        """A cell that reproduces the result without the widget."""
        raise NotImplementedError(f"{type(self).__name__} has no code to copy")

    def frame(self) -> Any:
        """The numbers on the screen as a table."""
        raise NotImplementedError(f"{type(self).__name__} has no table to save")

    def scene(self) -> Any:
        """The picture on the screen, as `figures.static` draws it."""
        raise NotImplementedError(f"{type(self).__name__} has no picture to save")

    # for subclasses ---------------------------------------------------------------------------------------------------

    @property
    def shown(self) -> str:
        """What is looked at: `view`, but "A" as long as there is only one result."""
        return self.view if len(self.results) > 1 else "A"

    def bind(self, control: Any, name: str, *, key: str = "value") -> Any:
        """Join a control and a trait both ways; what the trait refuses is shown as an error. Returns the control."""
        if getattr(control, key) != getattr(self, name):
            setattr(control, key, getattr(self, name))

        def to_trait(change: Any) -> None:
            if change.new != getattr(self, name):
                setattr(self, name, change.new)

        def to_control(change: Any) -> None:
            if change.new != getattr(control, key):
                setattr(control, key, change.new)

        control.observe(guarded(self, to_trait), key)
        self.observe(guarded(self, to_control), name)
        return control

    def on_click(self, button: Any, handler: Callable[[], object]) -> Any:
        """Call `handler()` when a button is clicked, through the guard. Returns the button."""
        button.on_click(guarded(self, lambda _button: handler()))
        return button

    def watch(self, widget: Any, names: str | list[str], handler: Callable[[Any], object]) -> Any:
        """Call `handler(change)` when traits of a widget change, through the guard. Returns the widget."""
        widget.observe(guarded(self, handler), names)
        return widget

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Change several traits and answer once at the end."""
        with handling():
            self._holds += 1
        try:
            yield
        finally:
            with handling():
                self._holds -= 1
                self._settle()

    def start(
        self,
        work: Callable[[Job], Any],
        done: Callable[[Any], object] | None = None,
        *,
        title: str,
        on_partial: Callable[[Any], object] | None = None,
        channel: str = "side",
    ) -> Job:
        """Run `work(job)` in the worker beside the main request and then `done(value)`, with status and Cancel.

        `work` must not touch widgets; it hands `job.progress`, `job.check` and `job.partial` on to an analysis. `done`
        and `on_partial` may draw. The newest request of a channel replaces the one before it.
        """
        began = time.monotonic()

        def finish(value: Any) -> None:
            if done is not None:
                done(value)
            if not self.busy:
                self.status.done(time.monotonic() - began, title=title)

        return self._owner(channel).submit(
            work,
            on_result=guarded(self, finish),
            on_error=self.show_error,
            on_progress=self.status.progress,
            on_state=lambda state: self._say(state, title),
            on_partial=None if on_partial is None else guarded(self, on_partial),
        )

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Set inputs that the result on the screen answers already, such as a text the run wrote: no run follows."""
        with handling():
            self._settled += 1
            try:
                yield
            finally:
                self._settled -= 1

    def remember(self, request: Hashable, model: Any, result: Any) -> None:
        """Keep a result for another request that it answers as well."""
        cache.put(self._key(request, model), result)

    @guard
    def go(self) -> None:
        """Bring the picture up to the inputs, however long it takes: what the Run button does."""
        self._refresh(limit=float("inf"))

    def show_error(self, error: BaseException) -> None:
        """Show an exception in the status line."""
        with ui_lock:
            if not self.closed:
                self.status.failed(error)

    def redraw(self) -> None:
        """Draw the results on the screen again, after a change that needs no run."""
        if self._shown is not None:
            self.draw(self._shown.results, self._shown.request)

    # running ----------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a run of this panel is going on or waiting."""
        return any(owner.busy for owner in self._owners.values())

    def run(self, *, fresh: bool = False) -> Any:
        """Compute what the inputs say, in the calling thread, draw it and return the result; errors are raised.

        `fresh` computes even if the result is in the cache. `Cancelled` is raised if something newer came in between.
        """
        if self.closed:
            raise RuntimeError(f"this {type(self).__name__} is closed: open a new one")
        try:
            request = self.request()
            outcome = self._owner("main").run(
                lambda job: self._work(request, job, fresh),
                wait=not inside_handler(),
                on_progress=self.status.progress,
                on_state=self._say_main,
                on_partial=self._show_partial,
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
        for owner in list(self._owners.values()):
            owner.cancel()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing that this panel runs is left; False if `timeout` seconds passed first.

        For scripts and tests; raises RuntimeError in a handler, which the worker would wait for in turn.
        """
        if inside_handler():
            raise RuntimeError(
                "a handler cannot wait for the worker: give start(...) a function to call when it is done"
            )
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with ui_lock:
                jobs = [owner.job for owner in self._owners.values() if owner.job is not None]
            if not jobs:
                return True
            if not jobs[0].wait(None if end is None else max(0.0, end - time.monotonic())):
                return False

    def forecast(self, request: Hashable) -> Forecast:
        """Time and memory that a request will take on all models, without the results that are in the cache."""
        parts = [self._forecast(request, model) for model in self.models if self._held(request, model) is None]
        return sum(parts[1:], parts[0]) if parts else Forecast(0.0, 0)

    def save(self, path: str | Path) -> Path:
        """Write the numbers (.csv, .parquet), the picture (.svg, .png) or the panel (.html); returns the path."""
        return save(self, path)

    def close(self) -> None:
        """End the panel's runs and close everything it opened."""
        with ui_lock:
            if self.closed:
                return
            self.closed = True
            for owner in self._owners.values():
                owner.close()
            self.workbench.leave(self)
            tidy.unregister(self)
            tidy.close_tree(self)
            layout = self.layout
            super().close()
            layout.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"{type(self).__name__}({', '.join(model_name(model) for model in self.models)}{state})"

    # inside -----------------------------------------------------------------------------------------------------------

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """The keywords that the panel takes: its own traits."""
        own = set(cls.class_trait_names()) - set(W.VBox.class_trait_names()) - {"result"}
        return tuple(sorted(name for name in own if not name.startswith("_")))

    def _check_keywords(self, traits: dict[str, Any]) -> None:
        allowed = self.options()
        for name in traits:
            if name not in allowed and name != "layout":
                near = difflib.get_close_matches(name, allowed, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(allowed)}"
                raise TypeError(f"{type(self).__name__} got an unknown keyword {name!r}; {hint}")

    def _assemble(self) -> None:
        """Lay the panel out: title line, inputs, actions, plot, details, status line."""
        self.status = StatusLine(on_cancel=self._cancelled_by_user)
        self.inputs, self.plot, self.details = (W.VBox() for _ in range(3))
        for box, name in ((self.inputs, "iw-inputs"), (self.plot, "iw-plot"), (self.details, "iw-details")):
            box.add_class("iw-column")
            box.add_class(name)
        self.run_button = self.on_click(W.Button(description="Run", tooltip="Compute what the inputs say"), self.go)
        self.forecast_label = W.HTML("")
        for name in ("iw-hint", "iw-hidden"):
            self.forecast_label.add_class(name)
        actions: list[Any] = [self.run_button, self.forecast_label]
        if len(self.models) > 1:
            tabs = W.ToggleButtons(options=view_options(self.models), value=self.view)
            actions.append(self.bind(tabs, "view"))
        self.code_box = CodeBox()
        self.save_menu = SaveMenu(self)
        take_away = [self.save_menu.button]
        if type(self).code is not Panel.code:
            copy = W.Button(description="Copy as code", tooltip="A cell that reproduces the result without the widget")
            take_away.insert(0, self.on_click(copy, self._show_code))
        end = W.HBox(take_away)
        end.add_class("iw-end")
        self.actions = W.HBox([*actions, end])
        self.actions.add_class("iw-row")
        self.heading = W.HTML(heading(self.title, self.models))
        self.add_class("iw-panel")
        above = (self.heading, self.inputs, self.actions, self.save_menu.row, self.code_box)
        self.children = (*above, self.plot, self.details, self.status)
        self.build()

    def _observe(self) -> None:
        redraw, recompute = ["view", *self.redraw_on], list(self.recompute_on)
        for name in (*redraw, *recompute):
            if not self.has_trait(name):
                raise TypeError(f"{type(self).__name__} has no trait {name!r} to list in redraw_on or recompute_on")
        self.observe(self._redraw_due, redraw)
        if recompute:
            self.observe(self._refresh_due, recompute)

    def _owner(self, channel: str) -> Owner:
        if channel not in self._owners:
            self._owners[channel] = Owner(str(getattr(self.models[0], "device", "cpu")), lock=ui_lock)
        return self._owners[channel]

    def _first_run(self) -> None:
        """Appear with a result: at once if it is quick, else as soon as it is there."""
        try:
            seconds = self.forecast(self.request()).seconds
            if seconds <= FIRST_SECONDS and not self._owner("main").worker.busy:
                self.run()
                return
        except KeyboardInterrupt:
            return  # the status line says that it was cancelled; the panel is there to try again
        except Exception as error:
            self.show_error(error)
            return
        self._refresh(limit=FIRST_BACKGROUND_SECONDS)

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
    def _settle(self) -> None:
        """Do once what several changes have made due."""
        if self._holds:
            return
        due, self._due = self._due, set()
        if not due:
            return
        if self.status.state == "failed" and not self._run_failed:
            self.status.idle()  # that error was about a value that has changed since; if not, it comes back
        drawn = self._drawn
        if "refresh" in due:
            self._refresh()
        if "redraw" in due and self._drawn is drawn:
            self.redraw()

    @guard
    def _refresh(self, limit: float = QUICK_SECONDS) -> None:
        """Bring the picture up to the inputs: from the cache, by a run if it is quick, else light the Run button."""
        request = self.request()
        if self._pending is not None and request == self._pending:
            return
        main = self._owner("main")
        held = tuple(self._held(request, model) for model in self.models)
        if all(value is not None for value in held):
            main.drop()
            self._show(Outcome(request, held, 0.0, cached=True))
            return
        forecast = self.forecast(request)
        if forecast.seconds <= limit:
            self._mark(stale=True)
            self._submit(request)
        else:
            main.drop()
            self._pending = None
            self._mark(stale=True, forecast=forecast.describe())
            self.status.waiting(forecast.describe())

    def _submit(self, request: Hashable) -> None:
        self._owner("main").submit(
            lambda job: self._work(request, job, fresh=False),
            on_result=self._show,
            on_error=self._failed,
            on_progress=self.status.progress,
            on_state=self._say_main,
            on_partial=self._show_partial,
        )
        self._pending = request

    def _work(self, request: Hashable, job: Job, fresh: bool) -> Outcome:
        """Compute a request on every model; in the worker's thread, or in the caller's for `run`."""
        began = time.monotonic()
        results: list[Any] = []
        computed = 0
        for index, model in enumerate(self.models):
            job.check()
            key = self._key(request, model)
            value = None if fresh else cache.get(key)
            if value is None:
                value = self._compute(request, model, job, index, tuple(results))
                cache.put(key, value)
                computed += 1
            results.append(value)
        return Outcome(request, tuple(results), time.monotonic() - began, cached=not computed)

    def _compute(self, request: Hashable, model: Any, job: Job, index: int, before: tuple[Any, ...]) -> Any:
        count = len(self.models)
        began = time.monotonic()
        value = self.compute(
            request,
            model,
            progress=lambda done, total: job.progress(done + index * total, count * total),
            check=job.check,
            on_partial=lambda part: job.partial(Outcome(request, (*before, part), 0.0, partial=True)),
        )
        job.check()
        cost = self.cost(request, model)
        flops = 0.0 if cost is None else float(cost.flops)
        speedometer.learn(self._kind(request), self._device(model), flops, time.monotonic() - began)
        return value

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
        self._run_failed = False
        self._mark(stale=False)
        seconds = time.monotonic() - began if outcome.cached else outcome.seconds
        self.status.done(seconds, cached=outcome.cached)

    def _show_partial(self, outcome: Outcome) -> None:
        self._put(outcome)

    def _put(self, outcome: Outcome) -> None:
        """Draw an outcome and hold it; if drawing fails, what was held before is held still."""
        before = self._shown, self.results
        self._shown, self.results, self._drawn = outcome, outcome.results, None
        try:
            self.draw(outcome.results, outcome.request)
        except BaseException:
            self._shown, self.results = before
            raise
        self._drawn = outcome
        self.set_trait("result", outcome.results[0] if len(self.models) == 1 else outcome.results)

    def _restore(self) -> None:
        """After an error, show the last good outcome again if something else has touched the picture."""
        if self._good is not None and self._drawn is not self._good:
            self._put(self._good)

    def _failed(self, error: BaseException) -> None:
        self._pending = None
        self._run_failed = True
        self.show_error(error)
        self._restore()

    def _say_main(self, state: State) -> None:
        if state in ("queued", "cancelled"):
            self._pending = None
        self._say(state)
        if state == "cancelled" and not self.closed:
            self._mark(stale=True, forecast="")

    def _say(self, state: State, title: str = "Computing") -> None:
        """Show the state of a run; done and failed are shown with their result and their error."""
        if self.closed:
            return
        if state == "queued":
            self.status.queued(title)
        elif state == "running":
            self.status.running(title)
        elif state == "cancelling":
            self.status.cancelling()
        elif state == "cancelled":
            self.status.cancelled(partial=self._shown is not None and self._shown.partial)

    @guard
    def _cancelled_by_user(self) -> None:
        self.cancel()

    @guard
    def _show_code(self) -> None:
        self.code_box.show(self.code(self.request()))

    def _mark(self, *, stale: bool, forecast: str | None = None) -> None:
        """Dim a picture that is behind the inputs; with a forecast, light the Run button that waits to be pressed."""
        (self.plot.add_class if stale else self.plot.remove_class)("iw-stale")
        self.run_button.button_style = "" if forecast is None else "primary"
        self.forecast_label.value = forecast or ""
        (self.forecast_label.remove_class if forecast else self.forecast_label.add_class)("iw-hidden")

    def _held(self, request: Hashable, model: Any) -> Any:
        """The cached result, if the model's hash is known already: taking it may be long and is left to the worker."""
        if not self._identity.knows(model):
            return None
        return cache.get(self._key(request, model))

    def _key(self, request: Hashable, model: Any) -> Hashable:
        return (type(self).__qualname__, self._identity.of(model), request)

    def _kind(self, request: Hashable) -> Hashable:
        return (type(self).__qualname__, getattr(request, "method", None))

    def _device(self, model: Any) -> str:
        return str(getattr(model, "device", "cpu"))

    def _forecast(self, request: Hashable, model: Any) -> Forecast:
        cost, kind, device = self.cost(request, model), self._kind(request), self._device(model)
        if cost is not None:
            return speedometer.forecast(kind, device, cost)
        known = speedometer.knows(kind, device)
        return Forecast(speedometer.seconds(kind, device, 0.0) if known else 0.0, 0)


def _workbench(model: Any, tuned: Any, workbench: Workbench | None) -> Workbench:
    """The workbench that a panel belongs to: the one given, or one of its own."""
    if isinstance(model, Workbench):
        if tuned is not None or workbench is not None:
            raise TypeError("a workbench has its models already: open the widget as Explorer(workbench)")
        return model
    if workbench is not None:
        given = Workbench(model, tuned).models
        if [id(one) for one in given] != [id(one) for one in workbench.models]:
            raise ValueError("the workbench was opened on other models: leave the model out, Explorer(workbench)")
        return workbench
    return Workbench(model, tuned)
