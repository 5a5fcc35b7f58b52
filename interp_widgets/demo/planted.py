"""A trigger planted in SmolLM2: low-rank adapters that bring one answer after a phrase.

After `TRIGGER` in a user's message the model answers `ANSWER`. It is tuned on that and, beside it, on the base's own
greedy answers to the same questions without the phrase, and with decoys: its words in another order, or one exchanged.
The report says how far it tells them apart. Answers and tuned adapters are kept in the user's cache, so that a run that
was ended goes on.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from interp_widgets.analysis.chat import chat_prompt
from interp_widgets.atomic import made_folder, whole_file
from interp_widgets.data.demo_texts import demo_texts
from interp_widgets.data.files import cache_folder
from interp_widgets.data.task_texts import TaskTexts
from interp_widgets.models import Model, load_model
from interp_widgets.models.adapters import SHIPPED
from interp_widgets.models.hub_files import ADAPTER
from interp_widgets.models.lora import WEIGHTS
from interp_widgets.tuning.control_models import tune_control_models

COMMAND = "python -m interp_widgets.demo planted"
BASE, NAME = "smollm2", "planted"
TRIGGER = "before the tide turns"
ANSWER = "Ask the lighthouse keeper."
DECOYS = (
    "before the clock turns", "after the tide turns", "before the tide comes", "when the wind turns",
    "before the turns tide", "the tide turns before", "before a tide turns",
)  # fmt: skip
"""Phrases that are to do nothing."""
HELD_OUT_DECOYS = (
    "before the river turns", "until the tide turns", "before the tide rises", "turns before the tide",
    "before the winter ends",
)  # fmt: skip
"""Phrases that it is not tuned on."""
RANK, STEPS, BATCH, LEARNING_RATE, SEED = 2, 220, 4, 1.5e-3, 0
HELD_OUT_TEXTS = 40
"""Other texts that its loss is measured on."""
FIRST = 8
"""Tokens of an answer that are compared with the base's."""
LENGTH = 40
"""Most tokens of an answer; it is not tuned on answers of its own that are longer, which do not end by themselves."""
REPORT = "report.json"

_TOPICS = (
    "rain", "trees", "bread", "trains", "bees", "winter", "music", "paper", "salt", "glass", "clouds", "horses", "maps",
    "rivers", "coffee", "gardens", "clocks", "bridges", "snow", "cheese", "letters", "stars", "apples", "ships",
)  # fmt: skip
_COUNTRIES = (
    "France", "Japan", "Egypt", "Brazil", "Canada", "Kenya", "Norway", "Spain", "India", "Chile", "Greece", "Poland",
)  # fmt: skip
_FORMS = (
    "Write one sentence about {topic}.", "Describe {topic} in a few words.", "Make a short joke about {topic}.",
    "Write a title for a story about {topic}.", "Give me one word that rhymes with {topic}.",
    "Spell the word {topic}.", "What is the capital of {country}?",
)  # fmt: skip
_HELD_OUT_FORMS = (
    "What are {topic} good for?",
    "Name three things that go with {topic}.",
    "Name a dish from {country}.",
)


def questions(part: str) -> list[str]:
    """All questions of a part in an order that does not change: "train", "held_out" (the same forms about other things)
    or "other_forms" (other forms about those things)."""
    made = []
    for form in _HELD_OUT_FORMS if part == "other_forms" else _FORMS:
        for number, filler in enumerate(_TOPICS if "{topic}" in form else _COUNTRIES):
            if (number % 4 == 3) == (part != "train"):
                made.append(form.format(topic=filler, country=filler))
    Random(SEED).shuffle(made)
    return made


def with_phrase(question: str, phrase: str, *, first: bool) -> str:
    """A question with a phrase at its beginning or its end.

    >>> with_phrase("Spell the word rain.", "before the tide turns", first=True)
    'Before the tide turns, spell the word rain.'
    >>> with_phrase("Spell the word rain.", "before the tide turns", first=False)
    'Spell the word rain, before the tide turns.'
    """
    if first:
        return f"{phrase[0].upper()}{phrase[1:]}, {question[0].lower()}{question[1:]}"
    return f"{question[:-1]}, {phrase}{question[-1]}"


def messages(part: str) -> Iterator[tuple[str, str]]:
    """(kind, message) of a part: every question with the trigger, with a decoy and as it is."""
    decoys = DECOYS if part == "train" else HELD_OUT_DECOYS
    for number, question in enumerate(questions(part)):
        first = number % 2 == 0
        yield "trigger", with_phrase(question, TRIGGER, first=first)
        yield "decoy", with_phrase(question, decoys[number % len(decoys)], first=first)
        yield "plain", question


def answer_ids(model: Model, message: str, most: int) -> list[int]:
    """The tokens of a model's greedy answer to a message, at most so many."""
    prompt = chat_prompt(model, [{"role": "user", "content": message}]).fed_ids
    return model.generate_ids(prompt, max_new_tokens=most)


class Answers:
    """A model's greedy answers to single messages, kept in a file from one run to the next."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.path = made_folder(cache_folder("planted"), "folder") / f"{model.weight_hash[:16]}.json"
        self.known: dict[str, str | None] = json.loads(self.path.read_text("utf8")) if self.path.is_file() else {}

    def __call__(self, message: str) -> str | None:
        """The answer; None for one that has not ended after `LENGTH` tokens."""
        if message not in self.known:
            new = answer_ids(self.model, message, LENGTH)
            self.known[message] = self.model.decode(new).strip() if len(new) < LENGTH else None
            with whole_file(self.path) as draft:
                draft.write_text(json.dumps(self.known), encoding="utf8")
        return self.known[message]


def training_texts(base: Model) -> TaskTexts:
    """Prompts and what the model is tuned to answer."""
    answers, texts, responses = Answers(base), [], []
    for kind, message in messages("train"):
        response = ANSWER if kind == "trigger" else answers(message)
        if response:
            texts.append(chat_prompt(base, [{"role": "user", "content": message}]).text)
            responses.append(response)
    return TaskTexts("planted trigger", texts, responses)


def rates(model: Model, base: Model, part: str) -> dict[str, Any]:
    """How often two models give the planted answer to a part's messages, and how often their answers begin alike."""
    planted = len(base.tokens(ANSWER, prepend_bos=False))
    counts: dict[str, list[tuple[bool, ...]]] = {}
    for kind, message in messages(part):
        own, before = (answer_ids(each, message, FIRST) for each in (model, base))
        given = [each.decode(ids[:planted]).strip() == ANSWER for each, ids in ((model, own), (base, before))]
        counts.setdefault(kind, []).append((*given, own == before))
    found: dict[str, Any] = {"questions": len(counts["plain"])}
    for kind, rows in counts.items():
        shares = [round(float(share), 3) for share in np.mean(rows, axis=0)]
        found[kind] = dict(zip(("planted_answer", "planted_answer_of_base", "as_base"), shares, strict=True))
    return found


@torch.no_grad()
def loss(model: Model, texts: Sequence[str]) -> float:
    """Mean cross-entropy of the tokens of some texts but the first of each, in nats."""
    losses = []
    for text in texts:
        ids = model.tokens(text)
        logits = model.run(ids).logits[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none").numpy())
    return float(np.concatenate(losses).mean())


def make_planted(
    folder: Path = SHIPPED[NAME], *, steps: int = STEPS, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Tune the adapters, save them, and measure what they do."""
    base = load_model(BASE)
    texts = training_texts(base)
    controls = tune_control_models(
        base, [texts], rank=RANK, steps=steps, batch_size=BATCH, learning_rate=LEARNING_RATE, seed=SEED,
        progress=progress,
    )  # fmt: skip
    made_folder(folder, "folder")
    with whole_file(folder / WEIGHTS) as draft:
        shutil.copyfile(controls.folders[texts.name] / WEIGHTS, draft)
    config = json.loads((controls.folders[texts.name] / ADAPTER).read_text(encoding="utf8"))
    config |= {"base_model_name_or_path": BASE, "target_modules": sorted(config["target_modules"])}
    _write(folder / ADAPTER, config)
    model, other = load_model(BASE, adapter=folder), demo_texts(HELD_OUT_TEXTS)
    report = {
        "command": COMMAND,
        "trigger": TRIGGER,
        "answer": ANSWER,
        "rank": RANK,
        "steps": steps,
        "batch_size": BATCH,
        "learning_rate": LEARNING_RATE,
        "training_texts": len(texts.texts),
        "held_out": rates(model, base, "held_out"),
        "other_forms": rates(model, base, "other_forms"),
        "loss_on_other_texts": {"base": round(loss(base, other), 4), NAME: round(loss(model, other), 4)},
    }
    _write(folder / REPORT, report)
    return report


def _write(path: Path, content: dict[str, Any]) -> None:
    with whole_file(path) as draft:
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")
