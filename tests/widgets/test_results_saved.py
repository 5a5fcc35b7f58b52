"""Every panel's result is saved whole and opens again: each tab, one model and two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import interp_widgets
from interp_widgets import Result, Results
from interp_widgets.data.concepts import demo_concepts
from interp_widgets.widgets.base.controls import instruction
from interp_widgets.widgets.base.saving import formats
from tests.widgets.opening import settle
from tests.widgets.saved_pages import instructions, read

PROMPT = "The Eiffel Tower is located in the city of"
WORDS = ["Paris", "London", "Berlin", "Rome", "the", "of", "in", "a", "and", "is"]
FEW = demo_concepts()[:8]
QUICK: dict[str, dict[str, Any]] = {
    "SaliencyExplorer": {"prompt": "Paris is", "response": " in"},
    "LogitLensExplorer": {"prompt": PROMPT},
    "AblationPanel": {"prompt": "Paris is in", "corrupted": "Berlin is in"},
    "TokenDecompositionExplorer": {"prompt": "Paris is in"},
    "HeadWordBrowser": {"word_list": "own", "words": WORDS, "top": 3},
    "FFNConceptBrowser": {"word_list": "own", "words": WORDS, "rank": 4},
    "ConceptBrowser": {"concepts": FEW, "prompt": "Paris is in", "max_new_tokens": 2},
    "MoDRoutingViewer": {"prompt": "Paris is in", "k": 2},
}


@pytest.fixture(scope="module")
def pair() -> Any:
    return interp_widgets.load_demo_pair()


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def opened(kind: str, *models: Any) -> Any:
        made.append(getattr(interp_widgets, kind)(*models, **QUICK[kind]))
        return settle(made[-1])

    yield opened
    for panel in made:
        panel.close()


def again(panel: Any, path: Path) -> Any:
    """The result on the screen, from a file."""
    held = getattr(panel, "current", panel).stored()
    found = Result.load(panel.save(path))
    assert found.equals(held)
    assert type(found) is type(held)
    return found


@pytest.mark.seconds
@pytest.mark.parametrize("kind", QUICK)
def test_one_model_and_two(kind: str, opened: Callable[..., Any], pair: Any, tmp_path: Path) -> None:
    one = opened(kind, pair.base)
    assert formats(getattr(one, "current", one))[-1] == ".npz"
    again(one, tmp_path / "one.npz")
    two = opened(kind, pair)
    files = {}
    for view in ("A", "B", "difference"):
        two.view = view
        assert two.wait(60)
        files[view] = again(two, tmp_path / f"{view}.npz")
    both = files["difference"]
    assert isinstance(both, Results)
    if kind not in ("TokenDecompositionExplorer", "ConceptBrowser"):
        assert both.names == ("A", "B")
        assert both["A"].equals(files["A"])
        assert both["B"].equals(files["B"])
        assert not both["A"].equals(both["B"])


def tabs_of_saliency(panel: Any) -> Iterator[str]:
    panel.tab = "check"
    with pytest.raises(ValueError, match="no result to save on the tab Check yet"):
        panel.current.stored()
    panel.current.run_button.click()
    yield "check"
    panel.tab, panel.case_count = "data_set", 2
    panel.current.run_button.click()
    yield "data set"


def tabs_of_ablation(panel: Any) -> Iterator[str]:
    for panel.tab in ("heads", "tracing"):
        if panel.tab == "tracing":
            panel.prompt, panel.subject, panel.samples = PROMPT, "Eiffel Tower", 2
        settle(panel)
        yield panel.tab


def tabs_of_head_words(panel: Any) -> Iterator[str]:
    panel.tab = "comparison"
    yield "comparison"


def tabs_of_ffn_concepts(panel: Any) -> Iterator[str]:
    for panel.tab in ("neurons", "comparison"):
        settle(panel)
        yield panel.tab


def tabs_of_concepts(panel: Any) -> Iterator[str]:
    for panel.tab in ("quality", "read", "steer", "compare"):
        yield settle(panel).tab


TABS = {
    "SaliencyExplorer": tabs_of_saliency,
    "AblationPanel": tabs_of_ablation,
    "HeadWordBrowser": tabs_of_head_words,
    "FFNConceptBrowser": tabs_of_ffn_concepts,
    "ConceptBrowser": tabs_of_concepts,
}


@pytest.mark.seconds
@pytest.mark.parametrize("kind", TABS)
def test_every_tab(kind: str, opened: Callable[..., Any], pair: Any, tmp_path: Path) -> None:
    panel = opened(kind, pair)
    for name in TABS[kind](panel):
        assert panel.wait(120)
        assert not panel.status.error, name
        again(panel, tmp_path / f"{name}.npz")


@pytest.mark.seconds
@pytest.mark.parametrize("kind", QUICK)
def test_no_page_tells_its_reader_to_do_what_needs_a_kernel(
    kind: str, opened: Callable[..., Any], pair: Any, tmp_path: Path
) -> None:
    panel = opened(kind, pair)
    saved = 0
    for tab in getattr(panel, "fitting", [""]):
        if tab:
            panel.tab = tab
            assert panel.wait(120)
        panel.view = "difference"
        assert panel.wait(120)
        try:
            page = panel.save(tmp_path / f"page-{tab}.html")
        except ValueError as error:
            if "nothing to save" not in str(error):
                raise
            continue
        assert instructions(page) == [], tab
        saved += 1
    assert saved


def test_instructions_are_on_the_screen_and_in_no_page(opened: Callable[..., Any], pair: Any, tmp_path: Path) -> None:
    panel = opened("LogitLensExplorer", pair.base)
    assert panel.about.table.instruction == "click one to follow it"
    panel.map.story.value += instruction("; click a cell")
    page = panel.save(tmp_path / "page.html")
    assert instructions(page) == []
    assert "Likeliest tokens after" in " ".join(read(page.read_text(encoding="utf-8")))
    panel.about.table.caption += ", click one"
    assert len(instructions(panel.save(page))) == 1, "else the check finds nothing"


def test_a_name_that_is_not_there(pair: Any, opened: Callable[..., Any]) -> None:
    panel = opened("LogitLensExplorer", pair)
    both = Results(["A", "B"], panel.results)
    with pytest.raises(KeyError, match="there is no result 'C': A, B"):
        both["C"]
