"""The views: how each type that a probe can return is drawn, for one model or two."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
from bokeh.document import Document
from bokeh.models import LayoutDOM

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.probe import Curves, HeadMap, LayerByPosition, Matrix, TokenValues, Values
from interp_widgets.analysis.probe import Table as TableResult
from interp_widgets.figures.labels import axis_name
from interp_widgets.figures.probe import CurveChart, probe_curves_scene
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.controls import row
from ..base.workbench import model_name
from ..views import BokehFigure, Heatmap, Table, TokenStrip
from .prompt_panel import PromptPanel

MOST_ROWS = 500
"""Most rows of a table on the screen; a saved one has all."""
LONGEST = 120
"""Most characters of a field of a result without a table."""


class ValueView:
    """Base of the views: `paint` draws results, one per model, and `scene` returns the static picture.

    Pass your own view to the probe whose results it draws. It puts its widgets into `parts`; without a
    `scene` the panel saves no SVG or PNG.

    Example:
        >>> import ipywidgets
        >>> from interp_widgets import Model, Prompt, Table, probe
        >>> class Count(ValueView):
        ...     def __init__(self, panel):
        ...         super().__init__(panel)
        ...         self.line = ipywidgets.HTML()
        ...         self.parts = [self.line]
        ...     def paint(self, results, shown):
        ...         self.line.value = " and ".join(f"{len(table.rows)} tokens" for table in results)
        >>> @probe(view=Count)
        ... def tokens(model: Model, prompt: Prompt) -> Table:
        ...     return Table(["token"], [[text] for text in model.token_strings(model.tokens(prompt))])
        >>> panel = tokens(model, prompt="Paris is in")
        >>> len(panel.run().rows), panel.picture.line.value
        (5, '5 tokens')
        >>> panel.close()
    """

    pair_views: ClassVar[tuple[str, ...]] = ("beside",)
    """Views of two models besides A and B: ``difference``, ``beside`` (A beside B) or both."""
    selects: ClassVar[tuple[str, ...]] = ()
    """Traits of a workbench that a click on the view sets."""

    def __init__(self, panel: PromptPanel) -> None:
        self.panel = panel
        self.parts: list[Any] = []

    @classmethod
    def check(cls, value: Any, model: Model) -> None:
        """Raise ValueError for a value whose axes do not match the model."""

    def paint(self, results: Sequence[Any], shown: str) -> None:
        """Draw what is `shown` of two models: ``A``, ``B``, their ``difference``, or A ``beside`` B; of one ``A``."""
        raise NotImplementedError

    def scene(self) -> Scene:
        """The view as a static picture."""
        raise NotImplementedError

    def title(self, shown: str) -> str:
        """The title of the picture."""
        return pair_view.title_start(self.panel, shown) + self.panel.title


class MapView(ValueView):
    """A map of two named axes; a click selects what `chosen` says of its cell, and the cursor follows `cell`."""

    pair_views = ("difference", "beside")

    def __init__(self, panel: PromptPanel) -> None:
        super().__init__(panel)
        self.maps = pair_view.SideBySide(panel, lambda: Heatmap(empty="No map yet."))
        self.heat = self.maps.views[0]
        self.parts = [self.maps.box]
        for heat in self.maps.views:
            panel.on_user(heat, "pinned", self._pinned)
            panel.on_user(heat, "cross", self.maps.follow)
        panel.watch(panel, [name for name in self.selects if panel.has_trait(name)], lambda _: self._select())

    def axis_names(self, value: Any) -> tuple[str, str]:
        """What a row is and what a column is."""
        raise NotImplementedError

    def rows(self, value: Any, heat: Heatmap, shown: str) -> list[str]:
        """Names of the rows."""
        raise NotImplementedError

    def columns(self, value: Any) -> list[str]:
        """Names of the columns."""
        raise NotImplementedError

    def chosen(self, heat: Heatmap, row: int, column: int) -> dict[str, int]:
        """What a click on a cell selects in all panels of the workbench."""
        raise NotImplementedError

    def cell(self, heat: Heatmap) -> list[int]:
        """Row and column of the selection; empty for none."""
        raise NotImplementedError

    def paint(self, results: Sequence[Any], shown: str) -> None:
        for view, heat in self.maps.drawn():
            self._paint(results, view, heat)
        self._select()

    def _paint(self, results: Sequence[Any], shown: str, heat: Heatmap) -> None:
        try:
            value = result_in_view(results, shown)
        except ValueError as error:
            heat.empty = f"{error}: choose A beside B"
            heat.set_matrix(None)
            return
        low, high, signed = scale([value] if shown == "difference" else results)
        texts = [axis_name(text) for cells in getattr(value, "texts", None) or () for text in cells]
        with heat.hold_sync():
            heat.title, heat.value_label = self.title(shown), value.unit
            heat.row_name, heat.column_name = heat.y_label, heat.x_label = self.axis_names(value)
            heat.set_matrix(
                value.values, rows=self.rows(value, heat, shown), columns=self.columns(value), vmin=low, vmax=high,
                signed=signed, texts=texts,
            )  # fmt: skip

    def scene(self) -> Scene:
        return self.maps.scene()

    def _prompt_columns(self) -> range:
        """The columns that are the tokens of the prompt, from the first or, behind a BOS, from the second column on."""
        columns, prompt = tuple(self.heat.column_labels), self.panel.prompt_tokens()
        starts = (start for start in (0, 1) if prompt and columns[start : start + len(prompt)] == prompt)
        start = next(starts, len(columns))
        return range(start, min(start + len(prompt), len(columns)))

    def prompt_token_in(self, column: int) -> dict[str, int]:
        """The token of the prompt that a column is, if it is one."""
        columns = self._prompt_columns()
        return {"prompt_token": column - columns.start} if column in columns else {}

    def column_of_prompt_token(self) -> int:
        """The column of the selected token of the prompt; -1 for none."""
        columns, token = self._prompt_columns(), int(getattr(self.panel, "prompt_token", -1))
        return columns[token] if 0 <= token < len(columns) else -1

    def _pinned(self, change: Any) -> None:
        if change.new and (selection := self.chosen(change.owner, *change.new)):
            self.panel.workbench.select(**selection)

    def _select(self) -> None:
        """Move the cursor to the selection."""
        for heat in self.maps.shown:
            cell = self.cell(heat)
            if cell != heat.cross:
                heat.cross = heat.pinned = cell


class LayerRows(MapView):
    """A map with a row per layer."""

    column_name: ClassVar[str] = "column"

    def __init__(self, panel: PromptPanel) -> None:
        self.layers: dict[Heatmap, list[int]] = {}
        super().__init__(panel)

    def axis_names(self, value: Any) -> tuple[str, str]:
        return "layer", self.column_name

    def rows(self, value: Any, heat: Heatmap, shown: str) -> list[str]:
        self.layers[heat] = list(range(len(value.values)) if value.layers is None else value.layers)
        last = self.panel.models[shown == "B"].n_layers
        return ["output" if layer == last else str(layer) for layer in self.layers[heat]]

    def chosen(self, heat: Heatmap, row: int, column: int) -> dict[str, int]:
        layer = self.layers[heat][row]
        selection = {"layer": layer} if layer < self.panel.models[0].n_layers else {}
        return selection | self.chosen_column(column)

    def cell(self, heat: Heatmap) -> list[int]:
        layers, layer, column = self.layers.get(heat, []), getattr(self.panel, "layer", -1), self.column()
        return [layers.index(layer), column] if layer in layers and 0 <= column < heat.shape[1] else []

    def chosen_column(self, column: int) -> dict[str, int]:
        """What a click on a column selects besides the layer."""
        raise NotImplementedError

    def column(self) -> int:
        """The selected column; -1 for none."""
        raise NotImplementedError


class MatrixView(MapView):
    """Two named axes; columns that are the tokens of the prompt follow its selected token."""

    selects = ("prompt_token",)

    def axis_names(self, value: Matrix) -> tuple[str, str]:
        return value.row_name, value.column_name

    def rows(self, value: Matrix, heat: Heatmap, shown: str) -> list[str]:
        return list(value.rows)

    def columns(self, value: Matrix) -> list[str]:
        return list(value.columns)

    def chosen(self, heat: Heatmap, row: int, column: int) -> dict[str, int]:
        return self.prompt_token_in(column)

    def cell(self, heat: Heatmap) -> list[int]:
        if (column := self.column_of_prompt_token()) < 0:
            return list(heat.cross)
        return [heat.cross[0] if heat.cross else heat.shape[0] - 1, column]


class LayerView(LayerRows):
    """Layers by tokens."""

    column_name, selects = "token", ("layer", "prompt_token")

    @classmethod
    def check(cls, value: LayerByPosition, model: Model) -> None:
        _check_layers(value, model, (model.n_layers, model.n_layers + 1))

    def columns(self, value: LayerByPosition) -> list[str]:
        return list(value.tokens)

    def chosen_column(self, column: int) -> dict[str, int]:
        return self.prompt_token_in(column)

    def column(self) -> int:
        return self.column_of_prompt_token()


class HeadView(LayerRows):
    """Layers by heads."""

    column_name, selects = "head", ("layer", "head")

    @classmethod
    def check(cls, value: HeadMap, model: Model) -> None:
        _check_layers(value, model, (model.n_layers,))
        if value.values.shape[1] != model.n_heads:
            columns = value.values.shape[1]
            raise ValueError(
                f"a HeadMap must have a column for each of the model's {model.n_heads} heads, got {columns}"
            )

    def columns(self, value: HeadMap) -> list[str]:
        return [str(head) for head in range(value.values.shape[1])]

    def chosen_column(self, column: int) -> dict[str, int]:
        return {"head": column}

    def column(self) -> int:
        return int(getattr(self.panel, "head", -1))


class StripView(ValueView):
    """A text with its tokens shaded."""

    pair_views, selects = ("difference", "beside"), ("prompt_token",)

    def __init__(self, panel: PromptPanel) -> None:
        super().__init__(panel)
        self.strips = pair_view.SideBySide(panel, lambda: TokenStrip(empty="No text yet."))
        self.strip = self.strips.views[0]
        self.parts = [self.strips.box]
        for strip in self.strips.views:
            panel.watch(strip, "selected", self._selected)

    def paint(self, results: Sequence[Any], shown: str) -> None:
        for view, strip in self.strips.drawn():
            self._paint(results, view, strip)

    def _paint(self, results: Sequence[Any], shown: str, strip: TokenStrip) -> None:
        try:
            value = result_in_view(results, shown)
        except ValueError as error:
            strip.empty = f"{error}: choose A beside B"
            strip.set_tokens([])
            return
        low, high, signed = scale([value] if shown == "difference" else results)
        if list(value.tokens) != strip.tokens:
            strip.set_tokens(value.tokens)
        strip.set_values(value.values, vmin=low, vmax=high, signed=signed)
        unit = f" ({value.unit})" if value.unit else ""
        strip.label, strip.value_label = self.title(shown) + unit, value.unit

    def scene(self) -> Scene:
        return self.strips.scene()

    def _selected(self, change: Any) -> None:
        if change.new >= 0 and tuple(change.owner.tokens) == self.panel.prompt_tokens():
            self.panel.workbench.select(prompt_token=change.new)


class CurveView(ValueView):
    """A chart of lines."""

    pair_views = ("difference",)

    def __init__(self, panel: PromptPanel) -> None:
        super().__init__(panel)
        self.chart = CurveChart()
        self.parts = [BokehFigure(self.chart.figure, on_error=panel.show_error)]
        self.drawn: tuple[Curves, str] | None = None

    def paint(self, results: Sequence[Any], shown: str) -> None:
        try:
            value = result_in_view(results, shown)
        except ValueError as error:
            self.drawn = None
            self.chart.clear(f"{error}: choose A or B")
            return
        low, high, _ = scale([value] if shown == "difference" else results)
        self.drawn = value, self.title(shown)
        self.chart.update(value, title=self.title(shown), ends=(low, high))

    def scene(self) -> Scene:
        if self.drawn is None:
            raise ValueError("there are no curves to save: choose A or B, then save")
        return probe_curves_scene(self.drawn[0], title=self.drawn[1])


class TableView(ValueView):
    """A table, or one per model; a derived view may change columns, tooltips and captions."""

    tips: ClassVar[Mapping[str, str]] = {}
    """Tooltips of the column headings, by column."""
    written: ClassVar[Collection[str]] = ()
    """Columns of numbers that are written out as text: they are aligned as numbers are."""

    def __init__(self, panel: PromptPanel) -> None:
        super().__init__(panel)
        self.tables = [Table(empty="No table yet.", height=340) for _ in panel.models]
        self.parts = [_side_by_side(self.tables)]

    def paint(self, results: Sequence[Any], shown: str) -> None:
        for index, (letter, table) in enumerate(zip("AB", self.tables, strict=False)):
            visible = index < len(results) and shown in (letter, "beside")
            table.layout.display = None if visible else "none"
            (table.remove_class if visible else table.add_class)("iw-hidden")
            if visible:
                self._fill(table, results[index], letter)

    def frame_of(self, result: Any) -> Any:
        """The table of one result."""
        return result.to_frame()

    def caption(self, result: Any, letter: str) -> str:
        """The caption of one result's table."""
        name = f" · {model_name(self.panel.models['AB'.index(letter)])}" if len(self.tables) > 1 else ""
        return self.title(letter) + name

    def _fill(self, table: Table, result: Any, letter: str) -> None:
        frame = self.frame_of(result)
        numeric = [name in self.written or frame[name].dtype.kind in "iuf" for name in frame.columns]
        caption = self.caption(result, letter)
        if len(frame) > MOST_ROWS:
            caption += f": the first {MOST_ROWS} of {len(frame):,} rows"
        with table.hold_sync():
            table.rows = []
            table.columns = [
                {"label": str(name), "align": "right" if right else "left"}
                | ({"title": self.tips[name]} if name in self.tips else {})
                for name, right in zip(frame.columns, numeric, strict=True)
            ]
            table.rows = [list(map(_shown, cells)) for cells in frame.head(MOST_ROWS).itertuples(index=False)]
            table.caption = caption

    def scene(self) -> Scene:
        visible = [table for table in self.tables if "iw-hidden" not in table._dom_classes]
        return stack_scenes([table.scene() for table in visible], columns=2)


class ResultView(TableView):
    """Any result: its table, or its fields if it has none."""

    def frame_of(self, result: Result) -> Any:
        import pandas as pd

        if type(result).to_frame is not Result.to_frame:
            return result.to_frame()
        own_first = sorted(fields(result), key=lambda item: bool(item.kw_only))
        shown = [(item.name, _brief(getattr(result, item.name))) for item in own_first]
        return pd.DataFrame(shown, columns=["field", "value"])


class FigureView(ValueView):
    """A Bokeh figure, or one per model."""

    def __init__(self, panel: PromptPanel) -> None:
        super().__init__(panel)
        self.box = row()
        self.box.layout.align_items = "flex-start"
        self.parts = [self.box]

    def paint(self, results: Sequence[Any], shown: str) -> None:
        figures = [figure for letter, figure in zip("AB", results, strict=False) if shown in (letter, "beside")]
        before = self.box.children
        hosts = [BokehFigure(_copy(figure), on_error=self.panel.show_error) for figure in figures]
        for host in hosts:
            host.add_class("iw-chart")
        self.box.children = hosts
        for host in before:
            host.close()


VIEWS: dict[type, type[ValueView]] = {
    LayerByPosition: LayerView,
    HeadMap: HeadView,
    Matrix: MatrixView,
    TokenValues: StripView,
    Curves: CurveView,
    TableResult: TableView,
    Result: ResultView,
    LayoutDOM: FigureView,
}
"""The view of each type of value; for a class derived from several of these, the first one's."""


def result_in_view(results: Sequence[Any], shown: str) -> Any:
    """The result in view: the first, the second, or the second minus the first; ValueError if their axes differ."""
    if shown == "difference":
        first, second = results
        return second.minus(first)
    return results["AB".index(shown)]


def scale(values: Sequence[Values]) -> tuple[float, float, bool]:
    """Lowest and highest number of a colour scale that all values share, and whether it is diverging."""
    low = min(float(np.nanmin(value.values)) for value in values)
    high = max(float(np.nanmax(value.values)) for value in values)
    if low < 0:
        size = max(-low, high)
        return -size, size, True
    return 0.0, high or 1.0, False


def _check_layers(value: LayerByPosition | HeadMap, model: Model, allowed: tuple[int, ...]) -> None:
    name, rows = type(value).__name__, len(value.values)
    if value.layers is None:
        if rows not in allowed:
            wanted = " or ".join(map(str, allowed))
            raise ValueError(
                f"a {name} of this model must have {wanted} layers, got {rows}: name them with layers=[...]"
            )
        return
    wrong = [layer for layer in value.layers if not 0 <= layer <= model.n_layers]
    if wrong or len(set(value.layers)) < rows:
        raise ValueError(f"{name}.layers must be different and in 0..{model.n_layers}, got {list(value.layers)}")


def _brief(value: Any) -> str:
    """A short text for a field of a result."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"{value.dtype} of shape {value.shape}"
    text = str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _side_by_side(widgets: Sequence[Any]) -> Any:
    """Widgets side by side if there is room."""
    box = row(*widgets)
    box.layout.align_items = "flex-start"
    for widget in widgets:
        widget.add_class("iw-grow")
    return box


def _shown(cell: Any) -> Any:
    """A cell converted for a table in the browser."""
    if isinstance(cell, str):
        return axis_name(cell)
    plain = cell.item() if isinstance(cell, np.generic) else cell
    return None if plain is None or plain != plain else plain if isinstance(plain, int | float | bool) else str(plain)


def _copy(figure: LayoutDOM) -> LayoutDOM:
    """A copy of a figure, since only one panel can show a figure."""
    document = figure.document
    if document is None:
        document = Document()
        document.add_root(figure)
        text = document.to_json()
        document.remove_root(figure)
    else:
        text = document.to_json()
    other = Document.from_json(text)
    copied = other.get_model_by_id(figure.id)
    for root in other.roots:
        other.remove_root(root)
    return copied
