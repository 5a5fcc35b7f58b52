"""Several panels on the same models, one per tab: they share prompt, selection and every option that has one name."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import ipywidgets as W
import traitlets as T

from interp_widgets.data.presets import Preset
from interp_widgets.models import Model

from . import tidy
from .fields import Controls, field
from .guard import guard, guarded, handling
from .heading import heading
from .jobs import Jobs
from .panel import Panel
from .prediction import PredictionPanel, TextInputs
from .shell import Shell, column
from .status import StatusLine
from .workbench import WorkbenchState


class Stack(Shell):
    """Base class of widgets of several panels. A subclass names them; it may fill in `defaults` and `build`.

    Every option of its panels is an option of the stack: of one name there is one value, whichever panel changes it.
    A panel is made when its tab is first opened, and only the one that is looked at computes; another one answers to
    what has changed when its tab is opened again. `run`, `result`, `save` and `status` are those of the panel that is
    looked at, `stack["name"]` is the panel of a tab. There is no tab of a panel that `lacks` something in the models.

    >>> import types
    >>> from interp_widgets.widgets.base.fields import field
    >>> def power(model, *, n, exponent=2):
    ...     return n**exponent
    >>> class Squares(Panel):
    ...     title, analysis = "Squares", staticmethod(power)
    ...     n = field(int, 3, label="Number")
    >>> class Powers(Squares):
    ...     title = "Powers"
    ...     exponent = field(int, 5, label="Exponent")
    >>> class Numbers(Stack):
    ...     title, panels = "Numbers", {"squares": Squares, "powers": Powers}
    >>> stack = Numbers(types.SimpleNamespace(name="a model", device="cpu"), n=2)
    >>> stack.result, stack.exponent
    (4, 5)
    >>> stack.tab = "powers"
    >>> stack.wait(), stack.result, stack["squares"].n
    (True, 32, 2)
    >>> stack.close()
    """

    panels: ClassVar[Mapping[str, type[Panel]]] = {}
    """The class of each tab's panel, under the tab's name."""
    one_status: ClassVar[bool] = False
    """Whether the panels share one status line, below the tabs, since one works while another is looked at."""
    texts_above: ClassVar[bool] = False
    """Whether the texts of a prediction stand above the tabs; else each panel that asks for them has its own."""
    tab: str
    """The tab that is looked at."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.panels:
            return
        shared: dict[str, Any] = {}
        for kind in cls.panels.values():
            shared |= {name: kind.class_traits()[name] for name in kind.options() if name not in shared}
        own = {"tab": field({name: name.title() for name in cls.panels}, next(iter(cls.panels)), argument=None)}
        for name, trait in own.items() | {name: copy.copy(trait) for name, trait in shared.items()}.items():
            if name not in vars(cls) and not (name in own and name in cls.class_trait_names()):
                setattr(cls, name, trait)
                trait.class_init(cls, name)

    def __init__(
        self,
        model: Model,
        tuned: Any = None,
        *,
        workbench: WorkbenchState | None = None,
        screen: Any = None,
        **traits: Any,
    ) -> None:
        self._opened: dict[str, Panel] = {}
        self.active = screen is None
        """Whether it can be seen."""
        self.status_line: StatusLine | None = None if screen is None else screen.status_line
        """The status line of all tabs, where they have one."""
        super().__init__(model, tuned, workbench, traits, screen)
        try:
            self.fitting = {name: kind for name, kind in self.panels.items() if not kind.lacks(self.models)}
            """The panels that fit the models, under the names of their tabs."""
            self._usual = self.defaults({*traits, *self.workbench.given})
            self._start_values = {**self._usual, **traits}
            for name, value in self._start_values.items():
                setattr(self, name, value)
            self.workbench.join(self, given=self._start_values)
            self.controls = Controls(self)
            if self.one_status and self.status_line is None:
                self.status_line = StatusLine(on_cancel=guarded(self, self.cancel))
            self._assemble()
        except BaseException:
            self.close()
            raise
        if self.active:
            tidy.register(self)
            self.appear()

    # hooks ------------------------------------------------------------------------------------------------------------

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        """Values to start with besides the panels' own; `keywords` names those set by the user or on the workbench."""
        return {}

    def build(self) -> None:
        """Put what all panels share above the tabs, into `self.inputs`."""

    def tab_title(self, name: str) -> str:
        """What a tab is called."""
        return name[:1].upper() + name[1:].replace("_", " ")

    # the panels -------------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Panel:
        """The panel of a tab, which is made when it is first asked for; KeyError for a tab that is not there."""
        if name not in self.fitting:
            raise KeyError(f"there is no tab {name!r}: {', '.join(self.fitting)}")
        with handling():  # comm messages come in threads of their own: one panel per tab, whoever asks first
            if name not in self._opened:
                self._make(name)
            return self._opened[name]

    @property
    def opened_panels(self) -> dict[str, Panel]:
        """The panels that have been made, by the names of their tabs."""
        return dict(self._opened)

    @property
    def usual(self) -> dict[str, Any]:
        """What it and its panels start with where the user and the workbench say nothing."""
        return {name: value for kind in self._opened.values() for name, value in kind.usual.items()} | self._usual

    @property
    def current(self) -> Panel:
        """The panel that is looked at."""
        return self[self.tab]

    @property
    def current_panel(self) -> Panel:
        """The panel that is looked at."""
        return self.current

    @property
    def jobs(self) -> Jobs:
        """The runs of the panel that is looked at."""
        return self.current.jobs

    @property
    def status(self) -> StatusLine:
        """The status line of the panel that is looked at."""
        return self.current.status if self.status_line is None else self.status_line

    @property
    def result(self) -> Any:
        """The last good result of the panel that is looked at."""
        return self.current.result

    @property
    def results(self) -> tuple[Any, ...]:
        """The results on the screen, one per model."""
        return self.current.results

    @property
    def hints(self) -> dict[str, str]:
        """What is said beside controls that are not filled in, by their fields."""
        return self.current.hints

    @property
    def busy(self) -> bool:
        """Whether any of the panels has a run that is going on or waiting."""
        return any(panel.busy for panel in tuple(self._opened.values()))

    def run(self, *, fresh: bool = False) -> Any:
        """What the panel that is looked at computes; see :meth:`Panel.run`."""
        if self.closed:
            raise RuntimeError(f"this {type(self).__name__} is closed: open a new one")
        return self.current.run(fresh=fresh)

    def go(self) -> None:
        """Press Run of the panel that is looked at."""
        self.current.go()

    def cancel(self) -> None:
        """Ask everything that the panels run to stop."""
        for panel in tuple(self._opened.values()):
            panel.cancel()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing that the panels run is left; False if `timeout` seconds passed first."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.busy:
            for panel in tuple(self._opened.values()):
                if not panel.wait(None if end is None else max(0.0, end - time.monotonic())):
                    return False
        return True

    def open_tab(self, tab: str, **values: Any) -> None:
        """Set options and open a tab."""
        with self.hold():
            for name, value in {**values, "tab": tab}.items():
                setattr(self, name, value)

    def save(self, path: str | Path) -> Path:
        """Write what the panel that is looked at shows; see :meth:`Panel.save`."""
        return self.current.save(path)

    def show_error(self, error: BaseException) -> None:
        self.current.show_error(error)

    def forget_refusal(self) -> None:
        if self.tab in self._opened:
            self.current.forget_refusal()

    @contextmanager
    def hold(self) -> Iterator[None]:
        with ExitStack() as held:
            with handling():  # a tab that another thread is opening is there afterwards
                for panel in tuple(self._opened.values()):
                    held.enter_context(panel.hold())
            yield

    def appear(self) -> None:
        self.active = True
        self.current.appear()

    def hide(self) -> None:
        self.active = False
        for panel in self._opened.values():
            panel.hide()

    def end(self) -> None:
        for panel in tuple(self._opened.values()):
            panel.close()
        if (
            self.screen is None and self.status_line is not None and self.status_line.comm is not None
        ):  # no tab has shown it yet
            tidy.close_one(self.status_line)

    def models_edited(self) -> None:
        super().models_edited()
        for panel in tuple(self._opened.values()):
            panel.models_edited()

    def notify_change(self, change: Any) -> None:
        with self.hold():  # what follows from one change is one change for the panels
            super().notify_change(change)

    # inside -----------------------------------------------------------------------------------------------------------

    def _assemble(self) -> None:
        self.inputs = column("iw-inputs")
        names = tuple(self.fitting)
        boxes, titles = [W.VBox() for _ in names], [self.tab_title(name) for name in names]
        self.tabs: Any = (
            W.Tab(boxes, titles=titles, selected_index=names.index(self.tab))
            if len(names) > 1
            else W.VBox(boxes)  # a bar of one tab would say nothing
        )
        self.heading = None if self.screen is not None else W.HTML(heading(self.title, self.models))
        title = () if self.heading is None else (self.heading,)
        self.children = (*title, self.inputs, self.tabs)
        self._make(self.tab)
        self.observe(self._changed, [name for name in self.options() if name != "tab"])
        self.watch(self.tabs, "selected_index", lambda change: setattr(self, "tab", names[change.new or 0]))
        self.observe(self._open_tab, "tab")
        self.build()

    @T.validate("tab")
    def _tab_there(self, proposal: Any) -> str:
        name = str(proposal.value)
        if lacking := self.panels[name].lacks(self.models):
            raise T.TraitError(f"the tab {name!r} needs {lacking}")
        return name

    @guard
    def _open_tab(self, _: Any = None) -> None:
        current = self.current
        self.tabs.selected_index = tuple(self.fitting).index(self.tab)
        if not self.active:
            return
        for panel in self._opened.values():
            if panel is not current:
                panel.hide()
                panel.forget_refusal()  # on a shared line, where it would stand as said of this tab
        line = self.status_line
        if line is not None and line.state == "waiting":
            line.idle()  # that was said of the tab before
        current.appear()
        if line is not None and line.state == "idle" and current.forecast_label.value:
            line.waiting(current.forecast_label.value, first=not current.results)
        if self.screen is not None:
            self.screen.follow(current)

    def _make(self, name: str) -> None:
        """Make the panel of a tab: what was given or chosen counts, else what the panel starts with."""
        kind = self.panels[name]
        shared = [option for option in kind.options() if self.has_trait(option)]
        usual = {option: self.traits()[option].default(self) for option in shared}
        chosen = {
            option: getattr(self, option)
            for option in shared
            if option in {*self._start_values, *self.workbench.given}
            or getattr(self, option) != usual[option]
            or any(panel.has_trait(option) for panel in self._opened.values())
        }
        panel = kind(self.workbench, stack=self, screen=self.screen, **chosen)
        self._opened[name] = panel
        for option in shared:
            if option not in chosen:
                setattr(self, option, getattr(panel, option))
        self.workbench.start(self, shared)
        panel.observe(self._panel_changed, shared)
        # in a box that was there: a page whose tab gets another child looks at the tab before it
        self.tabs.children[tuple(self.fitting).index(name)].children = [panel]

    def _panel_changed(self, change: Any) -> None:
        """One of the panels has changed what all share."""
        with handling():
            setattr(self, change.name, change.new)

    def _changed(self, change: Any) -> None:
        """Hand a value on to every panel that has the option."""
        with handling():
            for panel in self._opened.values():
                if panel.has_trait(change.name) and getattr(panel, change.name) != change.new:
                    try:
                        panel.set_trait(change.name, change.new)
                    except T.TraitError as error:
                        panel.show_error(error)


class PredictionStack(Stack):
    """Base of the stacks whose panels look into one prediction: its texts stand above the tabs."""

    texts_above: ClassVar[bool] = True

    def build(self) -> None:
        self.texts = TextInputs(self)
        self.inputs.children = self.texts.rows

    @property
    def preset_fields(self) -> tuple[str, ...]:
        """Options that belong to an example's prompt besides the target."""
        return tuple(dict.fromkeys(name for kind in self._kinds() for name in kind.preset_fields))

    @property
    def selects_position(self) -> bool:
        """Whether `position` is a token of what the model has read."""
        return any(kind.selects_position for kind in self._kinds())

    @classmethod
    def _kinds(cls) -> list[type[PredictionPanel]]:
        return [kind for kind in cls.panels.values() if issubclass(kind, PredictionPanel)]

    def preset_values(self, chosen: Preset) -> dict[str, Any]:
        """Values of the panels' options that go with an example."""
        return {name: value for kind in self._kinds() for name, value in kind.preset_values(chosen).items()}

    def require(self, *names: str) -> None:
        """Raise `Incomplete` where a required option is empty."""
        self.current.require(*names)

    def texts_read(self) -> None:
        """Other tokens have been read."""
        for panel in self._opened.values():
            if isinstance(panel, PredictionPanel):
                panel.texts_read()
