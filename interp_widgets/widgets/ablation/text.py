"""Text that the model writes with and without a list of ablations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from html import escape
from typing import Any, ClassVar

import ipywidgets as W

from interp_widgets.analysis.ablation import AblatedTextResult, ablated_text
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import lifetime, pair_view
from ..base.code import call, cell
from ..base.controls import ListOf, row, shown_if
from ..base.fields import field
from ..base.prediction import Prediction, PredictionPanel, checked
from ..base.request import model_variables
from ..base.sampling import Sampling
from ..views import TokenStrip
from .ablation_spec import AblationSpec, Listed, makers
from .maps import quoted

EMPTY = "The list is empty: click a cell of a map, then <i>Add to the list</i>."


@dataclass(frozen=True)
class WritingRequest:
    """The request for texts with and without ablations."""

    method: ClassVar[str] = "text"
    prediction: Prediction
    specs: tuple[AblationSpec, ...]
    max_new_tokens: int
    temperature: float
    seed: int

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of `generate`."""
        return {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature, "seed": self.seed}

    def answer(self, model: Model, *, progress: Any, check: Any, on_partial: Any) -> AblatedTextResult:
        """Let one model write both texts."""
        ablations = [spec.make(model, self.prediction, check=check) for spec in self.specs]
        ids = self.prediction.read(model)[0]
        return ablated_text(model, ids, ablations, **self.options, progress=progress, check=check)


class AblatedText(Sampling, PredictionPanel):
    """What the model writes with parts removed: the list of ablations, and both texts side by side."""

    title = "Text under ablations"
    pair_views = ("beside",)

    ablations = field(ListOf(Listed))
    """The list of ablations applied together during generation, as :class:`Listed`."""

    def build(self) -> None:
        self.list = W.VBox()
        self.list.add_class("iw-column")
        self.about = W.HTML(EMPTY)
        self.inputs.children = [*self.text_inputs(), self.about, self.list, *self.controls.rows()]
        self.words = W.HTML("")
        self.strips = [TokenStrip(empty="The model ends its text immediately", max_lines=8) for _ in range(4)]
        self.rows = []
        for pair in (self.strips[:2], self.strips[2:]):
            grid = W.VBox([W.VBox([strip]) for strip in pair])
            grid.add_class("iw-maps")
            shown_if(grid, False)
            self.rows.append(grid)
        self.plot.children = [self.words, *self.rows]
        self.watch(self, "ablations", lambda _: self._list())

    # the list ---------------------------------------------------------------------------------------------------------

    def texts_read(self) -> None:
        self._list()

    def _list(self) -> None:
        """Show the list, in the tokens of the prompt."""
        old, self.list.children = self.list.children, [self._line(listed) for listed in self.ablations]
        for line in old:
            lifetime.close_tree(line)
            lifetime.close_one(line)
        on, total = sum(listed.on for listed in self.ablations), len(self.ablations)
        self.about.value = f"{on} of {total} switched on." if total else EMPTY

    def _line(self, listed: Listed) -> W.HBox:
        """One ablation: a checkbox with its name, its position, and a button that removes it."""
        spec = listed.picked
        on = W.Checkbox(value=listed.on, indent=False, description=f"{spec.part()}, {spec.replaced_by()}")
        positions = [("at every token", True)]
        if spec.position is not None:
            positions.insert(0, (spec.at(self.texts.axis), False))
        position = W.Dropdown(
            options=positions, value=listed.everywhere or spec.position is None, disabled=spec.position is None
        )
        remove = W.Button(description="Remove", tooltip=f"Remove {spec.where(self.texts.axis)} from the list")
        self.watch(on, "value", lambda change: self._change(listed, on=change.new))
        self.watch(position, "value", lambda change: self._change(listed, everywhere=change.new))
        self.on_click(remove, lambda: self._change(listed))
        line = row(on, position, remove)
        line.add_class("iw-line")
        return line

    def _change(self, listed: Listed, **values: Any) -> None:
        """Change one ablation of the list, or remove it if no values are passed."""
        changed = [replace(listed, **values)] if values else []
        index = self.ablations.index(listed)
        self.ablations = (*self.ablations[:index], *changed, *self.ablations[index + 1 :])

    # what the panel asks for ------------------------------------------------------------------------------------------

    def request(self) -> WritingRequest:
        prediction = self.prediction()
        checked(prediction, self.models[0])
        specs = tuple(listed.spec for listed in self.ablations if listed.on)
        return WritingRequest(prediction, specs, self.max_new_tokens, self.temperature, self.seed)

    def draw(self, results: tuple[AblatedTextResult, ...], request: WritingRequest) -> None:
        specs, axis = request.specs, self.texts.axis
        lines = [escape("; ".join(spec.describe(axis) for spec in specs)) + "."] if specs else []
        shown = pair_view.shown_indices(self) if len(results) == len(self.models) else range(len(results))
        for number, grid in enumerate(self.rows):
            shown_if(grid, number < len(shown))
        for number, index in enumerate(shown):
            spans, sentence = differences(results[index])
            start = f"{pair_view.LETTERS[index]}: " if len(self.models) > 1 else ""
            lines += [start + sentence] if specs else []
            titles = (f"{start}without ablations", f"{start}with {_count(specs)}")
            texts = (results[index].plain_tokens, results[index].ablated_tokens)
            for strip, title, text, marks in zip(self.strips[2 * number :], titles, texts, spans, strict=False):
                strip.set_tokens(list(text))
                strip.label = title[0].upper() + title[1:]
                strip.set_marks(marks)
        self.words.value = "<br>".join(lines)

    # what is saved ----------------------------------------------------------------------------------------------------

    def code(self, request: WritingRequest) -> str:
        prediction = request.prediction
        lines: list[str] = [*makers(request.specs), ""] if makers(request.specs) else []
        for index in pair_view.shown_indices(self):
            name = model_variables(self.models)[index]
            before, ids, _ = prediction.code(name)
            lines += [line for line in before if line not in lines]
            lines += ["ablations = [", *(f"    {spec.code(name, prediction)},".replace("\n", "\n    ")
                                         for spec in request.specs), "]"]  # fmt: skip
            lines += [f"with ablation({name}, ablations):",
                      f"    text = {call(f'{name}.generate', ids, **request.options)}"]  # fmt: skip
        return cell(["Ablation", "ablation"], self.models, [*lines, "text"])

    def scene(self) -> Scene:
        shown = 2 * len(pair_view.shown_indices(self))
        return stack_scenes([strip.scene(width=760) for strip in self.strips[:shown]], columns=2)


def _count(specs: Sequence[AblationSpec]) -> str:
    return {0: "the ablations listed (none)", 1: "1 ablation"}.get(len(specs), f"{len(specs)} ablations")


def differences(texts: AblatedTextResult) -> tuple[tuple[list[list[int]], list[list[int]]], str]:
    """The spans of tokens in which two texts differ, and a sentence.

    >>> abc, axc = {"plain": (1, 2, 3), "plain_tokens": "abc"}, {"ablated": (1, 9, 3), "ablated_tokens": "axc"}
    >>> differences(AblatedTextResult(**abc, **axc, prompt_tokens=(), ablations=()))
    (([[1, 2]], [[1, 2]]), 'The texts differ from token 1 on: “b” became “x”.')
    """
    marks: tuple[list[list[int]], list[list[int]]] = ([], [])
    plain, ablated = texts.plain, texts.ablated
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, plain, ablated, autojunk=False).get_opcodes():
        if kind != "equal":
            for spans, start, end in ((marks[0], a0, a1), (marks[1], b0, b1)):
                spans += [[start, end]] if end > start else []
    if plain == ablated:
        return marks, "Both texts are the same."
    first = next((i for i, (a, b) in enumerate(zip(plain, ablated, strict=False)) if a != b), None)
    if first is None:
        return marks, f"The texts are the same up to token {min(len(plain), len(ablated))}, where one of them ends."
    was, became = quoted(texts.plain_tokens[first]), quoted(texts.ablated_tokens[first])
    return marks, f"The texts differ from token {first} on: {was} became {became}."
