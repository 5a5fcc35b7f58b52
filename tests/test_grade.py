"""`make grade`: whatever a student's notebook does is a line of the table, and sealed folders are graded."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from interp_widgets import open_sealed, seal_circuit
from interp_widgets.models.circuits import sealed_truth
from tests.waiting import LIMIT

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
WORDS = "four words of mine"
LESSON = """\
from types import SimpleNamespace
import numpy as np
from exercises import judge
model, prompt = SimpleNamespace(tokens=lambda text: [0, 1], d_vocab=100), ""
check = judge("30_your_own_probe", globals())"""
EXITS, DIES = "import sys; sys.exit()\nanswer_1 = 1", "import os; os._exit(1)\nanswer_3 = 1"
RIGHT = "answer_2 = np.log(2)", "check(2, answer_2)"


@pytest.fixture(scope="module")
def grade() -> Iterator[ModuleType]:
    sys.path.insert(0, str(NOTEBOOKS))
    import grade as module

    yield module
    sys.path.remove(str(NOTEBOOKS))


def write(path: Path, *cells: str) -> None:
    made = [{"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": c} for c in cells]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}))


@pytest.mark.seconds
def test_a_line_per_exercise_whatever_the_notebook_does(grade: ModuleType, tmp_path: Path) -> None:
    folder, out = tmp_path / "handed in", tmp_path / "grades.csv"
    folder.mkdir()
    write(folder / "anna" / "probe.ipynb", LESSON, EXITS, "check(1, answer_1)", "answer_2 = None", *RIGHT, DIES)
    write(folder / "ben.ipynb", "print(1)")
    (folder / "cora.ipynb").write_text("{")
    grade.main([str(folder), "--out", str(out), "--seconds", str(LIMIT)])
    rows = list(csv.DictReader(out.open(encoding="utf8")))
    assert [(row["student"], row["exercise"], row["verdict"], row["points"]) for row in rows] == [
        ("anna/probe", "answer_1", "error", "0.0"), ("anna/probe", "answer_2", "right", "1.0"),
        ("anna/probe", "answer_3", "error", "0.0"), ("ben", "", "error", "0.0"), ("cora", "", "error", "0.0"),
    ]  # fmt: skip
    notes = [row["note"] for row in rows]
    assert notes[:3] == ["SystemExit", "", "the notebook ended its kernel"]
    assert "no lesson of the course" in notes[3]
    assert "not graded" in notes[4]


def test_verdicts_on_a_lesson(grade: ModuleType) -> None:
    model = SimpleNamespace(tokens=lambda text: [0, 1], d_vocab=100)
    names = {"model": model, "prompt": "", "answer_1": None, "answer_2": 3}
    found = [grade.verdict("30_your_own_probe", f"answer_{number}", names, None) for number in (1, 2, 3)]
    assert [one["verdict"] for one in found] == ["empty", "wrong", "error"]
    assert "is not there" in found[2]["note"]


def test_a_graded_notebook_adds_nothing_to_the_progress_of_who_grades(
    grade: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(grade.VARIABLE, str(tmp_path / "course.json"))
    kernel = grade.Kernel(tmp_path, seconds=LIMIT)
    try:
        assert kernel.run(f"import os; print(repr(os.environ[{grade.VARIABLE!r}]))") == ("''\n", "")
    finally:
        kernel.close()


def test_a_cell_that_runs_too_long_is_stopped(grade: ModuleType, tmp_path: Path) -> None:
    kernel = grade.Kernel(tmp_path, seconds=0)
    try:
        assert kernel.run("while True: pass") == ("", "a cell ran for more than 0 s")
        assert kernel.run("print(1)") == ("1\n", "")
    finally:
        kernel.close()


def test_sealed_folders_are_graded_with_their_passphrase(grade: ModuleType, tmp_path: Path) -> None:
    sealed = open_sealed(seal_circuit("trigger", tmp_path / "a", WORDS))
    truth = sealed_truth(sealed, passphrase=WORDS)
    right = {head for case in truth.cases for head in case.heads}
    right |= {("mlp", layer) for case in truth.cases for layer, _ in case.neurons}
    names: dict[str, Any] = {"model_a": sealed, "parts_a": list(right)}

    opened = grade.verdict("project", "parts_a", names, WORDS)
    assert (opened["verdict"], opened["points"], opened["most"]) == ("right", 3.0, 3.0)
    locked = grade.verdict("project", "parts_a", names, None)
    assert (locked["verdict"], locked["points"]) == ("locked", 0.0)
    assert "needed" in locked["note"]
    with pytest.raises(ValueError, match="passphrase"):
        grade.verdict("project", "parts_a", names, "other words")
    assert grade.verdict("project", "parts_a", {**names, "parts_a": None}, WORDS)["verdict"] == "empty"
