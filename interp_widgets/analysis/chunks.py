"""A loop over chunks that fit the memory: chunk sizes from a budget, halved when memory runs out after all."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

BUDGET_SHARE = 0.6
"""Share of the free memory that a chunk may plan to use."""

_OUT_OF_MEMORY = ("not enough memory", "out of memory", "can't allocate", "cannot allocate", "bad alloc", "bad_alloc")


@dataclass
class ChunkLog:
    """What the loop did: for the provenance of a result."""

    largest: int = 0
    """Items in the largest chunk that went through."""
    halvings: int = 0
    """How often memory ran out and the chunk was halved."""
    limit: int | None = field(default=None, repr=False)
    """Most items per chunk since memory ran out."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the CPU.

    >>> is_out_of_memory(RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: not enough memory"))
    True
    >>> is_out_of_memory(RuntimeError("shapes do not match"))
    False
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY)


def chunk_size(bytes_per_item: float, free: int, *, most: int, batch_size: int | None = None) -> int:
    """Items per chunk: ``batch_size`` where given, else at most ``most`` and what the memory budget holds, at least 1.

    >>> chunk_size(1_000_000, 100_000_000, most=32)
    32
    >>> chunk_size(10_000_000, 100_000_000, most=32)
    6
    """
    if batch_size is not None:
        return batch_size
    return max(1, min(most, int(BUDGET_SHARE * free / max(bytes_per_item, 1.0))))


def run_chunks(
    total: int,
    size: int | Callable[[int], int],
    work: Callable[[int, int], None],
    *,
    what: str = "item",
    log: ChunkLog | None = None,
    check: Callable[[], None] | None = None,
    after: Callable[[int], None] | None = None,
) -> ChunkLog:
    """Call ``work(start, stop)`` for consecutive chunks of 0..total.

    Args:
        total: number of items.
        size: items per chunk, or a function from a chunk's start to it.
        work: does one chunk; may be called again with a smaller stop when it ran out of memory.
        what: one item in words, for the error.
        log: carries a limit over from an earlier loop.
        check: called before every chunk; raises to cancel.
        after: called with the number of items done after every chunk.

    Raises:
        MemoryError: one item alone does not fit.
    """
    log = ChunkLog() if log is None else log
    start = 0
    while start < total:
        if check is not None:
            check()
        count = min(total - start, max(1, size if isinstance(size, int) else size(start)))
        count = count if log.limit is None else min(count, log.limit)
        failure = _attempt(work, start, start + count)
        if failure is not None:
            if count == 1:
                raise MemoryError(
                    f"one {what} does not fit in the memory that is free ({failure}): ask for less (a shorter text, "
                    "fewer words), free memory, or load the model with dtype=torch.bfloat16"
                )
            log.limit, log.halvings = count // 2, log.halvings + 1
            _release()
            continue
        start += count
        log.largest = max(log.largest, count)
        if after is not None:
            after(start)
    return log


def _attempt(work: Callable[[int, int], None], start: int, stop: int) -> str | None:
    """Do one chunk; the first words of the error when memory ran out. The error itself would keep tensors alive."""
    try:
        work(start, stop)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return (str(error) or type(error).__name__).splitlines()[0][:120]
    return None


def _release() -> None:
    gc.collect()
    if torch.accelerator.is_available():
        torch.get_device_module().empty_cache()
