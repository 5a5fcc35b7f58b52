"""Pictures without a browser: a heat map and a token strip as scenes, saved as SVG or PNG."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from interp_widgets.atomic import whole_file
from interp_widgets.figures.map_picture import heatmap_scene
from interp_widgets.figures.raster import render_png
from interp_widgets.figures.scene import Item, Line, Pixels, Rect, Scene, Text, render_svg
from interp_widgets.figures.strip_picture import strip_scene

__all__ = [
    "Item", "Line", "Pixels", "Rect", "Scene", "Text",
    "heatmap_scene", "render_png", "render_svg", "save_scene", "stack_scenes", "strip_scene",
]  # fmt: skip


def save_scene(scene: Scene, path: str | Path, *, scale: float = 2.0) -> Path:
    """Write the scene as SVG or PNG, by the ending of `path`; ValueError for any other ending."""
    path = Path(path)
    if path.suffix.lower() not in (".svg", ".png"):
        raise ValueError(f"a picture is saved as .svg or .png, got {path.name!r}")
    with whole_file(path) as draft:
        if path.suffix.lower() == ".svg":
            draft.write_text(render_svg(scene), encoding="utf-8")
        else:
            draft.write_bytes(render_png(scene, scale))
    return path


def _moved(item: Item, right: float, down: float) -> Item:
    if isinstance(item, Line):
        return Line(item.x0 + right, item.y0 + down, item.x1 + right, item.y1 + down, item.stroke, item.width)
    return type(item)(**{**item.__dict__, "x": item.x + right, "y": item.y + down})


def stack_scenes(scenes: Iterable[Scene], *, columns: int = 1, gap: float = 8.0, title: str = "") -> Scene:
    """Several scenes below one another as one, or row by row in a grid of `columns` (at least 1)."""
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    held = list(scenes)
    items: list[Item] = []
    y = width = 0.0
    for start in range(0, len(held), columns):
        x = 0.0
        for scene in held[start : start + columns]:
            items += [_moved(item, x, y) for item in scene.items]
            x += scene.width + gap
        y += max(scene.height for scene in held[start : start + columns]) + gap
        width = max(width, x - gap)
    return Scene(width, max(1.0, y - gap), tuple(items), title=title)
