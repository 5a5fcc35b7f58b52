"""Every notebook runs from top to bottom and shows its widgets; its exercises tell right answers from wrong ones."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

import interp_widgets
from tests.lesson_claims import CLAIMS
from tests.waiting import LIMIT

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MARKS = {"00_start": pytest.mark.installation}
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
    "03_ablation": {"answer_1": "(5, 8)", "answer_2": "share_right(pairs[0])", "answer_3": "0"},
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
        "answer_3": "(found.n_layers - 1 - found.exit_layer).mean()",
    },
    "10_your_own_probe": {
        "answer_1": "(0, 5)",
        "answer_2": "np.log2(len(model.tokens(prompt)))",
        "answer_3": "mixed.accuracy - apart.accuracy",
    },
    "11_workbench": {
        "answer_1": "' Japan'",
        "answer_2": "float(parts[0].share.max() / parts[0].logit)",
        "answer_3": "60",
    },
    "12_bias": {
        "answer_1": "92.79 * 68.55 / 50",
        "answer_2": "60",
        "answer_3": "(100 - rows['LEACE'].domain('gender').ss) / 100",
    },
    "13_clusters": {
        "answer_1": "2 / 3",
        "answer_2": "float(training.f1_matched[-1, 0, 0, -1])",
        "answer_3": "2",
    },
    "14_layer_similarity": {
        "answer_1": "1920",
        "answer_2": "int((tuned.cka > base.cka)[:, -1].sum()) + 3",
        "answer_3": "found.difference[-1]",
    },
    "15_patching": {
        "answer_1": "(0, 0)",
        "answer_2": "float(lost.recovered['head'][0, 1, -1])",
        "answer_3": "7",
    },
    "16_attention": {"answer_1": "(0, 0)", "answer_2": "'q'", "answer_3": "6"},
    "17_circuits": {
        "answer_1": "1 / 8",
        "answer_2": "int((pairs[np.tril_indices(8, -1)] < 0.5).sum())",
        "answer_3": "lambda model, case: {'heads': 1 - kept(model, case).min(axis=1).reshape(model.n_layers, -1)}",
        "answer_4": "list(strongest)",
    },
    "project_template": {},
}
"""Notebook → a tempting answer to each of its exercises that is not the right one."""
TRY = (
    *("*Add, open", "*Find a word*", "*Grid*", "*Map*", "*Quality*", "*Read*", "*Speed*", "*Tune*"),
    *("A `LogitLensExplorer", "Choose", "Click", "Crosses mark", "Find", "Follow", "Open", "Pin", "Press", "Search"),
    *("The *comparison* tab", "The buttons at the side", "Type", "Which"),
)
"""How a point begins that only says what to try."""


def nbformat() -> Any:
    """The module, which takes seconds to import: most workers of a run read no notebook."""
    import nbformat as module

    return module


def execute(book: Any, **options: Any) -> None:
    """Run a notebook, which keeps its outputs."""
    from nbclient import NotebookClient

    NotebookClient(book, timeout=LIMIT, startup_timeout=LIMIT, **options).execute()


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


def judged(name: str, names: dict[str, Any]) -> Any:
    """The judge of a lesson whose names are given."""
    sys.path.insert(0, str(ROOT / "notebooks"))
    try:
        from exercises import judge
    finally:
        sys.path.pop(0)
    return judge(name, names)


def test_an_answer_of_another_kind_is_told_too(capsys: pytest.CaptureFixture[str]) -> None:
    check = judged("10_your_own_probe", {"model": SimpleNamespace(tokens=lambda text: [0, 1]), "prompt": ""})
    for answer in (None, "three", [1, 2], [np.log(2)], 3, np.log(2)):
        check(2, answer)
    verdicts = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert verdicts == ["Your", "Not", "Not", "Not", "Not", "Right."]


def test_an_exercise_before_its_cells_says_which_name_is_missing() -> None:
    with pytest.raises(NameError, match="run the cells above first: model is not there yet"):
        judged("10_your_own_probe", {"prompt": ""})(2, 1.0)


@pytest.mark.seconds
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_an_exercise_does_not_show_its_answer(path: Path) -> None:
    """What the folded solution says stands nowhere else, and the cell that asks holds the question alone."""
    book = nbformat().read(path, as_version=4)
    shown = "\n".join(re.sub(r"<details>.*?</details>", "", cell.source, flags=re.DOTALL) for cell in book.cells)
    for name, solution in solutions(book).items():
        assert solution.split("#")[0].strip() not in shown, f"{name} of {path.name}"
        assert f"{name} = None\n\ncheck({name[-1]}, {name})" in [cell.source for cell in book.cells]


def plain(text: str) -> str:
    """A text without its line breaks."""
    return " ".join(text.split())


def with_claims(book: Any, claims: dict[str, str], *answers: dict[str, str]) -> Any:
    """The notebook with a cell behind each text that checks what the text claims, and with every exercise cell as it
    stands and again with each set of answers."""
    cells = []
    for cell in book.cells:
        cells.append(cell)
        if cell.cell_type == "markdown":
            said = [f"# {text}\n{code}" for text, code in claims.items() if text in plain(cell.source)]
            cells += [nbformat().v4.new_code_cell("\n".join(said))] if said else []
        asked = re.findall(r"^(answer_\w+) = None", cell.source, re.MULTILINE) if cell.cell_type == "code" else []
        for given in answers if asked else ():
            source = cell.source
            for name in asked:
                source = source.replace(f"{name} = None", f"{name} = {given[name]}")
            cells.append(nbformat().v4.new_code_cell(source))
    return nbformat().v4.new_notebook(cells=cells, metadata=book.metadata)


def printed_to_stderr(book: Any) -> list[str]:
    """What JupyterLab shows in red below the cells."""
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    return [output.text for output in outputs if output.get("name") == "stderr"]


@pytest.mark.seconds
def test_the_first_cell_prints_nothing_in_red() -> None:
    """In a kernel as a user starts it, with everything that the tests have put into the environment."""
    book = nbformat().read(ROOT / "notebooks" / "00_start.ipynb", as_version=4)
    first = next(cell for cell in book.cells if cell.cell_type == "code")
    assert "load_demo_pair()" in first.source
    run = nbformat().v4.new_notebook(cells=[first])
    execute(run, kernel_name="python3")
    assert printed_to_stderr(run) == []


@pytest.mark.slow
@pytest.mark.notebook
@pytest.mark.parametrize("path", [pytest.param(path, marks=MARKS.get(path.stem, ())) for path in NOTEBOOKS],
                         ids=lambda path: path.stem)  # fmt: skip
def test_notebook_runs_and_judges_its_exercises(path: Path, warm_kernel: str) -> None:
    book = nbformat().read(path, as_version=4)
    nbformat().validate(book)
    right, wrong = solutions(book), WRONG[path.stem]
    assert set(right) == set(wrong), "every exercise needs a solution in the notebook and a wrong answer here"
    run = with_claims(book, CLAIMS[path.stem], wrong, right)
    execute(run, kernel_name=warm_kernel, resources={"metadata": {"path": str(path.parent)}})
    assert printed_to_stderr(run) == []
    outputs = [output for cell in run.cells for output in cell.get("outputs", [])]
    assert any(WIDGET in output.get("data", {}) for output in outputs), f"{path.name} shows no widget"
    said = [text for output in outputs for text in output.get("text", "").splitlines()]
    verdicts = [text.split()[0] for text in said if text.startswith(("Your turn:", "Not yet.", "Right."))]
    assert verdicts == ["Your", "Not", "Right."] * len(right)


def blocks(path: Path) -> list[str]:
    """The code in the texts of a notebook: what to do with a model and files of one's own."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]  # read by every worker at collection: no `nbformat`
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
    return re.findall(r"^```python\n(.*?)```", "\n".join(texts), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_code_in_texts_compiles_and_names_what_there_is(path: Path) -> None:
    for block in blocks(path):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "interp_widgets":
                assert {alias.name for alias in node.names} <= set(interp_widgets.__all__)


READ = 'Path("path/to/folder")'
"""How the code in a text names the folder of published data."""


OF_PUBLISHED_DATA = [path for path in NOTEBOOKS if any(READ in block for block in blocks(path))]


@pytest.mark.slow
@pytest.mark.parametrize("path", OF_PUBLISHED_DATA, ids=lambda path: path.stem)
def test_code_for_published_data_runs_on_it(
    path: Path, reference_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [block for block in blocks(path) if READ in block]
    names: dict[str, Any] = {name: getattr(interp_widgets, name) for name in interp_widgets.__all__}
    names |= {"np": np, "model": interp_widgets.load_demo_pair().base}
    exec(block.replace(READ, f"Path({str(reference_data)!r})"), names)
    printed = capsys.readouterr().out
    assert printed
    if path.stem == "01_saliency":  # the paper's tables
        for number in re.findall(r"\d\.\d{4} ± \d\.\d\d", path.read_text(encoding="utf-8")):
            assert number in printed
        vicuna, llama = (float(text) for text in re.findall(r"without the division: \w+ ([\d.]+)", printed))
        assert vicuna < llama  # tuned and base change places
        both = names["saliency_dataset"]((names["llama"], names["vicuna"]), min_response=0, resamples=99)
        pairs = both.to_frame().pivot(index="name", columns="model", values="score").dropna().to_numpy()
        assert ttest_rel(pairs[:, 1], pairs[:, 0], alternative="greater").pvalue < 0.001  # "it agrees"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    for cell in nbformat().read(path, as_version=4).cells:
        assert not cell.get("outputs"), f"{path.name} has stored outputs: clear them before saving"
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_claim_that_is_tested_stands_in_its_notebook(path: Path) -> None:
    texts = [plain(cell.source) for cell in nbformat().read(path, as_version=4).cells if cell.cell_type == "markdown"]
    for claim in CLAIMS[path.stem]:
        assert sum(text.count(claim) for text in texts) == 1, f"{path.name} must say once: {claim}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_there_is_to_notice_is_tested(path: Path) -> None:
    """Every point under "What to notice" has a claim that is tested, or only says what to do and to look at."""
    for cell in nbformat().read(path, as_version=4).cells:
        _, _, after = cell.source.partition("**What to notice**\n\n") if cell.cell_type == "markdown" else ("", "", "")
        for point in re.split(r"^- ", after.split("\n\n")[0], flags=re.MULTILINE)[1:]:
            tried = point.startswith(TRY)
            assert tried or any(claim in plain(point) for claim in CLAIMS[path.stem]), f"{path.name}: {point}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_lesson_reads_nothing_outside_the_repository(path: Path) -> None:
    assert "../" not in path.read_text(encoding="utf-8")


def test_every_notebook_is_listed() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(WRONG) == list(CLAIMS)


@pytest.mark.seconds
def test_a_claim_that_is_not_so_is_noticed() -> None:
    book = nbformat().v4.new_notebook(cells=[nbformat().v4.new_markdown_cell("One is\ntwo.")])
    with pytest.raises(Exception, match="AssertionError"):
        execute(with_claims(book, {"One is two.": "assert 1 == 2"}), kernel_name="python3")


@pytest.mark.seconds
def test_a_failing_cell_is_noticed() -> None:
    book = nbformat().v4.new_notebook(cells=[nbformat().v4.new_code_cell("1 / 0")])
    with pytest.raises(Exception, match="ZeroDivisionError"):
        execute(book, kernel_name="python3")
