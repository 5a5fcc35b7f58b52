"""The base of the panels on one prediction: texts, target, examples, and what a workbench shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ipywidgets as W
import pytest

from interp_widgets import Workbench
from interp_widgets.data.presets import PRESETS
from interp_widgets.widgets.base.prediction import OWN, Prediction, PredictionPanel
from tests.shipped import demo_pair
from tests.widgets.trouble import complaint

pytestmark = pytest.mark.slow


class Told(PredictionPanel):
    """Shows which prediction it was asked for."""

    title = "Told"

    def build(self) -> None:
        self.label = W.Label()
        self.inputs.children = self.text_inputs()
        self.plot.children = [self.label]
        self.asked: list[Prediction] = []

    def request(self) -> Prediction:
        return self.prediction()

    def compute(self, request: Prediction, model: Any, *, progress: Any, check: Any, on_partial: Any) -> Any:
        return request.read(model)

    def draw(self, results: tuple[Any, ...], request: Prediction) -> None:
        self.asked.append(request)


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture
def tell(wire: Any) -> Iterator[Callable[..., Told]]:
    opened: list[Told] = []

    def build(*args: Any, **traits: Any) -> Told:
        opened.append(Told(*args, **traits))
        return opened[-1]

    yield build
    for panel in opened:
        panel.close()
    assert wire.open() == 0


def settled(panel: Told) -> Told:
    assert panel.wait(120)
    return panel


def test_it_opens_on_the_first_example(pair: Any, tell: Any) -> None:
    panel = settled(tell(pair.base))
    first = PRESETS[0]
    assert (panel.prompt, panel.target, panel.texts.boxes.example.value) == (first.prompt, first.target, first.name)
    assert panel.result == (pair.base.tokens(first.prompt), first.target)


def test_an_example_sets_prompt_and_target_with_one_run(pair: Any, tell: Any, wire: Any) -> None:
    panel = settled(tell(pair.base))
    wire.type(panel.texts.boxes.example, index=2)
    settled(panel)
    assert (panel.prompt, panel.target) == (PRESETS[1].prompt, PRESETS[1].target)
    assert [one.prompt for one in panel.asked] == [PRESETS[0].prompt, PRESETS[1].prompt]


def test_a_typed_prompt_drops_the_examples_answer(pair: Any, tell: Any) -> None:
    panel = settled(tell(pair.base))
    panel.prompt = "The capital of Japan is"
    settled(panel)
    assert panel.target == ""
    assert panel.texts.boxes.example.value == OWN
    assert panel.result == (pair.base.tokens(panel.prompt), None)
    panel.target = " Tokyo"
    panel.prompt = "In Japan, the capital is"
    assert panel.target == " Tokyo", "an answer of one's own stays"


def test_a_response_token_is_looked_at_where_it_is_predicted(pair: Any, tell: Any) -> None:
    model = pair.base
    panel = settled(tell(model, prompt="The Eiffel Tower is located in", response=" the city of Paris"))
    ids, response = model.split(panel.prompt, panel.response)
    assert panel.result == (ids, response[0])
    assert panel.texts.boxes.strip.tokens == list(model.token_strings(response))
    panel.response_token = 3
    settled(panel)
    assert panel.result == ([*ids, *response[:3]], response[3])
    assert panel.texts.boxes.strip.selected == 3
    lines, sequence, target = panel.prediction().code("model")
    scope: dict[str, Any] = {"model": model}
    exec("\n".join([*lines, f"found = ({sequence}, {target})"]), scope)
    assert scope["found"] == panel.result
    panel.response = " a city"
    assert panel.response_token == -1


def test_a_token_beyond_the_response_is_a_sentence(pair: Any) -> None:
    with pytest.raises(ValueError, match=r"response_token must be in 0\.\.\d+ for this response, got 99"):
        Prediction("The cat", " sat", 99).read(pair.base)


def test_write_fills_the_response(pair: Any, tell: Any) -> None:
    panel = settled(tell(pair.base))
    panel.texts.generate_response()
    settled(panel)
    assert panel.response.startswith(" Paris")
    assert panel.response_token == 0
    assert pair.base.token_strings([panel.result[1]])[0] == " Paris"


def test_an_empty_prompt_is_a_sentence(pair: Any, tell: Any, wire: Any) -> None:
    panel = settled(tell(pair.base))
    shown = panel.result
    panel.prompt = ""
    assert "the prompt is empty" in complaint(panel)
    assert panel.result == shown
    with pytest.raises(ValueError, match="the prompt is empty"):
        panel.texts.generate_response()


def test_a_workbench_decides_over_defaults(pair: Any, tell: Any) -> None:
    bench = Workbench(pair.base, prompt="The cat", response=" sat on the mat", response_token=2)
    one, other = tell(bench), tell(bench)
    for panel in (one, other):
        settled(panel)
        assert (panel.prompt, panel.response_token, panel.target) == ("The cat", 2, "")
    one.response_token = 1
    for panel in (one, other):
        settled(panel)
    assert other.result == one.result
    assert other.texts.boxes.strip.selected == 1


def test_a_prompt_that_brings_its_own_bos_is_pointed_out(pair: Any, tell: Any) -> None:
    panel = settled(tell(pair.base, prompt="<|bos|>The cat"))
    assert panel.hints["prompt"].startswith("the text already begins with '<|bos|>'")
    panel.prompt = "The cat"
    assert "prompt" not in settled(panel).hints
