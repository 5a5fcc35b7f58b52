"""Texts and numbers that nobody means: a sentence, at once, and everything stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ipywidgets as W
import pytest
import traitlets as T

import interp_widgets
from interp_widgets.models import Model
from interp_widgets.widgets.base.controls import LONGEST_TEXT, Typed, TypedList, checked_path
from interp_widgets.widgets.views import TextBox
from tests.shipped import demo_pair

KINDS = [
    "SaliencyExplorer", "LogitLensExplorer", "AttentionExplorer", "AblationPanel", "PatchingPanel",
    "TokenDecompositionExplorer", "HeadWordBrowser", "FFNConceptBrowser", "ConceptBrowser", "MoDRoutingViewer",
    "BiasWorkbench", "LayerSimilarityExplorer",
]  # fmt: skip
PASTED = "word " * 200_000
HALF = "a\ud800b"


@pytest.fixture(scope="module")
def base() -> Model:
    return demo_pair().base


@pytest.fixture(scope="module")
def panel_of(base: Model) -> Iterator[Callable[[str], Any]]:
    made: dict[str, Any] = {}

    def panel_of(kind: str) -> Any:
        if kind not in made:
            made[kind] = getattr(interp_widgets, kind)(base)
            made[kind].cancel()  # what it has found so far will do
            assert made[kind].wait(60)
        return made[kind]

    yield panel_of
    for panel in made.values():
        panel.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_of_every_panel_is_one_that_is_checked(kind: str) -> None:
    """Of a text that is not, nobody says that it is too long."""
    given = getattr(interp_widgets, kind)
    traits = {name: given.class_traits()[name] for name in given.options()}
    texts = {name: one for name, one in traits.items() if isinstance(one, (T.Unicode, T.Union))}
    assert texts, "there are texts"
    for name, one in texts.items():
        assert isinstance(one.trait_types[0] if isinstance(one, T.Union) else one, Typed), name
    for name, one in traits.items():
        if isinstance(one, T.List) and isinstance(one._trait, T.Unicode):
            assert isinstance(one, TypedList), name


@pytest.mark.seconds
@pytest.mark.parametrize(("text", "says"), [(PASTED, "may have 200,000 characters, got 1,000,00"), (HALF, "surrogate")])
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_nobody_means_is_refused_before_anything_reads_it(
    kind: str, text: str, says: str, panel_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = panel_of(kind)
    result, busy = panel.result, panel.busy
    monkeypatch.setattr(Model, "tokens", lambda *_, **__: pytest.fail("tokenised"))
    monkeypatch.setattr(getattr(panel, "current", panel), "draw", lambda *_: pytest.fail("drawn"))
    for name, trait in type(panel).class_traits().items():
        if not isinstance(trait, (Typed, TypedList)) and name != "vectors":
            continue
        before = getattr(panel, name)
        with pytest.raises(T.TraitError, match=f"{name} .*{says}") as caught:
            setattr(panel, name, [text, *[""] * ((trait.count or 1) - 1)] if isinstance(trait, TypedList) else text)
        assert len(str(caught.value)) < 300
        assert (getattr(panel, name), panel.result, panel.busy) == (before, result, busy)


@pytest.mark.parametrize("kind", KINDS)
def test_no_box_sends_back_what_no_message_can_hold(kind: str, panel_of: Callable[[str], Any]) -> None:
    """Else half a surrogate pair that is pasted would never reach the panel, which could not say what is wrong."""

    def boxes(widget: Any) -> Iterator[Any]:
        if isinstance(widget, (W.Text, W.Textarea, TextBox)):
            yield widget
        for child in getattr(widget, "children", ()):
            yield from boxes(child)

    found = list(boxes(panel_of(kind)))
    assert found, "there are boxes"
    assert [box for box in found if box.trait_metadata("value", "echo_update", True)] == []


def test_a_text_box_goes_back_and_the_panel_says_why(panel_of: Callable[[str], Any]) -> None:
    panel = panel_of("LogitLensExplorer")
    prompt, result = panel.prompt, panel.result
    for text, says in ((PASTED, "prompt may have 200,000 characters"), (HALF, "prompt must be valid Unicode")):
        panel.controls["prompt"].value = text
        assert panel.status.error.startswith(says)
        assert panel.status.error.endswith(f"it stays {prompt!r}")
        assert (panel.prompt, panel.controls["prompt"].value, panel.result) == (prompt, prompt, result)
    panel.workbench.select(layer=0)
    with pytest.raises(T.TraitError, match="prompt may have"):
        panel.workbench.select(prompt=PASTED)
    assert panel.prompt == prompt


@pytest.mark.seconds
@pytest.mark.parametrize(("kind", "name"), [("ConceptBrowser", "search"), ("HeadWordBrowser", "vectors")])
def test_what_was_refused_is_forgotten_when_the_box_is_used_again(
    kind: str, name: str, panel_of: Callable[[str], Any]
) -> None:
    panel = panel_of(kind)
    box = panel.controls[name]
    box.value = PASTED
    assert f"{name} may have 200,000 characters" in panel.status.error
    assert box.value == "", "it does not show what is not used"
    box.value = "cities" if name == "search" else "/nowhere/vectors.txt"
    assert panel.status.error == ""
    box.value = ""
    assert panel.wait(60)
    assert (panel.status.error, panel.hints) == ("", {})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [10**9, 10**30])
def test_a_layer_that_the_model_does_not_have_is_refused(kind: str, value: int, panel_of: Callable[[str], Any]) -> None:
    panel = panel_of(kind)
    result = panel.result
    for name in ("layer", "head", "neuron"):
        if panel.has_trait(name):
            before = getattr(panel, name)
            with pytest.raises(T.TraitError, match=rf"{name} must be in 0\.\.\d+ for demo-base, got {value}"):
                setattr(panel, name, value)
            assert (getattr(panel, name), getattr(panel.workbench, name), panel.result) == (before, before, result)


def test_boxes_of_names_and_stimuli(panel_of: Callable[[str], Any], tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    panel = panel_of("ConceptBrowser")
    boxes = [box for box in _inside(panel) if isinstance(box, W.Text | W.Textarea | TextBox)]
    assert len(boxes) > 4
    library = panel.library
    for box, press in ((library.stimuli, library.add), (library.name, library.add), (library.path, library.open)):
        for text in (PASTED, HALF):
            before, concepts = box.value, panel.concepts
            box.value = text
            with pytest.raises(ValueError, match=r"shorten it|surrogate") as caught:
                press()
            assert len(str(caught.value)) < 300
            box.value = before
            assert panel.concepts == concepts
    save = panel_of("LogitLensExplorer").save_row
    for text in (PASTED, HALF, "x" * 252, "a\0b"):
        save.name.value = text
        save.write.click()
        assert "the file name" in save.not_saved.sentence
        assert len(save._panel.status.error) < 300
    assert list(tmp_path.iterdir()) == []


def _inside(widget: Any) -> Iterator[Any]:
    yield widget
    for child in getattr(widget, "children", ()):
        yield from _inside(child)


def test_paths() -> None:
    assert checked_path("  a folder/ü.npz ", "the path") == "a folder/ü.npz"
    for bad in ("x" * 256, "ü" * 128, "a/" * 2100, "a\0", HALF, "x" * (LONGEST_TEXT + 1)):
        with pytest.raises(ValueError, match="the path"):
            checked_path(bad, "the path")
