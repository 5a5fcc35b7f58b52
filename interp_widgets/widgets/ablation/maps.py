"""Maps over layers that share a colour scale and a cursor, and texts about their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from html import escape
from typing import Annotated, Any, ClassVar

import ipywidgets as W
import numpy as np
from numpy.typing import NDArray

from interp_widgets.analysis._core.checks import layer_indices
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.statistics import BEYOND
from interp_widgets.arguments import short
from interp_widgets.figures.labels import power_of_ten, visible
from interp_widgets.figures.static import Scene, stack_scenes
from interp_widgets.models import Model

from ..base import pair_view
from ..base.fields import Bounds, field, hint_at
from ..base.prediction import PredictionPanel, checked
from ..base.workbench import in_model
from ..views import Heatmap

Array = NDArray[np.float64]

UNITS = {
    "log_prob": "drop in log p, nats",
    "probability": "drop in probability",
    "logit": "drop in logit",
    "logit_difference": "drop in difference",
    "kl": "KL, nats",
}
"""Units of an ablation map by metric."""
METRIC_NAMES = {
    "log_prob": "log-probability",
    "probability": "probability",
    "logit": "logit",
    "logit_difference": "logit difference",
}


LAYERS = field(
    str, label="Layers", placeholder="all", more=True, width="short",
    help="Only these layers, such as 20-29 or 3 7 -1 (the last); empty: all",
)  # fmt: skip
POSITIONS = field(
    str, label="Positions", placeholder="all", more=True,
    help="Only these tokens: last, last 8, words of the prompt, or numbers such as 4 or 3-8; empty: all",
)  # fmt: skip
"""A part of a map, which takes a part of the time; panels with these options read them by `of_part`."""
PART = "last 8"
"""The positions on which a map opens that would take too long to start by itself."""


class MapPanel(PredictionPanel):
    """Base of the panels whose results are maps over the layers."""

    layers = LAYERS
    color_range = field(
        Annotated[float, Bounds(0.05, 1.0, 0.05, slider=True, shown_as=".0%")], 1.0, label="Full colour at",
        more=True, redraws=True, help="Fraction of the largest effect at which the colour saturates",
    )  # fmt: skip
    threshold = field(
        Annotated[float, Bounds(0.0, 1.0, 0.05, slider=True, shown_as=".0%")], 0.2, label="Numbers from",
        more=True, redraws=True, help="Fraction of the largest effect above which a cell shows its number",
    )  # fmt: skip
    layer = field(in_model(), selects=True)
    """The selected layer."""
    position = field(Annotated[int, Bounds(low=-1)], -1, selects=True, validated_by_result=True, linked="prompt_token")
    """The selected token of the context, -1 for none; within the prompt it is `prompt_token`."""

    pair_views: ClassVar[tuple[str, ...]] = ("difference", "beside")
    part: ClassVar[str] = f"the {PART} tokens"
    """What a map shows that opens on a part."""

    def __init__(self, model: Model, tuned: Any = None, **options: Any) -> None:
        self.layer_chosen = False
        """Whether a layer has been chosen: until then none is marked."""
        self.observe(lambda _: setattr(self, "layer_chosen", True), "layer")
        super().__init__(model, tuned, **options)

    def appear(self) -> None:
        if not self._opened and self.has_trait("positions") and "positions" not in self.keywords and not self.positions:
            self._open_on_part()
        super().appear()

    def _open_on_part(self) -> None:
        try:
            seconds = self.forecast(self.request()).seconds
        except Exception:
            return  # the first run meets it again and shows it
        if seconds > self.opening_limit:
            with self.without_rerun():
                self.positions = PART

    def default_of(self, name: str) -> Any:
        """The part on which a map of the stack has opened is nobody's choice either."""
        opened = name == "positions" and self.has_trait(name) and self.positions == PART
        return PART if opened else super().default_of(name)

    @property
    def remark_on_picture(self) -> str:
        part = getattr(self, "positions", "") == PART
        return f"Only {self.part}; clear Positions under More to see all" if part else ""

    @property
    def shorter(self) -> str:
        options = [name for name in ("layers", "positions") if self.has_trait(name)]
        if any(getattr(self, name) for name in options):
            return ""
        return f"a part takes less: {' or '.join(name.capitalize() for name in options)} under More"

    def arguments(self) -> dict[str, Any]:
        return of_part(self, super().arguments())

    def choices(self) -> Mapping[str, tuple[int | Collection[str], str]]:
        read = len(self.texts.axis), "the tokens that the model has read"
        return {"position": read, "prompt_token": (self.texts.n_prompt_tokens, "the tokens of this prompt")}

    def select(self, layer: int, **others: Any) -> None:
        """Select a cell: its layer (-1 keeps the current one) and other options."""
        with self.batch_changes():
            if layer >= 0:
                self.layer, self.layer_chosen = min(layer, self.models[0].n_layers - 1), True
            for name, value in others.items():
                setattr(self, name, value)


def numbers_of(text: str) -> tuple[int, ...] | None:
    """The numbers in a text, ``3-8`` with both ends; None if it has anything else.

    >>> numbers_of("3-5, 9 -1"), numbers_of("3 - 4 -1"), numbers_of("last"), numbers_of("8-3")
    ((3, 4, 5, 9, -1), (3, 4, -1), None, ())
    """
    parts = re.split(r"[\s,;]+", re.sub(r"(?<=\d)(?:-|\s*–\s*|\s+-\s+)(?=\d)", "–", text.strip(" ,;")))
    found: list[int] = []
    for part in parts:
        if not re.fullmatch(r"[-−]?\d{1,6}|\d{1,6}–\d{1,6}", part):
            return None
        first, _, last = part.replace("−", "-").partition("–")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def of_part(panel: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of an analysis with `LAYERS` and `POSITIONS` as numbers, and without those that are empty."""
    readers = {"layers": chosen_layers, "positions": chosen_positions}
    typed = {name: value for name, value in arguments.items() if name in readers and isinstance(value, str)}
    chosen = {name: readers[name](panel) for name, value in typed.items() if value.strip()}
    return {name: value for name, value in arguments.items() if name not in typed} | chosen


def chosen_layers(panel: Any) -> tuple[int, ...]:
    """The layers named in `panel.layers`, counted from 0; a hint where a model does not have them."""
    with hint_at("layers"):
        numbers = numbers_of(panel.layers)
        if not numbers:
            raise ValueError(f"the layers must be numbers such as 20-29 or 3 7 -1, got {short(panel.layers)}")
        chosen = layer_indices(panel.models[0], numbers)
        for model in panel.models[1:]:
            layer_indices(model, chosen)
        return chosen


def chosen_positions(panel: Any) -> tuple[int, ...]:
    """The positions named in `panel.positions`, as the first model reads the texts; a hint where there are none."""
    model, text = panel.models[0], panel.positions
    context = checked(panel.prediction(), model)
    with hint_at("positions"):
        if last := re.fullmatch(r"last(?: (\d{1,6}))?", text.strip()):
            return context.positions(range(-min(int(last[1] or 1), context.n_shown), 0))
        numbers = numbers_of(text)
        if numbers == ():
            raise ValueError(f"a span must begin before it ends, such as 3-8, got {short(text)}")
        return read_prompt(model, panel.prompt).positions(text) if numbers is None else context.positions(numbers)


def fed_positions(model: Model, ids: Sequence[int], positions: Sequence[int] | None) -> list[int] | None:
    """Positions of a prompt, without the BOS, among the tokens that the model is fed; None for None."""
    bos = int(model.begins_with_bos(ids))
    return None if positions is None else [at if at < 0 else at + bos for at in positions]


def subset(numbers: Sequence[int]) -> tuple[int, ...]:
    """The layers or positions of a map; empty where it has all of them from 0 on.

    >>> subset((0, 1, 2)), subset((3, 4))
    ((), (3, 4))
    """
    return () if tuple(numbers) == tuple(range(len(numbers))) else tuple(numbers)


def place(number: int, numbers: Sequence[int]) -> int:
    """The row of a layer or the column of a position in a map of these; -1 if the map leaves it out.

    >>> place(4, (3, 4)), place(9, (3, 4)), place(-1, (3, 4))
    (1, -1, -1)
    """
    return tuple(numbers).index(number) if number in tuple(numbers) else -1


class Maps:
    """Heat maps with layers as rows on one scale centred on 0, in a reflowing grid; A beside B has one pair a row."""

    def __init__(self, panel: Any, labels: Mapping[str, str], *, column: str, in_row: int) -> None:
        self.panel, self.labels, self.in_row = panel, dict(labels), in_row
        self.pairs = {
            name: pair_view.SideBySide(
                panel, partial(
                    Heatmap, title=label, row_name="layer", column_name=column, y_label="layer",
                    empty="No map yet.",
                )
            )
            for name, label in labels.items()
        }  # fmt: skip
        self.maps = {name: pair.views[0] for name, pair in self.pairs.items()}
        self.grid = W.VBox([pair.box for pair in self.pairs.values()])
        self._columns = "iw-maps-3" if in_row == 3 else "iw-maps"
        self.grid.add_class("iw-pairs")
        self.grid.add_class(self._columns)
        self.on_pin: Callable[[str, int, int], object] = lambda name, layer, column: None
        """Called with map name, layer and column when a cell is pinned, and with -1, -1 when it is unpinned."""
        self.layers: tuple[int, ...] = ()
        """The layers of the rows; empty for all from 0 on."""
        self.positions: tuple[int, ...] = ()
        """The positions of the columns; empty for all from 0 on."""
        for name, pair in self.pairs.items():
            for heat in pair.views:
                panel.on_user(heat, "pinned", partial(self._pinned, name))
                panel.on_user(heat, "cross", self._moved)

    def paint(
        self, arrays: Mapping[str, Sequence[Array]], columns: Sequence[str], *, unit: str, titles: Mapping[str, str],
        notes: Callable[[str], Mapping[str, Sequence[str]]] | None = None, marks: Sequence[Sequence[int]] = (),
        off_scale: int = -1, end: float | None = None, layers: Sequence[int] = (), positions: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Set the numbers: per map one (layers, columns) array per model; `notes` returns the tooltips of a view, and
        the column `off_scale` does not set the scale of the colours, nor does any where its `end` is given. `layers`
        and `positions` are those of a part of a map."""
        self.layers, self.positions = subset(layers), subset(positions)
        scaled = [
            [np.delete(array, off_scale, 1) if 0 <= off_scale < array.shape[1] > 1 else array for array in each]
            for each in arrays.values()
        ]
        beside = self.panel.shown == "beside"
        (self.grid.remove_class if beside else self.grid.add_class)(self._columns)
        for name, pair in self.pairs.items():
            for view, heat in pair.drawn():
                largest = pair_view.symmetric_limit(view, scaled) if end is None else end
                shown = pair_view.of_view(view, arrays[name])
                if shown is None:
                    a, b = (" × ".join(map(str, array.shape)) for array in arrays[name])
                    heat.empty = f"A difference needs maps of the same shape, these are {a} and {b}: choose A beside B"
                    heat.set_matrix(None)
                    continue
                full = largest * self.panel.color_range
                with heat.hold_sync():
                    heat.title = pair_view.title_start(self.panel, view) + titles[name]
                    heat.value_label = unit + (", B − A" if view == "difference" else "")
                    heat.numbers_from = max(self.panel.threshold * largest, 1e-12)
                    heat.set_matrix(
                        shown, rows=list(map(str, self.layers or range(len(shown)))),
                        columns=list(columns[: shown.shape[1]]), vmin=-full, vmax=full, signed=True,
                        notes=[] if notes is None else list(notes(view)[name]),
                    )  # fmt: skip
                    heat.column_marks = [list(span) for span in marks]

    def mute(self, grey: Callable[[str], Mapping[str, Any] | None]) -> None:
        """Take the colour from cells: ``grey`` gives a view's, by map (layers, columns), or None for no cell."""
        for name, pair in self.pairs.items():
            for view, heat in pair.drawn():
                cells = grey(view)
                heat.muted = [] if cells is None else np.argwhere(cells[name]).tolist()

    def cross(self, marked: Callable[[str], Mapping[str, Any] | None]) -> None:
        """Put a small cross on cells: ``marked`` gives a view's, as in `mute`."""
        for name, pair in self.pairs.items():
            for view, heat in pair.drawn():
                cells = marked(view)
                heat.crossed = [] if cells is None else np.argwhere(cells[name]).tolist()

    def select(self, layer: int, column: int, pinned: str = "") -> None:
        """Move the cursor of all maps to a cell (-1: a whole row or column), and pin it in one of them."""
        row = place(layer, self.layers) if self.layers else layer
        column = place(column, self.positions) if self.positions else column
        for name, pair in self.pairs.items():
            for heat in pair.shown:
                rows, columns = heat.shape
                at = [row if row < rows else -1, column if column < columns else -1]
                with heat.hold_sync():
                    heat.cross = at if max(at) >= 0 else []
                    heat.pinned = at if name == pinned and min(at) >= 0 else []

    def scene(self) -> Scene:
        """The maps side by side."""
        columns = self.in_row if self.panel.shown != "beside" else 2
        width = {1: 900, 2: 640, 3: 520}[columns]
        shown = [heat for pair in self.pairs.values() for heat in pair.shown]
        return stack_scenes([heat.scene(width=width) for heat in shown], columns=columns)

    def _pinned(self, name: str, change: Any) -> None:
        row, column = change.new or (-1, -1)
        layer = self.layers[row] if self.layers and row >= 0 else row
        self.on_pin(name, layer, self.positions[column] if self.positions and column >= 0 else column)

    def _moved(self, change: Any) -> None:
        """Move the cursors of all maps together, so that their readouts can be compared."""
        for pair in self.pairs.values():
            pair.follow(change)


def amount(value: float) -> str:
    """A number for a sentence: three digits, tiny ones by their power of ten.

    >>> amount(0.5), amount(-0.00004567), amount(12345.0)
    ('0.5', '−4.57×10⁻⁵', '12345')
    """
    if value and abs(value) < 1e-3:
        return power_of_ten(value, 2)
    return (f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}").replace("-", "−")


def cell_notes(view: str, results: Sequence[Any], texts: Callable[[Any], Sequence[str]]) -> list[str]:
    """The tooltips of a view: ``texts`` of a result's cells, row by row, for each model in view with its letter."""
    shown = [results[index] for index in pair_view.models_of(view)]
    lettered = zip(pair_view.letters(shown), shown, strict=True)
    each = [[letter + text for text in texts(result)] for letter, result in lettered]
    return ["; ".join(cell) for cell in zip(*each, strict=True)]


def strongest(
    results: Sequence[Any], largest: Callable[[Any], str], cells: Callable[[Any], Any] = lambda result: result.effect
) -> str:
    """The strongest cells of each model, as HTML; of partial maps how many cells are computed, and in which order.

    `largest` describes the strongest of a result's computed cells, empty if there is none; `cells` are those counted.
    """
    lettered = list(zip(pair_view.letters(results), results, strict=True))
    if not any(result.partial for result in results):
        named = [letter + words for letter, result in lettered if (words := largest(result))]
        return f"Strongest: {'. '.join(named)}." if named else ""
    lines = []
    for letter, result in lettered:
        effects, words = np.asarray(cells(result)), largest(result)
        order = "Strongest expected first" if result.strongest_first else "Layer by layer"
        exact = f"{order if result.partial else 'Complete'}: {np.isfinite(effects).sum():,} of {effects.size:,}"
        so_far = f", the largest{' so far' * result.partial}: {words}" if words else ""
        lines.append(f"{letter and letter.strip() + ': '}{exact} cells exact{so_far}.")
    return "<br> ".join(lines)


def shared_parts(result: Any, at: Any = ...) -> list[str]:
    """How much of each cell's effect on the logit all logits share, in words; empty for the other metrics."""
    return (
        []
        if result.common is None
        else [
            f"all logits share {amount(float(x))} of it" if np.isfinite(x) else "not computed"
            for x in np.ravel(result.common[at])
        ]
    )


def chance_parts(result: Any, at: Any = ...) -> list[str]:
    """Whether each cell is beyond chance, in words; empty where the map has no random directions."""
    p = result.p
    return [] if p is None else [_verdict(float(x)) for x in np.ravel(p[at])]


def _verdict(p: float) -> str:
    if np.isnan(p):
        return "not compared with chance"
    return f"p {p:.2g}" if p <= BEYOND else "not beyond chance"


def cell_parts(result: Any, at: Any = ...) -> list[str]:
    """What tooltips say of each cell: `shared_parts` and `chance_parts`."""
    known = [parts for parts in (shared_parts(result, at), chance_parts(result, at)) if parts]
    return [", ".join(cell) for cell in zip(*known, strict=True)]


def shared_part(result: Any, at: Any) -> str:
    """The words of one cell in brackets; empty for other metrics than the logit."""
    return "" if result.common is None else f" ({shared_parts(result, at)[0]})"


def clean_value(panel: Any, results: Sequence[Any]) -> str:
    """The metric and its value before anything is removed, as HTML."""
    if results[0].metric == "kl":
        return "The change of the next-token distribution: KL(before ‖ after) in nats."
    parts = []
    for letter, result in zip(pair_view.letters(results), results, strict=True):
        against = ""
        if result.foil is not None:
            against = f" minus that of {quoted(panel.models[0].token_strings([result.foil])[0])}"
        name = "logit" if result.foil is not None else METRIC_NAMES[result.metric]
        parts.append(f"{letter}{name} of {quoted(result.target_token)}{against} <b>{amount(result.clean)}</b>")
    colours = "Red: it drops when the part is removed; blue: it rises."
    if panel.shown == "difference":
        colours = "Red: it drops more in B than in A when the part is removed; blue: less."
    return f"Before: {'; '.join(parts)}. {colours}"


def quoted(token: str) -> str:
    """A token in quotation marks, for HTML."""
    return f"“{escape(visible(token))}”"
