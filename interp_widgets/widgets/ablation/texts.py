"""Texts that models write with and without ablations, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from html import escape

import ipywidgets as W

from ..base.controls import shown_if
from ..views import TokenStrip
from .ablation_spec import AblationSpec
from .maps import quoted


@dataclass(frozen=True)
class Written:
    """What one model writes, as it is and with ablations."""

    plain: tuple[int, ...]
    """Token ids."""
    ablated: tuple[int, ...]
    plain_tokens: tuple[str, ...] = field(default=(), compare=False)
    """Readable tokens."""
    ablated_tokens: tuple[str, ...] = field(default=(), compare=False)


class Texts:
    """Texts side by side, the tokens in which they differ marked."""

    def __init__(self) -> None:
        self.words = W.HTML("")
        self.strips = [TokenStrip(empty="The model ends its text at once", max_lines=8) for _ in range(4)]
        self.rows = []
        for pair in (self.strips[:2], self.strips[2:]):
            grid = W.VBox([W.VBox([strip]) for strip in pair])
            grid.add_class("iw-maps")
            shown_if(grid, False)
            self.rows.append(grid)
        self.box = W.VBox([self.words, *self.rows])
        self.box.add_class("iw-column")
        self.found: list[Written] = []

    def clear(self) -> None:
        """Show no text."""
        self.found, self.words.value = [], ""
        for grid in self.rows:
            shown_if(grid, False)

    def show(
        self, found: list[Written], names: Sequence[str], specs: Sequence[AblationSpec], tokens: Sequence[str]
    ) -> None:
        """Show what models wrote."""
        self.found = found
        said = [escape("; ".join(one.describe(tokens) for one in specs)) + "."]
        for number, grid in enumerate(self.rows):
            shown_if(grid, number < len(found))
        for number, (name, one) in enumerate(zip(names, found, strict=True)):
            spans, sentence = differences(one)
            start = f"{name}: " if name else ""
            said.append(start + sentence)
            titles = (f"{start}as it is", f"{start}with {_count(specs)}")
            for strip, title, text, marks in zip(
                self.strips[2 * number :], titles, (one.plain_tokens, one.ablated_tokens), spans, strict=False
            ):
                strip.set_tokens(list(text))
                strip.label = title[0].upper() + title[1:]
                strip.set_marks(marks)
        self.words.value = "<br>".join(said)


def _count(specs: Sequence[AblationSpec]) -> str:
    return "1 ablation" if len(specs) == 1 else f"{len(specs)} ablations"


def differences(one: Written) -> tuple[tuple[list[list[int]], list[list[int]]], str]:
    """Spans of the tokens in which two texts differ, and a sentence.

    >>> differences(Written((1, 2, 3), (1, 9, 3), ("a", "b", "c"), ("a", "x", "c")))
    (([[1, 2]], [[1, 2]]), 'The texts differ from token 1 on: “b” became “x”.')
    """
    marks: tuple[list[list[int]], list[list[int]]] = ([], [])
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, one.plain, one.ablated, autojunk=False).get_opcodes():
        if kind != "equal":
            for spans, start, end in ((marks[0], a0, a1), (marks[1], b0, b1)):
                spans += [[start, end]] if end > start else []
    if one.plain == one.ablated:
        return marks, "Both texts are the same."
    at = next((i for i, (a, b) in enumerate(zip(one.plain, one.ablated, strict=False)) if a != b), None)
    if at is None:
        end = min(len(one.plain), len(one.ablated))
        return marks, f"The texts are the same up to token {end}, where one of them ends."
    was, became = (quoted(text[at]) for text in (one.plain_tokens, one.ablated_tokens))
    return marks, f"The texts differ from token {at} on: {was} became {became}."
