"""What panels open on with a model that is not the demo: nothing that is only true of the demo."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from interp_widgets import (
    AblationPanel,
    BiasWorkbench,
    DataSetExplorer,
    FFNConceptBrowser,
    HeadWordBrowser,
    Model,
    MoDRoutingViewer,
    PatchingPanel,
)
from interp_widgets.data.presets import PRESETS
from interp_widgets.data.prompt_pairs import capital_pairs
from interp_widgets.models import load_model
from interp_widgets.models.hub_files import DEMO
from interp_widgets.widgets.base.opening import opening_of
from interp_widgets.widgets.base.word_source import FEWEST_OWN, MOST_OWN
from interp_widgets.widgets.mixture_of_depths.reading import PROMPT
from interp_widgets.widgets.patching.prompt_pairs import pairs_of_one_length
from tests.models.test_profile import unlike_the_demo
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The tuned demo as somebody's own model."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copytree(DEMO / "tuned", folder, ignore=shutil.ignore_patterns("answers"), dirs_exist_ok=True)
    return load_model(folder, device="cpu")


@pytest.fixture
def opened(wire: Any) -> Iterator[Any]:
    """Opens panels that compute nothing by themselves, and closes them."""
    panels: list[Any] = []

    def build(kind: Any, *models: Model, **options: Any) -> Any:
        panels.append(kind(*models, **options))
        return panels[-1]

    yield build
    for panel in panels:
        panel.close()


def test_a_data_set_names_no_wordings_that_the_model_was_trained_on(own: Model, opened: Any) -> None:
    panel = opened(DataSetExplorer, own, row_count=4, live_seconds=0)
    assert panel.group == ""
    assert "trained" not in panel.read.value
    assert "wording" not in [value for _, value in panel.controls["group"].options]
    panel.run()
    assert "wording" not in panel.result.to_frame()
    demo = opened(DataSetExplorer, demo_pair().tuned, row_count=4, live_seconds=0)
    assert demo.group == "wording"
    assert "half in wordings the models were trained on" in demo.read.value
    assert panel.request() != demo.request()


@pytest.mark.parametrize("name", ["own", "demo"])
def test_rates_are_planted_in_the_demo_alone(own: Model, opened: Any, name: str) -> None:
    panel = opened(BiasWorkbench, own if name == "own" else demo_pair().tuned, live_seconds=0)
    panel.run()
    labels = [column["label"] for column in panel["data"].table.columns]
    assert ("planted %" in labels) == (name == "demo")


def test_words_of_components_are_of_the_models_vocabulary(own: Model, opened: Any) -> None:
    words = [word.strip() for word in own.single_token_words()]
    assert len(words) >= FEWEST_OWN
    panel = opened(FFNConceptBrowser, own, rank=5)
    assert (panel.word_list, panel.most_words) == ("vocabulary", MOST_OWN)
    result = panel.run()
    assert set(result.vocabulary) == set(words[:MOST_OWN])
    namespace: dict[str, Any] = {}
    exec(panel.current.code(panel.current.request()), namespace)
    assert namespace["result"].vocabulary == result.vocabulary
    panel.most_words = 40
    assert set(panel.run().vocabulary) == set(words[:40])
    assert opened(FFNConceptBrowser, demo_pair().tuned, live_seconds=0).word_list == "demo"
    assert opened(FFNConceptBrowser, own, words=["dog", "cat", "sea"], live_seconds=0).word_list == "own"
    small = tiny_model("gpt2")
    assert len(small.single_token_words()) < FEWEST_OWN
    assert opened(FFNConceptBrowser, small, live_seconds=0).word_list == "demo"


def test_heads_can_be_searched_for_the_models_own_words(own: Model, opened: Any) -> None:
    panel = opened(HeadWordBrowser, own, live_seconds=0)
    assert panel.word_list == "demo", "word vectors are needed, which a vocabulary does not have"
    with panel.batch_changes():
        panel.word_list, panel.most_words = "vocabulary", 300
    result = panel.run()
    assert 3 <= len(result.vocabulary) <= 300
    assert set(result.vocabulary) <= {word.strip() for word in own.single_token_words()[:300]}


def test_pairs_of_prompts_have_as_many_tokens(own: Model, opened: Any) -> None:
    for model in (own, tiny_model("gpt2"), tiny_model("llama")):
        pairs = pairs_of_one_length([model])
        lengths = {tuple(map(len, model.token_lists([pair.clean, pair.corrupted]))) for pair in pairs}
        assert len(lengths) == 1
        panel = opened(PatchingPanel, model, tab="pairs", live_seconds=0)
        assert panel.current.pairs == [pair.line for pair in pairs]
        assert panel.current.controls.hints == {}
    assert len(pairs_of_one_length([own])) == len(capital_pairs())
    assert pairs_of_one_length([demo_pair().tuned])[0].line.endswith("| Paris | Rome"), "one token each"
    assert len(pairs_of_one_length([tiny_model("gpt2")])) < len(capital_pairs()), "this tokenizer splits the countries"


def test_a_mixture_opens_on_the_demos_format_for_the_demo_alone(own: Model, opened: Any) -> None:
    panel = opened(MoDRoutingViewer, own, live_seconds=0)
    assert panel.prompt == PRESETS[0].prompt
    panel.tab = "speed"
    assert panel.current.prompt == PRESETS[0].prompt
    for model in (demo_pair().tuned, load_model("demo-base-mixture")):
        assert opened(MoDRoutingViewer, model, live_seconds=0).prompt == PROMPT


def test_maps_of_a_model_with_a_sink_and_a_common_logit(opened: Any) -> None:
    model = unlike_the_demo()
    assert (model.profile.sink, model.profile.logits_move_together) == ("first token", True)
    panel = opened(AblationPanel, model, prompt="One two three four five", live_seconds=0)
    result = panel.run()
    assert (panel.metric, result.metric, result.sink) == ("log_prob", "log_prob", True)
    largest = np.abs(result.effect[..., 1:]).max()
    for heat in panel["modules"].maps.maps.values():
        assert heat.vmax == pytest.approx(largest, rel=1e-5), "the sink sets no colours"


def test_tracing_opens_on_what_the_opening_is_about(own: Model, opened: Any) -> None:
    opening = opening_of([own])
    panel = opened(AblationPanel, own, prompt=opening.prompt, tab="tracing", live_seconds=0)
    assert panel.subject == opening.subject != ""
    assert panel.hints == {}
    assert len(panel["tracing"].strip.marks) == 1
    panel.prompt = "A cat sat"
    assert panel.subject == "", "it leaves with its words"
    panel.prompt = opening.prompt
    assert panel.subject == opening.subject
    panel.subject = "city"
    panel.prompt = "A cat sat"
    assert panel.subject == "city", "what was typed stays"
    assert opened(AblationPanel, own, prompt=opening.prompt, subject="city", live_seconds=0).subject == "city"
