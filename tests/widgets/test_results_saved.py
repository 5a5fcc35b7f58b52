"""Every panel's result is saved whole and opens again: each tab, one model and two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import interp_widgets
from interp_widgets import Result, Results
from interp_widgets.analysis.ablation import Ablation, ablation
from interp_widgets.data.concepts import demo_concepts
from interp_widgets.data.problems import Problem
from interp_widgets.data.word_vectors import demo_word_vectors
from interp_widgets.widgets.ablation.ablation_spec import AblationSpec, Listed, ReplacementValue
from interp_widgets.widgets.base.controls import instruction
from interp_widgets.widgets.base.lifetime import descendants
from interp_widgets.widgets.base.saving import formats
from interp_widgets.widgets.views.base import View
from tests.shipped import demo_pair
from tests.widgets.opening import settle
from tests.widgets.saved_pages import instructions, read

PROMPT = "The Eiffel Tower is located in the city of"
WORDS = ["Paris", "London", "Berlin", "Rome", "the", "of", "in", "a", "and", "is"]
FEW = demo_concepts()[:8]
MEAN = ReplacementValue("mean", ("Berlin is in", "The cat is in"))
DATA = [("The capital of France is", " Paris"), ("One two three", " four"), ("A pilot flies a", " plane")]
PROBLEMS = [Problem(prompt, answer, "", "task", check=lambda text: len(text) % 2 == 0) for prompt, answer in DATA[:2]]
QUICK: dict[str, dict[str, Any]] = {
    "SaliencyExplorer": {"prompt": "Paris is", "response": " in", "foil": " the"},
    "LogitLensExplorer": {"prompt": PROMPT},
    "AblationPanel": {"prompt": "Paris is in", "corrupted": "Berlin is in"},
    "PatchingPanel": {"pairs": ["Paris is in | Berlin is in", "Rome is in | Madrid is in"]},
    "TokenDecompositionExplorer": {"prompt": "Paris is in"},
    "HeadWordBrowser": {"word_list": "own", "words": [*demo_word_vectors().words[:120]], "top": 30, "keep": 20},
    "FFNConceptBrowser": {"word_list": "own", "words": WORDS, "rank": 4},
    "ConceptBrowser": {"concepts": FEW, "prompt": "Paris is in", "max_new_tokens": 2},
    "MoDRoutingViewer": {
        "prompt": "Paris is in", "dataset": DATA, "problems": PROBLEMS, "k": 2, "steps": 2, "batch_size": 2,
        "grid_steps": 1, "grid_ks": [1, 2], "n_problems": 2,
    },
    "LayerSimilarityExplorer": {},
    "AttentionExplorer": {"prompt": "Paris is in", "length": 10, "sequences": 2},
    "BiasWorkbench": {"splits": 2, "methods": ("leace",), "texts": ["The sun was warm."], "max_new_tokens": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


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
@pytest.mark.installation
@pytest.mark.parametrize("kind", QUICK)
def test_one_model_and_two(kind: str, opened: Callable[..., Any], pair: Any, tmp_path: Path) -> None:
    one = opened(kind, pair.base)
    assert formats(getattr(one, "current", one))[-1] == ".npz"
    again(one, tmp_path / "one.npz")
    tuned = opened(kind, pair.tuned)
    alone = getattr(tuned, "current", tuned).frame()
    two = opened(kind, pair)
    if kind == "AttentionExplorer":  # of two models it opens on a head of the first
        two.layer, two.head = tuned.layer, tuned.head
    files = {}
    for view in ("A", "B", "difference"):
        two.view = view
        assert two.wait(60)
        files[view] = again(two, tmp_path / f"{view}.npz")
        if (table := getattr(two, "current", two).frame()) is not None and "model" in table:
            assert list(table["model"].unique()) == ["A", "B"], "a table holds both, whichever is in view"
            own = table[table["model"] == "B"].drop(columns="model").reset_index(drop=True)
            if kind != "LayerSimilarityExplorer":  # its control models are those of the pair
                pd.testing.assert_frame_equal(own, alone, check_dtype=False)
    both = files["difference"]
    assert isinstance(both, Results)
    if kind not in ("TokenDecompositionExplorer", "ConceptBrowser"):
        assert both.names[:2] == ("A", "B")  # behind them what is of both, such as sections of layers
        assert both["A"].equals(files["A"])
        assert both["B"].equals(files["B"])
        assert not both["A"].equals(both["B"])


def run(panel: Any, tab: str, **options: Any) -> None:
    """Open a tab and let it answer."""
    with panel.batch_changes():
        for name, value in {"tab": tab, **options}.items():
            setattr(panel, name, value)
    settle(panel)


def tabs_of_saliency(panel: Any) -> Iterator[str]:
    yield "map"
    panel.tab = "check"
    with pytest.raises(ValueError, match="no result to save on the tab Check yet"):
        panel.current.stored()
    run(panel, "check")
    yield "check"
    run(panel, "data_set", case_count=4)
    yield "data_set"


def tabs_of_ablation(panel: Any) -> Iterator[str]:
    for tab in ("modules", "heads"):
        run(panel, tab)
        yield tab
    run(panel, "tracing", prompt=PROMPT, subject="Eiffel Tower", samples=2)
    yield "tracing"
    ablations = (Listed(AblationSpec("attn", 0, 3)), Listed(AblationSpec("mlp", 1, 2, None, MEAN)))
    run(panel, "text", ablations=ablations, max_new_tokens=3)
    yield "text"


def tabs_of_mixtures(panel: Any) -> Iterator[str]:
    for tab in panel.fitting:
        panel.tab = tab
        (panel.current.tune if tab == "tune" else panel.current.go)()
        yield tab


def all_tabs(panel: Any) -> Iterator[str]:
    for tab in panel.fitting:
        run(panel, tab)
        yield tab


TABS = {
    "SaliencyExplorer": tabs_of_saliency,
    "AblationPanel": tabs_of_ablation,
    "PatchingPanel": all_tabs,
    "HeadWordBrowser": all_tabs,
    "FFNConceptBrowser": all_tabs,
    "ConceptBrowser": all_tabs,
    "BiasWorkbench": all_tabs,
    "LayerSimilarityExplorer": all_tabs,
    "AttentionExplorer": all_tabs,
    "MoDRoutingViewer": tabs_of_mixtures,
}


@pytest.mark.seconds
@pytest.mark.parametrize("kind", TABS)
def test_every_tab(kind: str, opened: Callable[..., Any], pair: Any, tmp_path: Path) -> None:
    panel = opened(kind, pair)
    seen = []
    for name in TABS[kind](panel):
        assert panel.wait(120)
        assert not panel.status.error, (name, panel.status.error)
        assert panel.tab == name
        again(panel, tmp_path / f"{name}.npz")
        assert formats(panel.current) == (".csv", ".parquet", ".svg", ".pdf", ".png", ".html", ".npz"), name
        assert panel.save(tmp_path / f"{name}.svg").read_text().count("<path") > 3
        assert panel.save(tmp_path / f"{name}.png").read_bytes()[1:4] == b"PNG"
        assert panel.save(tmp_path / f"{name}.pdf", width="column").read_bytes()[1:4] == b"PDF"
        assert len(pd.read_csv(panel.save(tmp_path / f"{name}.csv"))) > 0
        seen.append(name)
    assert seen == list(panel.fitting)
    for name in seen:
        panel.tab = name
        click_everything(panel)


def click_everything(panel: Any) -> None:
    """What a reader can pick on the open tab, one after the other; nothing may fail."""
    for view in [part for part in descendants(panel.current) if isinstance(part, View)]:
        for trait, value in (("selected", 1), ("selected", 0), ("pinned", [0, 0]), ("hovered", 0), ("cross", [0, 0])):
            if trait in view.keys:
                view.set_state({trait: value})
                assert panel.wait(120)
                assert not panel.status.error, (panel.tab, view, trait, value, panel.status.error)


def test_a_text_under_ablations_is_what_the_function_gives(pair: Any, opened: Callable[..., Any]) -> None:
    panel = opened("AblationPanel", pair.base)
    run(panel, "text", ablations=(Listed(AblationSpec("attn", 0, 3)),), max_new_tokens=4)
    found, ids = panel.current.stored(), pair.base.tokens("Paris is in")
    with ablation(pair.base, [Ablation("attn", 0, position=3)]):
        ablated = pair.base.generate_ids(ids, max_new_tokens=4)
    assert (list(found.plain), list(found.ablated)) == (pair.base.generate_ids(ids, max_new_tokens=4), ablated)
    assert found.plain != found.ablated, "else the test says nothing"
    table = found.to_frame()
    assert list(table.token[table.ablated]) == [*found.ablated_tokens] == list(pair.base.token_strings(ablated))
    assert list(table.position[~table.ablated]) == list(range(len(found.plain)))


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
    panel.map.description.value += instruction("; click a cell")
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
