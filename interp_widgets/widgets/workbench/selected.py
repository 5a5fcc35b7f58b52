"""The side of the screen: what is selected, in words, and what to look at next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import ipywidgets as W

from ..base.controls import shown_if
from ..base.words import Words
from .tools import Tool


class Selected:
    """A box of words and of buttons that open another panel for the same selection."""

    def __init__(self, offered: Mapping[str, Tool], show: Callable[[str], object]) -> None:
        self.text = W.HTML("")
        self.steps = {
            name: W.Button(description=tool.step, tooltip=f"{tool.title}: {tool.question}")
            for name, tool in offered.items()
            if tool.step
        }
        for name, button in self.steps.items():
            button.on_click(lambda _button, name=name: show(name))
        title = W.HTML("<div class='iw-card-title' role='heading' aria-level='4'>Selected</div>")
        self.box = W.VBox([title, self.text, *self.steps.values()])
        for name in ("iw-card", "iw-selected"):
            self.box.add_class(name)

    def show(self, words: Iterable[Words], shown: Iterable[str]) -> None:
        """Say what the panels say, and offer the panels that are not shown."""
        html = "".join(one.html() for one in words)
        self.text.value = html or "<p class='iw-hint'>Click a token: what the panels say of it stands here.</p>"
        for name, button in self.steps.items():
            shown_if(button, name not in shown)
