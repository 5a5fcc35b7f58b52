"""What a concept browser asks for: directions made from stimuli or opened from a file, and a map of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from interp_widgets.analysis._core.result import Scalar
from interp_widgets.analysis.concepts import ConceptMap, ConceptSet, concept_directions, concept_map
from interp_widgets.analysis.concepts.directions import NEUTRAL_TEMPLATE, TEMPLATE
from interp_widgets.analysis.concepts.maps import FEWEST
from interp_widgets.analysis.concepts.state_cache import KeptStates
from interp_widgets.data.concepts import Concept
from interp_widgets.models import Model

KEPT_FROM = 5_000
"""Concepts of a set from a file from which its map is kept beside the file."""
FEWEST_TO_DRAFT = 32
"""Of fewer concepts, no draft is shown while they are read."""
DRAFTS = (8, 2)
"""Drafts hold every 8th concept, then every 2nd: all groups from the first on."""


@dataclass(frozen=True)
class MappedConcepts:
    """One model's answer: its directions, and a map of them; of two models the second's map holds both."""

    concepts: ConceptSet
    map: ConceptMap | None
    """None where there are fewer than 4 concepts."""
    wanted: int
    """Concepts that were asked for; more than there are in a partial result."""

    @property
    def partial(self) -> bool:
        """Whether concepts are missing."""
        return len(self.concepts.names) < self.wanted

    @property
    def provenance(self) -> Mapping[str, Scalar]:
        """What it takes to repeat it."""
        return self.concepts.provenance


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


def filled(template: str, name: str, stimulus: str) -> str:
    """A stimulus in its template."""
    before, after = template.replace("<concept>", name).split("<stimulus>")
    return before + stimulus + after


@dataclass(frozen=True)
class MadeSet:
    """Directions to be made from stimuli."""

    listed: Listed
    layer: int
    method: str
    seed: int = 0

    @property
    def wanted(self) -> int:
        """Concepts asked for."""
        return len(self.listed.concepts)

    def answer(
        self,
        model: Model,
        kept: KeptStates,
        *,
        progress: Callable[[int, int], None],
        check: Callable[[], None],
        on_draft: Callable[[ConceptSet], None],
    ) -> ConceptSet:
        """Make them. Drafts come before: some of the concepts while there is much to read, else all without the
        control."""
        concepts, texts = self.listed.concepts, list(self.listed.texts())
        furthest = 0

        def told(done: int, _: int) -> None:
            nonlocal furthest
            furthest = max(furthest, done)
            progress(furthest, len(texts))

        def made(some: Sequence[Concept], **options: Any) -> ConceptSet:
            return concept_directions(
                model, some, layer=self.layer, method=self.method, seed=self.seed, states=kept, check=check,  # type: ignore[arg-type]
                **options,
            )  # fmt: skip

        if not kept.missing(texts, self.layer):
            on_draft(_without_control(made(concepts, shuffles=1)))
        elif len(concepts) >= FEWEST_TO_DRAFT:
            for step in DRAFTS:
                on_draft(_without_control(made(concepts[::step], shuffles=1, progress=told)))
        return made(concepts, progress=told)


def _without_control(found: ConceptSet) -> ConceptSet:
    return replace(found, shuffled_auc=np.full(len(found.names), np.nan))


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
            found = os.stat(Path(path).expanduser())
        except OSError as error:
            raise FileNotFoundError(f"there is no file of directions at {path}: check the path") from error
        return cls(path, (found.st_size, found.st_mtime_ns))

    def answer(self, models: Sequence[Any]) -> ConceptSet:
        """Read it; ValueError unless one of the models is the one it was made from."""
        found = ConceptSet.load(Path(self.path).expanduser())
        own = any(found.made_from(model) for model in models)
        for model in models:
            found.check(model, other_weights=own)
        return found


@dataclass(frozen=True)
class BrowseRequest:
    """Directions and a map of them."""

    source: MadeSet | OpenedSet
    map_method: str
    seed: int = 0

    def place(self, found: ConceptSet, other: ConceptSet | None, check: Callable[[], None]) -> ConceptMap | None:
        """The map of a set, or of two that share their axes; None for too few concepts."""
        if len(found.names) < FEWEST:
            return None
        shared = other if other is not None and other.d_model == found.d_model else None
        file = self._map_file(len(found.names), shared is not None)
        stored = None
        if file is not None and file.is_file():
            with contextlib.suppress(ValueError):  # damaged, or of an older version: written anew below
                stored = ConceptMap.load(file)
        made = concept_map(found, self.map_method, other=shared, seed=self.seed, stored=stored, check=check)  # type: ignore[arg-type]
        if file is not None and (stored is None or stored.fingerprint != made.fingerprint):
            with contextlib.suppress(OSError):  # a folder that cannot be written to: the map is made again next time
                made.save(file)
        return made

    def _map_file(self, count: int, two: bool) -> Path | None:
        """Where the map of a large set from a file is kept, beside it; other maps are made in seconds."""
        if not isinstance(self.source, OpenedSet) or count < KEPT_FROM:
            return None
        path = Path(self.source.path).expanduser()
        return path.with_name(f"{path.stem}.{self.map_method}{'-pair' if two else ''}-map.npz")
