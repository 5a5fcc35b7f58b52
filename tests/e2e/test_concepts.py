"""The concept browser in a real notebook: search, click, lasso, read, steer, add, compare."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

OWN = [
    "Anna saw a parrot near the river.", "The parrot was in the garden.", "There was a parrot in the park.",
    "John asked Mary about the parrot.", "One day, Tom found a parrot at the farm.", "Here is a parrot.",
]  # fmt: skip

THINGS = (
    "one for one in __import__('interp_widgets').demo_concepts() "
    "if one.group in ('animals', 'fruits', 'foods', 'vehicles', 'tools', 'clothes', 'colours')"
)


@pytest.fixture
def opened(nb: Any) -> Any:
    """A browser of the demo pair and 70 of the demo's concepts, on the tuned model; notebook 10 opens one with all."""
    return nb.show(f"ConceptBrowser(pair, view='B', concepts=[{THINGS}])")


def open_tab(nb: Any, name: str) -> None:
    nb.panel.get_by_role("tab", name=name, exact=True).click()
    nb.wait_py("(panel.tabs.titles[panel.tabs.selected_index], panel.busy)", (name, False))
    nb.rests()


def run_if_asked(nb: Any) -> None:
    """Press Run where writing is slow on this machine: then it waits to be asked."""
    if nb.py("panel.current.run_button.button_style") == "primary":
        nb.panel.get_by_role("button", name="Run", exact=True).locator("visible=true").click()
        nb.wait_py("panel.busy", False)


def place(nb: Any, name: str) -> tuple[float, float]:
    """Page pixels of a concept's point on the map."""
    x, y = nb.py(f"[float(v) for v in panel['map'].chart.xy[panel.sets[1].index({name!r})]]")
    return tuple(nb.bokeh_point("concept_map", x, y))


def test_journey(opened: Any) -> None:
    nb = opened
    panel = nb.panel
    nb.bokeh_idle()
    assert nb.py("[len(one.concepts.names) for one in panel.result]") == [70, 70]
    assert nb.py("panel.concept") == "lion"
    row = panel.locator(".iw-side .iw-table tr[aria-selected=true]")
    expect(row).to_contain_text("lion")
    expect(row).to_be_in_viewport()
    nb.looks("concepts", nb.panel, height=2600)

    # search, and a click on what is found
    search = panel.get_by_label("Search", exact=True)
    search.fill("fru pea")
    nb.wait_py("[row[0] for row in panel.listing.table.view.rows]", ["pear", "peach"])
    panel.locator(".iw-side .iw-table tbody tr").first.click()
    nb.wait_py("panel.concept", "pear")
    expect(panel.get_by_text("Nearest to “pear”")).to_be_visible()
    search.fill("")
    nb.wait_py("len(panel.listing.table.view.rows)", 70)

    # a click on the map, and the lasso
    nb.rests()
    nb.bokeh_rests()
    near = nb.py(
        "(lambda xy, i: panel.sets[1].names[int(((xy - xy[i]) ** 2).sum(axis=1).argsort()[1])])"
        "(panel['map'].chart.xy, panel.sets[1].index('pear'))"
    )
    nb.page.mouse.click(*place(nb, near))
    nb.wait_py("panel.concept", near)
    nb.rests()
    nb.bokeh_rests()
    panel.locator("[class*=bk-tool-icon-lasso-select]").first.click()
    box = panel.locator(".bk-Figure").first.bounding_box()
    corners = [(0.2, 0.4), (0.2, 0.8), (0.8, 0.8), (0.8, 0.4), (0.2, 0.4)]
    path = [(box["x"] + a * box["width"], box["y"] + b * box["height"]) for a, b in corners]
    nb.page.mouse.move(*path[0])
    nb.page.mouse.down()
    for point in path[1:]:
        nb.page.mouse.move(*point, steps=6)
    nb.page.mouse.up()
    nb.wait_py("len(panel.chosen) > 3", True)
    expect(panel.get_by_text(f"{nb.py('len(panel.chosen)')} selected", exact=True)).to_be_visible()
    nb.screenshot("concepts_lasso", panel)
    panel.get_by_role("button", name="Clear selection").click()
    nb.wait_py("panel.chosen", [])
    nb.py(code="panel.concept = 'lion'")

    # quality, reading
    open_tab(nb, "Quality")
    expect(panel.get_by_text("84%", exact=True)).to_be_visible()
    expect(panel.get_by_text("6%", exact=True)).to_be_visible()
    nb.looks("concepts_quality", nb.panel, height=2600)
    open_tab(nb, "Read")
    token = panel.locator(".iw-strip:visible .iw-tok").filter(has_text="red").first
    token.click()
    nb.wait_py("panel.prompt_token >= 0", True)
    nb.wait_py("panel.busy", False)
    expect(panel.get_by_text("as a sum, longest part first", exact=False).first).to_contain_text("red")
    nb.looks("concepts_read", nb.panel, height=2600)

    # steering: the sliders are live
    open_tab(nb, "Steer")
    nb.wait_py("len(panel['steer'].shown_results)", 1)
    assert nb.py("[round(float(p), 2) for p in panel['steer'].shown_results[0].comparison.word_probability]")[1] > 0.5
    nb.looks("concepts_steer", nb.panel, height=2600)
    nb.handle("α").press("ArrowLeft")
    nb.wait_py("(round(panel.strength, 2), panel.busy)", (0.75, False))
    panel.get_by_label("Direction", exact=True).select_option("erased")
    nb.wait_py("(panel.mode, panel.busy)", ("erase", False))
    run_if_asked(nb)
    nb.wait_py("panel['steer'].shown_results[0].comparison.mode", "erase")

    # a concept of one's own: what is wrong is said, what is right is there
    panel.get_by_role("button", name="Add, open, save").click()
    panel.get_by_label("Name", exact=True).fill("parrot")
    texts = panel.get_by_label("Stimuli, one per line", exact=True)
    texts.fill("\n".join(OWN[:2]))
    texts.blur()
    add = panel.get_by_role("button", name="Add", exact=True)
    add.click()
    expect(panel.locator(".iw-wanted:visible")).to_contain_text("'parrot' has 2 stimuli")
    texts.fill("\n".join(OWN))
    texts.blur()
    nb.screenshot("concepts_add", panel)
    add.click()
    nb.wait_py("'parrot' in [one.name for one in panel.concepts]", True)
    run_if_asked(nb)
    nb.wait_py("'parrot' in panel.sets[-1].names", True)
    nb.wait_py("(panel.concept, panel.busy)", ("parrot", False))

    # another layer without reading anything again, then both models
    nb.handle("Layer").press("ArrowLeft")
    nb.wait_py("panel.stream", 2)
    run_if_asked(nb)
    nb.wait_py("(panel.stream, panel.sets[-1].layer, panel.busy)", (2, 2, False))
    open_tab(nb, "Base and tuned")
    expect(panel.get_by_text("Mean cosine distance within groups", exact=False)).to_be_visible()
    expect(panel.get_by_text("Most moved first: 1 − cosine", exact=False)).to_be_visible()
    assert panel.get_by_role("button", name="difference").locator("visible=true").count() == 0  # about both models
    open_tab(nb, "Map")
    panel.get_by_role("button", name="difference").locator("visible=true").click()
    nb.wait_py("panel['map'].chart.side", "both")
    nb.bokeh_idle()
    nb.screenshot("concepts_difference", panel)
