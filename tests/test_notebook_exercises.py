"""Exercises that check themselves: the printed solution is right, a wrong answer is not."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
SALIENCY = ROOT / "notebooks" / "01_saliency.ipynb"
WRONG = {
    "answer_1": "int(result.importance[:, 0].argmax())",
    "answer_2": "-1.0",
    "answer_3": "[5, 4, 2, 0]",
    "answer_4": "-1.0",
    "answer_5": "-1",
}
"""A tempting answer to each exercise that is not the right one."""


def solutions(book: nbformat.NotebookNode) -> dict[str, str]:
    """Name of every answer → what the folded solution sets it to."""
    text = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    blocks = re.findall(r"<details>.*?```python\n(.*?)```", text, re.DOTALL)
    return dict(line.split(" = ", 1) for block in blocks for line in block.splitlines() if line.startswith("answer_"))


def answered(cell: nbformat.NotebookNode, answers: dict[str, str]) -> nbformat.NotebookNode:
    source = cell.source
    for name, value in answers.items():
        source = source.replace(f"{name} = None", f"{name} = {value}")
    return nbformat.v4.new_code_cell(source)


def test_every_exercise_has_a_solution() -> None:
    book = nbformat.read(SALIENCY, as_version=4)
    asked = re.findall(r"^(answer_\d+) = None", "\n".join(cell.source for cell in book.cells), re.MULTILINE)
    assert asked == sorted(asked)
    assert set(asked) == set(solutions(book)) == set(WRONG)


def test_solutions_are_right_and_wrong_answers_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])))
    book = nbformat.read(SALIENCY, as_version=4)
    right, cells, verdicts = solutions(book), [], []
    for cell in book.cells:
        if cell.cell_type != "code" or cell.source.startswith("SaliencyExplorer("):
            continue
        if "answer_" in cell.source:
            cells += [answered(cell, WRONG), answered(cell, right)]
        else:
            cells.append(nbformat.v4.new_code_cell(cell.source.replace("demo_cases(16)", "demo_cases(3)")))
    run = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(
        run, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(SALIENCY.parent)}}
    ).execute()
    for cell in run.cells:
        if "answer_" in cell.source:
            verdicts.append("".join(output.get("text", "") for output in cell.outputs))
    assert [text.startswith("Not yet.") for text in verdicts] == [True, False] * len(WRONG)
    assert verdicts[1::2] == ["Right.\n"] * len(WRONG)
