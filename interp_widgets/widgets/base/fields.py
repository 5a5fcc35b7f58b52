"""An option of a panel, declared once: its trait and keyword, its control, and what a change of it does."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import escape
from typing import Annotated, Any, Literal, get_args, get_origin

import ipywidgets as W
import traitlets as T

from interp_widgets.analysis._core.checks import check_choice
from interp_widgets.arguments import checked, message_of, short
from interp_widgets.data.files import lines_of

from ..views.text_box import TextBox
from .controls import (
    Number,
    NumberBox,
    NumberSlider,
    TextLine,
    Typed,
    TypedList,
    Whole,
    WholeBox,
    WholeSlider,
    row,
    shown_if,
)  # fmt: skip

_order = itertools.count()
SEED_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Bounds:
    """Least and largest value; an end may be a function of the panel, such as the number of its models' layers.

    Example:
        >>> from typing import Annotated
        >>> k = field(Annotated[int, Bounds(1, 50)], 10, label="Top k")
        >>> k.min, k.max, k.default_value
        (1, 50, 10)
    """

    low: float | Callable[[Any], float] | None = None
    high: float | Callable[[Any], float] | None = None
    step: float | None = None
    slider: bool = False
    """A slider instead of a box with a number, unless that has more than `MOST_STEPS` steps."""
    shown_as: str = ""
    """Format of the slider's number, such as ``.0%``."""

    def of(self, panel: Any) -> tuple[float | None, float | None]:
        """Both ends on a panel."""
        low, high = (end(panel) if callable(end) else end for end in (self.low, self.high))
        return low, high

    @property
    def follow_panel(self) -> bool:
        """Whether an end is a function of the panel."""
        return callable(self.low) or callable(self.high)


@dataclass(frozen=True)
class Text:
    """A text in a box of several lines."""

    rows: int = 3


def _lines(text: str) -> list[str]:
    return [line for line in lines_of(text) if line.strip()]


@dataclass(frozen=True)
class Lines:
    """A list of texts in a box of several lines, one text per line unless `read` and `write` say otherwise."""

    rows: int = 3
    read: Callable[[str], Sequence[str]] = _lines
    write: Callable[[Sequence[str]], str] = "\n".join


Selected = Literal["prompt_token", "layer", "head", "neuron"]
Seed = Annotated[int, Bounds(0, SEED_LIMIT)]
Share = Annotated[float, Bounds(0.0, 1.0, 0.05, slider=True, shown_as=".2f")]


class _BoundedByPanel(T.TraitType[Any, Any]):
    """A number with an end that is a function of the panel, which the panel checks once all its options are set.

    An option that reruns the analysis is left to the request, which knows why a value is refused.
    """

    def validate(self, obj: Any, value: Any) -> Any:
        number = super().validate(obj, value)
        obj.check_bounds(str(self.name), number)
        return number


class _WholeOfPanel(_BoundedByPanel, Whole):
    pass


class _NumberOfPanel(_BoundedByPanel, Number):
    pass


class Several(T.Tuple):
    """A trait for several of the values that `labels` names."""

    def __init__(self, labels: Mapping[Any, str], default: Sequence[Any] = ()) -> None:
        super().__init__(default_value=tuple(default))
        self.labels = labels

    def validate(self, obj: Any, value: Any) -> tuple[Any, ...]:
        values: tuple[Any, ...] = super().validate(obj, value)
        known = list(self.labels)  # compared, since what a user passes may not be hashable
        if unknown := [one for one in values if one not in known]:
            names = ", ".join(map(repr, known))
            raise T.TraitError(f"{self.name} may have {names}, got {short(unknown[0])} in it")
        return values


@dataclass(frozen=True)
class Field:
    """Everything about an option except its trait's default; see :func:`field`."""

    kind: Any
    extras: tuple[Any, ...]
    label: str
    help: str
    placeholder: str
    shown_if: Callable[[Any], bool] | None
    required: str
    redraws: bool
    selects: bool
    validated_by_result: bool
    argument: str | None
    offers: Callable[[Any], Collection[Any]] | None
    group: str
    new_row: bool
    more: bool
    width: str
    live: bool | None
    control: Callable[[Any], Any] | None
    personal: bool | Callable[[Any], bool]
    linked: str | None
    order: int

    def extra(self, kind: type) -> Any:
        """The part of the annotation that has this type, such as its `Bounds`, or None."""
        return next((extra for extra in self.extras if isinstance(extra, kind)), None)

    def text(self, value: Any) -> str:
        """A value as a reader would write it: the labels of choices, yes or no, a list on one line."""
        if isinstance(self.kind, dict):
            return str(self.kind.get(value, value))
        if isinstance(self.kind, Several):
            return " · ".join(str(self.kind.labels.get(one, one)) for one in value)
        if isinstance(value, bool):
            return "yes" if value else "no"
        bounds = self.extra(Bounds)
        if bounds is not None and bounds.shown_as:
            return format(value, bounds.shown_as)
        if isinstance(value, float):
            return f"{value:g}"
        if isinstance(value, (list, tuple)):
            return " · ".join(map(str, value))
        return "" if value is None else str(value)

    def is_personal(self, value: Any) -> bool:
        """Whether a value belongs to this user or computer, and to no session file; see :func:`field`."""
        return self.personal(value) if callable(self.personal) else self.personal

    @property
    def recomputes(self) -> bool:
        """Whether a change of it changes the request."""
        return self.argument is not None and not self.redraws and not self.selects


class Incomplete(ValueError):
    """A setting that is not filled in yet or cannot be used: shown as a hint at its control, not as an error."""

    def __init__(self, name: str, hint: str) -> None:
        super().__init__(hint)
        self.name = name
        """The field that has to change."""


@contextmanager
def hint_at(name: str) -> Iterator[None]:
    """Turn a ValueError about a field's value, raised in this context, into a hint at its control."""
    try:
        yield
    except (Incomplete, Refused):
        raise  # about another field, or of an option that goes back
    except (ValueError, OSError) as error:
        raise Incomplete(name, message_of(error)) from error


class Refused(ValueError):
    """A value that an option cannot have here, such as an index out of range: the option keeps its old value."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        """The option."""


@checked
def field(
    kind: Any,
    default: Any = None,
    *,
    label: str = "",
    help: str = "",
    placeholder: str = "",
    shown_if: Callable[[Any], bool] | None = None,
    required: str = "",
    redraws: bool = False,
    selects: bool = False,
    validated_by_result: bool = False,
    argument: str | None = "",
    offers: Callable[[Any], Collection[Any]] | None = None,
    group: str = "",
    new_row: bool = False,
    more: bool = False,
    width: str = "",
    live: bool | None = None,
    control: Callable[[Any], Any] | None = None,
    personal: bool | Callable[[Any], bool] = False,
    linked: Selected | None = None,
) -> Any:
    """An option of a panel: a trait that also describes its control and its effect.

    `kind` is str, int, float, bool or tuple, with :class:`Bounds`, :class:`Text` or :class:`Lines` in an `Annotated`
    where they matter, a dict of values and their labels for a choice, or a trait for anything else. A change runs the
    analysis again, unless the option only `redraws`, or `selects` what is marked and listed, or is no `argument` of the
    analysis (None); `argument` also renames it for the analysis. An option that is `validated_by_result`, such as a
    component, must be one of the panel's `choices`, which come from the results on the screen.

    Without a `label` there is no control. `help` is its tooltip, `group` says which box of controls it is in, `new_row`
    that it starts a new row, and `more` that it is rarely used and goes under *More*; `width` is
    ``short``, ``grow`` or empty. A text of several lines counts 400 ms after the last key, at Ctrl+Enter and when its
    box is left, one of a line at Enter and when it is left, and a fraction while its slider moves, unless `live` says
    otherwise. The control, and the argument with it, is there while `shown_if(panel)` holds. Where
    the option is empty and `required`, nothing runs, and that sentence says what to fill in. `offers` says which values
    of a choice a panel has, and `control(panel)` makes a control that no kind has. An option is `personal` if it names
    a file, an address or a key (or if the function says so of its value): a session neither holds nor sets it.
    A row or column (-1: none) that is `linked` to a part of the workbench's selection follows and moves it. Behind the
    last layer, head or neuron it stands for the last one, as the row of the model's output does, and behind the tokens
    of the prompt for none of them; it stays where it is while the selection is what it stands for.

    Example:
        >>> class Settings(Panel):
        ...     metric = field({"logit": "logit", "probability": "probability"}, "logit", label="Measured as")
        ...     share = field(float, 0.5, label="Labels from", redraws=True)
        >>> [(name, one.label, one.recomputes) for name, one in Settings.fields().items()]
        [('metric', 'Measured as', True), ('share', 'Labels from', False)]
    """
    check_choice("linked", linked, Selected, none=True)
    base, extras = (get_args(kind)[0], get_args(kind)[1:]) if get_origin(kind) is Annotated else (kind, ())
    extras += getattr(kind, "extras", ())
    made = Field(
        base, tuple(extras), label, help, placeholder, shown_if, required, redraws, selects, validated_by_result,
        argument, offers, group, new_row, more, width, live, control, personal, linked, next(_order),
    )  # fmt: skip
    return _trait(made, default).tag(field=made)


def variant(trait: Any, **changes: Any) -> Any:
    """The option of another panel with some of the arguments of :func:`field` changed, such as its default.

    Example:
        >>> from interp_widgets.widgets.base.panel import Panel
        >>> class Drawn(Panel):
        ...     share = field(float, 0.5, label="Labels from", redraws=True)
        >>> class Computed(Panel):
        ...     share = variant(Drawn.share, redraws=False)
        >>> Drawn.fields()["share"].recomputes, Computed.fields()["share"].recomputes
        (False, True)
    """
    other = copy.copy(trait)
    other.default_value = changes.pop("default", trait.default_value)
    other.metadata = {**trait.metadata, "field": replace(trait.metadata["field"], **changes)}
    return other


def _trait(made: Field, default: Any) -> T.TraitType[Any, Any]:
    bounds = made.extra(Bounds) or Bounds()
    ends = {"min": bounds.low, "max": bounds.high}
    limits = {name: end for name, end in ends.items() if end is not None and not callable(end)}
    if isinstance(made.kind, T.TraitType):
        return made.kind
    if isinstance(made.kind, dict):
        return T.Enum(tuple(made.kind), default_value=default)
    if made.kind is bool:
        return T.Bool(bool(default))
    if made.kind is int:
        whole = _WholeOfPanel if bounds.follow_panel else Whole
        return whole(default or 0, **{name: int(end) for name, end in limits.items()})
    if made.kind is float:
        return (_NumberOfPanel if bounds.follow_panel else Number)(default or 0.0, **limits)
    if made.kind is str:
        return Typed(default or "")
    if made.kind is list:
        return TypedList(default or ())
    raise TypeError(f"a field is of str, int, float, bool, list, a dict of labels or a trait, not of {made.kind!r}")


def fields_of(panel: Any) -> dict[str, Field]:
    """The fields of a panel or its class by name, in the order in which they were declared."""
    traits = panel.class_traits(field=lambda one: one is not None)
    fields = {name: trait.metadata["field"] for name, trait in traits.items()}
    return dict(sorted(fields.items(), key=lambda item: item[1].order))


class Hint(W.HTML):
    """A hint beside controls that are not filled in; given `boxes` that are not fields, until one of them changes."""

    def __init__(self, *boxes: Any) -> None:
        super().__init__()
        self.sentence = ""
        for style in ("iw-hint", "iw-wanted"):
            self.add_class(style)
        for box in boxes:
            box.observe(lambda _: self.say(""), "value")
        self.say("")

    def say(self, sentence: str) -> None:
        """Show a sentence; an empty one hides the hint."""
        self.sentence = sentence
        self.value = f"<span role='status'>{escape(sentence)}</span>" if sentence else ""
        shown_if(self, bool(sentence))

    def of(self, act: Callable[[], object]) -> Callable[[], None]:
        """Wrap a button's action so that a problem with what was typed is shown here as a hint, not as an error."""

        def pressed() -> None:
            self.say("")
            try:
                act()
            except (ValueError, OSError, T.TraitError) as error:
                self.say(message_of(error))

        return pressed


MOST_STEPS = 500
"""Most steps of a slider: a hand cannot aim at one of more, so there is a box with a number instead."""
IN_SIGHT = 2
"""Options of a panel that a screen shows, boxes for long texts not counted; the rest go under *More*, but for those
without which nothing runs."""


class Controls:
    """The controls of a panel's fields, each made when it is first asked for, and the hints beside them."""

    def __init__(self, panel: Any) -> None:
        self._panel = panel
        self._fields = fields_of(panel)
        self._made: dict[str, Any] = {}
        self._rows: list[W.HBox] = []
        self._folds: list[_Fold] = []
        self._hints: dict[str, Hint] = {}
        panel.watch(panel, T.All, lambda _: self.fit())

    def __getitem__(self, name: str) -> Any:
        """The control of a field, joined to its trait both ways."""
        if name not in self._made:
            self._made[name] = self._make(name, self._fields[name])
            self._fit_one(name)
        return self._made[name]

    def again(self, name: str) -> Any:
        """A second control of a field, for elsewhere on the screen."""
        return self._make(name, self._fields[name])

    def row(self, *parts: Any) -> W.HBox:
        """A row of fields, by their names, and of other widgets; hidden while everything in it is."""
        box = row(*(self[part] if isinstance(part, str) else part for part in parts if part not in self._panel.above))
        self._rows.append(box)
        self._fit_row(box)
        return box

    def rows(
        self,
        group: str = "",
        *,
        before: Mapping[str, Iterable[Any]] | None = None,
        after: Mapping[str, Iterable[Any]] | None = None,
    ) -> list[W.HBox]:
        """The rows of a group's fields, with other widgets before and after some of them, and those under *More*.

        On a screen, where space is short, only the first few are shown; the others go under *More*.
        """
        fields = {
            name: made
            for name, made in self._fields.items()
            if made.label and made.group == group and name not in self._panel.above
        }
        short = self._panel.screen is not None
        first = [name for name, made in fields.items() if not made.more]
        if short:
            room = max(IN_SIGHT - self._count_in_sight(), 0)
            first = [name for at, name in enumerate(first) if at < room or fields[name].required]

        def lines_of(more: bool) -> list[list[Any]]:
            lines: list[list[Any]] = []
            for name, made in fields.items():
                if (name not in first) != more:
                    continue
                if (made.new_row and (more or not short)) or not lines:
                    lines.append([])
                lines[-1] += [*(before or {}).get(name, ()), name, *(after or {}).get(name, ())]
            return lines

        rows, folded = [self.row(*line) for line in lines_of(False)], [self.row(*line) for line in lines_of(True)]
        if not folded:
            return rows
        if not rows and short and self._rows:
            return [self.fold(self._rows[-len(folded) - 1], folded)]
        if not rows:
            names = ", ".join(fields)
            raise TypeError(f"at least one of the fields {names} must be visible: declare it without more=True")
        return [*rows, self.fold(rows[-1], folded)]

    def _count_in_sight(self) -> int:
        """Options that the rows made so far show."""
        placed = {child for box in self._rows for child in box.children}
        return sum(
            self._made[name] in placed and not hidden(self._made[name]) and made.width != "grow"
            for name, made in self._fields.items() if name in self._made
        )  # fmt: skip

    def fold(self, beside: W.HBox, rows: Sequence[W.HBox]) -> W.VBox:
        """Rows behind a *More* button at the end of the row `beside`; open if one of their options is not at its
        default."""
        controls = {control for line in rows for control in line.children}
        names = [name for name, control in self._made.items() if control in controls]
        fold = _Fold(rows, opened=any(getattr(self._panel, name) != self._panel.default_of(name) for name in names))
        self._folds.append(fold)
        beside.children = (*beside.children, fold.button)
        return fold.box

    def fit(self) -> None:
        """Show the controls that apply to the panel's settings, with their current bounds."""
        for name in self._made:
            self._fit_one(name)
        for box in self._rows:
            self._fit_row(box)
        for fold in self._folds:
            fold.fit()

    def share_more(self, others: Controls) -> None:
        """Let the *More* button here open the rows under that of others too, of a tab below these controls."""
        for fold in others._folds if self._folds else ():
            fold.follow(self._folds[-1])

    # hints ------------------------------------------------------------------------------------------------------------

    def hint(self, name: str, text: str) -> bool:
        """Show a hint beside a control; False if the control is not on the screen."""
        self.fit()  # the change that led here may show the control
        box = next((box for box in self._rows if self._made.get(name) in box.children), None)
        if box is None or hidden(self._made[name]):
            return False
        for fold in self._folds:
            if box in fold.box.children:
                fold.open()
        if name not in self._hints:
            self._hints[name] = Hint()
            at = box.children.index(self._made[name]) + 1
            box.children = (*box.children[:at], self._hints[name], *box.children[at:])
        self._hints[name].say(text)
        return True

    @property
    def hints(self) -> dict[str, str]:
        """The hints on the screen, by field."""
        return {name: hint.sentence for name, hint in self._hints.items() if hint.sentence}

    def clear_hints(self) -> None:
        """Remove all hints."""
        for hint in self._hints.values():
            hint.say("")

    # inside -----------------------------------------------------------------------------------------------------------

    def _fit_one(self, name: str) -> None:
        made, control = self._fields[name], self._made[name]
        if made.shown_if is not None:
            shown_if(control, bool(made.shown_if(self._panel)))
        bounds = made.extra(Bounds)
        if bounds is not None and callable(bounds.high) and (high := bounds.high(self._panel)) != control.max:
            control.max = high
        if bounds is not None and callable(bounds.low) and (low := bounds.low(self._panel)) != control.min:
            control.min = low

    def _fit_row(self, box: W.HBox) -> None:
        shown_if(box, not all(hidden(child) for child in box.children))

    def _make(self, name: str, made: Field) -> Any:
        panel = self._panel
        lines = made.extra(Lines)
        control = _control(panel, made) if made.control is None else made.control(panel)
        panel.own_widgets.add(control)  # it may be asked for on an open panel
        if made.width:
            control.add_class(f"iw-{made.width}")
        if made.control is not None:
            return control
        if lines is None:
            return panel.bind(control, name)
        return panel.bind(control, name, read=lambda text: list(lines.read(text)), write=lines.write)


class _Fold:
    """Rows of rarely used options, and the button that shows them."""

    def __init__(self, rows: Sequence[W.HBox], *, opened: bool) -> None:
        self.box = W.VBox(list(rows))
        self.box.add_class("iw-column")
        self.button = W.ToggleButton(description="More", value=opened, tooltip="Rarely used options")
        self.button.add_class("iw-more")
        self.button.observe(lambda _: self.fit(), "value")
        self._leader: _Fold | None = None
        self._followers: list[_Fold] = []
        self.fit()

    def follow(self, leader: _Fold) -> None:
        """Open and close with the fold of the stack that this panel is a tab of: one button for both."""
        self._leader = leader
        leader._followers.append(self)
        leader.button.value = self.button.value = leader.button.value or self.button.value
        leader.button.observe(lambda change: setattr(self.button, "value", change.new), "value")
        self.fit()

    def open(self) -> None:
        """Show the rows."""
        self.button.value = True
        if self._leader is not None:
            self._leader.button.value = True

    def fit(self) -> None:
        """Show or hide the rows; without any visible option there is no button."""
        some = not all(hidden(row) for row in self.box.children)
        shown_if(self.button, some and (self._leader is None or hidden(self._leader.button)))
        shown_if(self.box, some and self.button.value)
        for one in self._followers:
            one.fit()


def hidden(widget: Any) -> bool:
    """Whether a control is hidden by `shown_if`."""
    return "iw-hidden" in widget._dom_classes


def _control(panel: Any, made: Field) -> Any:
    """The control that fits a field's type."""
    common: dict[str, Any] = {"description": made.label} | ({"tooltip": made.help} if made.help else {})
    bounds, text = made.extra(Bounds), made.extra(Text) or made.extra(Lines)
    if isinstance(made.kind, dict):
        offered = made.kind if made.offers is None else made.offers(panel)
        return W.Dropdown(options=[(label, value) for value, label in made.kind.items() if value in offered], **common)
    if made.kind is bool:
        return W.Checkbox(indent=False, **common)
    if text is not None:
        return TextBox(description=made.label, hint=made.help, rows=text.rows, placeholder=made.placeholder)
    if made.kind in (int, float) or isinstance(made.kind, T.Int):
        return _number(panel, made, bounds or Bounds(), common)
    return TextLine(continuous_update=bool(made.live), placeholder=made.placeholder, **common)


def _number(panel: Any, made: Field, bounds: Bounds, common: dict[str, Any]) -> Any:
    low, high = bounds.of(panel)
    whole = made.kind is not float
    ends = {"min": 0 if low is None else low, "max": (SEED_LIMIT if whole else 1e9) if high is None else high}
    step = {} if bounds.step is None else {"step": bounds.step}
    if bounds.slider and ends["max"] - ends["min"] <= MOST_STEPS * (bounds.step or 1):
        shown = {"readout_format": bounds.shown_as} if bounds.shown_as else {}
        return (WholeSlider if whole else NumberSlider)(
            **ends, **step, **shown, continuous_update=not whole if made.live is None else made.live, **common
        )
    if not whole and (low is None or high is None):
        return W.FloatText(**step, **common)  # the trait refuses what is out of bounds, and says so
    return (WholeBox if whole else NumberBox)(**ends, **step, **common)
