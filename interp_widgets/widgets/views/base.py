"""The base of the browser views: their files, checked keywords, clean closing."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import numpy as np
import traitlets as t
from numpy.typing import ArrayLike, NDArray

from interp_widgets.glossary import explain

_HERE = Path(__file__).parent
ELSEWHERE = "A live view: run this cell in Jupyter to see it."


def view_source(*names: str) -> str:
    """One JavaScript module: the shared helpers followed by the named files."""
    return "\n".join((_HERE / f"{name}.js").read_text(encoding="utf-8") for name in ("common", *names))


def view_style(*names: str) -> str:
    """The style sheets of a view, the shared rules first."""
    return "\n".join(
        [page_style(), *((_HERE / f"{name}.css").read_text(encoding="utf-8") for name in ("common", *names))]
    )


def page_style() -> str:
    """The style sheet that names the colours and typefaces of the page."""
    return (_HERE / "theme.css").read_text(encoding="utf-8")


def float_bytes(values: ArrayLike) -> bytes:
    """Numbers as little-endian float32, row by row, as they are sent to the browser."""
    return np.ascontiguousarray(values, dtype="<f4").tobytes()


def bytes_floats(data: bytes) -> NDArray[np.float32]:
    """The inverse of `float_bytes`, as a new flat array."""
    return np.frombuffer(data, dtype="<f4").copy()


def data_range(values: NDArray[np.floating[Any]], *, signed: bool = False) -> tuple[float, float]:
    """Lowest and highest finite value, or a range symmetric about 0 if `signed`; (0, 1) when nothing is finite."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0, 1.0
    if signed:
        size = float(np.abs(finite).max()) or 1.0
        return -size, size
    low, high = float(finite.min()), float(finite.max())
    return (low, high) if high > low else (low, low + 1.0)


def check_spans(spans: Sequence[Sequence[int]], n: int, what: str) -> list[list[int]]:
    """The spans as lists of two integers; ValueError unless each is 0 <= start < end <= n."""
    checked = [[int(part) for part in span] for span in spans]
    for span in checked:
        if len(span) != 2 or not 0 <= span[0] < span[1] <= n:
            raise ValueError(f"{what} must be spans [start, end) with 0 <= start < end <= {n}, got {span}")
    return checked


def is_index(value: Any, size: int, *, least: int = -1) -> bool:
    """Whether a value from a page is an index of one of `size` parts, or -1 for none of them unless `least` is 0."""
    return type(value) is int and least <= value < size


def is_cell(value: Any, shape: Sequence[int]) -> bool:
    """Whether a value from a page is empty, or the [row, column] of a cell."""
    return value == [] or (
        isinstance(value, list)
        and len(value) == len(shape)
        and all(is_index(index, size, least=0) for index, size in zip(value, shape, strict=True))
    )


def are_spans(value: Any, n: int) -> bool:
    """Whether a value from a page is a list of spans [start, end) of `n` parts, in order and without overlap."""
    before = 0
    for span in value if isinstance(value, list) else [None]:
        if not (isinstance(span, list) and len(span) == 2 and all(type(end) is int for end in span)):
            return False
        start, end = span
        if not before <= start < end <= n:
            return False
        before = end
    return True


_local = threading.local()
_NOTHING = object()


def _received() -> dict[Any, dict[str, Any]]:
    """What pages have changed in the views whose messages this thread is taking."""
    received: dict[Any, dict[str, Any]] = _local.__dict__.setdefault("received", {})
    return received


class View(anywidget.AnyWidget):
    """A browser view whose inputs are traits; unknown keywords are a TypeError.

    A page may change only the traits tagged `from_page`, a function ``(view, value) -> bool`` that says whether a value
    fits what the view shows. A page can be behind the kernel: the row that was clicked may be gone. What does not fit
    is ignored, and the page gets the state as it is.
    """

    exported: ClassVar[bool] = False
    """Whether `export_html` puts the view into a saved page, where its module runs without Python."""

    @property
    def is_empty(self) -> bool:
        """Whether it shows nothing but instructions."""
        return False

    terms = t.Unicode("").tag(sync=True)
    """What the glossary says of the terms in its title and labels, shown under the pointer."""
    titled_by: ClassVar[tuple[str, ...]] = ()
    """The traits that are its title and labels."""

    @property
    def wording(self) -> str:
        """Its title and labels as one text."""
        return " · ".join(str(getattr(self, name)) for name in self.titled_by)

    _own_id = t.Unicode("").tag(sync=True)
    # lets its module find its model, to receive messages when anywidget has given up on a busy page

    def __init_subclass__(cls, **options: Any) -> None:
        source = cls.__dict__.get("_esm")
        if isinstance(source, str):  # not if anywidget has made it a trait
            before, separator, after = source.rpartition("export default ")
            if not separator:
                raise TypeError(f"the module of {cls.__name__} must have an 'export default'")
            guard = (_HERE / "sturdy.js").read_text(encoding="utf-8")
            cls._esm = f"{guard}\n{before}const ownView = {after}\nexport default sturdy(ownView);\n"
        super().__init_subclass__(**options)

    def __init__(self, **traits: Any) -> None:
        unknown = sorted(set(traits) - set(self.trait_names()))
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no trait {unknown[0]!r}; see {type(self).__name__}.trait_names()"
            )
        own_id = uuid.uuid4().hex
        super().__init__(model_id=own_id, _own_id=own_id, **traits)
        if self.titled_by:
            self.observe(self._explain, self.titled_by)
            self._explain()

    def _explain(self, _: Any = None) -> None:
        self.terms = explain(self.wording)

    def on_user(self, names: str | Sequence[str], handler: Callable[[Any], object]) -> None:
        """Call ``handler(change)`` when a reader changes one of these traits in the page, not when the program does.

        Once for what a page has sent, also where the program, drawing the answer, sets the trait to it again.
        """
        answered: dict[str, Any] = {}

        def changed(change: Any) -> None:
            message = _received().get(self, {})
            if message.get(change.name, _NOTHING) == change.new and answered.get(change.name) is not message:
                answered[change.name] = message
                handler(change)

        self.observe(changed, names)

    def set_state(self, sync_data: Any) -> None:
        """Accept from a page what it may change and what fits; send back the state of the rest."""
        sent = {name: sync_data[name] for name in sync_data if name in self.keys} if isinstance(sync_data, dict) else {}
        fitting = {name: value for name, value in sent.items() if self._fits(name, value)}
        _received()[self] = fitting
        try:
            super().set_state(fitting)
        finally:
            _received().pop(self, None)
        if others := [name for name in sent if name not in fitting]:
            self.send_state(others)

    def _fits(self, name: str, value: Any) -> bool:
        fits = self.trait_metadata(name, "from_page")
        return fits is not None and bool(fits(self, value))

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """What Jupyter shows, and a sentence for where no widget can live, such as a notebook on GitHub."""
        data, metadata = super()._repr_mimebundle_(**options)
        return {**data, "text/plain": f"{self!r}\n{ELSEWHERE}"}, metadata

    def _handle_custom_msg(self, content: Any, buffers: Any) -> None:
        if isinstance(content, dict):  # as every message of a view is
            super()._handle_custom_msg(content, buffers)

    def close(self) -> None:
        """End the view and its layout; ipywidgets leaves the layout's comm open."""
        layout = self._trait_values.get("layout")  # not made if the constructor failed
        super().close()
        if layout is not None:
            layout.close()
