"""The model tests also run against TransformerLens 4, which has only the bridge; what needs 3.x is marked `hooked`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

import pytest
import torch

REASON = "tests marked `hooked` are left out: TransformerLens 4 has no HookedTransformer"
ONLY_BRIDGE = int(metadata.version("transformer-lens").split(".")[0]) >= 4


def pytest_report_header() -> str:
    return f"transformer-lens {metadata.version('transformer-lens')}" + (f"; {REASON}" if ONLY_BRIDGE else "")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if ONLY_BRIDGE:
        left_out = [item for item in items if item.get_closest_marker("hooked")]
        items[:] = [item for item in items if not item.get_closest_marker("hooked")]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models run faster on one thread, and far faster where other programs use the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
