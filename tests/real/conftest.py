"""In several processes, what needs the larger model goes to one of them, which alone loads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real.loaded import Loaded, loaded


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("gemma" if needs_gemma(item) else "smollm2"))


def needs_gemma(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function):
        return False
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "gemma" in {*item.fixturenames, *parameters}


@pytest.fixture(scope="session")
def smollm2() -> Loaded:
    return loaded("smollm2")


@pytest.fixture(scope="session")
def gemma() -> Loaded:
    return loaded("gemma3-270m")


@pytest.fixture(params=["smollm2", "gemma"])
def either(request: pytest.FixtureRequest) -> Loaded:
    which: Loaded = request.getfixturevalue(request.param)
    return which
