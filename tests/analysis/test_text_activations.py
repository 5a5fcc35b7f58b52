"""Activations of neurons and directions over texts: against single passes in float64, and against each other."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.ffn_concepts import ffn_concepts, text_activations
from interp_widgets.analysis.ffn_concepts.text_activations import layer_activations
from interp_widgets.data.demo_texts import demo_texts
from interp_widgets.models import Model, engine
from interp_widgets.models.engine import mlp_values
from interp_widgets.models.engine.equations import Block
from tests.models.tiny import HALF_SEED, tiny_model
from tests.shipped import demo_pair

TEXTS = ["the cat sat on a mat", "dog dog", "a lazy dog jumps on the mat", "on the mat", "cat jumps on"]


def own_activations(model: Model, layer: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], list[str]]:
    """Of every text by itself, what the model's own hooks show: neurons and MLP output of all tokens; and these."""
    posts, outs, tokens = [], [], list[str]()
    for text in TEXTS:
        ids = model.tokens(text)
        skip = int(ids[0] == model.bos_token_id and model.prepend_bos)
        hooks = (f"blocks.{layer}.mlp.hook_post", f"blocks.{layer}.hook_mlp_out")
        post, out = (model.run(ids, capture=hooks).activations[name][0, skip:].double().numpy() for name in hooks)
        posts.append(post)
        outs.append(out)
        tokens += model.token_strings(ids)[skip:]
    return np.concatenate(posts), np.concatenate(outs), tokens


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])
@pytest.mark.parametrize("route", ["equations", "modules"])
@pytest.mark.parametrize(
    ("family", "backend"),
    [("gpt2", "hooked"), ("gpt2", "bridge"), ("llama", "hooked"), ("llama", "bridge"), ("gemma2", "bridge")],
)
def test_they_are_those_of_single_passes(
    family: str, backend: str, route: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = dtype == torch.float64
    model = tiny_model(family, backend, dtype=dtype, seed=0 if exact else HALF_SEED)
    if route == "modules":
        monkeypatch.setattr(engine._Route, "equations", None)
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(3, model.d_model))
    post, out, tokens = own_activations(model, 1)
    neurons = text_activations(model, TEXTS, layer=1, neurons=[5, -1, 0])
    along = text_activations(model, TEXTS, layer=1, directions=directions)
    every = text_activations(model, TEXTS, layer=1)
    assert neurons.numbers == (5, model.d_mlp - 1, 0)
    assert len(every.numbers) == model.d_mlp
    assert list(neurons.tokens) == tokens
    assert len(tokens) == neurons.offsets[-1]
    for found, wanted in ((neurons, post[:, [5, -1, 0]]), (along, out @ directions.T), (every, post)):
        if exact:
            np.testing.assert_allclose(found.values, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())
        else:
            assert np.linalg.norm(found.values - wanted) < 0.02 * np.linalg.norm(wanted)
    other = own_activations(model, 0)[0]  # as a control, a layer beside it has other values altogether
    assert np.linalg.norm(every.values - other) > 0.5 * np.linalg.norm(other)


@pytest.mark.parametrize(("family", "backend"), [("gpt2", "hooked"), ("llama", "bridge")])
def test_one_pass_reads_several_layers_and_nothing_runs_behind_the_last(
    family: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(family, backend)
    text_activations(model, TEXTS, layer=0)  # the routes are compared, the model's profile is measured
    blocks: list[int] = []
    finish = Block.finish
    monkeypatch.setattr(Block, "finish", lambda self, *rest: blocks.append(self.index) or finish(self, *rest))
    told: list[tuple[int, int]] = []
    both = layer_activations(model, TEXTS, {1: [3, 7], 0: [-1]}, progress=lambda *done: told.append(done))
    assert blocks == [0, 1]
    assert told == [(len(TEXTS), len(TEXTS))]
    assert list(both) == [1, 0]
    for layer, numbers in ((1, [3, 7]), (0, [-1])):
        alone = text_activations(model, TEXTS, layer=layer, neurons=numbers)
        assert both[layer].numbers == alone.numbers
        assert both[layer].layer == layer
        np.testing.assert_allclose(both[layer].values, alone.values, rtol=1e-5, atol=1e-6)
    assert layer_activations(model, TEXTS, {}) == {}


@pytest.mark.seconds
def test_a_batch_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", "bridge")
    wanted = text_activations(model, TEXTS, layer=1).values
    own, sizes = mlp_values, list[int]()

    def small(network: Model, batch: torch.Tensor, *rest: Any) -> Any:
        sizes.append(len(batch))
        if len(batch) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return own(network, batch, *rest)

    monkeypatch.setattr(sys.modules[layer_activations.__module__], "mlp_values", small)
    found = text_activations(model, TEXTS, layer=1).values
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
    assert max(sizes) == len(TEXTS) > 1


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_the_users_hooks_see_whole_passes_without_padding(backend: str) -> None:
    model = tiny_model("llama", backend)
    before = text_activations(model, TEXTS, layer=1, neurons=[2]).values
    seen: list[tuple[int, ...]] = []

    def halve(value: torch.Tensor, hook: Any) -> torch.Tensor:
        seen.append(tuple(value.shape[:2]))
        return 0.5 * value

    last = f"blocks.{model.n_layers - 1}.hook_mlp_out"
    model.tl_model.add_hook("blocks.1.mlp.hook_post", halve)
    model.tl_model.add_hook(last, lambda value, hook: seen.append(tuple(value.shape[:2])))
    try:
        after = text_activations(model, TEXTS, layer=1, neurons=[2]).values
    finally:
        model.tl_model.reset_hooks()
    np.testing.assert_allclose(after, 0.5 * before, rtol=1e-4, atol=1e-6)
    lengths = [len(model.tokens(text)) for text in TEXTS]
    # each batch passes both hooks, and holds texts of its own length alone
    assert sorted(shape[1] for shape in seen for _ in range(shape[0])) == sorted(2 * lengths)


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
            assert one.values[one.position] == one.value
            shown = model.token_strings(model.tokens(TEXTS[one.text]))[int(model.prepend_bos) :]
            assert one.tokens == list(shown)
    frame = found.to_frame()
    assert frame.activation.to_numpy().tolist() == found.values.ravel().tolist()
    assert frame[frame.text == 1].position.max() == found.offsets[2] - found.offsets[1] - 1
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
        ({"neurons": [1], "directions": np.ones((1, model.d_model))}, "both neurons and directions"),
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
