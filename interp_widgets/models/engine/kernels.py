"""Which of PyTorch's attention kernels a pass may use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_inside, _before = 0, True


@contextmanager
def no_plan_per_shape() -> Iterator[None]:
    """Context manager in which PyTorch does not choose cuDNN's attention, which only CUDA devices have.

    cuDNN makes a plan for each new shape, and here nearly every prompt and chunk has another: on an H200, the first
    small map of a model of 7 billion parameters took 5.1 s with it and 1.6 s without, later ones the same. PyTorch has
    one switch for the process; the last to leave puts it back.
    """
    global _inside, _before
    with _lock:
        if _inside == 0:
            _before = torch.backends.cuda.cudnn_sdp_enabled()
            torch.backends.cuda.enable_cudnn_sdp(False)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                torch.backends.cuda.enable_cudnn_sdp(_before)
