"""Every function of the package on one model, held against the naive loops."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from interp_widgets import (
    Ablation,
    ConceptSet,
    LayerEdit,
    ModelEdit,
    StreamEdit,
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
    edge_attribution,
    erase,
    ffn_concepts,
    greedy_circuit,
    head_measures,
    head_scores,
    head_word_pairs,
    head_writes,
    last_states,
    logit_lens,
    massive_activations,
    neuron_effects,
    neuron_tokens,
    patched_prediction,
    path_patching,
    prompt_saliency,
    read_prompt_concepts,
    response_probabilities,
    steer,
    text_activations,
    weights_against_text,
)
from interp_widgets.analysis.continuations import Continuation, score_continuations
from tests.architectures.models import LAYERS, VOCABULARY, WIDTH, dtype_of, random_model
from tests.architectures.naive import Naive, names_of, noise

TOLERANCE = {torch.float64: 1e-4, torch.float32: 3e-4}
"""Largest difference, of the size of what is compared. transformers rounds norms, rotary tables and softmax to float32
also in a float64 model: what is right was off by up to 1e-5, what is wrong by 2e-3 and more."""

_GENERATOR = torch.Generator().manual_seed(11)
LONG: list[int] = torch.randint(2, VOCABULARY, (72,), generator=_GENERATOR).tolist()
MIDDLE, SHORT = LONG[:64], LONG[:52]
TEXTS = [MIDDLE, SHORT]
"""Prompts beyond every boundary that a configuration has, and within it by fewer tokens than are then written."""
PROMPT, RESPONSE = LONG[:66], LONG[66:69]
ERASED = [*range(0, 66, 4), 65]
"""Tokens of the prompt whose importance is compared."""
FEW, MANY = LONG[:6], LONG[6:66]
COLUMNS = [0, 30, 59]
"""Tokens of the long response that are compared."""
TARGET = 7

CELLS = [0, 30, len(MIDDLE) - 1]
"""Positions of the maps that are compared: out of the last token's window, in it, and the last one."""

WORDS = ["a", *(f"word{i}" for i in range(1, VOCABULARY))]
VECTORS: NDArray[np.float64] = np.random.default_rng(5).standard_normal((VOCABULARY, 6))
DIRECTION: Tensor = torch.randn(WIDTH, generator=_GENERATOR, dtype=torch.float64)


class Wrong(AssertionError):
    """The package gives other numbers than the naive loops, or an error that is no refusal."""


@functools.cache
def tokenizer() -> Any:
    """One word per id: analyses of word lists need a tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core)


@functools.cache
def reference(architecture: str) -> Naive:
    """The architecture's random model for the naive loops; in float64 where transformers can."""
    model = random_model(architecture)
    if dtype_of(architecture) != torch.float64 and architecture != "xglm":
        model.set_experts_implementation("eager")
        model = model.double()
    return Naive(model, names_of(architecture))


@dataclass(frozen=True)
class Comparison:
    """What the package gives beside what the naive loops give."""

    what: str
    own: Any
    naive: Any
    size: float | None = None
    """What a difference is measured by: the largest naive number, or for differences of larger numbers those."""

    def error(self) -> float:
        """The largest difference, of the size; `Wrong` for other tokens and for tables of other shapes."""
        if isinstance(self.naive, list):  # of token ids
            if list(self.own) != self.naive:
                raise Wrong(f"{self.what}: {self.own} instead of {self.naive}")
            return 0.0
        own, naive = _table(self.own), _table(self.naive)
        if own.shape != naive.shape:
            raise Wrong(f"{self.what}: shape {tuple(own.shape)} instead of {tuple(naive.shape)}")
        size = float(naive.abs().max()) if self.size is None else self.size
        difference = (own - naive).abs()
        return float("inf") if not bool(difference.isfinite().all()) else float(difference.max()) / max(size, 1e-30)


def _table(values: Any) -> Tensor:
    return values.detach().double() if isinstance(values, Tensor) else torch.as_tensor(np.array(values)).double()


@dataclass(frozen=True)
class Function:
    """One function of the package and what it must agree with."""

    name: str
    run: Callable[[Any], Any]
    """Called with a `Model`."""
    compare: Callable[[Naive, Any], Iterator[Comparison]]
    """Called with the naive loops and what ``run`` gave."""
    needs: tuple[str, ...]
    """The `Names` without which the package must refuse."""
    due: Callable[[Naive], bool]
    """Where it must not refuse."""


FUNCTIONS: dict[str, Function] = {}
"""By the names of the columns."""


def _function(
    name: str, run: Callable[[Any], Any], *needs: str, due: Callable[[Naive], bool] = lambda naive: False
) -> Callable[..., Any]:
    def register(compare: Callable[[Naive, Any], Iterator[Comparison]]) -> Callable[..., Any]:
        FUNCTIONS[name] = Function(name, run, compare, needs, due)
        return compare

    return register


def _once(function: Callable[[Naive], Any]) -> Callable[[Naive], Any]:
    """A naive quantity, computed once for both backends."""
    return functools.cache(function)


def _size(naive: Naive) -> float:
    """The largest logit: effects are differences of logits and rounded like them."""
    return float(_plain(naive).abs().max())


# ---- passes


@_once
def _plain(naive: Naive) -> Tensor:
    return naive.logits(LONG)


@_function("logits", lambda model: model.run(LONG).logits[0], due=lambda naive: True)
def _logits(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield Comparison("logits", own, _plain(naive))


@_function("from embeddings", lambda model: model.forward(model.token_embeddings(LONG)[None])[0])
def _from_embeddings(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield Comparison("logits", own, _plain(naive))


@_once
def _written(naive: Naive) -> tuple[list[int], list[int]]:
    return naive.generate(SHORT, 10), naive.generate(LONG, 4)


@_function(
    "generate",
    lambda model: (model.generate_ids(SHORT, max_new_tokens=10), model.generate_ids(LONG, max_new_tokens=4)),
    due=lambda naive: True,
)
def _generate(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield Comparison("tokens across the boundary", own[0], _written(naive)[0])
    yield Comparison("tokens behind it", own[1], _written(naive)[1])


# ---- attribution


@_once
def _occluded(naive: Naive) -> Tensor:
    return naive.exact(PROMPT, RESPONSE, ERASED)


@_function("exact", lambda model: prompt_saliency(model, PROMPT, RESPONSE).importance)
def _exact(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield Comparison("importance", own[ERASED], _occluded(naive))


@_once
def _gradients(naive: Naive) -> tuple[tuple[Tensor, float], tuple[Tensor, float]]:
    return naive.first_order(PROMPT, RESPONSE), naive.first_order(FEW, MANY, COLUMNS)


@_function(
    "first order",
    lambda model: [
        prompt_saliency(model, prompt, response, method="first_order").importance
        for prompt, response in ((PROMPT, RESPONSE), (FEW, MANY))  # reverse and forward mode
    ],
)
def _first_order(naive: Naive, own: Any) -> Iterator[Comparison]:
    (wanted, size), (other, other_size) = _gradients(naive)
    yield Comparison("long prompt", own[0], wanted, _least(wanted, size))
    yield Comparison("long response", own[1][:, COLUMNS], other, _least(other, other_size))


def _least(naive: Tensor, size: float) -> float:
    """The largest number, or the part of the sizes behind it where sums cancel."""
    return max(float(naive.abs().max()), 0.1 * size)


@_once
def _lens_rows(naive: Naive) -> Tensor:
    return naive.lens(MIDDLE).log_softmax(-1)


@_function("logit lens", lambda model: logit_lens(model, MIDDLE, target=TARGET, top=3))
def _lens(naive: Naive, own: Any) -> Iterator[Comparison]:
    rows = _lens_rows(naive)
    yield Comparison("top probabilities", own.top_probability, rows.exp().topk(3, -1).values, 1.0)
    yield Comparison("target's probability", own.target_probability, rows[..., TARGET].exp(), 1.0)
    yield Comparison("entropy", own.entropy, -(rows.exp() * rows).sum(-1))


@_function("response probabilities", lambda model: response_probabilities(model, PROMPT, RESPONSE, top=3))
def _response(naive: Naive, own: Any) -> Iterator[Comparison]:
    rows = naive.logits([*PROMPT, *RESPONSE[:-1]])[len(PROMPT) - 1 :].softmax(-1)
    ids = torch.tensor(RESPONSE)
    yield Comparison("probabilities", own.probability, rows[torch.arange(len(ids)), ids], 1.0)
    yield Comparison("top probabilities", own.top_probability, rows.topk(3, -1).values, 1.0)


CONTINUATIONS = [(LONG[:66], LONG[66:69]), (LONG[:20], LONG[20:28]), (LONG[:40], FEW[1:4]), (FEW[:1], FEW[1:2])]
"""Contexts and what is scored behind them: three begin alike and share a row, of different lengths and a batch."""


def _scored(model: Any) -> list[Any]:
    wanted = [Continuation(tuple(context), tuple(own)) for context, own in CONTINUATIONS]
    return [one.log_probability for one in score_continuations(model, wanted)]


@_function("scored texts", _scored)
def _scores(naive: Naive, own: Any) -> Iterator[Comparison]:
    for (context, ids), found in zip(CONTINUATIONS, own, strict=True):
        rows = naive.logits([*context, *ids[:-1]])[len(context) - 1 :].log_softmax(-1)
        yield Comparison(f"{len(ids)} tokens", found, rows[torch.arange(len(ids)), torch.tensor(ids)])


# ---- residual stream


@_once
def _streams(naive: Naive) -> Tensor:
    return naive.streams(LONG)


@_function("states", lambda model: last_states(model, [LONG, MIDDLE, SHORT], list(range(LAYERS + 1))))
def _states(naive: Naive, own: Any) -> Iterator[Comparison]:
    ends = [_streams(naive)[:, -1], *(naive.streams(prompt)[:, -1] for prompt in (MIDDLE, SHORT))]
    for layer in range(LAYERS + 1):
        wanted = torch.stack([end[layer] for end in ends])
        yield Comparison(f"stream entering layer {layer}", own[:, layer], wanted)


CONCEPTS = ConceptSet(
    names=["one", "other"], directions=torch.stack([DIRECTION, DIRECTION.flip(0)]).numpy(), layer=1, groups=["", ""],
    center=np.linspace(-1, 1, WIDTH), gap=np.ones(2), auc=np.ones(2), group_auc=np.ones(2), shuffled_auc=np.ones(2),
    method="mean_difference",
)  # fmt: skip


@_function("concepts read", lambda model: read_prompt_concepts(model, CONCEPTS, LONG).projection)
def _concepts_read(naive: Naive, own: Any) -> Iterator[Comparison]:
    states = _streams(naive)[1].double() - torch.tensor(CONCEPTS.center)
    yield Comparison("projections", own, states @ torch.tensor(CONCEPTS.directions).T)


STRENGTH = 4.0


def _steered(model: Any) -> tuple[Tensor, list[int]]:
    with steer(model, DIRECTION, layer=[1, LAYERS], strength=STRENGTH):
        return model.run(LONG).logits[0], model.generate_ids(SHORT, max_new_tokens=6)


@_once
def _pushed(naive: Naive) -> tuple[Tensor, list[int]]:
    vector = STRENGTH * DIRECTION / DIRECTION.norm()
    hooks = [hook for layer in (1, LAYERS) for hook in naive.adding(layer, vector.to(naive.hf.dtype))]
    return naive.logits(LONG, hooks), naive.generate(SHORT, 6, hooks)


@_function("steer", _steered)
def _steer(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield Comparison("logits", own[0], _pushed(naive)[0])
    yield Comparison("tokens", own[1], _pushed(naive)[1])


def _analysed_steered(model: Any) -> tuple[Any, Any]:
    with steer(model, DIRECTION, layer=1, strength=STRENGTH):
        return prompt_saliency(model, PROMPT, RESPONSE).importance, last_states(model, [LONG, SHORT], LAYERS)


@_once
def _pushed_and_read(naive: Naive) -> tuple[Tensor, Tensor]:
    hooks = naive.adding(1, (STRENGTH * DIRECTION / DIRECTION.norm()).to(naive.hf.dtype))
    ends = [naive.values(ids, [(naive.layers[-1], False)], hooks)[0][-1] for ids in (LONG, SHORT)]
    return naive.exact(PROMPT, RESPONSE, ERASED, hooks), torch.stack(ends)


@_function("under steering", _analysed_steered)
def _under_steering(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield Comparison("importance", own[0][ERASED], _pushed_and_read(naive)[0])
    yield Comparison("last states", own[1][:, 0], _pushed_and_read(naive)[1])


def _erased(model: Any) -> tuple[Tensor, list[int]]:
    with erase(model, DIRECTION, layer=[1, LAYERS]):
        return model.run(LONG).logits[0], model.generate_ids(SHORT, max_new_tokens=3)


@_once
def _projected_out(naive: Naive) -> tuple[Tensor, list[int]]:
    unit = DIRECTION / DIRECTION.norm()

    def change(value: Tensor) -> Tensor:
        wide = value.double()
        return (wide - (wide @ unit)[..., None] * unit).to(value.dtype)

    hooks = [hook for layer in (1, LAYERS) for hook in naive.changing(layer, change)]
    return naive.logits(LONG, hooks), naive.generate(SHORT, 3, hooks)


@_function("erase", _erased)
def _erase(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield Comparison("logits", own[0], _projected_out(naive)[0])
    yield Comparison("tokens", own[1], _projected_out(naive)[1])


# ---- edits

_EDITED = StreamEdit(
    *(torch.randn(shape, generator=_GENERATOR) / WIDTH**0.5 for shape in ((WIDTH, 2), (2, WIDTH), (WIDTH,), (WIDTH,)))
)


def _edited_passes(model: Any, edit: ModelEdit) -> tuple[Tensor, list[int]]:
    with edit.applied(model):
        return model.run(LONG).logits[0], model.generate_ids(SHORT, max_new_tokens=6)


@_once
def _with_edited_stream(naive: Naive) -> tuple[Tensor, list[int]]:
    def change(value: Tensor) -> Tensor:
        x, (read, write, centre, added) = value.double(), (part.double() for part in vars(_EDITED).values())
        return (x - (x - centre) @ read @ write + added).to(value.dtype)

    hooks = [hook for layer in (1, LAYERS) for hook in naive.changing(layer, change)]
    return naive.logits(LONG, hooks), naive.generate(SHORT, 6, hooks)


@_function(
    "edited stream",
    lambda model: _edited_passes(model, ModelEdit.of(model, "x", streams={1: _EDITED, LAYERS: _EDITED})),
)
def _edited_stream(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield Comparison("logits", own[0], _with_edited_stream(naive)[0])
    yield Comparison("tokens", own[1], _with_edited_stream(naive)[1])


def _twice(model: Any) -> tuple[Tensor, list[int]]:
    before = model.weight("W_out", 1)[NEURONS].detach().float().clone()
    layer = LayerEdit(torch.tensor(NEURONS), before, 2 * before, _EDITED.added)
    return _edited_passes(model, ModelEdit.of(model, "twice", layers={1: layer}))


@_once
def _with_edited_neurons(naive: Naive) -> tuple[Tensor, list[int]]:
    hooks = naive.rewriting(1, NEURONS, _EDITED.added.to(naive.hf.dtype))
    return naive.logits(LONG, hooks), naive.generate(SHORT, 6, hooks)


@_function("edited neurons", _twice, "neurons")
def _edited_neurons(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield Comparison("logits", own[0], _with_edited_neurons(naive)[0])
    yield Comparison("tokens", own[1], _with_edited_neurons(naive)[1])


# ---- ablation


def _effect(naive: Naive, hooks: Any) -> Tensor:
    return _before(naive)[TARGET] - naive.logits(MIDDLE, hooks)[-1, TARGET]


@_once
def _before(naive: Naive) -> Tensor:
    return naive.logits(MIDDLE)[-1]


@_once
def _module_map(naive: Naive) -> Tensor:
    return torch.stack([
        torch.stack([
            torch.stack([_effect(naive, naive.without(kind, layer, [at])) for at in CELLS]) for layer in range(LAYERS)
        ]) for kind in ("attn", "mlp", "both")
    ])  # fmt: skip


@_function(
    "modules",
    lambda model: ablate_modules(
        model, MIDDLE, TARGET, kinds=("attn", "mlp", "both"), positions=CELLS, metric="logit"
    ).effect,
    "attention", "mlp",
)  # fmt: skip
def _modules(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield Comparison("effect", own, _module_map(naive), _size(naive))


@_once
def _between_map(naive: Naive) -> Tensor:
    return torch.stack([
        torch.stack([_effect(naive, naive.without("attn_to_mlp", layer, [at])) for at in CELLS])
        for layer in range(LAYERS)
    ])  # fmt: skip


@_function(
    "attention to MLP",
    lambda model: ablate_modules(
        model, MIDDLE, TARGET, kinds=("attn_to_mlp",), positions=CELLS, metric="logit"
    ).effect[0],
    "attention", "mlp", "pre_norm", due=lambda naive: naive.parallel,
)  # fmt: skip
def _between(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield Comparison("effect", own, _between_map(naive), _size(naive))


@_once
def _without_heads(naive: Naive) -> Tensor:
    """(layers, heads, vocabulary) the last logits without one head."""
    return torch.stack([
        torch.stack([naive.logits(MIDDLE, naive.without_head(layer, head))[-1] for head in range(naive.n_heads)])
        for layer in range(LAYERS)
    ])  # fmt: skip


@_function("heads", lambda model: ablate_heads(model, MIDDLE, TARGET, metric="logit").effect, "attention")
def _heads(naive: Naive, own: Any) -> Iterator[Comparison]:
    wanted = _before(naive)[TARGET] - _without_heads(naive)[..., TARGET]
    yield Comparison("effect", own, wanted, _size(naive))


REMOVED = [(0, 1), (1, 2)]


@_function(
    "ablation null", lambda model: ablation_null(model, [MIDDLE], REMOVED, TARGET, metric="logit", draws=2), "attention"
)
def _null(naive: Naive, own: Any) -> Iterator[Comparison]:
    def effect(heads: Iterable[Sequence[int]]) -> Tensor:
        return _effect(naive, [hook for layer, head in heads for hook in naive.without_head(layer, head)])

    drawn = [[tuple(map(int, part.removeprefix("head ").split("."))) for part in parts] for parts in own.drawn]
    yield Comparison("named heads", [own.effect], effect(REMOVED)[None], _size(naive))
    yield Comparison("drawn heads", own.null, torch.stack([effect(heads) for heads in drawn]), _size(naive))


NEURONS = [0, 3, 17]


@_once
def _neuron_map(naive: Naive) -> Tensor:
    last = [len(MIDDLE) - 1]
    return torch.stack([_effect(naive, naive.without_neuron(1, neuron, last)) for neuron in NEURONS])


@_function(
    "neurons",
    lambda model: ablate_neurons(model, MIDDLE, TARGET, layer=1, neurons=NEURONS, metric="logit").effect,
    "neurons",
)
def _neurons(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield Comparison("effect", own, _neuron_map(naive), _size(naive))


PLACES = (3, 5)


def _ablated(model: Any) -> tuple[Tensor, list[int]]:
    parts = [Ablation("mlp", 0, position=PLACES), Ablation("attn_to_mlp", 1), Ablation("head", 1, index=2)]
    with ablation(model, parts):
        return model.run(LONG).logits[0], model.generate_ids(SHORT, max_new_tokens=6)


@_once
def _taken_out(naive: Naive) -> tuple[Tensor, list[int]]:
    hooks = [
        *naive.without("mlp", 0, PLACES),
        *naive.without_head(1, 2),
        *naive.without("attn_to_mlp", 1),
    ]
    return naive.logits(LONG, hooks), naive.generate(SHORT, 6, hooks)


@_function("ablation", _ablated, "attention", "mlp", "pre_norm")
def _context(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield Comparison("logits", own[0], _taken_out(naive)[0])
    yield Comparison("tokens", own[1], _taken_out(naive)[1])


SUBJECT, SAMPLES = (57, 59), 2
TRACED = [57, 58, 60, len(MIDDLE) - 1]


@_once
def _traced(naive: Naive) -> tuple[Tensor, Tensor, Tensor]:
    """The target's probability: corrupted (samples,), with a clean embedding (subject, samples), with a clean value
    (kinds, layers, positions, samples)."""
    rows, kinds = naive.embeddings(MIDDLE), ("state", "mlp", "attn")
    table = naive.embeddings(range(VOCABULARY))
    spread = 3.0 * table.double().std(correction=0)
    noisy = rows.repeat(SAMPLES, 1, 1)
    noisy[:, slice(*SUBJECT)] += (spread * noise(0, SAMPLES, SUBJECT[1] - SUBJECT[0], WIDTH)).to(rows.dtype)
    clean = {kind: naive.writes(rows, kind) for kind in kinds}

    def answer(inputs: Tensor, hooks: Any = ()) -> Tensor:
        return naive.logits(inputs, hooks)[-1].softmax(-1)[TARGET]

    def with_embedding(sample: int, at: int) -> Tensor:
        mended = noisy[sample : sample + 1].clone()
        mended[0, at] = rows[0, at]
        return answer(mended)

    every = range(SAMPLES)
    corrupted = torch.stack([answer(noisy[i : i + 1]) for i in every])
    embedding = torch.stack([torch.stack([with_embedding(i, at) for i in every]) for at in range(*SUBJECT)])
    restored = torch.stack([
        torch.stack([
            torch.stack([
                torch.stack([answer(noisy[i : i + 1], naive.restoring(kind, layer, at, clean[kind][layer, at]))
                             for i in every]) for at in TRACED
            ]) for layer in range(LAYERS)
        ]) for kind in kinds
    ])  # fmt: skip
    return corrupted, embedding, restored


@_function(
    "causal trace",
    lambda model: causal_trace(model, MIDDLE, SUBJECT, TARGET, samples=SAMPLES, seed=0),
    "attention", "mlp",
)  # fmt: skip
def _trace(naive: Naive, own: Any) -> Iterator[Comparison]:
    corrupted, embedding, restored = _traced(naive)
    yield Comparison("corrupted", own.corrupted, corrupted)
    yield Comparison("embedding restored", own.embedding[slice(*SUBJECT)], embedding)
    for number, kind in enumerate(("state", "mlp", "attn")):
        yield Comparison(f"{kind} restored", own.restored[number][:, TRACED], restored[number])


OTHER = [*MIDDLE[:40], (MIDDLE[40] + 1) % VOCABULARY, *MIDDLE[41:]]
"""The corrupted prompt: one other token within every window of the last one."""
FOIL, PATCHED = 9, [40, 50, len(MIDDLE) - 1]
HEAD_PATCHED = [PATCHED[0], PATCHED[-1]]
"""Where keys and values of heads are patched, and where queries."""


@_once
def _patched(naive: Naive) -> tuple[Tensor, Tensor]:
    """The clean and the corrupted logit difference (2,), and that with one clean value put back (sites, layers,
    positions): the stream that enters a block, what attention and what the MLP writes."""

    def gap(hooks: Any = (), ids: list[int] = OTHER) -> Tensor:
        logits = naive.logits(ids, hooks)[-1]
        return logits[TARGET] - logits[FOIL]

    streams = naive.streams(MIDDLE)
    writes = {kind: naive.writes(MIDDLE, kind) for kind in ("attn", "mlp")}

    def mended(site: str, layer: int, at: int) -> Tensor:
        if site != "resid_pre":
            return gap(naive.restoring(site, layer, at, writes[site][layer, at]))

        def change(value: Tensor) -> Tensor:
            value = value.clone()
            value[..., at, :] = streams[layer, at]
            return value

        return gap(naive.changing(layer, change))

    sites = ("resid_pre", "attn", "mlp")
    table = [[[mended(site, layer, at) for at in PATCHED] for layer in range(LAYERS)] for site in sites]
    return torch.stack([gap(ids=MIDDLE), gap()]), torch.tensor(table)


@_function(
    "activation patching",
    lambda model: activation_patching(model, MIDDLE, OTHER, TARGET, foil=FOIL, positions=PATCHED),
    "attention", "mlp",
)  # fmt: skip
def _patching(naive: Naive, own: Any) -> Iterator[Comparison]:
    ends, values = _patched(naive)
    yield Comparison("clean and corrupted", [own.clean[0], own.corrupted[0]], ends, _size(naive))
    for site, wanted in zip(("resid_pre", "attn", "mlp"), values, strict=True):
        found = own.recovered[site] * (own.clean[0] - own.corrupted[0]) + own.corrupted[0]
        yield Comparison(site, found, wanted, _size(naive))


@_function(
    "patched prediction",
    lambda model: patched_prediction(model, MIDDLE, OTHER, "attn", 1, position=PATCHED[0], top=3),
    "attention",
)
def _patched_tokens(naive: Naive, own: Any) -> Iterator[Comparison]:
    clean = naive.writes(MIDDLE, "attn")[1, PATCHED[0]]
    runs = ((MIDDLE, []), (OTHER, []), (OTHER, naive.restoring("attn", 1, PATCHED[0], clean)))
    for name, (ids, hooks) in zip(("clean", "corrupted", "patched"), runs, strict=True):
        wanted = naive.logits(ids, hooks)[-1].softmax(-1)[list(own.ids)]
        yield Comparison(name, getattr(own, name), wanted, 1.0)


@_once
def _head_inputs(naive: Naive) -> list[Tensor]:
    """For queries, keys and values the logit difference with one clean value put back (layers, heads)."""
    found = []
    for site in "qkv":
        rows = []
        for layer in range(LAYERS):
            module, numbers = naive.head_numbers(layer, site)
            (clean,) = naive.values(MIDDLE, [(module, False)])
            at = HEAD_PATCHED[site == "q"]
            hooks = (
                naive.patching_head(layer, site, head, at, clean[at, numbers[head]]) for head in range(len(numbers))
            )
            rows.append(
                torch.stack([(logits := naive.logits(OTHER, each)[-1])[TARGET] - logits[FOIL] for each in hooks])
            )
        found.append(torch.stack(rows))
    return found


@_function(
    "patching of head inputs",
    lambda model: activation_patching(
        model, MIDDLE, OTHER, TARGET, foil=FOIL, positions=HEAD_PATCHED, sites=("head_q", "head_k", "head_v")
    ),
    "attention", "qkv",
)  # fmt: skip
def _patching_of_heads(naive: Naive, own: Any) -> Iterator[Comparison]:
    for site, wanted in zip("qkv", _head_inputs(naive), strict=True):
        recovered = own.recovered[f"head_{site}"][..., int(site == "q")]
        yield Comparison(
            f"head_{site}", recovered * (own.clean[0] - own.corrupted[0]) + own.corrupted[0], wanted, _size(naive)
        )


SENDER = (0, 1)


@_once
def _both_runs(naive: Naive) -> dict[str, Any]:
    """What heads and MLPs write in the corrupted run, and the change that the sender's corrupted output makes in the
    stream."""
    heads, mlps = naive.head_outputs(OTHER), naive.writes(OTHER, "mlp")
    layer, head = SENDER
    sending = naive.setting_heads(layer, {head: heads[layer][:, head]})
    alone = naive.without("mlp", layer)
    streams = [naive.values(MIDDLE, [(naive.layers[layer], False)], [*hooks, *alone])[0] for hooks in ([], sending)]
    return {"heads": heads, "mlps": mlps, "change": streams[1] - streams[0]}


def _gap(naive: Naive, hooks: Any = (), ids: list[int] = MIDDLE) -> Tensor:
    logits = naive.logits(ids, hooks)[-1]
    return logits[TARGET] - logits[FOIL]


@_once
def _paths(naive: Naive) -> Tensor:
    """The logit difference where the sender's change reaches the logits alone, and the MLP of the last layer alone."""
    change = _both_runs(naive)["change"]
    hooks = naive.adding(LAYERS, change), naive.mlp_reading(MIDDLE, LAYERS - 1, change)
    return torch.stack([_gap(naive, each) for each in hooks])


def _path_comparisons(naive: Naive, found: Any, effects: Any, wanted: Tensor) -> Iterator[Comparison]:
    """The metric in both runs, and by how much it changes with these effects."""
    ends = torch.stack([_gap(naive), _gap(naive, ids=OTHER)])
    yield Comparison("clean and corrupted", [found.clean[0], found.corrupted[0]], ends, _size(naive))
    changes = np.asarray(effects) * (found.corrupted[0] - found.clean[0])
    yield Comparison("changes", changes, wanted - ends[0], max(0.01 * _size(naive), float(ends.diff().abs())))


def _paths_from(model: Any, senders: list[Any], receivers: list[str]) -> Any:
    return path_patching(model, MIDDLE, OTHER, senders, receivers, TARGET, foil=FOIL, separate=True)


@_function("path patching", lambda model: _paths_from(model, [SENDER], ["logits", "mlp 1"]), "attention", "mlp")
def _path_patching(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield from _path_comparisons(naive, own, own.paths[0], _paths(naive))


@_once
def _edge_slopes(naive: Naive) -> Tensor:
    """The derivatives of the logit difference along the same change, as the same two read it."""
    change = _both_runs(naive)["change"]
    readers = (
        lambda factor: naive.adding(LAYERS, factor * change),
        lambda factor: naive.mlp_reading(MIDDLE, LAYERS - 1, factor * change),
    )
    return torch.stack(
        [naive.slope(MIDDLE, lambda logits: logits[-1, TARGET] - logits[-1, FOIL], each) for each in readers]
    )


@_function(
    "edge attribution",
    lambda model: edge_attribution(
        model, MIDDLE, OTHER, TARGET, foil=FOIL, senders=[SENDER], receivers=["logits", "mlp 1"], sample=0
    ),
    "attention", "mlp",
)  # fmt: skip
def _edges(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield from _path_comparisons(naive, own, own.estimated[0], _gap(naive) + _edge_slopes(naive))


@_once
def _more_paths(naive: Naive) -> Tensor:
    """The logit difference where the sender's change reaches the values of one head of the last layer alone, and where
    the MLP of layer 0 has its corrupted output, which gates of attention do not read."""
    module, numbers = naive.head_numbers(1, "v")
    runs = _both_runs(naive)
    (values,) = naive.values(MIDDLE, [(module, False)], naive.adding(1, runs["change"]))
    one = naive.patching_head(1, "v", 0, slice(None), values[:, numbers[0]])
    hooks = one, naive.setting_mlp(0, runs["mlps"][0]) + naive.keeping_gates(MIDDLE, 1)
    return torch.stack([_gap(naive, each) for each in hooks])


def _every_path(model: Any) -> Any:
    """From a head and an MLP of layer 0 to all that reads in layer 1 and to the logits."""
    sites = (("q", model.n_heads), ("k", model.n_kv_heads), ("v", model.n_kv_heads))
    heads = [f"head_{site} 1.{head}" for site, count in sites for head in range(count)]
    return _paths_from(model, [SENDER, "mlp 0"], [*heads, "mlp 1", "logits"])


@_function("paths to head inputs", _every_path, "attention", "qkv", "mlp")
def _paths_to_heads(naive: Naive, own: Any) -> Iterator[Comparison]:
    """All paths of an MLP together are its own patch."""
    alone = own.paths[0][list(own.receivers).index("head_v 1.0")]
    yield from _path_comparisons(naive, own, [alone, own.effect[1]], _more_paths(naive))


GROWN = 2


def _held(naive: Naive, kept: Collection[tuple[int, int]], layers: Iterable[int]) -> Tensor:
    """The logit difference with all parts (layer, head; -1 for the MLP) of some layers but a few at their corrupted
    values."""
    runs, hooks = _both_runs(naive), []
    for layer in layers:
        outside = [head for head in range(naive.n_heads) if (layer, head) not in kept]
        hooks += naive.setting_heads(layer, {head: runs["heads"][layer][:, head] for head in outside})
        hooks += [] if (layer, -1) in kept else naive.setting_mlp(layer, runs["mlps"][layer])
    return _gap(naive, hooks)


CIRCUIT = [(0, 1), (1, -1)]


@_once
def _kept(naive: Naive) -> tuple[list[tuple[int, int]], Tensor, Tensor]:
    """The parts of layer 1 that a greedy search adds, the logit difference at each size, and that of a circuit in the
    whole model and of everything but that."""
    every = [(layer, part) for layer in range(LAYERS) for part in (*range(naive.n_heads), -1)]
    candidates, order = [part for part in every if part[0] == 1], list[tuple[int, int]]()
    sizes = [_held(naive, order, [1])]
    sign = torch.sign(_gap(naive) - _gap(naive, ids=OTHER))
    for _ in range(GROWN):
        tried = {part: _held(naive, [*order, part], [1]) for part in candidates if part not in order}
        order.append(max(tried, key=lambda part: float(sign * tried[part])))
        sizes.append(tried[order[-1]])
    rest = [part for part in every if part not in CIRCUIT]
    both = [_held(naive, kept, range(LAYERS)) for kept in (CIRCUIT, rest)]
    return order, torch.stack(sizes), torch.stack(both)


def _circuits(model: Any) -> tuple[Any, Any]:
    options: dict[str, Any] = {"foil": FOIL, "draws": 1}
    return (
        greedy_circuit(model, MIDDLE, OTHER, TARGET, layers=[1], most=GROWN, **options),
        circuit_faithfulness(model, MIDDLE, OTHER, ["head 0.1", "mlp 1"], TARGET, **options),
    )


@_function("circuits", _circuits, "attention", "mlp")
def _circuit(naive: Naive, own: Any) -> Iterator[Comparison]:
    grown, named = own
    order, sizes, both = _kept(naive)
    yield Comparison("parts", [number + 1 for number in grown.heads], [head + 1 for _, head in order])
    yield Comparison("logit difference of the circuits", grown.each[0], sizes, _size(naive))
    shares = np.array([named.faithfulness, named.without])
    values = shares * (named.clean[0] - named.corrupted[0]) + named.corrupted[0]
    yield Comparison("a circuit and all but it", values, both, _size(naive))


# ---- token decomposition


@_function("decompose tokens", lambda model: decompose_tokens(model, MIDDLE, lens=None))
def _parts(naive: Naive, own: Any) -> Iterator[Comparison]:
    stream = _streams(naive)[:, len(MIDDLE) - 1]
    for layer in range(LAYERS + 1):
        yield Comparison(f"sum of the parts at layer {layer}", own.parts[layer].sum(0) + own.bias[layer], stream[layer])


@_function("decompose logit", lambda model: decompose_logit(model, MIDDLE, TARGET))
def _shares(naive: Naive, own: Any) -> Iterator[Comparison]:
    logits = _plain(naive)[len(MIDDLE) - 1]
    config = naive.config
    cap = getattr(config, "final_logit_softcapping", None) or getattr(config, "logits_soft_cap", None)
    logits = cap * torch.atanh(logits / cap) if cap else logits
    yield Comparison("sum of the shares", [own.share.sum() + own.bias], logits[TARGET : TARGET + 1], _size(naive))


# ---- weights


@_once
def _inputs(naive: Naive) -> Tensor:
    """(rows, width) any rows."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(5, WIDTH, generator=generator, dtype=torch.float64).to(naive.hf.dtype)


@_function(
    "attention weights",
    lambda model: {
        name: [model.weight(name, layer) for layer in range(LAYERS)]
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")
    },
    "attention", "qkv",
)  # fmt: skip
def _attention_weights(naive: Naive, own: Any) -> Iterator[Comparison]:
    x, names = _inputs(naive), naive.names
    assert names.attention is not None
    for layer in range(LAYERS):
        for name, value in zip("QKV", naive.qkv(layer, x), strict=True):
            shared = value.repeat_interleave(naive.n_heads // value.shape[1], 1)
            mapped = torch.einsum("nd,hde->nhe", x.double(), own[f"W_{name}"][layer].double())
            yield Comparison(f"{name} of layer {layer}", mapped + own[f"b_{name}"][layer].double(), shared)
        matrix = own["W_O"][layer].double()
        z = torch.randn(5, *matrix.shape[:2], generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        with torch.no_grad():
            written = naive.part(layer, names.attention)(z.flatten(1)[None].to(naive.hf.dtype))[0]
        yield Comparison(
            f"output of layer {layer}", torch.einsum("nhe,hed->nd", z, matrix) + own["b_O"][layer].double(), written
        )


def _mlp_weights_of(model: Any) -> tuple[int, list[dict[str, Tensor]]]:
    layers = []
    for layer in range(LAYERS):
        every = {name: model.weight(name, layer) for name in ("W_in", "b_in", "W_out", "b_out")}
        with contextlib.suppress(ValueError):  # of an MLP without a gate; where it has one, the products below differ
            every |= {name: model.weight(name, layer) for name in ("W_gate", "b_gate")}
        layers.append(every)
    return model.d_mlp, layers


@_function("MLP weights", _mlp_weights_of, "neurons")
def _mlp_weights(naive: Naive, own: Any) -> Iterator[Comparison]:
    names = naive.names
    assert names.neurons is not None
    assert names.mlp_enters is not None
    size, layers = own
    yield Comparison("number of neurons", [size], [own_width(naive.part(0, names.neurons))])
    for layer, weights in enumerate(layers):
        w = {name: value.double() for name, value in weights.items()}
        output, start = naive.part(layer, names.neurons), naive.part(layer, names.mlp_enters)
        x, neurons, written = naive.values(LONG, [(start, True), (output, True), (output, False)])
        x = x.double()
        linear = x @ w["W_in"] + w["b_in"]
        if "W_gate" in w:
            own_neurons = naive.neurons(layer, x @ w["W_gate"] + w["b_gate"], linear)
        else:
            own_neurons = naive.neurons(layer, linear)
        yield Comparison(f"neurons of layer {layer}", own_neurons, neurons)
        yield Comparison(f"output of layer {layer}", neurons.double() @ w["W_out"] + w["b_out"], written)


@_function(
    "norms and embeddings",
    lambda model: {name: model.weight(name) for name in ("W_E", "W_U", "b_U", "ln_final_w")}
    | {"ln1_w": model.weight("ln1_w", 1)},
    "unembedding",
)  # fmt: skip
def _embedding_weights(naive: Naive, own: Any) -> Iterator[Comparison]:
    x = _inputs(naive)
    with torch.no_grad():
        read = naive.hf.get_output_embeddings()(x[None])[0]
    yield Comparison("embedding", own["W_E"], naive.embeddings(range(VOCABULARY))[0])
    yield Comparison("unembedding", x.double() @ own["W_U"].double() + own["b_U"].double(), read)
    yield Comparison("final norm", own["ln_final_w"], naive.scale(naive.norm(None)))
    yield Comparison("norm before attention", own["ln1_w"], naive.scale(naive.norm(1)))


TOP = 8


@_once
def _word_pairs(naive: Naive) -> tuple[Tensor, list[list[list[int]]]]:
    """Energy (layers, heads, d) and the number of pairs of every dimension, by loops over words."""
    units = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    cosines = units @ units.T
    limits = np.maximum(0, cosines.mean(1) + 1.96 * cosines.std(1))
    rows, energy, counts = naive.embeddings(range(VOCABULARY))[0], [], []
    for layer in range(LAYERS):
        scale = naive.scale(naive.norm(layer))
        bias = naive.qkv(layer, torch.zeros_like(rows))
        q, k, _ = (part - zero for part, zero in zip(naive.qkv(layer, rows * scale), bias, strict=True))
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        energy.append((q.double() ** 2).sum(0) + (k.double() ** 2).sum(0))
        counts.append([[_pairs(q[:, h, d], k[:, h, d], cosines, limits) for d in range(q.shape[2])]
                       for h in range(q.shape[1])])  # fmt: skip
    return torch.stack(energy), counts


def _pairs(q: Tensor, k: Tensor, cosines: NDArray[Any], limits: NDArray[Any]) -> int:
    return sum(
        bool(a != b and q[a] * k[b] > 0 and cosines[a, b] > max(limits[a], limits[b]))
        for a in q.abs().topk(TOP).indices.tolist()
        for b in k.abs().topk(TOP).indices.tolist()
    )


@_function(
    "head word pairs", lambda model: head_word_pairs(model, words=WORDS, vectors=VECTORS, top=TOP), "attention", "qkv"
)
def _head_words(naive: Naive, own: Any) -> Iterator[Comparison]:
    energy, counts = _word_pairs(naive)
    yield Comparison("energy", own.energy, energy)
    yield Comparison("pairs of each dimension", own.dimension_counts, torch.tensor(counts))


@_function("FFN concepts", lambda model: ffn_concepts(model, words=WORDS, rank=4, top=3), "neurons", "unembedding")
def _concepts(naive: Naive, own: Any) -> Iterator[Comparison]:
    assert naive.names.neurons is not None
    words = torch.nn.functional.normalize(naive.linear(naive.hf.get_output_embeddings(), WIDTH).T.double(), dim=-1)
    for layer in range(LAYERS):
        output = naive.part(layer, naive.names.neurons)
        rows = naive.linear(output, own_width(output)).double()
        rows = rows - rows.mean(0)
        _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
        shares = sizes**2 / (sizes**2).sum()
        yield Comparison(f"explained variance of layer {layer}", own.explained_variance[layer], shares[:4])
        scores = words @ directions[0]
        scores = scores if scores.max() >= -scores.min() else -scores
        yield Comparison(f"words of layer {layer}", own.plus_scores[layer, 0], scores.topk(3).values)


def own_width(module: Any) -> int:
    """How many numbers a linear map takes in."""
    return int(module.in_features if hasattr(module, "in_features") else module.weight.shape[0])


def _through_final_norm(naive: Naive, rows: Tensor) -> Tensor:
    """Logits (rows, vocabulary) of parts (rows, width) of the stream, but for the scale of the whole stream."""
    norm = naive.norm(None)
    if norm is not None:
        x = _inputs(naive)
        with torch.no_grad():
            centred = bool((norm(x[None] + 1) - norm(x[None])).abs().max() < 1e-3)
        rows = (rows - rows.mean(-1, keepdim=True) if centred else rows) * naive.scale(norm)
    return rows.double() @ naive.linear(naive.hf.get_output_embeddings(), WIDTH).double()


@_function(
    "neuron tokens", lambda model: neuron_tokens(model, layer=1, neurons=NEURONS, top=3), "neurons", "unembedding"
)
def _neuron_tokens(naive: Naive, own: Any) -> Iterator[Comparison]:
    names = naive.names
    assert names.neurons is not None
    output = naive.part(1, names.neurons)
    values = naive.linear(output, own_width(output))[NEURONS]
    if names.mlp_norm is not None:
        values = values * naive.scale(naive.part(1, names.mlp_norm))
    scores = _through_final_norm(naive, values)
    yield Comparison("promoted", own.promoted_scores, scores.topk(3, -1).values)
    yield Comparison("suppressed", own.suppressed_scores, -((-scores).topk(3, -1).values))


@_function("text activations", lambda model: text_activations(model, TEXTS, layer=1, neurons=NEURONS), "neurons")
def _text_activations(naive: Naive, own: Any) -> Iterator[Comparison]:
    assert naive.names.neurons is not None
    read = [(naive.part(1, naive.names.neurons), True)]
    yield Comparison("activations", own.values, torch.cat([naive.values(ids, read)[0] for ids in TEXTS])[:, NEURONS])


@_function("neuron effects", lambda model: neuron_effects(model, MIDDLE, TARGET, layer=1), "neurons", "unembedding")
def _neuron_effects(naive: Naive, own: Any) -> Iterator[Comparison]:
    """The effects but for the scales of the norms, which all neurons share."""
    names = naive.names
    assert names.neurons is not None
    output = naive.part(1, names.neurons)
    active = naive.values(MIDDLE, [(output, True)])[0]
    yield Comparison("activations", own.activation, active)
    values = naive.linear(output, own_width(output))
    if names.mlp_norm is not None:
        values = values * naive.scale(naive.part(1, names.mlp_norm))
    effects = active[-1].double() * _through_final_norm(naive, values)[:, TARGET]
    yield Comparison("effects", _table(own.effect) / np.linalg.norm(own.effect), effects / effects.norm())


# ---- attention


@_function("attention patterns", lambda model: attention_patterns(model, MIDDLE).patterns, "attention")
def _patterns(naive: Naive, own: Any) -> Iterator[Comparison]:
    for layer, theirs in enumerate(_attention(naive)[0]):
        yield Comparison(f"patterns of layer {layer}", own[layer], theirs)


@_once
def _attention(naive: Naive) -> list[list[Tensor]]:
    return [naive.patterns(ids) for ids in TEXTS]


@_function("attention in texts", lambda model: attention_in_texts(model, TEXTS, layer=LAYERS - 1), "attention")
def _in_texts(naive: Naive, own: Any) -> Iterator[Comparison]:
    """The first token is neither query nor key."""
    start = 0
    for ids, patterns in zip(TEXTS, _attention(naive), strict=True):
        rows = slice(start + 1, start + len(ids))
        seen = patterns[-1][:, 1:, 1:]
        most = seen.max(-1).values.T
        yield Comparison(f"largest of {len(ids)} tokens", own.attention[rows], most)
        chosen = torch.from_numpy(own.keys[rows] - 1)
        yield Comparison(f"where of {len(ids)} tokens", seen.gather(2, chosen.T[..., None])[..., 0].T, most)
        start += len(ids)


REPEATED = 30
"""Tokens that a sequence of `head_scores` repeats: twice as many go beyond the boundary, and there are as many."""


@_once
def _scores_of_heads(naive: Naive) -> tuple[Tensor, Tensor]:
    """(scores, layers, heads) induction, previous token, duplicate token and first token, and their controls."""
    tokens = np.random.default_rng(0).choice(VOCABULARY, 2 * REPEATED, replace=False).tolist()
    again = torch.stack(naive.patterns([*tokens[:REPEATED], *tokens[:REPEATED]]))
    other = torch.stack(naive.patterns(tokens))

    def mean(patterns: Tensor, first: int, distance: int, *, to_first: bool = False) -> Tensor:
        places = [(at, at - distance) for at in range(first, 2 * REPEATED) if at > distance or to_first]
        return torch.stack([patterns[:, :, at, key] for at, key in places]).mean(0)

    late, back = REPEATED, REPEATED - 1
    scores = [mean(again, late, back), mean(again, 2, 1), mean(again, late, REPEATED), again[:, :, 2:, 0].mean(-1)]
    controls = [mean(other, late, back), mean(again, 2, 2), mean(other, late, REPEATED), again[:, :, 2:, 1].mean(-1)]
    return torch.stack(scores), torch.stack(controls)


@_function("head scores", lambda model: head_scores(model, length=REPEATED, sequences=1), "attention")
def _head_scores(naive: Naive, own: Any) -> Iterator[Comparison]:
    scores, controls = _scores_of_heads(naive)
    yield Comparison("scores", own.scores[:, 0], scores)
    yield Comparison("controls", own.controls[:, 0], controls)


@_function(
    "head measures",
    lambda model: head_measures(model, MIDDLE, TARGET, length=REPEATED, sequences=1),
    "attention",
)
def _measures(naive: Naive, own: Any) -> Iterator[Comparison]:
    yield Comparison("induction", own.of("induction"), _scores_of_heads(naive)[0][0])
    losses = _before(naive).log_softmax(-1)[TARGET] - _without_heads(naive).log_softmax(-1)[..., TARGET]
    yield Comparison("ablation", own.of("ablation_effect"), losses, _size(naive))


ASKED = (LAYERS - 1, 3, len(MIDDLE) - 1, (len(MIDDLE) - 4, len(MIDDLE) - 20))
"""A layer, a head, a query and two keys in the window."""


def _reasons_of(model: Any) -> Any:
    layer, head, query, keys = ASKED
    return [attention_reasons(model, MIDDLE, layer, head, query, key) for key in keys]


@_function("attention reasons", _reasons_of, "attention", "qkv")
def _reasons(naive: Naive, own: Any) -> Iterator[Comparison]:
    """The softmax leaves differences of scores, which a soft cap came before."""
    layer, head, query, keys = ASKED
    row = _attention(naive)[0][layer][head, query, list(keys)]
    cap = getattr(naive.config, "attn_logit_softcapping", None)
    scores = torch.tensor([one.parts.sum() + one.position_bias for one in own])
    scores = cap * torch.tanh(scores / cap) if cap else scores
    yield Comparison("attention", [one.attention for one in own], row)
    yield Comparison("difference of scores", scores.diff(), row.log().diff(), 1.0)


def _against_text(model: Any) -> Any:
    pairs = head_word_pairs(model, layers=[LAYERS - 1], words=WORDS, vectors=VECTORS, top=VOCABULARY)
    return weights_against_text(model, TEXTS, pairs, shuffles=1)


@_function("weights against text", _against_text, "attention", "qkv")
def _along_pairs(naive: Naive, own: Any) -> Iterator[Comparison]:
    patterns = [text[-1] for text in _attention(naive)]
    wanted = [
        patterns[text][head, query, key]
        for (_, head), (text, query, key) in zip(own.cells.tolist(), own.places.tolist(), strict=True)
    ]
    yield Comparison("attention along the pairs", own.attention, torch.stack(wanted))


@_function("direct logit attribution", lambda model: direct_logit_attribution(model, MIDDLE, TARGET, foil=TARGET + 1),
           "attention", "unembedding")  # fmt: skip
def _direct(naive: Naive, own: Any) -> Iterator[Comparison]:
    logits = _plain(naive)[len(MIDDLE) - 1]
    config = naive.config
    cap = getattr(config, "final_logit_softcapping", None) or getattr(config, "logits_soft_cap", None)
    logits = cap * torch.atanh(logits / cap) if cap else logits
    parts = own.heads.sum() + own.mlps.sum() + own.attention_bias.sum() + own.embedding + own.bias
    difference = logits[TARGET : TARGET + 1] - logits[TARGET + 1 : TARGET + 2]
    yield Comparison("sum of the parts", [parts], difference, _size(naive))


@_function("head writes", lambda model: head_writes(model, MIDDLE, 1, 2, top=3, draws=1), "attention", "unembedding")
def _head_writes(naive: Naive, own: Any) -> Iterator[Comparison]:
    """The tokens at both ends in standard deviations over the vocabulary, which no scale of a norm changes."""
    names = naive.names
    assert names.attention is not None
    output = naive.part(1, names.attention)
    z = naive.head_outputs(MIDDLE)[1][-1]
    rows = naive.linear(output, own_width(output)).unflatten(0, z.shape)[2]
    written = (z[2] @ rows)[None]
    if names.attention_norm is not None:
        written = written * naive.scale(naive.part(1, names.attention_norm))
    logits = _through_final_norm(naive, written)[0]
    wanted = (logits - logits.mean()) / logits.std(correction=0)
    yield Comparison("raised", own.raised / own.spread, wanted.topk(3).values)
    yield Comparison("lowered", own.lowered / own.spread, -(-wanted).topk(3).values)


ENTRY_LAYER = 1
"""The stream in which an entry is replaced."""


@_function("massive activations", lambda model: massive_activations(model, MIDDLE, layer=ENTRY_LAYER, others=1))
def _massive(naive: Naive, own: Any) -> Iterator[Comparison]:
    streams = _streams(naive)[:, : len(MIDDLE)]
    yield Comparison("largest entries", np.abs(own.value), streams.abs().amax((1, 2)))
    place = divmod(int(streams[own.peak].abs().argmax()), streams.shape[-1])

    def without(value: Tensor) -> Tensor:
        new = value.clone()
        new[0, place[0], place[1]] = 0
        return new

    def loss(logits: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits[:-1].double(), torch.tensor(MIDDLE[1:]))[None]

    yield Comparison("loss", [own.loss], loss(_plain(naive)[: len(MIDDLE)]))
    yield Comparison(
        "loss without it", [own.loss_zero], loss(naive.logits(MIDDLE, naive.changing(ENTRY_LAYER, without)))
    )
