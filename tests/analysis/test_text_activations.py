"""Activations of neurons and directions over texts: against single passes in float64, and against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.ffn_concepts import ffn_concepts, text_activations
from interp_widgets.data.demo_texts import demo_texts
from tests.models.tiny import tiny_model
from tests.shipped import demo_pair

TEXTS = ["the cat sat on a mat", "dog dog", "a lazy dog jumps on the mat", "on the mat", "cat jumps on"]


@pytest.mark.parametrize(
    ("family", "backend"),
    [("gpt2", "hooked"), ("gpt2", "bridge"), ("llama", "hooked"), ("llama", "bridge"), ("gemma2", "bridge")],
)
def test_they_are_those_of_single_passes(family: str, backend: str) -> None:
    model = tiny_model(family, backend, dtype=torch.float64)
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(3, model.d_model))
    neurons = text_activations(model, TEXTS, layer=1, neurons=[5, -1, 0])
    along = text_activations(model, TEXTS, layer=1, directions=directions)
    every = text_activations(model, TEXTS, layer=1)
    assert neurons.numbers == (5, model.d_mlp - 1, 0)
    assert len(every.numbers) == model.d_mlp
    start = 0
    for text in TEXTS:
        ids = model.tokens(text)
        skip = int(ids[0] == model.bos_token_id and model.prepend_bos)
        hooks = ("blocks.1.mlp.hook_post", "blocks.1.hook_mlp_out")
        post, out = (model.run(ids, capture=hooks).activations[name][0, skip:].numpy() for name in hooks)
        stop = start + len(post)
        assert tuple(neurons.tokens[start:stop]) == tuple(model.token_strings(ids)[skip:])
        np.testing.assert_allclose(neurons.values[start:stop], post[:, [5, -1, 0]], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(every.values[start:stop], post, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(along.values[start:stop], out @ directions.T, rtol=1e-5, atol=1e-6)
        start = stop
    assert start == len(neurons.tokens) == neurons.offsets[-1]


def test_the_top_texts_are_those_of_the_largest_and_smallest_token(tmp_path: Any) -> None:
    model = tiny_model("llama")
    found = text_activations(model, TEXTS, layer=2, neurons=[3, 7])
    pieces = [found.values[a:b, 1] for a, b in zip(found.offsets[:-1], found.offsets[1:], strict=True)]
    for lowest, best in ((False, np.max), (True, np.min)):
        peaks = [float(best(piece)) for piece in pieces]
        order = sorted(range(len(TEXTS)), key=lambda text, peaks=peaks: peaks[text], reverse=not lowest)
        top = found.top(7, 3, lowest=lowest)
        assert [one.text for one in top] == order[:3]
        assert [one.value for one in top] == [peaks[text] for text in order[:3]]
        for one in top:
            assert one.values[one.place] == one.value
            shown = model.token_strings(model.tokens(TEXTS[one.text]))[int(model.prepend_bos) :]
            assert one.tokens == list(shown)
    frame = found.to_frame()
    assert frame.activation.to_numpy().tolist() == found.values.ravel().tolist()
    assert frame[frame.text == 1].place.max() == found.offsets[2] - found.offsets[1] - 1
    again = Result.load(found.save(tmp_path / "found.npz"))
    assert again.top(7, 2)[0].tokens == found.top(7, 2)[0].tokens


def test_a_direction_is_most_active_where_it_was_taken_from() -> None:
    model, texts = demo_pair().base, demo_texts(40)
    ids = model.tokens(texts[17])
    written = model.run(ids, capture="blocks.3.hook_mlp_out").activations["blocks.3.hook_mlp_out"][0]
    place = len(ids) - 2
    own = (written[place] / written[place].norm()).numpy()
    found = text_activations(model, texts, layer=3, directions=own)
    best, length = found.top(0, 1)[0], float(written[place].norm())
    there = float(found.values[found.offsets[17] + place - int(model.prepend_bos), 0])
    assert there == pytest.approx(length, rel=1e-4)
    assert best.value >= there > 0.99 * np.quantile(found.values, 0.95)
    # as a control, a random direction is far less active everywhere
    lot = np.random.default_rng(0).normal(size=model.d_model)
    other = text_activations(model, texts, layer=3, directions=lot / np.linalg.norm(lot)).top(0, 1)[0]
    assert other.value < 0.7 * best.value


def test_what_cannot_be_read_is_refused() -> None:
    model = tiny_model("llama")
    for options, sentence in (
        ({"texts": []}, "texts must be a list of at least one text"),
        ({"texts": "one text"}, "texts must be a list of"),
        ({"neurons": [99999]}, "neuron"),
        ({"layer": 99}, "layer must be in"),
        ({"directions": np.ones((1, 3))}, "directions must be rows of"),
        ({"neurons": [1], "directions": np.ones((1, model.d_model))}, "two questions"),
    ):
        with pytest.raises((ValueError, TypeError), match=sentence):
            text_activations(model, **{"texts": TEXTS, "layer": 0, **options})  # type: ignore[arg-type]
    found = text_activations(model, TEXTS, layer=0, neurons=[4])
    with pytest.raises(ValueError, match="number"):
        found.top(5)


def test_components_have_texts_on_both_sides() -> None:
    model = demo_pair().base
    components = ffn_concepts(model, rank=4)
    found = text_activations(model, demo_texts(30), layer=5, directions=components.directions[5])
    for component in range(4):
        high, low = found.top(component, 1)[0], found.top(component, 1, lowest=True)[0]
        assert high.value > 0 > low.value
