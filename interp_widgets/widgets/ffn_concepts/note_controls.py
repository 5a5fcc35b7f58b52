"""Annotating in the worker, deleting notes and undo, and the notes file."""

from __future__ import annotations

import itertools
import os
import time
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as W

from interp_widgets.analysis.ffn_concepts import ConceptAnnotations, Sign, annotate_concepts
from interp_widgets.atomic import named_path
from interp_widgets.data.annotators import Annotation, EndpointAnnotator, RuleAnnotator

from ..base.controls import TextLine, checked_path, row, shown_if
from ..base.guard import ui_lock
from ..base.saving import file_stem
from ..base.workbench import model_name
from .annotated_components import AnnotatedComponents
from .components import read_notes
from .notes import Cell, Owner, as_annotations, notes_in, summary

_EVERY = 0.2
"""Seconds between redraws while answers arrive."""
_runs = itertools.count(1)


class _Recording:
    """An annotator whose answers are saved as they arrive, so that none is lost if the run is cancelled."""

    def __init__(self, inner: Any, add: Any) -> None:
        self.inner, self.add = inner, add

    @property
    def name(self) -> str:
        return str(self.inner.name)

    def annotate(self, words: Any, *, check: Any = None) -> Annotation:
        note: Annotation = self.inner.annotate(words, check=check)
        self.add(tuple(words), note)
        return note


class NoteControls:
    """The rows below the table of components: annotator, number of notes, Delete and Undo, and the notes file."""

    def __init__(self, panel: AnnotatedComponents) -> None:
        self.panel = panel
        self._answers: dict[Cell, Annotation] = {}
        """The answers since the notes were last drawn,"""
        self._annotating: tuple[Owner, str, int] = ("A", None), "", 0
        """and their model, annotator and run."""
        self.key, self.count = W.HTML(""), W.HTML("")
        for text in (self.key, self.count):
            text.add_class("iw-hint")
        self.ask_button = self._button("Annotate", "Annotate the listed components; your own notes stay", self.ask)
        self.delete_button = self._button("Delete note", "Delete the note of the picked component", self.delete)
        self.undo_button = self._button("Undo", "Undo the last change of the notes", self.undo)
        self.delete_button.disabled = self.undo_button.disabled = True
        self.file = TextLine(
            value=f"{file_stem(model_name(panel.models[0]))}-notes.npz", description="Notes file",
            continuous_update=False, tooltip="Notes of the model in view; relative to the notebook",
        )  # fmt: skip
        self.save_button = self._button("Save notes", "Write all notes of this model", self.save)
        self.open_button = self._button("Open notes", "Load notes from a file", self.open)
        tooltip = "Save the components to a file that opens without the model"
        self.keep_button = self._button("Save components", tooltip, self.save_components)
        controls = panel.controls
        self.box = W.VBox(
            [
                *controls.rows("annotating", after={"annotator": [self.ask_button, self.count]}),
                *controls.rows("endpoint", after={"base_url": [self.key]}),
                row(
                    self.delete_button,
                    self.undo_button,
                    self.file,
                    self.save_button,
                    self.open_button,
                    self.keep_button,
                ),
            ]
        )
        self.box.add_class("iw-column")
        panel.watch(panel, ["annotator", "key_variable"], lambda _: self._name_key())
        self._name_key()
        panel.watch(panel.status, "state", self._stopped)

    def _button(self, label: str, tooltip: str, press: Any) -> W.Button:
        button: W.Button = self.panel.on_click(W.Button(description=label, tooltip=tooltip), press)
        return button

    def _stopped(self, change: Any) -> None:
        if change.new == "cancelled":
            self._save_answers()

    def _name_key(self) -> None:
        name = self.panel.key_variable
        shown_if(self.key, self.panel.annotator == "endpoint")
        state = "is set" if os.environ.get(name) else "is not set: your own server may need none"
        self.key.value = (
            f"The key is read from the environment variable <b>{escape(name)}</b> ({state}) and not stored."
        )

    def paint(self) -> None:
        """Show how many components of the layer are annotated, and what the buttons would delete and undo."""
        panel = self.panel
        shown_if(self.box, panel.shown != "difference")
        notes, layer = panel.notes_of(panel.letter), panel.layer
        cells = ((layer, component) for component in range(min(panel.components, panel.shown_result.rank)))
        self.count.value = f"Layer {layer}: {summary(notes, cells)}."
        noted = (layer, panel.component) in notes
        self.delete_button.disabled = not noted
        self.delete_button.description = f"Delete note of {self._name(panel.component)}" if noted else "Delete note"
        changes = panel.noted.changes
        self.undo_button.disabled = not changes
        self.undo_button.description = f"Undo {changes[-1].what}" if changes else "Undo"

    def _name(self, component: int) -> str:
        return self.panel.name_of(self.panel.letter, (self.panel.layer, component))

    # deleting and bringing back ---------------------------------------------------------------------------------------

    def delete(self) -> None:
        """Delete the note of the picked component."""
        panel = self.panel
        cell = panel.layer, panel.component
        if cell not in panel.notes_of(panel.letter):
            raise ValueError("the picked component has no note to delete: pick one that has a note")
        owner, what = panel.owner(panel.letter), f"deleting the note of {self._name(panel.component)}"
        panel.change_notes(lambda noted: noted.changed(owner, {cell: None}, what))

    def undo(self) -> None:
        """Undo the last change."""
        if not self.panel.noted.changes:
            raise ValueError("there is nothing to undo")
        self.panel.change_notes(lambda noted: noted.undone())

    # asking -----------------------------------------------------------------------------------------------------------

    def annotator(self) -> Any:
        """The annotator that the inputs specify; ValueError or ImportError if there is none."""
        panel = self.panel
        if panel.annotator == "rules":
            return None  # made in the worker, since it reads the word vectors
        if not panel.endpoint_model.strip():
            raise ValueError("the endpoint needs a model: type its name on the server")
        return EndpointAnnotator(
            panel.endpoint_model.strip(), base_url=panel.base_url.strip() or None, key_variable=panel.key_variable
        )

    def ask(self) -> None:
        """Annotate the listed components of this layer or of all layers, in the worker."""
        panel = self.panel
        if panel.shown == "difference":
            raise ValueError("the difference has no components of its own: choose A or B, then Annotate")
        if not panel.results:
            raise ValueError("there are no components to annotate yet: press Run first")
        self._save_answers()
        result, owner = panel.shown_result, panel.owner(panel.letter)
        made, source = self.annotator(), panel.words_asked_for()
        layers = [panel.layer] if panel.scope == "layer" else list(result.layers)
        count = min(panel.components, result.rank)
        sign: Sign = "both" if panel.sides == "sides" else panel.sides
        cells = {
            result.words(layer, component, sign=sign): (layer, component)
            for layer in layers
            for component in range(count)
        }
        kept = as_annotations(panel.noted.of(owner), result, count, sign=sign)
        batch = owner, f"the answers of {made.name if made else RuleAnnotator.name}", next(_runs)
        self._annotating = batch

        def work(job: Any) -> ConceptAnnotations:
            painted = time.monotonic()

            def add(words: tuple[str, ...], note: Annotation) -> None:
                nonlocal painted
                with ui_lock:
                    if self._annotating is batch:
                        self._answers[cells[words]] = note
                if time.monotonic() - painted > _EVERY:
                    painted = time.monotonic()
                    job.partial(None)

            recording = _Recording(made or RuleAnnotator(source.read()[1]), add)
            return annotate_concepts(
                result, recording, layers=layers, components=range(count), sign=sign, keep=kept,
                progress=job.progress, check=job.check,
            )  # fmt: skip

        def done(annotations: ConceptAnnotations) -> None:
            self._answers.update(notes_in(annotations))
            self._save_answers()
            if annotations.partial and not result.partial:
                reason = annotations.failures[0] if annotations.failures else "it gave no reason"
                raise ValueError(f"the annotator failed too often and was stopped: {reason}")

        panel.jobs.start(
            work, done, title="Annotating", channel="annotate", on_partial=lambda _: self._save_answers()
        )  # fmt: skip

    def _save_answers(self) -> None:
        """Save the answers that have arrived."""
        with ui_lock:
            answers, self._answers = self._answers, {}
            owner, what, run = self._annotating
        if answers:
            self.panel.change_notes(lambda noted: noted.answered(owner, answers, what, run=run))

    # the file ---------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Save the notes of the model in view."""
        panel = self.panel
        saved = panel.annotations_of(panel.letter).save(self._path())
        panel.status.idle(f"Saved {saved}")

    def open(self) -> None:
        """Load notes from a file."""
        panel, path = self.panel, self._path()
        if not panel.results:
            raise ValueError("there are no components yet: press Run first")
        panel.take_notes(panel.letter, read_notes(path), path.name)
        panel.status.idle(f"Opened {path}")

    def save_components(self) -> None:
        """Save the components of the model in view, in the folder of its notes."""
        panel = self.panel
        if not panel.results:
            raise ValueError("there are no components to save yet: press Run first")
        path = self._path()
        target = path.with_name(path.stem.removesuffix("-notes") + "-concepts.npz")
        panel.status.idle(f"Saved {panel.shown_result.save(target)}")

    def _path(self) -> Path:
        text = checked_path(self.file.value, "the notes' file")
        if not text:
            raise ValueError("the notes need a file: type its name")
        return named_path(text, "the notes' file")
