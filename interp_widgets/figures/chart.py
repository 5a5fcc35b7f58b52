"""The base of all charts: a common look, readable token ticks, and a sentence in place of an empty plot.

Text, grid and background colours are left to the page (a notebook's theme sets them through CSS variables); glyphs take
theirs from :mod:`interp_widgets.figures.theme`, which suits both light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from bokeh.models import (
    ColumnDataSource,
    FixedTicker,
    HoverTool,
    InlineStyleSheet,
    Label,
    Legend,
    Node,
    PlainText,
    Title,
)
from bokeh.plotting import figure as new_figure

from interp_widgets.analysis._core.result import Result
from interp_widgets.figures.labels import visible
from interp_widgets.figures.static.charts import Drawing, chart_scene
from interp_widgets.figures.static.scene import Scene

QUIET = "#8a8f98"
"""Reference lines and bands; visible on a light and on a dark page."""

QUIET_TEXT = "#757a82"
"""Text that does not take its colour from the page; legible on a light and on a dark one."""

MAX_TICKS = 60
"""Most tokens named on an axis; in a longer text every second, third, … is named."""

# a legend is HTML and takes its colours from Python, unless its own style sheet overrides them
_LEGEND_CSS = """
.bk-item .bk-label { color: var(--bk-label-text-color, #333333) !important; }
.bk-grid { row-gap: 2px !important; }
"""
_LONGEST = 12


def visible_token(token: str, *, longest: int = _LONGEST) -> str:
    """A token as one short readable word: spaces and line breaks as marks, long ones cut in the middle.

    >>> visible_token(" hello\\n")
    '·hello⏎'
    """
    text = visible(token)
    if len(text) <= longest:
        return text
    keep = (longest - 1) // 2
    return text[: longest - 1 - keep] + "…" + text[-keep:]


def plain_label(text: str) -> Any:
    """A label that Bokeh does not parse as TeX."""
    return PlainText(text=text) if any(sign in text for sign in ("$$", "\\(", "\\[")) else text


def layer_names(layers: int) -> list[str]:
    """Names of the residual stream by layer: the input of block 0, 1, … and the output.

    >>> layer_names(2)
    ['0', '1', 'output']
    """
    return [*map(str, range(layers)), "output"]


def model_label(result: Result, index: int) -> str:
    """The name of a result's model, cut to fit a legend; A or B if unknown."""
    return visible_token(str(result.provenance.get("model", f"model {'AB'[index]}")), longest=18)


def empty_source(name: str, columns: Sequence[str]) -> ColumnDataSource:
    """A source with these columns and no rows yet."""
    return ColumnDataSource({column: [] for column in columns}, name=name)


def place_ticks(axis: Any, places: Iterable[float]) -> None:
    """Put ticks at fixed positions. An existing fixed ticker is reused, since a new one makes Bokeh walk the figure."""
    if isinstance(axis.ticker, FixedTicker):
        axis.ticker.ticks = list(places)
    else:
        axis.ticker = FixedTicker(ticks=list(places))


TO_FILL = "to fill"
"""Tag of the sentence in an empty chart, which says how to fill it."""


class Chart:
    """A Bokeh figure that is made once and then only changes its data.

    Derived classes call :meth:`start` and, in their ``update``, :meth:`fill` or :meth:`say`.
    """

    figure: Any
    """The Bokeh figure; its `name` identifies the chart."""

    source: ColumnDataSource
    """The rows behind the glyphs; `source.selected.indices` holds what a reader tapped."""

    EMPTY: ClassVar[str] = "Nothing to show yet."

    def start(
        self,
        name: str,
        title: str,
        axes: tuple[str, str],
        *,
        columns: Sequence[str],
        tooltips: Sequence[tuple[str, str]] = (),
        height: int = 260,
        tools: str = "pan,xwheel_zoom,box_zoom,reset,save",
        **options: Any,
    ) -> None:
        """Make the figure, its source with these columns, and the sentence shown while it is empty."""
        options.setdefault("sizing_mode", "stretch_width")
        self.figure = new_figure(
            name=name,
            title=title,
            x_axis_label=axes[0],
            y_axis_label=axes[1],
            height=height,
            tools=tools,
            toolbar_location="right",
            min_border_right=12,
            **options,
        )
        self.figure.toolbar.logo = None
        self.figure.toolbar.autohide = True
        self.figure.title.text_font_size = "14px"
        for axis in (*self.figure.xaxis, *self.figure.yaxis):
            axis.axis_label_text_font_size = "12px"
            axis.axis_label_text_font_style = "normal"
            axis.major_label_text_font_size = "11px"
            if hasattr(axis.ticker, "num_minor_ticks"):  # the page's theme would colour them even if there are none
                axis.ticker.num_minor_ticks = 0
        self.figure.grid.grid_line_alpha = 0.35
        self.hidden: list[Any] = []
        self.source = empty_source(f"{name}_rows", columns)
        self.tooltips = list(tooltips)
        self._subtitle = Title(text="", text_font_style="normal", text_font_size="12px", visible=False)
        self.figure.add_layout(self._subtitle, "above")
        self._message = Label(
            x=Node(target="frame", symbol="center", offset=0),
            y=Node(target="frame", symbol="center", offset=0),
            text="",
            text_align="center",
            text_baseline="middle",
            text_font_size="13px",
            visible=False,
            name="message",
        )
        self.figure.add_layout(self._message)

    def hover(self, *renderers: Any) -> None:
        """Show the tooltips over these glyphs (texts in them are escaped by Bokeh)."""
        if self.tooltips:
            self.figure.add_tools(HoverTool(tooltips=self.tooltips, renderers=list(renderers), name="hover"))

    def legend(self, items: Sequence[Any] = (), *, place: str = "above", columns: int = 0) -> Legend:
        """A legend outside the plot, so that it covers nothing; `columns` wraps a long one."""
        box = Legend(
            items=list(items),
            orientation="horizontal" if place in ("above", "below") else "vertical",
            ncols=columns or "auto",
            border_line_color=None,
            background_fill_alpha=0,
            label_text_font_size="11px",
            margin=2,
            padding=2,
            spacing=12,
            glyph_width=16,
            glyph_height=12,
            stylesheets=[InlineStyleSheet(css=_LEGEND_CSS)],
        )
        getattr(self.figure, place).insert(0, box)  # nearest the plot, below title and subtitle
        return box

    def reach(self, *, x: tuple[float, float] | None = None, y: tuple[float, float] | None = None) -> None:
        """Set the ends of the axes, which a reset goes back to."""
        for axis, ends in ((self.figure.x_range, x), (self.figure.y_range, y)):
            if ends is not None:
                axis.update(start=ends[0], end=ends[1], reset_start=ends[0], reset_end=ends[1])

    def fill(self, rows: dict[str, Any], *, subtitle: str = "") -> None:
        """Show these rows instead of any sentence."""
        self.source.selected.indices = []
        self.source.data = rows
        self._message.visible = False
        self._show_frame(True)
        self.subtitle(subtitle)

    def _show_frame(self, shown: bool) -> None:
        for part in (*self.figure.axis, *self.figure.grid, *self.figure.legend):
            part.visible = shown and part not in self.hidden

    def subtitle(self, text: str) -> None:
        """Set the second line under the title; an empty text removes it."""
        self._subtitle.text = plain_label(text)
        self._subtitle.visible = bool(text)

    def say(self, sentence: str = "") -> None:
        """Show a sentence in place of the data."""
        self.source.selected.indices = []
        self.source.data = {column: [] for column in self.source.data}
        self._message.text = sentence or self.EMPTY
        self._message.tags = [] if sentence else [TO_FILL]
        self._message.visible = True
        self._show_frame(False)
        self.subtitle("")

    @property
    def described(self) -> dict[str, str]:
        """Title, second line and axis names."""
        texts = {"title": self.figure.title.text, "subtitle": self._subtitle.text}
        texts |= {"x_label": self.figure.xaxis[0].axis_label, "y_label": self.figure.yaxis[0].axis_label}
        return {name: str(getattr(text, "text", text) or "") for name, text in texts.items()}

    @property
    def message(self) -> str:
        """The sentence shown in place of the data; empty while data is shown."""
        return str(self._message.text) if self._message.visible else ""

    def name_layers(self, layers: int, *, most: int = 14) -> None:
        """Set the horizontal axis to the layers and the output; ticks count from the output, which is always named."""
        self.reach(x=(-0.3, layers + 0.3))
        ticks = sorted(range(layers, -1, -max(1, -(-(layers + 1) // most))))
        labels = layer_names(layers)
        place_ticks(self.figure.xaxis[0], ticks)
        self.figure.xaxis[0].major_label_overrides = {tick: labels[tick] for tick in ticks}

    def name_ticks(self, axis: Any, labels: Sequence[str], *, most: int = MAX_TICKS) -> None:
        """Put labels at 0, 1, 2... of an axis; of more than `most`, evenly spaced ones."""
        step = max(1, -(-len(labels) // most))
        places = range(0, len(labels), step)
        place_ticks(axis, places)
        axis.major_label_overrides = {index: plain_label(labels[index]) for index in places}


class DrawnChart(Chart):
    """A chart that has a static picture, which `drawing` draws from the data as they are."""

    SIZE: ClassVar[tuple[int, int]] = (620, 340)
    """Width and height of its static picture in pixels."""

    def drawing(self) -> Drawing:
        """The names that the legend of the picture may have, and what draws the data as they are now."""
        raise NotImplementedError

    def scene(self, *, name: str = "") -> Scene:
        """What the chart shows as a static picture, with `name` before its title; ValueError while it shows a sentence
        instead."""
        if self.message:
            raise ValueError(f"there is nothing to draw: {self.message}")
        names, draw = self.drawing()
        texts, (width, height) = self.described, self.size
        return chart_scene(names, draw, **(texts | {"title": name + texts["title"]}), width=width, height=height)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the static picture in pixels."""
        return self.SIZE
