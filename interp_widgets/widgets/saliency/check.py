"""The check tab."""

from __future__ import annotations
from typing import Any
import ipywidgets as W


class CheckTab:
    def __init__(self, panel: Any) -> None:
        self.box = W.VBox([])

    def forget(self, results: Any) -> None:
        pass
