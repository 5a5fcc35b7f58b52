"""The viewer of mixtures of depths in a real notebook: untrained at once, tuned live, stopped, resumed, read, tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from tests.models.tiny import metaspace_tokenizer, tiny_hf

STEPS = 1_000_000
"""More than any machine makes before Stop is pressed."""


def panel_of(nb: Any) -> Any:
    return nb.page.locator(".iw-panel").first


def open_tab(nb: Any, name: str) -> None:
    tab = panel_of(nb).get_by_role("tab", name=name, exact=True)
    tab.click()
    nb.wait_py("panel.tab", name.lower().replace(" ", "_"))
    expect(tab).to_have_attribute("aria-selected", "true")


def opened(nb: Any, model: str = "demo-base", **options: Any) -> Any:
    told = ", ".join(f"{name}={value!r}" for name, value in options.items())
    nb.make(
        "mod.ipynb",
        "from interp_widgets import load_model\nfrom interp_widgets.widgets.mixture_of_depths import MoDRoutingViewer\n"
        f"panel = MoDRoutingViewer(load_model({model!r}), {told})\npanel",
    )
    nb.run_all()
    nb.resize(1400, 1700)
    nb.done()
    return panel_of(nb)


def test_journey(nb: Any) -> None:
    panel = opened(nb, steps=STEPS, batch_size=4, examples=100)

    # a result at once, and it says what it is
    expect(panel.get_by_text("This mixture is untrained", exact=True)).to_be_visible()
    nb.looks("mod_untrained", panel_of(nb), height=2200)

    # tuned live, while another cell runs; stopped, and gone on with
    open_tab(nb, "Tune")
    panel.get_by_role("button", name="Tune", exact=True).click()
    nb.wait_py("panel['tune'].curves is not None and len(panel['tune'].curves.task) >= 3", True)
    assert nb.py("6 * 7") == 42, "another cell runs meanwhile"
    assert nb.py("panel['tune'].going") is True
    nb.bokeh_idle()
    expect(panel.get_by_text(f"of {STEPS:,}. Other cells can run meanwhile", exact=False)).to_be_visible()
    nb.screenshot("mod_live", panel)

    # and read on the other tab, which does not wait for the end of the tuning
    open_tab(nb, "Route")
    prompt = panel.locator("textarea").first
    prompt.fill("The capital of Italy is")
    prompt.press("Tab")
    nb.wait_py("panel.result.n_positions", 5)
    assert nb.py("(panel['tune'].going, panel.status.state)") == (True, "running")
    expect(panel.get_by_role("button", name="Cancel")).to_be_visible()
    nb.py(code="from interp_widgets.widgets.mixture_of_depths.reading import PROMPT; panel.prompt = PROMPT")
    open_tab(nb, "Tune")
    panel.get_by_role("button", name="Stop", exact=True).click()
    nb.wait_py("(panel['tune'].going, panel.busy)", (False, False))
    done = nb.py("panel.report.done")
    assert 3 <= done < STEPS
    expect(panel.get_by_text(f"cancelled after {done} of {STEPS} steps", exact=False)).to_be_visible()
    nb.py(code=f"panel.steps = {done + 6}")
    panel.get_by_role("button", name="Resume", exact=True).click()
    nb.wait_py("(panel['tune'].going, panel.report.done)", (False, done + 6))
    nb.wait_py("panel.busy", False)
    nb.bokeh_idle()
    nb.looks("mod_tune", panel_of(nb), height=2200, first=420)

    # what is wrong is said, and nothing is lost
    nb.py(code="panel.k = 9")
    panel.get_by_role("button", name="Tune", exact=True).click()
    expect(panel.get_by_role("alert")).to_contain_text("k must be an int in 1..6")
    nb.py(code="panel.k = 3")

    # the tuned mixture, token by token
    open_tab(nb, "Route")
    expect(panel.get_by_text("This mixture is untrained", exact=True)).to_be_hidden()
    panel.locator(".iw-strip:visible .iw-tok").filter(has_text="France").first.click()
    nb.wait_py("panel.result.tokens[panel.prompt_token].strip()", "France")
    expect(panel.get_by_text("Likeliest next tokens after", exact=False)).to_contain_text("France")
    routes = panel.get_by_label("Routes per token", exact=True)
    routes.fill("1")
    routes.press("Enter")
    nb.wait_py("panel.routes", 1)
    nb.done()
    assert nb.py("panel.result.top_k") == 1
    nb.looks("mod_route", panel_of(nb), height=2200, first=420)
    open_tab(nb, "Speed")
    panel.get_by_role("button", name="Run", exact=True).click()
    nb.wait_py("(len(panel['speed'].picture.tables[0].rows), panel.busy)", (3, False))
    nb.looks("mod_speed", panel_of(nb), height=2200)


def test_studies_and_a_long_prompt(nb: Any, tmp_path: Path) -> None:
    tiny_hf("llama", n_layers=2, n_ctx=1024).save_pretrained(tmp_path)  # tuned eight times
    metaspace_tokenizer().save_pretrained(tmp_path)
    panel = opened(
        nb, str(tmp_path), batch_size=4, examples=100, grid_ks=[1, 2], grid_steps=3, n_problems=1, k=2,
    )  # fmt: skip
    for tab in ("Grid", "Variants", "Late layers"):
        open_tab(nb, tab)
        panel.get_by_role("button", name="Run", exact=True).click()
    expect(panel.get_by_role("button", name="Cancel")).to_be_visible()
    tabs = "('grid', 'variants', 'late_layers')"
    nb.wait_py(f"([panel[tab].result is not None for tab in {tabs}], panel.busy)", ([True] * 3, False))
    assert nb.py("panel.status.error") == ""
    for tab in ("Grid", "Variants", "Late layers"):
        open_tab(nb, tab)
        nb.bokeh_idle()
        nb.looks(f"mod_{tab.lower().replace(' ', '_')}", panel_of(nb), height=2200)

    # a long prompt: a column for every token, and a click reaches its numbers
    open_tab(nb, "Route")
    nb.py(code="panel.prompt = ' '.join(['The cat sat on the mat and'] * 60); panel.go()")
    nb.wait_py("(panel.result.n_positions >= 400, panel.busy)", (True, False))
    panel.locator(".iw-strip:visible .iw-tok").nth(7).click()
    nb.wait_py("panel.prompt_token", 7)
    nb.screenshot("mod_long", panel)
