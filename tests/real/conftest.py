"""In several processes, what needs the larger model goes to one of them, which alone loads it."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(item.fixturenames) if isinstance(item, pytest.Function) else set()
        values = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        item.add_marker(pytest.mark.xdist_group("gemma" if "gemma" in fixtures.union(values) else "smollm2"))
