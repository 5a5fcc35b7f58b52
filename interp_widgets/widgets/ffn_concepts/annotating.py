"""Asking an annotator, in the worker, and keeping the notes in a file."""

from __future__ import annotations

import os
import time
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from interp_widgets.analysis.ffn_concepts import Sign, annotate_concepts
from interp_widgets.analysis.ffn_concepts.annotations import ConceptAnnotations
from interp_widgets.data.annotators import Annotation, EndpointAnnotator, RuleAnnotator

from ..base.controls import checked_path, row, shown_if
from ..base.guard import ui_lock
from ..base.saving import file_stem

if TYPE_CHECKING:
    from .browser import FFNConceptBrowser

_EVERY = 0.2
"""Seconds between two redraws while answers come in."""


class _Recording:
    """An annotator whose answers are written down at once, so that none is lost if the run is cancelled."""

    def __init__(self, inner: Any, take: Any) -> None:
        self.inner, self.take = inner, take

    @property
    def name(self) -> str:
        return str(self.inner.name)

    def annotate(self, words: Any, *, check: Any = None) -> Annotation:
        note: Annotation = self.inner.annotate(words, check=check)
        self.take(tuple(words), note)
        return note


class Annotating:
    """The row with the annotators, the button, and the notes' file."""

    def __init__(self, panel: FFNConceptBrowser) -> None:
        self.panel = panel
        self.key, self.count = W.HTML(""), W.HTML("")
        for text in (self.key, self.count):
            text.add_class("iw-hint")
        self.button = panel.on_click(
            W.Button(description="Annotate", tooltip="Ask about the listed components; what you typed stays"), self.ask
        )
        self.file = W.Text(
            value=f"{file_stem(getattr(panel.models[0], 'name', 'model'))}-notes.npz", description="Notes file",
            continuous_update=False, tooltip="Of the model that is looked at; a relative name lies beside the notebook",
        )  # fmt: skip
        write = panel.on_click(W.Button(description="Save notes", tooltip="Write all notes of this model"), self.write)
        read = panel.on_click(W.Button(description="Open notes", tooltip="Take the notes of a file over"), self.read)
        keep = panel.on_click(
            W.Button(description="Save components",
                     tooltip="Write the components to a file, which the browser opens without the model"),
            self.keep,
        )  # fmt: skip
        controls = panel.controls
        asked = controls.rows("annotating", after={"annotator": [self.button, self.count]})
        endpoint = controls.rows("endpoint", after={"base_url": [self.key]})
        self.box = W.VBox([*asked, *endpoint, row(self.file, write, read, keep)])
        self.box.add_class("iw-column")
        self.parts = [self.box]

        def fit(_: Any = None) -> None:
            shown_if(self.key, panel.annotator == "endpoint")
            self._tell_key()

        panel.watch(panel, ["annotator", "key_variable"], fit)
        fit()
        # answers that came in since the last redraw are shown when a run was cancelled
        panel.watch(panel.status, "state", self._stopped)

    def _stopped(self, change: Any) -> None:
        if change.new == "cancelled":
            self.panel.notes_changed()

    def _tell_key(self) -> None:
        name = self.panel.key_variable
        state = "is set" if os.environ.get(name) else "is not set: a server of your own may need none"
        self.key.value = (
            f"The key is read from the environment variable <b>{escape(name)}</b> ({state}) and kept nowhere."
        )

    def paint(self) -> None:
        """Say how far the notes of the chosen layer are."""
        panel = self.panel
        result = panel.tabs_of["concepts"].result
        cells = [(panel.layer, component) for component in range(min(panel.components, result.rank))]
        done, silent, typed = panel.notes_of(panel.letter).counts(iter(cells))
        said = f"{done} of {len(cells)} noted"
        said += f": {done - silent} described, {silent} “cannot tell”, {typed} by you" if done else ""
        self.count.value = f"Layer {panel.layer}: {said}."

    # asking -----------------------------------------------------------------------------------------------------------

    def annotator(self) -> Any:
        """The annotator that the inputs name; ValueError or ImportError if there is none."""
        panel = self.panel
        if panel.annotator == "rules":
            return None  # made in the worker: it reads the word vectors
        if not panel.endpoint_model.strip():
            raise ValueError("the endpoint needs a model: type its name, as the server knows it")
        return EndpointAnnotator(
            panel.endpoint_model.strip(), base_url=panel.base_url.strip() or None, key_variable=panel.key_variable
        )

    def ask(self) -> None:
        """Ask about the listed components of this layer or of all, in the worker."""
        panel = self.panel
        if panel.shown == "difference":
            raise ValueError("the difference has no components of its own: choose A or B, then Annotate")
        if not panel.concepts:
            raise ValueError("there are no components to annotate yet: press Run first")
        result, notes = panel.tabs_of["concepts"].result, panel.notes_of(panel.letter)
        made, source = self.annotator(), panel.words_asked_for()
        layers = [panel.layer] if panel.scope == "layer" else list(result.layers)
        count = min(panel.components, result.rank)
        sign: Sign = "both" if panel.sides == "sides" else panel.sides
        cells = {
            result.words(layer, component, sign=sign): (layer, component)
            for layer in layers
            for component in range(count)
        }
        kept = notes.annotations(result, count)

        def work(job: Any) -> ConceptAnnotations:
            painted = time.monotonic()

            def take(words: tuple[str, ...], note: Annotation) -> None:
                nonlocal painted
                with ui_lock:
                    notes.put(cells[words], note)
                if time.monotonic() - painted > _EVERY:
                    painted = time.monotonic()
                    job.partial(None)

            asked = _Recording(made or RuleAnnotator(source.read()[1]), take)
            return annotate_concepts(
                result, asked, layers=layers, components=range(count), sign=sign, keep=kept, progress=job.progress,
                check=job.check,
            )  # fmt: skip

        def done(found: ConceptAnnotations) -> None:
            notes.take(found)
            panel.notes_changed()
            if found.partial and not result.partial:
                reason = found.failures[0] if found.failures else "it gave no reason"
                raise ValueError(f"the annotator failed too often and was asked no more: {reason}")

        panel.jobs.start(
            work, done, title="Annotating", channel="annotate", on_partial=lambda _: panel.notes_changed()
        )  # fmt: skip

    # the file ---------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write the notes of the model that is looked at."""
        panel = self.panel
        path = self._path()
        saved = panel.annotations_of(panel.letter).save(path)
        panel.status.idle(f"Saved {saved}")

    def read(self) -> None:
        """Take the notes of a file over."""
        panel = self.panel
        path = self._path()
        panel.take_notes(panel.letter, path)
        panel.status.idle(f"Opened {path}")

    def keep(self) -> None:
        """Write the components of the model that is looked at beside its notes."""
        panel = self.panel
        if not panel.concepts:
            raise ValueError("there are no components to save yet: press Run first")
        path = self._path()
        target = path.with_name(path.stem.removesuffix("-notes") + "-concepts.npz")
        panel.status.idle(f"Saved {panel.tabs_of['concepts'].result.save(target)}")

    def _path(self) -> Path:
        text = checked_path(self.file.value, "the notes' file")
        if not text:
            raise ValueError("the notes need a file: type its name")
        return Path(text).expanduser()
