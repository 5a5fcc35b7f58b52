"""The map of concepts as a static picture: circles while they can be told apart, one image of many dots else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp_widgets.figures.concepts.groups import GROUP_COLOURS, group_colours, room_for_names
from interp_widgets.figures.labels import axis_name, number
from interp_widgets.figures.raster import shorten, text_width
from interp_widgets.figures.scene import MARGIN, MUTED, RULE, Item, Line, Pixels, Rect, Scene, Text
from interp_widgets.figures.theme import MARK, SELECT, hex_color, over, rgba

Floats = NDArray[np.floating[Any]]
Ranges = tuple[tuple[float, float], tuple[float, float]]

MOST_CIRCLES = 4_000
"""Above so many concepts in sight the dots are one image; a file of circles would be large and slow to open."""

_FINE = 2  # pixels of the image per pixel of the picture
_PALE = 0.16  # opacity of what is not selected


@dataclass(frozen=True)
class _Frame:
    """Where the map lies, in pixels, and what part of the plane it shows."""

    x: float
    y: float
    width: float
    height: float
    ranges: Ranges

    def place(self, xy: Floats) -> Floats:
        """(n, 2) pixels of places in the plane."""
        (left, right), (low, high) = self.ranges
        across = (xy[:, 0] - left) / (right - left)
        up = (xy[:, 1] - low) / (high - low)
        return np.stack([self.x + across * self.width, self.y + (1 - up) * self.height], axis=1)

    def holds(self, at: Floats) -> NDArray[np.bool_]:
        """(n,) whether pixels lie in the map."""
        inside = (at[:, 0] >= self.x) & (at[:, 0] <= self.x + self.width)
        return np.asarray(inside & (at[:, 1] >= self.y) & (at[:, 1] <= self.y + self.height))


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
    heading = Text(MARGIN, MARGIN + 8, title, size=13, bold=True)
    if not len(xy):
        return Scene(width, 80, (heading, Text(MARGIN, 52, empty, fill=MUTED)), title=title)
    kinds, legend = group_colours(groups)
    keys, tall = _legend(legend, width)
    top = MARGIN + 26 + tall
    frame = _Frame(44, top, width - 44 - MARGIN, 0.62 * width, ranges or _whole(xy))
    at = frame.place(xy)
    items: list[Item] = [heading, *keys, *_axes(frame, labels)]
    items += _dots(frame, at, kinds, [axis_name(name) for name in names], selected)
    items += _arrows(frame, arrows)
    items += _marks(frame, at, names, chosen, neighbours)
    return Scene(width, frame.y + frame.height + 44, tuple(items), title=title)


def _whole(xy: Floats) -> Ranges:
    low, high = xy.min(axis=0), xy.max(axis=0)
    room = 0.04 * np.where(high > low, high - low, 1.0)
    (left, bottom), (right, top) = (low - room).tolist(), (high + room).tolist()
    return (left, right), (bottom, top)


def _legend(labels: Sequence[str], width: float) -> tuple[list[Item], float]:
    """A line or more of groups under the title, and how tall they are."""
    items: list[Item] = []
    x, y = MARGIN, MARGIN + 30
    for label, color in zip(labels, GROUP_COLOURS, strict=True):
        if not label:
            continue
        wide = 16 + text_width(label, 11) + 14
        if x + wide > width - MARGIN and x > MARGIN:
            x, y = MARGIN, y + 18
        items += [Rect(x, y - 4, 8, 8, fill=color, radius=4), Text(x + 14, y, label, size=11)]
        x += wide
    return items, y - MARGIN - 30 + 22 if items else 0.0


def _axes(frame: _Frame, labels: tuple[str, str]) -> list[Item]:
    (left, right), (low, high) = frame.ranges
    below, beside = frame.y + frame.height, frame.x - 6
    middle = frame.x + frame.width / 2
    return [
        Rect(frame.x - 0.5, frame.y - 0.5, frame.width + 1, frame.height + 1, stroke=RULE),
        Text(frame.x, below + 12, number(left), size=11, fill=MUTED),
        Text(frame.x + frame.width, below + 12, number(right), size=11, fill=MUTED, anchor="end"),
        Text(beside, below - 6, number(low), size=11, fill=MUTED, anchor="end"),
        Text(beside, frame.y + 6, number(high), size=11, fill=MUTED, anchor="end"),
        Text(middle, below + 26, labels[0], fill=MUTED, anchor="middle"),
        Text(MARGIN + 4, frame.y + frame.height / 2, labels[1], fill=MUTED, anchor="middle", rotate=-90),
    ]


def _dots(
    frame: _Frame, at: Floats, kinds: NDArray[np.integer[Any]], names: Sequence[str], selected: Sequence[int]
) -> list[Item]:
    bright = np.ones(len(at), dtype=bool)
    if len(selected):
        bright[:] = False
        bright[list(selected)] = True
    shown = np.flatnonzero(frame.holds(at))
    shown = shown[np.argsort(bright[shown], kind="stable")]  # the selected ones above the others
    if len(shown) > MOST_CIRCLES:
        return [_image(frame, at[shown], kinds[shown], bright[shown])]
    radius = 4.0 if len(at) <= 500 else 3.0
    pale = [hex_color(*rgba(color)[:3], 255 * _PALE) for color in GROUP_COLOURS]
    return [
        Rect(float(at[i, 0]) - radius, float(at[i, 1]) - radius, 2 * radius, 2 * radius, radius=radius, tip=names[i],
             fill=GROUP_COLOURS[kinds[i]] if bright[i] else pale[kinds[i]])
        for i in shown.tolist()
    ]  # fmt: skip


def _image(frame: _Frame, at: Floats, kinds: NDArray[np.integer[Any]], bright: NDArray[np.bool_]) -> Pixels:
    """All dots in one image; where two meet the later one stands."""
    wide, tall = math.ceil(frame.width * _FINE), math.ceil(frame.height * _FINE)
    pale = [over(hex_color(*rgba(color)[:3], 255 * _PALE)) for color in GROUP_COLOURS]
    table = np.array([rgba(color) for color in (*GROUP_COLOURS, *pale)], dtype=np.uint8)
    color = table[kinds + np.where(bright, 0, len(GROUP_COLOURS))]
    column, row = ((at - [frame.x, frame.y]) * _FINE).astype(int).T
    pixels = np.zeros((tall, wide, 4), dtype=np.uint8)
    radius = 1.5 * _FINE
    reach = range(-math.ceil(radius), math.ceil(radius) + 1)
    offsets = [(dy, dx) for dy in reach for dx in reach if math.hypot(dy, dx) <= radius]
    for start in range(0, len(at), 4096):  # dots one above the other, not pixel by pixel of all
        part = slice(start, start + 4096)
        for dy, dx in offsets:
            y, x = np.clip(row[part] + dy, 0, tall - 1), np.clip(column[part] + dx, 0, wide - 1)
            pixels[y, x] = color[part]
    return Pixels(frame.x, frame.y, frame.width, frame.height, pixels)


def _arrows(frame: _Frame, arrows: Sequence[tuple[float, float, float, float, str]]) -> list[Item]:
    items: list[Item] = []
    for x0, y0, x1, y1, color in arrows:
        ends = frame.place(np.array([[x0, y0], [x1, y1]]))
        if not frame.holds(ends).all():
            continue
        (a, b), (c, d) = ends.tolist()
        items.append(Line(a, b, c, d, color, 1.5))
        angle = math.atan2(d - b, c - a)
        for side in (-0.45, 0.45):
            items.append(Line(c, d, c - 8 * math.cos(angle + side), d - 8 * math.sin(angle + side), color, 1.5))
    return items


def _marks(
    frame: _Frame, at: Floats, names: Sequence[str], chosen: int | None, neighbours: Sequence[int]
) -> list[Item]:
    wanted = [*([] if chosen is None else [(chosen, 9.0, MARK)]), *((i, 6.5, SELECT) for i in neighbours)]
    wanted = [mark for mark in wanted if frame.holds(at[[mark[0]]])[0]]
    texts = [axis_name(names[i]) for i, _, _ in wanted]
    free = room_for_names(at[[i for i, _, _ in wanted]], texts)
    items: list[Item] = []
    for (i, radius, color), text, room in zip(wanted, texts, free, strict=True):
        x, y = at[i].tolist()
        items.append(
            Rect(x - radius, y - radius, 2 * radius, 2 * radius, stroke=color, stroke_width=2.5, radius=radius)
        )
        if room:
            short = shorten(text, 180)
            right = x + radius + 4 + text_width(short) > frame.x + frame.width
            place = (x - radius - 3, "end") if right else (x + radius + 3, "start")
            items.append(Text(place[0], y - 9, short, fill=color, anchor=place[1], bold=True))  # type: ignore[arg-type]
    return items
