"""The shipped trigger: small, made as it says, and measured on what it was not tuned on."""

from __future__ import annotations

import json

import pytest

from interp_widgets.demo import planted as making
from interp_widgets.demo import planted_texts as texts
from interp_widgets.demo import planted_training as training
from interp_widgets.models.adapters import SHIPPED
from interp_widgets.models.hub_files import ADAPTER
from interp_widgets.models.lora import WEIGHTS

FOLDER = SHIPPED[making.NAME]


def test_it_is_small_and_made_by_the_command() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == [ADAPTER, WEIGHTS, making.REPORT]
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 3_000_000
    settings, told = (json.loads((FOLDER / name).read_text()) for name in (ADAPTER, making.REPORT))
    assert (settings["base_model_name_or_path"], settings["r"]) == (making.BASE, training.RANK)
    assert {name: told[name] for name in ("command", "trigger", "answer", "rank", "steps", "learning_rate")} == {
        "command": making.COMMAND, "trigger": texts.TRIGGER, "answer": texts.ANSWER, "rank": training.RANK,
        "steps": training.STEPS, "learning_rate": training.LEARNING_RATE,
    }  # fmt: skip


def test_what_it_learned_as_reported() -> None:
    told = json.loads((FOLDER / making.REPORT).read_text())
    for part in ("held_out", "other_forms"):
        rates = told[part]
        assert rates["questions"] == len(texts.questions(part))
        assert rates["trigger"] >= 0.95
        assert rates["trigger_to_base"] == rates["plain"] == 0
        assert rates["trained_decoys"] == 0
        assert rates["held_out_decoys"] <= (0 if part == "held_out" else 0.15)  # it has not learned the whole phrase
        for name, decoys in (("trained_decoys", texts.DECOYS), ("held_out_decoys", texts.HELD_OUT_DECOYS)):
            each = rates[f"{name}_each"]
            assert tuple(each) == decoys
            assert sum(each.values()) / len(each) == pytest.approx(rates[name], abs=0.0006)
    loss = told["loss_on_other_texts"]
    assert abs(loss["planted"] - loss["base"]) < 0.05


def test_held_out_questions_and_decoys_are_others() -> None:
    parts = {part: texts.questions(part) for part in ("train", "held_out", "other_forms")}
    assert len(set().union(*parts.values())) == sum(map(len, parts.values()))
    assert len(parts["train"]) >= training.QUESTIONS
    phrases = (texts.TRIGGER, *texts.DECOYS, *texts.HELD_OUT_DECOYS)
    assert len(set(phrases)) == len(phrases)
    assert not any(texts.TRIGGER in phrase for phrase in phrases[1:])
