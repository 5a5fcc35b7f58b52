"""Packing of sequences into rows: common prefixes are stored once, and a token attends only to its own sequence.

Such a row is a forest: the parent of a token is the token before it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["TokenTree", "TreeMasks", "pack"]

_ATTENTION = 8
"""Cost of an operation of masked attention relative to one of a weight product (measured)."""
_ROOM = 8
"""d_model divided by the most tokens of a row of unrelated short sequences, which keeps its attention cheap."""


@dataclass
class TokenTree:
    """The tokens of one row."""

    ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """Index of the token before each one; -1 for the first of a sequence."""
    paths: dict[int, list[int]] = field(default_factory=dict)
    """By sequence number, the indices of its tokens in order."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def plain(self) -> bool:
        """Whether every token attends to all before it: one sequence, possibly with prefixes of it."""
        return self.parents == list(range(-1, len(self) - 1))

    def add(self, number: int, ids: Sequence[int], path: Sequence[int]) -> list[int]:
        """Add a sequence that shares the tokens ``path`` with the tree; returns the indices of all its tokens."""
        whole = list(path)
        for token in ids[len(path) :]:
            self.parents.append(whole[-1] if whole else -1)
            whole.append(len(self.ids))
            self.ids.append(token)
        self.paths[number] = whole
        return whole

    def join(self, other: TokenTree) -> None:
        """Append another row."""
        first = len(self)
        self.ids += other.ids
        self.parents += [parent if parent < 0 else first + parent for parent in other.parents]
        self.paths |= {number: [first + token for token in path] for number, path in other.paths.items()}


def pack(sequences: Sequence[Sequence[int]], width: int, most: int | None = None) -> list[TokenTree]:
    """Pack sequences into rows, the longest first.

    Sequences are sorted by their ids; each joins its predecessor's row if the common prefix saves more than the larger
    attention costs. Short rows are merged to reduce padding.

    Args:
        sequences: token ids, one or more each.
        width: d_model, which determines a token's cost apart from attention.
        most: maximum tokens of a row with several sequences; by default as many as save work.

    >>> [row.ids for row in pack([(1, 2, 3), (1, 2, 4), (5, 6)], 64)]
    [[1, 2, 3, 4, 5, 6]]
    """
    trees: list[TokenTree] = []
    before: Sequence[int] = ()
    path: list[int] = []
    for number in sorted(range(len(sequences)), key=lambda i: tuple(sequences[i])):
        own = sequences[number]
        common = next(
            (k for k, (a, b) in enumerate(zip(before, own, strict=False)) if a != b), min(len(before), len(own))
        )
        if not trees or not _saves(len(trees[-1]), common, len(own), width, most):
            trees.append(TokenTree())
            common = 0
        path = trees[-1].add(number, own, path[:common])
        before = own
    room = width // _ROOM
    return _merged(trees, room if most is None else min(room, most))


def _saves(nodes: int, common: int, length: int, width: int, most: int | None) -> bool:
    """Whether a sequence costs less in a row of ``nodes`` tokens than alone; operations in units of 4 · d_model.

    Among many sequences with ``common`` tokens in common, one costs least in rows of common + √(common · (common +
    products / _ATTENTION)) tokens: in longer ones attention costs more than another row with these tokens would, unless
    the row is short enough for other sequences too.
    """
    products, new = 6 * width, length - common
    if common == 0 or (most is not None and new and nodes + new > most):
        return False
    if new and nodes > max(width // _ROOM, common + math.sqrt(common * (common + products / _ATTENTION))):
        return False
    alone = length * products + _ATTENTION * length * length
    joined = new * products + _ATTENTION * ((nodes + new) ** 2 - nodes**2)
    return joined <= alone


def _merged(trees: Sequence[TokenTree], room: int) -> list[TokenTree]:
    """Trees in rows of up to ``room`` tokens, the longest first: each in the row that it fills best."""
    rows: list[TokenTree] = []
    spare: list[tuple[int, int]] = []  # how many more tokens a row has room for, and its number
    for tree in sorted(trees, key=len, reverse=True):
        at = bisect_left(spare, (len(tree), 0))
        if at == len(spare):
            left, number = max(room, len(tree)), len(rows)
            rows.append(tree)
        else:
            left, number = spare.pop(at)
            rows[number].join(tree)
        insort(spare, (left - len(tree), number))
    return sorted(rows, key=len, reverse=True)


@dataclass(frozen=True)
class TreeMasks:
    """Attention masks of a batch of rows; the batch is as wide as its longest row."""

    positions: Tensor
    """(batch, width) position of each token in its own sequence."""
    longest: int
    """Length of the longest sequence."""
    ancestors: Tensor
    """(batch, width, width) True for each token's predecessors in its sequence and itself."""

    @staticmethod
    def of(trees: Sequence[TokenTree], device: torch.device) -> TreeMasks:
        """The masks of some rows; padding attends only to itself."""
        width = max(map(len, trees))
        parents = np.full((len(trees), width), -1)
        for row, tree in zip(parents, trees, strict=True):
            row[: len(tree)] = tree.parents
        ancestors = _ancestors(parents)
        positions = ancestors.sum(-1) - 1
        longest = int(positions.max()) + 1
        return TreeMasks(torch.from_numpy(positions).to(device), longest, torch.from_numpy(ancestors).to(device))

    def seen(self, window: int | None) -> Tensor:
        """(batch, 1, width, width) True where a token may attend in a layer with this attention window."""
        seen = self.ancestors
        if window is not None:
            seen = seen & (self.positions[:, :, None] - self.positions[:, None] < window)
        return seen[:, None]


def _ancestors(parents: NDArray[Any]) -> NDArray[np.bool_]:
    rows, width = np.arange(len(parents)), parents.shape[1]
    ancestors = np.zeros((len(parents), width, width), dtype=bool)
    for token in range(width):
        above = parents[:, token]
        ancestors[:, token] = np.where((above >= 0)[:, None], ancestors[rows, above], False)
        ancestors[:, token, token] = True
    return ancestors
