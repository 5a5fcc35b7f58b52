"""Sets of parts removed together, beside random sets, against the context manager."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import Ablation, ablation, ablation_null, mean_ablation
from interp_widgets.analysis.patching import AblationNullResult
from interp_widgets.models import Model
from tests.models.tiny import HALF_SEED, tiny_model

PROMPTS = [[3, 17, 42, 8, 5, 30], [9, 11, 200, 8, 77]]
TARGET = 7
HEADS = [(0, 1), (1, 2), (1, 3)]


def model(family: str = "llama", backend: Any = "bridge") -> Model:
    tiny: Model = tiny_model(family, backend, dtype=torch.float64)
    return tiny


def log_prob(model: Model, ids: list[int]) -> float:
    return float(model.run(ids).logits[0, -1].log_softmax(-1)[TARGET])


def parts_of(names: tuple[str, ...]) -> list[Ablation]:
    """From ``kind layer.index at position``."""
    parts = []
    for name in names:
        kind, number, *rest = name.split()
        layer, _, index = number.partition(".")
        position = int(rest[1]) if rest else None
        parts.append(Ablation(kind, int(layer), position, int(index) if index else None))  # type: ignore[arg-type]
    return parts


@pytest.mark.parametrize(
    ("family", "backend"),
    [pytest.param("gpt2", "hooked", marks=pytest.mark.hooked), ("llama", "bridge"), ("gemma2", "bridge")],
)
@pytest.mark.parametrize("parts", [
    HEADS,
    [Ablation("attn", 1, 2), Ablation("mlp", 0, 3), Ablation("mlp", 0, 1)],
    [Ablation("neuron", 1, index=5), Ablation("neuron", 1, index=9), Ablation("both", 2, -0)],
], ids=["heads", "cells", "neurons"])  # fmt: skip
def test_every_set_is_what_the_context_manager_removes(family: str, backend: Any, parts: Any) -> None:
    tiny = model(family, backend)
    if tiny.capabilities.mlp_neurons is False and not isinstance(parts[0], tuple) and parts[0].kind == "neuron":
        pytest.skip("no single neurons")
    found = ablation_null(tiny, PROMPTS, parts, TARGET, draws=4, batch_size=2)
    assert len(found.drawn) == 4
    for names, effects in zip([found.parts, *found.drawn], [found.each, *found.each_null], strict=True):
        for ids, effect in zip(PROMPTS, effects, strict=True):
            with ablation(tiny, parts_of(tuple(names))):
                after = log_prob(tiny, ids)
            assert effect == pytest.approx(log_prob(tiny, ids) - after, abs=1e-4)
    assert found.effect == pytest.approx(found.each.mean())
    assert found.null == pytest.approx(found.each_null.mean(1))
    assert found.p == (1 + (found.null >= found.effect).sum()) / 5
    layers = [part.split()[1].split(".")[0] for part in found.parts]
    assert all([part.split()[1].split(".")[0] for part in names] == layers for names in found.drawn)


def test_half_precision() -> None:
    """In bfloat16 it is that in single precision, to its rounding."""
    ids, found = [3, 17, 42, 8, 5, 30], []
    for dtype in (torch.float32, torch.bfloat16):
        model = tiny_model("llama", "bridge", seed=HALF_SEED, dtype=dtype)
        found.append(ablation_null(model, [ids], parts=[(0, 1), (1, 2)], target=7, draws=5))
    single, half = found
    assert np.abs(single.null).max() > 0.1
    assert half.effect == pytest.approx(single.effect, abs=0.05)
    assert half.null == pytest.approx(single.null, abs=0.05)


def test_where_there_are_few_sets_each_is_drawn_once() -> None:
    found = ablation_null(model(), PROMPTS[0], [(0, 1), (0, 2)], TARGET, draws=100)
    assert found.possible == 6
    sets = {frozenset(names) for names in found.drawn}
    assert len(found.drawn) == len(sets) == 5
    assert frozenset(found.parts) not in sets
    best = int(np.argmax(found.null))
    again = ablation_null(model(), PROMPTS[0], parts_of(tuple(found.drawn[best])), TARGET, draws=100)
    assert again.p == pytest.approx(1 / 6 if found.null[best] > found.effect else 2 / 6)


def test_any_layer_and_means() -> None:
    found = ablation_null(model(), PROMPTS, HEADS, TARGET, draws=30, matched="model", seed=1)
    assert len({part for names in found.drawn for part in names}) == 12
    other = ablation_null(model(), PROMPTS, HEADS, TARGET, draws=30, matched="model", seed=2)
    assert found.drawn != other.drawn
    same = ablation_null(model(), PROMPTS, HEADS, TARGET, draws=30, matched="model", seed=1)
    assert found.drawn == same.drawn
    reference = [[5, 9, 31], [12, 40]]
    meant = ablation_null(
        model(), PROMPTS[0], [(1, 2)], TARGET, draws=2, replacement="mean", reference=reference, prepend_bos=False
    )
    mean = mean_ablation(model(), Ablation("head", 1, index=2), reference)
    with ablation(model(), mean):
        after = log_prob(model(), PROMPTS[0])
    assert meant.effect == pytest.approx(log_prob(model(), PROMPTS[0]) - after, abs=1e-4)


def test_the_result_is_a_table_and_a_file(tmp_path: Path) -> None:
    found = ablation_null(model(), PROMPTS, HEADS, [TARGET, 9], draws=8)
    assert found.targets == (TARGET, 9)
    frame = found.to_frame()
    assert frame["named"].sum() == 1
    assert frame["effect"][0] == found.effect
    assert found.band[0] <= float(np.median(found.null)) <= found.band[1]
    assert AblationNullResult.load(found.save(tmp_path / "x")).equals(found)
    assert found.measures()["p"] == found.p


def bad_calls() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"parts": []}, "parts is empty"
    yield {"parts": [(0, 4)]}, "head must be in"
    yield {"parts": [(3, 0)]}, "layer must be in"
    yield {"parts": [(0, 1), (0, 1)]}, "parts must be different"
    yield {"parts": [(0, 1, 2)]}, "must be \\(layer, head\\) or an Ablation"
    yield {"parts": [Ablation("head", 0, index=0, value=np.zeros(8))]}, "no value of its own"
    yield {"parts": [Ablation("attn", 0)]}, "only one set .* matched='model'"
    yield {"parts": [(0, head) for head in range(4)]}, "only one set"
    yield {"parts": [Ablation("attn", 0, [1, 2])]}, "name one part for each position"
    yield {"parts": [Ablation("attn", 0, 9)]}, "position must be in"
    yield {"parts": [Ablation("both", 0, 1), Ablation("attn", 1, 1)]}, "hold attention and MLP"
    yield {"parts": [Ablation("head", 0, 1, 1), Ablation("head", 0, 2, 1)]}, "at the same positions"
    yield {"draws": 0}, "draws must be"
    yield {"matched": "size"}, "matched must be"
    yield {"replacement": "mean"}, "needs reference="
    yield {"metric": "logit_difference"}, "needs a foil"
    yield {"prompts": []}, "the list of prompts is empty"


@pytest.mark.parametrize(("changes", "message"), list(bad_calls()))
def test_bad_input_gets_one_sentence(changes: dict[str, Any], message: str) -> None:
    call = {"prompts": PROMPTS, "parts": HEADS, **changes}
    with pytest.raises(ValueError, match=message) as error:
        inspect.unwrap(ablation_null)(model(), **call)
    assert "\n" not in str(error.value)
