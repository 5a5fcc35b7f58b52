"""Pictures without a browser: right colours at the right places, nothing outside, no text that breaks out."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from interp_widgets.figures import raster
from interp_widgets.figures.labels import axis_name, number, visible
from interp_widgets.figures.scene import Line, Pixels, Rect, Scene, Text
from interp_widgets.figures.static import (
    heatmap_scene,
    render_png,
    render_svg,
    save_scene,
    stack_scenes,
    strip_scene,
)
from interp_widgets.figures.theme import MARK, SEQUENTIAL256, TOKENS256, over, rgba

HOSTILE = ["<script>alert(1)</script>", " & ", "\x00\x1b[31m", "\ud800", "مرحبا", " 😀", "\n", "", "  two", "\t"]


def picture(scene: Scene, scale: float = 1.0) -> Image.Image:
    return Image.open(io.BytesIO(render_png(scene, scale))).convert("RGB")


def test_svg_is_one_document_that_escapes_every_token() -> None:
    svg = render_svg(strip_scene(HOSTILE, np.linspace(0, 1, len(HOSTILE)), title="<b>"))
    root = ET.fromstring(svg)
    assert root.tag.endswith("svg")
    assert "<script" not in svg
    assert "&lt;script&gt;" in svg
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert "http://" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_png_has_the_size_asked_for() -> None:
    scene = Scene(30, 20, (Rect(0, 0, 10, 10, fill="#ff0000"), Line(0, 15, 30, 15, "#0000ff", 2), Text(2, 5, "a")))
    assert picture(scene, 2).size == (60, 40)
    assert picture(scene).getpixel((20, 5)) == (255, 255, 255)
    with pytest.raises(ValueError, match="scale must be above 0, got 0"):
        render_png(scene, 0)


def test_map_shows_each_cell_in_its_colour() -> None:
    matrix = np.linspace(0, 1, 12).reshape(3, 4)
    matrix[1, 2] = np.nan
    scene = heatmap_scene(matrix, ["a", "b", "c"], list("wxyz"), width=600)
    cells = [item for item in scene.items if isinstance(item, Rect) and "→" in item.tip]
    assert len(cells) == 12
    image = picture(scene)
    for cell, value in zip(cells, matrix.flat, strict=True):
        middle = (round(cell.x + cell.width / 2), round(cell.y + cell.height / 2))
        expected = "#e1e3e6" if np.isnan(value) else SEQUENTIAL256[round(value * 255)]
        assert image.getpixel(middle) == rgba(expected)[:3], (cell.tip, value)
    assert cells[5].tip == "b (1) → x (1): 0.455"


def test_large_map_is_one_image_with_thinned_names() -> None:
    matrix = np.zeros((2000, 300))
    matrix[1999, 0] = 1
    scene = heatmap_scene(matrix, [f"row{i}" for i in range(2000)], [f"c{j}" for j in range(300)], width=900)
    pixels = next(item for item in scene.items if isinstance(item, Pixels) and item.rgba.shape[0] == 2000)
    assert tuple(pixels.rgba[1999, 0][:3]) == rgba(SEQUENTIAL256[-1])[:3]
    texts = [item for item in scene.items if isinstance(item, Text)]
    assert len(texts) < 150, "2,300 names cannot be read"
    assert len(render_svg(scene)) < 200_000


@pytest.mark.parametrize("width", [400, 900])
def test_strip_stays_inside_its_width(width: int) -> None:
    tokens = ["word" * (1 + i % 7) for i in range(120)] + ["x" * 400]
    scene = strip_scene(tokens, np.arange(121), density=np.arange(121), marks=[[3, 9]], width=width, title="t")
    boxes = [item for item in scene.items if isinstance(item, Rect)]
    assert max(box.x + box.width for box in boxes) <= width
    assert max(box.y + box.height for box in boxes) <= scene.height
    rows = sorted({box.y for box in boxes if box.height == 22})
    assert len(rows) > 3
    assert min(np.diff(rows)) >= 22, "lines must not overlap"


def test_strip_shades_marks_and_breaks_lines() -> None:
    scene = strip_scene(["a", "\n", "b"], [0.0, np.nan, 1.0], marks=[[0, 1]])
    boxes = [item for item in scene.items if isinstance(item, Rect)]
    assert [box.fill for box in boxes] == [TOKENS256[0], None, TOKENS256[255]]
    assert boxes[2].y > boxes[1].y
    assert boxes[2].x == boxes[0].x
    assert [item.stroke for item in scene.items if isinstance(item, Line)] == [MARK]
    image = picture(scene)
    assert image.getpixel((round(boxes[2].x) + 2, round(boxes[2].y) + 2)) == rgba(over(TOKENS256[255]))[:3]


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_can_be_measured_and_drawn(text: str) -> None:
    shown = visible(text)
    assert raster.text_width(shown) >= 0
    render_png(Scene(80, 20, (Text(2, 10, shown, rotate=-45),)))
    ET.fromstring(render_svg(Scene(80, 20, (Text(2, 10, shown),))))


def test_missing_glyphs_are_drawn_from_another_font_or_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def ink(text: str) -> int:
        return int((np.asarray(picture(Scene(60, 20, (Text(2, 10, text),)))) < 128).sum())

    assert ink("⏎") > 0
    for cached in (raster._font_of, raster._missing, raster.text_width):
        cached.cache_clear()
    monkeypatch.setattr(raster, "_FALLBACKS", ())
    assert [raster._font_of(char)[1] for char in "⏎é中·"] == ["\\n", "e", "?", "·"]
    assert ink("⏎") > 0
    for cached in (raster._font_of, raster._missing, raster.text_width):
        cached.cache_clear()


def test_shorten_fits() -> None:
    assert raster.shorten("short", 500) == "short"
    cut = raster.shorten("a rather long label", 50)
    assert cut.endswith("…")
    assert raster.text_width(cut) <= 50
    assert raster.shorten("abc", 1) == ""


def test_saving_and_stacking(tmp_path: Path) -> None:
    one = heatmap_scene([[0.0, 1.0]])
    both = stack_scenes([one, strip_scene(["a"]), Scene(5, 5, (Line(0, 0, 5, 5, "#000000"),))], title="both")
    assert both.height == pytest.approx(one.height + strip_scene(["a"]).height + 5 + 16)
    assert both.width == 900
    grid = stack_scenes([one, one, one], columns=2)
    assert (grid.width, grid.height) == (2 * one.width + 8, pytest.approx(2 * one.height + 8))
    with pytest.raises(ValueError, match="columns must be at least 1, got 0"):
        stack_scenes([one], columns=0)
    for name in ("a.svg", "b.PNG"):
        assert save_scene(both, tmp_path / name).stat().st_size > 200
    with pytest.raises(ValueError, match=r"saved as .svg or .png, got 'a.gif'"):
        save_scene(both, tmp_path / "a.gif")


def test_marked_columns_and_numbers_in_cells() -> None:
    def texts(**options: Any) -> dict[str, str]:
        shown = heatmap_scene([[0.001, -0.5, 120.4]], ["a"], ["x", "y", "z"], vmin=-900, vmax=900, **options).items
        return {item.text: item.fill for item in shown if isinstance(item, Text)}

    plain, marked = texts(), texts(column_marks=[[1, 2]])
    assert [name for name in "axyz" if plain[name] != marked[name]] == ["y"]
    assert {"−0.5", "120"} <= set(texts(numbers_from=0.1))
    assert not {"−0.5", "120"} & set(plain)
    narrow = texts(numbers_from=0.1, width=160)
    assert not {"−0.5", "120"} & set(narrow), "where one number does not fit, none is written, and none is cut"


def test_logarithmic_scale_and_its_reverse_put_the_best_rank_on_top() -> None:
    ranks = [[0.0, 9.0, 99.0, 999.0]]
    plain = heatmap_scene(ranks * 8, vmin=0, vmax=999, scale="log")
    turned = heatmap_scene(ranks * 8, vmin=0, vmax=999, scale="log", reverse=True)

    def cells(scene: Scene) -> list[str | None]:
        return [item.fill for item in scene.items if isinstance(item, Rect) and "→" in item.tip][:4]

    assert cells(plain) == [SEQUENTIAL256[k] for k in (0, 85, 170, 255)], "each power of ten is a third of the way"
    assert cells(turned) == cells(plain)[::-1]
    heights = {}
    for name, scene in (("plain", plain), ("turned", turned)):
        bar = next(item for item in scene.items if isinstance(item, Line) and item.x1 - item.x0 == 3)
        named = {item.text: item.y for item in scene.items if isinstance(item, Text) and item.x == bar.x1 + 3}
        assert list(named) == ["0", "1", "10", "100", "999"]
        heights[name] = [named["0"], named["10"], named["999"]]
    assert heights["plain"] == sorted(heights["plain"], reverse=True)
    assert heights["turned"] == sorted(heights["turned"])


def test_marked_cells_and_labels_of_two() -> None:
    matrix, options = np.zeros((2, 3)), {"width": 500}
    plain = heatmap_scene(matrix, **options).items
    lines = [item for item in plain if isinstance(item, Line)]
    scene = heatmap_scene(matrix, edges=[[1, 2]], crossed=[[0, 1]], **options)
    marked = [item for item in scene.items if isinstance(item, Line) and item not in lines]
    assert len(marked) == 6, "a line and the two strokes of a cross, each with a dark rim"
    edge, cross = marked[3], marked[4]
    cells = [item for item in plain if isinstance(item, Rect) and "→" in item.tip]
    assert edge.y0 == edge.y1 == pytest.approx(cells[5].y, abs=2)
    assert cells[5].x <= edge.x0 < edge.x1 <= cells[5].x + cells[5].width
    assert cells[1].x + cells[1].width / 2 < cross.x0 < cross.x1 < cells[1].x + cells[1].width
    assert cross.y1 < cells[1].y + cells[1].height / 2

    def lines(text: str, *, rows: int, columns: int = 8) -> list[str]:
        """What stands in the first cell; more than 12 rows are lower ones."""
        shape, texts = np.zeros((rows, columns)), [text] + [""] * (rows * columns - 1)
        without = heatmap_scene(shape, texts=[""] * (rows * columns), width=700).items
        found = [item for item in heatmap_scene(shape, texts=texts, width=700).items if isinstance(item, Text)]
        return [item.text for item in found if item not in [one for one in without if isinstance(one, Text)]]

    assert lines("a → b", rows=2) == lines("a → b", rows=20) == ["a → b"]
    assert lines("long word → other one", rows=2) == ["long word", "→other one"]
    left, right = lines("long word → other one", rows=20)[0].split(" → ")
    assert left.endswith("…")
    assert right.endswith("…")
    assert lines("a → something long indeed", rows=20)[0].startswith("a → some")
    assert lines("long word → other one", rows=20, columns=20) == [], "neither could be told"
    assert lines("word", rows=2, columns=24) == [], "a mark and an ellipsis say nothing"


def test_bars_of_both_signs_leave_a_zero_in_the_middle() -> None:
    def bars(values: list[float], **options: Any) -> list[Rect]:
        rows = len(values)
        with_bars = heatmap_scene(np.zeros((rows, 2)), row_bars=values, **options).items
        plain = heatmap_scene(np.zeros((rows, 2))).items
        tall = {item for item in plain if isinstance(item, Rect)}
        return [item for item in with_bars if isinstance(item, Rect) and item not in tall and not item.stroke][-rows:]

    negative, half, full = bars([-2.0, 1.0, 2.0])
    assert negative.x + negative.width == pytest.approx(half.x) == pytest.approx(full.x)
    assert negative.width == pytest.approx(full.width) == pytest.approx(2 * half.width)
    assert negative.fill != full.fill
    (alone,) = bars([1.0])
    assert alone.width == pytest.approx(2 * full.width)
    (kept,) = bars([1.0], row_bars_signed=True, row_bars_max=4.0)
    assert kept.x == pytest.approx(alone.x + 40)
    assert kept.width == pytest.approx(full.width / 4)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(rows, columns\) matrix, got shape \(3,\)"):
        heatmap_scene([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="each of the 2 tokens, got shape"):
        strip_scene(["a", "b"], [1.0])
    with pytest.raises(ValueError, match="each of the 1 rows"):
        heatmap_scene([[1.0, 2.0]], row_bars=[1.0, 2.0])
    assert heatmap_scene(np.zeros((0, 0))).items


def test_numbers_and_names() -> None:
    assert [number(v) for v in (0.0, -0.12345, 1234.5, float("nan"))] == ["0", "−0.123", "1234", "no value"]
    assert axis_name("layer 0") == "layer 0"
    assert axis_name(" a b ") == "·a b·"
    assert axis_name("  ") == "··"
