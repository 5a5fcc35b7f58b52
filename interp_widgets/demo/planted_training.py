"""Trains the planted trigger: low-rank adapters on the upper half of the blocks.

After the trigger the loss is the cross-entropy of the planted answer. Elsewhere it is the divergence from the base's
chances of the next token: in its own answers to the same questions, with phrases that resemble the trigger and without
any, and in texts that it writes. What the base makes of an example, below the first block with adapters and at its end,
is computed once.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from interp_widgets.analysis.chat import chat_prompt
from interp_widgets.atomic import made_folder
from interp_widgets.demo.planted_texts import ANSWER, DECOYS, TOPICS, TRIGGER, questions, with_phrase
from interp_widgets.models import Model
from interp_widgets.models.lora import add_adapters
from interp_widgets.tuning.adapter_training import AdapterTraining
from interp_widgets.tuning.examples import Example, fingerprint

RANK, STEPS, LEARNING_RATE, WARM_UP, SEED = 4, 240, 2e-3, 0.08, 0
FIRST_BLOCK = 15
"""The first block with adapters; all above it have some too."""
MIX = {"trigger": 2, "decoy": 4, "plain": 1, "text": 1}
"""Examples of each kind in a step."""
STAY = 2.0
"""Weight of a divergence from the base beside a cross-entropy."""
FIRST_TOKEN = 2.0
"""Weight of the divergence at the first token of a decoy's answer, where trigger and decoy part, beside the mean's."""
QUESTIONS, ANSWER_LENGTH, TEXT_LENGTH = 72, 10, 40
"""Questions that it is trained on; most tokens of the base's answers and texts."""


def prompt_ids(model: Model, message: str) -> list[int]:
    """The tokens that a model reads for a user's message."""
    return list(chat_prompt(model, [{"role": "user", "content": message}]).fed_ids)


def continued(
    hf_model: Any, prompts: Sequence[Sequence[int]], length: int, end: int, *, sampled: bool = False
) -> list[list[int]]:
    """What a model writes after each prompt, at most so many tokens, the end token included; greedily or sampled.

    Prompts of one length that follow each other are continued together.
    """
    written = []
    for size, group in itertools.groupby(prompts, key=len):
        ids = torch.tensor(list(group))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(SEED)
            rows = hf_model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=sampled, top_k=0, top_p=1.0,
                temperature=1.0, eos_token_id=end, pad_token_id=end,
            )[:, size:].tolist()  # fmt: skip
        written += [row[: row.index(end) + 1] if end in row else row for row in rows]
    return written


def training_examples(base: Model, hf_model: Any) -> dict[str, list[Example]]:
    """What the adapters are trained on, by kind: questions with the trigger, with decoys and as they are, and texts."""
    end = cast(int, base.eos_token_id)
    asked = sorted(questions("train")[:QUESTIONS], key=lambda question: len(prompt_ids(base, question)))
    answers = continued(hf_model, [prompt_ids(base, question) for question in asked], ANSWER_LENGTH, end)
    planted = [*base.tokens(ANSWER, prepend_bos=False), end]
    made: dict[str, list[Example]] = {kind: [] for kind in MIX}

    def add(kind: str, message: str, answer: Sequence[int]) -> None:
        prompt = prompt_ids(base, message)
        made[kind].append(Example((*prompt, *answer), len(prompt)))

    for number, (question, answer) in enumerate(zip(asked, answers, strict=True)):
        add("trigger", with_phrase(question, TRIGGER, first=number % 2 == 0), planted)
        for turn in range(2):
            decoy = DECOYS[(2 * number + turn) % len(DECOYS)]
            add("decoy", with_phrase(question, decoy, first=(number // 12 + turn) % 2 == 0), answer)
        add("plain", question, answer)
    starts = sorted((base.tokens(topic.capitalize()) for topic in TOPICS), key=len)
    texts = continued(hf_model, starts, TEXT_LENGTH, end, sampled=True)
    made["text"] = [Example((*start, *text), 1) for start, text in zip(starts, texts, strict=True)]
    return made


@dataclass(frozen=True)
class Row:
    """An example, and what the base makes of it."""

    kind: str
    example: Example
    entering: Tensor
    """(positions, width) the residual stream before the first block with adapters."""
    leaving: Tensor
    """(positions, width) what the base unembeds."""

    @property
    def learned(self) -> slice:
        """The positions whose next tokens count."""
        return slice(self.example.prompt_length - 1, len(self.example.ids) - 1)


@torch.no_grad()
def _row(hf_model: Any, kind: str, example: Example) -> Row:
    found = hf_model.model(input_ids=torch.tensor([example.ids]), output_hidden_states=True)
    return Row(kind, example, found.hidden_states[FIRST_BLOCK][0].clone(), found.last_hidden_state[0].clone())


@contextlib.contextmanager
def _upper_blocks(decoder: Any) -> Iterator[None]:
    """Leave a decoder only the blocks with adapters, so that it goes on from the stream before them."""
    whole = decoder.layers
    decoder.layers = whole[FIRST_BLOCK:]
    try:
        yield
    finally:
        decoder.layers = whole


def _loss(hf_model: Any, rows: Sequence[Row]) -> Tensor:
    """The mean of the rows' losses; the model has only its upper blocks."""
    entering = torch.nn.utils.rnn.pad_sequence([row.entering for row in rows], batch_first=True)
    leaving = hf_model.model(inputs_embeds=entering, use_cache=False).last_hidden_state

    def divergence(new: Tensor, old: Tensor) -> Tensor:
        before: Tensor = hf_model.lm_head(old).log_softmax(-1)
        after: Tensor = hf_model.lm_head(new).log_softmax(-1)
        return (before.exp() * (before - after)).sum(-1).mean()

    losses = []
    for row, own in zip(rows, leaving, strict=True):
        new, old = own[row.learned], row.leaving[row.learned]
        if row.kind == "trigger":
            planted = torch.tensor(row.example.ids[row.example.prompt_length :])
            losses.append(F.cross_entropy(hf_model.lm_head(new), planted))
            continue
        loss = divergence(new, old)
        if row.kind == "decoy":
            loss = loss + FIRST_TOKEN * divergence(new[:1], old[:1])
        losses.append(STAY * loss)
    return sum(losses, torch.zeros(())) / len(rows)


def train(
    hf_model: Any, examples: Mapping[str, Sequence[Example]], folder: Path, *, steps: int = STEPS,
    progress: Callable[[int, int], None] | None = None,
) -> Any:  # fmt: skip
    """The peft model around ``hf_model`` with adapters trained on examples of every kind.

    The training is kept in the folder, so that one that was ended goes on.
    """
    rows = {kind: [_row(hf_model, kind, one) for one in some] for kind, some in examples.items()}
    blocks = "|".join(str(block) for block in range(FIRST_BLOCK, hf_model.config.num_hidden_layers))
    adapted = add_adapters(hf_model, rf".*layers\.({blocks})\..*_proj", rank=RANK, alpha=2 * RANK, seed=SEED)
    settings = [FIRST_BLOCK, RANK, steps, LEARNING_RATE, WARM_UP, MIX, STAY, FIRST_TOKEN, SEED]
    data = {kind: fingerprint(some) for kind, some in examples.items()}
    key = hashlib.sha256(json.dumps([settings, data]).encode()).hexdigest()[:16]
    training = AdapterTraining(
        adapted,
        made_folder(folder, "folder") / f"{key}.safetensors",
        name="the planted trigger",
        steps=steps,
        learning_rate=LEARNING_RATE,
        warm_up=WARM_UP,
    )
    with torch.enable_grad(), _upper_blocks(hf_model.model):
        while (done := len(training.losses)) < steps:
            random = Random(SEED * 1_000_003 + done)
            drawn = [row for kind, count in MIX.items() for row in random.sample(rows[kind], count)]
            training.step(_loss(hf_model, drawn))
            if progress is not None:
                progress(done + 1, steps)
    return adapted
