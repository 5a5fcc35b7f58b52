"""A panel that someone writes outside the package: an analysis, a map of its result, its options, and a tab of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pytest
import torch
import traitlets as T

from interp_widgets import Bounds, Head, Layer, Matrix, Panel, Result, Stack, Workbench, field
from interp_widgets.widgets.views import Heatmap
from tests.shipped import demo_pair
from tests.waiting import LIMIT

PROMPT = "The dog ran to the"


def attention_pattern(model, *, prompt, layer, head):  # type: ignore[no-untyped-def]
    """(query, key) the attention of a head; NaN for keys behind their query."""
    ids, name = model.tokens(prompt), f"blocks.{layer}.attn.hook_pattern"
    pattern = model.run(ids, capture=name).activations[name][0, head].float()
    pattern[~torch.ones_like(pattern).tril().bool()] = torch.nan
    tokens = model.token_strings(ids)
    return Matrix(pattern, tokens, tokens, "query", "key", "attention")


class AttentionMap(Panel):
    title, analysis = "Attention of a head", staticmethod(attention_pattern)
    prompt = field(str, label="Prompt", required="type a prompt")
    layer = field(Layer, label="Layer")
    head = field(Head, label="Head")
    largest = field(Annotated[float, Bounds(0.05, 1)], 1.0, label="Full colour at", redraws=True)

    def build(self) -> None:
        super().build()
        self.heat = Heatmap(row_name="query", column_name="key", value_label="attention")
        self.plot.children = [self.heat]

    def draw(self, results: Any, request: Any) -> None:
        both, end = self.shown == "difference", self.largest
        one = results[1].minus(results[0]) if both else self.stored()
        self.heat.set_matrix(
            one.values, rows=one.rows, columns=one.columns, vmin=-end * both, vmax=end, signed=both
        )  # fmt: skip

    def stored(self) -> Any:
        return self.results[self.shown == "B"]

    def frame(self) -> Any:
        return self.stored().to_frame()

    def scene(self) -> Any:
        return self.heat.scene()


class Strong(AttentionMap):
    title = "Only strong attention"


class Tabs(Stack):
    title, panels = "Attention", {"map": AttentionMap, "strong": Strong}


class Linked(AttentionMap):
    query = field(Annotated[int, Bounds(low=-1)], -1, selects=True, linked="prompt_token")
    row = field(Annotated[int, Bounds(low=-1)], -1, selects=True, linked="layer")

    def build(self) -> None:
        super().build()
        self.marked: list[tuple[int, int]] = []

    def draw_selection(self) -> None:
        self.marked.append((self.query, self.row))


class LinkedTabs(Stack):
    title, panels = "Attention", {"strong": Strong, "linked": Linked}


@pytest.mark.seconds
def test_it_draws_two_models_saves_and_copies(wire: Any, tmp_path: Path) -> None:
    pair = demo_pair()
    panel = AttentionMap(pair, prompt=PROMPT, layer=2, head=3)
    assert panel.wait(LIMIT)
    first, second = (attention_pattern(model, prompt=PROMPT, layer=2, head=3) for model in (pair.base, pair.tuned))
    wanted = {"A": first.values, "B": second.values, "difference": second.values - first.values}
    assert np.nanmax(np.abs(wanted["difference"])) > 0, "else any of the three would do"
    for view, values in wanted.items():
        panel.view = view
        np.testing.assert_allclose(panel.heat.matrix, values, atol=1e-6)
        assert panel.save(tmp_path / f"{view}.svg").read_text().startswith("<svg")
    panel.view = "B"
    assert Result.load(panel.save(tmp_path / "b.npz")).equals(second)
    assert len(pd.read_csv(panel.save(tmp_path / "b.csv"))) == second.values.size
    names: dict[str, Any] = {}
    exec(panel.code(panel.request()), names)
    assert names["result_a"].equals(first)
    assert names["result_b"].equals(second)
    panel.close()


@pytest.mark.seconds
def test_its_layer_is_one_of_the_model(wire: Any) -> None:
    model = demo_pair().base
    panel = AttentionMap(model, prompt=PROMPT)
    assert panel.wait(LIMIT)
    for name, size in (("layer", model.n_layers), ("head", model.n_heads)):
        assert (panel.controls[name].min, panel.controls[name].max) == (0, size - 1)
    wire.type(panel.controls["layer"], value=2)
    assert panel.wait(LIMIT)
    assert panel.result.equals(attention_pattern(model, prompt=PROMPT, layer=2, head=0))
    with pytest.raises(T.TraitError, match=r"layer must be in 0\.\.5 for demo-base, got 77"):
        AttentionMap(model, prompt=PROMPT, layer=77)
    panel.close()


@pytest.mark.seconds
def test_it_is_a_tab(wire: Any) -> None:
    stack = Tabs(demo_pair().base, prompt=PROMPT, layer=1)
    stack.tab = "strong"
    stack.largest = 0.2
    assert stack.wait(LIMIT)
    assert stack["strong"].heat.vmax == 0.2
    assert stack["strong"].layer == stack["map"].layer == 1, "one name, one value"
    stack.close()


@pytest.mark.seconds
def test_its_own_row_and_column_follow_and_move_the_shared_selection() -> None:
    model = demo_pair().base
    tokens, layers = len(model.tokens(PROMPT, prepend_bos=False)), model.n_layers
    bench = Workbench(model, prompt=PROMPT, layer=2)
    assert bench.prompt_token == -1
    one, other = Linked(bench), Linked(bench, query=3)
    assert one.wait(LIMIT)
    assert other.wait(LIMIT)
    assert (bench.prompt_token, one.query, one.row, other.row) == (3, 3, 2, 2), "what is selected and given counts"
    other.close()
    other = Linked(bench, row=layers + 7)
    assert (other.query, other.row, bench.layer) == (3, layers + 7, 2), "a row that may be refused moves nothing"
    assert other.wait(LIMIT)

    one.marked = []
    bench.select(prompt_token=1, layer=4)
    assert one.marked == [(1, 4)], "drawn once"
    one.marked = []
    one.row = layers  # the model's output
    assert (bench.layer, one.row, other.row) == (layers - 1, layers, layers - 1)
    bench.layer = layers - 1
    assert one.marked == [(1, layers)], "it stays the output, and no echo draws it again"
    one.query = tokens  # a token of the response, say
    assert (bench.prompt_token, one.query, other.query) == (-1, tokens, -1)
    one.query = one.row = -1
    assert (bench.prompt_token, bench.layer) == (-1, layers - 1), "there is always a layer"
    bench.layer = 0
    assert (one.row, other.row) == (0, 0)
    bench.prompt_token = 2
    bench.prompt_token = -1
    assert (one.query, other.query) == (-1, -1)
    one.close()
    bench.prompt_token = 2
    assert (one.query, other.query) == (-1, 2)
    bench.close()


@pytest.mark.seconds
def test_a_linked_option_of_a_tab() -> None:
    bench = Workbench(demo_pair().base, prompt=PROMPT, prompt_token=1)
    stack = LinkedTabs(bench)
    bench.prompt_token = 2
    stack.tab = "linked"
    assert stack.wait(LIMIT)
    assert stack.query == stack["linked"].query == 2
    stack["linked"].query = 3
    assert (stack.query, bench.prompt_token) == (3, 3)
    bench.close()


@pytest.mark.seconds
def test_only_a_selection_can_be_linked() -> None:
    with pytest.raises(ValueError, match=r"linked must be .*prompt_token.*got 'position'"):
        field(int, -1, linked="position")
