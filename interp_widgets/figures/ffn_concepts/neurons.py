"""The neurons of a layer on a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from bokeh.models import Range1d, Span, TapTool
from numpy.typing import NDArray

from interp_widgets.analysis.ffn_concepts import NeuronEffectResult
from interp_widgets.figures.chart import QUIET, Chart, empty_source, plain_label, visible_token
from interp_widgets.figures.theme import PALETTE8

Numbers = NDArray[np.float64]


class NeuronScatter(Chart):
    """Every neuron of a layer on a prompt: its activation, and what it adds to the target's logit.

    A tap selects a row; the column ``neuron`` is its neuron. Two models' effects are plotted against each other.
    Source: Explainability in Large Language Models (Luo 2024), section 2.2.2 and appendix D.2.
    """

    EMPTY: ClassVar[str] = "No neurons yet."

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
        """Show one result, or two against each other; none shows a sentence instead.

        ``neuron`` is highlighted, ``letter`` names the model if there are two. Raises ValueError for more than two
        results, or two of different layers or neurons.
        """
        if len(results) > 2:
            raise ValueError(f"a chart shows one or two models, got {len(results)} results")
        self.picked.data = {column: [] for column in self.picked.data}
        if not results:
            return self.say()
        first = results[0]
        if any((each.layer, tuple(each.neurons)) != (first.layer, tuple(first.neurons)) for each in results):
            raise ValueError("a chart shows the same neurons of two models, but the two results have different neurons")
        effects = [np.asarray(each.effect, dtype=np.float64) for each in results]
        active = [np.asarray(each.activation[each.position], dtype=np.float64) for each in results]
        two = len(results) == 2
        xs, ys = (effects[0], effects[1]) if two else (active[0], effects[0])
        rows = {"x": xs.tolist(), "y": ys.tolist(), "neuron": list(first.neurons)}
        for name, values in (("activation", active), ("effect", effects)):
            rows[name] = [" → ".join(f"{value:+.3g}" for value in each) for each in zip(*values, strict=True)]
        target = f"“{visible_token(first.target_token, longest=20)}”"
        if two and results[1].target != first.target:
            target = "each model's own target"
        start = f"{letter}: " if letter else ""
        self.figure.title.text = plain_label(f"{start}Neurons of layer {first.layer} and the logit of {target}")
        labels = ("effect in A (logits)", "effect in B (logits)") if two else ("activation", "effect (logits)")
        self.figure.xaxis[0].axis_label, self.figure.yaxis[0].axis_label = labels
        self._fit(xs, ys)
        where = f"at “{visible_token(first.tokens[first.position])}” (position {first.position})"
        self.fill(rows, subtitle=where)
        if neuron in first.neurons:
            at = list(first.neurons).index(neuron)
            self.picked.data = {"x": [rows["x"][at]], "y": [rows["y"][at]], "label": [str(neuron)]}

    def _fit(self, xs: Numbers, ys: Numbers) -> None:
        for axis, values in ((self.figure.x_range, xs), (self.figure.y_range, ys)):
            low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
            room = 0.12 * ((high - low) or 1.0)
            axis.update(start=low - room, end=high + room, reset_start=low - room, reset_end=high + room)
