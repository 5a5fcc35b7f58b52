"""What a saved picture shows, read from its SVG and its pixels."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from interp_widgets.figures.static import Scene, render_png, render_svg

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Piece:
    """A drawn piece that says something under the pointer; lengths in pixels, y downwards."""

    tip: str
    fill: str
    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> tuple[int, int]:
        return round((self.left + self.right) / 2), round((self.top + self.bottom) / 2)


def texts(scene: Scene) -> list[str]:
    """All texts of a picture, in the order they are drawn in."""
    return [element.text or "" for element in ET.fromstring(render_svg(scene)).iter(f"{SVG}text")]


def text_colours(scene: Scene) -> dict[str, str]:
    """The colour of each text."""
    found = {}
    for element in ET.fromstring(render_svg(scene)).iter(f"{SVG}text"):
        colour = re.search(r"fill: (#\w{6})", element.attrib["style"])
        found[element.text or ""] = colour[1] if colour else "#000000"
    return found


def text_places(scene: Scene) -> dict[str, tuple[float, float]]:
    """Where each text stands, in pixels."""
    return {element.text or "": (float(element.attrib["x"]) / 0.75, float(element.attrib["y"]) / 0.75)
            for element in ET.fromstring(render_svg(scene)).iter(f"{SVG}text") if "x" in element.attrib}  # fmt: skip


def pieces(scene: Scene) -> list[Piece]:
    """All pieces that say something under the pointer, in the order they are drawn in."""
    found = []
    for element in ET.fromstring(render_svg(scene)).iter():
        title = element.find(f"{SVG}title")
        if title is None or "style" not in element.attrib:
            continue
        if "d" in element.attrib:
            numbers = np.array(re.findall(r"-?[\d.]+", element.attrib["d"]), dtype=float).reshape(-1, 2) / 0.75
        else:
            numbers = np.array([[float(element.attrib[side]) for side in "xy"]]) / 0.75
        colour = re.search(r"fill: (#\w{6}|none)", element.attrib["style"])
        fill = colour[1] if colour else "#000000"
        found.append(Piece(title.text or "", fill, *numbers.min(axis=0), *numbers.max(axis=0)))
    return found


def image(scene: Scene, scale: float = 1.0) -> Image.Image:
    """The picture in pixels."""
    return Image.open(io.BytesIO(render_png(scene, scale))).convert("RGB")


def differs(one: Scene, other: Scene) -> bool:
    """Whether two pictures look different."""
    first, second = np.asarray(image(one)), np.asarray(image(other))
    return first.shape != second.shape or bool((first != second).any())


ALIKE = 0.02
"""Share of what is drawn that may look different: the seconds a run took, and roundings of other processors."""
BLOCK = 8
"""Pixels, across and down, of which only the mean counts: letters are drawn a little different by each browser."""
VISIBLE = 12
"""Levels of 255 by which the mean of a block must differ."""


def keep(png: bytes, path: Path) -> None:
    """Write a picture without loss, at half the size of a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(io.BytesIO(png)).convert("RGB").save(path, lossless=True, method=6)


def share_unlike(png: bytes, stored: Path) -> float:
    """The share of what is drawn that differs visibly from a stored picture; an empty ground is not counted.

    What only one of them has is different, where it is drawn or not: a higher panel, a cut one.
    """
    pictures = [_blocks(Image.open(file)) for file in (io.BytesIO(png), stored)]
    rows, columns = (max(picture.shape[axis] for picture in pictures) for axis in (0, 1))
    first, second = (_extended(picture, rows, columns) for picture in pictures)
    differs = ~(np.abs(first - second).max(axis=2) <= VISIBLE)  # beyond an edge there is no number
    ground = np.median(second.reshape(-1, 3)[np.isfinite(second).all(axis=2).ravel()], axis=0)
    drawn = (np.abs(second - ground).max(axis=2) > VISIBLE) | differs
    return float(differs.sum() / max(1, drawn.sum()))


def _blocks(picture: Image.Image) -> NDArray[np.float64]:
    """The mean colour of each block."""
    pixels = np.asarray(picture.convert("RGB"), dtype=float)
    rows, columns = (size // BLOCK for size in pixels.shape[:2])
    means: NDArray[np.float64] = (
        pixels[: rows * BLOCK, : columns * BLOCK].reshape(rows, BLOCK, columns, BLOCK, 3).mean(axis=(1, 3))
    )
    return means


def _extended(blocks: NDArray[np.float64], rows: int, columns: int) -> NDArray[np.float64]:
    """With NaN beyond the edges."""
    return np.pad(blocks, ((0, rows - blocks.shape[0]), (0, columns - blocks.shape[1]), (0, 0)), constant_values=np.nan)
