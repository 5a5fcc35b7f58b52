"""One tie rule, wherever a token or a part is named: of equal ones the lowest id, or the first part."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from interp_widgets import (
    Ablation,
    Concept,
    ablated_prediction,
    ablation_null,
    compare_steering,
    concept_directions,
    greedy_circuit,
    load_model,
    patched_prediction,
    path_patching,
)
from interp_widgets.analysis.continuations import Continuation, score_continuations
from interp_widgets.analysis.mixture_of_depths.routes import _Readings
from interp_widgets.figures.labels import visible
from interp_widgets.models.mixture_of_depths.model import ModModel
from interp_widgets.widgets.base.next_tokens import rows
from tests.models.tiny import HALF_SEED, tiny_hf, tiny_tokenizer

CONCEPTS = (
    Concept("a", ("one two", "three four", "seven", "eight nine")),
    Concept("b", ("the dog", "a nurse", "small dog", "river")),
)


def prompts(count: int) -> list[tuple[list[int], list[int]]]:
    draw = np.random.default_rng(0)
    return [tuple(draw.integers(5, 400, size=8).tolist() for _ in range(2)) for _ in range(count)]  # type: ignore[misc]


def twin_tokens(dtype: torch.dtype) -> Any:
    """A model in which the logit of every token is that of the next one too."""
    hf_model = copy.deepcopy(tiny_hf("llama", seed=HALF_SEED))
    hf_model.lm_head.weight.data[1::2] = hf_model.lm_head.weight.data[::2]
    return load_model(hf_model, tokenizer=tiny_tokenizer("llama"), backend="bridge", dtype=dtype)


@pytest.mark.seconds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_equal_logits_everything_names_the_lowest_id(dtype: torch.dtype) -> None:
    model = twin_tokens(dtype)
    concepts = concept_directions(model, CONCEPTS, layer=1, shuffles=2)
    for clean, corrupted in prompts(6):
        first, other = (model.generate_ids(ids, max_new_tokens=1) for ids in (clean, corrupted))
        if not first or not other:  # the end of the text
            continue
        assert first[0] % 2 == 0
        patched = patched_prediction(model, clean, corrupted, "resid_pre", 1, position=3, top=1)
        assert {first[0], other[0]} <= set(patched.ids)
        assert all(token % 2 == 0 for token in patched.ids)
        assert ablation_null(model, clean, [(0, 1)], draws=2).targets[0] == first[0]
        steered = compare_steering(model, concepts, "a", clean, max_new_tokens=1, top=1)
        assert steered.written_ids[0][0] == first[0]
        assert first[0] in steered.top_ids
        assert (steered.top_ids % 2 == 0).all()
        known = path_patching(model, clean, corrupted, [("mlp", 0), (0, 1)], [("mlp", 2)], first[0], metric="log_prob")
        twin = path_patching(
            model, clean, corrupted, [("mlp", 0), (0, 1)], [("mlp", 2)], first[0] + 1, metric="log_prob"
        )
        assert np.array_equal(known.effect, twin.effect)
        shown = ablated_prediction(model, clean, Ablation("mlp", 0), top=1)
        for prediction, runs in ((shown, ("before", "after")), (patched, ("clean", "corrupted", "patched"))):
            table = [row[0] for row in rows([prediction], runs)]
            assert table == [visible(model.single_token_strings([token])[0]) for token in prediction.ids]


@pytest.mark.seconds
def test_greedy_decoding_would_generate_the_lowest_id_alone() -> None:
    model = twin_tokens(torch.float32)
    for prompt, _ in prompts(4):
        best = int(model.forward(model.token_embeddings(prompt)[None])[0, -1].argmax())
        scored = score_continuations(model, [Continuation(tuple(prompt), (token,)) for token in (best, best + 1)])
        assert [one.greedy for one in scored] == [True, False]
        assert scored[0].log_probability[0] == scored[1].log_probability[0]


@pytest.mark.seconds
def test_different_logits_of_equal_probability_are_no_tie() -> None:
    """All probabilities of a flat distribution round to the same float32 number."""
    hf_model = copy.deepcopy(tiny_hf("llama"))
    model = load_model(hf_model, tokenizer=tiny_tokenizer("llama"), backend="bridge")
    for name, weight in model.tl_model.named_parameters():
        if "unembed" in name or "lm_head" in name:
            weight.data *= 3e-8
    for clean, corrupted in prompts(4):
        logits = [model.forward(model.token_embeddings(ids)[None])[0, -1] for ids in (clean, corrupted)]
        assert len(logits[0].softmax(-1).unique()) < 10, "equal in float32"
        best = {int(each.argmax()) for each in logits}
        assert best <= set(patched_prediction(model, clean, corrupted, "resid_pre", 1, position=3, top=1).ids)
        read = _Readings(Mock(ModModel, k=1), torch.stack(logits), 1)
        read.add(0, slice(0, 2), torch.stack(logits))
        assert set(read.ensemble_ids.flatten().tolist()) == set(read.route_ids.flatten().tolist()) == best


@pytest.mark.seconds
@pytest.mark.parametrize("kind", ["equal heads", "heads without effect"])
def test_a_circuit_takes_the_first_of_equal_heads(kind: str) -> None:
    """Whatever the size of the chunks, on which the last bits of a pass depend."""
    hf_model, width = copy.deepcopy(tiny_hf("gpt2", seed=3)), 8
    for block in hf_model.transformer.h:
        read, write = block.attn.c_attn, block.attn.c_proj.weight.data
        if kind == "heads without effect":
            write[:] = 0
            continue
        for start in (0, 2 * width):
            head, twin = (slice(start + offset, start + offset + width) for offset in (0, width))
            for part in range(3):
                column = 4 * width * part
                for values in (read.weight.data.T, read.bias.data):
                    values[column + twin.start : column + twin.stop] = values[column + head.start : column + head.stop]
            write[twin] = write[head]
    model = load_model(hf_model, tokenizer=tiny_tokenizer("gpt2"), backend="bridge")
    for clean, corrupted in prompts(3):
        for batch_size in (None, 3):
            found = greedy_circuit(
                model, clean, corrupted, 7, foil=9, parts="head", most=4, draws=2, batch_size=batch_size
            ).parts
            if kind == "heads without effect":
                assert found == tuple(f"head 0.{head}" for head in range(4))
            for number, part in enumerate(found):
                layer, head = map(int, part.removeprefix("head ").split("."))
                assert head % 2 == 0 or f"head {layer}.{head - 1}" in found[:number]
