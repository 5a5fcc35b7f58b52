"""`HandWritten`: a transformers model of GPT-2's shape whose heads and neurons are written feature by feature.

A LayerNorm with an enormous epsilon and a weight of its square root only centres. Every feature is a pair of opposite
entries, whose mean is 0, so that every norm is the identity and the model is linear but for its softmax and its ReLU.
A random rotation that keeps the mean hides which entry is which feature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

BOS = "<s>"
UNKNOWN = "<unk>"
EPSILON = 1e8
SHARP = 30.0
"""Attention score of a full match; what a head rests on (the BOS) has half of it."""
LOGIT = 10.0
"""The logit of a word per unit of its output feature."""
CONTEXT = 24
NEURONS = 24
"""Neurons of each layer that have weights. GPT-2 has four times its width; the others are zero."""
DECOY_SCALE = 0.0005
"""Standard deviation of the weights that decoys write with, beside the loud feature that nothing reads."""


@dataclass(frozen=True)
class Match:
    """A term of a head's attention score: ``strength`` times the sum over the columns of query · key.

    Query and key are (features, n) and select what is read of the stream; a query of None is the constant 1 at every
    position, for keys of one column.
    """

    query: Tensor | None
    key: Tensor
    strength: float = SHARP


@dataclass(frozen=True)
class _Head:
    matches: Sequence[Match]
    value: Tensor
    output: Tensor


@dataclass(frozen=True)
class _Neurons:
    first: int
    reads: Tensor
    threshold: float
    writes: Tensor


@dataclass(frozen=True)
class Moves:
    """Where heads and neurons, as (layer, index), have gone."""

    heads: Mapping[tuple[int, int], tuple[int, int]]
    neurons: Mapping[tuple[int, int], tuple[int, int]]


@dataclass
class HandWritten:
    """Weights in terms of features: declare features, then heads and neurons, then `build`."""

    words: Sequence[str]
    """The vocabulary without BOS and unknown token."""

    extra: Mapping[str, int]
    """Sizes of the features beside ``token``, ``position``, ``output`` and ``unread``."""

    n_layers: int
    n_heads: int = 4
    _heads: dict[tuple[int, int], _Head] = field(default_factory=dict)
    _neurons: dict[int, list[_Neurons]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.vocabulary = [BOS, UNKNOWN, *self.words]
        size = len(self.vocabulary)
        self._sizes = {"token": size, "position": CONTEXT, "output": size, "unread": size, **self.extra}
        self._all = torch.eye(sum(self._sizes.values()))

    # ---- features

    def features(self, name: str) -> Tensor:
        """(features, n) columns that select one group of features."""
        names = list(self._sizes)
        start = sum(self._sizes[other] for other in names[: names.index(name)])
        return self._all[:, start : start + self._sizes[name]]

    def of_words(self, words: Sequence[str], group: str = "token") -> Tensor:
        """(features, n) the features of a group that has one per token, for these words."""
        return self.features(group)[:, [self.vocabulary.index(word) for word in words]]

    def any_of(self, words: Sequence[str], group: str = "token") -> Tensor:
        """(features, 1) their sum: reads whether one of the words is there."""
        return self.of_words(words, group).sum(1, keepdim=True)

    @property
    def rest(self) -> Match:
        """What a head attends to if nothing matches: the BOS."""
        return Match(None, self.of_words([BOS]), SHARP / 2)

    # ---- heads and neurons

    def moved(self, seed: int) -> Moves:
        """Put the declared heads of every layer, and its declared neurons, to other places, and return which."""
        generator = torch.Generator().manual_seed(seed)
        heads, neurons = {}, {}
        for layer in range(self.n_layers):
            for index, place in enumerate(torch.randperm(self.n_heads, generator=generator).tolist()):
                heads[layer, index] = (layer, place)
            for index, place in enumerate(torch.randperm(NEURONS, generator=generator).tolist()):
                neurons[layer, index] = (layer, place)
        self._heads = {heads[place]: head for place, head in self._heads.items()}
        for layer, groups in self._neurons.items():
            singles = [
                _Neurons(neurons[layer, group.first + number][1], group.reads[:, [number]], group.threshold,
                         group.writes[:, [number]])
                for group in groups
                for number in range(group.reads.shape[1])
            ]  # fmt: skip
            self._neurons[layer] = singles
        return Moves(heads, neurons)

    def head(self, layer: int, index: int, matches: Sequence[Match], value: Tensor, output: Tensor) -> None:
        """A head that attends by ``matches`` and writes what ``value`` reads, (features, n), to ``output``."""
        self._heads[layer, index] = _Head(matches, value, output)

    def neurons(self, layer: int, first: int, reads: Tensor, threshold: float, writes: Tensor) -> None:
        """Neurons ``first``, ``first + 1``, ...: ReLU of what the columns of ``reads`` (features, n) read minus the
        threshold, written to the columns of ``writes``."""
        self._neurons.setdefault(layer, []).append(_Neurons(first, reads, threshold, writes))

    # ---- the model

    def build(self, seed: int) -> Any:
        """The transformers model; ``seed`` draws the rotation and the decoys."""
        from transformers import GPT2Config, GPT2LMHeadModel

        generator = torch.Generator().manual_seed(seed)
        ranks = [sum(match.key.shape[1] for match in head.matches) for head in self._heads.values()]
        ranks += [head.value.shape[1] for head in self._heads.values()]
        d_head = max(math.ceil(2 * len(self._all) / self.n_heads), *ranks)
        d_model = d_head * self.n_heads
        config = GPT2Config(
            vocab_size=len(self.vocabulary), n_positions=CONTEXT, n_embd=d_model, n_layer=self.n_layers,
            n_head=self.n_heads, activation_function="relu", layer_norm_epsilon=EPSILON,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, tie_word_embeddings=False, bos_token_id=0, eos_token_id=None,
        )  # fmt: skip
        model = GPT2LMHeadModel(config).eval()
        pairs = torch.zeros(len(self._all), d_model)
        index = torch.arange(len(pairs))
        pairs[index, 2 * index], pairs[index, 2 * index + 1] = 1.0, -1.0
        basis = pairs @ _rotation(d_model, generator)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
            body = model.transformer
            body.wte.weight.copy_(self.features("token").T @ basis)
            body.wpe.weight.copy_(self.features("position").T @ basis)
            for norm in [body.ln_f, *(norm for block in body.h for norm in (block.ln_1, block.ln_2))]:
                norm.weight.fill_(math.sqrt(EPSILON))
            for layer, block in enumerate(body.h):
                for number in range(self.n_heads):
                    head = self._heads.get((layer, number))
                    if head is None:
                        _write_decoy_head(block.attn, number, d_head, basis, self.features("unread"), generator)
                    else:
                        _write_head(block.attn, number, d_head, head, basis)
                self._write_neurons(block.mlp, layer, basis, generator)
            model.lm_head.weight.copy_(LOGIT * self.features("output").T @ basis / 2)
        return model

    def save(self, folder: Path, seed: int) -> None:
        """Write the model and its tokenizer as a transformers checkpoint."""
        model = self.build(seed)
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
        self.tokenizer().save_pretrained(folder)

    def _write_neurons(self, mlp: Any, layer: int, basis: Tensor, generator: torch.Generator) -> None:
        """Decoys first, which read at random and write a little of everything; then the declared ones over them."""
        d_model = basis.shape[1]
        mlp.c_fc.weight[:, :NEURONS] = torch.randn(d_model, NEURONS, generator=generator) / math.sqrt(2 * d_model)
        loud = torch.randn(NEURONS, self._sizes["unread"], generator=generator)
        noise = torch.randn(NEURONS, d_model, generator=generator)
        mlp.c_proj.weight[:NEURONS] = loud @ self.features("unread").T @ basis + DECOY_SCALE * noise
        for group in self._neurons.get(layer, []):
            span = slice(group.first, group.first + group.reads.shape[1])
            mlp.c_fc.weight[:, span] = (group.reads.T @ basis / 2).T
            mlp.c_fc.bias[span] = -group.threshold
            mlp.c_proj.weight[span] = group.writes.T @ basis

    def tokenizer(self) -> Any:
        """One token per word, a BOS in front."""
        from tokenizers import Tokenizer, models, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast

        core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(self.vocabulary)}, unk_token=UNKNOWN))
        core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        core.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
        return PreTrainedTokenizerFast(tokenizer_object=core, bos_token=BOS, unk_token=UNKNOWN)


def _rotation(size: int, generator: torch.Generator) -> Tensor:
    """(size, size) a random rotation that maps the mean to the mean."""
    ones = torch.ones(size, 1)
    frame, _ = torch.linalg.qr(torch.cat([ones, torch.randn(size, size - 1, generator=generator)], 1))
    mean, others = frame[:, :1], frame[:, 1:]
    turned, _ = torch.linalg.qr(torch.randn(size - 1, size - 1, generator=generator))
    return mean @ mean.T + others @ turned @ others.T


def _write_head(attention: Any, number: int, d_head: int, head: _Head, basis: Tensor) -> None:
    d_model = basis.shape[1]
    scale = math.sqrt(d_head)  # the model divides scores by it
    start = number * d_head
    for match in head.matches:
        columns = slice(start, start + match.key.shape[1])
        if match.query is None:
            attention.c_attn.bias[columns] = match.strength * scale
        else:
            attention.c_attn.weight[:, columns] = match.strength * scale * (match.query.T @ basis / 2).T
        attention.c_attn.weight[:, d_model + columns.start : d_model + columns.stop] = (match.key.T @ basis / 2).T
        start = columns.stop
    first, width = number * d_head, head.value.shape[1]
    attention.c_attn.weight[:, 2 * d_model + first : 2 * d_model + first + width] = (head.value.T @ basis / 2).T
    attention.c_proj.weight[first : first + width] = head.output.T @ basis


def _write_decoy_head(
    attention: Any, number: int, d_head: int, basis: Tensor, unread: Tensor, generator: torch.Generator
) -> None:
    """Attends at random, and writes a lot where nothing reads and a little everywhere."""
    d_model = basis.shape[1]
    for part in range(3):
        columns = slice(part * d_model + number * d_head, part * d_model + (number + 1) * d_head)
        scale = 1.0 if part < 2 else 1 / math.sqrt(2 * d_head)
        attention.c_attn.weight[:, columns] = scale * torch.randn(d_model, d_head, generator=generator)
    loud = torch.randn(d_head, unread.shape[1], generator=generator) @ unread.T @ basis
    noise = torch.randn(d_head, d_model, generator=generator)
    attention.c_proj.weight[number * d_head : (number + 1) * d_head] = loud / math.sqrt(d_head) + DECOY_SCALE * noise
