"""What every tab of the concept browser asks for first: a direction per concept, made from stimuli or from a file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import traitlets as T

from interp_widgets.analysis._core.result import Scalar
from interp_widgets.analysis.concepts import ConceptSet, KeptStates, concept_directions, neighbours
from interp_widgets.analysis.concepts.directions import NEUTRAL_TEMPLATE, TEMPLATE, concept_directions_cost
from interp_widgets.compute.memory import Forecast, speedometer
from interp_widgets.data.concepts import Concept, check_concepts, demo_concepts
from interp_widgets.models import Model

from ..base import pair_view
from ..base.answers import device_of
from ..base.code import call, cell
from ..base.controls import ListOf, TypedList
from ..base.fields import Bounds, Incomplete, Text, field
from ..base.panel import Panel
from ..base.request import Request, model_variables
from ..base.words import IN_WORDS, Step, Words, decimals
from ..base.workbench import in_model

PROMPT = "One day, the doctor in a red coat saw a"
CONCEPT = "lion"
"""The concept to start with, where there is one of this name."""
NOTHING_YET = "no block has read the text before layer 0: there the last token is the same in every one; take 1 or more"
METHOD_LABELS = {
    "mean_difference": "mean difference",
    "pca": "first component of paired differences",
    "discriminant": "linear discriminant",
}
MAP_LABELS = {"pca": "principal components", "tsne": "t-SNE", "umap": "UMAP"}
FEWEST_TO_DRAFT = 32
"""Of fewer concepts, no draft is shown while they are read."""
DRAFTS = (8, 2)
"""Drafts hold every 8th concept, then every 2nd: all groups from the first on."""
STATES = ("ConceptBrowser", "states")
"""What the speedometer calls reading stimuli."""
SHARED = (
    "concepts", "path", "stream", "method", "map_method", "seed", "concept", "chosen", "search", "prompt",
    "prompt_token",
)  # fmt: skip
"""Options of all tabs, which are no keywords of a tab's analysis."""

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
    """Concepts whose hash is taken once: there may be a million stimuli in them."""

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
    """Directions to be made from stimuli."""

    listed: Listed
    layer: int
    method: str
    seed: int = 0

    @property
    def wanted(self) -> int:
        """How many concepts are asked for."""
        return len(self.listed.concepts)

    def answer(self, model: Model, kept: KeptStates, *, progress: Progress, check: Check, draft: Draft) -> ConceptSet:
        """Make them. Drafts come before: some of the concepts while there is much to read, else all without the
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
    """Directions from a file."""

    path: str
    stamp: tuple[int, int]
    """Size and time of the file, so that another one under the same name is another request."""
    wanted: int = 0
    """Nothing is left out of a file."""

    @classmethod
    def at(cls, path: str) -> OpenedSet:
        """The file at a path; FileNotFoundError where there is none."""
        try:
            stat = os.stat(Path(path).expanduser())
        except OSError as error:
            raise FileNotFoundError(f"there is no file of directions at {path}: check the path") from error
        return cls(path, (stat.st_size, stat.st_mtime_ns))

    def answer(self, models: Sequence[Any]) -> ConceptSet:
        """Read it; ValueError unless one of the models is the one it was made from."""
        concepts = ConceptSet.load(Path(self.path).expanduser())
        own = any(concepts.made_from(model) for model in models)
        for model in models:
            concepts.check(model, other_weights=own)
        return concepts


Source = MadeSet | OpenedSet


class StimulusStore:
    """What the tabs of a browser keep of the stimuli, beside the options that they share."""

    def __init__(self) -> None:
        self.states: dict[int, KeptStates] = {}
        """States that were read, by the id of the model."""
        self.folders: dict[str, tuple[Concept, ...]] = {}
        """Concepts that were read from folders, for the code."""
        self._listed = Listed(())

    def listed(self, concepts: tuple[Concept, ...]) -> Listed:
        """A list of concepts, checked and hashed once; ValueError for one of which no directions can be made."""
        listed = self._listed
        if listed.concepts is not concepts:
            check_concepts(concepts)
            listed = self._listed = Listed(concepts)
        return listed

    def states_of(self, model: Model) -> KeptStates:
        """The states that one model has read."""
        return self.states.setdefault(id(model), KeptStates(model))

    def forget(self, model: Model) -> None:
        """Let go of the states that one model has read."""
        self.states.pop(id(model), None)

    def missing(self, source: MadeSet, model: Model) -> float:
        """Share of the stimuli that the model has to read."""
        kept = self.states.get(id(model))
        if kept is None or not len(kept):
            return 1.0
        texts = list(source.listed.texts())
        return len(kept.missing(texts, source.layer)) / max(len(texts), 1)


# what a panel asks and shows ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConceptRequest(Request):
    """A call of an analysis with directions, which are made first: what they come from is the first of its inputs."""

    @property
    def source(self) -> Source:
        """What the directions come from."""
        source: Source = self.inputs[0]
        return source


@dataclass(frozen=True, eq=False, kw_only=True)
class Directions:
    """One model's answer: its directions, and in subclasses what a tab shows of them."""

    concepts: ConceptSet
    wanted: int = 0
    """Concepts that were asked for; more than there are in a draft."""

    @property
    def partial(self) -> bool:
        """Whether concepts are missing."""
        return len(self.concepts.names) < self.wanted

    @property
    def provenance(self) -> Mapping[str, Scalar]:
        """What it takes to repeat it."""
        return self.concepts.provenance


def first_look(names: Collection[str]) -> str:
    """The concept to look at where none was chosen."""
    return CONCEPT if CONCEPT in names else next(iter(names), "")


class ConceptOptions(T.HasTraits):
    """The options of all tabs: which directions, and what is looked at."""

    models: tuple[Any, ...]
    concepts = field(ListOf(Concept))
    """A tuple of `Concept`, from whose stimuli directions are made; the demo's unless others are set."""
    path = field(str, label="Directions from", group="file")
    """A file of directions to show instead, as `ConceptSet.save` writes it; empty: they are made from `concepts`."""
    stream = field(
        Annotated[int, Bounds(lambda panel: 0, lambda panel: panel.deepest, slider=True)], -1,
        label="Layer", group="directions", shown_if=lambda panel: not panel.path,  # a saved set has its own
        help="The residual stream entering this layer; at the right end the one before the final norm",
    )  # fmt: skip
    method = field(
        METHOD_LABELS, "mean_difference", label="Directions", group="directions",
        shown_if=lambda panel: not panel.path, help="How directions are made",
    )  # fmt: skip
    map_method = field(MAP_LABELS, "pca", argument=None)
    """How directions are placed in the plane."""
    seed = field(Annotated[int, Bounds(low=0)])
    """Of the map, and of the labels dealt for the control."""
    layer = in_model()
    """The selected layer, shared; the stream follows it."""
    concept = field(str, label="Concept", group="choice", selects=True, chooses=True, argument=None)
    """The concept that is looked at."""
    chosen = field(TypedList(), selects=True, chooses=True, argument=None)
    """Concepts selected on the map."""
    search = field(str, argument=None)
    """Concepts whose name or group holds these words are listed."""
    prompt = field(Annotated[str, Text(2)], argument=None)
    """What is read, and continued under steering."""
    prompt_token = field(T.Int(-1, min=-1), argument=None)
    """The token of the prompt whose state is taken apart; -1 for the last."""

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        """What to start with."""
        usual: dict[str, Any] = {} if "prompt" in keywords else {"prompt": PROMPT}
        if "concepts" in keywords:
            return usual
        # t-SNE keeps most neighbours, and of so few concepts takes a second
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
    """Base of the tabs. Each asks its own question about the directions, which are made once for all of them.

    An `analysis` takes a model and its directions, then what `asked_about` returns and the panel's own options.
    """

    title: ClassVar[str] = "Concepts"
    cached_as: ClassVar[str] = "concepts"
    tab_name: ClassVar[str] = ""
    """What the tab is called."""

    def __init__(self, model: Model, tuned: Any = None, *, stack: Any = None, **options: Any) -> None:
        self.store = StimulusStore() if stack is None else stack.store
        self._flops: tuple[Any, float, float] = (None, 0.0, 0.0)
        self.index_of: dict[str, int] = {}
        """Index of each concept on the screen, in its set and on the map."""
        super().__init__(model, tuned, stack=stack, **options)

    # what is looked at ------------------------------------------------------------------------------------------------

    @property
    def sets(self) -> tuple[ConceptSet, ...]:
        """The directions on the screen, one set per model."""
        return tuple(result.concepts for result in self.results)

    @property
    def looked_at(self) -> tuple[Any, ...]:
        """The answers of the models that the view shows."""
        return tuple(self.results[index] for index in pair_view.looked_at(self)) if self.results else ()

    @property
    def opened(self) -> bool:
        """Whether what is on the screen comes from a file."""
        return isinstance(getattr(self.shown_request, "source", None), OpenedSet)

    @property
    def known(self) -> Collection[str]:
        """Names of the concepts on the screen, and of those whose directions may still have to be made."""
        return set(self.index_of) if self.path else {*self.index_of, *(concept.name for concept in self.concepts)}

    @property
    def shown_concept(self) -> str:
        """The concept that the picture shows: of directions that do not have the chosen one (yet), another."""
        if self.concept in self.index_of or not self.index_of:
            return self.concept
        return first_look(self.index_of)

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        there = self.known, f"the {len(self.index_of)} concepts here"
        return {"concept": there, "chosen": there}

    # what the panel asks for ------------------------------------------------------------------------------------------

    @property
    def source(self) -> Source:
        """What the directions are to come from; ValueError where none can be made."""
        if self.path:
            return OpenedSet.at(self.path)
        if self.stream == 0:
            raise Incomplete("stream", NOTHING_YET)
        return MadeSet(self.store.listed(self.concepts), self.stream, self.method, self.seed)

    def arguments(self) -> dict[str, Any]:
        """The keywords of the analysis: the tab's own options whose controls are shown."""
        return {name: value for name, value in super().arguments().items() if name not in SHARED}

    def asked_about(self) -> tuple[Any, ...]:
        """What the analysis takes behind model and directions."""
        return ()

    def request(self) -> Any:
        self.require()
        return ConceptRequest.of(type(self).analysis, self.arguments(), self.source, *self.asked_about())  # type: ignore[arg-type]

    def depends_on(self, request: Any, model: Model) -> tuple[Any, ...]:
        # the second model's map and dispersion need the first's directions too
        return () if isinstance(request, MadeSet) else self.models

    def compute(
        self, request: Any, model: Model, *, progress: Progress, check: Check, on_partial: Callable[[Any], None]
    ) -> Any:
        wanted = request.source.wanted

        def draft(concepts: ConceptSet) -> None:
            if model is not self.models[0] and len(concepts.names) < wanted:
                return  # two models are shown with the same concepts
            shown = self.draft(request, concepts, check)
            if shown is not None:
                on_partial(replace(shown, wanted=wanted))

        concepts = self.directions(request.source, model, progress, check, draft)
        return self.answer(request, model, concepts, progress, check)

    def draft(self, request: Any, concepts: ConceptSet, check: Check) -> Directions | None:
        """What to show of directions that are not all there; None for nothing."""
        return None

    def answer(self, request: Any, model: Model, concepts: ConceptSet, progress: Progress, check: Check) -> Any:
        """The answer of one model, whose directions are there."""
        asked = replace(request, inputs=(concepts, *request.inputs[1:]))
        return asked.answer(model, progress=progress, check=check)

    def directions(
        self, source: Source, model: Model, progress: Progress, check: Check, draft: Draft = lambda _: None
    ) -> ConceptSet:
        """A model's directions: those in the cache, or made or read now; in the worker."""

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

        concepts: ConceptSet = self.answers.once(source, model, compute)
        return concepts

    # what it takes ----------------------------------------------------------------------------------------------------

    def _reading(self, source: MadeSet, model: Model) -> tuple[float, float]:
        """Operations and bytes of reading all stimuli."""
        key, flops, size = self._flops  # at once: the worker asks too
        if key != (source, id(model)):
            method: Any = source.method
            cost = concept_directions_cost(model, source.listed.concepts, layer=source.layer, method=method)
            key, flops, size = self._flops = (source, id(model)), float(cost.flops), float(cost.bytes)
        return flops, size

    def forecast_on(self, request: Any, model: Model) -> Forecast:
        """Time to the answer; the shuffled control, which comes behind a draft, is not counted."""
        source, reading = request.source, Forecast(0.0, 0)
        if isinstance(source, MadeSet) and source.listed.concepts and not self.answers.expected(source, model):
            share = self.store.missing(source, model)
            if share:
                flops, size = self._reading(source, model)
                reading = Forecast(speedometer.seconds(STATES, device_of(model), share * flops), int(size))
        return reading + self.own_forecast(request, model)

    def own_forecast(self, request: Any, model: Model) -> Forecast:
        """What the question takes once the directions are there."""
        return Forecast(0.0, 0)

    # drawing ----------------------------------------------------------------------------------------------------------

    def draw(self, results: tuple[Any, ...], request: Any) -> None:
        self.index_of = {name: i for i, name in enumerate(results[0].concepts.names)}

    def draw_selection(self) -> None:
        """With new results, let go of concepts that there are not; a draft may not have them yet."""
        if self._drawn is not None or not self.results or self.results[-1].partial:
            return
        known = self.known
        if any(name not in known for name in self.chosen):
            self.chosen = [name for name in self.chosen if name in known]
        if self.concept not in known:
            with self.settled():
                self.concept = self.shown_concept

    def in_words(self) -> Words | None:
        sets, name = self.sets, self.shown_concept
        if not sets or name not in self.index_of:
            return None
        index, letters = self.index_of[name], pair_view.letters(sets)
        group = sets[0].groups[index]
        last = sets[pair_view.looked_at(self)[-1]]
        near = neighbours(last, name, min(IN_WORDS, len(self.index_of) - 1))
        rows = []
        for other, _ in near:
            there = self.index_of[other]
            rows.append((other, *(decimals(float(one.directions[there] @ one.directions[index])) for one in sets)))
        aucs = ", ".join(
            f"{letter}{decimals(float(one.auc[index]))}" for letter, one in zip(letters, sets, strict=True)
        )
        return Words(
            f"Concept “{name}”" + (f" ({group})" if group else ""),
            (*self.about_concept(index), f"It tells stimuli that it was not made from with an AUC of {aucs}."),
            ("nearest", *(letter.strip() or "cosine" for letter in letters)),
            tuple(rows),
            (Step("concepts", "What if it were stronger?", {"tab": "steer"}),),
        )

    def about_concept(self, index: int) -> tuple[str, ...]:
        """What the tab says of the concept that is looked at, in sentences."""
        return ()

    # what is saved ----------------------------------------------------------------------------------------------------

    def own_lines(self, model: str, concepts: str) -> tuple[list[str], list[str]]:
        """Names to import, and lines of a cell that end with what the tab shows of a model and its directions."""
        return [], [f"{concepts}.to_frame()"]

    def code(self, request: Any) -> str:
        """The directions, their map, the neighbours of the concept that is looked at, and what the tab shows."""
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
        last = pair_view.looked_at(self)[-1]
        concept = self.shown_concept or first_look(self.known)
        lines.append(f"near = {call('neighbours', variables[last], repr(concept), '12')}")
        more, own = self.own_lines(names[last], variables[last])
        return cell([*imports, "concept_map", "neighbours", *more], self.models, [*lines, *own])

    def frame(self) -> Any:
        return pair_view.joined(concepts.to_frame() for concepts in self.sets)


def direction_variables(models: Sequence[Any]) -> tuple[str, ...]:
    """What the directions are called in copied code."""
    return ("directions",) if len(models) == 1 else ("directions_a", "directions_b")


def list_lines(
    concepts: tuple[Concept, ...], folders: Mapping[str, tuple[Concept, ...]]
) -> tuple[list[str], list[str], list[str]]:
    """Names to import, lines that make a list of concepts, and the argument; nothing for the demo's own list."""
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
