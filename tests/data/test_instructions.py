"""Instruction data: enough of it, split without overlap, spans that cover the instruction, checks that check."""

from __future__ import annotations

from itertools import pairwise

import pytest

from interp_widgets.data import instructions as ins
from interp_widgets.data import world_tables
from interp_widgets.data.cases import default_prompt, demo_cases, opening_prompt


def test_there_are_enough_tasks_and_phrasings() -> None:
    assert len(ins.tasks()) >= 16
    for task in ins.tasks():
        train, held_out = ins.phrasings(task, "train"), ins.phrasings(task, "held_out")
        assert len(train) >= 40
        assert len(held_out) >= 10
        assert not set(train) & set(held_out)
        assert len({ins.phrase(task, p)[0] for p in train + held_out}) == len(train) + len(held_out)


def test_splits_share_no_phrasing_and_no_input() -> None:
    train = ins.instruction_cases("train", 3000, seed=0)
    held_out = ins.instruction_cases("held_out", 500, seed=0)
    assert not {(c.task, c.phrasing) for c in train} & {(c.task, c.phrasing) for c in held_out}
    assert not {(c.task, c.input) for c in train} & {(c.task, c.input) for c in held_out}
    assert {c.task for c in train} == {c.task for c in held_out} == set(ins.tasks())


def test_cases_are_the_same_for_the_same_seed() -> None:
    assert ins.instruction_cases("train", 100, seed=4) == ins.instruction_cases("train", 100, seed=4)
    assert ins.instruction_cases("train", 100, seed=4) != ins.instruction_cases("train", 100, seed=5)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_spans_cover_the_instruction_words(split: ins.Split) -> None:
    for case in ins.instruction_cases(split, 600, seed=1):
        start, end = case.instruction_span
        words = case.prompt[start:end]
        assert words == case.instruction
        core = world_tables.CORES[case.task][case.phrasing[0]]
        assert core.lower() in words.lower()
        assert case.prompt[:start].endswith("Instruction: ")
        assert case.prompt[end] in "\n:"
        assert case.prompt.endswith("Response:")
        assert case.response.startswith(" ")


def test_reference_responses_follow_and_others_do_not() -> None:
    cases = ins.instruction_cases("train", 1000, seed=2)
    assert all(ins.follows(case, case.response) for case in cases)
    assert not any(ins.follows(case, "") for case in cases)
    assert not any(ins.follows(case, case.prompt) for case in cases)
    # A response to another task is no response to this one.
    wrong = [ins.follows(a, b.response) for a, b in pairwise(cases)]
    assert sum(wrong) < 0.02 * len(wrong)


def test_some_responses_are_long_and_layouts_vary() -> None:
    cases = ins.instruction_cases("train", 1000, seed=3)
    assert sum(len(c.response.split()) >= 34 for c in cases) > 50
    assert any(c.prompt.startswith("Context: ") for c in cases)
    assert any(c.prompt.startswith("Input: ") for c in cases)
    assert any("Input:" not in c.prompt for c in cases)


def test_format_prompt() -> None:
    assert ins.format_prompt("Count.") == "Instruction: Count.\nResponse:"
    assert ins.format_prompt("Count.", "a b", "So.") == "Context: So.\nInstruction: Count.\nInput: a b\nResponse:"
    assert ins.format_prompt("Count.", "a b", input_first=True) == "Input: a b\nInstruction: Count.\nResponse:"
    with pytest.raises(ValueError, match="empty"):
        ins.format_prompt(" ")


def test_saliency_cases() -> None:
    cases = demo_cases(30, seed=1)
    assert len(cases) == 30
    for case in cases:
        assert case.instruction is not None
        assert case.prompt[slice(*case.instruction)].strip()
    first = default_prompt()
    assert first.instruction is not None
    assert "country" in first.prompt[slice(*first.instruction)]
    opening = opening_prompt()
    assert opening.instruction is not None
    assert opening.prompt[slice(*opening.instruction)] == "Can you list some examples with the right number?"
