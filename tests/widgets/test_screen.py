"""The workbench's screen: texts above, panels as tabs beside each other, the selection in words, one status line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Annotated, Any

import ipywidgets as W
import numpy as np
import pytest
import traitlets as T

from interp_widgets import Bounds, LogitLensExplorer, TokenValues, Workbench, probe, response_probabilities
from interp_widgets.compute.cache import results as cache
from interp_widgets.compute.memory import Speedometer
from interp_widgets.models import Model
from interp_widgets.models.chat import ChatText
from interp_widgets.widgets.base.controls import shown_if
from interp_widgets.widgets.base.description import Description, Step, decimals
from interp_widgets.widgets.base.fields import hidden
from interp_widgets.widgets.base.lifetime import close_one, close_tree, descendants
from interp_widgets.widgets.base.panel import Panel
from interp_widgets.widgets.probe import Prompt
from interp_widgets.widgets.views.bokeh_figure import BokehSource
from interp_widgets.widgets.workbench.screen import Screen
from interp_widgets.widgets.workbench.selected import Selected
from interp_widgets.widgets.workbench.session import unpacked
from interp_widgets.widgets.workbench.tools import TOOLS
from tests.shipped import demo_pair
from tests.widgets.messages import nothing_in_the_log

pytestmark = pytest.mark.slow

PROMPT, RESPONSE = "The Eiffel Tower is in the city of", " Paris."


@pytest.fixture(scope="module")
def pair() -> Any:
    return demo_pair()


@pytest.fixture
def show(wire: Any) -> Iterator[Callable[..., Screen]]:
    """Opens screens; afterwards every comm that they opened must be gone."""
    benches: list[Workbench] = []
    BokehSource.shared()  # one for all figures of a kernel, which stays
    before = wire.open()

    def build(*models: Any, tabs: tuple[str, ...] = ("saliency", "logit_lens"), **traits: Any) -> Screen:
        bench = Workbench(*models, **{"prompt": PROMPT, "response": RESPONSE, "live_seconds": float("inf"), **traits})
        benches.append(bench)
        screen = bench.screen
        screen.show(*tabs)
        assert screen.wait(120)
        return screen

    yield build
    for bench in benches:
        bench.close()
    assert wire.open() == before


def text_of(screen: Screen) -> str:
    return str(screen.selected.text.value)


def visible_controls(widget: Any) -> list[Any]:
    """The controls in a widget that are not hidden, nor in something hidden."""
    if hidden(widget):
        return []
    inside = [one for child in getattr(widget, "children", ()) for one in visible_controls(child)]
    return [widget, *inside]


def test_texts_stand_above_and_the_panels_answer_for_them(pair: Any, show: Any) -> None:
    screen = show(pair)
    assert (screen.shown, screen.view) == (("saliency", "logit_lens"), "B")
    assert list(screen.texts.prompt_strip.tokens) == list(screen["saliency"].result[0].prompt_tokens)
    wanted = response_probabilities(pair.tuned, PROMPT, RESPONSE)
    np.testing.assert_allclose(screen.texts.result[1].probability, wanted.probability, atol=1e-6)
    labels = [getattr(one, "description", "") for one in visible_controls(screen)]
    assert labels.count("Prompt") == labels.count("Response") == 1, "no panel has boxes of its own"
    assert "Generate" not in labels
    status = [one for one in descendants(screen) if type(one).__name__ == "StatusLine"]
    assert len(status) == 1
    assert {panel.status for panel in (screen.texts, screen["saliency"], screen["logit_lens"])} == set(status)


def test_another_prompt_is_written_and_answered_by_all(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair)
    wire.type(screen.texts.controls["prompt"], value="The capital of Japan is")
    assert screen.wait(120)
    written = pair.tuned.generate("The capital of Japan is", max_new_tokens=40)
    assert screen.workbench.response == written
    for name in ("saliency", "logit_lens"):
        assert screen[name].prompt == "The capital of Japan is"
        assert screen[name].response == written
    asked = screen["saliency"].results[1]
    assert "".join(asked.response_tokens) == "".join(pair.tuned.token_strings(asked.response_ids))
    assert len(asked.prompt_tokens) == len(screen.texts.prompt_strip.tokens)


def test_a_prompt_is_answered_where_the_panels_wait_for_run(
    pair: Any, show: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = show(pair.tuned, tabs=("logit_lens",), live_seconds=10.0)
    monkeypatch.setattr(Speedometer, "seconds", lambda self, kind, device, flops, **_: 60.0)
    screen.workbench.prompt = "The capital of France is"
    assert screen.wait(120)
    assert screen.workbench.response.startswith(" Paris")
    assert screen.texts.response_strip.tokens[0] == " Paris"
    assert screen["logit_lens"].asked_to_run, "there is a Run button for this one"


def test_the_comparison_with_chance_is_a_step_beside_the_selection(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair.base, tabs=("decomposition", "ablation"))
    decomposition, modules = screen["decomposition"], screen["ablation"]["modules"]
    buttons = [one for one in visible_controls(screen.selected.box) if isinstance(one, W.Button)]
    assert [decomposition.chance_button, modules.chance_button] == buttons[:2]
    assert "Not compared with chance yet" in decomposition.map.sums.value
    assert "compared with chance" not in screen.selected.text.value, "the buttons say it"
    wire.click(buttons[0])
    assert screen.wait(120)
    assert decomposition.share_draws == 199
    assert escape(decomposition.result.logit.in_words()) in screen.selected.text.value
    assert hidden(decomposition.chance_button)
    screen.show("saliency", "logit_lens")
    assert not {*modules.picture_buttons} & {*screen.selected.box.children}


def test_a_click_on_a_token_moves_every_panel_and_the_words(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair, response=" Paris. Paris is")
    wire.type(screen.texts.response_strip, selected=2)
    assert screen.wait(120)
    assert screen["saliency"].response_token == screen["logit_lens"].response_token == 2
    chances = [result.probability[2] for result in screen.texts.results]
    said = f"Response token 2, probability A {decimals(chances[0])}, B {decimals(chances[1])}."
    assert escape(said) in text_of(screen)
    importance = screen["saliency"].results[1].importance
    best = int(importance.max(axis=0).argmax())
    assert best != 2
    wire.type(screen.texts.response_strip, selected=best)
    assert screen.wait(120)
    assert importance[:, best].max() > 0.01
    assert decimals(float(importance[:, best].max())) in text_of(screen)
    shades = np.frombuffer(screen.texts.prompt_strip.values, dtype="<f4")
    np.testing.assert_allclose(shades, screen["saliency"]["map"]._numbers("B")[:, best].astype(np.float32))
    screen["logit_lens"].select_cell(3, 1)
    assert screen.workbench.prompt_token == screen.texts.prompt_token == 1


def steps_of(screen: Screen) -> dict[str, W.Button]:
    return {button.description: button for button in screen.selected.steps.values() if not hidden(button)}


def test_a_head_is_told_in_words_and_a_step_takes_it_out(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair, tabs=("head_words",))
    screen.workbench.select(layer=2, head=3)
    assert screen.wait(120)
    heads = screen["head_words"]["heads"]
    assert "Words of head 3 of layer 2" in text_of(screen)
    most = max((pair for pair in heads.results[1].pairs(2, 3)), key=lambda one: one[2])
    assert f"{most[0]} → {most[1]}</td>" in escape(text_of(screen), quote=False).replace("&lt;", "<").replace(
        "&gt;", ">"
    )
    assert escape(heads.chance[1].head_in_words(2, 3)) in text_of(screen)
    wire.click(steps_of(screen)["Does it need this head?"])
    assert screen.wait(120)
    assert screen.status_line.error == ""
    assert (screen.shown, screen["ablation"].tab, screen["ablation"].kind) == (
        ("head_words", "ablation"),
        "heads",
        "head",
    )
    effects = [decimals(float(result.effect[2, 3])) for result in screen["ablation"].results]
    assert f"<td>{escape(effects[0])}</td><td>{escape(effects[1])}</td>" in text_of(screen)
    assert "Does it need this head?" not in steps_of(screen), "it is there already"
    wire.type(screen._tabs["head_words"], value=False)
    wire.click(steps_of(screen)["Which words does it relate?"])
    assert screen.shown == ("ablation", "head_words")


def test_components_and_neurons_are_told_in_words(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair, tabs=("ffn_concepts",))
    browser = screen["ffn_concepts"]
    browser.component = 2
    result = browser["concepts"].shown_result
    share = 100 * result.explained_variance[0, 2]
    assert f"Component 2, layer 0 of B</div><p>It explains {share:.1f}% of the variance" in text_of(screen)
    assert f"Positive side: {', '.join(result.words(0, 2, sign='+')[:6])}." in text_of(screen)
    browser.open_tab("neurons", neuron=5, layer=1)
    assert screen.wait(120)
    effects = [decimals(float(reading.effects.effect[5])) for reading in browser["neurons"].results]
    assert "Neuron 5 of layer 1 at “of” (7)" in text_of(screen).replace("·", "")
    assert f"adds to the logit</td><td>{escape(effects[0])}</td><td>{escape(effects[1])}</td>" in text_of(screen)
    wire.click(steps_of(screen)["Does it need this MLP?"])
    assert screen.wait(120)
    assert (screen["ablation"].tab, screen["ablation"].kind, screen["ablation"].layer) == ("modules", "mlp", 1)


def test_concepts_and_routes_are_told_in_words(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair, tabs=("concepts", "mixture_of_depths"))
    browser, route = screen["concepts"], screen["mixture_of_depths"].current
    browser.concept = "dog"
    assert screen.wait(120)
    made = browser.sets[1]
    names = list(made.names)
    cosines = made.directions @ made.directions[names.index("dog")]
    best = max((name for name in names if name != "dog"), key=lambda name: cosines[names.index(name)])
    assert "Concept “dog” (animals)" in text_of(screen)
    assert f"<tr><td>{best}</td>" in text_of(screen)
    assert f"B {decimals(float(made.auc[names.index('dog')]))}." in text_of(screen)
    screen.workbench.prompt_token = 2
    assert screen.wait(120)
    for result in route.results:
        assert f"Exit layer: {int(result.exit_layer[2])} of" in text_of(screen)
    assert "After “·Tower”" in text_of(screen) or "After “Tower”" in text_of(screen)
    wire.click(steps_of(screen)["What if it were stronger?"])
    assert browser.tab == "steer"
    assert screen.shown == ("concepts", "mixture_of_depths")
    assert "What if it were stronger?" not in steps_of(screen)


def test_a_token_that_the_texts_do_not_have_is_refused_for_all(pair: Any, show: Any) -> None:
    screen = show(pair, response=" Paris. Paris is")
    bench = screen.workbench
    bench.response_token = 2
    bench.response_token = 99
    assert screen.status_line.error.endswith("response_token must be in 0..3 for this response, got 99")
    assert {bench.response_token, *(panel.response_token for panel in screen.panels.values())} == {2}
    bench.prompt_token = 99
    assert "prompt_token must be in 0..7" in screen.status_line.error
    assert bench.prompt_token == screen.texts.prompt_token == -1


def shades(strip: Any) -> Any:
    return np.frombuffer(strip.values, dtype="<f4")


def test_what_is_under_the_pointer_shades_the_texts(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair, response=" Paris. Paris is")
    texts, saliency = screen.texts, screen["saliency"]["map"]
    numbers = saliency._numbers("B").astype(np.float32)
    np.testing.assert_allclose(shades(texts.prompt_strip), numbers[:, 0])
    wire.type(texts.response_strip, hovered=3)
    np.testing.assert_allclose(shades(texts.prompt_strip), numbers[:, 3])
    wire.type(texts.response_strip, hovered=-1)
    wire.type(saliency.heat, hovered=[2, 1])
    np.testing.assert_allclose(shades(texts.prompt_strip), numbers[:, 1])
    np.testing.assert_allclose(shades(texts.response_strip), numbers[2])
    wire.type(saliency.heat, hovered=[])
    np.testing.assert_allclose(shades(texts.prompt_strip), numbers[:, 0])
    assert shades(texts.response_strip).size == 0
    assert screen.workbench.response_token == 0, "nothing is selected by it"


def test_shares_and_concepts_shade_the_texts(pair: Any, show: Any) -> None:
    screen = show(pair, tabs=("decomposition",), response=" Paris. Paris is")
    screen.workbench.response_token = 2
    assert screen.wait(120)
    shares = screen["decomposition"].rows[1].logit_share()[:-1].astype(np.float32)
    count = len(screen.texts.prompt_strip.tokens)
    assert len(shares) == count + 2, "the prompt and what has been written of the response"
    np.testing.assert_allclose(shades(screen.texts.prompt_strip), shares[:count])
    np.testing.assert_allclose(shades(screen.texts.response_strip), [*shares[count:], np.nan, np.nan])
    screen.shown = ("concepts",)
    screen["concepts"].open_tab("read")
    assert screen.wait(120)
    read = screen["concepts"]["read"]
    column = read.index_of[read.shown_concept]
    wanted = read.results[1].gaps[slice(*read.results[1].span), column]
    np.testing.assert_allclose(shades(screen.texts.prompt_strip), wanted, rtol=1e-6)
    assert shades(screen.texts.response_strip).size == 0
    screen["concepts"].tab = "quality"
    assert screen.wait(120)
    assert shades(screen.texts.prompt_strip).size == 0
    assert screen.texts.prompt_strip.label == "Prompt"


def test_two_panels_at_most_and_a_step_opens_the_next(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair)
    steps = {button.description: button for button in screen.selected.steps.values() if not hidden(button)}
    wire.click(steps["Which parts does it need?"])
    assert screen.wait(120)
    assert screen.shown == ("logit_lens", "ablation")
    assert hidden(screen._cards["saliency"])
    assert not hidden(screen._cards["ablation"])
    assert screen["ablation"].result is not None
    assert "module" in text_of(screen)
    wire.type(screen._tabs["ablation"], value=False)
    assert screen.shown == ("logit_lens",)
    wire.type(screen._tabs["logit_lens"], value=False)
    assert screen.shown == ("logit_lens",), "one is always there"
    assert screen._tabs["logit_lens"].value
    with pytest.raises(T.TraitError, match=r"shown must be one or two of saliency, .*got 'lens'"):
        screen.shown = ("lens",)
    with pytest.raises(KeyError, match="there is no tab 'lens'"):
        screen.show("lens")


def test_what_waits_for_run_is_not_described(pair: Any, show: Any) -> None:
    screen = show(pair.tuned)
    part = screen["saliency"].current_panel
    assert "Importance for" in text_of(screen)
    part.live_seconds = 0.0
    screen.workbench.select(prompt="The capital of Japan is", response=" Tokyo", response_token=-1)
    assert screen.wait(120)
    assert part.run_button.button_style == "primary"
    assert "Importance for" not in text_of(screen), "that was the old prompt"
    screen["saliency"].run()
    assert "Importance for" in text_of(screen)


def test_a_panel_that_is_not_shown_computes_when_it_is_shown_again(pair: Any, show: Any) -> None:
    screen = show(pair, tabs=("saliency", "logit_lens"))
    screen.shown = ("logit_lens",)
    before = screen["saliency"].result
    screen.workbench.select(prompt="The capital of Japan is", response=" Tokyo", response_token=-1)
    assert screen.wait(120)
    assert screen["saliency"].result is before
    assert screen["logit_lens"].result[0].tokens[0] == "The"
    screen.show("saliency")
    assert screen.wait(120)
    assert len(screen["saliency"].results[0].response_tokens) == 1


def test_a_cell_of_its_own_offers_what_the_selection_does(pair: Any, show: Any) -> None:
    screen = show(pair.tuned, tabs=("logit_lens",))
    cell = screen.workbench.show("ablation")
    assert cell._repr_mimebundle_()[0]["text/plain"].startswith("ShownTabs(ablation)\nA live panel")
    assert cell.wait(120)
    modules = screen["ablation"].current_panel
    buttons = cell.children[-1]
    assert buttons.children == modules.picture_buttons
    assert [button.description for button in buttons.children if not hidden(button)] == ["Compare cells with chance"]
    screen["ablation"].tab = "tracing"
    assert cell.wait(120)
    assert buttons.children == ()


def test_tabs_in_a_cell_of_their_own_stay_there(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair.tuned)
    bench = screen.workbench
    lens, parts = bench.show("logit_lens"), bench.show("logit_lens", "attention")
    screen.show("saliency", "decomposition")
    assert (lens.names, parts.names, screen.shown) == (
        ("logit_lens",), ("logit_lens", "attention"), ("saliency", "decomposition"),
    )  # fmt: skip
    assert lens["logit_lens"] is parts["logit_lens"] is screen["logit_lens"]
    assert not any(hidden(card) for one in (lens, parts) for card in one.children[-2].children)
    bench.select(prompt="The capital of Japan is", response=" Tokyo", response_token=-1)
    assert lens.wait(120)
    for name in ("logit_lens", "attention"):
        assert "Japan" in "".join(screen[name].result.tokens), "a panel in sight follows"
    parts.close()
    parts.close()
    assert screen.in_sight == ("saliency", "decomposition", "logit_lens")
    bench.select(prompt="The capital of France is", response=" Paris")
    assert screen.wait(120)
    assert "France" in "".join(screen["logit_lens"].result.tokens)
    assert "Japan" in "".join(screen["attention"].result.tokens), "one that is nowhere in sight waits"
    for names, message in (
        ((), "got 0 of them"),
        (("lens",), "got 'lens'"),
        (("saliency", "bias", "decomposition"), "got 3"),
    ):
        with pytest.raises(T.TraitError, match=f"shown must be one or two of .*{message}"):
            bench.show(*names)


def test_one_view_for_all(pair: Any, show: Any) -> None:
    screen = show(pair, tabs=("logit_lens", "ablation"))
    for view in ("A", "difference", "beside"):
        screen.view = view
        assert {screen.texts.view, screen["logit_lens"].view, screen["ablation"].view} == {view}
        assert screen["ablation"]["modules"].view == view
    assert screen["ablation"]["modules"].shown == "beside"


def test_one_model(pair: Any, show: Any) -> None:
    screen = show(pair.base)
    assert not [one for one in descendants(screen.head) if isinstance(one, W.ToggleButtons)]
    assert "probability 0." in text_of(screen) or "probability 1." in text_of(screen)
    assert screen.workbench.response_token == 0


def test_a_hint_about_the_prompt_is_at_its_box(pair: Any, show: Any) -> None:
    screen = show(pair)
    screen.workbench.prompt = ""
    assert screen.wait(120)
    assert screen.controls.hints == {"prompt": "the prompt is empty: type what the model should continue"}
    assert screen.status_line.error == ""
    screen.workbench.prompt = PROMPT
    assert screen.wait(120)
    assert screen.controls.hints == {}


def test_cancel_stops_every_panel(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair)
    stopped = []
    for panel in (screen.texts, *screen.panels.values()):
        panel.cancel = lambda panel=panel: stopped.append(panel)
    wire.event(screen.status_line, event="cancel")
    assert stopped == [screen.texts, *screen.panels.values()]


def test_details_are_shown_on_demand(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair.base, tabs=("logit_lens",))
    lens = screen["logit_lens"]

    def state() -> tuple[bool, bool]:
        return hidden(lens.details), next(one["checked"] for one in lens.menu.entries if one["label"] == "Details")

    assert state() == (True, False)
    wire.choose(lens.menu, "Details")
    assert state() == (False, True)
    wire.choose(lens.menu, "Details")
    assert state() == (True, False)


def test_a_card_has_few_options_in_sight_and_the_rest_under_more(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair, tabs=("ablation", "decomposition"))
    modules = screen["ablation"]["modules"]
    in_sight = [one.description for one in visible_controls(modules.inputs) if hasattr(one, "description")]
    assert in_sight == ["Replaced by", "Measured", "More"]
    more = next(one for one in visible_controls(modules.inputs) if getattr(one, "description", "") == "More")
    wire.type(more, value=True)
    in_sight = [one.description for one in visible_controls(modules.inputs) if hasattr(one, "description")]
    under_more = ["Layers", "Positions", "Full colour at", "Numbers from", "Random directions"]
    under_more.append("First token sets the scale")
    assert in_sight == ["Replaced by", "Measured", "More", *under_more]
    sums = screen["decomposition"].map.sums
    assert sums in screen["decomposition"].details.children
    assert sums not in screen["decomposition"].plot.children


def test_one_more_opens_the_options_of_a_stack_and_of_its_tab(pair: Any, show: Any, wire: Any) -> None:
    saliency = show(pair.base, tabs=("saliency",))["saliency"]
    inputs = [*visible_controls(saliency.inputs), *visible_controls(saliency["map"].inputs)]
    (more,) = [one for one in inputs if getattr(one, "description", "") == "More"]
    assert not more.value
    wire.type(more, value=True)
    shown = [*visible_controls(saliency.inputs), *visible_controls(saliency["map"].inputs)]
    assert saliency.controls["baseline"] in shown
    assert saliency["map"].controls["levels"] in shown
    wire.type(more, value=False)
    shown = [*visible_controls(saliency.inputs), *visible_controls(saliency["map"].inputs)]
    assert saliency.controls["baseline"] not in shown
    assert saliency["map"].controls["levels"] not in shown


def test_more_is_closed_while_all_options_are_as_usual(pair: Any, show: Any) -> None:
    screen = show(pair, tabs=("concepts", "head_words"))
    for name in screen.shown:
        inputs = visible_controls(screen[name].inputs)
        assert [one.value for one in inputs if getattr(one, "description", "") == "More"] == [False], name
    screen["head_words"].only = "one_token"  # changed from Python: the control is still under More
    assert screen["head_words"].usual["only"] == "read"


def test_concepts_are_listed_while_they_are_searched(pair: Any, show: Any) -> None:
    browser = show(pair.base, tabs=("concepts",))["concepts"]
    assert hidden(browser.listing.listed)
    browser.search = "animals"
    assert not hidden(browser.listing.listed)
    assert len(browser.listing.table.view.rows) > 5


def test_every_tab_opens_and_answers_or_says_what_it_waits_for(pair: Any, show: Any) -> None:
    screen = show(pair)
    assert {"bias", "clusters", "layer_similarity"} < set(screen.tools)
    for name in screen.tools:
        screen.show(name)
        assert screen.wait(300), name
        assert screen.status_line.error == "", name
        panel = screen[name].current_panel
        asked = panel.run_button.button_style == "primary" or bool(panel.hints)
        assert panel.result is not None or asked or not panel.has_request, name


def test_a_probe_is_a_tab(pair: Any, show: Any) -> None:
    @probe
    def lengths(model: Model, prompt: Prompt, times: Annotated[int, Bounds(1, 5)] = 2) -> TokenValues:
        tokens = model.token_strings(model.tokens(prompt, prepend_bos=False))
        return TokenValues([float(times * len(token)) for token in tokens], tokens, "letters")

    screen = show(pair.base)
    screen.workbench.add("lengths", lengths)
    screen.show("lengths")
    assert screen.wait(120)
    assert screen["lengths"].result.values[0] == 6.0
    assert screen["lengths"].prompt == PROMPT


def test_panels_of_other_cells_follow_the_screen(pair: Any, show: Any) -> None:
    screen = show(pair.base)
    lens = LogitLensExplorer(screen.workbench, live_seconds=float("inf"))
    screen.workbench.prompt = "The capital of Japan is"
    assert screen.wait(120)
    assert lens.wait(120)
    assert lens.prompt == "The capital of Japan is"
    lens.prompt = PROMPT
    assert screen.texts.prompt == PROMPT
    assert screen.wait(120)


def test_the_bench_is_its_screen_in_a_notebook(pair: Any, show: Any) -> None:
    screen = show(pair.base)
    bundle, _ = screen.workbench._repr_mimebundle_()
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == screen.model_id
    screen.close()
    assert screen["logit_lens"].closed
    again = screen.workbench.screen
    assert again is not screen
    assert again.wait(120)
    assert again.texts.prompt == PROMPT


def test_the_instruction_is_marked_in_the_tokens_above(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair)
    explorer = screen["saliency"]["map"]
    button = next(one for one in descendants(explorer) if getattr(one, "description", "") == "Mark instruction")
    wire.type(button, value=True)
    assert screen.texts.prompt_strip.marking
    wire.type(screen.texts.prompt_strip, marks=[[1, 3]])
    assert explorer.marks == [[1, 3]]
    assert explorer.mask().tolist() == [False, True, True, False, False, False, False, False]
    assert "Instruction score" in explorer.scores.value
    screen.workbench.prompt = "The capital of Japan is"
    assert screen.wait(120)
    assert explorer.marks == list(screen.texts.prompt_strip.marks) == []


# ---- sessions and pages


def numbers(panel: Any) -> Any:
    """What the results of a panel hold."""
    return [np.asarray(result.importance) for result in panel.results]


def test_a_session_opens_with_the_same_results_without_computing(
    pair: Any, show: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = show(pair, tabs=("saliency", "logit_lens"), response=" Paris. Paris is")
    for name in ("ablation", "decomposition"):
        screen.show(name)
        assert screen.wait(120)
    screen.shown = ("saliency", "ablation")
    screen["saliency"].method = "first_order"
    screen.workbench.response_token = 1
    screen.view = "A"
    assert screen.wait(120)
    for shown in (("logit_lens", "decomposition"), ("saliency", "ablation")):
        screen.shown = shown  # what is not shown is not brought up to the selection
        assert screen.wait(120)
    before = numbers(screen["saliency"]), screen["ablation"].results[1].effect, text_of(screen)
    path = screen.workbench.save(tmp_path / "story.npz")
    cache.clear()
    monkeypatch.setattr(Panel, "compute", lambda *_, **__: pytest.fail("the model ran"))
    again = Workbench.load(path, pair.base, pair.tuned)
    try:
        opened = again.screen
        assert opened.wait(120)
        assert opened.status_line.error == ""
        assert (opened.shown, opened.view, opened["saliency"].method) == (("saliency", "ablation"), "A", "first_order")
        assert (again.prompt, again.response, again.response_token) == (PROMPT, " Paris. Paris is", 1)
        for one, other in zip(numbers(opened["saliency"]), before[0], strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(opened["ablation"].results[1].effect, before[1])
        assert text_of(opened) == before[2]
        opened.shown = ("logit_lens", "decomposition")
        assert opened.wait(120)
        assert opened.status_line.error == ""
        assert all(opened[name].result is not None for name in opened.shown)
        assert hidden(opened.note)
    finally:
        again.close()


def test_results_of_other_weights_are_computed_anew(pair: Any, show: Any, tmp_path: Path) -> None:
    screen = show(pair.base, tabs=("logit_lens",))
    path = screen.workbench.save(tmp_path / "base.npz")
    other = Workbench.load(path, pair.tuned)
    try:
        assert other.screen.wait(120)
        assert "Computed anew" in other.screen.note.value
        assert "weight hash" in other.screen.note.value
        wanted = response_probabilities(pair.tuned, PROMPT, RESPONSE).probability
        np.testing.assert_allclose(other.screen.texts.result.probability, wanted, atol=1e-6)
    finally:
        other.close()
    with pytest.raises(ValueError, match="saved with 1 model, got 2: give as many"):
        Workbench.load(path, pair.base, pair.tuned)


def test_a_session_finds_its_models(pair: Any, show: Any, tmp_path: Path) -> None:
    path = show(pair.base, tabs=("logit_lens",)).workbench.save(tmp_path / "base.npz")
    again = Workbench.load(path)
    try:
        assert again.models[0].name == pair.base.name
        assert again.screen.wait(120)
        assert hidden(again.screen.note)
    finally:
        again.close()


def test_what_is_no_session_is_refused(pair: Any, show: Any, tmp_path: Path) -> None:
    screen = show(pair.base, tabs=("logit_lens",))
    with pytest.raises(FileNotFoundError, match="there is no result file"):
        Workbench.load(tmp_path / "nothing.npz")
    for use in (Workbench.load, screen.workbench.save):
        with pytest.raises(TypeError, match="path must be a str or a Path, got None"):
            use(None)
    with pytest.raises(ValueError, match="not a Session"):
        Workbench.load(screen["logit_lens"].save(tmp_path / "lens.npz"))
    with pytest.raises(ValueError, match=r"the name must end in .npz, .html"):
        screen.save(tmp_path / "session.txt")
    with pytest.raises(ValueError, match="make it or choose another"):
        screen.save(tmp_path / "nowhere" / "session.npz")
    with pytest.raises(ValueError, match="no class of this package"):
        unpacked({"class of interp_widgets": "os:system"})
    with pytest.raises(ValueError, match="no class of this package"):
        unpacked({"class of interp_widgets": "interp_widgets.models:load_model"})


def test_one_page_holds_all_open_panels(pair: Any, show: Any, tmp_path: Path) -> None:
    screen = show(pair, tabs=("saliency", "logit_lens"), response=" Paris. Paris is")
    screen.show("decomposition")
    assert screen.wait(120)
    screen.workbench.response_token = 2
    assert screen.wait(120)
    hidden_map = screen["saliency"]["map"].heat
    assert hidden_map.cross != [-1, 2]
    page = screen.save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert hidden_map.cross == [-1, 2], "as the others"
    for title in ("What it depends on", "What each layer would say", "What it is made of"):
        assert title in page
    assert "<textarea" not in page.partition("<script")[0]
    assert PROMPT in page


def test_saving_from_the_screen(
    pair: Any, show: Any, wire: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    screen = show(pair.base, tabs=("logit_lens",))
    wire.click(next(one for one in descendants(screen.head) if getattr(one, "description", "") == "Save"))
    assert not hidden(screen.save_row.row)
    wire.click(screen.save_row.write)
    assert (tmp_path / "workbench.npz").exists()
    assert screen.status_line.text.startswith("Saved ")


# ---- chats

MESSAGES = [{"role": "user", "content": "Name the capital of Japan."}]


def test_a_prompt_of_messages_is_read_as_the_template_writes_it(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair, tabs=("saliency", "logit_lens"), prompt=MESSAGES, response=" Tokyo")
    ids = [*pair.tuned.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)]
    for result in (*screen.texts.results, *screen["saliency"].results):
        front = [] if result.bos_id is None else [result.bos_id]
        assert [*front, *result.prompt_ids] == ids, "no second BOS"
    chat = screen.texts.chat
    assert chat.messages == MESSAGES
    strip = screen.texts.prompt_strip
    said = {name: strip.tokens[at] for at, name in enumerate(strip.captions) if name}
    assert said["user"].strip() == "N"
    assert [name for name in strip.captions if name] == ["template", "user", "template"]
    assert not hidden(chat.box)
    assert hidden(screen.texts.text)
    screen["saliency"].rows = "roles"
    assert screen.wait(120)
    assert screen.status_line.error == ""
    assert any("user" in str(label) for label in screen["saliency"]["map"].heat.row_labels)
    code = screen["saliency"]["map"].code(screen["saliency"]["map"].request())
    assert repr(MESSAGES) in code


def test_messages_are_edited_added_and_taken_out(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair.tuned, tabs=("logit_lens",))
    texts = screen.texts
    before = texts.prompt
    wire.type(texts.chat_button, value=True)
    assert screen.wait(120)
    assert isinstance(screen.workbench.prompt, ChatText)
    assert screen.workbench.prompt.messages == [{"role": "user", "content": before}]
    wire.type(texts.chat.lines[0][1], value="Name the capital of Italy.")
    assert screen.wait(120)
    assert "Italy" in screen.workbench.prompt
    assert screen["logit_lens"].prompt == screen.workbench.prompt
    wire.click(texts.chat.add)
    assert len(texts.chat.lines) == 2
    assert len(screen.workbench.prompt.messages) == 1, "an empty message says nothing"
    wire.click(texts.chat.lines[1][2])
    assert len(texts.chat.lines) == 1
    text = str(screen.workbench.prompt)
    wire.type(texts.chat_button, value=False)
    assert screen.wait(120)
    assert (screen.workbench.prompt, type(screen.workbench.prompt)) == (text, str)
    assert hidden(texts.chat.box)
    assert not hidden(screen.texts.text)


def test_messages_that_cannot_be_read_are_a_hint_at_them(pair: Any, show: Any, wire: Any) -> None:
    screen = show(pair.tuned, tabs=("logit_lens",), prompt=MESSAGES, response=" Tokyo")
    chat, before = screen.texts.chat, screen.workbench.prompt
    wire.type(chat.lines[0][1], value="a\ud800")
    assert "one half of a surrogate pair: remove it" in chat.hint.sentence
    assert (screen.workbench.prompt, screen.status_line.error) == (before, "")
    wire.type(chat.lines[0][1], value="Name the capital of Italy.")
    assert chat.hint.sentence == ""
    assert screen.wait(120)
    assert "Italy" in screen.workbench.prompt


def test_what_is_no_panel_is_no_tab(pair: Any, show: Any) -> None:
    screen = show(pair.base, tabs=("logit_lens",))
    with pytest.raises(TypeError, match="a tab needs a panel class, got 3: decorate the function with @probe"):
        screen.workbench.add("three", 3)
    with pytest.raises(ValueError, match="there is a tab 'saliency' already: choose another name"):
        screen.workbench.add("saliency", LogitLensExplorer)
    assert "three" not in screen.tools


def test_a_chat_needs_a_template(pair: Any, show: Any, wire: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = show(pair.tuned, tabs=("logit_lens",))
    monkeypatch.setattr(pair.tuned.tokenizer, "chat_template", None)
    wire.type(screen.texts.chat_button, value=True)
    assert "has no chat template" in screen.controls.hints["prompt"]
    assert not screen.texts.chat_button.value
    assert screen.status_line.error == ""
    with pytest.raises(T.TraitError, match="has no chat template"):
        screen.workbench.prompt = MESSAGES


def test_a_session_keeps_a_chat(pair: Any, show: Any, tmp_path: Path) -> None:
    path = show(pair.tuned, tabs=("logit_lens",), prompt=MESSAGES, response=" Tokyo").workbench.save(
        tmp_path / "chat.npz"
    )
    again = Workbench.load(path, pair.tuned)
    try:
        assert again.prompt.messages == MESSAGES
        assert again.screen.wait(120)
        assert again.screen.status_line.error == ""
    finally:
        again.close()


def test_a_step_that_is_no_longer_offered_is_ignored(wire: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A page that is behind may still show its button."""
    taken: list[Step] = []
    selected = Selected(TOOLS, taken.append)
    with nothing_in_the_log(caplog):
        for button in selected.steps.values():
            wire.click(button)
        selected.show([], lambda step: False)
        for button in selected.steps.values():
            wire.click(button)
    assert 0 < len(taken) < len(selected.steps)
    close_tree(selected.box)
    close_one(selected.box)


def test_words_are_escaped_and_small_numbers_are_no_values() -> None:
    words = Description("<b>", ("a < b",), ("token", "p"), (("<script>", "1"),))
    assert "<script>" not in words.html()
    assert "&lt;script&gt;" in words.html()
    assert (decimals(0.0004), decimals(0.0006), decimals(float("nan"))) == ("< 0.001", "0.001", "no value")
    box = W.HTML("")
    shown_if(box, False)
    assert hidden(box)
