"""The base of every widget: layout, running in the background, errors in the panel, saving, and tidy closing.

A subclass declares its options, each by one `field`, and fills in the hooks below; it never touches threads, locks, the
cache or the status line.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import ipywidgets as W
import traitlets as T

from interp_widgets.data.files import short
from interp_widgets.models import Model

from . import tidy
from .code import CodeBox
from .fields import Controls, Field, Incomplete, fields_of
from .guard import guard, guarded, ui_lock
from .heading import heading, view_options
from .request import Request
from .running import Running
from .saving import SaveMenu, save
from .status import StatusLine
from .workbench import Workbench, model_name


class Panel(Running):
    """Base class of the widgets. `Panel(model)`, `Panel(base, tuned)`, `Panel(pair)` or `Panel(workbench)`.

    Hooks to fill in, in the order in which they are called:

    - `defaults(given)`: what to start with where the user and the workbench say nothing;
    - `build()`: make views and put them into `self.plot` and `self.details`, and other controls than those of the
      fields into `self.inputs`;
    - `request()`: what to compute, as a frozen, hashable object, read from the fields; ValueError if it cannot be done.
      Of a panel with an `analysis` it is the call of that, with the fields as its arguments;
    - `cost(request, model)`: an object with `.flops` and `.bytes`, for the forecast; usually `request.cost(model)`;
    - `depends_on(request)`: other models that a result depends on, so that it is kept for those only;
    - `compute(request, model, progress=, check=, on_partial=)`: the result; runs in the worker, must not touch widgets;
      usually `request.answer(model, progress=, check=, on_partial=)`;
    - `choices()`: how many or which there are of what a field that `chooses` chooses from, in the results;
    - `draw(results, request)`: show one result per model (fewer while a run of two is under way);
    - `code(request)`, `frame()`, `scene()`, `stored()`: for *Copy as code* and *Save*; without them the button or the
      format is not offered.

    For a button that runs something else in the background, such as *Generate*, use `start`. A whole panel:

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

    title: ClassVar[str] = "Panel"
    """What the panel shows, in its title line."""
    analysis: ClassVar[Callable[..., Any] | None] = None
    """The function ``f(model, ...)`` that the panel asks, where its fields are the arguments of one."""
    both: ClassVar[str] = "difference B − A"
    """What the third view of two models shows."""

    def __init__(self, model: Model, tuned: Any = None, *, workbench: Workbench | None = None, **traits: Any) -> None:
        self._check_keywords(traits)
        self.workbench = _workbench(model, tuned, workbench)
        self._prepare(self.workbench.models)
        super().__init__(**({"layout": traits.pop("layout")} if "layout" in traits else {}))
        self.closed = False
        try:
            self._asked_for = {
                name: traits[name] for name, one in self.fields().items() if one.chooses and name in traits
            }
            for name, value in {**self.defaults({*traits, *self.workbench.given}), **traits}.items():
                setattr(self, name, value)
            self.workbench.join(self, given=traits)
            self._assemble()
            self._observe()
        except BaseException:
            self.close()
            raise
        tidy.register(self)
        self._first_run()

    # hooks, besides those of `Running` --------------------------------------------------------------------------------

    def defaults(self, given: set[str]) -> dict[str, Any]:
        """Values of traits that the panel starts with, besides those `given` by the user or on the workbench."""
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
        if self.analysis is None:
            return super().request()
        self.require()
        return Request.of(self.analysis, self.arguments())

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

        Of two models that is the result of the one looked at, and with the difference a `Results` of both.
        """
        raise NotImplementedError(f"{type(self).__name__} has no result to save")

    # for subclasses ---------------------------------------------------------------------------------------------------

    def bind(
        self,
        control: Any,
        name: str,
        *,
        key: str = "value",
        read: Callable[[Any], Any] = lambda value: value,
        write: Callable[[Any], Any] = lambda value: value,
    ) -> Any:
        """Join a control and a trait both ways; returns the control.

        What the trait refuses is shown as an error, and the control goes back: it must not show what is not used.
        `read` makes the trait's value of the control's, `write` the other way round.
        """

        def to_control(_: Any = None) -> None:
            if read(getattr(control, key)) != getattr(self, name):
                setattr(control, key, write(getattr(self, name)))

        def to_trait(change: Any) -> None:
            value = read(change.new)
            if value == getattr(self, name):
                return
            try:
                setattr(self, name, value)
            except T.TraitError as error:
                kept = getattr(self, name)
                setattr(control, key, write(kept))
                said = _refusal(self.traits()[name], control.description or name, change.new) or str(error)
                raise ValueError(f"{said}; it stays {short(repr(kept))}") from error

        to_control()
        control.observe(guarded(self, to_trait), key)
        self.observe(guarded(self, to_control), name)
        return control

    def require(self, *names: str) -> None:
        """Raise `Incomplete` where a required field, of these or of all, is empty though its control is shown."""
        for name, one in self.fields().items():
            asked = one.shown_if is None or one.shown_if(self)
            if one.required and asked and (not names or name in names) and not getattr(self, name):
                raise Incomplete(name, one.required)

    def on_click(self, button: Any, handler: Callable[[], object]) -> Any:
        """Call `handler()` when a button is clicked, through the guard. Returns the button."""
        button.on_click(guarded(self, lambda _button: handler()))
        return button

    def watch(self, widget: Any, names: str | list[str], handler: Callable[[Any], object]) -> Any:
        """Call `handler(change)` when traits of a widget change, through the guard. Returns the widget."""
        widget.observe(guarded(self, handler), names)
        return widget

    # for everyone -----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the numbers (.csv, .parquet), the picture (.svg, .png), the panel (.html) or the result (.npz).

        The result is that of the tab and of the model looked at, with the difference of two models those of both; what
        has several parts is a `Results`. ``Result.load(path)`` opens it again, with every number as it was.
        """
        return save(self, path)

    def close(self) -> None:
        """End the panel's runs and close everything it opened."""
        # Asked before the lock: the garbage collector calls this in whatever thread it happens to run in
        if not self.closed:
            self._close()

    def _close(self) -> None:
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

    @classmethod
    def fields(cls) -> dict[str, Field]:
        """The options that are declared by `field`, in the order in which they are declared."""
        return fields_of(cls)

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """The keywords that the panel takes: its own traits."""
        own = set(cls.class_trait_names()) - set(W.VBox.class_trait_names()) - {"result"}
        return tuple(sorted(name for name in own if not name.startswith("_")))

    # inside -----------------------------------------------------------------------------------------------------------

    def by_letter(self) -> dict[str, Any]:
        """The results looked at: of one model under no letter, else A, B, or with the difference both."""
        if len(self.models) == 1 or not self.results:
            return dict(zip([""], self.results, strict=False))
        letters = "AB" if self.shown == "difference" else self.shown
        return {letter: self.results["AB".index(letter)] for letter in letters}

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
        self.controls = Controls(self)
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
            tabs = W.ToggleButtons(options=view_options(self.models, self.both), value=self.view)
            actions.append(self.bind(tabs, "view"))
        self.code_box = CodeBox()
        self.save_menu = SaveMenu(self)
        take_away = [self.save_menu.button]
        if type(self).code is not Panel.code or self.analysis is not None:
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
        declared = self.fields()
        due = {
            self._redraw_due: ["view", *(name for name, one in declared.items() if one.redraws)],
            self._refresh_due: [name for name, one in declared.items() if one.recomputes],
            self._chosen_due: [name for name, one in declared.items() if one.chooses],
        }
        for handler, names in due.items():
            if names:
                self.observe(handler, names)

    def _mark(self, *, stale: bool, forecast: str | None = None) -> None:
        """Dim a picture that is behind the inputs; with a forecast, light the Run button that waits to be pressed."""
        (self.plot.add_class if stale else self.plot.remove_class)("iw-stale")
        self.run_button.button_style = "" if forecast is None else "primary"
        self.forecast_label.value = forecast or ""
        (self.forecast_label.remove_class if forecast else self.forecast_label.add_class)("iw-hidden")

    @guard
    def _cancelled_by_user(self) -> None:
        self.cancel()

    @guard
    def _show_code(self) -> None:
        self.code_box.show(self.code(self.request()))


def _refusal(trait: Any, label: str, value: Any) -> str:
    """Why a trait refused a value, in the words on the screen; empty where only the trait can say."""
    low, high = (end if isinstance(end, (int, float)) and math.isfinite(end) else None for end in _ends(trait))
    if low is None or not isinstance(value, (int, float)) or (value >= low and (high is None or value <= high)):
        return ""
    return f"{label} must be {f'{low:g} or more' if high is None else f'in {low:g}..{high:g}'}, got {value:g}"


def _ends(trait: Any) -> tuple[Any, Any]:
    """The bounds of a trait for numbers; None for one that has none."""
    return getattr(trait, "min", None), getattr(trait, "max", None)


def _workbench(model: Model, tuned: Any, workbench: Workbench | None) -> Workbench:
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
