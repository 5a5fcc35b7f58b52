"""The switch that puts the edits of a panel in force for every panel of its workbench, and takes them back."""

from __future__ import annotations

from typing import Any

import ipywidgets as W

from interp_widgets.compute.worker import Job
from interp_widgets.models import ModelEdit


class EditSwitch:
    """A button joined to the trait ``on`` of a panel whose results hold an ``edit`` each."""

    def __init__(self, panel: Any) -> None:
        self._panel = panel
        self.in_force: tuple[ModelEdit, ...] = ()
        """The panel's edits that the models compute with; empty while the switch is off."""
        self.button = panel.bind(
            W.ToggleButton(tooltip="Every panel of this workbench then shows the edited model"), "on"
        )
        self._say()
        panel.watch(panel, "on", lambda _: self._turned())

    def follow(self) -> None:
        """The edits of the workbench have changed: where another panel has put its own in the place, it is off."""
        if self._panel.workbench.edits is not self.in_force:
            self.in_force = ()
            self._panel.on = False

    def end(self) -> None:
        """The panel is closed: its edits are taken back."""
        if self.in_force:
            self._panel.workbench.end_edits()

    def _say(self) -> None:
        self.button.description = f"Switch the edit {'off' if self._panel.on else 'on'}"

    def _turned(self) -> None:
        """Put the edits on the screen in force, or take them back, once the models do not compute."""
        self._say()
        panel = self._panel
        if not panel.on and not self.in_force:
            return
        edits = tuple(result.edit for result in panel.results) if panel.on else ()
        wanted = len(panel.models) * panel.on

        def work(job: Job) -> ValueError | None:
            if len(edits) < wanted:
                return ValueError("there is no edit yet: wait until it is made, or press Run")
            try:
                panel.workbench.put_edits(edits)
            except ValueError as error:
                return error
            return None

        def done(error: ValueError | None) -> None:
            if error is not None:
                panel.on = False
                raise error
            self.in_force = panel.workbench.edits
            panel.workbench.notify_panels()

        panel.jobs.start(work, done, title="Switching the edit", channel="switch", quiet=True)
