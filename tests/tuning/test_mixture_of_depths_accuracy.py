"""Grids and ablations put every accuracy where it belongs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from interp_widgets.analysis.mixture_of_depths import SolveResult, solve
from interp_widgets.analysis.mixture_of_depths.tuning_results import half_width
from interp_widgets.data.problems import Problem
from interp_widgets.tuning.mixture_of_depths import ModAblations, ModGrid, accuracy, mod_ablations, mod_grid, tune_mod
from tests.models.tiny import tiny_folder, tiny_model

DATA = [("The capital of France is", " Paris"), ("One two", " three"), ("A pilot flies a", " plane")]
QUICK: dict[str, Any] = {"steps": 2, "batch_size": 3, "learning_rate": 1e-2, "max_new_tokens": 3}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def problem(prompt: str, right: bool) -> Problem:
    return Problem(prompt, " x", "", "task", check=lambda text: right and len(text) >= 0)


PROBLEMS = [problem("The city", True), problem("Mary and", False), problem("A nurse", True)]


def test_solve_checks_what_the_model_writes(tmp_path: Path) -> None:
    model = tiny_model("llama")
    told: list[tuple[int, int]] = []
    found = solve(model, PROBLEMS, max_new_tokens=5, progress=lambda *a: told.append(a))
    assert found.solved.tolist() == [True, False, True]
    assert found.accuracy == pytest.approx(2 / 3)
    assert list(found.responses) == [model.generate(one.prompt, max_new_tokens=5) for one in PROBLEMS]
    text = found.responses[0]
    assert solve(model, [Problem("The city", "", "", "task", check=text.__eq__)], max_new_tokens=5).accuracy == 1
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert SolveResult.load(found.save(tmp_path / "x")).equals(found)
    assert found.to_frame()["solved"].sum() == 2
    with pytest.raises(ValueError, match="no problems"):
        solve(model, [])
    with pytest.raises(ValueError, match=r"problem 1 has \d+ tokens, which with 5 new ones do not fit .* of 128"):
        solve(model, [PROBLEMS[0], problem("word " * 130, True)], max_new_tokens=5)


def test_the_grid_has_every_pair_where_it_belongs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is tuned is made up here, so that each cell's number says which cell it is."""
    asked: list[dict[str, Any]] = []

    def made_up(model: Any, dataset: Any, *, check: Any, **options: Any) -> tuple[Any, Any]:
        asked.append(options)
        report = type("Report", (), {"stopped": "done", "trained_share": options["k"] / 100})()
        return options, report

    class Solved:
        def __init__(self, accuracy: float) -> None:
            self.accuracy = accuracy

    def solved(model: Any, *given: Any, **options: Any) -> Solved:
        if not isinstance(model, dict):
            return Solved(0.125)
        return Solved(model["k"] / 10 + model["top_k"] / 100 + model["seed"] / 1000)

    monkeypatch.setattr(accuracy, "tune_mod", made_up)
    monkeypatch.setattr(accuracy, "solve", solved)
    parts: list[ModGrid] = []
    found = mod_grid(tiny_model("llama"), DATA, PROBLEMS, ks=(3, 1), seeds=(4, 6), lora=2, on_partial=parts.append)
    assert (found.ks, found.top_ks, found.seeds) == ((1, 3), (1, 2, 3), (4, 6))
    assert np.allclose(found.accuracy[..., 0], [[0.114, np.nan, np.nan], [0.314, 0.324, 0.334]], equal_nan=True)
    assert np.allclose(found.mean[1], [0.315, 0.325, 0.335])
    assert found.base_accuracy == 0.125
    assert np.allclose(found.trained_share, [0.01, 0.03])
    assert len(asked) == 8
    assert all(options["lora"] == 2 for options in asked)
    assert len(parts) == 7
    assert parts[0].partial
    assert np.isfinite(parts[0].accuracy).sum() == 1
    assert np.isfinite(parts[-1].accuracy).sum() == 7
    assert not found.partial
    assert len(found.to_frame()) == 4
    assert ModGrid.load(found.save(tmp_path / "grid")).equals(found)


@pytest.mark.seconds
def test_a_grid_of_real_tunings_is_what_single_tunings_give() -> None:
    reference = []
    for k, top_k in ((1, 1), (2, 1), (2, 2)):
        model, _ = tune_mod(tiny_folder("llama"), DATA, k=k, top_k=top_k, steps=2, batch_size=3, learning_rate=1e-2)
        reference.append(model.generate("The city", max_new_tokens=3))
    target = reference[1]
    problems = [Problem("The city", "", "", "task", check=target.__eq__), problem("Mary", True)]
    found = mod_grid(tiny_folder("llama"), DATA, problems, ks=(1, 2), **QUICK)
    wanted = [(text == target) / 2 + 0.5 for text in reference]
    assert [found.accuracy[0, 0, 0], found.accuracy[1, 0, 0], found.accuracy[1, 1, 0]] == wanted
    assert np.isnan(found.accuracy[0, 1, 0])
    assert found.trained_share[1] == pytest.approx(2 * found.trained_share[0])


@pytest.mark.seconds
def test_a_tuning_that_diverged_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that grow beyond what float32 can tell apart, in the cells of two routes only."""
    step = torch.optim.AdamW.step

    def grow(self: Any) -> None:
        step(self)
        parameters = [p for group in self.param_groups for p in group["params"]]
        if parameters[0].shape == (32, 2):
            for parameter in parameters:
                parameter.data.mul_(1e15)

    monkeypatch.setattr(torch.optim.AdamW, "step", grow)
    found = mod_grid(tiny_folder("llama"), DATA, PROBLEMS, ks=(1, 2), **QUICK)
    assert found.accuracy[0, 0, 0] == pytest.approx(2 / 3)
    assert np.isnan(found.accuracy[1]).all()
    assert found.trained_share[1] == pytest.approx(2 * found.trained_share[0])


@pytest.mark.seconds
def test_ablations_leave_out_what_they_say() -> None:
    found = mod_ablations(
        tiny_folder("llama"), DATA, PROBLEMS, k=2, seeds=(0, 1),
        variants={**accuracy.ABLATIONS, "with LoRA": {"lora": 2}}, **QUICK,
    )  # fmt: skip
    assert found.variants == ("MoD", "without norms", "without distillation", "with LoRA")
    assert found.accuracy.shape == (4, 2)
    assert found.trained[:3].tolist() == [128, 64, 128]
    assert found.trained[3] > 1000
    assert np.allclose(found.mean, 2 / 3)
    assert np.allclose(found.half_width, 0)
    assert list(found.to_frame()["variant"]) == list(found.variants)
    assert found.base_accuracy == pytest.approx(2 / 3)


@pytest.mark.seconds
def test_ablations_may_be_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def tuned(model: Any, dataset: Any, *, check: Any, **options: Any) -> tuple[Any, Any]:
        asked.append(options)
        return tune_mod(model, dataset, **options)

    monkeypatch.setattr(accuracy, "tune_mod", tuned)
    mod_ablations(tiny_folder("llama"), DATA, PROBLEMS[:1], k=2, top_k=1, variants={"MoD": {}}, seeds=(0,), **QUICK)
    assert [(options["k"], options["top_k"]) for options in asked] == [(2, 1)]
    with pytest.raises(TypeError, match="'top_k' is set by the comparison itself"):
        mod_grid(tiny_folder("llama"), DATA, PROBLEMS, top_k=1)


def test_intervals_are_those_of_student(tmp_path: Path) -> None:
    values = np.array([[0.5, 0.6, 0.8], [0.2, 0.2, 0.2]])
    low, high = stats.t.interval(0.95, 2, loc=values[0].mean(), scale=stats.sem(values[0]))
    assert half_width(values)[0] == pytest.approx((high - low) / 2)
    assert half_width(values)[1] == pytest.approx(0, abs=1e-12)
    assert np.isnan(half_width(values[:, :1])).all()
    one = ModAblations(("a", "b"), values, np.array([1, 2]), 0.1, 10, (0, 1, 2), 5)
    assert ModAblations.load(one.save(tmp_path / "x")).equals(one)


def test_what_is_refused() -> None:
    model = tiny_model("llama")
    for options, message in (
        ({"ks": (4,)}, r"ks must be ints in 1\.\.3, got \[4\]"),
        ({"ks": ()}, "ks must be ints"),
        ({"ks": (2, 2)}, "ks must differ"),
        ({"ks": (2,), "top_ks": (3,)}, r"top_ks must be ints in 1\.\.2"),
    ):
        with pytest.raises(ValueError, match=message):
            mod_grid(model, DATA, PROBLEMS, **options)
    with pytest.raises(TypeError, match="'seed' is set by the comparison itself"):
        mod_grid(model, DATA, PROBLEMS, seed=3)
    with pytest.raises(ValueError, match="no variants"):
        mod_ablations(model, DATA, PROBLEMS, variants={})

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        mod_grid(model, DATA, PROBLEMS, check=stop)
