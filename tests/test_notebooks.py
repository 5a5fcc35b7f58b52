"""Every notebook runs from top to bottom and shows its widgets; its exercises tell right answers from wrong ones."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from textwrap import indent
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
TRY = (
    *("*Add, open", "*Find a word*", "*Grid*", "*Map*", "*Quality*", "*Read*", "*Speed*", "*Tune*"),
    *("A `LogitLensExplorer", "Choose", "Click", "Crosses mark", "Find", "Follow", "Open", "Pin", "Press", "Search"),
    *("The *comparison* tab", "The buttons at the side", "Type", "Which"),
)
"""How a point begins that only says what to try."""
ASKED = re.compile(r"^check(?:\.predict)?\(\s*\d+, ((answer|guess)_(\d+))\b", re.MULTILINE)
"""Where a cell asks for an answer or a guess."""


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


def solutions(lesson: str) -> dict[str, str]:
    """Name of every answer → what the lesson's solutions set it to."""
    path = ROOT / "notebooks" / "solutions" / f"{lesson.partition('_')[2]}.py"
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    set_here = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
    return {ast.unparse(node.targets[0]): str(ast.get_source_segment(text, node.value)) for node in set_here}


@pytest.fixture
def exercises(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The judges of the lessons, as the lessons import them."""
    monkeypatch.syspath_prepend(str(ROOT / "notebooks"))
    import exercises

    return exercises


def check_of_probes(exercises: Any) -> Any:
    """The judge of a lesson, with all that its exercise 2 asks of the lesson's names."""
    names = {"model": SimpleNamespace(tokens=lambda text: [0, 1], d_vocab=100), "prompt": ""}
    return exercises.judge("30_your_own_probe", names)


def test_a_judge_says_what_is_wrong_and_then_gives_hints(exercises: Any, capsys: pytest.CaptureFixture[str]) -> None:
    check = check_of_probes(exercises)
    for answer in (None, "three", 1.0, 3, 4, 5, 6, np.log(2), 0.693):
        check(2, answer)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Your turn:")
    assert said[1] == "Not yet. One number is asked for, such as 0.25; 'three' is none."
    assert said[2] == "Not yet. Those are bits. Nats are of the natural logarithm."
    assert [line.split(":")[0] for line in said[3:7]] == [f"Not yet. Hint {number} of 3" for number in (1, 2, 3, 3)]
    assert said[7:] == ["Right.", "Right."]


def test_nbgrader_gives_points_to_right_answers_only(
    exercises: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(exercises.NBGRADER, "autograde")
    check = check_of_probes(exercises)
    check(2, np.log(2))
    for answer, said in ((None, "there is no answer"), (1.0, "Those are bits."), (3, "it is another answer")):
        with pytest.raises(AssertionError, match=said):
            check(2, answer)
    assert capsys.readouterr().out == ""


def test_an_exercise_before_its_cells_says_which_name_is_missing(exercises: Any) -> None:
    with pytest.raises(NameError, match="run the cells above first: model is not there yet"):
        exercises.judge("30_your_own_probe", {"prompt": ""})(2, 1.0)


def test_a_number_that_is_no_exercise_is_told(exercises: Any) -> None:
    check = exercises.judge("30_your_own_probe", {})
    for call in (lambda: check(9, 1), lambda: check.hint(0), lambda: check.predict(1, 2, lambda: None)):
        with pytest.raises(ValueError, match=r"this lesson has (exercises 1, 2, 3|no predictions), not \d"):
            call()


def test_a_picture_opens_when_there_is_a_guess(exercises: Any, capsys: pytest.CaptureFixture[str]) -> None:
    guess = exercises.Prediction(exercises.answers.Whole(), lambda its: its.layer, "the country has moved by then.")
    check = exercises.Judge({}, {1: guess}, exercises.Names({"layer": 24}))
    opened = [check.predict(1, said, lambda: "picture") for said in (None, "late", 12)]
    assert opened == [None, None, "picture"]
    assert capsys.readouterr().out.splitlines() == [
        "Your guess first: replace None, and the picture opens.",
        "A whole number is asked for, such as 3; 'late' is none.",
        "You said 12. It is 24: the country has moved by then.",
    ]


@pytest.fixture
def progress(exercises: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The table of a student, whose file is `course.json` in a folder that is not there yet."""
    import course
    import solved

    monkeypatch.setenv(solved.VARIABLE, str(tmp_path / "state" / "course.json"))
    return course.progress


def test_what_is_solved_is_kept(
    exercises: Any, progress: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = progress()
    assert list(before.index) == [path.stem for path in NOTEBOOKS if path.stem.partition("_")[2] in exercises.lessons()]
    assert before.solved.sum() == 0
    assert all(before.minutes > 0)
    check = check_of_probes(exercises)
    for answer in (None, 3, "three"):
        check(2, answer)
    assert progress().solved.sum() == 0
    for _ in range(2):
        check(2, np.log(2))
    after = progress()
    assert after.solved["30_your_own_probe"] == after.solved.sum() == 1
    assert after.of["30_your_own_probe"] == 3
    file = tmp_path / "state" / "course.json"
    assert json.loads(file.read_text()) == {"your_own_probe": [2]}
    assert f"Kept in {file}." in capsys.readouterr().out
    file.unlink()
    assert progress().solved.sum() == 0


@pytest.mark.parametrize("text", ["{", "[1]", '{"your_own_probe": 2}', '{"your_own_probe": ["2", null]}'])
def test_a_damaged_file_of_progress_is_replaced(exercises: Any, progress: Any, tmp_path: Path, text: str) -> None:
    file = tmp_path / "state" / "course.json"
    file.parent.mkdir()
    file.write_text(text)
    assert progress().solved.sum() == 0
    check_of_probes(exercises)(2, np.log(2))
    assert progress().solved.sum() == 1


def test_a_lesson_goes_on_where_progress_cannot_be_kept(
    exercises: Any, progress: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    for place in (str(tmp_path / "state" / "course.json"), str(tmp_path), "~nobody-here/course.json", ""):
        monkeypatch.setenv("INTERP_WIDGETS_PROGRESS", place)
        check_of_probes(exercises)(2, np.log(2))
        assert capsys.readouterr() == ("Right.\n", "")
        assert progress().solved.sum() == 0


def test_an_audit_finds_what_is_wrong_with_an_exercise(exercises: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    of, wrong = exercises.answers, exercises.Wrong
    bad = exercises.Exercise(
        of.Number(), lambda its: 0.25, ("a", "b"),
        (wrong(lambda its: 0.2501, "near"), wrong(lambda its: 0.5, "half"), wrong(lambda its: 1 / 2, "half again")),
    )  # fmt: skip
    monkeypatch.setattr(exercises, "rules", lambda lesson: SimpleNamespace(EXERCISES={1: bad}))
    assert exercises.audit("any", 1, {}) == [
        "accepts a wrong way: near",
        "says 'half' to a wrong way whose reply is 'half again'",
        "has 2 hints, of 3",
    ]


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What stores the lessons."""
    monkeypatch.syspath_prepend(str(ROOT / "notebooks"))
    import stored

    return stored


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_an_exercise_does_not_show_its_answer(path: Path, exercises: Any) -> None:
    """What solves it stands nowhere in the lesson, and the cell that asks holds the question alone."""
    cells = ["".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    solved = solutions(path.stem)
    asked = {name for cell in cells for name in re.findall(r"^((?:answer|guess)_\d+) = None", cell, re.MULTILINE)}
    assert asked == set(solved)
    if asked:
        rules = exercises.rules(path.stem)
        in_rules = {f"answer_{number}" for number in rules.EXERCISES}
        assert asked == in_rules | {f"guess_{number}" for number in getattr(rules, "PREDICTIONS", {})}
    for name, solution in solved.items():
        kind, _, number = name.partition("_")
        if kind == "answer":
            assert solution not in "\n".join(cells), f"{name} of {path.name}"
            assert cells[cells.index(f"{name} = None") + 1] == f"check({number}, {name})"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nbgrader_finds_every_answer_and_what_checks_it(path: Path, exercises: Any) -> None:
    """As version 3 of its metadata says it: students write into the one cell and cannot change the other."""
    wanted: dict[str, Any] = {}
    for number in exercises.rules(path.stem).EXERCISES if solutions(path.stem) else ():
        common = {"schema_version": 3, "task": False}
        answer = {"grade": False, "grade_id": f"answer_{number}", "locked": False, "solution": True}
        check = {"grade": True, "grade_id": f"check_{number}", "locked": True, "solution": False, "points": 1}
        wanted[f"answer_{number} = None"] = common | answer
        wanted[f"check({number}, answer_{number})"] = common | check
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    found = {"".join(cell["source"]): cell["metadata"]["nbgrader"] for cell in cells if "nbgrader" in cell["metadata"]}
    assert found == wanted


def plain(text: str) -> str:
    """A text without its line breaks."""
    return " ".join(text.split())


def with_claims(book: Any, claims: dict[str, str], lesson: str = "", solved: dict[str, str] | None = None) -> Any:
    """The notebook with a cell behind each text that checks what the text claims. Every exercise stands there as it is
    and then solved, and behind it is a cell that asks what is wrong with the exercise itself.

    In a lesson on a real model both wait for that model.
    """
    on_real = any("real_model()" in cell.source for cell in book.cells if cell.cell_type == "code")

    def test_cell(code: str) -> Any:
        return nbformat().v4.new_code_cell(f"if real:\n{indent(code, '    ')}" if on_real else code)

    cells = []
    for cell in book.cells:
        cells.append(cell)
        if cell.cell_type == "markdown":
            said = [f"# {text}\n{code}" for text, code in claims.items() if text in plain(cell.source)]
            cells += [test_cell("\n".join(said))] if said else []
        asked = ASKED.search(cell.source) if cell.cell_type == "code" else None
        if solved and asked:
            name, kind, number = asked.groups()
            check = cell.source.replace(f"{name} = None", "")
            cells.append(nbformat().v4.new_code_cell(f"{name} = {solved[name]}\n{check}"))
            if kind == "answer":
                audit = f"faults = exercises.audit({lesson!r}, {number}, globals())\nassert not faults, faults"
                cells.append(test_cell(f"import exercises\n{audit}"))
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
    solved = solutions(path.stem)
    run = with_claims(book, CLAIMS[path.stem], path.stem, solved)
    execute(run, kernel_name=warm_kernel, resources={"metadata": {"path": str(path.parent)}})
    assert printed_to_stderr(run) == []
    outputs = [output for cell in run.cells for output in cell.get("outputs", [])]
    assert any(WIDGET in output.get("data", {}) for output in outputs), f"{path.name} shows no widget"
    said = [text for output in outputs for text in output.get("text", "").splitlines()]
    verdicts = [text.split()[0] for text in said if text.startswith(("Your turn:", "Not yet.", "Right."))]
    assert verdicts == ["Your", "Right."] * sum(name.startswith("answer") for name in solved)


ON_REAL = [path for path in NOTEBOOKS if "real_model()" in path.read_text(encoding="utf-8")]


@pytest.mark.slow
@pytest.mark.parametrize("path", ON_REAL, ids=lambda path: path.stem)
def test_a_lesson_on_a_real_model_runs_on_the_demo_too(path: Path, warm_kernel: str) -> None:
    book = nbformat().read(path, as_version=4)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    for cell in cells:
        cell.source = re.sub(r"^(guess_\d+) = None", r"\1 = 1", cell.source)
    demo = "import course\ncourse.real_model = lambda: (course.load_demo_pair().base, False)"
    run = nbformat().v4.new_notebook(cells=[nbformat().v4.new_code_cell(demo), *cells], metadata=book.metadata)
    execute(run, kernel_name=warm_kernel, resources={"metadata": {"path": str(path.parent)}})
    assert printed_to_stderr(run) == []


def texts_of(path: Path) -> list[str]:
    """What a notebook says between its cells of code."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]  # read by every worker at collection: no `nbformat`
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def blocks(path: Path) -> list[str]:
    """The code in the texts of a notebook: what to do with a model and files of one's own."""
    return re.findall(r"^```python\n(.*?)```", "\n".join(texts_of(path)), re.DOTALL | re.MULTILINE)


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
    if path.stem == "12_saliency":  # the paper's tables
        for number in re.findall(r"\d\.\d{4} ± \d\.\d\d", "".join(texts_of(path))):
            assert number in printed
        vicuna, llama = (float(text) for text in re.findall(r"without the division: \w+ ([\d.]+)", printed))
        assert vicuna < llama  # tuned and base change places
        both = names["saliency_dataset"]((names["llama"], names["vicuna"]), min_response=0, resamples=99)
        pairs = both.to_frame().pivot(index="name", columns="model", values="score").dropna().to_numpy()
        assert ttest_rel(pairs[:, 1], pairs[:, 0], alternative="greater").pvalue < 0.001  # "it agrees"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_with_what_its_code_shows(path: Path, stored: Any) -> None:
    """A reader without a kernel sees the pictures, and none of code that has changed since."""
    book = nbformat().read(path, as_version=4)
    assert book.metadata.get(stored.OF_CODE) == stored.code_of(book), f"make stored has to run {path.name} again"
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert all(cell.get("execution_count") is None for cell in book.cells)
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    folded = any("check.predict(" in cell.source for cell in book.cells)  # until there is a guess
    assert "image/png" in kinds or folded
    assert WIDGET not in kinds
    charts = [output.data for output in outputs if "BokehFigure(" in output.get("data", {}).get("text/plain", "")]
    assert all("image/png" in data for data in charts)
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]


@pytest.mark.seconds
def test_a_widget_is_stored_as_the_picture_of_what_is_in_sight(stored: Any) -> None:
    bench = interp_widgets.Workbench(interp_widgets.load_demo_pair().base, prompt="The cat")
    shown = bench.show("attention")
    panel = bench.screen["attention"].current_panel
    assert stored.panels_in(shown) == stored.panels_in(bench.screen["attention"]) == [panel]
    assert stored.picture(shown).startswith(b"\x89PNG")
    assert stored.picture(bench.screen.texts.controls) is None
    bench.close()


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
def test_the_pictures_of_a_lesson_are_there(path: Path) -> None:
    for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / picture).is_file(), picture


def test_the_drawings_are_what_their_code_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "notebooks"))
    import drawings

    assert {path.stem for path in drawings.FOLDER.glob("*.svg")} == set(drawings.DRAWINGS)
    for name, draw in drawings.DRAWINGS.items():
        assert (drawings.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == draw().svg(), f"run {drawings.__file__}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_lesson_reads_nothing_outside_the_repository(path: Path) -> None:
    assert "../" not in path.read_text(encoding="utf-8")


def test_every_notebook_is_listed() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(CLAIMS)


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
