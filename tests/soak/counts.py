"""What a process holds: live widgets, Bokeh models, tensors, threads, objects, memory and cached results."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

import ipywidgets as W
import psutil
import torch
from bokeh.model import Model as BokehModel

from interp_widgets.compute.cache import results


@dataclass(frozen=True)
class Counts:
    """What was alive after a garbage collection; the classes of widgets and objects are there to compare two."""

    widgets: int
    """Widgets with an open comm, layouts and styles included."""
    bokeh: int
    """Bokeh models."""
    tensors: int
    tensor_mb: float
    """Megabytes of the storages of all tensors in the processor's memory, each counted once."""
    threads: int
    objects: int
    """Objects that the garbage collector follows."""
    cache: float
    """Megabytes of cached results."""
    rss: float
    """Megabytes of the process, after free memory has gone back to the system (`malloc_trim`, Linux with glibc)."""
    untrimmed: float
    """Megabytes of the process before that."""
    kinds: Counter[str] = field(repr=False)
    """Objects of every class."""

    HEAD: ClassVar[str] = "widgets  bokeh  tensors (MB)     threads   objects  cache MB  RSS MB (before trim)"

    def __str__(self) -> str:
        return (
            f"{self.widgets:7d}  {self.bokeh:5d}  {self.tensors:5d} ({self.tensor_mb:6.1f})  {self.threads:7d}  "
            f"{self.objects:8d}  {self.cache:8.1f}  {self.rss:6.0f} ({self.untrimmed:.0f})"
        )

    def grown_since(self, before: Counts) -> dict[str, int]:
        """By how much widgets, Bokeh models, tensors and threads are more than before; empty if none is."""
        more = {
            name: getattr(self, name) - getattr(before, name) for name in ("widgets", "bokeh", "tensors", "threads")
        }
        return {name: count for name, count in more.items() if count > 0}


def counted() -> Counts:
    """Collect garbage, give free memory back and count. No other thread may compute: Python 3.11 raises SystemError in
    a thread that is building a tuple while the objects of the garbage collector are listed."""
    while gc.collect():
        pass
    objects = gc.get_objects()
    kinds = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in objects)
    tensors = [one for one in objects if issubclass(type(one), torch.Tensor)]
    storages = {
        one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
        for one in tensors
        if one.device.type == "cpu" and one.layout == torch.strided
    }
    bokeh = sum(issubclass(type(one), BokehModel) for one in objects)
    objects_alive, tensors_alive = len(objects), len(tensors)
    del objects, tensors
    untrimmed = psutil.Process().memory_info().rss / 1e6
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return Counts(
        len(W.widget._instances), bokeh, tensors_alive, sum(storages.values()) / 1e6, threading.active_count(),
        objects_alive, results.bytes / 1e6, psutil.Process().memory_info().rss / 1e6, untrimmed, kinds,
    )  # fmt: skip
