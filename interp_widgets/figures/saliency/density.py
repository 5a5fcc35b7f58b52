"""Bars of importance density along a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from bokeh.models import LegendItem, Range1d, TapTool
from numpy.typing import ArrayLike, NDArray

from interp_widgets.analysis.saliency import SaliencyResult
from interp_widgets.figures.chart import Chart, visible_token
from interp_widgets.figures.theme import MARK, PALETTE8

CONTEXT, SPECIAL = PALETTE8[0], PALETTE8[6]
"""Colours of the prompt outside the marked instruction, and of special tokens."""


class DensityBars(Chart):
    """One bar per prompt token: how many response tokens it matters to, coloured by the instruction mark.

    ``along="x"`` draws the prompt horizontally, for a separate chart; ``along="y"`` vertically in a narrow
    chart without names, for use beside a map's prompt axis. A tap selects the token's index in `source.selected`.
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

        With `reference`, a result on the same prompt, show the difference from its densities. Raises ValueError if
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
            if (tuple(reference.prompt_ids), reference.spans) != (tuple(result.prompt_ids), result.spans):
                raise ValueError("a difference needs two results on the same prompt")
            density = density - reference.density(**options)
        special = np.asarray(result.prompt_special, dtype=bool)
        mark = np.where(marked, "instruction", np.where(special, "special", "context"))
        color = np.where(marked, MARK, np.where(special, SPECIAL, CONTEXT))
        tokens = [visible_token(token) for token in result.prompt_tokens]
        self._set_axes(density, tokens, signed=reference is not None)
        rows = {"position": np.arange(len(density)), "token": tokens, "density": density}
        note = "stopped early: part of the response is not counted" if result.partial else ""
        self.fill(rows | {"mark": mark.tolist(), "color": color.tolist()}, subtitle=note)
        if not density.any() and reference is None:
            self._message.text = f"No score is above the threshold of {threshold:g}: lower it."
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
