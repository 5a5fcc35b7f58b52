"""Arguments of the public functions: one piece of code refuses what does not fit its annotation, in one sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from typing_extensions import TypeAliasType

import interp_widgets
from interp_widgets.arguments import argument_kinds, checked
from tests.models.tiny import tiny_model

OTHERWISE = {"load_model", "load_pair", "load_demo_pair", "demo_concepts", "demo_word_vectors"}
"""Functions that take no arguments, or check theirs in words of their own."""
FUNCTIONS = sorted(
    name
    for name in interp_widgets.__all__
    if inspect.isfunction(getattr(interp_widgets, name)) and name not in OTHERWISE
)
OF_A_MODEL = [
    name
    for name in FUNCTIONS
    if "a loaded model" in [kind.name for kind in argument_kinds(getattr(interp_widgets, name)).get("model", ())]
]


@checked
def example(
    text: str,
    ids: str | Sequence[int] = (),
    *,
    layers: Sequence[int] | None = None,
    words: Sequence[str] | Mapping[str, int] | None = None,
    share: float = 0.5,
    seed: int = 0,
    pair: tuple[int, int] = (0, 1),
    way: Literal["one", "two"] = "one",
    keep: bool = True,
    texts: Iterable[str] = (),
    state: ArrayLike | torch.Tensor = 0.0,
    progress: Callable[[int, int], None] | None = None,
    anything: Any = None,
) -> Iterator[str]:
    """Takes one of each kind."""
    return iter(texts)


def test_what_is_annotated_passes() -> None:
    example("a", "b", layers=[0, 1], words=["a"], share=1, seed=3, pair=[1, 2], keep=False, state=[1.0, 2.0])
    example("a", [1, np.int64(2)], layers=range(3), words={"a": 1}, share=np.float32(0.5), pair=(1, 2), way="two")
    example("a", torch.tensor([1, 2]), layers=np.array([1, 2]), keep=np.True_, state=torch.ones(2), progress=print)
    example("a", texts=iter(["a"]), anything=object(), layers=None, words=None)
    assert list(example("a", texts=(one for one in "bc"))) == ["b", "c"], "an iterator must not be used up"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"text": None}, TypeError, "text must be a str, got None"),
        ({"text": b"a"}, TypeError, "text must be a str, got an object of type bytes"),
        ({"ids": 1.5}, TypeError, "ids must be a str or a list of int, got 1.5"),
        ({"ids": [1.5]}, TypeError, r"ids must be a str or a list of int, got \[1.5\]"),
        ({"ids": [1, 2, 1.5]}, TypeError, r"ids must be a str or a list of int, got \[1, 2, 1.5\]"),
        ({"layers": [0, True]}, TypeError, r"list of int or None, got \[0, True\]"),
        ({"words": ["a", None]}, TypeError, r"a list of str, a mapping or None, got \['a', None\]"),
        ({"layers": 3}, TypeError, r"layers must be a list of int or None, got 3: write layers=\[3\]"),
        ({"layers": [True]}, TypeError, r"list of int or None, got \[True\]"),
        ({"layers": {1: 2}}, TypeError, "list of int or None"),
        ({"layers": np.zeros((2, 2), int)}, TypeError, "got an object of type ndarray"),
        ({"words": "a"}, TypeError, r"a list of str, a mapping or None, got 'a': write words=\['a'\]"),
        ({"share": float("nan")}, ValueError, "share must be a number, got nan"),
        ({"share": "0.5"}, TypeError, "share must be a number, got '0.5'"),
        ({"share": np.zeros(1)}, TypeError, "share must be a number"),
        ({"seed": -1}, ValueError, "seed must be an int >= 0, got -1"),
        ({"seed": 1.0}, TypeError, "seed must be an int >= 0, got 1.0"),
        ({"pair": (1, 2, 3)}, TypeError, r"pair must be a tuple of 2 int, got \(1, 2, 3\)"),
        ({"way": 1}, TypeError, "way must be 'one' or 'two', got 1"),
        ({"keep": 1}, TypeError, "keep must be True or False, got 1"),
        ({"texts": "ab"}, TypeError, "texts must be a list of str, got 'ab'"),
        ({"texts": 3}, TypeError, "texts must be a list of str, got 3"),
        ({"state": "ab"}, TypeError, "state must be an array of numbers, got 'ab'"),
        ({"progress": 3}, TypeError, "progress must be a callable or None, got 3"),
        ({"other": 3}, TypeError, "unexpected keyword argument 'other'"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        example(**{"text": "a", **arguments})


def test_a_class_is_checked_when_an_object_is_made() -> None:
    @checked
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

    assert Named("a").name == "a"
    with pytest.raises(TypeError, match="name must be a str, got 3"):
        Named(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="base must be a loaded model, got None: use load_model"):
        interp_widgets.ModelPair(None, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"instruction must be a tuple of 2 int or None, got \(1,\)"):
        interp_widgets.SaliencyCase("a", instruction=(1,))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_is_checked(name: str) -> None:
    function = getattr(interp_widgets, name)
    if function.__code__.co_filename.endswith("renamed.py"):  # old keywords get their new names before the check
        function = function.__wrapped__
    assert function.__code__.co_filename.endswith("arguments.py"), "decorate it with @checked, above all but @renamed"
    assert argument_kinds(function), "every annotation must be one that the checks can read"


@pytest.mark.parametrize("name", OF_A_MODEL)
@pytest.mark.parametrize("given", [None, "gpt2", 3])
def test_what_is_no_model_is_told(name: str, given: Any) -> None:
    function = getattr(interp_widgets, name)
    rest = [one.default for one in inspect.signature(function).parameters.values()][1:]
    needed = {
        key: None for key, value in inspect.signature(function).parameters.items() if value.default is value.empty
    }
    needed.pop("options", None), needed.pop("saliency_options", None)
    assert len(OF_A_MODEL) > 20
    assert rest or name == "circuit_edges", "it takes a model alone"
    with pytest.raises(TypeError, match=r"model must be a loaded model, got .*: use load_model"):
        function(**{**needed, "model": given})


def test_ints_of_prompts_and_targets_are_token_ids() -> None:
    model = tiny_model("gpt2")
    with pytest.raises(TypeError, match=r"^prompt must be a str, a list of token ids or a list of messages, got None$"):
        interp_widgets.logit_lens(model, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"lists of token ids or lists of messages, got \[\[0\.5\]\]$"):
        interp_widgets.last_states(model, [[0.5]], layers=0)  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"^target must be a str, a token id or None, got 1\.5$"):
        interp_widgets.logit_lens(model, "a", target=1.5)  # type: ignore[arg-type]


def test_functions_say_what_only_they_know() -> None:
    model = tiny_model("gpt2")
    for wrong in (None, "base", 3, []):
        for compare in (interp_widgets.compare_heads, interp_widgets.compare_concepts):
            with pytest.raises(TypeError, match=r"must be loaded models or .*Result results, got"):
                compare(model, wrong)
        with pytest.raises(TypeError, match="the first argument must be a loaded model, two of them, or a list of"):
            interp_widgets.saliency_dataset(wrong or None)
    with pytest.raises(ValueError, match="seeds must be at least one int >= 0, all different, got"):
        interp_widgets.mod_ablations(model, [("a", "b")], [], seeds=[])
    with pytest.raises(ValueError, match=r"k must be an int in 1\.\.3 for this 3-layer model, got -1"):
        interp_widgets.late_layer_losses(model, [("a", "b")], -1)


S = TypeVar("S", bound=np.generic)
Array = TypeAliasType("Array", ArrayLike)
Wide = TypeAliasType("Wide", np.ndarray[tuple[Any, ...], np.dtype[S]], type_params=(S,))


def test_an_alias_is_what_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since numpy 2.5 ArrayLike and NDArray are some."""
    monkeypatch.setattr("numpy.typing.ArrayLike", Array)

    @checked
    def draw(values: Array, label: str, wide: Wide[np.float64] | None = None) -> str:
        return label

    assert draw([1.0, 2.0], "a label", None) == draw(np.ones(2), "a label", np.ones(2)) == "a label"
    for arguments, sentence in (
        (([1.0], 3), "label must be a str, got 3"),
        (("one", "a label"), "values must be an array of numbers, got 'one'"),
        (([1.0], "a label", 3), "wide must be an array or None, got 3"),
    ):
        with pytest.raises(TypeError, match=sentence):
            draw(*arguments)  # type: ignore[arg-type]
