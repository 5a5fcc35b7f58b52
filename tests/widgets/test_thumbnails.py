"""Thumbnails without a browser: numbers as bytes, what a page may set, static picture, saved page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from interp_widgets.figures.static import render_svg
from interp_widgets.widgets.base.export import html_page
from interp_widgets.widgets.views import Thumbnails

NAMES = ["0.0", "0.1", "1.0", "1.1"]


@pytest.fixture
def grid() -> Thumbnails:
    made = Thumbnails(title="Heads")
    tiles = np.random.default_rng(0).random((4, 5, 5))
    tiles[:, 0, 1:] = np.nan
    made.set_tiles(tiles, names=NAMES, columns=2, vmin=0, vmax=1, row_labels=["0", "1"], column_labels=["0", "1"])
    return made


def test_numbers_survive_to_a_step_of_the_colours(grid: Thumbnails) -> None:
    tiles = np.random.default_rng(0).random((4, 5, 5))
    tiles[:, 0, 1:] = np.nan
    np.testing.assert_allclose(grid.tiles, tiles, atol=0.5 / 254 + 1e-9)
    assert len(grid.data) == 100


def test_a_signed_scale_is_symmetric_and_a_range_clips() -> None:
    made = Thumbnails()
    made.set_tiles([[[-2.0, 0.0], [1.0, 0.5]]], names=["a"], signed=True)
    assert (made.vmin, made.vmax) == (-2.0, 2.0)
    np.testing.assert_allclose(made.tiles[0], [[-2, 0], [1, 0.5]], atol=4 / 254 / 2 + 1e-9)
    made.set_tiles([[[-5.0, 9.0], [0.0, 1.0]]], names=["a"], vmin=0, vmax=1)
    np.testing.assert_allclose(made.tiles[0], [[0, 1], [0, 1]])


@pytest.mark.parametrize(
    ("tiles", "options", "message"),
    [
        (np.zeros((2, 3, 4)), {"names": ["a", "b"]}, r"need \(maps, cells, cells\) numbers, got shape \(2, 3, 4\)"),
        (np.zeros((2, 3)), {}, r"got shape \(2, 3\)"),
        (np.zeros((2, 3, 3)), {"names": ["a"]}, "names must hold one string for each of the 2 maps, got 1"),
        (np.zeros((2, 3, 3)), {"names": ["a", "b"], "notes": ["a"]}, "notes must hold one string"),
    ],
)
def test_what_does_not_fit_is_refused(tiles: object, options: dict[str, list[str]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Thumbnails().set_tiles(tiles, **options)  # type: ignore[arg-type]


def test_a_page_may_select_a_map_that_is_there(grid: Thumbnails) -> None:
    for sent, kept in ((3, 3), (4, 3), (-2, 3), ("1", 3), (True, 3), (-1, -1)):
        grid.set_state({"selected": sent, "title": "forged"})
        assert grid.selected == kept
        assert grid.title == "Heads"
    grid.selected = 2
    grid.set_tiles(None)
    assert grid.selected == -1
    assert grid.is_empty


def test_it_is_in_pictures_and_saved_pages(grid: Thumbnails, tmp_path: Path) -> None:
    svg = render_svg(grid.scene())
    assert "Heads" in svg
    assert len(svg) > 2000
    assert Thumbnails().scene().height > 0
    page = html_page("t", [grid])
    assert "module_Thumbnails" in page
    assert "click one" not in page
    assert repr(grid) == "Thumbnails(4 maps, title='Heads')"
