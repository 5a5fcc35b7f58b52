"""Charts of a token decomposition: each token's contribution, over the layers and to one logit.

Each chart is made once; `update` shows other results in it. Nothing here runs a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from bokeh.models import LegendItem, NumeralTickFormatter, Range1d, Span, TapTool
from numpy.typing import NDArray

from interp_widgets.analysis.token_decomposition import LogitShareResult, TokenDecompositionResult
from interp_widgets.figures.chart import (
    QUIET,
    Chart,
    empty_source,
    layer_names,
    model_label,
    plain_label,
    visible_token,
)
from interp_widgets.figures.theme import PALETTE8

Followed = Literal["norm_share", "target_logit"]
"""The quantity followed through the layers: a part's share of the norms, or of the target's logit."""

_DASHES = ("solid", "dashed")
Numbers = NDArray[np.float64]


class PartTrajectories(Chart):
    """One quantity of the parts over the layers: a line for each of the largest sources, one for all others together.

    ``norm_share`` is each part's norm over the sum of all parts' norms; ``target_logit`` is its share of the target's
    logit, as the whole stream's final norm would read it, with a line for the biases, so that the lines sum to the
    logit. A second model's lines are dashed. Source: Explainability in Large Language Models: Pathways to Refinement
    and Alignment (Luo 2024), section 4.1.1.
    """

    EMPTY: ClassVar[str] = "No parts yet."
    TITLES: ClassVar[dict[str, str]] = {
        "norm_share": "Share of each token in the norms",
        "target_logit": "Share of each token in the logit of",
    }
    AXES: ClassVar[dict[str, str]] = {"norm_share": "share of the norms (%)", "target_logit": "logits"}
    LARGEST: ClassVar[int] = 6
    """Number of sources with their own line."""

    def __init__(
        self, results: Sequence[TokenDecompositionResult] = (), *, kind: Followed = "norm_share", **options: Any
    ) -> None:
        if kind not in self.TITLES:
            raise ValueError(f"kind must be one of {', '.join(self.TITLES)}, got {kind!r}")
        self.kind = kind
        columns = ("layer", "row", "value", "shown", "source", "model", "color")
        tips = [("", "@source"), ("model", "@model"), ("layer", "@row"), (self.AXES[kind], "@shown")]
        self.start(
            f"parts_{kind}", self.TITLES[kind], ("layer (output: what the final norm reads)", self.AXES[kind]),
            columns=columns, tooltips=tips, height=340, x_range=Range1d(-0.3, 1.3), y_range=Range1d(0, 1),
        )  # fmt: skip
        if kind == "norm_share":
            self.figure.yaxis[0].formatter = NumeralTickFormatter(format="0%")
        self.lines = empty_source(f"parts_lines_{kind}", ("xs", "ys", "source", "model", "color", "dash"))
        drawn = self.figure.multi_line(
            xs="xs", ys="ys", source=self.lines, line_color="color", line_dash="dash", line_width=2.5, name="lines"
        )
        points = self.figure.scatter(
            x="layer", y="value", size=6, source=self.source, fill_color="color", line_color=None, name="points"
        )
        self._sources = LegendItem(label={"field": "source"}, renderers=[points])
        nowhere = [float("nan")]  # a legend draws no glyph without a row
        dashes = [
            self.figure.line(x=nowhere, y=nowhere, line_color=QUIET, line_dash=dash, line_width=2.5) for dash in _DASHES
        ]
        self._models = [LegendItem(label="", renderers=[dash], visible=False) for dash in dashes]
        self.legend([self._sources, *self._models], columns=4)
        self.hover(points, drawn)
        self.update(results, **options)

    def update(
        self,
        results: Sequence[TokenDecompositionResult],
        *,
        names: Sequence[str] | None = None,
        sources: Sequence[int] | None = None,
    ) -> None:
        """Show these results, one per model, of one prompt and position.

        Args:
            results: at most two; none shows a sentence instead.
            names: the models' names; by default those in the results.
            sources: positions of at most 7 tokens with their own line, so that two charts show the same tokens in
                the same colours; by default the largest.

        Raises ValueError for more than two results, results of two prompts, positions or targets, or other sources.
        """
        shown = _checked(results, names)
        if not results:
            return self._clear()
        if self.kind == "target_logit":
            if any(result.target_logit is None for result in results):
                return self._clear("No target: set one to follow its logit through the layers.")
            if len({result.target for result in results}) > 1:
                raise ValueError("a chart follows the logit of one target, but the two results have different targets")
        values = [self._values(result) for result in results]
        if not all(np.isfinite(shares).any() for shares in values):
            return self._clear()
        top = self._largest(values) if sources is None else self._own_lines(sources, results[0].position)
        self._draw(results, values, shown, top)

    def _clear(self, sentence: str = "") -> None:
        self.lines.data = {column: [] for column in self.lines.data}
        for item in self._models:
            item.visible = False
        self.figure.title.text = self.TITLES[self.kind].removesuffix(" of")
        self.say(sentence)

    def _values(self, result: TokenDecompositionResult) -> Numbers:
        """(sources, layers + 1) values of the tokens up to the position."""
        values = result.norm_share if self.kind == "norm_share" else result.target_logit
        return np.asarray(values, dtype=np.float64)[:, : result.position + 1].T

    def _own_lines(self, sources: Sequence[int], last: int) -> list[int]:
        """The requested sources, in the order of the prompt."""
        chosen = sorted({int(source) for source in sources})
        if len(chosen) > self.LARGEST + 1 or any(not 0 <= source <= last for source in chosen):
            raise ValueError(f"sources must be at most {self.LARGEST + 1} positions in 0..{last}, got {list(sources)}")
        return chosen

    def _draw(
        self, results: Sequence[TokenDecompositionResult], values: Sequence[Numbers], names: Sequence[str],
        top: Sequence[int],
    ) -> None:  # fmt: skip
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        lines: dict[str, list[Any]] = {column: [] for column in self.lines.data}
        for index, (result, model_values, name) in enumerate(zip(results, values, names, strict=True)):
            for label, color, ys in self._paths(result, model_values, top):
                numbers, at = ys.tolist(), list(range(len(ys)))
                common = {"source": label, "model": name, "color": color}
                for column, entry in {"xs": at, "ys": numbers, "dash": _DASHES[index], **common}.items():
                    lines[column].append(entry)
                each = {"layer": at, "row": layer_names(result.n_layers), "value": numbers}
                each |= {column: [entry] * len(at) for column, entry in common.items()}
                each["shown"] = [self._written(y) for y in numbers]
                for column, entries in each.items():
                    rows[column] += entries
        self.lines.data = lines
        for item, name in zip(self._models, [*names, ""], strict=False):
            item.update(label={"value": name}, visible=len(names) > 1)
        self._set_axes(max(result.n_layers for result in results), rows["value"])
        title = self.TITLES[self.kind]
        if self.kind == "target_logit":
            title += f" “{visible_token(results[0].target_token, longest=20)}”"
        self.figure.title.text = plain_label(title)
        where = f"“{visible_token(results[0].tokens[results[0].position])}” (position {results[0].position})"
        part = " · stopped early" if any(result.partial for result in results) else ""
        self.fill(rows, subtitle=f"parts of the residual stream at {where}{part}")

    def _largest(self, values: Sequence[Numbers]) -> list[int]:
        """The sources with the largest values after the first block, in the order of the prompt."""
        sizes = np.zeros(len(values[0]))
        for model_values in values:
            sizes = np.maximum(sizes, np.nan_to_num(np.abs(model_values[:, 1:]), nan=0.0).max(axis=1, initial=0.0))
        most = self.LARGEST + (len(sizes) == self.LARGEST + 1)  # a single one left over gets its own line too
        return sorted(np.argsort(-sizes, kind="stable")[:most].tolist())

    def _paths(
        self, result: TokenDecompositionResult, values: Numbers, top: Sequence[int]
    ) -> list[tuple[str, str, Numbers]]:
        """Name, colour and values of every line of one model."""
        paths = [
            (f"{visible_token(result.tokens[source])} ({source})", PALETTE8[i], values[source])
            for i, source in enumerate(top)
        ]
        rest = [source for source in range(len(values)) if source not in top]
        if rest:
            paths.append((f"{len(rest)} others together", QUIET, np.nansum(values[rest], axis=0)))
        if self.kind == "target_logit" and result.target_bias is not None:
            paths.append((rest_name(result), PALETTE8[7], np.asarray(result.target_bias, dtype=np.float64)))
        return paths

    def _written(self, value: float) -> str:
        return f"{100 * value:.1f}%" if self.kind == "norm_share" else f"{value:.2f}"

    def _set_axes(self, layers: int, values: Sequence[float]) -> None:
        self.name_layers(layers)
        low, high = min(0.0, float(np.nanmin(values))), float(np.nanmax(values))
        room = 0.05 * (high - low or 1.0)
        self.reach(y=(low - (room if low < 0 else 0.0), high + room))


class LogitShareBars(Chart):
    """One bar per source token, and one for the biases: their contributions to a logit, or to the difference of two.

    The bars of one model sum to its own logit. A tap selects a source's index in `source.selected`. Source:
    Explainability in Large Language Models: Pathways to Refinement and Alignment (Luo 2024), section 4.1.1.
    """

    EMPTY: ClassVar[str] = "No shares yet."

    def __init__(self, results: Sequence[LogitShareResult] = (), **options: Any) -> None:
        columns = ("position", "at", "token", "share", "part", "model", "color")
        tips = [("", "@token"), ("position", "@position"), ("model", "@model"), ("share", "@share{+0.00} logits"),
                ("of the logit", "@part")]  # fmt: skip
        self.start(
            "logit_shares", "Share of each token in the logit", ("source token", "logits"), columns=columns,
            tooltips=tips, height=300, x_range=Range1d(-0.6, 0.6), y_range=Range1d(0, 1),
        )  # fmt: skip
        self.figure.add_layout(Span(location=0, dimension="width", line_color=QUIET, line_width=1))
        look = {"fill_color": "color", "line_color": None, "nonselection_fill_alpha": 0.45, "selection_fill_alpha": 1.0}
        self._bars = self.figure.vbar(x="at", top="share", width=0.8, source=self.source, name="bars", **look)
        self._legend_item = LegendItem(label={"field": "model"}, renderers=[self._bars])
        self.legend([self._legend_item])
        self.figure.add_tools(TapTool(renderers=[self._bars]))
        self.hover(self._bars)
        self.update(results, **options)

    def update(self, results: Sequence[LogitShareResult], *, names: Sequence[str] | None = None) -> None:
        """Show these results, one per model, of one prompt and position.

        Args:
            results: at most two; none shows a sentence instead.
            names: the models' names; by default those in the results.

            Raises ValueError for more than two results, or results of different prompts, positions or targets.
        """
        shown = _checked(results, names)
        if not results:
            self.say()
            return
        first = results[0]
        if len({(result.target, result.foil) for result in results}) > 1:
            raise ValueError(
                "a chart shows the shares of one logit, but the two results have different targets or foils"
            )
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        width = 0.8 / len(results)
        for model, (result, name) in enumerate(zip(results, shown, strict=True)):
            count = result.position + 2
            shares = [*np.asarray(result.share[: count - 1], dtype=float).tolist(), result.bias]
            shift = (model - (len(results) - 1) / 2) * width
            rows["position"] += [*map(str, range(count - 1)), "–"]
            rows["at"] += [index + shift for index in range(count)]
            rows["token"] += [*map(visible_token, result.tokens[: count - 1]), rest_name(result)]
            rows["share"] += shares
            rows["part"] += [f"{100 * share / result.logit:.0f}%" if result.logit else "–" for share in shares]
            rows["model"] += [name] * count
            rows["color"] += [*[PALETTE8[model]] * (count - 1), _paler(PALETTE8[model])]
        self._bars.glyph.width = 0.95 * width
        self._legend_item.visible = len(results) > 1
        self._set_axes(rows["share"], [*map(visible_token, first.tokens[: first.position + 1]), rest_name(first)])
        self.figure.title.text = plain_label(f"Share of each token in the logit of {_logit_name(first)}")
        sums = ", ".join(
            (f"{name} " if len(results) > 1 else "") + f"{result.logit:.2f}"
            for result, name in zip(results, shown, strict=True)
        )
        where = f"after “{visible_token(first.tokens[first.position])}” (position {first.position})"
        self.fill(rows, subtitle=f"{where} · the bars sum to the logit: {sums}")

    def _set_axes(self, shares: Sequence[float], labels: Sequence[str]) -> None:
        figure, last = self.figure, len(labels) - 0.4
        self.reach(x=(-0.6, last))
        low, high = min(0.0, *shares), max(0.0, *shares)
        room = 0.06 * (high - low or 1.0)
        self.reach(y=(low - (room if low < 0 else 0.0), high + room))
        self.name_ticks(figure.xaxis[0], labels)
        figure.xaxis[0].major_label_orientation = 0.9 if len(labels) > 10 else "horizontal"


def rest_name(result: TokenDecompositionResult | LogitShareResult) -> str:
    """Name of the remaining part: the biases, and the BOS if there is one."""
    if result.bos is None:
        return "biases"
    return "biases, BOS" if np.any(result.bias != result.bos) else "BOS"


def _logit_name(result: LogitShareResult) -> str:
    target = f"“{visible_token(result.target_token, longest=20)}”"
    return target if result.foil is None else f"{target} minus that of “{visible_token(result.foil_token, longest=20)}”"


def _paler(color: str) -> str:
    return f"{color}88"


def _checked(
    results: Sequence[TokenDecompositionResult] | Sequence[LogitShareResult], names: Sequence[str] | None
) -> list[str]:
    """The models' names; ValueError for results that do not fit into one chart."""
    if len(results) > 2:
        raise ValueError(f"a chart shows one or two models, got {len(results)} results")
    if len({(tuple(result.ids), result.position) for result in results}) > 1:
        raise ValueError("a chart shows two models at the same prompt and position, but the two results differ in them")
    shown = list(names) if names is not None else [model_label(result, i) for i, result in enumerate(results)]
    if len(shown) != len(results):
        raise ValueError(f"names must have one entry per result, got {len(shown)} for {len(results)}")
    return shown
