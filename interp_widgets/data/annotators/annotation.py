"""Annotations of lists of words (description, tasks, linguistic level) and the protocol of annotators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from interp_widgets.arguments import checked

SCENARIOS: tuple[str, ...] = ("writing", "coding", "math", "translation")
"""The tasks that a concept can serve, as in the paper's Table 5."""
LEVELS: tuple[str, ...] = ("phonology", "morphology", "syntax", "semantics")
"""The linguistic levels, from sound to meaning."""


@checked
@dataclass(frozen=True)
class Annotation:
    """An annotation of a list of words; an empty one means "cannot tell".

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2 and appendix D.

    Example:
        >>> Annotation("names of months", level="semantics").cannot_tell, Annotation().cannot_tell
        (False, True)
    """

    description: str = ""
    """What the words have in common; empty for "cannot tell"."""
    scenarios: tuple[str, ...] = ()
    """The tasks from `SCENARIOS` that the concept serves; with a description, empty means that it serves none."""
    level: str | None = None
    """The linguistic level from `LEVELS`; None for "cannot tell"."""
    source: str = ""
    """Name of the annotator."""
    failure: str = ""
    """Why the annotator gave no answer, in one sentence; empty if it answered."""

    def __post_init__(self) -> None:
        if wrong := [name for name in self.scenarios if name not in SCENARIOS]:
            raise ValueError(f"a scenario must be one of {', '.join(SCENARIOS)}, got {wrong[0]!r}")
        if self.level is not None and self.level not in LEVELS:
            raise ValueError(f"level must be one of {', '.join(LEVELS)} or None, got {self.level!r}")
        object.__setattr__(self, "description", " ".join(self.description.split()))
        # in a fixed order, so that equal annotations compare equal
        object.__setattr__(self, "scenarios", tuple(name for name in SCENARIOS if name in self.scenarios))

    @property
    def cannot_tell(self) -> bool:
        """Whether the annotation is empty."""
        return not (self.description or self.scenarios or self.level)


@runtime_checkable
class Annotator(Protocol):
    """Any object with a name that describes what a list of words has in common.

    Example:
        >>> class Long:
        ...     name = "long words"
        ...
        ...     def annotate(self, words, *, check=None):
        ...         long = sum(len(word) > 5 for word in words) > len(words) / 2
        ...         return Annotation("long words", level="morphology") if long else Annotation()
        >>> notes = annotate_concepts(ffn_concepts(model, rank=20), Long())
        >>> notes.annotator, notes.summary()
        ('long words', '120 components: 36 described, 84 cannot tell')
    """

    @property
    def name(self) -> str:
        """Name of the annotator for tables and results; never a secret."""

    def annotate(self, words: Sequence[str], *, check: Callable[[], None] | None = None) -> Annotation:
        """What these words, the most typical first, have in common; an empty annotation if that is unclear.

        ``check`` raises to cancel; an annotator calls it while it waits.
        """


@checked
class UserAnnotator:
    """Your own notes about lists of words, looked up by the words.

    Example:
        >>> notes = UserAnnotator().noted(["May", "June"], Annotation("months", level="semantics"))
        >>> notes.annotate(["June", "May"]).description
        'months'
    """

    name = "user"

    def __init__(self, notes: Mapping[frozenset[str], Annotation] | None = None) -> None:
        self._notes = dict(notes or {})

    def __repr__(self) -> str:
        return f"UserAnnotator({len(self._notes)} notes)"

    def __len__(self) -> int:
        return len(self._notes)

    def noted(self, words: Sequence[str], annotation: Annotation) -> UserAnnotator:
        """A copy with one more note; the order of the words does not matter."""
        return UserAnnotator({**self._notes, frozenset(words): replace(annotation, source=self.name)})

    def annotate(self, words: Sequence[str], *, check: Callable[[], None] | None = None) -> Annotation:
        """The note about these words; empty where there is none."""
        return self._notes.get(frozenset(words), Annotation(source=self.name))
