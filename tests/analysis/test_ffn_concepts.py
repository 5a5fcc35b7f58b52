"""FFN concepts and neurons: the authors' own numbers, naive float64 versions, identities, known rotations, saving."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis._core.word_embeddings import word_table
from interp_widgets.analysis.ffn_concepts import (
    ConceptComparison,
    FFNConceptResult,
    NeuronEffectResult,
    NeuronTokenResult,
    compare_concepts,
    components,
    ffn_concepts,
    neuron_effects,
    neuron_tokens,
    neurons,
    subspace_angles,
)
from interp_widgets.data.word_vectors import demo_word_vectors
from interp_widgets.models import load_model
from tests.analysis.reference_llama import reference, reference_model
from tests.models.tiny import HALF_SEED, tiny_hf, tiny_model
from tests.shipped import demo_pair

WORDS = demo_word_vectors().words[:90]
PROMPT = "The cat sat on the mat"
FAMILIES = [(family, backend) for family in ("gpt2", "llama", "gpt_neox") for backend in ("hooked", "bridge")]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def few(model: Any, **options: Any) -> FFNConceptResult:
    return ffn_concepts(model, **{"words": WORDS, "rank": 10, "top": 6, **options})


def copy_of(family: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """A model of one's own, to break, and the transformers model whose weights it shares."""
    hf_model = tiny_hf(family, dtype=dtype)
    return load_model(hf_model, tokenizer=tiny_model(family).tokenizer, dtype=dtype), hf_model


# ---- the authors' own numbers


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_words_and_variance_are_those_of_the_authors_code(reference_data: Path, backend: str) -> None:
    data = reference(reference_data)
    model = reference_model(reference_data, backend)
    found = ffn_concepts(model, words=[str(word) for word in data["words"]], top=10)
    assert found.rank == 16
    for layer in range(2):
        assert np.abs(found.explained_variance[layer] - data[f"ffn_var_L{layer}"]).max() < 1e-6
        for component in range(16):
            scores = dict(found.scores(layer, component))
            wanted = [str(word) for word in data[f"ffn_words_L{layer}"][component]]
            sizes = [abs(scores[word]) for word in wanted]  # a word that is not there is an error
            assert all(a >= b - 1e-6 for a, b in pairwise(sizes))  # in order, up to ties
            untied = np.diff(sizes).max() < -1e-6
            assert not untied or found.words(layer, component) == tuple(wanted)
    assert np.allclose(found.cumulative[:, -1], 1)


# ---- naive


@pytest.mark.parametrize(("family", "backend"), FAMILIES)
def test_components_are_the_singular_vectors_of_centred_weights(family: str, backend: str) -> None:
    model = tiny_model(family, backend, dtype=torch.float64)
    found = few(model)
    assert found.directions is not None
    embeddings = word_table(model, WORDS, side="output").embeddings.numpy()
    for layer in range(3):
        weights = model.weight("W_out", layer).numpy()
        _, values, vectors = np.linalg.svd(weights - weights.mean(axis=0))
        assert np.allclose(found.explained_variance[layer], (values**2 / (values**2).sum())[:10], atol=1e-12)
        for component in range(10):
            along = [float(vectors[component] @ e / np.linalg.norm(e)) for e in embeddings]
            order = sorted(range(len(WORDS)), key=lambda word: -abs(along[word]))
            turn = np.sign(along[order[0]])  # the strongest word is on the positive side
            along = [value * turn for value in along]
            both = found.scores(layer, component)
            assert [word for word, _ in both] == [WORDS[word] for word in order[:6]]
            assert np.allclose([value for _, value in both], [along[word] for word in order[:6]], atol=1e-9)
            plus = [WORDS[word] for word in sorted(range(len(WORDS)), key=lambda word: -along[word]) if along[word] > 0]
            minus = [WORDS[word] for word in sorted(range(len(WORDS)), key=lambda word: along[word]) if along[word] < 0]
            assert found.words(layer, component, sign="+") == tuple(plus[:6])
            assert found.words(layer, component, sign="-") == tuple(minus[:6])
            assert np.allclose(found.directions[layer, component], vectors[component] * turn, atol=1e-6)


def test_centring_and_output_embeddings_matter() -> None:
    model, hf_model = copy_of("llama", torch.float64)
    before = few(model)
    weights = hf_model.model.layers[1].mlp.down_proj.weight  # (d_model, neurons)
    with torch.no_grad():
        weights += 3 * torch.randn(32, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert np.allclose(few(model).explained_variance, before.explained_variance)  # one vector added to every neuron
    with torch.no_grad():
        hf_model.lm_head.weight.copy_(hf_model.lm_head.weight.flip(1))
    after = few(model)
    assert np.allclose(after.explained_variance, before.explained_variance)
    assert after.words(0, 0) != before.words(0, 0)


def test_a_planted_direction_is_the_first_component() -> None:
    model, hf_model = copy_of("gpt2", torch.float64)
    with torch.no_grad():
        weights = hf_model.transformer.h[2].mlp.c_proj.weight
        word = word_table(model, WORDS, side="output").embeddings[40]
        strength = torch.randn(128, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        weights += 50 * strength * (word / word.norm())
    found = few(model)
    assert found.words(2, 0)[0] == WORDS[40]
    assert found.scores(2, 0)[0][1] > 0.999
    assert found.explained_variance[2, 0] > 0.9
    assert found.components_with(WORDS[40])[0][:2] == (2, 0)
    assert few(tiny_model("gpt2", dtype=torch.float64)).explained_variance[2, 0] < 0.3


@pytest.mark.hooked
def test_backends_tiles_and_chosen_layers_do_not_change_words(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = few(tiny_model("llama", "hooked"))
    bridge = few(tiny_model("llama", "bridge"))
    assert np.array_equal(whole.plus, bridge.plus)
    assert np.array_equal(whole.minus, bridge.minus)
    part = few(tiny_model("llama"), layers=[2])
    assert part.words(2, 3) == whole.words(2, 3)
    assert few(tiny_model("llama"), keep_directions=False).directions is None
    monkeypatch.setattr(components, "_NUMBERS", {"cpu": 70})
    monkeypatch.setattr(components, "_FLOPS", {"cpu": 1})
    tiled = few(tiny_model("llama"))
    assert np.array_equal(whole.plus, tiled.plus)
    assert np.allclose(whole.explained_variance, tiled.explained_variance, atol=1e-12)


def test_half_precision_weights_are_decomposed_wide() -> None:
    half, full = (few(tiny_model("llama", dtype=kind, seed=HALF_SEED)) for kind in (torch.bfloat16, torch.float32))
    assert half.explained_variance.dtype == np.float64
    assert np.allclose(half.explained_variance, full.explained_variance, atol=2e-3)


def test_the_rank_is_at_most_what_the_weights_span() -> None:
    found = few(tiny_model("gpt2"), rank=300, top=10_000)
    assert found.rank == 32
    assert found.top == len(WORDS)
    assert len(found.words(0, 0)) == len(WORDS)
    assert np.allclose(found.cumulative[:, -1], 1)


def test_unknown_words_are_listed(reference_data: Path) -> None:
    words = [str(word) for word in reference(reference_data)["words"]]
    model = reference_model(reference_data)
    found, without = ffn_concepts(model, words=["zebra", *words]), ffn_concepts(model, words=words)
    assert found.unknown == ("zebra",)
    assert np.array_equal(found.plus, without.plus)


# ---- the result


def test_results_are_saved_and_reopened(tmp_path: Path) -> None:
    model = tiny_model("llama")
    results = (
        few(model),
        neuron_tokens(model, layer=1, neurons=[3, 5]),
        neuron_effects(model, PROMPT, layer=1),
        compare_concepts(few(model), few(tiny_model("llama", seed=1))),
    )
    kinds = (FFNConceptResult, NeuronTokenResult, NeuronEffectResult, ConceptComparison)
    for result, kind in zip(results, kinds, strict=True):
        again = Result.load(result.save(tmp_path / kind.__name__))
        assert isinstance(again, kind)
        assert again.equals(result)
        assert len(again.to_frame()) > 1
    again = FFNConceptResult.load(tmp_path / "FFNConceptResult")
    assert again.words(2, 3, sign="-") == results[0].words(2, 3, sign="-")


def test_a_cancel_is_heard_and_progress_adds_up() -> None:
    model = tiny_model("llama")
    seen: list[tuple[int, int]] = []
    partial: list[FFNConceptResult] = []
    found = few(model, progress=lambda *at: seen.append(at), on_partial=partial.append)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert [(tuple(part.layers), part.partial) for part in partial] == [((0,), True), ((0, 1), True)]
    assert not found.partial

    class Cancelled(Exception):
        pass

    def after(calls: int) -> Callable[[], None]:
        left = [calls]

        def check() -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Cancelled

        return check

    for run in (
        lambda: few(model, check=after(4)),
        lambda: neuron_tokens(model, layer=0, check=after(1)),
        lambda: neuron_effects(model, PROMPT, layer=0, check=after(2)),
        lambda: compare_concepts(found, found, check=after(2)),
    ):
        with pytest.raises(Cancelled):
            run()
    assert model.lock.acquire(blocking=False)
    model.lock.release()


# ---- neurons


@pytest.mark.parametrize(("family", "backend"), FAMILIES)
def test_promoted_tokens_are_those_of_a_naive_loop(family: str, backend: str) -> None:
    model = tiny_model(family, backend, dtype=torch.float64)
    found = neuron_tokens(model, layer=1, neurons=[7, 2, 60], top=5)
    values, table = model.weight("W_out", 1).numpy(), model.weight("W_U").numpy()
    scale = model.weight("ln_final_w").numpy()
    for neuron in (7, 2, 60):
        value = values[neuron] - (values[neuron].mean() if family != "llama" else 0)
        scores = (value * scale) @ table
        order = np.argsort(-scores)
        strings = [model.token_strings([int(token)])[0] for token in [*order[:5], *order[::-1][:5]]]
        highest = zip(strings[:5], order[:5], strict=True)
        assert found.tokens(neuron) == [(text, pytest.approx(scores[i])) for text, i in highest]
        lowest = zip(strings[5:], order[::-1][:5], strict=True)
        assert found.tokens(neuron, suppressed=True) == [(text, pytest.approx(scores[i])) for text, i in lowest]
    assert np.allclose(found.norms, np.linalg.norm(values[[7, 2, 60]], axis=1))


@pytest.mark.hooked
def test_one_more_unit_of_a_neuron_raises_its_promoted_tokens() -> None:
    model = tiny_model("llama", "hooked", dtype=torch.float64)
    layer, neuron = 2, 11  # the last layer: what it writes goes straight to the unembedding
    ids = model.tokens(PROMPT)
    hook = f"blocks.{layer}.mlp.hook_post"

    def more(value: torch.Tensor) -> torch.Tensor:
        changed = value.clone()
        changed[:, -1, neuron] += 1e-5
        return changed

    change = (model.run(ids, edit={hook: more}).logits - model.run(ids).logits)[0, -1] / 1e-5
    found = neuron_tokens(model, layer=layer, neurons=[neuron], top=460)
    scores = torch.zeros(460, dtype=torch.float64)
    scores[torch.tensor(found.promoted[0].copy())] = torch.tensor(found.promoted_scores[0].copy())
    # the norm divides by its scale and takes away what lies along the stream: the order agrees, not the numbers
    assert np.corrcoef(scores, change)[0, 1] > 0.9


def test_tiles_of_the_vocabulary_do_not_change_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2")
    whole = neuron_tokens(model, layer=0)
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(neurons, "_NUMBERS", {"cpu": 128 * 30})
    tiled = neuron_tokens(model, layer=0, progress=lambda *at: seen.append(at))
    assert len(seen) > 5
    assert seen[-1] == (model.d_vocab, model.d_vocab)
    assert np.array_equal(whole.promoted, tiled.promoted)
    assert np.array_equal(whole.suppressed, tiled.suppressed)


@pytest.mark.parametrize(("family", "backend"), [*FAMILIES, ("gemma2", "bridge")])
def test_effects_add_up_to_the_mlps_and_match_a_change_of_the_stream(family: str, backend: str) -> None:
    model = tiny_model(family, backend, dtype=torch.float64)
    position, layer = 3, 1
    found = neuron_effects(model, PROMPT, layer=layer, position=position)
    assert found.effect.sum() + found.bias_effect == pytest.approx(found.mlp_effect, abs=1e-6)
    ids = model.tokens(PROMPT)
    at = position + len(ids) - len(found.tokens)
    hooks = {name: f"blocks.{layer}.{name}" for name in ("mlp.hook_post", "hook_mlp_out")}
    stream = f"blocks.{model.n_layers - 1}.hook_resid_post"
    run = model.run(ids, capture=(*hooks.values(), stream, "ln_final.hook_scale"))
    active = run.activations[hooks["mlp.hook_post"]][0]
    assert np.allclose(found.activation, active[len(ids) - len(found.tokens) :])
    assert found.target == int(run.logits[0, at].argmax())
    # the same by hand: what the MLP wrote, through the final norm with its scale held, on the token's column
    scale = run.activations["ln_final.hook_scale"][0, at]
    written = run.activations[hooks["hook_mlp_out"]][0, at]
    written = written - written.mean() if model.normalization == "LayerNorm" else written
    column = model.weight("ln_final_w") * model.weight("W_U")[:, found.target]
    assert found.mlp_effect == pytest.approx(float((written / scale) @ column), abs=1e-5)
    if family != "gemma2":  # which caps its logits
        assert found.logit == pytest.approx(float(run.logits[0, at, found.target]), abs=1e-5)
    assert np.allclose(found.size, np.abs(found.activation[position]) * np.linalg.norm(_values(model, layer), axis=1),
                       atol=1e-6) or family == "gemma2"  # fmt: skip


def _values(model: Any, layer: int) -> np.ndarray[Any, Any]:
    return np.asarray(model.weight("W_out", layer))


@pytest.mark.hooked
def test_an_effect_is_what_a_small_change_of_the_neuron_does_with_the_norm_held() -> None:
    model = tiny_model("gpt2", "hooked", dtype=torch.float64)
    layer, neuron, target = 2, 5, 17
    found = neuron_effects(model, PROMPT, target, layer=layer)

    def without(value: torch.Tensor) -> torch.Tensor:
        changed = value.clone()
        changed[:, -1, neuron] = 0
        return changed

    ids = model.tokens(PROMPT)
    scale = model.run(ids, capture="ln_final.hook_scale").activations["ln_final.hook_scale"]
    held = {f"blocks.{layer}.mlp.hook_post": without, "ln_final.hook_scale": lambda _: scale}
    change = (model.run(ids).logits - model.run(ids, edit=held).logits)[0, -1, target]
    assert found.effect[neuron] == pytest.approx(float(change), abs=1e-9)
    assert found.target_token == model.token_strings([17])[0]
    chosen = neuron_effects(model, PROMPT, target, layer=layer, neurons=[9, neuron])
    assert chosen.neurons == (9, neuron)
    assert np.allclose(chosen.effect, found.effect[[9, neuron]])
    assert found.strongest(1)[0][0] == int(np.abs(found.effect).argmax())


def test_half_precision_effects_are_near() -> None:
    models = [tiny_model("llama", dtype=kind, seed=HALF_SEED) for kind in (torch.bfloat16, torch.float32)]
    half, full = (neuron_effects(model, PROMPT, 40, layer=1) for model in models)
    assert np.corrcoef(half.effect, full.effect)[0, 1] > 0.99


# ---- two models


def test_angles_of_known_subspaces() -> None:
    turn = np.array([[np.cos(0.3), np.sin(0.3), 0], [0, 0, 1.0]])
    assert np.allclose(subspace_angles(np.eye(3)[[0, 2]], turn), [0, 0.3])
    assert np.allclose(subspace_angles(np.eye(4)[:2], np.eye(4)[2:]), np.pi / 2)
    one, other = np.random.default_rng(0).normal(size=(2, 3, 10))
    bases = [np.linalg.qr(rows.T)[0] for rows in (one, other)]
    cosines = np.linalg.svd(bases[0].T @ bases[1])[1]
    assert np.allclose(np.cos(subspace_angles(one, other)), cosines)
    assert np.allclose(subspace_angles(one, 2 * one[::-1]), 0, atol=1e-7)


def rotated(result: FFNConceptResult, matrix: np.ndarray[Any, Any]) -> FFNConceptResult:
    assert result.directions is not None
    return replace(result, directions=(result.directions @ matrix).astype(np.float32))


def test_a_known_rotation_is_measured_and_a_new_order_is_matched() -> None:
    base = few(tiny_model("llama"))
    assert base.directions is not None
    same = compare_concepts(base, base)
    assert same.angles.max() < 1e-3
    assert np.array_equal(same.match, np.tile(np.arange(10), (3, 1)))
    assert same.shared_words.min() == 1
    assert np.allclose(same.overlap, 1)
    assert same.chance == 10 / 32
    # turn everything in one plane by a known angle
    plane = np.zeros((32, 32))
    plane[0, 1], plane[1, 0] = 0.4, -0.4
    turned = compare_concepts(base, rotated(base, scipy.linalg.expm(plane)))
    assert turned.angles.max() <= 0.4 + 1e-4
    assert turned.angles[:, -1].min() > 0.01
    assert turned.angles[:, :-2].max() < 1e-3  # all but two directions of the subspace stay in it
    # a new order and new signs inside the subspace: matched, no angle
    order = np.random.default_rng(0).permutation(10)
    mixed = {name: getattr(base, name)[:, order] for name in ("plus", "plus_scores", "minus", "minus_scores")}
    flipped = replace(base, directions=-base.directions[:, order], **mixed)
    found = compare_concepts(base, flipped)
    assert np.array_equal(order[found.match], np.tile(np.arange(10), (3, 1)))
    assert found.match_cosine.min() > 0.999
    assert found.shared_words.min() == 1
    assert found.angles.max() < 1e-3


def test_unrelated_models_overlap_as_chance_says() -> None:
    found = compare_concepts(few(tiny_model("llama")), few(tiny_model("llama", seed=1)))
    assert np.abs(found.overlap - found.chance).max() < 0.12
    assert found.angles[:, -1].min() > 1.3
    assert len(set(found.match[0].tolist())) == 10
    table = found.layer_table()
    assert table.largest_angle.min() > 75
    assert np.allclose(table.variance_base, few(tiny_model("llama")).cumulative[:, -1])


def test_the_match_is_the_best_of_all() -> None:
    a, b = few(tiny_model("gpt2"), rank=5), few(tiny_model("gpt2", seed=1), rank=5)
    assert a.directions is not None
    assert b.directions is not None
    found = compare_concepts(a, b)
    for layer in range(3):
        cosines = np.abs(a.directions[layer].astype(float) @ b.directions[layer].T)
        best = max(cosines[range(5), order].sum() for order in permutations(range(5)))
        assert found.match_cosine[layer].sum() == pytest.approx(best, abs=1e-6)


def test_tuning_turns_the_demo_model_less_than_another_model_would() -> None:
    pair = demo_pair()
    found = compare_concepts(pair.base, pair.tuned, words=WORDS, layers=[0, 5])
    assert found.angles.shape == (2, 96)  # half of the width: the whole width spans everything
    assert (found.overlap > found.chance + 0.2).all()
    assert found.overlap.max() < 0.999
    assert found.provenance["base"] == "demo-base"
    base = ffn_concepts(pair.base, words=WORDS, layers=[0, 5])
    assert compare_concepts(base, pair.tuned, words=WORDS, layers=[0, 5]).equals(found)
    assert compare_concepts(base, base, rank=192).angles.max() < 1e-3


# ---- bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: ffn_concepts(m, words=[]), "the list of words is empty"),
        (lambda m: ffn_concepts(m, rank=0), "rank must be 1 or more, got 0"),
        (lambda m: ffn_concepts(m, top=0), "top must be 1 or more, got 0"),
        (lambda m: ffn_concepts(m, layers=[-4]), r"layer must be in -3\.\.2 for this 3-layer model, got -4"),
        (
            lambda m: few(m).words(3, 0),
            r"layer must be one of 0\.\.2, which were computed, .* got 3",
        ),
        (lambda m: few(m).words(0, 10), r"component must be in -10\.\.9 for this result of rank 10, got 10"),
        (lambda m: inspect.unwrap(FFNConceptResult.scores)(few(m), 0, 0, sign="*"), "sign must be 'both', '.' or '-'"),
        (lambda m: few(m).components_with("zebra"), "the word 'zebra' is not in the list of 90 words"),
        (lambda m: neuron_tokens(m, layer=3), r"layer must be in -3\.\.2"),
        (
            lambda m: neuron_tokens(m, layer=0, neurons=[96]),
            r"neuron must be in -96\.\.95 for this model .* got 96",
        ),
        (lambda m: neuron_tokens(m, layer=0, neurons=[]), "neurons must not be empty"),
        (lambda m: neuron_tokens(m, layer=0, top=0), "top must be 1 or more, got 0"),
        (lambda m: neuron_tokens(m, layer=0, neurons=[1]).tokens(2), "neuron must be one of 1, which were computed"),
        (lambda m: neuron_effects(m, "", layer=0), "the prompt is empty|only special tokens"),
        (lambda m: neuron_effects(m, PROMPT, "some long words", layer=0), "the target must be one token"),
        (lambda m: neuron_effects(m, PROMPT, layer=0, position=99), "position must be in -11\.\.10"),
        (lambda m: neuron_effects(m, PROMPT, layer=9), r"layer must be in -3\.\.2"),
        (lambda m: compare_concepts(few(m), few(m, layers=[1])), r"same layers, got \(0, 1, 2\) and \(1,\)"),
        (lambda m: compare_concepts(few(m), few(m, top=5)), "same top, got 6 and 5"),
        (lambda m: compare_concepts(few(m), few(m, words=WORDS[::-1])), "different words"),
        (lambda m: compare_concepts(few(m), few(m, keep_directions=False)), "keep_directions=True"),
        (lambda m: compare_concepts(few(m), few(m), rank=11), r"rank must be in 1\.\.10 .* got 11"),
        (lambda m: subspace_angles(np.eye(3), np.eye(4)), r"of one width, got \(3, 3\) and \(4, 4\)"),
        (lambda m: subspace_angles(np.ones((4, 3)), np.eye(3)), "directions must be 1 to 3 rows of finite numbers"),
    ],
)
def test_bad_input_is_one_clear_sentence(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(tiny_model("llama"))
    with pytest.raises(TypeError, match="'top' is an option for models"):
        compare_concepts(few(tiny_model("llama")), few(tiny_model("llama")), top=3)


def test_broken_weights_and_models_that_do_not_add_up_are_named() -> None:
    model, hf_model = copy_of("gpt2")
    weights = hf_model.transformer.h[1].mlp.c_proj.weight
    with torch.no_grad():
        kept = weights[3, 5].clone()
        weights[3, 5] = torch.nan
    with pytest.raises(ValueError, match="not all finite numbers"):
        few(model)
    with torch.no_grad():
        weights[3, 5] = kept
    few(model)
    model.tl_model.hook_dict["blocks.1.hook_mlp_out"].add_hook(lambda value, hook: value * 2)
    with pytest.raises(ValueError, match="neurons of layer 1 do not add up to its MLP output: relative error"):
        neuron_effects(model, PROMPT, layer=1)
    with torch.no_grad():
        weights.zero_()
    with pytest.raises(ValueError, match="all the same: they have no direction to read"):
        few(model)


def test_weights_that_are_no_numbers_give_an_error_and_no_nan() -> None:
    for name in ("model.norm.weight", "lm_head.weight"):
        model, hf_model = copy_of("llama")  # GPT-2's embedding and unembedding are one matrix
        neuron_tokens(model, layer=1, top=3)
        broken = hf_model.get_parameter(name)
        with torch.no_grad():
            broken.fill_(torch.nan)
        with pytest.raises(ValueError, match="score of neuron 0 of layer 1 is not finite"):
            neuron_tokens(model, layer=1, top=3)
        with pytest.raises(ValueError, match="effect of neuron 0 of layer 1 is not finite"):
            neuron_effects(model, PROMPT, layer=1)
    with pytest.raises(ValueError, match="output embedding of 'the' is not finite"):
        few(model)
