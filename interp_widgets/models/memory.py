"""Errors that say that memory ran out."""

from __future__ import annotations

import torch

_OUT_OF_MEMORY = ("not enough memory", "out of memory", "can't allocate", "cannot allocate", "bad alloc", "bad_alloc")


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
