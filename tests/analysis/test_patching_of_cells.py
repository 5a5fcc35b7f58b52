"""What a panel needs of activation patching: partial maps, forecasts, alignment from both ends, next tokens."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import activation_patching, patched_prediction
from interp_widgets.analysis.patching import ActivationPatchingResult, activation_patching_cost
from interp_widgets.analysis.patching.activation import possible_sites
from interp_widgets.analysis.patching.pairs import from_both_ends
from tests.models.tiny import tiny_model

CLEAN, CORRUPTED = [3, 17, 42, 8, 5, 30], [3, 17, 21, 8, 5, 30]
LONGER = [3, 17, 21, 40, 8, 5, 30]
ANSWER, FOIL = 7, 9
ALL: tuple[Any, ...] = ("resid_pre", "attn", "mlp", "head", "head_q", "head_k", "head_v", "pattern")


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama", "bridge", dtype=torch.float64)


@pytest.mark.parametrize(
    ("clean", "corrupted", "wanted"),
    [
        ([1, 2, 3], [1, 9, 3], ((0, 1, 2), (0, 1, 2))),
        ([1, 2, 3], [1, 8, 9, 3], ((0, 1, 2), (0, 2, 3))),
        ([1, 7, 2, 3], [1, 3], ((0, 3), (0, 1))),
        ([1, 2], [1, 2, 2], ((0, 1), (0, 2))),
        ([1], [2, 3, 4], ((0,), (2,))),
        ([1, 2, 3], [4, 5], ((1, 2), (0, 1))),
    ],
)
def test_tokens_belong_together_from_both_ends(clean: Any, corrupted: Any, wanted: Any) -> None:
    assert from_both_ends(clean, corrupted) == wanted
    assert from_both_ends(corrupted, clean) == wanted[::-1]


def test_the_alignment_from_both_ends_is_that_of_its_pairs(model: Any) -> None:
    options: dict[str, Any] = {"foil": FOIL, "sites": ["resid_pre", "head_k"]}
    ends = activation_patching(model, CLEAN, LONGER, ANSWER, alignment="ends", **options)
    pairs = [(0, 0), (1, 1), (2, 3), (3, 4), (4, 5), (5, 6)]
    named = activation_patching(model, CLEAN, LONGER, ANSWER, alignment=pairs, **options)
    assert (ends.positions, ends.unaligned) == ((0, 1, 3, 4, 5, 6), (2,))
    for site, values in ends.recovered.items():
        np.testing.assert_array_equal(values, named.recovered[site])
    other = [3, 21, 40, 42, 8, 5, 30]  # changes from another position on
    with pytest.raises(ValueError, match="the tokens of pair 1 belong together at other positions"):
        activation_patching(model, [CLEAN, CLEAN], [LONGER, other], ANSWER, foil=FOIL, alignment="ends")


def test_by_default_answer_and_foil_are_the_likeliest_tokens(model: Any) -> None:
    tops = [int(model.run(ids).logits[0, -1].argmax()) for ids in (CLEAN, CORRUPTED)]
    assert tops[0] != tops[1], "the test needs another pair"
    found = activation_patching(model, CLEAN, CORRUPTED, sites="attn")
    assert (found.answers, found.foils) == ((tops[0],), (tops[1],))


def test_partial_results_grow_into_the_whole(model: Any) -> None:
    parts: list[ActivationPatchingResult] = []
    whole = activation_patching(
        model, [CLEAN, CORRUPTED], [CORRUPTED, CLEAN], ANSWER, foil=FOIL, sites=ALL, batch_size=3,
        on_partial=parts.append,
    )  # fmt: skip
    total = sum(values.size for values in whole.each.values())
    missing = [part.missing for part in parts]
    assert missing == sorted(missing, reverse=True)
    assert 0 < missing[-1] < missing[0] == total, "estimates are handed on before any cell is patched"
    assert parts[0].n_pairs == 1
    assert (whole.missing, whole.partial, [part.partial for part in parts]) == (0, False, [True] * len(parts))
    for part in parts:
        assert part.low == {}
        computed = 0
        for site, values in part.each.items():
            known = np.isfinite(values)
            computed += int(known.sum())
            np.testing.assert_array_equal(values[known], whole.each[site][: len(values)][known])
        assert total - computed == part.missing


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_the_largest_of_each_site_by_a_gradient_are_patched_first(model: Any, direction: Any) -> None:
    parts, options = list[ActivationPatchingResult](), {"foil": FOIL, "sites": ("attn", "head"), "direction": direction}
    plain = activation_patching(model, CLEAN, CORRUPTED, ANSWER, batch_size=2, **options)
    estimates = activation_patching(model, CLEAN, CORRUPTED, ANSWER, method="attribution", **options).estimated
    both: Any = [CLEAN, CORRUPTED], [CORRUPTED, CLEAN]
    whole = activation_patching(model, *both, ANSWER, batch_size=2, on_partial=parts.append, **options)
    assert (whole.estimated, whole.strongest_first) == ({}, False)
    for site, values in plain.recovered.items():
        np.testing.assert_allclose(whole.each[site][0], values, atol=1e-5)
    ordered = [part for part in parts if part.strongest_first]
    assert [part.n_pairs for part in ordered] == [1] * len(ordered)
    assert len(ordered) < len(parts), "the second pair runs in the order of its layers"
    first, second = ordered[:2]
    base = 0.0 if direction == "denoising" else 1.0
    for site, values in estimates.items():
        np.testing.assert_allclose(first.estimated[site], values, atol=1e-6)
        assert not np.isfinite(first.recovered[site]).any()
        known, sizes = np.isfinite(second.recovered[site]), np.abs(values - base)
        assert known.sum() == 10
        assert sizes[known].min() >= sizes[~known].max() - 1e-9
    few = list[ActivationPatchingResult]()
    activation_patching(model, CLEAN, CORRUPTED, ANSWER, on_partial=few.append, **options)
    assert not any(part.strongest_first for part in few), "in few chunks an estimate would take longer"


def test_the_forecast_follows_what_is_asked(model: Any) -> None:
    one = activation_patching_cost(model, 20)
    assert activation_patching_cost(model, 40).flops > 2 * one.flops
    assert activation_patching_cost(model, 20, pairs=10).flops == pytest.approx(10 * one.flops)
    assert activation_patching_cost(model, 20, positions=[-1]).flops < one.flops / 3
    assert activation_patching_cost(model, 20, layers=[0]).flops < one.flops
    assert activation_patching_cost(model, 20, method="attribution", sample=3).flops < one.flops / 3
    plain, softmax = (
        activation_patching_cost(model, 20, "head_q", method=method, sample=3).flops
        for method in ("attribution", "attribution_softmax")
    )
    assert plain < softmax
    heads, keys = (activation_patching_cost(model, 20, site).flops for site in ("head", "head_k"))
    assert keys < heads
    assert min(one.flops, one.bytes) > 0


@pytest.mark.parametrize("direction", ["denoising", "noising"])
@pytest.mark.parametrize("site", ALL)
def test_next_tokens_are_those_of_the_cell(model: Any, site: Any, direction: Any) -> None:
    """The probability of the answer in the patched run, cell by cell, is what the map has."""
    options: dict[str, Any] = {"direction": direction}
    found = activation_patching(model, CLEAN, CORRUPTED, ANSWER, sites=site, metric="probability", **options)
    values = np.asarray(found.recovered[site])
    layer, head, position = 1, 1, 4
    cell = values[layer, position] if values.ndim == 2 and site != "pattern" else values[layer, head]
    cell = cell[position] if np.ndim(cell) else cell
    where: dict[str, Any] = {} if site in ("resid_pre", "attn", "mlp") else {"head": head}
    table = patched_prediction(
        model, CLEAN, CORRUPTED, site, layer, **where, position=position, top=model.d_vocab, **options
    )
    at = table.ids.index(ANSWER)
    clean, corrupted = float(found.clean[0]), float(found.corrupted[0])
    assert table.clean[at] == pytest.approx(clean)
    assert table.corrupted[at] == pytest.approx(corrupted)
    assert table.patched[at] == pytest.approx(corrupted + float(cell) * (clean - corrupted), abs=1e-9)
    assert table.patched.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"site": "head"}, "needs a head"),
        ({"site": "mlp", "head": 0}, "has no heads"),
        ({"site": "head_k", "head": 2}, "head must be in"),
        ({"site": "attn", "layer": 9}, "layer must be in"),
        ({"site": "attn", "position": 9}, "position must be in"),
        ({"site": "attn", "direction": "both"}, "direction must be"),
    ],
)
def test_a_cell_that_is_not_there_is_refused(model: Any, options: dict[str, Any], sentence: str) -> None:
    keywords = {"layer": 0, **options}
    with pytest.raises(ValueError, match=sentence):
        inspect.unwrap(patched_prediction)(model, CLEAN, CORRUPTED, **keywords)


def test_corrected_p_values_are_those_of_the_test(model: Any) -> None:
    cleans = [[3, 17, at, 8] for at in range(20, 30)]
    corrupted = [[3, 17, at + 30, 8] for at in range(20, 30)]
    found = activation_patching(model, cleans, corrupted, ANSWER, foil=FOIL, sites="mlp")
    values = found.holm_p("mlp")
    for cell in found.test().to_dict("records"):
        assert values[int(cell["layer"]), int(cell["position"])] == pytest.approx(cell["holm_p"])
    with pytest.raises(ValueError, match="a test needs several pairs"):
        activation_patching(model, CLEAN, CORRUPTED, ANSWER, foil=FOIL).holm_p("mlp")


def test_sites_that_a_model_lets_be_patched(model: Any) -> None:
    assert possible_sites(model) == ALL
