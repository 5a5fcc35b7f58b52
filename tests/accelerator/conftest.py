"""Builds the pretend accelerator before its tests; on a machine without the tools they are skipped, in CI they fail.

`pytest` alone leaves this folder out (``norecursedirs``): name it, or run ``make test-accelerator``. On a machine with
a GPU, ``INTERP_WIDGETS_ACCELERATOR=cuda:0 make test-accelerator`` holds every analysis on it against the CPU.
"""

from __future__ import annotations

import os

import pytest
import torch

from tests.accelerator import device, strict

REQUIRED = "REQUIRE_ACCELERATOR_TESTS"
"""The environment variable that makes a missing device an error."""
collect_ignore = [] if device.PRETEND else ["test_strict.py", "test_two_indices.py"]


@pytest.fixture(scope="session", autouse=True)
def accelerator() -> None:
    """The device, and one thread: tiny models run faster on one."""
    missing = device.unavailable()
    if missing is not None and (os.environ.get(REQUIRED) or not device.PRETEND):
        pytest.fail(missing, pytrace=False)
    if missing is not None:
        pytest.skip(missing)
    torch.set_num_threads(1)
    if device.PRETEND:
        strict.register()
