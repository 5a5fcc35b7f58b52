"""A function as a panel: its controls, its view, what it links, saves and copies, and how it takes bad functions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
import pytest
import torch
from bokeh.plotting import figure
from ipywidgets import HTML

from interp_widgets import (
    Bounds,
    Curves,
    Head,
    HeadMap,
    Layer,
    LayerByPosition,
    LogitLensExplorer,
    LogitLensResult,
    Matrix,
    Model,
    Neuron,
    Panel,
    Position,
    Prompt,
    Response,
    Result,
    Table,
    Token,
    TokenValues,
    Workbench,
    decompose_logit,
    field,
    logit_lens,
    probe,
)
from interp_widgets.analysis._core.result import record
from interp_widgets.widgets.base.saving import formats
from interp_widgets.widgets.base.stack import Stack
from interp_widgets.widgets.probe import TableView, ValueView
from interp_widgets.widgets.probe.panel import TAKEN
from tests.models.tiny import HALF_SEED, tiny_model
from tests.shipped import demo_pair
from tests.waiting import LIMIT
from tests.widgets import probes
from tests.widgets.opening import hooks_on, opening, settle
from tests.widgets.trouble import (
    cancelled_and_closed,
    complaint,
    told_of_a_failing_hook,
    told_of_broken_weights,
    told_of_full_memory,
)

pytestmark = pytest.mark.slow

PROMPT = "The Eiffel Tower is located in the city of"
LISTS: dict[str, Any] = {
    "refused": ["A small dog.", "The dog was happy."],
    "answered": ["Paris is a city.", "In Rome."],
}
SIX = {
    probes.attention_entropy: {},
    probes.attention_pattern: {},
    probes.direct_logit_attribution: {},
    probes.refusal_direction: LISTS,
    probes.patchscope: {},
    probes.lens: {},
}
"""The probes, and what has to be filled in before they run."""
NAMES = [one.__name__ for one in SIX]


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture
def show(wire: Any) -> Iterator[Callable[..., Any]]:
    """Opens probes and waits for them; afterwards every worker they started must be gone."""
    with opening(lambda kind, *args, **options: kind(*args, **options)) as build:
        yield build


def source_of(kind: Any) -> str:
    return inspect.getsource(inspect.unwrap(kind.analysis))


# ---- the six, against loops in float64 and against the analyses that exist


def wide(model: Model, *names: str) -> dict[str, Any]:
    found = model.run(model.tokens(PROMPT), capture=names).activations
    return {name: found[name][0].double().cpu().numpy() for name in names}


def test_attention_entropy_is_that_of_a_plain_loop(pair: Any, show: Any) -> None:
    panel = show(probes.attention_entropy, pair.base, prompt=PROMPT)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(6)]
    patterns = wide(pair.base, *names)
    wanted = np.zeros((6, pair.base.n_heads))
    for layer, name in enumerate(names):
        for head, pattern in enumerate(patterns[name]):
            wanted[layer, head] = np.mean([-sum(p * np.log(p) for p in row if p > 0) for row in pattern])
    np.testing.assert_allclose(panel.result.values, wanted, atol=1e-5)
    np.testing.assert_allclose(panel.picture.heat.matrix, wanted, atol=1e-5)
    assert panel.picture.heat.row_labels == list("012345")
    assert wanted.std() > 0.1, "else any numbers would do"


def test_an_attention_pattern_is_a_map_of_queries_and_keys(pair: Any, show: Any, wire: Any) -> None:
    bench = Workbench(pair, prompt=PROMPT, layer=2, head=3)
    panel = show(probes.attention_pattern, bench, view="A")
    wanted = wide(pair.base, "blocks.2.attn.hook_pattern")["blocks.2.attn.hook_pattern"][3]
    heat, count = panel.picture.heat, len(wanted)
    empty = np.triu_indices(count, 1)
    assert np.isnan(heat.matrix[empty]).all()
    np.testing.assert_allclose(np.nansum(heat.matrix, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(np.nan_to_num(heat.matrix), wanted, atol=1e-6)
    assert (heat.row_name, heat.column_name, heat.y_label, heat.x_label) == ("query", "key", "query", "key")
    assert heat.row_labels == heat.column_labels == ["<|bos|>", *panel.prompt_tokens()]
    wire.type(heat, pinned=[5, 2], cross=[5, 2])
    assert bench.prompt_token == 1
    bench.select(prompt_token=4)
    assert heat.cross == [5, 5], "the key follows the workbench, the query stays"
    wire.type(heat, pinned=[5, 0], cross=[5, 0])
    assert bench.prompt_token == 4, "a BOS is no token of the prompt"
    panel.view = "difference"
    settle(panel)
    first, second = panel.result
    np.testing.assert_allclose(heat.matrix, second.values - first.values)
    assert list(panel.frame().columns) == ["model", "row", "column", "row_label", "column_label", "value"]


def test_direct_logit_attribution_adds_up_to_the_logit(pair: Any, show: Any) -> None:
    panel = show(probes.direct_logit_attribution, pair.base, prompt=PROMPT, target=" Paris")
    model, token = pair.base, pair.base.tokens(" Paris", prepend_bos=False)[0]
    parts = wide(model, "blocks.0.hook_resid_pre", "ln_final.hook_scale")
    start = parts["blocks.0.hook_resid_pre"][-1]
    if model.normalization == "LayerNorm":
        start = start - start.mean()
    column = (model.weight("ln_final_w") * model.weight("W_U")[:, token]).double().numpy()
    embedding = start @ column / parts["ln_final.hook_scale"][-1]
    bias = float(model.weight("ln_final_b") @ model.weight("W_U")[:, token] + model.weight("b_U")[token])
    logit = float(model.run(model.tokens(PROMPT)).logits[0, -1, token])
    assert panel.result.values.sum() + embedding.item() + bias == pytest.approx(logit, abs=1e-3)
    assert logit == pytest.approx(decompose_logit(model, PROMPT, " Paris").logit, abs=1e-3)
    assert panel.picture.chart.lines.data["name"] == ["attention", "MLP"]


def test_the_refusal_direction_is_that_of_a_plain_loop(pair: Any, show: Any) -> None:
    panel = show(probes.refusal_direction, pair.base, prompt=PROMPT, layer=4, **LISTS)
    name = "blocks.4.hook_resid_pre"

    def state(text: str) -> Any:
        return pair.base.run(pair.base.tokens(text), capture=name).activations[name][0].double().numpy()

    means = [sum(state(text)[-1] for text in LISTS[side]) / 2 for side in ("refused", "answered")]
    direction = (means[0] - means[1]) / np.sqrt(((means[0] - means[1]) ** 2).sum())
    wanted = [sum(a * b for a, b in zip(row, direction, strict=True)) for row in state(PROMPT)[1:]]
    np.testing.assert_allclose(panel.result.values, wanted, atol=1e-4)
    assert list(panel.picture.strip.tokens) == list(panel.prompt_tokens())


def test_a_patchscope_into_the_same_text_changes_nothing(pair: Any, show: Any) -> None:
    """The last state of a text, put back where it was, gives the model's own next token."""
    panel = show(probes.patchscope, pair.base, prompt=PROMPT, layer=2, into=2, reader=PROMPT)
    own = pair.base.run(pair.base.tokens(PROMPT)).logits[0, -1].softmax(-1).topk(10)
    assert [row[0] for row in panel.result.rows] == list(pair.base.token_strings(own.indices))
    np.testing.assert_allclose([row[1] for row in panel.result.rows], own.values, atol=1e-6)
    panel.position = 2
    settle(panel)
    assert panel.result.rows[0] != (" Paris", pytest.approx(float(own.values[0])))


def test_the_lens_is_the_logit_lens(pair: Any, show: Any) -> None:
    panel = show(probes.lens, pair.base, prompt=PROMPT)
    wanted = logit_lens(pair.base, PROMPT)
    np.testing.assert_allclose(panel.result.values, wanted.probability, atol=1e-5)
    assert panel.result.texts[6] == tuple(map(wanted.token_text, wanted.top_token[6].tolist()))
    assert panel.picture.heat.row_labels[-1] == "output"
    assert panel.picture.heat.column_labels == list(wanted.tokens)


@pytest.mark.parametrize("kind", SIX, ids=NAMES)
def test_in_at_most_15_lines(kind: Any) -> None:
    lines = [line for line in source_of(kind).splitlines() if line.strip() and line.strip() != "@probe"]
    assert len(lines) <= 15
    assert issubclass(kind, Panel)
    assert kind.__doc__ in source_of(kind)


@pytest.mark.parametrize(("kind", "needed"), SIX.items(), ids=NAMES)
def test_live_saved_copied_and_of_two_models(pair: Any, show: Any, tmp_path: Path, kind: Any, needed: Any) -> None:
    panel = show(kind, pair, **needed)
    assert panel.status.state == "done", panel.status.error
    first, second = panel.result
    for view in ("A", "B", "difference"):
        panel.view = view
        assert panel.save(tmp_path / f"{view}.svg").read_text().startswith("<svg")
        assert panel.save(tmp_path / f"{view}.html").stat().st_size > 1000
    frame = pd.read_csv(panel.save(tmp_path / "numbers.csv"))
    assert set(frame["model"]) == {"A", "B"}
    assert len(frame) == len(first.to_frame()) + len(second.to_frame())
    panel.view = "B"
    assert Result.load(panel.save(tmp_path / "result.npz")).equals(second)
    panel.view = "difference"
    if isinstance(first, Table):
        assert [table.layout.display for table in panel.picture.tables] == [None, None], "A beside B"
        saved = Result.load(panel.save(tmp_path / "both.npz"))
        assert saved["A"].equals(first)
        assert saved["B"].equals(second)
    else:
        saved = Result.load(panel.save(tmp_path / "both.npz"))
        np.testing.assert_allclose(saved.values, second.values - first.values)
        assert saved.provenance["tuned"] == "demo-tuned"
    if "beside" in kind.pair_views:
        panel.view = "beside"
        both = Result.load(panel.save(tmp_path / "beside.npz"))
        assert both["A"].equals(first)
        assert both["B"].equals(second)
    names: dict[str, Any] = {}
    exec(panel.code(panel.request()), names)
    assert names["result_a"].equals(first)
    assert names["result_b"].equals(second)
    assert first.provenance["probe"] == kind.__name__
    assert first.provenance["prompt"] == panel.prompt


@pytest.mark.parametrize(("kind", "needed"), SIX.items(), ids=NAMES)
@pytest.mark.parametrize(("family", "backend", "dtype"), [
    ("gpt2", "hooked", torch.float32), ("llama", "bridge", torch.float32), ("llama", "bridge", torch.bfloat16),
    ("gpt2", "bridge", torch.float32), ("llama", "hooked", torch.bfloat16),
])  # fmt: skip
def test_on_both_backends_and_in_half_precision(
    show: Any, kind: Any, needed: Any, family: str, backend: Any, dtype: Any
) -> None:
    model = tiny_model(family, backend, dtype=dtype, seed=HALF_SEED)
    given = dict(needed)
    if "target" in kind.options():
        given["target"] = next(
            text for text in (model.token_strings([i])[0] for i in range(300, model.d_vocab))
            if text.strip() and len(model.tokens(text, prepend_bos=False)) == 1
        )  # fmt: skip
    panel = show(kind, model, prompt="one two three", **given)
    assert panel.status.state == "done", panel.status.error
    assert hooks_on(model) == 0


# ---- controls and links


@probe(title="Everything")
def everything(
    model: Model,
    prompt: Prompt,
    response: Response,
    token: Token,
    position: Position,
    layer: Layer = -1,
    head: Head = 1,
    neuron: Neuron = 3,
    from_layer: Layer = 2,
    kind: Literal["plain", "much more"] = "plain",
    how_many: Annotated[int, Bounds(1, 50)] = 10,
    share: Annotated[float, Bounds(0.0, 1.0)] = 0.5,
    deep: bool = False,
    note: str = "",
    words: tuple[str, ...] = ("a", "b"),
    file: Path = Path(__file__),
) -> Table:
    """Shows what it was given.

    Args:
        how_many: how many there are
    """
    given = dict(locals())
    return Table(["name", "value"], [[name, repr(value)] for name, value in given.items() if name != "model"])


def rows_of(panel: Any) -> dict[str, str]:
    return dict(panel.result.rows)


def control_of(panel: Any, label: str) -> Any:
    rows = panel.inputs.children
    (found,) = [one for row in rows for one in getattr(row, "children", ()) if getattr(one, "description", "") == label]
    return found


def test_every_kind_of_parameter_has_its_control(pair: Any, show: Any, wire: Any, tmp_path: Path) -> None:
    file = tmp_path / "words.txt"
    file.write_text("one")
    panel = show(everything, pair.base, prompt=PROMPT, response=" Paris", token=" Paris", file=str(file))
    assert panel.heading.value.count("Everything") == 1
    assert "Shows what it was given." in panel.inputs.children[0].value
    given = rows_of(panel)
    assert given == {
        "prompt": repr(PROMPT), "response": "' Paris'", "token": "' Paris'", "layer": "5", "head": "1", "neuron": "3",
        "position": str(len(panel.prompt_tokens()) - 1), "from_layer": "2", "kind": "'plain'", "how_many": "10",
        "share": "0.5", "deep": "False", "note": "''", "words": "('a', 'b')", "file": repr(file),
    }  # fmt: skip
    kinds = {
        "Prompt": "TextBox", "Response": "TextBox", "Token": "TextLine", "Layer": "WholeSlider",
        "From layer": "WholeSlider",
        "Neuron": "WholeBox", "Kind": "Dropdown", "How many": "WholeBox", "Deep": "Checkbox",
        "Words": "TextBox",
    }  # fmt: skip
    assert {label: type(control_of(panel, label)).__name__ for label in kinds} == kinds
    assert control_of(panel, "How many").tooltip == "how many there are"
    assert (control_of(panel, "From layer").max, control_of(panel, "Neuron").max) == (5, pair.base.d_mlp - 1)
    wire.type(control_of(panel, "From layer"), value=4)
    wire.type(control_of(panel, "Kind"), index=1)
    wire.type(control_of(panel, "Words"), value="x\ny z")
    settle(panel)
    given = rows_of(panel)
    assert (given["from_layer"], given["kind"], given["words"]) == ("4", "'much more'", "('x', 'y z')")
    before = panel.result
    file.write_text("another")
    panel.go()
    settle(panel)
    assert panel.result is not before, "another file under the same name is another question"
    names: dict[str, Any] = {}
    exec(panel.code(panel.request()), names)
    assert names["result"].equals(panel.result)


def test_a_position_is_clicked_at_and_forgotten_with_its_text(pair: Any, show: Any, wire: Any) -> None:
    panel = show(probes.patchscope, pair.base, prompt=PROMPT)
    strip = panel.controls["prompt_token"]
    assert strip.tokens == list(panel.prompt_tokens())
    wire.type(strip, selected=3)
    settle(panel)
    assert (panel.position, panel.prompt_token) == (3, 3)
    assert "position=3" in panel.code(panel.request())
    panel.prompt = "Paris is in"
    settle(panel)
    assert (panel.position, strip.selected) == (-1, -1)
    assert f"position={len(panel.prompt_tokens()) - 1}" in panel.code(panel.request())
    opened = show(probes.patchscope, pair.base, prompt=PROMPT, position=2)
    assert opened.controls["prompt_token"].selected == 2


@probe
def at_a_place(model: Model, prompt: Prompt, position: Position = 1) -> Table:
    return Table(["position"], [[position]])


def test_a_position_starts_at_the_functions_default(pair: Any, show: Any, wire: Any) -> None:
    panel = show(at_a_place, pair.base, prompt=PROMPT)
    assert (panel.position, panel.result.rows[0][0]) == (1, 1)
    wire.type(panel.controls["prompt_token"], selected=3)
    settle(panel)
    assert panel.result.rows[0][0] == 3
    panel.prompt = "Paris is in"
    settle(panel)
    assert (panel.position, panel.result.rows[0][0]) == (1, 1)
    assert show(at_a_place, Workbench(pair.base, prompt=PROMPT, prompt_token=2)).position == 2


def test_linked_with_other_panels(pair: Any, show: Any, wire: Any) -> None:
    bench = Workbench(pair.base, prompt=PROMPT)
    lens = show(LogitLensExplorer, bench)
    scope, entropy, heads = (
        show(probes.patchscope, bench),
        show(probes.attention_entropy, bench),
        show(probes.lens, bench),
    )
    assert {one.prompt for one in (lens, scope, entropy, heads)} == {PROMPT}
    bench.select(prompt="Paris is the capital of", layer=4, prompt_token=1)
    for one in bench.panels:
        settle(one)
    assert (scope.layer, scope.position, lens.cell[0]) == (4, 1, 4)
    assert heads.picture.heat.cross == [4, 1]
    wire.type(entropy.picture.heat, pinned=[2, 5], cross=[2, 5])
    assert (bench.layer, bench.head, scope.layer) == (2, 5, 2)
    wire.type(heads.picture.heat, pinned=[6, 0], cross=[6, 0])
    assert (bench.layer, bench.prompt_token) == (2, 0), "the output is no layer of the workbench"


def test_the_linked_one_of_two_layers_is_the_one_of_that_name(pair: Any, show: Any) -> None:
    @probe
    def two(model: Model, text: Prompt, first: Layer, layer: Layer) -> Table:
        return Table(["first", "layer", "text"], [[first, layer, text]])

    panel = show(two, pair.base, text="Paris is in", first=1, layer=3)
    assert panel.result.rows == ((1, 3, "Paris is in"),)
    assert (panel.workbench.layer, panel.workbench.prompt) == (3, "Paris is in")


def test_a_default_layer_that_a_small_model_lacks_is_its_last(show: Any) -> None:
    @probe
    def deep(model: Model, layer: Layer = 20) -> Table:
        return Table(["layer"], [[layer]])

    panel = show(deep, tiny_model("gpt2"))
    assert panel.result.rows == ((2,),)
    with pytest.raises(ValueError, match=r"layer must be in -3..2 for this model \(.*\), got 20"):
        deep.analysis(panel.models[0])


# ---- running


def test_the_first_run_is_in_the_background_and_the_next_are_forecast(show: Any) -> None:
    @probe
    def quick(model: Model, layer: Layer = 0) -> Table:
        return Table(["layer"], [[layer]])

    model = tiny_model("gpt2")
    panel = show(quick, model)
    assert panel.status.text.startswith("Done in ")
    assert panel.forecast(panel.request()).describe() != "time unknown until the first run"
    panel.layer = 2
    assert panel.wait(60)
    assert (panel.status.state, panel.result.rows) == ("done", ((2,),)), (
        "a run that is known to be quick starts by itself"
    )


def test_a_longer_text_is_forecast_to_take_longer(show: Any) -> None:
    model = tiny_model("gpt2", seed=5)
    panel = show(probes.lens, model, prompt="one two three")
    short = panel.request()
    panel.prompt = "one two three four five six seven eight nine ten"
    settle(panel)
    assert panel.cost(panel.request(), model).flops > 2 * panel.cost(short, model).flops


def test_a_cost_is_the_forecast(show: Any) -> None:
    @probe(cost=lambda model, layer: 1e15 * (layer + 1))
    def slow(model: Model, layer: Layer = 0) -> Table:
        return Table(["layer"], [[layer]])

    panel = slow(tiny_model("gpt2"))
    assert panel.status.state == "waiting"
    before = panel.forecast(panel.request()).seconds
    panel.layer = 1
    assert panel.forecast(panel.request()).seconds == pytest.approx(2 * before)
    panel.close()


@pytest.mark.parametrize("kind", [probes.attention_entropy, probes.lens], ids=lambda kind: kind.__name__)
def test_cancel_and_close_stop_the_function_itself(show: Any, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    import threading

    model = tiny_model("gpt2", seed=3)
    panel = show(kind, model, prompt="one two")
    good = panel.result
    entered, cancelled, run = threading.Event(), threading.Event(), model.run

    def slow(*args: Any, **options: Any) -> Any:
        entered.set()
        assert cancelled.wait(LIMIT)
        return run(*args, **options)

    monkeypatch.setattr(model, "run", slow)
    panel.prompt = "one two three four"
    panel.go()
    assert entered.wait(60)
    panel.cancel()
    cancelled.set()
    assert panel.wait(60)
    assert panel.status.state == "cancelled"
    assert panel.result is good
    cancelled_and_closed(panel, monkeypatch, lambda: setattr(panel, "prompt", "five six"))


@pytest.mark.hooked
def test_troubles_of_the_model_are_told(show: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2", seed=4)
    panel = show(probes.lens, model, prompt="one two three")
    told_of_broken_weights(panel, model, "LayerByPosition.values must be finite")
    told_of_a_failing_hook(panel, model)
    told_of_full_memory(panel, monkeypatch, "interp_widgets.models.network.run_hooked")


# ---- hints, and sentences for what is wrong


def test_what_is_missing_is_a_hint_at_its_control(pair: Any, show: Any) -> None:
    panel = show(probes.refusal_direction, pair.base)
    assert complaint(panel) == "Refused is empty: fill it in"
    panel.refused, panel.answered = LISTS["refused"], LISTS["answered"]
    settle(panel)
    assert panel.status.state == "done", panel.status.error
    panel.prompt = ""
    assert panel.wait(60)
    assert complaint(panel) == "the prompt is empty: type a text for the model to read"
    logits = show(probes.direct_logit_attribution, pair.base)
    assert logits.target == " Paris", "that of the example prompt"
    logits.target = "no single token"
    assert logits.wait(60)
    assert "the target must be one token" in complaint(logits) or "target must be one token" in complaint(logits)
    logits.target = " Rome"
    settle(logits)
    assert logits.controls.hints == {}
    logits.prompt = "word " * 600
    assert logits.wait(60)
    assert "the model reads" in complaint(logits)


RETURNS: list[tuple[Any, Any, str]] = [
    (
        HeadMap,
        lambda model: np.zeros((6, 8)),
        "wrong is annotated to return HeadMap but returned an object of type ndarray",
    ),
    (HeadMap, lambda model: None, "wrong is annotated to return HeadMap but returned None"),
    (HeadMap, lambda model: HeadMap(np.full((6, 6), np.nan)), "HeadMap.values must be finite"),
    (HeadMap, lambda model: HeadMap(np.zeros((5, 6))), "a HeadMap of this model must have 6 layers, got 5"),
    (HeadMap, lambda model: HeadMap(np.zeros((6, 7))), "a column for each of the model's 6 heads, got 7"),
    (Matrix, lambda model: Matrix([[np.nan]], ["a"], ["b"]), "Matrix.values must hold at least one number that is"),
    (Matrix, lambda model: Matrix([[1.0]], ["a"], ["b", "c"]), r"Matrix.values must have shape \(1, 2\), got \(1, 1\)"),
    (HeadMap, lambda model: HeadMap(np.zeros((1, 6)), layers=[9]), "HeadMap.layers must be different and in 0..6"),
    (HeadMap, lambda model: HeadMap(np.zeros(6)), r"HeadMap.values must have shape \(any, any\), got \(6,\)"),
    (LayerByPosition, lambda model: LayerByPosition(np.zeros((9, 1)), ["a"]), "must have 6 or 7 layers, got 9"),
    (LayerByPosition, lambda model: LayerByPosition(np.zeros((6, 2)), ["a"]), r"must have shape \(any, 1\)"),
    (TokenValues, lambda model: TokenValues([1.0], ["a", "b"]), r"must have shape \(2,\), got \(1,\)"),
    (Curves, lambda model: Curves([[1.0, np.inf]], ["a"]), "Curves.values must be finite"),
    (Curves, lambda model: Curves([[]], ["a"]), "must hold at least one number"),
    (Table, lambda model: Table(["a"], [["b", 1]]), "row 0 of Table.rows has 2 cells for 1 columns"),
    (Table, lambda model: Table(["a"], [[float("nan")]]), "row 0 of Table.rows has nan as its a"),
    (
        LogitLensResult,
        lambda model: Table(["a"], []),
        "is annotated to return LogitLensResult but returned an object of type Table",
    ),
    (figure, lambda model: 3, "wrong is annotated to return figure but returned 3"),
]


@pytest.mark.parametrize(("announced", "returned", "sentence"), RETURNS)
def test_another_result_than_announced_is_a_sentence(
    pair: Any, show: Any, announced: Any, returned: Any, sentence: str
) -> None:
    def wrong(model: Model):  # type: ignore[no-untyped-def]
        return returned(model)

    wrong.__annotations__["return"] = announced
    panel = show(probe(wrong), pair.base)
    assert panel.status.state == "failed"
    with pytest.raises((TypeError, ValueError), match=sentence):
        panel.run()
    assert panel.result is None


def _functions() -> Iterator[tuple[Callable[..., Any], str]]:
    def no_model(prompt: Prompt) -> Table: ...

    yield no_model, r"the first parameter of no_model must be model: def no_model\(model: Model, prompt: Prompt, ...\)"

    def nothing() -> Table: ...

    yield nothing, "the first parameter of nothing must be model"

    def stars(model: Model, *prompts: str) -> Table: ...

    yield stars, r"stars has the parameter \*prompts, for which there is no control"

    def options(model: Model, **given: Any) -> Table: ...

    yield options, r"options has the parameter \*\*given, for which there is no control"

    def untyped(model: Model, prompt) -> Table: ...  # type: ignore[no-untyped-def]

    yield untyped, "the parameter prompt of untyped must have an annotation: Prompt, Response, Layer"

    def strange(model: Model, size: complex) -> Table: ...

    yield strange, "the parameter size of strange is annotated as complex, which has no control: use Prompt"

    def numbers(model: Model, sizes: list[int]) -> Table: ...

    yield numbers, r"annotated as list\[int\], which has no control"

    def optional(model: Model, size: int | None = None) -> Table: ...

    yield optional, r"annotated as int \| None, which has no control"

    def unbounded(model: Model, k: int = 3) -> Table: ...

    yield unbounded, r"the parameter k of unbounded needs bounds: Annotated\[int, Bounds\(low, high\)\]"

    def half_bounded(model: Model, k: Annotated[float, Bounds(0.0)] = 3.0) -> Table: ...

    yield half_bounded, r"needs bounds: Annotated\[float, Bounds\(low, high\)\]"

    def outside(model: Model, k: Annotated[int, Bounds(1, 5)] = 9) -> Table: ...

    yield outside, "the default of k of outside must fit its annotation, got 9"

    def other_kind(model: Model, kind: Literal["a", "b"] = "c") -> Table: ...  # type: ignore[assignment]

    yield other_kind, "the default of kind of other_kind must fit its annotation, got 'c'"

    def silent(model: Model, prompt: Prompt): ...  # type: ignore[no-untyped-def]

    yield silent, r"silent needs a return annotation, such as def silent\(...\) -> HeadMap"

    def an_array(model: Model, prompt: Prompt) -> np.ndarray[Any, Any]: ...

    yield an_array, "an_array must return one of LayerByPosition, HeadMap, Matrix, TokenValues, Curves, Table, Result"

    def layer_as_number(model: Model, layer: Annotated[int, Bounds(0, 5)] = 0) -> Table: ...

    yield (
        layer_as_number,
        "has a name that panels on a workbench share: annotate it as Layer, or rename it",
    )

    def response_token(model: Model, response_token: Annotated[int, Bounds(0, 5)] = 0) -> Table: ...

    yield response_token, "share: rename it"

    def no_text(model: Model, position: Position) -> Table: ...

    yield no_text, "no_text has a Position, which is a position in a Prompt: add a parameter prompt: Prompt"

    def far(model: Model, prompt: Prompt, position: Position = -2) -> Table: ...

    yield far, "the default of position of far must fit its annotation, got -2"

    def taken(model: Model, prompt: Prompt, view: str = "") -> Table: ...

    yield taken, "the parameter view of taken has a name that is reserved for panels: rename it"

    def unknown(model: Model, prompt: Nothing) -> Table: ...  # type: ignore[name-defined]  # noqa: F821

    yield unknown, "the annotations of unknown cannot be read: name 'Nothing' is not defined"


@pytest.mark.parametrize(("function", "sentence"), _functions(), ids=lambda one: getattr(one, "__name__", ""))
def test_a_function_that_no_panel_can_ask_is_refused_in_a_sentence(function: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence) as refused:
        probe(function)
    assert "\n" not in str(refused.value)


def test_a_class_is_no_function() -> None:
    with pytest.raises(TypeError, match="@probe turns a function into a panel"):
        probe(Table)
    with pytest.raises(TypeError, match="model must be a loaded model, got 'demo-base'"):
        probes.attention_entropy.analysis("demo-base", PROMPT)


def test_every_name_that_a_panel_uses_is_refused(pair: Any, show: Any) -> None:
    panel = show(probes.patchscope, pair)
    used = {name for name in vars(panel) if not name.startswith("_")}
    assert used <= TAKEN


# ---- other results


def test_any_result_is_a_table(pair: Any, show: Any, tmp_path: Path) -> None:
    @probe
    def own_lens(model: Model, prompt: Prompt) -> LogitLensResult:
        return logit_lens(model, prompt)

    panel = show(own_lens, pair, prompt=PROMPT)
    wanted = logit_lens(pair.base, PROMPT).to_frame()
    first, second = panel.picture.tables
    assert len(first.rows) == len(wanted)
    assert [column["label"] for column in first.columns] == list(wanted.columns)
    assert (first.layout.display, second.layout.display) == (None, "none")
    panel.view = "difference"
    assert (first.layout.display, second.layout.display) == (None, None)
    assert "demo-tuned" in second.caption
    panel.view = "A"
    assert isinstance(Result.load(panel.save(tmp_path / "lens.npz")), LogitLensResult)
    assert panel.save(tmp_path / "lens.png").read_bytes().startswith(b"\x89PNG")


@record
class TwoThings(Result):
    first: Any
    second: str


def test_a_result_without_a_table_shows_its_fields(pair: Any, show: Any) -> None:
    @probe
    def two(model: Model, layer: Layer = 0) -> TwoThings:
        return TwoThings(np.zeros((2, 3)), "a, b = c")

    panel = show(two, pair.base)
    assert panel.picture.tables[0].rows[:2] == [["first", "float64 of shape (2, 3)"], ["second", "a, b = c"]]
    with pytest.raises(TypeError, match="TwoThings has no table form"):
        panel.save("pair.csv")


def test_a_bokeh_figure_is_shown_in_every_panel_that_asks(pair: Any, show: Any, tmp_path: Path) -> None:
    @probe
    def norms(model: Model, prompt: Prompt) -> figure:
        names = [f"blocks.{layer}.hook_resid_pre" for layer in range(model.n_layers)]
        found = model.run(model.tokens(prompt), capture=names).activations
        drawn = figure(title="Norms")
        drawn.line(list(range(len(names))), [float(found[name].float().norm()) for name in names])
        return drawn

    panels = [show(norms, pair, prompt=PROMPT) for _ in range(2)]
    for panel in panels:
        (host,) = panel.picture.box.children
        assert host.figure.title.text == "Norms"
        panel.view = "difference"
        assert len(panel.picture.box.children) == 2, "A beside B"
        assert formats(panel) == (".html",)
        panel.save(tmp_path / "norms.html")


def test_models_of_two_depths_have_no_difference(show: Any) -> None:
    shallow, deep = tiny_model("gpt2"), tiny_model("gpt2", seed=1)

    @probe
    def some(model: Model, prompt: Prompt) -> LayerByPosition:
        count = 2 if model is shallow else 3
        return LayerByPosition(np.ones((count, 1)), ["a"], layers=range(count))

    panel = show(some, shallow, deep, view="difference")
    assert panel.picture.heat.shape == [0, 0]
    assert panel.picture.heat.empty.startswith("a difference needs the same layers")
    panel.view = "B"
    assert panel.picture.heat.shape == [3, 1]


# ---- a view of one's own, and a class of one's own


class Words(ValueView):
    """The texts in a line, without a picture."""

    def __init__(self, panel: Any) -> None:
        super().__init__(panel)
        self.line = HTML()
        self.parts = [self.line]

    def paint(self, results: Any, shown: str) -> None:
        self.line.value = f"{shown}: " + " / ".join(" ".join(row[0] for row in one.rows) for one in results)


class Capitals(TableView):
    """A table with a column that the result does not have."""

    tips: ClassVar[Mapping[str, str]] = {"LOUD": "the same in capitals"}

    def frame_of(self, result: Table) -> Any:
        return result.to_frame().assign(LOUD=[row[0].upper() for row in result.rows])

    def caption(self, result: Table, letter: str) -> str:
        return f"{letter}: {len(result.rows)} tokens"


def tokens_of(model: Model, prompt: Prompt) -> Table:
    """The tokens of a text."""
    return Table(["token"], [[text] for text in model.token_strings(model.tokens(prompt, prepend_bos=False))])


def test_a_view_of_ones_own_draws_and_saves(pair: Any, show: Any, tmp_path: Path) -> None:
    panel = show(probe(tokens_of, view=Words), pair, prompt="The dog", view="beside")
    assert panel.picture.line.value == "beside: The  dog / The  dog"
    assert formats(panel) == (".csv", ".parquet", ".html", ".npz"), "no picture without a scene"
    loud = show(probe(tokens_of, view=Capitals), pair.base, prompt="The dog")
    (table,) = loud.picture.tables
    assert [row[1] for row in table.rows] == ["THE", "·DOG"]
    assert table.columns[1]["title"] == "the same in capitals"
    assert table.caption == "A: 2 tokens"
    assert list(pd.read_csv(loud.save(tmp_path / "tokens.csv")).columns) == ["token"], "the numbers as they are"
    assert "DOG" in loud.save(tmp_path / "tokens.svg").read_text()


def test_what_is_no_view_or_base_is_refused(pair: Any) -> None:
    with pytest.raises(TypeError, match="view must be a type or None, got 3"):
        probe(tokens_of, view=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="view must be a class derived from ValueView, got"):
        probe(tokens_of, view=dict)  # type: ignore[call-overload]
    for wrong in (Panel, dict):
        with pytest.raises(TypeError, match="base must be a class derived from Panel, with its own options, got"):
            probe(tokens_of, base=wrong)  # type: ignore[call-overload]


class Counted(probe(tokens_of, title="Tokens")):  # type: ignore[misc]
    """A panel that waits for Run, asks anew at every Run, and has an option that only redraws."""

    manual_run, reuses = True, False
    loud = field(bool, label="Loud", redraws=True)
    drawn: ClassVar[list[bool]] = []

    def draw(self, results: Any, request: Any) -> None:
        super().draw(results, request)
        self.drawn.append(self.loud)


def test_a_class_derived_from_a_probe(pair: Any, show: Any) -> None:
    panel = Counted(pair.base, prompt="The dog")
    assert (panel.result, panel.status.state) == (None, "waiting")
    first = panel.run()
    assert panel.run() is not first, "every Run asks anew"
    panel.loud = True
    assert panel.drawn[-2:] == [False, True]
    assert control_of(panel, "Loud").value is True
    assert Counted.title == "Tokens"
    panel.prompt = "The cat"
    assert "iw-stale" in panel.plot._dom_classes, "it waits"
    panel.prompt = "The dog"
    assert "iw-stale" not in panel.plot._dom_classes, "what was asked before is still there to look at"
    weights = next(pair.base.tl_model.parameters())
    with torch.no_grad():
        weights.mul_(2)
        try:
            panel.refresh()
            assert "iw-stale" in panel.plot._dom_classes, "an answer of other weights"
        finally:
            weights.div_(2)
    panel.close()


METRICS = {"mean": "mean over the tokens", "largest": "largest of the tokens"}


class NormOptions(Panel):
    """Options with labels and a rule for when they are asked."""

    prompt = field(str, label="Text", required="type a text")
    metric = field(METRICS, "mean", label="Measured as")
    scale = field(Annotated[float, Bounds(0.5, 4.0)], 2.0, label="Times", shown_if=lambda one: one.metric == "largest")
    color = field(str, label="Colour")


def norms_of(model, prompt, *, metric="mean", scale=1.0, below=0, on_partial=None) -> Curves:  # type: ignore[no-untyped-def]
    """The norms of the residual stream, written for something else: without a probe's annotations."""
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(model.n_layers)]
    states = model.run(model.tokens(prompt), capture=names).activations
    norms = [states[name][0].float().norm(dim=-1) for name in names]
    curve = [float(one.max() * scale if metric == "largest" else one.mean()) for one in norms]
    if on_partial is not None:
        on_partial(Curves([curve[:2]], [metric]))
    return Curves([curve], [metric])


def test_the_options_of_a_base_class_are_the_arguments(pair: Any, show: Any) -> None:
    """A function that was written for something else becomes a panel with labels, hints and rules."""
    kind = probe(norms_of, base=NormOptions, title="Norms")
    panel = show(kind, pair, prompt="")
    assert panel.hints == {"prompt": "type a text"}
    panel.prompt = "The dog"
    settle(panel)
    np.testing.assert_array_equal(panel.result[0].values, norms_of(pair.base, "The dog").values)
    metric, scale = control_of(panel, "Measured as"), control_of(panel, "Times")
    assert dict(metric.options) == {label: name for name, label in METRICS.items()}
    assert "iw-hidden" in scale._dom_classes
    panel.metric = "largest"
    settle(panel)
    assert "iw-hidden" not in scale._dom_classes
    wanted = norms_of(pair.tuned, "The dog", metric="largest", scale=2.0)
    np.testing.assert_array_equal(panel.result[1].values, wanted.values)
    assert wanted.values.std() > 0
    names: dict[str, Any] = {}
    exec(panel.code(panel.request()), names)
    np.testing.assert_array_equal(names["result_b"].values, wanted.values)
    with pytest.raises(TypeError, match="the parameter prompt of norms_of must have an annotation"):
        probe(norms_of)


def test_partial_results_are_drawn(pair: Any, show: Any) -> None:
    kind = probe(norms_of, base=NormOptions)
    panel = kind(pair.base)
    drawn: list[int] = []
    paint = panel.picture.paint
    panel.picture.paint = lambda results, shown: (drawn.append(results[0].values.shape[1]), paint(results, shown))
    panel.prompt = "The dog"
    panel.run()
    assert drawn == [2, 6]
    panel.close()


class Both(Stack):
    """Two probes as the tabs of one widget."""

    title = "Both"
    panels: ClassVar[Mapping[str, type[Panel]]] = {"tokens": Counted, "entropy": probes.attention_entropy}


def test_probes_are_the_tabs_of_a_stack(pair: Any, show: Any) -> None:
    stack = show(Both, pair.base, prompt="The dog")
    assert len(stack.result.rows) == 2
    stack.tab = "entropy"
    assert stack["entropy"].prompt == "The dog", "one name, one value"
    stack.prompt = "The dog was"
    settle(stack)
    assert stack["tokens"].prompt == "The dog was"
    assert stack.result.values.shape == (6, pair.base.n_heads)


# ---- the code of a probe that stands in a notebook

SCALE = 2.0


def _helper(value: torch.Tensor) -> torch.Tensor:
    return SCALE * value.float()


def test_the_code_of_a_notebooks_probe_holds_its_source(pair: Any, show: Any) -> None:
    power = 3

    @probe(title="Norms")
    def norms(model: Model, prompt: Prompt, layer: Layer = 2) -> TokenValues:
        name, ids = f"blocks.{layer}.hook_resid_pre", model.tokens(prompt)
        states = _helper(model.run(ids, capture=name).activations[name][0])
        return TokenValues(states.norm(dim=-1) ** power, model.token_strings(ids), unit="norm")

    panel = show(norms, pair.base, prompt=PROMPT)
    code = panel.code(panel.request())
    assert "power = 3" in code
    assert "from interp_widgets import Layer, Model, Prompt, TokenValues, load_model, probe" in code
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["result"].equals(panel.result)


def test_the_code_of_a_function_that_was_given_to_probe_calls_the_function(pair: Any, show: Any) -> None:
    def norms(model: Model, prompt: Prompt, layer: Layer = 2, *, check: Any) -> TokenValues:
        check()
        name, ids = f"blocks.{layer}.hook_resid_pre", model.tokens(prompt)
        states = model.run(ids, capture=name).activations[name][0]
        return TokenValues(states.norm(dim=-1), model.token_strings(ids), unit="norm")

    panel = show(probe(norms, title="Norms"), pair.base, prompt=PROMPT)
    code = panel.code(panel.request())
    assert "result = norms(" in code
    names: dict[str, Any] = {}
    exec(code, names)
    np.testing.assert_array_equal(names["result"].values, panel.result.values)


def test_a_probe_returns_its_result_at_once() -> None:
    async def later(model: Model, prompt: Prompt) -> Table:
        return Table(["a"], [[1]])

    def bit_by_bit(model: Model, prompt: Prompt) -> Table:
        yield 1

    for function in (later, bit_by_bit):
        with pytest.raises(TypeError, match=f"^{function.__name__} must return its result: write it without async"):
            probe(function)


def test_a_probe_that_returns_a_promise_or_exits_is_an_error_in_a_sentence(pair: Any, wire: Any) -> None:
    async def later() -> None: ...

    @probe
    def promised(model: Model, prompt: Prompt) -> Table:
        return later()  # type: ignore[return-value]

    @probe
    def exits(model: Model, prompt: Prompt) -> Table:
        raise SystemExit(3)

    for kind, message in ((promised, "returned an object of type coroutine"), (exits, r"called sys.exit\(3\)")):
        panel = kind(pair.base, prompt="a b")
        assert panel.wait(60)
        assert re.search(message, panel.status.error)
        with pytest.raises((TypeError, RuntimeError), match=message):
            panel.run()
        panel.go()
        assert panel.wait(60)
        assert re.search(message, panel.status.error)
        panel.close()
