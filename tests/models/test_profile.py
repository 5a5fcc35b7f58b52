"""A model's profile: what it measures of a model made with a sink and a large common logit, and when it is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import ModelProfile, load_model
from interp_widgets.models import Model
from interp_widgets.models.engine import residual_streams
from interp_widgets.models.profile import PROBE, TOKENS
from tests.models.tiny import tiny_folder, tiny_model

DIMENSION, SIZE = 9, 4000.0


def unlike_the_demo(common: float = 3.0) -> Model:
    """A GPT-2 with one huge entry at position 0, and logits that move together along the stream's first dimensions."""
    model = load_model(tiny_folder("gpt2"), device="cpu", backend="bridge", dtype=torch.float64)
    hf = model.tl_model.original_model
    with torch.no_grad():
        hf.transformer.wpe.weight[0, DIMENSION] = SIZE
        hf.lm_head.weight[:, :4] += common
    return model


def test_against_plain_loops() -> None:
    model = unlike_the_demo()
    found = model.profile
    ids = model.tokens(PROBE, prepend_bos=False)[:TOKENS]
    streams = residual_streams(model, ids).numpy()
    norms = [[float(np.sqrt((row**2).sum())) for row in stream] for stream in streams]
    medians = [float(np.sort(row[1:])[(len(row) - 2) // 2]) for row in norms]
    np.testing.assert_allclose(found.stream_norms, medians, rtol=1e-9)
    assert found.stream_norm(-1) == found.stream_norms[model.n_layers]
    ratios = [row[0] / median for row, median in zip(norms, medians, strict=True)]
    assert found.sink_ratio == pytest.approx(max(ratios))
    assert found.sink_layers == tuple(layer for layer, ratio in enumerate(ratios) if ratio > 10)
    assert found.sink_dimensions == (DIMENSION,)
    assert found.sink_sizes[0] == pytest.approx(SIZE, rel=0.01)
    logits = model.run(ids).logits[0].numpy()
    assert found.common_logit == pytest.approx(np.std([row.mean() for row in logits]), rel=1e-4)
    assert found.logit_spread == pytest.approx(
        np.sort([row.std(ddof=1) for row in logits])[(len(ids) - 1) // 2], rel=1e-4
    )
    assert (found.sink, found.first_is_sink, found.adds_bos, found.tokens) == ("first token", True, False, len(ids))
    assert found.logits_move_together


def test_the_control_has_neither() -> None:
    found = tiny_model("gpt2", "bridge").profile
    assert found.sink is None
    assert found.sink_layers == found.sink_dimensions == found.sink_sizes == ()
    assert "no attention sink" in found.describe()


def test_the_sink_is_the_bos_where_a_text_gets_one() -> None:
    model = unlike_the_demo()
    model.prepend_bos = True
    assert model.bos_token_id is not None
    found = model.profile
    assert found.sink == "BOS"
    assert found.bos_is_sink
    assert "its BOS token" in found.describe()


def test_it_says_what_it_measured() -> None:
    sentences = unlike_the_demo().profile.describe()
    assert "The attention sink is the first token, whatever it means" in sentences
    assert f"dimension {DIMENSION} (" in sentences
    assert "a raw logit misleads" in sentences
    assert "single token" in sentences


@pytest.mark.parametrize("change", ["data", "in place", "hook", "bos"])
def test_it_is_measured_again_after_a_change_and_only_then(change: str) -> None:
    model = unlike_the_demo()
    assert model.last_profile is None
    first = model.profile
    assert model.profile is first is model.last_profile
    weight: Any = model.tl_model.original_model.transformer.wpe.weight
    if change == "data":
        weight.data[0, DIMENSION] = 0.0
    elif change == "in place":
        with torch.no_grad():
            weight[0, DIMENSION] = 0.0
    elif change == "bos":
        model.prepend_bos = True
    else:
        model.tl_model.hook_dict["blocks.0.hook_resid_pre"].add_hook(lambda value, hook: value * 0.5, is_permanent=True)
    assert model.last_profile is first
    second = model.profile
    assert second != first
    assert (model.profile is second) == (change != "hook")  # a hook of the user may do anything: nothing is kept


def test_words_of_the_vocabulary() -> None:
    model = load_model("demo-tuned", device="cpu")
    words = model.profile.words
    assert len(words) > 500
    ids = [model.tokens(word, prepend_bos=False) for word in words]
    assert sum(len(one) == 1 for one in ids) > 0.95 * len(words)
    assert all(word[0] == " " and word[1:].isalpha() for word in words)
    assert words is model.profile.words


def test_a_model_without_a_tokenizer() -> None:
    model = load_model(tiny_folder("gpt2"), device="cpu", backend="bridge")
    model.tokenizer = None
    assert model.profile.words == ()
    assert not model.profile.chat_template


def test_a_model_that_shows_no_stream() -> None:
    model = unlike_the_demo()
    found = ModelProfile(
        "m", False, False, float("nan"), (), (), (), (), 1.0, 2.0, False, False, 4, (), {1: 0.1, 2: 0.09}
    )  # fmt: skip
    assert "does not show its residual stream" in found.describe()
    assert found.threads == 1
    with pytest.raises(ValueError, match="does not show its residual stream"):
        found.stream_norm(0)
    with pytest.raises(ValueError, match=r"are 0\.\.3, got 4"):
        model.profile.stream_norm(4)
