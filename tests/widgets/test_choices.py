"""What a keyword chooses and the results do not have is told in the panel, beside the picture, for every widget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import traitlets as T

from interp_widgets import (
    AblationPanel,
    ConceptBrowser,
    FFNConceptBrowser,
    HeadWordBrowser,
    LogitLensExplorer,
    MoDRoutingViewer,
    SaliencyExplorer,
    TokenDecompositionExplorer,
    demo_concepts,
    demo_word_vectors,
    ffn_concepts,
    head_word_pairs,
    load_demo_pair,
)
from tests.widgets.opening import opening, settle
from tests.widgets.trouble import complaint

pytestmark = pytest.mark.slow

WORDS = list(demo_word_vectors().words[:60])
PROMPT = "The dog lives in"


@pytest.fixture(scope="module")
def sources() -> dict[type, tuple[Any, dict[str, Any]]]:
    """What each widget is opened on: a model or, where that is enough, a result."""
    model = load_demo_pair().base
    texts = {"prompt": PROMPT}
    return {
        AblationPanel: (model, texts),
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
        (LogitLensExplorer, {"reading": 99}, "reading must be in 0..6 for the layers and the output"),
        (LogitLensExplorer, {"prompt_token": 99}, "prompt_token must be in 0..4 for the tokens of this prompt, got 99"),
        (AblationPanel, {"position": 99}, "position must be in 0..4 for the tokens that the model has read, got 99"),
        (AblationPanel, {"prompt_token": 99}, "prompt_token must be in 0..4 for the tokens of this prompt, got 99"),
        (TokenDecompositionExplorer, {"source": 99}, "source must be in 0..5 for the tokens that were"),
        (TokenDecompositionExplorer, {"column": 99}, "column must be in 0..6 for the layers and the final norm"),
        (TokenDecompositionExplorer, {"prompt_token": 99}, "prompt_token must be in 0..4 for the"),
        (SaliencyExplorer, {"prompt_token": 99}, "prompt_token must be in 0..4 for the tokens of this prompt, got 99"),
        (SaliencyExplorer, {"response_token": 99}, "response_token must be in 0..1 for the tokens of this response"),
        (HeadWordBrowser, {"dimension": 99}, "dimension must be in 0..31 for the dimensions of a head, got 99"),
        (HeadWordBrowser, {"pair": ["zzz", "the"]}, "pair must be of the words of the list, got 'zzz'"),
        (HeadWordBrowser, {"word": "zzz"}, "the word 'zzz' is not among the 60 words of the list"),
        (ConceptBrowser, {"concept": "zzz"}, "concept must be of the 3 concepts here, got 'zzz'"),
        (ConceptBrowser, {"chosen": ["zzz"]}, "chosen must be of the 3 concepts here, got 'zzz'"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_told_beside_the_result(
    view: Callable[..., Any], kind: type, chosen: dict[str, Any], message: str
) -> None:
    panel = view(kind, **chosen)
    assert panel.result is not None, "a wrong choice is no reason to show nothing"
    assert message in complaint(panel)


def test_what_is_there_is_kept(view: Callable[..., Any]) -> None:
    assert view(SaliencyExplorer, prompt_token=1).prompt_token == 1
    assert view(SaliencyExplorer, response_token=1).response_token == 1
    assert view(HeadWordBrowser, dimension=3).dimension == 3
    assert view(HeadWordBrowser, word="THE").word == "the"
    for kind, chosen in ((FFNConceptBrowser, {"component": 4}), (LogitLensExplorer, {"position": 3, "reading": 6})):
        panel = view(kind, **chosen)
        assert not panel.status.error
        assert {name: getattr(panel, name) for name in chosen} == chosen


def test_a_later_choice_is_told_too_and_a_good_one_ends_it(view: Callable[..., Any]) -> None:
    panel = view(FFNConceptBrowser)
    panel.component = 5
    assert panel.status.error == "component must be in 0..4 for the 5 components computed, got 5"
    panel.component = 2
    assert not panel.status.error
    assert panel.status.state == "idle"


def test_what_was_chosen_in_results_before_is_no_error(view: Callable[..., Any]) -> None:
    panel = settle(view(FFNConceptBrowser, model=load_demo_pair().base, words=WORDS, rank=5, top=4, component=4))
    assert panel.status.state == "done"
    panel.rank = 3
    settle(panel)
    assert (panel.result.rank, panel.status.state, panel.status.error) == (3, "done", "")


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (LogitLensExplorer, {"response": " the house", "response_token": 9}, r"response_token must be in 0\.\.1 "),
        (LogitLensExplorer, {"response_token": 9}, "response_token 9 needs a response, and there is none: give one"),
        (LogitLensExplorer, {"threshold": float("nan")}, "threshold of LogitLensExplorer must be a number, got nan"),
        (AblationPanel, {"noise": float("nan")}, "noise of AblationPanel must be a number, got nan"),
        (SaliencyExplorer, {"p": float("nan")}, "p of SaliencyExplorer must be a number, got nan"),
        (ConceptBrowser, {"strength": float("nan")}, "strength of ConceptBrowser must be a number, got nan"),
        (ConceptBrowser, {"steer_from": 99}, r"steer_from must be in 0\.\.6, the layers of demo-base .*, got 99"),
        (ConceptBrowser, {"concepts": 3}, "concepts must be Concept objects, got 3: make them with"),
        (MoDRoutingViewer, {"learning_rate": float("nan")}, "learning_rate of MoDRoutingViewer must be a number, got"),
        (MoDRoutingViewer, {"dataset": -5}, "dataset must be a list of examples or None, got -5: demo_problems"),
        (MoDRoutingViewer, {"problems": "arc.json"}, "problems must be a list of examples or None, got 'arc.json'"),
        (MoDRoutingViewer, {"chosen": [3]}, r"chosen must be in 0\.\.0 for the mixtures of A, got 3"),
        (MoDRoutingViewer, {"chosen": []}, r"chosen must name one mixture per model, 1 in all, got \[\]"),
        (HeadWordBrowser, {"top": 1001}, "'top' trait of a HeadWordBrowser instance should not be greater than 1000"),
        (HeadWordBrowser, {"keep": 10**9}, "'keep' trait of a HeadWordBrowser .* not be greater than 100000"),
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


def test_a_picture_that_fails_is_no_run_under_way(view: Callable[..., Any]) -> None:
    panel = view(SaliencyExplorer, threshold=99)
    assert panel.status.state == "failed"
    assert "threshold must be in 0..10" in panel.status.error
    panel.threshold = 1
    settle(panel)
    assert panel.status.state == "done"
    assert panel.result is not None
