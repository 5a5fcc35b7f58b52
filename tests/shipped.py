"""The demo models, loaded once in a process for all tests, which must leave them as they are."""

from __future__ import annotations

from functools import cache

from interp_widgets.models import ModelPair, load_demo_pair


@cache
def demo_pair() -> ModelPair:
    """The demo pair, shared between tests."""
    return load_demo_pair()
