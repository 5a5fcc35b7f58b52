"""The menu in the head of a panel: what one does with the whole panel, behind one button."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import traitlets as T

from ..views.base import View

_HERE = Path(__file__).parent


class Menu(View):
    """A button that opens a list of actions; one that has a state shows it as a tick."""

    _esm = (_HERE / "menu.js").read_text(encoding="utf-8")

    entries = T.List(T.Dict()).tag(sync=True)
    """Label, help and `checked` of each action, in order; `checked` is None for one without a state."""

    def __init__(self) -> None:
        super().__init__()
        self._actions: dict[str, Callable[[], object]] = {}
        self.on_msg(self._message)

    def add(self, label: str, help: str, action: Callable[[], object], *, checked: bool | None = None) -> None:
        """One more action, `action()` when it is chosen."""
        self._actions[label] = action
        self.entries = [*self.entries, {"label": label, "help": help, "checked": checked}]

    def check(self, label: str, checked: bool) -> None:
        """Show the state of an action."""
        self.entries = [{**one, "checked": checked} if one["label"] == label else one for one in self.entries]

    def _message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        label = content.get("label") if content.get("event") == "choose" else None
        if isinstance(label, str) and label in self._actions:
            self._actions[label]()
