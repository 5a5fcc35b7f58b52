"""Values that no option can have, set from Python: one sentence, and the option stays as it is."""

from __future__ import annotations

import datetime
import linecache
from typing import Annotated, Any

import ipywidgets as W
import numpy as np
import pytest
import torch
import traitlets as T

import interp_widgets as iw
from interp_widgets import BiasWorkbench, LogitLensExplorer, Model, SaliencyExplorer, Workbench
from interp_widgets.widgets.base.controls import Number, Span, Typed, TypedList, Whole, Worded
from interp_widgets.widgets.base.fields import Bounds, field, variant
from interp_widgets.widgets.base.panel import Panel
from interp_widgets.widgets.base.stack import Stack
from interp_widgets.widgets.base.workbench import in_model
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair
from tests.widgets.messages import RAW


class Odd:
    """Nothing can be done with it."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparing")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


VALUES: tuple[Any, ...] = (
    None, True, 0, -1, -2, 7, 10**9, 2**70, -(2**70), 10**5000, 0.5, 1e308, float("nan"), float("inf"), "", "x", "a\0b",
    "\ud800", "y" * 300_000, b"bytes", [], [9, 3], [[9, 3]], [[3, 1], [2]], [None], (1, 2), {}, {"a": 1}, {1}, object(),
    Odd(), [Odd()], len, int, np.array([1, 2]), np.float32(3), np.int64(2), np.array(3), torch.tensor(2),
    torch.tensor([1.0, 2.0]), range(3), 1j, datetime.date(2020, 1, 1), [{"role": "user", "content": 5}], ...,
    [{"role": "nobody"}], slice(1), ["a", 5], [float("nan")],
)  # fmt: skip


def refusal(owner: Any, name: str, value: Any) -> str:
    """The sentence with which a value is refused; empty if it is not."""
    try:
        setattr(owner, name, value)
    except (T.TraitError, ValueError) as error:
        return str(error)
    return ""


def test_a_value_outside_the_bounds_of_the_model_is_refused(model: Any, classes: Any, make: Any, wire: Any) -> None:
    class Deep(classes.Toy):
        depth = field(Annotated[int, Bounds(1, lambda panel: 3, slider=True)], 2, label="Depth", redraws=True)

    panel = make(model, kind=Deep)
    assert panel.controls["depth"].value == 2
    with pytest.raises(T.TraitError, match=r"^depth must be in 1\.\.3 here, got 9$"):
        panel.depth = 9
    wire.type(panel.controls["depth"], value=9)
    assert panel.status.error == "Depth must be in 1..3, got 9; it stays 2"
    assert panel.depth == panel.controls["depth"].value == 2
    with pytest.raises(T.TraitError, match=r"depth must be in 1\.\.3 here, got 9"):
        make(model, kind=Deep, depth=9)

    class Depths(Stack):
        title, panels = "Depths", {"deep": Deep}

    stack = Depths(model)
    with pytest.raises(T.TraitError, match=r"depth must be in 1\.\.3 here, got 9"):
        stack.depth = 9
    assert stack.depth == stack["deep"].depth == 2
    stack.close()
    panel.depth = 1
    assert panel.controls["depth"].value == 1
    assert not panel.status.error

    class Built(Deep):
        depth = variant(Deep.depth, default=7)

        def build(self) -> None:
            super().build()
            self.inputs.children = [*self.inputs.children, *self.controls.rows()]

    assert make(model, kind=Built).depth == 3, "a default adapts to the model"
    with pytest.raises(T.TraitError, match=r"depth must be in 1\.\.3 here, got 9"):
        make(model, kind=Built, depth=9)


def test_every_kind_of_field(model: Any, classes: Any, make: Any) -> None:
    class Full(classes.Toy):
        choice = field({"a": "A", 2: "two"}, "a")
        yes = field(bool)
        share = field(float, 0.5)
        text = field(str)
        lines = field(list)
        span = field(Span())
        pair = field(TypedList(count=2))
        view = classes.Toy.view

    panel = make(model, kind=Full)
    for name in (*panel.fields(), "view", "live_seconds", "kind", "layer"):
        start = getattr(panel, name)
        for value in VALUES:
            sentence = refusal(panel, name, value)
            assert len(sentence) <= 1000, name
            assert "\n" not in sentence
            assert not RAW.search(sentence), (name, sentence)
            panel.cancel()
            assert panel.wait(60)
            assert not RAW.search(panel.status.error), (name, panel.status.trace)
            setattr(panel, name, start)
    panel.n, panel.share = np.int64(2), np.float32(0.25)
    assert (panel.n, panel.share) == (2, 0.25)
    assert type(panel.n) is int


def fourth(model: Model, *, layer: int, neuron: int) -> int:
    """Something about a neuron."""
    return 4 * layer + neuron


class Neurons(Panel):
    title, analysis = "Neurons", staticmethod(fourth)
    layer = field(in_model(), label="Layer")
    neuron = field(in_model(), label="Neuron")


def test_a_layer_of_the_model_is_an_option_with_a_slider(wire: Any) -> None:
    model = tiny_model("gpt2")
    panel = Neurons(model, layer=1, neuron=3)
    assert panel.wait(60)
    assert panel.result == 7
    slider, box = panel.controls["layer"], panel.controls["neuron"]
    assert isinstance(slider, W.IntSlider)
    assert (slider.min, slider.max, slider.value) == (0, model.n_layers - 1, 1)
    assert (box.min, box.max, box.value) == (0, model.d_mlp - 1, 3)
    wire.type(slider, value=2)
    assert panel.wait(60)
    assert (panel.layer, panel.result) == (2, 11)
    for index in (77, -1):
        with pytest.raises(T.TraitError, match=f"layer must be in 0..{model.n_layers - 1} for .*, got {index}"):
            panel.layer = index
    for index in (77, -1):
        wire.type(slider, value=index)
        assert panel.status.error == f"Layer must be in 0..{model.n_layers - 1}, got {index}; it stays 2"
        assert wire.states(slider, "value")[-1] == 2
    assert (panel.layer, slider.value) == (2, 2)
    panel.close()


@pytest.mark.slow
def test_options_of_their_own_kinds(wire: Any) -> None:
    bias = BiasWorkbench(demo_pair().base)
    for value in ([[9, 3]], ["no method"], [Odd()], [None], 5):
        with pytest.raises(T.TraitError, match="methods"):
            bias.methods = value
    bias.close()
    bench = Workbench(tiny_model("gpt2"), prompt="a b", response=" c")
    for value in ([[9, 3]], [{"a": 1}], ["none"], [], ["saliency"] * 3 + ["none"]):
        with pytest.raises(T.TraitError, match="shown must be one or two of"):
            bench.screen.shown = value
    for name in ("prompt", "layer", "prompt_token", "live_seconds"):
        for value in (2**70, float("nan"), [{"role": "user", "content": 5}], Odd(), "\ud800"):
            with pytest.raises(T.TraitError):
                setattr(bench, name, value)
    bench.close()


@pytest.mark.slow
def test_an_option_that_changes_itself_ends_in_a_stack(wire: Any) -> None:
    """The instruction is marked and then None: a value that a tab has already replaced must not come back to it."""
    panel = SaliencyExplorer(demo_pair().base, prompt="Answer briefly. Where is Paris?", response=" France")
    panel.run()
    for value in ([9, 3], [0, 15], [0, 10**9], [-1, 5]):
        panel.instruction = value
        assert panel.wait(60)
        assert not RAW.search(panel.status.error), panel.status.trace
        assert panel.instruction is None
    panel.close()


def test_the_default_of_a_stack_is_that_of_its_tabs(wire: Any) -> None:
    panel = BiasWorkbench(demo_pair().base)
    panel.tab = "probes"
    assert panel.current_panel.pool == panel.current_panel.default_of("pool") == "last"
    panel.pool = "mean"
    assert panel.current_panel.default_of("pool") == "last"
    panel.close()


def test_a_number_that_is_none_goes_back(toy: Any, wire: Any, classes: Any, make: Any, model: Any) -> None:
    """A control may hold a NaN, which is not equal to itself: that must not look like a change for ever."""
    import ipywidgets as W

    class Free(classes.Toy):
        loose = T.Float(0.5)

        def build(self) -> None:
            super().build()
            self.boxes = [self.bind(W.FloatText(description=name), name) for name in ("scale", "loose")]

    panel = make(model, kind=Free)
    scale, loose = panel.boxes
    wire.type(scale, value=float("nan"))
    assert (panel.scale, scale.value) == (1.0, 1.0)
    assert "it stays 1.0" in panel.status.error
    wire.type(loose, value=float("nan"))
    assert panel.loose != panel.loose
    wire.type(loose, value=2.0)
    assert panel.loose == 2.0
    for box in panel.boxes:
        box.close()
        box.layout.close()
        box.style.close()


def test_a_closed_panel_takes_no_orders(wire: Any) -> None:
    panel = LogitLensExplorer(tiny_model("gpt2"), prompt="a b")
    assert panel.wait(60)
    panel.close()
    for name in panel.options():
        for value in (1, "x", [0, 1], None, [{"role": "user", "content": "hi"}]):
            assert not RAW.search(refusal(panel, name, value)), name
    with pytest.raises(RuntimeError, match="is closed: open a new one"):
        panel.run()


@pytest.mark.parametrize(
    ("kind", "old", "new", "value"),
    [
        (SaliencyExplorer, "writer", "generated_by", "A"),
        (SaliencyExplorer, "write_anew", "regenerate", False),
        (LogitLensExplorer, "reading", "lens_layer", 3),
    ],
)
def test_options_have_their_old_names_for_one_release(kind: Any, old: str, new: str, value: Any, wire: Any) -> None:
    model = demo_pair().base
    with pytest.warns(DeprecationWarning, match=rf"{kind.__name__}\({old}=\) is called {kind.__name__}\({new}=\)"):
        panel = kind(model, **{old: value})
    assert getattr(panel, new) == value
    assert old not in panel.options()
    usual = kind.class_traits()[new].default_value
    with pytest.warns(DeprecationWarning, match=rf"\.{old} is called \w+\.{new} now") as caught:
        setattr(panel, old, usual)
    with pytest.warns(DeprecationWarning, match=old):
        assert getattr(panel, old) == getattr(panel, new) == usual
    assert {warning.filename for warning in caught} == {__file__}
    panel.close()
    with pytest.raises(TypeError, match=f"got both {old}= and {new}="):
        kind(model, **{old: value, new: value})


def test_hooks_have_their_old_names_for_one_release() -> None:
    with pytest.warns(DeprecationWarning, match="Slow.waits is called manual_run now"):

        class Slow(Neurons):
            waits = True

    with pytest.warns(DeprecationWarning, match="Picky.lacks is called missing_requirement now"):

        class Picky(Neurons):
            @classmethod
            def lacks(cls, models: tuple[Any, ...]) -> str:
                return "a third model"

    assert Slow.manual_run
    assert Picky.missing_requirement(()) == "a third model"
    assert not Neurons.manual_run


CELL = '''
from interp_widgets.widgets.base.fields import Bounds, field, variant
from interp_widgets.widgets.base.panel import Panel

OFFSET = 5

def shifted(x):
    return x + OFFSET

def length(model, *, prompt, progress, times=1):
    """Tokens of a prompt, shifted."""
    progress(1, 1)
    return times * shifted(len(model.tokens(prompt)))

class Lengths(Panel):
    title, analysis = "Lengths", staticmethod(length)
    prompt = field(str, "Snow fell on the", label="Prompt")
    times = field(int, 2, label="Times")
'''


def in_a_notebook(source: str, name: str) -> dict[str, Any]:
    """What a cell defines."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), names)
    return names


@pytest.mark.seconds
def test_copied_code_of_a_panel_written_outside_the_package_runs(wire: Any) -> None:
    for kind in (in_a_notebook(CELL, "<ipython-input-7>")["Lengths"], Neurons):
        panel = kind(demo_pair().base)
        assert panel.wait(60)
        code, shown = panel.code(panel.request()), panel.result
        assert f"from interp_widgets import {panel.analysis.__name__}" not in code
        panel.close()
        names: dict[str, Any] = {}
        *lines, last = code.splitlines()
        exec("\n".join(lines), names)
        assert eval(last, names) == shown


def test_a_lambda_has_no_code_to_copy(wire: Any) -> None:
    class Nameless(Panel):
        title, analysis = "Nameless", staticmethod(lambda model, *, n: n)
        n = field(int, 3, label="n")

    panel = Nameless(demo_pair().base)
    with pytest.raises(ValueError, match="write the analysis as a function with def"):
        panel.code(panel.request())
    panel.close()


class Options(Worded):
    models = ()
    count = Whole(1, min=1, max=5_000)
    least = Number(1.0, min=0.0)
    most = Whole(0, max=3)
    share = Number(0.5, min=0.0, max=1.0)
    metric = T.Enum(("logit", "probability"), "logit")
    drawn = T.Bool()
    prompt = Typed("")
    words = TypedList()
    span = Span()


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("count", 0, "an int in 1..5,000, got 0"),
        ("count", None, "an int in 1..5,000, got None"),
        ("least", -1.0, "a float of 0 or more, got -1.0"),
        ("most", 4, "an int of 3 or less, got 4"),
        ("share", 2.0, "a float in 0..1, got 2.0"),
        ("metric", "loss", "any of ['logit', 'probability'], got 'loss'"),
        ("drawn", "yes", "a boolean, got 'yes'"),
        ("prompt", 3, "a unicode string, got 3"),
        ("words", ["a", 1], "a list in which each is a unicode string, got ['a', 1]"),
        ("span", [1.5, 2], "a list in which each is an int, got [1.5, 2]"),
    ],
)
def test_a_refusal_is_in_our_own_words(name: str, value: Any, allowed: str) -> None:
    assert refusal(Options(), name, value) == f"{name} of Options must be {allowed}"


STACKS = [name for name in iw.__all__ if isinstance(kind := getattr(iw, name), type) and issubclass(kind, Stack)]
TEXTS = {"prompt"}
"""What a workbench holds for all panels, whatever each of them opens on."""


@pytest.mark.parametrize("name", STACKS)
def test_tabs_that_share_an_option_mean_the_same_by_it(name: str) -> None:
    """A stack has its tabs' options by name: with two defaults the tab that comes first would decide for the other."""
    defaults: dict[str, set[str]] = {}
    for kind in getattr(iw, name).panels.values():
        for option in kind.options():
            if option not in TEXTS:
                defaults.setdefault(option, set()).add(repr(kind.class_traits()[option].default_value))
    assert not {option: found for option, found in defaults.items() if len(found) > 1}
