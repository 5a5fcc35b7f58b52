"""Some tabs of a workbench's screen in a cell of their own."""

from __future__ import annotations

from typing import Any

import ipywidgets as W

from ..base import lifetime
from ..base.controls import row
from ..base.shell import Shown


class ShownTabs(Shown, W.VBox):
    """The texts of a screen and the panels of one or two of its tabs, which stay as they are whatever the screen shows.

    The panels are those of the screen, so a prompt, an option or a click changes them wherever they are shown. It is
    closed when its cell is run again, and with the screen; the panels stay.
    """

    closed = True
    """Whether it is closed; True until it is open."""

    def __init__(self, screen: Any, names: tuple[str, ...]) -> None:
        self.screen = screen
        """The whole `Screen`, with all tabs."""
        self.names = names
        """The tabs that are shown."""
        with lifetime.making():
            self._cards = W.HBox([screen.new_card(name) for name in names])
            self._head = row(*screen.above_panels)
            self._buttons = row()
            super().__init__([self._head, screen.texts, self._cards, self._buttons])
        self.closed = False
        for name in ("iw-panel", "iw-screen"):
            self.add_class(name)
        self._head.add_class("iw-screen-head")
        for name in ("iw-cards", "iw-cards-only", f"iw-cards-{len(names)}"):
            self._cards.add_class(name)
        lifetime.register(self)

    def describe(self) -> None:
        """Offer what the panels offer beside their picture, as the screen does beside its description."""
        panels = [self[name].current_panel for name in self.names]
        buttons = tuple(button for panel in panels if panel.results for button in panel.picture_buttons)
        if buttons != self._buttons.children:
            self._buttons.children = buttons

    def __getitem__(self, name: str) -> Any:
        """The panel of a tab."""
        return self.screen[name]

    def __repr__(self) -> str:
        return f"ShownTabs({', '.join(self.names)})"

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing runs on the screen; False if `timeout` seconds passed first, of each panel."""
        return bool(self.screen.wait(timeout))

    def replaced(self) -> None:
        """Its cell has been run again."""
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        lifetime.unregister(self)
        for card in self._cards.children:
            lifetime.close_one(card.children[0])
            lifetime.close_one(card)
        for box in (self._cards, self._head, self._buttons):
            lifetime.close_one(box)
        layout = self.layout
        super().close()
        layout.close()
        self.screen.closed_tabs(self)
