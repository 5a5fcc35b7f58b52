"""The cache of results."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import pytest

from interp_widgets.compute.cache import Cache, size_of


@dataclass(frozen=True)
class Result:
    values: np.ndarray
    name: str


def test_size_counts_arrays_inside_dataclasses() -> None:
    assert size_of(Result(np.zeros(1000), "x")) == pytest.approx(8000, abs=200)
    assert size_of({"a": [np.zeros(10), np.zeros(10)]}) == pytest.approx(160, abs=200)


def test_least_recently_used_goes_first() -> None:
    cache = Cache(250)
    for key in "ab":
        cache.put(key, np.zeros(100, np.uint8))
    assert cache.get("a") is not None
    cache.put("c", np.zeros(100, np.uint8))
    assert "b" not in cache
    assert "a" in cache
    assert "c" in cache
    assert cache.bytes == 200


def test_replacing_and_oversize() -> None:
    cache = Cache(250)
    cache.put("a", np.zeros(200, np.uint8))
    cache.put("a", np.zeros(100, np.uint8))
    assert cache.bytes == 100
    cache.put("a", np.zeros(1000, np.uint8))
    assert len(cache) == 0
    assert cache.bytes == 0
    assert cache.get("a", "nothing") == "nothing"
    with pytest.raises(ValueError, match="max_bytes must be 0 or more"):
        Cache(-1)


def test_many_threads() -> None:
    cache = Cache(1000)

    def work(seed: int) -> None:
        for k in range(300):
            cache.put((k * seed) % 23, np.zeros(90, np.uint8))
            cache.get(k % 23)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.bytes == 90 * len(cache) <= 1000
