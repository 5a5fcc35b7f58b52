"""Annotated FFN concepts: asking, editing, keeping; shares, tests and moved words against naive counts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from statsmodels.stats.proportion import proportions_ztest

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis._core.statistics import compare_groups
from interp_widgets.analysis.ffn_concepts import (
    AnnotationComparison,
    ConceptAnnotations,
    ConceptComparison,
    FFNConceptResult,
    annotate_concepts,
    compare_annotations,
    compare_concepts,
    ffn_concepts,
    level_table,
    scenario_table,
)
from interp_widgets.analysis.ffn_concepts.annotation_comparison import _student, description_words
from interp_widgets.analysis.head_words import HeadWordResult, compare_heads, head_word_pairs, verb_table
from interp_widgets.data.annotators import (
    LEVELS,
    SCENARIOS,
    Annotation,
    EndpointAnnotator,
    RuleAnnotator,
    UserAnnotator,
)
from interp_widgets.data.word_vectors import demo_word_vectors
from tests.data.chat_server import GOOD, KEY, Server, refuse
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair
from tests.waiting import LIMIT

WORDS = demo_word_vectors().words[:60]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def result() -> FFNConceptResult:
    return ffn_concepts(tiny_model("llama"), words=WORDS, rank=6, top=5)


class Scripted:
    """Says of words what a function says, and remembers what it was asked."""

    name = "script"

    def __init__(self, say: Callable[[int], Annotation] | None = None) -> None:
        self.say = say or (lambda count: Annotation(f"about {count}", level=LEVELS[count % 4]))
        self.asked: list[tuple[str, ...]] = []

    def annotate(self, words: Sequence[str], *, check: Any = None) -> Annotation:
        self.asked.append(tuple(words))
        return replace(self.say(len(self.asked) - 1), source=self.name)


# ---- asking


def test_every_component_is_asked_for_by_its_words(result: FFNConceptResult) -> None:
    script = Scripted()
    found = annotate_concepts(result, script)
    cells = [(layer, component) for layer in range(3) for component in range(6)]
    assert script.asked == [result.words(*cell) for cell in cells]
    assert [found.description(*cell) for cell in cells] == [f"about {i}" for i in range(18)]
    assert [found.level(*cell) for cell in cells] == [LEVELS[i % 4] for i in range(18)]
    assert found.done.all()
    assert not found.partial
    assert found.summary() == "18 components: 18 described, 0 cannot tell"
    assert found.provenance["annotator"] == "script"
    assert found.provenance["weight_hash"] == result.provenance["weight_hash"]


@pytest.mark.parametrize("sign", ["both", "+", "-"])
def test_some_layers_components_and_signs(result: FFNConceptResult, sign: Any) -> None:
    script = Scripted()
    calls: list[tuple[int, int]] = []
    found = annotate_concepts(
        result, script, layers=[2, 0], components=[1, 3], sign=sign, progress=lambda *pair: calls.append(pair)
    )
    cells = [(0, 1), (0, 3), (2, 1), (2, 3)]
    assert script.asked == [result.words(*cell, sign=sign) for cell in cells]
    assert [found.description(*cell) for cell in cells] == [f"about {i}" for i in range(4)]
    assert calls == [(i + 1, 4) for i in range(4)]
    with pytest.raises(ValueError, match=r"layer must be one of 0, 2, which were computed, .* got 1"):
        found.level(1, 1)
    with pytest.raises(ValueError, match=r"component must be one of 1, 3, which were computed, .* got 0"):
        found.description(0, 0)


def test_failures_are_counted_and_the_rest_is_kept(result: FFNConceptResult) -> None:
    say = lambda i: Annotation(failure="no reply" if i % 3 else "HTTP 500") if i % 2 else Annotation(f"about {i}")
    found = annotate_concepts(result, Scripted(say))
    assert (found.n_failed, found.n_cannot_tell) == (9, 9)
    assert found.failures == ("no reply", "HTTP 500")
    assert found.description(2, 4) == "about 16"
    assert found.summary() == ("18 components: 9 described, 9 cannot tell (the annotator failed for 9: no reply)")
    assert not found.partial


def test_an_annotator_that_fails_in_a_row_is_asked_no_more(result: FFNConceptResult) -> None:
    script = Scripted(lambda i: Annotation(failure="no connection") if i >= 4 else Annotation(f"about {i}"))
    found = annotate_concepts(result, script, give_up=3)
    assert len(script.asked) == 7
    assert found.partial
    assert (int(found.done.sum()), found.n_failed) == (7, 3)
    assert found.summary().endswith("(the annotator failed for 3: no connection); 11 not annotated")
    again = Scripted()
    whole = annotate_concepts(result, again, keep=found)
    assert len(again.asked) == 14  # the failed ones too, the four answers not
    assert not whole.partial
    assert (whole.description(0, 3), whole.n_failed, whole.failures) == ("about 3", 0, ())


def test_questions_at_the_same_time_change_no_answer(result: FFNConceptResult) -> None:
    """Three meet at a barrier, which a single thread would never pass; answers come in another order than asked for."""
    barrier, turn = threading.Barrier(3), threading.Lock()

    class Slow(Scripted):
        parallel = 3

        def annotate(self, words: Sequence[str], *, check: Any = None) -> Annotation:
            barrier.wait(LIMIT)
            with turn:
                self.asked.append(tuple(words))
            return Annotation(words[0], source=self.name)

    slow = Slow()
    found = annotate_concepts(result, slow)
    assert len(slow.asked) == 18
    assert all(found.description(layer, c) == result.words(layer, c)[0] for layer in range(3) for c in range(6))
    failing = Scripted(lambda i: Annotation(failure="no connection"))
    failing.parallel = 3  # type: ignore[attr-defined]
    partial = annotate_concepts(result, failing, give_up=4)
    assert partial.n_failed == 4
    assert len(failing.asked) <= 4 + 3
    before = threading.active_count()

    def check() -> None:
        if len(failing.asked) > 9:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        annotate_concepts(result, failing, give_up=99, check=check)
    assert threading.active_count() <= before


def test_partial_results_and_cancel(result: FFNConceptResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp_widgets.analysis.ffn_concepts.annotations._PARTIAL_EVERY", 5)
    seen: list[ConceptAnnotations] = []
    found = annotate_concepts(result, Scripted(), on_partial=seen.append)
    assert [int(one.done.sum()) for one in seen] == [5, 10, 15]
    assert all(one.partial for one in seen)
    assert seen[0].description(0, 4) == found.description(0, 4)
    script = Scripted()

    def check() -> None:
        if len(script.asked) == 7:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        annotate_concepts(result, script, check=check)
    assert len(script.asked) == 7


@pytest.mark.seconds
def test_an_endpoint_that_breaks_down_midway_loses_nothing(
    result: FFNConceptResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)
    server = Server()
    server.replies = [GOOD, "nonsense", GOOD, GOOD, refuse(500, f"broken, {KEY}")]
    annotator = EndpointAnnotator(
        "m", base_url=server.url, key_variable="TEST_KEY", cache=tmp_path / "answers", retries=0, pause=0, parallel=1
    )
    try:
        found = annotate_concepts(result, annotator, layers=[0, 1], give_up=4)
    finally:
        server.close()
    assert found.partial
    assert (int(found.done.sum()), found.n_failed, int(found.described.sum())) == (8, 5, 3)
    assert found.failures[0].endswith("HTTP 500: broken, ***")
    path = found.save(tmp_path / "notes")
    assert KEY not in repr(found) + str(found.provenance) + found.summary() + found.to_frame().to_string()
    assert KEY.encode() not in path.read_bytes()
    with np.load(path) as archive:  # compressed: look inside
        assert all(KEY.encode() not in archive[name].tobytes() for name in archive.files)


# ---- the user's notes


def test_a_changed_copy_leaves_the_old_one(result: FFNConceptResult) -> None:
    old = annotate_concepts(result, Scripted())
    new = old.changed(1, 2, description="towns", scenarios=["translation", "writing"], level="semantics")
    assert new.annotation(1, 2) == Annotation("towns", ("writing", "translation"), "semantics", "user")
    assert old.description(1, 2) == "about 8"
    assert new.changed(1, 2, level=None).annotation(1, 2) == replace(new.annotation(1, 2), level=None)
    assert new.changed(1, 2, description="").scenarios(1, 2) == ("writing", "translation")
    same = [(layer, c) for layer in range(3) for c in range(6) if (layer, c) != (1, 2)]
    assert all(new.annotation(*cell) == old.annotation(*cell) for cell in same)
    assert new.provenance == old.provenance


def test_what_the_user_typed_outlives_another_run(result: FFNConceptResult) -> None:
    blank = annotate_concepts(result, None)
    assert not blank.done.any()
    assert blank.summary() == "0 components: 0 described, 0 cannot tell; 18 not annotated"
    typed = blank.changed(0, 1, description="towns")
    assert typed.summary() == "1 components: 1 described, 0 cannot tell; 17 not annotated"
    found = annotate_concepts(result, Scripted(), keep=typed)
    assert found.annotation(0, 1) == Annotation("towns", source="user")
    assert found.description(0, 2) == "about 1"
    script = Scripted()
    annotate_concepts(result, script, keep=found)
    assert script.asked == []
    rules = annotate_concepts(result, RuleAnnotator(), keep=found)
    assert rules.annotation(0, 1) == Annotation("towns", source="user")
    assert {text for row in rules.sources for text in row} == {"user", "rules"}


def test_notes_by_words_and_annotations_of_another_result(result: FFNConceptResult) -> None:
    notes = UserAnnotator().noted(result.words(2, 3), Annotation("towns", level="semantics"))
    found = annotate_concepts(result, notes)
    assert found.level(2, 3) == "semantics"
    assert found.n_cannot_tell == 17
    other = ffn_concepts(tiny_model("gpt2"), words=WORDS, rank=6, top=5)
    with pytest.raises(ValueError, match="keep must be annotations of the same result: its model"):
        annotate_concepts(other, notes, keep=found)
    with pytest.raises(ValueError, match="its sign is 'both', here '-'"):
        annotate_concepts(result, notes, keep=found, sign="-")


def test_saved_annotations_reopen(result: FFNConceptResult, tmp_path: Path) -> None:
    found = annotate_concepts(result, Scripted()).changed(0, 0, description='Städte, naïve "x"', scenarios=("math",))
    again = ConceptAnnotations.load(found.save(tmp_path / "notes"))
    assert again.equals(found)
    pd.testing.assert_frame_equal(again.to_frame(), found.to_frame())
    frame = again.to_frame()
    assert list(frame["scenarios"][:2]) == ["math", ""]
    assert not again.changed(0, 0, description="other").equals(found)


# ---- shares


def made(seed: int, *, level: Sequence[float] = (0.1, 0.2, 0.1, 0.4), serve: Sequence[float] = (0.5, 0.3, 0.05, 0.2),
         shape: tuple[int, int] = (8, 50)) -> ConceptAnnotations:  # fmt: skip
    """Annotations drawn at random: probabilities of the levels (the rest cannot be told) and of the scenarios."""
    rng = np.random.default_rng(seed)
    names = ["sound of words", "foreign-language terms", "programming", "French", "words related to prefix"]
    levels = rng.choice(5, size=shape, p=[*level, 1 - sum(level)])
    levels[levels == 4] = -1
    flags = rng.random((*shape, 4)) < np.array(serve)
    told = rng.random(shape) < 0.8
    texts = tuple(tuple(str(rng.choice(names)) if t else "" for t in row) for row in told)
    done = rng.random(shape) < 0.95
    return ConceptAnnotations(
        layers=tuple(range(shape[0])), components=tuple(range(shape[1])), descriptions=texts,
        sources=(("made",) * shape[1],) * shape[0], scenario_flags=flags & told[:, :, None],
        level_index=np.where(told, levels, -1), done=done, failed=np.zeros(shape, dtype=bool), annotator="made",
    )  # fmt: skip


def naive_shares(notes: ConceptAnnotations, layers: Sequence[int]) -> dict[str, tuple[int, int]]:
    """For each category the concepts of it, and those it is a share of, counted one by one."""
    counts: Counter[str] = Counter()
    described = levelled = done = 0
    for layer in layers:
        for component in notes.components:
            if not notes.done[layer, component]:
                continue
            note = notes.annotation(layer, component)
            done += 1
            described += bool(note.description or note.scenarios)
            counts.update(note.scenarios)
            counts["none of these"] += bool(note.description) and not note.scenarios
            levelled += note.level is not None
            counts.update([note.level] if note.level else [])
    sizes = dict.fromkeys((*SCENARIOS, "none of these"), described) | dict.fromkeys(LEVELS, levelled)
    found = {name: (counts[name], size) for name, size in sizes.items()}
    return found | {"scenario unknown": (done - described, done), "level unknown": (done - levelled, done)}


def test_shares_are_naive_counts_and_welch_is_scipys() -> None:
    a, b = made(0), made(1, level=(0.1, 0.1, 0.1, 0.5))
    found = compare_annotations(a, b, resamples=499)
    counts = [naive_shares(notes, range(8)) for notes in (a, b)]
    for trait, table in (("scenario", found.scenario_table()), ("level", found.level_table())):
        assert list(table["category"][:4]) == list(SCENARIOS if trait == "scenario" else LEVELS)
        assert table["category"].iloc[-1] == "cannot tell"
        for row in table.to_dict("records"):
            name = f"{trait} unknown" if row["category"] == "cannot tell" else row["category"]
            (k_a, n_a), (k_b, n_b) = counts[0][name], counts[1][name]
            assert (row["base_n"], row["tuned_n"]) == (n_a, n_b)
            assert row["base"] == pytest.approx(100 * k_a / n_a)
            assert row["tuned"] == pytest.approx(100 * k_b / n_b)
            assert row["difference"] == pytest.approx(100 * (k_b / n_b - k_a / n_a))
            share = k_a / n_a
            assert row["base_error"] == pytest.approx(100 * np.sqrt(share * (1 - share) / n_a))
            flags = [np.repeat([1.0, 0.0], [k, n - k]) for k, n in ((k_b, n_b), (k_a, n_a))]
            assert row["welch_p"] == pytest.approx(stats.ttest_ind(*flags, equal_var=False).pvalue)
            z_p = proportions_ztest([k_b, k_a], [n_b, n_a])[1]  # another test of the same claim: close to it
            assert row["welch_p"] == pytest.approx(z_p, abs=0.02)
            assert row["permutation_p"] == pytest.approx(stats.fisher_exact([[k_b, n_b - k_b], [k_a, n_a - k_a]])[1],
                                                         abs=0.08)  # fmt: skip
            assert row["low"] <= row["difference"] <= row["high"]


def test_holm_runs_over_the_four_categories_only() -> None:
    found = compare_annotations(made(0), made(1, level=(0.1, 0.1, 0.1, 0.5)), resamples=99)
    table = found.level_table()
    for test, row in zip(found.level_tests, table.to_dict("records"), strict=True):
        assert test is not None
        assert (test.names, test.group, test.kind) == (("tuned", "base"), row["category"], "level")
        assert test.mean == pytest.approx((row["tuned"], row["base"]))
    raw = table["welch_p"][:4].to_numpy()
    order = np.argsort(raw)
    stepped = np.minimum(1, np.maximum.accumulate(raw[order] * np.arange(4, 0, -1)))
    assert table["holm_p"].to_numpy()[order] == pytest.approx(stepped)
    assert np.isnan(table["holm_p"].iloc[4])


@pytest.mark.seconds
def test_a_planted_difference_is_found_and_none_where_there_is_none() -> None:
    alike, other = made(0), made(3, level=(0.1, 0.4, 0.1, 0.2), serve=(0.5, 0.6, 0.05, 0.2))
    table = compare_annotations(alike, other, resamples=199)
    levels, scenarios = table.level_table().set_index("category"), table.scenario_table().set_index("category")
    assert levels.loc["morphology", "holm_p"] < 1e-4
    assert levels.loc["morphology", "low"] > 0
    assert scenarios.loc["coding", "holm_p"] < 1e-4
    assert scenarios.loc["writing", "holm_p"] > 0.05
    small = [compare_annotations(made(10 + i, shape=(3, 70)), made(40 + i, shape=(3, 70)), resamples=9)
             for i in range(25)]  # fmt: skip
    p = [value for one in small for value in one.level_table()["welch_p"][:4]]
    assert 0 <= np.mean(np.array(p) < 0.05) < 0.15  # about one in twenty by chance
    same = compare_annotations(alike, alike, resamples=99).level_table()
    assert (same["difference"] == 0).all()
    assert (same["welch_p"] == 1).all()


def test_what_cannot_be_told_is_counted_and_changes_no_share() -> None:
    notes = made(0)
    silent = notes
    for component in range(30):
        silent = silent.changed(3, component, description="", scenarios=(), level=None)
    before, after = (compare_annotations(notes, other, resamples=9).level_table() for other in (notes, silent))
    lost = sum(bool(notes.done[3, c]) and notes.level_index[3, c] >= 0 for c in range(30))
    added = sum(not notes.done[3, c] for c in range(30))
    unknown = round(before["tuned"].iloc[4] * before["tuned_n"].iloc[4] / 100)
    assert lost > 10
    assert after["tuned_n"].iloc[4] == before["tuned_n"].iloc[4] + added
    assert after["tuned"].iloc[4] == pytest.approx(100 * (unknown + lost + added) / after["tuned_n"].iloc[4])
    assert after["tuned_n"].iloc[0] == before["tuned_n"].iloc[0] - lost
    assert after["tuned"][:4].sum() == pytest.approx(100)


@pytest.mark.slow
def test_several_runs_are_the_papers_test() -> None:
    shape = (3, 70)
    base = [made(i, shape=shape) for i in range(5)]
    tuned = [made(20 + i, serve=(0.75, 0.3, 0.05, 0.2), shape=shape) for i in range(5)]
    found = compare_annotations(base, tuned, resamples=99)
    assert found.unit == "runs"
    for trait, table in (("scenario", found.scenario_table()), ("level", found.level_table())):
        for row in table.to_dict("records"):
            name = f"{trait} unknown" if row["category"] == "cannot tell" else row["category"]
            shares = [[100 * np.divide(*naive_shares(run, range(3))[name]) for run in runs] for runs in (base, tuned)]
            assert (row["base"], row["tuned"]) == pytest.approx(tuple(map(np.mean, shares)))
            assert (row["base_error"], row["tuned_error"]) == pytest.approx(tuple(map(np.std, shares)))
            assert (row["base_n"], row["tuned_n"]) == (5, 5)
            assert row["welch_p"] == pytest.approx(stats.ttest_ind(*shares, equal_var=False).pvalue)
            assert row["student_p"] == pytest.approx(stats.ttest_ind(*shares).pvalue)
    assert found.scenario_table()["holm_p"][0] < 0.01
    assert found.summary().startswith("base: 5 runs, the first: ")


def test_the_papers_p_values_are_students() -> None:
    """Table 5 and 6: mean and population standard deviation over five runs, as printed, and the p-value beside them."""
    printed = {
        "coding": (29.45, 0.43, 28.64, 0.48, 0.0350), "translation": (25.30, 0.39, 26.27, 0.70, 0.0411),
        "morphology": (17.16, 0.49, 16.83, 0.60, 0.4223), "syntax": (7.16, 0.31, 7.52, 0.50, 0.2551),
        "Mistral, math": (5.31, 0.27, 4.75, 0.13, 0.0051),
    }  # fmt: skip
    unit = np.array([-1.5, -0.5, 0.0, 0.5, 1.5])  # five values of mean 0; of standard deviation 1 after the division
    for first, first_std, second, second_std, p in printed.values():
        values = [mean + std * unit / unit.std() for mean, std in ((first, first_std), (second, second_std))]
        found = _student(compare_groups(*values, alternative="two-sided", resamples=9))
        assert found == pytest.approx(p, rel=0.13)  # as near as two printed digits of a deviation go


def test_by_layer_is_the_table_of_each_layer() -> None:
    a, b = made(0), made(1)
    found = compare_annotations(a, b, resamples=9)
    for trait in ("level", "scenario"):
        for row in found.by_layer(trait).to_dict("records"):  # type: ignore[arg-type]
            name = f"{trait} unknown" if row["category"] == "cannot tell" else row["category"]
            for model, notes in (("base", a), ("tuned", b)):
                count, size = naive_shares(notes, [row["layer"]])[name]
                assert row[f"{model}_concepts"] == size
                assert row[model] == pytest.approx(100 * count / size)
    runs = compare_annotations([a, b], [b, a], resamples=9).by_layer()
    assert (runs["base"] == runs["tuned"]).all()


# ---- moved words


def test_words_of_descriptions_that_say_something() -> None:
    text = 'French or Spanish words, concepts/functions and foreign-language terms with the "le" sound [list: 9 of 15]'
    assert description_words(text) == ["French", "Spanish", "concepts/functions", "foreign-language", "terms", "sound"]
    assert description_words("") == []


def described(rows: Sequence[Sequence[str]]) -> ConceptAnnotations:
    notes = replace(made(0, shape=(len(rows), len(rows[0]))), descriptions=rows)
    return replace(notes, done=np.ones_like(notes.done))


def test_moved_words_by_hand() -> None:
    base = described([["language", "language code", "verbs", ""], ["sound", "sound", "verbs", "verbs"]])
    tuned = described([["language terms", "code", "code", "code code"], ["sound", "", "verbs", "verbs"]])
    found = compare_annotations(base, tuned, resamples=9)
    table = found.moved_words(span=1)
    rows = {(row["layers"], row["direction"], row["word"]): row for row in table.to_dict("records")}
    assert list(rows) == [
        ("0", "more", "code"), ("0", "more", "terms"), ("0", "less", "language"), ("0", "less", "verbs"),
        ("1", "less", "sound"),
    ]  # fmt: skip
    code = rows["0", "more", "code"]
    assert (code["base"], code["tuned"], code["change"]) == (1, 3, 2)  # a description counts once
    assert (code["base_rank"], code["tuned_rank"], code["rank_shift"]) == (2, 1, 1)
    assert pd.isna(rows["0", "more", "terms"]["base_rank"])
    assert pd.isna(rows["0", "more", "terms"]["rank_shift"])
    language = rows["0", "less", "language"]
    assert (language["base_rank"], language["tuned_rank"], language["rank_shift"]) == (1, 2, -1)
    both = found.moved_words(span=4, top=1)
    assert list(both["layers"]) == ["0-1", "0-1"]
    assert list(both["word"]) == ["code", "language"]
    runs = compare_annotations([base, tuned], [tuned, tuned], resamples=9).moved_words(span=1)
    assert runs.set_index("word").loc["code", "change"] == 1  # the mean of the runs
    assert compare_annotations(base, base, resamples=9).moved_words().empty


# ---- whole comparisons


def test_one_call_per_table_and_the_comparison_agree(result: FFNConceptResult) -> None:
    model, other = tiny_model("llama"), tiny_model("llama", dtype=torch.bfloat16)
    say = lambda i: Annotation(f"about {i}", SCENARIOS[: i % 5], LEVELS[i % 4]) if i % 3 else Annotation()
    options: dict[str, Any] = {"words": WORDS, "top": 5, "resamples": 99}
    calls: list[tuple[int, int]] = []
    whole = compare_concepts(
        model, other, rank=6, annotator=Scripted(say), progress=lambda *pair: calls.append(pair), **options
    )
    shares = [done / total for done, total in calls]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    for function, table in ((scenario_table, whole.scenario_table()), (level_table, whole.level_table())):
        calls.clear()
        alone = function(
            model, other, rank=6, annotator=Scripted(say), progress=lambda *pair: calls.append(pair), **options
        )
        pd.testing.assert_frame_equal(alone, table)
        shares = [done / total for done, total in calls]
        assert shares == sorted(shares)
        assert shares[-1] == 1
    results = [ffn_concepts(one, words=WORDS, top=5) for one in (model, other)]
    notes = [annotate_concepts(results[0], Scripted(say), components=range(6))]
    notes.append(annotate_concepts(results[1], Scripted(lambda i: say(i + 18)), components=range(6)))
    ready = compare_concepts(*results, rank=6, annotations=(notes[0], notes[1]), resamples=99)
    pd.testing.assert_frame_equal(ready.level_table(), whole.level_table())
    pd.testing.assert_frame_equal(ready.by_layer("scenario"), whole.by_layer("scenario"))
    assert whole.annotated is not None
    assert len(whole.annotated.to_frame()) == 11


@pytest.mark.seconds
def test_saved_results_give_the_same_tables(tmp_path: Path) -> None:
    pair = demo_pair()
    vectors = demo_word_vectors()
    words = vectors.words[:400]
    heads = [head_word_pairs(model, words=words, layers=[0, 5]) for model in (pair.base, pair.tuned)]
    concepts = [ffn_concepts(model, words=words, rank=20, layers=[1, 5]) for model in (pair.base, pair.tuned)]
    notes = [annotate_concepts(one, RuleAnnotator()) for one in concepts]
    again = [type(one).load(one.save(tmp_path / str(i))) for i, one in enumerate([*heads, *concepts, *notes])]
    assert list(map(type, again)) == [HeadWordResult] * 2 + [FFNConceptResult] * 2 + [ConceptAnnotations] * 2
    table = verb_table(*again[:2], groups=2)
    pd.testing.assert_frame_equal(table, verb_table(*heads, groups=2))
    pd.testing.assert_frame_equal(table, compare_heads(*heads, groups=2).verb_table())
    assert table["general_verbs"].min() > 2
    at_once = verb_table(pair.base, pair.tuned, words=words, layers=[0, 5], groups=2)
    pd.testing.assert_frame_equal(at_once, table)
    pd.testing.assert_frame_equal(scenario_table(*again[2:4]), scenario_table(*concepts))
    pd.testing.assert_frame_equal(level_table(*again[2:4]), level_table(*concepts))
    first = compare_concepts(*concepts, annotations=(notes[0], notes[1]))
    second = compare_concepts(*again[2:4], annotations=(again[4], again[5]))  # type: ignore[arg-type]
    assert first.equals(second)
    third = Result.load(first.save(tmp_path / "comparison"))
    assert isinstance(third, ConceptComparison)
    assert isinstance(third.annotated, AnnotationComparison)
    for name in ("scenario_table", "level_table", "by_layer", "moved_words", "layer_table"):
        pd.testing.assert_frame_equal(getattr(third, name)(), getattr(first, name)())
    pd.testing.assert_frame_equal(first.level_table(), level_table(*concepts))
    assert first.level_table()["base_n"].iloc[4] == 40


def test_few_or_no_values_make_no_test() -> None:
    blank = replace(made(0), done=np.zeros((8, 50), dtype=bool))
    table = compare_annotations(blank, made(1), resamples=9).scenario_table()
    assert table["base"].isna().all()
    assert table["welch_p"].isna().all()
    assert table["holm_p"].isna().all()
    assert table["tuned"].notna().all()
    assert compare_annotations(blank, blank, resamples=9).by_layer()["base"].isna().all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda r: annotate_concepts(r, Scripted(), layers=[7]),
            r"layer must be one of 0\.\.2, which were computed, .* got 7",
        ),
        (
            lambda r: annotate_concepts(r, Scripted(), components=[6]),
            r"component must be in -6\.\.5 for this result",
        ),
        (lambda r: annotate_concepts(r, Scripted(), layers=[]), "layers must not be empty"),
        (lambda r: annotate_concepts(r, Scripted(), give_up=0), "give_up must be 1 or more, got 0"),
        (lambda r: annotate_concepts(r, None).changed(0, 0, level="meaning"), "level must be one of phonology"),
        (lambda r: annotate_concepts(r, None).changed(0, 9), r"component must be one of 0\.\.5, .* got 9"),
        (lambda r: compare_annotations([made(0)], [made(1), made(2)]), "got 1 of base and 2 of tuned"),
        (lambda r: compare_annotations([], []), "got 0 of base and 0 of tuned"),
        (lambda r: compare_annotations(made(0), made(1, shape=(7, 50))), "the same layers"),
        (lambda r: compare_annotations(made(0), made(1, shape=(8, 40))), "the same components, got 50 and 40"),
        (lambda r: compare_annotations(made(0), made(1)).moved_words(span=0), "span must be 1 or more, got 0"),
        (lambda r: compare_concepts(r, r).level_table(), "no concepts were annotated: compare with annotator="),
        (lambda r: compare_concepts(r, r, annotator=Scripted(), annotations=(made(0), made(0))), "not both"),
        (lambda r: compare_concepts(r, r, annotations=(made(0), made(0))), "the same layers"),
        (lambda r: scenario_table(r, r, rank=7), r"rank must be in 1\.\.6 .* got 7"),
    ],
)
def test_bad_input_is_one_clear_sentence(
    result: FFNConceptResult, call: Callable[[FFNConceptResult], Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(result)
