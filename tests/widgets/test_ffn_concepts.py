"""The FFN concept browser without a browser: what it lists, notes, asks, links, compares, saves, and takes amiss."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import traitlets as T

from interp_widgets import (
    Workbench,
    compare_concepts,
    ffn_concepts,
    neuron_effects,
    neuron_tokens,
    text_activations,
)
from interp_widgets.analysis.ffn_concepts.annotation_comparison import compare_annotations
from interp_widgets.analysis.ffn_concepts.annotations import ConceptAnnotations, annotate_concepts
from interp_widgets.data.annotators import Annotation, RuleAnnotator
from interp_widgets.data.demo_texts import demo_texts
from interp_widgets.data.presets import PRESETS
from interp_widgets.figures.labels import fixed
from interp_widgets.widgets.base.answers import Outcome
from interp_widgets.widgets.ffn_concepts import FFNConceptBrowser, components, note_controls
from interp_widgets.widgets.views.base import bytes_floats
from tests.data.chat_server import GOOD, KEY, Server
from tests.models.tiny import HALF_SEED, tiny_model
from tests.shipped import demo_pair
from tests.widgets.opening import at_once, opening, settle
from tests.widgets.trouble import cancelled_and_closed, complaint

pytestmark = pytest.mark.slow

PROMPT, TARGET = PRESETS[0].prompt, PRESETS[0].target
LAST = 5
WORDS = ["cat", "dog", "house", "red", "blue", "Paris", "a", "the"]


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture(scope="module")
def found(pair: Any) -> Any:
    """The components of both models."""
    return ffn_concepts(pair.base), ffn_concepts(pair.tuned)


@pytest.fixture
def browse(wire: Any) -> Iterator[Callable[..., FFNConceptBrowser]]:
    """Opens browsers that read few texts; afterwards every worker and comm they opened must be gone."""
    with opening(FFNConceptBrowser, sample_texts=list(demo_texts(8))) as build:
        yield build
    assert wire.open() <= 2, "what the kernel shares (Bokeh's code) may stay, nothing else"


def tab(panel: FFNConceptBrowser) -> Any:
    return panel["concepts"]


def neurons(panel: FFNConceptBrowser) -> Any:
    return panel["neurons"]


def comparing(panel: FFNConceptBrowser) -> Any:
    return panel["comparison"]


def write(wire: Any, panel: FFNConceptBrowser, component: int, column: str, value: Any, letter: str = "A") -> None:
    """The user writes into a cell of the chosen layer."""
    key = f"{letter}/{panel.layer}/{component}"
    wire.event(tab(panel).table, kind="edit", key=key, column=column, value=value)


def noted(panel: FFNConceptBrowser, component: int) -> list[Any]:
    """Description, scenarios, level and source in the table."""
    return list(next(row for row in tab(panel).table.rows if row[0] == component)[-4:])


# ---- what it shows


def test_it_opens_with_the_components_of_the_last_layer(pair: Any, browse: Any, found: Any) -> None:
    panel = browse(pair.base)
    assert (panel.layer, panel.status.state) == (LAST, "done"), panel.status.error
    result = panel.result
    np.testing.assert_allclose(result.explained_variance, found[0].explained_variance)
    table = tab(panel).table
    assert len(table.rows) == 20
    for component in (0, 7, 19):
        row = table.rows[component]
        assert row[0] == component
        assert row[1] == pytest.approx(100 * found[0].explained_variance[LAST, component])
        assert row[2] == pytest.approx(found[0].scores(LAST, component)[0][1])
        assert row[3] == ", ".join(found[0].words(LAST, component, sign="+"))
        assert row[4] == ", ".join(found[0].words(LAST, component, sign="-"))
        assert row[5:] == [None] * 4
    assert "<b>20</b> of 192 components" in tab(panel).summary.value
    share = 100 * found[0].cumulative[LAST, 19]
    assert f"<b>{share:.0f}%</b>" in tab(panel).summary.value
    assert tab(panel).layers.rows[3][3] == pytest.approx(100 * found[0].cumulative[3, 19])
    assert "comparison" not in panel.fitting


def test_half_of_the_variance(pair: Any, browse: Any, found: Any) -> None:
    panel = browse(pair.base)
    for layer, row in enumerate(tab(panel).layers.rows):
        path = found[0].cumulative[layer]
        assert path[row[2] - 1] >= 0.5 > path[row[2] - 2]


def test_layer_list_line_and_slider_choose_the_layer_without_a_run(pair: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair.base)
    held, text = panel.result, panel.status.text
    wire.type(tab(panel).layers, selected=2)
    assert panel.layer == 2
    chart = tab(panel).variance
    assert chart.chosen.data["layer"] == [2]
    assert tab(panel).table.rows[0][3] == ", ".join(held.words(2, 0, sign="+"))
    chart.lines.selected.indices = [chart.lines.data["layer"].index(4)]
    assert panel.layer == 4
    assert tab(panel).layers.selected == 4
    wire.type(panel.inputs.children[0].children[0], value=1)
    assert panel.layer == 1
    assert panel.result is held
    assert panel.status.text == text
    assert not panel.jobs.runs("main")


def test_words_of_each_side(pair: Any, browse: Any, found: Any) -> None:
    panel = browse(pair.base, layer=3)
    for sides, columns in (("both", 1), ("+", 1), ("-", 1), ("sides", 2)):
        panel.sides = sides
        row = tab(panel).table.rows[3]
        assert len(row) == 3 + columns + 4
        if sides == "both":
            expected = [word if value > 0 else f"−{word}" for word, value in found[0].scores(3, 3)]
            assert row[3] == ", ".join(expected)
            assert "−" in row[3]
        elif columns == 1:
            assert row[3] == ", ".join(found[0].words(3, 3, sign=sides))


def test_a_picked_component_is_drawn(pair: Any, browse: Any, wire: Any, found: Any) -> None:
    panel = browse(pair.base)
    wire.type(tab(panel).table, selected=4)
    assert panel.component == 4
    right = [word for word, value in zip(*map(tab(panel).bars.source.data.get, ("word", "right")), strict=True)
             if value > 0]  # fmt: skip
    assert right == list(found[0].words(LAST, 4, sign="+"))


def test_a_redraw_leaves_the_picked_row_alone(pair: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair.base, component=4)
    table = tab(panel).table
    before = len(wire.states(table, "selected"))
    write(wire, panel, 2, "description", "x")
    assert set(wire.states(table, "selected")[before:]) <= {4}, "the table would scroll to the row again and again"


def test_more_components_are_listed_without_a_run(pair: Any, browse: Any) -> None:
    panel = browse(pair.base)
    panel.components = 500
    assert len(tab(panel).table.rows) == 192
    assert "<b>192</b> of 192" in tab(panel).summary.value
    panel.components = 3
    assert len(tab(panel).table.rows) == 3
    assert panel.status.state == "done"


def test_a_word_is_found_wherever_it_is(pair: Any, browse: Any, wire: Any, found: Any) -> None:
    panel = browse(pair.base)
    assert "iw-hidden" in tab(panel).hits_box._dom_classes
    panel.search = "sad"
    assert "iw-hidden" not in tab(panel).hits_box._dom_classes
    hits = found[0].components_with("sad")
    assert [tuple(row[:2]) for row in tab(panel).hits.rows] == [hit[:2] for hit in hits]
    later = next(place for place, hit in enumerate(hits) if hit[1] >= 20)
    wire.type(tab(panel).hits, selected=later)
    assert (panel.layer, panel.component) == hits[later][:2]
    assert tab(panel).table.rows[-1][0] == hits[later][1], "looked up: listed below the first ones"
    assert tab(panel).table.selected == 20
    panel.search = "Sad"
    assert "did you mean 'sad'?" in tab(panel).hits.caption
    assert tab(panel).hits.rows == []


# ---- notes


def test_what_is_typed_is_kept(pair: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair.base)
    write(wire, panel, 4, "description", "<b>feelings</b> & moods")
    write(wire, panel, 4, "level", "semantics")
    write(wire, panel, 4, "scenarios", ["math", "writing"])
    assert noted(panel, 4) == ["<b>feelings</b> & moods", "writing, math", "semantics", "user"]
    panel.layer = 0
    assert noted(panel, 4) == [None] * 4
    panel.layer = LAST
    panel.sides = "+"
    assert noted(panel, 4)[0] == "<b>feelings</b> & moods"
    panel.top = 8
    settle(panel)
    assert len(tab(panel).table.rows[0][3].split(", ")) == 8, "computed again"
    panel.run(fresh=True)
    assert noted(panel, 4) == ["<b>feelings</b> & moods", "writing, math", "semantics", "user"]
    assert panel.annotations.description(LAST, 4) == "<b>feelings</b> & moods"
    write(wire, panel, 4, "level", "")
    assert noted(panel, 4)[2] == ""
    assert panel.annotations.level(LAST, 4) is None


def test_an_edit_goes_to_the_component_that_was_looked_at(pair: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair.base, layer=1)
    table = tab(panel).table
    key = table.row_keys[2]
    panel.layer = 4
    wire.event(table, kind="edit", key=key, column="description", value="late")
    assert noted(panel, 2) == [None] * 4
    panel.layer = 1
    assert noted(panel, 2)[0] == "late"


def test_an_edit_of_nothing_is_an_error_and_changes_nothing(pair: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair.base)
    for key in ("A/1", "C/1/1", "A/99/0", "A/1/999", "A/x/0", "B/1/1", ""):
        panel.status.idle()
        wire.event(tab(panel).table, kind="edit", key=key, column="description", value="x")
        assert panel.status.state == "failed"
        assert "no such component" in panel.status.error
    assert len(tab(panel).notes_of("A")) == 0


def test_notes_are_saved_and_opened(pair: Any, browse: Any, wire: Any, tmp_path: Path) -> None:
    panel = browse(pair.base)
    write(wire, panel, 4, "description", "moods")
    panel.search = "coat"
    write(wire, panel, 150, "scenarios", ["coding"])
    tab(panel).annotating.file.value = str(tmp_path / "mine.npz")
    wire.click(tab(panel).annotating.save_button)
    assert "Saved" in panel.status.text, panel.status.error
    saved = ConceptAnnotations.load(tmp_path / "mine.npz")
    assert saved.scenarios(LAST, 150) == ("coding",)
    assert saved.done.sum() == 2
    other = browse(pair.base, notes=tmp_path / "mine.npz")
    assert noted(other, 4) == ["moods", "", "", "user"]
    third = browse(pair.base, notes=saved)
    assert noted(third, 4)[0] == "moods"
    wrong_ones = ((saved, "belong to different weights"), (tmp_path / "none.npz", "no result file"),
                  ([None, saved], "notes for 2 models"))  # fmt: skip
    for given, sentence in wrong_ones:
        wrong = browse(pair.tuned, notes=given)
        assert sentence in wrong.status.error
        assert len(tab(wrong).table.rows) == 20, "the components are shown all the same"
        assert wrong.result is not None
    with pytest.raises(Exception, match=r"notes must be ConceptAnnotations, .*got 7"):
        browse(pair.tuned, notes=7)
    tab(wrong).annotating.file.value = str(tmp_path / "mine.npz")
    wire.click(tab(wrong).annotating.open_button)
    assert "these notes belong to different weights" in wrong.status.error
    tab(wrong).annotating.file.value = str(tmp_path / "nothing.npz")
    wire.click(tab(wrong).annotating.open_button)
    assert "there is no result file" in wrong.status.error
    assert noted(wrong, 4) == [None] * 4


def test_rules_annotate_in_the_worker(pair: Any, browse: Any, wire: Any, found: Any) -> None:
    panel = browse(pair.base, scope="all")
    write(wire, panel, 6, "description", "my own")
    wire.click(tab(panel).annotating.ask_button)
    settle(panel)
    assert panel.status.state == "done", panel.status.error
    expected = annotate_concepts(found[0], RuleAnnotator(), components=range(20))
    held = panel.annotations
    for layer in range(6):
        for component in range(20):
            if (layer, component) != (LAST, 6):
                assert held.annotation(layer, component) == expected.annotation(layer, component)
    assert noted(panel, 6) == ["my own", "", "", "user"], "what the user typed stays"
    assert all(row[4] == "20 of 20" for row in tab(panel).layers.rows)
    silent = sum(row[-1] == "rules: cannot tell" for row in tab(panel).table.rows)
    assert 0 < silent < 20
    assert f"{silent} “cannot tell”, 1 by you" in tab(panel).annotating.count.value


def test_what_is_deleted_is_named_and_comes_back(pair: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair, components=5)
    below = tab(panel).annotating
    assert below.delete_button.disabled
    assert below.undo_button.disabled
    write(wire, panel, 4, "description", "moods")
    write(wire, panel, 3, "description", "months")
    assert below.delete_button.disabled, "component 0 is picked, which has no note"
    wire.type(tab(panel).table, selected=4)
    assert below.delete_button.description == "Delete note of component 4, layer 5 of A"
    wire.click(below.delete_button)
    assert noted(panel, 4) == [None] * 4
    assert noted(panel, 3)[0] == "months"
    assert below.delete_button.disabled
    panel.layer, panel.view = 2, "B"
    assert below.undo_button.description == "Undo deleting the note of component 4, layer 5 of A"
    wire.click(below.undo_button)
    panel.layer, panel.view = LAST, "A"
    assert noted(panel, 4) == ["moods", "", "", "user"]
    assert below.undo_button.description == "Undo description of component 3, layer 5 of A"
    wire.click(below.ask_button)
    settle(panel)
    assert all(noted(panel, component)[3] for component in range(5))
    assert below.undo_button.description == "Undo the answers of rules"
    wire.click(below.undo_button)
    assert [row[-1] for row in tab(panel).table.rows] == [None] * 3 + ["user"] * 2, "one run is one step"
    for _ in range(2):
        wire.click(below.undo_button)
    assert len(tab(panel).notes_of("A")) == 0
    assert below.undo_button.disabled


def test_rules_read_one_side_alone(pair: Any, browse: Any, found: Any) -> None:
    panel = browse(pair.base, sides="+", components=3)
    tab(panel).annotating.ask()
    settle(panel)
    assert panel.status.state == "done", panel.status.error
    expected = annotate_concepts(found[0], RuleAnnotator(), layers=[LAST], components=range(3), sign="+")
    for component in range(3):
        assert panel.annotations.annotation(LAST, component) == expected.annotation(LAST, component)


def test_answers_come_in_while_another_tab_is_looked_at(
    pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(7)
    monkeypatch.setattr(note_controls.NoteControls, "annotator", lambda self: slow)
    panel = browse(pair)
    tab(panel).annotating.ask()
    assert slow.entered.wait(120)
    panel.tab = "comparison"
    panel.cancel()
    assert panel.wait(120)
    panel.run()
    assert len(comparing(panel).notes_of("A")) == 7, "what is noted is one for both"
    panel.tab = "concepts"
    settle(panel)
    assert [row[-1] for row in tab(panel).table.rows] == ["slow"] * 7 + [None] * 13


def test_every_tab_says_what_runs_and_can_cancel_it(
    pair: Any, browse: Any, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(7)
    monkeypatch.setattr(note_controls.NoteControls, "annotator", lambda self: slow)
    panel = browse(pair.base, tab="neurons", prompt=PROMPT)
    panel.tab = "concepts"
    settle(panel)
    tab(panel).annotating.ask()
    assert slow.entered.wait(120)
    assert panel.status.text == "Annotating"
    panel.tab = "neurons"
    assert panel.status is neurons(panel).status is tab(panel).status
    assert (panel.status.state, panel.status.text) == ("running", "Annotating")
    panel.layer = 2
    panel.go()
    assert panel.status.text == "Annotating · then Computing (FFN neurons)"
    panel.tab = "concepts"
    assert panel.status.text.startswith("Annotating · then Computing")
    panel.tab = "neurons"
    wire.event(panel.status, event="cancel")
    assert panel.wait(120)
    assert panel.status.state == "cancelled"
    assert len(tab(panel).notes_of("A")) == 7, "what was annotated is kept"


def test_questions_of_two_tabs_are_two_runs_on_the_line(
    pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = browse(pair.base, tab="neurons", prompt=PROMPT)
    entered, go_on = threading.Event(), threading.Event()
    real = neurons(panel).compute

    def slow(*args: Any, **options: Any) -> Any:
        entered.set()
        assert go_on.wait(120)
        return real(*args, **options)

    monkeypatch.setattr(neurons(panel), "compute", slow)
    panel.target = " Rome"
    panel.go()
    assert entered.wait(120)
    panel.tab = "concepts"
    panel.go()
    assert panel.status.text == "Computing (FFN neurons) · then Computing (FFN concepts)"
    go_on.set()
    settle(panel)
    assert (panel.status.state, panel["concepts"].result is None) == ("done", False)
    assert neurons(panel).result.effects.target_token == " Rome"


class Slow:
    """An annotator that stops after a few answers until it is let go, or fails."""

    name = "slow"

    def __init__(self, answers: int, failure: str = "") -> None:
        self.left, self.failure = answers, failure
        self.entered = threading.Event()

    def annotate(self, words: Any, *, check: Any = None) -> Annotation:
        self.left -= 1
        if self.left < 0:
            if self.failure:
                return Annotation(source=self.name, failure=self.failure)
            self.entered.set()
            while True:
                check()
        return Annotation(f"about {words[0]}", (), "semantics", self.name)


def test_cancel_keeps_the_answers_so_far(pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(7)
    panel = browse(pair.base)
    monkeypatch.setattr(note_controls.NoteControls, "annotator", lambda self: slow)
    tab(panel).annotating.ask()
    assert slow.entered.wait(120)
    panel.cancel()
    assert panel.wait(120)
    assert panel.status.state == "cancelled"
    assert [row[-1] for row in tab(panel).table.rows] == ["slow"] * 7 + [None] * 13
    assert noted(panel, 0)[0].startswith("about ")


def test_an_annotator_that_fails_is_told_and_loses_nothing(
    pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(note_controls.NoteControls, "annotator", lambda self: Slow(2, failure="the server is away"))
    panel = browse(pair.base)
    tab(panel).annotating.ask()
    assert panel.wait(120)
    assert panel.status.state == "failed"
    assert "the server is away" in panel.status.error
    assert [row[-1] for row in tab(panel).table.rows[:2]] == ["slow"] * 2
    assert "no answer" in noted(panel, 2)[-1]


def test_the_endpoint_needs_a_model_and_shows_where_its_key_is_from(
    pair: Any, browse: Any, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-very-secret"
    monkeypatch.setitem(os.environ, "MY_KEY", secret)
    panel = browse(pair.base, annotator="endpoint", key_variable="MY_KEY")
    assert "<b>MY_KEY</b> (is set)" in tab(panel).annotating.key.value
    wire.click(tab(panel).annotating.ask_button)
    assert "the endpoint needs a model" in panel.status.error
    panel.endpoint_model, panel.base_url = "some-model", "ftp://nowhere"
    wire.click(tab(panel).annotating.ask_button)
    assert "base_url must be a plain address" in panel.status.error
    made = tab(panel).annotating
    panel.base_url = "http://localhost:9/v1"
    assert (made.annotator().model, made.annotator().key_variable) == ("some-model", "MY_KEY")
    assert not any(secret in str(data) for _, _, data in wire.sent), "the key never leaves the environment"


def test_an_endpoint_is_asked_and_its_key_kept_nowhere(
    pair: Any, browse: Any, wire: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MY_KEY", KEY)
    server = Server()
    server.replies = [GOOD]
    try:
        panel = browse(
            pair.base, annotator="endpoint", endpoint_model="tiny", base_url=server.url, key_variable="MY_KEY",
            components=3,
        )  # fmt: skip
        write(wire, panel, 1, "description", "mine")
        wire.click(tab(panel).annotating.ask_button)
        settle(panel)
        assert panel.status.state == "done", panel.status.error
    finally:
        server.close()
    assert [request["key"] for request in server.requests] == [f"Bearer {KEY}"] * 2
    assert noted(panel, 0) == ["dates", "writing, translation", "semantics", "tiny"]
    assert noted(panel, 1)[0] == "mine"
    tab(panel).annotating.file.value = str(tmp_path / "notes.npz")
    tab(panel).annotating.save()
    panel.save(tmp_path / "page.html")
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) == 4, "two answers, the notes, the page"
    assert not any(KEY.encode() in data for data in kept)
    assert KEY not in panel.current.code(panel.current.request()) + str([data for _, _, data in wire.sent])


def test_saved_components_open_without_the_model(pair: Any, browse: Any, wire: Any, found: Any, tmp_path: Path) -> None:
    panel = browse(pair)
    for letter, name in (("A", "one"), ("B", "two")):
        panel.view = letter
        write(wire, panel, 2, "description", f"note of {letter}", letter)
        tab(panel).annotating.file.value = str(tmp_path / f"{name}-notes.npz")
        tab(panel).annotating.save()
        tab(panel).annotating.save_components()
    notes = [tmp_path / "one-notes.npz", tmp_path / "two-notes.npz"]
    again = browse(tmp_path / "one-concepts.npz", str(tmp_path / "two-concepts.npz"), notes=notes, tab="comparison")
    settle(again)
    assert again.status.state == "done", again.status.error
    np.testing.assert_array_equal(again.result[0].plus, found[0].plus)
    assert comparing(again).comparison is not None
    assert "neurons" not in again.fitting
    again.tab = "concepts"
    settle(again)
    assert noted(again, 2)[0] == "note of A"
    again.view = "B"
    assert noted(again, 2)[0] == "note of B"
    space: dict[str, Any] = {}
    exec(again.current.code(again.current.request()), space)
    np.testing.assert_array_equal(space["result_b"].plus, found[1].plus)
    single = browse(found[0])
    assert single.layer == LAST
    with pytest.raises(T.TraitError, match="a saved result has no neurons"):
        single.tab = "neurons"
    with pytest.raises(TypeError, match="two saved results or two models"):
        FFNConceptBrowser(found[0], pair.tuned)
    with pytest.raises(FileNotFoundError, match="no result file"):
        FFNConceptBrowser("nowhere.npz")


# ---- neurons


def test_neurons_are_those_of_the_functions(pair: Any, browse: Any) -> None:
    panel = browse(pair.base, tab="neurons", layer=4)
    assert panel.status.state == "done", panel.status.error
    effects = neuron_effects(pair.base, PROMPT, TARGET, layer=4)
    np.testing.assert_allclose(panel.result.effects.effect, effects.effect, atol=1e-6)
    table = neurons(panel).table
    strongest = [neuron for neuron, _ in effects.strongest(100)]
    assert [row[0] for row in table.rows] == strongest
    assert table.selected == 0
    tokens = neuron_tokens(pair.base, layer=4, neurons=strongest[:1], top=10)
    assert neurons(panel).tokens.rows[0][1] == pytest.approx(tokens.tokens(strongest[0])[0][1], abs=1e-5)
    shade = bytes_floats(neurons(panel).strip.values)
    np.testing.assert_allclose(shade, effects.activation[:, strongest[0]], atol=1e-4)
    total = float(effects.effect.sum() + effects.bias_effect)
    assert total == pytest.approx(effects.mlp_effect, abs=1e-3)
    assert f"<b>{fixed(effects.mlp_effect, 2, '+')}</b>" in neurons(panel).summary.value


def test_what_a_neuron_raises_hangs_on_the_sign_of_its_activation(pair: Any, browse: Any) -> None:
    panel = browse(pair.base, tab="neurons")
    reading = panel.result
    row = neurons(panel).table.rows[0]
    assert row[1] < 0 < row[2], "the strongest neuron of the last layer is negative and raises Paris"
    suppressed = reading.tokens.tokens(row[0], suppressed=True)
    assert "·Paris" in row[-1]
    assert " Paris" in [token for token, _ in suppressed]
    assert "raises the tokens it suppresses" in neurons(panel).tokens.caption


def test_a_neuron_may_be_typed_before_there_is_a_result(pair: Any, wire: Any) -> None:
    panel = FFNConceptBrowser(pair.base, tab="neurons", live_seconds=0.0)
    assert panel.wait(60)
    part = neurons(panel)
    part.forget_results()
    assert not part.results
    wire.type(part.number, value=7)
    assert panel.wait(60)
    assert part.status.error == ""
    assert panel.neuron == 7
    panel.close()


def test_a_clicked_neuron_shows_its_tokens(pair: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair.base, tab="neurons")
    held = panel.result
    wire.type(neurons(panel).table, selected=5)
    assert panel.neuron == neurons(panel).table.rows[5][0]
    assert neurons(panel).tokens.caption.startswith(f"Neuron {panel.neuron}:")
    quiet = next(one for one in range(512) if one not in held.tokens.neurons)
    wire.type(neurons(panel).number, value=quiet)
    settle(panel)
    assert neurons(panel).table.rows[0][0] == quiet, "outside of the strongest: listed first"
    tokens = neuron_tokens(pair.base, layer=LAST, neurons=[quiet], top=10).tokens(quiet)
    assert [row[1] for row in neurons(panel).tokens.rows] == pytest.approx([score for _, score in tokens], abs=1e-5)
    dot = neurons(panel).chart.source.data["neuron"].index(9)
    neurons(panel).chart.source.selected.indices = [dot]
    settle(panel)
    assert panel.neuron == neurons(panel).number.value == 9
    assert panel.result is held


def test_another_layer_or_token_is_another_run(pair: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair.base, tab="neurons")
    panel.layer = 2
    settle(panel)
    expected = neuron_effects(pair.base, PROMPT, TARGET, layer=2)
    np.testing.assert_allclose(panel.result.effects.effect, expected.effect, atol=1e-6)
    wire.type(neurons(panel).strip, selected=2)
    settle(panel)
    assert (panel.position, panel.prompt_token, panel.result.effects.position) == (2, 2, 2)
    wire.type(neurons(panel).strip, selected=8)
    settle(panel)
    assert panel.position == -1
    panel.tab = "concepts"
    settle(panel)
    assert tab(panel).table.rows, "the components are there again"
    assert tab(panel).layers.selected == 2


def test_on_a_workbench(pair: Any, browse: Any) -> None:
    bench = Workbench(pair.base, prompt="The capital of France is", layer=3, neuron=7)
    one, other = browse(bench, tab="neurons", target=""), browse(bench)
    assert (one.layer, other.layer) == (3, 3)
    assert one.result.effects.target_token == " Paris"
    assert neurons(one).number.value == 7, "the neuron of the workbench"
    bench.select(layer=1, neuron=11)
    for panel in (one, other):
        settle(panel)
    assert one.result.effects.layer == 1
    assert neurons(one).number.value == 11
    assert tab(other).variance.chosen.data["layer"] == [1]
    neurons(one).pick_neuron(3)
    assert bench.neuron == neurons(other).neuron == 3


def test_a_token_chosen_before_the_tab_is_opened_is_looked_at(pair: Any, browse: Any) -> None:
    bench = Workbench(pair.base, prompt=PROMPT, prompt_token=2)
    panel = browse(bench)
    panel.tab = "neurons"
    settle(panel)
    assert (panel.position, panel.result.effects.position) == (2, 2)
    bench.select(prompt_token=4)
    settle(panel)
    assert panel.result.effects.position == 4


# ---- texts, and a neuron edited


def listed(panel: Any, index: int = 0) -> tuple[list[str], list[float]]:
    """Tokens and values of a strip of texts."""
    strip = panel.top_texts.strips[index]
    return list(strip.tokens), bytes_floats(strip.values).tolist()


def test_the_texts_of_a_component_and_of_a_neuron(pair: Any, browse: Any, found: Any, wire: Any) -> None:
    panel = browse(pair, layer=3, component=2, sample_texts=[])
    settle(panel)
    for view, model, result in (("A", pair.base, found[0]), ("B", pair.tuned, found[1])):
        panel.view = view
        settle(panel)
        wanted = text_activations(model, demo_texts(), layer=3, directions=result.directions[3][2]).top(0)
        shown = tab(panel).top_texts.found[0]  # texts of one activation may change places
        np.testing.assert_allclose([one.value for one in shown], [one.value for one in wanted], rtol=1e-4)
        first = shown[0]
        tokens, values = listed(tab(panel))
        assert tokens[0] == fixed(wanted[0].value, 2, "+")
        assert tokens[1:6] == [token.replace("\n", "↵") for token in first.tokens[:5]]
        np.testing.assert_allclose(values[1:6], first.values[:5], rtol=1e-5)
        assert tokens.count("\n") == 4, "one text below the other"
        assert f"{view}: The 5 of {len(demo_texts())} texts with the highest activation of component 2 of layer 3" in (
            tab(panel).top_texts.strips[0].label
        )
    wire.type(tab(panel).controls["texts_end"], index=1)
    assert panel.texts_end == "lowest"
    settle(panel)
    lowest = text_activations(pair.tuned, demo_texts(), layer=3, directions=found[1].directions[3][2])
    assert tab(panel).top_texts.found[0][0].value == pytest.approx(lowest.top(0, 1, lowest=True)[0].value, rel=1e-3)
    own = ["a cat", "Paris is the capital of France."]
    panel.sample_texts = own
    panel.tab = "neurons"
    panel.view = "difference"
    panel.neuron = 7
    settle(panel)
    for index, model in enumerate(pair):
        wanted = text_activations(model, own, layer=3, neurons=[7]).top(7, 2, lowest=True)
        assert [one.text for one in neurons(panel).top_texts.found[index]] == [one.text for one in wanted]
        assert listed(neurons(panel), index)[0][0] == fixed(wanted[0].value, 2, "+")
    assert panel.status.error == ""


def test_saved_components_have_no_texts(found: Any, browse: Any) -> None:
    panel = browse(found[0])
    assert tab(panel).top_texts.found == []
    assert "iw-hidden" in tab(panel).top_texts.box._dom_classes


def test_a_neuron_is_set_to_a_value_and_the_next_token_is_beside(pair: Any, browse: Any, wire: Any) -> None:
    panel = browse(pair.base, tab="neurons", prompt=PROMPT, target=TARGET, layer=4, neuron=11)
    edit, effects = neurons(panel).edit, panel.result.effects
    own = float(effects.activation[effects.position, 11])
    assert edit.slider.value == pytest.approx(own, abs=1e-6)
    assert (edit.table.rows, panel.coefficient) == ([], None)
    wire.type(edit.slider, value=own + 0.4 * edit.slider.step)
    assert panel.coefficient is None, "the page has only moved it onto a step"
    for value in (edit.slider.max, edit.slider.min, own):
        if value == own:
            panel.coefficient = own
        else:
            wire.type(edit.slider, value=value)
            assert panel.coefficient == value
        settle(panel)
        ids = pair.base.tokens(PROMPT)

        def change(post: torch.Tensor, value: float = value) -> torch.Tensor:
            post = post.clone()
            post[0, -1, 11] = value
            return post

        plain, changed = (
            pair.base.run(ids, edit=edits).logits[0, -1].double().softmax(-1)
            for edits in (None, {"blocks.4.mlp.hook_post": change})
        )
        token = int(plain.argmax())
        row = edit.table.rows[0]
        assert row[0] == pair.base.token_strings([token])[0].replace(" ", "·")
        assert row[1:] == pytest.approx([float(part[token]) for part in (plain, changed, changed - plain)], abs=1e-5)
        instead = "as it is" if value == own else f"instead of {fixed(own, 2)}"
        assert f"neuron 11 of layer 4 at {fixed(value, 2)} {instead}:" in edit.table.caption
    assert all(abs(row[3]) < 1e-5 for row in edit.table.rows), "set to what it is, nothing changes"
    moved = {row[0]: row[3] for row in edit.table.rows}
    wire.type(edit.slider, value=edit.slider.max)
    settle(panel)
    assert any(row[3] != moved.get(row[0]) for row in edit.table.rows)
    wire.click(edit.back)
    assert (panel.coefficient, edit.table.rows) == (None, [])
    panel.coefficient = 1.0
    panel.neuron = 12
    assert panel.coefficient is None, "another neuron is as it is"
    assert edit.slider.value == pytest.approx(float(effects.activation[effects.position, 12]), abs=1e-6)


# ---- two models


def test_two_models_side_by_side(pair: Any, browse: Any, wire: Any, found: Any) -> None:
    panel = browse(pair)
    assert tab(panel).table.rows[0][3] == ", ".join(found[0].words(LAST, 0, sign="+"))
    write(wire, panel, 0, "description", "of A")
    panel.view = "B"
    assert tab(panel).table.rows[0][3] == ", ".join(found[1].words(LAST, 0, sign="+"))
    assert noted(panel, 0) == [None] * 4, "each model has notes of its own"
    write(wire, panel, 0, "description", "of B", letter="B")
    panel.view = "difference"
    settle(panel)
    compared = compare_concepts(*found, rank=20)
    rows = tab(panel).table.rows
    assert [row[1] for row in rows] == compared.match[LAST].tolist()
    np.testing.assert_allclose([row[2] for row in rows], compared.match_cosine[LAST], atol=1e-6)
    chart = tab(panel).variance
    np.testing.assert_allclose(
        chart.chosen.data["ys"][0], 100 * (found[1].cumulative - found[0].cumulative)[LAST], atol=1e-9
    )
    assert tab(panel).layers.caption == "Layers of A and of B"
    first = [100 * one.explained_variance[:, 0] for one in found]
    np.testing.assert_allclose([row[1:3] for row in tab(panel).layers.rows], np.transpose(first))
    wire.type(tab(panel).layers, selected=2)
    assert panel.layer == 2
    assert tab(panel).top_texts.strips[0].label.startswith("A: "), "the components listed are those of A"
    assert [one.description(LAST, 0) for one in panel.annotations] == ["of A", "of B"]
    with pytest.raises(ValueError, match="choose A or B"):
        tab(panel).annotating.ask()


def test_the_comparison_is_that_of_the_functions(pair: Any, browse: Any, found: Any) -> None:
    panel = browse(pair, tab="comparison", layer=2)
    settle(panel)
    compared = compare_concepts(*found, rank=20)
    np.testing.assert_allclose(comparing(panel).comparison.angles, compared.angles, atol=1e-5)
    assert comparing(panel).angles.chosen.data["layer"] == [2]
    assert len(comparing(panel).matched.rows) == 20
    assert f"<b>{compared.overlap[2]:.0%}</b>" in comparing(panel).summary.value
    assert "Not annotated yet" in comparing(panel).scenarios.empty
    panel.components = 5
    settle(panel)
    np.testing.assert_allclose(comparing(panel).comparison.overlap, compare_concepts(*found, rank=5).overlap, atol=1e-5)


def test_a_cancelled_comparison_begins_again(pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = threading.Event()

    def endless(*results: Any, rank: int, progress: Any, check: Any) -> Any:
        entered.set()
        while True:
            check()

    panel = browse(pair, components=7)
    with monkeypatch.context() as patched:
        patched.setattr(components, "compare_concepts", endless)
        panel.tab = "comparison"
        assert entered.wait(120)
        assert "Matching the components" in comparing(panel).matched.empty
        panel.cancel()
        assert panel.wait(120)
    assert (panel.status.state, comparing(panel).comparison) == ("cancelled", None)
    panel.layer = 2
    assert panel.wait(120)
    assert len(comparing(panel).matched.rows) == 7


def test_models_that_cannot_be_compared_are_told(browse: Any, found: Any) -> None:
    few = replace(found[1], **{
        name: getattr(found[1], name)[:4]
        for name in ("layers", "explained_variance", "plus", "plus_scores", "minus", "minus_scores", "directions")
    })  # fmt: skip
    panel = browse(found[0], few, layer=2, view="difference")
    assert "must have the same layers" in panel.status.error
    assert "different layers" in tab(panel).variance.message
    assert "must have the same layers" in tab(panel).table.empty
    panel.view = "B"
    assert panel.status.error == "", "an error goes when its cause goes"
    assert len(tab(panel).layers.rows) == 4


def test_matched_words_are_turned_alike(pair: Any, browse: Any, found: Any) -> None:
    panel = browse(pair, tab="comparison", layer=1)
    settle(panel)
    a, b = found
    turned = 0
    for row in comparing(panel).matched.rows:
        cosine = float(a.directions[1, row[0]] @ b.directions[1, row[1]])
        assert abs(cosine) == pytest.approx(row[2], abs=1e-5)
        word, value = b.scores(1, row[1])[0]
        assert row[6].startswith(word if value * cosine > 0 else f"−{word}")
        turned += cosine < 0
    assert 0 < turned < 20, "some components come out with the other sign"


def test_annotated_models_are_compared_by_scenario_and_level(pair: Any, browse: Any, found: Any) -> None:
    notes = [annotate_concepts(one, RuleAnnotator(), components=range(20)) for one in found]
    panel = browse(pair, tab="comparison", notes=notes)
    settle(panel)
    assert comparing(panel).annotated is not None, panel.status.error
    expected = compare_annotations(*notes).level_table()
    rows = {row[0]: row for row in comparing(panel).levels.rows}
    for one in expected.to_dict("records"):
        assert rows[one["category"]][3] == pytest.approx(one["difference"], abs=0.01, rel=0.01)
    assert len(comparing(panel).scenarios.rows) == 6
    assert comparing(panel).moved.rows
    assert "Too few concepts for a test" in comparing(panel).noted_summary.value


def test_neurons_of_two_models(pair: Any, browse: Any) -> None:
    panel = browse(pair, tab="neurons", view="difference")
    a, b = panel.result
    row = neurons(panel).table.rows[0]
    assert row[6] == pytest.approx(float(b.effects.effect[row[0]] - a.effects.effect[row[0]]), abs=1e-6)
    np.testing.assert_allclose(neurons(panel).chart.source.data["x"], a.effects.effect, atol=1e-6)
    shade = bytes_floats(neurons(panel).strip.values)
    np.testing.assert_allclose(
        shade, b.effects.activation[:, row[0]] - a.effects.activation[:, row[0]], atol=1e-3
    )  # fmt: skip


def test_the_comparison_needs_two_models(pair: Any, browse: Any) -> None:
    with pytest.raises(T.TraitError, match="the tab 'comparison' needs two models"):
        FFNConceptBrowser(pair.base, tab="comparison")
    panel = browse(pair.base)
    with pytest.raises(T.TraitError, match="the tab 'comparison' needs two models"):
        panel.tab = "comparison"
    assert (panel.tab, panel.status.state) == ("concepts", "done")


# ---- what goes wrong


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"word_list": "own"}, "there are no words yet"),
        ({"word_list": "file", "word_file": "/nowhere/words.txt"}, "there is no file of words"),
        ({"vectors": "/nowhere/vectors.txt"}, "there is no file of word vectors"),
        ({"tab": "neurons", "prompt": ""}, "the prompt is empty"),
        ({"tab": "neurons", "target": "Eiffel Tower"}, "the target must be one token"),
        ({"tab": "neurons", "position": 99}, "position must be in"),
    ],
)
def test_bad_input_is_a_sentence_and_loses_nothing(pair: Any, browse: Any, change: Any, sentence: str) -> None:
    panel = browse(pair.base)
    good, rows = panel.result, tab(panel).table.rows
    for name, value in change.items():
        setattr(panel, name, value)
    if panel.status.state != "failed":
        panel.go()
        assert panel.wait(120)
    assert sentence in complaint(panel)
    assert panel.hints or "position" in change, "a box that is not filled in is no failure"
    assert panel.result is good or panel.tab == "neurons"
    assert tab(panel).results == (good,)
    panel.tab = "concepts"
    assert tab(panel).table.rows == rows or tab(panel).table.rows


def test_words_of_ones_own(pair: Any, browse: Any) -> None:
    panel = browse(pair.base, word_list="own", words=WORDS)
    assert set(panel.result.vocabulary) == set(WORDS)
    assert "8 words" in tab(panel).summary.value


@pytest.mark.parametrize(
    ("family", "backend", "dtype"),
    [("gpt2", "hooked", torch.float32), ("gpt2", "bridge", torch.float32), ("gpt_neox", "hooked", torch.float32),
     ("llama", "hooked", torch.bfloat16)],
)  # fmt: skip
def test_opens_on_either_backend_and_in_half_precision(browse: Any, family: str, backend: Any, dtype: Any) -> None:
    model = tiny_model(family, backend, dtype=dtype, seed=HALF_SEED)
    panel = browse(model, prompt="The cat sat on the mat", target="", sample_texts=[])
    assert panel.status.state == "done", panel.status.error
    assert len(tab(panel).table.rows) == min(20, panel.result.rank)
    panel.tab = "neurons"
    settle(panel)
    assert panel.status.state == "done", panel.status.error
    assert len(neurons(panel).table.rows) == min(100, model.d_mlp)


def test_partial_results_are_drawn(pair: Any, browse: Any) -> None:
    panel = browse(pair.base, layer=1)
    parts: list[Any] = []
    request = tab(panel).request()
    request.answer(pair.base, progress=None, check=lambda: None, on_partial=parts.append)
    assert len(parts) == 5
    tab(panel)._show_partial(Outcome(request, (parts[2],), 0.0, partial=True))
    assert [row[0] for row in tab(panel).layers.rows] == [0, 1, 2]
    assert "Stopped early" in tab(panel).summary.value
    panel.layer = 4
    assert tab(panel).summary.value == "This layer has not been computed yet."
    assert tab(panel).table.rows == []
    assert tab(panel).bars.message


def test_cancel_and_close_during_a_run(pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    panel = browse(pair.base)
    cancelled_and_closed(panel.current, monkeypatch, lambda: setattr(panel, "rank", 7))


# ---- what is taken away


@pytest.mark.parametrize(
    "options",
    [{}, {"rank": 9, "top": 4, "word_list": "own", "words": WORDS}, {"tab": "comparison", "components": 6}],
)
def test_copied_code_reproduces_the_components(
    pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("interp_widgets.load_model", {"demo-base": pair.base, "demo-tuned": pair.tuned}.__getitem__)
    panel = browse(pair, **options)
    space: dict[str, Any] = {}
    exec(panel.current.code(panel.current.request()), space)
    for letter, result in zip("ab", panel.result, strict=True):
        np.testing.assert_array_equal(space[f"result_{letter}"].plus, result.plus)
    if "tab" in options:
        np.testing.assert_allclose(space["comparison"].angles, comparing(panel).comparison.angles, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"position": 3, "target": ""}, {"response": " Paris and", "target": ""}])
def test_copied_code_reproduces_the_neurons(
    pair: Any, browse: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("interp_widgets.load_model", {"demo-base": pair.base}.__getitem__)
    panel = browse(pair.base, tab="neurons", **{"prompt": PROMPT, "target": TARGET, **options})
    space: dict[str, Any] = {}
    exec(panel.current.code(panel.current.request()), space)
    np.testing.assert_allclose(space["effects"].effect, panel.result.effects.effect, atol=1e-6)
    np.testing.assert_array_equal(space["tokens"].promoted, panel.result.tokens.promoted)


def test_saving(pair: Any, browse: Any, wire: Any, tmp_path: Path) -> None:
    panel = browse(pair)
    write(wire, panel, 3, "description", "<i>mine</i>")
    write(wire, panel, 3, "scenarios", ["math"])
    formats = {"concepts": (".csv", ".parquet", ".svg", ".html"), "neurons": (".csv", ".svg"),
               "comparison": (".csv", ".png")}  # fmt: skip
    for name, suffixes in formats.items():
        panel.tab = name
        settle(panel)
        for suffix in suffixes:
            assert panel.save(tmp_path / f"{name}{suffix}").stat().st_size > 500
    table = pd.read_csv(tmp_path / "concepts.csv", keep_default_na=False)
    assert len(table) == 2 * 6 * 192
    mine = table[(table.model == "A") & (table.layer == LAST) & (table.component == 3)].iloc[0]
    assert (mine.description, mine.scenarios, mine.noted_by) == ("<i>mine</i>", "math", "user")
    assert "&lt;i&gt;mine" in (tmp_path / "concepts.svg").read_text(encoding="utf-8")
    assert len(pd.read_csv(tmp_path / "comparison.csv")) == 6 * 20
    assert len(pd.read_csv(tmp_path / "neurons.csv")) == 2 * 512


def test_the_picture_of_a_difference_is_of_the_difference(pair: Any, browse: Any, tmp_path: Path) -> None:
    panel = browse(pair, components=3)
    for view, words in (("A", "first components, A: demo-base"), ("difference", "first components, B − A")):
        panel.view = view
        settle(panel)
        picture = panel.save(tmp_path / f"{view}.svg").read_text(encoding="utf-8")
        assert words in picture
        assert ("their matches in B" in picture) == (view == "difference")


def test_notes_from_several_threads_are_all_kept(pair: Any, browse: Any, wire: Any) -> None:
    """As from a browser whose messages come in threads of their own, while an annotator's answers come in."""
    panel = browse(pair.base, scope="all")
    tab(panel).annotating.ask()

    def type_in(layer: int) -> None:
        for component in range(10):
            key = f"A/{layer}/{component}"
            wire.event(tab(panel).table, kind="edit", key=key, column="description", value=f"typed {key}")

    at_once(*(partial(type_in, layer) for layer in range(3)))
    settle(panel)
    notes = tab(panel).notes_of("A")
    for layer in range(6):
        for component in range(20):
            mine = layer < 3 and component < 10
            assert (notes[layer, component].source == "user") == mine
            if mine:
                assert notes[layer, component].description == f"typed A/{layer}/{component}"


def test_closing_leaves_no_comm(pair: Any, wire: Any) -> None:
    before = wire.open()
    panel = FFNConceptBrowser(pair)
    panel.tab = "comparison"
    panel.wait(120)
    panel.tab = "neurons"
    panel.wait(120)
    panel.close()
    assert wire.open() - before <= 2
