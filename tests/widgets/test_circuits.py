"""The circuit board without a browser: its numbers, one method's map, own methods, two models, files and sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import traitlets as T

from interp_widgets import (
    CircuitBoard,
    CircuitCase,
    CircuitScoreboard,
    Curves,
    HeadMap,
    Layer,
    Model,
    Position,
    Prompt,
    Response,
    Result,
    Token,
    TokenValues,
    Workbench,
    attention_patterns,
    circuit_ranking,
    circuit_scoreboard,
    load_circuit,
    probe,
)
from interp_widgets.models.circuits import CIRCUITS
from interp_widgets.widgets.circuits.opened_case import tab_of
from interp_widgets.widgets.views.bokeh_figure import BokehSource
from tests.shipped import demo_pair
from tests.widgets.opening import opening, settle

QUICK = ("attention", "zero ablation", "path patching, noising")


def last_first(model: Model, case: CircuitCase) -> dict[str, Any]:
    """The later a token, the more it matters."""
    return {"tokens": range(len(case.prompt.split()))}


@probe
def first_looks(model: Model, prompt: Prompt) -> HeadMap:
    """How much of the last token's attention is on the first word, of each head."""
    patterns = attention_patterns(model, prompt)
    shares = [
        [patterns.pattern(layer, head)[-1, 1] for head in range(model.n_heads)] for layer in range(model.n_layers)
    ]
    return HeadMap(np.array(shares), unit="attention")


@probe
def without_default(model: Model, prompt: Prompt, layer: Layer) -> HeadMap:
    return HeadMap(np.zeros((model.n_layers, model.n_heads)), unit="")


@probe
def ranks_nothing(
    model: Model, prompt: Prompt, answer: Token, foil: Token, position: Position, response: Response
) -> Curves:
    return Curves(np.zeros((1, 3)), [f"{answer} not {foil} at {position} {response}"])


@pytest.fixture
def board(wire: Any) -> Iterator[Callable[..., CircuitBoard]]:
    """Opens boards; afterwards every comm and worker they opened must be gone."""
    BokehSource.shared()  # one for all figures of a kernel, which stays
    before = wire.open()
    with opening(CircuitBoard) as build:
        yield build
    assert wire.open() == before


@pytest.mark.seconds
@pytest.mark.installation
def test_opens_with_what_ships_which_a_fresh_run_repeats(board: Callable[..., CircuitBoard]) -> None:
    panel = board(demo_pair().base)
    assert "shipped" in panel.status.text
    assert isinstance(panel.result, CircuitScoreboard)
    assert panel.board.row_labels[0] == "zero ablation"
    assert panel.board.column_labels == [name.replace("_", " ") for name in CIRCUITS]
    own = circuit_scoreboard(["attention", "zero ablation"])
    rows = [panel.result.methods.index(name) for name in own.methods]
    np.testing.assert_allclose(panel.result.average_precision[rows], own.average_precision, atol=0.02)
    np.testing.assert_array_equal(panel.result.chance, own.chance)


@pytest.mark.seconds
def test_a_prompt_opens_in_a_workbench_with_the_truth_folded_away(board: Callable[..., CircuitBoard]) -> None:
    panel = board(methods=("attention", "zero ablation"), circuit="backup")
    case = panel.opened_case
    case.button.click()
    assert panel.wait(60)
    assert case.bench.models[0].name == "circuit-backup"
    assert (case.bench.prompt, case.bench.response) == (panel.ranking.prompt, f" {panel.ranking.answer}")
    assert case.bench.screen.shown == ("ablation",)
    assert case.truth.value.startswith("<details><summary>What matters</summary>")
    assert "<p>Heads: 0.0, 0.2, 1.1</p>" in case.truth.value
    assert "head 1.1 to logits" in case.truth.value
    first = case.bench
    panel.circuit = "induction"
    assert panel.wait(60)
    assert case.bench is first, "what one works in stays"
    case.button.click()
    assert case.bench is None
    case.button.click()
    assert panel.wait(60)
    assert case.bench.models[0].name == "circuit-induction"


@pytest.mark.parametrize(
    ("method", "tab"),
    [("exact, zero", "saliency"), ("mean ablation", "ablation"), ("tracing", "ablation"), ("attention", "attention"),
     ("path patching, noising", "patching"), ("edge attribution", "patching"), ("decomposition", "decomposition"),
     ("my own", "saliency")],
)  # fmt: skip
def test_a_method_opens_on_its_tab(method: str, tab: str) -> None:
    assert tab_of(method) == tab


@pytest.mark.seconds
def test_a_cell_and_its_map(board: Callable[..., CircuitBoard], wire: Any) -> None:
    panel = board(methods=QUICK)
    expected = circuit_scoreboard(list(QUICK))
    assert panel.result.equals(expected)
    np.testing.assert_allclose(panel.board.matrix, expected.average_precision[:2, :, 1], atol=1e-6)
    ends = expected.chance[5, 1], expected.chance_low[5, 1], expected.chance_high[5, 1]
    assert panel.board.heads[5] == "\n".join(f"{end:.2f}" for end in ends)
    assert panel.board.muted == np.argwhere(expected.p[:2, :, 1] >= 0.05).tolist()
    assert [1, 5] in panel.board.muted, "zero ablation on backup is chance"
    assert [1, 0] not in panel.board.muted, "on induction it is not"
    one = circuit_ranking("zero ablation", "backup", kind="heads")
    assert panel.ranking.equals(one)
    assert panel.board.pinned == [1, 5]
    assert panel.map.crossed == [[0, 0], [0, 2], [1, 1]]
    assert "head 1.1 ✓" in panel.words.value
    assert f"<b>{one.average_precision:.2f}</b>" in panel.words.value

    wire.type(panel.board, pinned=[0, 6])
    assert panel.wait(60)
    assert (panel.method, panel.circuit) == ("attention", "busy_idle")
    assert panel.ranking.equals(circuit_ranking("attention", "busy_idle", kind="heads"))
    assert "First (✓ matters): head 1.2, " in panel.words.value, "the busy head comes first and does not matter"
    panel.case = 2
    assert panel.wait(60)
    assert panel.ranking.prompt == "then hugo of lima gave a"

    panel.kind = "edges"
    assert panel.wait(60)
    assert panel.board.row_labels == ["paths, noising"]
    assert panel.ranking is None
    assert "attention ranks no edges of busy_idle" in panel.words.value
    panel.method = "path patching, noising"
    assert panel.wait(60)
    assert {panel.ranking.part(at) for at in panel.ranking.order()[:2]} == {"head 1.0 to logits", "embeddings to v 1.0"}
    panel.kind = "neurons"
    assert panel.wait(60)
    assert panel.board.column_labels == ["fact lookup", "greater than", "trigger"]


@pytest.mark.seconds
def test_a_prompt_without_a_part_that_matters(board: Callable[..., CircuitBoard]) -> None:
    panel = board(methods=["attention"], method="attention", circuit="trigger", case=3)
    assert panel.ranking.case == 3
    assert "No head matters for this prompt" in panel.words.value
    panel.circuit = "induction"
    assert panel.wait(60)
    assert panel.ranking.case == 2, "the last of three"


@pytest.mark.seconds
def test_a_method_of_ones_own_and_the_code_for_it(board: Callable[..., CircuitBoard]) -> None:
    panel = board(methods=["exact, zero", last_first], kind="tokens", method="last_first", seed=1)
    assert panel.result.methods == ("exact, zero", "last_first")
    assert panel.ranking.part(panel.ranking.order()[0]) == "eta", "the last token"
    names: dict[str, Any] = {}
    exec(panel.code(panel.request()), names)
    assert names["result"].equals(panel.result)
    assert names["ranking"].equals(panel.ranking)


@pytest.mark.seconds
def test_a_probe_is_a_method(board: Callable[..., CircuitBoard]) -> None:
    @probe
    def of_a_cell(model: Model, prompt: Prompt) -> TokenValues:
        tokens = model.token_strings(model.tokens(prompt))
        return TokenValues(np.arange(len(tokens)), tokens, unit="")

    panel = board(methods=["head scores", first_looks, of_a_cell], method="first_looks", circuit="induction")
    model, truth = load_circuit("induction")
    own = first_looks.analysis(model, truth.cases[panel.ranking.case].prompt).values
    np.testing.assert_allclose(panel.ranking.values, own, atol=1e-6)
    names: dict[str, Any] = {}
    exec(panel.code(panel.request()), names)
    assert names["ranking"].equals(panel.ranking)
    for method, message in (
        (without_default, "without_default has no default for layer, and a circuit says nothing of it"),
        (ranks_nothing, "ranks_nothing returns Curves, which ranks no parts of a circuit: return TokenValues or"),
    ):
        with pytest.raises(TypeError, match=message):
            circuit_scoreboard([method], ["trigger"])


@pytest.mark.seconds
def test_files_and_two_models(board: Callable[..., CircuitBoard], tmp_path: Path) -> None:
    one, two = board(demo_pair().tuned), board(demo_pair())
    assert two.result.average_precision.shape == one.result.average_precision.shape, "one board, whatever the models"
    assert "not about demo-base" in two.summary.value
    for name in ("board.svg", "board.png", "board.csv", "board.html"):
        assert two.save(tmp_path / name).stat().st_size > 1000
    assert Result.load(two.save(tmp_path / "board.npz")).equals(two.result)


@pytest.mark.seconds
def test_what_is_not_on_the_board_is_refused(board: Callable[..., CircuitBoard]) -> None:
    panel = board(methods=["attention"], method="attention")
    panel.method = "exact, zero"
    assert "method must be one of the methods on the board, got 'exact, zero'" in panel.status.error
    assert panel.method == "attention"
    with pytest.raises(T.TraitError, match="circuit"):
        panel.circuit = "unknown"
    panel.methods = ("exact",)
    assert panel.wait(60)
    settle(panel)
    assert "methods must be functions or of 'exact, zero'" in panel.status.error


@pytest.mark.seconds
def test_on_a_workbench_its_choice_is_kept_by_a_session(wire: Any, tmp_path: Path) -> None:
    bench = Workbench(demo_pair().base)
    bench.screen.show("circuits")
    assert bench.screen.wait(60)
    panel = bench.screen["circuits"]
    panel.method, panel.circuit, panel.kind = "first order", "induction", "tokens"
    assert bench.screen.wait(60)
    said = panel.described()
    assert said.heading == "first order on induction"
    bench.save(tmp_path / "session.npz")
    bench.close()
    other = Workbench.load(tmp_path / "session.npz", demo_pair().base)
    assert other.screen.wait(60)
    again = other.screen["circuits"]
    assert (again.method, again.circuit, again.kind) == ("first order", "induction", "tokens")
    assert again.ranking is not None
    other.close()
