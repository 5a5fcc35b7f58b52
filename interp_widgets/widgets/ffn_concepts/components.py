"""The base of two panels: components of every layer, computed or saved, their notes, and their comparison."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

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
from ..base.description import Step
from ..base.fields import Bounds, field
from ..base.guard import handling
from ..base.jobs import Derived
from ..base.pair_view import LETTERS
from ..base.request import PerModel, result_variables
from ..base.saved_result import SavedAnswer, SavedResult
from ..base.word_source import WordPanel, WordSource
from ..base.workbench import in_model
from ..views.table import RIGHT
from .notes import Cell, Notes, Owner, as_annotations, notes_in

STEP = Step("ablation", "Does it need this MLP?", {"tab": "modules", "kind": "mlp"})
"""The suggested next step after a component or a neuron."""
KEPT = 2**23
"""Size limit of the directions kept with a single model's result for a later comparison; two models keep theirs."""
MATCHED: list[dict[str, Any]] = [
    {"label": "A no.", **RIGHT},
    {"label": "B no.", **RIGHT, "title": "The component of B matched with it, one to one"},
    {"label": "cosine", **RIGHT, "title": "Absolute cosine of the two directions"},
    {"label": "turned °", **RIGHT},
    {"label": "shared words", **RIGHT, "title": "Words that both have, as a share of those that either has"},
    {"label": "words of A", "wrap": True},
    {"label": "words of B", "wrap": True, "title": "Signs are aligned with A"},
]
"""Columns of the table of matched components."""


class SavedConcepts(SavedResult):
    """Saved components in place of a model."""

    kind = FFNConceptResult


@dataclass(frozen=True)
class SavedRequest(SavedAnswer):
    """A request to saved results."""

    def lines(self, models: Sequence[SavedConcepts]) -> list[str]:
        """Lines of a cell that open the files again."""
        return [model.line(name) for model, name in zip(models, result_variables(models), strict=True)]


@dataclass(frozen=True)
class ListedWords(PerModel):
    """The words of a source, as an argument of an analysis."""

    source: WordSource

    def read_by(self, model: Model) -> tuple[str, ...]:
        return self.source.words or self.source.of_model(model).read()[0]

    def code(self, name: str) -> tuple[list[str], str]:
        imports, lines, arguments = self.source.code(name)
        before = [f"from interp_widgets import {', '.join(imports)}", ""] if imports else []
        return [*before, *lines], arguments.get("words", "vectors")


class NotesToOpen(T.Any):
    """A trait for annotations to open: an object or the path of a file, or one of these per model."""

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
    layer = field(in_model(), label="Layer", group="layer", redraws=True, live=True)
    """The selected layer."""
    components = field(
        Annotated[int, Bounds(1, 10_000)], 20, label="Components", width="short", redraws=True,
        help="How many of the first components to list, annotate and compare",
    )  # fmt: skip
    rank = field(
        Annotated[int, Bounds(1, 100_000)], 300, label="Rank", width="short", group="words", more=True,
        help="Components to compute per layer; at most d_model",
        shown_if=lambda panel: panel.asks_words,
    )  # fmt: skip
    top = field(
        Annotated[int, Bounds(1, 1000)], 15, label="Words each", width="short", group="words", more=True,
        help="Number of nearest words per side of a component", shown_if=lambda panel: panel.asks_words,
    )  # fmt: skip
    component = field(Annotated[int, Bounds(low=0)], selects=True, validated_by_result=True)
    """The picked component."""
    noted = field(T.Instance(Notes, ()), redraws=True)
    """The notes about the components of each model."""
    notes = field(NotesToOpen(None), selects=True, personal=True)
    """Annotations to start from: a :class:`ConceptAnnotations`, the path of one, or a pair of them for two models. They
    are loaded as soon as there are components, and it is None again."""

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
        """FLOPs and bytes: covariances, their eigenvectors, and projections of all words."""
        if isinstance(request, SavedRequest):
            return Cost(0.0, 0.0)
        arguments = dict(request.arguments)
        count = (arguments["words"].source if "words" in arguments else WordSource()).count
        width, rank = model.d_model, min(arguments["rank"], model.d_model)
        layer = 2.0 * model.d_mlp * width**2 + 10.0 * width**3 + 2.0 * rank * width * count
        memory = 8.0 * width**2 * 3 + 8.0 * count * width + 4.0 * model.n_layers * rank * width
        return Cost(model.n_layers * layer, memory)

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        count = min((result.rank for result in self.results), default=0)
        return {"component": (count, f"the {count} components computed")} if self.results else {}

    def draw_selection(self) -> None:
        if self.results:
            self._take_notes_option()

    # the selection ----------------------------------------------------------------------------------------------------

    @property
    def letter(self) -> str:
        """The model whose components are listed and annotated: A or B; for a difference A, matched with B."""
        return "A" if self.shown == "difference" else self.shown

    @property
    def shown_result(self) -> FFNConceptResult:
        """The components of that model."""
        result: FFNConceptResult = self.results[LETTERS.index(self.letter)]
        return result

    # notes ------------------------------------------------------------------------------------------------------------

    def owner(self, letter: str) -> Owner:
        """The key of a model in the notes."""
        index = LETTERS.index(letter)
        weights = self.results[index].provenance.get("weight_hash") if index < len(self.results) else None
        return letter, weights

    def notes_of(self, letter: str) -> Mapping[Cell, Annotation]:
        """The notes about a model's components."""
        return self.noted.of(self.owner(letter))

    def annotations_of(self, letter: str) -> ConceptAnnotations:
        """The notes about a model's components, at least the listed ones, as a result that can be saved."""
        if LETTERS.index(letter) >= len(self.results):
            raise ValueError("there are no components yet: press Run on the Concepts tab first")
        notes = self.notes_of(letter)
        count = max([self.components, *(component + 1 for _, component in notes)])
        return as_annotations(notes, self.results[LETTERS.index(letter)], count)

    def take_notes(self, letter: str, annotations: ConceptAnnotations, source: str) -> None:
        """Load annotations; ValueError for those of a different model."""
        owner = self.owner(letter)
        weights = annotations.provenance.get("weight_hash")
        if None not in (owner[1], weights) and owner[1] != weights:
            name = annotations.provenance.get("model")
            raise ValueError(f"these notes belong to different weights (those of {name}): open them with that model")
        self.change_notes(lambda noted: noted.answered(owner, notes_in(annotations), f"opening {source}"))

    def change_notes(self, change: Callable[[Notes], Notes]) -> None:
        """Change the notes; one thread at a time, so that no change is lost."""
        with handling():
            self.noted = change(self.noted)

    def _take_notes_option(self) -> None:
        """Load the notes passed as keyword, once there are components."""
        if self.notes is None or len(self.results) < len(self.models) or any(result.partial for result in self.results):
            return  # during a run, notes about components not computed yet would be lost
        pair = list(self.notes) if isinstance(self.notes, list | tuple) else [self.notes]
        self.notes = None

        def work(job: Any) -> list[ConceptAnnotations | None]:
            if len(pair) > len(self.models):
                raise ValueError(f"got notes for {len(pair)} models, but the browser has {len(self.models)}")
            return [None if notes is None else read_notes(notes) for notes in pair]

        def done(read: list[ConceptAnnotations | None]) -> None:
            with self.batch_changes():
                for letter, annotations in zip(LETTERS, read, strict=False):
                    if annotations is not None:
                        self.take_notes(letter, annotations, "the notes passed")

        # a separate run, so that an error in the notes does not hide the components
        self.jobs.start(work, done, title="Opening the notes", channel="notes")

    # the comparison ---------------------------------------------------------------------------------------------------

    @property
    def compared(self) -> int:
        """Number of components to compare: the listed ones."""
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
            return "The second model has not been computed yet."
        if any(result.partial for result in self.results):
            return "Both models have to be complete before their components can be matched."
        return self._comparing.failure or "Matching the components of A with those of B…"

    def matched_rows(self) -> list[list[Any]]:
        """The layer's components of A, each with its match in B."""
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
        """The caption of these rows."""
        return f"Components of A in layer {self.layer} and their matches in B, one to one"

    # what is saved ----------------------------------------------------------------------------------------------------

    def matched_scene(self) -> Scene:
        """The table of matched components."""
        widths = [48, 48, 56, 64, 88, 420, 420]
        columns = [(column["label"], float(width)) for column, width in zip(MATCHED, widths, strict=True)]
        return table_scene(columns, self.matched_rows(), title=self.matched_caption, right=range(5))

    def code(self, request: Any) -> str:
        """The components, or the files that were opened, and the panel's last lines."""
        saved = isinstance(request, SavedRequest)
        imports, lines = self.last_lines()
        return cell(
            ["FFNConceptResult" if saved else "ffn_concepts", *imports],
            () if saved else self.models,  # saved results need no model
            [*request.lines(self.models), *lines],
        )

    def last_lines(self) -> tuple[list[str], list[str]]:
        """Names to import and the last lines of a cell, with what the panel shows."""
        raise NotImplementedError


def read_notes(notes: Any) -> ConceptAnnotations:
    """Annotations, read from a file if a path is passed."""
    if isinstance(notes, str | os.PathLike):
        notes = ConceptAnnotations.load(notes)
    if not isinstance(notes, ConceptAnnotations):
        raise TypeError(f"notes must be ConceptAnnotations or the path of a file of them, got {notes!r}")
    return notes


def words_of(result: FFNConceptResult, component: Cell, side: str, *, flipped: bool = False) -> str:
    """The words of one side of a component, or of both, with a minus for the negative side.

    ``flipped`` swaps the sides: the sign of a component is arbitrary.
    """
    if side != "both":
        return ", ".join(result.words(*component, sign=side))  # type: ignore[arg-type]
    return ", ".join(word if (value > 0) != flipped else f"−{word}" for word, value in result.scores(*component))


def _flipped(a: FFNConceptResult, b: FFNConceptResult, layer: int, match: NDArray[np.integer[Any]]) -> list[bool]:
    """Whether matched components have opposite signs, which are arbitrary."""
    if a.directions is None or b.directions is None:
        return [False] * len(match)
    of_a, of_b = a.directions[a.row(layer)][: len(match)], b.directions[b.row(layer)][match]
    return [bool(cosine < 0) for cosine in np.einsum("rd,rd->r", of_a, of_b)]
