"""Charts of prompt saliency: densities, faithfulness, groups of scores, position in the sentence.

Each class makes its figure once; `update` shows another result in it. Nothing here runs a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from bokeh.models import ColumnDataSource, FactorRange, LegendItem, NumeralTickFormatter, Range1d, Span, TapTool
from numpy.typing import ArrayLike, NDArray

from interp_widgets.analysis.saliency import GroupComparison, SaliencyDatasetResult, SaliencyResult
from interp_widgets.figures.chart import Chart, visible_token
from interp_widgets.figures.theme import MARK, PALETTE8

CONTEXT, SPECIAL, QUIET = PALETTE8[0], PALETTE8[6], "#8a8f98"
"""Colours of the prompt outside the marked instruction, of special tokens, and of lines to compare with."""


class DensityBars(Chart):
    """One bar per prompt token: how many response tokens it matters to, coloured by the instruction mark.

    ``along="x"`` sets the prompt along the width, for a chart of its own; ``along="y"`` sets it downwards in a narrow
    chart without names, to stand beside a map's prompt axis. A tap selects the token's index in `source.selected`.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), section 4.2.
    """

    EMPTY: ClassVar[str] = "No densities yet: run the saliency first."

    def __init__(self, result: SaliencyResult | None = None, *, along: Literal["x", "y"] = "x", **options: Any) -> None:
        if along not in ("x", "y"):
            raise ValueError(f"along must be 'x' or 'y', got {along!r}")
        self.along = along
        columns = ("position", "token", "density", "mark", "color")
        tips = [("token", "@token"), ("position", "@position"), ("density", "@density{0.00}"), ("part", "@mark")]
        extra: dict[str, Any]
        if along == "x":
            axes = ("prompt token", "importance density")
            extra = {"height": 280, "y_range": Range1d(0, 1), "x_range": Range1d(-0.5, 0.5)}
        else:
            axes = ("density", "prompt token")
            extra = {"height": 300, "width": 150, "sizing_mode": "stretch_height"}
            extra |= {"x_range": Range1d(0, 1), "y_range": Range1d(0.5, -0.5)}
        self.start(f"density_{along}", "Importance density", axes, columns=columns, tooltips=tips, **extra)
        look = {"source": self.source, "fill_color": "color", "line_color": None, "name": "bars"}
        look |= {"nonselection_fill_alpha": 0.45, "selection_fill_alpha": 1.0, "hover_fill_alpha": 0.75}
        if along == "x":
            bars = self.figure.vbar(x="position", top="density", width=0.82, **look)
            self.legend([LegendItem(label={"field": "mark"}, renderers=[bars])])
        else:
            bars = self.figure.hbar(y="position", right="density", height=0.82, **look)
            self.hidden = [self.figure.yaxis[0]]
            self.figure.title.visible = False
        self.figure.add_tools(TapTool(renderers=[bars]))
        self.hover(bars)
        self.update(result, **options)

    def update(
        self,
        result: SaliencyResult | None,
        *,
        mask: ArrayLike | None = None,
        reference: SaliencyResult | None = None,
        levels: int = 10,
        threshold: float = 7,
        p: float = 4,
    ) -> None:
        """Show a result's densities, with `mask` (prompt,) true at instruction tokens.

        With `reference`, a result on the same prompt, the difference to its densities is shown. Raises ValueError when
        the mask or the reference does not fit the prompt.
        """
        if result is None or not len(result.prompt_tokens):
            self.say()
            return
        options: dict[str, Any] = {"levels": levels, "threshold": threshold, "p": p}
        density = result.density(**options)
        marked = np.zeros(len(density), dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if marked.shape != density.shape:
            raise ValueError(f"mask must have one entry per prompt token ({len(density)}), got {marked.shape}")
        if reference is not None:
            if tuple(reference.prompt_ids) != tuple(result.prompt_ids):
                raise ValueError("a difference needs two results on the same prompt")
            density = density - reference.density(**options)
        special = np.asarray(result.prompt_special, dtype=bool)
        mark = np.where(marked, "instruction", np.where(special, "special", "context"))
        color = np.where(marked, MARK, np.where(special, SPECIAL, CONTEXT))
        tokens = [visible_token(token) for token in result.prompt_tokens]
        self._set_axes(density, tokens, signed=reference is not None)
        rows = {"position": np.arange(len(density)), "token": tokens, "density": density}
        note = "stopped midway: not all of the response is counted" if result.partial else ""
        self.fill(rows | {"mark": mark.tolist(), "color": color.tolist()}, subtitle=note)
        if not density.any() and reference is None:
            self._message.text = f"No score reaches above the threshold of {threshold:g}: lower it."
            self._message.visible = True

    def _set_axes(self, density: NDArray[np.float64], tokens: Sequence[str], *, signed: bool) -> None:
        figure, name = self.figure, "density difference" if signed else "importance density"
        top, low = max(0.0, density.max()), min(0.0, density.min())
        room = 0.06 * ((top - low) or 1.0)
        span = (low - room if low < 0 else 0.0, (top or 1.0) + room if top or not low else 0.0)
        prompt, value = (figure.x_range, figure.y_range) if self.along == "x" else (figure.y_range, figure.x_range)
        value.update(start=span[0], end=span[1], reset_start=span[0], reset_end=span[1])
        ends = (-0.5, len(tokens) - 0.5) if self.along == "x" else (len(tokens) - 0.5, -0.5)
        prompt.update(start=ends[0], end=ends[1], reset_start=ends[0], reset_end=ends[1])
        figure.title.text = name[0].upper() + name[1:]
        if self.along == "x":
            figure.yaxis[0].axis_label = name
            self.name_ticks(figure.xaxis[0], tokens)
            figure.xaxis[0].major_label_orientation = 0.9 if len(tokens) > 12 else "horizontal"
        else:
            figure.xaxis[0].axis_label = "difference" if signed else "density"


class GroupStrips(Chart):
    """Scores of two groups side by side: every case as a point, the quartiles as a box, the mean with its interval.

    Shows one kind of comparison of a data set: ``followed`` (followed against unfollowed responses, per model) or
    ``models`` (second model against first), with the p-values under the title. A tapped point selects its row of the
    source, whose column `row` is the row of the data set's result.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), Tables 1 and 2.
    """

    EMPTY: ClassVar[str] = "No comparison yet: score a data set with labels or with two models."
    TITLES: ClassVar[dict[str, str]] = {
        "followed": "Instruction score of followed and unfollowed responses",
        "models": "Instruction score of the two models",
    }

    def __init__(
        self, result: SaliencyDatasetResult | None = None, *, kind: Literal["followed", "models"] = "followed"
    ) -> None:
        columns = ("group", "x", "score", "name", "row", "color")
        tips = [("case", "@name"), ("group", "@group"), ("instruction score", "@score{0.000}")]
        self.start(
            "group_strips", self.TITLES["followed"], ("", "instruction score"), columns=columns, tooltips=tips,
            height=340, x_range=FactorRange(factors=[], group_padding=0.6, factor_padding=0.1),
        )  # fmt: skip
        self.figure.xaxis.group_text_font_size = "12px"
        self.hidden = [self.figure.xgrid[0]]
        bounds = ("x", "mean", "low", "high", "quarter", "three", "color")
        self.summary = _empty_source("group_summary", bounds)
        wide: dict[str, Any] = {"x": "x", "width": 0.66, "source": self.summary, "fill_color": "color"}
        boxes = self.figure.vbar(
            bottom="quarter", top="three", fill_alpha=0.1, line_color="color", line_alpha=0.4, name="boxes", **wide
        )
        points = self.figure.scatter(
            x="x", y="score", size=6, source=self.source, fill_color="color", fill_alpha=0.65, line_color=None,
            nonselection_fill_alpha=0.2, selection_fill_alpha=1.0, name="points",
        )  # fmt: skip
        band = self.figure.vbar(bottom="low", top="high", fill_alpha=0.4, line_color=None, name="intervals", **wide)
        line = self.figure.vbar(bottom="mean", top="mean", line_color="color", line_width=3, name="means", **wide)
        items = {"one response": [points], "middle half": [boxes], "mean and its 95 % interval": [band, line]}
        self.legend([LegendItem(label=label, renderers=renderers) for label, renderers in items.items()])
        self.figure.add_tools(TapTool(renderers=[points]))
        self.hover(points)
        self.update(result, kind=kind)

    def update(self, result: SaliencyDatasetResult | None, *, kind: Literal["followed", "models"] = "followed") -> None:
        """Show a data set's comparisons of that kind; the reason in words where there is none."""
        if kind not in self.TITLES:
            raise ValueError(f"kind must be followed or models, got {kind!r}")
        self.figure.title.text = self.TITLES[kind]
        tests = [test for test in result.tests if test.kind == kind] if result is not None else []
        if result is None or not tests:
            self.summary.data = {column: [] for column in self.summary.data}
            self.figure.x_range.factors = [""]
            notes = result.notes if result is not None else ()
            self.say(next((note for note in notes if note.startswith("followed") == (kind == "followed")), ""))
            return
        factors: list[tuple[str, str]] = []
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        summary: dict[str, list[Any]] = {column: [] for column in self.summary.data}
        for test in tests:
            where = " · ".join(filter(None, (test.model, "all cases" if test.group == "all" else test.group)))
            for side, members in enumerate(result.rows_of(test)):
                factor = (where, f"{test.names[side]} (n {len(members)})")
                factors.append(factor)
                self._add_group(test, side, members, result, factor, rows, summary)
        self.figure.x_range.factors = factors
        self.summary.data = summary
        self.fill(rows, subtitle="\n".join(map(_verdict, tests[:4])))

    @staticmethod
    def _add_group(
        test: GroupComparison,
        side: int,
        members: Sequence[int],
        result: SaliencyDatasetResult,
        factor: tuple[str, str],
        rows: dict[str, list[Any]],
        summary: dict[str, list[Any]],
    ) -> None:
        scores, color = np.asarray(test.values[side]), PALETTE8[side]
        rows["x"] += [(*factor, float(offset)) for offset in _spread(scores)]
        rows["score"] += scores.tolist()
        rows["group"] += [factor[1]] * len(scores)
        rows["name"] += [result.names[i] for i in members]
        rows["row"] += list(members)
        rows["color"] += [color] * len(scores)
        quarters = np.quantile(scores, [0.25, 0.75])
        values = (factor, test.mean[side], *test.interval[side], *quarters, color)
        for column, value in zip(summary, values, strict=True):
            summary[column].append(value)


class PositionProfile(Chart):
    """Share of a sentence's density in each of its quarters, one line per model, with 95 % intervals.

    An even density gives 25 % everywhere; a U shape means that middles of sentences count less.
    Source: From Language Modeling to Instruction Following (Wu et al. 2024), appendix B.3, Fig. 6.
    """

    EMPTY: ClassVar[str] = "No position profile yet: score prompts that hold sentences of four tokens or more."
    QUARTERS: ClassVar[tuple[str, ...]] = ("first quarter", "second", "third", "last quarter")

    def __init__(self, result: SaliencyDatasetResult | None = None) -> None:
        columns = ("x", "share", "low", "high", "segment", "model", "color")
        tips = [("model", "@model"), ("part", "@segment"), ("share", "@share{0.0 %}"),
                ("95 % interval", "@low{0.0 %} to @high{0.0 %}")]  # fmt: skip
        self.start(
            "position_profile", "Where in the sentence the important tokens stand",
            ("part of the sentence", "share of the density (%)"), columns=columns, tooltips=tips, height=300,
            x_range=Range1d(-0.4, 3.4), y_range=Range1d(0, 0.5),
        )  # fmt: skip
        self.hidden = [self.figure.xgrid[0]]
        self.figure.yaxis[0].formatter = NumeralTickFormatter(format="0 %")
        self.name_ticks(self.figure.xaxis[0], self.QUARTERS)
        self.figure.add_layout(
            Span(location=0.25, dimension="width", line_dash="dotted", line_color=QUIET, line_width=1.5)
        )
        self.lines = _empty_source("profile_lines", ("xs", "ys", "model", "color"))
        drawn = self.figure.multi_line(
            xs="xs", ys="ys", source=self.lines, line_color="color", line_width=2.5, name="lines"
        )
        self.figure.segment(x0="x", x1="x", y0="low", y1="high", source=self.source, line_color="color", line_width=3)
        points = self.figure.scatter(
            x="x", y="share", size=9, source=self.source, fill_color="color", line_color=None, name="points"
        )
        self.legend([LegendItem(label={"field": "model"}, renderers=[drawn])])
        self.hover(points)
        self.update(result)

    def update(self, result: SaliencyDatasetResult | None) -> None:
        """Show a data set's profile."""
        found = [] if result is None else [i for i, n in enumerate(result.profile_sentences) if n]
        if result is None or not found:
            self.lines.data = {column: [] for column in self.lines.data}
            self.say()
            return
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        lines: dict[str, list[Any]] = {column: [] for column in self.lines.data}
        for place, i in enumerate(found):
            xs = (np.arange(len(self.QUARTERS)) + 0.08 * (place - (len(found) - 1) / 2)).tolist()
            low, high = result.profile_interval[i]
            columns = {"x": xs, "share": result.profile[i].tolist(), "low": low.tolist(), "high": high.tolist()}
            columns |= {"segment": list(self.QUARTERS), "model": [result.model_names[i]] * 4}
            columns["color"] = [PALETTE8[i]] * 4
            for column, values in columns.items():
                rows[column] += values
            for column, value in (("xs", xs), ("ys", columns["share"]), ("model", result.model_names[i])):
                lines[column].append(value)
            lines["color"].append(PALETTE8[i])
        top = max(0.3, 1.1 * max(rows["high"]))
        self.figure.y_range.update(end=top, reset_end=top)
        self.lines.data = lines
        counts = ", ".join(f"{result.model_names[i]} {result.profile_sentences[i]}" for i in found)
        self.fill(rows, subtitle=f"sentences: {counts} · bars: 95 % interval over prompts · dotted: no preference")


def _verdict(test: GroupComparison) -> str:
    """The comparison in one line of numbers."""
    low, high = test.difference_interval
    parts = [f"difference {test.difference:+.3f} [{low:+.3f}, {high:+.3f}]", f"d {test.cohens_d:.2f}"]
    parts += [f"Welch p {test.welch_p:.2g}", f"permutation p {test.permutation_p:.2g}"]
    if test.kind == "followed":
        parts.append(f"Spearman p {test.spearman_p:.2g}")
    if test.holm_p is not None:
        parts.append(f"Holm p {test.holm_p:.2g}")
    where = " ".join(filter(None, (test.model, "" if test.group == "all" else test.group)))
    return (f"{where}: " if where else "") + " · ".join(parts).replace("-", "\u2212").replace("e\u2212", "e-")


def _spread(scores: NDArray[np.float64], width: float = 0.3) -> NDArray[np.float64]:
    """Sideways places for points of a strip, always the same: neighbours in score stand apart."""
    offsets = np.empty(len(scores))
    offsets[np.argsort(scores, kind="stable")] = (np.arange(len(scores)) * 0.6180339887) % 1
    return (2 * offsets - 1) * width


def _empty_source(name: str, columns: Sequence[str]) -> ColumnDataSource:
    return ColumnDataSource({column: [] for column in columns}, name=name)
