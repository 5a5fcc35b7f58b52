"""The screen of a workbench: the texts above, panels as tabs, up to two beside each other, the selection in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import ipywidgets as W
import traitlets as T

from interp_widgets.arguments import short

from ..base import lifetime
from ..base.controls import row, shown_if
from ..base.description import Step
from ..base.export import export_html
from ..base.fields import Controls
from ..base.guard import guard, guarded, handling
from ..base.heading import heading
from ..base.pair_view import page_title
from ..base.saving import SaveRow, target_of
from ..base.shell import Shell
from ..base.status import StatusLine
from ..base.workbench import SELECTED, WorkbenchState
from .selected import Selected
from .session import Present, SavedTool, Session, options_of, restore, session_of
from .shown_tabs import ShownTabs
from .texts import Texts
from .tools import TOOLS, probe_tool

FORMATS = {".npz": "NPZ: the session, for Workbench.load(file, model)", ".html": "HTML: one page of all open panels"}
BESIDE = 2
"""Most panels beside each other."""
VIEWS = [("A", "A"), ("B", "B"), ("B − A", "difference"), ("A beside B", "beside")]
FIRST = ("saliency", "logit_lens")
"""The tabs of a new screen."""


class Screen(Shell):
    """All about one prediction on one screen; `Workbench` makes it.

    The panels share prompt, response, selection, the view of two models and the status line. A panel is made when its
    tab is first opened; a hidden one takes up changes when it is shown again.
    """

    title = "Workbench"
    texts_above: ClassVar[tuple[str, ...]] = ("prompt", "response")
    """Options whose controls are here, not in the panels."""

    shown = T.Tuple()
    """The names of the tabs that are shown, the one opened last at the end."""

    def __init__(self, workbench: WorkbenchState, session: Session | None = None, now: Present | None = None) -> None:
        self.tools = dict(TOOLS)
        """The tabs by their names."""
        self._opened: dict[str, Any] = {}
        self._cards: dict[str, W.VBox] = {}
        self._tabs: dict[str, W.ToggleButton] = {}
        self._elsewhere: list[ShownTabs] = []
        self._now = now or {}
        self._notes: dict[tuple[str, str], list[str]] = {}
        self._saved = {} if session is None else {tool.name: tool for tool in session.tools}
        self.heading: W.HTML
        with lifetime.making(self):
            self.status_line = StatusLine(on_cancel=guarded(self, self.cancel))
            """The progress of all panels."""
            super().__init__(workbench, None, None, {})
            workbench.observe(self._selection_changed, SELECTED)
            usual = "A" if len(self.models) == 1 else "B"  # the model that writes the response
            self.view = usual if session is None or session.view not in dict(VIEWS).values() else session.view
            self.texts = self._make("texts", Texts)
            self._assemble()
            self._show_notes()
            self.observe(self._view_changed, "view")
            self.observe(self._shown_changed, "shown")
        lifetime.register(self)
        self.texts.appear()
        shown = () if session is None else tuple(name for name in session.shown if name in self.tools)[:BESIDE]
        self.shown = shown or FIRST

    # what the panels share --------------------------------------------------------------------------------------------

    @property
    def controls(self) -> Controls:
        """The controls above all panels."""
        return self.texts.controls

    @property
    def panels(self) -> dict[str, Any]:
        """The panels that have been opened, by the names of their tabs."""
        return dict(self._opened)

    @property
    def unopened(self) -> tuple[SavedTool, ...]:
        """The tabs of the session it was opened from that have not been opened again."""
        return tuple(self._saved.values())

    def __getitem__(self, name: str) -> Any:
        """The panel of a tab, made on first access; KeyError for an unknown tab."""
        if name not in self.tools:
            raise KeyError(f"there is no tab {name!r}: {', '.join(self.tools)}")
        with handling():
            if name not in self._opened:
                with lifetime.making():
                    panel = self._make(name, self.tools[name].load())
                    card = self._card(name, panel)
                self._opened[name], self._cards[name] = panel, card
            return self._opened[name]

    def show(self, *names: str) -> None:
        """Show these tabs beside each other; a single one beside the tab opened last."""
        for name in names:
            self[name]  # a panel that cannot be made leaves everything as it was
        kept = names if len(names) > 1 else tuple(name for name in self.shown if name not in names) + names
        self.shown = kept[-BESIDE:]

    def show_elsewhere(self, *names: str) -> ShownTabs:
        """These tabs, one or two, in a cell of their own; the screen stays as it is.

        Raises TraitError for an unknown tab, or for none or more than two.
        """
        names = self._tabs_of(names)
        panels = [self[name] for name in names]
        shown = ShownTabs(self, names)
        self._elsewhere.append(shown)
        for panel in panels:
            panel.appear()
        self.describe()
        return shown

    def closed_tabs(self, shown: ShownTabs) -> None:
        """Tabs in a cell of their own have been closed."""
        self._elsewhere = [one for one in self._elsewhere if one is not shown]
        if not self.closed:
            self._hide_unseen()

    @property
    def in_sight(self) -> tuple[str, ...]:
        """The tabs that are shown, here or in a cell of their own."""
        return tuple(dict.fromkeys((*self.shown, *(name for one in self._elsewhere for name in one.names))))

    def _hide_unseen(self) -> None:
        for name, panel in self._opened.items():
            if name not in self.in_sight:
                panel.hide()

    def add(self, name: str, kind: Any) -> None:
        """One more tab, of a panel class such as `@probe` makes.

        Raises TypeError if `kind` is not a panel class, ValueError if there is a tab with this name.
        """
        if not (isinstance(kind, type) and issubclass(kind, Shell)):
            raise TypeError(f"a tab needs a panel class, got {short(kind)}: decorate the function with @probe")
        if name in self.tools:
            raise ValueError(f"there is a tab {name!r} already: choose another name")
        self.tools[name] = probe_tool(name, lambda: kind)
        self._add_tab(name)

    def computed_anew(self, title: str, reason: str) -> None:
        """Say why a result of the session is not used, in a clause."""
        self._note("Computed anew", title, reason)

    def follow(self, panel: Any) -> None:
        """A panel has drawn its results or its selection: update the shading and the description."""
        self.describe()

    @guard
    def describe(self) -> None:
        """Shade the texts and describe the selection in words, as the shown panels do."""
        if not hasattr(self, "selected"):
            return
        self.shade()
        shown = self._shown_panels()
        words = [panel.described() for panel in (self.texts, *shown)]
        buttons = tuple(button for panel in shown if panel.results for button in panel.picture_buttons)
        self.selected.show([one for one in words if one is not None], self._is_on_screen, buttons)
        for tabs in self._elsewhere:
            tabs.describe()

    @guard
    def shade(self) -> None:
        """Shade the texts for the token under the pointer or the selected one, as the shown panels do."""
        if not hasattr(self, "selected"):
            return
        strips = self.texts.prompt_strip, self.texts.response_strip
        if not any(panel.shades(*strips) for panel in self._shown_panels()):
            self.texts.label_strips()

    def _shown_panels(self) -> list[Any]:
        return [self._opened[name].current_panel for name in self.in_sight if name in self._opened]

    @property
    def status(self) -> StatusLine:
        """The status line."""
        return self.status_line

    # what every shell does --------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Ask everything that runs to stop."""
        for panel in self._all_panels():
            panel.cancel()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing runs; False if `timeout` seconds passed first, of each panel."""
        return all(panel.wait(timeout) for _ in range(2) for panel in self._all_panels())

    @property
    def busy(self) -> bool:
        """Whether anything runs or waits."""
        return any(panel.busy for panel in self._all_panels())

    def show_error(self, error: BaseException) -> None:
        self.texts.show_error(error)

    def forget_refusal(self) -> None:
        self.texts.forget_refusal()

    @contextmanager
    def batch_changes(self) -> Iterator[None]:
        with ExitStack() as held:
            for panel in self._all_panels():
                held.enter_context(panel.batch_changes())
            yield

    def check_bounds(self, name: str, value: float) -> None:
        """A screen has no option with such ends."""

    def appear(self) -> None:
        for name in self.in_sight:
            self[name].appear()

    def hide(self) -> None:
        for panel in self._opened.values():
            panel.hide()

    def models_edited(self) -> None:
        self.heading.value = heading(self.title, self.models, brief=True)

    def end(self) -> None:
        self.workbench.unobserve(self._selection_changed, SELECTED)
        for shown in tuple(self._elsewhere):
            shown.close()
        for panel in self._all_panels():
            panel.close()

    # saving -----------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the session (.npz), to be opened by `Workbench.load`, or one page of all open panels (.html).

        Raises TypeError if `path` is not a path, ValueError for another suffix, a missing folder or an empty page.
        """
        self.check_open()
        target = target_of(path, FORMATS)
        if target.suffix.lower() == ".npz":
            return session_of(self).save(target)
        views: list[Any] = [self.texts.plot]
        for name, tool in self._opened.items():
            tool.appear()  # a hidden panel takes up changes first, or is left out
            panel = tool.current_panel
            if panel.results and (name in self.in_sight or not panel.busy):
                views += [self._cards[name].children[0], panel.plot, panel.details]
        self._hide_unseen()
        question = {"Prompt": self.texts.prompt, "Response": self.texts.response}
        if len(self.models) > 1:
            question["View"] = next(label for label, value in VIEWS if value == self.view)
        facts = self.texts.results[0].provenance if self.texts.results else None
        views += [self.selected.title, self.selected.text] * self.selected.has_text
        return export_html(page_title(self), views, target, question=question, provenance=facts)

    # inside -----------------------------------------------------------------------------------------------------------

    def _all_panels(self) -> tuple[Any, ...]:
        return (*((self.texts,) if hasattr(self, "texts") else ()), *self._opened.values())

    def _make(self, name: str, kind: Any) -> Any:
        """Make a panel or stack on this screen, as the session has it or else with its defaults."""
        saved = self._saved.pop(name, None)
        options: dict[str, Any] = {"view": self.view}
        if kind is not Texts and "regenerate" in kind.options():
            options["regenerate"] = False  # the texts above do
        if saved is None:
            return kind(self.workbench, screen=self, **options)
        title = self.tools[name].title if name in self.tools else kind.title
        try:
            tool = kind(self.workbench, screen=self, **{**options, **options_of(saved, kind)})
            for reason in restore(tool, saved, self._now):
                self.computed_anew(title, reason)
        except (ValueError, TypeError, T.TraitError) as error:
            tool = kind(self.workbench, screen=self, **options)
            self._note("Opened as usual", title, f"an option in the session cannot be used ({error})")
        labels = [one.label for option, one in kind.fields().items() if option in saved.left_out and one.label]
        if labels:
            self._note("Set again", title, f"{', '.join(labels)} is not part of a session")
        return tool

    def _note(self, what: str, title: str, why: str) -> None:
        titles = self._notes.setdefault((what, why), [])
        if title not in titles:
            titles.append(title)
        self._show_notes()

    def _show_notes(self) -> None:
        """Say what of the session could not be used, and in which tabs."""
        if hasattr(self, "note"):
            lines = [escape(f"{what} ({', '.join(titles)}): {why}.") for (what, why), titles in self._notes.items()]
            self.note.value = "<br>".join(lines)
            shown_if(self.note, bool(lines))

    def _assemble(self) -> None:
        self.add_class("iw-screen")
        self.heading = W.HTML(heading(self.title, self.models, brief=True))
        self.above_panels: list[Any] = [self.status_line]
        """The view of two models and the status, which stand above the panels wherever these are shown."""
        if len(self.models) > 1:
            self.above_panels.insert(0, self.bind(W.ToggleButtons(options=VIEWS, value=self.view), "view"))
        self.save_row = SaveRow(self, FORMATS)
        save = W.Button(description="Save", tooltip="Save the session, or a page of all open panels")
        end = W.HBox([self.on_click(save, self.save_row.toggle)])
        end.add_class("iw-end")
        self.head = row(self.heading, *self.above_panels, end)
        self.head.add_class("iw-screen-head")
        self.tab_row = W.HBox([])
        self.tab_row.add_class("iw-tabs")
        self.selected = Selected(self.tools, guarded(self, self._take))
        self.cards = W.HBox([self.selected.box])
        self.cards.add_class("iw-cards")
        self.note = W.HTML("")
        """A note about how the screen was opened, such as saved results that could not be used."""
        self.note.add_class("iw-hint")
        shown_if(self.note, False)
        self.children = (self.head, self.save_row.row, self.note, self.texts, self.tab_row, self.cards)
        for name in self.tools:
            self._add_tab(name)

    def _add_tab(self, name: str) -> None:
        tab = W.ToggleButton(description=self.tools[name].title, tooltip=self.tools[name].question)
        tab.add_class("iw-tab")
        others = [self.tools[one].about for one in self._tabs]
        if others and self.tools[name].about not in others:
            tab.add_class("iw-tab-apart")
        self._tabs[name] = self.watch(tab, "value", lambda change: self._tab_pressed(name, change.new))
        self.tab_row.children = tuple(self._tabs.values())

    def new_card(self, name: str, panel: Any = None) -> W.VBox:
        """The question of a tab above its panel."""
        question = escape(self.tools[name].question)
        title = W.HTML(f"<div class='iw-card-title' role='heading' aria-level='4'>{question}</div>")
        card = W.VBox([title, self[name] if panel is None else panel])
        card.add_class("iw-card")
        return card

    def _card(self, name: str, panel: Any) -> W.VBox:
        card = self.new_card(name, panel)
        shown_if(card, False)
        cards = {**self._cards, name: card}
        self.cards.children = (*(cards[one] for one in self.tools if one in cards), self.selected.box)
        return card

    def _is_on_screen(self, step: Step) -> bool:
        """Whether the panel that a step opens is on the screen, with its options."""
        return step.tool in self.shown and all(
            getattr(self[step.tool], name) == value for name, value in step.options.items()
        )

    def _take(self, step: Step) -> None:
        """Open the panel of a step, with its options."""
        panel = self[step.tool]
        with panel.batch_changes():
            for name, value in step.options.items():
                setattr(panel, name, value)
        if step.tool not in self.shown:
            self.show(step.tool)

    def _tab_pressed(self, name: str, pressed: bool) -> None:
        if pressed and name not in self.shown:
            self.show(name)
        elif not pressed and name in self.shown:
            rest = tuple(one for one in self.shown if one != name)
            self.shown = rest or self.shown
            self._tabs[name].value = name in self.shown

    @T.validate("shown")
    def _tabs_there(self, proposal: Any) -> tuple[str, ...]:
        return self._tabs_of(proposal.value)

    def _tabs_of(self, wanted: Any) -> tuple[str, ...]:
        """One or two different tabs; TraitError for others."""
        known = list(self.tools)  # compared, since what a user passes may not be hashable
        unknown = [name for name in wanted if name not in known]
        names = () if unknown else tuple(dict.fromkeys(wanted))
        if unknown or not 0 < len(names) <= BESIDE:
            what = f"got {short(unknown[0])}" if unknown else f"got {len(names)} of them"
            raise T.TraitError(f"shown must be one or two of {', '.join(self.tools)}, {what}")
        return names

    @guard
    def _shown_changed(self, _: Any) -> None:
        panels = {name: self[name] for name in self.shown}
        for name, tab in self._tabs.items():
            tab.value = name in panels
        for name, card in self._cards.items():
            shown_if(card, name in panels)
        self._hide_unseen()
        (self.cards.add_class if len(panels) == 1 else self.cards.remove_class)("iw-cards-1")
        self.status_line.leave_off()
        for panel in panels.values():
            panel.appear()
        for panel in self._shown_panels():
            if self.status_line.state == "idle":
                panel.ask_for_run()
        self.describe()

    @guard
    def _selection_changed(self, _: Any) -> None:
        self.describe()

    @guard
    def _view_changed(self, _: Any) -> None:
        for panel in self._all_panels():
            panel.view = self.view
        self.describe()
