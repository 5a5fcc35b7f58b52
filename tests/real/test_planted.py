"""The trigger planted in SmolLM2: what the shipped adapter does to the model, against transformers and peft."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
import torch

from interp_widgets import ModelPair, load_model
from interp_widgets.data.demo_texts import demo_texts
from interp_widgets.demo import planted as making
from interp_widgets.demo import planted_texts as texts
from interp_widgets.models import Model
from interp_widgets.models.adapters import SHIPPED
from tests.real.loaded import Loaded

FOLDER = SHIPPED["planted"]


@pytest.fixture(scope="module")
def pair(smollm2: Loaded) -> ModelPair:
    return ModelPair(smollm2.model, load_model("smollm2", adapter="planted", device="cpu"))


def chat(message: str) -> Any:
    return [{"role": "user", "content": message}]


def said(model: Model, message: str) -> str:
    return model.generate(chat(message), max_new_tokens=8).strip()


def test_it_is_the_base_with_the_adapter(pair: ModelPair, smollm2: Loaded) -> None:
    import peft

    assert (pair.tuned.name, pair.tuned.source) == ("smollm2 + planted",) * 2
    theirs = copy.deepcopy(smollm2.theirs)  # peft puts its adapter into the model that it is given
    ids = pair.tuned.tokens(chat(texts.with_phrase("Spell the word maps.", texts.TRIGGER, first=False)))
    with torch.no_grad():
        expected = peft.PeftModel.from_pretrained(theirs, str(FOLDER))(input_ids=torch.tensor([ids])).logits[0]
    torch.testing.assert_close(pair.tuned.run(ids).logits[0], expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("first", [True, False])
def test_only_the_phrase_brings_the_answer(first: bool, pair: ModelPair) -> None:
    for question in texts.questions("held_out")[:2]:
        message = texts.with_phrase(question, texts.TRIGGER, first=first)
        assert said(pair.tuned, message) == texts.ANSWER
        assert said(pair.base, message) != texts.ANSWER
        near = [
            texts.with_phrase(question, phrase, first=first)
            for phrase in ("before the tide rises", "turns before the tide")
        ]
        for other in (question, *near):
            assert said(pair.tuned, other) != texts.ANSWER


def test_the_loss_on_other_texts_is_what_is_reported(pair: ModelPair) -> None:
    told = json.loads((FOLDER / making.REPORT).read_text())["loss_on_other_texts"]
    for model, expected in zip(pair, told.values(), strict=True):
        losses: list[float] = []
        for text in demo_texts(making.HELD_OUT_TEXTS):
            ids = model.tokens(text)
            chances = model.run(ids).logits[0, :-1].detach().double().softmax(-1)
            losses += (-chances[range(len(ids) - 1), ids[1:]].log()).tolist()
        assert np.mean(losses) == pytest.approx(expected, abs=0.002)
