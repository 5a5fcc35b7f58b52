"""Concepts of the user's own, folders of them, and saved sets of directions."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as W

from interp_widgets.analysis.concepts.directions import TEMPLATE
from interp_widgets.data.concepts import Concept, check_concepts, demo_concepts, read_concepts, split_stimuli
from interp_widgets.models import Model

from ..base.controls import checked_path, checked_text, row
from ..base.saving import file_stem, free_name
from ..base.workbench import model_name
from .request import OpenedSet, filled

if TYPE_CHECKING:
    from .browser import ConceptBrowser

OWN = "own"
"""The group of an added concept, where none is given."""


class Library:
    """The box below the inputs: add, open, save, remove."""

    def __init__(self, panel: ConceptBrowser) -> None:
        self.panel = panel
        self.folders: dict[str, tuple[Concept, ...]] = {}
        """Concepts that were read from folders, for the code."""
        self.name = W.Text(description="Name", placeholder="one word says best what to steer to")
        self.group = W.Text(description="Group", placeholder=OWN)
        self.stimuli = W.Textarea(
            description="Stimuli, one per line", rows=4,
            placeholder="At least 3 short texts in which the concept occurs; of 5 and more some are held out",
        )  # fmt: skip
        self.stimuli.add_class("iw-grow")
        self.upload = W.FileUpload(accept=".txt", description="From a file", tooltip="A text file of stimuli")
        self.add_button = panel.on_click(W.Button(description="Add", tooltip="Add this concept to the list"), self.add)
        self.path = W.Text(description="Path", placeholder="a folder of concepts, or a saved set (.npz)")
        self.path.add_class("iw-grow")
        self.open_button = panel.on_click(W.Button(description="Open", tooltip="Read the folder or the set"), self.open)
        self.keep = W.Checkbox(value=True, description="add to the list (else in its place)", indent=False)
        self.save_button = panel.on_click(
            W.Button(description="Save directions", tooltip="Write the directions beside the notebook"), self.save
        )
        self.remove_button = panel.on_click(W.Button(description="Remove concept"), self.remove)
        self.reset_button = panel.on_click(
            W.Button(description="Back to the demo's", tooltip="The list of concepts that the browser opens with"),
            self.reset,
        )
        self.words = W.HTML("")
        self.words.add_class("iw-hint")
        self.box = W.VBox([
            row(self.name, self.group, self.upload), row(self.stimuli), row(self.add_button, self.remove_button),
            row(self.path, self.open_button, self.keep), row(self.save_button, self.reset_button, self.words),
        ])  # fmt: skip
        self.box.add_class("iw-column")
        panel.watch(self.upload, "value", self._uploaded)
        panel.watch(panel, "path", lambda _: self.fit())

    def fit(self) -> None:
        """Say what the directions come from; what does not go with an opened set is switched off."""
        panel = self.panel
        opened = bool(panel.path)
        self.add_button.disabled = self.remove_button.disabled = opened
        self.remove_button.description = (
            f"Remove “{panel.concept}”" if panel.concept and not opened else "Remove concept"
        )
        count = len(panel.concepts)
        texts = sum(len(one.stimuli) + len(one.held_out) for one in panel.concepts)
        self.words.value = (
            f"Directions from {escape(panel.path)}." if opened else f"{count:,} concepts with {texts:,} stimuli."
        )

    # adding -----------------------------------------------------------------------------------------------------------

    def add(self) -> None:
        """Add the concept in the boxes; what is wrong is said, and the boxes stay as they are."""
        boxes = (self.name, self.group, self.stimuli)
        name, group, stimuli = (checked_text(box.value, f"the {box.description.lower()}").strip() for box in boxes)
        texts = [line.strip() for line in stimuli.splitlines() if line.strip()]
        self._take((split_stimuli(name, texts, group or OWN),), keep=True)
        with self.panel.hold():
            self.name.value = self.group.value = self.stimuli.value = ""
        self.panel.look_for(name)

    def _take(self, new: Sequence[Concept], *, keep: bool) -> None:
        """Put concepts into the list if all is well with them."""
        panel = self.panel
        whole = (*panel.concepts, *new) if keep else tuple(new)
        check_concepts(whole)
        for model in panel.models:
            check_lengths(model, new)
        panel.concepts = whole
        self.fit()

    def remove(self) -> None:
        """Take the concept that is looked at out of the list."""
        panel = self.panel
        left = tuple(one for one in panel.concepts if one.name != panel.concept)
        check_concepts(left)
        panel.concepts = left
        self.fit()

    def reset(self) -> None:
        """Back to the demo's concepts, and to directions made from them."""
        with self.panel.hold():
            self.panel.path = ""
            self.panel.concepts = demo_concepts()
        self.fit()

    def _uploaded(self, change: Any) -> None:
        if not change.new:
            return
        file = change.new[0]
        self.stimuli.value = _read_text(bytes(file["content"]), file["name"])
        if not self.name.value.strip():
            self.name.value = Path(file["name"]).stem

    # files ------------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read a folder of concepts, a saved set, or a file of stimuli."""
        given = checked_path(self.path.value, "the path")
        if not given:
            raise ValueError("the path is empty: give a folder of concepts, a saved set (.npz) or a file of stimuli")
        path = Path(given).expanduser()
        if path.is_dir():
            new = read_concepts(path)
            self._take(new, keep=self.keep.value and not self.panel.path)
            self.folders[given] = new
            self.panel.path = ""
        elif path.suffix == ".txt" and path.is_file():
            self.stimuli.value, self.name.value = _read_text(path.read_bytes(), path.name), path.stem
        elif path.suffix in ("", ".txt"):
            raise FileNotFoundError(f"there is no folder or text file at {path}: check the path")
        else:
            OpenedSet.at(given).answer(self.panel.models)  # says what is wrong before anything changes
            self.panel.path = given
        self.fit()

    def save(self) -> None:
        """Write the directions of every model beside the notebook."""
        panel = self.panel
        if not panel.sets:
            raise ValueError("there are no directions to save yet: press Run first")
        written = []
        for model, found in zip(panel.models, panel.sets, strict=False):
            name = f"concepts {model_name(model)} layer {found.layer} {found.method}"
            target = free_name(Path.cwd() / (file_stem(name) + ".npz"))
            found.save(target)
            written.append(target.name)
        panel.status.idle(f"Saved {' and '.join(written)}")


def check_lengths(model: Model, concepts: Sequence[Concept]) -> None:
    """ValueError for the first stimulus that is longer, in its template, than what the model reads."""
    for concept in concepts:
        for text in (*concept.stimuli, *concept.held_out):
            whole = filled(TEMPLATE, concept.name, text)
            if len(whole.encode()) <= model.n_ctx:
                continue  # no token is shorter than a byte
            count = len(model.tokens(whole))
            if count > model.n_ctx:
                raise ValueError(
                    f"a stimulus of {concept.name!r} is {count} tokens long with its template and {model_name(model)} "
                    f"reads {model.n_ctx}: shorten or leave out {text[:60]!r}"
                )


def _read_text(content: bytes, name: str) -> str:
    """The text of a file of stimuli."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is no UTF-8 text: save it as text, one stimulus per line") from error
