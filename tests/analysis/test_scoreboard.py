"""The scoreboard: average precision against its definition, chance against closed forms, and who fails where."""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from interp_widgets import CircuitCase, CircuitScoreboard, Model, ablate_heads, circuit_scoreboard, prompt_saliency
from interp_widgets.analysis.circuits import METHODS
from interp_widgets.analysis.circuits.ranking import average_precision
from interp_widgets.models.circuits import CIRCUITS, PART_KINDS, CircuitName, load_circuit


def oracle(model: Model, case: CircuitCase) -> dict[str, Any]:
    return {kind: case.matters(kind, model).astype(float) for kind in PART_KINDS}


def worst(model: Model, case: CircuitCase) -> dict[str, Any]:
    return {kind: -values for kind, values in oracle(model, case).items()}


def constant(model: Model, case: CircuitCase) -> dict[str, Any]:
    return {kind: np.full(values.shape, 0.3) for kind, values in oracle(model, case).items()}


def by_definition(values: NDArray[np.float64], marked: NDArray[np.bool_]) -> float:
    """Mean over the parts that matter of the share of parts that matter among those ranked as high."""
    shares = [marked[values >= value].mean() for value in values[marked]]
    return float(np.mean(shares))


def test_average_precision_is_its_definition() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        values, marked = rng.normal(size=9), rng.random(9) < 0.4
        if marked.any():
            assert average_precision(values, marked) == pytest.approx(by_definition(values, marked))


def test_numbers_below_rounding_are_ties() -> None:
    values, marked = np.array([2e-9, 1e-9, 0.0, 1.0]), np.array([True, False, False, False])
    assert average_precision(values, marked) == 0.25
    assert average_precision(values * [1e6, 1e6, 1, 1], marked) == 0.5
    assert average_precision(np.zeros(4), marked) == 0.25, "a ranking that finds nothing"


@pytest.mark.seconds
def test_bounds_and_chance() -> None:
    board = circuit_scoreboard([oracle, worst, constant], ["greater_than"])
    best, last, tied = board.average_precision[:, 0]
    assert np.all(best == 1)
    assert np.all(last < board.chance[0])
    # one head of 8 and one neuron of 48 matter: a random ranking has (1 + 1/2 + ... + 1/n) / n
    for column, parts in ((1, 8), (2, 48)):  # and three edges of 110
        expected = (1 / np.arange(1, parts + 1)).sum() / parts
        assert board.chance[0, column] == pytest.approx(expected, abs=0.02)
        assert tied[column] == pytest.approx(1 / parts)
        assert last[column] == pytest.approx(1 / parts)
    assert tied[3] == pytest.approx(3 / 110)
    ranks = np.arange(1, 111)  # if the part of rank k matters, so do on average 2 in 109 of those before it
    assert board.chance[0, 3] == pytest.approx(((1 + (ranks - 1) * 2 / 109) / ranks).mean(), abs=0.01)
    assert np.all(board.chance_low <= board.chance)
    assert np.all(board.chance <= board.chance_high)
    assert np.all(board.p[1] > 0.9), "hardly a random ranking is worse than the worst"
    assert board.p[0, 0, 2] < 0.001, "three prompts of 48 neurons"


def test_chance_and_numbers_do_not_depend_on_the_other_circuits() -> None:
    alone = circuit_scoreboard(["attention"], ["trigger"])
    among = circuit_scoreboard([oracle, "attention"], ["fact_lookup", "trigger"])
    np.testing.assert_array_equal(alone.chance[0], among.chance[1])
    np.testing.assert_array_equal(alone.average_precision[0, 0], among.average_precision[1, 1])


def test_what_a_circuit_lacks_has_no_score() -> None:
    board = circuit_scoreboard([oracle], ["induction"])
    assert np.isnan(board.average_precision[0, 0, 2])
    assert np.isnan(board.chance[0, 2])
    assert list(board.to_frame()["kind"]) == ["tokens", "heads", "edges"]


@pytest.mark.seconds
@pytest.mark.parametrize("name", METHODS)
def test_every_method_ranks_every_circuit(name: str) -> None:
    """On a circuit of two layers and one of three: the shapes fit, and the numbers are finite."""
    for circuit in ("fact_lookup", "indirect_object"):
        board = circuit_scoreboard([name], [circuit])
        found = board.average_precision[np.isfinite(board.average_precision)]
        assert len(found)
        assert np.all((found > 0) & (found <= 1))


def test_a_saved_board_is_the_same(tmp_path: Path) -> None:
    board = circuit_scoreboard([oracle, "head scores"], ["induction"])
    board.save(tmp_path / "board.npz")
    assert CircuitScoreboard.load(tmp_path / "board.npz").equals(board)
    assert board.measures()["oracle"] == 1
    assert board.precision("head scores", "induction", "heads") == 1
    with pytest.raises(ValueError, match="circuit must be one of 'induction', got 'trigger'"):
        board.precision("oracle", "trigger", "heads")


def test_progress_and_cancel() -> None:
    seen: list[tuple[int, int]] = []
    circuit_scoreboard([oracle, worst], ["trigger", "busy_idle"], progress=lambda *count: seen.append(count))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    calls = 0

    def stop() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        circuit_scoreboard([oracle], ["trigger"], check=stop)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "must return a mapping with an array for tokens, heads, neurons or edges, got None"),
        ({}, "must return a mapping"),
        ({"layers": [1.0]}, "got 'layers'"),
        ({"heads": np.zeros((3, 4))}, r"heads must have shape \(2, 4\), got \(3, 4\)"),
        ({"heads": np.full((2, 4), np.nan)}, "heads must be finite numbers"),
        ({"heads": [["a"] * 4] * 2}, "heads must be an array of numbers"),
    ],
)
def test_what_is_no_ranking_is_refused(returned: Any, message: str) -> None:
    def mine(model: Model, case: CircuitCase) -> Any:
        return returned

    with pytest.raises(ValueError, match=f"'mine' on circuit 'induction'.*{message}"):
        circuit_scoreboard([mine], ["induction"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": ["exact"]}, "'exact, zero'.*got 'exact'"),
        ({"methods": []}, "methods is empty"),
        ({"methods": [oracle, oracle]}, "'oracle' twice"),
        ({"circuits": ["unknown"]}, "'indirect_object'"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(circuit_scoreboard)(**arguments)


# ---- who fails where


@cache
def board_of_failures() -> CircuitScoreboard:
    """Every circuit, with the methods that fail somewhere and the one that finds both backups."""
    return circuit_scoreboard(list(dict.fromkeys([*(method for method, *_ in FAILURES), "head scores"])))


def test_a_saturated_softmax_has_no_gradient() -> None:
    """The token that follows in the earlier text is read through attention, which is saturated."""
    model, truth = load_circuit("induction")
    case = truth.cases[0]
    answer = model.tokens(case.answer, prepend_bos=False)
    exact, first = (
        prompt_saliency(model, case.prompt, answer, method=method).importance[:, 0]
        for method in ("exact", "first_order")
    )
    earlier = case.tokens[0]
    assert exact[earlier] > 0.94
    assert abs(first[earlier]) < 0.005


def test_one_backup_hides_the_other() -> None:
    effects = {}
    for name in ("induction", "backup"):
        model, truth = load_circuit(name)
        effects[name] = ablate_heads(model, truth.cases[0].prompt, truth.cases[0].answer).effect
    assert effects["induction"][0, 0] > 2
    assert np.abs(effects["backup"][0]).max() < 0.01


@pytest.mark.seconds
def test_one_edge_at_a_time_meets_a_backup_and_misses_what_must_meet() -> None:
    noising, denoising = "path patching, noising", "path patching, denoising"
    board = circuit_scoreboard([noising, denoising, "edge attribution"], ["induction", "fact_lookup", "backup"])
    for method, circuit, stated in (
        (noising, "induction", 1), (noising, "fact_lookup", 1), (noising, "backup", 0.42),
        (denoising, "fact_lookup", 0.48), ("edge attribution", "induction", 0.57),
    ):  # fmt: skip
        assert board.precision(method, circuit, "edges") == pytest.approx(stated, abs=0.06)
    np.testing.assert_allclose(board.chance[:, 3], 0.08, atol=0.015)
    assert np.all(board.p[:, :, 3] < 0.01), "all of it is beyond chance: what is missed are some of the edges"


@pytest.mark.seconds
def test_integrated_edge_attribution_finds_every_edge() -> None:
    found = circuit_scoreboard(["edge attribution, integrated"]).average_precision[0, :, 3]
    np.testing.assert_allclose(found, 1, atol=1e-9)
    plain = circuit_scoreboard(["edge attribution"], ["indirect_object"])
    assert plain.average_precision[0, 0, 3] == pytest.approx(0.23, abs=0.06)


FAILURES = [
    ("first order", "induction", "tokens", 0.77),
    ("exact, zero", "induction", "tokens", 1.00),
    ("zero ablation", "backup", "heads", 0.65),
    ("zero ablation", "induction", "heads", 1.00),
    ("zero ablation", "busy_idle", "heads", 0.50),
    ("mean ablation", "busy_idle", "heads", 1.00),
    ("attention", "busy_idle", "heads", 0.39),
    ("direct logit attribution", "fact_lookup", "heads", 0.20),
    ("direct logit attribution", "fact_lookup", "neurons", 1.00),
    ("patching, denoising", "indirect_object", "tokens", 0.55),
]
"""What the docstring of `circuit_scoreboard` states."""


@pytest.mark.slow
@pytest.mark.parametrize(("method", "circuit", "kind", "stated"), FAILURES)
def test_failures_are_as_the_docstring_states(method: str, circuit: str, kind: str, stated: float) -> None:
    board = board_of_failures()
    assert board.precision(method, circuit, kind) == pytest.approx(stated, abs=0.06)
    high = board.chance_high[board.circuits.index(circuit), PART_KINDS.index(kind)]
    assert (stated == 1) == (board.precision(method, circuit, kind) > high)


@pytest.mark.slow
def test_exact_occlusion_finds_every_token() -> None:
    board = board_of_failures()
    assert np.all(board.average_precision[board.methods.index("exact, zero"), :, 0] == 1)


@pytest.mark.slow
@pytest.mark.parametrize("circuit", CIRCUITS)
def test_some_method_finds_every_head(circuit: CircuitName) -> None:
    board = board_of_failures()
    assert np.nanmax(board.average_precision[:, board.circuits.index(circuit), 1]) == 1
