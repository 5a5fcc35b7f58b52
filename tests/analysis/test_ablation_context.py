"""`ablation`: the right values are replaced, in every kind of pass, and `ablated_prediction` says what that does."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interp_widgets.analysis._core.result import Result
from interp_widgets.analysis.ablation import (
    AblatedPrediction,
    Ablation,
    ablate_heads,
    ablate_modules,
    ablated_prediction,
    ablation,
    mean_ablation,
    resample_ablation,
)
from interp_widgets.analysis.ablation.contexts import patches_of
from interp_widgets.analysis.saliency import prompt_saliency
from interp_widgets.models import Model
from interp_widgets.models.engine import decode, patched, trace
from interp_widgets.models.patching import Patch
from tests.models.tiny import tiny_model
from tests.tolerances import limit

IDS = [5, 17, 300, 44, 8, 9, 120]
HOOKED = pytest.mark.hooked
BACKENDS = [pytest.param("hooked", marks=HOOKED), "bridge"]
BOTH = [
    pytest.param(family, backend, marks=HOOKED if backend == "hooked" else ())
    for family in ("gpt2", "llama", "gpt_neox")
    for backend in ("hooked", "bridge")
]
KINDS: list[dict[str, Any]] = [
    {"kind": "attn"},
    {"kind": "mlp"},
    {"kind": "both"},
    {"kind": "attn_to_mlp"},
    {"kind": "head", "index": 2},
    {"kind": "neuron", "index": 50},
]
HOOKS = {"attn": "hook_attn_out", "mlp": "hook_mlp_out", "head": "attn.hook_z", "neuron": "mlp.hook_post"}
Edit = Callable[[Tensor], Tensor]


def row(model: Model, kind: str, *leading: int) -> np.ndarray[Any, Any]:
    """A value of the right width."""
    shape = {"head": (model.d_head,), "neuron": ()}.get(kind, (model.d_model,))
    return np.random.default_rng(3).normal(size=(*leading, *shape))


def putting(value: Any, where: slice | list[int], index: int | None) -> Edit:
    def edit(given: Tensor) -> Tensor:
        new = given.clone()
        place = (slice(None), where) if index is None else (slice(None), where, index)
        new[place] = torch.tensor(value, dtype=given.dtype) if not isinstance(value, Tensor) else value
        return new

    return edit


def reference(model: Model, ids: list[int], one: Ablation, offset: int = 0) -> Tensor:
    """The logits by edits of a single run, or of two for what the MLP alone reads."""
    where = slice(None) if one.positions is None else [p + offset for p in one.positions]
    block, zero = f"blocks.{one.layer}.", 0.0
    value = zero if one.value is None else one.value
    if one.kind == "both":
        edits = {block + HOOKS["attn"]: putting(zero, where, None), block + HOOKS["mlp"]: putting(value, where, None)}
    elif one.kind == "attn_to_mlp":
        if "blocks.0.hook_resid_mid" not in model.hook_names:
            return model.run(ids).logits  # a parallel block: the MLP does not read the attention
        name = block + HOOKS["mlp"]
        apart = model.run(ids, edit={block + HOOKS["attn"]: putting(value, where, None)}, capture=name)
        edits = {name: putting(apart.activations[name][:, where], where, None)}
    else:
        edits = {block + HOOKS[one.kind]: putting(value, where, one.index)}
    return model.run(ids, edit=edits).logits


# ---- the numbers


@pytest.mark.seconds
@pytest.mark.parametrize(("family", "backend"), BOTH)
@pytest.mark.parametrize("bos", [False, True])
def test_every_kind_is_the_edit_it_says(family: str, backend: str, bos: bool) -> None:
    model = tiny_model(family, backend)
    ids = ([model.bos_token_id] if bos else []) + IDS
    clean = model.run(ids).logits
    for options in KINDS:
        kind = str(options["kind"])
        fillings: list[dict[str, Any]] = [
            {"position": 3},
            {},
            {"position": [4, 1], "value": row(model, kind)},
            {"position": [4, 1], "value": row(model, kind, 2)},
            {"value": row(model, kind)},
        ][: 2 if bos else 5]
        for filling in fillings:
            one = Ablation(layer=1, **options, **filling)
            wanted = reference(model, ids, one, int(bos))
            with ablation(model, [one]):
                found = model.run(ids).logits
                forwarded = model.forward(model.token_embeddings(ids)[None])
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0, msg=lambda m, one=one: f"{one}: {m}")
            torch.testing.assert_close(forwarded, wanted, atol=1e-5, rtol=0)
            moved = (found - clean).abs().amax((0, 2))
            if kind == "attn_to_mlp" and family == "gpt_neox":
                assert moved.max() == 0
                continue
            first = int(bos) + min(one.positions) if one.positions else 0
            assert moved[first] > 1e-6, one  # a tiny change, but one
            assert (moved[:first] < 1e-5).all(), one
    torch.testing.assert_close(model.run(ids).logits, clean, atol=0, rtol=0)


@pytest.mark.parametrize(("family", "backend"), BOTH)
def test_the_resume_engine_agrees(family: str, backend: str) -> None:
    """Two implementations of one ablation: hooks on whole passes, and patches from a layer on."""
    model = tiny_model(family, backend, dtype=torch.float64)
    embeddings = model.token_embeddings(IDS)[None]
    kept = trace(model, embeddings)
    for options in KINDS[:5]:
        for position in (2, len(IDS) - 1):
            one = Ablation(layer=1, position=position, **options)
            with ablation(model, one):
                wanted = model.run(IDS).logits[0, -1]
            cell, at = torch.tensor([0]), torch.tensor([position])
            parts = {"both": ("attn", "mlp")}.get(one.kind, (one.kind,))
            index = None if one.index is None else torch.tensor([one.index])
            zero = torch.zeros(1, model.d_head if one.kind == "head" else model.d_model, dtype=torch.float64)
            patches = [Patch(part, 1, zero, at, cell, index) for part in parts]  # type: ignore[arg-type]
            found = decode(model, patched(model, kept, patches, 1))[0]
            torch.testing.assert_close(found, wanted, atol=limit(model, single=1e-5), rtol=0)


@pytest.mark.seconds
@pytest.mark.parametrize(("family", "backend"), BOTH)
def test_writing_under_an_ablation_is_a_loop_of_whole_passes(family: str, backend: str) -> None:
    model = tiny_model(family, backend)
    free = model.generate_ids(IDS, max_new_tokens=4)
    for options in KINDS:
        kind = str(options["kind"])
        # the last two are not in the prompt: the cache is in use there
        places: list[dict[str, Any]] = [{}, {"position": [2, len(IDS), len(IDS) + 1]}]
        for place in places:
            one = Ablation(layer=2, **options, **place)
            stack = [one, Ablation("mlp", 0)] if place == {} else [one]
            with ablation(model, stack):
                written = model.generate_ids(IDS, max_new_tokens=4)
                whole = list(IDS)
                for token in written:
                    assert token == int(model.run(whole).logits[0, -1].argmax()), (kind, place)
                    whole.append(token)
            if len(stack) > 1:
                assert written != free
    assert model.generate_ids(IDS, max_new_tokens=4) == free


@pytest.mark.parametrize("backend", BACKENDS)
def test_text_with_a_bos_counts_from_its_first_word(backend: str) -> None:
    model = tiny_model("llama", backend)
    text = "the capital of France"
    assert model.prepend_bos
    ids = model.tokens(text)
    with ablation(model, [Ablation("mlp", 1, position=0)]):
        found, written = model.run(ids).logits, model.generate(text, max_new_tokens=5)
        raw = model.run(ids[1:]).logits
    wanted = model.run(ids, edit={"blocks.1.hook_mlp_out": putting(0.0, [1], None)}).logits
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
    wanted = model.run(ids[1:], edit={"blocks.1.hook_mlp_out": putting(0.0, [0], None)}).logits
    torch.testing.assert_close(raw, wanted, atol=1e-6, rtol=0)
    with ablation(model, [Ablation("mlp", 1, position=0)]):
        assert model.generate(text, max_new_tokens=5) == written


@pytest.mark.seconds
def test_half_precision() -> None:
    model = tiny_model("llama", "bridge", dtype=torch.bfloat16)
    for options in KINDS:
        one = Ablation(layer=1, position=[1, 3], **options)
        with ablation(model, one):
            found = model.run(IDS).logits
        torch.testing.assert_close(found, reference(model, IDS, one), atol=0, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_analyses_see_the_ablated_model(backend: str) -> None:
    """An analysis inside is the same as one with an ordinary hook of the user."""
    model = tiny_model("gpt2", backend)

    def analyse() -> list[np.ndarray[Any, Any]]:
        return [prompt_saliency(model, IDS, [8, 9], method=method).importance for method in ("exact", "first_order")]

    clean = analyse()
    with ablation(model, [Ablation("mlp", 1)]):
        found = analyse()
    point = model.tl_model.hook_dict["blocks.1.hook_mlp_out"]
    point.add_hook(lambda value, hook: torch.zeros_like(value))
    try:
        wanted = analyse()
    finally:
        point.remove_hooks()
    for a, b, c in zip(found, wanted, clean, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)
        assert np.abs(a - c).max() > 1e-4


# ---- stacks


def test_stacks_nest_and_the_later_one_acts_last() -> None:
    model = tiny_model("gpt2", "bridge")
    value = row(model, "mlp")
    with ablation(model, [Ablation("mlp", 1, value=value)]):
        alone = model.run(IDS).logits
        with ablation(model, [Ablation("head", 0, index=1), Ablation("mlp", 1)]):
            nested = model.run(IDS).logits
        assert torch.equal(model.run(IDS).logits, alone)
    with ablation(model, [Ablation("mlp", 1, value=value), Ablation("mlp", 1), Ablation("head", 0, index=1)]):
        assert torch.equal(model.run(IDS).logits, nested)
    with ablation(model, [Ablation("mlp", 1), Ablation("head", 0, index=1)]):
        assert torch.equal(model.run(IDS).logits, nested)
    assert not torch.equal(alone, nested)


def test_attention_withheld_from_the_mlp_while_it_is_replaced_too() -> None:
    """What the MLP reads is the stream that entered the block, whatever the attention's output has become."""
    model = tiny_model("gpt2", "bridge", dtype=torch.float64)
    one = Ablation("attn_to_mlp", 1, position=3)
    both = [Ablation("attn", 1, position=3, value=row(model, "attn")), one]
    with ablation(model, both):
        found = model.run(IDS, capture="blocks.1.hook_mlp_out").activations["blocks.1.hook_mlp_out"]
    with ablation(model, one):
        wanted = model.run(IDS, capture="blocks.1.hook_mlp_out").activations["blocks.1.hook_mlp_out"]
    torch.testing.assert_close(found[:, 3], wanted[:, 3])


@pytest.mark.parametrize("backend", ["hooked", "bridge"])
def test_in_a_parallel_block_the_mlp_reads_no_attention(backend: str) -> None:
    """The context and the map say the same: no effect, whatever is put there."""
    model, prompt, other = tiny_model("gpt_neox", backend, dtype=torch.float64), IDS, IDS[::-1]
    one = Ablation("attn_to_mlp", 1, position=3)
    clean = model.run(IDS).logits
    for made in (one, mean_ablation(model, one, [other]), resample_ablation(model, one, other)):
        with ablation(model, made):
            assert torch.equal(model.run(IDS).logits, clean)
    options: list[dict[str, Any]] = [{}, {"replacement": "mean", "reference": [other]},
                                     {"replacement": "resample", "corrupted": other}]  # fmt: skip
    for option in options:
        assert np.abs(ablate_modules(model, prompt, kinds=("attn_to_mlp",), **option).effect).max() == 0
    serial = tiny_model("gpt2", backend, dtype=torch.float64)
    clean = serial.run(IDS).logits
    with ablation(serial, resample_ablation(serial, one, other)):
        assert not torch.equal(serial.run(IDS).logits, clean)
    assert np.abs(ablate_modules(serial, prompt, kinds=("attn_to_mlp",), **options[2]).effect).max() > 0


def test_no_ablation_at_all_changes_nothing() -> None:
    model = tiny_model("gpt2", "bridge")
    clean = model.run(IDS).logits
    with ablation(model, []):
        assert torch.equal(model.run(IDS).logits, clean)


def test_an_error_inside_and_a_wrong_one_among_right_ones_leave_the_model_whole() -> None:
    model = tiny_model("gpt2", "bridge")
    clean = model.run(IDS).logits
    with pytest.raises(RuntimeError, match="boom"), ablation(model, [Ablation("attn", 1)]):
        raise RuntimeError("boom")
    assert torch.equal(model.run(IDS).logits, clean)
    with pytest.raises(ValueError, match="layer must be in"), ablation(model, [Ablation("attn", 1)]):
        ablation(model, [Ablation("attn", 0), Ablation("attn", 9)])
    assert torch.equal(model.run(IDS).logits, clean)


def test_another_thread_has_the_whole_model() -> None:
    model = tiny_model("gpt2", "bridge")
    clean, found = model.generate_ids(IDS, max_new_tokens=5), list[Any]()
    with ablation(model, [Ablation("both", 1)]):
        thread = threading.Thread(target=lambda: found.append(model.generate_ids(IDS, max_new_tokens=5)))
        thread.start()
        thread.join()
        assert model.generate_ids(IDS, max_new_tokens=5) != clean
    assert found == [clean]


# ---- means and other prompts


@pytest.mark.parametrize("options", KINDS, ids=[str(options["kind"]) for options in KINDS])
def test_mean_and_resample_put_what_they_say(options: dict[str, Any]) -> None:
    model = tiny_model("llama", "bridge", dtype=torch.float64)
    one = Ablation(layer=1, position=[2, 4], **options)
    texts = ["the capital of France", "a dog who lived near the river"]
    names = {"both": ["attn", "mlp"], "attn_to_mlp": ["attn"]}.get(one.kind, [one.kind])
    hooks = [f"blocks.1.{HOOKS[name]}" for name in names]

    def values(ids: list[int]) -> Tensor:
        run = model.run(ids, capture=hooks)
        found = torch.stack([run.activations[name][0] for name in hooks]).sum(0)
        return found if one.index is None else found[:, one.index]

    mean = mean_ablation(model, one, texts)
    wanted = torch.cat([values(model.tokens(text))[1:] for text in texts]).mean(0)
    np.testing.assert_allclose(mean.value, wanted.numpy(), atol=1e-12)
    assert (mean.replacement, mean.position, mean.index) == ("mean", (2, 4), one.index)
    other = resample_ablation(model, one, IDS[::-1])
    np.testing.assert_allclose(other.value, values(IDS[::-1])[[2, 4]].numpy(), atol=1e-12)
    same = resample_ablation(model, Ablation(layer=1, **options), IDS)  # its own values: nothing changes
    assert same.positions == tuple(range(len(IDS)))
    with ablation(model, same):
        torch.testing.assert_close(
            model.run(IDS).logits, tiny_model("llama", "bridge", dtype=torch.float64).run(IDS).logits
        )
    clean = model.run(IDS).logits
    with ablation(model, same):
        torch.testing.assert_close(model.run(IDS).logits, clean, atol=limit(model, single=1e-5), rtol=0)
    with ablation(model, other):
        assert (model.run(IDS).logits - clean).abs().max() > 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("replacement", ["zero", "mean", "resample"])
def test_every_position_is_the_same_in_a_map_and_in_a_context(replacement: str, backend: str) -> None:
    """A BOS is set to zero, but keeps its value with a mean or another prompt's values."""
    model = tiny_model("llama", backend, dtype=torch.float64)
    prompt, other, target = "the capital of France", "the capital of a", 7
    ids = model.tokens(prompt)
    assert ids[0] == model.bos_token_id
    options: dict[str, Any] = {"mean": {"reference": [other]}, "resample": {"corrupted": other}}.get(replacement, {})
    found = ablate_heads(model, prompt, target, layers=[1], replacement=replacement, metric="logit", **options)
    clean = float(model.run(ids).logits[0, -1, target])
    for head, effect in enumerate(found.effect[0]):
        one = Ablation("head", 1, index=head)
        if replacement == "mean":
            one = mean_ablation(model, one, [other])
        if replacement == "resample":
            one = resample_ablation(model, one, other)
        with ablation(model, one):
            run = model.run(ids, capture="blocks.1.attn.hook_z")
        assert clean - float(run.logits[0, -1, target]) == pytest.approx(effect, abs=limit(model, single=1e-5))
        with_bos = model.run(ids, capture="blocks.1.attn.hook_z").activations["blocks.1.attn.hook_z"][0, 0, head]
        kept = torch.equal(run.activations["blocks.1.attn.hook_z"][0, 0, head], with_bos)
        assert kept == (replacement != "zero")
    assert np.abs(found.effect).max() > 1e-6


def test_one_position_is_resampled_as_one_row() -> None:
    model = tiny_model("gpt2", "bridge")
    other = resample_ablation(model, Ablation("attn", 1, position=2), IDS[::-1])
    assert other.position == 2
    assert other.value is not None
    assert other.value.shape == (model.d_model,)
    with pytest.raises(ValueError, match="has 2 tokens and nothing at position 2"):
        resample_ablation(model, Ablation("attn", 1, position=2), IDS[:2])
    with pytest.raises(ValueError, match="a mean needs at least one text"):
        mean_ablation(model, Ablation("attn", 1), [])


# ---- the next token


@pytest.mark.parametrize("backend", BACKENDS)
def test_ablated_prediction(backend: str) -> None:
    model = tiny_model("llama", backend, dtype=torch.float64)
    stack = [Ablation("mlp", 1, position=2), Ablation("head", 0, index=3, position=[0, 4])]
    found = ablated_prediction(model, "the capital of France is", stack, top=5)
    ids = model.tokens("the capital of France is")
    before = model.run(ids).logits[0, -1].softmax(-1)
    with ablation(model, stack):
        after = model.run(ids).logits[0, -1].softmax(-1)
    order = before.topk(5).indices.tolist()
    order += [i for i in after.topk(5).indices.tolist() if i not in order]
    assert list(found.ids) == order
    assert found.tokens == model.token_strings(order)
    np.testing.assert_allclose(found.before, before[order].numpy(), rtol=0, atol=limit(model))
    np.testing.assert_allclose(found.after, after[order].numpy(), rtol=0, atol=limit(model))
    np.testing.assert_allclose(found.change, (after - before)[order].numpy(), rtol=0, atol=limit(model))
    assert found.kl == pytest.approx(float((before * (before / after).log()).sum()), rel=1e-9, abs=limit(model))
    assert found.prompt_tokens == model.token_strings(ids[1:])
    frame = found.to_frame()
    assert list(frame.columns) == ["id", "token", "before", "after", "change"]
    assert len(frame) == len(order)


def test_without_ablations_nothing_changes() -> None:
    found = ablated_prediction(tiny_model("gpt2"), IDS, [], top=4)
    assert len(found.ids) == 4
    assert (found.change == 0).all()
    assert found.kl == 0


def test_a_prediction_is_saved_with_its_ablations(tmp_path: Any) -> None:
    model = tiny_model("gpt2")
    stack = [Ablation("mlp", 1, value=row(model, "mlp")), Ablation("neuron", 0, position=[1, 2], index=9)]
    found = ablated_prediction(model, IDS, stack)
    again = Result.load(found.save(tmp_path / "prediction"))
    assert isinstance(again, AblatedPrediction)
    assert again.equals(found)
    assert again.ablations[1].position == (1, 2)
    assert again.provenance["top"] == 10


# ---- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "atn"}, "kind must be 'attn', 'mlp', 'both', 'attn_to_mlp', 'head' or 'neuron', got 'atn'"),
        ({"layer": -1}, "layer must be 0 or more, got -1"),
        ({"layer": 1.5}, r"layer must be an int, got 1\.5"),
        ({"layer": True}, "layer must be an int, got True"),
        ({"position": -1}, "position must be 0 or more, got -1: an ablation holds for .*, count from the start"),
        ({"position": [1, -2]}, "position must be 0 or more"),
        ({"position": []}, "position is empty: give at least one"),
        ({"position": [2, 3, 2]}, "position has 2 twice"),
        ({"position": "first"}, "position must be an int, got 'first'"),
        ({"kind": "head"}, "an ablation of one head needs its number: give index="),
        ({"kind": "neuron"}, "an ablation of one neuron needs its number"),
        ({"kind": "neuron", "index": -3}, "neuron must be 0 or more, got -3"),
        ({"index": 3}, "leave it out for kind='attn'"),
        ({"replacement": "noise"}, "replacement must be 'zero', 'mean', 'resample' or 'value', got 'noise'"),
        ({"replacement": "mean"}, "replacement='mean' needs value=, which mean_ablation"),
        ({"replacement": "zero", "value": np.zeros(32)}, "replacement='zero' takes no value"),
        ({"value": np.array([0.0, np.nan])}, "value must be finite"),
        ({"value": np.array(["a"])}, "value must hold numbers"),
    ],
)
def test_a_wrong_record_is_one_clear_sentence(options: dict[str, Any], message: str) -> None:
    one = object.__new__(Ablation)
    with pytest.raises((ValueError, TypeError), match=message):
        # unwrapped: the type checker of the tests would refuse some of these before the record does
        inspect.unwrap(Ablation.__init__)(one, **{"kind": "attn", "layer": 1, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 3}, r"layer must be in 0\.\.2 for this 3-layer model, got 3"),
        ({"kind": "head", "index": 4}, r"head must be in 0\.\.3 for this model of 4 heads per layer, got 4"),
        (
            {"kind": "neuron", "index": 128},
            r"neuron must be in 0\.\.127 for this model of 128 neurons per layer, got 128",
        ),
        ({"position": [0, 128]}, r"position must be in 0\.\.127 for this model, which reads 128 tokens, got 128"),
        ({"value": np.zeros(31)}, r"this attn ablation must have shape \(32,\), got \(31,\)"),
        ({"value": 0.5}, r"must have shape \(32,\), got \(\)"),
        ({"value": np.zeros((2, 32)), "position": 1}, r"must have shape \(32,\), got \(2, 32\)"),
        ({"value": np.zeros((2, 32)), "position": [1, 2, 3]}, r"must have shape \(32,\) or \(3, 32\), got \(2, 32\)"),
        ({"kind": "head", "index": 0, "value": np.zeros(32)}, r"must have shape \(8,\), got \(32,\)"),
        ({"kind": "neuron", "index": 0, "value": np.zeros(1)}, r"must have shape \(\), got \(1,\)"),
    ],
)
def test_what_a_model_does_not_have_is_one_clear_sentence(options: dict[str, Any], message: str) -> None:
    one = Ablation(**{"kind": "attn", "layer": 1, **options})
    with pytest.raises(ValueError, match=message):
        ablation(tiny_model("gpt2"), [one])


def test_more_bad_input() -> None:
    model = tiny_model("gpt2")
    with pytest.raises(TypeError, match="ablations must be Ablation objects, got str"):
        inspect.unwrap(patches_of)(model, ["mlp"])
    with pytest.raises(ValueError, match=r"position must be in -7\.\.6 for this prompt of 7 tokens"):
        ablated_prediction(model, IDS, [Ablation("mlp", 1, position=7)])
    with pytest.raises(ValueError, match=r"top must be in 1\.\.420"):
        ablated_prediction(model, IDS, [], top=0)
    huge = Ablation("mlp", 1, value=np.full(model.d_model, 1e38))
    with pytest.raises(ValueError, match="the largest logit with these ablations is not finite"):
        ablated_prediction(model, IDS, [huge])


def test_values_may_be_lists_and_tensors() -> None:
    model = tiny_model("gpt2")
    value = row(model, "attn")
    given = [value, value.tolist(), torch.from_numpy(value), torch.from_numpy(value).requires_grad_(True)]
    logits = []
    for one in given:
        with ablation(model, Ablation("attn", 1, 2, value=one)):
            logits.append(model.run(IDS).logits)
    assert all(torch.equal(logits[0], other) for other in logits)
    with ablation(model, Ablation("neuron", 1, range(2, 4), 5, value=2)):
        found = model.run(IDS, capture="blocks.1.mlp.hook_post").activations["blocks.1.mlp.hook_post"]
    assert (found[0, 2:4, 5] == 2).all()
    assert (found[0, :2, 5] != 2).all()
