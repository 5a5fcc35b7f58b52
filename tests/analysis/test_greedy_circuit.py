"""Circuits against loops over transformers, and by their identities."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import circuit_faithfulness, greedy_circuit
from interp_widgets.analysis.patching import CircuitFaithfulness, CircuitResult
from tests.analysis.test_patching import ANSWER, CLEAN, CORRUPTED, FOIL, MODELS, gap, loaded
from tests.analysis.test_path_patching import put, written
from tests.architectures.functions import reference
from tests.architectures.models import LAYERS
from tests.architectures.naive import Hook, Naive
from tests.models.tiny import HALF_SEED, tiny_model

OTHERS = [[9, 11, 20, 8, 52, 30], [9, 11, 47, 8, 33, 30]]


def with_only(naive: Naive, heads: int, kept: Sequence[str]) -> float:
    """The logit difference where all parts but these have their corrupted values."""
    hooks: list[Hook] = []
    for layer in range(LAYERS):
        module, size = naive.part(layer, str(naive.names.attention)), naive.size(layer)
        (z,) = naive.values(CORRUPTED, [(module, True)])
        for head in range(heads):
            if f"head {layer}.{head}" not in kept:
                part = slice(head * size, (head + 1) * size)
                hooks.append((module, put(part, z[:, part]), True))
        if f"mlp {layer}" not in kept:
            module = naive.part(layer, written(naive, "mlp"))
            (out,) = naive.values(CORRUPTED, [(module, False)])
            hooks.append((module, put(slice(None), out), False))
    return float(gap(naive.logits(CLEAN, hooks)))


def all_parts(heads: int) -> set[str]:
    return {f"mlp {layer}" for layer in range(LAYERS)} | {
        f"head {layer}.{head}" for layer in range(LAYERS) for head in range(heads)
    }


@pytest.mark.parametrize(("architecture", "backend"), MODELS)
def test_each_circuit_equals_a_loop_over_transformers(architecture: str, backend: str) -> None:
    naive, model = reference(architecture), loaded(architecture, backend)
    found = greedy_circuit(model, CLEAN, CORRUPTED, ANSWER, foil=FOIL, most=3, draws=2, batch_size=5)
    ends = [float(gap(naive.logits(ids))) for ids in (CLEAN, CORRUPTED)]
    rest = all_parts(model.n_heads)
    assert found.candidates == len(rest)
    for size in range(4):
        kept = found.parts[:size]
        for parts, share in ((kept, found.faithfulness), (tuple(rest - set(kept)), found.without)):
            wanted = (with_only(naive, model.n_heads, parts) - ends[1]) / (ends[0] - ends[1])
            assert share[size] == pytest.approx(wanted, abs=1e-3 * max(1.0, abs(wanted)))
    # greedy: no other part would have brought back more at the first step
    first = [with_only(naive, model.n_heads, (part,)) for part in sorted(rest)]
    sign = np.sign(ends[0] - ends[1])
    best = sign * with_only(naive, model.n_heads, found.parts[:1])
    assert best == pytest.approx(max(sign * value for value in first), abs=1e-3 * max(map(abs, first)))


def test_the_whole_model_is_faithful_and_without_it_nothing_is() -> None:
    model = loaded("llama", "bridge")
    found = greedy_circuit(model, CLEAN, CORRUPTED, ANSWER, foil=FOIL, parts="mlp", most=LAYERS, draws=3)
    assert sorted(found.parts) == [f"mlp {layer}" for layer in range(LAYERS)]
    assert found.faithfulness[-1] == found.without[0] == 1.0
    assert found.without[-1] == pytest.approx(found.faithfulness[0])
    assert found.random[:, -1] == pytest.approx(1.0), "with every part, each random circuit is the model too"
    assert found.p[-1] == 1.0
    assert found.heads == (-1,) * LAYERS


def test_pairs_are_held_out_and_means_are_over_the_rest() -> None:
    model = loaded("llama", "bridge")
    clean, corrupted = [CLEAN, OTHERS[0]], [CORRUPTED, OTHERS[1]]
    options: Any = {"foil": FOIL, "most": 2, "draws": 4, "metric": "logit_difference"}
    alone = greedy_circuit(model, clean[0], corrupted[0], ANSWER, **options)
    other = greedy_circuit(model, clean[1], corrupted[1], ANSWER, **options)
    found = greedy_circuit(model, clean, corrupted, ANSWER, held_out=1, **options)
    assert found.parts == alone.parts, "chosen on the first pair"
    assert (found.clean, found.corrupted) == (other.clean, other.corrupted), "measured on the second"
    assert found.held_out == 1
    both = greedy_circuit(model, clean, corrupted, ANSWER, **options)
    ends = both.clean.mean(), both.corrupted.mean()
    assert both.faithfulness == pytest.approx((both.each.mean(0) - ends[1]) / (ends[0] - ends[1]))


def test_random_circuits_have_the_same_kinds_of_parts_and_follow_the_seed() -> None:
    model = loaded("llama", "bridge")
    options: Any = {"foil": FOIL, "most": 3, "draws": 5}
    found = greedy_circuit(model, CLEAN, CORRUPTED, ANSWER, **options)
    assert found.equals(greedy_circuit(model, CLEAN, CORRUPTED, ANSWER, **options))
    other = greedy_circuit(model, CLEAN, CORRUPTED, ANSWER, seed=1, **options)
    assert other.parts == found.parts
    assert not np.array_equal(other.random, found.random)
    assert (found.random[:, 0] == found.faithfulness[0]).all()
    assert found.p == pytest.approx((1 + (found.random >= found.faithfulness).sum(0)) / 6)


def test_half_precision() -> None:
    """In bfloat16 the search finds parts that are as good in single precision, to its rounding."""
    single, half = (
        tiny_model("llama", "bridge", seed=HALF_SEED, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)
    )
    change = single.run(CLEAN).logits[0, -1] - single.run(CORRUPTED).logits[0, -1]
    question: Any = (CLEAN, CORRUPTED)
    answer, foil = int(change.argmax()), int(change.argmin())
    found = [greedy_circuit(model, *question, answer, foil=foil, most=3, draws=2) for model in (single, half)]
    assert np.abs(found[0].faithfulness[1:]).max() > 0.1
    for size in range(1, 4):
        parts = found[1].parts[:size]
        same = circuit_faithfulness(single, *question, parts, answer, foil=foil, draws=2).faithfulness
        assert found[1].faithfulness[size] == pytest.approx(same, abs=0.05)
    best = circuit_faithfulness(single, *question, found[1].parts[:1], answer, foil=foil, draws=2).faithfulness
    assert best == pytest.approx(found[0].faithfulness[1], abs=0.05)


def test_the_circuit_so_far_is_the_start_of_the_whole() -> None:
    parts = list[CircuitResult]()
    options: Any = {"foil": FOIL, "most": 3, "draws": 4}
    whole = greedy_circuit(loaded("llama", "bridge"), CLEAN, CORRUPTED, ANSWER, on_partial=parts.append, **options)
    assert [(len(one.parts), one.partial) for one in (*parts, whole)] == [(1, True), (2, True), (3, False)]
    for size, one in enumerate(parts, 1):
        assert one.parts == whole.parts[:size]
        for name in ("faithfulness", "without", "random", "each"):
            np.testing.assert_array_equal(getattr(one, name), getattr(whole, name)[..., : size + 1])


def test_the_result_is_a_table_and_a_file(tmp_path: Path) -> None:
    found = greedy_circuit(loaded("llama", "bridge"), CLEAN, CORRUPTED, ANSWER, foil=FOIL, most=3, draws=5)
    frame = found.to_frame()
    assert frame["part"].tolist() == ["", *found.parts]
    assert CircuitResult.load(found.save(tmp_path / "x")).equals(found)
    assert found.measures()["size"] == 3
    top = float(found.faithfulness.max())
    assert found.smallest(top) == found.parts[: int(np.argmax(found.faithfulness >= top))]
    with pytest.raises(ValueError, match="no circuit of up to 3 parts"):
        found.smallest(top + 1)


def test_it_is_cancelled_and_counts_its_runs() -> None:
    model, seen = loaded("llama", "bridge"), list[tuple[int, int]]()
    options: Any = {"foil": FOIL, "most": 2, "draws": 3}
    greedy_circuit(model, CLEAN, CORRUPTED, ANSWER, progress=lambda *done: seen.append(done), **options)
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)

    class Cancelled(Exception):
        pass

    def cancel() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        greedy_circuit(model, CLEAN, CORRUPTED, ANSWER, check=cancel, **options)


@pytest.mark.parametrize(("architecture", "backend"), MODELS)
def test_a_named_circuit_equals_a_loop_over_transformers(architecture: str, backend: str) -> None:
    naive, model = reference(architecture), loaded(architecture, backend)
    names = ["head 0.1", "mlp 1", "head 1.0"]
    found = circuit_faithfulness(model, CLEAN, CORRUPTED, [(0, 1), ("mlp", 1), "1.0"], ANSWER, foil=FOIL, draws=2)
    assert list(found.parts) == names
    ends = [float(gap(naive.logits(ids))) for ids in (CLEAN, CORRUPTED)]
    rest = all_parts(model.n_heads) - set(names)
    for kept, share in ((names, found.faithfulness), (tuple(rest), found.without)):
        wanted = (with_only(naive, model.n_heads, kept) - ends[1]) / (ends[0] - ends[1])
        assert share == pytest.approx(wanted, abs=1e-3 * max(1.0, abs(wanted)))


def test_a_named_circuit_is_measured_as_in_the_search(tmp_path: Path) -> None:
    model = loaded("llama", "bridge")
    options: Any = {"foil": FOIL, "draws": 5, "seed": 3}
    whole = greedy_circuit(model, CLEAN, CORRUPTED, ANSWER, most=3, **options)
    found = circuit_faithfulness(model, CLEAN, CORRUPTED, whole.parts, ANSWER, **options)
    assert (found.faithfulness, found.without) == pytest.approx((whole.faithfulness[3], whole.without[3]))
    assert found.random == pytest.approx(whole.random[:, 3])
    assert [found.p, *found.band] == pytest.approx([whole.p[3], *whole.band[:, 3]])
    assert CircuitFaithfulness.load(found.save(tmp_path / "x")).equals(found)
    assert found.to_frame()["parts"].tolist() == [", ".join(whole.parts)]
    everything = circuit_faithfulness(model, CLEAN, CORRUPTED, sorted(all_parts(model.n_heads)), ANSWER, **options)
    assert (everything.faithfulness, everything.p) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"circuit": []}, "circuit is empty"),
        ({"circuit": ["head 0"]}, "a part of a circuit must be"),
        ({"circuit": ["attn 0"]}, "a part of a circuit must be"),
        ({"circuit": ["mlp 9"]}, "layer must be in"),
        ({"circuit": [(0, 9)]}, "head must be in"),
        ({"circuit": ["mlp 0", ("mlp", 0)]}, "circuit has mlp 0 twice"),
        ({"parts": "mlp"}, "head 0.1 is none of the parts that there are"),
        ({"corrupted": CORRUPTED[:-1]}, "equally many tokens"),
        ({"draws": 0}, "draws must be"),
    ],
)
def test_a_named_circuit_that_does_not_fit_gets_one_sentence(changes: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {"clean": CLEAN, "corrupted": CORRUPTED, "circuit": ["head 0.1"], "answer": ANSWER}
    with pytest.raises(ValueError, match=message) as error:
        circuit_faithfulness(loaded("llama", "bridge"), **{**call, "foil": FOIL, **changes})
    assert "\n" not in str(error.value)


def bad_calls() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"most": 0}, "most must be"
    yield {"most": 1000}, "most must be at most"
    yield {"draws": 0}, "draws must be"
    yield {"held_out": 1}, "held_out must leave a pair"
    yield {"parts": "neuron"}, "parts must be"
    yield {"layers": [LAYERS]}, "layer must be in"
    yield {"corrupted": CORRUPTED[:-1]}, "equally many tokens"
    yield {"corrupted": CLEAN}, "have the same tokens"
    yield {"foil": ANSWER}, "are the same token"
    yield {"metric": "loss"}, "metric must be"


@pytest.mark.parametrize(("changes", "message"), list(bad_calls()))
def test_bad_input_gets_one_sentence(changes: dict[str, Any], message: str) -> None:
    call = {"clean": CLEAN, "corrupted": CORRUPTED, "answer": ANSWER, "foil": FOIL, **changes}
    with pytest.raises(ValueError, match=message) as error:
        inspect.unwrap(greedy_circuit)(loaded("llama", "bridge"), **call)
    assert "\n" not in str(error.value)
