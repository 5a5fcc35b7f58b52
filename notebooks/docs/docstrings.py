"""What Griffe reads, for the reference: public names where they are defined, and docstrings as Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe
from contents import is_defined_here, named

import interp_widgets


class Docstrings(griffe.Extension):
    """Changes what is read before it is shown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Examples are highlighted, the source stands out, Sphinx's roles are code, and public names are links."""
        if obj.docstring is not None:
            text = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
            text = re.sub(r":\w+:`([^`]+)`", r"`\1`", text)
            obj.docstring.value = named(re.sub(r"^( *)Source: ", r"\1**Source:** ", text, flags=re.MULTILINE))

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """A function may have the name of its module, of which only Python knows which one is public."""
        for name in interp_widgets.__all__:
            value = getattr(interp_widgets, name)
            if is_defined_here(value):
                pkg.set_member(name, griffe.Alias(name, f"{value.__module__}.{value.__qualname__}", parent=pkg))
