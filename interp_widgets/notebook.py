"""What is said in a notebook outside of the widgets."""

from __future__ import annotations

import sys
from typing import Any


def new_line() -> Any:
    """A line under the running cell, which can be changed; None outside of a notebook."""
    if "IPython" not in sys.modules:
        return None
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    if getattr(get_ipython(), "kernel", None) is None:
        return None
    return display({"text/plain": ""}, raw=True, display_id=True)
