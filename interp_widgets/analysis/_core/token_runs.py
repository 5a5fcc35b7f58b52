"""Runs of tokens that have something in common."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any


def runs(labels: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """[start, end) of each run of equal labels.

    >>> runs("aaba")
    ((0, 2), (2, 3), (3, 4))
    """
    spans: list[tuple[int, int]] = []
    end = 0
    for _, run in groupby(labels):
        start, end = end, end + sum(1 for _ in run)
        spans.append((start, end))
    return tuple(spans)
