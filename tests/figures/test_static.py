"""Pictures without a browser: right colours at the right places, nothing outside, no text that breaks out."""

from __future__ import annotations

import logging
import threading
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from interp_widgets.figures.labels import axis_name, number
from interp_widgets.figures.static import (
    Scene,
    aligned_scene,
    curves_scene,
    heatmap_scene,
    laid_out,
    render_png,
    render_svg,
    save_scene,
    stack_scenes,
    strip_scene,
    table_scene,
)
from interp_widgets.figures.static.scene import fonts, shorten, text_width
from interp_widgets.figures.theme import MARK, SELECT, SEQUENTIAL256, TOKENS256, over, rgba
from tests.pictures import Piece, differs, image, pieces, text_colours, text_places, texts

HOSTILE = ["<script>alert(1)</script>", " & ", "\x00\x1b[31m", "\ud800", "مرحبا", " 😀", "中文", "$x_1$", "\n", "",
           "  two", "\t"]  # fmt: skip


def test_svg_is_one_document_that_escapes_every_token() -> None:
    svg = render_svg(strip_scene(HOSTILE, np.linspace(0, 1, len(HOSTILE)), title="<b>"))
    root = ET.fromstring(svg)
    assert root.tag.endswith("svg")
    assert "<script" not in svg
    assert "&lt;script&gt;" in svg
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    links = [value for element in root.iter() for name, value in element.attrib.items() if name.endswith("href")]
    assert all(link.startswith(("#", "data:")) for link in links), "nothing may be fetched"


def test_texts_of_an_svg_can_be_searched_whatever_characters_they_have() -> None:
    shown = texts(strip_scene(HOSTILE, title="$a$ <b>"))
    assert {"$a$ <b>", "مرحبا", "·😀", "中文", "$x_1$", "⏎", "⇥", "··two"} <= set(shown)


def test_characters_without_a_font_are_boxes_and_no_warnings(caplog: pytest.LogCaptureFixture) -> None:
    def ink(text: str) -> int:
        scene = strip_scene([text])
        return int((np.asarray(image(scene)) < 128).sum())

    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        assert ink(" ") < ink("中"), "no character may turn into nothing"
        assert min(ink(text) for text in ("中", "😀", "\ue000", "한", "ก")) > 20
    assert not caplog.records
    assert fonts()[0] == "DejaVu Sans"


def test_pictures_do_not_depend_on_the_readers_style_and_leave_it_as_it_was() -> None:
    scene = stack_scenes([heatmap_scene([[0.0, 1.0]], title="t"), strip_scene(["a"], [1.0])])
    plain = render_svg(scene), render_png(scene)
    assert plain == (render_svg(scene), render_png(scene)), "the same picture is the same file"
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "lines.linewidth": 9, "text.color": "red",
                                "svg.fonttype": "path", "axes.grid": True}):  # fmt: skip
        before = dict(matplotlib.rcParams)
        assert plain == (render_svg(scene), render_png(scene))
        assert dict(matplotlib.rcParams) == before


def test_pictures_can_be_drawn_in_several_threads() -> None:
    scene = heatmap_scene(np.arange(12.0).reshape(3, 4), title="t", value_label="nats")
    expected, before, found = render_svg(scene), dict(matplotlib.rcParams), []
    threads = [threading.Thread(target=lambda: found.append(render_svg(scene))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
    assert dict(matplotlib.rcParams) == before


def test_png_has_the_size_asked_for() -> None:
    scene = Scene(30, 20, lambda sheet: sheet.text(2, 5, "a"))
    assert image(scene, 2).size == (60, 40)
    assert image(scene).getpixel((20, 15)) == (255, 255, 255)
    with pytest.raises(ValueError, match="scale must be above 0, got 0"):
        render_png(scene, 0)


def test_map_shows_each_cell_in_its_colour() -> None:
    matrix = np.linspace(0, 1, 12).reshape(3, 4)
    matrix[1, 2] = np.nan
    scene = heatmap_scene(matrix, ["a", "b", "c"], list("wxyz"), width=600)
    cells = pieces(scene)
    assert len(cells) == 12
    pixels = image(scene)
    for cell, value in zip(cells, matrix.flat, strict=True):
        expected = "#e1e3e6" if np.isnan(value) else SEQUENTIAL256[min(255, int(value * 256))]
        assert cell.fill == expected, (cell.tip, value)
        assert pixels.getpixel(cell.middle) == rgba(expected)[:3], (cell.tip, value)
    assert cells[5].tip == "b (1) → x (1): 0.455"


def test_a_map_too_wide_for_its_place_goes_on_below() -> None:
    names, words = [f"n{index}" for index in range(23)], [f"w{index}" for index in range(46)]

    def scene() -> Scene:
        return heatmap_scene(
            np.arange(46.0).reshape(2, 23), ["a", "b"], names, title="t", texts=words, column_marks=[[3, 9]],
            heads=[f"h{n}" for n in names], heads_name="head", crossed=[[0, 4]], edges=[[1, 5]], muted=[[0, 22]],
            column_width=60,
        )  # fmt: skip

    whole = scene()
    with laid_out(420):
        parts = scene()
    assert parts.width <= 420 < whole.width
    assert sorted(set(texts(parts))) == sorted(set(texts(whole)))
    places, count = text_places(parts), texts(parts).count
    assert all(count(name) == 1 for name in ["t", *names, *words])
    assert places["n0"][1] < places["n22"][1]
    for column, name in enumerate(names):
        above, below = places[f"w{column}"], places[f"w{column + 23}"]
        assert above[0] == pytest.approx(below[0])
        assert above[1] < below[1] < places[name][1]
    shades = [{(piece.tip, piece.fill) for piece in pieces(one) if "→" in piece.tip} for one in (whole, parts)]
    assert shades[0] == shades[1] != set(), "one scale for all parts"
    marked = text_colours(parts)
    assert [name for name in names if marked[name] == MARK] == names[3:9]


def test_a_title_is_made_smaller_before_it_is_cut() -> None:
    title = "A title that is too long where its letters are large"
    assert text_width(title, 15) > 320 - 24 > text_width(title, 11)
    with laid_out(320):
        assert title in texts(heatmap_scene(np.zeros((2, 9)), title=title))
        assert title * 2 not in texts(heatmap_scene(np.zeros((2, 9)), title=title * 2))


def test_a_table_too_wide_for_its_place_goes_on_below_beside_its_first_column() -> None:
    def scene() -> Scene:
        columns = [("prompt", 300), *((name, 120) for name in "abc")]
        return table_scene(columns, [["one", 1, 2, 3], ["two", 4, 5, 6]], title="t", right=[1, 3])

    with laid_out(420):
        parts = scene()
    assert parts.width <= 420 < scene().width
    assert texts(parts) == ["t", "prompt", "a", "one", "1", "two", "4", "prompt", "b", "one", "2", "two", "5", "prompt",
                            "c", "one", "3", "two", "6"]  # fmt: skip


@pytest.mark.seconds
def test_large_map_is_one_image_with_thinned_names() -> None:
    matrix = np.zeros((2000, 300))
    matrix[1900:, :20] = 1
    scene = heatmap_scene(matrix, [f"row{i}" for i in range(2000)], [f"c{j}" for j in range(300)], width=900)
    assert render_svg(scene).count("<image") == 2, "the map, and the colour bar"
    assert pieces(scene) == []
    (left,) = [axes for axes in scene.figure().axes if axes.images]
    corner = left.transData.transform((10, 1950))
    pixel = (round(corner[0]), round(scene.height - corner[1]))
    assert image(scene).getpixel(pixel) == rgba(SEQUENTIAL256[-1])[:3]
    assert len(texts(scene)) < 150, "2,300 names cannot be read"
    assert len(render_svg(scene)) < 200_000


@pytest.mark.seconds
@pytest.mark.parametrize("width", [400, 900])
def test_strip_stays_inside_its_width(width: int) -> None:
    tokens = ["word" * (1 + i % 7) for i in range(120)] + ["x" * 400]
    scene = strip_scene(tokens, np.arange(121), density=np.arange(121), marks=[[3, 9]], width=width, title="t")
    boxes = pieces(scene)
    assert len(boxes) == 121
    assert max(box.right for box in boxes) <= width
    assert max(box.bottom for box in boxes) <= scene.height
    rows = sorted({round(box.top, 2) for box in boxes})
    assert len(rows) > 3
    assert min(np.diff(rows)) >= 22, "lines must not overlap"
    for box in boxes[:-1]:
        name = box.tip.split(":")[0]
        assert text_width(name, 14) <= box.right - box.left, "no text is wider than its box"


def test_strip_shades_marks_and_breaks_lines() -> None:
    scene = strip_scene(["a", "\n", "b"], [0.0, np.nan, 1.0], marks=[[0, 1]])
    boxes = pieces(scene)
    assert [box.tip for box in boxes] == ["a: 0", "⏎: no value", "b: 1"]
    assert boxes[2].top > boxes[1].top
    assert boxes[2].left == boxes[0].left
    pixels = image(scene)
    seen = [pixels.getpixel((box.middle[0], round(box.top) + 2)) for box in boxes]
    assert seen == [rgba(over(TOKENS256[0]))[:3], (255, 255, 255), rgba(over(TOKENS256[255]))[:3]]
    under = [pixels.getpixel((box.middle[0], round(box.bottom + 1.5))) for box in boxes]
    assert [pixel == rgba(MARK)[:3] for pixel in under] == [True, False, False]


@pytest.mark.parametrize(("signed", "share", "colour"), [(False, 1.0, SELECT), (True, 1.0, MARK), (True, -1.0, SELECT)])
def test_arcs_stand_above_the_line_as_wide_as_their_numbers(signed: bool, share: float, colour: str) -> None:
    words = [f"word{at}" for at in range(12)]

    def drawn(**options: Any) -> int:
        pixels = np.asarray(image(strip_scene(words, vmin=-signed, width=300, **options)))
        return int((np.abs(pixels - np.array(rgba(over(colour + "bf"))[:3])).sum(-1) < 30).sum())

    wide, narrow = drawn(arcs=[[3, 1, share]]), drawn(arcs=[[3, 1, share / 4]])
    assert wide > 2 * narrow > 0 == drawn()
    assert drawn(arcs=[[11, 0, share]]) > narrow, "to an earlier line"
    assert drawn(arcs=[[3, 3, share]]) > 0, "to itself"


def test_aligned_texts_stand_token_under_token_and_underline_what_differs() -> None:
    words = [f"word{at}" for at in range(30)]
    columns = [[0, 0], [1, 1], [2, -1], [-1, 2], *([at, at] for at in range(3, 30))]
    scene = aligned_scene(words, [words[0], "other", *words[2:]], columns, names=["Above", "Below"], width=400)
    assert scene.width == 400
    assert texts(scene)[:10] == ["Above", "Below", "word0", "word0", "word1", "other", "word2", "–", "–", "word2"]
    places = text_places(scene)
    assert places["word1"][0] == pytest.approx(places["other"][0], abs=1)
    assert places["word29"][1] > places["word3"][1], "it wraps"
    colours = np.asarray(image(scene))
    assert (colours == rgba(MARK)[:3]).all(-1).any()
    same = aligned_scene(words, words, [[at, at] for at in range(30)], width=400)
    assert not (np.asarray(image(same)) == rgba(MARK)[:3]).all(-1).any()


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_can_be_drawn_anywhere(text: str) -> None:
    assert text_width(text) >= 0
    options = {"title": text, "x_label": text, "y_label": text}
    heat = heatmap_scene([[1.0, 2.0]], [text], ["a", text], value_label=text, texts=[text] * 2, **options)
    table, lines = table_scene([(text, 80)], [[text]]), curves_scene([(text, [1.0, 2.0], True)], **options)
    scene = stack_scenes([heat, strip_scene([text]), table, lines], title=text)
    ET.fromstring(render_svg(scene))
    assert render_png(scene, 1.0)[1:4] == b"PNG"


def test_shorten_fits() -> None:
    assert shorten("short", 500) == "short"
    cut = shorten("a rather long label", 50)
    assert cut.endswith("…")
    assert text_width(cut) <= 50
    assert shorten("abc", 1) == ""


def test_saving_and_stacking(tmp_path: Path) -> None:
    one = heatmap_scene([[0.0, 1.0]])
    both = stack_scenes([one, strip_scene(["a"]), Scene(5, 5, lambda sheet: None)], title="both")
    assert both.height == pytest.approx(one.height + strip_scene(["a"]).height + 5 + 16)
    assert both.width == 900
    grid = stack_scenes([one, one, one], columns=2)
    assert (grid.width, grid.height) == (2 * one.width + 8, pytest.approx(2 * one.height + 8))
    cells = pieces(grid)
    assert [(cell.left, cell.top) for cell in cells[2::2]] == [
        pytest.approx((cells[0].left + right, cells[0].top + down), abs=0.01)
        for right, down in ((one.width + 8, 0), (0, one.height + 8))
    ]
    with pytest.raises(ValueError, match="columns must be at least 1, got 0"):
        stack_scenes([one], columns=0)
    for name in ("a.svg", "b.PNG"):
        assert save_scene(both, tmp_path / name).stat().st_size > 200
    assert "<title>both</title>" in (tmp_path / "a.svg").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"saved as .svg, .pdf or .png, got 'a.gif'"):
        save_scene(both, tmp_path / "a.gif")


def test_marked_columns_and_numbers_in_cells() -> None:
    def shown(**options: Any) -> dict[str, str]:
        matrix = [[0.001, -0.5, 120.4]]
        return text_colours(heatmap_scene(matrix, ["a"], ["x", "y", "z"], vmin=-900, vmax=900, **options))

    plain, marked = shown(), shown(column_marks=[[1, 2]])
    assert [name for name in "axyz" if plain[name] != marked[name]] == ["y"]
    assert marked["y"] == MARK
    assert {"−0.5", "120"} <= set(shown(numbers_from=0.1))
    assert not {"−0.5", "120"} & set(plain)
    narrow = shown(numbers_from=0.1, width=160)
    assert not {"−0.5", "120"} & set(narrow), "where one number does not fit, none is written, and none is cut"


def test_logarithmic_scale_and_its_reverse_put_the_best_rank_on_top() -> None:
    ranks = [[0.0, 9.0, 99.0, 999.0]] * 8
    plain = heatmap_scene(ranks, vmin=0, vmax=999, scale="log")
    turned = heatmap_scene(ranks, vmin=0, vmax=999, scale="log", reverse=True)
    fills = [[piece.fill for piece in pieces(scene)[:4]] for scene in (plain, turned)]
    assert fills[0] == [SEQUENTIAL256[k] for k in (0, 85, 170, 255)], "each power of ten is a third of the way"
    assert fills[1] == fills[0][::-1]
    heights = []
    for scene in (plain, turned):
        bar = {text: y for text, (x, y) in text_places(scene).items() if x > 220 and text in ("10", "100", "999")}
        assert len(bar) == 3
        heights.append([bar["10"], bar["100"], bar["999"]])
    assert heights[0] == sorted(heights[0], reverse=True)
    assert heights[1] == sorted(heights[1])


def test_a_map_says_what_its_numbers_are() -> None:
    scene = heatmap_scene([[-2.0, 3.0]], ["layer 0"], [" a", " b"], title="Effect", x_label="position",
                          y_label="layer", value_label="nats", row_bars=[1.5], row_bars_label="mean")  # fmt: skip
    assert {"Effect", "layer 0", "·a", "·b", "position", "layer", "nats", "mean", "1.5", "−2", "3"} <= set(texts(scene))
    for text, (x, y) in text_places(scene).items():
        assert 0 <= x <= scene.width, text
        assert 0 <= y <= scene.height, text


def test_marked_cells() -> None:
    matrix, options = np.zeros((2, 3)), {"width": 500}
    plain, marked = heatmap_scene(matrix, **options), heatmap_scene(matrix, edges=[[1, 2]], crossed=[[0, 1]], **options)
    changed = (np.asarray(image(plain, 2)) != np.asarray(image(marked, 2))).any(axis=2)
    cells = pieces(plain)

    def inside(cell: Piece) -> np.ndarray:
        top, bottom, left, right = (round(2 * v) for v in (cell.top, cell.bottom, cell.left, cell.right))
        return changed[top:bottom, left:right]

    edge, cross = inside(cells[5]), inside(cells[1])
    assert edge[:6].any()
    assert not edge[8:].any()
    assert cross[: len(cross) // 2, cross.shape[1] // 2 :].any()
    assert not cross[len(cross) // 2 :].any()
    assert not cross[:, : cross.shape[1] // 2].any()
    assert not any(inside(cells[k]).any() for k in (0, 3, 4))


@pytest.mark.parametrize("joined", [False, True])
def test_texts_stand_below_crosses(joined: bool) -> None:
    options: dict[str, Any] = {"texts": ["one", "two", "three", "four"], "joined": joined, "width": 500}
    plain, marked = (
        text_places(heatmap_scene(np.zeros((2, 2)), crossed=crossed, **options)) for crossed in ([], [[0, 1]])
    )
    for word in options["texts"]:
        assert marked[word] == pytest.approx((plain[word][0], plain[word][1] + 3), abs=0.01)


def test_equal_texts_below_each_other_are_written_once_where_they_fit() -> None:
    words = ["", "low", "long", "long", "long", "x", *["same"] * 94]
    found = texts(heatmap_scene(np.zeros((100, 1)), texts=words, joined=True))  # rows lower than a line
    assert (found.count("long"), found.count("same")) == (1, 1)
    assert "low" not in found
    assert "x" not in found
    split = texts(heatmap_scene(np.zeros((100, 1)), texts=words, joined=True, muted=[[row, 0] for row in range(30)]))
    assert split.count("same") == 2, "a grey run ends where the grey ends"


def test_muted_cells_have_no_colour() -> None:
    matrix = np.ones((2, 2))
    scene = heatmap_scene(matrix, vmin=0, vmax=1, muted=[[1, 0]], width=300)
    cells, drawn = pieces(heatmap_scene(matrix, vmin=0, vmax=1, width=300)), np.asarray(image(scene, 2))
    colours = [drawn[round(cell.top + cell.bottom), round(cell.left + cell.right)][:3].tolist() for cell in cells]
    assert colours[2] == [255, 255, 255]
    assert all(colours[k] != [255, 255, 255] for k in (0, 1, 3))


def test_heads_stand_above_their_columns() -> None:
    scene = heatmap_scene(np.zeros((2, 3)), heads=["a\n1", "b\n2", "c"], heads_name="word\nfrom", title="t")
    places = text_places(scene)
    assert places["a"][0] < places["b"][0] < places["c"][0]
    assert places["word"][1] == places["a"][1] != places["from"][1] == places["2"][1]
    assert places["t"][1] != places["word"][1]


@pytest.mark.seconds
def test_texts_of_two_stand_on_two_lines_or_both_are_cut() -> None:
    def lines(text: str, *, rows: int, columns: int = 8) -> list[str]:
        """What stands in the first cell; more than 12 rows are lower ones."""
        cells, held = np.zeros((rows, columns)), [text] + [""] * (rows * columns - 1)
        without = texts(heatmap_scene(cells, texts=[""] * (rows * columns), width=700))
        found = texts(heatmap_scene(cells, texts=held, width=700))
        return [text for text in found if text not in without]

    assert lines("a → b", rows=2) == lines("a → b", rows=20) == ["a → b"]
    assert lines("long word → other one", rows=2) == ["long word", "→other one"]
    left, right = lines("long word → other one", rows=20)[0].split(" → ")
    assert left.endswith("…")
    assert right.endswith("…")
    assert lines("a → something long indeed", rows=20)[0].startswith("a → so")
    assert lines("long word → other one", rows=20, columns=20) == [], "neither could be told"
    assert lines("word", rows=2, columns=24) == [], "a mark and an ellipsis say nothing"


def test_bars_of_both_signs_leave_a_zero_in_the_middle() -> None:
    def bars(values: list[float], **options: Any) -> list[Any]:
        figure = heatmap_scene(np.zeros((len(values), 2)), row_bars=values, **options).figure()
        (axes,) = [axes for axes in figure.axes if axes.patches and not axes.axison]
        boxes = [axes.transData.transform_bbox(patch.get_bbox()) for patch in axes.patches]
        return [(box.x0, box.x1, patch.get_facecolor()) for box, patch in zip(boxes, axes.patches, strict=True)]

    negative, half, full = bars([-2.0, 1.0, 2.0])
    zero = negative[0] if negative[0] > negative[1] else negative[1]
    assert zero == pytest.approx(half[0]) == pytest.approx(full[0])
    assert abs(negative[1] - negative[0]) == pytest.approx(full[1] - zero) == pytest.approx(2 * (half[1] - zero))
    assert negative[2] != full[2]
    (alone,) = bars([1.0])
    assert alone[1] - alone[0] == pytest.approx(2 * (full[1] - zero))
    (kept,) = bars([1.0], row_bars_signed=True, row_bars_max=4.0)
    assert kept[0] == pytest.approx(alone[0] + 40)
    assert kept[1] - kept[0] == pytest.approx((full[1] - zero) / 4)


def test_lines_are_drawn_where_their_numbers_are() -> None:
    scene = curves_scene([("one", [0.0, 2.0, np.nan, 1.0], True), ("two", [1.0, 1.0], False), ("dot", [3.0], True)],
                         title="T", x_label="step", y_label="nats")  # fmt: skip
    (axes,) = scene.figure().axes
    drawn = {tuple(np.nan_to_num(line.get_ydata(), nan=-9).tolist()): line.get_color() for line in axes.lines}
    assert set(drawn) == {(0.0, 2.0, -9.0, 1.0), (1.0, 1.0), (3.0,)}
    assert len(set(drawn.values())) == 3
    assert {"T", "step", "nats", "one", "dot"} <= set(texts(scene))
    assert "two" not in texts(scene), "only marked lines are named"
    assert differs(scene, curves_scene([("one", [0.0, 2.0], True)], title="T", x_label="step", y_label="nats"))


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(rows, columns\) matrix, got shape \(3,\)"):
        heatmap_scene([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="each of the 2 tokens, got shape"):
        strip_scene(["a", "b"], [1.0])
    with pytest.raises(ValueError, match="each of the 1 rows"):
        heatmap_scene([[1.0, 2.0]], row_bars=[1.0, 2.0])
    assert texts(heatmap_scene(np.zeros((0, 0)))) == ["Nothing to show"]
    assert pieces(strip_scene([])) == []


@pytest.mark.seconds
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 1e300, -1e300, 1e-320, 0.0, -3.0])
def test_odd_numbers_are_drawn_without_a_warning(odd: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in ({}, {"scale": "log"}, {"scale": "log", "reverse": True}, {"numbers_from": 0.0}):
            heat = heatmap_scene([[odd, 1.0], [odd, odd]], row_bars=[odd, 1.0], **options)
            assert len(pieces(heat)) == 4
            assert render_png(heat)
        for tokens in (["a", "b"], ["a"], []):
            values = [odd, 1.0][: len(tokens)]
            assert len(pieces(strip_scene(tokens, values, density=values))) == len(tokens)
        lines = curves_scene([("a", [odd, 1.0], True), ("b", [odd], False)], title="t", x_label="x", y_label="y")
        assert "a" in texts(lines)


def test_numbers_and_names() -> None:
    assert [number(v) for v in (0.0, -0.12345, 1234.5, float("nan"))] == ["0", "−0.123", "1234", "no value"]
    assert axis_name("layer 0") == "layer 0"
    assert axis_name(" a b ") == "·a b·"
    assert axis_name("  ") == "··"
