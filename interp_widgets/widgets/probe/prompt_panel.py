"""A panel that may have a prompt, whose tokens its view compares with those on the screen."""

from __future__ import annotations

from interp_widgets.analysis._core.prompts import read_prompt

from ..base.panel import Panel


class PromptPanel(Panel):
    """Base of the panels of probes: the prompt, and the prompt's tokens."""

    @property
    def read_text(self) -> str:
        """The prompt, if the function has one."""
        return str(getattr(self, "prompt", ""))

    def prompt_tokens(self) -> tuple[str, ...]:
        """The prompt's tokens without the BOS; empty without a prompt that the model can read."""
        try:
            return read_prompt(self.models[0], self.read_text).tokens()
        except ValueError:
            return ()  # the request reports what is wrong with it
