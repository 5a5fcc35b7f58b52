"""Two models layer by layer: overlap of their components, and shares of their annotations."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from bokeh.models import LegendItem, Range1d, Span

from interp_widgets.analysis.ffn_concepts import AnnotationComparison, ConceptComparison
from interp_widgets.analysis.ffn_concepts.annotation_comparison import Trait
from interp_widgets.figures.chart import QUIET, Chart, empty_source
from interp_widgets.figures.theme import PALETTE8


class LayerOverlap(Chart):
    """Overlap of two models' main directions, by layer, against that of two random subspaces."""

    EMPTY: ClassVar[str] = "No comparison yet: the components of both models are needed."
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
        self.reach(x=(low, high))
        self.name_ticks(self.figure.xaxis[0], [str(index) for index in range(layers[-1] + 1)], most=14)
        self.mark.update(location=layer, visible=layer in layers)
        rank = np.asarray(result.angles).shape[1]
        self.fill(rows, subtitle=f"first {rank} components of each layer")


class NoteShares(Chart):
    """The share of each linguistic level, or task scenario, among the annotated components of every layer, two models.

    A colour for each category; base solid, tuned dashed; a layer without such a component leaves a gap. Source: From
    Language Modeling to Instruction Following (Wu et al. 2024), section 5.2, Figure 3.
    """

    EMPTY: ClassVar[str] = "Nothing to compare yet: annotate the components of both models."
    TITLES: ClassVar[dict[str, str]] = {"level": "Linguistic levels by layer", "scenario": "Task scenarios by layer"}
    DASHES: ClassVar[dict[str, str]] = {"base": "solid", "tuned": "dashed"}

    def __init__(self, result: AnnotationComparison | None = None, **options: Any) -> None:
        tips = [("", "@category, @model"), ("layer", "@layer"), ("share", "@value{0.0}%"), ("of", "@of components")]
        self.start(
            "note_shares", self.TITLES["level"], ("layer", "share (%)"),
            columns=("layer", "value", "category", "model", "of", "color"), tooltips=tips, height=320,
            x_range=Range1d(-0.3, 1.3), y_range=Range1d(-3, 103),
        )  # fmt: skip
        self.lines = empty_source("note_share_lines", ("xs", "ys", "category", "color", "dash"))
        self.figure.multi_line(
            xs="xs", ys="ys", source=self.lines, line_color="color", line_dash="dash", line_width=2.5, name="lines"
        )
        points = self.figure.scatter(
            x="layer", y="value", size=7, source=self.source, fill_color="color", line_color=None, name="points"
        )
        nowhere = [float("nan")]  # a legend draws no glyph without a row
        models = [
            LegendItem(label=name, renderers=[self.figure.line(x=nowhere, y=nowhere, line_color=QUIET, line_dash=dash)])
            for name, dash in zip(("A", "B"), self.DASHES.values(), strict=True)
        ]
        self.legend([LegendItem(label={"field": "category"}, renderers=[points]), *models], columns=4)
        self.hover(points)
        self.update(result, **options)

    def update(self, result: AnnotationComparison | None, *, trait: Trait = "level") -> None:
        """Show the levels or the scenarios of a comparison; None shows a sentence instead."""
        self.figure.title.text = self.TITLES[trait]
        self.lines.data = {column: [] for column in self.lines.data}
        if result is None:
            return self.say()
        table = result.by_layer(trait)
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        lines: dict[str, list[Any]] = {column: [] for column in self.lines.data}
        for color, (category, group) in zip(PALETTE8, table.groupby("category", sort=False), strict=False):
            for letter, model in zip("AB", self.DASHES, strict=True):
                layers, values = group["layer"].tolist(), group[model].tolist()
                entries = {"xs": layers, "ys": values, "category": category, "color": color, "dash": self.DASHES[model]}
                for column, entry in entries.items():
                    lines[column].append(entry)
                each = {"layer": layers, "value": values, "of": group[f"{model}_concepts"].tolist()}
                each |= {"category": [category] * len(layers), "model": [letter] * len(layers)}
                for column, some in (each | {"color": [color] * len(layers)}).items():
                    rows[column] += some
        self.lines.data = lines
        low, high = min(result.layers) - 0.3, max(result.layers) + 0.3
        self.reach(x=(low, high))
        self.name_ticks(self.figure.xaxis[0], [str(index) for index in range(max(result.layers) + 1)], most=14)
        counts = " and ".join(f"{int(notes[0].described.sum())} of {name}" for notes, name in
                            ((result.base, "A"), (result.tuned, "B")))  # fmt: skip
        self.fill(rows, subtitle=f"shares of the described components, {counts};\n“cannot tell” of all annotated")
