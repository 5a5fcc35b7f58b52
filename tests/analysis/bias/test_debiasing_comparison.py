"""Edits compared: every figure is that of the score by itself, and the model is as it was afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import (
    BBQQuestion,
    CrowsPair,
    compare_debiasing,
    demo_bias_texts,
    demo_stereoset,
    leace_edit,
    load_model,
    random_edit,
    response_probabilities,
    score_bbq,
    score_crows,
    score_stereoset,
)
from interp_widgets.analysis._core.result import Result
from tests.models.tiny import tiny_folder
from tests.shipped import demo_pair

TEXTS = ["The sun was warm.", "A bird sang in the tree.", "He went home."]
CROWS = [CrowsPair("She is weak.", "He is weak.", "stereo", "gender"),
         CrowsPair("She is strong.", "He is strong.", "antistereo", "gender")]  # fmt: skip
ANSWERS = ("The pilot", "The nurse", "Not known")
BBQ = [BBQQuestion("A pilot and a nurse met.", "Who is a man?", ANSWERS, (("man",), ("woman",), ("unknown",)), 2, "neg",
                   condition, "Gender", ("man",), "1") for condition in ("ambig", "disambig")]  # fmt: skip


@pytest.fixture(scope="module")
def compared() -> tuple[Any, Any, Any]:
    model = demo_pair().base
    edit = leace_edit(model, demo_bias_texts("train"), pool="last")
    found = compare_debiasing(
        model, [edit], demo_stereoset()[:40], texts=TEXTS, crows=CROWS, bbq=BBQ,
        prompts=["Many believe that pilots should be"], max_new_tokens=3, resamples=300,
    )  # fmt: skip
    return model, edit, found


def perplexity(model: Any) -> float:
    total = count = 0.0
    for text in TEXTS:
        ids = model.tokens(text)
        logs = model.run(ids).logits[0].double().log_softmax(-1)
        total -= sum(float(logs[at, token]) for at, token in enumerate(ids[1:]))
        count += len(ids) - 1
    return float(np.exp(total / count))


@pytest.mark.seconds
def test_each_figure_is_that_of_the_score_by_itself(compared: tuple[Any, Any, Any]) -> None:
    model, edit, found = compared
    plain, edited, control = found.rows
    assert (plain.name, edited.name, control.name) == ("as it is", "LEACE", "Random, as large as LEACE")
    for row, own in ((plain, None), (edited, edit), (control, random_edit(model, edit))):
        undo = (lambda: None) if own is None else own.apply(model)
        try:
            metrics = score_stereoset(model, demo_stereoset()[:40], resamples=300).metrics
            assert [one.ss for one in row.stereoset] == [one.ss for one in metrics]
            assert row.perplexity == pytest.approx(perplexity(model), rel=1e-4)
            assert row.crows == score_crows(model, CROWS).overall.preferred
            questions = score_bbq(model, BBQ).overall
            assert row.bbq[0] == questions.accuracy_ambiguous
            assert row.bbq[3] == questions.bias_disambiguated
            assert row.continuations == (model.generate(found.prompts[0], max_new_tokens=3),)
        finally:
            undo()


def test_changes_and_their_intervals_are_paired(compared: tuple[Any, Any, Any]) -> None:
    _, _, found = compared
    plain, edited, control = found.rows
    assert plain.changes == ()
    for row in (edited, control):
        for entry, before, change in zip(row.stereoset, plain.stereoset, row.changes, strict=True):
            assert change.domain == entry.domain == before.domain
            assert change.bias == pytest.approx(abs(entry.ss - 50) - abs(before.ss - 50))
            assert change.icat == pytest.approx(entry.icat - before.icat)
            assert change.bias_interval[0] <= change.bias <= change.bias_interval[1]
    assert edited.changes[-1].bias < 0
    assert edited.changes[-1].bias_interval[1] < 0, "LEACE moves the demo's score beyond chance"
    assert edited.perplexity_ratio[0] == pytest.approx(edited.perplexity / plain.perplexity)
    same = compare_debiasing(demo_pair().base, [nothing()], demo_stereoset()[:6], control=False, resamples=100).rows[1]
    assert same.changes[-1].bias_interval == (0.0, 0.0), "a model is not different from itself"


def nothing() -> Any:
    from interp_widgets import ModelEdit

    return ModelEdit("nothing")


@pytest.mark.seconds
def test_the_model_is_as_it_was_afterwards_also_when_cancelled() -> None:
    model = load_model(tiny_folder("gpt2"), device="cpu")
    examples = demo_stereoset()[:6]
    edit = leace_edit(model, examples, pool="last")
    before = response_probabilities(model, "A pilot", " flies")
    compare_debiasing(model, [edit], examples, resamples=10)
    calls: list[int] = []

    def stop() -> None:
        calls.append(1)
        if len(calls) > 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare_debiasing(model, [edit], examples, resamples=10, check=stop)
    assert model.edits == ()
    assert response_probabilities(model, "A pilot", " flies").equals(before)


def test_the_comparison_is_saved_and_tabulated(compared: tuple[Any, Any, Any], tmp_path: Path) -> None:
    _, _, found = compared
    assert Result.load(found.save(tmp_path / "compared")).equals(found)
    table = found.to_frame()
    assert len(table) == 3 * len(found.rows[0].stereoset)
    whole = table[table["domain"] == "overall"]
    assert list(whole["perplexity"]) == [row.perplexity for row in found.rows]
    assert whole["bias_change"].isna().tolist() == [True, False, False]


@pytest.mark.seconds
def test_a_saved_edit_is_scored_as_the_edit_itself(tmp_path: Path) -> None:
    model, examples = demo_pair().base, demo_stereoset()[:20]
    edit = leace_edit(model, demo_bias_texts(), pool="last", layer=6)
    path = edit.save(tmp_path / "own.safetensors")
    found = compare_debiasing(model, [edit, path], examples, control=False, resamples=10)
    assert [row.name for row in found.rows] == ["as it is", "LEACE", "LEACE (own)"]
    assert found.rows[1].stereoset[-1].equals(found.rows[2].stereoset[-1])
    with pytest.raises(ValueError, match=r"got 'LEACE \(own\)' twice: rename one with dataclasses.replace"):
        compare_debiasing(model, [path, str(path)], examples)
    with pytest.raises(FileNotFoundError, match="there is no file of a model's edit"):
        compare_debiasing(model, [tmp_path / "no"], examples)


def test_progress_ends_at_its_total() -> None:
    model = load_model(tiny_folder("gpt2"), device="cpu", dtype=torch.float32)
    seen: list[tuple[int, int]] = []
    edit = leace_edit(model, demo_stereoset()[:6], pool="last")
    compare_debiasing(model, [edit], demo_stereoset()[:6], resamples=10, progress=lambda *at: seen.append(at))
    shares = [done / total for done, total in seen]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_bad_input_is_refused_in_a_sentence() -> None:
    model = demo_pair().base
    edit = leace_edit(model, demo_bias_texts(), pool="last", layer=6)
    examples = demo_stereoset()[:3]
    calls: dict[str, Any] = {
        "edits must hold at least one edit": lambda: compare_debiasing(model, [], examples),
        "got 'LEACE' twice": lambda: compare_debiasing(model, [edit, edit], examples),
        "got 'as it is' twice": lambda: compare_debiasing(model, [replace(edit, name="as it is")], examples),
        "it was made for another model": lambda: compare_debiasing(
            load_model(tiny_folder("gpt2"), device="cpu"), [edit], examples, control=False
        ),
        "data must be a list": lambda: compare_debiasing(model, [edit], []),
        "add some text": lambda: compare_debiasing(model, [edit], examples, texts=[""]),
    }
    for sentence, call in calls.items():
        with pytest.raises(ValueError, match=sentence):
            call()
