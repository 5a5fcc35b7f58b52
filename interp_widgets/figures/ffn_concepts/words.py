"""The words along one component."""

from __future__ import annotations

from typing import Any, ClassVar

from bokeh.models import Range1d, Span

from interp_widgets.analysis.ffn_concepts import FFNConceptResult
from interp_widgets.figures.chart import QUIET, QUIET_TEXT, Chart, plain_label, visible_token
from interp_widgets.figures.theme import PALETTE8


class ComponentWords(Chart):
    """The words along one component: those of the positive side to the right, of the negative to the left."""

    EMPTY: ClassVar[str] = "Pick a component to see its words."

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
            text_font_size="12px", source=self.source, name="words", text_color=QUIET_TEXT,
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
            for index, (word, value) in enumerate(result.scores(layer, component, sign=sign)):  # type: ignore[arg-type]
                entries = (index + 1, value, visible_token(word, longest=20), align, offset, color)
                for column, entry in zip(rows, entries, strict=True):
                    rows[column].append(entry)
        most = max((abs(value) for value in rows["right"]), default=1.0)
        self.reach(x=(-1.7 * most, 1.7 * most))
        count = max(rows["row"], default=1)
        self.reach(y=(count + 0.6, 0.4))
        self.figure.title.text = plain_label(f"Words along component {component} of layer {layer}")
        share = float(result.explained_variance[result.row(layer), component])
        whose = f"{name} · " if name else ""
        self.fill(rows, subtitle=f"{whose}{100 * share:.1f}% of the layer's variance")
