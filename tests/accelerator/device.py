"""Which accelerator the tests run on: a pretend one, or the real one that the environment variable names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tests.accelerator import strict

DEVICE = os.environ.get("INTERP_WIDGETS_ACCELERATOR", "strict:0")
"""Such as ``cuda:0``."""
PRETEND = DEVICE.startswith("strict")


def unavailable() -> str | None:
    """Why the tests cannot run on the device, in one sentence; None where they can."""
    if PRETEND:
        return strict.missing_tools()
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is not None and found.type == torch.device(DEVICE).type:
        return None
    return f"INTERP_WIDGETS_ACCELERATOR={DEVICE} was asked for, and PyTorch finds {found or 'no accelerator'} here"


@contextmanager
def something_runs() -> Iterator[None]:
    """Fails at the end if (nearly) nothing ran on the device inside: a comparison of the CPU with itself."""
    if PRETEND:
        with strict.counting() as counts:
            yield
        ran = counts.operations
    else:
        before = _allocations()
        yield
        ran = _allocations() - before
    assert ran > 10, f"only {ran} operations or results on {DEVICE}"


def _allocations() -> int:
    return int(torch.accelerator.memory_stats(DEVICE).get("allocation.all.allocated", 0))  # nothing before the first
