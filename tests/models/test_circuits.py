"""The truth of every circuit is proved by exhaustive ablation, and a wrong truth is not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from interp_widgets import CircuitTruth, Model, circuit_edges, load_circuit, load_model, path_patching
from interp_widgets.models.circuits import CIRCUITS, PART_KINDS, CircuitName, leads_with_edges, save_circuits
from interp_widgets.models.circuits.truth import _interchanged, _rerouted

BACKENDS = [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"]


@cache
def circuit(name: CircuitName, backend: str = "auto", seed: int = 0) -> tuple[Model, CircuitTruth]:
    return load_circuit(name, backend=backend, seed=seed)  # type: ignore[arg-type]


def logits(model: Model, prompt: str) -> torch.Tensor:
    return model.run(model.tokens(prompt)).logits[0, -1]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "seed"), [pytest.param("hooked", 0, marks=pytest.mark.hooked), ("bridge", 1)])
@pytest.mark.parametrize("name", CIRCUITS)
def test_the_truth_is_what_ablation_finds(name: CircuitName, backend: str, seed: int) -> None:
    model, truth = circuit(name, backend, seed)
    assert model.backend == backend
    assert truth.name == name
    proof = truth.proof(model)
    assert proof.holds, "\n".join(proof.faults)
    assert proof.least_of_those_that_matter > 0.9
    assert proof.most_of_the_others < 0.08


@pytest.mark.parametrize("name", CIRCUITS)
def test_another_seed_has_other_weights_and_the_same_truth(name: CircuitName) -> None:
    (model, truth), (other, same) = circuit(name), circuit(name, seed=1)
    assert same == truth
    assert other.weight_hash != model.weight_hash
    for layer in range(model.n_layers):
        first, second = (each.run(each.tokens(truth.cases[0].prompt), capture=f"blocks.{layer}.hook_resid_pre")
                         .activations[f"blocks.{layer}.hook_resid_pre"] for each in (model, other))  # fmt: skip
        assert not torch.allclose(first, second, atol=0.1)


@pytest.mark.parametrize("name", CIRCUITS)
def test_the_answer_leads_and_the_corrupted_prompt_takes_its_lead(name: CircuitName) -> None:
    model, truth = circuit(name)
    for case in truth.cases:
        assert len(case.prompt.split()) == len(case.corrupted.split())
        answer, foil = (model.tokens(word, prepend_bos=False)[0] for word in (case.answer, case.foil))
        clean, corrupted = logits(model, case.prompt), logits(model, case.corrupted)
        assert clean[answer] > clean.max() - 0.5  # one of several in greater_than
        lead = float(clean[answer] - clean[foil])
        assert lead > 7
        assert float(corrupted[answer] - corrupted[foil]) < 0.1 * lead
        for kind in PART_KINDS:
            assert case.matters(kind, model).sum() == len(case.parts(kind))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"heads": ((0, 0),)}, "heads (1, 1) does not matter by the truth, but changes 1."),
        ({"heads": ((0, 0), (0, 1), (1, 1))}, "heads (0, 1) matters by the truth, but changes 0.0"),
        ({"tokens": (1, 6)}, "tokens (2,) does not matter by the truth, but changes"),
        ({"tokens": (1, 2, 3, 6)}, "tokens (3,) matters by the truth, but changes 0.0"),
        ({"neurons": ((1, 3),)}, "neurons (1, 3) matters by the truth, but changes 0.0"),
        (
            {"edges": (((1, 1), "logits"),)},
            "edges ((0, 0), ('head_k', 1, 1)) does not matter by the truth, but changes 1.",
        ),
        (
            {"edges": (((0, 0), ("head_q", 1, 1)),)},
            "edges ((0, 0), ('head_q', 1, 1)) matters by the truth, but changes",
        ),
        ({"corrupted": "beta eta psi rho mu xi eta"}, "'psi' leads by"),
    ],
    ids=[
        "a head too few",
        "a head too many",
        "a token too few",
        "a token too many",
        "a neuron",
        "an edge too few",
        "another edge",
        "not corrupted",
    ],
)
def test_a_wrong_truth_is_not_proved(change: dict[str, object], fault: str) -> None:
    model, truth = circuit("induction")
    wrong = replace(truth, cases=(replace(truth.cases[0], **change),))  # type: ignore[arg-type]
    proof = wrong.proof(model)
    assert not proof.holds
    assert any(fault in sentence for sentence in proof.faults), proof.faults


def test_without_pairs_a_backup_would_look_idle() -> None:
    """Each previous-token head alone changes nothing: only a pair shows that they matter."""
    model, truth = circuit("backup")
    case, previous = truth.cases[0], ((0, 0), (0, 2))
    edges = tuple(edge for edge in case.edges if edge[0] not in previous and edge[1][1:] not in previous)
    assert len(edges) == 2
    faults = " ".join(replace(truth, cases=(replace(case, heads=((1, 1),)),)).proof(model).faults)
    assert "heads (0, 0)" in faults
    assert "heads (0, 2)" in faults
    assert "(0, 1)" not in faults
    faults = " ".join(replace(truth, cases=(replace(case, edges=edges),)).proof(model).faults)
    for head in previous:
        assert f"edges ({head}, ('head_k', 1, 1)) does not matter by the truth" in faults
        assert f"edges ('embeddings', ('head_v', {head[0]}, {head[1]})) does not matter by the truth" in faults
    assert faults.count("edges") == 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_edges_that_leave_two_heads_carry_what_the_heads_do(backend: str) -> None:
    """Two senders in one run: with every receiver behind them the lead is that with both heads' outputs replaced."""
    model, truth = circuit("backup", backend)
    case, edges = truth.cases[0], circuit_edges(circuit("backup")[0])
    pairs = [((0, 0), (0, 2)), ((0, 1), (0, 2)), ((0, 2), (0, 3))]
    leaving = [[("edges", edge) for edge in edges if edge[0] in pair] for pair in pairs]
    both = [[("heads", head) for head in pair] for pair in pairs]
    np.testing.assert_allclose(_rerouted(model, case, leaving), _interchanged(model, case, both), atol=1e-3)  # type: ignore[arg-type]
    assert _rerouted(model, case, leaving)[0] < 1 < _rerouted(model, case, leaving)[1], "a pair that matters, one not"


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_edge_that_is_cut_is_its_path_patched(backend: str) -> None:
    """All edges kept are the clean run, none the corrupted one, and each alone cut what path patching measures."""
    model, truth = circuit("trigger", backend)
    case, edges = truth.cases[0], circuit_edges(model)
    kept = np.concatenate([[[True] * len(edges), [False] * len(edges)], ~np.eye(len(edges), dtype=bool)])
    clean, corrupted, *cut = leads_with_edges(model, case, kept)
    senders, receivers = (list(dict.fromkeys(ends)) for ends in zip(*edges, strict=True))
    found = path_patching(
        model, case.prompt, case.corrupted, senders, receivers, case.answer, foil=case.foil, separate=True
    )  # fmt: skip
    assert found.paths is not None
    wanted = [found.paths[senders.index(sender), receivers.index(receiver)] for sender, receiver in edges]
    assert (clean, corrupted) == pytest.approx((found.clean[0], found.corrupted[0]), abs=1e-3)
    assert (clean - np.array(cut)) / (clean - corrupted) == pytest.approx(wanted, abs=1e-3)
    assert max(wanted) > 0.9


def test_norms_are_the_identity_on_features() -> None:
    model, truth = circuit("fact_lookup")
    name = "blocks.0.hook_resid_pre"
    ids = model.tokens(truth.cases[0].prompt)
    stream = model.run(ids, capture=(name, "blocks.0.ln1.hook_normalized")).activations
    normed = stream["blocks.0.ln1.hook_normalized"]
    assert torch.allclose(stream[name].mean(-1), torch.zeros(len(ids)), atol=1e-5)
    ratio = normed.norm(dim=-1) / stream[name].norm(dim=-1)
    assert ratio.std() < 1e-5 * ratio.mean()


def test_no_feature_lies_on_an_axis() -> None:
    model, _ = circuit("trigger")
    rows = model.token_embeddings(list(range(2, 8))).detach()
    share = (rows.abs().amax(-1) ** 2 / (rows**2).sum(-1)).numpy()
    assert np.all(share < 0.2)


def test_a_proof_can_be_cancelled() -> None:
    model, truth = circuit("induction")

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        truth.proof(model, check=stop)


@pytest.mark.seconds
def test_checkpoints_are_the_circuits(tmp_path: Path) -> None:
    """`make circuits`: a folder loads as any other model, passes the check of a load, and says the same."""
    folders = save_circuits(tmp_path / "circuits")
    assert [folder.name for folder in folders] == list(CIRCUITS)
    for folder in folders[1], folders[4]:
        model, truth = circuit(folder.name)  # type: ignore[arg-type]
        prompt = truth.cases[0].prompt
        read = load_model(str(folder))
        assert read.tokens(prompt) == model.tokens(prompt)
        torch.testing.assert_close(logits(read, prompt), logits(model, prompt))
    with pytest.raises(OSError):
        save_circuits(tmp_path / "circuits")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'induction', .*'busy_idle'"):
        load_circuit("unknown")  # type: ignore[arg-type]
