"""Pictures of lines and of bars."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
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


def plot(
    sheet: Sheet, width: float, height: float, names: Sequence[str], *, title: str, x_label: str, y_label: str,
    subtitle: str = "",
) -> Axes:  # fmt: skip
    """Axes of a chart with title, axis names, grid lines, and room above for a legend of `names`.

    The lines of the subtitle go below the title; `subtitle_room` is their height.
    """
    sheet.title(title, width)
    for index, line in enumerate(subtitle.splitlines()):
        text = shorten(line, width - 2 * MARGIN, _SMALL)
        sheet.text(MARGIN, MARGIN + 26 + _LINE * index, text, size=_SMALL, color=MUTED)
    top = _TOP + subtitle_room(subtitle) + legend_room(names, width)
    axes = sheet.axes(_LEFT, top, width - _LEFT - _RIGHT, height - top - _BOTTOM)
    axes.set(xlabel=printable(x_label), ylabel=printable(y_label))
    axes.grid(axis="y")
    axes.tick_params(length=0, labelsize=11 * POINT)
    axes.yaxis.set_major_formatter(lambda value, _: number(round(value, 6)))
    axes.spines["left"].set_visible(False)
    return axes


def _columns(names: Sequence[str], width: float) -> int:
    widest = max((text_width(name, 11) for name in names), default=0.0) + 44
    return max(1, int((width - _LEFT - _RIGHT) / widest))


def legend_room(names: Sequence[str], width: float) -> float:
    """Height in pixels of a legend above a chart of this width, without its first line."""
    return 18.0 * max(0, -(-len(names) // _columns(names, width)) - 1)


def subtitle_room(subtitle: str) -> float:
    """Height in pixels of a subtitle."""
    return _LINE * len(subtitle.splitlines())


def legend(axes: Axes, parts: Sequence[tuple[str, Any]], width: float) -> None:
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
    width = fitted(width)
    lines = [(name, np.asarray(values, dtype=float), marked) for name, values, marked in curves]
    finite = np.concatenate([values[np.isfinite(values)] for _, values, _ in lines] or [np.zeros(0)])
    if not finite.size:
        raise ValueError("there are no numbers to draw")
    low, high = min(0.0, float(finite.min())), max(0.0, float(finite.max()))
    most = max(len(values) for _, values, _ in lines)
    places = np.arange(1, most + 1) if at is None else np.asarray(at, dtype=float)
    names = [name for name, _, marked in lines if marked]
    height += legend_room(names, width)

    def draw(sheet: Sheet) -> None:
        from matplotlib.ticker import MaxNLocator

        axes = plot(sheet, width, height, names, title=title, x_label=x_label, y_label=y_label)
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
        legend(axes, named, width)

    return Scene(width, height, draw, title=title)
