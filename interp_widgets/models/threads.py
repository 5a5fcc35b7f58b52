"""The number of CPU threads for a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

SMALL = 50_000_000
"""Models with fewer parameters run in one thread."""


@contextlib.contextmanager
def few_threads(parameters: int) -> Iterator[None]:
    """Context manager that runs a small model in one torch thread, and others in all threads.

    The products of a small model are so short that several threads mostly wait for each other: they gain little on an
    idle machine, and were measured 17 to 40 times slower than one thread next to another busy program.

    >>> with few_threads(3_000_000):
    ...     torch.get_num_threads()
    1
    """
    with threads_kept():
        if parameters < SMALL:
            torch.set_num_threads(1)
        yield


@contextlib.contextmanager
def threads_kept() -> Iterator[None]:
    """Restore the number of torch threads afterwards; other libraries that use OpenMP may change it."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
