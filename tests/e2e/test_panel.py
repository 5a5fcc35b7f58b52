"""What all widgets share, in a real JupyterLab: status line, Cancel, errors, Run, code, Save, layout, re-running."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

TOY = """
import threading, types
import ipywidgets as W, pandas as pd, traitlets as T
from interp_widgets.compute.memory import Forecast
from interp_widgets.widgets.base.fields import field
from interp_widgets.widgets.base.panel import Panel
from interp_widgets.widgets.views import TokenStrip

gate = threading.Event(); gate.set()
check = types.SimpleNamespace(passed=True, summary=lambda: "largest logit difference 1e-6")
model = types.SimpleNamespace(name="fake", device="cpu", dtype="torch.float32", backend="hooked",
                              weight_hash="a", self_check=check)
tuned = types.SimpleNamespace(**{**vars(model), "name": "fake-tuned", "weight_hash": "b"})
SECONDS, MODES = 0.0, ["exact", "first order"]

class Toy(Panel):
    title = "Toy"
    n, text, mode = field(int, 3), field(str, "the cat sat on the mat"), T.Enum(MODES, "exact")
    def build(self):
        row = W.HBox([self.bind(W.IntSlider(description="Number of steps", min=-5, max=50), "n"),
                      self.bind(W.Dropdown(description="Method of attribution", options=MODES), "mode"),
                      W.Checkbox(description="Mark instruction", indent=False),
                      self.bind(W.Text(description="Free text"), "mode")])
        row.add_class("iw-row")
        area = self.bind(W.Textarea(description="Prompt", continuous_update=False), "text")
        area.add_class("iw-grow")
        self.inputs.children = [area, row]
        self.strip, self.label = TokenStrip(), W.Label()
        self.plot.children = [self.strip, self.label]
    def request(self):
        if self.n < 0:
            raise ValueError(f"n must be 0 or more, got {self.n}")
        return (self.n, self.text)
    def forecast(self, request):
        return Forecast(SECONDS, 300_000_000)
    def compute(self, request, model, *, progress, check, on_partial):
        for k in range(1, request[0] + 1):
            progress(k, request[0])
            while not gate.wait(0.02):
                progress(k, request[0])
        return request[0] ** 2
    def draw(self, results, request):
        self.strip.tokens = request[1].split()
        self.label.value = f"{self.shown}: {results}"
    def code(self, request):
        return f"from interp_widgets import load_model\\n\\n{request[0]} ** 2"
    def frame(self):
        return pd.DataFrame({"square": list(self.results)})
"""


def panel_of(nb: Any, cell: int = 1) -> Any:
    return nb.page.locator(".jp-Cell").nth(cell).locator(".iw-panel")


def test_run_cancel_errors_and_forecast(nb: Any) -> None:
    nb.make("panel.ipynb", TOY, "toy = Toy(model); toy")
    nb.run_all()
    panel = panel_of(nb)
    status = panel.get_by_role("status").last
    expect(status).to_contain_text("Done in")
    expect(panel.get_by_role("heading", name="Toy")).to_be_visible()
    expect(panel.get_by_text("self-check passed")).to_have_attribute(
        "title", "self-check passed: largest logit difference 1e-6"
    )

    nb.py(code="gate.clear()")
    nb.handle(within=panel).press("ArrowRight")
    cancel = panel.get_by_role("button", name="Cancel")
    expect(cancel).to_be_visible()
    expect(panel.get_by_role("progressbar", name="Progress")).to_be_visible()
    expect(panel.locator(".iw-status-left")).to_contain_text("of 4")
    nb.screenshot("panel_running", panel)
    cancel.click()
    expect(status).to_have_text("Cancelled")
    expect(cancel).to_be_hidden()
    expect(panel.get_by_text("A: (9,)")).to_be_visible()

    panel.get_by_role("button", name="Run", exact=True).click()
    expect(cancel).to_be_visible()
    nb.handle(within=panel).press("Escape")
    expect(status).to_have_text("Cancelled")
    nb.py(code="gate.set()")
    panel.get_by_role("button", name="Run", exact=True).click()
    expect(panel.get_by_text("A: (16,)")).to_be_visible()

    box = panel.get_by_role("textbox", name="Free text")
    box.fill("<img src=x onerror=alert(1)>")
    box.press("Enter")
    alert = panel.get_by_role("alert")
    expect(alert).to_contain_text("<img src=x onerror=alert(1)>")
    expect(panel.locator(".iw-status-trace")).to_be_hidden()
    panel.get_by_text("Traceback", exact=True).click()
    expect(panel.locator(".iw-status-trace")).to_contain_text("TraitError")
    nb.screenshot("panel_error", panel)
    expect(panel.get_by_text("A: (16,)")).to_be_visible()

    nb.py(code="SECONDS = 42")
    nb.handle(within=panel).press("ArrowRight")
    expect(status).to_have_text("Inputs changed: press Run (about 42 s, 300 MB)")
    expect(panel.locator(".jupyter-button.mod-primary", has_text="Run")).to_be_visible()
    nb.screenshot("panel_waiting", panel)
    assert nb.py("toy.n") == 5


def test_take_away(nb: Any) -> None:
    nb.make("take.ipynb", TOY, "toy = Toy(model); toy")
    nb.run_all()
    panel = panel_of(nb)
    expect(panel.get_by_role("textbox", name="Code that reproduces")).to_be_hidden()
    nb.page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=nb.lab.url)
    menu = panel.get_by_role("button", name="Menu: Copy as code, Terms, Save")
    expect(menu).to_have_attribute("aria-expanded", "false")
    menu.press("ArrowDown")
    expect(panel.get_by_role("menuitem", name="Copy as code")).to_be_focused()
    panel.get_by_role("menuitem", name="Copy as code").press("ArrowUp")
    expect(panel.get_by_role("menuitem", name="Save")).to_be_focused()
    panel.get_by_role("menuitem", name="Save").press("Escape")
    expect(menu).to_be_focused()
    expect(panel.get_by_role("menu")).to_be_hidden()
    menu.click()
    nb.screenshot("panel_menu", panel)
    panel.get_by_role("menuitem", name="Copy as code").click()
    nb.linger()  # the box stays open for as long as nobody closes it
    panel.get_by_role("button", name="Copy", exact=True).click()
    expect(panel.get_by_text("Copied")).to_be_visible()
    assert nb.page.evaluate("() => navigator.clipboard.readText()").endswith("3 ** 2")
    nb.screenshot("panel_code", panel)
    panel.get_by_role("button", name="Close").click()
    expect(panel.get_by_role("textbox", name="Code that reproduces")).to_be_hidden()
    expect(panel.get_by_role("button", name="Save file")).to_be_hidden()
    menu.click()
    nb.page.get_by_role("menuitem", name="Save").click()
    for control in (panel.get_by_label("Format"), panel.get_by_label("File name"), panel.locator(".noUi-handle").first):
        control.focus()
        nb.page.keyboard.press("Shift")  # whoever uses keys sees where they are
        expect(control).to_have_css("outline-style", "solid")
    panel.get_by_role("button", name="Save file").click()
    expect(panel.get_by_role("status").last).to_contain_text("toy.csv")
    assert (nb.lab.root / "toy.csv").read_text() == "square\n9\n"
    nb.screenshot("panel_save", panel)


def test_two_models_and_widths(nb: Any) -> None:
    nb.make("widths.ipynb", TOY, "import types\ntoy = Toy(types.SimpleNamespace(base=model, tuned=tuned)); toy")
    nb.run_all()
    panel = panel_of(nb)
    panel.get_by_role("button", name="difference B − A").click()
    expect(panel.get_by_text("difference: (9, 9)")).to_be_visible()
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        nb.set_theme(theme)
        for width in (1400, 700):
            nb.resize(width)
            cut = panel.evaluate(
                """panel => [...panel.querySelectorAll('.widget-label, .jupyter-button, .iw-model')]
                    .filter(node => node.offsetParent && node.scrollWidth > node.clientWidth + 1)
                    .map(node => node.textContent)"""
            )
            assert cut == []
            over = panel.evaluate("panel => panel.scrollWidth - panel.clientWidth")
            assert over <= 1, f"the panel is {over} pixels wider than its cell at {width}"
            nb.screenshot(f"panel_{theme.split()[-1].lower()}_{width}", panel)


def test_running_a_cell_again_closes_what_it_opened(nb: Any) -> None:
    nb.make("again.ipynb", TOY, "toy = Toy(model); toy")
    nb.run_all()
    count = "len(__import__('ipywidgets.widgets.widget', fromlist=['_'])._instances)"
    before = nb.py(count)
    nb.py(code="first = toy")
    for _ in range(3):
        nb.page.evaluate("async () => { await jupyterapp.commands.execute('notebook:run-cell'); }")
    nb.run_all()
    assert nb.py("first.closed")
    assert nb.py(count) == before
    expect(panel_of(nb)).to_have_count(1)
