"""A real JupyterLab in a real browser, cut off from the network: fixtures `lab`, `browser` and `nb`.

`INTERP_WIDGETS_SCREENSHOTS` names a folder to keep pictures in, `INTERP_WIDGETS_CHROMIUM` the browser to use.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.pictures import ALIKE, keep, share_unlike
from tests.waiting import LIMIT, until

ROOT = Path(__file__).parents[2]
FLAGS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # offline on purpose
]  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "@jupyterlab/apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    # Cells out of view must exist in the page, or a test could not find them.
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none", "recordTiming": False},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}
TEST_PATIENCE = 3600
"""Seconds for a whole test of many waits, on a machine with other work."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(TEST_PATIENCE))
    # tests that share a page keep it to the end of their file: they come last, when the others have let go of theirs
    order = {path: number for number, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(key=lambda item: (order[item.path], "shared_nb" in getattr(item, "fixturenames", ())))


@dataclass(frozen=True)
class Lab:
    """A running server: where it listens, where its notebooks lie, and the kernel of those that tests write."""

    url: str
    root: Path
    kernel: str


def address_of(process: subprocess.Popen[bytes], runtime: Path, log: Path) -> str:
    """Where a server that has chosen its port listens, once it answers there."""

    def answering() -> str:
        assert process.poll() is None, f"JupyterLab did not start:\n{log.read_text(errors='replace')[-2000:]}"
        try:
            (found,) = runtime.glob("jpserver-*.json")
            url = f"http://127.0.0.1:{json.loads(found.read_text())['port']}"
            urllib.request.urlopen(f"{url}/api", timeout=LIMIT).read()
        except (ValueError, urllib.error.URLError, OSError):
            return ""
        return url

    return until(answering, "the start of JupyterLab")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, warm_kernel: str) -> Iterator[Lab]:
    """A JupyterLab server on 127.0.0.1, which knows the kernels `python3` and `warm`."""
    with lab_server(tmp_path_factory.mktemp("lab"), warm_kernel) as server:
        yield server


@contextmanager
def lab_server(root: Path, kernel: str = "python3") -> Iterator[Lab]:
    """A JupyterLab server with all its folders in `root`, so that nothing of the user's is read or written."""
    for plugin, values in SETTINGS.items():
        file = root / "settings" / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    notebooks = root / "notebooks"
    notebooks.mkdir()
    env = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(root / "config"),
        "JUPYTER_DATA_DIR": str(root / "data"),
        "JUPYTER_RUNTIME_DIR": str(root / "runtime"),
        "IPYTHONDIR": str(root / "ipython"),
        "JUPYTERLAB_SETTINGS_DIR": str(root / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(root / "workspaces"),
        # The kernels run this very source, installed or not.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
    }
    log = root / "server.log"
    command = [
        sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
        "--ServerApp.port=0", "--IdentityProvider.token=", "--ServerApp.password=",
        "--ServerApp.disable_check_xsrf=True", f"--ServerApp.root_dir={notebooks}",
        "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    with log.open("wb") as sink:
        process = subprocess.Popen(command, env=env, stdout=sink, stderr=subprocess.STDOUT, cwd=notebooks)
    try:
        yield Lab(address_of(process, root / "runtime", log), notebooks, kernel)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def browser_finder() -> Any:
    """The module beside this one that finds (and for `make test` installs) a Chromium."""
    spec = importlib.util.spec_from_file_location("e2e_browser", Path(__file__).with_name("browser.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium under Playwright; every name but 127.0.0.1 fails to resolve."""
    with launched_chromium() as chromium:
        yield chromium


@contextmanager
def launched_chromium() -> Iterator[Any]:
    """As the fixture `browser`, for scripts."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * LIMIT)
    flags = [*FLAGS, "--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else FLAGS
    finder = browser_finder()
    path = finder.find_chromium()
    if path is None:
        pytest.fail(f"no Chromium on this machine: run 'make test', install Chromium, or name one in {finder.VARIABLE}")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, headless=True, args=flags)
        yield chromium
        chromium.close()


VIEWPORT = {"width": 1400, "height": 1100}
FIRST_PICTURE = """panel => {
    const tops = [];
    (function walk(root) {
        for (const node of root.querySelectorAll('*')) {
            const box = node.getBoundingClientRect();
            if (node.tagName === 'CANVAS' && box.height > 80) tops.push(box.top);
            if (node.shadowRoot) walk(node.shadowRoot);
        }
    })(panel);
    return Math.min(...tops) - panel.getBoundingClientRect().top;
}"""
STILL = """async node => {
    node.scrollIntoView({ block: 'center' });
    const look = () => JSON.stringify([node.getBoundingClientRect(), node.dataset.frame]);
    for (let before = look(), same = 0; same < 4;) {
        await new Promise(done => requestAnimationFrame(done));
        const now = look();
        same = now === before ? same + 1 : 0;
        before = now;
    }
}"""
STORED = ROOT / "notebooks" / "images" / "demo"
"""The pictures of the README, one of each panel on the demo pair: the journeys compare what they see."""
LETTERS = """() => {
    const text = document.createElement('canvas').getContext('2d');
    return ['ui', 'code'].map(kind => {
        text.font = `40px ${getComputedStyle(document.body).getPropertyValue(`--jp-${kind}-font-family`)}`;
        return Math.round(text.measureText('What it depends on: 0.123, −4.5').width);
    });
}"""
LETTERS_STORED = [655, 747]
"""The widths of a text in the two fonts of the stored pictures."""
TALL = 1700
"""Height of the page in which a journey goes on after a look: as high before, it need not be laid out once more."""
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"


class Notebook:
    """Drives one notebook page; `page` is the Playwright page."""

    def __init__(self, page: Any, lab: Lab, pictures: Path | None) -> None:
        self.page, self.lab, self.pictures = page, lab, pictures
        self.shown = "panel"
        self.errors: list[str] = []
        self.changed: list[str] = []
        self.console: list[str] = []
        self.outside: list[str] = []
        self._listeners: dict[str, Callable[[Any], object]] = {
            "pageerror": lambda error: self._fail(str(error)),
            "console": lambda message: message.type == "error" and self.console.append(message.text),
            "request": lambda request: self._see(request.url),
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)

    def leave(self) -> None:
        """Let go of the page, which another test may take."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        if not self.page.is_closed():
            self.page.evaluate("() => { window.notebooksLeft += 1; }")

    def _fail(self, error: str) -> None:
        if not error.startswith("Error: Canceled future for"):  # JupyterLab's, of the kernel of the test before
            self.errors.append(error)

    def _see(self, url: str) -> None:
        if not url.startswith((self.lab.url, self.lab.url.replace("http", "ws", 1), "data:", "blob:", "file:")):
            self.outside.append(url)

    def make(self, name: str, *cells: str) -> None:
        """Write a notebook of code cells and open it."""
        unrun: dict[str, Any] = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
        kernel = {"name": self.lab.kernel, "display_name": "Python", "language": "python"}
        book = {
            "cells": [{**unrun, "id": f"cell-{index}", "source": cell} for index, cell in enumerate(cells)],
            "metadata": {"kernelspec": kernel},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (self.lab.root / name).write_text(json.dumps(book), encoding="utf-8")
        self.open(name)

    def open(self, name: str, *, load: bool = False) -> None:
        """Open a notebook of the server's folder and wait for its kernel.

        A page that has JupyterLab already closes what it has open: to ``load`` it again takes seconds.
        """
        if self.page.url.startswith(self.lab.url) and not load:
            self.page.evaluate(
                """async path => {
                    for (const open of [...jupyterapp.shell.widgets('main')]) open.dispose();
                    await jupyterapp.commands.execute('docmanager:open', { path, factory: 'Notebook' });
                }""",
                name,
            )
        else:
            self.page.goto(f"{self.lab.url}/lab/tree/{name}?reset", wait_until="domcontentloaded")
            self.page.wait_for_function("() => window.jupyterapp?.shell.currentWidget?.sessionContext")
        self.page.evaluate(
            """async () => {
                const panel = jupyterapp.shell.currentWidget;
                await panel.context.ready; await panel.sessionContext.ready; await panel.revealed;
                jupyterapp.shell.collapseLeft();
            }"""
        )
        self.page.wait_for_function(
            "() => jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"
        )
        self.set_theme(LIGHT)  # the server keeps the theme that an earlier test has left

    def run_all(self) -> None:
        """Run every cell, wait for the end of the last one, fail on an error output."""
        # The run-all promise, not the kernel's idle flag: the flag is idle between two cells too.
        self.page.evaluate("async () => { await jupyterapp.commands.execute('notebook:run-all-cells'); }")
        self.no_error_outputs()

    def show(self, widget: str, *, name: str = "panel", before: str = "") -> Notebook:
        """Open a notebook that calls a widget of the demo `pair` by a name, and wait for its first result."""
        self.shown = name
        kind = widget.partition("(")[0]
        self.make(
            f"{kind}.ipynb",
            f"from interp_widgets import {kind}, load_demo_pair\npair = load_demo_pair()\n{before}"
            f"{name} = {widget}\n{name}",
        )
        self.run_all()
        self.done()
        return self

    @property
    def panel(self) -> Any:
        """The first panel of the page."""
        return self.page.locator(".iw-panel").first

    def handle(self, name: str = "", within: Any = None) -> Any:
        """The handle of a slider by its label, with the focus, once it is in sight: a hidden one takes no keys."""
        sliders = (within or self.panel).locator(".widget-hslider:visible").filter(has_text=name)
        handle = sliders.locator(".noUi-handle").first
        handle.wait_for()
        handle.focus()
        return handle

    def done(self) -> None:
        """Wait until nothing of the shown widget runs; on a busy machine its forecast asks for Run first."""
        end, pause = time.monotonic() + LIMIT, 50.0
        while (seen := self.py(f"({self.shown}.status.state, {self.shown}.busy)")) != ("done", False):
            assert time.monotonic() < end, f"{self.shown} stayed {seen!r}"
            if seen == ("waiting", False):
                self.panel.get_by_role("button", name="Run", exact=True).click()
            self.page.wait_for_timeout(pause)  # leaves the kernel time to work
            pause = min(1.3 * pause, 150)

    def map_cell(self, row: int, column: int) -> tuple[float, float]:
        """Page pixels of the middle of a cell that is in view in the panel's first heat map, scrolled into view."""
        canvas = self.panel.locator(".iw-heat canvas.iw-top").first
        self.still(canvas)
        x, y, width, height = canvas.evaluate("node => node.dataset.frame.split(' ').map(Number)")
        r0, c0, r1, c1 = canvas.evaluate("node => node.dataset.view.split(' ').map(Number)")
        assert r0 <= row < r1, f"row {row} is not in view"
        assert c0 <= column < c1, f"column {column} is not in view"
        box, across, down = canvas.bounding_box(), (column + 0.5 - c0) / (c1 - c0), (row + 0.5 - r0) / (r1 - r0)
        return box["x"] + x + across * width, box["y"] + y + down * height

    def no_error_outputs(self) -> None:
        found = self.page.evaluate(
            """() => jupyterapp.shell.currentWidget.context.model.toJSON().cells.flatMap((cell, i) =>
                (cell.outputs ?? []).filter(out => out.output_type === 'error')
                    .map(out => `${i}: ${out.ename}: ${out.evalue}`))"""
        )
        assert not found, f"cells failed: {found}"

    def py(self, expression: str = "", *, code: str = "") -> Any:
        """Run `code` in the kernel, then give back the value of `expression` (anything ast.literal_eval reads)."""
        reply = self.page.evaluate(
            """async ([code, expression]) => {
                const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
                const ask = { code, silent: false, store_history: false, stop_on_error: false,
                    user_expressions: expression ? { value: `repr(${expression})` } : {} };
                return (await kernel.requestExecute(ask, true).done).content;
            }""",
            [code, expression],
        )
        assert reply["status"] == "ok", reply
        if not expression:
            return None
        value = reply["user_expressions"]["value"]
        assert value["status"] == "ok", value
        return ast.literal_eval(ast.literal_eval(value["data"]["text/plain"]))

    def wait_py(self, expression: str, expected: Any, *, seconds: float = LIMIT) -> None:
        """Ask the kernel until `expression` has the expected value; fail with the last value seen."""
        end, pause = time.monotonic() + seconds, 50.0
        while (seen := self.py(expression)) != expected:
            assert time.monotonic() < end, f"{expression} stayed {seen!r}, expected {expected!r}"
            self.page.wait_for_timeout(pause)  # leaves the kernel time to work
            pause = min(1.3 * pause, 150)

    def set_theme(self, name: str) -> None:
        """Switch to 'JupyterLab Light' or 'JupyterLab Dark' and wait until the page wears it."""
        if self.page.evaluate("() => document.body.dataset.jpThemeName") == name:
            return
        self.page.evaluate(
            "async name => { await jupyterapp.commands.execute('apputils:change-theme', { theme: name }); }", name
        )
        self.page.wait_for_function("name => document.body.dataset.jpThemeName === name", arg=name)
        self.rests()

    def resize(self, width: int, height: int = 1100) -> None:
        if self.page.viewport_size == {"width": width, "height": height}:
            return
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.wait_for_function("width => window.innerWidth === width", arg=width)
        self.rests()

    def linger(self, milliseconds: float = 2000) -> None:
        """Give what must not happen the time to happen, and two clicks the time that keeps them apart."""
        self.page.wait_for_timeout(milliseconds)

    def frames(self, count: int = 2) -> None:
        """Wait until `count` frames have been painted."""
        self.page.evaluate(
            "async n => { for (let i = 0; i < n; i++) await new Promise(done => requestAnimationFrame(done)); }", count
        )

    def rests(self) -> None:
        """Wait until no box, map, animation or Bokeh figure has moved for 8 painted frames."""
        self.page.evaluate(
            """async () => {
                const parts = '.jp-Cell, .iw-panel, .iw-panel *, .iw-heat *, .iw-strip, .iw-table, .iw-bokeh *';
                const look = () => JSON.stringify([
                    document.getAnimations().filter(
                        one => one.playState === 'running' && one.effect.getComputedTiming().endTime < Infinity).length,
                    (window.Bokeh?.documents ?? []).map(doc => !doc.views_manager || doc.is_idle),
                    ...[...document.querySelectorAll(parts)].map(node => {
                        const box = node.getBoundingClientRect();
                        return [box.x, box.y, box.width, box.height, node.dataset.frame];
                    }),
                ]);
                for (let before = look(), same = 0; same < 8;) {
                    await new Promise(done => requestAnimationFrame(done));
                    const now = look();
                    same = now === before ? same + 1 : 0;
                    before = now;
                }
            }"""
        )

    def screenshot(self, name: str, target: Any = None) -> None:
        """Keep a picture of `target` (default: the page) where pictures are wanted; else it is compared."""
        if self.pictures is not None:
            keep((target or self.page).screenshot(), self.pictures / f"{name}.webp")
        elif self.is_pictured(name):
            self.compare(target or self.page, STORED / f"{name}.webp")

    def is_pictured(self, name: str) -> bool:
        """Whether a picture of this name is wanted, or stored."""
        return self.pictures is not None or (STORED / f"{name}.webp").exists()

    def compare(self, target: Any, stored: Path) -> None:
        """Whether it looks as in a stored picture is said at the end of the test, for all pictures at once.

        Not where the browser has other fonts, which break all lines elsewhere.
        """
        if self.page.evaluate(LETTERS) != LETTERS_STORED:
            warnings.warn(
                f"{stored.name} is not compared: this browser has other fonts than its pictures", stacklevel=2
            )
            return
        png = target.screenshot()
        share = share_unlike(png, stored)
        if share > ALIKE:
            new = ROOT / "build" / stored.relative_to(ROOT)
            keep(png, new)
            self.changed.append(
                f"{share:.1%} of {stored.relative_to(ROOT)} looks different (allowed: {ALIKE:.0%}): see "
                f"{new.relative_to(ROOT)}, and if it is as it should be, put it in its place"
            )

    def looks(self, name: str, panel: Any, *, height: int = 2600, first: int = 0) -> None:
        """A panel may not have failed, nor be wider than its cell, wide or narrow; it is pictured, light and dark.

        Where given, its first picture begins so many pixels below its top or higher.
        """
        assert panel.get_by_text("Failed", exact=True).locator("visible=true").count() == 0, panel.inner_text()
        self.page.mouse.move(2, 2)
        for theme, width in ((LIGHT, 1400), (LIGHT, 700), (DARK, 700), (DARK, 1400)):
            picture = f"{name}_{theme.split()[-1].lower()}_{width}"
            if theme == DARK and not self.is_pictured(picture):
                continue
            self.set_theme(theme)
            self.resize(width, height if self.is_pictured(picture) else TALL)
            if self.page.evaluate("() => (window.Bokeh?.documents ?? []).some(doc => doc.views_manager)"):
                self.bokeh_idle()
            self.screenshot(picture, panel)
            over = panel.evaluate("panel => panel.scrollWidth - panel.clientWidth")
            assert over <= 1, f"the panel is {over} pixels wider than its cell at {width}"
            above = self.first_picture(panel) if first else 0
            assert above <= first, f"the first picture is {above} pixels below the top of the panel at {width}"
        self.set_theme(LIGHT)
        self.resize(1400, TALL)

    def first_picture(self, panel: Any) -> float:
        """How many pixels below the panel's top its first picture begins, once there is one and nothing moves."""
        self.page.wait_for_function(f"panel => Number.isFinite(({FIRST_PICTURE})(panel))", arg=panel.element_handle())
        self.rests()
        return float(panel.evaluate(FIRST_PICTURE))

    def still(self, locator: Any) -> None:
        """Scroll an element into view, and wait until it stays there."""
        locator.evaluate(STILL)

    def center(self, locator: Any, x: float = 0.5, y: float = 0.5) -> tuple[float, float]:
        """A point of an element in page pixels, by shares of its width and height, scrolled into view first."""
        self.still(locator)
        box = locator.bounding_box()
        return box["x"] + x * box["width"], box["y"] + y * box["height"]

    def bokeh_idle(self) -> None:
        """Wait until every figure is drawn. A click on a busy machine, of more than 300 ms, is a click to Bokeh too."""
        self.page.wait_for_function(
            """() => {
                if (window.Bokeh) Bokeh.require('core/ui_gestures').UIGestures.press_threshold = 1e6;
                const shown = (window.Bokeh?.documents ?? []).filter(doc => doc.views_manager);
                return shown.length > 0 && shown.every(doc => doc.is_idle);
            }"""
        )

    def bokeh_rests(self) -> None:
        """Wait until no figure counts as being moved by the reader, so that everything is drawn in full."""
        self.page.wait_for_function(
            "() => (window.Bokeh?.documents ?? []).every(doc => !(doc.interactive_duration() >= 0))"
        )
        self.bokeh_idle()
        self.frames(3)

    def bokeh_point(self, figure: str, x: float, y: float) -> tuple[float, float]:
        """Page pixels of a data point of the named figure, scrolled into view."""
        found = self.page.evaluate(
            """async ([name, x, y]) => {
                let view = null;
                const look = one => {
                    if (one.model.name === name && one.frame && one.el?.isConnected) view = one;
                    for (const child of one.child_views ?? []) look(child);
                };
                for (const root of Bokeh.index.roots) look(root);
                view.el.scrollIntoView({ block: 'center' });
                const place = () => {
                    const box = view.canvas_view.el.getBoundingClientRect();
                    return [box.x + view.frame.x_scale.compute(x), box.y + view.frame.y_scale.compute(y)];
                };
                for (let before = place(), same = 0; same < 4;) {
                    await new Promise(done => requestAnimationFrame(done));
                    const now = place();
                    same = now.join() === before.join() ? same + 1 : 0;
                    before = now;
                }
                return place();
            }""",
            [figure, x, y],
        )
        return found[0], found[1]

    def shutdown(self) -> None:
        """End the kernel and close what is open; JupyterLab drops the questions the kernel has not answered."""
        if self.page.is_closed():
            return
        self.page.evaluate(
            """async () => {
                await window.jupyterapp?.shell.currentWidget?.sessionContext?.shutdown();
                for (const open of [...window.jupyterapp?.shell.widgets('main') ?? []]) open.dispose();
                await new Promise(done => setTimeout(done));
            }"""
        )


def axe_faults(page: Any, where: str, **options: Any) -> list[str]:
    """What axe finds wrong for those who hear a part of the page, or see little."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, where, {"resultTypes": ["violations"], **options}).response["violations"]
    return [f"{fault['id']}: {node['html'][:300]}" for fault in found for node in fault["nodes"]]


@pytest.fixture(scope="session")
def pages(browser: Any) -> Pages:
    """Pages that have JupyterLab loaded, or will."""
    return Pages(browser)


@pytest.fixture(scope="session")
def pictures() -> Path | None:
    """Where screenshots are kept; None: nobody wants them."""
    named = os.environ.get("INTERP_WIDGETS_SCREENSHOTS")
    return Path(named) if named else None


class Pages:
    """The pages of a browser: one that a test has left as it should be serves the next."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._free: list[Any] = []

    @contextmanager
    def taken(self) -> Iterator[Any]:
        """A page, closed after an error."""
        page = self._free.pop() if self._free else self._new()
        try:
            yield page
        except BaseException:
            page.context.close()
            raise
        if not page.is_closed():
            page.set_viewport_size(VIEWPORT)
            page.mouse.move(0, 0)
            self._free.append(page)

    def _new(self) -> Any:
        """A page in a window of its own: one behind another would paint no frames."""
        context = self._browser.new_context(viewport=VIEWPORT, reduced_motion="reduce")
        context.set_default_timeout(1000 * LIMIT)
        # anywidget counts a module that takes two seconds as failed: in a test, a busy machine is no error, and a model
        # whose notebook is left while it loads is none of the next notebook
        context.add_init_script(
            """window.notebooksLeft = 0;
            AbortSignal.timeout = ms => {
                const control = new AbortController(), left = window.notebooksLeft;
                const late = () => control.abort(new DOMException(`${ms} ms`, 'TimeoutError'));
                setTimeout(() => { if (left === window.notebooksLeft) late(); }, 60 * ms);
                return control.signal;
            };"""
        )
        return context.new_page()


@contextmanager
def notebook_page(lab: Lab, pages: Pages, pictures: Path | None) -> Iterator[Notebook]:
    """A page; at the end its kernel goes, and there must have been no page error and no request elsewhere."""
    with pages.taken() as page:
        notebook = Notebook(page, lab, pictures)
        yield notebook
        errors, outside = list(notebook.errors), list(notebook.outside)
        notebook.shutdown()
        notebook.leave()
    assert not errors, f"errors in the page: {errors}"
    assert not notebook.changed, "\n".join(notebook.changed)
    assert not outside, f"requests off the machine: {outside}"


@pytest.fixture
def nb(lab: Lab, pages: Pages, pictures: Path | None) -> Iterator[Notebook]:
    """A notebook and kernel of the test's own."""
    with notebook_page(lab, pages, pictures) as notebook:
        yield notebook


@pytest.fixture(scope="module")
def shared_nb(lab: Lab, pages: Pages, pictures: Path | None) -> Iterator[Notebook]:
    """One page and kernel for the tests of a module, which must leave it as they found it."""
    with notebook_page(lab, pages, pictures) as notebook:
        yield notebook
