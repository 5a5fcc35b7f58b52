"""Losses of late layers, implicit and explicit, and who solves what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from interp_widgets.data.problems import Problem
from interp_widgets.tuning.mixture_of_depths import LateLayerLosses, late_layer_losses, tune_mod
from tests.models.tiny import tiny_folder

DATA = [("The capital of France is", " Paris"), ("One two", " three"), ("A pilot flies a", " plane")]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.seconds
def test_every_run_is_the_tuning_of_its_layer() -> None:
    options = {"lora": 2, "steps": 3, "batch_size": 3, "learning_rate": 1e-2}
    texts = []
    for route in (0, 1):
        model, report = tune_mod(
            tiny_folder("llama"),
            DATA,
            k=2,
            only=route,
            lora_layers="all",
            train_norms=False,
            each_route=True,
            **options,
        )
        texts.append((model.generate("The city", max_new_tokens=3), report))
    problems = [Problem("The city", "", "", "task", check=text.__eq__) for text, _ in texts]
    parts: list[LateLayerLosses] = []
    told: list[tuple[int, int]] = []
    found = late_layer_losses(
        tiny_folder("llama"), DATA, k=2, problems=problems, max_new_tokens=3,
        on_partial=parts.append, progress=lambda *a: told.append(a), **options,
    )  # fmt: skip
    assert found.layers == (1, 2)
    assert np.array_equal(found.implicit, texts[1][1].routes)
    assert np.array_equal(found.explicit[:, 0], texts[0][1].task)
    assert np.array_equal(found.explicit[:, 1], found.implicit[:, 1])
    assert found.explicit[0, 0] == pytest.approx(found.implicit[0, 0]), "both start from the base"
    assert found.explicit[-1, 0] < found.implicit[-1, 0], "what is tuned falls faster"
    assert found.solved[0, 0]
    assert found.solved[1, 1]
    assert found.solved[0, 1] == found.solved[1, 0] == (texts[0][0] == texts[1][0])
    assert told == [(1, 2), (2, 2)]
    assert len(parts) == 1
    assert np.isnan(parts[0].explicit[:, 0]).all()
    assert np.isfinite(parts[0].explicit[:, 1]).all()
    assert len(found.to_frame()) == 6


def test_overlap_counts_every_problem_once(tmp_path: Path) -> None:
    solved = np.array([[1, 1, 0, 0, 1], [1, 0, 0, 0, 1], [1, 1, 1, 0, 1]], dtype=bool)
    found = LateLayerLosses((3, 4, 5), np.zeros((2, 3)), np.zeros((2, 3)), solved)
    overlap = found.overlap()
    assert overlap == {(): 1, (3,): 0, (4,): 0, (5,): 1, (3, 4): 0, (3, 5): 1, (4, 5): 0, (3, 4, 5): 2}
    assert sum(overlap.values()) == 5
    assert np.allclose(found.accuracy, [0.6, 0.4, 0.8])
    assert LateLayerLosses.load(found.save(tmp_path / "x")).equals(found)
    assert np.isnan(LateLayerLosses((5,), np.zeros((2, 1)), np.zeros((2, 1)), np.zeros((1, 0), bool)).accuracy).all()


@pytest.mark.seconds
def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"k must be an int in 1\.\.3"):
        late_layer_losses(tiny_folder("llama"), DATA, k=4)
    with pytest.raises(ValueError, match="the data set is empty"):
        late_layer_losses(tiny_folder("llama"), [])
