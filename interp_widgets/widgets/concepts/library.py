"""The user's own concepts, folders of them, and saved sets of directions: add, open, remove, undo."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as W

from interp_widgets.analysis.concepts.directions import TEMPLATE
from interp_widgets.arguments import message_of
from interp_widgets.atomic import named_path
from interp_widgets.compute.worker import Job
from interp_widgets.data.concepts import Concept, check_concepts, demo_concepts, read_concepts, split_stimuli
from interp_widgets.data.files import decoded, lines_of, read_text
from interp_widgets.models import Model

from ..base.controls import TextLine, TextLines, checked_path, checked_text, row, shown_if
from ..base.fields import Hint
from ..base.saving import file_stem, free_name
from ..base.workbench import model_name
from .concept_stack import ConceptStack
from .directions import OpenedSet, filled

OWN = "own"
"""The group of an added concept if the user leaves it empty."""


class Library:
    """The box below the inputs: add, open, save, remove, undo. Its texts follow the options of the browser."""

    def __init__(self, browser: ConceptStack) -> None:
        self.browser = browser
        self.name = TextLine(description="Name", placeholder="best a single word")
        self.group = TextLine(description="Group", placeholder=OWN)
        self.stimuli = TextLines(
            description="Stimuli, one per line", rows=4,
            placeholder="At least 3 short texts in which the concept occurs; with 5 or more, some are held out",
        )  # fmt: skip
        self.stimuli.add_class("iw-grow")
        self.upload = W.FileUpload(accept=".txt", description="From a file", tooltip="A text file of stimuli")
        self.not_added = Hint(self.name, self.group, self.stimuli)
        click = browser.on_click
        self.add_button = click(
            W.Button(description="Add", tooltip="Add this concept to the list"), self.not_added.of(self.add)
        )
        self.path = TextLine(description="Path", placeholder="a folder of concepts, or a saved set (.npz)")
        self.path.add_class("iw-grow")
        self.keep = W.Checkbox(value=True, description="add to the list, do not replace it", indent=False)
        self.not_opened = Hint(self.path, self.keep)
        self.open_button = click(
            W.Button(description="Open", tooltip="Load the folder or the set"), self.not_opened.of(self.open)
        )
        self.save_button = click(
            W.Button(description="Save directions", tooltip="Save the directions beside the notebook"), self.save
        )
        self.remove_button = click(W.Button(), self.remove)
        self.undo_button = click(W.Button(tooltip="Undo the last removal"), self.undo)
        self.reset_button = click(
            W.Button(tooltip="Restore the list of concepts that the browser opens with"), self.reset
        )
        self.words = W.HTML("")
        self.words.add_class("iw-hint")
        self._demo = demo_concepts()
        self._named = ""
        """The concept on the remove button."""
        self._before: tuple[tuple[Concept, ...], str, str] | None = None
        """List, path and concept before the last removal."""
        self.box = W.VBox([
            row(self.name, self.group, self.upload), row(self.stimuli),
            row(self.add_button, self.remove_button, self.undo_button), self.not_added,
            row(self.path, self.open_button, self.keep), self.not_opened,
            row(self.save_button, self.reset_button, self.words),
        ])  # fmt: skip
        self.box.add_class("iw-column")
        browser.watch(self.upload, "value", self._uploaded)
        browser.watch(self.keep, "value", lambda _: self.fit())

    @property
    def hints(self) -> dict[str, str]:
        """Hints about the typed values, by the button that was pressed."""
        hints = {"add": self.not_added.sentence, "open": self.not_opened.sentence}
        return {name: sentence for name, sentence in hints.items() if sentence}

    def fit(self) -> None:
        """Show the source of the directions, and what each button would remove from the list."""
        browser = self.browser
        concepts, opened = browser.concepts, bool(browser.path)
        concept = browser.shown_concept
        self._named = concept if not opened and any(known.name == concept for known in concepts) else ""
        self.add_button.disabled, self.remove_button.disabled = opened, not self._named
        self.remove_button.description = f"Remove “{self._named}”" if self._named else "Remove concept"
        added = self.keep.value and not opened
        self.open_button.description = "Open" if added else f"Open in place of {_counted(concepts)}"
        extra = _less(concepts, self._demo)
        self.reset_button.description = "Back to the demo's" + (f" (removes {_counted(extra)})" if extra else "")
        back = () if self._before is None else _less(self._before[0], concepts)
        self.undo_button.description = f"Undo: bring back {_counted(back)}"
        shown_if(self.undo_button, bool(back))
        count = sum(len(known.stimuli) + len(known.held_out) for known in concepts)
        self.words.value = (
            f"Directions from {escape(browser.path)}."
            if opened
            else f"{len(concepts):,} concepts with {count:,} stimuli."
        )

    # the list ---------------------------------------------------------------------------------------------------------

    def _replace(self, concepts: Sequence[Concept], *, path: str = "", concept: str | None = None) -> None:
        """Replace the list; can be undone if it lacks concepts of the previous one."""
        browser = self.browser
        before = browser.concepts, browser.path, browser.shown_concept
        with browser.batch_changes():
            browser.concepts, browser.path = tuple(concepts), path
            if concept is not None:
                browser.concept = concept
            if _less(before[0], concepts):
                self._before = before
        self.fit()

    def add(self) -> None:
        """Add the concept in the boxes; on an error the boxes stay unchanged."""
        boxes = (self.name, self.group, self.stimuli)
        name, group, stimuli = (checked_text(box.value, f"the {box.description.lower()}").strip() for box in boxes)
        texts = [line.strip() for line in lines_of(stimuli) if line.strip()]
        new = (split_stimuli(name, texts, group or OWN),)
        self._replace(self._checked((*self.browser.concepts, *new), new), concept=name)
        self.name.value = self.group.value = self.stimuli.value = ""

    def _checked(self, concepts: tuple[Concept, ...], new: Sequence[Concept]) -> tuple[Concept, ...]:
        """The list with new concepts, checked."""
        check_concepts(concepts)
        for model in self.browser.models:
            check_lengths(model, new)
        return concepts

    def remove(self) -> None:
        """Remove the concept that the button names."""
        left = tuple(concept for concept in self.browser.concepts if concept.name != self._named)
        check_concepts(left)
        self._replace(left)

    def undo(self) -> None:
        """Restore the removed concepts; those added since then stay."""
        if self._before is None:
            return
        (concepts, path, concept), self._before = self._before, None
        names = {kept.name for kept in concepts}
        later = [added for added in self.browser.concepts if added.name not in names]
        self._replace((*concepts, *later), path=path, concept=concept)

    def reset(self) -> None:
        """Return to the demo's concepts, and to directions made from them."""
        self._replace(self._demo)

    def _uploaded(self, change: Any) -> None:
        if not change.new:
            return
        file = change.new[0]
        self.stimuli.value = decoded(bytes(file["content"]), file["name"])
        if not self.name.value.strip():
            self.name.value = Path(file["name"]).stem

    # files ------------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Load a folder of concepts, a saved set, or a file of stimuli."""
        browser, typed = self.browser, checked_path(self.path.value, "the path")
        if not typed:
            raise ValueError(
                "the path is empty: type that of a folder of concepts, a saved set (.npz) or a file of stimuli"
            )
        path = named_path(typed, "the path")
        if path.is_dir():
            new = read_concepts(path)
            kept = browser.concepts if self.keep.value and not browser.path else ()
            concepts = self._checked((*kept, *new), new)
            browser.store.folders[typed] = new
            self._replace(concepts)
        elif path.suffix == ".txt" and path.is_file():
            self.stimuli.value, self.name.value = read_text(path, "stimuli"), path.stem
        elif path.suffix in ("", ".txt"):
            raise FileNotFoundError(f"there is no folder or text file at {path}: check the path")
        else:
            self._open_set(typed)

    def _open_set(self, path: str) -> None:
        """Take over the set of a file once it has been compared with the models, which may be computing."""
        browser, opened = self.browser, OpenedSet.at(path)

        def work(job: Job) -> ValueError | OSError | None:
            try:
                opened.answer(browser.models)
            except (ValueError, OSError) as error:
                return error
            return None

        def done(error: ValueError | OSError | None) -> None:
            if error is not None:
                self.not_opened.say(message_of(error))
            else:
                browser.path = path

        browser.jobs.start(work, done, title="Opening the directions", channel="open")

    def save(self) -> None:
        """Save the directions of every model beside the notebook."""
        browser = self.browser
        if not browser.sets:
            raise ValueError("there are no directions to save yet: press Run first")
        written = []
        for model, concepts in zip(browser.models, browser.sets, strict=False):
            name = f"concepts {model_name(model)} layer {concepts.layer} {concepts.method}"
            target = free_name(Path.cwd() / (file_stem(name) + ".npz"))
            concepts.save(target)
            written.append(target.name)
        browser.status.idle(f"Saved {' and '.join(written)}")


def _less(concepts: Sequence[Concept], other: Sequence[Concept]) -> tuple[Concept, ...]:
    """The concepts of one list that another lacks, or has with different stimuli."""
    kept = {concept.name: concept for concept in other}
    return tuple(concept for concept in concepts if kept.get(concept.name) != concept)


def _counted(concepts: Sequence[Concept]) -> str:
    """A single concept by name, several by number."""
    return f"“{concepts[0].name}”" if len(concepts) == 1 else f"{len(concepts):,} concepts"


def check_lengths(model: Model, concepts: Sequence[Concept]) -> None:
    """ValueError for the first stimulus that, in its template, is longer than the model's context."""
    for concept in concepts:
        for text in (*concept.stimuli, *concept.held_out):
            stimulus = filled(TEMPLATE, concept.name, text)
            if len(stimulus.encode()) <= model.n_ctx:
                continue  # no token is shorter than a byte
            count = len(model.tokens(stimulus))
            if count > model.n_ctx:
                raise ValueError(
                    f"a stimulus of {concept.name!r} is {count} tokens long with its template, and {model_name(model)} "
                    f"reads {model.n_ctx}: shorten or remove {text[:60]!r}"
                )
