"""The model tests also run against TransformerLens 4, which has only the bridge; what needs 3.x is marked `hooked`."""

from __future__ import annotations

from importlib import metadata

import pytest

REASON = "needs HookedTransformer, which TransformerLens 4 no longer has"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if int(metadata.version("transformer-lens").split(".")[0]) < 4:
        return
    for item in items:
        if item.get_closest_marker("hooked"):
            item.add_marker(pytest.mark.skip(reason=REASON))
