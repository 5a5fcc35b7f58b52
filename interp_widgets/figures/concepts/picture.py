"""The map of concepts as a static picture: separate dots, or one image if there are very many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.figures.concepts.groups import LOOKS, SHAPES, group_looks
from interp_widgets.figures.concepts.names import name_order, placed_names
from interp_widgets.figures.labels import axis_name
from interp_widgets.figures.static.scene import (
    INK,
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
from interp_widgets.figures.theme import MARK, SELECT, hex_color, over, rgba

Floats = NDArray[np.floating[Any]]
Ranges = tuple[tuple[float, float], tuple[float, float]]

MOST_CIRCLES = 4_000
"""Visible concepts above which the dots of an SVG become one image; a file of circles would be large and slow."""

_PALE = 0.16  # opacity of unselected dots
_LEFT = 56.0


def concept_map_scene(
    xy: Floats,
    names: Sequence[str],
    groups: Sequence[str],
    *,
    title: str = "Concept directions",
    labels: tuple[str, str] = ("", ""),
    ranges: Ranges | None = None,
    chosen: int | None = None,
    neighbours: Sequence[int] = (),
    selected: Sequence[int] = (),
    arrows: Sequence[tuple[float, float, float, float, str]] = (),
    empty: str = "Nothing to show yet.",
    width: int = 900,
) -> Scene:
    """Concepts in the plane, each group with a colour and a shape, as a picture of `width` pixels.

    Args:
        xy: (concepts, 2) positions.
        names, groups: (concepts,) of each.
        title, labels: above the map and at its two axes.
        ranges: the visible part of the plane, (from, to) across and up, widened to equal aspect; by default all.
        chosen, neighbours: those with rings, which are named first.
        selected: those that keep their colour and their name; the others turn pale.
        arrows: (from x, from y, to x, to y, colour).
        empty: the text shown for a map without concepts.

        Raises ValueError unless there is a name and a group for each position.
    """
    width = int(fitted(width))
    if xy.ndim != 2 or xy.shape[1] != 2 or not len(xy) == len(names) == len(groups):
        raise ValueError(
            f"a map needs (concepts, 2) places with a name and a group each, got {xy.shape}, {len(names)} names and "
            f"{len(groups)} groups"
        )
    looks, keys = group_looks(groups)
    keys = [printable(key) for key in keys]
    columns, lines = _legend_size(keys, width)
    wide, tall = width - _LEFT - MARGIN, 0.62 * width
    top = MARGIN + 26 + 20 * lines

    def draw(sheet: Sheet) -> None:
        sheet.title(title, width)
        if not len(xy):
            sheet.text(MARGIN, 52, empty, color=MUTED)
            return
        (left, right), (low, high) = _one_scale(_whole(xy) if ranges is None else ranges, wide, tall)
        axes = sheet.axes(_LEFT, top, wide, tall, xlabel=printable(labels[0]), ylabel=printable(labels[1]))
        axes.spines[:].set(visible=True)
        axes.tick_params(length=2, labelsize=11 * POINT)
        axes.set(xlim=(left, right), ylim=(low, high))
        inside = (left <= xy[:, 0]) & (xy[:, 0] <= right) & (low <= xy[:, 1]) & (xy[:, 1] <= high)
        bright = np.isin(np.arange(len(xy)), list(selected)) | (not len(selected))
        _draw_dots(sheet, axes, xy, names, looks, inside, bright)
        _draw_legend(axes, keys, columns)
        for x0, y0, x1, y1, color in arrows:
            axes.annotate("", (x1, y1), (x0, y0), annotation_clip=True, arrowprops={
                "arrowstyle": "->", "color": color, "lw": 1.5 * POINT, "shrinkA": 0, "shrinkB": 0
            })  # fmt: skip
        rings = [*([] if chosen is None else [(chosen, 9.0, MARK)]), *((i, 6.5, SELECT) for i in neighbours)]
        for i, radius, color in rings:
            if inside[i]:
                size = (2 * radius * POINT) ** 2
                axes.scatter(xy[i, 0], xy[i, 1], s=size, facecolors="none", edgecolors=color, lw=2.5 * POINT)
        at = (xy - [left, high]) / [right - left, low - high] * [wide, tall]  # pixels
        wearing = {i: color for i, _, color in rings}
        rest = [i for i in name_order(looks).tolist() if bright[i] and inside[i] and i not in wearing]
        _write_names(axes, at, names, [*wearing, *rest], wearing, (wide, tall), chosen)

    return Scene(width, top + tall + 48 if len(xy) else 80, draw, title=title)


def _legend_size(keys: Sequence[str], width: float) -> tuple[int, int]:
    """Number of columns and of lines of the legend."""
    widest = max((text_width(key, 11) for key in keys), default=0.0) + 40
    columns = max(1, int((width - _LEFT) / widest))
    return columns, -(-sum(map(bool, keys)) // columns)


def _draw_dots(
    sheet: Sheet, axes: Any, xy: Floats, names: Sequence[str], looks: NDArray[Any], inside: NDArray[Any],
    bright: NDArray[Any],
) -> None:  # fmt: skip
    """Draw the visible dots, the bright ones above the pale ones."""
    many = inside.sum() > MOST_CIRCLES
    size = (8 if len(xy) <= 500 else 6 if not many else 3) * POINT
    shapes = list(SHAPES)
    shape_of = np.array([shapes.index(look.shape) for look in LOOKS])[looks]
    for above in (False, True):
        colours = np.array([look.colour if above else _pale(look.colour) for look in LOOKS])[looks]
        for number, marker in enumerate(SHAPES.values()):
            shown = np.flatnonzero(inside & (bright == above) & (shape_of == number))
            if not len(shown):
                continue
            place = {"s": size**2, "c": colours[shown].tolist(), "marker": marker, "linewidths": 0}
            dots = axes.scatter(xy[shown, 0], xy[shown, 1], **place)
            dots.set(rasterized=many, antialiased=not many)
            if not many:
                sheet.tip(dots, [axis_name(names[i]) for i in shown.tolist()])


def _pale(color: str) -> str:
    return over(hex_color(*rgba(color)[:3], 255 * _PALE))


def _draw_legend(axes: Any, keys: Sequence[str], columns: int) -> None:
    """The legend above the map."""
    size = (8 * POINT) ** 2
    named = {
        key: axes.scatter([], [], s=size, color=look.colour, marker=SHAPES[look.shape])
        for key, look in zip(keys, LOOKS, strict=True)
        if key
    }
    axes.legend(list(named.values()), list(named), loc="lower left", bbox_to_anchor=(0, 1), ncols=columns,
                borderaxespad=0, handletextpad=0.1, scatteryoffsets=[0.46])  # fmt: skip


def _write_names(
    axes: Any, at: Floats, names: Sequence[str], order: Sequence[int], colours: Mapping[int, str],
    size: tuple[float, float], chosen: int | None,
) -> None:  # fmt: skip
    """Write the names that fit, those of rings in bold."""
    texts = [shorten(axis_name(name), 180) for name in names]
    wide, tall = size
    for placed in placed_names(at, texts, order, size, chosen=chosen):
        color = colours.get(placed.concept)
        axes.text(
            placed.left / wide, 1 - placed.middle / tall, texts[placed.concept], transform=axes.transAxes, va="center",
            color=color or INK, fontsize=11 * POINT, fontweight="bold" if color else "normal",
        )  # fmt: skip


def _whole(xy: Floats) -> Ranges:
    low, high = xy.min(axis=0), xy.max(axis=0)
    room = 0.04 * np.where(high > low, high - low, 1.0)
    (left, bottom), (right, top) = (low - room).tolist(), (high + room).tolist()
    return (left, right), (bottom, top)


def _one_scale(ranges: Ranges, wide: float, tall: float) -> Ranges:
    """The ranges, one of them widened to equal aspect."""
    (left, right), (low, high) = ranges
    unit = max((right - left) / wide, (high - low) / tall)
    x, y = (left + right) / 2, (low + high) / 2
    return (x - unit * wide / 2, x + unit * wide / 2), (y - unit * tall / 2, y + unit * tall / 2)
