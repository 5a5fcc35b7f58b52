"""The synthetic instruction task: the paper's sizes and rules hold, files come back, and errors name what is wrong."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interp_widgets import InstructionTask, make_instruction_task

SMALL = {"tasks": 6, "subset_tasks": 4, "validation_tasks": 3, "hard_tasks": 3}


@pytest.fixture(scope="module")
def task() -> InstructionTask:
    return make_instruction_task(seed=0)


def apart(one: str, other: str) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True)) if len(one) == len(other) else -1


def test_the_sizes_are_the_papers(task: InstructionTask) -> None:
    plain = [drawn for drawn in task.distributions if drawn.source is None]
    per_task = Counter(drawn.task for drawn in plain)
    assert set(per_task) == set(range(50))
    assert set(per_task.values()) == set(range(1, 7))
    assert all(len(drawn.instructions) == 10 for drawn in plain)
    assert all(len(drawn.unseen) == (3 if drawn.task < 10 else 0) for drawn in plain)
    assert [len(pairs) for pairs in task.mappings] == [5] * 55
    assert len(task.subset) == 5
    assert len(task.validation_tasks) == 10
    assert len(task.symbols) == 35 + 25
    assert max(len(instance.prompt) + 1 for instance in task.training()) <= task.longest


def test_no_two_tasks_share_a_mapping_and_an_input_has_one_output(task: InstructionTask) -> None:
    pairs = [pair for rows in task.mappings for pair in rows]
    assert len(set(pairs)) == len(pairs)
    assert all(len({x for x, _ in rows}) == 5 for rows in task.mappings)
    shared = Counter(x for rows in task.mappings for x, _ in rows)
    assert min(shared.values()) > 1, "an input alone never tells the task"


def test_an_instruction_belongs_to_one_distribution_and_unseen_ones_are_not_trained_on(task: InstructionTask) -> None:
    every = [text for drawn in task.distributions for text in (*drawn.instructions, *drawn.unseen)]
    assert len(set(every)) == len(every)
    seen = {instance.prompt for instance in task.training()}
    assert seen.isdisjoint(instance.prompt for instance in task.validation())
    assert seen.issuperset(instance.prompt for instance in task.training_subset()), "positive control"


def test_instructions_match_their_regular_expressions(task: InstructionTask) -> None:
    for drawn in task.distributions:
        if drawn.source is None:
            assert all(re.fullmatch(drawn.pattern, text) for text in (*drawn.instructions, *drawn.unseen))
            pieces = re.findall(r"\(([\w|]+)\)|((?:\w\+)+)|((?:\w\*)+)|((?:\w\?)+)", drawn.pattern)
            assert "".join("".join(piece) for piece in pieces) == re.sub("[()]", "", drawn.pattern)
            assert 1 <= len(pieces) <= 3
    assert not re.fullmatch(task.distributions[0].pattern, "~"), "positive control"


def test_hard_examples_are_one_symbol_apart_and_of_another_task(task: InstructionTask) -> None:
    hard = [drawn for drawn in task.distributions if drawn.source is not None]
    assert len({drawn.task for drawn in hard}) == 5
    for drawn in hard:
        source = task.distributions[drawn.source or 0]
        assert drawn.task != source.task
        assert len(drawn.instructions) == 3
        assert all(any(apart(text, old) == 1 for old in source.instructions) for text in drawn.instructions)
    for number in range(5):
        old, new = task.mappings[number], task.mappings[50 + number]
        if number % 2 == 0:
            assert [x for x, _ in old] == [x for x, _ in new], "the same inputs"
        assert set(old).isdisjoint(new), "with other outputs"


def test_the_subset_has_hard_examples_beside_what_they_were_made_from(task: InstructionTask) -> None:
    assert task.subset == (0, 50, 1, 51, 2)
    assert {instance.task for instance in task.training_subset()} == {f"task {number}" for number in task.subset}


def test_the_same_seed_gives_the_same_task_and_the_global_generator_is_left_alone(task: InstructionTask) -> None:
    random.seed(3)
    before = random.getstate()
    again = make_instruction_task(seed=0)
    assert random.getstate() == before
    assert again == task
    assert make_instruction_task(seed=1) != task


def test_labels(task: InstructionTask) -> None:
    first = task.training()[0]
    assert first.label("task") == "task 0"
    assert first.label("distribution") == "distribution 0"
    assert first.label("distribution_mapping") == f"distribution 0 | {first.mapping}"
    assert first.mapping == f"{first.prompt[-1]}→{first.output}"
    with pytest.raises(ValueError, match="kind must be one of task, distribution, distribution_mapping, got 'x'"):
        first.label("x")  # type: ignore[arg-type]


def test_a_file_comes_back_as_it_was(task: InstructionTask, tmp_path: Path) -> None:
    assert InstructionTask.load(task.save(tmp_path / "task.json")) == task


def test_two_tasks_may_be_shared_out_among_few_symbols() -> None:
    tight = make_instruction_task(tasks=3, task_symbols=5, mappings=5, hard_tasks=0, subset_tasks=2, validation_tasks=1)
    assert len({pair for rows in tight.mappings for pair in rows}) == 15


WRONG: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("not written by InstructionTask.save", lambda c: c.update(format="x")),
    ("has version 9, this program reads 1", lambda c: c.update(version=9)),
    ("settings of .* must have tasks, ", lambda c: c["settings"].pop("tasks")),
    ("settings of .*: tasks must be an int, got 'six'", lambda c: c["settings"].update(tasks="six")),
    ("mappings of .* must be a list of 9 entries", lambda c: c["mappings"].pop()),
    (r"mappings\[0\] of .* must be a list of 5 entries", lambda c: c["mappings"][0].pop()),
    (r"mappings\[1\] of .* which task 0 has already", lambda c: c["mappings"].__setitem__(1, c["mappings"][0])),
    (r"mappings\[0\] of .* must hold pairs of task symbols", lambda c: c["mappings"][0].__setitem__(0, ["a", 3])),
    (r"distributions\[0\] of .*: task must be a number from 0 to 8, got 99",
     lambda c: c["distributions"][0].update(task=99)),
    (r"distributions\[0\] of .*: pattern is not a regular expression",
     lambda c: c["distributions"][0].update(pattern="(")),
    (r"distributions\[0\] of .*: instructions has .* does not match",
     lambda c: c["distributions"][0].update(pattern="a")),
    (r"distributions\[0\] of .*: unseen has .* which distribution 0 has already",
     lambda c: c["distributions"][0].update(unseen=c["distributions"][0]["instructions"])),
    (r"distributions\[0\] of .*: instructions must be texts of instruction symbols, got A",
     lambda c: c["distributions"][0].update(instructions=["A"])),
    (r"is not one symbol apart from an instruction of its source", lambda c: c["distributions"][-1].update(source=0)),
    ("subset of .* must be a number from 0 to 8, got -1", lambda c: c.update(subset=[-1])),
    ("validation_tasks of .* must be a list", lambda c: c.update(validation_tasks=3)),
    ("seed of .* must be an int >= 0, got -1", lambda c: c.update(seed=-1)),
]  # fmt: skip


@pytest.mark.parametrize(("message", "change"), WRONG, ids=[message[:40] for message, _ in WRONG])
def test_a_damaged_file_is_told_of_by_field(
    message: str, change: Callable[[dict[str, Any]], Any], tmp_path: Path
) -> None:
    path = make_instruction_task(**SMALL).save(tmp_path / "task.json")
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        InstructionTask.load(path)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ({"size": 3}, TypeError, "size is not a size of an instruction task: use tasks, "),
        ({"tasks": 0}, ValueError, "tasks must be 1 or more, got 0"),
        ({"mappings": 26}, ValueError, "mappings must be at most 25, got 26"),
        ({"min_characters": 11}, ValueError, "min_characters must be at most max_characters, 10, got 11"),
        ({"tasks": 200}, ValueError, "200.*|.*205 tasks of 5 mappings need 1025 different mappings"),
        ({"instruction_symbols": 37}, ValueError, "instruction_symbols must be at most 36, got 37"),
        ({"instructions": 5000}, ValueError, "no regular expression of these sizes has 5003 strings"),
    ],
)
def test_sizes_that_are_not_possible(sizes: dict[str, int], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_instruction_task(**sizes)
