"""Two pretrained models: every analysis against transformers' own model, and what these models are known to do.

The expected figures were measured on these files (4-bit weights, dequantised), by loops that this package has no part
in; a figure may be off by 15%, a share by 0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interp_widgets import (
    Ablation,
    ablate_heads,
    ablate_modules,
    ablate_neurons,
    ablation,
    ablation_null,
    activation_patching,
    attention_in_texts,
    attention_patterns,
    attention_reasons,
    causal_trace,
    circuit_faithfulness,
    decompose_logit,
    decompose_tokens,
    direct_logit_attribution,
    greedy_circuit,
    head_measures,
    head_scores,
    head_word_pairs,
    logit_lens,
    massive_activations,
    path_patching,
    prompt_saliency,
    steer,
    weights_against_text,
)
from interp_widgets.models.engine import residual_streams
from tests.real.loaded import Loaded

FRANCE, ITALY = "The capital of France is", "The capital of Italy is"
ATTRIBUTED: dict[str, Any] = {"target": "logit_difference", "foil": "runner_up", "baseline": "mean"}
COUNTRY, LAST = 3, 4
"""Positions in both prompts."""
SINGLE = 2e-3
"""Largest difference of two computations in float32, of logits or nats."""


@contextmanager
def hooked(module: Any, change: Callable[[Tensor], Tensor], *, before: bool = False) -> Iterator[None]:
    """Inside, a module's output (or its input) is changed; tuples are changed in their first entry."""

    def apply(value: Any) -> Any:
        return (change(value[0]), *value[1:]) if isinstance(value, tuple) else change(value)

    if before:
        handle = module.register_forward_pre_hook(lambda _, inputs: apply(inputs))
    else:
        handle = module.register_forward_hook(lambda _, inputs, output: apply(output))
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def seen_at(loaded: Loaded, module: Any, ids: Tensor, *, before: bool = False) -> Tensor:
    """(tokens, width) what a module writes (or reads)."""
    values: list[Tensor] = []

    def keep(value: Tensor) -> Tensor:
        values.append(value[0].clone())
        return value

    with hooked(module, keep, before=before):
        loaded.theirs(ids, use_cache=False)
    return values[0]


def put(position: int, row: Tensor, part: slice = slice(None)) -> Callable[[Tensor], Tensor]:
    """A change that writes a row (width,), or part of it, at a position of every sequence."""

    def change(value: Tensor) -> Tensor:
        value = value.clone()
        value[:, position, part] = row[part]
        return value

    return change


# ---- the same numbers as transformers


def test_streams_and_logits(either: Loaded) -> None:
    ids = either.ids(FRANCE + " Paris, and the capital of Italy is")
    ours, theirs = residual_streams(either.model, ids[0].tolist()), either.streams(ids)
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-4
    logits = either.model.run(ids[0].tolist()).logits[0]
    assert float((logits - either.logits(input_ids=ids)).abs().max()) < SINGLE * 5


@torch.no_grad()
def test_lens(either: Loaded) -> None:
    found = logit_lens(either.model, FRANCE, target=" Paris")
    ids = either.ids(FRANCE)
    first = ids.shape[1] - len(found.tokens)
    read = either.theirs.lm_head(either.final_norm(either.streams(ids)[:, first:])).softmax(-1)
    best, where = read.max(-1)
    clear = np.diff(read.topk(2).values.numpy()[..., ::-1], axis=-1)[..., 0] > 1e-3  # no tie within rounding
    assert (found.top_token[clear] == where.numpy()[clear]).all()
    np.testing.assert_allclose(found.top_probability[..., 0], best, atol=1e-3)
    target = read[..., either.token(" Paris")]
    np.testing.assert_allclose(found.target_probability, target, atol=1e-3)
    assert found.target_rank is not None
    assert found.target_rank[-1, -1] == int((read[-1, -1] > target[-1, -1]).sum())


@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_writing(name: str, request: pytest.FixtureRequest) -> None:
    either: Loaded = request.getfixturevalue(name)
    prompt: Any = FRANCE if name == "gemma" else [{"role": "user", "content": "What is the capital of France?"}]
    ids = torch.tensor([either.model.tokens(prompt)])
    theirs = either.theirs.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=0
    )[0, ids.shape[1] :]
    ours = either.model.generate_ids(ids[0].tolist(), max_new_tokens=12)
    assert list(ours)[-len(theirs) :] == theirs.tolist()[: len(ours)]


def test_exact_and_first_order_saliency(either: Loaded) -> None:
    ids, paris = either.ids(FRANCE), either.token(" Paris")
    embeddings = either.embeddings(ids)

    def chance(rows: Tensor) -> Tensor:
        logits: Tensor = either.theirs(inputs_embeds=rows, use_cache=False).logits
        return logits[0, -1].softmax(-1)[paris]

    exact = prompt_saliency(either.model, FRANCE, " Paris", first_token="baseline")
    first = ids.shape[1] - len(exact.prompt_tokens)
    leaf = embeddings.clone().requires_grad_(True)
    full = chance(leaf)
    (gradient,) = torch.autograd.grad(full, leaf)
    wanted = []
    for place in range(first, ids.shape[1]):
        rows = embeddings.clone()
        rows[0, place] = 0
        with torch.no_grad():
            wanted.append(float(full - chance(rows)))
    np.testing.assert_allclose(exact.importance[:, 0], wanted, atol=1e-3)
    order = prompt_saliency(either.model, FRANCE, " Paris", method="first_order").importance[:, 0]
    np.testing.assert_allclose(order, (gradient * embeddings).sum(-1)[0, first:].detach(), atol=1e-3)


def test_steering(either: Loaded) -> None:
    ids, layer = either.ids(FRANCE), 9
    direction = torch.randn(either.model.d_model, generator=torch.Generator().manual_seed(0))
    added = 40 * direction / direction.norm()
    with hooked(either.theirs.model.layers[layer], lambda rows: rows + added, before=True):
        wanted = either.logits(input_ids=ids)
    with steer(either.model, direction, layer=layer, strength=40):
        found = either.model.run(ids[0].tolist()).logits[0]
    assert float((found - wanted).abs().max()) < SINGLE * 5
    assert float((wanted - either.logits(input_ids=ids)).abs().max()) > 0.1  # the control: it does something


@pytest.mark.parametrize("kind", ["attn", "mlp"])
def test_modules_of_another_prompt(smollm2: Loaded, kind: Any) -> None:
    """SmolLM2 writes into the stream what its modules return; of Gemma a norm comes between."""
    paris, rome = smollm2.token(" Paris"), smollm2.token(" Rome")
    ids, other = smollm2.ids(FRANCE), smollm2.ids(ITALY)
    layers, places = (0, 7, 23, 29), (COUNTRY, LAST)
    found = ablate_modules(
        smollm2.model, FRANCE, " Paris", kinds=(kind,), layers=layers, positions=places,
        replacement="resample", corrupted=ITALY, metric="logit_difference", foil=" Rome",
    )  # fmt: skip
    clean = smollm2.logits(input_ids=ids)[-1]
    for row, layer in enumerate(layers):
        block = smollm2.theirs.model.layers[layer]
        module = block.self_attn if kind == "attn" else block.mlp
        theirs = seen_at(smollm2, module, other)
        for column, place in enumerate(places):
            with hooked(module, put(place, theirs[place])):
                after = smollm2.logits(input_ids=ids)[-1]
            wanted = (clean[paris] - clean[rome]) - (after[paris] - after[rome])
            assert found.effect[0, row, column] == pytest.approx(float(wanted), abs=SINGLE * 5)


def test_heads_and_neurons(smollm2: Loaded) -> None:
    paris, ids = smollm2.token(" Paris"), smollm2.ids(FRANCE)
    layer, width = 23, smollm2.model.d_head
    block = smollm2.theirs.model.layers[layer]
    heads = ablate_heads(smollm2.model, FRANCE, " Paris", layers=[layer], position=-1)
    before = smollm2.logits(input_ids=ids)[-1].log_softmax(-1)[paris]
    for head in range(smollm2.model.n_heads):
        none = put(LAST, torch.zeros(block.self_attn.o_proj.in_features), slice(head * width, (head + 1) * width))
        with hooked(block.self_attn.o_proj, none, before=True):
            after = smollm2.logits(input_ids=ids)[-1].log_softmax(-1)[paris]
        assert heads.effect[0, head] == pytest.approx(float(before - after), abs=SINGLE)
    chosen = [3, 700, 1500]
    neurons = ablate_neurons(smollm2.model, FRANCE, " Paris", layer=layer, neurons=chosen, metric="logit")
    logits = smollm2.logits(input_ids=ids)[-1]
    for index, neuron in enumerate(chosen):
        none = put(LAST, torch.zeros(block.mlp.down_proj.in_features), slice(neuron, neuron + 1))
        with hooked(block.mlp.down_proj, none, before=True):
            after = smollm2.logits(input_ids=ids)[-1]
        assert neurons.effect[index] == pytest.approx(float(logits[paris] - after[paris]), abs=SINGLE)
        assert neurons.common is not None
        shared = logits.logsumexp(-1) - after.logsumexp(-1)
        assert neurons.common[index] == pytest.approx(float(shared), abs=SINGLE)


def test_tracing(smollm2: Loaded) -> None:
    prompt, subject, paris = "We saw the Eiffel Tower in the city of", " Eiffel Tower", smollm2.token(" Paris")
    found = causal_trace(smollm2.model, prompt, subject, " Paris", kinds="state", samples=2, seed=3)
    ids = smollm2.ids(prompt)
    start, end = found.subject
    noise = np.random.default_rng(3).standard_normal((2, end - start, smollm2.model.d_model)) * found.noise_std
    clean = smollm2.streams(ids)
    for sample in range(2):
        rows = smollm2.embeddings(ids).clone()
        rows[0, start:end] += torch.from_numpy(noise[sample]).float()
        corrupted = smollm2.logits(inputs_embeds=rows)[-1].softmax(-1)[paris]
        assert found.corrupted[sample] == pytest.approx(float(corrupted), abs=1e-3)
        for layer, place in ((0, start), (12, end - 1), (25, len(found.tokens) - 1)):
            with hooked(smollm2.theirs.model.layers[layer], put(place, clean[layer + 1, place])):
                restored = smollm2.logits(inputs_embeds=rows)[-1].softmax(-1)[paris]
            assert found.restored[0, layer, place, sample] == pytest.approx(float(restored), abs=1e-3)


def test_decomposition_adds_up(smollm2: Loaded) -> None:
    found, streams = decompose_tokens(smollm2.model, FRANCE, lens=None), smollm2.streams(smollm2.ids(FRANCE))[:, -1]
    total = torch.from_numpy(found.parts.sum(1) + found.bias)
    assert float(((total - streams).norm(dim=-1) / streams.norm(dim=-1)).max()) < 1e-4
    share = decompose_logit(smollm2.model, FRANCE, " Paris")
    logit = smollm2.logits(input_ids=smollm2.ids(FRANCE))[-1, smollm2.token(" Paris")]
    assert share.share.sum() + share.bias == pytest.approx(float(logit), abs=SINGLE)
    assert share.sink
    assert share.share.argmax() == 0
    assert share.share[0] > 0.4 * share.logit  # the token that carries the sink, whatever it means


# ---- what these models are known to do


@pytest.mark.parametrize(
    ("prompt", "response", "content"),
    [
        (FRANCE, " Paris", (" capital", " France")),
        ("The opposite of hot is", " cold", (" opposite", " hot")),
        ("John and Mary went to the store. John gave a drink to", " Mary", (" Mary",)),
    ],
)
def test_a_contrast_ranks_the_words_that_the_answer_is_about(
    smollm2: Loaded, prompt: str, response: str, content: tuple[str, ...]
) -> None:
    """The opening of the saliency explorer; the probability of the first two facts needs every token."""
    found = prompt_saliency(smollm2.model, prompt, response, **ATTRIBUTED)
    assert not found.saturated.any()
    order = [found.prompt_tokens[i] for i in np.argsort(-found.importance[:, 0])]
    assert set(order[: len(content)]) == set(content)
    assert prompt_saliency(smollm2.model, prompt, response).saturated.all() == (len(content) > 1)


def test_the_first_token_carries_the_sink_where_no_bos_does(smollm2: Loaded, gemma: Loaded) -> None:
    found = prompt_saliency(smollm2.model, FRANCE, " Paris", first_token="baseline")
    np.testing.assert_allclose(found.importance[:, 0], [0.74, 0.77, 0.76, 0.77, 0.77], atol=0.02)
    assert found.saturated.all()
    assert found.sink
    assert not prompt_saliency(gemma.model, FRANCE, " Paris").sink  # its BOS does
    stream = residual_streams(smollm2.model, smollm2.model.tokens(FRANCE)).abs()
    assert int(stream[13, 0].argmax()) == 507
    assert float(stream[13:29, 0, 507].max()) == pytest.approx(24_900, rel=0.15)
    assert float(stream[-1, 0, 507]) < 24_900 / 5  # gone at the output
    traced = causal_trace(smollm2.model, "The Eiffel Tower is in the city of", "The Eiffel", kinds="state", samples=1)
    assert traced.sink


def test_head_scores_find_the_known_heads(smollm2: Loaded) -> None:
    found = head_scores(smollm2.model)
    for score, expected in (
        ("induction", {(18, 6): 0.88, (17, 3): 0.74, (17, 4): 0.71, (18, 7): 0.56, (23, 2): 0.52}),
        ("previous_token", {(16, 0): 0.88, (11, 1): 0.87, (1, 2): 0.74, (2, 1): 0.74}),
    ):
        values, control = getattr(found, score), found.control(score)  # type: ignore[arg-type]
        for head, value in expected.items():
            assert values[head] == pytest.approx(value, abs=0.1), (score, head)
            assert control[head] < 0.2, (score, head)
        first = list(expected)[: 5 if score == "induction" else 2]
        assert found.top(score, len(first)) == tuple(first)  # type: ignore[arg-type]
    assert (found.control("induction") < 0.15).all()  # without repetition nothing is found


def test_without_the_induction_heads_a_repetition_is_not_expected(smollm2: Loaded) -> None:
    best = [Ablation("head", layer, index=head) for layer, head in head_scores(smollm2.model).top("induction", 5)]
    others = [Ablation("head", cut.layer, index=(cut.index + 5) % 9) for cut in best]
    ids = torch.randint(1000, 40_000, (4, 40), generator=torch.Generator().manual_seed(0)).repeat(1, 2)

    def loss() -> float:
        logits = smollm2.model.run(ids).logits[:, 39:-1]
        return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 40:].flatten()))

    whole = loss()
    with ablation(smollm2.model, best):
        without = loss()
    with ablation(smollm2.model, others):
        control = loss()
    assert without > whole + 5
    assert control < whole + 2


def test_the_same_heads_and_sink_in_gemma(gemma: Loaded) -> None:
    found = head_scores(gemma.model, sequences=3)
    for score, expected in (
        ("induction", {(5, 1): 0.86, (11, 2): 0.62, (5, 2): 0.53}),
        ("previous_token", {(2, 3): 0.68, (4, 1): 0.59}),
    ):
        for head, value in expected.items():
            assert getattr(found, score)[head] == pytest.approx(value, abs=0.1), (score, head)
        assert found.top(score, 2) == tuple(expected)[:2]  # type: ignore[arg-type]
    assert (found.control("induction") < 0.15).all()
    massive = massive_activations(gemma.model, FRANCE, others=1)
    assert (massive.position == 0).all()  # the BOS
    assert (massive.dimension[4:] == 163).all()
    assert massive.value[14] == pytest.approx(99_500, rel=0.15)


def test_gemma_moves_the_capital_in_one_layer(gemma: Loaded) -> None:
    sites: tuple[Any, ...] = ("resid_pre", "attn", "mlp", "head")
    found = activation_patching(
        gemma.model, FRANCE, ITALY, " Paris", foil=" Rome", sites=sites, layers=[3, 12, 13], positions=[COUNTRY, LAST]
    )
    stream = found.recovered["resid_pre"]
    assert stream[:, 0] == pytest.approx([1.0, 1.17, -0.03], abs=0.1)  # read at the country up to layer 12
    assert stream[:, 1] == pytest.approx([0.0, -0.07, 1.0], abs=0.1)  # at the last token from layer 13 on
    assert found.recovered["attn"][1, 1] == pytest.approx(1.14, abs=0.15)
    assert found.recovered["mlp"][0, 0] == pytest.approx(0.92, abs=0.15)
    assert found.recovered["head"][1, 2, 1] == pytest.approx(0.86, abs=0.1)
    ends = [gemma.logits(input_ids=gemma.ids(text))[-1] for text in (FRANCE, ITALY)]
    for own, logits in zip((found.clean, found.corrupted), ends, strict=True):
        assert own[0] == pytest.approx(float(logits[gemma.token(" Paris")] - logits[gemma.token(" Rome")]), abs=0.02)


LANDMARK = (
    "The Eiffel Tower is a wrought-iron lattice tower on the Champ de Mars in Paris, France. It is named after the "
    "engineer Gustave Eiffel, whose company designed and built the tower from 1887 to 1889."
)


def test_patterns_are_those_of_transformers(either: Loaded) -> None:
    found, ids = attention_patterns(either.model, FRANCE, layers=[0, 7, -1]), either.ids(FRANCE)
    either.theirs.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            theirs = either.theirs(ids, use_cache=False, output_attentions=True).attentions
    finally:
        either.theirs.set_attn_implementation("sdpa")
    for row, layer in enumerate(found.layers):
        np.testing.assert_allclose(found.patterns[row], theirs[layer][0], atol=1e-4)
    assert found.value_norm is not None


def test_the_sink_and_the_massive_activation_that_holds_it(smollm2: Loaded, gemma: Loaded) -> None:
    shares = attention_patterns(smollm2.model, LANDMARK).first_token
    late = shares[12:].mean(1)
    assert 0.3 < late.min() < late.max() < 0.9
    assert (shares > 0.3).mean() > 0.54
    found = massive_activations(smollm2.model, LANDMARK)
    assert (found.dimension[12:29] == 507).all()
    assert (found.position[12:29] == 0).all()
    assert (found.value[12:28] > 20_000).all()
    assert found.massive[12:28].all()
    assert not found.massive[:12].any()
    assert not found.massive[-1]
    assert found.layer == 12
    assert found.replaced("zero") > found.loss + 5
    assert found.replaced("mean") == pytest.approx(found.loss, abs=0.1)
    assert found.replaced("other") == pytest.approx(found.loss, abs=0.02)  # the control
    ids = smollm2.ids(LANDMARK)
    for loss, change in ((found.loss, lambda rows: rows), (found.loss_zero, put(0, torch.zeros(576), slice(507, 508)))):
        with hooked(smollm2.theirs.model.layers[12], change, before=True):
            logits = smollm2.logits(input_ids=ids)
        assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:])), abs=0.01)
    with_bos = attention_patterns(gemma.model, LANDMARK).first_token
    without = attention_patterns(gemma.model, LANDMARK, prepend_bos=False).first_token
    assert (with_bos > 0.3).mean() > 0.6
    assert (without > 0.3).mean() < 0.15


def test_direct_logit_attribution_adds_up(either: Loaded) -> None:
    found = direct_logit_attribution(either.model, [FRANCE, ITALY], [" Paris", " Rome"], foil=[" Rome", " Paris"])
    paris, rome = either.token(" Paris"), either.token(" Rome")
    for number, (prompt, best, other) in enumerate(((FRANCE, paris, rome), (ITALY, rome, paris))):
        logits = either.logits(input_ids=either.ids(prompt))[-1]
        assert found.total_by_prompt[number] == pytest.approx(float(logits[best] - logits[other]), abs=SINGLE * 5)
    assert found.error.max() < 1e-4
    if either.model.n_layers == 30:  # SmolLM2: the head that brings the capital
        assert np.unravel_index(int(found.heads.argmax()), found.heads.shape) == (23, 4)


def test_the_heads_that_write_the_name_of_who_receives_are_beyond_chance(smollm2: Loaded) -> None:
    names = [(" Mary", " John"), (" Tom", " Anna"), (" Paul", " Alice"), (" James", " Sarah")]
    prompts = [f"When{one} and{other} went to the store,{other} gave a drink to" for one, other in names]
    answers, foils = zip(*names, strict=True)
    found = direct_logit_attribution(smollm2.model, prompts, answers, foil=foils)
    for prompt, total, pair in zip(prompts, found.total_by_prompt, names, strict=True):
        right, wrong = smollm2.logits(input_ids=smollm2.ids(prompt))[-1][[smollm2.token(name) for name in pair]]
        assert total == pytest.approx(float(right - wrong), abs=SINGLE * 5)
    assert found.total_by_prompt.min() > 2
    p = np.asarray(found.heads_p)
    assert max(p[23, 0], p[23, 3], p[29, 1]) <= 0.05
    assert found.heads[23, 3] == pytest.approx(3.66, rel=0.15)
    assert (p <= 0.05).sum() <= 12, "of 270 heads"


NAMES = ((" Mary", " John"), (" Tom", " Anna"), (" Paul", " Alice"), (" James", " Sarah"),
         (" Mark", " Emma"), (" David", " Lucy"), (" Peter", " Jane"), (" Simon", " Kate"))  # fmt: skip
SCENES = ("went to the store", "met at the station", "were in the garden", "came to the party")


def test_who_receives_in_64_prompts(smollm2: Loaded) -> None:
    """The head that contributes most looks at the second subject, not at the name that it writes."""
    pairs = [pair for one, other in NAMES for pair in ((one, other), (other, one))]
    cases = [
        (f"When{one} and{other} {scene},{other} gave a drink to", one, other)
        for scene in SCENES
        for one, other in pairs
    ]
    prompts, answers, foils = (list(part) for part in zip(*cases, strict=True))
    found = direct_logit_attribution(smollm2.model, prompts, answers, foil=foils, draws=1)
    leads = np.asarray(found.total_by_prompt)
    assert leads.mean() > 3.4
    assert (leads > 0).sum() >= 0.97 * 64
    assert found.heads[23, 3] > 2.1
    assert np.unravel_index(int(found.heads.argmax()), found.heads.shape) == (23, 3)

    looks: dict[str, list[float]] = {"subject": [], "name": []}
    for prompt, one, other in cases[::8]:
        pattern = attention_patterns(smollm2.model, prompt, layers=[23], heads=[3])
        tokens = list(pattern.tokens)
        second = len(tokens) - 1 - tokens[::-1].index(other)
        row = pattern.pattern(23, 3)[-1]
        looks["subject"].append(float(row[second]))
        looks["name"].append(float(row[tokens.index(one)]))
    assert np.mean(looks["subject"]) > 0.5
    assert np.mean(looks["name"]) < 0.17

    best = [tuple(map(int, np.unravel_index(at, found.heads.shape))) for at in np.argsort(-found.heads, axis=None)[:3]]

    def lead(heads: list[tuple[int, int]]) -> float:
        with ablation(smollm2.model, [Ablation("head", layer, index=head) for layer, head in heads]):
            logits = [smollm2.model.run(smollm2.model.tokens(prompt)).logits[0, -1] for prompt in prompts[::4]]
        both = zip(logits, answers[::4], foils[::4], strict=True)
        return float(
            np.mean([float(row[smollm2.token(right)] - row[smollm2.token(wrong)]) for row, right, wrong in both])
        )

    whole = lead([])
    assert lead(best) < 0.4 * whole
    assert lead([(layer, (head + 4) % 9) for layer, head in best]) == pytest.approx(whole, rel=0.15)  # the control


@torch.no_grad()
def test_attention_along_word_pairs_is_that_of_transformers(smollm2: Loaded) -> None:
    words = ["France", "Paris", "Italy", "Rome", "Germany", "Berlin", "Spain", "Madrid", "dog", "cat", "the"]
    words += ["capital", "of", "city", "king", "queen", "man", "woman"]
    texts = ["The capital of France is Paris.", "The capital of Italy is Rome.", "The dog and the cat of the king."]
    pairs = head_word_pairs(smollm2.model, layers=[23], words=words, top=20)
    found = weights_against_text(smollm2.model, texts, pairs, shuffles=1)
    assert len(found.attention) > 5
    smollm2.theirs.set_attn_implementation("eager")
    try:
        runs = [smollm2.theirs(smollm2.ids(text), use_cache=False, output_attentions=True) for text in texts]
    finally:
        smollm2.theirs.set_attn_implementation("sdpa")
    patterns = [run.attentions[23][0] for run in runs]
    wanted = [
        float(patterns[text][head, query, key])
        for (_, head), (text, query, key) in zip(found.cells.tolist(), found.places.tolist(), strict=True)
    ]
    np.testing.assert_allclose(found.attention, wanted, atol=SINGLE)


def test_the_reasons_of_an_attention_score_add_up(smollm2: Loaded) -> None:
    """Head 23.4, which brings the capital, reads the country."""
    found = attention_reasons(smollm2.model, FRANCE, 23, 4, LAST, COUNTRY)
    assert found.attention > 0.8
    assert found.error < 1e-4
    other = attention_reasons(smollm2.model, FRANCE, 23, 4, LAST, COUNTRY - 1)
    ratio = np.log(found.attention / other.attention)
    assert found.parts.sum() - other.parts.sum() == pytest.approx(ratio, abs=1e-2)


def test_head_23_4_alone_attends_to_the_country_and_is_needed(smollm2: Loaded) -> None:
    paris, rome, ids = smollm2.token(" Paris"), smollm2.token(" Rome"), smollm2.ids(FRANCE)
    texts = attention_in_texts(smollm2.model, [FRANCE, ITALY], layer=23, heads=[4])
    for event in texts.top(4):
        assert (event.query, event.key) == (LAST, COUNTRY)
        assert event.attention == pytest.approx(0.91, abs=0.1)
    measures = head_measures(smollm2.model, FRANCE, " Paris", measures="direct_attribution")
    for head, value in {(23, 4): 2.82, (29, 1): 1.82, (29, 0): -1.61}.items():
        assert measures.of("direct_attribution")[head] == pytest.approx(value, rel=0.15)
    null = ablation_null(smollm2.model, FRANCE, [(23, 4)], " Paris", metric="logit_difference", foil=" Rome")
    width, layer = smollm2.model.d_head, smollm2.theirs.model.layers[23]

    def without(value: Tensor) -> Tensor:
        value = value.clone()
        value[..., 4 * width : 5 * width] = 0
        return value

    clean = smollm2.logits(input_ids=ids)[-1]
    with hooked(layer.self_attn.o_proj, without, before=True):
        after = smollm2.logits(input_ids=ids)[-1]
    wanted = (clean[paris] - clean[rome]) - (after[paris] - after[rome])
    assert null.effect == pytest.approx(float(wanted), abs=SINGLE * 5)
    assert len(null.null) == 8
    assert null.effect > 5 * null.null.max()
    assert null.p == pytest.approx(1 / 9)


def test_the_paths_of_the_capital(smollm2: Loaded) -> None:
    """From head 23.4 to the logits directly, and from the MLP of layer 0 to the values that the head reads."""
    options: dict[str, Any] = {"foil": " Rome"}
    direct = path_patching(smollm2.model, FRANCE, ITALY, [(23, 4)], ["logits"], " Paris", **options)
    paris, rome, width = smollm2.token(" Paris"), smollm2.token(" Rome"), smollm2.model.d_head
    output = smollm2.theirs.model.layers[23].self_attn.o_proj
    both = [smollm2.ids(FRANCE), smollm2.ids(ITALY)]
    heads = [seen_at(smollm2, output, ids, before=True)[LAST, 4 * width : 5 * width] for ids in both]
    with torch.no_grad():
        added = output.weight[:, 4 * width : 5 * width] @ (heads[1] - heads[0])
        rows = torch.stack(
            [smollm2.streams(ids)[-1, LAST] for ids in both] + [smollm2.streams(both[0])[-1, LAST] + added]
        )
        logits = smollm2.theirs.lm_head(smollm2.final_norm(rows))
    clean, corrupted, patched = (logits[:, paris] - logits[:, rome]).tolist()
    assert direct.effect[0] == pytest.approx((clean - patched) / (clean - corrupted), abs=SINGLE)
    assert direct.effect[0] == pytest.approx(0.34, abs=0.05)
    receivers = ["head_v 23.1", "head_q 23.4", "head_k 23.1"]
    early = path_patching(smollm2.model, FRANCE, ITALY, ["mlp 0"], receivers, " Paris", separate=True, **options)
    assert early.paths is not None
    assert early.paths[0] == pytest.approx([0.32, 0.0, -0.01], abs=0.05)  # what it moves, not where it looks
    kept = circuit_faithfulness(smollm2.model, FRANCE, ITALY, ["head 23.4", "mlp 0"], " Paris", draws=9, **options)
    assert kept.faithfulness == pytest.approx(0.20, abs=0.05)
    assert abs(kept.without) < 0.05
    assert kept.p == pytest.approx(0.1)


def test_one_attention_output_and_one_head_bring_the_capital(smollm2: Loaded) -> None:
    options: dict[str, Any] = {
        "replacement": "resample", "corrupted": ITALY, "metric": "logit_difference", "foil": " Rome",
    }  # fmt: skip
    found = ablate_modules(smollm2.model, FRANCE, " Paris", kinds=("attn", "mlp"), **options)
    corrupted = smollm2.logits(input_ids=smollm2.ids(ITALY))[-1]
    total = found.clean - float(corrupted[smollm2.token(" Paris")] - corrupted[smollm2.token(" Rome")])
    attention, mlp = found.of("attn") / total, found.of("mlp") / total
    assert np.unravel_index(attention.argmax(), attention.shape) == (23, LAST)
    assert attention[23, LAST] == pytest.approx(1.0, abs=0.15)
    assert mlp[0, COUNTRY] == pytest.approx(1.0, abs=0.15)
    heads = ablate_heads(smollm2.model, FRANCE, " Paris", position=-1, **options)
    assert heads.strongest(1) == ((23, 4),)
    assert heads.effect[23, 4] / total == pytest.approx(0.93, abs=0.15)


def test_a_gradient_finds_the_same_cells(smollm2: Loaded) -> None:
    sites: tuple[Any, ...] = ("attn", "mlp", "head")
    found = activation_patching(
        smollm2.model, FRANCE, ITALY, " Paris", foil=" Rome", sites=sites, method="attribution", sample=30
    )
    assert min(found.correlation(site) for site in sites) > 0.9
    at = np.unravel_index(int(np.argmax(found.estimated["head"])), found.estimated["head"].shape)
    assert tuple(map(int, at)) == (23, 4, LAST)
    assert int(np.argmax(found.estimated["attn"][:, LAST])) == 23


def test_a_circuit_of_the_capital(smollm2: Loaded) -> None:
    found = greedy_circuit(smollm2.model, FRANCE, ITALY, " Paris", foil=" Rome", most=3)
    assert found.parts[:2] == ("head 23.4", "mlp 0")  # what moves the country, and what reads it
    assert found.faithfulness[3] > 0.25 > 10 * found.band[1, 3]  # three of 300 parts
    assert abs(found.without[1]) < 0.1  # nothing is left without the one head


def test_patching_follows_the_capital_through_the_layers(smollm2: Loaded) -> None:
    options: dict[str, Any] = {"foil": " Rome"}
    found = activation_patching(smollm2.model, FRANCE, ITALY, " Paris", **options)
    stream = found.recovered["resid_pre"]
    assert stream[:24, COUNTRY] == pytest.approx(1.0, abs=0.1)  # read at the country up to layer 23
    assert stream[:24, LAST] == pytest.approx(0.0, abs=0.1)
    assert stream[24:, LAST] == pytest.approx(1.0, abs=0.1)  # written to the last token by it
    assert stream[24:, COUNTRY] == pytest.approx(0.0, abs=0.1)
    assert found.strongest("attn") == ((23, LAST),)
    assert found.recovered["attn"][23, LAST] == pytest.approx(1.0, abs=0.1)
    assert found.recovered["mlp"][0, COUNTRY] == pytest.approx(1.0, abs=0.1)
    sites = ("head", "head_v")
    heads = activation_patching(smollm2.model, FRANCE, ITALY, " Paris", sites=sites, layers=[23, 29], **options)
    assert heads.strongest("head") == ((23, 4, LAST),)
    for (row, head), wanted in {(0, 4): 0.93, (0, 5): 0.15, (1, 1): 0.33, (0, 3): -0.23}.items():
        assert heads.recovered["head"][row, head, LAST] == pytest.approx(wanted, abs=0.1)
    assert heads.strongest("head_v") == ((23, 1, COUNTRY),)  # the key/value head of head 4, read at the country
    assert smollm2.model.n_kv_heads == heads.recovered["head_v"].shape[1]
    ends = [smollm2.logits(input_ids=smollm2.ids(text))[-1].double() for text in (FRANCE, ITALY)]
    pair = [smollm2.token(" Paris"), smollm2.token(" Rome")]
    for own, logits in zip((found.clean, found.corrupted), ends, strict=True):
        assert own[0] == pytest.approx(float(logits[pair[0]] - logits[pair[1]]), abs=SINGLE)


@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_a_later_year_follows(name: str, request: pytest.FixtureRequest) -> None:
    """Greater-than: the tens digit after *The war lasted from the year 1732 to the year 17* is hardly ever lower."""
    model = request.getfixturevalue(name).model
    digits = [model.tokens(f"17{digit}", prepend_bos=False)[-1] for digit in range(10)]
    gaps = []
    for year in (23, 41, 58, 76):
        logits = model.run(model.tokens(f"The war lasted from the year 17{year} to the year 17")).logits[0, -1]
        chance = logits.softmax(-1)[digits]
        gaps.append(float(chance[year // 10 :].sum() - chance[: year // 10].sum()))
    assert np.mean(gaps) == pytest.approx(0.98, abs=0.1)


def test_the_profile_tells_the_two_models_apart(smollm2: Loaded, gemma: Loaded) -> None:
    found = smollm2.model.profile
    assert (found.sink, found.sink_dimensions, found.sink_layers) == ("first token", (507,), tuple(range(12, 30)))
    assert 20_000 < abs(found.sink_sizes[0]) < 27_000
    assert found.stream_norm(15) == pytest.approx(158, rel=0.15)
    assert found.logits_move_together
    assert found.chat_template
    assert not found.adds_bos
    assert {" the", " Paris", " music"} <= set(found.words)
    other = gemma.model.profile
    assert (other.sink, other.first_is_sink, other.adds_bos) == ("BOS", False, True)
