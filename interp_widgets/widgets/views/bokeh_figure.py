"""A Bokeh figure in a notebook, without a network: BokehJS comes from the installed package, once per kernel."""

from __future__ import annotations

import gzip
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import bokeh
import traitlets as t
from bokeh.core.json_encoder import serialize_json
from bokeh.core.serialization import Deserializer, Serialized
from bokeh.document import Document
from bokeh.document.events import ModelChangedEvent
from bokeh.events import Event
from bokeh.io import doc as bokeh_documents
from bokeh.models import ColumnDataSource, FactorRange, Legend, Plot, Selection
from bokeh.models import Model as BokehModel
from bokeh.protocol import Protocol

from interp_widgets.figures.chart import TO_FILL
from interp_widgets.widgets.base.guard import ui_lock
from interp_widgets.widgets.views.base import View, is_index, view_source, view_style

PICTURE = "data:image/png;base64,"
_HOSTED: weakref.WeakSet[BokehModel] = weakref.WeakSet()  # figures and layouts that a BokehFigure shows


# A legend is styled when it is made and would keep the colours of that theme.
_LEGEND_STYLE = """
:host { background-color: transparent !important; border-color: transparent !important; }
.bk-item .bk-label, .bk-title { color: var(--iw-fg) !important; font-family: var(--iw-font) !important; }
"""


def bokeh_code() -> str:
    """The JavaScript of the installed Bokeh."""
    return (Path(bokeh.__file__).parent / "server/static/js/bokeh.min.js").read_text(encoding="utf-8")


@contextmanager
def _current_document_kept() -> Iterator[None]:
    """Bokeh leaves its current document in place after a callback that raised; it would outlive the figure."""
    depth = len(bokeh_documents._PATCHED_CURDOCS)
    try:
        yield
    except BaseException:
        del bokeh_documents._PATCHED_CURDOCS[depth:]
        raise


def _is_in(doc: Document, model: Any) -> bool:
    return isinstance(model, BokehModel) and model.document is doc


def _is_change(doc: Document, event: dict[str, Any]) -> bool:
    model: Any = event.get("model")
    name, value = event.get("attr"), event.get("new")
    finite = not isinstance(value, float) or math.isfinite(value)
    return "new" in event and finite and _is_in(doc, model) and isinstance(name, str) and name in model.properties()


def _is_event(doc: Document, message: dict[str, Any]) -> bool:
    event = message.get("msg_data")
    if message.get("msg_type") != "bokeh_event" or not isinstance(event, Event):
        return False
    plot, geometry = getattr(event, "model", None), getattr(event, "geometry", {"type": ""})
    if not (plot is None or _is_in(doc, plot)) or not (isinstance(geometry, dict) and "type" in geometry):
        return False
    return geometry["type"] != "point" or (
        isinstance(plot, Plot)
        and all(
            isinstance(axis, FactorRange) or (isinstance(at, int | float) and math.isfinite(at))
            for axis, at in ((plot.x_range, geometry.get("x")), (plot.y_range, geometry.get("y")))
        )
    )


def _is_data(doc: Document, event: dict[str, Any]) -> bool:
    model, columns = event.get("model"), event.get("data", event.get("patches"))
    return isinstance(model, ColumnDataSource) and _is_in(doc, model) and isinstance(columns, dict)


_KINDS: dict[str, Callable[[Document, dict[str, Any]], bool]] = {
    "ModelChanged": _is_change, "MessageSent": _is_event, "ColumnsStreamed": _is_data, "ColumnsPatched": _is_data,
}  # fmt: skip
"""Whether what a page sends is one of the kinds of its messages."""


def _fits_source(doc: Document, model: BokehModel, name: str, value: Any) -> bool:
    """Whether a selection is one of rows that its source has."""
    if not isinstance(model, Selection) or name not in ("indices", "line_indices"):
        return True
    sources = (source for source in doc.models if isinstance(source, ColumnDataSource) and source.selected is model)
    size = min((len(column) for source in sources for column in source.data.values()), default=0)
    return all(is_index(index, size, least=0) for index in value)


class BokehSource(View):
    """Carries BokehJS to the page as a message, never as state, so that no notebook stores it."""

    _esm = view_source("bokeh_page", "bokeh_source")
    outlasts: ClassVar[bool] = True
    """Whether it stays open where making the panel that made it fails."""
    version = t.Unicode(bokeh.__version__).tag(sync=True)
    _shared: ClassVar[BokehSource | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()
    _packed: ClassVar[bytes] = b""

    @classmethod
    def shared(cls) -> BokehSource:
        """The single instance of this kernel, made (and its code sent) on first use."""
        with cls._lock:
            if cls._shared is None or cls._shared.comm is None:
                cls._packed = cls._packed or gzip.compress(bokeh_code().encode("utf-8"), 6)
                cls._shared = BokehSource()
                cls._shared.on_msg(cls._shared._received)
                cls._shared._deliver()
            return cls._shared

    def _deliver(self) -> None:
        self.send({"kind": "code"}, [self._packed])

    def _received(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        if content.get("kind") == "want":  # a page loaded after the code was sent
            self._deliver()


class BokehFigure(View):
    """Shows a Bokeh figure and keeps it, its copies on the page and the page after a reload up to date.

    Change the figure's sources and properties as usual, from any thread; what the reader does in the browser (taps,
    selections, ranges) reaches the figure's own Python callbacks once. A figure belongs to one host until it is closed.
    It is serialized only when needed (a page asks, or its panel is displayed or saved), since that
    takes longer than making the figure. Raises ValueError for a figure that another host shows.

    >>> from bokeh.plotting import figure
    >>> host = BokehFigure(figure(height=120))
    >>> host.close()
    """

    _esm = view_source("bokeh_page", "bokeh_map", "bokeh_points", "bokeh_figure")
    _css = view_style("bokeh_figure")
    exported = True

    _document = t.Unicode("").tag(sync=True)
    _version = t.Unicode(bokeh.__version__).tag(sync=True)
    _source = t.Unicode("").tag(sync=True)
    # The model that brings BokehJS: Colab makes only the models that a page asks for.
    # Sent by the browser a moment after a change: what a page without a kernel shows.
    _picture = t.Unicode("").tag(
        sync=True, echo_update=False, from_page=lambda _, value: isinstance(value, str) and value.startswith(PICTURE)
    )
    keep_picture = t.Bool(True).tag(sync=True)
    """Whether the browser keeps a small picture of the figure for pages opened without a kernel."""

    _doc: Document | None = None
    _hosts = False

    def __init__(
        self, figure: BokehModel, *, on_error: Callable[[Exception], None] | None = None, **traits: Any
    ) -> None:
        if not isinstance(figure, BokehModel):
            raise TypeError(f"BokehFigure shows a Bokeh figure or layout, got {type(figure).__name__}")
        parts = [figure] if figure.document is None else [figure, *figure.document.roots]
        if any(part in _HOSTED for part in parts):
            raise ValueError("this Bokeh figure is already shown by a BokehFigure; close that one or make a new figure")
        self.figure = figure
        self.on_error = on_error
        self.lock = ui_lock  # the panels' lock: a second one, taken in the other order, could deadlock
        self._stale = False
        super().__init__(_source=BokehSource.shared().model_id, **traits)
        _HOSTED.add(figure)
        self._hosts = True
        self.on_msg(self._receive)

    @property
    def is_empty(self) -> bool:
        sentences = list(self.figure.select({"name": "message"}))
        return bool(sentences) and all(sentence.visible and TO_FILL in sentence.tags for sentence in sentences)

    def __repr__(self) -> str:
        return f"BokehFigure({type(self.figure).__name__}, name={self.figure.name!r})"

    @property
    def picture(self) -> str:
        """The figure as last seen in a browser, a ``data:image/png`` address; empty before it was shown."""
        return str(self._picture)

    def _write(self) -> None:
        """Put the current figure into the state; from then on, its changes are sent."""
        if self._doc is None:
            for legend in self.figure.select({"type": Legend}):  # before a document searches it again
                if _LEGEND_STYLE not in legend.stylesheets:
                    legend.stylesheets = [*legend.stylesheets, _LEGEND_STYLE]
            self._doc = self.figure.document or Document()
            if self.figure.document is None:
                self._doc.add_root(self.figure)
            self._doc.on_change_dispatch_to(self)
            self._stale = True
        if self._stale:
            self._stale = False
            self._trait_values["_document"] = str(serialize_json(self._doc.to_json(deferred=False)))

    def deliver(self) -> None:
        """Send the figure to the page."""
        with self.lock:
            if self.comm is not None:
                self._write()
                self.send({"kind": "document", "document": self._document})  # in order with the patches to it

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> Any:
        """The state for the page: at first without the figure, later with the current figure."""
        keys = None if key is None else {key} if isinstance(key, str) else set(key)
        if self.comm is not None and (keys is None or "_document" in keys):
            with self.lock:
                self._write()
        return super().get_state(key=key, drop_defaults=drop_defaults)

    def _document_patched(self, event: Any) -> None:
        """Called by Bokeh in the thread that changed the figure; the lock keeps the patches whole and in order."""
        with self.lock:
            self._stale = True
            if event.setter is self or self._doc is None:
                return
            message = Protocol().create("PATCH-DOC", [event])
            ids = [buffer.id for buffer in message._buffers]
            content = {"kind": "patch", "patch": message.content_json, "ids": ids}
            self.send(content, [buffer.to_bytes() for buffer in message._buffers])

    def _receive(self, _widget: Any, message: dict[str, Any], _buffers: Any) -> None:
        if message.get("kind") == "want":  # a page shows it
            self.deliver()
        if message.get("kind") != "events" or not isinstance(message.get("contents"), list):
            return
        failed: Exception | None = None
        for content in message["contents"]:  # one that fails must not stop the others
            try:
                with self.lock, _current_document_kept():
                    if self._doc is None:  # closed, perhaps by the previous event, or on no page yet
                        return
                    self._stale = True
                    self._apply(self._doc, content)
            except Exception as error:  # ipywidgets would swallow it
                if self.on_error is None:
                    failed = failed or error
                else:
                    self.on_error(error)
        if failed is not None:
            raise failed

    def _apply(self, doc: Document, content: Any) -> None:
        """Repeat in Python what happened in the browser. `setter=self` keeps it from being sent back."""
        event = self._read(doc, content)
        kind: Any = event.get("kind")
        model: Any = event.get("model")
        if kind == "ModelChanged":
            name, descriptor = event["attr"], model.lookup(event["attr"])
            old = descriptor._get(model)
            try:
                new = descriptor.property.prepare_value(model, descriptor.name, event["new"])
                fits = _fits_source(doc, model, name, new)
            except ValueError:
                fits = False
            if not fits:
                self._document_patched(ModelChangedEvent(doc, model, name, old))  # the page gets the state as it is
                return
            # _set alone: setting the attribute would trigger the model's callbacks a second time.
            descriptor._set(model, old, new, setter=self)
        elif kind == "MessageSent":
            doc.callbacks.trigger_event(event["msg_data"])
        elif kind == "ColumnsStreamed":
            model._stream(event["data"], event["rollover"], setter=self)
        elif kind == "ColumnsPatched":
            model.patch(event["patches"], setter=self)

    def _read(self, doc: Document, content: Any) -> dict[str, Any]:
        """What happened in the browser; empty if it is about a model that has been replaced since, or is malformed."""
        try:
            event = Deserializer(list(doc.models), setter=self).deserialize(Serialized(content=content, buffers=[]))
        except Exception:  # the decoder of Bokeh raises whatever its parts do
            return {}
        kind = event.get("kind") if isinstance(event, dict) else None
        return event if isinstance(kind, str) and kind in _KINDS and _KINDS[kind](doc, event) else {}

    def close(self) -> None:
        """End the view; another host can then show the figure."""
        if self._hosts:
            with self.lock:
                self._hosts = False
                _HOSTED.discard(self.figure)
                doc, self._doc = self._doc, None
                if doc is not None:
                    doc.remove_on_change(self)
                    doc.remove_root(self.figure)
        super().close()
