"""A picture as a list of simple shapes, and its SVG."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from interp_widgets.figures.theme import rgba

Anchor = Literal["start", "middle", "end"]
FONT_FAMILY = "Aileron, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK, MUTED, RULE = "#1f2328", "#5c6370", "#d0d4da"
"""Colours of text, of quieter text and of lines; a saved picture is light in every theme."""
MARGIN = 12.0
"""Pixels left free at the edges."""


@dataclass(frozen=True)
class Rect:
    """A rectangle; lengths in pixels, y downwards."""

    x: float
    y: float
    width: float
    height: float
    fill: str | None = None
    stroke: str | None = None
    stroke_width: float = 1.0
    radius: float = 0.0
    tip: str = ""
    """What a browser shows when the pointer rests on it."""


@dataclass(frozen=True)
class Line:
    """A straight line."""

    x0: float
    y0: float
    x1: float
    y1: float
    stroke: str
    width: float = 1.0


@dataclass(frozen=True)
class Text:
    """One line of text; `y` is the middle of its height, `rotate` turns it clockwise about (x, y) in degrees."""

    x: float
    y: float
    text: str
    size: float = 12.0
    fill: str = "#1f2328"
    anchor: Anchor = "start"
    rotate: float = 0.0
    bold: bool = False
    length: float | None = None
    """Width in pixels the text is fitted to in SVG, so that it matches boxes measured with another font."""


@dataclass(frozen=True)
class Pixels:
    """A matrix of colours stretched over a rectangle with hard edges."""

    x: float
    y: float
    width: float
    height: float
    rgba: NDArray[np.uint8]
    """(rows, columns, 4) red, green, blue, opacity."""


Item = Rect | Line | Text | Pixels


@dataclass(frozen=True)
class Scene:
    """A picture: its size in pixels and its shapes, drawn in order.

    >>> Scene(10, 10, (Rect(0, 0, 5, 5, fill="#ff0000"),)).title
    ''
    """

    width: float
    height: float
    items: tuple[Item, ...]
    background: str = "#ffffff"
    title: str = ""


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _paint(fill: str | None, stroke: str | None = None, width: float = 1.0) -> str:
    parts = []
    for name, color in (("fill", fill), ("stroke", stroke)):
        if color is None:
            if name == "fill":
                parts.append('fill="none"')
            continue
        red, green, blue, alpha = rgba(color)
        parts.append(f'{name}="#{red:02x}{green:02x}{blue:02x}"')
        if alpha < 255:
            parts.append(f'{name}-opacity="{_number(alpha / 255)}"')
    if stroke is not None and width != 1:
        parts.append(f'stroke-width="{_number(width)}"')
    return " ".join(parts)


def png_bytes(image: Image.Image) -> bytes:
    """The image as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


# Characters XML cannot hold at all; a model's tokens may well contain them.
_FORBIDDEN = {code: 0x2400 + code for code in range(32) if code not in (9, 10, 13)} | {0xFFFE: 0xFFFD, 0xFFFF: 0xFFFD}


def _clean(text: str) -> str:
    return escape(text.translate(_FORBIDDEN).encode("utf-8", "replace").decode("utf-8"))


def _svg_item(item: Item) -> str:
    n = _number
    if isinstance(item, Rect):
        # sharp edges, or hairlines of the page show between neighbours
        radius = f' rx="{n(item.radius)}"' if item.radius else ' shape-rendering="crispEdges"'
        start = f'<rect x="{n(item.x)}" y="{n(item.y)}" width="{n(item.width)}" height="{n(item.height)}"{radius} '
        shape = start + _paint(item.fill, item.stroke, item.stroke_width)
        return f"{shape}><title>{_clean(item.tip)}</title></rect>" if item.tip else shape + "/>"
    if isinstance(item, Line):
        ends = f'x1="{n(item.x0)}" y1="{n(item.y0)}" x2="{n(item.x1)}" y2="{n(item.y1)}"'
        return f"<line {ends} {_paint(None, item.stroke, item.width)}/>"
    if isinstance(item, Text):
        extra = f' transform="rotate({n(item.rotate)} {n(item.x)} {n(item.y)})"' if item.rotate else ""
        extra += f' text-anchor="{item.anchor}"' if item.anchor != "start" else ""
        extra += ' font-weight="600"' if item.bold else ""
        extra += f' textLength="{n(item.length)}" lengthAdjust="spacingAndGlyphs"' if item.length else ""
        place = f'x="{n(item.x)}" y="{n(item.y)}" font-size="{n(item.size)}"'
        return f'<text {place} dominant-baseline="central" {_paint(item.fill)}{extra}>{_clean(item.text)}</text>'
    data = base64.b64encode(png_bytes(Image.fromarray(item.rgba, "RGBA"))).decode("ascii")
    box = f'x="{n(item.x)}" y="{n(item.y)}" width="{n(item.width)}" height="{n(item.height)}"'
    look = 'preserveAspectRatio="none" style="image-rendering:pixelated"'
    return f'<image {box} {look} href="data:image/png;base64,{data}"/>'


def render_svg(scene: Scene) -> str:
    """The scene as one SVG document that needs nothing else.

    >>> render_svg(Scene(4, 4, (Text(1, 2, "<b>"),))).count("&lt;b&gt;")
    1
    """
    size = f'width="{_number(scene.width)}" height="{_number(scene.height)}"'
    view = f'viewBox="0 0 {_number(scene.width)} {_number(scene.height)}"'
    look = f'role="img" font-family={quoteattr(FONT_FAMILY)} xml:space="preserve"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view} {look}>'
    title = f"<title>{_clean(scene.title)}</title>" if scene.title else ""
    ground = _svg_item(Rect(0, 0, scene.width, scene.height, fill=scene.background))
    return "\n".join([head + title, ground, *_svg_lines(scene.items), "</svg>"]) + "\n"


def _svg_lines(items: Iterable[Item]) -> list[str]:
    return [_svg_item(item) for item in items]
