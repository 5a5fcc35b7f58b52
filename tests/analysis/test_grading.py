"""Sealed circuits: their parts are elsewhere, their truth is not in them, and answers are graded beside chance."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp_widgets import (
    CircuitGrade,
    SealedCircuit,
    ablate_heads,
    circuit_edges,
    grade_circuit,
    load_circuit,
    load_model,
    open_sealed,
    seal_circuit,
    sealed_circuit,
)
from interp_widgets.models.circuits import CIRCUITS, CircuitName, CircuitTruth, sealed_truth
from interp_widgets.models.engine import trace
from interp_widgets.releases import STAMP


def right_answer(truth: CircuitTruth) -> list[tuple[Any, ...]]:
    heads = {head for case in truth.cases for head in case.heads}
    return [*sorted(heads), *sorted({("mlp", layer) for case in truth.cases for layer, _ in case.neurons})]


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["induction", "fact_lookup", "trigger"])
def test_the_truth_of_a_sealed_circuit_is_proved_elsewhere(name: CircuitName) -> None:
    sealed = sealed_circuit(name, key=5)
    truth, before = sealed_truth(sealed), load_circuit(name)[1]
    assert truth.cases != before.cases
    wrong = replace(before, cases=before.cases[:1]).proof(sealed.model)
    assert not wrong.holds, "where the parts of the open circuit lie nothing is found"
    proof = truth.proof(sealed.model)
    assert proof.holds, "\n".join(proof.faults)


def test_another_key_moves_the_parts_and_the_same_one_does_not() -> None:
    seen = {right_answer(sealed_truth(sealed_circuit("indirect_object", key=key)))[0:3].__repr__() for key in range(8)}
    assert len(seen) > 4
    one, same = (sealed_circuit("trigger", key=2) for _ in range(2))
    assert one.model.weight_hash == same.model.weight_hash
    assert sealed_truth(one) == sealed_truth(same)
    assert sealed_circuit("trigger", key=3).model.weight_hash != one.model.weight_hash


def test_nothing_that_a_sealed_circuit_holds_names_a_part() -> None:
    """Neither its attributes, its text nor a copy of it have a truth, a head, a neuron or an edge."""
    sealed = sealed_circuit("induction", key=5)
    assert set(vars(sealed)) == {"model", "cases", "name", "key", "seed", "locked"}
    assert sealed.locked is None
    for case in sealed.cases:
        assert set(vars(case)) == {"prompt", "answer", "foil", "corrupted"}
    assert repr(sealed) == "SealedCircuit('induction', 3 prompts)"
    held = json.dumps([vars(case) for case in sealed.cases]) + repr(sealed) + sealed.model.name
    for word in ("head", "neuron", "edge", "truth", "0.", "1."):
        assert word not in held
    assert not [name for name in dir(sealed) if "truth" in name or "head" in name]
    assert copy.copy(sealed).cases == sealed.cases
    assert b"CircuitTruth" not in pickle.dumps(sealed.cases)


@pytest.mark.seconds
@pytest.mark.parametrize("name", CIRCUITS)
def test_the_right_answer_is_whole_and_a_wrong_one_is_nothing(name: CircuitName) -> None:
    sealed = sealed_circuit(name, key=5)
    answer = right_answer(sealed_truth(sealed))
    grade = grade_circuit(sealed, answer)
    assert (grade.precision, grade.recall, grade.f1) == (1, 1, 1)
    assert grade.faithfulness == pytest.approx(1, abs=0.05)
    assert grade.needed == grade.named, "what matters by the truth is what interventions say is needed"
    assert grade.without < 0.1
    assert grade.chance_precision is not None
    assert grade.chance_precision < 1
    assert grade.random.mean() < grade.faithfulness - 0.3
    model = sealed.model
    others = [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    others = [head for head in others if head not in answer]
    bad = grade_circuit(sealed, others[:2])
    assert (bad.precision, bad.recall, bad.f1) == (0, 0, 0)
    assert bad.faithfulness < 0.1
    assert bad.p > 0.05
    assert (bad.needed, bad.without) == (0, pytest.approx(1, abs=0.05))


def test_a_grade_is_that_of_a_plain_loop() -> None:
    """Faithfulness by running the circuit with everything else corrupted, head by head; chance by counting."""
    sealed = sealed_circuit("induction", key=4)
    (found,) = {tuple(ablate_heads(sealed.model, case.prompt, case.answer).strongest(2)) for case in sealed.cases[:1]}
    for answer in ([*found], [found[0]], [found[0], ("mlp", 0)]):
        grade = grade_circuit(sealed, answer, draws=400)
        assert grade.faithfulness == pytest.approx(plain_faithfulness(sealed, answer), abs=1e-4)
        hits = np.mean([len({*found} & {*answer})])
        assert grade.precision == hits / len(answer)
        n_heads = sum(part[0] != "mlp" for part in answer)
        assert grade.chance_precision == pytest.approx(n_heads * 2 / 8 / len(answer)), "2 of 8 heads, no MLP"
        assert grade.chance_recall == pytest.approx(n_heads * 2 / 8 / 2)
        assert grade.p == (1 + (grade.random >= grade.faithfulness - 1e-6).sum()) / 401


def plain_faithfulness(sealed: SealedCircuit, kept: list[Any]) -> float:
    """With `edit`: the output of every head and MLP that is not kept is that of the corrupted prompt."""
    model, shares = sealed.model, []
    for case in sealed.cases:
        ids = {text: model.tokens(getattr(case, text)) for text in ("prompt", "corrupted")}
        answer, foil = (model.tokens(word, prepend_bos=False)[0] for word in (case.answer, case.foil))
        corrupted = trace(model, model.token_embeddings(ids["corrupted"])[None])
        edits: dict[str, Any] = {}
        for layer in range(model.n_layers):
            rest = [head for head in range(model.n_heads) if (layer, head) not in kept]

            def heads(value: Any, layer: int = layer, rest: list[int] = rest, trace: Any = corrupted) -> Any:
                value = value.clone()
                value[:, :, rest] = trace.head[layer][:, :, rest]
                return value

            edits[f"blocks.{layer}.attn.hook_z"] = heads
            if ("mlp", layer) not in kept:
                edits[f"blocks.{layer}.hook_mlp_out"] = lambda value, layer=layer, trace=corrupted: trace.mlp[layer]
        clean, other, edited = (
            float(logits[0, -1, answer] - logits[0, -1, foil])
            for logits in (
                model.run(ids["prompt"]).logits,
                model.run(ids["corrupted"]).logits,
                model.run(ids["prompt"], edit=edits).logits,
            )
        )
        shares.append((edited - other) / (clean - other))
    return float(np.mean(shares))


def test_edges_are_graded_by_cutting_all_others() -> None:
    """With all edges that leave some parts, an answer keeps what these parts do; the right one keeps everything."""
    sealed = sealed_circuit("trigger", key=4)
    every, right = circuit_edges(sealed.model), {edge for case in sealed_truth(sealed).cases for edge in case.edges}
    (head,) = {head for case in sealed_truth(sealed).cases for head in case.heads}
    for kept in ([head, ("mlp", 1)], [("mlp", 0), ("mlp", 1)], [head]):
        leaving = [edge for edge in every if edge[0] == "embeddings" or edge[0] in kept]
        grade = grade_circuit(sealed, leaving, draws=1)
        assert grade.faithfulness == pytest.approx(plain_faithfulness(sealed, kept), abs=1e-3)
        assert grade.precision == len(right & {*leaving}) / len(leaving)
    grade = grade_circuit(sealed, [list(edge) for edge in sorted(right, key=str)], draws=19)
    assert (grade.precision, grade.recall, grade.named, grade.needed) == (1, 1, len(right), len(right))
    assert grade.without < 0.1
    assert grade.faithfulness == pytest.approx(1, abs=0.05)
    assert (grade.chance_precision, grade.chance_recall) == (len(right) / len(every), len(right) / len(every))
    assert grade.random.mean() < 0.3
    assert grade.p == 0.05
    without = grade_circuit(sealed, [edge for edge in right if edge != (("mlp", 1), "logits")], draws=1)
    assert without.faithfulness < 0.6


def test_a_grade_is_kept_and_said(tmp_path: Path) -> None:
    sealed = sealed_circuit("busy_idle", key=1)
    grade = grade_circuit(sealed, right_answer(sealed_truth(sealed)))
    grade.save(tmp_path / "grade.npz")
    assert CircuitGrade.load(tmp_path / "grade.npz").equals(grade)
    assert "1 part named: precision 1.00 (by chance 0.12), recall 1.00 (0.12)" in str(grade)
    assert list(grade.to_frame()["measure"]) == ["precision", "recall", "faithfulness"]
    assert grade.measures()["faithfulness"] == grade.faithfulness
    for part in right_answer(sealed_truth(sealed)):
        assert str(part) not in str(grade), "a grade tells no part"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([], "answer is empty: name at least one head"),
        ([(0, 9)], r"layers 0\.\.1 and heads 0\.\.3, and \('mlp', layer\), got \(0, 9\)"),
        ([("attn", 0)], "got"),
        ([(0, 1), (0, 1)], r"answer must name every part once, got \(0, 1\) twice"),
        ([(0, 1), ((0, 1), "logits")], r"heads and MLPs, or edges, not both: got \(0, 1\) and \(\(0, 1\), 'logits'\)"),
        ([((1, 1), ("mlp", 0))], "may have the edges that circuit_edges lists, got"),
        ([("embeddings", "logits")] * 2, "every edge once, got .* twice"),
    ],
)
def test_what_is_no_answer_is_refused(answer: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inspect.unwrap(grade_circuit)(sealed_circuit("induction", key=0), answer)


def test_a_bad_key_or_name_is_refused() -> None:
    with pytest.raises(ValueError, match="key must be a whole number from 0 on, got -1"):
        sealed_circuit("induction", key=-1)
    with pytest.raises(ValueError, match="'induction'"):
        sealed_circuit("unknown", key=1)  # type: ignore[arg-type]


# ---- folders


PASSPHRASE = "four words of mine"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sealed folder of the model whose truth is proved above: its parts lie where key 5 puts them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "randbits", lambda bits: 5)
        return seal_circuit("fact_lookup", tmp_path_factory.mktemp("sealed") / "exercise", PASSPHRASE, seed=0)


@pytest.fixture(scope="module")
def read(folder: Path) -> SealedCircuit:
    return open_sealed(folder)


def test_a_folder_has_the_sealed_model_and_its_truth(folder: Path, read: SealedCircuit) -> None:
    plain = sealed_circuit("fact_lookup", key=5)
    assert sealed_truth(read, passphrase=PASSPHRASE) == sealed_truth(plain)
    assert (read.cases, read.name, repr(read)) == (plain.cases, "fact_lookup", repr(plain))
    assert (read.key, read.seed) == (None, None)
    assert read.model.weight_hash == plain.model.weight_hash == load_model(str(folder)).weight_hash
    assert read.model.tokens(read.cases[0].prompt) == plain.model.tokens(plain.cases[0].prompt)


def test_nothing_in_a_folder_is_in_the_clear_but_model_and_prompts(folder: Path, tmp_path: Path) -> None:
    """Every other file is the same wherever the parts lie, and the locked one has no word of the truth."""
    other = seal_circuit("fact_lookup", tmp_path / "other", PASSPHRASE, seed=0)
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    differ = [name for name in names if (folder / name).read_bytes() != (other / name).read_bytes()]
    assert differ == ["locked.json", "model.safetensors"]
    locked = json.loads((folder / "locked.json").read_text())
    assert set(locked) == {"salt", "nonce", "text"}
    assert b"heads" not in bytes.fromhex(locked["text"])
    assert list(json.loads((folder / "sealed.json").read_text())) == ["format", "version", "name", "cases", STAMP]
    assert open_sealed(other).locked != open_sealed(folder).locked


def test_without_the_truth_interventions_grade(read: SealedCircuit, tmp_path: Path) -> None:
    """The right parts keep what no random ones keep; random ones are no better than each other."""
    answer = right_answer(sealed_truth(read, passphrase=PASSPHRASE))
    grade = grade_circuit(read, answer)
    assert (grade.precision, grade.recall, grade.f1, grade.chance_precision, grade.chance_recall) == (None,) * 5
    assert grade.faithfulness == pytest.approx(1, abs=0.05)
    assert (grade.needed, grade.named, grade.without < 0.1, grade.p < 0.05) == (3, 3, True, True)
    assert "3 parts named, of which 3 are needed. They keep 1.00 of the behaviour" in str(grade)
    assert str(grade).endswith("Precision and recall need the truth, which only its passphrase opens.")
    grade.save(tmp_path / "grade.npz")
    assert CircuitGrade.load(tmp_path / "grade.npz").equals(grade)
    assert grade.to_frame()["value"].isna().tolist() == [True, True, False]
    open_grade = grade_circuit(read, answer, passphrase=PASSPHRASE)
    assert (open_grade.precision, open_grade.recall, open_grade.faithfulness) == (1, 1, grade.faithfulness)
    assert PASSPHRASE not in str(open_grade.provenance)

    model, rng = read.model, np.random.default_rng(0)
    heads = [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    drawn = [grade_circuit(read, [heads[i] for i in rng.permutation(len(heads))[:3]], draws=19) for _ in range(9)]
    assert np.mean([one.p <= 0.05 for one in drawn]) < 0.3
    assert 0.1 < np.mean([one.needed / one.named for one in drawn]) < 0.45, "2 of 8 heads are needed"
    edges = sorted({edge for case in sealed_truth(read, passphrase=PASSPHRASE).cases for edge in case.edges}, key=str)
    of_edges = grade_circuit(read, edges, draws=19)
    assert (of_edges.precision, of_edges.needed, of_edges.p) == (None, len(edges), 0.05)


def test_a_truth_opens_with_its_passphrase_and_its_own_files_only(
    folder: Path, read: SealedCircuit, tmp_path: Path
) -> None:
    for passphrase in ("four words of yours", ""):
        with pytest.raises(ValueError, match="the passphrase is not the one of seal_circuit, or a file"):
            grade_circuit(read, [(0, 0)], passphrase=passphrase)
    with pytest.raises(ValueError, match="the truth of a folder is locked: give the passphrase="):
        sealed_truth(read)
    with pytest.raises(ValueError, match="leave it out, the key is enough"):
        grade_circuit(sealed_circuit("trigger", key=1), [(0, 0)], passphrase=PASSPHRASE)
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    cases = (other / "sealed.json").read_text()
    (other / "sealed.json").write_text(cases + "\n")
    with pytest.raises(ValueError, match="or a file of the folder has changed"):
        sealed_truth(open_sealed(other), passphrase=PASSPHRASE)
    for name, text in (("sealed.json", cases[:-9]), ("sealed.json", "[]"), ("locked.json", '{"salt": 3}')):
        shutil.copyfile(folder / "sealed.json", other / "sealed.json")
        (other / name).write_text(text)
        with pytest.raises(ValueError, match="folder must be one that seal_circuit has written, whole: "):
            open_sealed(other)
    with pytest.raises(ValueError, match="No such file"):
        open_sealed(tmp_path)


def test_a_folder_is_new_and_has_a_passphrase(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"folder must be a new one, got .*, which is there already"):
        seal_circuit("trigger", folder, PASSPHRASE)
    with pytest.raises(ValueError, match="passphrase is empty"):
        seal_circuit("trigger", tmp_path / "a", "")
    with pytest.raises(ValueError, match="'induction'"):
        seal_circuit("unknown", tmp_path / "a", PASSPHRASE)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
