"""Free memory, and out-of-memory errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psutil
import torch

from interp_widgets.arguments import message_of

FLOAT32_SHARE = 0.8
"""Weights are read in float32 on a CPU if that takes at most this share of the available memory."""
_OUT_OF_MEMORY = ("not enough memory", "out of memory", "can't allocate", "cannot allocate", "bad alloc", "bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is an out-of-memory error of a GPU or the CPU.

    >>> is_out_of_memory(RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: not enough memory"))
    True
    >>> is_out_of_memory(RuntimeError("shapes do not match"))
    False
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in message_of(error).lower() for words in _OUT_OF_MEMORY)


def free_bytes(device: torch.device) -> int:
    """Bytes of a device's memory that are free for a computation."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return int(psutil.virtual_memory().available)


def float32_fits(numbers: int, device: torch.device) -> bool:
    """Whether so many weights are read in float32 where nobody asked for a dtype."""
    return numbers * torch.float32.itemsize <= FLOAT32_SHARE * free_bytes(device)


@contextlib.contextmanager
def load_must_fit(
    name: str, device: torch.device, hf_model: Any = None, dtype: torch.dtype | None = None
) -> Iterator[None]:
    """Turn out-of-memory errors while loading into a MemoryError that says what did not fit and what to do.

    Args:
        name: of the model.
        device: the device it is loaded to.
        hf_model: the model, if it is known already; its weights are counted.
        dtype: the dtype it is loaded in.
    """
    free = free_bytes(device)
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        needed = (
            ""
            if hf_model is None or dtype is None
            else (
                f": its weights take {hf_model.num_parameters() * dtype.itemsize / 1e9:.1f} GB in "
                f"{str(dtype).removeprefix('torch.')}"
            )
        )
        raise MemoryError(
            f"{name} does not fit into the memory of {device}{needed}, and {free / 1e9:.1f} GB were free: load it with "
            "dtype='bfloat16', spread it with device_map='auto', or delete other models first"
        ) from error
