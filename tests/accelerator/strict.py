"""A pretend accelerator: the PyTorch device ``strict`` with two indices, for machines without a GPU.

Its memory is the host's and its kernels are the CPU's, but it has an accelerator's manners. An operation raises that
mixes its tensors with tensors on the CPU (numbers and index lists aside) or on its other index; so do ``.numpy()`` and
a generator of the CPU, and, inside `without_float64`, every float64 tensor on it, as on Apple's MPS. It counts what
costs time on an accelerator and no noise touches: see `Counts`.

What it cannot show: speed, memory, the rounding of real kernels, streams. Every operand is copied for every operation,
so models must be small. The device stays registered for as long as the process lives, so the tests that use it have a
process of their own.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import filelock
import torch

SOURCE = Path(__file__).with_name("strict.cpp")
BUILD = Path(__file__).parents[2] / "build" / "accelerator"


@dataclass
class Counts:
    """What ran on the device."""

    operations: int = 0
    """Kernels that would be launched."""
    copies: int = 0
    """Copies within the device, casts included: kernels too."""
    uploads: int = 0
    """Copies from the host; each waits for the device unless the memory is pinned."""
    waits: int = 0
    """Times that the host waits for a value: copies to it, ``.item()``, results whose size depends on values."""


def missing_tools() -> str | None:
    """What the extension cannot be built without and this machine lacks, in one sentence; None where all is there."""
    _find_ninja()
    compiler = os.environ.get("CXX", "c++")
    lacking = [tool for tool in (compiler, "ninja") if shutil.which(tool) is None]
    if not lacking:
        return None
    return f"the pretend accelerator needs a C++ compiler and ninja, and {' and '.join(lacking)} cannot be found"


def _find_ninja() -> None:
    """ninja from PyPI lies beside the interpreter, which is on the path only in an activated environment."""
    beside = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", "")
    if beside not in path.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([beside, path])


@functools.cache
def register() -> Any:
    """Build the extension where it is not built yet (15 s) and register the device; returns the extension."""
    from torch.utils import cpp_extension

    missing = missing_tools()
    if missing is not None:
        raise RuntimeError(missing)
    folder = BUILD / f"torch-{torch.__version__}-python-{platform.python_version()}"
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / "building"):  # one process at a time, and it ends with its process
        (folder / "lock").unlink(missing_ok=True)  # torch's own outlives a killed build, which the next waits for
        extension = cpp_extension.load(
            "strict_device", [str(SOURCE)], extra_cflags=["-O1"], build_directory=str(folder)
        )
    torch.utils.rename_privateuse1_backend("strict")
    torch._register_device_module("strict", _device_module(extension.devices))
    torch.utils.generate_methods_for_privateuse1_backend()
    return extension


def _device_module(devices: int) -> types.ModuleType:
    """What PyTorch asks of ``torch.strict``."""
    module: Any = types.ModuleType("torch.strict")
    module.is_available = lambda: True
    module.device_count = lambda: devices
    module.current_device = lambda: 0
    module.set_device = lambda device: None
    module.synchronize = lambda device=None: None
    module.empty_cache = lambda: None
    module.manual_seed = module.manual_seed_all = lambda seed: None
    module.get_rng_state = lambda device=None: torch.get_rng_state()
    module.set_rng_state = lambda state, device=None: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module._is_in_bad_fork = lambda: False
    return module


@contextmanager
def counting() -> Iterator[Counts]:
    """Counts what runs on the device inside; the numbers are filled in at the end."""
    extension, counts = register(), Counts()
    before = extension.counts()
    yield counts
    for field, first, last in zip(fields(Counts), before, extension.counts(), strict=True):
        setattr(counts, field.name, last - first)


@contextmanager
def without_float64() -> Iterator[None]:
    """Inside, the device has no float64: making such a tensor on it raises a TypeError."""
    extension = register()
    extension.set_float64(False)
    try:
        yield
    finally:
        extension.set_float64(True)
