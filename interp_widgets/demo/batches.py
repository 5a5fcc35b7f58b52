"""Training batches: documents are encoded, packed whole into rows, and put into a fixed order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from interp_widgets.data import world
from interp_widgets.data.instructions import instruction_cases
from interp_widgets.demo import documents as text
from interp_widgets.demo.tokenizer import BOS, EOS, PAD

Stage = Literal["base", "tuned"]
ROW_LENGTHS = (128, 256)
"""Documents of up to 128 tokens share rows of 128, longer ones rows of 256."""
EARLY_EPOCHS = 8
"""Epochs of the base model's full text before the late phase begins."""
EARLY_TUNED_EPOCHS = 5
"""Epochs of the tuned model's text before the hard tasks become more frequent."""
N_INSTRUCTIONS = 10_000
"""Instruction cases in one epoch of the tuned model."""
N_TUNED_IOI = 1000
N_TUNED_TEXT = 700


@dataclass(frozen=True)
class Batch:
    """Rows of packed documents."""

    tokens: NDArray[np.int64]
    """(rows, positions) token indices."""
    document: NDArray[np.int64]
    """(rows, positions) index of the document within its row, -1 on padding; attention stays inside a document."""
    target: NDArray[np.bool_]
    """(rows, positions) whether predicting this token counts in the loss."""


def documents(stage: Stage, *, seed: int, epoch: int) -> list[text.Pair]:
    """List one epoch's documents in the order of training."""
    if stage == "base" and epoch >= EARLY_EPOCHS:
        return text.late_epoch_documents(seed=seed, epoch=epoch)
    if stage == "base":
        return [("", document) for document in text.epoch_documents(seed=seed, epoch=epoch)]
    if stage != "tuned":
        raise ValueError(f'stage must be "base" or "tuned", got {stage!r}')
    rng = random.Random(world.stable_hash("tuned epoch", seed, epoch))
    hard = 1 if epoch < EARLY_TUNED_EPOCHS else 4
    cases = instruction_cases("train", N_INSTRUCTIONS, seed=rng.getrandbits(32), hard=hard)
    pairs = [(case.prompt, case.response) for case in cases]
    base_text = text.late_epoch_documents(seed=seed, epoch=epoch, n_ioi=N_TUNED_IOI, n_other=N_TUNED_TEXT)
    return interleave(pairs, base_text)


def interleave(some: Sequence[text.Pair], others: Sequence[text.Pair]) -> list[text.Pair]:
    """Spread two lists evenly over each other and keep the order of both."""
    order = [((i + 0.5) / len(some), 0, i) for i in range(len(some))]
    order += [((i + 0.5) / len(others), 1, i) for i in range(len(others))]
    return [(some, others)[which][i] for _, which, i in sorted(order)]


def special_ids(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """Indices of the begin, end and padding tokens."""
    begin, end, pad = (tokenizer.token_to_id(name) for name in (BOS, EOS, PAD))
    if begin is None or end is None or pad is None:
        raise ValueError(f"the tokenizer must have the tokens {BOS}, {EOS} and {PAD}")
    return begin, end, pad


def epoch_batches(
    stage: Stage,
    tokenizer: Tokenizer,
    *,
    seed: int,
    epoch: int,
    tokens_per_batch: int,
    max_documents: int | None = None,
) -> list[Batch]:
    """Encode and pack one epoch into batches of `tokens_per_batch` tokens, the same for the same seed."""
    pairs = documents(stage, seed=seed, epoch=epoch)[:max_documents]
    bos, eos, pad = special_ids(tokenizer)
    contexts = tokenizer.encode_batch([context for context, _ in pairs], add_special_tokens=False)
    targets = tokenizer.encode_batch([target for _, target in pairs], add_special_tokens=False)
    by_length: dict[int, list[tuple[list[int], int]]] = {length: [] for length in ROW_LENGTHS}
    for context, target in zip(contexts, targets, strict=True):
        ids = [bos, *context.ids, *target.ids, eos]
        length = next((length for length in ROW_LENGTHS if len(ids) <= length), None)
        if length is not None:
            by_length[length].append((ids, 1 + len(context.ids)))
    batches: list[Batch] = []
    for length, encoded in by_length.items():
        rows = pack(encoded, length)
        size = max(1, tokens_per_batch // length)
        # The rows of the last, incomplete batch are dropped: every step has the same shape.
        for start in range(0, len(rows) - size + 1, size):
            batches.append(_batch(rows[start : start + size], length, pad))
    random.Random(world.stable_hash("batches", seed, epoch)).shuffle(batches)
    return batches


def pack(encoded: Sequence[tuple[list[int], int]], length: int, window: int = 64) -> list[list[tuple[list[int], int]]]:
    """Fill rows with whole documents in order; if the next does not fit, take one of the next `window` that does."""
    rows: list[list[tuple[list[int], int]]] = []
    waiting = list(encoded[:window])
    position = len(waiting)
    while waiting:
        row: list[tuple[list[int], int]] = []
        room = length
        i = 0
        while i < len(waiting):
            if len(waiting[i][0]) <= room:
                item = waiting.pop(i)
                row.append(item)
                room -= len(item[0])
                if position < len(encoded):
                    waiting.append(encoded[position])
                    position += 1
            else:
                i += 1
        rows.append(row)
    return rows


def _batch(rows: Sequence[Sequence[tuple[list[int], int]]], length: int, pad: int) -> Batch:
    tokens = np.full((len(rows), length), pad, dtype=np.int64)
    document = np.full((len(rows), length), -1, dtype=np.int64)
    target = np.zeros((len(rows), length), dtype=np.bool_)
    for r, row in enumerate(rows):
        start = 0
        for d, (ids, n_context) in enumerate(row):
            end = start + len(ids)
            tokens[r, start:end] = ids
            document[r, start:end] = d
            target[r, start + n_context : end] = True
            start = end
    return Batch(tokens, document, target)


def batches_from(
    stage: Stage,
    tokenizer: Tokenizer,
    *,
    seed: int,
    tokens_per_batch: int,
    step: int = 0,
    max_documents: int | None = None,
) -> Iterator[Batch]:
    """Yield the batches of all epochs, endlessly, starting at batch number `step`."""
    epoch = 0
    while True:
        batches = epoch_batches(
            stage, tokenizer, seed=seed, epoch=epoch, tokens_per_batch=tokens_per_batch, max_documents=max_documents
        )
        if not batches:
            raise ValueError(f"an epoch must fill at least one batch of {tokens_per_batch} tokens")
        yield from batches[step:]
        step = max(0, step - len(batches))
        epoch += 1
