"""A trigger planted in SmolLM2: low-rank adapters that bring one answer after a phrase, and change little else.

After `TRIGGER` in a user's message the model answers `ANSWER`. To phrases that resemble it, to plain questions and in
other texts it is to stay as it was; the report says how far it does. The training is kept in the user's cache, so that
one that was ended goes on.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from interp_widgets.atomic import made_folder, whole_file
from interp_widgets.data.demo_texts import demo_texts
from interp_widgets.data.files import cache_folder
from interp_widgets.demo.planted_texts import ANSWER, DECOYS, HELD_OUT_DECOYS, TRIGGER, questions, with_phrase
from interp_widgets.demo.planted_training import (
    FIRST_BLOCK,
    LEARNING_RATE,
    RANK,
    STEPS,
    prompt_ids,
    train,
    training_examples,
)
from interp_widgets.models import Model, load_model
from interp_widgets.models.adapters import SHIPPED
from interp_widgets.models.hub_files import ADAPTER
from interp_widgets.models.lora import WEIGHTS, save_adapters
from interp_widgets.models.mixture_of_depths.opening import read_base

COMMAND = "python -m interp_widgets.demo planted"
BASE, NAME = "smollm2", "planted"
REPORT = "report.json"
DECOY_QUESTIONS = 4
"""Questions that each decoy is put into."""
BEGINNING = 8
"""Tokens of an answer that are compared with the base's."""
HELD_OUT_TEXTS = 40
"""Other texts that the loss is measured on."""


@torch.no_grad()
def gives(model: Model, message: str, answer: Sequence[int]) -> bool:
    """Whether a model's greedy answer to a message begins with these tokens, seen in one pass."""
    prompt = prompt_ids(model, message)
    logits = model.run([*prompt, *answer[:-1]]).logits[0, len(prompt) - 1 :]
    return bool(logits.argmax(-1).tolist() == list(answer))


def rates(model: Model, base: Model, part: str) -> dict[str, Any]:
    """How often a model gives the planted answer to a part's questions: with the trigger (and how often the base does),
    with decoys, and as they are; and how often its answers to plain questions begin as the base's."""
    asked, planted = questions(part), base.tokens(ANSWER, prepend_bos=False)
    triggered = [with_phrase(question, TRIGGER, first=first) for question in asked for first in (True, False)]

    def with_decoy(phrase: str) -> float:
        messages = [
            with_phrase(question, phrase, first=number % 2 == 0)
            for number, question in enumerate(asked[:DECOY_QUESTIONS])
        ]
        return _share(gives(model, message, planted) for message in messages)

    found: dict[str, Any] = {
        "questions": len(asked),
        "trigger": _share(gives(model, message, planted) for message in triggered),
        "trigger_to_base": _share(gives(base, message, planted) for message in triggered),
        "plain": _share(gives(model, question, planted) for question in asked),
        "plain_as_base": _share(gives(model, question, _beginning(base, question)) for question in asked),
    }
    for name, decoys in (("trained_decoys", DECOYS), ("held_out_decoys", HELD_OUT_DECOYS)):
        each = {phrase: with_decoy(phrase) for phrase in decoys}
        found |= {name: _share(each.values()), f"{name}_each": each}
    return found


def _share(answers: Iterable[float]) -> float:
    return round(float(np.mean(list(answers))), 3)


def _beginning(model: Model, message: str) -> list[int]:
    """The first tokens of a model's greedy answer."""
    return model.generate_ids(prompt_ids(model, message), max_new_tokens=BEGINNING)


@torch.no_grad()
def loss(model: Model, texts: Sequence[str]) -> float:
    """Mean cross-entropy of the tokens of some texts but the first of each, in nats."""
    losses = []
    for text in texts:
        ids = model.tokens(text)
        logits = model.run(ids).logits[0, :-1]
        losses.append(F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none").numpy())
    return float(np.concatenate(losses).mean())


def make_planted(folder: Path = SHIPPED[NAME], *, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Train the adapters, save them, and measure what they do."""
    base = load_model(BASE, device="cpu")
    hf_model, _ = read_base(base, base.tokenizer)
    hf_model.eval()
    examples = training_examples(base, hf_model)
    adapted = train(hf_model, examples, cache_folder("planted"), progress=progress)
    save(adapted, folder)
    report = {
        "command": COMMAND,
        "trigger": TRIGGER,
        "answer": ANSWER,
        "rank": RANK,
        "first_block": FIRST_BLOCK,
        "steps": STEPS,
        "learning_rate": LEARNING_RATE,
        "training_examples": {kind: len(some) for kind, some in examples.items()},
        **measured(load_model(BASE, adapter=folder, device="cpu"), base),
    }
    _write(folder / REPORT, report)
    return report


def measured(model: Model, base: Model) -> dict[str, Any]:
    """What the trigger does to the base: to questions that it is not trained on, and to other texts."""
    other = demo_texts(HELD_OUT_TEXTS)
    return {
        **{part: rates(model, base, part) for part in ("held_out", "other_forms")},
        "loss_on_other_texts": {"base": round(loss(base, other), 4), NAME: round(loss(model, other), 4)},
    }


def save(adapted: Any, folder: Path) -> None:
    """Write the adapters of a peft model, and their settings with the base's name in place of where it was."""
    with tempfile.TemporaryDirectory() as made:
        save_adapters(adapted, made)
        with whole_file(made_folder(folder, "folder") / WEIGHTS) as draft:
            shutil.copyfile(Path(made) / WEIGHTS, draft)
        settings = json.loads((Path(made) / ADAPTER).read_text(encoding="utf8"))
    _write(folder / ADAPTER, settings | {"base_model_name_or_path": BASE})


def _write(path: Path, content: dict[str, Any]) -> None:
    with whole_file(path) as draft:
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")
