"""The head word browser without a page: what it asks for, draws, finds, compares, saves; how it takes bad input."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import traitlets as T

from interp_widgets import LogitLensExplorer, Workbench, compare_heads, head_word_chance, head_word_pairs
from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.head_words import HeadComparison, HeadWordResult
from interp_widgets.compute.cache import results as cache
from interp_widgets.data.word_vectors import WordVectors, demo_word_vectors
from interp_widgets.widgets.base.fields import hidden
from interp_widgets.widgets.head_words import HeadWordBrowser
from interp_widgets.widgets.head_words import heads as heads_module
from interp_widgets.widgets.head_words import word_pairs as module
from tests.models.tiny import HALF_SEED, tiny_model
from tests.shipped import demo_pair
from tests.waiting import until_stopped
from tests.widgets.opening import opening, settle
from tests.widgets.trouble import complaint

pytestmark = pytest.mark.slow

VECTORS = demo_word_vectors()
UNREAD = ("Friends", "Here", "I", "List", "Many", "My", "One", "Today", "While")
"""Words of the list that only begin texts: written after a space, the base model has never read them."""
READ = [word for word in VECTORS.words if word not in UNREAD]
FEW = {"words": list(VECTORS.words[:120]), "top": 30, "keep": 20}
"""A list that is searched in milliseconds, and has pairs."""


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture(scope="module")
def few(pair: Any) -> tuple[HeadWordResult, HeadWordResult]:
    """What the function gives for `FEW`."""
    return head_word_pairs(pair.base, **FEW), head_word_pairs(pair.tuned, **FEW)


@pytest.fixture
def browse(wire: Any) -> Iterator[Callable[..., HeadWordBrowser]]:
    """Opens browsers; afterwards every worker they opened must be gone."""
    with opening(HeadWordBrowser) as build:
        yield build


def no_runs(panel: HeadWordBrowser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel["heads"], "compute", lambda *a, **k: pytest.fail("the model was searched"))


# ---- what it shows


def test_opens_with_the_demos_words_and_what_the_function_gives(pair: Any, browse: Any) -> None:
    panel = browse(pair.base)
    expected = head_word_pairs(pair.base, words=READ)
    assert (panel.status.state, panel.word_list) == ("done", "demo")
    np.testing.assert_array_equal(panel.result.head_pairs, expected.head_pairs)
    np.testing.assert_array_equal(panel["heads"].grid.heat.matrix, expected.n_pairs)
    assert panel["heads"].grid.heat.numbers_from is not None
    best = divmod(int(expected.mean_count.argmax()), expected.n_heads)
    assert (panel.layer, panel.head) == best, "the first look is at the head whose pairs have most dimensions"
    assert [row[:3] for row in panel["heads"].tables.pairs.rows] == [
        [query, key, count] for query, key, count, _ in expected.pairs(*best)
    ]
    assert f"100 of {expected.n_pairs[best]:,} pairs" in panel["heads"].tables.pairs.caption
    assert [row[0] for row in panel["heads"].tables.dimensions.rows] == expected.dimensions(*best)
    about = panel["heads"].grid.about.value
    assert "1,665 words (the demo&#x27;s list, the demo&#x27;s word vectors); each dimension's top 100" in about
    assert "<b>9 words</b> that the models have never read are left out: One, Friends," in about


def test_each_statistic_colours_the_grid(
    pair: Any, few: Any, browse: Any, monkeypatch: pytest.MonkeyPatch, wire: Any
) -> None:
    panel = browse(pair, **FEW)
    no_runs(panel, monkeypatch)
    a, b = few
    heat, word = panel["heads"].grid.heat, a.head_words()[0][0]
    panel.word = word
    wanted = {
        "pairs": lambda one: one.n_pairs,
        "energy": lambda one: one.energy.sum(-1),
        "count": lambda one: np.where(one.head_counts > 0, one.head_counts, np.nan),
        "word": lambda one: (one.find(word).counts > 0).sum(-1),
    }
    for color, of in wanted.items():
        panel.color = color
        numbers = [np.nanmean(of(one), axis=-1) if color == "count" else of(one) for one in few]
        ranges = set()
        for view, expected in zip("AB", numbers, strict=True):
            panel.view = view
            np.testing.assert_allclose(heat.matrix, expected, rtol=1e-6)
            ranges.add((heat.vmin, heat.vmax))
            assert heat.title.startswith(f"{view} · Heads, coloured by")
        assert len(ranges) == 1, "A and B stand on one scale"
        least, most = min(map(np.nanmin, numbers)), max(map(np.nanmax, numbers))
        assert ranges.pop() == (pytest.approx(least if 2 * least > most else 0.0), pytest.approx(most))
        panel.view = "difference"
        np.testing.assert_allclose(heat.matrix, numbers[1] - numbers[0], rtol=1e-5, atol=1e-6)
        assert heat.vmin == -heat.vmax < 0
    change = compare_heads(a, b).head_change
    for view in ("A", "B", "difference"):
        panel.view, panel.color = view, "change"
        np.testing.assert_allclose(heat.matrix, change, rtol=1e-6)
        assert (heat.vmin, heat.vmax) == (0.0, 1.0)
        assert "A → B · Heads, coloured by change of the pairs" in heat.title
    assert panel.status.state == "done", panel.status.error


def test_chance_stands_beside_the_pairs(pair: Any, few: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair, **FEW, shuffles=3)
    settle(panel)
    heads = panel["heads"]
    options = {"words": FEW["words"], "top": FEW["top"], "shuffles": 3}
    wanted = [head_word_chance(model, **options) for model in pair]
    assert [line.split("</b> ")[1] for line in heads.grid.chance.value.split("<br>")] == [
        one.in_words() for one in wanted
    ]
    panel.view = "B"
    heads.select_cell(3, 1)
    assert heads.tables.chance.value == f"B: {wanted[1].head_in_words(3, 1)}"
    column = [one["label"] for one in heads.tables.dimensions.columns].index("by chance")
    rows = heads.tables.dimensions.rows
    assert [row[column] for row in rows] == [
        round(float(wanted[1].chance_dimension_counts[3, 1, row[0]])) for row in rows
    ]
    panel.color = "excess"
    excess = [one.n_pairs - one.chance_pairs.mean(axis=0) for one in wanted]
    np.testing.assert_allclose(heads.grid.heat.matrix, excess[1])
    assert heads.grid.heat.vmax == -heads.grid.heat.vmin == max(np.abs(one).max() for one in excess)
    panel.shuffles = 0
    assert (heads.grid.chance.value, heads.tables.chance.value, heads.chance) == ("", "", ())
    assert panel.status.state == "done", panel.status.error


def test_a_long_search_for_chance_waits_for_its_button(
    pair: Any, browse: Any, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads_module, "CHANCE_SECONDS", 0.0)
    panel = browse(pair.base, **FEW, shuffles=2)
    heads = panel["heads"]
    assert "has not been computed yet: 2 shuffles take about" in heads.grid.chance.value
    assert heads.chance == ()
    assert not hidden(heads.chance_button)
    wire.click(heads.chance_button)
    settle(panel)
    assert "Against chance:" in heads.grid.chance.value
    assert len(heads.chance) == 1
    assert hidden(heads.chance_button)


def test_the_change_of_two_models_is_one_map(pair: Any, browse: Any, few: Any) -> None:
    panel = browse(pair, **FEW, view="beside")
    maps = panel["heads"].grid.maps
    assert len(maps.drawn()) == len(maps.shown) == 2
    assert not any(map(hidden, maps.boxes))
    panel.color = "change"
    settle(panel)
    assert len(maps.shown) == 1
    assert [hidden(box) for box in maps.boxes] == [False, True]
    np.testing.assert_allclose(maps.shown[0].matrix, compare_heads(*few).head_change, rtol=1e-6)
    panel.color = "pairs"
    assert len(maps.shown) == 2
    assert not any(map(hidden, maps.boxes))


def test_which_words_are_looked_up_is_said(pair: Any, browse: Any) -> None:
    panel = browse(pair, top=30)
    assert panel.only == "read"
    assert set(panel.result[1].left_out) == set(UNREAD)
    assert set(panel["heads"].controls["only"].options) == {
        ("all of the list", "all"), ("that the models have read", "read"), ("of one token", "one_token")
    }  # fmt: skip
    code = panel.current.code(panel.current.request())
    scope: dict[str, Any] = {}
    exec(code, scope)
    np.testing.assert_array_equal(scope["result_b"].head_pairs, panel.result[1].head_pairs)
    assert scope["result_a"].vocabulary == panel.result[0].vocabulary
    panel.only = "one_token"
    settle(panel)
    assert "that the tokenizer writes in several tokens are left out: Many," in panel["heads"].grid.about.value
    unknown = browse(tiny_model("llama"), **FEW)
    assert unknown.only == "all"
    assert "read" not in [value for _, value in unknown["heads"].controls["only"].options]


def test_a_click_lists_the_pairs_of_a_head_and_the_dimensions_behind_one(
    pair: Any, few: Any, browse: Any, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel, result = browse(pair.base, **FEW), few[0]
    no_runs(panel, monkeypatch)
    wire.type(panel["heads"].grid.heat, pinned=[2, 3], cross=[2, 3])
    assert (panel.layer, panel.head) == (2, 3)
    expected = [[q, k, n, round(s, 3)] for q, k, n, s in result.pairs(2, 3)]
    assert panel["heads"].tables.pairs.rows == expected
    assert panel.dimension == result.dimensions(2, 3)[0], "there is something to read at once"
    number = next(i for i, row in enumerate(expected) if row[2] > 1)
    wire.type(panel["heads"].tables.pairs, selected=number)
    query, key, count, _ = expected[number]
    assert panel.pair == [query, key]
    held = [
        d
        for d in result.dimensions(2, 3)
        if (query, key) in [pair[:2] for pair in result.dimension_pairs(2, 3, d)]
    ]  # fmt: skip
    assert [row[0] for row in panel["heads"].tables.dimensions.rows] == held != []
    assert len(held) <= count
    assert f"Behind {query} → {key}: {count} dimensions" in panel["heads"].tables.dimensions.caption
    assert panel.dimension == held[0]
    assert panel["heads"].tables.inside.rows == [
        [q, k, round(s, 3)] for q, k, _, s in result.dimension_pairs(2, 3, held[0])
    ]
    wire.type(panel["heads"].tables.dimensions, selected=len(held) - 1)
    assert panel.dimension == held[-1]
    wire.click(panel["heads"].tables.every.children[0])
    assert panel.pair == []
    assert len(panel["heads"].tables.dimensions.rows) == result.d_head
    wire.type(panel["heads"].grid.heat, pinned=[0, 0])
    assert (panel.pair, panel.dimension) == ([], result.dimensions(0, 0)[0]), "another head has other dimensions"


def test_dimensions_that_cut_a_pair_off_are_told(pair: Any, browse: Any) -> None:
    panel = browse(pair.base, words=FEW["words"], top=60, keep=5)
    result = panel.result
    found = [
        (layer, head, one)
        for layer in result.layers
        for head in range(result.n_heads)
        for one in result.pairs(layer, head)
        if len(result.dimensions_with(layer, head, one.query, one.key)) < one.dimensions
    ]
    assert found, "else the test says nothing"
    layer, head, one = found[0]
    panel["heads"].select_cell(layer, head)
    panel["heads"].select_pair(one[:2])
    held = len(panel["heads"].tables.dimensions.rows)
    plural = "s" * (one.dimensions > 1)
    said = f"{one.dimensions} dimension{plural}, {held} of them among the 5 nearest that each keeps"
    assert said in panel["heads"].tables.dimensions.caption


def test_a_word_marks_and_lists_every_head_that_has_it(
    pair: Any, few: Any, browse: Any, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel, result = browse(pair.base, **FEW), few[0]
    no_runs(panel, monkeypatch)
    common = result.head_words()
    assert panel["heads"].grid.heads.rows[:5] == [[word, count] for word, count in common[:5]]
    wire.type(panel["heads"].grid.heads, selected=2)
    word = panel.word
    assert word == common[2][0]
    counts = np.zeros((6, 6), dtype=int)
    for layer in range(6):
        for head in range(6):
            for d in range(result.d_head):
                counts[layer, head] += any(word in one[:2] for one in result.dimension_pairs(layer, head, d))
    assert panel["heads"].grid.heat.texts == [str(n) if n else "" for n in counts.ravel()]
    assert {(row[0], row[1]): row[2] for row in panel["heads"].grid.heads.rows} == {
        (layer, head): counts[layer, head] for layer, head in np.argwhere(counts).tolist()
    }
    assert f"in the cells: dimensions with “{word}”" in panel["heads"].grid.heat.title
    layer, head, _, nearest = panel["heads"].grid.heads.rows[1]
    wire.type(panel["heads"].grid.heads, selected=1)
    assert (panel.layer, panel.head) == (layer, head)
    assert panel["heads"].grid.heads.selected == 1
    assert word in nearest.split(" → ")
    assert nearest.split(" → ") in [row[:2] for row in panel["heads"].tables.inside.rows]
    inside = [word in row[:2] for row in panel["heads"].tables.inside.rows]
    assert inside == sorted(inside, reverse=True), "those with the word come first"
    assert panel["heads"].tables.dimensions.rows[0][1] > 0
    panel.word = next(one for one, _ in common if one != word)
    assert panel.dimension == panel["heads"].tables.dimensions.rows[0][0], "the dimension that has most of the word"
    panel.word = ""
    assert panel["heads"].grid.heat.texts == []


def test_a_word_is_found_in_any_capitals_and_near_ones_are_named(pair: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair.base, only="all")
    wire.type(panel["heads"].controls["word"], value=" while ")
    assert panel.word == "While"
    marked = panel["heads"].grid.heat.texts
    panel.word = "Frence"
    assert "the word 'Frence' is not among the 1,674 words of the list; similar: Florence" in complaint(panel)
    assert panel.status.text.startswith("Waiting for a setting")
    assert panel["heads"].grid.heat.texts != marked
    panel.word = ""
    assert (panel.status.text, panel.hints) == ("Ready", {}), "nothing is waited for any more"
    panel.word = "Frence"
    assert "in the cells" not in panel["heads"].grid.heat.title
    panel.color = "word"
    assert panel["heads"].grid.heads.empty == "“Frence” is not in the word list."
    panel.word = ""
    assert panel["heads"].grid.heat.empty.startswith("Find a word")
    assert panel["heads"].grid.heat.shape == [0, 0]


# ---- two models


def test_the_difference_lists_gained_and_lost_pairs(pair: Any, few: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair, **FEW, view="difference", layer=3, head=1)
    a, b = ({one[:2]: one.dimensions for one in result.pairs(3, 1)} for result in few)
    rows = {tuple(row[:2]): row[2:5] for row in panel["heads"].tables.pairs.rows}
    assert set(rows) == set(a) | set(b)
    for words, (before, after, change) in rows.items():
        assert (before, after) == (a.get(words), b.get(words))
        assert change == ("kept" if before and after else "gained" if after else "lost")
    gained, lost, kept = len(set(b) - set(a)), len(set(a) - set(b)), len(set(a) & set(b))
    change = 1 - kept / len(rows)
    assert f"{gained} gained, {lost} lost, {kept} kept; 1 − M = {change:.2f}" in panel["heads"].tables.pairs.caption
    panel.pair_change = "lost"
    assert {tuple(row[:2]) for row in panel["heads"].tables.pairs.rows} == set(a) - set(b)
    panel["heads"].select_pair(next(iter(set(a) - set(b))))
    assert "B: not among the head's kept pairs" in panel["heads"].tables.dimensions.caption
    panel.view = "B"
    assert {tuple(row[:2]) for row in panel["heads"].tables.pairs.rows} == set(b), "the filter is of two models"
    word = few[0].head_words()[0][0]
    panel.view, panel.word = "difference", word
    assert all(" → " in text for text in panel["heads"].grid.heat.texts if text)


def test_the_comparison_is_that_of_the_function(pair: Any, few: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair, tab="comparison", **FEW)
    expected = compare_heads(*few, groups=4, resamples=module.RESAMPLES)
    assert isinstance(panel.comparison, HeadComparison)
    np.testing.assert_array_equal(panel.comparison.head_change, expected.head_change)
    table = expected.change_table()
    drawn = panel["comparison"].chart.source.data
    np.testing.assert_allclose(drawn["mean"], [*table["dimension_mean"], *table["head_mean"]])
    assert panel["comparison"].test.rows[0][0] == table["layers"][0]
    assert "Too few verbs for a test" in panel["comparison"].summary.value
    kept = 1 - np.nanmean(expected.head_change)
    assert f"<b>{kept:.0%}</b> of their kept pairs in common" in panel["comparison"].summary.value
    other = 1 - np.nanmean(expected.other_head_change)
    assert f"another of its layer in B, {other:.0%}." in panel["comparison"].summary.value
    panel.groups = 2
    assert panel.wait(60)
    assert panel.comparison.n_groups == 2
    assert len(panel["comparison"].test.rows) == 2
    verb = panel["comparison"].verbs.rows[0][1]
    wire.type(panel["comparison"].verbs, selected=0)
    assert (panel.word, panel.tab, panel.tabs.selected_index) == (verb, "heads", 0)


def test_one_model_has_no_tab_that_compares(pair: Any, browse: Any) -> None:
    panel = browse(pair.base, **FEW)
    assert (list(panel.fitting), type(panel.tabs).__name__) == (["heads"], "VBox")
    with pytest.raises(T.TraitError, match="the tab 'comparison' needs two models"):
        panel.tab = "comparison"
    with pytest.raises(KeyError, match="there is no tab 'comparison': heads"):
        panel["comparison"]
    with pytest.raises(T.TraitError, match="the tab 'comparison' needs two models"):
        browse(pair.base, tab="comparison")
    assert panel.tab == "heads"


def test_tabs_take_each_others_answers(pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = browse(pair, **FEW)
    compared = panel.comparison
    assert compared is not None
    searched: list[Any] = []
    real = module.WordPairPanel.compute

    def counted(self: Any, request: Any, model: Any, **reports: Any) -> Any:
        searched.append(model)
        return real(self, request, model, **reports)

    def again(*_: Any, **__: Any) -> Any:
        raise ValueError("compared again")

    monkeypatch.setattr(module.WordPairPanel, "compute", counted)
    monkeypatch.setattr(module, "compare_heads", again)
    panel.tab = "comparison"
    assert panel.wait(60)
    assert panel.comparison is compared
    assert searched == []
    panel.groups = 5
    assert panel.wait(60)
    assert (panel.comparison, panel.current.summary.value) == (None, "compared again")
    panel.run(fresh=True)
    assert len(searched) == 2


def test_many_verbs_are_enough(few: Any) -> None:
    from interp_widgets.widgets.head_words.comparison import FEW as LEAST
    from interp_widgets.widgets.head_words.comparison import summary_lines

    comparison = compare_heads(*few, groups=1)
    assert "Too few" in " ".join(summary_lines(comparison))
    many = 2 * LEAST
    larger = SimpleNamespace(
        instruction=np.arange(many) < LEAST, head_change=comparison.head_change, share=np.full((1, many), 0.5),
        other_head_change=comparison.other_head_change,
    )  # fmt: skip
    assert "Too few" not in " ".join(summary_lines(larger))  # type: ignore[arg-type]


def test_models_of_different_shape(browse: Any) -> None:
    a, b = tiny_model("gpt2"), tiny_model("gpt2", seed=1)
    heads = head_word_pairs(a, **FEW)
    shallow = head_word_pairs(b, layers=[0, 1], **FEW)
    panel = browse(heads, shallow)
    assert panel.status.state == "done", panel.status.error
    panel.view = "difference"
    assert panel["heads"].grid.heat.shape == [0, 0]
    assert "choose A beside B" in panel["heads"].grid.heat.empty
    panel.tab = "comparison"
    assert panel.wait(60)
    assert "the two results must have the same layers" in panel["comparison"].summary.value
    panel.tab, panel.color = "heads", "change"
    assert "see the Comparison tab" in panel["heads"].grid.heat.empty
    panel.view, panel.color = "B", "pairs"
    assert panel["heads"].grid.heat.shape == [2, heads.n_heads]
    panel.layer = 2
    assert "was not computed" in panel["heads"].tables.pairs.empty


# ---- words and vectors


def test_own_words_of_which_some_are_missing(pair: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair.base, only="all")
    words = [*VECTORS.words[:150], "zzyzx", "qwfp"]
    panel.word_list = "own"
    assert "there are no words yet: type some" in complaint(panel)
    assert panel["heads"].grid.heat.shape == [6, 6]
    box = panel.inputs.children[0].children[1]
    assert box.description.startswith("Own words")
    wire.type(box, value=", ".join(words) + "\n" + words[0])
    settle(panel)
    assert panel.words == words, "a word that stands there twice counts once"
    assert panel.result.missing == ("zzyzx", "qwfp")
    assert "<b>2 words</b> have no word vector and are in no pair: zzyzx, qwfp." in panel["heads"].grid.about.value
    panel.words = ["cat", "dog", "bear"]
    settle(panel)
    assert "<b>No head has a pair.</b>" in panel["heads"].grid.about.value
    assert panel["heads"].tables.pairs.empty == "No pair."
    panel.color = "count"
    assert np.isnan(panel["heads"].grid.heat.matrix).all()
    assert (panel["heads"].grid.heat.vmin, panel["heads"].grid.heat.vmax) == (0.0, 1.0)


def test_words_of_a_file_with_their_counts(pair: Any, few: Any, browse: Any, tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    lines = [f"{word}\t{1000 - place}" for place, word in enumerate(FEW["words"])]
    path.write_text("\n".join(reversed(lines)), encoding="utf-8")
    panel = browse(pair.base, word_file=path, top=30, keep=20)
    assert panel.word_list == "file"
    assert panel.result.vocabulary == few[0].vocabulary
    np.testing.assert_array_equal(panel.result.head_pairs, few[0].head_pairs)
    assert f"120 words (from {path}, " in panel["heads"].grid.about.value


@pytest.mark.parametrize("layout", ["glove", "word2vec", "npz"])
def test_vectors_of_each_layout(pair: Any, few: Any, browse: Any, tmp_path: Path, layout: str) -> None:
    words, vectors = VECTORS.words[:120], VECTORS.vectors[:120]
    path = tmp_path / f"vectors.{'npz' if layout == 'npz' else 'txt'}"
    if layout == "npz":
        np.savez(path, words=np.array(words), vectors=vectors)
    else:
        head = f"{len(words)} {vectors.shape[1]}\n" if layout == "word2vec" else ""
        rows = (f"{word} {' '.join(map(repr, row.tolist()))}\n" for word, row in zip(words, vectors, strict=True))
        path.write_text(head + "".join(rows), encoding="utf-8")
    panel = browse(pair.base, word_list="vectors", most_words=120, vectors=str(path), top=30, keep=20)
    assert panel.status.state == "done", panel.status.error
    assert panel.result.vocabulary == words
    np.testing.assert_array_equal(panel.result.head_pairs, few[0].head_pairs)
    assert panel.result.provenance["vectors"] == str(path)
    code = panel.current.code(panel.current.request())
    assert f"read_word_vectors({str(path)!r}, limit=120)" in code
    space: dict[str, Any] = {}
    exec(code, space)
    np.testing.assert_array_equal(space["result"].head_pairs, panel.result.head_pairs)


def test_vectors_from_memory(pair: Any, few: Any, browse: Any, wire: Any) -> None:
    own = WordVectors(VECTORS.words[:120], VECTORS.vectors[:120])
    panel = browse(pair.base, vectors=own, word_list="vectors", top=30, keep=20)
    np.testing.assert_array_equal(panel.result.head_pairs, few[0].head_pairs)
    box = panel.inputs.children[0].children[-1]
    assert box.value == "from Python: 120 words"
    wire.type(box, value="")
    assert panel.vectors == ""


def test_bad_input_is_a_sentence_and_loses_nothing(pair: Any, browse: Any, tmp_path: Path) -> None:
    sentences = tmp_path / "text.txt"
    sentences.write_text("this is no list of words but a text", encoding="utf-8")
    twice = tmp_path / "twice.txt"
    twice.write_text("cat\ndog\ncat\n", encoding="utf-8")
    binary = tmp_path / "binary.bin"
    binary.write_bytes(b"\xff\xfe\x00\x81")
    panel = browse(pair.base, **FEW)
    good = panel.result
    usual = {"word_list": "own", "word_file": "", "vectors": ""}
    for change, sentence in (
        ({"vectors": "/no/such/file"}, "there is no file of word vectors at /no/such/file: check the path"),
        ({"vectors": str(sentences)}, "line 1 of"),
        ({"vectors": str(binary)}, "not UTF-8 text"),
        ({"word_list": "file"}, "there is no word file yet"),
        ({"word_list": "file", "word_file": "/no/such/words"}, "there is no file of words at /no/such/words"),
        ({"word_list": "file", "word_file": str(twice)}, "the word 'cat' is in the list twice"),
        ({"word_list": "file", "word_file": str(sentences)}, "give one word per line"),
        ({"word_list": "file", "word_file": str(binary)}, "is not UTF-8 text"),
    ):
        with panel.batch_changes():
            for name, value in {**usual, **change}.items():
                setattr(panel, name, value)
        settle(panel)
        assert sentence in complaint(panel)
        assert panel.status.error.count("\n") == 0
        assert panel.result is good
        assert panel["heads"].grid.heat.shape == [6, 6]
    with panel.batch_changes():
        for name, value in usual.items():
            setattr(panel, name, value)
    assert panel.status.state == "done"
    with pytest.raises(ValueError, match="the colour 'change' compares two models"):
        HeadWordBrowser(pair.base, color="change")
    with pytest.raises(ValueError, match="head 9 of layer 0 was not computed"):
        panel["heads"].select_cell(0, 9)


def test_another_file_under_the_same_name_is_read_anew(pair: Any, browse: Any, tmp_path: Path) -> None:
    path = tmp_path / "vectors.npz"
    words, rows = np.array(VECTORS.words[:120]), VECTORS.vectors[:120].astype(np.float32)
    np.savez(path, words=words, vectors=rows)
    panel = browse(pair.base, vectors=str(path), **FEW)
    before = panel.result
    np.savez(path, words=words, vectors=rows[::-1], counts=np.arange(len(words), 0, -1))
    panel.run()
    assert not np.array_equal(panel.result.head_pairs, before.head_pairs)


# ---- running, cancelling, saving


def test_cancel_keeps_the_layers_that_are_done(pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = browse(pair.base, **FEW)
    seen = threading.Event()
    real = panel["heads"].compute

    def slow(request: Any, model: Any, *, progress: Any, check: Any, on_partial: Any) -> Any:
        def partial(one: HeadWordResult) -> None:
            on_partial(one)
            if len(one.layers) == 3:
                seen.set()
                until_stopped(check)

        return real(request, model, progress=progress, check=check, on_partial=partial)

    monkeypatch.setattr(panel["heads"], "compute", slow)
    cache.clear()
    panel.top = 25
    panel.go()
    assert seen.wait(120)
    panel.cancel()
    assert panel.wait(120)
    assert panel.status.state == "cancelled"
    assert panel.result.partial
    assert tuple(panel.result.layers) == (0, 1, 2)
    assert panel["heads"].grid.heat.shape == [6, 6]
    assert np.isnan(panel["heads"].grid.heat.matrix[3:]).all()
    assert np.isfinite(panel["heads"].grid.heat.matrix[:3]).all()
    assert ", partial" in panel["heads"].grid.heat.title


def test_a_cancelled_comparison_is_made_when_it_is_asked_for_again(
    few: Any, browse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = browse(*few)
    entered = threading.Event()

    def wait_for_cancel(*_: Any, check: Any, **__: Any) -> Any:
        entered.set()
        until_stopped(check)

    with monkeypatch.context() as patch:
        patch.setattr(module, "compare_heads", wait_for_cancel)
        panel.groups = 2
        assert entered.wait(120)
        panel.cancel()
        assert panel.wait(120)
    panel.color = "energy"
    assert not panel.busy, "what was cancelled stays so until it is looked at"
    panel.tab = "comparison"
    assert panel.wait(120)
    assert panel.comparison.n_groups == 2
    panel.tab, panel.color = "heads", "change"
    assert panel.wait(60)
    assert panel["heads"].grid.heat.shape == [6, 6]


def test_partial_results_are_not_compared(few: Any, browse: Any) -> None:
    panel = browse(few[0], replace(few[1], partial=True))
    assert panel.comparison is None
    panel.tab = "comparison"
    assert panel.wait(60)
    assert panel["comparison"].summary.value == "The comparison needs the complete results of both models."
    with pytest.raises(ValueError, match="there is no comparison to save yet"):
        panel.current.frame()


def test_a_comparison_is_shown_again_after_results_that_had_none(few: Any, browse: Any) -> None:
    panel = browse(*few, tab="comparison")
    current, whole = panel.current, panel.results
    before = current.summary.value
    assert current.comparison is not None
    for results, shown in (((whole[0], replace(whole[1], partial=True)), False), (whole, True)):
        current.results = results
        current.draw(results, None)
        assert panel.wait(60)
        assert (current.comparison is not None, current.summary.value == before) == (shown, shown)
        assert ("complete results" in current.summary.value) != shown


def test_a_changed_list_lights_run_or_runs(pair: Any, browse: Any) -> None:
    panel = browse(pair.base, **FEW)
    panel.top = 31
    settle(panel)
    assert panel.result.top == 31
    assert panel.status.state == "done"
    assert panel.current.cost(panel.current.request(), pair.base).flops > 0


def test_results_are_saved_and_opened_without_a_model(
    pair: Any, few: Any, browse: Any, wire: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    panel = browse(pair, **FEW)
    panel.view = "B"
    panel.current.save_row.format.value = ".npz"
    panel.current.save_row.name.value = "tuned"
    wire.click(panel.current.save_row.write)
    assert Result.load(tmp_path / "tuned.npz").equals(panel.result[1])
    panel.view = "A"
    panel.save(tmp_path / "base.npz")
    panel.view = "difference"
    both = Result.load(panel.save(tmp_path / "both.npz"))
    assert [one.equals(held) for one, held in zip(both.results, panel.result, strict=True)] == [True, True]

    again = browse("base.npz", "tuned.npz")
    assert again.status.state == "done"
    assert again.result[0].equals(panel.result[0])
    np.testing.assert_array_equal(again.comparison.head_change, panel.comparison.head_change)
    assert [model.name for model in again.models] == ["demo-base", "demo-tuned"]
    assert "iw-hidden" in again.current.run_button._dom_classes
    shown = [name for name in again.fields() if again.fields()[name].label and not hidden(again.controls[name])]
    assert {"word_list", "words", "top", "keep"}.isdisjoint(shown), "its words are what they are"
    space: dict[str, Any] = {}
    exec(again.current.code(again.current.request()), space)
    assert space["comparison"].equals(compare_heads(*again.results))
    again.tab = "comparison"
    assert again.wait(60)
    again.save(tmp_path / "comparison.npz")
    assert Result.load(tmp_path / "comparison.npz").equals(again.comparison)

    for wrong, error, sentence in (
        ("nothing.npz", FileNotFoundError, "there is no result file at nothing.npz"),
        ("demo-base", FileNotFoundError, r"a model is opened with load_model\('demo-base'\)"),
        ("comparison.npz", ValueError, "holds a HeadComparison, not a HeadWordResult"),
    ):
        with pytest.raises(error, match=sentence):
            HeadWordBrowser(wrong)
    with pytest.raises(TypeError, match="a saved result and a model cannot be compared here"):
        HeadWordBrowser("base.npz", pair.tuned)


def test_what_is_saved(pair: Any, few: Any, browse: Any, tmp_path: Path) -> None:
    panel = browse(pair, **FEW)
    table = pd.read_csv(panel.save(tmp_path / "pairs.csv"), keep_default_na=False)
    assert len(table) == sum(int((one.head_counts > 0).sum()) for one in few)
    assert table.columns.tolist() == ["model", "layer", "head", "query", "key", "count", "score"]
    assert "Heads, coloured by" in panel.save(tmp_path / "grid.svg").read_text()
    panel.tab = "comparison"
    assert panel.wait(60)
    table = pd.read_parquet(panel.save(tmp_path / "comparison.parquet"))
    assert {"layers", "head_mean", "welch_p"} <= set(table.columns)
    assert "1 − M" in panel.save(tmp_path / "bars.svg").read_text()
    assert panel.save(tmp_path / "bars.png").stat().st_size > 2000
    page = panel.save(tmp_path / "all.html").read_text()
    assert "Head words compared: A demo-base, B demo-tuned" in page
    assert "of their kept pairs in common" in page
    assert "How this was made" in page


def test_the_code_repeats_the_result(pair: Any, browse: Any) -> None:
    panel = browse(pair, **FEW)
    space: dict[str, Any] = {}
    exec(panel.current.code(panel.current.request()), space)
    for name, result in zip(("result_a", "result_b"), panel.result, strict=True):
        np.testing.assert_array_equal(space[name].head_pairs, result.head_pairs)
    assert space["comparison"].n_groups == 4


def test_layer_and_head_are_shared(pair: Any, browse: Any) -> None:
    bench = Workbench(pair.base)
    panel = browse(bench, **FEW)
    assert (bench.layer, bench.head) == (panel.layer, panel.head)
    lens = LogitLensExplorer(bench)
    try:
        assert lens.wait(60)
        panel["heads"].select_cell(4, 2)
        assert (bench.layer, bench.head, lens.layer) == (4, 2, 4)
        bench.select(layer=1, head=5)
        assert (panel.layer, panel.head) == (1, 5)
        assert panel["heads"].grid.heat.pinned == [1, 5]
        assert panel["heads"].tables.pairs.caption.startswith("Head 5 of layer 1")
    finally:
        lens.close()
    second = browse(Workbench(pair.base, layer=3), **FEW)
    assert (second.layer, second.head) == (3, 0), "what the workbench has counts from the start"


@pytest.mark.parametrize(
    ("family", "backend", "dtype"),
    [("gpt2", "bridge", torch.float32), ("llama", "hooked", torch.bfloat16), ("gpt_neox", "bridge", torch.float32)],
)
def test_opens_on_either_backend_and_precision(browse: Any, family: str, backend: Any, dtype: Any) -> None:
    model = tiny_model(family, backend, dtype=dtype, seed=HALF_SEED)
    panel = browse(model, **FEW)
    assert panel.status.state == "done", panel.status.error
    assert panel["heads"].grid.heat.shape == [model.n_layers, model.n_heads]
    np.testing.assert_array_equal(panel["heads"].grid.heat.matrix, head_word_pairs(model, **FEW).n_pairs)


def test_an_unknown_tokenizer_word_is_told(browse: Any, pair: Any, few: Any) -> None:
    panel = browse(replace(few[0], unknown=("☃",), missing=tuple(f"word{i}" for i in range(12))))
    assert "<b>1 word</b> cannot be tokenized and was left out: ☃." in panel["heads"].grid.about.value
    assert "<b>12 words</b> have no word vector" in panel["heads"].grid.about.value
    assert "word7 and 4 more." in panel["heads"].grid.about.value


def test_html_in_a_word_stays_text(browse: Any, pair: Any) -> None:
    panel = browse(pair.base, words=[*FEW["words"], "<b>x</b>"], top=30)
    assert "&lt;b&gt;x&lt;/b&gt;" in panel["heads"].grid.about.value
    assert "<b>x</b>" not in panel["heads"].grid.about.value
