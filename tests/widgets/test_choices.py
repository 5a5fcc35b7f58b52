"""What a keyword chooses and the results do not have is told in the panel, beside the picture, for every widget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import traitlets as T

from interp_widgets import (
    AblationPanel,
    AttentionExplorer,
    ConceptBrowser,
    FFNConceptBrowser,
    HeadWordBrowser,
    LogitLensExplorer,
    MoDRoutingViewer,
    SaliencyExplorer,
    TokenDecompositionExplorer,
    Workbench,
    demo_concepts,
    demo_word_vectors,
    ffn_concepts,
    head_word_pairs,
)
from interp_widgets.widgets.saliency.saliency_map import SaliencyMap
from tests.shipped import demo_pair
from tests.widgets.opening import opening, settle
from tests.widgets.trouble import complaint

pytestmark = pytest.mark.slow

WORDS = list(demo_word_vectors().words[:60])
PROMPT = "The dog lives in"
WITHOUT: dict[str, Any] = {"component": 0, "pair": [], "concept": "France", "chosen": []}
"""What an option holds where nothing that is there is chosen, if not -1."""


@pytest.fixture(scope="module")
def sources() -> dict[type, tuple[Any, dict[str, Any]]]:
    """What each widget is opened on: a model or, where that is enough, a result."""
    model = demo_pair().base
    texts = {"prompt": PROMPT}
    return {
        AblationPanel: (model, texts),
        AttentionExplorer: (model, texts),
        LogitLensExplorer: (model, texts),
        MoDRoutingViewer: (model, texts),
        TokenDecompositionExplorer: (model, texts),
        SaliencyExplorer: (model, {**texts, "response": " the house"}),
        FFNConceptBrowser: (ffn_concepts(model, words=WORDS, rank=5, top=4), {}),
        HeadWordBrowser: (head_word_pairs(model, words=WORDS, top=5, keep=5), {}),
        ConceptBrowser: (model, {"concepts": demo_concepts()[:3]}),
    }


@pytest.fixture
def view(sources: dict[type, tuple[Any, dict[str, Any]]]) -> Iterator[Callable[..., Any]]:
    def make(kind: Any, *, model: Any = None, **options: Any) -> Any:
        usual_model, usual = sources[kind]
        return kind(usual_model if model is None else model, **{**usual, **options})

    with opening(make) as build:
        yield build


@pytest.mark.parametrize(
    ("kind", "chosen", "message"),
    [
        (FFNConceptBrowser, {"component": 99}, "component must be in 0..4 for the 5 components computed, got 99"),
        (MoDRoutingViewer, {"prompt_token": 99}, "prompt_token must be in 0..4 for the tokens of this prompt, got 99"),
        (LogitLensExplorer, {"position": 99}, "position must be in 0..4 for the tokens of prompt and response, got 99"),
        (LogitLensExplorer, {"lens_layer": 99}, "lens_layer must be in 0..6 for the layers and the output"),
        (LogitLensExplorer, {"prompt_token": 99}, "prompt_token must be in 0..4 for the tokens of this prompt, got 99"),
        (AblationPanel, {"position": 99}, "position must be in 0..4 for the tokens that the model has read, got 99"),
        (AblationPanel, {"prompt_token": 99}, "prompt_token must be in 0..4 for the tokens of this prompt, got 99"),
        (AttentionExplorer, {"position": 99}, "position must be in 0..4 for the tokens that the model has read, got"),
        (AttentionExplorer, {"attended": 99}, "attended must be in 0..5 for the tokens that the model has read"),
        (TokenDecompositionExplorer, {"source": 99}, "source must be in 0..5 for the tokens of the"),
        (TokenDecompositionExplorer, {"column": 99}, "column must be in 0..6 for the layers and the final norm"),
        (TokenDecompositionExplorer, {"prompt_token": 99}, "prompt_token must be in 0..4 for the"),
        (SaliencyExplorer, {"prompt_token": 99}, "prompt_token must be in 0..4 for the tokens of this prompt, got 99"),
        (SaliencyExplorer, {"response_token": 99}, "response_token must be in 0..1 for the tokens of this response"),
        (HeadWordBrowser, {"dimension": 99}, "dimension must be in 0..31 for the dimensions of a head, got 99"),
        (HeadWordBrowser, {"pair": ["zzz", "the"]}, "pair must be one of the words of the list, got 'zzz'"),
        (HeadWordBrowser, {"word": "zzz"}, "the word 'zzz' is not among the 60 words of the list"),
        (ConceptBrowser, {"concept": "zzz"}, "concept must be one of the 3 concepts here, got 'zzz'"),
        (ConceptBrowser, {"chosen": ["zzz"]}, "chosen must be one of the 3 concepts here, got 'zzz'"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_beside_the_result(
    view: Callable[..., Any], kind: type, chosen: dict[str, Any], message: str
) -> None:
    panel = view(kind, **chosen)
    assert panel.result is not None, "a wrong choice is no reason to show nothing"
    assert message in complaint(panel)
    if "word" not in chosen:  # which the user goes on typing: a hint stands beside it
        assert {name: getattr(panel, name) for name in chosen} == {name: WITHOUT.get(name, -1) for name in chosen}


def test_what_is_there_is_kept(view: Callable[..., Any]) -> None:
    assert view(SaliencyExplorer, prompt_token=1).prompt_token == 1
    assert view(SaliencyExplorer, response_token=1).response_token == 1
    assert view(HeadWordBrowser, dimension=3).dimension == 3
    assert view(HeadWordBrowser, word="THE").word == "the"
    for kind, chosen in ((FFNConceptBrowser, {"component": 4}), (LogitLensExplorer, {"position": 3, "lens_layer": 6})):
        panel = view(kind, **chosen)
        assert not panel.status.error
        assert {name: getattr(panel, name) for name in chosen} == chosen


def test_a_later_choice_is_told_too_and_a_good_one_ends_it(view: Callable[..., Any]) -> None:
    panel = view(FFNConceptBrowser)
    panel.component = 3
    panel.component = 5
    assert panel.status.error == "component must be in 0..4 for the 5 components computed, got 5"
    assert panel.component == 3, "the last one that was there"
    panel.component = 2
    assert not panel.status.error
    assert panel.status.state == "idle"


@pytest.mark.parametrize(
    ("kind", "option", "good", "wrong", "message"),
    [
        (FFNConceptBrowser, "component", 3, 5, "component must be in 0..4 for the 5 components"),
        (LogitLensExplorer, "position", 2, 99, "position must be in 0..4"),
        (LogitLensExplorer, "lens_layer", 2, 99, "lens_layer must be in 0..6"),
        (LogitLensExplorer, "prompt_token", 2, 99, "prompt_token must be in 0..4"),
        (AblationPanel, "position", 2, 99, "position must be in 0..4"),
        (AttentionExplorer, "attended", 2, 99, "attended must be in 0..5"),
        (AblationPanel, "heads_at", 2, 99, "position must be in -5..4"),
        (TokenDecompositionExplorer, "source", 2, 99, "source must be in 0..5"),
        (TokenDecompositionExplorer, "column", 2, 99, "column must be in 0..6"),
        (TokenDecompositionExplorer, "position", 2, 99, "position must be in -5..4"),
        (SaliencyExplorer, "response_token", 1, 9, "response_token must be in 0..1"),
        (MoDRoutingViewer, "prompt_token", 2, 99, "prompt_token must be in 0..4"),
        (HeadWordBrowser, "dimension", 2, 99, "dimension must be in 0..31"),
        (HeadWordBrowser, "pair", ["the", "a"], ["zzz", "the"], "pair must be one of the words of the list"),
        (ConceptBrowser, "concept", "animal", "zzz", "concept must be one of the 3 concepts here"),
    ],
)  # fmt: skip
def test_an_option_that_is_refused_keeps_the_last_good_value(
    view: Callable[..., Any], kind: type, option: str, good: Any, wrong: Any, message: str
) -> None:
    panel = view(kind, **({"tab": "heads"} if option == "heads_at" else {}))
    if option == "concept":
        good = sorted(panel.current.known)[-1]
    setattr(panel, option, good)
    settle(panel)
    assert (getattr(panel, option), panel.status.error) == (good, "")
    setattr(panel, option, wrong)
    settle(panel)
    assert message in panel.status.error
    assert getattr(panel, option) == good
    with panel.batch_changes():  # and beside another change
        setattr(panel, option, wrong)
        panel.view = "A"
    assert getattr(panel, option) == good


def test_an_option_that_is_refused_with_another_text_is_told_after_the_run(view: Callable[..., Any]) -> None:
    panel = view(TokenDecompositionExplorer)
    panel.live_seconds = float("inf")  # however slow this machine is
    with panel.batch_changes():
        panel.prompt = "The cat lives in the house"
        panel.position = 99
    settle(panel)
    assert panel.result.tokens.position == 6
    assert "position must be in -7..6" in panel.status.error
    assert panel.position == -1
    panel.position = 1
    settle(panel)
    assert (panel.status.error, panel.result.tokens.position) == ("", 1)


def test_a_choice_in_a_text_that_is_not_there_yet_waits_for_it(view: Callable[..., Any]) -> None:
    panel = view(LogitLensExplorer)
    with panel.batch_changes():
        panel.prompt = "The cat lives in the house of the old man"
        panel.position = 8
    settle(panel)
    assert (panel.position, panel.status.error) == (8, "")


def test_several_wrong_choices_are_all_taken_back(view: Callable[..., Any]) -> None:
    panel = view(LogitLensExplorer, position=99, lens_layer=98)
    assert "must be in" in panel.status.error
    assert (panel.position, panel.lens_layer) == (-1, -1)


def test_what_was_chosen_in_results_before_is_no_error(view: Callable[..., Any]) -> None:
    panel = settle(view(FFNConceptBrowser, model=demo_pair().base, words=WORDS, rank=5, top=4, component=4))
    assert panel.status.state == "done"
    panel.rank = 3
    settle(panel)
    assert (panel.result.rank, panel.status.state, panel.status.error) == (3, "done", "")


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (LogitLensExplorer, {"response": " the house", "response_token": 9}, r"response_token must be in 0\.\.1 "),
        (LogitLensExplorer, {"response_token": 9}, "response_token 9 needs a response, and there is none: pass one"),
        (LogitLensExplorer, {"threshold": float("nan")}, "threshold of LogitLensExplorer must be a number, got nan"),
        (AblationPanel, {"noise": float("nan")}, "noise of AblationPanel must be a number, got nan"),
        (SaliencyExplorer, {"p": float("nan")}, "p of SaliencyExplorer must be a number, got nan"),
        (ConceptBrowser, {"strength": float("nan")}, "strength of ConceptBrowser must be a number, got nan"),
        (ConceptBrowser, {"steer_from": 99}, r"steer_from must be in 0\.\.6, the layers of demo-base .*, got 99"),
        (ConceptBrowser, {"concepts": 3}, "concepts must be a list of Concept objects, got 3 in it"),
        (MoDRoutingViewer, {"learning_rate": float("nan")}, "learning_rate of MoDRoutingViewer must be a number, got"),
        (MoDRoutingViewer, {"dataset": -5}, "dataset must be a list of examples or None, got -5: demo_problems"),
        (MoDRoutingViewer, {"problems": "arc.json"}, "problems must be a list of examples or None, got 'arc.json'"),
        (MoDRoutingViewer, {"chosen": [3]}, r"chosen must be in 0\.\.1 for the mixtures of A, got 3"),
        (MoDRoutingViewer, {"chosen": []}, r"chosen must name one mixture per model, 1 in all, got \[\]"),
        (HeadWordBrowser, {"top": 1001}, r"top of HeadWordBrowser must be an int in 1\.\.1,000, got 1001"),
        (HeadWordBrowser, {"keep": 10**9}, r"keep of HeadWordBrowser must be an int in .*\.\.100,000"),
        (FFNConceptBrowser, {"layer": 9}, r"layer must be in 0\.\.5 for demo-base, got 9"),
        (AblationPanel, {"head": 9}, r"head must be in 0\.\.5 for demo-base, got 9"),
    ],
)  # fmt: skip
def test_what_can_be_known_at_once_is_raised(
    view: Callable[..., Any], kind: type, given: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, T.TraitError), match=message):
        view(kind, **given)


def test_a_saved_result_has_no_response_to_read(view: Callable[..., Any]) -> None:
    assert view(FFNConceptBrowser, response="the house").status.state == "done"


@pytest.mark.parametrize("nothing", [3, 1.5, [], "gpt2", object(), {}])
def test_what_is_no_model_is_told(nothing: Any) -> None:
    for kind in (LogitLensExplorer, SaliencyExplorer, AblationPanel):
        with pytest.raises(TypeError, match=r"a widget needs a loaded model, got .*: use load_model"):
            kind(nothing)


def test_a_picture_that_fails_is_no_run_under_way(view: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("this picture cannot be drawn")

    with monkeypatch.context() as broken:
        broken.setattr(SaliencyMap, "draw", fail)
        panel = view(SaliencyExplorer, threshold=2)
        assert panel.status.state == "failed"
        assert "this picture cannot be drawn" in panel.status.error
    panel.threshold = 1
    settle(panel)
    assert panel.status.state == "done"
    assert panel.result is not None


ODD = ("", "\\ud800", "zzzqqq", -5, 10**9, 1e30, float("nan"), None, True, [], ["a"], [[5, 2]], (1, 2), {"a": 1})
"""Values that nobody means."""
PYTHON = (
    "Error:",
    "NoneType",
    "object has no",
    "not iterable",
    "not supported between",
    "out of range",
    "object at 0x",
)
"""What only Python says, about its own objects."""


@pytest.mark.parametrize(
    "kind", [SaliencyExplorer, LogitLensExplorer, AblationPanel, TokenDecompositionExplorer, HeadWordBrowser,
             FFNConceptBrowser, ConceptBrowser, MoDRoutingViewer]
)  # fmt: skip
def test_whatever_an_option_is_set_to_the_answer_is_a_sentence(kind: Any, view: Callable[..., Any]) -> None:
    widget = view(kind)
    tabs = [tab for tab, panel in getattr(widget, "panels", {}).items() if not panel.missing_requirement(widget.models)]
    tried, refusals = 0, []
    for tab in tabs or [None]:
        if tab is not None:
            widget.tab = tab
            assert widget.wait(60)
        panel = widget.current if tabs else widget
        for name in panel.fields():
            before = getattr(widget, name)
            for value in ODD:
                tried += 1
                try:
                    setattr(widget, name, value)
                except (T.TraitError, ValueError) as error:
                    refusals.append(str(error))
                    continue
                assert widget.wait(60)
                for status in (widget.status, panel.status):
                    assert not any(word in status.error for word in PYTHON), f"{name} = {value!r}: {status.error}"
                setattr(widget, name, before)
                assert widget.wait(60)
    assert tried >= 100
    assert not [text for text in refusals if len(text) > 300 or "object at 0x" in text]


@pytest.mark.parametrize("opened", ["a tab", "a panel"])
def test_a_selected_token_of_an_earlier_response_is_left_out(wire: Any, opened: str) -> None:
    """Nobody passed it to the panel: it is the workbench's selection, whose response has gone since."""
    prompt = "The Eiffel Tower is in the city of"
    bench = Workbench(demo_pair().base, prompt=prompt, response=" Paris", response_token=0, live_seconds=0)
    with opening(lambda kind, **options: kind(bench, **options), wait=False) as build:
        stack = build(FFNConceptBrowser, tab="concepts")
        bench.select(response="")
        assert bench.response_token == 0
        if opened == "a tab":
            stack.tab = "neurons"
            panel = stack["neurons"]
        else:
            panel = build(LogitLensExplorer)
        assert not panel.status.error
        assert panel.response_token == bench.response_token == -1
        stack.cancel()
        assert stack.wait(120)
