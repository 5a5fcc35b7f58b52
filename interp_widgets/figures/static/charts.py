"""Pictures of lines and of bars."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from interp_widgets.figures.labels import number
from interp_widgets.figures.static.scene import (
    MARGIN,
    MUTED,
    POINT,
    Scene,
    Sheet,
    fitted,
    printable,
    shorten,
    text_width,
)
from interp_widgets.figures.theme import PALETTE8

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_QUIET = "#c3c7cd"
_SMALL, _LINE = 11.0, 16.0
_LEFT, _TOP, _BOTTOM, _RIGHT = 64.0, 56.0, 48.0, 16.0
Curve = tuple[str, ArrayLike, bool]
"""Name, values, and whether it is highlighted: only highlighted curves are named."""
Named = Sequence[tuple[str, Any]]
"""Names in a legend, and what they name."""
Draw = Callable[[Sheet, Any], Named]
"""Draws into the axes of a chart, and returns what its legend names."""
Drawing = tuple[Sequence[str], Draw]
"""The names that the legend of a chart may have, and what draws the chart."""


def chart_scene(
    names: Sequence[str], draw: Draw, *, title: str, x_label: str, y_label: str, subtitle: str = "",
    width: float, height: float,
) -> Scene:  # fmt: skip
    """A chart: `draw` draws into its axes; title, subtitle, names of the axes, grid lines and legend are drawn here.

    `names` are those that the legend may have; `height` is without the lines of the subtitle and of a longer legend.
    """
    width = fitted(width)
    above = _LINE * len(subtitle.splitlines()) + _legend_room(names, width)

    def chart(sheet: Sheet) -> None:
        sheet.title(title, width)
        for index, line in enumerate(subtitle.splitlines()):
            text = shorten(line, width - 2 * MARGIN, _SMALL)
            sheet.text(MARGIN, MARGIN + 26 + _LINE * index, text, size=_SMALL, color=MUTED)
        axes = sheet.axes(_LEFT, _TOP + above, width - _LEFT - _RIGHT, height - _TOP - _BOTTOM)
        _style(axes, x_label, y_label)
        if named := draw(sheet, axes):
            _draw_legend(axes, named, width)

    return Scene(width, height + above, chart, title=title)


def _style(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set(xlabel=printable(x_label), ylabel=printable(y_label))
    axes.grid(axis="y")
    axes.tick_params(length=0, labelsize=11 * POINT)
    axes.yaxis.set_major_formatter(lambda value, _: number(round(value, 6)))
    axes.spines["left"].set_visible(False)


def _columns(names: Sequence[str], width: float) -> int:
    widest = max((text_width(name, 11) for name in names), default=0.0) + 44
    return max(1, int((width - _LEFT - _RIGHT) / widest))


def _legend_room(names: Sequence[str], width: float) -> float:
    """Height in pixels of a legend above a chart of this width, without its first line."""
    return 18.0 * max(0, -(-len(names) // _columns(names, width)) - 1)


def _draw_legend(axes: Axes, parts: Named, width: float) -> None:
    """The legend of a chart, in as many columns as fit above it."""
    names = [printable(name) for name, _ in parts]
    axes.legend([part for _, part in parts], names, loc="lower left", ncols=_columns(names, width), borderaxespad=0,
                bbox_to_anchor=(0, 1), handlelength=1.6, columnspacing=1.4)  # fmt: skip


def curves_scene(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    at: ArrayLike | None = None,
    width: float = 720,
    height: float = 320,
) -> Scene:
    """Lines over the positions `at`, or over 1, 2, 3…; highlighted ones in colour and named above the plot.

    Raises ValueError if there are no numbers.

    >>> curves_scene([("a", [0.0, 1.0], True)], title="t", x_label="x", y_label="y").width
    720
    """
    lines = [(name, np.asarray(values, dtype=float), marked) for name, values, marked in curves]
    finite = np.concatenate([values[np.isfinite(values)] for _, values, _ in lines] or [np.zeros(0)])
    if not finite.size:
        raise ValueError("there are no numbers to draw")
    low, high = min(0.0, float(finite.min())), max(0.0, float(finite.max()))
    most = max(len(values) for _, values, _ in lines)
    places = np.arange(1, most + 1) if at is None else np.asarray(at, dtype=float)
    names = [name for name, _, marked in lines if marked]

    def draw(sheet: Sheet, axes: Axes) -> Named:
        from matplotlib.ticker import MaxNLocator

        room = 0.02 * (high - low or 1.0)
        first, last = float(places.min()), float(places.max())
        axes.set(xlim=(first, last if last > first else first + 1))
        axes.set(ylim=(low - room * (low < 0), (high if high > low else low + 1.0) + room))
        axes.xaxis.set_major_locator(MaxNLocator(integer=bool((places == np.rint(places)).all())))
        colors = itertools.cycle(PALETTE8)
        named = []
        for name, values, marked in sorted(lines, key=lambda line: line[2]):
            (line,) = axes.plot(places[: len(values)], values, color=_QUIET, lw=POINT, clip_on=False)
            if marked:
                line.set(color=next(colors), linewidth=2.5 * POINT)
                named.append((name, line))
            if np.isfinite(values).sum() == 1:
                line.set(marker="o", markersize=4)
        return named

    return chart_scene(names, draw, title=title, x_label=x_label, y_label=y_label, width=width, height=height)
