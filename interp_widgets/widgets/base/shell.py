"""The base of panels and stacks: checked keywords, guarded handlers, clean closing."""

from __future__ import annotations

import difflib
import math
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, ClassVar

import ipywidgets as W
import traitlets as T

from interp_widgets.arguments import message_of
from interp_widgets.data.files import short
from interp_widgets.models import Model
from interp_widgets.models.pair import distinct_names
from interp_widgets.renamed import old_attributes, rename_keywords, renamed
from interp_widgets.widgets.views.base import View
from interp_widgets.widgets.views.bokeh_figure import BokehFigure

from . import lifetime
from .controls import Bounded, Number, Worded, in_words
from .fields import Field, fields_of
from .guard import guarded, ui_lock
from .heading import heading
from .workbench import LIVE_SECONDS, WorkbenchState

ELSEWHERE = "A live panel: run this cell in Jupyter to see it. Saved as an HTML page, it opens in any browser."


class Shown:
    """What Jupyter shows of a box of views, with a sentence for where no widget can live, such as GitHub."""

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Charts are sent first, since a page that requests them waits until the kernel is free.

        Colab shows the views inside only if it is told what they need, as anywidget does for each by itself.
        """
        metadata: dict[str, Any] = {}
        for view in lifetime.descendants(self):
            if isinstance(view, BokehFigure):
                view.deliver()
            if isinstance(view, View):
                metadata |= view._repr_mimebundle_(**options)[1]
        bundle = super()._repr_mimebundle_(**options)  # type: ignore[misc]
        return {**bundle, "text/plain": f"{self!r}\n{ELSEWHERE}"}, metadata


@renamed(hold="batch_changes")
class Shell(Shown, Worded, W.VBox):
    """A box of widgets on one or two models. Its traits are its keywords."""

    title: ClassVar[str] = "Panel"
    """What its title line says."""
    closed = True
    """Whether it is closed; True until there is something to close."""
    heading: W.HTML | None = None
    """Its title line; None where it has none of its own."""

    live_seconds = Number(LIVE_SECONDS, min=0.0)
    """Budget in seconds: a change that is forecast to take no longer, and to fit into 60% of the free memory, is
    computed at once in the background; anything longer waits for Run."""
    view = T.Enum(("A", "B", "difference", "beside"), default_value="A")
    """With two models: the first, the second, the second minus the first, or the first beside the second."""

    def __init__(
        self, model: Model, tuned: Any, workbench: WorkbenchState | None, traits: dict[str, Any], screen: Any = None
    ) -> None:
        self._check_keywords(traits)
        self.own_widgets: weakref.WeakSet[W.Widget] = weakref.WeakSet()
        """The open widgets that were made for it, also those that are on no screen; they are closed with it."""
        self.keywords = frozenset(traits)
        """The options that were passed when it was made; all others are defaults or the workbench's."""
        self.screen = screen
        """The workbench's screen that it is on, which shares texts, views and status; None outside one."""
        self.workbench = _workbench(model, tuned, workbench)
        self.models = self.workbench.models
        """The models; none once it is closed."""
        super().__init__(**({"layout": traits.pop("layout")} if "layout" in traits else {}))
        self._names = ", ".join(distinct_names(self.models))
        self.closed = False
        self.add_class("iw-panel")

    # to fill in -------------------------------------------------------------------------------------------------------

    def show_error(self, error: BaseException) -> None:
        """Show an exception."""
        raise NotImplementedError

    def forget_refusal(self) -> None:
        """Clear the error of a refused value, since a control has been used again."""
        raise NotImplementedError

    def batch_changes(self) -> AbstractContextManager[None]:
        """Change several traits and respond once at the end."""
        raise NotImplementedError

    def check_bounds(self, name: str, value: float) -> None:
        """TraitError for an option outside of ends that follow from the panel; nothing until all options are set."""
        raise NotImplementedError

    def appear(self) -> None:
        """Called when it becomes visible: show a result at once if it is quick, else when it is ready."""
        raise NotImplementedError

    def hide(self) -> None:
        """Called when it is hidden: it responds to changes when it appears again."""
        raise NotImplementedError

    def end(self) -> None:
        """End all runs, before the widgets are closed."""

    def models_edited(self) -> None:
        """Called when the models' edits have changed: update the title line and the results."""
        if self.heading is not None:
            self.heading.value = heading(self.title, self.models)

    # for subclasses ---------------------------------------------------------------------------------------------------

    @property
    def above(self) -> tuple[str, ...]:
        """Options whose controls are at the top of the screen."""
        return () if self.screen is None else self.screen.texts_above

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

        A value that the trait refuses is shown as an error and the control is reset, so that it never shows an unused
        value. `read` converts the control's value to the trait's, `write` the other way round. A value set in code that
        is outside the control's own bounds, which follow the model, is refused by the request it belongs to; of an
        option that only redraws, the nearest one is taken, and the panel says so unless it was the default.
        """
        option = self.fields().get(name)
        recomputes = option is not None and option.recomputes
        bounded, showing = hasattr(control, "max"), [False]

        def to_control(_: Any = None) -> None:
            value = getattr(self, name)
            if _same(read(getattr(control, key)), value):
                return
            showing[0] = recomputes or bounded
            try:
                setattr(control, key, write(value))
            finally:
                showing[0] = False
            taken = read(getattr(control, key))
            if recomputes or not bounded or _same(taken, value):
                return
            setattr(self, name, taken)
            if value != self.default_of(name):
                label = control.description or name
                raise ValueError(
                    f"{label} is {control.min} to {control.max} here, got {short(value)}; it is {taken} now"
                )

        def to_trait(change: Any) -> None:
            value = read(change.new)
            if _same(value, getattr(self, name)) or showing[0]:
                return
            self.forget_refusal()
            try:
                setattr(self, name, value)
            except T.TraitError as error:
                current = getattr(self, name)
                setattr(control, key, write(current))
                message = _refusal(
                    self.traits()[name], getattr(control, "description", "") or name, change.new
                ) or message_of(error)
                raise ValueError(f"{message}; it stays {short(repr(current))}") from error

        def refuse(value: float) -> None:
            self.forget_refusal()
            label, wanted = control.description or name, in_words(control.min, control.max)
            raise ValueError(f"{label} must be {wanted}, got {short(value)}; it stays {control.value:g}")

        to_control()
        if isinstance(control, Bounded):
            control.refuse = guarded(self, refuse)
        control.observe(guarded(self, to_trait), key)
        self.observe(guarded(self, to_control), name)
        return control

    def default_of(self, name: str) -> Any:
        """The value of an option that nobody has set."""
        usual = getattr(self, "usual", {})  # of a panel or a stack
        return usual[name] if name in usual else self.traits()[name].default(self)

    def on_click(self, button: Any, handler: Callable[[], object]) -> Any:
        """Call `handler()` when a button is clicked, through the guard. Returns the button."""
        button.on_click(guarded(self, lambda _button: handler()))
        return button

    def watch(self, widget: Any, names: str | list[str], handler: Callable[[Any], object]) -> Any:
        """Call `handler(change)` when traits of a widget change, through the guard. Returns the widget."""
        widget.observe(guarded(self, handler), names)
        return widget

    def on_user(self, view: View, names: str | list[str], handler: Callable[[Any], object]) -> View:
        """Call `handler(change)` when a reader changes traits of a view, through the guard. Returns the view."""
        view.on_user(names, guarded(self, handler))
        return view

    # for everyone -----------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise RuntimeError if it is closed."""
        if self.closed:
            raise RuntimeError(f"this {type(self).__name__} is closed: open a new one")

    def close(self) -> None:
        """End the runs and close everything that was opened."""
        # Checked before the lock: the garbage collector may call this in any thread
        if not self.closed:
            self._close()

    def _close(self) -> None:
        with ui_lock:
            if self.closed:
                return
            self.closed = True
            with ExitStack() as last_to_first:  # each of them, also after one that fails
                last_to_first.callback(setattr, self, "models", ())
                last_to_first.callback(self.layout.close)
                last_to_first.callback(super().close)
                last_to_first.callback(lifetime.close_all, self.own_widgets)
                last_to_first.callback(lifetime.close_tree, self)
                last_to_first.callback(lifetime.unregister, self)
                last_to_first.callback(self.workbench.leave, self)
                last_to_first.callback(self.end)

    def replaced(self) -> None:
        """Called when its cell is run again and makes another."""
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"{type(self).__name__}({self._names}{state})"

    @classmethod
    def fields(cls) -> dict[str, Field]:
        """The options declared with `field`, in order."""
        return fields_of(cls)

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """Its keywords: the traits that `VBox` does not have."""
        names = set(cls.class_trait_names()) - set(W.VBox.class_trait_names()) - {"result"}
        return tuple(sorted(name for name in names if not name.startswith("_")))

    @classmethod
    def old_options(cls) -> dict[str, str]:
        """Old and new names of its options."""
        options = cls.options()
        return {old: new for old, new in old_attributes(cls).items() if new in options}

    # inside -----------------------------------------------------------------------------------------------------------

    def _check_keywords(self, traits: dict[str, Any]) -> None:
        rename_keywords(type(self).__name__, self.old_options(), traits)
        allowed = self.options()
        for name in traits:
            if name not in allowed and name != "layout":
                near = difflib.get_close_matches(name, allowed, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(allowed)}"
                raise TypeError(f"{type(self).__name__} got an unknown keyword {name!r}; {hint}")


def column(name: str) -> W.VBox:
    """An empty box of the layout, its children below each other."""
    box = W.VBox()
    box.add_class("iw-column")
    box.add_class(name)
    return box


def _same(value: Any, other: Any) -> bool:
    """Whether two values are equal; a NaN, which is never equal to itself, is the same as another."""
    return bool(value == other or (value != value and other != other))


def _refusal(trait: Any, label: str, value: Any) -> str:
    """Why a trait refused a value, with the label on the screen; empty if it is not a matter of bounds."""
    ends = (getattr(trait, name, None) for name in ("min", "max"))  # None for a trait without bounds
    low, high = (end if isinstance(end, (int, float)) and math.isfinite(end) else None for end in ends)
    if low is None or not isinstance(value, (int, float)) or (value >= low and (high is None or value <= high)):
        return ""
    return f"{label} must be {in_words(low, high)}, got {value:g}"


def _workbench(model: Model, tuned: Any, workbench: WorkbenchState | None) -> WorkbenchState:
    """The workbench that a widget belongs to: the one passed, or a new one."""
    if isinstance(model, WorkbenchState):
        if not model.models:
            raise ValueError("the workbench was closed with its panel or its cell: open the widget on a model")
        if tuned is not None or workbench is not None:
            raise TypeError("a workbench has its models already: open the widget as Explorer(workbench)")
        return model
    if workbench is not None:
        models = WorkbenchState(model, tuned).models
        if [id(one) for one in models] != [id(one) for one in workbench.models]:
            raise ValueError("the workbench was opened on other models: leave the model out, Explorer(workbench)")
        return workbench
    made = WorkbenchState(model, tuned)
    made.ends_with_panels = True
    return made
