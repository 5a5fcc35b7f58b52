"""How many processor threads a model is worth."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

SMALL = 50_000_000
"""Parameters under which one thread is enough."""


@contextlib.contextmanager
def few_threads(parameters: int) -> Iterator[None]:
    """One torch thread inside for a small model, all of them for others; as before afterwards.

    The products of a small model are so short that several threads mostly wait for each other: alone they gain little,
    and beside another busy program, such as the browser, they were measured 17 to 40 times slower than one.

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
    """Put the number of torch threads back afterwards; other libraries with OpenMP inside may change it."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
