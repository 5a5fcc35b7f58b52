"""A box to write a text in."""

from __future__ import annotations

from pathlib import Path

import traitlets as t

from interp_widgets.widgets.views.base import View


class TextBox(View):
    """A labelled box of several lines.

    What is typed counts after 400 ms without a key, at Ctrl+Enter, and when the box is left.

    >>> TextBox(description="Prompt", value="Paris is in").value
    'Paris is in'
    """

    _esm = (Path(__file__).parent / "text_box.js").read_text(encoding="utf-8")

    value = t.Unicode("").tag(sync=True, echo_update=False, from_page=lambda _, value: isinstance(value, str))
    """The text. It is not sent back to the browser it comes from: no message could hold half a surrogate pair."""
    description = t.Unicode("").tag(sync=True)
    """The label above the box."""
    placeholder = t.Unicode("").tag(sync=True)
    """The placeholder of an empty box."""
    hint = t.Unicode("").tag(sync=True)
    """What the text is for, in the tooltip."""
    rows = t.Int(3, min=1).tag(sync=True)
    """Lines of the box."""

    def __repr__(self) -> str:
        return f"TextBox(description={self.description!r}, {len(self.value)} characters)"
