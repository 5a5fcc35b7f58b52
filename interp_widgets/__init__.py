"""Live Jupyter widgets that show why a language model wrote what it wrote.

The public names load on first use, so that importing the package costs almost nothing; `__init__.pyi` lists them.

The examples in the docstrings of the public names run as they are printed after these lines (the demo models are small:
other models give other numbers):

    >>> import numpy as np
    >>> from interp_widgets import *
    >>> pair = load_demo_pair()
    >>> base, tuned = pair.base, pair.tuned
    >>> model = base
"""

from __future__ import annotations

from typing import Any

import lazy_loader

from .renamed import OLD_NAMES, warn_renamed

_load, _, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in OLD_NAMES:
        warn_renamed(name, OLD_NAMES[name])
        name = OLD_NAMES[name]
    if name not in __all__:
        raise AttributeError(f"module 'interp_widgets' has no attribute {name!r}; public names: {', '.join(__all__)}")
    return _load(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
