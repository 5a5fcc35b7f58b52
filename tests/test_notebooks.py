"""Every notebook runs from top to bottom and shows its widgets; its exercises tell right answers from wrong ones."""

from __future__ import annotations

import ast
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
WRONG = {
    "00_start": {},
    "01_saliency": {
        "answer_1": "int(result.importance[:, 0].argmax())",
        "answer_2": "-1.0",
        "answer_3": "[5, 4, 2, 0]",
        "answer_4": "-1.0",
        "answer_5": "-1",
    },
    "02_logit_lens": {
        "answer_1": "1",
        "answer_2": "np.mean(depth['indirect objects'] > 3)",
        "answer_3": "kl['tuned lens'][3] / kl['logit lens'][3]",
    },
    "03_ablation": {"answer_1": "(5, 8)", "answer_2": "1.0", "answer_3": "0"},
    "04_token_decomposition": {
        "answer_1": "float(shares.share[1] / shares.logit)",
        "answer_2": "float(split.share[1])",
        "answer_3": "1.0",
    },
    "05_head_words": {
        "answer_1": "(same_sign & near & different).mean()",
        "answer_2": "chance_pairs / real_pairs",
        "answer_3": "9",
    },
    "06_ffn_concepts": {
        "answer_1": "sum(nearest_cosine(5, component) > limit for component in range(192))",
        "answer_2": "effects.strongest(1)[0][1] / effects.logit",
        "answer_3": "named",
    },
    "07_base_vs_tuned": {
        "answer_1": "1 - len(A & B) / 100",
        "answer_2": "np.linalg.svd(P @ Q.T, compute_uv=False).mean()",
        "answer_3": "3",
    },
    "08_concepts": {
        "answer_1": "told(base)",
        "answer_2": "instruments(near_on_the_map('piano'))",
        "answer_3": "jobs[:, 0].mean()",
    },
    "09_mixture_of_depths": {
        "answer_1": "hit.any(axis=0).mean() - hit[-1].mean()",
        "answer_2": "before['equal'].mean() / after['router'].mean()",
        "answer_3": "(found.exit_layer < found.n_layers - 1).mean()",
    },
    "10_your_own_probe": {
        "answer_1": "(0, 5)",
        "answer_2": "np.log2(len(model.tokens(prompt)))",
        "answer_3": "mixed.accuracy - apart.accuracy",
    },
}
"""Notebook → a tempting answer to each of its exercises that is not the right one."""


@pytest.fixture(autouse=True)
def source_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels run this very source, installed or not."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def solutions(book: Any) -> dict[str, str]:
    """Name of every answer → what the folded solution sets it to."""
    text = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    blocks = re.findall(r"<details>.*?```python\n(.*?)```", text, re.DOTALL)
    return dict(line.split(" = ", 1) for block in blocks for line in block.splitlines() if line.startswith("answer_"))


JUDGED_BY_RULE = [path for path in NOTEBOOKS if "def check(answer, is_right, hint)" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", JUDGED_BY_RULE, ids=lambda path: path.stem)
def test_an_answer_of_another_kind_is_told_too(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = nbformat.read(path, as_version=4)
    (source,) = [cell.source for cell in book.cells if "\ndef check(" in cell.source]
    (judge,) = [part for part in ast.parse(source).body if isinstance(part, ast.FunctionDef) and part.name == "check"]
    names: dict[str, Any] = {}
    exec(compile(ast.Module([judge], []), path.name, "exec"), names)
    for answer in (None, "three", [1, 2], 3, 2):
        names["check"](answer, lambda number: abs(number - 2) < 1e-6, "It is a number.")
    told = capsys.readouterr().out.splitlines()
    assert told == ["Your turn: replace None and run the cell again.", *["Not yet. It is a number."] * 3, "Right."]


def with_answers(book: Any, *answers: dict[str, str]) -> Any:
    """The notebook with every exercise cell as it stands, and again with each set of answers."""
    cells = []
    for cell in book.cells:
        cells.append(cell)
        asked = re.findall(r"^(answer_\w+) = None", cell.source, re.MULTILINE) if cell.cell_type == "code" else []
        for given in answers if asked else ():
            source = cell.source
            for name in asked:
                source = source.replace(f"{name} = None", f"{name} = {given[name]}")
            cells.append(nbformat.v4.new_code_cell(source))
    return nbformat.v4.new_notebook(cells=cells, metadata=book.metadata)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_judges_its_exercises(path: Path, warm_kernel: str) -> None:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    right, wrong = solutions(book), WRONG[path.stem]
    assert set(right) == set(wrong), "every exercise needs a solution in the notebook and a wrong answer here"
    run = with_answers(book, wrong, right)
    NotebookClient(
        run, timeout=240, kernel_name=warm_kernel, resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    outputs = [output for cell in run.cells for output in cell.get("outputs", [])]
    assert any(WIDGET in output.get("data", {}) for output in outputs), f"{path.name} shows no widget"
    said = [text for output in outputs for text in output.get("text", "").splitlines()]
    verdicts = [text.split()[0] for text in said if text.startswith(("Your turn:", "Not yet.", "Right."))]
    assert verdicts == ["Your", "Not", "Right."] * len(right)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs"), f"{path.name} has stored outputs: clear them before saving"
        assert cell.get("execution_count") is None


def test_every_notebook_is_listed() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(WRONG)


def test_a_failing_cell_is_noticed() -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    with pytest.raises(Exception, match="ZeroDivisionError"):
        NotebookClient(book, timeout=60, kernel_name="python3").execute()
