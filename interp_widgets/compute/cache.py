"""A least-recently-used cache of results with a limit in bytes."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any


def size_of(value: object) -> int:
    """Approximate size of a result in bytes: arrays by their data, containers and dataclasses by their parts.

    >>> size_of(("ab", b"abcd"))
    134
    """
    bytes_held = getattr(value, "nbytes", None)
    if isinstance(bytes_held, int):
        return bytes_held
    if isinstance(value, (str, bytes)):
        return 64 + len(value)
    if dataclasses.is_dataclass(value):
        return 64 + sum(size_of(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, Mapping):
        return 64 + sum(size_of(key) + size_of(part) for key, part in value.items())
    if isinstance(value, (tuple, list, set, frozenset)):
        return sum(size_of(part) for part in value)
    return 32


class Cache:
    """Results by request; the least recently used are dropped first. Safe to use from several threads.

    >>> cache = Cache(max_bytes=1000)
    >>> cache.put(("prompt", 3), "a result")
    >>> cache.get(("prompt", 3))
    'a result'
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes must be 0 or more, got {max_bytes}")
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes currently in use."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._held

    def get(self, key: Hashable, default: Any = None) -> Any:
        """The result of a request, which becomes the most recently used, or `default`."""
        with self._lock:
            if key not in self._held:
                return default
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: Hashable, value: Any) -> None:
        """Store a result; one larger than the whole cache is not stored."""
        size = size_of(value)
        with self._lock:
            self._drop(key)
            if size > self.max_bytes:
                return
            self._held[key] = (value, size)
            self._bytes += size
            while self._bytes > self.max_bytes:
                self._drop(next(iter(self._held)))

    def clear(self) -> None:
        """Remove all results."""
        with self._lock:
            self._held.clear()
            self._bytes = 0

    def _drop(self, key: Hashable) -> None:
        if key in self._held:
            self._bytes -= self._held.pop(key)[1]


results = Cache(256 * 2**20)
"""The cache that all widgets of a process share, 256 MB."""
