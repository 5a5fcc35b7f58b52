"""The map of concepts: every number drawn is the map's, picks reach Python, and it can be saved at any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bokeh.events import SelectionGeometry
from bokeh.models import GlyphRenderer

from interp_widgets.analysis.concepts import ConceptMap
from interp_widgets.figures.concepts import LOOKS, ConceptMapFigure, concept_map_scene, group_looks
from interp_widgets.figures.concepts.glyphs import EQUAL_ASPECT, MANY_POINTS, NAMES
from interp_widgets.figures.concepts.names import MOST_NAMES, name_order, placed_names
from interp_widgets.figures.static import render_png, render_svg
from interp_widgets.figures.theme import MARK, PALETTE8, SELECT, rgba
from tests.pictures import image, pieces, texts


def a_map(count: int = 60, *, two: bool = False, kinds: int = 4, **changes: Any) -> ConceptMap:
    rng = np.random.default_rng(0)
    xy = rng.normal(size=(count, 2)) * [3, 5]
    fields: dict[str, Any] = {
        "names": [f"concept {i}" for i in range(count)],
        "groups": [f"group {i % kinds}" for i in range(count)],
        "xy": xy,
        "method": "umap",
        "recall": 0.42,
    }
    if two:
        fields |= {"other_xy": xy + 1, "moved": np.linspace(0, 1, count)}
    return ConceptMap(**(fields | changes))


def pick(chart: ConceptMapFigure, indices: list[int], kind: str = "poly", **place: float) -> None:
    """What the page sends after a tap or a lasso."""
    chart.source.selected.indices = indices
    chart._picked(SelectionGeometry(chart.figure, geometry={"type": kind, **place}, final=True))


def test_points_are_the_maps() -> None:
    places = a_map(kinds=3)
    chart = ConceptMapFigure(places)
    np.testing.assert_array_equal(chart.source.data["x"], places.xy[:, 0])
    np.testing.assert_array_equal(chart.source.data["y"], places.xy[:, 1])
    assert chart.source.data["name"] == list(places.names)
    colors = [rgba(PALETTE8[i % 3]) for i in range(60)]
    assert [tuple(row) for row in chart.source.data["color"].tolist()] == colors
    assert [item.label.value for item in chart._groups if item.visible] == ["group 0", "group 1", "group 2"]
    assert chart.figure.xaxis[0].axis_label == "UMAP 1 (no unit)"
    assert "60 concepts" in str(chart._subtitle.text)
    assert "42%" in str(chart._subtitle.text)
    assert chart.message == ""
    renderer = chart.figure.select_one({"type": GlyphRenderer, "name": "points"})
    assert MANY_POINTS in renderer.tags


def test_the_page_knows_the_tags() -> None:
    from interp_widgets.widgets.views.base import view_source

    assert f"MANY_POINTS = '{MANY_POINTS}'" in view_source("bokeh_points")
    assert f"NAMES = '{NAMES}'" in view_source("bokeh_map")
    assert f"EQUAL_ASPECT = '{EQUAL_ASPECT}'" in view_source("bokeh_map")
    assert f"MOST_NAMES = {MOST_NAMES}," in view_source("bokeh_map")
    chart = ConceptMapFigure(a_map())
    assert EQUAL_ASPECT in chart.figure.tags
    assert NAMES in chart.figure.select_one({"type": GlyphRenderer, "name": "marks"}).tags


def test_groups_are_told_apart_by_colour_and_shape() -> None:
    groups = [f"g{i:02}" for i in range(36) for _ in range(40 - i)] + ["", ""]
    looks, labels = group_looks(groups)
    assert len(set(LOOKS)) == len(LOOKS) == 33
    assert {LOOKS[i].shape for i in range(8)} == {"circle"}
    assert labels == [*(f"g{i:02}" for i in range(32)), "4 other groups"]
    assert looks[0] == 0
    assert set(looks[[i for i, group in enumerate(groups) if group in ("g33", "")]]) == {32}
    assert group_looks(["a", ""])[1] == ["a", *[""] * 31, "no group"]
    assert group_looks(["a"])[1][32] == ""
    long = group_looks(["a very long name of a group"])[1][0]
    assert long.endswith("…")
    assert len(long) <= 18
    chart = ConceptMapFigure(a_map(kinds=14))
    data = chart.source.data
    assert len({(*color, shape) for color, shape in zip(data["color"].tolist(), data["shape"], strict=True)}) == 14
    assert sum(item.visible for item in chart._groups) == 14


def test_every_group_is_named_before_any_is_named_twice() -> None:
    looks = np.array([0, 0, 0, 2, 2, 1])
    assert name_order(looks).tolist() == [0, 5, 3, 1, 4, 2]
    chart = ConceptMapFigure(a_map(kinds=3))
    assert chart.source.data["rank"][:4].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("spread", [1.0, 0.2])
def test_names_cover_no_point_and_no_name(spread: float) -> None:
    rng = np.random.default_rng(0)
    at = 400 + spread * rng.uniform(-400, 400, size=(300, 2))
    names = [f"concept {i}" for i in range(300)]
    placed = placed_names(at, names, range(300), (800, 800))
    boxes = [(one.left, one.middle - 7, one.left + 6.0 * len(names[one.concept]), one.middle + 7) for one in placed]
    for number, (left, top, right, bottom) in enumerate(boxes):
        assert not ((at > [left, top]) & (at < [right, bottom])).all(axis=1).any()
        assert left >= 0
        assert top >= 0
        assert all(
            right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top for other in boxes[:number]
        )
    assert len(placed) > 15
    apart = placed_names(np.array([[100.0, 100.0], [100.0, 130.0]]), ["a", "b"], [1, 0], (200, 200))
    assert [one.concept for one in apart] == [1, 0], "the first is placed first"
    assert placed_names(np.full((40, 2), 50.0), ["a"] * 40, range(1), (200, 200)), "its own point is no obstacle"


def test_the_chosen_name_stands_among_dense_points() -> None:
    rng = np.random.default_rng(1)
    at = 200 + rng.normal(size=(400, 2)) * 12
    at[0] = at[1:].mean(axis=0)  # in the middle of them
    names = [f"concept {i}" for i in range(400)]
    assert 0 not in [one.concept for one in placed_names(at, names, range(400), (400, 400))]
    for width, place in ((400, 0), (230, 1)):  # to the right, or where that leaves the map
        first = placed_names(at, names, range(400), (width, 400), chosen=0)[0]
        assert first.concept == 0
        assert (first.left > at[0, 0]) == (place == 0)
        assert 0 <= first.left <= width
    assert not placed_names(np.full((40, 2), 900.0), names, range(40), (400, 400), chosen=0), "out of sight"


def test_a_tap_chooses_and_a_lasso_selects() -> None:
    chart = ConceptMapFigure(a_map())
    clicks: list[int] = []
    selections: list[tuple[int, ...]] = []
    chart.on_click(clicks.append)
    chart.on_select(selections.append)
    pick(chart, [4, 2, 9])
    assert selections == [(2, 4, 9)]
    assert chart.selected == (2, 4, 9)
    x, y = chart.xy[30].tolist()
    pick(chart, [7, 30, 31], "point", x=x, y=y)
    assert clicks == [30], "of several points under the pointer the nearest"
    assert list(chart.source.selected.indices) == [2, 4, 9], "a tap leaves the selection"
    pick(chart, [], "point", x=0.0, y=0.0)
    assert selections[-1] == ()
    before = len(selections)
    pick(chart, [])
    chart.select([1, 2])
    assert len(selections) == before, "nothing new, and Python's own selections are not called back"
    chart._picked(SelectionGeometry(chart.figure, geometry={"type": "poly"}, final=False))
    assert chart.selected == (1, 2)


def test_marks_ring_and_name() -> None:
    chart = ConceptMapFigure(a_map(5))
    chart.mark(1, [2, 3, 1])
    marks = chart.marks.data
    assert marks["name"] == ["concept 2", "concept 3", "concept 1"], "the chosen one last, above the others"
    assert marks["color"] == [SELECT, SELECT, MARK]
    assert marks["chosen"] == [False, False, True]
    assert marks["x"] == chart.xy[[2, 3, 1], 0].tolist()
    chart.mark()
    assert chart.marks.data["x"] == []
    with pytest.raises(ValueError, match="counted from 0 to 4, got 5"):
        chart.mark(5)


@pytest.mark.seconds
def test_centre_moves_without_blowing_up() -> None:
    chart = ConceptMapFigure(a_map())
    whole = chart.figure.x_range.end - chart.figure.x_range.start
    chart.centre(7)
    x_range = chart.figure.x_range
    assert (x_range.start + x_range.end) / 2 == pytest.approx(chart.xy[7, 0])
    assert x_range.end - x_range.start == pytest.approx(whole / 2)
    chart.centre(8)
    assert x_range.end - x_range.start == pytest.approx(whole / 2)
    assert (x_range.reset_end - x_range.reset_start) == pytest.approx(whole)


def test_two_models_and_what_stays() -> None:
    places = a_map(two=True)
    chart = ConceptMapFigure(places, names=("base", "tuned"))
    chart.mark(3, [4])
    chart.select([5])
    chart.figure.x_range.update(start=0.0, end=1.0)
    chart.show(places, side="b", names=("base", "tuned"))
    assert places.other_xy is not None
    np.testing.assert_array_equal(chart.source.data["x"], places.other_xy[:, 0])
    assert chart.marks.data["x"] == [places.other_xy[4, 0], places.other_xy[3, 0]]
    assert chart.selected == tuple(chart.source.selected.indices) == (5,)
    assert (chart.figure.x_range.start, chart.figure.x_range.end) == (0.0, 1.0), "the zoom is kept"
    assert "tuned" in str(chart.figure.title.text)
    chart.show(places, side="both", moved=3)
    arrows = chart.arrows.data
    assert arrows["x0"] == places.xy[[59, 58, 57], 0].tolist()
    assert arrows["x1"] == places.other_xy[[59, 58, 57], 0].tolist()
    chart.show(places, side="both", moved=[1])
    assert chart.arrows.data["y1"] == [places.other_xy[1, 1]]
    chart.show(a_map(59))
    assert chart.chosen is None
    assert chart.selected == ()
    with pytest.raises(ValueError, match="needs a map of two models"):
        chart.show(a_map(), side="b")
    with pytest.raises(ValueError, match="side must be one of"):
        chart.show(a_map(), side="c")  # type: ignore[arg-type]


def test_nothing_to_show_is_said() -> None:
    chart = ConceptMapFigure()
    assert "at least 4 concepts" in chart.message
    chart.show(a_map())
    assert chart.message == ""
    chart.show(None)
    assert chart.message
    assert len(chart.source.data["x"]) == 0
    assert not any(item.visible for item in chart._groups)
    assert chart.figure.title.text == "Concept directions"
    assert chart.message in render_svg(chart.scene())


@pytest.mark.seconds
def test_a_picture_holds_what_the_page_shows() -> None:
    chart = ConceptMapFigure(a_map(two=True, names=["<i>", *(f"concept {i}" for i in range(59))]), side="both", moved=2)
    chart.mark(3, [4, 5])
    chart.select([0, 1])
    scene = chart.scene()
    dots = pieces(scene)
    assert len(dots) == 60
    assert {dot.fill for dot in dots[-2:]} <= set(PALETTE8)  # the selected ones, above the pale ones
    assert all(dot.fill not in PALETTE8 for dot in dots[:-2])
    assert {"UMAP 1 (no unit)", "UMAP 2 (no unit)", "group 0"} <= set(texts(scene))
    assert "concept 2" in texts(scene)  # of the chosen, which is the fourth
    assert "&lt;i&gt;" in render_svg(scene)
    assert render_png(scene, 1.0)[1:4] == b"PNG"
    (axes,) = scene.figure().axes
    for dot, index in zip(dots[-2:], (0, 1), strict=True):
        x, y = axes.transData.transform(chart.xy[index])
        assert (dot.left, dot.top) == pytest.approx((x, scene.height - y), abs=0.01)
    chart.figure.x_range.update(start=0.0, end=1.0)
    chart.figure.y_range.update(start=0.0, end=1.0)
    scene = chart.scene()
    (axes,) = scene.figure().axes
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    box = axes.get_window_extent()
    assert (right - left) / box.width == pytest.approx((high - low) / box.height), "one scale across and up"
    assert (left + right) / 2 == pytest.approx(0.5)
    assert (low, high) == (0.0, 1.0)
    inside = ((chart.xy >= [left, low]) & (chart.xy <= [right, high])).all(axis=1)
    assert len(pieces(scene)) == inside.sum()
    assert {f"concept {i}" for i in np.flatnonzero(inside)[:1]} & set(texts(scene)) or not inside.any()


@pytest.mark.seconds
def test_a_picture_of_forty_thousand_is_one_image() -> None:
    count = 40_000
    places = a_map(count, kinds=11)
    scene = concept_map_scene(places.xy, places.names, places.groups, selected=[5])
    assert pieces(scene) == []
    svg = render_svg(scene)
    assert svg.count("<image") == 1
    assert len(svg) < 1_000_000
    # the selected one is drawn last, where it belongs, in its own colour
    (axes,) = scene.figure().axes
    x, y = axes.transData.transform(places.xy[5])
    looks, _ = group_looks(places.groups)
    pixel = image(scene, 2).getpixel((round(2 * x), round(2 * (scene.height - y))))
    assert pixel == rgba(LOOKS[looks[5]].colour)[:3]
    with pytest.raises(ValueError, match="a name and a group each"):
        concept_map_scene(places.xy, places.names[1:], places.groups)
