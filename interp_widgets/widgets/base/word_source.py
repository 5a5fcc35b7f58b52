"""Where words and word vectors come from: the demo's list, the model's vocabulary, typed words, a file, or a file of
word vectors."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import ipywidgets as W
import traitlets as T

from interp_widgets.analysis._core.word_embeddings import word_ids
from interp_widgets.atomic import named_path
from interp_widgets.data.word_lists import read_word_list, typed_words
from interp_widgets.data.word_vectors import WordVectors, demo_word_vectors, read_word_vectors
from interp_widgets.models import Model

from .controls import TextLine, Typed, checked_text
from .fields import Bounds, Incomplete, Lines, field, hint_at
from .opening import are_demo
from .panel import Panel
from .saved_result import SavedResult
from .stack import Stack

WORD_LISTS = {
    "demo": "the demo's list",
    "vocabulary": "the model's own words",
    "own": "my own, typed here",
    "file": "a file, one word per line",
    "vectors": "the first words of the vectors file",
}
Vectors = str | WordVectors
"""Path of a file of word vectors, the vectors themselves, or an empty string for the demo's."""

FEWEST_OWN, MOST_OWN = 1000, 5000
"""A vocabulary with fewer words is not used unless asked for, and of a larger one the first ones, the most frequent."""

_lock = threading.Lock()
_read: list[tuple[Any, WordVectors]] = []
"""The last file read: two models are searched with the same words in turn."""


@dataclass(frozen=True)
class WordSource:
    """A word list and word vectors, as the settings specify them."""

    kind: str = "demo"
    words: tuple[str, ...] = ()
    """For ``own`` and ``file``."""
    path: str = ""
    """For ``file``."""
    vectors: Vectors = ""
    most: int = 0
    """How many words to take from the top; for ``vocabulary`` and ``vectors`` only."""
    stamp: tuple[int, int] | None = None
    """Size and modification time of the vectors file, so that a changed file is a different request."""

    @property
    def count(self) -> int:
        """Number of words, as far as known without reading the vectors."""
        if self.words:
            return len(self.words)
        if self.kind == "demo":
            return len(demo_word_vectors())
        return min(self.most, len(self.vectors)) if isinstance(self.vectors, WordVectors) else self.most

    @property
    def width(self) -> int:
        """Dimensions per vector; for a file not yet read, the usual size of published files."""
        if isinstance(self.vectors, WordVectors):
            return self.vectors.width
        return 300 if self.vectors else demo_word_vectors().width

    def of_model(self, model: Model) -> WordSource:
        """The source with the words of a model's vocabulary, where they are asked for; ValueError if it has none."""
        if self.kind != "vocabulary":
            return self
        words = tuple(dict.fromkeys(word.strip() for word in model.single_token_words()))[: self.most]
        if not words:
            raise ValueError(f"no word is a single token of {model.name}: choose another word list")
        return replace(self, words=words)

    def read(self, check: Callable[[], None] | None = None) -> tuple[tuple[str, ...], WordVectors]:
        """Words and vectors; reads the vectors file unless it was the last one read.

        `check` is called on the way and raises to cancel.
        """
        if isinstance(self.vectors, WordVectors):
            vectors = self.vectors
        elif not self.vectors:
            vectors = demo_word_vectors()
        else:
            vectors = self._from_file(check)
        if self.kind == "vectors":
            return vectors.words[: self.most], vectors
        return self.words or demo_word_vectors().words, vectors

    def _from_file(self, check: Callable[[], None] | None) -> WordVectors:
        listed = self.words or (demo_word_vectors().words if self.kind == "demo" else None)
        key = (self.vectors, self.stamp, listed, self.most)
        with _lock:
            vectors_read = next((vectors for known, vectors in _read if known == key), None)
        if vectors_read is not None:
            return vectors_read
        vectors = read_word_vectors(
            str(self.vectors), words=listed, limit=self.most if listed is None else None, check=check
        )
        with _lock:
            _read[:] = [(key, vectors)]
        return vectors

    def describe(self) -> str:
        """Where words and vectors come from, in words."""
        own = "the model's single-token words"
        named = {"demo": "the demo's list", "vocabulary": own, "own": "typed", "file": f"from {self.path}"}
        words = named.get(self.kind, "the first words of the vectors file")
        if isinstance(self.vectors, WordVectors):
            return f"{words}, word vectors from Python: {self.vectors.width} dimensions"
        vectors = f"word vectors from {self.vectors}" if self.vectors else "the demo's word vectors"
        return f"{words}, {vectors}"

    def code(self, model: str) -> tuple[list[str], list[str], dict[str, Any]]:
        """Names to import, lines that prepare the words (of the model of this name), and the arguments, as source
        text."""
        imports, lines, arguments = [], [], {}
        if self.kind == "own":
            lines.append(f"words = {list(self.words)!r}")
            arguments["words"] = "words"
        elif self.kind == "vocabulary":
            lines.append(f"words = [word.strip() for word in {model}.single_token_words()][:{self.most}]")
            arguments["words"] = "words"
        elif self.kind == "file":
            lines += ["from interp_widgets.data.word_lists import read_word_list", ""]
            lines.append(f"words = read_word_list({self.path!r})")
            arguments["words"] = "words"
        if isinstance(self.vectors, WordVectors):
            lines.append("vectors = vectors  # the WordVectors passed to the widget")
            arguments["vectors"] = "vectors"
        elif self.kind == "vectors":
            imports.append("read_word_vectors")
            path = str(named_path(self.vectors, "vectors"))
            lines.append(f"vectors = read_word_vectors({path!r}, limit={self.most})")
            arguments["vectors"] = "vectors"
        elif self.vectors:
            arguments["vectors"] = repr(str(named_path(self.vectors, "vectors")))
        if self.kind == "vectors" and isinstance(self.vectors, WordVectors):
            arguments["words"] = f"vectors.words[:{self.most}]"
        return imports, lines, arguments


def word_source(
    kind: str, *, words: Sequence[str] = (), path: str = "", vectors: Vectors = "", most: int = 0
) -> WordSource:
    """The source that the inputs specify; a word file is read here, a vectors file is only looked up.

    Raises ValueError for no words, `Incomplete` for a file that is not there or cannot be read.
    """
    listed: tuple[str, ...] = ()
    path = path.strip()
    if kind == "own":
        listed = tuple(dict.fromkeys(words))
        if not listed:
            raise ValueError("there are no words yet: type some, separated by spaces or new lines")
    elif kind == "file":
        if not path:
            raise ValueError("there is no word file yet: type the path of a text file with one word per line")
        with hint_at("word_file"):
            listed = read_word_list(path)
    elif kind == "vectors" and not vectors:
        vectors = demo_word_vectors()
    stamp = None
    if isinstance(vectors, str) and (vectors := vectors.strip()):
        try:
            stat = os.stat(named_path(vectors, "vectors"))
        except OSError as error:
            raise Incomplete(
                "vectors",
                f"there is no file of word vectors at {vectors}: check the path, or clear the box to use the demo's",
            ) from error
        stamp = stat.st_size, stat.st_mtime_ns
    most = most if kind in ("vocabulary", "vectors") else 0
    return WordSource(kind, listed, path if kind == "file" else "", vectors, most, stamp)


def _vectors_box(panel: Any) -> W.Text:
    """The path of the vectors; vectors passed in Python stay until a path is typed."""
    box = TextLine(
        description="Word vectors", continuous_update=False, placeholder="empty: the demo's",
        tooltip="Path of a GloVe or word2vec text file, or of an .npz archive with words and vectors",
    )  # fmt: skip

    def shown() -> str:
        vectors = panel.vectors
        return vectors if isinstance(vectors, str) else f"from Python: {len(vectors):,} words"

    def to_trait(change: Any) -> None:
        if change.new != shown():
            panel.forget_refusal()
            try:
                panel.vectors = change.new
            except T.TraitError:
                to_control()  # it must not show an unused value
                raise

    def to_control(_: Any = None) -> None:
        box.value = shown()

    panel.watch(box, "value", to_trait)
    panel.watch(panel, "vectors", to_control)
    to_control()
    return box


class _VectorsTrait(T.Union):
    """Word vectors or the path of a file of them."""

    def __init__(self) -> None:
        super().__init__([Typed(), T.Instance(WordVectors)], default_value="")

    def validate(self, obj: Any, value: Any) -> Any:
        if isinstance(value, str):
            try:
                return checked_text(value, str(self.name))
            except ValueError as error:
                raise T.TraitError(str(error)) from error
        return super().validate(obj, value)


class WordPanel(Panel):
    """Base of the panels that look up words with word vectors."""

    word_list = field(
        WORD_LISTS, "demo", label="Words", group="words", help="Where the words come from",
        shown_if=lambda panel: panel.asks_words,
    )  # fmt: skip
    words = field(
        Annotated[list, Lines(3, read=typed_words, write=" ".join)], label="Own words, the most frequent first",
        placeholder="dog cat wolf …", group="words", width="grow",
        shown_if=lambda panel: panel.asks_words and panel.word_list == "own",
        required="there are no words yet: type some, separated by spaces or new lines",
    )  # fmt: skip
    word_file = field(
        str, label="Word file", placeholder="path; a count may follow each word", group="words", width="grow",
        personal=True,
        help="Path of a text file with one word per line, most frequent first or each with its count",
        shown_if=lambda panel: panel.asks_words and panel.word_list == "file",
        required="there is no word file yet: type the path of a text file with one word per line",
    )  # fmt: skip
    most_words = field(
        Annotated[int, Bounds(3, 1_000_000)], 13_000, label="Number", group="words", width="short",
        help="How many words to take from the top of the vocabulary or of the vectors file",
        shown_if=lambda panel: panel.asks_words and panel.word_list in ("vocabulary", "vectors"),
    )  # fmt: skip
    vectors = field(
        _VectorsTrait(), label="Word vectors", group="words", personal=True,
        width="grow", control=_vectors_box, shown_if=lambda panel: panel.asks_words,
    )  # fmt: skip
    """Word vectors or the path of a file of them (GloVe or word2vec text, or .npz); empty: the demo's."""

    @property
    def asks_words(self) -> bool:
        """Whether the panel needs words: not for saved results, which contain theirs."""
        return not isinstance(self.models[0], SavedResult)

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        return super().defaults(keywords) | _meant(keywords)

    def words_asked_for(self) -> WordSource:
        """Words and vectors as the inputs specify them; ValueError if there are none."""
        self.require("words", "word_file")
        source = word_source(
            self.word_list, words=self.words, path=self.word_file, vectors=self.vectors, most=self.most_words
        )
        for model in self.models if source.kind in ("demo", "own", "file") else ():
            if not can_write_any(model, source.words or demo_word_vectors().words):
                raise Incomplete(
                    "word_list",
                    f"the tokenizer of {model.name} can write none of these {source.count:,} words: choose other words",
                )
        return source


class WordStack(Stack):
    """Base of the stacks whose panels look up the same words; their controls are above the tabs."""

    @property
    def asks_words(self) -> bool:
        """Whether the panels need words: not for saved results."""
        return not isinstance(self.models[0], SavedResult)

    def defaults(self, keywords: set[str]) -> dict[str, Any]:
        # for every panel, also those whose tabs are opened later
        return {"word_list": "demo"} | _meant(keywords)

    def build(self) -> None:
        self.inputs.children = self.controls.rows("words")


def vocabulary_of(models: Sequence[Any], keywords: set[str]) -> dict[str, Any]:
    """The words that panels look up without word vectors, unless the keywords name others: of the models' own
    vocabulary, if it has enough; the demo models were trained on the demo's list."""
    if {"word_list", "words", "word_file", "vectors"} & keywords:
        return {}
    if any(isinstance(model, SavedResult) for model in models) or are_demo(models):
        return {}
    words = min(len(model.single_token_words()) for model in models)
    return {"word_list": "vocabulary", "most_words": MOST_OWN} if words >= FEWEST_OWN else {}


def can_write_any(model: Model, words: Sequence[str]) -> bool:
    """Whether a model's tokenizer can write a word of a list; mostly one of the first says so."""
    return any(any(word_ids(model, words[first : first + 100])) for first in range(0, len(words), 100))


def _meant(keywords: set[str]) -> dict[str, Any]:
    """The kind of word list that the keywords imply."""
    kinds = [kind for name, kind in (("words", "own"), ("word_file", "file")) if name in keywords]
    return {"word_list": kinds[0]} if kinds and "word_list" not in keywords else {}
