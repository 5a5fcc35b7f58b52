"""The laws of arguments: one for indices in every analysis, one for ranges, choices and finite numbers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch

from interp_widgets.analysis._core.checks import (
    check_choice,
    check_choices,
    check_finite,
    check_range,
    check_span,
    indices,
    layer_indices,
    neuron_indices,
    row_of,
    rows_of,
    stream_indices,
)
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.ablation import ablate_heads, ablate_modules, ablate_neurons, causal_trace
from interp_widgets.analysis.concepts import (
    compare_steering,
    concept_directions,
    decompose_prompt,
    erase,
    read_prompt_concepts,
    steer,
)
from interp_widgets.analysis.ffn_concepts import annotate_concepts, ffn_concepts, neuron_effects, neuron_tokens
from interp_widgets.analysis.head_words import compare_heads, head_word_pairs
from interp_widgets.analysis.hidden_states import last_states
from interp_widgets.analysis.logit_lens import logit_lens
from interp_widgets.analysis.saliency import faithfulness, prompt_saliency, sentence_profiles
from interp_widgets.analysis.token_decomposition import decompose_logit, decompose_tokens, part_tokens
from interp_widgets.data.concepts import Concept
from interp_widgets.data.word_vectors import demo_word_vectors
from interp_widgets.models import Model
from tests.models.tiny import tiny_model

IDS = [5, 17, 300, 44, 8, 9]
WORDS = demo_word_vectors().words[:60]
LAYERS, HEADS, D_HEAD, NEURONS = 3, 4, 8, 128
RANK = 3
N = len(IDS)


@functools.cache
def model() -> Model:
    found = tiny_model("gpt2")
    assert (found.n_layers, found.n_heads, found.d_head, found.d_mlp) == (LAYERS, HEADS, D_HEAD, NEURONS)
    return found


@functools.cache
def concepts(layer: int = 1) -> Any:
    texts = ("a cat", "the dog", "my cow"), ("is red", "was blue", "in green"), ("one", "two", "three")
    few = [Concept(name, stimuli) for name, stimuli in zip(("animal", "colour", "number"), texts, strict=True)]
    return concept_directions(model(), few, layer=layer, shuffles=1)


@functools.cache
def ffn() -> Any:
    return ffn_concepts(model(), words=WORDS, rank=RANK, top=4)


@functools.cache
def notes() -> Any:
    return annotate_concepts(ffn(), None)


@functools.cache
def heads() -> Any:
    return head_word_pairs(model(), words=WORDS, top=20, keep=20)


@functools.cache
def decomposition() -> Any:
    return decompose_tokens(model(), IDS, tolerance=1.0)


@functools.cache
def saliency() -> Any:
    return prompt_saliency(model(), IDS, [5, 6, 7])


@functools.cache
def lens() -> Any:
    return logit_lens(model(), IDS, top=3)


def steered(make: Callable[..., Any], layer: int, **options: Any) -> Any:
    with make(model(), np.ones(model().d_model), layer=layer, **options):
        return model().run([5, 6]).logits.detach().numpy()


def comparison(group: int) -> str:
    return compare_heads(heads(), heads(), groups=LAYERS, resamples=9).group_name(group)  # type: ignore[no-any-return]


CASES: dict[str, tuple[str, int, Callable[[int], Any]]] = {
    "ablate_modules layers": (
        "layer", LAYERS, lambda i: ablate_modules(model(), IDS, kinds=["mlp"], layers=[i], positions=[0]).effect,
    ),
    "ablate_modules positions": (
        "position", N, lambda i: ablate_modules(model(), IDS, kinds=["mlp"], layers=[0], positions=[i]).effect,
    ),
    "ablate_heads layers": ("layer", LAYERS, lambda i: ablate_heads(model(), IDS, layers=[i], position=1).effect),
    "ablate_heads position": ("position", N, lambda i: ablate_heads(model(), IDS, layers=[0], position=i).effect),
    "ablate_neurons layer": ("layer", LAYERS, lambda i: ablate_neurons(model(), IDS, layer=i, neurons=[3]).effect),
    "ablate_neurons position": (
        "position", N, lambda i: ablate_neurons(model(), IDS, layer=0, neurons=[3], position=i).activation,
    ),
    "ablate_neurons neurons": (
        "neuron", NEURONS, lambda i: ablate_neurons(model(), IDS, layer=0, neurons=[i]).activation,
    ),
    "last_states layer": ("layer", LAYERS + 1, lambda i: last_states(model(), [IDS], i)),
    "last_states layers": ("layer", LAYERS + 1, lambda i: last_states(model(), [IDS], [0, i])),
    "last_states positions": ("position", N, lambda i: last_states(model(), [IDS], 2, positions=[i])),
    "concept_directions": ("layer", LAYERS + 1, lambda i: concepts(i).directions),
    "steer": ("layer", LAYERS + 1, lambda i: steered(steer, i, strength=1.0)),
    "erase": ("layer", LAYERS + 1, lambda i: steered(erase, i)),
    "compare_steering": (
        "layer", LAYERS + 1,
        lambda i: compare_steering(model(), concepts(), "animal", IDS, layer=i, max_new_tokens=0).layers,
    ),
    "decompose_prompt": (
        "position", N, lambda i: decompose_prompt(model(), concepts(), IDS, position=i, n_concepts=1).weights,
    ),
    "ConceptReading.strongest": (
        "position", N, lambda i: read_prompt_concepts(model(), concepts(), IDS).strongest(i),
    ),
    "ffn_concepts": (
        "layer", LAYERS, lambda i: ffn_concepts(model(), words=WORDS, rank=2, layers=[i]).plus_scores,
    ),
    "FFNConceptResult.row": ("layer", LAYERS, lambda i: ffn().row(i)),
    "FFNConceptResult layer": ("layer", LAYERS, lambda i: ffn().words(i, 0)),
    "FFNConceptResult component": ("component", RANK, lambda i: ffn().words(0, i)),
    "annotate_concepts layers": ("layer", LAYERS, lambda i: annotate_concepts(ffn(), None, layers=[i]).layers),
    "annotate_concepts components": (
        "component", RANK, lambda i: annotate_concepts(ffn(), None, components=[i]).components,
    ),
    "ConceptAnnotations layer": ("layer", LAYERS, lambda i: notes().cell(i, 0)),
    "ConceptAnnotations component": ("component", RANK, lambda i: notes().cell(0, i)),
    "neuron_tokens layer": (
        "layer", LAYERS, lambda i: neuron_tokens(model(), layer=i, neurons=[3], top=2).promoted_scores,
    ),
    "neuron_tokens neurons": (
        "neuron", NEURONS, lambda i: neuron_tokens(model(), layer=1, neurons=[i], top=2).promoted_scores,
    ),
    "NeuronTokenResult.tokens": ("neuron", 2, lambda i: neuron_tokens(model(), layer=1, neurons=[0, 1]).tokens(i)),
    "neuron_effects layer": ("layer", LAYERS, lambda i: neuron_effects(model(), IDS, 7, layer=i).effect),
    "neuron_effects neurons": (
        "neuron", NEURONS, lambda i: neuron_effects(model(), IDS, 7, layer=1, neurons=[i]).effect,
    ),
    "neuron_effects position": ("position", N, lambda i: neuron_effects(model(), IDS, 7, layer=1, position=i).effect),
    "head_word_pairs": (
        "layer", LAYERS, lambda i: head_word_pairs(model(), words=WORDS, top=20, layers=[i]).head_pairs,
    ),
    "HeadWordResult layer": ("layer", LAYERS, lambda i: heads().pairs(i, 0)),
    "HeadWordResult head": ("head", HEADS, lambda i: heads().pairs(0, i)),
    "HeadWordResult dimension": ("dimension", D_HEAD, lambda i: heads().dimension_pairs(0, 0, i)),
    "HeadComparison.group_name": ("group", LAYERS, comparison),
    "decompose_tokens": ("position", N, lambda i: decompose_tokens(model(), IDS, position=i, tolerance=1.0).residual),
    "decompose_logit": ("position", N, lambda i: decompose_logit(model(), IDS, 7, position=i, tolerance=1.0).share),
    "part_tokens layer": ("layer", LAYERS + 1, lambda i: part_tokens(model(), decomposition(), i, 1, top=2).tokens),
    "part_tokens source": ("source", N, lambda i: part_tokens(model(), decomposition(), 1, i, top=2).tokens),
    "LogitLensResult layer": ("layer", LAYERS + 1, lambda i: lens().top(i, 0)),
    "LogitLensResult position": ("position", N, lambda i: lens().top(0, i)),
    "LogitLensResult.trajectory": ("position", N, lambda i: lens().trajectory(i)["entropy"]),
    "faithfulness": (
        "token", 3, lambda i: faithfulness(model(), saliency(), token=i, steps=2, random_orders=1).deletion,
    ),
    "Prompt.position": ("position", N, lambda i: read_prompt(model(), IDS).position(i)),
    "Prompt.positions": ("position", N, lambda i: read_prompt(model(), IDS).positions([i])),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_index_counts_from_0_or_negative_from_the_end(case: str) -> None:
    name, size, call = CASES[case]
    last, same = call(size - 1), call(-1)
    if isinstance(last, np.ndarray):
        assert np.array_equal(last, same, equal_nan=True)
    else:
        assert last == same
    for wrong in (size, -size - 1):
        with pytest.raises(ValueError, match=rf"{name} must be (in -{size}\.\.{size - 1} for|one of) .*, got {wrong}"):
            call(wrong)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ffn_concepts(model(), words=WORDS, layers=1),  # type: ignore[arg-type]
        lambda: head_word_pairs(model(), words=WORDS, layers=1),  # type: ignore[arg-type]
        lambda: annotate_concepts(ffn(), None, layers=1),  # type: ignore[arg-type]
        lambda: neuron_tokens(model(), layer=1, neurons=1),  # type: ignore[arg-type]
        lambda: layer_indices(model(), 1),
        lambda: neuron_indices(model(), 1),
    ],
)
def test_a_number_where_a_list_is_expected_is_a_sentence(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"must be a list of int or None, got 1: write \w+=\[1\]"):
        call()


def test_lists_of_indices() -> None:
    assert layer_indices(model(), None) == (0, 1, 2)
    assert layer_indices(model(), [2, 0]) == (2, 0)
    assert layer_indices(model(), [np.int64(-1)]) == (2,)
    assert stream_indices(model(), range(2, 4)) == (2, 3)
    assert rows_of([-1, 2], (2, 4), "layer") == (1, 0)
    for computed, listed in (
        ((2, 0, 1), r"0\.\.2"),
        ((0, 3, 2), "0, 3, 2"),
        (tuple(range(0, 40, 2)), r"0, 2, .*, 14, \.\."),
    ):
        with pytest.raises(ValueError, match=rf"layer must be one of {listed}, which were computed"):
            row_of(99, computed, "layer")
    with pytest.raises(ValueError, match=r"layers must be different, got 2 twice \(negative ones count from the end\)"):
        layer_indices(model(), [2, -1])
    with pytest.raises(ValueError, match=r"layers must be different, got 4 twice"):
        rows_of([-1, 4], (2, 4), "layer")
    with pytest.raises(ValueError, match=r"layers must not be empty: name at least one of 0\.\.2, or None for all"):
        layer_indices(model(), [])
    with pytest.raises(TypeError, match=r"layer must be an int, got 1\.5"):
        layer_indices(model(), [1.5])
    with pytest.raises(TypeError, match="layer must be an int, got True"):
        layer_indices(model(), [True])
    assert indices([3], 4, "head", "4-head layer") == (3,)
    assert row_of(0, (0, 1, 2), "layer") == 0


def test_ranges_and_choices() -> None:
    check_range("top", 1, most=3)
    check_range("top", 3, most=3)
    with pytest.raises(ValueError, match=r"^top must be in 1\.\.3 for this set, got 4: take fewer$"):
        check_range("top", 4, most=3, owner="this set", advice="take fewer")
    with pytest.raises(ValueError, match=r"^level must be 0 or more, got nan$"):
        check_range("level", float("nan"), 0)
    assert check_choices("modes", "a", Literal["a", "b"]) == ("a",)
    for wrong in ("c", [], ["a", "a"], ["a", "c"]):
        with pytest.raises(ValueError, match=r"^modes must be some of 'a', 'b', each once, got "):
            check_choices("modes", wrong, Literal["a", "b"])
    check_choice("mode", None, Literal["a", "b"], none=True)
    with pytest.raises(ValueError, match=r"^mode must be 'a' or 'b', got None$"):
        check_choice("mode", None, Literal["a", "b"])


@pytest.mark.parametrize("wrong", [(2, 2), (-1, 1), (0, N + 1), (1, 2, 3), (0.5, 2)])
def test_a_run_of_tokens_lies_inside_and_is_not_empty(wrong: Any) -> None:
    prompt = read_prompt(model(), IDS)
    assert prompt.find((0, N)) == (0, N)
    assert check_span(np.array([2, 4]), N, "the span", "prompt") == (2, 4)
    for call in (
        lambda: prompt.find(wrong),
        lambda: check_span(wrong, N, "the span", "prompt"),
        lambda: inspect.unwrap(causal_trace)(model(), IDS, wrong),
        lambda: inspect.unwrap(sentence_profiles)(np.ones(N), [wrong]),
    ):
        with pytest.raises(ValueError, match=rf"must be \(start, end\) with 0 <= start < end <= {N} for this prompt"):
            call()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_the_first_number_that_is_not_finite_is_named(kind: torch.dtype) -> None:
    values = torch.zeros(2, 3, dtype=kind)
    check_finite(values, "never")
    large = torch.full((2, 3), torch.finfo(torch.float32).max)  # finite, and more than the type holds in all
    check_finite(large, "never")
    check_finite(large.numpy(), "never")
    values[1, 2] = torch.inf
    values[1, 0] = torch.nan
    with pytest.raises(ValueError, match=r"^cell 1, 0 is not finite, as are 2 of 6 in all: look for broken weights"):
        check_finite(values, lambda row, column: f"cell {row}, {column}")


def test_results_are_read_whatever_file_their_class_is_in(tmp_path: Any) -> None:
    path = ffn().save(tmp_path / "concepts")
    assert Result.load(path).equals(ffn())
