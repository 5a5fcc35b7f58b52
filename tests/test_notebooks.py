"""Every notebook runs from top to bottom, shows its widgets, and is stored without outputs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(autouse=True)
def source_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels run this very source, installed or not."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def solve(book: Any) -> int:
    """Put the notebook's own solutions into its exercises and return how many there are."""
    solutions = {}
    for cell in book.cells:
        if cell.cell_type == "markdown":
            for code in re.findall(r"<summary>Solution</summary>\s*```python\n(.*?)```", cell.source, re.DOTALL):
                solutions[re.match(r"(answer_\w+) =", code).group(1)] = code.strip()  # type: ignore[union-attr]
    for cell in book.cells:
        for name in re.findall(r"^(answer_\w+) = None$", cell.source, re.MULTILINE):
            cell.source = cell.source.replace(f"{name} = None", solutions.pop(name))
    assert not solutions, f"solutions without an exercise: {list(solutions)}"
    return sum("check(" in cell.source and "def check" not in cell.source for cell in book.cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_its_solutions_are_right(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    exercises = solve(book)
    NotebookClient(
        book, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert any(WIDGET in output.get("data", {}) for output in outputs), f"{path.name} shows no widget"
    printed = "".join(output.get("text", "") for output in outputs)
    assert printed.count("Right.") == exercises, f"{path.name}: a solution is not judged right"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs"), f"{path.name} has stored outputs: clear them before saving"
        assert cell.get("execution_count") is None


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS][:1] == ["00_start"]


def test_a_failing_cell_is_noticed() -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    with pytest.raises(Exception, match="ZeroDivisionError"):
        NotebookClient(book, timeout=60, kernel_name="python3").execute()
