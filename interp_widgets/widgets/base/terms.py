"""*Terms* in the menu of a panel: what the words that stand on it mean."""

from __future__ import annotations

import re
from html import escape, unescape
from typing import Any

import ipywidgets as W

from interp_widgets.glossary import TERMS, terms_in

from . import lifetime
from .controls import shown_if

NONE = "None of the words on this panel is in the glossary."


def words_on(box: Any) -> str:
    """All titles, labels, options and sentences on a panel, shown or folded, as one text."""
    return " · ".join(_words_of(widget) for widget in lifetime.descendants(box))


def _words_of(widget: Any) -> str:
    if isinstance(widget, W.HTML):
        return unescape(re.sub(r"<[^>]*>", " ", widget.value))
    parts = [getattr(widget, "wording", ""), getattr(widget, "description", ""), getattr(widget, "value", "")]
    return " · ".join(part for part in parts if isinstance(part, str))


class TermsBox(W.HTML):
    """The terms of a panel with their definitions; hidden until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.add_class("iw-terms")
        shown_if(self, False)

    def toggle(self, box: Any) -> bool:
        """Show the terms of what is on a panel now, or hide them; whether they are shown."""
        opened = "iw-hidden" in self._dom_classes
        if opened:
            self.value = ""  # its own words are not the panel's
            lines = [f"<dt>{escape(term)}</dt><dd>{escape(TERMS[term])}</dd>" for term in terms_in(words_on(box))]
            self.value = f"<dl>{''.join(lines)}</dl>" if lines else escape(NONE)
        shown_if(self, opened)
        return opened
