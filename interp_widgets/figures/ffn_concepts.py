"""Charts of MLP concepts: explained variance, words of a component, what tuning turned, neurons on a prompt.

Each chart is made once; `update` shows other results in it. Nothing here runs a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from bokeh.models import HoverTool, LegendItem, NumeralTickFormatter, Range1d, Span, TapTool
from numpy.typing import NDArray

from interp_widgets.analysis.ffn_concepts import ConceptComparison, FFNConceptResult, NeuronEffectResult
from interp_widgets.figures.chart import QUIET, Chart, empty_source, model_label, plain_label, visible_token
from interp_widgets.figures.theme import PALETTE8

_DASHES = ("solid", "dashed")
Numbers = NDArray[np.float64]


class LayerLines(Chart):
    """A line for every layer, the chosen layer's marked; derived classes say of what.

    A tap on a line puts its row of `lines` into ``lines.selected.indices``; the column ``layer`` says which layer.
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
        """Name a layer when the pointer rests on its line."""
        other = self.figure.select({"name": "others"})[0]
        tips = [("layer", "@layer"), ("model", "@model")]
        self.figure.add_tools(HoverTool(tooltips=tips, renderers=[other], name="hover_lines", line_policy="nearest"))

    def put(
        self, values: Sequence[tuple[str, Sequence[int], Numbers]], layer: int, *, form: str, place: int = 0
    ) -> None:
        """Draw (name, layers, (layers, n) numbers) of each model; ``place`` says the colour of the first.

        ``form`` is how a tooltip writes a number.
        """
        lines: dict[str, list[Any]] = {column: [] for column in self.lines.data}
        marked: dict[str, list[Any]] = {column: [] for column in self.chosen.data}
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        for index, (name, layers, numbers) in enumerate(values):
            along = list(range(1, numbers.shape[1] + 1))
            color = PALETTE8[index + place]
            for own, ys in zip(layers, numbers, strict=True):
                whole = {"xs": along, "ys": ys.tolist(), "layer": own, "model": name}
                if own != layer:
                    for column, entry in whole.items():
                        lines[column].append(entry)
                    continue
                label = f"layer {own}" + (f", {name}" if len(values) > 1 else "")
                for column, entry in (whole | {"model": label, "color": color, "dash": _DASHES[index]}).items():
                    marked[column].append(entry)
                shown = [form.format(y) for y in ys.tolist()]
                each = {"x": along, "y": ys.tolist(), "shown": shown, "layer": [own] * len(along)}
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
        self.figure.x_range.update(start=0, end=end, reset_start=0, reset_end=end)
        low, high = (min(0.0, float(values.min())), max(0.0, float(values.max()))) if values.size else (0.0, 1.0)
        room = 0.04 * ((high - low) or 1.0)
        ends = {"start": low - (room if low < 0 else 0.0), "end": high + room}
        self.figure.y_range.update(**ends, reset_start=ends["start"], reset_end=ends["end"])


class CumulativeVariance(LayerLines):
    """The share of a layer's variance that its first components explain together, one line per layer.

    Two models: the chosen layer's lines in two colours, the tuned one's dashed; or their difference, in percentage
    points. Source: From Language Modeling to Instruction Following (Wu et al. 2024), appendix D, Figure 8.
    """

    NAME = "cumulative_variance"
    TITLE = "Variance explained by the first components"
    AXES = ("components of the MLP's output weights", "explained variance, cumulative")
    EMPTY: ClassVar[str] = "No components yet: press Run."

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
            layer: the one that is marked; it may be missing in a partial result.
            names: of the models; by default the results' own.
            listed: components that are looked at: a dotted line stands behind the last of them. 0: no line.
            difference: draw the second model's numbers less the first one's.
            place: 1 if the only result is of the second of two models, which has a colour of its own.

        Raises ValueError for more than two results, or a difference of other than two.
        """
        shown = _names(results, names)
        if difference and len(results) != 2:
            raise ValueError(f"a difference is one of two results, got {len(results)}")
        if not results:
            return self.clear()
        curves = [np.asarray(result.cumulative, dtype=np.float64) for result in results]
        values = [
            (name, tuple(result.layers), curve) for name, result, curve in zip(shown, results, curves, strict=True)
        ]
        if difference:
            if values[0][1] != values[1][1] or curves[0].shape != curves[1].shape:
                return self.clear("The second model is not there yet.")
            values = [("B − A", values[0][1], 100 * (curves[1] - curves[0]))]
        self.put(values, layer, form="{:+.2f} points" if difference else "{:.1%}", place=place)
        self.figure.yaxis[0].formatter = NumeralTickFormatter(format="0.0" if difference else "0 %")
        self.figure.yaxis[0].axis_label = "difference B − A (percentage points)" if difference else self.AXES[1]
        self.mark.location, self.mark.visible = listed, 0 < listed <= max(curve.shape[1] for curve in curves)
        self.subtitle(_variance_words(results, shown, layer, listed))


def _variance_words(results: Sequence[FFNConceptResult], names: Sequence[str], layer: int, listed: int) -> str:
    """What the dotted line says."""
    said = []
    for result, name in zip(results, names, strict=True):
        if layer in result.layers and 0 < listed <= result.rank:
            share = float(result.cumulative[result.row(layer), listed - 1])
            said.append((f"{name} " if len(results) > 1 else "") + f"{100 * share:.0f} %")
    return f"layer {layer}, first {listed} components: {', '.join(said)}" if said else ""


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
        self.figure.y_range.update(start=0, end=92, reset_start=0, reset_end=92)
        if layer in result.layers:
            row = degrees[list(result.layers).index(layer)]
            self.subtitle(f"layer {layer}: median {np.median(row):.0f}°, largest {row[-1]:.0f}°")


class LayerOverlap(Chart):
    """How much of one model's main directions lies in the other's, by layer, beside what two random subspaces give."""

    EMPTY: ClassVar[str] = "No comparison yet: it needs both models' components."
    NUMBERS: ClassVar[dict[str, str]] = {
        "overlap": "subspaces' overlap",
        "match_cosine": "cosine of matched components",
        "shared_words": "words they share",
    }

    def __init__(self, result: ConceptComparison | None = None) -> None:
        tips = [("", "@what"), ("layer", "@layer"), ("share", "@value{0.00}")]
        self.start(
            "concept_overlap", "What stayed, by layer", ("layer", "share (0 to 1)"),
            columns=("layer", "value", "what", "color"), tooltips=tips, height=320,
            x_range=Range1d(-0.3, 1.3), y_range=Range1d(0, 1.03),
        )  # fmt: skip
        self.lines = empty_source("concept_overlap_lines", ("xs", "ys", "what", "color"))
        drawn = self.figure.multi_line(
            xs="xs", ys="ys", source=self.lines, line_color="color", line_width=2.5, name="lines"
        )
        points = self.figure.scatter(
            x="layer", y="value", size=7, source=self.source, fill_color="color", line_color=None, name="points"
        )
        self.chance = self.figure.line(
            x=[float("nan")], y=[float("nan")], line_color=QUIET, line_dash="dashed", line_width=2, name="chance"
        )
        self.mark = Span(location=0, dimension="height", line_color=QUIET, line_dash="dotted", visible=False)
        self.figure.add_layout(self.mark)
        items = [
            LegendItem(label={"field": "what"}, renderers=[drawn]),
            LegendItem(label="overlap of random subspaces", renderers=[self.chance]),
        ]
        self.legend(items, columns=2)
        self.hover(points)
        self.update(result)

    def update(self, result: ConceptComparison | None, layer: int = 0) -> None:
        """Show a comparison; None shows a sentence instead."""
        self.mark.visible = False
        if result is None:
            self.lines.data = {column: [] for column in self.lines.data}
            self.chance.data_source.data = {"x": [], "y": []}
            return self.say()
        layers, table = list(result.layers), result.layer_table()
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        lines: dict[str, list[Any]] = {column: [] for column in self.lines.data}
        for color, (name, label) in zip(PALETTE8, self.NUMBERS.items(), strict=False):
            values = [float(value) for value in table[name]]
            for column, entry in {"xs": layers, "ys": values, "what": label, "color": color}.items():
                lines[column].append(entry)
            rows["layer"] += layers
            rows["value"] += values
            rows["what"] += [label] * len(layers)
            rows["color"] += [color] * len(layers)
        self.lines.data = lines
        low, high = layers[0] - 0.3, layers[-1] + 0.3
        self.chance.data_source.data = {"x": [low, high], "y": [result.chance] * 2}
        self.figure.x_range.update(start=low, end=high, reset_start=low, reset_end=high)
        self.name_ticks(self.figure.xaxis[0], [str(one) for one in range(layers[-1] + 1)], most=14)
        self.mark.update(location=layer, visible=layer in layers)
        rank = np.asarray(result.angles).shape[1]
        self.fill(rows, subtitle=f"first {rank} components of each layer")


class ComponentWords(Chart):
    """The words along one component: those of the positive side to the right, of the negative to the left."""

    EMPTY: ClassVar[str] = "Pick a component: its words are drawn here."

    def __init__(self, result: FFNConceptResult | None = None, **options: Any) -> None:
        self.start(
            "component_words", "Words along a component", ("projection (cosine)", "place in the list"),
            columns=("row", "right", "word", "align", "offset", "color"),
            tooltips=[("", "@word"), ("cosine", "@right{+0.00}")], height=360,
            x_range=Range1d(-1, 1), y_range=Range1d(0, 1),
        )  # fmt: skip
        bars = self.figure.hbar(
            y="row", right="right", left=0, height=0.72, source=self.source, fill_color="color", line_color=None,
            name="bars",
        )  # fmt: skip
        self.figure.text(
            x="right", y="row", text="word", text_align="align", x_offset="offset", text_baseline="middle",
            text_font_size="12px", source=self.source, name="words", text_color="#7d8590",
        )  # fmt: skip
        self.figure.add_layout(Span(location=0, dimension="height", line_color=QUIET, line_width=1))
        self.hover(bars)
        self.update(result, **options)

    def update(self, result: FFNConceptResult | None, layer: int = 0, component: int = 0, *, name: str = "") -> None:
        """Show one component; None, or a layer that a partial result has not reached, shows a sentence instead."""
        if result is None or layer not in result.layers or not 0 <= component < result.rank:
            return self.say()
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        for sign, color, align, offset in (("+", PALETTE8[1], "left", 5), ("-", PALETTE8[0], "right", -5)):
            for place, (word, value) in enumerate(result.scores(layer, component, sign=sign)):  # type: ignore[arg-type]
                entries = (place + 1, value, visible_token(word, longest=20), align, offset, color)
                for column, entry in zip(rows, entries, strict=True):
                    rows[column].append(entry)
        most = max((abs(value) for value in rows["right"]), default=1.0)
        self.figure.x_range.update(start=-1.7 * most, end=1.7 * most, reset_start=-1.7 * most, reset_end=1.7 * most)
        count = max(rows["row"], default=1)
        self.figure.y_range.update(start=count + 0.6, end=0.4, reset_start=count + 0.6, reset_end=0.4)
        self.figure.title.text = plain_label(
            f"Words along component {component} of layer {layer}" + (f", {name}" if name else "")
        )
        share = float(result.explained_variance[result.row(layer), component])
        self.fill(rows, subtitle=f"{100 * share:.1f} % of the layer's variance")


class NeuronScatter(Chart):
    """What every neuron of a layer does on a prompt: its activation, and what it adds to the target's logit.

    A tap selects a row; the column ``neuron`` says which neuron. Of two models the effects are set against each other.
    Source: Explainability in Large Language Models (Luo 2024), section 2.2.2 and appendix D.2.
    """

    EMPTY: ClassVar[str] = "No neurons yet: press Run."

    def __init__(self, results: Sequence[NeuronEffectResult] = (), **options: Any) -> None:
        tips = [("neuron", "@neuron"), ("activation", "@activation"), ("effect on the logit", "@effect")]
        self.start(
            "neuron_effects", "Neurons", ("activation", "effect on the logit"),
            columns=("x", "y", "neuron", "activation", "effect"), tooltips=tips, height=360,
            x_range=Range1d(0, 1), y_range=Range1d(0, 1),
        )  # fmt: skip
        for dimension in ("width", "height"):
            self.figure.add_layout(Span(location=0, dimension=dimension, line_color=QUIET, line_width=1))
        dots = self.figure.scatter(
            x="x", y="y", size=7, source=self.source, fill_color=PALETTE8[0], line_color=None, fill_alpha=0.55,
            nonselection_fill_alpha=0.55, selection_fill_alpha=0.55, name="neurons",
        )  # fmt: skip
        self.picked = empty_source("neuron_picked", ("x", "y", "label"))
        self.figure.scatter(
            x="x", y="y", size=13, source=self.picked, fill_color=None, line_color=PALETTE8[1], line_width=2.5,
            name="picked",
        )  # fmt: skip
        self.figure.text(
            x="x", y="y", text="label", source=self.picked, x_offset=9, y_offset=-9, text_font_size="12px",
            text_color=PALETTE8[1], name="picked_name",
        )  # fmt: skip
        self.figure.add_tools(TapTool(renderers=[dots]))
        self.hover(dots)
        self.update(results, **options)

    def update(self, results: Sequence[NeuronEffectResult], *, neuron: int = -1, letter: str = "") -> None:
        """Show one result, or two set against each other; none shows a sentence instead.

        ``neuron`` is marked, ``letter`` names the model where there are two. Raises ValueError for more than two
        results, or two of different layers or neurons.
        """
        if len(results) > 2:
            raise ValueError(f"a chart shows one or two models, got {len(results)} results")
        self.picked.data = {column: [] for column in self.picked.data}
        if not results:
            return self.say()
        first = results[0]
        if any((one.layer, tuple(one.neurons)) != (first.layer, tuple(first.neurons)) for one in results):
            raise ValueError("a chart shows the same neurons of two models, the two results have different ones")
        effects = [np.asarray(one.effect, dtype=np.float64) for one in results]
        active = [np.asarray(one.activation[one.position], dtype=np.float64) for one in results]
        two = len(results) == 2
        xs, ys = (effects[0], effects[1]) if two else (active[0], effects[0])
        rows = {"x": xs.tolist(), "y": ys.tolist(), "neuron": list(first.neurons)}
        for name, values in (("activation", active), ("effect", effects)):
            rows[name] = [" → ".join(f"{value:+.3g}" for value in each) for each in zip(*values, strict=True)]
        aim = f"“{visible_token(first.target_token, longest=20)}”"
        if two and results[1].target != first.target:
            aim = "each model's own target"
        start = f"{letter}: " if letter else ""
        self.figure.title.text = plain_label(f"{start}Neurons of layer {first.layer} and the logit of {aim}")
        labels = ("effect in A (logits)", "effect in B (logits)") if two else ("activation", "effect (logits)")
        self.figure.xaxis[0].axis_label, self.figure.yaxis[0].axis_label = labels
        self._fit(xs, ys)
        where = f"at “{visible_token(first.tokens[first.position])}” (position {first.position})"
        self.fill(rows, subtitle=f"{where}; tap a dot")
        if neuron in first.neurons:
            at = list(first.neurons).index(neuron)
            self.picked.data = {"x": [rows["x"][at]], "y": [rows["y"][at]], "label": [str(neuron)]}

    def _fit(self, xs: Numbers, ys: Numbers) -> None:
        for axis, values in ((self.figure.x_range, xs), (self.figure.y_range, ys)):
            low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
            room = 0.12 * ((high - low) or 1.0)
            axis.update(start=low - room, end=high + room, reset_start=low - room, reset_end=high + room)


def _names(results: Sequence[Any], names: Sequence[str] | None) -> list[str]:
    """The models' names; ValueError for results that do not go into one chart."""
    if len(results) > 2:
        raise ValueError(f"a chart shows one or two models, got {len(results)} results")
    shown = list(names) if names is not None else [model_label(result, i) for i, result in enumerate(results)]
    if len(shown) != len(results):
        raise ValueError(f"names must have one entry per result, got {len(shown)} for {len(results)}")
    return shown
