"""The switch that applies a panel's edits to the models of its workbench, and undoes them."""

from __future__ import annotations

from typing import Any

import ipywidgets as W

from interp_widgets.compute.worker import Job
from interp_widgets.models import ModelEdit


class EditSwitch:
    """A toggle button for the trait ``on`` of a panel whose results have an ``edit`` each."""

    def __init__(self, panel: Any) -> None:
        self._panel = panel
        self.applied: tuple[ModelEdit, ...] = ()
        """The panel's edits that are applied to the models; empty while the switch is off."""
        self.button = panel.bind(W.ToggleButton(tooltip="Use the edited model in every panel of this workbench"), "on")
        self._update_label()
        panel.watch(panel, "on", lambda _: self._switched())

    def follow(self) -> None:
        """Switch off if another panel has replaced the edits of the workbench."""
        if self._panel.workbench.edits is not self.applied:
            self.applied = ()
            self._panel.on = False

    def end(self) -> None:
        """Undo the edits; the panel is being closed."""
        if self.applied:
            self._panel.workbench.end_edits()

    def _update_label(self) -> None:
        self.button.description = f"Switch the edit {'off' if self._panel.on else 'on'}"

    def _switched(self) -> None:
        """Apply the edits on the screen, or undo them, as soon as the models are idle."""
        self._update_label()
        panel = self._panel
        if not panel.on and not self.applied:
            return
        edits = tuple(result.edit for result in panel.results) if panel.on else ()
        wanted = len(panel.models) * panel.on

        def work(job: Job) -> ValueError | None:
            if len(edits) < wanted:
                return ValueError("there is no edit yet: wait until it is computed, or press Run")
            try:
                panel.workbench.put_edits(edits)
            except ValueError as error:
                return error
            return None

        def done(error: ValueError | None) -> None:
            if error is not None:
                panel.on = False
                raise error
            self.applied = panel.workbench.edits
            panel.workbench.notify_panels()

        panel.jobs.start(work, done, title="Switching the edit", channel="switch", quiet=True)
