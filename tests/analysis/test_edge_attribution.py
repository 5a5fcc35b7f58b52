"""Estimates of edges against derivatives over transformers, by their identities, and beside real patches."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import activation_patching, circuit_edges, edge_attribution, load_circuit, path_patching
from interp_widgets.analysis.patching import EdgeAttributionResult, edge_attribution_cost
from tests.analysis.test_patching import ANSWER, CLEAN, CORRUPTED, FOIL, MODELS, gap, loaded
from tests.analysis.test_path_patching import SENDERS, by_two_steps
from tests.architectures.functions import reference

STEP = 1e-3
RECEIVERS: list[Any] = [("head_q", 1, 2), ("head_k", 1, 1), ("head_v", 1, 0), ("mlp", 1), "logits"]
OPTIONS: dict[str, Any] = {"foil": FOIL, "sample": 0}


@pytest.mark.parametrize(("architecture", "backend"), [MODELS[1], *MODELS[3:]])
def test_each_estimate_is_a_derivative_over_transformers(architecture: str, backend: str) -> None:
    """In float64: the change that the receiver reads, made small and of both signs. Llama and Gemma share keys."""
    naive, model = reference(architecture), loaded(architecture, backend)
    found = edge_attribution(model, CLEAN, CORRUPTED, ANSWER, senders=SENDERS, receivers=RECEIVERS, **OPTIONS)
    slopes = [
        [
            (by_two_steps(naive, one, other, STEP) - by_two_steps(naive, one, other, -STEP)) / (2 * STEP)
            for other in RECEIVERS
        ]
        for one in SENDERS
    ]
    ends = [gap(naive.logits(ids)) for ids in (CLEAN, CORRUPTED)]
    wanted = -torch.tensor(slopes) / (ends[0] - ends[1])
    assert found.estimated == pytest.approx(wanted.numpy(), abs=2e-3 * max(1.0, float(wanted.abs().max())))
    assert float(wanted.abs().max(0).values.min()) > 1e-4  # every receiver reads something


@pytest.mark.parametrize(("architecture", "backend"), [MODELS[2], MODELS[4], MODELS[6]])
def test_all_edges_of_a_sender_together_are_its_estimate(architecture: str, backend: str) -> None:
    model = loaded(architecture, backend)
    found = edge_attribution(model, CLEAN, CORRUPTED, ANSWER, **OPTIONS)
    whole = activation_patching(
        model, CLEAN, CORRUPTED, ANSWER, foil=FOIL, sites=("resid_pre", "head", "mlp"), direction="noising",
        method="attribution", sample=3,
    ).estimated  # fmt: skip
    lost = {"embeddings": 1 - whole["resid_pre"][0]}
    lost |= {f"mlp {layer}": 1 - row for layer, row in enumerate(whole["mlp"])}
    lost |= {f"head {layer}.{head}": 1 - whole["head"][layer, head] for layer in range(2) for head in range(4)}
    # behind the norm of Gemma's attention a head's change of the stream is not its gradient's
    senders = [name for name in found.senders if architecture != "gemma3" or not name.startswith("head")]
    wanted = [lost[name].sum() for name in senders]
    own = [found.estimated[found.senders.index(name)].sum() for name in senders]
    assert own == pytest.approx(wanted, abs=2e-3 * max(1, np.abs(wanted).max()))
    assert np.abs(wanted).max() > 0.1
    assert not found.estimated[~found.edges].any()


def test_integrated_gradients_are_complete() -> None:
    """The edges that leave the embeddings carry all of the difference; by the gradient at one end they need not."""
    model = loaded("llama", "bridge")
    options: dict[str, Any] = OPTIONS | {"senders": ["embeddings"], "receivers": None}
    many = edge_attribution(model, CLEAN, CORRUPTED, ANSWER, method="integrated_gradients", steps=40, **options)
    assert many.estimated.sum() == pytest.approx(1, abs=0.01)
    one = edge_attribution(model, CLEAN, CORRUPTED, ANSWER, **options)
    assert abs(one.estimated.sum() - 1) > 0.1
    patched = path_patching(model, CLEAN, CORRUPTED, ["embeddings"], many.receivers, ANSWER, foil=FOIL)
    assert patched.effect == pytest.approx([1], abs=1e-3), "and patched they are the corrupted run"


def test_exact_where_the_model_is_linear_and_blind_where_it_is_saturated() -> None:
    """The hand-written circuit is linear but for its softmax: an edge to the logits, or to a value of the last layer,
    is estimated exactly; that to the key by which the induction head finds its word has an estimate of 0."""
    model, truth = load_circuit("induction")
    case = truth.cases[0]
    linear: list[Any] = ["logits", *(("head_v", 1, head) for head in range(4)), ("head_k", 1, 1)]
    senders = list(dict.fromkeys(sender for sender, _ in circuit_edges(model)))
    call: Any = (case.answer,)
    found = edge_attribution(
        model, case.prompt, case.corrupted, *call, foil=case.foil, senders=senders, receivers=linear, sample=0
    )
    real = path_patching(
        model, case.prompt, case.corrupted, senders, linear, *call, foil=case.foil, separate=True
    ).paths  # fmt: skip
    assert real is not None
    assert found.estimated[:, :-1] == pytest.approx(real[:, :-1], abs=1e-3)
    assert real[:, :-1].max() > 0.9
    at = senders.index((0, 0))
    assert real[at, -1] > 0.9
    assert abs(found.estimated[at, -1]) < 0.01


def test_the_sample_is_patched_for_real_and_tells_how_good_the_estimate_is(tmp_path: Path) -> None:
    model = loaded("gpt2", "bridge")
    found = edge_attribution(model, CLEAN, CORRUPTED, ANSWER, foil=FOIL, sample=9)
    exact = path_patching(
        model, CLEAN, CORRUPTED, found.senders, found.receivers, ANSWER, foil=FOIL, separate=True
    ).paths  # fmt: skip
    assert exact is not None
    known = np.isfinite(found.patched)
    assert known.sum() == 9
    assert found.edges[known].all()
    assert found.patched[known] == pytest.approx(exact[known], abs=1e-6)
    assert found.correlation() == pytest.approx(np.corrcoef(found.estimated[known], exact[known])[0, 1])
    assert not exact[~found.edges].any()
    assert np.corrcoef(found.estimated[found.edges], exact[found.edges])[0, 1] > 0.7
    (sender, receiver), *_ = found.strongest(3)
    at = found.senders.index(sender), found.receivers.index(receiver)
    assert np.abs(found.estimated).max() == abs(found.estimated[at]) == abs(found.measures()["estimated"])  # type: ignore[arg-type]
    frame = found.to_frame()
    assert len(frame) == found.edges.sum()
    assert frame["patched"].notna().sum() == 9
    assert EdgeAttributionResult.load(found.save(tmp_path / "x")).equals(found)


def test_pairs() -> None:
    model = loaded("llama", "bridge")
    corrupted = [CORRUPTED, [3, 17, 11, 8, 5, 30], [3, 17, 12, 8, 5, 30]]
    call: dict[str, Any] = OPTIONS | {"senders": SENDERS, "receivers": RECEIVERS}
    found = edge_attribution(model, [CLEAN] * 3, corrupted, ANSWER, **call)
    one = edge_attribution(model, CLEAN, corrupted[1], ANSWER, **call)
    assert found.each[1] == pytest.approx(one.estimated, abs=1e-5)
    assert found.estimated == pytest.approx(found.each.mean(0))
    assert one.low is None
    assert found.low is not None
    assert found.high is not None
    assert (found.low <= found.estimated + 1e-6).all()
    assert (found.estimated <= found.high + 1e-6).all()


def bad_calls() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"senders": []}, "senders is empty"
    yield {"senders": ["embeddings", "embeddings"]}, "senders must be different, got embeddings twice"
    yield {"senders": [("embeddings", 0)]}, "a sender must be one of .*'embeddings'"
    yield {"receivers": [("head_k", 1, 2)]}, "key/value head must be in"
    yield {"senders": [(1, 0)], "receivers": [("mlp", 0)]}, "there is no path from head 1.0"
    yield {"corrupted": CORRUPTED[:5]}, "must have equally many tokens"
    yield {"corrupted": CLEAN}, "have the same tokens"
    yield {"metric": "kl", "foil": None}, "edge_attribution cannot estimate metric='kl'"
    yield {"method": "exact"}, "method must be"
    yield {"steps": 0}, "steps must be"
    yield {"sample": -1}, "sample must be"


@pytest.mark.parametrize(("changes", "message"), list(bad_calls()))
def test_bad_input_gets_one_sentence(changes: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {"clean": CLEAN, "corrupted": CORRUPTED, "answer": ANSWER, "foil": FOIL}
    with pytest.raises(ValueError, match=message) as error:
        inspect.unwrap(edge_attribution)(loaded("llama", "bridge"), **{**call, **changes})
    assert "\n" not in str(error.value)


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(ValueError, match=r"edge_attribution needs .*which MambaForCausalLM does not have"):
        edge_attribution(loaded("mamba", "bridge"), CLEAN, CORRUPTED, ANSWER)


def test_the_forecast_grows_with_what_is_computed() -> None:
    model = loaded("llama", "bridge")
    one = edge_attribution_cost(model, 20)
    assert edge_attribution_cost(model, 40).flops > 2 * one.flops
    assert edge_attribution_cost(model, 20, pairs=10).flops == pytest.approx(10 * one.flops)
    assert edge_attribution_cost(model, 20, sample=0).flops < one.flops
    assert edge_attribution_cost(model, 20, receivers=["logits"], sample=0).flops < one.flops / 2
    none = edge_attribution_cost(model, 20, sample=0)
    steps = edge_attribution_cost(model, 20, method="integrated_gradients", steps=8, sample=0)
    assert 4 * none.flops < steps.flops < 8 * none.flops
    assert all(cost.bytes > 0 for cost in (one, none, steps))
