"""Lines over the components of every layer: explained variance, and the angles between two models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from bokeh.models import HoverTool, LegendItem, NumeralTickFormatter, Range1d, Span, TapTool
from numpy.typing import NDArray

from interp_widgets.analysis.ffn_concepts import ConceptComparison, FFNConceptResult
from interp_widgets.figures.chart import QUIET, Chart, empty_source, model_label
from interp_widgets.figures.theme import PALETTE8

_DASHES = ("solid", "dashed")
Numbers = NDArray[np.float64]


class LayerLines(Chart):
    """A line for every layer, the selected layer's highlighted; derived classes define the quantity.

    A tap on a line puts its row of `lines` into ``lines.selected.indices``; the column ``layer`` is its layer.
    """

    AXES: ClassVar[tuple[str, str]] = ("", "")
    TITLE: ClassVar[str] = ""
    NAME: ClassVar[str] = ""

    def __init__(self, **options: Any) -> None:
        tips = [("layer", "@layer"), ("model", "@model"), (self.AXES[0], "@x"), (self.AXES[1], "@shown")]
        self.start(
            self.NAME, self.TITLE, self.AXES, columns=("x", "y", "shown", "layer", "model", "color"), tooltips=tips,
            height=320, x_range=Range1d(0, 1), y_range=Range1d(0, 1), **options,
        )  # fmt: skip
        self.lines = empty_source(f"{self.NAME}_lines", ("xs", "ys", "layer", "model"))
        self.chosen = empty_source(f"{self.NAME}_chosen", ("xs", "ys", "layer", "model", "color", "dash"))
        self.mark = Span(location=0, dimension="height", line_color=QUIET, line_dash="dotted", visible=False)
        self.figure.add_layout(self.mark)
        others = self.figure.multi_line(
            xs="xs", ys="ys", source=self.lines, line_color=QUIET, line_width=1.5, line_alpha=0.6, name="others",
            nonselection_line_alpha=0.6, hover_line_color=PALETTE8[2], hover_line_alpha=1.0,
        )  # fmt: skip
        marked = self.figure.multi_line(
            xs="xs", ys="ys", source=self.chosen, line_color="color", line_dash="dash", line_width=3, name="chosen"
        )
        points = self.figure.scatter(
            x="x", y="y", size=9, source=self.source, fill_color="color", line_color=None, fill_alpha=0.0,
            hover_fill_alpha=1.0, name="points",
        )  # fmt: skip
        self.figure.add_tools(TapTool(renderers=[others]))
        self._items = [
            LegendItem(label={"field": "model"}, renderers=[marked]),
            LegendItem(label="the other layers", renderers=[others]),
        ]
        self.legend(self._items)
        self.hover(points)
        self.tooltips_of_lines()

    def tooltips_of_lines(self) -> None:
        """Show a layer's name when the pointer is on its line."""
        other = self.figure.select({"name": "others"})[0]
        tips = [("layer", "@layer"), ("model", "@model")]
        self.figure.add_tools(HoverTool(tooltips=tips, renderers=[other], name="hover_lines", line_policy="nearest"))

    def put(
        self, values: Sequence[tuple[str, Sequence[int], Numbers]], layer: int, *, form: str, place: int = 0
    ) -> None:
        """Draw (name, layers, (layers, n) numbers) of each model; ``place`` is the colour index of the first.

        ``form`` is the number format of tooltips.
        """
        lines: dict[str, list[Any]] = {column: [] for column in self.lines.data}
        marked: dict[str, list[Any]] = {column: [] for column in self.chosen.data}
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        for index, (name, layers, numbers) in enumerate(values):
            along = list(range(1, numbers.shape[1] + 1))
            color = PALETTE8[index + place]
            for index_of_layer, ys in zip(layers, numbers, strict=True):
                line = {"xs": along, "ys": ys.tolist(), "layer": index_of_layer, "model": name}
                if index_of_layer != layer:
                    for column, entry in line.items():
                        lines[column].append(entry)
                    continue
                label = f"layer {index_of_layer}" + (f", {name}" if len(values) > 1 else "")
                for column, entry in (line | {"model": label, "color": color, "dash": _DASHES[index]}).items():
                    marked[column].append(entry)
                shown = [form.format(y) for y in ys.tolist()]
                each = {"x": along, "y": ys.tolist(), "shown": shown, "layer": [index_of_layer] * len(along)}
                each |= {"model": [name] * len(along), "color": [color] * len(along)}
                for column, entries in each.items():
                    rows[column] += entries
        self.lines.selected.indices = []
        self.lines.data, self.chosen.data = lines, marked
        self._items[1].visible = bool(lines["xs"])
        every = np.concatenate([numbers.ravel() for _, _, numbers in values])
        self._set_axes(max(numbers.shape[1] for _, _, numbers in values), every[np.isfinite(every)])
        self.fill(rows)

    def clear(self, sentence: str = "") -> None:
        """Show a sentence in place of lines."""
        for source in (self.lines, self.chosen):
            source.selected.indices = []
            source.data = {column: [] for column in source.data}
        self.mark.visible = False
        self.say(sentence)

    def _set_axes(self, most: int, values: Numbers) -> None:
        end = most + 0.02 * most + 0.2
        self.reach(x=(0, end))
        low, high = (min(0.0, float(values.min())), max(0.0, float(values.max()))) if values.size else (0.0, 1.0)
        room = 0.04 * ((high - low) or 1.0)
        self.reach(y=(low - (room if low < 0 else 0.0), high + room))


class CumulativeVariance(LayerLines):
    """The share of a layer's variance that its first components explain together, one line per layer.

    Two models: the chosen layer's lines in two colours, the tuned one's dashed; or their difference, in percentage
    points. Source: From Language Modeling to Instruction Following (Wu et al. 2024), appendix D, Figure 8.
    """

    NAME = "cumulative_variance"
    TITLE = "Variance explained by the first components"
    AXES = ("components of the MLP's output weights", "explained variance, cumulative")
    EMPTY: ClassVar[str] = "No components yet."

    def __init__(self, results: Sequence[FFNConceptResult] = (), **options: Any) -> None:
        super().__init__()
        self.update(results, **options)

    def update(
        self,
        results: Sequence[FFNConceptResult],
        layer: int = 0,
        *,
        names: Sequence[str] | None = None,
        listed: int = 0,
        difference: bool = False,
        place: int = 0,
    ) -> None:
        """Show these results, one per model.

        Args:
            results: at most two; none shows a sentence instead.
            layer: the one to highlight; it may be missing in a partial result.
            names: the models' names; by default those in the results.
            listed: number of components in the list: a dotted line marks the last of them. 0: no line.
            difference: draw the second model's numbers minus the first one's.
            place: 1 if the only result is the second of two models', which has its own colour.

            Raises ValueError for more than two results, or a difference of any number but two.
        """
        shown = _names(results, names)
        if difference and len(results) != 2:
            raise ValueError(f"a difference needs two results, got {len(results)}")
        if not results:
            return self.clear()
        curves = [np.asarray(result.cumulative, dtype=np.float64) for result in results]
        values = [
            (name, tuple(result.layers), curve) for name, result, curve in zip(shown, results, curves, strict=True)
        ]
        if difference:
            if values[0][1] != values[1][1] or curves[0].shape != curves[1].shape:
                partial = any(result.partial for result in results)
                why = "are not both complete yet" if partial else "have different layers or numbers of components"
                return self.clear(f"No difference: the two models {why}.")
            values = [("B − A", values[0][1], 100 * (curves[1] - curves[0]))]
        self.put(values, layer, form="{:+.2f} points" if difference else "{:.1%}", place=place)
        self.figure.yaxis[0].formatter = NumeralTickFormatter(format="0.0" if difference else "0%")
        self.figure.yaxis[0].axis_label = "difference B − A (percentage points)" if difference else self.AXES[1]
        self.mark.location, self.mark.visible = listed, 0 < listed <= max(curve.shape[1] for curve in curves)
        self.subtitle(_variance_words(results, shown, layer, listed))


def _variance_words(results: Sequence[FFNConceptResult], names: Sequence[str], layer: int, listed: int) -> str:
    """The label of the dotted line."""
    shares = []
    for result, name in zip(results, names, strict=True):
        if layer in result.layers and 0 < listed <= result.rank:
            share = float(result.cumulative[result.row(layer), listed - 1])
            shares.append((f"{name} " if len(results) > 1 else "") + f"{100 * share:.0f}%")
    return f"layer {layer}, first {listed} components: {', '.join(shares)}" if shares else ""


class PrincipalAngles(LayerLines):
    """The angles between the subspaces of two models' first components, smallest first, one line per layer.

    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 5.2 (tuning rotates the basis of
    the representation space).
    """

    NAME = "principal_angles"
    TITLE = "Angles between the two models' main directions"
    AXES = ("angle, smallest first", "degrees")
    EMPTY: ClassVar[str] = "No comparison yet: it needs both models' components."

    def __init__(self, result: ConceptComparison | None = None, **options: Any) -> None:
        super().__init__()
        self.update(result, **options)

    def update(self, result: ConceptComparison | None, layer: int = 0) -> None:
        """Show a comparison; None shows a sentence instead."""
        if result is None:
            return self.clear()
        degrees = np.degrees(np.asarray(result.angles, dtype=np.float64))
        self.put([("B against A", tuple(result.layers), degrees)], layer, form="{:.1f}")
        self.reach(y=(0, 92))
        if layer in result.layers:
            row = degrees[list(result.layers).index(layer)]
            self.subtitle(f"layer {layer}: median {np.median(row):.0f}°, largest {row[-1]:.0f}°")


def _names(results: Sequence[Any], names: Sequence[str] | None) -> list[str]:
    """The models' names; ValueError for results that do not fit into one chart."""
    if len(results) > 2:
        raise ValueError(f"a chart shows one or two models, got {len(results)} results")
    shown = list(names) if names is not None else [model_label(result, i) for i, result in enumerate(results)]
    if len(shown) != len(results):
        raise ValueError(f"names must have one entry per result, got {len(shown)} for {len(results)}")
    return shown
