"""The workbench's screen in a real notebook: one click moves everything, typing counts, a session opens again."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from .conftest import DARK, axe_faults

SETUP = """
from interp_widgets import Workbench, load_demo_pair
pair = load_demo_pair()
bench = Workbench(pair, live_seconds=float("inf"))
screen = bench.screen
"""
CUT = """screen => {
    const text = document.createElement('canvas').getContext('2d');
    return [...screen.querySelectorAll('.iw-card select')].filter(select => select.offsetParent).filter(select => {
        text.font = getComputedStyle(select).font;
        return text.measureText(select.selectedOptions[0].textContent).width > select.clientWidth - 16;
    }).map(select => select.selectedOptions[0].textContent);
}"""
"""Chosen options that do not fit their boxes."""
SETTLED = "(screen.busy, screen.status_line.error)"


@pytest.fixture
def opened(nb: Any) -> Any:
    """A notebook with the screen."""
    nb.make("screen.ipynb", SETUP, "bench")
    nb.run_all()
    nb.wait_py(SETTLED, (False, ""))
    nb.no_error_outputs()
    return nb


def test_journey(opened: Any, tmp_path: Any) -> None:
    nb = opened
    nb.resize(1400, 1500)
    screen = nb.page.locator(".iw-screen")
    expect(screen.locator(".iw-status")).to_have_count(1)
    assert screen.bounding_box()["height"] < 900
    nb.screenshot("workbench_light", screen)
    assert screen.evaluate(CUT) == []

    # a token of the response: the words at the side, the lens, the shades of the prompt
    tokens = screen.locator(".iw-strip").nth(1).locator(".iw-tok")
    nb.page.mouse.click(*nb.center(tokens.nth(2)))
    nb.wait_py("(bench.response_token, screen['logit_lens'].response_token)", (2, 2))
    expect(screen.locator(".iw-selected")).to_contain_text("Response token 2, probability")
    expect(screen.locator(".iw-texts")).to_contain_text("for response token 2")

    # typing counts without leaving the box
    box = screen.get_by_label("Prompt", exact=True)
    box.fill("The capital of Japan is")
    nb.wait_py("bench.prompt", "The capital of Japan is")
    nb.wait_py(SETTLED, (False, ""))
    assert nb.py("bench.response") == nb.py("pair.tuned.generate(bench.prompt, max_new_tokens=40)")
    box.press("End")
    box.type("?")
    box.press("Control+Enter")
    nb.wait_py("bench.prompt", "The capital of Japan is?")
    nb.wait_py(SETTLED, (False, ""))

    # the next step, and a third tab takes the place of the first
    screen.get_by_role("button", name="Which parts does it need?").click()
    nb.wait_py("screen.shown", ("logit_lens", "ablation"))
    screen.get_by_role("button", name="Decomposition", exact=True).click()
    nb.wait_py("screen.shown", ("ablation", "decomposition"))
    nb.wait_py(SETTLED, (False, ""))
    cards = screen.locator(".iw-card:visible")
    expect(cards).to_have_count(3)
    nb.rests()
    left, right = (cards.nth(i).bounding_box() for i in range(2))
    assert left["y"] == right["y"], "beside each other"

    # one view for all
    screen.get_by_role("button", name="B − A", exact=True).click()
    nb.wait_py("{panel.view for panel in screen.panels.values()}", {"difference"})
    nb.wait_py(SETTLED, (False, ""))

    # narrow and dark: below each other, nothing cut
    nb.resize(700, 1500)
    left, right = (cards.nth(i).bounding_box() for i in range(2))
    assert left["y"] < right["y"]
    nb.screenshot("workbench_narrow", screen)
    nb.resize(1400, 1500)

    # saved, closed, opened again: the same numbers on the screen
    nb.py(code=f"file = bench.save({str(tmp_path / 'session.npz')!r})")
    said = nb.py("screen.selected.text.value")
    nb.py(code="bench.close(); bench = Workbench.load(file, *pair); screen = bench.screen")
    nb.wait_py(SETTLED, (False, ""))
    assert nb.py("(screen.shown, screen.view)") == (("ablation", "decomposition"), "difference")
    assert nb.py("screen.selected.text.value") == said
    nb.no_error_outputs()


def test_every_tab_ends_above_the_fold_and_has_names_roles_and_contrast(opened: Any) -> None:
    for pair in (
        ("ablation", "decomposition"), ("logit_lens", "attention"), ("concepts", "data_set"),
        ("head_words", "ffn_concepts"), ("bias", "clusters"), ("layer_similarity", "mixture_of_depths"),
        ("patching", "saliency"),
    ):  # fmt: skip
        opened.py(code=f"screen.show(*{pair!r})")
        opened.wait_py(SETTLED, (False, ""))
        opened.bokeh_idle()
        opened.rests()
        assert opened.page.locator(".iw-screen").bounding_box()["height"] < 900, pair
    # in view, and with a body that is not empty and cut, or axe takes everything for hidden
    opened.resize(1400, 8000)
    opened.page.evaluate("""() => {
        document.body.style.overflow = 'visible';
        for (const card of document.querySelectorAll('.iw-card')) card.classList.remove('iw-hidden');
    }""")
    assert axe_faults(opened.page, ".iw-screen") == []
    opened.set_theme(DARK)
    assert axe_faults(opened.page, ".iw-screen", runOnly=["color-contrast"]) == []
    opened.page.evaluate("""() => {
        const [first, second] = document.querySelectorAll('.iw-tabs button');
        first.style.color = first.style.borderColor = '#888';
        first.style.background = '#777';
        second.textContent = second.title = '';
    }""")
    found = axe_faults(opened.page, ".iw-tabs")
    assert [fault.split(":")[0] for fault in found] == ["button-name", "color-contrast"], "axe finds what it should"
    opened.page.evaluate("() => { document.body.style.overflow = ''; }")
