"""Builds the pretend accelerator before its tests; on a machine without the tools they are skipped, in CI they fail.

`pytest` alone leaves this folder out (``norecursedirs``): name it, or run ``make test-accelerator``.
"""

from __future__ import annotations

import os

import pytest
import torch

from tests.accelerator import strict

REQUIRED = "REQUIRE_ACCELERATOR_TESTS"
"""The environment variable that makes missing tools an error."""


@pytest.fixture(scope="session", autouse=True)
def accelerator() -> None:
    """The device ``strict``, and one thread: tiny models run faster on one."""
    missing = strict.missing_tools()
    if missing is not None and os.environ.get(REQUIRED):
        pytest.fail(missing, pytrace=False)
    if missing is not None:
        pytest.skip(missing)
    torch.set_num_threads(1)
    strict.register()
