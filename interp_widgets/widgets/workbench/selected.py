"""The box beside the panels: the selection in words, and what to look at next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import ipywidgets as W

from ..base.controls import instruction, shown_if
from ..base.description import Description, Step
from .tools import Tool

STEPS = 3
"""Maximum number of buttons; those that the panels suggest come first."""


class Selected:
    """A box with a description and with buttons that open another panel for the same selection."""

    def __init__(self, offered: Mapping[str, Tool], take: Callable[[Step], object]) -> None:
        self.text = W.HTML("")
        self.has_text = False
        """Whether a panel describes the selection."""
        self.steps = {name: W.Button(tooltip=f"{tool.title}: {tool.question}") for name, tool in offered.items()}
        """The buttons, by the names of the tabs that they open."""
        self._usual = {name: Step(name, tool.step) for name, tool in offered.items() if tool.step}
        self._steps: dict[str, Step] = {}
        for name, button in self.steps.items():
            button.on_click(lambda _button, name=name: self._pressed(name, take))
        self.title = W.HTML("<div class='iw-card-title' role='heading' aria-level='4'>Selected</div>")
        self.box = W.VBox([self.title, self.text, *self.steps.values()])
        self._of_panels: tuple[W.Button, ...] = ()
        for name in ("iw-card", "iw-selected"):
            self.box.add_class(name)

    def _pressed(self, name: str, take: Callable[[Step], object]) -> None:
        if name in self._steps:  # else the page is behind
            take(self._steps[name])

    def show(
        self, found: Iterable[Description], is_shown: Callable[[Step], bool], buttons: tuple[W.Button, ...] = ()
    ) -> None:
        """Show the panels' descriptions and `buttons`; offer the steps that the panels suggest, then the usual ones,
        unless shown."""
        if buttons != self._of_panels:
            self._of_panels = buttons
            self.box.children = (self.title, self.text, *buttons, *self.steps.values())
        descriptions = list(found)
        html = "".join(one.html() for one in descriptions)
        self.has_text = bool(html)
        self.text.value = html or instruction("Click a token: what the panels find about it is listed here.")
        steps = {step.tool: step for one in descriptions for step in one.steps}
        steps |= {name: step for name, step in self._usual.items() if name not in steps}
        self._steps = dict([(name, step) for name, step in steps.items() if not is_shown(step)][:STEPS])
        for name, button in self.steps.items():
            shown_if(button, name in self._steps)
            if name in self._steps:
                button.description = self._steps[name].label
