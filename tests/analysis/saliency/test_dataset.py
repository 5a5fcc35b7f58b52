"""Scores over a data set: the published tables to their printed digits, and what happens to bad cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from interp_widgets.analysis.saliency import SaliencyDatasetResult, SaliencyResult, prompt_saliency, saliency_dataset
from interp_widgets.data.attribution_archive import AttributionRecord, read_importance_archive
from interp_widgets.data.cases import SaliencyCase, default_prompt, opening_prompt
from interp_widgets.models import Model
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def archive(reference_data: Path) -> dict[str, list[AttributionRecord]]:
    records = read_importance_archive(reference_data / "attribution_self_instruct.npz")
    return {model: [r for r in records if r.model == model] for model in ("vicuna", "llama")}


@pytest.mark.seconds
def test_published_table_1(archive: dict[str, list[AttributionRecord]]) -> None:
    found = saliency_dataset(archive["vicuna"], resamples=999)
    test = found.test("followed")
    assert (f"{test.mean[0]:.4f}", f"{test.std[0]:.2f}", test.n[0]) == ("1.2283", "0.52", 194)
    assert (f"{test.mean[1]:.4f}", f"{test.std[1]:.2f}", test.n[1]) == ("0.8917", "0.48", 44)
    assert f"{test.spearman_p:.1e}" == "1.4e-04"
    assert found.n_dropped == 13
    assert found.n_failed == 0
    # the control: raw counts of levels above another threshold give another table
    other = saliency_dataset(archive["vicuna"], threshold=5, resamples=99).test("followed")
    assert f"{other.mean[0]:.4f}" != "1.2283"


@pytest.mark.seconds
def test_published_table_2_and_every_score(archive: dict[str, list[AttributionRecord]]) -> None:
    found = saliency_dataset((archive["llama"], archive["vicuna"]), min_response=0, resamples=999)
    test = found.test("models")
    assert test.names == ("vicuna", "llama")
    assert [f"{m:.4f} ± {s:.2f} {n}" for m, s, n in zip(test.mean, test.std, test.n, strict=True)] == [
        "1.1302 ± 0.54 252",
        "0.9394 ± 0.48 252",
    ]
    assert f"{test.welch_p:.2e}" == "1.92e-05"
    assert test.paired_p is not None
    assert test.paired_p < test.welch_p
    expected = [r.score for r in [*archive["llama"], *archive["vicuna"]]]
    assert found.score == pytest.approx(np.array(expected), abs=1e-8)


def test_matrices_with_masks_equal_their_records(archive: dict[str, list[AttributionRecord]]) -> None:
    records = archive["vicuna"][:40]
    one = saliency_dataset(records, resamples=99)
    two = saliency_dataset([r.importance for r in records], records, normalized=True, resamples=99)
    three = saliency_dataset([r.importance for r in records], [r.mask for r in records], normalized=True, resamples=99)
    assert np.array_equal(one.score, two.score, equal_nan=True)
    assert np.array_equal(one.score, three.score, equal_nan=True)
    assert (three.label == -1).all()
    # levels are not importance: normalising them once more would change scores
    again = saliency_dataset([r.importance for r in records], records, resamples=99)
    assert not np.array_equal(one.score, again.score, equal_nan=True)


@dataclass(frozen=True)
class FakeModel(Model):
    """Stands for a model: one token per word, importance planted in `weights` (prompt word → importance)."""

    name: str
    weights: dict[str, float]
    tl_model: object = None

    def provenance(self) -> dict[str, Any]:
        return {"model": self.name, "weight_hash": "00"}

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        spans, start = [], 0
        for word in text.split(" "):
            spans.append((start, start + len(word)))
            start += len(word) + 1
        return spans


def fake_saliency(model: FakeModel, prompt: str, response: str | None, **options: Any) -> SaliencyResult:
    if options["check"] is not None:
        options["check"]()
    if not prompt:
        raise ValueError("the prompt is empty: type something")
    words, length = prompt.split(" "), len((response or "1 2 3 4 5 6").split())
    rng = np.random.default_rng(len(prompt) + options["seed"])
    importance = np.array([[model.weights.get(word, 0.1)] * length for word in words]) * rng.uniform(
        0.4, 1, (len(words), length)
    )
    return SaliencyResult(
        importance, [" " + w for w in words], ["r"] * length, list(range(len(words))), list(range(length)),
        [False] * len(words), np.ones(length), options["method"],
    )  # fmt: skip


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    monkeypatch.setattr("interp_widgets.analysis.saliency.dataset.prompt_saliency", fake_saliency)
    return lambda: None


BASE = FakeModel("base", {})
TUNED = FakeModel("tuned", {"Translate": 3.0, "Sort": 3.0, "please": 2.0})


def made_cases(n: int = 12) -> list[SaliencyCase]:
    """Prompts whose first word is the instruction."""
    cases = []
    for i in range(n):
        verb = ("Translate", "Sort")[i % 2]
        prompt = f"{verb} the word{'s' * i} that come next . Input : apple"
        cases.append(SaliencyCase(prompt, None, (0, len(verb)), bool(i % 3), f"case {i}"))
    return cases


@pytest.mark.usefixtures("fake")
def test_two_models_over_cases(tmp_path: Path) -> None:
    cases = made_cases()
    seen: list[tuple[int, int]] = []
    found = saliency_dataset(
        (BASE, TUNED), cases, resamples=200, groups=[c.prompt.split()[0] for c in cases],
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert seen == [(i + 1, 24) for i in range(24)]
    assert found.model_names == ("base", "tuned")
    assert saliency_dataset([BASE, TUNED], cases, resamples=9).model_names == found.model_names
    test = found.test("models")
    assert test.names == ("tuned", "base")
    assert test.welch_p < 0.01
    assert test.difference > 0
    by_group = [t for t in found.tests if t.kind == "models" and t.group != "all"]
    assert [t.group for t in by_group] == ["Sort", "Translate"]
    assert all(t.holm_p is not None and t.holm_p >= t.welch_p for t in by_group)
    assert test.holm_p is None
    assert found.test("followed", model="tuned").n == (8, 4)
    assert found.profile.shape == (2, 4)
    assert np.allclose(found.profile.sum(axis=1), 1)
    # the tuned model's importance sits on the first word of each first sentence
    assert found.profile[1, 0] > found.profile[0, 0]
    assert (found.profile_interval[:, 0] <= found.profile).all()
    assert (found.profile <= found.profile_interval[:, 1]).all()
    assert found.provenance["A.model"] == "base"
    assert found.method == "exact"
    back = SaliencyDatasetResult.load(found.save(tmp_path / "scores"))
    assert back.equals(found)
    frame = found.to_frame()
    assert frame.shape[0] == 24
    assert set(frame.status) == {"scored"}
    assert "24 scored, 0 dropped" in found.summary()


def test_response_length_is_told_beside_the_score(tmp_path: Path) -> None:
    """Every column is alike, so that the density of a row is its length to the power 3/4: length alone makes scores."""
    rng = np.random.default_rng(3)
    lengths = [6, 9, 14, 20, 30, 7, 5, 12]
    labels = [True, True, True, True, True, False, False, False]
    matrices = [np.vstack([np.ones((1, n)), 0.5 * rng.random((3, n)), np.ones((1, n))]) for n in lengths]
    for matrix in matrices:
        matrix[0, matrix.shape[1] // 2 :] = 0.1  # the instruction matters to half of the response
    cases = [Labelled(np.arange(5) == 0, label) for label in labels]
    found = saliency_dataset(matrices, cases, resamples=99)
    test = found.test("followed")
    length = found.response_length(test)
    assert length.names == ("followed", "unfollowed")
    assert length.mean == (np.mean(lengths[:5]), np.mean(lengths[5:]))
    wanted = spearmanr(lengths, labels)
    assert (length.label_rho, length.label_p) == pytest.approx((wanted.statistic, wanted.pvalue))
    wanted = spearmanr(lengths, found.score)
    assert (length.score_rho, length.score_p) == pytest.approx((wanted.statistic, wanted.pvalue))
    assert "response length: followed 15.8 tokens, unfollowed 8.0 tokens; Spearman with the score rho" in (
        found.summary()
    )
    alike = saliency_dataset([np.ones((5, 6))] * 8, cases, resamples=9)
    assert np.isnan(alike.response_length(alike.test("followed")).label_rho)
    assert "unfollowed 6.0 tokens, all lengths or all scores equal" in alike.summary()


@pytest.mark.seconds
def test_every_p_value_has_its_side(archive: dict[str, list[AttributionRecord]]) -> None:
    found = saliency_dataset((archive["llama"], archive["vicuna"]), min_response=0, resamples=99)
    test = found.test("models")
    claim = "one-sided, vicuna > llama"
    assert test.claim == claim == test.row()["claim"]
    assert test.sides == {
        "welch_p": claim, "permutation_p": claim, "paired_p": claim, "spearman_p": "two-sided",
    }  # fmt: skip
    assert (
        f"paired p = {test.paired_p:.2g} ({claim}); Spearman p = {test.spearman_p:.2g} (two-sided)" in found.summary()
    )
    assert replace(test, alternative="less").claim == "one-sided, vicuna < llama"
    assert replace(test, alternative="two-sided").claim == "two-sided, vicuna ≠ llama"
    # the claim is what the p-values test: the other way round they are near 1
    other = saliency_dataset((archive["vicuna"], archive["llama"]), min_response=0, resamples=99).test("models")
    assert other.claim == "one-sided, llama > vicuna"
    assert other.welch_p == pytest.approx(1 - test.welch_p)


@dataclass(frozen=True)
class Labelled:
    """A case that gives its instruction tokens and label outright."""

    mask: Any
    label: bool


@pytest.mark.usefixtures("fake")
def test_a_pair_of_equal_models_shows_no_difference() -> None:
    found = saliency_dataset((TUNED, TUNED), made_cases(), resamples=200)
    assert found.model_names == ("tuned (A)", "tuned (B)")
    assert found.test("models").difference == 0
    assert found.test("models").permutation_p > 0.5


@pytest.mark.usefixtures("fake")
def test_bad_cases_keep_their_row_and_sentence() -> None:
    cases = [
        *made_cases(6),
        SaliencyCase("", None, (0, 1), True, "empty"),
        SaliencyCase("Sort it", None, None, True, "unmarked"),
        SaliencyCase("Sort it", "a b", (0, 4), True, "short"),
    ]
    found = saliency_dataset(TUNED, cases, resamples=99)
    assert found.error[6] == "the prompt is empty: type something"
    assert found.error[7].startswith("no instruction is marked")
    assert found.dropped.tolist() == [False] * 8 + [True]
    assert (found.n_dropped, found.n_failed) == (1, 2)
    assert np.isnan(found.score[6:]).all()
    assert np.isfinite(found.score[:6]).all()
    assert found.to_frame().status.tolist() == ["scored"] * 6 + ["failed"] * 2 + ["dropped"]
    assert np.array_equal(found.score[:6], saliency_dataset(TUNED, made_cases(6), resamples=99).score)
    with pytest.raises(ValueError, match="all 1 cases failed; the first: the prompt is empty"):
        saliency_dataset(TUNED, [cases[6]])


@pytest.mark.usefixtures("fake")
def test_cancelling_passes_on_and_delivers_what_is_done() -> None:
    class Cancelled(Exception):
        pass

    calls, delivered = [0], []

    def check() -> None:
        calls[0] += 1
        if calls[0] > 9:
            raise Cancelled

    with pytest.raises(Cancelled):
        saliency_dataset(TUNED, made_cases(), check=check, on_partial=delivered.append, resamples=99)
    assert delivered[-1].partial
    assert 0 < len(delivered[-1].names) < 12
    assert delivered[-1].n_failed == 0
    finished: list[SaliencyDatasetResult] = []
    whole = saliency_dataset(TUNED, made_cases(), on_partial=finished.append, resamples=99)
    assert not whole.partial
    assert 1 <= len(finished) <= 12
    assert all(part.partial for part in finished)


@pytest.mark.usefixtures("fake")
def test_generated_responses_are_judged() -> None:
    cases = [SaliencyCase(c.prompt, "a b c", c.instruction, None, c.name) for c in made_cases(6)]
    given = saliency_dataset(TUNED, cases, min_response=1, resamples=99)
    assert given.n_response.tolist() == [3] * 6
    assert not [t for t in given.tests if t.kind == "followed"]
    with pytest.raises(KeyError, match="there is no 'followed' comparison"):
        given.test("followed")
    made = saliency_dataset(
        TUNED,
        cases,
        generate=True,
        judge=lambda case, text: "Sort" in case.prompt and text == "0 1 2 3 4 5",
        resamples=99,
    )
    assert made.n_response.tolist() == [6] * 6
    assert made.test("followed").n == (3, 3)
    assert made.response[0] == "0 1 2 3 4 5"


@pytest.mark.usefixtures("fake")
def test_too_few_labels_are_noted_not_tested() -> None:
    cases = [SaliencyCase(c.prompt, None, c.instruction, True, c.name) for c in made_cases(4)]
    found = saliency_dataset(TUNED, cases, resamples=99)
    assert found.tests == ()
    assert "there are 4 and 0" in found.notes[0]
    assert "there are 4 and 0" in found.summary()


def test_saliency_results_are_matrices_too(tmp_path: Path) -> None:
    results = [fake_saliency(TUNED, c.prompt, None, check=None, seed=0, method="exact") for c in made_cases(4)]
    masks = [np.arange(len(r.prompt_tokens)) == 0 for r in results]
    found = saliency_dataset(results, masks, resamples=99)
    assert found.score.tolist() == [r.instruction_score(m) for r, m in zip(results, masks, strict=True)]
    assert found.method == "exact"
    assert found.profile_sentences[0] > 0
    none = saliency_dataset([r.importance for r in results], masks, resamples=99)
    assert none.method == "given"
    assert np.isnan(none.profile).all()
    assert SaliencyDatasetResult.load(none.save(tmp_path / "none")).equals(none)


def faint(matrix: np.ndarray[Any, Any], *columns: int) -> np.ndarray[Any, Any]:
    """The importance with some columns a millionth as large."""
    scale = np.ones(matrix.shape[1])
    scale[list(columns)] = 1e-6
    return matrix * scale


def test_columns_under_the_floor_are_left_out_and_counted(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    whole = [rng.uniform(0.1, 1, (8, 9)) for _ in range(6)]
    matrices, mask = [faint(matrix, 0, 3, 4) for matrix in whole], [True] * 3 + [False] * 5
    matrices[5] = faint(whole[5], *range(9))
    found = saliency_dataset(matrices, [mask] * 6, resamples=9, names=["demo"])
    alone = saliency_dataset([np.delete(m, (0, 3, 4), axis=1) for m in whole[:5]], [mask] * 5, resamples=9)
    paper = saliency_dataset(matrices, [mask] * 6, min_importance=0, resamples=9)
    assert found.score[:5].tolist() == alone.score.tolist()
    assert found.paper_score.tolist() == paper.score.tolist() == paper.paper_score.tolist()
    assert not np.allclose(found.score[:5], paper.score[:5])  # the control: the floor changes scores
    assert found.n_under_floor.tolist() == [3] * 5 + [9]
    assert not paper.n_under_floor.any()
    # a response that is under the floor altogether has no score, and the summary says so
    assert np.isnan(found.score[5])
    assert (found.n_dropped, found.all_under_floor.tolist()) == (1, [False] * 5 + [True])
    assert "5 scored, 0 dropped (response under 5 tokens), 1 dropped (no response token of importance 0.01)" in (
        found.summary()
    )
    line = next(line for line in found.summary().splitlines() if line.startswith("floor (demo): 15 of 45 response"))
    means = f"{found.score[:5].mean():.3f}, with them {found.paper_score[:5].mean():.3f}, as in the paper"
    assert line.endswith(f"mean instruction score {means}")
    assert "floor" not in paper.summary()
    assert found.to_frame()["n_under_floor"].tolist() == [3] * 5 + [9]
    assert SaliencyDatasetResult.load(found.save(tmp_path / "floor")).equals(found)


@pytest.mark.slow
def test_most_of_the_demos_opening_response_is_under_the_floor() -> None:
    """What follows from the response itself: the paper's rule stretches its millionths to the full scale."""
    model, case = demo_pair().tuned, default_prompt()
    result = prompt_saliency(model, case.prompt, model.generate(case.prompt, max_new_tokens=24))
    mask = result.mask(case.instruction)
    assert (int(result.under_floor().sum()), len(result.response_tokens)) == (22, 24)
    assert result.instruction_score(mask) == pytest.approx(0.471, abs=1e-3)
    assert result.instruction_score(mask, min_importance=0.01) == pytest.approx(0.289, abs=1e-3)


@pytest.mark.slow
def test_the_explorer_opens_on_a_response_that_depends_on_its_prompt() -> None:
    model, case = demo_pair().tuned, opening_prompt()
    response = model.generate(case.prompt, max_new_tokens=40)
    assert case.follows is not None
    assert case.follows(response), response
    result = prompt_saliency(model, case.prompt, response)
    assert (int(result.under_floor().sum()), len(result.response_tokens)) == (3, 15)
    assert result.instruction_score(result.mask(case.instruction), min_importance=0.01) > 0.4


def test_results_from_before_the_floor_still_open(tmp_path: Path) -> None:
    made = saliency_dataset([np.ones((2, 6))] * 3, [[True, False]] * 3, min_importance=0, resamples=9)
    old = replace(made, n_under_floor=None, paper_score=None)
    found = SaliencyDatasetResult.load(old.save(tmp_path / "old"))
    assert found.equals(old)
    assert "paper_score" not in found.to_frame()
    assert "floor" not in found.summary()


def test_levels_have_no_floor(archive: dict[str, list[AttributionRecord]]) -> None:
    """Published matrices hold levels, whose unit is lost: none is left out, so that the tables stay as they are."""
    records = archive["vicuna"][:30]
    found, paper = (saliency_dataset(records, min_importance=floor, resamples=9) for floor in (0.5, 0.0))
    assert np.array_equal(found.score, paper.score, equal_nan=True)
    assert not found.n_under_floor.any()


@pytest.mark.parametrize(
    ("given", "cases", "options", "error", "message"),
    [
        ([], None, {}, ValueError, "there is no case to score"),
        ([np.ones((2, 6))], [[True, False]] * 2, {}, ValueError, "match one to one, got 1 and 2"),
        ([np.ones((2, 6))], [[True, False]], {"threshold": 12}, ValueError, "threshold must be in 0..10 for 10 levels"),
        ([np.ones((2, 6))], [[True, False]], {"min_importance": -1}, ValueError, "min_importance must be 0 or more"),
        ([np.ones((2, 6))], [[True, False]], {"steps": 3}, TypeError, "ready matrices take no steps"),
        ([np.ones((2, 6))], [[True, False]], {"groups": ["a", "b"]}, ValueError, "one group per case, got 2 for 1"),
        ([np.ones((2, 6))], [[True, False]], {"names": ["a", "b"]}, ValueError, r"one per model \(1\), got 2"),
        ([np.ones((2, 6))], [[True]], {}, ValueError, r"one entry per prompt token \(2\), got \(1,\)"),
        ([np.ones((2, 6)) * 11], [[True, False]], {"normalised": True}, ValueError, "values 0..10"),
        ([np.ones((2, 6)) * np.nan], [[True, False]], {}, ValueError, "must be finite"),
        (BASE, None, {}, ValueError, "a model needs cases"),
    ],
)
def test_bad_input_is_refused(given: Any, cases: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        saliency_dataset(given, cases, **options)


@pytest.fixture(scope="module")
def tiny_pair() -> tuple[Any, Any]:
    """Two random LLaMA-shaped models of one vocabulary."""
    return tiny_model("llama", seed=0), tiny_model("llama", seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "first_order"])
def test_scores_of_real_models_are_those_of_their_saliency(tiny_pair: tuple[Any, Any], method: Any) -> None:
    texts = ["Answer the question. What is the capital of France?", "Write a short story about a small dog."]
    cases = [SaliencyCase(text, None, (0, 12), None, f"case {i}") for i, text in enumerate(texts)]
    options: dict[str, Any] = {"method": method, "max_new_tokens": 6, "min_response": 1, "resamples": 9}
    found = saliency_dataset(list(tiny_pair), cases, min_importance=1e-4, **options)
    assert found.n_failed == 0
    for row in range(4):
        model, case = tiny_pair[found.model[row]], cases[found.case[row]]
        result = prompt_saliency(model, case.prompt, method=method, max_new_tokens=6)
        mask = result.mask((0, 12))
        assert found.score[row] == pytest.approx(result.instruction_score(mask, min_importance=1e-4), abs=1e-6)
        assert found.paper_score[row] == pytest.approx(result.instruction_score(mask), abs=1e-6)
        assert found.n_under_floor[row] == result.under_floor(1e-4).sum()
        assert found.response[row] == model.decode(list(result.response_ids))
        assert found.n_prompt[row] == len(result.prompt_tokens)
    hashes = {found.provenance["A.weight_hash"], found.provenance["B.weight_hash"]}
    assert hashes == {model.weight_hash for model in tiny_pair}
