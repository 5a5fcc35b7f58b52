"""A beside B: the two pictures are those of A and of B, next to each other, on one scale and with one selection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interp_widgets import (
    AblationPanel,
    AttentionExplorer,
    ConceptBrowser,
    HeadWordBrowser,
    LayerByPosition,
    LogitLensExplorer,
    Model,
    MoDRoutingViewer,
    Prompt,
    SaliencyExplorer,
    TokenDecompositionExplorer,
    TokenValues,
    demo_concepts,
    demo_word_vectors,
    head_word_pairs,
    load_model,
    probe,
)
from interp_widgets.models import ModelPair
from interp_widgets.widgets.base.export import views_in
from interp_widgets.widgets.views import Heatmap, TokenStrip
from tests.models.tiny import tiny_hf, tiny_model, tiny_tokenizer
from tests.shipped import demo_pair
from tests.widgets.opening import opening, settle

PROMPT = "The dog lives in"
CONCEPTS = demo_concepts()[:4]
WORDS = list(demo_word_vectors().words[:60])
OWN = ("layout", "cross", "pinned", "window", "selected", "tabbable", "tooltip")
"""What a picture has besides its content."""


@probe
def stream_norm(model: Model, prompt: Prompt) -> LayerByPosition:
    """Length of the residual stream."""
    ids, names = model.tokens(prompt), [f"blocks.{layer}.hook_resid_pre" for layer in range(model.n_layers)]
    states = model.run(ids, capture=names).activations
    return LayerByPosition([states[name][0].norm(dim=-1) for name in names], model.token_strings(ids), "norm")


@probe
def token_norm(model: Model, prompt: Prompt) -> TokenValues:
    """Length of each token's last state."""
    ids, name = model.tokens(prompt), f"blocks.{model.n_layers - 1}.hook_resid_post"
    return TokenValues(model.run(ids, capture=[name]).activations[name][0].norm(dim=-1), model.token_strings(ids))


def head_words(pair: ModelPair, **options: Any) -> HeadWordBrowser:
    results = (head_word_pairs(model, words=WORDS, top=5, keep=5) for model in (pair.base, pair.tuned))
    return HeadWordBrowser(*results, **options)


PANELS: dict[str, Callable[..., Any]] = {
    "saliency": lambda pair, **options: SaliencyExplorer(
        pair, prompt=PROMPT, response=" the house", min_importance=0.0, **options
    ),
    "logit lens": lambda pair, **options: LogitLensExplorer(pair, prompt=PROMPT, **options),
    "modules": lambda pair, **options: AblationPanel(pair, prompt=PROMPT, **options),
    "heads": lambda pair, **options: AblationPanel(pair, prompt=PROMPT, tab="heads", **options),
    "tracing": lambda pair, **options: AblationPanel(
        pair, prompt=PROMPT, tab="tracing", subject="dog", samples=2, **options
    ),
    "token decomposition": lambda pair, **options: TokenDecompositionExplorer(pair, prompt=PROMPT, **options),
    "head words": head_words,
    "concepts": lambda pair, **options: ConceptBrowser(
        pair,
        prompt=PROMPT,
        concepts=CONCEPTS,
        tab="read",
        read_rows="chosen",
        chosen=[concept.name for concept in CONCEPTS],
        **options,
    ),
    "attention": lambda pair, **options: AttentionExplorer(pair, prompt=PROMPT, layer=3, **options),
    "known heads": lambda pair, **options: AttentionExplorer(
        pair, prompt=PROMPT, tab="find", length=10, sequences=2, **options
    ),
    "attention reasons": lambda pair, **options: AttentionExplorer(
        pair, prompt=PROMPT, tab="why", layer=3, attended=2, **options
    ),
    "needed head": lambda pair, **options: AttentionExplorer(pair, prompt=PROMPT, tab="needed", layer=2, **options),
    "routes": lambda pair, **options: MoDRoutingViewer(pair, prompt=PROMPT, tab="route", **options),
    "probe of layers": lambda pair, **options: stream_norm(pair, prompt=PROMPT, **options),
    "probe of tokens": lambda pair, **options: token_norm(pair, prompt=PROMPT, **options),
}


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture
def show() -> Iterator[Callable[..., Any]]:
    with opening(lambda name, models, **options: PANELS[name](models, **options)) as build:
        yield build


def pictures(panel: Any) -> list[Heatmap | TokenStrip]:
    """The maps and strips that can be seen, in reading order."""
    current = getattr(panel, "current", panel)
    seen = [view for part in (current.plot, current.details) for view in views_in(part)]
    return [view for view in seen if isinstance(view, Heatmap | TokenStrip)]


def content(view: Heatmap | TokenStrip, letter: str) -> dict[str, Any]:
    """What a picture shows, a strip's label without the letter that A beside B puts before it."""
    state = {name: value for name, value in view.get_state().items() if name not in OWN and not name.startswith("_")}
    return {**state, "label": str(state.get("label", "")).removeprefix(f"{letter}: ")}


@pytest.mark.seconds
@pytest.mark.parametrize("name", PANELS)
def test_each_half_is_the_picture_of_its_model(name: str, pair: Any, show: Any, tmp_path: Path) -> None:
    panel = show(name, pair)
    current = getattr(panel, "current", panel)
    alone = {}
    for letter in "AB":
        panel.view = letter
        settle(panel)
        alone[letter] = [content(view, letter) for view in pictures(panel)]
    panel.view = "beside"
    settle(panel)
    assert current.status.state == "done", current.status.error
    both = pictures(panel)
    assert len(both) == len(alone["A"]) + len(alone["B"]) > 0
    for index, view in enumerate(both):
        letter = "AB"[index % 2]  # each pair stands next to each other
        assert content(view, letter) == alone[letter][index // 2]
    maps = [view for view in both if isinstance(view, Heatmap)]
    for a, b in zip(maps[::2], maps[1::2], strict=True):
        assert (a.vmin, a.vmax, a.lut) == (b.vmin, b.vmax, b.lut), "one scale"
        assert not np.array_equal(a.matrix, b.matrix, equal_nan=True), "the models differ"
    assert "A beside B" in panel.save(tmp_path / "page.html").read_text()
    assert panel.save(tmp_path / "picture.svg").stat().st_size > 1000
    panel.view = "A"
    settle(panel)
    assert [content(view, "A") for view in pictures(panel)] == alone["A"]


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["logit lens", "modules", "token decomposition", "head words"])
def test_a_cell_chosen_in_one_map_is_chosen_in_the_other(name: str, pair: Any, show: Any) -> None:
    panel = show(name, pair, view="beside")
    a, b = [view for view in pictures(panel) if isinstance(view, Heatmap)][:2]
    b.set_state({"cross": [1, 2]})  # moved with the arrow keys
    assert a.cross == [1, 2]
    b.set_state({"pinned": [1, 2]})
    settle(panel)
    assert a.cross == b.cross == [1, 2]
    a.set_state({"cross": [2, 1], "pinned": [2, 1]})
    settle(panel)
    assert a.cross == b.cross == [2, 1]


@pytest.mark.seconds
def test_models_of_two_depths_stand_beside_each_other(show: Any, tmp_path: Path) -> None:
    tiny_hf("gpt2", n_layers=2).save_pretrained(tmp_path)
    tiny_tokenizer("gpt2").save_pretrained(tmp_path)
    deep, shallow = tiny_model("gpt2"), load_model(tmp_path)
    for name in ("logit lens", "modules", "token decomposition", "known heads"):
        panel = show(name, ModelPair(deep, shallow), view="beside")
        a, b = [view for view in pictures(panel) if isinstance(view, Heatmap)][:2]
        assert a.shape != b.shape
        assert 0 not in (*a.shape, *b.shape), name
        assert (a.vmin, a.vmax) == (b.vmin, b.vmax)


@pytest.mark.seconds
def test_a_panel_without_a_difference_takes_the_view_of_its_neighbours(pair: Any, show: Any) -> None:
    panel = show("modules", pair, view="difference")
    text = panel["text"]
    assert text.pair_views == ("beside",)
    assert text.offered_view == "beside"
    panel.tab = "text"
    settle(panel)
    assert panel.view == "difference", "the maps show it again"
    views = next(child for child in text.actions.children if getattr(child, "options", None))
    assert [value for _, value in views.options] == ["A", "B", "beside"]
    assert views.value == "beside"
    views.value = "B"
    assert panel.view == "B"
