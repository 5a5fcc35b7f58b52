"""What two of the panels ask for: components of every layer, or saved ones; their notes, and how two models differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import ipywidgets as W
import numpy as np
import traitlets as T
from numpy.typing import NDArray

from interp_widgets.analysis._core.cost import Cost
from interp_widgets.analysis.ffn_concepts import (
    ConceptAnnotations,
    ConceptComparison,
    FFNConceptResult,
    compare_concepts,
    ffn_concepts,
)
from interp_widgets.arguments import short
from interp_widgets.data.annotators import Annotation
from interp_widgets.figures.static import Scene, table_scene
from interp_widgets.models import Model

from ..base.answers import once_for
from ..base.code import cell
from ..base.fields import Bounds, field
from ..base.guard import handling
from ..base.jobs import Derived
from ..base.pair_view import LETTERS
from ..base.request import PerModel, result_variables
from ..base.saved_result import SavedAnswer, SavedResult
from ..base.word_source import WordPanel, WordSource
from ..base.words import Step
from ..base.workbench import in_model
from .notes import Cell, Notes, Owner, as_annotations, notes_in

STEP = Step("ablation", "Does it need this MLP?", {"tab": "modules", "kind": "mlp"})
"""What to look at after a component or a neuron."""
KEPT = 2**23
"""Numbers of directions that the result of a single model keeps, for a comparison later; two models keep theirs."""
RIGHT = {"align": "right"}
MATCHED: list[dict[str, Any]] = [
    {"label": "A no.", **RIGHT},
    {"label": "B no.", **RIGHT, "title": "The component of B matched with it, one to one"},
    {"label": "cosine", **RIGHT, "title": "Of the two directions, without sign"},
    {"label": "turned °", **RIGHT},
    {"label": "shared words", **RIGHT, "title": "Words of both, of those of either"},
    {"label": "words of A", "wrap": True},
    {"label": "words of B", "wrap": True, "title": "Its sides are turned as those of A"},
]
"""Columns of the table of matched components."""


class SavedConcepts(SavedResult):
    """Stands in the place of a model whose components were computed before."""

    kind = FFNConceptResult


@dataclass(frozen=True)
class SavedRequest(SavedAnswer):
    """What is asked of saved results."""

    def lines(self, models: Sequence[SavedConcepts]) -> list[str]:
        """Lines of a cell that open the files again."""
        return [model.line(name) for model, name in zip(models, result_variables(models), strict=True)]


@dataclass(frozen=True)
class ListedWords(PerModel):
    """The words of a source, as an argument of an analysis."""

    source: WordSource

    def read_by(self, model: Model) -> tuple[str, ...]:
        return self.source.words or self.source.read()[0]

    def code(self, name: str) -> tuple[list[str], str]:
        imports, lines, arguments = self.source.code()
        before = [f"from interp_widgets import {', '.join(imports)}", ""] if imports else []
        return [*before, *lines], arguments.get("words", "vectors")


def layer_slider(panel: Any) -> Any:
    """The layers that all models have."""
    last = max(min(model.n_layers for model in panel.models) - 1, 1)
    return panel.bind(W.IntSlider(description="Layer", max=last), "layer")


class NotesToOpen(T.Any):
    """A trait for annotations to open: those of a model, the path of a file of them, or one of these per model."""

    def validate(self, obj: Any, value: Any) -> Any:
        parts = value if isinstance(value, list | tuple) else [value]
        if all(part is None or isinstance(part, str | os.PathLike | ConceptAnnotations) for part in parts):
            return value
        raise T.TraitError(
            f"notes must be ConceptAnnotations, the path of a file of them, or one for each model, got {short(value)}"
        )


class ComponentPanel(WordPanel):
    """Base of the panels on the main directions of the MLPs' output weights."""

    analysis = staticmethod(ffn_concepts)
    cached_as = "ffn components"
    layer = field(in_model(), label="Layer", group="layer", redraws=True, control=layer_slider)
    """The layer that is looked at."""
    components = field(
        Annotated[int, Bounds(1, 10_000)], 20, label="Components", width="short", redraws=True,
        help="How many of the first components are listed, annotated and compared",
    )  # fmt: skip
    rank = field(
        Annotated[int, Bounds(1, 100_000)], 300, label="Rank", width="short", group="words", more=True,
        help="Components computed per layer; at most as many as the model has directions",
        shown_if=lambda panel: panel.asks_words,
    )  # fmt: skip
    top = field(
        Annotated[int, Bounds(1, 1000)], 15, label="Words each", width="short", group="words", more=True,
        help="Nearest words of a component, on either side", shown_if=lambda panel: panel.asks_words,
    )  # fmt: skip
    component = field(Annotated[int, Bounds(low=0)], selects=True, chooses=True)
    """The picked component."""
    noted = field(T.Instance(Notes, ()), redraws=True)
    """What is noted about the components of each model."""
    notes = field(NotesToOpen(None), selects=True)
    """Annotations to go on from: a :class:`ConceptAnnotations`, the path of one, or a pair of them for two models. They
    are taken over, and it is None again, as soon as there are components."""

    def build(self) -> None:
        super().build()
        if not self.asks_words:
            self.run_button.add_class("iw-hidden")
        self._comparing = Derived(self, self.redraw, title="Comparing", channel="compare")

    # the question -----------------------------------------------------------------------------------------------------

    def arguments(self) -> dict[str, Any]:
        source = self.words_asked_for()
        words = {} if source.kind == "demo" else {"words": ListedWords(source)}
        numbers = max(min(self.rank, model.d_model) * model.d_model * model.n_layers for model in self.models)
        keep = len(self.models) == 2 or numbers <= KEPT
        return {**words, "rank": self.rank, "top": self.top, "keep_directions": keep}

    def request(self) -> Any:
        return super().request() if self.asks_words else SavedRequest()

    def cost(self, request: Any, model: Model) -> Cost:
        """Operations and bytes: covariances, their eigenvectors, and projections of all words."""
        if isinstance(request, SavedRequest):
            return Cost(0.0, 0.0)
        asked = dict(request.arguments)
        count = (asked["words"].source if "words" in asked else WordSource()).count
        width, rank = model.d_model, min(asked["rank"], model.d_model)
        layer = 2.0 * model.d_mlp * width**2 + 10.0 * width**3 + 2.0 * rank * width * count
        held = 8.0 * width**2 * 3 + 8.0 * count * width + 4.0 * model.n_layers * rank * width
        return Cost(model.n_layers * layer, held)

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        count = min((result.rank for result in self.results), default=0)
        return {"component": (count, f"the {count} components computed")} if self.results else {}

    def draw_selection(self) -> None:
        if self.results:
            self._take_notes_option()

    # what is looked at ------------------------------------------------------------------------------------------------

    @property
    def letter(self) -> str:
        """The model whose components are listed and noted: A or B; of a difference, A, each beside one of B."""
        return "A" if self.shown == "difference" else self.shown

    @property
    def looked_at(self) -> FFNConceptResult:
        """The components of that model."""
        result: FFNConceptResult = self.results[LETTERS.index(self.letter)]
        return result

    # notes ------------------------------------------------------------------------------------------------------------

    def owner(self, letter: str) -> Owner:
        """A model as notes know it."""
        index = LETTERS.index(letter)
        weights = self.results[index].provenance.get("weight_hash") if index < len(self.results) else None
        return letter, weights

    def notes_of(self, letter: str) -> Mapping[Cell, Annotation]:
        """What is noted about a model's components."""
        return self.noted.of(self.owner(letter))

    def annotations_of(self, letter: str) -> ConceptAnnotations:
        """The notes about a model's components as a result that saves itself: at least those that are listed."""
        if LETTERS.index(letter) >= len(self.results):
            raise ValueError("there are no components yet: press Run on the tab Concepts first")
        notes = self.notes_of(letter)
        count = max([self.components, *(component + 1 for _, component in notes)])
        return as_annotations(notes, self.results[LETTERS.index(letter)], count)

    def take_notes(self, letter: str, annotations: ConceptAnnotations, source: str) -> None:
        """Take annotations over; ValueError for those of another model."""
        owner = self.owner(letter)
        weights = annotations.provenance.get("weight_hash")
        if None not in (owner[1], weights) and owner[1] != weights:
            name = annotations.provenance.get("model")
            raise ValueError(f"these notes are about other weights (those of {name}): open them with that model")
        self.change_notes(lambda noted: noted.answered(owner, notes_in(annotations), f"opening {source}"))

    def change_notes(self, change: Callable[[Notes], Notes]) -> None:
        """Change what is noted; one thread at a time, or a change would be lost in another."""
        with handling():
            self.noted = change(self.noted)

    def _take_notes_option(self) -> None:
        """Take over what the keyword `notes` holds, once there are components to note."""
        if self.notes is None or len(self.results) < len(self.models) or any(result.partial for result in self.results):
            return  # while it computes, notes about what is not there yet would be lost
        pair = list(self.notes) if isinstance(self.notes, list | tuple) else [self.notes]
        self.notes = None

        def work(job: Any) -> list[ConceptAnnotations | None]:
            if len(pair) > len(self.models):
                raise ValueError(f"notes of {len(pair)} models were given, the browser has {len(self.models)}")
            return [None if notes is None else read_notes(notes) for notes in pair]

        def done(read: list[ConceptAnnotations | None]) -> None:
            with self.hold():
                for letter, annotations in zip(LETTERS, read, strict=False):
                    if annotations is not None:
                        self.take_notes(letter, annotations, "the notes given")

        # a run of its own: what is wrong with notes must not keep the components from being shown
        self.jobs.start(work, done, title="Opening the notes", channel="notes")

    # the comparison ---------------------------------------------------------------------------------------------------

    @property
    def compared(self) -> int:
        """Components that are compared: those that are listed."""
        return min([self.components, *(result.rank for result in self.results)])

    @property
    def comparison(self) -> ConceptComparison | None:
        """The comparison of the two results on the screen; None while there is none."""
        comparison: ConceptComparison | None = self._comparing.of((self.results, self.compared))
        return comparison

    def compare(self) -> None:
        """Compare the two results on the screen, in the background, unless that is done."""
        results, rank = self.results, self.compared
        if len(results) == 2 and not any(result.partial for result in results):
            self._comparing.ask(
                (results, rank),
                lambda job: once_for(
                    results,
                    ("compare_concepts", rank),
                    lambda: compare_concepts(*results, rank=rank, progress=job.progress, check=job.check),
                ),
            )

    @property
    def not_compared(self) -> str:
        """Why there are no matched components yet."""
        if len(self.results) < 2:
            return "The second model is not there yet."
        if any(result.partial for result in self.results):
            return "Both models have to be there in full before their components are matched."
        return self._comparing.failure or "Matching the components of A with those of B…"

    def matched_rows(self) -> list[list[Any]]:
        """The layer's components of A, each beside the one of B that it is matched with."""
        comparison, layer = self.comparison, self.layer
        if comparison is None or layer not in comparison.layers:
            return []
        at = list(comparison.layers).index(layer)
        a, b = self.results
        match = np.asarray(comparison.match)[at]
        rows = []
        for component, (other, flipped) in enumerate(zip(match.tolist(), _flipped(a, b, layer, match), strict=True)):
            cosine = float(comparison.match_cosine[at, component])
            angle = float(np.degrees(np.arccos(min(cosine, 1.0))))
            words = words_of(a, (layer, component), "both"), words_of(b, (layer, other), "both", flipped=flipped)
            rows.append([component, other, cosine, angle, float(comparison.shared_words[at, component]), *words])
        return rows

    @property
    def matched_caption(self) -> str:
        """What these rows are."""
        return f"Components of A in layer {self.layer} and those of B that they are matched with, one to one"

    # what is saved ----------------------------------------------------------------------------------------------------

    def matched_scene(self) -> Scene:
        """The table of matched components."""
        widths = [48, 48, 56, 64, 88, 420, 420]
        columns = [(column["label"], float(width)) for column, width in zip(MATCHED, widths, strict=True)]
        return table_scene(columns, self.matched_rows(), title=self.matched_caption, right=range(5))

    def code(self, request: Any) -> str:
        """The components, or the files that were opened, and what the panel makes of them."""
        saved = isinstance(request, SavedRequest)
        imports, lines = self.last_lines()
        return cell(
            ["FFNConceptResult" if saved else "ffn_concepts", *imports],
            () if saved else self.models,  # saved results need no model
            [*request.lines(self.models), *lines],
        )

    def last_lines(self) -> tuple[list[str], list[str]]:
        """Names to import and lines of a cell that end with what the panel shows."""
        raise NotImplementedError


def read_notes(notes: Any) -> ConceptAnnotations:
    """Annotations, or those of a file."""
    if isinstance(notes, str | os.PathLike):
        notes = ConceptAnnotations.load(Path(notes).expanduser())
    if not isinstance(notes, ConceptAnnotations):
        raise TypeError(f"notes must be ConceptAnnotations or the path of a file of them, got {notes!r}")
    return notes


def words_of(result: FFNConceptResult, component: Cell, side: str, *, flipped: bool = False) -> str:
    """The words of one side of a component, or of both, those of the negative side with a minus.

    ``flipped`` swaps the sides: the sign of a component is free.
    """
    if side != "both":
        return ", ".join(result.words(*component, sign=side))  # type: ignore[arg-type]
    return ", ".join(word if (value > 0) != flipped else f"−{word}" for word, value in result.scores(*component))


def _flipped(a: FFNConceptResult, b: FFNConceptResult, layer: int, match: NDArray[np.integer[Any]]) -> list[bool]:
    """Whether matched components point away from each other: a component's sign is free."""
    if a.directions is None or b.directions is None:
        return [False] * len(match)
    of_a, of_b = a.directions[a.row(layer)][: len(match)], b.directions[b.row(layer)][match]
    return [bool(cosine < 0) for cosine in np.einsum("rd,rd->r", of_a, of_b)]
