"""The head word browser in a real notebook: click a head, a pair and a dimension, find a word, compare, open again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect


@pytest.fixture
def opened(nb: Any) -> Any:
    """A browser of the demo pair on the demo's words."""
    return nb.show("HeadWordBrowser(pair, only='all')", name="heads")


def cell(nb: Any, row: int, column: int) -> tuple[float, float]:
    """Page pixels of the middle of a cell of the grid."""
    found: tuple[float, float] = nb.map_cell(row, column)
    return found


def table(nb: Any, text: str) -> Any:
    """The table whose caption has this text."""
    return nb.panel.locator(".iw-table", has=nb.page.locator(".iw-table-caption", has_text=text))


def test_journey(opened: Any) -> None:
    nb, panel = opened, opened.panel
    assert nb.py("(heads['heads'].grid.heat.shape, heads.comparison is not None)") == ([6, 6], True)
    nb.resize(1400, 1700)
    nb.looks("head_words", nb.panel, height=2600)

    # a head, the pairs it relates, the dimensions behind one, the pairs of another
    nb.page.mouse.click(*cell(nb, 2, 3))
    nb.wait_py("(heads.layer, heads.head)", (2, 3))
    pairs = table(nb, "Head 3 of layer 2: 100 of")
    expect(pairs.locator("tbody tr")).to_have_count(100)
    assert pairs.locator("tbody tr").first.locator("td").all_inner_texts()[:2] == nb.py(
        "list(heads.result[0].pairs(2, 3)[0][:2])"
    )
    pairs.locator("tbody tr").nth(1).click()
    nb.wait_py("heads.pair == list(heads.result[0].pairs(2, 3)[1][:2])", True)
    behind = table(nb, "Behind ")
    expect(behind.locator("tbody tr[aria-selected='true']")).to_have_count(1)
    panel.get_by_role("button", name="All dimensions").click()
    nb.wait_py("heads.pair", [])
    expect(table(nb, "Dimensions of head 3, layer 2").locator("tbody tr")).to_have_count(32)

    # a word, typed in small letters, and the heads that have it
    word = panel.get_by_label("Find word", exact=True)
    word.fill("while")
    word.press("Enter")
    nb.wait_py("heads.word", "While")
    expect(panel.locator(".iw-title", has_text="in the cells: dimensions with “While”")).to_be_visible()
    found = table(nb, "Heads with a pair of “While”")
    place = tuple(map(int, found.locator("tbody tr").first.locator("td").all_inner_texts()[:2]))
    found.locator("tbody tr").first.click()
    nb.wait_py("(heads.layer, heads.head, heads.dimension >= 0)", (*place, True))
    expect(table(nb, "those with “While” first").locator("tbody tr")).not_to_have_count(0)

    # both models, and their difference: what a head gained and lost
    panel.get_by_role("button", name="difference B − A").click()
    nb.wait_py("(heads.view, heads['heads'].grid.heat.vmin < 0)", ("difference", True))
    panel.get_by_label("Pairs", exact=True).select_option(label="gained")
    nb.wait_py("{row[4] for row in heads['heads'].tables.pairs.rows}", {"gained"})
    panel.get_by_label("Colour", exact=True).select_option(label="change of the pairs, 1 − M")
    nb.wait_py("(heads.color, heads['heads'].grid.heat.vmax)", ("change", 1.0))
    nb.looks("head_words_difference", nb.panel, height=2600)

    panel.get_by_role("tab", name="Comparison").click()
    nb.wait_py("heads.tab", "comparison")
    expect(panel.get_by_text("Too few verbs for a test:")).to_be_visible()
    nb.looks("head_words_comparison", nb.panel, height=2600)
    rows = table(nb, "a click finds its pairs").locator("tbody tr")
    verb = rows.first.locator("td").nth(1).inner_text()
    rows.first.click()
    nb.wait_py("(heads.word, heads.tab)", (verb, "heads"))

    # own words; what cannot be done is said, and the grid stays
    panel.get_by_label("Word vectors", exact=True).fill("/no/such/file.txt")
    panel.get_by_label("Word vectors", exact=True).press("Enter")
    expect(panel.locator(".iw-wanted:visible")).to_contain_text("there is no file of word vectors at /no/such/file.txt")
    assert nb.py("heads['heads'].grid.heat.shape") == [6, 6]
    nb.screenshot("head_words_error", panel)
    panel.get_by_label("Word vectors", exact=True).fill("")
    panel.get_by_label("Word vectors", exact=True).press("Enter")
    panel.get_by_label("Words", exact=True).select_option(label="my own, typed here")
    own = panel.get_by_label("Own words, the most frequent first", exact=True)
    own.fill("cat dog bear plane ship bus nurse teacher zzyzx")
    own.blur()
    nb.wait_py("heads.words[:2]", ["cat", "dog"])
    nb.done()
    expect(panel.get_by_text("1 word has no word vector")).to_be_visible()
    nb.screenshot("head_words_own", panel)

    # saved, and opened again without a model
    assert Path(nb.py("str(heads.result[0].save('heads.npz'))")).name == "heads.npz"
    nb.py(code="again = HeadWordBrowser('heads.npz')")
    assert nb.py("(again.result.vocabulary[:2], again.status.state)") == (("cat", "dog"), "done")
