"""Natural instructions: the demo's tasks, and files of inputs and outputs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from interp_widgets import demo_instructions, read_instructions
from interp_widgets.data.instructions import task_table
from tests.conftest import REFERENCE

WORDS = {"plural": ("linguistic", "Write the plural."), "capital": ("knowledge", "Name the capital.")}


def write(folder: Path, rows: object, name: str = "plural") -> Path:
    (folder / f"{name}.json").write_text(json.dumps(rows))
    return folder


def test_the_demo_tasks_in_three_categories() -> None:
    instances = demo_instructions(phrasings_per_task=4, inputs=3)
    assert Counter(instance.task for instance in instances) == {"translation": 24, "linguistic": 48, "knowledge": 48}
    assert set(Counter(instance.distribution for instance in instances).values()) == {12}
    assert len({instance.prompt for instance in instances}) == len(instances)
    for instance in instances:
        x, y = instance.mapping.split("→")
        assert (x, y) in task_table(instance.distribution)
        assert instance.output == " " + y
        assert f"Input: {x}\n" in instance.prompt
        assert instance.prompt.endswith("Response:")
    assert demo_instructions(phrasings_per_task=4, inputs=3) == instances
    assert demo_instructions(phrasings_per_task=4, inputs=3, seed=1) != instances


def test_a_count_that_a_task_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="phrasings_per_task must be from 1 to 70 for the task french, got 71"):
        demo_instructions(phrasings_per_task=71)
    with pytest.raises(ValueError, match="inputs must be from 1 to "):
        demo_instructions(inputs=0)


def test_files_in_the_users_own_words(tmp_path: Path) -> None:
    write(tmp_path, [{"input": "cat", "output": "cats"}, {"input": "sea lion", "output": "sea lions"}])
    write(tmp_path, [{"input": "France", "output": "Paris"}], "capital")
    ways = ["{task}", "Please: {task}"]
    one = read_instructions(tmp_path, WORDS, paraphrases=ways, inputs=1, template="{input} | {instruction}")
    assert [instance.prompt for instance in one] == [
        "cat | Write the plural.", "cat | Please: Write the plural.",
        "France | Name the capital.", "France | Please: Name the capital.",
    ]  # fmt: skip
    assert [instance.label("task") for instance in one] == ["linguistic", "linguistic", "knowledge", "knowledge"]
    both = read_instructions(tmp_path, {"plural": WORDS["plural"]}, inputs=2, single_word=False)
    assert {instance.mapping for instance in both} == {"cat→cats", "sea lion→sea lions"}


def test_what_files_and_templates_must_have(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder of tasks"):
        read_instructions(tmp_path / "none")
    with pytest.raises(ValueError, match=r"has no file of a known name"):
        read_instructions(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no file of the task plural"):
        read_instructions(tmp_path, WORDS)
    with pytest.raises(ValueError, match=r"template must have \{instruction\} and \{input\} in it"):
        read_instructions(tmp_path, WORDS, template="{input}")
    with pytest.raises(ValueError, match=r"paraphrases must be texts with \{task\} in them"):
        read_instructions(tmp_path, WORDS, paraphrases=["Do it."])
    write(tmp_path, [{"input": "cat"}])
    with pytest.raises(ValueError, match=r"mapping 0 of .* must have texts under 'input' and 'output'"):
        read_instructions(tmp_path, {"plural": WORDS["plural"]})
    write(tmp_path, [{"input": "cat", "output": "cats"}])
    with pytest.raises(ValueError, match=r"inputs must be from 1 to 1 for the task plural of .*plural\.json, got 2"):
        read_instructions(tmp_path, {"plural": WORDS["plural"]}, inputs=2)


def test_published_task_files_have_all_three_categories() -> None:
    folder = REFERENCE / "tasks"
    if not folder.is_dir():
        pytest.skip("the reference task files are not beside the project")
    instances = read_instructions(folder, inputs=4)
    assert {instance.task for instance in instances} == {"translation", "linguistic", "knowledge"}
    assert all(len(instance.output.split()) == 1 for instance in instances)
