"""The base of the concept browser's tabs: a direction per concept, made from stimuli or loaded from a file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
import traitlets as T

from interp_widgets.analysis._core.result import Scalar
from interp_widgets.analysis.concepts import ConceptSet, HiddenStateCache, concept_directions, neighbors
from interp_widgets.analysis.concepts.directions import NEUTRAL_TEMPLATE, TEMPLATE, concept_directions_cost
from interp_widgets.atomic import named_path
from interp_widgets.compute.memory import Forecast, speedometer
from interp_widgets.data.concepts import Concept, check_concepts, demo_concepts
from interp_widgets.models import Model

from ..base import pair_view
from ..base.answers import device_of
from ..base.code import call, cell
from ..base.controls import ListOf, TypedList, Whole
from ..base.description import MOST_ROWS, Description, Step, decimals
from ..base.fields import Bounds, Incomplete, Text, field
from ..base.panel import Panel
from ..base.request import Request, model_variables
from ..base.workbench import in_model

PROMPT = "One day, the doctor in a red coat saw a"
CONCEPT = "lion"
"""The concept to start with, if there is one of this name."""
NOTHING_YET = "the stream entering layer 0 holds only the last token, which is the same in every text; choose 1 or more"
METHOD_LABELS = {
    "mean_difference": "mean difference",
    "pca": "first component of paired differences",
    "discriminant": "linear discriminant",
}
MAP_LABELS = {"pca": "principal components", "tsne": "t-SNE", "umap": "UMAP"}
FEWEST_TO_DRAFT = 32
"""Fewest concepts for which drafts are shown."""
DRAFTS = (8, 2)
"""Drafts hold every 8th concept, then every 2nd, so that the first already has all groups."""
STATES = ("ConceptBrowser", "states")
"""The speedometer's key for reading stimuli."""
SHARED = (
    "concepts", "path", "stream", "method", "map_method", "seed", "concept", "chosen", "search", "prompt",
    "prompt_token",
)  # fmt: skip
"""Options of all tabs that are not keywords of a tab's analysis."""

Progress = Callable[[int, int], None]
Check = Callable[[], None]
Draft = Callable[[ConceptSet], None]


# where directions come from -------------------------------------------------------------------------------------------


def filled(template: str, name: str, stimulus: str) -> str:
    """A stimulus in its template."""
    before, after = template.replace("<concept>", name).split("<stimulus>")
    return before + stimulus + after


@dataclass(frozen=True)
class Listed:
    """Concepts with a cached hash, since they may hold a million stimuli."""

    concepts: tuple[Concept, ...]

    @cached_property
    def _hash(self) -> int:
        return hash(self.concepts)

    def __hash__(self) -> int:
        return self._hash

    def texts(self) -> Iterator[str]:
        """Every text that a model has to read, in its template."""
        for concept in self.concepts:
            yield from (filled(TEMPLATE, concept.name, text) for text in concept.stimuli)
            yield from (filled(NEUTRAL_TEMPLATE, "", text) for text in concept.held_out)


@dataclass(frozen=True)
class MadeSet:
    """The request to make directions from stimuli."""

    listed: Listed
    layer: int
    method: str
    seed: int = 0

    @property
    def wanted(self) -> int:
        """Number of concepts requested."""
        return len(self.listed.concepts)

    def answer(
        self, model: Model, kept: HiddenStateCache, *, progress: Progress, check: Check, draft: Draft
    ) -> ConceptSet:
        """Make them. Drafts come first: some of the concepts if there is much to read, else all without the
        control."""
        concepts, texts = self.listed.concepts, list(self.listed.texts())
        furthest = 0

        def report(done: int, _: int) -> None:
            nonlocal furthest
            furthest = max(furthest, done)
            progress(furthest, len(texts))

        def made(some: Sequence[Concept], **options: Any) -> ConceptSet:
            return concept_directions(
                model, some, layer=self.layer, method=self.method, seed=self.seed, states=kept, check=check,  # type: ignore[arg-type]
                **options,
            )  # fmt: skip

        def without_control(some: Sequence[Concept], **options: Any) -> ConceptSet:
            return replace(made(some, shuffles=1, **options), shuffled_auc=np.full(len(some), np.nan))

        if not kept.missing(texts, self.layer):
            draft(without_control(concepts))
        elif len(concepts) >= FEWEST_TO_DRAFT:
            for step in DRAFTS:
                draft(without_control(concepts[::step], progress=report))
        return made(concepts, progress=report)


@dataclass(frozen=True)
class OpenedSet:
    """The request to load directions from a file."""

    path: str
    stamp: tuple[int, int]
    """Size and modification time of the file, so that a changed file is a different request."""
    wanted: int = 0
    """0: a file is complete."""

    @classmethod
    def at(cls, path: str) -> OpenedSet:
        """The file at a path; FileNotFoundError if there is none."""
        try:
            stat = os.stat(named_path(path, "the path"))
        except OSError as error:
            raise FileNotFoundError(f"there is no file of directions at {path}: check the path") from error
        return cls(path, (stat.st_size, stat.st_mtime_ns))

    def answer(self, models: Sequence[Any]) -> ConceptSet:
        """Load it; ValueError unless one of the models is the one it was made from."""
        concepts = ConceptSet.load(self.path)
        own = any(concepts.made_from(model) for model in models)
        for model in models:
            concepts.check(model, other_weights=own)
        return concepts


Source = MadeSet | OpenedSet


class StimulusStore:
    """Stimuli data that the tabs of a browser share besides their options."""

    def __init__(self) -> None:
        self.states: dict[int, HiddenStateCache] = {}
        """Hidden states of stimuli, by the id of the model."""
        self.folders: dict[str, tuple[Concept, ...]] = {}
        """Concepts that were loaded from folders, for copied code."""
        self._listed = Listed(())

    def listed(self, concepts: tuple[Concept, ...]) -> Listed:
        """A list of concepts, checked and hashed once; ValueError if no directions can be made from it."""
        listed = self._listed
        if listed.concepts is not concepts:
            check_concepts(concepts)
            listed = self._listed = Listed(concepts)
        return listed

    def states_of(self, model: Model) -> HiddenStateCache:
        """The stored states of a model."""
        return self.states.setdefault(id(model), HiddenStateCache(model))

    def forget(self, model: Model) -> None:
        """Drop the stored states of a model."""
        self.states.pop(id(model), None)

    def missing(self, source: MadeSet, model: Model) -> float:
        """Share of the stimuli that the model still has to read."""
        kept = self.states.get(id(model))
        if kept is None or not len(kept):
            return 1.0
        texts = list(source.listed.texts())
        return len(kept.missing(texts, source.layer)) / max(len(texts), 1)


# what a panel asks and shows ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConceptRequest(Request):
    """A call of an analysis with directions, which are made first; their source is its first input."""

    @property
    def source(self) -> Source:
        """The source of the directions."""
        source: Source = self.inputs[0]
        return source


@dataclass(frozen=True, eq=False, kw_only=True)
class Directions:
    """One model's result: its directions, and in subclasses what a tab derives from them."""

    concepts: ConceptSet
    wanted: int = 0
    """Number of concepts requested; a draft has fewer."""

    @property
    def partial(self) -> bool:
        """Whether concepts are missing."""
        return len(self.concepts.names) < self.wanted

    @property
    def provenance(self) -> Mapping[str, Scalar]:
        """What is needed to repeat it."""
        return self.concepts.provenance


def first_look(names: Collection[str]) -> str:
    """The concept selected by default."""
    return CONCEPT if CONCEPT in names else next(iter(names), "")


class ConceptOptions(T.HasTraits):
    """The options of all tabs: which directions, and the selection."""

    models: tuple[Any, ...]
    concepts = field(ListOf(Concept))
    """A tuple of `Concept`, from whose stimuli directions are made; by default the demo's."""
    path = field(str, label="Directions from", group="file", personal=True)
    """A file of directions, as `ConceptSet.save` writes it; empty: they are made from `concepts`."""
    stream = field(
        Annotated[int, Bounds(lambda panel: 0, lambda panel: panel.deepest, slider=True)], -1,
        label="Layer", group="directions", shown_if=lambda panel: not panel.path,  # a saved set has its own
        help="The residual stream entering this layer; at the right end, the one before the final norm",
    )  # fmt: skip
    method = field(
        METHOD_LABELS, "mean_difference", label="Directions", group="directions",
        shown_if=lambda panel: not panel.path, help="Method that makes a direction from stimuli",
    )  # fmt: skip
    map_method = field(MAP_LABELS, "pca", argument=None)
    """Method that projects the directions onto the plane."""
    seed = field(Annotated[int, Bounds(low=0)])
    """Seed of the map, and of the shuffled labels of the control."""
    layer = in_model()
    """The selected layer, shared by all panels; `stream` follows it."""
    concept = field(str, label="Concept", group="choice", selects=True, validated_by_result=True, argument=None)
    """The selected concept."""
    chosen = field(TypedList(), selects=True, validated_by_result=True, argument=None)
    """Concepts selected on the map."""
    search = field(str, argument=None)
    """Words that the name or group of the listed concepts contains."""
    prompt = field(Annotated[str, Text(2)], argument=None)
    """The prompt to read, and to continue under steering."""
    prompt_token = field(Whole(-1, min=-1), argument=None)
    """The token of the prompt whose state is decomposed; -1 for the last."""

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        """The start values."""
        usual: dict[str, Any] = {} if "prompt" in keywords else {"prompt": PROMPT}
        if "concepts" in keywords:
            return usual
        # t-SNE preserves most neighbours, and for so few concepts takes a second
        return usual | {"concepts": demo_concepts()} | ({} if "map_method" in keywords else {"map_method": "tsne"})

    @property
    def deepest(self) -> int:
        """The last stream that all models have."""
        return int(min(model.n_layers for model in self.models))

    @T.validate("stream", "steer_from")
    def _stream_is_there(self, proposal: Any) -> int:
        if not -1 <= proposal.value <= self.deepest:
            names = " and ".join(model.name for model in self.models)
            raise T.TraitError(
                f"{proposal.trait.name} must be in 0..{self.deepest}, the layers of {names} ({self.deepest}: before "
                f"the final norm), got {proposal.value}"
            )
        return int(proposal.value)


class ConceptPanel(ConceptOptions, Panel):
    """Base of the tabs. Each has its own analysis of the directions, which are made once for all of them.

    An `analysis` takes a model and its directions, then what `analysis_inputs` returns and the panel's own options.
    """

    title: ClassVar[str] = "Concepts"
    cached_as: ClassVar[str] = "concepts"

    def __init__(self, model: Model, tuned: Any = None, *, stack: Any = None, **options: Any) -> None:
        self.store = StimulusStore() if stack is None else stack.store
        self._flops: tuple[Any, float, float] = (None, 0.0, 0.0)
        self.index_of: dict[str, int] = {}
        """Index of each concept on the screen, in its set and on the map."""
        super().__init__(model, tuned, stack=stack, **options)

    # the selection ----------------------------------------------------------------------------------------------------

    @property
    def sets(self) -> tuple[ConceptSet, ...]:
        """The directions on the screen, one set per model."""
        return tuple(result.concepts for result in self.results)

    @property
    def shown_results(self) -> tuple[Any, ...]:
        """The results of the models in view."""
        return tuple(self.results[index] for index in pair_view.shown_indices(self)) if self.results else ()

    @property
    def opened(self) -> bool:
        """Whether the directions on the screen come from a file."""
        return isinstance(getattr(self.shown_request, "source", None), OpenedSet)

    @property
    def known(self) -> Collection[str]:
        """Names of the concepts on the screen, and of those still to be made."""
        return set(self.index_of) if self.path else {*self.index_of, *(concept.name for concept in self.concepts)}

    @property
    def shown_concept(self) -> str:
        """The concept in the picture: the selected one, or another if the directions do not have it (yet)."""
        if self.concept in self.index_of or not self.index_of:
            return self.concept
        return first_look(self.index_of)

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        known = self.known, f"the {len(self.index_of)} concepts here"
        return {"concept": known, "chosen": known}

    # what the panel asks for ------------------------------------------------------------------------------------------

    @property
    def source(self) -> Source:
        """The source of the directions; ValueError if none can be made."""
        if self.path:
            return OpenedSet.at(self.path)
        if self.stream == 0:
            raise Incomplete("stream", NOTHING_YET)
        return MadeSet(self.store.listed(self.concepts), self.stream, self.method, self.seed)

    def arguments(self) -> dict[str, Any]:
        """The keywords of the analysis: the tab's own options whose controls are shown."""
        return {name: value for name, value in super().arguments().items() if name not in SHARED}

    def analysis_inputs(self) -> tuple[Any, ...]:
        """Positional arguments of the analysis after model and directions."""
        return ()

    def request(self) -> Any:
        self.require()
        return ConceptRequest.of(type(self).analysis, self.arguments(), self.source, *self.analysis_inputs())  # type: ignore[arg-type]

    def depends_on(self, request: Any, model: Model) -> tuple[Any, ...]:
        # the second model's map and dispersion need the first's directions too
        return () if isinstance(request, MadeSet) else self.models

    def compute(
        self, request: Any, model: Model, *, progress: Progress, check: Check, on_partial: Callable[[Any], None]
    ) -> Any:
        wanted = request.source.wanted

        def draft(concepts: ConceptSet) -> None:
            if model is not self.models[0] and len(concepts.names) < wanted:
                return  # both models are shown with the same concepts
            shown = self.draft(request, concepts, check)
            if shown is not None:
                on_partial(replace(shown, wanted=wanted))

        concepts = self.directions(request.source, model, progress, check, draft)
        return self.answer(request, model, concepts, progress, check)

    def draft(self, request: Any, concepts: ConceptSet, check: Check) -> Directions | None:
        """A result for incomplete directions; None for none."""
        return None

    def answer(self, request: Any, model: Model, concepts: ConceptSet, progress: Progress, check: Check) -> Any:
        """The result of one model, given its directions."""
        request = replace(request, inputs=(concepts, *request.inputs[1:]))
        return request.answer(model, progress=progress, check=check)

    def directions(
        self, source: Source, model: Model, progress: Progress, check: Check, draft: Draft = lambda _: None
    ) -> ConceptSet:
        """A model's directions, from the cache, or made or loaded now; in the worker."""

        def compute() -> ConceptSet:
            if isinstance(source, OpenedSet):
                return source.answer(self.models)
            if self.answers.fresh:
                self.store.forget(model)
            began, share = time.monotonic(), self.store.missing(source, model)
            made = source.answer(model, self.store.states_of(model), progress=progress, check=check, draft=draft)
            if share:
                flops = share * self._reading(source, model)[0]
                speedometer.learn(STATES, device_of(model), flops, time.monotonic() - began)
            return made

        concepts: ConceptSet = self.answers.cached_or_compute(source, model, compute)
        return concepts

    # what it takes ----------------------------------------------------------------------------------------------------

    def _reading(self, source: MadeSet, model: Model) -> tuple[float, float]:
        """FLOPs and bytes of reading all stimuli."""
        key, flops, size = self._flops  # read together, since the worker reads it too
        if key != (source, id(model)):
            method: Any = source.method
            cost = concept_directions_cost(model, source.listed.concepts, layer=source.layer, method=method)
            key, flops, size = self._flops = (source, id(model)), float(cost.flops), float(cost.bytes)
        return flops, size

    def forecast_on(self, request: Any, model: Model) -> Forecast:
        """Time to the result, without the shuffled control, which follows a draft."""
        source, reading = request.source, Forecast(0.0, 0)
        if isinstance(source, MadeSet) and source.listed.concepts and not self.answers.expected(source, model):
            share = self.store.missing(source, model)
            if share:
                flops, size = self._reading(source, model)
                reading = Forecast(speedometer.seconds(STATES, device_of(model), share * flops), int(size))
        return reading + self.own_forecast(request, model)

    def own_forecast(self, request: Any, model: Model) -> Forecast:
        """The forecast for the tab's analysis, given the directions."""
        return Forecast(0.0, 0)

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[Any, ...], request: Any) -> None:
        self.index_of = {name: i for i, name in enumerate(results[0].concepts.names)}

    def draw_selection(self) -> None:
        """With new results, deselect concepts that do not exist; a draft may not have them yet."""
        if self._drawn is not None or not self.results or self.results[-1].partial:
            return
        known = self.known
        if any(name not in known for name in self.chosen):
            self.chosen = [name for name in self.chosen if name in known]
        if self.concept not in known:
            with self.without_rerun():
                self.concept = self.shown_concept

    def describe_selection(self) -> Description | None:
        sets, name = self.sets, self.shown_concept
        if not sets or name not in self.index_of:
            return None
        index, letters = self.index_of[name], pair_view.letters(sets)
        group = sets[0].groups[index]
        last = sets[pair_view.shown_indices(self)[-1]]
        near = neighbors(last, name, min(MOST_ROWS, len(self.index_of) - 1))
        rows = []
        for other, _ in near:
            neighbour = self.index_of[other]
            rows.append(
                (other, *(decimals(float(each.directions[neighbour] @ each.directions[index])) for each in sets))
            )
        aucs = ", ".join(
            f"{letter}{decimals(float(each.auc[index]))}" for letter, each in zip(letters, sets, strict=True)
        )
        return Description(
            f"Concept “{name}”" + (f" ({group})" if group else ""),
            (*self.about_concept(index), f"It separates held-out stimuli with an AUC of {aucs}."),
            ("nearest", *(letter.strip() or "cosine" for letter in letters)),
            tuple(rows),
            (Step("concepts", "What if it were stronger?", {"tab": "steer"}),),
        )

    def about_concept(self, index: int) -> tuple[str, ...]:
        """The tab's sentences about the selected concept."""
        return ()

    # what is saved ----------------------------------------------------------------------------------------------------

    def own_lines(self, model: str, concepts: str) -> tuple[list[str], list[str]]:
        """Names to import, and the last lines of a cell, with what the tab shows of a model and its directions."""
        return [], [f"{concepts}.to_frame()"]

    def code(self, request: Any) -> str:
        """The directions, their map, the neighbours of the selected concept, and what the tab shows."""
        source, names = request.source, model_variables(self.models)
        variables = direction_variables(self.models)
        if isinstance(source, OpenedSet):
            imports, lines = (
                ["ConceptSet"],
                [f"{variable} = ConceptSet.load({source.path!r})" for variable in variables],
            )
        else:
            imports, lines, listed = list_lines(source.listed.concepts, self.store.folders)
            imports.append("concept_directions")
            options = {"layer": source.layer, "method": source.method} | ({"seed": source.seed} if source.seed else {})
            lines += [
                f"{variable} = {call('concept_directions', name, *listed, **options)}"
                for name, variable in zip(names, variables, strict=True)
            ]
        other = [f"other={variables[1]}"] if len(names) > 1 else []
        seed = [f"seed={self.seed}"] if self.seed else []
        lines.append(f"places = {call('concept_map', variables[0], repr(self.map_method), *other, *seed)}")
        last = pair_view.shown_indices(self)[-1]
        concept = self.shown_concept or first_look(self.known)
        lines.append(f"near = {call('neighbors', variables[last], repr(concept), '12')}")
        more, last_lines = self.own_lines(names[last], variables[last])
        return cell([*imports, "concept_map", "neighbors", *more], self.models, [*lines, *last_lines])

    def table_of(self, result: Any) -> Any:
        return result.concepts.to_frame()


def direction_variables(models: Sequence[Any]) -> tuple[str, ...]:
    """The directions' variables in copied code."""
    return ("directions",) if len(models) == 1 else ("directions_a", "directions_b")


def list_lines(
    concepts: tuple[Concept, ...], folders: Mapping[str, tuple[Concept, ...]]
) -> tuple[list[str], list[str], list[str]]:
    """Names to import, lines that make a list of concepts, and the argument; nothing for the demo's list."""
    demo = demo_concepts()
    if concepts == demo:
        return [], [], []
    left, parts, imports = list(concepts), list[str](), list[str]()
    for maker, name, known in (
        ("demo_concepts()", "demo_concepts", demo),
        *((f"read_concepts({path!r})", "read_concepts", read) for path, read in folders.items()),
    ):
        inside = set(known)
        kept = {concept for concept in left if concept in inside}
        if len(kept) < 0.5 * len(known) or not kept:
            continue
        left = [concept for concept in left if concept not in inside]
        gone = [concept.name for concept in known if concept not in kept]
        imports.append(name)
        parts.append(f"*(c for c in {maker} if c.name not in {gone!r})" if gone else f"*{maker}")
    parts += [f"Concept({c.name!r}, {c.stimuli!r}, {c.held_out!r}, {c.group!r})" for c in left]
    return (
        [*imports, *(["Concept"] if left else [])],
        ["concepts = [", *(f"    {p}," for p in parts), "]"],
        ["concepts"],
    )
