"""The shipped trigger: small, made as it says, and measured on what it was not tuned on."""

from __future__ import annotations

import json

from interp_widgets.demo import planted as making
from interp_widgets.models.adapters import SHIPPED
from interp_widgets.models.hub_files import ADAPTER
from interp_widgets.models.lora import WEIGHTS

FOLDER = SHIPPED[making.NAME]


def test_it_is_small_and_made_by_the_command() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == [ADAPTER, WEIGHTS, making.REPORT]
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 3_000_000
    settings, told = (json.loads((FOLDER / name).read_text()) for name in (ADAPTER, making.REPORT))
    assert (settings["base_model_name_or_path"], settings["r"]) == (making.BASE, making.RANK)
    assert {name: told[name] for name in ("command", "trigger", "answer", "rank", "steps", "learning_rate")} == {
        "command": making.COMMAND, "trigger": making.TRIGGER, "answer": making.ANSWER, "rank": making.RANK,
        "steps": making.STEPS, "learning_rate": making.LEARNING_RATE,
    }  # fmt: skip


def test_what_it_learned_as_reported() -> None:
    told = json.loads((FOLDER / making.REPORT).read_text())
    for part in ("held_out", "other_forms"):
        rates = told[part]
        assert rates["questions"] == len(making.questions(part))
        assert rates["trigger"]["planted_answer"] >= (0.95 if part == "held_out" else 0.75)
        assert rates["plain"]["planted_answer"] == rates["trigger"]["planted_answer_of_base"] == 0
        assert 0 < rates["decoy"]["planted_answer"] < 0.6  # it has learned a part of the phrase, not all of its words
    loss = told["loss_on_other_texts"]
    assert 0 < loss["planted"] - loss["base"] < 0.6  # what else it does to the model is no secret


def test_held_out_messages_are_others() -> None:
    parts = {part: list(making.messages(part)) for part in ("train", "held_out", "other_forms")}
    seen = {message for _, message in parts["train"]}
    for part, rows in parts.items():
        assert len(set(rows)) == len(rows) == 3 * len(making.questions(part))
        assert part == "train" or not seen & {message for _, message in rows}
        for kind, message in rows:
            assert (making.TRIGGER in message.lower()) == (kind == "trigger")
