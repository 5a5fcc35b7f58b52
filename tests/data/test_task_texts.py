"""The demo's tasks as lists of texts."""

from __future__ import annotations

from typing import Any

import pytest

from interp_widgets import TaskTexts, demo_task_texts
from interp_widgets.data.instructions import tasks
from interp_widgets.data.task_texts import CLUSTERS, UNSEEN
from interp_widgets.data.world_tables import CORES, PLURALS


def test_every_task_has_its_cluster_and_different_texts() -> None:
    every = demo_task_texts(40)
    assert {task.name for task in every} == {*tasks(), *UNSEEN}
    assert {task for members in CLUSTERS.values() for task in members} == set(CORES)
    for task in every:
        assert len(set(task.texts)) == len(task.texts) == len(task.responses) == 40
        assert all(text.endswith("Response:") for text in task.texts)
        assert all(answer.startswith(" ") for answer in task.responses)
        assert task.unseen == (task.name in UNSEEN) == (task.cluster == "unseen")


def test_unseen_tasks_have_right_answers() -> None:
    by_name = {task.name: task for task in demo_task_texts(30)}
    pairs = {name: list(zip(task.texts, task.responses, strict=True)) for name, task in by_name.items()}
    for text, answer in pairs["singular"]:
        assert PLURALS[answer.strip()] == text.rpartition("Input: ")[2].partition("\n")[0]
    for text, answer in pairs["second"]:
        assert text.rpartition("Input: ")[2].split()[1] == answer.strip()


def test_the_seed_decides() -> None:
    names = ["plural", "second"]
    assert demo_task_texts(10, names=names) == demo_task_texts(10, names=names)
    assert demo_task_texts(10, names=names) != demo_task_texts(10, names=names, seed=1)
    assert [task.name for task in demo_task_texts(10, names=names)] == names


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: demo_task_texts(3), "texts must be 4 or more"),
        (lambda: demo_task_texts(names=["list"]), "names must be of plural, .*, got 'list'"),
        (lambda: demo_task_texts(names=["singular"], unseen=False), "got 'singular'"),
        (lambda: TaskTexts("", ("a",)), "a task needs a name and texts, got name '' and 1 texts"),
        (lambda: TaskTexts("a", ()), "got name 'a' and 0 texts"),
        (lambda: TaskTexts("a", ("x", "")), "task 'a': texts must be a list of str that are not empty"),
        (lambda: TaskTexts("a", "text"), "task 'a': texts must be a list of str"),
        (lambda: TaskTexts("a", ("x", "y"), ("z",)), "responses must be one per text, 2, got 1"),
    ],
)
def test_refusals(call: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()
