"""The mixtures of depths that ship: tuned as they say, small, and made by the command."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from interp_widgets.data.problems import demo_problems
from interp_widgets.demo import mixture as making
from interp_widgets.models import ModModel, load_model
from interp_widgets.models.hub_files import DEMO_MIXTURES
from interp_widgets.models.mixture_of_depths.checkpoint import load_state
from interp_widgets.tuning.mixture_of_depths.untrained import untrained_mod
from tests.shipped import demo_pair


@pytest.mark.seconds
@pytest.mark.parametrize("name", DEMO_MIXTURES)
def test_a_shipped_mixture_is_small_and_tuned(name: str) -> None:
    folder, base = DEMO_MIXTURES[name], name.removesuffix("-mixture")
    assert sum(path.stat().st_size for path in folder.iterdir()) < 200_000
    told, state = json.loads((folder / making.REPORT).read_text()), load_state(name)
    assert (told["command"], told["steps"]) == (making.COMMAND, making.STEPS)
    assert state.base == base
    model = load_model(name)
    assert isinstance(model, ModModel)
    assert (model.name, model.source, model.added_parameters) == (name, name, told["parameters"])
    start = untrained_mod(load_model(base), making.K, seed=making.SEED).state.weights
    moved = {part: float((state.weights[part] - start[part]).abs().max()) for part in start}
    assert min(moved.values()) > 0.01, moved
    assert len(state.training["curves.task"]) == making.STEPS


@pytest.mark.seconds
def test_it_reaches_on_held_out_tasks_what_is_reported() -> None:
    told = json.loads((DEMO_MIXTURES["demo-base-mixture"] / making.REPORT).read_text())
    problems = demo_problems("held_out", told["held_out_problems"])
    model, base = load_model("demo-base-mixture"), demo_pair().base
    rows: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)  # by length, to run together
    for problem in problems:
        ids = [*base.tokens(problem.prompt + problem.response), base.tokenizer.eos_token_id]
        rows[len(ids)].append((len(base.tokens(problem.prompt)), ids))
    for part, measured in (("base", base), ("mixture", model)):
        losses: list[float] = []
        for alike in rows.values():  # anew, by the softmax and in float64
            with torch.no_grad():
                every = measured.run([ids for _, ids in alike]).logits.double()
            for (start, ids), logits in zip(alike, every, strict=True):
                chances = logits[start - 1 : -1].softmax(-1)[range(len(ids) - start), ids[start:]]
                losses += (-chances.log()).tolist()
        assert np.mean(losses) == pytest.approx(told[part]["loss"], abs=0.002)
    assert told["mixture"]["loss"] < told["base"]["loss"] - 0.5
    few = making.held_out(model, problems[:40])
    assert abs(few["solved"] - told["mixture"]["solved"]) < 0.15, "a part of the same problems"


@pytest.mark.seconds
def test_the_command_writes_a_mixture_and_its_report(tmp_path: Path) -> None:
    told = making.make_mixture("demo-base", tmp_path / "mixture", steps=2, n=3)
    assert told == json.loads((tmp_path / "mixture" / making.REPORT).read_text())
    assert (told["steps"], told["held_out_problems"], told["parameters"]) == (2, 3, 1152)
    again = load_model(tmp_path / "mixture")
    assert making.held_out(again, demo_problems("held_out", 3)) == told["mixture"]
    settings = load_state("demo-base-mixture").settings
    kept = ("k", "top_k", "lora", "distill", "learning_rate", "batch_size", "seed")
    assert {name: load_state(tmp_path / "mixture").settings[name] for name in kept} == {
        name: settings[name] for name in kept
    }
