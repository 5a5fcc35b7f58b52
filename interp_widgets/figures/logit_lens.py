"""Charts of the logit lens: one position over the layers.

Each chart is made once; `update` shows other results or another position in it. Nothing here runs a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from bokeh.models import LegendItem, Range1d
from numpy.typing import NDArray

from interp_widgets.analysis.logit_lens import LogitLensResult
from interp_widgets.figures.chart import (
    Chart,
    empty_source,
    layer_names,
    model_label,
    place_ticks,
    plain_label,
    visible_token,
)
from interp_widgets.figures.theme import PALETTE8

Trajectory = Literal["target_rank", "target_probability", "probability", "entropy", "kl"]
"""The quantity followed through the layers: a field of the result."""

TRAJECTORIES: tuple[Trajectory, ...] = ("target_rank", "target_probability", "probability", "entropy", "kl")
"""All of them, for small multiples."""

_LOST = PALETTE8[7]


class LensTrajectory(Chart):
    """One quantity at one position over the layers, a line per model.

    A dashed line marks each model's commit layer, from which on its likeliest token never changes; a cross marks
    each layer where the target, on top one layer before, no longer is. Ranks are on a log scale with 0, the best, on
    top. The source holds all quantities of a point, for the tooltip. Source: Interpreting GPT: the Logit Lens
    (nostalgebraist 2020).
    """

    EMPTY: ClassVar[str] = "No trajectory yet."
    TITLES: ClassVar[dict[str, str]] = {
        "target_rank": "Rank of the target",
        "target_probability": "Probability of the target",
        "probability": "Probability of the likeliest token",
        "entropy": "Entropy of the next token",
        "kl": "KL divergence from the model's output",
    }
    AXES: ClassVar[dict[str, str]] = {
        "target_rank": "rank (0 is best)",
        "target_probability": "probability",
        "probability": "probability",
        "entropy": "nats",
        "kl": "nats",
    }

    def __init__(
        self, results: Sequence[LogitLensResult] = (), *, kind: Trajectory = "target_rank", **options: Any
    ) -> None:
        if kind not in self.TITLES:
            raise ValueError(f"kind must be one of {', '.join(self.TITLES)}, got {kind!r}")
        self.kind = kind
        columns = ("layer", "row", "value", "model", "color", "top", "probability", "entropy", "kl", "rank", "target")
        tips = [("", "@model"), ("layer", "@row"), ("likeliest", "@top, @probability{0.000}"),
                ("target", "rank @rank, @target"), ("entropy", "@entropy{0.00} nats"),
                ("KL", "@kl{0.00} nats")]  # fmt: skip
        log: dict[str, Any] = {"y_axis_type": "log"} if kind == "target_rank" else {}
        self.start(
            f"lens_{kind}", self.TITLES[kind], ("layer", self.AXES[kind]), columns=columns, tooltips=tips, height=290,
            x_range=Range1d(-0.3, 1.3), y_range=Range1d(0, 1), **log,
        )  # fmt: skip
        self.lines = empty_source(f"lens_lines_{kind}", ("xs", "ys", "model", "color"))
        self.commits = empty_source(f"lens_commits_{kind}", ("x", "color", "model"))
        self.losses = empty_source(f"lens_losses_{kind}", ("x", "y"))
        commit = self.figure.vspan(
            x="x", source=self.commits, line_color="color", line_dash="dashed", line_width=1.5, name="commits"
        )
        drawn = self.figure.multi_line(
            xs="xs", ys="ys", source=self.lines, line_color="color", line_width=2.5, name="lines"
        )
        points = self.figure.scatter(
            x="layer", y="value", size=7, source=self.source, fill_color="color", line_color=None, name="points"
        )
        lost = self.figure.scatter(
            x="x", y="y", size=13, marker="x", source=self.losses, line_color=_LOST, line_width=2.5, name="losses"
        )
        self._models = LegendItem(label={"field": "model"}, renderers=[drawn])
        self._commit = LegendItem(label="commit layer", renderers=[commit])
        self._lost = LegendItem(label="target lost", renderers=[lost])
        self.legend([self._models, self._commit, self._lost], columns=2)
        self.hover(points)
        self.update(results, **options)

    def update(
        self, results: Sequence[LogitLensResult], position: int = -1, *, names: Sequence[str] | None = None
    ) -> None:
        """Show one position of these results, one per model, of one prompt.

        Args:
            results: at most two; none shows a sentence instead.
            position: index of a token of the prompt, or negative from the end.
            names: the models' names for the legend; by default those in the results.

        Raises ValueError for more than two results, results of two prompts, or a position outside of it.
        """
        if len(results) > 2:
            raise ValueError(f"a chart shows one or two models, got {len(results)} results")
        if not results or not results[0].n_positions:
            self._clear()
            return
        first = results[0]
        index = first.position(position)
        if any(tuple(other.ids) != tuple(first.ids) for other in results):
            raise ValueError("a chart shows two models on the same prompt, but the two results have different prompts")
        if not all(result.computed[index] for result in results):
            self._clear("Not read yet: this position is drawn when the lens gets there.")
            return
        if self.kind.startswith("target") and any(result.target is None for result in results):
            self._clear("No target: set one to follow it through the layers.")
            return
        shown = list(names) if names is not None else [model_label(result, i) for i, result in enumerate(results)]
        if len(shown) != len(results):
            raise ValueError(f"names must have one entry per result, got {len(shown)} for {len(results)}")
        self._draw(results, index, shown)

    def _clear(self, sentence: str = "") -> None:
        for source in (self.lines, self.commits, self.losses):
            source.data = {column: [] for column in source.data}
        self.figure.title.text = self.TITLES[self.kind]
        self.say(sentence)

    def _draw(self, results: Sequence[LogitLensResult], position: int, names: Sequence[str]) -> None:
        rows: dict[str, list[Any]] = {column: [] for column in self.source.data}
        lines: dict[str, list[Any]] = {column: [] for column in self.lines.data}
        losses: dict[str, list[Any]] = {"x": [], "y": []}
        for i, (result, name) in enumerate(zip(results, names, strict=True)):
            values = self._values(result, position)
            for column, numbers in self._points(result, position, name).items():
                rows[column] += numbers
            rows["value"] += values.tolist()
            rows["color"] += [PALETTE8[i]] * len(values)
            for column, entry in (("xs", list(range(len(values)))), ("ys", values.tolist()), ("model", name)):
                lines[column].append(entry)
            lines["color"].append(PALETTE8[i])
            lost = () if result.interference is None else np.flatnonzero(result.interference[:, position]).tolist()
            losses["x"] += lost
            losses["y"] += [float(values[row]) for row in lost]
        commits = [int(result.commit_layer[position]) for result in results]
        colors = list(PALETTE8[: len(results)])
        self.lines.data, self.losses.data = lines, losses
        # two models that commit at the same layer: side by side, so that neither is hidden
        apart = 0.06 if len(set(commits)) < len(commits) else 0.0
        at = [commit + apart * (2 * i - 1) for i, commit in enumerate(commits)]
        self.commits.data = {"x": at, "color": colors, "model": list(names)}
        self._lost.visible = bool(losses["x"])
        self._set_axes(max(result.n_layers for result in results), rows["value"])
        self._title(results[0])
        self.fill(rows, subtitle=self._subtitle_text(results[0], position, names, commits))

    def _values(self, result: LogitLensResult, position: int) -> NDArray[np.float64]:
        """(layers + 1,) the plotted values; ranks are shifted by 1, so that 0 has a logarithm."""
        values = np.asarray(getattr(result, self.kind)[:, position], dtype=np.float64)
        return values + 1 if self.kind == "target_rank" else values

    def _points(self, result: LogitLensResult, position: int, name: str) -> dict[str, list[Any]]:
        """The tooltip values of every layer."""
        path = result.trajectory(position)
        count = result.n_layers + 1
        none = ["–"] * count
        return {
            "layer": list(range(count)),
            "row": layer_names(result.n_layers),
            "model": [name] * count,
            "top": [visible_token(result.token_text(token), longest=24) for token in path["top_token"].tolist()],
            **{column: path[column].tolist() for column in ("probability", "entropy", "kl")},
            "rank": [f"{rank:,}" for rank in path["target_rank"].tolist()] if "target_rank" in path else none,
            "target": [f"{p:.3g}" for p in path["target_probability"].tolist()] if "target_rank" in path else none,
        }

    def _set_axes(self, layers: int, values: Sequence[float]) -> None:
        figure = self.figure
        self.name_layers(layers)
        most = max(values)
        if self.kind == "target_rank":  # upside down: the best rank on top
            figure.y_range.update(start=max(1.5 * most, 3.0), end=0.75)
            ranks = [0, *(10**power for power in range(7) if 10**power < 1.5 * most)]
            place_ticks(figure.yaxis[0], [rank + 1 for rank in ranks])
            figure.yaxis[0].major_label_overrides = {rank + 1: f"{rank:,}" for rank in ranks}
        else:
            top = 1.03 if "probability" in self.kind else 1.06 * most or 1.0
            figure.y_range.update(start=-0.02 * top, end=top)
        figure.y_range.update(reset_start=figure.y_range.start, reset_end=figure.y_range.end)

    def _title(self, result: LogitLensResult) -> None:
        title = self.TITLES[self.kind]
        if self.kind.startswith("target") and result.target_token is not None:
            title += f" “{visible_token(result.target_token, longest=20)}”"
        self.figure.title.text = plain_label(title)

    def _subtitle_text(
        self, result: LogitLensResult, position: int, names: Sequence[str], commits: Sequence[int]
    ) -> str:
        rows = layer_names(result.n_layers)
        settled = ", ".join(
            (f"{name} " if len(names) > 1 else "") + rows[min(commit, result.n_layers)]
            for name, commit in zip(names, commits, strict=True)
        )
        where = f"after “{visible_token(result.tokens[position])}” (position {position})"
        return where + (" · " if len(names) == 1 else "\n") + f"commit layer {settled}"
