"""A notebook cell that repeats what a head word browser shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.code import call, cell
from .request import SavedRequest, variables

if TYPE_CHECKING:
    from .browser import HeadWordBrowser


def source_code(panel: HeadWordBrowser, request: Any) -> str:
    """The search, or the files that were opened; of two results also the comparison; then the chosen head's pairs."""
    found, saved = variables(len(panel.models)), isinstance(request, SavedRequest)
    names = ("model",) if len(found) == 1 else ("base", "tuned")
    imports, lines = request.code(panel.models if saved else names)
    if len(found) > 1:
        imports = [*imports, "compare_heads"]
        lines.append(f"comparison = {call('compare_heads', *found, groups=panel.groups)}")
    lines.append(f"{found[-1]}.pairs({panel.layer}, {panel.head})")
    if saved:  # no model to load
        return "\n".join([f"from interp_widgets import {', '.join(sorted(imports))}", "", *lines])
    return cell(imports, panel.models, lines)
