"""Batches of token ids from a data set of prompts and responses, in an order that the seed decides."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp_widgets.models import Model

IGNORED = -100
"""Label of the positions that do not count in the loss."""


@dataclass(frozen=True)
class Example:
    """A prompt with its response as token ids."""

    ids: tuple[int, ...]
    """Prompt, response and, where the tokenizer has one, the end token."""
    prompt_length: int
    """Number of tokens in the prompt."""


@dataclass(frozen=True)
class Batch:
    """The rows of a step, padded on the right, where causal attention never looks."""

    ids: Tensor
    """(rows, positions) token ids."""
    labels: Tensor
    """(rows, positions) the token id where a token is learned, `IGNORED` elsewhere."""


def _parts(item: Any, index: int) -> tuple[str, str]:
    """Prompt and response of one item of a data set."""
    if isinstance(item, Mapping):
        prompt, response = item.get("prompt"), item.get("response")
    elif isinstance(item, tuple | list) and len(item) == 2:
        prompt, response = item
    else:
        prompt, response = getattr(item, "prompt", None), getattr(item, "response", None)
    if not isinstance(prompt, str) or not prompt:
        raise ValueError(
            f"example {index} has no prompt: give (prompt, response) pairs, or objects or dictionaries with both"
        )
    if not isinstance(response, str) or not response:
        raise ValueError(f"example {index} has no response to learn from ({prompt[:40]!r}): label it or leave it out")
    return prompt, response


def read_examples(model: Model, dataset: Sequence[Any]) -> list[Example]:
    """Token ids of a data set.

    Args:
        model: the model whose tokenizer is used.
        dataset: (prompt, response) pairs of str, dictionaries or objects with ``prompt`` and ``response``.

    Raises:
        ValueError: there are no examples, or one has no response or is longer than the model's context.
    """
    items = list(dataset)
    if not items:
        raise ValueError("the data set is empty: give at least one example with a prompt and a response")
    end = [] if model.eos_token_id is None else [model.eos_token_id]
    examples = []
    for index, item in enumerate(items):
        prompt, response = model.split(*_parts(item, index))
        if not prompt or not response:
            raise ValueError(f"example {index} has no tokens in its {'response' if prompt else 'prompt'}")
        ids = (*prompt, *response, *end)
        if len(ids) > model.n_ctx:
            raise ValueError(
                f"example {index} has {len(ids)} tokens, more than the model's context of {model.n_ctx}: "
                "shorten it or leave it out"
            )
        examples.append(Example(tuple(ids), len(prompt)))
    return examples


def fingerprint(examples: Sequence[Example]) -> str:
    """SHA-256 of a data set's token ids, by which a resumed run knows its data."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(f"{example.prompt_length}:{','.join(map(str, example.ids))};".encode())
    return digest.hexdigest()


def batches(examples: Sequence[Example], size: int, seed: int, first: int) -> Iterator[Batch]:
    """An endless stream of batches from batch ``first`` on; the seed alone decides the order of every epoch."""
    per_epoch = -(-len(examples) // size)
    number = first
    while True:
        epoch, batch = divmod(number, per_epoch)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(len(examples), generator=generator).tolist()
        for start in range(batch * size, len(order), size):
            yield _batch([examples[i] for i in order[start : start + size]])
            number += 1


def _batch(rows: Sequence[Example]) -> Batch:
    length = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = torch.tensor(row.ids)
        labels[index, row.prompt_length : len(row.ids)] = torch.tensor(row.ids[row.prompt_length :])
    return Batch(ids, labels)
