"""The map of concept directions in a real notebook: 40,000 points there, hover, tap, lasso, pan and zoom."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

MADE = """
import numpy as np
from interp_widgets.analysis.concepts import ConceptMap
from interp_widgets.figures.concepts import ConceptMapFigure
from interp_widgets.widgets.views import BokehFigure
rng = np.random.default_rng(0)
count, kinds = {count}, 40
middles = rng.normal(size=(kinds, 2)) * 10
kind = rng.integers(0, kinds, count)
xy = middles[kind] + rng.normal(size=(count, 2)) * 0.7
xy[0] = [30.7, 28.3]
xy[1] = [31.7, 28.3]
names = [f"concept {{i}}" for i in range(count)]
names[0] = "<img src=x onerror='window.HURT = 1'>"
places = ConceptMap(names=names, groups=[f"group {{k}}" for k in kind], xy=xy, method="umap", recall=0.5,
                    other_xy=xy + rng.normal(size=xy.shape), moved=rng.random(count))
chart = ConceptMapFigure(places)
clicks, selections = [], []
chart.on_click(clicks.append)
chart.on_select(selections.append)
host = BokehFigure(chart.figure)
host
"""
WHITE = (255, 255, 255)
VIEW = """name => {
    let view = null;
    const look = one => {
        if (one.model.name === name && one.frame && one.el?.isConnected) view = one;
        for (const child of one.child_views ?? []) look(child);
    };
    for (const root of Bokeh.index.roots) look(root);
    return [view.model.x_range.start, view.model.x_range.end, view.model.y_range.start, view.model.y_range.end];
}"""


@pytest.fixture
def opened(nb: Any) -> Any:
    nb.make("concept_map.ipynb", MADE.format(count=40_000))
    nb.run_all()
    nb.bokeh_idle()
    return nb


def press_tool(nb: Any, name: str) -> None:
    nb.page.locator(".bk-tool-icon-" + name).first.click()


def drag(nb: Any, *points: tuple[float, float]) -> None:
    """Through points of the data with the button held."""
    at = [nb.bokeh_point("concept_map", *point) for point in points]
    nb.page.mouse.move(*at[0])
    nb.page.mouse.down()
    for point in at[1:]:
        nb.page.mouse.move(*point, steps=6)
    nb.page.mouse.up()


def colour_at(nb: Any, x: float, y: float) -> tuple[int, ...]:
    """What the page shows at a place of the map (clear of the mouse)."""
    left, top = nb.bokeh_point("concept_map", x, y)
    nb.bokeh_rests()
    data = nb.page.screenshot(clip={"x": round(left), "y": round(top), "width": 1, "height": 1})
    return tuple(Image.open(io.BytesIO(data)).convert("RGB").getpixel((0, 0)))


def test_forty_thousand_points(opened: Any) -> None:
    nb = opened
    assert (
        nb.page.evaluate("() => Bokeh.documents.at(-1).get_model_by_name('concept_map_rows').data.x.length") == 40_000
    )
    whole = nb.page.evaluate(VIEW, "concept_map")
    assert max(colour_at(nb, 30.7, 28.3)) < 200
    assert colour_at(nb, 31.2, 27.3) == WHITE
    # the pointer on a point: its name, as text
    nb.page.mouse.move(*nb.bokeh_point("concept_map", 30.7, 28.3))
    expect(nb.page.locator(".bk-Tooltip")).to_contain_text("<img src=x")
    assert nb.page.evaluate("() => window.HURT") is None
    # a tap chooses
    nb.page.mouse.click(*nb.bokeh_point("concept_map", 30.7, 28.3))
    nb.wait_py("clicks", [0])
    assert nb.py("(selections, list(chart.source.selected.indices))") == ([], [])
    # a drag moves the map, in the page and in Python
    before = nb.page.evaluate(VIEW, "concept_map")
    drag(nb, (15, 14), (10, 10))
    after = nb.page.evaluate(VIEW, "concept_map")
    np.testing.assert_allclose(np.subtract(after, before), [5, 5, 4, 4], atol=0.4)
    nb.wait_py(f"abs(chart.figure.x_range.start - {after[0]!r}) < 1e-6", True)
    nb.page.mouse.move(0, 0)
    assert max(colour_at(nb, 30.7, 28.3)) < 200, "the picture of the dots moves with the map"
    assert colour_at(nb, 31.2, 27.3) == WHITE
    # the wheel alone is the page's; with Ctrl it zooms
    nb.page.mouse.move(*nb.bokeh_point("concept_map", 30.7, 28.3))
    nb.page.keyboard.down("Control")
    nb.page.mouse.wheel(0, -300)
    nb.page.keyboard.up("Control")
    nb.page.wait_for_function(f"was => {{ const now = ({VIEW})('concept_map'); return now[1] - now[0] < 0.95 * was; }}",
                              arg=after[1] - after[0])  # fmt: skip
    nb.page.mouse.move(0, 0)
    assert max(colour_at(nb, 30.7, 28.3)) < 200, "and is as large as the map says"
    assert colour_at(nb, 31.2, 27.3) == WHITE
    press_tool(nb, "reset")
    nb.page.wait_for_function(
        f"([name, whole]) => String(({VIEW})(name)) === String(whole)", arg=["concept_map", whole]
    )
    nb.bokeh_idle()
    # the lasso reaches Python
    press_tool(nb, "lasso-select")
    drag(nb, (29, 27), (33, 27), (33, 30), (29, 30), (29, 27))
    nb.wait_py("selections", [(0, 1)])
    nb.screenshot("concept_map_lasso", nb.page.locator(".iw-bokeh").first)


def test_marks_and_two_models(nb: Any) -> None:
    nb.make("concept_map_small.ipynb", MADE.format(count=240))
    nb.run_all()
    nb.bokeh_idle()
    figure = nb.page.locator(".iw-bokeh").first
    for theme in ("Light", "Dark"):
        nb.set_theme(f"JupyterLab {theme}")
        for width in (1400, 700):
            nb.resize(width, 900)
            nb.py(code="chart.show(places); chart.mark(5, [7, 8, 9]); chart.select(range(20, 60))")
            nb.bokeh_idle()
            nb.page.mouse.move(*nb.bokeh_point("concept_map", 30.7, 28.3))
            nb.screenshot(f"concept_map_{theme.lower()}_{width}")
        nb.py(code="chart.select([]); chart.show(places, side='both', names=('base', 'tuned'))")
        nb.bokeh_idle()
        nb.screenshot(f"concept_map_moved_{theme.lower()}", figure)
        nb.py(code="chart.show(None)")
        expect(figure).to_be_visible()
        nb.bokeh_idle()
        nb.screenshot(f"concept_map_empty_{theme.lower()}", figure)
