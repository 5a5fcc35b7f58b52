"""The model tests also run against TransformerLens 4, which has only the bridge; what needs 3.x is marked `hooked`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

import pytest
import torch

REASON = "needs HookedTransformer, which TransformerLens 4 no longer has"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if int(metadata.version("transformer-lens").split(".")[0]) < 4:
        return
    for item in items:
        if item.get_closest_marker("hooked"):
            item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models run faster on one thread, and far faster where other programs use the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
