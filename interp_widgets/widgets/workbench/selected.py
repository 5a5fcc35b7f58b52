"""The side of the screen: what is selected, in words, and what to look at next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import ipywidgets as W

from ..base.controls import instruction, shown_if
from ..base.description import Description, Step
from .tools import Tool

STEPS = 3
"""Most buttons: those that the panels name come first."""


class Selected:
    """A box of words and of buttons that open another panel for the same selection."""

    def __init__(self, offered: Mapping[str, Tool], take: Callable[[Step], object]) -> None:
        self.text = W.HTML("")
        self.said = False
        """Whether anything is selected that the panels say something of."""
        self.steps = {name: W.Button(tooltip=f"{tool.title}: {tool.question}") for name, tool in offered.items()}
        """The buttons, by the names of the tabs that they open."""
        self._usual = {name: Step(name, tool.step) for name, tool in offered.items() if tool.step}
        self._steps: dict[str, Step] = {}
        for name, button in self.steps.items():
            button.on_click(lambda _button, name=name: take(self._steps[name]))
        self.title = W.HTML("<div class='iw-card-title' role='heading' aria-level='4'>Selected</div>")
        self.box = W.VBox([self.title, self.text, *self.steps.values()])
        for name in ("iw-card", "iw-selected"):
            self.box.add_class(name)

    def show(self, words: Iterable[Description], there: Callable[[Step], bool]) -> None:
        """Say what the panels say, and offer what they name, else every panel; but for what is `there` already."""
        said = list(words)
        html = "".join(one.html() for one in said)
        self.said = bool(html)
        self.text.value = html or instruction("Click a token: what the panels say of it stands here.")
        steps = {step.tool: step for one in said for step in one.steps}
        steps |= {name: step for name, step in self._usual.items() if name not in steps}
        self._steps = dict([(name, step) for name, step in steps.items() if not there(step)][:STEPS])
        for name, button in self.steps.items():
            shown_if(button, name in self._steps)
            if name in self._steps:
                button.description = self._steps[name].label
