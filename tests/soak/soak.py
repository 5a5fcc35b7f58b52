"""Random valid operations on a workbench with all its panels, for minutes: nothing may stand still, be wrong, or grow.

    python -m tests.soak.soak --models demo --seed 1 --seconds 100
    python -m tests.soak.soak --models gpt2 --seed 1 --seconds 100

The main thread does what a user does: it changes controls by the messages that a browser sends, clicks, opens tabs and
panels, runs cells with the models, saves and opens sessions. A watchdog ends the process with the stacks of all threads
if an operation, or the worker, does not come to an end. Whenever everything rests, results on the screen are compared
with fresh computations, and memory is measured. An error on the screen is a fault unless it is a sentence for users.
The exit code is the number of faults, at most 100.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import gc
import json
import math
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import comm
import comm.base_comm
import ipywidgets as W
import numpy as np
import traitlets as T
from bokeh.model import Model as BokehModel

import interp_widgets as iw
from interp_widgets.analysis.concepts import ConceptMap
from interp_widgets.arguments import short
from interp_widgets.compute.cache import results
from interp_widgets.compute.worker import Cancelled, _workers
from interp_widgets.widgets.base.fields import hidden
from interp_widgets.widgets.base.lifetime import descendants
from interp_widgets.widgets.base.panel import Panel
from interp_widgets.widgets.base.shell import Shell
from interp_widgets.widgets.views import AlignedTokens, Heatmap, Table, TokenStrip
from interp_widgets.widgets.views.bokeh_figure import BokehSource
from interp_widgets.widgets.workbench.tools import TOOLS
from tests.maps_alike import unlike_maps
from tests.soak.counts import Counts, counted

PROMPTS = (
    "The Eiffel Tower is in the city of", "The capital of Japan is", "Snow fell on the", "One two three four",
    "The nurse said that she was late.", "When Mary and John went to the store, John gave a drink to",
)  # fmt: skip
RESPONSES = ("", " Paris.", " Tokyo", " city of snow")
TEXT_BOXES = {"Prompt": PROMPTS, "Response": RESPONSES}
"""The only boxes that are typed into: most others name files, words of a list or tokens."""
NOT_CLICKED = ("Save", "Annotate", "Open", "Load", "Download", "Tune", "Train", "Import", "Export", "Ask", "Judge")
"""Beginnings of buttons that write or read files, ask a server, or take minutes."""
SENTENCES = (ValueError, T.TraitError, NotImplementedError, FileNotFoundError)
NOT_COMPARED = ("provenance", "seconds")
"""Parts of results that differ from run to run."""
STILL, COMPUTES = 60.0, 0.3
"""What uses less than ``COMPUTES`` seconds of the processor in ``STILL`` seconds stands still."""
LIVE_SECONDS = 1.0
LONGEST = 20.0
"""No run is started that is forecast to take longer, in seconds, and none is waited for that does."""


class Silent(comm.base_comm.BaseComm):
    """A comm to no browser."""

    def publish_msg(self, *args: Any, **keys: Any) -> None:
        """Nothing is sent."""


class Watchdog:
    """Ends the process, with the stacks of all threads, if an operation neither ends nor computes."""

    def __init__(self) -> None:
        self._main = time.pthread_getcpuclockid(threading.get_ident())
        self._what, self._clock = "", self._main
        threading.Thread(target=self._watch, name="soak watchdog", daemon=True).start()

    @contextlib.contextmanager
    def at(self, what: str, *, waits: bool = False) -> Iterator[None]:
        """The main thread does something; ``waits``: it may wait for other threads, as long as these compute."""
        self._clock, self._what = time.CLOCK_PROCESS_CPUTIME_ID if waits else self._main, what
        try:
            yield
        finally:
            self._what = ""

    def _watch(self) -> None:
        seen: tuple[str, float] = "", 0.0
        since = time.monotonic()
        while True:
            time.sleep(1)
            now = self._what, time.clock_gettime(self._clock)
            if not self._what or now[0] != seen[0] or now[1] > seen[1] + COMPUTES:
                seen, since = now, time.monotonic()
            elif time.monotonic() > since + STILL:
                print(f"STANDS STILL: {self._what}", flush=True)
                faulthandler.dump_traceback(all_threads=True)
                os._exit(101)


def wait_for_workers() -> None:
    """Wait until nothing computes: a run refers to its panel until it has ended, and counting objects disturbs it."""
    while any(worker.busy for worker in _workers.values()):
        time.sleep(0.1)


class Rest(NamedTuple):
    """What the process held when everything rested."""

    operations: int
    seconds: float
    """Since the start."""
    panels: int
    """Panels that were open, a stack's tabs counted each: what was opened for the first time adds its widgets once."""
    held: Counts


class Soak:
    """One run: the models, the workbench, the panels beside it, and what went wrong."""

    def __init__(self, models: tuple[Any, ...], seed: int, folder: Path) -> None:
        self.models, self.random, self.folder = models, random.Random(seed), folder
        self.watchdog = Watchdog()
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.start = time.monotonic()
        self.memory: list[Rest] = []
        """What the process held at every rest."""
        self.trail: list[str] = []
        self.tools = list(TOOLS)
        self.bench = self.open_bench()
        self.beside: list[Any] = []
        self.cells: list[threading.Thread] = []

    # what is on the screen --------------------------------------------------------------------------------------------

    def open_bench(self) -> iw.Workbench:
        """A workbench on the models."""
        return iw.Workbench(*self.models, prompt=PROMPTS[0], response=RESPONSES[1], live_seconds=LIVE_SECONDS)

    def shells(self) -> list[Any]:
        """All open panels and stacks: those of the screen, and those beside it."""
        return [self.bench.screen.texts, *self.bench.screen.panels.values(), *self.beside]

    def panels(self) -> list[Panel]:
        """The active panel of each."""
        return [shell.current_panel for shell in self.shells()]

    # operations -------------------------------------------------------------------------------------------------------

    def operate(self) -> None:
        """One random operation."""
        choices: list[tuple[int, Callable[[], str]]] = [
            (30, self.control), (10, self.view), (8, self.tab), (6, self.tool), (6, self.select), (6, self.run),
            (4, self.cancel), (3, self.cell), (2, self.generate), (2, self.own_panel), (1, self.session),
        ]  # fmt: skip
        weights, works = zip(*choices, strict=True)
        (work,) = self.random.choices(works, weights)
        name = work.__name__
        self.counts[name] += 1
        with self.watchdog.at(name, waits=work in (self.run, self.cell, self.session, self.own_panel)):
            try:
                what = work()
            except Cancelled:
                what = "cancelled"
            except SENTENCES as error:
                what, self.counts["refused"] = f"refused: {error}", self.counts["refused"] + 1
            except Exception:
                what = "raised"
                self.fault(f"{name} raised\n{traceback.format_exc()}")
        self.trail.append(f"{name}: {short(what)}")
        try:
            self.look_for_errors()
        except Exception:  # an open tab that cannot be made
            self.fault(f"the panels cannot be read\n{traceback.format_exc()}")

    def visible(self, kinds: tuple[type, ...]) -> list[Any]:
        """Widgets of some kinds that the user can reach on one of the shells."""
        shell = self.random.choice(self.shells()).current_panel
        return [one for one in descendants(shell) if isinstance(one, kinds) and not _is_hidden(one, shell)]

    def control(self) -> str:
        """Change a control, or click a button."""
        kinds = (W.Dropdown, W.ToggleButtons, W.Checkbox, W.ToggleButton, W.BoundedIntText, W.BoundedFloatText,
                 W.IntSlider, W.FloatSlider, W.Button)  # fmt: skip
        boxes = [one for one in self.visible((*kinds, W.DOMWidget)) if isinstance(one, kinds) or _prompts(one)]
        if not boxes:
            return "nothing"
        box = self.random.choice(boxes)
        label = str(getattr(box, "description", ""))
        if isinstance(box, W.Button):
            if box.disabled or label.startswith(NOT_CLICKED):
                return "nothing"
            if any(panel.run_button is box and self.takes_long(panel) for panel in self.panels()):
                return "too long"
            _receive(box, method="custom", content={"event": "click"})
        elif isinstance(box, W.Dropdown | W.ToggleButtons):
            if box.options:
                _type(box, index=self.random.randrange(len(box.options)))
        elif isinstance(box, W.Checkbox | W.ToggleButton):
            _type(box, value=not box.value)
        elif isinstance(box, W.FloatSlider | W.BoundedFloatText):
            _type(box, value=self.random.uniform(box.min, min(box.max, box.min + 100)))
        elif isinstance(box, W.IntSlider | W.BoundedIntText):
            _type(box, value=self.random.randint(box.min, min(box.max, box.min + 12)))
        else:
            _type(box, value=self.random.choice(_prompts(box)))
        return f"{type(box).__name__} {label}"

    def view(self) -> str:
        """Pick a token, a cell or a row."""
        views = self.visible((Heatmap, TokenStrip, AlignedTokens, Table))
        if not views:
            return "nothing"
        one = self.random.choice(views)
        if isinstance(one, Heatmap):
            rows, columns = one.shape
            if rows and columns:
                cell = [self.random.randrange(rows), self.random.randrange(columns)]
                _type(one, **{self.random.choice(("pinned", "hovered")): cell})
        else:
            parts = {Table: "rows", AlignedTokens: "upper"}
            count = len(getattr(one, next((parts[kind] for kind in parts if isinstance(one, kind)), "tokens")))
            if count:
                _type(one, selected=self.random.randrange(count))
        return type(one).__name__

    def tab(self) -> str:
        """Open another tab of a stack."""
        stacks = [shell for shell in self.shells() if hasattr(shell, "fitting")]
        if not stacks:
            return "nothing"
        stack = self.random.choice(stacks)
        stack.tab = self.random.choice(list(stack.fitting))
        return f"{type(stack).__name__} {stack.tab}"

    def tool(self) -> str:
        """Show another tab of the screen."""
        name = self.random.choice(self.tools)
        self.bench.screen.show(name)
        return name

    def select(self) -> str:
        """Another prompt, response or selection on the workbench, as a cell does."""
        model = self.models[0]
        values: dict[str, Any] = self.random.choice(
            [
                {"prompt": self.random.choice(PROMPTS), "response": self.random.choice(RESPONSES)},
                {"layer": self.random.randrange(model.n_layers), "head": self.random.randrange(model.n_heads)},
                {"neuron": self.random.randrange(model.d_mlp)},
                {"prompt_token": self.random.randrange(3)},
            ]
        )
        self.bench.select(**values)
        return str(values)

    def run(self) -> str:
        """Run a panel in a cell."""
        panel = self.random.choice([panel for panel in self.panels() if panel.has_request])
        if self.takes_long(panel):
            return "too long"
        panel.run()
        return type(panel).__name__

    def takes_long(self, panel: Panel) -> bool:
        """Whether the run of a panel is forecast to take longer than a soak should wait; False if it cannot run."""
        try:
            return panel.has_request and panel.forecast(panel.request()).seconds > LONGEST
        except SENTENCES:
            return False

    def cancel(self) -> str:
        """Cancel what runs."""
        shell = self.random.choice([*self.shells(), self.bench.screen])
        shell.cancel()
        return type(shell).__name__

    def cell(self) -> str:
        """Compute with a model in a cell, as it is or with an ablation, which the panels must not see."""
        model, prompt = self.random.choice(self.models), self.random.choice(PROMPTS)
        with iw.ablation(model, iw.Ablation("mlp", self.random.randrange(model.n_layers))):
            self.bench.select(prompt=prompt)
            model.run(model.tokens(prompt))
        return prompt

    def generate(self) -> str:
        """Generate a text beside the panels, in a thread of the user's."""
        self.cells = [thread for thread in self.cells if thread.is_alive()]
        if len(self.cells) > 1:
            return "nothing"
        model, prompt = self.random.choice(self.models), self.random.choice(PROMPTS)

        def tell(_: int) -> None:
            self.bench.select(layer=0)

        self.cells.append(threading.Thread(target=partial(model.generate, prompt, max_new_tokens=10, on_token=tell)))
        self.cells[-1].start()
        return prompt

    def own_panel(self) -> str:
        """Open a panel of its own on the workbench or on a model, or close one."""
        if len(self.beside) > 2:
            self.beside.pop(self.random.randrange(len(self.beside))).close()
            return "closed"
        kinds = (iw.AblationPanel, iw.LogitLensExplorer, iw.SaliencyExplorer, iw.TokenDecompositionExplorer)
        on = self.random.choice([self.bench, *self.models])
        self.beside.append(self.random.choice(kinds)(on, live_seconds=LIVE_SECONDS))
        return repr(self.beside[-1])

    def session(self) -> str:
        """Save the screen, and half of the time go on with what was saved."""
        path = self.bench.save(self.folder / "session.npz")
        if self.random.random() < 0.5:
            return "saved"
        for panel in self.beside:
            panel.close()
        self.beside = []
        self.bench.close()
        self.bench = iw.Workbench.load(path, *self.models)
        self.bench.screen.show(self.random.choice(self.tools))
        return "opened"

    # checks -----------------------------------------------------------------------------------------------------------

    def fault(self, text: str) -> None:
        """Note what went wrong, with what led to it."""
        self.faults.append(text)
        print(f"FAULT: {text}\n  after {'; '.join(self.trail[-6:])}", flush=True)

    def look_for_errors(self) -> None:
        """A status line with an error that is no sentence."""
        for panel in self.panels():
            status = panel.status
            if not status.error:
                continue
            kind = status.trace.strip().rsplit("\n", 1)[-1].partition(":")[0]
            known = {error.__name__ for error in SENTENCES} | {"Refused", "Incomplete", "PromptError", "LoadError"}
            if kind.rpartition(".")[2] not in known and status.trace not in self.trail[-50:]:
                self.trail.append(status.trace)
                self.fault(f"{type(panel).__name__} shows {status.error}\n{status.trace[-3000:]}")

    def rest(self) -> None:
        """Let everything end, compare a result with a fresh computation, and measure memory."""
        with self.watchdog.at("coming to rest", waits=True):
            if self.random.random() < 0.5:
                for shell in self.shells():
                    shell.cancel()
            for shell in self.shells():
                if not shell.wait(LONGEST):
                    shell.cancel()
                    shell.wait()
            for thread in self.cells:
                thread.join()
        self.look_for_errors()
        self.compare()
        self.measure(sum(len(getattr(shell, "opened_panels", (shell,))) for shell in self.shells()))

    def measure(self, panels: int) -> None:
        """Note what the process holds, with so many panels open."""
        with self.watchdog.at("counting what is alive", waits=True):
            wait_for_workers()
            held = counted()
        self.memory.append(Rest(sum(self.counts.values()), time.monotonic() - self.start, panels, held))

    def compare(self) -> None:
        """Compare a result on the screen with a fresh computation."""
        ready = [
            panel for panel in self.panels()
            if panel.has_request and panel.reuses and panel.results and not panel._shown.partial
            and not panel._outdated and not panel._model_moved  # dimmed, and says so
        ]  # fmt: skip
        for panel in self.random.sample(ready, min(2, len(ready))):
            before, request = panel.results, panel.shown_request
            with self.watchdog.at(f"a fresh run of {type(panel).__name__}", waits=True):
                try:
                    if panel.request() != request or panel.answers.measured(request, panel.models[0]).seconds > LONGEST:
                        continue
                except SENTENCES as error:  # a setting is not filled in
                    if panel.active and not panel._stale:  # a hidden one takes up changes when it is shown again
                        self.fault(f"{type(panel).__name__} shows its last result as if it were new, beside: {error}")
                    continue
                try:
                    panel.run(fresh=True)
                except SENTENCES as error:
                    self.fault(f"{type(panel).__name__} shows a result but a fresh run says: {error}")
                    continue
            self.counts["compared"] += 1
            difference = different(before, panel.results)
            if difference:
                self.fault(f"{type(panel).__name__} showed another result than a fresh run: {difference}\n  {request}")

    def report(self) -> int:
        """Print what was done, the trend of memory, and the faults."""
        total = sum(count for name, count in self.counts.items() if name not in ("compared", "refused"))
        print(f"{total} operations: {dict(self.counts)}")
        if len(self.memory) > 3:
            resting = [rest for rest in self.memory if rest.panels]
            half, first, last = resting[len(resting) // 2 :], resting[0], resting[-1]
            done = [rest.operations for rest in half]
            sizes = [[rest.held.rss for rest in half], [rest.held.rss - rest.held.cache for rest in half]]
            slope, own = (np.polyfit(done, size, 1)[0] * 1000 for size in sizes)
            print(
                f"memory at rest: {first.held.rss:.0f} MB after {first.operations} operations, {last.held.rss:.0f} MB "
                f"after {last.operations}; in the second half {slope:+.0f} MB per 1,000 operations, {own:+.0f} MB "
                "without the cache of results"
            )
            print(f"  seconds  operations  panels  {Counts.HEAD}")
            for rest in self.memory:
                print(f"  {rest.seconds:7.0f}  {rest.operations:10d}  {rest.panels:6d}  {rest.held}")
            print("  the last two: all panels closed; the cache of results emptied")
            print(f"  threads: {', '.join(thread.name for thread in threading.enumerate())}")
        print(f"{len(self.faults)} faults")
        return min(len(self.faults), 100)

    def close(self) -> None:
        """Close everything."""
        with self.watchdog.at("closing", waits=True):
            while self.beside:
                self.beside.pop().close()
            self.bench.close()
            del self.bench
        self.measure(0)
        left = Counter(type(one).__name__ for one in gc.get_objects() if issubclass(type(one), Shell | BokehModel))
        left += Counter(type(one).__name__ for one in W.widget._instances.values() if not _is_shared(one))
        if left:
            self.fault(f"panels are left after all were closed: {dict(left)}")
        results.clear()
        self.measure(0)


def different(left: Any, right: Any, path: str = "result") -> str:
    """Where two results differ by more than rounding; empty if they do not."""
    if type(left) is not type(right):
        return f"{path}: {type(left).__name__} and {type(right).__name__}"
    if isinstance(left, ConceptMap) and left.method in ("umap", "tsne"):
        return " ".join(unlike_maps(left, right, path))
    if isinstance(left, np.ndarray):
        if left.shape != right.shape:
            return f"{path}: shapes {left.shape} and {right.shape}"
        if left.dtype.kind in "fc":
            scale = float(np.nanmax(np.abs(left), initial=0.0)) or 1.0
            return "" if np.allclose(left, right, rtol=1e-3, atol=1e-4 * scale, equal_nan=True) else f"{path}: values"
        return "" if np.array_equal(left, right) else f"{path}: values"
    if isinstance(left, float):
        same = math.isclose(left, right, rel_tol=1e-3, abs_tol=1e-4) or left != left
        return "" if same else f"{path}: {left} and {right}"
    if dataclasses.is_dataclass(left) and not isinstance(left, type):
        names = [field.name for field in dataclasses.fields(left) if field.name not in NOT_COMPARED]
        parts = [(name, getattr(left, name), getattr(right, name)) for name in names]
    elif isinstance(left, dict):
        if left.keys() != right.keys():
            return f"{path}: keys"
        parts = [(str(key), left[key], right[key]) for key in left if key not in NOT_COMPARED]
    elif isinstance(left, tuple | list):
        if len(left) != len(right):
            return f"{path}: lengths {len(left)} and {len(right)}"
        parts = [(str(number), *pair) for number, pair in enumerate(zip(left, right, strict=True))]
    else:
        return (
            "" if callable(left) or left is right or bool(left == right) else f"{path}: {short(left)}, {short(right)}"
        )
    return next(filter(None, (different(a, b, f"{path}.{name}") for name, a, b in parts)), "")


def _prompts(box: Any) -> tuple[str, ...]:
    """What may be typed into a box."""
    return TEXT_BOXES.get(str(getattr(box, "description", "")), ())


def _is_hidden(widget: Any, root: Any) -> bool:
    """Whether a widget, or a box of the root that it is in, is hidden."""
    if hidden(widget):
        return True
    return any(hidden(box) and any(one is widget for one in descendants(box)) for box in descendants(root))


def _is_shared(widget: Any) -> bool:
    """Whether it stays open for later panels: the code of charts, which a page gets once."""
    return widget is BokehSource._shared or widget is getattr(BokehSource._shared, "layout", None)


def _receive(widget: Any, **data: Any) -> None:
    widget._handle_msg({"content": {"data": data}, "buffers": []})


def _type(widget: Any, **state: Any) -> None:
    _receive(widget, method="update", state=state, buffer_paths=[])


def gpt2(folder: Path) -> tuple[Any, ...]:
    """A random GPT-2 of 124 million parameters, with the demo's tokenizer and names for the rest of its vocabulary."""
    import torch
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    demo = Path(iw.__file__).parent / "assets" / "demo" / "base"
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=1)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(demo).save_pretrained(folder)
    data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    words = data["model"]["vocab"]
    words.update({f"Ġunused{number}": number for number in range(len(words), GPT2Config().vocab_size)})
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    return (iw.load_model(folder),)


def main(arguments: list[str] | None = None) -> int:
    """Run it; returns the number of faults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", choices=("demo", "gpt2"), default="demo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--rest-every", type=int, default=40, help="operations between two rests")
    chosen = parser.parse_args(arguments)
    faulthandler.enable()
    comm.create_comm = Silent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pair = iw.load_demo_pair() if chosen.models == "demo" else None
        soak = Soak(gpt2(folder) if pair is None else (pair.base, pair.tuned), chosen.seed, folder)
        end, count = time.monotonic() + chosen.seconds, 0
        soak.rest()
        while time.monotonic() < end:
            soak.operate()
            count += 1
            if count % chosen.rest_every == 0:
                soak.rest()
        soak.rest()
        soak.close()
    return soak.report()


if __name__ == "__main__":
    sys.exit(main())
