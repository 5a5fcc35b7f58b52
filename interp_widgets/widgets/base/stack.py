"""Several panels on the same models, one per tab: they share prompt, selection and every option of the same name."""

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
from interp_widgets.renamed import renamed

from . import lifetime
from .fields import Controls, field
from .guard import guard, guarded, handling
from .heading import heading
from .jobs import Jobs
from .panel import Panel
from .prediction import PredictionPanel, TextInputs, first_example
from .shell import Shell, column
from .status import StatusLine
from .workbench import WorkbenchState


class Stack(Shell):
    """Base class of widgets of several panels. A subclass names them and may implement `defaults` and `build`.

    Every option of its panels is an option of the stack: options of the same name have one value on all panels.
    A panel is made when its tab is first opened, and only the active one computes; the others respond to
    changes when their tabs are opened again. `run`, `result`, `save` and `status` are those of the active
    panel; `stack["name"]` is the panel of a tab. A panel that misses something in the models
    (`missing_requirement`) gets no tab.

    Example:
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
        >>> stack = Numbers(model, n=2)
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
    """Whether the panels share one status line, below the tabs, since one may compute while another is active."""
    texts_above: ClassVar[bool] = False
    """Whether the texts of a prediction are above the tabs; else each panel has its own."""
    tab: str
    """The active tab."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.panels:
            return
        shared: dict[str, Any] = {}
        for kind in cls.panels.values():
            renamed(**kind.old_options())(cls)
            shared |= {name: kind.class_traits()[name] for name in kind.options() if name not in shared}
        tab = {"tab": field({name: name.title() for name in cls.panels}, next(iter(cls.panels)), argument=None)}
        for name, trait in tab.items() | {name: copy.copy(trait) for name, trait in shared.items()}.items():
            if name not in vars(cls) and not (name in tab and name in cls.class_trait_names()):
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
        """Whether it is visible."""
        self.status_line: StatusLine | None = None if screen is None else screen.status_line
        """The status line of all tabs, if they share one."""
        with lifetime.making(self):
            super().__init__(model, tuned, workbench, traits, screen)
            self.fitting = {
                name: kind for name, kind in self.panels.items() if not kind.missing_requirement(self.models)
            }
            """The panels that fit the models, under the names of their tabs."""
            self._usual = self.defaults({*traits, *self.workbench.given})
            self._start_values = {**self._usual, **traits}
            for name, value in self._start_values.items():
                setattr(self, name, value)
            for name in self.fields():
                getattr(self, name)  # a default, which panels adapt to the models, is set when it is first read
            self.workbench.join(self, given=self._start_values, usual=set(self._usual) - set(traits))
            self.controls = Controls(self)
            if self.one_status and self.status_line is None:
                self.status_line = StatusLine(on_cancel=guarded(self, self.cancel))
            self._assemble()
        if self.active:
            lifetime.register(self)
            self.appear()

    # hooks ------------------------------------------------------------------------------------------------------------

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        """Start values besides the panels' defaults; `keywords` names those set by the user or on the workbench."""
        return {}

    def build(self) -> None:
        """Put the controls that all panels share into `self.inputs`, above the tabs."""

    def tab_title(self, name: str) -> str:
        """The label of a tab."""
        return self.panels[name].tab_name or name[:1].upper() + name[1:].replace("_", " ")

    # the panels -------------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Panel:
        """The panel of a tab, made on first access; KeyError for an unknown tab."""
        if name not in self.fitting:
            raise KeyError(f"there is no tab {name!r}: {', '.join(self.fitting)}")
        with handling():  # comm messages arrive in other threads: one panel per tab, whichever is first
            if name not in self._opened:
                self._make(name)
            return self._opened[name]

    @property
    def opened_panels(self) -> dict[str, Panel]:
        """The panels that have been made, by the names of their tabs."""
        return dict(self._opened)

    @property
    def usual(self) -> dict[str, Any]:
        """Start values of it and its panels where the user and the workbench set none."""
        return {name: value for kind in self._opened.values() for name, value in kind.usual.items()} | self._usual

    @property
    def current(self) -> Panel:
        """The active panel."""
        return self[self.tab]

    @property
    def current_panel(self) -> Panel:
        """The active panel."""
        return self.current

    @property
    def jobs(self) -> Jobs:
        """The runs of the active panel."""
        return self.current.jobs

    @property
    def status(self) -> StatusLine:
        """The status line of the active panel."""
        return self.current.status if self.status_line is None else self.status_line

    @property
    def result(self) -> Any:
        """The last good result of the active panel."""
        return self.current.result

    @property
    def results(self) -> tuple[Any, ...]:
        """The results on the screen, one per model."""
        return self.current.results

    @property
    def hints(self) -> dict[str, str]:
        """The hints beside controls that are not filled in, by field."""
        return self.current.hints

    @property
    def busy(self) -> bool:
        """Whether any panel has a run under way or queued."""
        return any(panel.busy for panel in tuple(self._opened.values()))

    def run(self, *, fresh: bool = False) -> Any:
        """Run the active panel; see :meth:`Panel.run`."""
        self.check_open()
        return self.current.run(fresh=fresh)

    def go(self) -> None:
        """Press Run on the active panel."""
        self.current.go()

    def cancel(self) -> None:
        """Cancel every run of the panels."""
        for panel in tuple(self._opened.values()):
            panel.cancel()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no run of the panels is left; False if `timeout` seconds passed first."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.busy:
            for panel in tuple(self._opened.values()):
                if not panel.wait(None if end is None else max(0.0, end - time.monotonic())):
                    return False
        return True

    def open_tab(self, tab: str, **values: Any) -> None:
        """Set options and open a tab."""
        with self.batch_changes():
            for name, value in {**values, "tab": tab}.items():
                setattr(self, name, value)

    def save(self, path: str | Path, *, width: str | int | None = None) -> Path:
        """Save the active panel; see :meth:`Panel.save`."""
        return self.current.save(path, width=width)

    def show_error(self, error: BaseException) -> None:
        self.current.show_error(error)

    def forget_refusal(self) -> None:
        if self.tab in self._opened:
            self.current.forget_refusal()

    @contextmanager
    def batch_changes(self) -> Iterator[None]:
        with ExitStack() as stack:
            with handling():  # waits for a tab that another thread is opening
                for panel in tuple(self._opened.values()):
                    stack.enter_context(panel.batch_changes())
            yield

    def check_bounds(self, name: str, value: float) -> None:
        for panel in self._opened.values():
            if panel.has_trait(name):
                panel.check_bounds(name, value)

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

    def models_edited(self) -> None:
        super().models_edited()
        for panel in tuple(self._opened.values()):
            panel.models_edited()

    def notify_change(self, change: Any) -> None:
        with self.batch_changes():  # panels respond once to a change and its consequences
            super().notify_change(change)

    # inside -----------------------------------------------------------------------------------------------------------

    def _assemble(self) -> None:
        self.inputs = column("iw-inputs")
        names = tuple(self.fitting)
        boxes, titles = [W.VBox() for _ in names], [self.tab_title(name) for name in names]
        self.tabs: Any = (
            W.Tab(boxes, titles=titles, selected_index=names.index(self.tab))
            if len(names) > 1
            else W.VBox(boxes)  # a single tab needs no tab bar
        )
        self.heading = None if self.screen is not None else W.HTML(heading(self.title, self.models))
        title = () if self.heading is None else (self.heading,)
        self.children = (*title, self.inputs, self.tabs)
        self.observe(self._changed, [name for name in self.options() if name != "tab"])
        self._make(self.tab)
        self.watch(self.tabs, "selected_index", lambda change: setattr(self, "tab", names[change.new or 0]))
        self.observe(self._open_tab, "tab")
        self.build()
        self.controls.share_more(self[self.tab].controls)

    @T.validate("tab")
    def _tab_there(self, proposal: Any) -> str:
        name = str(proposal.value)
        if lacking := self.panels[name].missing_requirement(self.models):
            raise T.TraitError(f"the tab {name!r} needs {lacking}")
        return name

    @guard
    def _open_tab(self, change: Any) -> None:
        try:
            current = self.current
        except Exception:  # a panel that cannot be made: the error is shown on the tab before
            self.tabs.selected_index = tuple(self.fitting).index(change.old)
            self.tab = change.old
            raise
        self.tabs.selected_index = tuple(self.fitting).index(self.tab)
        if not self.active:
            return
        for panel in self._opened.values():
            if panel is not current:
                panel.hide()
                panel.forget_refusal()  # on a shared line, where it would stand as said of this tab
        line = self.status_line
        if line is not None:
            line.leave_off()
        current.appear()
        if line is not None and line.state == "idle":
            current.ask_for_run()
        if self.screen is not None:
            self.screen.follow(current)

    def _make(self, name: str) -> None:
        """Make the panel of a tab: values that were passed or chosen override the panel's defaults."""
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
        try:
            with lifetime.making():
                panel = kind(self.workbench, stack=self, screen=self.screen, **chosen)
                self._opened[name] = panel
                for option in shared:  # a chosen one too: the panel resets a selection that its texts do not have
                    setattr(self, option, getattr(panel, option))
                self.workbench.start(self, shared)
        except BaseException:
            self._opened.pop(name, None)
            raise
        panel.observe(self._panel_changed, shared)
        self.controls.share_more(panel.controls)
        # in an existing box: a page switches to the previous tab if a tab's child is replaced
        self.tabs.children[tuple(self.fitting).index(name)].children = [panel]

    def _panel_changed(self, change: Any) -> None:
        """Take over a shared value that one of the panels has changed."""
        with handling():
            setattr(self, change.name, getattr(change.owner, change.name))  # it may have changed again since

    def _changed(self, change: Any) -> None:
        """Pass a value on to every panel that has the option."""
        with handling():
            for panel in self._opened.values():
                value = getattr(self, change.name)
                if panel.has_trait(change.name) and getattr(panel, change.name) != value:
                    try:
                        panel.set_trait(change.name, value)
                    except T.TraitError as error:
                        panel.show_error(error)


class PredictionStack(Stack):
    """Base of the stacks whose panels study one prediction; its texts are above the tabs."""

    texts_above: ClassVar[bool] = True

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        """An example, also where the first tab studies no prediction: its texts stand above every tab."""
        return first_example(self, keywords)

    def build(self) -> None:
        self.texts = TextInputs(self)
        self.texts.start()
        self.inputs.children = self.texts.rows

    @property
    def preset_fields(self) -> tuple[str, ...]:
        """Options that belong to an example's prompt besides the target."""
        return tuple(dict.fromkeys(name for kind in self._kinds() for name in kind.preset_fields))

    @classmethod
    def _kinds(cls) -> list[type[PredictionPanel]]:
        return [kind for kind in cls.panels.values() if issubclass(kind, PredictionPanel)]

    def preset_values(self, chosen: Preset) -> dict[str, Any]:
        """Values of the panels' options that belong to an example."""
        return {name: value for kind in self._kinds() for name, value in kind.preset_values(chosen).items()}

    def require(self, *names: str) -> None:
        """Raise `Incomplete` where a required option is empty."""
        self.current.require(*names)

    def texts_read(self) -> None:
        """Called after the tokens of the context have changed."""
        for panel in self._opened.values():
            if isinstance(panel, PredictionPanel):
                panel.texts_read()
