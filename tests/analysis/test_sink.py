"""The attention sink: recognised at the first token, kept by the mean embedding, named in results and panels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import causal_trace, faithfulness, prompt_saliency, text_activations
from interp_widgets.analysis._core.prompts import read_prompt
from interp_widgets.analysis._core.sink import first_is_sink
from interp_widgets.models import Model, load_model
from interp_widgets.models.engine import residual_streams
from interp_widgets.models.profile import SINK_RATIO
from tests.models.tiny import tiny_folder, tiny_model

IDS, ANSWER = [5, 17, 300, 44, 8, 9], [61]
BACKENDS = [pytest.param("hooked", marks=pytest.mark.hooked), "bridge"]


@pytest.fixture(params=BACKENDS)
def with_sink(request: pytest.FixtureRequest) -> Model:
    """A model whose stream at position 0 is a hundred times longer than elsewhere, whatever stands there."""
    model = load_model(tiny_folder("gpt2"), device="cpu", backend=request.param, dtype=torch.float64)
    hooked = request.param == "hooked"
    embed = model.tl_model.pos_embed.W_pos if hooked else model.tl_model.original_model.transformer.wpe.weight
    with torch.no_grad():
        embed[0] = embed[1:20].mean(0) + 100 * embed[1:20].std() * torch.ones_like(embed[0])
    return model


def test_the_first_token_is_compared_with_the_others(with_sink: Model) -> None:
    norms = residual_streams(with_sink, IDS).norm(dim=-1)
    ratio = (norms[:, 0] / norms[:, 1:].median(dim=-1).values).max()
    assert ratio > SINK_RATIO
    assert first_is_sink(with_sink, IDS)
    assert not first_is_sink(with_sink, IDS[:1])  # nothing to compare it with
    for family in ("gpt2", "llama", "gpt_neox"):  # the control: random models have no sink
        assert not first_is_sink(tiny_model(family, "bridge"), IDS)


def test_with_a_bos_it_is_the_bos_and_no_row_has_it(with_sink: Model) -> None:
    bos = int(with_sink.bos_token_id or 0)
    assert read_prompt(with_sink, IDS).first_is_sink
    assert not read_prompt(with_sink, [bos, *IDS]).first_is_sink
    assert not prompt_saliency(with_sink, [bos, *IDS], ANSWER).sink


def test_hooks_of_the_user_see_the_positions_of_any_other_pass(with_sink: Model) -> None:
    """A hook may look at a position behind the tokens that are compared."""
    seen = []
    ids = [int(token) for token in np.arange(40) + 5]
    hook = with_sink.tl_model.hook_dict["blocks.0.hook_resid_pre"]
    hook.add_hook(lambda value, hook: seen.append(value.shape[1]), is_permanent=True)
    assert first_is_sink(with_sink, ids)
    assert set(seen) == {40}


@pytest.mark.parametrize("baseline", ["zero", "resample"])
def test_the_mean_stands_for_the_first_token_unless_the_user_insists(with_sink: Model, baseline: Any) -> None:
    options: dict[str, Any] = {"baseline": baseline, "draws": 3, "seed": 5}
    kept = prompt_saliency(with_sink, IDS, ANSWER, **options)
    insisted = prompt_saliency(with_sink, IDS, ANSWER, first_token="baseline", **options)
    mean = prompt_saliency(with_sink, IDS, ANSWER, baseline="mean")
    assert kept.sink
    assert insisted.sink
    assert (kept.provenance["first_token"], insisted.provenance["first_token"]) == ("mean", "baseline")
    np.testing.assert_allclose(kept.importance[0], mean.importance[0], rtol=1e-9)
    np.testing.assert_allclose(kept.importance[1:], insisted.importance[1:], rtol=1e-9)
    assert abs(kept.importance[0, 0] - insisted.importance[0, 0]) > 1e-6
    # by spans: the first token of a span is replaced alike, so the first row alone differs
    spans = {"spans": [(0, 3), (3, 6)], **options}
    rows = [prompt_saliency(with_sink, IDS, ANSWER, first_token=kind, **spans) for kind in ("mean", "baseline")]
    assert abs(rows[0].importance - rows[1].importance)[0, 0] > 1e-6
    np.testing.assert_allclose(rows[0].importance[1], rows[1].importance[1], rtol=1e-9)
    assert rows[0].sink
    assert not prompt_saliency(with_sink, IDS, ANSWER, within=(2, 6)).sink
    assert kept.by_spans([(0, 3), (3, 6)]).sink


def test_faithfulness_keeps_the_sink_too(with_sink: Model) -> None:
    result = prompt_saliency(with_sink, IDS, ANSWER)
    kept, insisted = (
        faithfulness(with_sink, result, random_orders=19, first_token=kind) for kind in ("mean", "baseline")
    )
    assert abs(kept.insertion - insisted.insertion).max() > 1e-9
    assert (kept.provenance["first_token"], insisted.provenance["first_token"]) == ("mean", "baseline")


def test_without_a_sink_nothing_changes() -> None:
    model = tiny_model("gpt2", "bridge", dtype=torch.float64)
    maps = [prompt_saliency(model, IDS, ANSWER, first_token=kind) for kind in ("mean", "baseline")]
    np.testing.assert_array_equal(maps[0].importance, maps[1].importance)
    assert not maps[0].sink
    assert "first_token" not in maps[0].provenance


def test_tracing_says_that_its_subject_takes_the_sink_away(with_sink: Model) -> None:
    options: dict[str, Any] = {"kinds": "state", "samples": 1}
    assert causal_trace(with_sink, IDS, (0, 2), **options).sink
    assert not causal_trace(with_sink, IDS, (1, 3), **options).sink


def test_top_texts_look_behind_the_first_token(with_sink: Model) -> None:
    texts = [IDS, [7, 9], [11]]
    found = text_activations(with_sink, texts, layer=1, neurons=range(8))
    assert found.sink
    for neuron in range(8):
        for lowest in (False, True):
            for best in found.top(neuron, 3, lowest=lowest):
                rest = best.values[1:] if len(best.values) > 1 else best.values
                assert best.value == (rest.min() if lowest else rest.max())
                assert (best.position == 0) == (best.text == 2)
    assert not text_activations(tiny_model("gpt2", "bridge"), texts, layer=1, neurons=[0]).sink
