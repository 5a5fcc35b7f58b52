"""Activation patching against plain loops over transformers, against TransformerLens, and by its identities."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interp_widgets import activation_patching, load_model
from interp_widgets.analysis.patching import ActivationPatchingResult
from interp_widgets.models import Model
from tests.architectures.functions import reference, tokenizer
from tests.architectures.models import HEADS, KV_HEADS, LAYERS, random_model
from tests.architectures.naive import Naive
from tests.models.tiny import HALF_SEED, tiny_model
from tests.tolerances import SINGLE

CLEAN, CORRUPTED = [3, 17, 42, 8, 5, 30], [3, 17, 21, 8, 5, 30]
CHANGED = 2
"""The one position in which they differ."""
ANSWER, FOIL = 7, 9
ALL: tuple[Any, ...] = ("resid_pre", "attn", "mlp", "head", "head_q", "head_k", "head_v", "pattern")
MODELS = [
    *(pytest.param(name, "hooked", marks=pytest.mark.hooked) for name in ("gpt2", "llama", "gpt_neox")),
    *((name, "bridge") for name in ("gpt2", "llama", "gpt_neox", "gemma3")),
]


@functools.cache
def loaded(architecture: str, backend: Any) -> Model:
    return load_model(random_model(architecture), tokenizer=tokenizer(), backend=backend)


def gap(logits: Tensor) -> Tensor:
    return logits[-1, ANSWER] - logits[-1, FOIL]


# ---- the same by plain loops


def put(position: int, numbers: Tensor | slice, new: Tensor) -> Callable[[Tensor], Tensor]:
    def change(value: Tensor) -> Tensor:
        value = value.clone()
        value[..., position, numbers] = new
        return value

    return change


def sites_of(naive: Naive, site: str, layer: int) -> tuple[torch.nn.Module, bool, list[Tensor | slice]]:
    """A module, whether the site is what enters it, and for every head the numbers that are patched."""
    if site == "resid_pre":
        return naive.layers[layer], True, [slice(None)]
    if site == "mlp":
        written = naive.names.mlp_norm or naive.names.mlp
        return naive.part(layer, str(written)), False, [slice(None)]
    if site == "attn":
        after = "post_attention_layernorm" if naive.names.mlp_norm else naive.names.attention
        return naive.part(layer, str(after)), False, [slice(None)]
    if site == "head":
        size = naive.size(layer)
        module = naive.part(layer, str(naive.names.attention))
        return module, True, [slice(head * size, (head + 1) * size) for head in range(naive.n_heads)]
    module, numbers = naive.head_numbers(layer, site[-1])
    return module, False, list(numbers)


def by_loops(
    naive: Naive,
    site: str,
    run: list[int],
    source: list[int],
    clean: list[int],
    corrupted: list[int],
    pairs: list[tuple[int, int]],
) -> Tensor:
    """(layers, heads, positions) recovered; ``pairs`` are (position in run, position in source)."""
    ends = [gap(naive.logits(ids)) for ids in (clean, corrupted)]
    table = []
    for layer in range(LAYERS):
        module, enters, parts = sites_of(naive, site, layer)
        (value,) = naive.values(source, [(module, enters)])
        rows = [
            [naive.logits(run, [(module, put(to, part, value[at, part]), enters)]) for to, at in pairs]
            for part in parts
        ]
        table.append(torch.stack([torch.stack([gap(logits) for logits in row]) for row in rows]))
    return (torch.stack(table) - ends[1]) / (ends[0] - ends[1])


@pytest.mark.parametrize("direction", ["denoising", "noising"])
@pytest.mark.parametrize(("architecture", "backend"), MODELS)
def test_every_site_equals_plain_loops_over_transformers(architecture: str, backend: str, direction: Any) -> None:
    naive, model = reference(architecture), loaded(architecture, backend)
    sites = ALL[:-1]
    found = activation_patching(model, CLEAN, CORRUPTED, ANSWER, foil=FOIL, sites=sites, direction=direction)
    run, source = (CORRUPTED, CLEAN) if direction == "denoising" else (CLEAN, CORRUPTED)
    for site in sites:
        wanted = by_loops(naive, site, run, source, CLEAN, CORRUPTED, [(i, i) for i in range(len(CLEAN))])
        own = torch.as_tensor(np.array(found.recovered[site])).double()
        own = own if own.ndim == 3 else own[:, None]
        assert own.shape == wanted.shape, site
        assert float((own - wanted).abs().max()) < 1e-3 * max(1.0, float(wanted.abs().max())), site
        assert float(wanted.std()) > 1e-3, site
    shared = KV_HEADS if architecture in ("llama", "gemma3") else HEADS
    assert found.recovered["head_q"].shape[1] == HEADS
    assert found.recovered["head_k"].shape[1] == shared


@pytest.mark.parametrize(("architecture", "backend"), [MODELS[1], MODELS[3], MODELS[5], MODELS[6]])
def test_prompts_of_different_lengths_are_patched_where_they_are_aligned(architecture: str, backend: str) -> None:
    """Queries and keys get the rotary embedding of the position they are put to."""
    naive, model = reference(architecture), loaded(architecture, backend)
    longer = [3, 17, 40, 21, 8, 5, 30]
    alignment = [(0, 0), (-1, -1), (3, 4), (2, 3)]
    sites: tuple[Any, ...] = ("resid_pre", "head_q", "head_k", "head_v")
    found = activation_patching(model, CLEAN, longer, ANSWER, foil=FOIL, sites=sites, alignment=alignment)
    assert (found.positions, found.source_positions) == ((0, 3, 4, 6), (0, 2, 3, 5))
    assert (found.unaligned, found.source_unaligned) == ((1, 2, 5), (1, 4))
    for site in sites:
        wanted = by_loops(naive, site, longer, CLEAN, CLEAN, longer, [(0, 0), (3, 2), (4, 3), (6, 5)])
        own = torch.as_tensor(np.array(found.recovered[site])).double()
        own = own if own.ndim == 3 else own[:, None]
        assert float((own - wanted).abs().max()) < 1e-3 * max(1.0, float(wanted.abs().max())), site
    some = activation_patching(
        model, CLEAN, longer, ANSWER, foil=FOIL, sites="attn", alignment=alignment, positions=[-1, 3], layers=[-1]
    )
    assert (some.positions, some.layers, some.unaligned) == ((6, 3), (LAYERS - 1,), (1, 2, 5))
    with pytest.raises(ValueError, match="position 5 is aligned with none"):
        activation_patching(model, CLEAN, longer, ANSWER, alignment=alignment, positions=[5])
    with pytest.raises(ValueError, match="prompts of one length"):
        activation_patching(model, CLEAN, longer, ANSWER, alignment=alignment, sites="pattern")


@pytest.mark.hooked
def test_the_maps_are_those_of_transformer_lens() -> None:
    from transformer_lens import patching

    model = tiny_model("gpt2", "hooked", dtype=torch.float64)
    found = activation_patching(model, CLEAN, CORRUPTED, ANSWER, foil=FOIL, sites=ALL)
    theirs, clean, corrupted = model.tl_model, torch.tensor([CLEAN]), torch.tensor([CORRUPTED])
    logits, cache = theirs.run_with_cache(clean)
    low, high = gap(theirs(corrupted)[0]), gap(logits[0])
    options = theirs, corrupted, cache, lambda logits: (gap(logits[0]) - low) / (high - low)
    functions = {
        "resid_pre": patching.get_act_patch_resid_pre, "attn": patching.get_act_patch_attn_out,
        "mlp": patching.get_act_patch_mlp_out, "head": patching.get_act_patch_attn_head_out_by_pos,
        "head_q": patching.get_act_patch_attn_head_q_by_pos, "head_k": patching.get_act_patch_attn_head_k_by_pos,
        "head_v": patching.get_act_patch_attn_head_v_by_pos,
        "pattern": patching.get_act_patch_attn_head_pattern_all_pos,
    }  # fmt: skip
    for site, function in functions.items():
        with torch.no_grad():
            wanted = function(*options).numpy()
        wanted = wanted.transpose(0, 2, 1) if wanted.ndim == 3 else wanted
        assert found.recovered[site] == pytest.approx(wanted, abs=1e-5), site
        assert np.ptp(wanted) > 1e-3


# ---- identities


@pytest.mark.parametrize(("architecture", "backend"), [MODELS[1], MODELS[3], MODELS[6]])
def test_identities(architecture: str, backend: str) -> None:
    model = loaded(architecture, backend)
    one = activation_patching(model, CLEAN, CORRUPTED, ANSWER, foil=FOIL, sites=ALL)
    start = one.recovered["resid_pre"][0]
    assert start[CHANGED] == pytest.approx(1, abs=SINGLE)  # the only difference is all of the difference
    # what both prompts share up to the changed word is the same value: exactly nothing changes
    for site in ALL[:-1]:
        assert not one.recovered[site][..., :CHANGED].any(), site
    assert not np.delete(start, CHANGED).any()
    everything = activation_patching(
        model, [CLEAN[CHANGED]], [CORRUPTED[CHANGED]], ANSWER, foil=FOIL, sites="resid_pre"
    )
    assert everything.recovered["resid_pre"] == pytest.approx(1, abs=SINGLE)
    swapped = activation_patching(model, CORRUPTED, CLEAN, ANSWER, foil=FOIL, sites=ALL, direction="noising")
    for site in ALL:
        assert swapped.recovered[site] == pytest.approx(1 - one.recovered[site], abs=10 * SINGLE), site
    assert swapped.clean == pytest.approx(one.corrupted, abs=SINGLE)


@pytest.mark.parametrize("metric", ["logit_difference", "logit", "log_prob", "probability", "kl"])
def test_metrics(metric: Any) -> None:
    model = loaded("llama", "bridge")
    foil: dict[str, Any] = {"foil": FOIL} if metric == "logit_difference" else {}
    found = activation_patching(model, CLEAN, CORRUPTED, ANSWER, metric=metric, sites="resid_pre", **foil)
    assert found.recovered["resid_pre"][0] == pytest.approx((np.arange(6) == CHANGED).astype(float), abs=1e-3)
    clean, corrupted = (model.run(ids).logits[0, -1].double() for ids in (CLEAN, CORRUPTED))
    read: dict[str, Callable[[Tensor], Any]] = {
        "logit_difference": lambda x: x[ANSWER] - x[FOIL], "logit": lambda x: x[ANSWER],
        "log_prob": lambda x: x.log_softmax(-1)[ANSWER], "probability": lambda x: x.softmax(-1)[ANSWER],
        "kl": lambda x: (clean.softmax(-1) * (clean.log_softmax(-1) - x.log_softmax(-1))).sum(),
    }  # fmt: skip
    assert found.clean[0] == pytest.approx(float(read[metric](clean)), abs=1e-4)
    assert found.corrupted[0] == pytest.approx(float(read[metric](corrupted)), abs=1e-4)


def test_without_a_foil_it_is_what_the_corrupted_prompt_is_answered_by() -> None:
    model = loaded("gpt2", "bridge")
    best = int(model.run(CORRUPTED).logits[0, -1].argmax())
    found = activation_patching(model, CLEAN, CORRUPTED, ANSWER, sites="resid_pre", layers=[0])
    assert found.foils == (best,)
    with pytest.raises(ValueError, match=r"the corrupted prompt is answered by .* too"):
        activation_patching(model, CLEAN, CORRUPTED, best)


def test_where_both_prompts_agree_nothing_is_defined() -> None:
    hf = random_model("gpt2")
    with torch.no_grad():
        hf.get_input_embeddings().weight[21] = hf.get_input_embeddings().weight[42]
    model = load_model(hf, tokenizer=tokenizer(), backend="bridge")
    found = activation_patching(model, CLEAN, CORRUPTED, ANSWER, foil=FOIL)
    assert found.undefined == (0,)
    assert np.isnan(found.recovered["attn"]).all()
    other = [3, 17, 11, 8, 5, 30]
    three = activation_patching(
        model, [CLEAN] * 3, [CORRUPTED, other, [*other[:5], 12]], ANSWER, foil=FOIL, sites="attn"
    )
    assert three.undefined == (0,)
    assert np.isnan(three.each["attn"][0]).all()
    assert three.recovered["attn"] == pytest.approx(three.each["attn"][1:].mean(0), abs=1e-6)


# ---- several pairs


@functools.cache
def several() -> ActivationPatchingResult:
    corrupted = [[3, 17, other, 8, 5, 30] for other in (21, 11, 12, 13, 14, 15)]
    return activation_patching(
        loaded("llama", "bridge"),
        [CLEAN] * 6,
        corrupted,
        [ANSWER] * 6,
        foil=FOIL,
        sites=("resid_pre", "head_v", "pattern"),
    )


def test_pairs_are_averaged_with_an_interval() -> None:
    found, model = several(), loaded("llama", "bridge")
    alone = activation_patching(model, CLEAN, [3, 17, 12, 8, 5, 30], ANSWER, foil=FOIL, sites=("resid_pre", "head_v"))
    assert not alone.low
    assert not alone.high
    for site in ("resid_pre", "head_v"):
        assert found.each[site][2] == pytest.approx(alone.recovered[site], abs=1e-5)
        assert found.recovered[site] == pytest.approx(found.each[site].mean(0), abs=1e-6)
        assert (found.low[site] <= found.recovered[site] + 1e-6).all()
        assert (found.recovered[site] <= found.high[site] + 1e-6).all()
    assert float(np.max(found.high["head_v"] - found.low["head_v"])) > 1e-3
    with pytest.raises(ValueError, match="a test needs several pairs"):
        alone.test()


def test_named_cells_are_tested_and_corrected() -> None:
    found = several()
    table = found.test([("resid_pre", 0, CHANGED), ("resid_pre", -1, -1), ("head_v", 1, 1, 4), ("pattern", 0, 3)])
    assert table["layer"].tolist() == [0, LAYERS - 1, 1, 0]
    assert table["head"].tolist() == [-1, -1, 1, 3]
    assert table["position"].tolist() == [CHANGED, 5, 4, -1]
    assert table["p"][0] == 2 / 2**6  # every sign flip but none and all brings less
    assert table["holm_p"][0] == pytest.approx(4 * table["p"].min())
    every = found.test()
    assert len(every) == sum(values.size for values in found.recovered.values())
    for cell in (("resid_pre", 0), ("attn", 0, 0), ("resid_pre", 9, 0)):
        with pytest.raises(ValueError, match=r"must be \(site|site must be|layer must be"):
            found.test([cell])


def test_the_result_is_a_table_and_a_file(tmp_path: Path) -> None:
    found = several()
    frame = found.to_frame()
    assert list(frame) == ["site", "layer", "head", "position", "token", "recovered", "low", "high"]
    row = frame[(frame["site"] == "head_v") & (frame["layer"] == 1) & (frame["head"] == 1) & (frame["position"] == 4)]
    assert float(row["recovered"].iloc[0]) == pytest.approx(float(found.recovered["head_v"][1, 1, 4]))
    assert found.strongest("resid_pre")[0][0] == found.measures()["resid_pre_layer"]
    assert ActivationPatchingResult.load(found.save(tmp_path / "x")).equals(found)
    with pytest.raises(ValueError, match="must have axes"):
        ActivationPatchingResult.load(found.save(tmp_path / "y")).__class__(
            **{**vars(found), "recovered": {"resid_pre": np.zeros((1, 2))}}
        )


# ---- what is asked for


def test_order_and_parts_that_are_asked_for() -> None:
    model = loaded("llama", "bridge")
    whole = activation_patching(model, CLEAN, CORRUPTED, ANSWER, foil=FOIL, sites=("attn", "head_k"))
    calls: list[tuple[int, int]] = []
    some = activation_patching(
        model, CLEAN, CORRUPTED, ANSWER, foil=FOIL, sites=("attn", "head_k"), layers=[-1, 0], positions=[-1, 2, 4],
        batch_size=2, progress=lambda done, total: calls.append((done, total)),
    )  # fmt: skip
    at = np.ix_([1, 0], [5, 2, 4])
    assert some.recovered["attn"] == pytest.approx(whole.recovered["attn"][at], abs=1e-5)
    assert some.recovered["head_k"] == pytest.approx(whole.recovered["head_k"][[1, 0]][:, :, [5, 2, 4]], abs=1e-5)
    assert calls[-1] == (18, 18)
    assert some.tokens == tuple(whole.tokens[i] for i in (5, 2, 4))


def test_half_precision() -> None:
    single = tiny_model("llama", "bridge", seed=HALF_SEED)
    half = tiny_model("llama", "bridge", seed=HALF_SEED, dtype=torch.bfloat16)
    clean, corrupted = (single.run(ids).logits[0, -1] for ids in (CLEAN, CORRUPTED))
    moved = clean - corrupted
    answer = int(moved.argmax())
    options: dict[str, Any] = {"foil": int(moved.argmin()), "sites": ALL}
    own, wanted = (activation_patching(model, CLEAN, CORRUPTED, answer, **options) for model in (half, single))
    for site in ALL:
        assert own.recovered[site].dtype == np.float32
        assert own.recovered[site] == pytest.approx(wanted.recovered[site], abs=0.15), site


def test_a_cancelled_run_stops() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        activation_patching(loaded("gpt2", "bridge"), CLEAN, CORRUPTED, ANSWER, check=stop)


def bad_calls() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"corrupted": CORRUPTED[:5]}, "clean has 6 tokens and corrupted 5: give alignment="
    yield {"corrupted": CLEAN}, "have the same tokens"
    yield {"foil": ANSWER}, "answer and foil are the same token"
    yield {"layers": [LAYERS]}, "layer must be in"
    yield {"positions": [6]}, "position must be in"
    yield {"sites": "heads"}, "sites must be some of"
    yield {"sites": []}, "sites must be"
    yield {"direction": "both"}, "direction must be"
    yield {"metric": "accuracy"}, "metric must be"
    yield {"metric": "kl", "foil": FOIL}, "a foil is only used by"
    yield {"answer": "word1 word2"}, "the answer must be one token"
    yield {"answer": [ANSWER, ANSWER]}, "answer must be the text or id of one token for one pair"
    yield {"alignment": []}, "alignment must be pairs"
    yield {"alignment": [(0, 0), (0, 1)]}, "alignment has position 0 of the clean prompt twice"
    yield {"alignment": [(0, 9)]}, "alignment's position in corrupted must be in"
    yield {"clean": [CLEAN]}, "must both be one prompt, or both a list"
    yield {"clean": [CLEAN], "corrupted": [CORRUPTED, CORRUPTED]}, "must be lists of one length, got 1 and 2"
    yield {"clean": [CLEAN, CLEAN[:5]], "corrupted": [CORRUPTED, CORRUPTED[:5]]}, "as many tokens each"
    yield {"clean": [CLEAN], "corrupted": [CORRUPTED], "answer": [1, 2]}, "one for each of the 1 pairs, got 2"


@pytest.mark.parametrize(("changes", "message"), list(bad_calls()))
def test_bad_input_gets_one_sentence(changes: dict[str, Any], message: str) -> None:
    call = {"clean": CLEAN, "corrupted": CORRUPTED, "answer": ANSWER, **changes}
    with pytest.raises(ValueError, match=message) as error:
        inspect.unwrap(activation_patching)(loaded("gpt2", "bridge"), **call)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("site", ["attn", "head", "head_q", "pattern"])
def test_a_model_without_attention_is_refused(site: Any) -> None:
    with pytest.raises(ValueError, match="which MambaForCausalLM does not have"):
        activation_patching(loaded("mamba", "bridge"), CLEAN, CORRUPTED, ANSWER, sites=site)
