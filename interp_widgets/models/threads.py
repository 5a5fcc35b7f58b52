"""The number of CPU threads for a model."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator

import torch

SMALL = 50_000_000
"""Models with fewer parameters run in one thread."""
_ROWS, _WIDTH, _TIMES = 32, 768, 5
"""Tokens and width of the product that is timed, and how often."""


@contextlib.contextmanager
def few_threads(parameters: int, *, trial: bool = False) -> Iterator[None]:
    """Context manager that runs a small model in one torch thread, others in all; after a ``trial`` maybe in one too.

    With a trial, a large model takes one thread where more do not `pay_off`.
    The products of a small model are so short that several threads mostly wait for each other: they gain little on an
    idle machine, and were measured 17 to 40 times slower than one thread next to another busy program. What makes
    results or weights makes no trial, since the number of threads changes their last bits.

    >>> with few_threads(3_000_000):
    ...     torch.get_num_threads()
    1
    """
    with threads_kept():
        if parameters < SMALL or (trial and not pay_off()):
            torch.set_num_threads(1)
        yield


def pay_off() -> bool:
    """Whether a matrix product of a model's size is faster with all threads than with one, now: next to another busy
    program it can be many times slower. Takes milliseconds."""
    threads = torch.get_num_threads()
    if threads == 1:
        return True
    rows, matrix = torch.ones(_ROWS, _WIDTH), torch.ones(_WIDTH, _WIDTH)
    seconds = {}
    with threads_kept():
        for number in (1, threads):
            torch.set_num_threads(number)
            seconds[number] = statistics.median(_timed(rows, matrix) for _ in range(_TIMES))
    return seconds[threads] < seconds[1]


def _timed(rows: torch.Tensor, matrix: torch.Tensor) -> float:
    began = time.perf_counter()
    torch.mm(rows, matrix)
    return time.perf_counter() - began


@contextlib.contextmanager
def threads_kept() -> Iterator[None]:
    """Restore the number of torch threads afterwards; other libraries that use OpenMP may change it."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
