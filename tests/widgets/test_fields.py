"""An option that is declared once has its trait, its control, its hint, and its place in the question."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import ipywidgets as W
import pytest
import traitlets as T

from interp_widgets.widgets.base.fields import Bounds, Incomplete, Lines, Seed, Several, Share, Text, field, variant
from interp_widgets.widgets.base.panel import Panel
from interp_widgets.widgets.views import TextBox
from tests.widgets.opening import opening


def count_letters(model: Any, *, prompt: str, letters: tuple[str, ...] = (), most: int = 5, foil: str = "") -> int:
    """An analysis: no result needs a model here."""
    return min(most, sum(letter in (*letters, foil) for letter in prompt))


class Letters(Panel):
    """Counts letters."""

    title = "Letters"
    analysis = staticmethod(count_letters)

    prompt = field(Annotated[str, Text(2)], "banana", label="Prompt", width="grow", required="type a prompt")
    letters = field(Annotated[list, Lines()], ["a"], label="Letters, one per line")
    highest = field(Annotated[int, Bounds(1, 20)], 5, label="Most", argument="most", new_row=True)
    against = field({"nothing": "nothing", "foil": "a foil"}, "nothing", label="Against", argument=None)
    foil = field(
        str, label="Foil", shown_if=lambda panel: panel.against == "foil", required="type the foil: one letter"
    )
    share = field(Share, 0.5, label="From", redraws=True)
    place = field(Annotated[int, Bounds(0, lambda panel: panel.highest, slider=True)], label="Place", argument=None)
    seed = field(Seed, label="Seed", argument=None, group="elsewhere")
    hidden = field(int, 0, argument=None)

    def build(self) -> None:
        super().build()
        self.drawn: list[int] = []

    def draw(self, results: tuple[int, ...], request: Any) -> None:
        self.drawn.append(results[0])


@pytest.fixture
def make(model: Any, wire: Any) -> Iterator[Callable[..., Letters]]:
    opened: list[Letters] = []

    def build(**options: Any) -> Letters:
        opened.append(Letters(model, **options))
        assert opened[-1].wait(60)
        return opened[-1]

    yield build
    for panel in opened:
        panel.close()


def test_several_choices_are_written_as_their_labels() -> None:
    kinds = field(Several({"attn": "attention", "mlp": "MLP"}, ["mlp"]), label="Modules")
    assert kinds.metadata["field"].text(("attn", "mlp")) == "attention · MLP"


def test_trait_keyword_call_and_code_come_from_the_declaration(make: Callable[..., Letters]) -> None:
    panel = make(prompt="cabbage", letters=["a", "b"])
    assert panel.result == 4
    assert panel.request().arguments == (("prompt", "cabbage"), ("letters", ("a", "b")), ("most", 5))
    assert "count_letters(model, prompt='cabbage', letters=['a', 'b'])" in panel.code(panel.request())
    panel.highest = 4
    assert "letters=['a', 'b'], most=4)" in panel.code(panel.request())
    with pytest.raises(TypeError, match="did you mean 'highest'"):
        make(highes=3)
    with pytest.raises(T.TraitError):
        make(highest=21)


def test_controls_follow_the_traits_both_ways(make: Callable[..., Letters], wire: Any) -> None:
    panel = make()
    kinds = {"prompt": TextBox, "letters": TextBox, "highest": W.BoundedIntText, "against": W.Dropdown,
             "share": W.FloatSlider, "place": W.IntSlider, "seed": W.BoundedIntText}  # fmt: skip
    assert all(isinstance(panel.controls[name], kind) for name, kind in kinds.items())
    wire.type(panel.controls["letters"], value="b\n\nn\n")
    assert panel.letters == ["b", "n"]
    assert panel.wait(60)
    assert panel.result == 3
    panel.letters = ["a", "b"]
    assert panel.controls["letters"].value == "a\nb"
    panel.highest = 9
    assert panel.controls["place"].max == 9


def test_rows_are_those_of_the_declaration(make: Callable[..., Letters]) -> None:
    panel = make()
    labels = [[child.description for child in row.children] for row in panel.inputs.children]
    assert labels == [["Prompt", "Letters, one per line"], ["Most", "Against", "Foil", "From", "Place"]]


def test_a_change_runs_draws_or_does_nothing(make: Callable[..., Letters]) -> None:
    panel = make()
    drawn = len(panel.drawn)
    panel.place = panel.seed = panel.hidden = 3
    assert len(panel.drawn) == drawn
    panel.share = 0.7
    assert len(panel.drawn) == drawn + 1
    panel.highest = 2
    assert panel.wait(60)
    assert panel.drawn[-1] == 2


def test_what_is_missing_is_a_hint_that_goes_with_its_cause(make: Callable[..., Letters], wire: Any) -> None:
    panel = make()
    assert "iw-hidden" in panel.controls["foil"]._dom_classes
    good = panel.result
    panel.against = "foil"
    panel.go()
    assert "type the foil" in panel.controls.hints["foil"]
    assert (panel.status.state, panel.status.error, panel.result) == ("idle", "", good)
    with pytest.raises(Incomplete, match="type the foil"):
        panel.run()
    wire.type(panel.controls["foil"], value="n")
    assert panel.wait(60)
    assert panel.controls.hints == {}
    assert panel.result == 5
    panel.against = "nothing"
    panel.prompt = ""
    assert list(panel.controls.hints) == ["prompt"]
    assert "foil" not in dict(panel.arguments())


def test_a_field_of_no_known_kind_is_an_error() -> None:
    with pytest.raises(TypeError, match="a field is of str, int, float"):
        field(complex)


def test_a_variant_may_start_with_another_value() -> None:
    class Few(T.HasTraits):
        k = field(Annotated[int, Bounds(1, 50)], 10, label="k")

    class Many(Few):
        k = variant(Few.k, default=40, label="K")

    assert (Few().k, Many().k, Many(k=3).k) == (10, 40, 3)
    with pytest.raises(T.TraitError, match="50"):
        Many(k=51)
    assert [kind.k.metadata["field"].label for kind in (Few, Many)] == ["k", "K"]


class Folded(Letters):
    """Some of its options are seldom changed."""

    highest = variant(Letters.highest, more=True)
    against = variant(Letters.against, more=True)
    foil = variant(Letters.foil, more=True)


def test_what_is_seldom_changed_is_under_more(model: Any, wire: Any) -> None:
    with opening(Folded) as show:
        panel = show(model)
        first, fold = panel.inputs.children
        more = first.children[-1]
        assert [child.description for child in first.children] == [
            "Prompt",
            "Letters, one per line",
            "From",
            "Place",
            "More",
        ]
        assert [[child.description for child in row.children] for row in fold.children] == [["Most", "Against", "Foil"]]
        assert "iw-hidden" in fold._dom_classes
        wire.type(more, value=True)
        assert "iw-hidden" not in fold._dom_classes
        wire.type(more, value=False)
        panel.against = "foil"
        panel.go()  # what a hint is about is brought to light
        assert panel.hints == {"foil": "type the foil: one letter"}
        assert more.value
        assert "iw-hidden" not in fold._dom_classes


@pytest.mark.parametrize(("options", "opened"), [({}, False), ({"highest": 5}, False), ({"highest": 6}, True)])
def test_more_is_open_where_something_is_unusual(model: Any, options: dict[str, Any], opened: bool) -> None:
    with opening(Folded) as show:
        assert show(model, **options).inputs.children[0].children[-1].value == opened


def test_a_group_cannot_be_all_under_more(model: Any) -> None:
    class Alone(Letters):
        seed = variant(Letters.seed, more=True)

        def build(self) -> None:
            super().build()
            self.details.children = self.controls.rows("elsewhere")

    with pytest.raises(
        TypeError, match="at least one of the fields seed must be visible: declare it without more=True"
    ):
        Alone(model)
