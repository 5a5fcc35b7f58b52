"""The map of concepts as a static picture: dots while they can be told apart, one image of many dots else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.figures.concepts.groups import GROUP_COLOURS, group_colours, room_for_names
from interp_widgets.figures.labels import axis_name
from interp_widgets.figures.static.scene import (
    MARGIN,
    MUTED,
    POINT,
    Scene,
    Sheet,
    printable,
    shorten,
    text_width,
)
from interp_widgets.figures.theme import MARK, SELECT, hex_color, over, rgba

Floats = NDArray[np.floating[Any]]
Ranges = tuple[tuple[float, float], tuple[float, float]]

MOST_CIRCLES = 4_000
"""Above so many concepts in sight the dots of an SVG are one image; a file of circles would be large and slow."""

_PALE = 0.16  # opacity of what is not selected
_LEFT = 56.0


def concept_map_scene(
    xy: Floats,
    names: Sequence[str],
    groups: Sequence[str],
    *,
    title: str = "Map of concept directions",
    labels: tuple[str, str] = ("", ""),
    ranges: Ranges | None = None,
    chosen: int | None = None,
    neighbours: Sequence[int] = (),
    selected: Sequence[int] = (),
    arrows: Sequence[tuple[float, float, float, float, str]] = (),
    empty: str = "Nothing to show yet.",
    width: int = 900,
) -> Scene:
    """Concepts in the plane, coloured by group, as a picture of `width` pixels.

    Args:
        xy: (concepts, 2) places.
        names, groups: (concepts,) of each.
        title, labels: above the map and at its two axes.
        ranges: the part of the plane that is shown, (from, to) across and up; by default all of it.
        chosen, neighbours: rings and names; of names that would cover one another the first stands.
        selected: those that keep their colour, the others turn pale.
        arrows: (from x, from y, to x, to y, colour).
        empty: what stands in place of a map without concepts.

    Raises ValueError unless there is a name and a group for each place.
    """
    if xy.ndim != 2 or xy.shape[1] != 2 or not len(xy) == len(names) == len(groups):
        raise ValueError(
            f"a map needs (concepts, 2) places with a name and a group each, got {xy.shape}, {len(names)} names and "
            f"{len(groups)} groups"
        )
    kinds, keys = group_colours(groups)
    keys = [printable(key) for key in keys]
    widest = max((text_width(key, 11) for key in keys), default=0.0) + 40
    columns = max(1, int((width - _LEFT) / widest))
    wide, tall = width - _LEFT - MARGIN, 0.62 * width
    top = MARGIN + 26 + 20 * -(-sum(map(bool, keys)) // columns)

    def draw(sheet: Sheet) -> None:
        sheet.title(title, width)
        if not len(xy):
            sheet.text(MARGIN, 52, empty, color=MUTED)
            return
        axes = sheet.axes(_LEFT, top, wide, tall, xlabel=printable(labels[0]), ylabel=printable(labels[1]))
        axes.spines[:].set(visible=True)
        axes.tick_params(length=2, labelsize=11 * POINT)
        (left, right), (low, high) = ranges or _whole(xy)
        axes.set(xlim=(left, right), ylim=(low, high))
        inside = (left <= xy[:, 0]) & (xy[:, 0] <= right) & (low <= xy[:, 1]) & (xy[:, 1] <= high)

        bright = np.isin(np.arange(len(xy)), list(selected)) | (not len(selected))
        shown = np.flatnonzero(inside)
        shown = shown[np.argsort(bright[shown], kind="stable")]  # the selected ones above the others
        pale = [over(hex_color(*rgba(color)[:3], 255 * _PALE)) for color in GROUP_COLOURS]
        colors = np.where(bright, np.array(GROUP_COLOURS)[kinds], np.array(pale)[kinds])[shown].tolist()
        many = len(shown) > MOST_CIRCLES
        size = (8 if len(xy) <= 500 else 6 if not many else 3) * POINT
        dots = axes.scatter(xy[shown, 0], xy[shown, 1], s=size**2, c=colors, linewidths=0)
        dots.set(rasterized=many, antialiased=not many)
        if not many:
            sheet.tip(dots, [axis_name(names[i]) for i in shown.tolist()])
        named = [(key, axes.scatter([], [], s=(8 * POINT) ** 2, color=color))
                 for key, color in zip(keys, GROUP_COLOURS, strict=True) if key]  # fmt: skip
        axes.legend([dot for _, dot in named], [key for key, _ in named], loc="lower left", bbox_to_anchor=(0, 1),
                    ncols=columns, borderaxespad=0, handletextpad=0.1, scatteryoffsets=[0.46])  # fmt: skip

        for x0, y0, x1, y1, color in arrows:
            axes.annotate("", (x1, y1), (x0, y0), annotation_clip=True, arrowprops={
                "arrowstyle": "->", "color": color, "lw": 1.5 * POINT, "shrinkA": 0, "shrinkB": 0
            })  # fmt: skip
        wanted = [*([] if chosen is None else [(chosen, 9.0, MARK)]), *((i, 6.5, SELECT) for i in neighbours)]
        wanted = [mark for mark in wanted if inside[mark[0]]]
        at = (xy[[i for i, _, _ in wanted]] - [left, high]) / [right - left, low - high] * [wide, tall]  # pixels
        texts = [shorten(axis_name(names[i]), 180) for i, _, _ in wanted]
        free = room_for_names(at, texts)
        for (i, radius, color), (x, _), text, room in zip(wanted, at, texts, free, strict=True):
            size = (2 * radius * POINT) ** 2
            axes.scatter(xy[i, 0], xy[i, 1], s=size, facecolors="none", edgecolors=color, lw=2.5 * POINT)
            if room:
                ends = x + radius + 4 + text_width(text) > wide
                shift = (-radius - 3 if ends else radius + 3) * POINT
                axes.annotate(text, xy[i], (shift, 5 * POINT), textcoords="offset points", color=color,
                              ha="right" if ends else "left",
                              bbox={"fc": "white", "ec": "none", "alpha": 0.6, "pad": 1})  # fmt: skip

    return Scene(width, top + tall + 48 if len(xy) else 80, draw, title=title)


def _whole(xy: Floats) -> Ranges:
    low, high = xy.min(axis=0), xy.max(axis=0)
    room = 0.04 * np.where(high > low, high - low, 1.0)
    (left, bottom), (right, top) = (low - room).tolist(), (high + room).tolist()
    return (left, right), (bottom, top)
